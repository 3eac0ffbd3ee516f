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
// A processor with dynamic rows may take a row through several operators while it is in its cache: its operators on
// rows are joined. Only tasks that follow each other in the list are, so nothing comes between them on any lane, and a
// task that waited for one of them waits for their step.
//
// For a processor that fuses, products are joined too, and what no other step reads stays inside the graph.
// delaysOthers says what is not joined. A processor that fuses a GLU takes it together with the product that feeds it
// alone. For other processors a graph is what their compiler was asked about. outside are the buffers that other
// sections read.
func fuse(tasks []*task, proc func(name string) *planir.Proc, outside map[string]bool) (out []*task) {
	for i, next := range tasks {
		last := len(out) - 1
		if last < 0 || out[last].proc != next.proc {
			out = append(out, next)
			continue
		}
		if joined := tryJoin(tasks, i, out[last], proc(next.proc)); joined != nil {
			out[last] = joined
		} else {
			out = append(out, next)
		}
	}

	inside := make([][]planir.View, len(out))
	for i, task := range out {
		fuses := proc(task.proc).Fuses || proc(task.proc).FusesGLU && task.endsWithGLU()
		if !fuses || len(task.graph.Nodes) < 2 || task.step.Heads != nil {
			continue
		}
		for _, view := range task.writes {
			elsewhere := outside[view.Buffer] || overlapsAny(view, task.reads)
			if !elsewhere && len(readers(out, i, view)) == 0 {
				inside[i] = append(inside[i], view)
			}
		}
	}

	for i, task := range out {
		keepInside(task, inside[i])
	}
	return out
}

// tryJoin joins the task at index to the step of the tasks before it, whose last step is before. It returns nil if
// their processor does not take them together.
func tryJoin(tasks []*task, index int, before *task, proc *planir.Proc) *task {
	next := tasks[index]
	if proc.FusesGLU && before == tasks[index-1] && feedsGLU(tasks, index) {
		return join(before, next)
	}
	fuses := proc.Fuses && before.consistsOf(fusibleKind) && next.consistsOf(fusibleKind)
	if !fuses || delaysOthers(tasks, index, before) || !weightsFit(proc, before, next) {
		return joinRows(before, next, proc)
	}
	if joined := join(before, next); joined != nil && overwrites(&joined.graph) == "" {
		return joined
	}
	return nil
}

// feedsGLU reports whether the task at index is a gated linear unit, and the one before it the product whose results it
// takes, which no other task reads.
func feedsGLU(tasks []*task, index int) bool {
	product, unit := tasks[index-1], tasks[index]
	if product.proc != unit.proc || len(product.graph.Nodes) != 1 || len(unit.graph.Nodes) != 1 {
		return false
	}
	if !product.graph.Nodes[0].Op.GatedBy(&unit.graph.Nodes[0].Op) {
		return false
	}
	result := product.writes[0]
	return slices.Contains(unit.reads, result) && len(readers(tasks, index-1, result)) == 1
}

// endsWithGLU reports whether a task is a product joined to its gated linear unit.
func (t *task) endsWithGLU() bool {
	nodes := t.graph.Nodes
	return len(nodes) == 2 && nodes[0].Op.GatedBy(&nodes[1].Op)
}

// joinRows joins tasks of operators on rows for a processor of dynamic rows, nil for others.
func joinRows(before, next *task, proc *planir.Proc) *task {
	if proc.DynamicRows && before.consistsOf(op.Kind.Rowwise) && next.consistsOf(op.Kind.Rowwise) {
		return join(before, next)
	}
	return nil
}

// consistsOf reports whether a task has one operator for each of its names, and all of them are of kinds that fit.
func (t *task) consistsOf(fits func(op.Kind) bool) bool {
	return len(t.step.Nodes()) == len(t.graph.Nodes) &&
		!slices.ContainsFunc(t.graph.Nodes, func(node op.Node) bool { return !fits(node.Op.Kind) })
}

// Joins reports whether the step of a piece of a node, with these operators, may be joined to its neighbours on a
// processor, and whether the values between them may then stay inside their graph, without a buffer.
func Joins(node *Node, ops []op.Op, proc *planir.Proc) (joins, inside bool) {
	if len(ops) != 1 {
		return false, false
	}
	kind := ops[0].Kind
	if proc.Fuses && fusibleKind(kind) || proc.FusesGLU && node.Gated {
		return true, true
	}
	return proc.DynamicRows && kind.Rowwise(), false
}

