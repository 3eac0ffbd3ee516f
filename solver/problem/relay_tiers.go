package problem

import (
	"context"
	"fmt"
	"math"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/milp"
)

// maxTierTerms bounds the linear program of a tiers instance: every observed chunk of a layer has a row with all
// choices of all its experts.
const maxTierTerms = 1 << 21

// tierScale is ns to us.
const tierScale = 1e-3

// Tiers implements Engine.
func (r Relay) Tiers(ctx context.Context, tiers *Tiers, limits Limits) (TierSolution, error) {
	if err := tiers.Validate(); err != nil {
		return TierSolution{}, err
	}
	model, vars, err := tiers.MILP()
	if err != nil {
		return TierSolution{}, err
	}
	result, err := r.General.Solve(ctx, model, milp.Options{Nodes: r.limit(limits)})
	if err != nil {
		return TierSolution{}, fmt.Errorf("solve tiers %q: %w", tiers.Name, err)
	}
	out := TierSolution{Nodes: result.Nodes, Status: LimitReached}
	if result.Status == milp.Limit {
		return out, nil
	}
	out.Slots, out.Choices = vars.read(result.X)
	out.Objective = tiers.Time(out.Slots, out.Choices)
	// The objective is computed anew in integers; the engine's bound is in floats, and rounded down.
	out.Bound, out.Status = out.Objective, Optimal
	if result.Status != milp.Optimal {
		out.Bound = min(out.Bound, max(0, int64(math.Floor(result.Bound/tierScale))))
	}
	if out.Bound < out.Objective {
		out.Status = Feasible
	}
	return out, tiers.Verify(out)
}

// tierVars are the variables of a linear program.
type tierVars struct {
	slots   [][]int   // by tier and number of slots
	choices [][][]int // by layer, expert and tier: whether the expert has a slot of it
}

// read returns the solution by the values of the variables.
func (v *tierVars) read(values []float64) (slots []int, choices [][]int) {
	for _, counts := range v.slots {
		best := 0
		for count, variable := range counts {
			if values[variable] > values[counts[best]] {
				best = count
			}
		}
		slots = append(slots, best)
	}
	for _, experts := range v.choices {
		list := make([]int, len(experts))
		for expert, tiers := range experts {
			for tier, variable := range tiers {
				if values[variable] > 0.5 {
					list[expert] = tier + 1
				}
			}
		}
		choices = append(choices, list)
	}
	return slots, choices
}

// MILP poses the instance. Binary variables: n_T_C, whether there are C slots of tier T; x_L_E_T, whether expert E of
// layer L is in one of them; any, whether there are slots. t_L_S is the time of layer L for observed chunk S in us.
func (p *Tiers) MILP() (*milp.Model, *tierVars, error) {
	terms := float64(len(p.Layers)) * float64(p.Chunks()) * float64(p.Experts()) * float64(len(p.Capacities))
	if terms > maxTierTerms {
		return nil, nil, diag.New(diag.ClassInput, "tiers %q: a linear program of %.0f terms, want at most %d",
			p.Name, terms, maxTierTerms).WithHint("solve it by the exact engine: --engine exact")
	}

	posed, vars := builder{&milp.Model{Name: "tiers " + p.Name}}, &tierVars{}
	posed.Note = note(1/tierScale, "ns, of all observed chunks")
	chunks, most := int64(p.Chunks()), p.MostSlots()
	anySlot := posed.binary("any", float64(int64(len(p.Layers))*chunks*p.LayerNS)*tierScale)
	var npu, used, all, shapes []milp.Term

	for tier, groups := range p.Groups() {
		var counts []int
		var one []milp.Term
		for slots := range most + 1 {
			variable := posed.binary(fmt.Sprintf("n_%d_%d", tier+1, slots),
				float64(groups.Shapes[slots]*p.ShapeNS*chunks)*tierScale)
			counts = append(counts, variable)
			one = append(one, milp.Term{Var: variable, Coef: 1})
			if slots > 0 {
				used = append(used, milp.Term{Var: variable, Coef: 1})
				all = append(all, milp.Term{Var: variable, Coef: float64(slots)})
				npu = append(npu, milp.Term{Var: variable, Coef: float64(groups.NS[slots]) * tierScale})
				shapes = append(shapes, milp.Term{Var: variable, Coef: float64(groups.Shapes[slots])})
			}
		}
		vars.slots = append(vars.slots, counts)
		posed.row(fmt.Sprintf("one_%d", tier+1), 1, 1, one)
		posed.implies(fmt.Sprintf("any_%d", tier+1), one[1:], anySlot)
	}

	if most > 0 {
		posed.atMost("tiers", float64(p.MaxTiers), used)
		posed.atMost("slots", float64(most), all)
		for i := range p.Limits {
			p.poseLimit(&posed, vars, i)
		}
		if p.MaxGraphs > 0 {
			posed.atMost("graphs", float64(p.MaxGraphs), shapes)
		}
	}
	for layer := range p.Layers {
		vars.choices = append(vars.choices, p.poseLayer(&posed, vars, layer, npu))
	}
	return posed.Model, vars, nil
}

