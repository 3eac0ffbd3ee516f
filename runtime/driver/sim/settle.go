package sim

import (
	"fmt"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/socs/timeline"
)

var _ driver.Virtual = (*processor)(nil)

// Last is what the latest call did.
func (p *processor) Last() driver.Work { return p.last }

// Settle finds out when the calls of a schedule ran on processors of this SoC: who works while another one does shares
// its memory, and a flag takes as long as the SoC's links say.
func (p *processor) Settle(s *driver.Schedule) error {
	x := settling{schedule: s}
	for i := range s.Lanes {
		l := &s.Lanes[i]
		q, ok := l.Proc.(*processor)
		if !ok || q.soc != p.soc {
			return diag.New(diag.ClassRun, "settle when calls ran: %w", fmt.Errorf("lane %d is not one of the simulated SoC %q", i, p.soc.Name))
		}
		lane := timeline.Lane{Proc: q.name, Thread: i, Endless: l.Endless, Steps: make([]timeline.Step, len(l.Calls))}
		for k := range l.Calls {
			for _, a := range l.Calls[k].After {
				lane.Steps[k].After = append(lane.Steps[k].After, timeline.After{Lane: a.Lane, Step: a.Call})
			}
		}
		x.section.Lanes = append(x.section.Lanes, lane)
	}
	if c, ok := s.Control.(*processor); ok {
		x.section.Control = c.name
	}
	took, ok := timeline.Walk(&timeline.Machine{Memory: p.model.memory, Handover: handover(p.soc)}, &x.section, &x)
	if !ok {
		return diag.New(diag.ClassRun, "settle when calls ran: lanes wait for each other in a circle")
	}
	s.End = s.Start + driver.Tick(took)
	return nil
}

// handover is what the links of a SoC say; where there is none processors never wait for each other.
func handover(s *socs.SoC) func(from, to string) float64 {
	return func(from, to string) float64 {
		l, _ := s.Link(from, to)
		return float64(1e3 * l.HandoverUS)
	}
}

// settling is a schedule as the walk of a section wants it.
type settling struct {
	schedule *driver.Schedule
	section  timeline.Section
}

// Phases is what a call did; nothing, where it had no rows.
func (x *settling) Phases(lane, step, _ int) []timeline.Phase {
	phases, _ := x.schedule.Lanes[lane].Calls[step].Work.([]timeline.Phase)
	return phases
}

// Ran notes when a call ran.
func (x *settling) Ran(lane, step, _ int, idle, start, end int64) {
	c := &x.schedule.Lanes[lane].Calls[step]
	at := x.schedule.Start
	c.Idle, c.Span = at+driver.Tick(idle), driver.Span{Start: at + driver.Tick(start), End: at + driver.Tick(end)}
}
