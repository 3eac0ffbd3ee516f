// Package selftest knows how to find out whether a processor computes what a plan's kernels should compute: inputs that
// follow from a graph alone, a digest of what the reference makes of them, and the comparison.
//
// Compilers and drivers of vendors get single kernels wrong. A bundle carries one case for each distinct graph of its
// plan; the runtime executes all of them once on a device before it uses that.
//
// Three ideas keep a case small and quick. Inputs are pseudo-random numbers seeded by the graph, so that none are
// stored. Rows of inputs repeat with a prime period that no tile has, so that the reference computes Period rows and
// all rows of the device are compared with them. And an output is stored as a sketch: sums with random signs of its
// runs of neighbouring values and of its values at equal distances, from which an error in any block shows (Sketch).
package selftest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

// schema identifies the format.
const schema = "hetc.selftest/1"

// Period is how many rows of the inputs differ. It is prime: a processor that confuses rows at a distance of its tile
// takes a row of other numbers.
const Period = 17

// Test is the self-test of one plan.
type Test struct {
	Schema string `json:"schema"`
	Plan   string `json:"plan"` // digest
	Cases  []Case `json:"cases"`
}

// Case is one graph of the plan with what the reference computes of its inputs.
type Case struct {
	Graph      string    `json:"graph"`      // name in the plan's program
	Amplitudes []float32 `json:"amplitudes"` // of the graph's inputs: the magnitude that none exceeds
	Tolerance  float64   `json:"tolerance"`  // how far results may lie apart, see Sketch.Compare
	Results    []Sketch  `json:"results"`    // of the graph's outputs, then of the rows of the cache that it writes
}

// Target is a graph that is tested: the first of its kind on its processor, as the first step executes it that does.
type Target struct {
	Graph *planir.Graph
	Step  *planir.Step
	Layer int // whose weights are used: the first of the step's section
}

// Tested reports whether the graphs of a processor are tested. The host's kernels are the reference, and a simulation
// computes with them. Kernels of the host that the SoC file names are tested: hetc would not choose them by itself, and
// they may never have run on a CPU like this one.
func Tested(proc *planir.Proc) bool {
	switch proc.Driver {
	case "sim":
		return false
	case "host":
		return proc.Options["kernels"] != ""
	}
	return true
}

// Targets lists what is tested of a plan, in the order of its graphs: one of those that differ in weights and names
// only.
func Targets(plan *planir.Plan) []Target {
	first := map[string]Target{} // by graph
	for _, phase := range plan.Program.All() {
		for i := range phase.Sections {
			section := &phase.Sections[i]
			for _, lane := range section.Lanes {
				for j := range lane.Steps {
					step := &lane.Steps[j]
					if _, known := first[step.Run]; !known {
						first[step.Run] = Target{Step: step, Layer: section.First}
					}
				}
			}
		}
	}
	var out []Target
	seen := map[string]bool{}
	for i := range plan.Program.Graphs {
		graph := &plan.Program.Graphs[i]
		target, used := first[graph.Name]
		if !used || !Tested(plan.Proc(graph.Proc)) || seen[classOf(graph)] {
			continue
		}
		seen[classOf(graph)] = true
		target.Graph = graph
		out = append(out, target)
	}
	return out
}

// classOf returns a key that is equal for graphs of equal structure, shapes, schemes and forms on one processor.
func classOf(graph *planir.Graph) string { return graph.Proc + "\x00" + string(textOf(&graph.Graph)) }

// textOf returns the canonical text of a graph.
func textOf(graph *op.Graph) []byte {
	text, err := json.Marshal(graph)
	if err != nil {
		panic("BUG: a valid graph does not encode: " + err.Error())
	}
	return text
}

// Tolerances, relative to the norm of a block. Two right executions differ by the order of additions; where activations
// are rounded on the way, a value between two steps may take either one; and sums with random signs spread as a normal
// distribution does, so that the largest of a thousand is 3.5 times the usual one. What is wrong is far beyond: a
// product that loses 32 of 2048 rows is off by 0.12, one whose columns are exchanged by 1.4.
const (
	floatTolerance = 3e-4
	cacheTolerance = 2e-3 // a cache in half precision
	halfTolerance  = 5e-3 // everything that is computed in half precision
	rowsTolerance  = 1e-2 // rows rounded to 8 bits
	brainTolerance = 1e-2 // attention in bfloat16, whose weights are rounded relative to what each driver chooses
	// rows rounded to 8 bits once more per block of the weight, as some libraries do, see driver.Capabilities.Rerounds
	blockTolerance = 4e-2
	// 8-bit rows in a vendor's integer arithmetic (emit/agreement.go measured 1.1e-2 in the Euclidean norm)
	compiledTolerance = 5e-2
	// The same where the graph rounds what it has computed in half precision: one of a thousand values takes another
	// step, a few of a row of 768, and of values that are a step or two each is 1/20 of the norm (7.1e-2 measured).
	roundedTolerance = 1e-1
)

