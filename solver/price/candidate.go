package price

import (
	"errors"
	"math"
	"slices"
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

// candidate is one way to execute a node, priced.
type Candidate struct {
	planir.Decision // PredictNS is the execution alone, without hand-overs from the node before
	// costNS is PredictNS as it counts in the objective: more where shorter calls leave shares idle.
	CostNS   int64
	EnergyNJ int64 // modelled: what its processors take while they are busy
	Reads    []Access
	Writes   []Access   // who wrote the outputs last
	Times    []Estimate // of each share alone, without gathering and hand-overs
}

func (c *Candidate) Label() string { return string(c.Strategy) + " " + c.ShareText() }

// Kind says which processors a candidate divides its operator between, and how, without where.
func (c *Candidate) Kind() string {
	key := string(Base(c.Strategy)) + " " + string(c.Axis)
	for _, sh := range c.Shares {
		key += " " + sh.Proc
	}
	return key
}

// stage is a section of a model at one number of rows, with what its candidates are made of.
type Section struct {
	*lower.Section
	*Machine
	Source Source
	Facts  *Facts // nil: none are known
	Policy Policy
	Memory *timeline.Machine // what work shares that runs at the same time; nil: nothing

	Rows    int               // of the program; the section's own nodes may have one
	Repeat  int               // executions of the section, over all sections of its name
	Breaks  int               // how often another section comes between two of them
	Context int               // cached positions that attention is priced for
	Buckets []int             // of the workload
	Lengths []workload.Prompt // rows of the calls that the program is for
	Exact   map[string]bool   // nodes that are computed in float32 whatever is permitted

	Missing map[string]error     // by processor, why a price was not to be had: the first one
	Refused map[string][]Refusal // by node, the processors that cannot execute it alone
	hops    []hop                // by index of writer and reader in procs
}

// NewSection is a section without candidates yet.
func NewSection(sec *lower.Section, on *Machine, prices Source) *Section {
	return &Section{Section: sec, Machine: on, Source: prices, Exact: map[string]bool{}, Missing: map[string]error{}, Refused: map[string][]Refusal{}}
}

// refusal is why a processor does not execute a node.
type Refusal struct {
	Proc string
	err  error
}

func (st *Section) Proc(name string) *planir.Proc {
	for i := range st.Procs {
		if st.Procs[i].Name == name {
			return &st.Procs[i]
		}
	}
	return nil
}

// candidate prices a node divided as a decision says, each share in the rows and form that are cheapest, or tells
// why that cannot be: a processor does not execute it, or no price is known.
func (st *Section) candidate(i int, strategy planir.Strategy, axis planir.Axis, shares []planir.Share) (Candidate, error) {
	n := &st.Nodes[i]
	shares = slices.Clone(shares)
	for k := range shares {
		st.shape(n, axis, &shares[k])
	}
	return st.CandidateAs(i, strategy, axis, shares)
}

// as is candidate with the rows and forms that the shares say.
func (st *Section) CandidateAs(i int, strategy planir.Strategy, axis planir.Axis, shares []planir.Share) (Candidate, error) {
	n := &st.Nodes[i]
	c := Candidate{Decision: planir.Decision{Node: n.Name, Rows: st.Rows, Strategy: strategy, Scheme: n.Op().Scheme, Axis: axis, Shares: slices.Clone(shares)}}
	pieces, err := lower.Cut(st.Section, n, &c.Decision, st.Proc)
	if err != nil {
		return c, err
	}
	tasks := make([][]Task, len(pieces)) // per piece, its chain
	longest := 0
	for k := range pieces {
		p := &pieces[k]
		if p.Role != lower.Compute {
			continue
		}
		for _, o := range p.Ops {
			tasks[k] = append(tasks[k], Task{p.Proc, st.InContext(o)})
		}
		longest = max(longest, len(tasks[k]))
		if o := p.Op(); o.HasScheme() {
			bytes := int64(max(1, o.Experts)) * op.WeightBytes(o.Scheme.Weight(), o.K, o.N)
			if x := st.Facts.About(p.Proc, o); x != nil {
				if bytes = x.Bytes; x.Refused != "" {
					return c, diag.New(diag.ClassInfeasible, "the compiler of processor %q refuses %s: %s", p.Proc, o.Key(), x.Refused)
				}
			}
			if limit := st.Proc(p.Proc).GraphBytes; limit > 0 && bytes > limit {
				return c, diag.New(diag.ClassInfeasible, "its weights take %d bytes, and one graph of processor %q holds at most %d", bytes, p.Proc, limit)
			}
		}
	}
	// Shares run at the same time, link by link of their chains.
	c.Times = make([]Estimate, len(c.Shares))
	for link := range longest {
		var now []Task
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
				if once, err = st.Source.Launch(pieces[k].Proc); err != nil {
					return c, st.lacks(now, err)
				}
			}
			e := &c.Times[pieces[k].Share]
			e.NS, e.Low, e.High = e.NS+max(0, est[j].NS-once), e.Low+max(0, est[j].Low-once), e.High+max(0, est[j].High-once)
		}
	}
	end, energy, err := st.execute(pieces, c.Times)
	if err != nil {
		return c, err
	}
	c.EnergyNJ = Whole(math.Round(energy))
	if c.EnergyNJ > problem.MaxNS { // it stands where times do when energy is minimised
		return c, diag.New(diag.ClassInput, "price %s as %s: %.4g J are modelled, want at most %.4g", n.Name, c.Label(), float64(c.EnergyNJ)/1e9, float64(problem.MaxNS)/1e9).
			WithHint("no operator takes that much: correct power_w in the SoC file, or measure again")
	}
	for k := range c.Shares {
		c.Shares[k].PredictNS = c.Times[k].NS
	}
	c.PredictNS = end
	c.CostNS = Whole(math.Round(float64(end) * st.idle(&c)))
	if most := max(end, c.CostNS); most > problem.MaxNS {
		return c, reckoned(most, "%s as %s", n.Name, c.Label())
	}
	c.access(n, pieces)
	c.name()
	return c, nil
}

