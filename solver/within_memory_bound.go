package solver

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/price"
)

// What a pair of assignments costs within a bound of memory is at least its Lagrangian relaxation: bytes of packed
// weights above the bound have a price, and every program is solved by itself with what its candidates are charged
// (Everett 1963). Without a price the relaxation is the bound that the search orders pairs by. That one does not see
// that phases on processors of different layouts hold a weight twice.
//
// A packed copy that both phases may read is paid by one of them, whichever that is: copies that the control processor
// reads by decode, all others by prefill. Where the phases have a class in different formats nothing is shared, and
// each pays for its own. Programs of a phase pay equal parts. So what all programs are charged is never more than what
// a plan holds, and the relaxation is a bound for every price. It is concave in the price; a few powers of two are
// tried, from the one that was best for the pair before.

// Prices that are tried: powers of two times what a byte costs where the whole bound costs the least objective.
const (
	leastPrice = -3
	mostPrice  = 8
)

// memoryRelaxation bounds pairs of assignments within a bound of memory.
type memoryRelaxation struct {
	s       *session
	unit    float64 // price of a byte, of the objective
	last    int     // the power of the price that was best before
	largest int     // rows of the largest program of those that are called
	held    map[nodeKey]*heldBytes
}

// heldBytes is what each candidate of a node holds at least: packed weights of a layer, as the control processor reads
// them and in other copies, the steps of a layer that are joined to no other, and scratch.
type heldBytes struct {
	list                         []price.Candidate // that they are of
	host, others, steps, scratch []float64
}

// newMemoryRelaxation prepares bounds for pairs of a session.
func (s *session) newMemoryRelaxation(bound int64) *memoryRelaxation {
	out := &memoryRelaxation{s: s, unit: s.lowestObjective() / float64(max(bound, 1)), held: map[nodeKey]*heldBytes{}}
	for _, ph := range s.phases {
		for i, rows := range ph.rows {
			if ph.weights[i] > 0 {
				out.largest = max(out.largest, rows)
			}
		}
	}
	return out
}

// bound returns the least that a pair can cost if its packed weights take at most so many bytes. A bound that is enough
// ends the search for a better price.
func (m *memoryRelaxation) bound(prefill, decode assignment, bytes int64, enough float64) float64 {
	least, known := m.at(prefill, decode, bytes, leastPrice-1)
	if held, told := m.leastHeld(prefill, decode); told && held > bytes {
		return math.Inf(1)
	}

	// Without a plan to compare with no bound is enough.
	if !known || math.IsInf(enough, 1) {
		return least
	}

	best, known := m.at(prefill, decode, bytes, m.last)
	if !known {
		return least
	}
	least = max(best, least)

	for _, step := range []int{1, -1} {
		improved := false
		for power := m.last + step; power >= leastPrice && power <= mostPrice && least < enough; power += step {
			value, ok := m.at(prefill, decode, bytes, power)
			if !ok || value <= best {
				break
			}
			best, improved = value, true
			m.last, least = power, max(least, value)
		}
		if improved {
			break // concave: the other side is worse
		}
	}
	return least
}

// leastHeld returns the least bytes of what is charged that the programs of a pair hold, whatever that costs; false
// where they are not known.
func (m *memoryRelaxation) leastHeld(prefill, decode assignment) (int64, bool) {
	total := m.s.unchargedBytes(prefill, decode)
	for i, schemes := range []assignment{prefill, decode} {
		for _, rows := range m.s.phases[i].rows {
			charged := &charges{of: m, prefill: prefill, decode: decode, decodes: i == 1, bytesOnly: true, byteCost: 1,
				sharing: float64(len(m.s.phases[i].rows)), largest: rows == m.largest}
			least, ok := m.s.leastCharged(rows, schemes, charged)
			if !ok {
				return 0, false
			}
			total += least
		}
	}
	return total, true
}

// at returns the relaxation at a price; below leastPrice bytes cost nothing. It returns false where the least of a
// program is not known.
func (m *memoryRelaxation) at(prefill, decode assignment, bytes int64, power int) (float64, bool) {
	byteCost := 0.0
	if power >= leastPrice {
		byteCost = math.Ldexp(m.unit, power)
	}

	// Classes without charges count with what they take at least.
	total := float64(byteCost * float64(m.s.unchargedBytes(prefill, decode)-bytes))

	for i, schemes := range []assignment{prefill, decode} {
		ph := m.s.phases[i]
		called := 0
		for _, weight := range ph.weights {
			if weight > 0 {
				called++
			}
		}

		for j, rows := range ph.rows {
			if ph.weights[j] <= 0 {
				continue // no prompt has that program
			}
			// In a program's own unit, a byte costs its part of the price by what a call counts for.
			charged := &charges{of: m, prefill: prefill, decode: decode, decodes: i == 1, sharing: float64(called),
				byteCost: byteCost / ph.weights[j], largest: rows == m.largest}
			least, ok := m.s.leastCharged(rows, schemes, charged)
			if !ok {
				return 0, false
			}
			total += float64(ph.weights[j] * float64(least))
		}
	}
	return total, true
}

// unchargedBytes returns the least bytes of the classes of experts: a plan may hold only those that have slots.
func (s *schemeChoice) unchargedBytes(prefill, decode assignment) (total int64) {
	for i := range s.classes {
		class := &s.classes[i]
		if !class.expert {
			continue
		}
		total += class.bytes(decode[i].Weight())
		if prefill[i].Weight() != decode[i].Weight() && len(s.want.Buckets) > 0 {
			total += class.bytes(prefill[i].Weight())
		}
	}
	return total
}

