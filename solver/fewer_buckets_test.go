package solver

import (
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/workload"
)

// Leaving a bucket out poses what a workload without that bucket poses: the same calls, of the same lengths, at the
// same positions.
func TestFewerBucketsAreTheSameProblem(t *testing.T) {
	model := demo(t)
	work := permit(op.A8TQ8C)
	work.Buckets, work.Context = []int{32, 384, 512}, 1024
	work.Prompts = workload.Prompts{{Tokens: 157, Share: 0.51}, {Tokens: 186, Share: 0.73}, {Tokens: 366, Share: 0.49},
		{Tokens: 900, Share: 0.1}}
	all, err := work.Apply(model.MaxContext)
	if err != nil {
		t.Fatal(err)
	}
	for count := 1; count <= len(work.Buckets); count++ {
		got, err := all.Fewer(work, count, model.MaxContext)
		if err != nil {
			t.Fatal(err)
		}
		without := *work
		without.Buckets = work.Buckets[:count]
		want, err := without.Apply(model.MaxContext)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("first %d buckets: %+v, a workload with these %+v", count, got, want)
		}
	}
}

// The same machine, model and prompts: less memory is never faster, a bound that is met changes nothing, and a list of
// buckets is never worse than a part of it. Objectives leave out how lanes meet, which predictions know: that much they
// may differ, 0.6 % in the worst of twelve cases.
func TestFreedomNeverHurts(t *testing.T) {
	require.Slow(t)
	const meets = 0.994
	model, seeds, most := demo(t), uint64(2), 2
	if os.Getenv("HETC_LONG") != "" {
		seeds, most = 12, 4
	}
	for seed := range seeds {
		random := rand.New(rand.NewPCG(seed, 18))
		soc := twoCores(t, 0.3+random.Float64())
		if seed%2 == 1 {
			soc = coresAndNPU(t)
		}

		work := permit(op.A8TQ8C)
		work.Buckets, work.Context, work.OutputTokens = nil, 512, 1+random.IntN(40)
		for rows := 16 + 16*random.IntN(4); rows <= 384 && len(work.Buckets) < most; rows += 16 + 16*random.IntN(12) {
			work.Buckets = append(work.Buckets, rows)
		}
		for range 1 + random.IntN(4) {
			work.Prompts = append(work.Prompts,
				workload.Prompt{Tokens: 2 + random.IntN(500), Share: 0.1 + random.Float64()})
		}
		in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A8TQ8C), Workload: work}
		free := solve(t, in)

		in.MaxMemory = free.Plan.Memory.Total
		same := solve(t, in)
		if same.ExpectedNS != free.ExpectedNS || same.Plan.Memory.Total != free.Plan.Memory.Total {
			t.Errorf("seed %d: %v ns in %d bytes, with these as a bound %v ns in %d", seed, free.ExpectedNS,
				free.Plan.Memory.Total, same.ExpectedNS, same.Plan.Memory.Total)
		}
		last := free.ExpectedNS
		for part := 0.96; part > 0.8; part -= 0.1 {
			in.MaxMemory = int64(part * float64(free.Plan.Memory.Total))
			less, err := Solve(t.Context(), withEngine(in))
			if err != nil {
				break
			}
			if less.ExpectedNS < last*meets {
				t.Errorf("seed %d, buckets %v, prompts %v: %v ns in %d bytes, %v ns with more", seed, work.Buckets,
					work.Prompts, less.ExpectedNS, in.MaxMemory, last)
			}
			last = less.ExpectedNS
		}

		in.MaxMemory = 0
		for count := 1; count < len(work.Buckets); count++ {
			part := *work
			part.Buckets = work.Buckets[:count]
			in.Workload = &part
			if got := solve(t, in); free.ExpectedNS*meets > got.ExpectedNS {
				t.Errorf("seed %d, prompts %v: buckets %v take %v ns, %v only %v", seed, work.Prompts, work.Buckets,
					free.ExpectedNS, part.Buckets, got.ExpectedNS)
			}
		}
	}
}

// withEngine is an input with the exact engine.
func withEngine(in Input) Input {
	in.Engine = exact.Engine{}
	return in
}

// A limit that the best plan keeps changes nothing. Both plans are compared by their predicted times: the one with all
// buckets has variants that the timeline prefers, whose objectives are larger than those of plans with fewer buckets.
func TestKeptLimitKeepsBuckets(t *testing.T) {
	core := func(number int, rest string) string {
		return fmt.Sprintf(`
  - name: c%d
    kind: cpu
    driver: sim
    select: c%[1]d
    cores: [%[1]d]
    tile: {k: 32, n: 32}
    schemes: [a32/w32, a8t/q4b32, a32/w16]
    layouts: {w32: n32, q4b32: n32, w16: n32}
    kv: [f32]
    dynamic_rows: true
    strided_output: true
    strided_input: true
    weight_ranges: true%s`, number, rest)
	}
	soc, err := socs.Parse("two-cores.yaml", []byte("schema: hetc.soc/1\nname: two-cores\ncontrol: c0\nprocessors:"+core(0, `
    power_w: 6.573
    bandwidth_gbps: 17.65
    launch_us: 0.2
    sim:
      schemes: {a32/w32: {peak_gops: 20.6}, a8t/q4b32: {peak_gops: 40.1}, a32/w16: {peak_gops: 12.0}}
      other_gops: 5.1`)+core(1, `
    power_w: 1.966
    bandwidth_gbps: 9.57
    launch_us: 0.15
    sim:
      schemes: {a32/w32: {peak_gops: 21.2}, a8t/q4b32: {peak_gops: 23.6}, a32/w16: {peak_gops: 11.4}}
      other_gops: 5.3`)+`
links:
  - {from: c0, to: c1, handover_us: 1.54}
  - {from: c1, to: c0, handover_us: 1.8}
`))
	if err != nil {
		t.Fatal(err)
	}

	work := workload.Default()
	work.Context, work.OutputTokens, work.Buckets = 96, 39, []int{7, 16, 24}
	work.Prompts = []workload.Prompt{{Tokens: 2, Share: 1}, {Tokens: 33, Share: 0.1}, {Tokens: 55, Share: 0.4}}
	work.Schemes = workload.Schemes{
		Prefill: []op.Scheme{op.A32W32, "a8t/q4b32"},
		Decode:  []op.Scheme{"a8t/q4b32", "a32/w16"},
	}
	model := open(t, "../testdata/arch/qwen2-window")
	in := Input{Model: model, SoC: soc, Costs: profiled(t, soc, model, work), Workload: work, Engine: exact.Engine{}}
	free, err := Solve(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}

	in.Workload = workload.Edited(work, func(w *workload.Workload) {
		w.Limits.EnergyMJ = free.ExpectedNJ * 1.000001 / 1e6
	})
	limited, err := Solve(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if limited.ExpectedNS > free.ExpectedNS {
		t.Errorf("with a limit that the best plan keeps it takes %.0f ns, want %.0f", limited.ExpectedNS, free.ExpectedNS)
	}
}
