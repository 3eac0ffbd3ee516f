package solver

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/socs"
)

// compilerFacts are what the compilers of a device said about graphs: sizes and refusals, by the operator. They choose between
// what costs the same and bound what is held; no time is computed from them.
type compilerFacts struct {
	alone  map[string]*record.Facts   // by processor and operator
	rows   map[string][]int           // numbers of rows that the compiler was asked about, ascending, by processor and operator without them
	shared map[string][]*record.Facts // binaries of several numbers of rows, likewise
}

// factsInput is the kind of a plan's input.
const factsInput = "facts"

// anyRows is an operator without its number of rows.
func anyRows(proc string, o op.Op) string {
	o.M = 1
	return proc + " " + o.Key()
}

// newCompilerFacts takes what a record has for the SoC's device. Facts that were made for another device are an error.
func newCompilerFacts(set *record.Set, s *socs.SoC) (*compilerFacts, error) {
	if set == nil {
		return nil, nil
	}
	f := &compilerFacts{map[string]*record.Facts{}, map[string][]int{}, map[string][]*record.Facts{}}
	for _, x := range set.Facts() {
		p := s.Processor(x.Proc)
		if p == nil || p.Target == nil {
			continue
		}
		if want := p.Target.Options(); !maps.Equal(x.Options, want) {
			return nil, diag.New(diag.ClassInput, "solve: compiler facts of processor %q were made with %v, and its target is %v", x.Proc, x.Options, want).
				WithHint("ask the compiler for this SoC: hetc profile --compiler-only --target %s --model MODEL --workload WORKLOAD -o facts.jsonl", s.Name)
		}
		key := anyRows(x.Proc, *x.Op)
		if x.Rows != nil {
			f.shared[key] = append(f.shared[key], x)
			continue
		}
		f.alone[x.Proc+" "+x.Op.Key()] = x
		f.rows[key] = append(f.rows[key], x.Op.M)
	}
	for _, list := range f.rows {
		slices.Sort(list)
	}
	if len(f.alone) == 0 {
		return nil, nil
	}
	return f, nil
}

// of is what the compiler said about an operator as a graph by itself, nil where it was not asked.
func (f *compilerFacts) of(proc string, o op.Op) *record.Facts {
	if f == nil || !o.HasScheme() {
		return nil
	}
	return f.alone[proc+" "+o.Key()]
}

// lengths are the numbers of rows that the compiler was asked about for an operator.
func (f *compilerFacts) lengths(proc string, o op.Op) []int {
	if f == nil || !o.HasScheme() {
		return nil
	}
	return f.rows[anyRows(proc, o)]
}

// rank orders numbers of rows that cost the same: first those that are known not to spill, then those that nobody asked about,
// then by what they spill. A graph that the compiler refuses is none.
func (f *compilerFacts) rank(proc string, o op.Op) (rank int64, ok bool) {
	x := f.of(proc, o)
	switch {
	case x == nil:
		return 1, true
	case x.Refused != "":
		return 0, false
	case x.SpillBytes == 0:
		return 0, true
	}
	return 1 + x.SpillBytes, true
}

// alike is the ratio of times that are taken for the same: medians are measured to that, and no better.
const alike = 1.02

func sameTime(a, b int64) bool {
	return float64(max(a, b)) <= float64(alike*float64(min(a, b)))
}

// charge is what the graphs of an operator at these numbers of rows take together, in one binary that has its weights once: the
// largest of them by itself, and for each further one what the compiler added where it was asked for several. ok is false
// where it was asked about none of this operator.
func (f *compilerFacts) charge(proc string, o op.Op, rows []int) (alone, all int64, ok bool) {
	if f == nil {
		return 0, 0, false
	}
	largest := func(rows []int) (n int64) {
		for _, m := range rows {
			o.M = m
			if x := f.of(proc, o); x != nil {
				n = max(n, x.Bytes)
			}
		}
		return n
	}
	known := f.lengths(proc, o)
	if alone = largest(rows); alone == 0 {
		alone = largest(known)
	}
	if alone == 0 {
		return 0, 0, false
	}
	each := alone // without an answer every graph has weights of its own
	for _, x := range f.shared[anyRows(proc, o)] {
		if x.Refused != "" {
			continue
		}
		if one := largest(x.Rows); one > 0 {
			n := int64(len(x.Rows) - 1)
			each = min(each, max(0, x.Bytes-one+n-1)/n)
		}
	}
	return alone, alone + int64(len(rows)-1)*each, true
}

// avoidSpill gives a share that is padded to the number of rows that was chosen for its price another one that takes the same time
// and spills less by what the compiler said, or is compiled at all. Those that it was asked about need be no multiples of the tile.
func (st *stage) avoidSpill(o op.Op, sh *planir.Share) {
	known := st.facts.lengths(sh.Proc, o)
	if sh.Form != "" || known == nil {
		return // compilers were asked about the default form
	}
	type option struct {
		rows     int
		ns, rank int64
	}
	var list []option
	cheapest := int64(math.MaxInt64)
	for _, m := range slices.Concat([]int{sh.PadRows}, st.pads(sh.Proc, o), known) {
		x := o
		if x.M = m; m < o.M {
			continue
		}
		rank, ok := st.facts.rank(sh.Proc, x)
		e, err := st.prices.together([]task{{sh.Proc, x}})
		if !ok || err != nil {
			continue
		}
		list = append(list, option{m, e[0].ns, rank})
		cheapest = min(cheapest, e[0].ns)
	}
	list = slices.DeleteFunc(list, func(x option) bool { return !sameTime(x.ns, cheapest) })
	if len(list) > 0 { // else every one is refused, which is told where it is priced
		sh.PadRows = slices.MinFunc(list, func(a, b option) int { return cmp.Compare(a.rank, b.rank) }).rows // of equals what was chosen
	}
}

