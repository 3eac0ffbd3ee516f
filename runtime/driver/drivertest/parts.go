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
	sum := newPartsSum(t, c)
	sum.write(1000)
	if err := sum.call(driver.Everything, nil); err != nil {
		t.Fatal(err)
	}
	// From now on the processor's copies and the host's memory differ by 1000.
	sum.write(2000)
	fetched := []driver.Rect{{R0: 1, R1: 3, C0: 2, C1: 5}, {R0: 3, R1: 9, C0: 6, C1: 99}, {R0: 0, R1: 1, C0: 4, C1: 4}}
	handed := []driver.Rect{{R0: 0, R1: 2, C0: 3, C1: 4}, {R0: 2, R1: 4, C0: 1, C1: 8}}
	if err := sum.call(fetched, handed); err != nil {
		t.Fatal(err)
	}
	sum.check(fetched, handed)
	if err := sum.call(nil, driver.Everything); err != nil {
		t.Fatal(err)
	}
	sum.check(fetched, driver.Everything)

	for _, wrong := range []driver.Rect{{R0: -1, R1: 1, C1: 1}, {R0: 2, R1: 1, C1: 1}, {R1: 1, C0: 3, C1: 2}} {
		if err := sum.call([]driver.Rect{wrong}, nil); err == nil {
			t.Errorf("a call that fetches %+v is executed", wrong)
		}
	}
}

// partsSum adds two operands, of which calls move parts.
type partsSum struct {
	*chain
	t      *testing.T
	exe    driver.Executable
	stride int // of all views: beyond their columns where the processor permits
	bind   driver.Bindings
}

// newPartsSum loads a sum on the chain's processor.
func newPartsSum(t *testing.T, c *chain) *partsSum {
	t.Helper()
	artifact, err := c.compile(single(c.caps, op.Op{Kind: op.Add, M: partRows, N: partColumns}), nil)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := c.load(artifact, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { exe.Close() })
	sum := &partsSum{chain: c, t: t, exe: exe, stride: partColumns}
	if c.caps.StridedInput && c.caps.StridedOutput {
		sum.stride += 3
	}
	sum.bind = driver.Bindings{In: []driver.View{sum.view(), sum.view()}, Out: []driver.View{sum.view()},
		Scalars: &driver.Scalars{Rows: partRows, KVLen: partRows, Seq: partRows}}
	return sum
}

// view returns an operand in memory of its own.
func (s *partsSum) view() driver.View {
	s.t.Helper()
	var buffer driver.Buffer
	if err := s.lane.do(func() (err error) {
		buffer, err = s.proc.Import(s.memory(int64(4 * s.stride * partRows)))
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { buffer.Close() })
	return driver.View{Buffer: buffer, Type: op.F32, Rows: partRows, Cols: partColumns, Stride: s.stride}
}

// write gives the host's memory operands whose sums are base and the number of the element.
func (s *partsSum) write(base float64) {
	values := make([]float64, partRows*partColumns)
	store(s.bind.In[1], values)
	for i := range values {
		values[i] = base + float64(i)
	}
	store(s.bind.In[0], values)
}

// call executes the sum, which fetches parts of both operands and hands over parts of the result.
func (s *partsSum) call(fetch, hand []driver.Rect) error {
	fillBytes(s.bind.Out[0].Buffer.Bytes(), untouched)
	s.bind.Moves = &driver.Moves{Fetch: [][]driver.Rect{fetch, fetch}, Hand: [][]driver.Rect{hand}}
	return s.lane.do(func() error {
		_, err := s.proc.Run(s.exe, &s.bind)
		return err
	})
}

// check compares what the host has: in the parts that were handed over sums of base 1000, or of 2000 where operands
// were fetched since, and elsewhere what was there before.
func (s *partsSum) check(fetched, handed []driver.Rect) {
	s.t.Helper()
	bytes := s.bind.Out[0].Buffer.Bytes()
	for row := range partRows {
		for col := range s.stride {
			at := 4 * (row*s.stride + col)
			if col >= partColumns {
				if bytes[at] != untouched || bytes[at+3] != untouched {
					s.t.Fatalf("element %d,%d beside the view is written", row, col)
				}
				continue
			}
			want := 1000 + float64(row*partColumns+col)
			if covers(fetched, row, col) {
				want += 1000
			}
			if got := decode(bytes[at:], op.F32); covers(handed, row, col) != (got == want) {
				s.t.Fatalf("element %d,%d is %v; that it is handed over as %v is %v", row, col, got, want,
					covers(handed, row, col))
			}
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
