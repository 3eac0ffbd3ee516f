package solver

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// worths adds to a calibration what the shadows of every product are worth in each layer, and their ratios, at random.
func worths(model *models.Model, cal *calibration.Calibration, random *rand.Rand) *calibration.Calibration {
	for _, activation := range cal.Activations {
		kl := random.Float64()*1e-4 - 1e-5
		cal.Shadows = append(cal.Shadows, calibration.Shadow{Class: activation.Class, Layer: activation.Layer, KL: kl,
			Low: kl, High: kl, Ratio: 1 + 9*random.Float64()})
	}
	return cal
}

// shadowInput is a problem with shadow outliers on processors with prices of their own.
func shadowInput(t *testing.T, prefillKL float64) Input {
	t.Helper()
	model, soc := demo(t), twoCores(t, 0.6)
	for i := range soc.Processors {
		proc := &soc.Processors[i]
		proc.Schemes, proc.Layouts["w16"] = append(proc.Schemes, op.A8OQ8C), op.TilesLayout
		proc.Sim.Schemes[op.A8OQ8C] = proc.Sim.Schemes[op.A8TQ8C]
	}

	work := workload.Default()
	work.Prompts, work.OutputTokens = []workload.Prompt{{Tokens: 64, Share: 1}}, 8
	work.Buckets, work.Context = []int{64}, 128
	work.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A8OQ8C}, Decode: []op.Scheme{op.A32W32}}
	if prefillKL > 0 {
		work.Quality.MaxKL = workload.KLLimit{Prefill: prefillKL, Decode: 1}
	}

	cal := worths(model, observed(model, invented(t, model, rand.New(rand.NewPCG(7, 8)), op.A8OQ8C)),
		rand.New(rand.NewPCG(7, 9)))
	for i := range cal.Losses {
		cal.Losses[i].KL = 0.0001
	}
	return Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32, op.A8OQ8C), Workload: work,
		Calibration: cal}
}

// lost is what the pruned shadows of a plan lose by a calibration, and how many there are.
func lost(plan *planir.Plan, cal *calibration.Calibration) (sum float64, count int) {
	for _, worth := range cal.Shadows {
		if plan.Pruned(worth.Class, worth.Layer) {
			sum, count = sum+worth.KL, count+1
		}
	}
	return sum, count
}

// Under a limit of quality shadows are pruned where that saves time: the looser the limit, the faster, always within
// it, and no other choice of as many layers of a class loses less.
func TestShadowsUnderALimit(t *testing.T) {
	require.Slow(t)

	last, fastest := -1, int64(math.MaxInt64)
	for _, kl := range []float64{0.00041, 0.0006, 0.0009, 0.002, 0.01} {
		in := shadowInput(t, kl)
		plan := solve(t, in).Plan
		sum, count := lost(plan, in.Calibration)
		isPrefill := func(quality planir.Quality) bool { return quality.Phase == "prefill" }
		got := plan.Quality[slices.IndexFunc(plan.Quality, isPrefill)]
		if math.Abs(got.KL-(0.0004+sum)) > 1e-12 || got.KL > kl {
			t.Errorf("limit %v: quality %+v, and pruned shadows lose %v", kl, got, sum)
		}

		took := prediction(t, plan, "prefill@64").PlanNS
		t.Logf("limit %v: %d pruned, %v lost, %d ns", kl, count, sum, took)
		if count < last || took > fastest {
			t.Errorf("limit %v: %d pruned in %d ns, and %d in %d with less", kl, count, took, last, fastest)
		}
		last, fastest = count, took

		for i := range plan.Shadows {
			checkLeastPruned(t, in.Calibration, &plan.Shadows[i])
		}
		isShadows := func(report planir.Solve) bool { return report.Problem == "shadows" }
		if slices.ContainsFunc(plan.Solver, isShadows) != (count > 0) {
			t.Errorf("limit %v: %d pruned, and the problems are %+v", kl, count, plan.Solver)
		}
	}
	if last < 20 {
		t.Errorf("with room for all %d shadows are pruned", last)
	}
}

