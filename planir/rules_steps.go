package planir

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/planir/op"
)

// graphs checks rule P003. Operators that use the cache, or that work on the rows of a call together, need a processor
// that stops at a call's last row (DynamicRows): a static graph would write its padding rows into the cache, or count
// them. Operators that count the rows themselves may be static.
func (c *checker) graphs() {
	for i := range c.plan.Program.Graphs {
		graph := &c.plan.Program.Graphs[i]
		path := fmt.Sprintf("program.graphs[%d]", i)
		if err := graph.Graph.Validate(); err != nil {
			c.fail(path, "graph %q: %v", graph.Name, err)
			continue
		}
		proc := c.plan.Proc(graph.Proc)
		if rows := graph.Graph.Rows(); graph.Graph.StopsAtCall() && rows > 1 && !proc.DynamicRows {
			c.fail(path, "graph %q: processor %q computes all %d rows whatever a call has, and rows beyond it must neither be "+
				"cached nor counted", graph.Name, proc.Name, rows)
		}
		if graph.Graph.Estimate() != nil && proc.OwnMemory {
			c.fail(path, "graph %q: processor %q estimates scores in memory of its own, and another one caches the keys",
				graph.Name, proc.Name)
		}
		for j := range graph.Graph.Nodes {
			c.executable(path, graph, proc, &graph.Graph.Nodes[j].Op)
		}
		c.graphWeights(path, graph, proc)
	}
}

// executable checks that a processor executes an operator of a graph, in its scheme and form.
func (c *checker) executable(path string, graph *Graph, proc *Proc, operator *op.Op) {
	if !proc.Executes(operator.Kind) {
		c.fail(path, "graph %q: processor %q does not execute %q", graph.Name, proc.Name, operator.Kind)
	}
	scheme := operator.Scheme
	if operator.HasScheme() && !slices.Contains(proc.Schemes, scheme) {
		c.fail(path, "graph %q: processor %q does not execute scheme %q", graph.Name, proc.Name, scheme)
	}
	if !proc.HasForm(scheme, operator.Form) {
		c.fail(path, "graph %q: processor %q does not execute form %q of scheme %q", graph.Name, proc.Name,
			operator.Form, scheme)
	}
	if operator.Kind == op.Embed && scheme != "" && proc.Layouts[scheme.Weight()] != op.TilesLayout {
		c.fail(path, "graph %q: processor %q does not read weights %q in layout %q, in which rows are looked up",
			graph.Name, proc.Name, scheme.Weight(), op.TilesLayout)
	}
}

// graphWeights checks that a processor reads the layouts of a graph's packed weights, and holds all of them.
func (c *checker) graphWeights(path string, graph *Graph, proc *Proc) {
	var bytes int64
	for _, weight := range graph.Graph.Weights {
		if weight.Layout == op.RowsLayout {
			continue
		}
		bytes += int64(max(1, weight.Experts)) * op.WeightBytes(weight.Scheme, weight.K, weight.N)
		if want := proc.Layouts[weight.Scheme]; weight.Layout != want {
			c.fail(path, "graph %q: weight %q has layout %q, and processor %q reads %q",
				graph.Name, weight.Name, weight.Layout, proc.Name, want)
		}
	}
	if proc.GraphBytes > 0 && bytes > proc.GraphBytes {
		c.fail(path, "graph %q holds %d bytes of weights, and one graph of processor %q at most %d",
			graph.Name, bytes, proc.Name, proc.GraphBytes)
	}
}

// views checks rule P004. Buffers come first, because views are compared with their bounds.
func (c *checker) views() {
	const maxElements = 1 << 33
	for i := range c.plan.Program.Buffers {
		buffer := &c.plan.Program.Buffers[i]
		if buffer.Type.Bytes() == 0 || buffer.Rows < 1 || buffer.Cols < 1 ||
			int64(buffer.Rows)*int64(buffer.Cols) > maxElements {
			c.fail(fmt.Sprintf("program.buffers[%d]", i), "buffer %q: bad type or shape %s [%d,%d]",
				buffer.Name, buffer.Type, buffer.Rows, buffer.Cols)
			return
		}
	}
	for step := range c.plan.Program.steps() {
		graph := c.graphOf[step.Run]
		c.operands(step, ".in", step.In, graph.Graph.Inputs, "inputs")
		c.operands(step, ".out", step.Out, graph.Graph.Outputs, "outputs")
		if graph.Graph.State() != (step.Heads != nil) {
			c.fail(step.path(".heads"), "graph %q uses the cache: %v, heads given: %v",
				graph.Name, graph.Graph.State(), step.Heads != nil)
		} else if step.Heads != nil && !c.heads(step, graph) {
			continue
		}
		rows := step.program.Rows
		if step.Full && len(step.Out) > 0 { // it computes slots of experts: as many rows as their buffer has
			rows = c.buffers[step.Out[0].Buffer].Rows
		}
		if step.R0 < 0 || step.R0 >= rows || step.ExpectNS < 0 {
			c.fail(step.path(""), "first row %d of %d, expected time %d ns: out of range",
				step.R0, rows, step.ExpectNS)
		}
	}
}

