package pack

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
)

// plain4 quantises a block by its largest magnitude alone, which maps to -8.
func plain4(x []float32) []float32 {
	out := make([]float32, len(x))
	d := number.HalfToFloat(number.FloatToHalf(x[largest(x)] / -8))
	for i, v := range x {
		if d != 0 {
			out[i] = float32(quant4(v/d)) * d
		}
	}
	return out
}

func loss4(x, y, values []float32) float64 {
	sum := 0.0
	for i := range x {
		wi := 1.0
		if values != nil {
			wi = float64(values[i])
		}
		sum += wi * (float64(x[i]) - float64(y[i])) * (float64(x[i]) - float64(y[i]))
	}
	return sum
}

// drawImportance makes mean squares over several orders of magnitude, some of them zero.
func drawImportance(t *rapid.T, k, rank int) *Importance {
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "importance"), 1))
	ms, dir := make([]float32, k), make([]float32, k*rank)
	for i := range ms {
		ms[i] = float32(math.Exp(3 * rng.NormFloat64()))
		if rng.IntN(10) == 0 {
			ms[i] = 0
		}
		for j := range rank {
			dir[i*rank+j] = float32(math.Sqrt(float64(ms[i])/float64(rank)) * (2*rng.Float64() - 1))
		}
	}
	return must(NewImportance(ms, dir))
}

// Whatever the values, a searched scale is no worse than the one of the largest magnitude, block by block.
func TestSearchIsNeverWorse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values, k, n := drawMatrix(t)
		scheme := rapid.SampledFrom([]string{"q4b32", "q4b128"}).Draw(t, "scheme")
		var imp *Importance
		if rapid.Bool().Draw(t, "weighted") {
			imp = drawImportance(t, k, 0)
		}
		spec := op.WeightSpec{Name: "w", K: k, N: n, Scheme: scheme, Layout: N32}
		dst := make([]byte, must(Bytes(spec)))
		if err := PackFor(dst, spec, must(Floats(values, k, n)), imp); err != nil {
			t.Fatal(err)
		}
		got := make([]float32, k*n)
		if err := Unpack(got, spec, dst); err != nil {
			t.Fatal(err)
		}
		block := q4Block(scheme)
		for c := range n {
			for k0 := 0; k0 < k; k0 += block {
				var x, y, weight []float32
				for i := k0; i < min(k, k0+block); i++ {
					x, y = append(x, values[i*n+c]), append(y, got[i*n+c])
					if imp != nil {
						weight = append(weight, imp.weight[i])
					}
				}
				was, is := loss4(x, plain4(x), weight), loss4(x, y, weight)
				if is > was*(1+1e-4)+1e-12*loss4(x, make([]float32, len(x)), weight) {
					t.Fatalf("column %d, rows from %d: loss %g, and %g without search", c, k0, is, was)
				}
			}
		}
	})
}

// random is a matrix of normal values and activations with strong correlations: H is their second moment.
func random(k, n, rank int) (values, ms, dir []float32, h [][]float64) {
	rng := rand.New(rand.NewPCG(7, uint64(k)))
	values = make([]float32, k*n)
	for i := range values {
		values[i] = float32(rng.NormFloat64())
	}
	ms, dir = make([]float32, k), make([]float32, k*rank)
	h = make([][]float64, k)
	for i := range dir {
		dir[i] = float32(rng.NormFloat64())
	}
	for i := range h {
		h[i] = make([]float64, k)
		for j := range h {
			for r := range rank {
				h[i][j] += float64(dir[i*rank+r]) * float64(dir[j*rank+r])
			}
		}
		h[i][i] += 0.5 + rng.Float64()
		ms[i] = float32(h[i][i])
	}
	return values, ms, dir, h
}

// cost is the sum of e' H e over all columns.
func cost(t *testing.T, values, got []float32, h [][]float64, n int) float64 {
	t.Helper()
	sum := 0.0
	for c := range n {
		for i := range h {
			for j := range h {
				sum += float64(values[i*n+c]-got[i*n+c]) * h[i][j] * float64(values[j*n+c]-got[j*n+c])
			}
		}
	}
	return sum
}

func packFor(t *testing.T, spec op.WeightSpec, src Source, imp *Importance) []byte {
	t.Helper()
	dst := make([]byte, must(Bytes(spec)))
	if err := PackFor(dst, spec, src, imp); err != nil {
		t.Fatal(err)
	}
	return dst
}

