package sim

import (
	"fmt"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/socs/timeline"
)

var _ driver.Virtual = (*processor)(nil)

// Last returns the phases of the latest call.
func (p *processor) Last() driver.Work { return p.last }

// Settle computes when the calls of a schedule ran on processors of this SoC. Processors that work
// at the same time share the bandwidth of memory, passing a flag takes as long as the SoC's
// links say, and giving a call to a processor as long as its submit_us says.
func (p *processor) Settle(schedule *driver.Schedule) error {
	all := settling{schedule: schedule}
	control := len(schedule.Lanes) // thread of the control processor, if that has no calls
	for i := range schedule.Lanes {
		if schedule.Lanes[i].Proc == schedule.Control {
			control = i
		}
	}
	for i := range schedule.Lanes {
		calls := &schedule.Lanes[i]
		proc, ok := calls.Proc.(*processor)
		if !ok || proc.soc != p.soc {
			return diag.New(diag.ClassRun, "settle when calls ran: %w",
				fmt.Errorf("lane %d is not one of the simulated SoC %q", i, p.soc.Name))
		}
		lane := timeline.Lane{Proc: proc.name, Thread: i, Endless: calls.Endless,
			Steps: make([]timeline.Step, len(calls.Calls))}
		if calls.Fed {
			lane.SubmitNS, lane.Feeder = float64(1e3*proc.desc.SubmitUS), control
		}
		for call := range calls.Calls {
			for _, after := range calls.Calls[call].After {
				lane.Steps[call].After = append(lane.Steps[call].After,
					timeline.After{Lane: after.Lane, Step: after.Call})
			}
		}
		all.section.Lanes = append(all.section.Lanes, lane)
	}
	if proc, ok := schedule.Control.(*processor); ok {
		all.section.Control = proc.name
	}
	took, ok := timeline.Walk(&timeline.Machine{Memory: p.model.memory, Handover: handover(p.soc)}, &all.section, &all)
	if !ok {
		return diag.New(diag.ClassRun, "settle when calls ran: lanes wait for each other in a circle")
	}
	schedule.End = schedule.Start + driver.Tick(took)
	return nil
}

// handover returns the time in ns that the SoC's links state, 0 where there is no link.
func handover(s *socs.SoC) func(from, to string) float64 {
	return func(from, to string) float64 {
		link, _ := s.Link(from, to)
		return float64(1e3 * link.HandoverUS)
	}
}

// settling is a schedule in the form that timeline.Walk takes.
type settling struct {
	schedule *driver.Schedule
	section  timeline.Section
}

// Phases returns those of a call, none where it had no rows.
func (x *settling) Phases(lane, step, _ int) []timeline.Phase {
	phases, _ := x.schedule.Lanes[lane].Calls[step].Work.([]timeline.Phase)
	return phases
}

// Ran stores when a call ran.
func (x *settling) Ran(lane, step, _ int, idle, start, end int64) {
	call := &x.schedule.Lanes[lane].Calls[step]
	at := x.schedule.Start
	call.Idle, call.Span = at+driver.Tick(idle), driver.Span{Start: at + driver.Tick(start), End: at + driver.Tick(end)}
}
