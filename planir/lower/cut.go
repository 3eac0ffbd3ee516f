package lower

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

// role is the part that a piece has in computing its node.
type role int

const (
	Compute role = iota // a share's part of the node
	Gather              // moves the dense output of a share to its columns of the output
	Sum                 // adds the partial sum of a share to the output
)

// Piece is what one processor executes of a node in one step.
type Piece struct {
	Proc  string
	Share int // index into the decision's shares
	Role  role
	Ops   []op.Op // the node's chain, with the shapes of this piece
	R0    int     // first row it covers
	Heads *[2]int // cache heads [from,to), nil without state
	H0    int     // first key head of a share along heads

	// In and Out are the views it reads and writes, Out beginning with what it changes in place.
	In, Out []planir.View

	// The region of the node's matrix a share multiplies by.
	K0, K1, N0, N1 int
}

// Op returns the piece's main operator: the last of its chain.
func (p *Piece) Op() op.Op { return p.Ops[len(p.Ops)-1] }

// Cut returns the pieces of a node as decided, in an order that one processor alone could execute. The shares come
// first. Then follows a gather for every share whose processor writes whole buffers only and therefore wrote a buffer
// of its own; the first processor of the decision that can do it gathers. For a split along K the additions follow, in
// the order of the shares, on the first share's processor. Both Lower and the solver's prices use it.
func Cut(
	section *Section, node *Node, decision *planir.Decision, proc func(name string) *planir.Proc,
) ([]Piece, error) {
	if err := checkCover(node, decision); err != nil {
		return nil, err
	}

	gatherer := gathererOf(decision, proc)
	// The shares, and for each that cannot write its columns in place, a gather behind all of them.
	var out, gathers []Piece
	for i, share := range decision.Shares {
		owner := proc(share.Proc)
		if owner == nil {
			return nil, fmt.Errorf("unknown processor %q", share.Proc)
		}
		piece, err := cutShare(section, node, decision.Axis, share, i, owner)
		if err != nil {
			return nil, fmt.Errorf("share of %q: %w", share.Proc, err)
		}
		view := piece.Out[len(piece.Out)-1]
		isRange := strided(section, view, node.Out[len(node.Out)-1])
		if isRange && !owner.StridedOutput && !node.Op().Kind.AnyStride() {
			if gatherer == "" || len(node.Out) != 1 {
				return nil, fmt.Errorf(
					"share of %q: output %s is a column range of a wider buffer, %q writes whole buffers "+
						"only, and no processor of the decision could gather it", share.Proc, view, share.Proc)
			}
			gathers = append(gathers, gatherFrom(&piece, gatherer, section.Values[node.Out[0]]))
		}
		out = append(out, piece)
	}
	out = append(out, gathers...)

	if decision.Axis != planir.AxisK {
		return out, nil
	}
	sums, err := sumsOf(section, node, decision, proc(decision.Shares[0].Proc))
	if err != nil {
		return nil, err
	}
	return append(out, sums...), nil
}

// checkCover checks that the shares of a decision cover its axis, one after the other.
func checkCover(node *Node, decision *planir.Decision) error {
	shares, axis := decision.Shares, decision.Axis
	if len(shares) == 0 {
		return fmt.Errorf("decision has no shares")
	}
	full, err := AxisLength(node, axis)
	if err != nil {
		return err
	}
	if axis == planir.AxisNone {
		if len(shares) != 1 {
			return fmt.Errorf("%d shares without an axis, want 1", len(shares))
		}
		return nil
	}

	at := 0
	for _, share := range shares {
		if share.From != at || share.To <= share.From {
			return fmt.Errorf("shares of axis %q do not tile 0..%d: share of %q is %d..%d, want a start of %d",
				axis, full, share.Proc, share.From, share.To, at)
		}
		at = share.To
	}
	if at != full {
		return fmt.Errorf("shares of axis %q end at %d, want %d", axis, at, full)
	}
	return nil
}

