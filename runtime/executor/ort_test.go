package executor_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	ortcompiler "github.com/hetc/hetc/emit/compile/ort"
	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/driver/ort"
	"github.com/hetc/hetc/runtime/executor"
)

// needORT skips a test without ONNX Runtime.
func needORT(t testing.TB) {
	t.Helper()
	require.Deps()
	p, err := ort.New().Open(context.Background(), driver.Config{Select: affinity.Selections()[0].Select})
	if errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrIncapable) {
		require.Skip(t, ort.Name, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
}

// ortProc is what a plan says of cores under ONNX Runtime.
func ortProc(t testing.TB, name, sel string) planir.Proc {
	t.Helper()
	x, err := ort.New().Open(context.Background(), driver.Config{Select: sel})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	c := x.Capabilities()
	p := planir.Proc{Name: name, Kind: "cpu", Driver: ort.Name, Select: sel, Cores: c.Cores, Set: c.Offered()}
	slices.Sort(p.Kinds)
	return p
}

// amongAble is among, for what the processors execute: column ranges of wider buffers only in products, whose shards
// are gathered, and the table by the host, which reads it as it is.
func amongAble(r *rand.Rand, procs []planir.Proc) layoutOf {
	return func(d *planir.Decision, n *lower.Node) {
		var able []string
		kind := n.Op().Kind
		for _, p := range procs {
			if p.Driver == host.Name || slices.Contains(p.Kinds, kind) && kind != op.Embed {
				able = append(able, p.Name)
			}
		}
		if kind == op.MatMul || kind == op.Attention {
			among(r, able...)(d, n)
			return
		}
		d.Shares[0].Proc = able[r.IntN(len(able))]
	}
}

// withORT are options with the drivers of ONNX Runtime and the host.
func withORT() executor.Options {
	return executor.Options{Drivers: []driver.Driver{host.New(), ort.New()}}
}

// Plans over ONNX Runtime and the host, on one core and on two, compute what the host computes alone: in float32 up to
// rounding.
func TestORTBesideHost(t *testing.T) {
	needORT(t)
	m := open(t)
	s0, s1 := cores(t)
	ids, _ := ref[int32](t, "ids_3")
	ids = ids[:min(len(ids), 40)]
	want, _ := ref[float32](t, "logits_3")
	want = want[:len(ids)*m.Vocab]

	for name, procs := range map[string][]planir.Proc{
		"one core":              {proc("a", s0, ""), ortProc(t, "b", s0)},
		"two cores":             {proc("a", s0, ""), ortProc(t, "b", s1)},
		"host and ort on each":  {proc("a", s0, ""), ortProc(t, "b", s0), proc("c", s1, ""), ortProc(t, "d", s1)},
		"ort with two threads":  {proc("a", s0, ""), ortProc(t, "b", s0+"-"+s1)},
		"ort on each, one host": {proc("a", s0, ""), ortProc(t, "b", s0), ortProc(t, "c", s1)},
	} {
		t.Run(name, func(t *testing.T) {
			for scheme, limit := range map[op.Scheme]float64{op.A32W32: 1e-3, op.A8TQ8C: 2} {
				rows := []int{1, 16}
				if len(procs) == 3 {
					rows = rows[:1] // of more rows no share of ort is gathered by another one's processor
				}
				p := makePlan(t, m, planSpec{
					procs: procs, rows: rows, context: 64, scheme: scheme,
					layout: amongAble(rand.New(rand.NewPCG(2, 4)), procs),
				})
				x := machine(t, m, p, withORT(), ortcompiler.New())

				got := allLogits(t, x, ids)
				d, kl := maxDiff(got, want), meanKL(got, want, m.Vocab)
				t.Logf("%s: largest difference %.2g, mean KL %.2g", scheme, d, kl)
				if d > limit || kl > 0.0015 {
					t.Errorf("%s: differs by %g, mean KL %g, want at most %g and 0.0015", scheme, d, kl, limit)
				}
				if d := maxDiff(allLogits(t, x, ids), got); d != 0 {
					t.Errorf("%s: the second time differs by %g", scheme, d)
				}
				x.Close()
			}
		})
	}
}

// A plan whose products with a constant scale are convolutions of ONNX Runtime computes the very logits of one whose
// products are products: sums of codes are exact, and the scales are multiplied on in one order.
func TestORTConvolutions(t *testing.T) {
	needORT(t)
	m := open(t)
	first, second := cores(t)
	procs := []planir.Proc{proc("a", first, ""), ortProc(t, "b", second)}
	ids, _ := ref[int32](t, "ids_3")
	ids = ids[:min(len(ids), 40)]
	cal := ranged(t, m, first, ids)
	for _, scheme := range []op.Scheme{op.A8SQ8C, op.A8OQ8C} {
		form := op.ConvForm(4, 4)
		if !procs[1].HasForm(scheme, form) {
			t.Skipf("ONNX Runtime has no form %q of %q: it does not convolve the largest codes exactly on this CPU",
				form, scheme)
		}
		convolved := 0
		run := func(form op.Form) []float32 {
			inForm := func(d *planir.Decision, n *lower.Node) {
				if n.Op().Kind != op.MatMul {
					return
				}
				d.Shares[0].Proc = "b"
				if d.Rows == 16 && n.Op().M == 16 {
					d.Shares[0].Form = form
				}
			}
			plan := folded(t, makePlan(t, m, planSpec{
				procs: procs, rows: []int{1, 16}, context: 64, scheme: scheme, layout: inForm,
			}), m, cal)
			for _, graph := range plan.Program.Graphs {
				for _, node := range graph.Graph.Nodes {
					if node.Op.Form != "" {
						convolved++
					}
				}
			}
			return allLogits(t, machineWith(t, m, plan, cal, withORT(), ortcompiler.New()), ids)
		}

		want, got := run(""), run(form)

		if d := maxDiff(got, want); d != 0 {
			t.Errorf("%s: in the form %q logits differ by %g, want equal bits", scheme, form, d)
		}
		if convolved < 4 {
			t.Errorf("%s: %d graphs in the form %q, want those of all products of a layer", scheme, convolved, form)
		}
	}
}
