package main

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/exact"
)

// inputs are the flags that say what a plan is made from.
type inputs struct{ soc, rec, costs, model, workload string }

func (in *inputs) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&in.soc, "soc", "", "SoC file or catalog name")
	f.StringVar(&in.rec, "record", "", "record of hetc profile")
	f.StringVar(&in.costs, "costs", "", "costs of hetc fit")
	f.StringVar(&in.model, "model", "", "model directory or catalog name")
	f.StringVar(&in.workload, "workload", "", "workload file; default: prompts of any length, stored precision")
}

// open reads everything; the caller closes the model.
func (in *inputs) open(c *cobra.Command) (*solver.Input, error) {
	if err := cli.Required(c, "soc", "model"); err != nil {
		return nil, err
	}
	if (in.rec == "") == (in.costs == "") {
		return nil, diag.New(diag.ClassUsage, "%s: want one of --record and --costs", c.CommandPath()).
			WithHint("hetc profile makes a record, hetc fit makes costs from it")
	}
	var soc *socs.SoC
	var costs *roofline.Costs
	var err error
	if in.rec != "" {
		soc, _, costs, err = fit(in.soc, in.rec)
	} else if soc, err = socs.Open(in.soc); err == nil {
		costs, err = roofline.Open(in.costs)
	}
	if err != nil {
		return nil, err
	}
	w, err := readWorkload(in.workload)
	if err != nil {
		return nil, err
	}
	m, err := models.Open(in.model)
	if err != nil {
		return nil, err
	}
	return &solver.Input{Model: m, SoC: soc, Costs: costs, Workload: w, Engine: exact.Engine{}}, nil
}

func newSolve(s *cli.Streams) *cobra.Command {
	var in inputs
	var out string
	c := &cobra.Command{
		Use:   "solve --soc soc.yaml (--record rec.jsonl | --costs costs.yaml) --model DIR -o plan.yaml",
		Short: "decide which processor computes which part of every operator",
		Long: `Solves the tensor partition of every section and number of rows to proved optimality under the cost model
and writes the plan: decisions with their alternatives and costs, predictions with intervals, and the
program. The plan is never predicted to be slower than the best single processor. The same inputs give the
same bytes. Precision stays as stored unless the workload permits other schemes.

` + cli.ExitCodes,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := cli.Required(c, "output"); err != nil {
				return err
			}
			if err := wholefile.Writable(out); err != nil {
				return err
			}
			input, err := in.open(c)
			if err != nil {
				return err
			}
			defer input.Model.Close()
			r, err := solver.Solve(c.Context(), *input)
			if err != nil {
				return err
			}
			for _, w := range r.Warnings {
				s.Warnf("%s", w)
			}
			text, err := plantext.Encode(r.Plan)
			if err != nil {
				return err
			}
			digest, err := planir.Digest(r.Plan)
			if err != nil {
				return err
			}
			same := false
			if old, err := wholefile.Read(out, int64(len(text))); err == nil {
				same = bytes.Equal(old, text)
			}
			if same {
				s.Printf("%s: unchanged (same inputs)\n", out)
			} else {
				if err := wholefile.Write(out, text); err != nil {
					return err
				}
				wrote(s, out, "plan %.12s for %s on %s", digest, r.Plan.Model.Name, r.Plan.SoC.Name)
			}
			showPredictions(s, r.Plan)
			return s.Result(map[string]any{"file": out, "digest": digest, "unchanged": same, "simulated": r.Plan.SoC.Simulated,
				"predictions": r.Plan.Predictions, "solver": r.Plan.Solver, "expected_ns": r.ExpectedNS})
		},
	}
	in.flags(c)
	c.Flags().StringVarP(&out, "output", "o", "", "plan to write")
	return c
}

