package stat

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func near(a, b, tol float64) bool { return math.Abs(a-b) <= tol }

func TestSummarise(t *testing.T) {
	s, err := Summarise([]float64{3, 1, 2, 4, 100, 5, 6, 7, 8, 9})
	if err != nil {
		t.Fatal(err)
	}
	// n = 10: x_2 and x_9 cover the median with 1 - 2*11/1024.
	want := Summary{N: 10, Min: 1, Median: 5.5, MAD: 2.5, P90: 9, Mean: 14.5, Midmean: 5.5, Low: 2, High: 9, Coverage: 1 - 22.0/1024}
	if s.Coverage = math.Round(s.Coverage*1e12) / 1e12; !near(s.Coverage, want.Coverage, 1e-9) {
		t.Errorf("coverage %g, want %g", s.Coverage, want.Coverage)
	}
	s.Coverage = want.Coverage
	if s != want {
		t.Errorf("got %+v, want %+v", s, want)
	}
	for _, bad := range [][]float64{nil, {1, math.NaN()}, {math.Inf(1)}} {
		if _, err := Summarise(bad); err == nil {
			t.Errorf("%v accepted", bad)
		}
	}
}

// The mean of the middle half, by hand.
func TestMidmean(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		want    float64
	}{
		{[]float64{7}, 7},
		{[]float64{1, 3}, 2},
		{[]float64{9, 1, 2}, 3},        // (1/4 + 2 + 9/4) / 1.5
		{[]float64{1, 2, 4, 100}, 3},   // both in the middle
		{[]float64{0, 1, 5, 9, 50}, 5}, // (3/4 + 5 + 27/4) / 2.5
	} {
		s, err := Summarise(c.samples)
		if err != nil || !near(s.Midmean, c.want, 1e-12) {
			t.Errorf("%v: got %g, %v, want %g", c.samples, s.Midmean, err, c.want)
		}
	}
}

// TestIntervalTable compares with the published table of order-statistic intervals of the median.
func TestIntervalTable(t *testing.T) {
	for n, rank := range map[int]int{6: 1, 8: 1, 9: 2, 11: 2, 12: 3, 15: 4, 20: 6, 25: 8, 30: 10, 50: 18, 100: 40} {
		i, cover := interval(n)
		if i+1 != rank || cover < confidence {
			t.Errorf("n = %d: rank %d with coverage %g, want rank %d", n, i+1, cover, rank)
		}
	}
	for n, want := range map[int]float64{1: 0, 2: 0.5, 3: 0.75, 5: 0.9375} {
		if i, cover := interval(n); i != 0 || !near(cover, want, 1e-12) {
			t.Errorf("n = %d: rank %d with coverage %g, want rank 1 with %g", n, i+1, cover, want)
		}
	}
}

// TestIntervalCovers draws from a skewed distribution and counts how often the true median is inside.
func TestIntervalCovers(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const runs = 4000
	inside := 0
	for range runs {
		xs := make([]float64, 15)
		for i := range xs {
			xs[i] = rng.ExpFloat64()
		}
		s, err := Summarise(xs)
		if err != nil {
			t.Fatal(err)
		}
		if s.Low <= math.Ln2 && math.Ln2 <= s.High {
			inside++
		}
	}
	// Exact coverage at n = 15 is 0.9648.
	if got := float64(inside) / runs; got < 0.95 || got > 0.98 {
		t.Errorf("coverage %g, want about 0.965", got)
	}
}

func TestSummaryProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		xs := rapid.SliceOfN(rapid.Float64Range(1e-3, 1e9), 1, 60).Draw(t, "xs")
		s, err := Summarise(xs)
		if err != nil {
			t.Fatal(err)
		}
		if !(s.Min <= s.Low && s.Low <= s.Median && s.Median <= s.High && s.Median <= s.P90+1e-9*s.P90 || s.N < 3) || s.MAD < 0 {
			t.Fatalf("out of order: %+v", s)
		}
		// Order of samples does not matter, scale does as it should.
		shuffled := rapid.Permutation(xs).Draw(t, "shuffled")
		if s2, _ := Summarise(shuffled); s2 != s {
			t.Fatalf("%+v after a permutation, want %+v", s2, s)
		}
		doubled := make([]float64, len(xs))
		for i, x := range xs {
			doubled[i] = 2 * x
		}
		if d, _ := Summarise(doubled); d.Median != 2*s.Median || d.Low != 2*s.Low || d.High != 2*s.High || d.MAD != 2*s.MAD {
			t.Fatalf("%+v after doubling %+v", d, s)
		}
		if Median(xs) != s.Median {
			t.Fatal("medians differ")
		}
	})
}

