package planir

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"

	"github.com/hetc/hetc/internal/canon"
	"github.com/hetc/hetc/internal/diag"
)

// maxJSON bounds a canonical plan; a 100-layer model with 30 buckets stays below 4 MiB.
const maxJSON = 64 << 20

// Encode returns the canonical JSON of the plan: fixed key order, no white space, no optional
// empty field. Plans with equal content have equal bytes.
func Encode(p *Plan) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(p); err != nil {
		return nil, fmt.Errorf("encode plan: %w", err)
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// Decode accepts canonical JSON only: unknown keys, duplicates, other white space or key order,
// and anything after the document are refused. It does not check the rules (see Check).
func Decode(b []byte) (*Plan, error) {
	if len(b) > maxJSON {
		return nil, diag.New(diag.ClassInput, "decode plan: %d bytes, want at most %d", len(b), maxJSON)
	}
	var quick Plan
	if canon.Read(b, &quick) && quick.Schema == Schema {
		return &quick, nil
	}
	dec := json.NewDecoder(bytes.NewReader(b)) // for what is wrong, or written with escapes
	dec.DisallowUnknownFields()
	var p Plan
	if err := dec.Decode(&p); err != nil {
		return nil, diag.New(diag.ClassInput, "decode plan: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, diag.New(diag.ClassInput, "decode plan: data after the document")
	}
	if p.Schema != Schema {
		return nil, diag.New(diag.ClassInput, "decode plan: schema %q, want %q", p.Schema, Schema)
	}
	again, err := Encode(&p)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(again, b) {
		return nil, diag.New(diag.ClassInput, "decode plan: not in canonical form (first difference at byte %d)", firstDifference(again, b))
	}
	return &p, nil
}

// Digest is the identity of a plan: hex SHA-256 of its canonical JSON.
func Digest(p *Plan) (string, error) {
	b, err := Encode(p)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

func firstDifference(a, b []byte) int {
	n := min(len(a), len(b))
	for i := 0; i < n; i++ {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
