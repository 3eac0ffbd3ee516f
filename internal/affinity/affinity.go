// Package affinity knows which CPU cores the process may use, and how the calling OS thread is pinned to one.
package affinity

import (
	"runtime"
	"slices"
	"sync"
)

// Cores lists the numbers of the cores the process may use, ascending. They are noted by the first call, or before the
// first thread is pinned: later even the process's main thread may be.
func Cores() []int { return slices.Clone(noted()) }

var noted = sync.OnceValue(allowed)

// numbered counts cores where their numbers are unknown.
func numbered() []int {
	cores := make([]int, runtime.NumCPU())
	for i := range cores {
		cores[i] = i
	}
	return cores
}
