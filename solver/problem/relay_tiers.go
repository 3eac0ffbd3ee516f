package problem

import (
	"context"
	"fmt"
	"math"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/milp"
)

// Tiers implements Engine: a model for every chunk length, the best of them.
func (r Relay) Tiers(ctx context.Context, p *Tiers, limits Limits) (TierSolution, error) {
	if err := p.Validate(); err != nil {
		return TierSolution{}, err
	}
	best := TierSolution{Objective: math.MaxInt64, Bound: math.MaxInt64}
	var nodes int64
	// Each length has a table of its own; the bound is the least over all lengths.
	stopped := false
	// One linear program for each chunk length: a choice of the length in one program would multiply every variable.
	for chunk := range p.Chunks {
		model, vars := p.MILP(chunk)
		unit := 1e3
		if measure := p.Measure(); measure == TierOff || measure == TierLaunches {
			unit = 1
		}
		result, err := r.General.Solve(ctx, model, milp.Options{Nodes: r.limit(limits)})
		if err != nil {
			return TierSolution{}, fmt.Errorf("solve tiers %q: %w", p.Name, err)
		}
		nodes += result.Nodes
		switch result.Status {
		case milp.Infeasible:
			continue
		case milp.Limit:
			// Nothing is known of this length, so no bound holds for all.
			stopped, best.Bound = true, 0
			continue
		}
		solution := TierSolution{Chunk: chunk, Choices: vars.Choices(result.X)}
		table := p.Table(chunk)
		solution.Objective = table.Of(p.Measure(), table.Total(solution.Choices))
		// The objective is computed anew in integers; the engine's bound is in floats, and rounded down.
		bound := solution.Objective
		if result.Status != milp.Optimal {
			bound = min(bound, max(0, int64(math.Floor(result.Bound*unit))))
		}
		bound = min(bound, best.Bound)
		if solution.Objective >= best.Objective {
			best.Bound = bound
			continue
		}
		best, best.Bound = solution, bound
	}
	if best.Choices == nil {
		if stopped {
			return TierSolution{Status: LimitReached, Nodes: nodes}, nil
		}
		return TierSolution{}, p.Infeasible()
	}
	best.Bound, best.Nodes, best.Status = min(best.Bound, best.Objective), nodes, Feasible
	if best.Bound < best.Objective || r.Exact == nil {
		return best, p.Verify(best)
	}
	// Of equally good choices the first is named by the engine that orders them.
	first, err := r.Exact.Tiers(ctx, p, limits)
	if err == nil && first.Status == Optimal && agree(first.Objective, best.Objective) {
		first.Nodes = nodes
		return first, p.Verify(first)
	}
	return best, p.Verify(best)
}

// Infeasible is the error where no choice keeps the limits.
func (p *Tiers) Infeasible() error {
	return diag.New(diag.ClassInfeasible, "tiers %q: no choice of tiers keeps the bounds %v", p.Name, p.Bounds).
		WithHint("raise the latency target, or leave it out")
}

// tierScale is ns to us, nJ to uJ.
const tierScale = 1e-3

// tierBuilder poses one chunk length of a tiers problem.
type tierBuilder struct {
	builder
	*Tiers
	table   *TierTable
	vars    *tierVars
	inUse   []int // variable by tier
	overlap bool  // the longer time of two processors counts

	bounds                       map[TierMeasure][]milp.Term // by measure, what its bound counts
	experts, drops, lost, graphs []milp.Term                 // what the limits of all layers count
	layerNPU, layerCPU           []milp.Term                 // of the layer that is posed: of its longer time
	layerDrops, layerLost        []milp.Term
	layerCounts                  [][]milp.Term // by tier: experts less what the division of its groups says
}

