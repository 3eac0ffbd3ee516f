package solver

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/socs/timeline"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// estimate is a predicted time in nanoseconds.
type estimate struct{ ns, low, high int64 }

// task is an operator on a processor, as prices are asked for it.
type task struct {
	proc string
	op   op.Op
}

// cold reports whether a task reads what lies as a model leaves it (weights, the cache) rather than
// what the step before has just written.
func (t *task) cold() bool {
	return t.op.HasScheme() || t.op.Kind == op.Embed || t.op.Kind == op.Attention
}

// prices is what the solver asks of a cost model. An error says that it has no answer: nothing was
// measured, or the shape is infeasible.
type prices interface {
	// together predicts tasks that different processors execute at the same time, each slowed down
	// by the others.
	together(tasks []task) ([]estimate, error)
	// phase is a task taken apart: what of it others slow down.
	phase(task) (timeline.Phase, error)
	// memory is how processors slow each other down.
	memory() *timeline.Memory
	// handover is the time from one processor's setting of a flag to the other's noticing it.
	handover(from, to string) (estimate, error)
	// launch is the part of every operator's price that a graph of several pays once.
	launch(proc string) (int64, error)
	// copy is the time to move bytes from one processor to another, 0 where they share memory.
	copy(from, to string, bytes int64) (int64, error)
}

// access is a processor and a view that it reads or has written.
type access struct {
	proc string
	view planir.View
	name string // of both
}

// candidate is one way to execute a node, priced.
type candidate struct {
	planir.Decision // PredictNS is the execution alone, without hand-overs from the node before
	// costNS is PredictNS as it counts in the objective: more where shorter calls leave shares idle.
	costNS   int64
	energyNJ int64 // modelled: what its processors take while they are busy
	reads    []access
	writes   []access   // who wrote the outputs last
	shares   []estimate // of each share
}

func (c *candidate) label() string { return string(c.Strategy) + " " + c.ShareText() }

// stage is a section at one number of rows with what its candidates are made of.
type stage struct {
	whole  bool // operators are not divided
	sec    *lower.Section
	repeat int // executions of the section, over all sections of its name
	breaks int // how often another section comes between two of them
	rows   int // of the program; the section's own nodes may have one
	procs  []planir.Proc
	static map[string]int     // row granularity of processors with static shapes
	apart  map[[2]string]bool // pairs of processors that never appear together
	beside map[[2]int]bool    // pairs that may work at the same time, by index in procs, in both orders
	prices prices
	memory *timeline.Machine // what work shares that runs at the same time
	hops   []hop             // by index of writer and reader in procs
	facts  *compilerFacts
	power  map[string]float64 // W while busy
	// context is the number of cached positions that attention is priced for.
	context int
	buckets []int    // of the workload
	grid    int      // boundaries tried of a divided axis
	only    []string // processors that execute all they can; empty: all do
	// assistants may execute what those of only that they assist cannot.
	assistants map[string][]string
	lengths    []workload.Prompt // rows of the calls that the program is for

	exact   map[string]bool            // nodes that are computed in float32 whatever is permitted
	missing map[string]error           // per processor, why a price was not to be had: the first one
	refused map[string][]refusedByProc // per node, the processors that cannot execute it alone
}

// refusedByProc is why a processor does not execute a node.
type refusedByProc struct {
	proc string
	err  error
}

func (st *stage) proc(name string) *planir.Proc {
	for i := range st.procs {
		if st.procs[i].Name == name {
			return &st.procs[i]
		}
	}
	return nil
}

// candidate prices a node divided as a decision says, each share in the rows and form that are cheapest, or tells
// why that cannot be: a processor does not execute it, or no price is known.
func (st *stage) candidate(i int, strategy planir.Strategy, axis planir.Axis, shares []planir.Share) (candidate, error) {
	n := &st.sec.Nodes[i]
	shares = slices.Clone(shares)
	for k := range shares {
		st.shape(n, axis, &shares[k])
	}
	return st.as(i, strategy, axis, shares)
}

