package emit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
)

// Target says what executes a plan that was made for a simulated SoC: the device, or the vendor's emulator of its NPU and
// this machine's CPU.
type Target struct {
	SoC         string        // its name, which must be the plan's
	Emulator    bool          // the twin for the emulator
	Fingerprint string        // of the machine that executes the twin, "" for the device
	Procs       []planir.Proc // by their names in the plan; processors that are missing execute nothing
}

func (t *Target) proc(name string) *planir.Proc {
	for i := range t.Procs {
		if t.Procs[i].Name == name {
			return &t.Procs[i]
		}
	}
	return nil
}

// misfit is a decision that the target does not execute as it is.
type misfit struct {
	decision *planir.Decision
	what     string // "graph npu/layers.qkv@16", or the decision itself
	proc     string
	reason   error
}

// retarget is the plan for the target: the same decisions but for those of fallen, which the control processor executes
// alone, on the target's processors. What they do not execute is returned as misfits instead.
func retarget(plan *planir.Plan, graph *models.Graph, target *Target, fallen []planir.Fallback) (*planir.Plan, []misfit, error) {
	if target.SoC != plan.SoC.Name {
		return nil, nil, diag.New(diag.ClassInput, "emit for target %q: the plan is for SoC %q", target.SoC, plan.SoC.Name).
			WithHint("solve for the target: hetc solve --target %s, or emit for the plan's: --target %s", target.SoC, plan.SoC.Name)
	}
	out := *plan
	out.SoC.Simulated, out.SoC.Fingerprint = false, target.Fingerprint
	out.Target = &planir.Target{SoC: target.SoC, Emulator: target.Emulator, Simulated: plan.SoC.Simulated, Fallbacks: fallen}
	out.Procs = slices.Clone(target.Procs)
	slices.SortFunc(out.Procs, func(a, b planir.Proc) int { return strings.Compare(a.Name, b.Name) })
	if target.Emulator { // what the device was expected to take says nothing about the emulator
		out.Predictions, out.Solver = nil, nil
	}
	out.Decisions = make([]planir.Decision, len(plan.Decisions))
	missing := map[string][]string{}
	for i, decision := range plan.Decisions {
		decision.Shares = slices.Clone(decision.Shares)
		if slices.ContainsFunc(fallen, func(f planir.Fallback) bool { return f.Node == decision.Node && f.Rows == decision.Rows }) {
			decision.Strategy, decision.Axis, decision.PredictNS = planir.Single, planir.AxisNone, 0
			decision.Shares = []planir.Share{{Proc: plan.SoC.Control}}
		}
		for at := range decision.Shares {
			if name := decision.Shares[at].Proc; target.proc(name) == nil && !slices.Contains(missing[name], decision.Node) {
				missing[name] = append(missing[name], decision.Node)
			}
			if target.Emulator {
				decision.Shares[at].PredictNS = 0
			}
		}
		if target.Emulator {
			decision.PredictNS, decision.Alternatives = 0, nil
		}
		out.Decisions[i] = decision
	}
	if target.proc(plan.SoC.Control) == nil {
		missing[plan.SoC.Control] = append(missing[plan.SoC.Control], "control")
	}
	if len(missing) > 0 {
		var list diag.List
		for _, proc := range plan.Procs {
			if nodes := missing[proc.Name]; len(nodes) > 0 {
				list = append(list, diag.New(diag.ClassInput, "emit for target %q: processor %q executes %s, and the SoC has no target data for it", target.SoC, proc.Name, some(nodes)).
					WithHint("solve with processors that bundles can be made for: hetc solve --target %s", target.SoC))
			}
		}
		return nil, nil, list.Err()
	}
	misfits, err := misfits(&out, graph)
	if err != nil || len(misfits) > 0 {
		return nil, misfits, err
	}
	if err := lower.Lower(&out, graph); err != nil {
		return nil, nil, err
	}
	if plan.Memory != nil {
		memory := planir.MemoryOf(&out)
		if !target.Emulator {
			memory.Max = plan.Memory.Max
		}
		out.Memory = &memory
	}
	return &out, nil, nil
}

// misfits are the decisions of a plan that its processors do not execute.
func misfits(plan *planir.Plan, graph *models.Graph) (out []misfit, err error) {
	var rows []int
	for _, decision := range plan.Decisions {
		if !slices.Contains(rows, decision.Rows) {
			rows = append(rows, decision.Rows)
		}
	}
	slices.Sort(rows)
	batch := graph.Batch()
	seen := map[*planir.Decision]bool{}
	for _, count := range rows {
		of := graph
		if count > 1 && plan.Decodes(count) {
			of = &batch
		}
		sections, err := lower.Expand(of, count, plan.MaxContext, plan.KV, func(node string) op.Scheme {
			for _, at := range []int{count, 1} {
				if decision := plan.DecisionFor(node, at); decision != nil {
					return decision.Scheme
				}
			}
			return op.A32W32 // reported by lower
		})
		if err != nil {
			return nil, err
		}
		for i := range sections {
			for j := range sections[i].Nodes {
				node := &sections[i].Nodes[j]
				decision := plan.DecisionFor(node.Name, count)
				if decision == nil || seen[decision] {
					continue
				}
				seen[decision] = true
				if _, err := lower.Cut(&sections[i], node, decision, plan.Proc); err != nil {
					out = append(out, misfit{decision: decision, what: fmt.Sprintf("%s at %d rows", decision.Node, decision.Rows), proc: decision.Shares[0].Proc, reason: err})
				}
			}
		}
	}
	return out, nil
}

// able lists the processors of a plan that execute a decision alone, in their order; those of skip are left out.
func able(p []planir.Proc, d *planir.Decision, kinds []op.Kind, skip ...string) (out []string) {
	for i := range p {
		proc := &p[i]
		if slices.Contains(skip, proc.Name) {
			continue
		}
		lacks := func(k op.Kind) bool { return len(proc.Kinds) > 0 && !slices.Contains(proc.Kinds, k) }
		if slices.ContainsFunc(kinds, lacks) || d.Scheme != "" && !slices.Contains(proc.Schemes, d.Scheme) {
			continue
		}
		out = append(out, fmt.Sprintf("%q", proc.Name))
	}
	return out
}

// some names a few of a list.
func some(list []string) string {
	const few = 3
	if len(list) <= few {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:few], ", "), len(list)-few)
}
