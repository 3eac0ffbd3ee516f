package papers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hetc/hetc/cmd/internal/trial"
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
	sheetItem("shadowattn", "energy", "energy of attention, dense and sparse", "sec. 5.1, Table 8", shadowEnergy),
	sheetItem("shadowattn", "order", "one technique after the other, heads in order, graphs for buckets",
		"Algorithm 1, sec. 3.3, 3.4, 5.2", shadowOrder),
	sheetItem("shadowattn", "clock", "a calibrated plan on the phone's virtual clock", "sec. 3.1, 3.4", shadowClock),
	sheetItem("shadowattn", "heads", "shares of heads, recall of estimates and what sparse attention loses",
		"Eq. 1 to 3, Table 4, sec. 3.2, 3.3, 5.2", shadowHeads),
	sheetItem("shadowattn", "printed", "launches, graphs, operations and headline numbers",
		"abstract, sec. 1, 3.3, 3.4, 5, Table 5", shadowPrinted),
	sheetItem("shadowattn", "accuracy", "averages and losses", "Tables 3, 4 and 6, sec. 5.1", shadowAccuracy),
	sheetItem("shadowattn", "time", "ratios of time and energy", "Tables 7, 8 and 9, sec. 5.1", shadowTime),
}

// shadow returns an entry of the paper's data.
func shadow(id string) value { return fact("shadowattn", id) }

// shadowModels are the models of Table 5 that the catalog has, by the name that the paper gives them.
var shadowModels = map[string]string{"Qwen2-0.5B": "qwen2-0.5b", "Qwen2-1.5B": "qwen2-1.5b"}

// shadowModel is the one with which orders and phones are compared.
const shadowModel = "qwen2-0.5b"

// shadowPhone is the phone of most of the paper's measurements.
const shadowPhone = "xiaomi-14"

// shadowWorkload is prompts of these lengths in one chunk each, with products in 8 bits and sparse attention permitted.
func shadowWorkload(chunk, longest int) *workload.Workload {
	schemes := []op.Scheme{op.A8TQ8C}
	return &workload.Workload{Schema: workload.Schema, Name: "shadowattn", OutputTokens: 10, Context: longest + chunk,
		Prompts: []workload.Prompt{{Tokens: longest, Share: 1}}, Buckets: workload.Rows{chunk},
		Schemes: workload.Schemes{Prefill: schemes, Decode: schemes}, Attention: workload.AttentionSparse}
}

// dense has every query attend to all positions.
func dense(in *solver.Input) {
	in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) {
		w.Attention, w.Density = workload.AttentionDense, 0
	})
}

// sparse has every query of a prompt attend to a share of the positions.
func sparse(density float64, heads *calibration.Calibration) restriction {
	return func(in *solver.Input) {
		in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { w.Density = density })
		in.Calibration = heads
	}
}

// attentionTimes are what the attention of one layer takes for a chunk, in ns.
type attentionTimes struct {
	elapsed  float64 // from its first step to its last
	estimate float64 // busy with estimates
	rest     float64 // busy with selections and products
}

// attention adds up a plan's attention of one layer. Heads in a pipeline take what the problem of their order says, and
// what is in no pipeline is done one after the other.
func (p *solvedPlan) attention(rows int) (of attentionTimes) {
	for _, decision := range p.Decisions {
		name := strings.TrimPrefix(decision.Node, "layers.")
		if decision.Rows != rows || !strings.HasPrefix(name, "attention") {
			continue
		}
		busy := &of.rest
		if strings.Contains(name, "estimate") {
			busy = &of.estimate
		}
		*busy += float64(decision.PredictNS)
	}
	of.elapsed = of.estimate + of.rest
	if p.piped() {
		for _, solved := range p.Solver {
			if solved.Problem == fmt.Sprintf("heads layers.attention@%d", rows) {
				of.elapsed = float64(solved.ObjectiveNS)
			}
		}
	}
	return of
}

// piped reports whether heads pass through a pipeline.
func (p *solvedPlan) piped() bool { return p.Attention != nil && len(p.Attention.Pipelines) > 0 }

// estimates returns the graphs of estimates that a processor has.
func (p *solvedPlan) estimates(proc string) (count int) {
	for i := range p.Program.Graphs {
		if graph := &p.Program.Graphs[i]; graph.Proc == proc && graph.Graph.Estimate() != nil {
			count++
		}
	}
	return count
}

