package bundle

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// testKey is a key pair made from a fixed seed, so that vectors are reproducible.
type testKey struct {
	Key
	ed ed25519.PrivateKey
	ec *ecdsa.PrivateKey
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func edKey(name string, dev bool) testKey {
	seed := sha256.Sum256([]byte("hetc test key " + name))
	k := ed25519.NewKeyFromSeed(seed[:])
	return testKey{Key: must(NewKey(name, k.Public(), dev)), ed: k}
}

func ecKey(name string) testKey {
	seed := sha256.Sum256([]byte("hetc test key " + name))
	k := must(ecdsa.ParseRawPrivateKey(elliptic.P256(), seed[:]))
	return testKey{Key: must(NewKey(name, k.Public(), false)), ec: k}
}

func (k testKey) sign(pae []byte) []byte {
	if k.ed != nil {
		return ed25519.Sign(k.ed, pae)
	}
	sum := sha256.Sum256(pae)
	return must(k.ec.Sign(nil, sum[:], crypto.SHA256))
}

func (k testKey) signer() Signer {
	return Signer{Key: k.Key, Sign: func(pae []byte) ([]byte, error) { return k.sign(pae), nil }}
}

var (
	keyA   = edKey("a", false)
	keyB   = ecKey("b")
	keyC   = edKey("c", false)
	keyDev = edKey("dev", true)
)

func ring(threshold int64, keys ...testKey) *Keyring {
	keyring := &Keyring{Generation: 1, Threshold: threshold}
	for _, k := range keys {
		keyring.Keys = append(keyring.Keys, k.Key)
	}
	must(keyring.Encode()) // sorts, checks
	return keyring
}

// pattern returns n bytes that compress well and in which no two chunks are equal.
func pattern(seed byte, n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = seed ^ byte(i>>8) ^ byte(i>>12)
	}
	return data
}

// recipe makes the bytes of a `.hetb` from its parts, by code that shares only the layout with
// the writer, and lets a test damage each part.
type recipe struct {
	manifest Manifest
	contents map[string][]byte
	signers  []testKey

	digests  func(m *Manifest)             // of the manifest that is signed
	payload  func(string) string           // its bytes
	kind     string                        // payload type
	message  func(payload []byte) []byte   // what is signed; nil: PAE
	sigs     func([]signature) []signature // in any order
	envelope func(string) string           // its bytes
	file     func([]byte, layout) []byte   // the whole file
	trust    []byte                        // keyring file; nil: ring of signers
}

const testChunk = 4096

func baseRecipe() *recipe {
	given := &recipe{
		signers: []testKey{keyA},
		kind:    payloadType,
		manifest: Manifest{
			Product: "com.example.test", Version: "1.0", SecurityVersion: 4, KeyringGeneration: 1,
			Requires: Requires{Features: []string{FeatureChunks}}, Entrypoint: "plan", ChunkBytes: testChunk,
		},
		contents: map[string][]byte{},
	}
	given.add("graph/npu", RoleNPUGraph, pattern(1, 5000))
	given.add("plan", RolePlan, pattern(2, 300))
	given.add("weights/000", RoleWeights, pattern(3, 3*testChunk+17))
	given.add("weights/001", RoleWeights, pattern(4, 2*testChunk))
	return given
}

func (r *recipe) add(name string, role Role, content []byte) {
	align := int64(64)
	if len(content) >= pageAlign {
		align = pageAlign
	}
	r.manifest.Blobs = append(r.manifest.Blobs, Blob{Name: name, Role: role, Type: "application/octet-stream",
		Bytes: int64(len(content)), Align: align})
	slices.SortFunc(r.manifest.Blobs, func(a, b Blob) int { return strings.Compare(a.Name, b.Name) })
	r.contents[name] = content
}

// build returns the file.
func (r *recipe) build() []byte {
	manifest := r.manifest
	manifest.Blobs = slices.Clone(manifest.Blobs)
	var table []byte
	for i := range manifest.Blobs {
		content := r.contents[manifest.Blobs[i].Name]
		manifest.Blobs[i].SHA256 = sha256.Sum256(content)
		var leaves []Digest
		for part := range slices.Chunk(content, int(manifest.ChunkBytes)) {
			leaf := sha256.Sum256(part)
			leaves = append(leaves, leaf)
			table = append(table, leaf[:]...)
		}
		manifest.Blobs[i].Root = rootOf(int64(len(content)), manifest.ChunkBytes, leaves)
	}
	if r.digests != nil {
		r.digests(&manifest)
	}
	payload := must(encode(manifest.walk))
	layout := layOut(&manifest, len(payload))
	if r.payload != nil {
		old := string(payload)
		if payload = []byte(r.payload(old)); string(payload) == old {
			panic("the payload edit changed nothing")
		}
	}
	message := pae(r.kind, payload)
	if r.message != nil {
		message = r.message(payload)
	}
	env := &envelope{payload: base64.StdEncoding.EncodeToString(payload), kind: r.kind}
	for _, k := range r.signers {
		env.signatures = append(env.signatures,
			signature{keyID: sha256.Sum256(k.DER), sig: base64.StdEncoding.EncodeToString(k.sign(message))})
	}
	slices.SortFunc(env.signatures, func(a, b signature) int { return bytes.Compare(a.keyID[:], b.keyID[:]) })
	if r.sigs != nil {
		env.signatures = r.sigs(env.signatures)
	}
	c := &codec{encoding: true}
	c.object(func() { // without the limits of envelope.walk, so that tests can break them
		c.token(`"payload":"` + env.payload + `","payloadType":"` + env.kind + `","signatures":[`)
		for i, s := range env.signatures {
			if i > 0 {
				c.token(",")
			}
			c.token(`{"keyid":"` + s.keyID.String() + `","sig":"` + s.sig + `"}`)
		}
		c.token("]")
	})
	data := c.buf
	if r.envelope != nil {
		old := string(data)
		if data = []byte(r.envelope(old)); string(data) == old {
			panic("the envelope edit changed nothing")
		}
	}
	file := make([]byte, layout.size)
	copy(file, encodeHeader(len(data)))
	copy(file[headerBytes:], data)
	copy(file[layout.table:], table)
	for i := range manifest.Blobs {
		copy(file[layout.offsets[i]:], r.contents[manifest.Blobs[i].Name])
	}
	if r.file != nil {
		file = r.file(file, layout)
	}
	return file
}

// keyring returns the trusted keys as a file.
func (r *recipe) keyring() []byte {
	if r.trust != nil {
		return r.trust
	}
	return must(ring(int64(max(1, len(r.signers))), r.signers...).Encode())
}

func writeTemp(t testing.TB, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.hetb")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// openAll opens the bundle in the given mode and checks every byte.
func openAll(path string, o Options) (*Bundle, error) {
	opened, err := Open(path, o)
	if err != nil {
		return nil, err
	}
	if err := opened.VerifyAll(context.Background(), nil); err != nil {
		opened.Close()
		return nil, err
	}
	return opened, nil
}
