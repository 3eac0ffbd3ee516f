package executor

import (
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/driver"
)

// Token is the next token of a sequence.
type Token struct {
	Sequence int
	ID       int32
}

// Step processes one token of each of several sequences together, by the smallest program for as many, and passes the
// logits that follow each to sink (nil: dropped). A single token is decoded as by Extend. The result of a sequence
// does not depend on the others. Step allocates nothing once the program is loaded.
func (c *Control) Step(tokens []Token, sink Sink) (Timing, error) {
	machine := c.machine
	if err := machine.admitsBatch(tokens); err != nil {
		return Timing{}, err
	}
	switch len(tokens) {
	case 0:
		return Timing{}, diag.New(diag.ClassUsage, "step: no tokens")
	case 1:
		machine.single[0] = tokens[0].ID
		return c.Extend(tokens[0].Sequence, machine.single[:], WantLast, sink)
	}
	if err := machine.waitBeside(); err != nil {
		return Timing{}, err
	}
	return c.runBatch(machine.batchProgram(len(tokens), ""), tokens, sink)
}

// runBatch has a program process one token of each of several sequences.
func (c *Control) runBatch(pr *program, tokens []Token, sink Sink) (Timing, error) {
	machine := c.machine
	if err := machine.load(c.ctx, pr); err != nil {
		return Timing{}, err
	}
	start := machine.meetClocks()
	machine.trace.begin(pr, machine.pos[tokens[0].Sequence], len(tokens), machine.tick())
	machine.batchPlaces = machine.batchPlaces[:0]
	for i, token := range tokens {
		pr.ids[i] = token.ID
		if err := machine.provideCaches(pr, token.Sequence, machine.pos[token.Sequence]); err != nil {
			return Timing{}, err
		}
		machine.batchPlaces = append(machine.batchPlaces, driver.Place{Sequence: token.Sequence,
			Pos: machine.pos[token.Sequence]})
	}
	for i, section := range pr.sections {
		if err := c.ctx.Err(); err != nil {
			machine.drainAll(pr)
			return Timing{}, err
		}
		scalars := driver.Scalars{Rows: len(tokens), Batch: machine.batchPlaces}
		if err := machine.runSection(section, scalars, machine.runsOn(pr.sections, i, true)); err != nil {
			return Timing{}, err
		}
	}
	if err := machine.checkIntact(); err != nil {
		return Timing{}, err
	}
	for i, token := range tokens {
		machine.pos[token.Sequence]++
		machine.noteAppended(pr, token.Sequence, machine.pos[token.Sequence])
		if sink != nil {
			if err := sink(i, pr.logits[i*machine.Vocabulary():][:machine.Vocabulary()]); err != nil {
				return Timing{}, err
			}
		}
	}
	return Timing{NS: int64(machine.meetClocks() - start), Virtual: machine.control.virtual}, nil
}

// admitsBatch refuses tokens that cannot be processed together.
func (m *Machine) admitsBatch(tokens []Token) error {
	for i, token := range tokens {
		m.single[0] = token.ID
		if err := m.admits(token.Sequence, m.single[:]); err != nil {
			return err
		}
		for j := range tokens[:i] {
			if tokens[j].Sequence == token.Sequence {
				return diag.New(diag.ClassUsage, "step: tokens %d and %d are both of sequence %d", j, i, token.Sequence)
			}
		}
	}
	return nil
}

// batchProgram returns the smallest program of a processor, "" for all of them, that decodes n sequences together, n at
// least 2.
func (m *Machine) batchProgram(n int, on string) *program {
	var best *program
	for _, pr := range m.order {
		if pr.Batch() && pr.On == on && pr.Rows >= n && (best == nil || pr.Rows < best.Rows) {
			best = pr
		}
	}
	if best == nil {
		panic("BUG: no program for a batch that rule P014 asks for")
	}
	return best
}
