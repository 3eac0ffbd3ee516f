package serving

import (
	"cmp"

	"github.com/hetc/hetc/runtime/executor"
)

// place gives a request a free slot: the one whose cache begins with the most tokens of the prompt, if that
// keeps at least half of the cache, or else the one that was left alone for the longest time. Where the prefix that was
// computed ahead of time has more of them, it is copied there. The last token of the prompt is processed in any case,
// because its logits are wanted.
func (s *Server) place(control *executor.Control, answer *Answer) error {
	prompt := answer.request.Prompt
	best, bestReused := -1, 0
	for i := range s.slots {
		at := &s.slots[i]
		if at.user != nil {
			continue
		}
		reused := s.reusable(at, prompt)
		if 2*reused < len(at.tokens) {
			reused = 0
		}
		order := cmp.Compare(reused, bestReused)
		if best < 0 || order > 0 || order == 0 && at.used < s.slots[best].used {
			best, bestReused = i, reused
		}
	}
	s.uses++
	at := &s.slots[best] // the scheduler gives out no more slots than there are
	at.user, at.used = answer, s.uses
	answer.slot = best
	if known := s.reusable(&s.prefix, prompt); known > bestReused {
		if err := control.Restore(best, known, len(s.prefix.tokens), s.prefixCache); err != nil {
			return err
		}
		at.tokens, at.prefilled, at.prompt = append(at.tokens[:0], s.prefix.tokens[:known]...), known, s.prefix.prompt
		bestReused = known
	}
	at.tokens, at.prefilled = at.tokens[:bestReused], min(at.prefilled, bestReused)
	if bestReused == 0 {
		at.prompt = 0
	}
	at.prompt = max(at.prompt, len(prompt))
	answer.done = bestReused
	answer.usage.PromptTokens, answer.usage.ReusedTokens = len(prompt), bestReused
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.state.Reused(answer.id, bestReused)
	s.metrics.PromptTokens += int64(len(prompt))
	s.metrics.ReusedTokens += int64(bestReused)
	return nil
}

// reusable is how many tokens of a prompt the cache of a slot saves.
func (s *Server) reusable(at *slot, prompt []int32) int {
	return s.reuse.Tokens(at.tokens, at.prefilled, at.prompt, prompt)
}
