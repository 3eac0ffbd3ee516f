package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
)

func newExplain(s *cli.Streams) *cobra.Command {
	var in inputs
	c := &cobra.Command{
		Use:   "explain plan.yaml [OP]",
		Short: "show what was decided and what every alternative would have cost",
		Long: `Without OP: every decision with its shares. With OP, such as layers.ffn_down@256: every strategy for that
operator and what it would have cost, cheapest first. With the inputs of solve (--soc, --record or --costs,
--model, --workload) everything is priced again, and processors that cannot execute the operator are listed
with the reason; without them only the alternatives stored in the plan are shown, and it says so.

With --soc of a probed machine the predicted times of matrix products and attentions are compared with what its
processors allow: of their peak rate or of their memory bandwidth, whichever bounds the operator. More
than 100 % means operands in a cache. Times that the costs hold as measured are labelled so.

` + cli.ExitCodes,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			p, err := plantext.Read(args[0])
			if err != nil {
				return err
			}
			var soc *socs.SoC
			if in.soc != "" {
				if soc, err = socOf(p, in.soc); err != nil {
					return err
				}
			}
			if len(args) == 1 {
				return explainPlan(s, p, soc)
			}
			node, at, _ := strings.Cut(args[1], "@")
			rows := 1
			if at != "" {
				if rows, err = strconv.Atoi(at); err != nil || rows < 1 {
					return diag.New(diag.ClassUsage, "explain %q: %q is not a number of rows", args[1], at).WithHint("write NODE@ROWS, such as layers.ffn_down@256")
				}
			}
			var input *solver.Input
			if in.rec != "" || in.costs != "" || in.model != "" || in.workload != "" {
				if input, err = in.open(c); err != nil {
					return err
				}
				defer input.Model.Close()
			}
			list, err := solver.Explain(p, node, rows, input)
			if err != nil {
				return err
			}
			simulated := ""
			if p.SoC.Simulated {
				simulated = ", from simulated times"
			}
			s.Printf("%s@%d on %s%s\n", node, rows, p.SoC.Name, simulated)
			if input == nil {
				s.Printf("stored alternatives only: the best of each strategy; give --soc, --costs and --model to price every choice again\n")
			}
			roofs := roofs{p, soc, nil}
			if input != nil {
				roofs.costs = input.Costs
			}
			var table [][]string
			choices := make([]choice, len(list))
			for i, r := range list {
				choices[i] = choice{r, roofs.of(p.DecisionFor(node, rows), r.Procs, r.NS)}
				mark := ""
				if r.Chosen {
					mark = "chosen"
				}
				if r.Note != "" {
					mark = strings.TrimSpace(mark + " " + r.Note)
				}
				us := "-" // it cannot be executed so
				if r.NS > 0 {
					us = fmt.Sprintf("%.1f", float64(r.NS)/1e3)
				}
				line := []string{string(r.Strategy), r.Shares, us}
				if soc != nil {
					line = append(line, choices[i].Roof.text(true))
				}
				table = append(table, append(line, mark))
			}
			header := []string{"strategy", "shares", ">us"}
			if soc != nil {
				header = append(header, ">roof")
			}
			s.Table(append(header, ""), table)
			return s.Result(map[string]any{"node": node, "rows": rows, "simulated": p.SoC.Simulated, "stored_only": input == nil, "choices": choices})
		},
	}
	in.flags(c)
	return c
}

// choice is a row of explain.
type choice struct {
	solver.Row
	Roof *roof `json:"roof,omitempty"`
}

// roof is a share of what the hardware allows, and whether the time it was computed from is a measured one.
type roof struct {
	roofline.Roof
	Source string `json:"source"` // measured, predicted
}

func (r *roof) text(source bool) string {
	if r == nil {
		return "-"
	}
	if source {
		return fmt.Sprintf("%s, %s", r.Roof, r.Source)
	}
	return r.String()
}

// roofs knows what the processors of a plan allow. soc and costs may be nil.
type roofs struct {
	p     *planir.Plan
	soc   *socs.SoC
	costs *roofline.Costs
}

