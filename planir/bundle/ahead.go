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

// Ahead checks parts that Range will be asked for, in about this order, on all cores until ctx ends. through, which may
// be nil, learns meanwhile of how many of the parts, from the first on, all chunks have been looked at; its calls come
// one at a time, with ever larger numbers. Ahead reports nothing: Range refuses what is wrong or not in the bundle.
func (b *Bundle) Ahead(ctx context.Context, parts []Part, through func(parts int)) {
	b.early.end() // or both would check the same chunks
	var wanted []candidate
	taken := map[*blob][]uint64{}   // one bit per chunk
	ends := make([]int, len(parts)) // how many of wanted must have been looked at for a part
	for i, part := range parts {
		wanted = b.missing(wanted, taken, part)
		ends[i] = len(wanted)
	}
	done := 0 // parts
	verifyCandidates(ctx, wanted, func(looked int) {
		before := done
		for done < len(parts) && ends[done] <= looked {
			done++
		}
		if through != nil && done > before {
			through(done)
		}
	})
}

// early is what Anticipate began.
type early struct {
	stop context.CancelFunc
	done chan struct{} // closed when it reads the bundle no more
}

// end stops the checks, and returns when they read the bundle no more.
func (e *early) end() {
	if e != nil {
		e.stop()
		<-e.done
	}
}

// Anticipate begins to check weights on one core, in the order of the manifest. It is for a caller that will need most
// of them and does not know yet which first. It may be called once, before other methods. Ahead and Close end it, and
// what is wrong is refused by Range alone.
func (b *Bundle) Anticipate() {
	ctx, stop := context.WithCancel(context.Background())
	begun := &early{stop: stop, done: make(chan struct{})}
	b.early = begun
	go func() {
		defer close(begun.done)
		for _, x := range b.blobs {
			if x.Role != RoleWeights {
				continue
			}
			all := Part{Blob: x.Name, Bytes: x.Bytes}
			for _, work := range divide(b.missing(nil, map[*blob][]uint64{}, all)) {
				if ctx.Err() != nil {
					return
				}
				work.verify()
			}
		}
	}()
}

// missing appends the chunks of a part that were neither taken nor found good before.
func (b *Bundle) missing(wanted []candidate, taken map[*blob][]uint64, part Part) []candidate {
	blob, err := b.find(part.Blob)
	if err != nil || blob.leaves == nil || part.Offset < 0 || part.Bytes < 1 || part.Offset > blob.Bytes ||
		part.Bytes > blob.Bytes-part.Offset {
		return wanted
	}
	if taken[blob] == nil {
		taken[blob] = make([]uint64, len(blob.good))
	}
	for index := part.Offset / blob.chunk; index < chunks(part.Offset+part.Bytes, blob.chunk); index++ {
		bit := uint64(1) << (index % 64)
		if (taken[blob][index/64]|blob.good[index/64].Load())&bit != 0 {
			continue
		}
		taken[blob][index/64] |= bit
		next := candidate{blob: blob, chunk: index}
		// Reading through the mapping makes pages resident, which pays only where they will be read.
		next.mapped = blob.file == nil || !part.Few
		wanted = append(wanted, next)
	}
	return wanted
}

// candidate is a chunk to be checked.
type candidate struct {
	*blob
	chunk  int64 // number
	mapped bool  // it is read through its mapping, which makes its pages resident; else through a small copy
}

// bounds returns the range of the chunk in its blob.
func (c *candidate) bounds() (from, to int64) {
	return c.chunk * c.blob.chunk, min((c.chunk+1)*c.blob.chunk, c.Bytes)
}

// bytes returns the length of the chunk.
func (c *candidate) bytes() int64 {
	from, to := c.bounds()
	return to - from
}

// whole reports whether the chunk has the size of all chunks but the last ones of blobs.
func (c *candidate) whole() bool { return c.bytes() == c.blob.chunk }

// leastLanes is from how many chunks on it takes less time to hash them side by side, as many as shalanes.Lanes, than
// one after another.
func leastLanes() int {
	const ofWide = 7 // one by one they take as long as shalanes.Width of them
	return min(ofWide, shalanes.Lanes())
}

// verifyCandidates checks the chunks on all cores and marks the good ones. The result does not depend on their order.
// passed learns how many of them, from the first on, have been looked at.
func verifyCandidates(ctx context.Context, wanted []candidate, passed func(looked int)) {
	work := divide(wanted)
	progress := progress{ended: make([]bool, len(work)), work: work, passed: passed}
	passed(0) // of parts whose chunks are all known
	var next atomic.Int64
	one := func() {
		for ctx.Err() == nil {
			i := int(next.Add(1)) - 1
			if i >= len(work) {
				return
			}
			work[i].verify()
			progress.end(i)
		}
	}
	// More threads than cores would take turns, and the last portion would wait for its thread's turn.
	workers := min(runtime.GOMAXPROCS(0), runtime.NumCPU(), len(work))
	var wg sync.WaitGroup
	for range workers - 1 {
		wg.Go(one)
	}
	one()
	wg.Wait()
}

