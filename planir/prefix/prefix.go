// Package prefix knows what a computed prefix is: the cache of tokens that prompts begin with, computed ahead of time
// by a plan, so that a request with such a prompt processes only the rest.
//
// A file is a line of JSON, the token ids as little-endian int32, and the cache [layer][k|v][kv_head][token][head_dim]
// in the plan's cache type. It is of one plan: another one would have computed other numbers.
package prefix

import (
	"bytes"
	"encoding/binary"
	"encoding/json"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
)

// schema identifies the format.
const schema = "hetc.prefix/1"

// Prefix is the beginning of prompts, and what a plan has computed of it.
type Prefix struct {
	Tokens []int32 // ids, at least one
	Cache  []byte  // [layer][k|v][kv_head][token][head_dim]
}

// header is the first line of a file.
type header struct {
	Schema string `json:"schema"`
	Plan   string `json:"plan"` // digest
	Tokens int    `json:"tokens"`
}

// maxHeader bounds the first line in bytes.
const maxHeader = 1 << 10

// Encode writes a prefix that a plan has computed. It refuses, with class ClassInput, what Decode would refuse.
func Encode(plan *planir.Plan, prefix *Prefix) ([]byte, error) {
	if count := len(prefix.Tokens); count < 1 || count >= plan.MaxContext {
		return nil, diag.New(diag.ClassInput, "write the computed prefix: %d tokens, want 1..%d: one position of the context "+
			"is left for what follows", count, plan.MaxContext-1).
			WithHint("shorten the text, or solve with a larger context in the workload")
	}
	if want := Bytes(plan, len(prefix.Tokens)); int64(len(prefix.Cache)) != want {
		return nil, diag.New(diag.ClassInternal, "BUG: the cache of %d tokens has %d bytes, want %d", len(prefix.Tokens),
			len(prefix.Cache), want)
	}
	digest, err := planir.Digest(plan)
	if err != nil {
		return nil, err
	}
	out, err := json.Marshal(header{schema, digest, len(prefix.Tokens)})
	if err != nil {
		return nil, err
	}
	out = append(out, '\n')
	for _, id := range prefix.Tokens {
		out = binary.LittleEndian.AppendUint32(out, uint32(id))
	}
	return append(out, prefix.Cache...), nil
}

// Decode reads a prefix of this plan. Its cache is a part of data. What is cut off, of another plan, or does not fit
// the plan's context and vocabulary is refused with class ClassInput.
func Decode(data []byte, plan *planir.Plan) (*Prefix, error) {
	refuse := func(format string, args ...any) (*Prefix, error) {
		return nil, diag.New(diag.ClassInput, "read the computed prefix: "+format, args...).
			WithHint("emit the bundle again, with --prefix")
	}
	line, _, found := bytes.Cut(data[:min(len(data), maxHeader)], []byte("\n"))
	if !found {
		return refuse("no first line within %d bytes", maxHeader)
	}
	rest := data[len(line)+1:]
	var head header
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&head); err != nil {
		return refuse("first line: %w", err)
	}
	if again, err := json.Marshal(head); err != nil || !bytes.Equal(again, line) {
		return refuse("its first line is not in canonical form")
	}
	if head.Schema != schema {
		return refuse("schema is %q, want %q", head.Schema, schema)
	}
	digest, err := planir.Digest(plan)
	if err != nil {
		return nil, err
	}
	if head.Plan != digest {
		return refuse("it was computed by the plan with digest %.12s, and this one has %.12s", head.Plan, digest)
	}
	// One position of the context is left for the token that logits are wanted of.
	if head.Tokens < 1 || head.Tokens >= plan.MaxContext {
		return refuse("%d tokens, want 1..%d", head.Tokens, plan.MaxContext-1)
	}
	if want := 4*int64(head.Tokens) + Bytes(plan, head.Tokens); int64(len(rest)) != want {
		return refuse("%d bytes of tokens and cache, want %d for %d tokens", len(rest), want, head.Tokens)
	}
	out := &Prefix{Cache: rest[4*head.Tokens:]}
	vocabulary := vocabularyOf(plan)
	for i := range head.Tokens {
		id := int32(binary.LittleEndian.Uint32(rest[4*i:]))
		if id < 0 || int(id) >= vocabulary {
			return refuse("token %d is id %d, want 0..%d", i, id, vocabulary-1)
		}
		out.Tokens = append(out.Tokens, id)
	}
	return out, nil
}

// Bytes returns the size of the cache of so many tokens of one sequence.
func Bytes(plan *planir.Plan, tokens int) int64 {
	cache := plan.Program.Cache
	return cache.SequenceBytes() / int64(max(1, cache.MaxContext)) * int64(tokens)
}

// vocabularyOf returns the number of a plan's token ids.
func vocabularyOf(plan *planir.Plan) int {
	for i := range plan.Program.Buffers {
		if plan.Program.Buffers[i].Name == planir.Logits {
			return plan.Program.Buffers[i].Cols
		}
	}
	return 0
}
