package httpapi

import "slices"

// stopper cuts text at the first of several stop sequences, whatever pieces the text arrives in. It holds back the
// longest end of the text that may still become one of them, so that no part of a stop sequence is ever given out.
//
// Each sequence has the automaton of Knuth, Morris and Pratt: its state is the length of the longest end of the text
// that the sequence begins with. A byte costs constant time on average, however long the sequences are. Text and
// sequences are valid UTF-8, so that text is cut between characters only.
type stopper struct {
	stops  []string
	fail   [][]int // of every sequence and length: the longest proper end of that beginning that begins it, too
	states []int
	held   []byte
}

// newStopper returns a stopper for sequences that are not empty.
func newStopper(stops []string) *stopper {
	s := &stopper{stops: stops, states: make([]int, len(stops))}
	for _, stop := range stops {
		fail := make([]int, len(stop)+1)
		for at, border := 1, 0; at < len(stop); at++ {
			border = follow(stop, fail, border, stop[at])
			fail[at+1] = border
		}
		s.fail = append(s.fail, fail)
	}
	return s
}

// follow returns the state after another byte.
func follow(stop string, fail []int, state int, next byte) int {
	for state > 0 && stop[state] != next {
		state = fail[state]
	}
	if stop[state] == next {
		state++
	}
	return state
}

// push adds a piece of text and returns what may be given out. stopped says that a sequence is complete: what is
// returned is then the rest of the text before it. Of sequences that end at the same byte the longest counts.
func (s *stopper) push(piece string) (out string, stopped bool) {
	for i := range len(piece) {
		s.held = append(s.held, piece[i])
		cut := 0
		for n, stop := range s.stops {
			s.states[n] = follow(stop, s.fail[n], s.states[n], piece[i])
			if s.states[n] == len(stop) {
				cut = max(cut, len(stop))
			}
		}
		if cut > 0 {
			return string(s.held[:len(s.held)-cut]), true
		}
	}
	keep := 0
	if len(s.states) > 0 {
		keep = slices.Max(s.states)
	}
	out = string(s.held[:len(s.held)-keep])
	s.held = append(s.held[:0], s.held[len(s.held)-keep:]...)
	return out, false
}

// flush returns what is held back when no more text comes.
func (s *stopper) flush() string {
	out := string(s.held)
	s.held = s.held[:0]
	return out
}
