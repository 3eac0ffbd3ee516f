package models

import (
	"encoding/binary"
	"math"
	"path/filepath"
	"testing"

	"github.com/hetc/hetc/models/safetensors"
	"github.com/hetc/hetc/planir/op"
)

const tinyDir = "../testdata/models/tiny-llama-kjv"

func openTiny(t testing.TB) *Model {
	t.Helper()
	m, err := Open(tinyDir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// naive executes a model's graph in float64 with plain loops, one node after the other: no executor,
// no packing, nothing shared with them but the graph.
type naive struct {
	t       *testing.T
	m       *Model
	weights map[string][]float64 // "name/layer", column by column [N,K]
}

type matrix struct {
	rows, cols int
	v          []float64
}

func (x matrix) row(i int) []float64 { return x.v[i*x.cols : (i+1)*x.cols] }

func (e *naive) weight(name string, layer int) (*op.Weight, []float64) {
	g := e.m.Graph()
	w := g.Weight(name)
	if w == nil {
		e.t.Fatalf("graph names weight %q but does not list it", name)
	}
	if !w.PerLayer() {
		layer = 0
	}
	key := name + "/" + string(rune('0'+layer))
	if v, ok := e.weights[key]; ok {
		return w, v
	}
	v := assemble(e.t, e.m, w, layer)
	e.weights[key] = v
	return w, v
}

// assemble gives a weight column by column [N,K], by the words of the type's comment: Interleave[i]
// columns of source i in turn.
func assemble(t testing.TB, m *Model, w *op.Weight, layer int) []float64 {
	v := make([]float64, w.K*w.N)
	if w.Const != nil {
		for n, f := range w.Const {
			v[n] = float64(f)
		}
		return v
	}
	var sources [][]float32
	for _, name := range w.Sources(layer, 0) {
		tensor, err := m.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, allValues(t, tensor))
	}
	turns := w.Interleave
	if turns == nil {
		turns = []int{w.N}
	}
	taken := make([]int, len(sources))
	for n, source, left := 0, 0, turns[0]; n < w.N; n++ {
		for left == 0 {
			source = (source + 1) % len(turns)
			left = turns[source]
		}
		for k := range w.K {
			at := taken[source]*w.K + k // [N,K]
			if !w.Transposed {
				at = k*w.N + n // [K,N]
			}
			v[n*w.K+k] = float64(sources[source][at])
		}
		taken[source]++
		left--
	}
	return v
}

// run returns the logits [T,Vocab] of the positions in ids.
func (e *naive) run(ids []int) matrix {
	g := e.m.Graph()
	values := map[string]matrix{"ids": {rows: len(ids), cols: 1, v: make([]float64, len(ids))}}
	for i, id := range ids {
		values["ids"].v[i] = float64(id)
	}
	var logits matrix
	for _, s := range g.Sections {
		if s.Name == "head" { // one row at a time
			x := values["x"]
			logits = matrix{rows: x.rows, cols: e.m.Vocab}
			for r := range x.rows {
				one := map[string]matrix{"x": {rows: 1, cols: x.cols, v: append([]float64(nil), x.row(r)...)}}
				e.section(&s, 0, 1, one)
				logits.v = append(logits.v, one["logits"].v...)
			}
			continue
		}
		for l := range max(1, s.Layers) {
			e.section(&s, l, len(ids), values)
		}
	}
	return logits
}

func (e *naive) section(s *Section, layer, rows int, values map[string]matrix) {
	cols := map[string]int{}
	for _, v := range s.Values {
		cols[v.Name] = v.Cols
	}
	for _, n := range s.Nodes {
		in := make([]matrix, len(n.In))
		for i, name := range n.In {
			x, ok := values[name]
			if !ok || x.cols != cols[name] {
				e.t.Fatalf("%s: input %q has %d columns, declared %d", n.Name, name, x.cols, cols[name])
			}
			in[i] = x
		}
		for i, o := range n.At(rows, rows) {
			if err := o.Validate(); err != nil {
				e.t.Fatalf("%s: %v", n.Name, err)
			}
			sig := o.Sig()
			if len(n.Ops) == 1 && (len(sig.In) != len(n.In) || len(sig.W) != len(n.W) || len(sig.Out) != len(n.Out)) {
				e.t.Fatalf("%s: operands do not fit %s", n.Name, o.Kind)
			}
			out, ok := e.apply(o, layer, in, n.W)
			if !ok {
				continue // in place
			}
			if i != len(n.Ops)-1 || out.cols != cols[n.Out[0]] {
				e.t.Fatalf("%s: output has %d columns, declared %d", n.Name, out.cols, cols[n.Out[0]])
			}
			values[n.Out[0]] = out
		}
	}
}

func (e *naive) apply(o op.Op, layer int, in []matrix, w []string) (matrix, bool) {
	x := in[0]
	y := matrix{rows: x.rows, cols: o.N, v: make([]float64, x.rows*o.N)}
	switch o.Kind {
	case op.Embed:
		spec, table := e.weight(w[0], layer)
		for r := range x.rows {
			for n := range o.N {
				y.v[r*o.N+n] = table[n*spec.K+int(x.v[r])]
			}
		}
	case op.SelectRow:
		return x, true
	case op.Norm:
		_, gain := e.weight(w[0], layer)
		for r := range x.rows {
			sum := 0.0
			for _, v := range x.row(r) {
				sum += v * v
			}
			scale := 1 / math.Sqrt(sum/float64(o.N)+o.Eps)
			for n, v := range x.row(r) {
				y.v[r*o.N+n] = v * scale * gain[n]
			}
		}
	case op.MatMul:
		_, v := e.weight(w[0], layer)
		for r := range x.rows {
			for n := range o.N {
				sum := 0.0
				for k, a := range x.row(r) {
					sum += a * v[n*o.K+k]
				}
				y.v[r*o.N+n] = sum
			}
		}
	case op.Rope:
		_, freq := e.weight(w[0], layer)
		group, half := o.Heads/o.KVHeads, o.HeadDim/2
		for r := range x.rows {
			for h := range o.KVHeads * (group + 2) {
				if h%(group+2) == group+1 {
					continue // a value head
				}
				q := x.row(r)[h*o.HeadDim : (h+1)*o.HeadDim]
				for i := range half {
					angle := float64(float32(r) * float32(freq[i]))
					sin, cos := math.Sincos(angle)
					q[i], q[i+half] = q[i]*cos-q[i+half]*sin, q[i+half]*cos+q[i]*sin
				}
			}
		}
		return matrix{}, false
	case op.KVAppend:
		return matrix{}, false // attention below reads the rows themselves
	case op.Attention:
		group, d := o.Heads/o.KVHeads, o.HeadDim
		y = matrix{rows: x.rows, cols: o.Heads * d, v: make([]float64, x.rows*o.Heads*d)}
		for r := range x.rows {
			for h := range o.Heads {
				base := h / group * (group + 2) * d
				q := x.row(r)[base+h%group*d:][:d]
				scores, most := make([]float64, r+1), math.Inf(-1)
				for p := range scores {
					for i, k := range x.row(p)[base+group*d:][:d] {
						scores[p] += q[i] * k
					}
					scores[p] /= math.Sqrt(float64(d))
					most = max(most, scores[p])
				}
				sum := 0.0
				for p := range scores {
					scores[p] = math.Exp(scores[p] - most)
					sum += scores[p]
				}
				out := y.row(r)[h*d : (h+1)*d]
				for p := range scores {
					for i, v := range x.row(p)[base+(group+1)*d:][:d] {
						out[i] += scores[p] / sum * v
					}
				}
			}
		}
	case op.GLU:
		for r := range x.rows {
			for n := range o.N {
				at := n/o.Interleave*2*o.Interleave + n%o.Interleave
				gate, up := x.row(r)[at], x.row(r)[at+o.Interleave]
				y.v[r*o.N+n] = gate / (1 + math.Exp(-gate)) * up
			}
		}
	case op.Add:
		for i := range y.v {
			y.v[i] = in[0].v[i] + in[1].v[i]
		}
	default:
		e.t.Fatalf("no naive form of %q", o.Kind)
	}
	return y, true
}

// The graph, the interleaving of fused weights, the rope constants and the loader together give the
// logits another implementation computed, before any executor of ours exists.
func TestGraphGivesTheReferenceLogits(t *testing.T) {
	m := openTiny(t)
	ref, err := safetensors.Open(filepath.Join(tinyDir, "reference.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer ref.Close()
	e := &naive{t: t, m: m, weights: map[string][]float64{}}
	for _, prompt := range []string{"0", "1", "2"} {
		tensor, ok := ref.Tensor("ids_" + prompt)
		if !ok || tensor.Type != op.I32 {
			t.Fatalf("no ids_%s", prompt)
		}
		ids := make([]int, tensor.Shape[0])
		for i := range ids {
			ids[i] = int(binary.LittleEndian.Uint32(tensor.Data[4*i:]))
		}
		tensor, _ = ref.Tensor("logits_" + prompt)
		want := make([]float32, len(ids)*m.Vocab)
		if err := tensor.Floats(want, 0); err != nil {
			t.Fatal(err)
		}
		got := e.run(ids)
		worst := 0.0
		for i := range want {
			worst = max(worst, math.Abs(got.v[i]-float64(want[i])))
		}
		t.Logf("prompt %s: %d positions, largest difference %.2g", prompt, len(ids), worst)
		if !(worst <= 1e-4) {
			t.Errorf("prompt %s: logits differ by %g, want at most 1e-4", prompt, worst)
		}
		// Greedy decoding by recomputation of the whole text.
		if prompt != "0" {
			continue
		}
		tensor, _ = ref.Tensor("greedy_" + prompt)
		for i := range 4 {
			all := e.run(ids)
			row, best := all.row(len(ids)-1), 0
			for n, v := range row {
				if v > row[best] {
					best = n
				}
			}
			if want := int(binary.LittleEndian.Uint32(tensor.Data[4*i:])); best != want {
				t.Fatalf("greedy token %d of prompt %s: got %d, want %d", i, prompt, best, want)
			}
			ids = append(ids, best)
		}
	}
}

func allValues(t testing.TB, x Tensor) []float32 {
	t.Helper()
	rows, cols := matrixShape(x.Shape())
	v := make([]float32, rows*cols)
	if err := x.Read(v, 0, rows, 0, cols); err != nil {
		t.Fatal(err)
	}
	return v
}
