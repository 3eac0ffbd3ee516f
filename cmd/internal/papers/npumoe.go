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
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/problem"
)

// npumoe are the items of that paper.
var npumoe = []Item{
	sheetItem("npumoe", "capacity", "rows that an expert needs", "sec. 4.1", moeCapacity, "dc_capacity_formula",
		"dc_shape_alignment"),
	sheetItem("npumoe", "tiers", "the smallest tier that covers the expected load", "sec. 4.1, 5.6, 5.8", moeTiers,
		"dc_tier_assignment", "dc_padding_fraction", "dc_drop_rate"),
	sheetItem("npumoe", "groups", "experts of one graph and the limit of 1.2 GB", "sec. 4.2, 4.3, 5.1", moeGroups,
		"dc_graph_limit_group_size", "dc_group_homogeneity"),
	sheetItem("npumoe", "table5", "latency by group size and capacity", "Table 5, sec. 5.7", moeTable5,
		"dc_group_latency_table", "dc_launch_model"),
	solvedItem("npumoe", "optimum", "the paper's tiers beside the solver's", "sec. 3.2, 4.1, 4.3", moeOptimum,
		"dc_tier_assignment", "dc_hot_residency"),
	sheetItem("npumoe", "residency", "which groups belong on the NPU", "sec. 2, 4.3", moeResidency, "dc_hot_residency",
		"dc_matmul_window"),
	sheetItem("npumoe", "overflow", "what is dropped, and gathering and scattering", "sec. 3.2, 4.2", moeOverflow,
		"dc_overflow_saliency", "dc_gather_scatter_roundtrip"),
	sheetItem("npumoe", "memory", "bytes of experts and models", "sec. 5.1", moeMemory, "dc_expert_memory",
		"dc_bytes_per_param"),
	sheetItem("npumoe", "calibration", "overlap of profiled and routed experts", "sec. 5.8, Fig. 18", moeCalibration,
		"dc_calibration_overlap"),
	sheetItem("npumoe", "appendix", "ratios of the appendix's tables", "appendix A.2, A.3", moeAppendix, "dc_a2_ratios",
		"dc_a3_ratios"),
	sheetItem("npumoe", "ranges", "ranges of the abstract against the details", "abstract, sec. 5.3 to 5.8", moeRanges,
		"dc_headline_ranges"),
}

// moe is an entry of the paper's data.
func moe(id string) value { return fact("npumoe", id) }

// moeModels are the paper's models in the catalog, in its order.
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

// expertBytes are the bytes of one expert of one layer in 16 bit: gate, up and down.
func expertBytes(m *models.Model) float64 { return 2 * 3 * float64(m.Hidden) * float64(m.ExpertFFN) }

// ladder are the capacities of a tier set, as multiples of the base, aligned.
func ladder(base float64) []int {
	var out []int
	for _, f := range []float64{0.5, 1, 2, 4} {
		out = append(out, alignedUp(f*base))
	}
	return slices.Compact(out)
}

// moeCapacity recomputes the base capacities by the reconstructed formula, and the tiers made of them.
func moeCapacity(rows *sheet) error {
	list, err := moeModels()
	if err != nil {
		return err
	}
	aligned, all := 0, 0
	for _, model := range list {
		for _, chunk := range moe("wl_chunk_sizes").at("values").nums() {
			// capacity is the mean load of an expert; tiers are powers of two around it
			base := problem.BaseCapacity(int(chunk), model.ExpertsPerToken, model.Experts)
			class := Modelled // numbers of experts from the catalog
			if model.Name == "phi-3.5-moe" {
				class = Exact // which are printed
			}
			rows.noted(class, fmt.Sprintf("%s/chunk_%v/base", model.Name, chunk), nil, base, "chunk/base", chunk,
				model.ExpertsPerToken, model.Experts)
			for _, c := range ladder(base) {
				all++
				if c%16 == 0 {
					aligned++
				}
			}
		}
	}
	var printed []string
	for _, c := range moe("m_group_capacities").at("values").list() {
		printed = append(printed, fmt.Sprint(c.any()))
	}
	rows.noted(Modelled, "tier_set", strings.Join(printed, " ")+", also 96 and 128",
		strings.Trim(fmt.Sprint(ladder(32)), "[]"), "tier_set")
	equal := 0
	// the busiest expert's load is the mean times the imbalance, on random routings
	const layers = 200
	for i := range layers {
		routing := newRouting(rand.New(rand.NewPCG(41, uint64(i))), 16, 2, float64(i%4)/2, 2)
		loads := loadsOf(16, routing.chunk(256))
		if math.Abs(problem.MaxCapacity(problem.ImbalanceRatio(loads), mean(loads))-slices.Max(loads)) < 1e-9 &&
			math.Abs(mean(loads)-problem.BaseCapacity(256, 2, 16)) < 1e-9 {
			equal++
		}
	}
	rows.noted(Exact, "c_max_percent", "the busiest expert", 100*float64(equal)/layers, "c_max_percent")
	rows.noted(Exact, "balanced", nil, problem.ImbalanceRatio([]float64{32, 32, 32, 32}), "balanced")
	rows.noted(NotReproducible, "example", "if T, I and E, then C tokens", nil, "example")
	rows.noted(Exact, "aligned_percent", "multiples of 16", 100*float64(aligned)/float64(all), "aligned_percent")
	return nil
}

