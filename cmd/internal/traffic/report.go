package traffic

import (
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/runtime/scheduler"
	"github.com/hetc/hetc/runtime/serving"
)

// Report is how a trace went under a policy.
type Report struct {
	Policy    scheduler.Policy `json:"policy"`
	Load      string           `json:"load,omitempty"`    // factor of the arrival rates, where several are measured
	Idle      bool             `json:"idle,omitempty"`    // only the reactive requests of the trace, for comparison
	Simulated bool             `json:"simulated"`         // by predicted times, on a virtual clock
	Virtual   bool             `json:"virtual,omitempty"` // executed on the virtual clock of a simulated SoC
	Classes   []ClassReport    `json:"classes"`
	Seconds   float64          `json:"seconds"`      // until the last request ended
	Rate      float64          `json:"tokens_per_s"` // generated, of all requests
	Busy      float64          `json:"busy"`         // share of that time in program calls
	Counts    scheduler.Counts `json:"-"`
	Preempted int64            `json:"preemptions"`
	Beside    int64            `json:"chunks_beside"` // processed beside decoding
	// Calls are those of a measurement. Of a simulation, they are what its times are from, if not from the plan alone.
	Calls    []CallReport `json:"program_calls,omitempty"`
	ReadMS   float64      `json:"read_ms,omitempty"` // mean time that first tokens were there before their clients had them
	times    []serving.CallTimes
	Handover *HandoverReport `json:"handover,omitempty"` // of a measurement on a real machine
	// of a simulation: how long processors work, and the energy of a token that was processed or generated, modelled
	Processors []ProcessorReport `json:"processors,omitempty"`
	Processed  int64             `json:"processed_tokens"` // prompts but for what was cached, and generated
	TokenJ     float64           `json:"modelled_j_a_token,omitempty"`
}

// ClassReport is what the requests of a class got. Times are in milliseconds; the 95th percentile is of the requests.
type ClassReport struct {
	Class    string  `json:"class"`
	Requests int     `json:"requests"`
	TTFT     float64 `json:"ttft_ms"` // mean time to the first token
	TTFT95   float64 `json:"ttft_p95_ms"`
	PerToken float64 `json:"per_token_ms"`         // mean time between tokens
	Latency  float64 `json:"latency_per_token_ms"` // time of the whole request by tokens generated
	// Normalised is the mean time of a whole request by its tokens, those of the prompt included (Agent.xpu sec. 6.1).
	Normalised   float64 `json:"latency_per_token_in_and_out_ms"`
	Normalised90 float64 `json:"latency_per_token_in_and_out_p90_ms"`
	// Pending is the mean time until the first chunk of the prompt begins, of a simulation.
	Pending float64 `json:"pending_ms,omitempty"`
	Rate    float64 `json:"tokens_per_s"`
}

// course is when a request arrived, got its first token, and its last one: ns.
type course struct {
	class                scheduler.Class
	prompt, tokens       int // of the prompt, generated so far
	arrived, first, last int64
	read                 int64 // of the first token, from when it was there until its client had it; 0: not known
}

// summarise makes the report of a trace from the courses of its requests.
func summarise(policy scheduler.Policy, courses []course, busyNS int64, counts scheduler.Counts) *Report {
	out := &Report{Policy: policy, Counts: counts, Preempted: counts.Preemptions, Beside: counts.Beside}
	var end, tokens int64
	for i := range courses {
		end = max(end, courses[i].last)
		tokens += int64(courses[i].tokens)
	}
	out.Seconds = float64(end) / 1e9
	out.Rate = float64(tokens) / out.Seconds
	out.Busy = float64(busyNS) / float64(end)
	for _, class := range []scheduler.Class{scheduler.Reactive, scheduler.Proactive} {
		var waits, gaps, latencies, normalised []float64
		got := 0
		for i := range courses {
			c := &courses[i]
			if c.class != class {
				continue
			}
			got += c.tokens
			waits = append(waits, float64(c.first-c.arrived)/1e6)
			normalised = append(normalised, float64(c.last-c.arrived)/1e6/float64(c.prompt+c.tokens))
			latencies = append(latencies, float64(c.last-c.arrived)/1e6/float64(c.tokens))
			if c.tokens > 1 {
				gaps = append(gaps, float64(c.last-c.first)/1e6/float64(c.tokens-1))
			}
		}
		if len(waits) > 0 {
			out.Classes = append(out.Classes, ClassReport{Class: class.String(), Requests: len(waits), TTFT: mean(waits),
				TTFT95: percentile(waits, 0.95), PerToken: mean(gaps), Latency: mean(latencies), Normalised: mean(normalised),
				Normalised90: percentile(normalised, 0.9), Rate: float64(got) / out.Seconds})
		}
	}
	return out
}

// mean is 0 of no values.
func mean(values []float64) float64 {
	sum := 0.0
	for _, value := range values {
		sum += value
	}
	return sum / math.Max(1, float64(len(values)))
}

// percentile returns the smallest value that at least this share of the values do not exceed.
func percentile(values []float64, share float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}

// Show prints reports as a table, a line for each policy and class.
func Show(ui *cli.Streams, reports []*Report) {
	var rows [][]string
	for _, report := range reports {
		how := "measured"
		switch {
		case report.Simulated:
			how = "simulated"
		case report.Virtual:
			how = "virtual clock"
		}
		policy := string(report.Policy)
		if report.Idle {
			policy = "reactive alone"
		}
		for _, class := range report.Classes {
			rows = append(rows, []string{report.Load, policy, how, class.Class, fmt.Sprint(class.Requests),
				fmt.Sprintf("%.1f", class.TTFT), fmt.Sprintf("%.1f", class.TTFT95), fmt.Sprintf("%.2f", class.PerToken),
				fmt.Sprintf("%.2f", class.Latency), fmt.Sprintf("%.1f", class.Rate),
				fmt.Sprintf("%.0f %%", 100*report.Busy), fmt.Sprint(report.Preempted), fmt.Sprint(report.Beside)})
		}
	}
	header := []string{"load", "policy", "times", "class", ">requests", ">first token ms", ">p95 ms", ">ms a token",
		">latency ms a token", ">tokens/s", ">busy", ">preemptions", ">chunks beside"}
	if !slices.ContainsFunc(reports, func(report *Report) bool { return report.Load != "" }) {
		header = header[1:]
		for i := range rows {
			rows[i] = rows[i][1:]
		}
	}
	ui.Table(header, rows)
}
