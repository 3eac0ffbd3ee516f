package papers

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/problem"
)

// shadowattn are the items of that paper.
var shadowattn = []Item{
	sheetItem("shadowattn", "eq3", "sparsity ratio per head", "Eq. 3, sec. 3.2", shadowHeadRatios, "dc_head_ratio_eq3"),
	sheetItem("shadowattn", "alg1", "order of launches and heads", "Algorithm 1, Eq. 4, sec. 3.4", shadowOrder,
		"dc_alg1_pipeline", "dc_alg1_recurrence", "dc_alg1_literal_vs_intended"),
	sheetItem("shadowattn", "launch", "heads launched together", "sec. 3.4", shadowLaunch, "dc_fused_launch"),
	sheetItem("shadowattn", "sparse", "what estimating the scores costs a sparse kernel", "sec. 2.2, Fig. 4",
		shadowSparse, "dc_sparse_linear_model"),
	sheetItem("shadowattn", "buckets", "scale buckets and the rule that selects one", "sec. 3.3, 5.2", shadowBuckets,
		"dc_bucket_select", "dc_bucket_ablation_geometry"),
	sheetItem("shadowattn", "memory", "memory of the graphs", "sec. 3.3", shadowMemory, "dc_graph_memory"),
	sheetItem("shadowattn", "topk", "top-k before softmax", "sec. 3.2", shadowTopK, "dc_topk_before_softmax"),
	sheetItem("shadowattn", "ops", "operations of attention", "Table 5, sec. 5.1", shadowOps, "dc_attention_ops"),
	sheetItem("shadowattn", "accuracy", "averages and losses", "Tables 3, 4 and 6, sec. 5.1", shadowAccuracy,
		"dc_t6_averages", "dc_t3_t6_consistency", "dc_t4_bounds"),
	sheetItem("shadowattn", "time", "ratios of time and energy", "Tables 7, 8 and 9, sec. 5.1", shadowTime,
		"dc_t7_ratios", "dc_t8_ratios", "dc_t9_interference"),
	sheetItem("shadowattn", "claims", "headline numbers against what is printed elsewhere", "abstract, sec. 1, 5",
		shadowClaims),
}

// shadow is an entry of the paper's data.
func shadow(id string) value { return fact("shadowattn", id) }

// shadowHeadRatios distributes the global ratio over heads by their importance, clamped (Eq. 3).
func shadowHeadRatios(rows *sheet) error {
	global, most := shadow("m_global_ratio").at("values", "default").num()/100, shadow("m_fig6_clamp").at("values",
		"loss_clamp").num()
	for _, m := range shadow("table5_models").at("values").list() {
		name, heads, layers := m.at(0).text(), int(m.at(1).num()), int(m.at(4).num())
		all := heads * layers
		rows.add(Exact, name+"/heads", fmt.Sprintf("%d x %d", heads, layers), all,
			"N of Eq. 3: query heads times layers, Table 5")
		// Importances are not printed: heads' and layers' losses of 1e-4 to 1e-1 each, evenly on a logarithmic
		// axis, as Fig. 6 draws it.
		random := rand.New(rand.NewPCG(3, uint64(all)))
		loss := func() float64 { return math.Pow(10, -4+3*random.Float64()) }
		importance := make([]float64, all)
		for index := range layers {
			layer := loss()
			for h := range heads {
				importance[index*heads+h] = layer * loss()
			}
		}
		// ratios beyond 1 mean nothing: cut off, or given to the other heads
		ratios := calibration.HeadRatios(global, importance, most)
		above := 0
		for _, v := range ratios {
			if v > 1 {
				above++
			}
		}
		plain := make([]float64, all)
		for i, v := range ratios {
			plain[i] = min(v, 1)
		}
		rows.noted(Exact, name+"/mean_ratio", global, mean(ratios), "mean_ratio")
		rows.noted(Modelled, name+"/heads_above_1", nil, above, "heads_above_1", most)
		rows.noted(Modelled, name+"/mean_ratio_cut", global, mean(plain), "mean_ratio_cut")
		rows.noted(Modelled, name+"/mean_ratio_shared", global, mean(calibration.ShareRatios(ratios)), "mean_ratio_shared")
		rows.noted(Exact, name+"/heads_of_another_layer", nil, layers, "heads_of_another_layer")
	}
	return nil
}

