package matrix

import (
	"context"
	"sync"

	"github.com/hetc/hetc/cmd/internal/machine"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
)

const (
	baseBytes     = 64 << 20  // of a job, besides its tables and tensors
	solveBytes    = 128 << 20 // of a solve; a model of 8e9 parameters took 70 MiB
	unknownMemory = 4 << 30   // assumed to be free where the system does not say
)

// DefaultMemory returns three quarters of the memory that is free for this process, bytes.
func DefaultMemory() int64 {
	free := machine.FreeMemory()
	if free == 0 {
		free = unknownMemory
	}
	return free / 4 * 3
}

// emitBytes returns the memory for packing a plan's weights: the largest packed matrix, and as much again while it
// is made. Stored tensors are mapped files, which do not count.
func emitBytes(plan *planir.Plan) int64 {
	var largest int64
	for _, blob := range plan.Program.WeightBlobs() {
		for _, placed := range blob.Packs {
			largest = max(largest, placed.Pack.Bytes)
		}
	}
	return baseBytes + 2*largest
}

// budget is memory that jobs share.
type budget struct {
	mu    sync.Mutex
	max   int64         // bytes of all jobs together
	used  int64         // bytes
	freed chan struct{} // closed and replaced when a job gives memory back
}

// newBudget returns a budget of max bytes, all of them free.
func newBudget(max int64) *budget { return &budget{max: max, freed: make(chan struct{})} }

// take waits until so many bytes are free and takes them; give gives them back. An amount beyond the whole budget is an
// error of class ClassUnavailable.
func (b *budget) take(ctx context.Context, bytes int64) (give func(), err error) {
	if bytes > b.max {
		return nil, diag.New(diag.ClassUnavailable, "needs about %s of memory, and may use %s", unit.Bytes(bytes),
			unit.Bytes(b.max)).
			WithHint("raise --max-memory, or build on a machine with more memory")
	}

	for {
		b.mu.Lock()
		if b.used+bytes <= b.max {
			b.used += bytes
			b.mu.Unlock()
			return func() { b.give(bytes) }, nil
		}

		wait := b.freed
		b.mu.Unlock()

		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// give gives bytes back and wakes all waiting jobs; each looks again whether its share is free now.
func (b *budget) give(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= bytes
	close(b.freed)
	b.freed = make(chan struct{})
}
