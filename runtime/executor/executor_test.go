package executor_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
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

const (
	demo    = "../../testdata/models/tiny-llama-kjv"
	experts = "../../testdata/models/tiny-moe-kjv"
)

func open(t *testing.T) *models.Model { return openDir(t, demo) }

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

func proc(name, sel, kernels string) planir.Proc {
	p := planir.Proc{
		Name: name, Kind: "cpu", Driver: "host", Select: sel,
		Set: capability.Set{
			Tile: capability.Tile{K: pack.BlockK, N: pack.TileN}, Schemes: op.Schemes,
			Layouts:     map[string]string{"q4b128": pack.N32, "q4b32": pack.N32, "q4c": pack.N32, "q6c": pack.N32, "q8c": pack.N32, "w16": pack.N32, "w32": pack.N32},
			DynamicRows: true, StridedInput: true, StridedOutput: true, WeightRanges: true,
		},
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
	mid := length / 2 / unit * unit
	d.Axis = axis
	d.Strategy = map[planir.Axis]planir.Strategy{planir.AxisCols: planir.WeightCentric, planir.AxisHeads: planir.WeightCentric, planir.AxisRows: planir.ActivationDivide, planir.AxisK: planir.Paired}[axis]
	d.Shares = []planir.Share{{Proc: "a", To: mid}, {Proc: "b", From: mid, To: length}}
}

type layoutOf func(d *planir.Decision, n *lower.Node)

func bySingle(*planir.Decision, *lower.Node) {}

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

func byRows(d *planir.Decision, n *lower.Node) {
	switch o := n.Op(); o.Kind {
	case op.Attention:
		divide(d, planir.AxisHeads, o.KVHeads, 1)
	case op.SelectRow:
	default:
		divide(d, planir.AxisRows, o.M, 1)
	}
}

func byPairs(d *planir.Decision, n *lower.Node) {
	switch o := n.Op(); {
	case o.Kind == op.MatMul && (strings.HasSuffix(n.Name, "attn_out") || strings.HasSuffix(n.Name, "ffn_down")):
		divide(d, planir.AxisK, o.K, pack.BlockK)
	default:
		byColumns(d, n)
	}
}

// swapped gives the second processor the first part and control to the other lane.
func swapped(d *planir.Decision, n *lower.Node) {
	byPairs(d, n)
	for i := range d.Shares {
		d.Shares[i].Proc = map[string]string{"a": "b", "b": "a"}[d.Shares[i].Proc]
	}
}

func makePlan(t testing.TB, m *models.Model, procs []planir.Proc, rows []int, context int, scheme op.Scheme, f layoutOf, tiers ...planir.ExpertTiers) *planir.Plan {
	t.Helper()
	digest, err := m.Digest()
	if err != nil {
		t.Fatal(err)
	}
	g := m.Graph()
	p := &planir.Plan{Schema: planir.Schema, Model: planir.ModelRef{Name: m.Name, Digest: digest, BOS: m.BOS, EOS: m.EOS},
		SoC: planir.SoCRef{Name: "test", Control: procs[0].Name}, MaxContext: context, KV: op.F32, Procs: procs}
	if scheme.Static() { // the calibration comes later
		p.Inputs = []planir.Input{{Kind: planir.CalibrationInput, Digest: digest}}
	}
	schemeOf := func(node string) op.Scheme {
		if scheme.Weight() == op.I32Q8C.Weight() && m.Tied && node == "embed.embed" { // the head's matrix serves both
			return op.I32Q8C
		}
		return scheme
	}
	p.Experts = tiers
	if p.Decisions, err = lower.Trivial(&g, procs[0].Name, rows, context, op.F32, func(node string, _ int) op.Scheme { return schemeOf(node) }, tiers...); err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		sections, err := lower.Expand(&g, r, context, op.F32, schemeOf, p.TiersOf(r), p.Channels)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sections {
			for _, n := range s.Nodes {
				if d := p.DecisionFor(n.Name, r); d != nil && len(procs) > 1 {
					f(d, &n)
				}
			}
		}
	}
	if err := lower.Lower(p, &g); err != nil {
		t.Fatal(err)
	}
	if l := planir.Check(p); l.Err() != nil {
		t.Fatal(l.Err())
	}
	return p
}