// plain6 rounds values to 31 steps of the largest magnitude, of either sign.
func plain6(x []float32) []float32 {
	out := make([]float32, len(x))
	step := abs(x[largest(x)]) / 31
	for i, value := range x {
		out[i] = float32(math.RoundToEven(float64(value/step))) * step
	}
	return out
}

// What the search and the feedback of errors gain where they can: a third and more. With 6 bits and such numbers
// clipping gains next to nothing.
func TestSearchAndFeedbackGain(t *testing.T) {
	const k, n, rank = 256, 40, 6
	values, ms, dir, h := random(k, n, rank)
	for _, test := range []struct {
		scheme string
		search float64 // at most this share of what came before
		feed   float64
	}{{"q4b32", 0.95, 0.5}, {"q4b128", 0.85, 0.5}, {"q4c", 0.95, 0.5}, {"q6c", 1, 0.5}} {
		spec := op.WeightSpec{Name: "w", K: k, N: n, Scheme: test.scheme, Layout: N32}
		src := floats(t, values, k, n)
		plain := make([]float32, k*n)
		block := q4Block(test.scheme)
		if mostCode(test.scheme) > 0 {
			block = k
		}
		rounded := plain4
		if test.scheme == "q6c" {
			rounded = plain6
		}
		for col := range n {
			for k0 := 0; k0 < k; k0 += block {
				var x []float32
				for i := range block {
					x = append(x, values[(k0+i)*n+col])
				}
				for i, v := range rounded(x) {
					plain[(k0+i)*n+col] = v
				}
			}
		}
		a := cost(t, values, plain, h, n)
		b := cost(t, values, mustUnpack(t, spec, packFor(t, spec, src, must(NewImportance(ms, nil)))), h, n)
		f := cost(t, values, mustUnpack(t, spec, packFor(t, spec, src, must(NewImportance(ms, dir)))), h, n)
		t.Logf("%s: largest magnitude %.4g, search %.4g, with feedback %.4g", test.scheme, a, b, f)
		if b > test.search*a || f > test.feed*b {
			t.Errorf("%s: largest magnitude %.4g, search %.4g, with feedback %.4g", test.scheme, a, b, f)
		}
	}
}

// Rows behind others get the values they have in the whole, whatever the importance.
func TestRowsBehindOthers(t *testing.T) {
	const k, n, rank = 320, 35, 5
	values, ms, dir, _ := random(k, n, rank)
	for _, d := range [][]float32{nil, dir} {
		imp := must(NewImportance(ms, d))
		for _, scheme := range []string{"q4b32", "q4b128"} {
			spec := op.WeightSpec{Name: "w", K: k, N: n, Scheme: scheme, Layout: N32}
			whole := mustUnpack(t, spec, packFor(t, spec, floats(t, values, k, n), imp))
			for k0 := 0; k0 < k; k0 += q4Block(scheme) {
				part := spec
				part.K = k - k0
				got := mustUnpack(t, part, packFor(t, part, floats(t, values, k, n), imp))
				if fmt.Sprint(got) != fmt.Sprint(whole[k0*n:]) {
					t.Errorf("%s, %d directions: rows from %d differ", scheme, imp.rank, k0)
				}
			}
			part := spec // the first rows alone
			part.K = 128
			if got := mustUnpack(t, part, packFor(t, part, floats(t, values[:128*n], 128, n), imp)); fmt.Sprint(
				got) != fmt.Sprint(whole[:128*n]) {
				t.Errorf("%s, %d directions: the first rows differ", scheme, imp.rank)
			}
			part.K = k - 1
			if err := PackFor(make([]byte, must(Bytes(part))), part, floats(t, values, k, n), imp); err == nil {
				t.Errorf("%s: rows from 1 are accepted", scheme)
			}
		}
		// Of schemes without blocks it is the plain slice.
		part := op.WeightSpec{Name: "w", K: k - 64, N: n, Scheme: "q8c", Layout: N32}
		if !bytes.Equal(packFor(t, part, floats(t, values, k, n), imp),
			mustPack(t, part, floats(t, values[64*n:], k-64, n))) {
			t.Error("q8c: rows from 64 differ")
		}
	}
}

