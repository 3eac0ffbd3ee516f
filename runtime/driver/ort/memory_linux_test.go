package ort

import (
	"syscall"
	"testing"

	"github.com/hetc/hetc/planir/op"
)

// What a graph allocates in a call it finds again in the next, and not on pages that the system has to give it anew.
func TestMemoryOfACallIsKept(t *testing.T) {
	const threadUsage = 1 // RUSAGE_THREAD
	p := opened(t)
	onItsThread(t, p, func() {
		for _, columns := range []int{1024, 4096, 16384} {
			x := &integerProduct{Op: op.Op{Kind: op.MatMul, M: 256, K: 64, N: columns, Scheme: op.A8TQ8C}}
			x.codes, x.weights = make([]byte, x.M*x.K), make([]byte, x.K*x.N)
			exe, bindings, result := x.load(t, p)
			if exe == nil {
				return
			}
			var before, after syscall.Rusage
			const warm, calls = 24, 8
			for call := range warm + calls {
				if call == warm {
					if err := syscall.Getrusage(threadUsage, &before); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := p.Run(exe, bindings); err != nil {
					t.Error(err)
				}
			}
			if err := syscall.Getrusage(threadUsage, &after); err != nil {
				t.Fatal(err)
			}
			faults, pages := int(after.Minflt-before.Minflt)/calls, len(result)/syscall.Getpagesize()
			if faults > pages/8 {
				t.Errorf("%d columns: a call takes %d pages anew, its result has %d", columns, faults, pages)
			}
			exe.Close()
		}
	})
}
