package executor

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// weights finds the packed bytes of weight references. A pack is asked of the source when it is first needed.
type weights struct {
	plan   *planir.Plan
	src    Source
	places map[packKey]packPlace
	bytes  map[packKey][]byte
	byRow  map[string]bool       // packs of which single rows are read
	rows   map[packKey]*packRows // those of them that are loaded
	copies []*mem.Region         // of their hot rows
	await  func(packKey)         // returns when what is being prepared of a pack is; nil: nothing is
}

// packKey names a pack in a layer.
type packKey struct {
	pack  string
	layer int // -1: none
}

// packPlace is where a pack lies, and in which blob.
type packPlace struct {
	planir.Placement
	blob string
}

// newWeights indexes the packs of all weights blobs.
func newWeights(p *planir.Plan, src Source) *weights {
	out := &weights{plan: p, src: src, places: map[packKey]packPlace{}, bytes: map[packKey][]byte{},
		byRow: p.Program.ReadByRow(), rows: map[packKey]*packRows{}}
	for _, blob := range p.Program.WeightBlobs() {
		for _, pl := range blob.Packs {
			out.places[packKey{pl.Pack.Name, pl.Layer}] = packPlace{pl, blob.Name}
		}
	}
	return out
}

// place returns where a layer's pack lies, or the pack that all layers share.
func (w *weights) place(name string, layer int) (packPlace, packKey) {
	key := packKey{name, -1}
	at, ok := w.places[key]
	if !ok {
		key.layer = layer
		at = w.places[key]
	}
	return at, key
}

// pack returns the bytes of a layer's pack, or of the one that all layers share.
func (w *weights) pack(name string, layer int) (*planir.Pack, []byte, packKey, error) {
	at, key := w.place(name, layer)
	data, ok := w.bytes[key]
	if !ok {
		if w.await != nil {
			w.await(key)
		}
		var err error
		if data, err = w.src.Range(at.blob, at.Offset, at.Pack.Bytes); err != nil {
			return nil, nil, key, err
		}
		w.bytes[key] = data
	}
	return at.Pack, data, key, nil
}

// packRows returns the rows of a layer's pack of which few are read, or of the one that all layers share.
func (w *weights) packRows(name string, layer int) (*packRows, packKey, error) {
	at, key := w.place(name, layer)
	if rows := w.rows[key]; rows != nil {
		return rows, key, nil
	}
	rows, err := newPackRows(w.src, at, w.plan.HotRows(at.Pack.Weight, key.layer))
	if err != nil {
		return nil, key, err
	}
	w.rows[key] = rows
	if rows.copies != nil {
		w.copies = append(w.copies, rows.copies)
	}
	return rows, key, nil
}

// resolve returns the weights of a step in one layer, and a key that equal weights share. table says which of them are
// tables of which single rows are read.
func (w *weights) resolve(refs []planir.WeightRef, layer int, table func(weight int, packed *planir.Pack) bool) (
	driver.Weights, string, error) {
	var out driver.Weights
	key := ""
	for i, ref := range refs {
		where, _ := w.place(ref.Pack, layer)
		byRow := w.byRow[ref.Pack] && ref.C0 == 0 && ref.Tiers == 0 // such packs are never divided by steps
		if byRow || table(i, where.Pack) {
			rows, at, err := w.packRows(ref.Pack, layer)
			if err != nil {
				return nil, "", err
			}
			out = append(out, driver.Packed{Spec: rows.place.Pack.Spec(), Rows: rows})
			key += fmt.Sprintf("%s@%d\x00", ref, at.layer)
			continue
		}
		packed, data, at, err := w.pack(ref.Pack, layer)
		if err != nil {
			return nil, "", err
		}
		spec := packed.Spec()
		var stride int64
		if spec.Experts > 0 {
			stride = int64(len(data)) / int64(spec.Experts)
		}
		if ref.Tiers > 0 { // the expert that is in the slot
			held := int64(slices.Index(w.plan.Holds(packed, layer), w.plan.InSlot(ref, layer)))
			spec, data, stride = pack.Expert(spec), data[held*stride:(held+1)*stride], 0
		}
		if ref.C0 != 0 || ref.C1 != spec.N {
			sub, off, bytes, err := pack.Columns(spec, ref.C0, ref.C1)
			if err != nil {
				return nil, "", err
			}
			if off+bytes > int64(len(data)) { // the plan says its size, and no rule what it must be
				return nil, "", diag.New(diag.ClassRun, "pack %q: got %d bytes, want at least %d for columns %d:%d", ref.Pack,
					len(data), off+bytes, ref.C0, ref.C1)
			}
			spec, data = sub, data[off:off+bytes]
		}
		out = append(out, driver.Packed{Spec: spec, Bytes: data, Stride: stride})
		key += fmt.Sprintf("%s@%d\x00", ref, at.layer)
	}
	return out, key, nil
}

// close releases the copies of hot rows.
func (w *weights) close() (err error) {
	for _, region := range w.copies {
		err = errors.Join(err, region.Close())
	}
	w.copies = nil
	return err
}
