package main

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
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
	var out, cal, most string
	var only []string
	c := &cobra.Command{
		Use:   "solve --soc soc.yaml (--record rec.jsonl | --costs costs.yaml) --model DIR -o plan.yaml",
		Short: "decide which processor computes which part of every operator",
		Long: `Solves the tensor partition of every section and number of rows to proved optimality under the cost model
and writes the plan: decisions with their alternatives and costs, predictions with intervals, and the
program. The plan is never predicted to be slower than the best single processor. The same inputs give the
same bytes.

Precision stays as stored unless the workload permits other schemes, by name or by a limit of what they may
lose (quality.max_kl), which needs the calibration of hetc calibrate. Every class of weights gets its own scheme in
prefill and in decode. What the calibration predicts is verified with hetc quality once a bundle is written.

--max-memory bounds what a process that executes the plan holds, all of it: weights, cache, buffers, program.
--only leaves to other processors only what none of those named can execute, and of them only to those on the same cores.

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
			if cal != "" {
				if input.Calibration, err = calibration.Read(cal); err != nil {
					return err
				}
			}
			if most != "" {
				b, err := unit.ParseBytes(most)
				if err != nil || b <= 0 {
					return diag.New(diag.ClassUsage, "--max-memory %q is no number of bytes above 0", most).WithHint("write it with a unit: 1.5GiB, 900MiB")
				}
				input.MaxMemory = int64(b)
			}
			input.Only = only
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
			showLimits(s, r.Plan)
			return s.Result(map[string]any{"file": out, "digest": digest, "unchanged": same, "simulated": r.Plan.SoC.Simulated,
				"quality": r.Plan.Quality, "memory": r.Plan.Memory,
				"predictions": r.Plan.Predictions, "solver": r.Plan.Solver, "expected_ns": r.ExpectedNS})
		},
	}
	in.flags(c)
	c.Flags().StringVarP(&out, "output", "o", "", "plan to write")
	c.Flags().StringVar(&cal, "calibration", "", "calibration of hetc calibrate: what each scheme costs")
	c.Flags().StringSliceVar(&only, "only", nil, "only this processor executes what it can; may be repeated")
	c.Flags().StringVar(&most, "max-memory", "", "most memory of a process that executes the plan, such as 1.5GiB; default: the workload's bound")
	return c
}

// showLimits tells what a plan is predicted to lose and to hold.
func showLimits(s *cli.Streams, p *planir.Plan) {
	for _, q := range p.Quality {
		limit := ""
		if q.MaxKL > 0 {
			limit = fmt.Sprintf(" of at most %.3g", q.MaxKL)
		}
		s.Printf("%s: predicted KL %.3g%s nats a token, from calibration\n", q.Phase, q.KL, limit)
	}
	showStatic(s, p)
	if m := p.Memory; m != nil {
		limit := ""
		if m.Max > 0 {
			limit = fmt.Sprintf(" of at most %v", unit.Bytes(m.Max))
		}
		s.Printf("memory: predicted %v%s: %s\n", unit.Bytes(m.Total), limit, m)
	}
}

// showStatic tells in which phases activations have static scales.
func showStatic(s *cli.Streams, p *planir.Plan) {
	count := map[string]int{}
	for i := range p.Decisions {
		if d := &p.Decisions[i]; d.Scheme.Static() {
			phase := "prefill"
			if p.Decodes(d.Rows) {
				phase = "decode"
			}
			count[phase+" "+string(d.Scheme)]++
		}
	}
	for _, what := range slices.Sorted(maps.Keys(count)) {
		s.Printf("static scales: %s in %d decisions: activations that exceed what the calibration saw are clipped\n", what, count[what])
	}
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
	header = append(header, ">best single / plan", ">tokens/s")
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
		row = append(row, gain)
		if i := slices.IndexFunc(p.Program.Programs, func(ph planir.Phase) bool { return ph.Name == pr.Program }); i >= 0 {
			row = append(row, fmt.Sprintf("%.1f", float64(p.Program.Programs[i].Rows)*1e9/float64(max(1, pr.PlanNS))))
		}
		rows = append(rows, row)
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
		rows = append(rows, []string{x.Problem, x.Engine, x.Status, fmt.Sprintf("%.1f", float64(x.ObjectiveNS)/1e3), fmt.Sprintf("%.1f", float64(x.BoundNS)/1e3), strconv.Itoa(x.Choices)})
	}
	s.Printf("\n")
	s.Table([]string{"problem", "engine", "status", ">objective us", ">bound us", ">choices"}, rows)
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
