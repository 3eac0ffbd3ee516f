package scheduler

import (
	"cmp"
	"slices"
)

// How State decides: Next asks the policy, the policy picks a prompt or a batch, and prefill, begin or decode make the
// Action of it.

// Next decides what to do now. The caller does it and reports it (Prefilled, Decoded, End) before it calls Next again.
func (s *State) Next(now int64) Action {
	switch s.config.Policy {
	case FCFS:
		return s.inOrder()
	case Batching:
		return s.together()
	}
	return s.byClass(now)
}

// inOrder serves the request that came first until it ends.
func (s *State) inOrder() Action {
	first := earlier(s.first(Reactive), s.first(Proactive))
	if len(s.active) > 0 {
		first = earlier(s.active[0], first)
	}
	switch {
	case first == nil:
		return Action{}
	case !first.decodes():
		return s.prefill(first)
	}
	return s.decode([]*task{first})
}

// first returns the request of a class that has waited longest for a slot, nil where none waits.
func (s *State) first(class Class) *task {
	if at := s.waiting[class].Front(); at != nil {
		return at.Value.(*task)
	}
	return nil
}

// earlier returns the one of two requests that came first; either may be nil.
func earlier(a, b *task) *task {
	if a == nil || b != nil && b.arrived < a.arrived {
		return b
	}
	return a
}

// together is continuous batching: prompts in the order of arrival as long as there are slots, then one token of every
// request that has its prompt processed.
func (s *State) together() Action {
	all := group{s.active, earlier(s.first(Reactive), s.first(Proactive))}
	if next := s.prompt(all, s.config.Slots); next != nil {
		return s.prefill(next)
	}
	return s.decode(all.decoding())
}

// byClass is the policy Full. While a reactive prompt is processed, reactive decoding takes turns with its chunks, or
// goes on beside them. While reactive requests decode, proactive prompts are processed beside them, or get the time
// that Gap allows.
func (s *State) byClass(now int64) Action {
	reactive, proactive := s.groups(now)
	if s.beside != 0 {
		return s.meanwhile(reactive, proactive)
	}
	urgent := reactive.decoding()
	if next := s.prompt(reactive, s.config.Slots); next != nil {
		return s.urgentPrompt(next, urgent, proactive)
	}
	next := s.prompt(proactive, s.config.Slots-s.config.Reserved)
	if len(urgent) == 0 {
		return s.background(next, proactive.decoding())
	}
	return s.urgentDecoding(urgent, next, proactive)
}

// urgentPrompt processes a reactive prompt, beside decoding or by turns with the reactive requests that decode.
func (s *State) urgentPrompt(next *task, urgent []*task, proactive group) Action {
	if s.paysPrompt(next, len(urgent), len(proactive.decoding())) {
		return s.begin(next)
	}
	if s.turn && len(urgent) > 0 {
		return s.decode(s.piggyback(urgent, proactive))
	}
	return s.prefill(next)
}

// background does what proactive requests want while no reactive one is there: their next prompt (nil: none) or a
// batch.
func (s *State) background(next *task, batch []*task) Action {
	s.credit = 0
	switch {
	case next == nil:
		return s.decode(batch)
	case s.paysBackground(next, len(batch)):
		return s.begin(next)
	}
	return s.prefill(next)
}

// urgentDecoding decodes reactive requests, and processes a proactive prompt (nil: none) beside them, or by turns once
// they have left it enough time. Of a time t, decoding takes (1-Gap)*t and proactive prompts Gap*t. Credit does not
// grow while no request needs it.
func (s *State) urgentDecoding(urgent []*task, next *task, proactive group) Action {
	if next == nil {
		return s.decode(s.piggyback(urgent, proactive))
	}
	if s.paysUrgent(next, len(urgent)) {
		return s.begin(next)
	}
	if _, ns := s.config.ChunkNS(next.left); s.credit >= ns {
		s.credit -= ns
		return s.prefill(next)
	}
	batch := s.piggyback(urgent, proactive)
	s.credit += int64(float64(s.config.DecodeNS(len(batch))) * s.config.Gap / (1 - s.config.Gap))
	return s.decode(batch)
}

// group is requests that a decision treats alike.
type group struct {
	active []*task // with a slot, in the order of arrival
	next   *task   // that would get the next slot, nil where none waits
}

// groups returns the requests that go first, and those that take the remaining time.
func (s *State) groups(now int64) (reactive, proactive group) {
	for _, t := range s.active {
		if t.Class == Reactive || s.aged(now, t) {
			reactive.active = append(reactive.active, t)
		} else {
			proactive.active = append(proactive.active, t)
		}
	}
	reactive.next, proactive.next = s.first(Reactive), s.first(Proactive)
	if oldest := proactive.next; oldest != nil && s.aged(now, oldest) {
		// Whatever waits behind it gets no slot before it does.
		reactive.next, proactive.next = earlier(reactive.next, oldest), nil
	}
	return reactive, proactive
}

// aged reports whether a proactive request has waited so long that it counts as reactive until it moves on. A request
// without a slot does not get the reserved slots, unless no proactive request is running. Otherwise every request in
// the queue would grow old under overload, and reactive ones would wait for slots as if there were no classes.
func (s *State) aged(now int64, t *task) bool {
	if s.config.AgeNS == 0 || now-t.progress < s.config.AgeNS {
		return false
	}
	return t.slot() || s.running[Proactive] == 0 || s.used() < s.config.Slots-s.config.Reserved
}

// used returns the number of slots in use.
func (s *State) used() int { return s.running[Proactive] + s.running[Reactive] }