// shadowRegime is how the synthetic times of a layer's heads are drawn, in microseconds.
type shadowRegime struct {
	name      string
	topk, qkv [2]int64
}

// shadowPipeline is a layer with heads in scale buckets, those of a bucket in one launch. Only the NPU's times are
// printed.
func shadowPipeline(random *rand.Rand, heads int, r shadowRegime) headPipeline {
	between := func(x [2]int64) int64 { return x[0] + random.Int64N(x[1]-x[0]+1) }
	var pipeline headPipeline
	grid := make([][]int, 9)
	for head := range heads {
		pipeline.heads = append(pipeline.heads, headWork{between(r.topk), between(r.qkv)})
		axis := func() int { return []int{0, 1, 1, 2}[random.IntN(4)] }
		b := 3*axis() + axis()
		grid[b] = append(grid[b], head)
	}
	grid = slices.DeleteFunc(grid, func(hs []int) bool { return len(hs) == 0 })
	for _, hs := range grid {
		pipeline.launches = append(pipeline.launches, headLaunch{npu: shadowNPU(len(hs)), heads: hs})
	}
	return pipeline
}

// shadowNPU is the time of a launch of heads, in microseconds.
func shadowNPU(heads int) int64 {
	var points [][2]float64
	for _, p := range shadow("hw_npu_kernel_fused_launch").at("values", "latency_by_heads_fused").list() {
		points = append(points, [2]float64{p.at("heads").num(), p.at("ms").num()})
	}
	return int64(math.Round(1000 * launchTime(points, heads)))
}

// shadowOrder compares the greedy order of Algorithm 1 with the best order of launches and heads, on printed and
// drawn examples.
func shadowOrder(rows *sheet) error {
	// Fig. 9's four pipelines of two heads of one bucket, with times for which its steps help as drawn.
	two := []headWork{{400, 200}, {100, 600}}
	apart := headPipeline{launches: []headLaunch{{shadowNPU(1), []int{0}}, {shadowNPU(1), []int{1}}}, heads: two}
	together := headPipeline{launches: []headLaunch{{shadowNPU(2), []int{0, 1}}}, heads: two}
	for _, example := range []struct {
		name, paper, note string
		p                 headPipeline
		launches, heads   []int
	}{
		{"overlapped_ms", "less than sequential", "(2) three stages beside each other", apart, []int{0, 1},
			[]int{0, 1}},
		{"fused_ms", "less than overlapped", "(3) both heads in one launch", together, []int{0}, []int{0, 1}},
		{"reordered_ms", "less than fused", "(4) the other head first, which is the best order too", together, []int{0},
			[]int{1, 0}},
	} {
		end, err := example.p.run(example.launches, example.heads)
		if err != nil {
			return err
		}
		if len(rows.rows) == 0 {
			rows.noted(Modelled, "fig9/sequential_ms", nil, float64(example.p.sequential())/1000, "fig9/sequential_ms")
		}
		rows.add(Modelled, "fig9/"+example.name, example.paper, float64(end)/1000, "the same times; %s", example.note)
	}
	rows.noted(Modelled, "fig9/algorithm1_ms", "as reordered", float64(together.greedy(false).end)/1000,
		"fig9/algorithm1_ms")
	shadowSmallLayers(rows)
	return shadowWideLayers(rows)
}

