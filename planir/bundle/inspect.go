package bundle

import "crypto/sha256"

// Unverified is what a bundle says about itself. It is not checked: neither a signature nor
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
	store, err := openStore(path)
	if err != nil {
		return nil, at(path, err)
	}
	defer store.close()
	unverified, err := inspect(store)
	return unverified, at(path, err)
}

// Claimed returns the blob of that name in the bundle at path, packed or exploded, of which Inspect's refusals are
// checked and nothing else, its digest neither. It is nil when the bundle has none of that name and at most that many
// bytes.
func Claimed(path, name string, most int64) ([]byte, error) {
	store, err := openStore(path)
	if err != nil {
		return nil, at(path, err)
	}
	defer store.close()
	unverified, err := inspect(store)
	if err != nil {
		return nil, at(path, err)
	}
	for i, blob := range unverified.Manifest.Blobs {
		if blob.Name == name && blob.Bytes <= most {
			data := make([]byte, blob.Bytes)
			return data, at(path, store.copyBlob(unverified.Manifest, i, data, stepOpen))
		}
	}
	return nil, nil
}

// inspect applies Inspect's steps to an open store.
func inspect(opened store) (*Unverified, error) {
	// The steps of open without those that need keys: the form of envelope, manifest and file is checked, and nothing
	// is known about who wrote them.
	data, err := opened.envelope()
	if err != nil {
		return nil, err
	}
	env, payload, err := openEnvelope(data)
	if err != nil {
		return nil, err
	}
	manifest, err := decodeManifest(payload)
	if err != nil {
		return nil, refuse(stepManifest, "manifest: %w", err)
	}
	if err := opened.check(manifest, len(payload)); err != nil {
		return nil, err
	}
	unverified := &Unverified{Manifest: manifest, Digest: sha256.Sum256(payload)}
	for _, signature := range env.signatures {
		unverified.Signers = append(unverified.Signers, signature.keyID.String())
	}
	// A bundle in one file has padding between its blobs, which counts; a folder has none.
	if file, single := opened.(*fileStore); single {
		unverified.Bytes, unverified.Offsets = file.bytes, file.layout.offsets
		return unverified, nil
	}
	for _, blob := range manifest.Blobs {
		unverified.Bytes += blob.Bytes
	}
	return unverified, nil
}
