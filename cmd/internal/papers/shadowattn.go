package papers

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hetc/hetc/cmd/internal/trial"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/workload"
)

// shadowattn are the items of that paper.
var shadowattn = []Item{
	sheetItem("shadowattn", "kernel", "attention of a layer, dense and sparse", "sec. 2.2, 5.1, Fig. 4, 10",
		shadowKernel),
	sheetItem("shadowattn", "prefill", "whole prompts with dense and with sparse attention",
		"sec. 5.1, Fig. 11, Table 7",
		shadowPrefill),
	sheetItem("shadowattn", "order", "launches and heads in order", "Algorithm 1, sec. 3.4", shadowOrder),
	sheetItem("shadowattn", "heads", "shares of heads, recall of estimates and what sparse attention loses",
		"Eq. 1 to 3, Table 4, sec. 3.2, 3.3, 5.2", shadowHeads),
	sheetItem("shadowattn", "printed", "launches, graphs, operations and headline numbers",
		"abstract, sec. 1, 3.3, 3.4, 5, Table 5", shadowPrinted),
	sheetItem("shadowattn", "accuracy", "averages and losses", "Tables 3, 4 and 6, sec. 5.1", shadowAccuracy),
	sheetItem("shadowattn", "time", "ratios of time and energy", "Tables 7, 8 and 9, sec. 5.1", shadowTime),
}

// shadow is an entry of the paper's data.
func shadow(id string) value { return fact("shadowattn", id) }

// shadowModel is the model of Table 5 that the catalog has.
const shadowModel = "qwen2-0.5b"

// evenHeads is a calibration in which all heads are alike, as in the paper's measurements of kernels: what it says of
// scales and losses is made up, and the time of attention depends on none of it.
func evenHeads(model *models.Model, density float64) (*calibration.Calibration, error) {
	digest, err := model.Digest()
	if err != nil {
		return nil, err
	}
	at := &calibration.Attention{Heads: model.Heads, KVHeads: model.KVHeads, Block: op.SparseBlock, Clamp: 1e-3,
		Densities: []float64{density}, Losses: []calibration.DensityLoss{{Rule: calibration.RuleHeads, Density: density,
			TopAgreement: 1, PerplexityRatio: 1}}}
	for layer := range model.Layers {
		made := calibration.AttentionLayer{Layer: layer, KeyScales: slices.Repeat([]float32{1}, model.KVHeads)}
		for range model.Heads {
			made.Heads = append(made.Heads, calibration.AttentionHead{QueryScale: 1, Mass: []float64{1}})
		}
		at.Layers = append(at.Layers, made)
	}
	at.Buckets = at.MeanBuckets()
	return &calibration.Calibration{Schema: calibration.Schema, Attention: at,
		Model: calibration.Model{Name: model.Name, Digest: digest}}, nil
}

// shadowWorkload is prompts of these lengths in one chunk each, with products in 8 bits and sparse attention permitted.
func shadowWorkload(chunk, longest int) *workload.Workload {
	schemes := []op.Scheme{op.A8TQ8C}
	return &workload.Workload{Schema: workload.Schema, Name: "shadowattn", OutputTokens: 10, Context: longest + chunk,
		Prompts: []workload.Prompt{{Tokens: longest, Share: 1}}, Buckets: workload.Rows{chunk},
		Schemes: workload.Schemes{Prefill: schemes, Decode: schemes}, Attention: workload.AttentionSparse}
}

// dense has every query attend to all positions, sparse to that share of them.
func dense(in *solver.Input) {
	in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) {
		w.Attention, w.Density = workload.AttentionDense, 0
	})
}

func sparse(density float64, heads *calibration.Calibration) restriction {
	return func(in *solver.Input) {
		in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { w.Density = density })
		in.Calibration = heads
	}
}

// attentionNS is what the plan's attention of one layer takes for a chunk, and the estimate's part of that.
func (p *solvedPlan) attentionNS(rows int) (all, estimate float64) {
	for _, decision := range p.Decisions {
		name := strings.TrimPrefix(decision.Node, "layers.")
		if decision.Rows != rows || !strings.HasPrefix(name, "attention") {
			continue
		}
		all += float64(decision.PredictNS)
		if strings.Contains(name, "estimate") {
			estimate += float64(decision.PredictNS)
		}
	}
	return all, estimate
}