// shadowSmallLayers compares Algorithm 1 with every order of small drawn layers.
func shadowSmallLayers(rows *sheet) {
	random := rand.New(rand.NewPCG(34, 9))
	const small = 1000
	var gaps []float64
	first, interleaved, equal := 0, 0, 0
	for range small {
		var pipeline headPipeline
		for launch := range 2 + random.IntN(2) {
			pipeline.launches = append(pipeline.launches, headLaunch{npu: 1 + random.Int64N(12)})
			for range 1 + random.IntN(2) {
				if len(pipeline.heads) < 5 {
					pipeline.launches[launch].heads = append(pipeline.launches[launch].heads, len(pipeline.heads))
					pipeline.heads = append(pipeline.heads, headWork{1 + random.Int64N(12), 1 + random.Int64N(12)})
				}
			}
		}
		// the planners must agree with every order, which small layers permit
		all, contiguous := pipeline.everyOrder()
		greedy := pipeline.greedy(false).end
		gaps = append(gaps, 100*(float64(greedy)/float64(all)-1))
		if greedy == all {
			first++
		}
		if all < contiguous {
			interleaved++
		}
		if pipeline.byHead().end == all && pipeline.byLaunch().end == contiguous {
			equal++
		}
	}
	rows.noted(Modelled, "small/optimal_percent", nil, 100*float64(first)/small, "small/optimal_percent", small)
	rows.noted(Modelled, "small/mean_gap_percent", nil, mean(gaps), "small/mean_gap_percent")
	rows.add(Modelled, "small/worst_gap_percent", nil, slices.Max(gaps), "of these layers")
	rows.noted(Modelled, "small/interleaved_better_percent", nil, 100*float64(interleaved)/small,
		"small/interleaved_better_percent")
	rows.noted(Exact, "small/planners_percent", nil, 100*float64(equal)/small, "small/planners_percent")
}

// shadowWideLayers compares Algorithm 1 with the best order of launches in layers of 12 heads (Qwen2-1.5B); of some
// of them every order is covered.
func shadowWideLayers(rows *sheet) error {
	const heads, layers, covered = 12, 200, 20
	runs, literals, all, widest := 0, 0, 0, 0
	for i, regime := range []shadowRegime{
		{"npu_bound", [2]int64{50, 200}, [2]int64{50, 400}},
		{"balanced", [2]int64{200, 800}, [2]int64{200, 2000}},
		{"multiplication_bound", [2]int64{200, 800}, [2]int64{1000, 6000}},
	} {
		random, gaps := rand.New(rand.NewPCG(34, uint64(i))), []float64(nil)
		optimal := 0
		for layer := range layers {
			pipeline := shadowPipeline(random, heads, regime)
			greedy, best := pipeline.greedy(false), pipeline.byLaunch()
			// the recurrence against the dependencies alone; the literal listing may lose
			// or repeat a head
			took, err := pipeline.run(greedy.launches, greedy.heads)
			if err != nil {
				return fmt.Errorf("algorithm 1: %w", err)
			}
			if took == greedy.end {
				runs++
			}
			literal := pipeline.greedy(true)
			if _, err := pipeline.run(literal.launches, literal.heads); err != nil {
				literals++
			}
			all++
			gaps = append(gaps, 100*(float64(greedy.end)/float64(best.end)-1))
			if greedy.end == best.end {
				optimal++
			}
			if layer < covered && pipeline.byHead().end < best.end {
				widest++
			}
		}
		rows.noted(Modelled, regime.name+"/optimal_percent", nil, 100*float64(optimal)/layers, "optimal_percent",
			layers, heads, regime.topk[0], regime.topk[1], regime.qkv[0], regime.qkv[1])
		rows.noted(Modelled, regime.name+"/mean_gap_percent", nil, mean(gaps), "mean_gap_percent")
		rows.add(Modelled, regime.name+"/worst_gap_percent", nil, slices.Max(gaps), "of these layers")
	}
	rows.noted(Modelled, "interleaved_better_percent", nil, 100*float64(widest)/(3*covered),
		"interleaved_better_percent")
	rows.noted(Exact, "recurrence_percent", "t_qkv is the total time", 100*float64(runs)/float64(all),
		"recurrence_percent")
	rows.noted(Exact, "line25_percent", "an order of the heads", 100-100*float64(literals)/float64(all),
		"line25_percent")
	rows.noted(Exact, "search", "O(n!)", "2^launches", "search")
	rows.noted(NotReproducible, "planning_time_ms", "below "+
		fmt.Sprint(shadow("m_planning_overhead").at("values", "below").any()), nil, "planning_time_ms")
	return nil
}

