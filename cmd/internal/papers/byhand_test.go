package papers

import (
	"testing"

	"github.com/hetc/hetc/internal/require"
)

// Rows against the arithmetic that the transcribers of the papers did by hand.
func TestShadowAttnByHand(t *testing.T) {
	require.Slow(t)
	by := func(id string) value { return shadow(id).at("transcriber_computed") }
	launch, sparse, means, losses := by("dc_fused_launch"), by("dc_sparse_linear_model"),
		by("dc_t6_averages").at("means"), by("dc_t6_averages").at("losses_pp")
	near(t, "shadowattn", 0.005, map[string]value{
		"launch/1/per_head_ms": launch.at("per_head_ms", 0), "launch/2/per_head_ms": launch.at("per_head_ms", 1),
		"launch/4/per_head_ms": launch.at("per_head_ms", 2),
		"launch/1/gops":        launch.at("gops", 0), "launch/2/gops": launch.at("gops", 1),
		"launch/4/gops":        launch.at("gops", 2),
		"launch/four/apart_ms": launch.at("serial_4_heads_ms"), "launch/four/fused_ms": launch.at("fused_4_heads_ms"),
		"sparse/estimation": sparse.at("E"), "sparse/multiplication": sparse.at("A"),
		"memory/one_shape/least_kb":    by("dc_graph_memory").at("nine_graphs_kb", 0),
		"memory/one_shape/most_kb":     by("dc_graph_memory").at("nine_graphs_kb", 1),
		"accuracy/table6/cg_full/mean": means.at(0), "accuracy/table6/ours/mean": means.at(4),
		"accuracy/table6/npu_full/loss":  losses.at("npu_full"),
		"accuracy/table6/cg_sparse/loss": losses.at("cg_sparse"), "accuracy/table6/ours/loss": losses.at("ours"),
		"time/table7/DroidCall":            by("dc_t7_ratios").at("ratios", 2),
		"time/table8/PhoneLM-1.5B/cg_full": by("dc_t8_ratios").at("cg_full", 1),
		"time/table8/Qwen2-1.5B/npu_full":  by("dc_t8_ratios").at("npu_full", 3),
		"time/table9/worst_slowdown":       by("dc_t9_interference").at("max_over_base"),
		"ops/Qwen2-0.5B/qk_gops":           by("dc_attention_ops").at("Qwen2-0.5B_4096_qk_gops_per_layer"),
		"eq3/PhoneLM-0.5B/heads":           shadow("models_head_total").at("values", "PhoneLM-0.5B"),
		"eq3/PhoneLM-1.5B/heads":           shadow("models_head_total").at("values", "PhoneLM-1.5B"),
	})
}

func TestAgentXPUByHand(t *testing.T) {
	require.Slow(t)
	by := func(id string) value { return agent(id).at("transcriber_computed") }
	near(t, "agentxpu", 1e-6, map[string]value{
		"alg1/like/8_chunks/n_npu":       by("dc_alg1_examples_38ms").at("N_chk_8_n_npu"),
		"alg1/like/8_chunks/makespan_ms": by("dc_alg1_examples_38ms").at("makespan_ms"),
		"chunks/4096_tokens/N_chk":       by("dc_alg1_chunk_math").at("len_4096", "N_chk"),
		"chunks/4096_tokens/S_rem":       by("dc_alg1_chunk_math").at("len_4096", "S_rem"),
		"chunks/300_tokens/N_chk":        by("dc_alg1_chunk_math").at("len_300", "N_chk"),
		"chunks/300_tokens/S_rem":        by("dc_alg1_chunk_math").at("len_300", "S_rem"),
		"reductions/reactive/least":      by("dc_mixed_reduction_range").at("min"),
		"reductions/reactive/most":       by("dc_mixed_reduction_range").at("max"),
		"mapping/power_ratio":            by("dc_power_order").at("power_ratio"),
	})
}

func TestNPUMoEByHand(t *testing.T) {
	require.Slow(t)
	by := func(id string) value { return moe(id).at("transcriber_computed") }
	table, a2, a3 := by("dc_group_latency_table"), by("dc_a2_ratios"), by("dc_a3_ratios")
	near(t, "npumoe", 0.002, map[string]value{
		"capacity/phi-3.5-moe/chunk_256/base":    by("dc_capacity_formula").at("PhiMoE_base_chunk_256"),
		"capacity/phi-3.5-moe/chunk_512/base":    by("dc_capacity_formula").at("PhiMoE_base_chunk_512"),
		"capacity/phi-3.5-moe/chunk_1024/base":   by("dc_capacity_formula").at("PhiMoE_base_chunk_1024"),
		"table5/ratio/1x32_1x128":                table.at("r_1x32_1x128"),
		"table5/ratio/1x32_4x32":                 table.at("r_1x32_4x32"),
		"table5/ratio/1x64_8x64":                 table.at("r_1x64_8x64"),
		"table5/ratio/8x32_8x64":                 table.at("r_8x32_8x64"),
		"table5/implied_8x96_ms":                 table.at("implied_8x96_ms"),
		"memory/phimoe/experts_gb":               by("dc_expert_memory").at("experts_gb"),
		"memory/phimoe/rest_gb":                  by("dc_expert_memory").at("remainder_gb"),
		"memory/PhiMoE/bytes_per_parameter":      by("dc_bytes_per_param").at("PhiMoE"),
		"memory/PhiMoE-tiny/bytes_per_parameter": by("dc_bytes_per_param").at("PhiMoE-tiny"),
		"appendix/a2/coreml/speedup":             a2.at("speedup", 0),
		"appendix/a2/coreml-only/efficiency":     a2.at("energy", 0),
		"appendix/a2/anemll/energy_parts_j":      a2.at("sums_j", 2),
		"appendix/a3_micro/gpu_w":                a3.at("micro", "implied_w", 0),
		"appendix/a3_e2e/npu_w":                  a3.at("e2e", "implied_w", 1),
		"appendix/a3_e2e/runtime":                a3.at("e2e", "runtime"),
	})
}
