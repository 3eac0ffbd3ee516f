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

// buildContent makes everything that is written: for the plan itself, or for what it becomes on the target. The report
// is nil when no group is compiled.
//
// What a target does not execute, or its compiler refuses, goes to the control processor, and everything is made
// again. Each round moves at least one decision there and none back, so the loop ends.
func (o *Options) buildContent(ctx context.Context) (*Content, *Report, error) {
	graph := o.Model.Graph()
	var fallen []planir.Fallback
	for {
		plan, bad, err := o.targetPlan(&graph, fallen)
		if err != nil {
			return nil, nil, err
		}
		if len(bad) == 0 {
			content, refused, err := o.compilePlan(ctx, plan)
			if err != nil {
				return nil, nil, err
			}
			if len(refused) == 0 {
				report, err := content.report(o)
				if err != nil {
					return nil, nil, errors.Join(err, content.Close())
				}
				return content, report, nil
			}
			// A refused graph stands for decisions; only decisions can be moved.
			for i := range refused {
				bad = append(bad, decisionsOf(plan, &refused[i])...)
			}
			if err := content.Close(); err != nil {
				return nil, nil, err
			}
		}
		if fallen, err = o.fallBack(&graph, bad, fallen); err != nil {
			return nil, nil, err
		}
	}
}

// targetPlan returns the plan that is emitted, with the decisions of fallen on the control processor; or the decisions
// that the target does not execute.
func (o *Options) targetPlan(graph *models.Graph, fallen []planir.Fallback) (*planir.Plan, []misfit, error) {
	if o.Target == nil {
		return o.Plan, nil, nil
	}
	plan, bad, err := retarget(o.Plan, graph, o.Target, fallen)
	if err != nil || len(bad) > 0 {
		return nil, bad, err
	}
	if err := check.Plan(plan, o.Model, nil).Err(); err != nil {
		return nil, nil, fmt.Errorf("emit for target %q: %w", o.Target.SoC, err)
	}
	return plan, nil, nil
}

// compilePlan compiles what a plan needs. The content is open even where graphs were refused.
func (o *Options) compilePlan(ctx context.Context, plan *planir.Plan) (*Content, []refusal, error) {
	content, err := newContent(plan, o.Model, o.Calibration)
	if err != nil {
		return nil, nil, err
	}
	if err := content.compile(ctx, o.Compilers); err != nil {
		return nil, nil, errors.Join(err, content.Close())
	}
	watch := o.Watch
	if watch == nil {
		watch = func(Event) {}
	}
	watch(Event{})
	refused, err := content.compileGroups(ctx, &compileOptions{
		compilers: o.Compilers, trialDriver: o.Oracle, watch: watch, memo: o.Memo, scratch: o.Scratch,
	})
	watch(Event{Done: true})
	if err != nil {
		return nil, nil, errors.Join(err, content.Close())
	}
	return content, refused, nil
}

// decisionsOf returns the decisions whose steps run a graph that was refused, each once.
func decisionsOf(plan *planir.Plan, refused *refusal) (out []misfit) {
	what := fmt.Sprintf("graph %q", refused.graph.Name)
	if refused.layer >= 0 {
		what += fmt.Sprintf(" with the weights of layer %d", refused.layer)
	}
	for i := range plan.Program.Programs {
		program := &plan.Program.Programs[i]
		for _, node := range nodesOf(program, refused.graph.Name) {
			decision := plan.DecisionFor(node, program.Rows)
			if decision == nil {
				decision = plan.DecisionFor(node, 1) // the head
			}
			if decision == nil || slices.ContainsFunc(out, func(m misfit) bool { return m.decision == decision }) {
				continue
			}
			out = append(out, misfit{decision: decision, what: what, proc: refused.graph.Proc, reason: refused.reason})
		}
	}
	return out
}

// nodesOf lists the nodes that a program computes with a graph.
func nodesOf(program *planir.PhaseProgram, graph string) (out []string) {
	for _, section := range program.Sections {
		for _, lane := range section.Lanes {
			for _, step := range lane.Steps {
				if step.Run == graph {
					out = append(out, step.Nodes()...)
				}
			}
		}
	}
	return out
}

// fallBack gives decisions to the control processor where that is allowed and it executes them. If one cannot go
// there, it returns an error that lists all of them. The result is in the order of the plan's decisions.
func (o *Options) fallBack(graph *models.Graph, bad []misfit, fallen []planir.Fallback) ([]planir.Fallback, error) {
	control, procs := o.Plan.SoC.Control, o.Plan.Procs
	if o.Target != nil {
		procs = o.Target.Procs
	}
	kinds := kindsOf(graph)
	var list diag.List
	said := map[string]bool{}
	more := slices.Clone(fallen)
	for _, misfit := range bad {
		decision := misfit.decision
		others := processorsFor(procs, decision, kinds[decision.Node], misfit.proc)
		helps := slices.Contains(others, fmt.Sprintf("%q", control)) && misfit.proc != control
		if o.AllowFallback && o.Target != nil && helps && !fellBack(decision, fallen) {
			from := o.Plan.DecisionFor(decision.Node, decision.Rows).ShareText()
			fallback := planir.Fallback{Node: decision.Node, Rows: decision.Rows, From: from,
				Reason: oneLine(misfit.reason)}
			more = append(more, fallback)
			continue
		}
		// Several decisions may fail for one graph: it is named once.
		if !said[misfit.what] {
			said[misfit.what] = true
			list = append(list, o.notExecutedError(&misfit, others, helps))
		}
	}
	if len(list) > 0 {
		return nil, list.Err()
	}
	// The order must not depend on the order of refusals, which varies with the goroutines.
	place := func(f planir.Fallback) int {
		return slices.IndexFunc(o.Plan.Decisions,
			func(d planir.Decision) bool { return d.Node == f.Node && d.Rows == f.Rows })
	}
	slices.SortFunc(more, func(a, b planir.Fallback) int { return place(a) - place(b) })
	return more, nil
}

// notExecutedError says why a decision is not executed, and by which processors it could be.
func (o *Options) notExecutedError(m *misfit, others []string, controlHelps bool) *diag.Diagnostic {
	way := "no other processor of the plan executes it"
	if len(others) > 0 {
		way = "could be executed by " + strings.Join(others, ", ")
	}
	problem := diag.New(diag.ClassOr(m.reason, diag.ClassInfeasible), "emit %s for processor %q: %w; %s",
		m.what, m.proc, m.reason, way)
	if controlHelps && o.Target != nil {
		problem.WithHint("--allow-fallback gives such operators to %q, and says so in the plan and the report; "+
			"or solve again without them on %q", o.Plan.SoC.Control, m.proc)
	}
	return problem
}

// kindsOf returns the kinds of the operators that nodes are made of, by the names that decisions have for them.
func kindsOf(g *models.Graph) map[string][]op.Kind {
	out := map[string][]op.Kind{}
	for _, section := range g.Sections {
		for _, node := range section.Nodes {
			name := section.Name + "." + node.Name
			for _, operator := range node.Ops {
				out[name] = append(out[name], operator.Kind)
			}
			for added, kind := range lower.Added(name, node.Ops[len(node.Ops)-1].Kind) {
				out[added] = []op.Kind{kind}
			}
		}
	}
	return out
}

// oneLine returns an error as a plan records it: printable, of one line, and not too long.
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
