package bundle

import "crypto/sha256"

// Unverified is what a bundle says about itself. Nobody has checked it: neither a signature nor
// the contents. It is for people to look at, and nothing in it may decide what is executed.
type Unverified struct {
	Manifest *Manifest
	Digest   Digest   // SHA-256 of the manifest
	Signers  []string // IDs of the keys it claims to be signed by
	Exploded bool     // a directory
	Bytes    int64    // size of the file; of the blobs together when Exploded
	Offsets  []int64  // of each blob in the file; nil when Exploded
}

// Inspect reads the bundle at path without any key. It refuses what is malformed, by the steps
// open to encoding, manifest and layout, and checks nothing else.
func Inspect(path string) (*Unverified, error) {
	u, err := inspect(path)
	return u, at(path, err)
}

func inspect(path string) (*Unverified, error) {
	s, err := openStore(path)
	if err != nil {
		return nil, err
	}
	defer s.close()
	data, err := s.envelope()
	if err != nil {
		return nil, err
	}
	env, err := decodeEnvelope(data)
	if err != nil {
		return nil, refuse(StepEnvelope, "envelope: %w", err)
	}
	payload, err := env.open()
	if err != nil {
		return nil, err
	}
	m, err := decodeManifest(payload)
	if err != nil {
		return nil, refuse(StepManifest, "manifest: %w", err)
	}
	if err := s.check(m, len(payload)); err != nil {
		return nil, err
	}
	u := &Unverified{Manifest: m, Digest: sha256.Sum256(payload)}
	for _, g := range env.signatures {
		u.Signers = append(u.Signers, g.keyID.String())
	}
	if f, single := s.(*fileStore); single {
		u.Bytes, u.Offsets = f.bytes, f.layout.offsets
		return u, nil
	}
	u.Exploded = true
	for _, b := range m.Blobs {
		u.Bytes += b.Bytes
	}
	return u, nil
}
