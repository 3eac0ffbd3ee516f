package lower

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

// task is a step in the making, with what it reads and writes, cache included.
type task struct {
	proc    string
	share   int         // of its node's decision
	step    planir.Step // without flags and weight references, which need all tasks
	graph   op.Graph
	label   string      // of the graph
	weights []packRange // in the order of step.W
	reads   []planir.View
	writes  []planir.View
}

// tasks cuts the nodes of a section into tasks and joins those that one step can execute.
func (b *builder) tasks(section *Section, rows int, outside map[string]bool) ([]*task, error) {
	var tasks []*task
	pipelines := map[*planir.HeadPipeline]*stages{}
	for i := range section.Nodes {
		node := &section.Nodes[i]
		decision := b.decision(node.Name, rows)
		if decision == nil {
			return nil, diag.New(diag.ClassIllegal, "lower plan: no decision for %q at %d rows",
				node.Name, rows).WithCode("P010")
		}
		if err := schemeFits(node, decision, rows); err != nil {
			return nil, err
		}

		pipeline, stage := PipelineOf(b.plan, node.Name, rows)
		if b.on != "" { // one processor executes all of it
			pipeline = nil
		}
		made, err := b.node(section, node, decision, pipeline)
		if err != nil {
			return nil, diag.New(diag.ClassIllegal, "lower plan: %s@%d: %w", node.Name, rows, err).
				WithCode("P010")
		}

		if pipeline != nil {
			if pipelines[pipeline] == nil {
				pipelines[pipeline] = newStages(pipeline)
			}
			pipelines[pipeline].addStage(stage, decision, made)
			if stage != op.SparseAttend { // the last one has all of them
				continue
			}
			if made, err = pipelines[pipeline].inPipelineOrder(); err != nil {
				return nil, err
			}
		}
		tasks = append(tasks, made...)
	}

	tasks = fuse(tasks, b.plan.Proc, outside)
	// Only now are graphs final, and can equal ones be found.
	for _, made := range tasks {
		made.step.Run = b.graph(made)
	}
	return tasks, nil
}

// schemeFits checks that a decision has the scheme of its operator. Expand has given the operator the decided scheme,
// unless it takes none or a fixed one.
func schemeFits(node *Node, decision *planir.Decision, rows int) error {
	operator := node.Op()
	switch {
	case decision.Scheme == operator.Scheme:
		return nil
	case !operator.HasScheme():
		return diag.New(diag.ClassIllegal, "lower plan: %s@%d: scheme %q, and %q takes none",
			node.Name, rows, decision.Scheme, operator.Kind).WithCode("P010")
	}
	return diag.New(diag.ClassIllegal,
		"lower plan: %s@%d: scheme %q, want %q: its result selects experts, and is computed in float32",
		node.Name, rows, decision.Scheme, operator.Scheme).WithCode("P010")
}

// node makes the tasks of one node, which may be a stage of a pipeline of heads.
func (b *builder) node(section *Section, node *Node, decision *planir.Decision,
	pipeline *planir.HeadPipeline) ([]*task, error) {
	for _, name := range slices.Concat(node.In, node.Out) {
		b.buffer(name, section.Values[name])
	}
	pieces, err := Cut(section, node, decision, b.plan.Proc)
	if err != nil {
		return nil, err
	}
	if err := b.moveToChunk(section, node, pieces); err != nil {
		return nil, err
	}

	var tasks []*task
	for i := range pieces {
		if pipeline != nil {
			densityOf(pipeline, &pieces[i])
		}
		task, err := b.task(section, node, decision, &pieces[i])
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, task)
	}
	return tasks, nil
}

// densityOf gives a stage of a pipeline of heads the densities of its own heads.
func densityOf(pipeline *planir.HeadPipeline, piece *Piece) {
	own := &piece.Ops[len(piece.Ops)-1]
	switch {
	case own.Kind == op.SparseAttend && piece.Share < len(pipeline.Densities):
		own.Density = pipeline.Densities[piece.Share]
	case own.Kind == op.Estimate && piece.Share < len(pipeline.Estimated):
		own.Density = op.HeadShare(pipeline.Estimated[piece.Share])
	}
}

