package planir

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/planir/op"
)

// InFlight says that whole chunks of a prompt are processed together, several at a time, and in which order their steps
// are executed (llm.npu sec. 3.4): while one processor computes attention of a chunk, another one multiplies for the
// next. Each chunk has rows of its own in all buffers.
type InFlight struct {
	Rows   int `json:"rows" yaml:"rows"`     // of a chunk: a program of prefill with as many rows
	Chunks int `json:"chunks" yaml:"chunks"` // at a time, at least 2
	// By is the rule that ordered the steps: ByExact or ByGreedy; "" for the order of the chunks.
	By string `json:"by,omitempty" yaml:"by,omitempty"`
	// Orders are those of sections with layers, by their names. All others execute one chunk after the other.
	Orders []ChunkOrder `json:"orders,omitempty" yaml:"orders,omitempty"`
}

// ChunkOrder is the order in which a section's steps for several chunks are executed. Each chunk has the same tasks in
// the same order. Turns lists, turn by turn, the number of the chunk whose next task comes next. Starts is, for each
// chunk, the task with which its iterations start; if that is not the first, they start with the last tasks of the
// layer before.
type ChunkOrder struct {
	Section string `json:"section" yaml:"section"`
	Starts  []int  `json:"starts" yaml:"starts,flow"`
	Turns   []int  `json:"turns" yaml:"turns,flow"`
}

// Rules that order the steps of chunks in flight.
const (
	ByExact  = "exact"  // a search for the least time
	ByGreedy = "greedy" // llm.npu Eq. 5
)

// Order returns the order of a section, nil where one chunk comes after the other.
func (f *InFlight) Order(section string) *ChunkOrder {
	for i := range f.Orders {
		if f.Orders[i].Section == section {
			return &f.Orders[i]
		}
	}
	return nil
}

// InFlightOf reports whether a program is one of several chunks in flight.
func (p *Plan) InFlightOf(program *PhaseProgram) bool {
	return p.InFlight != nil && slices.ContainsFunc(p.Program.InFlight,
		func(own PhaseProgram) bool { return own.Name == program.Name })
}

// Most of what may be in flight: more only takes memory.
const (
	maxChunks = 8
	maxBehind = 1
)

// Iterations returns how often the section's steps are repeated: once for each layer, and more often if some chunks are
// layers behind others.
func (s *Section) Iterations() int { return max(1, s.Layers) + s.behind() }

// behind returns by how many layers a step of the section is behind the first one at most.
func (s *Section) behind() (most int) {
	for i := range s.Lanes {
		for j := range s.Lanes[i].Steps {
			most = max(most, s.Lanes[i].Steps[j].Behind)
		}
	}
	return most
}

// Layer returns the layer that the step computes in an iteration of its section; false if it has nothing to do there.
func (st *Step) Layer(section *Section, iteration int) (layer int, works bool) {
	at := iteration - st.Behind
	return section.First + at, at >= 0 && at < max(1, section.Layers)
}

// Touch reports whether two steps of a section touch an element of a buffer that one of them writes. Caches do not
// count.
func (st *Step) Touch(other *Step) bool {
	_, first := anyOverlap(st.Out, slices.Concat(other.In, other.Out))
	_, second := anyOverlap(st.In, other.Out)
	return first || second
}

// inFlight checks rule P031. Chunks in flight are whole chunks of one prompt. A later chunk attends to what the earlier
// ones wrote into the cache, so that in every layer steps on the same heads work on rows in ascending order. Of two
// steps that touch the same values, that of the earlier layer comes first, although iterations begin within layers.
func (c *checker) inFlight() {
	c.inFlightPrograms()
	for section := range c.plan.Program.sections() {
		alone := section.index[0] < len(c.plan.Program.Programs)+len(c.plan.Program.Beside) || section.Layers == 0
		if behind := section.behind(); behind > 0 && alone {
			c.fail(section.path(), "a step is %d layers behind, want 0 where no chunks are in flight", behind)
			continue
		}
		if !section.program.Batch() {
			c.cacheOrder(section)
		}
	}
}

