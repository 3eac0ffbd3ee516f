package executor

import (
	"github.com/hetc/hetc/runtime/driver"
)

// Lanes of processors with virtual clocks compute in real time, in whatever order their threads come to it. When
// their steps ran on the virtual clock is settled by the driver once a section is done, from what each step did and
// which flags it waited for: so it does not depend on the scheduler of this machine.

// virtualLane is a lane's part of the schedule of its section.
type virtualLane struct {
	proc     driver.Virtual
	schedule *driver.Schedule
	lane     int   // in the schedule
	rows     []int // of each call, 0: it did not run
}

// buildSchedule builds the schedule of a section's virtual lanes: their calls over all iterations, with
// the calls that each waits for.
func (m *Machine) buildSchedule(sec *section) {
	for _, ls := range sec.lanes {
		proc, ok := ls.lane.proc.(driver.Virtual)
		if !ok || !ls.lane.virtual {
			continue
		}
		if sec.schedule == nil {
			sec.schedule = &driver.Schedule{Control: m.control.proc}
		}
		calls := sec.iters * len(ls.steps)
		ls.virtual = &virtualLane{proc: proc, schedule: sec.schedule, lane: len(sec.schedule.Lanes),
			rows: make([]int, calls)}
		fed := ls.lane != m.control && m.plan.FedByControl(ls.lane.name,
			func(name string) bool { return name == m.control.name })
		sec.schedule.Lanes = append(sec.schedule.Lanes,
			driver.ScheduleLane{Proc: proc, Calls: make([]driver.ScheduleCall, calls), Fed: fed})
	}
	for _, ls := range sec.lanes {
		if ls.virtual == nil {
			continue
		}
		calls := sec.schedule.Lanes[ls.virtual.lane].Calls
		for i := range calls {
			iter := int64(i / len(ls.steps))
			for _, wait := range ls.steps[i%len(ls.steps)].waits {
				by := wait.setter
				if by.virtual != nil && by != ls && iter >= wait.back {
					after := driver.ScheduleAfter{Lane: by.virtual.lane,
						Call: int(iter-wait.back)*len(by.steps) + wait.after - 1}
					calls[i].After = append(calls[i].After, after)
				}
			}
		}
	}
}

// storeWork stores the work of a call that has just run on a virtual clock.
func (ls *laneSection) storeWork(number int64, rows int) {
	virt := ls.virtual
	virt.rows[number] = rows
	virt.schedule.Lanes[virt.lane].Calls[number].Work = virt.proc.Last()
}

// settle computes when the steps of a section ran that started at a virtual time, and moves all
// virtual clocks to its end. Nothing is known of a section that failed. It returns that failure, or
// its own error.
func (m *Machine) settle(sec *section, start driver.Tick, failed error) error {
	if sec.schedule == nil {
		return failed
	}
	sec.schedule.Start = start
	if failed == nil {
		failed = sec.schedule.Lanes[0].Proc.(driver.Virtual).Settle(sec.schedule)
	}
	for _, ls := range sec.lanes {
		if ls.virtual == nil {
			continue
		}
		if failed == nil {
			m.account(sec, ls)
		}
		ls.virtual.reset()
	}
	if failed == nil {
		for _, lane := range m.lanes {
			lane.proc.WaitUntil(sec.schedule.End)
		}
	}
	return failed
}

// reset prepares the lane for the next execution of its section.
func (v *virtualLane) reset() {
	clear(v.rows)
	for i := range v.schedule.Lanes[v.lane].Calls {
		v.schedule.Lanes[v.lane].Calls[i].Work = nil
	}
}

// account adds the settled times of a lane to the statistics and the trace.
func (m *Machine) account(s *section, ls *laneSection) {
	calls := s.schedule.Lanes[ls.virtual.lane].Calls
	for i := range calls {
		call, st, iter := &calls[i], ls.steps[i%len(ls.steps)], i/len(ls.steps)
		st.waitNS += int64(call.Span.Start - call.Idle)
		wait := m.lastWait(s, ls, i)
		if m.trace != nil && wait != nil && call.Span.Start > call.Idle {
			m.trace.add(ls.lane, st, wait, iter, 0, int64(call.Idle), int64(call.Span.Start))
		}
		if rows := ls.virtual.rows[i]; rows > 0 {
			st.runNS += int64(call.Span.End - call.Span.Start)
			st.runCount++
			if m.trace != nil {
				m.trace.add(ls.lane, st, nil, iter, rows, int64(call.Span.Start), int64(call.Span.End))
			}
		}
	}
}

// lastWait returns the flag that was set last among those that a call waited for.
func (m *Machine) lastWait(s *section, ls *laneSection, call int) (last *wait) {
	end, iter := driver.Tick(-1), call/len(ls.steps)
	st := ls.steps[call%len(ls.steps)]
	for i := range st.waits {
		wait := &st.waits[i]
		if wait.setter.virtual == nil || int64(iter) < wait.back {
			continue
		}
		number := (iter-int(wait.back))*len(wait.setter.steps) + wait.after - 1
		if at := s.schedule.Lanes[wait.setter.virtual.lane].Calls[number].Span.End; at > end {
			end, last = at, wait
		}
	}
	return last
}
