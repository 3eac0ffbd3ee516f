package runcmd

import (
	"fmt"
	"time"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/machine"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/executor"
)

// began is as early as the program's own code can look at the clock.
var began = time.Now()

// stopwatch notes how long the parts of a start take, one after another.
type stopwatch struct {
	last  time.Time
	parts []part
}

// part is a piece of the time from the start of the process to its first token.
type part struct {
	Name string  `json:"part"`
	MS   float64 `json:"ms"`
}

// newStopwatch begins with the process; its first part is the command line.
func newStopwatch() *stopwatch {
	watch := &stopwatch{last: began}
	watch.mark("command line")
	return watch
}

// mark ends a part.
func (t *stopwatch) mark(name string) { t.split("", 0, name) }

// split ends a part of which another took some.
func (t *stopwatch) split(inner string, took time.Duration, name string) {
	now := time.Now()
	all := now.Sub(t.last)
	t.last = now
	if inner != "" {
		t.parts = append(t.parts, part{inner, ms(took)})
	}
	t.parts = append(t.parts, part{name, ms(all - took)})
}

// ms returns a time in milliseconds.
func ms(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// stats is the document of --stats.
type stats struct {
	Start        []part  `json:"start"` // up to the first token
	FirstTokenMS float64 `json:"first_token_ms"`
	LoadMS       float64 `json:"load_ms"` // all loading, that for later tokens included
	PeakBytes    int64   `json:"peak_bytes,omitempty"`
	PredictBytes int64   `json:"predicted_peak_bytes"`   // by the plan, for as many positions
	CopiedBytes  int64   `json:"copied_bytes,omitempty"` // of both: weights that --copy holds, used or not
	// by the plan, of all programs and a full context: what solve prints
	MostBytes int64 `json:"predicted_most_bytes"`
	Loaded    int   `json:"programs_loaded"`
	Programs  int   `json:"programs"`
	Positions int   `json:"positions"`          // in the cache at the end
	Context   int   `json:"context"`            // positions that the cache has
	Emulated  bool  `json:"emulated,omitempty"` // times are those of an emulator, not of a device
	// of products with shadow outliers: how many channels exceeded their scale
	Outliers []executor.OutlierStat `json:"outliers,omitempty"`
	// what became of the rows that routers sent to experts, where the plan has capacity tiers
	Experts []expertStats `json:"experts,omitempty"`
}

// expertStats are those of a layer in a program. Rates are shares of the routed rows; the expected ones are of calls
// with as many tokens as the program has rows.
type expertStats struct {
	Program        string  `json:"program"`
	Layer          int     `json:"layer"`
	Routed         int64   `json:"rows_routed"`
	Moved          int64   `json:"rows_moved"` // to the groups of their experts
	Dropped        int64   `json:"rows_dropped"`
	Padded         int64   `json:"rows_padded"` // reserved and not used
	OverflowRate   float64 `json:"overflow_rate"`
	ExpectOverflow float64 `json:"expected_overflow_rate"`
	ExpectMoved    float64 `json:"expected_moved_rate"`
	Drift          float64 `json:"drift"` // of full calls
	Stale          bool    `json:"stale,omitempty"`
}

// stats returns the times up to the first token, and what memory was used.
func (t *stopwatch) stats(running *executor.Machine, prompt int, tokenizer bool, copied int64) *stats {
	out := &stats{
		Start: t.parts, LoadMS: ms(running.LoadTime()), PeakBytes: machine.PeakMemory(),
		Emulated: len(running.Emulated()) > 0,
	}
	plan, loaded := running.Plan(), running.Loaded()
	// what the plan predicts for as much as was loaded and computed here, and for all of it
	predicted := planir.MemoryAt(plan,
		planir.Extent{Programs: loaded, Positions: running.Pos(), Rows: prompt, Tokenizer: tokenizer})
	most := predicted
	if plan.Memory != nil {
		most = *plan.Memory
	}
	out.PredictBytes, out.MostBytes, out.CopiedBytes = predicted.Total, most.Total, copied
	if copied > 0 { // all of them instead of what is read
		out.PredictBytes += copied - predicted.Weights - predicted.Tables
		out.MostBytes += copied - most.Weights - most.Tables
	}
	out.Loaded, out.Programs = len(loaded), len(plan.Program.Programs)
	out.Positions, out.Context = running.Pos(), plan.MaxContext
	out.Outliers = running.Outliers()
	for _, part := range t.parts {
		out.FirstTokenMS += part.MS
	}
	for _, stat := range running.Experts() {
		out.Experts = append(out.Experts, expertStats{
			Program: stat.Program, Layer: stat.Layer, Routed: stat.Routed, Moved: stat.Moved, Dropped: stat.Dropped,
			Padded: stat.Reserved - stat.Moved, OverflowRate: float64(stat.Overflow) / float64(max(1, stat.Routed)),
			ExpectOverflow: stat.ExpectOverflow, ExpectMoved: stat.ExpectMoved, Drift: stat.Drift(), Stale: stat.Stale(),
		})
	}
	return out
}

// printExperts shows what became of routed rows, by layer, and whether the plan was made for other ones.
func (x *stats) printExperts(ui *cli.Streams) {
	if len(x.Experts) == 0 {
		return
	}
	percent := func(share float64) string { return fmt.Sprintf("%.1f", 100*share) }
	var rows [][]string
	stale := 0
	for _, layer := range x.Experts {
		rows = append(rows, []string{layer.Program, fmt.Sprint(layer.Layer), fmt.Sprint(layer.Routed),
			fmt.Sprint(layer.Moved), percent(layer.OverflowRate), percent(layer.ExpectOverflow), fmt.Sprint(layer.Dropped),
			fmt.Sprint(layer.Padded), percent(layer.Drift)})
		if layer.Stale {
			stale++
		}
	}
	ui.Table([]string{"experts", ">layer", ">rows routed", ">moved", ">overflow %", ">expected %", ">dropped", ">padded",
		">drift %"}, rows)
	if stale > 0 {
		ui.Printf("in %d of %d layers routing is not what the plan was made for: trace it again with hetc loads --text, "+
			"and solve with it\n", stale, len(x.Experts))
	}
}

// print shows them in the order in which they passed.
func (x *stats) print(ui *cli.Streams) {
	rows := make([][]string, 0, len(x.Start)+1)
	for _, part := range x.Start {
		rows = append(rows, []string{part.Name, fmt.Sprintf("%.1f", part.MS)})
	}
	rows = append(rows, []string{"first token", fmt.Sprintf("%.1f", x.FirstTokenMS)})
	head := ">ms"
	if x.Emulated {
		head = ">ms (emulated, not device time)"
	}
	ui.Table([]string{"start", head}, rows)
	if x.PeakBytes > 0 {
		off := 100 * (float64(x.PeakBytes)/float64(x.PredictBytes) - 1)
		ui.Printf("peak memory: %v, %+.1f %% from the %v that the plan predicts of this run, with %d of %d programs "+
			"loaded and %d of %d positions used (at most %v with all)\n",
			unit.Bytes(x.PeakBytes), off, unit.Bytes(x.PredictBytes), x.Loaded, x.Programs, x.Positions, x.Context,
			unit.Bytes(x.MostBytes))
		if x.CopiedBytes > 0 {
			ui.Printf("of it %v: all weights of the bundle, in private memory (--copy)\n", unit.Bytes(x.CopiedBytes))
		}
	}
	x.printExperts(ui)
	printOutliers(ui, x.Outliers)
}

// printOutliers shows how many channels exceeded static scales, and how many calls had more than one pass multiplies.
func printOutliers(ui *cli.Streams, list []executor.OutlierStat) {
	if len(list) == 0 {
		return
	}
	var rows [][]string
	var beyond, channels, cold int64
	for _, x := range list {
		rows = append(rows, []string{x.Program, x.Node, fmt.Sprint(x.Calls),
			fmt.Sprintf("%.1f", float64(x.Channels)/float64(x.Calls)), fmt.Sprint(x.Most), fmt.Sprint(x.Bound),
			fmt.Sprint(x.Beyond), fmt.Sprint(x.Hot), fmt.Sprintf("%.1f", 100*float64(x.Cold)/float64(max(1, x.Channels)))})
		beyond, channels, cold = beyond+x.Beyond, channels+x.Channels, cold+x.Cold
	}
	ui.Table([]string{"program", "outliers", ">calls", ">mean channels", ">most", ">bound", ">beyond it", ">hot rows",
		">cold %"}, rows)
	ui.Printf("of %d channels with outliers %d were cold: their rows were read from the bundle, verified before the first time\n",
		channels, cold)
	if beyond > 0 {
		ui.Printf("%d calls had more channels with outliers than their bound: computed all the same, in several passes\n",
			beyond)
	}
}
