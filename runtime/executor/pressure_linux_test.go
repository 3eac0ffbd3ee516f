package executor_test

import (
	"context"
	"hash/maphash"
	"math"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	ortcompiler "github.com/hetc/hetc/emit/compile/ort"
	"github.com/hetc/hetc/internal/native"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/executor"
)

// catch has the signals of press caught, for the rest of the process. One that reaches a thread later, when nobody
// wanted it any more, would end the process: on a thread that Go's runtime did not start, as ONNX Runtime's, it raises
// such a signal again with its default action.
var catch = sync.OnceValue(func() <-chan os.Signal {
	caught := make(chan os.Signal, 64)
	signal.Notify(caught, unix.SIGUSR1, unix.SIGUSR2)
	return caught
})

// press disturbs the process until the test ends: two goroutines allocate and collect garbage, and every thread gets
// signals in turn, those of Go's own preemption and of its profiler among them. It returns how many of each there were.
func press(t *testing.T) (collections, signals func() int64) {
	t.Helper()
	if taken := native.Taken(); len(taken) > 0 {
		t.Fatalf("a library handles signals %v, of which two at a time would end the process", taken)
	}
	var before debug.GCStats
	debug.ReadGCStats(&before)
	caught := catch()
	stop := make(chan struct{})
	var all sync.WaitGroup
	every := func(pause time.Duration, f func()) {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(pause):
					f()
				}
			}
		})
	}
	var kept [2][32][]byte
	for i := range kept {
		every(time.Duration(200+100*i)*time.Microsecond, func() {
			for range 50 {
				kept[i][rand.IntN(len(kept[i]))] = make([]byte, 1<<(8+rand.IntN(12)))
			}
			runtime.GC()
		})
	}
	var sent atomic.Int64
	every(50*time.Microsecond, func() {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return
		}
		for _, task := range tasks {
			tid, err := strconv.Atoi(task.Name())
			if err != nil {
				continue
			}
			for _, s := range []unix.Signal{unix.SIGURG, unix.SIGUSR1, unix.SIGPROF, unix.SIGUSR2} {
				if unix.Tgkill(os.Getpid(), tid, s) == nil {
					sent.Add(1)
				}
			}
		}
		for len(caught) > 0 {
			<-caught
		}
	})
	t.Cleanup(func() {
		close(stop)
		all.Wait()
	})
	return func() int64 {
		var now debug.GCStats
		debug.ReadGCStats(&now)
		return now.NumGC - before.NumGC
	}, sent.Load
}

// Decoding under garbage collections and signals computes, bit for bit, what the same executables compute one after
// another on one thread: 10,000 tokens with HETC_LONG=1.
func TestDecodeUnderPressure(t *testing.T) {
	require.Slow(t)
	tokens := 300
	if os.Getenv("HETC_LONG") != "" {
		tokens = 10_000
	}
	m := open(t)
	s0, s1 := cores(t)
	const positions = 96 // then the cache begins anew
	two := []planir.Proc{proc("a", s0, ""), proc("b", s1, "")}
	for name, c := range map[string]struct {
		procs []planir.Proc
		ort   []string // selectors of processors of ONNX Runtime
		f     layoutOf
	}{
		"host on each core":             {two, nil, byPairs},
		"three processors on two cores": {[]planir.Proc{proc("a", s0, ""), proc("b", s0, ""), proc("c", s1, "")}, nil, nil},
		"ort on each core":              {[]planir.Proc{proc("a", s0, "")}, []string{s0, s1}, nil},
		"ort and host on each core":     {two, []string{s0, s1}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if len(c.ort) > 0 {
				needORT(t)
			}
			for i, sel := range c.ort {
				c.procs = append(slices.Clip(c.procs), ortProc(t, string(rune('x'+i)), sel))
			}
			if c.f == nil {
				c.f = amongAble(rand.New(rand.NewPCG(5, 5)), c.procs)
			}
			x := machine(t, m, makePlan(t, m, c.procs, []int{1}, positions, op.A8TQ8C, c.f), withORT(), ortcompiler.New())
			seed := maphash.MakeSeed()
			// digests of the logits after every token of a fixed random text
			decode := func(next func(*executor.Control, int32, func([]float32)) error) []uint64 {
				t.Helper()
				random := rand.New(rand.NewPCG(1, 7))
				out := make([]uint64, 0, tokens)
				x.Reset()
				err := x.Do(context.Background(), func(c *executor.Control) error {
					for i := range tokens {
						if i%positions == 0 {
							c.Truncate(0, 0)
						}
						if err := next(c, int32(random.IntN(m.Vocab)), func(l []float32) {
							var h maphash.Hash
							h.SetSeed(seed)
							for _, v := range l {
								maphash.WriteComparable(&h, math.Float32bits(v))
							}
							out = append(out, h.Sum64())
						}); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				return out
			}
			want := decode((*executor.Control).Serially)
			collections, signals := press(t)
			began := time.Now()
			got := decode(func(c *executor.Control, id int32, sink func([]float32)) error {
				_, err := c.Forward([]int32{id}, executor.WantLast, func(_ int, l []float32) error {
					sink(l)
					return nil
				})
				return err
			})
			wrong := 0
			for i := range want {
				if got[i] != want[i] {
					if wrong++; wrong == 1 {
						t.Errorf("token %d: logits differ from those of one thread", i)
					}
				}
			}
			t.Logf("%d tokens in %v, %d collections, %d signals, %d differ", tokens, time.Since(began), collections(), signals(), wrong)
			if collections() == 0 || signals() == 0 {
				t.Error("nothing disturbed the lanes")
			}
		})
	}
}
