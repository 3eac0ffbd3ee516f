package lower

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
)

// Lower computes plan.Program from the plan's decisions, folds, processors, cache type and context, for the graph of
// the model. The result depends on nothing else, so that a plan's program can be recomputed to check it.
//
// Each program is lowered section by section: nodes are expanded, cut into tasks, joined, ordered by flags and dealt
// out to lanes. What all programs share (buffers, cache, weights, packs, decider) is added at the end, by finish.
func Lower(plan *planir.Plan, graph *models.Graph) error {
	build := newBuilder(plan, graph)
	rows, err := build.rowCounts()
	if err != nil {
		return err
	}
	for _, count := range rows {
		program, err := build.program(count, "")
		if err != nil {
			return err
		}
		build.out.Programs = append(build.out.Programs, program)
	}
	if plan.Beside != nil {
		if err := build.beside(rows); err != nil {
			return err
		}
	}
	if plan.InFlight != nil {
		program, err := build.inFlight()
		if err != nil {
			return err
		}
		build.out.InFlight = append(build.out.InFlight, program)
	}
	if err := build.finish(rows); err != nil {
		return err
	}
	plan.Program = build.out
	return nil
}

// rowCounts are the numbers of rows that there is a program for, ascending: those that layers are decided for. A node
// of the head has one row in every bucket, so that its decisions make no program.
func (b *builder) rowCounts() (rows []int, err error) {
	decided := map[int]bool{}
	for _, decision := range b.plan.Decisions {
		decided[decision.Rows] = true
	}
	for count := range decided {
		if b.plan.Decodes(count) || b.decidesLayers(count) {
			rows = append(rows, count)
		}
	}
	slices.Sort(rows)
	if len(rows) == 0 || rows[0] != 1 {
		return nil, diag.New(diag.ClassIllegal, "lower plan: no decisions for one row, so nothing could decode").
			WithCode("P010")
	}
	return rows, nil
}

// beside lowers the programs of one processor: prompts on one of two processors, decoding on the other.
func (b *builder) beside(rows []int) error {
	pair := b.plan.Beside
	if b.plan.Proc(pair.Prefill) == nil || b.plan.Proc(pair.Decode) == nil {
		return diag.New(diag.ClassIllegal,
			"lower plan: processors %q and %q work side by side, and are not the plan's",
			pair.Prefill, pair.Decode).WithCode("P017")
	}
	for _, count := range rows {
		on := pair.Prefill
		if b.plan.Decodes(count) {
			on = pair.Decode
		}
		program, err := b.program(count, on)
		if err != nil {
			return err
		}
		b.out.Beside = append(b.out.Beside, program)
	}
	return nil
}

// newBuilder is a builder that has lowered nothing.
func newBuilder(plan *planir.Plan, graph *models.Graph) *builder {
	return &builder{plan: plan, model: graph, buffers: map[string]*planir.Buffer{}, graphs: map[string]string{},
		contexts: map[string]string{}, packs: map[packKey]*packUse{}}
}

// program lowers the program of count rows: with on "" that of the plan's decisions, else the one that processor on
// executes by itself.
func (b *builder) program(count int, on string) (ph planir.PhaseProgram, err error) {
	plan := b.plan
	ph = planir.PhaseProgram{Name: ProgramName(count, plan.Decodes(count)), Phase: "prefill", Rows: count, On: on}
	if on != "" {
		ph.Name += "/" + on
	}
	of := GraphOf(plan, b.model, count)
	if plan.Decodes(count) {
		ph.Phase = "decode"
	}
	sections, err := b.expand(of, count, count, b.tiers(count, on))
	if err != nil {
		return ph, diag.New(diag.ClassIllegal, "lower plan: rows %d: %w", count, err)
	}
	if b.on = on; on != "" {
		own(sections, &ph)
	}
	for i := range sections {
		outside := readOutside(sections, i)
		outside[ph.Own(planir.Logits)] = true // by the caller
		section, err := b.section(&sections[i], count, outside)
		if err != nil {
			return ph, err
		}
		ph.Sections = append(ph.Sections, section)
	}
	return ph, nil
}

// tiers are the capacity tiers of the program of so many rows. A processor that executes it alone takes all experts
// dynamically.
func (b *builder) tiers(rows int, on string) *planir.ExpertTiers {
	if on != "" {
		return nil
	}
	return b.plan.TiersOf(rows)
}

