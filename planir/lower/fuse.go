package lower

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

// rowOps work on rows alone: such neighbours are one step of a lane.
var rowOps = []op.Kind{op.Norm, op.LayerNorm, op.QuantRows, op.GLU, op.Activate, op.Gate, op.Softcap, op.Clip, op.Add, op.Combine}

// fuse joins neighbours that work on the same rows on one processor into one step with the nodes of all of
// them: one call instead of several, and a processor may take a row through all of them while it is in its
// cache. Only processors with dynamic rows do it: for others a graph is what their compiler was asked about.
// Tasks that follow each other in the list have nothing between them, whatever the lanes; so what waits for one
// of them waits for their step.
func fuse(tasks []*task, proc func(name string) *planir.Proc) (out []*task) {
	for _, t := range tasks {
		if n := len(out); n > 0 && out[n-1].proc == t.proc && proc(t.proc).DynamicRows {
			if joined := join(out[n-1], t); joined != nil {
				out[n-1] = joined
				continue
			}
		}
		out = append(out, t)
	}
	return out
}

// join is the step of a and then b, nil when they are not of a kind or see a buffer through different views.
func join(a, b *task) *task {
	if !rowwise(a) || !rowwise(b) || a.step.R0 != b.step.R0 || a.graph.Rows() != b.graph.Rows() {
		return nil
	}
	all := slices.Concat(a.reads, a.writes, b.reads, b.writes)
	for i, v := range all {
		for _, w := range all[:i] {
			if v != w && v.Overlaps(w) {
				return nil
			}
		}
	}
	j := &task{proc: a.proc, weights: slices.Concat(a.weights, b.weights)}
	j.step = planir.Step{Node: a.step.Node + nodeSeparator + b.step.Node, R0: a.step.R0, ExpectNS: a.step.ExpectNS + b.step.ExpectNS}
	from, rows, _ := strings.Cut(a.label, "@")
	to, _, _ := strings.Cut(b.label, "@")
	j.label = from + nodeSeparator + to + "@" + rows
	if len(j.weights) > 0 {
		j.step.W = make([]planir.WeightRef, len(j.weights))
	}
	g := &j.graph
	names := map[planir.View]string{}
	written := map[planir.View]bool{}
	for _, t := range []*task{a, b} {
		views := map[string]planir.View{}
		for i, v := range t.graph.Inputs {
			views[v.Name] = t.step.In[i]
		}
		for i, v := range t.graph.Outputs {
			views[v.Name] = t.step.Out[i]
		}
		declare := func(v op.Value) op.Value {
			view := views[v.Name]
			if names[view] == "" {
				names[view] = fmt.Sprintf("v%d", len(names))
			}
			v.Name = names[view]
			return v
		}
		for i, v := range t.graph.Inputs {
			v, view := declare(v), t.step.In[i]
			if !written[view] && !slices.Contains(j.step.In, view) {
				g.Inputs, j.step.In = append(g.Inputs, v), append(j.step.In, view)
			}
		}
		for i, v := range t.graph.Outputs {
			v, view := declare(v), t.step.Out[i]
			if !written[view] {
				g.Outputs, j.step.Out = append(g.Outputs, v), append(j.step.Out, view)
				written[view] = true
			}
		}
		weights := map[string]string{}
		for _, w := range t.graph.Weights {
			old := w.Name
			w.Name = fmt.Sprintf("w%d", len(g.Weights))
			weights[old] = w.Name
			g.Weights = append(g.Weights, w)
		}
		for _, n := range t.graph.Nodes {
			m := op.Node{Op: n.Op}
			for _, name := range n.In {
				m.In = append(m.In, names[views[name]])
			}
			for _, name := range n.W {
				m.W = append(m.W, weights[name])
			}
			for _, name := range n.Out {
				m.Out = append(m.Out, names[views[name]])
			}
			g.Nodes = append(g.Nodes, m)
		}
	}
	j.reads, j.writes = slices.Clone(j.step.In), slices.Clone(j.step.Out)
	return j
}

// rowwise reports whether a task is operators on rows, one for each of its names.
func rowwise(t *task) bool {
	return len(Nodes(&t.step)) == len(t.graph.Nodes) &&
		!slices.ContainsFunc(t.graph.Nodes, func(n op.Node) bool { return !slices.Contains(rowOps, n.Op.Kind) })
}

// nodeSeparator stands between the nodes of a step.
const nodeSeparator = "+"

// Nodes are the names of the nodes that a step executes, in order. The sum of partial products has the name of
// the product.
func Nodes(st *planir.Step) []string { return strings.Split(st.Node, nodeSeparator) }