// as is candidate with the rows and forms that the shares say.
func (st *stage) as(i int, strategy planir.Strategy, axis planir.Axis, shares []planir.Share) (candidate, error) {
	n := &st.sec.Nodes[i]
	c := candidate{Decision: planir.Decision{Node: n.Name, Rows: st.rows, Strategy: strategy, Scheme: n.Op().Scheme, Axis: axis, Shares: slices.Clone(shares)}}
	pieces, err := lower.Cut(st.sec, n, &c.Decision, st.proc)
	if err != nil {
		return c, err
	}
	tasks := make([][]task, len(pieces)) // per piece, its chain
	longest := 0
	for k := range pieces {
		p := &pieces[k]
		if p.Role != lower.Compute {
			continue
		}
		for _, o := range p.Ops {
			tasks[k] = append(tasks[k], task{p.Proc, st.inContext(o)})
		}
		longest = max(longest, len(tasks[k]))
		if o := p.Op(); o.HasScheme() {
			bytes := int64(max(1, o.Experts)) * op.WeightBytes(o.Scheme.Weight(), o.K, o.N)
			if x := st.facts.of(p.Proc, o); x != nil {
				if bytes = x.Bytes; x.Refused != "" {
					return c, diag.New(diag.ClassInfeasible, "the compiler of processor %q refuses %s: %s", p.Proc, o.Key(), x.Refused)
				}
			}
			if limit := st.proc(p.Proc).GraphBytes; limit > 0 && bytes > limit {
				return c, diag.New(diag.ClassInfeasible, "its weights take %d bytes, and one graph of processor %q holds at most %d", bytes, p.Proc, limit)
			}
		}
	}
	// Shares run at the same time, link by link of their chains.
	c.shares = make([]estimate, len(c.Shares))
	for link := range longest {
		var now []task
		var who []int
		for k := range pieces {
			if link < len(tasks[k]) {
				now, who = append(now, tasks[k][link]), append(who, k)
			}
		}
		est, err := st.concurrent(now)
		if err != nil {
			return c, st.lacks(now, err)
		}
		for j, k := range who {
			var once int64 // a graph of several operators is launched once
			if link > 0 {
				if once, err = st.prices.launch(pieces[k].Proc); err != nil {
					return c, st.lacks(now, err)
				}
			}
			e := &c.shares[pieces[k].Share]
			e.ns, e.low, e.high = e.ns+max(0, est[j].ns-once), e.low+max(0, est[j].low-once), e.high+max(0, est[j].high-once)
		}
	}
	end, energy, err := st.execute(pieces, c.shares)
	if err != nil {
		return c, err
	}
	c.energyNJ = whole(math.Round(energy))
	if c.energyNJ > problem.MaxNS { // it stands where times do when energy is minimised
		return c, diag.New(diag.ClassInput, "price %s as %s: %.4g J are modelled, want at most %.4g", n.Name, c.label(), float64(c.energyNJ)/1e9, float64(problem.MaxNS)/1e9).
			WithHint("no operator takes that much: correct power_w in the SoC file, or measure again")
	}
	for k := range c.Shares {
		c.Shares[k].PredictNS = c.shares[k].ns
	}
	c.PredictNS = end
	c.costNS = whole(math.Round(float64(end) * st.idle(&c)))
	if most := max(end, c.costNS); most > problem.MaxNS {
		return c, reckoned(most, "%s as %s", n.Name, c.label())
	}
	c.access(n, pieces)
	c.name()
	return c, nil
}

// inContext is an operator as it is priced: attention reads as many positions as are cached.
func (st *stage) inContext(o op.Op) op.Op {
	if o.Kind == op.Attention {
		o.Context = st.context
	}
	return o
}

// concurrent predicts tasks that start together; of one processor's each runs beside the first of every other's.
func (st *stage) concurrent(tasks []task) ([]estimate, error) {
	first := map[string]int{}
	for i := range tasks {
		if _, ok := first[tasks[i].proc]; !ok {
			first[tasks[i].proc] = i
		}
	}
	if len(first) == len(tasks) {
		return st.prices.together(tasks)
	}
	out := make([]estimate, len(tasks))
	for i := range tasks {
		beside := []task{tasks[i]}
		for j := range tasks {
			if first[tasks[j].proc] == j && tasks[j].proc != tasks[i].proc {
				beside = append(beside, tasks[j])
			}
		}
		est, err := st.prices.together(beside)
		if err != nil {
			return nil, err
		}
		out[i] = est[0]
	}
	return out, nil
}

// lacks notes which processor had no price, and returns the error.
func (st *stage) lacks(tasks []task, err error) error {
	for _, t := range tasks {
		if _, own := st.prices.together([]task{t}); own != nil {
			err = own
		} else if len(tasks) > 1 {
			continue
		}
		if st.missing[t.proc] == nil {
			st.missing[t.proc] = err
		}
	}
	return err
}

