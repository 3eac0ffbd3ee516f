package quality

import (
	"math"
	"math/rand"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/executor"
)

func TestWindows(t *testing.T) {
	ids := make([]int32, 100)
	for i := range ids {
		ids[i] = int32(i)
	}
	for _, c := range []struct{ n, size, most, want int }{
		{100, 10, 0, 10}, {100, 10, 3, 3}, {100, 50, 0, 2}, {100, 33, 7, 3}, {99, 33, 0, 3}, {100, 51, 0, 0}, {0, 8, 0, 0}, {100, 7, 0, 0},
	} {
		got, err := Windows(ids[:c.n], c.size, c.most)
		if len(got) != c.want || (err == nil) != (c.want > 0) || err != nil && diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%d tokens in windows of %d, at most %d: %d windows, %v, want %d", c.n, c.size, c.most, len(got), err, c.want)
			continue
		}
		for i, w := range got {
			end := (i + 1) * c.size
			if !slices.Equal(w.Tokens, ids[end-c.size:end]) || w.Next >= 0 != (end < c.n) || w.Next >= 0 && w.Next != ids[end] {
				t.Errorf("window %d is %v, then %d", i, w.Tokens, w.Next)
			}
		}
	}
}

func rows(t *rapid.T, n int, labels ...string) []row {
	var out []row
	for _, l := range labels {
		r, err := newRow(rapid.SliceOfN(rapid.Float32Range(-300, 300), n, n).Draw(t, l))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

func TestDivergence(t *testing.T) {
	row := func(p ...float64) row {
		v := make([]float32, len(p))
		for i := range p {
			v[i] = float32(math.Log(p[i]))
		}
		r, err := newRow(v)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	p, q := row(0.5, 0.25, 0.25), row(0.25, 0.5, 0.25)
	if got, want := divergence(&p, &q), 0.25*math.Log(2); math.Abs(got-want) > 1e-7 {
		t.Errorf("divergence %v, want %v", got, want)
	}
	if p.top != 0 || q.top != 1 {
		t.Errorf("largest at %d and %d, want 0 and 1", p.top, q.top)
	}
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		if _, err := newRow([]float32{1, float32(bad), 2}); err == nil {
			t.Errorf("%v is accepted", bad)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "n")
		x := rows(t, n, "p", "q")
		p, q := x[0], x[1]
		kl := divergence(&p, &q)
		if !(kl >= 0) {
			t.Fatalf("divergence %v, want 0 or more", kl)
		}
		if d := divergence(&p, &p); d != 0 {
			t.Fatalf("divergence from itself is %v", d)
		}
		// A constant added to all logits changes nothing, nor does another order of the vocabulary.
		order := rapid.Permutation(seq(n)).Draw(t, "order")
		var a, b []float32
		for _, i := range order {
			a, b = append(a, p.logits[i]+64), append(b, q.logits[i])
		}
		pa, err1 := newRow(a)
		qb, err2 := newRow(b)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		if d := divergence(&pa, &qb); math.Abs(d-kl) > 1e-4*(1+kl) {
			t.Fatalf("divergence %v in another order, want %v", d, kl)
		}
	})
}

func seq(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func TestStudent(t *testing.T) {
	for df, want := range map[int]float64{1: 12.706, 2: 4.303, 10: 2.228, 11: 2.201, 12: 2.179, 20: 2.086, 60: 2.000, 1000: 1.962} {
		if got := student(df); math.Abs(got-want) > 6e-4 {
			t.Errorf("%d degrees of freedom: %v, want %v", df, got, want)
		}
	}
}

// The interval holds the true mean in about 95 % of all cases.
func TestEstimateCovers(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	for _, n := range []int{2, 5, 30} {
		covered := 0
		const tries = 2000
		for range tries {
			x := make([]float64, n)
			for i := range x {
				x[i] = 3 + rng.NormFloat64()
			}
			if e := estimate(x); e.Low <= 3 && 3 <= e.High {
				covered++
			}
		}
		if share := float64(covered) / tries; share < 0.93 || share > 0.97 {
			t.Errorf("intervals of %d samples hold the mean in %.3f of all cases, want 0.95", n, share)
		}
	}
}

func TestTally(t *testing.T) {
	var tally Tally
	if _, err := tally.Result(); err == nil {
		t.Error("no window has a result")
	}
	tally = Tally{positions: 32, kl: []float64{0.01, 0.03}, top: []float64{1, 0.9}, nll: []float64{2, 3.1}, ref: []float64{2, 3}}
	r, err := tally.Result()
	if err != nil {
		t.Fatal(err)
	}
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
	if !near(r.KL.Mean, 0.02) || r.KL.Low != 0 || !near(r.TopAgreement.Mean, 0.95) || r.TopAgreement.High != 1 ||
		!near(r.Perplexity.Mean, math.Exp(2.55)) || !near(r.PerplexityRatio.Mean, math.Exp(0.05)) || r.Positions != 32 || r.Windows != 2 {
		t.Errorf("%+v", r)
	}
}

func TestRatio(t *testing.T) {
	a, b := &Tally{kl: []float64{0.01, 0.03, 0.08}}, &Tally{kl: []float64{0.02, 0.03, 0.04}}
	if r := Ratio(a, b); math.Abs(r.Mean-1) > 1e-12 || !(r.Low < 1 && 1 < r.High) {
		t.Errorf("ratio %+v, want a mean of 1", r)
	}
	half := &Tally{kl: []float64{0.005, 0.015, 0.04}}
	if r := Ratio(half, a); math.Abs(r.Mean-0.5) > 1e-12 || math.Abs(r.High-0.5) > 1e-12 {
		t.Errorf("ratio %+v, want 0.5 in every window", r)
	}
	zero := &Tally{kl: []float64{0, 0, 1e-15}}
	if r := Ratio(zero, zero); r.Mean != 1 || r.High != 1 {
		t.Errorf("ratio of nothing and nothing is %+v", r)
	}
	if a.KL() != 0.04 {
		t.Errorf("mean %v, want 0.04", a.KL())
	}
}

// bytes is host memory as a buffer.
type buffer []byte

func (b buffer) Bytes() []byte { return b }
func (b buffer) Close() error  { return nil }

func TestRanges(t *testing.T) {
	o := op.Op{Kind: op.MatMul, M: 4, K: 4, N: 2, Scheme: op.A32W32}
	g := op.Single(o, "n32")
	const stride = 6
	see := func(r *Ranges, layer int, x [][]float32) {
		all := make([]float32, len(x)*stride)
		for i, row := range x {
			copy(all[i*stride:], row)
		}
		results := make([]float32, len(x)*3)
		for i, row := range x {
			if len(row) > 1 {
				results[3*i], results[3*i+1], results[3*i+2] = -2*row[0], row[1], 1e9 // the last is between rows
			}
		}
		r.Observe(executor.Observed{Node: "layers.up", Layer: layer, Graph: &g, Rows: 2,
			In:  []driver.View{{Buffer: buffer(mem.Bytes(all)), Type: op.F32, Rows: 4, Cols: 4, Stride: stride}},
			Out: []driver.View{{Buffer: buffer(mem.Bytes(results)), Type: op.F32, Rows: 4, Cols: 2, Stride: 3}}})
	}
	var r Ranges
	twice := func() {
		for pass := range 2 {
			see(&r, 0, [][]float32{{1, -2, 1, 1, 99, 99}, {1, 1, 0, 10}, {50, 50, 50, 50}, {50, 50, 50, 50}}) // two rows in use
			see(&r, 1, [][]float32{{1, 1, 1, 1}, {1, 1, 1, 1}, {}, {}})
			see(&r, 0, [][]float32{{0, 0, 0, 2}, {0, 0, 0, -20}, {}, {}})
			if pass == 0 {
				r.Again()
			}
		}
	}
	twice()
	r.Stop()
	see(&r, 0, [][]float32{{1000, 1000, 1000, 1000}, {}, {}, {}})
	a, err := r.Activations(2)
	if err != nil || len(a) != 2 {
		t.Fatal(a, err)
	}
	x := a[0]
	if x.Class != "layers.up" || x.Layer != 0 || x.K != 4 || x.Rows != 4 || !slices.Equal(x.AbsMax, []float32{1, 2, 1, 20}) ||
		!slices.Equal(x.MeanSquare, []float32{0.5, 1.25, 0.25, (1 + 100 + 4 + 400) / 4.}) {
		t.Errorf("%+v", x)
	}
	if !slices.Equal(x.OutMax, []float32{2, 2}) {
		t.Errorf("results reach %v, want 2 and 2", x.OutMax)
	}
	if len(x.Outliers) != 1 || x.Outliers[0].Channel != 3 || x.Outliers[0].Max != 20 || x.Outliers[0].Share != 0.5 {
		t.Errorf("outliers %+v, want channel 3 in half of the rows", x.Outliers)
	}
	if a[1].Layer != 1 || len(a[1].Outliers) != 0 {
		t.Errorf("%+v", a[1])
	}
	var bad Ranges
	see(&bad, 0, [][]float32{{1, float32(math.NaN())}, {}, {}, {}})
	if _, err := bad.Activations(2); diag.ClassOf(err) != diag.ClassRun {
		t.Errorf("NaN: %v", err)
	}
	var quantised Ranges
	o.Scheme = op.A8TQ8C
	q := op.Single(o, "n32")
	quantised.Observe(executor.Observed{Node: "n", Graph: &q, Rows: 1, In: []driver.View{{Type: op.U8, Rows: 4, Cols: 4, Stride: 4}, {}}})
	if _, err := quantised.Activations(2); err == nil {
		t.Error("quantised activations are taken for float32")
	}
}
