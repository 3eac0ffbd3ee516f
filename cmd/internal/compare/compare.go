// Package compare knows what solve decides beside rules that people use, at the same simulated costs.
package compare

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hetc/hetc/solver/workload"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/exact"
)

// planTable is one comparison of hetc bench plans: what solve decides beside rules that people use, at the same costs. It
// returns a Markdown table and its rows for --json, and depends on nothing but the program.
type planTable struct {
	Name, Short string
	Run         func(ctx context.Context) (text string, rows any, err error)
}

var Tables = []planTable{
	{"buckets", "sequence-length buckets against fixed ladders, on four distributions of prompt lengths", comparedBuckets},
	{"partition", "tensor partition against processors alone, whole operators and fixed parts", comparedPartitions},
	{"regret", "the plan executed beside forced alternatives, on every catalog SoC", comparedRegret},
	{"tiers", "capacity tiers of experts against NPUMoE's ladder and uniform capacity, on skewed routing", comparedTiers},
}

// catalogPair opens a SoC and a model of the catalog.
func catalogPair(names [2]string) (*socs.SoC, *models.Model, error) {
	soc, err := socs.Open(names[0])
	if err != nil {
		return nil, nil, err
	}
	model, err := models.Open(names[1])
	return soc, model, err
}

// simulatedCosts fits costs from a profile of a catalog SoC.
func simulatedCosts(ctx context.Context, soc *socs.SoC, m *models.Model, want profiler.Want) (*roofline.Costs, error) {
	requests, err := profiler.Requests(soc, m, want)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "hetc-bench-plans-")
	if err != nil {
		return nil, diag.New(diag.ClassUnavailable, "bench plans: %w", err)
	}
	defer os.RemoveAll(dir)
	const seed = 1
	header, err := profiler.Header(soc, host.Fingerprint(), host.Kernels(), cli.Version, seed)
	if err != nil {
		return nil, err
	}
	rec, err := record.Create(filepath.Join(dir, "rec.jsonl"), header)
	if err != nil {
		return nil, err
	}
	defer rec.Close()
	if _, err := profiler.Run(ctx, soc, requests, rec, bindings.ProfilerOptions(soc, seed)); err != nil {
		return nil, err
	}
	return roofline.Fit(soc, rec.Set())
}

// comparedBucket is one row of the comparison of buckets.
type comparedBucket struct {
	SoC       string  `json:"soc"`
	Model     string  `json:"model"`
	Lengths   string  `json:"lengths"`
	Rule      string  `json:"rule"`
	Buckets   []int   `json:"buckets"`
	PrefillNS float64 `json:"simulated_prefill_ns"` // expected time of a prompt
	Ratio     float64 `json:"ratio"`                // to solve's
	Bytes     int64   `json:"static_bytes"`         // that processors with static graphs hold
	Graphs    int     `json:"static_graphs"`
	Status    string  `json:"status,omitempty"`
}

// mostChosen is how many buckets solve may choose in the comparison: as many as the longest ladder has.
const mostChosen = 6