// maxPads is how many multiples of a processor's granularity are tried as numbers of rows.
const maxPads = 16

// shape gives a share the number of rows and the form in which its processor is fastest on its own: the default form and
// few rows where others take as long. A processor with static shapes executes standard numbers of rows,
// multiples of its tile, and as prices are not monotone in them those tried are the next multiples, the next powers of
// two, and what was measured. Forms are those that the processor has and that have a price.
func (st *stage) shape(n *lower.Node, axis planir.Axis, sh *planir.Share) {
	sh.Form = ""
	o := n.Op()
	switch axis {
	case planir.AxisRows:
		o.M = sh.To - sh.From
	case planir.AxisCols:
		o.N = sh.To - sh.From
	case planir.AxisK:
		o.K, o.Bias = sh.To-sh.From, o.Bias && sh.From == 0
	}
	rows := o.M
	options := []int{max(rows, sh.PadRows)}
	// Only the last rows may be padded.
	pads := st.static[sh.Proc] > 0 && sh.PadRows == 0 && axis != planir.AxisK && axis != planir.AxisHeads && (axis != planir.AxisRows || sh.To == n.Op().M)
	switch p := st.proc(sh.Proc); {
	case pads:
		options = st.pads(sh.Proc, o)
	case p == nil || len(p.Forms) == 0:
		return
	}
	best := int64(math.MaxInt64)
	for _, m := range options {
		o.M = m
		for _, f := range append([]op.Form{""}, st.forms(sh.Proc, o)...) {
			o.Form = f
			e, err := st.prices.together([]task{{sh.Proc, o}})
			if err != nil || e[0].ns >= best || (rows == 1 && m > 1 || n.Op().Scheme.Static() && m > options[0]) && sameTime(e[0].ns, best) {
				continue // a padded token, and other rows than those of a static scale, keep a graph from being one with its neighbours'
			}
			best, sh.Form = e[0].ns, f
			if pads {
				sh.PadRows = m
			}
		}
		o.Form = ""
	}
	if o.M = rows; pads && best < math.MaxInt64 {
		st.avoidSpill(o, sh)
	}
	if sh.PadRows == rows {
		sh.PadRows = 0
	}
}

// pads are the numbers of rows to try on a processor with static shapes, the fewest first among equals.
func (st *stage) pads(proc string, o op.Op) []int {
	unit, rows := st.static[proc], o.M
	power := unit
	for power < rows {
		power *= 2
	}
	next := socs.Round(rows, unit)
	options := []int{next, power}
	if rows == 1 { // decode: the compiler pads what it must
		return append([]int{1}, options...)
	}
	if !o.HasScheme() { // operators on rows take their time with them
		return options
	}
	for m := next + unit; m < power && len(options) < maxPads; m += unit {
		options = append(options, m)
	}
	options = append(options, 2*power)
	if x, ok := st.prices.(interface{ measured(task) []int }); ok {
		for _, m := range x.measured(task{proc, o}) {
			if m > rows && m%unit == 0 {
				options = append(options, m)
			}
		}
	}
	return options
}

// forms are those, besides the default, in which a processor can compute a product and that have a price.
func (st *stage) forms(proc string, o op.Op) []op.Form {
	p := st.proc(proc)
	x, ok := st.prices.(interface{ forms(task) []op.Form })
	if !ok || p == nil || len(p.Forms) == 0 {
		return nil
	}
	return slices.DeleteFunc(x.forms(task{proc, o}), func(f op.Form) bool { return !p.HasForm(o.Scheme, f) })
}

// execute is when the last piece of a node is done, all lanes starting at 0: shares at once, then what is
// gathered or added, each after what the share computed has been handed over. energy is what all processors take for it, in nJ.
func (st *stage) execute(pieces []lower.Piece, shares []estimate) (end int64, energy float64, err error) {
	lanes, done := map[string]int64{}, make([]int64, len(shares))
	for k := range pieces {
		p := &pieces[k]
		if p.Role == lower.Compute {
			lanes[p.Proc] += shares[p.Share].ns
			done[p.Share] = lanes[p.Proc]
			energy += float64(st.power[p.Proc] * float64(shares[p.Share].ns))
			end = max(end, lanes[p.Proc])
			continue
		}
		from := pieces[p.Share].Proc
		after := []task{{p.Proc, p.Op()}}
		est, err := st.prices.together(after)
		if err == nil && from != p.Proc {
			var hand estimate
			hand, err = st.prices.handover(from, p.Proc)
			lanes[p.Proc] = max(lanes[p.Proc], done[p.Share]+hand.ns)
		}
		if err != nil {
			return 0, 0, st.lacks(after, err)
		}
		lanes[p.Proc] += est[0].ns
		energy += float64(st.power[p.Proc] * float64(est[0].ns))
		end = max(end, lanes[p.Proc])
	}
	return end, energy, nil
}

