package bundle

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
)

// MaxRatchetsBytes is the most that a file of ratchets may hold.
const MaxRatchetsBytes = 1 << 20

const (
	ratchetSchema = "hetc.ratchet/1"
	maxRatchets   = 1024
)

// Ratchet is what a host stores after the first successful run of a bundle, one per product. It only rises, so that a
// bundle with a known hole cannot be put back in place of its successor (rollback).
type Ratchet struct {
	Product         string
	Generation      int64 // of the keyring that the bundle was signed for
	SecurityVersion int64
}

// Ratchets are all that a host has stored, ascending by product.
type Ratchets []Ratchet

// Of returns what was stored for a product, nil for nothing.
func (r Ratchets) Of(product string) *Ratchet {
	if i, found := r.find(product); found {
		return &r[i]
	}
	return nil
}

// find returns the place of a product among the sorted ratchets, or where it would be inserted.
func (r Ratchets) find(product string) (int, bool) {
	return slices.BinarySearchFunc(r, product, func(have Ratchet, want string) int {
		return strings.Compare(have.Product, want)
	})
}

// Raised returns r with what a bundle that ran asks to be stored, and whether that is more than before: a larger
// security version of the same generation, or a newer generation, which starts a new count. Nothing is ever lowered.
func (r Ratchets) Raised(ran Ratchet) (Ratchets, bool) {
	i, found := r.find(ran.Product)
	if !found {
		return slices.Insert(slices.Clone(r), i, ran), true
	}
	was := r[i]
	newer := ran.Generation > was.Generation ||
		ran.Generation == was.Generation && ran.SecurityVersion > was.SecurityVersion
	if !newer {
		return r, false
	}
	out := slices.Clone(r)
	out[i] = ran
	return out, true
}

// ParseRatchets reads a file of ratchets (SPEC.md section 6). Errors are of class ClassInput.
func ParseRatchets(data []byte) (Ratchets, error) {
	var ratchets Ratchets
	err := fmt.Errorf("more than %d bytes", MaxRatchetsBytes)
	if len(data) <= MaxRatchetsBytes {
		err = decode(bytes.TrimSuffix(data, []byte("\n")), ratchets.walk)
	}
	if err == nil {
		err = ratchets.check()
	}
	if err != nil {
		return nil, diag.New(diag.ClassInput, "stored security versions: %w", err).WithCode("bundle.state").
			WithHint("put back a copy of the file; without it older bundles are accepted again: remove it only if " +
				"you know that the one you run now is not an old one")
	}
	return ratchets, nil
}

// Encode returns the contents of a file of ratchets.
func (r Ratchets) Encode() ([]byte, error) {
	data, err := encode(r.walk)
	if err == nil {
		err = r.check()
	}
	if err != nil {
		return nil, diag.New(diag.ClassInput, "stored security versions: %w", err).WithCode("bundle.state")
	}
	return append(data, '\n'), nil
}

// walk describes the file of ratchets.
func (r *Ratchets) walk(c *codec) {
	c.object(func() {
		c.member("schema")
		c.constant(ratchetSchema)
		c.member("accepted")
		list(c, (*[]Ratchet)(r), maxRatchets, func(one *Ratchet) {
			c.object(func() {
				c.member("product")
				c.str(&one.Product, maxName)
				c.member("generation")
				c.integer(&one.Generation, 1, maxCounter)
				c.member("security_version")
				c.integer(&one.SecurityVersion, 0, maxCounter)
			})
		})
	})
}

// check demands legal product names, each once.
func (r Ratchets) check() error {
	for i := range r {
		if err := checkLabel("product", r[i].Product); err != nil {
			return err
		}
	}
	return ascending("accepted", r, func(ratchet Ratchet) string { return ratchet.Product })
}
