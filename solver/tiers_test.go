package solver

import (
	"math"
	"slices"
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
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// The plan says what the problem decided: groups, the expert in each slot, shares of rows and times.
func TestTiersInThePlan(t *testing.T) {
	tiers := problem.GenerateTiers(5, 3, 12, 4)
	tiers.MaxTiers = 2
	instance := &TierInstance{Problem: tiers, NPU: "npu", CPU: "cpu", Schemes: []op.Scheme{op.A32W32, op.A32W32},
		Rows: 1024, Loads: &workload.Loads{Source: "synthetic", Generator: "zipf:1", Experts: 12},
		Layers: []int{0, 1, 5}}
	solution, err := exact.Engine{}.Tiers(t.Context(), tiers, problem.Limits{})
	if err != nil {
		t.Fatal(err)
	}

	out := instance.Plan(solution)
	slots := 0
	for _, count := range solution.Slots {
		slots += count
	}
	if out == nil || out.Slots() != slots || slots == 0 {
		t.Fatalf("%+v, want %d slots", out, slots)
	}

	for i, layer := range out.Layers {
		at := 0
		for _, group := range out.Groups {
			if group.Slots > 8 {
				t.Errorf("a group of %d experts", group.Slots)
			}
			for _, expert := range layer.Slots[at : at+group.Slots] {
				if choice := solution.Choices[i][expert]; choice == 0 || tiers.Capacities[choice-1] != group.Rows {
					t.Errorf("layer %d: expert %d has choice %d, and a slot of %d rows", i, expert, choice, group.Rows)
				}
			}
			at += group.Slots
		}
		if !(layer.Moved > 0 && layer.Moved+layer.Overflow <= 1) {
			t.Errorf("layer %d: %v moved, %v beyond", i, layer.Moved, layer.Overflow)
		}
	}

	var sum int64
	for _, layer := range out.Layers {
		sum += layer.ExpectNS
	}
	graphs := int64(len(slices.Compact(slices.Clone(out.Groups)))) * tiers.ShapeNS
	rounding := 2 * int64(len(out.Layers))
	if off := out.ExpectNS - sum - graphs; off < -rounding || off > rounding+graphs {
		t.Errorf("%d ns, and the layers take %d with %d for graphs", out.ExpectNS, sum, graphs)
	}

	found := planir.Check(&planir.Plan{Experts: []planir.ExpertTiers{*out}})
	for _, wrong := range found {
		if wrong.Code == "P018" {
			t.Error(wrong)
		}
	}

	none := problem.TierSolution{Slots: make([]int, 4), Choices: tiers.InOrder(make([]int, 4)), Objective: 1, Bound: 1}
	if instance.Plan(none) != nil {
		t.Error("tiers without slots")
	}
}

// Where the region of an NPU is limited, no rule gives a plan that is faster than solve's own choice by more than half
// a percent: the problem of tiers knows the buffers of slots, but not what moving rows to them costs.
func TestRulesInARegion(t *testing.T) {
	require.Slow(t)
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	model := open(t, "qwen1.5-moe-a2.7b")
	for _, test := range []struct {
		rows, tokens, chunks int
		generator            string
	}{{256, 256, 64, "zipf:1"}, {512, 64, 128, "zipf:0.6"}} {
		loads, err := workload.Synthetic(model, test.generator, test.tokens, test.chunks, 1)
		if err != nil {
			t.Fatal(err)
		}

		work := permit(op.A8TQ8C)
		work.Buckets, work.Context = []int{test.rows}, 2*test.rows
		work.Experts.Tiers = len(PaperLadder)
		in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A8TQ8C), Workload: work,
			Engine: exact.Engine{}, Loads: loads, Only: []string{"cpu", "npu"}}
		own := solve(t, in)
		chosen := predictedPrompt(own.Plan, test.rows).PlanNS

		for _, rule := range [][]string{{"paper"}, {"optimal"}, {"optimal", "ungrouped"}} {
			if in.TierRule, err = ParseTierRule(rule); err != nil {
				t.Fatal(err)
			}
			by := predictedPrompt(solve(t, in).Plan, test.rows).PlanNS
			t.Logf("%d rows, rule %v: %.1f ms, solve's own choice %.1f", test.rows, rule, float64(by)/1e6,
				float64(chosen)/1e6)
			if by < chosen-chosen/200 {
				t.Errorf("%d rows: rule %v takes %d ns, and solve's own choice %d", test.rows, rule, by, chosen)
			}
		}
	}
}