// idle is how much a division by rows loses over one by columns when calls have fewer rows than the
// program: the first share keeps its rows, the last goes without. Time is taken to grow with the rows.
func (st *stage) idle(c *candidate) float64 {
	if c.Axis != planir.AxisRows || c.PredictNS == 0 {
		return 1
	}
	with, without := 0.0, 0.0
	for _, call := range st.lengths {
		busy := map[string]float64{}
		for k, sh := range c.Shares {
			rows := float64(max(0, min(call.Tokens, sh.To)-sh.From))
			t := float64(c.shares[k].ns)
			if st.static[sh.Proc] == 0 {
				t *= rows / float64(sh.To-sh.From)
			} else if rows == 0 {
				t = 0
			}
			busy[sh.Proc] += t
		}
		slowest := 0.0
		for _, sh := range c.Shares {
			slowest = max(slowest, busy[sh.Proc])
		}
		with += float64(call.Share * slowest)
		without += float64(call.Share * float64(c.PredictNS) * float64(call.Tokens) / float64(st.rows))
	}
	if without == 0 {
		return 1
	}
	return max(1, with/without)
}

// access notes who reads what, and who wrote each output last.
func (c *candidate) access(n *lower.Node, pieces []lower.Piece) {
	taken := map[planir.View]bool{}
	for k := len(pieces) - 1; k >= 0; k-- {
		for _, v := range pieces[k].Out {
			if slices.Contains(n.Out, v.Buffer) && !taken[v] {
				taken[v] = true
				name := pieces[k].Proc + " " + v.String()
				c.writes = append(c.writes, access{pieces[k].Proc, v, name})
			}
		}
		if pieces[k].Role == lower.Compute {
			for _, v := range pieces[k].In {
				c.reads = append(c.reads, access{pieces[k].Proc, v, pieces[k].Proc + " " + v.String()})
			}
		}
	}
	for _, list := range [][]access{c.reads, c.writes} {
		slices.SortFunc(list, func(a, b access) int { return strings.Compare(a.name, b.name) })
	}
}

// name gives the candidate the strategy its shares amount to.
func (c *candidate) name() {
	padded := slices.ContainsFunc(c.Shares, func(s planir.Share) bool { return s.PadRows > 0 })
	switch {
	case padded && c.Strategy == planir.Single:
		c.Strategy = planir.Padding
	case padded && c.Strategy == planir.WeightCentric:
		c.Strategy = planir.Hybrid
	}
}

// base is the strategy without its padding.
func base(s planir.Strategy) planir.Strategy {
	switch s {
	case planir.Padding:
		return planir.Single
	case planir.Hybrid:
		return planir.WeightCentric
	}
	return s
}

// locations is the location class of accesses: who holds (or reads) which part of the values in buffers.
func locations(list []access, buffers []string) string {
	var parts []string
	for _, a := range list {
		if slices.Contains(buffers, a.view.Buffer) {
			parts = append(parts, a.name)
		}
	}
	return strings.Join(parts, "; ")
}

// place is an access with numbers for names: instances weigh every location of a node's outputs against every location in
// which the next one reads them.
type place struct {
	proc           int // index in stage.procs
	value          int // index in the buffers between the two nodes
	r0, r1, c0, c1 int
	bytes          int64 // of an element
}

// places are the accesses to buffers.
func (st *stage) places(list []access, buffers []string) []place {
	var out []place
	for _, a := range list {
		if k := slices.Index(buffers, a.view.Buffer); k >= 0 {
			proc := slices.IndexFunc(st.procs, func(p planir.Proc) bool { return p.Name == a.proc })
			out = append(out, place{proc, k, a.view.R0, a.view.R1, a.view.C0, a.view.C1, int64(st.sec.Values[a.view.Buffer].Type.Bytes())})
		}
	}
	return out
}

// hop is the price of a flag from one processor to another, once looked up.
type hop struct {
	known, apart bool
	ns           int64
}

