package papers

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/order"
	"github.com/hetc/hetc/solver/problem"
)

// pick solves the choice of one operator among labelled costs in ns and returns the label.
func pick(
	ctx context.Context, name string, labels []string, ns []int64, procs [][]int, all []string,
) (string, int64, error) {
	it := problem.Item{Name: name, Before: []string{"shared"}, After: []string{"shared"}}
	for i := range labels {
		it.Choices = append(it.Choices, problem.Choice{Label: labels[i], Procs: procs[i], CostNS: ns[i]})
	}
	partition := &problem.Partition{Name: name, Procs: all,
		Chains: []problem.Chain{{Name: "op", Repeat: 1, Items: []problem.Item{it}}}}
	sol, err := solvePartition(ctx, partition)
	if err != nil {
		return "", 0, err
	}
	return labels[sol.Choices[0][0]], sol.ObjectiveNS, nil
}

// npuTable3 compares Table 3's times of one product on four processors: ratios, rates, and the division that would
// balance them.
func npuTable3(ctx context.Context, rows *sheet) error {
	// the fastest column, by the solver
	columns := []string{"npu_int8", "cpu_int8", "gpu_fp16", "npu_fp16"}
	var slower float64
	peak := npuFact("hw_npu_peak_int8").at("values", "Hexagon").num()
	for _, row := range npuFact("table3").at("values").list() {
		left, right := row.at("a").nums(), row.at("b").nums()
		name := fmt.Sprintf("%vx%vx%v", left[0], left[1], right[1])
		ns := map[string]int64{}
		for _, c := range columns {
			ns[c] = us(1000 * row.at(c).num())
		}
		choose := func(among []string) (string, error) {
			var costs []int64
			var procs [][]int
			for i, c := range among {
				costs, procs = append(costs, ns[c]), append(procs, []int{i})
			}
			got, _, err := pick(ctx, name, among, costs, procs, among)
			return got, err
		}
		got, err := choose(columns)
		if err != nil {
			return err
		}
		rows.noted(Exact, name+"/choice", "npu_int8", got, "choice")
		if got, err = choose([]string{"gpu_fp16", "npu_fp16"}); err != nil {
			return err
		}
		rows.add(Exact, name+"/choice-without-int8", nil, got, "the faster of the FP16 columns: never the NPU")
		note := "latency over that of NPU INT8"
		for _, columns := range []struct{ column, ratio string }{{"cpu_int8", "cpu_ratio"}, {"gpu_fp16", "gpu_ratio"},
			{"npu_fp16", "npu_fp16_ratio"}} {
			said := note
			ours := row.at(columns.column).num() / row.at("npu_int8").num()
			if printed := row.at(columns.ratio).num(); math.Abs(ours-printed) > 0.11*printed {
				said += "; the two printed cells and the printed ratio exclude each other, one of them is wrong"
			}
			rows.add(Exact, name+"/"+columns.column+"-over-npu-int8", row.at(columns.ratio).num(), ours, "%s", said)
		}
		slower = max(slower, row.at("npu_fp16").num()/row.at("cpu_int8").num())
		rows.noted(Exact, name+"/npu-tops", peak, 2*left[0]*left[1]*right[1]/row.at("npu_int8").num()/1e9, "npu_tops")
		// HeteroInfer's objective on this table: NPU in INT8 beside GPU in FP16, columns of the weight divided in 32s.
		labels, costs, procs := []string{"npu"}, []int64{ns["npu_int8"]}, [][]int{{0}}
		labels, costs, procs = append(labels, "gpu"), append(costs, ns["gpu_fp16"]), append(procs, []int{1})
		tiles := int64(right[1]) / 32
		for g := int64(1); g < tiles; g++ {
			labels, procs = append(labels, fmt.Sprint(g)), append(procs, []int{0, 1})
			costs = append(costs, max((ns["gpu_fp16"]*g+tiles/2)/tiles, (ns["npu_int8"]*(tiles-g)+tiles/2)/tiles))
		}
		got, best, err := pick(ctx, name, labels, costs, procs, []string{"npu", "gpu"})
		if err != nil {
			return err
		}
		var gops float64
		if _, err := fmt.Sscan(got, &gops); err != nil {
			return fmt.Errorf("%s is not divided but on %q", name, got)
		}
		rows.noted(Modelled, name+"/divided-gpu-share", nil, gops/float64(tiles), "divided_gpu_share")
		rows.add(Modelled, name+"/divided-ms", nil, float64(best)/1e6, "time of that division")
	}
	rows.add(Exact, "npu-fp16-over-cpu-int8-most",
		npuFact("r_matmul_ranges").at("values", "npu_fp16_slower_than_cpu_int8_up_to").num(), slower, "sec. 2.2")
	var cpu, gpu []float64
	for _, r := range npuFact("table3").at("values").list() {
		cpu, gpu = append(cpu, r.at("cpu_int8").num()/r.at("npu_int8").num()), append(gpu,
			r.at("gpu_fp16").num()/r.at("npu_int8").num())
	}
	for _, claim := range []struct {
		name string
		list []float64
		key  string
	}{{"npu-over-cpu", cpu, "npu_over_cpu_int8"}, {"npu-over-gpu", gpu, "npu_over_gpu_fp16"}} {
		printed := npuFact("r_matmul_ranges").at("values", claim.key).nums()
		rows.add(Exact, claim.name+"-least", printed[0], slices.Min(claim.list),
			"range in sec. 2.2 against the cells of Table 3")
		rows.add(Exact, claim.name+"-most", printed[1], slices.Max(claim.list),
			"range in sec. 2.2 against the cells of Table 3")
	}
	return nil
}

