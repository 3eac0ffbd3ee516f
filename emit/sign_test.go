package emit

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/bundle"
)

var algorithms = []bundle.Algorithm{bundle.Ed25519, bundle.P256}

// newKey generates a key.
func newKey(t *testing.T, algorithm bundle.Algorithm, name string) *PrivateKey {
	t.Helper()
	key, err := GenerateKey(algorithm, name, false)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// writeBundle writes a bundle that keys sign.
func writeBundle(t *testing.T, path string, keys ...*PrivateKey) {
	t.Helper()
	var signers []bundle.Signer
	for _, key := range keys {
		signers = append(signers, key.Signer())
	}
	manifest := bundle.Manifest{Product: "test", Entrypoint: "plan"}
	plan := bundle.Source{Name: "plan", Role: bundle.RolePlan, Bytes: 5, Content: strings.NewReader("hello")}
	_, err := bundle.Write(context.Background(), path, manifest, []bundle.Source{plan}, signers...)
	if err != nil {
		t.Fatal(err)
	}
}

// A key that is saved and loaded again signs the same bytes as the original, and its public file verifies them.
func TestSignIsDeterministicAndVerifies(t *testing.T) {
	for _, algorithm := range algorithms {
		dir := t.TempDir()
		key := newKey(t, algorithm, "release")
		base := filepath.Join(dir, "release")
		if err := key.Save(base); err != nil {
			t.Fatal(err)
		}
		loaded, err := LoadSigningKey(base + ".key")
		if err != nil {
			t.Fatal(err)
		}

		one, two := filepath.Join(dir, "1.hetb"), filepath.Join(dir, "2.hetb")
		writeBundle(t, one, key)
		writeBundle(t, two, loaded)

		a, _ := os.ReadFile(one)
		b, _ := os.ReadFile(two)
		if !bytes.Equal(a, b) || len(a) == 0 {
			t.Errorf("%s: two signatures differ", algorithm)
		}
		trust, err := bundle.LoadTrust(base + ".pub")
		if err != nil {
			t.Fatal(err)
		}
		open, err := bundle.Open(one, bundle.Options{Trust: trust})
		if err != nil {
			t.Fatal(err)
		}
		defer open.Close()
		if got := open.Signers(); len(got) != 1 || got[0] != key.Public.ID() {
			t.Errorf("%s: signers %q", algorithm, got)
		}
	}
}

// A bundle that another key signed is refused.
func TestStrangersAreRefused(t *testing.T) {
	for _, algorithm := range algorithms {
		path := filepath.Join(t.TempDir(), "x.hetb")
		writeBundle(t, path, newKey(t, algorithm, "release"))

		other := newKey(t, algorithm, "other")
		trust := &bundle.Keyring{Generation: 1, Threshold: 1, Keys: []bundle.Key{other.Public}}
		if _, err := bundle.Open(path, bundle.Options{Trust: trust}); bundle.StepOf(err) != bundle.StepSignature {
			t.Errorf("%s: another key accepted: %v", algorithm, err)
		}
	}
}

// A bundle may have signatures of two algorithms, and a keyring may want both.
func TestTwoSignaturesTwoAlgorithms(t *testing.T) {
	a, b := newKey(t, bundle.Ed25519, "a"), newKey(t, bundle.P256, "b")
	path := filepath.Join(t.TempDir(), "x.hetb")
	writeBundle(t, path, a, b)
	ring := &bundle.Keyring{Generation: 1, Threshold: 2, Keys: []bundle.Key{a.Public, b.Public}}
	data, err := ring.Encode()
	if err != nil {
		t.Fatal(err)
	}
	trust, err := bundle.ParseTrust(data, "ring")
	if err != nil {
		t.Fatal(err)
	}

	open, err := bundle.Open(path, bundle.Options{Trust: trust})
	if err != nil {
		t.Fatal(err)
	}
	open.Close()
}

// A development key is marked in its private and in its public file, and is accepted only where the policy says so.
func TestDevKeysAreMarkedInBothFiles(t *testing.T) {
	key, err := GenerateKey(bundle.Ed25519, "dev", true)
	if err != nil {
		t.Fatal(err)
	}
	base := filepath.Join(t.TempDir(), "dev")
	if err := key.Save(base); err != nil {
		t.Fatal(err)
	}
	again, err := LoadSigningKey(base + ".key")
	if err != nil {
		t.Fatal(err)
	}
	trust, err := bundle.LoadTrust(base + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	if !again.Public.Dev || !trust.Keys[0].Dev {
		t.Fatal("the mark was lost")
	}

	path := base + ".hetb"
	writeBundle(t, path, again)
	if _, err := bundle.Open(path, bundle.Options{Trust: trust}); bundle.StepOf(err) != bundle.StepSignature {
		t.Fatalf("development key accepted by default: %v", err)
	}
	allow := bundle.Policy{AllowDev: true}
	open, err := bundle.Open(path, bundle.Options{Trust: trust, Policy: allow})
	if err != nil {
		t.Fatal(err)
	}
	open.Close()
}

// The private file is the owner's alone. Neither file is overwritten, and a failed save leaves no private file.
func TestSaveProtectsTheSecret(t *testing.T) {
	key := newKey(t, bundle.Ed25519, "k")
	base := filepath.Join(t.TempDir(), "k")
	if err := key.Save(base); err != nil {
		t.Fatal(err)
	}

	info, err := os.Stat(base + ".key")
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); mode != 0o600 {
		t.Errorf("permissions %#o", mode)
	}
	if err := key.Save(base); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("overwrite: %v", err)
	}

	if err := os.Remove(base + ".key"); err != nil {
		t.Fatal(err)
	}
	if err := key.Save(base); err == nil {
		t.Error("existing .pub overwritten")
	}
	if _, err := os.Stat(base + ".key"); err == nil {
		t.Error("a .key was left behind by a failed save")
	}
}

