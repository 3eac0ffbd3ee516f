package driver

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/hetc/hetc/internal/canon"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
)

// Limits of a graph in an artifact. A graph is a handful of operators.
const (
	maxGraphCode  = 1 << 20
	maxGraphNodes = 1 << 12
)

// ParseGraph decodes a valid graph from canonical JSON, as compilers write it. Other spellings of
// the same graph are refused, so that one graph has one artifact.
func ParseGraph(code []byte) (op.Graph, error) {
	var graph op.Graph
	if len(code) > maxGraphCode {
		return graph, diag.New(diag.ClassInput, "parse graph: %d bytes, want at most %d", len(code), maxGraphCode)
	}
	if !canon.Read(code, &graph) {
		graph = op.Graph{}
		dec := json.NewDecoder(bytes.NewReader(code)) // for what is wrong, or written with escapes
		dec.DisallowUnknownFields()
		if err := dec.Decode(&graph); err != nil {
			return graph, diag.New(diag.ClassInput, "parse graph: %w", err)
		}
		if canonical, err := json.Marshal(&graph); err != nil || !bytes.Equal(canonical, code) {
			return graph, diag.New(diag.ClassInput,
				"parse graph: not in canonical form").WithHint("compile the bundle again")
		}
	}
	if len(graph.Nodes) > maxGraphNodes {
		return graph, diag.New(diag.ClassInput, "parse graph: %d nodes, want at most %d", len(graph.Nodes),
			maxGraphNodes)
	}
	if err := graph.Validate(); err != nil {
		return graph, diag.New(diag.ClassInput, "parse graph: %w", err)
	}
	return graph, nil
}

// ParseGraph returns the graph of an artifact whose code is the graph's canonical JSON. If the caller says which graph
// it must be (Artifact.Graph), another graph is refused. So is code that is no graph.
func (a *Artifact) ParseGraph() (op.Graph, error) {
	graph, err := ParseGraph(a.Code)
	if err != nil && a.Graph != nil {
		return graph, otherGraph("%w", err)
	}
	if err != nil {
		return graph, err
	}
	return graph, a.Matches(&graph)
}

// Matches returns an error if an artifact holds another graph than the plan says.
func (a *Artifact) Matches(held *op.Graph) error {
	if a.Graph == nil {
		return nil
	}
	if text := held.Difference(a.Graph); text != "" {
		return otherGraph("%s", text)
	}
	return nil
}

// otherGraph returns the refusal of an artifact that does not belong to its plan.
func otherGraph(format string, args ...any) error {
	return diag.New(diag.ClassVerify, "the artifact holds another graph than the plan: "+format, args...).
		WithHint("the bundle was signed with an artifact of another plan: emit it again with hetc")
}

// PackedBytes returns how many bytes the packed weights of a graph have, of all experts; size is that of one spec.
// Weights that are given (nil: none are) must have them; the experts of one may lie further apart, as parts of their
// columns do.
func (w Weights) PackedBytes(specs []op.WeightSpec, size func(op.WeightSpec) (int64, error)) (total int64, err error) {
	if w != nil && len(w) != len(specs) {
		return 0, fmt.Errorf("got %d weights, want %d", len(w), len(specs))
	}
	for i, spec := range specs {
		whole, err := size(spec)
		if err != nil {
			return 0, err
		}
		total += whole
		if w == nil || w[i].Rows != nil {
			continue
		}
		want, have := whole, int64(len(w[i].Bytes))
		if spec.Experts > 1 {
			one, stride := whole/int64(spec.Experts), w[i].Stride
			if stride < one || stride > have {
				return 0, fmt.Errorf("weight %q: got a stride of %d bytes from expert to expert, want %d..%d", spec.Name,
					stride, one, have)
			}
			want = int64(spec.Experts-1)*stride + one
		}
		if have != want {
			return 0, fmt.Errorf("weight %q: got %d bytes, want %d", spec.Name, have, want)
		}
	}
	return total, nil
}

// Check compares weights with those of a graph, by position: names may differ, because one artifact serves every layer.
// layout is the layout that the processor reads for a weight scheme, and size the packed size in bytes of one expert's
// matrix. The result has the graph's names. Rows may be given of those weights alone that the graph reads by row;
// tables says that the processor takes rows of an embedding's, as a TableReader does.
func (w Weights) Check(graph *op.Graph, tables bool, layout func(scheme string) string,
	size func(op.WeightSpec) (int64, error)) (Weights, error) {
	specs := graph.Weights
	if len(w) != len(specs) {
		return nil, fmt.Errorf("got %d weights, want %d", len(w), len(specs))
	}
	out := make(Weights, len(w))
	for i, spec := range specs {
		got := w[i].Spec
		got.Name = spec.Name
		if got != spec {
			return nil, fmt.Errorf("weight %q: got %v, want %v", spec.Name, got, spec)
		}
		if want := layout(spec.Scheme); spec.Layout != want {
			return nil, fmt.Errorf("weight %q: layout %q of scheme %q is not supported, want %q", spec.Name,
				spec.Layout, spec.Scheme, want)
		}
		if w[i].Rows != nil {
			byRow := graph.ReadsRows(i) || tables && graph.ReadsTable(i)
			if !byRow || w[i].Bytes != nil {
				return nil, fmt.Errorf("weight %q: got single rows of it, want all %d", spec.Name, spec.K)
			}
			out[i] = Packed{Spec: spec, Rows: w[i].Rows}
			continue
		}
		one := spec
		one.Experts = 0
		want, err := size(one)
		if err != nil {
			return nil, err
		}
		stride, have := w[i].Stride, int64(len(w[i].Bytes))
		if spec.Experts > 0 {
			// The stride is compared with the bytes before it is multiplied.
			if stride < want || stride%Align != 0 || spec.Experts > 1 && stride > have {
				return nil, fmt.Errorf("weight %q: got a stride of %d bytes from expert to expert, want a multiple of %d in %d..%d", spec.Name, stride, Align, want, have)
			}
			want += int64(spec.Experts-1) * stride
		}
		if have != want {
			apart := ""
			if spec.Experts > 1 {
				apart = fmt.Sprintf(" of %d experts, %d bytes from one to the next", spec.Experts, stride)
			}
			return nil, fmt.Errorf("weight %q: got %d bytes%s, want %d", spec.Name, have, apart, want)
		}
		if !mem.Aligned(w[i].Bytes, Align) {
			return nil, fmt.Errorf("weight %q: address is not a multiple of %d", spec.Name, Align)
		}
		out[i] = Packed{Spec: spec, Bytes: w[i].Bytes, Stride: stride}
	}
	return out, nil
}
