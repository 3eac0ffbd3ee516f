package papers

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/hetc/hetc/models"
)

// hetero is an entry of the paper's data.
func hetero(id string) value { return fact("heteroinfer", id) }

// printedRow is a measured row of Table 3.
type printedRow struct {
	name        string
	n, k, m     int
	gpuUS, npu  float64
	gpuOps, ops float64 // operations per second, 1e12
}

// measuredRows are the rows of Table 3 that were measured, with the rates that their latencies amount to.
func measuredRows() []printedRow {
	var out []printedRow
	for _, measured := range table3() {
		if measured.dynamic() {
			continue
		}
		measurement := printedRow{
			name: measured.name, n: measured.shape.rows, k: measured.shape.k, m: measured.from,
			gpuUS: measured.cell.at("gpu_us").num(), npu: measured.cell.at("npu_us").num(),
		}
		work := 2 * float64(measurement.n) * float64(measurement.k) * float64(measurement.m)
		measurement.gpuOps, measurement.ops = work/measurement.gpuUS/1e6, work/measurement.npu/1e6
		out = append(out, measurement)
	}
	return out
}

// heteroSplits are the divisions of Table 3's measured rows as if the weight could be cut anywhere.
func heteroSplits(rows *sheet) error {
	for i, row := range measuredRows() {
		share := row.npu / (row.gpuUS + row.npu)
		rows.noted(Exact, row.name+"/gpu-share", nil, share, "gpu_share")
		rows.add(Exact, row.name+"/balanced-us", nil, share*row.gpuUS, "time of that division without synchronisation")
		ratio := hetero("table3").at("values", rowOfLength(i), "ratio").text()
		if g, n, ok := cutRatio(ratio); ok {
			rows.noted(Exact, row.name+"/ratio", g/n, share/(1-share), "ratio")
			rows.noted(Exact, row.name+"/printed-ratio-us", nil, math.Max(row.gpuUS*g/(g+n), row.npu*n/(g+n)),
				"printed_ratio_us")
			rows.noted(Modelled, row.name+"/npu-slowdown", nil, row.gpuUS*g/(g+n)/(row.npu*n/(g+n)), "npu_slowdown")
		}
	}
	return nil
}

// rowOfLength is the index in the table of its i-th measured row.
func rowOfLength(i int) int {
	measured := 0
	for j, v := range hetero("table3").at("values").list() {
		if !v.has("estimated") {
			if measured == i {
				return j
			}
			measured++
		}
	}
	panic("BUG: Table 3 has fewer measured rows")
}

// cutRatio reads a ratio such as 1:4.
func cutRatio(text string) (gpu, npu float64, ok bool) {
	n, err := fmt.Sscanf(text, "%g:%g", &gpu, &npu)
	return gpu, npu, err == nil && n == 2
}

// heteroSync are bounds on T_sync + T_copy (sec. 4.4) with the printed ratio.
func heteroSync(rows *sheet) error {
	measured := measuredRows()
	note := "bound in us that keeps the printed decision, weight rows scaled linearly"
	bound := func(p printedRow, gpu float64) float64 { return p.gpuUS - math.Max(p.gpuUS*gpu, p.npu*(1-gpu)) }
	for i := range 2 {
		gpu, npu, ok := cutRatio(hetero("table3").at("values", rowOfLength(i), "ratio").text())
		if !ok {
			return fmt.Errorf("row %d of Table 3 has no ratio", i)
		}
		rows.add(Modelled, measured[i].name+"/split-below-us", nil, bound(measured[i], gpu/(gpu+npu)), "%s", note)
	}
	rows.add(Modelled, measured[2].name+"/gpu-only-above-us-4to1", nil, bound(measured[2], 0.8),
		"%s; if 4:1 were on the grid", note)
	rows.add(Modelled, measured[2].name+"/gpu-only-above-us-any-ratio", nil,
		bound(measured[2], measured[2].npu/(measured[2].gpuUS+measured[2].npu)), "%s; if any ratio were", note)
	finish := hetero("hw_sync_clfinish").at("values", "clFinish_fixed").num()
	rows.noted(Modelled, measured[0].name+"/with-clfinish", hetero("table3").at("values", 0, "strategy").text(),
		map[bool]string{true: "weight-centric", false: "no partition"}[bound(measured[0], 0.5) > finish],
		"with_clfinish", finish)
	return nil
}

