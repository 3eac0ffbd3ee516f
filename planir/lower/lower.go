package lower

import (
	"fmt"
	"maps"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
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

// rowCounts returns the numbers of rows that have a program, ascending: those for which layers are decided. A node of
// the head has one row in every bucket, so its decisions make no program.
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

// newBuilder returns a builder that has lowered nothing.
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
	if b.decodes = plan.Decodes(count); b.decodes {
		ph.Phase = "decode"
	}

	sections, err := b.expand(of, count, count, b.tiers(count, on))
	if err != nil {
		return ph, diag.New(diag.ClassIllegal, "lower plan: rows %d: %w", count, err)
	}
	if b.on = on; on != "" {
		useOwnBuffers(sections, &ph)
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

// tiers returns the capacity tiers of the program of so many rows. A processor that executes it alone takes all experts
// dynamically.
func (b *builder) tiers(rows int, on string) *planir.ExpertTiers {
	if on != "" {
		return nil
	}
	return b.plan.TiersOf(rows)
}

// expand returns the model's graph at a number of rows, with the schemes that are decided for another one (decided).
func (b *builder) expand(of *models.Graph, rows, decided int, tiers *planir.ExpertTiers) ([]Section, error) {
	schemeOf := func(node string) op.Scheme {
		if decision := b.decision(node, decided); decision != nil {
			return decision.Scheme
		}
		return op.A32W32 // tasks reports the missing decision
	}
	sections, err := Expand(of, rows, b.plan.MaxContext, b.plan.KV, schemeOf, tiers, b.plan.Channels)
	if err != nil {
		return nil, err
	}
	return prune(sections, b.plan), nil
}

// useOwnBuffers gives the values of a program's sections the names of its own buffers.
func useOwnBuffers(sections []Section, ph *planir.PhaseProgram) {
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

// GraphOf returns the graph of a plan's program of that many rows: of rows of a sequence each, or with sparse
// attention, where the plan says so.
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

// ProgramName returns the name of the program of that many rows: "decode", "decode@4", "prefill@256".
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
		if section.Layers == 0 || len(section.Nodes) == 0 {
			continue
		}
		// The first node is one that dense and sparse attention have in common.
		if b.plan.DecisionFor(section.Name+"."+section.Nodes[0].Name, rows) != nil {
			return true
		}
	}
	return false
}

// builder is the state of lowering one plan.
type builder struct {
	plan  *planir.Plan
	model *models.Graph
	out   planir.Program

	buffers map[string]*planir.Buffer // by name, as wide and long as any program needs
	order   []string                  // buffers in order of first use
	graphs  map[string]string         // names by graphKey, so that equal graphs are one
	packs   map[packKey]*packUse
	fixups  []fixup // in all steps made so far

	// contexts are the binaries that graphs with the same weights in their artifacts refer to, by these.
	contexts map[string]string

	// on is the processor that executes the program alone; "": its decisions name the processors.
	on string
	// decodes tells that the program decodes.
	decodes bool
	// inChunk tells that the tasks being made are of one of several chunks, which begins at row chunkStart.
	inChunk    bool
	chunkStart int
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
		if !headOnly(&section) {
			continue
		}
		for _, candidate := range section.Nodes {
			name := section.Name + "." + candidate.Name
			_, isAdded := Added(name, candidate.Ops[len(candidate.Ops)-1].Kind)[node]
			if isAdded || node == name {
				return b.plan.DecisionFor(node, 1)
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

// readOutside returns the buffers that sections other than i read before they write them anew. Layers of another kind
// have values of the same names, which are their own.
func readOutside(sections []Section, i int) map[string]bool {
	out := map[string]bool{}
	for j := range sections {
		if j == i {
			continue
		}
		written := map[string]bool{}
		for _, node := range sections[j].Nodes {
			for _, name := range node.In {
				out[name] = out[name] || !written[name]
			}
			for _, name := range node.Out {
				written[name] = true
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
	return b.dealOut(section, tasks), nil
}

// dealOut makes flags for the tasks and deals them out to lanes. The tasks are listed in an order that one processor
// alone could execute.
func (b *builder) dealOut(section *Section, tasks []*task) planir.Section {
	out := planir.Section{Name: section.Name, First: section.First, Layers: section.Layers, Logits: section.Logits}
	out.Flags = synchronise(tasks, section.Layers > 1)

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
