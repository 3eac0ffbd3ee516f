package planir

import (
	"fmt"
	"slices"
	"strings"
)

// Beside names two processors that work for different requests at the same time: one processes a chunk of a prompt while
// the other one decodes (Agent.xpu sec. 4.3). Each has programs that it executes alone, in buffers of its own, with the
// weights and caches of the others.
type Beside struct {
	Prefill string `json:"prefill" yaml:"prefill"` // processor that processes prompts
	Decode  string `json:"decode" yaml:"decode"`   // processor that decodes meanwhile
	// Pairs are the predicted times of two programs that run side by side: every bucket of prefill, ascending, with
	// every program that decodes, ascending.
	Pairs []BesidePair `json:"pairs,omitempty" yaml:"pairs,omitempty"`
}

// BesidePair is what two programs take while the other one runs, in ns.
type BesidePair struct {
	PrefillRows int   `json:"prefill_rows" yaml:"prefill_rows"`
	DecodeRows  int   `json:"decode_rows" yaml:"decode_rows"`
	PrefillNS   int64 `json:"prefill_ns" yaml:"prefill_ns"`
	DecodeNS    int64 `json:"decode_ns" yaml:"decode_ns"`
}

// Precision says whether every product has the same scheme in all programs, and, if so, whether their arithmetic is that
// of integers. Of such a plan the rows of a sequence have the same bits, one by one or several at once, whichever program
// computes them.
func (p *Plan) Precision() (alike, exact bool) {
	alike, exact = true, true
	for i := range p.Decisions {
		decision := &p.Decisions[i]
		if decision.Scheme == "" {
			continue
		}
		if one := p.DecisionFor(decision.Node, 1); one != nil && one.Scheme != decision.Scheme {
			alike = false
		}
		looksUp := strings.HasPrefix(decision.Node, "embed.") // which computes nothing
		exact = exact && (looksUp || decision.Scheme.QuantisedRows())
	}
	return alike, alike && exact
}

// ByCall reports whether what a row of a prompt gets depends on the other rows of its call: blocks of queries, counted from
// a call's first row, share a selection of positions, and of the rows that are sent to an expert those beyond its slot are
// dropped. The same tokens have other logits in calls that divide them otherwise.
func (p *Plan) ByCall() bool {
	return p.Attention != nil || slices.ContainsFunc(p.Experts, ExpertTiers.drops)
}

// drops reports whether rows may be dropped.
func (t ExpertTiers) drops() bool { return t.Overflow == OverflowDrop }

// ProgramOn returns the program of that many rows that a processor executes alone, nil when there is none.
func (p *Program) ProgramOn(proc string, rows int) *PhaseProgram {
	for i := range p.Beside {
		if p.Beside[i].On == proc && p.Beside[i].Rows == rows {
			return &p.Beside[i]
		}
	}
	return nil
}

// beside is P017. What runs at the same time shares no thread, no core and no buffer: the two processors have no core
// in common, each program of one processor has steps of that processor only, in buffers that no other program touches,
// and prompts are not processed by the control processor, whose thread serves the caller.
func (c *checker) beside() {
	c.ownPrograms()
	beside := c.plan.Beside
	if beside == nil {
		return
	}
	prefill, decode := c.plan.Proc(beside.Prefill), c.plan.Proc(beside.Decode)
	switch {
	case prefill == nil || decode == nil:
		c.fail("beside", "processors %q and %q, want two of the plan", beside.Prefill, beside.Decode)
		return
	case prefill == decode || sharesCore(prefill, decode):
		c.fail("beside", "processors %q and %q work at the same time, want no core of both", prefill.Name, decode.Name)
	case c.plan.Proc(c.plan.SoC.Control) != nil && (prefill.Name == c.plan.SoC.Control ||
		sharesCore(prefill, c.plan.Proc(c.plan.SoC.Control))):
		c.fail("beside.prefill", "%q processes prompts beside decoding, and shares a thread with the control processor",
			prefill.Name)
	}
	if len(c.found) > 0 {
		return
	}
	c.besidePrograms(beside)
	for i, pair := range beside.Pairs {
		path := fmt.Sprintf("beside.pairs[%d]", i)
		first, second := c.plan.Program.ProgramOn(beside.Prefill, pair.PrefillRows),
			c.plan.Program.ProgramOn(beside.Decode, pair.DecodeRows)
		if first == nil || second == nil || first.Phase != "prefill" || second.Phase != "decode" {
			c.fail(path, "no programs that prefill %d rows on %q and decode %d on %q", pair.PrefillRows, beside.Prefill,
				pair.DecodeRows, beside.Decode)
		}
		if pair.PrefillNS < 0 || pair.DecodeNS < 0 {
			c.fail(path, "%d and %d ns, want neither below 0", pair.PrefillNS, pair.DecodeNS)
		}
		if i > 0 {
			before := beside.Pairs[i-1]
			if before.PrefillRows > pair.PrefillRows ||
				before.PrefillRows == pair.PrefillRows && before.DecodeRows >= pair.DecodeRows {
				c.fail(path, "%d and %d rows follow %d and %d, want ascending rows", pair.PrefillRows, pair.DecodeRows,
					before.PrefillRows, before.DecodeRows)
			}
		}
	}
}

