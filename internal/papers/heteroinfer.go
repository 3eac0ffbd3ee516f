package papers

// heteroinfer are the items of that paper (SOSP 2025).
var heteroinfer = []Item{
	{
		Paper: "heteroinfer", Name: "table3", Title: "the solver's decision for nine operators, and what it rests on", Source: "Table 3, sec. 4.2 and 4.4", Run: runTable3,
		Checks: []string{"dc_t3_exact_rows_strategy", "dc_t3_row8_ratio", "dc_t3_row5_padding", "dc_t3_row9_hybrid"},
	},
}
