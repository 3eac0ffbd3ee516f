package host

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/mem"
)

// startTeam runs helpers on the cores the process may use, at least one helper.
func startTeam(t *testing.T) *team {
	return startWorkers(t, max(2, len(affinity.Cores())))
}

// startWorkers runs helpers that share the cores the process may use.
func startWorkers(t *testing.T, workers int) *team {
	t.Helper()
	tm := &team{}
	if err := tm.start(sharedCores(workers)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tm.close)
	return tm
}

// Every task of every job runs once, whether the helpers work, steal, spin or fall asleep. This includes jobs of fewer
// tasks than workers, one after the other: what is left of an old job must not be taken for a task.
func TestTeamRunsEveryTaskOnce(t *testing.T) {
	for _, workers := range []int{2, 5} {
		tm := startWorkers(t, workers)
		var count [64]atomic.Int32
		shared := 0 // written between jobs, read in them: the race detector checks the ordering
		addShared := func(_, from, to int) {
			for ; from < to; from++ {
				count[from].Add(int32(shared))
			}
		}

		for i := range 20000 / workers {
			tasks := i % 7
			if i%5 == 0 {
				tasks = len(count)
			}
			if i/300%2 == 0 {
				tasks = min(tasks, 2)
			}
			shared = i%3 + 1

			tm.begin()
			tm.run(tasks, i%2 == 0, addShared)
			tm.end()

			for task := range count {
				want := int32(0)
				if task < tasks {
					want = int32(shared)
				}
				if got := count[task].Swap(0); got != want {
					t.Fatalf("job %d of %d tasks for %d workers: task %d counted %d, want %d", i, tasks, workers, task, got, want)
				}
			}
			if i%2000 == 0 {
				time.Sleep(idleSpin) // about when helpers fall asleep
			}
		}
	}
}

// A worker that is held up keeps what it has begun; another one does the rest, from its end.
func TestTeamSteals(t *testing.T) {
	tm := startTeam(t)
	for range 1000 {
		if stealsFromHeldUp(t, tm) || t.Failed() {
			return
		}
		// The others were so early that they took all tasks before the lane began with one.
	}
	t.Error("the lane never began with a task of its own")
}

// stealsFromHeldUp runs a job whose lane does not end its first task before all others have begun, and says whether the
// lane had one.
func stealsFromHeldUp(t *testing.T, tm *team) bool {
	const tasks = 64
	var by [tasks]atomic.Int32 // worker + 1
	begun := -1                // the first task of the lane, which it ends last
	allBegun := func() bool {
		for i := range by {
			if by[i].Load() == 0 {
				return false
			}
		}
		return true
	}

	tm.rouse()
	tm.begin()
	tm.run(tasks, true, func(worker, task, _ int) {
		by[task].Store(int32(worker + 1))
		if worker > 0 || begun >= 0 {
			return
		}
		begun = task
		deadline := time.Now().Add(time.Minute)
		for !allBegun() {
			if time.Now().After(deadline) {
				t.Error("tasks wait for a worker that is held up")
				return
			}
			runtime.Gosched()
		}
	})
	tm.end()

	if begun < 0 {
		return false
	}
	if begun != 0 {
		t.Errorf("the lane began with task %d, want 0", begun)
	}
	for _, task := range []int{1, tasks - 1} {
		if worker := by[task].Load() - 1; worker < 1 {
			t.Errorf("task %d is of worker %d, want another one than the lane", task, worker)
		}
	}
	return true
}

// awaitSleep returns when all helpers sleep.
func awaitSleep(tm *team) {
	for _, helper := range tm.helpers {
		for helper.sleep.Load() != asleep {
			runtime.Gosched()
		}
	}
}

// Roused helpers are awake. One call may not be enough where others use the cores: it waits for a bounded time, and a
// helper may sleep again before the test looks.
func TestTeamRouses(t *testing.T) {
	tm := startTeam(t)
	for range 20 {
		awaitSleep(tm)

		deadline := time.Now().Add(time.Minute)
		tm.rouse()
		for tm.helpers[0].sleep.Load() != awake {
			if time.Now().After(deadline) {
				t.Fatal("a roused helper sleeps")
			}
			time.Sleep(time.Millisecond) // the test may hold the helper's core
			tm.rouse()
		}
	}
}

