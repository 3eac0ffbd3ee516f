package quality

import (
	"math"
	"math/rand"
	"testing"
)

// Activations that few hidden causes drive: their directions are found, whatever the scales of the channels.
func TestSketch(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	const k, causes, rows, rank = 120, 5, 3000, 8
	mix := make([]float64, k*causes)
	scale := make([]float64, k)
	for i := range mix {
		mix[i] = rng.NormFloat64()
	}
	for i := range scale {
		scale[i] = math.Exp(2 * rng.NormFloat64())
	}
	scale[7] = 0 // silent
	x := make([][]float32, rows)
	square := make([]float32, k)
	for r := range x {
		x[r] = make([]float32, k)
		var cause [causes]float64
		for c := range cause {
			cause[c] = rng.NormFloat64()
		}
		for i := range k {
			v := 0.3 * rng.NormFloat64()
			for c := range cause {
				v += mix[i*causes+c] * cause[c]
			}
			x[r][i] = float32(v * scale[i])
			square[i] += x[r][i] * x[r][i] / rows
		}
	}
	s := newSketch(square)
	for _, row := range x {
		s.add(row)
	}
	d := s.directions(rank)
	worst := 0.0
	for i := range k {
		own := 0.0
		for j := range k {
			sum := 0.0
			for r := range rank {
				sum += float64(d[i*rank+r]) * float64(d[j*rank+r])
			}
			if i == j {
				own = sum
				continue
			}
			if i == 7 || j == 7 {
				if sum != 0 {
					t.Fatalf("the silent channel has a product of %v", sum)
				}
				continue
			}
			want := 0.0
			for r := range x {
				want += float64(x[r][i]) * float64(x[r][j]) / rows
			}
			rms := math.Sqrt(float64(square[i]) * float64(square[j]))
			worst = max(worst, math.Abs(sum-want)/rms)
		}
		if own > float64(square[i])*(1+1e-5) {
			t.Errorf("channel %d: %v, more than its mean square %v", i, own, square[i])
		}
	}
	if worst > 0.05 {
		t.Errorf("a correlation is off by %v, want 0.05 at most", worst)
	}
	// One row, fewer than vectors: what there is is found, and nothing breaks.
	one := newSketch([]float32{1, 4, 9})
	one.add([]float32{1, -2, 3})
	for i, v := range one.directions(2) {
		want := []float64{1, 0, -2, 0, 3, 0}[i]
		if math.Abs(math.Abs(float64(v))-math.Abs(want)) > 1e-3 {
			t.Errorf("directions[%d] is %v, want %v or its opposite", i, v, want)
		}
	}
}
