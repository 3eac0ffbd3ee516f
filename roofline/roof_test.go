package roofline

import (
	"testing"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
)

func TestRoofOf(t *testing.T) {
	peaks := map[string]float64{"i8": 800, "f32": 200}
	s := &socs.SoC{
		Processors: []socs.Processor{
			{Name: "a", PeakGops: peaks, BandwidthGBps: 20},
			{Name: "b", PeakGops: map[string]float64{"i8": 400, "f32": 200}, BandwidthGBps: 20},
			{Name: "bare", BandwidthGBps: 20},
			{Name: "alone", PeakGops: peaks, BandwidthGBps: 20},
		},
		Joint: []socs.Joint{{Processors: []string{"a", "b"}, BandwidthGBps: 30}, {Processors: []string{"a", "bare"}, BandwidthGBps: 30}},
	}
	matmul := func(m int, scheme op.Scheme) op.Op {
		return op.Op{Kind: op.MatMul, M: m, K: 1000, N: 1000, Scheme: scheme}
	}
	add := op.Op{Kind: op.Add, M: 4, N: 4}
	attention := op.Op{Kind: op.Attention, M: 1000, Heads: 1, KVHeads: 1, HeadDim: 64, KV: op.F32, Context: 1000}
	for _, c := range []struct {
		name  string
		procs []string
		ops   []op.Op
		ns    int64
		want  string // "" for none
	}{
		// 2*256*1e6 operations at 800 a nanosecond are 640 us.
		{"int8 alone", []string{"a"}, []op.Op{matmul(256, op.A8TQ8C)}, 1_280_000, "50 % of int8 peak"},
		{"int8 together", []string{"b", "a"}, []op.Op{matmul(256, op.A8TQ8C)}, 512_000, "83 % of int8 peak"},
		{"in two parts", []string{"a", "b"}, []op.Op{matmul(128, op.A8TQ8C), matmul(128, op.A8TQ8C)}, 512_000, "83 % of int8 peak"},
		{"f32", []string{"a"}, []op.Op{matmul(256, op.A32W32)}, 2_560_000, "100 % of f32 peak"},
		// 1e6 weights and 8 bytes a column are 1008000 bytes.
		{"decode", []string{"a"}, []op.Op{matmul(1, op.A8TQ8C)}, 100_800, "50 % of stream bandwidth"},
		{"decode together", []string{"a", "b"}, []op.Op{matmul(1, op.A8TQ8C)}, 67_200, "50 % of stream bandwidth"},
		{"from a cache", []string{"a"}, []op.Op{matmul(1, op.A8TQ8C)}, 25_200, "read from a cache"},
		{"little above the stream", []string{"a"}, []op.Op{matmul(1, op.A8TQ8C)}, 48_500, "104 % of stream bandwidth"},
		{"above the peak", []string{"a"}, []op.Op{matmul(256, op.A8TQ8C)}, 320_000, "above the probed int8 peak"},
		{"little above the peak", []string{"a"}, []op.Op{matmul(256, op.A8TQ8C)}, 612_000, "105 % of int8 peak"},
		{"attention", []string{"a"}, []op.Op{attention}, 1_281_280, "50 % of f32 peak"},
		{"both types", []string{"a"}, []op.Op{matmul(256, op.A8TQ8C), matmul(256, op.A32W32)}, 3_200_000, "100 % of f32 peak"},
		{"elementwise", []string{"a"}, []op.Op{add}, 100, ""},
		{"with elementwise", []string{"a"}, []op.Op{matmul(1, op.A8TQ8C), add}, 100_800, "50 % of stream bandwidth"},
		{"experts", []string{"a"}, []op.Op{{Kind: op.ExpertMatMul, M: 1, K: 1000, N: 1000, Scheme: op.A8TQ8C, Experts: 8, Fan: 2}}, 201_600, "50 % of stream bandwidth"},
		{"no peak", []string{"bare"}, []op.Op{matmul(256, op.A8TQ8C)}, 100, ""},
		{"no peak of one", []string{"a", "bare"}, []op.Op{matmul(256, op.A8TQ8C)}, 100, ""},
		{"no joint bandwidth", []string{"a", "alone"}, []op.Op{matmul(256, op.A8TQ8C)}, 100, ""},
		{"unknown processor", []string{"c"}, []op.Op{matmul(256, op.A8TQ8C)}, 100, ""},
		{"no time", []string{"a"}, []op.Op{matmul(256, op.A8TQ8C)}, 0, ""},
		{"nothing", []string{"a"}, nil, 100, ""},
	} {
		got, ok := RoofOf(s, c.procs, c.ops, c.ns)
		if ok != (c.want != "") || ok && got.String() != c.want {
			t.Errorf("%s: %v %v, want %q", c.name, got, ok, c.want)
		}
	}
}

// What is read faster than the probed bandwidth comes from caches only where it fits them.
func TestRoofAboveTheStream(t *testing.T) {
	const bytes = 1_008_000 // 1e6 weights and 8 bytes a column
	product := []op.Op{{Kind: op.MatMul, M: 1, K: 1000, N: 1000, Scheme: op.A8TQ8C}}
	pair := func(bytes int64) []socs.Cache { return []socs.Cache{{Name: "l3", Bytes: bytes, Cores: []int{0, 1}}} }
	for _, c := range []struct {
		kind   string
		caches []socs.Cache
		want   string
	}{
		{socs.KindCPU, pair(bytes / 2), "read from a cache"},
		{socs.KindCPU, pair(bytes/2 - 1), "above the probed stream bandwidth"},
		{socs.KindCPU, nil, "read from a cache"},
		{socs.KindGPU, pair(1), "read from a cache"}, // it may have a larger one
	} {
		s := &socs.SoC{CPU: &socs.CPU{Cores: 4, Caches: c.caches}, Processors: []socs.Processor{
			{Name: "a", Kind: c.kind, PeakGops: map[string]float64{"i8": 800}, BandwidthGBps: 20}}}
		if got, ok := RoofOf(s, []string{"a"}, product, 25_200); !ok || got.String() != c.want {
			t.Errorf("%s with %+v: %v %v, want %q", c.kind, c.caches, got, ok, c.want)
		}
	}
}
