package papers

import (
	"context"
	"fmt"
	"slices"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/workload"
)

// npumoe are the items of that paper. Its text has lost the formulas, and its tables are pictures.
var npumoe = []Item{
	sheetItem("npumoe", "tiers", "capacity tiers: the paper's, one, and the least time", "sec. 4, 5.6, 5.8, Fig. 17",
		moeTiers),
	sheetItem("npumoe", "prompts", "time, energy and CPU time of prompts in chunks", "sec. 5.3 to 5.5, Fig. 14 to 16",
		moePrompts),
	sheetItem("npumoe", "table5", "experts of one graph and their rows, priced and executed", "sec. 5.7, Table 5",
		moeTable5),
	sheetItem("npumoe", "executed", "a small model calibrated, solved and executed on simulated Neural Engines",
		"sec. 3.2, 4, 5.6", moeExecuted),
	sheetItem("npumoe", "drops", "what dropped rows cost a small model", "sec. 5.6, Table 3", moeDrops),
	sheetItem("npumoe", "calibration", "overlap of profiled and routed experts", "sec. 5.8, Fig. 18", moeCalibration),
	sheetItem("npumoe", "groups", "capacities, and experts of one graph", "sec. 4.1, 4.2, 5.1, Table 5", moeGroups),
	sheetItem("npumoe", "memory", "bytes of experts and models", "sec. 5.1", moeMemory),
	sheetItem("npumoe", "appendix", "ratios of the appendix's tables", "appendix A.2, A.3", moeAppendix),
	sheetItem("npumoe", "ranges", "ranges of the abstract against the details", "abstract, sec. 5.3 to 5.8", moeRanges),
}

// moe returns an entry of the paper's data.
func moe(id string) value { return fact("npumoe", id) }

// moeModels returns the paper's models in the catalog, in its order.
func moeModels() ([]*models.Model, error) {
	var out []*models.Model
	for _, name := range []string{"phi-3.5-moe", "phi-tiny-moe", "qwen3-30b-a3b"} {
		model, err := models.Open(name)
		if err != nil {
			return nil, err
		}
		out = append(out, model)
	}
	return out, nil
}

// expertBytes returns the bytes of one expert of one layer in 16 bit: gate, up and down.
func expertBytes(m *models.Model) float64 { return 2 * 3 * float64(m.Hidden) * float64(m.ExpertFFN) }

// moeWorkload is prompts of one chunk, in the Neural Engine's half precision.
func moeWorkload(chunk int) *workload.Workload {
	schemes := []op.Scheme{op.A32W32}
	return &workload.Workload{Schema: workload.Schema, Name: "npumoe", OutputTokens: 1, Context: 2 * chunk,
		Prompts: []workload.Prompt{{Tokens: chunk, Share: 1}}, Buckets: workload.Rows{chunk},
		Schemes: workload.Schemes{Prefill: schemes, Decode: schemes}}
}

// tiered has capacity tiers chosen by a rule from the routing of tiny-moe-kjv, which has as many experts as PhiMoE and
// as many a token. No names: as solve does.
func tiered(names ...string) restriction {
	rule, err := solver.ParseTierRule(names)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return func(in *solver.Input) {
		loads, err := workload.TracedExample().As(in.Model)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		in.Only, in.TierRule, in.Loads = []string{"cpu", "npu"}, rule, loads
	}
}

