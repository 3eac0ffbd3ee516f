package traffic

import (
	"context"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/scheduler"
	"github.com/hetc/hetc/runtime/serving"
	"github.com/hetc/hetc/socs"
)

// planOf has programs of 1 and 100 rows and batches of 4, on a processor that pads.
func planOf() *planir.Plan {
	plan := &planir.Plan{MaxContext: 1024, Batches: []int{4}, Procs: make([]planir.Proc, 1)}
	plan.Program.Programs = []planir.PhaseProgram{
		{Name: "decode", Phase: "decode", Rows: 1},
		{Name: "decode@4", Phase: "decode", Rows: 4},
		{Name: "prefill@100", Phase: "prefill", Rows: 100},
	}
	pads := []planir.Section{{Lanes: []planir.Lane{{Steps: make([]planir.Step, 1)}}}}
	for i := range plan.Program.Programs {
		plan.Program.Programs[i].Sections = pads
	}
	plan.Program.Decider = []planir.Decide{
		{Min: 1, Max: 1, Program: "decode"},
		{Min: 2, Max: 1024, Program: "prefill@100"},
	}
	plan.Predictions = []planir.Prediction{
		{Program: "decode", PlanNS: 10e6},
		{Program: "decode@4", PlanNS: 12e6},
		{Program: "prefill@100", PlanNS: 50e6},
	}
	return plan
}

// besidePlan has processors "a" and "b" as well. A chunk of 100 tokens takes "b" 90 ms beside decoding one request on
// "a", whose iterations take 12 ms meanwhile.
func besidePlan() *planir.Plan {
	plan := planOf()
	plan.Beside = &planir.Beside{Prefill: "b", Decode: "a", Pairs: []planir.BesidePair{
		{PrefillRows: 100, DecodeRows: 1, PrefillNS: 90e6, DecodeNS: 12e6},
		{PrefillRows: 100, DecodeRows: 4, PrefillNS: 96e6, DecodeNS: 14e6},
	}}
	return plan
}

// near tells whether two numbers differ by less than a bound.
func near(a, b, bound float64) bool { return math.Abs(a-b) <= bound }

// sameTimes tells whether two reports of a class have the same times in ms, up to a bound.
func sameTimes(a, b ClassReport, bound float64) bool {
	return near(a.TTFT, b.TTFT, bound) && near(a.Pending, b.Pending, bound) && near(a.PerToken, b.PerToken, bound) &&
		near(a.Latency, b.Latency, bound)
}

// twoRequests are a background request, and a reactive one that arrives while the first one is answered.
var twoRequests = []Request{
	{AtMS: 5, Class: "proactive", Prompt: 150, Output: 4},
	{AtMS: 20, Class: "reactive", Prompt: 80, Output: 2},
}

// The times of two requests under every policy are those that were counted by hand. The first request takes two chunks
// of 50 ms and three iterations of 10 ms, and the second one a chunk and an iteration.
func TestSimulateByHand(t *testing.T) {
	for _, c := range []struct {
		policy              scheduler.Policy
		reactive, proactive ClassReport
	}{
		{
			// 5..55..105 first token of the proactive one, ..135 its last; 185 the first of the reactive one, 195 its
			// last
			policy:    scheduler.FCFS,
			reactive:  ClassReport{TTFT: 165, Pending: 115, PerToken: 10, Latency: 175.0 / 2},
			proactive: ClassReport{TTFT: 100, PerToken: 10, Latency: 130.0 / 4},
		},
		{
			// 105 first of the proactive one, 155 first of the reactive one, 167 both, and the rest alone: 187
			policy:    scheduler.Batching,
			reactive:  ClassReport{TTFT: 135, Pending: 85, PerToken: 12, Latency: 147.0 / 2},
			proactive: ClassReport{TTFT: 100, PerToken: (187 - 105) / 3.0, Latency: 182.0 / 4},
		},
		{
			// 55 the first chunk, 105 first of the reactive one, 115 its last; 165 first of the proactive one, 195 its
			// last
			policy:    scheduler.Full,
			reactive:  ClassReport{TTFT: 85, Pending: 35, PerToken: 10, Latency: 95.0 / 2},
			proactive: ClassReport{TTFT: 160, PerToken: 10, Latency: 190.0 / 4},
		},
	} {
		config := scheduler.Default(4)
		config.Policy = c.policy
		report, err := Simulate(t.Context(), planOf(), twoRequests, config)
		if err != nil {
			t.Fatal(err)
		}
		if len(report.Classes) != 2 || !report.Simulated {
			t.Fatalf("%s: %+v", c.policy, report)
		}
		if got := report.Classes[0]; !sameTimes(got, c.reactive, 1e-9) {
			t.Errorf("%s: reactive %+v, want %+v", c.policy, got, c.reactive)
		}
		if got := report.Classes[1]; !sameTimes(got, c.proactive, 1e-9) {
			t.Errorf("%s: proactive %+v, want %+v", c.policy, got, c.proactive)
		}
	}
}