func comparedBuckets(ctx context.Context) (string, any, error) {
	lognormal, err := (&workload.LogNormal{Median: 200, Sigma: 0.8, Max: 1024}).Prompts()
	if err != nil {
		return "", nil, err
	}
	paper, err := workload.NamedPrompts("llmnpu-ui")
	if err != nil {
		return "", nil, err
	}
	var bimodal, uniform workload.Prompts
	for n := 1; n <= 1024; n++ {
		uniform = append(uniform, workload.Prompt{Tokens: n, Share: 1})
		if n >= 30 && n < 60 || n >= 700 && n < 730 {
			bimodal = append(bimodal, workload.Prompt{Tokens: n, Share: 1})
		}
	}
	lengths := []struct {
		name    string
		prompts workload.Prompts
	}{
		{"log-normal, median 200, sigma 0.8, up to 1024", lognormal},
		{"llm.npu sec. 2.1, UI automation: 505 to 827", paper},
		{"bimodal: 30 to 59 and 700 to 729", bimodal},
		{"uniform: 1 to 1024", uniform},
	}
	rules := []struct {
		name    string
		buckets workload.Rows
	}{
		{fmt.Sprintf("solve, at most %d", mostChosen), workload.AtMost(mostChosen)},
		{"one chunk of 256", workload.Rows{256}},
		{"powers of two, 16 to 512", workload.Rows{16, 32, 64, 128, 256, 512}},
		{"16, 32, 64, 128, 256", workload.Rows{16, 32, 64, 128, 256}},
	}
	var text strings.Builder
	var rows []comparedBucket
	fmt.Fprintf(&text, "Simulated: costs are fitted from a profile of the catalog SoC, times are what solve predicts with them, no device was measured.\n"+
		"A row's buckets are solved as a plan of their own; prefill is the expected time of a prompt, and bytes and graphs are those of the processors with static shapes.\n")
	for _, pair := range [][2]string{{"snapdragon-8gen3", "llama-3.2-1b"}, {"redmi-k70-pro", "qwen1.5-1.8b"}} {
		soc, model, err := catalogPair(pair)
		if err != nil {
			return "", nil, err
		}
		defer model.Close()
		workload := func(p workload.Prompts, buckets workload.Rows) *workload.Workload {
			return &workload.Workload{Schema: workload.Schema, Prompts: p, Buckets: buckets, Weights: workload.Weights{Prefill: 1},
				Schemes: workload.Schemes{Prefill: []op.Scheme{op.A8TQ8C}, Decode: []op.Scheme{op.A8TQ8C}}}
		}
		want := profiler.Want{Schemes: []op.Scheme{op.A8TQ8C}}
		for _, length := range lengths {
			for _, rule := range rules {
				needs, err := workload(length.prompts, rule.buckets).Needs(model.MaxContext)
				if err != nil {
					return "", nil, err
				}
				want.Buckets, want.MaxContext = append(want.Buckets, needs.Buckets...), max(want.MaxContext, needs.Context)
			}
		}
		slices.Sort(want.Buckets)
		want.Buckets = slices.Compact(want.Buckets)
		costs, err := simulatedCosts(ctx, soc, model, want)
		if err != nil {
			return "", nil, err
		}
		fmt.Fprintf(&text, "\n%s on %s, a8t/q8c:\n\n| prompts | buckets by | buckets | prefill ms | / solve's | graphs | MiB | status |\n| --- | --- | --- | ---: | ---: | ---: | ---: | --- |\n", model.Name, soc.Name)
		for _, length := range lengths {
			base := 0.0
			for _, rule := range rules {
				result, err := solver.Solve(ctx, solver.Input{Model: model, SoC: soc, Costs: costs, Workload: workload(length.prompts, rule.buckets), Engine: exact.Engine{}, AllBuckets: rule.buckets.Max() == 0})
				if err != nil {
					return "", nil, err
				}
				bucket := comparedBucket{SoC: soc.Name, Model: model.Name, Lengths: length.name, Rule: rule.name, PrefillNS: result.ExpectedNS}
				for i := range result.Plan.Program.Programs {
					if n := result.Plan.Program.Programs[i].Rows; !result.Plan.Decodes(n) {
						bucket.Buckets = append(bucket.Buckets, n)
					}
				}
				slices.Sort(bucket.Buckets)
				for i := range soc.Processors {
					if sp := &soc.Processors[i]; sp.StaticShapes {
						held := check.Load(result.Plan, sp)
						bucket.Bytes, bucket.Graphs = bucket.Bytes+held.Bytes, bucket.Graphs+held.Graphs
					}
				}
				for _, solve := range result.Plan.Solver {
					if solve.Problem == "buckets" {
						bucket.Status = solve.Status
					}
				}
				if base == 0 {
					base = bucket.PrefillNS
				}
				bucket.Ratio = bucket.PrefillNS / base
				rows = append(rows, bucket)
				list := strings.ReplaceAll(strings.Trim(fmt.Sprint(bucket.Buckets), "[]"), " ", ", ")
				fmt.Fprintf(&text, "| %s | %s | %s | %.1f | %.3f | %d | %.0f | %s |\n", length.name, rule.name, list, bucket.PrefillNS/1e6, bucket.Ratio, bucket.Graphs, float64(bucket.Bytes)/(1<<20), bucket.Status)
			}
		}
	}
	return text.String(), rows, nil
}
