package highs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/solver/milp"
)

// TestMain lets the test's own binary be the process that the engine highs-native starts.
func TestMain(m *testing.M) {
	if library, ok := Worker(os.Args[1:]); ok {
		if err := Work(library, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	require.Deps()
	os.Exit(m.Run())
}

var inf = math.Inf(1)

var shared = struct {
	sync.Once
	w   *Wasm
	err error
}{}

// engine is the solver, one for all tests.
func engine(t testing.TB) *Wasm {
	t.Helper()
	require.Slow(t) // compiling HiGHS
	shared.Do(func() { shared.w, shared.err = Open() })
	if shared.err != nil {
		require.Skip(t, "highs", shared.err)
	}
	return shared.w
}

func must(t testing.TB, e milp.Engine, m *milp.Model, o milp.Options) milp.Result {
	t.Helper()
	r, err := e.Solve(context.Background(), m, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// assignment is n workers for n jobs with costs from a fixed sequence.
func assignment(n int, seed uint64) *milp.Model {
	m := &milp.Model{Name: fmt.Sprintf("assignment %d", n)}
	for i := range 2 * n {
		m.Rows = append(m.Rows, milp.Row{Name: fmt.Sprint("r", i), Low: 1, High: 1})
	}
	for i := range n {
		for j := range n {
			seed = seed*6364136223846793005 + 1442695040888963407
			k := len(m.Vars)
			m.Vars = append(m.Vars, milp.Var{Name: fmt.Sprintf("x%d.%d", i, j), Cost: float64(seed >> 33 % 1000), High: 1, Integer: true})
			m.Rows[i].Terms = append(m.Rows[i].Terms, milp.Term{Var: k, Coef: 1})
			m.Rows[n+j].Terms = append(m.Rows[n+j].Terms, milp.Term{Var: k, Coef: 1})
		}
	}
	return m
}

// hard is a set of knapsacks that share items, which takes a search of many nodes.
func hard(items, rows int, seed uint64) *milp.Model {
	m := &milp.Model{Name: "market split"}
	next := func() float64 {
		seed = seed*6364136223846793005 + 1442695040888963407
		return float64(seed >> 33 % 100)
	}
	for j := range items {
		m.Vars = append(m.Vars, milp.Var{Name: fmt.Sprint("x", j), High: 1, Integer: true})
	}
	for i := range rows {
		r := milp.Row{Name: fmt.Sprint("r", i)}
		sum := 0.0
		for j := range items {
			c := next()
			sum += c
			r.Terms = append(r.Terms, milp.Term{Var: j, Coef: c})
		}
		over, under := len(m.Vars), len(m.Vars)+1
		m.Vars = append(m.Vars, milp.Var{Name: fmt.Sprint("over", i), Cost: 1, High: inf}, milp.Var{Name: fmt.Sprint("under", i), Cost: 1, High: inf})
		r.Terms = append(r.Terms, milp.Term{Var: over, Coef: -1}, milp.Term{Var: under, Coef: 1})
		r.Low = math.Floor(sum / 2)
		r.High = r.Low
		m.Rows = append(m.Rows, r)
	}
	return m
}

// draw makes a random model of whole and continuous variables.
func draw(t *rapid.T) *milp.Model {
	m := &milp.Model{Name: "random", Offset: float64(rapid.IntRange(-5, 5).Draw(t, "offset")) / 2}
	number := rapid.IntRange(-6, 6)
	for j := range rapid.IntRange(1, 6).Draw(t, "vars") {
		low := rapid.IntRange(-2, 1).Draw(t, "low")
		m.Vars = append(m.Vars, milp.Var{Name: fmt.Sprint("v", j), Cost: float64(number.Draw(t, "cost")) / 2,
			Low: float64(low), High: float64(low + rapid.IntRange(0, 3).Draw(t, "width")), Integer: true})
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "rows") {
		r := milp.Row{Name: fmt.Sprint("r", i), Low: -inf, High: inf}
		for j := range m.Vars {
			if rapid.Bool().Draw(t, "in") {
				r.Terms = append(r.Terms, milp.Term{Var: j, Coef: float64(number.Draw(t, "coef"))})
			}
		}
		at := float64(number.Draw(t, "bound"))
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			r.Low = at
		case 1:
			r.High = at
		case 2:
			r.Low, r.High = at, at+float64(rapid.IntRange(0, 6).Draw(t, "range"))
		}
		m.Rows = append(m.Rows, r)
	}
	return m
}

// bruteForce enumerates a model of whole variables.
func bruteForce(m *milp.Model) (best float64, ok bool) {
	x := make([]float64, len(m.Vars))
	best = inf
	var walk func(j int)
	walk = func(j int) {
		if j == len(x) {
			for _, r := range m.Rows {
				sum := 0.0
				for _, t := range r.Terms {
					sum += t.Coef * x[t.Var]
				}
				if sum < r.Low || sum > r.High {
					return
				}
			}
			cost := m.Offset
			for j, v := range m.Vars {
				cost += v.Cost * x[j]
			}
			best, ok = min(best, cost), true
			return
		}
		for x[j] = m.Vars[j].Low; x[j] <= m.Vars[j].High; x[j]++ {
			walk(j + 1)
		}
	}
	walk(0)
	return best, ok
}

func TestEnumeration(t *testing.T) {
	require.Slow(t)
	e := engine(t)
	found := 0
	rapid.Check(t, func(t *rapid.T) {
		m := draw(t)
		want, ok := bruteForce(m)
		r, err := e.Solve(context.Background(), m, milp.Options{})
		switch {
		case err != nil:
			t.Fatal(err)
		case !ok && r.Status != milp.Infeasible, ok && (r.Status != milp.Optimal || math.Abs(r.Objective-want) > 1e-9):
			t.Fatalf("got %+v, enumeration finds %v %v", r, want, ok)
		}
		if ok {
			found++
		}
	})
	if found == 0 {
		t.Fatal("no feasible model was drawn")
	}
}

// Answers are the same bits in every run.
func TestSameBits(t *testing.T) {
	require.Slow(t)
	e := engine(t)
	for _, m := range []*milp.Model{assignment(20, 1), hard(12, 2, 3)} {
		a, b := must(t, e, m, milp.Options{}), must(t, e, m, milp.Options{})
		if a.Status != milp.Optimal || a.Nodes != b.Nodes || a.Bound != b.Bound || !slices.EqualFunc(a.X, b.X, func(x, y float64) bool { return math.Float64bits(x) == math.Float64bits(y) }) {
			t.Errorf("%s: %+v and %+v", m.Name, a, b)
		}
	}
}

// A program that contains the solver has all licences to pass on, one that does not has none.
func TestLicences(t *testing.T) {
	text := Licences()
	if embedded == nil {
		if text != "" {
			t.Fatalf("licences of a solver that is not there: %q", text)
		}
		return
	}
	for _, want := range []string{"Copyright (c) 2026 HiGHS", "Permission is hereby granted, free of charge", "Orson Peters", "Michael Feldmeier", "cuPDLP-C", "Rich Felker", "Emscripten authors"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the licences", want)
		}
	}
}

// Every name of the table is in the module, and its version is the expected one: instance checks that.
func TestTable(t *testing.T) {
	require.Slow(t)
	e := engine(t)
	if err := e.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	in, err := e.instance(context.Background(), "m", &milp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer in.close()
	for what, short := range exported {
		if e.module.ExportedFunctions()[short] == nil {
			t.Errorf("%s is not exported as %s", what, short)
		}
	}
	known := map[string]bool{}
	for _, short := range imported {
		known[short] = true
	}
	if n := len(e.module.ImportedFunctions()); n != len(imported) || len(known) != n {
		t.Errorf("%d imports, the table has %d with %d names", n, len(imported), len(known))
	}
	if v, err := in.version(); v != Version || err != nil {
		t.Errorf("version %q, %v", v, err)
	}
	// notices.txt leaves out the authors of what only builds with HiPO contain.
	if code, err := in.setString("solver", "hipo"); code >= 0 || err != nil {
		t.Errorf("solver=hipo: %d, %v, want a refusal", code, err)
	}
	if code, err := in.setString("solver", "ipx"); code < 0 || err != nil {
		t.Errorf("solver=ipx: %d, %v", code, err)
	}
}

// raw passes arrays that no valid model has to a fresh HiGHS and runs it when they are taken.
func raw(t *testing.T, c *columns) (pass, run, status int32, objective float64) {
	t.Helper()
	e := engine(t)
	if err := e.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	in, err := e.instance(context.Background(), "raw", &milp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer in.close()
	if _, err := in.setBool("output_flag", false); err != nil {
		t.Fatal(err)
	}
	if pass, err = in.pass(c); err != nil {
		t.Fatal(err)
	}
	if pass < 0 {
		return pass, 0, 0, 0
	}
	if run, err = in.run(); err != nil {
		t.Fatal(err)
	}
	if status, err = in.status(); err != nil {
		t.Fatal(err)
	}
	if objective, err = in.infoDouble("objective_function_value"); err != nil {
		objective = math.NaN()
	}
	return pass, run, status, objective
}

// two is min -x0 - 2 x1 with x0 + x1 <= 1.5, both in 0..1 and whole.
func two() *columns {
	return &columns{cost: []float64{-1, -2}, low: []float64{0, 0}, high: []float64{1, 1}, rowLow: []float64{-inf}, rowHigh: []float64{1.5},
		start: []int32{0}, index: []int32{0, 1}, value: []float64{1, 1}, integrality: []int32{1, 1}}
}

// What HiGHS itself does with bad input, which is why models are validated first: some of it is refused, some taken for
// something else. Nothing crashes this process.
func TestBadInput(t *testing.T) {
	nan := math.NaN()
	for name, c := range map[string]struct {
		change    func(*columns)
		refused   bool
		status    int32
		objective float64
	}{
		"as it is":         {func(c *columns) {}, false, statusOptimal, -2},
		"NaN column bound": {func(c *columns) { c.low[0] = nan }, true, 0, 0},
		"NaN row bound":    {func(c *columns) { c.rowHigh[0] = nan }, true, 0, 0},
		"index too large":  {func(c *columns) { c.index[1] = 2 }, true, 0, 0},
		"index negative":   {func(c *columns) { c.index[1] = -1 }, true, 0, 0},
		"index huge":       {func(c *columns) { c.index[1] = 1 << 30 }, true, 0, 0},
		"index twice":      {func(c *columns) { c.index[1] = 0 }, true, 0, 0},
		"decreasing start": {func(c *columns) {
			c.rowLow, c.rowHigh, c.start = []float64{-inf, -inf}, []float64{1.5, 1}, []int32{1, 0}
		}, true, 0, 0},
		"start too large":       {func(c *columns) { c.start[0] = 1 << 30 }, true, 0, 0},
		"infinite coefficient":  {func(c *columns) { c.value[0] = inf }, true, 0, 0},
		"coefficient of 1e16":   {func(c *columns) { c.value[0] = 1e16 }, true, 0, 0},
		"bad integrality":       {func(c *columns) { c.integrality[0] = 7 }, true, 0, 0},
		"NaN cost":              {func(c *columns) { c.cost[0] = nan }, false, statusOptimal, nan},
		"infinite cost":         {func(c *columns) { c.cost[0], c.low[0] = inf, 1 }, false, statusOptimal, inf},
		"NaN coefficient":       {func(c *columns) { c.value[0] = nan }, false, statusOptimal, -3},   // dropped
		"coefficient of 1e-10":  {func(c *columns) { c.value[0] = 1e-10 }, false, statusOptimal, -3}, // dropped
		"column low above high": {func(c *columns) { c.low[0] = 2 }, false, statusInfeasible, inf},
		"row low above high":    {func(c *columns) { c.rowLow[0] = 2 }, false, statusInfeasible, inf},
		"infeasible row":        {func(c *columns) { c.rowLow[0], c.rowHigh[0] = 3, inf }, false, statusInfeasible, inf},
		"whole between":         {func(c *columns) { c.low[0], c.high[0] = 0.4, 0.6 }, false, statusInfeasible, inf},
		"unbounded":             {func(c *columns) { c.high[0], c.rowHigh[0] = inf, inf }, false, statusEither, -inf},
		"no rows":               {func(c *columns) { c.rowLow, c.rowHigh, c.start, c.index, c.value = nil, nil, nil, nil, nil }, false, statusOptimal, -3},
		"empty": {func(c *columns) {
			*c = columns{}
		}, false, 6, 0},
	} {
		t.Run(name, func(t *testing.T) {
			x := two()
			c.change(x)
			pass, run, status, objective := raw(t, x)
			if refused := pass < 0; refused != c.refused {
				t.Fatalf("refused: %v, want %v", refused, c.refused)
			}
			same := objective == c.objective || math.IsNaN(objective) && math.IsNaN(c.objective)
			if !c.refused && (status != c.status || run < 0 && status != 6 || status == statusOptimal && !same) {
				t.Errorf("run %d, status %d, objective %v; want status %d, objective %v", run, status, objective, c.status, c.objective)
			}
		})
	}
}

// Running after a model was refused kills a process that HiGHS is linked into; here it is an error at worst, and
// the next solve is unharmed.
func TestRunAfterRefusal(t *testing.T) {
	e := engine(t)
	must(t, e, assignment(3, 1), milp.Options{})
	in, err := e.instance(context.Background(), "refused", &milp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer in.close()
	c := two()
	c.index[1] = 1 << 30
	if code, err := in.pass(c); code >= 0 || err != nil {
		t.Fatalf("got %d, %v", code, err)
	}
	if _, err := in.run(); err != nil && !strings.Contains(err.Error(), `"refused": Highs_run crashed`) {
		t.Errorf("got %v", err)
	}
	if r := must(t, e, assignment(3, 1), milp.Options{}); r.Status != milp.Optimal {
		t.Errorf("got %+v", r)
	}
}

func TestOptionsRefused(t *testing.T) {
	e := engine(t)
	if err := e.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	in, err := e.instance(context.Background(), "options", &milp.Options{Log: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer in.close()
	for name, set := range map[string]func() (int32, error){
		"unknown":      func() (int32, error) { return in.setInt("no_such_option", 1) },
		"out of range": func() (int32, error) { return in.setDouble("mip_rel_gap", -1) },
		"bad word":     func() (int32, error) { return in.setString("parallel", "sometimes") },
	} {
		if code, err := set(); code != -1 || err != nil {
			t.Errorf("%s: got %d, %v", name, code, err)
		}
	}
}

// Validate stands before the engine, also for options.
func TestInvalidModelsAreRefused(t *testing.T) {
	e := engine(t)
	bad := assignment(2, 1)
	bad.Vars[0].Cost = math.NaN()
	if _, err := e.Solve(context.Background(), bad, milp.Options{}); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("got %v", err)
	}
	if _, err := e.Solve(context.Background(), assignment(2, 1), milp.Options{Nodes: -1}); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("got %v", err)
	}
}

func TestStatuses(t *testing.T) {
	e := engine(t)
	infeasible := assignment(2, 1)
	infeasible.Rows[0].Low, infeasible.Rows[0].High = 3, 3
	if r := must(t, e, infeasible, milp.Options{}); r.Status != milp.Infeasible || r.X != nil {
		t.Errorf("infeasible: %+v", r)
	}
	unbounded := assignment(2, 1)
	unbounded.Vars = append(unbounded.Vars, milp.Var{Name: "down", Cost: 1, Low: -inf, High: 0, Integer: true})
	if _, err := e.Solve(context.Background(), unbounded, milp.Options{}); diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "unbounded") {
		t.Errorf("unbounded: %v", err)
	}
	// Presolve says "unbounded or infeasible" to this one, which is the latter.
	both := &milp.Model{Name: "both", Vars: []milp.Var{{Name: "down", Cost: 1, Low: -inf, High: 0, Integer: true}, {Name: "x", Low: 0, High: inf, Integer: true}, {Name: "y", Low: 0, High: inf, Integer: true}},
		Rows: []milp.Row{{Name: "even", Low: 1, High: 1, Terms: []milp.Term{{Var: 1, Coef: 2}, {Var: 2, Coef: -2}}}}}
	if r, err := e.Solve(context.Background(), both, milp.Options{Time: 5 * time.Second}); err == nil && r.Status != milp.Infeasible && r.Status != milp.Limit {
		t.Errorf("both: %+v", r)
	}
	continuous := &milp.Model{Name: "continuous", Vars: []milp.Var{{Name: "x", Cost: 1, Low: 0.5, High: 2}}}
	if r := must(t, e, continuous, milp.Options{}); r.Status != milp.Optimal || r.Objective != 0.5 || r.Bound != 0.5 {
		t.Errorf("continuous: %+v", r)
	}
}

// A limit of nodes ends a search at the same place each time, with a bound below the solution it has.
func TestNodeLimit(t *testing.T) {
	require.Slow(t)
	e := engine(t)
	m := hard(40, 4, 7)
	a, b := must(t, e, m, milp.Options{Nodes: 20}), must(t, e, m, milp.Options{Nodes: 20})
	if a.Status != milp.Feasible || a.Gap() <= 0 || a.Bound > a.Objective || a.Nodes < 20 || a.Nodes > 2000 {
		t.Errorf("got %v objective %v bound %v nodes %d", a.Status, a.Objective, a.Bound, a.Nodes)
	}
	if a.Objective != b.Objective || a.Bound != b.Bound || a.Nodes != b.Nodes || !slices.Equal(a.X, b.X) {
		t.Errorf("two runs differ: %v %v", a, b)
	}
}

func TestTimeLimit(t *testing.T) {
	e := engine(t)
	begun := time.Now()
	r := must(t, e, hard(50, 5, 7), milp.Options{Time: 300 * time.Millisecond})
	if took := time.Since(begun); r.Status != milp.Feasible && r.Status != milp.Limit || took > 20*time.Second {
		t.Errorf("%v after %v", r.Status, took)
	}
}

// A start is what is returned when nothing better is found in time; one that breaks a row does no harm.
func TestStart(t *testing.T) {
	require.Slow(t)
	e := engine(t)
	m := hard(12, 2, 3)
	best := must(t, e, m, milp.Options{})
	again := must(t, e, m, milp.Options{Start: best.X})
	if again.Status != milp.Optimal || math.Abs(again.Objective-best.Objective) > 1e-9 {
		t.Errorf("from the optimum: %+v", again)
	}
	var lines []string
	must(t, e, m, milp.Options{Start: best.X, Log: func(l string) { lines = append(lines, l) }})
	if !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "MIP start solution is feasible") }) {
		t.Errorf("the start was not taken: %q", lines)
	}
	broken := slices.Clone(best.X)
	broken[0] = 1 - broken[0]
	if r := must(t, e, m, milp.Options{Start: broken}); math.Abs(r.Objective-best.Objective) > 1e-9 {
		t.Errorf("from a broken start: %+v", r)
	}
}

func TestLogAndProgress(t *testing.T) {
	require.Slow(t)
	e := engine(t)
	m := hard(30, 3, 7)
	var lines []string
	calls := 0
	r := must(t, e, m, milp.Options{Nodes: 200, Log: func(l string) { lines = append(lines, l) }, Progress: func(objective, bound float64, nodes int64) {
		calls++
		if bound > objective+1e-6 || nodes < 0 {
			t.Errorf("objective %v, bound %v, nodes %d", objective, bound, nodes)
		}
	}})
	if calls == 0 || !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "Running HiGHS") || strings.Contains(l, "MIP ") }) {
		t.Errorf("%d calls, log %q", calls, lines)
	}
	if plain := must(t, e, m, milp.Options{Nodes: 200}); plain.Objective != r.Objective || plain.Nodes != r.Nodes {
		t.Errorf("listening changes the answer: %v %d, %v %d", r.Objective, r.Nodes, plain.Objective, plain.Nodes)
	}
}

