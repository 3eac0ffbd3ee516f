package papers

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// near compares rows of a paper, by item and name, with what is to come out, within a relative tolerance.
func near(t *testing.T, paper string, tolerance float64, pairs map[string]value) {
	t.Helper()
	rows := map[string]any{}
	for _, item := range of(paper) {
		for id := range pairs {
			if strings.HasPrefix(id, item.Name+"/") {
				for _, row := range rowsOf(t, item) {
					rows[strings.TrimPrefix(row.ID, paper+"/")] = row.Ours
				}
				break
			}
		}
	}
	for id, v := range pairs {
		got, ok := rows[id].(float64)
		if want := v.num(); !ok || math.Abs(got-want) > tolerance*math.Abs(want) {
			t.Errorf("%s: got %v, want %v", id, rows[id], want)
		}
	}
}

// These tests compare rows with the arithmetic that the transcribers of the papers did by hand.
func TestHeteroInferByHand(t *testing.T) {
	pairs := map[string]value{}
	by := func(id string) value { return hetero(id).at("transcriber_computed") }
	for i, row := range measuredRows() {
		key := fmt.Sprintf("row%d", []int{1, 2, 3, 4, 6, 8}[i])
		pairs["splits/"+row.name+"/gpu-share"] = by("dc_t3_exact_rows_strategy").at("ideal_gpu_share_linear", key)
		pairs["splits/"+row.name+"/balanced-us"] = by("dc_t3_exact_rows_strategy").at("balanced_us_linear", key)
		if row.m == 1 {
			pairs["bandwidth/"+row.name+"/gpu-gbps"] = by("dc_t3_decode_bandwidth").at("gpu_gbps", key)
			pairs["bandwidth/"+row.name+"/npu-gbps"] = by("dc_t3_decode_bandwidth").at("npu_gbps", key)
			continue
		}
		pairs["achieved/"+row.name+"/gpu-tflops"] = by("dc_gpu_linear").at(key + "_tflops")
		pairs["achieved/"+row.name+"/npu-tflops"] = by("dc_npu_tflops").at(key + "_tflops")
	}
	for name, key := range map[string]string{"Llama-8B": "Llama-8B_8.03e9", "Llama-3B": "Llama-3B_3.21e9",
		"InternLM-1.8B": "InternLM_1.89e9"} {
		pairs["bandwidth/decode-"+name+"/gbps"] = by("dc_decode_bandwidth_ceiling").at("with_nominal_params_gbps", key)
	}
	pairs["bandwidth/fraction-of-achievable"] = by("dc_bandwidth_fraction").at("fraction")
	pairs["gains/online-prepare-135/total-ms"] = by("dc_online_prepare_total").at("total_ms")
	pairs["gains/ablation/product"] = by("dc_ablation_product").at("product_of_four")
	pairs["gains/ablation/over-gpu"] = by("dc_ablation_product").at("relative_to_gpu")
	pairs["gains/over-llmnpu"] = by("dc_llmnpu_ratio").at("ratio")
	near(t, "heteroinfer", 0.004, pairs)
}

func TestLLMNPUByHand(t *testing.T) {
	pairs := map[string]value{}
	by := func(id string) value { return npuFact(id).at("transcriber_computed") }
	for i, row := range npuFact("table3").at("values").list() {
		name := fmt.Sprintf("table3/%vx%vx%v/", row.at("a", 0).num(), row.at("a", 1).num(), row.at("b", 1).num())
		pairs[name+"cpu_int8-over-npu-int8"] = by("dc_t3_ratios").at("cpu", i)
		pairs[name+"gpu_fp16-over-npu-int8"] = by("dc_t3_ratios").at("gpu", i)
		pairs[name+"npu_fp16-over-npu-int8"] = by("dc_t3_ratios").at("npu_fp16", i)
		pairs[name+"npu-tops"] = by("dc_t3_tops").at("tops", i)
	}
	pairs["table3/npu-fp16-over-cpu-int8-most"] = by("dc_t3_npu_fp16_slowest").at("max")
	pairs["printed/sharing/before-gb"] = by("dc_graph_sharing_memory").at("before_gb")
	pairs["printed/density/channels-most"] = by("dc_outlier_density").at("implied_channels")
	keys := []string{"2wiki", "TriviaQA", "DroidTask_block1", "DroidTask_block2", "PersonaChat"}
	for i, dataset := range npuFact("table5").at("values").list() {
		for _, engine := range npuEngines {
			pairs["table5/"+datasetName(dataset)+"/geomean-"+engine] = by("dc_t5_geomeans").at(keys[i], engine)
		}
	}
	for _, name := range by("dc_smoothquant_crosscheck").keys() {
		pairs["table6/smoothquant-drop/"+name] = by("dc_smoothquant_crosscheck").at(name)
	}
	near(t, "llmnpu", 0.005, pairs)
}

