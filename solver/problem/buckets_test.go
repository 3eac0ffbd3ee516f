package problem_test

import (
	"context"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/milp"
	"github.com/hetc/hetc/solver/problem"
)

// buckets is a small valid instance.
func buckets() *problem.Buckets {
	return &problem.Buckets{
		Name: "test", Max: 2, OneNS: 10, MaxBytes: 100, MaxGraphs: 9, MaxOpenNS: 50,
		Lengths: []problem.Length{{Tokens: 1, Weight: 1}, {Tokens: 5, Weight: 2}, {Tokens: 9, Weight: 1}},
		Sizes: []problem.Size{{Rows: 4, CostNS: 20, Bytes: 50, Graphs: 1, OpenNS: 5}, {Rows: 6, Infeasible: true},
			{Rows: 8, CostNS: 15, Bytes: 40, Graphs: 1, OpenNS: 5},
			{Rows: 16, CostNS: 30, Bytes: 60, Graphs: 1, OpenNS: 5}},
	}
}

// The objective of sizes is what prompts cost that are cut to them, by hand.
func TestBucketObjective(t *testing.T) {
	posed := buckets()
	if err := posed.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		sizes []int
		want  int64
	}{
		{nil, 10 * (1 + 10 + 9)},
		{[]int{0}, 10 + 2*(20+10) + (40 + 10)}, // 5 = 4 + 1, 9 = 4 + 4 + 1: a single row is decode's
		{[]int{2}, 10 + 2*15 + (15 + 10)},
		{[]int{3}, 10 + 2*30 + 30},
		{[]int{0, 3}, 10 + 2*30 + 30},
		{[]int{2, 3}, 10 + 2*15 + 30},
	} {
		if got, ok := posed.Objective(test.sizes); !ok || got != test.want {
			t.Errorf("sizes %v cost %d, %v, want %d", test.sizes, got, ok, test.want)
		}
	}

	posed.OneNS = 0
	if _, ok := posed.Objective(nil); ok {
		t.Error("no bucket, and nothing executes single tokens")
	}
	if got, _ := posed.Objective([]int{0, 3}); got != 20+2*30+30 {
		t.Errorf("without decode: %d", got)
	}
	posed.Lengths = []problem.Length{{Tokens: 3, Weight: 1}}
	if got, _ := posed.Objective([]int{0, 2}); got != 20 {
		t.Errorf("the smallest bucket: %d ns, want 20", got)
	}
	posed.Fastest = true
	if got, _ := posed.Objective([]int{0, 2}); got != 15 {
		t.Errorf("the fastest bucket: %d ns, want 15", got)
	}
}

