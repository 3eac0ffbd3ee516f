// Package highs knows the solver HiGHS: compiled to WebAssembly and run inside this process, where a crash is an
// error, and as a shared library in a process of its own. Both answer with what the model itself confirms.
package highs

import (
	"math"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/milp"
)

// Names of the engines.
const (
	wasmName   = "highs"
	nativeName = "highs-native"
)

// api are the functions of HiGHS's C interface that a solve needs, however they are called. Errors mean that the library
// can no longer be used; what HiGHS itself refuses is its code -1.
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

// columns is a model as HiGHS takes it: rows compressed.
type columns struct {
	offset                    float64
	cost, low, high           []float64
	rowLow, rowHigh           []float64
	start, index, integrality []int32
	value                     []float64
}

func compress(m *milp.Model) *columns {
	c := &columns{offset: m.Offset, start: []int32{}, index: []int32{}, value: []float64{}}
	for j := range m.Vars {
		v := &m.Vars[j]
		whole := int32(0)
		if v.Integer {
			whole = 1
		}
		c.cost, c.low, c.high, c.integrality = append(c.cost, v.Cost), append(c.low, v.Low), append(c.high, v.High), append(c.integrality, whole)
	}
	for i := range m.Rows {
		r := &m.Rows[i]
		c.rowLow, c.rowHigh, c.start = append(c.rowLow, r.Low), append(c.rowHigh, r.High), append(c.start, int32(len(c.index)))
		for _, t := range r.Terms {
			if t.Coef != 0 {
				c.index, c.value = append(c.index, int32(t.Var)), append(c.value, t.Coef)
			}
		}
	}
	return c
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

// solve has HiGHS solve a valid model within valid options; engine is named in errors. Presolve may leave open
// whether a model is infeasible or unbounded, and a numerical failure may depend on the seed: fresh is asked for
// another instance for a second attempt.
func solve(engine string, fresh func() (api, error), m *milp.Model, o milp.Options) (milp.Result, error) {
	fail := func(format string, args ...any) (milp.Result, error) {
		return milp.Result{}, diag.New(diag.ClassInternal, "engine %q: model %q: "+format, append([]any{engine, m.Name}, args...)...)
	}
	begun := time.Now()
	for attempt := range int32(2) {
		a, err := fresh()
		if err != nil {
			return milp.Result{}, err
		}
		left := o
		if o.Time > 0 {
			left.Time = max(o.Time-time.Since(begun), time.Millisecond)
		}
		status, err := attack(a, m, left, attempt)
		if err != nil {
			return milp.Result{}, err
		}
		if attempt == 0 && (status == statusEither || status == statusSolveError) {
			continue
		}
		if status == statusEither || status == statusUnbounded {
			return milp.Result{}, diag.New(diag.ClassInput, "engine %q: model %q is unbounded: its objective falls without end", engine, m.Name)
		}
		r, known, err := result(a, m, status)
		if err != nil {
			return milp.Result{}, err
		}
		if !known {
			return fail("ended with status %d of HiGHS, which proves nothing", status)
		}
		if r, err = m.Accept(r); err != nil {
			return fail("%w", err)
		}
		return r, nil
	}
	panic("BUG: a second attempt always ends")
}

// attack configures, passes the model and runs.
func attack(a api, m *milp.Model, o milp.Options, attempt int32) (status int32, err error) {
	check := func(what string, code int32, e error) {
		switch {
		case err != nil:
		case e != nil:
			err = e
		case code < 0: // anything after that may be answered by a half-loaded model, or crash
			err = diag.New(diag.ClassInternal, "HiGHS refuses %s of model %q", what, m.Name)
		}
	}
	set := func(option string, v any) {
		if err != nil {
			return
		}
		var code int32
		var e error
		switch v := v.(type) { // by its type: HiGHS takes an int for a double and means something else
		case bool:
			code, e = a.setBool(option, v)
		case int32:
			code, e = a.setInt(option, v)
		case float64:
			code, e = a.setDouble(option, v)
		case string:
			code, e = a.setString(option, v)
		}
		check("option "+option, code, e)
	}
	largest := 1.0
	for j := range m.Vars {
		largest = max(largest, math.Abs(m.Vars[j].Cost))
	}
	set("log_to_console", false)
	set("output_flag", o.Log != nil || o.Progress != nil)
	set("threads", int32(1))
	set("parallel", "off")
	set("random_seed", attempt)
	set("mip_rel_gap", 0.0)
	set("mip_abs_gap", 1e-9*largest)
	if attempt > 0 {
		set("presolve", "off")
	}
	if o.Nodes > 0 {
		set("mip_max_nodes", int32(o.Nodes))
	}
	if o.Time > 0 {
		set("time_limit", o.Time.Seconds())
	}
	if o.Progress != nil {
		set("mip_min_logging_interval", 0.5)
	}
	if err != nil {
		return 0, err
	}
	if o.Log != nil {
		check("listening", 0, a.listen(callbackLog))
	}
	if o.Progress != nil {
		check("listening", 0, a.listen(callbackImproving))
		check("listening", 0, a.listen(callbackMipProgress))
	}
	if err != nil {
		return 0, err
	}
	code, e := a.pass(compress(m))
	if check("the arrays", code, e); err != nil {
		return 0, err
	}
	if o.Start != nil {
		if x, _, bad := m.Verify(o.Start); bad == nil { // HiGHS would try to repair another one
			code, e := a.start(x)
			if check("the start", code, e); err != nil {
				return 0, err
			}
		}
	}
	code, e = a.run()
	if check("to run", code, e); err != nil {
		return 0, err
	}
	return a.status()
}

// result reads the answer; known is false when the status says nothing about the model.
func result(a api, m *milp.Model, status int32) (r milp.Result, known bool, err error) {
	switch status {
	case statusInfeasible:
		return milp.Result{Status: milp.Infeasible}, true, nil
	case statusOptimal:
		r.Status = milp.Optimal
	case statusTime, statusIterations, statusNodes, statusInterrupted, statusMemory:
		r.Status = milp.Limit
	default:
		return r, false, nil
	}
	whole := false
	for j := range m.Vars {
		whole = whole || m.Vars[j].Integer
	}
	r.Bound = math.Inf(-1)
	if whole {
		if r.Bound, err = a.infoDouble("mip_dual_bound"); err != nil {
			return r, true, err
		}
		if r.Nodes, err = a.infoInt64("mip_node_count"); err != nil {
			return r, true, err
		}
		r.Nodes = max(r.Nodes, 0)
	}
	have, err := a.infoInt("primal_solution_status")
	if err != nil {
		return r, true, err
	}
	if have != feasible {
		return r, status != statusOptimal, nil
	}
	if r.Status == milp.Limit {
		r.Status = milp.Feasible
	}
	if r.X, err = a.solution(len(m.Vars), len(m.Rows)); err != nil {
		return r, true, err
	}
	if r.Objective, err = a.infoDouble("objective_function_value"); err != nil {
		return r, true, err
	}
	if !whole && r.Status == milp.Optimal {
		r.Bound = r.Objective // by duality
	}
	return r, true, nil
}