// covering is the smallest capacity at or above a load, the last one where none is.
func covering(capacities []int, load float64) int {
	return capacities[problem.SmallestTier(load, capacities)]
}

// moeTiers gives every expert the smallest tier that covers its expected load, and measures padding and overflow
// on traced and drawn routing.
func moeTiers(rows *sheet) error {
	base := problem.BaseCapacity(256, 2, 16)
	capacities := ladder(base)
	rows.noted(Exact, "rule", nil,
		fmt.Sprintf("0.5 to %d, %v to %d, %v to %d, %v to %d", covering(capacities, 0.5), base,
			covering(capacities, base), base+1, covering(capacities, base+1), 3*base, covering(capacities, 3*base)),
		"rule", capacities)
	rows.noted(Exact, "top_quartile_4x_needs_percent", nil, 100*0.25*2, "top_quartile_4x_needs_percent")
	// printed ranges of padding and drops
	padding, drop := moe("r_accuracy_details").at("values", "padding_of_tokens").nums(),
		moe("r_accuracy_details").at("values", "token_drop").nums()
	// Capacities from the first half of the chunks, padding and drops from the other.
	const tokens = 256
	show := func(name, given string, layers [][][]float64) {
		var tiered, uniform reserve
		ratio := 0.0
		for _, chunks := range layers {
			expected := meanLoads(chunks[:len(chunks)/2])
			ratio += problem.ImbalanceRatio(expected) / float64(len(layers))
			tiers, flat := make([]int, len(expected)), make([]int, len(expected))
			for e, load := range expected {
				tiers[e], flat[e] = covering(capacities, load), alignedUp(base)
			}
			for _, loads := range chunks[len(chunks)/2:] {
				tiered.add(tiers, loads)
				uniform.add(flat, loads)
			}
		}
		rows.noted(Modelled, name+"/padding_percent", fmt.Sprintf("%v to %v", padding[0], padding[1]),
			100*tiered.padding(), "padding_percent", given, tokens, ratio, capacities)
		rows.add(Modelled, name+"/drop_percent", fmt.Sprintf("%v to %v", drop[0], drop[1]), 100*tiered.overflow(),
			"of routed rows, the same routing")
		rows.noted(Modelled, name+"/uniform_drop_percent", nil, 100*uniform.overflow(), "uniform_drop_percent",
			100*uniform.padding())
	}
	traced := tracedLoads(tokens)
	show("traced", "traced routing of a small trained model of PhiMoE's 16 experts and 2 a token", traced)
	for _, skew := range []float64{0, 0.5, 1, 1.5} {
		show(fmt.Sprintf("skew_%v", skew),
			fmt.Sprintf("synthetic routing of PhiMoE's shape, popularity by rank^-%v, halved or doubled from chunk "+
				"to chunk", skew), drawnLoads(42, 8, 128, tokens, 16, 2, skew))
	}
	p := moe("r_padding_impact").at("values")
	share := p.at("zero_padded_tokens_average").num() / 100
	for i, name := range []string{"least", "most"} {
		runtime := p.at("runtime_increase_percent").nums()[i]
		rows.noted(Modelled, "padding_cost/"+name+"_percent", runtime, 100*(1/(1-share)-1), "padding_cost/percent",
			100*(1-1/(1+runtime/100))/share)
	}
	rows.noted(NotReproducible, "traces", "real routing", nil, "traces")
	return nil
}

