package problem

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/milp"
)

// jointVars says what the variables of Joint.MILP mean.
type jointVars struct {
	Choice [][][][]int // per part, chain, item and choice
	Unit   float64     // objective of the program times Unit is that of the instance

	asset []int            // variable by asset; -1: no limit binds it
	procs [][]int          // per part: of processors with conflicts, else -1
	edges []edgeVar        // of edges that are not the sum of what their ends add
	rows  map[string]Limit // limits by the names of their rows
}

// edgeVar is an edge between two items.
type edgeVar struct {
	part, chain, from, to int
	out, in               []int // merged class of a choice of the item it comes from, and of the item it leads to
	network               network
	variable              []int // per way
}

// MILP poses the instance as a linear program: for every item one of its choices (binary), for every edge that is not
// simply the sum of what its ends add a way through a network between the location classes it connects (continuous:
// there is a whole one where the choices are whole; classes with equal edges are one), for every asset that a limit may
// bind whether it is open, at least as much as each item needs it. The objective is scaled so that it stays near 1e6,
// and limits to 1000.
func (j *Joint) MILP() (*milp.Model, *jointVars) {
	posed := jointBuilder{
		builder: builder{&milp.Model{Name: "joint " + j.Name}}, joint: j,
		vars: &jointVars{Unit: j.unit(), rows: map[string]Limit{}},
	}

	what := map[Measure]string{Energy: "nJ, of all calls weighted", Memory: "bytes"}[j.Minimise]
	if what == "" {
		what = "ns, of all calls weighted"
	}
	posed.Note = note(posed.vars.Unit, what)

	posed.assets()
	for part := range j.Parts {
		posed.part(part)
	}
	posed.limit(Limit{Kind: LimitTimeNS, Max: j.MaxTimeNS}, "time", posed.time)
	posed.limit(Limit{Kind: LimitEnergyNJ, Max: j.MaxEnergyNJ}, "energy", posed.energy)
	return posed.Model, posed.vars
}

// unit divides the objective so that the sum of the least that every item takes is near 1e6.
func (j *Joint) unit() float64 {
	// most is the largest single cost: no coefficient of the objective may exceed 1e12 either.
	least, most := 0.0, 0.0
	for p := range j.Parts {
		// The least that every item takes, with all executions counted.
		for k := range j.Parts[p].Partition.Chains {
			chain := &j.Parts[p].Partition.Chains[k]
			times := float64(j.Parts[p].Weight) * float64(chain.Repeat)
			for i := range chain.Items {
				one := math.Inf(1)
				for n := range chain.Items[i].Choices {
					taken := float64(chain.Items[i].Choices[n].CostNS)
					if j.Minimise == Energy {
						taken = float64(chain.Items[i].Choices[n].EnergyNJ)
					}
					one, most = min(one, times*taken), max(most, times*taken)
				}
				least += one
			}
		}
	}
	if j.Minimise == Memory {
		least, most = 0, 0
		for a := range j.Assets {
			least += float64(j.Assets[a].Bytes)
		}
	}
	return max(1, least/1e6, most/1e12)
}

// jointBuilder poses a joint problem.
type jointBuilder struct {
	builder
	joint *Joint
	vars  *jointVars

	time, energy []milp.Term // of the limits over all parts
	own          []milp.Term // of the time limit of the part that is posed
}

// limit adds a limit with terms in its own unit, scaled to thousandths of it.
func (b *jointBuilder) limit(limit Limit, name string, terms []milp.Term) {
	if limit.Max > 0 {
		b.limitOf(limit, name, terms)
	}
}

// limitOf adds a limit, which may be 0.
func (b *jointBuilder) limitOf(limit Limit, name string, terms []milp.Term) {
	var out []milp.Term
	for _, term := range terms {
		term.Coef *= 1e3 / float64(max(limit.Max, 1))
		if math.Abs(term.Coef) >= milp.MinCoef { // what is smaller is verified all the same
			term.Coef = min(term.Coef, milp.MaxCoef)
			out = append(out, term)
		}
	}
	name = "limit " + name
	b.vars.rows[name] = limit
	if len(out) > 0 {
		b.atMost(name, float64(min(limit.Max, 1))*1e3, out)
	}
}