// poseLimit adds a limit of bytes, in units of the smallest slot. A number of slots is one variable, so that a solution
// exceeds the limit by no part of a slot.
func (p *Tiers) poseLimit(posed *builder, vars *tierVars, index int) {
	limit := &p.Limits[index]
	unit := float64(limit.Slot(p.Capacities[0]))
	var taken []milp.Term
	for tier, counts := range vars.slots {
		for slots, variable := range counts[1:] {
			bytes := float64(slots+1) * float64(limit.Slot(p.Capacities[tier]))
			taken = append(taken, milp.Term{Var: variable, Coef: bytes / unit})
		}
	}
	posed.atMost(fmt.Sprintf("limit_%d", index+1), float64(limit.Bytes)/unit, taken)
}

// poseLayer adds a layer: its experts' slots and the time of every observed chunk. npu are the terms of what the slots
// take.
func (p *Tiers) poseLayer(posed *builder, vars *tierVars, layer int, npu []milp.Term) (choices [][]int) {
	tiers := len(p.Capacities)
	filled := make([][]milp.Term, tiers)
	var dropped []milp.Term
	for expert := range p.Experts() {
		var list []int
		var one []milp.Term
		for tier := range tiers {
			variable := posed.binary(fmt.Sprintf("x_%d_%d_%d", layer, expert, tier+1), 0)
			list = append(list, variable)
			one = append(one, milp.Term{Var: variable, Coef: 1})
			filled[tier] = append(filled[tier], milp.Term{Var: variable, Coef: 1})
			if rows := p.Dropped(layer, expert, tier+1); rows > 0 {
				dropped = append(dropped, milp.Term{Var: variable, Coef: float64(rows)})
			}
		}
		choices = append(choices, list)
		posed.atMost(fmt.Sprintf("once_%d_%d", layer, expert), 1, one)
	}

	for tier, row := range filled {
		for slots, variable := range vars.slots[tier] {
			if slots > 0 {
				row = append(row, milp.Term{Var: variable, Coef: -float64(slots)})
			}
		}
		posed.row(fmt.Sprintf("filled_%d_%d", layer, tier+1), 0, 0, row)
	}
	if len(dropped) > 0 {
		posed.atMost(fmt.Sprintf("drop_%d", layer), float64(p.MostDropped(layer)), dropped)
	}
	p.poseTimes(posed, layer, choices, npu)
	return choices
}

// poseTimes adds the time of a layer for every observed chunk: what does not fit into slots takes its time on the CPU,
// and the slots take theirs, one after the other or at once. Without any slot everything is left to the CPU (dynamic).
func (p *Tiers) poseTimes(posed *builder, layer int, choices [][]int, npu []milp.Term) {
	for chunk := range p.Chunks() {
		dynamic := p.CallNS
		var cpu []milp.Term
		for expert, variables := range choices {
			rows := p.Layers[layer].Rows[expert][chunk]
			dynamic += p.LeftNS(rows, 0)
			for tier, variable := range variables {
				if saved := p.LeftNS(rows, 0) - p.LeftNS(rows, tier+1); saved != 0 {
					cpu = append(cpu, milp.Term{Var: variable, Coef: -float64(saved) * tierScale})
				}
			}
		}

		name := fmt.Sprintf("%d_%d", layer, chunk)
		longest := float64(dynamic) * tierScale
		for _, term := range npu {
			longest += term.Coef
		}
		time := milp.Term{Var: posed.variable("t_"+name, 1, math.Ceil(longest), false), Coef: -1}
		high := -float64(dynamic) * tierScale
		if p.Serial {
			posed.row("both_"+name, math.Inf(-1), high, append(append(cpu, npu...), time))
			continue
		}
		posed.row("cpu_"+name, math.Inf(-1), high, append(cpu, time))
		posed.row("npu_"+name, math.Inf(-1), 0, append(append([]milp.Term(nil), npu...), time))
	}
}
