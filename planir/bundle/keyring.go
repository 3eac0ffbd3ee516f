package bundle

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
)

// Algorithm is a property of a trusted key, never of what it signed.
type Algorithm string

const (
	Ed25519 Algorithm = "ed25519"
	P256    Algorithm = "p256" // ECDSA on P-256 with SHA-256, ASN.1 signatures
)

// Key is a public key. The zero Key verifies nothing; NewKey and ParseTrust make valid ones.
type Key struct {
	Name      string
	Algorithm Algorithm
	Dev       bool   // made for development: refused unless Policy.AllowDev
	DER       []byte // SubjectPublicKeyInfo, in its one canonical form
}

// Keyring is whom a device trusts: bundles need valid signatures by Threshold distinct keys.
type Keyring struct {
	Generation int64 // counts key rotations from 1; a bundle states the one it was signed for
	Threshold  int64
	Keys       []Key // ascending by ID
}

const (
	pemPublic    = "PUBLIC KEY"
	pemDevPublic = "HETC DEV PUBLIC KEY" // no other tool takes it for a key
)

// NewKey returns pub, an ed25519.PublicKey or a *ecdsa.PublicKey on P-256, as a Key. A point
// of small order is refused, because one fixed signature by it verifies every message.
func NewKey(name string, pub crypto.PublicKey, dev bool) (Key, error) {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return Key{}, diag.New(diag.ClassInput, "public key %q: %w", name, err)
	}
	return parseKey(name, der, dev)
}

// parseKey returns the one way to a Key: the algorithm comes from the DER, never from what is written beside it.
func parseKey(name string, der []byte, dev bool) (Key, error) {
	key := Key{Name: name, Dev: dev, DER: der}
	pub, err := key.public()
	if err != nil {
		return Key{}, diag.New(diag.ClassInput, "public key %q: %w", name, err)
	}
	key.Algorithm = Ed25519
	if _, ec := pub.(*ecdsa.PublicKey); ec {
		key.Algorithm = P256
	}
	return key, nil
}

// public returns the key for verification, after every check a trusted key must pass.
func (k *Key) public() (crypto.PublicKey, error) {
	pub, err := x509.ParsePKIXPublicKey(k.DER)
	if err != nil {
		return nil, err
	}
	switch p := pub.(type) {
	case ed25519.PublicKey:
		if err := checkPoint(p); err != nil {
			return nil, err
		}
	case *ecdsa.PublicKey:
		if p.Curve != elliptic.P256() {
			return nil, fmt.Errorf("curve %s, want P-256", p.Params().Name)
		}
	default:
		return nil, fmt.Errorf("algorithm of %T, want Ed25519 or ECDSA on P-256", pub)
	}
	if again, err := x509.MarshalPKIXPublicKey(pub); err != nil || !bytes.Equal(again, k.DER) {
		return nil, errors.New("not in canonical DER form")
	}
	return pub, nil
}

// smallOrder lists the y coordinates (sign bit cleared, little-endian) of the eight points of
// order 1, 2, 4 and 8 and of their non-canonical encodings below 2^255.
var smallOrder = [][32]byte{
	{},
	{0: 1},
	unhex32("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
	unhex32("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"),
	unhex32("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"), // p-1
	unhex32("edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"), // p
	unhex32("eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"), // p+1
}

// unhex32 returns a digest that is written in the program.
func unhex32(text string) (out [32]byte) {
	if n, err := hex.Decode(out[:], []byte(text)); err != nil || n != 32 {
		panic("BUG: bad constant " + text)
	}
	return out
}

// checkPoint refuses Ed25519 points with which signatures prove nothing. The conversion cannot fail: x509 has checked
// that there are 32 bytes.
func checkPoint(public ed25519.PublicKey) error {
	point := [32]byte(public)
	point[31] &= 0x7f
	if slices.Contains(smallOrder, point) {
		return errors.New("point of small order: anyone could sign for it")
	}
	// Coordinates from p = 2^255-19 on are second names of small ones.
	if point[31] == 0x7f && point[0] >= 0xed && bytes.Count(point[1:31], []byte{0xff}) == 30 {
		return errors.New("point in non-canonical form")
	}
	return nil
}

// ID returns the hex SHA-256 of the key's DER: a name to look it up by, nothing else.
func (k *Key) ID() string {
	sum := sha256.Sum256(k.DER)
	return hex.EncodeToString(sum[:])
}

// verifies reports whether sig is k's signature of message.
func (k *Key) verifies(message, sig []byte) bool {
	pub, err := k.public()
	if err != nil {
		return false
	}
	switch p := pub.(type) {
	case ed25519.PublicKey:
		return len(sig) == ed25519.SignatureSize && ed25519.Verify(p, message, sig)
	case *ecdsa.PublicKey:
		sum := sha256.Sum256(message)
		return ecdsa.VerifyASN1(p, sum[:], sig)
	}
	return false
}

// PEM returns the contents of a `.pub` file.
func (k *Key) PEM() []byte {
	kind := pemPublic
	if k.Dev {
		kind = pemDevPublic
	}
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: k.DER})
}

// LoadTrust reads a keyring file or a `.pub`, which is a keyring of one key with threshold 1
// and generation 1.
func LoadTrust(path string) (*Keyring, error) {
	data, err := wholefile.Read(path, maxKeyringFile)
	if err != nil {
		return nil, &Error{stepKeyring, diag.New(diag.ClassOf(err), "trusted keys: %w", err).WithCode("bundle.keyring")}
	}
	ring, err := ParseTrust(data, strings.TrimSuffix(filepath.Base(path), ".pub"))
	return ring, at(path, err)
}