// heteroRanges compares rules of extrapolation with the estimates that Table 3 prints for ranges of lengths.
func heteroRanges(rows *sheet) error {
	rules := []struct {
		name string
		at   func(c curve, m int) float64
		note string
	}{
		{"line", func(c curve, m int) float64 { return float64(c.at(m)) },
			"line through the printed lengths on both sides, beyond 256 through the last two"},
		{"line-from-1", func(c curve, m int) float64 { return float64(curve{c[0], c[len(c)-1]}.at(m)) },
			"line through lengths 1 and 256"},
		{"proportional", func(c curve, m int) float64 {
			point := c[len(c)-1]
			return float64(point.ns) * float64(m) / float64(point.tokens)
		}, "proportional to the length at 256"},
		{"stage", func(c curve, m int) float64 {
			return float64((&shape{npu: c, gpu: c,
				stage: stageRows()}).npuNS(m))
		}, "the line at the end of its stage of 32"},
	}
	// how many printed ends each rule hits, of all
	fits, ends := make([]int, len(rules)), 0
	for _, row := range table3() {
		if !row.dynamic() {
			continue
		}
		for _, proc := range []string{"gpu", "npu"} {
			curve := row.shape.gpu
			if proc == "npu" {
				curve = row.shape.npu
			}
			// one printed number stands for both ends of a range
			printed := row.cell.at(proc + "_us").nums()
			if len(printed) == 1 {
				printed = append(printed, printed[0])
			}
			for end, length := range []int{row.from, row.to} {
				ends++
				for i, rule := range rules {
					ours := rule.at(curve, length) / 1000
					lands := "does not round to the printed value"
					if roundTo(ours, printed[end]) == printed[end] {
						lands = "rounds to the printed value"
						fits[i]++
					}
					rows.add(Modelled, fmt.Sprintf("%s/%s-at-%d/%s", row.name, proc, length, rule.name), printed[end],
						ours, "us; %s; %s", rule.note, lands)
				}
			}
		}
	}
	for i, rule := range rules {
		rows.noted(Modelled, "all/"+rule.name, ends, fits[i], "all", rule.note)
	}
	return nil
}

// roundTo rounds x to the digits that a printed estimate has: hundreds below 2000, thousands below 50000, then tens
// of thousands.
func roundTo(x, printed float64) float64 {
	unit := 1000.0
	switch {
	case printed < 2000:
		unit = 100
	case printed >= 50000:
		unit = 10000
	}
	return math.Round(x/unit) * unit
}