// Rules choose tiers whatever they gain, with groups on the processor of static shapes and in the scheme of the
// products whose rows they compute.
func TestTierRules(t *testing.T) {
	model, soc := open(t, "../testdata/arch/mixtral-full"), twoCores(t, 8)
	soc.Processors = soc.Processors[:2]
	npu := soc.Processor("c1")
	npu.Kind, npu.Cores, npu.StaticShapes, npu.DynamicRows = socs.KindNPU, nil, true, false
	npu.StridedInput, npu.StridedOutput, npu.WeightRanges, npu.Tile.M = false, false, false, 4
	npu.LaunchUS, npu.KV = 1e5, nil // slots never pay

	const rows = 64
	loads, err := workload.Synthetic(model, "zipf:1", rows, 16, 1)
	if err != nil {
		t.Fatal(err)
	}

	work := permit(op.A8TQ8C)
	work.Buckets, work.Context = []int{rows}, 2*rows
	in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A8TQ8C), Workload: work, Engine: exact.Engine{},
		Loads: loads}
	if left := solve(t, in); left.Plan.TiersOf(rows) != nil || len(left.TiersLeft) == 0 {
		t.Fatalf("solve takes tiers that do not pay: %v", left.Plan.Experts)
	}

	for _, test := range []struct {
		rule  []string
		check func(tiers *planir.ExpertTiers) bool
	}{
		{[]string{"paper"}, func(tiers *planir.ExpertTiers) bool {
			isOther := func(group planir.ExpertGroup) bool { return !slices.Contains(PaperLadder, group.Rows) }
			return tiers.Slots() == model.Experts && !slices.ContainsFunc(tiers.Groups, isOther)
		}},
		{[]string{"all"}, func(tiers *planir.ExpertTiers) bool { return tiers.Slots() == model.Experts }},
		{[]string{"paper", "ungrouped"}, func(tiers *planir.ExpertTiers) bool {
			return len(tiers.Groups) == model.Experts
		}},
	} {
		if in.TierRule, err = ParseTierRule(test.rule); err != nil {
			t.Fatal(err)
		}

		plan := solve(t, in).Plan
		tiers := plan.TiersOf(rows)
		if tiers == nil || !test.check(tiers) || tiers.BoundNS != 0 {
			t.Errorf("rule %v: %+v", test.rule, tiers)
			continue
		}

		groups := 0
		for _, graph := range plan.Program.Graphs {
			for _, node := range graph.Graph.Nodes {
				if node.Op.Kind != op.GroupMatMul {
					continue
				}
				groups++
				if graph.Proc != "c1" || node.Op.Scheme != op.A8TQ8C {
					t.Errorf("rule %v: a group of %s on %q, want %s on c1", test.rule, node.Op.Key(), graph.Proc,
						op.A8TQ8C)
				}
			}
		}
		if groups == 0 {
			t.Errorf("rule %v: no graph is one of a group", test.rule)
		}
	}

	for _, wrong := range [][]string{{"best"}, {"one", "paper"}} {
		if _, err := ParseTierRule(wrong); err == nil {
			t.Errorf("rule %v is taken", wrong)
		}
	}
	in.Loads = nil
	if _, err := Solve(t.Context(), in); err == nil {
		t.Error("a rule without loads is taken")
	}
}

// withSmallNPU is a solve of prompts of so many rows for a model of experts, on a core and an NPU that starts at once.
func withSmallNPU(t *testing.T, rows int) Input {
	t.Helper()
	model, soc := open(t, "../testdata/arch/mixtral-full"), twoCores(t, 8)
	soc.Processors = soc.Processors[:2]
	npu := soc.Processor("c1")
	npu.Kind, npu.Cores, npu.StaticShapes, npu.DynamicRows = socs.KindNPU, nil, true, false
	npu.StridedInput, npu.StridedOutput, npu.WeightRanges, npu.Tile.M = false, false, false, 4
	npu.Kinds, npu.KV = []op.Kind{op.MatMul, op.GLU, op.Add, op.Copy}, nil
	npu.LaunchUS, npu.Fuses = 0.01, true
	for i := range soc.Links {
		soc.Links[i].HandoverUS = 0.01
	}

	loads, err := workload.Synthetic(model, "zipf:1", rows, 16, 1)
	if err != nil {
		t.Fatal(err)
	}
	work := permit(op.A32W32)
	work.Buckets, work.Context = []int{rows}, 2*rows
	work.Prompts = []workload.Prompt{{Tokens: rows, Share: 1}}
	return Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32), Workload: work, Engine: exact.Engine{},
		Loads: loads}
}