// inFlightPrograms checks that the programs of several chunks are those of the decision, and that none gets fewer
// tokens than it has rows.
func (c *checker) inFlightPrograms() {
	decided, programs := c.plan.InFlight, c.plan.Program.InFlight
	if decided == nil {
		if len(programs) > 0 {
			c.fail("program.in_flight", "program %q is of several chunks, and the plan has one at a time",
				programs[0].Name)
		}
		return
	}
	chunk := func(named PhaseProgram) bool { return named.Phase == "prefill" && named.Rows == decided.Rows }
	if !slices.Contains([]string{"", ByGreedy, ByExact}, decided.By) {
		c.fail("in_flight.by", "rule %q, want %q or %q", decided.By, ByGreedy, ByExact)
	}
	if decided.Chunks < 2 || decided.Chunks > maxChunks || !slices.ContainsFunc(c.plan.Program.Programs, chunk) {
		c.fail("in_flight", "%d chunks of %d rows, want 2..%d chunks of a program of prefill", decided.Chunks,
			decided.Rows,
			maxChunks)
	}
	if len(programs) != 1 {
		c.fail("program.in_flight", "%d programs of several chunks, want 1", len(programs))
		return
	}
	program := &programs[0]
	if program.Phase != "prefill" || program.On != "" || program.Rows != decided.Chunks*decided.Rows {
		c.fail("program.in_flight[0]", "program %q of %s has %d rows, want prefill with %d chunks of %d", program.Name,
			program.Phase, program.Rows, decided.Chunks, decided.Rows)
	}
	ids := c.buffers[IDs]
	if ids.Rows < program.Rows {
		c.fail("program.buffers", "buffer %q has %d rows, and program %q takes %d tokens", IDs, ids.Rows, program.Name,
			program.Rows)
	}
	for i, entry := range c.plan.Program.Decider {
		if entry.Program == program.Name && entry.Min < program.Rows {
			c.fail(fmt.Sprintf("program.decider[%d]", i),
				"program %q of whole chunks takes %d tokens, want at least %d",
				program.Name, entry.Min, program.Rows)
		}
	}
}

// cacheUse reports whether a step writes keys and values to the cache, and whether it reads them.
func (c *checker) cacheUse(step *Step) (writes, reads bool) {
	for _, node := range c.graphOf[step.Run].Graph.Nodes {
		switch node.Op.Kind {
		case op.KVAppend:
			writes = true
		case op.Attention, op.Estimate, op.SparseAttend:
			reads = true
		}
	}
	return writes, reads
}

// independent reports whether the first step only reads the cache, and the second only writes later rows.
func (c *checker) independent(first, second *Step) bool {
	writesFirst, _ := c.cacheUse(first)
	_, readsSecond := c.cacheUse(second)
	return !writesFirst && !readsSecond
}

// cacheOrder checks the order of the steps of a section that share heads of the cache, or other values, by what is
// known to have happened before what. A step that only reads the cache may be behind one that only writes later rows,
// because no row attends to later ones.
func (c *checker) cacheOrder(section sectionAt) {
	unrolled := c.runs[section.Section]
	heads := func(one, other *Step) bool {
		return one.Heads != nil && other.Heads != nil && one.Heads[0] < other.Heads[1] && other.Heads[0] < one.Heads[1]
	}
	for a, first := range unrolled.events {
		for b, second := range unrolled.events {
			if a == b {
				continue
			}
			earlier, later := first.step, second.step
			lane := section.Lanes[second.lane].Proc
			layer, other := first.iter-earlier.Behind, second.iter-later.Behind
			if layer < 0 || other < 0 || unrolled.precedes(a, b) {
				continue
			}
			if layer == other && earlier.R0 < later.R0 && heads(earlier, later) && !c.independent(earlier, later) {
				c.fail(section.path(),
					"%q of rows from %d on %q may run before %q of rows from %d has written the cache of layer %d",
					later.Node, later.R0, lane, earlier.Node, earlier.R0, section.First+layer)
				return
			}
			if layer < other && earlier.Behind != later.Behind && earlier.Touch(later) {
				c.fail(section.path(),
					"%q on %q of layer %d may run before %q of layer %d, which touches the same values",
					later.Node, lane, section.First+other, earlier.Node, section.First+layer)
				return
			}
		}
	}
}