// operands compares the views of a step with the values that its graph takes or gives.
func (c *checker) operands(step stepAt, part string, views []View, values []op.Value, what string) {
	if len(views) != len(values) {
		c.fail(step.path(part), "%d %s, and its graph has %d", len(views), what, len(values))
		return
	}
	for i, view := range views {
		buffer, want := c.buffers[view.Buffer], values[i]
		rows, cols := view.R1-view.R0, view.C1-view.C0
		switch {
		case view.R0 < 0 || view.C0 < 0 || rows <= 0 || cols <= 0 || view.R1 > buffer.Rows || view.C1 > buffer.Cols:
			c.fail(step.path(part), "view %s is outside its buffer [%d,%d]", view, buffer.Rows, buffer.Cols)
		case buffer.Type != want.Type || rows != want.Rows || cols != want.Cols:
			c.fail(step.path(part), "view %s is %s [%d,%d], and operand %q of the graph is %s [%d,%d]",
				view, buffer.Type, rows, cols, want.Name, want.Type, want.Rows, want.Cols)
		}
	}
}

// heads compares the heads of a step with the cache and with its graph. It returns false where the cache lacks them.
func (c *checker) heads(step stepAt, graph *Graph) bool {
	cache, section := c.plan.Program.Cache, step.section
	first, after := step.Heads[0], step.Heads[1]
	layers := section.Layers > 0 && section.First+section.Layers <= cache.Layers
	if first < 0 || after <= first || after > cache.KVHeads || !layers ||
		c.plan.MaxContext != cache.MaxContext || c.plan.KV != cache.Type {
		c.fail(step.path(".heads"), "heads %d..%d of layers %d..%d, and the cache is %+v",
			first, after, section.First, section.First+section.Layers, cache)
		return false
	}
	for _, node := range graph.Graph.Nodes {
		operator := &node.Op
		if !operator.Sig().State {
			continue
		}
		if operator.KVHeads != after-first || operator.HeadDim != cache.HeadDim || operator.KV != cache.Type {
			c.fail(step.path(".heads"), "graph %q works on %d heads of %d %s, and the step gives it %d of %d %s",
				graph.Name, operator.KVHeads, operator.HeadDim, operator.KV, after-first, cache.HeadDim, cache.Type)
		}
	}
	return true
}

// weights checks rule P005: first that packs are pieces of their weights, then that steps refer to pieces of packs.
func (c *checker) weights() {
	const maxPack = 1 << 40
	for i := range c.plan.Program.Packs {
		pack := &c.plan.Program.Packs[i]
		weight := c.weightOf[pack.Weight]
		rows := pack.K0 >= 0 && pack.K1 > pack.K0 && pack.K1 <= weight.K
		cols := pack.N0 >= 0 && pack.N1 > pack.N0 && pack.N1 <= weight.N
		if !rows || !cols || pack.Bytes < 1 || pack.Bytes > maxPack {
			c.fail(fmt.Sprintf("program.packs[%d]", i),
				"pack %q [%d:%d,%d:%d] of %d bytes is outside weight %q [%d,%d]",
				pack.Name, pack.K0, pack.K1, pack.N0, pack.N1, pack.Bytes, weight.Name, weight.K, weight.N)
		}
	}
	for step := range c.plan.Program.steps() {
		specs := c.graphOf[step.Run].Graph.Weights
		if len(step.W) != len(specs) {
			c.fail(step.path(".w"), "%d weights, and its graph has %d", len(step.W), len(specs))
			continue
		}
		for i, ref := range step.W {
			c.weightRef(step, ref, &specs[i])
		}
	}
}

// weightRef compares a step's reference with the pack it refers to and with what the graph takes.
func (c *checker) weightRef(step stepAt, ref WeightRef, spec *op.WeightSpec) {
	pack, proc := c.packs[ref.Pack], c.plan.Proc(step.lane.Proc)
	rows, cols, experts := pack.K1-pack.K0, pack.N1-pack.N0, pack.Experts
	if ref.Tiers > 0 {
		experts = 0 // the step reads one expert, which is a plain matrix
	}
	switch {
	case pack.Slotted && ref.Tiers == 0:
		c.fail(step.path(".w"), "%s is of all experts, and its pack holds those that have a slot", ref)
	case ref.C0 < 0 || ref.C1 <= ref.C0 || ref.C1 > cols:
		c.fail(step.path(".w"), "%s is outside its pack of %d columns", ref, cols)
	case rows != spec.K || experts != spec.Experts || ref.C1-ref.C0 != spec.N || pack.Scheme != spec.Scheme ||
		pack.Layout != spec.Layout:
		c.fail(step.path(".w"), "%s is %s %s [%d,%d], and weight %q of the graph is %s %s [%d,%d]", ref, pack.Scheme,
			pack.Layout, rows, ref.C1-ref.C0, spec.Name, spec.Scheme, spec.Layout, spec.K, spec.N)
	case spec.Layout != op.RowsLayout && (ref.C0 != 0 || ref.C1 != cols):
		tile := max(1, proc.Tile.N)
		if !proc.WeightRanges {
			c.fail(step.path(".w"), "%s is part of a pack, and processor %q loads whole packs only", ref, proc.Name)
		} else if ref.C0%tile != 0 || ref.C1%tile != 0 && ref.C1 != cols {
			c.fail(step.path(".w"), "%s does not start and end on tiles of %d columns", ref, tile)
		}
	}
}

