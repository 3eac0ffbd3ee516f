package matrix

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
)

// Jobs never have more memory together than there is, and everyone gets theirs in the end.
func TestBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.Int64Range(1, 100).Draw(t, "all")
		wants := rapid.SliceOfN(rapid.Int64Range(0, all), 1, 40).Draw(t, "wants")
		shared := newBudget(all)
		var used, most atomic.Int64
		var jobs sync.WaitGroup
		for _, want := range wants {
			jobs.Go(func() {
				give, err := shared.take(context.Background(), want)
				if err != nil {
					t.Errorf("%v", err)
					return
				}
				now := used.Add(want)
				for old := most.Load(); now > old && !most.CompareAndSwap(old, now); {
					old = most.Load()
				}
				used.Add(-want)
				give()
			})
		}
		jobs.Wait()
		if most.Load() > all || shared.used != 0 {
			t.Fatalf("%d used of %d, %d after all", most.Load(), all, shared.used)
		}
	})
}

// What is more than there is, and a wait that is interrupted, are errors.
func TestBudgetRefuses(t *testing.T) {
	shared := newBudget(10)
	_, err := shared.take(t.Context(), 11)
	if diag.ClassOf(err) != diag.ClassUnavailable || len(diag.HintsOf(err)) == 0 {
		t.Errorf("more than there is: %v, want a refusal with a hint", err)
	}

	give, err := shared.take(t.Context(), 10)
	if err != nil {
		t.Fatal(err)
	}
	defer give()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := shared.take(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

// By default jobs have a part of the memory of this machine.
func TestDefaultMemory(t *testing.T) {
	if bytes := DefaultMemory(); bytes < 1<<20 {
		t.Errorf("default memory is %d bytes", bytes)
	}
}