// shadowLaunch fits a line to the printed times of heads launched together: the cost of a launch and of a head.
func shadowLaunch(rows *sheet) error {
	launch := shadow("hw_npu_kernel_fused_launch").at("values")
	// Q K' of a head: 2 x queries x keys x width operations
	query, keys := launch.at("q_shape_bhsd").nums(), launch.at("k_shape_bhsd").nums()
	ops := 2 * query[2] * keys[2] * query[3]
	var sx, sy, sxx, sxy, count float64
	points := launch.at("latency_by_heads_fused").list()
	for _, p := range points {
		h, ms := p.at("heads").num(), p.at("ms").num()
		rows.add(Exact, fmt.Sprintf("%v/per_head_ms", h), nil, ms/h, "%v ms for %v heads", ms, h)
		rows.add(Exact, fmt.Sprintf("%v/gops", h), nil, float64(h*ops)/ms/1e6, "2 x %v x %v x %v operations a head",
			query[2], keys[2], query[3])
		sx, sy, sxx, sxy, count = sx+h, sy+ms, sxx+float64(h*h), sxy+float64(h*ms), count+1
	}
	// the line by least squares
	slope := (count*sxy - sx*sy) / (count*sxx - sx*sx)
	rows.add(Modelled, "line/launch_ms", nil, (sy-slope*sx)/count, "least squares through the three points")
	rows.noted(Modelled, "line/head_ms", nil, slope, "line/head_ms", slope)
	one, four := points[0].at("ms").num(), points[2].at("ms").num()
	rows.add(Exact, "four/apart_ms", nil, 4*one, "four launches of a head")
	rows.add(Exact, "four/fused_ms", four, float64(shadowNPU(4))/1000, "one launch of four")
	for _, reading := range []struct {
		name string
		head headWork
		note string
	}{
		{"npu_bound", headWork{50, 100}, "fusing all is best where the NPU bounds the time"},
		{"multiplication_bound", headWork{200, 4000},
			"where multiplication bounds the time a small launch goes first; line 15 of Algorithm 1 always fuses"},
	} {
		heads := []headWork{reading.head, reading.head, reading.head, reading.head}
		all := headPipeline{launches: []headLaunch{{shadowNPU(4), []int{0, 1, 2, 3}}}, heads: heads}
		best, schedule := bestLaunches([][]int{{0, 1, 2, 3}}, heads, shadowNPU)
		var sizes []string
		for _, i := range schedule.launches {
			sizes = append(sizes, fmt.Sprint(len(best.launches[i].heads)))
		}
		what := fmt.Sprintf("synthetic: four heads of one bucket, top-k %d us, multiplication %d us each; %s",
			reading.head.topk, reading.head.qkv, reading.note)
		rows.add(Modelled, reading.name+"/fused_ms", nil, float64(all.byHead().end)/1000, "%s", what)
		rows.add(Modelled, reading.name+"/best_ms", nil, float64(schedule.end)/1000, "%s", what)
		rows.add(Modelled, reading.name+"/best_launches", "4", strings.Join(sizes, "+"), "%s", what)
	}
	return nil
}

// shadowSparse fits a line to the printed gains of the sparse kernel: time for estimating scores, and time for
// multiplying in proportion to the ratio.
func shadowSparse(rows *sheet) error {
	gains, share := shadow("r_sparse_kernel_gain").at("values"), shadow("r_estimation_share").at("values")
	// time = e + a r by least squares, for a reading of what a gain is
	fit := func(time func(gain float64) float64) (e, a float64) {
		var sx, sy, sxx, sxy, count float64
		for _, key := range gains.keys() {
			r, t := ratioOf(key), time(gains.at(key).num()/100)
			sx, sy, sxx, sxy, count = sx+r, sy+t, sxx+float64(r*r), sxy+float64(r*t), count+1
		}
		a = (count*sxy - sx*sy) / (count*sxx - sx*sx)
		return (sy - a*sx) / count, a
	}
	estimate, attend := fit(func(g float64) float64 { return 1 - g })
	rows.noted(Modelled, "estimation", nil, estimate, "estimation")
	rows.noted(Modelled, "multiplication", nil, attend, "multiplication", estimate+attend)
	for _, key := range gains.keys() {
		r, gain := ratioOf(key), gains.at(key).num()
		rows.add(Modelled, key+"/gain_percent", gain, 100*(1-estimate-float64(r*attend)),
			"the line at %v; 3 points, 2 parameters", r)
	}
	// each point from the line through the other two
	for _, held := range gains.keys() {
		var xs, ts []float64
		for _, key := range gains.keys() {
			if key != held {
				xs, ts = append(xs, ratioOf(key)), append(ts, 1-gains.at(key).num()/100)
			}
		}
		slope := (ts[1] - ts[0]) / (xs[1] - xs[0])
		rows.add(Modelled, held+"/held_out_gain_percent", gains.at(held).num(),
			100*(1-ts[0]-float64(slope*(ratioOf(held)-xs[0]))), "the line through the other two points")
	}
	ratio := 0.2
	printed := share.at("at_ratio_20").num()
	rows.noted(Modelled, "share_percent", printed, 100*estimate/(estimate+float64(ratio*attend)), "share_percent")
	estimate, attend = fit(func(g float64) float64 { return 1 / (1 + g) })
	rows.noted(Modelled, "share_speedup_reading_percent", printed, 100*estimate/(estimate+float64(ratio*attend)),
		"share_speedup_reading_percent")
	rows.noted(Exact, "intro_percent", share.at("intro_resource_reduction_about").any(), gains.at("ratio_20").any(),
		"intro_percent")
	return nil
}

