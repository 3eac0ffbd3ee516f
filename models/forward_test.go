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
	model, err := Open(tinyDir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { model.Close() })
	return model
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
func assemble(t testing.TB, model *Model, weight *op.Weight, layer int) []float64 {
	v := make([]float64, weight.K*weight.N)
	if weight.Const != nil {
		for n, f := range weight.Const {
			v[n] = float64(f)
		}
		return v
	}
	var sources [][]float32
	for _, name := range weight.Sources(layer, 0) {
		tensor, err := model.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, allValues(t, tensor))
	}
	turns := weight.Interleave
	if turns == nil {
		turns = []int{weight.N}
	}
	taken := make([]int, len(sources))
	for n, source, left := 0, 0, turns[0]; n < weight.N; n++ {
		for left == 0 {
			source = (source + 1) % len(turns)
			left = turns[source]
		}
		for k := range weight.K {
			at := taken[source]*weight.K + k // [N,K]
			if !weight.Transposed {
				at = k*weight.N + n // [K,N]
			}
			v[n*weight.K+k] = float64(sources[source][at])
		}
		taken[source]++
		left--
	}
	return v
}

// run returns the logits [T,Vocab] of the positions in ids.
func (e *naive) run(ids []int) matrix {
	graph := e.m.Graph()
	values := map[string]matrix{"ids": {rows: len(ids), cols: 1, v: make([]float64, len(ids))}}
	for i, id := range ids {
		values["ids"].v[i] = float64(id)
	}
	var logits matrix
	for _, section := range graph.Sections {
		if section.Name == "head" { // one row at a time
			x := values["x"]
			logits = matrix{rows: x.rows, cols: e.m.Vocab}
			for r := range x.rows {
				one := map[string]matrix{"x": {rows: 1, cols: x.cols, v: append([]float64(nil), x.row(r)...)}}
				e.section(&section, 0, 1, one)
				logits.v = append(logits.v, one["logits"].v...)
			}
			continue
		}
		for l := range max(1, section.Layers) {
			e.section(&section, l, len(ids), values)
		}
	}
	return logits
}

// section executes the nodes of a section for one layer, on all rows.
func (e *naive) section(section *Section, layer, rows int, values map[string]matrix) {
	cols := map[string]int{}
	for _, value := range section.Values {
		cols[value.Name] = value.Cols
	}
	for _, node := range section.Nodes {
		in := make([]matrix, len(node.In))
		for i, name := range node.In {
			input, ok := values[name]
			if !ok || input.cols != cols[name] {
				e.t.Fatalf("%s: input %q has %d columns, declared %d", node.Name, name, input.cols, cols[name])
			}
			in[i] = input
		}

		for i, operator := range node.At(rows, rows) {
			if err := operator.Validate(); err != nil {
				e.t.Fatalf("%s: %v", node.Name, err)
			}
			sig := operator.Sig()
			fits := len(sig.In) == len(node.In) && len(sig.W) == len(node.W) && len(sig.Out) == len(node.Out)
			if len(node.Ops) == 1 && !fits {
				e.t.Fatalf("%s: operands do not fit %s", node.Name, operator.Kind)
			}
			out, ok := e.apply(operator, layer, in, node.W)
			if !ok {
				continue // in place
			}
			if i != len(node.Ops)-1 || out.cols != cols[node.Out[0]] {
				e.t.Fatalf("%s: output has %d columns, declared %d", node.Name, out.cols, cols[node.Out[0]])
			}
			values[node.Out[0]] = out
		}
	}
}

// apply executes an operator, by its definition. It returns the result; false if it works in place.
func (e *naive) apply(operator op.Op, layer int, in []matrix, weights []string) (matrix, bool) {
	input := in[0]
	out := matrix{rows: input.rows, cols: operator.N, v: make([]float64, input.rows*operator.N)}
	switch operator.Kind {
	case op.Embed:
		spec, table := e.weight(weights[0], layer)
		for row := range input.rows {
			for n := range operator.N {
				out.v[row*operator.N+n] = table[n*spec.K+int(input.v[row])]
			}
		}
	case op.SelectRow:
		return input, true
	case op.Norm:
		_, gain := e.weight(weights[0], layer)
		normalise(operator, input, out, gain)
	case op.MatMul:
		_, weight := e.weight(weights[0], layer)
		multiply(operator, input, out, weight)
	case op.Rope:
		_, frequencies := e.weight(weights[0], layer)
		rotate(operator, input, frequencies)
		return matrix{}, false
	case op.KVAppend:
		return matrix{}, false // attention reads the rows themselves
	case op.Attention:
		return attend(operator, input), true
	case op.GLU:
		for row := range input.rows {
			for n := range operator.N {
				at := n/operator.Interleave*2*operator.Interleave + n%operator.Interleave
				gate, up := input.row(row)[at], input.row(row)[at+operator.Interleave]
				out.v[row*operator.N+n] = gate / (1 + math.Exp(-gate)) * up
			}
		}
	case op.Add:
		for i := range out.v {
			out.v[i] = in[0].v[i] + in[1].v[i]
		}
	default:
		e.t.Fatalf("no naive form of %q", operator.Kind)
	}
	return out, true
}