// lane says what stands for the paper's core: ratios are compared, and never its times.
const lane = "the catalog's CPU computes attention at an assumed 20 Gflop/s, six cores as one lane; the paper has " +
	"one core"

// shadowKernel compares the attention of a layer with dense attention: with estimates on the CPU, as Fig. 4 does, and
// with estimates on the NPU, as Fig. 10 does.
func shadowKernel(ctx context.Context, rows *sheet) error {
	var faster, overSparse, free []float64
	for _, name := range slices.Sorted(maps.Keys(shadowModels)) {
		for _, length := range shadow("wl_kernel_lengths").at("values").nums() {
			of, err := shadowLayer(ctx, rows, name, int(length))
			if err != nil {
				return err
			}
			faster, overSparse, free = append(faster, of[0]), append(overSparse, of[1]), append(free, of[2])
		}
	}
	for _, absent := range []string{"PhoneLM-0.5B", "PhoneLM-1.5B"} {
		rows.add(PrintedOnly, absent, nil, nil, "hetc reads no such architecture")
	}
	printed := shadow("r_kernel").at("values", "vs_cg_full")
	note := "dense attention on the CPU over sparse attention with estimates on the NPU, both models, 1024 to 4096 " +
		"tokens. The NPU is what it waits for, at the rate of the three printed launches: its own Fig. 10 must rest " +
		"on a higher one, or on a slower CPU. " + lane
	rows.add(Solved, "with_npu/most", printed.at("max").num(), slices.Max(faster), "%s", note)
	rows.add(Solved, "with_npu/mean", printed.at("avg").num(), mean(faster), "%s", note)
	rows.add(Solved, "with_npu/mean_if_hidden", printed.at("avg").num(), mean(free),
		"where estimates took no time at all: dense attention over selections and products on the CPU, a fifth of "+
			"the positions")
	rows.add(Solved, "with_npu/most_over_sparse", shadow("r_kernel").at("values", "vs_lossy", "max").num(),
		slices.Max(overSparse), "estimates on the CPU over estimates on the NPU; printed for the best of three lossy "+
			"baselines, of which blocks of 64 and attention in 8 bits have no counterpart here")
	return nil
}

// shadowLayer adds the rows of a model and a length, and returns how many times as long as with estimates on the NPU
// dense attention takes, and sparse attention with estimates on the CPU; and dense attention as what is left to the
// CPU.
func shadowLayer(ctx context.Context, rows *sheet, name string, length int) (over [3]float64, err error) {
	gains := shadow("r_sparse_kernel_gain").at("values")
	share := shadow("r_estimation_share").at("values", "at_ratio_20").num()
	from, err := newChain(ctx, shadowPhone, shadowModels[name], shadowWorkload(length, length), nil)
	if err != nil {
		return over, err
	}
	plan, err := from.solve(ctx, both(only("cpu"), dense))
	if err != nil {
		return over, err
	}
	whole := plan.attention(length).elapsed
	id := fmt.Sprintf("%s/%d/", name, length)
	rows.add(Solved, id+"dense_ms", nil, whole/1e6, "attention of a layer over so many positions, CPU")
	var alone float64
	for _, percent := range []int{40, 20} {
		density := float64(percent) / 100
		heads, err := trial.EvenHeads(from.input.Model, density)
		if err != nil {
			return over, err
		}
		if plan, err = from.solve(ctx, both(only("cpu"), sparse(density, heads))); err != nil {
			return over, err
		}
		of := plan.attention(length)
		alone = of.elapsed
		ratio := fmt.Sprintf("ratio_%d", percent)
		rows.add(Solved, id+ratio+"/gain_percent", gains.at(ratio).num(), 100*(1-alone/whole),
			"less time than dense, all of it on the CPU; the printed length is not said. The catalog prices the "+
				"CPU's estimate as arithmetic in float, which that of sec. 2.2 is; ours selects for blocks of queries")
		if percent == 20 {
			rows.add(Solved, id+"ratio_20/estimate_percent", share, 100*of.estimate/alone,
				"the estimate's part of that time")
		}
	}
	heads, err := trial.EvenHeads(from.input.Model, 0.2)
	if err != nil {
		return over, err
	}
	// The estimate is where the paper has it, whether or not the whole program is the faster for it.
	if plan, err = from.solve(ctx, both(onNPU, both(sparse(0.2, heads), func(in *solver.Input) {
		in.HeadOrder = planir.ByExact
	}))); err != nil {
		return over, err
	}
	of := plan.attention(length)
	rows.add(Solved, id+"ratio_20/npu_ms", nil, of.elapsed/1e6,
		"estimates on the NPU, heads in a pipeline in the exact order")
	rows.add(Solved, id+"ratio_20/npu_busy_percent", nil, 100*of.estimate/of.elapsed, "of that time")
	rows.add(Solved, id+"ratio_20/cpu_busy_percent", nil, 100*of.rest/of.elapsed,
		"of that time, with selections and products")
	rows.add(Solved, id+"ratio_20/times_as_fast", nil, whole/of.elapsed,
		"dense on the CPU over this one; Fig. 10 is a plot")
	return [3]float64{whole / of.elapsed, alone / of.elapsed, whole / of.rest}, nil
}

