//go:build !linux

package park

import "sync"

// Spot is where one thread at a time sleeps. Its zero value is ready to be used, and must not be copied then.
type Spot struct {
	once  sync.Once
	woken chan struct{} // holds a wake-up that no Sleep has taken yet
}

// ready makes the channel.
func (s *Spot) ready() chan struct{} {
	s.once.Do(func() { s.woken = make(chan struct{}, 1) })
	return s.woken
}

// Sleep returns after a Wake that no earlier Sleep has returned for: at once where there was one.
func (s *Spot) Sleep() { <-s.ready() }

// Wake ends the Sleep that is under way, or the next one. Several before a Sleep count as one.
func (s *Spot) Wake() {
	select {
	case s.ready() <- struct{}{}:
	default:
	}
}
