package serving

import (
	"context"
	"slices"

	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/scheduler"
)

// Speculation without a second model: what followed the latest tokens when they came before is a draft of what follows
// now. One program call processes the next token and the draft; the sampler then draws from each row's logits as it
// would have, one token after the other, and stops where it draws something else than the draft. So the answer is that
// of plain decoding, greedy or sampled, and a right draft saves calls.

const (
	// longestMatch and shortestMatch are how many of the latest tokens have to have come before.
	longestMatch, shortestMatch = 4, 2
	// hopeful is the share of draft tokens that are expected to be right before any has been tried.
	hopeful = 0.7
	// memory is the weight of what was known before in the share that is expected after a draft.
	memory = 0.5
	// rarely is how many tokens a request decodes without a draft, once drafts do not pay, before it tries another.
	rarely = 32
)

// draft returns what followed the latest tokens of a sequence, next among them, when they came before: at most n tokens,
// or nil if they never did. The longest match counts, and of those the latest.
func draft(tokens []int32, next int32, n int) []int32 {
	all := append(slices.Clip(tokens), next)
	for length := min(longestMatch, len(all)-1); length >= shortestMatch; length-- {
		pattern := all[len(all)-length:]
		for at := len(all) - length - 1; at >= 0; at-- {
			if slices.Equal(all[at:at+length], pattern) {
				from := at + length
				return all[from:min(from+n, len(all))]
			}
		}
	}
	return nil
}

// pays is how many draft tokens, at most n, let a token cost the least time, when this share of them is expected to be
// right: 0 if plain decoding is faster. With k of them, (1-share^(k+1))/(1-share) tokens come of a call on average.
func (t *Times) pays(n int, share float64) int {
	best, least := 0, float64(t.Decode(1))
	tokens, right := 1.0, 1.0
	for k := 1; k <= n; k++ {
		right *= share
		tokens += right
		processed, ns := t.Chunk(k + 1)
		if processed < k+1 {
			break
		}
		if cost := (float64(ns) + float64(k)*float64(t.head)) / tokens; cost < least {
			best, least = k, cost
		}
	}
	return best
}

// drafted is the draft that a request is to try now; nil: none.
func (s *Server) drafted(answer *Answer) []int32 {
	if s.mostDraft == 0 || s.long > 0 {
		return nil
	}
	at := &s.slots[answer.slot]
	room := min(s.mostDraft, answer.request.MaxTokens-answer.usage.GeneratedTokens-1, s.context-len(at.tokens)-1)
	if room < 1 {
		return nil
	}
	share := answer.right
	if answer.plain++; answer.plain >= rarely {
		share = max(share, hopeful)
	}
	most := s.times.pays(room, share)
	if most == 0 {
		return nil
	}
	return draft(at.tokens, answer.next, most)
}

// speculate processes the next token of a request with a draft, and takes the tokens that come of it.
func (s *Server) speculate(ctx context.Context, answer *Answer, draft []int32) error {
	at := &s.slots[answer.slot]
	tokens := append([]int32{answer.next}, draft...)
	var drawn []Token
	var wrong error
	going := true // everything drawn so far is what the draft says
	err := s.machine.Do(ctx, func(control *executor.Control) error {
		_, err := control.Extend(answer.slot, tokens, executor.WantAll, func(row int, logits []float32) error {
			if !going {
				return nil
			}
			var token Token
			token, wrong = answer.draw(logits)
			drawn = append(drawn, token)
			going = wrong == nil && row < len(draft) && token.ID == draft[row]
			return nil
		})
		control.Truncate(answer.slot, len(at.tokens)+len(drawn))
		return err
	})
	if err != nil {
		return err
	}
	right := float64(len(drawn)-1) / float64(len(draft))
	answer.right, answer.plain = memory*answer.right+(1-memory)*right, 0
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.metrics.DraftTokens += int64(len(draft))
	s.metrics.RightTokens += int64(len(drawn) - 1)
	s.state.Decoded(s.now(), []scheduler.ID{answer.id})
	for i, token := range drawn {
		at.tokens = append(at.tokens, tokens[i])
		var refused error // of the last one
		if i == len(drawn)-1 {
			refused = wrong
		}
		if s.take(answer, token, refused); s.answers[answer.id] == nil {
			break // it has ended
		}
	}
	return nil
}
