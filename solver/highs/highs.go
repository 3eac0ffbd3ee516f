// Package highs knows the solver HiGHS: compiled to WebAssembly and run inside this process, where a crash is an
// error, and as a shared library in a process of its own. Both answer with what the model itself confirms.
//
// What both share is here: which options are set, in which order the C interface is called, and what its statuses
// prove. wasm.go and native.go say how a function of that interface is called.
package highs

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/milp"
)

// Names of the engines.
const (
	wasmName   = "highs"
	nativeName = "highs-native"
)

// api are the functions of HiGHS's C interface that a solve needs, however they are called. Errors mean that the
// library can no longer be used; what HiGHS itself refuses is its code -1.
type api interface {
	setBool(option string, v bool) (int32, error)
	setInt(option string, v int32) (int32, error)
	setDouble(option string, v float64) (int32, error)
	setString(option, v string) (int32, error)
	pass(c *columns) (int32, error)
	start(x []float64) (int32, error)
	listen(callback int32) error // to callbacks of that type
	run() (int32, error)
	status() (int32, error)
	infoInt(name string) (int32, error)
	infoInt64(name string) (int64, error)
	infoDouble(name string) (float64, error)
	solution(n, rows int) ([]float64, error)
}

// passLines passes on complete lines and returns what is left.
func passLines(text string, to func(line string)) (left string) {
	for {
		line, rest, ok := strings.Cut(text, "\n")
		if !ok {
			return text
		}
		to(line)
		text = rest
	}
}

// columns is a model as HiGHS takes it: rows compressed.
type columns struct {
	// added to the objective
	offset float64
	// of each column, and then of each row
	cost, low, high []float64
	rowLow, rowHigh []float64
	// row i has the coefficients value[start[i]:start[i+1]] in the columns of index
	start, index, integrality []int32
	value                     []float64
}

// compress makes the columns of a valid model. Coefficients of 0 are left out; lists are empty rather than nil, as
// their addresses are passed on.
func compress(model *milp.Model) *columns {
	out := &columns{offset: model.Offset, start: []int32{}, index: []int32{}, value: []float64{}}
	for j := range model.Vars {
		variable := &model.Vars[j]
		whole := int32(0)
		if variable.Integer {
			whole = 1
		}
		out.cost, out.integrality = append(out.cost, variable.Cost), append(out.integrality, whole)
		out.low, out.high = append(out.low, variable.Low), append(out.high, variable.High)
	}
	for i := range model.Rows {
		row := &model.Rows[i]
		out.rowLow, out.rowHigh = append(out.rowLow, row.Low), append(out.rowHigh, row.High)
		out.start = append(out.start, int32(len(out.index)))
		for _, term := range row.Terms {
			if term.Coef != 0 {
				out.index, out.value = append(out.index, int32(term.Var)), append(out.value, term.Coef)
			}
		}
	}
	return out
}

// Types of callbacks.
const (
	callbackLog         = 0
	callbackImproving   = 4
	callbackMipProgress = 5
)

// Statuses of a model. Numbers that are not listed prove nothing.
const (
	statusSolveError  = 4
	statusOptimal     = 7
	statusInfeasible  = 8
	statusEither      = 9 // unbounded or infeasible
	statusUnbounded   = 10
	statusTime        = 13
	statusIterations  = 14
	statusNodes       = 16 // or number of solutions
	statusInterrupted = 17
	statusMemory      = 18
)

const feasible = 2 // of primal_solution_status

// solve has HiGHS solve a valid model within valid options; engine is named in errors. fresh makes an instance.
//
// There may be a second attempt, with another instance, another seed and no presolve. Presolve may leave open whether
// a model is infeasible or unbounded, and a numerical failure may depend on the seed. model.Accept verifies the
// answer.
func solve(engine string, fresh func() (api, error), model *milp.Model, options milp.Options) (milp.Result, error) {
	fail := func(format string, args ...any) (milp.Result, error) {
		return milp.Result{}, diag.New(diag.ClassInternal, "engine %q: model %q: "+format,
			append([]any{engine, model.Name}, args...)...)
	}
	begun := time.Now()
	for attempt := range int32(2) {
		highs, err := fresh()
		if err != nil {
			return milp.Result{}, err
		}
		// The second attempt has what the first one left of the time.
		left := options
		if options.Time > 0 {
			left.Time = max(options.Time-time.Since(begun), time.Millisecond)
		}
		status, err := attack(highs, model, left, attempt)
		if err != nil {
			return milp.Result{}, err
		}
		if attempt == 0 && (status == statusEither || status == statusSolveError) {
			continue
		}
		if status == statusEither || status == statusUnbounded {
			return milp.Result{}, diag.New(diag.ClassInput, "engine %q: model %q is unbounded: "+
				"its objective falls without end", engine, model.Name)
		}
		answer, known, err := result(highs, model, status)
		if err != nil {
			return milp.Result{}, err
		}
		if !known {
			return fail("ended with status %d of HiGHS, which proves nothing", status)
		}
		if answer, err = model.Accept(answer); err != nil {
			return fail("%w", err)
		}
		return answer, nil
	}
	panic("BUG: a second attempt always ends")
}

