package papers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
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

// llmnpu are the items of that paper (ASPLOS 2025).
var llmnpu = []Item{
	sheetItem("llmnpu", "prefill", "prefill of five models", "Table 5, sec. 4.2, 4.3", npuPrefill),
	sheetItem("llmnpu", "chunks", "the length of a chunk", "sec. 3.2, Fig. 8", npuChunks),
	sheetItem("llmnpu", "order", "chunks in flight, in order and out of order", "Eq. 2 to 5, sec. 3.4, 4.7", npuOrder),
	sheetItem("llmnpu", "outliers", "shadow outliers and their pruning", "Eq. 1, sec. 3.3, 4.4", npuOutliers),
	sheetItem("llmnpu", "memory", "weights on an NPU that addresses 4 GB", "sec. 4", npuMemory),
	sheetItem("llmnpu", "table3", "ratios and rates of products", "Table 3, sec. 2.2", npuTable3),
	sheetItem("llmnpu", "printed", "arithmetic on printed numbers", "sec. 1, 3.2, 3.3, 3.4, 4.4", npuPrinted),
	sheetItem("llmnpu", "table5", "sums, speedups and means", "Table 5, sec. 4.3", npuTable5),
	sheetItem("llmnpu", "table6", "accuracy averages", "Table 6, sec. 2.3, 4.4", npuTable6),
}

// npuFact returns an entry of the paper's data.
func npuFact(id string) value { return fact("llmnpu", id) }

// npuPhone is the phone of Table 5.
const npuPhone = "redmi-k70-pro"

// npuModels are the paper's models by the catalog's names.
var npuModels = []struct{ printed, catalog string }{{"Qwen1.5-1.8B", "qwen1.5-1.8b"}, {"Gemma-2B", "gemma-2b"},
	{"Phi-2-2.7B", "phi-2"}, {"LlaMA-2-7B", "llama-2-7b"}, {"Mistral-7b", "mistral-7b"}}

// npuWorkload is prompts of one length in chunks of another. Its products are those of a static scale, whose time in
// the catalog is the same: which scale it is takes a calibration of the model.
func npuWorkload(prompt, chunk, inFlight int) *workload.Workload {
	schemes := []op.Scheme{op.A8TQ8C}
	return &workload.Workload{Schema: workload.Schema, Name: "llmnpu", OutputTokens: 1,
		Context: max(2*chunk, prompt+chunk),
		Prompts: []workload.Prompt{{Tokens: prompt, Share: 1}}, Buckets: workload.Rows{chunk}, ChunksInFlight: inFlight,
		Schemes: workload.Schemes{Prefill: schemes, Decode: schemes}}
}

// npuSystem is llm.npu: products on the NPU and the rest on the CPU (3.1, 3.4), several chunks in flight.
var npuSystem = only("cpu", "npu")

// oneChunk has the chunks of a prompt follow each other.
func oneChunk(in *solver.Input) {
	in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { w.ChunksInFlight = 1 })
}

// npuSystems are those that Table 5 compares, by their columns.
var npuSystems = []struct {
	name, column, note string
	on                 restriction
}{
	{"cpu_npu", "ours",
		"s, llm.npu: CPU and NPU, two chunks of 256 in flight. The larger part of ours is attention, which the " +
			"catalog's CPU computes at an assumed 20 Gflop/s; the paper prints nothing of that", npuSystem},
	{"gpu_npu", "ours",
		"s, llm.npu beside ours with the GPU in the CPU's place (sec. 4.6), whose attention has an assumed 100 " +
			"Gflop/s", both(only("gpu", "npu"), oneChunk)},
	{"cpu", "LCPP", "s, llama.cpp beside ours on the CPU alone", both(only("cpu"), oneChunk)},
	{"gpu", "MLC",
		"s, MLC beside ours on the GPU alone, whose products take the times of Table 3 and of HeteroInfer: MLC takes " +
			"some ten times as long as TFLite on it", both(only("gpu"), oneChunk)},
}

