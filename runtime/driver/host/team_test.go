package host

import (
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
	t.Helper()
	cores := affinity.Cores()
	if len(cores) == 1 {
		cores = []int{cores[0], cores[0]}
	}
	tm := &team{}
	if err := tm.start(cores); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tm.close)
	return tm
}

// Every task of every job runs once, whatever the helpers are doing: working, spinning, falling asleep.
func TestTeamRunsEveryTaskOnce(t *testing.T) {
	tm := startTeam(t)
	var count [64]atomic.Int32
	shared := 0 // written between jobs, read in them: the race detector checks the ordering
	job := func(_, task int) { count[task].Add(int32(shared)) }
	for i := range 20000 {
		tasks := i % 7
		if i%5 == 0 {
			tasks = len(count)
		}
		shared = i%3 + 1
		tm.begin()
		tm.run(tasks, job)
		tm.end()
		for task := range count {
			want := int32(0)
			if task < tasks {
				want = int32(shared)
			}
			if got := count[task].Swap(0); got != want {
				t.Fatalf("job %d of %d tasks: task %d counted %d, want %d", i, tasks, task, got, want)
			}
		}
		if i%2000 == 0 {
			time.Sleep(idleSpin) // about when helpers fall asleep
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
			tm.run(16, func(_, task int) {
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
		tm.run(16, func(int, int) { done.Add(1) })
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
			for !h.asleep.Load() {
				runtime.Gosched()
			}
		}
		ran := make([]atomic.Bool, len(tm.helpers)+1)
		tm.begin()
		tm.run(len(ran), func(worker, _ int) {
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

func TestTeamCloses(t *testing.T) {
	for range 50 {
		tm := startTeam(t)
		tm.run(8, func(_, _ int) {})
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
		tasks := divideTiles(tiles, workers, step, least, rapid.Bool().Draw(t, "even"))
		for i := range tasks.count() {
			from, to := tasks.of(i)
			if from != next || to <= from || from%step != 0 {
				t.Fatalf("task %d is tiles [%d,%d), want them to begin at %d", i, from, to, next)
			}
			next = to
		}
		if next < tiles || next-tiles >= tasks.last {
			t.Fatalf("tasks end at tile %d of %d", next, tiles)
		}
	})
}
