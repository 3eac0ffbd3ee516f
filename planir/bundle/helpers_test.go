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
	r := &Keyring{Generation: 1, Threshold: threshold}
	for _, k := range keys {
		r.Keys = append(r.Keys, k.Key)
	}
	must(r.Encode()) // sorts, checks
	return r
}

// pattern returns n bytes that compress well and in which no two chunks are equal.
func pattern(seed byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = seed ^ byte(i>>8) ^ byte(i>>12)
	}
	return b
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
	r := &recipe{
		signers: []testKey{keyA},
		kind:    payloadType,
		manifest: Manifest{
			Product: "com.example.test", Version: "1.0", SecurityVersion: 4, KeyringGeneration: 1,
			Requires: Requires{Features: []string{FeatureChunks}}, Entrypoint: "plan", ChunkBytes: testChunk,
		},
		contents: map[string][]byte{},
	}
	r.add("graph/npu", RoleNPUGraph, pattern(1, 5000))
	r.add("plan", RolePlan, pattern(2, 300))
	r.add("weights/000", RoleWeights, pattern(3, 3*testChunk+17))
	r.add("weights/001", RoleWeights, pattern(4, 2*testChunk))
	return r
}

func (r *recipe) add(name string, role Role, content []byte) {
	align := int64(64)
	if len(content) >= pageAlign {
		align = pageAlign
	}
	r.manifest.Blobs = append(r.manifest.Blobs, Blob{Name: name, Role: role, Type: "application/octet-stream", Bytes: int64(len(content)), Align: align})
	slices.SortFunc(r.manifest.Blobs, func(a, b Blob) int { return strings.Compare(a.Name, b.Name) })
	r.contents[name] = content
}

// build returns the file.
func (r *recipe) build() []byte {
	m := r.manifest
	m.Blobs = slices.Clone(m.Blobs)
	var table []byte
	for i := range m.Blobs {
		content := r.contents[m.Blobs[i].Name]
		m.Blobs[i].SHA256 = sha256.Sum256(content)
		var leaves []Digest
		for part := range slices.Chunk(content, int(m.ChunkBytes)) {
			leaf := sha256.Sum256(part)
			leaves = append(leaves, leaf)
			table = append(table, leaf[:]...)
		}
		m.Blobs[i].Root = rootOf(int64(len(content)), m.ChunkBytes, leaves)
	}
	if r.digests != nil {
		r.digests(&m)
	}
	payload := must(encode(m.walk))
	l := layOut(&m, len(payload))
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
		env.signatures = append(env.signatures, signature{keyID: sha256.Sum256(k.DER), sig: base64.StdEncoding.EncodeToString(k.sign(message))})
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
	file := make([]byte, l.size)
	copy(file, encodeHeader(len(data)))
	copy(file[headerBytes:], data)
	copy(file[l.table:], table)
	for i := range m.Blobs {
		copy(file[l.offsets[i]:], r.contents[m.Blobs[i].Name])
	}
	if r.file != nil {
		file = r.file(file, l)
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
	b, err := Open(path, o)
	if err != nil {
		return nil, err
	}
	if err := b.VerifyAll(context.Background(), nil); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}