// MILP poses one chunk length. Variables: x, whether an expert takes a choice; z, whether a tier is in use; n, how many
// experts of a layer are in a tier, one-hot, since groups cost what the best division costs; a, whether a layer uses
// the NPU; where time counts and the processors overlap, t, the longer one's time in a layer.
func (p *Tiers) MILP(chunk int) (*milp.Model, *tierVars) {
	table := p.Table(chunk)
	_, timed := p.Bounds[TierTime]
	b := tierBuilder{
		builder: builder{&milp.Model{Name: p.Name}}, Tiers: p, table: table,
		vars: &tierVars{x: make([][][]int, len(table.Cells))}, bounds: map[TierMeasure][]milp.Term{},
		overlap: !p.Serial && (timed || p.Measure() == TierTime),
	}
	what := map[TierMeasure]string{
		TierTime: "ns, of all chunks", TierEnergy: "nJ, of all chunks", TierOff: "rows that the NPU does not compute",
		TierLaunches: "groups", TierLost: "lost saliency",
	}
	b.Note = note(1/tierUnit(p.Measure()), what[p.Measure()])
	for tier := range table.Groups {
		b.inUse = append(b.inUse, b.binary(fmt.Sprintf("z_%d", tier+1), 0))
	}
	for layer := range table.Cells {
		b.layer(layer)
	}
	b.limits()
	return b.Model, b.vars
}

// tierUnit is what a measure is multiplied by.
func tierUnit(measure TierMeasure) float64 {
	switch measure {
	case TierTime, TierEnergy:
		return tierScale
	case TierLost:
		return 1 / lostUnit
	}
	return 1
}

// counted adds a binary variable whose measures are those of cost: to the objective, to bounds, and to the time of the
// layer's processors where the longer one counts.
func (b *tierBuilder) counted(name string, cost TierCost) int {
	cost.NS = cost.SyncNS
	if b.Serial {
		cost.NS += cost.NPUNS + cost.CPUNS
	}
	variable := b.binary(name, float64(b.table.Of(b.Measure(), cost))*tierUnit(b.Measure()))
	if b.overlap && cost.NPUNS > 0 {
		b.layerNPU = append(b.layerNPU, milp.Term{Var: variable, Coef: float64(cost.NPUNS) * tierScale})
	}
	if b.overlap && cost.CPUNS > 0 {
		b.layerCPU = append(b.layerCPU, milp.Term{Var: variable, Coef: float64(cost.CPUNS) * tierScale})
	}
	if b.MaxGraphs != 0 && cost.Launches > 0 {
		b.graphs = append(b.graphs, milp.Term{Var: variable, Coef: float64(cost.Launches)})
	}
	for measure := range b.Bounds {
		if taken := b.table.Of(measure, cost); taken != 0 {
			coef := float64(taken) / float64(b.table.Times(measure)) * tierUnit(measure)
			b.bounds[measure] = append(b.bounds[measure], milp.Term{Var: variable, Coef: coef})
		}
	}
	return variable
}

// layer adds one layer: its experts' choices, its groups, the longer time, and its own limits.
func (b *tierBuilder) layer(layer int) {
	b.layerNPU, b.layerCPU, b.layerDrops, b.layerLost = nil, nil, nil, nil
	b.layerCounts = make([][]milp.Term, len(b.table.Groups))
	uses := b.counted(fmt.Sprintf("a_%d", layer), TierCost{SyncNS: b.table.SyncNS})
	cells := b.table.Cells[layer]
	for expert := range cells {
		b.expert(layer, expert, uses)
	}
	for tier := range b.table.Groups {
		b.groups(layer, tier, len(cells))
	}
	if b.overlap {
		b.longer(layer)
	}
	if most, ok := b.table.LayerLost(); ok && len(b.layerLost) > 0 {
		b.atMost(fmt.Sprintf("lost_%d", layer), float64(most)/lostUnit, b.layerLost)
	}
	if len(b.layerDrops) > 0 {
		b.atMost(fmt.Sprintf("drop_%d", layer), float64(b.table.LayerDrop(layer)), b.layerDrops)
	}
}

// expert adds the choices of an expert, of which one is taken: 0 is the CPU, others are tiers. uses is the variable of
// a layer that uses the NPU.
func (b *tierBuilder) expert(layer, expert, uses int) {
	var choices []int
	var all []milp.Term
	for choice, cell := range b.table.Cells[layer][expert] {
		name := fmt.Sprintf("%d_%d_%d", layer, expert, choice)
		cost := TierCost{CPUNS: cell.CPUNS, EnergyNJ: cell.EnergyNJ, Off: cell.Off, Lost: cell.Lost}
		variable := b.counted("x_"+name, cost)
		choices = append(choices, variable)
		all = append(all, one(variable))
		if choice == 0 {
			continue
		}
		tier := choice - 1
		b.layerCounts[tier] = append(b.layerCounts[tier], milp.Term{Var: variable, Coef: -1})
		b.experts = append(b.experts, one(variable))
		if cell.Drop > 0 {
			term := milp.Term{Var: variable, Coef: float64(cell.Drop)}
			b.drops, b.layerDrops = append(b.drops, term), append(b.layerDrops, term)
		}
		if cell.Lost > 0 {
			term := milp.Term{Var: variable, Coef: float64(cell.Lost) / lostUnit}
			b.lost, b.layerLost = append(b.lost, term), append(b.layerLost, term)
		}
		b.implies("tier_"+name, []milp.Term{one(variable)}, b.inUse[tier])
	}
	b.vars.x[layer] = append(b.vars.x[layer], choices)
	b.row(fmt.Sprintf("one_%d_%d", layer, expert), 1, 1, all)
	b.row(fmt.Sprintf("any_%d_%d", layer, expert), 1, math.Inf(1), []milp.Term{one(choices[0]), one(uses)})
}

