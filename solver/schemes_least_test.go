package solver

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/problem"
)

// What menus say of a combination of schemes before it is posed is what the engine proves of it: minimising time and
// energy.
func TestLeastIsTheOptimum(t *testing.T) {
	ctx := context.Background()
	both := []op.Scheme{op.A32W32, op.A8TQ8C}
	for _, measure := range []problem.Measure{problem.Time, problem.Energy} {
		w := DefaultWorkload()
		w.Minimise = measure
		w.Buckets, w.Context = []int{16}, 128
		w.Schemes = Schemes{Prefill: both, Decode: both}
		s := twoCores(t, 0.7)
		for i := range s.Processors {
			s.Processors[i].PowerW = float64(1 + i)
		}
		ses := randomSession(t, s, demo(t), w, 3)
		if err := ses.prepare(ctx); err != nil {
			t.Fatal(err)
		}
		known := 0
		everyPair(ses, func(p, d assignment) {
			for _, x := range []struct {
				rows int
				a    assignment
			}{{16, p}, {1, d}} {
				pr, err := ses.program(x.rows, x.a)
				if err != nil {
					t.Fatal(err)
				}
				report, err := pr.solve(ctx, ses)
				if err != nil {
					t.Fatal(err)
				}
				least, ok := ses.leastOf(x.rows, x.a)
				if !ok || least.bound != report.ObjectiveNS || least.chain != least.bound {
					t.Fatalf("%s: %d rows in %v cost at least %v (%v), the engine proves %d", measure, x.rows, x.a, least, ok, report.ObjectiveNS)
				}
				known++
			}
		})
		if known < 64 {
			t.Errorf("%s: %d programs were compared", measure, known)
		}
	}
}

// counted counts the problems that an engine is given.
type counted struct {
	problem.Engine
	partitions *atomic.Int64
}

func (e counted) Partition(ctx context.Context, p *problem.Partition) (problem.Solution, error) {
	e.partitions.Add(1)
	return e.Engine.Partition(ctx, p)
}

// However many combinations of schemes there are, a problem is posed only for those that may be the best: here for each program one.
func TestCombinationsAreNotPosed(t *testing.T) {
	m, s := demo(t), twoCores(t, 0.7)
	w := DefaultWorkload()
	w.Buckets, w.Context, w.OutputTokens = []int{16, 32}, 128, 8
	three := []op.Scheme{op.A32W32, op.A8TQ8C, op.A8TQ4B32}
	w.Schemes = Schemes{Prefill: three, Decode: three}
	for seed := range uint64(4) {
		ses := randomSession(t, s, m, w, seed)
		ses.in.Calibration = invented(t, m, rand.New(rand.NewPCG(seed, 1)), op.A8TQ8C, op.A8TQ4B32)
		ses.want.limit = KLLimit{Prefill: 0.02, Decode: 0.02}
		var posed atomic.Int64
		ses.in.Engine = counted{exact.Engine{}, &posed}
		if err := ses.chooseSchemes(context.Background()); err != nil {
			t.Fatal(err)
		}
		combinations := len(ses.phases[0].points) * len(ses.phases[1].points)
		if n := posed.Load(); n > int64(len(w.Buckets)+1) || combinations < 100 {
			t.Errorf("seed %d: %d problems for %d combinations, want %d", seed, n, combinations, len(w.Buckets)+1)
		}
	}
}
