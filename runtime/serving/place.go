package serving

import (
	"cmp"
	"slices"

	"github.com/hetc/hetc/planir/prefix"
	"github.com/hetc/hetc/runtime/executor"
)

// place gives a request a free slot. It takes the slot whose cache shares the most tokens with the beginning of the
// prompt, among those that would keep at least half of their cache. If there is none, it takes the slot that was unused
// for the longest time, and reuses what that shares with the prompt: the rest is lost anyway. Where the prefix that was
// computed ahead of time shares more, it is copied into the slot. The last token of the prompt is processed in any
// case, because its logits are needed.
func (s *Server) place(control *executor.Control, answer *Answer) error {
	prompt := answer.request.Prompt
	best, bestReused := -1, 0
	for i := range s.slots {
		at := &s.slots[i]
		if at.user != nil {
			continue
		}
		reused := s.reuse.Tokens(at.cached, prompt)
		if 2*reused < len(at.cached.Tokens) {
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
	bestReused = s.reuse.Tokens(at.cached, prompt)
	if known := s.reuse.Tokens(s.prefix, prompt); known > bestReused {
		if err := control.Restore(best, known, len(s.prefix.Tokens), s.prefixCache); err != nil {
			return err
		}
		at.cached = prefix.Cached{Tokens: append(at.cached.Tokens[:0], s.prefix.Tokens...), Prefilled: s.prefix.Prefilled,
			Longest: s.prefix.Longest, Calls: slices.Clone(s.prefix.Calls)}
		bestReused = known
	}
	at.cached.Keep(bestReused)
	at.cached.Longest = max(at.cached.Longest, len(prompt))
	answer.done = bestReused
	answer.usage.PromptTokens, answer.usage.ReusedTokens = len(prompt), bestReused
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.state.Reused(answer.id, bestReused)
	s.metrics.PromptTokens += int64(len(prompt))
	s.metrics.ReusedTokens += int64(bestReused)
	return nil
}
