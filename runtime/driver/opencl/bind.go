package opencl

import (
	"fmt"
	"math"

	"github.com/hetc/hetc/runtime/driver"
)

// bind checks the operands of a call and makes them current. It returns before it changes anything but fields.
func (e *executable) bind(bindings *driver.Bindings) error {
	if err := bindings.Matches(&e.graph); err != nil {
		return err
	}
	e.scalars = *bindings.Scalars
	scalars := &e.scalars
	if scalars.Pos > math.MaxInt32 || bindings.MaxContext > math.MaxInt32 {
		return fmt.Errorf("got position %d in a cache of %d, want at most %d", scalars.Pos, bindings.MaxContext,
			math.MaxInt32)
	}
	if scalars.Rows == 0 {
		return nil
	}
	if e.batch {
		if err := bindings.CheckPlaces(min(e.graph.Rows(), scalars.Rows), e.kv != ""); err != nil {
			return err
		}
	} else if e.needsSeq && scalars.Seq <= scalars.Pos {
		return fmt.Errorf("a sequence of %d positions does not reach position %d, and the rotation depends on its length",
			scalars.Seq, scalars.Pos)
	}
	if rows := min(e.graph.Rows(), scalars.Rows); e.longest > 0 && scalars.Pos+rows > e.longest {
		return fmt.Errorf("the context reaches beyond %d positions, for which the graph was made", e.longest)
	}
	if bindings.Moves != nil {
		if err := bindings.Moves.Fits(bindings); err != nil {
			return err
		}
	}
	for i := range e.operands {
		if err := e.bindOperand(&e.operands[i], bindings); err != nil {
			return err
		}
	}
	if e.kv != "" {
		return e.bindCache(bindings)
	}
	return nil
}

// bindOperand makes one operand current. One that is computed in place has the same memory in both bindings.
func (e *executable) bindOperand(o *operand, bindings *driver.Bindings) error {
	o.rows = o.inUse(e.scalars.Rows)
	if o.temp >= 0 {
		o.device, o.at = e.p.arena, o.temp
		return nil
	}
	if o.input < 0 {
		return e.view(o, &bindings.Out[o.out], "output")
	}
	if err := e.view(o, &bindings.In[o.input], "input"); err != nil || o.out < 0 {
		return err
	}
	buffer, at, ld := o.buffer, o.at, o.ld
	if err := e.view(o, &bindings.Out[o.out], "output"); err != nil {
		return err
	}
	if o.buffer != buffer || o.at != at || o.ld != ld {
		return fmt.Errorf("value %q is computed in place, but bound to different views as input and output",
			o.value.Name)
	}
	return nil
}

// view checks a binding against a value and makes it current.
func (e *executable) view(o *operand, v *driver.View, role string) error {
	if v.Type != o.value.Type || v.Cols != o.value.Cols || v.Rows < o.rows {
		return fmt.Errorf("%s %q: got view %s [%d,%d], want %s [%d,%d]", role, o.value.Name, v.Type, v.Rows, v.Cols,
			o.value.Type, o.rows, o.value.Cols)
	}
	if err := e.locate(v, o.rows, &o.buffer); err != nil {
		return fmt.Errorf("%s %q: %w", role, o.value.Name, err)
	}
	o.device, o.at, o.ld = o.buffer.device, v.Offset, v.Stride
	return nil
}

// locate finds the buffer of a view, after checking that the rows lie inside it.
func (e *executable) locate(v *driver.View, rows int, to **buffer) error {
	if _, err := v.Window(rows); err != nil {
		return err
	}
	if v.Stride > math.MaxInt32 || v.Offset%int64(v.Type.Bytes()) != 0 {
		return fmt.Errorf("stride %d at byte %d, want at most %d at whole elements", v.Stride, v.Offset, math.MaxInt32)
	}
	found := e.p.own(v.Buffer)
	if found == nil {
		return fmt.Errorf("its memory was not allocated on, nor imported to, %s", e.p)
	}
	*to = found
	return nil
}

// at is the sequence and position of a row in use.
func (e *executable) at(row int) driver.Place {
	if e.batch {
		return e.scalars.Batch[row]
	}
	return driver.Place{Sequence: e.scalars.Sequence, Pos: e.scalars.Pos + row}
}

// bindCache checks that the caches hold all sequences at their distance, and makes them current.
func (e *executable) bindCache(bindings *driver.Bindings) error {
	if e.batch && bindings.MaxContext < 1 {
		return fmt.Errorf("a cache of %d positions, want at least 1", bindings.MaxContext)
	}
	if !e.batch {
		if err := bindings.CheckSpan(min(e.graph.Rows(), e.scalars.Rows)); err != nil {
			return err
		}
	}
	e.maxContext, e.perSeq = bindings.MaxContext, 0
	if err := e.cache(&e.sides[0], &bindings.K, bindings, "k"); err != nil {
		return err
	}
	return e.cache(&e.sides[1], &bindings.V, bindings, "v")
}

// cache makes one cache of all sequences current, perSeq elements apart.
func (e *executable) cache(side *cacheSide, view *driver.View, bindings *driver.Bindings, name string) error {
	if _, err := bindings.CheckCache(view, name, e.kv, e.kvHeads, e.headDim); err != nil {
		return err
	}
	if err := e.locate(view, view.Rows, &side.buffer); err != nil {
		return fmt.Errorf("cache %q: %w", name, err)
	}
	size := int64(view.Type.Bytes())
	side.at = view.Offset / size
	if bindings.Sequences > 1 {
		e.perSeq = bindings.SequenceBytes / size
	}
	return nil
}