// qwen is the prefill of one chunk of Qwen1.5-1.8B as six subgraphs per layer: the paper prints 144 in all, 24 of
// them attention.
func qwen(model *models.Model, chunks int, npuNS, cpuNS int64, attentionShare, growth float64) order.Graph {
	linear := []float64{float64(model.Hidden * (model.Heads + 2*model.KVHeads) * model.HeadDim),
		float64(model.Hidden * model.Heads * model.HeadDim), float64(3 * model.Hidden * model.FFN)}
	sum := linear[0] + linear[1] + linear[2]
	graph := make(order.Graph, chunks)
	for i := range graph {
		npu := func(k int) order.Subgraph {
			return order.Subgraph{Lane: order.NPU,
				NS: int64(math.Round(float64(npuNS) * linear[k] / sum / float64(model.Layers)))}
		}
		norm := order.Subgraph{Lane: order.CPU,
			NS: int64(math.Round(float64(cpuNS) * (1 - attentionShare) / 2 / float64(model.Layers)))}
		// growth is how much longer attention takes with each earlier chunk; its mean over the chunks stays.
		weight := (1 + growth*float64(i)) / (1 + growth*float64(chunks-1)/2)
		attention := order.Subgraph{
			Lane: order.CPU, Attention: true,
			NS: int64(math.Round(float64(cpuNS) * attentionShare * weight / float64(model.Layers))),
		}
		for range model.Layers {
			graph[i] = append(graph[i], norm, npu(0), attention, npu(1), norm, npu(2))
		}
	}
	return graph
}

// leastNodes bounds the search for the best order of a whole prompt.
const leastNodes = 1000

