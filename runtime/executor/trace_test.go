package executor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/executor"
)

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
	const eps = 0.0011 // microseconds: times are written with less than that
	lanes := map[int]string{}
	rows := map[string][]traceEvent{}
	ends := map[string]float64{}
	runs := map[int]traceEvent{}
	for _, e := range doc.TraceEvents {
		switch {
		case e.Ph == "M" && e.Name == "thread_name":
			lanes[e.TID] = e.Args.Name.(string)
		case e.Cat == "section":
			runs[e.Args.Run] = e
		case e.Cat == "step":
			ends[fmt.Sprint(lanes[e.TID], e.Args.Run, e.Args.Layer, e.Name)] = e.TS + e.Dur
		}
	}
	for _, e := range doc.TraceEvents {
		if e.Ph != "X" {
			continue
		}
		if e.TS < 0 || e.Dur < 0 {
			t.Errorf("%+v: negative time", e)
		}
		row := lanes[e.TID]
		switch e.Cat {
		case "program", "section":
			row = e.Cat
		case "step", "wait":
			if in, ok := runs[e.Args.Run]; !ok || e.TS < in.TS-eps || e.TS+e.Dur > in.TS+in.Dur+eps {
				t.Errorf("%s %q of lane %s at %.3f for %.3f us is not within its section %+v", e.Cat, e.Name, row, e.TS, e.Dur, in)
			}
		}
		rows[row] = append(rows[row], e)
		if e.Cat != "wait" {
			continue
		}
		if end, ok := ends[fmt.Sprint(e.Args.SetterLane, e.Args.Run, e.Args.SetterLayer, e.Args.Setter)]; !ok || e.TS+e.Dur < end-eps {
			t.Errorf("lane %s waits for %q of lane %s until %.3f, which ran (%v) until %.3f us", row, e.Args.Setter, e.Args.SetterLane, e.TS+e.Dur, ok, end)
		}
	}
	for row, list := range rows {
		slices.SortStableFunc(list, func(a, b traceEvent) int {
			switch {
			case a.TS < b.TS:
				return -1
			case a.TS > b.TS:
				return 1
			}
			return 0
		})
		for i := 1; i < len(list); i++ {
			if a, b := list[i-1], list[i]; a.TS+a.Dur > b.TS+eps {
				t.Errorf("%s: %q at %.3f for %.3f us and %q at %.3f overlap", row, a.Name, a.TS, a.Dur, b.Name, b.TS)
			}
		}
	}
	return doc.TraceEvents
}

func TestTrace(t *testing.T) {
	m := open(t)
	s0, s1 := cores(t)
	procs := []planir.Proc{proc("a", s0, ""), proc("b", s0, ""), proc("c", s1, "")}
	p := makePlan(t, m, procs, []int{1, 16}, 64, op.A8TQ8C, among(rand.New(rand.NewPCG(3, 1)), "a", "b", "c"))
	for _, limit := range []int{1 << 14, 100, 3} {
		x := machine(t, m, p, executor.Options{Trace: limit})
		if _, err := x.Generate(context.Background(), []int32{1, 30, 40, 50, 60, 70, 80}, 4, &executor.Sampler{}, nil); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		lost, err := x.WriteTrace(&out)
		if err != nil {
			t.Fatal(err)
		}
		if limit < 1<<14 {
			if lost == 0 || strings.Count(out.String(), "\n") > 5*limit+15 {
				t.Errorf("limit %d: %d events lost, %d lines", limit, lost, strings.Count(out.String(), "\n"))
			}
			if !json.Valid(out.Bytes()) {
				t.Errorf("limit %d: not JSON", limit)
			}
			continue
		}
		if lost > 0 {
			t.Errorf("%d events lost", lost)
		}
		count := map[string]int{}
		var calls []string
		for _, e := range traced(t, out.Bytes()) {
			count[e.Cat]++
			if e.Cat == "program" {
				calls = append(calls, e.Name)
			}
		}
		if want := []string{"prefill@16: 7 tokens from 0", "decode: token 7", "decode: token 8", "decode: token 9"}; !slices.Equal(calls, want) {
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
	x := machine(t, m, p, executor.Options{})
	if _, err := x.WriteTrace(&bytes.Buffer{}); err == nil {
		t.Error("a trace that was not kept is written")
	}
}
