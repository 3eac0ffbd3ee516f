package host

import (
	"errors"
	"fmt"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// embed looks up the rows of a table. A packed 8-bit or 6-bit weight is a table too, whose rows are the
// weight's columns.
func (b *builder) embed() (step, error) {
	exe, operator := b.exe, b.op
	if b.weights[0].Rows != nil {
		return b.embedRows()
	}
	var row func(out []float32, id int)
	if operator.Scheme != "" {
		table := b.weights[0].Bytes
		column := kernel.ColumnQ8C
		if operator.Scheme == op.I32Q6C {
			column = kernel.ColumnQ6C
		}
		row = func(out []float32, id int) { column(out, table, id) }
	} else if operator.Table == op.F32 {
		table, err := mem.View[float32](b.weights[0].Bytes)
		if err != nil {
			return step{}, err
		}
		row = func(out []float32, id int) { copy(out, table[id*operator.N:]) }
	} else {
		table, err := mem.View[uint16](b.weights[0].Bytes)
		if err != nil {
			return step{}, err
		}
		widen := exe.proc.set.FromBF16
		if operator.Table == op.F16 {
			widen = exe.proc.set.FromF16
		}
		row = func(out []float32, id int) { widen(out, table[id*operator.N:(id+1)*operator.N]) }
	}
	return b.embedBy(func(out []float32, id int) error {
		row(out, id)
		return nil
	}), nil
}

// embedRows is embed where the rows of the table come one by one.
func (b *builder) embedRows() (step, error) {
	rows, operator := b.weights[0].Rows, b.op
	widen := b.exe.proc.set.FromBF16
	if operator.Table == op.F16 {
		widen = b.exe.proc.set.FromF16
	}
	return b.embedBy(func(out []float32, id int) error {
		data, _, err := rows.Row(id)
		if err != nil {
			return err
		}
		if want := operator.N * operator.Table.Bytes(); len(data) != want {
			return fmt.Errorf("got a row of %d bytes, want %d", len(data), want)
		}
		if operator.Table == op.F32 {
			values, err := mem.View[float32](data)
			copy(out, values)
			return err
		}
		values, err := mem.View[uint16](data)
		if err == nil {
			widen(out, values)
		}
		return err
	}), nil
}

// embedBy writes row [N] of the table for each token id.
func (b *builder) embedBy(row func(out []float32, id int) error) step {
	exe, operator, ids, output := b.exe, b.op, b.in[0], b.out[0]
	step := b.byRows(operator.N, func(_, r0, r1 int) {
		for token := r0; token < r1; token++ {
			id := int(ids.i32[token*ids.ld])
			out := output.f32[token*output.ld : token*output.ld+operator.N]
			if id < 0 || id >= operator.K || row(out, id) != nil {
				exe.refuse(token)
				return
			}
			if operator.Scale != 0 {
				exe.proc.set.Scale(out, operator.Scale)
			}
		}
	})
	step.refused = func(r int) error {
		id := int(ids.i32[r*ids.ld])
		if id < 0 || id >= operator.K {
			return fmt.Errorf("token id %d is outside the table, want 0..%d", id, operator.K-1)
		}
		err := row(make([]float32, operator.N), id) // says why once more
		if err == nil {
			err = errors.New("it could not be read before, and can be now")
		}
		return fmt.Errorf("row of token id %d: %w", id, err)
	}
	return step
}

// selectRow copies the row that the call's scalars name.
func (b *builder) selectRow() step {
	exe, cols, input, output := b.exe, b.op.N, b.in[0], b.out[0]
	var rows int
	return step{
		m:    b.op.M,
		plan: func(r int) int { rows = r; return 1 },
		task: func(_, _ int) {
			row := exe.Scalars.Row
			if row < 0 || row >= rows {
				exe.refuse(row)
				return
			}
			copy(output.f32[:cols], input.f32[row*input.ld:row*input.ld+cols])
		},
		refused: func(int) error { return fmt.Errorf("want a row in 0..%d", rows-1) },
	}
}
