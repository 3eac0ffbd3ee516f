package executor_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/executor"
)

// traceEvent is an event of a trace in the format of Chrome's viewer.
type traceEvent struct {
	Name string  `json:"name"`
	Cat  string  `json:"cat"`
	Ph   string  `json:"ph"`
	PID  int     `json:"pid"`
	TID  int     `json:"tid"`
	TS   float64 `json:"ts"`
	Dur  float64 `json:"dur"`
	Args struct {
		Name        any    `json:"name"`
		Run         int    `json:"run"`
		Layer       int    `json:"layer"`
		Rows        int    `json:"rows"`
		Graph       string `json:"graph"`
		Position    int    `json:"position"`
		Tokens      int    `json:"tokens"`
		Setter      string `json:"setter"`
		SetterLane  string `json:"setter_lane"`
		SetterLayer int    `json:"setter_layer"`
	} `json:"args"`
}

// traced parses a trace and checks what holds of each: spans of a lane do not overlap, sections lie in calls and steps
// in sections, and waits end after the step that sets their flag.
func traced(t *testing.T, data []byte) []traceEvent {
	t.Helper()
	var doc struct {
		TraceEvents []traceEvent `json:"traceEvents"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatalf("trace is not JSON: %v", err)
	}

	lanes := map[int]string{} // by thread
	for _, e := range doc.TraceEvents {
		if e.Ph == "M" && e.Name == "thread_name" {
			lanes[e.TID] = e.Args.Name.(string)
		}
	}
	checkWithinSections(t, doc.TraceEvents)
	checkWaits(t, doc.TraceEvents, lanes)
	checkOverlaps(t, doc.TraceEvents, lanes)
	return doc.TraceEvents
}

// traceEps is how far times may be off, in microseconds: they are written with less than that.
const traceEps = 0.0011

// end is when an event ends.
func (e *traceEvent) end() float64 { return e.TS + e.Dur }

// checkWithinSections wants steps and waits within the run of a section that they belong to.
func checkWithinSections(t *testing.T, events []traceEvent) {
	t.Helper()
	runs := map[int]traceEvent{}
	for _, e := range events {
		if e.Cat == "section" {
			runs[e.Args.Run] = e
		}
	}
	for _, e := range events {
		if e.TS < 0 || e.Dur < 0 {
			t.Errorf("%+v: negative time", e)
		}
		if e.Cat != "step" && e.Cat != "wait" {
			continue
		}
		in, found := runs[e.Args.Run]
		if !found || e.TS < in.TS-traceEps || e.end() > in.end()+traceEps {
			t.Errorf("%s %q at %.3f for %.3f us is not within its section %+v", e.Cat, e.Name, e.TS, e.Dur, in)
		}
	}
}

// checkWaits wants waits to end after the step that sets their flag.
func checkWaits(t *testing.T, events []traceEvent, lanes map[int]string) {
	t.Helper()
	ends := map[string]float64{}
	for _, e := range events {
		if e.Cat == "step" {
			ends[fmt.Sprint(lanes[e.TID], e.Args.Run, e.Args.Layer, e.Name)] = e.end()
		}
	}
	for _, e := range events {
		if e.Cat != "wait" {
			continue
		}
		end, ran := ends[fmt.Sprint(e.Args.SetterLane, e.Args.Run, e.Args.SetterLayer, e.Args.Setter)]
		if !ran || e.end() < end-traceEps {
			t.Errorf("lane %s waits for %q of lane %s until %.3f, which ran (%v) until %.3f us", lanes[e.TID],
				e.Args.Setter, e.Args.SetterLane, e.end(), ran, end)
		}
	}
}

// checkOverlaps wants calls, sections, and the events of each lane one after the other.
func checkOverlaps(t *testing.T, events []traceEvent, lanes map[int]string) {
	t.Helper()
	rows := map[string][]traceEvent{}
	for _, e := range events {
		if e.Ph != "X" {
			continue
		}
		row := lanes[e.TID]
		if e.Cat == "program" || e.Cat == "section" {
			row = e.Cat
		}
		rows[row] = append(rows[row], e)
	}
	for row, list := range rows {
		slices.SortStableFunc(list, func(a, b traceEvent) int { return cmp.Compare(a.TS, b.TS) })
		for i := 1; i < len(list); i++ {
			if a, b := list[i-1], list[i]; a.end() > b.TS+traceEps {
				t.Errorf("%s: %q at %.3f for %.3f us and %q at %.3f overlap", row, a.Name, a.TS, a.Dur, b.Name, b.TS)
			}
		}
	}
}

// tracePlan has three processors, of which two share a core.
func tracePlan(t *testing.T, m *models.Model) *planir.Plan {
	t.Helper()
	s0, s1 := cores(t)
	return makePlan(t, m, planSpec{
		procs: append(pairOn(s0, s0), proc("c", s1, "")), rows: []int{1, 16}, context: 64, scheme: op.A8TQ8C,
		layout: among(rand.New(rand.NewPCG(3, 1)), "a", "b", "c"),
	})
}

// writeTrace answers a prompt of seven tokens with four, and returns the trace of at most so many events.
func writeTrace(t *testing.T, m *models.Model, p *planir.Plan, limit int) (x *executor.Machine, text []byte, lost int64) {
	t.Helper()
	x = machine(t, m, p, executor.Options{Trace: limit})
	prompt := []int32{1, 30, 40, 50, 60, 70, 80}
	if _, err := x.Generate(context.Background(), prompt, 4, &executor.Sampler{}, nil); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	lost, err := x.WriteTrace(&out)
	if err != nil {
		t.Fatal(err)
	}
	return x, out.Bytes(), lost
}

// A trace has every call, section and step of a generation.
func TestTraceHasEveryStep(t *testing.T) {
	m := open(t)
	x, text, lost := writeTrace(t, m, tracePlan(t, m), 1<<14)
	if lost > 0 {
		t.Errorf("%d events lost", lost)
	}

	count := map[string]int{}
	var calls []string
	for _, e := range traced(t, text) {
		count[e.Cat]++
		if e.Cat == "program" {
			calls = append(calls, e.Name)
		}
	}

	want := []string{"prefill@16: 7 tokens from 0", "decode: token 7", "decode: token 8", "decode: token 9"}
	if !slices.Equal(calls, want) {
		t.Errorf("calls %q, want %q", calls, want)
	}
	steps := 0
	for _, st := range x.Stats() {
		steps += int(st.Runs)
	}
	if count["step"] != steps || count["wait"] == 0 || count["section"] != 4*3 {
		t.Errorf("%v events, want %d steps and %d sections", count, steps, 4*3)
	}
}

// A trace that is full is valid JSON and says how much it lost.
func TestTraceIsFull(t *testing.T) {
	m := open(t)
	p := tracePlan(t, m)
	for _, limit := range []int{100, 3} {
		_, text, lost := writeTrace(t, m, p, limit)
		if lines := bytes.Count(text, []byte("\n")); lost == 0 || lines > 5*limit+15 {
			t.Errorf("limit %d: %d events lost, %d lines", limit, lost, lines)
		}
		if !json.Valid(text) {
			t.Errorf("limit %d: not JSON", limit)
		}
	}
}

// A trace that was not kept is not written.
func TestNoTraceIsWrittenUnlessKept(t *testing.T) {
	m := open(t)
	x := machine(t, m, tracePlan(t, m), executor.Options{})
	if _, err := x.WriteTrace(&bytes.Buffer{}); err == nil {
		t.Error("a trace that was not kept is written")
	}
}