// npuPrefill predicts the prefill of Table 5's models, at the middle of the printed lengths.
func npuPrefill(ctx context.Context, rows *sheet) error {
	chunk := int(npuFact("m_chunk_length").at("values", "default").num())
	datasets := npuFact("table5").at("values").list()
	for k, model := range npuModels {
		sets := datasets[:1]
		if k == 0 {
			sets = []value{datasets[0], datasets[3]} // long prompts, and short ones
		}
		for _, dataset := range sets {
			lengths := dataset.at("prompt_tokens").nums()
			prompt := int(lengths[0]+lengths[1]) / 2
			from, err := newChain(ctx, npuPhone, model.catalog, npuWorkload(prompt, chunk, 2), nil)
			if err != nil {
				return err
			}
			for _, system := range npuSystems {
				plan, err := from.solve(ctx, system.on)
				if err != nil {
					return fmt.Errorf("%q as %q: %w", model.catalog, system.name, err)
				}
				ns, err := plan.promptNS(prompt)
				if err != nil {
					return err
				}
				id := fmt.Sprintf("%s/%d/", model.catalog, prompt)
				rows.add(Solved, id+system.name, cellOf(dataset, model.printed, system.column), ns/1e9, "%s",
					system.note)
			}
		}
	}
	return nil
}

// cellOf returns a prefill time of Table 5 in s.
func cellOf(dataset value, llm, engine string) any {
	for _, row := range dataset.at("rows").list() {
		if row.at("llm").text() == llm && row.at(engine).v != "none" {
			return row.at(engine, 1).num()
		}
	}
	return nil
}

// npuChunks compares lengths of chunks.
func npuChunks(ctx context.Context, rows *sheet) error {
	const prompt = 1024
	best, least := 0, math.Inf(1)
	for _, chunk := range []int{64, 256, 1024} {
		ns, err := promptNS(ctx, npuPhone, "qwen1.5-1.8b", npuWorkload(prompt, chunk, 1), prompt, npuSystem)
		if err != nil {
			return err
		}
		if ns < least {
			best, least = chunk, ns
		}
		rows.add(Solved, fmt.Sprintf("%d/us_a_token", chunk), nil, ns/1e3/prompt,
			"a prompt of %d tokens of Qwen1.5-1.8B", prompt)
	}
	rows.add(Solved, "best", npuFact("m_chunk_length").at("values", "default").num(), best,
		"of these, for a prompt that pads nothing. The paper chose by QKV and FFN alone (Fig. 8, not printed) and "+
			"counts what is padded of others")
	return nil
}

// npuOrder compares orders of the steps of chunks in flight.
func npuOrder(ctx context.Context, rows *sheet) error {
	printed := npuFact("r_ablation").at("values", "out_of_order_reduction_percent").nums()
	length := int(npuFact("wl_ablation_prompt").at("values").num())
	for _, name := range []string{"qwen1.5-1.8b", "gemma-2b"} {
		from, err := newChain(ctx, npuPhone, name, npuWorkload(length, length/2, 2), nil)
		if err != nil {
			return err
		}
		var times []float64
		for _, by := range []restriction{oneChunk, func(in *solver.Input) { in.ChunkOrder = planir.ByGreedy },
			func(in *solver.Input) { in.ChunkOrder = planir.ByExact }} {
			plan, err := from.solve(ctx, both(npuSystem, by))
			if err != nil {
				return err
			}
			ns, err := plan.promptNS(length)
			if err != nil {
				return err
			}
			times = append(times, ns)
		}
		for i, order := range []string{"in_order", "eq5", "exact"} {
			rows.add(Solved, fmt.Sprintf("%s/%s_ms", name, order), nil, times[i]/1e6, "%d tokens, two chunks", length)
			if i > 0 {
				rows.add(Solved, fmt.Sprintf("%s/%s_saves_percent", name, order),
					fmt.Sprintf("%v to %v", printed[0], printed[1]),
					100*(1-times[i]/times[0]),
					"ours divides operators between CPU and NPU where that is faster, also in order: less is left to "+
						"fill. The order is one for all layers; the paper decides online, over the whole prompt")
			}
		}
	}
	chunk := npuFact("m_npu_time_256").at("values")
	overCPU := chunk.at("relative_to_cpu").num()
	rows.add(Arithmetic, "saves_at_most_percent", printed[1], 100*(1/overCPU)/(1+1/overCPU),
		"a chunk takes %v ms on the NPU and 1/%v of that on the CPU (sec. 3.4): with the NPU never idle",
		chunk.at("npu").num(), overCPU)
	return nil
}