// The end of a context ends a solve within a second.
func TestCancel(t *testing.T) {
	e := engine(t)
	must(t, e, assignment(3, 1), milp.Options{})
	cancelSoon(t, e)
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := e.Solve(gone, assignment(3, 1), milp.Options{}); diag.ClassOf(err) != diag.ClassInterrupted {
		t.Errorf("cancelled before: %v", err)
	}
	if r := must(t, e, assignment(3, 1), milp.Options{}); r.Status != milp.Optimal {
		t.Errorf("the next solve: %+v", r)
	}
}

func cancelSoon(t *testing.T, e milp.Engine) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	const after = 500 * time.Millisecond
	timer := time.AfterFunc(after, cancel)
	defer timer.Stop()
	begun := time.Now()
	_, err := e.Solve(ctx, hard(60, 6, 7), milp.Options{})
	if late := time.Since(begun) - after; diag.ClassOf(err) != diag.ClassInterrupted || late > time.Second {
		t.Errorf("%v, %v late", err, late)
	}
}

func TestConcurrentSolves(t *testing.T) {
	e := engine(t)
	want := must(t, e, assignment(12, 5), milp.Options{})
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			r, err := e.Solve(context.Background(), assignment(12, 5), milp.Options{Log: func(string) {}})
			if err != nil || !slices.Equal(r.X, want.X) {
				t.Errorf("%v: another answer", err)
			}
		})
	}
	group.Wait()
}

