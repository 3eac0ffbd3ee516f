package roofline

import (
	"math"
	"testing"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver/sim"
)

// A product that ends with a gated linear unit takes its measured share of both times, at and between the measured rows
// and no other weight. A graph of both that was slower than its parts was disturbed.
func TestGatedShare(t *testing.T) {
	const proc, k, n = "cpu", 256, 1024
	soc := openSoC(t, "snapdragon-8gen3")
	set := record.NewSet(header(t, soc))
	measure := func(operator op.Op) float64 {
		ns, err := sim.NS(soc, proc, operator)
		if err != nil {
			t.Fatal(err)
		}
		measured := record.Measurement{Kind: record.Op, Proc: proc, Op: &operator, Samples: []float64{float64(ns)}}
		if operator.HasScheme() {
			measured.Layout, measured.Cold = "n32", true
		}
		add(t, set, measured)
		return float64(ns)
	}
	launch := 1e3 * soc.Processor(proc).LaunchUS
	unitOf := func(rows int) op.Op { return op.Op{Kind: op.GLU, M: rows, N: n / 2, Interleave: 16, Act: op.SiLU} }
	for rows, share := range map[int]float64{1: 0.9, 16: 0.7, 256: 1.3} {
		product, unit := matmul(rows, k, n, op.A8TQ8C), unitOf(rows)
		apart := measure(product) + measure(unit) - launch
		add(t, set, record.Measurement{Kind: record.Op, Proc: proc, Op: &product, GLU: &unit, Layout: "n32", Cold: true,
			Samples: []float64{share * apart}})
	}

	costs, err := Fit(soc, set)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		product op.Op
		want    float64
	}{
		{matmul(1, k, n, op.A8TQ8C), 0.9},
		{matmul(4, k, n, op.A8TQ8C), 0.8}, // half of the way from 1 to 16
		{matmul(16, k, n, op.A8TQ8C), 0.7},
		{matmul(64, k, n, op.A8TQ8C), 0.85},
		{matmul(16, k, n, op.A8SQ8C), 0.7}, // its twin
		{matmul(256, k, n, op.A8TQ8C), 1},
		{matmul(512, k, n, op.A8TQ8C), 1},
		{matmul(16, k, 2*n, op.A8TQ8C), 1},
		{matmul(16, k, n, op.A32W32), 1},
	} {
		unit := unitOf(test.product.M)
		if got := costs.GatedShare(proc, test.product, unit); math.Abs(got-test.want) > 0.005 {
			t.Errorf("%s: share %v, want %v", test.product.Key(), got, test.want)
		}
	}
	if got := costs.LeastGatedShare(proc); math.Abs(got-0.7) > 0.005 {
		t.Errorf("least share %v, want 0.7", got)
	}
	if got := costs.LeastGatedShare("npu"); got != 1 {
		t.Errorf("least share of a processor that joins nothing: %v", got)
	}

	// The graph of both is no sample of the product.
	predicted, err := costs.Op(proc, matmul(256, k, n, op.A8TQ8C), true)
	if err != nil {
		t.Fatal(err)
	}
	truth, err := sim.NS(soc, proc, matmul(256, k, n, op.A8TQ8C))
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(float64(predicted.NS)/float64(truth)-1) > 0.001 {
		t.Errorf("product predicted as %d ns, %d were measured", predicted.NS, truth)
	}
}

// Shares of a costs file are numbers above 0 and at most 1, one for each number of rows.
func TestGatedSharesAreChecked(t *testing.T) {
	good := Gated{Proc: "cpu", Scheme: op.A8TQ8C, K: 64, N: 96, Rows: []int{1, 16}, Shares: []float64{0.9, 1}}
	if err := good.validate(seenOnce{}); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(g *Gated){
		"none":         func(g *Gated) { g.Rows, g.Shares = nil, nil },
		"one more":     func(g *Gated) { g.Rows = []int{1, 2, 3} },
		"descending":   func(g *Gated) { g.Rows = []int{16, 1} },
		"no rows":      func(g *Gated) { g.Rows = []int{0, 1} },
		"zero":         func(g *Gated) { g.Shares = []float64{0, 1} },
		"above 1":      func(g *Gated) { g.Shares = []float64{1, 1.5} },
		"not a number": func(g *Gated) { g.Shares = []float64{math.NaN(), 1} },
	} {
		bad := good
		change(&bad)
		if bad.validate(seenOnce{}) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