// shadowKernel compares the attention of a layer at several densities with dense attention, on the CPU alone as Fig. 4
// does. (The paper has one core, the catalog's lane six: ratios alone are compared.)
func shadowKernel(ctx context.Context, rows *sheet) error {
	gains := shadow("r_sparse_kernel_gain").at("values")
	share := shadow("r_estimation_share").at("values", "at_ratio_20").num()
	for _, length := range []int{1024, 4096} {
		from, err := newChain(ctx, "xiaomi-14", shadowModel, shadowWorkload(length, length), nil)
		if err != nil {
			return err
		}
		plan, err := from.solve(ctx, both(only("cpu"), dense))
		if err != nil {
			return err
		}
		whole, _ := plan.attentionNS(length)
		id := fmt.Sprintf("%d/", length)
		rows.add(Solved, id+"dense_ms", nil, whole/1e6,
			"attention of a layer of Qwen2-0.5B over so many positions, CPU")
		for _, percent := range []int{40, 20} {
			density := float64(percent) / 100
			heads, err := evenHeads(from.input.Model, density)
			if err != nil {
				return err
			}
			if plan, err = from.solve(ctx, both(only("cpu"), sparse(density, heads))); err != nil {
				return err
			}
			all, estimate := plan.attentionNS(length)
			rows.add(Solved, fmt.Sprintf("%sratio_%d/gain_percent", id, percent),
				gains.at(fmt.Sprintf("ratio_%d", percent)).num(),
				100*(1-all/whole), "less time than dense; its length is not printed. The paper's kernel of sec. 2.2 estimates in float "+
					"and for each query, ours in 8 bits and for a block of queries, which takes a quarter")
			if percent == 20 {
				rows.add(Solved, id+"ratio_20/estimate_percent", share, 100*estimate/all,
					"the estimate's part of that time")
			}
		}
	}
	printed := shadow("r_kernel").at("values", "vs_cg_full")
	rows.add(PrintedOnly, "with_npu/most", printed.at("max").num(), nil,
		"no SoC of the catalog prices an estimate of scores on an "+
			"NPU: the paper prints three points of one shape (2, 3 and 4 ms for 1, 2 and 4 heads)")
	return nil
}

// noRows has no operator divided by rows, as the paper divides none.
var noRows = permit(planir.Single, planir.Padding, planir.WeightCentric, planir.Hybrid)

// shadowPrefill compares prompts of the printed lengths with dense and sparse attention, products on the NPU.
func shadowPrefill(ctx context.Context, rows *sheet) error {
	const chunk = 512
	lengths := shadow("wl_e2e_lengths").at("values")
	faster := map[string][]float64{}
	for _, name := range []string{"Octopus", "DroidCall"} { // the shortest and the longest
		prompt := int(lengths.at(name, "prefill").num())
		from, err := newChain(ctx, "xiaomi-14", shadowModel, shadowWorkload(chunk, prompt), nil)
		if err != nil {
			return err
		}
		heads, err := evenHeads(from.input.Model, 0.2)
		if err != nil {
			return err
		}
		for _, with := range []struct {
			name string
			on   restriction
		}{{"cpu_npu", both(only("cpu", "npu"), noRows)}, {"gpu_npu", both(only("gpu", "npu"), noRows)}} {
			var times []float64
			for _, mode := range []restriction{dense, sparse(0.2, heads)} {
				plan, err := from.solve(ctx, both(with.on, mode))
				if err != nil {
					return err
				}
				ns, err := plan.promptNS(prompt)
				if err != nil {
					return err
				}
				times = append(times, ns)
			}
			id := fmt.Sprintf("%s/%d/%s/", name, prompt, with.name)
			rows.add(Solved, id+"dense_s", nil, times[0]/1e9, "Qwen2-0.5B, chunks of %d", chunk)
			rows.add(Solved, id+"sparse_s", nil, times[1]/1e9, "a fifth of the positions")
			faster[with.name] = append(faster[with.name], times[0]/times[1])
		}
	}
	printed := shadow("r_e2e").at("values", "vs_cg_full")
	for _, name := range []string{"cpu_npu", "gpu_npu"} {
		const note = "dense over sparse, of these lengths. The paper's estimates are computed by the NPU beside, ours by the " +
			"processor that multiplies: the CPU has 8-bit instructions for them, the GPU of the catalog has none"
		rows.add(Solved, name+"/most", printed.at("max").num(), slices.Max(faster[name]), note)
		rows.add(Solved, name+"/mean", printed.at("avg").num(), mean(faster[name]), note)
	}
	return nil
}