// gathererOf returns the processor that gathers what other processors cannot write in place, "" if none is needed.
func gathererOf(decision *planir.Decision, proc func(name string) *planir.Proc) string {
	for _, share := range decision.Shares {
		if owner := proc(share.Proc); owner != nil && owner.StridedOutput && owner.Executes(op.Copy) {
			return owner.Name
		}
	}
	return ""
}

// gatherFrom makes a piece write a dense buffer of its own, and returns the piece that moves it to its columns of the
// value. Padding rows are left behind.
func gatherFrom(piece *Piece, gatherer string, value Value) Piece {
	last := len(piece.Out) - 1
	view := piece.Out[last]
	dense := planir.View{
		Buffer: shareBuffer(view.Buffer, piece.Share, view), R1: view.R1 - view.R0, C1: view.C1 - view.C0,
	}
	piece.Out[last] = dense

	dense.R1 = min(dense.R1, value.Rows)
	view.R1 = view.R0 + dense.R1
	move := op.Op{Kind: op.Copy, M: dense.R1 / value.Fan, N: dense.C1}
	if value.Fan > 1 {
		move.Fan = value.Fan
	}
	return Piece{
		Proc: gatherer, Share: piece.Share, Role: Gather,
		Ops: []op.Op{move}, In: []planir.View{dense}, Out: []planir.View{view},
	}
}

// sumsOf returns the additions of a split along K. Share 0 wrote the output; the other partial sums are added to it in
// order, by its processor.
func sumsOf(section *Section, node *Node, decision *planir.Decision, first *planir.Proc) (out []Piece, err error) {
	if len(decision.Shares) > 1 && !first.Executes(op.Add) {
		return nil, fmt.Errorf("%q does not execute %q, which sums what the shares computed", first.Name, op.Add)
	}
	value := section.Values[node.Out[0]]
	sum := planir.View{Buffer: node.Out[0], R1: value.Rows, C1: value.Cols}
	for i := 1; i < len(decision.Shares); i++ {
		part := sum
		part.Buffer = partial(node.Out[0], i)
		out = append(out, Piece{
			Proc: first.Name, Share: i, Role: Sum,
			Ops: []op.Op{{Kind: op.Add, M: value.Rows, N: value.Cols}},
			In:  []planir.View{sum, part}, Out: []planir.View{sum},
		})
	}
	return out, nil
}

// partial names the buffer of a share's partial sums.
func partial(value string, share int) string { return fmt.Sprintf("%s.p%d", value, share) }

// shareBuffer returns the buffer of a share's dense output. Its width is part of the name: programs for
// other numbers of rows may divide the value elsewhere.
func shareBuffer(value string, share int, view planir.View) string {
	return fmt.Sprintf("%s.d%d.%d", value, share, view.C1-view.C0)
}

// strided reports whether a view of a value has several rows with gaps between them.
func strided(section *Section, view planir.View, value string) bool {
	return view.R1-view.R0 > 1 && view.C1-view.C0 != section.Values[value].Cols
}

// AxisLength returns the number of units an axis divides, or why the node cannot be divided along it.
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
			return 0, fmt.Errorf(
				"%s with scheme %q cannot be divided along %q: its result is rounded, and partial sums would be too",
				operator.Kind, operator.Scheme, axis)
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

// Granularity returns the unit that shares of a node along an axis must be multiples of on a processor
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

// lcm returns the least common multiple, by Euclid's algorithm.
func lcm(a, b int) int {
	divisor, rest := a, b
	for rest != 0 {
		divisor, rest = rest, divisor%rest
	}
	return a / divisor * b
}

// shareCut is a share while it is made into a piece: what is cut, along what, and the part of it that a processor
// takes.
type shareCut struct {
	Piece
	section *Section
	node    *Node
	axis    planir.Axis
	share   planir.Share
	proc    *planir.Proc
}