// checkLeastPruned checks that a product keeps its shadow in no layer where that is worth less than where it is pruned.
func checkLeastPruned(t *testing.T, cal *calibration.Calibration, shadow *planir.Shadow) {
	t.Helper()
	least, most := math.Inf(1), math.Inf(-1) // of the kept, of the pruned
	for _, worth := range cal.Shadows {
		if worth.Class != shadow.Node {
			continue
		}
		if shadow.In(worth.Layer) {
			least = min(least, worth.KL)
		} else {
			most = max(most, worth.KL)
		}
	}
	if least < most {
		t.Errorf("%s keeps a layer worth %v, and not one worth %v", shadow.Node, least, most)
	}
}

// wrongShadows is an engine that says of a solution that it costs less than it does.
type wrongShadows struct{ problem.Engine }

// Shadows returns the wrong costs.
func (w wrongShadows) Shadows(ctx context.Context, posed *problem.Shadows,
	limits problem.Limits) (problem.ShadowSolution, error) {
	solution, err := w.Engine.Shadows(ctx, posed, limits)
	solution.Objective--
	solution.Bound--
	return solution, err
}

// What an engine says of shadow outliers is verified, as its answers to other problems are.
func TestShadowsAreVerified(t *testing.T) {
	in := shadowInput(t, 0.01)
	in.Engine = wrongShadows{exact.Engine{}}
	_, err := Solve(t.Context(), in)
	if diag.ClassOf(err) != diag.ClassInternal || !says(err, "verify shadows") {
		t.Errorf("got %v, want an error of class %v about shadows", err, diag.ClassInternal)
	}
}

// Without a limit nobody permits to lose more, and nothing is pruned. A share of the workload's is pruned by the
// paper's rule, whatever the limit, which then is noted.
func TestShadowsByShare(t *testing.T) {
	in := shadowInput(t, 0)
	if plan := solve(t, in).Plan; len(plan.Shadows) > 0 {
		t.Errorf("pruned without permission: %+v", plan.Shadows)
	}

	in = shadowInput(t, 0.00041)
	in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { w.Shadows.Prune = 0.85 })
	result := solve(t, in)
	sum, count := lost(result.Plan, in.Calibration)
	prefill := 0         // shadows; the head is decode's, and has none
	least := math.Inf(1) // ratio of what is kept
	most := math.Inf(-1) // ratio of what is pruned
	for _, worth := range in.Calibration.Shadows {
		if !strings.HasPrefix(worth.Class, "layers.") {
			continue
		}
		prefill++
		if result.Plan.Pruned(worth.Class, worth.Layer) {
			most = max(most, worth.Ratio)
		} else {
			least = min(least, worth.Ratio)
		}
	}
	if want := int(0.85*float64(prefill) + 0.5); count != want || sum < 0.0001 {
		t.Errorf("%d of %d pruned, want %d; they lose %v", count, prefill, want, sum)
	}
	if most > least {
		t.Errorf("a ratio of %v is pruned, more than %v of what is kept", most, least)
	}
	if !strings.Contains(fmt.Sprint(result.Warnings), "more than 0.00041 nats a token: without") {
		t.Errorf("warnings %v", result.Warnings)
	}
}

// Within a limit of time those are kept that are worth most.
func TestShadowsWithinATime(t *testing.T) {
	require.Slow(t)
	none := shadowInput(t, 0)
	none.Workload = workload.Edited(none.Workload, func(w *workload.Workload) { w.Shadows.Prune = 1 })
	base := solve(t, none).ExpectedNS

	lastLoss := math.Inf(1)
	for _, slower := range []float64{0.005, 0.02, 0.05, 10} {
		in := shadowInput(t, 0)
		in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { w.Shadows.Slower = slower })
		result := solve(t, in)
		sum, count := lost(result.Plan, in.Calibration)
		t.Logf("%v slower: %d pruned lose %v, %.4f of the time", slower, count, sum, result.ExpectedNS/base)
		if result.ExpectedNS > base*(1+slower)*1.002 || sum > lastLoss {
			t.Errorf("%v slower: takes %v of the time without, and loses %v, %v with less time", slower,
				result.ExpectedNS/base, sum, lastLoss)
		}
		lastLoss = sum
	}
	if lastLoss > 0 {
		t.Errorf("with time for all shadows %v is lost", lastLoss)
	}
}

// How many channels a step multiplies at once follows from what the calibration counted, and so does its price; where
// more were counted than a step may multiply the plan's warnings say so. Without counts it is the usual number.