// progress counts the chunks that have been looked at, from the first on.
type progress struct {
	mu     sync.Mutex
	work   []portion
	ended  []bool
	first  int // portion that has not ended
	looked int // chunks of the work before it
	passed func(looked int)
}

// end notes that portion i has been looked at.
func (p *progress) end(i int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended[i] = true
	if p.first != i {
		return
	}
	for p.first < len(p.work) && p.ended[p.first] {
		p.looked += len(p.work[p.first])
		p.first++
	}
	p.passed(p.looked)
}

// portion is chunks in their order: what a core takes at a time. Chunks of several blobs are in one, so that what is
// left of a blob is hashed side by side too.
type portion []candidate

// portionBytes is what a portion has, where that is enough chunks to hash side by side: a large page, and
// little enough that cores end together.
const portionBytes = 2 << 20

// divide makes portions. Chunks that end a blob early count for nothing in them.
func divide(wanted []candidate) (work []portion) {
	for len(wanted) > 0 {
		most := max(int(portionBytes/wanted[0].blob.chunk), shalanes.Lanes(), 1)
		taken := 0
		for whole := 0; taken < len(wanted) && whole < most; taken++ {
			if wanted[taken].whole() {
				whole++
			}
		}
		work = append(work, wanted[:taken])
		wanted = wanted[taken:]
	}
	return work
}

// verify checks the chunks of a portion, side by side where there are enough of one size.
func (p portion) verify() {
	p.populate()
	whole := make(portion, 0, len(p))
	for k := range p {
		if p[k].whole() {
			whole = append(whole, p[k])
		} else {
			p[k : k+1].verifyEach()
		}
	}
	least, most := max(leastLanes(), 2), max(shalanes.Lanes(), 1)
	for group := range slices.Chunk(whole, most) {
		if len(group) >= least && shalanes.Available() {
			verifyLanes(group)
		} else {
			group.verifyEach()
		}
	}
}

// verifyEach checks chunks one after another. The caller that needs a wrong one reports it.
func (p portion) verifyEach() {
	for k := range p {
		_ = p[k].verifyChunk(p[k].chunk)
	}
}

// populate maps the pages of neighbouring chunks at once, and has them read from the disk in order.
func (p portion) populate() {
	for from := 0; from < len(p); {
		to := from + 1
		for to < len(p) && p[to].blob == p[from].blob && p[to].mapped == p[from].mapped &&
			p[to].chunk == p[to-1].chunk+1 {
			to++
		}
		if first := &p[from]; first.mapped && first.region != nil {
			begin, _ := first.bounds()
			_, end := p[to-1].bounds()
			_ = mem.CatchFault(func() { touch(first.data[begin:end]) }) // a page that is not there is found again
		}
		from = to
	}
}

// touchBytes is what Linux maps at one access to a file that is in memory.
const touchBytes = 64 << 10

// touch reads a byte of each touchBytes. MADV_POPULATE_READ looks at every page of 4 KiB besides.
//
//go:noinline // or nothing would be read for a sum that nobody takes
func touch(data []byte) (sum byte) {
	for at := 0; at < len(data); at += touchBytes {
		sum += data[at]
	}
	return sum
}

// verifyLanes checks chunks of one size at once, side by side. It goes slice by slice, so that the slices of all stay
// in a core's cache. On any failure it marks nothing.
func verifyLanes(group []candidate) {
	slice := int64(sumBytes / shalanes.Lanes()) // of each chunk at a time; a multiple of shalanes.Block
	var copies *[sumBytes]byte
	if slices.ContainsFunc(group, func(c candidate) bool { return !c.mapped }) {
		copies = buffers.Get().(*[sumBytes]byte)
		defer buffers.Put(copies)
	}
	var hash shalanes.Hash
	hash.Reset()
	for offset := int64(0); offset < group[0].bytes(); offset += slice {
		width := min(slice, group[0].bytes()-offset)
		var parts [shalanes.Width][]byte
		for i := range group {
			chunk := &group[i]
			from, _ := chunk.bounds()
			if from += offset; chunk.mapped {
				parts[i] = chunk.data[from : from+width]
				continue
			}
			parts[i] = copies[int64(i)*slice:][:width]
			if got, _ := chunk.file.ReadAt(parts[i], from); int64(got) < width {
				return // verifyChunk tries each of them alone and reports
			}
		}
		if mem.CatchFault(func() { hash.Write(&parts) }) != nil {
			return
		}
	}
	sums := hash.Sum()
	for i := range group {
		if checked := &group[i]; Digest(sums[i]) == checked.leaves[checked.chunk] {
			checked.good[checked.chunk/64].Or(1 << (checked.chunk % 64))
		}
	}
}
