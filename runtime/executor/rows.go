package executor

import (
	"errors"
	"slices"
	"sync"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/driver"
)

// rowBlock is how many bytes of a pack the source is asked for at least when a row of it is first needed.
const rowBlock = 64 << 10

// packRows gives access to the rows of a pack of which a step reads few (op.Graph.ReadsRows). Rows that the plan names
// lie in memory of their own, filled when the pack is loaded. Other rows are asked of the source, with their
// neighbours, when they are first needed. The source verifies both before it gives them out. packRows implements
// driver.Rows.
type packRows struct {
	src    Source
	at     packPlace
	row    int64       // bytes of one
	hot    []int       // ascending
	copies *mem.Region // of their rows, one behind the other; nil: there are none
	mu     sync.Mutex
	blocks [][]byte // that have been asked for, in the order of the pack; nil: not yet
	each   int      // rows of a block
}

// newPackRows asks for the hot rows of a pack in a layer (nil: none are named), and for no others.
func newPackRows(src Source, at packPlace, hot *planir.Hot) (*packRows, error) {
	packed := at.Pack
	count := packed.K1 - packed.K0
	out := &packRows{src: src, at: at, row: packed.Bytes / int64(count)}
	if out.row*int64(count) != packed.Bytes {
		return nil, diag.New(diag.ClassRun, "pack %q: %d bytes are not %d rows", packed.Name, packed.Bytes, count)
	}
	out.each = int(max(1, rowBlock/out.row))
	out.blocks = make([][]byte, (count+out.each-1)/out.each)
	if hot == nil {
		return out, nil
	}
	rows := hot.Within(packed)
	if len(rows) == 0 {
		return out, nil
	}
	memory, err := mem.Alloc(len(rows)*int(out.row), driver.Align)
	if err != nil {
		return nil, diag.New(diag.ClassRun, "hold %d rows of pack %q: %w", len(rows), packed.Name, err)
	}
	for i, row := range rows {
		to := memory.Bytes()[int64(i)*out.row:][:out.row]
		if err := copyRange(src, at.blob, at.Offset+int64(row)*out.row, to); err != nil {
			return nil, errors.Join(err, memory.Close())
		}
	}
	out.hot, out.copies = rows, memory
	return out, nil
}

// copyRange copies a part of a blob. Hot rows are spread over all of a pack: a source whose mapping became resident
// around each of them would hold the whole pack beside their copies.
func copyRange(src Source, blob string, offset int64, out []byte) error {
	if copier, ok := src.(Copier); ok {
		return copier.CopyRange(blob, offset, out)
	}
	data, err := src.Range(blob, offset, int64(len(out)))
	if err != nil {
		return err
	}
	copy(out, data)
	return nil
}

// Row implements driver.Rows.
func (p *packRows) Row(k int) (row []byte, copied bool, err error) {
	if i, hot := slices.BinarySearch(p.hot, k); hot {
		return p.copies.Bytes()[int64(i)*p.row:][:p.row:p.row], true, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	block := &p.blocks[k/p.each]
	if *block == nil {
		from := k / p.each * p.each
		count := min(p.each, p.at.Pack.K1-p.at.Pack.K0-from)
		if *block, err = p.src.Range(p.at.blob, p.at.Offset+int64(from)*p.row, int64(count)*p.row); err != nil {
			*block = nil
			return nil, false, err
		}
	}
	return (*block)[int64(k%p.each)*p.row:][:p.row:p.row], false, nil
}