// charges are what the candidates of a program are charged for packed weights.
type charges struct {
	of              *memoryRelaxation
	prefill, decode assignment
	decodes         bool    // the program is one of decode
	byteCost        float64 // in the program's unit
	sharing         float64 // programs that share the phase's weights
	largest         bool    // the program pays for scratch
	bytesOnly       bool    // candidates cost nothing else
}

// key tells the charges of a section's nodes apart: the price, and whether the other phase shares their formats.
func (c *charges) key(sec *lower.Section) string {
	if c == nil || c.byteCost == 0 {
		return ""
	}
	key := fmt.Sprintf(" at %g", c.byteCost)
	if c.bytesOnly {
		key = " held"
	}
	if c.largest {
		key += " with scratch"
	}
	for i := range sec.Nodes {
		if class, ok := c.of.s.classOf[sec.Nodes[i].Name]; ok {
			key += fmt.Sprint(" ", c.shared(class))
		}
	}
	return key
}

// shared reports whether both phases have a class in one format.
func (c *charges) shared(class int) bool {
	return c.prefill[class].Weight() == c.decode[class].Weight()
}

// ofNode returns the charges of a node's candidates for one execution, rounded down; nil: none.
func (c *charges) ofNode(st *price.Section, node int, list []price.Candidate) ([]int64, error) {
	if c == nil || c.byteCost == 0 {
		return nil, nil
	}
	held, err := c.of.heldBytes(st, node, list)
	if err != nil {
		return nil, err
	}

	class, classed := c.of.s.classOf[st.Nodes[node].Name]
	// A processor holds the scratch of the node that needs most: at least the mean over nodes, of which this is a part.
	scratchPart := 0.0
	if c.largest && classed {
		nodes := 0
		for i := range st.Nodes {
			if _, ok := c.of.s.classOf[st.Nodes[i].Name]; ok {
				nodes++
			}
		}
		scratchPart = 1 / float64(nodes*st.Repeat*len(c.of.s.graph.Sections))
	}

	out := make([]int64, len(list))
	for i := range list {
		weights := 0.0
		if c.decodes || !classed || !c.shared(class) {
			weights += held.host[i]
		}
		if !c.decodes || !classed || !c.shared(class) {
			weights += held.others[i]
		}
		bytes := weights/c.sharing + held.steps[i] + float64(scratchPart*held.scratch[i])
		out[i] = int64(c.byteCost * bytes)
	}
	return out, nil
}

// heldBytes returns what the candidates of a node hold.
func (m *memoryRelaxation) heldBytes(st *price.Section, node int, list []price.Candidate) (*heldBytes, error) {
	key := keyOfNode(st.Rows, &st.Nodes[node])
	known := m.held[key]
	if known != nil && len(known.list) == len(list) && (len(list) == 0 || &known.list[0] == &list[0]) {
		return known, nil
	}
	out := &heldBytes{list: list, host: make([]float64, len(list)), others: make([]float64, len(list)),
		steps: make([]float64, len(list)), scratch: make([]float64, len(list))}

	for i := range list {
		steps, err := needsOf(st, node, &list[i])
		if err != nil {
			return nil, err
		}
		scratch := map[string]int64{} // by processor
		for at := range steps {
			step := &steps[at]
			if !step.joins {
				out.steps[i] += float64(m.s.in.SoC.Processor(step.proc).KernelMemory().StepBytes)
			}
			scratch[step.proc] = max(scratch[step.proc], step.scratch)
		}
		for _, bytes := range scratch {
			out.scratch[i] += float64(bytes) // whole numbers, in any order
		}
		out.host[i], out.others[i] = m.packedBytes(st, node, &list[i], steps)
	}
	m.held[key] = out
	return out, nil
}

// packedBytes returns what a candidate reads of its class's weight in one layer: in the copy that the control processor
// reads, and in all others.
func (m *memoryRelaxation) packedBytes(st *price.Section, node int, candidate *price.Candidate,
	steps []need) (host, others float64) {
	class, ok := m.s.classOf[st.Nodes[node].Name]
	if !ok || m.s.classes[class].expert {
		return 0, 0
	}
	matrix, format := &m.s.classes[class], st.Nodes[node].Op().Scheme.Weight()
	parts := map[string]float64{} // by copy

	for i := range steps {
		for _, use := range steps[i].weights {
			if use.Weight != matrix.weight || use.Layout == op.RowsLayout {
				continue
			}
			part := float64(use.K1-use.K0) * float64(use.N1-use.N0) / (float64(matrix.k) * float64(matrix.n))
			copyOf := use.Layout + " " + use.Owner
			// Shares of rows read the same part, others read parts beside each other.
			if candidate.Axis == planir.AxisRows {
				parts[copyOf] = max(parts[copyOf], part)
			} else {
				parts[copyOf] += part
			}
		}
	}

	control := st.Proc(m.s.in.SoC.Control).Layouts[format] + " "
	whole := float64(op.WeightBytes(format, matrix.k, matrix.n))
	for _, copyOf := range slices.Sorted(maps.Keys(parts)) {
		if bytes := float64(whole * min(1, parts[copyOf])); copyOf == control {
			host = bytes
		} else {
			others += bytes
		}
	}
	return host, others
}
