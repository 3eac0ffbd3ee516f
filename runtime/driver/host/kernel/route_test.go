package kernel

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hetc/hetc/planir/op"
)

// Choices and weights that PyTorch computes in float32 for the same logits, sparsemixer as in PhiMoE.
func TestRouteAsPyTorch(t *testing.T) {
	logits := []float32{1.8423298597335815, 0.5188871622085571, -1.7119213342666626, -1.7013792991638184, 2.0194194316864014, -0.26861444115638733, -0.13071750104427338, -1.4374138116836548}
	for _, c := range []struct {
		router  string
		jitter  float64
		logits  []float32
		ids     []int32
		weights []float32
	}{
		{op.RouteSoftmax, 0, logits, []int32{4, 0, 1}, []float32{0.42402440309524536, 0.35520726442337036, 0.09456228464841843}},
		{op.RouteSoftmaxNorm, 0, logits, []int32{4, 0, 1}, []float32{0.48526817560195923, 0.40651145577430725, 0.10822034627199173}},
		{op.RouteSparseMixer, 0.01, []float32{1, 2, 3, 2.99, 0.5, -1}, []int32{2, 3}, []float32{0.5024999976158142, 1}},
		{op.RouteSparseMixer, 0.01, []float32{3, 3, 3, 2.95, 2.9, 1}, []int32{0, 1}, []float32{0.25308576226234436, 0.33884182572364807}},
		{op.RouteSparseMixer, 0.01, []float32{-1, -1.01, -1.015, -1.03, -5, -1}, []int32{0, 5}, []float32{0.25156208872795105, 0.33611616492271423}},
		{op.RouteSparseMixer, 0.01, []float32{0, 0, -0.001, 0.001, -0.5, 0.25}, []int32{5, 3}, []float32{1, 1}},
		{op.RouteSparseMixer, 0.01, []float32{5.1, 5, 4.95, 4.9, 4.85, 4}, []int32{0, 1}, []float32{0.5249791741371155, 0.3501318693161011}},
		{op.RouteSparseMixer, 0.02, []float32{3, 3, 3, 2.95, 2.9, 1}, []int32{0, 1}, []float32{0.20592795312404633, 0.2593315839767456}},
		{op.RouteSparseMixer, 0.02, []float32{-1, -1.01, -1.015, -1.03, -5, -1}, []int32{0, 5}, []float32{0.20219963788986206, 0.25344640016555786}},
		{op.RouteSparseMixer, 0.02, []float32{5.1, 5, 4.95, 4.9, 4.85, 4}, []int32{0, 1}, []float32{0.2789963483810425, 0.2690504789352417}},
		{op.RouteSparseMixer, 0.02, []float32{-3, -2, 7.5, 7.4, 7.3, 7.6}, []int32{5, 2}, []float32{0.28865134716033936, 0.36716535687446594}},
	} {
		ids, weights := make([]int32, len(c.ids)), make([]float32, len(c.ids))
		if !Route(ids, weights, c.logits, c.router, c.jitter) {
			t.Fatalf("%s of %v was refused", c.router, c.logits)
		}
		for i, w := range c.weights {
			if !slices.Equal(ids, c.ids) || math.Abs(float64(weights[i]-w)) > 3e-7 {
				t.Errorf("%s jitter %v of %v: got experts %v with %v, want %v with %v", c.router, c.jitter, c.logits, ids, weights, c.ids, c.weights)
			}
		}
	}
}

// Experts are distinct, in descending order of their logits and, where those are equal, ascending order of index.
func TestRouteOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(41, 42))
	for range 2000 {
		n := 1 + rng.IntN(40)
		logits, fan := make([]float32, n), 1+rng.IntN(n)
		for i := range logits {
			logits[i] = []float32{0, float32(math.Copysign(0, -1)), 1, -1, math.MaxFloat32, -math.MaxFloat32, float32(rng.IntN(6))}[rng.IntN(7)]
		}
		order := make([]int32, n)
		for i := range order {
			order[i] = int32(i)
		}
		slices.SortStableFunc(order, func(a, b int32) int {
			switch {
			case logits[a] > logits[b]:
				return -1
			case logits[a] < logits[b]:
				return 1
			}
			return 0
		})
		for _, router := range op.Routers {
			fan := fan
			if router == op.RouteSparseMixer {
				fan = min(2, fan)
			}
			ids, weights := make([]int32, fan), make([]float32, fan)
			if !Route(ids, weights, logits, router, 0.01) || !slices.Equal(ids, order[:fan]) {
				t.Fatalf("%s of %v: got %v, want %v", router, logits, ids, order[:fan])
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
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			refused := slices.Clone(logits)
			refused[rng.IntN(n)] = float32(bad)
			if Route(make([]int32, fan), make([]float32, fan), refused, op.RouteSoftmax, 0) {
				t.Fatalf("%v was accepted", refused)
			}
		}
	}
}
