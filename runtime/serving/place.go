package serving

import (
	"cmp"
	"slices"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

// place gives a request a slot that nobody uses: the one whose cache begins with the most tokens of the prompt, if that
// keeps at least half of the cache, or else the one that was left alone for the longest time. The last token of the
// prompt is processed in any case, because its logits are wanted.
func (s *Server) place(answer *Answer) {
	prompt := answer.request.Prompt
	best, bestReused := -1, 0
	for i := range s.slots {
		at := &s.slots[i]
		if at.user != nil {
			continue
		}
		reused := s.reusable(at.tokens, prompt)
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
	at.tokens = at.tokens[:bestReused]
	answer.slot, answer.done = best, bestReused
	answer.usage.PromptTokens, answer.usage.ReusedTokens = len(prompt), bestReused
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.state.Reused(answer.id, bestReused)
	s.metrics.PromptTokens += int64(len(prompt))
	s.metrics.ReusedTokens += int64(bestReused)
}

// reusable is how many tokens of a prompt the cache of a slot begins with, less the last one of the prompt. Where
// positions are rotated by the length of the whole prompt (LongRoPE), keys of a short prompt are not those of a long
// one.
func (s *Server) reusable(cached, prompt []int32) int {
	for _, long := range s.longs {
		if (len(cached) > long) != (len(prompt) > long) {
			return 0
		}
	}
	same := 0
	for same < min(len(cached), len(prompt)-1) && cached[same] == prompt[same] {
		same++
	}
	return same
}

// longs are the lengths at which a plan's rotations change.
func longs(plan *planir.Plan) (out []int) {
	for i := range plan.Program.Graphs {
		for _, node := range plan.Program.Graphs[i].Graph.Nodes {
			if node.Op.Kind == op.Rope && node.Op.LongFrom > 0 && !slices.Contains(out, node.Op.LongFrom) {
				out = append(out, node.Op.LongFrom)
			}
		}
	}
	return out
}