// npuOrder compares the order of Eq. 5 with the order of the chunks and with the best one, found by branch and
// bound.
func npuOrder(ctx context.Context, rows *sheet) error {
	model, err := models.Open("qwen1.5-1.8b")
	if err != nil {
		return err
	}
	defer model.Close()
	t := npuFact("m_npu_time_256").at("values")
	// the printed times of a chunk on both processors, one after the other
	npuNS := us(1000 * t.at("npu").num())
	cpuNS := int64(float64(npuNS) / t.at("relative_to_cpu").num())
	rows.noted(Exact, "serial-ms", nil, float64(npuNS+cpuNS)/1e6, "serial_ms", t.at("npu").num(),
		t.at("relative_to_cpu").num())
	printed := npuFact("r_ablation").at("values", "out_of_order_reduction_percent").nums()
	bubble := npuFact("m_schedule_bubble").at("values", "critical_path_bubble_naive").num()
	rows.noted(Exact, "saving-at-most-percent", printed[1], 100*float64(cpuNS)/float64(npuNS+cpuNS),
		"saving_at_most_percent", printed[0], printed[1])
	rows.noted(Exact, "saving-if-bubble-goes-percent", printed[1], bubble, "saving_if_bubble_goes_percent", bubble)
	for _, variant := range []struct {
		name              string
		chunks            int
		attention, growth float64
		note              string
	}{
		{"512-tokens", 2, 0.8, 0, "attention 80 percent of the CPU's time, the same for each chunk"},
		{"1024-tokens", 4, 0.8, 0, "attention 80 percent of the CPU's time, the same for each chunk"},
		{"1024-tokens-growing", 4, 0.8, 1,
			"attention 80 percent of the CPU's time, longer by the first chunk's with every chunk before"},
		{"1024-tokens-norms", 4, 0.2, 0, "attention 20 percent of the CPU's time, norms the rest"},
	} {
		// in order, by Eq. 5 and the best that was found, of the same graph
		graph := qwen(model, variant.chunks, npuNS, cpuNS, variant.attention, variant.growth)
		in, out := graph.InOrder(), graph.Greedy()
		if err := graph.Check(out); err != nil {
			return err
		}
		best, bound, err := graph.Least(ctx, leastNodes)
		if err != nil {
			return err
		}
		note := fmt.Sprintf("six subgraphs per layer (norm, QKV, attention, O, norm, FFN), %d chunks of 256, NPU "+
			"time by parameters of catalog model %s, %s; subgraph times are not printed; Fig. 19 has 512 tokens and "+
			"other models as well", variant.chunks, model.Name, variant.note)
		add := func(name string, paper, ours any) { rows.add(Modelled, variant.name+"/"+name, paper, ours, "%s", note) }
		add("in-order-bubble-percent", bubble, 100*graph.Idle(in))
		add("eq5-bubble-percent", nil, 100*graph.Idle(out))
		add("eq5-saving-percent", fmt.Sprintf("%v to %v", printed[0], printed[1]),
			100*(1-float64(out.End)/float64(in.End)))
		add("in-order-ms", nil, float64(in.End)/1e6)
		add("eq5-ms", nil, float64(out.End)/1e6)
		add("best-found-ms", nil, float64(best.End)/1e6)
		add("least-possible-ms", nil, float64(bound)/1e6)
	}
	// Small instances, where the best order is proved.
	const instances = 1000
	worse, worst, optimal, worstGap := 0, 0.0, 0, 0.0
	random := rand.New(rand.NewPCG(5, 0))
	for range instances {
		// durations of 1 to 9 ns, subgraphs that alternate between the processors
		made := make(order.Graph, 2+random.IntN(2))
		shape := make([]order.Subgraph, 3+random.IntN(2))
		for j := range shape {
			shape[j] = order.Subgraph{Lane: j % 2, Attention: random.IntN(3) == 0}
		}
		for i := range made {
			for j := range shape {
				part := shape[j]
				part.NS = 1 + random.Int64N(9)
				made[i] = append(made[i], part)
			}
		}
		in, out := made.InOrder(), made.Greedy()
		best, bound, err := made.Least(ctx, 1<<20)
		if err != nil {
			return err
		}
		if bound != best.End {
			return fmt.Errorf("order of a small chunk graph: not proved within the node limit")
		}
		if out.End > in.End {
			worse++
			worst = max(worst, float64(out.End)/float64(in.End)-1)
		}
		if out.End == best.End {
			optimal++
		}
		worstGap = max(worstGap, float64(out.End)/float64(best.End)-1)
	}
	note := fmt.Sprintf("of %d seeded random graphs of 2 or 3 chunks and 3 or 4 subgraphs that alternate between "+
		"the processors", instances)
	rows.noted(Modelled, "random/worse-than-in-order", nil, worse, "random/worse_than_in_order", note, 100*worst)
	rows.noted(Modelled, "random/optimal-percent", nil, 100*float64(optimal)/instances, "random/optimal_percent", note)
	rows.noted(Modelled, "random/worst-over-best-percent", nil, 100*worstGap, "random/worst_over_best_percent", note)
	return nil
}

// linearWeights are the elements of a layer's linear weights, attention's and the feed-forward network's.
func linearWeights(m *models.Model) (attention, ffn float64) {
	h := float64(m.Hidden)
	return h * float64((2*m.Heads+2*m.KVHeads)*m.HeadDim), 3 * h * float64(m.FFN)
}

// linearShapes are K and N of a layer's products: fused QKV, O, fused gate and up, down.
func linearShapes(m *models.Model) [][2]int {
	return [][2]int{{m.Hidden, (m.Heads + 2*m.KVHeads) * m.HeadDim}, {m.Heads * m.HeadDim, m.Hidden},
		{m.Hidden, 2 * m.FFN}, {m.FFN, m.Hidden}}
}

