package planir

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Beside names two processors that work for different requests at the same time: one processes a chunk of a prompt
// while the other one decodes (Agent.xpu sec. 4.3). Each has programs that it executes alone, in buffers of its own,
// with the weights and caches of the others.
type Beside struct {
	Prefill string `json:"prefill" yaml:"prefill"` // processor that processes prompts
	Decode  string `json:"decode" yaml:"decode"`   // processor that decodes meanwhile
	// Pairs are the predicted times of two programs that run side by side: every bucket of prefill, ascending, with
	// every program that decodes, ascending.
	Pairs []BesidePair `json:"pairs,omitempty" yaml:"pairs,omitempty"`
}

// BesidePair is the predicted times of two programs, in ns, each while the other one runs.
type BesidePair struct {
	PrefillRows int   `json:"prefill_rows" yaml:"prefill_rows"`
	DecodeRows  int   `json:"decode_rows" yaml:"decode_rows"`
	PrefillNS   int64 `json:"prefill_ns" yaml:"prefill_ns"`
	DecodeNS    int64 `json:"decode_ns" yaml:"decode_ns"`
}

// Precision compares the products of all programs. alike: every product has the same scheme in all of them. exact: in
// addition it computes with integers and nothing is Unlike. Then a row has the same bits in every program, alone or
// with other rows.
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
		looksUp := strings.HasPrefix(decision.Node, "embed.") // a lookup computes nothing
		exact = exact && (looksUp || decision.Scheme.QuantisedRows())
	}
	return alike, alike && exact && p.Unlike() == ""
}

// rowwise are the drivers that compute a row with the same bits whichever rows come with it. ONNX Runtime has other
// kernels for a single row, and compilers of NPUs do not document what they make of a graph.
var rowwise = []string{"host", "opencl", "sim"}

// Unlike returns why a row may have other bits in one program than in another although its products are of integers; ""
// if it has the same bits. One reason is a processor that computes a row differently with other rows. The other is an
// operator that is divided among unlike processors, or along its sum, in one program but not in another.
func (p *Plan) Unlike() string {
	ways := map[string]string{} // by node
	for i := range p.Decisions {
		decision := &p.Decisions[i]
		for _, share := range decision.Shares {
			proc := p.Proc(share.Proc)
			if proc != nil && !slices.Contains(rowwise, proc.Driver) {
				return fmt.Sprintf("driver %q may round a row otherwise beside other rows", proc.Driver)
			}
		}
		way := p.divisionText(decision)
		if before, there := ways[decision.Node]; there && before != way {
			return fmt.Sprintf("%q is divided otherwise in one program than in another", decision.Node)
		}
		ways[decision.Node] = way
	}
	if p.Beside == nil {
		return ""
	}
	for _, node := range slices.Sorted(maps.Keys(ways)) {
		for _, name := range []string{p.Beside.Prefill, p.Beside.Decode} {
			if ways[node] != p.divisionText(&Decision{Shares: []Share{{Proc: name}}}) {
				return fmt.Sprintf("%q is divided otherwise than by processor %q alone", node, name)
			}
		}
	}
	return ""
}

// divisionText describes the part of a decision's division on which the bits of a result depend: which driver computes
// which part, if there are several, and where a sum is divided.
func (p *Plan) divisionText(decision *Decision) string {
	var drivers, parts []string
	for _, share := range decision.Shares {
		driver := share.Proc
		if proc := p.Proc(share.Proc); proc != nil {
			driver = fmt.Sprint(proc.Driver, proc.Options)
		}
		drivers = append(drivers, driver)
		parts = append(parts, fmt.Sprintf("%s %s %d:%d", driver, decision.Axis, share.From, share.To))
	}
	if one := slices.Compact(slices.Clone(drivers)); decision.Axis != AxisK && len(one) == 1 {
		return one[0]
	}
	if decision.Axis == AxisRows { // a row is another processor's in a call of other rows
		parts = append(parts, fmt.Sprint(decision.Rows))
	}
	return strings.Join(parts, ", ")
}

// ByCall reports whether the results of a row depend on the other rows of its call. Sparse attention selects positions
// for blocks of queries, counted from the call's first row. Capacity tiers may drop rows beyond an expert's slot. In
// such plans the same tokens get other logits when a prompt is cut into other chunks.
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

// beside checks rule P017. Programs that run at the same time share no thread, no core and no buffer. The two
// processors have no core in common. Each program of one processor has only steps of that processor, and its buffers
// belong to no other program. The control processor processes no prompts, since its thread serves the caller.
func (c *checker) beside() {
	c.ownPrograms()
	beside := c.plan.Beside
	if beside == nil {
		return
	}
	prefill, decode := c.plan.Proc(beside.Prefill), c.plan.Proc(beside.Decode)
	control := c.plan.Proc(c.plan.SoC.Control)
	switch {
	case prefill == nil || decode == nil:
		c.fail("beside", "processors %q and %q, want two of the plan", beside.Prefill, beside.Decode)
		return
	case prefill == decode || sharesCore(prefill, decode):
		c.fail("beside", "processors %q and %q work at the same time, want no core of both", prefill.Name, decode.Name)
	case control != nil && (prefill == control || sharesCore(prefill, control)):
		c.fail("beside.prefill", "%q processes prompts beside decoding, and shares a thread with the control processor",
			prefill.Name)
	}
	if len(c.found) > 0 {
		return
	}
	c.besidePrograms(beside)
	c.besidePairs(beside)
}

// besidePairs checks that predicted pairs name existing programs, in ascending order of their rows.
func (c *checker) besidePairs(beside *Beside) {
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

// besidePrograms checks that the two processors have all programs they need: one for a prompt, and for decoding one for
// a single sequence and one for every batch. Each computes logits.
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

// ownPrograms checks programs of one processor: only the plan's Beside calls for them, and they use no step, flag or
// buffer of another processor.
func (c *checker) ownPrograms() {
	c.ownSteps()
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
		c.ownEnds(program)
	}
}

// ownSteps checks that programs of one processor have steps of that processor only, and buffers of their own.
func (c *checker) ownSteps() {
	users := map[string]string{} // by buffer: the processor whose programs use it, "" for programs of all
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
}

// ownEnds checks that a program of one processor has token ids and logits of its own, as those of all programs are.
func (c *checker) ownEnds(program *PhaseProgram) {
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

// sharesCore reports whether two processors occupy a core in common.
func sharesCore(one, other *Proc) bool {
	return slices.ContainsFunc(one.Cores, func(core int) bool { return slices.Contains(other.Cores, core) })
}
