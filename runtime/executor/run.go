package executor

import (
	"context"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/driver"
)

// Want says which rows of a call need logits.
type Want int

const (
	WantNone Want = iota
	WantLast
	WantAll
)

// Timing is how long a call took on the control processor's clock: real or virtual nanoseconds.
type Timing struct {
	NS      int64
	Virtual bool
}

// Forward is Extend of the first sequence.
func (c *Control) Forward(tokens []int32, want Want, sink Sink) (Timing, error) {
	return c.Extend(0, tokens, want, sink)
}

// Sink takes the logits [vocabulary] that follow a token, which it is told by number. The slice is valid during the
// call only. An error of a Sink ends the call of the Machine and is returned by it.
type Sink func(token int, logits []float32) error

// Extend processes tokens at the end of a sequence, and passes the logits of the wanted ones to sink (nil: dropped).
func (c *Control) Extend(sequence int, tokens []int32, want Want, sink Sink) (Timing, error) {
	machine := c.machine
	if err := machine.admits(sequence, tokens); err != nil {
		return Timing{}, err
	}
	if err := machine.loadFor(c.ctx, len(tokens)); err != nil {
		return Timing{}, err
	}
	machine.useLargePages()
	start := machine.meetClocks()
	// one program at a time, as the decider chooses by the number of tokens left
	for done := 0; done < len(tokens); {
		count, err := c.chunk(sequence, tokens, done, want, sink)
		if err != nil {
			return Timing{}, err
		}
		done += count
	}
	took := machine.meetClocks() - start
	return Timing{NS: int64(took), Virtual: machine.control.virtual}, machine.checkIntact()
}

// Chunk executes the first program call of Extend with the same arguments, and returns how many tokens that has
// processed. Called again for the rest until none is left, it computes what Extend computes. Other sequences may go on
// in between.
func (c *Control) Chunk(sequence int, tokens []int32, want Want, sink Sink) (count int, took Timing, err error) {
	machine := c.machine
	if err := machine.admits(sequence, tokens); err != nil {
		return 0, Timing{}, err
	}
	if err := machine.load(c.ctx, machine.programFor(len(tokens))); err != nil {
		return 0, Timing{}, err
	}
	start := machine.meetClocks()
	if count, err = c.chunk(sequence, tokens, 0, want, sink); err != nil {
		return 0, Timing{}, err
	}
	took = Timing{NS: int64(machine.meetClocks() - start), Virtual: machine.control.virtual}
	return count, took, machine.checkIntact()
}

// chunk processes the tokens from number done on that one program call takes, at the end of a sequence.
func (c *Control) chunk(sequence int, tokens []int32, done int, want Want, sink Sink) (count int, err error) {
	if err := c.machine.waitBeside(); err != nil {
		return 0, err
	}
	return c.runChunk(c.machine.programFor(len(tokens)-done), sequence, tokens, done, want, sink)
}

// runChunk does the work of chunk with a program of the caller's choice.
func (c *Control) runChunk(pr *program, sequence int, tokens []int32, done int, want Want,
	sink Sink) (count int, err error) {
	machine, pos := c.machine, &c.machine.pos[sequence]
	count = min(len(tokens)-done, pr.Rows)
	copy(pr.ids, tokens[done:done+count])
	scalars := driver.Scalars{Sequence: sequence, Seq: *pos + len(tokens) - done, Pos: *pos, Rows: count}
	if err := machine.provideCaches(pr, sequence, *pos); err != nil {
		return 0, err
	}
	machine.trace.begin(pr, *pos, count, machine.tick())
	for i, section := range pr.sections {
		if err := c.ctx.Err(); err != nil {
			machine.drainAll(pr)
			return 0, err
		}
		first, last := 0, 1
		if section.Logits {
			switch {
			case want == WantAll:
				last = count
			case want == WantLast && done+count == len(tokens):
				first, last = count-1, count
			default:
				continue
			}
		}
		for row := first; row < last; row++ {
			scalars.Row = row
			runsOn := machine.runsOn(pr.sections, i, want != WantNone && done+count == len(tokens))
			if err := machine.runSection(section, scalars, runsOn); err != nil {
				return 0, err
			}
			if section.Logits && sink != nil {
				if err := sink(done+row, pr.logits[:machine.Vocabulary()]); err != nil {
					return 0, err
				}
			}
		}
	}
	*pos += count
	machine.noteAppended(pr, sequence, *pos)
	return count, nil
}