// heteroBoundaries are the lengths at which decisions change.
func heteroBoundaries(ctx context.Context, rows *sheet) error {
	base, err := table3Base()
	if err != nil {
		return err
	}
	table := table3()
	grid, _, err := smallestGrid(ctx, table, base)
	if err != nil {
		return err
	}
	shapes := map[string]*shape{}
	for i := range table {
		shapes[table[i].shape.name] = table[i].shape
	}
	attn, down := shapes["attn_proj"], shapes["ffn_down"]
	// three readings of what the paper leaves open: grid of ratios, and NPU-pipe as a choice
	coarse := *base
	coarse.shares = grid
	withPipe := coarse
	withPipe.pipe = true
	fine := *base
	for _, sh := range []*shape{attn, down} {
		for _, variant := range []struct {
			name string
			a    *assumptions
			note string
		}{
			{"smallest-grid", &coarse, "ratios from the smallest grid"},
			{"smallest-grid-pipe", &withPipe, "ratios from the smallest grid, NPU-pipe as well"},
			{"stage-grid", &fine, "ratios from every stage"},
		} {
			list, err := sh.spans(ctx, 1, 512, false, variant.a, sameStrategy)
			if err != nil {
				return err
			}
			for _, span := range list {
				ours := span.strategy
				if ours == "no partition" {
					ours = span.ratio
				}
				lengths := fmt.Sprintf("%d-%d", span.from, span.to)
				if span.from == span.to {
					lengths = fmt.Sprint(span.from)
				}
				rows.noted(Modelled, sh.name+"/"+variant.name+"/"+lengths, nil, ours, "boundaries",
					joinInts(variant.a.standard), variant.note)
			}
		}
	}
	// the GPU's line through its first two lengths, and where it meets the NPU's next stage
	first, second := attn.gpu[0], attn.gpu[1]
	rows.noted(Modelled, "attn_proj/gpu-slope-us", nil,
		float64(second.ns-first.ns)/float64(second.tokens-first.tokens)/1000, "attn_proj/gpu_slope_us", first.tokens,
		second.tokens)
	rows.noted(Modelled, "attn_proj/gpu-us-at-16", nil, float64(attn.gpuNS(16))/1000, "attn_proj/gpu_us_at_16")
	rows.noted(Modelled, "attn_proj/crossing-remainder", nil, float64(first.tokens)+
		float64(attn.npuNS(256)-first.ns)/(float64(second.ns-first.ns)/float64(second.tokens-first.tokens)),
		"attn_proj/crossing_remainder")
	last := 0
	for length := 257; length < 384; length++ {
		// how long 256 tokens on the NPU beside the remainder on the GPU stay the choice
		decision, err := attn.decide(ctx, length, true, &coarse)
		if err != nil {
			return err
		}
		if decision.strategy != "activation-centric" {
			break
		}
		last = length
	}
	printed := 0.0
	for i := range table {
		if table[i].printed.strategy == "activation-centric" {
			printed = float64(table[i].to)
		}
	}
	rows.noted(Modelled, "attn_proj/activation-centric-until", printed, last, "attn_proj/activation_centric_until")
	last = 1
	for last < 127 && attn.gpuNS(last+1) < attn.npuNS(128)+base.syncNS {
		last++
	}
	rows.noted(Modelled, "attn_proj/gpu-only-beats-padding-until", nil, last, "attn_proj/gpu_only_beats_padding_until")
	decision, err := attn.decide(ctx, 193, true, &coarse)
	if err != nil {
		return err
	}
	rows.add(Modelled, "attn_proj/padding-us-at-193", nil, float64(decision.ns)/1000,
		"what the decision at 193 tokens costs: %s", decision.strategy)
	rows.add(Modelled, "attn_proj/activation-us-at-193", nil, float64(max(attn.npuNS(128), attn.gpuNS(65)))/1000,
		"128 tokens on the NPU beside 65 on the GPU")
	// the example of 300 tokens in sec. 4.2.2
	ex := hetero("m_activation_split_example").at("values")
	named := coarse
	named.standard = standardSets()[0].lengths
	if decision, err = attn.decide(ctx, int(ex.at("sequence").num()), true, &named); err != nil {
		return err
	}
	ours := decision.strategy + " " + decision.ratio
	var piece int
	if n, _ := fmt.Sscanf(decision.ratio, "dynamic:%d", &piece); n == 1 {
		ours = fmt.Sprintf("%d on the NPU, %d on the GPU", piece, int(ex.at("sequence").num())-piece)
	}
	rows.add(Modelled, "attn_proj/300-tokens",
		fmt.Sprintf("%v on the NPU, %v on the GPU", ex.at("npu_piece").num(), ex.at("gpu_piece").num()), ours,
		"sec. 4.2.2, graphs of %s tokens", joinInts(named.standard))
	if decision, err = down.decide(ctx, int(ex.at("sequence").num()), true, &named); err != nil {
		return err
	}
	rows.add(Modelled, "ffn_down/300-tokens", nil, decision.strategy+" "+decision.ratio,
		"the same for the other weight")
	return nil
}

