package papers

import (
	"context"
	"os"
	"path/filepath"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/workload"
)

// chain is a catalog SoC, profiled on its virtual clock for a catalog model and a workload, from which plans are solved.
type chain struct {
	soc   *socs.SoC
	model *models.Model
	costs *roofline.Costs
	work  *workload.Workload
}

// newChain profiles and fits: the same rows come out each time, since no time passes.
func newChain(ctx context.Context, socName, modelName string, work *workload.Workload) (*chain, error) {
	out := &chain{work: work}
	var err error
	if out.soc, err = socs.Open(socName); err != nil {
		return nil, err
	}
	if out.model, err = models.Open(modelName); err != nil {
		return nil, err
	}
	needs, err := work.Needs(out.model.MaxContext)
	if err != nil {
		return nil, err
	}
	requests, err := profiler.Requests(out.soc, out.model, profiler.Want{Buckets: needs.Buckets, Batches: needs.Batches,
		Schemes: needs.On(out.soc), MaxContext: needs.Context, Caches: needs.Caches})
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "hetc-reproduce-")
	if err != nil {
		return nil, diag.New(diag.ClassUnavailable, "reproduce: %w", err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "rec.jsonl")
	if err := bindings.Simulate(ctx, out.soc, requests, path); err != nil {
		return nil, err
	}
	set, err := record.Open(path)
	if err != nil {
		return nil, err
	}
	out.costs, err = roofline.Fit(out.soc, set)
	return out, err
}

// plan solves for some of the processors, or for all.
func (c *chain) plan(ctx context.Context, only ...string) (*planir.Plan, error) {
	result, err := solver.Solve(ctx, solver.Input{Model: c.model, SoC: c.soc, Costs: c.costs, Workload: c.work,
		Engine: exact.Engine{}, Only: only, AllBuckets: true})
	if err != nil {
		return nil, err
	}
	return result.Plan, nil
}
