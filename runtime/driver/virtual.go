package driver

// Virtual is implemented by processors with a virtual clock. Run does not know what other processors do at the same
// virtual time, and takes as long as alone. Once all calls of several processors are done, Settle decides when they
// ran.
type Virtual interface {
	Processor
	// Draw has the executable's times begin a sequence of noise of that name, which depends on nothing else that ran.
	// Until then executables of one graph share a sequence, as calls of layers do.
	Draw(exe Executable, sequence string)
	// Last is what the latest call of Run did, for Settle.
	Last() Work
	// Settle finds out when the calls of a schedule ran, on this and other processors of the same machine. It moves
	// no clock.
	Settle(*Schedule) error
}

// Work is what a call on a virtual processor did; only its driver knows more. nil means nothing.
type Work any

// Schedule lists the calls that virtual processors have executed since Start, of each processor in their order. Control
// is the processor that starts them and has to notice their End; nil means that this takes no time.
type Schedule struct {
	Start   Tick
	Control Processor
	Lanes   []ScheduleLane
	End     Tick // from Settle
}

// ScheduleLane is the calls of one processor. Endless ones are repeated until all others are done. Fed: the thread of
// the control processor gives the processor its calls, one by one, if it executes them by itself.
type ScheduleLane struct {
	Proc    Processor
	Calls   []ScheduleCall
	Endless bool
	Fed     bool
}

// ScheduleCall is one call. Idle is the time since which its processor had nothing to do; Settle sets it and Span.
type ScheduleCall struct {
	Work  Work
	After []ScheduleAfter // calls that had to be done, on other lanes
	Idle  Tick
	Span  Span
}

// ScheduleAfter names a call by its numbers in the schedule.
type ScheduleAfter struct{ Lane, Call int }
