package solver

import (
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// What the problem of tiers says that slots hold is what the plan with them holds more, in the region of their
// processor and in the process.
func TestSlotsHoldWhatTheProblemSays(t *testing.T) {
	const rows = 64
	for _, fuses := range []bool{true, false} {
		in := withSmallNPU(t, rows)
		npu := in.SoC.Processor("c1")
		npu.Fuses = fuses
		in.Costs = costs(t, in.SoC, in.Model, op.A32W32)
		loads := in.Loads
		in.Loads = nil
		dynamic := solve(t, in).Plan
		in.Loads = loads
		var err error
		if in.TierRule, err = ParseTierRule([]string{"optimal"}); err != nil {
			t.Fatal(err)
		}
		plan := solve(t, in).Plan
		tiers := plan.TiersOf(rows)
		if tiers == nil {
			t.Fatalf("fuses %v: no tiers", fuses)
		}

		schemes := []op.Scheme{op.A32W32, op.A32W32}
		for _, test := range []struct {
			limit roomLimit
			held  int64
		}{
			{roomLimits[0], check.Load(plan, npu).Bytes - check.Load(dynamic, npu).Bytes},
			{roomLimits[1], planir.MemoryOf(plan).Total - planir.MemoryOf(dynamic).Total},
		} {
			limit := test.limit.tierLimit(TierRoom{}, in.Model, schemes, npu)
			want := int64(0)
			for _, group := range tiers.Groups {
				want += int64(group.Slots) * limit.Slot(group.Rows)
			}
			// Packs begin on pages, and programs of more graphs have more steps.
			slack := int64(16 * len(in.Model.ExpertLayers()) * planir.PageBytes)
			if test.limit.name == roomLimits[0].name {
				slack = 0
			}
			if more := test.held - want; more < 0 || more > slack {
				t.Errorf("fuses %v: slots %s hold %d bytes of %s, and the problem says %d", fuses, tiers.Shape(),
					test.held, test.limit.name, want)
			}
		}
	}
}

// Where a limit has no room for all slots that pay, tiers are those that fit, and the plan with them keeps the limit.
func TestTiersWithinLimits(t *testing.T) {
	const rows = 64
	in := withSmallNPU(t, rows)
	loads := in.Loads
	in.Loads = nil
	dynamic := solve(t, in).Plan
	in.Loads = loads
	var err error
	if in.TierRule, err = ParseTierRule([]string{"optimal"}); err != nil {
		t.Fatal(err)
	}
	free := solve(t, in).Plan

	npu := in.SoC.Processor("c1")
	for _, part := range []float64{0.3, 0.8} {
		between := func(least, most int64) int64 { return least + int64(part*float64(most-least)) }
		limited, soc := in, *in.SoC
		soc.Processors = slices.Clone(in.SoC.Processors)
		limited.SoC = &soc
		held := soc.Processor("c1")
		held.AddressBytes = between(check.Load(dynamic, npu).Bytes, check.Load(free, npu).Bytes)
		limited.Costs = costs(t, &soc, in.Model, op.A32W32)
		plan := solve(t, limited).Plan
		if plan.TiersOf(rows) == nil || check.Load(plan, held).Bytes > held.AddressBytes {
			t.Errorf("a region of %d bytes: tiers %v hold %d bytes", held.AddressBytes, plan.Experts,
				check.Load(plan, held).Bytes)
		}

		limited = in
		limited.MaxMemory = between(planir.MemoryOf(dynamic).Total, planir.MemoryOf(free).Total)
		plan = solve(t, limited).Plan
		if plan.TiersOf(rows) == nil || plan.Memory.Total > limited.MaxMemory {
			t.Errorf("memory of %d bytes: tiers %v hold %d bytes", limited.MaxMemory, plan.Experts, plan.Memory.Total)
		}
	}
}

// A limit of time that prompts keep only with tiers has a plan with tiers; one that they break with tiers, too, has
// none, and that is proved for dynamic experts alone.
func TestTiersKeepALimitOfTime(t *testing.T) {
	const rows = 64
	in := withSmallNPU(t, rows)
	loads := in.Loads
	in.Loads = nil
	dynamic := predictedPrompt(solve(t, in).Plan, rows).PlanNS
	in.Loads = loads

	tiered := predictedPrompt(solve(t, in).Plan, rows).PlanNS
	if tiered >= dynamic {
		t.Fatalf("%d ns with tiers and %d without", tiered, dynamic)
	}
	limited := func(ns int64) (*Result, error) {
		with := in
		with.Workload = workload.Edited(in.Workload,
			func(w *workload.Workload) { w.Limits.PrefillMS = float64(ns) / 1e6 })
		return Solve(t.Context(), with)
	}

	for _, limit := range []int64{tiered + 1, (tiered + dynamic) / 2, dynamic + 1} {
		result, err := limited(limit)
		if err != nil {
			t.Errorf("%d ns with tiers, %d without, and none within %d: %v", tiered, dynamic, limit, err)
		} else if got := predictedPrompt(result.Plan, rows).PlanNS; got > limit || result.Plan.TiersOf(rows) == nil {
			t.Errorf("%d ns within %d, tiers %v", got, limit, result.Plan.Experts)
		}
	}
	if _, err := limited(1); !namesLimit(err, workload.KeyPrefill) || Proved(err) {
		t.Errorf("within a nanosecond: %v, want the limit without a proof", err)
	}
}

// A plan whose slots do not fit the region of their processor, which was smaller than the one it was solved for, is
// refused before anything is compiled, and so is one with more graphs than the processor holds.
func TestSlotsBeyondTheRegion(t *testing.T) {
	in := withSmallNPU(t, 64)
	var err error
	if in.TierRule, err = ParseTierRule([]string{"optimal"}); err != nil {
		t.Fatal(err)
	}
	plan := solve(t, in).Plan
	if plan.TiersOf(64) == nil {
		t.Fatal("no tiers")
	}

	npu := in.SoC.Processor("c1")
	held := check.Load(plan, npu)
	for _, test := range []struct {
		bytes  int64
		graphs int
		want   string
	}{
		{held.Bytes, held.Graphs, ""}, {held.Bytes - 1, 0, "addresses at most"}, {1, 0, "addresses at most"},
		{0, held.Graphs - 1, "holds at most"},
	} {
		npu.AddressBytes, npu.MaxGraphs = test.bytes, test.graphs
		err := check.Plan(plan, in.Model, in.SoC).Err()
		if test.want == "" && err == nil {
			continue
		}
		if err == nil || test.want == "" || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%d bytes and %d graphs in a region of %d and for at most %d: got %v, want %q", held.Bytes,
				held.Graphs, test.bytes, test.graphs, err, test.want)
		}
	}
}

