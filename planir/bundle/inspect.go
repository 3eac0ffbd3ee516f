package bundle

import "crypto/sha256"

// Unverified is what a bundle says about itself. Nobody has checked it: neither a signature nor
// the contents. It is for people to look at, and nothing in it may decide what is executed.
type Unverified struct {
	Manifest *Manifest
	Digest   Digest   // SHA-256 of the manifest
	Signers  []string // IDs of the keys it claims to be signed by
	Bytes    int64    // size of the file; of the blobs together in an exploded bundle
	Offsets  []int64  // of each blob in the file; nil in an exploded bundle
}

// Inspect reads the bundle at path without any key. It refuses what is malformed, by the steps
// open to encoding, manifest and layout, and checks nothing else.
func Inspect(path string) (*Unverified, error) {
	s, err := openStore(path)
	if err != nil {
		return nil, at(path, err)
	}
	defer s.close()
	u, err := inspect(s)
	return u, at(path, err)
}

// Claimed is the blob of that name in the bundle at path, packed or exploded, of which Inspect's refusals are checked
// and nothing else, its digest neither. It is nil when the bundle has none of that name and at most that many bytes.
func Claimed(path, name string, most int64) ([]byte, error) {
	s, err := openStore(path)
	if err != nil {
		return nil, at(path, err)
	}
	defer s.close()
	u, err := inspect(s)
	if err != nil {
		return nil, at(path, err)
	}
	for i, b := range u.Manifest.Blobs {
		if b.Name == name && b.Bytes <= most {
			data := make([]byte, b.Bytes)
			return data, at(path, s.copyBlob(u.Manifest, i, data, StepOpen))
		}
	}
	return nil, nil
}

func inspect(s store) (*Unverified, error) {
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
	for _, b := range m.Blobs {
		u.Bytes += b.Bytes
	}
	return u, nil
}