// ToleranceOf is that of a graph: that of each of its products, and of everything else where there are none. inArtifact
// says that a vendor's compiler made its artifact with the weights, in arithmetic of the vendor's own.
func ToleranceOf(graph *op.Graph, inArtifact bool) float64 {
	total, other := 0.0, floatTolerance
	if inArtifact {
		other = halfTolerance
	}
	rounds := slices.ContainsFunc(graph.Nodes, func(node op.Node) bool { return node.Op.Kind == op.QuantRows })
	for _, node := range graph.Nodes {
		scheme := node.Op.Scheme
		switch {
		case node.Op.Kind == op.QuantRows:
			other = max(other, rowsTolerance)
		case node.Op.Kind.Has("kv") && node.Op.KV == op.BF16:
			other = max(other, brainTolerance)
		case node.Op.Kind.Has("kv") && node.Op.KV != op.F32:
			other = max(other, cacheTolerance)
		case !node.Op.HasScheme():
		case scheme.QuantisedRows() && inArtifact && rounds:
			total += roundedTolerance
		case scheme.QuantisedRows() && inArtifact:
			total += compiledTolerance
		case scheme.QuantisedRows() && scheme.BlockK() > 1:
			total += blockTolerance
		case scheme.QuantisedRows():
			total += rowsTolerance
		case scheme.RoundsResults():
			total += halfTolerance
		default:
			total += floatTolerance
		}
	}
	return max(total, other)
}

// Encode writes a test.
func Encode(test *Test) ([]byte, error) {
	out := *test
	out.Schema = schema
	return json.Marshal(&out)
}

// Decode reads the test of a plan. What is not in canonical form, of another plan, or does not have one case for each
// target with results in the graph's shapes is refused with class ClassInput.
func Decode(data []byte, plan *planir.Plan) (*Test, error) {
	refuse := func(format string, args ...any) (*Test, error) {
		return nil, diag.New(diag.ClassInput, "read the self-test: "+format, args...).WithHint("emit the bundle again")
	}
	test := new(Test)
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(test); err != nil {
		return refuse("%w", err)
	}
	if test.Schema != schema {
		return refuse("schema is %q, want %q", test.Schema, schema)
	}
	if again, err := json.Marshal(test); err != nil || !bytes.Equal(again, data) {
		return refuse("it is not in canonical form")
	}
	digest, err := planir.Digest(plan)
	if err != nil {
		return nil, err
	}
	if test.Plan != digest {
		return refuse("it is of the plan with digest %.12s, and this one has %.12s", test.Plan, digest)
	}
	targets := Targets(plan)
	if len(test.Cases) != len(targets) {
		return refuse("%d cases, want %d: one for each distinct graph", len(test.Cases), len(targets))
	}
	for i := range test.Cases {
		if err := test.Cases[i].check(plan, &targets[i]); err != nil {
			return refuse("case %d: %w", i, err)
		}
	}
	return test, nil
}

// check compares a case with the graph that it is of.
func (c *Case) check(plan *planir.Plan, target *Target) error {
	if c.Graph != target.Graph.Name {
		return fmt.Errorf("graph %q, want %q", c.Graph, target.Graph.Name)
	}
	if len(c.Amplitudes) != len(target.Graph.Graph.Inputs) {
		return fmt.Errorf("%d amplitudes, want %d", len(c.Amplitudes), len(target.Graph.Graph.Inputs))
	}
	for _, amplitude := range c.Amplitudes {
		if !(amplitude > 0) || math.IsInf(float64(amplitude), 0) {
			return fmt.Errorf("amplitude %v, want a positive number", amplitude)
		}
	}
	if !(c.Tolerance > 0 && c.Tolerance < 1) {
		return fmt.Errorf("tolerance %v, want one between 0 and 1", c.Tolerance)
	}
	shapes := NewCall(plan, target).shapes()
	if len(c.Results) != len(shapes) {
		return fmt.Errorf("%d results, want %d", len(c.Results), len(shapes))
	}
	for i := range c.Results {
		if err := c.Results[i].check(shapes[i]); err != nil {
			return fmt.Errorf("result %d: %w", i, err)
		}
	}
	return nil
}

// operatorOf returns the operator that computes an output, for messages.
func operatorOf(graph *op.Graph, output string) string {
	for _, node := range slices.Backward(graph.Nodes) {
		if slices.Contains(node.Out, output) {
			return node.Op.Key()
		}
	}
	for _, node := range graph.Nodes { // what is compared beside the outputs is what KVAppend writes
		if node.Op.Kind == op.KVAppend {
			return node.Op.Key()
		}
	}
	return graph.Nodes[0].Op.Key()
}
