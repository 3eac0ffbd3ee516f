package solver

import (
	"slices"
	"strings"
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

// edited is a set with other facts than realFacts.
func editedFacts(t testing.TB, change func(*record.Facts)) *record.Set {
	t.Helper()
	old := realFacts(t)
	set := record.NewSet(old.Header)
	for _, f := range old.Facts() {
		x := *f
		change(&x)
		if err := set.AddFacts(&x); err != nil {
			t.Fatal(err)
		}
	}
	return set
}

// at250 is the input for a model with a product of 2048 by 2048 and prompts of 250 tokens.
func at250(t testing.TB, s *socs.SoC) Input {
	t.Helper()
	m := open(t, "tinyllama-1.1b")
	digest, err := m.Digest()
	if err != nil {
		t.Fatal(err)
	}
	g := m.Graph()
	cal := &calibration.Calibration{Schema: calibration.Schema, Model: calibration.Model{Name: m.Name, Digest: digest}}
	for _, sec := range g.Sections {
		for _, n := range sec.Nodes {
			for l := sec.First; l < sec.First+max(1, sec.Layers) && n.Ops[0].HasScheme(); l++ {
				cal.Activations = append(cal.Activations, calibration.Activation{Class: sec.Name + "." + n.Name, Layer: l, K: n.Ops[0].K, AbsMax: make([]float32, n.Ops[0].K), OutMax: make([]float32, n.Ops[0].N)})
			}
		}
	}
	w := workload.Default()
	w.Prompts, w.Buckets = workload.Prompts{{Tokens: 250, Share: 1}}, workload.Rows{250}
	w.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A16SQ8C}, Decode: []op.Scheme{op.A16SQ8C}}
	in := Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32, op.A16SQ8C), Engine: exact.Engine{}, Workload: w, Calibration: cal, Only: []string{"npu"}}
	if err := in.ForTarget(); err != nil {
		t.Fatal(err)
	}
	return in
}

// rowsOf is the number of rows at which the plan computes a product for prompts of 250 tokens.
func rowsOf(t testing.TB, p *planir.Plan, node string) int {
	t.Helper()
	d := p.DecisionFor(node, 250)
	if d == nil || len(d.Shares) != 1 || d.Shares[0].Proc != "npu" {
		t.Fatalf("%s at 250 rows: %+v, want all of it on the NPU", node, d)
	}
	return max(d.Rows, d.Shares[0].PadRows)
}

const outProduct = "layers.attn_out" // [2048,2048]

func compiledOf(p *planir.Plan, node string) *planir.Compiled {
	for i := range p.Compiled {
		if p.Compiled[i].Node == node {
			return &p.Compiled[i]
		}
	}
	return nil
}