// Buckets share what there is: experts that are in slots of several count once, unless graphs own their weights, and
// the buffers of a group count at their largest.
func TestBucketsShareTheRoom(t *testing.T) {
	in := withSmallNPU(t, 64)
	npu := in.SoC.Processor("c1")
	schemes := []op.Scheme{op.A32W32, op.A32W32}
	tiers := []planir.ExpertTiers{
		{Rows: 32, Groups: []planir.ExpertGroup{{Slots: 1, Rows: 8}}},
		{Rows: 64, Groups: []planir.ExpertGroup{{Slots: 1, Rows: 16}, {Slots: 1, Rows: 4}}},
	}
	for _, layer := range in.Model.ExpertLayers() {
		tiers[0].Layers = append(tiers[0].Layers, planir.ExpertLayer{Layer: layer, Slots: []int{0}})
		tiers[1].Layers = append(tiers[1].Layers, planir.ExpertLayer{Layer: layer, Slots: []int{1, 0}})
	}

	limit := roomLimits[0].tierLimit(TierRoom{}, in.Model, schemes, npu)
	for _, test := range []struct {
		weights string
		experts int64
	}{{socs.WeightsShared, 2}, {socs.WeightsPerGraph, 3}} {
		npu.WeightBytes = test.weights
		need := test.experts*limit.Expert + (16+4)*limit.Row
		for _, less := range []int64{0, 1, 1000} {
			all := TierRoom{Region: need - less}
			room := all
			again := room.share(all, tiers, in.Model, schemes, npu)
			if again != (less > 0) || room.Region != need-2*less {
				t.Errorf("%s: of %d bytes too few %d are left, and decided again: %v", test.weights, less, room.Region,
					again)
			}
		}
	}

	if got := (TierRoom{}).limits(in.Model, schemes, npu); got != nil {
		t.Errorf("limits %v of any room", got)
	}

	slots := []int{1, 2}
	posed := &problem.Tiers{Capacities: []int{4, 8},
		Limits: []problem.TierLimit{{Name: "region", Bytes: 119, Expert: 20, Row: 3}}}
	if full := posed.Overfull(slots); full == nil || full.Taken(posed, slots) != 3*20+(4+16)*3 {
		t.Errorf("%v is overfull, want the region with 120 bytes", full)
	}
}
