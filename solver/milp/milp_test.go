package milp_test

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/golden"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/solver/milp"
)

func TestMain(m *testing.M) { golden.Main(m) }

var inf = math.Inf(1)

// small has every kind of bound and row.
func small() *milp.Model {
	return &milp.Model{
		Name: "small", Note: "the objective times 2 is in ns", Offset: -3.5,
		Vars: []milp.Var{
			{Name: "a", Cost: 1, Low: 0, High: 4, Integer: true},
			{Name: "b b", Cost: -2, Low: -inf, High: 3.25},
			{Name: "c", Cost: 0.5, Low: -5, High: -1, Integer: true},
			{Name: "d", Cost: 0, Low: 2, High: inf},
			{Name: "e", Cost: 3, Low: -inf, High: inf},
			{Name: "f", Cost: 1, Low: 7, High: 7},
			{Name: "unused", Cost: -1, Low: 0, High: 1, Integer: true},
		},
		Rows: []milp.Row{
			{Name: "range", Low: 1, High: 6, Terms: []milp.Term{{0, 2}, {1, 1}, {3, -0.5}}},
			{Name: "equal", Low: -1, High: -1, Terms: []milp.Term{{2, 1}, {4, 1}, {5, 0}}},
			{Name: "below", Low: -inf, High: 9, Terms: []milp.Term{{1, 1}, {3, 1}, {5, 1}}},
			{Name: "above", Low: -4, High: inf, Terms: []milp.Term{{4, 1}}},
			{Name: "free", Low: -inf, High: inf, Terms: []milp.Term{{0, 1}}},
			{Name: "empty", Low: -1, High: 0},
		},
	}
}

func TestValidate(t *testing.T) {
	nan := math.NaN()
	for name, c := range map[string]struct {
		change func(*milp.Model)
		want   string // in the error; empty: valid
	}{
		"as it is":             {func(*milp.Model) {}, ""},
		"no variables":         {func(m *milp.Model) { m.Vars, m.Rows = nil, nil }, "0 variables"},
		"no rows":              {func(m *milp.Model) { m.Rows = nil }, ""},
		"NaN offset":           {func(m *milp.Model) { m.Offset = nan }, "offset is NaN"},
		"NaN cost":             {func(m *milp.Model) { m.Vars[1].Cost = nan }, `variable "b b": cost is NaN`},
		"infinite cost":        {func(m *milp.Model) { m.Vars[1].Cost = -inf }, "cost is -Inf"},
		"huge cost":            {func(m *milp.Model) { m.Vars[1].Cost = 1e14 }, "cost is 1e+14"},
		"NaN bound":            {func(m *milp.Model) { m.Vars[0].Low = nan }, `variable "a": bounds NaN`},
		"NaN row":              {func(m *milp.Model) { m.Rows[2].High = nan }, `row "below": bounds`},
		"low is +Inf":          {func(m *milp.Model) { m.Vars[0].Low, m.Vars[0].High = inf, inf }, "bounds +Inf"},
		"high is -Inf":         {func(m *milp.Model) { m.Rows[0].Low, m.Rows[0].High = -inf, -inf }, "bounds -Inf"},
		"bound taken for Inf":  {func(m *milp.Model) { m.Vars[3].High = 1e21 }, "want infinite ones"},
		"low above high":       {func(m *milp.Model) { m.Vars[0].Low = 5 }, "the lower bound 5 is above the upper one 4"},
		"row low above high":   {func(m *milp.Model) { m.Rows[0].Low = 6.5 }, `row "range": the lower bound 6.5`},
		"index out of range":   {func(m *milp.Model) { m.Rows[0].Terms[0].Var = 7 }, "variable 7 of 7"},
		"negative index":       {func(m *milp.Model) { m.Rows[0].Terms[0].Var = -1 }, "variable -1 of 7"},
		"huge index":           {func(m *milp.Model) { m.Rows[0].Terms[0].Var = 1 << 30 }, "of 7"},
		"variable twice":       {func(m *milp.Model) { m.Rows[0].Terms[1].Var = 0 }, `"a" appears twice`},
		"NaN coefficient":      {func(m *milp.Model) { m.Rows[0].Terms[0].Coef = nan }, `coefficient of "a" is NaN`},
		"infinite coefficient": {func(m *milp.Model) { m.Rows[0].Terms[0].Coef = inf }, "is +Inf"},
		"huge coefficient":     {func(m *milp.Model) { m.Rows[0].Terms[0].Coef = 1e16 }, "is 1e+16"},
		"dropped coefficient":  {func(m *milp.Model) { m.Rows[0].Terms[0].Coef = 1e-10 }, "is 1e-10"},
		"zero coefficient":     {func(m *milp.Model) { m.Rows[0].Terms[0].Coef = 0 }, ""},
		"name twice":           {func(m *milp.Model) { m.Vars[1].Name = "a" }, `name "a" is empty or appears twice`},
		"no name":              {func(m *milp.Model) { m.Vars[1].Name = "" }, "variable 1"},
		"row name twice":       {func(m *milp.Model) { m.Rows[1].Name = "range" }, "row 1"},
		"whole between":        {func(m *milp.Model) { m.Vars[0].Low, m.Vars[0].High = 0.4, 0.6 }, ""}, // infeasible, not invalid
	} {
		t.Run(name, func(t *testing.T) {
			m := small()
			c.change(m)
			err := m.Validate()
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `model "small"`) {
				t.Fatalf("got %v, want an error of class input with %q", err, c.want)
			}
		})
	}
}

