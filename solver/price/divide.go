package price

import (
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
)

// How many boundaries of a divided axis are tried before the search for the balance, for few tuples and
// for many; and processors in one tuple.
const (
	gridSteps    = 32
	gridStepsMin = 4
	maxTuple     = 3
)

func gridOf(tuples int) int { return min(max(3*gridSteps/max(1, tuples), gridStepsMin), gridSteps) }

// maxPieces is how many standard pieces an operator is executed in.
const maxPieces = 4

// pieces are the ways to execute a matrix in standard numbers of rows, one after the other, on a processor with static shapes (HeteroInfer
// sec. 4.2): all of them there, the last padded, or what is left on a processor without such shapes, at the same time. Standard are
// the buckets and the powers of two: their graphs are shared.
func (st *Section) pieces(i int) (out []Candidate) {
	n := &st.Nodes[i]
	rows := n.Op().M
	if _, err := lower.AxisLength(n, planir.AxisRows); err != nil || !n.Op().HasScheme() || rows == 1 {
		return nil
	}
	for k := range st.Procs {
		p := st.Procs[k].Name
		unit := st.Static[p]
		if unit == 0 {
			continue
		}
		var sizes []int
		for m := unit; m <= 2*rows; m *= 2 {
			sizes = append(sizes, m)
		}
		for _, b := range st.Buckets {
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
			for _, t := range st.tuples {
				if len(t) == 2 && slices.Contains(t, p) {
					other := t[0]
					if other == p {
						other = t[1]
					}
					if st.Static[other] == 0 {
						try(planir.ActivationDivide, planir.Share{Proc: other, From: at, To: rows})
					}
				}
			}
		}
	}
	return out
}

// link is a node and the axis along which a run divides it.
type link struct {
	node int
	axis planir.Axis
}

// runs lists what may be divided: every node along each of its axes, and runs of nodes that, divided at
// corresponding boundaries, hand nothing over: columns of a matrix or heads, then of what works on columns,
// then the reduction of the next matrix; and rows of everything but attention.
func (st *Section) runs() [][]link {
	var out [][]link
	var rows []link
	end := -1 // last node of the runs so far
	for i := range st.Nodes {
		n := &st.Nodes[i]
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
func (st *Section) columnRun(i int) []link {
	var run []link
	switch o := st.Nodes[i].Op(); {
	case o.HasScheme():
		run = []link{{i, planir.AxisCols}}
	case o.Kind == op.Attention:
		run = []link{{i, planir.AxisHeads}}
	default:
		return nil
	}
	for j := i + 1; j < len(st.Nodes); j++ {
		n, before := &st.Nodes[j], &st.Nodes[j-1]
		operand := slices.Index(n.In, before.Out[0])
		if operand < 0 {
			break
		}
		switch o := n.Op(); {
		case o.Kind.ColumnsRead(operand) > 0:
			run = append(run, link{j, planir.AxisCols})
			continue
		case o.Kind == op.Attention:
			run = append(run, link{j, planir.AxisHeads})
			continue
		case o.Kind == op.MatMul && !o.Scheme.QuantisedRows() && !o.Scheme.RoundsResults():
			run = append(run, link{j, planir.AxisK})
		}
		break
	}
	return run
}

// inColumns is where a boundary of a node along an axis lies in the columns of its input.
func inColumns(o op.Op, b int) int {
	if o.Kind == op.Attention {
		return b * (o.Heads/o.KVHeads + 2) * o.HeadDim
	}
	return b * max(1, o.Kind.ColumnsRead(0))
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
func (st *Section) boundaries(run []link, tuple []string) []boundary {
	last := &st.Nodes[run[len(run)-1].node]
	length, err := lower.AxisLength(last, run[len(run)-1].axis)
	if err != nil {
		return nil
	}
	unit := func(l link) int {
		u := 1
		for _, name := range tuple {
			g := lower.Granularity(&st.Nodes[l.node], l.axis, st.Proc(name))
			if l.axis == planir.AxisRows {
				g = max(1, st.Static[name])
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
			if at[k], ok = atColumn(st.Nodes[run[k].node].Op(), inColumns(st.Nodes[run[k+1].node].Op(), at[k+1])); !ok || at[k]%unit(run[k]) != 0 {
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
	Candidate
}

// divide lists the candidates of a run over a tuple: for two processors a grid of boundaries, for more
// even parts, and for both the balance that a search from there finds.
func (st *Section) divide(run []link, tuple []string) []divided {
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
			length, _ := lower.AxisLength(&st.Nodes[l.node], l.axis)
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
				r.ns += c.CostNS
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
	stride := max(1, len(at)/gridOf(len(st.tuples)))
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
