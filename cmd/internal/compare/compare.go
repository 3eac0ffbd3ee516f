// Package compare knows how the decisions of solve compare with rules that people use, at the same
// simulated costs.
package compare

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

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
	"github.com/hetc/hetc/solver/workload"
)

// planTable is one comparison of hetc bench plans. Run returns a Markdown table, and its rows for
// --json. The result depends on nothing but the program.
type planTable struct {
	Name, Short string
	Run         func(ctx context.Context) (text string, rows any, err error)
}

// Tables are all comparisons, by name.
var Tables = []planTable{
	{"buckets", "sequence-length buckets against fixed ladders, on four distributions of prompt lengths",
		comparedBuckets},
	{"partition", "tensor partition against processors alone, whole operators and fixed parts", comparedPartitions},
	{"regret", "the plan executed beside forced alternatives, on every catalog SoC", comparedRegret},
	{"experts", "NPUMoE's ablation: groups, tiers and residency of experts, executed on the virtual clock",
		comparedAblation},
	{"tiers", "capacity tiers of experts against NPUMoE's ladder and uniform capacity, on skewed routing",
		comparedTiers},
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

// simulatedCosts profiles a catalog SoC on its virtual clock and fits costs.
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
	// A fixed seed: the same program must write the same tables.
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
	// On a virtual clock this takes no measuring time and gives the same record each time.
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

// mostChosen is how many buckets solve may choose: as many as the longest ladder has.
const mostChosen = 6

// lengths is a distribution of prompt lengths.
type lengths struct {
	name    string
	prompts workload.Prompts
}

// bucketRule is a way to choose buckets; the first of bucketRules is solve's own.
type bucketRule struct {
	name    string
	buckets workload.Rows
}

// bucketRules are compared in this order; ratios are to the first.
var bucketRules = []bucketRule{
	{fmt.Sprintf("solve, at most %d", mostChosen), workload.AtMost(mostChosen)},
	{"one chunk of 256", workload.Rows{256}},
	{"powers of two, 16 to 512", workload.Rows{16, 32, 64, 128, 256, 512}},
	{"16, 32, 64, 128, 256", workload.Rows{16, 32, 64, 128, 256}},
}

// comparedLengths returns the distributions of prompt lengths, in tokens, that buckets are compared on.
func comparedLengths() ([]lengths, error) {
	const most = 1024
	lognormal, err := (&workload.LogNormal{Median: 200, Sigma: 0.8, Max: most}).Prompts()
	if err != nil {
		return nil, err
	}
	paper, err := workload.NamedPrompts("llmnpu-ui")
	if err != nil {
		return nil, err
	}
	var bimodal, uniform workload.Prompts
	for tokens := 1; tokens <= most; tokens++ {
		uniform = append(uniform, workload.Prompt{Tokens: tokens, Share: 1})
		if tokens >= 30 && tokens < 60 || tokens >= 700 && tokens < 730 {
			bimodal = append(bimodal, workload.Prompt{Tokens: tokens, Share: 1})
		}
	}
	return []lengths{
		{"log-normal, median 200, sigma 0.8, up to 1024", lognormal},
		{"llm.npu sec. 2.1, UI automation: 505 to 827", paper},
		{"bimodal: 30 to 59 and 700 to 729", bimodal},
		{"uniform: 1 to 1024", uniform},
	}, nil
}

// comparedBuckets compares solve's buckets with fixed ladders, on each distribution of lengths.
func comparedBuckets(ctx context.Context) (string, any, error) {
	list, err := comparedLengths()
	if err != nil {
		return "", nil, err
	}
	var text strings.Builder
	var rows []comparedBucket
	text.WriteString("Simulated: costs are fitted from a profile of the catalog SoC, times are what solve predicts " +
		"with them, no device was measured.\nA row's buckets are solved as a plan of their own; prefill is the " +
		"expected time of a prompt, and bytes and graphs are those of the processors with static shapes.\n")
	for _, pair := range [][2]string{{"snapdragon-8gen3", "llama-3.2-1b"}, {"redmi-k70-pro", "qwen1.5-1.8b"}} {
		more, err := bucketTable(ctx, &text, pair, list)
		if err != nil {
			return "", nil, err
		}
		rows = append(rows, more...)
	}
	return text.String(), rows, nil
}

// bucketTable writes the table of one SoC and model. Costs are profiled once, at the buckets of all
// rules.
func bucketTable(ctx context.Context, text *strings.Builder, pair [2]string, list []lengths) ([]comparedBucket, error) {
	soc, model, err := catalogPair(pair)
	if err != nil {
		return nil, err
	}
	defer model.Close()
	want := profiler.Want{Schemes: []op.Scheme{op.A8TQ8C}}
	for _, length := range list {
		for _, rule := range bucketRules {
			needs, err := promptWorkload(length.prompts, rule.buckets).Needs(model.MaxContext)
			if err != nil {
				return nil, err
			}
			want.Buckets, want.MaxContext = append(want.Buckets, needs.Buckets...), max(want.MaxContext, needs.Context)
		}
	}
	slices.Sort(want.Buckets)
	// All rules are priced by one set of costs, so that they differ in buckets only.
	want.Buckets = slices.Compact(want.Buckets)
	costs, err := simulatedCosts(ctx, soc, model, want)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(text, "\n%s on %s, a8t/q8c:\n\n| prompts | buckets by | buckets | prefill ms | / solve's | graphs | "+
		"MiB | status |\n"+
		"| --- | --- | --- | ---: | ---: | ---: | ---: | --- |\n", model.Name, soc.Name)
	var rows []comparedBucket
	for _, length := range list {
		base := 0.0
		for _, rule := range bucketRules {
			result, err := solver.Solve(ctx, solver.Input{
				Model: model, SoC: soc, Costs: costs, Workload: promptWorkload(length.prompts, rule.buckets),
				// A ladder is taken as it is: solve must not leave out buckets that gain nothing.
				Engine: exact.Engine{}, AllBuckets: rule.buckets.Max() == 0,
			})
			if err != nil {
				return nil, err
			}
			row := bucketsOf(result, soc)
			row.SoC, row.Model, row.Lengths, row.Rule = soc.Name, model.Name, length.name, rule.name
			if base == 0 {
				base = row.PrefillNS
			}
			row.Ratio = row.PrefillNS / base
			rows = append(rows, row)
			buckets := strings.ReplaceAll(strings.Trim(fmt.Sprint(row.Buckets), "[]"), " ", ", ")
			fmt.Fprintf(text, "| %s | %s | %s | %.1f | %.3f | %d | %.0f | %s |\n", length.name, rule.name, buckets,
				row.PrefillNS/1e6, row.Ratio, row.Graphs, float64(row.Bytes)/(1<<20), row.Status)
		}
	}
	return rows, nil
}

// promptWorkload returns a workload that only wants fast prompts.
func promptWorkload(prompts workload.Prompts, buckets workload.Rows) *workload.Workload {
	schemes := []op.Scheme{op.A8TQ8C}
	return &workload.Workload{
		Schema: workload.Schema, Prompts: prompts, Buckets: buckets, Weights: workload.Weights{Prefill: 1},
		Schemes: workload.Schemes{Prefill: schemes, Decode: schemes},
	}
}

// bucketsOf returns the buckets of a plan, its expected time, and what its static graphs hold.
func bucketsOf(result *solver.Result, soc *socs.SoC) comparedBucket {
	plan := result.Plan
	row := comparedBucket{PrefillNS: result.ExpectedNS}
	for i := range plan.Program.Programs {
		if rows := plan.Program.Programs[i].Rows; !plan.Decodes(rows) {
			row.Buckets = append(row.Buckets, rows)
		}
	}
	slices.Sort(row.Buckets)
	for i := range soc.Processors {
		if proc := &soc.Processors[i]; proc.StaticShapes {
			held := check.Load(plan, proc)
			row.Bytes, row.Graphs = row.Bytes+held.Bytes, row.Graphs+held.Graphs
		}
	}
	for _, solve := range plan.Solver {
		if solve.Problem == "buckets" {
			row.Status = solve.Status
		}
	}
	return row
}
