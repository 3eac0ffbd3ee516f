package lower

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

// Role is what a piece does for its node.
type Role int

const (
	Compute Role = iota // a share's part of the node
	Gather              // moves the dense output of a share to its columns of the output
	Sum                 // adds the partial sum of a share to the output
)

// Piece is what one processor executes of a node in one step.
type Piece struct {
	Proc  string
	Share int // index into the decision's shares
	Role  Role
	Ops   []op.Op // the node's chain, with the shapes of this piece
	R0    int     // first row it covers
	Heads *[2]int // cache heads [from,to), nil without state

	// In and Out are the views it reads and writes, Out beginning with what it changes in place.
	In, Out []planir.View

	// The region of the node's matrix a share multiplies by.
	K0, K1, N0, N1 int
}

// Op is the piece's main operator: the last of its chain.
func (p *Piece) Op() op.Op { return p.Ops[len(p.Ops)-1] }

// Cut returns the pieces of a node as decided, in an order that one processor alone could execute: the
// shares; then a gather for every share that had to write a buffer of its own, because its processor
// writes whole buffers only, by the first processor of the decision that can; then for a split along K
// the additions, in the order of the shares, by the first share's processor. Lower and the solver's
// prices both come from here.
func Cut(section *Section, node *Node, decision *planir.Decision, proc func(name string) *planir.Proc) ([]Piece,
	error) {
	if len(decision.Shares) == 0 {
		return nil, fmt.Errorf("decision has no shares")
	}
	full, err := AxisLength(node, decision.Axis)
	if err != nil {
		return nil, err
	}
	if decision.Axis == planir.AxisNone && len(decision.Shares) != 1 {
		return nil, fmt.Errorf("%d shares without an axis, want 1", len(decision.Shares))
	}
	if decision.Axis != planir.AxisNone {
		at := 0
		for _, sh := range decision.Shares {
			if sh.From != at || sh.To <= sh.From {
				return nil, fmt.Errorf("shares of axis %q do not tile 0..%d: share of %q is %d..%d, want a start of %d", decision.Axis, full, sh.Proc, sh.From, sh.To, at)
			}
			at = sh.To
		}
		if at != full {
			return nil, fmt.Errorf("shares of axis %q end at %d, want %d", decision.Axis, at, full)
		}
	}
	// The processor that gathers what others cannot write in place.
	gatherer := ""
	for _, sh := range decision.Shares {
		if p := proc(sh.Proc); gatherer == "" && p != nil && p.StridedOutput &&
			(len(p.Kinds) == 0 || slices.Contains(p.Kinds, op.Copy)) {
			gatherer = p.Name
		}
	}
	var out, gathers []Piece
	for i, sh := range decision.Shares {
		owner := proc(sh.Proc)
		if owner == nil {
			return nil, fmt.Errorf("unknown processor %q", sh.Proc)
		}
		piece, err := cutShare(section, node, decision.Axis, sh, i, owner)
		if err != nil {
			return nil, fmt.Errorf("share of %q: %w", sh.Proc, err)
		}
		last := len(piece.Out) - 1
		if view := piece.Out[last]; strided(section, view, node.Out[len(node.Out)-1]) && !owner.StridedOutput {
			if gatherer == "" || len(node.Out) != 1 {
				return nil, fmt.Errorf("share of %q: output %s is a column range of a wider buffer, %q writes whole buffers only, and no processor of the decision could gather it", sh.Proc, view, sh.Proc)
			}
			dense := planir.View{Buffer: shareBuffer(node.Out[0], i, view), R1: view.R1 - view.R0,
				C1: view.C1 - view.C0}
			piece.Out[last] = dense
			// Padding rows are left behind.
			value := section.Values[node.Out[0]]
			dense.R1 = min(dense.R1, value.Rows)
			view.R1 = view.R0 + dense.R1
			move := op.Op{Kind: op.Copy, M: dense.R1 / value.Fan, N: dense.C1}
			if value.Fan > 1 {
				move.Fan = value.Fan
			}
			gathers = append(gathers, Piece{
				Proc: gatherer, Share: i, Role: Gather,
				Ops: []op.Op{move},
				In:  []planir.View{dense}, Out: []planir.View{view},
			})
		}
		out = append(out, piece)
	}
	out = append(out, gathers...)
	if decision.Axis == planir.AxisK {
		if first := proc(decision.Shares[0].Proc); len(decision.Shares) > 1 && len(first.Kinds) > 0 &&
			!slices.Contains(first.Kinds, op.Add) {
			return nil, fmt.Errorf("%q does not execute %q, which sums what the shares computed", first.Name, op.Add)
		}
		// Share 0 wrote the output; the other partial sums are added to it in order, by its processor.
		value := section.Values[node.Out[0]]
		sum := planir.View{Buffer: node.Out[0], R1: value.Rows, C1: value.Cols}
		for i := 1; i < len(decision.Shares); i++ {
			part := sum
			part.Buffer = partial(node.Out[0], i)
			out = append(out, Piece{
				Proc: decision.Shares[0].Proc, Share: i, Role: Sum,
				Ops: []op.Op{{Kind: op.Add, M: value.Rows, N: value.Cols}},
				In:  []planir.View{sum, part}, Out: []planir.View{sum},
			})
		}
	}
	return out, nil
}