// npuSharing recomputes the memory of graphs that all chunks share.
func npuSharing(rows *sheet) error {
	model, err := models.Open("qwen1.5-1.8b")
	if err != nil {
		return err
	}
	defer model.Close()
	// norm, QKV, attention, O, norm, FFN: the only division of 144 by 24 layers in which one per layer is attention
	const perLayer = 6
	c := npuFact("models_qwen_subgraphs").at("values")
	rows.noted(Modelled, "subgraphs", c.at("total").num(), model.Layers*perLayer, "subgraphs", model.Name, perLayer)
	rows.noted(Modelled, "shareable", c.at("shareable").num(), model.Layers*(perLayer-1), "shareable")
	shared := npuFact("m_chunk_sharing_memory").at("values")
	chunks := shared.at("prompt").num() / shared.at("chunk").num()
	rows.add(Exact, "chunks", nil, chunks, "a prompt of %v tokens in chunks of %v", shared.at("prompt").num(),
		shared.at("chunk").num())
	// one graph for all chunks keeps 1/chunks of the memory
	reduction := 1 - 1/chunks
	rows.noted(Exact, "reduction-percent", shared.at("reduction_up_to_percent").num(), 100*reduction,
		"reduction_percent")
	rows.add(Exact, "factor", shared.at("reduction_factor_up_to").num(), 1/(1-reduction),
		"the same as a factor, sec. 1")
	saved := shared.at("saved_gb").num()
	before := saved / reduction
	rows.noted(Exact, "before-gb", nil, before, "before_gb", saved)
	rows.add(Exact, "after-gb", nil, before-saved, "and with sharing")
	// what sharing saves is (chunks-1) copies of the linear weights, in either number type
	attention, ffn := linearWeights(model)
	linear := (attention + ffn) * float64(model.Layers)
	for _, reading := range []struct {
		name  string
		bytes float64
	}{{"int8", 1}, {"fp16", 2}} {
		rows.noted(Modelled, "saved-gb-"+reading.name, saved, (chunks-1)*linear*reading.bytes/1e9, "saved_gb",
			model.Name, linear, reading.bytes)
	}
	rows.noted(Modelled, "bytes-per-weight", 1, (before-saved)*1e9/linear, "bytes_per_weight")
	over := shared.at("unshared_overhead_x_weights").nums()
	rows.noted(Modelled, "unshared-over-weights", fmt.Sprintf("%v to %v", over[0], over[1]), chunks,
		"unshared_over_weights")
	return nil
}

// npuChunks recomputes chunks and padding of the printed prompts, and compares chunk lengths.
func npuChunks(rows *sheet) error {
	chunk := npuFact("m_chunk_length").at("values", "default").num()
	list := npuFact("table5").at("values").list()
	for _, dataset := range list {
		name := datasetName(dataset)
		prompts := dataset.at("prompt_tokens").nums()
		for k, end := range []string{"shortest", "longest"} {
			// a prompt is padded to whole chunks
			n := math.Ceil(prompts[k] / chunk)
			rows.add(Exact, name+"/chunks-"+end, nil, n, "chunks of %v tokens for a prompt of %v", chunk, prompts[k])
			rows.noted(Exact, name+"/padding-percent-"+end, nil, 100*(n*chunk/prompts[k]-1), "padding_percent",
				prompts[k])
		}
		for _, row := range dataset.at("rows").list() {
			if row.at("llm").text() != "Qwen1.5-1.8B" {
				continue
			}
			prefill := row.at("ours", 1).num()
			note := "prefill of Qwen1.5-1.8B over chunks; sec. 3.4 prints the NPU's time of one"
			if prefill/math.Ceil(prompts[0]/chunk) > 2*npuFact("m_npu_time_256").at("values", "npu").num()/1000 {
				note += "; this cell stands out: its prefill is far above that of other prompts of this length"
			}
			printed := npuFact("m_npu_time_256").at("values", "npu").num() / 1000
			rows.add(Modelled, name+"/s-per-chunk-longest", printed, prefill/math.Ceil(prompts[1]/chunk),
				"%s; all prompts as long as the longest", note)
			rows.add(Modelled, name+"/s-per-chunk-shortest", printed, prefill/math.Ceil(prompts[0]/chunk),
				"%s; all prompts as long as the shortest", note)
			above := npuFact("r_prefill_gt_1000").at("values", "above").num()
			for k, end := range []string{"shortest", "longest"} {
				rows.noted(Modelled, name+"/tokens-per-s-"+end, fmt.Sprintf("above %v", above), prompts[k]/prefill,
					"tokens_per_s", end)
			}
		}
	}
	// The length of a chunk: what padding costs against what a longer product gains, on the catalog's NPU.
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		return err
	}
	proc := soc.Processor("npu")
	if proc == nil || proc.Sim == nil {
		return fmt.Errorf("the catalog SoC %q has no simulated NPU", soc.Name)
	}
	model, err := models.Open("qwen1.5-1.8b")
	if err != nil {
		return err
	}
	defer model.Close()
	rate := proc.Sim.Schemes[op.A8TQ8C]
	weights := linearShapes(model)
	// oneNS is a chunk's linear layers on the NPU, as the catalog describes it (socs.SimScheme).
	oneNS := func(m int) float64 {
		m = op.RoundUp(m, rate.Step.M)
		ns := 0.0
		for _, w := range weights {
			elements := float64(w[0]) * float64(w[1])
			ns += rate.SetupUS*1000 + math.Max(2*float64(m)*elements/rate.PeakGops, elements/proc.BandwidthGBps)
		}
		return ns * float64(model.Layers)
	}
	rows.noted(Modelled, "npu-ms-256", npuFact("m_npu_time_256").at("values", "npu").num(), oneNS(256)/1e6,
		"npu_ms_256", model.Name)
	// short chunks pad less, long ones use the NPU better
	candidates := []int{32, 64, 128, 256, 512, 1024}
	// the candidate of least cost
	bestOf := func(cost func(c int) float64) (best int) {
		least := math.Inf(1)
		for _, c := range candidates {
			if x := cost(c); x < least {
				best, least = c, x
			}
		}
		return best
	}
	note := fmt.Sprintf("of %s, linear layers of %s on the catalog's NPU; the paper measures QKV and FFN per token "+
		"(Fig. 8, not printed)", joinInts(candidates), model.Name)
	rows.add(Modelled, "chunk-length/per-token", chunk, bestOf(func(c int) float64 { return oneNS(c) / float64(c) }),
		"least time per token without padding, %s", note)
	for _, d := range list {
		ends := d.at("prompt_tokens").nums()
		rows.noted(Modelled, "chunk-length/"+datasetName(d), chunk, bestOf(func(c int) float64 {
			sum := 0.0
			for n := ends[0]; n <= ends[1]; n++ {
				sum += math.Ceil(n/float64(c)) * oneNS(c)
			}
			return sum
		}), "chunk_length", note)
	}
	rows.noted(Modelled, "chunk-length/all", chunk, bestOf(func(c int) float64 {
		sum := 0.0
		for _, d := range list {
			ends := d.at("prompt_tokens").nums()
			for n := ends[0]; n <= ends[1]; n++ {
				sum += math.Ceil(n/float64(c)) * oneNS(c) / oneNS(int(n)) / (ends[1] - ends[0] + 1)
			}
		}
		return sum
	}), "chunk_length/all", note)
	return nil
}

