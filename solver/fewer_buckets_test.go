package solver

import (
	"math/rand/v2"
	"os"
	"reflect"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/workload"
)

// Leaving a bucket out poses what a workload without that bucket poses: the same calls, of the same lengths, at the
// same positions.
func TestFewerBucketsAreTheSameProblem(t *testing.T) {
	m := demo(t)
	w := permit(op.A8TQ8C)
	w.Buckets, w.Context = []int{32, 384, 512}, 1024
	w.Prompts = workload.Prompts{{Tokens: 157, Share: 0.51}, {Tokens: 186, Share: 0.73}, {Tokens: 366, Share: 0.49}, {Tokens: 900, Share: 0.1}}
	all, err := w.Apply(m.MaxContext)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= len(w.Buckets); n++ {
		got, err := all.Fewer(w, n, m.MaxContext)
		if err != nil {
			t.Fatal(err)
		}
		without := *w
		without.Buckets = w.Buckets[:n]
		want, err := without.Apply(m.MaxContext)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("first %d buckets: %+v, a workload with these %+v", n, got, want)
		}
	}
}

// The same machine, model and prompts: less memory is never faster, a bound that is met changes nothing, and a list
// of buckets is never worse than a part of it. Objectives leave out how lanes meet, which predictions know: that much
// they may differ, 0.6 % in the worst of twelve cases.
func TestFreedomNeverHurts(t *testing.T) {
	require.Slow(t)
	const meets = 0.994
	m, seeds, most := demo(t), uint64(2), 2
	if os.Getenv("HETC_LONG") != "" {
		seeds, most = 12, 4
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 18))
		s := twoCores(t, 0.3+r.Float64())
		if seed%2 == 1 {
			s = coresAndNPU(t)
		}
		w := permit(op.A8TQ8C)
		w.Buckets, w.Context, w.OutputTokens = nil, 512, 1+r.IntN(40)
		for rows := 16 + 16*r.IntN(4); rows <= 384 && len(w.Buckets) < most; rows += 16 + 16*r.IntN(12) {
			w.Buckets = append(w.Buckets, rows)
		}
		for range 1 + r.IntN(4) {
			w.Prompts = append(w.Prompts, workload.Prompt{Tokens: 2 + r.IntN(500), Share: 0.1 + r.Float64()})
		}
		in := Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A8TQ8C), Workload: w}
		free := solve(t, in)

		in.MaxMemory = free.Plan.Memory.Total
		if same := solve(t, in); same.ExpectedNS != free.ExpectedNS || same.Plan.Memory.Total != free.Plan.Memory.Total {
			t.Errorf("seed %d: %v ns in %d bytes, with these as a bound %v ns in %d", seed, free.ExpectedNS, free.Plan.Memory.Total, same.ExpectedNS, same.Plan.Memory.Total)
		}
		last := free.ExpectedNS
		for part := 0.96; part > 0.8; part -= 0.1 {
			in.MaxMemory = int64(part * float64(free.Plan.Memory.Total))
			less, err := Solve(t.Context(), withEngine(in))
			if err != nil {
				break
			}
			if less.ExpectedNS < last*meets {
				t.Errorf("seed %d, buckets %v, prompts %v: %v ns in %d bytes, %v ns with more", seed, w.Buckets, w.Prompts, less.ExpectedNS, in.MaxMemory, last)
			}
			last = less.ExpectedNS
		}

		in.MaxMemory = 0
		for n := 1; n < len(w.Buckets); n++ {
			part := *w
			part.Buckets = w.Buckets[:n]
			in.Workload = &part
			if got := solve(t, in); free.ExpectedNS*meets > got.ExpectedNS {
				t.Errorf("seed %d, prompts %v: buckets %v take %v ns, %v only %v", seed, w.Prompts, w.Buckets, free.ExpectedNS, part.Buckets, got.ExpectedNS)
			}
		}
	}
}

func withEngine(in Input) Input {
	in.Engine = exact.Engine{}
	return in
}