// moeGroups checks which groups of experts fit into a graph of 1.2 GB, in each reading of the units, and that
// groups are homogeneous.
func moeGroups(rows *sheet) error {
	limit := moe("hw_graph_size_limit").at("values", "fallback_above").num()
	var each float64
	for _, m := range moe("models_table1").at("values").list() {
		if m.has("expert_mb") {
			each = m.at("expert_mb").num()
		}
	}
	list, err := moeModels()
	if err != nil {
		return err
	}
	const mib, gib = 1 << 20, 1 << 30
	phi := expertBytes(list[0])
	rows.noted(Modelled, "expert_mb", each, phi/mib, "expert_mb", list[0].Hidden, list[0].ExpertFFN, phi)
	fits := func(n, expert, limit float64) string {
		switch {
		case n*expert < limit:
			return "fits"
		case n*expert == limit:
			return "on the limit"
		}
		return "too large"
	}
	for _, size := range moe("m_group_sizes").at("values").nums() {
		paper := "fits"
		if size == 16 {
			paper = "too large"
		}
		rows.noted(Exact, fmt.Sprintf("%v_experts/mb_gb", size), paper, fits(size, each*1e6, limit*1e9),
			"experts/mb_gb", size*each/1000, limit)
		rows.noted(Modelled, fmt.Sprintf("%v_experts/mib_gb", size), paper, fits(size, phi, limit*1e9),
			"experts/mib_gb", size*phi/1e9, limit)
		rows.noted(Modelled, fmt.Sprintf("%v_experts/mib_gib", size), paper, fits(size, phi, limit*gib),
			"experts/mib_gib", size*phi/gib, limit)
	}
	for _, model := range list {
		rows.noted(Modelled, model.Name+"/most_experts", nil, math.Floor(limit*1e9/expertBytes(model)), "most_experts",
			expertBytes(model)/1e6, model.Experts)
	}
	// Groups on synthetic layers are of one tier and one kind, hot or cold, and no larger than a graph.
	groups, mixed, over := 0, 0, 0
	const layers = 200
	for layer := range layers {
		routing := newRouting(rand.New(rand.NewPCG(43, uint64(layer))), 16, 2, 1, 2)
		loads := loadsOf(16, routing.chunk(256))
		tiers, hot := make([]int, 16), make([]bool, 16)
		for e, n := range loads {
			tiers[e], hot[e] = problem.SmallestTier(n, ladder(32)), n >= 16
		}
		most := problem.MostExperts(int64(math.Round(limit*1e9)), int64(each*1e6))
		for _, group := range groupExperts(loads, tiers, hot, most) {
			groups++
			if len(group.Experts) > most {
				over++
			}
			for _, e := range group.Experts {
				if tiers[e] != group.Tier || hot[e] != hot[group.Experts[0]] {
					mixed++
				}
			}
		}
	}
	rows.noted(Exact, "mixed", "none", mixed, "mixed", groups, layers)
	rows.add(Exact, "over_limit", nil, over, "of the same groups")
	return nil
}