// assets adds a variable for every asset that a limit may bind, one for those that always appear together.
func (b *jointBuilder) assets() {
	joint := b.joint
	// Assets that the same choices name open together: one variable stands for all of them.
	signatures := joint.signatures()

	var bytes, open []milp.Term
	bytesOf, graphsOf := make([][]milp.Term, len(joint.Regions)), make([][]milp.Term, len(joint.Regions))
	together := map[string]int{}
	b.vars.asset = make([]int, len(joint.Assets))
	for index := range joint.Assets {
		asset := &joint.Assets[index]
		b.vars.asset[index] = -1
		if signatures[index] == nil || !joint.binds(asset) {
			continue
		}

		variable, ok := together[string(signatures[index])]
		if !ok {
			variable = b.binary("open "+asset.Name, 0)
			together[string(signatures[index])] = variable
		}
		b.vars.asset[index] = variable
		if joint.Minimise == Memory {
			b.Vars[variable].Cost += float64(asset.Bytes) / b.vars.Unit
		}

		bytes = addTo(bytes, variable, float64(asset.Bytes))
		open = addTo(open, variable, float64(asset.OpenNS))
		bytesOf[asset.Region] = addTo(bytesOf[asset.Region], variable, float64(asset.Bytes))
		graphsOf[asset.Region] = addTo(graphsOf[asset.Region], variable, float64(asset.Graphs))
	}

	// The limits: of each region, of all regions together, and of the time to open.
	for index := range joint.Regions {
		region := &joint.Regions[index]
		b.limit(Limit{LimitRegionBytes, index, region.Name, region.MaxBytes, 0}, "bytes "+region.Name, bytesOf[index])
		b.limit(Limit{LimitRegionGraphs, index, region.Name, int64(region.MaxGraphs), 0}, "graphs "+region.Name,
			graphsOf[index])
	}

	if joint.MaxBytes > 0 {
		b.limitOf(Limit{Kind: LimitBytes, Max: max(joint.MaxBytes-joint.Resident, 0)}, "bytes", bytes)
	}
	b.limit(Limit{Kind: LimitOpenNS, Max: joint.MaxOpenNS}, "opening", open)
}

// signatures returns the choices that name each asset, as text; nil where none does.
func (j *Joint) signatures() [][]byte {
	out := make([][]byte, len(j.Assets))
	item := uint64(0)
	for _, part := range j.Parts {
		for _, chain := range part.Partition.Chains {
			for i := range chain.Items {
				for n, choice := range chain.Items[i].Choices {
					for _, asset := range choice.Assets {
						if asset < len(out) { // a partition that is posed alone has no assets
							out[asset] = binary.AppendUvarint(binary.AppendUvarint(out[asset], item), uint64(n))
						}
					}
				}
				item++
			}
		}
	}
	return out
}

// binds reports whether some limit or the objective counts an asset.
func (j *Joint) binds(asset *Asset) bool {
	region := &j.Regions[asset.Region]
	countsBytes := j.Minimise == Memory || j.MaxBytes > 0 || region.MaxBytes > 0
	if asset.Bytes > 0 && countsBytes {
		return true
	}
	if asset.OpenNS > 0 && j.MaxOpenNS > 0 {
		return true
	}
	return asset.Graphs > 0 && region.MaxGraphs > 0
}

// addTo adds to the coefficient of a variable.
func addTo(terms []milp.Term, variable int, coef float64) []milp.Term {
	at := len(terms) - 1
	if at < 0 || terms[at].Var != variable {
		at = slices.IndexFunc(terms, func(term milp.Term) bool { return term.Var == variable })
	}
	if at < 0 {
		return append(terms, milp.Term{Var: variable, Coef: coef})
	}
	terms[at].Coef += coef
	return terms
}

// part adds one part: which processors with conflicts it uses, its chains, and its own time limit.
func (b *jointBuilder) part(index int) {
	part := &b.joint.Parts[index]
	name := part.Partition.Name

	// A processor needs a variable only where it conflicts with another one.
	procs := make([]int, len(part.Partition.Procs))
	for proc := range procs {
		procs[proc] = -1
	}
	for _, pair := range part.Partition.Conflicts {
		for _, proc := range pair {
			if procs[proc] < 0 {
				procs[proc] = b.binary(fmt.Sprintf("%s uses %s", name, part.Partition.Procs[proc]), 0)
			}
		}
	}

	for n, pair := range part.Partition.Conflicts {
		b.atMost(fmt.Sprintf("conflict %s %d", name, n), 1, []milp.Term{one(procs[pair[0]]), one(procs[pair[1]])})
	}

	b.vars.procs = append(b.vars.procs, procs)
	b.own = nil
	var vars [][][]int
	for chain := range part.Partition.Chains {
		vars = append(vars, b.chain(index, chain))
	}
	b.vars.Choice = append(b.vars.Choice, vars)
	b.limit(Limit{LimitPartNS, index, name, part.MaxNS, 0}, "time "+name, b.own)
}

