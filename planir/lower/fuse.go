package lower

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

// fuse joins neighbours that work on the same rows on one processor into one step with the nodes of all of
// them: one call instead of several.
//
// A processor with dynamic rows may take a row through all of them while it is in its cache: operators on rows are joined.
// Tasks that follow each other in the list have nothing between them, whatever the lanes; so what waits for one
// of them waits for their step.
//
// For a processor that fuses, products are joined too, and what nobody else reads stays inside the graph; see waits for
// what is not joined. For others a graph is what their compiler was asked about. outside are the buffers that other
// sections read.
func fuse(tasks []*task, proc func(name string) *planir.Proc, outside map[string]bool) (out []*task) {
	for i, t := range tasks {
		if n := len(out); n > 0 && out[n-1].proc == t.proc {
			p, last := proc(t.proc), out[n-1]
			var joined *task
			switch {
			case p.Fuses && fusible(last) && fusible(t) && !waits(tasks, i, last) && fits(p, last, t):
				if joined = join(last, t); joined != nil && overwrites(&joined.graph) != "" {
					joined = nil
				}
			case p.DynamicRows && rowwise(last) && rowwise(t):
				joined = join(last, t)
			}
			if joined != nil {
				out[n-1] = joined
				continue
			}
		}
		out = append(out, t)
	}
	inside := make([][]planir.View, len(out))
	for i, t := range out {
		if proc(t.proc).Fuses && len(t.graph.Nodes) > 1 && t.step.Heads == nil {
			for _, v := range t.writes {
				if v.Buffer != planir.Logits && !outside[v.Buffer] && !overlapsAny(v, t.reads) && len(readers(out, i, v)) == 0 {
					inside[i] = append(inside[i], v)
				}
			}
		}
	}
	for i, t := range out {
		localise(t, inside[i])
	}
	return out
}

// Joins reports whether the step of a piece with these operators may be joined to its neighbours on a processor, and whether what
// they pass to each other may then stay inside their graph, without a buffer.
func Joins(ops []op.Op, p *planir.Proc) (joins, inside bool) {
	if len(ops) != 1 {
		return false, false
	}
	joins = p.DynamicRows && ops[0].Kind.Rowwise() || p.Fuses && fusibleKind(ops[0].Kind)
	return joins, joins && p.Fuses
}

func fusibleKind(k op.Kind) bool { return k == op.MatMul || k.Rowwise() }

// readers are the tasks that read what is written to v by task i, or one before it. They are looked for in the order of
// the list, which starts again with the next layer, up to where all of v is written anew.
func readers(tasks []*task, i int, v planir.View) (out []*task) {
	for k := 1; k < len(tasks); k++ {
		t := tasks[(i+k)%len(tasks)]
		if overlapsAny(v, t.reads) {
			out = append(out, t)
		}
		if slices.ContainsFunc(t.writes, func(w planir.View) bool { return contains(w, v) }) {
			break
		}
	}
	return out
}

func contains(w, v planir.View) bool {
	return w.Buffer == v.Buffer && w.R0 <= v.R0 && w.R1 >= v.R1 && w.C0 <= v.C0 && w.C1 >= v.C1
}

// fusible reports whether a task is operators on rows and products, one for each of its names.
func fusible(t *task) bool {
	return len(t.step.Nodes()) == len(t.graph.Nodes) &&
		!slices.ContainsFunc(t.graph.Nodes, func(n op.Node) bool { return !fusibleKind(n.Op.Kind) })
}