func TestShadowAttnByHand(t *testing.T) {
	by := func(id string) value { return shadow(id).at("transcriber_computed") }
	launch, means, losses := by("dc_fused_launch"),
		by("dc_t6_averages").at("means"), by("dc_t6_averages").at("losses_pp")
	near(t, "shadowattn", 0.005, map[string]value{
		"printed/launch/1/per_head_ms": launch.at("per_head_ms", 0),
		"printed/launch/2/per_head_ms": launch.at("per_head_ms", 1),
		"printed/launch/4/per_head_ms": launch.at("per_head_ms", 2),
		"printed/launch/1/gops":        launch.at("gops", 0), "printed/launch/2/gops": launch.at("gops", 1),
		"printed/launch/4/gops":             launch.at("gops", 2),
		"printed/launch/four/apart_ms":      launch.at("serial_4_heads_ms"),
		"printed/memory/one_shape/least_kb": by("dc_graph_memory").at("nine_graphs_kb", 0),
		"printed/memory/one_shape/most_kb":  by("dc_graph_memory").at("nine_graphs_kb", 1),
		"accuracy/table6/cg_full/mean":      means.at(0), "accuracy/table6/ours/mean": means.at(4),
		"accuracy/table6/npu_full/loss":  losses.at("npu_full"),
		"accuracy/table6/cg_sparse/loss": losses.at("cg_sparse"), "accuracy/table6/ours/loss": losses.at("ours"),
		"time/table7/DroidCall":            by("dc_t7_ratios").at("ratios", 2),
		"time/table8/PhoneLM-1.5B/cg_full": by("dc_t8_ratios").at("cg_full", 1),
		"time/table8/Qwen2-1.5B/npu_full":  by("dc_t8_ratios").at("npu_full", 3),
		"time/table9/worst_slowdown":       by("dc_t9_interference").at("max_over_base"),
		"printed/Qwen2-0.5B/qk_gops":       by("dc_attention_ops").at("Qwen2-0.5B_4096_qk_gops_per_layer"),
		"printed/PhoneLM-0.5B/heads":       shadow("models_head_total").at("values", "PhoneLM-0.5B"),
		"printed/PhoneLM-1.5B/heads":       shadow("models_head_total").at("values", "PhoneLM-1.5B"),
	})
}

func TestAgentXPUByHand(t *testing.T) {
	by := func(id string) value { return agent(id).at("transcriber_computed") }
	near(t, "agentxpu", 1e-6, map[string]value{
		"printed/4096_tokens/N_chk": by("dc_alg1_chunk_math").at("len_4096", "N_chk"),
		"printed/4096_tokens/S_rem": by("dc_alg1_chunk_math").at("len_4096", "S_rem"),
		"printed/300_tokens/N_chk":  by("dc_alg1_chunk_math").at("len_300", "N_chk"),
		"printed/300_tokens/S_rem":  by("dc_alg1_chunk_math").at("len_300", "S_rem"),
		"printed/reactive/least":    by("dc_mixed_reduction_range").at("min"),
		"printed/reactive/most":     by("dc_mixed_reduction_range").at("max"),
		"printed/power_ratio":       by("dc_power_order").at("power_ratio"),
	})
}

func TestNPUMoEByHand(t *testing.T) {
	by := func(id string) value { return moe(id).at("transcriber_computed") }
	table, a2, a3 := by("dc_group_latency_table"), by("dc_a2_ratios"), by("dc_a3_ratios")
	near(t, "npumoe", 0.002, map[string]value{
		"groups/phi-3.5-moe/chunk_256/base":      by("dc_capacity_formula").at("PhiMoE_base_chunk_256"),
		"groups/phi-3.5-moe/chunk_512/base":      by("dc_capacity_formula").at("PhiMoE_base_chunk_512"),
		"groups/phi-3.5-moe/chunk_1024/base":     by("dc_capacity_formula").at("PhiMoE_base_chunk_1024"),
		"groups/table5/1x32_1x128":               table.at("r_1x32_1x128"),
		"groups/table5/1x32_4x32":                table.at("r_1x32_4x32"),
		"groups/table5/1x64_8x64":                table.at("r_1x64_8x64"),
		"groups/table5/8x32_8x64":                table.at("r_8x32_8x64"),
		"groups/table5/implied_8x96_ms":          table.at("implied_8x96_ms"),
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
