package emit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
)

// content makes everything that is written: of the plan itself, or of what it becomes for the target. The report is nil when
// nothing is baked.
func (o *Options) content(ctx context.Context) (*Content, *Report, error) {
	options := &compileOptions{compilers: o.Compilers, trialDriver: o.Oracle, watch: o.Watch, memo: o.Memo, scratch: o.Scratch}
	announce := func(done bool) {
		if options.watch != nil {
			options.watch(Event{Done: done})
		}
	}
	graph := o.Model.Graph()
	var fallen []planir.Fallback
	for {
		plan := o.Plan
		var bad []misfit
		if o.Target != nil {
			var err error
			if plan, bad, err = retarget(o.Plan, &graph, o.Target, fallen); err != nil {
				return nil, nil, err
			}
		}
		var content *Content
		if len(bad) == 0 {
			if o.Target != nil {
				if err := check.Plan(plan, o.Model, nil).Err(); err != nil {
					return nil, nil, fmt.Errorf("emit for target %q: %w", o.Target.SoC, err)
				}
			}
			var err error
			if content, err = newContent(plan, o.Model, o.Calibration); err != nil {
				return nil, nil, err
			}
			if err = content.compile(ctx, o.Compilers); err != nil {
				return nil, nil, errors.Join(err, content.Close())
			}
			announce(false)
			refused, err := content.compileGroups(ctx, options)
			announce(true)
			if err != nil {
				return nil, nil, errors.Join(err, content.Close())
			}
			if len(refused) == 0 {
				report, err := content.report(o)
				if err != nil {
					return nil, nil, errors.Join(err, content.Close())
				}
				return content, report, nil
			}
			for i := range refused {
				bad = append(bad, decisionsOf(plan, &refused[i])...)
			}
			if err := content.Close(); err != nil {
				return nil, nil, err
			}
		}
		more, err := o.fallBack(&graph, bad, fallen)
		if err != nil {
			return nil, nil, err
		}
		fallen = more
	}
}

// decisionsOf are the decisions whose steps run a graph that was refused.
func decisionsOf(plan *planir.Plan, refused *refusal) (out []misfit) {
	layers := ""
	if refused.layer >= 0 {
		layers = fmt.Sprintf(" with the weights of layer %d", refused.layer)
	}
	for i := range plan.Program.Programs {
		ph := &plan.Program.Programs[i]
		for _, section := range ph.Sections {
			for _, lane := range section.Lanes {
				for _, st := range lane.Steps {
					if st.Run != refused.graph.Name {
						continue
					}
					for _, node := range st.Nodes() {
						decision := plan.DecisionFor(node, ph.Rows)
						if decision == nil {
							decision = plan.DecisionFor(node, 1) // the head
						}
						if decision != nil && !slices.ContainsFunc(out, func(m misfit) bool { return m.decision == decision }) {
							out = append(out, misfit{decision: decision, what: fmt.Sprintf("graph %q%s", refused.graph.Name, layers), proc: refused.graph.Proc, reason: refused.reason})
						}
					}
				}
			}
		}
	}
	return out
}

// fallBack gives decisions to the control processor if that is allowed and it executes them, and otherwise is the error that
// lists them all.
func (o *Options) fallBack(g *models.Graph, bad []misfit, fallen []planir.Fallback) ([]planir.Fallback, error) {
	control := o.Plan.SoC.Control
	procs := o.Plan.Procs
	if o.Target != nil {
		procs = o.Target.Procs
	}
	kinds := kindsOf(g)
	var list diag.List
	said := map[string]bool{}
	more := slices.Clone(fallen)
	for _, misfit := range bad {
		decision := misfit.decision
		others := able(procs, decision, kinds[decision.Node], misfit.proc)
		helps := slices.Contains(others, fmt.Sprintf("%q", control)) && misfit.proc != control
		again := slices.ContainsFunc(fallen, func(f planir.Fallback) bool { return f.Node == decision.Node && f.Rows == decision.Rows })
		if o.AllowFallback && o.Target != nil && helps && !again {
			original := o.Plan.DecisionFor(decision.Node, decision.Rows)
			more = append(more, planir.Fallback{Node: decision.Node, Rows: decision.Rows, From: original.ShareText(), Reason: oneLine(misfit.reason)})
			continue
		}
		if said[misfit.what] {
			continue
		}
		said[misfit.what] = true
		way := "no other processor of the plan executes it"
		if len(others) > 0 {
			way = "could be executed by " + strings.Join(others, ", ")
		}
		problem := diag.New(diag.ClassOr(misfit.reason, diag.ClassInfeasible), "emit %s for processor %q: %w; %s", misfit.what, misfit.proc, misfit.reason, way)
		if helps && o.Target != nil {
			_ = problem.WithHint("--allow-fallback gives such operators to %q, and says so in the plan and the report; or solve again without them on %q", control, misfit.proc)
		}
		list = append(list, problem)
	}
	if len(list) > 0 {
		return nil, list.Err()
	}
	slices.SortFunc(more, func(a, b planir.Fallback) int {
		at := func(f planir.Fallback) int {
			return slices.IndexFunc(o.Plan.Decisions, func(d planir.Decision) bool { return d.Node == f.Node && d.Rows == f.Rows })
		}
		return at(a) - at(b)
	})
	return more, nil
}

// kindsOf are the kinds of the operators that nodes are made of, by the names that decisions have for them.
func kindsOf(g *models.Graph) map[string][]op.Kind {
	out := map[string][]op.Kind{}
	for _, section := range g.Sections {
		for _, node := range section.Nodes {
			name := section.Name + "." + node.Name
			for _, operator := range node.Ops {
				out[name] = append(out[name], operator.Kind)
			}
			for _, quant := range lower.Quantising(name) {
				out[quant] = []op.Kind{op.QuantRows}
			}
		}
	}
	return out
}

// oneLine is an error as a plan records it: printable, of one line, and not too long.
func oneLine(err error) string {
	const most = 300
	text := strings.Join(strings.Fields(err.Error()), " ")
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
	if len(text) > most {
		text = text[:most-3] + "..."
	}
	return text
}
