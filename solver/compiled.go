package solver

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/price"
)

// FactsInput is the kind of a plan's input that stands for compiler facts.
const FactsInput = "facts"

// compiledGraphs is the graphs of a product on a processor.
type compiledGraphs struct {
	op       op.Op
	programs map[int][]int // that execute them, by rows of the graph
}

// compilerFacts lists the compiler's facts about the plan's graphs of products, by processor and node. Only operators
// that one processor executes whole have facts; shares are compiled with other shapes.
func (s *request) compilerFacts(plan *planir.Plan) []planir.Compiled {
	if s.facts == nil {
		return nil
	}
	type key struct{ proc, node string }
	found := map[key]*compiledGraphs{}
	var order []key

	for i := range plan.Decisions {
		decision := &plan.Decisions[i]
		operator, _, ok := s.product(decision)
		if !ok || len(decision.Shares) != 1 {
			continue
		}
		share := &decision.Shares[0]
		if s.facts.Lengths(share.Proc, operator) == nil {
			continue
		}

		of := key{share.Proc, decision.Node}
		if found[of] == nil {
			found[of] = &compiledGraphs{operator, map[int][]int{}}
			order = append(order, of)
		}
		if found[of].op.Scheme != operator.Scheme {
			continue // decode's: weights of its own
		}

		// Programs whose calls are padded to the same rows share a graph.
		size := decision.Rows
		if share.PadRows > 0 {
			size = share.PadRows
		}
		found[of].programs[size] = append(found[of].programs[size], decision.Rows)
	}

	slices.SortFunc(order, func(a, b key) int {
		return cmp.Or(strings.Compare(a.proc, b.proc), strings.Compare(a.node, b.node))
	})

	layers := s.layersPerWeight()
	var out []planir.Compiled
	for _, key := range order {
		graphs := found[key]
		_, weight, _ := s.product(&planir.Decision{Node: key.node, Rows: 1, Scheme: graphs.op.Scheme})
		compiled := planir.Compiled{Node: key.node, Proc: key.proc, Scheme: graphs.op.Scheme,
			Copies: max(1, layers[weight])}
		rows := slices.Sorted(maps.Keys(graphs.programs))

		// Graphs of several rows share one binary, which has the weights once.
		compiled.AloneBytes, compiled.ChargedBytes, _ = s.facts.Charge(key.proc, graphs.op, rows)
		for _, size := range rows {
			slices.Sort(graphs.programs[size])
			compiled.Graphs = append(compiled.Graphs, s.graphFacts(key.proc, graphs.op, size, graphs.programs[size]))
		}
		out = append(out, compiled)
	}
	return out
}

// graphFacts returns the known facts of a graph. It also lists the numbers of rows that were avoided for it: those that
// would hold its longest program and take the same time by the costs, but spill more bytes. SpillBytes is -1 where it
// is not known.
func (s *request) graphFacts(proc string, operator op.Op, rows int, programs []int) planir.CompiledGraph {
	out := planir.CompiledGraph{Rows: rows, For: programs, SpillBytes: -1}
	operator.M = rows
	if fact := s.facts.About(proc, operator); fact != nil {
		out.SpillBytes = fact.SpillBytes
	}

	ns, known := s.timeOf(proc, operator)
	if !known {
		return out
	}

	longest := programs[len(programs)-1]
	for _, other := range s.facts.Lengths(proc, operator) {
		if other == rows || other < longest {
			continue
		}
		operator.M = other
		fact := s.facts.About(proc, operator)
		if fact.Refused != "" || fact.SpillBytes <= max(0, out.SpillBytes) {
			continue
		}
		if otherNS, known := s.timeOf(proc, operator); known && price.SameTime(otherNS, ns) {
			out.Avoided = append(out.Avoided, planir.Spill{Rows: other, Bytes: fact.SpillBytes})
		}
	}
	return out
}

// timeOf returns the expected time of an operator on a processor, in ns; false if it has no price there.
func (s *request) timeOf(proc string, operator op.Op) (int64, bool) {
	estimates, err := s.prices.Together([]price.Task{{Proc: proc, Op: operator}})
	if err != nil {
		return 0, false
	}
	return estimates[0].NS, true
}

// product returns the matrix product that a decision is about, at one row, and its weight.
func (s *request) product(decision *planir.Decision) (operator op.Op, weight string, ok bool) {
	for i := range s.graph.Sections {
		sec := &s.graph.Sections[i]
		for j := range sec.Nodes {
			node := &sec.Nodes[j]
			if sec.Name+"."+node.Name != decision.Node {
				continue
			}
			operator = node.Ops[len(node.Ops)-1]
			if operator.Kind != op.MatMul {
				return operator, "", false
			}
			operator.M, operator.Scheme = 1, decision.Scheme
			return operator, node.W[0], true
		}
	}
	return operator, "", false
}

// bytesBeyondWeights returns by how many bytes the binaries on a processor exceed the weights of the plan's program
// there. It follows from the compiler's facts; a binary smaller than its weights counts as 0.
func (s *request) bytesBeyondWeights(plan *planir.Plan, proc string) (more int64) {
	for _, compiled := range s.compilerFacts(plan) {
		if compiled.Proc != proc {
			continue
		}
		_, weight, _ := s.product(&planir.Decision{Node: compiled.Node, Rows: 1, Scheme: compiled.Scheme})

		var held int64
		for i := range plan.Program.Packs {
			pack := &plan.Program.Packs[i]
			if pack.Weight == weight && pack.Scheme == compiled.Scheme.Weight() {
				held = max(held, pack.Bytes)
			}
		}
		more += int64(compiled.Copies) * max(0, compiled.ChargedBytes-held)
	}
	return more
}
