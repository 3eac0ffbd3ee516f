// Package models knows what a model is: it reads a Hugging Face directory (config.json and
// safetensors), a GGUF file or a catalog entry and tells the graph of operators, the weights they use, the
// tensors those weights are assembled from, and the digest of it all.
//
// Open (directory.go) reads the configuration (config.go) into a decoder, builds the graph of operators from it
// (decoderGraph in decoder.go), and binds the stored tensors that the graph needs. Model below is the result, Graph
// (graph.go) what it computes, Tensor (tensor.go) one stored matrix.
//
// An architecture is one value of type architecture (see architectures.go): which config keys it reads and what
// they mean to the one graph of decoders. Everything else (checking tensors, digests, synthesis) works from the graph,
// so that a new architecture is a row there with its function, and touches nothing else.
package models

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models/gguf"
	"github.com/hetc/hetc/planir/op"
)

// Model is a model's configuration and, unless it comes from the catalog, its stored tensors.
// The exported fields are fixed once it is opened.
type Model struct {
	Name         string // catalog name, or the base name of the directory
	Architecture string // "LlamaForCausalLM"
	Dir          string // directory or GGUF file it was opened from; empty for a catalog entry
	Source       string // catalog: where the shapes are published

	Hidden     int // columns of the residual stream
	Layers     int
	Heads      int // query heads
	KVHeads    int // key and value heads
	HeadDim    int
	FFN        int // columns between ffn_gate_up and ffn_down
	Vocab      int
	MaxContext int // positions

	Experts         int // of a layer with experts; 0: none
	ExpertsPerToken int // chosen by the router
	ExpertFFN       int // columns of one expert's feed-forward block
	SharedFFN       int // columns of the expert that every token uses; 0: none

	NormEps   float64
	RopeTheta float64
	BOS       int     // token id, -1 for none
	EOS       []int   // token ids that end a text, ascending; empty for none
	Stored    op.Type // element type of the embedding table, and in practice of every matrix
	Tied      bool    // the head is the embedding table
	Synthetic bool    // random weights written by Synth

	decoder *decoder
	graph   Graph
	config  map[string]any // config.json, or what a catalog entry or a GGUF file says instead
	tensors map[string]Tensor
	files   []io.Closer
	gguf    *gguf.File // what was opened, nil for a directory
	ignored []string   // see Ignored
	unread  []string   // see UnreadKeys

	digestOnce sync.Once // the digest reads all weights: it is computed when it is first asked for
	digest     string
	digestErr  error
}

// Graph returns what the model computes, in the terms of package op (see decoderGraph for the order of
// heads in a fused QKV row and the form of the rotary positions). The result is shared; callers do not change it.
func (m *Model) Graph() Graph { return m.graph }

// HasWeights reports whether the model has stored tensors; a catalog entry has shapes only.
func (m *Model) HasWeights() bool { return m.tensors != nil }

// Parameters returns the number of stored values the graph needs.
func (m *Model) Parameters() int64 {
	var n int64
	for _, needed := range m.required() {
		n += elements(needed.shape)
	}
	return n
}

// Tensor returns a stored tensor that the graph needs. Without weights the error is of class ClassInput
// and has a hint.
func (m *Model) Tensor(name string) (Tensor, error) {
	if !m.HasWeights() {
		return nil, m.noWeights("read tensor %q", name)
	}
	tensor, ok := m.tensors[name]
	if !ok {
		return nil, diag.New(diag.ClassInput, "read tensor %q of model %q: not a tensor its graph uses", name, m.Name)
	}
	return tensor, nil
}

// Required lists the names of the stored tensors that the graph needs, sorted.
func (m *Model) Required() []string {
	var out []string
	for _, needed := range m.required() {
		out = append(out, needed.name)
	}
	return out
}

