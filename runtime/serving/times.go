package serving

import (
	"cmp"
	"slices"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/scheduler"
)

// Times are what a plan predicts of its programs.
type Times struct {
	plan   *planir.Plan
	byName map[string]int64 // ns of a program
	decode []batchTime      // in ascending order of sequences
	head   int64            // ns of what runs once for every row whose logits are wanted
}

// batchTime is a program that decodes up to that many sequences together.
type batchTime struct {
	sequences int
	ns        int64
	dynamic   bool // fewer sequences take less
	phase     *planir.PhaseProgram
}

// TimesOf reads a plan's predictions.
func TimesOf(plan *planir.Plan) *Times {
	out := &Times{plan: plan, byName: map[string]int64{}}
	for i := range plan.Predictions {
		out.byName[plan.Predictions[i].Program] = plan.Predictions[i].PlanNS
	}
	for i := range plan.Program.Programs {
		phase := &plan.Program.Programs[i]
		if phase.Rows == 1 || phase.Batch() {
			out.decode = append(out.decode, batchTime{phase.Rows, out.byName[phase.Name], out.dynamic(phase), phase})
		}
		if phase.Rows == 1 {
			out.head = headNS(plan, phase)
		}
	}
	slices.SortFunc(out.decode, func(a, b batchTime) int { return cmp.Compare(a.sequences, b.sequences) })
	return out
}

// Decode returns the time of an iteration that decodes one token of each of n sequences, in ns. Where no processor
// pads, fewer sequences than a program has take less: the time is interpolated linearly from the next smaller program.
func (t *Times) Decode(n int) int64 {
	for i, program := range t.decode {
		if program.sequences < n {
			continue
		}
		if i == 0 || program.sequences == n || !program.dynamic {
			return program.ns
		}
		smaller := t.decode[i-1]
		part := float64(n-smaller.sequences) / float64(program.sequences-smaller.sequences)
		return smaller.ns + int64(float64(program.ns-smaller.ns)*part)
	}
	return 0
}

// Chunk returns how many of n tokens of a prompt one program call processes, and how long that takes, in ns. Processors
// that do not pad take less for fewer rows than the program has: the time is interpolated linearly between one row and
// all of them. Logits are computed of the last of the n tokens only; a call without it takes less by that.
func (t *Times) Chunk(n int) (tokens int, ns int64) {
	program := t.ChunkProgram(n)
	if program == nil {
		return n, 0
	}
	whole := t.byName[program.Name]
	switch {
	case n > program.Rows:
		return program.Rows, whole - headNS(t.plan, program)
	case n < program.Rows && t.dynamic(program):
		one := min(t.Decode(1), whole)
		return n, one + int64(float64(whole-one)*float64(n-1)/float64(program.Rows-1))
	}
	return n, whole
}

// ChunkProgram returns the program that processes the first of n tokens of a prompt, nil if there is none.
func (t *Times) ChunkProgram(n int) *planir.PhaseProgram {
	for _, choice := range t.plan.Program.Decider {
		if n < choice.Min || n > choice.Max {
			continue
		}
		for _, program := range t.plan.Program.All() {
			if program.Name == choice.Program {
				return program
			}
		}
	}
	return nil
}

// DecodeProgram returns the program that decodes a token of each of n sequences, nil if there is none.
func (t *Times) DecodeProgram(n int) *planir.PhaseProgram {
	for _, program := range t.decode {
		if program.sequences >= n {
			return program.phase
		}
	}
	return nil
}

// Of returns the time of a program, in ns.
func (t *Times) Of(program *planir.PhaseProgram) int64 { return t.byName[program.Name] }

// Beside returns what the plan predicts of the next chunk of n tokens of a prompt beside the decoding of batch
// sequences; false where the plan has nothing for that. A single token has no program of its own there.
func (t *Times) Beside(n, batch int) (scheduler.Side, bool) {
	beside := t.plan.Beside
	if beside == nil || n < 2 {
		return scheduler.Side{}, false
	}
	var best *planir.BesidePair
	for i := range beside.Pairs {
		pair := &beside.Pairs[i]
		if pair.DecodeRows < batch || best != nil && best.PrefillRows >= n && pair.PrefillRows > best.PrefillRows {
			continue
		}
		if best == nil || pair.PrefillRows > best.PrefillRows || pair.DecodeRows < best.DecodeRows {
			best = pair
		}
	}
	if best == nil {
		return scheduler.Side{}, false
	}
	// Neither processor pads, so times are interpolated linearly between one row and all of them.
	side := scheduler.Side{Tokens: min(n, best.PrefillRows), ChunkNS: best.PrefillNS, AloneNS: t.alone(best.PrefillRows),
		DecodeNS: best.DecodeNS}
	part := float64(side.Tokens) / float64(best.PrefillRows)
	one := min(best.DecodeNS, side.ChunkNS, side.AloneNS)
	side.ChunkNS = one + int64(float64(side.ChunkNS-one)*part)
	side.AloneNS = one + int64(float64(side.AloneNS-one)*part)
	return side, true
}

// Meanwhile is Beside for a chunk that was begun. Where the plan has no pair for the sequences that decode by now, an
// iteration takes at least its time alone.
func (t *Times) Meanwhile(n, batch int) scheduler.Side {
	side, known := t.Beside(n, batch)
	if !known {
		side, _ = t.Beside(n, 1)
		side.DecodeNS = max(side.DecodeNS, t.Decode(batch))
	}
	return side
}

// Pair names the processors that process prompts and decode beside each other, "" where none do.
func (t *Times) Pair() (prefill, decode string) {
	if t.plan.Beside == nil {
		return "", ""
	}
	return t.plan.Beside.Prefill, t.plan.Beside.Decode
}

// alone returns the time of a program of prefill, in ns, on the processor that processes prompts beside decoding, while
// nothing decodes.
func (t *Times) alone(rows int) int64 {
	for i := range t.plan.Program.Programs {
		program := &t.plan.Program.Programs[i]
		if program.Rows != rows || program.Phase != "prefill" {
			continue
		}
		for j := range t.plan.Predictions {
			if prediction := &t.plan.Predictions[j]; prediction.Program == program.Name {
				for _, single := range prediction.Singles {
					if single.Proc == t.plan.Beside.Prefill {
						return single.NS
					}
				}
				return prediction.PlanNS
			}
		}
	}
	return 0
}

// dynamic reports whether every processor that works in a program computes just the rows of a call.
func (t *Times) dynamic(program *planir.PhaseProgram) bool {
	for i := range program.Sections {
		for _, lane := range program.Sections[i].Lanes {
			pads := slices.ContainsFunc(t.plan.Procs, func(proc planir.Proc) bool {
				return proc.Name == lane.Proc && !proc.DynamicRows
			})
			if pads && len(lane.Steps) > 0 {
				return false
			}
		}
	}
	return true
}

// headNS returns the predicted time of a program's sections that compute logits.
func headNS(plan *planir.Plan, phase *planir.PhaseProgram) (total int64) {
	for i := range plan.Predictions {
		if plan.Predictions[i].Program != phase.Name {
			continue
		}
		for _, predicted := range plan.Predictions[i].Sections {
			if slices.ContainsFunc(phase.Sections, func(section planir.Section) bool {
				return section.Logits && section.Name == predicted.Section
			}) {
				total += predicted.NS
			}
		}
	}
	return total
}