// of compares ns nanoseconds of a decision's operators, executed by procs, with what they allow; nil where the SoC does
// not tell.
func (r *roofs) of(d *planir.Decision, procs []string, ns int64) *roof {
	if r.soc == nil {
		return nil
	}
	ops := operators(r.p, d)
	x, ok := roofline.RoofOf(r.soc, procs, ops, ns)
	if !ok {
		return nil
	}
	out := &roof{x, "predicted"}
	if r.costs != nil && len(procs) == 1 && len(ops) == 1 {
		if t, err := r.costs.Op(procs[0], ops[0], true); err == nil && t.Source == roofline.Measured && t.NS == ns {
			out.Source = string(roofline.Measured)
		}
	}
	return out
}

// operators are those that the plan's program executes for a decision, one per share.
func operators(p *planir.Plan, d *planir.Decision) (ops []op.Op) {
	graphs := map[string]*op.Graph{}
	for i := range p.Program.Graphs {
		graphs[p.Program.Graphs[i].Name] = &p.Program.Graphs[i].Graph
	}
	for _, ph := range p.Program.Programs {
		if ph.Rows != d.Rows {
			continue
		}
		for _, sec := range ph.Sections {
			for _, l := range sec.Lanes {
				for _, st := range l.Steps {
					if g := graphs[st.Run]; g != nil && st.Node == d.Node && st.ExpectNS > 0 {
						for _, n := range g.Nodes {
							ops = append(ops, n.Op)
						}
					}
				}
			}
		}
	}
	return ops
}

func explainPlan(s *cli.Streams, p *planir.Plan, soc *socs.SoC) error {
	showPredictions(s, p)
	showLimits(s, p)
	s.Printf("\n")
	shown := showDecisions(s, p, soc)
	var rows [][]string
	for _, x := range p.Solver {
		rows = append(rows, []string{x.Problem, x.Status, fmt.Sprintf("%.1f", float64(x.ObjectiveNS)/1e3), fmt.Sprintf("%.1f", float64(x.BoundNS)/1e3), strconv.Itoa(x.Choices)})
	}
	s.Printf("\n")
	s.Table([]string{"problem", "status", ">objective us", ">bound us", ">choices"}, rows)
	doc := map[string]any{"predictions": p.Predictions, "decisions": p.Decisions, "solver": p.Solver, "quality": p.Quality, "memory": p.Memory, "simulated": p.SoC.Simulated}
	if soc != nil {
		doc["roofs"] = shown
	}
	return s.Result(doc)
}

// showDecisions lists per operator and number of rows the strategy and the shares, and with the SoC what share of
// the hardware's bound the predicted time is, which it returns by operator@rows.
func showDecisions(s *cli.Streams, p *planir.Plan, soc *socs.SoC) map[string]*roof {
	var rows [][]string
	roofs, shown := roofs{p, soc, nil}, map[string]*roof{}
	for i := range p.Decisions {
		d := &p.Decisions[i]
		var shares, procs []string
		for _, sh := range d.Shares {
			x := sh.Proc
			if d.Axis != planir.AxisNone {
				x += fmt.Sprintf(" %d:%d", sh.From, sh.To)
			}
			shares = append(shares, x)
			if !slices.Contains(procs, sh.Proc) {
				procs = append(procs, sh.Proc)
			}
		}
		name := fmt.Sprintf("%s@%d", d.Node, d.Rows)
		line := []string{name, string(d.Strategy), string(d.Scheme), string(d.Axis), strings.Join(shares, ", "), fmt.Sprintf("%.1f", float64(d.PredictNS)/1e3)}
		if soc != nil {
			r := roofs.of(d, procs, d.PredictNS)
			if r != nil {
				shown[name] = r
			}
			line = append(line, r.text(false))
		}
		rows = append(rows, line)
	}
	header := []string{"operator@rows", "strategy", "scheme", "axis", "shares", ">predicted us"}
	if soc != nil {
		header = append(header, ">predicted share of roof")
	}
	s.Table(header, rows)
	return shown
}
