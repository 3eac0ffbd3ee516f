package exact_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/highs"
	"github.com/hetc/hetc/solver/problem"
)

// shadows is a random instance: layers whose products cost alike, with losses that may be negative.
func shadows(random *rand.Rand, groups, products int) *problem.Shadows {
	posed := &problem.Shadows{Name: "test"}
	costs := make([]int64, products)
	for i := range costs {
		costs[i] = 1 + random.Int64N(5)
	}
	total := int64(0)
	for range groups {
		group := problem.ShadowGroup{Name: "layer"}
		worth := make([]int64, products)
		for i := range worth {
			worth[i] = random.Int64N(20) - 4
			total += max(0, worth[i])
		}
		for kept := range 1 << products {
			var option problem.ShadowOption
			for i := range products {
				if kept>>i&1 == 1 {
					option.Cost += costs[i]
				} else {
					option.Use += worth[i]
				}
			}
			option.Cost += random.Int64N(2) // products beside each other are not additive
			group.Options = append(group.Options, option)
		}

		posed.Groups = append(posed.Groups, group)
	}
	posed.Max = random.Int64N(total+2) - 2
	return posed
}

// brute goes through all choices in lexicographic order.
func brute(shadows *problem.Shadows) (best []int, least int64) {
	least = math.MaxInt64
	sizes := make([]int, len(shadows.Groups))
	for i := range sizes {
		sizes[i] = len(shadows.Groups[i].Options)
	}
	eachPick(sizes, func(pick []int) {
		if cost, use := shadows.Total(pick); use <= shadows.Max && cost < least {
			best, least = slices.Clone(pick), cost
		}
	})
	return best, least
}

// The optimum, and of equally good choices the first, against every choice.
func TestShadowsBrute(t *testing.T) {
	random := rand.New(rand.NewPCG(23, 3))
	infeasible := 0
	for i := range 400 {
		posed := shadows(random, 1+random.IntN(5), 1+random.IntN(3))
		want, least := brute(posed)
		got, err := exact.Engine{}.Shadows(t.Context(), posed, problem.Limits{})
		if want == nil {
			if infeasible++; diag.ClassOf(err) != diag.ClassInfeasible {
				t.Fatalf("instance %d: %+v, %v, and no choice stays within %d", i, got, err, posed.Max)
			}
			continue
		}
		if err != nil || posed.Verify(got) != nil || got.Status != problem.Optimal {
			t.Fatalf("instance %d: %+v, %v, want an optimum: %+v", i, got, err, posed)
		}
		if got.Objective != least || !slices.Equal(got.Options, want) {
			t.Fatalf("instance %d: %+v, want %v with %d: %+v", i, got, want, least, posed)
		}
	}
	if infeasible == 0 || infeasible > 200 {
		t.Errorf("%d of 400 instances have no solution", infeasible)
	}
}

// HiGHS finds choices as good.
func TestShadowsHiGHS(t *testing.T) {
	require.Deps()
	general, err := highs.Open()
	if err != nil {
		require.Skip(t, "highs", err)
	}
	random := rand.New(rand.NewPCG(23, 4))
	for i := range 20 {
		posed := shadows(random, 2+random.IntN(24), 1+random.IntN(4))
		posed.Max = max(posed.Max, 0)
		want, err := exact.Engine{}.Shadows(t.Context(), posed, problem.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := problem.Relay{General: general}.Shadows(t.Context(), posed, problem.Limits{})
		if err != nil || posed.Verify(got) != nil {
			t.Fatalf("instance %d: %v, %v", i, err, posed.Verify(got))
		}
		if want.Status != problem.Optimal || got.Objective != want.Objective {
			t.Fatalf("instance %d: HiGHS %d, exact %d (%s)", i, got.Objective, want.Objective, want.Status)
		}
	}
}

// Where costs are all different states are thinned out: the answer keeps the limit and says that it is not proved.
func TestShadowsThinned(t *testing.T) {
	random := rand.New(rand.NewPCG(23, 5))
	shadows := &problem.Shadows{Name: "many"}
	for range 40 {
		number := random.Int64N(1 << 40)
		shadows.Groups = append(shadows.Groups,
			problem.ShadowGroup{Name: "layer", Options: []problem.ShadowOption{{Cost: number}, {Use: number}}})
		shadows.Max += number / 2
	}
	got, err := exact.Engine{}.Shadows(t.Context(), shadows, problem.Limits{})
	if err != nil || shadows.Verify(got) != nil || got.Status != problem.Feasible || got.Bound >= got.Objective {
		t.Errorf("%+v, %v, %v", got, err, shadows.Verify(got))
	}
}
