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

func buckets() *problem.Buckets {
	return &problem.Buckets{
		Name: "test", Max: 2, OneNS: 10, MaxBytes: 100, MaxGraphs: 9, MaxOpenNS: 50,
		Lengths: []problem.Length{{Tokens: 1, Weight: 1}, {Tokens: 5, Weight: 2}, {Tokens: 9, Weight: 1}},
		Sizes:   []problem.Size{{Rows: 4, CostNS: 20, Bytes: 50, Graphs: 1, OpenNS: 5}, {Rows: 6, Infeasible: true}, {Rows: 8, CostNS: 15, Bytes: 40, Graphs: 1, OpenNS: 5}, {Rows: 16, CostNS: 30, Bytes: 60, Graphs: 1, OpenNS: 5}},
	}
}

func TestBucketObjective(t *testing.T) {
	b := buckets()
	if err := b.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
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
		if got, ok := b.Objective(c.sizes); !ok || got != c.want {
			t.Errorf("sizes %v cost %d, %v, want %d", c.sizes, got, ok, c.want)
		}
	}
	b.OneNS = 0
	if _, ok := b.Objective(nil); ok {
		t.Error("no bucket, and nothing executes single tokens")
	}
	if got, _ := b.Objective([]int{0, 3}); got != 20+2*30+30 {
		t.Errorf("without decode: %d", got)
	}
	b.Lengths = []problem.Length{{Tokens: 3, Weight: 1}}
	if got, _ := b.Objective([]int{0, 2}); got != 20 {
		t.Errorf("the smallest bucket: %d ns, want 20", got)
	}
	b.Fastest = true
	if got, _ := b.Objective([]int{0, 2}); got != 15 {
		t.Errorf("the fastest bucket: %d ns, want 15", got)
	}
}

func TestBucketsValidateRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*problem.Buckets)
		want   string
	}{
		"no lengths":       {func(b *problem.Buckets) { b.Lengths = nil }, "0 lengths"},
		"no weight":        {func(b *problem.Buckets) { b.Lengths = b.Lengths[:1]; b.Lengths[0].Weight = 0 }, "no length has a weight"},
		"length order":     {func(b *problem.Buckets) { b.Lengths[1].Tokens = 1 }, "length 1 follows 1"},
		"length 0":         {func(b *problem.Buckets) { b.Lengths[0].Tokens = 0 }, "0 tokens"},
		"negative weight":  {func(b *problem.Buckets) { b.Lengths[0].Weight = -1 }, "weight -1"},
		"huge weight":      {func(b *problem.Buckets) { b.Lengths[0].Weight = math.MaxInt64 }, "at most"},
		"size order":       {func(b *problem.Buckets) { b.Sizes[1].Rows = 4 }, "size 4 follows 4"},
		"single row":       {func(b *problem.Buckets) { b.Sizes[0].Rows = 1 }, "needs no bucket"},
		"negative cost":    {func(b *problem.Buckets) { b.Sizes[0].CostNS = -1 }, "costs -1"},
		"negative bytes":   {func(b *problem.Buckets) { b.Sizes[0].Bytes = -1 }, "-1 bytes"},
		"sum of bytes":     {func(b *problem.Buckets) { b.Sizes[0].Bytes, b.Sizes[1].Bytes = 1<<60, 1<<60 }, "sums of at most"},
		"negative number":  {func(b *problem.Buckets) { b.Max = -1 }, "at most -1 buckets"},
		"sum out of range": {func(b *problem.Buckets) { b.Lengths[2].Weight, b.Sizes[0].CostNS = 1<<39, 1<<40 }, "out of range"},
	} {
		b := buckets()
		c.change(b)
		if err := b.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestBucketsVerifyRefuses(t *testing.T) {
	good := problem.BucketSolution{Sizes: []int{2}, Objective: 65, Bound: 65, Status: problem.Optimal}
	if err := buckets().Verify(good); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*problem.Buckets, *problem.BucketSolution)
		want   string
	}{
		"no such size":    {func(_ *problem.Buckets, s *problem.BucketSolution) { s.Sizes = []int{7} }, "no size 7"},
		"order":           {func(_ *problem.Buckets, s *problem.BucketSolution) { s.Sizes = []int{2, 0} }, "size 0 follows 2"},
		"infeasible":      {func(_ *problem.Buckets, s *problem.BucketSolution) { s.Sizes = []int{1} }, "6 rows cannot"},
		"too many":        {func(b *problem.Buckets, s *problem.BucketSolution) { b.Max = 0 }, "exceed the limits"},
		"too many bytes":  {func(b *problem.Buckets, s *problem.BucketSolution) { b.MaxBytes = 39 }, "exceed the limits"},
		"wrong objective": {func(_ *problem.Buckets, s *problem.BucketSolution) { s.Objective = 64; s.Bound = 64 }, "its sizes cost 65"},
		"bound above":     {func(_ *problem.Buckets, s *problem.BucketSolution) { s.Bound = 66; s.Status = problem.Feasible }, "bound 66"},
		"claimed proof":   {func(_ *problem.Buckets, s *problem.BucketSolution) { s.Bound = 60 }, `status "optimal"`},
	} {
		b, s := buckets(), good
		c.change(b, &s)
		if err := b.Verify(s); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// enumerate is a general engine for tiny models: it tries all values of the whole variables of which names begin with
// "open", and fills in the rest as Buckets.MILP means it.
type enumerate struct{ b *problem.Buckets }

func (enumerate) Name() string { return "enumerate" }

func (e enumerate) Solve(_ context.Context, m *milp.Model, _ milp.Options) (milp.Result, error) {
	if err := m.Validate(); err != nil {
		return milp.Result{}, err
	}
	best := milp.Result{Status: milp.Infeasible, Objective: math.Inf(1)}
	for set := range 1 << len(e.b.Sizes) {
		var sizes []int
		for j, s := range e.b.Sizes {
			if set&(1<<j) != 0 && !s.Infeasible {
				sizes = append(sizes, j)
			}
		}
		for _, cut := range []bool{true, false} { // single tokens although buckets are open, too
			x := e.fill(m, sizes, cut)
			if x == nil {
				continue
			}
			exact, objective, err := m.Verify(x)
			if err == nil && objective < best.Objective {
				best = milp.Result{Status: milp.Optimal, X: exact, Objective: objective, Bound: objective}
			}
		}
	}
	return best, nil
}

// fill are the variables' values for a choice: each rest goes to the fastest open size.
func (e enumerate) fill(m *milp.Model, sizes []int, buckets bool) []float64 {
	x := make([]float64, len(m.Vars))
	index := map[string]int{}
	for i, v := range m.Vars {
		index[v.Name] = i
	}
	for _, j := range sizes {
		x[index["open "+strconv.Itoa(e.b.Sizes[j].Rows)]] = 1
	}
	group := "one by one"
	if buckets {
		if len(sizes) == 0 {
			return nil
		}
		largest := e.b.Sizes[sizes[len(sizes)-1]].Rows
		if group = "at " + strconv.Itoa(largest); largest >= e.b.Lengths[len(e.b.Lengths)-1].Tokens {
			group = "nowhere"
		}
	}
	z, ok := index["cut "+group]
	if !ok {
		return nil
	}
	x[z] = 1
	for _, row := range m.Rows {
		from, ok := strings.CutPrefix(row.Name, "held "+group+", ")
		if !ok {
			continue
		}
		at, cost := -1, math.Inf(1)
		for _, j := range sizes {
			if v, ok := index["cut "+group+", "+from+" to "+strconv.Itoa(e.b.Sizes[j].Rows)]; ok && m.Vars[v].Cost < cost {
				at, cost = v, m.Vars[v].Cost
			}
		}
		if at < 0 {
			return nil
		}
		x[at] = 1
	}
	return x
}

// TestBucketsMILP checks the linear program against the instance: its optimum is the best of all choices.
func TestBucketsMILP(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for i := range 400 {
		b := &problem.Buckets{Name: "random", Max: 1 + r.IntN(3)}
		rows := 1
		for range 1 + r.IntN(5) {
			rows += 1 + r.IntN(4)
			b.Sizes = append(b.Sizes, problem.Size{Rows: rows, CostNS: 1 + r.Int64N(50), Infeasible: r.IntN(7) == 0, Bytes: r.Int64N(9), Graphs: r.IntN(3), OpenNS: r.Int64N(5)})
		}
		if r.IntN(3) > 0 {
			b.OneNS = 1 + r.Int64N(20)
		}
		tokens := 0
		for range 1 + r.IntN(5) {
			tokens += 1 + r.IntN(8)
			b.Lengths = append(b.Lengths, problem.Length{Tokens: tokens, Weight: 1 + r.Int64N(4)})
		}
		if r.IntN(2) == 0 {
			b.MaxBytes, b.MaxGraphs, b.MaxOpenNS = 1+r.Int64N(12), 1+r.IntN(5), 1+r.Int64N(8)
		}
		want := int64(math.MaxInt64)
		for set := range 1 << len(b.Sizes) {
			var list []int
			ok := true
			for j, s := range b.Sizes {
				if set&(1<<j) != 0 {
					list, ok = append(list, j), ok && !s.Infeasible
				}
			}
			if ns, possible := b.Objective(list); ok && possible && b.Within(list) {
				want = min(want, ns)
			}
		}
		got, err := problem.Relay{General: enumerate{b}}.Buckets(t.Context(), b, problem.Limits{})
		if want == math.MaxInt64 {
			if diag.ClassOf(err) != diag.ClassInfeasible {
				t.Fatalf("instance %d: %+v, %v, want infeasible", i, got, err)
			}
			continue
		}
		if err != nil || b.Verify(got) != nil || got.Objective != want || got.Bound != want {
			t.Fatalf("instance %d: %+v, %v, %v, want %d: %+v", i, got, err, b.Verify(got), want, b)
		}
	}
	if _, _, err := problem.BucketExample(2048, 8).MILP(); diag.ClassOf(err) != diag.ClassUnavailable {
		t.Errorf("a huge linear program: %v", err)
	}
	if m, _, err := problem.BucketExample(20, 3).MILP(); err != nil || m.Validate() != nil {
		t.Errorf("%v, %v", err, m.Validate())
	}
}
