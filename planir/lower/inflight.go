package lower

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

// A program of several chunks in flight has the tasks of a chunk's program once for each chunk. Those of chunk c work
// on the rows from c times the chunk's on, of all values: nothing but the caches is shared. The list of tasks, from
// which flags follow, is an interleaving of the chunks' lists, in the order that the plan gives (planir.ChunkOrder).

// inFlightName returns the name of the program of so many chunks of that many rows: "prefill@256x2".
func inFlightName(rows, chunks int) string {
	return fmt.Sprintf("%sx%d", ProgramName(rows, false), chunks)
}

// inFlight lowers the program of several chunks.
func (b *builder) inFlight() (ph planir.PhaseProgram, err error) {
	decided := b.plan.InFlight
	rows, chunks := decided.Rows, decided.Chunks
	illegal := func(err error) error {
		return diag.New(diag.ClassIllegal, "lower plan: %d chunks of %d rows in flight: %w", chunks, rows, err).
			WithCode("P031")
	}
	isPrompt := rows >= 2 && !b.plan.Decodes(rows) && b.decidesLayers(rows)
	if chunks < 2 || !isPrompt || rows > b.plan.MaxContext/chunks {
		return ph, illegal(fmt.Errorf("want at least 2 chunks of a program of prefill, within %d positions",
			b.plan.MaxContext))
	}
	ph = planir.PhaseProgram{Name: inFlightName(rows, chunks), Phase: "prefill", Rows: chunks * rows}
	b.decodes = false

	// Sections for logits select a row of all chunks; the others are a chunk's.
	of := GraphOf(b.plan, b.model, rows)
	one, err := b.expand(of, rows, rows, b.tiers(rows, ""))
	if err != nil {
		return ph, illegal(err)
	}
	all, err := b.expand(of, chunks*rows, rows, nil)
	if err != nil {
		return ph, illegal(err)
	}

	for i := range one {
		section := &one[i]
		outside := readOutside(one, i)
		outside[planir.Logits] = true
		if section.Logits {
			made, err := b.section(&all[i], rows, outside)
			if err != nil {
				return ph, err
			}
			ph.Sections = append(ph.Sections, made)
			continue
		}

		lists, err := b.chunkTasks(section, outside)
		if err != nil {
			return ph, err
		}
		list, err := interleave(lists, decided.Order(section.Name), section.Layers)
		if err != nil {
			return ph, illegal(fmt.Errorf("section %q: %w", section.Name, err))
		}
		ph.Sections = append(ph.Sections, b.dealOut(section, list))
	}

	if err := checkOrders(decided.Orders, one); err != nil {
		return ph, illegal(err)
	}
	return ph, nil
}

// checkOrders returns an error if the plan orders the chunks of a section that has no layers.
func checkOrders(orders []planir.ChunkOrder, sections []Section) error {
	for i := range orders {
		name := orders[i].Section
		isLayers := func(section Section) bool { return section.Name == name && section.Layers > 0 }
		if !slices.ContainsFunc(sections, isLayers) {
			return fmt.Errorf("there is no section %q of layers", name)
		}
	}
	return nil
}

// chunkTasks makes the tasks of a section for each chunk in flight.
func (b *builder) chunkTasks(section *Section, outside map[string]bool) (lists [][]*task, err error) {
	decided := b.plan.InFlight
	defer func() { b.inChunk, b.chunkStart = false, 0 }()
	for chunk := range decided.Chunks {
		b.inChunk, b.chunkStart = true, chunk*decided.Rows
		tasks, err := b.tasks(section, decided.Rows, outside)
		if err != nil {
			return nil, err
		}
		lists = append(lists, tasks)
	}
	return lists, nil
}

// interleave merges the tasks of the chunks in the given order, nil for one chunk after the other.
func interleave(lists [][]*task, order *planir.ChunkOrder, layers int) (out []*task, err error) {
	if order == nil {
		return slices.Concat(lists...), nil
	}
	chunks, count := len(lists), len(lists[0])
	inRange := len(order.Starts) == chunks && slices.Min(order.Starts) >= 0 && slices.Max(order.Starts) < count
	if !inRange || layers < 2 && slices.Max(order.Starts) > 0 {
		return nil, fmt.Errorf("iterations of %d chunks of %d tasks in %d layers start with the tasks %v",
			chunks, count, layers, order.Starts)
	}

	next := make([]int, chunks)
	for _, chunk := range order.Turns {
		if chunk < 0 || chunk >= chunks || next[chunk] == count {
			return nil, fmt.Errorf("turns %v, want each of %d chunks %d times", order.Turns, chunks, count)
		}
		at := order.Starts[chunk] + next[chunk]
		task := lists[chunk][at%count]
		if order.Starts[chunk] > 0 && at < count {
			task.step.Behind = 1 // of the layer before
		}
		out = append(out, task)
		next[chunk]++
	}
	if len(out) != chunks*count {
		return nil, fmt.Errorf("%d turns, want each of %d chunks %d times", len(order.Turns), chunks, count)
	}
	return out, nil
}

// moveToChunk moves the pieces of a node to the rows of the chunk whose tasks are made.
func (b *builder) moveToChunk(section *Section, node *Node, pieces []Piece) error {
	if !b.inChunk {
		return nil
	}
	rows := b.plan.InFlight.Rows
	for i := range pieces {
		piece := &pieces[i]
		if node.Slots == nil {
			piece.R0 += b.chunkStart
		} else { // its rows are no tokens: those of a chunk follow those of the chunks before
			piece.R0 += b.chunkStart / rows * section.Values[node.Out[0]].Rows
		}

		for _, views := range [][]planir.View{piece.In, piece.Out} {
			for j := range views {
				value, ok := section.Values[views[j].Buffer]
				if !ok { // a share's own output
					value = section.Values[node.Out[0]]
				}
				if views[j].R1 > value.Rows {
					return fmt.Errorf("rows %d..%d of %q belong to the next chunk in flight: shares that are padded "+
						"beyond their bucket keep chunks apart", views[j].R0, views[j].R1, views[j].Buffer)
				}
				before := b.chunkStart / rows * value.Rows // of the chunks before: scores have a row for several tokens
				views[j].R0, views[j].R1 = views[j].R0+before, views[j].R1+before
			}
		}
	}
	return nil
}

// Task is a step of a chunk's program in the making: what its processor computes, between what views.
type Task struct {
	Proc  string
	Step  planir.Step // without flags and weights
	Graph op.Graph
}

// Tasks returns what chunks in flight interleave: the tasks of a chunk of that many rows in the order of its program,
// for each section.
func Tasks(plan *planir.Plan, graph *models.Graph, rows int) (map[string][]Task, error) {
	build := newBuilder(plan, graph)
	sections, err := build.expand(GraphOf(plan, graph, rows), rows, rows, build.tiers(rows, ""))
	if err != nil {
		return nil, err
	}
	out := map[string][]Task{}
	for i := range sections {
		if out[sections[i].Name] != nil || sections[i].Layers == 0 {
			continue
		}

		outside := readOutside(sections, i)
		outside[planir.Logits] = true
		tasks, err := build.tasks(&sections[i], rows, outside)
		if err != nil {
			return nil, err
		}
		for _, task := range tasks {
			out[sections[i].Name] = append(out[sections[i].Name], Task{task.proc, task.step, task.graph})
		}
	}
	return out, nil
}
