package solver

import (
	"cmp"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/socs/timeline"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
)

// worthwhile is the largest ratio of the time side by side to the time by turns at which side by side is chosen.
// Smaller gains are within the error of predictions.
const worthwhile = 0.98

// planBeside decides which processor processes prompts while another one decodes (Agent.xpu sec. 4.3), where the
// workload asks for it.
//
// It lowers and predicts every pair of processors that may work at the same time. A pair is judged by a ratio, the mean
// over all buckets and batches. Its numerator is the time in which the pair processes a chunk of a prompt and decodes
// tokens meanwhile; its denominator is the time in which the plan's own programs do the same work by turns. The pair
// with the least ratio is taken, if that is below worthwhile and the plan still keeps all bounds.
func (s *session) planBeside(plan *planir.Plan) error {
	if !s.want.Beside {
		return nil
	}
	if why := s.whyNotBeside(s.onDevice(plan)); why != "" {
		s.warn("nothing is processed beside decoding: %s", why)
		return nil
	}

	best, least := plan, worthwhile
	refused := false // two processors that would get more done
	for _, prefill := range s.Procs {
		for _, decode := range s.Procs {
			if !s.mayWorkBeside(&prefill, &decode) {
				continue
			}
			candidate := *plan
			candidate.Beside = &planir.Beside{Prefill: prefill.Name, Decode: decode.Name}
			share, err := s.timeBeside(&candidate)
			if err != nil {
				return err
			}
			if share >= least || holdsMoreWeights(&candidate, plan) {
				continue
			}

			kept, err := s.keepsBoundsBeside(&candidate)
			if err != nil {
				return err
			}
			if !kept {
				refused = true
				continue
			}
			best, least = &candidate, share
		}
	}

	if best == plan && !refused {
		s.warn("nothing is processed beside decoding: no two processors get more done side by side than by turns")
	}
	*plan = *best
	return nil
}

// holdsMoreWeights reports whether a plan holds more of weights than another one: some of them twice.
func holdsMoreWeights(plan, other *planir.Plan) bool {
	memory := planir.MemoryOf(plan)
	return memory.Weights+memory.Prepacked > other.Memory.Weights+other.Memory.Prepacked
}

// keepsBoundsBeside reports whether a plan with programs side by side keeps all bounds, and warns if it does not. It
// sets the plan's memory.
func (s *session) keepsBoundsBeside(plan *planir.Plan) (bool, error) {
	pair := plan.Beside
	fits, err := s.fits(plan)
	if err != nil {
		return false, err
	}
	if !fits {
		s.warn("%s could process prompts while %s decodes, and the buffers for it break a bound",
			pair.Prefill, pair.Decode)
		return false, nil
	}
	if broken := s.exceededBeside(pair.Pairs); broken != nil {
		s.warn("%s could process prompts while %s decodes, and calls then take longer than %s permits",
			pair.Prefill, pair.Decode, broken.user)
		return false, nil
	}
	return true, nil
}

// fits reports whether a lowered plan keeps the limit of memory and all bounds. It sets the plan's memory, with the
// limit that it had.
func (s *session) fits(plan *planir.Plan) (bool, error) {
	memory := planir.MemoryOf(plan)
	memory.Max = plan.Memory.Max
	plan.Memory = &memory
	taken, err := s.amountsTaken(plan)
	if err != nil {
		return false, err
	}
	tooLarge := memory.Max > 0 && memory.Total > memory.Max
	return !tooLarge && len(s.brokenBounds(plan, taken)) == 0, nil
}

// exceededBeside returns the limit of time that a call breaks while another processor works, nil if there is none. The
// limit on calls of a program also holds for those of as many rows that one processor executes alone.
func (s *session) exceededBeside(pairs []planir.BesidePair) *bound {
	for _, pair := range pairs {
		prefill := s.callLimit(lower.ProgramName(pair.PrefillRows, false), pair.PrefillNS)
		decode := s.callLimit(lower.ProgramName(pair.DecodeRows, true), pair.DecodeNS)
		if broken := cmp.Or(prefill, decode); broken != nil {
			return broken
		}
	}
	return nil
}