// shadowEnergy compares what the attention of a layer takes in energy, on the phone of Table 8.
func shadowEnergy(ctx context.Context, rows *sheet) error {
	const phone = "redmi-k60-champion"
	length := int(shadow("wl_energy_length").at("values").num())
	for _, cells := range shadow("table8").at("values").list() {
		name := cells.at(0).text()
		if shadowModels[name] == "" {
			continue // hetc reads no such architecture
		}
		from, err := newChain(ctx, phone, shadowModels[name], shadowWorkload(length, length), nil)
		if err != nil {
			return err
		}
		heads, err := trial.EvenHeads(from.input.Model, 0.2)
		if err != nil {
			return err
		}
		var energies []float64
		for _, way := range []struct {
			estimates string
			with      restriction
		}{
			{"cpu", both(only("cpu"), dense)}, {"cpu", both(only("cpu"), sparse(0.2, heads))},
			{"npu", both(onNPU, sparse(0.2, heads))},
		} {
			plan, err := from.solve(ctx, way.with)
			if err != nil {
				return err
			}
			of, soc := plan.attention(length), from.input.SoC
			energies = append(energies,
				of.estimate*soc.Processor(way.estimates).PowerW+of.rest*soc.Processor("cpu").PowerW)
		}
		for i, column := range []string{"cg_full", "cg_sparse"} {
			rows.add(Solved, "table8/"+name+"/"+column, cells.at(1+i).num()/cells.at(5).num(), energies[i]/energies[2],
				"over that with estimates on the NPU, a fifth of the positions, on %s: busy times and powers, that "+
					"of the CPU is assumed. %s", phone, lane)
		}
	}
	return nil
}

// onNPU has the estimates on the NPU, and selections and products on the CPU.
func onNPU(in *solver.Input) {
	both(only("cpu", "npu"), noRows)(in)
	soc := *in.SoC
	soc.Processors = slices.Clone(soc.Processors)
	cpu := soc.Processor("cpu")
	cpu.Kinds = slices.DeleteFunc(slices.Clone(op.Kinds), func(kind op.Kind) bool { return kind == op.Estimate })
	in.SoC, in.WhatIf.OtherSoC = &soc, true
}

// noRows has no operator divided by rows, as the paper divides none.
var noRows = permit(planir.Single, planir.Padding, planir.WeightCentric, planir.Hybrid)

// shadowPrefill compares prompts of the printed lengths with dense and sparse attention, products on the NPU.
func shadowPrefill(ctx context.Context, rows *sheet) error {
	lengths := shadow("wl_e2e_lengths").at("values")
	faster := map[string][]float64{}
	processors := []string{"cpu", "gpu"}
	for _, data := range []string{"ArxivSum", "DroidCall", "Octopus"} {
		prompt := int(lengths.at(data, "prefill").num())
		for _, beside := range processors {
			times, err := shadowPrompt(ctx, shadowPhone, prompt, beside)
			if err != nil {
				return err
			}
			id := fmt.Sprintf("%s/%d/%s_npu/", data, prompt, beside)
			rows.add(Solved, id+"dense_s", nil, times[0]/1e9, "Qwen2-0.5B, chunks of %d", shadowChunk)
			rows.add(Solved, id+"sparse_s", nil, times[1]/1e9, "a fifth of the positions where that is faster")
			faster[beside] = append(faster[beside], times[0]/times[1])
		}
	}
	printed := shadow("r_e2e").at("values", "vs_cg_full")
	for _, beside := range processors {
		note := "dense over sparse, of these lengths. The NPU multiplies; solve gives it the estimates where that is " +
			"faster. " + lane
		rows.add(Solved, beside+"_npu/most", printed.at("max").num(), slices.Max(faster[beside]), "%s", note)
		rows.add(Solved, beside+"_npu/mean", printed.at("avg").num(), mean(faster[beside]), "%s", note)
	}
	for _, row := range shadow("table7").at("values").list() {
		data := row.at(0).text()
		times, err := shadowPrompt(ctx, "redmi-k60-champion", int(lengths.at(data, "prefill").num()), "cpu")
		if err != nil {
			return err
		}
		rows.add(Solved, "table7/"+data, row.at(1).num()/row.at(2).num(), times[0]/times[1],
			"prompts of Qwen2-0.5B on redmi-k60-champion, dense over sparse; printed are minutes of PhoneLM-0.5B for "+
				"a data set, decoding and what an item takes besides included")
	}
	return nil
}

