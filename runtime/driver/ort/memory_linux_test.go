package ort

import (
	"syscall"
	"testing"

	"github.com/hetc/hetc/planir/op"
)

// A call finds the memory that the call before it allocated, so the system gives it few new pages.
func TestMemoryOfACallIsKept(t *testing.T) {
	p := opened(t)
	onItsThread(t, p, func() {
		for _, columns := range []int{1024, 4096, 16384} {
			x := &integerProduct{Op: op.Op{Kind: op.MatMul, M: 256, K: 64, N: columns, Scheme: op.A8TQ8C}}
			x.codes, x.weights = make([]byte, x.M*x.K), make([]byte, x.K*x.N)
			exe, bindings, result := x.load(t, p)
			if exe == nil {
				return
			}
			run := func(calls int) {
				for range calls {
					if _, err := p.Run(exe, bindings); err != nil {
						t.Error(err)
					}
				}
			}

			const warm, calls = 24, 8
			run(warm)
			before := pagesOfThread(t)
			run(calls)
			taken := (pagesOfThread(t) - before) / calls

			pages := len(result) / syscall.Getpagesize()
			if taken > pages/8 {
				t.Errorf("%d columns: a call takes %d pages anew, its result has %d", columns, taken, pages)
			}
			exe.Close()
		}
	})
}

// pagesOfThread returns how many pages the system has given the calling thread.
func pagesOfThread(t *testing.T) int {
	t.Helper()
	const threadUsage = 1 // RUSAGE_THREAD
	var usage syscall.Rusage
	if err := syscall.Getrusage(threadUsage, &usage); err != nil {
		t.Fatal(err)
	}
	return int(usage.Minflt)
}
