package executor

import (
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/driver"
)

// cacheBuffer is the key of the caches in Machine.offset. No buffer of a plan can have this name.
const cacheBuffer = "\x00cache"

// allocate lays out the buffers and the caches in one pool, each on its own cache lines.
func (m *Machine) allocate() error {
	m.buffers, m.offset = map[string]*planir.Buffer{}, map[string]int64{}
	var size int64
	for i := range m.plan.Program.Buffers {
		buffer := &m.plan.Program.Buffers[i]
		m.buffers[buffer.Name], m.offset[buffer.Name] = buffer, size
		size += planir.BufferBytes(int64(buffer.Rows) * int64(buffer.Cols) * int64(buffer.Type.Bytes()))
	}
	m.offset[cacheBuffer] = size
	size += m.plan.Program.Cache.Bytes()
	if err := m.allocatePool(size); err != nil {
		return diag.New(diag.ClassRun, "allocate pool of %d bytes: %w", size, err).
			WithHint("a smaller context (max_context) needs less memory")
	}
	sequences := m.Sequences()
	m.pos, m.batchPlaces = make([]int, sequences), make([]driver.Place, 0, sequences)
	if m.mirrors = make([]driver.Mirror, m.spaces+1); m.spaces > 0 {
		m.newHoldings()
	}
	return nil
}

// allocatePool allocates the pool and numbers the memories of the processors that compute on a mirror of it. Some
// devices copy memory that they are given but share what they allocate themselves. The first of those allocates the
// pool; without one it is memory of the host.
func (m *Machine) allocatePool(size int64) error {
	for _, lane := range m.lanes {
		if !lane.proc.Capabilities().OwnMemory || m.observe != nil {
			continue // for an observer each call moves all its operands
		}
		if m.home == nil {
			shared, err := m.allocateShared(lane, size)
			if err != nil {
				return err
			}
			if shared {
				continue
			}
		}
		m.spaces++
		lane.space = m.spaces
	}
	if m.home != nil {
		return nil
	}
	allocate := mem.Alloc
	if m.onDemand {
		allocate = mem.AllocSmall // the first token does not wait for large pages: see useLargePages
	}
	pool, err := allocate(int(size), 4096)
	if err != nil {
		return err
	}
	if m.pool = pool.Bytes(); m.onDemand {
		m.smallPages = pool
	}
	m.closers = append(m.closers, pool.Close)
	return nil
}

// allocateShared has a lane's processor allocate the pool if the host can use what it allocates, and returns whether it
// did. A small allocation shows that.
func (m *Machine) allocateShared(lane *lane, size int64) (bool, error) {
	trial, err := lane.proc.Alloc(driver.Align)
	if err != nil {
		return false, err
	}
	_, mirrors := trial.(driver.Mirror)
	usable := !mirrors && mem.Aligned(trial.Bytes(), driver.Align)
	if err := trial.Close(); err != nil || !usable {
		return false, err
	}
	pool, err := lane.proc.Alloc(size)
	if err != nil {
		return false, err
	}
	m.closers = append(m.closers, pool.Close)
	m.home, m.homeBuffer, m.pool = lane, pool, pool.Bytes()
	return true, nil
}

// useLargePages moves the pool to large pages before the second call. The first call does without: a short prompt
// touches a little of each head's cache, so it would wait until the kernel has cleared every large page.
// RATIONALE: When does the cache lie in large pages?
func (m *Machine) useLargePages() {
	if m.smallPages != nil && m.called {
		_ = m.smallPages.Enlarge() // without large pages calls are slower, not wrong
		m.smallPages = nil
	}
	m.called = true
}

// endBuffers returns the buffers that a program begins and ends with: token ids [rows] and logits [rows,vocabulary].
func (m *Machine) endBuffers(phase *planir.PhaseProgram) (ids []int32, logits []float32, err error) {
	data := m.pool
	view := func(name string) []byte {
		buffer := m.buffers[phase.Own(name)]
		return data[m.offset[phase.Own(name)]:][:4*buffer.Rows*buffer.Cols]
	}
	if ids, err = mem.View[int32](view(planir.IDs)); err != nil {
		return nil, nil, err
	}
	logits, err = mem.View[float32](view(planir.Logits))
	return ids, logits, err
}