// handover is the time from the end of a node, whose outputs lie as writes say, to the start of the next.
// A processor that reads only what it wrote itself waits for nobody. Between processors that never
// appear together there is no price, and none is needed.
func (st *stage) handover(writes, reads []place) (int64, error) {
	n := len(st.procs)
	if st.hops == nil {
		st.hops = make([]hop, n*n)
	}
	var worst int64
	for i := range reads {
		if i > 0 && reads[i-1].proc == reads[i].proc {
			continue // accesses are sorted: one round per reader
		}
		var flag, move int64
		for k := i; k < len(reads) && reads[k].proc == reads[i].proc; k++ {
			r := &reads[k]
			for j := range writes {
				w := &writes[j]
				if r.proc == w.proc || r.value != w.value || r.r0 >= w.r1 || w.r0 >= r.r1 || r.c0 >= w.c1 || w.c0 >= r.c1 {
					continue
				}
				h, from, to := &st.hops[w.proc*n+r.proc], st.procs[w.proc].Name, st.procs[r.proc].Name
				if !h.known {
					if h.apart = st.apart[[2]string{to, from}]; !h.apart {
						hand, err := st.prices.handover(from, to)
						if err != nil {
							return 0, err
						}
						h.ns = hand.ns
					}
					h.known = true
				}
				if h.apart {
					continue
				}
				rows, cols := min(r.r1, w.r1)-max(r.r0, w.r0), min(r.c1, w.c1)-max(r.c0, w.c0)
				c, err := st.prices.copy(from, to, int64(rows)*int64(cols)*r.bytes)
				if err != nil {
					return 0, err
				}
				flag, move = max(flag, h.ns), move+c
			}
		}
		worst = max(worst, flag+move)
	}
	if worst > problem.MaxNS {
		return worst, reckoned(worst, "handing %s over", st.sec.Name)
	}
	return worst, nil
}

// How many boundaries of a divided axis are tried before the search for the balance, for few tuples and
// for many; and processors in one tuple.
const (
	gridSteps    = 32
	gridStepsMin = 4
	maxTuple     = 3
)

func gridOf(tuples int) int { return min(max(3*gridSteps/max(1, tuples), gridStepsMin), gridSteps) }

// candidates lists the ways to execute each node of the section, or why there are none. Every processor that
// executes a node alone is among them; the order is fixed. tuples are lists of at least two processors
// that may run together.
func (st *stage) candidates(tuples [][]string) ([][]candidate, []error) {
	out, errs := make([][]candidate, len(st.sec.Nodes)), make([]error, len(st.sec.Nodes))
	seen := make([]map[string]bool, len(st.sec.Nodes))
	add := func(i int, c candidate) {
		if seen[i] == nil {
			seen[i] = map[string]bool{}
		}
		if l := c.label(); !seen[i][l] {
			seen[i][l] = true
			out[i] = append(out[i], c)
		}
	}
	lacking := make([][]string, len(st.sec.Nodes)) // processors of only that cannot execute the node
	for i := range st.sec.Nodes {
		for _, assist := range []bool{false, true} {
			for k := range st.procs {
				p := st.procs[k].Name
				if assist == (len(st.only) == 0 || slices.Contains(st.only, p)) || !st.may([]string{p}, lacking[i]) {
					continue
				}
				c, err := st.candidate(i, planir.Single, planir.AxisNone, []planir.Share{{Proc: p}})
				if err != nil {
					name := st.sec.Nodes[i].Name
					st.refused[name] = append(st.refused[name], refusedByProc{p, err})
					lacking[i] = append(lacking[i], p)
					continue
				}
				add(i, c)
			}
		}
		if len(out[i]) == 0 {
			errs[i] = st.impossible(i)
		}
		if st.whole {
			continue
		}
		for _, c := range st.pieces(i, tuples) {
			if st.may(c.procs(), lacking[i]) {
				add(i, c)
			}
		}
	}
	if st.whole {
		return out, errs
	}
	for _, run := range st.runs() {
		for _, tuple := range tuples {
			add := func(i int, c candidate) {
				if st.may(tuple, lacking[i]) {
					add(i, c)
				}
			}
			for _, c := range st.divide(run, tuple) {
				add(c.node, c.candidate)
			}
			if run[len(run)-1].axis == planir.AxisK { // the first adds what all have computed
				tuple = slices.Clone(tuple)
				slices.Reverse(tuple)
				for _, c := range st.divide(run, tuple) {
					add(c.node, c.candidate)
				}
			}
		}
	}
	return out, errs
}