// datasetName is a row's name for a dataset of Table 5; two blocks carry the same label.
func datasetName(d value) string {
	return strings.NewReplacer(" ", "-", "(", "", ")", "").Replace(d.at("dataset").text())
}

// npuShapes lists the heights and widths of as many values as the printed input has, and which is the squarest and
// the fastest.
func npuShapes(rows *sheet) error {
	effect := npuFact("hw_square_shape_effect").at("values")
	byRows := int(effect.at("input_a", 0).num())
	type shape struct{ h, w int }
	// every height that divides the rows
	var shapes []shape
	for h := 1; h <= byRows; h++ {
		if byRows%h == 0 {
			shapes = append(shapes, shape{h, byRows / h})
		}
	}
	rows.noted(Exact, "equivalent-shapes", nil, len(shapes), "equivalent_shapes", byRows)
	text := func(x shape) string { return fmt.Sprintf("%dx%d", x.h, x.w) }
	printed := fmt.Sprintf("%vx%v", effect.at("input_b", 0).num(), effect.at("input_b", 1).num())
	// two rules: the squarest image, and the fastest measured one
	square := slices.MinFunc(shapes, func(a, b shape) int { return max(a.h, a.w) - max(b.h, b.w) })
	rows.noted(Modelled, "squarest", printed, text(square), "squarest")
	gain := effect.at("gain_of_b").num()
	// The search keeps the fastest: with the printed ratio, 1024x1 takes gain and 32x32 takes 1.
	times := map[string]float64{fmt.Sprintf("%vx%v", effect.at("input_a", 0).num(),
		effect.at("input_a", 1).num()): gain, printed: 1}
	fastest := ""
	for _, shape := range shapes {
		if t, ok := times[text(shape)]; ok && (fastest == "" || t < times[fastest]) {
			fastest = text(shape)
		}
	}
	rows.noted(Modelled, "search-over-printed", printed, fastest, "search_over_printed", gain, len(shapes)-len(times))
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		return err
	}
	side := int(effect.at("input_b", 2).num())
	product := &simulated{soc: soc}
	// ns without the launch
	took := func(f op.Form) float64 {
		return float64(product.ns("npu",
			op.Op{Kind: op.MatMul, M: byRows, K: side, N: side, Scheme: op.A8TQ8C,
				Form: f})) - 1e3*soc.Processor("npu").LaunchUS
	}
	all := op.FormsOf(byRows, []op.Form{op.Conv})
	best := all[0]
	for _, form := range all {
		if took(form) < took(best) {
			best = form
		}
	}
	note := fmt.Sprintf("times [%d,%d] in INT8 on catalog SoC %s, whose price of images is these two points, "+
		"interpolated by the shorter side", side, side, soc.Name)
	rows.add(Modelled, "search-over-all", printed, strings.TrimPrefix(string(best), string(op.Conv)+" "),
		"the fastest of all %d, %s", len(all), note)
	rows.add(Modelled, "gain", gain, took(op.ConvForm(byRows, 1))/took(best), "%s, without the launch; %s", printed,
		note)
	return product.err
}

