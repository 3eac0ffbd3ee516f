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

func writeBundle(t *testing.T, path string, keys ...*PrivateKey) bundle.Digest {
	t.Helper()
	var signers []bundle.Signer
	for _, k := range keys {
		signers = append(signers, k.Signer())
	}
	id, err := bundle.Write(context.Background(), path, bundle.Manifest{Product: "test", Entrypoint: "plan"},
		[]bundle.Source{{Name: "plan", Role: bundle.RolePlan, Bytes: 5, Content: strings.NewReader("hello")}}, signers...)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// A saved and reloaded key signs the same bytes as the original, twice, and the `.pub` verifies them.
func TestSignIsDeterministicAndVerifies(t *testing.T) {
	for _, algorithm := range algorithms {
		dir := t.TempDir()
		key, err := GenerateKey(algorithm, "release", false)
		if err != nil {
			t.Fatal(err)
		}
		base := filepath.Join(dir, "release")
		if err := key.Save(base); err != nil {
			t.Fatal(err)
		}
		again, err := LoadSigningKey(base + ".key")
		if err != nil {
			t.Fatal(err)
		}
		one, two := filepath.Join(dir, "1.hetb"), filepath.Join(dir, "2.hetb")
		writeBundle(t, one, key)
		writeBundle(t, two, again)
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
		if got := open.Signers(); len(got) != 1 || got[0] != key.Public.ID() {
			t.Errorf("%s: signers %q", algorithm, got)
		}
		open.Close()
		other, _ := GenerateKey(algorithm, "other", false)
		stranger := &bundle.Keyring{Generation: 1, Threshold: 1, Keys: []bundle.Key{other.Public}}
		if _, err := bundle.Open(one, bundle.Options{Trust: stranger}); bundle.StepOf(err) != bundle.StepSignature {
			t.Errorf("%s: another key accepted: %v", algorithm, err)
		}
	}
}

func TestTwoSignaturesTwoAlgorithms(t *testing.T) {
	a, _ := GenerateKey(bundle.Ed25519, "a", false)
	b, _ := GenerateKey(bundle.P256, "b", false)
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
	open, err := bundle.Open(path, bundle.Options{Trust: trust, Policy: bundle.Policy{AllowDev: true}})
	if err != nil {
		t.Fatal(err)
	}
	open.Close()
}

func TestSaveProtectsTheSecret(t *testing.T) {
	key, _ := GenerateKey(bundle.Ed25519, "k", false)
	dir := t.TempDir()
	base := filepath.Join(dir, "k")
	if err := key.Save(base); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(base + ".key")
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm() != 0o600 {
		t.Errorf("permissions %#o", st.Mode().Perm())
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
	for _, mode := range []os.FileMode{0o640, 0o604, 0o666} {
		path := filepath.Join(dir, "open.key")
		secret, _ := key.pem()
		if err := os.WriteFile(path, secret, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadSigningKey(path); diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "permissions") {
			t.Errorf("mode %#o: %v", mode, err)
		}
	}
}

// A key that is there and cannot be read is no reason to make another one.
func TestKeyThatCannotBeRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{filepath.Join(file, "x.key"): false, file + ".key": true} {
		_, err := LoadSigningKey(path)
		if got := strings.Contains(strings.Join(diag.HintsOf(err), " "), "hetc keygen"); err == nil || got != want {
			t.Errorf("%s: %v, hints %q, want keygen among them: %v", path, err, diag.HintsOf(err), want)
		}
	}
}

// What is no key may be open to all: the message is not about its permissions.
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

func TestSigningKeyFromEnvironment(t *testing.T) {
	key, _ := GenerateKey(bundle.P256, "env", false)
	secret, _ := key.pem()
	dir := t.TempDir()
	if err := key.Save(filepath.Join(dir, "env")); err != nil {
		t.Fatal(err)
	}
	clear := func() {
		t.Setenv(EnvSigningKey, "") // registers the restore
		t.Setenv(EnvSigningKeyFile, "")
		os.Unsetenv(EnvSigningKey)
		os.Unsetenv(EnvSigningKeyFile)
	}
	clear()
	if _, err := LoadSigningKey(""); diag.ClassOf(err) != diag.ClassUsage {
		t.Errorf("no key: %v", err)
	}
	os.Setenv(EnvSigningKey, string(secret))
	got, err := LoadSigningKey("")
	if err != nil || got.Public.ID() != key.Public.ID() {
		t.Errorf("text: %v", err)
	}
	if _, left := os.LookupEnv(EnvSigningKey); left {
		t.Error("the secret is still in the environment")
	}
	os.Setenv(EnvSigningKeyFile, filepath.Join(dir, "env.key"))
	if got, err := LoadSigningKey(""); err != nil || got.Public.ID() != key.Public.ID() {
		t.Errorf("file: %v", err)
	}
	os.Setenv(EnvSigningKey, string(secret))
	if _, err := LoadSigningKey(""); diag.ClassOf(err) != diag.ClassUsage {
		t.Errorf("both: %v", err)
	}
}

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
	cases := map[string][]byte{
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
	}
	for name, data := range cases {
		_, err := parseKey(data, "k", "give a key")
		if c := diag.ClassOf(err); c != diag.ClassInput && c != diag.ClassUnavailable {
			t.Errorf("%s: got %v", name, err)
		} else if strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: the error shows the key: %v", name, err)
		}
	}
	if _, err := LoadSigningKey(filepath.Join(t.TempDir(), "none.key")); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("missing file: %v", err)
	}
	if _, err := LoadSigningKey(t.TempDir()); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("directory: %v", err)
	}
	if _, err := GenerateKey("rsa", "k", false); diag.ClassOf(err) != diag.ClassUsage {
		t.Errorf("unknown algorithm: %v", err)
	}
}

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