// Times that were measured in the server are added as counted by hand, one request after the other. Of two chunks of 50
// ms the first one, after an idle time, takes 3 ms more in the server, the second 1 ms. Iterations of 10 ms take 11,
// and clients have tokens 0.5 ms later.
func TestSimulateServedByHand(t *testing.T) {
	config := scheduler.Default(4)
	config.Policy = scheduler.FCFS
	idle := serving.CallKey{Kind: serving.ChunkCall, Size: 100, After: serving.AfterIdle(5e6)}
	last := serving.CallKey{Kind: serving.LastChunkCall, Size: 100}
	step := serving.CallKey{Kind: serving.DecodeCall, Size: 1}
	overheads := &Overheads{ReadNS: 500e3, Calls: []serving.CallTimes{
		{CallKey: idle, Calls: 2, ServedNS: 106e6, PlannedNS: 100e6},
		{CallKey: last, Calls: 3, ServedNS: 93e6, PlannedNS: 90e6},
		{CallKey: step, Calls: 1, ServedNS: 11e6, PlannedNS: 10e6},
	}}

	report, err := simulateServed(t.Context(), planOf(), twoRequests, config, overheads)
	if err != nil {
		t.Fatal(err)
	}

	reactive, proactive := report.Classes[0], report.Classes[1]
	if !near(proactive.TTFT, 104.5, 1e-9) || !near(proactive.PerToken, 11, 1e-9) {
		t.Errorf("proactive %+v, want a first token after 104.5 ms and 11 ms a token", proactive)
	}
	ended := 5.0 + 53 + 51 + 3*11 // the proactive one
	if want := ended - 20 + 51.5; !near(reactive.TTFT, want, 1e-9) || !near(reactive.PerToken, 11, 1e-9) {
		t.Errorf("reactive %+v, want a first token after %v ms and 11 ms a token", reactive, want)
	}
}

// A call takes in the server the plan's time and what that kind of call took beyond it, or less by a factor where it
// took less.
func TestServedTimes(t *testing.T) {
	const call, other = serving.AfterSame, serving.AfterOther
	short, long, longest := serving.AfterIdle(5e6), serving.AfterIdle(50e6), serving.AfterIdle(5e9)
	key := func(kind serving.CallKind, size int, after serving.After) serving.CallKey {
		return serving.CallKey{Kind: kind, Size: size, After: after}
	}
	overheads := &Overheads{Calls: []serving.CallTimes{
		{CallKey: key(serving.ChunkCall, 32, call), Calls: 10, ServedNS: 1500, PlannedNS: 1000},
		{CallKey: key(serving.ChunkCall, 64, call), Calls: 10, ServedNS: 700, PlannedNS: 1000},
		{CallKey: key(serving.ChunkCall, 64, short), Calls: 1, ServedNS: 1300, PlannedNS: 100},
		{CallKey: key(serving.ChunkCall, 16, long), Calls: 1, ServedNS: 2300, PlannedNS: 100},
		{CallKey: key(serving.ChunkCall, 64, long), Calls: 2, ServedNS: 3600, PlannedNS: 200},
		{CallKey: key(serving.DecodeCall, 2, call), Calls: 4, ServedNS: 480, PlannedNS: 400},
		{CallKey: key(serving.DecodeCall, 3, other), Calls: 2, ServedNS: 600, PlannedNS: 400},
		{CallKey: key(serving.VerifyCall, 2, call), Calls: 4, ServedNS: 480},
	}}
	for _, test := range []struct {
		key  serving.CallKey
		want int64 // of 200 ns
		why  string
	}{
		{key(serving.ChunkCall, 32, call), 250, "50 ns beyond the plan"},
		{key(serving.ChunkCall, 64, call), 140, "0.7 of the plan"},
		{key(serving.ChunkCall, 64, short), 1400, "after a short idle time"},
		{key(serving.ChunkCall, 64, long), 1900, "after a longer one"},
		{key(serving.ChunkCall, 64, longest), 1900, "after the longest of the idle times that were seen"},
		{key(serving.ChunkCall, 32, short), 1400, "the nearest size after such an idle time"},
		{key(serving.ChunkCall, 32, longest), 2400, "the nearest size after the longest"},
		{key(serving.ChunkCall, 48, call), 250, "the smaller of two sizes"},
		{key(serving.ChunkCall, 49, call), 140, "the nearer of two sizes"},
		{key(serving.DecodeCall, 1, other), 300, "after another call"},
		{key(serving.DecodeCall, 1, call), 220, "after the same one"},
		{key(serving.DecodeCall, 1, short), 300, "never seen after an idle time"},
		{key(serving.ChunkCall, 64, other), 140, "never seen after another call"},
		{key(serving.VerifyCall, 2, call), 200, "the plan predicted nothing"},
		{key(serving.LastChunkCall, 32, call), 200, "never seen"},
	} {
		if got := overheads.served(test.key, 200); got != test.want {
			t.Errorf("%+v, %s: got %d ns, want %d", test.key, test.why, got, test.want)
		}
	}
	if got := (*Overheads)(nil).served(key(serving.ChunkCall, 32, call), 200); got != 200 {
		t.Errorf("with nothing known: got %d ns, want 200", got)
	}
}