func TestFeedbackDeterministicOverCores(t *testing.T) {
	const k, n, rank = 256, 200, 9
	values, ms, dir, _ := random(k, n, rank)
	for _, scheme := range []string{"q4b32", "q4b128", "q4c", "q6c"} {
		spec := op.WeightSpec{Name: "w", K: k, N: n, Scheme: scheme, Layout: N32}
		var first []byte
		for _, procs := range []int{1, 2, 5} {
			old := runtime.GOMAXPROCS(procs)
			data := packFor(t, spec, floats(t, values, k, n), must(NewImportance(ms, dir)))
			runtime.GOMAXPROCS(old)
			if first == nil {
				first = data
			}
			if !bytes.Equal(data, first) {
				t.Errorf("%s: bytes differ with %d cores", scheme, procs)
			}
		}
	}
}

// Importance that says nothing (all zero), extreme ranges and values at the limits give finite results.
func TestFeedbackExtremes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values, k, n := drawMatrix(t)
		rank := rapid.IntRange(0, 5).Draw(t, "rank")
		ms := make([]float32, k)
		dir := make([]float32, k*rank)
		scale := float32(math.Pow(10, float64(rapid.IntRange(-30, 30).Draw(t, "exponent"))))
		for i := range ms {
			ms[i] = scale * rapid.SampledFrom([]float32{0, 1, 1, 1, 1e-6, 1e6}).Draw(t, "mean square")
		}
		for i := range dir {
			dir[i] = rapid.SampledFrom([]float32{0, 1, -1, 1e-6, 1e6}).Draw(t,
				"direction") * float32(math.Sqrt(float64(scale)))
		}
		imp := must(NewImportance(ms, dir))
		spec := op.WeightSpec{Name: "w", K: k, N: n,
			Scheme: rapid.SampledFrom([]string{"q4b32", "q4b128", "q4c", "q6c"}).Draw(t, "scheme"), Layout: N32}
		dst := make([]byte, must(Bytes(spec)))
		if err := PackFor(dst, spec, must(Floats(values, k, n)), imp); err != nil {
			if !strings.Contains(err.Error(), "too large") {
				t.Fatal(err)
			}
			return
		}
		got := make([]float32, k*n)
		if err := Unpack(got, spec, dst); err != nil {
			t.Fatal(err)
		}
		for i, v := range got {
			if !finite(v) {
				t.Fatalf("value %d is %v", i, v)
			}
		}
	})
}

func TestImportanceRefuses(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, test := range []struct {
		ms, dir []float32
		want    string
	}{
		{nil, nil, "0 mean squares"},
		{[]float32{1, nan}, nil, "mean square 1 is NaN"},
		{[]float32{1, -1}, nil, "mean square 1 is -1"},
		{[]float32{inf}, nil, "mean square 0"},
		{[]float32{1, 1}, []float32{1, 2, 3}, "whole number of directions"},
		{[]float32{1, 1}, []float32{1, 2, 3, inf}, "direction 1 of row 1"},
		{[]float32{1}, make([]float32, maxRank+1), "at most"},
	} {
		if _, err := NewImportance(test.ms, test.dir); err == nil || !strings.Contains(err.Error(), test.want) ||
			diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%v %v: got %v, want %q", test.ms, test.dir, err, test.want)
		}
	}
	imp := must(NewImportance([]float32{1}, nil))
	spec := op.WeightSpec{Name: "w", K: 2, N: 3, Scheme: "q4b32", Layout: N32}
	if err := PackFor(make([]byte, must(Bytes(spec))), spec, floats(t, make([]float32, 6), 2, 3), imp); err == nil ||
		!strings.Contains(err.Error(), "want 2") {
		t.Errorf("importance of other rows: %v", err)
	}
}

func BenchmarkFeedback(b *testing.B) {
	const k, n = 2048, 512
	for _, rank := range []int{0, 32} {
		values, ms, dir, _ := random(64, 1, max(1, rank))
		_ = values
		values = make([]float32, k*n)
		rng := rand.New(rand.NewPCG(3, 4))
		for i := range values {
			values[i] = float32(rng.NormFloat64())
		}
		full, d := make([]float32, 0, k), make([]float32, 0, k*rank)
		for range k / 64 {
			full = append(full, ms...)
			if rank > 0 {
				d = append(d, dir...)
			}
		}
		imp := must(NewImportance(full, d))
		src := must(Floats(values, k, n))
		for _, scheme := range []string{"q4b32", "q4b128"} {
			b.Run(fmt.Sprintf("%s/rank%d", scheme, rank), func(b *testing.B) {
				spec := op.WeightSpec{Name: "w", K: k, N: n, Scheme: scheme, Layout: N32}
				dst := make([]byte, must(Bytes(spec)))
				for b.Loop() {
					if err := PackFor(dst, spec, src, imp); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(k*n)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mparam/s")
			})
		}
	}
}
