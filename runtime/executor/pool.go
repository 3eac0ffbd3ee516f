package executor

import (
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/driver"
)

const cacheName = "\x00cache"

// allocate lays out the buffers and the caches in one pool, each on its own cache lines. With sparing, the first call
// does not wait for work that only later calls gain from.
func (m *Machine) allocate(sparing bool) error {
	m.buffers, m.offset = map[string]*planir.Buffer{}, map[string]int64{}
	var size int64
	for i := range m.plan.Program.Buffers {
		buffer := &m.plan.Program.Buffers[i]
		m.buffers[buffer.Name], m.offset[buffer.Name] = buffer, size
		size += planir.BufferBytes(int64(buffer.Rows) * int64(buffer.Cols) * int64(buffer.Type.Bytes()))
	}
	m.offset[cacheName] = size
	size += m.plan.Program.Cache.Bytes()
	if err := m.allocatePool(size, sparing); err != nil {
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

// allocatePool gives the pool its memory, and numbers the memories of the processors that mirror it. Some devices copy
// memory that they are given and share what they allocate themselves: such a one allocates the pool.
func (m *Machine) allocatePool(size int64, sparing bool) error {
	for _, lane := range m.lanes {
		if !lane.proc.Capabilities().OwnMemory || m.observe != nil {
			continue // for an observer each call moves all its operands
		}
		if m.home == nil {
			shared, err := m.shareWith(lane, size)
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
	if sparing {
		allocate = mem.AllocSmall
	}
	pool, err := allocate(int(size), 4096)
	if err != nil {
		return err
	}
	if m.pool = pool.Bytes(); sparing {
		m.small = pool
	}
	m.closers = append(m.closers, pool.Close)
	return nil
}

// shareWith has a lane's processor allocate the pool if it shares what it allocates, and returns whether it does.
func (m *Machine) shareWith(lane *lane, size int64) (bool, error) {
	try, err := lane.proc.Alloc(driver.Align)
	if err != nil {
		return false, err
	}
	_, mirrors := try.(driver.Mirror)
	usable := !mirrors && mem.Aligned(try.Bytes(), driver.Align)
	if err := try.Close(); err != nil || !usable {
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

// enlarge moves the pool to large pages before the second call. The first token does not wait until they are all zero:
// a short prompt touches a little of each head's cache, and so every large page of it.
// RATIONALE: When does the cache lie in large pages?
func (m *Machine) enlarge() {
	if m.small != nil && m.called {
		_ = m.small.Enlarge() // what is not enlarged is as right
		m.small = nil
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
