package solver

import (
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/workload"
)

// draftWorkload asks for drafts of at most 8 tokens, of which this share is right.
func draftWorkload(acceptance float64, schemes ...op.Scheme) *workload.Workload {
	work := permit(schemes...)
	work.Drafts = &workload.Drafts{Acceptance: acceptance, Max: 8}
	return work
}

// Decoding reads every weight for one token, so that verifying a few more costs little: drafts pay where enough of them
// are right, and not where none is. The times of rows follow from the cost model.
func TestDraftsAreDecided(t *testing.T) {
	require.Slow(t)
	model, soc := demo(t), twoCores(t, 1)
	in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A8TQ8C)}
	lengths := map[float64]int{}
	for _, acceptance := range []float64{0, 0.05, 0.5, 0.95} {
		in.Workload = draftWorkload(acceptance, op.A8TQ8C)
		plan := solve(t, in).Plan
		if plan.Drafts == nil || len(plan.Drafts.VerifyNS) != 8 || plan.Drafts.Acceptance != acceptance {
			t.Fatalf("acceptance %v: %+v, want times of 8 lengths", acceptance, plan.Drafts)
		}
		lengths[acceptance] = plan.Drafts.Tokens

		one := predictionOf(t, plan, "decode")
		if plan.Drafts.PlainNS != one.PlanNS {
			t.Errorf("plain decoding takes %d ns, predicted %d", plan.Drafts.PlainNS, one.PlanNS)
		}
		head := int64(0)
		for _, section := range one.Sections {
			if section.Section == "head" {
				head = section.NS
			}
		}

		for i, ns := range plan.Drafts.VerifyNS {
			// at least the weights and a head for each row, at most as many calls
			rows := int64(i + 2)
			least, most := one.PlanNS+(rows-1)*head, rows*one.PlanNS
			if i > 0 {
				least = max(least, plan.Drafts.VerifyNS[i-1])
			}
			if head == 0 || ns < least*98/100 || ns > most {
				t.Errorf("%d rows take %d ns, want %d to %d", rows, ns, least, most)
			}
		}
	}

	if lengths[0] != 0 || lengths[0.95] < 2 || lengths[0.5] > lengths[0.95] {
		t.Errorf("lengths by acceptance: %v", lengths)
	}
	t.Logf("lengths by acceptance: %v", lengths)

	in.Workload = permit(op.A8TQ8C)
	if plan := solve(t, in).Plan; plan.Drafts != nil {
		t.Errorf("nobody asks for drafts: %+v", plan.Drafts)
	}
}

// No call that verifies a draft takes longer than a call of decode may.
func TestDraftsKeepTheLimitOfDecode(t *testing.T) {
	m, s := demo(t), twoCores(t, 1)
	in := Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A8TQ8C), Workload: draftWorkload(0.95, op.A8TQ8C)}
	free := solve(t, in).Plan.Drafts
	if free.Tokens < 3 {
		t.Fatalf("%+v: the case tests nothing", free)
	}
	for _, most := range []int{2, 0} {
		limit := free.PlainNS + 1
		if most > 0 {
			limit = free.VerifyNS[most-1]
		}
		in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { w.Limits.DecodeMS = float64(limit) / 1e6 })
		got := solve(t, in)
		drafts := got.Plan.Drafts
		if most == 0 && (drafts != nil || !strings.Contains(strings.Join(messages(got), " "), workload.KeyDecode)) {
			t.Errorf("at most %d ns: %+v, warnings %q, want none and why", limit, drafts, messages(got))
		}
		if most > 0 && (drafts == nil || len(drafts.VerifyNS) != most || drafts.Tokens > most) {
			t.Errorf("at most %d ns: %+v, want at most %d tokens", limit, drafts, most)
		}
	}
}

// predictionOf is that of a program.
func predictionOf(t *testing.T, plan *planir.Plan, program string) *planir.Prediction {
	t.Helper()
	for i := range plan.Predictions {
		if plan.Predictions[i].Program == program {
			return &plan.Predictions[i]
		}
	}
	t.Fatalf("no prediction of %q", program)
	return nil
}

// A call of all rows of a program, at the positions of a prompt, takes what the plan predicts of the program, and the
// head of each further row.
func TestVerifyingAllRows(t *testing.T) {
	model, soc := demo(t), twoCores(t, 1)
	result := solve(t, Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A8TQ8C),
		Workload: draftWorkload(0.9, op.A8TQ8C)})
	program := result.Plan.Program.For(16)
	predicted := predictionOf(t, result.Plan, program.Name)
	head := predicted.Sections[len(predicted.Sections)-1]
	got, err := result.session.verifyNS(result.Plan, program,
		call{program.Rows, result.session.want.ContextAt(program.Rows)})
	if want := predicted.PlanNS + 15*head.NS; err != nil || head.Section != "head" || got != want {
		t.Errorf("16 rows take %d ns, want %d (%v)", got, want, err)
	}
}

// Drafts that would change bits are left out, with the reason.
func TestDraftsAreLeftOut(t *testing.T) {
	model, soc := demo(t), twoCores(t, 1)
	mixed := draftWorkload(0.9, op.A8TQ8C)
	mixed.Schemes.Decode = []op.Scheme{op.A32W32}
	for want, work := range map[string]*workload.Workload{
		"computes in floating point": draftWorkload(0.9, op.A32W32), "unlike schemes": mixed,
	} {
		result := solve(t, Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A8TQ8C, op.A32W32),
			Workload: work})
		told := strings.Join(messages(result), "\n")
		if result.Plan.Drafts != nil || !strings.Contains(told, want) {
			t.Errorf("drafts %+v, told %q, want %q", result.Plan.Drafts, told, want)
		}
	}
}