// StoredTypes lists the element types of the tensors the graph uses, the one of most bytes first; Stored
// alone for a catalog entry.
func (m *Model) StoredTypes() []op.Type {
	if !m.HasWeights() {
		return []op.Type{m.Stored}
	}
	bytes := map[op.Type]int{}
	for _, tensor := range m.tensors {
		bytes[tensor.Type()] += len(tensor.Data())
	}
	return slices.SortedFunc(maps.Keys(bytes), func(a, b op.Type) int {
		if bytes[a] != bytes[b] {
			return bytes[b] - bytes[a]
		}
		return strings.Compare(string(a), string(b))
	})
}

// Ignored lists stored tensors that the graph does not use, sorted.
func (m *Model) Ignored() []string { return m.ignored }

// UnreadKeys lists keys of config.json that mean nothing to the architecture, sorted.
func (m *Model) UnreadKeys() []string { return m.unread }

// Close unmaps the stored tensors. Calling it again does nothing.
func (m *Model) Close() error {
	var first error
	for _, file := range m.files {
		if err := file.Close(); err != nil && first == nil {
			first = err
		}
	}
	m.files, m.tensors, m.gguf = nil, nil, nil
	return first
}

// noWeights says why a model has no tensors: it is a catalog entry, or closed.
func (m *Model) noWeights(format string, args ...any) error {
	what := fmt.Sprintf(format, args...)
	if m.Dir == "" {
		return diag.New(diag.ClassInput, "%s: model %q has shapes only, no weights", what, m.Name).
			WithHint("give a directory with config.json and *.safetensors, or write one with random weights: "+
				"hetc models synth %s -o DIR", m.Name)
	}
	return diag.New(diag.ClassInternal, "%s: model %q is closed", what, m.Name)
}

// Weight returns the graph's weight of that name, nil when there is none.
func (g *Graph) Weight(name string) *op.Weight {
	for i := range g.Weights {
		if g.Weights[i].Name == name {
			return &g.Weights[i]
		}
	}
	return nil
}

// Section returns the graph's section of that name, nil when there is none.
func (g *Graph) Section(name string) *Section {
	for i := range g.Sections {
		if g.Sections[i].Name == name {
			return &g.Sections[i]
		}
	}
	return nil
}

// layers lists the layers that use a weight, none for one that belongs to no layer.
func (g *Graph) layers(w *op.Weight) (out []int) {
	if !w.PerLayer() {
		return nil
	}
	for _, section := range g.Sections {
		if slices.ContainsFunc(section.Nodes, func(n Node) bool { return slices.Contains(n.W, w.Name) }) {
			for layer := range section.Layers {
				out = append(out, section.First+layer)
			}
		}
	}
	return out
}

// eachSource visits every tensor that makes up a weight: its source number s in a layer, for an
// expert. Tensors that several weights share are visited for each.
func (g *Graph) eachSource(visit func(w *op.Weight, s int, name string)) {
	for i := range g.Weights {
		weight := &g.Weights[i]
		layers := g.layers(weight)
		if !weight.PerLayer() {
			layers = []int{0}
		}
		for _, layer := range layers {
			for expert := range max(1, weight.Experts) {
				for source, name := range weight.Sources(layer, expert) {
					visit(weight, source, name)
				}
			}
		}
	}
}

// tensorSpec is a tensor the graph needs.
type tensorSpec struct {
	name  string
	shape []int // as stored
}

// required lists the tensors the graph needs, sorted by name, each once.
func (m *Model) required() []tensorSpec {
	seen := map[string]bool{}
	var out []tensorSpec
	m.graph.eachSource(func(w *op.Weight, s int, name string) {
		if !seen[name] {
			seen[name] = true
			out = append(out, tensorSpec{name, sourceShape(w, s)})
		}
	})
	sort.Slice(out, func(i, j int) bool { return out[i].name < out[j].name })
	return out
}

// sourceShape returns the stored shape of source i.
func sourceShape(w *op.Weight, i int) []int {
	cols := w.SourceCols(i)
	switch {
	case w.Transposed:
		return []int{cols, w.K}
	case w.K == 1:
		return []int{cols}
	}
	return []int{w.K, cols}
}

// elements returns the number of elements of a shape.
func elements(shape []int) int64 {
	count := int64(1)
	for _, dim := range shape {
		count *= int64(dim)
	}
	return count
}
