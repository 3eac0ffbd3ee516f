package opencl

import (
	"github.com/hetc/hetc/internal/clapi"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver/opencl/kernel"
)

// step is a node or a part of one: launches of kernels, one behind the other.
type step struct {
	node     int
	m, fan   int // most tokens, and rows for each
	launches []launch
	selects  bool // it copies the row that the call's scalars name
	refused  func(e *executable, row int) error
	rotation *rotation
	split    int // items that an attention makes of few rows, 0: one for each head of a row
	heads    int
}

// launch is a kernel with its arguments, and how its work is divided.
type launch struct {
	kernel  *clapi.Kernel
	variant kernel.Variant
	columns int // of results, or heads
	last    bool
	join    bool // of an attention: it is only needed where positions are divided
	args    []argument

	// of the current call
	global, local [3]int
	first         int
}

// argument is one of a kernel, or the buffer, place and row pitch of an operand.
type argument struct {
	kind    argumentKind
	operand int // or side of the cache
	buffer  *clapi.Buffer
	value   int64
	offset  int64
	turn    *rotation

	known bool // buffer and value are what the kernel has
	ld    int64
}

// argumentKind says where an argument's value comes from.
type argumentKind int

const (
	argOperand  argumentKind = iota + 1
	argBuffer                // a weight
	argWord                  // a number that does not change
	argNotes                 // the buffer of notes
	argNote                  // a word of the call's notes
	argPlaces                // the places of rows in them
	argRotation              // frequencies in them
	argRows
	argFirst // row of a launch
	argSide  // a side of the cache
	argContext
	argSequence // elements from one sequence to the next
	argParts
	argSelected // row
	argScratch  // a part of the arena
)

// size computes the items of a launch; false: there are none.
func (l *launch) size(p *processor, rows, parts int) bool {
	variant := &l.variant
	switch variant.Grid {
	case kernel.ByRows:
		l.global, l.local = [3]int{rows, 1, 1}, [3]int{1, 1, 1}
	case kernel.ByCells:
		l.global = [3]int{op.RoundUp(l.columns, kernel.GroupItems), rows, 1}
		l.local = [3]int{kernel.GroupItems, 1, 1}
	case kernel.ByGroups:
		l.global, l.local = [3]int{kernel.GroupItems, rows, 1}, [3]int{kernel.GroupItems, 1, 1}
	case kernel.ByHeads:
		if l.join && parts < 2 {
			return false
		}
		l.global, l.local = [3]int{l.columns, rows, parts}, [3]int{1, 1, 1}
		if l.join {
			l.global[2] = 1
		}
		if p.device.features.Dedicated { // it knows what suits it
			l.local = [3]int{}
		}
	case kernel.ByTiles, kernel.ByColumn:
		return l.sizeProduct(rows)
	}
	return rows > 0
}

// sizeProduct divides the rows of a product into blocks, and leaves few that remain to a kernel for single rows.
func (l *launch) sizeProduct(rows int) bool {
	variant := &l.variant
	blocks, rest := rows/variant.Rows, rows%variant.Rows
	if rest > variant.Few {
		blocks, rest = blocks+1, 0
	}
	count := blocks
	if l.first = 0; l.last {
		count, l.first = rest, blocks*variant.Rows
	}
	l.global, l.local = [3]int{count, (l.columns + 15) / 16, 1}, [3]int{1, 1, 1}
	if variant.Grid == kernel.ByColumn {
		l.global = [3]int{op.RoundUp(l.columns, pack.TileN), count, variant.Slices}
		l.local = [3]int{pack.TileN, 1, variant.Slices}
	}
	return count > 0
}

// leastPart is how many positions an item of a divided attention has at least.
const leastPart = 32

// parts returns how many parts the positions of a call are divided into.
func (s *step) parts(e *executable, rows int) int {
	if s.split == 0 || rows == 0 {
		return 1
	}
	longest := 0
	for row := range rows {
		longest = max(longest, e.At(row).Pos+1)
	}
	return max(1, min(s.split/(rows*s.heads), longest/leastPart))
}