// ratioOf is 0.4 of "ratio_40".
func ratioOf(key string) float64 {
	var percent float64
	if _, err := fmt.Sscanf(key, "ratio_%g", &percent); err != nil {
		panic("BUG: ratio of " + key)
	}
	return percent / 100
}

// quantised is the mean squared error of 8-bit values with scale used, of a normal distribution whose least and largest
// value scale 1 just holds at four standard deviations: rounding within, cutting beyond. In units of scale 1.
func quantised(used float64) float64 {
	const deviation = 127.0 / 4
	edge := 127 * used
	normal := edge / deviation
	tail := math.Erfc(normal/math.Sqrt2) / 2
	density := math.Exp(-normal*normal/2) / math.Sqrt(2*math.Pi)
	cut := 2 * deviation * deviation * (float64((1+normal*normal)*tail) - float64(normal*density))
	return float64(used*used)/12 + max(cut, 0)
}

// shadowBuckets compares grids of scales and the rule that selects one for a tensor (sec. 3.3).
func shadowBuckets(rows *sheet) error {
	step, tiny := shadow("m_bucket_step").at("values", "sigma").num(), shadow("m_bucket_step").at("values",
		"tested_small").num()
	// the grid of the printed step, beside the printed number of buckets
	grid := calibration.BucketGrid(calibration.ScalePair{Query: 1, Key: 1}, 9, float32(step))
	rows.noted(Exact, "count", shadow("m_bucket_step").at("values", "buckets_default").num(), len(grid), "count")
	rows.noted(NotReproducible, "count_5", shadow("m_bucket_step").at("values", "buckets_tested_lower").num(), nil,
		"count_5")
	// Where one scale's bucket ends, the other's at the mean: half way between neighbours.
	for _, grid := range []struct {
		name  string
		sigma float64
	}{{"step_0.5", step}, {"step_0.005", tiny}} {
		scales := calibration.BucketGrid(calibration.ScalePair{Query: 1, Key: 1}, 9, float32(grid.sigma))
		least, most := (1+grid.sigma)/2, (1+1/grid.sigma)/2
		for _, x := range []float64{least, most} {
			nearest := func(query float64) int {
				return calibration.Nearest(calibration.ScalePair{Query: float32(query), Key: 1}, scales)
			}
			if nearest(x*(1-1e-5)) == nearest(x*(1+1e-5)) {
				return fmt.Errorf("scale buckets: no boundary at %v of the mean", x)
			}
		}
		rows.noted(Exact, grid.name+"/centre_from", nil, least, "centre_from")
		rows.noted(Exact, grid.name+"/centre_to", nil, most, "centre_to")
	}
	// Fig. 7 (Qwen2-0.5B): more than 30 % of Q's scales above 0.2, 20 % below 0.1. A logarithmic normal distribution
	// through both.
	fig7 := shadow("r_scale_fluctuation").at("values")
	quantile := func(p float64) float64 { return math.Sqrt2 * math.Erfinv(2*p-1) }
	low, high := quantile(fig7.at("q_below_0.1").num()), quantile(1-fig7.at("q_above_0.2").num())
	spread := math.Log(2) / (high - low)
	middle := math.Log(0.1) - float64(spread*low)
	rows.noted(Modelled, "fig7/median_scale", nil, math.Exp(middle), "fig7/median_scale")
	rows.add(Modelled, "fig7/log_deviation", nil, spread, "of the natural logarithm")
	const samples = 2000
	centre := math.Exp(middle + spread*spread/2) // the mean, which the buckets stand around
	var scales []float64
	for i := range samples {
		scales = append(scales, math.Exp(middle+float64(spread*quantile((float64(i)+0.5)/samples)))/centre)
	}
	// the scale of the grid with the least error, which the nearest is not always
	best := func(g []float64, x float64) float64 {
		return slices.MinFunc(g, func(a, b float64) int {
			switch ea, eb := quantised(a/x), quantised(b/x); {
			case ea < eb:
				return -1
			case ea > eb:
				return 1
			}
			return 0
		})
	}
	own := 0.0 // error with a scale per tensor
	for _, x := range scales {
		own += float64(x*x) * quantised(1)
	}
	chosen := &problem.Scales{Samples: scales, K: 3}
	optimal, err := exact.Scales(chosen)
	if err != nil {
		return err
	}
	if err := chosen.Verify(optimal); err != nil {
		return err
	}
	printed := []float64{step, 1, 1 / step}
	rows.noted(Modelled, "best_scales", nil,
		fmt.Sprintf("%.3g %.3g %.3g", optimal.Scales[0], optimal.Scales[1], optimal.Scales[2]), "best_scales")
	rows.noted(Modelled, "grid_over_best_distance", nil, chosen.MSEOf(printed)/optimal.MSE, "grid_over_best_distance")
	for _, grid := range []struct {
		name, paper string
		g           []float64
	}{
		{"step_0.5", "", printed},
		{"step_0.005", "all samples", []float64{tiny, 1, 1 / tiny}},
		{"best_three", "", optimal.Scales},
		{"one", "", []float64{1}},
	} {
		// samples in the middle bucket, errors with the nearest and with the best scale
		in, nearest, ideal := 0, 0.0, 0.0
		for _, scale := range scales {
			closest := grid.g[problem.NearestScale(grid.g, scale)]
			if closest == 1 {
				in++
			}
			nearest += float64(scale*scale) * quantised(closest/scale)
			ideal += float64(scale*scale) * quantised(best(grid.g, scale)/scale)
		}
		var paper any
		if grid.paper != "" {
			paper = grid.paper
		}
		const given = "one axis, scales as fitted to Fig. 7, around their mean"
		if slices.Contains(grid.g, 1) && len(grid.g) > 1 {
			rows.add(Modelled, grid.name+"/original_bucket_percent", paper, 100*float64(in)/samples,
				"%s: what falls into the original bucket", given)
		}
		rows.noted(Modelled, grid.name+"/error_nearest", nil, nearest/own, "error_nearest", given)
		if len(grid.g) > 1 {
			rows.noted(Modelled, grid.name+"/error_best", nil, ideal/own, "error_best", given)
		}
	}
	return nil
}