// smallModel is the trained model that outliers and attention are executed on.
const smallModel = "tiny-llama-kjv"

// npuOutliers executes a small trained model with shadow outliers on text that the calibration has not seen.
func npuOutliers(ctx context.Context, rows *sheet) error {
	dir, ok := rows.model(smallModel)
	if !ok {
		return nil
	}
	const windows, size = 8, 256
	model, text, err := openTrial(ctx, dir, 2*windows, size)
	if err != nil {
		return err
	}
	defer model.Close()
	seen, unseen := *text, *text
	seen.Windows, unseen.Windows = text.Windows[:windows], text.Windows[windows:]
	schemes := []op.Scheme{op.A8OQ8C, op.A8SQ8C, op.A8TQ8C}
	cal, err := trial.Calibrate(ctx, model, trial.CalibrateOptions{Text: &seen, Schemes: schemes, NoFolds: true})
	if err != nil {
		return err
	}
	for i, name := range []string{"shadow", "clipped", "scale_for_each_row"} {
		rows.add(Executed, name+"/kl", nil, cal.Loss(calibration.All, schemes[i], false).KL,
			"mean divergence from float32 in nats a token, %s, text of the calibration, all products in 8 bits",
			smallModel)
	}
	points, err := trial.PruneCurve(ctx, model, cal, &unseen, 0)
	if err != nil {
		return err
	}
	orders := map[string]string{
		trial.ByImportance: "by the ratio of the largest outlier to the scale, the paper's importance",
		trial.ByChance:     "at random",
		trial.ByBudget: "those that cost least by measured worth, within the work of what importance keeps at this " +
			"share: an exact knapsack",
	}
	for _, point := range points {
		pruned, shown := orders[point.Order]
		if !shown {
			continue
		}
		id := fmt.Sprintf("pruned_%v_percent/%s/", 100*point.Share, point.Order)
		rows.add(Executed, id+"kl", nil, point.KL.Mean,
			"nats a token from float32, unseen text, %d of %d products pruned %s",
			point.Pruned, points[len(points)-1].Pruned, pruned)
		rows.add(Executed, id+"perplexity_percent", nil, math.Round(1e4*(point.PerplexityRatio.Mean-1))/100,
			"more than in float32. The paper prints LAMBADA accuracies, which need its models")
	}
	return nil
}

// openTrial opens a trained model, which the caller closes, and the text that lies with the small model: none of the
// trained ones has seen it.
func openTrial(ctx context.Context, dir string, windows, size int) (*trial.Model, *trial.Text, error) {
	opened, err := models.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	model, err := trial.Open(ctx, opened)
	if err != nil {
		return nil, nil, errors.Join(err, opened.Close())
	}
	text, err := model.ReadText(filepath.Join(filepath.Dir(dir), smallModel, "valid.txt"), windows, size)
	if err != nil {
		return nil, nil, errors.Join(err, model.Close())
	}
	return model, text, nil
}

// npuMemory reads which weights the plan of a 7B model leaves on an NPU with an address space of 4 GB.
func npuMemory(ctx context.Context, rows *sheet) error {
	from, err := newChain(ctx, npuPhone, "llama-2-7b", npuWorkload(512, 256, 1), nil)
	if err != nil {
		return err
	}
	plan, err := from.solve(ctx, npuSystem)
	if err != nil {
		return err
	}
	for _, class := range []string{"qkv", "attn_out", "ffn_gate_up", "ffn_down"} {
		decision := plan.DecisionFor("layers."+class, 256)
		if decision == nil {
			return fmt.Errorf("the plan decides nothing for %q", class)
		}
		var paper any
		if strings.HasPrefix(class, "ffn") {
			paper = "first"
		}
		rows.add(Solved, class+"/npu_percent", paper, 100*shareOn(decision, "npu"),
			"of the class's columns. Sec. 4 has the FFN's weights first; one decision holds for all layers here, so "+
				"each class is divided instead")
	}
	return nil
}

