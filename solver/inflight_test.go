package solver

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// inFlightInput is a prompt of two chunks for a phone whose NPU does not compute attention, with operators placed
// whole.
func inFlightInput(t testing.TB, model *models.Model, scheme op.Scheme, chunks int) Input {
	t.Helper()
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	work := permit(scheme)
	work.Buckets, work.Prompts = []int{256}, []workload.Prompt{{Tokens: 512, Share: 1}}
	work.Context, work.ChunksInFlight = 1024, chunks
	return Input{Model: model, SoC: soc, Costs: costs(t, soc, model, scheme), Workload: work, Engine: exact.Engine{},
		Strategies: []planir.Strategy{planir.Single, planir.Padding}}
}

// Chunks of a prompt are in flight together where that is faster: what is predicted is what execution takes on the
// virtual clock, no slower than one chunk after the other, and the logits are the same.
func TestInFlightTakesAsLongAsPredicted(t *testing.T) {
	model := demo(t)
	in := inFlightInput(t, model, op.A8TQ8C, 2)
	two := solve(t, in).Plan
	if two.InFlight == nil {
		t.Fatal("one chunk is processed at a time")
	}

	in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { w.ChunksInFlight = 0 })
	one := solve(t, in).Plan
	if one.InFlight != nil || one.Memory.Weights != two.Memory.Weights || one.Memory.Pool >= two.Memory.Pool {
		t.Errorf("without: %+v, %v; with: %v", one.InFlight, one.Memory, two.Memory)
	}

	tokens := manyTokens(512)
	var took [2]int64
	for i, plan := range []*planir.Plan{one, two} {
		content, err := emit.NewContent(context.Background(), plan, model, []driver.Compiler{sim.NewCompiler(in.SoC)})
		if err != nil {
			t.Fatal(err)
		}
		machine := machineOf(t, in.SoC, plan, content)
		err = machine.Do(context.Background(), func(control *executor.Control) error {
			timing, err := control.Forward(tokens, executor.WantNone, nil)
			took[i] = timing.NS
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}

	predicted := prediction(t, two, "prefill@256x2")
	head := int64(0) // which is not executed
	for _, section := range predicted.Sections {
		if section.Section == "head" {
			head = section.NS
		}
	}
	if off := float64(took[1])/float64(predicted.PlanNS-head) - 1; math.Abs(off) > 0.01 {
		t.Errorf("512 tokens take %d ns on the virtual clock, predicted %d", took[1], predicted.PlanNS-head)
	}
	if took[1] >= took[0] {
		t.Errorf("two chunks in flight take %d ns, one after the other %d ns", took[1], took[0])
	}
	t.Logf("512 tokens: in flight %d ns, one after the other %d ns, by %q, %+v", took[1], took[0], two.InFlight.By,
		two.Solver[len(two.Solver)-1])
}

// Where nothing is gained, or the buffers have no room, one chunk is processed at a time, and solve says why.
func TestInFlightIsNotDecided(t *testing.T) {
	model := demo(t)
	for why, change := range map[string]func(in *Input){
		"exceed the context": func(in *Input) {
			in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) {
				w.Buckets, w.Prompts = []int{1024}, nil
			})
		},
		"no order of the steps": func(in *Input) { in.Only = []string{"cpu"} },
		"longer than " + workload.KeyPrefill: func(in *Input) {
			alone := *in
			alone.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { w.ChunksInFlight = 1 })
			most := float64(prediction(t, solve(t, alone).Plan, "prefill@256").PlanNS+1) / 1e6
			in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { w.Limits.PrefillMS = most })
		},
		"memory is to be least": func(in *Input) { in.Minimise(problem.Memory) },
		"break a bound": func(in *Input) {
			alone := *in
			alone.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { w.ChunksInFlight = 1 })
			in.MaxMemory = solve(t, alone).Plan.Memory.Total
		},
	} {
		in := inFlightInput(t, model, op.A8TQ8C, 2)
		change(&in)
		result := solve(t, in)
		found := false
		for _, note := range result.Warnings {
			found = found || strings.Contains(note.Summary, why)
		}
		if !found || result.Plan.InFlight != nil {
			t.Errorf("%s: %+v, notes %v", why, result.Plan.InFlight, result.Warnings)
		}
	}
}

// A plan whose operators are divided for one chunk at a time has them whole where two chunks in flight are faster so,
// and only in the program of the chunks; a prompt of a single chunk keeps it from that.
func TestInFlightWithOperatorsWhole(t *testing.T) {
	require.Slow(t)
	in := inFlightInput(t, demo(t), op.A8TQ8C, 2)
	in.Strategies = nil
	best := solve(t, in)
	restricted := in
	restricted.Strategies = []planir.Strategy{planir.Single, planir.Padding}
	whole := solve(t, restricted)
	turns := in
	turns.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { w.ChunksInFlight = 1 })
	one := solve(t, turns)
	if best.Plan.InFlight == nil || best.ExpectedNS > whole.ExpectedNS || best.ExpectedNS >= one.ExpectedNS {
		t.Errorf("in flight %+v: expected %v ns, with whole operators everywhere %v, with one chunk at a time %v",
			best.Plan.InFlight, best.ExpectedNS, whole.ExpectedNS, one.ExpectedNS)
	}

	for i := range best.Plan.Decisions {
		decision := &best.Plan.Decisions[i]
		if decision.Rows == 256 && len(decision.Shares) > 1 {
			t.Errorf("%s has %d shares", decision.Node, len(decision.Shares))
		}
		if decision.Rows == 1 && !price.SameShares(decision, DecisionAt(one.Plan, decision.Node, 1)) {
			t.Errorf("decode of %s differs from that of one chunk at a time", decision.Node)
		}
	}

	in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) {
		w.Prompts = []workload.Prompt{{Tokens: 256, Share: 99}, {Tokens: 512, Share: 1}}
	})
	isDivided := func(decision planir.Decision) bool { return decision.Rows == 256 && len(decision.Shares) > 1 }
	rare := solve(t, in).Plan
	isSame := slices.ContainsFunc(rare.Decisions, isDivided) == slices.ContainsFunc(one.Plan.Decisions, isDivided)
	if rare.InFlight != nil && !isSame {
		t.Errorf("for one prompt in a hundred the program of all others is another one: %+v", rare.InFlight)
	}
}

// Prompts that the largest program takes in one call are counted also where they do not fill it, and without prompts
// every call is one: chunks in flight slow neither.
func TestInFlightSlowsNoShortPrompt(t *testing.T) {
	require.Slow(t)
	in := inFlightInput(t, demo(t), op.A8TQ8C, 2)
	in.Strategies = nil
	for name, prompts := range map[string]workload.Prompts{
		"one in a hundred has two chunks": {{Tokens: 200, Share: 99}, {Tokens: 512, Share: 1}},
		"no prompts":                      nil,
	} {
		in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { w.Prompts = prompts })
		turns := in
		turns.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { w.ChunksInFlight = 1 })
		if both, one := solve(t, in), solve(t, turns); both.ExpectedNS > one.ExpectedNS {
			t.Errorf("%s: expected %v ns with chunks in flight (%+v), and %v one by one", name, both.ExpectedNS,
				both.Plan.InFlight, one.ExpectedNS)
		}
	}
}
