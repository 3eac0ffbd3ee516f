package compare

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/cmd/internal/clock"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/workload"
)

// regretCase is a model on a SoC, solved freely and in every forced way, with all plans executed on
// the virtual clock.
type regretCase struct {
	SoC    string    `json:"soc"`
	Model  string    `json:"model"`
	Scheme op.Scheme `json:"scheme"`
	Rows   int       `json:"rows"` // of the prompt, and of its bucket
	Ways   []forced  `json:"ways"` // solve's own first
}

// forced is one way to solve a case.
type forced struct {
	Name    string    `json:"name"`
	Prefill timedPlan `json:"prefill"`
	Decode  timedPlan `json:"decode"`

	plan *planir.Plan
}

// timedPlan is the time of a program: predicted with its interval, and executed on the virtual
// clock.
type timedPlan struct {
	PredictedNS int64 `json:"predicted_ns"`
	LowNS       int64 `json:"low_ns"`
	HighNS      int64 `json:"high_ns"`
	ExecutedNS  int64 `json:"simulated_ns"`
}

// off returns the relative error of the prediction: executed over predicted, minus 1.
func (t *timedPlan) off() float64 { return float64(t.ExecutedNS)/float64(t.PredictedNS) - 1 }

// alternative is a constraint on a solve; the fields are those of solver.Input.
type alternative struct {
	name       string
	strategies []planir.Strategy
	only       []string
	ratio      map[string]float64
	loads      *workload.Loads
	tiers      solver.TierRule
}

// freely is the name of solve without a constraint, with which all other ways are compared.
const freely = "solve"

// alternatives are solve itself and the forced ways: sets of strategies, single processors, and
// fixed parts of every matrix.
func alternatives() []alternative {
	list := []alternative{{name: freely}}
	for _, set := range [][]planir.Strategy{
		{planir.Single}, {planir.Single, planir.Padding}, {planir.WeightCentric},
		{planir.WeightCentric, planir.Hybrid, planir.Padding},
		{planir.ActivationDivide, planir.Pipe}, {planir.WeightCentric, planir.Paired},
	} {
		names := make([]string, len(set))
		for i := range set {
			names[i] = string(set[i])
		}
		list = append(list, alternative{name: "strategies " + strings.Join(names, ","), strategies: set})
	}
	for _, name := range []string{"cpu", "gpu", "npu"} {
		list = append(list, alternative{name: "only " + name, only: []string{name}})
	}
	for _, split := range []struct {
		a, b string
		part float64
	}{{"gpu", "cpu", 0.5}, {"gpu", "cpu", 0.75}, {"gpu", "npu", 0.5}, {"gpu", "npu", 0.75}} {
		list = append(list, alternative{
			name:  fmt.Sprintf("ratio %s=%g,%s=%g", split.a, split.part, split.b, 1-split.part),
			ratio: map[string]float64{split.a: split.part, split.b: 1 - split.part},
		})
	}
	return list
}

// timesOnly returns a catalog SoC whose processors compute nothing, since only times are wanted.
func timesOnly(name string, noise bool) (*socs.SoC, error) {
	soc, err := socs.Open(name)
	if err == nil {
		clock.TimesOnly(soc, noise)
	}
	return soc, err
}

// schemeFor returns the first of the schemes that all processors execute.
func schemeFor(soc *socs.SoC, list ...op.Scheme) op.Scheme {
	for _, scheme := range list {
		lacking := func(proc socs.Processor) bool {
			return len(proc.Schemes) > 0 && !slices.Contains(proc.Schemes, scheme)
		}
		if !slices.ContainsFunc(soc.Processors, lacking) {
			return scheme
		}
	}
	return op.A32W32
}