func partial(value string, share int) string { return fmt.Sprintf("%s.p%d", value, share) }

// shareBuffer is the buffer of a share's dense output. Its width is part of the name: programs for
// other numbers of rows may divide the value elsewhere.
func shareBuffer(value string, share int, view planir.View) string {
	return fmt.Sprintf("%s.d%d.%d", value, share, view.C1-view.C0)
}

// strided reports whether a view of a value has several rows with gaps between them.
func strided(section *Section, view planir.View, value string) bool {
	return view.R1-view.R0 > 1 && view.C1-view.C0 != section.Values[value].Cols
}

// AxisLength is the number of units an axis divides, or why the node cannot be divided along it.
func AxisLength(node *Node, axis planir.Axis) (int, error) {
	operator := node.Op()
	switch axis {
	case planir.AxisNone:
		return 0, nil
	case planir.AxisRows:
		if fault := operator.Kind.RowsFault(); fault != "" {
			return 0, fmt.Errorf("%s cannot be divided by rows: %s", operator.Kind, fault)
		}
		return operator.M, nil
	case planir.AxisCols:
		if operator.Kind.ByColumns() {
			return operator.N, nil
		}
	case planir.AxisK:
		switch {
		case operator.Kind.Along() != op.AlongK:
		case operator.Scheme.RoundsResults():
			return 0, fmt.Errorf("%s with scheme %q cannot be divided along %q: its result is rounded, and partial sums would be too", operator.Kind, operator.Scheme, axis)
		default:
			return operator.K, nil
		}
	case planir.AxisHeads:
		if operator.Kind.Along() == op.AlongHeads {
			return operator.KVHeads, nil
		}
	}
	return 0, fmt.Errorf("%s cannot be divided along %q", operator.Kind, axis)
}

// Granularity is the unit that shares of a node along an axis must be multiples of on a processor
// (the last share may end anywhere).
func Granularity(node *Node, axis planir.Axis, proc *planir.Proc) int {
	switch operator := node.Op(); axis {
	case planir.AxisCols:
		return operator.ColumnUnit(proc.Tile.N)
	case planir.AxisK:
		return lcm(max(1, proc.Tile.K), operator.Scheme.BlockK())
	}
	return 1
}

func lcm(a, b int) int {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}

