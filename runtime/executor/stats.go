package executor

import (
	"slices"

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
	Program string `json:"program"`
	Node    string `json:"node"`  // "layers.ffn_down_outliers"
	Bound   int    `json:"bound"` // channels that one pass multiplies; more are computed in several
	Hot     int    `json:"hot"`   // rows of the weight that are held in memory, of all layers
	driver.OutlierCount
}

// Outliers lists the products with shadow outliers that have run, in program order, where drivers count them.
func (m *Machine) Outliers() (out []OutlierStat) {
	seen := map[driver.Executable]bool{}
	m.eachStep(func(pr *program, _ *section, _ *laneSection, st *step) {
		at := slices.IndexFunc(st.graph.Nodes, func(node op.Node) bool { return node.Op.Kind == op.OutlierMatMul })
		if at < 0 {
			return
		}
		name := st.Node
		if names := st.Nodes(); len(names) == len(st.graph.Nodes) {
			name = names[at]
		}
		stat := OutlierStat{Program: pr.Name, Node: name, Bound: st.graph.Nodes[at].Op.Gathered()}
		for i := range st.calls {
			counter, counts := st.calls[i].exe.(driver.Outlying)
			if !counts || seen[st.calls[i].exe] {
				continue
			}
			seen[st.calls[i].exe] = true
			stat.Add(counter.Outliers())
			stat.Hot += m.loader.weights.hotRows(st, at, i)
		}
		if stat.Calls == 0 {
			return
		}
		// Sections of one name, and shares of one node, are one entry.
		same := slices.IndexFunc(out, func(listed OutlierStat) bool {
			return listed.Program == stat.Program && listed.Node == stat.Node
		})
		if same < 0 {
			out = append(out, stat)
		} else {
			out[same].Add(stat.OutlierCount)
			out[same].Hot += stat.Hot
		}
	})
	return out
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
