package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
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
	"github.com/hetc/hetc/solver/workload"
)

func newExplain(s *cli.Streams) *cobra.Command {
	var in inputs
	var work working
	var cal, most, loads string
	var only []string
	c := &cobra.Command{
		Use:   "explain plan.yaml [WHAT]",
		Short: "explain why a plan looks the way it does, and what anything else would have cost",
		Long: `Without WHAT: what runs where, how much that gains over the best single processor, what bounds it, and the next best
plans; then every decision with its shares. WHAT may be

  limits            which limits bind, and what relaxing each would buy: by 10 % or the next step that changes
                    anything, and without it
  decode            where the time of a token goes
  @256, prefill@256 a bucket: which prompts use it, and what prefill would cost without it and with one more
  tiers             capacity tiers of experts (mixtures of experts); with --loads which of their limits bind, and what
                    relaxing each would buy
  layers.ffn_down@256
                    an operator at a number of rows: every strategy and what it would have cost, cheapest first

With the inputs of solve (--soc, --record or --costs, --model, --workload, --calibration, --loads) questions are answered by solving again, and
processors that cannot execute an operator are listed with the reason; without them only what the plan stores is told, and it
says so.

With --soc of a probed machine predicted times are compared with what its processors allow: of their peak rate or of their
memory bandwidth, whichever bounds the operator. More than 100 % means operands in a cache. Times that the costs hold as
measured are labelled so.

` + cli.ExitCodes,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			p, err := plantext.Read(args[0])
			if err != nil {
				return err
			}
			var soc *socs.SoC
			if name := cmp.Or(in.target, in.soc); name != "" {
				if soc, err = socOf(p, name); err != nil {
					return err
				}
			}
			what := ""
			if len(args) == 2 {
				what = args[1]
			}
			ask, err := asked(p, what)
			if err != nil {
				return err
			}
			var input *solver.Input
			if in.rec != "" || in.costs != "" || in.model != "" || in.workload != "" {
				if input, err = in.open(c); err != nil {
					return err
				}
				defer input.Model.Close()
				if loads != "" {
					if input.Loads, err = workload.ReadLoads(loads); err != nil {
						return err
					}
				}
				if err := again(s, p, input, cal, most, only); err != nil {
					return err
				}
			}
			if input != nil {
				end, err := work.begin(s, input)
				if err != nil {
					return err
				}
				defer end()
			}
			x := explaining{s, c.Context(), p, soc, input, nil, args[0]}
			switch {
			case loads == "":
			case input == nil:
				return diag.New(diag.ClassUsage, "explain: --loads is one of the inputs of solve, and the others are missing").
					WithHint("give --soc, --costs (or --record), --model and --workload too, as for hetc solve")
			default:
				x.loads, input.Loads = input.Loads, nil // only tiers are solved again with it
			}
			switch {
			case ask.node != "":
				return x.operator(ask.node, ask.rows)
			case ask.what == "limits":
				return x.limits()
			case ask.what == "tiers":
				return x.tiers()
			case ask.program != "" && !p.Decodes(ask.rows):
				return x.bucket(ask.rows)
			case ask.program != "":
				return x.program(ask.program)
			}
			return x.plan()
		},
	}
	in.flags(c)
	work.flags(c)
	c.Flags().StringVar(&cal, "calibration", "", "calibration that the plan was solved with")
	c.Flags().StringVar(&loads, "loads", "", "loads of experts that the plan's tiers were solved with")
	c.Flags().StringVar(&most, "max-memory", "", "bound that the plan was solved with; default: what the plan says")
	c.Flags().StringSliceVar(&only, "only", nil, "processors that the plan was solved for alone")
	return c
}

// question is what explain is asked.
type question struct {
	what, program, node string
	rows                int
}

