package traffic

import (
	"context"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/emit"
	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/scheduler"
	"github.com/hetc/hetc/runtime/serving"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/workload"
)

const demo = "../../../testdata/models/tiny-llama-kjv"

// onOneCore is the demo model on a core of this machine, with programs of 16 and 64 rows and batches of 2 and 4, whose
// times are made up.
func onOneCore(t *testing.T) *executor.Machine {
	t.Helper()
	model, err := models.Open(demo)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { model.Close() })
	digest, err := model.Digest()
	if err != nil {
		t.Fatal(err)
	}
	plan := &planir.Plan{
		Schema: planir.Schema, Model: planir.ModelRef{Name: model.Name, Digest: digest, BOS: model.BOS, EOS: model.EOS},
		SoC: planir.SoCRef{Name: "test", Control: "a"}, MaxContext: 256, KV: op.F32, Batches: []int{2, 4},
		Procs: []planir.Proc{{Name: "a", Kind: "cpu", Driver: "host", Select: "0", Cores: []int{0},
			Set: capability.Set{Tile: capability.Tile{K: pack.BlockK, N: pack.TileN}, Schemes: op.Schemes,
				Layouts:     map[string]string{"q8c": pack.N32, "w32": pack.N32},
				DynamicRows: true, StridedInput: true, StridedOutput: true, WeightRanges: true}}},
	}
	graph := model.Graph()
	batch := graph.Batch()
	scheme := func(string, int) op.Scheme { return op.A8TQ8C }
	for _, part := range []struct {
		graph *models.Graph
		rows  []int
	}{{&graph, []int{1, 16, 64}}, {&batch, plan.Batches}} {
		decisions, err := lower.Trivial(part.graph, "a", part.rows, plan.MaxContext, op.F32, scheme)
		if err != nil {
			t.Fatal(err)
		}
		plan.Decisions = append(plan.Decisions, decisions...)
	}
	if err := lower.Lower(plan, &graph); err != nil {
		t.Fatal(err)
	}
	for program, us := range map[string]int64{"decode": 1000, "decode@2": 1100, "decode@4": 1400, "prefill@16": 1500,
		"prefill@64": 4000} {
		plan.Predictions = append(plan.Predictions, planir.Prediction{Program: program, PlanNS: us * 1e3,
			Sections: []planir.SectionTime{{Section: "head", NS: 300e3}}})
	}
	content, err := emit.NewContent(t.Context(), plan, model, []driver.Compiler{hostcompiler.New()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { content.Close() })
	machine, err := executor.Open(t.Context(), plan, content, executor.Options{Drivers: []driver.Driver{host.New()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { machine.Close() })
	return machine
}

// The simulation is the server: on a clock on which every program call takes what the plan predicts, every policy gives
// every request every token at the very time that the simulation says.
func TestSimulateIsServing(t *testing.T) {
	machine := onOneCore(t)
	times := serving.TimesOf(machine.Plan())
	if _, whole := times.Chunk(64); whole != 4000e3 {
		t.Fatalf("a last chunk of 64 tokens takes %d ns, want 4 ms", whole)
	}
	if _, part := times.Chunk(65); part != 3700e3 {
		t.Fatalf("a chunk that computes no logits takes %d ns, want 3.7 ms", part)
	}
	if three := times.Decode(3); three != 1250e3 {
		t.Fatalf("an iteration of 3 takes %d ns, want 1.25 ms: between those of 2 and 4", three)
	}
	for seed := range uint64(2) {
		trace := drawn(t, Pattern{Seconds: 0.3, Reactive: 1500, Proactive: 6000, Seed: seed})
		for _, policy := range scheduler.Policies {
			config := scheduler.Default(4)
			config.Policy, config.AgeNS = policy, 40e6
			want, err := Simulate(t.Context(), machine.Plan(), trace, config)
			if err != nil {
				t.Fatal(err)
			}
			clock := &virtualClock{took: func(call serving.Call) int64 {
				if call.Tokens > 0 {
					_, ns := times.Chunk(call.Rest)
					return ns
				}
				return times.Decode(call.Sequences)
			}}
			config.Queue = 0
			courses, metrics, err := clock.play(t.Context(), machine, trace, serving.Options{Scheduler: config})
			if err != nil {
				t.Fatal(err)
			}
			got := summarise(policy, courses, metrics.BusyNS, scheduler.Counts{Chunks: metrics.Chunks,
				Iterations: metrics.Iterations, Preemptions: metrics.Preemptions})
			got.Simulated, got.Processors, got.Processed = true, want.Processors, want.Processed
			for i := range got.Classes { // only the simulation knows when a chunk begins
				got.Classes[i].Pending = want.Classes[i].Pending
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("seed %d, %s: the server gave\n%+v\nthe simulation said\n%+v", seed, policy, got, want)
			}
		}
	}
}

// drawn is a trace of prompts and answers of the demo model.
func drawn(t *testing.T, pattern Pattern) []Request {
	t.Helper()
	pattern.Prompt, pattern.Output = Range{1, 150}, Range{1, 20}
	trace, err := pattern.Draw()
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

// What calls take in a server is learnt from some requests, and predicts others: on a clock on which the server takes a
// time of its own for every kind of call, and for waking up after short and long idle times, the simulation says of
// other requests at what time each gets each token. By the plan alone first tokens come too early.
func TestServedCallsPredictOtherRequests(t *testing.T) {
	machine := onOneCore(t)
	overheads := &Overheads{}
	// with all idle times before all kinds of calls
	idling := drawn(t, Pattern{Seconds: 3, Reactive: 600, Proactive: 1800, Seed: 8})
	for _, policy := range []scheduler.Policy{scheduler.Batching, scheduler.Full} {
		config := scheduler.Default(4)
		config.Policy = policy
		_, inBursts := serveSlowly(t, machine, bursts(machine.Plan(), 4, 150, 1, 0.5)[0], config)
		_, others := serveSlowly(t, machine, idling, config)
		overheads.Calls = merge(overheads.Calls, inBursts, others)
	}
	trace := drawn(t, Pattern{Seconds: 1, Reactive: 600, Proactive: 1800, Seed: 9})
	for _, policy := range scheduler.Policies {
		config := scheduler.Default(4)
		config.Policy, config.AgeNS = policy, 40e6
		want, _ := serveSlowly(t, machine, trace, config)
		got, err := simulateServed(t.Context(), machine.Plan(), trace, config, overheads)
		if err != nil {
			t.Fatal(err)
		}
		byPlan, err := Simulate(t.Context(), machine.Plan(), trace, config)
		if err != nil {
			t.Fatal(err)
		}
		for i := range want.Classes {
			if early := 1 - byPlan.Classes[i].TTFT/want.Classes[i].TTFT; early < 0.2 {
				t.Errorf("%s: by the plan alone first tokens are %.1f %% too early, which shows nothing", policy,
					100*early)
			}
			got.Classes[i].Pending = 0 // only the simulation knows when a chunk begins
		}
		got.Simulated, got.Processors, got.Processed = false, nil, 0
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: simulated\n%+v\nthe server gave\n%+v", policy, got, want)
		}
	}
}

// serveSlowly plays a trace with the server on a clock on which calls take longer than the plan predicts, each kind by
// a time of its own, and the first one after an idle time still longer.
func serveSlowly(
	t *testing.T, machine *executor.Machine, trace []Request, config scheduler.Config,
) (*Report, []serving.CallTimes) {
	t.Helper()
	times := serving.TimesOf(machine.Plan())
	ended := int64(-1)
	clock := &virtualClock{}
	clock.took = func(call serving.Call) int64 {
		key, ns := times.Planned(call)
		switch key.Kind {
		case serving.DecodeCall:
			ns += 500e3 + 100e3*int64(key.Size*key.Size)
		case serving.ChunkCall:
			ns += 800e3
		default:
			ns += 900e3
		}
		if clock.now > ended { // there was nothing to do
			ns += 700e3 * int64(serving.AfterIdle(clock.now-max(ended, 0)))
		}
		ended = clock.now + ns
		return ns
	}
	config.Queue = 0
	courses, metrics, err := clock.play(t.Context(), machine, trace, serving.Options{Scheduler: config})
	if err != nil {
		t.Fatal(err)
	}
	return summarise(config.Policy, courses, metrics.BusyNS, scheduler.Counts{Chunks: metrics.Chunks,
		Iterations: metrics.Iterations, Preemptions: metrics.Preemptions}), metrics.Calls
}

// simulatedMachine is the demo model on a catalog SoC, planned from a profile on its virtual clock.
func simulatedMachine(t *testing.T, name string) *executor.Machine {
	t.Helper()
	ctx := context.Background()
	soc, err := socs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	model, err := models.Open(demo)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { model.Close() })
	scheme := []op.Scheme{op.A8TQ8C}
	work := &workload.Workload{Schema: workload.Schema, Context: 256, OutputTokens: 10, Buckets: workload.Rows{16, 64},
		Prompts: []workload.Prompt{{Tokens: 40, Share: 1}, {Tokens: 100, Share: 1}}, Batches: workload.Rows{2, 4},
		Schemes: workload.Schemes{Prefill: scheme, Decode: scheme}}
	needs, err := work.Needs(model.MaxContext)
	if err != nil {
		t.Fatal(err)
	}
	requests, err := profiler.Requests(soc, model, profiler.Want{Buckets: needs.Buckets, Batches: needs.Batches,
		Schemes: needs.On(soc), MaxContext: needs.Context, Caches: needs.Caches})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "rec.jsonl")
	if err := bindings.Simulate(ctx, soc, requests, path); err != nil {
		t.Fatal(err)
	}
	set, err := record.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	costs, err := roofline.Fit(soc, set)
	if err != nil {
		t.Fatal(err)
	}
	solved, err := solver.Solve(ctx,
		solver.Input{Model: model, SoC: soc, Costs: costs, Workload: work, Engine: exact.Engine{}})
	if err != nil {
		t.Fatal(err)
	}
	content, err := emit.NewContent(ctx, solved.Plan, model, []driver.Compiler{sim.NewCompiler(soc)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { content.Close() })
	machine, err := executor.Open(ctx, solved.Plan, content, executor.Options{Drivers: []driver.Driver{sim.New(soc)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { machine.Close() })
	return machine
}

// What the server takes on the clock of simulated processors is what the simulation predicts of the plan: throughput
// and mean times to the first token, of both classes under every policy, and steps of every number of sequences, also
// of 3, for which the plan has no program of its own. What is left is where in a text a call is: the plan predicts the
// mean of its workload.
func TestServingTakesAsLongAsSimulated(t *testing.T) {
	machine := simulatedMachine(t, "core-ultra-5-125h")
	_, chunk := serving.TimesOf(machine.Plan()).Chunk(64)
	each := 60e9 / (3 * float64(chunk)) // requests a minute that keep the machine busy for most of the time
	pattern := Pattern{Seconds: 60 * 60 / each, Reactive: each * 0.6, Proactive: each * 1.2, Prompt: Range{20, 120},
		Output: Range{2, 20}, Seed: 5}
	trace, err := pattern.Draw()
	if err != nil {
		t.Fatal(err)
	}
	steps := map[int]bool{}
	for _, policy := range scheduler.Policies {
		config := scheduler.Default(4)
		config.Policy = policy
		want, err := Simulate(t.Context(), machine.Plan(), trace, config)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Measure(t.Context(), machine, trace, config)
		if err != nil {
			t.Fatal(err)
		}
		if !got.Virtual || len(got.Classes) != 2 || len(got.Calls) < 3 {
			t.Fatalf("%s: %+v", policy, got)
		}
		within := func(what string, got, want, most float64) {
			t.Helper()
			t.Logf("%s, %s: %.4g, simulated %.4g", policy, what, got, want)
			if off := math.Abs(got/want - 1); !(off <= most) {
				t.Errorf("%s, %s: %v on the virtual clock, %v simulated: %.1f %% apart, want at most %.0f %%", policy,
					what, got, want, 100*off, 100*most)
			}
		}
		t.Logf("busy for %.0f %% of %v s", 100*got.Busy, got.Seconds)
		for _, call := range got.Calls {
			if call.ServedMS != call.MeasuredMS { // nothing else takes time
				t.Errorf("%s: a call was served in %v ms and took %v", policy, call.ServedMS, call.MeasuredMS)
			}
			if call.Kind == serving.DecodeCall.String() {
				steps[call.Size] = true
				within(fmt.Sprintf("a step of %d", call.Size), call.MeasuredMS, call.PredictedMS, 0.03)
			}
		}
		within("tokens/s", got.Rate, want.Rate, 0.05)
		for i := range got.Classes {
			within(got.Classes[i].Class+" TTFT", got.Classes[i].TTFT, want.Classes[i].TTFT, 0.15)
		}
	}
	if len(steps) != 4 {
		t.Errorf("steps of %v sequences were executed, want of 1 to 4", slices.Sorted(maps.Keys(steps)))
	}
}