// takes adds ns and nj of one execution of a part to the limits on them, and their cost to the objective.
func (b *jointBuilder) takes(part, variable int, ns, nj float64) {
	weight := float64(b.joint.Parts[part].Weight)
	b.own = append(b.own, milp.Term{Var: variable, Coef: ns})
	b.time = append(b.time, milp.Term{Var: variable, Coef: weight * ns})
	b.energy = append(b.energy, milp.Term{Var: variable, Coef: weight * nj})
	cost := 0.0
	switch b.joint.Minimise {
	case Energy:
		cost = weight * nj
	case Memory:
	default:
		cost = weight * ns
	}
	b.Vars[variable].Cost += cost / b.vars.Unit
}

// chainBuilder poses one chain.
type chainBuilder struct {
	*jointBuilder
	partIndex, chainIndex int
	source                *Chain
	at                    string      // in names
	choices               [][]int     // variables by item and choice
	ns                    [][]float64 // the same: what a choice takes with what it adds to the edges on both sides
}

// chain poses one chain and returns its variables by item and choice.
func (b *jointBuilder) chain(partIndex, chainIndex int) [][]int {
	part := b.joint.Parts[partIndex].Partition
	posed := chainBuilder{jointBuilder: b, partIndex: partIndex, chainIndex: chainIndex,
		source: &part.Chains[chainIndex]}
	posed.at = fmt.Sprintf("%s %s", part.Name, posed.source.Name)

	// Edges add to what choices take, so costs are settled only behind them.
	repeat := float64(posed.source.Repeat)
	for i := range posed.source.Items {
		posed.item(&posed.source.Items[i], repeat)
	}
	for i := range posed.source.Items {
		if len(posed.source.Items[i].EdgeNS) > 0 {
			posed.edge(i)
		}
	}
	for i := range posed.source.Items {
		for n, variable := range posed.choices[i] {
			energy := repeat * float64(posed.source.Items[i].Choices[n].EnergyNJ)
			posed.takes(partIndex, variable, posed.ns[i][n], energy)
		}
	}
	return posed.choices
}

// item adds the choices of an item, of which one is taken, and what they need.
func (c *chainBuilder) item(it *Item, repeat float64) {
	var choices, assets []int
	var ns []float64
	var all []milp.Term
	needs := map[int][]milp.Term{} // by the variable of what is opened: the choices that need it
	procs := c.joint.Parts[c.partIndex].Partition.Procs
	uses := make([][]milp.Term, len(procs))

	for n := range it.Choices {
		choice := &it.Choices[n]
		variable := c.binary(fmt.Sprintf("%s %s: %s", c.at, it.Name, choice.Label), 0)
		choices = append(choices, variable)
		ns = append(ns, repeat*float64(choice.CostNS))
		all = append(all, one(variable))

		for _, asset := range choice.Assets {
			if asset >= len(c.vars.asset) || c.vars.asset[asset] < 0 {
				continue
			}
			open := c.vars.asset[asset]
			if needs[open] == nil {
				assets = append(assets, asset)
			}
			if terms := needs[open]; terms == nil || terms[len(terms)-1].Var != variable {
				needs[open] = append(terms, one(variable))
			}
		}

		for _, proc := range choice.Procs {
			uses[proc] = append(uses[proc], one(variable))
		}
	}

	c.choices, c.ns = append(c.choices, choices), append(c.ns, ns)
	c.row(fmt.Sprintf("one %s %s", c.at, it.Name), 1, 1, all)
	for _, asset := range assets {
		open := c.vars.asset[asset]
		c.implies(fmt.Sprintf("needs %s %s: %s", c.at, it.Name, c.joint.Assets[asset].Name), needs[open], open)
	}

	for proc, variable := range c.vars.procs[c.partIndex] {
		if variable >= 0 && len(uses[proc]) > 0 {
			c.implies(fmt.Sprintf("uses %s %s: %s", c.at, it.Name, procs[proc]), uses[proc], variable)
		}
	}
}

