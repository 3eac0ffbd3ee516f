package solver

import (
	"math"
	"math/rand/v2"
	"os"
	"slices"
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
		random := rand.New(rand.NewPCG(seed, 7))
		ses := prepared(t, smallestInput(t, seed, random))
		by, plan, err := ses.smallest(t.Context())
		if err != nil {
			t.Fatal(err)
		}

		least, report := planir.MemoryOf(plan).Total, plan.Solver[0]
		tries := &smallerPlans{t: t, by: by, random: random, most: most, found: plan, least: least}
		pairs, _ := by.byWeight()
		// The lightest stays the first.
		random.Shuffle(len(pairs)-1, func(a, b int) { pairs[a+1], pairs[b+1] = pairs[b+1], pairs[a+1] })
		for _, pair := range pairs[:min(schemes, len(pairs))] {
			by.prefill, by.decode, by.chosen = pair.prefill, pair.decode, nil
			tries.ofSchemes(trials)
		}

		t.Logf("seed %d: %d plans; least %d, bound %d, found %d", seed, tries.lowered, least, report.BoundNS,
			tries.least)
		if tries.least < least {
			t.Errorf("seed %d: a plan holds %d bytes (%v), the least is said to be %d (%v)", seed, tries.least,
				planir.MemoryOf(tries.found), least, planir.MemoryOf(plan))
		}
		if report.BoundNS > tries.least {
			t.Errorf("seed %d: a plan holds %d bytes, and the bound is %d", seed, tries.least, report.BoundNS)
		}
		keepsInside := func(p socs.Processor) bool { return p.Fuses || p.FusesGLU }
		mustProve := !slices.ContainsFunc(by.in.SoC.Processors, keepsInside)
		isOptimal := report.Status == string(problem.Optimal)
		if isOptimal != (report.BoundNS == least) || !isOptimal && mustProve {
			t.Errorf("seed %d: %s, bound %d of %d", seed, report.Status, report.BoundNS, least)
		}
	}
}

// smallestInput is a solve for least memory on a random NPU: for one position, or for prompts, too.
func smallestInput(t *testing.T, seed uint64, random *rand.Rand) Input {
	t.Helper()
	model := demo(t)
	soc := withNPU(t, func(npu *socs.Processor) {
		npu.WeightRanges, npu.StridedInput = random.IntN(2) == 0, random.IntN(2) == 0
		npu.StridedOutput = random.IntN(2) == 0
		npu.Fuses, npu.Prepacks = seed%2 == 1, seed%4 == 3
	})
	soc.Processor(soc.Control).FusesGLU = seed%3 == 0
	work := permit(op.A8TQ8C, op.A32W32)
	work.Minimise, work.Buckets, work.Context = problem.Memory, workload.Rows{16 + 16*random.IntN(4)}, 128
	if seed < 4 {
		work.Buckets, work.Context = nil, 1
	}
	return Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A8TQ8C, op.A32W32), Workload: work}
}

// smallerPlans looks for plans that hold less than the smallest known one.
type smallerPlans struct {
	t       *testing.T
	by      *session
	random  *rand.Rand
	most    int // plans of a trial
	lowered int

	found *planir.Plan // the one that holds least
	least int64        // bytes
}

// openChoice is an operator whose candidates are all tried: its program, section and node.
type openChoice struct{ program, section, node int }

