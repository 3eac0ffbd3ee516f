package bundle

import (
	"context"
	"crypto/sha256"
	"io"
	"sync"
	"sync/atomic"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
)

// blob is the memory of one blob, and which of its chunks were compared with their digests. A bundle in a file carries
// the digests of all chunks, its leaves, so that any range can be checked alone. The exploded form carries none: there
// the first access to a blob checks all of it. Checks are idempotent, hence good and all need no lock.
type blob struct {
	*Blob
	chunk   int64           // bytes of a chunk; the last one of a blob may be shorter
	data    []byte          // the content, mapped or copied; nil until fill
	mapping                 // where data lies in a mapped file; zero for memory of its own
	step    Step            // that a wrong chunk fails
	leaves  []Digest        // nil: not known yet, the whole blob is checked against the root
	good    []atomic.Uint64 // one bit per chunk
	mu      sync.Mutex      // for a check without leaves
	all     atomic.Bool     // every chunk is good
}

// verify checks the chunks that hold bytes [from, to), those that are not known to be good.
// Large ranges are checked by several goroutines; of several wrong chunks the first is reported.
func (x *blob) verify(from, to int64) error {
	// An empty range holds no chunk. An empty blob is checked all the same, because its digests are signed.
	if x.all.Load() || from == to && x.Bytes > 0 {
		return nil
	}
	if x.leaves == nil {
		return x.verifyWhole()
	}
	first, end := from/x.chunk, chunks(to, x.chunk)
	// Below this, starting goroutines costs more than it saves.
	const few = 4
	if end-first >= few {
		var unknown []candidate
		for index := first; index < end; index++ {
			if !x.known(index) {
				unknown = append(unknown, candidate{blob: x, chunk: index, mapped: x.file == nil})
			}
		}
		verifyCandidates(context.Background(), unknown, func(int) {})
	}
	// Chunks that are good by now cost one load each; a wrong one is found again here and named.
	for index := first; index < end; index++ {
		if err := x.verifyChunk(index); err != nil {
			return err
		}
	}
	if first == 0 && to == x.Bytes {
		x.all.Store(true)
	}
	return nil
}

// known reports whether a chunk was checked and is good.
func (x *blob) known(index int64) bool { return x.good[index/64].Load()&(1<<(index%64)) != 0 }

// verifyChunk compares a chunk with its digest once; a good one is never read again.
func (x *blob) verifyChunk(index int64) error {
	if x.known(index) {
		return nil
	}
	if err := x.compare(index); err != nil {
		return err
	}
	x.good[index/64].Or(1 << (index % 64))
	return nil
}

// compare compares a chunk with its digest.
func (x *blob) compare(index int64) error {
	from, to := index*x.chunk, min((index+1)*x.chunk, x.Bytes)
	sum, err := x.sum(from, to)
	if err != nil {
		return refuseAs(diag.ClassIO, x.step, "read blob %q: %w", x.Name, err)
	}
	if sum != x.leaves[index] {
		return refuse(x.step, "blob %q: chunk %d (bytes %d to %d) has digest %s, want %s", x.Name, index, from, to,
			sum, x.leaves[index]).
			hint("the file was damaged or changed; fetch it again")
	}
	return nil
}

// sum returns the digest of bytes [from, to). It reads the file rather than the mapping where it can: hashed pages of a
// mapping would count as this process's resident memory.
func (x *blob) sum(from, to int64) (sum Digest, err error) {
	if x.file == nil {
		// Access to a mapping faults where the file was truncated.
		err = mem.CatchFault(func() { sum = sha256.Sum256(x.data[from:to]) })
		return sum, err
	}
	hash := sha256.New()
	buf := buffers.Get().(*[sumBytes]byte)
	defer buffers.Put(buf)
	for ; from < to; from += sumBytes {
		part := buf[:min(to-from, sumBytes)]
		if n, err := x.file.ReadAt(part, from); n < len(part) {
			return sum, err
		}
		_, _ = hash.Write(part)
	}
	return Digest(hash.Sum(nil)), nil
}

// sumBytes is read and hashed at a time, so that it stays in a core's own cache.
const sumBytes = 128 << 10

var buffers = sync.Pool{New: func() any { return new([sumBytes]byte) }}

// verifyWhole checks a blob of which the store has no chunk digests, once for all callers.
func (x *blob) verifyWhole() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.all.Load() {
		return nil
	}
	whole, root, err := x.sums(context.Background(), nil)
	if err != nil {
		return err
	}
	return x.judge(whole, root)
}

// judge compares both digests of a whole blob, plain and by chunks, with the signed ones. If only one of them fits,
// the manifest itself is inconsistent.
func (x *blob) judge(whole, root Digest) error {
	if root != x.Root {
		return refuse(x.step, "blob %q has SHA-256 %s, want %s", x.Name, whole, x.SHA256).
			hint("the file was damaged or changed; fetch it again")
	}
	if whole != x.SHA256 {
		return refuse(stepTable, "blob %q has SHA-256 %s, want %s: its two signed digests disagree", x.Name, whole,
			x.SHA256)
	}
	x.all.Store(true)
	return nil
}

// sums reads all of the blob's memory; tick, which may be nil, learns of how many bytes each read took.
func (x *blob) sums(ctx context.Context, tick func(bytes int64)) (whole, root Digest, err error) {
	digester := newDigester(x.chunk)
	for from := int64(0); from < x.Bytes; from = digester.bytes {
		if err := ctx.Err(); err != nil {
			return whole, root, diag.New(diag.ClassInterrupted, "verify blob %q: %w", x.Name, err)
		}
		to := min(from+maxChunk, x.Bytes)
		if err := mem.CatchFault(func() { _, _ = digester.Write(x.data[from:to]) }); err != nil {
			return whole, root, refuseAs(diag.ClassIO, x.step, "read blob %q: %w", x.Name, err)
		}
		if tick != nil {
			tick(to - from)
		}
	}
	whole, root = digester.sums()
	return whole, root, nil
}

// writeTo writes the blob piece by piece, each checked first.
func (x *blob) writeTo(ctx context.Context, w io.Writer) error {
	for from := int64(0); from < x.Bytes; {
		if err := ctx.Err(); err != nil {
			return diag.New(diag.ClassInterrupted, "write blob %q: %w", x.Name, err)
		}
		to := min(from+max(x.chunk, 1<<20), x.Bytes)
		if err := x.verify(from, to); err != nil {
			return err
		}
		var werr error
		if err := mem.CatchFault(func() { _, werr = w.Write(x.data[from:to]) }); err != nil {
			return refuseAs(diag.ClassIO, x.step, "read blob %q: %w", x.Name, err)
		}
		if werr != nil {
			return diag.New(diag.ClassIO, "write blob %q: %w", x.Name, werr)
		}
		from = to
	}
	return nil
}
