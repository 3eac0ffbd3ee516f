package diff

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
)

// findings are differences in the order in which they are told.
type findings []difference

// add notes a difference where the two sides are unlike.
func (f *findings) add(section, what, a, b string) {
	if a != b {
		*f = append(*f, difference{section, what, a, b})
	}
}

// byName notes what two maps have under unlike names or unlike values, ascending by name.
func (f *findings) byName(section string, a, b map[string]string) {
	names := maps.Clone(b)
	if names == nil {
		names = map[string]string{}
	}
	maps.Copy(names, a)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		f.add(section, name, a[name], b[name])
	}
}

// shadows says in which layers products keep shadow outliers, of those that do not in all.
func shadows(p *planir.Plan) string {
	var kept []string
	for i := range p.Shadows {
		kept = append(kept, p.Shadows[i].Node+" "+p.Shadows[i].LayersText())
	}
	return strings.Join(kept, "; ")
}

// plans compares two plans by what they were made from, what they decide and what they predict. Two plans without such
// differences are unlike in something else if their digests are.
func plans(a, b *planir.Plan) []difference {
	var found findings
	// inputs, then settings, decisions in the order of execution, predictions
	id := func(name, digest string) string { return fmt.Sprintf("%s (%.12s)", name, digest) }
	found.add("inputs", "model", id(a.Model.Name, a.Model.Digest), id(b.Model.Name, b.Model.Digest))
	found.add("plan", "evidence", string(a.Evidence()), string(b.Evidence()))
	found.add("inputs", "soc", id(a.SoC.Name, a.SoC.Digest), id(b.SoC.Name, b.SoC.Digest))
	found.byName("inputs", inputs(a), inputs(b))
	found.add("plan", "context", fmt.Sprint(a.MaxContext), fmt.Sprint(b.MaxContext))
	found.add("plan", "cache", string(a.KV), string(b.KV))
	found.add("plan", "batches", numbers(a.Batches), numbers(b.Batches))
	found.add("plan", "folds", strings.Join(a.Folds, ", "), strings.Join(b.Folds, ", "))
	found.add("plan", "shadow outliers", shadows(a), shadows(b))
	found.add("plan", "buckets", numbers(buckets(a)), numbers(buckets(b)))
	found.processors(a, b)
	var decided findings
	decided.byName("decisions", decisions(a), decisions(b))
	found = append(found, inOrder(decided, a, b)...)
	found.predictions(a, b)
	found.byName("quality", quality(a), quality(b))
	found.byName("memory", memory(a), memory(b))
	if !reflect.DeepEqual(a.Experts, b.Experts) {
		found = append(found, difference{"experts", "tiers", tiers(a), tiers(b)})
	}
	// What is not told above, such as the lowered program, shows in the digest at least.
	if len(found) == 0 {
		digestA, errA := planir.Digest(a)
		digestB, errB := planir.Digest(b)
		if errA == nil && errB == nil {
			found.add("plan", "digest", digestA[:12], digestB[:12])
		}
	}
	return found
}

// inputs returns the digests of what a plan was made from, by kind.
func inputs(p *planir.Plan) map[string]string {
	out := map[string]string{}
	for _, input := range p.Inputs {
		out[input.Kind] = fmt.Sprintf("%.12s", input.Digest)
	}
	return out
}

// buckets returns the numbers of rows of a plan's prefill programs, ascending.
func buckets(p *planir.Plan) (rows []int) {
	for _, program := range p.Program.Programs {
		if program.Phase == "prefill" {
			rows = append(rows, program.Rows)
		}
	}
	slices.Sort(rows)
	return rows
}