// npuMemory places the linear weights of a 7B model in INT8 under the limit of the NPU's address space.
func npuMemory(rows *sheet) error {
	limit := npuFact("hw_npu_memory_region").at("values", "Hexagon_addressable").num()
	model, err := models.Open("llama-2-7b")
	if err != nil {
		return err
	}
	defer model.Close()
	attention, ffn := linearWeights(model)
	layers := model.Layers
	note := fmt.Sprintf("INT8 weights of the layers of catalog model %s; dimensions are not in the paper", model.Name)
	rows.noted(Modelled, "all-gib", limit, (attention+ffn)*float64(layers)/(1<<30), "all_gib", note)
	rows.add(Modelled, "ffn-gib", limit, ffn*float64(layers)/(1<<30), "GiB, those of the feed-forward networks; %s",
		note)
	// Latencies of Table 3 for these very shapes, 32 tokens: [4096,4096] (q, k, v, o) and [4096,11008] (gate, up,
	// and down as its transpose).
	table := map[[2]float64]value{}
	for _, r := range npuFact("table3").at("values").list() {
		table[[2]float64{r.at("b", 0).num(), r.at("b", 1).num()}] = r
	}
	small, large := table[[2]float64{float64(model.Hidden), float64(model.Hidden)}],
		table[[2]float64{float64(model.Hidden), float64(model.FFN)}]
	type matrix struct {
		bytes, gain float64
		count       int
	}
	gain := func(r value) float64 { return r.at("cpu_int8").num() - r.at("npu_int8").num() }
	att := matrix{float64(model.Hidden) * float64(model.Hidden), gain(small), 4 * layers}
	net := matrix{float64(model.Hidden) * float64(model.FFN), gain(large), 3 * layers}
	for _, unit := range []struct {
		name  string
		bytes float64
	}{{"4-gib", limit * (1 << 30)}, {"4-gb", limit * 1e9}} {
		// The rule places feed-forward matrices first; the best placement tries every number of
		// them.
		fits := func(bytes float64, m matrix) int { return min(m.count, int(bytes/m.bytes)) }
		nets := fits(unit.bytes, net)
		atts := fits(unit.bytes-float64(nets)*net.bytes, att)
		rule := float64(nets)*net.gain + float64(atts)*att.gain
		best, bestNets, bestAtts := -1.0, 0, 0
		for n := 0; n <= net.count && float64(n)*net.bytes <= unit.bytes; n++ {
			a := fits(unit.bytes-float64(n)*net.bytes, att)
			if g := float64(n)*net.gain + float64(a)*att.gain; g > best {
				best, bestNets, bestAtts = g, n, a
			}
		}
		rows.noted(Modelled, unit.name+"/rule", "FFN first",
			fmt.Sprintf("%d of %d FFN and %d of %d attention matrices", nets, net.count, atts, att.count), "rule", note)
		rows.noted(Modelled, unit.name+"/rule-saves-ms", nil, rule, "rule_saves_ms", note)
		rows.noted(Modelled, unit.name+"/best", "FFN first",
			fmt.Sprintf("%d of %d FFN and %d of %d attention matrices", bestNets, net.count, bestAtts, att.count),
			"best", note)
		rows.add(Modelled, unit.name+"/best-saves-ms", nil, best, "ms per 32 tokens; %s", note)
	}
	return nil
}

// eq1 are the parts of Eq. 1 for x/s: what the NPU gets, and the CPU's part as printed.
func eq1(x, low, high float64) (npu, printed float64) {
	return math.Min(math.Max(x, low), high), math.Floor(x/high) * high
}

