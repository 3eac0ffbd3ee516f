package solver

import (
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// realFacts are what QNN 2.51.0 said about a product of 2048 by 2048 in a16s/q8c for snapdragon-8gen3 (cmd/hetc's
// TestSpillRecord makes the record).
func realFacts(t testing.TB) *record.Set {
	t.Helper()
	set, err := record.Open("../testdata/facts/snapdragon-8gen3-2048.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// editedFacts is a set with other facts than realFacts.
func editedFacts(t testing.TB, change func(*record.Facts)) *record.Set {
	t.Helper()
	old := realFacts(t)
	set := record.NewSet(old.Header)
	for _, fact := range old.Facts() {
		changed := *fact
		change(&changed)
		if err := set.AddFacts(&changed); err != nil {
			t.Fatal(err)
		}
	}
	return set
}

// at250 is the input for a model with a product of 2048 by 2048 and prompts of 250 tokens.
func at250(t testing.TB, soc *socs.SoC) Input {
	t.Helper()
	model := open(t, "tinyllama-1.1b")
	digest, err := model.Digest()
	if err != nil {
		t.Fatal(err)
	}
	cal := &calibration.Calibration{Schema: calibration.Schema,
		Model: calibration.Model{Name: model.Name, Digest: digest}}
	for _, sec := range model.Graph().Sections {
		for _, node := range sec.Nodes {
			if !node.Ops[0].HasScheme() {
				continue
			}
			for layer := range max(1, sec.Layers) {
				cal.Activations = append(cal.Activations, calibration.Activation{Class: sec.Name + "." + node.Name,
					Layer: sec.First + layer, K: node.Ops[0].K, AbsMax: make([]float32, node.Ops[0].K),
					OutMax: make([]float32, node.Ops[0].N)})
			}
		}
	}

	work := workload.Default()
	work.Prompts, work.Buckets = workload.Prompts{{Tokens: 250, Share: 1}}, workload.Rows{250}
	work.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A16SQ8C}, Decode: []op.Scheme{op.A16SQ8C}}

	in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32, op.A16SQ8C), Engine: exact.Engine{},
		Workload: work, Calibration: cal, Only: []string{"npu"}}
	if err := in.ForTarget(); err != nil {
		t.Fatal(err)
	}
	return in
}

// rowsOf is the number of rows at which the plan computes a product for prompts of 250 tokens.
func rowsOf(t testing.TB, plan *planir.Plan, node string) int {
	t.Helper()
	decision := plan.DecisionFor(node, 250)
	if decision == nil || len(decision.Shares) != 1 || decision.Shares[0].Proc != "npu" {
		t.Fatalf("%s at 250 rows: %+v, want all of it on the NPU", node, decision)
	}
	return max(decision.Rows, decision.Shares[0].PadRows)
}

const outProduct = "layers.attn_out" // [2048,2048]

// compiledOf returns what a plan says of the compiled graphs of a node, nil if that is nothing.
func compiledOf(plan *planir.Plan, node string) *planir.Compiled {
	for i := range plan.Compiled {
		if plan.Compiled[i].Node == node {
			return &plan.Compiled[i]
		}
	}
	return nil
}

// Of lengths that take the same time the plan uses one that does not spill, whatever the granularity of rows, and the
// plan says which it avoided.
func TestLengthsThatSpillAreAvoided(t *testing.T) {
	require.Slow(t)
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	soc.Processor("npu").Tile.M = 1 // nothing but the compiler speaks against 250
	in := at250(t, soc)
	without := solve(t, in)
	if got := rowsOf(t, without.Plan, outProduct); got != 250 || without.Plan.Compiled != nil {
		t.Errorf("without facts: %d rows, and %+v, want 250 and nothing", got, without.Plan.Compiled)
	}

	in.Facts = realFacts(t)
	result := solve(t, in)
	if got := rowsOf(t, result.Plan, outProduct); got != 256 {
		t.Errorf("with the compiler's facts: %d rows, want 256, which do not spill", got)
	}
	compiled := compiledOf(result.Plan, outProduct)
	if compiled == nil || compiled.Proc != "npu" || compiled.Copies != 22 || compiled.Scheme != op.A16SQ8C {
		t.Fatalf("compiled: %+v", compiled)
	}
	at := slices.IndexFunc(compiled.Graphs, func(graph planir.CompiledGraph) bool { return graph.Rows == 256 })
	if at < 0 {
		t.Fatalf("graphs %+v, want one of 256 rows", compiled.Graphs)
	}
	graph := compiled.Graphs[at]
	spills250 := func(spill planir.Spill) bool { return spill.Rows == 250 && spill.Bytes > 7<<20 }
	if graph.SpillBytes != 0 || !slices.ContainsFunc(graph.Avoided, spills250) {
		t.Errorf("graphs %+v, want 250 rows among what 256 avoided", compiled.Graphs)
	}

	// Times do not come from facts.
	before, after := prediction(t, without.Plan, "prefill@250"), prediction(t, result.Plan, "prefill@250")
	if after.PlanNS > before.PlanNS*102/100 {
		t.Errorf("%d ns with facts, %d without", after.PlanNS, before.PlanNS)
	}
	isFacts := func(input planir.Input) bool { return input.Kind == FactsInput }
	if !slices.ContainsFunc(result.Plan.Inputs, isFacts) {
		t.Error("facts are not among the plan's inputs")
	}

	// Were it the other way round, so would the plan be.
	in.Facts = editedFacts(t, func(fact *record.Facts) {
		if fact.Rows != nil {
			return
		}
		fact.SpillBytes = 1 << 20
		if fact.Op.M == 250 {
			fact.SpillBytes = 0
		}
	})
	if got := rowsOf(t, solve(t, in).Plan, outProduct); got != 250 {
		t.Errorf("if all but 250 rows spilled: %d rows, want 250", got)
	}

	// What nobody compiles is not planned.
	in.Facts = editedFacts(t, func(f *record.Facts) {
		if f.Rows == nil && f.Op.M >= 250 && f.Op.M != 264 {
			f.Refused, f.Bytes, f.SpillBytes = "no", 0, 0
		}
	})
	if got := rowsOf(t, solve(t, in).Plan, outProduct); got != 251 && got != 264 {
		t.Errorf("if the compiler refused 250 and 256 rows: %d rows, want others", got)
	}
}

