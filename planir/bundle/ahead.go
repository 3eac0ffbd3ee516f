package bundle

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/shalanes"
)

// Part is a piece of a blob.
type Part struct {
	Blob          string
	Offset, Bytes int64
	// Few says that little of it will be read: checking it does not make it resident.
	Few bool
}

// Ahead checks parts that Range will be asked for, in about this order, on all cores until ctx ends. It reports
// nothing: Range refuses what is wrong or not in the bundle.
func (b *Bundle) Ahead(ctx context.Context, parts []Part) {
	var wanted []piece
	taken := map[*blob][]uint64{} // one bit per chunk
	for _, part := range parts {
		blob, err := b.find(part.Blob)
		if err != nil || blob.leaves == nil || part.Offset < 0 || part.Bytes < 1 || part.Offset > blob.Bytes ||
			part.Bytes > blob.Bytes-part.Offset {
			continue
		}
		if taken[blob] == nil {
			taken[blob] = make([]uint64, len(blob.good))
		}
		// Each chunk once, and none that was found good before.
		for index := part.Offset / blob.chunk; index < chunks(part.Offset+part.Bytes, blob.chunk); index++ {
			bit := uint64(1) << (index % 64)
			if (taken[blob][index/64]|blob.good[index/64].Load())&bit != 0 {
				continue
			}
			taken[blob][index/64] |= bit
			next := piece{blob: blob, chunk: index}
			// Reading through the mapping makes pages resident, which pays only where the whole chunk will be read.
			from, to := next.bounds()
			next.mapped = blob.file == nil || !part.Few && from >= part.Offset && to <= part.Offset+part.Bytes
			wanted = append(wanted, next)
		}
	}
	verifyPieces(ctx, wanted)
}

// piece is a chunk to be checked. mapped: through its mapping, which makes its pages resident; else through a small
// copy.
type piece struct {
	*blob
	chunk  int64
	mapped bool
}

// bounds is the range of the chunk in its blob.
func (p *piece) bounds() (from, to int64) {
	return p.chunk * p.blob.chunk, min((p.chunk+1)*p.blob.chunk, p.Bytes)
}

// leastLanes is from how many chunks on it takes less time to hash them side by side, as many as shalanes.Lanes, than
// one after another.
func leastLanes() int {
	const ofWide = 7 // one by one they take as long as shalanes.Width of them
	return min(ofWide, shalanes.Lanes())
}

// verifyPieces checks the chunks on all cores and marks the good ones. The result does not depend on their order.
func verifyPieces(ctx context.Context, wanted []piece) {
	work, few := split(wanted), leastLanes()
	var next atomic.Int64
	one := func() {
		for ctx.Err() == nil {
			i := int(next.Add(1)) - 1
			if i >= len(work) {
				return
			}
			if group := work[i]; len(group) < max(few, 2) {
				for k := range group {
					_ = group[k].verifyChunk(group[k].chunk) // the caller that needs the chunk reports it
				}
			} else {
				verifyLanes(group)
			}
		}
	}
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(work)) - 1 {
		wg.Go(one)
	}
	one()
	wg.Wait()
}

// split makes groups of chunks that are hashed together, up to shalanes.Lanes chunks of one size. Chunks of which there
// are too few stay alone.
func split(wanted []piece) (work [][]piece) {
	if !shalanes.Available() {
		for i := range wanted {
			work = append(work, wanted[i:i+1])
		}
		return work
	}
	few, most := leastLanes(), shalanes.Lanes()
	sizes := map[int64][]piece{}
	var order []int64
	for _, piece := range wanted {
		from, to := piece.bounds()
		if sizes[to-from] == nil {
			order = append(order, to-from)
		}
		sizes[to-from] = append(sizes[to-from], piece)
	}
	for _, size := range order {
		rest := sizes[size]
		for len(rest) >= few && size%shalanes.Block == 0 {
			width := min(len(rest), most)
			work = append(work, rest[:width])
			rest = rest[width:]
		}
		for i := range rest {
			work = append(work, rest[i:i+1])
		}
	}
	return work
}

// verifyLanes checks chunks of one size at once, side by side. It goes slice by slice, so that the slices of all stay
// in a core's cache. On any failure it marks nothing.
func verifyLanes(group []piece) {
	slice := int64(sumBytes / shalanes.Lanes()) // of each chunk at a time; a multiple of shalanes.Block
	var copies *[sumBytes]byte
	if slices.ContainsFunc(group, func(p piece) bool { return !p.mapped }) {
		copies = buffers.Get().(*[sumBytes]byte)
		defer buffers.Put(copies)
	}
	var hash shalanes.Hash
	hash.Reset()
	first, end := group[0].bounds()
	for i := range group {
		group[i].populate()
	}
	for offset := int64(0); offset < end-first; offset += slice {
		width := min(slice, end-first-offset)
		var parts [shalanes.Width][]byte
		for i := range group {
			piece := &group[i]
			from, _ := piece.bounds()
			if from += offset; piece.mapped {
				parts[i] = piece.data[from : from+width]
				continue
			}
			parts[i] = copies[int64(i)*slice:][:width]
			if got, _ := piece.file.ReadAt(parts[i], from); int64(got) < width {
				return // verifyChunk tries each of them alone and reports
			}
		}
		if mem.CatchFault(func() { hash.Write(&parts) }) != nil {
			return
		}
	}
	sums := hash.Sum()
	for i := range group {
		if piece := &group[i]; Digest(sums[i]) == piece.leaves[piece.chunk] {
			piece.good[piece.chunk/64].Or(1 << (piece.chunk % 64))
		}
	}
}

// populate maps the pages of a chunk at once, and has them read from the disk in order.
func (p *piece) populate() {
	if p.mapped && p.region != nil {
		from, to := p.bounds()
		_ = p.region.Advise(int(p.at+from), int(to-from), mem.Populate) // advice
	}
}