// expand is the model's graph at a number of rows, with the schemes that are decided for another one (decided).
func (b *builder) expand(of *models.Graph, rows, decided int, tiers *planir.ExpertTiers) ([]Section, error) {
	sections, err := Expand(of, rows, b.plan.MaxContext, b.plan.KV, func(node string) op.Scheme {
		if decision := b.decision(node, decided); decision != nil {
			return decision.Scheme
		}
		return op.A32W32 // tasks reports the missing decision
	}, tiers, b.plan.Channels)
	if err != nil {
		return nil, err
	}
	return prune(sections, b.plan), nil
}

// own gives the values of a program's sections the names of its own buffers.
func own(sections []Section, ph *planir.PhaseProgram) {
	for i := range sections {
		section := &sections[i]
		values := make(map[string]Value, len(section.Values))
		for name, value := range section.Values {
			values[ph.Own(name)] = value
		}
		section.Values = values
		for j := range section.Nodes {
			for _, names := range []*[]string{&section.Nodes[j].In, &section.Nodes[j].Out} {
				*names = slices.Clone(*names)
				for k, name := range *names {
					(*names)[k] = ph.Own(name)
				}
			}
		}
	}
}

// GraphOf is the graph of a plan's program of that many rows: of rows of a sequence each, or with sparse attention,
// where the plan says so.
func GraphOf(plan *planir.Plan, graph *models.Graph, rows int) *models.Graph {
	of := *graph
	switch {
	case rows > 1 && plan.Decodes(rows):
		of = graph.Batch()
	case plan.Sparse(rows):
		of = graph.Sparse(plan.Attention.Sparsity(rows))
	}
	return &of
}

// ProgramName is the name of the program of that many rows: "decode", "decode@4", "prefill@256".
func ProgramName(rows int, decodes bool) string {
	switch {
	case rows == 1:
		return "decode"
	case decodes:
		return fmt.Sprintf("decode@%d", rows)
	}
	return fmt.Sprintf("prefill@%d", rows)
}

// decidesLayers reports whether a bucket of that many rows has decisions for a repeated section.
func (b *builder) decidesLayers(rows int) bool {
	for _, section := range b.model.Sections {
		// The first node is one that dense and sparse attention have in common.
		if section.Layers > 0 && len(section.Nodes) > 0 &&
			b.plan.DecisionFor(section.Name+"."+section.Nodes[0].Name, rows) != nil {
			return true
		}
	}
	return false
}

// packKey tells packs apart: what region of a weight, in which format, and for whom.
type packKey struct {
	weight, scheme, layout, owner string // owner "": shared by every processor that reads tile ranges
	slotted                       bool   // an owner's pack of the experts that have a slot
	k0, k1, n0, n1                int    // n0, n1 are 0 while shared: the union of uses is taken
}

// packUse is the range of columns that all uses of a pack cover, and its name once that is known.
type packUse struct {
	lo, hi int
	name   string
}

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

// packRange is a column range of a weight, to become a WeightRef once every pack's range is known.
type packRange struct {
	key    packKey
	n0, n1 int
	tiers  int // of a slot: see planir.WeightRef
	slot   int
}

// builder is the state of lowering one plan.
type builder struct {
	plan  *planir.Plan
	model *models.Graph
	out   planir.Program

	buffers map[string]*planir.Buffer // by name, as wide and long as any program needs
	order   []string                  // buffers in order of first use
	graphs  map[string]string         // names by graphKey, so that equal graphs are one
	// contexts are the binaries that graphs with the same weights in their artifacts refer to, by these.
	contexts map[string]string
	packs    map[packKey]*packUse
	fixups   []fixup // in all steps made so far
	on       string  // processor that executes the program alone; "": its decisions name the processors
	// The tasks being made are of one of several chunks, which begins at row from.
	flight bool
	from   int
}

// fixup is a weight reference to be completed once every pack is named.
type fixup struct {
	from packRange
	ref  *planir.WeightRef
}

