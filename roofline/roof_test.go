package roofline

import (
	"testing"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
)

// roofSoC states peaks and a joint bandwidth of two processors, and lacks one or the other of the others.
func roofSoC() *socs.SoC {
	fast := map[string]float64{"i8": 800, "f32": 200} // operations a nanosecond
	slow := map[string]float64{"i8": 400, "f32": 200}
	return &socs.SoC{
		Processors: []socs.Processor{
			{Name: "a", PeakGops: fast, BandwidthGBps: 20},
			{Name: "b", PeakGops: slow, BandwidthGBps: 20},
			{Name: "bare", BandwidthGBps: 20},
			{Name: "alone", PeakGops: fast, BandwidthGBps: 20},
		},
		Joint: []socs.Joint{
			{Processors: []string{"a", "b"}, BandwidthGBps: 30},
			{Processors: []string{"a", "bare"}, BandwidthGBps: 30},
		},
	}
}

// product is one with a weight of a million elements. Of 8 bits it has 1,008,000 bytes with 8 bytes a column.
func product(rows int, scheme op.Scheme) op.Op {
	return op.Op{Kind: op.MatMul, M: rows, K: 1000, N: 1000, Scheme: scheme}
}

// An execution is compared with the peak or with the bandwidth, whichever bounds it more, of all its processors.
func TestRoofOf(t *testing.T) {
	a, together := []string{"a"}, []string{"a", "b"}
	add := op.Op{Kind: op.Add, M: 4, N: 4}
	attention := op.Op{Kind: op.Attention, M: 1000, Heads: 1, KVHeads: 1, HeadDim: 64, KV: op.F32, Context: 1000}
	experts := product(1, op.A8TQ8C)
	experts.Kind, experts.Experts, experts.Fan = op.ExpertMatMul, 8, 2
	// 256 rows are 512e6 operations, 640 us at 800 a nanosecond; one row reads 50.4 us long.
	prefill, decode, float := product(256, op.A8TQ8C), product(1, op.A8TQ8C), product(256, op.A32W32)
	half := product(128, op.A8TQ8C)
	for _, test := range []struct {
		name  string
		procs []string
		ops   []op.Op
		ns    int64
		want  string // "" for none
	}{
		{"int8 alone", a, []op.Op{prefill}, 1_280_000, "50 % of int8 peak"},
		{"int8 together", []string{"b", "a"}, []op.Op{prefill}, 512_000, "83 % of int8 peak"},
		{"in two parts", together, []op.Op{half, half}, 512_000, "83 % of int8 peak"},
		{"f32", a, []op.Op{float}, 2_560_000, "100 % of f32 peak"},
		{"both types", a, []op.Op{prefill, float}, 3_200_000, "100 % of f32 peak"},
		{"attention", a, []op.Op{attention}, 1_281_280, "50 % of f32 peak"},
		{"little above the peak", a, []op.Op{prefill}, 612_000, "105 % of int8 peak"},
		{"above the peak", a, []op.Op{prefill}, 320_000, "above the probed int8 peak"},

		{"decode", a, []op.Op{decode}, 100_800, "50 % of stream bandwidth"},
		{"decode together", together, []op.Op{decode}, 67_200, "50 % of stream bandwidth"},
		{"with elementwise", a, []op.Op{decode, add}, 100_800, "50 % of stream bandwidth"},
		{"experts", a, []op.Op{experts}, 201_600, "50 % of stream bandwidth"},
		{"little above the stream", a, []op.Op{decode}, 48_500, "104 % of stream bandwidth"},
		{"from a cache", a, []op.Op{decode}, 25_200, "read from a cache"},

		{"elementwise", a, []op.Op{add}, 100, ""},
		{"no peak", []string{"bare"}, []op.Op{prefill}, 100, ""},
		{"no peak of one", []string{"a", "bare"}, []op.Op{prefill}, 100, ""},
		{"no joint bandwidth", []string{"a", "alone"}, []op.Op{prefill}, 100, ""},
		{"unknown processor", []string{"c"}, []op.Op{prefill}, 100, ""},
		{"no time", a, []op.Op{prefill}, 0, ""},
		{"nothing", a, nil, 100, ""},
	} {
		got, ok := RoofOf(roofSoC(), test.procs, test.ops, test.ns)
		if ok != (test.want != "") || ok && got.String() != test.want {
			t.Errorf("%s: %v %v, want %q", test.name, got, ok, test.want)
		}
	}
}

// What is read faster than the probed bandwidth comes from caches only where it fits them.
func TestRoofAboveTheStream(t *testing.T) {
	const bytes = 1_008_000 // of the weight
	pair := func(bytes int64) []socs.Cache { return []socs.Cache{{Name: "l3", Bytes: bytes, Cores: []int{0, 1}}} }
	for _, test := range []struct {
		kind   string
		caches []socs.Cache // of 4 cores
		want   string
	}{
		{socs.KindCPU, pair(bytes / 2), "read from a cache"},
		{socs.KindCPU, pair(bytes/2 - 1), "above the probed stream bandwidth"},
		{socs.KindCPU, nil, "read from a cache"},
		{socs.KindGPU, pair(1), "read from a cache"}, // it may have a larger one
	} {
		soc := roofSoC()
		soc.CPU = &socs.CPU{Cores: 4, Caches: test.caches}
		soc.Processors[0].Kind = test.kind
		got, ok := RoofOf(soc, []string{"a"}, []op.Op{product(1, op.A8TQ8C)}, 25_200)
		if !ok || got.String() != test.want {
			t.Errorf("%s with %+v: %v %v, want %q", test.kind, test.caches, got, ok, test.want)
		}
	}
}
