package op

import "fmt"

// Kind names an operator. Its row in the table below answers what hetc asks about it.
type Kind string

const (
	Embed         Kind = "embed"
	SelectRow     Kind = "select_row"
	Norm          Kind = "norm"
	LayerNorm     Kind = "layer_norm"
	QuantRows     Kind = "quant_rows"
	MatMul        Kind = "matmul"
	ExpertMatMul  Kind = "expert_matmul"
	OutlierMatMul Kind = "outlier_matmul"
	GroupMatMul   Kind = "group_matmul"
	Dispatch      Kind = "dispatch"
	Collect       Kind = "collect"
	Route         Kind = "route"
	Combine       Kind = "combine"
	QKNorm        Kind = "qk_norm"
	Rope          Kind = "rope"
	KVAppend      Kind = "kv_append"
	Attention     Kind = "attention"
	Estimate      Kind = "estimate"
	Select        Kind = "select"
	SparseAttend  Kind = "sparse_attention"
	GLU           Kind = "glu"
	Activate      Kind = "activate"
	Gate          Kind = "gate"
	Softcap       Kind = "softcap"
	Clip          Kind = "clip"
	Add           Kind = "add"
	Copy          Kind = "copy"
)

// kindRow answers every question that hetc asks about a kind of operator. M is always the number of tokens. Operands
// have one row per token, or Fan rows where each token is computed by several experts; shapes in doc are those of
// Fan = 1 unless they name it.
type kindRow struct {
	kind Kind
	doc  string // what it computes, with the shapes of its operands: the documentation

	required  []string                           // fields of Op that are dimensions of at least 1
	optional  []string                           // fields that may be set beside them
	check     func(o Op) error                   // what else must hold between the fields, nil: nothing
	signature func(o Op) Signature               // its operands
	shape     func(o Op, role string) (k, n int) // of a weight of plain float32 rows, by its role; nil: there is none
	flops     func(o Op) int64                   // multiplications and additions, nil: none
	bytes     func(o Op) int64                   // memory traffic with nothing cached
	key       func(o Op) string                  // see Op.Key

	scaling   scaling     // what its time depends on
	fields    []fieldRule // what required and optional say of every field of Op: filled in by rowOf
	rowwise   bool        // a row of the result depends on the same row of each operand alone
	rowsFault string      // why it cannot be divided by rows, "": it can
	// columns is how many columns of each operand a column of the result depends on, 0: on all of them. nil: the result
	// cannot be divided by columns.
	columns []int
	unit    columnUnit
	axis    Axis // what it can be divided along beside rows and columns, "": nothing
	// anyStride: every driver reads and writes ranges of columns of it, whatever else it takes of wider buffers.
	anyStride bool
	// heads is how many columns of each input, weight and output belong to one key head, of a kind that is divided
	// along key heads.
	heads func(o Op) (in, w, out []int)
}

// Axis is a dimension that only few kinds can be divided along.
type Axis string

const (
	AlongK     Axis = "k"     // the reduction, into partial sums
	AlongHeads Axis = "heads" // key heads
)

// columnUnit says of what a range of columns of a result must be a multiple.
type columnUnit int

const (
	unitTile       columnUnit = iota // the tile of the processor: vectors end where they do undivided
	unitInterleave                   // Op.Interleave
	unitOne                          // any column
)

// Kinds lists every kind in a fixed order.
var Kinds = func() []Kind {
	kinds := make([]Kind, len(kindTable))
	for i := range kindTable {
		kinds[i] = kindTable[i].kind
	}
	return kinds
}()

// rowOf finds the row of a kind, nil for an unknown one.
var rowOf = func() map[Kind]*kindRow {
	rows := make(map[Kind]*kindRow, len(kindTable))
	for i := range kindTable {
		kindTable[i].fields = kindTable[i].rules()
		rows[kindTable[i].kind] = &kindTable[i]
	}
	return rows
}()

// Has reports whether a field of Op, by its name in JSON, means something to the kind.
func (k Kind) Has(field string) bool {
	kind := rowOf[k]
	return kind != nil && kind.mayHave(field)
}

// Rowwise reports whether a row of the result depends on the same row of each operand alone, so that neighbours of
// such kinds may take a row through all of them.
func (k Kind) Rowwise() bool {
	kind := rowOf[k]
	return kind != nil && kind.rowwise
}

// RowsFault returns why an operator of the kind cannot be divided by rows, "" if it can.
func (k Kind) RowsFault() string {
	if kind := rowOf[k]; kind != nil {
		return kind.rowsFault
	}
	return ""
}

// Along returns the axis other than rows and columns along which an operator of the kind can be divided, "" if there is
// none.
func (k Kind) Along() Axis {
	if kind := rowOf[k]; kind != nil {
		return kind.axis
	}
	return ""
}

// AnyStride reports whether every driver reads and writes ranges of columns of an operator of the kind, also one that
// else takes whole buffers only: a processor's strided_input and strided_output say nothing about it.
func (k Kind) AnyStride() bool {
	kind := rowOf[k]
	return kind != nil && kind.anyStride
}

// ReadsCache reports whether the kind reads what is cached of earlier positions.
func (k Kind) ReadsCache() bool { return k.Has("kv") && k.Has("context") }

// HeadColumns returns how many columns of each input, weight and output of the operator belong to one key head, for a
// kind that is divided along them.
func (o Op) HeadColumns() (in, w, out []int) {
	if kind := rowOf[o.Kind]; kind != nil && kind.heads != nil {
		return kind.heads(o)
	}
	return nil, nil, nil
}

// ByColumns reports whether the result of the kind can be divided by columns.
func (k Kind) ByColumns() bool {
	kind := rowOf[k]
	return kind != nil && kind.columns != nil
}

// ColumnsRead returns how many columns of an operand a column of the result depends on: 0 for all of them, and for a
// result that is not divided by columns. Column c depends on those from c*ColumnsRead on.
func (k Kind) ColumnsRead(operand int) int {
	kind := rowOf[k]
	if kind == nil || operand >= len(kind.columns) {
		return 0
	}
	return kind.columns[operand]
}

// ColumnUnit returns of what a range of columns of the result is a multiple, on a processor whose tile has that many
// columns.
func (o Op) ColumnUnit(tile int) int {
	switch kind := rowOf[o.Kind]; {
	case kind != nil && kind.unit == unitInterleave:
		return o.Interleave
	case kind != nil && kind.unit == unitOne:
		return 1
	}
	return max(1, tile)
}

// Key names everything of the operator that can influence its cost, in a stable form, e.g.
// "matmul[256,2048]x[2048,5632] a8t/q8c".
func (o Op) Key() string {
	if kind := rowOf[o.Kind]; kind != nil && kind.key != nil {
		return kind.key(o)
	}
	return fmt.Sprintf("%s[%d,%d]", o.Kind, o.Rows(), o.N) + textIf(o.Static, " static") +
		textIf(o.Scales > 0, fmt.Sprint(o.Scales))
}

// Flops counts multiplications and additions (2 per multiply-add). Attention counts the causal half only: row i of M
// attends to Context-M+i+1 positions, at most Window. In a batch every row attends to Context.
func (o Op) Flops() int64 {
	if kind := rowOf[o.Kind]; kind != nil && kind.flops != nil {
		return kind.flops(o)
	}
	return 0
}

// Bytes returns the memory traffic of one execution with nothing cached: weights, inputs and outputs once.
func (o Op) Bytes() int64 {
	if kind := rowOf[o.Kind]; kind != nil {
		return kind.bytes(o)
	}
	return 0
}
