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
	// baseBytes is what a job needs besides its tables and tensors.
	baseBytes = 64 << 20
	// solveBytes is what a solve needs; 70 MiB were seen for 8e9 parameters.
	solveBytes = 128 << 20
	// unknownMemory is assumed where the system does not say.
	unknownMemory = 4 << 30
)

// DefaultMemory is three quarters of the memory that is free for this process.
func DefaultMemory() int64 {
	free := machine.FreeMemory()
	if free == 0 {
		free = unknownMemory
	}
	return free / 4 * 3
}

// emitBytes returns what packing a plan's weights needs: the largest packed matrix, and as much again while it
// is made. Stored tensors are mapped files and count for nothing.
func emitBytes(p *planir.Plan) int64 {
	var largest int64
	for _, blob := range p.Program.WeightBlobs() {
		for _, pl := range blob.Packs {
			largest = max(largest, pl.Pack.Bytes)
		}
	}
	return baseBytes + 2*largest
}

// budget is memory that jobs share.
type budget struct {
	mu sync.Mutex
	// bytes, of all jobs together
	max   int64
	used  int64
	freed chan struct{} // closed and replaced when something was given back
}

// newBudget returns a budget of so many bytes, all of them free.
func newBudget(max int64) *budget { return &budget{max: max, freed: make(chan struct{})} }

// take waits until so much is left, and returns how it is given back. More than there is at all is an
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
			return func() {
				b.mu.Lock()
				b.used -= bytes
				// Closing wakes all that wait; each looks again whether its share is there now.
				close(b.freed)
				b.freed = make(chan struct{})
				b.mu.Unlock()
			}, nil
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