// shadowOrder compares orders of the heads, whose scores one processor estimates while another one attends.
func shadowOrder(ctx context.Context, rows *sheet) error {
	const length = 1024
	from, err := newChain(ctx, "xiaomi-14", shadowModel, shadowWorkload(length, length), nil)
	if err != nil {
		return err
	}
	heads, err := evenHeads(from.input.Model, 0.2)
	if err != nil {
		return err
	}
	for _, by := range []string{solver.NoPipeline, planir.ByGreedy, planir.ByExact} {
		within := both(both(only("cpu", "gpu"), noRows), sparse(0.2, heads))
		plan, err := from.solve(ctx, both(within, func(in *solver.Input) { in.HeadOrder = by }))
		if err != nil {
			return err
		}
		ns, err := plan.promptNS(length)
		if err != nil {
			return err
		}
		note := "no pipeline is faster: each operator is divided instead"
		if plan.Attention != nil && len(plan.Attention.Pipelines) > 0 {
			note = "a pipeline of heads"
		}
		rows.add(Solved, by+"/prompt_ms", nil, ns/1e6, "%d tokens of Qwen2-0.5B, CPU and GPU; %s", length, note)
	}
	return nil
}

// shadowHeads calibrates a small trained model for sparse attention.
func shadowHeads(ctx context.Context, rows *sheet) error {
	dir, ok := rows.model(smallModel)
	if !ok {
		return nil
	}
	model, text, err := openTrial(ctx, dir, 4, 256)
	if err != nil {
		return err
	}
	defer model.Close()
	at, err := trial.CalibrateAttention(ctx, model,
		trial.AttentionOptions{Text: text, Densities: []float64{0.2, 0.3, 0.5}})
	if err != nil {
		return err
	}
	table := shadow("table4").at("values").list()
	for i, density := range at.Densities {
		least := 100.0
		for _, row := range table {
			least = min(least, row.at(1+[]int{0, 1, 3}[i]).num())
		}
		for _, kind := range []string{"head", "9", "1"} {
			paper := any(nil)
			if kind == "9" {
				paper = least
			}
			rows.add(Executed, fmt.Sprintf("recall_%v/%s", 100*density, kind), paper, 100*meanRecall(at, kind, i),
				"percent of the positions with the largest exact scores that the 8-bit estimate finds: scales of each head, or the "+
					"nearest of 9 pairs or of one; %s at 256 tokens beside the least of the paper's four models",
				smallModel)
		}
	}
	ratios := at.Ratios(0.2)
	all := slices.Concat(ratios...)
	rows.add(Executed, "ratio_20/least", nil, slices.Min(all), "share of a head")
	rows.add(Executed, "ratio_20/most", nil, slices.Max(all), "share of a head")
	rows.add(Executed, "ratio_20/mean", 0.2, mean(all), "Eq. 3 divides the global ratio")
	for _, rule := range []string{calibration.RuleHeads, calibration.RuleUniform} {
		if loss := at.DensityLoss(rule, 0.2); loss != nil {
			rows.add(Executed, "kl_20/"+rule, nil, loss.KL,
				"mean divergence from dense attention in nats a token: shares of each "+
					"head, or equal ones. The paper prints accuracies of its models (Table 6)")
		}
	}
	return nil
}

// meanRecall is the recall of estimates at a density, with one of calibration.ScaleKinds, mean over all heads.
func meanRecall(at *calibration.Attention, kind string, density int) float64 {
	var all []float64
	for i := range at.Layers {
		for j := range at.Layers[i].Heads {
			for _, recall := range at.Layers[i].Heads[j].Recall {
				if recall.Scales == kind {
					all = append(all, recall.At[density])
				}
			}
		}
	}
	return mean(all)
}