// inContext is an operator as it is priced: attention reads as many positions as are cached.
func (st *Section) InContext(o op.Op) op.Op {
	if o.Kind == op.Attention {
		o.Context = st.Context
	}
	return o
}

// concurrent predicts tasks that start together; of one processor's each runs beside the first of every other's.
func (st *Section) concurrent(tasks []Task) ([]Estimate, error) {
	first := map[string]int{}
	for i := range tasks {
		if _, ok := first[tasks[i].Proc]; !ok {
			first[tasks[i].Proc] = i
		}
	}
	if len(first) == len(tasks) {
		return st.Source.Together(tasks)
	}
	out := make([]Estimate, len(tasks))
	for i := range tasks {
		beside := []Task{tasks[i]}
		for j := range tasks {
			if first[tasks[j].Proc] == j && tasks[j].Proc != tasks[i].Proc {
				beside = append(beside, tasks[j])
			}
		}
		est, err := st.Source.Together(beside)
		if err != nil {
			return nil, err
		}
		out[i] = est[0]
	}
	return out, nil
}

// lacks notes which processor had no price, and returns the error.
func (st *Section) lacks(tasks []Task, err error) error {
	for _, t := range tasks {
		if _, own := st.Source.Together([]Task{t}); own != nil {
			err = own
		} else if len(tasks) > 1 {
			continue
		}
		if st.Missing[t.Proc] == nil {
			st.Missing[t.Proc] = err
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
func (st *Section) shape(n *lower.Node, axis planir.Axis, sh *planir.Share) {
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
	pads := st.Static[sh.Proc] > 0 && sh.PadRows == 0 && axis != planir.AxisK && axis != planir.AxisHeads && (axis != planir.AxisRows || sh.To == n.Op().M)
	switch p := st.Proc(sh.Proc); {
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
			e, err := st.Source.Together([]Task{{sh.Proc, o}})
			if err != nil || e[0].NS >= best || (rows == 1 && m > 1 || n.Op().Scheme.Static() && m > options[0]) && SameTime(e[0].NS, best) {
				continue // a padded token, and other rows than those of a static scale, keep a graph from being one with its neighbours'
			}
			best, sh.Form = e[0].NS, f
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
func (st *Section) pads(proc string, o op.Op) []int {
	unit, rows := st.Static[proc], o.M
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
	for _, m := range st.Source.Measured(Task{proc, o}) {
		if m > rows && m%unit == 0 {
			options = append(options, m)
		}
	}
	return options
}

// forms are those, besides the default, in which a processor can compute a product and that have a price.
func (st *Section) forms(proc string, o op.Op) []op.Form {
	p := st.Proc(proc)
	if p == nil || len(p.Forms) == 0 {
		return nil
	}
	return slices.DeleteFunc(st.Source.Forms(Task{proc, o}), func(f op.Form) bool { return !p.HasForm(o.Scheme, f) })
}

// execute is when the last piece of a node is done, all lanes starting at 0: shares at once, then what is
// gathered or added, each after what the share computed has been handed over. energy is what all processors take for it, in nJ.
func (st *Section) execute(pieces []lower.Piece, shares []Estimate) (end int64, energy float64, err error) {
	lanes, done := map[string]int64{}, make([]int64, len(shares))
	for k := range pieces {
		p := &pieces[k]
		if p.Role == lower.Compute {
			lanes[p.Proc] += shares[p.Share].NS
			done[p.Share] = lanes[p.Proc]
			energy += float64(st.Power[p.Proc] * float64(shares[p.Share].NS))
			end = max(end, lanes[p.Proc])
			continue
		}
		from := pieces[p.Share].Proc
		after := []Task{{p.Proc, p.Op()}}
		est, err := st.Source.Together(after)
		if err == nil && from != p.Proc {
			var hand Estimate
			hand, err = st.Source.Handover(from, p.Proc)
			lanes[p.Proc] = max(lanes[p.Proc], done[p.Share]+hand.NS)
		}
		if err != nil {
			return 0, 0, st.lacks(after, err)
		}
		lanes[p.Proc] += est[0].NS
		energy += float64(st.Power[p.Proc] * float64(est[0].NS))
		end = max(end, lanes[p.Proc])
	}
	return end, energy, nil
}

// idle is how much a division by rows loses over one by columns when calls have fewer rows than the
// program: the first share keeps its rows, the last goes without. Time is taken to grow with the rows.
func (st *Section) idle(c *Candidate) float64 {
	if c.Axis != planir.AxisRows || c.PredictNS == 0 {
		return 1
	}
	with, without := 0.0, 0.0
	for _, call := range st.Lengths {
		busy := map[string]float64{}
		for k, sh := range c.Shares {
			rows := float64(max(0, min(call.Tokens, sh.To)-sh.From))
			t := float64(c.Times[k].NS)
			if st.Static[sh.Proc] == 0 {
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
		without += float64(call.Share * float64(c.PredictNS) * float64(call.Tokens) / float64(st.Rows))
	}
	if without == 0 {
		return 1
	}
	return max(1, with/without)
}

// name gives the candidate the strategy its shares amount to.
func (c *Candidate) name() {
	padded := slices.ContainsFunc(c.Shares, func(s planir.Share) bool { return s.PadRows > 0 })
	switch {
	case padded && c.Strategy == planir.Single:
		c.Strategy = planir.Padding
	case padded && c.Strategy == planir.WeightCentric:
		c.Strategy = planir.Hybrid
	}
}

// base is the strategy without its padding.
func Base(s planir.Strategy) planir.Strategy {
	switch s {
	case planir.Padding:
		return planir.Single
	case planir.Hybrid:
		return planir.WeightCentric
	}
	return s
}

// candidates lists the ways to execute each node of the section, or why there are none. Every processor that
// executes a node alone is among them; the order is fixed. tuples are lists of at least two processors
// that may run together.
func (st *Section) Candidates() ([][]Candidate, []error) {
	out, errs := make([][]Candidate, len(st.Nodes)), make([]error, len(st.Nodes))
	seen := make([]map[string]bool, len(st.Nodes))
	add := func(i int, c Candidate) {
		if seen[i] == nil {
			seen[i] = map[string]bool{}
		}
		if l := c.Label(); !seen[i][l] {
			seen[i][l] = true
			out[i] = append(out[i], c)
		}
	}
	lacking := make([][]string, len(st.Nodes)) // processors of only that cannot execute the node
	for i := range st.Nodes {
		for _, assist := range []bool{false, true} {
			for k := range st.Procs {
				p := st.Procs[k].Name
				if assist == (len(st.Policy.Only) == 0 || slices.Contains(st.Policy.Only, p)) || !st.may([]string{p}, lacking[i]) {
					continue
				}
				c, err := st.candidate(i, planir.Single, planir.AxisNone, []planir.Share{{Proc: p}})
				if err != nil {
					name := st.Nodes[i].Name
					st.Refused[name] = append(st.Refused[name], Refusal{p, err})
					lacking[i] = append(lacking[i], p)
					continue
				}
				add(i, c)
			}
		}
		if len(out[i]) == 0 {
			errs[i] = st.impossible(i)
		}
		if st.Policy.wholeOperators() {
			continue
		}
		for _, c := range st.pieces(i) {
			if st.may(c.procs(), lacking[i]) {
				add(i, c)
			}
		}
	}
	if st.Policy.wholeOperators() {
		return out, errs
	}
	for _, run := range st.runs() {
		for _, tuple := range st.tuples {
			add := func(i int, c Candidate) {
				if st.may(tuple, lacking[i]) {
					add(i, c)
				}
			}
			for _, c := range st.divide(run, tuple) {
				add(c.node, c.Candidate)
			}
			if run[len(run)-1].axis == planir.AxisK { // the first adds what all have computed
				tuple = slices.Clone(tuple)
				slices.Reverse(tuple)
				for _, c := range st.divide(run, tuple) {
					add(c.node, c.Candidate)
				}
			}
		}
	}
	return out, errs
}

// procs are the processors that take part.
func (c *Candidate) procs() (out []string) {
	for _, sh := range c.Shares {
		if !slices.Contains(out, sh.Proc) {
			out = append(out, sh.Proc)
		}
	}
	return out
}

// impossible explains why no processor executes a node.
func (st *Section) impossible(i int) error {
	n := &st.Nodes[i]
	var reasons []string
	for _, r := range st.Refused[n.Name] {
		if diag.ClassOf(r.err) == diag.ClassInput {
			d := diag.New(diag.ClassInput, "price %q at %d rows: %w", n.Name, st.Rows, r.err)
			if len(diag.HintsOf(r.err)) == 0 {
				d = d.WithHint("measure it: hetc profile --soc SOC --model MODEL --workload WORKLOAD -o rec.jsonl --resume")
			}
			return d
		}
		reasons = append(reasons, r.Reason())
	}
	d := diag.New(diag.ClassInfeasible, "no processor executes %q at %d rows (%s): %s", n.Name, st.Rows, n.Op().Key(), strings.Join(reasons, "; "))
	switch s := n.Op().Scheme; {
	case st.Exact[n.Name]:
		return d.WithHint("it is computed in %q whatever the workload permits, because rounding would choose other experts: a processor has to list that scheme in the SoC", s)
	case s != "":
		return d.WithHint("permit another scheme than %q (with fewer bits, if it is too large) in the workload, or add processors to the SoC", s)
	}
	return d
}

// reason is what to tell of it.
func (r *Refusal) Reason() string {
	if inner := errors.Unwrap(r.err); inner != nil && diag.ClassOf(r.err) == diag.ClassInternal {
		return inner.Error() // of lower.Cut: without whose share it was
	}
	return r.err.Error()
}
