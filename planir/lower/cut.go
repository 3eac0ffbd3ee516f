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
func Cut(s *Section, n *Node, d *planir.Decision, proc func(name string) *planir.Proc) ([]Piece, error) {
	if len(d.Shares) == 0 {
		return nil, fmt.Errorf("decision has no shares")
	}
	full, err := AxisLength(n, d.Axis)
	if err != nil {
		return nil, err
	}
	if d.Axis == planir.AxisNone && len(d.Shares) != 1 {
		return nil, fmt.Errorf("%d shares without an axis, want 1", len(d.Shares))
	}
	if d.Axis != planir.AxisNone {
		at := 0
		for _, sh := range d.Shares {
			if sh.From != at || sh.To <= sh.From {
				return nil, fmt.Errorf("shares of axis %q do not tile 0..%d: share of %q is %d..%d, want a start of %d", d.Axis, full, sh.Proc, sh.From, sh.To, at)
			}
			at = sh.To
		}
		if at != full {
			return nil, fmt.Errorf("shares of axis %q end at %d, want %d", d.Axis, at, full)
		}
	}
	// The processor that gathers what others cannot write in place.
	gatherer := ""
	for _, sh := range d.Shares {
		if p := proc(sh.Proc); gatherer == "" && p != nil && p.StridedOutput && (len(p.Kinds) == 0 || slices.Contains(p.Kinds, op.Copy)) {
			gatherer = p.Name
		}
	}
	var out, gathers []Piece
	for i, sh := range d.Shares {
		p := proc(sh.Proc)
		if p == nil {
			return nil, fmt.Errorf("unknown processor %q", sh.Proc)
		}
		piece, err := cutShare(s, n, d.Axis, sh, i, p)
		if err != nil {
			return nil, fmt.Errorf("share of %q: %w", sh.Proc, err)
		}
		last := len(piece.Out) - 1
		if v := piece.Out[last]; strided(s, v, n.Out[len(n.Out)-1]) && !p.StridedOutput {
			if gatherer == "" || len(n.Out) != 1 {
				return nil, fmt.Errorf("share of %q: output %s is a column range of a wider buffer, %q writes whole buffers only, and no processor of the decision could gather it", sh.Proc, v, sh.Proc)
			}
			dense := planir.View{Buffer: shareBuffer(n.Out[0], i, v), R1: v.R1 - v.R0, C1: v.C1 - v.C0}
			piece.Out[last] = dense
			// Padding rows are left behind.
			value := s.Values[n.Out[0]]
			dense.R1 = min(dense.R1, value.Rows)
			v.R1 = v.R0 + dense.R1
			move := op.Op{Kind: op.Copy, M: dense.R1 / value.Fan, N: dense.C1}
			if value.Fan > 1 {
				move.Fan = value.Fan
			}
			gathers = append(gathers, Piece{
				Proc: gatherer, Share: i, Role: Gather,
				Ops: []op.Op{move},
				In:  []planir.View{dense}, Out: []planir.View{v},
			})
		}
		out = append(out, piece)
	}
	out = append(out, gathers...)
	if d.Axis == planir.AxisK {
		if first := proc(d.Shares[0].Proc); len(d.Shares) > 1 && len(first.Kinds) > 0 && !slices.Contains(first.Kinds, op.Add) {
			return nil, fmt.Errorf("%q does not execute %q, which sums what the shares computed", first.Name, op.Add)
		}
		// Share 0 wrote the output; the other partial sums are added to it in order, by its processor.
		v := s.Values[n.Out[0]]
		sum := planir.View{Buffer: n.Out[0], R1: v.Rows, C1: v.Cols}
		for i := 1; i < len(d.Shares); i++ {
			part := sum
			part.Buffer = partial(n.Out[0], i)
			out = append(out, Piece{
				Proc: d.Shares[0].Proc, Share: i, Role: Sum,
				Ops: []op.Op{{Kind: op.Add, M: v.Rows, N: v.Cols}},
				In:  []planir.View{sum, part}, Out: []planir.View{sum},
			})
		}
	}
	return out, nil
}