// caller calls HiGHS for one model. After the first error it does nothing more: a half-loaded model may be solved as if
// it were whole, or crash.
type caller struct {
	highs api
	model *milp.Model
	err   error
}

// check notes an error, or a code with which HiGHS refuses.
func (c *caller) check(what string, code int32, err error) {
	switch {
	case c.err != nil:
	case err != nil:
		c.err = err
	case code < 0:
		c.err = diag.New(diag.ClassInternal, "HiGHS refuses %s of model %q", what, c.model.Name)
	}
}

// set sets an option by the value's type: HiGHS takes an int for a double and means something else.
func (c *caller) set(option string, value any) {
	if c.err != nil {
		return
	}
	var code int32
	var err error
	switch value := value.(type) {
	case bool:
		code, err = c.highs.setBool(option, value)
	case int32:
		code, err = c.highs.setInt(option, value)
	case float64:
		code, err = c.highs.setDouble(option, value)
	case string:
		code, err = c.highs.setString(option, value)
	}
	c.check("option "+option, code, err)
}

// listen has HiGHS call back about one kind of event.
func (c *caller) listen(callback int32) {
	if c.err == nil {
		c.err = c.highs.listen(callback)
	}
}

// configure sets all options; seed is that of HiGHS's random numbers. With one thread and no limit but nodes, an
// answer is the same each time.
//
// A solve ends where nothing is left to gain: the relative gap is 0, and the absolute one is 1e-9 of the largest
// cost, at least 1e-9. The second attempt (seed > 0) has no presolve, which tells an infeasible model from an
// unbounded one.
func (c *caller) configure(options *milp.Options, seed int32) {
	// Gaps are relative to the largest cost, as rounding errors are.
	largest := 1.0
	for j := range c.model.Vars {
		largest = max(largest, math.Abs(c.model.Vars[j].Cost))
	}
	c.set("log_to_console", false)
	c.set("output_flag", options.Log != nil || options.Progress != nil)
	c.set("threads", int32(1))
	c.set("parallel", "off")
	c.set("random_seed", seed)
	c.set("mip_rel_gap", 0.0)
	c.set("mip_abs_gap", 1e-9*largest)
	if seed > 0 {
		c.set("presolve", "off")
	}
	if options.Nodes > 0 {
		c.set("mip_max_nodes", int32(options.Nodes))
	}
	if options.Time > 0 {
		c.set("time_limit", options.Time.Seconds())
	}
	if options.Progress != nil {
		c.set("mip_min_logging_interval", 0.5)
	}
	if options.Log != nil {
		c.listen(callbackLog)
	}
	if options.Progress != nil {
		c.listen(callbackImproving)
		c.listen(callbackMipProgress)
	}
}

// attack configures, passes the model and runs, and returns HiGHS's status of the model.
func attack(highs api, model *milp.Model, options milp.Options, attempt int32) (status int32, err error) {
	c := caller{highs: highs, model: model}
	if c.configure(&options, attempt); c.err != nil {
		return 0, c.err
	}
	code, err := highs.pass(compress(model))
	if c.check("the arrays", code, err); c.err != nil {
		return 0, c.err
	}
	if options.Start != nil {
		if values, _, bad := model.Verify(options.Start); bad == nil { // HiGHS would try to repair another one
			code, err := highs.start(values)
			if c.check("the start", code, err); c.err != nil {
				return 0, c.err
			}
		}
	}
	code, err = highs.run()
	if c.check("to run", code, err); c.err != nil {
		return 0, c.err
	}
	return highs.status()
}

// result reads the answer; known is false when the status says nothing about the model.
func result(highs api, model *milp.Model, status int32) (answer milp.Result, known bool, err error) {
	switch status {
	case statusInfeasible:
		return milp.Result{Status: milp.Infeasible}, true, nil
	case statusOptimal:
		answer.Status = milp.Optimal
	case statusTime, statusIterations, statusNodes, statusInterrupted, statusMemory:
		answer.Status = milp.Limit
	default:
		return answer, false, nil
	}
	// The bound: of the search where there are integers, by duality where there are none.
	whole := slices.ContainsFunc(model.Vars, func(variable milp.Var) bool { return variable.Integer })
	answer.Bound = math.Inf(-1)
	if whole {
		if answer.Bound, err = highs.infoDouble("mip_dual_bound"); err != nil {
			return answer, true, err
		}
		if answer.Nodes, err = highs.infoInt64("mip_node_count"); err != nil {
			return answer, true, err
		}
		answer.Nodes = max(answer.Nodes, 0)
	}
	// The solution, if HiGHS has one. A solve that hit a limit with a solution is feasible, not proved.
	have, err := highs.infoInt("primal_solution_status")
	if err != nil {
		return answer, true, err
	}
	if have != feasible {
		return answer, status != statusOptimal, nil
	}
	if answer.Status == milp.Limit {
		answer.Status = milp.Feasible
	}
	if answer.X, err = highs.solution(len(model.Vars), len(model.Rows)); err != nil {
		return answer, true, err
	}
	if answer.Objective, err = highs.infoDouble("objective_function_value"); err != nil {
		return answer, true, err
	}
	if !whole && answer.Status == milp.Optimal {
		answer.Bound = answer.Objective // by duality
	}
	return answer, true, nil
}
