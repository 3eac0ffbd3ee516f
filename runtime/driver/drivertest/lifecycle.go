package drivertest

import (
	"context"
	"errors"
	"maps"
	"math"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hetc/hetc/runtime/driver"
)

// Memory is zeroed, of the wanted size, closed twice without harm; imported memory is not copied.
func testMemory(t *testing.T, f *Factory) {
	session := open(t, f, f.Config)
	for _, bytes := range []int64{1, 63, 4096, 1 << 20} {
		buffer, err := session.proc.Alloc(bytes)
		if err != nil {
			t.Fatal(err)
		}
		if got := buffer.Bytes(); int64(len(got)) != bytes ||
			slices.ContainsFunc(got, func(v byte) bool { return v != 0 }) {
			t.Errorf("alloc of %d bytes: got %d, or not zeroed", bytes, len(got))
		}
		if err := errors.Join(buffer.Close(), buffer.Close()); err != nil {
			t.Errorf("close a buffer twice: %v", err)
		}
	}
	for _, bytes := range []int64{-1, math.MaxInt64} {
		if _, err := session.proc.Alloc(bytes); err == nil {
			t.Errorf("alloc of %d bytes was accepted", bytes)
		}
	}
	memory := session.memory(256)
	if _, err := session.proc.Import(memory[1:]); err == nil {
		t.Error("import of unaligned memory was accepted")
	}
	buffer, err := session.proc.Import(memory[64:128])
	if err != nil {
		t.Fatal(err)
	}
	buffer.Bytes()[0] = 42
	if memory[64] != 42 || len(buffer.Bytes()) != 64 {
		t.Error("imported memory is a copy")
	}
	if err := errors.Join(buffer.Close(), buffer.Close()); err != nil {
		t.Errorf("close imported memory twice: %v", err)
	}
}

// Processors run at the same time, each on its lane, and give the same results as alone.
func testConcurrent(t *testing.T, f *Factory) {
	configs := append([]driver.Config{f.Config}, f.Others...)
	// Two processors with one selector also run at the same time.
	if len(f.Others) == 0 {
		configs = append(configs, f.Config)
	}
	var trials []*trial
	var first *driver.Capabilities // graphs are compiled for this one
	for i, config := range configs {
		session := open(t, f, config)
		if first == nil {
			first = session.caps
		}
		all := session.pieces(11, "mlp")
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if graph := all[name]; supported(first, &graph) {
				trials = append(trials, session.newTrial(graph, 0, uint64(i)))
				break
			}
		}
	}
	type outcome struct {
		b   *bound
		err error
	}
	// Operands are bound before: allocation belongs to the lanes too, and would serialise the calls.
	results := make([][]outcome, len(trials))
	for i, tr := range trials {
		for range 50 {
			results[i] = append(results[i], outcome{b: tr.bind(place{}, scalars(0, 11))})
		}
	}
	var wg sync.WaitGroup
	for i, tr := range trials {
		wg.Go(func() {
			for j := range results[i] {
				_, results[i][j].err = tr.s.run(tr.exe, &results[i][j].b.b)
			}
		})
	}
	wg.Wait()
	for i, tr := range trials {
		// all runs of a trial have the same operands
		evaluate(&tr.graph, tr.vals, tr.weights, nil, scalars(0, 11))
		for _, outcome := range results[i] {
			if outcome.err != nil {
				t.Fatal(outcome.err)
			}
			view := outcome.b.b.Out[0]
			tr.compare(tr.vals["y"], view, view.Buffer.Bytes(), 11)
		}
	}
}

// Closing works twice and in any order, and a closed processor or executable gives errors.
func testClose(t *testing.T, factory *Factory) {
	session := open(t, factory, factory.Config)
	tr := session.newTrial(single(session.caps, session.plain()), 0, 8)
	bound := tr.bind(place{}, scalars(0, 2))
	if err := errors.Join(session.proc.Close(), session.proc.Close()); err != nil {
		t.Fatalf("close twice: %v", err)
	}
	_, err := session.run(tr.exe, &bound.b)
	mentions(t, "run on a closed processor", err)
	artifact, err := session.compile(tr.graph, tr.packed)
	if err != nil {
		t.Fatal(err)
	}
	_, err = session.load(artifact, tr.packed)
	mentions(t, "load on a closed processor", err)
	if err := errors.Join(tr.exe.Close(), tr.exe.Close()); err != nil {
		t.Errorf("close an executable twice, after its processor: %v", err)
	}
	// A processor that was never attached closes too.
	proc, err := factory.Driver.Open(context.Background(), factory.Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := proc.Close(); err != nil {
		t.Error(err)
	}
}

// Opening and closing leaves no goroutines and no threads behind.
func testLeaks(t *testing.T, f *Factory) {
	cycle := func() {
		session := open(t, f, f.Config)
		graphs := session.pieces(11, "mlp")
		for i, name := range slices.Sorted(maps.Keys(graphs)) {
			if i < 2 { // what is opened and closed does not depend on the scheme
				session.newTrial(graphs[name], 0, 1).check(place{}, scalars(0, 11))
			}
		}
		session.close()
	}
	// The first cycle may start what stays for good, such as threads of a library.
	cycle()
	goroutines, threads := runtime.NumGoroutine(), countThreads()
	const cycles = 10
	for range cycles {
		cycle()
	}
	// Threads end a little after their goroutines.
	for range 100 {
		if runtime.NumGoroutine() <= goroutines && countThreads() < threads+cycles/2 {
			// Threads of the Go runtime come and go; a leak would add one for each cycle.
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("after opening and closing %d processors: %d goroutines, before %d; %d threads, before %d", cycles,
		runtime.NumGoroutine(), goroutines, countThreads(), threads)
}

// countThreads returns the number of OS threads of this process, 0 where the system does not tell.
func countThreads() int {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0
	}
	return len(entries)
}
