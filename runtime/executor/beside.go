package executor

import (
	"errors"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/driver"
)

// besideChunk is a chunk of a prompt that one processor works on while the control thread does something else. Its crew
// walks all sections of its program by itself, because each has only one lane.
type besideChunk struct {
	program  *program
	sequence int
	count    int            // tokens
	parts    []*crewSection // of the sections that run
	logits   bool           // the last part computes them
	crew     *crew
	target   uint64 // crew.done reaches it when all parts are done
	start    driver.Tick
}

// errClosed ends calls in progress when a machine is closed.
var errClosed = errors.New("the machine was closed")

// Beside reports whether the plan has a processor that processes prompts while another one decodes.
func (m *Machine) Beside() bool {
	return m.plan.Beside != nil && m.trace == nil && m.observe == nil && !m.control.virtual
}

// Begin starts the next chunk of a sequence on the processor that works beside decoding, and returns how many of the
// tokens the chunk has. logits says whether those of its last token are wanted. One chunk is processed at a time:
// Extend, Chunk and Step wait for its end, StepBeside decodes other sequences meanwhile. Await must follow, in this job
// or a later one. tokens must have at least two.
func (c *Control) Begin(sequence int, tokens []int32, logits bool) (count int, err error) {
	machine := c.machine
	if !machine.Beside() || len(tokens) < 2 {
		return 0, diag.New(diag.ClassUsage, "begin: nothing of %d tokens is processed beside other calls", len(tokens))
	}
	if machine.beside != nil {
		return 0, diag.New(diag.ClassUsage, "begin: sequence %d is still being processed", machine.beside.sequence)
	}
	if err := machine.admits(sequence, tokens); err != nil {
		return 0, err
	}
	pr := machine.besidePrompt(len(tokens))
	if err := machine.load(c.ctx, pr); err != nil {
		return 0, err
	}
	count = min(len(tokens), pr.Rows)
	copy(pr.ids, tokens[:count])
	pos := machine.pos[sequence]
	call := driver.Scalars{Sequence: sequence, Seq: pos + len(tokens), Pos: pos, Rows: count, Row: count - 1}
	if err := machine.provideCaches(pr, sequence, pos); err != nil {
		return 0, err
	}
	started := &besideChunk{program: pr, sequence: sequence, count: count, logits: logits && count == len(tokens),
		start: machine.control.proc.Now()}
	for _, section := range pr.sections {
		if section.Logits && !started.logits {
			continue
		}
		part := section.crews[0]
		part.reset(section.iters, call, false)
		started.parts = append(started.parts, part)
		started.crew = part.crew
	}
	started.crew.work = append(started.crew.work[:0], started.parts...)
	started.crew.begin()
	started.target = started.crew.start.Load()
	machine.beside = started
	return count, nil
}

// besidePrompt returns the program for the next chunk of n tokens beside decoding: the smallest that takes all of them,
// or the largest.
func (m *Machine) besidePrompt(n int) (best *program) {
	for _, pr := range m.order {
		if pr.On != m.plan.Beside.Prefill || pr.PhaseProgram.Phase != "prefill" {
			continue
		}
		switch {
		case best == nil,
			pr.Rows >= n && (best.Rows < n || pr.Rows < best.Rows),
			pr.Rows < n && best.Rows < pr.Rows:
			best = pr
		}
	}
	return best
}

// Ended reports whether the chunk that Begin has started is processed, or given up.
func (c *Control) Ended() bool {
	current := c.machine.beside
	return current == nil || current.crew.done.Load() >= current.target
}

// Await waits for the end of the chunk that Begin has started and passes the logits of its last token to sink, where
// those were wanted. It returns how long the chunk has taken.
func (c *Control) Await(sink func(logits []float32) error) (Timing, error) {
	machine := c.machine
	current := machine.beside
	if current == nil {
		return Timing{}, diag.New(diag.ClassUsage, "await: nothing has begun")
	}
	if err := machine.waitBeside(); err != nil {
		return Timing{}, err
	}
	machine.beside = nil
	machine.pos[current.sequence] += current.count
	machine.noteAppended(current.program, current.sequence, machine.pos[current.sequence])
	took := Timing{NS: int64(machine.control.proc.Now() - current.start)}
	if err := machine.checkIntact(); err != nil {
		return took, err
	}
	if current.logits && sink != nil {
		return took, sink(current.program.logits[:machine.Vocabulary()])
	}
	return took, nil
}

// StepBeside does what Step does while a chunk is processed, on the processor that decodes meanwhile.
func (c *Control) StepBeside(tokens []Token, sink Sink) (Timing, error) {
	machine := c.machine
	if !machine.Beside() {
		return Timing{}, diag.New(diag.ClassUsage, "step: the plan decodes nothing beside prompts")
	}
	if err := machine.admitsBatch(tokens); err != nil {
		return Timing{}, err
	}
	for i, token := range tokens {
		if current := machine.beside; current != nil && current.sequence == token.Sequence {
			return Timing{}, diag.New(diag.ClassUsage,
				"step: token %d is of sequence %d, whose prompt is being processed", i, token.Sequence)
		}
	}
	switch len(tokens) {
	case 0:
		return Timing{}, diag.New(diag.ClassUsage, "step: no tokens")
	case 1:
		return c.decodeAlone(tokens[0], sink)
	}
	return c.runBatch(machine.batchProgram(len(tokens), machine.plan.Beside.Decode), tokens, sink)
}

// decodeAlone decodes one sequence by the processor that decodes beside prompts.
func (c *Control) decodeAlone(token Token, sink Sink) (Timing, error) {
	machine := c.machine
	pr := machine.programs[machine.plan.Program.ProgramOn(machine.plan.Beside.Decode, 1).Name]
	if err := machine.load(c.ctx, pr); err != nil {
		return Timing{}, err
	}
	start := machine.meetClocks()
	machine.single[0] = token.ID
	if _, err := c.runChunk(pr, token.Sequence, machine.single[:], 0, WantLast, sink); err != nil {
		return Timing{}, err
	}
	return Timing{NS: int64(machine.meetClocks() - start)}, machine.checkIntact()
}

// waitBeside waits until nothing is processed beside the caller.
func (m *Machine) waitBeside() error {
	current := m.beside
	if current == nil {
		return nil
	}
	left := func(now int64) (ns int64) {
		for _, part := range current.parts {
			ns += part.remaining(now)
		}
		return ns
	}
	if !m.await(m.control.crew, func() bool { return current.crew.done.Load() >= current.target }, left,
		func(int64) bool { return m.broken.Load() != nil }) {
		return *m.broken.Load()
	}
	if slices.ContainsFunc(current.parts, func(part *crewSection) bool { return !part.finished() }) {
		m.beside = nil
		switch failure := m.poison.Load(); {
		case current.crew.failed != nil:
			return current.crew.failed
		case failure != nil:
			return *failure
		}
		return diag.New(diag.ClassRun, "the chunk of sequence %d that was begun was given up", current.sequence)
	}
	return nil
}

// abandon gives up what is processed beside the caller, because of an error.
func (m *Machine) abandon(because error) {
	if m.beside == nil {
		return
	}
	m.fail(because)
	_ = m.waitBeside() // which says the same error
	m.beside = nil
}
