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
func shadows(r *rand.Rand, groups, products int) *problem.Shadows {
	s := &problem.Shadows{Name: "test"}
	costs := make([]int64, products)
	for i := range costs {
		costs[i] = 1 + r.Int64N(5)
	}
	total := int64(0)
	for range groups {
		group := problem.ShadowGroup{Name: "layer"}
		worth := make([]int64, products)
		for i := range worth {
			worth[i] = r.Int64N(20) - 4
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
			option.Cost += r.Int64N(2) // products beside each other are not additive
			group.Options = append(group.Options, option)
		}
		s.Groups = append(s.Groups, group)
	}
	s.Max = r.Int64N(total+2) - 2
	return s
}

// brute goes through all choices in lexicographic order.
func brute(s *problem.Shadows) (best []int, least int64) {
	least = math.MaxInt64
	choice := make([]int, len(s.Groups))
	for {
		if cost, use := s.Total(choice); use <= s.Max && cost < least {
			best, least = slices.Clone(choice), cost
		}
		i := len(choice) - 1
		for ; i >= 0; i-- {
			if choice[i]++; choice[i] < len(s.Groups[i].Options) {
				break
			}
			choice[i] = 0
		}
		if i < 0 {
			return best, least
		}
	}
}

// The optimum, and of equally good choices the first, against every choice.
func TestShadowsBrute(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 3))
	infeasible := 0
	for i := range 400 {
		s := shadows(r, 1+r.IntN(5), 1+r.IntN(3))
		want, least := brute(s)
		got, err := exact.Engine{}.Shadows(t.Context(), s, problem.Limits{})
		if want == nil {
			if infeasible++; diag.ClassOf(err) != diag.ClassInfeasible {
				t.Fatalf("instance %d: %+v, %v, and no choice stays within %d", i, got, err, s.Max)
			}
			continue
		}
		if err != nil || s.Verify(got) != nil || got.Objective != least || !slices.Equal(got.Options, want) ||
			got.Status != problem.Optimal {
			t.Fatalf("instance %d: %+v, %v, want %v with %d: %+v", i, got, err, want, least, s)
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
	r := rand.New(rand.NewPCG(23, 4))
	for i := range 20 {
		s := shadows(r, 2+r.IntN(24), 1+r.IntN(4))
		s.Max = max(s.Max, 0)
		want, err := exact.Engine{}.Shadows(t.Context(), s, problem.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := problem.Relay{General: general}.Shadows(t.Context(), s, problem.Limits{})
		if err != nil || s.Verify(got) != nil {
			t.Fatalf("instance %d: %v, %v", i, err, s.Verify(got))
		}
		if want.Status != problem.Optimal || got.Objective != want.Objective {
			t.Fatalf("instance %d: HiGHS %d, exact %d (%s)", i, got.Objective, want.Objective, want.Status)
		}
	}
}

// Where costs are all different states are thinned out: the answer keeps the limit and says that it is not proved.
func TestShadowsThinned(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 5))
	s := &problem.Shadows{Name: "many"}
	for range 40 {
		number := r.Int64N(1 << 40)
		s.Groups = append(s.Groups, problem.ShadowGroup{Name: "layer", Options: []problem.ShadowOption{{Cost: number}, {Use: number}}})
		s.Max += number / 2
	}
	got, err := exact.Engine{}.Shadows(t.Context(), s, problem.Limits{})
	if err != nil || s.Verify(got) != nil || got.Status != problem.Feasible || got.Bound >= got.Objective {
		t.Errorf("%+v, %v, %v", got, err, s.Verify(got))
	}
}
