package papers

// llmnpu are the items of that paper (ASPLOS 2025).
var llmnpu = []Item{
	solvedItem("llmnpu", "table3", "which processor computes a product", "Table 3, sec. 2.2", npuTable3,
		"dc_t3_device_choice", "dc_t3_ratios", "dc_t3_partition", "dc_t3_tops", "dc_t3_npu_fp16_slowest"),
	solvedItem("llmnpu", "eq5", "out-of-order execution of subgraphs", "Eq. 2 to 5, sec. 3.4, 4.7", npuOrder,
		"dc_eq5_greedy_order", "dc_eq5_bubble"),
	sheetItem("llmnpu", "sharing", "memory of graphs that chunks share", "sec. 1, 3.2", npuSharing,
		"dc_graph_sharing_count", "dc_graph_sharing_memory"),
	sheetItem("llmnpu", "chunks", "chunk length, chunks and padding of the printed prompts",
		"sec. 2.1, 3.2, 3.4, Table 5", npuChunks, "dc_chunk_count_padding", "dc_chunk_time_consistency",
		"dc_prefill_1000"),
	sheetItem("llmnpu", "shapes", "equivalent heights and widths of a product", "sec. 4", npuShapes, "dc_shape_search"),
	sheetItem("llmnpu", "memory", "weights on an NPU that addresses 4 GB", "sec. 4", npuMemory, "dc_npu_memory_limit"),
	sheetItem("llmnpu", "outliers", "shadow outlier execution", "Eq. 1, sec. 3.3, 4.4", npuOutliers,
		"dc_eq1_split_identity", "dc_outlier_density", "dc_prune_tradeoff"),
	sheetItem("llmnpu", "table5", "sums, speedups and means", "Table 5, sec. 4.3", npuTable5, "dc_t5_sums",
		"dc_t5_speedups", "dc_t5_geomeans"),
	sheetItem("llmnpu", "table6", "accuracy averages", "Table 6, sec. 2.3, 4.4", npuTable6, "dc_t6_averages",
		"dc_smoothquant_crosscheck"),
}

// npuFact is an entry of the paper's data.
func npuFact(id string) value { return fact("llmnpu", id) }