// waits reports whether another processor would wait longer if task i were joined to a, the tasks before it, or a for
// another processor: what a writes is read elsewhere, or what only the task reads is written elsewhere.
func waits(tasks []*task, i int, a *task) bool {
	var fresh []planir.View
	for _, v := range tasks[i].reads {
		if !overlapsAny(v, a.reads) && !overlapsAny(v, a.writes) {
			fresh = append(fresh, v)
		}
	}
	elsewhere := func(o *task) bool { return o.proc != a.proc }
	return slices.ContainsFunc(a.writes, func(v planir.View) bool { return slices.ContainsFunc(readers(tasks, i-1, v), elsewhere) }) ||
		slices.ContainsFunc(tasks, func(o *task) bool {
			return elsewhere(o) && slices.ContainsFunc(o.writes, func(v planir.View) bool { return overlapsAny(v, fresh) })
		})
}

func overlapsAny(v planir.View, list []planir.View) bool {
	return slices.ContainsFunc(list, func(w planir.View) bool { return v.Overlaps(w) })
}

// fits reports whether the weights of both are no more than one graph holds.
func fits(p *planir.Proc, a, b *task) bool {
	var bytes int64
	for _, w := range slices.Concat(a.graph.Weights, b.graph.Weights) {
		if w.Layout != op.RowsLayout {
			bytes += op.WeightBytes(w.Scheme, w.K, w.N)
		}
	}
	return p.GraphBytes == 0 || bytes <= p.GraphBytes
}

// overwrites names a value that is input and output where a node that reads the input is not needed for what is
// written last: such nodes may be executed in another order by who looks at results alone. "" if there is none.
func overwrites(g *op.Graph) string {
	for _, v := range g.Inputs {
		last := -1
		for i, n := range g.Nodes {
			if slices.Contains(n.Out, v.Name) {
				last = i
			}
		}
		if last < 0 {
			continue
		}
		// Backwards from the last writer: what it needs, by the values as they are at each node.
		needed := make([]bool, len(g.Nodes))
		needed[last] = true
		for i := last; i >= 0; i-- {
			if !needed[i] {
				continue
			}
			for _, in := range g.Nodes[i].In {
				for j := i - 1; j >= 0; j-- {
					if slices.Contains(g.Nodes[j].Out, in) {
						needed[j] = true
						break
					}
				}
			}
		}
		for i, n := range g.Nodes {
			if slices.Contains(n.In, v.Name) && !needed[i] && i < last {
				return v.Name
			}
			if slices.Contains(n.Out, v.Name) {
				break // from here on it is another value
			}
		}
	}
	return ""
}

// localise keeps inside the graph what its step writes to views that nobody reads.
func localise(t *task, inside []planir.View) {
	if len(inside) == 0 {
		return
	}
	g := &t.graph
	var outputs []op.Value
	var views []planir.View
	for i, v := range t.step.Out {
		if slices.Contains(inside, v) {
			g.Temps = append(g.Temps, g.Outputs[i])
		} else {
			outputs, views = append(outputs, g.Outputs[i]), append(views, v)
		}
	}
	g.Outputs, t.step.Out = outputs, views
	t.writes = slices.Clone(views)
}

// maxLabel is the length from which on the label of a graph names the first and the last node alone.
const maxLabel = 120

// join is the step of a and then b, nil when they are not of the same rows or see a buffer through different views.
func join(a, b *task) *task {
	if a.step.R0 != b.step.R0 || a.graph.Rows() != b.graph.Rows() {
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
	j.step = planir.Step{Node: a.step.Node + planir.NodeSeparator + b.step.Node, R0: a.step.R0, ExpectNS: a.step.ExpectNS + b.step.ExpectNS}
	from, rows, _ := strings.Cut(a.label, "@")
	to, _, _ := strings.Cut(b.label, "@")
	if len(from)+len(to) > maxLabel {
		from, _, _ = strings.Cut(from, planir.NodeSeparator)
		from += planir.NodeSeparator + ".."
	}
	j.label = from + planir.NodeSeparator + to + "@" + rows
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
	return len(t.step.Nodes()) == len(t.graph.Nodes) &&
		!slices.ContainsFunc(t.graph.Nodes, func(n op.Node) bool { return !n.Op.Kind.Rowwise() })
}