// oneOfEach checks that a processor of groups has the experts in slots and no others, each once.
func oneOfEach(t *testing.T, plan *planir.Plan, proc string, rows int) {
	t.Helper()
	tiers := plan.TiersOf(rows)
	read := map[string]bool{} // by the processor's steps
	for _, program := range plan.Program.All() {
		for _, section := range program.Sections {
			for _, lane := range section.Lanes {
				for _, step := range lane.Steps {
					for _, ref := range step.W {
						read[ref.Pack] = read[ref.Pack] || lane.Proc == proc
					}
				}
			}
		}
	}

	own := 0
	for i := range plan.Program.Packs {
		packed := &plan.Program.Packs[i]
		if packed.Experts == 0 || !read[packed.Name] {
			continue
		}
		own++
		if !packed.Slotted || packed.Experts != tiers.Slots() {
			t.Errorf("pack %q has %d experts, slotted %v, want those of the %d slots", packed.Name, packed.Experts,
				packed.Slotted, tiers.Slots())
		}
	}
	if own != 2 {
		t.Errorf("%d packs of experts on %q, want one for each of the two products", own, proc)
	}
}

// countedSource is content of which is known how much was read.
type countedSource struct {
	*emit.Content
	bytes int64 // in whole pages
}

// Range counts what it reads.
func (c *countedSource) Range(blob string, offset, bytes int64) ([]byte, error) {
	c.bytes += op.RoundUp(bytes, planir.PageBytes)
	return c.Content.Range(blob, offset, bytes)
}

// countsRows checks that a machine on the virtual clock has counted the rows of one full call, in every layer with
// tiers.
func countsRows(t *testing.T, plan *planir.Plan, model *models.Model, stats []executor.ExpertStat, rows int) {
	t.Helper()
	tiers := plan.TiersOf(rows)
	if tiers == nil {
		if len(stats) > 0 {
			t.Errorf("%d layers are counted in a plan without tiers", len(stats))
		}
		return
	}

	if len(stats) != len(tiers.Layers) {
		t.Errorf("%d layers are counted, want %d", len(stats), len(tiers.Layers))
	}

	routed, reserved := int64(rows*model.ExpertsPerToken), int64(0)
	for _, group := range tiers.Groups {
		reserved += int64(group.Slots * group.Rows)
	}
	for _, stat := range stats {
		isFull := stat.Calls == 1 && stat.Routed == routed && stat.FullRouted == routed
		addsUp := stat.Moved >= 1 && stat.Moved+stat.Overflow <= routed && stat.Dropped == 0
		if !isFull || !addsUp || stat.Reserved != reserved {
			t.Errorf("counted %+v, want %d rows in %d reserved ones", stat, routed, reserved)
		}
	}
}

