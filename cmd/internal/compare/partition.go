package compare

import (
	"context"
	"fmt"
	"slices"
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

// comparedPartitions compares solve's partition with each processor alone, with whole operators on the processor that is best
// at each (layer-level placement, HeteroInfer sec. 4.1), and with matrices in fixed parts.
func comparedPartitions(ctx context.Context) (string, any, error) {
	const bucket = 256
	var text strings.Builder
	var rows []comparedPartition
	fmt.Fprintf(&text, "Simulated: costs are fitted from a profile of the catalog SoC, times are what solve predicts with them, no device was measured.\n"+
		"Prefill is a prompt of %d tokens, decode one token.\n", bucket)
	for _, pair := range [][2]string{{"snapdragon-8gen3", "llama-3.2-3b"}, {"snapdragon-8-elite", "qwen1.5-1.8b"}, {"core-ultra-5-125h", "llama-3.2-3b"}} {
		soc, model, err := catalogPair(pair)
		if err != nil {
			return "", nil, err
		}
		defer model.Close()
		scheme := op.A32W32
		for _, wanted := range []op.Scheme{op.A8TQ8C, op.A8TQ4B32} {
			ok := true
			for i := range soc.Processors {
				ok = ok && (len(soc.Processors[i].Schemes) == 0 || slices.Contains(soc.Processors[i].Schemes, wanted))
			}
			if ok {
				scheme = wanted
				break
			}
		}
		permits := &workload.Workload{Schema: workload.Schema, Buckets: workload.Rows{bucket}, Prompts: workload.Prompts{{Tokens: bucket, Share: 1}},
			Schemes: workload.Schemes{Prefill: []op.Scheme{scheme}, Decode: []op.Scheme{scheme}}}
		needs, err := permits.Needs(model.MaxContext)
		if err != nil {
			return "", nil, err
		}
		costs, err := simulatedCosts(ctx, soc, model, profiler.Want{Schemes: []op.Scheme{scheme}, Buckets: needs.Buckets, MaxContext: needs.Context})
		if err != nil {
			return "", nil, err
		}
		fmt.Fprintf(&text, "\n%s on %s, %s:\n\n| partition by | prefill ms | / solve's | decode ms | / solve's |\n| --- | ---: | ---: | ---: | ---: |\n", model.Name, soc.Name, scheme)
		in := solver.Input{Model: model, SoC: soc, Costs: costs, Workload: permits, Engine: exact.Engine{}}
		var base *comparedPartition
		add := func(rule string, prefill, decode int64) {
			partition := comparedPartition{SoC: soc.Name, Model: model.Name, Rule: rule, PrefillNS: prefill, DecodeNS: decode}
			if base == nil {
				base = &partition
			}
			ms := func(ns, of int64, out *float64) string {
				if ns == 0 {
					return "- | -"
				}
				*out = float64(ns) / float64(of)
				return fmt.Sprintf("%.1f | %.2f", float64(ns)/1e6, *out)
			}
			fmt.Fprintf(&text, "| %s | %s | %s |\n", rule, ms(prefill, base.PrefillNS, &partition.Prefill), ms(decode, base.DecodeNS, &partition.Decode))
			rows = append(rows, partition)
		}
		times := func(p *planir.Plan) (prefill, decode *planir.Prediction) {
			for i := range p.Predictions {
				if strings.HasPrefix(p.Predictions[i].Program, "prefill") {
					prefill = &p.Predictions[i]
				} else {
					decode = &p.Predictions[i]
				}
			}
			return prefill, decode
		}
		solved, err := solver.Solve(ctx, in)
		if err != nil {
			return "", nil, err
		}
		prefill, decode := times(solved.Plan)
		add("solve", prefill.PlanNS, decode.PlanNS)
		for i := range soc.Processors {
			name := soc.Processors[i].Name
			of := func(p *planir.Prediction) int64 {
				for _, single := range p.Singles {
					if single.Proc == name {
						return single.NS
					}
				}
				return 0
			}
			add(name+" alone", of(prefill), of(decode))
		}
		type policy struct {
			name       string
			strategies []planir.Strategy
			ratio      map[string]float64
		}
		list := []policy{{"each operator whole, on the best for it", []planir.Strategy{planir.Single, planir.Padding}, nil}}
		for _, of := range []float64{0.25, 0.5, 0.75} {
			list = append(list, policy{fmt.Sprintf("npu %.0f %%, gpu %.0f %% of every matrix", 100*of, 100*(1-of)), nil, map[string]float64{"npu": of, "gpu": 1 - of}})
		}
		for _, policy := range list {
			in.Strategies, in.Ratio = policy.strategies, policy.ratio
			result, err := solver.Solve(ctx, in)
			if err != nil {
				return "", nil, err
			}
			prefill, decode := times(result.Plan)
			add(policy.name, prefill.PlanNS, decode.PlanNS)
		}
	}
	return text.String(), rows, nil
}
