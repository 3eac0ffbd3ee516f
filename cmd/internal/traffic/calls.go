package traffic

import (
	"fmt"
	"maps"
	"slices"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/runtime/serving"
)

// CallReport is what the program calls of one kind took, beside what the plan predicts of them: means in ms.
type CallReport struct {
	Kind        string  `json:"kind"`  // serving.CallKind
	Size        int     `json:"size"`  // serving.CallKey
	After       string  `json:"after"` // serving.After
	Calls       int64   `json:"calls"`
	ServedMS    float64 `json:"served_ms"`   // from the end of the call before, or the request's arrival after an idle time
	MeasuredMS  float64 `json:"measured_ms"` // of that, the call itself
	PredictedMS float64 `json:"predicted_ms"`
}

// callReports returns the means of these sums.
func callReports(times []serving.CallTimes) (out []CallReport) {
	for _, sum := range times {
		mean := func(ns int64) float64 { return float64(ns) / float64(sum.Calls) / 1e6 }
		out = append(out, CallReport{sum.Kind.String(), sum.Size, sum.After.String(), sum.Calls, mean(sum.ServedNS), mean(sum.CallNS),
			mean(sum.PlannedNS)})
	}
	return out
}

// merge adds up the calls of several servers.
func merge(lists ...[]serving.CallTimes) []serving.CallTimes {
	sums := map[serving.CallKey]serving.CallTimes{}
	for _, times := range slices.Concat(lists...) {
		sum := sums[times.CallKey]
		sums[times.CallKey] = serving.CallTimes{CallKey: times.CallKey, Calls: sum.Calls + times.Calls,
			ServedNS: sum.ServedNS + times.ServedNS, CallNS: sum.CallNS + times.CallNS, PlannedNS: sum.PlannedNS + times.PlannedNS}
	}
	return slices.SortedFunc(maps.Values(sums), func(a, b serving.CallTimes) int { return a.Compare(b.CallKey) })
}

// showCalls prints what program calls took.
func showCalls(ui *cli.Streams, times []serving.CallTimes) {
	var rows [][]string
	for _, row := range callReports(times) {
		ratio := "-"
		if row.PredictedMS > 0 {
			ratio = fmt.Sprintf("%.2f", row.ServedMS/row.PredictedMS)
		}
		rows = append(rows, []string{row.Kind, fmt.Sprint(row.Size), row.After, fmt.Sprint(row.Calls), fmt.Sprintf("%.3f", row.ServedMS),
			fmt.Sprintf("%.3f", row.MeasuredMS), fmt.Sprintf("%.3f", row.PredictedMS), ratio})
	}
	ui.Table([]string{"program call", ">size", "after", ">calls", ">served ms", ">call ms", ">predicted ms",
		">served / predicted"}, rows)
}

// measuredCalls returns the calls of all measured reports together.
func measuredCalls(reports []*Report) []serving.CallTimes {
	var lists [][]serving.CallTimes
	for _, report := range reports {
		if !report.Simulated {
			lists = append(lists, report.times)
		}
	}
	return merge(lists...)
}
