package solver

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// What is said of a combination of schemes before it is posed is what the engine proves of it, minimising time and
// energy, with branches side by side and without. No bound is above it.
func TestLeastIsTheOptimum(t *testing.T) {
	require.Slow(t)
	ctx := context.Background()
	both := []op.Scheme{op.A32W32, op.A8TQ8C}
	shortened := 0 // programs that a way through a fork makes faster
	ultra, err := socs.Open("core-ultra-5-125h")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ model, soc string }{{"../testdata/models/tiny-llama-kjv", ""}, {"qwen1.5-moe-a2.7b", ""}, {"phi-2", ultra.Name}} {
		name := x.model + " on " + x.soc
		for _, measure := range []problem.Measure{problem.Time, problem.Energy} {
			w := workload.Default()
			w.Minimise = measure
			w.Buckets, w.Context = []int{16}, 128
			w.Schemes = workload.Schemes{Prefill: both, Decode: both}
			m := open(t, x.model)
			var ses *session
			if x.soc == "" {
				s := twoCores(t, 0.7)
				for i := range s.Processors {
					s.Processors[i].PowerW = float64(1 + i)
				}
				ses = randomSession(t, s, m, w, 3)
				if err := ses.prepare(ctx); err != nil {
					t.Fatal(err)
				}
			} else {
				ses = prepared(t, Input{Model: m, SoC: ultra, Costs: costs(t, ultra, m, both...), Workload: w})
			}
			for _, ph := range ses.phases {
				for i := range ph.points {
					if i > 64 && i%7 > 0 {
						continue
					}
					x := &ph.points[i]
					a := ses.schemesOf(ph, x, nil)
					pr, err := ses.program(ph.rows[0], a)
					if err != nil {
						t.Fatal(err)
					}
					report, err := pr.solve(ctx, &ses.request)
					if err != nil {
						t.Fatal(err)
					}
					least, ok := ses.leastOf(ph.rows[0], a)
					if !ok || least != report.ObjectiveNS {
						t.Fatalf("%s, %s: %d rows in %v cost %v (%v), the engine proves %d", name, measure, ph.rows[0], a, least, ok, report.ObjectiveNS)
					}
					if most := ph.weights[0] * float64(least); x.bound > most*(1+1e-12) {
						t.Fatalf("%s, %s: %d rows in %v are bounded by %v, and cost %v", name, measure, ph.rows[0], a, x.bound, most)
					}
					for k, in := range pr.instances {
						if measure == problem.Time && report.ObjectiveNS < report.ObjectiveNS-in.posed.ObjectiveNS(pr.choices[k])+in.chain.ObjectiveNS(in.choicesOfNodes(pr.choices[k])) {
							shortened++
						}
					}
				}
				if len(ph.points) < 8 {
					t.Errorf("%s, %s: %d combinations in %s", name, measure, len(ph.points), ph.name)
				}
			}
		}
	}
	if shortened == 0 {
		t.Error("no way through a fork was taken")
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

// However many combinations of schemes there are, a problem is posed only for those that may be the best: here for
// each program one, also where branches may run side by side.
func TestCombinationsAreNotPosed(t *testing.T) {
	require.Slow(t)
	s := twoCores(t, 0.7)
	w := workload.Default()
	w.Buckets, w.Context, w.OutputTokens = []int{16, 32}, 128, 8
	three := []op.Scheme{op.A32W32, op.A8TQ8C, op.A8TQ4B32}
	w.Schemes = workload.Schemes{Prefill: three, Decode: three}
	for _, m := range []*models.Model{demo(t), open(t, "phi-2")} {
		for seed := range uint64(4) {
			ses := randomSession(t, s, m, w, seed)
			ses.in.Calibration = invented(t, m, rand.New(rand.NewPCG(seed, 1)), op.A8TQ8C, op.A8TQ4B32)
			ses.want.MaxKL = workload.KLLimit{Prefill: 0.02, Decode: 0.02}
			var posed atomic.Int64
			ses.in.Engine = counted{exact.Engine{}, &posed}
			if err := ses.chooseSchemes(context.Background()); err != nil {
				t.Fatal(err)
			}
			combinations := len(ses.phases[0].points) * len(ses.phases[1].points)
			if n := posed.Load(); n > int64(len(w.Buckets)+1) || combinations < 100 {
				t.Errorf("%s, seed %d: %d problems for %d combinations, want %d", m.Name, seed, n, combinations, len(w.Buckets)+1)
			}
			if r := ses.chosen; r.Status != string(problem.Optimal) {
				t.Errorf("%s, seed %d: schemes are %s, %d of at least %d ns", m.Name, seed, r.Status, r.ObjectiveNS, r.BoundNS)
			}
		}
	}
}

// A session that shares candidates with another one, which has added some, poses them as well.
func TestSharedCandidates(t *testing.T) {
	w := workload.Default()
	w.Buckets, w.Context = []int{16}, 128
	s := randomSession(t, twoCores(t, 0.7), demo(t), w, 1)
	if err := s.chooseSchemes(t.Context()); err != nil {
		t.Fatal(err)
	}
	before, err := s.program(16, s.prefill)
	if err != nil {
		t.Fatal(err)
	}
	other, err := s.withGoal(problem.Energy)
	if err != nil {
		t.Fatal(err)
	}
	key := keyOfNode(16, &before.sections[1].Nodes[0])
	other.candidateSets[key].list = append(other.candidateSets[key].list, other.candidateSets[key].list[0])
	other.dropItems()
	s.dropPrograms()
	after, err := s.program(16, s.prefill)
	if err != nil {
		t.Fatal(err)
	}
	in := after.instances[1]
	if got, want := len(in.chain.Items[0].Choices), len(in.candidates[0]); got != want || want != len(before.instances[1].candidates[0])+1 {
		t.Errorf("%d choices of %d candidates, %d before", got, want, len(before.instances[1].candidates[0]))
	}
}