// In each trace every number of requests comes at a time, within the context of any plan, and the machine is about as
// busy as it shall be.
func TestBursts(t *testing.T) {
	plan := planOf()
	for _, context := range []int{2, 20, 1024} {
		plan.MaxContext = context
		for slots := 1; slots <= 4; slots++ {
			for _, busy := range []float64{0, 0.2, 0.6, 1} {
				for _, trace := range bursts(plan, slots, 150, 3, busy) {
					if err := fits(plan, trace); err != nil {
						t.Errorf("a context of %d, %d slots: %v", context, slots, err)
					}
					together := map[float64]int{}
					for _, request := range trace {
						together[request.AtMS]++
					}
					times := make([]int, slots+1)
					for _, count := range together {
						times[count]++
					}
					if slices.Min(times[1:]) < 1 {
						t.Errorf("a context of %d: requests came together %v times", context, times)
					}
					config := scheduler.Default(slots)
					config.Policy = scheduler.FCFS
					report, err := Simulate(t.Context(), plan, trace, config)
					if err != nil {
						t.Fatal(err)
					}
					// Pauses are never so long that a large model would be measured for minutes.
					if want := min(busy, mostBusy); report.Busy < want-0.2 || busy == 0.6 && report.Busy > 0.85 {
						t.Errorf("a context of %d, %d slots: the machine is busy for %.3f of the time, want %g",
							context, slots, report.Busy, want)
					}
				}
			}
		}
	}
}

// The server on this machine is measured with all numbers of requests at a time, with and without an idle time before
// them.
func TestOverheadsOfBursts(t *testing.T) {
	const slots = 4
	machine := onOneCore(t)
	config := scheduler.Default(slots)
	config.Policy = scheduler.Batching
	report, err := Measure(t.Context(), machine, bursts(machine.Plan(), slots, 150, 1, 0.3)[0][:60], config)
	if err != nil {
		t.Fatal(err)
	}
	got := overheadsOf([]*Report{report})
	if got.ReadNS <= 0 {
		t.Errorf("clients have their first tokens %d ns after they are there, want more than 0", got.ReadNS)
	}
	seen := map[serving.CallKey]bool{}
	for _, sum := range got.Calls {
		seen[sum.CallKey] = true
		if sum.Calls < 1 || sum.ServedNS < sum.CallNS || sum.CallNS < sum.Calls {
			t.Errorf("%+v: want calls that take time, and longer in the server", sum)
		}
	}
	want := []serving.CallKey{
		{Kind: serving.ChunkCall, Size: 64},
		{Kind: serving.ChunkCall, Size: 64, After: serving.AfterIdle(50e6)},
		{Kind: serving.LastChunkCall, Size: 16, After: serving.AfterOther},
		{Kind: serving.LastChunkCall, Size: 64, After: serving.AfterOther},
	}
	for n := 1; n <= slots; n++ {
		want = append(want, serving.CallKey{Kind: serving.DecodeCall, Size: n})
	}
	for _, key := range want {
		if !seen[key] {
			t.Errorf("no call of %+v was measured", key)
		}
	}
}

