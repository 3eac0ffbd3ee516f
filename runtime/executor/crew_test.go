package executor_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/executor"
)

// among gives decisions to the processors named at random, to one or several of them.
func among(r *rand.Rand, names ...string) layoutOf {
	return func(d *planir.Decision, n *lower.Node) {
		axis, length, unit := planir.AxisNone, 0, 1
		switch o := n.Op(); o.Kind {
		case op.MatMul, op.ExpertMatMul:
			axis, length, unit = planir.AxisCols, o.N, pack.TileN
		case op.GLU:
			axis, length, unit = planir.AxisCols, o.N, o.Interleave
		case op.Add:
			axis, length = planir.AxisCols, o.N
		case op.Attention:
			axis, length = planir.AxisHeads, o.KVHeads
		}

		order := r.Perm(len(names))
		d.Shares[0].Proc = names[order[0]]
		parts := 1 + r.IntN(len(names))
		if axis == planir.AxisNone || length < parts*unit || parts == 1 {
			return
		}

		d.Axis, d.Strategy, d.Shares = axis, planir.WeightCentric, nil
		from := 0
		for i := range parts {
			to := length
			if i < parts-1 {
				to = from + max(1, (length-from)/(parts-i)/unit)*unit
			}
			d.Shares = append(d.Shares, planir.Share{Proc: names[order[i]], From: from, To: to})
			from = to
		}
	}
}

// Processors of one core compute what one of them computes alone, bit for bit, however the work is divided. They are
// two on the control core, one of them with a second core; one apart from them; two beside two.
func TestProcessorsOfOneCore(t *testing.T) {
	require.Slow(t)
	m := open(t)
	s0, s1 := cores(t)
	ids, _ := ref[int32](t, "ids_3")
	ids = ids[:min(len(ids), 40)]
	want := allLogits(t, machine(t, m, makePlan(t, m, planSpec{
		procs: singleOn(s0), rows: []int{1, 16}, context: 64, scheme: op.A8TQ8C,
	}), executor.Options{}), ids)

	sets := map[string][]planir.Proc{
		"a core twice":             {proc("a", s0, ""), proc("b", s0, "")},
		"a core and both":          {proc("a", s0, ""), proc("b", s0+"-"+s1, "")},
		"both and a core":          {proc("a", s0+"-"+s1, ""), proc("b", s0, "")},
		"a core twice, another":    {proc("a", s0, ""), proc("b", s0, ""), proc("c", s1, "")},
		"a core, another twice":    {proc("a", s1, ""), proc("b", s0, ""), proc("c", s0, "")},
		"a core twice, each":       {proc("a", s0, ""), proc("b", s0, ""), proc("c", s1, ""), proc("d", s1, "")},
		"a core three times, both": {proc("a", s0, ""), proc("b", s0, ""), proc("c", s0, ""), proc("d", s0+"-"+s1, "")},
	}
	for name, procs := range sets {
		t.Run(name, func(t *testing.T) {
			var names []string
			for _, p := range procs {
				names = append(names, p.Name)
			}
			for seed := range uint64(3) {
				p := makePlan(t, m, planSpec{
					procs: procs, rows: []int{1, 16}, context: 64, scheme: op.A8TQ8C,
					layout: among(rand.New(rand.NewPCG(seed, 1)), names...),
				})
				x := machine(t, m, p, executor.Options{})
				for _, pieces := range [][]int{nil, {1, 1, 1, 20, 1}} {
					if d := maxDiff(allLogits(t, x, ids, pieces...), want); d != 0 {
						what := fmt.Sprintf("seed %d, in pieces of %v", seed, pieces)
						t.Errorf("%s: differs from one processor by %g, want equal bits", what, d)
					}
				}
				x.Close()
			}
		})
	}
}