// moePoints are Table 5's points: group size, capacity, ms a token.
func moePoints() (points [][3]float64) {
	factor := moe("r_capacity_group8").at("values", "8x96").num()
	var reference float64
	for _, p := range moe("table5").at("values").list() {
		group, capacity := p.at(0).num(), p.at(1).num()
		ms, ok := p.at(2).any().(float64)
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

// moeTable5 recomputes Table 5's ratios, and fits three models of what a launch costs, each judged at the points
// it was not fitted to.
func moeTable5(rows *sheet) error {
	points := moePoints()
	// ms a token with g experts a launch of capacity c; NaN where the paper prints none
	at := func(g, c float64) float64 {
		for _, p := range points {
			if p[0] == g && p[1] == c {
				return p[2]
			}
		}
		return math.NaN()
	}
	ratio := func(name string, printed float64, g1, c1, g2, c2 float64) {
		rows.add(Exact, "ratio/"+name, printed, at(g1, c1)/at(g2, c2), "x, %v over %v ms a token", at(g1, c1),
			at(g2, c2))
	}
	ratio("1x32_1x128", moe("r_capacity_no_group").at("values", "factor").num(), 1, 32, 1, 128)
	r32, r64 := moe("r_group_cap32").at("values"), moe("r_group_cap64").at("values")
	ratio("1x32_4x32", r32.at("4x32", "factor").num(), 1, 32, 4, 32)
	ratio("1x32_8x32", r32.at("8x32", "factor").num(), 1, 32, 8, 32)
	ratio("1x64_4x64", r64.at("4x64", "factor").num(), 1, 64, 4, 64)
	ratio("1x64_8x64", r64.at("8x64", "factor").num(), 1, 64, 8, 64)
	ratio("8x32_8x64", moe("r_capacity_group8").at("values", "8x64").num(), 8, 32, 8, 64)
	rows.noted(Exact, "implied_8x96_ms", nil, at(8, 96), "implied_8x96_ms")
	// larger groups and larger capacities should take less
	wrong := 0
	for _, a := range points {
		for _, b := range points {
			if (a[1] == b[1] && a[0] < b[0] || a[0] == b[0] && a[1] < b[1]) && a[2] <= b[2] {
				wrong++
			}
		}
	}
	rows.noted(Exact, "order_exceptions", "larger takes less", wrong, "order_exceptions")
	best := slices.MinFunc(points, func(a, b [3]float64) int {
		switch {
		case a[2] < b[2]:
			return -1
		case a[2] > b[2]:
			return 1
		}
		return 0
	})
	rows.noted(Exact, "least", nil, fmt.Sprintf("%vx%v", best[0], best[1]), "least", best[2])
	// Two readings of what a token in the denominator is, each fitted to all but one point and asked for that one.
	for _, model := range []struct {
		name, note string
		terms      func(g, c float64) []float64
	}{
		{"per_row", "ms a token = L/(g C) + a/C + b: time of a launch over the rows that it computes, L a launch " +
			"and a an expert", func(g, c float64) []float64 { return []float64{1 / (g * c), 1 / c, 1} }},
		{"per_chunk", "ms a token = L/g + a/C + b: launches of a chunk are experts over g, whatever the capacity; L " +
			"is their time for g = 1 over the chunk's tokens",
			func(g, c float64) []float64 { return []float64{1 / g, 1 / c, 1} }},
		{"launches_only", "ms a token = L/(g C) + b: launches explain all",
			func(g, c float64) []float64 { return []float64{1 / (g * c), 1} }},
	} {
		// least squares over all points but one
		fit := func(skip int) []float64 {
			var terms [][]float64
			var times []float64
			for i, p := range points {
				if i != skip {
					terms, times = append(terms, model.terms(p[0], p[1])), append(times, p[2])
				}
			}
			weights, ok := leastSquares(terms, times)
			if !ok {
				return nil
			}
			return weights
		}
		predict := func(w []float64, p [3]float64) float64 {
			total := 0.0
			for i, x := range model.terms(p[0], p[1]) {
				total += float64(w[i] * x)
			}
			return total
		}
		var errors []float64
		worst, where := 0.0, ""
		for i, point := range points {
			weights := fit(i)
			if weights == nil {
				return fmt.Errorf("launch model %s: no fit without %vx%v", model.name, point[0], point[1])
			}
			e := 100 * math.Abs(predict(weights, point)/point[2]-1)
			errors = append(errors, e)
			if e > worst {
				worst, where = e, fmt.Sprintf("%vx%v", point[0], point[1])
			}
		}
		rows.noted(Modelled, "launch/"+model.name+"/held_out_mean_percent", nil, mean(errors),
			"launch/held_out_mean_percent", model.note, len(points))
		rows.add(Modelled, "launch/"+model.name+"/held_out_worst_percent", nil, worst, "at %s", where)
		rows.add(Modelled, "launch/"+model.name+"/L", nil, fit(-1)[0], "ms, fitted to all points")
	}
	for _, c := range []float64{32, 64} {
		rows.noted(Exact, fmt.Sprintf("launch/saved_%v_ms", c), nil, at(1, c)-at(8, c), "launch/saved_ms", c)
	}
	return nil
}

// expertNS is the time of one expert on rows rows on a catalog processor by Eq. 5 of Agent.xpu, its 16-bit weights read
// once, without a launch.
func expertNS(p *socs.Processor, m *models.Model, rows int) float64 {
	rate := p.Sim.Schemes[op.A32W32].PeakGops
	anchors := roofline.Anchors{
		PeakOpsPerNS: rate, PeakBytesPerNS: p.BandwidthGBps, MemoryShare: 1, ComputeShare: 1,
		ComputeIntensity: rate / p.BandwidthGBps,
	}
	return anchors.NS(float64(rows)*expertBytes(m), expertBytes(m)) // 2 operations for each value of 2 bytes and row
}

// moeResidency compares NPU and CPU for groups of experts by load: from which load on the NPU is faster.
func moeResidency(s *sheet) error {
	soc, err := socs.Open("apple-m2-ultra")
	if err != nil {
		return err
	}
	model, err := models.Open("phi-3.5-moe")
	if err != nil {
		return err
	}
	cpu, npu := soc.Processor("cpu"), soc.Processor("npu")
	handover := 0.0
	for _, link := range soc.Links {
		if link.From == "cpu" && link.To == "npu" || link.From == "npu" && link.To == "cpu" {
			handover += 1000 * link.HandoverUS
		}
	}
	// ns, with both hand-overs
	launch := 1000*npu.LaunchUS + handover
	const given = "modelled on catalog SoC apple-m2-ultra, whose rates, launch and hand-over times are assumptions"
	s.noted(NotReproducible, "threshold", "hot or cold", nil, "threshold")
	s.add(Modelled, "launch_us", nil, launch/1000, "a launch and both hand-overs; %s", given)
	for _, group := range moe("m_group_sizes").at("values").nums() {
		// the first load at which a launch of the whole group pays
		load := 1
		for ; load < 1024; load++ {
			if launch+float64(group*expertNS(npu, model, load)) < float64(group*expertNS(cpu, model, load)) {
				break
			}
		}
		s.noted(Modelled, fmt.Sprintf("group_%v/rows", group), nil, load, "group/rows", group, given)
	}
	rows := 1
	for ; rows < 1024 && launch+expertNS(npu, model, rows) >= expertNS(cpu, model, rows); rows++ {
	}
	s.add(Modelled, "group_1/rows", nil, rows, "one expert a launch")
	// The rule on skewed layers: groups on the NPU where that is faster, against all and none of them there.
	var rule, all, none float64
	hot, groups := 0, 0
	for layer := range 32 {
		routing := newRouting(rand.New(rand.NewPCG(44, uint64(layer))), 16, 2, 1, 2)
		loads := loadsOf(16, routing.chunk(512))
		tiers := make([]int, 16)
		for e, n := range loads {
			tiers[e] = problem.SmallestTier(n, ladder(64))
		}
		for _, group := range problem.GroupExperts(loads, tiers, 4) {
			npuTime, cpuTime := launch, 0.0
			for _, e := range group.Experts {
				npuTime += expertNS(npu, model, ladder(64)[group.Tier])
				if loads[e] > 0 {
					cpuTime += expertNS(cpu, model, int(loads[e]))
				}
			}
			all, none, rule = all+npuTime, none+cpuTime, rule+min(npuTime, cpuTime)
			groups++
			if npuTime < cpuTime {
				hot++
			}
		}
	}
	s.noted(Modelled, "rule/on_npu", nil, fmt.Sprintf("%d of %d groups", hot, groups), "rule/on_npu", given)
	s.noted(Modelled, "rule/over_all_on_npu", "faster", all/rule, "rule/over_all_on_npu")
	s.noted(Modelled, "rule/over_all_on_cpu", "faster", none/rule, "rule/over_all_on_cpu")
	// Sec. 2's window: a matrix of the attention's size, and the vocabulary's.
	window := moe("hw_npu_vs_cpu_matmul").at("values")
	for _, load := range []int{16, 64, 256, 1024, 4096, 32048} {
		var times [2]float64
		for i, proc := range []*socs.Processor{cpu, npu} {
			rate := proc.Sim.Schemes[op.A32W32].PeakGops
			anchors := roofline.Anchors{
				PeakOpsPerNS: rate, PeakBytesPerNS: proc.BandwidthGBps, MemoryShare: 1, ComputeShare: 1,
				ComputeIntensity: rate / proc.BandwidthGBps,
			}
			size := 4096.0 * 4096
			times[i] = 1000*proc.LaunchUS + anchors.NS(2*float64(load)*size, 2*(size+2*float64(load)*4096))
		}
		times[1] += handover
		paper, factor := any("npu"), any(fmt.Sprintf("%v to %v", window.at("min").any(), window.at("max").any()))
		if load == 64 || load == 32048 {
			paper, factor = "cpu", nil
		}
		if load == 16 {
			paper, factor = nil, nil
		}
		chosen := "cpu"
		if times[1] < times[0] {
			chosen = "npu"
		}
		note := "M read as the rows of a product with 4096 x 4096; " + given
		if load == 32048 {
			note = "a roofline knows no such limit: what makes the NPU slow there (graph size, tiling) is not printed"
		}
		s.add(Modelled, fmt.Sprintf("matmul_%d/chosen", load), paper, chosen, "%s", note)
		s.add(Modelled, fmt.Sprintf("matmul_%d/cpu_over_npu", load), factor, times[0]/times[1], "%s", note)
	}
	return nil
}

// moeInstance is the tiers problem of PhiMoE on catalog SoC apple-m2-ultra with loads by layer, chunk of so many
// tokens and expert; the ladder's capacities, graphs of 1.2 x 2^30 bytes, so that 8 experts fit as in sec. 5.7.
func moeInstance(tokens int, loads [][][]float64) (*problem.Tiers, error) {
	soc, err := socs.Open("apple-m2-ultra")
	if err != nil {
		return nil, err
	}
	model, err := models.Open("phi-3.5-moe")
	if err != nil {
		return nil, err
	}
	cpu, npu := soc.Processor("cpu"), soc.Processor("npu")
	base := problem.BaseCapacity(tokens, model.ExpertsPerToken, model.Experts)
	limit := moe("hw_graph_size_limit").at("values", "fallback_above").num() * (1 << 30)
	tiers := &problem.Tiers{
		Name: "phi-3.5-moe", Tile: 16, Capacities: ladder(base), ExpertBytes: int64(expertBytes(model)),
		GraphBytes: int64(limit), CPUNS: []int64{0},
	}
	// times: a group of 1 and more experts per capacity on the NPU, an expert of 0 and more rows on
	// the CPU
	tiers.MaxTiers = len(tiers.Capacities)
	for _, link := range soc.Links {
		if link.From == "cpu" && link.To == "npu" || link.From == "npu" && link.To == "cpu" {
			tiers.LayerNS += int64(1000 * link.HandoverUS)
		}
	}
	for _, rows := range tiers.Capacities {
		var groups []int64
		for g := int64(1); g <= tiers.GraphBytes/tiers.ExpertBytes; g++ {
			groups = append(groups, int64(1000*npu.LaunchUS)+g*int64(expertNS(npu, model, rows)))
		}
		tiers.GroupNS = append(tiers.GroupNS, groups)
	}
	for n := 1; n <= tokens; n++ {
		tiers.CPUNS = append(tiers.CPUNS, int64(expertNS(cpu, model, n)))
	}
	for l, chunks := range loads {
		layer := problem.TierLayer{Name: fmt.Sprintf("layers.%d", l), Rows: make([][]int32, model.Experts)}
		for _, list := range chunks {
			for e, n := range list {
				layer.Rows[e] = append(layer.Rows[e], int32(n))
			}
		}
		tiers.Layers = append(tiers.Layers, layer)
	}
	return tiers, tiers.Validate()
}

// moeOptimum compares the paper's tiers with those of the exact solver for the same loads and costs.
func moeOptimum(ctx context.Context, rows *sheet) error {
	const tokens = 512
	traced := tracedLoads(tokens)
	type source struct {
		name, given string
		loads       [][][]float64
	}
	sources := []source{{"traced", "traced routing of a small trained model of PhiMoE's 16 experts and 2 a token",
		traced}}
	for _, skew := range []float64{0, 0.5, 1, 1.5} {
		sources = append(sources,
			source{fmt.Sprintf("skew_%v", skew), fmt.Sprintf("synthetic routing, popularity by rank^-%v", skew),
				drawnLoads(47, 8, 16, tokens, 16, 2, skew)})
	}
	for _, from := range sources {
		layers := len(from.loads)
		tiers, err := moeInstance(tokens, from.loads)
		if err != nil {
			return err
		}
		// the exact optimum, checked, beside three rules with the same costs
		best, err := exact.Engine{}.Tiers(ctx, tiers, problem.Limits{})
		if err != nil {
			return err
		}
		if err := tiers.Verify(best); err != nil {
			return err
		}
		chunks := int64(tiers.Chunks())
		over := func(slots []int) (float64, error) {
			ns, err := tiersOf(tiers, slots)
			return float64(ns) / float64(best.Objective), err
		}
		ladder, err := over(tiers.LadderSlots(tiers.Capacities))
		if err != nil {
			return err
		}
		same := make([]int, len(tiers.Capacities))
		same[1] = tiers.MostSlots()
		uniform, err := over(same)
		if err != nil {
			return err
		}
		cpu, err := over(make([]int, len(tiers.Capacities)))
		if err != nil {
			return err
		}
		experts := 0
		for _, count := range best.Slots {
			experts += count
		}
		overflow, _ := tiers.Shares(best.Choices)
		name := from.name + "/"
		rows.noted(Modelled, name+"best_ms", nil, float64(best.Objective/chunks)/1e6/float64(layers), "best_ms", tokens,
			best.Status, experts*layers, layers*16, 100*overflow, from.given, layers)
		rows.noted(Modelled, name+"tiers_over_best", nil, ladder, "tiers_over_best")
		rows.noted(Modelled, name+"uniform_over_best", nil, uniform, "uniform_over_best")
		rows.add(Modelled, name+"cpu_over_best", nil, cpu, "x: no expert on the NPU")
	}
	return nil
}

// tiersOf is what given slots take, with the busiest experts of each layer in the largest of them.
func tiersOf(p *problem.Tiers, slots []int) (int64, error) {
	if broken := p.Broken(slots, p.InOrder(slots)); broken != "" {
		return 0, fmt.Errorf("tiers %q: slots %v break %s", p.Name, slots, broken)
	}
	return p.Time(slots, p.InOrder(slots)), nil
}

// moeOverflow says where rows are dropped, moved and summed up: executed plans do that, and nothing here imitates it.
func moeOverflow(rows *sheet) error {
	rows.noted(NotReproducible, "saliency", "lowest L2 norms", nil, "saliency")
	rows.noted(NotReproducible, "roundtrip", "packed, zero-padded, scattered", nil, "roundtrip")
	return nil
}

// moeMemory recomputes the bytes of experts and models from the catalog's shapes.
func moeMemory(rows *sheet) error {
	list, err := moeModels()
	if err != nil {
		return err
	}
	printed := moe("models_table1").at("values").list()
	phi := printed[0]
	// experts and the rest, from printed numbers, then from the published shape
	experts := phi.at("layers").num() * phi.at("experts").num() * phi.at("expert_mb").num() / 1000
	rows.add(Exact, "phimoe/experts_gb", nil, experts, "%v layers x %v experts x %v MB as printed",
		phi.at("layers").num(), phi.at("experts").num(), phi.at("expert_mb").num())
	rows.add(Exact, "phimoe/rest_gb", nil, phi.at("size_gb").num()-experts, "of the printed %v GB",
		phi.at("size_gb").num())
	real := float64(list[0].Layers) * float64(list[0].Experts) * expertBytes(list[0]) / 1e9
	rows.noted(Modelled, "phimoe/experts_gb_by_shape", nil, real, "phimoe/experts_gb_by_shape")
	rows.noted(Modelled, "phimoe/rest_gb_by_shape", nil, phi.at("size_gb").num()-real, "phimoe/rest_gb_by_shape")
	for i, size := range printed {
		name, model := size.at("alias").text(), list[i]
		params := float64(model.Parameters())
		if v, ok := size.at("params_b").any().(float64); ok {
			rows.add(Exact, name+"/bytes_per_parameter", "FP16", size.at("size_gb").num()/v,
				"%v GB over %v billion as printed; FP16", size.at("size_gb").num(), v)
			rows.add(Modelled, name+"/parameters_b", v, params/1e9, "billions, by the published configuration")
		}
		note := "printed GB over the published configuration's parameters"
		if name == "Qwen3-MoE" {
			note += ": one byte a parameter if GB are 2^30, although FP16 is the stated default"
		}
		rows.add(Modelled, name+"/bytes_per_parameter_by_shape", "FP16", size.at("size_gb").num()*1e9/params, "%s",
			note)
		if name == "Qwen3-MoE" {
			rows.add(Modelled, name+"/bytes_per_parameter_gib", "FP16", size.at("size_gb").num()*(1<<30)/params,
				"with GB of 2^30 bytes")
		}
	}
	return nil
}

// moeCalibration compares the busiest experts of a profile's chunks with those of the chunks after them.
func moeCalibration(rows *sheet) error {
	const experts, layers, chunks, run = 16, 32, 16, 4
	// the busiest experts, ties to the lower number
	top := func(loads []float64, count int) []int {
		order := make([]int, len(loads))
		for e := range order {
			order[e] = e
		}
		slices.SortStableFunc(order, func(a, b int) int {
			switch {
			case loads[a] > loads[b]:
				return -1
			case loads[a] < loads[b]:
				return 1
			}
			return 0
		})
		return order[:count]
	}
	printed := moe("r_calibration").at("values")
	traced := tracedLoads(256)
	for _, from := range []struct {
		name, given string
		split       int // chunks of the profile
		loads       [][][]float64
	}{
		{"traced", fmt.Sprintf("%d layers of a small trained model of PhiMoE's 16 experts and 2 a token, profiled "+
			"on one half of its text, run on the other", len(traced)), len(traced[0]) / 2, traced},
		{"synthetic", fmt.Sprintf("%d synthetic layers with popularity by rank^-0.5, profiled on %d chunks of 256 "+
			"tokens, run on %d", layers, chunks, run), chunks,
			drawnLoads(58, layers, chunks+run, 256, experts, 2, 0.5)},
	} {
		for _, count := range []int{2, 4, 8, experts} {
			var overlap []float64
			for _, list := range from.loads {
				seen, found := top(meanLoads(list[from.split:]), count), 0.0
				for _, e := range top(meanLoads(list[:from.split]), count) {
					if slices.Contains(seen, e) {
						found++
					}
				}
				overlap = append(overlap, 100*found/float64(count))
			}
			var paper any
			switch count {
			case 4:
				paper = printed.at("unseen_top4_prefill").num()
			case 8:
				paper = printed.at("unseen_top8_prefill").num()
			}
			note := "percent, mean of " + from.given + "; only the trend can be compared"
			if count == experts {
				note = "all experts: 100 by definition, and chance alone gives K of 16, so that growth with K says " +
					"little by itself"
			}
			rows.add(Modelled, fmt.Sprintf("%s/top_%d_percent", from.name, count), paper, mean(overlap), "%s", note)
		}
	}
	rows.noted(NotReproducible, "cross_dataset_percent", printed.at("cross_dataset_prefill").num(), nil,
		"cross_dataset_percent")
	return nil
}

// moeAppendix recomputes the ratios of the appendix's tables.
func moeAppendix(rows *sheet) error {
	latency := moe("table_a2_latency").at("values").list()
	for _, row := range latency[1:] {
		rows.add(Exact, "a2/"+row.at(0).text()+"/speedup", row.at(4).num(), row.at(1).num()/latency[0].at(1).num(),
			"%v over %v s", row.at(1).num(), latency[0].at(1).num())
	}
	for _, row := range latency {
		rows.add(Exact, "a2/"+row.at(0).text()+"/experts_and_attention_percent", nil,
			100*(row.at(2).num()+row.at(3).num())/row.at(1).num(), "of the wall time")
	}
	energy := moe("table_a2_energy").at("values").list()
	for _, row := range energy {
		sum := row.at(2).num() + row.at(3).num() + row.at(4).num()
		rows.add(Exact, "a2/"+row.at(0).text()+"/energy_parts_j", row.at(1).num(), sum, "CPU, ANE and communication")
		if row.at(0).text() != "Ours" {
			rows.add(Exact, "a2/"+row.at(0).text()+"/efficiency", row.at(5).num(),
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
			rows.add(Exact, table.name+"/"+what, printed, max(gpu, npu)/min(gpu, npu), "x, %v and %v", gpu, npu)
		}
		for i, who := range []string{"gpu", "npu"} {
			rows.noted(Exact, table.name+"/"+who+"_w", devices[2].at(1+i).num(),
				devices[1].at(1+i).num()/devices[0].at(1+i).num(), "w")
		}
	}
	return nil
}

// moeRanges compares the ranges of the abstract with the details.
func moeRanges(rows *sheet) error {
	headline := moe("r_headline").at("values")
	// all numbers below a fact
	var collect func(v value, out *[]float64)
	collect = func(v value, out *[]float64) {
		switch v.v.(type) {
		case map[string]any:
			for _, k := range v.keys() {
				collect(v.at(k), out)
			}
		case []any:
			*out = append(*out, v.nums()...)
		default:
			*out = append(*out, v.num())
		}
	}
	for _, claim := range []struct {
		name, note string
		ids        []string
	}{
		{"latency", "of the factors at 1024 and 4096 tokens, sec. 5.3", []string{"r_prefill_1024", "r_prefill_4096"}},
		{"energy", "of sec. 5.4", []string{"r_energy_prefill", "r_energy_1024_chunk512", "r_energy_4096"}},
		{"cpu_cycles", "of sec. 5.5", []string{"r_cpu_cycles_1024", "r_cpu_cycles_4096"}},
	} {
		var all []float64
		for _, id := range claim.ids {
			collect(moe(id).at("values"), &all)
		}
		rows.add(Exact, claim.name+"/least", headline.at(claim.name).nums()[0], slices.Min(all), "x, least %s",
			claim.note)
		rows.add(Exact, claim.name+"/most", headline.at(claim.name).nums()[1], slices.Max(all), "x, most %s",
			claim.note)
	}
	choice := moe("r_chunk_choice").at("values")
	var ttft []float64
	collect(moe("r_prefill_4096").at("values", "chunk_1024"), &ttft)
	rows.add(Exact, "ttft_4096_chunk_1024/least", choice.at("ttft_4096_chunk_1024").nums()[0], slices.Min(ttft),
		"x, sec. 5.8 against sec. 5.3")
	rows.add(Exact, "ttft_4096_chunk_1024/most", choice.at("ttft_4096_chunk_1024").nums()[1], slices.Max(ttft),
		"x, sec. 5.8 against sec. 5.3")
	var one []float64
	collect(moe("r_energy_1024_chunk512").at("values"), &one)
	rows.add(Exact, "energy_1024_chunk_512/least", choice.at("energy_1024_chunk_512").nums()[0], slices.Min(one),
		"x, sec. 5.8 against sec. 5.4")
	rows.add(Exact, "energy_1024_chunk_512/most", choice.at("energy_1024_chunk_512").nums()[1], slices.Max(one),
		"x, sec. 5.8 against sec. 5.4")
	rows.noted(NotReproducible, "cpu_cycles_4096/chunk", "512 or 1024", nil, "cpu_cycles_4096/chunk")
	a := moe("r_ablation").at("values")
	rows.noted(Exact, "ablation/tg_over_base_latency", nil,
		a.at("all_vs_base_latency").num()/a.at("all_vs_TG_latency").num(), "ablation/tg_over_base_latency",
		a.at("all_vs_base_latency").num(), a.at("all_vs_TG_latency").num())
	rows.add(Exact, "ablation/t_over_base_energy", nil, a.at("TG_vs_base_energy").num()/a.at("TG_vs_T_energy").num(),
		"x: tiers alone, from sec. 5.8's %v and %v", a.at("TG_vs_base_energy").num(), a.at("TG_vs_T_energy").num())
	rows.add(NotReproducible, "ablation/energy", moe("r_ablation_energy_absolute").at("values", "Ours-TG").num(), nil,
		"its unit is not in the text")
	gpu := moe("r_gpu").at("values")
	micro, e2e := moe("table_a3_gpu_micro").at("values").list(), moe("table_a3_gpu_e2e").at("values").list()
	rows.add(Exact, "gpu/faster_least", gpu.at("gpu_faster").nums()[0], e2e[0].at(2).num()/e2e[0].at(1).num(),
		"x, A.3's times are rounded to 0.01 s")
	rows.add(Exact, "gpu/faster_most", gpu.at("gpu_faster").nums()[1], micro[0].at(2).num()/micro[0].at(1).num(),
		"x, from A.3")
	return nil
}
