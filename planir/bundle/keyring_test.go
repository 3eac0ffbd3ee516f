package bundle

import (
	"bytes"
	"crypto/ed25519"
	"crypto/elliptic"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
)

// edwards is textbook arithmetic on the curve -x^2 + y^2 = 1 + d x^2 y^2 over 2^255-19, to check
// the table of small-order points by computation.
type edwards struct{ p, d *big.Int }

func newEdwards() edwards {
	p := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 255), big.NewInt(19))
	d := new(big.Int).Mul(big.NewInt(-121665), new(big.Int).ModInverse(big.NewInt(121666), p))
	return edwards{p, d.Mod(d, p)}
}

// lift returns a point with the given y, ok false when there is none.
func (e edwards) lift(y *big.Int) (x *big.Int, ok bool) {
	yy := new(big.Int).Mul(y, y)
	num := new(big.Int).Sub(yy, big.NewInt(1))
	den := new(big.Int).Add(new(big.Int).Mul(e.d, yy), big.NewInt(1))
	xx := num.Mul(num, new(big.Int).ModInverse(den.Mod(den, e.p), e.p))
	x = new(big.Int).ModSqrt(xx.Mod(xx, e.p), e.p)
	return x, x != nil
}

func (e edwards) double(x, y *big.Int) (*big.Int, *big.Int) {
	mul := func(a, b *big.Int) *big.Int { return new(big.Int).Mod(new(big.Int).Mul(a, b), e.p) }
	k := mul(e.d, mul(mul(x, x), mul(y, y)))
	inv := func(a *big.Int) *big.Int { return new(big.Int).ModInverse(new(big.Int).Mod(a, e.p), e.p) }
	one := big.NewInt(1)
	nx := mul(mul(big.NewInt(2), mul(x, y)), inv(new(big.Int).Add(one, k)))
	ny := mul(new(big.Int).Add(mul(y, y), mul(x, x)), inv(new(big.Int).Sub(one, k)))
	return nx, ny
}

// The table holds exactly the y of all points whose order divides 8, in every encoding.
func TestSmallOrderTableIsComplete(t *testing.T) {
	e := newEdwards()
	distinct := map[string]bool{}
	for _, enc := range smallOrder {
		le := enc
		slices.Reverse(le[:])
		y := new(big.Int).SetBytes(le[:])
		y.Mod(y, e.p)
		x, ok := e.lift(y)
		if !ok {
			t.Fatalf("%x is not on the curve", enc)
		}
		px, py := x, y
		for range 3 {
			px, py = e.double(px, py)
		}
		if px.Sign() != 0 || py.Cmp(big.NewInt(1)) != 0 {
			t.Errorf("%x: eight times the point is not the neutral element", enc)
		}
		for _, sx := range []*big.Int{x, new(big.Int).Mod(new(big.Int).Neg(x), e.p)} {
			distinct[sx.String()+","+y.String()] = true
		}
	}
	if len(distinct) != 8 {
		t.Errorf("%d distinct points, want 8", len(distinct))
	}
	for _, y := range []int64{0, 1} { // the encodings below 2^255 that are not canonical: y + p
		data := new(big.Int).Add(e.p, big.NewInt(y)).FillBytes(make([]byte, 32))
		slices.Reverse(data)
		if !slices.Contains(smallOrder, [32]byte(data)) {
			t.Errorf("p+%d is missing", y)
		}
	}
}

// Why such keys are refused: one signature verifies whatever it is asked about.
func TestNeutralKeyVerifiesEverything(t *testing.T) {
	key := make(ed25519.PublicKey, 32)
	key[0] = 1
	sig := make([]byte, 64) // R = neutral element, S = 0
	sig[0] = 1
	for _, m := range []string{"one", "two"} {
		if !ed25519.Verify(key, []byte(m), sig) {
			t.Fatal("the standard library refuses it by now; the check in checkPoint stays")
		}
	}
	if _, err := NewKey("neutral", key, false); err == nil {
		t.Error("accepted")
	}
	if k := (Key{DER: slices.Concat(keyA.DER[:len(keyA.DER)-32], key)}); k.verifies([]byte("one"), sig) {
		t.Error("a key made by hand verifies")
	}
}

func TestNewKeyRefusesOtherAlgorithms(t *testing.T) {
	for _, pub := range []any{nil, "key", ed25519.PublicKey(make([]byte, 31)), elliptic.P256()} {
		if _, err := NewKey("x", pub, false); diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%T: %v", pub, err)
		}
	}
}

