package executor

import (
	"context"
	"sync"
)

// prefetch prepares weights while other work goes on: packs that are about to be loaded, in order. A thread that loads
// a pack waits only for that one.
type prefetch struct {
	after  *prefetch // what is prepared before; nil: nothing
	number map[packKey]int
	stop   func()
	done   chan struct{} // closed when nothing is prepared any more

	mu      sync.Mutex
	moved   sync.Cond
	through int // packs that are prepared, from the first on
	over    bool
}

// startPrefetch begins to prepare parts, after those of another prefetch have ended, which may be nil.
func (m *Machine) startPrefetch(
	ctx context.Context, source Ahead, keys []packKey, parts []Part, after *prefetch,
) *prefetch {
	ctx, stop := context.WithCancel(ctx)
	coming := &prefetch{after: after, number: map[packKey]int{}, stop: stop, done: make(chan struct{})}
	coming.moved.L = &coming.mu
	for i, key := range keys {
		coming.number[key] = i
	}
	go func() {
		defer close(coming.done)
		defer coming.advance(0, true)
		if after != nil {
			<-after.done
		}
		source.Ahead(ctx, parts, func(parts int) {
			m.steps.Add(1) // the watchdog sees progress
			coming.advance(parts, false)
		})
	}()
	return coming
}

// advance tells waiting threads how many packs are prepared, and with over that no more will be.
func (p *prefetch) advance(through int, over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.through, p.over = max(p.through, through), p.over || over
	p.moved.Broadcast()
}

// await returns when a pack is prepared, or will not be.
func (p *prefetch) await(key packKey) {
	if p == nil {
		return
	}
	number, mine := p.number[key]
	if !mine {
		p.after.await(key)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.over && p.through <= number {
		p.moved.Wait()
	}
}

// end stops the preparation and returns when it no longer reads the source.
func (p *prefetch) end() {
	if p != nil {
		p.stop()
		<-p.done
	}
}

// prefetchFor begins to prepare what a program reads, except what Foresee has begun with. It returns nil if the source
// prepares nothing.
func (m *Machine) prefetchFor(ctx context.Context, pr *program) *prefetch {
	source, ok := m.loader.src.(Ahead)
	if !ok {
		return nil
	}
	var keys []packKey
	var parts []Part
	m.eachUnloaded(pr, func(key packKey, part Part) {
		if foreseen := m.loader.foreseen; foreseen != nil {
			if _, begun := foreseen.number[key]; begun {
				return
			}
		}
		keys, parts = append(keys, key), append(parts, part)
	})
	return m.startPrefetch(ctx, source, keys, parts, m.loader.foreseen)
}

// Foresee begins to prepare what the prefill of every prompt reads, while the caller still
// determines the prompt. It is for machines that load on demand, and may be called once, before
// anything is loaded. Loading waits for what it needs of it.
func (m *Machine) Foresee(ctx context.Context) {
	source, ok := m.loader.src.(Ahead)
	if !ok {
		return
	}
	var keys []packKey
	var parts []Part
	users, prefills := map[packKey]int{}, 0
	for _, pr := range m.order {
		if pr.PhaseProgram.Phase != "prefill" || pr.On != "" {
			continue
		}
		prefills++
		m.eachUnloaded(pr, func(key packKey, part Part) {
			if users[key]++; users[key] == 1 {
				keys, parts = append(keys, key), append(parts, part)
			}
		})
	}
	common := 0
	for i, key := range keys {
		if users[key] == prefills {
			keys[common], parts[common] = key, parts[i]
			common++
		}
	}
	m.loader.foreseen = m.startPrefetch(ctx, source, keys[:common], parts[:common], nil)
}
