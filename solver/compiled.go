package solver

import (
	"maps"
	"slices"
	"strings"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/price"
)

// factsInput is the kind of a plan's input.
const FactsInput = "facts"

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
		if s.facts.Lengths(k.proc, o) == nil {
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
		c.AloneBytes, c.ChargedBytes, _ = s.facts.Charge(k.proc, g.op, rows)
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
	timeOf := func(m int) (int64, bool) {
		o.M = m
		e, err := s.prices.Together([]price.Task{{Proc: proc, Op: o}})
		if err != nil {
			return 0, false
		}
		return e[0].NS, true
	}
	o.M = m
	if x := s.facts.About(proc, o); x != nil {
		out.SpillBytes = x.SpillBytes
	}
	ns, ok := timeOf(m)
	for _, other := range s.facts.Lengths(proc, o) {
		o.M = other
		x := s.facts.About(proc, o)
		if other == m || other < programs[len(programs)-1] || x.Refused != "" || x.SpillBytes <= max(0, out.SpillBytes) {
			continue
		}
		if t, known := timeOf(other); ok && known && price.SameTime(t, ns) {
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