// A plan with tiers that solve has chosen takes what was predicted on the virtual clock, less than the dynamic plan,
// and gives the same logits.
func TestTiersTakeAsLongAsPredicted(t *testing.T) {
	const rows = 64
	in := withSmallNPU(t, rows)
	model, soc, loads := in.Model, in.SoC, in.Loads
	in.Loads = nil
	dynamic := solve(t, in)
	in.Loads = loads
	tiered := solve(t, in)

	if tiered.Plan.TiersOf(rows) == nil {
		t.Fatalf("no tiers: %v", tiered.Warnings)
	}
	oneOfEach(t, tiered.Plan, "c1", rows)
	if tiered.ExpectedNS >= dynamic.ExpectedNS {
		t.Errorf("expected %v ns with tiers, %v without", tiered.ExpectedNS, dynamic.ExpectedNS)
	}

	tokens := make([]int32, rows)
	for i := range tokens {
		tokens[i] = int32(i * 7 % model.Vocab)
	}
	var logits [2][]float32
	for i, plan := range []*planir.Plan{dynamic.Plan, tiered.Plan} {
		content, err := emit.NewContent(t.Context(), plan, model, []driver.Compiler{sim.NewCompiler(soc)})
		if err != nil {
			t.Fatal(err)
		}
		defer content.Close()

		source := &countedSource{Content: content}
		machine, err := executor.Open(t.Context(), plan, source,
			executor.Options{Drivers: []driver.Driver{sim.New(soc)}})
		if err != nil {
			t.Fatal(err)
		}
		defer machine.Close()
		if want := plan.Memory.Weights + plan.Memory.Tables; source.bytes != want {
			t.Errorf("plan %d: %d bytes of weights were read, predicted %d", i, source.bytes, want)
		}

		err = machine.Do(t.Context(), func(c *executor.Control) error {
			timing, err := c.Forward(tokens, executor.WantLast, func(_ int, row []float32) error {
				logits[i] = slices.Clone(row)
				return nil
			})
			countsRows(t, plan, model, machine.Experts(), rows)
			want := prediction(t, plan, "prefill@64").PlanNS
			// Moving rows to slots is priced like summing them up, which in a model this small is seen.
			if off := float64(timing.NS)/float64(want) - 1; math.Abs(off) > []float64{0.01, 0.02}[i] {
				t.Errorf("plan %d: %d ns on the virtual clock, predicted %d", i, timing.NS, want)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}

	for i := range logits[0] {
		if math.Abs(float64(logits[0][i]-logits[1][i])) > 1e-4 {
			t.Fatalf("logit %d is %v with tiers, %v without", i, logits[1][i], logits[0][i])
		}
	}
}

// What its graphs take to open has a price by the calls that opening serves: a plan for few calls has no tiers, one for
// more has as few different groups as pay.
func TestOpeningIsPriced(t *testing.T) {
	const rows = 64
	in := withSmallNPU(t, rows)
	in.SoC.Processor("c1").CompileMS = 1
	in.Costs = costs(t, in.SoC, in.Model, op.A32W32)

	shapes := func(calls int) int {
		in.Workload.Experts.CallsPerOpen = calls
		tiers := solve(t, in).Plan.TiersOf(rows)
		if tiers == nil {
			return 0
		}
		return len(slices.Compact(slices.Clone(tiers.Groups)))
	}

	few, many, free := shapes(1), shapes(1<<20), shapes(0)
	if few != 0 || many < 1 || free < many {
		t.Errorf("%d different groups for one call, %d for a million, %d without a price, want 0 and more", few, many,
			free)
	}

	posed := problem.GenerateTiers(7, 2, 12, 4)
	for _, posed.ShapeNS = range []int64{0, 1e6, 1e9} {
		before := few
		solution, err := exact.Engine{}.Tiers(t.Context(), posed, problem.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		few = 0
		for tier, count := range solution.Slots {
			few += int(posed.Groups()[tier].Shapes[count])
		}
		if posed.ShapeNS > 0 && few > before {
			t.Errorf("%d graphs at %d ns each, %d at less", few, posed.ShapeNS, before)
		}
	}
	if few != 0 {
		t.Errorf("%d graphs at a second each, want none", few)
	}

	posed.ShapeNS = 0
	posed.OwnGraphs = true
	for tier, groups := range posed.Groups() {
		for slots, count := range groups.Shapes {
			if want := len(groups.Sizes(slots)); int(count) != want {
				t.Errorf("tier %d, %d slots: %d graphs of their own weights, want %d", tier, slots, count, want)
			}
		}
	}
}

// Capacity tiers are kept where a plan takes less of what is minimised: those that save energy even where they take
// longer, and none where slots hold experts a second time and memory is minimised.
func TestTiersByMeasure(t *testing.T) {
	const rows = 64
	in := withSmallNPU(t, rows)
	in.SoC.Processor("c0").PowerW, in.SoC.Processor("c1").PowerW = 1, 0.1
	in.Costs = costs(t, in.SoC, in.Model, op.A32W32)
	loads := in.Loads

	for _, test := range []struct {
		measure problem.Measure
		tiered  bool
	}{{problem.Time, true}, {problem.Energy, true}, {problem.Memory, false}} {
		in.Minimise(test.measure)
		in.Loads = nil
		dynamic := solve(t, in)
		in.Loads = loads
		result := solve(t, in)
		if got := result.Plan.TiersOf(rows) != nil; got != test.tiered {
			t.Errorf("minimise %s: tiers %v, want %v (%q)", test.measure, got, test.tiered, result.TiersLeft)
		}

		takes, without := result.amountOf(test.measure), dynamic.amountOf(test.measure)
		if takes > without || test.tiered && takes == without {
			t.Errorf("minimise %s: %v with loads, and %v without", test.measure, takes, without)
		}
	}
}