// ParseTrust parses the contents of a keyring file, or of a `.pub` whose key gets the name
// given. A keyring is canonical JSON, with or without a line feed at its end.
func ParseTrust(data []byte, name string) (*Keyring, error) {
	ring, err := parseTrust(data, name)
	if err != nil {
		return nil, refuseAs(diag.ClassInput, stepKeyring, "trusted keys %q: %w", name, err).
			hint("`hetc keygen --out NAME` writes NAME.pub, which is trusted, beside NAME.key, which signs; " +
				"docs/commands.md has the form of a keyring")
	}
	return ring, nil
}

// parseTrust tells a PEM block from a keyring by its first bytes, and accepts each in one form only: text around a
// key would be shown to people and never checked.
func parseTrust(data []byte, name string) (*Keyring, error) {
	if len(data) > maxKeyringFile {
		return nil, fmt.Errorf("more than %d bytes", maxKeyringFile)
	}
	if bytes.HasPrefix(data, []byte("-----BEGIN ")) {
		block, _ := pem.Decode(data)
		switch {
		case block == nil:
			return nil, fmt.Errorf("want one PEM block %q", pemPublic)
		case strings.HasSuffix(block.Type, "PRIVATE KEY"):
			return nil, fmt.Errorf(
				"it is a private key, which only signs: want the PEM block %q that was made with it (NAME.pub)",
				pemPublic)
		case block.Type != pemPublic && block.Type != pemDevPublic:
			return nil, fmt.Errorf("got a PEM block %q, want one %q", block.Type, pemPublic)
		}
		key, err := parseKey(name, block.Bytes, block.Type == pemDevPublic)
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(key.PEM(), data) {
			return nil, errors.New("text beside the PEM block, or an unusual form of it")
		}
		return &Keyring{Generation: 1, Threshold: 1, Keys: []Key{key}}, nil
	}
	ring := new(Keyring)
	if err := decode(bytes.TrimSuffix(data, []byte("\n")), ring.walk); err != nil {
		return nil, err
	}
	return ring, ring.check()
}

// Encode returns the contents of a keyring file. It sorts Keys.
func (k *Keyring) Encode() ([]byte, error) {
	slices.SortFunc(k.Keys, func(a, b Key) int { return strings.Compare(a.ID(), b.ID()) })
	if err := k.check(); err != nil {
		return nil, refuseAs(diag.ClassInput, stepKeyring, "trusted keys: %w", err)
	}
	data, err := encode(k.walk)
	if err != nil {
		return nil, refuseAs(diag.ClassInput, stepKeyring, "trusted keys: %w", err)
	}
	return append(data, '\n'), nil
}

// walk describes the keyring. Reading a key recomputes its ID, so that a listed ID cannot name another key.
func (k *Keyring) walk(c *codec) {
	c.object(func() {
		c.member("schema")
		c.constant(keyringSchema)
		c.member("generation")
		c.integer(&k.Generation, 1, maxCounter)
		c.member("threshold")
		c.integer(&k.Threshold, 1, maxKeys)
		c.member("keys")
		list(c, &k.Keys, maxKeys, func(key *Key) {
			c.object(func() {
				// A written key names itself by its own digest; of a read one the name is compared, so that no
				// keyring can list a key under another's name.
				id := key.ID()
				c.member("keyid")
				c.str(&id, 64)
				c.member("algorithm")
				c.str((*string)(&key.Algorithm), maxName)
				c.optionalStr("name", &key.Name, maxName)
				c.flag("dev", &key.Dev)
				der := base64.StdEncoding.EncodeToString(key.DER)
				c.member("public")
				c.str(&der, maxString)
				if c.err != nil || c.encoding {
					return
				}
				raw, err := base64.StdEncoding.Strict().DecodeString(der)
				if err != nil {
					c.fail("public key of %q: %w", id, err)
					return
				}
				key.DER = raw
				if key.ID() != id {
					c.fail("public key %q listed as %q", key.ID(), id)
				}
			})
		})
	})
}

// check demands a threshold that can be reached, distinct keys, and every check of a trusted key.
func (k *Keyring) check() error {
	if k.Generation < 1 || k.Generation > maxCounter {
		return fmt.Errorf("generation %d, want 1 to %d", k.Generation, maxCounter)
	}
	if k.Threshold < 1 || k.Threshold > int64(len(k.Keys)) {
		return fmt.Errorf("threshold %d, want 1 to %d, the number of keys", k.Threshold, len(k.Keys))
	}
	// The ID is a digest of the key in canonical form, so ascending IDs mean distinct keys.
	if err := ascending("keys", k.Keys, func(key Key) string { return key.ID() }); err != nil {
		return err
	}
	for i := range k.Keys {
		parsed, err := parseKey(k.Keys[i].Name, k.Keys[i].DER, k.Keys[i].Dev)
		if err != nil {
			return err
		}
		if parsed.Algorithm != k.Keys[i].Algorithm {
			return fmt.Errorf("key %q is %q, listed as %q", parsed.ID(), parsed.Algorithm, k.Keys[i].Algorithm)
		}
	}
	return nil
}

// key returns the trusted key with the given ID, nil when there is none.
func (k *Keyring) key(id string) *Key {
	for i := range k.Keys {
		if k.Keys[i].ID() == id {
			return &k.Keys[i]
		}
	}
	return nil
}
