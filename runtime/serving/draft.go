package serving

import (
	"time"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/scheduler"
)

// Speculation without a second model: what followed the latest tokens when they came before is a draft of what follows
// now. One program call processes the next token and the draft; the sampler then draws from each row's logits as it
// would have, one token after the other, and stops where it draws something else than the draft. So the answer is that
// of plain decoding, greedy or sampled, and a right draft saves calls.
//
// How many tokens a draft has follows from the plan, which predicts what verifying them takes, and from how often
// guesses have been right: at first as often as the plan says, then as often as in this answer. Plainly decoded tokens
// count too, since what the draft would have been is known without trying it.

const (
	// A match has at least shortestMatch tokens. Beyond longestMatch a longer one counts no more.
	longestMatch, shortestMatch = 4, 2
	// The plan's acceptance counts as much as prior guesses. With every new guess the weight of older ones is
	// multiplied by keeps.
	prior, keeps = 4, 0.95
	// stake is the share of the time of plain decoding that drafts may lose, whatever the text.
	// RATIONALE: Why are drafts taken from the text itself, and how do they never lose more than 2 %?
	stake = 0.02
	// unplanned is the acceptance of drafts that a plan says nothing of.
	unplanned = 0.7
)

// draft returns what followed the latest tokens of a sequence, of which next is the last, where the same tokens came
// before: at most n tokens, nil if they never did. The longest match counts, and of several the latest.
func draft(tokens []int32, next int32, n int) []int32 {
	last := len(tokens) // the position of next
	at := func(i int) int32 {
		if i == last {
			return next
		}
		return tokens[i]
	}
	longest, from := shortestMatch-1, -1
	for end := last - 1; end >= 0 && longest < longestMatch; end-- {
		if tokens[end] != next {
			continue
		}
		length := 1
		for length < longestMatch && length <= end && tokens[end-length] == tokens[last-length] {
			length++
		}
		if length > longest {
			longest, from = length, end+1
		}
	}
	if from < 0 {
		return nil
	}
	out := make([]int32, 0, n)
	for i := from; i <= last && len(out) < n; i++ {
		out = append(out, at(i))
	}
	return out
}

// guesses keep the score of one request's guesses.
type guesses struct {
	right, wrong float64 // how many, weighted by keeps
	// credit is the time in ns that drafts have saved, plus the stake of plain decoding. A draft that could cost more
	// is not tried.
	credit  float64
	plainNS float64 // time of the latest call that decoded one token; 0: none has run
}

// length returns how many tokens to guess now, at most room.
func (g *guesses) length(drafts *planir.Drafts, room int) int {
	if g.plainNS == 0 || drafts.PlainNS <= 0 {
		return 0
	}
	acceptance := (prior*drafts.Acceptance + g.right) / (prior + g.right + g.wrong)
	k, _ := drafts.Best(acceptance, room)
	// All of the draft may be wrong: the call then gives one token, as plain decoding would have.
	for ; k > 0; k-- {
		lost := g.plainNS * (float64(drafts.VerifyNS[k-1])/float64(drafts.PlainNS) - 1)
		if lost <= g.credit {
			break
		}
	}
	return k
}

// count counts guesses: right ones, and whether the one after them was wrong.
func (g *guesses) count(right int, wrong bool) {
	for range right {
		g.right, g.wrong = g.right*keeps+1, g.wrong*keeps
	}
	if wrong {
		g.right, g.wrong = g.right*keeps, g.wrong*keeps+1
	}
}

// decoded counts a call of ns that decoded a token without a draft.
func (g *guesses) decoded(ns int64) {
	g.plainNS = float64(ns)
	g.credit += stake * float64(ns)
}

// verified counts a call of ns that verified a draft and gave this many tokens.
func (g *guesses) verified(ns int64, tokens int) {
	g.credit += (1+stake)*g.plainNS*float64(tokens) - float64(ns)
}

// draftsOf returns the lengths and times of drafts, of at most most tokens; below 0: as the plan says. Where a number
// is asked for and the plan says nothing of drafts, their times are interpolated between those of its programs. nil:
// nothing is guessed.
func (t *Times) draftsOf(most int) *planir.Drafts {
	planned := t.plan.Drafts
	switch {
	case most == 0 || most < 0 && (planned == nil || planned.Tokens == 0):
		return nil
	case most < 0:
		return planned
	case !t.plan.Verifies(1):
		return nil
	case planned != nil:
		out := *planned
		out.VerifyNS = out.VerifyNS[:min(most, len(out.VerifyNS))]
		return &out
	}
	out := &planir.Drafts{Acceptance: unplanned, PlainNS: t.Decode(1)}
	for k := 1; k <= min(most, planir.MaxDraft); k++ {
		if !t.plan.Verifies(k + 1) {
			break
		}
		_, ns := t.Chunk(k + 1)
		out.VerifyNS = append(out.VerifyNS, ns+int64(k)*t.head)
	}
	return out
}

// Guesses reports whether drafts are tried. They are not where a program with several rows would not compute the bits of
// plain decoding.
func (s *Server) Guesses() bool { return s.drafts != nil && len(s.drafts.VerifyNS) > 0 }

// guess returns what may come next of a request, at most as many tokens as its text has room for; nil: nothing.
func (s *Server) guess(answer *Answer) []int32 {
	if !s.guessing {
		return nil
	}
	at := &s.slots[answer.slot]
	room := min(answer.request.MaxTokens-answer.usage.GeneratedTokens-1, s.context-len(at.cached.Tokens)-1)
	if room < 1 {
		return nil
	}
	return draft(at.cached.Tokens, answer.next, min(room, planir.MaxDraft))
}

// speculate processes the next token of a request with a draft, and takes the tokens that come of it.
func (s *Server) speculate(control *executor.Control, answer *Answer, draft []int32) error {
	at := &s.slots[answer.slot]
	tokens := append([]int32{answer.next}, draft...)
	var drawn []Token
	var wrong error
	going := true // everything drawn so far is what the draft says
	began := time.Now()
	took, err := control.Extend(answer.slot, tokens, executor.WantAll, func(row int, logits []float32) error {
		if !going {
			return nil
		}
		var token Token
		token, wrong = answer.draw(logits)
		drawn = append(drawn, token)
		going = wrong == nil && row < len(draft) && token.ID == draft[row]
		return nil
	})
	control.Truncate(answer.slot, len(at.cached.Tokens)+len(drawn))
	if err != nil {
		return err
	}
	s.called(Call{Sequences: 1, Draft: len(draft), NS: took.NS})
	answer.guesses.verified(int64(time.Since(began)), len(drawn))
	right := min(len(drawn)-1, len(draft))
	answer.guesses.count(right, right < len(draft))
	s.mutex.Lock()
	defer s.mutex.Unlock()
	answer.usage.Guessed += min(len(drawn), len(draft))
	answer.usage.Right += right
	s.metrics.DraftTokens += int64(len(draft))
	s.metrics.RightTokens += int64(right)
	s.state.Decoded(s.now(), []scheduler.ID{answer.id})
	for i, token := range drawn {
		at.cached.Tokens = append(at.cached.Tokens, tokens[i])
		var refused error // of the last one
		if i == len(drawn)-1 {
			refused = wrong
		}
		if s.deliver(answer, token, refused); s.answers[answer.id] == nil {
			break // it has ended
		}
	}
	return nil
}