// normalise writes the rows divided by their root mean square, times the gain.
func normalise(operator op.Op, input, out matrix, gain []float64) {
	for row := range input.rows {
		sum := 0.0
		for _, value := range input.row(row) {
			sum += value * value
		}
		scale := 1 / math.Sqrt(sum/float64(operator.N)+operator.Eps)
		for n, value := range input.row(row) {
			out.v[row*operator.N+n] = value * scale * gain[n]
		}
	}
}

// multiply writes the product of the rows with a weight [N,K].
func multiply(operator op.Op, input, out matrix, weight []float64) {
	for row := range input.rows {
		for n := range operator.N {
			sum := 0.0
			for k, value := range input.row(row) {
				sum += value * weight[n*operator.K+k]
			}
			out.v[row*operator.N+n] = sum
		}
	}
}

// rotate turns the query and key heads of row r by r times the frequencies, in place.
func rotate(operator op.Op, input matrix, frequencies []float64) {
	group, half := operator.Heads/operator.KVHeads, operator.HeadDim/2
	for row := range input.rows {
		for head := range operator.KVHeads * (group + 2) {
			if head%(group+2) == group+1 {
				continue // a value head
			}
			vector := input.row(row)[head*operator.HeadDim : (head+1)*operator.HeadDim]
			for i := range half {
				angle := float64(float32(row) * float32(frequencies[i]))
				sin, cos := math.Sincos(angle)
				first, second := vector[i], vector[i+half]
				vector[i], vector[i+half] = first*cos-second*sin, second*cos+first*sin
			}
		}
	}
}

// attend returns causal attention: the mean of the values before each row, weighted by the softmax of its scores.
func attend(operator op.Op, input matrix) matrix {
	group, dim := operator.Heads/operator.KVHeads, operator.HeadDim
	out := matrix{rows: input.rows, cols: operator.Heads * dim, v: make([]float64, input.rows*operator.Heads*dim)}
	for row := range input.rows {
		for head := range operator.Heads {
			base := head / group * (group + 2) * dim
			query := input.row(row)[base+head%group*dim:][:dim]
			scores, most := make([]float64, row+1), math.Inf(-1)
			for position := range scores {
				for i, key := range input.row(position)[base+group*dim:][:dim] {
					scores[position] += query[i] * key
				}
				scores[position] /= math.Sqrt(float64(dim))
				most = max(most, scores[position])
			}

			sum := 0.0
			for position := range scores {
				scores[position] = math.Exp(scores[position] - most)
				sum += scores[position]
			}
			mean := out.row(row)[head*dim : (head+1)*dim]
			for position := range scores {
				for i, value := range input.row(position)[base+(group+1)*dim:][:dim] {
					mean[i] += scores[position] / sum * value
				}
			}
		}
	}
	return out
}

// The graph, the interleaving of fused weights, the rope constants and the loader together give the logits that another
// implementation computed, before any executor of ours exists.
func TestGraphGivesTheReferenceLogits(t *testing.T) {
	model := openTiny(t)
	ref, err := safetensors.Open(filepath.Join(tinyDir, "reference.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer ref.Close()
	e := &naive{t: t, m: model, weights: map[string][]float64{}}
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
		want := make([]float32, len(ids)*model.Vocab)
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

func allValues(t testing.TB, tensor Tensor) []float32 {
	t.Helper()
	rows, cols := matrixShape(tensor.Shape())
	v := make([]float32, rows*cols)
	if err := tensor.Read(v, 0, rows, 0, cols); err != nil {
		t.Fatal(err)
	}
	return v
}
