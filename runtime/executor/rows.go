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

// minBlockBytes is how many bytes of a pack the source is asked for at least when a row of it is first needed.
const minBlockBytes = 64 << 10

// packRows gives access to the rows of a pack of which a step reads few (op.Graph.ReadsRows). Rows that the plan names
// lie in memory of their own, filled when the pack is loaded. Other rows are asked of the source, with their
// neighbours, when they are first needed. The source verifies both before it gives them out. packRows implements
// driver.Rows.
type packRows struct {
	src      Source
	place    packPlace
	rowBytes int64
	hot      []int       // the rows that the plan names, ascending
	copies   *mem.Region // of the hot rows, one behind the other; nil: there are none

	rowsPerBlock int
	mu           sync.Mutex
	blocks       [][]byte // of neighbouring rows, in the order of the pack; nil: not asked for yet
}

// newPackRows asks for the hot rows of a pack in a layer (nil: none are named), and for no others.
func newPackRows(src Source, at packPlace, hot *planir.Hot) (*packRows, error) {
	packed := at.Pack
	count := packed.K1 - packed.K0
	out := &packRows{src: src, place: at, rowBytes: packed.Bytes / int64(count)}
	if out.rowBytes*int64(count) != packed.Bytes {
		return nil, diag.New(diag.ClassRun, "pack %q: %d bytes are not %d rows", packed.Name, packed.Bytes, count)
	}
	out.rowsPerBlock = int(max(1, minBlockBytes/out.rowBytes))
	out.blocks = make([][]byte, (count+out.rowsPerBlock-1)/out.rowsPerBlock)
	if hot == nil {
		return out, nil
	}
	rows := hot.Within(packed)
	if len(rows) == 0 {
		return out, nil
	}
	memory, err := mem.Alloc(len(rows)*int(out.rowBytes), driver.Align)
	if err != nil {
		return nil, diag.New(diag.ClassRun, "hold %d rows of pack %q: %w", len(rows), packed.Name, err)
	}
	for i, row := range rows {
		to := memory.Bytes()[int64(i)*out.rowBytes:][:out.rowBytes]
		if err := copyRange(src, at.blob, at.Offset+int64(row)*out.rowBytes, to); err != nil {
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
		return p.copies.Bytes()[int64(i)*p.rowBytes:][:p.rowBytes:p.rowBytes], true, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	block := &p.blocks[k/p.rowsPerBlock]
	if *block == nil {
		from := k / p.rowsPerBlock * p.rowsPerBlock
		count := min(p.rowsPerBlock, p.place.Pack.K1-p.place.Pack.K0-from)
		offset := p.place.Offset + int64(from)*p.rowBytes
		data, err := p.src.Range(p.place.blob, offset, int64(count)*p.rowBytes)
		if err != nil {
			return nil, false, err
		}
		*block = data
	}
	return (*block)[int64(k%p.rowsPerBlock)*p.rowBytes:][:p.rowBytes:p.rowBytes], false, nil
}
