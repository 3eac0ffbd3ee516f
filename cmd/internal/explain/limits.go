package explain

import (
	"fmt"
	"strconv"

	"github.com/hetc/hetc/cmd/internal/planview"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/solver/explain"
)

// limits lists the limits that bind, and the gain of relaxing each.
func (x *answer) limits() error {
	x.title("limits of the plan")
	if x.input == nil {
		return x.storedLimits()
	}

	list, base, err := explain.LimitsOf(x.ctx, *x.input)
	if err != nil {
		return err
	}

	binding := 0
	var rows [][]string
	for _, effect := range list {
		row := []string{effect.Key, effect.Value, effect.Used, "no", "", "", effect.Note}
		if effect.Binds {
			binding++
			row[3] = "yes"
			if effect.Step != nil {
				row[4] = effect.Step.What + ": " + change(effect.Step.Ratio)
			}
			if effect.Free != nil {
				row[5] = change(effect.Free.Ratio)
			}
		}

		rows = append(rows, row)
	}

	what, symbol, value := minimised(&base)
	x.s.Printf("%s: %.3f %s; changes are of that\n", what, value, symbol)
	x.s.Table([]string{"limit", "value", "the plan takes", "binds", "the next step buys", ">without it", ""}, rows)
	if binding == 0 {
		x.s.Printf("without any of the limits the plan would be no better\n")
	}
	return x.s.Result(map[string]any{"expected_ns": base.ExpectedNS, "as_it_is": base, "limits": list, "simulated": x.p.SoC.Simulated})
}

// storedLimits lists the limits that the plan stores, and how much of each it uses. Only solving again finds those that
// bind.
func (x *answer) storedLimits() error {
	plan := x.p
	planview.ShowLimits(x.s, plan)
	var rows [][]string
	for i := range plan.Procs {
		if bytes := plan.Procs[i].GraphBytes; bytes > 0 {
			rows = append(rows, []string{plan.Procs[i].Name + ".graph_bytes", unit.Bytes(bytes).String()})
		}
	}

	if rows != nil {
		x.s.Table([]string{"limit", ">value"}, rows)
	}
	x.stored("which of them bind, and what relaxing them would gain, is found by solving again")
	return x.s.Result(map[string]any{"stored_only": true, "memory": plan.Memory, "quality": plan.Quality,
		"simulated": plan.SoC.Simulated})
}

// tiers describes the capacity tiers of a mixture of experts.
func (x *answer) tiers() error {
	x.title("capacity tiers")
	if len(x.p.Experts) == 0 {
		x.s.Printf("the plan has none: every expert is computed with the rows it gets. hetc solve --loads chooses " +
			"tiers for a model with experts, where they are faster\n")
	}
	planview.ShowTiers(x.s, x.p)
	for i := range x.p.Experts {
		tiers := &x.p.Experts[i]
		var groups, layers [][]string
		for _, group := range tiers.Groups {
			groups = append(groups, []string{strconv.Itoa(tiers.Rows), strconv.Itoa(group.Slots),
				strconv.Itoa(group.Rows), fmt.Sprintf("%.1f", float64(group.ExpectNS)/1e3)})
		}

		for _, layer := range tiers.Layers {
			layers = append(layers, []string{strconv.Itoa(tiers.Rows), strconv.Itoa(layer.Layer),
				fmt.Sprintf("%.1f", 100*layer.Moved), fmt.Sprintf("%.1f", 100*layer.Overflow),
				fmt.Sprintf("%.1f", 100*(1-layer.Moved-layer.Overflow)),
				fmt.Sprintf("%.1f", float64(layer.ExpectNS)/1e3)})
		}

		x.s.Table([]string{">prompt rows", ">slots", ">rows of a slot", ">launch us"}, groups)
		x.s.Table([]string{">prompt rows", ">layer", ">in slots %", ">overflow %", ">without a slot %", ">expected us"},
			layers)
	}

	return x.s.Result(map[string]any{"tiers": x.p.Experts, "simulated": x.p.SoC.Simulated})
}