// A prompt is processed beside decoding as counted by hand: 90 ms a chunk, and 12 ms an iteration meanwhile. The
// reactive request has its prompt at 50 and a token at 60, when the proactive one comes; of its chunk 8 iterations pass
// until 156; one for both until 168; the reactive one alone until 258.
func TestSimulateBesideByHand(t *testing.T) {
	trace := []Request{
		{AtMS: 0, Class: "reactive", Prompt: 100, Output: 20},
		{AtMS: 60, Class: "proactive", Prompt: 140, Cached: 40, Output: 2},
	}
	report, err := Simulate(t.Context(), besidePlan(), trace, scheduler.Default(4))
	if err != nil {
		t.Fatal(err)
	}

	for _, got := range report.Classes {
		want := ClassReport{TTFT: 50, PerToken: 208.0 / 19, Latency: 258.0 / 20}
		if got.Class == "proactive" {
			want = ClassReport{TTFT: 96, PerToken: 12, Latency: 108.0 / 2}
		}
		want.Pending = got.Pending // is not counted here
		if !sameTimes(got, want, 1e-5) {
			t.Errorf("%s: %+v, want %+v", got.Class, got, want)
		}
	}
	if len(report.Classes) != 2 || report.Beside != 1 {
		t.Errorf("%d classes, %d chunks beside decoding, want 2 and 1", len(report.Classes), report.Beside)
	}
}

// lane is a lane of one step on a processor.
func lane(proc string, ns int64) planir.Lane {
	return planir.Lane{Proc: proc, Steps: []planir.Step{{ExpectNS: ns}}}
}

// A chunk that is not its prompt's last one computes no logits, and keeps no processor busy with them. By hand: of 250
// tokens two calls take 40 ms of "a", and the last one these and 10 ms of "b"; then an iteration takes 8 and 2 ms.
func TestBusyWithoutLogitsByHand(t *testing.T) {
	plan := planOf()
	plan.Procs = []planir.Proc{{Name: "a"}, {Name: "b"}}
	for i, ns := range []int64{10e6, 12e6, 50e6} {
		program := &plan.Program.Programs[i]
		program.Sections = []planir.Section{
			{Name: "layers", Lanes: []planir.Lane{lane("a", ns*4/5)}},
			{Name: "head", Logits: true, Lanes: []planir.Lane{lane("b", ns/5)}},
		}
		plan.Predictions[i].Sections = []planir.SectionTime{
			{Section: "layers", NS: ns * 4 / 5},
			{Section: "head", NS: ns / 5},
		}
	}
	trace := []Request{{Class: "reactive", Prompt: 250, Output: 2}}

	report, err := Simulate(t.Context(), plan, trace, scheduler.Default(4))
	if err != nil {
		t.Fatal(err)
	}

	if len(report.Processors) != 2 || math.Abs(report.Seconds-0.140) > 1e-9 {
		t.Fatalf("%+v, want two processors and 0.14 s", report)
	}
	for i, want := range []float64{128, 12} {
		if got := report.Processors[i].Busy * report.Seconds * 1e3; math.Abs(got-want) > 1e-5 {
			t.Errorf("%s is busy for %v ms, want %v", report.Processors[i].Proc, got, want)
		}
	}
}