// heteroAchieved are rates of Table 3's measured rows.
func heteroAchieved(rows *sheet) error {
	gpuMost, npuMost := hetero("hw_sd8g3_gpu_flops").at("values", "achieved_approx").num(),
		hetero("hw_sd8g3_npu_flops").at("values", "achieved_fp16_up_to").num()
	for _, row := range measuredRows() {
		if row.m == 1 {
			continue
		}
		rows.noted(Exact, row.name+"/gpu-tflops", gpuMost, row.gpuOps, "gpu_tflops")
		rows.noted(Exact, row.name+"/npu-tflops", npuMost, row.ops, "npu_tflops")
	}
	var down printedRow
	for _, row := range measuredRows() {
		if row.name == "ffn_down-256" {
			down = row
		}
	}
	r := hetero("m_ffn_down_npu_vs_gpu").at("values")
	rows.add(Exact, "ffn_down-256/npu-over-gpu", r.at("max").num(), down.gpuUS/down.npu,
		"sec. 4.2.1 prints %v to %v, sec. 4.4 about 3:2", r.at("min").num(), r.at("max").num())
	gpu := hetero("table2").at("values", 0)
	rows.noted(Exact, "npu-fp16-is-half-of-int8", gpu.at(6).num(), gpu.at(5).num()/2, "npu_fp16_is_half_of_int8",
		npuMost)
	// The staircase of NPU-1 on the printed points.
	for _, sh := range []string{"attn_proj", "ffn_down"} {
		var weight *shape
		for _, row := range table3() {
			if row.shape.name == sh {
				weight = row.shape
			}
		}
		flat, rising := true, true
		steps := 1
		for length := 3; length <= 512; length++ {
			same := (length-1)/weight.stage == (length-2)/weight.stage
			flat = flat && (!same || weight.npuNS(length) == weight.npuNS(length-1))
			rising = rising && weight.npuNS(length) >= weight.npuNS(length-1)
			if weight.npuNS(length) != weight.npuNS(length-1) {
				steps++
			}
		}
		rows.noted(Modelled, sh+"/staircase-steps-to-512", 512/float64(stageRows()), steps, "staircase_steps_to_512",
			stageRows(), flat, rising)
	}
	return nil
}

// heteroBandwidth is about decode, which reads every weight once per token.
func heteroBandwidth(rows *sheet) error {
	single := hetero("hw_mem_bw_single_processor_decode").at("values", "each_of_cpu_gpu_npu").nums()
	for _, row := range measuredRows() {
		if row.m != 1 {
			continue
		}
		// 4-bit weights, read once per token
		bytes := float64(row.n) * float64(row.k) / 2
		for _, time := range []struct {
			proc string
			us   float64
		}{{"gpu", row.gpuUS}, {"npu", row.npu}} {
			rows.noted(Modelled, fmt.Sprintf("%s/%s-gbps", row.name, time.proc),
				fmt.Sprintf("%v..%v alone", single[0], single[1]), bytes/time.us/1000,
				"gbps", single[0], single[1])
		}
	}
	measured := hetero("hw_mem_bw_measured_decode_eval").at("values")
	peak := hetero("hw_mem_bw_peak").at("values")
	rows.add(Exact, "fraction-of-achievable", measured.at("fraction_of_max_available").num(),
		measured.at("gpu_plus_npu").num()/peak.at("max_achievable").num(), "sec. 5.4: %v of %v GB/s",
		measured.at("gpu_plus_npu").num(), peak.at("max_achievable").num())
	rows.add(Exact, "achievable-of-theoretical", nil, peak.at("max_achievable").num()/peak.at("theoretical").num(),
		"sec. 3.3")
	// decode is bound by bandwidth: its gain bounds the speedup
	gain := measured.at("gpu_plus_npu").num() / measured.at("gpu_only").num()
	rows.add(Exact, "gain-of-both", nil, gain, "GPU and NPU over GPU alone, sec. 5.4")
	rows.noted(Modelled, "gain-against-speedup", 1+
		hetero("r_decode_tensor_over_layer").at("values", "Llama-8B").num()/100, gain, "gain_against_speedup")
	aggregate := hetero("hw_mem_bw_gpu_npu_concurrent").at("values")
	split := aggregate.at("workload_split_percent").nums()
	if g, n, ok := cutRatio(hetero("table3").at("values", 1, "ratio").text()); ok {
		rows.noted(Exact, "gpu-share-of-row-2", split[0]/100, g/(g+n), "gpu_share_of_row_2", split[0], split[1])
	}
	speeds, most := hetero("r_decode_speed").at("values"), measured.at("gpu_plus_npu").num()
	for _, name := range []struct{ printed, catalog string }{{"Llama-8B", "llama-3-8b"}, {"Llama-3B", "llama-3.2-3b"},
		{"InternLM-1.8B", "internlm2-1.8b"}} {
		model, err := models.Open(name.catalog)
		if err != nil {
			return err
		}
		// tokens a second times bytes of weights is a bandwidth, which the measured one bounds
		n := float64(model.Parameters())
		rows.noted(Modelled, "decode-"+name.printed+"/gbps", fmt.Sprintf("at most %v", most),
			speeds.at(name.printed).num()*n/2/1e9,
			"decode/gbps", name.catalog, n, most)
		if err := model.Close(); err != nil {
			return err
		}
	}
	return nil
}