// Memory is bounded: a model that needs more is an error, and the next solve is unharmed.
func TestMemoryIsBounded(t *testing.T) {
	e := engine(t)
	must(t, e, assignment(3, 1), milp.Options{})
	small := &Wasm{where: e.where, maxPages: (24 << 20) / pageBytes, started: e.started, runtime: e.runtime, module: e.module}
	small.number.Store(1 << 32) // names of instances are unique in a runtime
	_, err := small.Solve(context.Background(), assignment(200, 1), milp.Options{})
	if diag.ClassOf(err) != diag.ClassUnavailable || !strings.Contains(err.Error(), "needs more than 24 MiB of memory") {
		t.Errorf("got %v", err)
	}
	if r := must(t, small, assignment(3, 1), milp.Options{}); r.Status != milp.Optimal {
		t.Errorf("the next solve: %+v", r)
	}
}

// A module that does not compile is an error, with a cache and without: what another process writes there, or removes,
// may come in between.
func TestModuleThatDoesNotCompile(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		if _, _, err := compileIn(dir, []byte("\x00asm garbage")); err == nil {
			t.Errorf("cache %q: garbage compiles", dir)
		}
	}
}

// Whatever is wrong with the cache, solves go on.
func TestCache(t *testing.T) {
	require.Slow(t)
	engine(t)
	user := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", user)
	t.Setenv("HOME", user)         // macOS
	t.Setenv("LocalAppData", user) // Windows
	solve := func(what string) time.Duration {
		t.Helper()
		w, err := Open()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		begun := time.Now()
		if r := must(t, w, assignment(3, 1), milp.Options{}); r.Status != milp.Optimal {
			t.Errorf("%s: %+v", what, r)
		}
		return time.Since(begun)
	}
	solve("empty")
	dir := cacheDir()
	if dir == "" {
		t.Fatal("the directory that was just written is not used")
	}
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm()&0o077 != 0 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	var files []string
	if err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != sums {
			files = append(files, p)
		}
		return err
	}); err != nil || len(files) != 1 {
		t.Skipf("this processor's code is not kept: %d files, %v", len(files), err)
	}
	before, err := os.Stat(files[0])
	if err != nil {
		t.Fatal(err)
	}
	solve("kept")
	if after, err := os.Stat(files[0]); err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("what was kept was written again: %v", err)
	}
	whole, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	changed := slices.Clone(whole)
	changed[30] ^= 0x80 // a number in the header, which the checksum of the code does not cover
	for what, b := range map[string][]byte{"truncated": whole[:len(whole)/2], "changed": changed} {
		// What is found damaged is removed with its folder.
		if err := errors.Join(os.MkdirAll(filepath.Dir(files[0]), 0o700), os.WriteFile(files[0], b, 0o600)); err != nil {
			t.Fatal(err)
		}
		if os.Getenv("HETC_LONG") == "" && what == "truncated" {
			cacheDir()
			if _, err := os.Stat(files[0]); err == nil {
				t.Errorf("%s: still there", what)
			}
			continue
		}
		solve(what)
		if got, err := os.ReadFile(files[0]); err != nil || len(got) != len(whole) {
			t.Errorf("%s: not replaced: %d bytes, %v", what, len(got), err)
		}
	}
	// A file in the way of the directory; as it cannot be removed, nothing is kept.
	if err := os.RemoveAll(filepath.Join(user, "hetc")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(user, "hetc"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if dir := cacheDir(); dir != "" {
		t.Errorf("%q is used", dir)
	}
	if os.Getenv("HETC_LONG") != "" {
		solve("no directory")
	}
}

// Any other module is refused, because its names mean something else.
func TestOtherModule(t *testing.T) {
	if embedded != nil {
		t.Skip("the solver is in the program")
	}
	dir := t.TempDir()
	t.Setenv("HETC_NATIVE_DIR", dir)
	if err := os.Mkdir(filepath.Join(dir, "highs"), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "highs", "highs.wasm")
	if err := os.WriteFile(file, []byte("\x00asm\x01\x00\x00\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := Open()
	if err != nil || w.Where() != file {
		t.Fatalf("%v, %v", w, err)
	}
	_, err = w.Solve(context.Background(), assignment(2, 1), milp.Options{})
	if diag.ClassOf(err) != diag.ClassUnavailable || !strings.Contains(err.Error(), "want 528be4365bea") || len(diag.HintsOf(err)) == 0 {
		t.Errorf("got %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	if _, err := Open(); diag.ClassOf(err) != diag.ClassUnavailable || !strings.Contains(err.Error(), dir) || len(diag.HintsOf(err)) == 0 {
		t.Errorf("got %v", err)
	}
}