// moeTiers solves a chunk of PhiMoE with dynamic experts and with capacity tiers by several rules.
func moeTiers(ctx context.Context, rows *sheet) error {
	const chunk = 256
	from, err := newChain(ctx, "apple-m2-ultra", "phi-3.5-moe", moeWorkload(chunk), nil)
	if err != nil {
		return err
	}
	times := map[string]float64{}
	for _, way := range []struct {
		name, note string
		with       restriction
	}{
		{"dynamic", "experts on the CPU, everything else where it is fastest", only("cpu", "npu")},
		{"cpu", "everything on the CPU", only("cpu")},
		{"paper", "each expert in the smallest of 16 to 256 rows that holds its expected load", tiered("paper")},
		{"paper_ungrouped", "the same, a graph of its own for every expert", tiered("paper", "ungrouped")},
		{"one_capacity", "the one capacity that takes the least time", tiered("one")},
		{"solved", "slots and their experts for the least time", tiered("optimal")},
		{"solved_for_all", "the same, and slots for all other experts", tiered("all")},
	} {
		plan, err := from.solve(ctx, way.with)
		if err != nil {
			return fmt.Errorf("solve %q: %w", way.name, err)
		}
		ns, err := plan.promptNS(chunk)
		if err != nil {
			return err
		}
		times[way.name] = ns
		rows.add(Solved, way.name+"/ms", nil, ns/1e6,
			"a chunk of %d tokens of PhiMoE on apple-m2-ultra, most of whose rates are "+
				"assumptions; %s", chunk, way.note)
		if tiers := plan.TiersOf(chunk); tiers != nil {
			slots, padding, overflow := tierShares(tiers, from.input.Model.ExpertsPerToken)
			rows.add(Solved, way.name+"/experts_on_npu", nil, slots, "of %d in a layer", tiers.Experts)
			rows.add(Solved, way.name+"/padding_percent", "31.7 to 37.5", padding,
				"of the rows that slots reserve; printed is the "+
					"paper's rule on its own routing")
			rows.add(Solved, way.name+"/overflow_percent", "10 to 20", overflow,
				"of the routed rows, which the CPU computes here and "+
					"the paper drops")
		}
	}
	printed := moe("r_ablation").at("values")
	rows.add(Solved, "solved_over_dynamic", printed.at("all_vs_base_latency").num(), times["dynamic"]/times["solved"],
		"x; the paper's base has one graph for each expert on the NPU, ours the CPU's dynamic products")
	rows.add(Solved, "grouping", nil, times["paper_ungrouped"]/times["paper"],
		"x: what groups gain over a graph for each expert, "+
			"paper's rule")
	rows.add(Solved, "residency", printed.at("all_vs_TG_latency").num(), times["solved_for_all"]/times["solved"],
		"x: what leaving cold experts to the CPU gains over slots for all")
	return nil
}

// tierShares returns the mean of a layer's slots, the percentage of their rows that are padding, and that of all routed
// rows that overflow.
func tierShares(tiers *planir.ExpertTiers, fan int) (slots int, padding, overflow float64) {
	reserved := 0
	for _, group := range tiers.Groups {
		reserved += group.Slots * group.Rows
	}
	routed := float64(tiers.Rows * fan)
	var moved []float64
	for i := range tiers.Layers {
		moved = append(moved, tiers.Layers[i].Moved)
		overflow += 100 * tiers.Layers[i].Overflow / float64(len(tiers.Layers))
	}
	return tiers.Slots(), 100 * (1 - mean(moved)*routed/float64(reserved)), overflow
}

// busiest returns the experts of a layer with the most rows in one half of the chunks, ties to the lower number.
func busiest(layer *workload.LoadLayer, half, count int) []int {
	sums, order := make([]int, len(layer.Rows)), make([]int, len(layer.Rows))
	for expert, counts := range layer.Rows {
		order[expert] = expert
		chunks := len(counts) / 2
		for _, rows := range counts[half*chunks : (half+1)*chunks] {
			sums[expert] += int(rows)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return sums[b] - sums[a] })
	return order[:count]
}