// maxPieces is how many standard pieces an operator is executed in.
const maxPieces = 4

// pieces are the ways to execute a matrix in standard numbers of rows, one after the other, on a processor with static shapes (HeteroInfer
// sec. 4.2): all of them there, the last padded, or what is left on a processor without such shapes, at the same time. Standard are
// the buckets and the powers of two: their graphs are shared.
func (st *stage) pieces(i int, tuples [][]string) (out []candidate) {
	n := &st.sec.Nodes[i]
	rows := n.Op().M
	if _, err := lower.AxisLength(n, planir.AxisRows); err != nil || !n.Op().HasScheme() || rows == 1 {
		return nil
	}
	for k := range st.procs {
		p := st.procs[k].Name
		unit := st.static[p]
		if unit == 0 {
			continue
		}
		var sizes []int
		for m := unit; m <= 2*rows; m *= 2 {
			sizes = append(sizes, m)
		}
		for _, b := range st.buckets {
			if b%unit == 0 {
				sizes = append(sizes, b)
			}
		}
		slices.Sort(sizes)
		sizes = slices.Compact(sizes)
		for _, size := range sizes {
			times := rows / size
			if size >= rows || times > maxPieces {
				continue
			}
			var shares []planir.Share
			at := 0
			for range times {
				shares = append(shares, planir.Share{Proc: p, From: at, To: at + size})
				at += size
			}
			try := func(strategy planir.Strategy, rest ...planir.Share) {
				if c, err := st.candidate(i, strategy, planir.AxisRows, slices.Concat(shares, rest)); err == nil {
					out = append(out, c)
				}
			}
			if at == rows {
				if times > 1 {
					try(planir.Pipe)
				}
				continue
			}
			last := planir.Share{Proc: p, From: at, To: rows}
			if standard := sizes[sort.SearchInts(sizes, rows-at)]; standard > rows-at {
				last.PadRows = standard
			}
			try(planir.Pipe, last)
			for _, t := range tuples {
				if len(t) == 2 && slices.Contains(t, p) {
					other := t[0]
					if other == p {
						other = t[1]
					}
					if st.static[other] == 0 {
						try(planir.ActivationDivide, planir.Share{Proc: other, From: at, To: rows})
					}
				}
			}
		}
	}
	return out
}

// procs are the processors that take part.
func (c *candidate) procs() (out []string) {
	for _, sh := range c.Shares {
		if !slices.Contains(out, sh.Proc) {
			out = append(out, sh.Proc)
		}
	}
	return out
}

// may reports whether processors are candidates for a node that others, lacking, cannot execute: those of only, and
// whoever assists one that lacks it.
func (st *stage) may(procs, lacking []string) bool {
	return len(st.only) == 0 || !slices.ContainsFunc(procs, func(p string) bool {
		return !slices.Contains(st.only, p) && !slices.ContainsFunc(st.assistants[p], func(x string) bool { return slices.Contains(lacking, x) })
	})
}

// impossible explains why no processor executes a node.
func (st *stage) impossible(i int) error {
	n := &st.sec.Nodes[i]
	var reasons []string
	for _, r := range st.refused[n.Name] {
		if diag.ClassOf(r.err) == diag.ClassInput {
			d := diag.New(diag.ClassInput, "price %q at %d rows: %w", n.Name, st.rows, r.err)
			if len(diag.HintsOf(r.err)) == 0 {
				d = d.WithHint("measure it: hetc profile --soc SOC --model MODEL --workload WORKLOAD -o rec.jsonl --resume")
			}
			return d
		}
		reasons = append(reasons, r.reason())
	}
	d := diag.New(diag.ClassInfeasible, "no processor executes %q at %d rows (%s): %s", n.Name, st.rows, n.Op().Key(), strings.Join(reasons, "; "))
	switch s := n.Op().Scheme; {
	case st.exact[n.Name]:
		return d.WithHint("it is computed in %q whatever the workload permits, because rounding would choose other experts: a processor has to list that scheme in the SoC", s)
	case s != "":
		return d.WithHint("permit another scheme than %q (with fewer bits, if it is too large) in the workload, or add processors to the SoC", s)
	}
	return d
}