// task makes the step of one piece, with its graph and packed weights.
func (b *builder) task(section *Section, node *Node, decision *planir.Decision, piece *Piece) (*task, error) {
	for _, view := range slices.Concat(piece.In, piece.Out) {
		if _, known := b.buffers[view.Buffer]; !known { // a partial sum or a share's own output
			b.buffer(view.Buffer, Value{Type: section.Values[node.Out[0]].Type, Rows: view.R1, Cols: view.C1})
		}
		b.buffers[view.Buffer].Rows = max(b.buffers[view.Buffer].Rows, view.R1)
	}

	made := &task{proc: piece.Proc, share: piece.Share, reads: slices.Clone(piece.In), writes: slices.Clone(piece.Out)}
	made.step = planir.Step{Node: node.Name, R0: piece.R0, In: piece.In, Out: piece.Out, Heads: piece.Heads,
		Full: node.Slots != nil}
	if piece.Heads != nil { // ordered like any other buffer: by the heads that are read or written
		cache := planir.View{Buffer: "\x00cache", R1: 1, C0: piece.Heads[0], C1: piece.Heads[1]}
		made.reads = append(made.reads, cache)
		made.writes = append(made.writes, cache)
	}
	operator := piece.Op()

	// Copies and sums of shares are operators of their own; they read no weights and have no layout.
	if piece.Role != Compute {
		mark := map[role]string{Gather: "<", Sum: "+"}[piece.Role]
		made.graph = op.Single(operator, "")
		made.label = fmt.Sprintf("%s%s%d@%d", node.Name, mark, piece.Share, operator.M)
		return made, nil
	}
	made.step.ExpectNS = decision.Shares[piece.Share].PredictNS
	if err := b.refuseFolded(node, operator); err != nil {
		return nil, err
	}

	proc := b.plan.Proc(piece.Proc)
	layout := ""
	if operator.Scheme != "" {
		layout = proc.Layouts[operator.Scheme.Weight()]
		if layout == "" {
			return nil, fmt.Errorf("%q has no layout for weights %q", piece.Proc, operator.Scheme.Weight())
		}
	}
	for _, used := range rangesRead(node, piece, proc, layout) {
		b.usePack(used)
		made.weights = append(made.weights, used)
		made.step.W = append(made.step.W, planir.WeightRef{})
	}

	// The label names the graph: the node, its share if there are several, and the rows.
	suffix := ""
	if len(decision.Shares) > 1 {
		share := decision.Shares[piece.Share]
		suffix = fmt.Sprintf("[%d:%d]", share.From, share.To)
	}
	made.graph, made.label = chain(piece.Ops, layout), fmt.Sprintf("%s%s@%d", node.Name, suffix, operator.M)
	return made, nil
}

// refuseFolded refuses to look rows up in the packed weight of a product if a fold multiplies that weight's rows,
// because the fold would change the embedding.
func (b *builder) refuseFolded(node *Node, operator op.Op) error {
	if operator.Kind != op.Embed || operator.Scheme == "" {
		return nil
	}
	for _, group := range b.model.Folds() {
		if slices.Contains(b.plan.Folds, group.Name) && slices.Contains(group.Multiply, node.W[0]) {
			return fmt.Errorf("scheme %q, and the rows of %q are changed by the fold %q", operator.Scheme,
				node.W[0], group.Name)
		}
	}
	return nil
}

// chain builds the graph of a node: every operator reads the node's inputs; one whose output has the
// name of its input works in place; the last one writes the outputs.
func chain(ops []op.Op, layout string) (graph op.Graph) {
	if len(ops) == 1 {
		return op.Single(ops[0], layout)
	}
	last := len(ops) - 1
	graph.Inputs = ops[0].Sig().In
	for i, operator := range ops {
		sig := operator.Sig()
		node := op.Node{Op: operator}
		for _, value := range sig.In {
			node.In = append(node.In, value.Name)
		}
		for _, role := range sig.W {
			graph.Weights = append(graph.Weights, operator.WeightSpec(role, layout))
			node.W = append(node.W, role)
		}
		for _, value := range sig.Out {
			node.Out = append(node.Out, value.Name)
			if i < last && !slices.Contains(graph.Outputs, value) { // several change it in place
				graph.Outputs = append(graph.Outputs, value)
			}
		}
		graph.Nodes = append(graph.Nodes, node)
	}
	graph.Outputs = append(graph.Outputs, ops[last].Sig().Out...)
	return graph
}

// graph registers the graph of a task and returns its name; equal graphs of a processor share one, where it embeds
// weights those that read the same ones.
func (b *builder) graph(t *task) string {
	proc := b.plan.Proc(t.proc)
	key, weights := graphKey(t.proc, t.graph), ""
	if proc.WeightsInArtifacts {
		weights = t.proc + weightsKey(t.weights)
		key += weights
	}
	if name, ok := b.graphs[key]; ok {
		return name
	}

	// Labels may coincide where graphs differ; a number then makes the name unique.
	name := t.proc + "/" + t.label
	for i := 2; b.hasGraph(name); i++ {
		name = fmt.Sprintf("%s/%s#%d", t.proc, t.label, i)
	}
	b.graphs[key] = name
	graph := planir.Graph{Name: name, Proc: t.proc, Graph: t.graph,
		Artifact: fmt.Sprintf("graph/%04d", len(b.out.Graphs))}

	if proc.WeightsInArtifacts && proc.Shares {
		if len(t.weights) == 0 {
			weights += "\x00" + name // nothing to share
		}
		if b.contexts[weights] == "" {
			b.contexts[weights] = fmt.Sprintf("context/%04d", len(b.contexts))
		}
		graph.Context = b.contexts[weights]
	}
	b.out.Graphs = append(b.out.Graphs, graph)
	return name
}

// graphKey is equal for equal graphs of a processor.
func graphKey(proc string, graph op.Graph) string {
	code, err := json.Marshal(graph)
	if err != nil {
		panic("BUG: graph does not encode: " + err.Error())
	}
	return proc + "\x00" + string(code)
}

// hasGraph reports whether a graph has that name. Labels of long chains leave nodes out, so that two may be equal.
func (b *builder) hasGraph(name string) bool {
	for i := range b.out.Graphs {
		if b.out.Graphs[i].Name == name {
			return true
		}
	}
	return false
}