// shadowPrinted is arithmetic on numbers that the text and Table 5 print.
func shadowPrinted(_ context.Context, rows *sheet) error {
	launch := shadow("hw_npu_kernel_fused_launch").at("values")
	// Q K' of a head: 2 x queries x keys x width operations
	query, keys := launch.at("q_shape_bhsd").nums(), launch.at("k_shape_bhsd").nums()
	points := launch.at("latency_by_heads_fused").list()
	for _, point := range points {
		heads, ms := point.at("heads").num(), point.at("ms").num()
		rows.add(Arithmetic, fmt.Sprintf("launch/%v/per_head_ms", heads), nil, ms/heads, "%v ms for %v heads", ms,
			heads)
		rows.add(Arithmetic, fmt.Sprintf("launch/%v/gops", heads), nil, heads*2*query[2]*keys[2]*query[3]/ms/1e6,
			"2 x %v x %v x %v operations a head", query[2], keys[2], query[3])
	}
	rows.add(Arithmetic, "launch/four/apart_ms", nil, 4*points[0].at("ms").num(),
		"four launches of a head, %v ms together",
		points[2].at("ms").num())
	sizes := shadow("hw_graph_memory").at("values").nums()
	buckets := shadow("m_bucket_step").at("values", "buckets_default").num()
	rows.add(Arithmetic, "memory/one_shape/least_kb", nil, buckets*sizes[0], "%v buckets of %v KB", buckets, sizes[0])
	rows.add(Arithmetic, "memory/one_shape/most_kb", nil, buckets*sizes[1], "%v buckets of %v KB", buckets, sizes[1])
	length := slices.Max(shadow("wl_kernel_lengths").at("values").nums())
	for _, model := range shadow("table5_models").at("values").list() {
		heads, width := model.at(1).num(), model.at(3).num()
		rows.add(Arithmetic, model.at(0).text()+"/qk_gops", nil, 2*heads*length*length*width/1e9,
			"Q.K of a layer over %v tokens", length)
		rows.add(Arithmetic, model.at(0).text()+"/heads", nil, heads*model.at(4).num(),
			"N of Eq. 3: query heads times layers")
	}
	headline, kernel, whole := shadow("r_headline").at("values"), shadow("r_kernel").at("values", "vs_cg_full"),
		shadow("r_e2e").at("values", "vs_cg_full")
	rows.noted(Arithmetic, "kernel_up_to", headline.at("kernel_speedup_up_to").num(), kernel.at("max").num(),
		"kernel_up_to")
	rows.noted(Arithmetic, "e2e_up_to", headline.at("e2e_speedup_up_to").num(), whole.at("max").num(), "e2e_up_to")
	uniform := shadow("r_ablation").at("values")
	rows.noted(Arithmetic, "uniform_ratio_drop", nil,
		uniform.at("before_uniform_ratio").num()-uniform.at("after_uniform_ratio").num(), "uniform_ratio_drop")
	rows.noted(Arithmetic, "intro_percent",
		shadow("r_estimation_share").at("values", "intro_resource_reduction_about").any(),
		shadow("r_sparse_kernel_gain").at("values", "ratio_20").any(), "intro_percent")
	return nil
}