// fusibleKind reports whether a processor that fuses takes the operator together with others.
func fusibleKind(kind op.Kind) bool {
	return kind == op.MatMul || kind == op.GroupMatMul || kind.Rowwise()
}

// readers returns the tasks that read what task i, or one before it, writes to a view. They are looked for in the order
// of the list, which starts again with the next layer, up to where all of the view is written anew.
func readers(tasks []*task, i int, view planir.View) (out []*task) {
	rewrites := func(written planir.View) bool { return covers(written, view) }
	for distance := 1; distance < len(tasks); distance++ {
		task := tasks[(i+distance)%len(tasks)]
		if overlapsAny(view, task.reads) {
			out = append(out, task)
		}
		if slices.ContainsFunc(task.writes, rewrites) {
			break
		}
	}
	return out
}

// covers reports whether one view contains another one.
func covers(whole, part planir.View) bool {
	return whole.Buffer == part.Buffer && whole.R0 <= part.R0 && whole.R1 >= part.R1 &&
		whole.C0 <= part.C0 && whole.C1 >= part.C1
}

// delaysOthers reports whether another processor would wait longer if a task were joined to those before it, or they
// for another processor: what those write is read elsewhere, or what only the task reads is written elsewhere.
func delaysOthers(tasks []*task, index int, before *task) bool {
	// Another processor would wait for the whole step instead of for what comes before.
	for _, view := range before.writes {
		for _, reader := range readers(tasks, index-1, view) {
			if reader.proc != before.proc {
				return true
			}
		}
	}

	// The whole step would wait for another processor, where only its last part needs to.
	for _, view := range tasks[index].reads {
		if overlapsAny(view, before.reads) || overlapsAny(view, before.writes) {
			continue
		}
		for _, writer := range tasks {
			if writer.proc != before.proc && overlapsAny(view, writer.writes) {
				return true
			}
		}
	}
	return false
}

// overlapsAny reports whether a view shares an element with one of a list.
func overlapsAny(view planir.View, list []planir.View) bool {
	return slices.ContainsFunc(list, view.Overlaps)
}

// weightsFit reports whether the weights of both tasks fit into one graph.
func weightsFit(proc *planir.Proc, before, next *task) bool {
	var bytes int64
	for _, weight := range slices.Concat(before.graph.Weights, next.graph.Weights) {
		if weight.Layout != op.RowsLayout {
			bytes += op.WeightBytes(weight.Scheme, weight.K, weight.N)
		}
	}
	return proc.GraphBytes == 0 || bytes <= proc.GraphBytes
}

// overwrites returns a value that is both input and output, if the last result does not depend on some node that reads
// it as input; "" if there is none. Such nodes may be executed in another order without a change of results.
func overwrites(graph *op.Graph) string {
	for _, value := range graph.Inputs {
		last := -1
		for i, node := range graph.Nodes {
			if slices.Contains(node.Out, value.Name) {
				last = i
			}
		}
		if last >= 0 && readsUnordered(graph, value.Name, last) {
			return value.Name
		}
	}
	return ""
}

// readsUnordered reports whether some node reads the old value, and nothing orders it before the last node that writes
// the value anew.
func readsUnordered(graph *op.Graph, value string, last int) bool {
	needed := neededBy(graph, last)
	for i, node := range graph.Nodes {
		if slices.Contains(node.In, value) && !needed[i] && i < last {
			return true
		}
		if slices.Contains(node.Out, value) {
			return false // from here on it is another value
		}
	}
	return false
}

// neededBy reports of each node whether a node needs its results, by the values as they are at each node.
func neededBy(graph *op.Graph, last int) []bool {
	needed := make([]bool, len(graph.Nodes))
	needed[last] = true
	for i := last; i >= 0; i-- {
		if !needed[i] {
			continue
		}
		for _, in := range graph.Nodes[i].In {
			for j := i - 1; j >= 0; j-- {
				if slices.Contains(graph.Nodes[j].Out, in) {
					needed[j] = true
					break
				}
			}
		}
	}
	return needed
}