// ofSchemes tries plans with the session's schemes: in each trial all operators on one processor or as chance has it,
// and all combinations of the candidates of a few.
func (s *smallerPlans) ofSchemes(trials int) {
	atLeast, err := s.by.leastBytes(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	free, err := s.by.eachAlone(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	mover, err := s.by.mover(free)
	if err != nil {
		s.t.Fatal(err)
	}
	defer mover.restore()

	choices := mover.j.choices(free)
	for range trials {
		all := s.place(mover, choices)
		s.random.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
		count, open := 1, all[:0:0]
		for _, at := range all {
			if size := len(candidatesAt(mover, at)); size > 1 && count*size <= s.most {
				count, open = count*size, append(open, at)
			}
		}
		for combination := range count {
			for _, at := range open {
				size := len(candidatesAt(mover, at))
				choices[at.program][at.section][at.node] = combination % size
				combination /= size
			}
			s.try(mover, choices, atLeast)
		}
	}
}

// place draws the candidates of all operators, or puts them on one processor where that executes them. It returns the
// operators.
func (s *smallerPlans) place(mover *mover, choices [][][]int) (all []openChoice) {
	for program, pr := range mover.j.programs {
		for section, in := range pr.instances {
			for node := range in.candidates {
				all = append(all, openChoice{program, section, node})
				choices[program][section][node] = s.random.IntN(len(in.candidates[node]))
			}
		}
	}
	if s.random.IntN(2) == 0 {
		proc := s.by.Procs[s.random.IntN(len(s.by.Procs))].Name
		for _, at := range all {
			choices[at.program][at.section][at.node] = max(0, wholeOn(candidatesAt(mover, at), proc))
		}
	}
	return all
}

// candidatesAt returns the candidates of an operator.
func candidatesAt(mover *mover, at openChoice) []price.Candidate {
	return mover.j.programs[at.program].instances[at.section].candidates[at.node]
}

// try lowers the plan of choices and compares what it holds with its bound and with the least known.
func (s *smallerPlans) try(mover *mover, choices [][][]int, atLeast int64) {
	plan, err := mover.plan(choices)
	if err != nil {
		s.t.Fatal(err)
	}
	if plan == nil {
		return
	}
	s.lowered++
	held := planir.MemoryOf(plan)
	plan.Memory = &held
	if held.Total < s.least {
		s.least, s.found = held.Total, plan
	}
	if bound := atLeast + s.by.fixedBytes(plan); held.Total < bound {
		s.t.Fatalf("a plan holds %d bytes (%v), with its schemes the bound is %d", held.Total, held, bound)
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
		model := rapid.SampledFrom(list).Draw(rt, "model")
		soc := coresAndNPU(t)
		npu := soc.Processor("npu")
		npu.Fuses, npu.Prepacks = rapid.Bool().Draw(rt, "fuses"), rapid.Bool().Draw(rt, "prepacks")
		npu.WeightRanges = rapid.Bool().Draw(rt, "ranges")
		soc.Processor(soc.Control).FusesGLU = rapid.Bool().Draw(rt, "fuses a GLU")
		scheme := rapid.SampledFrom([]op.Scheme{op.A32W32, op.A8TQ8C, mixed}).Draw(rt, "scheme")
		made := &drawn{model: model, scheme: scheme, session: exactSession(t, soc, model, scheme)}
		ses := made.session
		least, err := ses.leastBytes(t.Context())
		if err != nil {
			rt.Fatal(err)
		}

		if made.plan, err = ses.eachAlone(t.Context()); err != nil {
			rt.Fatal(err)
		}
		var plans []*planir.Plan
		for i := range ses.Procs {
			plans = append(plans, made.wholeOn(rt, ses.Procs[i].Name))
		}
		for range 3 {
			plans = append(plans, made.draw(rt))
		}
		weights := ses.weightBytes(ses.prefill, ses.decode) + ses.leastPool()
		for _, plan := range plans {
			held := planir.MemoryOf(plan)
			plan.Memory = &held
			if beside := held.Total - ses.fixedBytes(plan); beside < least || beside < weights {
				rt.Fatalf("%s %s: a plan holds %d bytes (%v), %d beside fixed ones, and the bounds are %d and %d\n%s",
					model.Name, scheme, held.Total, held, beside, least, weights, planir.Dump(plan))
			}
		}
	})
}

// wholeOn decides every operator as a whole, on one processor where that can execute it.
func (d *drawn) wholeOn(rt *rapid.T, proc string) *planir.Plan {
	plan := *d.plan
	plan.Decisions, plan.Solver, plan.Program = nil, nil, planir.Program{}
	for i, rows := range append([]int{1}, d.session.want.Buckets...) {
		pr, err := d.session.program(rows, d.session.assigned(rows))
		if err != nil {
			rt.Fatal(err)
		}
		for _, in := range pr.instances {
			choices := make([]int, len(in.candidates))
			for node, list := range in.candidates {
				choices[node] = wholeOn(list, proc)
			}
			d.appendDecisions(&plan, in.decisions(choices), i > 0)
		}
	}
	if err := d.session.lower(&plan); err != nil {
		rt.Fatal(err)
	}
	return &plan
}