// shadowAccuracy recomputes the averages and losses of Tables 3, 4 and 6.
func shadowAccuracy(_ context.Context, rows *sheet) error {
	// averages and losses by column, of Table 6
	t6 := shadow("table6").at("values").list()
	columns := shadow("table6").at("columns").list()[2:]
	average := t6[len(t6)-1]
	var means []float64
	for column := range columns {
		var values []float64
		for _, row := range t6[:len(t6)-1] {
			values = append(values, row.at(2+column).num())
		}
		means = append(means, mean(values))
		rows.add(Arithmetic, "table6/"+columns[column].text()+"/mean", average.at(2+column).num(), means[column],
			"percent, mean of %d cells", len(values))
	}
	losses := shadow("r_accuracy_loss").at("values")
	for c, col := range columns[1:] {
		rows.noted(Arithmetic, "table6/"+col.text()+"/loss", losses.at(col.text()).num(), means[0]-means[c+1],
			"table6/loss")
	}
	equal, t3 := 0, shadow("table3").at("values").list()
	for _, a := range t3 {
		for _, b := range t6 {
			if a.at(1).any() == b.at(0).any() && a.at(0).any() == b.at(1).any() && a.at(2).num() == b.at(2).num() &&
				a.at(3).num() == b.at(5).num() {
				equal++
			}
		}
	}
	rows.noted(Arithmetic, "table3/cells_as_in_table6", nil, equal, "table3/cells_as_in_table6")
	// Table 3 repeats cells of Table 6; its drops are quoted in the text
	drops := shadow("r_npu_attention_drop").at("values")
	var all []float64
	for _, cell := range t3 {
		drop := cell.at(2).num() - cell.at(3).num()
		all = append(all, drop)
		if key := cell.at(1).text() + "_" + cell.at(0).text(); drops.has(key) {
			rows.add(Arithmetic, "table3/"+key+"/drop", drops.at(key).num(), drop, "percentage points")
		}
	}
	rows.add(Arithmetic, "table3/mean_drop", drops.at("average").num(), mean(all), "percentage points")
	block := shadow("r_block_sparse_drop").at("values")
	rows.add(Arithmetic, "table6/block_sparse_drop", block.at("average").num(), means[1]-means[2],
		"percentage points below token-level sparsity")
	for _, row := range t6 {
		if key := row.at(0).text() + "_" + row.at(1).text(); block.has(key) {
			rows.add(Arithmetic, "table6/"+key+"/block_sparse_drop", block.at(key).num(),
				row.at(3).num()-row.at(4).num(),
				"percentage points")
		}
	}
	// Table 4: recall should not fall as the ratio grows
	least, falls := 100.0, 0
	for _, row := range shadow("table4").at("values").list() {
		cells := row.at(1).num()
		for c, cell := range row.list()[1:] {
			least = min(least, cell.num())
			if c > 0 && cell.num() < cells {
				falls++
			}
			cells = cell.num()
		}
	}
	rows.add(Arithmetic, "table4/least_recall", "above 99", least, "percent, of all cells")
	rows.noted(Arithmetic, "table4/falls", nil, falls, "table4/falls")
	rows.noted(PrintedOnly, "table4/level", "99.0 to 100", nil, "table4/level")
	ablation := shadow("r_ablation").at("values")
	for _, row := range t6 {
		if row.at(0).any() == "Qwen2-0.5B" && row.at(1).any() == "Octopus" {
			rows.noted(Arithmetic, "ablation/without_buckets", ablation.at("before_uniform_ratio").num(),
				row.at(6).num()-ablation.at("no_buckets_accuracy_drop").num(), "ablation/without_buckets",
				row.at(6).num(), ablation.at("no_buckets_accuracy_drop").num())
			rows.add(Arithmetic, "ablation/npu_full", ablation.at("npu_full_accuracy").num(), row.at(5).num(),
				"Table 6")
		}
	}
	return nil
}

// shadowTime recomputes the ratios of Tables 7 to 9.
func shadowTime(_ context.Context, rows *sheet) error {
	k60 := shadow("r_k60").at("values")
	for _, row := range shadow("table7").at("values").list() {
		rows.add(Arithmetic, "table7/"+row.at(0).text(), k60.at(row.at(0).text()).num(),
			row.at(1).num()/row.at(2).num(),
			"%v over %v minutes", row.at(1).num(), row.at(2).num())
	}
	columns := shadow("table8").at("columns").list()
	most, where := 0.0, ""
	for _, row := range shadow("table8").at("values").list() {
		for column := 1; column <= 4; column++ {
			ratio := row.at(column).num() / row.at(5).num()
			rows.add(Arithmetic, "table8/"+row.at(0).text()+"/"+columns[column].text(), nil, ratio, "%v over %v J",
				row.at(column).num(), row.at(5).num())
			if ratio > most {
				most, where = ratio, fmt.Sprintf("%s, %v over %v J", row.at(0).text(), row.at(column).num(),
					row.at(5).num())
			}
		}
	}
	rows.add(Arithmetic, "table8/most", shadow("r_energy").at("values").num(), most,
		"%s; cells rounded to 0.01 J allow 7.63 to 7.71", where)
	apps := shadow("table9").at("values").nums()
	rows.add(Arithmetic, "table9/worst_slowdown", nil, slices.Max(apps)/apps[0],
		"%v over %v s without other applications",
		slices.Max(apps), apps[0])
	rows.noted(Arithmetic, "table9/least_slowdown", nil, slices.Min(apps)/apps[0], "table9/least_slowdown")
	return nil
}
