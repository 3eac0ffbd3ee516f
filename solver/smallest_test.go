package solver

import (
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/hetc/hetc/internal/require"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// No plan holds less than the smallest one, nor less than its bound: plans of any schemes, with all operators on one
// processor or each divided as chance has it, are lowered and counted in all combinations of a few operators'
// candidates. Where no graph keeps values inside the smallest is proved.
func TestNoPlanHoldsLess(t *testing.T) {
	require.Slow(t)
	trials, most, schemes := 3, 50, 3
	if os.Getenv("HETC_LONG") != "" {
		trials, most, schemes = 3, 300, math.MaxInt
	}
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 7))
		m := demo(t)
		s := withNPU(t, func(npu *socs.Processor) {
			npu.WeightRanges, npu.StridedInput, npu.StridedOutput = r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0
			npu.Fuses, npu.Prepacks = seed%2 == 1, seed%4 == 3
		})
		w := permit(op.A8TQ8C, op.A32W32)
		w.Minimise, w.Buckets, w.Context = problem.Memory, workload.Rows{16 + 16*r.IntN(4)}, 128
		if seed < 4 {
			w.Buckets, w.Context = nil, 1
		}
		in := Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A8TQ8C, op.A32W32), Workload: w}
		ses := prepared(t, in)
		by, plan, err := ses.smallest(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		least, said := planir.MemoryOf(plan).Total, plan.Solver[0]
		found := least
		var better *planir.Plan
		lowered := 0
		pairs, _ := by.byWeight()
		r.Shuffle(len(pairs)-1, func(a, b int) { pairs[a+1], pairs[b+1] = pairs[b+1], pairs[a+1] }) // the lightest stays the first
		for _, pair := range pairs[:min(schemes, len(pairs))] {
			by.prefill, by.decode, by.chosen = pair.prefill, pair.decode, nil
			atLeast, err := by.leastBytes(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			free, err := by.eachAlone(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			mv, err := by.mover(free)
			if err != nil {
				t.Fatal(err)
			}
			choices := mv.j.choices(free)
			for range trials {
				type place struct{ i, k, n int }
				var places []place
				for i, pr := range mv.j.programs {
					for k, in := range pr.instances {
						for n := range in.candidates {
							places = append(places, place{i, k, n})
							choices[i][k][n] = r.IntN(len(in.candidates[n]))
						}
					}
				}
				if r.IntN(2) == 0 { // everything on one processor, but for the open ones
					proc := by.Procs[r.IntN(len(by.Procs))].Name
					for i, pr := range mv.j.programs {
						for k, in := range pr.instances {
							for n := range in.candidates {
								choices[i][k][n] = max(0, wholeOn(in.candidates[n], proc))
							}
						}
					}
				}
				r.Shuffle(len(places), func(a, b int) { places[a], places[b] = places[b], places[a] })
				count, open := 1, places[:0:0] // all their combinations are tried
				for _, p := range places {
					if n := len(mv.j.programs[p.i].instances[p.k].candidates[p.n]); n > 1 && count*n <= most {
						count, open = count*n, append(open, p)
					}
				}
				for x := range count {
					for _, p := range open {
						n := len(mv.j.programs[p.i].instances[p.k].candidates[p.n])
						choices[p.i][p.k][p.n] = x % n
						x /= n
					}
					other, err := mv.plan(choices)
					if err != nil {
						t.Fatal(err)
					}
					if other == nil {
						continue
					}
					lowered++
					held := planir.MemoryOf(other)
					other.Memory = &held
					if held.Total < found {
						found, better = held.Total, other
					}
					if bound := atLeast + by.fixedBytes(other); held.Total < bound {
						t.Fatalf("seed %d: a plan holds %d bytes (%v), with its schemes the bound is %d", seed, held.Total, held, bound)
					}
				}
			}
			mv.restore()
		}
		t.Logf("seed %d: %d plans; least %d, bound %d, found %d", seed, lowered, least, said.BoundNS, found)
		if found < least {
			t.Errorf("seed %d: a plan holds %d bytes (%v), the least is said to be %d (%v)", seed, found, planir.MemoryOf(better), least, planir.MemoryOf(plan))
		}
		if said.BoundNS > found {
			t.Errorf("seed %d: a plan holds %d bytes, and the bound is %d", seed, found, said.BoundNS)
		}
		if optimal := said.Status == string(problem.Optimal); optimal != (said.BoundNS == least) || !optimal && seed%2 == 0 {
			t.Errorf("seed %d: %s, bound %d of %d", seed, said.Status, said.BoundNS, least)
		}
	}
}

// The bound is one for any architecture, mixture of schemes and processor: whatever candidates are drawn, the plan
// holds as much.
func TestLeastBytesIsABound(t *testing.T) {
	require.Slow(t)
	list := architectures(t)
	draws := 0
	rapid.Check(t, func(rt *rapid.T) {
		if draws++; draws > 25 && os.Getenv("HETC_LONG") == "" {
			return
		}
		m := rapid.SampledFrom(list).Draw(rt, "model")
		s := coresAndNPU(t)
		npu := s.Processor("npu")
		npu.Fuses, npu.Prepacks = rapid.Bool().Draw(rt, "fuses"), rapid.Bool().Draw(rt, "prepacks")
		npu.WeightRanges = rapid.Bool().Draw(rt, "ranges")
		scheme := rapid.SampledFrom([]op.Scheme{op.A32W32, op.A8TQ8C, mixed}).Draw(rt, "scheme")
		x := &drawn{model: m, scheme: scheme, session: exactSession(t, s, m, scheme)}
		least, err := x.session.leastBytes(t.Context())
		if err != nil {
			rt.Fatal(err)
		}
		if x.plan, err = x.session.eachAlone(t.Context()); err != nil {
			rt.Fatal(err)
		}
		var plans []*planir.Plan
		for i := range x.session.Procs {
			plans = append(plans, x.wholeOn(rt, x.session.Procs[i].Name))
		}
		for range 3 {
			plans = append(plans, x.draw(rt))
		}
		for _, p := range plans {
			held := planir.MemoryOf(p)
			p.Memory = &held
			if fixed := x.session.fixedBytes(p); held.Total < least+fixed || held.Total < x.session.weightBytes(x.session.prefill, x.session.decode)+x.session.leastPool()+fixed {
				rt.Fatalf("%s %s: a plan holds %d bytes (%v), the bound is %d\n%s", m.Name, scheme, held.Total, held, least+fixed, planir.Dump(p))
			}
		}
	})
}

// wholeOn decides every operator as a whole, on one processor where that can execute it.
func (x *drawn) wholeOn(rt *rapid.T, proc string) *planir.Plan {
	p := *x.plan
	p.Decisions, p.Solver, p.Program = nil, nil, planir.Program{}
	for i, rows := range append([]int{1}, x.session.want.Buckets...) {
		pr, err := x.session.program(rows, x.session.assigned(rows))
		if err != nil {
			rt.Fatal(err)
		}
		for _, in := range pr.instances {
			choices := make([]int, len(in.candidates))
			for k, list := range in.candidates {
				choices[k] = wholeOn(list, proc)
			}
			for _, d := range in.decisions(choices) {
				if i == 0 || !x.session.isHead(d.Node) || !price.SameShares(p.DecisionFor(d.Node, 1), &d) {
					p.Decisions = append(p.Decisions, d)
				}
			}
		}
	}
	if err := x.session.lower(&p); err != nil {
		rt.Fatal(err)
	}
	return &p
}
