package planir

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/planir/op"
)

// cores checks rule P011. Processors whose first core is the same are driven by one thread and take turns; any other
// overlap would have two threads compete for a core. A simulator has no such threads.
func (c *checker) cores() {
	for section := range c.plan.Program.sections() {
		owner := map[int]*Proc{}
		for _, lane := range section.Lanes {
			proc := c.plan.Proc(lane.Proc)
			for _, core := range proc.Cores {
				other := owner[core]
				if other != nil && (other.Cores[0] != proc.Cores[0] || c.plan.SoC.Simulated) {
					c.fail(section.path(), "processors %q and %q share core %d", other.Name, proc.Name, core)
				}
				owner[core] = proc
			}
		}
	}
}

// decider checks rule P012. The entries cover 1..MaxContext without gaps or overlaps, so that every number of tokens
// selects exactly one program. The executor's own buffers must be there, too: token ids go in, logits come out.
func (c *checker) decider() {
	next := 1
	for i, entry := range c.plan.Program.Decider {
		if entry.Min != next || entry.Max < entry.Min {
			c.fail(fmt.Sprintf("program.decider[%d]", i), "covers %d..%d, want a start of %d", entry.Min, entry.Max,
				next)
			return
		}
		next = entry.Max + 1
	}
	if next != c.plan.MaxContext+1 {
		c.fail("program.decider", "ends at %d tokens, want %d", next-1, c.plan.MaxContext)
	}
	hasLogits := false
	for section := range c.plan.Program.sections() {
		hasLogits = hasLogits || section.Logits
	}
	ids, logits := c.buffers[IDs], c.buffers[Logits]
	for _, buffer := range []struct {
		name string
		ok   bool
	}{
		{IDs, ids != nil && ids.Type == op.I32 && ids.Cols == 1},
		{Logits, logits != nil && logits.Type == op.F32 && hasLogits},
	} {
		if !buffer.ok {
			c.fail("program.buffers", "buffer %q is missing or has another type than the executor expects", buffer.name)
		}
	}
}

// batches checks rule P014. In a batch each row belongs to another sequence: attention, cache and logits go row by row.
// A program of one and of several sequences must therefore never be taken for each other.
func (c *checker) batches() {
	want := c.plan.Sequences()
	if want == 1 {
		want = 0
	}
	if held := c.plan.Program.Cache.Sequences; held != want {
		c.fail("program.cache.sequences", "the cache holds %d sequences, and the largest of the batches %v takes %d",
			held, c.plan.Batches, want)
	}
	if buffer := c.buffers[Logits]; buffer.Rows < c.plan.Sequences() {
		c.fail("program.buffers", "buffer %q has %d rows, want one for each of %d sequences",
			Logits, buffer.Rows, c.plan.Sequences())
	}
	// Each batch has its own program, and no entry for the tokens of one sequence selects it.
	programs := map[int]int{}    // how many decode so many sequences
	batched := map[string]bool{} // programs of several sequences
	for i, program := range c.plan.Program.All() {
		if program.Batch() {
			if program.On == "" {
				programs[program.Rows]++
			}
			batched[program.Name] = true
			c.batch(c.plan.Program.path(i), program)
		}
	}
	for i, size := range c.plan.Batches {
		if programs[size] != 1 {
			c.fail(fmt.Sprintf("batches[%d]", i), "%d programs decode %d sequences, want 1", programs[size], size)
		}
	}
	for i, entry := range c.plan.Program.Decider {
		if batched[entry.Program] {
			c.fail(fmt.Sprintf("program.decider[%d]", i),
				"program %q is for several sequences, and tokens of one are processed",
				entry.Program)
		}
	}
	for step := range c.plan.Program.steps() {
		c.batchStep(step)
	}
}

// batch checks the program that decodes several sequences: every row has logits, and none is selected.
func (c *checker) batch(path string, program *PhaseProgram) {
	if !slices.Contains(c.plan.Batches, program.Rows) {
		c.fail(path, "program %q decodes %d sequences, and the plan has batches of %v", program.Name, program.Rows,
			c.plan.Batches)
	}
	var have []View
	for i := range program.Sections {
		section := &program.Sections[i]
		if section.Logits { // it would run once per row
			c.fail(fmt.Sprintf("%s.sections[%d].logits", path, i),
				"section %q selects rows, and every row of a batch has logits",
				section.Name)
		}
		for step := range (sectionAt{Section: section}).steps() {
			have = append(have, step.Out...)
		}
	}
	logits := View{Buffer: program.Own(Logits), R1: program.Rows, C1: c.buffers[Logits].Cols}
	if miss, bad := uncovered(logits, have); bad {
		c.fail(path, "no step writes %s", miss)
	}
}