// moeGroups is arithmetic on capacities, sizes of groups and Table 5.
func moeGroups(_ context.Context, rows *sheet) error {
	list, err := moeModels()
	if err != nil {
		return err
	}
	for _, model := range list {
		for _, chunk := range moe("wl_chunk_sizes").at("values").nums() {
			rows.noted(Arithmetic, fmt.Sprintf("%s/chunk_%v/base", model.Name, chunk), nil,
				chunk*float64(model.ExpertsPerToken)/float64(model.Experts), "chunk/base", chunk, model.ExpertsPerToken,
				model.Experts)
		}
	}
	limit := moe("hw_graph_size_limit").at("values", "fallback_above").num()
	expert := expertBytes(list[0])
	rows.noted(Arithmetic, "expert_mb", moe("models_table1").at("values", 0, "expert_mb").num(), expert/(1<<20),
		"expert_mb",
		list[0].Hidden, list[0].ExpertFFN, expert)
	for _, size := range moe("m_group_sizes").at("values").nums() {
		fits := func(bytes float64) string {
			return map[bool]string{true: "fits", false: "too large"}[size*expert <= bytes]
		}
		paper := map[bool]string{true: "too large", false: "fits"}[size == 16]
		rows.add(Arithmetic, fmt.Sprintf("%v_experts/gb", size), paper, fits(limit*1e9),
			"%.4g GB, limit of %v x 1e9 bytes",
			size*expert/1e9, limit)
		rows.add(Arithmetic, fmt.Sprintf("%v_experts/gib", size), paper, fits(limit*(1<<30)),
			"%.4g GiB, limit of %v x 2^30 bytes: "+
				"so the paper's own groups of eight fit", size*expert/(1<<30), limit)
	}
	times := map[[2]float64]float64{} // ms a token, by experts of a group and rows of each
	for _, point := range moePoints() {
		times[[2]float64{point[0], point[1]}] = point[2]
	}
	for _, ratio := range moeRatios() {
		rows.add(Arithmetic, "table5/"+ratio.name, ratio.printed.num(), times[ratio.slow]/times[ratio.fast],
			"x, %v over %v ms a token", times[ratio.slow], times[ratio.fast])
	}
	rows.noted(Arithmetic, "table5/implied_8x96_ms", nil, times[[2]float64{8, 96}], "implied_8x96_ms")
	return nil
}

// moeRatio is a factor that the paper prints of two cells of Table 5, each a group's experts and the rows of each.
type moeRatio struct {
	name       string
	printed    value
	slow, fast [2]float64
}

// moeRatios returns all of them but the one that stands for a cell.
func moeRatios() []moeRatio {
	r32, r64 := moe("r_group_cap32").at("values"), moe("r_group_cap64").at("values")
	return []moeRatio{
		{"1x32_1x128", moe("r_capacity_no_group").at("values", "factor"), [2]float64{1, 32}, [2]float64{1, 128}},
		{"1x32_4x32", r32.at("4x32", "factor"), [2]float64{1, 32}, [2]float64{4, 32}},
		{"1x32_8x32", r32.at("8x32", "factor"), [2]float64{1, 32}, [2]float64{8, 32}},
		{"1x64_4x64", r64.at("4x64", "factor"), [2]float64{1, 64}, [2]float64{4, 64}},
		{"1x64_8x64", r64.at("8x64", "factor"), [2]float64{1, 64}, [2]float64{8, 64}},
		{"8x32_8x64", moe("r_capacity_group8").at("values", "8x64"), [2]float64{8, 32}, [2]float64{8, 64}},
	}
}

// moePoints returns the group, the capacity and the ms a token of Table 5's cells; the one that is not printed follows
// from a factor of the text.
func moePoints() (points [][3]float64) {
	factor := moe("r_capacity_group8").at("values", "8x96").num()
	var reference float64
	for _, cell := range moe("table5").at("values").list() {
		group, capacity := cell.at(0).num(), cell.at(1).num()
		ms, ok := cell.at(2).any().(float64)
		if group == 8 && capacity == 32 {
			reference = ms
		}
		if !ok {
			ms = reference / factor
		}
		points = append(points, [3]float64{group, capacity, ms})
	}
	return points
}