// npuTable3 is arithmetic on Table 3: ratios and rates.
func npuTable3(_ context.Context, rows *sheet) error {
	peak := npuFact("hw_npu_peak_int8").at("values", "Hexagon").num()
	var cpu, gpu []float64
	slower, fastest := 0.0, 0
	table := npuFact("table3").at("values").list()
	for _, row := range table {
		left, right, npu := row.at("a").nums(), row.at("b").nums(), row.at("npu_int8").num()
		name := fmt.Sprintf("%vx%vx%v", left[0], left[1], right[1])
		for _, column := range []struct{ time, ratio string }{{"cpu_int8", "cpu_ratio"}, {"gpu_fp16", "gpu_ratio"},
			{"npu_fp16", "npu_fp16_ratio"}} {
			ours, printed, note := row.at(column.time).num()/npu, row.at(column.ratio).num(),
				"latency over that of NPU INT8"
			if math.Abs(ours-printed) > 0.11*printed {
				note += "; the two printed cells and the printed ratio exclude each other, one of them is wrong"
			}
			rows.add(Arithmetic, name+"/"+column.time+"-over-npu-int8", printed, ours, "%s", note)
		}
		if npu < min(row.at("cpu_int8").num(), row.at("gpu_fp16").num(), row.at("npu_fp16").num()) {
			fastest++
		}
		cpu, gpu = append(cpu, row.at("cpu_int8").num()/npu), append(gpu, row.at("gpu_fp16").num()/npu)
		slower = max(slower, row.at("npu_fp16").num()/row.at("cpu_int8").num())
		rows.noted(Arithmetic, name+"/npu-tops", peak, 2*left[0]*left[1]*right[1]/npu/1e9, "npu_tops")
	}
	rows.add(Arithmetic, "npu-int8-is-fastest", len(table), fastest, "rows, of the four columns (sec. 2.2, 3.4)")
	ranges := npuFact("r_matmul_ranges").at("values")
	rows.add(Arithmetic, "npu-fp16-over-cpu-int8-most", ranges.at("npu_fp16_slower_than_cpu_int8_up_to").num(),
		slower, "sec. 2.2")
	for name, list := range map[string][]float64{"npu_over_cpu_int8": cpu, "npu_over_gpu_fp16": gpu} {
		printed := ranges.at(name).nums()
		rows.add(Arithmetic, name+"-least", printed[0], slices.Min(list),
			"range in sec. 2.2 against the cells of Table 3")
		rows.add(Arithmetic, name+"-most", printed[1], slices.Max(list),
			"range in sec. 2.2 against the cells of Table 3")
	}
	rows.sort()
	return nil
}

