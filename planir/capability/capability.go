// Package capability knows what a processor can do, in the one form in which drivers tell it, SoC files store it and
// plans carry it.
package capability

import (
	"maps"
	"slices"

	"github.com/hetc/hetc/planir/op"
)

// Set is what a processor can do, with the keys that it has in files. The zero Set executes every operator but matmuls.
type Set struct {
	Tile    Tile        `json:"tile" yaml:"tile"`
	Kinds   []op.Kind   `json:"kinds,omitempty" yaml:"kinds,omitempty,flow"` // operators it executes; empty: every kind
	Schemes []op.Scheme `json:"schemes" yaml:"schemes,flow"`                 // what its matmuls execute
	// Forms are the classes of forms, besides the default, in which matmuls of a scheme can be put to it.
	Forms   map[op.Scheme][]op.Form `json:"forms,omitempty" yaml:"forms,omitempty"`
	Layouts map[string]string       `json:"layouts" yaml:"layouts"`                // weight scheme ("q8c") -> packed layout it reads
	KV      []op.Type               `json:"kv,omitempty" yaml:"kv,omitempty,flow"` // cache element types of its attention

	StaticShapes  bool `json:"static_shapes,omitempty" yaml:"static_shapes,omitempty"`   // a graph exists for one M only
	DynamicRows   bool `json:"dynamic_rows,omitempty" yaml:"dynamic_rows,omitempty"`     // a call may use fewer rows than the graph's
	StridedOutput bool `json:"strided_output,omitempty" yaml:"strided_output,omitempty"` // outputs may be column ranges of wider buffers
	StridedInput  bool `json:"strided_input,omitempty" yaml:"strided_input,omitempty"`   // inputs may be column ranges of wider buffers
	WeightRanges  bool `json:"weight_ranges,omitempty" yaml:"weight_ranges,omitempty"`   // a shard may be a tile range of one packed copy
	Prepacks      bool `json:"prepacks,omitempty" yaml:"prepacks,omitempty"`             // its library holds a copy of weights of its own
	Fuses         bool `json:"fuses,omitempty" yaml:"fuses,omitempty"`                   // a graph may be several operators, products too, and neighbours are made one
	Bakes         bool `json:"bakes,omitempty" yaml:"bakes,omitempty"`                   // its artifacts hold their weights: loading them takes none
}

// Tile is the granularity of a processor in each dimension of a matmul: column shards are multiples of
// N, splits of the reduction multiples of K, standard row counts multiples of M. 0 counts as 1.
type Tile struct {
	M int `json:"m,omitempty" yaml:"m,omitempty"`
	K int `json:"k,omitempty" yaml:"k,omitempty"`
	N int `json:"n,omitempty" yaml:"n,omitempty"`
}

// Clone returns a copy that shares no list or map with the set.
func (s *Set) Clone() Set {
	out := *s
	out.Kinds, out.Schemes, out.KV = slices.Clone(s.Kinds), slices.Clone(s.Schemes), slices.Clone(s.KV)
	out.Layouts = maps.Clone(s.Layouts)
	out.Forms = maps.Clone(s.Forms)
	for scheme, forms := range s.Forms {
		out.Forms[scheme] = slices.Clone(forms)
	}
	return out
}

// Executes reports whether the processor's kinds include k.
func (s *Set) Executes(k op.Kind) bool { return len(s.Kinds) == 0 || slices.Contains(s.Kinds, k) }

// HasForm reports whether matmuls of the scheme can be put to the processor in that form.
func (s *Set) HasForm(scheme op.Scheme, f op.Form) bool {
	return f == "" || slices.Contains(s.Forms[scheme], f.Class())
}
