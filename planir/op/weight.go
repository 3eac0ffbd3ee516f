package op

import (
	"fmt"
	"strconv"
	"strings"
)

// Weight describes one matrix [K,N] of a model (a vector is [1,N]) and where its numbers come from, see Kind. A model
// names its weights so, and a plan repeats them with the layers and the folds that it decided about.
//
// With several sources the columns are interleaved in blocks: Interleave[i] columns of source i in turn, so that any
// whole number of groups is a contiguous column range. Fused QKV interleaves one group of query heads, one key head
// and one value head; gate-up interleaves 16 columns each.
type Weight struct {
	Name string `json:"name" yaml:"name"` // "layers.qkv", "head.lm_head"
	// stored tensors, {layer} replaced per layer
	From []string `json:"from,omitempty" yaml:"from,omitempty"`
	// columns taken from each source in turn
	Interleave []int `json:"interleave,omitempty" yaml:"interleave,omitempty"`
	K          int   `json:"k" yaml:"k"`
	N          int   `json:"n" yaml:"n"`
	Transposed bool  `json:"transposed,omitempty" yaml:"transposed,omitempty"` // stored as [N,K] (torch Linear)
	// as many matrices, {expert} replaced; 0: one
	Experts int     `json:"experts,omitempty" yaml:"experts,omitempty"`
	Plus    float32 `json:"plus,omitempty" yaml:"plus,omitempty"` // added to the stored values
	// that have one, ascending; empty: one for all
	Layers []LayerRange `json:"layers,omitempty" yaml:"layers,omitempty"`
	Const  []float32    `json:"const,omitempty" yaml:"const,omitempty"` // the numbers of a constant

	// ScaleOf is the class of products whose static scales or grids these are. Scales are [1,1], or [1,2..MaxScales] of
	// which every row takes the smallest that holds it (StaticScale); they are those of what enters the products,
	// after division by the factors of FoldRows. Steps are [2,N]: one for what enters in all columns of the first row,
	// one for the results in those of the second, after division by the factors of FoldCols as well.
	ScaleOf string `json:"scale_of,omitempty" yaml:"scale_of,omitempty"`
	// Outliers is how many of the largest channels a static scale leaves out (see Scheme.Shadow), 0: it holds all.
	Outliers int `json:"outliers,omitempty" yaml:"outliers,omitempty"`

	// SlotsOf is the number of rows of the program whose slots of experts these are: the expert in each, in every
	// layer.
	SlotsOf int `json:"slots_of,omitempty" yaml:"slots_of,omitempty"`

	// HeadsOf is the node of attention whose heads' scales and shares of positions these are: [1,3*heads], of each
	// query head as SparseHeads has them. Density is the mean share.
	HeadsOf string  `json:"heads_of,omitempty" yaml:"heads_of,omitempty"`
	Density float64 `json:"density,omitempty" yaml:"density,omitempty"`

	// Groups of the calibration whose factors multiply its rows and divide the columns of one of its sources.
	FoldRows   string `json:"fold_rows,omitempty" yaml:"fold_rows,omitempty"`
	FoldCols   string `json:"fold_cols,omitempty" yaml:"fold_cols,omitempty"`
	FoldSource int    `json:"fold_source,omitempty" yaml:"fold_source,omitempty"`
}

// WeightKind says where the numbers of a weight come from. It follows from the weight's fields.
type WeightKind int

const (
	StoredWeight   WeightKind = iota // tensors of the model
	ConstantWeight                   // the plan itself: rotary frequencies
	ScalesWeight                     // the calibration: static scales of what enters a class of products
	StepsWeight                      // the calibration: steps of the grids of a class of products
	SlotsWeight                      // the plan's capacity tiers: experts in slots
	HeadsWeight                      // the calibration: scales and shares of the heads of an attention
)

// Kind returns where the numbers of w come from.
func (w *Weight) Kind() WeightKind {
	switch {
	case w.SlotsOf > 0:
		return SlotsWeight
	case w.ScaleOf != "" && w.K == 2:
		return StepsWeight
	case w.ScaleOf != "":
		return ScalesWeight
	case w.HeadsOf != "":
		return HeadsWeight
	case len(w.Const) > 0:
		return ConstantWeight
	}
	return StoredWeight
}

// PerLayer reports whether every layer has a w of its own, made of that layer's tensors.
func (w *Weight) PerLayer() bool {
	return len(w.From) > 0 && strings.Contains(w.From[0], "{layer}")
}

// Sources returns the names of the tensors w is assembled from in a layer, for an expert.
func (w *Weight) Sources(layer, expert int) []string {
	names := strings.NewReplacer("{layer}", strconv.Itoa(layer), "{expert}", strconv.Itoa(expert))
	out := make([]string, len(w.From))
	for i, name := range w.From {
		out[i] = names.Replace(name)
	}
	return out
}

// SourceCols returns how many of the N columns come from source i.
func (w *Weight) SourceCols(i int) int {
	if len(w.Interleave) == 0 {
		return w.N
	}
	round := 0
	for _, taken := range w.Interleave {
		round += taken
	}
	return w.N / round * w.Interleave[i]
}

// InLayer reports whether there is a weight for that layer.
func (w *Weight) InLayer(layer int) bool {
	for _, layers := range w.Layers {
		if layer >= layers.From && layer < layers.To {
			return true
		}
	}
	return false
}

// LayerCount returns the number of layers that have one of the weight, 0 for one that belongs to no layer.
func (w *Weight) LayerCount() int {
	count := 0
	for _, layers := range w.Layers {
		count += layers.To - layers.From
	}
	return count
}

// LayerRange is the half-open range of layers From..To-1, written "from:to".
type LayerRange struct{ From, To int }

// String returns the written form.
func (r LayerRange) String() string { return fmt.Sprintf("%d:%d", r.From, r.To) }

// MarshalText implements encoding.TextMarshaler.
func (r LayerRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText accepts the written form only.
func (r *LayerRange) UnmarshalText(data []byte) error {
	from, to, ok := strings.Cut(string(data), ":")
	first, err1 := strconv.Atoi(from)
	after, err2 := strconv.Atoi(to)
	if !ok || err1 != nil || err2 != nil || (LayerRange{first, after}).String() != string(data) {
		return fmt.Errorf("range %q: want from:to", data)
	}
	*r = LayerRange{first, after}
	return nil
}
