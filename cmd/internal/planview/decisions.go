package planview

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
)

// Roof is a share of what the hardware allows, and whether the time it was computed from is a measured one.
type Roof struct {
	roofline.Roof
	Source string `json:"source"` // measured, predicted
}

// Text writes the share, with the source of its time where asked, "-" where the SoC does not tell.
func (r *Roof) Text(source bool) string {
	if r == nil {
		return "-"
	}
	if source {
		return fmt.Sprintf("%s, %s", r.Roof, r.Source)
	}
	return r.String()
}

// Roofs knows what the processors of a plan allow. soc and costs may be nil.
type Roofs struct {
	Plan  *planir.Plan
	SoC   *socs.SoC
	Costs *roofline.Costs
}

// Of compares ns nanoseconds of a decision's operators, executed by procs, with what they allow; nil where the SoC does
// not tell.
func (r *Roofs) Of(d *planir.Decision, procs []string, ns int64) *Roof {
	if r.SoC == nil {
		return nil
	}
	ops := operators(r.Plan, d)
	roof, ok := roofline.RoofOf(r.SoC, procs, ops, ns)
	if !ok {
		return nil
	}
	out := &Roof{roof, "predicted"}
	if r.Costs != nil && len(procs) == 1 && len(ops) == 1 {
		if predicted, err := r.Costs.Op(procs[0], ops[0], true); err == nil && predicted.Source == roofline.Measured &&
			predicted.NS == ns {
			out.Source = string(roofline.Measured)
		}
	}
	return out
}

// operators are those that the plan's program executes for a decision, one per share.
func operators(p *planir.Plan, decision *planir.Decision) (ops []op.Op) {
	graphs := map[string]*op.Graph{}
	for i := range p.Program.Graphs {
		graphs[p.Program.Graphs[i].Name] = &p.Program.Graphs[i].Graph
	}
	for _, ph := range p.Program.Programs {
		if ph.Rows != decision.Rows {
			continue
		}
		for _, sec := range ph.Sections {
			for _, lane := range sec.Lanes {
				for _, st := range lane.Steps {
					if graph := graphs[st.Run]; graph != nil && st.Node == decision.Node && st.ExpectNS > 0 {
						for _, node := range graph.Nodes {
							ops = append(ops, node.Op)
						}
					}
				}
			}
		}
	}
	return ops
}

// ShowDecisions lists per operator and number of rows the strategy and the shares, and with the SoC what share of
// the hardware's bound the predicted time is, which it returns by operator@rows.
func ShowDecisions(ui *cli.Streams, p *planir.Plan, soc *socs.SoC) map[string]*Roof {
	var rows [][]string
	roofs, shown := Roofs{p, soc, nil}, map[string]*Roof{}
	for i := range p.Decisions {
		decision := &p.Decisions[i]
		var shares, procs []string
		for _, sh := range decision.Shares {
			text := sh.Proc
			if decision.Axis != planir.AxisNone {
				text += fmt.Sprintf(" %d:%d", sh.From, sh.To)
			}
			if sh.Form != "" {
				text += " as " + string(sh.Form)
			}
			shares = append(shares, text)
			if !slices.Contains(procs, sh.Proc) {
				procs = append(procs, sh.Proc)
			}
		}
		name := fmt.Sprintf("%s@%d", decision.Node, decision.Rows)
		line := []string{name, string(decision.Strategy), string(decision.Scheme), string(decision.Axis),
			strings.Join(shares, ", "), fmt.Sprintf("%.1f", float64(decision.PredictNS)/1e3)}
		if soc != nil {
			roof := roofs.Of(decision, procs, decision.PredictNS)
			if roof != nil {
				shown[name] = roof
			}
			line = append(line, roof.Text(false))
		}
		rows = append(rows, line)
	}
	header := []string{"operator@rows", "strategy", "scheme", "axis", "shares", ">predicted us"}
	if soc != nil {
		header = append(header, ">predicted share of roof")
	}
	ui.Table(header, rows)
	return shown
}