// asked reads WHAT. A word that the plan has nothing of is an error of class ClassUsage that names the nearest.
func asked(p *planir.Plan, what string) (question, error) {
	if what == "" || what == "limits" || what == "tiers" {
		return question{what: what}, nil
	}
	node, at, _ := strings.Cut(what, "@")
	rows := 1
	if at != "" {
		var err error
		if rows, err = strconv.Atoi(at); err != nil || rows < 1 {
			return question{}, diag.New(diag.ClassUsage, "explain %q: %q is not a number of rows", what, at).WithHint("write NODE@ROWS, such as layers.ffn_down@256")
		}
	}
	var programs, words []string
	for _, ph := range p.Program.Programs {
		programs = append(programs, ph.Name)
		switch {
		case node == "" && ph.Rows == rows, ph.Name == what, node == ph.Phase && at != "" && ph.Rows == rows:
			return question{program: ph.Name, rows: ph.Rows}, nil
		}
		words = append(words, ph.Name)
	}
	if node == "" || node == "prefill" || node == "decode" {
		return question{}, diag.New(diag.ClassUsage, "explain %q: the plan has no such program", what).WithHint("it has %s", strings.Join(programs, ", "))
	}
	nodes := map[string]bool{}
	for _, d := range p.Decisions {
		if d.Node == node {
			return question{node: node, rows: rows}, nil // the number of rows is looked at with the decisions
		}
		nodes[d.Node] = true
	}
	words = append(append(words, "limits", "tiers"), slices.Sorted(maps.Keys(nodes))...)
	hint := diag.DidYouMean(what, words)
	if near := diag.DidYouMean(node, words); hint == "" {
		hint = near
	}
	if hint == "" {
		hint = "WHAT is limits, tiers, one of " + strings.Join(programs, ", ") + ", or one of " + strings.Join(slices.Sorted(maps.Keys(nodes)), ", ") + " with @ROWS"
	}
	return question{}, diag.New(diag.ClassUsage, "explain %q: the plan has no such operator, program or section", what).WithHint("%s", hint)
}

// again completes the inputs for solving again, and tells where they are not those of the plan.
func again(s *cli.Streams, p *planir.Plan, input *solver.Input, cal, most string, only []string) error {
	var err error
	if input.Calibration, err = readCalibration(cal); err != nil {
		return err
	}
	if input.MaxMemory, err = maxMemory(most); err != nil {
		return err
	}
	if p.Memory != nil && most == "" && int64(input.Workload.Memory) != p.Memory.Max {
		input.MaxMemory = p.Memory.Max
	}
	input.Only = only
	if p.SoC.Target && !input.Targeted() {
		if err := input.ForTarget(); err != nil {
			return err
		}
	}
	differ, err := solver.SameInputs(p, input)
	if err != nil {
		return err
	}
	for _, kind := range differ {
		if kind == planir.CalibrationInput && cal == "" {
			return diag.New(diag.ClassInput, "explain: the plan was solved with a calibration, and none is given").WithHint("give it with --calibration")
		}
		s.Warnf("what was given as %s is not what the plan was solved with: what is solved again differs for that reason too", kind)
	}
	return nil
}

// explaining is one run of explain. soc, input and loads may be nil.
type explaining struct {
	s     *cli.Streams
	ctx   context.Context
	p     *planir.Plan
	soc   *socs.SoC
	input *solver.Input
	loads *workload.Loads // nil: tiers are not solved again
	file  string
}

// stored tells that nothing was solved again.
func (x *explaining) stored(what string) {
	if x.input == nil {
		x.s.Printf("%s: give --soc, --costs (or --record), --model and --workload, as for hetc solve\n", what)
	}
}

// title is the first line of every answer.
func (x *explaining) title(what string) {
	from := ""
	if times := x.p.SoC.Times(); times != "" {
		from = ", from " + times
	}
	x.s.Printf("%s on %s%s\n", what, x.p.SoC.Name, from)
}

func (x *explaining) operator(node string, rows int) error {
	p, s, soc := x.p, x.s, x.soc
	list, err := solver.Explain(p, node, rows, x.input)
	if err != nil {
		return err
	}
	x.title(fmt.Sprintf("%s@%d", node, rows))
	if x.input == nil {
		s.Printf("stored alternatives only: the best of each strategy; give --soc, --costs and --model to price every choice again\n")
	}
	var said []string
	for _, c := range compiledFor(p, rows) {
		if c.Node == node {
			said = append(said, compiledWords([]planir.Compiled{c})...)
		}
	}
	for _, line := range said {
		s.Printf("- %s\n", line)
	}
	roofs := roofs{p, soc, nil}
	if x.input != nil {
		roofs.costs = x.input.Costs
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
	return s.Result(map[string]any{"node": node, "rows": rows, "simulated": p.SoC.Simulated, "stored_only": x.input == nil, "choices": choices, "compiled": said})
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
			if sh.Form != "" {
				x += " as " + string(sh.Form)
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
