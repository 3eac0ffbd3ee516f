package emit

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/hetc/hetc/internal/child"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/planir/bundle"
)

// The environment variables a signing key may come from, for CI systems. Setting both is an
// error.
const (
	EnvSigningKey     = child.EnvSigningKey     // the PEM text itself
	EnvSigningKeyFile = "HETC_SIGNING_KEY_FILE" // a file that holds it
)

// Types of PEM blocks. Development keys have one of their own, so that no other tool takes them for keys.
const (
	pemPrivate    = "PRIVATE KEY" // PKCS#8, as openssl writes it
	pemDevPrivate = "HETC DEV PRIVATE KEY"
	maxKeyFile    = 64 << 10
)

// PrivateKey signs bundles.
type PrivateKey struct {
	Public bundle.Key
	key    crypto.Signer // ed25519.PrivateKey or *ecdsa.PrivateKey on P-256
}

// GenerateKey makes a key. Bundles signed by a development key (dev) are refused unless the
// host allows such keys.
func GenerateKey(algorithm bundle.Algorithm, name string, dev bool) (*PrivateKey, error) {
	switch algorithm {
	case bundle.Ed25519:
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("generate key: %w", err)
		}
		return newPrivateKey(key, name, dev)
	case bundle.P256:
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("generate key: %w", err)
		}
		return newPrivateKey(key, name, dev)
	}
	return nil, diag.New(diag.ClassUsage, "generate key: unknown algorithm %q", algorithm).
		WithHint("choose %q or %q", bundle.Ed25519, bundle.P256)
}

// newPrivateKey pairs a key with its public half under a name.
func newPrivateKey(key crypto.Signer, name string, dev bool) (*PrivateKey, error) {
	public, err := bundle.NewKey(name, key.Public(), dev)
	if err != nil {
		return nil, err
	}
	return &PrivateKey{Public: public, key: key}, nil
}

// pem returns the contents of a `.key` file: PKCS#8, not encrypted.
func (k *PrivateKey) pem() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k.key)
	if err != nil {
		return nil, fmt.Errorf("encode private key: %w", err)
	}
	kind := pemPrivate
	if k.Public.Dev {
		kind = pemDevPrivate
	}
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), nil
}

// Save writes base.key, which only its owner may read, and base.pub. Existing files are never
// overwritten; on failure neither is left.
func (k *PrivateKey) Save(base string) (err error) {
	secret, err := k.pem()
	if err != nil {
		return err
	}
	if err := createFile(base+".key", secret, 0o600); err != nil {
		return err
	}
	if err := createFile(base+".pub", k.Public.PEM(), 0o644); err != nil {
		return errors.Join(err, os.Remove(base+".key"))
	}
	return nil
}

// createFile writes a file that must not exist, and removes it again where that fails.
func createFile(path string, data []byte, mode os.FileMode) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, os.ErrExist) {
		return diag.New(diag.ClassInput, "write key %q: it exists", path).
			WithHint("keys are never overwritten; choose another name")
	}
	if errors.Is(err, os.ErrNotExist) {
		return diag.New(diag.ClassIO, "write key %q: directory %q does not exist", path, filepath.Dir(path)).
			WithHint("make it: mkdir -p %q", filepath.Dir(path))
	}
	if errors.Is(err, syscall.ENOTDIR) {
		return diag.New(diag.ClassIO, "write key %q: %q is a file, want a directory", path, filepath.Dir(path)).
			WithHint("name another path")
	}
	if err != nil {
		return diag.New(diag.ClassIO, "write key %q: %w", path, err)
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return errors.Join(diag.New(diag.ClassIO, "write key %q: %w", path, err), os.Remove(path))
	}
	return nil
}

