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
		{"above the peak", []string{"a"}, []op.Op{matmul(256, op.A8TQ8C)}, 320_000, "200 % of int8 peak"},
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
