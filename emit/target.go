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
func retarget(p *planir.Plan, g *models.Graph, t *Target, fallen []planir.Fallback) (*planir.Plan, []misfit, error) {
	if t.SoC != p.SoC.Name {
		return nil, nil, diag.New(diag.ClassInput, "emit for target %q: the plan is for SoC %q", t.SoC, p.SoC.Name).
			WithHint("solve for the target: hetc solve --target %s, or emit for the plan's: --target %s", t.SoC, p.SoC.Name)
	}
	out := *p
	out.SoC.Simulated, out.SoC.Fingerprint = false, t.Fingerprint
	out.Target = &planir.Target{SoC: t.SoC, Emulator: t.Emulator, Simulated: p.SoC.Simulated, Fallbacks: fallen}
	out.Procs = slices.Clone(t.Procs)
	slices.SortFunc(out.Procs, func(a, b planir.Proc) int { return strings.Compare(a.Name, b.Name) })
	if t.Emulator { // what the device was expected to take says nothing about the emulator
		out.Predictions, out.Solver = nil, nil
	}
	out.Decisions = make([]planir.Decision, len(p.Decisions))
	missing := map[string][]string{}
	for i, d := range p.Decisions {
		d.Shares = slices.Clone(d.Shares)
		if slices.ContainsFunc(fallen, func(f planir.Fallback) bool { return f.Node == d.Node && f.Rows == d.Rows }) {
			d.Strategy, d.Axis, d.PredictNS = planir.Single, planir.AxisNone, 0
			d.Shares = []planir.Share{{Proc: p.SoC.Control}}
		}
		for k := range d.Shares {
			if name := d.Shares[k].Proc; t.proc(name) == nil && !slices.Contains(missing[name], d.Node) {
				missing[name] = append(missing[name], d.Node)
			}
			if t.Emulator {
				d.Shares[k].PredictNS = 0
			}
		}
		if t.Emulator {
			d.PredictNS, d.Alternatives = 0, nil
		}
		out.Decisions[i] = d
	}
	if t.proc(p.SoC.Control) == nil {
		missing[p.SoC.Control] = append(missing[p.SoC.Control], "control")
	}
	if len(missing) > 0 {
		var list diag.List
		for _, q := range p.Procs {
			if nodes := missing[q.Name]; len(nodes) > 0 {
				list = append(list, diag.New(diag.ClassInput, "emit for target %q: processor %q executes %s, and the SoC has no target data for it", t.SoC, q.Name, some(nodes)).
					WithHint("solve with processors that bundles can be made for: hetc solve --target %s", t.SoC))
			}
		}
		return nil, nil, list.Err()
	}
	misfits, err := misfits(&out, g)
	if err != nil || len(misfits) > 0 {
		return nil, misfits, err
	}
	if err := lower.Lower(&out, g); err != nil {
		return nil, nil, err
	}
	if p.Memory != nil {
		m := planir.MemoryOf(&out)
		if !t.Emulator {
			m.Max = p.Memory.Max
		}
		out.Memory = &m
	}
	return &out, nil, nil
}

// misfits are the decisions of a plan that its processors do not execute.
func misfits(p *planir.Plan, g *models.Graph) (out []misfit, err error) {
	var rows []int
	for _, d := range p.Decisions {
		if !slices.Contains(rows, d.Rows) {
			rows = append(rows, d.Rows)
		}
	}
	slices.Sort(rows)
	batch := g.Batch()
	seen := map[*planir.Decision]bool{}
	for _, r := range rows {
		of := g
		if r > 1 && p.Decodes(r) {
			of = &batch
		}
		sections, err := lower.Expand(of, r, p.MaxContext, p.KV, func(node string) op.Scheme {
			for _, at := range []int{r, 1} {
				if d := p.DecisionFor(node, at); d != nil {
					return d.Scheme
				}
			}
			return op.A32W32 // reported by lower
		})
		if err != nil {
			return nil, err
		}
		for i := range sections {
			for j := range sections[i].Nodes {
				n := &sections[i].Nodes[j]
				d := p.DecisionFor(n.Name, r)
				if d == nil || seen[d] {
					continue
				}
				seen[d] = true
				if _, err := lower.Cut(&sections[i], n, d, p.Proc); err != nil {
					out = append(out, misfit{decision: d, what: fmt.Sprintf("%s at %d rows", d.Node, d.Rows), proc: d.Shares[0].Proc, reason: err})
				}
			}
		}
	}
	return out, nil
}

// able lists the processors of a plan that execute a decision alone, in their order; those of skip are left out.
func able(p []planir.Proc, d *planir.Decision, kinds []op.Kind, skip ...string) (out []string) {
	for i := range p {
		q := &p[i]
		if slices.Contains(skip, q.Name) {
			continue
		}
		lacks := func(k op.Kind) bool { return len(q.Kinds) > 0 && !slices.Contains(q.Kinds, k) }
		if slices.ContainsFunc(kinds, lacks) || d.Scheme != "" && !slices.Contains(q.Schemes, d.Scheme) {
			continue
		}
		out = append(out, fmt.Sprintf("%q", q.Name))
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