// mappedLayer is the matrix products of Llama-3-8B with latencies from Table 3.
type mappedLayer struct {
	ctx          context.Context
	layers       int64
	products     []*shape // QKV, O, gate-up, down
	gateUpDecode *shape   // which is printed for one token
	base, coarse assumptions
	note         string
}

// heteroLayer predicts a layer of Llama-3-8B from Table 3 with layer-level mapping (sec. 4.1) and with tensor-level
// division. Products whose latencies are not printed are scaled from the nearest one by work.
func heteroLayer(ctx context.Context, rows *sheet) error {
	l, err := newMappedLayer(ctx)
	if err != nil {
		return err
	}
	for _, fill := range []func(*sheet) error{l.decode, l.prefill, l.long} {
		if err := fill(rows); err != nil {
			return err
		}
	}
	return nil
}

// newMappedLayer takes latencies from Table 3, and ratios from the smallest grid that has the printed ones.
func newMappedLayer(ctx context.Context) (*mappedLayer, error) {
	model, err := models.Open("llama-3-8b")
	if err != nil {
		return nil, err
	}
	defer model.Close()
	base, err := table3Base()
	if err != nil {
		return nil, err
	}
	printed := table3()
	grid, _, err := smallestGrid(ctx, printed, base)
	if err != nil {
		return nil, err
	}
	shapes := map[string]*shape{}
	for i := range printed {
		shapes[printed[i].shape.name] = printed[i].shape
	}
	// What the table has no row for is scaled from the row of attn_proj by the number of weight
	// rows.
	attn := shapes["attn_proj"]
	l := &mappedLayer{
		ctx: ctx, layers: int64(model.Layers), base: *base, coarse: *base, gateUpDecode: shapes["gate_up"],
		products: []*shape{
			attn.scaled("qkv", (model.Heads+2*model.KVHeads)*model.HeadDim), attn,
			attn.scaled("gate_up", 2*model.FFN), shapes["ffn_down"],
		},
		note: fmt.Sprintf("matrix products of %d layers of catalog model %s alone; QKV (and gate-up beyond decode) "+
			"from the [4096,4096] row by work; other assumptions as for table3, smallest grid", model.Layers,
			model.Name),
	}
	l.coarse.shares = grid
	return l, nil
}

// scaled is a weight with other rows and the same reduction, by work.
func (s *shape) scaled(name string, rows int) *shape {
	out := &shape{name: name, rows: rows, k: s.k, stage: s.stage, lookup: map[string][]int64{}}
	for i := range s.gpu {
		out.gpu = append(out.gpu, point{s.gpu[i].tokens, s.gpu[i].ns * int64(rows) / int64(s.rows)})
		out.npu = append(out.npu, point{s.npu[i].tokens, s.npu[i].ns * int64(rows) / int64(s.rows)})
	}
	return out
}