// Facts choose between lengths of the same time, and never against time: 288 rows take longer than 256.
func TestFactsDoNotOutweighTime(t *testing.T) {
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	in := at250(t, soc)
	in.Facts = editedFacts(t, func(f *record.Facts) {
		if f.Rows == nil && f.Op.M != 512 {
			f.SpillBytes = 1 << 30
		}
	})
	result := solve(t, in)
	if got := rowsOf(t, result.Plan, outProduct); got > 256 {
		t.Errorf("%d rows, want none that take longer", got)
	}
	compiled := compiledOf(result.Plan, outProduct)
	if compiled == nil || compiled.Graphs[len(compiled.Graphs)-1].SpillBytes != 1<<30 {
		t.Errorf("compiled %+v, want the spill that nothing avoids", compiled)
	}
}

// Four lengths that share their weights are charged as the compiler makes them.
func TestSharedLengthsAreChargedOnce(t *testing.T) {
	require.Slow(t)
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	in := at250(t, soc)
	in.Facts = realFacts(t)
	in.Workload.Buckets = workload.Rows{64, 128, 256, 512}
	result := solve(t, in)
	compiled := compiledOf(result.Plan, outProduct)
	if compiled == nil || len(compiled.Graphs) < 4 {
		t.Fatalf("compiled %+v, want four lengths", compiled)
	}
	charged, alone := compiled.ChargedBytes, compiled.AloneBytes
	if charged <= alone || float64(charged) > 1.15*float64(alone) || alone < 2048*2048 {
		t.Errorf("%d lengths charged with %d bytes, and one takes %d", len(compiled.Graphs), charged, alone)
	}

	// The region that the NPU addresses is bounded by it.
	session, err := newSession(in)
	if err != nil {
		t.Fatal(err)
	}
	more := session.bytesBeyondWeights(result.Plan, "npu")
	want := int64(compiled.Copies) * (charged - op.WeightBytes("q8c", 2048, 2048))
	if more < want*9/10 || more > want*11/10+1<<20 {
		t.Errorf("%d bytes beyond the packed weights, want about %d", more, want)
	}

	// A joint problem does not know these bytes, so that it proves nothing about them; and it does without facts.
	region := problem.Limit{Kind: problem.LimitRegionBytes, Name: "npu"}
	in.Facts = nil
	plain, err := newSession(in)
	if err != nil {
		t.Fatal(err)
	}
	isExact := !in.SoC.Processor("npu").Fuses && !in.SoC.Processor("npu").DynamicRows
	if session.countsExactly(region) || plain.countsExactly(region) != isExact {
		t.Errorf("counts the bytes exactly: %v with facts, %v without, want false and %v", session.countsExactly(region),
			plain.countsExactly(region), isExact)
	}

	// A binary of which nothing is known is not taken to be shared.
	facts, err := price.NewFacts(editedFacts(t, func(f *record.Facts) {
		if f.Rows != nil {
			f.Refused, f.Bytes = "no", 0
		}
	}), in.SoC)
	if err != nil {
		t.Fatal(err)
	}
	product := op.Op{Kind: op.MatMul, M: 1, K: 2048, N: 2048, Scheme: op.A16SQ8C}
	if alone, all, ok := facts.Charge("npu", product, []int{128, 256}); !ok || all != 2*alone {
		t.Errorf("charged %d for two lengths of %d, want both", all, alone)
	}
}

// Facts of another compiler's target are refused with the target to solve for.
func TestFactsOfAnotherTarget(t *testing.T) {
	soc, err := socs.Open("snapdragon-8gen2")
	if err != nil {
		t.Fatal(err)
	}
	in := at250(t, soc)
	in.Facts = realFacts(t)
	_, err = Solve(t.Context(), in)
	if diag.ClassOf(err) != diag.ClassInput || !says(err, "soc_model:57", "--target snapdragon-8gen2") {
		t.Errorf("facts of snapdragon-8gen3: got %v, hints %q", err, diag.HintsOf(err))
	}
}
