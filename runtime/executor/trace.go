package executor

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
)

// tracer records what ran when, until it is full. Every lane has its own events, which only its
// thread appends; calls and sections belong to the control thread.
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

// newTracer allocates everything in advance, so that recording allocates nothing.
func newTracer(limit int, lanes []*lane) *tracer {
	for _, lane := range lanes {
		lane.events = make([]event, 0, limit)
	}
	return &tracer{limit: limit, calls: make([]callEvent, 0, limit), sections: make([]sectionEvent, 0, limit)}
}

// begin records that a program starts on rows from pos on.
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

// end records that the latest call and its latest section have run until now.
func (t *tracer) end(now int64) {
	if t == nil || t.lost > 0 {
		return
	}
	t.calls[len(t.calls)-1].end = now
	t.sections[len(t.sections)-1].end = now
}

// section records that a section of the latest call starts.
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

// add records what a lane did in the current section: ran a step, or waited (w).
func (t *tracer) add(l *lane, st *step, w *wait, iter, rows int, start, end int64) {
	if t.lost > 0 || len(l.events) == t.limit { // the control thread counts nothing lost while lanes run
		l.lost++
		return
	}
	l.events = append(l.events, event{st, w, int32(iter), int32(rows), int32(len(t.sections) - 1), start, end})
}

// tick returns the clock of traces: the control processor's where time is simulated.
func (m *Machine) tick() int64 {
	if m.control.virtual {
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
	From   int     `json:"first_row,omitempty"` // of the call
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
	about, err := json.Marshal(map[string]any{"soc": m.plan.SoC.Name, "model": m.plan.Model.Name,
		"simulated": m.control.virtual, "lost_events": lost})
	if err != nil {
		return lost, err
	}
	out := &traceWriter{out: bufio.NewWriter(w), separator: "\n"}
	fmt.Fprintf(out.out, "{\"displayTimeUnit\":\"ns\",\"otherData\":%s,\"traceEvents\":[", about)
	title := m.plan.Model.Name + " on " + m.plan.SoC.Name
	if m.control.virtual {
		title += " (simulated times)"
	}
	out.label(0, "process_name", "name", title)
	out.row(0, "program")
	for i, lane := range m.lanes {
		out.row(i+1, lane.name)
	}
	for _, call := range tracer.calls {
		name := fmt.Sprintf("%s: token %d", call.program.Name, call.pos)
		if call.program.PhaseProgram.Phase != "decode" || call.rows > 1 {
			name = fmt.Sprintf("%s: %d tokens from %d", call.program.Name, call.rows, call.pos)
		}
		out.span(0, "program", name, call.start, call.end, callArgs{call.program.Name, call.pos, call.rows})
	}
	for i, section := range tracer.sections {
		out.span(0, "section", section.section.Name, section.start, section.end,
			sectionArgs{i, section.section.First, section.section.Layers, section.row})
	}
	for i, lane := range m.lanes {
		for _, event := range lane.events {
			out.event(i+1, event)
		}
	}
	if out.err != nil {
		return lost, out.err
	}
	_, _ = out.out.WriteString("\n]}\n")
	return lost, out.out.Flush()
}

// traceWriter writes a list of events. err is the first error of encoding; errors of out are
// reported by its Flush.
type traceWriter struct {
	out       *bufio.Writer
	separator string
	err       error
}

func (t *traceWriter) put(event traceEvent) {
	if t.err != nil {
		return
	}
	event.PID = 1
	text, err := json.Marshal(event)
	t.err = err
	_, _ = t.out.WriteString(t.separator)
	_, _ = t.out.Write(text)
	t.separator = ",\n"
}

// label describes a row, or the process, by one of the format's metadata events.
func (t *traceWriter) label(row int, event, key string, value any) {
	t.put(traceEvent{Name: event, Ph: "M", TID: row, Args: map[string]any{key: value}})
}

// row names a row, and keeps it in the order of its number.
func (t *traceWriter) row(row int, name string) {
	t.label(row, "thread_name", "name", name)
	t.label(row, "thread_sort_index", "sort_index", row)
}

func (t *traceWriter) span(row int, category, name string, start, end int64, args any) {
	ts, duration := float64(start)/1e3, float64(end-start)/1e3
	t.put(traceEvent{Name: name, Cat: category, Ph: "X", TID: row, TS: &ts, Dur: &duration, Args: args})
}

// event is a step or a wait.
func (t *traceWriter) event(row int, e event) {
	run, layer := int(e.section), e.step.layer(int(e.iter))
	if e.wait == nil {
		t.span(row, "step", e.step.Node, e.start, e.end,
			stepArgs{run, layer, e.step.Run, e.step.R0, int(e.rows), float64(e.step.ExpectNS) / 1e3})
		return
	}
	by := e.wait.setter.steps[e.wait.after-1]
	t.span(row, "wait", "wait for "+by.Node, e.start, e.end,
		waitArgs{run, layer, *by.Set, by.Node, e.wait.setter.lane.name, by.layer(int(e.iter) - int(e.wait.back))})
}