// batchStep checks that a step's operators are of rows of a sequence each exactly where its program is.
func (c *checker) batchStep(step stepAt) {
	batch := step.program.Batch()
	for _, node := range c.graphOf[step.Run].Graph.Nodes {
		kind := node.Op.Kind
		if kind == op.SelectRow {
			if batch {
				c.fail(step.path(""), "%q selects a row of a batch, want all rows", step.Node)
			}
		} else if kind.Has("batch") && node.Op.Batch != batch {
			c.fail(step.path(""), "graph %q: %s of rows of a sequence each: %v, and program %q is for such rows: %v",
				step.Run, kind, node.Op.Batch, step.program.Name, batch)
		}
	}
}

// weightsInArtifacts checks rule P016. A compiler that embeds weights produces artifacts per set of weights: every step
// that runs a graph, and every graph of a context, must mean the same set.
func (c *checker) weightsInArtifacts() {
	reader := map[string]string{} // of packs, the processor
	reads := map[string]string{}  // of graphs and contexts with weights in artifacts, the packs
	for step := range c.plan.Program.steps() {
		proc := c.plan.Proc(step.lane.Proc)
		for _, ref := range step.W {
			c.artifactPack(step, proc, ref, reader)
		}
		if !proc.WeightsInArtifacts {
			continue
		}
		graph := c.graphOf[step.Run]
		same := func(what, name, packs string) {
			if old, again := reads[what+name]; again && old != packs {
				c.fail(step.path(".w"), "%s %q holds other weights in this step than in another", what, name)
			}
			reads[what+name] = packs
		}
		same("graph", graph.Name, refsKey(step.W))
		if graph.Context != "" {
			same("context", graph.Context, graph.Proc+"\x00"+refsKey(step.W))
		}
	}
	c.artifacts()
}

// artifactPack checks that a processor whose artifacts hold their weights reads packs in artifacts only, whole, which
// no other processor reads.
func (c *checker) artifactPack(step stepAt, proc *Proc, ref WeightRef, reader map[string]string) {
	pack := c.packs[ref.Pack]
	other, again := reader[ref.Pack]
	switch {
	case pack.InArtifact != proc.WeightsInArtifacts:
		c.fail(step.path(".w"), "pack %q is in an artifact: %v, and artifacts of processor %q hold their weights: %v",
			pack.Name, pack.InArtifact, proc.Name, proc.WeightsInArtifacts)
	case pack.InArtifact && again && other != proc.Name:
		c.fail(step.path(".w"), "pack %q of an artifact is read by %q and by %q", pack.Name, other, proc.Name)
	case pack.InArtifact && (ref.C0 != 0 || ref.C1 != pack.N1-pack.N0):
		c.fail(step.path(".w"), "%s is part of a pack in an artifact", ref)
	}
	reader[ref.Pack] = proc.Name
}

// artifacts checks that artifacts with weights are of one graph each, and that contexts are named exactly where
// binaries are shared. Contexts and artifacts are blobs of one bundle, so that their names differ.
func (c *checker) artifacts() {
	graphs := c.plan.Program.Graphs
	blobs := map[string]bool{}
	for i := range graphs {
		graph, proc := &graphs[i], c.plan.Proc(graphs[i].Proc)
		if (graph.Context != "") != (proc.WeightsInArtifacts && proc.Shares) {
			c.fail(fmt.Sprintf("program.graphs[%d].context", i),
				"graph %q refers to the binary %q, and artifacts of processor %q hold their weights: %v, it shares binaries: %v",
				graph.Name, graph.Context, proc.Name, proc.WeightsInArtifacts, proc.Shares)
		}
		if proc.WeightsInArtifacts && blobs[graph.Artifact] {
			c.fail(fmt.Sprintf("program.graphs[%d].artifact", i),
				"artifact %q is that of two graphs, and holds weights", graph.Artifact)
		}
		blobs[graph.Artifact] = true
	}
	for i := range graphs {
		if context := graphs[i].Context; context != "" && blobs[context] {
			c.fail(fmt.Sprintf("program.graphs[%d].context", i), "context %q has the name of an artifact", context)
		}
	}
}