// truncatedMapping is mapped memory whose file has been truncated since: to read it is a fault.
func truncatedMapping(t *testing.T) []byte {
	t.Helper()
	guarded, err := mem.Guarded(1)
	if err != nil {
		t.Skip(err) // Map does not map here
	}
	guarded.Close()

	file, err := os.Create(filepath.Join(t.TempDir(), "truncated"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	if err := file.Truncate(1 << 16); err != nil {
		t.Fatal(err)
	}
	region, err := mem.Map(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { region.Close() })
	if err := file.Truncate(0); err != nil {
		t.Fatal(err)
	}
	return region.Bytes()
}

// A task that reads memory that is not there ends its job on every thread, and the next job is whole.
func TestTeamFault(t *testing.T) {
	missing := truncatedMapping(t)
	tm := startTeam(t)
	var inside, sum atomic.Int32
	for i := range 2000 {
		bad := i % 16
		fault := mem.CatchFault(func() {
			tm.begin()
			defer tm.end()
			tm.run(16, true, func(_, task, _ int) {
				inside.Add(1)
				defer inside.Add(-1)
				if task == bad {
					sum.Add(int32(missing[task]))
				}
			})
		})

		if !mem.IsFault(fault) {
			t.Fatalf("job %d: got %v, want a fault", i, fault)
		}
		if left := inside.Load(); left != 0 {
			t.Fatalf("job %d ended with %d threads in its tasks", i, left)
		}

		done := atomic.Int32{}
		tm.begin()
		tm.run(16, true, func(int, int, int) { done.Add(1) })
		tm.end()
		if done.Load() != 16 {
			t.Fatalf("job after fault %d: %d of 16 tasks", i, done.Load())
		}
	}
}

// Idle helpers sleep instead of spinning, and wake for the next job.
func TestTeamSleeps(t *testing.T) {
	tm := startTeam(t)
	for range 20 {
		awaitSleep(tm)

		ran := make([]atomic.Bool, len(tm.helpers)+1)
		tm.begin()
		tm.run(len(ran), true, func(worker, _, _ int) {
			ran[worker].Store(true)
			for i := range ran { // a task ends when every worker has one
				for !ran[i].Load() {
					runtime.Gosched()
				}
			}
		})
		tm.end()
	}
}

// A helper that has left a job asks memory for all that it reads next, in order.
func TestTeamLooksAhead(t *testing.T) {
	const size = 3*fetchTurn + 100
	tm := startWorkers(t, 2)
	next := make([]byte, size)
	for i := range next {
		next[i] = byte(i % 251)
	}
	asked := 0
	tm.fetch = func(part []byte) {
		if asked+len(part) > size || !bytes.Equal(part, next[asked:asked+len(part)]) {
			t.Errorf("%d bytes at %d are not the next ones", len(part), asked)
		}
		asked += len(part)
	}
	tm.ahead = func(worker int) []byte {
		if worker != 1 {
			return nil
		}
		return next
	}

	tm.begin()
	var in [2]atomic.Bool // both take part
	tm.run(2, true, func(worker, _, _ int) {
		in[min(worker, 1)].Store(true)
		for !in[0].Load() || !in[1].Load() {
			runtime.Gosched()
		}
	})
	tm.end()
	tm.close() // waits for the helpers

	if asked != size {
		t.Errorf("%d of %d bytes were asked for", asked, size)
	}
}

// A team may be closed twice, and after a job that its helpers may not have noticed yet.
func TestTeamCloses(t *testing.T) {
	for range 50 {
		tm := startTeam(t)
		tm.run(8, true, func(_, _, _ int) {})
		tm.close()
		tm.close()
	}
}

// Every tile belongs to one task, whatever the numbers.
func TestTilesAreDivided(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tiles := rapid.IntRange(1, 2000).Draw(t, "tiles")
		workers := rapid.IntRange(1, 300).Draw(t, "workers")
		step := rapid.IntRange(1, 5).Draw(t, "step")
		least := rapid.IntRange(0, 50).Draw(t, "least")

		tasks := divideTiles(tiles, workers, step, least)

		next := 0
		for i := range tasks.count() {
			from, to := tasks.tilesOf(i, i+1)
			if from != next || to <= from {
				t.Fatalf("task %d is tiles [%d,%d), want some that begin at %d", i, from, to, next)
			}
			if from%step != 0 || to-from < min(least, tiles-from) {
				t.Fatalf("task %d is tiles [%d,%d), want multiples of %d and at least %d", i, from, to, step, least)
			}
			next = to
		}
		if next != tiles {
			t.Fatalf("tasks end at tile %d, want %d", next, tiles)
		}
		if first, end := tasks.tilesOf(0, tasks.count()); first != 0 || end != tiles {
			t.Fatalf("all tasks are tiles [%d,%d), want [0,%d)", first, end, tiles)
		}
	})
}
