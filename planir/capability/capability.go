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
	Forms map[op.Scheme][]op.Form `json:"forms,omitempty" yaml:"forms,omitempty"`
	// weight scheme ("q8c") -> packed layout it reads
	Layouts map[string]string `json:"layouts" yaml:"layouts"`
	// cache element types of its attention
	KV []op.Type `json:"kv,omitempty" yaml:"kv,omitempty,flow"`

	// a graph exists for one M only
	StaticShapes bool `json:"static_shapes,omitempty" yaml:"static_shapes,omitempty"`
	// a call may use fewer rows than the graph's
	DynamicRows bool `json:"dynamic_rows,omitempty" yaml:"dynamic_rows,omitempty"`
	// outputs may be column ranges of wider buffers
	StridedOutput bool `json:"strided_output,omitempty" yaml:"strided_output,omitempty"`
	// inputs may be column ranges of wider buffers
	StridedInput bool `json:"strided_input,omitempty" yaml:"strided_input,omitempty"`
	// a shard may be a tile range of one packed copy
	WeightRanges bool `json:"weight_ranges,omitempty" yaml:"weight_ranges,omitempty"`
	// its library holds a copy of weights of its own
	Prepacks bool `json:"prepacks,omitempty" yaml:"prepacks,omitempty"`
	// a graph may be several operators, products too, and neighbours are made one
	Fuses bool `json:"fuses,omitempty" yaml:"fuses,omitempty"`
	// a product and the gated linear unit that takes its results are made one graph, which holds none of them
	FusesGLU bool `json:"fuses_glu,omitempty" yaml:"fuses_glu,omitempty"`
	// its artifacts hold their weights: loading them takes none
	WeightsInArtifacts bool `json:"weights_in_artifacts,omitempty" yaml:"weights_in_artifacts,omitempty"`

	// OwnMemory: it computes on memory of its own, so that operands of which other processors read or write a part are
	// copied. It is probed: the same kind of device has it in one machine and shares the host's in another.
	OwnMemory bool `json:"own_memory,omitempty" yaml:"own_memory,omitempty"`
	// SharesOwn: memory that it allocates itself is shared with the host, though it copies what it is given (OwnMemory).
	// It then allocates the buffers, and nothing is copied.
	SharesOwn bool `json:"shares_own,omitempty" yaml:"shares_own,omitempty"`

	// Memory is what its kernels and library hold; nil: its driver does not tell.
	Memory *Memory `json:"memory,omitempty" yaml:"memory,omitempty"`
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
	out.Memory = s.Memory.Clone()
	return out
}

// Copying reports which processors of a machine copy operands: those with memory of their own. The first of these that
// shares what it allocates does not, because it gets to allocate the buffers.
func Copying(sets []*Set) []bool {
	out, home := make([]bool, len(sets)), false
	for i, set := range sets {
		allocates := set.OwnMemory && set.SharesOwn && !home
		home = home || allocates
		out[i] = set.OwnMemory && !allocates
	}
	return out
}

// Executes reports whether the processor's kinds include one. A processor of static shapes that executes products
// executes groups of them: its graph for a group is made of them.
func (s *Set) Executes(kind op.Kind) bool {
	if kind == op.GroupMatMul && s.StaticShapes && slices.Contains(s.Kinds, op.MatMul) {
		return true
	}
	return len(s.Kinds) == 0 || slices.Contains(s.Kinds, kind)
}

// HasForm reports whether matmuls of the scheme can be put to the processor in that form.
func (s *Set) HasForm(scheme op.Scheme, form op.Form) bool {
	return form == "" || slices.Contains(s.Forms[scheme], form.Class())
}

// Difference is a capability that one set claims and another has not, by its key in files.
type Difference struct {
	Key       string // "layouts", "tile.n"
	Have, Can any    // what the one claims and the other allows
}

// Beyond lists what the set claims and the other does not allow. Tiles may be multiples. What decides where weights lie
// and which graphs exist (static_shapes, prepacks, weights_in_artifacts) must agree; kinds and cache types are compared
// where they are used, and memory not at all: its sizes may be measured again, and whose it is (own_memory) changes
// times, not results.
func (s *Set) Beyond(can *Set) (out []Difference) {
	differs := func(key string, have, can any) { out = append(out, Difference{key, have, can}) }
	for _, scheme := range slices.Sorted(maps.Keys(s.Layouts)) {
		if layout := s.Layouts[scheme]; can.Layouts[scheme] != layout {
			differs("layouts", scheme+": "+layout, can.Layouts)
		}
	}
	for _, scheme := range s.Schemes {
		if !slices.Contains(can.Schemes, scheme) {
			differs("schemes", scheme, can.Schemes)
		}
		for _, form := range s.Forms[scheme] {
			if !can.HasForm(scheme, form) {
				differs("forms", form, can.Forms[scheme])
			}
		}
	}
	for _, feature := range []struct {
		key       string
		have, can int
	}{{"tile.n", s.Tile.N, can.Tile.N}, {"tile.k", s.Tile.K, can.Tile.K}} {
		if feature.have < 1 || feature.have%max(1, feature.can) != 0 {
			differs(feature.key, feature.have, feature.can)
		}
	}
	for _, feature := range []struct {
		key       string
		have, can bool
		equal     bool // they must agree
	}{
		{"static_shapes", s.StaticShapes, can.StaticShapes, true},
		{"dynamic_rows", s.DynamicRows, can.DynamicRows, false},
		{"strided_output", s.StridedOutput, can.StridedOutput, false},
		{"strided_input", s.StridedInput, can.StridedInput, false},
		{"weight_ranges", s.WeightRanges, can.WeightRanges, false}, {"prepacks", s.Prepacks, can.Prepacks, true},
		{"fuses", s.Fuses, can.Fuses, false}, {"fuses_glu", s.FusesGLU, can.FusesGLU, false},
		{"weights_in_artifacts", s.WeightsInArtifacts, can.WeightsInArtifacts, true},
	} {
		if feature.have != feature.can && (feature.have || feature.equal) {
			differs(feature.key, feature.have, feature.can)
		}
	}
	return out
}
