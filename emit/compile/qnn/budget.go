package qnn

import "context"

// What a process of the compiler takes: the libraries themselves, and so many times the bytes of the weights that it
// reads (measured: 205 MB of MLP layers 1.7 GB).
const (
	processMemory = 512 << 20
	memoryFactor  = 8
)

// budget is memory that processes share. One that needs more than all of it waits until it is alone.
type budget struct {
	units chan struct{} // one element for each unit that is taken
	turn  chan struct{} // held while waiting, so that none waits with a part
}

// budgetUnit is what memory is counted in, bytes.
const budgetUnit = 256 << 20

// newBudget shares out so many bytes, in units.
func newBudget(bytes int64) *budget {
	return &budget{make(chan struct{}, max(1, bytes/budgetUnit)), make(chan struct{}, 1)}
}

// take waits for memory, which release gives back. Units are taken one by one, but only by the one who
// holds the turn, so that two requests cannot wait for each other.
func (b *budget) take(ctx context.Context, bytes int64) (release func(), err error) {
	want := int(min(int64(cap(b.units)), (bytes+budgetUnit-1)/budgetUnit))
	select {
	case b.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-b.turn }()
	got := 0
	release = func() {
		for range got {
			<-b.units
		}
	}
	for got < want {
		select {
		case b.units <- struct{}{}:
			got++
		case <-ctx.Done():
			release()
			return nil, ctx.Err()
		}
	}
	return release, nil
}
