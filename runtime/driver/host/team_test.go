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
	var cores []int
	for i := range workers {
		cores = append(cores, affinity.Cores()[i%len(affinity.Cores())])
	}
	tm := &team{}
	if err := tm.start(cores); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tm.close)
	return tm
}

// Every task of every job runs once, whatever the helpers are doing: working, stealing, spinning, falling asleep; also
// where there are fewer tasks than workers, job after job, so that what is left of old jobs would be taken for tasks.
func TestTeamRunsEveryTaskOnce(t *testing.T) {
	for _, workers := range []int{2, 5} {
		tm := startWorkers(t, workers)
		var count [64]atomic.Int32
		shared := 0 // written between jobs, read in them: the race detector checks the ordering
		job := func(_, from, to int) {
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
			tm.run(tasks, i%2 == 0, job)
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
	tm.rouse()
	tm.begin()
	tm.run(tasks, true, func(worker, task, _ int) {
		by[task].Store(int32(worker + 1))
		if worker > 0 || begun >= 0 {
			return
		}
		begun = task
		for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
			left := 0
			for i := range by {
				if by[i].Load() == 0 {
					left++
				}
			}
			if left == 0 {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("%d tasks wait for a worker that is held up", left)
				return
			}
		}
	})
	tm.end()
	if begun < 0 {
		return false
	}
	if begun != 0 || by[tasks-1].Load() < 2 || by[1].Load() < 2 {
		t.Errorf("the lane began with task %d, and tasks 1 and %d are of workers %d and %d, want 0, and others'", begun,
			tasks-1, by[1].Load()-1, by[tasks-1].Load()-1)
	}
	return true
}

// Roused helpers are awake.
func TestTeamRouses(t *testing.T) {
	tm := startTeam(t)
	for range 20 {
		for _, h := range tm.helpers {
			for h.sleep.Load() != asleep {
				runtime.Gosched()
			}
		}
		for tries := 0; ; tries++ {
			tm.rouse()
			if tm.helpers[0].sleep.Load() == awake {
				break
			}
			if tries == 1000 {
				t.Fatal("a roused helper sleeps")
			}
		}
	}
}

// A task that reads memory that is not there ends its job on every thread, and the next job is whole.
func TestTeamFault(t *testing.T) {
	if r, err := mem.Guarded(1); err != nil {
		t.Skip(err) // Map does not map here
	} else {
		r.Close()
	}
	tm := startTeam(t)
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 16); err != nil {
		t.Fatal(err)
	}
	r, err := mem.Map(f)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
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
					sum.Add(int32(r.Bytes()[task]))
				}
			})
		})
		if !mem.IsFault(fault) || inside.Load() != 0 {
			t.Fatalf("job %d: got %v with %d threads inside, want a fault and none", i, fault, inside.Load())
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
		for _, h := range tm.helpers {
			for h.sleep.Load() != asleep {
				runtime.Gosched()
			}
		}
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
	next, asked := make([]byte, size), 0
	for i := range next {
		next[i] = byte(i % 251)
	}
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
		tiles, workers := rapid.IntRange(1, 2000).Draw(t, "tiles"), rapid.IntRange(1, 300).Draw(t, "workers")
		step, least := rapid.IntRange(1, 5).Draw(t, "step"), rapid.IntRange(0, 50).Draw(t, "least")
		next := 0
		tasks := divideTiles(tiles, workers, step, least)
		for i := range tasks.count() {
			from, to := tasks.of(i, i+1)
			if from != next || to <= from || from%step != 0 || to-from < min(least, tiles-from) {
				t.Fatalf("task %d is tiles [%d,%d), want them to begin at %d", i, from, to, next)
			}
			next = to
		}
		if first, end := tasks.of(0, tasks.count()); next != tiles || first != 0 || end != tiles {
			t.Fatalf("tasks end at tile %d, all of them are [%d,%d) of %d", next, first, end, tiles)
		}
	})
}