// use is the part of a weight that a step multiplies, and the rows it multiplies with it.
type use struct{ k, n, rows span }

// area returns the number of multiplications.
func (u use) area() int64 { return int64(u.k.length()) * int64(u.n.length()) * int64(u.rows.length()) }

// common returns what two uses share.
func (u use) common(other use) use {
	return use{u.k.common(other.k), u.n.common(other.n), u.rows.common(other.rows)}
}

// empty reports whether nothing is multiplied.
func (u use) empty() bool { return u.k.length() <= 0 || u.n.length() <= 0 || u.rows.length() <= 0 }

// span is the half-open range of integers from..to-1.
type span struct{ from, to int }

// length is not positive for an empty span.
func (s span) length() int { return s.to - s.from }

// common returns what two ranges share; its length is not positive where that is nothing.
func (s span) common(other span) span { return span{max(s.from, other.from), min(s.to, other.to)} }

// nodeWeight is a weight as a node uses it; for an expert in a slot, with the slot.
type nodeWeight struct {
	node, weight string
	slot         int
}

// tiling checks rule P006: every element of a weight is multiplied exactly once with every row of activations. Uses are
// boxes of rows, columns and activations. Where no two boxes overlap and their volumes add up to that of the whole
// product, they cover it exactly once.
func (c *checker) tiling() {
	for section := range c.plan.Program.sections() {
		uses, order := c.usesOf(section)
		for _, key := range order {
			weight := c.weightOf[key.weight]
			rows, area := 0, int64(0)
			for i, this := range uses[key] {
				rows = max(rows, this.rows.to)
				area += this.area()
				for _, other := range uses[key][:i] {
					if twice := this.common(other); !twice.empty() {
						c.fail(section.path(), "node %q uses rows %d:%d columns %d:%d of weight %q twice",
							key.node, twice.k.from, twice.k.to, twice.n.from, twice.n.to, key.weight)
					}
				}
			}
			if want := int64(weight.K) * int64(weight.N) * int64(rows); area != want {
				c.fail(section.path(), "node %q uses %d multiplications of weight %q [%d,%d] for %d rows, want %d",
					key.node, area, key.weight, weight.K, weight.N, rows, want)
			}
		}
	}
}

// usesOf lists the parts of packed weights that a section's steps use, by node and weight, in the order of first use.
func (c *checker) usesOf(section sectionAt) (uses map[nodeWeight][]use, order []nodeWeight) {
	uses = map[nodeWeight][]use{}
	tokens := section.program.Rows
	if c.selects(section) {
		tokens = 1 // all other rows are padding
	}
	for step := range section.steps() {
		graph := &c.graphOf[step.Run].Graph
		for i, ref := range step.W {
			spec := &graph.Weights[i]
			reader := slices.IndexFunc(graph.Nodes,
				func(node op.Node) bool { return slices.Contains(node.W, spec.Name) })
			if reader < 0 {
				continue
			}
			outliers := graph.Nodes[reader].Op.Kind == op.OutlierMatMul && graph.Nodes[reader].W[0] == spec.Name
			if spec.Layout == op.RowsLayout && !outliers {
				continue
			}
			pack := c.packs[ref.Pack]
			key := nodeWeight{step.nodeOf(graph, reader), pack.Weight, ref.Slot}
			if uses[key] == nil {
				order = append(order, key)
			}
			rows := span{step.R0, step.R0 + graph.Nodes[0].Op.M}
			if !step.Full { // padding rows are multiplied, too
				rows.to = min(rows.to, tokens)
			}
			uses[key] = append(uses[key], use{
				k: span{pack.K0, pack.K1}, n: span{pack.N0 + ref.C0, pack.N0 + ref.C1}, rows: rows,
			})
		}
	}
	return uses, order
}

// selects reports whether a section selects one row, so that its products compute that row alone.
func (c *checker) selects(section sectionAt) bool {
	for step := range section.steps() {
		for _, node := range c.graphOf[step.Run].Graph.Nodes {
			if node.Op.Kind == op.SelectRow {
				return true
			}
		}
	}
	return false
}

// schemes checks rule P013. Shares of one product in different schemes would make its accuracy depend on the column.
func (c *checker) schemes() {
	type node struct {
		program *PhaseProgram
		name    string
	}
	seen := map[node]op.Scheme{}
	for step := range c.plan.Program.steps() {
		graph := &c.graphOf[step.Run].Graph
		for i := range graph.Nodes {
			operator := &graph.Nodes[i].Op
			if !operator.HasScheme() {
				continue
			}
			key := node{step.program, step.nodeOf(graph, i)}
			if old, ok := seen[key]; ok && old != operator.Scheme {
				c.fail(step.path(""), "shares of %q use schemes %q and %q", key.name, old, operator.Scheme)
			}
			seen[key] = operator.Scheme
		}
	}
}