// npuOutliers checks that a product is the sum of its quantised part and its outliers (Eq. 1), and what pruning
// outliers costs.
func npuOutliers(rows *sheet) error {
	var low, high float64
	if _, err := fmt.Sscanf(npuFact("m_outlier_split_eq1").at("values", "npu_part").text(), "clip(x/s, %g, %g)", &low,
		&high); err != nil {
		return fmt.Errorf("read the range of Eq. 1: %w", err)
	}
	values, same, small, off, mended := 0, 0, 0, 0.0, 0.0
	// every quarter of s, far beyond the range
	for value := -1024.0; value <= 1024; value += 0.25 {
		npu, cpu := eq1(value, low, high)
		values++
		if npu+cpu == value {
			same++
		}
		if npu == value && cpu != 0 {
			small++
		}
		off = max(off, math.Abs(npu+cpu-value))
		mended = max(mended, math.Abs(npu+(value-npu)-value))
	}
	rows.noted(Exact, "eq1/identity-holds-percent", 100, 100*float64(same)/float64(values),
		"eq1/identity_holds_percent", high)
	rows.add(Exact, "eq1/largest-error", 0, off, "in units of s, as printed")
	rows.noted(Exact, "eq1/inside-yet-on-cpu-percent", 0, 100*float64(small)/float64(values),
		"eq1/inside_yet_on_cpu_percent")
	rows.noted(Exact, "eq1/largest-error-mended", 0, mended, "eq1/largest_error_mended")
	// The same through a product: INT8 part on one processor, the rest in float on the other.
	random := rand.New(rand.NewPCG(1, 1))
	const tokens, cols = 64, 32
	var whole, parts, asPrinted float64
	for range cols {
		var exact, shadowed, plain float64
		for range tokens {
			value, weight := 0.3*random.NormFloat64()*high, math.Round(random.NormFloat64()*40)
			if random.IntN(tokens) == 0 {
				value *= 8
			}
			npu, cpu := eq1(value, low, high)
			exact, shadowed, plain = exact+float64(value*weight), shadowed+float64(npu*weight)+
				float64((value-npu)*weight), plain+float64(npu*weight)+float64(cpu*weight)
		}
		whole, parts, asPrinted = whole+float64(exact*exact), parts+
			float64((shadowed-exact)*(shadowed-exact)), asPrinted+float64((plain-exact)*(plain-exact))
	}
	rows.noted(Exact, "eq1/product-error-mended", 0, math.Round(1e9*math.Sqrt(parts/whole))/1e9,
		"eq1/product_error_mended")
	rows.add(Exact, "eq1/product-error-printed", 0, math.Sqrt(asPrinted/whole),
		"the same with the CPU's part as printed")
	rows.noted(Exact, "eq1/int8-range", fmt.Sprintf("%v..%v", low, high),
		fmt.Sprintf("%d..%d", math.MinInt8, math.MaxInt8), "eq1/int8_range")
	// printed counts over printed shares give a number of channels, which catalog models have or
	// not
	d := npuFact("m_outlier_density").at("values")
	count, percent := d.at("count").nums(), d.at("percent_of_channels").nums()
	for k, end := range []string{"least", "most"} {
		rows.noted(Exact, "density/channels-"+end, nil, count[k]/(percent[k]/100), "density/channels", count[k],
			percent[k])
	}
	model, err := models.Open("qwen1.5-1.8b")
	if err != nil {
		return err
	}
	defer model.Close()
	for _, claim := range []struct {
		name string
		n    int
	}{{"hidden", model.Hidden}, {"ffn", model.FFN}} {
		for k, end := range []string{"least", "most"} {
			rows.noted(Modelled, "density/"+claim.name+"-percent-"+end, percent[k], 100*count[k]/float64(claim.n),
				"density/percent", count[k], claim.n, model.Name)
		}
	}
	hot := npuFact("m_hot_channels").at("values")
	rows.noted(Modelled, "hot-channels/weights-percent", nil, hot.at("channels_below").num(),
		"hot_channels/weights_percent", hot.at("outliers_covered_above").num())
	// pruning more outliers: faster and less accurate, linear in time per token
	for _, name := range npuFact("r_prune_tradeoff").at("values").keys() {
		points := npuFact("r_prune_tradeoff").at("values", name).list()
		faster, worse := true, true
		for i := 1; i < len(points); i++ {
			faster = faster && points[i].at("speed").num() > points[i-1].at("speed").num()
			worse = worse && points[i].at("acc").num() < points[i-1].at("acc").num()
		}
		ours := "not monotone"
		if faster && worse {
			ours = "faster and less accurate"
		}
		rows.noted(Exact, "pruning/"+name, "faster and less accurate", ours, "pruning")
		// The time per token between keeping all and none is linear in the rate where each layer costs alike.
		speed := func(i int) float64 { return points[i].at("speed").num() }
		rate := points[1].at("prune").num() / 100
		rows.noted(Modelled, "pruning/"+name+"/speed", speed(1), 1/(float64((1-rate)/speed(0))+float64(rate/speed(2))),
			"pruning/speed", points[1].at("prune").num())
	}
	var lambada value
	for _, r := range npuFact("table6").at("values", "LAMBADA").list() {
		if r.at(0).text() == "Qwen1.5-1.8B" {
			lambada = r
		}
	}
	q := npuFact("r_prune_tradeoff").at("values", "Qwen1.5-1.8B", 1)
	rows.noted(Exact, "pruning/against-table6", q.at("acc").num(), lambada.at(5).num(), "pruning/against_table6",
		q.at("prune").num(), npuFact("m_prune_rate").at("values").num())
	return nil
}

var npuEngines = []string{"MLC", "LCPP", "MNN", "PI", "TFLite"}