// groups adds how many experts of a layer are in a tier, one variable for each number. What their groups take is not
// linear in that number: launches come in steps.
func (b *tierBuilder) groups(layer, tier, experts int) {
	groups := &b.table.Groups[tier]
	var all []milp.Term
	for count := range min(len(groups.NS), experts+1) {
		variable := b.counted(fmt.Sprintf("n_%d_%d_%d", layer, tier+1, count), TierCost{
			NPUNS: groups.NS[count], EnergyNJ: groups.EnergyNJ[count], Launches: groups.Launches[count],
		})
		all = append(all, one(variable))
		if count > 0 {
			b.layerCounts[tier] = append(b.layerCounts[tier], milp.Term{Var: variable, Coef: float64(count)})
		}
	}
	b.row(fmt.Sprintf("division_%d_%d", layer, tier+1), 1, 1, all)
	b.row(fmt.Sprintf("count_%d_%d", layer, tier+1), 0, 0, b.layerCounts[tier])
}

// longer adds the longer time of both processors: no more than would be, were everything as slow as it can be.
func (b *tierBuilder) longer(layer int) {
	longest := 0.0
	for _, list := range [][]milp.Term{b.layerNPU, b.layerCPU} {
		sum := 0.0
		for _, term := range list {
			sum += term.Coef
		}
		longest = max(longest, sum)
	}
	cost := 0.0
	if b.Measure() == TierTime {
		cost = float64(b.table.Weight)
	}
	variable := b.variable(fmt.Sprintf("t_%d", layer), cost, math.Ceil(longest), false)
	if _, ok := b.Bounds[TierTime]; ok {
		b.bounds[TierTime] = append(b.bounds[TierTime], one(variable))
	}
	b.implies(fmt.Sprintf("npu_%d", layer), b.layerNPU, variable)
	b.implies(fmt.Sprintf("cpu_%d", layer), b.layerCPU, variable)
}

// limits adds what all layers together keep.
func (b *tierBuilder) limits() {
	var tiers []milp.Term
	for _, variable := range b.inUse {
		tiers = append(tiers, one(variable))
	}
	b.atMost("tiers", float64(b.MaxTiers), tiers)
	if b.RegionBytes > 0 {
		b.atMost("region", float64(b.NPUExperts()), b.experts)
	}
	if len(b.drops) > 0 {
		b.atMost("drop", float64(b.table.TotalDrop()), b.drops)
	}
	if most, ok := b.table.TotalLost(); ok && len(b.lost) > 0 {
		b.atMost("lost", float64(most)/lostUnit, b.lost)
	}
	if len(b.graphs) > 0 {
		b.atMost("graphs", float64(max(0, b.MaxGraphs)), b.graphs)
	}
	for _, measure := range TierMeasures {
		if limit, ok := b.Bounds[measure]; ok && len(b.bounds[measure]) > 0 {
			high := float64(limit) / float64(b.table.Times(measure)) * tierUnit(measure)
			b.atMost("bound_"+string(measure), high, b.bounds[measure])
		}
	}
}

// tierVars are the variables of choices, by layer, expert and choice.
type tierVars struct{ x [][][]int }

// Choices reads the choices from values of the variables: of each expert the one whose variable is largest.
func (v *tierVars) Choices(values []float64) [][]int {
	out := make([][]int, len(v.x))
	for layer, experts := range v.x {
		out[layer] = make([]int, len(experts))
		for expert, vars := range experts {
			for choice, j := range vars {
				if values[j] > values[vars[out[layer][expert]]] {
					out[layer][expert] = choice
				}
			}
		}
	}
	return out
}
