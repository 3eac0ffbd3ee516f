package executor_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/emit"
	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/models/safetensors"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
)

// Trained models with the results of another implementation beside them.
const (
	demo    = "../../testdata/models/tiny-llama-kjv"
	experts = "../../testdata/models/tiny-moe-kjv"
)

// open is the demo model.
func open(t *testing.T) *models.Model { return openDir(t, demo) }

// openDir is the model of a folder, closed with the test.
func openDir(t *testing.T, dir string) *models.Model {
	t.Helper()
	m, err := models.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// cores returns the selectors of two single-core host processors, or skips.
func cores(t testing.TB) (string, string) {
	t.Helper()
	devices, err := host.New().Devices(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var single []string
	for _, d := range devices {
		if len(d.Cores) == 1 {
			single = append(single, d.Select)
		}
	}
	if len(single) < 2 {
		t.Skipf("needs two cores to run two lanes, this process may use %d", len(single))
	}
	return single[0], single[1]
}

// proc is a processor of the host on the selected cores, with the named kernels or the best.
func proc(name, sel, kernels string) planir.Proc {
	p := planir.Proc{
		Name: name, Kind: "cpu", Driver: "host", Select: sel,
		Set: capability.Set{
			Tile:        capability.Tile{K: pack.BlockK, N: pack.TileN},
			Schemes:     op.Schemes,
			Layouts:     map[string]string{},
			DynamicRows: true, StridedInput: true, StridedOutput: true, WeightRanges: true,
		},
	}
	for _, weight := range []string{"q4b128", "q4b32", "q4c", "q6c", "q8c", "w16", "w32"} {
		p.Layouts[weight] = pack.N32
	}
	for _, c := range sel {
		if c >= '0' && c <= '9' {
			p.Cores = append(p.Cores, int(c-'0'))
		}
	}
	if kernels != "" {
		p.Options = map[string]string{"kernels": kernels}
	}
	return p
}

// divide spreads a decision over processors a and b along an axis, at a granular middle.
func divide(d *planir.Decision, axis planir.Axis, length, unit int) {
	if length < 2*unit {
		return
	}
	middle := length / 2 / unit * unit
	d.Axis = axis
	d.Strategy = map[planir.Axis]planir.Strategy{
		planir.AxisCols:  planir.WeightCentric,
		planir.AxisHeads: planir.WeightCentric,
		planir.AxisRows:  planir.ActivationDivide,
		planir.AxisK:     planir.Paired,
	}[axis]
	d.Shares = []planir.Share{{Proc: "a", To: middle}, {Proc: "b", From: middle, To: length}}
}

// layoutOf changes the decision of a node: who computes which part of it.
type layoutOf func(d *planir.Decision, n *lower.Node)

// bySingle leaves all to the first processor.
func bySingle(*planir.Decision, *lower.Node) {}

// byColumns divides columns of products and of what follows them, and heads of attention.
func byColumns(d *planir.Decision, n *lower.Node) {
	switch o := n.Op(); o.Kind {
	case op.MatMul, op.ExpertMatMul:
		divide(d, planir.AxisCols, o.N, pack.TileN)
	case op.GLU:
		divide(d, planir.AxisCols, o.N, o.Interleave)
	case op.Combine, op.Activate, op.Gate, op.Softcap, op.Clip:
		divide(d, planir.AxisCols, o.N, pack.TileN)
	case op.Add:
		divide(d, planir.AxisCols, o.N, 1)
	case op.Attention:
		divide(d, planir.AxisHeads, o.KVHeads, 1)
	}
}

// byRows divides the rows of all operators but attention, whose heads it divides.
func byRows(d *planir.Decision, n *lower.Node) {
	switch o := n.Op(); o.Kind {
	case op.Attention:
		divide(d, planir.AxisHeads, o.KVHeads, 1)
	case op.SelectRow:
	default:
		divide(d, planir.AxisRows, o.M, 1)
	}
}

// byPairs divides as byColumns does, but K of the products that end a block, whose partial sums are added.
func byPairs(d *planir.Decision, n *lower.Node) {
	endsBlock := strings.HasSuffix(n.Name, "attn_out") || strings.HasSuffix(n.Name, "ffn_down")
	if o := n.Op(); o.Kind == op.MatMul && endsBlock {
		divide(d, planir.AxisK, o.K, pack.BlockK)
		return
	}
	byColumns(d, n)
}

// swapped gives the second processor the first part and control to the other lane.
func swapped(d *planir.Decision, n *lower.Node) {
	byPairs(d, n)
	for i := range d.Shares {
		d.Shares[i].Proc = map[string]string{"a": "b", "b": "a"}[d.Shares[i].Proc]
	}
}

// pairOn are processors a and b of the host on one core each.
func pairOn(first, second string) []planir.Proc {
	return []planir.Proc{proc("a", first, ""), proc("b", second, "")}
}

// singleOn is processor a of the host on these cores.
func singleOn(sel string) []planir.Proc { return []planir.Proc{proc("a", sel, "")} }

// planSpec says what a plan of a test is to be. Its first processor controls.
type planSpec struct {
	procs   []planir.Proc
	rows    []int // of the programs
	context int
	scheme  op.Scheme // of all products
	layout  layoutOf  // divides operators among several processors; nil: the first one has all
	tiers   []planir.ExpertTiers
}

// makePlan is a checked plan for the model.
func makePlan(t testing.TB, m *models.Model, spec planSpec) *planir.Plan {
	t.Helper()
	digest, err := m.Digest()
	if err != nil {
		t.Fatal(err)
	}
	control := spec.procs[0].Name
	p := &planir.Plan{
		Schema:     planir.Schema,
		Model:      planir.ModelRef{Name: m.Name, Digest: digest, BOS: m.BOS, EOS: m.EOS},
		SoC:        planir.SoCRef{Name: "test", Control: control},
		MaxContext: spec.context,
		KV:         op.F32,
		Procs:      spec.procs,
		Experts:    spec.tiers,
	}
	if spec.scheme.Static() { // the calibration comes later
		p.Inputs = []planir.Input{{Kind: planir.CalibrationInput, Digest: digest}}
	}

	g := m.Graph()
	schemeOf := spec.schemes(m)
	ofNode := func(node string, _ int) op.Scheme { return schemeOf(node) }
	p.Decisions, err = lower.Trivial(&g, control, spec.rows, spec.context, op.F32, ofNode, spec.tiers...)
	if err != nil {
		t.Fatal(err)
	}
	if spec.layout != nil && len(spec.procs) > 1 {
		spec.divideAll(t, p, &g, schemeOf)
	}
	if err := lower.Lower(p, &g); err != nil {
		t.Fatal(err)
	}
	if list := planir.Check(p); list.Err() != nil {
		t.Fatal(list.Err())
	}
	return p
}

// schemes returns the scheme of every node. Where one matrix is both the embedding and the head, the embedding reads it
// as the head does.
func (s planSpec) schemes(m *models.Model) func(node string) op.Scheme {
	return func(node string) op.Scheme {
		if s.scheme.Weight() == op.I32Q8C.Weight() && m.Tied && node == "embed.embed" {
			return op.I32Q8C
		}
		return s.scheme
	}
}

// divideAll lets the layout change the decisions of all nodes.
func (s planSpec) divideAll(t testing.TB, p *planir.Plan, g *models.Graph, schemeOf func(node string) op.Scheme) {
	t.Helper()
	for _, rows := range s.rows {
		sections, err := lower.Expand(g, rows, s.context, op.F32, schemeOf, p.TiersOf(rows), p.Channels)
		if err != nil {
			t.Fatal(err)
		}
		for _, section := range sections {
			for _, node := range section.Nodes {
				if decision := p.DecisionFor(node.Name, rows); decision != nil {
					s.layout(decision, &node)
				}
			}
		}
	}
}

// machine opens a plan with drivers of the host, unless the options have others, and with more compilers than its own.
func machine(
	t testing.TB, m *models.Model, p *planir.Plan, o executor.Options, more ...driver.Compiler,
) *executor.Machine {
	t.Helper()
	return machineWith(t, m, p, nil, o, more...)
}

// machineWith is machine of a plan that was made with a calibration.
func machineWith(
	t testing.TB, m *models.Model, p *planir.Plan, cal *calibration.Calibration, o executor.Options,
	more ...driver.Compiler,
) *executor.Machine {
	t.Helper()
	c, err := emit.NewCalibrated(context.Background(), p, m, cal, append(more, hostcompiler.New()))
	if err != nil {
		t.Fatal(err)
	}

	if o.Drivers == nil {
		o.Drivers = []driver.Driver{host.New()}
	}
	x, err := executor.Open(context.Background(), p, c, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		x.Close()
		c.Close()
	})
	return x
}

// ref is a stored reference of the demo model.
func ref[T mem.Scalar](t *testing.T, name string) ([]T, []int) { return refOf[T](t, demo, name) }

// refOf is a stored reference of a model.
func refOf[T mem.Scalar](t *testing.T, dir, name string) ([]T, []int) {
	t.Helper()
	f, err := safetensors.Open(filepath.Join(dir, "reference.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x, ok := f.Tensor(name)
	if !ok {
		t.Fatalf("reference has no tensor %q", name)
	}
	v, err := mem.View[T](x.Data)
	if err != nil {
		t.Fatal(err)
	}
	return append([]T(nil), v...), x.Shape
}

// allLogits are those behind every token, computed in one call or in calls of so many tokens each.
func allLogits(t testing.TB, x *executor.Machine, ids []int32, pieces ...int) []float32 {
	t.Helper()
	x.Reset()
	var got []float32
	keep := func(_ int, logits []float32) error {
		got = append(got, logits...)
		return nil
	}
	err := x.Do(context.Background(), func(c *executor.Control) error {
		for at := 0; at < len(ids); {
			n := len(ids) - at
			if len(pieces) > 0 {
				n, pieces = min(n, pieces[0]), pieces[1:]
			}
			if _, err := c.Forward(ids[at:at+n], executor.WantAll, keep); err != nil {
				return err
			}
			at += n
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// maxDiff is the largest difference of two numbers of the same place: infinite for other lengths, and NaN is one.
func maxDiff(a, b []float32) float64 {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	d := 0.0
	for i := range a {
		if v := math.Abs(float64(a[i]) - float64(b[i])); !(v <= d) {
			d = v
		}
	}
	return d
}

// A trained mixture of experts gives the logits of another implementation, too.
func TestReferenceLogitsOfExperts(t *testing.T) {
	model := openDir(t, experts)
	first, second := cores(t)
	for _, c := range []struct {
		name   string
		procs  []planir.Proc
		layout layoutOf
	}{
		{name: "one core", procs: singleOn(first)},
		{name: "columns of two", procs: pairOn(first, second), layout: byColumns},
	} {
		x := machine(t, model, makePlan(t, model, planSpec{
			procs: c.procs, rows: []int{1, 64, 256}, context: 256, scheme: op.A32W32, layout: c.layout,
		}), executor.Options{})
		for i := range 4 {
			ids, _ := refOf[int32](t, experts, fmt.Sprintf("ids_%d", i))
			want, _ := refOf[float32](t, experts, fmt.Sprintf("logits_%d", i))
			for _, pieces := range [][]int{nil, {3, 1, 1, 40}} {
				if d := maxDiff(allLogits(t, x, ids, pieces...), want); d > 1e-3 {
					t.Errorf("%s: logits_%d in pieces of %v: differ by %.3g, want at most 1e-3", c.name, i, pieces, d)
				}
			}
		}
	}
}

// Every plan gives the logits and tokens that another implementation has computed.
func TestReferenceLogits(t *testing.T) {
	m := open(t)
	s0, s1 := cores(t)
	two := pairOn(s0, s1)
	for _, c := range []struct {
		name   string
		procs  []planir.Proc
		rows   []int
		layout layoutOf
		limit  float64
	}{
		{
			name:  "trivial plan on reference kernels",
			procs: []planir.Proc{proc("ref", s0, "reference")}, rows: []int{1, 64, 256}, limit: 1e-4,
		},
		{name: "fast kernels on one core", procs: singleOn(s0), rows: []int{1, 32, 256}, limit: 1e-3},
		{
			name:  "portable kernels on one core",
			procs: []planir.Proc{proc("a", s0, "portable")}, rows: []int{1, 48}, limit: 1e-3,
		},
		{name: "one processor of two cores", procs: singleOn(s0 + "-" + s1), rows: []int{1, 256}, limit: 1e-3},
		{name: "columns and heads", procs: two, rows: []int{1, 33, 256}, layout: byColumns, limit: 1e-3},
		{name: "rows", procs: two, rows: []int{1, 16, 200}, layout: byRows, limit: 1e-3},
		{name: "pairs: columns, then K", procs: two, rows: []int{1, 64, 256}, layout: byPairs, limit: 1e-3},
		{name: "pairs, other order", procs: two, rows: []int{1, 7, 64}, layout: swapped, limit: 1e-3},
		{name: "decode program only", procs: two, rows: []int{1}, layout: byPairs, limit: 1e-3},
	} {
		if raceEnabled && len(c.procs) == 1 && c.procs[0].Select == s0 {
			continue // one lane races with nobody
		}
		slow := c.procs[0].Options != nil // other kernels than the fastest, which drivertest compares with these
		if testing.Short() && slow {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			x := machine(t, m, makePlan(t, m, planSpec{
				procs: c.procs, rows: c.rows, context: 256, scheme: op.A32W32, layout: c.layout,
			}), executor.Options{})
			for i := range 4 {
				if (raceEnabled || slow) && i%3 != 0 || testing.Short() && i != 0 {
					continue
				}
				checkReference(t, x, i, c.limit)
			}
		})
	}
}

// checkReference compares logits, in one call and in several, and tokens with a stored reference.
func checkReference(t *testing.T, x *executor.Machine, number int, limit float64) {
	t.Helper()
	ids, _ := ref[int32](t, fmt.Sprintf("ids_%d", number))
	want, _ := ref[float32](t, fmt.Sprintf("logits_%d", number))
	d := maxDiff(allLogits(t, x, ids), want)
	t.Logf("logits_%d [%d tokens]: differ by %.2g", number, len(ids), d)
	if d > limit {
		t.Errorf("logits_%d: differ by %.3g, want at most %g", number, d, limit)
	}

	// The same tokens in uneven calls use other programs and the cache.
	if d := maxDiff(allLogits(t, x, ids, 3, 1, 1, 40), want); d > limit {
		t.Errorf("logits_%d in pieces: differ by %.3g, want at most %g", number, d, limit)
	}

	if number == 3 { // has no tokens
		return
	}
	x.Reset()
	tokens, _ := ref[int32](t, fmt.Sprintf("greedy_%d", number))
	g, err := x.Generate(context.Background(), ids, len(tokens), &executor.Sampler{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(g.Tokens, tokens) {
		t.Errorf("greedy_%d: got %v, want %v", number, g.Tokens, tokens)
	}
}

// Graphs with products and what surrounds them compute what their operators do one by one, bit for bit.
func TestFusedSteps(t *testing.T) {
	m := open(t)
	s0, s1 := cores(t)
	ids, _ := ref[int32](t, "ids_3")
	layouts := map[string]layoutOf{"single": bySingle, "columns": byColumns, "rows": byRows, "pairs": byPairs}
	for _, scheme := range []op.Scheme{op.A32W32, op.A8TQ8C} {
		if testing.Short() && scheme == op.A32W32 {
			continue
		}
		for name, layout := range layouts {
			run := func(fuses bool) (logits []float32, steps int) {
				procs := pairOn(s0, s1)
				for i := range procs {
					procs[i].Fuses = fuses
				}
				p := makePlan(t, m, planSpec{
					procs: procs, rows: []int{1, 64}, context: 256, scheme: scheme, layout: layout,
				})
				for _, section := range p.Program.Programs[1].Sections {
					for _, lane := range section.Lanes {
						steps += len(lane.Steps)
					}
				}
				return allLogits(t, machine(t, m, p, executor.Options{}), ids, 70, 1), steps
			}

			want, many := run(false)
			got, few := run(true)

			if d := maxDiff(got, want); d != 0 {
				t.Errorf("%s by %s: differs by %g, want equal bits", scheme, name, d)
			}
			if few > many || name == "single" && few == many {
				t.Errorf("%s by %s: %d steps instead of %d", scheme, name, few, many)
			}
		}
	}
}

// Quantised weights and activations hold the same values however the work is divided. By columns, heads and rows the
// results are equal bit for bit. Pairs add partial sums in another order, which moves single activations to the next
// quantisation step but costs no quality.
func TestSplitsOfQuantisedPlansAgree(t *testing.T) {
	require.Slow(t)
	m := open(t)
	s0, s1 := cores(t)
	ids, _ := ref[int32](t, "ids_3")
	want, _ := ref[float32](t, "logits_3")
	if raceEnabled {
		ids, want = ids[:70], want[:70*m.Vocab] // the graph of 64 rows, and six times that of one
	}
	limits := map[op.Scheme]float64{
		op.A32W16:    1e-5,
		op.A8TQ8C:    0.0015,
		op.A8TQ6C:    0.01,
		op.A8TQ4B32:  0.04,
		op.A8TQ4B128: 0.1,
	}
	for scheme, limit := range limits {
		run := func(procs []planir.Proc, layout layoutOf, ids []int32) []float32 {
			return allLogits(t, machine(t, m, makePlan(t, m, planSpec{
				procs: procs, rows: []int{1, 64}, context: 256, scheme: scheme, layout: layout,
			}), executor.Options{}), ids)
		}
		base := run(singleOn(s0), nil, ids)
		kl := meanKL(base, want, m.Vocab)
		t.Logf("%s: mean KL against float32 %.5f", scheme, kl)
		if kl > limit {
			t.Errorf("%s: mean KL against float32 is %.5f, want at most %g", scheme, kl, limit)
		}

		if !raceEnabled { // one lane races with nobody
			const n = 68 // reference kernels are slow, and a beginning shows as much
			onReference := run([]planir.Proc{proc("ref", s0, "reference")}, nil, ids[:n])
			reference := meanKL(onReference, want[:n*m.Vocab], m.Vocab)
			fast := meanKL(base[:n*m.Vocab], want[:n*m.Vocab], m.Vocab)
			if reference > 1.25*fast+1e-6 || fast > 1.25*reference+1e-6 {
				t.Errorf("%s: mean KL is %.5f on reference kernels and %.5f on fast ones", scheme, reference, fast)
			}
		}

		two := pairOn(s0, s1)
		for name, layout := range map[string]layoutOf{"columns": byColumns, "rows": byRows} {
			if d := maxDiff(run(two, layout, ids), base); d != 0 {
				t.Errorf("%s by %s: differs from the unsplit plan by %g, want equal bits", scheme, name, d)
			}
		}
		if byPairs := meanKL(run(two, byPairs, ids), want, m.Vocab); byPairs > 1.25*kl+1e-6 {
			t.Errorf("%s by pairs: mean KL against float32 is %.5f, and %.5f unsplit", scheme, byPairs, kl)
		}
	}
}

// meanKL is the mean divergence of the distributions that logits stand for from those of the wanted ones, in nats.
func meanKL(got, want []float32, vocab int) float64 {
	logSum := func(logits []float32) float64 {
		sum := 0.0
		for _, x := range logits {
			sum += math.Exp(float64(x))
		}
		return math.Log(sum)
	}
	total := 0.0
	for at := 0; at < len(want); at += vocab {
		g, w := got[at:at+vocab], want[at:at+vocab]
		sumG, sumW := logSum(g), logSum(w)
		for i := range w {
			logP := float64(w[i]) - sumW
			total += math.Exp(logP) * (logP - float64(g[i]) + sumG)
		}
	}
	return total / float64(len(want)/vocab)
}

// Calls with wrong tokens are refused with what is wrong, a cancelled one ends, and the machine works afterwards.
func TestForwardRefuses(t *testing.T) {
	m := open(t)
	s0, _ := cores(t)
	x := machine(t, m, makePlan(t, m, planSpec{
		procs: singleOn(s0), rows: []int{1, 8}, context: 16, scheme: op.A32W32,
	}), executor.Options{})
	for _, c := range []struct {
		ids  []int32
		want string
	}{
		{ids: nil, want: "no tokens"},
		{ids: make([]int32, 17), want: "exceed the plan's context of 16"},
		{ids: []int32{1, -1}, want: "token 1 is id -1"},
		{ids: []int32{2048}, want: "want 0..2047"},
	} {
		err := x.Do(context.Background(), func(k *executor.Control) error {
			_, err := k.Forward(c.ids, executor.WantNone, nil)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("forward %d tokens: got %v, want %q", len(c.ids), err, c.want)
		}
	}

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := x.Generate(ctx, []int32{1, 2}, 4, &executor.Sampler{}, nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("generate with an ended context: got %v, want %v", err, context.Canceled)
	}

	x.Reset()
	if _, err := x.Generate(context.Background(), []int32{1, 2}, 4, &executor.Sampler{}, nil); err != nil {
		t.Errorf("generate afterwards: %v", err)
	}
}

// A plan for a driver that the program does not have is refused with its name.
func TestOpenWithoutDriver(t *testing.T) {
	m := open(t)
	p := makePlan(t, m, planSpec{procs: singleOn("0"), rows: []int{1}, context: 16, scheme: op.A32W32})
	c, err := emit.NewContent(context.Background(), p, m, []driver.Compiler{hostcompiler.New()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p.Procs[0].Driver = "ort"

	_, err = executor.Open(context.Background(), p, c, executor.Options{Drivers: []driver.Driver{host.New()}})

	if err == nil || !strings.Contains(err.Error(), `driver "ort" is not part of this program`) {
		t.Errorf("got %v", err)
	}
}