// A chunk of prefill keeps its processor busy until the chunk ends, and not until the iteration ends in which it does.
// By hand, with the times of TestSimulateBesideByHand: "a" works from 0 to 258, and "b" for one chunk of 90 ms, in the
// last 6 ms of whose 8 iterations it has nothing to do. In the second trace 3 iterations of 14 ms for two requests do
// 42 of the 96 ms that the chunk takes beside them. The rest is 54/96 of the 90 ms that it takes beside one request:
// 50.625 ms, within 5 iterations of 12.
func TestBusyBesideByHand(t *testing.T) {
	plan := besidePlan()
	plan.Procs = []planir.Proc{{Name: "a"}, {Name: "b"}}
	for i, ns := range []int64{10e6, 12e6, 50e6} {
		plan.Program.Programs[i].Sections = []planir.Section{{Lanes: []planir.Lane{lane("a", ns)}}}
	}
	for _, test := range []struct {
		trace []Request
		b     float64 // ms
	}{
		{
			trace: []Request{
				{Class: "reactive", Prompt: 100, Output: 20},
				{AtMS: 60, Class: "proactive", Prompt: 100, Output: 2},
			},
			b: 90,
		},
		{ // a token of the first one between the two prompts, until 110; then the second one wants three more
			trace: []Request{
				{Class: "reactive", Prompt: 100, Output: 20},
				{Class: "reactive", Prompt: 100, Output: 4},
				{AtMS: 105, Class: "proactive", Prompt: 100, Output: 2},
			},
			b: 42 + 50.625,
		},
	} {
		report, err := Simulate(t.Context(), plan, test.trace, scheduler.Default(4))
		if err != nil {
			t.Fatal(err)
		}
		if report.Beside != 1 || len(report.Processors) != 2 {
			t.Fatalf("%+v, want one chunk beside decoding", report)
		}
		all := report.Seconds * 1e3
		a, b := report.Processors[0].Busy*all, report.Processors[1].Busy*all
		if !near(a, all, 1e-5) || !near(b, test.b, 1e-5) {
			t.Errorf("in %v ms a is busy for %v ms and b for %v, want all the time and %v", all, a, b, test.b)
		}
	}
}

// A plan may have pairs for fewer sequences than come to decode beside a chunk. Their iterations take time, too. By
// hand: the chunk of the first background prompt begins at 50 beside one request, and ends with its eighth iteration,
// at 146. That of the second one begins then, beside two requests of which the background one ends at 194, and ends at
// 242.
func TestSimulateBesideMoreThanPairs(t *testing.T) {
	plan := besidePlan()
	plan.Beside.Pairs = plan.Beside.Pairs[:1]
	trace := []Request{
		{Class: "reactive", Prompt: 100, Output: 20},
		{Class: "proactive", Prompt: 100, Output: 5},
		{AtMS: 100, Class: "proactive", Prompt: 100, Output: 1},
	}
	report, err := Simulate(t.Context(), plan, trace, scheduler.Default(4))
	if err != nil {
		t.Fatal(err)
	}
	if want := 0.272; report.Beside != 2 || math.Abs(report.Seconds-want) > 1e-9 {
		t.Errorf("%d chunks beside decoding in %v s, want 2 in %v", report.Beside, report.Seconds, want)
	}
}

// A trace is drawn again the same, has about as many requests as asked for, and is read back as it was written.
func TestDraw(t *testing.T) {
	pattern := Pattern{
		Seconds:   6000,
		Reactive:  3,
		Proactive: 12,
		Prompt:    Range{10, 20},
		Output:    Range{5, 5},
		Seed:      3,
	}
	trace, err := pattern.Draw()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(trace); n < 1350 || n > 1650 {
		t.Errorf("%d requests, want some 1,500", n)
	}

	again, err := pattern.Draw()
	if err != nil || !slices.Equal(trace, again) {
		t.Errorf("another trace the second time: %v", err)
	}
	text, err := Text(trace)
	if err != nil {
		t.Fatal(err)
	}
	back, err := parse("trace.jsonl", text)
	if err != nil || !slices.Equal(back, trace) {
		t.Errorf("read back differently: %v", err)
	}
}

// A pattern without a time or without requests, or with endless numbers, is not drawn.
func TestBadPatterns(t *testing.T) {
	for _, bad := range []Pattern{
		{},
		{Seconds: 1, Reactive: -1},
		{Seconds: math.Inf(1), Reactive: 1},
		{Seconds: math.NaN(), Reactive: 1},
		{Seconds: 1e9, Reactive: 1e5},
	} {
		if _, err := bad.Draw(); err == nil {
			t.Errorf("drawn: %+v", bad)
		}
	}
}

