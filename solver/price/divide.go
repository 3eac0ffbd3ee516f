package price

import (
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
)

// How many boundaries of a divided axis are tried before the search for the balance, for few tuples and for many.
const (
	gridSteps    = 32
	gridStepsMin = 4
)

// gridOf returns how many places of a run are priced first: fewer if there are more tuples of processors.
func gridOf(tuples int) int { return min(max(3*gridSteps/max(1, tuples), gridStepsMin), gridSteps) }

// link is a node and the axis along which a run divides it.
type link struct {
	node int
	axis planir.Axis
}

// runs lists what may be divided. That is every node along each of its axes, runs of nodes that hand nothing over when
// they are divided at corresponding boundaries (columnRun), and the rows of everything but attention.
func (s *Section) runs() [][]link {
	var out [][]link
	var rows []link
	end := -1 // last node of the runs so far
	for i := range s.Nodes {
		node := &s.Nodes[i]
		for _, axis := range []planir.Axis{planir.AxisCols, planir.AxisHeads} {
			if _, err := lower.AxisLength(node, axis); err == nil {
				out = append(out, []link{{i, axis}})
			}
		}
		if length, err := lower.AxisLength(node, planir.AxisRows); err == nil && length > 1 {
			rows = append(rows, link{i, planir.AxisRows})
		}
		run := s.columnRun(i)
		if len(run) < 2 || !node.Op().HasScheme() && i <= end {
			continue
		}
		last := len(run) - 1
		end = max(end, run[last].node)
		out = append(out, run)
		// The reduction's additions may outweigh what it saves: also without it.
		if run[last].axis == planir.AxisK && last > 1 {
			out = append(out, run[:last])
		}
	}
	if len(rows) > 0 {
		out = append(out, rows)
	}
	if len(rows) > 1 {
		for _, one := range rows {
			out = append(out, []link{one})
		}
	}
	return out
}

// columnRun returns the longest run that starts with the columns (or heads) of a node. Nodes that work column by column
// follow, then the reduction of the next matrix. The run ends at a node that reads whole rows of the result before it:
// norms, row quantisation, routing, matrices of experts.
func (s *Section) columnRun(node int) []link {
	var run []link
	switch operator := s.Nodes[node].Op(); {
	case operator.HasScheme():
		run = []link{{node, planir.AxisCols}}
	case operator.Kind.Along() == op.AlongHeads:
		run = []link{{node, planir.AxisHeads}}
	default:
		return nil
	}
	for next := node + 1; next < len(s.Nodes); next++ {
		node := &s.Nodes[next]
		operand := slices.Index(node.In, s.Nodes[next-1].Out[0])
		if operand < 0 {
			return run
		}
		switch operator := node.Op(); {
		case operator.Kind.ColumnsRead(operand) > 0:
			run = append(run, link{next, planir.AxisCols})
		case operator.Kind.Along() == op.AlongHeads:
			run = append(run, link{next, planir.AxisHeads})
		case operator.Kind == op.MatMul && !operator.Scheme.QuantisedRows() && !operator.Scheme.RoundsResults():
			return append(run, link{next, planir.AxisK})
		default:
			return run
		}
	}
	return run
}

// inColumns returns where a boundary of a node along its axis lies in the columns of its input.
func inColumns(operator op.Op, at int) int {
	if in, _, _ := operator.HeadColumns(); in != nil {
		return at * in[0]
	}
	return at * max(1, operator.Kind.ColumnsRead(0))
}

// atColumn returns the boundary of a node that lies at a column of its output; false between two.
func atColumn(operator op.Op, column int) (int, bool) {
	if _, _, out := operator.HeadColumns(); out != nil {
		return column / out[0], column%out[0] == 0
	}
	return column, true
}

// boundary is where a run is divided, in the units of each of its nodes.
type boundary []int

// boundaries lists where a run can be divided between processors, ascending: where every node has a boundary on the
// granularity of all of them.
func (s *Section) boundaries(run []link, tuple []string) []boundary {
	last := run[len(run)-1]
	length, err := lower.AxisLength(&s.Nodes[last.node], last.axis)
	if err != nil {
		return nil
	}
	var out []boundary
	step := s.granularity(last, tuple)
	for at := step; at < length; at += step {
		if b, ok := s.boundary(run, tuple, at); ok {
			out = append(out, b)
		}
	}
	return out
}

// boundary follows a boundary of a run's last node back to its first; false where a node has none there.
func (s *Section) boundary(run []link, tuple []string, at int) (boundary, bool) {
	out := make(boundary, len(run))
	last := len(run) - 1
	out[last] = at
	for i := last - 1; i >= 0; i-- {
		if run[i].axis == planir.AxisRows {
			out[i] = at
			continue
		}
		column := inColumns(s.Nodes[run[i+1].node].Op(), out[i+1])
		var ok bool
		out[i], ok = atColumn(s.Nodes[run[i].node].Op(), column)
		if !ok || out[i]%s.granularity(run[i], tuple) != 0 {
			return nil, false
		}
	}
	return out, true
}

