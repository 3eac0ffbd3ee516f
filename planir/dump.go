package planir

import (
	"fmt"
	"strings"

	"github.com/hetc/hetc/planir/op"
)

// Dump renders a plan as text with one line per element and per step, in the order of execution
// within each lane. Equal plans have equal dumps, and a changed step changes its line only.
func Dump(plan *Plan) string {
	text := &dump{}
	text.writeDecisions(plan)
	// The program is told in the order in which its parts refer to each other.
	text.writeData(&plan.Program)
	text.writeCode(&plan.Program)
	return text.String()
}

// dump is the text of a plan.
type dump struct{ strings.Builder }

// line adds a line.
func (d *dump) line(format string, args ...any) { fmt.Fprintf(d, format+"\n", args...) }

// writeDecisions tells what a plan is for, and what was decided.
func (d *dump) writeDecisions(plan *Plan) {
	d.line("plan %s model %s soc %s control %s context %d kv %s", plan.Schema, plan.Model.Name, plan.SoC.Name,
		plan.SoC.Control, plan.MaxContext, plan.KV)
	for i := range plan.Procs {
		proc := &plan.Procs[i]
		d.line("proc %s %s %s/%s cores %v tile k%d n%d%s%s", proc.Name, proc.Kind, proc.Driver, proc.Select, proc.Cores,
			proc.Tile.K, proc.Tile.N, textIf(proc.WeightsInArtifacts, " weights in artifacts"),
			textIf(proc.Shares, " shares"))
	}
	if target := plan.Target; target != nil {
		d.line("target %s%s%s", target.SoC, textIf(target.Emulator, " emulator"),
			textIf(target.Simulated, " simulated times"))
		for _, fallback := range target.Fallbacks {
			d.line("fallback %s@%d from %s: %s", fallback.Node, fallback.Rows, fallback.From, fallback.Reason)
		}
	}
	for i := range plan.Decisions {
		decision := &plan.Decisions[i]
		d.line("decide %s@%d %s %s %s", decision.Node, decision.Rows, decision.Strategy,
			orDash(string(decision.Scheme)), decision.ShareText())
	}
}

// writeData tells of the cache, buffers, weights and packs of a program.
func (d *dump) writeData(pr *Program) {
	d.line("cache %s layers %d heads %d context %d dim %d%s", pr.Cache.Type, pr.Cache.Layers, pr.Cache.KVHeads,
		pr.Cache.MaxContext, pr.Cache.HeadDim, sequences(pr.Cache.Sequences))
	for _, buffer := range pr.Buffers {
		d.line("buffer %s %s [%d,%d]", buffer.Name, buffer.Type, buffer.Rows, buffer.Cols)
	}
	for i := range pr.Weights {
		d.writeWeight(&pr.Weights[i])
	}
	for _, k := range pr.Packs {
		d.line("pack %s of %s [%d:%d,%d:%d] %s %s %d bytes%s", k.Name, k.Weight, k.K0, k.K1, k.N0, k.N1, k.Scheme,
			k.Layout, k.Bytes, textIf(k.InArtifact, " in artifact")+
				textIf(k.Slotted, fmt.Sprintf(" of %d experts with slots", k.Experts)))
	}
}

// writeWeight tells what a weight is made of.
func (d *dump) writeWeight(weight *op.Weight) {
	folds := ""
	if weight.FoldRows != "" {
		folds += " rows times " + weight.FoldRows
	}
	if weight.FoldCols != "" {
		folds += fmt.Sprintf(" columns of source %d by %s", weight.FoldSource, weight.FoldCols)
	}
	from := orDash(strings.Join(weight.From, " "))
	if weight.ScaleOf != "" {
		from = "the range of " + weight.ScaleOf
	}
	if weight.HeadsOf != "" {
		from = fmt.Sprintf("the heads of %s, density %v", weight.HeadsOf, weight.Density)
	}
	d.line("weight %s [%d,%d] layers %v from %s%s", weight.Name, weight.K, weight.N, weight.Layers, from, folds)
}

// writeCode tells of the graphs, the programs with their steps, and the decider.
func (d *dump) writeCode(pr *Program) {
	for _, graph := range pr.Graphs {
		ops := make([]string, len(graph.Graph.Nodes))
		for i, node := range graph.Graph.Nodes {
			ops[i] = node.Op.Key()
		}
		d.line("graph %s on %s as %s%s: %s", graph.Name, graph.Proc, graph.Artifact,
			textIf(graph.Context != "", " in "+graph.Context), strings.Join(ops, "; "))
	}
	for _, ph := range pr.All() {
		d.line("program %s %s rows %d%s", ph.Name, ph.Phase, ph.Rows, textIf(ph.On != "", " on "+ph.On))
		for j := range ph.Sections {
			section := &ph.Sections[j]
			d.line("  section %s layers %d:%d flags %d logits %v", section.Name, section.First,
				section.First+section.Layers, section.Flags, section.Logits)
			for _, lane := range section.Lanes {
				for k := range lane.Steps {
					d.line("    %s %d %s", lane.Proc, k, lane.Steps[k].dump())
				}
			}
		}
	}
	for _, entry := range pr.Decider {
		d.line("tokens %d..%d: %s", entry.Min, entry.Max, entry.Program)
	}
}

// textIf returns the text if the condition is set, else "".
func textIf(set bool, text string) string {
	if set {
		return text
	}
	return ""
}

// sequences names the sequences of a cache that holds more than one.
func sequences(count int) string {
	if count == 0 {
		return ""
	}
	return fmt.Sprintf(" sequences %d", count)
}

// dump returns the step in one line.
func (st *Step) dump() string {
	var out strings.Builder
	out.WriteString(st.Node)
	for i, wait := range st.Wait {
		flag, _ := wait.MarshalText()
		out.WriteString([]string{" wait ", ","}[min(i, 1)] + string(flag))
	}
	fmt.Fprintf(&out, " run %s", st.Run)
	if st.R0 > 0 {
		fmt.Fprintf(&out, " from row %d", st.R0)
	}
	if st.Behind > 0 {
		fmt.Fprintf(&out, " %d layers behind", st.Behind)
	}
	// A list is its word, then the elements with commas between; an empty list is left out.
	list := func(word string, count int, text func(int) string) {
		for i := range count {
			out.WriteString([]string{" " + word + " ", ","}[min(i, 1)] + text(i))
		}
	}
	list("in", len(st.In), func(i int) string { return st.In[i].String() })
	list("w", len(st.W), func(i int) string { return st.W[i].String() })
	list("out", len(st.Out), func(i int) string { return st.Out[i].String() })
	if st.Full {
		out.WriteString(" full")
	}
	if st.Heads != nil {
		fmt.Fprintf(&out, " heads %d:%d", st.Heads[0], st.Heads[1])
	}
	if st.Set != nil {
		fmt.Fprintf(&out, " set %d", *st.Set)
	}
	if st.ExpectNS > 0 {
		fmt.Fprintf(&out, " expect %dns", st.ExpectNS)
	}
	return out.String()
}

// orDash returns the text, or a dash for an empty one: every line of a kind has the same words.
func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