// edge adds the edge into an item: what its ends add to ns, and what is left as a flow through a network from the class
// of one choice to that of the other.
func (c *chainBuilder) edge(at int) {
	// The edge leads from the item before, which is the last one where the chain starts again.
	it := &c.source.Items[at]
	from := (at + len(c.source.Items) - 1) % len(c.source.Items)
	prev := &c.source.Items[from]
	times := float64(c.source.Repeat)
	if at == 0 {
		times = float64(c.source.Wraps())
	}

	if from == at { // one item follows itself
		for n, choice := range it.Choices {
			c.ns[at][n] += times * float64(it.EdgeNS[choice.After][choice.Before])
		}
		return
	}

	// What each end adds by itself goes to the choices; only the rest needs variables.
	rest := newEdgeRest(it)
	for n := range prev.Choices {
		c.ns[from][n] += times * float64(rest.leaving[prev.Choices[n].After])
	}
	for n := range it.Choices {
		c.ns[at][n] += times * float64(rest.arriving[it.Choices[n].Before])
	}

	edge := edgeVar{part: c.partIndex, chain: c.chainIndex, from: from, to: at}
	var between [][]int64
	if edge.out, edge.in, between = rest.merged(prev, it); between == nil {
		return
	}

	// One unit flows from the class of the choice taken before to that of the choice taken here: at each node of the
	// network as much leaves as arrives.
	edge.network = route(between)
	name := fmt.Sprintf("%s %s", c.at, it.Name)

	terms := make([][]milp.Term, edge.network.nodes)
	for n, class := range edge.out {
		terms[class] = append(terms[class], milp.Term{Var: c.choices[from][n], Coef: -1})
	}
	for n, class := range edge.in {
		terms[len(between)+class] = append(terms[len(between)+class], one(c.choices[at][n]))
	}
	for _, way := range edge.network.ways {
		variable := c.variable(fmt.Sprintf("hand over %s: %d to %d", name, way.from, way.to), 0, 1, false)
		edge.variable = append(edge.variable, variable)
		c.takes(c.partIndex, variable, times*float64(way.ns), 0)
		terms[way.from] = append(terms[way.from], one(variable))
		terms[way.to] = append(terms[way.to], milp.Term{Var: variable, Coef: -1})
	}

	for n := range terms {
		c.row(fmt.Sprintf("passes %s: %d", name, n), 0, 0, terms[n])
	}
	c.vars.edges = append(c.vars.edges, edge)
}

// edgeRest is an edge less what its ends add: what it takes at least whichever class it leads to is its first end's,
// then what it takes at least whichever it comes from is its other end's. What is left is often nothing.
type edgeRest struct {
	ns                [][]int64
	leaving, arriving []int64 // by class
}

// newEdgeRest takes the least of every row, and then the least of every column, away from an edge.
func newEdgeRest(it *Item) *edgeRest {
	out := &edgeRest{ns: it.EdgeNS}
	for _, row := range out.ns {
		out.leaving = append(out.leaving, slices.Min(row))
	}
	for to := range it.Before {
		least := int64(math.MaxInt64)
		for from, row := range out.ns {
			least = min(least, row[to]-out.leaving[from])
		}
		out.arriving = append(out.arriving, least)
	}
	return out
}

// left returns what the ends do not add of the edge between two classes.
func (e *edgeRest) left(from, to int) int64 { return e.ns[from][to] - e.leaving[from] - e.arriving[to] }