// granularity returns what the boundaries of a node are multiples of on all processors of a tuple.
func (s *Section) granularity(at link, tuple []string) int {
	unit := 1
	for _, name := range tuple {
		own := lower.Granularity(&s.Nodes[at.node], at.axis, s.Proc(name))
		if at.axis == planir.AxisRows {
			own = max(1, s.Static[name])
		}
		unit = leastMultiple(unit, own)
	}
	return unit
}

// leastMultiple returns the least common multiple of two numbers.
func leastMultiple(a, b int) int {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// strategyOf maps an axis to the strategy of a division along it.
var strategyOf = map[planir.Axis]planir.Strategy{
	planir.AxisCols: planir.WeightCentric, planir.AxisHeads: planir.WeightCentric,
	planir.AxisRows: planir.ActivationDivide, planir.AxisK: planir.Paired,
}

// divided is a candidate of a run's node.
type divided struct {
	node int
	Candidate
}

// division searches where to divide a run between the processors of a tuple. The time of a run as a function of its
// cuts has few local minima, but it jumps where a processor's latency curve has steps. So a grid is priced first, and
// the search descends from its best point (pattern search). It moves cuts, each alone and neighbours together, by
// shorter and shorter steps as long as that is faster.
type division struct {
	*Section
	run   []link
	tuple []string
	at    []boundary

	tried  map[string]*priced // by cuts
	order  []*priced          // as they were tried
	best   *priced
	bestNS int64
}

// priced is a run divided at cuts, which are indices of division.at.
type priced struct {
	cuts []int
	list []divided // those nodes that can be divided there
	ns   int64     // of all nodes; MaxInt64 where one cannot
}

// divide lists the candidates of a run over a tuple. For two processors they are all that the search tried, for more
// processors only the one where it ended.
func (s *Section) divide(run []link, tuple []string) []divided {
	search := division{Section: s, run: run, tuple: tuple, at: s.boundaries(run, tuple), tried: map[string]*priced{},
		bestNS: math.MaxInt64}
	if len(search.at) < len(tuple)-1 {
		return nil
	}
	if len(tuple) == 2 {
		stride := max(1, len(search.at)/gridOf(len(s.tuples)))
		for i := stride / 2; i < len(search.at); i += stride {
			search.consider([]int{i})
		}
		search.consider([]int{(len(search.at) - 1) / 2}) // the middle, whatever the grid
		search.descend(stride)
		var out []divided
		for _, tried := range search.order {
			out = append(out, tried.list...)
		}
		return out
	}
	search.consider(search.even())
	search.descend(max(1, len(search.at)/4))
	if search.best == nil {
		return nil
	}
	return search.best.list
}

// even returns cuts into parts of nearly equal length.
func (d *division) even() []int {
	cuts := make([]int, len(d.tuple)-1)
	for j := range cuts {
		cuts[j] = (j + 1) * len(d.at) / len(d.tuple)
	}
	if cuts[0] > 0 {
		for j := range cuts {
			cuts[j]--
		}
	}
	return cuts
}

// descend moves the best cuts as long as that is faster, by strides that halve.
func (d *division) descend(stride int) {
	for ; d.best != nil && stride > 0; stride /= 2 {
		for moved := true; moved; {
			moved = false
			for first := range d.best.cuts {
				for last := first; last < len(d.best.cuts); last++ {
					for _, by := range []int{-stride, stride} {
						cuts := slices.Clone(d.best.cuts)
						for j := first; j <= last; j++ {
							cuts[j] += by
						}
						moved = d.consider(cuts) || moved
					}
				}
			}
		}
	}
}

// consider prices cuts, and reports whether they are the best so far.
func (d *division) consider(cuts []int) bool {
	for j := range cuts {
		if cuts[j] < 0 || cuts[j] >= len(d.at) || j > 0 && cuts[j] <= cuts[j-1] {
			return false
		}
	}
	tried := d.price(cuts)
	if tried.ns >= d.bestNS {
		return false
	}
	d.best, d.bestNS = tried, tried.ns
	return true
}

// price returns the price of the run divided at cuts. It computes each combination once.
func (d *division) price(cuts []int) *priced {
	key := fmt.Sprint(cuts)
	if tried := d.tried[key]; tried != nil {
		return tried
	}
	tried := &priced{cuts: cuts}
	for i, at := range d.run {
		length, _ := lower.AxisLength(&d.Nodes[at.node], at.axis)
		shares := make([]planir.Share, len(d.tuple))
		from := 0
		for j, name := range d.tuple {
			to := length
			if j < len(cuts) {
				to = d.at[cuts[j]][i]
			}
			shares[j] = planir.Share{Proc: name, From: from, To: to}
			from = to
		}
		candidate, err := d.candidate(at.node, strategyOf[at.axis], at.axis, shares)
		if err != nil {
			tried.ns = math.MaxInt64 // the others stay: a run may be divided in part
			continue
		}
		tried.list = append(tried.list, divided{at.node, candidate})
		if tried.ns != math.MaxInt64 {
			tried.ns += candidate.CostNS
		}
	}
	d.tried[key] = tried
	d.order = append(d.order, tried)
	return tried
}
