package executor

import (
	"errors"

	"github.com/hetc/hetc/runtime/driver"
)

// Serially is Extend of the first sequence by one token, by other means: the same executables with the same bindings,
// one after another on the calling thread, in an order found by going round the lanes; no flags, no other threads.
func (c *Control) Serially(token int32, sink func(logits []float32)) error {
	m := c.machine
	if err := m.loadFor(c.ctx, 1); err != nil {
		return err
	}
	pos := m.pos[0]
	pr := m.programFor(1)
	pr.ids[0] = token
	for _, s := range pr.sections {
		at := make([]int, len(s.lanes)) // steps done
		set := map[*flag]int{}          // times
		for left, moved := len(s.lanes), true; left > 0; {
			if !moved {
				return errors.New("no lane can go on")
			}
			moved, left = false, 0
			for i, ls := range s.lanes {
			steps:
				for at[i] < s.iters*len(ls.steps) {
					iter, st := at[i]/len(ls.steps), ls.steps[at[i]%len(ls.steps)]
					for _, w := range st.waits {
						if set[w.flag] < iter+1-int(w.back) {
							break steps
						}
					}
					st.scalars = driver.Scalars{Pos: pos, Rows: 1, KVLen: pos + 1, Seq: pos + 1}
					if _, err := ls.lane.proc.Run(st.calls[iter].exe, &st.calls[iter].bind); err != nil {
						return err
					}
					if st.Set != nil {
						set[&m.flags[*st.Set]]++
					}
					at[i]++
					moved = true
				}
				if at[i] < s.iters*len(ls.steps) {
					left++
				}
			}
		}
	}
	m.pos[0]++
	sink(pr.logits[:m.Vocabulary()])
	return nil
}

// SetLeastTable sets from which size on embeddings read tables by rows, and returns how to undo it.
func SetLeastTable(bytes int64) (restore func()) {
	before := minTableBytes
	minTableBytes = bytes
	return func() { minTableBytes = before }
}