// shadowMemory recomputes the memory of graphs for all buckets.
func shadowMemory(rows *sheet) error {
	sizes := shadow("hw_graph_memory").at("values").nums()
	buckets := shadow("m_bucket_step").at("values", "buckets_default").num()
	rows.add(Exact, "one_shape/least_kb", nil, buckets*sizes[0], "9 buckets x 1 head count x %v KB", sizes[0])
	rows.add(Exact, "one_shape/most_kb", nil, buckets*sizes[1], "9 buckets x 1 head count x %v KB", sizes[1])
	for _, m := range shadow("table5_models").at("values").list() {
		name, heads := m.at(0).text(), m.at(1).num()
		most := buckets * heads * sizes[1] / 1000
		note := fmt.Sprintf("a graph for each head count 1 to %v in each of 9 buckets, at %v KB; the graphs have no "+
			"weights, so layers share them", heads, sizes[1])
		if name == "Qwen2-0.5B" {
			model, err := models.Open("qwen2-0.5b")
			if err != nil {
				return err
			}
			note += fmt.Sprintf("; %.1f %% of the model's weights in 8 bit", 100*most*1e6/float64(model.Parameters()))
		}
		rows.add(Exact, name+"/all_shapes_mb", "negligible", most, "%s", note)
	}
	return nil
}