// regretOf solves one case in all ways and executes the plans. Impossible ways are left out.
func regretOf(
	ctx context.Context, soc *socs.SoC, model *models.Model, rows int, ways []alternative,
) (*regretCase, error) {
	scheme := schemeFor(soc, op.A8TQ4B32, op.A8TQ8C)
	found := &regretCase{SoC: soc.Name, Model: model.Name, Scheme: scheme, Rows: rows}
	const answer = 64
	permits := &workload.Workload{Schema: workload.Schema, Buckets: workload.Rows{rows},
		Prompts: workload.Prompts{{Tokens: rows, Share: 1}}, OutputTokens: answer,
		Schemes: workload.Schemes{Prefill: []op.Scheme{scheme}, Decode: []op.Scheme{scheme}}}
	needs, err := permits.Needs(model.MaxContext)
	if err != nil {
		return nil, err
	}
	costs, err := simulatedCosts(ctx, soc, model,
		profiler.Want{Schemes: []op.Scheme{scheme}, Buckets: needs.Buckets, MaxContext: needs.Context,
			Caches: needs.Caches})
	if err != nil {
		return nil, err
	}
	for _, way := range ways {
		one, err := executed(ctx, soc, model, costs, permits, way)
		if way.name != freely && impossible(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s on %s, %s: %w", model.Name, soc.Name, way.name, err)
		}
		found.Ways = append(found.Ways, *one)
	}
	return found, nil
}

// impossible reports whether a way to solve is none on this SoC: it names a processor that the SoC lacks, or leaves an
// operator without one.
func impossible(err error) bool {
	class := diag.ClassOf(err)
	return class == diag.ClassInfeasible || class == diag.ClassInput
}

// executed solves in one way. It executes a prompt, then decodes up to the middle of the answer,
// and times the token there, which is the one that decode is predicted for.
func executed(
	ctx context.Context, soc *socs.SoC, model *models.Model, costs *roofline.Costs, permits *workload.Workload,
	way alternative,
) (*forced, error) {
	solved, err := solver.Solve(ctx, solver.Input{
		Model: model, SoC: soc, Costs: costs, Workload: permits, Engine: exact.Engine{}, Strategies: way.strategies,
		Only: way.only, Ratio: way.ratio, Loads: way.loads, TierRule: way.tiers,
	})
	if err != nil {
		return nil, err
	}
	plan := solved.Plan
	made := &forced{Name: way.name, plan: plan}
	for _, predicted := range plan.Predictions {
		program := &made.Decode
		if strings.HasPrefix(predicted.Program, "prefill") {
			program = &made.Prefill
		}
		*program = timedPlan{PredictedNS: predicted.PlanNS, LowNS: predicted.LowNS, HighNS: predicted.HighNS}
	}
	machine, err := clock.Open(ctx, plan, model, soc)
	if err != nil {
		return nil, err
	}
	defer machine.Close()
	if made.Prefill.ExecutedNS, err = machine.Tokens(ctx, permits.Buckets[0]); err != nil {
		return nil, err
	}
	if _, err = machine.Tokens(ctx, permits.OutputTokens/2-1); err != nil {
		return nil, err
	}
	made.Decode.ExecutedNS, err = machine.Tokens(ctx, 1)
	return made, err
}

// regretRow sums up the cases of one SoC in one phase. Regret is the time of solve's plan over that
// of the fastest plan, minus 1.
type regretRow struct {
	SoC   string `json:"soc"`
	Phase string `json:"phase"`
	// one for each model; executed counts the ways of all of them
	Cases    int `json:"cases"`
	Executed int `json:"executed"`
	// cases in which no other way was faster than the plan
	Fastest int `json:"plan_fastest"`
	// over the cases
	RegretMean float64 `json:"regret_mean"`
	RegretMax  float64 `json:"regret_max"`
	// of the plans: time executed over predicted, minus 1
	PlanMedian float64 `json:"plan_executed_over_predicted_median"`
	PlanLow    float64 `json:"plan_executed_over_predicted_low"`
	PlanHigh   float64 `json:"plan_executed_over_predicted_high"`
	// the same of all ways
	OthersLow  float64 `json:"all_executed_over_predicted_low"`
	OthersHigh float64 `json:"all_executed_over_predicted_high"`
	// ways whose time lies in its predicted interval, the ends included
	InsideTimes int `json:"inside_interval"`
}