func TestRule(t *testing.T) {
	r := DefaultRule
	constant := slices.Repeat([]float64{5}, 30)
	if v := r.Judge(constant[:9]); v != More {
		t.Errorf("9 samples: %v", v)
	}
	if v := r.Judge(constant[:10]); v != Precise {
		t.Errorf("10 equal samples: %v", v)
	}
	if v := r.Judge(nil); v != More {
		t.Errorf("no samples: %v", v)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	var noisy []float64
	for range 1000 {
		noisy = append(noisy, 1+rng.Float64())
	}
	stop := Rule{Min: 10, Max: 1000, Within: 1e-6}
	n := 10
	for stop.Judge(noisy[:n]) == More {
		n++
	}
	if v := stop.Judge(noisy[:n]); v != Stabilised || n < 2*stableWindow || n > 900 {
		t.Errorf("steady noise: verdict %v after %d samples", v, n)
	}
	// Noise that keeps growing never counts as stable.
	growing := make([]float64, 200)
	for i := range growing {
		growing[i] = 1 + float64(i*i)/4e4*rng.Float64()
	}
	for n := 10; n < 200; n++ {
		if v := stop.Judge(growing[:n]); v == Stabilised {
			t.Fatalf("growing noise counts as stable after %d", n)
		}
	}
	if v := (Rule{Min: 10, Max: 50, Within: 1e-6}).Judge(noisy[:50]); v != Exhausted {
		t.Errorf("at the cap: %v", v)
	}
	// A median of zero has no relative interval, so sampling goes on to the cap.
	if v := r.Judge(make([]float64, 20)); v != More {
		t.Errorf("zeros: %v", v)
	}
}

func TestMannWhitney(t *testing.T) {
	seq := func(from, to float64) (xs []float64) {
		for x := from; x <= to; x++ {
			xs = append(xs, x)
		}
		return xs
	}
	for _, tt := range []struct {
		a, b []float64
		want float64
	}{
		{seq(1, 3), seq(4, 6), 0.1},                                         // 2/20
		{seq(1, 5), seq(6, 10), 2.0 / 252},                                  // 2/C(10,5)
		{[]float64{1, 4}, []float64{2, 3}, 1},                               // U = 2 of 4
		{[]float64{1.1, 2.2, 3.3}, []float64{2.5, 4.4, 5.5, 6.6}, 4.0 / 35}, // U = 1: orders with U <= 1 are 2 of 35
		{slices.Repeat([]float64{1}, 20), slices.Repeat([]float64{1}, 20), 1},
	} {
		p, err := mannWhitney(tt.a, tt.b)
		if err != nil || !near(p, tt.want, 1e-12) {
			t.Errorf("%v %v: p = %g, %v, want %g", tt.a, tt.b, p, err, tt.want)
		}
	}
	if _, err := mannWhitney(nil, seq(1, 3)); err == nil {
		t.Error("empty side accepted")
	}
	if _, err := mannWhitney([]float64{math.NaN()}, seq(1, 3)); err == nil {
		t.Error("NaN accepted")
	}
}

// TestMannWhitneyBruteForce counts all orders of small samples.
func TestMannWhitneyBruteForce(t *testing.T) {
	for n := 1; n <= 5; n++ {
		for m := 1; m <= 5; m++ {
			counts := make([]int, n*m+1)
			total := 0
			for mask := range 1 << (n + m) {
				u, seen := 0, 0
				ones := 0
				for i := range n + m {
					if mask>>i&1 == 1 {
						ones++
						u += seen
					} else {
						seen++
					}
				}
				if ones == n {
					counts[u]++
					total++
				}
			}
			sum := 0
			for u := 0; u <= n*m/2; u++ {
				sum += counts[u]
				want := min(1, 2*float64(sum)/float64(total))
				if got := exactU(n, m, u); !near(got, want, 1e-12) {
					t.Errorf("exactU(%d,%d,%d) = %g, want %g", n, m, u, got, want)
				}
			}
		}
	}
}

// TestMannWhitneyLevel checks that equal distributions are rejected as often as the level says, by
// both methods.
func TestMannWhitneyLevel(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, n := range []int{10, 40} {
		const runs = 3000
		rejected := 0
		for range runs {
			a, b := make([]float64, n), make([]float64, n)
			for i := range a {
				a[i], b[i] = rng.ExpFloat64(), rng.ExpFloat64()
			}
			p, err := mannWhitney(a, b)
			if err != nil {
				t.Fatal(err)
			}
			q, _ := mannWhitney(b, a)
			if !near(p, q, 1e-12) {
				t.Fatalf("not symmetric: %g and %g", p, q)
			}
			if p < 0.05 {
				rejected++
			}
		}
		if got := float64(rejected) / runs; got < 0.035 || got > 0.062 {
			t.Errorf("n = %d: %g rejected at 0.05", n, got)
		}
	}
}

func TestRatio(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	covered := 0
	const runs = 300
	for run := range runs {
		a, b := make([]float64, 20), make([]float64, 20)
		for i := range a {
			a[i], b[i] = 2*math.Exp(0.1*rng.NormFloat64()), math.Exp(0.1*rng.NormFloat64())
		}
		ratio, low, high, err := Ratio(a, b, 400, uint64(run))
		if err != nil || !(low <= ratio && ratio <= high) {
			t.Fatalf("%g in [%g, %g], %v", ratio, low, high, err)
		}
		if low <= 2 && 2 <= high {
			covered++
		}
		_, low2, high2, _ := Ratio(a, b, 400, uint64(run))
		if low != low2 || high != high2 {
			t.Fatal("the same seed gives another interval")
		}
	}
	if got := float64(covered) / runs; got < 0.9 {
		t.Errorf("coverage %g, want about 0.95", got)
	}
	for _, bad := range [][]float64{nil, {0}, {-1}, {math.NaN()}, {math.Inf(1)}} {
		if _, _, _, err := Ratio(bad, []float64{1}, 10, 1); err == nil {
			t.Errorf("%v accepted", bad)
		}
	}
}

func TestDrift(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	var flat, step []float64
	for i := range 40 {
		x := 100 + rng.Float64()
		flat = append(flat, x)
		if i >= 20 {
			x *= 1.1
		}
		step = append(step, x)
	}
	if Drift(flat, 0.03) || !Drift(step, 0.03) || Drift(step[18:24], 0.03) {
		t.Errorf("drift: flat %v, step %v, too few %v", Drift(flat, 0.03), Drift(step, 0.03), Drift(step[18:24], 0.03))
	}
}