// keepInside keeps inside the graph the results that no other step reads.
func keepInside(shrunk *task, inside []planir.View) {
	if len(inside) == 0 {
		return
	}
	graph := &shrunk.graph
	var outputs []op.Value
	var views []planir.View
	for i, view := range shrunk.step.Out {
		if slices.Contains(inside, view) {
			graph.Temps = append(graph.Temps, graph.Outputs[i])
		} else {
			outputs, views = append(outputs, graph.Outputs[i]), append(views, view)
		}
	}
	graph.Outputs, shrunk.step.Out = outputs, views
	shrunk.writes = slices.Clone(views)
}

// maxLabel is the length from which on the label of a graph names the first and the last node alone.
const maxLabel = 120

// join returns the step of two tasks, one after the other; nil when they are not of the same rows or see a buffer
// through different views.
func join(before, after *task) *task {
	sameRows := before.step.R0 == after.step.R0 && before.graph.Rows() == after.graph.Rows()
	if !sameRows || before.step.Full != after.step.Full {
		return nil
	}
	all := slices.Concat(before.reads, before.writes, after.reads, after.writes)
	for i, view := range all {
		for _, other := range all[:i] {
			if view != other && view.Overlaps(other) {
				return nil
			}
		}
	}

	joining := joiner{names: map[planir.View]string{}, written: map[planir.View]bool{}}
	joined := &joining.task
	joined.proc, joined.weights = before.proc, slices.Concat(before.weights, after.weights)
	joined.step = planir.Step{
		Node: before.step.Node + planir.NodeSeparator + after.step.Node, R0: before.step.R0, Full: before.step.Full,
		ExpectNS: before.step.ExpectNS + after.step.ExpectNS,
	}

	from, rows, _ := strings.Cut(before.label, "@")
	to, _, _ := strings.Cut(after.label, "@")
	if len(from)+len(to) > maxLabel {
		from, _, _ = strings.Cut(from, planir.NodeSeparator)
		from += planir.NodeSeparator + ".."
	}
	joined.label = from + planir.NodeSeparator + to + "@" + rows

	if len(joined.weights) > 0 {
		joined.step.W = make([]planir.WeightRef, len(joined.weights))
	}
	joining.add(before)
	joining.add(after)
	joined.reads, joined.writes = slices.Clone(joined.step.In), slices.Clone(joined.step.Out)
	return joined
}

// joiner is a task in the making, whose graph names a value after the view that holds it.
type joiner struct {
	task
	names   map[planir.View]string
	written map[planir.View]bool // by the tasks added so far
}

// add appends a task's graph and views. What an earlier one wrote is no input.
func (j *joiner) add(part *task) {
	views := map[string]planir.View{} // of a value that is changed in place, the one that holds the result
	for i, input := range part.graph.Inputs {
		views[input.Name] = part.step.In[i]
	}
	for i, output := range part.graph.Outputs {
		views[output.Name] = part.step.Out[i]
	}

	local := map[string]string{} // values of the part by their name in the joined graph
	declare := func(value op.Value) op.Value {
		view := views[value.Name]
		if j.names[view] == "" {
			j.names[view] = fmt.Sprintf("v%d", len(j.names))
		}
		local[value.Name] = j.names[view]
		value.Name = j.names[view]
		return value
	}

	for i, input := range part.graph.Inputs {
		declared, view := declare(input), part.step.In[i]
		// What both parts read is an input once.
		if !j.written[view] && !slices.Contains(j.step.In, view) {
			j.graph.Inputs, j.step.In = append(j.graph.Inputs, declared), append(j.step.In, view)
		}
	}

	for i, output := range part.graph.Outputs {
		declared, view := declare(output), part.step.Out[i]
		if !j.written[view] {
			j.graph.Outputs, j.step.Out = append(j.graph.Outputs, declared), append(j.step.Out, view)
			j.written[view] = true
		}
	}

	weights := map[string]string{}
	for _, weight := range part.graph.Weights {
		// Weights are not shared by the parts, whose own names may be equal: number them through.
		name := fmt.Sprintf("w%d", len(j.graph.Weights))
		weights[weight.Name] = name
		weight.Name = name
		j.graph.Weights = append(j.graph.Weights, weight)
	}

	renamed := func(names []string, to map[string]string) (out []string) {
		for _, name := range names {
			out = append(out, to[name])
		}
		return out
	}
	for _, node := range part.graph.Nodes {
		j.graph.Nodes = append(j.graph.Nodes, op.Node{
			Op: node.Op, In: renamed(node.In, local), W: renamed(node.W, weights), Out: renamed(node.Out, local),
		})
	}
}
