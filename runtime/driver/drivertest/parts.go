package drivertest

import (
	"testing"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// Shape of the sums of testParts.
const (
	partRows    = 4
	partColumns = 8
)

// Of an operand the parts travel that a call names: the processor's copy keeps the rest, and memory of the host beside
// the view stays as it is.
func testParts(t *testing.T, factory *Factory) {
	c := newChain(t, factory, 8)
	if !c.caps.OwnMemory {
		return
	}
	artifact, err := c.compile(single(c.caps, op.Op{Kind: op.Add, M: partRows, N: partColumns}), nil)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := c.load(artifact, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { exe.Close() })
	stride := partColumns
	if c.caps.StridedInput && c.caps.StridedOutput {
		stride += 3
	}
	view := func() driver.View {
		var buffer driver.Buffer
		if err := c.lane.do(func() (err error) {
			buffer, err = c.proc.Import(c.memory(int64(4 * stride * partRows)))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { buffer.Close() })
		return driver.View{Buffer: buffer, Type: op.F32, Rows: partRows, Cols: partColumns, Stride: stride}
	}
	bind := driver.Bindings{In: []driver.View{view(), view()}, Out: []driver.View{view()},
		Scalars: &driver.Scalars{Rows: partRows, KVLen: partRows, Seq: partRows}}
	call := func(fetch, hand []driver.Rect) {
		t.Helper()
		fillBytes(bind.Out[0].Buffer.Bytes(), untouched)
		bind.Moves = &driver.Moves{Fetch: [][]driver.Rect{fetch, fetch}, Hand: [][]driver.Rect{hand}}
		if err := c.lane.do(func() error {
			_, err := c.proc.Run(exe, &bind)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	// The processor holds sums of 1000 and the number of the element; the host has others since.
	write := func(base float64) {
		values := make([]float64, partRows*partColumns)
		store(bind.In[1], values)
		for i := range values {
			values[i] = base + float64(i)
		}
		store(bind.In[0], values)
	}
	write(1000)
	call(driver.Everything, nil)
	write(2000)
	fetched := []driver.Rect{{R0: 1, R1: 3, C0: 2, C1: 5}, {R0: 3, R1: 9, C0: 6, C1: 99}, {R0: 0, R1: 1, C0: 4, C1: 4}}
	handed := []driver.Rect{{R0: 0, R1: 2, C0: 3, C1: 4}, {R0: 2, R1: 4, C0: 1, C1: 8}}
	call(fetched, handed)
	check := func(expected func(row, col int) bool) {
		t.Helper()
		bytes := bind.Out[0].Buffer.Bytes()
		for row := range partRows {
			for col := range stride {
				want := 1000 + float64(row*partColumns+col)
				if covers(fetched, row, col) {
					want += 1000
				}
				at := 4 * (row*stride + col)
				got := decode(bytes[at:], op.F32)
				switch {
				case col >= partColumns:
					if bytes[at] != untouched || bytes[at+3] != untouched {
						t.Fatalf("element %d,%d beside the view is written", row, col)
					}
				case expected(row, col) != (got == want):
					t.Fatalf("element %d,%d is %v; that it is handed over as %v is %v", row, col, got, want,
						expected(row, col))
				}
			}
		}
	}
	check(func(row, col int) bool { return covers(handed, row, col) })
	call(nil, driver.Everything)
	check(func(int, int) bool { return true })

	for _, wrong := range []driver.Rect{{R0: -1, R1: 1, C1: 1}, {R0: 2, R1: 1, C1: 1}, {R1: 1, C0: 3, C1: 2}} {
		bind.Moves = &driver.Moves{Fetch: [][]driver.Rect{{wrong}, nil}, Hand: [][]driver.Rect{nil}}
		if err := c.lane.do(func() error {
			_, err := c.proc.Run(exe, &bind)
			return err
		}); err == nil {
			t.Errorf("a call that fetches %+v is executed", wrong)
		}
	}
}

// covers reports whether an element lies in one of the parts.
func covers(parts []driver.Rect, row, col int) bool {
	for _, part := range parts {
		if part.R0 <= row && row < part.R1 && part.C0 <= col && col < part.C1 {
			return true
		}
	}
	return false
}
