package problem

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/milp"
)

// JointVars says what the variables of Joint.MILP mean.
type JointVars struct {
	Choice [][][][]int // per part, chain, item and choice
	Unit   float64     // objective of the program times Unit is that of the instance

	asset []int     // -1: no limit binds it
	procs [][]int   // per part: of processors with conflicts, else -1
	edges []edgeVar // of edges that are not the sum of what their ends add
	rows  map[string]Limit
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
// there is a whole one where the choices are whole; classes with equal edges are one), for every asset that a limit may bind whether it is open, at
// least as much as each item needs it. The objective is scaled so that it stays near 1e6, and limits to 1000.
func (j *Joint) MILP() (*milp.Model, *JointVars) {
	b := jointBuilder{j: j, m: &milp.Model{Name: "joint " + j.Name}, v: &JointVars{Unit: j.unit(), rows: map[string]Limit{}}}
	what := map[Measure]string{Energy: "nJ, of all calls weighted", Memory: "bytes"}[j.Minimise]
	if what == "" {
		what = "ns, of all calls weighted"
	}
	b.m.Note = note(b.v.Unit, what)
	b.assets()
	for p := range j.Parts {
		b.part(p)
	}
	b.limit(Limit{Kind: LimitTimeNS, Max: j.MaxTimeNS}, "time", b.time)
	b.limit(Limit{Kind: LimitEnergyNJ, Max: j.MaxEnergyNJ}, "energy", b.energy)
	return b.m, b.v
}

// note says what the objective of a program stands for.
func note(unit float64, what string) string {
	return "the objective times " + strconv.FormatFloat(unit, 'g', -1, 64) + " is in " + what
}

// unit divides the objective so that the sum of the least that every item takes is near 1e6.
func (j *Joint) unit() float64 {
	least, most := 0.0, 0.0
	for p := range j.Parts {
		for k := range j.Parts[p].Partition.Chains {
			c := &j.Parts[p].Partition.Chains[k]
			times := float64(j.Parts[p].Weight) * float64(c.Repeat)
			for i := range c.Items {
				one := math.Inf(1)
				for n := range c.Items[i].Choices {
					v := float64(c.Items[i].Choices[n].CostNS)
					if j.Minimise == Energy {
						v = float64(c.Items[i].Choices[n].EnergyNJ)
					}
					one, most = min(one, times*v), max(most, times*v)
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

type jointBuilder struct {
	j *Joint
	m *milp.Model
	v *JointVars

	time, energy []milp.Term // of the limits over all parts
}

func (b *jointBuilder) variable(name string, cost float64, integer bool) int {
	b.m.Vars = append(b.m.Vars, milp.Var{Name: name, Cost: cost / b.v.Unit, High: 1, Integer: integer})
	return len(b.m.Vars) - 1
}

func (b *jointBuilder) row(name string, low, high float64, terms []milp.Term) {
	b.m.Rows = append(b.m.Rows, milp.Row{Name: name, Low: low, High: high, Terms: terms})
}

// limit adds a limit with terms in its own unit, scaled to thousandths of it.
func (b *jointBuilder) limit(l Limit, name string, terms []milp.Term) {
	if l.Max > 0 {
		b.atMost(l, name, terms)
	}
}

// atMost adds a limit, which may be 0.
func (b *jointBuilder) atMost(l Limit, name string, terms []milp.Term) {
	high := float64(min(l.Max, 1)) * 1e3
	var out []milp.Term
	for _, t := range terms {
		if t.Coef *= 1e3 / float64(max(l.Max, 1)); math.Abs(t.Coef) >= milp.MinCoef { // what is smaller is verified all the same
			t.Coef = min(t.Coef, milp.MaxCoef)
			out = append(out, t)
		}
	}
	name = "limit " + name
	b.v.rows[name] = l
	if len(out) > 0 {
		b.row(name, math.Inf(-1), high, out)
	}
}

// assets adds a variable for every asset that a limit may bind, one for those that always appear together.
func (b *jointBuilder) assets() {
	j := b.j
	needed := make([][]byte, len(j.Assets)) // by which choices, as text
	item := 0
	for _, p := range j.Parts {
		for k := range p.Partition.Chains {
			for i := range p.Partition.Chains[k].Items {
				for n, c := range p.Partition.Chains[k].Items[i].Choices {
					for _, a := range c.Assets {
						if a < len(needed) { // a partition that is posed alone has no assets
							needed[a] = binary.AppendUvarint(binary.AppendUvarint(needed[a], uint64(item)), uint64(n))
						}
					}
				}
				item++
			}
		}
	}
	var bytes, open []milp.Term
	region, graphs := make([][]milp.Term, len(j.Regions)), make([][]milp.Term, len(j.Regions))
	together := map[string]int{}
	b.v.asset = make([]int, len(j.Assets))
	for a := range j.Assets {
		as := &j.Assets[a]
		r := &j.Regions[as.Region]
		b.v.asset[a] = -1
		binds := as.Bytes > 0 && (j.Minimise == Memory || j.MaxBytes > 0 || r.MaxBytes > 0) ||
			as.OpenNS > 0 && j.MaxOpenNS > 0 || as.Graphs > 0 && r.MaxGraphs > 0
		if needed[a] == nil || !binds {
			continue
		}
		z, ok := together[string(needed[a])]
		if !ok {
			z = b.variable("open "+as.Name, 0, true)
			together[string(needed[a])] = z
		}
		b.v.asset[a] = z
		if j.Minimise == Memory {
			b.m.Vars[z].Cost += float64(as.Bytes) / b.v.Unit
		}
		add := func(terms *[]milp.Term, coef float64) {
			if n := len(*terms); n > 0 && (*terms)[n-1].Var == z {
				(*terms)[n-1].Coef += coef
				return
			}
			if at := slices.IndexFunc(*terms, func(t milp.Term) bool { return t.Var == z }); at >= 0 {
				(*terms)[at].Coef += coef
				return
			}
			*terms = append(*terms, milp.Term{Var: z, Coef: coef})
		}
		add(&bytes, float64(as.Bytes))
		add(&open, float64(as.OpenNS))
		add(&region[as.Region], float64(as.Bytes))
		add(&graphs[as.Region], float64(as.Graphs))
	}
	for r := range j.Regions {
		g := &j.Regions[r]
		b.limit(Limit{LimitRegionBytes, r, g.Name, g.MaxBytes, 0}, "bytes "+g.Name, region[r])
		b.limit(Limit{LimitRegionGraphs, r, g.Name, int64(g.MaxGraphs), 0}, "graphs "+g.Name, graphs[r])
	}
	if j.MaxBytes > 0 {
		b.atMost(Limit{Kind: LimitBytes, Max: max(j.MaxBytes-j.Resident, 0)}, "bytes", bytes)
	}
	b.limit(Limit{Kind: LimitOpenNS, Max: j.MaxOpenNS}, "opening", open)
}

func (b *jointBuilder) part(p int) {
	part := &b.j.Parts[p]
	name := part.Partition.Name
	procs := make([]int, len(part.Partition.Procs))
	for q := range procs {
		procs[q] = -1
	}
	for _, c := range part.Partition.Conflicts {
		for _, q := range c {
			if procs[q] < 0 {
				procs[q] = b.variable(fmt.Sprintf("%s uses %s", name, part.Partition.Procs[q]), 0, true)
			}
		}
	}
	for n, c := range part.Partition.Conflicts {
		b.row(fmt.Sprintf("conflict %s %d", name, n), math.Inf(-1), 1, []milp.Term{{Var: procs[c[0]], Coef: 1}, {Var: procs[c[1]], Coef: 1}})
	}
	b.v.procs = append(b.v.procs, procs)
	var own []milp.Term // of the part's own time limit
	var vars [][][]int
	for k := range part.Partition.Chains {
		vars = append(vars, b.chain(p, k, &own))
	}
	b.v.Choice = append(b.v.Choice, vars)
	b.limit(Limit{LimitPartNS, p, name, part.MaxNS, 0}, "time "+name, own)
}

// takes adds ns and nj of one execution of the part to the limits on them, and returns their cost.
func (b *jointBuilder) takes(p int, variable int, ns, nj float64, own *[]milp.Term) {
	w := float64(b.j.Parts[p].Weight)
	*own = append(*own, milp.Term{Var: variable, Coef: ns})
	b.time = append(b.time, milp.Term{Var: variable, Coef: w * ns})
	b.energy = append(b.energy, milp.Term{Var: variable, Coef: w * nj})
	cost := 0.0
	switch b.j.Minimise {
	case Energy:
		cost = w * nj
	case Memory:
	default:
		cost = w * ns
	}
	b.m.Vars[variable].Cost += cost / b.v.Unit
}

func (b *jointBuilder) chain(p, k int, own *[]milp.Term) [][]int {
	part := &b.j.Parts[p]
	c := &part.Partition.Chains[k]
	at := fmt.Sprintf("%s %s", part.Partition.Name, c.Name)
	vars := make([][]int, len(c.Items))
	ns := make([][]float64, len(c.Items))
	for i := range c.Items {
		it := &c.Items[i]
		var one []milp.Term
		var assets []int
		needs := map[int][]milp.Term{} // by variable
		uses := make([][]milp.Term, len(part.Partition.Procs))
		for n := range it.Choices {
			ch := &it.Choices[n]
			x := b.variable(fmt.Sprintf("%s %s: %s", at, it.Name, ch.Label), 0, true)
			vars[i] = append(vars[i], x)
			ns[i] = append(ns[i], float64(c.Repeat)*float64(ch.CostNS))
			one = append(one, milp.Term{Var: x, Coef: 1})
			for _, a := range ch.Assets {
				if a >= len(b.v.asset) || b.v.asset[a] < 0 {
					continue
				}
				z := b.v.asset[a]
				if needs[z] == nil {
					assets = append(assets, a)
				}
				if terms := needs[z]; terms == nil || terms[len(terms)-1].Var != x {
					needs[z] = append(terms, milp.Term{Var: x, Coef: 1})
				}
			}
			for _, q := range ch.Procs {
				uses[q] = append(uses[q], milp.Term{Var: x, Coef: 1})
			}
		}
		b.row(fmt.Sprintf("one %s %s", at, it.Name), 1, 1, one)
		for _, a := range assets {
			b.row(fmt.Sprintf("needs %s %s: %s", at, it.Name, b.j.Assets[a].Name), math.Inf(-1), 0, append(needs[b.v.asset[a]], milp.Term{Var: b.v.asset[a], Coef: -1}))
		}
		for q, u := range b.v.procs[p] {
			if u >= 0 && len(uses[q]) > 0 {
				b.row(fmt.Sprintf("uses %s %s: %s", at, it.Name, part.Partition.Procs[q]), math.Inf(-1), 0, append(uses[q], milp.Term{Var: u, Coef: -1}))
			}
		}
	}
	for i := range c.Items {
		if len(c.Items[i].EdgeNS) > 0 {
			b.edge(p, k, i, vars, ns, own)
		}
	}
	for i := range c.Items {
		for n, x := range vars[i] {
			b.takes(p, x, ns[i][n], float64(c.Repeat)*float64(c.Items[i].Choices[n].EnergyNJ), own)
		}
	}
	return vars
}

// edge adds the edge into item i. ns collects what its ends add where it is the sum of that.
func (b *jointBuilder) edge(p, k, i int, vars [][]int, ns [][]float64, own *[]milp.Term) {
	c := &b.j.Parts[p].Partition.Chains[k]
	it := &c.Items[i]
	from := (i + len(c.Items) - 1) % len(c.Items)
	prev := &c.Items[from]
	times := float64(c.Repeat)
	if i == 0 {
		times = float64(c.Wraps())
	}
	if from == i { // one item follows itself
		for n := range it.Choices {
			ns[i][n] += times * float64(it.EdgeNS[it.Choices[n].After][it.Choices[n].Before])
		}
		return
	}
	// What an edge takes at least whichever class it leads to is its first end's, then what it takes at least whichever
	// it comes from is its other end's. What is left is often nothing.
	lowest := make([]int64, len(prev.After))
	for a, row := range it.EdgeNS {
		lowest[a] = slices.Min(row)
	}
	rest := make([]int64, len(it.Before))
	for x := range rest {
		rest[x] = math.MaxInt64
		for a, row := range it.EdgeNS {
			rest[x] = min(rest[x], row[x]-lowest[a])
		}
	}
	for n := range prev.Choices {
		ns[from][n] += times * float64(lowest[prev.Choices[n].After])
	}
	for n := range it.Choices {
		ns[i][n] += times * float64(rest[it.Choices[n].Before])
	}
	left := func(a, x int) int64 { return it.EdgeNS[a][x] - lowest[a] - rest[x] }
	// Merge classes with equal rows, and then with equal columns, of those that choices have.
	e := edgeVar{part: p, chain: k, from: from, to: i}
	var rows, cols []int // of EdgeNS, one for each merged class
	outs, ins := make([]int, len(prev.After)), make([]int, len(it.Before))
	used := func(n int, class func(n int) int, classes int) []bool {
		out := make([]bool, classes)
		for n := range n {
			out[class(n)] = true
		}
		return out
	}
	leaves := used(len(prev.Choices), func(n int) int { return prev.Choices[n].After }, len(outs))
	arrives := used(len(it.Choices), func(n int) int { return it.Choices[n].Before }, len(ins))
	merge := func(classes []int, has []bool, same func(a, b int) bool) (first []int) {
		for a := range classes {
			if !has[a] {
				continue
			}
			classes[a] = slices.IndexFunc(first, func(b int) bool { return same(a, b) })
			if classes[a] < 0 {
				classes[a] = len(first)
				first = append(first, a)
			}
		}
		return first
	}
	rows = merge(outs, leaves, func(a, b int) bool {
		for x := range ins {
			if arrives[x] && left(a, x) != left(b, x) {
				return false
			}
		}
		return true
	})
	cols = merge(ins, arrives, func(x, y int) bool {
		for _, a := range rows {
			if left(a, x) != left(a, y) {
				return false
			}
		}
		return true
	})
	ns64 := make([][]int64, len(rows))
	nothing := true
	for a, r := range rows {
		for _, x := range cols {
			ns64[a] = append(ns64[a], left(r, x))
			nothing = nothing && left(r, x) == 0
		}
	}
	if nothing {
		return
	}
	for n := range prev.Choices {
		e.out = append(e.out, outs[prev.Choices[n].After])
	}
	for n := range it.Choices {
		e.in = append(e.in, ins[it.Choices[n].Before])
	}
	e.network = route(ns64)
	at := fmt.Sprintf("%s %s %s", b.j.Parts[p].Partition.Name, c.Name, it.Name)
	terms := make([][]milp.Term, e.network.nodes)
	for n, m := range e.out {
		terms[m] = append(terms[m], milp.Term{Var: vars[from][n], Coef: -1})
	}
	for n, m := range e.in {
		terms[len(rows)+m] = append(terms[len(rows)+m], milp.Term{Var: vars[i][n], Coef: 1})
	}
	for _, w := range e.network.ways {
		y := b.variable(fmt.Sprintf("hand over %s: %d to %d", at, w.from, w.to), 0, false)
		e.variable = append(e.variable, y)
		b.takes(p, y, times*float64(w.ns), 0, own)
		terms[w.from] = append(terms[w.from], milp.Term{Var: y, Coef: 1})
		terms[w.to] = append(terms[w.to], milp.Term{Var: y, Coef: -1})
	}
	for n := range terms {
		b.row(fmt.Sprintf("passes %s: %d", at, n), 0, 0, terms[n])
	}
	b.v.edges = append(b.v.edges, e)
}

// Choices reads the choices from values of the variables.
func (v *JointVars) Choices(x []float64) [][][]int {
	var out [][][]int
	for _, part := range v.Choice {
		var chains [][]int
		for _, chain := range part {
			var list []int
			for _, vars := range chain {
				best := 0
				for n, y := range vars {
					if x[y] > x[vars[best]] {
						best = n
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

// X are values of the variables that stand for choices.
func (v *JointVars) X(j *Joint, m *milp.Model, choices [][][]int) []float64 {
	x := make([]float64, len(m.Vars))
	for p := range choices {
		for k := range choices[p] {
			for i, n := range choices[p][k] {
				x[v.Choice[p][k][i][n]] = 1
				ch := &j.Parts[p].Partition.Chains[k].Items[i].Choices[n]
				for _, a := range ch.Assets {
					if a < len(v.asset) && v.asset[a] >= 0 {
						x[v.asset[a]] = 1
					}
				}
				for _, q := range ch.Procs {
					if u := v.procs[p][q]; u >= 0 {
						x[u] = 1
					}
				}
			}
		}
	}
	for _, e := range v.edges {
		list := choices[e.part][e.chain]
		for _, w := range e.network.shortest(e.out[list[e.from]], e.in[list[e.to]]) {
			x[e.variable[w]] = 1
		}
	}
	return x
}

// Partition implements Engine.
func (r Relay) Partition(ctx context.Context, p *Partition) (Solution, error) {
	if err := p.Validate(); err != nil {
		return Solution{}, err
	}
	got, err := r.solve(ctx, &Joint{Name: p.Name, Parts: []Part{{Partition: p, Weight: 1}}}, Limits{})
	if err != nil {
		return Solution{}, err
	}
	if got.Choices == nil {
		return Solution{}, diag.New(diag.ClassUnavailable, "partition %q: the engine %q stopped without a solution", p.Name, r.Name())
	}
	out := Solution{Choices: got.Choices[0], ObjectiveNS: got.Objective, BoundNS: got.Bound, Status: Feasible}
	if r.Exact != nil && got.Status == Optimal { // of equally good ones the first is named by the engine that orders them
		if first, err := r.Exact.Partition(ctx, p); err == nil && first.Status == Optimal && agree(first.ObjectiveNS, out.ObjectiveNS) {
			return first, nil
		}
	}
	return out, p.Verify(out)
}

// Joint implements Engine.
func (r Relay) Joint(ctx context.Context, j *Joint, limits Limits) (JointSolution, error) {
	if err := j.Validate(); err != nil {
		return JointSolution{}, err
	}
	if j.MaxBytes > 0 && j.Resident > j.MaxBytes {
		return JointSolution{}, diag.New(diag.ClassInfeasible, "joint %q: %w", j.Name, &InfeasibleError{[]Limit{{Kind: LimitBytes, Max: j.MaxBytes, Need: j.Resident}}})
	}
	out, err := r.solve(ctx, j, limits)
	var why *InfeasibleError
	if errors.As(err, &why) && r.Exact != nil { // which limits
		if _, err := r.Exact.Joint(ctx, j, Limits{}); errors.As(err, &why) {
			return JointSolution{}, err
		}
	}
	if err != nil || out.Status == LimitReached {
		return out, err
	}
	proved := out.Status == Optimal
	out.Status = Feasible // perhaps not the first of its kind
	if r.Exact != nil && proved {
		known := Limits{Start: out.Choices}
		if first, err := r.Exact.Joint(ctx, j, known); err == nil && first.Status == Optimal && agree(first.Objective, out.Objective) {
			first.Nodes = out.Nodes
			return first, nil
		}
	}
	return out, j.Verify(out)
}

// agree reports whether an objective proved in whole numbers is the one found with the tolerances of a general engine.
func agree(exact, found int64) bool {
	return math.Abs(float64(exact)-float64(found)) <= milp.Tolerance*max(1, math.Abs(float64(found)))
}

// tightenings is how often a limit that an answer exceeds by the engine's tolerance is made smaller.
const tightenings = 4

// solve poses the problem and reads the answer. An answer may break a limit by the engine's tolerance, relative to
// the limit: then it is solved again with that limit a little smaller, and the first bound stands.
func (r Relay) solve(ctx context.Context, j *Joint, limits Limits) (JointSolution, error) {
	m, vars := j.MILP()
	options := milp.Options{Nodes: r.limit(limits)}
	if limits.Start != nil && j.Keeps(limits.Start) {
		options.Start = vars.X(j, m, limits.Start)
	}
	var bound int64
	var nodes int64
	for round := 0; ; round++ {
		got, err := r.General.Solve(ctx, m, options)
		if err != nil {
			return JointSolution{}, fmt.Errorf("solve joint %q: %w", j.Name, err)
		}
		nodes += got.Nodes
		switch {
		case got.Status == milp.Infeasible && round == 0:
			return JointSolution{}, diag.New(diag.ClassInfeasible, "joint %q: %w", j.Name, &InfeasibleError{})
		case got.Status == milp.Infeasible || got.Status == milp.Limit:
			if round == 0 {
				bound = below(got.Bound * vars.Unit)
			}
			return JointSolution{Status: LimitReached, Bound: bound, Nodes: nodes}, nil
		}
		out := JointSolution{Choices: vars.Choices(got.X), Status: Feasible, Nodes: nodes}
		u := j.Use(out.Choices)
		out.Objective = j.Objective(&u)
		if round == 0 {
			bound = below(got.Bound * vars.Unit)
		}
		broken := j.Broken(&u)
		if len(broken) == 0 {
			out.Bound = min(max(bound, 0), out.Objective)
			if got.Status == milp.Optimal && (round == 0 || out.Bound == out.Objective) {
				out.Bound, out.Status = out.Objective, Optimal
			}
			return out, nil
		}
		if round == tightenings {
			return JointSolution{Status: LimitReached, Bound: bound, Nodes: nodes}, nil
		}
		for i := range m.Rows {
			l, ok := vars.rows[m.Rows[i].Name]
			if ok && slices.ContainsFunc(broken, func(x Limit) bool { return x.Kind == l.Kind && x.Index == l.Index }) {
				m.Rows[i].High -= 1e3 * milp.Tolerance * float64(int(1)<<round)
			}
		}
	}
}

// below is a whole number that a bound found with tolerances does not fall short of.
func below(v float64) int64 {
	v -= math.Abs(v) * milp.Tolerance / 10
	if math.IsNaN(v) || v <= 0 {
		return 0
	}
	return int64(min(math.Floor(v), 1<<62))
}
