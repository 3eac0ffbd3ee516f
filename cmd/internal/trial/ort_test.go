package trial

import (
	"context"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/emit"
	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	ortcompiler "github.com/hetc/hetc/emit/compile/ort"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models/safetensors"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/driver/ort"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/quality"
)

// mixedMachine are processors of ONNX Runtime beside the host's: on each of two cores one of either, "host" the control
// processor, which has the glue.
type mixedMachine struct{ procs []planir.Proc }

func withORT(t *testing.T) *mixedMachine {
	t.Helper()
	require.Deps()
	ctx := context.Background()
	x := &mixedMachine{}
	for _, d := range []driver.Driver{host.New(), ort.New()} {
		devices, err := d.Devices(ctx)
		if err != nil {
			require.Skip(t, ort.Name, err)
		}
		found := 0
		for _, device := range devices {
			if len(device.Cores) != 1 || found == 2 {
				continue
			}
			p, err := d.Open(ctx, driver.Config{Select: device.Select})
			if err != nil {
				require.Skip(t, ort.Name, err)
			}
			c := p.Capabilities()
			proc := planir.Proc{
				Name: d.Name() + string("ab"[found]), Kind: "cpu", Driver: d.Name(), Select: device.Select, Cores: c.Cores, Set: c.Offered(),
			}
			x.procs = append(x.procs, proc)
			found++
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if found < 2 {
			t.Skipf("driver %q has %d processors of one core, want 2", d.Name(), found)
		}
	}
	return x
}

// layout decides a node of a mixed plan, which so far is the control processor's.
type layout func(d *planir.Decision, n *lower.Node)

// alone gives a node to one processor, if it executes it.
func (x *mixedMachine) alone(name string) layout {
	return func(d *planir.Decision, n *lower.Node) {
		i := slices.IndexFunc(x.procs, func(p planir.Proc) bool { return p.Name == name })
		p := &x.procs[i]
		for _, o := range n.Ops {
			if !slices.Contains(p.Kinds, o.Kind) || o.HasScheme() && !slices.Contains(p.Schemes, o.Scheme) {
				return
			}
		}
		d.Shares = []planir.Share{{Proc: name}}
	}
}

// divided divides products between two processors along an axis, unevenly; everything else is alone's on the first of them.
func (x *mixedMachine) divided(axis planir.Axis, first, second string) layout {
	return func(d *planir.Decision, n *lower.Node) {
		x.alone(first)(d, n)
		o := n.Op()
		if d.Shares[0].Proc != first || !o.HasScheme() {
			return
		}
		length, err := lower.AxisLength(n, axis)
		unit := 1
		for i := range x.procs {
			unit = max(unit, lower.Granularity(n, axis, &x.procs[i]))
		}
		at := length * 2 / 5 / unit * unit
		if err != nil || at == 0 || at == length {
			return
		}
		d.Axis = axis
		d.Strategy = map[planir.Axis]planir.Strategy{planir.AxisCols: planir.WeightCentric, planir.AxisRows: planir.ActivationDivide, planir.AxisK: planir.Paired}[axis]
		d.Shares = []planir.Share{{Proc: first, To: at}, {Proc: second, From: at, To: length}}
	}
}

// plan decides every node at every number of rows.
func (x *mixedMachine) plan(t *testing.T, m *Model, schemeOf func(string) op.Scheme, cal *calibration.Calibration, at map[int]layout) *planir.Plan {
	t.Helper()
	g := m.Graph()
	p := &planir.Plan{
		Schema: planir.Schema, Model: planir.ModelRef{Name: m.Name, Digest: m.Digest, EOS: m.EOS, BOS: m.BOS},
		SoC: planir.SoCRef{Name: "mixed", Control: "hosta"}, MaxContext: quality.WindowTokens, KV: op.F32, Procs: x.procs,
	}
	if cal != nil {
		digest, err := cal.Digest()
		if err != nil {
			t.Fatal(err)
		}
		p.Inputs, p.Folds = []planir.Input{{Kind: planir.CalibrationInput, Digest: digest}}, cal.Groups()
	}
	rows := []int{1, quality.WindowTokens}
	var err error
	if p.Decisions, err = lower.Trivial(&g, "hosta", rows, p.MaxContext, p.KV, func(node string, _ int) op.Scheme { return schemeOf(node) }); err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, r := range rows {
		sections, err := lower.Expand(&g, r, p.MaxContext, p.KV, schemeOf, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sections {
			for i := range s.Nodes {
				if d := p.DecisionFor(s.Nodes[i].Name, r); d != nil {
					at[r](d, &s.Nodes[i])
					for _, sh := range d.Shares {
						used[sh.Proc] = true
					}
				}
			}
		}
	}
	p.Procs = slices.DeleteFunc(slices.Clone(p.Procs), func(q planir.Proc) bool { return !used[q.Name] })
	if err := lower.Lower(p, &g); err != nil {
		t.Fatal(err)
	}
	if err := planir.Check(p).Err(); err != nil {
		t.Fatal(err)
	}
	return p
}

// open loads a mixed plan.
func (x *mixedMachine) open(t *testing.T, m *Model, p *planir.Plan, cal *calibration.Calibration) *executor.Machine {
	t.Helper()
	ctx := context.Background()
	c, err := emit.NewCalibrated(ctx, p, m.Model, cal, []driver.Compiler{hostcompiler.New(), ortcompiler.New()})
	if err != nil {
		t.Fatal(err)
	}
	y, err := executor.Open(ctx, p, c, executor.Options{Drivers: []driver.Driver{host.New(), ort.New()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		y.Close()
		c.Close()
	})
	return y
}

// onORT counts the products that a plan has ONNX Runtime compute, by rows.
func onORT(p *planir.Plan) map[int]int {
	out := map[int]int{}
	for i := range p.Program.Graphs {
		g := &p.Program.Graphs[i]
		if p.Proc(g.Proc).Driver != ort.Name {
			continue
		}
		for _, n := range g.Graph.Nodes {
			if n.Op.HasScheme() {
				out[n.Op.M]++
			}
		}
	}
	return out
}

// What plans lose whose products run on ONNX Runtime: no more than the same schemes do elsewhere, and divided, beside the
// host or a second processor of the library, what they lose undivided.
func TestQualityOverORT(t *testing.T) {
	x := withORT(t)
	ctx := context.Background()
	m := open(t, demo)
	windows := text(t, m, 12)
	cal, err := Calibrate(ctx, m, CalibrateOptions{Text: windows}) // observes every other window
	if err != nil {
		t.Fatal(err)
	}
	r, err := quality.NewReference()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	plan, err := m.Plan(quality.WindowTokens, Float32, nil)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := m.Open(ctx, plan, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(windows.Windows); i += 2 {
		if err := r.Add(ctx, ref.Machine, windows.Windows[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := ref.Close(); err != nil {
		t.Fatal(err)
	}
	same := func(s op.Scheme) func(string) op.Scheme { return func(string) op.Scheme { return s } }
	fourBit := func(s op.Scheme) func(string) op.Scheme {
		return func(node string) op.Scheme {
			if node == "head.lm_head" {
				return op.A8TQ8C
			}
			return s
		}
	}
	both := func(l layout) map[int]layout { return map[int]layout{1: l, quality.WindowTokens: l} }
	whole := both(x.alone("orta"))
	type setup struct {
		name   string
		layout map[int]layout
		decode bool // one token at a time, too: that is not as the undivided plan does it
	}
	const separately = "operators of their own"
	divided := []setup{
		{separately, whole, false},
		{"columns, host", both(x.divided(planir.AxisCols, "orta", "hostb")), true},
		{"rows, host", both(x.divided(planir.AxisRows, "orta", "hostb")), false},
		// Parts of the reduction are of one row only: the library reads whole buffers.
		{"reduction, host", map[int]layout{1: x.divided(planir.AxisK, "orta", "hostb"), quality.WindowTokens: x.alone("ortb")}, true},
		// Of several rows, columns of two processors that write whole buffers could be gathered by nobody.
		{"two of the library", map[int]layout{1: x.divided(planir.AxisCols, "orta", "ortb"), quality.WindowTokens: x.divided(planir.AxisRows, "orta", "ortb")}, true},
	}
	for _, c := range []struct {
		name     string
		schemeOf func(string) op.Scheme
		cal      *calibration.Calibration
		limit    float64
		divided  []setup
	}{
		{"a8t/q8c", same(op.A8TQ8C), nil, 0.0012, divided},
		{"a8s/q8c (static)", same(op.A8SQ8C), cal, 0.015, divided},
		{"a8o/q8c (shadow outliers)", same(op.A8OQ8C), cal, 0.0012, divided[:3]},
		{"a8t/q4b32, 8-bit head", fourBit(op.A8TQ4B32), nil, 0.0183, divided},
		{"a8t/q4b32, 8-bit head, calibrated", fourBit(op.A8TQ4B32), cal, 0.0183, nil},
		{"a8t/q4b128, 8-bit head, calibrated", fourBit(op.A8TQ4B128), cal, 0.0261, nil},
	} {
		t.Run(strings.ReplaceAll(c.name, "/", ":"), func(t *testing.T) {
			var undivided [2]float64 // prefill, decode
			for i, s := range append([]setup{{"whole", whole, true}}, c.divided...) {
				y := &mixedMachine{slices.Clone(x.procs)}
				for k := range y.procs {
					y.procs[k].Fuses = y.procs[k].Fuses && s.name != separately
				}
				p := y.plan(t, m, c.schemeOf, c.cal, s.layout)
				n := onORT(p)
				if n[quality.WindowTokens]+n[quality.WindowTokens*2/5] == 0 || n[1] == 0 {
					t.Fatalf("%s: products on the library by rows: %v", s.name, n)
				}
				e := x.open(t, m, p, c.cal)
				var prefill, decode quality.Tally
				for w := range r.Windows() {
					if err := r.Compare(ctx, e, w, quality.WindowTokens, &prefill); err != nil {
						t.Fatal(err)
					}
				}
				q, err := prefill.Result()
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%s, %s: mean KL %.6f (%.6f..%.6f), same top token %.4f", c.name, s.name, q.KL.Mean, q.KL.Low, q.KL.High, q.TopAgreement.Mean)
				if i == 0 {
					undivided[0] = q.KL.Mean
				}
				if !(q.KL.Mean > 0 && q.KL.Mean <= c.limit && math.Abs(q.KL.Mean/undivided[0]-1) <= 0.1) {
					t.Errorf("%s: mean KL %v, want at most %v, and about %v of the undivided plan", s.name, q.KL.Mean, c.limit, undivided[0])
				}
				if !s.decode {
					continue
				}
				for w := range 2 {
					if err := r.Compare(ctx, e, w, 1, &decode); err != nil {
						t.Fatal(err)
					}
				}
				if q, err = decode.Result(); err != nil {
					t.Fatal(err)
				}
				t.Logf("%s, %s, decode of 2 windows: mean KL %.6f", c.name, s.name, q.KL.Mean)
				if i == 0 {
					undivided[1] = q.KL.Mean
				}
				if !(q.KL.Mean > 0 && q.KL.Mean <= 1.3*c.limit && math.Abs(q.KL.Mean/undivided[1]-1) <= 0.1) {
					t.Errorf("%s: mean KL of decode %v, want at most %v, and about %v of the undivided plan", s.name, q.KL.Mean, 1.3*c.limit, undivided[1])
				}
			}
		})
	}
}

// Float32 over ONNX Runtime and the host computes another implementation's logits.
func TestFloat32OverORT(t *testing.T) {
	x := withORT(t)
	m := open(t, demo)
	f, err := safetensors.Open(filepath.Join(demo, "reference.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	both := func(l layout) map[int]layout { return map[int]layout{1: l, quality.WindowTokens: l} }
	for name, at := range map[string]map[int]layout{
		"whole":   both(x.alone("orta")),
		"columns": both(x.divided(planir.AxisCols, "orta", "hostb")),
		"rows":    both(x.divided(planir.AxisRows, "orta", "hostb")),
		"two":     {1: x.divided(planir.AxisCols, "orta", "ortb"), quality.WindowTokens: x.divided(planir.AxisRows, "orta", "ortb")},
		"k":       {1: x.divided(planir.AxisK, "orta", "hostb"), quality.WindowTokens: x.alone("ortb")},
	} {
		t.Run(name, func(t *testing.T) {
			p := x.plan(t, m, Float32, nil, at)
			y := x.open(t, m, p, nil)
			worst, tried := 0.0, 0
			for i := 0; ; i++ {
				ids, ok := f.Tensor("ids_" + string(rune('0'+i)))
				if !ok {
					break
				}
				logits, _ := f.Tensor("logits_" + string(rune('0'+i)))
				list, err := mem.View[int32](ids.Data)
				if err != nil {
					t.Fatal(err)
				}
				want, err := mem.View[float32](logits.Data)
				if err != nil {
					t.Fatal(err)
				}
				for _, step := range []int{len(list), 1} {
					if step == 1 && len(list) > 64 {
						continue
					}
					at := 0
					y.Reset()
					err = y.Do(context.Background(), func(c *executor.Control) error {
						for from := 0; from < len(list); from += step {
							if _, err := c.Forward(slices.Clone(list[from:from+step]), executor.WantAll, func(_ int, l []float32) error {
								for j, v := range l {
									worst = max(worst, math.Abs(float64(v-want[at+j])))
								}
								at += len(l)
								return nil
							}); err != nil {
								return err
							}
						}
						return nil
					})
					if err != nil {
						t.Fatal(err)
					}
					if at != len(want) {
						t.Fatalf("%d logits, want %d", at, len(want))
					}
					tried++
				}
			}
			t.Logf("%s: largest difference %.2g", name, worst)
			if worst > 1e-3 || tried < 4 {
				t.Errorf("logits of %d prompts differ by %.3g, want at most 0.001", tried, worst)
			}
		})
	}
}
