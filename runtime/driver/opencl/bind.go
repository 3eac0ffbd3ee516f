package opencl

import (
	"fmt"
	"math"

	"github.com/hetc/hetc/runtime/driver"
)

// bind checks the operands of a call and makes them current. It returns before it changes anything but fields.
func (e *executable) bind(bindings *driver.Bindings) error {
	rows, err := e.Bind(bindings, &e.graph)
	switch {
	case err != nil:
		return err
	case bindings.MaxContext > math.MaxInt32:
		return fmt.Errorf("got a cache of %d positions, want at most %d", bindings.MaxContext, math.MaxInt32)
	case rows == 0:
		return nil
	case e.longest > 0 && e.Scalars.Pos+rows > e.longest:
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
	if e.KV == "" {
		return nil
	}
	if _, _, err := e.BindCaches(bindings, rows); err != nil {
		return err
	}
	if err := e.hold(&e.sides[0], &bindings.K, "k"); err != nil {
		return err
	}
	return e.hold(&e.sides[1], &bindings.V, "v")
}

// bindOperand makes one operand current. One that is computed in place has the same memory in both bindings.
func (e *executable) bindOperand(o *operand, bindings *driver.Bindings) error {
	o.rows = o.inUse(e.Scalars.Rows)
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

// hold makes one cache of all sequences current.
func (e *executable) hold(side *cacheSide, view *driver.View, name string) error {
	if err := e.locate(view, view.Rows, &side.buffer); err != nil {
		return fmt.Errorf("cache %q: %w", name, err)
	}
	side.at = view.Offset / int64(view.Type.Bytes())
	return nil
}
