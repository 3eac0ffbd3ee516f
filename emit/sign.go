package emit

import (
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"

	"github.com/hetc/hetc/planir/bundle"
)

// Signer returns the key in the form bundle.Write wants. Its signatures are deterministic:
// Ed25519 is by nature, ECDSA by RFC 6979, so the same inputs give the same bundle.
func (k *PrivateKey) Signer() bundle.Signer {
	return bundle.Signer{Key: k.Public, Sign: func(pae []byte) ([]byte, error) {
		if key, ok := k.key.(ed25519.PrivateKey); ok {
			return key.Sign(nil, pae, crypto.Hash(0))
		}
		sum := sha256.Sum256(pae)
		return k.key.Sign(nil, sum[:], crypto.SHA256) // no randomness: RFC 6979
	}}
}