// Instances that are not valid are refused with what is wrong.
func TestBucketsValidateRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*problem.Buckets)
		want   string
	}{
		"no lengths": {func(b *problem.Buckets) { b.Lengths = nil }, "0 lengths"},
		"no weight": {func(b *problem.Buckets) { b.Lengths = b.Lengths[:1]; b.Lengths[0].Weight = 0 },
			"no length has a weight"},
		"length order":    {func(b *problem.Buckets) { b.Lengths[1].Tokens = 1 }, "length 1 follows 1"},
		"length 0":        {func(b *problem.Buckets) { b.Lengths[0].Tokens = 0 }, "0 tokens"},
		"negative weight": {func(b *problem.Buckets) { b.Lengths[0].Weight = -1 }, "weight -1"},
		"huge weight":     {func(b *problem.Buckets) { b.Lengths[0].Weight = math.MaxInt64 }, "at most"},
		"size order":      {func(b *problem.Buckets) { b.Sizes[1].Rows = 4 }, "size 4 follows 4"},
		"single row":      {func(b *problem.Buckets) { b.Sizes[0].Rows = 1 }, "needs no bucket"},
		"negative cost":   {func(b *problem.Buckets) { b.Sizes[0].CostNS = -1 }, "costs -1"},
		"negative bytes":  {func(b *problem.Buckets) { b.Sizes[0].Bytes = -1 }, "-1 bytes"},
		"sum of bytes": {func(b *problem.Buckets) { b.Sizes[0].Bytes, b.Sizes[1].Bytes = 1<<60, 1<<60 },
			"sums of at most"},
		"negative number": {func(b *problem.Buckets) { b.Max = -1 }, "at most -1 buckets"},
		"sum out of range": {func(b *problem.Buckets) { b.Lengths[2].Weight, b.Sizes[0].CostNS = 1<<39, 1<<40 },
			"out of range"},
	} {
		posed := buckets()
		test.change(posed)
		if err := posed.Validate(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

// Answers that are not right are refused with what is wrong.
func TestBucketsVerifyRefuses(t *testing.T) {
	good := problem.BucketSolution{Sizes: []int{2}, Objective: 65, Bound: 65, Status: problem.Optimal}
	if err := buckets().Verify(good); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change func(*problem.Buckets, *problem.BucketSolution)
		want   string
	}{
		"no such size": {func(_ *problem.Buckets, s *problem.BucketSolution) { s.Sizes = []int{7} }, "no size 7"},
		"order": {func(_ *problem.Buckets, s *problem.BucketSolution) { s.Sizes = []int{2, 0} },
			"size 0 follows 2"},
		"infeasible": {func(_ *problem.Buckets, s *problem.BucketSolution) { s.Sizes = []int{1} },
			"6 rows cannot"},
		"too many": {func(b *problem.Buckets, s *problem.BucketSolution) { b.Max = 0 }, "exceed the limits"},
		"too many bytes": {func(b *problem.Buckets, s *problem.BucketSolution) { b.MaxBytes = 39 },
			"exceed the limits"},
		"wrong objective": {func(_ *problem.Buckets, s *problem.BucketSolution) { s.Objective = 64; s.Bound = 64 },
			"its sizes cost 65"},
		"bound above": {func(_ *problem.Buckets, s *problem.BucketSolution) {
			s.Bound, s.Status = 66, problem.Feasible
		}, "bound 66"},
		"claimed proof": {func(_ *problem.Buckets, s *problem.BucketSolution) { s.Bound = 60 }, `status "optimal"`},
	} {
		posed, solution := buckets(), good
		test.change(posed, &solution)
		if err := posed.Verify(solution); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

// enumerate is a general engine for tiny models: it tries all values of the whole variables of which names begin with
// "open", and fills in the rest as Buckets.MILP means it.
type enumerate struct{ buckets *problem.Buckets }

// Name implements milp.Engine.
func (enumerate) Name() string { return "enumerate" }

// Solve tries all sets of sizes, with single tokens cut off and without.
func (e enumerate) Solve(_ context.Context, model *milp.Model, _ milp.Options) (milp.Result, error) {
	if err := model.Validate(); err != nil {
		return milp.Result{}, err
	}
	best := milp.Result{Status: milp.Infeasible, Objective: math.Inf(1)}
	for set := range 1 << len(e.buckets.Sizes) {
		var sizes []int
		for i, size := range e.buckets.Sizes {
			if set&(1<<i) != 0 && !size.Infeasible {
				sizes = append(sizes, i)
			}
		}
		for _, cut := range []bool{true, false} { // single tokens although buckets are open, too
			values := e.fill(model, sizes, cut)
			if values == nil {
				continue
			}
			exact, objective, err := model.Verify(values)
			if err == nil && objective < best.Objective {
				best = milp.Result{Status: milp.Optimal, X: exact, Objective: objective, Bound: objective}
			}
		}
	}
	return best, nil
}

// fill are the variables' values for a choice: each rest goes to the fastest open size.
func (e enumerate) fill(model *milp.Model, sizes []int, buckets bool) []float64 {
	values := make([]float64, len(model.Vars))
	index := map[string]int{}
	for i, variable := range model.Vars {
		index[variable.Name] = i
	}
	for _, size := range sizes {
		values[index["open "+strconv.Itoa(e.buckets.Sizes[size].Rows)]] = 1
	}

	group := "one by one"
	if buckets {
		if len(sizes) == 0 {
			return nil
		}
		largest := e.buckets.Sizes[sizes[len(sizes)-1]].Rows
		group = "at " + strconv.Itoa(largest)
		if largest >= e.buckets.Lengths[len(e.buckets.Lengths)-1].Tokens {
			group = "nowhere"
		}
	}
	at, ok := index["cut "+group]
	if !ok {
		return nil
	}
	values[at] = 1

	for _, row := range model.Rows {
		from, ok := strings.CutPrefix(row.Name, "held "+group+", ")
		if !ok {
			continue
		}
		cheapest, cost := -1, math.Inf(1)
		for _, size := range sizes {
			name := "cut " + group + ", " + from + " to " + strconv.Itoa(e.buckets.Sizes[size].Rows)
			if at, ok := index[name]; ok && model.Vars[at].Cost < cost {
				cheapest, cost = at, model.Vars[at].Cost
			}
		}
		if cheapest < 0 {
			return nil
		}
		values[cheapest] = 1
	}
	return values
}

// TestBucketsMILP checks the linear program against the instance: its optimum is the best of all choices.
func TestBucketsMILP(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 2))
	for i := range 400 {
		buckets := drawnBuckets(random)
		want := int64(math.MaxInt64)
		for set := range 1 << len(buckets.Sizes) {
			var list []int
			isFeasible := true
			for size := range buckets.Sizes {
				if set&(1<<size) != 0 {
					list, isFeasible = append(list, size), isFeasible && !buckets.Sizes[size].Infeasible
				}
			}
			ns, possible := buckets.Objective(list)
			if isFeasible && possible && buckets.Within(list) {
				want = min(want, ns)
			}
		}

		got, err := problem.Relay{General: enumerate{buckets}}.Buckets(t.Context(), buckets, problem.Limits{})
		if want == math.MaxInt64 {
			if diag.ClassOf(err) != diag.ClassInfeasible {
				t.Fatalf("instance %d: %+v, %v, want infeasible", i, got, err)
			}
			continue
		}
		if err != nil || buckets.Verify(got) != nil || got.Objective != want || got.Bound != want {
			t.Fatalf("instance %d: %+v, %v, %v, want %d: %+v", i, got, err, buckets.Verify(got), want, buckets)
		}
	}

	if _, _, err := problem.BucketExample(2048, 8).MILP(); diag.ClassOf(err) != diag.ClassUnavailable {
		t.Errorf("a huge linear program: %v", err)
	}
	if model, _, err := problem.BucketExample(20, 3).MILP(); err != nil || model.Validate() != nil {
		t.Errorf("%v, %v", err, model.Validate())
	}
}

// drawnBuckets is a random instance of a few sizes and lengths, often with limits.
func drawnBuckets(random *rand.Rand) *problem.Buckets {
	buckets := &problem.Buckets{Name: "random", Max: 1 + random.IntN(3)}
	rows := 1
	for range 1 + random.IntN(5) {
		rows += 1 + random.IntN(4)
		buckets.Sizes = append(buckets.Sizes, problem.Size{Rows: rows, CostNS: 1 + random.Int64N(50),
			Infeasible: random.IntN(7) == 0, Bytes: random.Int64N(9), Graphs: random.IntN(3),
			OpenNS: random.Int64N(5)})
	}
	if random.IntN(3) > 0 {
		buckets.OneNS = 1 + random.Int64N(20)
	}
	tokens := 0
	for range 1 + random.IntN(5) {
		tokens += 1 + random.IntN(8)
		buckets.Lengths = append(buckets.Lengths, problem.Length{Tokens: tokens, Weight: 1 + random.Int64N(4)})
	}
	if random.IntN(2) == 0 {
		buckets.MaxBytes, buckets.MaxGraphs = 1+random.Int64N(12), 1+random.IntN(5)
		buckets.MaxOpenNS = 1 + random.Int64N(8)
	}
	return buckets
}