// An accepted keyring file has one encoding.
func TestKeyringRoundTrip(t *testing.T) {
	pool := []testKey{keyA, keyB, keyC, keyDev, ecKey("x"), edKey("y", false)}
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.Permutation(pool).Draw(t, "keys")[:rapid.IntRange(1, len(pool)).Draw(t, "n")]
		keyring := ring(int64(rapid.IntRange(1, len(keys)).Draw(t, "threshold")), keys...)
		keyring.Generation = rapid.Int64Range(1, maxCounter).Draw(t, "generation")
		data := must(keyring.Encode())
		again, err := ParseTrust(data, "")
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(must(again.Encode()), data) || len(again.Keys) != len(keys) {
			t.Fatal("another keyring")
		}
		for i, key := range again.Keys {
			if key.Dev != keyring.Keys[i].Dev || key.Name != keyring.Keys[i].Name ||
				key.Algorithm != keyring.Keys[i].Algorithm {
				t.Fatalf("key %d: %+v", i, key)
			}
		}
	})
}

func TestEncodeRefusesWhatParseTrustWould(t *testing.T) {
	for name, keyring := range map[string]*Keyring{
		"one key twice": {Generation: 1, Threshold: 2, Keys: []Key{keyA.Key, keyA.Key}},
		"no key":        {Generation: 1, Threshold: 1},
		"threshold":     {Generation: 1, Threshold: 2, Keys: []Key{keyA.Key}},
		"zero key":      {Generation: 1, Threshold: 1, Keys: []Key{{}}},
		"quoted name":   {Generation: 1, Threshold: 1, Keys: []Key{{Name: `"`, Algorithm: Ed25519, DER: keyA.DER}}},
	} {
		if _, err := keyring.Encode(); StepOf(err) != stepKeyring {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestKeyringNamesAWrongID(t *testing.T) {
	data := strings.Replace(string(must(ring(1, keyA).Encode())), keyA.ID(), keyC.ID(), 1)
	if _, err := ParseTrust([]byte(data), "x"); err == nil || !strings.Contains(err.Error(), "listed as") {
		t.Errorf("got %v", err)
	}
}

func TestLoadTrust(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "release.pub")
	if err := os.WriteFile(path, keyA.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	keyring, err := LoadTrust(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(keyring.Keys) != 1 || keyring.Keys[0].Name != "release" || keyring.Keys[0].ID() != keyA.ID() ||
		keyring.Threshold != 1 || keyring.Generation != 1 || keyring.Keys[0].Dev {
		t.Errorf("got %+v", keyring)
	}
	if _, err := LoadTrust(filepath.Join(dir, "none")); StepOf(err) != stepKeyring ||
		diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("missing: %v", err)
	}
	if err := os.WriteFile(path, make([]byte, maxKeyringFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadTrust(path); StepOf(err) != stepKeyring || len(diag.HintsOf(err)) == 0 ||
		!strings.Contains(err.Error(), "65536") {
		t.Errorf("huge: %v", err)
	}
	if _, err := LoadTrust(dir); StepOf(err) != stepKeyring {
		t.Errorf("directory: %v", err)
	}
}

// Every bit of a .pub and of a keyring: refused, or another key than the one meant.
func TestKeyringMutations(t *testing.T) {
	for _, data := range [][]byte{keyA.PEM(), keyB.PEM(), must(ring(1, keyA, keyB).Encode())} {
		for i := range data {
			for bit := range 8 {
				m := bytes.Clone(data)
				m[i] ^= 1 << bit
				keyring, err := ParseTrust(m, "a")
				if err != nil {
					continue
				}
				if again, err := keyring.Encode(); len(keyring.Keys) > 1 && (err != nil || !bytes.Equal(again, m)) {
					t.Fatalf("byte %d bit %d: accepted in a second form", i, bit)
				}
				if len(keyring.Keys) == 1 && (keyring.Keys[0].ID() == keyA.ID() || keyring.Keys[0].ID() == keyB.ID()) {
					t.Fatalf("byte %d bit %d: still the same key", i, bit)
				}
			}
		}
	}
}

func TestVersions(t *testing.T) {
	for s, want := range map[string]bool{"1": true, "1.2.3": true, "0.0": true, "10.20.30.40.50.60.70.80": true,
		"": false, "1.": false, ".1": false, "01": false, "1.02": false, "1.x": false, "v1": false,
		"1.2.3.4.5.6.7.8.9": false, "12345678901": false, "1 ": false, "-1": false} {
		if isVersion(s) != want {
			t.Errorf("isVersion(%q) is %v", s, !want)
		}
	}
	for _, test := range []struct {
		have, want string
		less, ok   bool
	}{
		{"1.2", "1.2", false, true}, {"1.2.0", "1.2", false, true}, {"1.2", "1.2.0", false, true},
		{"1.2", "1.2.1", true, true},
		{"1.10", "1.9", false, true}, {"1.9", "1.10", true, true}, {"2", "1.99", false, true},
		{"1.22.0-dev+x", "1.22", false, true},
		{"3.0 pocl 5.0", "3.1", true, true}, {"", "1", true, false}, {"unknown", "1", true, false},
		{"v2", "1", true, false},
	} {
		if less, ok := versionLess(test.have, test.want); ok != test.ok || ok && less != test.less {
			t.Errorf("versionLess(%q, %q) = %v, %v", test.have, test.want, less, ok)
		}
	}
}