// sumUp returns the row of a phase; of selects the phase's times.
func sumUp(name, phase string, cases []*regretCase, of func(*forced) *timedPlan) regretRow {
	row := regretRow{
		SoC: name, Phase: phase, Cases: len(cases), PlanLow: math.Inf(1), PlanHigh: math.Inf(-1),
		OthersLow: math.Inf(1), OthersHigh: math.Inf(-1),
	}
	var errors []float64 // relative, of the predictions of solve's own plans
	for _, found := range cases {
		best, own := int64(math.MaxInt64), of(&found.Ways[0])
		for i := range found.Ways {
			way := of(&found.Ways[i])
			best = min(best, way.ExecutedNS)
			row.OthersLow, row.OthersHigh = min(row.OthersLow, way.off()), max(row.OthersHigh, way.off())
			if way.LowNS <= way.ExecutedNS && way.ExecutedNS <= way.HighNS {
				row.InsideTimes++
			}
		}
		row.Executed += len(found.Ways)
		regret := float64(own.ExecutedNS)/float64(best) - 1
		if own.ExecutedNS == best {
			row.Fastest++
		}
		row.RegretMean += regret / float64(len(cases))
		row.RegretMax = max(row.RegretMax, regret)
		errors = append(errors, own.off())
	}
	row.PlanMedian, row.PlanLow, row.PlanHigh = stat.Median(errors), slices.Min(errors), slices.Max(errors)
	return row
}

// regretModels are the models of the comparison: dense ones, one with attention and feed-forward in
// parallel, one with experts.
var regretModels = []string{"qwen2-0.5b", "llama-3.2-1b", "phi-2", "olmoe-1b-7b"}

// comparedRegret executes the plan that solve chooses and those it can be forced to.
func comparedRegret(ctx context.Context) (string, any, error) {
	const rows = 128
	var text strings.Builder
	fmt.Fprintf(&text, "Simulated: costs are fitted from a profile of the catalog SoC without its noise, and all "+
		"plans are executed on its virtual clock; no device was measured.\n"+
		"A case is one of %s with a prompt of %d tokens, solved as solve decides and in %d forced ways as far as "+
		"they are possible: sets of strategies, --only, --ratio.\n"+
		"Regret is the time of the plan over that of the fastest of all of them.\n\n", strings.Join(regretModels, ", "),
		rows, len(alternatives())-1)
	fmt.Fprintf(&text, "| SoC | phase | cases | executed | plan fastest | regret mean %% | max %% | plan: executed "+
		"over predicted, median %% | range %% | all: range %% | inside interval |\n| --- | --- | ---: | ---: | ---: "+
		"| ---: | ---: | ---: | ---: | ---: | ---: |\n")
	var out []regretRow
	var all []*regretCase
	for _, soc := range socs.Catalog() {
		// Without noise, the difference of two executions is that of their plans.
		described, err := timesOnly(soc, false)
		if err != nil {
			return "", nil, err
		}
		var cases []*regretCase
		for _, name := range regretModels {
			model, err := models.Open(name)
			if err != nil {
				return "", nil, err
			}
			found, err := regretOf(ctx, described, model, rows, alternatives())
			model.Close()
			if err != nil {
				return "", nil, err
			}
			cases = append(cases, found)
		}
		all = append(all, cases...)
		for _, row := range []regretRow{
			sumUp(soc, "prefill", cases, func(f *forced) *timedPlan { return &f.Prefill }),
			sumUp(soc, "decode", cases, func(f *forced) *timedPlan { return &f.Decode }),
		} {
			out = append(out, row)
			fmt.Fprintf(&text, "| %s | %s | %d | %d | %d | %.2f | %.2f | %+.2f | %+.2f..%+.2f | %+.2f..%+.2f | %d |\n",
				row.SoC, row.Phase, row.Cases, row.Executed, row.Fastest,
				100*row.RegretMean, 100*row.RegretMax, 100*row.PlanMedian, 100*row.PlanLow, 100*row.PlanHigh,
				100*row.OthersLow, 100*row.OthersHigh, row.InsideTimes)
		}
	}
	return text.String(), map[string]any{"socs": out, "cases": all}, nil
}