// reason is what to tell of it.
func (r *refusedByProc) reason() string {
	if inner := errors.Unwrap(r.err); inner != nil && diag.ClassOf(r.err) == diag.ClassInternal {
		return inner.Error() // of lower.Cut: without whose share it was
	}
	return r.err.Error()
}

// link is a node and the axis along which a run divides it.
type link struct {
	node int
	axis planir.Axis
}

// runs lists what may be divided: every node along each of its axes, and runs of nodes that, divided at
// corresponding boundaries, hand nothing over: columns of a matrix or heads, then of what works on columns,
// then the reduction of the next matrix; and rows of everything but attention.
func (st *stage) runs() [][]link {
	var out [][]link
	var rows []link
	end := -1 // last node of the runs so far
	for i := range st.sec.Nodes {
		n := &st.sec.Nodes[i]
		for _, axis := range []planir.Axis{planir.AxisCols, planir.AxisHeads} {
			if _, err := lower.AxisLength(n, axis); err == nil {
				out = append(out, []link{{i, axis}})
			}
		}
		if m, err := lower.AxisLength(n, planir.AxisRows); err == nil && m > 1 {
			rows = append(rows, link{i, planir.AxisRows})
		}
		run := st.columnRun(i)
		if len(run) > 1 && (n.Op().HasScheme() || i > end) {
			end = max(end, run[len(run)-1].node)
			out = append(out, run)
			// The reduction's additions may outweigh what it saves: also without it.
			if last := len(run) - 1; run[last].axis == planir.AxisK && last > 1 {
				out = append(out, run[:last])
			}
		}
	}
	if len(rows) > 0 {
		out = append(out, rows)
	}
	for _, l := range rows {
		if len(rows) > 1 {
			out = append(out, []link{l})
		}
	}
	return out
}

// columnRun is the longest run that starts with the columns (or heads) of node i. It ends where a node reads
// whole rows of what the one before computed (norms, row quantisation, routing, matrices of experts).
func (st *stage) columnRun(i int) []link {
	var run []link
	switch o := st.sec.Nodes[i].Op(); {
	case o.HasScheme():
		run = []link{{i, planir.AxisCols}}
	case o.Kind == op.Attention:
		run = []link{{i, planir.AxisHeads}}
	default:
		return nil
	}
	for j := i + 1; j < len(st.sec.Nodes); j++ {
		n, before := &st.sec.Nodes[j], &st.sec.Nodes[j-1]
		operand := slices.Index(n.In, before.Out[0])
		if operand < 0 {
			break
		}
		switch o := n.Op(); {
		case o.Kind == op.Add || operand == 0 && columnwise(o.Kind):
			run = append(run, link{j, planir.AxisCols})
			continue
		case o.Kind == op.Attention:
			run = append(run, link{j, planir.AxisHeads})
			continue
		case o.Kind == op.MatMul && !o.Scheme.QuantisedRows() && !o.Scheme.Grid() && !o.Scheme.Half():
			run = append(run, link{j, planir.AxisK})
		}
		break
	}
	return run
}

// columnwise reports whether a column of the result depends on columns of the first operand that a processor
// has computed itself, when both are divided alike.
func columnwise(k op.Kind) bool {
	switch k {
	case op.GLU, op.Activate, op.Softcap, op.Clip, op.Combine, op.Gate:
		return true
	}
	return false
}

// inColumns is where a boundary of a node along an axis lies in the columns of its input.
func inColumns(o op.Op, b int) int {
	switch o.Kind {
	case op.GLU:
		return 2 * b
	case op.Attention:
		return b * (o.Heads/o.KVHeads + 2) * o.HeadDim
	}
	return b
}

// atColumn is the boundary of a node that lies at a column of its output; false between two.
func atColumn(o op.Op, col int) (int, bool) {
	if o.Kind == op.Attention {
		width := o.Heads / o.KVHeads * o.HeadDim
		return col / width, col%width == 0
	}
	return col, true
}

// boundary is where a run is divided, in the units of each of its nodes.
type boundary []int

