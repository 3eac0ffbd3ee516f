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

// catch has the signals of press caught, for the rest of the process. One that reaches a thread after that would end
// the process: on a thread that Go's runtime did not start, as ONNX Runtime's, Go raises it again with its default
// action.
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
		sent.Add(signalThreads())
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

// signalThreads sends signals to every thread of the process and returns how many it sent.
func signalThreads() (sent int64) {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil {
			continue
		}
		for _, s := range []unix.Signal{unix.SIGURG, unix.SIGUSR1, unix.SIGPROF, unix.SIGUSR2} {
			if unix.Tgkill(os.Getpid(), tid, s) == nil {
				sent++
			}
		}
	}
	return sent
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
	for _, c := range []struct {
		name   string
		procs  []planir.Proc
		ort    []string // selectors of processors of ONNX Runtime
		layout layoutOf // nil: among all of them at random
	}{
		{name: "host on each core", procs: pairOn(s0, s1), layout: byPairs},
		{
			name:  "three processors on two cores",
			procs: []planir.Proc{proc("a", s0, ""), proc("b", s0, ""), proc("c", s1, "")},
		},
		{name: "ort on each core", procs: singleOn(s0), ort: []string{s0, s1}},
		{name: "ort and host on each core", procs: pairOn(s0, s1), ort: []string{s0, s1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if len(c.ort) > 0 {
				needORT(t)
			}
			for i, sel := range c.ort {
				c.procs = append(c.procs, ortProc(t, string(rune('x'+i)), sel))
			}
			if c.layout == nil {
				c.layout = amongAble(rand.New(rand.NewPCG(5, 5)), c.procs)
			}
			x := machine(t, m, makePlan(t, m, planSpec{
				procs: c.procs, rows: []int{1}, context: pressedPositions, scheme: op.A8TQ8C, layout: c.layout,
			}), withORT(), ortcompiler.New())
			seed := maphash.MakeSeed()
			want := decodeDigests(t, x, seed, tokens, m.Vocab, (*executor.Control).Serially)

			collections, signals := press(t)
			began := time.Now()
			got := decodeDigests(t, x, seed, tokens, m.Vocab, inLanes)

			wrong := 0
			for i := range want {
				if got[i] == want[i] {
					continue
				}
				if wrong == 0 {
					t.Errorf("token %d: logits differ from those of one thread", i)
				}
				wrong++
			}
			t.Logf("%d tokens in %v, %d collections, %d signals, %d differ", tokens, time.Since(began), collections(),
				signals(), wrong)
			if collections() == 0 || signals() == 0 {
				t.Error("nothing disturbed the lanes")
			}
		})
	}
}

// pressedPositions is the length of the cache in TestDecodeUnderPressure. Then it begins anew.
const pressedPositions = 96

// extendBy extends the sequence by one token and passes its logits on.
type extendBy func(c *executor.Control, token int32, sink func(logits []float32)) error

// inLanes is the machine's own way to extend a sequence by a token.
func inLanes(c *executor.Control, token int32, sink func([]float32)) error {
	_, err := c.Forward([]int32{token}, executor.WantLast, func(_ int, logits []float32) error {
		sink(logits)
		return nil
	})
	return err
}

// decodeDigests are digests of the logits after every token of a fixed random text.
func decodeDigests(t *testing.T, x *executor.Machine, seed maphash.Seed, tokens, vocab int, extend extendBy) []uint64 {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 7))
	out := make([]uint64, 0, tokens)
	keep := func(logits []float32) {
		var h maphash.Hash
		h.SetSeed(seed)
		for _, v := range logits {
			maphash.WriteComparable(&h, math.Float32bits(v))
		}
		out = append(out, h.Sum64())
	}
	x.Reset()
	err := x.Do(context.Background(), func(c *executor.Control) error {
		for i := range tokens {
			if i%pressedPositions == 0 {
				c.Truncate(0, 0)
			}
			if err := extend(c, int32(random.IntN(vocab)), keep); err != nil {
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
