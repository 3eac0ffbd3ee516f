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

// shared is the engine of all tests: compiling HiGHS takes seconds.
var shared = struct {
	sync.Once
	engine *Wasm
	err    error
}{}

// engine returns HiGHS as WebAssembly, or skips the test where it is not there.
func engine(t testing.TB) *Wasm {
	t.Helper()
	require.Slow(t)
	shared.Do(func() { shared.engine, shared.err = Open() })
	if shared.err != nil {
		require.Skip(t, "highs", shared.err)
	}
	return shared.engine
}

// must returns an engine's result, and ends the test where that is an error.
func must(t testing.TB, by milp.Engine, model *milp.Model, options milp.Options) milp.Result {
	t.Helper()
	result, err := by.Solve(context.Background(), model, options)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// isRefused reports whether an error is of a class, says all of some texts, and has a hint where one is wanted.
func isRefused(err error, class diag.Class, hinted bool, texts ...string) bool {
	if err == nil || diag.ClassOf(err) != class || hinted && len(diag.HintsOf(err)) == 0 {
		return false
	}
	return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(err.Error(), text) })
}

// sequence is a generator of numbers that are the same on every machine.
type sequence uint64

// next returns a whole number from 0 to below most.
func (s *sequence) next(most uint64) float64 {
	*s = *s*6364136223846793005 + 1442695040888963407
	return float64(uint64(*s>>33) % most)
}

// assignment is n workers for n jobs with costs from a fixed sequence.
func assignment(n int, seed sequence) *milp.Model {
	model := &milp.Model{Name: fmt.Sprintf("assignment %d", n)}
	for i := range 2 * n {
		model.Rows = append(model.Rows, milp.Row{Name: fmt.Sprint("r", i), Low: 1, High: 1})
	}
	for worker := range n {
		for job := range n {
			term := milp.Term{Var: len(model.Vars), Coef: 1}
			model.Vars = append(model.Vars, milp.Var{Name: fmt.Sprintf("x%d.%d", worker, job), Cost: seed.next(1000),
				High: 1, Integer: true})
			for _, at := range []int{worker, n + job} {
				model.Rows[at].Terms = append(model.Rows[at].Terms, term)
			}
		}
	}
	return model
}

// hard is a market split problem, which takes a search of many nodes: items that are to fill half of several knapsacks,
// each as nearly as possible.
func hard(items, rows int, seed sequence) *milp.Model {
	model := &milp.Model{Name: "market split"}
	for item := range items {
		model.Vars = append(model.Vars, milp.Var{Name: fmt.Sprint("x", item), High: 1, Integer: true})
	}
	for i := range rows {
		row := milp.Row{Name: fmt.Sprint("r", i)}
		sum := 0.0
		for item := range items {
			weight := seed.next(100)
			sum += weight
			row.Terms = append(row.Terms, milp.Term{Var: item, Coef: weight})
		}

		over, under := len(model.Vars), len(model.Vars)+1
		model.Vars = append(model.Vars, milp.Var{Name: fmt.Sprint("over", i), Cost: 1, High: inf},
			milp.Var{Name: fmt.Sprint("under", i), Cost: 1, High: inf})
		row.Terms = append(row.Terms, milp.Term{Var: over, Coef: -1}, milp.Term{Var: under, Coef: 1})
		row.Low = math.Floor(sum / 2)
		row.High = row.Low
		model.Rows = append(model.Rows, row)
	}
	return model
}

// draw makes a random model of whole variables with small ranges, which can be enumerated.
func draw(t *rapid.T) *milp.Model {
	model := &milp.Model{Name: "random", Offset: float64(rapid.IntRange(-5, 5).Draw(t, "offset")) / 2}
	number := rapid.IntRange(-6, 6)
	for j := range rapid.IntRange(1, 6).Draw(t, "vars") {
		low := rapid.IntRange(-2, 1).Draw(t, "low")
		model.Vars = append(model.Vars, milp.Var{Name: fmt.Sprint("v", j), Cost: float64(number.Draw(t, "cost")) / 2,
			Low: float64(low), High: float64(low + rapid.IntRange(0, 3).Draw(t, "width")), Integer: true})
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "rows") {
		row := milp.Row{Name: fmt.Sprint("r", i), Low: -inf, High: inf}
		for j := range model.Vars {
			if rapid.Bool().Draw(t, "in") {
				row.Terms = append(row.Terms, milp.Term{Var: j, Coef: float64(number.Draw(t, "coef"))})
			}
		}
		bound := float64(number.Draw(t, "bound"))
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			row.Low = bound
		case 1:
			row.High = bound
		case 2:
			row.Low, row.High = bound, bound+float64(rapid.IntRange(0, 6).Draw(t, "range"))
		}
		model.Rows = append(model.Rows, row)
	}
	return model
}

