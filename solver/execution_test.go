package solver

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/workload"
)

// What a solved program takes on the simulated machine's clock is what was predicted: prices, strategies, lowering and
// timeline against the executor and the driver, which share no code with them.
func TestExecutionTakesAsLongAsPredicted(t *testing.T) {
	require.Slow(t)
	model := demo(t)
	soc := twoCores(t, 0.6)
	soc.Joint[0].BandwidthGBps = 12 // of the 16 that both would read alone
	soc.Processors[0].BandwidthGBps, soc.Processors[1].BandwidthGBps, soc.Processors[2].BandwidthGBps = 10, 6, 9
	for i := range soc.Processors {
		proc := &soc.Processors[i]
		proc.Schemes, proc.Layouts["w16"] = append(proc.Schemes, op.A8OQ8C), op.TilesLayout
		proc.Sim.Schemes[op.A8OQ8C] = proc.Sim.Schemes[op.A8TQ8C]
	}

	work := workload.Default()
	work.Prompts, work.OutputTokens, work.Buckets = []workload.Prompt{{Tokens: 256, Share: 1}}, 128, []int{64, 256}
	work.Batches = []int{3, 8}
	cal := observed(model, invented(t, model, rand.New(rand.NewPCG(7, 8)), op.A8TQ8C))
	for name, scheme := range map[string]op.Scheme{"stored": op.A32W32, "quantised": op.A8TQ8C, "shadow": op.A8OQ8C} {
		t.Run(name, func(t *testing.T) {
			work.Schemes = workload.Schemes{Prefill: []op.Scheme{scheme}, Decode: []op.Scheme{scheme}}
			in := Input{Model: model, SoC: soc, Costs: batchCosts(t, soc, model, work.Batches, scheme), Workload: work,
				Calibration: cal, Engine: exact.Engine{}}
			plan := solve(t, in).Plan
			divided := 0
			for _, decision := range plan.Decisions {
				if len(decision.Shares) > 1 {
					divided++
				}
			}
			if divided < 10 {
				t.Fatalf("%d decisions divide their operator: nothing to wait for", divided)
			}

			content, err := emit.NewCalibrated(context.Background(), plan, model, cal,
				[]driver.Compiler{sim.NewCompiler(soc)})
			if err != nil {
				t.Fatal(err)
			}
			machine := machineOf(t, soc, plan, content)
			compareCalls(t, machine, in, plan)
			compareBatches(t, machine, plan, work.Batches)
		})
	}
}

