package bundle

import (
	"encoding/base64"
	"fmt"
	"strconv"
)

// envelope is a DSSE envelope (Dead Simple Signing Envelope) as it stands in the file. DSSE signs the payload's bytes
// together with their type, so nothing has to be parsed, let alone canonicalised, before a signature is checked.
type envelope struct {
	payload    string // base64
	kind       string // DSSE's payloadType
	signatures []signature
}

// signature is one signature of the envelope, by a key that a keyring may have.
type signature struct {
	keyID Digest // which trusted key to try; proves nothing itself
	sig   string // base64
}

// walk describes the envelope as canonical JSON.
func (e *envelope) walk(c *codec) {
	c.object(func() {
		c.member("payload")
		c.str(&e.payload, maxEnvelopeBytes)
		c.member("payloadType")
		c.str(&e.kind, maxName)
		c.member("signatures")
		list(c, &e.signatures, maxSignatures, func(s *signature) {
			c.object(func() {
				c.member("keyid")
				c.digest(&s.keyID)
				c.member("sig")
				c.str(&s.sig, base64.StdEncoding.EncodedLen(maxSigBytes))
			})
		})
	})
}

// decodeEnvelope reads the one canonical form of a DSSE envelope.
func decodeEnvelope(data []byte) (*envelope, error) {
	e := new(envelope)
	if err := decode(data, e.walk); err != nil {
		return nil, err
	}
	return e, ascending("signatures", e.signatures, func(s signature) string { return s.keyID.String() })
}

// openEnvelope applies the steps envelope, type and encoding.
func openEnvelope(data []byte) (env *envelope, payload []byte, err error) {
	if env, err = decodeEnvelope(data); err != nil {
		return nil, nil, refuse(stepEnvelope, "envelope: %w", err)
	}
	payload, err = env.open()
	return env, payload, err
}

// open applies the steps type and encoding.
func (e *envelope) open() (payload []byte, err error) {
	if e.kind != payloadType {
		return nil, refuse(stepType, "payload type %q, want %q", e.kind, payloadType)
	}
	payload, err = base64.StdEncoding.Strict().DecodeString(e.payload)
	if err != nil {
		return nil, refuse(stepEncoding, "payload: %w", err)
	}
	for _, signature := range e.signatures {
		if _, err := base64.StdEncoding.Strict().DecodeString(signature.sig); err != nil {
			return nil, refuse(stepEncoding, "signature by %q: %w", signature.keyID, err)
		}
	}
	return payload, nil
}

// pae is DSSE's pre-authentication encoding: what is really signed.
func pae(kind string, payload []byte) []byte {
	out := make([]byte, 0, len(payload)+len(kind)+64)
	out = append(out, "DSSEv1 "...)
	out = strconv.AppendInt(out, int64(len(kind)), 10)
	out = append(append(append(out, ' '), kind...), ' ')
	out = strconv.AppendInt(out, int64(len(payload)), 10)
	return append(append(out, ' '), payload...)
}

// verify applies the step signature and returns the IDs of the trusted keys that signed. Signatures by unknown keys
// are skipped. A wrong signature by a trusted key refuses the bundle even if enough others are right.
func (e *envelope) verify(trust *Keyring, allowDev bool, payload []byte) ([]string, error) {
	// Every signature by a trusted key must be right, and enough of them must count.
	message := pae(payloadType, payload)
	var good []string
	dev := 0
	for _, signature := range e.signatures {
		key := trust.key(signature.keyID.String())
		if key == nil {
			continue // a signature by another key does not count
		}
		raw, err := base64.StdEncoding.Strict().DecodeString(signature.sig)
		if err != nil || !key.verifies(message, raw) {
			return nil, refuse(StepSignature, "the signature by trusted key %s is wrong", describe(key)).
				hint("the bundle was changed after signing; fetch it again")
		}
		if key.Dev && !allowDev {
			dev++
			continue
		}
		good = append(good, key.ID())
	}
	if int64(len(good)) >= trust.Threshold {
		return good, nil
	}
	err := refuse(StepSignature, "%d valid signatures by trusted keys, want %d", len(good), trust.Threshold)
	switch {
	case dev > 0:
		err.hint("%d of its signatures are by development keys, which count only where they are allowed explicitly",
			dev)
	case len(e.signatures) == 0:
		err.hint("the bundle is not signed")
	default:
		err.hint("it is signed by %s; trust that key only if it is the one you expect", signers(e))
	}
	return nil, err
}

// describe names a key in messages: its name, and enough of its ID to tell it from others.
func describe(key *Key) string {
	if key.Name == "" {
		return key.ID()[:16]
	}
	return fmt.Sprintf("%q (%s)", key.Name, key.ID()[:16])
}

// signers lists the claimed signers for the hint of a refusal.
func signers(e *envelope) string {
	list := ""
	for i, signature := range e.signatures {
		if i > 0 {
			list += ", "
		}
		list += signature.keyID.String()[:16]
	}
	return list
}
