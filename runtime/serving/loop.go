package serving

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/scheduler"
)

// Run answers requests until ctx ends, which cancels all of them, or until Drain has been called and the last one has
// ended. An error of a processor ends all requests with it. Run is called once.
func (s *Server) Run(ctx context.Context) error {
	err := s.loop(ctx)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.draining = true
	for _, answer := range s.answers {
		if answer.err = err; err == nil || errors.Is(err, ctx.Err()) {
			answer.err, answer.reason = nil, Cancelled
		}
		s.finish(answer)
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// loop does what the scheduler decides, program call by program call. While there is something to do it stays on the
// machine's control thread, because handing over each call would cost as much as a step of a small model.
func (s *Server) loop(ctx context.Context) error {
	batch := make([]*Answer, 0, len(s.slots))
	for ctx.Err() == nil {
		s.clock.Boundary()
		action, over := s.decide(&batch)
		if over {
			return nil
		}
		if action == scheduler.Idle {
			s.tally.idle = true
			s.clock.Idle(ctx)
			continue
		}
		err := s.machine.Do(ctx, func(control *executor.Control) error {
			for !over && action != scheduler.Idle && ctx.Err() == nil {
				if err := s.act(control, action, batch); err != nil {
					return err
				}
				s.clock.Boundary()
				action, over = s.decide(&batch)
			}
			return nil
		})
		if err != nil || over {
			return err
		}
	}
	return ctx.Err()
}

// act does what the scheduler decided, for the answers of batch.
func (s *Server) act(control *executor.Control, action scheduler.Kind, batch []*Answer) (err error) {
	began := s.now()
	switch action {
	case scheduler.Prefill:
		err = s.prefill(control, batch[0])
	case scheduler.Begin:
		err = s.begin(control, batch[0])
	case scheduler.Await:
		err = s.await(control)
	default:
		err = s.decode(control, batch)
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	now := s.now()
	s.metrics.BusyNS += now - began
	if s.tally.ends(now); action == scheduler.Await {
		s.tally.rests(now)
	}
	return err
}

// decide ends requests whose readers want no more. Then it asks the scheduler what to do next, and for which answers.
// over says that no request is left and none is accepted.
func (s *Server) decide(batch *[]*Answer) (action scheduler.Kind, over bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, answer := range s.answers {
		if answer.wantEnd == "" || answer == s.beside { // the slot of the latter is being written
			continue
		}
		if answer.reason = answer.wantEnd; answer.reason == Cancelled {
			s.metrics.Cancelled[answer.request.Class]++
		}
		s.finish(answer)
	}
	next := s.state.Next(s.now())
	if next.Kind != scheduler.Idle {
		s.tally.begins(s.earliest())
	}
	*batch = (*batch)[:0]
	for _, id := range next.Requests {
		*batch = append(*batch, s.answers[id])
	}
	s.wakeReaders(next)
	return next.Kind, next.Kind == scheduler.Idle && s.draining && len(s.answers) == 0
}

// earliest is when the first of the requests that are there arrived. The mutex is held.
func (s *Server) earliest() int64 {
	first := int64(math.MaxInt64)
	for _, answer := range s.answers {
		first = min(first, answer.arrived)
	}
	return first
}

// finish ends a request and frees its slot, which keeps its cache until another request needs it. The mutex is held.
func (s *Server) finish(answer *Answer) {
	if answer.slot >= 0 {
		s.slots[answer.slot].user = nil
	}
	if s.ended != nil && answer.usage.GeneratedTokens > 0 {
		s.ended(Ended{answer.arrived, answer.request.Class, answer.usage})
	}
	s.state.End(answer.id)
	delete(s.answers, answer.id)
	answer.ended = true
	answer.wake()
}

// prefill processes the next chunk of a prompt, and samples the first token when that was the last one.
func (s *Server) prefill(control *executor.Control, answer *Answer) error {
	prompt := answer.request.Prompt
	if answer.slot < 0 {
		if err := s.place(control, answer); err != nil {
			return err
		}
	}
	var drawn Token
	var wrong error
	control.Truncate(answer.slot, answer.done)
	count, took, err := control.Chunk(answer.slot, prompt[answer.done:], executor.WantLast,
		func(_ int, logits []float32) error {
			drawn, wrong = answer.draw(logits)
			return nil
		})
	if err != nil {
		return err
	}
	s.called(Call{Tokens: count, Rest: len(prompt) - answer.done, NS: took.NS})
	s.prefilled(answer, count, drawn, wrong)
	return nil
}

// prefilled notes that the next count tokens of a prompt are in the cache. Where these were the last ones, drawn is the
// first token of the answer, and wrong says why none could be drawn.
func (s *Server) prefilled(answer *Answer, count int, drawn Token, wrong error) {
	prompt, at := answer.request.Prompt, &s.slots[answer.slot]
	at.cached.Extend(s.reuse.Call(len(prompt)-answer.done).Program, prompt[answer.done:answer.done+count])
	answer.done += count
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.state.Prefilled(s.now(), answer.id, count)
	if answer.done == len(prompt) {
		s.deliver(answer, drawn, wrong)
	}
}

// begin has a processor begin with the next chunk of a prompt.
func (s *Server) begin(control *executor.Control, answer *Answer) error {
	if answer.slot < 0 {
		if err := s.place(control, answer); err != nil {
			return err
		}
	}
	rest := answer.request.Prompt[answer.done:]
	if len(rest) < 2 { // the cache had all but the last token, which is no chunk
		s.mutex.Lock()
		s.state.Alone(answer.id)
		s.mutex.Unlock()
		return s.prefill(control, answer)
	}
	control.Truncate(answer.slot, answer.done)
	count, err := control.Begin(answer.slot, rest, true)
	if err != nil {
		return err
	}
	s.beside, s.besideCount = answer, count
	return nil
}

// await waits for the end of the chunk that was begun, and samples the first token when it was the prompt's last one.
func (s *Server) await(control *executor.Control) error {
	answer := s.beside
	var drawn Token
	var wrong error
	_, err := control.Await(func(logits []float32) error {
		drawn, wrong = answer.draw(logits)
		return nil
	})
	if err != nil {
		return err
	}
	s.beside = nil
	s.prefilled(answer, s.besideCount, drawn, wrong)
	return nil
}

// decode decodes a token of each of the requests together, or several of one that has a draft.
func (s *Server) decode(control *executor.Control, batch []*Answer) error {
	var guess []int32 // of a request that decodes alone
	if len(batch) == 1 && s.beside == nil {
		if guess = s.guess(batch[0]); s.drafts != nil && guess != nil {
			if length := batch[0].guesses.length(s.drafts, len(guess)); length > 0 {
				return s.speculate(control, batch[0], guess[:length])
			}
		}
	}
	began := time.Now()
	tokens := make([]executor.Token, len(batch))
	ids := make([]scheduler.ID, len(batch))
	for i, answer := range batch {
		tokens[i], ids[i] = executor.Token{Sequence: answer.slot, ID: answer.next}, answer.id
	}
	drawn, wrong := make([]Token, len(batch)), make([]error, len(batch))
	// beside: another processor processes a chunk meanwhile, the first of rest tokens
	step, beside, rest := control.Step, s.beside != nil, 0
	if beside {
		step, rest = control.StepBeside, len(s.beside.request.Prompt)-s.beside.done
	}
	took, err := step(tokens, func(i int, logits []float32) error {
		drawn[i], wrong[i] = batch[i].draw(logits)
		return nil
	})
	if err != nil {
		return err
	}
	s.called(Call{Sequences: len(batch), Beside: beside, Rest: rest, NS: took.NS})
	if len(batch) == 1 && !beside {
		s.compare(batch[0], guess, drawn[0], int64(time.Since(began)))
	}
	s.decoded(batch, tokens, ids, drawn, wrong)
	if beside && control.Ended() {
		return s.await(control)
	}
	return nil
}

// compare counts whether a guess would have been right for a token that was decoded without a draft. ns is the time of
// the call.
func (s *Server) compare(answer *Answer, guess []int32, drawn Token, ns int64) {
	answer.guesses.decoded(ns)
	if len(guess) == 0 {
		return
	}
	right := 0
	if drawn.ID == guess[0] {
		right = 1
	}
	answer.guesses.count(right, right == 0)
	answer.usage.Guessed++
	answer.usage.Right += right
}

// decoded gives requests the tokens that were drawn for them.
func (s *Server) decoded(batch []*Answer, tokens []executor.Token, ids []scheduler.ID, drawn []Token, wrong []error) {
	for _, token := range tokens {
		at := &s.slots[token.Sequence]
		at.cached.Tokens = append(at.cached.Tokens, token.ID)
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.state.Decoded(s.now(), ids)
	for i, answer := range batch {
		s.deliver(answer, drawn[i], wrong[i])
	}
}

// deliver gives a request the token that was drawn for it, and ends the request where that was the last one. wrong says
// why no token could be drawn. The mutex is held.
func (s *Server) deliver(answer *Answer, drawn Token, wrong error) {
	switch {
	case wrong != nil:
		answer.err = wrong
	case !answer.request.IgnoreEnd && slices.Contains(s.end, int(drawn.ID)):
		answer.reason = Stop
	default:
		drawn.AfterNS = s.now() - answer.arrived
		answer.add(drawn)
		answer.next = drawn.ID
		answer.usage.GeneratedTokens++
		s.metrics.GeneratedTokens++
		switch {
		case answer.usage.GeneratedTokens == answer.request.MaxTokens:
			answer.reason = Length
		case len(s.slots[answer.slot].cached.Tokens) >= s.context:
			answer.reason = Full
		default:
			return
		}
	}
	s.finish(answer)
}

// longestSilence is how long a token may wait, by the plan's times, until its reader is woken, in ns. A reader that
// wakes up needs a core, on which a processor may be working. Where steps take less than this, a reader is woken for
// several tokens at a time. Nobody reads that fast.
const longestSilence = 1e6

// wakeReaders wakes the readers of tokens that are there. A reader sleeps on while the next call decodes its request
// and ends before the longest silence is over. First and last tokens never wait. The mutex is held.
func (s *Server) wakeReaders(next scheduler.Action) {
	end := int64(math.MaxInt64) // of the next call
	if next.Kind == scheduler.Decode {
		end = s.now() + s.times.Decode(len(next.Requests))
	}
	for _, answer := range s.answers {
		if answer.silent == 0 {
			continue
		}
		first := answer.silent == answer.usage.GeneratedTokens
		goesOn := slices.Contains(next.Requests, answer.id)
		if first || !goesOn || end-answer.since > longestSilence {
			answer.wake()
		}
	}
}