// LoadSigningKey reads the key at path, or, when path is empty, from the environment
// (EnvSigningKey, EnvSigningKeyFile). Either way EnvSigningKey leaves the environment, see
// child.TakeSigningKey. No key anywhere is an error: there is no unsigned bundle.
func LoadSigningKey(path string) (*PrivateKey, error) {
	text, hasText := child.SigningKey()
	if path != "" {
		return loadKey(path)
	}
	file, hasFile := os.LookupEnv(EnvSigningKeyFile)
	switch {
	case hasText && hasFile:
		return nil, diag.New(diag.ClassUsage, "both %s and %s are set", EnvSigningKey, EnvSigningKeyFile).
			WithHint("unset one of them")
	case hasText:
		return parseKey([]byte(text), EnvSigningKey,
			"it has the text of a key; "+EnvSigningKeyFile+" has the name of a file")
	case hasFile:
		return loadKey(file)
	}
	return nil, diag.New(diag.ClassUsage, "no signing key").
		WithHint("pass --key NAME.key (made by `hetc keygen --out NAME`), or set %s or %s",
			EnvSigningKeyFile, EnvSigningKey)
}

// errPublicKey refuses the wrong half of a key.
func errPublicKey(name string) error {
	return diag.New(diag.ClassInput, "signing key %q is a public key, which verifies and cannot sign", name).
		WithHint("give the .key file that was made with it")
}

// loadKey reads a key file that only its owner may read; Windows has other permissions, which are not
// looked at.
func loadKey(path string) (*PrivateKey, error) {
	file, err := wholefile.Open(path)
	if err != nil {
		problem := diag.New(diag.ClassOf(err), "signing key: %w", err)
		if errors.Is(err, os.ErrNotExist) && len(diag.HintsOf(err)) == 0 {
			problem.Hint = "make one with `hetc keygen --out NAME`"
		}
		return nil, problem
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return nil, diag.New(diag.ClassIO, "read signing key: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxKeyFile+1))
	if err != nil {
		return nil, diag.New(diag.ClassIO, "read signing key: %w", err)
	}
	// A file that is no key may be open to all.
	key, err := parseKey(data, strings.TrimSuffix(filepath.Base(path), ".key"),
		"give the NAME.key that `hetc keygen --out NAME` has written")
	if err != nil {
		return nil, err
	}
	if mode := st.Mode().Perm(); runtime.GOOS != "windows" && mode&0o077 != 0 {
		return nil, diag.New(diag.ClassInput, "signing key %q has permissions %#o: others may read it", path, mode).
			WithHint("chmod 600 %s, and make a new key if others may have read this one", path)
	}
	return key, nil
}

// parseKey reads one PEM block with a PKCS#8 private key, Ed25519 or P-256. Errors never show
// what they were given; hint says where a key comes from.
func parseKey(data []byte, name, hint string) (*PrivateKey, error) {
	bad := func(format string, args ...any) error {
		return diag.New(diag.ClassInput, "signing key %q: %w", name, fmt.Errorf(format, args...)).WithHint("%s", hint)
	}
	if len(data) > maxKeyFile {
		return nil, bad("more than %d bytes", maxKeyFile)
	}
	block, rest := pem.Decode(data)
	if block == nil {
		return nil, bad("not a private key in PEM")
	}
	if len(bytes.TrimSpace(rest)) != 0 {
		return nil, bad("text after the PEM block")
	}
	switch block.Type {
	case pemPrivate, pemDevPrivate:
	case "PUBLIC KEY", "HETC DEV PUBLIC KEY":
		return nil, errPublicKey(name)
	case "ENCRYPTED PRIVATE KEY":
		return nil, diag.New(diag.ClassUnavailable, "signing key %q is encrypted, which hetc cannot read", name).
			WithHint("decrypt it for this run: openssl pkcs8 -in %s.key", name)
	default:
		return nil, bad("PEM block %q, want %q (PKCS#8)", block.Type, pemPrivate)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, bad("not PKCS#8")
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, bad("a %T cannot sign", key)
	}
	return newPrivateKey(signer, name, block.Type == pemDevPrivate)
}