// cutShare makes the piece of one share: the node's chain and operands, narrowed to the share's range of the axis and
// padded as decided, if the processor executes that. The range must lie on the processor's tiles.
func cutShare(
	section *Section, node *Node, axis planir.Axis, share planir.Share, index int, proc *planir.Proc,
) (Piece, error) {
	whole := func(names []string) []planir.View {
		views := make([]planir.View, len(names))
		for i, name := range names {
			value := section.Values[name]
			views[i] = planir.View{Buffer: name, R1: value.Rows, C1: value.Cols}
		}
		return views
	}

	cut := shareCut{section: section, node: node, axis: axis, share: share, proc: proc}
	cut.Piece = Piece{
		Proc: share.Proc, Share: index, Ops: slices.Clone(node.Ops), K1: node.Op().K, N1: node.Op().N,
		In: whole(node.In), Out: whole(node.Out),
	}

	if err := cut.liesOnTiles(); err != nil {
		return Piece{}, err
	}

	// Narrow and pad first: what the processor is asked to execute is the piece, not the node.
	cut.narrowToShare()
	if share.PadRows > 0 {
		if err := cut.padRows(); err != nil {
			return Piece{}, err
		}
	}
	cut.main().Form = share.Form

	if err := cut.canReadInputs(); err != nil {
		return Piece{}, err
	}
	for i := range cut.Ops {
		if err := executes(proc, &cut.Ops[i]); err != nil {
			return Piece{}, err
		}
	}
	if err := cut.inPlace(); err != nil {
		return Piece{}, err
	}

	// An operator with state has a cache: the piece says which of its key/value heads are its own.
	if slices.ContainsFunc(cut.Ops, func(operator op.Op) bool { return operator.Sig().State }) {
		cut.Heads = &[2]int{0, cut.main().KVHeads}
		if axis == planir.AxisHeads {
			cut.Heads = &[2]int{share.From, share.To}
		}
	}
	return cut.Piece, nil
}

// liesOnTiles returns an error if the share's range of the axis does not lie on the processor's tiles.
func (c *shareCut) liesOnTiles() error {
	if c.axis == planir.AxisNone || c.axis == planir.AxisRows {
		return nil // nothing is cut, or rows, which are padded
	}
	unit := Granularity(c.node, c.axis, c.proc)
	length, _ := AxisLength(c.node, c.axis)
	endsOnUnit := c.share.To%unit == 0 || c.share.To == length
	if c.share.From%unit != 0 || !endsOnUnit {
		return fmt.Errorf("range %d..%d of axis %q is not a multiple of %d", c.share.From, c.share.To, c.axis, unit)
	}
	return nil
}

// canReadInputs returns an error if the processor cannot read an input of the piece. Inputs only: a range of an output
// that its processor cannot write is gathered by another one, see the caller of cutShare.
func (c *shareCut) canReadInputs() error {
	if c.proc.StridedInput || c.node.Op().Kind.AnyStride() {
		return nil
	}
	for i, view := range c.In {
		if strided(c.section, view, c.node.In[i]) {
			return fmt.Errorf("input %s is a column range of a wider buffer, and %q reads whole buffers only", view,
				c.share.Proc)
		}
	}
	return nil
}

// main returns the piece's main operator, to be changed.
func (c *shareCut) main() *op.Op { return &c.Ops[len(c.Ops)-1] }

// narrowToShare narrows operators and operands to the share's range of the axis.
func (c *shareCut) narrowToShare() {
	from, to, operator := c.share.From, c.share.To, c.main()
	switch c.axis {
	case planir.AxisRows:
		for _, views := range [][]planir.View{c.In, c.Out} {
			for i := range views {
				fan := c.section.Values[views[i].Buffer].Fan
				views[i].R0, views[i].R1 = from*fan, to*fan
			}
		}
		c.R0 = from
		for i := range c.Ops {
			c.Ops[i].M = to - from
		}
	case planir.AxisCols:
		c.N0, c.N1 = from, to
		c.Out[0].C0, c.Out[0].C1 = from, to
		for i := range c.In {
			if each := operator.Kind.ColumnsRead(i); each > 0 {
				c.In[i].C0, c.In[i].C1 = each*from, each*to
			}
		}
		operator.N = to - from
	case planir.AxisK:
		c.K0, c.K1 = from, to
		c.In[0].C0, c.In[0].C1 = from, to
		operator.K = to - from
		if c.Share > 0 {
			c.Out[0].Buffer = partial(c.node.Out[0], c.Share)
			operator.Bias = false // the first share adds it
		}
	case planir.AxisHeads:
		// Columns are grouped by key/value head, e.g. its queries, its key, its value.
		group := operator.Heads / operator.KVHeads
		in, _, out := operator.HeadColumns()
		for i, width := range in {
			c.In[i].C0, c.In[i].C1 = from*width, to*width
		}
		for i, width := range out {
			c.Out[i].C0, c.Out[i].C1 = from*width, to*width
		}
		c.H0 = from
		for i := range c.Ops {
			c.Ops[i].KVHeads = to - from
			c.Ops[i].Heads = group * (to - from)
		}
	}
}