// moeMemory recomputes the bytes of experts and models from the catalog's shapes.
func moeMemory(_ context.Context, rows *sheet) error {
	list, err := moeModels()
	if err != nil {
		return err
	}
	printed := moe("models_table1").at("values").list()
	phi := printed[0]
	// experts and the rest, from printed numbers, then from the published shape
	experts := phi.at("layers").num() * phi.at("experts").num() * phi.at("expert_mb").num() / 1000
	rows.add(Arithmetic, "phimoe/experts_gb", nil, experts, "%v layers x %v experts x %v MB as printed",
		phi.at("layers").num(), phi.at("experts").num(), phi.at("expert_mb").num())
	rows.add(Arithmetic, "phimoe/rest_gb", nil, phi.at("size_gb").num()-experts, "of the printed %v GB",
		phi.at("size_gb").num())
	real := float64(list[0].Layers) * float64(list[0].Experts) * expertBytes(list[0]) / 1e9
	rows.noted(Arithmetic, "phimoe/experts_gb_by_shape", nil, real, "phimoe/experts_gb_by_shape")
	rows.noted(Arithmetic, "phimoe/rest_gb_by_shape", nil, phi.at("size_gb").num()-real, "phimoe/rest_gb_by_shape")
	for i, size := range printed {
		name, model := size.at("alias").text(), list[i]
		params := float64(model.Parameters())
		if v, ok := size.at("params_b").any().(float64); ok {
			rows.add(Arithmetic, name+"/bytes_per_parameter", "FP16", size.at("size_gb").num()/v,
				"%v GB over %v billion as printed; FP16", size.at("size_gb").num(), v)
			rows.add(Arithmetic, name+"/parameters_b", v, params/1e9, "billions, by the published configuration")
		}
		note := "printed GB over the published configuration's parameters"
		if name == "Qwen3-MoE" {
			note += ": one byte a parameter if GB are 2^30, although FP16 is the stated default"
		}
		rows.add(Arithmetic, name+"/bytes_per_parameter_by_shape", "FP16", size.at("size_gb").num()*1e9/params, "%s",
			note)
		if name == "Qwen3-MoE" {
			rows.add(Arithmetic, name+"/bytes_per_parameter_gib", "FP16", size.at("size_gb").num()*(1<<30)/params,
				"with GB of 2^30 bytes")
		}
	}
	return nil
}

// moeAppendix recomputes the ratios of the appendix's tables.
func moeAppendix(_ context.Context, rows *sheet) error {
	latency := moe("table_a2_latency").at("values").list()
	for _, row := range latency[1:] {
		rows.add(Arithmetic, "a2/"+row.at(0).text()+"/speedup", row.at(4).num(), row.at(1).num()/latency[0].at(1).num(),
			"%v over %v s", row.at(1).num(), latency[0].at(1).num())
	}
	for _, row := range latency {
		rows.add(Arithmetic, "a2/"+row.at(0).text()+"/experts_and_attention_percent", nil,
			100*(row.at(2).num()+row.at(3).num())/row.at(1).num(), "of the wall time")
	}
	energy := moe("table_a2_energy").at("values").list()
	for _, row := range energy {
		sum := row.at(2).num() + row.at(3).num() + row.at(4).num()
		rows.add(Arithmetic, "a2/"+row.at(0).text()+"/energy_parts_j", row.at(1).num(), sum,
			"CPU, ANE and communication")
		if row.at(0).text() != "Ours" {
			rows.add(Arithmetic, "a2/"+row.at(0).text()+"/efficiency", row.at(5).num(),
				row.at(1).num()/energy[0].at(1).num(), "%v over %v J", row.at(1).num(), energy[0].at(1).num())
		}
	}
	// relation as printed, and watts as joules over seconds
	for _, table := range []struct{ name, id string }{{"a3_micro", "table_a3_gpu_micro"},
		{"a3_e2e", "table_a3_gpu_e2e"}} {
		devices := moe(table.id).at("values").list()
		for i, what := range []string{"runtime", "energy", "power"} {
			gpu, npu := devices[i].at(1).num(), devices[i].at(2).num()
			var printed float64
			if _, err := fmt.Sscanf(devices[i].at(3).text(), "GPU %fx", &printed); err != nil {
				return fmt.Errorf("relation %q: %w", devices[i].at(3).text(), err)
			}
			rows.add(Arithmetic, table.name+"/"+what, printed, max(gpu, npu)/min(gpu, npu), "x, %v and %v", gpu, npu)
		}
		for i, who := range []string{"gpu", "npu"} {
			rows.noted(Arithmetic, table.name+"/"+who+"_w", devices[2].at(1+i).num(),
				devices[1].at(1+i).num()/devices[0].at(1+i).num(), "w")
		}
	}
	return nil
}

