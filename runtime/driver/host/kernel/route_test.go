package kernel

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hetc/hetc/planir/op"
)

// Choices and weights are those that PyTorch computes in float32 for the same logits, sparsemixer as in PhiMoE.
func TestRouteAsPyTorch(t *testing.T) {
	logits := []float32{1.8423298597335815, 0.5188871622085571, -1.7119213342666626, -1.7013792991638184,
		2.0194194316864014, -0.26861444115638733, -0.13071750104427338, -1.4374138116836548}
	cases := []struct {
		router  string
		jitter  float64
		logits  []float32
		ids     []int32
		weights []float32
	}{
		{
			router: op.RouteSoftmax, logits: logits,
			ids: []int32{4, 0, 1}, weights: []float32{0.42402440309524536, 0.35520726442337036, 0.09456228464841843},
		},
		{
			router: op.RouteSoftmaxNorm, logits: logits,
			ids: []int32{4, 0, 1}, weights: []float32{0.48526817560195923, 0.40651145577430725, 0.10822034627199173},
		},
		{
			router: op.RouteSparseMixer, jitter: 0.01, logits: []float32{1, 2, 3, 2.99, 0.5, -1},
			ids: []int32{2, 3}, weights: []float32{0.5024999976158142, 1},
		},
		{
			router: op.RouteSparseMixer, jitter: 0.01, logits: []float32{3, 3, 3, 2.95, 2.9, 1},
			ids: []int32{0, 1}, weights: []float32{0.25308576226234436, 0.33884182572364807},
		},
		{
			router: op.RouteSparseMixer, jitter: 0.01, logits: []float32{-1, -1.01, -1.015, -1.03, -5, -1},
			ids: []int32{0, 5}, weights: []float32{0.25156208872795105, 0.33611616492271423},
		},
		{
			router: op.RouteSparseMixer, jitter: 0.01, logits: []float32{0, 0, -0.001, 0.001, -0.5, 0.25},
			ids: []int32{5, 3}, weights: []float32{1, 1},
		},
		{
			router: op.RouteSparseMixer, jitter: 0.01, logits: []float32{5.1, 5, 4.95, 4.9, 4.85, 4},
			ids: []int32{0, 1}, weights: []float32{0.5249791741371155, 0.3501318693161011},
		},
		{
			router: op.RouteSparseMixer, jitter: 0.02, logits: []float32{3, 3, 3, 2.95, 2.9, 1},
			ids: []int32{0, 1}, weights: []float32{0.20592795312404633, 0.2593315839767456},
		},
		{
			router: op.RouteSparseMixer, jitter: 0.02, logits: []float32{-1, -1.01, -1.015, -1.03, -5, -1},
			ids: []int32{0, 5}, weights: []float32{0.20219963788986206, 0.25344640016555786},
		},
		{
			router: op.RouteSparseMixer, jitter: 0.02, logits: []float32{5.1, 5, 4.95, 4.9, 4.85, 4},
			ids: []int32{0, 1}, weights: []float32{0.2789963483810425, 0.2690504789352417},
		},
		{
			router: op.RouteSparseMixer, jitter: 0.02, logits: []float32{-3, -2, 7.5, 7.4, 7.3, 7.6},
			ids: []int32{5, 2}, weights: []float32{0.28865134716033936, 0.36716535687446594},
		},
	}
	for _, c := range cases {
		ids, weights := make([]int32, len(c.ids)), make([]float32, len(c.ids))

		if !Route(ids, weights, c.logits, c.router, c.jitter) {
			t.Fatalf("%s of %v was refused", c.router, c.logits)
		}

		what := fmt.Sprintf("%s jitter %v of %v", c.router, c.jitter, c.logits)
		if !slices.Equal(ids, c.ids) {
			t.Errorf("%s: got experts %v, want %v", what, ids, c.ids)
		}
		for i, want := range c.weights {
			if math.Abs(float64(weights[i]-want)) > 3e-7 {
				t.Errorf("%s: got weights %v, want %v", what, weights, c.weights)
				break
			}
		}
	}
}

// Experts are distinct, in descending order of their logits and, where those are equal, ascending order of index.
func TestRouteOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(41, 42))
	for range 2000 {
		logits := tiedLogits(rng)
		order := byDescending(logits)
		fan := 1 + rng.IntN(len(logits))
		for _, router := range op.Routers {
			chosen := fan
			if router == op.RouteSparseMixer {
				chosen = min(2, fan)
			}
			ids, weights := make([]int32, chosen), make([]float32, chosen)

			accepted := Route(ids, weights, logits, router, 0.01)

			if !accepted || !slices.Equal(ids, order[:chosen]) {
				t.Fatalf("%s of %v: got %v (accepted: %v), want %v", router, logits, ids, accepted, order[:chosen])
			}
			sum := float32(0)
			for _, w := range weights {
				if !(w >= 0 && w <= 1) {
					t.Fatalf("%s of %v: weights %v", router, logits, weights)
				}
				sum += w
			}
			if router == op.RouteSoftmaxNorm && math.Abs(float64(sum)-1) > 1e-5 {
				t.Fatalf("%s of %v: weights %v sum to %v", router, logits, weights, sum)
			}
		}
	}
}

// tiedLogits are up to 40 logits, among which many are equal and some are the largest that there are.
func tiedLogits(rng *rand.Rand) []float32 {
	logits := make([]float32, 1+rng.IntN(40))
	for i := range logits {
		choices := []float32{0, float32(math.Copysign(0, -1)), 1, -1, math.MaxFloat32, -math.MaxFloat32,
			float32(rng.IntN(6))}
		logits[i] = choices[rng.IntN(len(choices))]
	}
	return logits
}

// byDescending are the indices of logits in descending order, equal ones in ascending order of index.
func byDescending(logits []float32) []int32 {
	order := make([]int32, len(logits))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(logits[b], logits[a]) })
	return order
}

// Logits that are NaN or infinite are refused, wherever they are.
func TestRouteRefuses(t *testing.T) {
	rng := rand.New(rand.NewPCG(43, 44))
	for range 200 {
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			logits := tiedLogits(rng)
			logits[rng.IntN(len(logits))] = float32(bad)
			fan := 1 + rng.IntN(len(logits))

			if Route(make([]int32, fan), make([]float32, fan), logits, op.RouteSoftmax, 0) {
				t.Fatalf("%v was accepted", logits)
			}
		}
	}
}