// enumerated returns the least objective of a model of whole variables; ok is false if nothing satisfies its rows.
func enumerated(model *milp.Model) (best float64, ok bool) {
	values := make([]float64, len(model.Vars))
	best = inf
	var walk func(j int)
	walk = func(j int) {
		if j < len(values) {
			for values[j] = model.Vars[j].Low; values[j] <= model.Vars[j].High; values[j]++ {
				walk(j + 1)
			}
			return
		}

		for _, row := range model.Rows {
			sum := 0.0
			for _, term := range row.Terms {
				sum += term.Coef * values[term.Var]
			}
			if sum < row.Low || sum > row.High {
				return
			}
		}
		cost := model.Offset
		for j, variable := range model.Vars {
			cost += variable.Cost * values[j]
		}
		best, ok = min(best, cost), true
	}
	walk(0)
	return best, ok
}

// The objective is the least of all values, and what enumeration finds infeasible is.
func TestEnumeration(t *testing.T) {
	require.Slow(t)
	highs := engine(t)
	found := 0
	rapid.Check(t, func(t *rapid.T) {
		model := draw(t)
		want, ok := enumerated(model)
		result, err := highs.Solve(context.Background(), model, milp.Options{})
		if err != nil {
			t.Fatal(err)
		}
		isBest := result.Status == milp.Optimal && math.Abs(result.Objective-want) <= 1e-9
		if ok && !isBest || !ok && result.Status != milp.Infeasible {
			t.Fatalf("got %+v, enumeration finds %v %v", result, want, ok)
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
	highs := engine(t)
	sameBits := func(x, y float64) bool { return math.Float64bits(x) == math.Float64bits(y) }
	for _, model := range []*milp.Model{assignment(20, 1), hard(12, 2, 3)} {
		first, second := must(t, highs, model, milp.Options{}), must(t, highs, model, milp.Options{})
		isSame := first.Nodes == second.Nodes && first.Bound == second.Bound &&
			slices.EqualFunc(first.X, second.X, sameBits)
		if first.Status != milp.Optimal || !isSame {
			t.Errorf("%s: %+v and %+v", model.Name, first, second)
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
	for _, want := range []string{"Copyright (c) 2026 HiGHS", "Permission is hereby granted, free of charge",
		"Orson Peters", "Michael Feldmeier", "cuPDLP-C", "Rich Felker", "Emscripten authors"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the licences", want)
		}
	}
}

// fresh returns a HiGHS of its own, until the test ends.
func fresh(t *testing.T, name string, options milp.Options) *instance {
	t.Helper()
	highs := engine(t)
	if err := highs.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	in, err := highs.instance(context.Background(), name, &options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.close)
	return in
}

// Every name of the table is in the module, and its version is the expected one: instance checks that.
func TestTable(t *testing.T) {
	require.Slow(t)
	in, module := fresh(t, "m", milp.Options{}), engine(t).module
	for what, short := range exported {
		if module.ExportedFunctions()[short] == nil {
			t.Errorf("%s is not exported as %s", what, short)
		}
	}
	known := map[string]bool{}
	for _, short := range imported {
		known[short] = true
	}
	if n := len(module.ImportedFunctions()); n != len(imported) || len(known) != n {
		t.Errorf("%d imports, the table has %d with %d names", n, len(imported), len(known))
	}
	if version, err := in.version(); version != Version || err != nil {
		t.Errorf("version %q, %v", version, err)
	}

	// notices.txt leaves out the authors of what only builds with HiPO contain.
	if code, err := in.setString("solver", "hipo"); code >= 0 || err != nil {
		t.Errorf("solver=hipo: %d, %v, want a refusal", code, err)
	}
	if code, err := in.setString("solver", "ipx"); code < 0 || err != nil {
		t.Errorf("solver=ipx: %d, %v", code, err)
	}
}

// rawAnswer is what HiGHS says to arrays: the codes of passing them and of running, and what it then has.
type rawAnswer struct {
	pass, run, status int32
	objective         float64
}

// raw passes arrays that no valid model has to a fresh HiGHS, and runs it when they are taken.
func raw(t *testing.T, arrays *columns) (answer rawAnswer) {
	t.Helper()
	in := fresh(t, "raw", milp.Options{})
	if _, err := in.setBool("output_flag", false); err != nil {
		t.Fatal(err)
	}
	var err error
	if answer.pass, err = in.pass(arrays); err != nil {
		t.Fatal(err)
	}
	if answer.pass < 0 {
		return answer
	}
	if answer.run, err = in.run(); err != nil {
		t.Fatal(err)
	}
	if answer.status, err = in.status(); err != nil {
		t.Fatal(err)
	}
	if answer.objective, err = in.infoDouble("objective_function_value"); err != nil {
		answer.objective = math.NaN()
	}
	return answer
}

// two is min -x0 - 2 x1 with x0 + x1 <= 1.5, both in 0..1 and whole.
func two() *columns {
	return &columns{
		cost: []float64{-1, -2}, low: []float64{0, 0}, high: []float64{1, 1}, integrality: []int32{1, 1},
		rowLow: []float64{-inf}, rowHigh: []float64{1.5},
		start: []int32{0}, index: []int32{0, 1}, value: []float64{1, 1},
	}
}

// statusEmpty is HiGHS's model status of a model without variables.
const statusEmpty = 6

// What HiGHS itself does with bad input is why models are validated first: some of it is refused, some taken for
// something else. Nothing crashes this process.
func TestBadInput(t *testing.T) {
	for name, change := range map[string]func(*columns){
		"NaN column bound": func(c *columns) { c.low[0] = math.NaN() },
		"NaN row bound":    func(c *columns) { c.rowHigh[0] = math.NaN() },
		"index too large":  func(c *columns) { c.index[1] = 2 },
		"index negative":   func(c *columns) { c.index[1] = -1 },
		"index huge":       func(c *columns) { c.index[1] = 1 << 30 },
		"index twice":      func(c *columns) { c.index[1] = 0 },
		"decreasing start": func(c *columns) {
			c.rowLow, c.rowHigh, c.start = []float64{-inf, -inf}, []float64{1.5, 1}, []int32{1, 0}
		},
		"start too large":      func(c *columns) { c.start[0] = 1 << 30 },
		"infinite coefficient": func(c *columns) { c.value[0] = inf },
		"coefficient of 1e16":  func(c *columns) { c.value[0] = 1e16 },
		"bad integrality":      func(c *columns) { c.integrality[0] = 7 },
	} {
		t.Run(name, func(t *testing.T) {
			arrays := two()
			change(arrays)
			if answer := raw(t, arrays); answer.pass >= 0 {
				t.Errorf("got %+v, want a refusal", answer)
			}
		})
	}
}

// Models that HiGHS takes, although some of them are not what was meant.
func TestTakenInput(t *testing.T) {
	for name, test := range map[string]struct {
		change    func(*columns)
		status    int32
		objective float64
	}{
		"as it is":                {func(c *columns) {}, statusOptimal, -2},
		"NaN cost":                {func(c *columns) { c.cost[0] = math.NaN() }, statusOptimal, math.NaN()},
		"infinite cost":           {func(c *columns) { c.cost[0], c.low[0] = inf, 1 }, statusOptimal, inf},
		"NaN coefficient":         {func(c *columns) { c.value[0] = math.NaN() }, statusOptimal, -3}, // dropped
		"coefficient of 1e-10":    {func(c *columns) { c.value[0] = 1e-10 }, statusOptimal, -3},      // dropped
		"column low above high":   {func(c *columns) { c.low[0] = 2 }, statusInfeasible, inf},
		"row low above high":      {func(c *columns) { c.rowLow[0] = 2 }, statusInfeasible, inf},
		"infeasible row":          {func(c *columns) { c.rowLow[0], c.rowHigh[0] = 3, inf }, statusInfeasible, inf},
		"no whole number between": {func(c *columns) { c.low[0], c.high[0] = 0.4, 0.6 }, statusInfeasible, inf},
		"unbounded":               {func(c *columns) { c.high[0], c.rowHigh[0] = inf, inf }, statusEither, -inf},
		"no rows": {func(c *columns) {
			c.rowLow, c.rowHigh, c.start, c.index, c.value = nil, nil, nil, nil, nil
		}, statusOptimal, -3},
		"empty": {func(c *columns) { *c = columns{} }, statusEmpty, 0},
	} {
		t.Run(name, func(t *testing.T) {
			arrays := two()
			test.change(arrays)
			answer := raw(t, arrays)
			isWanted := answer.status == test.status && (answer.run >= 0 || answer.status == statusEmpty)
			if answer.status == statusOptimal && answer.objective != test.objective {
				isWanted = math.IsNaN(answer.objective) && math.IsNaN(test.objective)
			}
			if answer.pass < 0 || !isWanted {
				t.Errorf("got %+v, want status %d, objective %v", answer, test.status, test.objective)
			}
		})
	}
}

// Running after a model was refused kills a process that HiGHS is linked into; here it is an error at worst, and
// the next solve is unharmed.
func TestRunAfterRefusal(t *testing.T) {
	in := fresh(t, "refused", milp.Options{})
	arrays := two()
	arrays.index[1] = 1 << 30
	if code, err := in.pass(arrays); code >= 0 || err != nil {
		t.Fatalf("got %d, %v", code, err)
	}
	if _, err := in.run(); err != nil && !strings.Contains(err.Error(), `"refused": Highs_run crashed`) {
		t.Errorf("got %v", err)
	}
	if result := must(t, engine(t), assignment(3, 1), milp.Options{}); result.Status != milp.Optimal {
		t.Errorf("the next solve: %+v", result)
	}
}

func TestOptionsRefused(t *testing.T) {
	in := fresh(t, "options", milp.Options{Log: func(string) {}})
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

// Models and options are validated before the engine gets them.
func TestInvalidModelsAreRefused(t *testing.T) {
	highs := engine(t)
	bad := assignment(2, 1)
	bad.Vars[0].Cost = math.NaN()
	_, err := highs.Solve(context.Background(), bad, milp.Options{})
	if !isRefused(err, diag.ClassInput, false, "cost is NaN") {
		t.Errorf("a cost of NaN: got %v", err)
	}
	_, err = highs.Solve(context.Background(), assignment(2, 1), milp.Options{Nodes: -1})
	if !isRefused(err, diag.ClassInput, false, "-1 nodes") {
		t.Errorf("a limit of -1 nodes: got %v", err)
	}
}

func TestStatuses(t *testing.T) {
	highs := engine(t)
	infeasible := assignment(2, 1)
	infeasible.Rows[0].Low, infeasible.Rows[0].High = 3, 3
	if result := must(t, highs, infeasible, milp.Options{}); result.Status != milp.Infeasible || result.X != nil {
		t.Errorf("infeasible: %+v", result)
	}

	down := milp.Var{Name: "down", Cost: 1, Low: -inf, High: 0, Integer: true}
	unbounded := assignment(2, 1)
	unbounded.Vars = append(unbounded.Vars, down)
	_, err := highs.Solve(context.Background(), unbounded, milp.Options{})
	if !isRefused(err, diag.ClassInput, false, "unbounded") {
		t.Errorf("unbounded: %v", err)
	}

	// Presolve says "unbounded or infeasible" to this one, which is the latter.
	both := &milp.Model{Name: "both",
		Vars: []milp.Var{down, {Name: "x", High: inf, Integer: true}, {Name: "y", High: inf, Integer: true}},
		Rows: []milp.Row{{Name: "even", Low: 1, High: 1, Terms: []milp.Term{{Var: 1, Coef: 2}, {Var: 2, Coef: -2}}}}}
	result, err := highs.Solve(context.Background(), both, milp.Options{Time: 5 * time.Second})
	if err == nil && result.Status != milp.Infeasible && result.Status != milp.Limit {
		t.Errorf("both: %+v", result)
	}

	continuous := &milp.Model{Name: "continuous", Vars: []milp.Var{{Name: "x", Cost: 1, Low: 0.5, High: 2}}}
	result = must(t, highs, continuous, milp.Options{})
	if result.Status != milp.Optimal || result.Objective != 0.5 || result.Bound != 0.5 {
		t.Errorf("continuous: %+v", result)
	}
}

// A limit of nodes ends a search at the same place each time, with a bound below the solution it has.
func TestNodeLimit(t *testing.T) {
	require.Slow(t)
	highs, model := engine(t), hard(40, 4, 7)
	first, second := must(t, highs, model, milp.Options{Nodes: 20}), must(t, highs, model, milp.Options{Nodes: 20})
	if first.Status != milp.Feasible || first.Bound >= first.Objective || first.Nodes < 20 || first.Nodes > 2000 {
		t.Errorf("got %v objective %v bound %v nodes %d", first.Status, first.Objective, first.Bound, first.Nodes)
	}
	isSame := first.Objective == second.Objective && first.Bound == second.Bound && first.Nodes == second.Nodes
	if !isSame || !slices.Equal(first.X, second.X) {
		t.Errorf("two runs differ: %v %v", first, second)
	}
}

func TestTimeLimit(t *testing.T) {
	highs := engine(t)
	begun := time.Now()
	result := must(t, highs, hard(50, 5, 7), milp.Options{Time: 300 * time.Millisecond})
	isOpen := result.Status == milp.Feasible || result.Status == milp.Limit
	if took := time.Since(begun); !isOpen || took > 20*time.Second {
		t.Errorf("%v after %v", result.Status, took)
	}
}

// A start is what is returned when nothing better is found in time; one that breaks a row does no harm.
func TestStart(t *testing.T) {
	require.Slow(t)
	highs, model := engine(t), hard(12, 2, 3)
	best := must(t, highs, model, milp.Options{})
	again := must(t, highs, model, milp.Options{Start: best.X})
	if again.Status != milp.Optimal || math.Abs(again.Objective-best.Objective) > 1e-9 {
		t.Errorf("from the optimum: %+v", again)
	}
	takesStart(t, highs, model, best.X)

	broken := slices.Clone(best.X)
	broken[0] = 1 - broken[0]
	result := must(t, highs, model, milp.Options{Start: broken})
	if math.Abs(result.Objective-best.Objective) > 1e-9 {
		t.Errorf("from a broken start: %+v", result)
	}
}

// takesStart checks that HiGHS's log says that it took a start.
func takesStart(t *testing.T, by milp.Engine, model *milp.Model, start []float64) {
	t.Helper()
	var lines []string
	must(t, by, model, milp.Options{Start: start, Log: func(line string) { lines = append(lines, line) }})
	if !strings.Contains(strings.Join(lines, "\n"), "MIP start solution is feasible") {
		t.Errorf("the start was not taken: %q", lines)
	}
}

func TestLogAndProgress(t *testing.T) {
	require.Slow(t)
	highs, model := engine(t), hard(30, 3, 7)
	var lines []string
	calls := 0
	progress := func(objective, bound float64, nodes int64) {
		calls++
		if bound > objective+1e-6 || nodes < 0 {
			t.Errorf("objective %v, bound %v, nodes %d", objective, bound, nodes)
		}
	}
	result := must(t, highs, model, milp.Options{Nodes: 200, Progress: progress,
		Log: func(line string) { lines = append(lines, line) }})

	text := strings.Join(lines, "\n")
	if calls == 0 || !strings.Contains(text, "Running HiGHS") && !strings.Contains(text, "MIP ") {
		t.Errorf("%d calls, log %q", calls, lines)
	}
	plain := must(t, highs, model, milp.Options{Nodes: 200})
	if plain.Objective != result.Objective || plain.Nodes != result.Nodes {
		t.Errorf("listening changes the answer: %v %d, %v %d", result.Objective, result.Nodes, plain.Objective,
			plain.Nodes)
	}
}

// The end of a context ends a solve within a second.
func TestCancel(t *testing.T) {
	highs := engine(t)
	must(t, highs, assignment(3, 1), milp.Options{})
	cancelSoon(t, highs)

	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := highs.Solve(ended, assignment(3, 1), milp.Options{}); diag.ClassOf(err) != diag.ClassInterrupted {
		t.Errorf("cancelled before: %v", err)
	}
	if result := must(t, highs, assignment(3, 1), milp.Options{}); result.Status != milp.Optimal {
		t.Errorf("the next solve: %+v", result)
	}
}

// cancelSoon checks that an engine ends within a second of the end of its context.
func cancelSoon(t *testing.T, by milp.Engine) {
	t.Helper()
	const after = 500 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	timer := time.AfterFunc(after, cancel)
	defer timer.Stop()
	begun := time.Now()
	_, err := by.Solve(ctx, hard(60, 6, 7), milp.Options{})
	if late := time.Since(begun) - after; diag.ClassOf(err) != diag.ClassInterrupted || late > time.Second {
		t.Errorf("%v, %v late", err, late)
	}
}

func TestConcurrentSolves(t *testing.T) {
	highs := engine(t)
	want := must(t, highs, assignment(12, 5), milp.Options{})
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			result, err := highs.Solve(context.Background(), assignment(12, 5), milp.Options{Log: func(string) {}})
			if err != nil || !slices.Equal(result.X, want.X) {
				t.Errorf("%v: another answer", err)
			}
		})
	}
	group.Wait()
}

// Memory is bounded: a model that needs more is an error, and the next solve is unharmed.
func TestMemoryIsBounded(t *testing.T) {
	highs := engine(t)
	must(t, highs, assignment(3, 1), milp.Options{})
	small := &Wasm{where: highs.where, maxPages: (24 << 20) / pageBytes, started: highs.started,
		runtime: highs.runtime, module: highs.module}
	small.number.Store(1 << 32) // names of instances are unique in a runtime
	_, err := small.Solve(context.Background(), assignment(200, 1), milp.Options{})
	if !isRefused(err, diag.ClassUnavailable, false, "needs more than 24 MiB of memory") {
		t.Errorf("got %v", err)
	}
	if result := must(t, small, assignment(3, 1), milp.Options{}); result.Status != milp.Optimal {
		t.Errorf("the next solve: %+v", result)
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

// userCache gives the test a cache directory of its own, on any system.
func userCache(t *testing.T) string {
	t.Helper()
	user := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", user)
	t.Setenv("HOME", user)         // macOS
	t.Setenv("LocalAppData", user) // Windows
	return user
}

// solveAnew checks that an engine that is opened anew solves, whatever its cache has.
func solveAnew(t *testing.T, cache string) {
	t.Helper()
	highs, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer highs.Close()
	if result := must(t, highs, assignment(3, 1), milp.Options{}); result.Status != milp.Optimal {
		t.Errorf("cache %s: %+v", cache, result)
	}
}

// cachedModule returns the file of compiled code in a cache directory, and skips the test where none is kept.
func cachedModule(t *testing.T, dir string) string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(file string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && entry.Name() != sums {
			files = append(files, file)
		}
		return err
	})
	if err != nil || len(files) != 1 {
		t.Skipf("this processor's code is not kept: %d files, %v", len(files), err)
	}
	return files[0]
}

// Solves go on whatever is wrong with the cache. What is kept is used; what is damaged is removed and written again.
func TestCache(t *testing.T) {
	require.Slow(t)
	engine(t)
	user := userCache(t)
	solveAnew(t, "empty")
	dir := cacheDir()
	if dir == "" {
		t.Fatal("the directory that was just written is not used")
	}
	if stat, err := os.Stat(dir); err != nil || stat.Mode().Perm()&0o077 != 0 {
		t.Errorf("%v, %v", stat.Mode(), err)
	}

	file := cachedModule(t, dir)
	before, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	solveAnew(t, "kept")
	if after, err := os.Stat(file); err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("what was kept was written again: %v", err)
	}

	testDamagedCache(t, file)

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
		solveAnew(t, "no directory")
	}
}