// total is the time of all layers for so many tokens, by the time of each product.
func (l *mappedLayer) total(tokens int, time func(*shape) (int64, error)) (int64, error) {
	var sum int64
	for i, product := range l.products {
		if i == 2 && tokens == 1 {
			product = l.gateUpDecode
		}
		ns, err := time(product)
		if err != nil {
			return 0, err
		}
		sum += ns
	}
	return sum * l.layers, nil
}

// tensor is the time with products divided as the solver decides.
func (l *mappedLayer) tensor(tokens int, assumed *assumptions) (int64, error) {
	return l.total(tokens, func(product *shape) (int64, error) {
		decision, err := product.decide(l.ctx, tokens, true, assumed)
		return decision.ns, err
	})
}

// alone is the time with whole products.
func (l *mappedLayer) alone(tokens int, time func(*shape) int64) (int64, error) {
	return l.total(tokens, func(product *shape) (int64, error) { return time(product), nil })
}

// decode compares a token: layer-level mapping decodes on the GPU (sec. 4.1).
func (l *mappedLayer) decode(rows *sheet) error {
	gpu, err := l.alone(1, func(sh *shape) int64 { return sh.gpuNS(1) })
	if err != nil {
		return err
	}
	both, err := l.tensor(1, &l.coarse)
	if err != nil {
		return err
	}
	rows.noted(Modelled, "decode/tensor-over-layer-percent",
		hetero("r_decode_tensor_over_layer").at("values", "Llama-8B").num(), 100*(float64(gpu)/float64(both)-1),
		"decode/tensor_over_layer_percent", l.note)
	fine := l.base
	if both, err = l.tensor(1, &fine); err != nil {
		return err
	}
	rows.add(Modelled, "decode/tensor-over-layer-percent-stage-grid",
		hetero("r_decode_tensor_over_layer").at("values", "Llama-8B").num(), 100*(float64(gpu)/float64(both)-1),
		"the same with ratios from every stage")
	if both, err = l.tensor(1, &l.coarse); err != nil {
		return err
	}
	rows.noted(Modelled, "decode/tokens-per-s", hetero("r_decode_speed").at("values", "Llama-8B").num(),
		1e9/float64(both), "decode/tokens_per_s", l.note, 1000/hetero("r_decode_speed").at("values", "Llama-8B").num(),
		float64(both)/1e6)
	return nil
}

// prefill compares 256 tokens: layer-level mapping has all products on the NPU (sec. 4.1).
func (l *mappedLayer) prefill(rows *sheet) error {
	const m = 256
	npu, err := l.alone(m, func(sh *shape) int64 { return sh.npuNS(m) + l.base.syncNS })
	if err != nil {
		return err
	}
	both, err := l.tensor(m, &l.coarse)
	if err != nil {
		return err
	}
	avg := hetero("r_prefill_tensor_over_layer").at("values", "average").num()
	rows.noted(Modelled, "prefill-256/tensor-over-layer-percent", avg, 100*(float64(npu)/float64(both)-1),
		"prefill_256/tensor_over_layer_percent", l.note)
	with := hetero("r_fast_sync_prefill_256").at("values")
	rows.add(Modelled, "prefill-256/tokens-per-s", with.at("with").num(), m*1e9/float64(both), "%s, sec. 5.5", l.note)
	slow := l.coarse
	slow.syncNS = us(hetero("hw_sync_clfinish").at("values", "clFinish_fixed").num())
	waits, err := l.tensor(m, &slow)
	if err != nil {
		return err
	}
	rows.noted(Modelled, "prefill-256/tokens-per-s-clfinish", with.at("without").num(), m*1e9/float64(waits),
		"prefill_256/tokens_per_s_clfinish", l.note, float64(slow.syncNS)/1000)
	rows.add(Modelled, "prefill-256/npu-over-gpu-only", nil, func() float64 {
		g, _ := l.alone(m, func(sh *shape) int64 { return sh.gpuNS(m) })
		return float64(g) / float64(npu)
	}(), "layer-level mapping over the GPU alone, %s", l.note)
	return nil
}