// admits returns an error if tokens cannot follow a sequence: no room in the context, or ids out of
// range.
func (m *Machine) admits(sequence int, tokens []int32) error {
	if sequence < 0 || sequence >= m.Sequences() {
		return diag.New(diag.ClassUsage, "forward: sequence %d, want 0..%d", sequence, m.Sequences()-1)
	}
	if len(tokens) == 0 {
		return diag.New(diag.ClassUsage, "forward: no tokens")
	}
	if pos := m.pos[sequence]; pos+len(tokens) > m.plan.MaxContext {
		return diag.New(diag.ClassInput, "forward: %d tokens at position %d exceed the plan's context of %d",
			len(tokens), pos, m.plan.MaxContext).
			WithHint("shorten the prompt or generate fewer tokens, or, where the model has more positions, solve " +
				"with a larger context in the workload")
	}
	vocab := int32(m.Vocabulary())
	for i, token := range tokens {
		if token < 0 || token >= vocab {
			return diag.New(diag.ClassInput, "forward: token %d is id %d, want 0..%d", i, token, vocab-1).
				WithHint("ids are those of the model's tokenizer")
		}
	}
	return nil
}

// Truncate drops what a sequence has beyond its first positions.
func (c *Control) Truncate(sequence, positions int) {
	c.machine.pos[sequence] = max(0, min(c.machine.pos[sequence], positions))
}

// Vocabulary returns the number of token ids.
func (m *Machine) Vocabulary() int { return m.buffers[planir.Logits].Cols }

// Loaded names the programs that have been loaded.
func (m *Machine) Loaded() []string {
	var names []string
	for _, pr := range m.order {
		if pr.sections != nil {
			names = append(names, pr.Name)
		}
	}
	return names
}

// programFor picks the program for n tokens still to process.
func (m *Machine) programFor(n int) *program {
	for _, choice := range m.plan.Program.Decider {
		if n >= choice.Min && n <= choice.Max {
			return m.programs[choice.Program]
		}
	}
	panic("BUG: the decider has no program for a length that rule P012 covers")
}

// loadFor loads the programs that n tokens need.
func (m *Machine) loadFor(ctx context.Context, n int) error {
	for n > 0 {
		pr := m.programFor(n)
		if err := m.load(ctx, pr); err != nil {
			return err
		}
		n -= min(n, pr.Rows)
	}
	return nil
}

// meetClocks moves all virtual clocks to the latest one, and returns the control processor's clock.
func (m *Machine) meetClocks() driver.Tick {
	if m.control.virtual {
		var latest driver.Tick
		for _, lane := range m.lanes {
			latest = max(latest, lane.proc.Now())
		}
		for _, lane := range m.lanes {
			lane.proc.WaitUntil(latest)
		}
	}
	return m.control.proc.Now()
}

// runsOn reports whether what section number i of a program has in flight may stay there at its end: the next section,
// which runs if it computes no logits or these are wanted, is the same processor's alone. A trace shows each section by
// itself.
func (m *Machine) runsOn(sections []*section, i int, logits bool) bool {
	if m.trace != nil || sections[i].Logits || i+1 == len(sections) {
		return false
	}
	next := sections[i+1]
	return (logits || !next.Logits) && sections[i].continuesOn(next)
}

// drainAll waits until nothing of a program is in flight.
func (m *Machine) drainAll(pr *program) {
	for _, section := range pr.sections {
		m.drain(section.lanes)
	}
}

// runSection runs one section on all its crews and waits for them. The control thread walks its own part meanwhile.
// With runsOn, calls that are in flight at the end stay there.
func (m *Machine) runSection(sec *section, scalars driver.Scalars, runsOn bool) error {
	for i := range m.flags[:sec.Flags] {
		m.flags[i].epoch.Store(0)
	}
	m.control.crew.yield.Store(false)
	for _, crew := range sec.yielding {
		crew.yield.Store(true)
	}
	m.trace.section(sec, scalars.Row, m.tick())
	began := m.control.proc.Now() // of virtual clocks: all have met
	own := -1
	for i, cs := range sec.crews {
		cs.reset(sec.iters, scalars, runsOn)
		if cs.crew == m.control.crew {
			own = i
			continue
		}
		cs.crew.work = append(cs.crew.work[:0], cs)
		cs.crew.begin()
	}
	if own >= 0 {
		if err := m.walk(sec.crews[own]); err != nil {
			m.fail(err)
		}
	}
	for i, cs := range sec.crews {
		if i == own {
			continue
		}
		// The other crews come back: they fail on poison or at their own deadline. One that hangs
		// inside a driver is found by the watchdog in Do.
		crew := cs.crew
		target := crew.start.Load()
		if !m.await(m.control.crew, func() bool { return crew.done.Load() == target }, cs.remaining,
			func(int64) bool { return m.broken.Load() != nil }) {
			return *m.broken.Load()
		}
	}
	var err error
	if failure := m.poison.Load(); failure != nil {
		err = *failure
		m.drain(sec.lanes) // it may have ended before the failure
	}
	err = m.settle(sec, began, err)
	m.meetClocks()
	m.trace.end(m.tick())
	return err
}

// Threads returns the number of operating system threads the lanes keep busy: the Go scheduler needs a few more.
func Threads(p *planir.Plan) int {
	threads := 0
	for i := range p.Procs {
		threads += max(1, len(p.Procs[i].Cores))
	}
	return threads
}