// A private file that others may read or write is refused.
func TestOpenPermissionsAreRefused(t *testing.T) {
	secret, err := newKey(t, bundle.Ed25519, "k").pem()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "open.key")
	if err := os.WriteFile(path, secret, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		_, err := LoadSigningKey(path)
		if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "permissions") {
			t.Errorf("mode %#o: %v", mode, err)
		}
	}
}

// The hint to make a key is given where there is none, and not where one cannot be read.
func TestKeyThatCannotBeRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path   string
		keygen bool // hetc keygen is among the hints
	}{
		{path: file + ".key", keygen: true},
		{path: filepath.Join(file, "x.key"), keygen: false},
	} {
		_, err := LoadSigningKey(c.path)
		if err == nil {
			t.Errorf("%s: a key was loaded", c.path)
		}
		hints := strings.Join(diag.HintsOf(err), " ")
		if got := strings.Contains(hints, "hetc keygen"); got != c.keygen {
			t.Errorf("%s: %v, hints %q, want keygen among them: %v", c.path, err, hints, c.keygen)
		}
	}
}

// A file that is no key is refused as that, and not for its permissions.
func TestFileThatIsNoKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plan.yaml")
	if err := os.WriteFile(path, []byte("schema: hetc.plan/2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := LoadSigningKey(path)
	if want := `signing key "plan.yaml": not a private key in PEM`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if got := strings.Join(diag.HintsOf(err), " "); !strings.Contains(got, "hetc keygen") {
		t.Errorf("hint %q, want hetc keygen in it", got)
	}

	t.Setenv(EnvSigningKey, path)
	_, err = LoadSigningKey("")
	if got := strings.Join(diag.HintsOf(err), " "); !strings.Contains(got, EnvSigningKeyFile) {
		t.Errorf("a path in %s: %v, hint %q, want %s in it", EnvSigningKey, err, got, EnvSigningKeyFile)
	}
}

// unsetKeys removes the environment's keys until the end of the test.
func unsetKeys(t *testing.T) {
	t.Helper()
	t.Setenv(EnvSigningKey, "") // registers the restore
	t.Setenv(EnvSigningKeyFile, "")
	os.Unsetenv(EnvSigningKey)
	os.Unsetenv(EnvSigningKeyFile)
}

// A key comes from the environment as text or as a file, not as both. The text is removed from the environment.
func TestSigningKeyFromEnvironment(t *testing.T) {
	key := newKey(t, bundle.P256, "env")
	secret, err := key.pem()
	if err != nil {
		t.Fatal(err)
	}
	base := filepath.Join(t.TempDir(), "env")
	if err := key.Save(base); err != nil {
		t.Fatal(err)
	}
	unsetKeys(t)
	if _, err := LoadSigningKey(""); diag.ClassOf(err) != diag.ClassUsage {
		t.Errorf("no key: %v", err)
	}

	os.Setenv(EnvSigningKey, string(secret))
	if got, err := LoadSigningKey(""); err != nil || got.Public.ID() != key.Public.ID() {
		t.Errorf("text: %v", err)
	}
	if _, left := os.LookupEnv(EnvSigningKey); left {
		t.Error("the secret is still in the environment")
	}

	os.Setenv(EnvSigningKeyFile, base+".key")
	if got, err := LoadSigningKey(""); err != nil || got.Public.ID() != key.Public.ID() {
		t.Errorf("file: %v", err)
	}

	os.Setenv(EnvSigningKey, string(secret))
	if _, err := LoadSigningKey(""); diag.ClassOf(err) != diag.ClassUsage {
		t.Errorf("both: %v", err)
	}
}

// A text that is no key of a known algorithm is refused, and the error does not show it.
func TestBadKeysAreRefusedWithoutShowingThem(t *testing.T) {
	wrap := func(kind string, key any) []byte {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	}
	p384, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	p256, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	good := wrap(pemPrivate, p256)
	for name, text := range map[string][]byte{
		"empty":         {},
		"not pem":       []byte("SECRETSECRET"),
		"rsa":           wrap(pemPrivate, rsaKey),
		"p384":          wrap(pemPrivate, p384),
		"sec1 type":     wrap("EC PRIVATE KEY", p256),
		"encrypted":     wrap("ENCRYPTED PRIVATE KEY", p256),
		"public":        wrap("PUBLIC KEY", p256),
		"truncated der": pem.EncodeToMemory(&pem.Block{Type: pemPrivate, Bytes: []byte("SECRETSECRET")}),
		"two blocks":    append(bytes.Clone(good), good...),
		"huge":          append(bytes.Clone(good), make([]byte, maxKeyFile)...),
	} {
		_, err := parseKey(text, "k", "give a key")
		if class := diag.ClassOf(err); class != diag.ClassInput && class != diag.ClassUnavailable {
			t.Errorf("%s: got %v", name, err)
			continue
		}
		if strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: the error shows the key: %v", name, err)
		}
	}
}

// A key that is missing, a directory in its place and an unknown algorithm are errors of the user.
func TestNoKey(t *testing.T) {
	dir := t.TempDir()
	if _, err := LoadSigningKey(filepath.Join(dir, "none.key")); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("missing file: %v", err)
	}
	if _, err := LoadSigningKey(dir); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("directory: %v", err)
	}
	if _, err := GenerateKey("rsa", "k", false); diag.ClassOf(err) != diag.ClassUsage {
		t.Errorf("unknown algorithm: %v", err)
	}
}

// FuzzParseKey refuses a text, or finds a key that is written and read again as the same key.
func FuzzParseKey(f *testing.F) {
	for _, a := range algorithms {
		key, err := GenerateKey(a, "k", false)
		if err != nil {
			f.Fatal(err)
		}
		data, err := key.pem()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}

	f.Fuzz(func(t *testing.T, data []byte) {
		key, err := parseKey(data, "k", "give a key")
		if err != nil {
			return
		}
		out, err := key.pem()
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseKey(out, "k", "give a key")
		if err != nil || again.Public.ID() != key.Public.ID() {
			t.Fatalf("an accepted key does not survive a round trip: %v", err)
		}
	})
}