func cutShare(section *Section, node *Node, axis planir.Axis, sh planir.Share, index int, proc *planir.Proc) (Piece,
	error) {
	ops := slices.Clone(node.Ops)
	operator := &ops[len(ops)-1]
	whole := func(name string) planir.View {
		value := section.Values[name]
		return planir.View{Buffer: name, R1: value.Rows, C1: value.Cols}
	}
	in, out := make([]planir.View, len(node.In)), make([]planir.View, len(node.Out))
	for i, name := range node.In {
		in[i] = whole(name)
	}
	for i, name := range node.Out {
		out[i] = whole(name)
	}
	piece := Piece{Proc: sh.Proc, Share: index, K1: operator.K, N1: operator.N}
	if axis != planir.AxisNone && axis != planir.AxisRows {
		unit := Granularity(node, axis, proc)
		length, _ := AxisLength(node, axis)
		if sh.From%unit != 0 || (sh.To%unit != 0 && sh.To != length) {
			return Piece{}, fmt.Errorf("range %d..%d of axis %q is not a multiple of %d", sh.From, sh.To, axis, unit)
		}
	}
	switch axis {
	case planir.AxisRows:
		for _, views := range [][]planir.View{in, out} {
			for i := range views {
				fan := section.Values[views[i].Buffer].Fan
				views[i].R0, views[i].R1 = sh.From*fan, sh.To*fan
			}
		}
		piece.R0 = sh.From
		for i := range ops {
			ops[i].M = sh.To - sh.From
		}
	case planir.AxisCols:
		piece.N0, piece.N1 = sh.From, sh.To
		out[0].C0, out[0].C1 = sh.From, sh.To
		for i := range in {
			if each := operator.Kind.ColumnsRead(i); each > 0 {
				in[i].C0, in[i].C1 = each*sh.From, each*sh.To
			}
		}
		operator.N = sh.To - sh.From
	case planir.AxisK:
		piece.K0, piece.K1 = sh.From, sh.To
		in[0].C0, in[0].C1 = sh.From, sh.To
		operator.K = sh.To - sh.From
		if index > 0 {
			out[0].Buffer = partial(node.Out[0], index)
			operator.Bias = false // the first share adds it
		}
	case planir.AxisHeads:
		group := operator.Heads / operator.KVHeads
		width := (group + 2) * operator.HeadDim
		in[0].C0, in[0].C1 = sh.From*width, sh.To*width
		out[0].C0, out[0].C1 = sh.From*group*operator.HeadDim, sh.To*group*operator.HeadDim
		for i := range ops {
			ops[i].KVHeads = sh.To - sh.From
			ops[i].Heads = group * (sh.To - sh.From)
		}
	}
	if sh.PadRows > 0 {
		switch {
		case sh.PadRows < operator.M:
			return Piece{}, fmt.Errorf("rows padded to %d, want at least %d", sh.PadRows, operator.M)
		case axis == planir.AxisRows && sh.To != node.Op().M:
			return Piece{}, fmt.Errorf("rows %d..%d padded to %d would overwrite the next share's", sh.From, sh.To,
				sh.PadRows)
		}
		for i := range ops {
			ops[i].M = sh.PadRows
		}
		for i := range in {
			in[i].R1 = in[i].R0 + sh.PadRows*section.Values[node.In[i]].Fan
		}
		for i := range out {
			if operator.Kind != op.SelectRow { // has one output row whatever M is
				out[i].R1 = out[i].R0 + sh.PadRows*section.Values[node.Out[i]].Fan
			}
		}
	}
	operator.Form = sh.Form
	for i, view := range in {
		if strided(section, view, node.In[i]) && !proc.StridedInput {
			return Piece{}, fmt.Errorf("input %s is a column range of a wider buffer, and %q reads whole buffers only", view, sh.Proc)
		}
	}
	for i := range ops {
		if len(proc.Kinds) > 0 && !slices.Contains(proc.Kinds, ops[i].Kind) {
			return Piece{}, fmt.Errorf("%q does not execute %q", sh.Proc, ops[i].Kind)
		}
		if ops[i].Kind == op.QuantRows && !ops[i].Static &&
			!slices.ContainsFunc(proc.Schemes,
				func(scheme op.Scheme) bool { return scheme.QuantisedRows() && !scheme.Static() }) {
			return Piece{}, fmt.Errorf("%q executes no scheme with a scale for each row, and computes no such scales for others", sh.Proc)
		}
		if ops[i].HasScheme() && !slices.Contains(proc.Schemes, ops[i].Scheme) {
			return Piece{}, fmt.Errorf("%q does not execute scheme %q", sh.Proc, ops[i].Scheme)
		}
		if !proc.HasForm(ops[i].Scheme, ops[i].Form) {
			return Piece{}, fmt.Errorf("%q does not execute form %q of scheme %q", sh.Proc, ops[i].Form, ops[i].Scheme)
		}
		if scheme := ops[i].Scheme; ops[i].Kind == op.Embed && scheme != "" &&
			proc.Layouts[scheme.Weight()] != op.TilesLayout {
			return Piece{}, fmt.Errorf("%q does not read weights %q in layout %q, in which rows are looked up",
				sh.Proc, scheme.Weight(), op.TilesLayout)
		}
		if err := ops[i].Validate(); err != nil {
			return Piece{}, err
		}
	}
	// What an operator before the last writes, it writes in place (see chain).
	for _, earlier := range ops[:len(ops)-1] {
		if len(earlier.Sig().Out) > 0 && !slices.Contains(out, in[0]) {
			if strided(section, in[0], node.In[0]) && !proc.StridedOutput {
				return Piece{}, fmt.Errorf("%s is changed in place, is a column range of a wider buffer, and %q writes whole buffers only", in[0], sh.Proc)
			}
			out = append([]planir.View{in[0]}, out...)
		}
	}
	piece.Ops, piece.In, piece.Out = ops, in, out
	if slices.ContainsFunc(ops, func(operator op.Op) bool { return operator.Sig().State }) {
		piece.Heads = &[2]int{0, operator.KVHeads}
		if axis == planir.AxisHeads {
			piece.Heads = &[2]int{sh.From, sh.To}
		}
	}
	return piece, nil
}
