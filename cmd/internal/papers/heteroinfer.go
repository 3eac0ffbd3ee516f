package papers

import "context"

// heteroinfer are the items of that paper (SOSP 2025).
var heteroinfer = []Item{
	solvedItem("heteroinfer", "table3", "the solver's decision for nine operators, and what it rests on",
		"Table 3, sec. 4.2, 4.4", heteroTable3,
		"dc_t3_exact_rows_strategy", "dc_t3_row8_ratio", "dc_t3_row5_padding", "dc_t3_row9_hybrid"),
	solvedItem("heteroinfer", "catalog", "Table 3 on the catalog's Snapdragon 8 Gen 3", "Table 3", heteroCatalog),
	solvedItem("heteroinfer", "order", "the order of operands on the catalog's Snapdragon 8 Gen 3",
		"sec. 3.2, 4.1, 5.6", heteroOrder),
	sheetItem("heteroinfer", "splits", "the balanced division of each measured row", "Table 3, sec. 3.3", heteroSplits,
		"dc_t3_exact_rows_strategy", "dc_t3_row2_ratio", "dc_t3_row8_ratio"),
	sheetItem("heteroinfer", "sync", "bounds on the synchronisation cost", "Table 3, sec. 3.1, 4.3, 4.4", heteroSync,
		"dc_t3_sync_bounds"),
	sheetItem("heteroinfer", "ranges", "estimates for lengths that were not measured", "Table 3 rows 5, 7, 9, sec. 4.4",
		heteroRanges, "dc_t3_range_extrapolation", "dc_t3_row9_hybrid"),
	solvedItem("heteroinfer", "boundaries", "lengths at which the decision changes", "Table 3, sec. 4.2.2, 4.4",
		heteroBoundaries, "dc_t3_row7_activation_boundary", "dc_t3_row5_padding", "dc_dynamic_length_split"),
	solvedItem("heteroinfer", "layer", "layer-level mapping against tensor-level division", "sec. 4.1, 5.3, 5.4, 5.5",
		heteroLayer),
	sheetItem("heteroinfer", "achieved", "rates that the printed latencies amount to",
		"Tables 2 and 3, sec. 1, 3, 4.2.1", heteroAchieved, "dc_gpu_linear", "dc_npu_tflops",
		"dc_npu_gpu_ratio_ffn_down", "dc_npu_staircase"),
	sheetItem("heteroinfer", "bandwidth", "memory bandwidth in decode", "Table 3, sec. 3.3, 5.4", heteroBandwidth,
		"dc_t3_decode_bandwidth", "dc_bandwidth_fraction", "dc_decode_bandwidth_ceiling"),
	sheetItem("heteroinfer", "gains", "arithmetic on printed speeds", "sec. 1, 5.3, 5.5, 5.6", heteroGains,
		"dc_online_prepare_total", "dc_fast_sync_gain_256", "dc_ablation_product", "dc_llmnpu_ratio"),
}

// solvedItem is a sheetItem whose rows an engine is asked for.
func solvedItem(paper, name, title, source string, fill func(context.Context, *sheet) error, checks ...string) Item {
	it := sheetItem(paper, name, title, source, nil, checks...)
	it.Run = func(ctx context.Context) ([]Row, error) {
		return sheetItem(paper, name, title, source, func(s *sheet) error { return fill(ctx, s) }).Run(ctx)
	}
	return it
}