// long compares 525 tokens (sec. 5.3.2), for which nothing is printed for Table 3's weights.
func (l *mappedLayer) long(rows *sheet) error {
	const long = 525
	longer := l.coarse
	longer.standard = []int{128, 256, 512, 1024}
	both, err := l.tensor(long, &longer)
	if err != nil {
		return err
	}
	padded, err := l.alone(long, func(sh *shape) int64 { return sh.npuNS(1024) + l.base.syncNS })
	if err != nil {
		return err
	}
	piped, err := l.alone(long, func(sh *shape) int64 { return sh.npuNS(512) + sh.npuNS(128) + 2*l.base.syncNS })
	if err != nil {
		return err
	}
	dyn := hetero("r_dynamic_525").at("values")
	far := l.note + "; graphs of 128, 256, 512, 1024 tokens; beyond 256 tokens latencies are extrapolated"
	rows.add(Modelled, "prefill-525/over-padding", dyn.at("Padding").num(), float64(padded)/float64(both),
		"%s; padded to 1024, sec. 5.3.2", far)
	rows.add(Modelled, "prefill-525/over-npu-pipe", dyn.at("NPU-pipe").num(), float64(piped)/float64(both),
		"%s; 512 then 128 on the NPU, sec. 5.3.2", far)
	rows.noted(NotReproducible, "prefill-525/over-online-prepare", dyn.at("Online-prepare").num(), nil,
		"prefill_525/over_online_prepare",
		hetero("r_online_prepare").at("values", "length_135", "prepare").num(),
		hetero("r_online_prepare").at("values", "length_1000", "prepare").num())
	return nil
}

// heteroGains is arithmetic on printed results.
func heteroGains(rows *sheet) error {
	// one time and its share give the whole
	o := hetero("r_online_prepare").at("values", "length_135")
	rows.noted(Exact, "online-prepare-135/total-ms", nil, o.at("prepare").num()/(o.at("share_percent").num()/100),
		"online_prepare_135/total_ms", o.at("prepare").num(), o.at("share_percent").num())
	f := hetero("r_fast_sync_prefill_256").at("values")
	rows.noted(Exact, "fast-sync-256/gain", 1+hetero("r_fast_sync_prefill").at("values", "Hetero-tensor").num()/100,
		f.at("with").num()/f.at("without").num(), "fast_sync_256/gain")
	// steps of the ablation multiply to the whole gain
	a := hetero("r_ablation").at("values")
	product := a.at("activation_centric").num() * a.at("order_exchange").num() * a.at("weight_centric").num() *
		a.at("fast_sync").num()
	slower := a.at("naive_npu_vs_gpu", "slower_percent").num()
	rows.noted(Exact, "ablation/product", nil, product, "ablation/product")
	rows.noted(Modelled, "ablation/over-gpu", nil, (1-slower/100)*product, "ablation/over_gpu",
		slower, 1-slower/100, hetero("r_prefill_fixed_llama8b_256").at("values", "MNN-OpenCL").num())
	n := hetero("r_prefill_vs_llmnpu").at("values")
	rows.noted(Exact, "over-llmnpu", nil,
		n.at("hetero_tensor_InternLM-1.8B_256").num()/n.at("llm.npu_similar_size").num(), "over_llmnpu")
	pipe := hetero("r_over_npu_pipe").at("values").nums()
	rows.noted(Exact, "over-npu-pipe-525/reduction-percent", pipe[1],
		100*(1-1/hetero("r_dynamic_525").at("values", "NPU-pipe").num()), "over_npu_pipe_525/reduction_percent",
		hetero("r_dynamic_525").at("values", "NPU-pipe").num(), pipe[0], pipe[1])
	rows.noted(Exact, "over-padding-at-most", hetero("r_intro_unaligned").at("values").num(),
		hetero("r_dynamic_525").at("values", "Padding").num(), "over_padding_at_most")
	p := hetero("r_prefill_speed").at("values")
	rows.add(Exact, "prefill-speed-threshold",
		strings.TrimSpace(fmt.Sprintf("above %v tokens/s",
			hetero("r_intro_thresholds").at("values", "prefill_above").num())), p.at("InternLM-1.8B").num(),
		"sec. 1 against sec. 5.3.1, InternLM-1.8B")
	return nil
}