func TestOutlierChannelsFromCounts(t *testing.T) {
	require.Slow(t)
	const node, rows = "layers.ffn_down", 64
	depth := demo(t).FFN

	took := func(most int) (ns int64, channels int, warnings string) {
		in := shadowInput(t, 0)
		for _, activation := range in.Calibration.Activations {
			if most > 0 {
				in.Calibration.Exceeding = append(in.Calibration.Exceeding, calibration.Exceeding{
					Class: activation.Class, Layer: activation.Layer,
					Counts: []calibration.Count{{Rows: 16, Most: 1}, {Rows: 64, Mean: float64(most), Most: most}}})
			}
		}

		result := solve(t, in)
		for i := range result.Plan.Program.Graphs {
			for _, graphNode := range result.Plan.Program.Graphs[i].Graph.Nodes {
				if graphNode.Op.Kind == op.OutlierMatMul && graphNode.Op.K == depth {
					channels = graphNode.Op.Gathered()
				}
			}
		}
		want := channels
		if most == 0 {
			want = 0
		}
		if got := result.Plan.Channels(node, rows); got != want {
			t.Errorf("%d counted: the plan says %d, its graph %d", most, got, channels)
		}
		decision := result.Plan.DecisionFor(node+"_outliers", rows)
		return decision.PredictNS, channels, fmt.Sprint(result.Warnings)
	}

	usual, channels, _ := took(0)
	if channels != op.OutlierChannels(depth) {
		t.Errorf("without counts: %d channels, want %d", channels, op.OutlierChannels(depth))
	}
	few, channels, warnings := took(5)
	if channels != 8 || few >= usual || strings.Contains(warnings, "several passes") {
		t.Errorf("5 counted: %d channels in %d ns, %d with the usual number; %s", channels, few, usual, warnings)
	}
	bound := op.MostChannels(depth)
	many, channels, warnings := took(bound + 1)
	if channels != bound || many <= usual || !strings.Contains(warnings, "several passes") {
		t.Errorf("%d counted: %d channels in %d ns, %d with the usual number; %s", bound+1, channels, many, usual,
			warnings)
	}
}

// Hot rows are those of the calibration, for the layers that keep shadow outliers. A limit of memory permits them only
// where the plan then holds no more.
func TestHotRowsFollowTheCalibration(t *testing.T) {
	in := shadowInput(t, 0)
	for i, activation := range in.Calibration.Activations {
		in.Calibration.Exceeding = append(in.Calibration.Exceeding, calibration.Exceeding{
			Class: activation.Class, Layer: activation.Layer, Counts: []calibration.Count{{Rows: 64, Mean: 2, Most: 5}},
			Distinct: 5,
			Hot: []calibration.Hot{{Channel: 7, Share: 1}, {Channel: i % 7, Share: 0.7},
				{Channel: 9, Share: 0.2}}})
	}
	in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { w.Shadows.Prune = 0.5 })
	result := solve(t, in)
	if len(result.Plan.Hot) == 0 || len(result.Plan.Shadows) == 0 || result.Plan.Memory.Hot == 0 {
		t.Fatalf("%d entries of hot rows, %d pruned nodes, %d bytes", len(result.Plan.Hot), len(result.Plan.Shadows),
			result.Plan.Memory.Hot)
	}

	found := 0
	for i, activation := range in.Calibration.Activations {
		weight := weightOf(t, in, activation.Class)
		hot := result.Plan.HotRows(weight, activation.Layer)
		hasShadow := func(decision planir.Decision) bool {
			return decision.Node == activation.Class && decision.Scheme.Shadow()
		}
		kept := slices.ContainsFunc(result.Plan.Decisions, hasShadow) &&
			!result.Plan.Pruned(activation.Class, activation.Layer)
		if kept != (hot != nil) {
			t.Errorf("%s in layer %d: hot rows %v, shadows kept: %v", activation.Class, activation.Layer, hot, kept)
			continue
		}
		if hot == nil {
			continue
		}
		found++
		if !slices.Equal(hot.Channels, []int{i % 7, 7}) || hot.Others != 3 {
			t.Errorf("%s in layer %d: %+v, want channels %d and 7 and 3 others", activation.Class, activation.Layer,
				hot, i%7)
		}
	}
	if found != len(result.Plan.Hot) {
		t.Errorf("%d entries, of which %d are of products", len(result.Plan.Hot), found)
	}

	in.MaxMemory = 2 * result.Plan.Memory.Total
	limited := solve(t, in).Plan
	bare := *limited
	bare.Hot = nil
	if with, without := planir.MemoryOf(limited).Total, planir.MemoryOf(&bare).Total; with > without {
		t.Errorf("under a limit hot rows make %d bytes of %d", with, without)
	}
}