// A trace with a bad line is refused, and the error says what is wrong and where.
func TestBadTraces(t *testing.T) {
	const good = `{"at_ms": 1, "class": "reactive", "prompt_tokens": 2, "output_tokens": 3}`
	with := func(old, new string) string { return strings.Replace(good, old, new, 1) }
	for text, want := range map[string]string{
		"":                     "no request",
		"[" + good + "]":       "t:1: the line: want an object, got array",
		good + good:            "more than one",
		good + "\n{":           "t:2:",
		with("at_ms", "at"):    `t:1: unknown field "at"`,
		with("1", "-1"):        "at_ms",
		with("1", "null"):      "at_ms is missing",
		with("1", `"1"`):       "t:1: at_ms: want a number, got string",
		with("2", "0"):         "at least 1",
		with("2", "2.5"):       "t:1: prompt_tokens: want a whole number, got number 2.5",
		with("reactive", "no"): "class",

		with(`"at_ms": 1, `, ""):                         "at_ms is missing",
		with(`"reactive"`, "5"):                          "t:1: class: want a text, got number",
		with("output", `cached_tokens": 2, "output`):     "cached",
		with("output", `guessed_tokens": -1, "output`):   "0 of -1 guessed",
		with("output", `right_tokens": 1, "output`):      "1 of 0 guessed",
		good + "\n" + with("{", `{"Prompt_tokens": 9, `): `t:2: key "prompt_tokens" twice`,
	} {
		if _, err := parse("t", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// A flag that says how a trace is drawn is refused beside a trace that is there.
func TestDrawingBesideATrace(t *testing.T) {
	for _, flag := range drawing {
		var options Options
		flags := pflag.NewFlagSet("simulate", pflag.ContinueOnError)
		options.Register(flags)
		flags.Float64SliceVar(&options.Loads, "loads", nil, "")
		if err := flags.Parse([]string{"--trace", "absent.jsonl", "--" + flag, "5"}); err != nil {
			t.Fatal(err)
		}

		_, err := options.loads(nil)
		if diag.ClassOf(err) != diag.ClassUsage || !strings.Contains(err.Error(), "--"+flag+" is for") {
			t.Errorf("--%s: got %v", flag, err)
		}
	}
}

// A context of 1024 holds a prompt and all of its answer but the last token, as hetserve answers and records it.
func TestTraceFitsTheContext(t *testing.T) {
	for _, request := range []struct {
		prompt, output int
		fits           bool
	}{
		{prompt: 1000, output: 24, fits: true},
		{prompt: 1000, output: 25, fits: true},
		{prompt: 1000, output: 26, fits: false},
		{prompt: 1024, output: 1, fits: true},
		{prompt: 1025, output: 1, fits: false},
		{prompt: 1, output: 1024, fits: true},
		{prompt: 1, output: 1025, fits: false},
		{prompt: 1, output: math.MaxInt, fits: false},
		{prompt: math.MaxInt, output: 1, fits: false},
		{prompt: math.MaxInt, output: math.MaxInt, fits: false},
	} {
		err := fits(planOf(), []Request{{Class: "reactive", Prompt: request.prompt, Output: request.output}})
		if (err == nil) != request.fits {
			t.Errorf("%d tokens and an answer of %d: got %v", request.prompt, request.output, err)
		}
		if err != nil && (diag.ClassOf(err) != diag.ClassInput || len(diag.HintsOf(err)) == 0) {
			t.Errorf("%d tokens and an answer of %d: got %v, want a hint", request.prompt, request.output, err)
		}
	}
}

// Times that no server has neither stop the clock nor turn it back.
func TestServedTimesWithinAClock(t *testing.T) {
	trace := []Request{{Class: "reactive", Prompt: 80, Output: 4}}
	of := func(servedNS, plannedNS int64) *Overheads {
		out := &Overheads{}
		chunk := serving.CallKey{Kind: serving.LastChunkCall, Size: 100}
		step := serving.CallKey{Kind: serving.DecodeCall, Size: 1}
		for _, key := range []serving.CallKey{chunk, step} {
			out.Calls = append(out.Calls,
				serving.CallTimes{CallKey: key, Calls: 1, ServedNS: servedNS, PlannedNS: plannedNS})
		}
		return out
	}
	report, err := simulateServed(t.Context(), planOf(), trace, scheduler.Default(4), of(1, math.MaxInt64/4))
	if err != nil || !(report.Seconds > 0) || math.IsInf(report.Rate, 0) || math.IsNaN(report.Busy) {
		t.Errorf("calls that take nothing: got %+v (%v), want numbers", report, err)
	}
	_, err = simulateServed(t.Context(), planOf(), trace, scheduler.Default(4), of(math.MaxInt64/2-1, 1))
	if diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("calls that take longer than a clock counts: got %v, want them refused", err)
	}
}

// FuzzParse refuses a trace, or finds one that is written and read again as the same.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"at_ms": 1, "class": "reactive", "prompt_tokens": 2, "output_tokens": 3}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		trace, err := parse("t", data)
		if err != nil {
			return
		}
		text, err := Text(trace)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := parse("t", text); err != nil || !slices.Equal(back, trace) {
			t.Fatalf("read back as %v (%v), want %v", back, err, trace)
		}
	})
}

