package solver

import (
	"context"
	"fmt"
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
	both := []op.Scheme{op.A32W32, op.A8TQ8C}
	shortened := 0 // programs that a way through a fork makes faster
	ultra, err := socs.Open("core-ultra-5-125h")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		model string
		soc   *socs.SoC // nil: two cores with random prices
	}{{"../testdata/models/tiny-llama-kjv", nil}, {"qwen1.5-moe-a2.7b", nil}, {"phi-2", ultra}} {
		for _, measure := range []problem.Measure{problem.Time, problem.Energy} {
			work := workload.Default()
			work.Minimise = measure
			work.Buckets, work.Context = []int{16}, 128
			work.Schemes = workload.Schemes{Prefill: both, Decode: both}
			model := open(t, test.model)
			var ses *session
			if test.soc == nil {
				soc := twoCores(t, 0.7)
				for i := range soc.Processors {
					soc.Processors[i].PowerW = float64(1 + i)
				}
				ses = randomSession(t, soc, model, work, 3)
				if err := ses.prepare(t.Context()); err != nil {
					t.Fatal(err)
				}
			} else {
				ses = prepared(t, Input{Model: model, SoC: test.soc, Costs: costs(t, test.soc, model, both...),
					Workload: work})
			}

			for _, ph := range ses.phases {
				if len(ph.points) < 8 {
					t.Errorf("%s, %s: %d combinations in %s", model.Name, measure, len(ph.points), ph.name)
				}
				for i := range ph.points {
					if i <= 64 || i%7 == 0 {
						shortened += checkLeast(t, ses, ph, &ph.points[i])
					}
				}
			}
		}
	}
	if shortened == 0 {
		t.Error("no way through a fork was taken")
	}
}

// checkLeast compares what is said of an assignment before it is posed with what the engine proves. It returns how many
// sections a way through a fork makes faster.
func checkLeast(t *testing.T, ses *session, ph *phase, at *point) (shortened int) {
	t.Helper()
	name := fmt.Sprintf("%s, %s: %d rows", ses.in.Model.Name, ses.measure(), ph.rows[0])
	schemes := ses.schemesOf(ph, at, nil)
	pr, err := ses.program(ph.rows[0], schemes)
	if err != nil {
		t.Fatal(err)
	}
	report, err := pr.solve(t.Context(), &ses.request)
	if err != nil {
		t.Fatal(err)
	}

	least, ok := ses.leastOf(ph.rows[0], schemes)
	if !ok || least != report.ObjectiveNS {
		t.Fatalf("%s in %v cost %v (%v), the engine proves %d", name, schemes, least, ok, report.ObjectiveNS)
	}
	if most := ph.weights[0] * float64(least); at.bound > most*(1+1e-12) {
		t.Fatalf("%s in %v are bounded by %v, and cost %v", name, schemes, at.bound, most)
	}

	if ses.measure() != problem.Time {
		return 0
	}
	for i, in := range pr.instances {
		nodes := in.choicesOfNodes(pr.choices[i])
		if in.posed.ObjectiveNS(pr.choices[i]) < in.chain.ObjectiveNS(nodes) {
			shortened++
		}
	}
	return shortened
}

// counted counts the problems that an engine is given.
type counted struct {
	problem.Engine
	partitions *atomic.Int64
}

// Partition counts the problem.
func (c counted) Partition(ctx context.Context, partition *problem.Partition) (problem.Solution, error) {
	c.partitions.Add(1)
	return c.Engine.Partition(ctx, partition)
}

// However many combinations of schemes there are, a problem is posed only for those that may be the best: here for each
// program one, also where branches may run side by side.
func TestCombinationsAreNotPosed(t *testing.T) {
	require.Slow(t)
	soc := twoCores(t, 0.7)
	work := workload.Default()
	work.Buckets, work.Context, work.OutputTokens = []int{16, 32}, 128, 8
	three := []op.Scheme{op.A32W32, op.A8TQ8C, op.A8TQ4B32}
	work.Schemes = workload.Schemes{Prefill: three, Decode: three}
	for _, model := range []*models.Model{demo(t), open(t, "phi-2")} {
		for seed := range uint64(4) {
			ses := randomSession(t, soc, model, work, seed)
			ses.in.Calibration = invented(t, model, rand.New(rand.NewPCG(seed, 1)), op.A8TQ8C, op.A8TQ4B32)
			ses.want.MaxKL = workload.KLLimit{Prefill: 0.02, Decode: 0.02}
			var posed atomic.Int64
			ses.in.Engine = counted{exact.Engine{}, &posed}
			if err := ses.chooseSchemes(context.Background()); err != nil {
				t.Fatal(err)
			}
			combinations := len(ses.phases[0].points) * len(ses.phases[1].points)
			if count := posed.Load(); count > int64(len(work.Buckets)+1) || combinations < 100 {
				t.Errorf("%s, seed %d: %d problems for %d combinations, want %d", model.Name, seed, count, combinations,
					len(work.Buckets)+1)
			}
			if report := ses.chosen; report.Status != string(problem.Optimal) {
				t.Errorf("%s, seed %d: schemes are %s, %d of at least %d ns", model.Name, seed, report.Status,
					report.ObjectiveNS, report.BoundNS)
			}
		}
	}
}

// A session that shares candidates with another one, which has added some, poses them as well.
func TestSharedCandidates(t *testing.T) {
	work := workload.Default()
	work.Buckets, work.Context = []int{16}, 128
	ses := randomSession(t, twoCores(t, 0.7), demo(t), work, 1)
	if err := ses.chooseSchemes(t.Context()); err != nil {
		t.Fatal(err)
	}
	before, err := ses.program(16, ses.prefill)
	if err != nil {
		t.Fatal(err)
	}
	other, err := ses.withGoal(problem.Energy)
	if err != nil {
		t.Fatal(err)
	}

	key := keyOfNode(16, &before.sections[1].Nodes[0])
	other.candidateSets[key].list = append(other.candidateSets[key].list, other.candidateSets[key].list[0])
	other.dropItems()
	ses.dropPrograms()
	after, err := ses.program(16, ses.prefill)
	if err != nil {
		t.Fatal(err)
	}

	in := after.instances[1]
	want := len(before.instances[1].candidates[0]) + 1
	if choices := len(in.chain.Items[0].Choices); choices != want || len(in.candidates[0]) != want {
		t.Errorf("%d choices of %d candidates, want %d", choices, len(in.candidates[0]), want)
	}
}