// weightOf is the weight of a node's product.
func weightOf(t *testing.T, in Input, name string) string {
	t.Helper()
	graph := in.Model.Graph()
	for i := range graph.Sections {
		for _, node := range graph.Sections[i].Nodes {
			if graph.Sections[i].Name+"."+node.Name == name {
				return node.W[0]
			}
		}
	}
	t.Fatalf("no node %q", name)
	return ""
}

// poweredShadows is shadowInput on processors of known power.
func poweredShadows(t *testing.T, prefillKL float64, edit func(*workload.Workload)) Input {
	t.Helper()
	in := shadowInput(t, prefillKL)
	for i := range in.SoC.Processors {
		in.SoC.Processors[i].PowerW = 1 + float64(i)
	}
	in.Costs = costs(t, in.SoC, in.Model, op.A32W32, op.A8OQ8C)
	in.Workload, in.Engine = workload.Edited(in.Workload, edit), exact.Engine{}
	return in
}

// A limit that no plan with all shadows keeps is kept where they are pruned, under a limit of quality or by the share
// that the workload names. If too few are, the error claims no proof.
func TestPrunedPlansKeepLimits(t *testing.T) {
	require.Slow(t)
	all := solve(t, poweredShadows(t, 0.00041, func(*workload.Workload) {}))
	pruned := solve(t, poweredShadows(t, 0.01, func(*workload.Workload) {}))
	between := func(amount func(*Result) float64) float64 { return (amount(all) + amount(pruned)) / 2 }
	ms := between(func(r *Result) float64 { return float64(prediction(t, r.Plan, "prefill@64").PlanNS) / 1e6 })
	mJ := between(func(r *Result) float64 { return r.ExpectedNJ / 1e6 })
	bytes := unit.Bytes(between(func(r *Result) float64 { return float64(r.Plan.Memory.Total) }))

	ofTime := func(w *workload.Workload) { w.Limits.PrefillMS = ms }
	sharing := func(prune float64, limit func(*workload.Workload)) Input {
		return poweredShadows(t, 0, func(w *workload.Workload) {
			limit(w)
			w.Shadows.Prune = prune
		})
	}
	for name, in := range map[string]Input{
		"time":             poweredShadows(t, 0.01, ofTime),
		"time, by share":   sharing(1, ofTime),
		"energy, by share": sharing(1, func(w *workload.Workload) { w.Limits.EnergyMJ = mJ }),
		"memory":           poweredShadows(t, 0.01, func(w *workload.Workload) { w.Memory = bytes }),
	} {
		if plan := solve(t, in).Plan; len(plan.Shadows) == 0 || planir.MemoryOf(plan).Total != plan.Memory.Total {
			t.Errorf("limit of %s: pruned %v, %v", name, plan.Shadows, plan.Memory)
		}
	}

	_, err := Solve(t.Context(), sharing(0.01, ofTime))
	if diag.ClassOf(err) != diag.ClassInfeasible || Proved(err) {
		t.Errorf("few pruned: got %v, want an error of class %v without a proof", err, diag.ClassInfeasible)
	}
}

// Where energy is minimised shadows are pruned for it: the looser the limit of quality, the less energy, and no other
// choice of as many layers of a class loses less.
func TestShadowsForLeastEnergy(t *testing.T) {
	last := math.Inf(1)
	for _, kl := range []float64{0.00041, 0.0006, 0.01} {
		in := poweredShadows(t, kl, func(w *workload.Workload) { w.Minimise = problem.Energy })
		result := solve(t, in)
		at := slices.IndexFunc(result.Plan.Solver,
			func(report planir.Solve) bool { return report.Problem == "energy shadows" && report.Unit() == "nJ" })
		if at < 0 || result.ExpectedNJ >= last {
			t.Errorf("limit %v: %v nJ, and %v with less; problems %+v", kl, result.ExpectedNJ, last, result.Plan.Solver)
		}
		last = result.ExpectedNJ
		for i := range result.Plan.Shadows {
			checkLeastPruned(t, in.Calibration, &result.Plan.Shadows[i])
		}
	}
}