// decision finds the decision for a node. In a program of one processor, that processor executes the node, in the
// scheme of the decision.
func (b *builder) decision(node string, rows int) *planir.Decision {
	decision := b.decided(node, rows)
	if b.on == "" || decision == nil {
		return decision
	}
	return &planir.Decision{Node: decision.Node, Rows: decision.Rows, Strategy: planir.Single, Scheme: decision.Scheme,
		Shares: []planir.Share{{Proc: b.on}}}
}

// decided finds the decision for a node; a node of the head has one row in every bucket.
func (b *builder) decided(node string, rows int) *planir.Decision {
	if decision := b.plan.DecisionFor(node, rows); decision != nil {
		return decision
	}
	for _, section := range b.model.Sections {
		if headOnly(&section) {
			for _, candidate := range section.Nodes {
				full := section.Name + "." + candidate.Name
				if _, added := Added(full, candidate.Ops[len(candidate.Ops)-1].Kind)[node]; added || node == full {
					return b.plan.DecisionFor(node, 1)
				}
			}
		}
	}
	return nil
}

// headOnly reports whether a section has values of one row whatever the bucket is.
func headOnly(section *models.Section) bool {
	for _, value := range section.Values {
		if value.Rows1 {
			return true
		}
	}
	return false
}

// buffer makes the buffer of a value, or extends it to the rows of another program.
func (b *builder) buffer(name string, value Value) {
	buf, ok := b.buffers[name]
	if !ok {
		buf = &planir.Buffer{Name: name, Type: value.Type, Cols: value.Cols}
		b.buffers[name] = buf
		b.order = append(b.order, name)
	}
	buf.Rows = max(buf.Rows, value.Rows)
}

// readOutside are the buffers that sections other than i read.
func readOutside(sections []Section, i int) map[string]bool {
	out := map[string]bool{}
	for j := range sections {
		for _, node := range sections[j].Nodes {
			for _, name := range node.In {
				out[name] = out[name] || j != i
			}
		}
	}
	return out
}