// besidePrograms checks that there is a program for whatever may be asked of the two: for some number of rows of a
// prompt, for one sequence, and for every batch; each computes logits.
func (c *checker) besidePrograms(beside *Beside) {
	prompts := 0
	for i := range c.plan.Program.Beside {
		program := &c.plan.Program.Beside[i]
		path := fmt.Sprintf("program.beside[%d]", i)
		for j := range program.Sections {
			if len(program.Sections[j].Lanes) != 1 {
				c.fail(fmt.Sprintf("%s.sections[%d]", path, j), "%d lanes, want that of %q",
					len(program.Sections[j].Lanes),
					program.On)
			}
		}
		if first := c.plan.Program.ProgramOn(program.On, program.Rows); first != program {
			c.fail(path, "programs %q and %q are of the same processor and number of rows", first.Name, program.Name)
		}
		selects := slices.ContainsFunc(program.Sections, func(section Section) bool { return section.Logits })
		if !program.Batch() && !selects {
			c.fail(path, "no section of %q computes logits", program.Name)
		}
		if program.Phase == "prefill" {
			prompts++
			if program.On != beside.Prefill {
				c.fail(path, "%q processes prompts on %q, want %q", program.Name, program.On, beside.Prefill)
			}
		}
	}
	if prompts == 0 {
		c.fail("program.beside", "no program processes prompts on %q", beside.Prefill)
	}
	for _, rows := range append([]int{1}, c.plan.Batches...) {
		if program := c.plan.Program.ProgramOn(beside.Decode, rows); program == nil || program.Phase != "decode" {
			c.fail("program.beside", "no program decodes %d sequences on %q", rows, beside.Decode)
		}
	}
}

// ownPrograms checks programs of one processor: only beside calls for them, and they keep to themselves.
func (c *checker) ownPrograms() {
	users := map[string]string{} // of buffers, by what executes the program
	for step := range c.plan.Program.steps() {
		on := step.program.On
		if on != "" && step.lane.Proc != on {
			c.fail(step.path(""), "program %q is of processor %q, and this step runs on %q", step.program.Name, on,
				step.lane.Proc)
		}
		for _, list := range [][]View{step.In, step.Out} {
			for _, view := range list {
				if other, used := users[view.Buffer]; used && other != on {
					c.fail(step.path(""), "buffer %q is used by programs of %q and of %q, which may run at the same time",
						view.Buffer, other, on)
				}
				users[view.Buffer] = on
			}
		}
	}
	for section := range c.plan.Program.sections() {
		if section.program.On != "" && section.Flags != 0 {
			c.fail(section.path()+".flags", "%d flags, and processor %q waits for no other", section.Flags,
				section.program.On)
		}
	}
	for i, program := range c.plan.Program.All() {
		path, beside := c.plan.Program.path(i), c.plan.Beside
		if number := i - len(c.plan.Program.Programs); number < 0 || number >= len(c.plan.Program.Beside) {
			if program.On != "" {
				c.fail(path+".on", "program %q is of processor %q, and is executed by all", program.Name, program.On)
			}
			continue
		}
		if beside == nil || program.On == "" || program.On != beside.Prefill && program.On != beside.Decode {
			c.fail(path+".on", "program %q is of processor %q, which works beside no other", program.Name, program.On)
			continue
		}
		for _, name := range []string{IDs, Logits} {
			own, all := c.buffers[program.Own(name)], c.buffers[name]
			rows := program.Rows
			if name == Logits && !program.Batch() {
				rows = 1
			}
			if own == nil || own.Type != all.Type || own.Cols != all.Cols || own.Rows < rows {
				c.fail("program.buffers", "buffer %q of program %q is missing, or is not as long and wide as it must be",
					program.Own(name), program.Name)
			}
		}
	}
}

// sharesCore reports whether two processors occupy a core in common.
func sharesCore(one, other *Proc) bool {
	return slices.ContainsFunc(one.Cores, func(core int) bool { return slices.Contains(other.Cores, core) })
}