// testDamagedCache damages the compiled code in a file, which is then removed with its folder and written again.
func testDamagedCache(t *testing.T, file string) {
	t.Helper()
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := slices.Clone(whole)
	changed[30] ^= 0x80 // a number in the header, which the checksum of the code does not cover
	for what, content := range map[string][]byte{"truncated": whole[:len(whole)/2], "changed": changed} {
		err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, content, 0o600))
		if err != nil {
			t.Fatal(err)
		}
		if os.Getenv("HETC_LONG") == "" && what == "truncated" {
			cacheDir()
			if _, err := os.Stat(file); err == nil {
				t.Errorf("%s: still there", what)
			}
			continue
		}
		solveAnew(t, what)
		if got, err := os.ReadFile(file); err != nil || len(got) != len(whole) {
			t.Errorf("%s: not replaced: %d bytes, %v", what, len(got), err)
		}
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

	highs, err := Open()
	if err != nil || highs.Where() != file {
		t.Fatalf("%v, %v", highs, err)
	}
	_, err = highs.Solve(context.Background(), assignment(2, 1), milp.Options{})
	if !isRefused(err, diag.ClassUnavailable, true, "want 528be4365bea") {
		t.Errorf("got %v", err)
	}

	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	if _, err := Open(); !isRefused(err, diag.ClassUnavailable, true, dir) {
		t.Errorf("got %v", err)
	}
}