// processors compares what executes the plans. Those that look alike may still have unlike capabilities.
func (f *findings) processors(a, b *planir.Plan) {
	text := func(p *planir.Proc) string { return fmt.Sprintf("%s, driver %s %s", p.Kind, p.Driver, p.Select) }
	all := func(p *planir.Plan) map[string]string {
		out := map[string]string{}
		for i := range p.Procs {
			out[p.Procs[i].Name] = text(&p.Procs[i])
		}
		return out
	}
	f.byName("processors", all(a), all(b))
	for i := range a.Procs {
		one := &a.Procs[i]
		// Capabilities are long lists, of which it is told only that they differ.
		other := b.Proc(one.Name)
		if other != nil && text(one) == text(other) && !reflect.DeepEqual(one, other) {
			*f = append(*f, difference{"processors", one.Name, "other capabilities", "other capabilities"})
		}
	}
}

// decisions are scheme, strategy and shares by operator@rows.
func decisions(p *planir.Plan) map[string]string {
	out := map[string]string{}
	for i := range p.Decisions {
		decision := &p.Decisions[i]
		out[decisionName(decision)] = strings.TrimSpace(fmt.Sprintf("%s %s %s", decision.Scheme, decision.Strategy,
			decision.ShareText()))
	}
	return out
}

// decisionName is operator@rows.
func decisionName(d *planir.Decision) string { return fmt.Sprintf("%s@%d", d.Node, d.Rows) }

// predictions compares the predicted times of programs, with by how much the second one is longer.
func (f *findings) predictions(a, plan *planir.Plan) {
	times := func(p *planir.Plan) (ns map[string]int64, text map[string]string) {
		ns, text = map[string]int64{}, map[string]string{}
		for _, prediction := range p.Predictions {
			ns[prediction.Program] = prediction.PlanNS
			text[prediction.Program] = fmt.Sprintf("%.3f ms", float64(prediction.PlanNS)/1e6)
		}
		return ns, text
	}
	nsA, textA := times(a)
	nsB, textB := times(plan)
	var unlike findings
	unlike.byName("predictions", textA, textB)
	for _, difference := range unlike {
		if before, after := nsA[difference.What], nsB[difference.What]; before > 0 && after > 0 {
			difference.B += fmt.Sprintf(" (%+.1f %%)", 100*(float64(after)/float64(before)-1))
		}
		*f = append(*f, difference)
	}
}

// quality returns the predicted loss by phase.
func quality(p *planir.Plan) map[string]string {
	out := map[string]string{}
	for _, quality := range p.Quality {
		out[quality.Phase] = fmt.Sprintf("KL %.3g", quality.KL)
	}
	return out
}

// memory returns the parts of the predicted memory that are not 0, by name.
func memory(p *planir.Plan) map[string]string {
	memory := p.Memory
	if memory == nil {
		return nil
	}
	out := map[string]string{}
	for name, bytes := range map[string]int64{
		"total": memory.Total, "weights": memory.Weights, "tables": memory.Tables, "hot rows": memory.Hot, "cache": memory.Cache,
		"buffers": memory.Pool, "bound": memory.Max,
	} {
		if bytes > 0 {
			out[name] = fmt.Sprintf("%v", unit.Bytes(bytes))
		}
	}
	return out
}

// tiers describes capacity tiers, "" for a plan without.
func tiers(p *planir.Plan) string {
	var list []string
	for i := range p.Experts {
		tiers := &p.Experts[i]
		list = append(list, fmt.Sprintf("%d rows: groups %s, %.3f ms", tiers.Rows, tiers.Shape(),
			float64(tiers.ExpectNS)/1e6))
	}
	return strings.Join(list, "; ")
}

// numbers writes a list without brackets.
func numbers(list []int) string { return strings.Trim(fmt.Sprint(list), "[]") }

// inOrder puts differences of decisions into the order of the plans.
func inOrder(list []difference, a, b *planir.Plan) []difference {
	at := map[string]int{}
	for _, plan := range []*planir.Plan{a, b} {
		for i := range plan.Decisions {
			name := decisionName(&plan.Decisions[i])
			if _, ok := at[name]; !ok {
				at[name] = len(at)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b difference) int { return at[a.What] - at[b.What] })
	return list
}
