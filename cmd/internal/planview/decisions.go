package planview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
)

// RoofOf compares ns nanoseconds of a decision's operators, executed by procs, with what the hardware allows; nil where
// the SoC does not tell or is nil itself.
func RoofOf(plan *planir.Plan, soc *socs.SoC, decision *planir.Decision, procs []string, ns int64) *roofline.Roof {
	if soc == nil {
		return nil
	}
	roof, ok := roofline.RoofOf(soc, procs, operators(plan, decision), ns)
	if !ok {
		return nil
	}
	return &roof
}

// RoofText writes a share of what the hardware allows, "-" where the SoC does not tell.
func RoofText(roof *roofline.Roof) string {
	if roof == nil {
		return "-"
	}
	return roof.String()
}

// NoteProbe says below a table of roofs what "above the probed" means, where it has that.
func NoteProbe(ui *cli.Streams, roofs []*roofline.Roof) {
	if slices.ContainsFunc(roofs, func(roof *roofline.Roof) bool { return roof != nil && roof.AboveProbe() }) {
		ui.Printf("above the probed: measured faster than the probe, during which the machine was busy; probe again\n")
	}
}

// operators returns those that the plan's program executes for a decision, one per share, without those of attention.
func operators(p *planir.Plan, decision *planir.Decision) (ops []op.Op) {
	graphs := map[string]*op.Graph{}
	for i := range p.Program.Graphs {
		graphs[p.Program.Graphs[i].Name] = &p.Program.Graphs[i].Graph
	}
	for _, ph := range p.Program.Programs {
		// A decision is for all programs of its number of rows, which execute the same pieces.
		if ph.Rows != decision.Rows {
			continue
		}
		for _, sec := range ph.Sections {
			for _, lane := range sec.Lanes {
				for _, st := range lane.Steps {
					// Only steps that execute a share have an expected time; the others move data or wait.
					if graph := graphs[st.Run]; graph != nil && st.Node == decision.Node && st.ExpectNS > 0 {
						for _, node := range graph.Nodes {
							// Graphs of attention name the whole cache, and the time is that of the prompts'
							// mean context, which plans do not store: the two cannot be compared.
							if !node.Op.Kind.Has("context") {
								ops = append(ops, node.Op)
							}
						}
					}
				}
			}
		}
	}
	return ops
}

// ShowDecisions lists per operator and number of rows the strategy, the shares and what their time rests on. With the
// SoC it also compares the predicted time with the hardware's bound, and returns that by operator@rows.
func ShowDecisions(ui *cli.Streams, p *planir.Plan, soc *socs.SoC) map[string]*roofline.Roof {
	var rows [][]string
	var roofs []*roofline.Roof
	shown := map[string]*roofline.Roof{}
	for i := range p.Decisions {
		decision := &p.Decisions[i]
		var shares, procs []string
		for _, sh := range decision.Shares {
			text := sh.Proc
			// Whole operators have one share without a range.
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
			strings.Join(shares, ", "), fmt.Sprintf("%.1f", float64(decision.PredictNS)/1e3),
			cmp.Or(string(decision.Source), "-")}
		if soc != nil {
			roof := RoofOf(p, soc, decision, procs, decision.PredictNS)
			if roof != nil {
				shown[name] = roof
			}
			roofs = append(roofs, roof)
			line = append(line, RoofText(roof))
		}
		rows = append(rows, line)
	}
	header := []string{"operator@rows", "strategy", "scheme", "axis", "shares", ">predicted us", "source"}
	if soc != nil {
		header = append(header, ">predicted share of roof")
	}
	ui.Table(header, rows)
	NoteProbe(ui, roofs)
	return shown
}