// shadowChunk is how many tokens of a prompt are processed at a time.
const shadowChunk = 512

// best is sparse where that is faster.
func best(density float64, heads *calibration.Calibration) restriction {
	return both(sparse(density, heads), func(in *solver.Input) {
		in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { w.Attention = workload.AttentionBest })
	})
}

// shadowPrompt returns what a prompt takes in ns with dense and with the best attention, on a phone's NPU and another
// processor.
func shadowPrompt(ctx context.Context, phone string, tokens int, beside string) (times [2]float64, err error) {
	from, err := newChain(ctx, phone, shadowModel, shadowWorkload(shadowChunk, tokens), nil)
	if err != nil {
		return times, err
	}
	heads, err := trial.EvenHeads(from.input.Model, 0.2)
	if err != nil {
		return times, err
	}
	for i, mode := range []restriction{dense, best(0.2, heads)} {
		plan, err := from.solve(ctx, both(both(only(beside, "npu"), noRows), mode))
		if err != nil {
			return times, err
		}
		if times[i], err = plan.promptNS(tokens); err != nil {
			return times, err
		}
	}
	return times, nil
}

// shadowOrder compares ways to execute sparse attention with estimates on the NPU, one technique after the other, and
// the graphs that buckets of scales need.
func shadowOrder(ctx context.Context, rows *sheet) error {
	const length = 2048
	from, err := newChain(ctx, shadowPhone, shadowModel, shadowWorkload(length, length), nil)
	if err != nil {
		return err
	}
	heads, err := trial.EvenHeads(from.input.Model, 0.2)
	if err != nil {
		return err
	}
	ordered := func(by string) restriction { return func(in *solver.Input) { in.HeadOrder = by } }
	for _, way := range []struct {
		name, note string
		with       restriction
	}{
		{"dense", "dense attention on the CPU", both(both(only("cpu", "npu"), noRows), dense)},
		{"sparse", "estimates on the CPU too", both(both(only("cpu", "npu"), noRows),
			both(sparse(0.2, heads), both(withoutEstimates("npu"), ordered(solver.NoPipeline))))},
		{"npu", "estimates of all heads on the NPU, then the rest",
			both(onNPU, both(sparse(0.2, heads), ordered(solver.NoPipeline)))},
		{planir.ByGreedy, "heads in a pipeline, by Algorithm 1",
			both(onNPU, both(sparse(0.2, heads), ordered(planir.ByGreedy)))},
		{planir.ByExact, "heads in a pipeline, by an exact search",
			both(onNPU, both(sparse(0.2, heads), ordered(planir.ByExact)))},
		{"solved", "what solve chooses of CPU and NPU", both(both(only("cpu", "npu"), noRows), best(0.2, heads))},
	} {
		plan, err := from.solve(ctx, way.with)
		if err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
		ns, err := plan.promptNS(length)
		if err != nil {
			return err
		}
		of := plan.attention(length)
		rows.add(Solved, way.name+"/prompt_ms", nil, ns/1e6, "%d tokens of Qwen2-0.5B: %s", length, way.note)
		rows.add(Solved, way.name+"/attention_ms", nil, of.elapsed/1e6, "of a layer in it")
		if plan.piped() {
			pipeline := &plan.Attention.Pipelines[0]
			rows.add(Solved, way.name+"/launches", nil, len(pipeline.Launches),
				"of the estimate; Qwen2-0.5B has two key heads, and heads that share a key are always in one launch: "+
					"the paper's fused launch")
		}
	}
	printed := shadow("m_bucket_step").at("values", "buckets_default").num()
	for _, buckets := range []int{1, int(printed)} {
		plan, err := from.solve(ctx, both(onNPU, both(sparse(0.2, heads), func(in *solver.Input) {
			in.HeadOrder = planir.ByExact
			in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { w.ScaleBuckets = buckets })
		})))
		if err != nil {
			return err
		}
		rows.add(Solved, fmt.Sprintf("buckets_%d/graphs_of_a_launch", buckets), buckets, plan.estimates("npu"),
			"binaries for the estimate of a chunk: the paper has one for each bucket, here the driver rounds with "+
				"the bucket's scales and one graph of products of codes serves all")
	}
	return nil
}