// padRows extends rows to the number that the share is padded to.
func (c *shareCut) padRows() error {
	rows := c.share.PadRows
	switch {
	case c.node.Slots != nil:
		return fmt.Errorf("rows padded to %d, and those of a group of experts are as many as are reserved", rows)
	case c.main().Block > 0:
		return fmt.Errorf("rows padded to %d, and %s works on blocks of rows, which are not padded",
			rows, c.main().Kind)
	case rows < c.main().M:
		return fmt.Errorf("rows padded to %d, want at least %d", rows, c.main().M)
	case c.axis == planir.AxisRows && c.share.To != c.node.Op().M:
		return fmt.Errorf("rows %d..%d padded to %d would overwrite the next share's", c.share.From, c.share.To, rows)
	}

	for i := range c.Ops {
		c.Ops[i].M = rows
	}
	for i := range c.In {
		c.In[i].R1 = c.In[i].R0 + rows*c.section.Values[c.node.In[i]].Fan
	}
	for i := range c.Out {
		if c.main().Kind != op.SelectRow { // has one output row whatever M is
			c.Out[i].R1 = c.Out[i].R0 + rows*c.section.Values[c.node.Out[i]].Fan
		}
	}
	return nil
}

// inPlace puts the operand that an operator before the last writes first: the operator writes it in place (see chain).
func (c *shareCut) inPlace() error {
	for _, earlier := range c.Ops[:len(c.Ops)-1] {
		if len(earlier.Sig().Out) == 0 || slices.Contains(c.Out, c.In[0]) {
			continue
		}
		if strided(c.section, c.In[0], c.node.In[0]) && !c.proc.StridedOutput {
			return fmt.Errorf(
				"%s is changed in place, is a column range of a wider buffer, and %q writes whole buffers only",
				c.In[0], c.Proc)
		}
		c.Out = append([]planir.View{c.In[0]}, c.Out...)
	}
	return nil
}

// executes returns why a processor does not execute an operator, nil if it does.
func executes(proc *planir.Proc, operator *op.Op) error {
	scheme := operator.Scheme
	perRow := func(scheme op.Scheme) bool { return scheme.QuantisedRows() && !scheme.Static() }
	switch {
	case !proc.Executes(operator.Kind):
		return fmt.Errorf("%q does not execute %q", proc.Name, operator.Kind)
	case operator.Kind == op.QuantRows && !operator.Static && !slices.ContainsFunc(proc.Schemes, perRow):
		return fmt.Errorf("%q executes no scheme with a scale for each row, and computes no such scales for others",
			proc.Name)
	case operator.HasScheme() && !slices.Contains(proc.Schemes, scheme):
		return fmt.Errorf("%q does not execute scheme %q", proc.Name, scheme)
	case !proc.HasForm(scheme, operator.Form):
		return fmt.Errorf("%q does not execute form %q of scheme %q", proc.Name, operator.Form, scheme)
	case looksUp(operator) && proc.Layouts[scheme.Weight()] != op.TilesLayout:
		return fmt.Errorf("%q does not read weights %q in layout %q, in which rows are looked up",
			proc.Name, scheme.Weight(), op.TilesLayout)
	}
	return operator.Validate()
}

// looksUp reports whether an operator reads some rows or columns of a packed weight rather than all of it.
func looksUp(operator *op.Op) bool {
	if operator.Kind == op.Embed {
		return operator.Scheme != ""
	}
	return operator.Kind == op.OutlierMatMul
}