// section lowers a section in four phases: it cuts nodes into tasks, joins tasks, orders them by flags, and deals them
// out to lanes. outside are the buffers that other sections read.
func (b *builder) section(section *Section, rows int, outside map[string]bool) (planir.Section, error) {
	tasks, err := b.tasks(section, rows, outside)
	if err != nil {
		return planir.Section{}, err
	}
	return b.deal(section, tasks, section.Layers > 1), nil
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
		task, err := b.node(section, node, decision, pipeline)
		if err != nil {
			return nil, diag.New(diag.ClassIllegal, "lower plan: %s@%d: %w", node.Name, rows, err).
				WithCode("P010")
		}
		if pipeline != nil {
			if pipelines[pipeline] == nil {
				pipelines[pipeline] = newStages(pipeline)
			}
			pipelines[pipeline].add(stage, decision, task)
			if stage != op.SparseAttend { // the last one has all of them
				continue
			}
			if task, err = pipelines[pipeline].woven(); err != nil {
				return nil, err
			}
		}
		tasks = append(tasks, task...)
	}
	tasks = fuse(tasks, b.plan.Proc, outside)
	// Only now are graphs final, and can equal ones be found.
	for _, task := range tasks {
		task.step.Run = b.graph(task)
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

// deal makes flags for the tasks and deals them out to lanes. The tasks are listed in an order that one processor alone
// could execute.
func (b *builder) deal(section *Section, tasks []*task, repeated bool) planir.Section {
	out := planir.Section{Name: section.Name, First: section.First, Layers: section.Layers, Logits: section.Logits}
	out.Flags = synchronise(tasks, repeated)
	// Each processor executes its tasks in this order; flags order tasks of different processors.
	lanes := map[string][]planir.Step{}
	for _, task := range tasks {
		lanes[task.proc] = append(lanes[task.proc], task.step)
	}
	for _, name := range slices.Sorted(maps.Keys(lanes)) {
		out.Lanes = append(out.Lanes, planir.Lane{Proc: name, Steps: lanes[name]})
	}
	// The steps have moved: weight references are completed where they are now.
	for _, lane := range out.Lanes {
		i := 0
		for _, task := range tasks {
			if task.proc != lane.Proc {
				continue
			}
			for at, packed := range task.weights {
				b.fixups = append(b.fixups, fixup{packed, &lane.Steps[i].W[at]})
			}
			i++
		}
	}
	return out
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
	if err := b.moveTo(section, node, pieces); err != nil {
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
		made.graph, made.label = op.Single(operator, ""),
			fmt.Sprintf("%s%s%d@%d", node.Name, map[role]string{Gather: "<", Sum: "+"}[piece.Role], piece.Share,
				operator.M)
		return made, nil
	}
	made.step.ExpectNS = decision.Shares[piece.Share].PredictNS
	if err := b.unfolded(node, operator); err != nil {
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
	for _, used := range uses(node, piece, proc, layout) {
		b.usePack(used)
		made.weights = append(made.weights, used)
		made.step.W = append(made.step.W, planir.WeightRef{})
	}
	// The label names the graph: the node, its share if there are several, and the rows.
	suffix := ""
	if len(decision.Shares) > 1 {
		sh := decision.Shares[piece.Share]
		suffix = fmt.Sprintf("[%d:%d]", sh.From, sh.To)
	}
	made.graph, made.label = chain(piece.Ops, layout), fmt.Sprintf("%s%s@%d", node.Name, suffix, operator.M)
	return made, nil
}

// unfolded refuses a lookup in the packed weight of a product whose rows a fold multiplies: the fold would change the
// embedding.
func (b *builder) unfolded(node *Node, operator op.Op) error {
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

// usePack extends a pack to a range of columns that is read.
func (b *builder) usePack(used packRange) {
	use := b.packs[used.key]
	if use == nil {
		use = &packUse{lo: used.n0, hi: used.n1}
		b.packs[used.key] = use
	}
	use.lo, use.hi = min(use.lo, used.n0), max(use.hi, used.n1)
}

// uses lists the ranges of packed weights that a piece reads, in the order of its step's weights.
func uses(node *Node, piece *Piece, proc *planir.Proc, layout string) (out []packRange) {
	operator := piece.Op()
	for i, wo := range weightOps(piece.Ops) { // a share along K that adds no bias takes none
		spec := wo.op.WeightSpec(wo.role, layout)
		key := packKey{weight: node.W[i], scheme: spec.Scheme, layout: spec.Layout, k1: spec.K}
		c0, c1 := 0, spec.N
		if operator.HasMatrix() && wo.role != "scale" { // which all columns share
			if wo.role == "weight" || operator.Kind == op.GroupMatMul {
				key.k0, key.k1 = piece.K0, piece.K1
			}
			c0, c1 = piece.N0, piece.N1
		}
		if _, weights, _ := operator.HeadColumns(); wo.op.Kind == operator.Kind && len(weights) > 0 {
			c0 = weights[0] * piece.H0 // those of its heads
			c1 += c0
		}
		// Uses of a pack by several pieces are united, unless the processor must have a pack of just its own range.
		steps := wo.role == "steps" && c1-c0 != node.Op().N // two rows have no column ranges: a share has its own
		ranges := operator.Scheme != "" && wo.role != "scale" && !proc.WeightRanges
		heads := wo.role == "heads" && operator.KVHeads != node.Op().KVHeads // too few for a range to be aligned
		// Nor have the rows of a matrix: a part of its columns is one of each row.
		rows := spec.Layout == op.RowsLayout && wo.role == "weight" && c1-c0 != node.Op().N
		if proc.WeightsInArtifacts || ranges || steps || heads || rows {
			key.owner, key.n0, key.n1 = piece.Proc, c0, c1
			key.slotted = operator.Kind == op.GroupMatMul
		}
		used := packRange{key: key, n0: c0, n1: c1}
		if operator.Kind == op.GroupMatMul {
			used.tiers, used.slot = node.Slots.Tiers, node.Slots.First+i
		}
		out = append(out, used)
	}
	return out
}

// Use is a range of a packed weight that a piece reads: rows K0..K1 and columns N0..N1 in a format.
type Use struct {
	Weight, Scheme, Layout string
	K0, K1, N0, N1         int
	// Owner is the processor that has a pack of just this region; "": processors read ranges of one.
	Owner   string
	Slotted bool // its pack holds only experts that have a slot
}

// Needs is what a piece needs to be there before its step can run, unless the step is joined to its neighbours: the
// ranges of weights it reads, and its graph, under a key that it shares with equal ones of its processor.
func Needs(node *Node, piece *Piece, proc *planir.Proc) (weights []Use, graph string) {
	cut := op.Single(piece.Op(), "")
	if piece.Role == Compute {
		layout := ""
		if operator := piece.Op(); operator.Scheme != "" {
			layout = proc.Layouts[operator.Scheme.Weight()]
		}
		for _, used := range uses(node, piece, proc, layout) {
			key := used.key
			weights = append(weights, Use{key.weight, key.scheme, key.layout, key.k0, key.k1, used.n0, used.n1,
				key.owner, key.slotted})
		}
		cut = chain(piece.Ops, layout)
	}
	key := graphKey(piece.Proc, cut)
	if proc.WeightsInArtifacts { // a graph of its own for each set of weights
		key += fmt.Sprintf("\x00%+v", weights)
	}
	return weights, key
}

// graphKey is equal for equal graphs of a processor.
func graphKey(proc string, graph op.Graph) string {
	code, err := json.Marshal(graph)
	if err != nil {
		panic("BUG: graph does not encode: " + err.Error())
	}
	return proc + "\x00" + string(code)
}

// weightOp is an operator of a chain and the role of a weight it takes.
type weightOp struct {
	op   op.Op
	role string
}

// weightOps lists them in the order of a node's weights.
func weightOps(ops []op.Op) (out []weightOp) {
	for _, operator := range ops {
		for _, role := range operator.Sig().W {
			out = append(out, weightOp{operator, role})
		}
	}
	return out
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

// weightsKey is equal for equal lists of ranges.
func weightsKey(list []packRange) string {
	var text strings.Builder
	for _, packed := range list {
		fmt.Fprintf(&text, "\x00%+v", packed)
	}
	return text.String()
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

// finish fills in what depends on all programs: buffers, cache, weights, packs, the references to packs, and the
// decider. The order matters: packs are sorted by the rank of their weights, and references need the names of packs.
func (b *builder) finish(rows []int) error {
	b.finishBuffers()
	b.finishCache()
	rank := b.finishWeights()
	if err := b.fold(rank); err != nil {
		return err
	}
	b.wholePacks()
	if err := b.finishPacks(rank); err != nil {
		return err
	}
	for _, fixup := range b.fixups {
		use, own := b.packs[fixup.from.key]
		if !own {
			use = b.packs[fixup.from.key.whole()]
		}
		*fixup.ref = planir.WeightRef{Pack: use.name, C0: fixup.from.n0 - use.lo, C1: fixup.from.n1 - use.lo,
			Tiers: fixup.from.tiers, Slot: fixup.from.slot}
	}
	b.finishDecider(rows)
	return nil
}

// finishDecider names the program for every number of tokens: the smallest that holds all of them, and for more tokens
// the largest, or the program of chunks in flight.
func (b *builder) finishDecider(rows []int) {
	rows = slices.DeleteFunc(slices.Clone(rows), func(count int) bool { return slices.Contains(b.plan.Batches, count) })
	whole := b.plan.MaxContext + 1 // tokens from which on there are several whole chunks
	if len(b.out.InFlight) > 0 {
		whole = b.out.InFlight[0].Rows
	}
	for i, count := range rows {
		lo, hi := 1, count
		if i > 0 {
			lo = rows[i-1] + 1
		}
		if i == len(rows)-1 {
			hi = b.plan.MaxContext
		}
		hi = min(hi, whole-1)
		if lo <= hi {
			entry := planir.Decide{Min: lo, Max: hi, Program: ProgramName(count, count == 1)}
			b.out.Decider = append(b.out.Decider, entry)
		}
	}
	if whole <= b.plan.MaxContext {
		entry := planir.Decide{Min: whole, Max: b.plan.MaxContext, Program: b.out.InFlight[0].Name}
		b.out.Decider = append(b.out.Decider, entry)
	}
}

// finishBuffers keeps the buffers that steps touch. A value that stays within one step needs no buffer.
func (b *builder) finishBuffers() {
	touched := map[string]bool{planir.IDs: true, planir.Logits: true}
	for _, program := range b.out.All() {
		touched[program.Own(planir.IDs)], touched[program.Own(planir.Logits)] = true, true
		for _, section := range program.Sections {
			for _, lane := range section.Lanes {
				for _, step := range lane.Steps {
					for _, view := range slices.Concat(step.In, step.Out) {
						touched[view.Buffer] = true
					}
				}
			}
		}
	}
	for _, name := range b.order {
		if touched[name] {
			b.out.Buffers = append(b.out.Buffers, *b.buffers[name])
		}
	}
}

// finishCache takes the cache's layers and heads from the operators that append to it.
func (b *builder) finishCache() {
	cache := &b.out.Cache
	*cache = planir.Cache{Type: b.plan.KV, MaxContext: b.plan.MaxContext}
	if count := b.plan.Sequences(); count > 1 {
		cache.Sequences = count
	}
	for _, section := range b.model.Sections {
		for _, node := range section.Nodes {
			for _, operator := range node.Ops {
				if operator.Kind == op.KVAppend {
					cache.Layers = max(cache.Layers, section.First+section.Layers)
					cache.KVHeads, cache.HeadDim = operator.KVHeads, operator.HeadDim
				}
			}
		}
	}
}

// layersOf is the range of a section's layers; false for a section of none.
func layersOf(section *models.Section) (op.LayerRange, bool) {
	return op.LayerRange{From: section.First, To: section.First + section.Layers}, section.Layers > 0
}

// finishWeights lists the model's weights, then the computed ones that packs hold. It returns the index of each.
func (b *builder) finishWeights() (rank map[string]int) {
	// A weight that several sections name has the layers of all of them: a stored name with {layer} is one tensor for
	// each.
	layers := map[string][]op.LayerRange{}
	for i := range b.model.Sections {
		section := &b.model.Sections[i]
		for _, node := range section.Nodes {
			for _, name := range node.W {
				if own, repeated := layersOf(section); repeated {
					layers[name] = appendRange(layers[name], own)
				}
			}
		}
	}
	rank = map[string]int{}
	for i, weight := range b.model.Weights {
		rank[weight.Name] = i
		if weight.Kind() == op.StoredWeight {
			weight.Layers = layers[weight.Name]
		}
		b.out.Weights = append(b.out.Weights, weight)
	}
	b.finishComputed(rank)
	return rank
}

// finishComputed lists the computed weights that packs hold, which depends on the decided schemes, and adds them to the
// index.
func (b *builder) finishComputed(rank map[string]int) {
	used := map[string]bool{}
	for key := range b.packs {
		used[key.weight] = true
	}
	for i := range b.model.Sections {
		section := &b.model.Sections[i]
		for _, node := range section.Nodes {
			for _, added := range b.computedOf(section.Name+"."+node.Name, node.Ops[len(node.Ops)-1]) {
				if !used[added.Name] {
					continue
				}
				if _, again := rank[added.Name]; !again {
					rank[added.Name] = len(b.out.Weights)
					b.out.Weights = append(b.out.Weights, added)
				}
				if own, repeated := layersOf(section); repeated {
					weight := &b.out.Weights[rank[added.Name]]
					weight.Layers = appendRange(weight.Layers, own)
				}
			}
		}
	}
}

// computedOf are the computed weights that a class of products may have: scales, then steps. Experts also have a list
// of the experts in slots, for each program with tiers.
func (b *builder) computedOf(class string, product op.Op) (out []op.Weight) {
	if product.Kind == op.ExpertMatMul {
		for i := range b.plan.Experts {
			tiers := &b.plan.Experts[i]
			out = append(out, op.Weight{Name: SlotsWeight(tiers.Rows), SlotsOf: tiers.Rows, K: 1, N: tiers.Slots()})
		}
	}
	if product.Kind == op.Attention && b.plan.Attention != nil {
		return []op.Weight{{Name: models.HeadsWeight(class), HeadsOf: class, Density: b.plan.Attention.Density, K: 1,
			N: len(op.SparseHeads(make([]op.SparseHead, product.Heads)))}}
	}
	for _, scales := range scaleCounts {
		out = append(out, op.Weight{Name: ScaleWeight(class, scales), ScaleOf: class, K: 1, N: scales})
	}
	return append(out,
		op.Weight{Name: InnerScaleWeight(class), ScaleOf: class, K: 1, N: 1, Outliers: op.OutlierChannels(product.K)},
		op.Weight{Name: StepsWeight(class), ScaleOf: class, K: 2, N: product.N})
}

// whole is the key of the pack of all experts.
func (k packKey) whole() packKey {
	k.slotted = false
	return k
}

// wholePacks drops a pack of the experts that have a slot where the same processor has a pack of all experts, so that
// it holds no expert twice.
func (b *builder) wholePacks() {
	for key := range b.packs {
		if key.slotted && b.packs[key.whole()] != nil {
			delete(b.packs, key)
		}
	}
}

// finishPacks lists and names the packs, in the order of their weights (rank) and then of their keys. The order is
// total, so equal plans have equal programs. A name states only what distinguishes the pack from others of its
// weight.
func (b *builder) finishPacks(rank map[string]int) error {
	order := func(x, y packKey) int {
		return cmp.Or(cmp.Compare(rank[x.weight], rank[y.weight]), cmp.Compare(x.scheme, y.scheme),
			cmp.Compare(x.layout, y.layout), cmp.Compare(x.owner, y.owner), x.k0-y.k0, x.k1-y.k1, x.n0-y.n0, x.n1-y.n1)
	}
	for _, key := range slices.SortedFunc(maps.Keys(b.packs), order) {
		use, weight := b.packs[key], &b.out.Weights[rank[key.weight]]
		made := planir.Pack{
			Name: fmt.Sprintf("%s/%s.%s", key.weight, key.scheme, key.layout), Weight: key.weight,
			Experts: weight.Experts,
			K0:      key.k0, K1: key.k1, N0: use.lo, N1: use.hi, Scheme: key.scheme, Layout: key.layout,
		}
		if key.k0 != 0 || key.k1 != weight.K {
			made.Name += fmt.Sprintf(".k%d-%d", key.k0, key.k1)
		}
		if key.owner != "" {
			made.Name += fmt.Sprintf(".%s.n%d-%d", key.owner, key.n0, key.n1)
			made.InArtifact = b.plan.Proc(key.owner).WeightsInArtifacts
		}
		if key.slotted {
			made.Name += ".slots"
			made.Slotted, made.Experts = true, planir.MostSlotted(b.plan.Experts)
		}
		use.name = made.Name
		var err error
		if made.Bytes, err = pack.Bytes(made.Spec()); err != nil {
			return diag.New(diag.ClassIllegal, "lower plan: %w", err)
		}
		b.out.Packs = append(b.out.Packs, made)
	}
	return nil
}

// fold marks the weights that the plan's folds change: a fold divides the columns of one weight by factors and
// multiplies the rows of those that read its result, so that the product stays the same. rank is the weights' place.
func (b *builder) fold(rank map[string]int) error {
	groups := b.model.Folds()
	for _, name := range b.plan.Folds {
		i := slices.IndexFunc(groups, func(group models.FoldGroup) bool { return group.Name == name })
		if i < 0 {
			return diag.New(diag.ClassIllegal, "lower plan: the model has no weights that are folded as %q", name)
		}
		for _, part := range groups[i].Divide {
			weight := &b.out.Weights[rank[part.Weight]]
			weight.FoldCols, weight.FoldSource = name, part.Source
			if at, ok := rank[StepsWeight(b.classOf(part.Weight))]; ok { // of what the columns compute
				b.out.Weights[at].FoldCols, b.out.Weights[at].FoldSource = name, part.Source
			}
		}
		for _, multiplied := range groups[i].Multiply {
			b.out.Weights[rank[multiplied]].FoldRows = name
		}
		for _, class := range groups[i].Readers {
			for _, of := range Computed(class) {
				if at, ok := rank[of]; ok {
					b.out.Weights[at].FoldRows = name
				}
			}
		}
	}
	return nil
}

// classOf is the node that multiplies by a weight, "" where none does.
func (b *builder) classOf(weight string) string {
	for i := range b.model.Sections {
		for _, node := range b.model.Sections[i].Nodes {
			if len(node.W) > 0 && node.W[0] == weight {
				return b.model.Sections[i].Name + "." + node.Name
			}
		}
	}
	return ""
}

// appendRange adds a range behind the others, which it may continue or repeat.
func appendRange(list []op.LayerRange, layers op.LayerRange) []op.LayerRange {
	if count := len(list); count > 0 && list[count-1].To >= layers.From {
		list[count-1].To = max(list[count-1].To, layers.To)
		return list
	}
	return append(list, layers)
}
