package executor

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
)

// tracer keeps what ran when, until it is full. Every lane has its own events, which only its thread adds; calls and
// sections are the control thread's.
type tracer struct {
	limit    int // of each list
	calls    []callEvent
	sections []sectionEvent
	lost     int64
}

// callEvent is one execution of a program.
type callEvent struct {
	program    *program
	pos, rows  int
	start, end int64
}

// sectionEvent is one execution of a section, in the latest call.
type sectionEvent struct {
	section    *section
	call, row  int
	start, end int64
}

// event is a step that a lane ran, or waited to run.
type event struct {
	step       *step
	wait       *wait // nil: it ran
	iter, rows int32
	section    int32 // number of its execution
	start, end int64
}

// newTracer allocates all that it will keep.
func newTracer(limit int, lanes []*lane) *tracer {
	for _, lane := range lanes {
		lane.events = make([]event, 0, limit)
	}
	return &tracer{limit: limit, calls: make([]callEvent, 0, limit), sections: make([]sectionEvent, 0, limit)}
}

// begin notes that a program starts, on rows from pos on.
func (t *tracer) begin(pr *program, pos, rows int, now int64) {
	if t == nil {
		return
	}
	if len(t.calls) == t.limit {
		t.lost++
		return
	}
	t.calls = append(t.calls, callEvent{program: pr, pos: pos, rows: rows, start: now, end: now})
}

// end notes that it, and with it its latest section, has come that far.
func (t *tracer) end(now int64) {
	if t == nil || t.lost > 0 {
		return
	}
	t.calls[len(t.calls)-1].end = now
	t.sections[len(t.sections)-1].end = now
}

// section notes that a section of the latest call starts.
func (t *tracer) section(s *section, row int, now int64) {
	if t == nil {
		return
	}
	if t.lost > 0 || len(t.sections) == t.limit {
		t.lost++
		return
	}
	t.sections = append(t.sections, sectionEvent{section: s, call: len(t.calls) - 1, row: row, start: now, end: now})
}

// add keeps what a lane did in the section that runs.
func (t *tracer) add(l *lane, st *step, w *wait, iter, rows int, start, end int64) {
	if t.lost > 0 || len(l.events) == t.limit { // the control thread counts nothing lost while lanes run
		l.lost++
		return
	}
	l.events = append(l.events, event{st, w, int32(iter), int32(rows), int32(len(t.sections) - 1), start, end})
}

// tick is the clock of traces: the control processor's where time is simulated.
func (m *Machine) tick() int64 {
	if m.control.virt {
		return int64(m.control.proc.Now())
	}
	return m.now()
}

// traceEvent is one of the Trace Event Format, which Chrome and Perfetto read: a complete event (X) with times in
// microseconds, or a name (M).
type traceEvent struct {
	Name string   `json:"name"`
	Cat  string   `json:"cat,omitempty"`
	Ph   string   `json:"ph"`
	PID  int      `json:"pid"`
	TID  int      `json:"tid"`
	TS   *float64 `json:"ts,omitempty"`
	Dur  *float64 `json:"dur,omitempty"`
	Args any      `json:"args,omitempty"`
}

type callArgs struct {
	Program  string `json:"program"`
	Position int    `json:"position"`
	Tokens   int    `json:"tokens"`
}

type sectionArgs struct {
	Run   int `json:"run"` // number of this execution of a section
	First int `json:"first_layer"`
	Count int `json:"layers"`
	Row   int `json:"row,omitempty"`
}

type stepArgs struct {
	Run    int     `json:"run"`
	Layer  int     `json:"layer"`
	Graph  string  `json:"graph"`
	Rows   int     `json:"rows"`
	Expect float64 `json:"expect_us,omitempty"`
}

type waitArgs struct {
	Run         int    `json:"run"`
	Layer       int    `json:"layer"`
	Flag        int    `json:"flag"`
	Setter      string `json:"setter"`
	SetterLane  string `json:"setter_lane"`
	SetterLayer int    `json:"setter_layer"`
}

// WriteTrace writes what Options.Trace has kept of all calls so far in the Trace Event Format (JSON), which
// chrome://tracing and ui.perfetto.dev show: a row for programs and their sections, and one for each lane's steps and
// waits. It returns how many events were not kept. Nothing may be running.
func (m *Machine) WriteTrace(w io.Writer) (lost int64, err error) {
	tracer := m.trace
	if tracer == nil {
		return 0, fmt.Errorf("write trace: none was kept")
	}
	lost = tracer.lost
	for _, lane := range m.lanes {
		lost += lane.lost
	}
	out := bufio.NewWriter(w)
	separator := "\n"
	put := func(e traceEvent) {
		if err != nil {
			return
		}
		var b []byte
		if e.PID = 1; err == nil {
			b, err = json.Marshal(e)
		}
		_, _ = out.WriteString(separator) // Flush has its error
		_, _ = out.Write(b)
		separator = ",\n"
	}
	span := func(tid int, cat, name string, start, end int64, args any) {
		ts, dur := float64(start)/1e3, float64(end-start)/1e3
		put(traceEvent{Name: name, Cat: cat, Ph: "X", TID: tid, TS: &ts, Dur: &dur, Args: args})
	}
	label := func(tid int, key string, value any) {
		put(traceEvent{Name: key, Ph: "M", TID: tid, Args: map[string]any{map[bool]string{true: "sort_index",
			false: "name"}[key == "thread_sort_index"]: value}})
	}
	about, err := json.Marshal(map[string]any{"soc": m.plan.SoC.Name, "model": m.plan.Model.Name,
		"simulated": m.control.virt, "lost_events": lost})
	if err != nil {
		return lost, err
	}
	fmt.Fprintf(out, "{\"displayTimeUnit\":\"ns\",\"otherData\":%s,\"traceEvents\":[", about)
	title := m.plan.Model.Name + " on " + m.plan.SoC.Name
	if m.control.virt {
		title += " (simulated times)"
	}
	label(0, "process_name", title)
	label(0, "thread_name", "program")
	label(0, "thread_sort_index", 0)
	for i, lane := range m.lanes {
		label(i+1, "thread_name", lane.name)
		label(i+1, "thread_sort_index", i+1)
	}
	for _, call := range tracer.calls {
		name := fmt.Sprintf("%s: token %d", call.program.Name, call.pos)
		if call.program.Phase.Phase != "decode" || call.rows > 1 {
			name = fmt.Sprintf("%s: %d tokens from %d", call.program.Name, call.rows, call.pos)
		}
		span(0, "program", name, call.start, call.end, callArgs{call.program.Name, call.pos, call.rows})
	}
	for i, section := range tracer.sections {
		span(0, "section", section.section.Name, section.start, section.end,
			sectionArgs{i, section.section.First, section.section.Layers, section.row})
	}
	for i, lane := range m.lanes {
		for _, event := range lane.events {
			first, run := tracer.sections[event.section].section.First, int(event.section)
			if event.wait == nil {
				span(i+1, "step", event.step.Node, event.start, event.end,
					stepArgs{run, first + int(event.iter), event.step.Run, int(event.rows),
						float64(event.step.ExpectNS) / 1e3})
				continue
			}
			by := event.wait.setter.steps[event.wait.after-1]
			span(i+1, "wait", "wait for "+by.Node, event.start, event.end,
				waitArgs{run, first + int(event.iter), *by.Set, by.Node, event.wait.setter.lane.name,
					first + int(event.iter) - int(event.wait.back)})
		}
	}
	if err != nil {
		return lost, err
	}
	_, _ = out.WriteString("\n]}\n")
	return lost, out.Flush()
}