// merged merges classes that choices have: those with equal rows, and then those with equal columns. It returns the
// merged class of each choice on both sides, and the remaining times between merged classes, nil if all are 0.
func (e *edgeRest) merged(prev, it *Item) (out, in []int, between [][]int64) {
	leaves, arrives := make([]bool, len(prev.After)), make([]bool, len(it.Before))
	for n := range prev.Choices {
		leaves[prev.Choices[n].After] = true
	}
	for n := range it.Choices {
		arrives[it.Choices[n].Before] = true
	}

	// First rows that agree in every column that occurs, then columns that agree in the rows that are left.
	outs, rows := merge(leaves, func(x, y int) bool {
		for to := range arrives {
			if arrives[to] && e.left(x, to) != e.left(y, to) {
				return false
			}
		}
		return true
	})
	ins, cols := merge(arrives, func(x, y int) bool {
		return !slices.ContainsFunc(rows, func(from int) bool { return e.left(from, x) != e.left(from, y) })
	})

	nothing := true
	for _, from := range rows {
		var row []int64
		for _, to := range cols {
			row = append(row, e.left(from, to))
			nothing = nothing && e.left(from, to) == 0
		}
		between = append(between, row)
	}
	if nothing {
		return nil, nil, nil
	}

	for n := range prev.Choices {
		out = append(out, outs[prev.Choices[n].After])
	}
	for n := range it.Choices {
		in = append(in, ins[it.Choices[n].Before])
	}
	return out, in, between
}

// merge numbers the classes that occur, equal ones alike, and returns the first of each number.
func merge(occurs []bool, same func(x, y int) bool) (number, first []int) {
	number = make([]int, len(occurs))
	for class := range occurs {
		if !occurs[class] {
			continue
		}
		number[class] = slices.IndexFunc(first, func(other int) bool { return same(class, other) })
		if number[class] < 0 {
			number[class] = len(first)
			first = append(first, class)
		}
	}
	return number, first
}

// Choices reads the choices from values of the variables.
func (v *jointVars) Choices(values []float64) [][][]int {
	var out [][][]int
	for _, part := range v.Choice {
		var chains [][]int
		for _, chain := range part {
			var list []int
			for _, vars := range chain {
				best := 0
				for choice, variable := range vars {
					if values[variable] > values[vars[best]] {
						best = choice
					}
				}
				list = append(list, best)
			}
			chains = append(chains, list)
		}
		out = append(out, chains)
	}
	return out
}

// X are values of all variables that stand for the choices: a start for the engine. A chosen pair of classes is sent
// along a shortest way of its edge's network.
func (v *jointVars) X(joint *Joint, model *milp.Model, choices [][][]int) []float64 {
	values := make([]float64, len(model.Vars))

	// Choices, with the assets they open and the processors they use.
	for p := range choices {
		for k := range choices[p] {
			for i, choice := range choices[p][k] {
				values[v.Choice[p][k][i][choice]] = 1
				taken := &joint.Parts[p].Partition.Chains[k].Items[i].Choices[choice]
				for _, asset := range taken.Assets {
					if asset < len(v.asset) && v.asset[asset] >= 0 {
						values[v.asset[asset]] = 1
					}
				}
				for _, proc := range taken.Procs {
					if variable := v.procs[p][proc]; variable >= 0 {
						values[variable] = 1
					}
				}
			}
		}
	}

	for _, edge := range v.edges {
		list := choices[edge.part][edge.chain]
		for _, way := range edge.network.shortest(edge.out[list[edge.from]], edge.in[list[edge.to]]) {
			values[edge.variable[way]] = 1
		}
	}
	return values
}

// Partition implements Engine.
func (r Relay) Partition(ctx context.Context, partition *Partition) (Solution, error) {
	if err := partition.Validate(); err != nil {
		return Solution{}, err
	}
	got, err := r.solve(ctx, &Joint{Name: partition.Name, Parts: []Part{{Partition: partition, Weight: 1}}}, Limits{})
	if err != nil {
		return Solution{}, err
	}
	if got.Choices == nil {
		return Solution{}, diag.New(diag.ClassUnavailable, "partition %q: the engine %q stopped without a solution",
			partition.Name, r.Name())
	}

	out := Solution{Choices: got.Choices[0], ObjectiveNS: got.Objective, BoundNS: got.Bound, Status: Feasible}
	if r.Exact != nil && got.Status == Optimal { // of equally good ones it names the first
		first, err := r.Exact.Partition(ctx, partition)
		if err == nil && first.Status == Optimal && agree(first.ObjectiveNS, out.ObjectiveNS) {
			return first, nil
		}
	}
	return out, partition.Verify(out)
}

