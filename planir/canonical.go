package planir

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/canon"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

// maxJSON bounds a canonical plan; a 100-layer model with 30 buckets stays below 4 MiB.
const maxJSON = 64 << 20

// Encode returns the canonical JSON of the plan: fixed key order, no white space, no optional
// empty field. Plans with equal content have equal bytes.
func Encode(plan *Plan) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(withLists(plan)); err != nil {
		return nil, fmt.Errorf("encode plan: %w", err)
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// withLists returns the plan with empty lists where a processor has none but its key is always written, so that both
// are one value.
func withLists(plan *Plan) *Plan {
	out := *plan
	out.Procs = slices.Clone(plan.Procs)
	for i := range out.Procs {
		proc := &out.Procs[i]
		if proc.Schemes == nil {
			proc.Schemes = []op.Scheme{}
		}
		if proc.Layouts == nil {
			proc.Layouts = map[string]string{}
		}
	}
	return &out
}

// otherVersion reports a document of another version of the schema, whose keys may be others.
func otherVersion(data []byte) error {
	var head struct {
		Schema string `json:"schema"`
	}
	kind, _, _ := strings.Cut(Schema, "/")
	if json.Unmarshal(data, &head) != nil || head.Schema == Schema || !strings.HasPrefix(head.Schema, kind+"/") {
		return nil
	}
	return diag.New(diag.ClassInput, "decode plan: schema %q, want %q", head.Schema, Schema).
		WithHint("the plan is from another version of hetc: solve again, and emit again what holds it")
}

// Decode accepts canonical JSON only: unknown keys, duplicates, other white space or key order,
// and anything after the document are refused. It does not check the rules (see Check).
func Decode(data []byte) (*Plan, error) {
	if len(data) > maxJSON {
		return nil, diag.New(diag.ClassInput, "decode plan: %d bytes, want at most %d", len(data), maxJSON)
	}
	var quick Plan
	if canon.Read(data, &quick) && quick.Schema == Schema {
		return &quick, nil
	}
	if err := otherVersion(data); err != nil {
		return nil, err
	}
	// This slower reader takes strings with escapes too, and says what is wrong.
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var plan Plan
	if err := dec.Decode(&plan); err != nil {
		return nil, diag.New(diag.ClassInput, "decode plan: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, diag.New(diag.ClassInput, "decode plan: data after the document")
	}
	if plan.Schema != Schema {
		return nil, diag.New(diag.ClassInput, "decode plan: schema %q, want %q", plan.Schema, Schema)
	}
	again, err := Encode(&plan)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(again, data) {
		return nil, diag.New(diag.ClassInput, "decode plan: not in canonical form (first difference at byte %d)",
			firstDifference(again, data))
	}
	return &plan, nil
}

// Digest returns the identity of a plan: hex SHA-256 of its canonical JSON.
func Digest(plan *Plan) (string, error) {
	data, err := Encode(plan)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// firstDifference returns the index of the first byte that differs, or the length of the shorter one.
func firstDifference(a, b []byte) int {
	length := min(len(a), len(b))
	for i := range length {
		if a[i] != b[i] {
			return i
		}
	}
	return length
}
