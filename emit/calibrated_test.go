package emit

import (
	"bytes"
	"context"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/require"

	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// demo is the model of the tests.
const demo = "../testdata/models/tiny-llama-kjv"

// openModel opens a model that is closed after the test.
func openModel(t *testing.T, dir string) *models.Model {
	t.Helper()
	m, err := models.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// calibrate makes up a calibration of a model: mean squares and directions that differ by channel, and two folds.
func calibrate(t *testing.T, m *models.Model, rank int) *calibration.Calibration {
	t.Helper()
	digest, err := m.Digest()
	if err != nil {
		t.Fatal(err)
	}
	cal := &calibration.Calibration{
		Schema: calibration.Schema,
		Model:  calibration.Model{Name: m.Name, Digest: digest},
		Text:   calibration.Text{SHA256: digest, Tokens: 16, Windows: 2, WindowTokens: 8},
	}
	g := m.Graph()
	for _, section := range g.Sections {
		for _, node := range section.Nodes {
			if !node.Ops[0].HasScheme() {
				continue
			}
			for layer := section.First; layer < section.First+max(1, section.Layers); layer++ {
				a := activation(section.Name+"."+node.Name, layer, node.Ops[0].K, rank)
				cal.Activations = append(cal.Activations, a)
			}
		}
	}
	for _, group := range g.Folds()[1:3] {
		fold := calibration.Fold{Group: group.Name, Layer: 1}
		for k := range group.K {
			fold.Factors = append(fold.Factors, float32(1+k%4)/2)
		}
		cal.Folds = append(cal.Folds, fold)
	}
	if err := cal.Validate(); err != nil {
		t.Fatal(err)
	}
	return cal
}

// activation makes up what enters a product, with as many directions as the rank is.
func activation(class string, layer, k, rank int) calibration.Activation {
	a := calibration.Activation{Class: class, Layer: layer, K: k, Rows: 16}
	directions := make([]float32, k*rank)
	for i := range k {
		x := float32(1+(i*7+layer)%13) / 4
		a.AbsMax, a.MeanSquare = append(a.AbsMax, 4*x), append(a.MeanSquare, x*x)
		for r := range rank {
			directions[i*rank+r] = x * float32((i*(r+3)+layer)%5-2) / float32(2*rank)
		}
	}
	a.Summarise()
	for i := range a.Outliers {
		a.Outliers[i].Share = 0.5
	}
	a.Directions = directions
	a.Directions.Round()
	return a
}

// processor is a CPU with one core that executes every scheme.
func processor(name string, core int) planir.Proc {
	p := planir.Proc{
		Name:   name,
		Kind:   "cpu",
		Driver: "host",
		Select: "0",
		Cores:  []int{core},
		Set: capability.Set{
			Tile:          capability.Tile{K: pack.BlockK, N: pack.TileN},
			Schemes:       op.Schemes,
			Layouts:       map[string]string{},
			DynamicRows:   true,
			StridedInput:  true,
			StridedOutput: true,
			WeightRanges:  true,
		},
	}
	for _, scheme := range op.Schemes {
		p.Layouts[scheme.Weight()] = pack.N32
	}
	return p
}

// trivial decides that processor "a" executes everything in one scheme.
func trivial(t *testing.T, g *models.Graph, scheme op.Scheme, tiers ...planir.ExpertTiers) []planir.Decision {
	t.Helper()
	all := func(string, int) op.Scheme { return scheme }
	decisions, err := lower.Trivial(g, "a", []int{1, 16}, 32, op.F32, all, tiers...)
	if err != nil {
		t.Fatal(err)
	}
	return decisions
}

// divide divides a product over two processors, in both tiers of rows.
func divide(p *planir.Plan, node string, axis planir.Axis, strategy planir.Strategy, at, end int) {
	for _, rows := range []int{1, 16} {
		d := p.DecisionFor(node, rows)
		d.Axis, d.Strategy = axis, strategy
		d.Shares = []planir.Share{{Proc: "a", To: at}, {Proc: "b", From: at, To: end}}
	}
}

// planOf is a plan on one processor, or with the down projection divided along K over two.
func planOf(t *testing.T, m *models.Model, cal *calibration.Calibration, scheme op.Scheme, divided bool) *planir.Plan {
	t.Helper()
	digest, err := m.Digest()
	if err != nil {
		t.Fatal(err)
	}
	g := m.Graph()
	p := &planir.Plan{
		Schema:     planir.Schema,
		Model:      planir.ModelRef{Name: m.Name, Digest: digest},
		SoC:        planir.SoCRef{Name: "test", Control: "a"},
		MaxContext: 32,
		KV:         op.F32,
		Procs:      []planir.Proc{processor("a", 0), processor("b", 1)},
		Decisions:  trivial(t, &g, scheme),
	}
	if cal != nil {
		digest, err := cal.Digest()
		if err != nil {
			t.Fatal(err)
		}
		p.Inputs, p.Folds = []planir.Input{{Kind: planir.CalibrationInput, Digest: digest}}, cal.Groups()
	}
	if divided {
		divide(p, "layers.ffn_down", planir.AxisK, planir.Paired, 256, m.FFN)
	}
	lowered(t, p, &g)
	return p
}

// lowered makes the program of a plan, and checks it.
func lowered(t *testing.T, p *planir.Plan, g *models.Graph) {
	t.Helper()
	if err := lower.Lower(p, g); err != nil {
		t.Fatal(err)
	}
	if err := planir.Check(p).Err(); err != nil {
		t.Fatal(err)
	}
}

// contentOf is what a bundle of a plan holds.
func contentOf(t *testing.T, p *planir.Plan, m *models.Model, cal *calibration.Calibration) *Content {
	t.Helper()
	c, err := NewCalibrated(context.Background(), p, m, cal, []driver.Compiler{hostcompiler.New()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// packs calls visit for every pack of the plan's weights.
func packs(c *Content, visit func(at planir.Placement)) {
	for _, blob := range c.plan.Program.WeightBlobs() {
		for _, at := range blob.Packs {
			visit(at)
		}
	}
}

// scales calls visit for every pack of static scales.
func scales(c *Content, visit func(at planir.Placement, scale *op.Weight)) {
	packs(c, func(at planir.Placement) {
		if weight := c.weight(at); weight.ScaleOf != "" {
			visit(at, weight)
		}
	})
}

// unpacked returns the values of a pack.
func unpacked(t *testing.T, c *Content, at planir.Placement) []float32 {
	t.Helper()
	data, err := c.packedWeight(at)
	if err != nil {
		t.Fatal(err)
	}
	spec := at.Pack.Spec()
	values := make([]float32, spec.K*spec.N)
	if err := pack.Unpack(values, spec, data); err != nil {
		t.Fatal(err)
	}
	return values
}

// packedBytes is every blob, one behind the other.
func packedBytes(t *testing.T, c *Content) []byte {
	t.Helper()
	var out bytes.Buffer
	for _, b := range c.plan.Program.WeightBlobs() {
		if err := c.writeBlob(&out, b); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

// A calibration changes the bytes of weights, and the number of cores does not.
func TestCalibratedIsDeterministic(t *testing.T) {
	require.Slow(t)
	m := openModel(t, demo)
	cal := calibrate(t, m, 3)
	for _, scheme := range []op.Scheme{op.A8TQ4B32, op.A8TQ6C} {
		p := planOf(t, m, cal, scheme, false)
		plain := packedBytes(t, contentOf(t, planOf(t, m, nil, scheme, false), m, nil))
		onCores := func(cores int) []byte {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(cores))
			return packedBytes(t, contentOf(t, p, m, cal))
		}

		first := onCores(1)
		for _, cores := range []int{2, 3} {
			if !bytes.Equal(onCores(cores), first) {
				t.Errorf("%s: bytes differ with %d cores", scheme, cores)
			}
		}
		if len(plain) != len(first) || bytes.Equal(plain, first) {
			t.Errorf("%s: %d bytes with a calibration and %d without, equal: %v", scheme, len(first), len(plain),
				bytes.Equal(plain, first))
		}
	}
}

// A weight that is divided along K has the values of the whole.
func TestCalibratedShares(t *testing.T) {
	m := openModel(t, demo)
	cal := calibrate(t, m, 3)
	values := func(divided bool) (out []float32) {
		c := contentOf(t, planOf(t, m, cal, op.A8TQ4B32, divided), m, cal)
		packs(c, func(at planir.Placement) {
			if at.Pack.Weight == "layers.ffn_down" && at.Layer == 1 {
				out = append(out, unpacked(t, c, at)...)
			}
		})
		return out
	}
	whole := values(false)
	if len(whole) != m.FFN*m.Hidden || !slices.Equal(whole, values(true)) {
		t.Errorf("%d values, and others when divided", len(whole))
	}
}

// Contents share packed weights only where both pack the same.
func TestCalibratedSharesMemory(t *testing.T) {
	m := openModel(t, demo)
	cal := calibrate(t, m, 0)
	for _, c := range []struct {
		scheme op.Scheme
		weight string
		shared bool
	}{
		{scheme: op.A32W32, weight: "layers.qkv", shared: true},
		{scheme: op.A32W32, weight: "layers.ffn_gate_up", shared: false},
		{scheme: op.A32W32, weight: "layers.ffn_norm", shared: false},
		{scheme: op.A8TQ8C, weight: "layers.qkv", shared: true},
		{scheme: op.A8TQ4B32, weight: "layers.qkv", shared: false},
		{scheme: op.A8TQ4B32, weight: "layers.attn_norm", shared: true},
	} {
		plain := contentOf(t, planOf(t, m, nil, c.scheme, false), m, nil)
		calibrated := contentOf(t, planOf(t, m, cal, c.scheme, false), m, cal)

		calibrated.ShareWith(plain)
		packs(calibrated, func(at planir.Placement) {
			if at.Pack.Weight != c.weight || max(0, at.Layer) != 1 {
				return
			}
			if _, err := calibrated.packedWeight(at); err != nil {
				t.Fatal(err)
			}
		})

		shared := len(plain.inMemory) == 1 && len(calibrated.inMemory) == 0
		if shared != c.shared {
			t.Errorf("%s in %s: shared %v, want %v", c.weight, c.scheme, shared, c.shared)
		}
	}
}

// folded is the largest value that enters a product after what is folded into the operator before it.
func folded(cal *calibration.Calibration, a *calibration.Activation, group string) (largest float32) {
	fold := cal.Fold(group, a.Layer)
	for i, v := range a.AbsMax {
		if fold != nil {
			v /= fold.Factors[i]
		}
		largest = max(largest, v)
	}
	return largest
}

// off is how far a value is from what is wanted, as a share of it.
func off(got, want float32) float64 {
	return math.Abs(float64(got/want) - 1)
}

// Static scales are what the calibration saw, divided by what is folded and clipped. They are the same whether a
// product is divided or not.
func TestStaticScales(t *testing.T) {
	m := openModel(t, demo)
	cal := calibrate(t, m, 3)
	cal.Clips = []calibration.Clip{{Class: "layers.ffn_down", Share: 0.5}}
	for _, divided := range []bool{false, true} {
		c := contentOf(t, planOf(t, m, cal, op.A8SQ8C, divided), m, cal)
		found := 0
		scales(c, func(at planir.Placement, w *op.Weight) {
			found++
			want := folded(cal, cal.Activation(w.ScaleOf, max(0, at.Layer)), w.FoldRows) / 127
			if w.ScaleOf == "layers.ffn_down" {
				want /= 2
			}
			if got := unpacked(t, c, at); len(got) != 1 || off(got[0], want) > 1e-6 {
				t.Errorf("scale of %q in layer %d is %v, want %v", w.ScaleOf, at.Layer, got, want)
			}
		})
		if want := 4*m.Layers + 1; found != want {
			t.Errorf("%d static scales, want %d", found, want)
		}
	}
}

// withResults adds to a calibration the largest values of what products give, which differ by column.
func withResults(cal *calibration.Calibration, g *models.Graph) {
	columns := map[string]int{}
	for _, section := range g.Sections {
		for _, node := range section.Nodes {
			if len(node.W) > 0 {
				columns[section.Name+"."+node.Name] = g.Weight(node.W[0]).N
			}
		}
	}
	for i := range cal.Activations {
		a := &cal.Activations[i]
		for j := range columns[a.Class] {
			a.OutMax = append(a.OutMax, float32(1+(j*7+i)%50))
		}
	}
}

// largestResult is the largest value that a product gives, after what is folded into its columns. Gate and up
// projection lie in turn, a block of each, and one of them is folded.
func largestResult(a *calibration.Activation, fold *calibration.Fold, source, width int) (largest float32) {
	for j, v := range a.OutMax {
		block := j / width
		if fold != nil && block%2 == source {
			v /= fold.Factors[block/2*width+j%width]
		}
		largest = max(largest, v)
	}
	return largest
}

// Steps of grids of 16 bits hold twice what the calibration saw after folding, and every share of a product has the
// steps of its columns.
func TestSteps(t *testing.T) {
	m := openModel(t, demo)
	cal := calibrate(t, m, 3)
	g := m.Graph()
	withResults(cal, &g)
	width := g.Weight("layers.ffn_gate_up").Interleave[0]
	for _, divided := range []bool{false, true} {
		p := planOf(t, m, cal, op.A16SQ8C, false)
		products := 4*m.Layers + 1
		if divided {
			divide(p, "layers.ffn_gate_up", planir.AxisCols, planir.WeightCentric, 256, 2*m.FFN)
			lowered(t, p, &g)
			products += m.Layers
		}
		c := contentOf(t, p, m, cal)
		found, foldedColumns := 0, 0
		scales(c, func(at planir.Placement, w *op.Weight) {
			found++
			layer := max(0, at.Layer)
			a, columns := cal.Activation(w.ScaleOf, layer), cal.Fold(w.FoldCols, layer)
			if columns != nil {
				foldedColumns++
			}
			in := 2 * folded(cal, a, w.FoldRows) / 32767
			out := 2 * largestResult(a, columns, w.FoldSource, width) / 32767

			got := unpacked(t, c, at)
			n := at.Pack.N1 - at.Pack.N0
			want := slices.Concat(slices.Repeat([]float32{in}, n), slices.Repeat([]float32{out}, n))
			if len(got) != len(want) {
				t.Fatalf("%d steps of %q, want %d", len(got), w.ScaleOf, len(want))
			}
			for i := range got {
				if off(got[i], want[i]) > 1e-6 {
					t.Fatalf("step %d of %q in layer %d is %v, want %v", i, w.ScaleOf, layer, got[i], want[i])
				}
			}
		})
		if found != products {
			t.Errorf("%d steps, want %d", found, products)
		}
		if foldedColumns == 0 {
			t.Error("nothing was folded behind a product")
		}
	}
}

// A product on a grid is not divided along K: the parts of its sums leave the grid.
func TestStepsAlongK(t *testing.T) {
	m := openModel(t, demo)
	cal := calibrate(t, m, 3)
	g := m.Graph()
	withResults(cal, &g)
	p := planOf(t, m, cal, op.A16SQ8C, false)
	divide(p, "layers.ffn_down", planir.AxisK, planir.Paired, 256, m.FFN)

	err := lower.Lower(p, &g)

	if err == nil || !strings.Contains(err.Error(), `scheme "a16s/q8c" cannot be divided along "k"`) {
		t.Errorf("got %v, want a refusal", err)
	}
}

// A calibration that is missing, or is not of the plan or of the model, is an error of input.
func TestCalibrationRefused(t *testing.T) {
	m := openModel(t, demo)
	cal, other := calibrate(t, m, 0), calibrate(t, m, 1)
	short := calibrate(t, m, 0)
	short.Folds[0].Factors = short.Folds[0].Factors[:7]
	narrow := calibrate(t, m, 0)
	first := &narrow.Activations[0]
	first.AbsMax, first.MeanSquare, first.K = first.AbsMax[:9], first.MeanSquare[:9], 9
	foreign := calibrate(t, m, 0)
	foreign.Model.Digest = strings.Repeat("0", 64)
	silent := calibrate(t, m, 0)
	silent.Activations = slices.DeleteFunc(silent.Activations, func(a calibration.Activation) bool {
		return a.Class == "layers.ffn_down" && a.Layer == 2
	})
	for _, c := range []struct {
		name        string
		scheme      op.Scheme
		with, given *calibration.Calibration // of the plan, and of the bundle
		want        string
	}{
		{
			name:   "no results",
			scheme: op.A16SQ4C,
			with:   other,
			given:  other,
			want:   `computes in layer 0, and steps of its results are wanted`,
		},
		{
			name:   "no range",
			scheme: op.A8SQ8C,
			with:   silent,
			given:  silent,
			want:   `"layers.ffn_down" in layer 2, whose static scale`,
		},
		{name: "missing", scheme: op.A8TQ4B32, with: cal, given: nil, want: "none is given"},
		{name: "not needed", scheme: op.A8TQ4B32, with: nil, given: cal, want: "without one"},
		{name: "another", scheme: op.A8TQ4B32, with: cal, given: other, want: "want "},
		{name: "of another model", scheme: op.A8TQ4B32, with: foreign, given: foreign, want: "000000000000"},
		{name: "factors", scheme: op.A8TQ4B32, with: short, given: short, want: "7 factors in layer 1, want 256"},
		{name: "channels", scheme: op.A8TQ4B32, with: narrow, given: narrow, want: "9 channels in layer 0, want 256"},
	} {
		err := writeAll(planOf(t, m, c.with, c.scheme, false), m, c.given)
		if err == nil || !strings.Contains(err.Error(), c.want) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// writeAll packs every weight of a plan.
func writeAll(p *planir.Plan, m *models.Model, cal *calibration.Calibration) error {
	c, err := NewCalibrated(context.Background(), p, m, cal, []driver.Compiler{hostcompiler.New()})
	if err != nil {
		return err
	}
	for _, blob := range p.Program.WeightBlobs() {
		if err := c.writeBlob(io.Discard, blob); err != nil {
			return err
		}
	}
	return nil
}

// Several static scales are packed as the calibration has them.
func TestSeveralStaticScales(t *testing.T) {
	m := openModel(t, demo)
	cal := calibrate(t, m, 3)
	for i := range cal.Activations {
		a := &cal.Activations[i]
		top := a.StaticScale(nil, 1)
		for _, values := range [][]float32{{top / 4, top}, {1, 2, 3, 4}} {
			cal.Scales = append(cal.Scales, calibration.Scales{Class: a.Class, Layer: a.Layer, Values: values})
		}
	}
	if err := cal.Validate(); err != nil {
		t.Fatal(err)
	}
	c := contentOf(t, planOf(t, m, cal, op.A8S2Q8C, true), m, cal)

	found := 0
	scales(c, func(at planir.Placement, w *op.Weight) {
		found++
		want := cal.RowScales(w.ScaleOf, max(0, at.Layer), 2)
		if got := unpacked(t, c, at); !slices.Equal(got, want) {
			t.Errorf("%s in layer %d: %v, want %v", w.Name, at.Layer, got, want)
		}
	})
	if found == 0 {
		t.Error("no scales were found")
	}
}

// A calibration without several static scales is refused where the plan wants them, with what to do.
func TestSeveralStaticScalesMissing(t *testing.T) {
	m := openModel(t, demo)
	cal := calibrate(t, m, 3)
	c := contentOf(t, planOf(t, m, cal, op.A8S2Q8C, true), m, cal)

	found := 0
	scales(c, func(at planir.Placement, _ *op.Weight) {
		found++
		_, err := c.packedWeight(at)
		if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "2 static scales of what enters") {
			t.Fatalf("got %v, want a refusal", err)
		}
		if hints := diag.HintsOf(err); len(hints) != 1 || !strings.Contains(hints[0], "--schemes a8s2/q8c") {
			t.Fatalf("hints %q of %v", hints, err)
		}
	})
	if found == 0 {
		t.Error("no scales were found")
	}
}
