package papers

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/problem"
)

// agentxpu are the items of that paper.
var agentxpu = []Item{
	sheetItem("agentxpu", "serving", "hetserve's scheduler and the baselines on synthetic traces", "sec. 6.1, 6.2",
		agentServing),
	sheetItem("agentxpu", "mapping", "which processor an operator is for", "sec. 4.2, 6.4", agentMapping),
	sheetItem("agentxpu", "batching", "what batches gain in decode", "sec. 3.2, 4.5, Fig. 5", agentBatching),
	sheetItem("agentxpu", "preemption", "how long a call holds the processors", "sec. 4.4", agentPreemption),
	sheetItem("agentxpu", "printed", "chunks, powers, waits and ranges of the abstract",
		"abstract, sec. 1, 4.4, 6.2, 6.3, Table 2", agentPrinted),
}

// agent returns an entry of the paper's data.
func agent(id string) value { return fact("agentxpu", id) }

// agentSoC is the laptop of the paper's results, as the catalog has it.
const agentSoC = "core-ultra-5-125h"

// agentMapping reads which processors a plan has for the operators of a chunk and of decoding, for the least time and
// for the least energy.
func agentMapping(ctx context.Context, rows *sheet) error {
	from, err := newChain(ctx, agentSoC, "llama-3-8b", agentWorkload(op.A16FQ8C, nil, 256), nil)
	if err != nil {
		return err
	}
	for _, goal := range []struct {
		name string
		with restriction
	}{{"time", permitWhole}, {"energy", both(permitWhole, func(in *solver.Input) { in.Minimise(problem.Energy) })}} {
		plan, err := from.solve(ctx, goal.with)
		if err != nil {
			return err
		}
		for _, stage := range []struct {
			name  string
			rows  int
			paper string
		}{{"prefill", 256, "npu"}, {"decode", 1, "gpu"}} {
			for _, operator := range []string{"qkv", "attention", "ffn_gate_up", "ffn_down"} {
				decision := plan.DecisionFor("layers."+operator, stage.rows)
				if decision == nil {
					return fmt.Errorf("the plan decides nothing for %q of %d rows", operator, stage.rows)
				}
				paper := stage.paper
				if operator == "attention" {
					paper = "gpu"
				}
				rows.add(Solved, fmt.Sprintf("%s/%s/least_%s", stage.name, operator, goal.name), paper,
					decision.Shares[0].Proc,
					"whole operators, Llama-3-8B in W8A16 on a SoC most of whose rates are assumptions. The paper "+
						"decides by affinity: it keeps the GPU free for decode")
			}
		}
	}
	return nil
}

// agentBatching reads what plans predict of batches of decode steps.
func agentBatching(ctx context.Context, rows *sheet) error {
	from, err := newChain(ctx, agentSoC, "llama-3.2-3b", agentWorkload(op.A16FQ8C, []int{2, 4, 8, 16, 32}, 256), nil)
	if err != nil {
		return err
	}
	plan, err := from.solve(ctx, only("gpu"))
	if err != nil {
		return err
	}
	alone := float64(plan.times.Decode(1))
	for _, sequences := range plan.Batches {
		slower := float64(plan.times.Decode(sequences)) / alone
		rows.add(Solved, fmt.Sprintf("decode_%d/latency_x", sequences), "gradual rise", slower,
			"of a step of so many sequences over that of one, GPU: weights are read once for all (Fig. 5 is a plot)")
		rows.add(Solved, fmt.Sprintf("decode_%d/throughput_x", sequences), nil, float64(sequences)/slower,
			"tokens a second")
	}
	return nil
}

// agentPreemption compares how long a call holds the processors with the printed bound: hetc's scheduler interrupts
// prompts between chunks.
func agentPreemption(ctx context.Context, rows *sheet) error {
	limit := agent("hw_preemption_bound").at("values", "prefill_preemption_below").num()
	from, err := newChain(ctx, agentSoC, "llama-3-8b", agentWorkload(op.A16FQ8C, nil, 64, 256), nil)
	if err != nil {
		return err
	}
	plan, err := from.solve(ctx, nil)
	if err != nil {
		return err
	}
	for _, rowsOf := range []int{64, 256} {
		ns, err := plan.caller.NS(rowsOf, 2048)
		if err != nil {
			return err
		}
		rows.add(Solved, fmt.Sprintf("chunk_%d_ms", rowsOf), fmt.Sprintf("below %v", limit), float64(ns)/1e6,
			"a chunk of so many tokens of Llama-3-8B behind others, 2048 positions: the paper interrupts between "+
				"kernels, hetc between chunks")
	}
	return nil
}