// whyNotBeside returns why no two processors of a plan may work side by side, "" where some may. Requests must get the
// same bits, whichever programs process them.
func (s *session) whyNotBeside(plan *planir.Plan) string {
	alike, exact := plan.Precision()
	switch {
	case len(s.want.Buckets) == 0:
		return "the plan has no program for prompts"
	case s.measure() == problem.Memory:
		return "its programs have buffers of their own, and memory is to be least"
	case !alike:
		return "prefill and decode have products in unlike schemes, so that results depend on what processes a token"
	case plan.Unlike() != "":
		return plan.Unlike() + ", so that results depend on what processes a token"
	case !exact:
		return "the plan computes in floating point, so that results depend on what processes a token"
	case plan.ByCall():
		return "attention selects positions for rows together, or rows of experts are dropped, " +
			"so that results depend on what processes a token"
	}
	return ""
}

// mayWorkBeside reports whether one processor can process prompts while another one decodes: they share no core, the
// control processor's thread is free for the caller, and both take any number of rows, read the common weights and
// execute every operator.
func (s *session) mayWorkBeside(prefill, decode *planir.Proc) bool {
	control := s.in.SoC.Control

	if prefill.Name == decode.Name || prefill.Name == control || s.Thread(prefill.Name) == s.Thread(control) {
		return false
	}

	if slices.ContainsFunc(prefill.Cores, func(core int) bool { return slices.Contains(decode.Cores, core) }) {
		return false
	}

	for _, proc := range []*planir.Proc{prefill, decode} {
		if !proc.DynamicRows || proc.WeightsInArtifacts || !proc.WeightRanges {
			return false
		}
	}

	for _, rows := range s.want.Rows() {
		on := prefill.Name
		if s.decodes(rows) {
			on = decode.Name
		}
		posed, err := s.program(rows, s.assigned(rows))
		if err != nil {
			return false
		}
		if _, whole := posed.decisionsOn(on); !whole {
			return false
		}
	}
	return true
}

// timeBeside lowers a plan with its programs side by side and predicts each pair of them. It returns the mean ratio of
// their time to the time of the same work by turns.
func (s *session) timeBeside(plan *planir.Plan) (float64, error) {
	predicted := map[string]int64{}
	for i := range plan.Predictions {
		predicted[plan.Predictions[i].Program] = plan.Predictions[i].PlanNS
	}
	if err := s.lower(plan); err != nil {
		return 0, err
	}

	beside, on := plan.Beside, timeline.Machine{Memory: *s.prices.Memory()}
	phases := map[int][]timeline.Phase{} // of programs, by rows
	for i := range plan.Program.Beside {
		program := &plan.Program.Beside[i]
		of, err := s.workOf(plan, program)
		if err != nil {
			return 0, err
		}
		phases[program.Rows] = phasesInOrder(program, of)
	}

	sum, pairs := 0.0, 0
	for _, rows := range s.want.Buckets {
		for _, batch := range append([]int{1}, s.want.Batches...) {
			pair := planir.BesidePair{
				PrefillRows: rows, DecodeRows: batch,
				PrefillNS: price.Whole(timeline.Beside(&on, []string{beside.Prefill, beside.Decode},
					[][]timeline.Phase{phases[rows], phases[batch]})),
				DecodeNS: price.Whole(timeline.Beside(&on, []string{beside.Decode, beside.Prefill},
					[][]timeline.Phase{phases[batch], phases[rows]})),
			}
			beside.Pairs = append(beside.Pairs, pair)
			chunk, step := predicted[lower.ProgramName(rows, false)], predicted[lower.ProgramName(batch, true)]
			if pair.DecodeNS <= 0 || chunk <= 0 || step <= 0 {
				return 0, diag.New(diag.ClassInternal, "BUG: %d rows beside %d take %d and %d ns, by turns %d and %d",
					rows, batch, pair.PrefillNS, pair.DecodeNS, chunk, step)
			}

			tokens := float64(pair.PrefillNS) / float64(pair.DecodeNS) // iterations of decode meanwhile
			sum += float64(pair.PrefillNS) / (float64(chunk) + float64(tokens*float64(step)))
			pairs++
		}
	}
	return sum / float64(pairs), nil
}

// phasesInOrder returns what a program of one processor does, from the first section to the last, layer by layer.
func phasesInOrder(program *planir.PhaseProgram, done programWork) (out []timeline.Phase) {
	for i := range program.Sections {
		section := &program.Sections[i]
		does := assumeTimes(section, done.of, func(e price.Estimate) int64 { return e.NS })
		does.number, does.copied = i, done.copied
		for iteration := range max(1, section.Layers) {
			for lane := range section.Lanes {
				for step := range section.Lanes[lane].Steps {
					out = append(out, does.Phases(lane, step, iteration)...)
				}
			}
		}
	}
	return out
}