func machine(t testing.TB, m *models.Model, p *planir.Plan, o executor.Options, more ...driver.Compiler) *executor.Machine {
	t.Helper()
	return machineWith(t, m, p, nil, o, more...)
}

// machineWith is machine of a plan that was made with a calibration.
func machineWith(t testing.TB, m *models.Model, p *planir.Plan, cal *calibration.Calibration, o executor.Options, more ...driver.Compiler) *executor.Machine {
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

func allLogits(t testing.TB, x *executor.Machine, ids []int32, pieces ...int) []float32 {
	t.Helper()
	x.Reset()
	var got []float32
	err := x.Do(context.Background(), func(c *executor.Control) error {
		for at := 0; at < len(ids); {
			n := len(ids) - at
			if len(pieces) > 0 {
				n, pieces = min(n, pieces[0]), pieces[1:]
			}
			if _, err := c.Forward(ids[at:at+n], executor.WantAll, func(_ int, l []float32) error {
				got = append(got, l...)
				return nil
			}); err != nil {
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
	for name, layout := range map[string]layoutOf{"one core": bySingle, "columns of two": byColumns} {
		procs := []planir.Proc{proc("a", first, ""), proc("b", second, "")}
		if name == "one core" {
			procs = procs[:1]
		}
		x := machine(t, model, makePlan(t, model, procs, []int{1, 64, 256}, 256, op.A32W32, layout), executor.Options{})
		for i := range 4 {
			ids, _ := refOf[int32](t, experts, fmt.Sprintf("ids_%d", i))
			want, _ := refOf[float32](t, experts, fmt.Sprintf("logits_%d", i))
			for _, pieces := range [][]int{nil, {3, 1, 1, 40}} {
				if d := maxDiff(allLogits(t, x, ids, pieces...), want); d > 1e-3 {
					t.Errorf("%s: logits_%d in pieces of %v: differ by %.3g, want at most 1e-3", name, i, pieces, d)
				}
			}
		}
	}
}

// The stored references were computed by another implementation; every plan must reproduce them.
func TestReferenceLogits(t *testing.T) {
	m := open(t)
	s0, s1 := cores(t)
	two := []planir.Proc{proc("a", s0, ""), proc("b", s1, "")}
	for _, c := range []struct {
		name  string
		procs []planir.Proc
		rows  []int
		f     layoutOf
		limit float64
	}{
		{"trivial plan on reference kernels", []planir.Proc{proc("ref", s0, "reference")}, []int{1, 64, 256}, bySingle, 1e-4},
		{"fast kernels on one core", []planir.Proc{proc("a", s0, "")}, []int{1, 32, 256}, bySingle, 1e-3},
		{"portable kernels on one core", []planir.Proc{proc("a", s0, "portable")}, []int{1, 48}, bySingle, 1e-3},
		{"one processor of two cores", []planir.Proc{proc("a", s0+"-"+s1, "")}, []int{1, 256}, bySingle, 1e-3},
		{"columns and heads", two, []int{1, 33, 256}, byColumns, 1e-3},
		{"rows", two, []int{1, 16, 200}, byRows, 1e-3},
		{"pairs: columns, then K", two, []int{1, 64, 256}, byPairs, 1e-3},
		{"pairs, other order", two, []int{1, 7, 64}, swapped, 1e-3},
		{"decode program only", two, []int{1}, byPairs, 1e-3},
	} {
		if raceEnabled && len(c.procs) == 1 && c.procs[0].Select == s0 {
			continue // one lane races with nobody
		}
		if testing.Short() && c.procs[0].Options != nil {
			continue // other kernels than the fastest are slow, and compared with these in drivertest
		}
		t.Run(c.name, func(t *testing.T) {
			p := makePlan(t, m, c.procs, c.rows, 256, op.A32W32, c.f)
			x := machine(t, m, p, executor.Options{})
			for i := range 4 {
				if (raceEnabled || c.procs[0].Options != nil) && i%3 != 0 || testing.Short() && i != 0 {
					continue
				}
				ids, _ := ref[int32](t, fmt.Sprintf("ids_%d", i))
				want, _ := ref[float32](t, fmt.Sprintf("logits_%d", i))
				if d := maxDiff(allLogits(t, x, ids), want); d > c.limit {
					t.Errorf("logits_%d: differ by %.3g, want at most %g", i, d, c.limit)
				} else {
					t.Logf("logits_%d [%d tokens]: differ by %.2g", i, len(ids), d)
				}
				// The same tokens in uneven calls use other programs and the cache.
				if d := maxDiff(allLogits(t, x, ids, 3, 1, 1, 40), want); d > c.limit {
					t.Errorf("logits_%d in pieces: differ by %.3g, want at most %g", i, d, c.limit)
				}
				if i == 3 {
					continue
				}
				x.Reset()
				greedy, _ := ref[int32](t, fmt.Sprintf("greedy_%d", i))
				g, err := x.Generate(context.Background(), ids, len(greedy), &executor.Sampler{}, nil)
				if err != nil {
					t.Fatal(err)
				}
				if fmt.Sprint(g.Tokens) != fmt.Sprint(greedy) {
					t.Errorf("greedy_%d: got %v, want %v", i, g.Tokens, greedy)
				}
			}
		})
	}
}

// Graphs with products and what surrounds them compute what their operators do one by one, bit for bit.
func TestFusedSteps(t *testing.T) {
	m := open(t)
	s0, s1 := cores(t)
	ids, _ := ref[int32](t, "ids_3")
	for _, scheme := range []op.Scheme{op.A32W32, op.A8TQ8C} {
		if testing.Short() && scheme == op.A32W32 {
			continue
		}
		for name, f := range map[string]layoutOf{"single": bySingle, "columns": byColumns, "rows": byRows, "pairs": byPairs} {
			run := func(fuses bool) ([]float32, int) {
				procs := []planir.Proc{proc("a", s0, ""), proc("b", s1, "")}
				for i := range procs {
					procs[i].Fuses = fuses
				}
				p := makePlan(t, m, procs, []int{1, 64}, 256, scheme, f)
				steps := 0
				for _, s := range p.Program.Programs[1].Sections {
					for _, l := range s.Lanes {
						steps += len(l.Steps)
					}
				}
				return allLogits(t, machine(t, m, p, executor.Options{}), ids, 70, 1), steps
			}
			want, many := run(false)
			got, few := run(true)
			if d := maxDiff(got, want); d != 0 || few > many || name == "single" && few == many {
				t.Errorf("%s by %s: differs by %g, %d steps instead of %d", scheme, name, d, few, many)
			}
		}
	}
}

// Quantised weights and activations hold the same values however the work is divided: by columns, heads
// and rows the results are equal bit for bit; pairs add partial sums in another order, which moves
// single activations to the next quantisation step but costs no quality.
func TestSplitsOfQuantisedPlansAgree(t *testing.T) {
	require.Slow(t)
	m := open(t)
	s0, s1 := cores(t)
	ids, _ := ref[int32](t, "ids_3")
	want, _ := ref[float32](t, "logits_3")
	if raceEnabled {
		ids, want = ids[:70], want[:70*m.Vocab] // the graph of 64 rows, and six times that of one
	}
	for scheme, limit := range map[op.Scheme]float64{op.A32W16: 1e-5, op.A8TQ8C: 0.0015, op.A8TQ6C: 0.01, op.A8TQ4B32: 0.04, op.A8TQ4B128: 0.1} {
		few := func(procs []planir.Proc, f layoutOf, ids []int32) []float32 {
			return allLogits(t, machine(t, m, makePlan(t, m, procs, []int{1, 64}, 256, scheme, f), executor.Options{}), ids)
		}
		run := func(procs []planir.Proc, f layoutOf) []float32 { return few(procs, f, ids) }
		base := run([]planir.Proc{proc("a", s0, "")}, bySingle)
		kl := meanKL(base, want, m.Vocab)
		t.Logf("%s: mean KL against float32 %.5f", scheme, kl)
		if kl > limit {
			t.Errorf("%s: mean KL against float32 is %.5f, want at most %g", scheme, kl, limit)
		}
		if !raceEnabled { // one lane races with nobody; reference kernels are slow: a beginning shows as much
			const n = 68
			fast := meanKL(base[:n*m.Vocab], want[:n*m.Vocab], m.Vocab)
			k := meanKL(few([]planir.Proc{proc("ref", s0, "reference")}, bySingle, ids[:n]), want[:n*m.Vocab], m.Vocab)
			if k > 1.25*fast+1e-6 || fast > 1.25*k+1e-6 {
				t.Errorf("%s: mean KL against float32 is %.5f on reference kernels and %.5f on fast ones", scheme, k, fast)
			}
		}
		two := []planir.Proc{proc("a", s0, ""), proc("b", s1, "")}
		for name, f := range map[string]layoutOf{"columns": byColumns, "rows": byRows} {
			if d := maxDiff(run(two, f), base); d != 0 {
				t.Errorf("%s by %s: differs from the unsplit plan by %g, want equal bits", scheme, name, d)
			}
		}
		if k := meanKL(run(two, byPairs), want, m.Vocab); k > 1.25*kl+1e-6 {
			t.Errorf("%s by pairs: mean KL against float32 is %.5f, and %.5f unsplit", scheme, k, kl)
		}
	}
}

func meanKL(got, want []float32, vocab int) float64 {
	sum := 0.0
	for t := 0; t < len(want); t += vocab {
		g, w := got[t:t+vocab], want[t:t+vocab]
		lse := func(v []float32) float64 {
			s := 0.0
			for _, x := range v {
				s += math.Exp(float64(x))
			}
			return math.Log(s)
		}
		lg, lw := lse(g), lse(w)
		for i := range w {
			lp := float64(w[i]) - lw
			sum += math.Exp(lp) * (lp - float64(g[i]) + lg)
		}
	}
	return sum / float64(len(want)/vocab)
}

func TestForwardRefuses(t *testing.T) {
	m := open(t)
	s0, _ := cores(t)
	x := machine(t, m, makePlan(t, m, []planir.Proc{proc("a", s0, "")}, []int{1, 8}, 16, op.A32W32, bySingle), executor.Options{})
	for _, c := range []struct {
		ids  []int32
		want string
	}{
		{nil, "no tokens"},
		{make([]int32, 17), "exceed the plan's context of 16"},
		{[]int32{1, -1}, "token 1 is id -1"},
		{[]int32{2048}, "want 0..2047"},
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
	if _, err := x.Generate(ctx, []int32{1, 2}, 4, &executor.Sampler{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("generate with an ended context: got %v, want %v", err, context.Canceled)
	}
	// The machine still works afterwards.
	x.Reset()
	if _, err := x.Generate(context.Background(), []int32{1, 2}, 4, &executor.Sampler{}, nil); err != nil {
		t.Error(err)
	}
}

func TestOpenWithoutDriver(t *testing.T) {
	m := open(t)
	p := makePlan(t, m, []planir.Proc{proc("a", "0", "")}, []int{1}, 16, op.A32W32, bySingle)
	c, err := emit.NewContent(context.Background(), p, m, []driver.Compiler{hostcompiler.New()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p.Procs[0].Driver = "ort"
	if _, err := executor.Open(context.Background(), p, c, executor.Options{Drivers: []driver.Driver{host.New()}}); err == nil || !strings.Contains(err.Error(), `driver "ort" is not part of this program`) {
		t.Errorf("got %v", err)
	}
}