func partial(value string, share int) string { return fmt.Sprintf("%s.p%d", value, share) }

// shareBuffer is the buffer of a share's dense output. Its width is part of the name: programs for
// other numbers of rows may divide the value elsewhere.
func shareBuffer(value string, share int, v planir.View) string {
	return fmt.Sprintf("%s.d%d.%d", value, share, v.C1-v.C0)
}

// strided reports whether a view of a value has several rows with gaps between them.
func strided(s *Section, v planir.View, value string) bool {
	return v.R1-v.R0 > 1 && v.C1-v.C0 != s.Values[value].Cols
}

// AxisLength is the number of units an axis divides, or why the node cannot be divided along it.
func AxisLength(n *Node, a planir.Axis) (int, error) {
	o := n.Op()
	switch a {
	case planir.AxisNone:
		return 0, nil
	case planir.AxisRows:
		if fault := o.Kind.RowsFault(); fault != "" {
			return 0, fmt.Errorf("%s cannot be divided by rows: %s", o.Kind, fault)
		}
		return o.M, nil
	case planir.AxisCols:
		if o.Kind.ByColumns() {
			return o.N, nil
		}
	case planir.AxisK:
		switch {
		case o.Kind.Along() != op.AlongK:
		case o.Scheme.RoundsResults():
			return 0, fmt.Errorf("%s with scheme %q cannot be divided along %q: its result is rounded, and partial sums would be too", o.Kind, o.Scheme, a)
		default:
			return o.K, nil
		}
	case planir.AxisHeads:
		if o.Kind.Along() == op.AlongHeads {
			return o.KVHeads, nil
		}
	}
	return 0, fmt.Errorf("%s cannot be divided along %q", o.Kind, a)
}