// machineOf opens a simulated machine that executes a plan, until the test ends. It closes the content, too.
func machineOf(t *testing.T, soc *socs.SoC, plan *planir.Plan, content *emit.Content) *executor.Machine {
	t.Helper()
	t.Cleanup(func() { content.Close() })
	machine, err := executor.Open(t.Context(), plan, content,
		executor.Options{Drivers: []driver.Driver{sim.New(soc)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { machine.Close() })
	return machine
}

// compareCalls compares what calls of prompts and of decode take with what was predicted.
func compareCalls(t *testing.T, machine *executor.Machine, in Input, plan *planir.Plan) {
	t.Helper()
	forward := func(tokens int) (ns int64) {
		err := machine.Do(context.Background(), func(control *executor.Control) error {
			ids := make([]int32, tokens)
			got, err := control.Forward(ids, executor.WantLast, func(int, []float32) error { return nil })
			if ns = got.NS; !got.Virtual {
				t.Error("the time is not virtual")
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return ns
	}
	compareNS(t, plan, "prefill@256", forward(256))
	forward(63) // decode is predicted for the middle of the answer
	compareNS(t, plan, "decode", forward(1))

	// Calls behind others attend to what these have left: a whole chunk, and a part of one.
	caller, err := NewCaller(in, plan)
	if err != nil {
		t.Fatal(err)
	}
	position := 320
	for _, rows := range []int{256, 44, 1} {
		position += rows
		want, err := caller.NS(rows, position)
		if err != nil {
			t.Fatal(err)
		}
		if got := forward(rows); math.Abs(float64(got)/float64(want)-1) > 0.03 {
			t.Errorf("%d rows at %d: %d ns on the simulated machine, predicted %d", rows, position, got, want)
		}
	}
	if _, err := caller.NS(0, 5); err == nil {
		t.Error("a call of no rows is predicted")
	}
}

// compareNS compares what a program took on the simulated machine with what its plan predicts.
func compareNS(t *testing.T, plan *planir.Plan, program string, got int64) {
	t.Helper()
	want := prediction(t, plan, program).PlanNS
	if off := math.Abs(float64(got)/float64(want) - 1); off > 0.01 {
		t.Errorf("%s: %d ns on the simulated machine, predicted %d", program, got, want)
	}
}

// compareBatches compares what steps of batches take with what was predicted.
func compareBatches(t *testing.T, machine *executor.Machine, plan *planir.Plan, batches []int) {
	t.Helper()
	for _, sequences := range batches {
		tokens := make([]executor.Token, sequences)
		machine.Reset()
		err := machine.Do(context.Background(), func(control *executor.Control) error {
			for i := range tokens {
				tokens[i].Sequence = i
				if _, err := control.Extend(i, make([]int32, 319), executor.WantNone, nil); err != nil {
					return err
				}
			}
			got, err := control.Step(tokens, nil)
			compareNS(t, plan, lower.ProgramName(sequences, true), got.NS)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// observed adds to a calibration that every channel of what enters a product reaches 1.
func observed(model *models.Model, cal *calibration.Calibration) *calibration.Calibration {
	addActivations(cal, model)
	for i := range cal.Activations {
		cal.Activations[i].AbsMax = slices.Repeat([]float32{1}, cal.Activations[i].K)
	}
	return cal
}

// A static processor that writes whole buffers executes its gathered, padded and row shares, also when a call has fewer
// rows than the program.
func TestExecutionOnStaticProcessor(t *testing.T) {
	require.Slow(t)
	model := demo(t)
	soc := twoCores(t, 1)
	soc.Processors = soc.Processors[:2]
	npu := soc.Processor("c1")
	npu.Kind, npu.Cores, npu.StaticShapes, npu.DynamicRows = socs.KindNPU, nil, true, false
	npu.StridedInput, npu.StridedOutput, npu.WeightRanges, npu.Tile.M = false, false, false, 32
	npu.Kinds, npu.KV = []op.Kind{op.Norm, op.QuantRows, op.MatMul, op.GLU, op.Add, op.Copy}, nil
	work := workload.Default()
	work.Buckets, work.Batches = []int{48, 256}, []int{40}
	plan := solve(t, Input{Model: model, SoC: soc, Costs: batchCosts(t, soc, model, work.Batches, op.A32W32),
		Workload: work}).Plan

	gathers, padded, inBatch := 0, 0, 0
	for _, graph := range plan.Program.Graphs {
		if graph.Graph.Nodes[0].Op.Kind == op.Copy {
			gathers++
		}
	}
	for _, decision := range plan.Decisions {
		for _, share := range decision.Shares {
			if share.PadRows > 0 {
				padded++
			}
			if decision.Rows == 40 && share.Proc == "c1" {
				inBatch++
			}
		}
	}
	if gathers == 0 || padded == 0 || inBatch == 0 {
		t.Fatalf("%d gathers, %d padded shares and %d in the batch: nothing to execute", gathers, padded, inBatch)
	}

	single := onOneCore(t, model, plan, 1, 48, 256)
	tokens := manyTokens(256 + 20)
	for _, count := range []int{256, 48, 40, 100, len(tokens)} {
		got, want := logitsOf(t, model, soc, plan, tokens[:count]), logitsOf(t, model, soc, single, tokens[:count])
		if worst := worstDifference(got, want); worst >= 1e-3 {
			t.Errorf("%d tokens: logits differ by %g", count, worst)
		}
	}

	// A batch that is not full: what the processor computes in rows that nobody uses reaches nobody.
	lengths := []int{20, 3, 50}
	together := logitsOfBatch(t, model, soc, plan, tokens, lengths)
	for i, length := range lengths {
		want := logitsOf(t, model, soc, single, tokens[:length+1])[length*model.Vocab:]
		if worst := worstDifference(together[i], want); worst >= 1e-3 {
			t.Errorf("sequence %d of a batch: logits differ by %g", i, worst)
		}
	}
}

// onOneCore returns the plan with everything on the first core, for programs of these rows.
func onOneCore(t *testing.T, model *models.Model, plan *planir.Plan, rows ...int) *planir.Plan {
	t.Helper()
	graph := model.Graph()
	single := *plan
	single.Batches = nil
	var err error
	single.Decisions, err = lower.Trivial(&graph, "c0", rows, plan.MaxContext, plan.KV,
		func(string, int) op.Scheme { return op.A32W32 })
	if err != nil {
		t.Fatal(err)
	}
	if err := lower.Lower(&single, &graph); err != nil {
		t.Fatal(err)
	}
	return &single
}

// manyTokens returns as many different tokens as there are in a small vocabulary.
func manyTokens(count int) []int32 {
	tokens := make([]int32, count)
	for i := range tokens {
		tokens[i] = int32(i * 7 % 2048)
	}
	return tokens
}

// logitsOfBatch computes one step of sequences that begin with tokens and have these lengths.
func logitsOfBatch(t *testing.T, model *models.Model, soc *socs.SoC, plan *planir.Plan, tokens []int32,
	lengths []int) [][]float32 {
	t.Helper()
	content, err := emit.NewContent(context.Background(), plan, model, []driver.Compiler{sim.NewCompiler(soc)})
	if err != nil {
		t.Fatal(err)
	}
	machine := machineOf(t, soc, plan, content)
	logits := make([][]float32, len(lengths))
	err = machine.Do(context.Background(), func(control *executor.Control) error {
		var next []executor.Token
		for i, length := range lengths {
			if _, err := control.Extend(7*i, tokens[:length], executor.WantNone, nil); err != nil {
				return err
			}
			next = append(next, executor.Token{Sequence: 7 * i, ID: tokens[length]})
		}
		_, err := control.Step(next, func(i int, row []float32) error {
			logits[i] = slices.Clone(row)
			return nil
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return logits
}

// logitsOf computes the logits of all tokens in calls of a plan's programs, on the simulated SoC.
func logitsOf(t *testing.T, model *models.Model, soc *socs.SoC, plan *planir.Plan, tokens []int32) []float32 {
	t.Helper()
	content, err := emit.NewContent(context.Background(), plan, model, []driver.Compiler{sim.NewCompiler(soc)})
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	machine, err := executor.Open(context.Background(), plan, content,
		executor.Options{Drivers: []driver.Driver{sim.New(soc)}})
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()
	return forwardPieces(t, machine, tokens, executor.WantAll, len(tokens))
}

// Standard pieces, one after the other on a static processor, alone or with what is left on another, compute what one
// processor does, also when a call has fewer rows.
func TestExecutionInPieces(t *testing.T) {
	require.Slow(t)
	model, soc := demo(t), withNPU(t, nil)
	work := workload.Default()
	work.Buckets = []int{48, 256, 352}
	work.Prompts, work.OutputTokens = []workload.Prompt{{Tokens: 352, Share: 1}}, 16
	fitted := costs(t, soc, model, op.A32W32)
	for _, strategy := range []planir.Strategy{planir.Pipe, planir.ActivationDivide} {
		t.Run(string(strategy), func(t *testing.T) {
			plan, pieces := planInPieces(t, Input{Model: model, SoC: soc, Costs: fitted, Workload: work}, strategy)
			inAll := pieces[256] >= 4 && pieces[48] >= 4
			if pieces[352] < 4 || strategy == planir.Pipe && !inAll {
				t.Fatalf("matrices in several pieces, by rows: %v", pieces)
			}
			if found := check.Plan(plan, model, soc); len(found) > 0 {
				t.Fatal(found)
			}

			single := onOneCore(t, model, plan, 1, 48, 256, 352)
			tokens := manyTokens(352 + 30)
			for _, count := range []int{352, 300, 48, 40, 33, 20, len(tokens)} {
				got := logitsOf(t, model, soc, plan, tokens[:count])
				want := logitsOf(t, model, soc, single, tokens[:count])
				if worst := worstDifference(got, want); worst >= 1e-3 {
					t.Errorf("%d tokens: logits differ by %g", count, worst)
				}
			}
		})
	}
}

// planInPieces makes a plan that divides matrices by a strategy into several pieces on the processor c1, wherever that
// is possible. pieces counts these matrices, by rows.
func planInPieces(t *testing.T, in Input, strategy planir.Strategy) (plan *planir.Plan, pieces map[int]int) {
	t.Helper()
	inPieces := func(candidate price.Candidate) bool {
		count := 0
		for _, share := range candidate.Shares {
			if share.Proc == "c1" {
				count++
			}
		}
		return candidate.Strategy == strategy && count > 1
	}

	ses := prepared(t, in)
	pieces = map[int]int{}
	var made solved
	for _, rows := range ses.want.Rows() {
		pr, err := ses.program(rows, ses.assigned(rows))
		if err != nil {
			t.Fatal(err)
		}
		var list []planir.Decision
		for _, in := range pr.instances {
			choices := make([]int, len(in.candidates))
			for node := range choices {
				if choice := slices.IndexFunc(in.candidates[node], inPieces); choice >= 0 {
					choices[node] = choice
					pieces[rows]++
				}
			}
			list = append(list, in.decisions(choices)...)
		}
		made.decisions, made.reports = append(made.decisions, list), append(made.reports, planir.Solve{})
	}
	plan, err := ses.buildPlan(made)
	if err != nil {
		t.Fatal(err)
	}
	return plan, pieces
}

// A group of like cores is a processor like others: alone, and beside an unlike one with which it has shares, a program
// takes on the virtual clock what was predicted.
func TestExecutionOfGroups(t *testing.T) {
	require.Slow(t)
	model := demo(t)
	for _, unlike := range []bool{false, true} {
		soc := twoCores(t, 1)
		for i := range soc.Processors {
			soc.Processors[i].PeakGops = map[string]float64{"f32": []float64{100, 100, 180}[i]}
		}
		if unlike {
			gpu := soc.Processors[1]
			gpu.Name, gpu.Select, gpu.Kind, gpu.Cores, gpu.PeakGops = "gpu", "gpu", socs.KindGPU, nil, nil
			soc.Processors = append(soc.Processors, gpu)
			soc.Joint = append(soc.Joint, socs.Joint{Processors: []string{"c01", "gpu"}, BandwidthGBps: 17})
			for _, other := range []string{"c0", "c1", "c01"} {
				soc.Links = append(soc.Links, socs.Link{From: other, To: "gpu", HandoverUS: 2},
					socs.Link{From: "gpu", To: other, HandoverUS: 2})
			}
		}

		work := workload.Default()
		work.Prompts, work.OutputTokens, work.Buckets = []workload.Prompt{{Tokens: 256, Share: 1}}, 128, []int{256}
		plan := solve(t, Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32), Workload: work}).Plan

		used := map[string]int{}
		for _, decision := range plan.Decisions {
			for _, share := range decision.Shares {
				if decision.Rows == 256 { // steps of decode are short, and may have shares of like cores
					used[share.Proc]++
				}
			}
		}
		if used["c01"] < 10 || unlike != (used["gpu"] > 5) || used["c1"] > 0 {
			t.Errorf("unlike processor = %v: decisions by processor %v, want most of the group, and of an unlike one",
				unlike, used)
		}

		if found := check.Plan(plan, model, soc); len(found) > 0 {
			t.Fatal(found)
		}

		content, err := emit.NewContent(t.Context(), plan, model, []driver.Compiler{sim.NewCompiler(soc)})
		if err != nil {
			t.Fatal(err)
		}
		machine := machineOf(t, soc, plan, content)
		err = machine.Do(t.Context(), func(control *executor.Control) error {
			for _, call := range []struct {
				program string
				tokens  int
			}{{"prefill@256", 256}, {"", 63}, {"decode", 1}} { // decode is predicted for the middle of the answer
				took, err := control.Forward(make([]int32, call.tokens), executor.WantLast,
					func(int, []float32) error { return nil })
				if err != nil {
					return err
				}
				if call.program != "" {
					compareNS(t, plan, call.program, took.NS)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
