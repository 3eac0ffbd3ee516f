package solver

import (
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// besideWorkload asks for work side by side, for up to four sequences.
func besideWorkload(schemes ...op.Scheme) *workload.Workload {
	w := permit(schemes...)
	w.Beside, w.Batches = true, []int{2, 4}
	return w
}

// Two cores that reach 16 GB/s together and 10 alone decode at 10/16 of the speed on one, and process prompts at half
// of it: side by side they do more than by turns. The plan then has programs for it, with predicted times that follow
// from the cost model, and the weights, decisions and predictions of the plan without.
func TestBesideIsDecided(t *testing.T) {
	require.Slow(t)
	m, s := demo(t), twoCores(t, 1)
	work := besideWorkload(op.A8TQ8C)
	in := Input{Model: m, SoC: s, Costs: batchCosts(t, s, m, work.Batches, op.A8TQ8C), Workload: work}
	p := solve(t, in).Plan
	if p.Beside == nil || p.Beside.Prefill != "c1" || p.Beside.Decode != "c0" {
		t.Fatalf("beside is %+v, want prompts on c1, decoding on c0", p.Beside)
	}
	if got := len(p.Beside.Pairs); got != 2*3 {
		t.Fatalf("%d pairs, want each of 2 buckets with each of 3 batches", got)
	}
	predicted := func(name string) *planir.Prediction {
		for i := range p.Predictions {
			if p.Predictions[i].Program == name {
				return &p.Predictions[i]
			}
		}
		t.Fatalf("no prediction of %q", name)
		return nil
	}
	single := func(name, proc string) int64 {
		for _, x := range predicted(name).Singles {
			if x.Proc == proc {
				return x.NS
			}
		}
		t.Fatalf("no time of %q on %q", name, proc)
		return 0
	}
	decodes := map[int]string{1: "decode", 2: "decode@2", 4: "decode@4"}
	prefills := map[int]string{16: "prefill@16", 256: "prefill@256"}
	gained := 0
	for _, pair := range p.Beside.Pairs {
		prefill, decode := single(prefills[pair.PrefillRows], "c1"), single(decodes[pair.DecodeRows], "c0")
		// alone at best, and at worst with half of what both read together
		if pair.PrefillNS < prefill*99/100 || pair.PrefillNS > prefill*2 || pair.DecodeNS < decode*99/100 ||
			pair.DecodeNS > decode*2 {
			t.Errorf("pair %+v: alone on their cores they take %d and %d ns", pair, prefill, decode)
		}
		turns := float64(predicted(prefills[pair.PrefillRows]).PlanNS) +
			float64(pair.PrefillNS)/float64(pair.DecodeNS)*float64(predicted(decodes[pair.DecodeRows]).PlanNS)
		if float64(pair.PrefillNS) < worthwhile*turns {
			gained++
		}
	}
	if gained == 0 {
		t.Error("no pair takes less time than turns")
	}
	in.Workload = permit(op.A8TQ8C)
	in.Workload.Batches = work.Batches
	alone := solve(t, in).Plan
	if alone.Beside != nil || alone.Memory.Weights != p.Memory.Weights || len(alone.Decisions) != len(p.Decisions) ||
		alone.Memory.Pool >= p.Memory.Pool {
		t.Errorf("without: beside %v, %d decisions, %v; with: %d, %v", alone.Beside, len(alone.Decisions), alone.Memory,
			len(p.Decisions), p.Memory)
	}
}

// Where memory is bounded, the buffers for it must be within the bound.
func TestBesideWithinMemory(t *testing.T) {
	require.Slow(t)
	m, s := demo(t), twoCores(t, 1)
	work := besideWorkload(op.A8TQ8C)
	work.Beside = false
	in := Input{Model: m, SoC: s, Costs: batchCosts(t, s, m, work.Batches, op.A8TQ8C), Workload: work}
	least := solve(t, in).Plan.Memory.Total
	work.Beside = true
	most := solve(t, in).Plan.Memory.Total
	for bound, want := range map[int64]bool{least: false, most - 1: false, most: true} {
		in.MaxMemory = bound
		result := solve(t, in)
		if got := result.Plan.Beside != nil; got != want || result.Plan.Memory.Total > bound {
			t.Errorf("%d bytes of %d to %d: beside %v and %d bytes, want %v (%v)", bound, least, most, got,
				result.Plan.Memory.Total, want, result.Warnings)
		}
	}
}

// A limit on calls holds while another processor works, too, and least memory has no room for buffers of their own.
func TestBesideWithinLimits(t *testing.T) {
	require.Slow(t)
	m, s := demo(t), twoCores(t, 1)
	work := besideWorkload(op.A8TQ8C)
	in := Input{Model: m, SoC: s, Costs: batchCosts(t, s, m, work.Batches, op.A8TQ8C), Workload: work}
	free := solve(t, in).Plan
	var prefill, decode, longestPrefill, longestDecode int64
	for _, pair := range free.Beside.Pairs {
		longestPrefill, longestDecode = max(longestPrefill, pair.PrefillNS), max(longestDecode, pair.DecodeNS)
	}
	for _, predicted := range free.Predictions {
		if strings.HasPrefix(predicted.Program, "decode") {
			decode = max(decode, predicted.PlanNS)
		} else {
			prefill = max(prefill, predicted.PlanNS)
		}
	}
	ms := func(ns int64) float64 { return float64(ns) / 1e6 }
	for name, c := range map[string]struct {
		change func(*workload.Workload)
		want   bool
		told   string
	}{
		"decode":         {func(w *workload.Workload) { w.Limits.DecodeMS = ms(decode + 1) }, false, workload.KeyDecode},
		"decode beside":  {func(w *workload.Workload) { w.Limits.DecodeMS = ms(longestDecode + 1) }, true, ""},
		"prefill":        {func(w *workload.Workload) { w.Limits.PrefillMS = ms(prefill + 1) }, false, workload.KeyPrefill},
		"prefill beside": {func(w *workload.Workload) { w.Limits.PrefillMS = ms(longestPrefill + 1) }, true, ""},
		"memory":         {func(w *workload.Workload) { w.Minimise = problem.Memory }, false, "memory is to be least"},
	} {
		in.Workload = workload.Edited(work, c.change)
		result := solve(t, in)
		told := strings.Join(messages(result), "\n")
		if (result.Plan.Beside != nil) != c.want || !strings.Contains(told, c.told) ||
			strings.Contains(told, "no two processors") {
			t.Errorf("%s: beside %+v, told %q; want %v, and %q", name, result.Plan.Beside, told, c.want, c.told)
		}
	}
}

// What cannot be, does not pay, or would change bits is left out, with the reason.
func TestBesideIsLeftOut(t *testing.T) {
	m, s := demo(t), twoCores(t, 1)
	slow := twoCores(t, 0.05)
	for name, c := range map[string]struct {
		in   Input
		want string
	}{
		"floating point": {Input{SoC: s, Workload: besideWorkload(op.A32W32)}, "computes in floating point"},
		"a slow core":    {Input{SoC: slow, Workload: besideWorkload(op.A8TQ8C)}, "no two processors get more done"},
	} {
		t.Run(name, func(t *testing.T) {
			c.in.Model = m
			c.in.Costs = batchCosts(t, c.in.SoC, m, c.in.Workload.Batches, op.A8TQ8C, op.A32W32)
			result := solve(t, c.in)
			told := ""
			for _, d := range result.Warnings {
				told += d.Error() + "\n"
			}
			if result.Plan.Beside != nil || !strings.Contains(told, c.want) {
				t.Errorf("beside %+v, told %q, want %q", result.Plan.Beside, told, c.want)
			}
		})
	}
}