// agentPrinted is arithmetic on what the paper prints: chunks, powers, waits, and the ranges of the abstract against
// the details of sec. 6.2.
func agentPrinted(_ context.Context, rows *sheet) error {
	size := int(agent("m_chunk_size").at("values", "chunk_in_latency_bound").num())
	for _, tokens := range []int{300, 4096} {
		rows.add(Arithmetic, fmt.Sprintf("%d_tokens/N_chk", tokens), nil, tokens/size, "floor(S_len/%d), Table 2", size)
		rows.add(Arithmetic, fmt.Sprintf("%d_tokens/S_rem", tokens), nil, tokens%size, "S_len mod %d, Table 2", size)
	}
	power := agent("hw_power").at("values")
	prefill, npu := power.at("igpu_prefill").num(), power.at("npu_chunked_prefill").num()
	rows.noted(Arithmetic, "power_ratio", nil, prefill/npu, "power_ratio", prefill, npu)
	longest := agent("hw_kernel_latency_bounds").at("values")
	chunk, attention := longest.at("chunk_256_kernel_max").num(), longest.at("mha_seq_2048_max").num()
	limit := agent("hw_preemption_bound").at("values", "prefill_preemption_below").num()
	rows.noted(Arithmetic, "longest_ms", fmt.Sprintf("below %v", limit), max(chunk, attention), "longest_ms",
		chunk, attention)
	wait := agent("r_prefill_pending").at("values", "reactive_average").num()
	rows.noted(Arithmetic, "wait_s", wait, attention/2/1000, "wait_s")
	// latency of reactive requests
	means := agent("r_mixed_reactive_mean").at("values")
	var all []float64
	for _, model := range means.keys() {
		all = append(all, means.at(model).nums()...)
	}
	headline := agent("r_mixed_headline").at("values")
	claimed := headline.at("reactive_latency_reduction").nums()
	rows.add(Arithmetic, "reactive/least", claimed[0], slices.Min(all), "percent, of six printed in sec. 6.2")
	rows.add(Arithmetic, "reactive/most", claimed[1], slices.Max(all), "percent, of six; 96.70 rounds to 97")
	rows.add(Arithmetic, "reactive/abstract",
		agent("r_abstract").at("values", "reactive_latency_reduction_at_least").num(),
		slices.Min(all), "percent, at least")
	// throughput of proactive requests
	proactive := agent("r_mixed_proactive_mean").at("values")
	all = nil
	for _, model := range proactive.keys() {
		all = append(all, proactive.at(model).nums()...)
	}
	gain := headline.at("proactive_throughput_gain").nums()
	rows.noted(Arithmetic, "proactive/least", gain[0], slices.Min(all), "proactive/least")
	rows.noted(Arithmetic, "proactive/most", gain[1], slices.Max(all), "proactive/most")
	// the abstract's range is that over both baselines
	abstract, one := agent("r_abstract").at("values", "proactive_throughput").nums(),
		agent("r_proactive_only").at("values")
	both := append(one.at("vs_openvino_igpu").nums(), one.at("vs_serial_npu_igpu").nums()...)
	rows.add(Arithmetic, "throughput/least", abstract[0], slices.Min(both), "x, of both baselines' ranges in sec. 1")
	rows.add(Arithmetic, "throughput/most", abstract[1], slices.Max(both), "x, of both baselines' ranges in sec. 1")
	balanced, end := listing(8, int64(chunk), int64(chunk), 0)
	rows.noted(Arithmetic, "algorithm_1/n_npu", nil, balanced, "algorithm_1", chunk)
	rows.noted(Arithmetic, "algorithm_1/ms", nil, float64(end), "algorithm_1", chunk)
	order := agent("m_algorithm2_order_conflict").at("values")
	rows.noted(Arithmetic, "algorithm_2/order", order.at("prose").text(), "the listing admits the longest first",
		"algorithm_2/order")
	more := agent("r_proactive_only_detail").at("values", "more_requests_at_1_s_per_token_ProactiveBench_and_CNN").num()
	rows.noted(PrintedOnly, "requests_at_1_s_a_token_percent", more, nil, "requests_at_1_s_a_token")
	rows.noted(PrintedOnly, "igpu_decode_utilization_percent",
		agent("hw_igpu_utilization").at("values", "decode_average").num(), nil, "igpu_decode_utilization")
	return nil
}

// listing is Algorithm 1 for a token-wise operator: of whole chunks, which take so long on the NPU or the GPU, and a
// remainder on the GPU, as many go to the NPU as have both end least far apart. It returns them and when both have
// ended.
func listing(chunks int, npu, gpu, rest int64) (onNPU int, end int64) {
	least := int64(math.MaxInt64)
	for i := range chunks + 1 {
		first, second := int64(i)*npu, int64(chunks-i)*gpu+rest
		if apart := max(first-second, second-first); apart < least {
			least, onNPU, end = apart, i, max(first, second)
		}
	}
	return onNPU, end
}