// npuPrinted is arithmetic on numbers that the text prints.
func npuPrinted(_ context.Context, rows *sheet) error {
	// one graph for all chunks keeps 1/chunks of the memory
	shared := npuFact("m_chunk_sharing_memory").at("values")
	chunks := shared.at("prompt").num() / shared.at("chunk").num()
	saved, reduction := shared.at("saved_gb").num(), 1-1/chunks
	rows.noted(Arithmetic, "sharing/reduction-percent", shared.at("reduction_up_to_percent").num(), 100*reduction,
		"reduction_percent")
	rows.noted(Arithmetic, "sharing/before-gb", nil, saved/reduction, "before_gb", saved)
	model, err := models.Open("qwen1.5-1.8b")
	if err != nil {
		return err
	}
	defer model.Close()
	weights := float64(model.Layers*model.Hidden) * float64((2*model.Heads+2*model.KVHeads)*model.HeadDim+3*model.FFN)
	rows.noted(Arithmetic, "sharing/bytes-per-weight", 1, saved/(chunks-1)*1e9/weights, "bytes_per_weight")
	counts := npuFact("models_qwen_subgraphs").at("values")
	rows.noted(Arithmetic, "sharing/shareable", counts.at("shareable").num(),
		counts.at("total").num()-float64(model.Layers), "shareable")
	// whole chunks of the printed prompts, and how long each takes
	chunk, npu := npuFact("m_chunk_length").at("values", "default").num(),
		npuFact("m_npu_time_256").at("values", "npu").num()
	for _, dataset := range npuFact("table5").at("values").list() {
		prompts := dataset.at("prompt_tokens").nums()
		ours := cellOf(dataset, "Qwen1.5-1.8B", "ours").(float64)
		for k, end := range []string{"shortest", "longest"} {
			n := math.Ceil(prompts[k] / chunk)
			rows.noted(Arithmetic, "chunks/"+datasetName(dataset)+"/ms-a-chunk-"+end, npu, 1000*ours/n, "ms_a_chunk")
		}
	}
	// the density of outliers, and what pruning them gains
	density := npuFact("m_outlier_density").at("values")
	for k, end := range []string{"least", "most"} {
		count, percent := density.at("count").nums()[k], density.at("percent_of_channels").nums()[k]
		rows.add(Arithmetic, "density/channels-"+end, nil, count/(percent/100),
			"channels that %v outlier channels at %v percent imply",
			count, percent)
	}
	tradeoff := npuFact("r_prune_tradeoff").at("values")
	for _, name := range tradeoff.keys() {
		text, points := "faster and less accurate", tradeoff.at(name).list()
		for i := 1; i < len(points); i++ {
			if points[i].at("speed").num() <= points[i-1].at("speed").num() ||
				points[i].at("acc").num() >= points[i-1].at("acc").num() {
				text = "not so"
			}
		}
		rows.add(Arithmetic, "pruning/"+name, "faster and less accurate", text,
			"with every printed step of the prune rate (sec. 4.4)")
	}
	return nil
}

// datasetName returns a row's name for a dataset of Table 5; two blocks carry the same label.
func datasetName(dataset value) string {
	return strings.NewReplacer(" ", "-", "(", "", ")", "").Replace(dataset.at("dataset").text())
}

// npuEngines are the columns of Table 5 beside llm.npu.
var npuEngines = []string{"MLC", "LCPP", "MNN", "PI", "TFLite"}

// npuTable5 recomputes Table 5's sums, its speedups over other engines, and their means.
func npuTable5(_ context.Context, rows *sheet) error {
	cells, wrong := 0, 0
	for _, dataset := range npuFact("table5").at("values").list() {
		name := datasetName(dataset)
		doubtful := doubtfulCells(dataset)
		speedups := map[string][]float64{} // by engine, of all models
		for _, row := range dataset.at("rows").list() {
			llm, ours := row.at("llm").text(), row.at("ours", 0).num()
			var overOthers []float64
			for _, engine := range append(slices.Clone(npuEngines), "ours") {
				cell := row.at(engine)
				if cell.v == "none" {
					continue
				}
				if engine != "ours" {
					speedup := cell.at(0).num() / ours
					speedups[engine], overOthers = append(speedups[engine], speedup), append(overOthers, speedup)
				}
				id := llm + "/" + engine
				if cell.at(2).v == nil {
					rows.add(PrintedOnly, name+"/"+id+"/sum", cell.at(0).num(), nil, "%s", doubtful[id])
					continue
				}
				cells++
				if !npuSum(rows, name+"/"+id+"/sum", cell, doubtful[id]) {
					wrong++
				}
			}
			printed := row.at("speedup").nums()
			rows.add(Arithmetic, name+"/"+llm+"/speedup-least", printed[0], slices.Min(overOthers),
				"least total of the others over llm.npu's")
			rows.add(Arithmetic, name+"/"+llm+"/speedup-most", printed[1], slices.Max(overOthers),
				"largest total of the others over llm.npu's")
		}
		for _, engine := range npuEngines {
			printed, ours := dataset.at("geo_mean_speedup", engine).num(), geometricMean(speedups[engine])
			note := ""
			if math.Abs(ours-printed) > 0.1*printed {
				note = "; differs from its own cells, sec. 4.3 repeats the printed one"
			}
			rows.add(Arithmetic, name+"/geomean-"+engine, printed, ours,
				"geometric mean of the totals over llm.npu's%s", note)
		}
	}
	rows.noted(Arithmetic, "cells-that-add-up", cells, cells-wrong, "cells_that_add_up")
	return nil
}