// Of lengths that take the same time the plan uses one that does not spill, whatever the granularity of rows, and the
// plan says which it avoided.
func TestLengthsThatSpillAreAvoided(t *testing.T) {
	require.Slow(t)
	s, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	s.Processor("npu").Tile.M = 1 // nothing but the compiler speaks against 250
	in := at250(t, s)
	without := solve(t, in)
	if got := rowsOf(t, without.Plan, outProduct); got != 250 || without.Plan.Compiled != nil {
		t.Errorf("without facts: %d rows, and %+v, want 250 and nothing", got, without.Plan.Compiled)
	}
	in.Facts = realFacts(t)
	r := solve(t, in)
	if got := rowsOf(t, r.Plan, outProduct); got != 256 {
		t.Errorf("with the compiler's facts: %d rows, want 256, which do not spill", got)
	}
	c := compiledOf(r.Plan, outProduct)
	if c == nil || c.Proc != "npu" || c.Copies != 22 || c.Scheme != op.A16SQ8C {
		t.Fatalf("compiled: %+v", c)
	}
	i := slices.IndexFunc(c.Graphs, func(g planir.CompiledGraph) bool { return g.Rows == 256 })
	if i < 0 || c.Graphs[i].SpillBytes != 0 || !slices.ContainsFunc(c.Graphs[i].Avoided, func(x planir.Spill) bool { return x.Rows == 250 && x.Bytes > 7<<20 }) {
		t.Errorf("graphs %+v, want 250 rows among what 256 avoided", c.Graphs)
	}
	// Times do not come from facts.
	if a, b := prediction(t, without.Plan, "prefill@250"), prediction(t, r.Plan, "prefill@250"); b.PlanNS > a.PlanNS*102/100 {
		t.Errorf("%d ns with facts, %d without", b.PlanNS, a.PlanNS)
	}
	if i := slices.IndexFunc(r.Plan.Inputs, func(x planir.Input) bool { return x.Kind == FactsInput }); i < 0 {
		t.Error("facts are not among the plan's inputs")
	}
	// Were it the other way round, so would the plan be.
	in.Facts = editedFacts(t, func(f *record.Facts) {
		if f.Rows == nil {
			f.SpillBytes = 1 << 20
			if f.Op.M == 250 {
				f.SpillBytes = 0
			}
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
	s, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	in := at250(t, s)
	in.Facts = editedFacts(t, func(f *record.Facts) {
		if f.Rows == nil && f.Op.M != 512 {
			f.SpillBytes = 1 << 30
		}
	})
	r := solve(t, in)
	if got := rowsOf(t, r.Plan, outProduct); got > 256 {
		t.Errorf("%d rows, want none that take longer", got)
	}
	if c := compiledOf(r.Plan, outProduct); c == nil || c.Graphs[len(c.Graphs)-1].SpillBytes != 1<<30 {
		t.Errorf("compiled %+v, want the spill that nothing avoids", c)
	}
}

// Four lengths that share their weights are charged as the compiler makes them.
func TestSharedLengthsAreChargedOnce(t *testing.T) {
	require.Slow(t)
	s, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	in := at250(t, s)
	in.Facts = realFacts(t)
	in.Workload.Buckets = workload.Rows{64, 128, 256, 512}
	r := solve(t, in)
	c := compiledOf(r.Plan, outProduct)
	if c == nil || len(c.Graphs) < 4 {
		t.Fatalf("compiled %+v, want four lengths", c)
	}
	if float64(c.ChargedBytes) > 1.15*float64(c.AloneBytes) || c.ChargedBytes <= c.AloneBytes || c.AloneBytes < 2048*2048 {
		t.Errorf("%d lengths charged with %d bytes, and one takes %d", len(c.Graphs), c.ChargedBytes, c.AloneBytes)
	}
	// The region that the NPU addresses is bounded by it.
	session, err := newSession(in)
	if err != nil {
		t.Fatal(err)
	}
	more := session.bytesBeyondWeights(r.Plan, "npu")
	if want := int64(c.Copies) * (c.ChargedBytes - op.WeightBytes("q8c", 2048, 2048)); more < want*9/10 || more > want*11/10+1<<20 {
		t.Errorf("%d bytes beyond the packed weights, want about %d", more, want)
	}
	// A binary of which nothing is known is not taken to be shared.
	f, err := price.NewFacts(editedFacts(t, func(f *record.Facts) {
		if f.Rows != nil {
			f.Refused, f.Bytes = "no", 0
		}
	}), in.SoC)
	if err != nil {
		t.Fatal(err)
	}
	o := op.Op{Kind: op.MatMul, M: 1, K: 2048, N: 2048, Scheme: op.A16SQ8C}
	if alone, all, ok := f.Charge("npu", o, []int{128, 256}); !ok || all != 2*alone {
		t.Errorf("charged %d for two lengths of %d, want both", all, alone)
	}
}

func TestFactsOfAnotherTarget(t *testing.T) {
	s, err := socs.Open("snapdragon-8gen2")
	if err != nil {
		t.Fatal(err)
	}
	in := at250(t, s)
	in.Facts = realFacts(t)
	_, err = Solve(t.Context(), in)
	if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "soc_model:57") || !strings.Contains(strings.Join(diag.HintsOf(err), " "), "--target snapdragon-8gen2") {
		t.Errorf("facts of snapdragon-8gen3: got %v, hints %q", err, diag.HintsOf(err))
	}
}
