package emit

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// bound is how far the results of a compiled graph may lie from two references, as relative errors in the Euclidean
// norm for one product; a graph may have as many times that as it has products.
//
// A graph is tried on values that its author did not choose: pseudo-random numbers from its own shape, as large as the
// calibration says that its inputs are. What the vendor's emulator computes with the compiled binary is compared with
// the same operators in float32 on the values that the packed weights stand for (float), and with the uncompiled
// model in another engine (portable).
//
// The bounds against the other engine are three times what the emulator of the oldest target (v69) differed by on
// products of 2048 x 2048: 1.1e-2 with 8-bit activations, 1.1e-3 with 16-bit ones and 8-bit weights, 1.2e-3 with
// 4-bit ones, 1e-5 in half precision, 4e-4 with 4-bit blocks. Against float32, rounding of activations comes on top:
// 8 bits of one scale leave about 1 %, and half precision half a unit of its 11th bit for every operator.
type bound struct{ float, portable float64 }

// bounds are those of one product in each scheme that integers compute.
var bounds = map[op.Scheme]bound{
	op.A8SQ8C:  {5e-2, 3.3e-2},
	op.A8OQ8C:  {5e-2, 3.3e-2},
	op.A8TQ8C:  {5e-2, 3.3e-2},
	op.A16SQ8C: {5e-3, 3.3e-3},
	op.A16SQ4C: {5e-3, 3.6e-3},
}

// halfBound is that of everything that is computed in half precision: schemes a16f, and operators on rows.
var halfBound = bound{5e-3, 3e-3}

// boundOf returns the bound of a graph: the sum of its products' bounds, plus that of an operator on rows if it begins
// with one. Rounding of rows in front of products is part of the products' bounds.
func boundOf(g *op.Graph) bound {
	total := bound{}
	products := slices.ContainsFunc(g.Nodes, func(n op.Node) bool { return n.Op.HasScheme() })
	for _, node := range g.Nodes {
		one, ok := bounds[node.Op.Scheme]
		switch {
		case node.Op.Kind == op.QuantRows && products:
			continue // what rounding loses is in their bounds
		case node.Op.Kind == op.QuantRows:
			one = bounds[op.A8SQ8C]
		case !ok:
			one = halfBound
		}
		if node.Op.HasScheme() || total.float == 0 {
			total.float, total.portable = total.float+one.float, total.portable+one.portable
		}
	}
	return total
}

// trial is the result of executing a graph on its sample.
type trial struct {
	float, portable float64 // relative errors
	bound           bound
}

// judge compares the computed results with the references, output by output. The error refuses the graph.
func (s *sample) judge(graph *op.Graph, a *driver.CompiledArtifact) (*trial, error) {
	graph = graph.Launches(op.F32)
	result := &trial{bound: boundOf(graph)}
	if len(a.Emulated) != len(graph.Outputs) || len(a.Portable) != len(graph.Outputs) {
		return nil, diag.New(diag.ClassRun, "its sample was not executed: %d and %d outputs, want %d",
			len(a.Emulated), len(a.Portable), len(graph.Outputs))
	}
	emulated, portable := s.values(graph, a.Emulated), s.values(graph, a.Portable)
	for i := range graph.Outputs {
		if s.want[i] == nil {
			continue
		}
		if len(emulated[i]) != len(s.want[i]) || len(portable[i]) != len(s.want[i]) {
			return nil, diag.New(diag.ClassRun, "output %q of its sample has %d and %d values, want %d",
				graph.Outputs[i].Name, len(emulated[i]), len(portable[i]), len(s.want[i]))
		}
		// The worst output counts: a large one must not hide a small one that is wrong.
		result.float = max(result.float, relative(emulated[i], s.want[i]))
		result.portable = max(result.portable, relative(emulated[i], portable[i]))
	}
	return result, result.err()
}

// err refuses a graph beyond its bound.
func (t *trial) err() error {
	var wrong []string
	if !(t.float <= t.bound.float) {
		wrong = append(wrong, fmt.Sprintf("%.2g from float32, want at most %.2g", t.float, t.bound.float))
	}
	if !(t.portable <= t.bound.portable) {
		wrong = append(wrong, fmt.Sprintf("%.2g from the uncompiled model in another engine, want at most %.2g",
			t.portable, t.bound.portable))
	}
	if len(wrong) == 0 {
		return nil
	}
	return diag.New(diag.ClassRun, "executed by the emulator it differs by a relative error of %s",
		strings.Join(wrong, ", and "))
}

// values returns the outputs as numbers; quantised rows as what they stand for.
func (s *sample) values(graph *op.Graph, out [][]byte) [][]float32 {
	scale := map[string]string{} // by the output of codes, the one of their scales
	for _, node := range graph.Nodes {
		if node.Op.Kind == op.QuantRows {
			scale[node.Out[0]] = node.Out[1]
		}
	}
	at := map[string]int{}
	for i, value := range graph.Outputs {
		at[value.Name] = i
	}
	results := make([][]float32, len(out))
	for i, value := range graph.Outputs {
		if value.Type != op.U8 {
			results[i] = number.Floats(out[i])
			continue
		}
		of, ok := at[scale[value.Name]]
		if !ok || len(out[of]) < 4*value.Rows || len(out[i]) < value.Rows*value.Cols {
			continue // a length that judge refuses
		}
		steps := number.Floats(out[of])
		for row := range value.Rows {
			for col := range value.Cols {
				results[i] = append(results[i], float32(int(out[i][row*value.Cols+col])-128)*steps[row])
			}
		}
	}
	return results
}

// relative returns the Euclidean norm of a-b over that of b; infinite for what is no number.
func relative(a, b []float32) float64 {
	var diff, size float64
	for i := range a {
		off := float64(a[i]) - float64(b[i])
		diff += float64(off * off)
		size += float64(float64(b[i]) * float64(b[i]))
	}
	ratio := math.Sqrt(diff / max(size, math.SmallestNonzeroFloat64))
	if math.IsNaN(ratio) {
		return math.Inf(1)
	}
	return ratio
}