// withoutEstimates has a processor execute no estimates.
func withoutEstimates(name string) restriction {
	return func(in *solver.Input) {
		soc := *in.SoC
		soc.Processors = slices.Clone(soc.Processors)
		proc := soc.Processor(name)
		proc.Kinds = slices.DeleteFunc(slices.Clone(proc.Kinds), func(kind op.Kind) bool { return kind == op.Estimate })
		in.SoC, in.WhatIf.OtherSoC = &soc, true
	}
}

// shadowClock calibrates the small model, solves for the phone, and executes the plan on its virtual clock.
func shadowClock(ctx context.Context, rows *sheet) error {
	dir, ok := rows.model(smallModel)
	if !ok {
		return nil
	}
	const chunk = 256
	model, text, err := openTrial(ctx, dir, 4, chunk)
	if err != nil {
		return err
	}
	defer model.Close()
	at, err := trial.CalibrateAttention(ctx, model, trial.AttentionOptions{Text: text, Densities: []float64{0.2}})
	if err != nil {
		return err
	}
	heads, err := trial.EvenHeads(model.Model, 0.2)
	if err != nil {
		return err
	}
	heads.Attention = at
	work := shadowWorkload(chunk, chunk)
	work.Context = chunk
	from, err := newChain(ctx, shadowPhone, dir, work, nil)
	if err != nil {
		return err
	}
	from.input.Calibration = heads
	ordered := func(in *solver.Input) { in.HeadOrder = planir.ByExact }
	plan, err := from.solve(ctx, both(onNPU, both(sparse(0.2, heads), ordered)))
	if err != nil {
		return err
	}
	predicted, err := plan.promptNS(chunk)
	if err != nil {
		return err
	}
	met, err := from.execute(ctx, plan, text.Windows)
	if err != nil {
		return err
	}
	rows.add(Executed, "predicted_us", nil, predicted/1e3,
		"a chunk of %d tokens of %s on %s, estimates on the NPU, heads in the pipeline that is best",
		chunk, smallModel, shadowPhone)
	rows.add(Executed, "virtual_us", nil, met.ns/1e3, "the same on the virtual clock, windows of its validation text")
	rows.add(Executed, "launches", nil, len(plan.Attention.Pipelines[0].Launches),
		"of the estimate: a launch takes so long there that a second one for the other of two key heads would only "+
			"add to it")
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
				"percent of the positions with the largest exact scores that the 8-bit estimate finds: scales of "+
					"each head, or the nearest of 9 pairs or of one; %s at 256 tokens beside the least of the paper's "+
					"four models",
				smallModel)
		}
	}
	ratios := at.Ratios(0.2)
	all := slices.Concat(ratios...)
	rows.add(Executed, "ratio_20/least", nil, slices.Min(all), "share of a head")
	rows.add(Executed, "ratio_20/most", nil, slices.Max(all), "share of a head")
	rows.add(Executed, "ratio_20/mean", 0.2, mean(all), "Eq. 3 divides the global ratio")
	for _, rule := range []string{calibration.RuleHeads, calibration.RuleUniform} {
		if loss := at.DensityLoss(rule, 0.2, 0); loss != nil {
			rows.add(Executed, "kl_20/"+rule, nil, loss.KL,
				"mean divergence from dense attention in nats a token: shares of each "+
					"head, or equal ones. The paper prints accuracies of its models (Table 6)")
		}
	}
	return nil
}

// meanRecall returns the recall of estimates at a density, with one of calibration.ScaleKinds, mean over all heads.
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
	cells := shadow("table6").at("values").list()
	cells, average := cells[:len(cells)-1], cells[len(cells)-1]
	means := shadowMeans(rows, cells, average)
	shadowDrops(rows, cells)
	shadowBlocks(rows, cells, means)
	shadowRecall(rows)
	shadowAblation(rows, cells)
	return nil
}