func TestValidateOptions(t *testing.T) {
	m := small()
	for want, o := range map[string]milp.Options{
		"":                   {Nodes: 5, Time: time.Second, Start: make([]float64, 7)},
		"limit of -1 nodes":  {Nodes: -1},
		"limit of 429496729": {Nodes: 1 << 32},
		"limit of -1ns":      {Time: -1},
		"a start of 3":       {Start: make([]float64, 3)},
		`"a" starts at NaN`:  {Start: []float64{math.NaN(), 0, 0, 0, 0, 0, 0}},
	} {
		err := o.Validate(m)
		if want == "" && err != nil || want != "" && (diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: got %v, want %q", o, err, want)
		}
	}
}

// answer satisfies small.
func answer() []float64 { return []float64{2, 0, -2, 2, 1, 7, 1} }

func TestVerify(t *testing.T) {
	m := small()
	if err := m.Validate(); err != nil {
		t.Fatal(err)
	}
	x, objective, err := m.Verify(answer())
	if want := -3.5 + 2 - 0 - 1 + 0 + 3 + 7 - 1; err != nil || objective != want || x[0] != 2 {
		t.Fatalf("got %v %v %v, want objective %v", x, objective, err, want)
	}
	near := answer()
	near[0], near[2], near[5], near[6] = 2-4e-7, -2+9e-7, 7+6e-6, 1-1e-13
	if x, objective, err := m.Verify(near); err != nil || objective != 6.5 || fmt.Sprint(x) != fmt.Sprint(answer()) {
		t.Errorf("near: got %v %v %v", x, objective, err)
	}
	for want, change := range map[string]func([]float64) []float64{
		"6 values for 7":                      func(x []float64) []float64 { return x[:6] },
		`variable "a" is NaN`:                 func(x []float64) []float64 { x[0] = math.NaN(); return x },
		`variable "e" is +Inf`:                func(x []float64) []float64 { x[4] = inf; return x },
		`variable "a" is 1.99, want a whole`:  func(x []float64) []float64 { x[0] = 1.99; return x },
		`variable "a" is 5, want 0..4`:        func(x []float64) []float64 { x[0] = 5; return x },
		`variable "f" is 7.1, want 7..7`:      func(x []float64) []float64 { x[5] = 7.1; return x },
		`row "range" is 0, want 1..6`:         func(x []float64) []float64 { x[0], x[1] = 1, -1; return x },
		`row "equal" is -2, want -1..-1`:      func(x []float64) []float64 { x[2] = -3; return x },
		`row "equal" is -6, want -1..-1`:      func(x []float64) []float64 { x[2], x[4] = -1, -5; return x },
		`row "below" is 10, want -Inf..9`:     func(x []float64) []float64 { x[3] = 3; return x },
		`variable "b b" is 3.26, want -Inf..`: func(x []float64) []float64 { x[1] = 3.26; return x },
	} {
		if _, _, err := m.Verify(change(answer())); diag.ClassOf(err) != diag.ClassInternal || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestAccept(t *testing.T) {
	m := small()
	ok := func(r milp.Result, status milp.Status, gap float64) {
		t.Helper()
		got, err := m.Accept(r)
		if err != nil || got.Status != status || math.Abs(got.Gap()-gap) > 1e-12 && got.Gap() != gap {
			t.Errorf("%+v: got %+v with gap %v, %v; want %q with %v", r, got, got.Gap(), err, status, gap)
		}
	}
	ok(milp.Result{Status: milp.Optimal, X: answer(), Objective: 6.5 + 1e-7, Bound: 6.5 + 1e-7}, milp.Optimal, 0)
	ok(milp.Result{Status: milp.Optimal, X: answer(), Objective: 6.5, Bound: 6}, milp.Feasible, 0.5/6.5)
	ok(milp.Result{Status: milp.Feasible, X: answer(), Objective: 6.5, Bound: math.Inf(-1)}, milp.Feasible, inf)
	ok(milp.Result{Status: milp.Infeasible, X: answer()}, milp.Infeasible, inf)
	ok(milp.Result{Status: milp.Limit, Bound: 3}, milp.Limit, inf)
	for want, r := range map[string]milp.Result{
		"claims an objective of 6.4": {Status: milp.Optimal, X: answer(), Objective: 6.4, Bound: 6.4},
		"claims an objective of NaN": {Status: milp.Optimal, X: answer(), Objective: math.NaN(), Bound: 6.5},
		"bound 7 above":              {Status: milp.Feasible, X: answer(), Objective: 6.5, Bound: 7},
		"bound NaN above":            {Status: milp.Feasible, X: answer(), Objective: 6.5, Bound: math.NaN()},
		"0 values":                   {Status: milp.Optimal},
		`unknown status ""`:          {},
	} {
		if _, err := m.Accept(r); diag.ClassOf(err) != diag.ClassInternal || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q", r, err, want)
		}
	}
}

func TestWrite(t *testing.T) {
	var lp bytes.Buffer
	if err := small().WriteLP(&lp); err != nil {
		t.Fatal(err)
	}
	golden.Equal(t, "lp", lp.Bytes())
	if err := small().WriteLP(full{}); err == nil {
		t.Error("writing to a full disk succeeded")
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, fmt.Errorf("no space left on device") }

// draw makes a random model of whole variables with small ranges, which can be enumerated.
func draw(t *rapid.T) *milp.Model {
	m := &milp.Model{Name: "random", Offset: float64(rapid.IntRange(-5, 5).Draw(t, "offset")) / 2}
	number := rapid.IntRange(-6, 6)
	for j := range rapid.IntRange(1, 5).Draw(t, "vars") {
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
		switch rapid.IntRange(0, 4).Draw(t, "kind") {
		case 0:
			r.Low = at
		case 1:
			r.High = at
		case 2:
			r.Low, r.High = at, at
		case 3:
			r.Low, r.High = at, at+float64(rapid.IntRange(0, 6).Draw(t, "range"))
		}
		m.Rows = append(m.Rows, r)
	}
	return m
}

// bruteForce enumerates; ok is false when nothing satisfies the rows. It shares no code with Verify.
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

// Verify accepts exactly what satisfies the model.
func TestVerifyAgainstEnumeration(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := draw(t)
		if err := m.Validate(); err != nil {
			t.Fatal(err)
		}
		x := make([]float64, len(m.Vars))
		fixed := *m
		fixed.Vars = append([]milp.Var{}, m.Vars...)
		for j := range x {
			x[j] = float64(rapid.IntRange(-3, 5).Draw(t, "x"))
			if x[j] >= m.Vars[j].Low && x[j] <= m.Vars[j].High {
				fixed.Vars[j].Low, fixed.Vars[j].High = x[j], x[j]
			} else {
				fixed.Vars[j].Low, fixed.Vars[j].High = 1, 0
			}
		}
		want, ok := bruteForce(&fixed)
		_, got, err := m.Verify(x)
		if ok != (err == nil) || ok && got != want {
			t.Fatalf("%v: got %v %v, enumeration finds %v %v", x, got, err, want, ok)
		}
	})
}