// compiled lists what the plan's graphs of products take by the compiler's facts, of operators that one processor executes whole.
func (s *session) compiled(p *planir.Plan) []planir.Compiled {
	if s.facts == nil {
		return nil
	}
	layers := s.layers()
	type key struct{ proc, node string }
	type graphs struct {
		op       op.Op
		programs map[int][]int // by rows of the graph
	}
	found := map[key]*graphs{}
	var order []key
	for i := range p.Decisions {
		d := &p.Decisions[i]
		o, _, ok := s.product(d)
		if !ok || len(d.Shares) != 1 {
			continue
		}
		k := key{d.Shares[0].Proc, d.Node}
		if s.facts.lengths(k.proc, o) == nil {
			continue
		}
		if found[k] == nil {
			found[k] = &graphs{o, map[int][]int{}}
			order = append(order, k)
		}
		if found[k].op.Scheme != o.Scheme {
			continue // decode's: weights of its own
		}
		m := d.Rows
		if n := d.Shares[0].PadRows; n > 0 {
			m = n
		}
		found[k].programs[m] = append(found[k].programs[m], d.Rows)
	}
	slices.SortFunc(order, func(a, b key) int {
		if c := strings.Compare(a.proc, b.proc); c != 0 {
			return c
		}
		return strings.Compare(a.node, b.node)
	})
	var out []planir.Compiled
	for _, k := range order {
		g := found[k]
		_, weight, _ := s.product(&planir.Decision{Node: k.node, Rows: 1, Scheme: g.op.Scheme})
		c := planir.Compiled{Node: k.node, Proc: k.proc, Scheme: g.op.Scheme, Copies: max(1, layers[weight])}
		rows := slices.Sorted(maps.Keys(g.programs))
		c.AloneBytes, c.ChargedBytes, _ = s.facts.charge(k.proc, g.op, rows)
		for _, m := range rows {
			slices.Sort(g.programs[m])
			c.Graphs = append(c.Graphs, s.graphFacts(k.proc, g.op, m, g.programs[m]))
		}
		out = append(out, c)
	}
	return out
}

// graphFacts is what is known of a graph, and which other numbers of rows were avoided for it.
func (s *session) graphFacts(proc string, o op.Op, m int, programs []int) planir.CompiledGraph {
	out := planir.CompiledGraph{Rows: m, For: programs, SpillBytes: -1}
	price := func(m int) (int64, bool) {
		o.M = m
		e, err := s.prices.together([]task{{proc, o}})
		if err != nil {
			return 0, false
		}
		return e[0].ns, true
	}
	o.M = m
	if x := s.facts.of(proc, o); x != nil {
		out.SpillBytes = x.SpillBytes
	}
	ns, ok := price(m)
	for _, other := range s.facts.lengths(proc, o) {
		o.M = other
		x := s.facts.of(proc, o)
		if other == m || other < programs[len(programs)-1] || x.Refused != "" || x.SpillBytes <= max(0, out.SpillBytes) {
			continue
		}
		if t, known := price(other); ok && known && sameTime(t, ns) {
			out.Avoided = append(out.Avoided, planir.Spill{Rows: other, Bytes: x.SpillBytes})
		}
	}
	return out
}

// product is the matrix product that a decision is about, at one row, and its weight.
func (s *session) product(d *planir.Decision) (o op.Op, weight string, ok bool) {
	for i := range s.graph.Sections {
		sec := &s.graph.Sections[i]
		for j := range sec.Nodes {
			n := &sec.Nodes[j]
			if sec.Name+"."+n.Name != d.Node {
				continue
			}
			o = n.Ops[len(n.Ops)-1]
			if o.Kind != op.MatMul {
				return o, "", false
			}
			o.M, o.Scheme = 1, d.Scheme
			return o, n.W[0], true
		}
	}
	return o, "", false
}

// uncounted is what binaries take on a processor beyond the weights that its program holds, by the compiler's facts.
func (s *session) uncounted(p *planir.Plan, proc string) (more int64) {
	for _, c := range s.compiled(p) {
		if c.Proc != proc {
			continue
		}
		_, weight, _ := s.product(&planir.Decision{Node: c.Node, Rows: 1, Scheme: c.Scheme})
		var held int64
		for i := range p.Program.Packs {
			if k := &p.Program.Packs[i]; k.Weight == weight && k.Scheme == c.Scheme.Weight() {
				held = max(held, k.Bytes)
			}
		}
		more += int64(c.Copies) * max(0, c.ChargedBytes-held)
	}
	return more
}