// boundaries lists where a run can be divided between two of the processors, ascending: where every
// node has a boundary on the granularity of all of them.
func (st *stage) boundaries(run []link, tuple []string) []boundary {
	last := &st.sec.Nodes[run[len(run)-1].node]
	length, err := lower.AxisLength(last, run[len(run)-1].axis)
	if err != nil {
		return nil
	}
	unit := func(l link) int {
		u := 1
		for _, name := range tuple {
			g := lower.Granularity(&st.sec.Nodes[l.node], l.axis, st.proc(name))
			if l.axis == planir.AxisRows {
				g = max(1, st.static[name])
			}
			u = lcm(u, g)
		}
		return u
	}
	var out []boundary
	step := unit(run[len(run)-1])
next:
	for b := step; b < length; b += step {
		at := make(boundary, len(run))
		at[len(run)-1] = b
		for k := len(run) - 2; k >= 0; k-- {
			if run[k].axis == planir.AxisRows {
				at[k] = b
				continue
			}
			var ok bool
			if at[k], ok = atColumn(st.sec.Nodes[run[k].node].Op(), inColumns(st.sec.Nodes[run[k+1].node].Op(), at[k+1])); !ok || at[k]%unit(run[k]) != 0 {
				continue next
			}
		}
		out = append(out, at)
	}
	return out
}

func lcm(a, b int) int {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// divided is a candidate of a run's node.
type divided struct {
	node int
	candidate
}

// divide lists the candidates of a run over a tuple: for two processors a grid of boundaries, for more
// even parts, and for both the balance that a search from there finds.
func (st *stage) divide(run []link, tuple []string) []divided {
	at := st.boundaries(run, tuple)
	if len(at) < len(tuple)-1 {
		return nil
	}
	strategies := map[planir.Axis]planir.Strategy{
		planir.AxisCols: planir.WeightCentric, planir.AxisHeads: planir.WeightCentric,
		planir.AxisRows: planir.ActivationDivide, planir.AxisK: planir.Paired,
	}
	type result struct {
		list []divided
		ns   int64
	}
	tried := map[string]result{}
	var order []string
	// try prices the run with cuts at indices of at.
	try := func(cuts []int) int64 {
		key := fmt.Sprint(cuts)
		if r, ok := tried[key]; ok {
			return r.ns
		}
		r := result{}
		for k, l := range run {
			length, _ := lower.AxisLength(&st.sec.Nodes[l.node], l.axis)
			shares := make([]planir.Share, len(tuple))
			from := 0
			for j, name := range tuple {
				to := length
				if j < len(cuts) {
					to = at[cuts[j]][k]
				}
				shares[j] = planir.Share{Proc: name, From: from, To: to}
				from = to
			}
			c, err := st.candidate(l.node, strategies[l.axis], l.axis, shares)
			if err != nil {
				r.ns = math.MaxInt64 // the others stay: a run may be divided in part
				continue
			}
			r.list = append(r.list, divided{l.node, c})
			if r.ns != math.MaxInt64 {
				r.ns += c.costNS
			}
		}
		tried[key] = r
		order = append(order, key)
		return r.ns
	}
	var best []int
	bestNS := int64(math.MaxInt64)
	consider := func(cuts []int) bool {
		for j := range cuts {
			if cuts[j] < 0 || cuts[j] >= len(at) || j > 0 && cuts[j] <= cuts[j-1] {
				return false
			}
		}
		if ns := try(cuts); ns < bestNS {
			best, bestNS = slices.Clone(cuts), ns
			return true
		}
		return false
	}
	stride := max(1, len(at)/st.grid)
	if len(tuple) == 2 {
		for i := stride / 2; i < len(at); i += stride {
			consider([]int{i})
		}
		consider([]int{(len(at) - 1) / 2}) // the middle, whatever the grid
	} else {
		even := make([]int, len(tuple)-1)
		for j := range even {
			even[j] = (j + 1) * len(at) / len(tuple)
		}
		if even[0] > 0 {
			for j := range even {
				even[j]--
			}
		}
		consider(even)
		stride = max(1, len(at)/4)
	}
	// Move cuts, each alone and neighbours together, by shorter and shorter steps.
	for ; best != nil && stride > 0; stride /= 2 {
		for moved := true; moved; {
			moved = false
			for first := range best {
				for last := first; last < len(best); last++ {
					for _, d := range []int{-stride, stride} {
						cuts := slices.Clone(best)
						for j := first; j <= last; j++ {
							cuts[j] += d
						}
						moved = consider(cuts) || moved
					}
				}
			}
		}
	}
	// Of a search over many processors only where it ended is kept.
	if len(tuple) > 2 {
		if best == nil {
			return nil
		}
		return tried[fmt.Sprint(best)].list
	}
	var out []divided
	for _, key := range order {
		out = append(out, tried[key].list...)
	}
	return out
}
