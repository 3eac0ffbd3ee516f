package solver

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// restriction is what a user may leave a plan to, to compare with.
type restriction struct {
	name       string
	only       []string
	strategies []planir.Strategy
}

// restrictions of a SoC: each set of strategies that means something by itself, each set of processors, and both at
// once for whole operators.
func restrictions(soc *socs.SoC) (out []restriction) {
	whole := []planir.Strategy{planir.Single, planir.Padding}
	sets := [][]planir.Strategy{
		whole,
		{planir.Single, planir.Padding, planir.Pipe},
		{planir.Single, planir.Padding, planir.WeightCentric, planir.Hybrid},
		{planir.Single, planir.Padding, planir.WeightCentric, planir.Hybrid, planir.Paired},
		{planir.Single, planir.Padding, planir.ActivationDivide},
		{planir.ActivationDivide, planir.Pipe},
		{planir.WeightCentric},
		{planir.WeightCentric, planir.Hybrid, planir.Padding},
		{planir.WeightCentric, planir.Paired},
	}
	for _, set := range sets {
		out = append(out, restriction{fmt.Sprintf("strategies %v", set), nil, set})
	}
	names := price.ProcessorNames(soc)
	for mask := 1; mask < 1<<len(names)-1; mask++ {
		var only []string
		for i, name := range names {
			if mask>>i&1 == 1 {
				only = append(only, name)
			}
		}
		out = append(out, restriction{"only " + strings.Join(only, ","), only, nil})
		if len(only) > 1 {
			out = append(out, restriction{"whole operators, only " + strings.Join(only, ","), only, whole})
		}
	}
	return out
}

// commonScheme is the first of some schemes that the control processor of a SoC executes.
func commonScheme(soc *socs.SoC) op.Scheme {
	for _, scheme := range []op.Scheme{op.A8TQ8C, op.A32W32} {
		if slices.Contains(soc.Processor(soc.Control).Schemes, scheme) {
			return scheme
		}
	}
	return soc.Processor(soc.Control).Schemes[0]
}

// violations solves without and with every restriction, and tells which of them is predicted to be faster.
func violations(t *testing.T, model *models.Model, soc *socs.SoC, costs *roofline.Costs, work *workload.Workload,
	list []restriction) (out []string, worst float64, compared int) {
	t.Helper()
	known := price.NewFitted(costs, soc)
	in := Input{Model: model, SoC: soc, Costs: costs, Workload: work, Engine: exact.Engine{}, Prices: known}
	free := solve(t, in)
	for _, with := range list {
		in.Only, in.Strategies = with.only, with.strategies
		bound, err := Solve(context.Background(), in)
		if err != nil {
			if diag.ClassOf(err) == diag.ClassInternal {
				t.Fatalf("%s: %v", with.name, err)
			}
			continue // a processor that cannot
		}
		compared++

		if gain := free.ExpectedNS/bound.ExpectedNS - 1; gain > 1e-12 {
			worst = max(worst, gain)
			out = append(out, fmt.Sprintf("%s: %.6g ns expected, %.6g without: %.4f %% better", with.name,
				bound.ExpectedNS, free.ExpectedNS, 100*gain))
		}
		if free.Plan.Solver[0].Problem == jointProblem(problem.Time) {
			continue // programs share a limit: one may take longer for another's sake
		}
		for i := range bound.Plan.Program.Programs {
			ph := &bound.Plan.Program.Programs[i]
			theirs, mine := takes(t, bound, ph), takes(t, free, ph)
			if gain := float64(mine)/float64(theirs) - 1; gain > 0 {
				worst = max(worst, gain)
				out = append(out, fmt.Sprintf("%s, %s: %d ns, %d without: %.4f %% better", with.name, ph.Name, theirs,
					mine, 100*gain))
			}
		}
	}
	return out, worst, compared
}

// takes is the predicted time of a program, with what short calls leave idle.
func takes(t *testing.T, result *Result, ph *planir.PhaseProgram) int64 {
	t.Helper()
	pr, err := result.session.program(ph.Rows, result.session.assigned(ph.Rows))
	if err != nil {
		t.Fatal(err)
	}
	return prediction(t, result.Plan, ph.Name).PlanNS + pr.idleNS(result.Plan)
}

// No restriction of choices predicts better than no restriction, for what is expected and for every program: here of
// parallel blocks, with HETC_LONG=1 of every model and SoC of the catalogs, or of those in HETC_MODELS and HETC_SOCS.
// Sums of programs are rounded, and so is what is compared.
func TestNoRestrictionPredictsBetter(t *testing.T) {
	require.Slow(t)
	modelNames, socNames := models.CatalogNames(), socs.Catalog()
	if os.Getenv("HETC_LONG") == "" {
		modelNames, socNames = []string{"phi-2"}, []string{"core-ultra-5-125h", "apple-m2-ultra"}
	} else {
		if names := os.Getenv("HETC_MODELS"); names != "" {
			modelNames = strings.Split(names, ",")
		}
		if names := os.Getenv("HETC_SOCS"); names != "" {
			socNames = strings.Split(names, ",")
		}
	}

	total, most := 0, 0.0
	for _, socName := range socNames {
		soc, err := socs.Open(socName)
		if err != nil {
			t.Fatal(err)
		}
		scheme := commonScheme(soc)
		for _, name := range modelNames {
			t.Run(name+" on "+socName, func(t *testing.T) {
				model := open(t, name)
				work := permit(scheme)
				work.Buckets, work.Context = []int{16, 256}, 1024
				bad, worst, count := violations(t, model, soc, costs(t, soc, model, scheme), work, restrictions(soc))
				total, most = total+count, max(most, worst)
				if len(bad) > 0 {
					t.Error(strings.Join(bad, "\n"))
				}
				t.Logf("%d compared", count)
			})
		}
	}
	t.Logf("%d combinations, the worst violation %.4f %%", total, 100*most)
}