// shadowTopK compares the positions that top-k selects before softmax with those that it selects after it, in
// double and in single precision.
func shadowTopK(rows *sheet) error {
	ratio := shadow("m_global_ratio").at("values", "default").num() / 100
	const queries, width = 100, 1024
	keep := int(ratio * width)
	// positions in order, ties to the lower one
	largest := func(x []float64) []int {
		order := make([]int, len(x))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int {
			switch {
			case x[a] > x[b]:
				return -1
			case x[a] < x[b]:
				return 1
			}
			return 0
		})
		order = order[:keep]
		slices.Sort(order)
		return order
	}
	for _, variant := range []struct {
		name   string
		spread float64
		single bool
		note   string
	}{
		{"double", 4, false, "softmax grows with its argument, so the sets are the same"},
		{"single", 4, true, "softmax rounded to single precision merges close scores, and the lower position wins"},
		{"single_wide", 100, true,
			"scores that spread over hundreds: most of the softmax is 0 in single precision and ranks nothing. " +
				"Top-k before it is not only cheaper, it is the safer order"},
	} {
		random := rand.New(rand.NewPCG(32, 0))
		same := 0
		for range queries {
			scores, soft := make([]float64, width), make([]float64, width)
			for i := range scores {
				scores[i] = variant.spread * random.NormFloat64()
			}
			most, sum := slices.Max(scores), 0.0
			for i, x := range scores {
				soft[i] = math.Exp(x - most)
				sum += soft[i]
			}
			for i := range soft {
				soft[i] /= sum
				if variant.single {
					soft[i] = float64(float32(soft[i]))
				}
			}
			if slices.Equal(largest(scores), largest(soft)) {
				same++
			}
		}
		var paper any
		if !variant.single {
			paper = "the same"
		}
		rows.noted(Exact, variant.name+"/same_sets_percent", paper, 100*float64(same)/queries, "same_sets_percent",
			queries, width, variant.spread, keep, variant.note)
	}
	return nil
}

// shadowOps recomputes the operations of attention from the shapes of Table 5.
func shadowOps(rows *sheet) error {
	length := slices.Max(shadow("wl_kernel_lengths").at("values").nums())
	ratio := shadow("m_global_ratio").at("values", "default").num() / 100
	for _, m := range shadow("table5_models").at("values").list() {
		rows.noted(Exact, m.at(0).text()+"/qk_gops", nil, 2*m.at(1).num()*length*length*m.at(3).num()/1e9, "qk_gops",
			length, m.at(1).num(), length, m.at(3).num())
	}
	rows.noted(Exact, "dense_estimation_percent", nil, 100/(1+1.0), "dense_estimation_percent")
	rows.noted(Modelled, "estimation_percent", shadow("r_estimation_share").at("values", "at_ratio_20").num(),
		100/(1+2*ratio), "estimation_percent", ratio, ratio)
	return nil
}