// Programs of others read a file as the model that was meant.
func TestOtherProgramsReadWhatIsWritten(t *testing.T) {
	for _, program := range []struct {
		name, file string
		solve      func(t *rapid.T, dir string, preprocess bool) (float64, bool, error)
	}{{"glpk", "glpsol", glpsol}, {"cbc", "cbc", cbc}} {
		t.Run(program.name, func(t *testing.T) {
			if _, err := exec.LookPath(program.file); err != nil {
				require.Skip(t, program.name, err)
			}
			dir := t.TempDir()
			draws, most := 0, 40
			if testing.Short() {
				most = 5
			}
			rapid.Check(t, func(t *rapid.T) {
				if draws++; draws > most && os.Getenv("HETC_LONG") == "" {
					return // a process each
				}
				m := draw(t)
				f, err := os.Create(filepath.Join(dir, "model.lp"))
				if err != nil {
					t.Fatal(err)
				}
				if err := m.WriteLP(f); err != nil {
					t.Fatal(err)
				}
				f.Close()
				want, wantOK := bruteForce(m)
				// What is tested is the file, and these programs have faults: the preprocessing of CBC 2.10.8
				// and of GLPK 5.0 gives wrong answers to some models of three variables, and without it CBC
				// crashes on others. A file that was read as something else is answered wrongly both ways.
				var said []string
				for _, preprocess := range []bool{true, false} {
					got, ok, err := program.solve(t, dir, preprocess)
					if err == nil && ok == wantOK && (!ok || math.Abs(got-want) <= 1e-6) {
						return
					}
					said = append(said, fmt.Sprint(got, ok, err))
				}
				t.Fatalf("got %v, enumeration finds %v %v", said, want, wantOK)
			})
		})
	}
}

