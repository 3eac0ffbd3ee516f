package executor

import (
	"slices"
	"strings"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// StepStat is the cost of one step since the last ResetStats, in ns.
type StepStat struct {
	Program  string  `json:"program"`
	Section  string  `json:"section"`
	Proc     string  `json:"proc"`
	Node     string  `json:"node"`
	Kind     op.Kind `json:"kind"`
	Runs     int64   `json:"runs"`
	RunNS    int64   `json:"run_ns"`
	WaitNS   int64   `json:"wait_ns"`   // that its thread had nothing to do before
	ExpectNS int64   `json:"expect_ns"` // of one run, from the plan
}

// Stats lists every step that has run, in program order.
func (m *Machine) Stats() []StepStat {
	var out []StepStat
	m.eachStep(func(pr *program, s *section, ls *laneSection, st *step) {
		if st.runCount > 0 {
			out = append(out, StepStat{pr.Name, s.Name, ls.lane.name, st.Node, st.kind, st.runCount, st.runNS,
				st.waitNS, st.ExpectNS})
		}
	})
	return out
}

// OutlierStat is how many channels exceeded the static scale of a product with shadow outliers, in all its layers.
type OutlierStat struct {
	Program string `json:"program"` // with commas between several that share the product
	Node    string `json:"node"`    // "layers.ffn_down_outliers"
	Bound   int    `json:"bound"`   // channels that one pass multiplies; more are computed in several
	Hot     int    `json:"hot"`     // rows of the weight that are held in memory, of all layers
	driver.OutlierCount
}

// Outliers lists the products with shadow outliers that have run, in program order, where drivers count them. Programs
// that share a product, such as one chunk of a prompt and two in flight, share its counts, and are named together.
func (m *Machine) Outliers() (out []OutlierStat) {
	listed := map[driver.Executable]int{} // where its counts are in out
	m.eachStep(func(pr *program, _ *section, _ *laneSection, st *step) {
		at := slices.IndexFunc(st.graph.Nodes, func(node op.Node) bool { return node.Op.Kind == op.OutlierMatMul })
		if at < 0 {
			return
		}
		name := st.Node
		if names := st.Nodes(); len(names) == len(st.graph.Nodes) {
			name = names[at]
		}
		for i := range st.calls {
			exe := st.calls[i].exe
			if entry, known := listed[exe]; known {
				out[entry].shareWith(pr.Name)
				continue
			}
			counter, counts := exe.(driver.Outlying)
			if !counts || counter.Outliers().Calls == 0 {
				continue
			}
			// Sections of one name, and shares of one node, are one entry.
			entry := slices.IndexFunc(out, func(known OutlierStat) bool {
				return known.Program == pr.Name && known.Node == name
			})
			if entry < 0 {
				entry = len(out)
				out = append(out, OutlierStat{Program: pr.Name, Node: name, Bound: st.graph.Nodes[at].Op.Gathered()})
			}
			listed[exe] = entry
			out[entry].Add(counter.Outliers())
			out[entry].Hot += m.loader.weights.hotRows(st, at, i)
		}
	})
	return out
}

// shareWith notes that a program shares the counts.
func (s *OutlierStat) shareWith(program string) {
	if programs := strings.Split(s.Program, ", "); !slices.Contains(programs, program) {
		s.Program = strings.Join(append(programs, program), ", ")
	}
}

// hotRows returns how many rows of the weight of a node that reads few of them are held in memory, for an iteration of
// a step.
func (w *weights) hotRows(st *step, node, iter int) int {
	name := st.graph.Nodes[node].W[0]
	number := slices.IndexFunc(st.graph.Weights, func(spec op.WeightSpec) bool { return spec.Name == name })
	_, key := w.place(st.W[number].Pack, st.layer(iter))
	if rows := w.rows[key]; rows != nil {
		return len(rows.hot)
	}
	return 0
}

// ResetStats forgets all step times.
func (m *Machine) ResetStats() {
	m.eachStep(func(_ *program, _ *section, _ *laneSection, st *step) { st.runCount, st.runNS, st.waitNS = 0, 0, 0 })
}

// eachStep calls f for each step of every loaded program, in program order.
func (m *Machine) eachStep(f func(*program, *section, *laneSection, *step)) {
	for _, pr := range m.order {
		for _, section := range pr.sections {
			for _, ls := range section.lanes {
				for _, st := range ls.steps {
					f(pr, section, ls, st)
				}
			}
		}
	}
}
