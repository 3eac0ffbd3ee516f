package profiler

import (
	"bytes"
	"math"
	"testing"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
)

// TestEveryCopyIsAWeight unpacks copies from all over a store: finite values, aligned, none overlapping.
func TestEveryCopyIsAWeight(t *testing.T) {
	s := &stores{seed: 1, limit: 1 << 30, all: map[string]*store{}}
	defer s.close()
	for _, spec := range []op.WeightSpec{
		{K: 100, N: 70, Scheme: "w32", Layout: pack.N32},
		{K: 100, N: 70, Scheme: "q8c", Layout: pack.N32},
		{K: 96, N: 33, Scheme: "q8c", Layout: pack.N32},
		{K: 100, N: 70, Scheme: "q4b32", Layout: pack.N32},
		{K: 100, N: 270, Scheme: "w32", Layout: pack.Onnx},
		{K: 100, N: 270, Scheme: "q8c", Layout: pack.Onnx},
		{K: 270, N: 100, Scheme: "q8c", Layout: pack.Onnx},
		{K: 100, N: 70, Scheme: "q4b128", Layout: pack.Onnx},
		{K: 1, N: 50, Scheme: "f32", Layout: op.RowsLayout},
		{K: 300, N: 50, Scheme: "bf16", Layout: op.RowsLayout},
		{K: 300, N: 50, Scheme: "f16", Layout: op.RowsLayout},
	} {
		spec.Name = "w"
		const footprint = 1 << 20
		st, size, err := s.weights(spec, footprint, 1)
		if err != nil {
			t.Fatal(err)
		}
		offsets := st.slots(size, footprint, 1000, alone)
		if want := min(1000, int(footprint/(size+64*st.unit))); len(offsets) < want {
			t.Errorf("%+v: %d copies, want at least %d", spec, len(offsets), want)
		}
		values := make([]float32, spec.K*spec.N)
		for i, at := range offsets {
			data := st.region.Bytes()[at : at+size]
			if !mem.Aligned(data, 64) || i > 0 && at+size > offsets[i-1] {
				t.Fatalf("%+v: copy %d at %d", spec, i, at)
			}
			if i%97 != 0 && i != len(offsets)-1 {
				continue
			}
			if err := pack.Unpack(values, spec, data); err != nil {
				t.Fatalf("%+v: copy %d: %v", spec, i, err)
			}
			nonzero := 0
			for _, x := range values {
				if math.IsNaN(float64(x)) || math.Abs(float64(x)) > 1 {
					t.Fatalf("%+v: copy %d holds %g", spec, i, x)
				}
				if x != 0 {
					nonzero++
				}
			}
			if nonzero < len(values)/2 {
				t.Errorf("%+v: copy %d is mostly zero", spec, i)
			}
		}
		st.refs--
	}
}

func TestStoresKeepTheirLimit(t *testing.T) {
	s := &stores{limit: 3 << 20, all: map[string]*store{}}
	defer s.close()
	get := func(name string, n int64) *store {
		t.Helper()
		st, err := s.get(name, n, 64, func() ([]byte, error) { return make([]byte, 64), nil })
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	a := get("a", 1<<20)
	b := get("b", 1<<20)
	b.refs--
	get("c", 1<<20)
	if get("d", 1<<20); s.all["b"] != nil || s.all["a"] != a {
		t.Error("the unused store is not the one that makes room")
	}
	if big := get("a", 2<<20); big == a || len(a.region.Bytes()) != 1<<20 || len(big.region.Bytes()) != 2<<20 {
		t.Error("a store in use is replaced, not joined by a larger one")
	}
	if again := get("a", 1<<20); len(again.region.Bytes()) != 2<<20 {
		t.Error("the larger store is not found again")
	}
}

// Memory that other programs have taken since the limit was set is not used, and some is left in any case.
func TestStoresLeaveFreeMemory(t *testing.T) {
	free := int64(4 << 20)
	s := &stores{limit: 8 << 20, free: func() int64 { return free }, all: map[string]*store{}}
	defer s.close()
	get := func(name string, bytes int64) error {
		_, err := s.get(name, bytes, 64, func() ([]byte, error) { return make([]byte, 64), nil })
		return err
	}

	if err := get("a", 3<<20); err != nil {
		t.Fatal(err)
	}
	free = 3 << 20
	err := get("b", 3<<20)
	if err == nil || err.Error() != "an operand needs 3145728 bytes of memory, and measuring may take 2097152 more" {
		t.Errorf("got %v", err)
	}
	s.all["a"].refs--
	if get("b", 3<<20) == nil || s.all["a"] != nil {
		t.Error("a store that is not used makes no room")
	}
	if free = 0; get("b", 3<<20) != nil {
		t.Error("what is free is unknown, and the limit does not decide")
	}
}

func TestFillIsValid(t *testing.T) {
	o := &operands{seed: 1, vocabulary: 10}
	data := make([]byte, 40_000)
	for _, typ := range []op.Type{op.F32, op.F16, op.BF16, op.I32, op.U8} {
		o.fill(data, typ)
		if bytes.Equal(data[:64], make([]byte, 64)) {
			t.Errorf("%s: zeros", typ)
		}
		switch typ {
		case op.F32:
			xs, _ := mem.View[float32](data)
			for _, x := range xs {
				if !(x >= -1 && x <= 1) {
					t.Fatalf("f32 %g", x)
				}
			}
		case op.F16:
			xs, _ := mem.View[uint16](data)
			for _, x := range xs {
				if f := number.HalfToFloat(x); !(f >= -1 && f <= 1) {
					t.Fatalf("f16 %g", f)
				}
			}
		case op.I32:
			xs, _ := mem.View[int32](data)
			for _, x := range xs {
				if x < 0 || x >= 10 {
					t.Fatalf("id %d of 10", x)
				}
			}
		case op.U8:
			if bytes.IndexByte(data, 0) >= 0 {
				t.Error("u8 0 is no quantised value")
			}
		}
	}
}

func TestRound(t *testing.T) {
	for x, want := range map[float64]float64{1234567.89: 1235000, 0: 0, 0.000123451: 0.0001235, -12346: -12350} {
		if got := round(x, 4); got != want {
			t.Errorf("round(%g) = %g, want %g", x, got, want)
		}
	}
}

// TestGroupMembersHaveWeightsOfTheirOwn places weights of different sizes for operators that run side by side. None may
// read what another one reads.
func TestGroupMembersHaveWeightsOfTheirOwn(t *testing.T) {
	for _, footprint := range []int64{1 << 20, 100, 12345} {
		s := &stores{seed: 1, limit: 1 << 30, all: map[string]*store{}}
		used := map[*store][][2]int64{} // of operators before
		for number, n := range []int{70, 33, 640} {
			spec := op.WeightSpec{Name: "w", K: 96, N: n, Scheme: "q8c", Layout: pack.N32}
			st, size, err := s.weights(spec, footprint, 3)
			if err != nil {
				t.Fatal(err)
			}
			offsets := st.slots(size, footprint, 1000, groupMember{number, 3})
			first, end := offsets[len(offsets)-1], offsets[0]+size
			if end > int64(len(st.region.Bytes())) {
				t.Errorf("footprint %d: operator %d reads to byte %d of %d", footprint, number, end,
					len(st.region.Bytes()))
			}
			for _, other := range used[st] {
				if first < other[1] && other[0] < end {
					t.Errorf("footprint %d: operator %d reads bytes %d..%d, another one %v", footprint, number, first,
						end, other)
				}
			}
			used[st] = append(used[st], [2]int64{first, end})
		}
		s.close()
	}
}