// moeRanges compares the ranges of the abstract with the details.
func moeRanges(_ context.Context, rows *sheet) error {
	headline := moe("r_headline").at("values")
	for _, claim := range []struct {
		name, note string
		ids        []string
	}{
		{"latency", "of the factors at 1024 and 4096 tokens, sec. 5.3", []string{"r_prefill_1024", "r_prefill_4096"}},
		{"energy", "of sec. 5.4", []string{"r_energy_prefill", "r_energy_1024_chunk512", "r_energy_4096"}},
		{"cpu_cycles", "of sec. 5.5", []string{"r_cpu_cycles_1024", "r_cpu_cycles_4096"}},
	} {
		var details []float64
		for _, id := range claim.ids {
			details = append(details, moe(id).at("values").all()...)
		}
		printed := headline.at(claim.name).nums()
		rows.add(Arithmetic, claim.name+"/least", printed[0], slices.Min(details), "x, least %s", claim.note)
		rows.add(Arithmetic, claim.name+"/most", printed[1], slices.Max(details), "x, most %s", claim.note)
	}
	choice := moe("r_chunk_choice").at("values")
	for _, claim := range []struct {
		name, note string
		details    value
	}{
		{"ttft_4096_chunk_1024", "x, sec. 5.8 against sec. 5.3", moe("r_prefill_4096").at("values", "chunk_1024")},
		{"energy_1024_chunk_512", "x, sec. 5.8 against sec. 5.4", moe("r_energy_1024_chunk512").at("values")},
	} {
		printed, details := choice.at(claim.name).nums(), claim.details.all()
		rows.add(Arithmetic, claim.name+"/least", printed[0], slices.Min(details), "%s", claim.note)
		rows.add(Arithmetic, claim.name+"/most", printed[1], slices.Max(details), "%s", claim.note)
	}
	rows.noted(PrintedOnly, "cpu_cycles_4096/chunk", "512 or 1024", nil, "cpu_cycles_4096/chunk")
	moeAblation(rows)
	gpu := moe("r_gpu").at("values", "gpu_faster").nums()
	micro, whole := moe("table_a3_gpu_micro").at("values", 0), moe("table_a3_gpu_e2e").at("values", 0)
	rows.add(Arithmetic, "gpu/faster_least", gpu[0], whole.at(2).num()/whole.at(1).num(),
		"x, A.3's times are rounded to 0.01 s")
	rows.add(Arithmetic, "gpu/faster_most", gpu[1], micro.at(2).num()/micro.at(1).num(), "x, from A.3")
	return nil
}

// moeAblation adds the factors that follow from those that sec. 5.8 prints of groups (G) and tiers (T).
func moeAblation(rows *sheet) {
	printed := moe("r_ablation").at("values")
	allOverBase, allOverTG := printed.at("all_vs_base_latency").num(), printed.at("all_vs_TG_latency").num()
	rows.noted(Arithmetic, "ablation/tg_over_base_latency", nil, allOverBase/allOverTG,
		"ablation/tg_over_base_latency", allOverBase, allOverTG)
	overBase, overT := printed.at("TG_vs_base_energy").num(), printed.at("TG_vs_T_energy").num()
	rows.add(Arithmetic, "ablation/t_over_base_energy", nil, overBase/overT,
		"x: tiers alone, from sec. 5.8's %v and %v", overBase, overT)
	rows.add(PrintedOnly, "ablation/energy", moe("r_ablation_energy_absolute").at("values", "Ours-TG").num(), nil,
		"its unit is not in the text")
}