// Energy is the power of each processor for as long as it is busy, and utilisation its share of the time. It is counted
// by hand of a chunk of which two processors work half and all of the time, and of two iterations of one of them.
func TestEnergy(t *testing.T) {
	plan := planOf()
	plan.Procs = []planir.Proc{{Name: "gpu"}, {Name: "npu"}}
	decode, prefill := &plan.Program.Programs[0], &plan.Program.Programs[2]
	decode.Sections = []planir.Section{{Layers: 2, Lanes: []planir.Lane{lane("gpu", 4e6)}}} // 8 of 10 ms
	prefill.Sections = []planir.Section{
		{Layers: 2, Lanes: []planir.Lane{lane("gpu", 12_500_000)}},
		{Lanes: []planir.Lane{lane("npu", 50e6)}},
	}
	trace := []Request{{Class: "reactive", Prompt: 100, Output: 3}}
	report, err := Simulate(t.Context(), plan, trace, scheduler.Default(4))
	if err != nil {
		t.Fatal(err)
	}
	gpu, npu := socs.Processor{Name: "gpu", PowerW: 30}, socs.Processor{Name: "npu", PowerW: 10}

	report.Energy(&socs.SoC{Processors: []socs.Processor{gpu, npu}})

	if len(report.Processors) != 2 {
		t.Fatalf("%+v", report.Processors)
	}
	for i, want := range []ProcessorReport{
		{Proc: "gpu", Busy: 41.0 / 70, WhileActive: 41.0 / 70, EnergyJ: 0.041 * 30},
		{Proc: "npu", Busy: 50.0 / 70, WhileActive: 50.0 / 70, EnergyJ: 0.050 * 10},
	} {
		got := report.Processors[i]
		if got.Proc != want.Proc || !near(got.Busy, want.Busy, 1e-9) || !near(got.EnergyJ, want.EnergyJ, 1e-9) ||
			!near(got.WhileActive, want.WhileActive, 1e-9) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if want := (0.041*30 + 0.050*10) / 103; !near(report.TokenJ, want, 1e-9) {
		t.Errorf("%v J a token, want %v", report.TokenJ, want)
	}

	npu.PowerW = 0
	report.Energy(&socs.SoC{Processors: []socs.Processor{gpu, npu}})
	if report.TokenJ != 0 || report.Processors[0].EnergyJ == 0 {
		t.Errorf("with a processor of unknown power: %+v", report)
	}
}

// A trace is a file. A device is not read: it may have no end.
func TestTraceIsAFile(t *testing.T) {
	_, err := Read(os.DevNull)
	if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "want a file") {
		t.Errorf("read a device as a trace: got %v, want it refused", err)
	}
	if len(diag.HintsOf(err)) == 0 {
		t.Errorf("no hint of %v", err)
	}
}

// A simulation ends where its context does: a trace may take hours.
func TestSimulationIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	trace := []Request{{Class: "reactive", Prompt: 80, Output: 4}}
	if report, err := Simulate(ctx, planOf(), trace, scheduler.Default(4)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %+v (%v), want it to be interrupted", report, err)
	}
}

// What a measurement takes at least is the arrivals of what is played: without background work there is no play of the
// reactive requests alone.
func TestSecondsOfMeasuring(t *testing.T) {
	reactive, proactive := Request{AtMS: 4000, Class: "reactive"}, Request{AtMS: 10_000, Class: "proactive"}
	policies := float64(len(scheduler.Policies))
	measuring := &bench{options: &Options{Rounds: 3}}
	for _, test := range []struct {
		trace []Request
		want  float64
	}{
		{[]Request{reactive}, 3 * 4 * policies},
		{[]Request{reactive, proactive}, 3 * (10*policies + 4)},
	} {
		bursts := make([][]Request, len(scheduler.Policies))
		bursts[0] = []Request{{AtMS: 1000, Class: "reactive"}}
		want := test.want + 3
		if got := measuring.seconds([]load{{trace: test.trace, bursts: bursts}}); got != want {
			t.Errorf("%d requests are played for %v s, want %v", len(test.trace), got, want)
		}
	}
}