// shadowAccuracy recomputes the averages and losses of Tables 3, 4 and 6.
func shadowAccuracy(rows *sheet) error {
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
		rows.add(Exact, "table6/"+columns[column].text()+"/mean", average.at(2+column).num(), means[column],
			"percent, mean of %d cells", len(values))
	}
	losses := shadow("r_accuracy_loss").at("values")
	for c, col := range columns[1:] {
		rows.noted(Exact, "table6/"+col.text()+"/loss", losses.at(col.text()).num(), means[0]-means[c+1], "table6/loss")
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
	rows.noted(Exact, "table3/cells_as_in_table6", nil, equal, "table3/cells_as_in_table6")
	// Table 3 repeats cells of Table 6; its drops are quoted in the text
	drops := shadow("r_npu_attention_drop").at("values")
	var all []float64
	for _, cell := range t3 {
		drop := cell.at(2).num() - cell.at(3).num()
		all = append(all, drop)
		if key := cell.at(1).text() + "_" + cell.at(0).text(); drops.has(key) {
			rows.add(Exact, "table3/"+key+"/drop", drops.at(key).num(), drop, "percentage points")
		}
	}
	rows.add(Exact, "table3/mean_drop", drops.at("average").num(), mean(all), "percentage points")
	block := shadow("r_block_sparse_drop").at("values")
	rows.add(Exact, "table6/block_sparse_drop", block.at("average").num(), means[1]-means[2],
		"percentage points below token-level sparsity")
	for _, row := range t6 {
		if key := row.at(0).text() + "_" + row.at(1).text(); block.has(key) {
			rows.add(Exact, "table6/"+key+"/block_sparse_drop", block.at(key).num(), row.at(3).num()-row.at(4).num(),
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
	rows.add(Exact, "table4/least_recall", "above 99", least, "percent, of all cells")
	rows.noted(Exact, "table4/falls", nil, falls, "table4/falls")
	rows.noted(NotReproducible, "table4/level", "99.0 to 100", nil, "table4/level")
	ablation := shadow("r_ablation").at("values")
	for _, row := range t6 {
		if row.at(0).any() == "Qwen2-0.5B" && row.at(1).any() == "Octopus" {
			rows.noted(Exact, "ablation/without_buckets", ablation.at("before_uniform_ratio").num(),
				row.at(6).num()-ablation.at("no_buckets_accuracy_drop").num(), "ablation/without_buckets",
				row.at(6).num(), ablation.at("no_buckets_accuracy_drop").num())
			rows.add(Exact, "ablation/npu_full", ablation.at("npu_full_accuracy").num(), row.at(5).num(), "Table 6")
		}
	}
	return nil
}

// shadowTime recomputes the ratios of Tables 7 to 9.
func shadowTime(rows *sheet) error {
	k60 := shadow("r_k60").at("values")
	for _, row := range shadow("table7").at("values").list() {
		rows.add(Exact, "table7/"+row.at(0).text(), k60.at(row.at(0).text()).num(), row.at(1).num()/row.at(2).num(),
			"%v over %v minutes", row.at(1).num(), row.at(2).num())
	}
	columns := shadow("table8").at("columns").list()
	most, where := 0.0, ""
	for _, row := range shadow("table8").at("values").list() {
		for column := 1; column <= 4; column++ {
			ratio := row.at(column).num() / row.at(5).num()
			rows.add(Exact, "table8/"+row.at(0).text()+"/"+columns[column].text(), nil, ratio, "%v over %v J",
				row.at(column).num(), row.at(5).num())
			if ratio > most {
				most, where = ratio, fmt.Sprintf("%s, %v over %v J", row.at(0).text(), row.at(column).num(),
					row.at(5).num())
			}
		}
	}
	rows.add(Exact, "table8/most", shadow("r_energy").at("values").num(), most,
		"%s; cells rounded to 0.01 J allow 7.63 to 7.71", where)
	apps := shadow("table9").at("values").nums()
	rows.add(Exact, "table9/worst_slowdown", nil, slices.Max(apps)/apps[0], "%v over %v s without other applications",
		slices.Max(apps), apps[0])
	rows.noted(Exact, "table9/least_slowdown", nil, slices.Min(apps)/apps[0], "table9/least_slowdown")
	return nil
}

// shadowClaims compares headline numbers with what is printed elsewhere.
func shadowClaims(rows *sheet) error {
	headline := shadow("r_headline").at("values")
	energy := 0.0
	for _, row := range shadow("table8").at("values").list() {
		energy = max(energy, row.at(1).num()/row.at(5).num())
	}
	rows.add(Exact, "energy_up_to", headline.at("energy_up_to").num(), energy, "x, from Table 8")
	rows.noted(Exact, "kernel_up_to", headline.at("kernel_speedup_up_to").num(),
		shadow("r_kernel").at("values", "vs_cg_full", "max").num(), "kernel_up_to")
	rows.noted(Exact, "e2e_up_to", headline.at("e2e_speedup_up_to").num(),
		shadow("r_e2e").at("values", "vs_cg_full", "max").num(), "e2e_up_to")
	t := shadow("r_ablation").at("values")
	rows.noted(Exact, "uniform_ratio_drop", nil, t.at("before_uniform_ratio").num()-t.at("after_uniform_ratio").num(),
		"uniform_ratio_drop")
	rows.noted(NotReproducible, "native_speedup", shadow("r_vs_llmnpu_native").at("values").num(), nil,
		"native_speedup")
	rows.add(NotReproducible, "fig7_by_tensor", "20 % below 0.1", nil, "which tensor it is of is not said")
	return nil
}