func output(dir, name string, args ...string) (string, error) {
	c := exec.Command(name, args...)
	c.Dir = dir
	text, err := c.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", name, err, text)
	}
	return string(text), nil
}

// after is the number behind a word, on the line that holds it.
func after(t *rapid.T, text, word string) float64 {
	_, rest, ok := strings.Cut(text, word)
	line, _, _ := strings.Cut(rest, "\n")
	fields := strings.Fields(line)
	if !ok || len(fields) == 0 {
		t.Fatalf("no %q in\n%s", word, text)
	}
	x, err := strconv.ParseFloat(fields[0], 64)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return x
}

func glpsol(t *rapid.T, dir string, preprocess bool) (float64, bool, error) {
	log, err := output(dir, "glpsol", "--lp", "model.lp",
		map[bool]string{true: "--intopt", false: "--nointopt"}[preprocess], "--min", "-o", "out.txt")
	if err != nil {
		return 0, false, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "out.txt"))
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if strings.HasPrefix(line, "Status:") && strings.Contains(line, "OPTIMAL") {
			return after(t, string(text), "obj ="), true, nil
		}
	}
	if !strings.Contains(log, "NO") && !strings.Contains(string(text), "EMPTY") && !strings.Contains(string(text), "UNDEFINED") {
		t.Fatalf("%s\n%s", log, text)
	}
	return 0, false, nil
}

func cbc(t *rapid.T, dir string, preprocess bool) (float64, bool, error) {
	log, err := output(dir, "cbc", "model.lp", "ratio", "0", "preprocess", map[bool]string{true: "on", false: "off"}[preprocess],
		"solve", "solution", "out.txt")
	if err != nil {
		return 0, false, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "out.txt"))
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	if strings.HasPrefix(string(text), "Optimal") {
		return after(t, string(text), "objective value"), true, nil
	}
	if !strings.Contains(strings.ToLower(string(text)), "infeasible") {
		t.Fatalf("%s\n%s", log, text)
	}
	return 0, false, nil
}