// Joint implements Engine.
func (r Relay) Joint(ctx context.Context, joint *Joint, limits Limits) (JointSolution, error) {
	if err := joint.Validate(); err != nil {
		return JointSolution{}, err
	}
	if joint.MaxBytes > 0 && joint.Resident > joint.MaxBytes {
		why := []Limit{{Kind: LimitBytes, Max: joint.MaxBytes, Need: joint.Resident}}
		return JointSolution{}, diag.New(diag.ClassInfeasible, "joint %q: %w", joint.Name, &InfeasibleError{why})
	}

	out, err := r.solve(ctx, joint, limits)
	var why *InfeasibleError
	// The general engine only says that there is no solution; the exact one names limits that conflict.
	if errors.As(err, &why) && r.Exact != nil { // which limits
		if _, err := r.Exact.Joint(ctx, joint, Limits{}); errors.As(err, &why) {
			return JointSolution{}, err
		}
	}
	if err != nil || out.Status == LimitReached {
		return out, err
	}

	// Equally good solutions are ordered: the exact engine finds the first of them, with this one to begin from.
	proved := out.Status == Optimal
	out.Status = Feasible // perhaps not the first of its kind
	if r.Exact != nil && proved {
		known := Limits{Start: out.Choices}
		first, err := r.Exact.Joint(ctx, joint, known)
		if err == nil && first.Status == Optimal && agree(first.Objective, out.Objective) {
			first.Nodes = out.Nodes
			return first, nil
		}
	}
	return out, joint.Verify(out)
}

// agree reports whether an objective proved in whole numbers is the one found with the tolerances of a general engine.
func agree(exact, found int64) bool {
	return math.Abs(float64(exact)-float64(found)) <= milp.Tolerance*max(1, math.Abs(float64(found)))
}

// tightenings is how often a limit that an answer exceeds by the engine's tolerance is made smaller.
const tightenings = 4

// solve poses the problem and reads the answer. An answer may break a limit by the engine's tolerance, relative to
// the limit: then it is solved again with that limit a little smaller, and the first bound stands.
func (r Relay) solve(ctx context.Context, joint *Joint, limits Limits) (JointSolution, error) {
	model, vars := joint.MILP()
	options := milp.Options{Nodes: r.limit(limits)}
	if limits.Start != nil && joint.Keeps(limits.Start) {
		options.Start = vars.X(joint, model, limits.Start)
	}

	reached := JointSolution{Status: LimitReached}
	for round := 0; ; round++ {
		got, err := r.General.Solve(ctx, model, options)
		if err != nil {
			return JointSolution{}, fmt.Errorf("solve joint %q: %w", joint.Name, err)
		}
		reached.Nodes += got.Nodes
		if got.Status == milp.Infeasible && round == 0 {
			return JointSolution{}, diag.New(diag.ClassInfeasible, "joint %q: %w", joint.Name, &InfeasibleError{})
		}
		if round == 0 {
			reached.Bound = below(got.Bound * vars.Unit)
		}

		// Infeasible in a later round only says that the tightened limits leave nothing.
		if got.Status == milp.Infeasible || got.Status == milp.Limit {
			return reached, nil
		}

		out := JointSolution{Choices: vars.Choices(got.X), Status: Feasible, Nodes: reached.Nodes}
		// Everything is computed again in whole numbers; the engine's own objective is not used.
		use := joint.Use(out.Choices)
		out.Objective = joint.Objective(&use)

		broken := joint.Broken(&use)
		if len(broken) == 0 {
			out.Bound = min(max(reached.Bound, 0), out.Objective)
			isProved := round == 0 || out.Bound == out.Objective
			if got.Status == milp.Optimal && isProved {
				out.Bound, out.Status = out.Objective, Optimal
			}
			return out, nil
		}

		if round == tightenings {
			return reached, nil
		}
		vars.tighten(model, broken, 1e3*milp.Tolerance*float64(int(1)<<round))
	}
}

// tighten makes the rows of limits smaller.
func (v *jointVars) tighten(model *milp.Model, limits []Limit, by float64) {
	for i := range model.Rows {
		own, ok := v.rows[model.Rows[i].Name]
		same := func(limit Limit) bool { return limit.Kind == own.Kind && limit.Index == own.Index }
		if ok && slices.ContainsFunc(limits, same) {
			model.Rows[i].High -= by
		}
	}
}

// below returns a whole number that a bound found with tolerances does not fall short of.
func below(bound float64) int64 {
	bound -= math.Abs(bound) * milp.Tolerance / 10
	if math.IsNaN(bound) || bound <= 0 {
		return 0
	}
	return int64(min(math.Floor(bound), 1<<62))
}