func showPredictions(s *cli.Streams, p *planir.Plan) {
	if len(p.Predictions) == 0 {
		return
	}
	header := []string{"program", ">plan ms", ">interval"}
	var procs []string // that execute some program alone
	for _, pr := range p.Predictions {
		for _, x := range pr.Singles {
			procs = append(procs, x.Proc)
		}
	}
	slices.Sort(procs)
	procs = slices.Compact(procs)
	for _, name := range procs {
		header = append(header, ">"+name+" ms")
	}
	header = append(header, ">best single / plan")
	ms := func(ns int64) string { return fmt.Sprintf("%.3f", float64(ns)/1e6) }
	var rows [][]string
	for _, pr := range p.Predictions {
		row := []string{pr.Program, ms(pr.PlanNS), ms(pr.LowNS) + ".." + ms(pr.HighNS)}
		best := int64(0)
		for _, name := range procs {
			k := slices.IndexFunc(pr.Singles, func(x planir.SingleTime) bool { return x.Proc == name })
			if k < 0 {
				row = append(row, "-")
				continue
			}
			ns := pr.Singles[k].NS
			row = append(row, ms(ns))
			if best == 0 || ns < best {
				best = ns
			}
		}
		gain := "-"
		if best > 0 {
			gain = fmt.Sprintf("%.2f", float64(best)/float64(pr.PlanNS))
		}
		rows = append(rows, append(row, gain))
	}
	what := "predicted"
	if p.SoC.Simulated {
		what = "predicted from simulated times"
	}
	s.Printf("%s:\n", what)
	s.Table(header, rows)
}

func newExplain(s *cli.Streams) *cobra.Command {
	var in inputs
	c := &cobra.Command{
		Use:   "explain plan.yaml [OP]",
		Short: "show what was decided and what every alternative would have cost",
		Long: `Without OP: every decision with its shares. With OP, such as layers.ffn_down@256: every strategy for that
operator and what it would have cost, cheapest first. With the inputs of solve (--soc, --record or --costs,
--model, --workload) everything is priced again, and processors that cannot execute the operator are listed
with the reason; without them only the alternatives stored in the plan are shown, and it says so.

` + cli.ExitCodes,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			p, err := plantext.Read(args[0])
			if err != nil {
				return err
			}
			if len(args) == 1 {
				return explainPlan(s, p)
			}
			node, at, _ := strings.Cut(args[1], "@")
			rows := 1
			if at != "" {
				if rows, err = strconv.Atoi(at); err != nil || rows < 1 {
					return diag.New(diag.ClassUsage, "explain %q: %q is not a number of rows", args[1], at).WithHint("write NODE@ROWS, such as layers.ffn_down@256")
				}
			}
			var input *solver.Input
			if in.soc != "" || in.rec != "" || in.costs != "" || in.model != "" || in.workload != "" {
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
			var table [][]string
			for _, r := range list {
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
				table = append(table, []string{string(r.Strategy), r.Shares, us, mark})
			}
			s.Table([]string{"strategy", "shares", ">us", ""}, table)
			return s.Result(map[string]any{"node": node, "rows": rows, "simulated": p.SoC.Simulated, "stored_only": input == nil, "choices": list})
		},
	}
	in.flags(c)
	return c
}

func explainPlan(s *cli.Streams, p *planir.Plan) error {
	showPredictions(s, p)
	s.Printf("\n")
	showDecisions(s, p)
	var rows [][]string
	for _, x := range p.Solver {
		rows = append(rows, []string{x.Problem, x.Engine, x.Status, fmt.Sprintf("%.1f", float64(x.ObjectiveNS)/1e3), fmt.Sprintf("%.1f", float64(x.BoundNS)/1e3), strconv.Itoa(x.Choices)})
	}
	s.Printf("\n")
	s.Table([]string{"problem", "engine", "status", ">objective us", ">bound us", ">choices"}, rows)
	return s.Result(map[string]any{"predictions": p.Predictions, "decisions": p.Decisions, "solver": p.Solver, "simulated": p.SoC.Simulated})
}

// showDecisions lists per operator and number of rows the strategy and the shares.
func showDecisions(s *cli.Streams, p *planir.Plan) {
	var rows [][]string
	for _, d := range p.Decisions {
		var shares []string
		for _, sh := range d.Shares {
			x := sh.Proc
			if d.Axis != planir.AxisNone {
				x += fmt.Sprintf(" %d:%d", sh.From, sh.To)
			}
			shares = append(shares, x)
		}
		rows = append(rows, []string{fmt.Sprintf("%s@%d", d.Node, d.Rows), string(d.Strategy), string(d.Scheme), string(d.Axis), strings.Join(shares, ", "), fmt.Sprintf("%.1f", float64(d.PredictNS)/1e3)})
	}
	s.Table([]string{"operator@rows", "strategy", "scheme", "axis", "shares", ">predicted us"}, rows)
}