// npuTable5 recomputes Table 5's sums, its speedups over other engines, and their means.
func npuTable5(rows *sheet) error {
	cells, wrong := 0, 0
	for _, dataset := range npuFact("table5").at("values").list() {
		name := datasetName(dataset)
		// cells that the data calls uncertain, with the reason
		doubtful := map[string]string{}
		for _, c := range dataset.at("uncertain_cells").list() {
			doubtful[c.at("llm").text()+"/"+c.at("engine").text()] = c.at("reason").text()
		}
		speedups := map[string][]float64{}
		for _, row := range dataset.at("rows").list() {
			llm := row.at("llm").text()
			ours := row.at("ours", 0).num()
			// this row's speedups over every engine
			var all []float64
			for _, engine := range append(slices.Clone(npuEngines), "ours") {
				cell := row.at(engine)
				if cell.v == "none" {
					continue
				}
				if engine != "ours" {
					speedups[engine] = append(speedups[engine], cell.at(0).num()/ours)
					all = append(all, cell.at(0).num()/ours)
				}
				if cell.at(2).v == nil {
					rows.add(NotReproducible, name+"/"+llm+"/"+engine+"/sum", cell.at(0).num(), nil, "%s",
						doubtful[llm+"/"+engine])
					continue
				}
				cells++
				sum := cell.at(1).num() + cell.at(2).num()
				// Totals have one or two digits after the point.
				if math.Abs(sum-cell.at(0).num()) > 0.06 {
					wrong++
					note := "prefill and decode do not add up to the total"
					if why := doubtful[llm+"/"+engine]; why != "" {
						note += ": " + why
					}
					rows.add(Exact, name+"/"+llm+"/"+engine+"/sum", cell.at(0).num(), sum, "s; %s", note)
				}
			}
			printed := row.at("speedup").nums()
			rows.add(Exact, name+"/"+llm+"/speedup-least", printed[0], slices.Min(all),
				"least total of the others over llm.npu's")
			rows.add(Exact, name+"/"+llm+"/speedup-most", printed[1], slices.Max(all),
				"largest total of the others over llm.npu's")
		}
		for _, engine := range npuEngines {
			sum := 0.0
			for _, x := range speedups[engine] {
				sum += math.Log(x)
			}
			printed := dataset.at("geo_mean_speedup", engine).num()
			ours := math.Exp(sum / float64(len(speedups[engine])))
			note := ""
			if math.Abs(ours-printed) > 0.1*printed {
				note = "; differs from its own cells, sec. 4.3 repeats the printed one"
			}
			rows.add(Exact, name+"/geomean-"+engine, printed, ours, "geometric mean of the totals over llm.npu's%s",
				note)
		}
	}
	rows.noted(Exact, "cells-that-add-up", cells, cells-wrong, "cells_that_add_up")
	return nil
}

// npuTable6 recomputes Table 6's averages and losses.
func npuTable6(rows *sheet) error {
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
			for c := 2; c <= 5; c++ {
				sums[c] += row.at(c).num() - row.at(1).num()
			}
			rows.add(Exact, set+"/"+row.at(0).text()+"/degradation", row.at(6).num(),
				tenths(row.at(5).num()-row.at(1).num()), "llm.npu less FP16, percentage points")
		}
		for c := 2; c <= 5; c++ {
			rows.noted(Exact, set+"/average/"+strings.TrimSuffix(columns[c].text(), "()"), printed.at(c).num(),
				tenths(sums[c]/count), "average")
		}
	}
	// sec. 4.4 quotes single cells, and the largest gains
	drop := npuFact("r_smoothquant_drop").at("values")
	for _, r := range table.at("values", "HellaSwag").list() {
		if name := r.at(0).text(); drop.has(name) {
			rows.noted(Exact, "smoothquant-drop/"+name, drop.at(name).num(), r.at(1).num()-r.at(2).num(),
				"smoothquant_drop")
		}
	}
	best := func(column int) (most float64) {
		for _, set := range table.at("values").keys() {
			for _, r := range table.at("values", set).list() {
				if r.at(0).text() != "avg_degrad" {
					most = max(most, r.at(5).num()-r.at(column).num())
				}
			}
		}
		return most
	}
	g := npuFact("r_accuracy_gains").at("values")
	rows.add(Exact, "largest-gain/SmoothQuant", g.at("best_over_SmoothQuant").num(), best(2),
		"percentage points, sec. 4.4 against Table 6")
	rows.add(Exact, "largest-gain/K-Quant", g.at("best_over_K-Quant").num(), best(4),
		"percentage points, sec. 4.4 against Table 6")
	return nil
}

// tenths removes what is left of sums of printed tenths beyond a millionth.
func tenths(x float64) float64 { return math.Round(x*1e6) / 1e6 }