// doubtfulCells returns why the data calls cells of a dataset uncertain, by "model/engine".
func doubtfulCells(dataset value) map[string]string {
	out := map[string]string{}
	for _, cell := range dataset.at("uncertain_cells").list() {
		out[cell.at("llm").text()+"/"+cell.at("engine").text()] = cell.at("reason").text()
	}
	return out
}

// npuSum reports whether prefill and decode of a cell add up to its total, which has one or two digits after the point.
// A row says where they do not, and why where that is known.
func npuSum(rows *sheet, name string, cell value, why string) bool {
	total, sum := cell.at(0).num(), cell.at(1).num()+cell.at(2).num()
	if math.Abs(sum-total) <= 0.06 {
		return true
	}
	note := "prefill and decode do not add up to the total"
	if why != "" {
		note += ": " + why
	}
	rows.add(Arithmetic, name, total, sum, "s; %s", note)
	return false
}

func geometricMean(factors []float64) float64 {
	sum := 0.0
	for _, factor := range factors {
		sum += math.Log(factor)
	}
	return math.Exp(sum / float64(len(factors)))
}

// npuTable6 recomputes Table 6's averages and losses.
func npuTable6(_ context.Context, rows *sheet) error {
	table := npuFact("table6")
	columns := table.at("columns").list()
	for _, set := range table.at("values").keys() {
		devices := table.at("values", set).list()
		// degradations against column 1, FP16; columns 2 to 5 are the methods
		sums, count := make([]float64, 6), 0.0
		var printed value
		for _, row := range devices {
			if row.at(0).text() == "avg_degrad" {
				printed = row
				continue
			}
			count++
			for column := 2; column <= 5; column++ {
				sums[column] += row.at(column).num() - row.at(1).num()
			}
			rows.add(Arithmetic, set+"/"+row.at(0).text()+"/degradation", row.at(6).num(),
				tenths(row.at(5).num()-row.at(1).num()), "llm.npu less FP16, percentage points")
		}
		for column := 2; column <= 5; column++ {
			method := strings.TrimSuffix(columns[column].text(), "()")
			rows.noted(Arithmetic, set+"/average/"+method, printed.at(column).num(), tenths(sums[column]/count),
				"average")
		}
	}
	// sec. 4.4 quotes single cells, and the largest gains
	drop := npuFact("r_smoothquant_drop").at("values")
	for _, row := range table.at("values", "HellaSwag").list() {
		if name := row.at(0).text(); drop.has(name) {
			rows.noted(Arithmetic, "smoothquant-drop/"+name, drop.at(name).num(), row.at(1).num()-row.at(2).num(),
				"smoothquant_drop")
		}
	}
	best := func(column int) (most float64) {
		for _, set := range table.at("values").keys() {
			for _, row := range table.at("values", set).list() {
				if row.at(0).text() != "avg_degrad" {
					most = max(most, row.at(5).num()-row.at(column).num())
				}
			}
		}
		return most
	}
	gains := npuFact("r_accuracy_gains").at("values")
	rows.add(Arithmetic, "largest-gain/SmoothQuant", gains.at("best_over_SmoothQuant").num(), best(2),
		"percentage points, sec. 4.4 against Table 6")
	rows.add(Arithmetic, "largest-gain/K-Quant", gains.at("best_over_K-Quant").num(), best(4),
		"percentage points, sec. 4.4 against Table 6")
	return nil
}

// tenths removes what is left of sums of printed tenths beyond a millionth.
func tenths(x float64) float64 { return math.Round(x*1e6) / 1e6 }
