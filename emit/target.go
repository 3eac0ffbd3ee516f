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

// Target says what executes a plan that was made for a simulated SoC: the device, or the vendor's emulator of its
// NPU and this machine's CPU.
type Target struct {
	SoC         string        // its name, which must be the plan's
	Emulator    bool          // the twin for the emulator
	Fingerprint string        // of the machine that executes the twin, "" for the device
	Procs       []planir.Proc // by their names in the plan; processors that are missing execute nothing
}

// proc returns the target's processor of that name, nil where it has none.
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
	proc     string // that does not execute it
	reason   error
}

// retarget returns the plan for the target: the same decisions on the target's processors, but for those of fallen,
// which the control processor executes alone. Decisions that the target does not execute are returned as misfits
// instead of a plan.
func retarget(plan *planir.Plan, graph *models.Graph, target *Target,
	fallen []planir.Fallback) (*planir.Plan, []misfit, error) {
	if target.SoC != plan.SoC.Name {
		return nil, nil, diag.New(diag.ClassInput, "emit for target %q: the plan is for SoC %q",
			target.SoC, plan.SoC.Name).
			WithHint("solve for the target: hetc solve --target %s, or emit for the plan's: --target %s",
				target.SoC, plan.SoC.Name)
	}
	if err := target.missing(plan, fallen); err != nil {
		return nil, nil, err
	}
	// The plan is no longer a simulation: it names what executes it, and what it was made from.
	out := *plan
	out.SoC.Simulated, out.SoC.Fingerprint = false, target.Fingerprint
	out.Target = &planir.Target{
		SoC: target.SoC, Emulator: target.Emulator, Simulated: plan.SoC.Simulated, Fallbacks: fallen,
	}
	out.Procs = slices.Clone(target.Procs)
	slices.SortFunc(out.Procs, func(a, b planir.Proc) int { return strings.Compare(a.Name, b.Name) })
	if target.Emulator { // what the device was expected to take says nothing about the emulator
		out.Predictions, out.Solver, out.Beside, out.Drafts = nil, nil, nil, nil
	}
	if len(fallen) > 0 { // its orders are of the tasks that were decided
		out.InFlight = nil
		if out.Attention != nil {
			out.Attention = new(*out.Attention)
			out.Attention.Pipelines = slices.DeleteFunc(slices.Clone(out.Attention.Pipelines), fellApart(fallen))
		}
	}
	if beside := out.Beside; beside != nil {
		if out.Proc(beside.Prefill) == nil || out.Proc(beside.Decode) == nil {
			out.Beside = nil
		}
	}
	// Decisions first, then the program that they lower to on the new processors.
	out.Decisions = make([]planir.Decision, len(plan.Decisions))
	for i := range plan.Decisions {
		out.Decisions[i] = target.decision(plan, &plan.Decisions[i], fallen)
	}
	if _, exact := out.Precision(); !exact { // the device's drivers may round what the simulated ones do not
		out.Beside, out.Drafts = nil, nil
	}
	bad, err := misfits(&out, graph)
	if err != nil || len(bad) > 0 {
		return nil, bad, err
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

// decision returns a decision of the plan as the target has it. Predicted times are dropped where they no longer hold:
// of a decision that fell back, and of all decisions in an emulator.
func (t *Target) decision(plan *planir.Plan, of *planir.Decision, fallen []planir.Fallback) planir.Decision {
	out := *of
	out.Shares = slices.Clone(of.Shares)
	if fellBack(of, fallen) {
		out.Strategy, out.Axis, out.PredictNS = planir.Single, planir.AxisNone, 0
		out.Source = ""
		out.Shares = []planir.Share{{Proc: plan.SoC.Control}}
	}
	if t.Emulator {
		out.PredictNS, out.Source, out.Alternatives = 0, "", nil
		for i := range out.Shares {
			out.Shares[i].PredictNS = 0
		}
	}
	return out
}

// fellBack reports whether a decision was given to the control processor.
func fellBack(d *planir.Decision, fallen []planir.Fallback) bool {
	return slices.ContainsFunc(fallen, func(f planir.Fallback) bool { return f.Node == d.Node && f.Rows == d.Rows })
}

// fellApart tells of a pipeline of heads whether a stage of it was given to the control processor.
func fellApart(fallen []planir.Fallback) func(planir.HeadPipeline) bool {
	return func(pipeline planir.HeadPipeline) bool {
		return slices.ContainsFunc(fallen, func(f planir.Fallback) bool {
			stage := f.Node == pipeline.Node || models.SparseNodes(pipeline.Node)[f.Node] != ""
			return stage && f.Rows == pipeline.Rows
		})
	}
}

// missing refuses a plan that uses processors the target has no data for, all of them at once.
func (t *Target) missing(plan *planir.Plan, fallen []planir.Fallback) error {
	nodes := map[string][]string{} // by missing processor
	need := func(proc, node string) {
		if t.proc(proc) == nil && !slices.Contains(nodes[proc], node) {
			nodes[proc] = append(nodes[proc], node)
		}
	}
	for i := range plan.Decisions {
		decision := t.decision(plan, &plan.Decisions[i], fallen)
		for _, share := range decision.Shares {
			need(share.Proc, decision.Node)
		}
	}
	need(plan.SoC.Control, "control")
	var list diag.List
	for _, proc := range plan.Procs {
		if nodes := nodes[proc.Name]; len(nodes) > 0 {
			problem := diag.New(diag.ClassInput,
				"emit for target %q: processor %q executes %s, and the SoC has no target data for it",
				t.SoC, proc.Name, firstOf(nodes))
			list = append(list, problem.
				WithHint("solve with processors that bundles can be made for: hetc solve --target %s", t.SoC))
		}
	}
	return list.Err()
}

// misfits returns the decisions of a plan that its processors do not execute, each once. A decision is executed where
// lowering can cut it into pieces for them.
func misfits(plan *planir.Plan, graph *models.Graph) (out []misfit, err error) {
	var lengths []int // numbers of rows
	for _, decision := range plan.Decisions {
		lengths = append(lengths, decision.Rows)
	}
	slices.Sort(lengths)
	seen := map[*planir.Decision]bool{}
	for _, rows := range slices.Compact(lengths) {
		sections, err := lower.Expand(lower.GraphOf(plan, graph, rows), rows, plan.MaxContext, plan.KV,
			schemeAt(plan, rows, op.A32W32), // a node without a decision is reported by lower
			plan.TiersOf(rows), plan.Channels)
		if err != nil {
			return nil, err
		}
		for i := range sections {
			for j := range sections[i].Nodes {
				node := &sections[i].Nodes[j]
				decision := plan.DecisionFor(node.Name, rows)
				if decision == nil || seen[decision] {
					continue
				}
				seen[decision] = true
				if _, err := lower.Cut(&sections[i], node, decision, plan.Proc); err != nil {
					what := fmt.Sprintf("%s at %d rows", decision.Node, decision.Rows)
					out = append(out, misfit{decision: decision, what: what, proc: decision.Shares[0].Proc,
						reason: err})
				}
			}
		}
	}
	return out, nil
}

// schemeAt returns the scheme that a plan decides for a node in a program of some rows, or another one where it decides
// none. The head is decided at one row for programs of any number of them.
func schemeAt(plan *planir.Plan, rows int, without op.Scheme) func(node string) op.Scheme {
	return func(node string) op.Scheme {
		for _, at := range []int{rows, 1} {
			if decision := plan.DecisionFor(node, at); decision != nil {
				return decision.Scheme
			}
		}
		return without
	}
}

// processorsFor lists the processors of a plan that execute a decision alone, in their order; those of skip are left
// out.
func processorsFor(p []planir.Proc, d *planir.Decision, kinds []op.Kind, skip ...string) (out []string) {
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

// firstOf names a few of a list.
func firstOf(list []string) string {
	const few = 3
	if len(list) <= few {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:few], ", "), len(list)-few)
}
