package papers

import (
	"context"
	"os"
	"path/filepath"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/clock"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/runtime/serving"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/workload"
)

// chain is a catalog SoC, profiled on its virtual clock for a catalog model and a workload, from which plans are
// solved.
type chain struct {
	input solver.Input
}

// newChain profiles and fits: the same rows come out each time, since no time passes. edit changes the SoC before it is
// profiled; nil leaves it as the catalog has it.
func newChain(
	ctx context.Context, socName, modelName string, work *workload.Workload, edit func(*socs.SoC),
) (*chain, error) {
	soc, err := socs.Open(socName)
	if err != nil {
		return nil, err
	}
	if edit != nil {
		edit(soc)
	}
	model, err := models.Open(modelName)
	if err != nil {
		return nil, err
	}
	needs, err := work.Needs(model.MaxContext)
	if err != nil {
		return nil, err
	}
	requests, err := profiler.Requests(soc, model, profiler.Want{Buckets: needs.Buckets, Batches: needs.Batches,
		Schemes: needs.On(soc), MaxContext: needs.Context, Caches: needs.Caches,
		Densities: needs.Densities})
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "hetc-reproduce-")
	if err != nil {
		return nil, diag.New(diag.ClassUnavailable, "reproduce: %w", err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "rec.jsonl")
	if err := bindings.Simulate(ctx, soc, requests, path); err != nil {
		return nil, err
	}
	set, err := record.Open(path)
	if err != nil {
		return nil, err
	}
	costs, err := roofline.Fit(soc, set)
	if err != nil {
		return nil, err
	}
	return &chain{solver.Input{Model: model, SoC: soc, Costs: costs, Workload: work, Engine: exact.Engine{},
		AllBuckets: true, Prices: new(price.Fitted)}}, nil
}

// restriction narrows what a plan may be made of.
type restriction func(*solver.Input)

// only restricts a plan to some of the processors.
func only(processors ...string) restriction {
	return func(in *solver.Input) { in.Only = processors }
}

// permit restricts a plan to some strategies.
func permit(strategies ...planir.Strategy) restriction {
	return func(in *solver.Input) { in.Strategies = strategies }
}

// permitWhole has every operator on one processor.
var permitWhole = permit(planir.Single, planir.Padding)

// both applies two restrictions.
func both(first, second restriction) restriction {
	return func(in *solver.Input) { first(in); second(in) }
}

// solve decides a plan within a restriction; nil: any plan.
func (c *chain) solve(ctx context.Context, within restriction) (*solvedPlan, error) {
	in := c.input
	if within != nil {
		within(&in)
	}
	result, err := solver.Solve(ctx, in)
	if err != nil {
		return nil, err
	}
	caller, err := solver.NewCaller(in, result.Plan)
	if err != nil {
		return nil, err
	}
	return &solvedPlan{result.Plan, caller, serving.TimesOf(result.Plan)}, nil
}

// solvedPlan is a plan and what its calls take.
type solvedPlan struct {
	*planir.Plan
	caller *solver.Caller
	times  *serving.Times
}

// promptNS returns what a prompt takes in ns: the chunks that the plan's decider chooses, each with attention over what
// was processed before it.
func (p *solvedPlan) promptNS(tokens int) (ns float64, err error) {
	for done := 0; done < tokens; {
		rows, _ := p.times.Chunk(tokens - done)
		done += rows
		chunk, err := p.caller.NS(rows, done)
		if err != nil {
			return 0, err
		}
		ns += float64(chunk)
	}
	return ns, nil
}

// promptOnClock returns what a prompt takes in ns on the virtual clock of a SoC that computes nothing.
func (c *chain) promptOnClock(ctx context.Context, plan *solvedPlan, tokens int) (float64, error) {
	machine, err := clock.Open(ctx, plan.Plan, c.input.Model, c.input.SoC)
	if err != nil {
		return 0, err
	}
	defer machine.Close()
	ns, err := machine.Tokens(ctx, tokens)
	return float64(ns), err
}

// promptNS solves a plan for the SoC as the catalog has it, and predicts a prompt.
func promptNS(
	ctx context.Context, soc, model string, work *workload.Workload, tokens int, within restriction,
) (float64, error) {
	from, err := newChain(ctx, soc, model, work, nil)
	if err != nil {
		return 0, err
	}
	plan, err := from.solve(ctx, within)
	if err != nil {
		return 0, err
	}
	return plan.promptNS(tokens)
}

// shareOn returns a processor's share of an operator, of whatever it is divided along.
func shareOn(decision *planir.Decision, proc string) float64 {
	all, part := 0, 0
	for _, share := range decision.Shares {
		width := share.To - share.From
		if decision.Axis == planir.AxisNone {
			width = 1
		}
		if all += width; share.Proc == proc {
			part += width
		}
	}
	return float64(part) / float64(all)
}

// promptRate returns how many tokens of a prompt are processed in a second.
func (p *solvedPlan) promptRate(tokens int) (float64, error) {
	ns, err := p.promptNS(tokens)
	return float64(tokens) * 1e9 / ns, err
}

// decodeRate returns how many tokens are decoded in a second at a position.
func (p *solvedPlan) decodeRate(position int) (float64, error) {
	ns, err := p.caller.NS(1, position)
	return 1e9 / float64(ns), err
}
