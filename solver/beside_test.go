package solver

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// besideWorkload asks for work side by side, for up to four sequences.
func besideWorkload(schemes ...op.Scheme) *workload.Workload {
	work := permit(schemes...)
	work.Beside, work.Batches = true, []int{2, 4}
	return work
}

// Two cores that reach 16 GB/s together and 10 alone decode at 10/16 of the speed on one, and process prompts at half
// of it: side by side they do more than by turns. The plan then has programs for it, with predicted times that follow
// from the cost model, and the weights, decisions and predictions of the plan without.
func TestBesideIsDecided(t *testing.T) {
	require.Slow(t)
	model, soc := demo(t), twoCores(t, 1)
	work := besideWorkload(op.A8TQ8C)
	in := Input{Model: model, SoC: soc, Costs: batchCosts(t, soc, model, work.Batches, op.A8TQ8C), Workload: work}
	plan := solve(t, in).Plan
	if plan.Beside == nil || plan.Beside.Prefill != "c1" || plan.Beside.Decode != "c0" {
		t.Fatalf("beside is %+v, want prompts on c1, decoding on c0", plan.Beside)
	}
	if got := len(plan.Beside.Pairs); got != 2*3 {
		t.Fatalf("%d pairs, want each of 2 buckets with each of 3 batches", got)
	}
	gained := 0
	for _, pair := range plan.Beside.Pairs {
		together := predictionOf(t, plan, fmt.Sprintf("prefill@%d", pair.PrefillRows))
		step := predictionOf(t, plan, lower.ProgramName(pair.DecodeRows, true))
		prefill, decode := alone(t, together, "c1"), alone(t, step, "c0")
		// alone at best, and at worst with half of what both read together
		if pair.PrefillNS < prefill*99/100 || pair.PrefillNS > prefill*2 {
			t.Errorf("pair %+v: alone on its core prefill takes %d ns", pair, prefill)
		}
		if pair.DecodeNS < decode*99/100 || pair.DecodeNS > decode*2 {
			t.Errorf("pair %+v: alone on its core decode takes %d ns", pair, decode)
		}

		steps := float64(pair.PrefillNS) / float64(pair.DecodeNS)
		if turns := float64(together.PlanNS) + steps*float64(step.PlanNS); float64(pair.PrefillNS) < worthwhile*turns {
			gained++
		}
	}
	if gained == 0 {
		t.Error("no pair takes less time than turns")
	}

	in.Workload = permit(op.A8TQ8C)
	in.Workload.Batches = work.Batches
	without := solve(t, in).Plan
	same := without.Memory.Weights == plan.Memory.Weights && len(without.Decisions) == len(plan.Decisions)
	if without.Beside != nil || !same || without.Memory.Pool >= plan.Memory.Pool {
		t.Errorf("without: beside %v, %d decisions, %v; with: %d, %v", without.Beside, len(without.Decisions),
			without.Memory, len(plan.Decisions), plan.Memory)
	}
}

// Where memory is bounded, the buffers for it must be within the bound.
func TestBesideWithinMemory(t *testing.T) {
	require.Slow(t)
	model, soc := demo(t), twoCores(t, 1)
	work := besideWorkload(op.A8TQ8C)
	work.Beside = false
	in := Input{Model: model, SoC: soc, Costs: batchCosts(t, soc, model, work.Batches, op.A8TQ8C), Workload: work}
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
	model, soc := demo(t), twoCores(t, 1)
	work := besideWorkload(op.A8TQ8C)
	in := Input{Model: model, SoC: soc, Costs: batchCosts(t, soc, model, work.Batches, op.A8TQ8C), Workload: work}
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
	for name, test := range map[string]struct {
		change func(*workload.Workload)
		want   bool
		told   string
	}{
		"decode": {func(w *workload.Workload) { w.Limits.DecodeMS = ms(decode + 1) }, false,
			workload.KeyDecode},
		"decode beside": {func(w *workload.Workload) { w.Limits.DecodeMS = ms(longestDecode + 1) }, true, ""},
		"prefill": {func(w *workload.Workload) { w.Limits.PrefillMS = ms(prefill + 1) }, false,
			workload.KeyPrefill},
		"prefill beside": {func(w *workload.Workload) { w.Limits.PrefillMS = ms(longestPrefill + 1) }, true, ""},
		"memory":         {func(w *workload.Workload) { w.Minimise = problem.Memory }, false, "memory is to be least"},
	} {
		in.Workload = workload.Edited(work, test.change)
		result := solve(t, in)
		told := strings.Join(messages(result), "\n")
		hasOtherReason := strings.Contains(told, "no two processors")
		if (result.Plan.Beside != nil) != test.want || !strings.Contains(told, test.told) || hasOtherReason {
			t.Errorf("%s: beside %+v, told %q; want %v, and %q", name, result.Plan.Beside, told, test.want, test.told)
		}
	}
}

// What cannot be, does not pay, or would change bits is left out, with the reason.
func TestBesideIsLeftOut(t *testing.T) {
	model, soc := demo(t), twoCores(t, 1)
	slow := twoCores(t, 0.05)
	for name, test := range map[string]struct {
		in   Input
		want string
	}{
		"floating point": {Input{SoC: soc, Workload: besideWorkload(op.A32W32)}, "computes in floating point"},
		"a slow core":    {Input{SoC: slow, Workload: besideWorkload(op.A8TQ8C)}, "no two processors get more done"},
	} {
		t.Run(name, func(t *testing.T) {
			test.in.Model = model
			test.in.Costs = batchCosts(t, test.in.SoC, model, test.in.Workload.Batches, op.A8TQ8C, op.A32W32)
			result := solve(t, test.in)
			told := strings.Join(messages(result), "\n")
			if result.Plan.Beside != nil || !strings.Contains(told, test.want) {
				t.Errorf("beside %+v, told %q, want %q", result.Plan.Beside, told, test.want)
			}
		})
	}
}
