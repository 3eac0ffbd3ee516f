package compare

import (
	"context"
	"fmt"
	"strings"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/workload"
)

// comparedPartition is one row of the comparison of partitions.
type comparedPartition struct {
	SoC       string  `json:"soc"`
	Model     string  `json:"model"`
	Rule      string  `json:"rule"`
	PrefillNS int64   `json:"simulated_prefill_ns"` // 0: it cannot be executed so
	DecodeNS  int64   `json:"simulated_decode_ns"`
	Prefill   float64 `json:"prefill_ratio"` // to solve's
	Decode    float64 `json:"decode_ratio"`
}

// partitionBucket is the length of the prompts that partitions are compared on.
const partitionBucket = 256

// comparedPartitions compares solve's partition with three rules: each processor alone; whole
// operators, each on its best processor (layer-level placement, HeteroInfer sec. 4.1); and all
// matrices in fixed parts.
func comparedPartitions(ctx context.Context) (string, any, error) {
	table := &partitionTable{}
	fmt.Fprintf(&table.text,
		"Simulated: costs are fitted from a profile of the catalog SoC, times are what solve predicts with them, "+
			"no device was measured.\nPrefill is a prompt of %d tokens, decode one token.\n", partitionBucket)
	for _, pair := range [][2]string{
		{"snapdragon-8gen3", "llama-3.2-3b"}, {"snapdragon-8-elite", "qwen1.5-1.8b"},
		{"core-ultra-5-125h", "llama-3.2-3b"},
	} {
		if err := table.compare(ctx, pair); err != nil {
			return "", nil, err
		}
	}
	return table.text.String(), table.rows, nil
}

// partitionTable is the comparison as Markdown and as rows.
type partitionTable struct {
	text strings.Builder
	rows []comparedPartition
	base *comparedPartition // the row of solve on this SoC, to which the others are related; nil: it comes next
}

// add appends the times of a rule in ns, 0 where it cannot execute the model. The first row of a
// SoC is solve's.
func (t *partitionTable) add(soc, model, rule string, prefill, decode int64) {
	row := comparedPartition{SoC: soc, Model: model, Rule: rule, PrefillNS: prefill, DecodeNS: decode}
	if t.base == nil {
		t.base = &row
	}
	cells := func(ns, base int64, ratio *float64) string {
		if ns == 0 {
			return "- | -"
		}
		*ratio = float64(ns) / float64(base)
		return fmt.Sprintf("%.1f | %.2f", float64(ns)/1e6, *ratio)
	}
	fmt.Fprintf(&t.text, "| %s | %s | %s |\n", rule,
		cells(prefill, t.base.PrefillNS, &row.Prefill), cells(decode, t.base.DecodeNS, &row.Decode))
	t.rows = append(t.rows, row)
}

// compare adds the rows of one SoC and model.
func (t *partitionTable) compare(ctx context.Context, pair [2]string) error {
	soc, model, err := catalogPair(pair)
	if err != nil {
		return err
	}
	defer model.Close()
	// One scheme for all processors, or those that lack it would be compared for nothing.
	scheme := schemeFor(soc, op.A8TQ8C, op.A8TQ4B32)
	schemes := []op.Scheme{scheme}
	permits := &workload.Workload{
		Schema: workload.Schema, Buckets: workload.Rows{partitionBucket},
		Prompts: workload.Prompts{{Tokens: partitionBucket, Share: 1}},
		Schemes: workload.Schemes{Prefill: schemes, Decode: schemes},
	}
	needs, err := permits.Needs(model.MaxContext)
	if err != nil {
		return err
	}
	costs, err := simulatedCosts(ctx, soc, model,
		profiler.Want{Schemes: schemes, Buckets: needs.Buckets, MaxContext: needs.Context, Caches: needs.Caches})
	if err != nil {
		return err
	}
	fmt.Fprintf(&t.text, "\n%s on %s, %s:\n\n| partition by | prefill ms | / solve's | decode ms | / solve's |\n"+
		"| --- | ---: | ---: | ---: | ---: |\n", model.Name, soc.Name, scheme)
	input := solver.Input{Model: model, SoC: soc, Costs: costs, Workload: permits, Engine: exact.Engine{}}
	t.base = nil
	solved, err := solver.Solve(ctx, input)
	if err != nil {
		return err
	}
	prefill, decode := promptAndToken(solved.Plan)
	t.add(soc.Name, model.Name, "solve", prefill.PlanNS, decode.PlanNS)
	// The plan has its own prediction of each program on every processor alone.
	for i := range soc.Processors {
		name := soc.Processors[i].Name
		t.add(soc.Name, model.Name, name+" alone", aloneNS(prefill, name), aloneNS(decode, name))
	}
	for _, policy := range partitionPolicies() {
		input.Strategies, input.Ratio = policy.strategies, policy.ratio
		result, err := solver.Solve(ctx, input)
		if err != nil {
			return err
		}
		prefill, decode := promptAndToken(result.Plan)
		t.add(soc.Name, model.Name, policy.name, prefill.PlanNS, decode.PlanNS)
	}
	return nil
}

// partitionPolicies are what papers propose instead of solving: no splitting at all, and one split for every matrix.
func partitionPolicies() []alternative {
	list := []alternative{{name: "each operator whole, on the best for it",
		strategies: []planir.Strategy{planir.Single, planir.Padding}}}
	for _, part := range []float64{0.25, 0.5, 0.75} {
		list = append(list, alternative{
			name:  fmt.Sprintf("npu %.0f %%, gpu %.0f %% of every matrix", 100*part, 100*(1-part)),
			ratio: map[string]float64{"npu": part, "gpu": 1 - part},
		})
	}
	return list
}

// promptAndToken returns the predictions of a plan for its one prefill program and for decoding.
func promptAndToken(plan *planir.Plan) (prefill, decode *planir.Prediction) {
	for i := range plan.Predictions {
		if strings.HasPrefix(plan.Predictions[i].Program, "prefill") {
			prefill = &plan.Predictions[i]
		} else {
			decode = &plan.Predictions[i]
		}
	}
	return prefill, decode
}

// aloneNS returns the time of a program on one processor alone, 0 where that cannot execute it.
func aloneNS(prediction *planir.Prediction, proc string) int64 {
	for _, single := range prediction.Singles {
		if single.Proc == proc {
			return single.NS
		}
	}
	return 0
}
