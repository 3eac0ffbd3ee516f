package solver

import (
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/solver/price"
)

// planDrafts decides how many tokens a request that decodes alone guesses at a time, where the workload asks for it. A
// draft of k tokens is verified by a call of k+1 rows. Its time is that of the operators with so many rows, and of the
// head once for each row. planDrafts takes the length with the least time per token at the workload's acceptance, which
// may be 0, among those whose calls keep the limit of time of decode.
func (s *session) planDrafts(plan *planir.Plan) error {
	if s.want.Drafts == nil {
		return nil
	}
	if why := s.whyNoDrafts(s.onDevice(plan)); why != "" {
		s.warn("no tokens are guessed: %s", why)
		return nil
	}

	drafts := &planir.Drafts{Acceptance: s.want.Drafts.Acceptance}
	for i := range plan.Predictions {
		if plan.Predictions[i].Program == lower.ProgramName(1, true) {
			drafts.PlainNS = plan.Predictions[i].PlanNS
		}
	}

	for tokens := 1; tokens <= s.want.Drafts.Max; tokens++ {
		program := plan.Program.For(tokens + 1)
		if !plan.Verifies(tokens + 1) {
			break
		}
		ns, err := s.verifyNS(plan, program, call{tokens + 1, s.want.ContextAt(1)})
		if err != nil {
			return err
		}
		if broken := s.callLimit(lower.ProgramName(1, true), ns); broken != nil {
			if tokens == 1 {
				s.warn("no tokens are guessed: a call that verifies one takes longer than %s permits", broken.user)
				return nil
			}
			break
		}
		drafts.VerifyNS = append(drafts.VerifyNS, ns)
	}

	if drafts.PlainNS <= 0 || len(drafts.VerifyNS) == 0 {
		return diag.New(diag.ClassInternal, "BUG: drafts of %d lengths beside plain decoding of %d ns",
			len(drafts.VerifyNS), drafts.PlainNS)
	}
	drafts.Tokens, _ = drafts.Best(drafts.Acceptance, len(drafts.VerifyNS))
	plan.Drafts = drafts
	return nil
}

// whyNoDrafts returns why a plan cannot verify drafts, "" if it can. Requests must get the bits of plain decoding.
func (s *session) whyNoDrafts(plan *planir.Plan) string {
	alike, exact := plan.Precision()
	switch {
	case len(s.want.Buckets) == 0:
		return "the plan has no program of several rows"
	case !alike:
		return "prefill and decode have products in unlike schemes, so that drafts would not be verified to the bit"
	case plan.Unlike() != "":
		return plan.Unlike() + ", so that drafts would not be verified to the bit"
	case !exact:
		return "the plan computes in floating point, so that drafts would not be verified to the bit"
	case !plan.Verifies(1), !plan.Verifies(2):
		return "attention selects positions for rows together, or rows of experts are dropped, " +
			"so that drafts would not be verified to the bit"
	case plan.LongFrom() > 0:
		return "the model rotates long prompts by their length"
	}
	return ""
}

// verifyNS predicts a call of a program with the logits of every row: the head runs once for each.
func (s *session) verifyNS(plan *planir.Plan, program *planir.PhaseProgram, called call) (total int64, err error) {
	of, err := s.workOfCall(plan, program, called)
	if err != nil {
		return 0, err
	}
	_, each, err := s.predictSections(program, of, func(e price.Estimate) int64 { return e.NS })
	if err != nil {
		return 0, err
	}
	for i, ns := range each {
		if program.Sections[i].Logits {
			ns *= int64(called.rows)
		}
		total += ns
	}
	return total, nil
}