// pays reports whether the next chunk of a prompt is to be processed beside the decoding of so many requests. It must
// be possible, and take less time than the alternative: a call of all processors for the chunk, plus otherwise for each
// iteration whose tokens are decoded meanwhile.
func (s *State) pays(next *task, batch int, otherwise int64) bool {
	if s.config.Beside == nil || batch == 0 {
		return false
	}
	side, possible := s.config.Beside(next.left, batch)
	if !possible || side.DecodeNS <= 0 {
		return false
	}
	tokens, ns := s.config.ChunkNS(next.left)
	turns := float64(ns)*float64(side.Tokens)/float64(tokens) +
		float64(otherwise)*float64(side.ChunkNS)/float64(side.DecodeNS)
	return float64(side.ChunkNS) < turns
}

// paysBackground does what pays does beside the decoding of background requests. They could wait for the prompt and be
// decoded together with it. Their tokens then cost what they add to an iteration that runs for the prompt's request
// anyway.
func (s *State) paysBackground(next *task, batch int) bool {
	return s.pays(next, batch, s.config.DecodeNS(batch+1)-s.config.DecodeNS(1))
}

// paysUrgent does what pays does beside the decoding of reactive requests, which does not wait for anything, and may
// become slower as far as the slack allows.
func (s *State) paysUrgent(next *task, batch int) bool {
	alone := s.config.DecodeNS(batch)
	if !s.pays(next, batch, alone) {
		return false
	}
	side, _ := s.config.Beside(next.left, batch)
	return float64(side.DecodeNS) <= float64(alone)*(1+s.config.Slack)
}

// paysPrompt is Algorithm 1 of Agent.xpu for a reactive prompt, with the variants of a chunk that a plan has: while
// nothing decodes all processors share the chunk; while requests decode, one processor has it by itself, where that
// gets more done and the chunk ends, at the latest, only a slack later than all processors by turns with decoding would
// end it.
func (s *State) paysPrompt(next *task, urgent, background int) bool {
	// Background requests do not decode between the chunks of a reactive prompt.
	batch, iteration := background, int64(0)
	if urgent > 0 {
		batch, iteration = urgent, s.config.DecodeNS(urgent)
	}
	if batch == 0 || !s.pays(next, batch, s.config.DecodeNS(batch)) {
		return false
	}
	side, _ := s.config.Beside(next.left, batch)
	tokens, ns := s.config.ChunkNS(next.left)
	turns := float64(ns+iteration) * float64(side.Tokens) / float64(tokens)
	return float64(side.ChunkNS) <= turns*(1+s.config.Slack)
}

// begin returns the action that begins with the next chunk of a request's prompt.
func (s *State) begin(t *task) Action {
	s.prefill(t)
	s.beside = t.ID
	s.counts.Beside++
	return Action{Begin, s.ids}
}

// meanwhile returns what to do beside a chunk: decode, unless that would only delay a reactive prompt, which waits for
// the chunk's end.
func (s *State) meanwhile(reactive, proactive group) Action {
	batch := reactive.decoding()
	switch {
	case len(batch) > 0:
		batch = s.piggyback(batch, proactive)
	case s.prompt(reactive, s.config.Slots) == nil:
		batch = proactive.decoding()
	}
	if len(batch) == 0 {
		s.ids = append(s.ids[:0], s.beside)
		return Action{Await, s.ids}
	}
	return s.decode(batch)
}

// prompt returns the request of a group whose prompt is to be processed next: the one that came first, if there is a
// slot for it. slots is how many may be in use with it.
func (s *State) prompt(among group, slots int) *task {
	var begun *task
	at := slices.IndexFunc(among.active, func(t *task) bool { return t.left > 0 && t.ID != s.beside })
	if at >= 0 {
		begun = among.active[at]
	}
	if s.used() >= slots {
		return begun
	}
	return earlier(begun, among.next)
}

// decoding returns those of the requests whose prompts have been processed.
func (g group) decoding() (out []*task) {
	for _, t := range g.active {
		if t.decodes() {
			out = append(out, t)
		}
	}
	return out
}

// piggyback adds proactive requests to reactive ones that decode, as many as the slack allows, the shortest first: a
// long sequence makes the iteration slower for all.
// RATIONALE: What may background work take from reactive requests?
func (s *State) piggyback(urgent []*task, proactive group) []*task {
	batch := slices.Clip(urgent)
	limit := float64(s.config.DecodeNS(len(urgent))) * (1 + s.config.Slack)
	others := proactive.decoding()
	slices.SortStableFunc(others, func(a, b *task) int { return cmp.Compare(a.length, b.length) })
	for _, t := range others {
		if float64(s.config.DecodeNS(len(batch)+1)) > limit {
			break
		}
		batch = append(batch, t)
	}
	return batch
}

// prefill returns the action that processes the next chunk of a request's prompt.
func (s *State) prefill(chosen *task) Action {
	interrupted := s.tasks[s.latest]
	if interrupted != nil && interrupted != chosen && interrupted.left > 0 {
		s.counts.Preemptions++
	}
	s.latest = chosen.ID
	if !chosen.slot() {
		s.waiting[chosen.Class].Remove(chosen.waits)
		chosen.waits = nil
		s.running[chosen.Class]++
		at, _ := slices.BinarySearchFunc(s.active, chosen.arrived, func(other *task, arrived int64) int {
			return cmp.Compare(other.arrived, arrived)
		})
		s.active = slices.Insert(s.active, at, chosen)
	}
	s.ids = append(s.ids[:0], chosen.ID)
	return Action{Prefill, s.ids}
}

// decode returns the action that decodes a token of each of these requests; there is nothing to do without any.
func (s *State) decode(batch []*task) Action {
	if len(batch) == 0 {
		return Action{}
	}
	s.ids = s.ids[:0]
	for _, t := range batch {
		s.ids = append(s.ids, t.ID)
	}
	return Action{Decode, s.ids}
}