// Granularity is the unit that shares of a node along an axis must be multiples of on processor p
// (the last share may end anywhere).
func Granularity(n *Node, a planir.Axis, p *planir.Proc) int {
	switch o := n.Op(); a {
	case planir.AxisCols:
		return o.ColumnUnit(p.Tile.N)
	case planir.AxisK:
		return lcm(max(1, p.Tile.K), o.Scheme.BlockK())
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

func cutShare(s *Section, n *Node, axis planir.Axis, sh planir.Share, index int, proc *planir.Proc) (Piece, error) {
	ops := slices.Clone(n.Ops)
	o := &ops[len(ops)-1]
	whole := func(name string) planir.View {
		v := s.Values[name]
		return planir.View{Buffer: name, R1: v.Rows, C1: v.Cols}
	}
	in, out := make([]planir.View, len(n.In)), make([]planir.View, len(n.Out))
	for i, name := range n.In {
		in[i] = whole(name)
	}
	for i, name := range n.Out {
		out[i] = whole(name)
	}
	p := Piece{Proc: sh.Proc, Share: index, K1: o.K, N1: o.N}
	if axis != planir.AxisNone && axis != planir.AxisRows {
		unit := Granularity(n, axis, proc)
		length, _ := AxisLength(n, axis)
		if sh.From%unit != 0 || (sh.To%unit != 0 && sh.To != length) {
			return Piece{}, fmt.Errorf("range %d..%d of axis %q is not a multiple of %d", sh.From, sh.To, axis, unit)
		}
	}
	switch axis {
	case planir.AxisRows:
		for _, views := range [][]planir.View{in, out} {
			for i := range views {
				fan := s.Values[views[i].Buffer].Fan
				views[i].R0, views[i].R1 = sh.From*fan, sh.To*fan
			}
		}
		p.R0 = sh.From
		for i := range ops {
			ops[i].M = sh.To - sh.From
		}
	case planir.AxisCols:
		p.N0, p.N1 = sh.From, sh.To
		out[0].C0, out[0].C1 = sh.From, sh.To
		for i := range in {
			if each := o.Kind.ColumnsRead(i); each > 0 {
				in[i].C0, in[i].C1 = each*sh.From, each*sh.To
			}
		}
		o.N = sh.To - sh.From
	case planir.AxisK:
		p.K0, p.K1 = sh.From, sh.To
		in[0].C0, in[0].C1 = sh.From, sh.To
		o.K = sh.To - sh.From
		if index > 0 {
			out[0].Buffer = partial(n.Out[0], index)
			o.Bias = false // the first share adds it
		}
	case planir.AxisHeads:
		group := o.Heads / o.KVHeads
		width := (group + 2) * o.HeadDim
		in[0].C0, in[0].C1 = sh.From*width, sh.To*width
		out[0].C0, out[0].C1 = sh.From*group*o.HeadDim, sh.To*group*o.HeadDim
		for i := range ops {
			ops[i].KVHeads = sh.To - sh.From
			ops[i].Heads = group * (sh.To - sh.From)
		}
	}
	if sh.PadRows > 0 {
		switch {
		case sh.PadRows < o.M:
			return Piece{}, fmt.Errorf("rows padded to %d, want at least %d", sh.PadRows, o.M)
		case axis == planir.AxisRows && sh.To != n.Op().M:
			return Piece{}, fmt.Errorf("rows %d..%d padded to %d would overwrite the next share's", sh.From, sh.To, sh.PadRows)
		}
		for i := range ops {
			ops[i].M = sh.PadRows
		}
		for i := range in {
			in[i].R1 = in[i].R0 + sh.PadRows*s.Values[n.In[i]].Fan
		}
		for i := range out {
			if o.Kind != op.SelectRow { // has one output row whatever M is
				out[i].R1 = out[i].R0 + sh.PadRows*s.Values[n.Out[i]].Fan
			}
		}
	}
	o.Form = sh.Form
	for i, v := range in {
		if strided(s, v, n.In[i]) && !proc.StridedInput {
			return Piece{}, fmt.Errorf("input %s is a column range of a wider buffer, and %q reads whole buffers only", v, sh.Proc)
		}
	}
	for i := range ops {
		if len(proc.Kinds) > 0 && !slices.Contains(proc.Kinds, ops[i].Kind) {
			return Piece{}, fmt.Errorf("%q does not execute %q", sh.Proc, ops[i].Kind)
		}
		if ops[i].Kind == op.QuantRows && !ops[i].Static && !slices.ContainsFunc(proc.Schemes, func(x op.Scheme) bool { return x.QuantisedRows() && !x.Static() }) {
			return Piece{}, fmt.Errorf("%q executes no scheme with a scale for each row, and computes no such scales for others", sh.Proc)
		}
		if ops[i].HasScheme() && !slices.Contains(proc.Schemes, ops[i].Scheme) {
			return Piece{}, fmt.Errorf("%q does not execute scheme %q", sh.Proc, ops[i].Scheme)
		}
		if !proc.HasForm(ops[i].Scheme, ops[i].Form) {
			return Piece{}, fmt.Errorf("%q does not execute form %q of scheme %q", sh.Proc, ops[i].Form, ops[i].Scheme)
		}
		if x := ops[i].Scheme; ops[i].Kind == op.Embed && x != "" && proc.Layouts[x.Weight()] != op.TilesLayout {
			return Piece{}, fmt.Errorf("%q does not read weights %q in layout %q, in which rows are looked up", sh.Proc, x.Weight(), op.TilesLayout)
		}
		if err := ops[i].Validate(); err != nil {
			return Piece{}, err
		}
	}
	// What an operator before the last writes, it writes in place (see chain).
	for _, earlier := range ops[:len(ops)-1] {
		if len(earlier.Sig().Out) > 0 && !slices.Contains(out, in[0]) {
			if strided(s, in[0], n.In[0]) && !proc.StridedOutput {
				return Piece{}, fmt.Errorf("%s is changed in place, is a column range of a wider buffer, and %q writes whole buffers only", in[0], sh.Proc)
			}
			out = append([]planir.View{in[0]}, out...)
		}
	}
	p.Ops, p.In, p.Out = ops, in, out
	if slices.ContainsFunc(ops, func(o op.Op) bool { return o.Sig().State }) {
		p.Heads = &[2]int{0, o.KVHeads}
		if axis == planir.AxisHeads {
			p.Heads = &[2]int{sh.From, sh.To}
		}
	}
	return p, nil
}