// shadowMeans adds the means of Table 6's columns and how much less than dense attention they are, and returns the
// means.
func shadowMeans(rows *sheet, cells []value, average value) (means []float64) {
	columns := shadow("table6").at("columns").list()[2:]
	for i, column := range columns {
		var values []float64
		for _, row := range cells {
			values = append(values, row.at(2+i).num())
		}
		means = append(means, mean(values))
		rows.add(Arithmetic, "table6/"+column.text()+"/mean", average.at(2+i).num(), means[i],
			"percent, mean of %d cells", len(values))
	}
	losses := shadow("r_accuracy_loss").at("values")
	for i, column := range columns[1:] {
		rows.noted(Arithmetic, "table6/"+column.text()+"/loss", losses.at(column.text()).num(), means[0]-means[1+i],
			"table6/loss")
	}
	return means
}

// shadowDrops adds how many rows of Table 3 repeat those of Table 6, and its drops, which the text quotes.
func shadowDrops(rows *sheet, table6 []value) {
	table3 := shadow("table3").at("values").list()
	same := func(of3, of6 value) bool { // data set and model are the other way round, full and NPU are columns 2 and 5
		return of3.at(1).any() == of6.at(0).any() && of3.at(0).any() == of6.at(1).any() &&
			of3.at(2).num() == of6.at(2).num() && of3.at(3).num() == of6.at(5).num()
	}
	equal := 0
	for _, of3 := range table3 {
		for _, of6 := range table6 {
			if same(of3, of6) {
				equal++
			}
		}
	}
	rows.noted(Arithmetic, "table3/cells_as_in_table6", nil, equal, "table3/cells_as_in_table6")
	printed := shadow("r_npu_attention_drop").at("values")
	var drops []float64
	for _, row := range table3 {
		drop := row.at(2).num() - row.at(3).num()
		drops = append(drops, drop)
		if key := row.at(1).text() + "_" + row.at(0).text(); printed.has(key) {
			rows.add(Arithmetic, "table3/"+key+"/drop", printed.at(key).num(), drop, "percentage points")
		}
	}
	rows.add(Arithmetic, "table3/mean_drop", printed.at("average").num(), mean(drops), "percentage points")
}

// shadowBlocks adds what blocks of positions lose in Table 6 beside single positions.
func shadowBlocks(rows *sheet, table6 []value, means []float64) {
	printed := shadow("r_block_sparse_drop").at("values")
	rows.add(Arithmetic, "table6/block_sparse_drop", printed.at("average").num(), means[1]-means[2],
		"percentage points below token-level sparsity")
	for _, row := range table6 {
		if key := row.at(0).text() + "_" + row.at(1).text(); printed.has(key) {
			rows.add(Arithmetic, "table6/"+key+"/block_sparse_drop", printed.at(key).num(),
				row.at(3).num()-row.at(4).num(), "percentage points")
		}
	}
}

// shadowRecall adds the least recall of Table 4, and how often it falls as the ratio grows, which it should not.
func shadowRecall(rows *sheet) {
	least, falls := 100.0, 0
	for _, row := range shadow("table4").at("values").list() {
		before := 0.0
		for _, cell := range row.list()[1:] {
			recall := cell.num()
			least = min(least, recall)
			if recall < before {
				falls++
			}
			before = recall
		}
	}
	rows.add(Arithmetic, "table4/least_recall", "above 99", least, "percent, of all cells")
	rows.noted(Arithmetic, "table4/falls", nil, falls, "table4/falls")
	rows.noted(PrintedOnly, "table4/level", "99.0 to 100", nil, "table4/level")
}

// shadowAblation compares the accuracies of the ablation with the row of Table 6 that they are of.
func shadowAblation(rows *sheet, table6 []value) {
	printed := shadow("r_ablation").at("values")
	drop := printed.at("no_buckets_accuracy_drop").num()
	for _, row := range table6 {
		if row.at(0).any() != "Qwen2-0.5B" || row.at(1).any() != "Octopus" {
			continue
		}
		whole := row.at(6).num()
		rows.noted(Arithmetic, "ablation/without_buckets", printed.at("before_uniform_ratio").num(), whole-drop,
			"ablation/without_buckets", whole, drop)
		rows.add(Arithmetic, "ablation/npu_full", printed.at("npu_full_accuracy").num(), row.at(5).num(), "Table 6")
	}
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
