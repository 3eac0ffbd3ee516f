package highs

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/hetc/hetc/internal/child"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/native"
	"github.com/hetc/hetc/solver/milp"
)

// Native is the engine "highs-native": HiGHS as a shared library, about twice as fast as Wasm. Each solve has a process
// of its own, because a library that crashes or does not come back takes its process along.
type Native struct {
	library string
	program string
}

// workerArg is the first argument of the process that Native starts; the library's path follows. A program that offers
// this engine calls Work when its process was started so.
const workerArg = "__highs"

// OpenNative finds the library; nothing is loaded. The error, of class ClassUnavailable, lists what was tried.
func OpenNative() (*Native, error) {
	file, err := LocateNative()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, diag.New(diag.ClassUnavailable, "engine %q: the program's own file is not known: %w",
			nativeName, err)
	}
	return &Native{file, self}, nil
}

// Name implements milp.Engine.
func (n *Native) Name() string { return nativeName }

// Where returns the library's file.
func (n *Native) Where() string { return n.library }

// request is what the process is asked.
type request struct {
	Model milp.Model
	Nodes int64
	// 0: without a limit
	Time time.Duration
	// values of all variables to begin with; empty for none
	Start []float64
	// what the process is to tell before its answer
	Log, Progress bool
}

// frame is one thing the process says. The last one has Done or Failed.
type frame struct {
	Line             *string // of the log
	Objective, Bound float64
	Nodes            int64
	Progress         bool
	Failed           *failure
	Done             *milp.Result
}

// failure is an error as it crosses to the other process.
type failure struct {
	Class   diag.Class
	Summary string
}

// Solve implements milp.Engine. What the process answers is verified here again.
func (n *Native) Solve(ctx context.Context, model *milp.Model, options milp.Options) (milp.Result, error) {
	if err := model.Validate(); err != nil {
		return milp.Result{}, err
	}
	if err := options.Validate(model); err != nil {
		return milp.Result{}, err
	}
	if ctx.Err() != nil {
		return milp.Result{}, interrupted(nativeName, ctx)
	}
	last, said, err := n.ask(ctx, model, &options)
	switch {
	case ctx.Err() != nil:
		return milp.Result{}, interrupted(nativeName, ctx)
	case last == nil:
		return milp.Result{}, n.failed(model, err, said)
	case last.Failed != nil:
		return milp.Result{}, diag.New(last.Failed.Class, "%s", last.Failed.Summary)
	}
	answer, err := model.Accept(*last.Done)
	if err != nil {
		return milp.Result{}, diag.New(diag.ClassInternal, "engine %q: model %q: %w", nativeName, model.Name, err)
	}
	return answer, nil
}

// ask runs the process on one request. It returns its last frame, nil where there is none, and what it said to stderr.
func (n *Native) ask(ctx context.Context, model *milp.Model, options *milp.Options) (*frame, string, error) {
	cmd := exec.CommandContext(ctx, n.program, workerArg, n.library)
	cmd.Env = child.Env()
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &tail{b: &stderr}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, "", err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	go func() { // the process may end before it has read everything
		_ = gob.NewEncoder(stdin).Encode(request{
			*model, options.Nodes, options.Time, options.Start, options.Log != nil, options.Progress != nil,
		})
		stdin.Close()
	}()
	last, err := follow(stdout, options)
	if last == nil && !errors.Is(err, io.EOF) { // it goes on writing, in no form that is known
		_ = cmd.Process.Kill()
	}
	err = cmd.Wait()
	return last, strings.TrimSpace(stderr.String()), err
}

// follow passes on what the process says, and returns its last frame.
func follow(stdout io.Reader, options *milp.Options) (*frame, error) {
	decoder := gob.NewDecoder(stdout)
	for {
		var said frame
		if err := decoder.Decode(&said); err != nil {
			return nil, err
		}
		switch {
		case said.Done != nil || said.Failed != nil:
			return &said, nil
		case said.Line != nil && options.Log != nil:
			options.Log(*said.Line)
		case said.Progress && options.Progress != nil:
			options.Progress(said.Objective, said.Bound, said.Nodes)
		}
	}
}

// failed returns the error for a process that ended without an answer.
func (n *Native) failed(model *milp.Model, err error, said string) error {
	how := "ended without an answer"
	if err != nil {
		how = err.Error()
	}
	if said != "" {
		how += ": " + strings.Join(strings.Fields(said), " ")
	}
	return diag.New(diag.ClassInternal, "engine %q: model %q: the process with %q crashed: %s",
		nativeName, model.Name, n.library, how).
		WithHint("--engine highs solves in this process, where a crash is an error")
}

// tail keeps the beginning of what a process says.
type tail struct{ b *bytes.Buffer }

// Write implements io.Writer; what is beyond the beginning is read and dropped, so that the process does not wait.
func (t *tail) Write(data []byte) (int, error) {
	const most = 2000 // bytes
	t.b.Write(data[:min(len(data), most-min(most, t.b.Len()))])
	return len(data), nil
}

// Worker reports whether a process with these arguments, after its name, is one that Native started, and returns the
// library's path.
func Worker(args []string) (library string, ok bool) {
	if len(args) == 2 && args[0] == workerArg {
		return args[1], true
	}
	return "", false
}

// Work does all that this process is for: it reads one request and writes one answer.
func Work(library string, from io.Reader, to io.Writer) error {
	runtime.LockOSThread() // HiGHS keeps state for each thread
	var asked request
	if err := gob.NewDecoder(from).Decode(&asked); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	encoder := gob.NewEncoder(to)
	options := milp.Options{Nodes: asked.Nodes, Time: asked.Time, Start: asked.Start}
	// The library trusts what it is given.
	if err := errors.Join(asked.Model.Validate(), options.Validate(&asked.Model)); err != nil {
		return encoder.Encode(frame{Failed: &failure{diag.ClassOf(err), err.Error()}})
	}
	if asked.Log {
		options.Log = func(line string) { _ = encoder.Encode(frame{Line: &line}) }
	}
	if asked.Progress {
		options.Progress = func(objective, bound float64, nodes int64) {
			_ = encoder.Encode(frame{Progress: true, Objective: objective, Bound: bound, Nodes: nodes})
		}
	}
	var lib *loaded
	answer, err := solve(nativeName, func() (a api, err error) {
		if lib == nil {
			if lib, err = load(library, asked.Model.Name, &options); err != nil {
				return nil, err
			}
		}
		return lib.renew()
	}, &asked.Model, options)
	if err != nil {
		return encoder.Encode(frame{Failed: &failure{diag.ClassOf(err), err.Error()}})
	}
	return encoder.Encode(frame{Done: &answer})
}

// loaded is the library with a HiGHS of it; it implements api. Its functions are those of HiGHS's C interface of the
// same name less "Highs_", with 32-bit integers; h is the handle of a HiGHS, which create makes. None of them returns
// an error: a library that fails takes the process along.
type loaded struct {
	model   string
	options *milp.Options
	partial string // of a line of the log
	// whether HiGHS has been told to call back
	listening bool
	h         uintptr

	// found by name when the library is loaded
	create, version func() uintptr
	destroy         func(h uintptr)
	intSize         func(h uintptr) int32
	// rows are given by columns or by rows, as format says; index and value are those of the coefficients
	passMip func(
		h uintptr, cols, rows, nz, format, sense int32, offset float64, cost, low, high, rowLow, rowHigh []float64,
		start, index []int32, value []float64, integrality []int32,
	) int32
	boolOption      func(h uintptr, name string, value int32) int32
	intOption       func(h uintptr, name string, value int32) int32
	doubleOption    func(h uintptr, name string, value float64) int32
	stringOption    func(h uintptr, name, value string) int32
	runIt, statusOf func(h uintptr) int32
	getInt          func(h uintptr, name string, value *int32) int32
	getInt64        func(h uintptr, name string, value *int64) int32
	getDouble       func(h uintptr, name string, value *float64) int32
	// values of columns and of rows, and the dual values of both
	getSolution   func(h uintptr, values, dual, rows, rowDual []float64) int32
	setSolution   func(h uintptr, values, rows, dual, rowDual []float64) int32
	setCallback   func(h, callback, user uintptr) int32
	startCallback func(h uintptr, kind int32) int32
	// item is the address of a field of what a callback is given
	item func(out uintptr, name string) uintptr
}

// load opens the library and finds its functions. It refuses every release but Version.
func load(path, model string, options *milp.Options) (*loaded, error) {
	fail := func(err error) (*loaded, error) {
		return nil, diag.New(diag.ClassUnavailable, "engine %q: %w", nativeName, err)
	}
	lib, err := native.Open(path)
	if err != nil {
		return fail(err)
	}
	l := &loaded{model: model, options: options}
	for name, fn := range map[string]any{
		"create": &l.create, "version": &l.version, "destroy": &l.destroy, "getSizeofHighsInt": &l.intSize,
		"passMip": &l.passMip, "setBoolOptionValue": &l.boolOption, "setIntOptionValue": &l.intOption,
		"setDoubleOptionValue": &l.doubleOption, "setStringOptionValue": &l.stringOption, "run": &l.runIt,
		"getModelStatus": &l.statusOf, "getIntInfoValue": &l.getInt, "getInt64InfoValue": &l.getInt64,
		"getDoubleInfoValue": &l.getDouble, "getSolution": &l.getSolution, "setSolution": &l.setSolution,
		"setCallback": &l.setCallback, "startCallback": &l.startCallback, "getCallbackDataOutItem": &l.item,
	} {
		if err := lib.Func(fn, "Highs_"+name); err != nil {
			return fail(err)
		}
	}
	if version := native.String(l.version(), 100); version != Version { // another release decides otherwise
		return fail(fmt.Errorf("library %q is HiGHS %q, want %s", path, version, Version))
	}
	return l, nil
}

// renew replaces what an earlier attempt left.
func (l *loaded) renew() (api, error) {
	if l.h != 0 {
		l.destroy(l.h)
	}
	l.listening = false
	if l.h = l.create(); l.h == 0 || l.intSize(l.h) != 4 {
		return nil, diag.New(diag.ClassUnavailable, "engine %q: the library's integers do not have 4 bytes", nativeName)
	}
	return l, nil
}

// setBool sets an option, as the setters below do; api says what they return.
func (l *loaded) setBool(option string, value bool) (int32, error) {
	number := int32(0)
	if value {
		number = 1
	}
	return l.boolOption(l.h, option, number), nil
}

// The setters return the library's status code, and never an error: calls into the process's own memory cannot fail.
func (l *loaded) setInt(option string, value int32) (int32, error) {
	return l.intOption(l.h, option, value), nil
}

func (l *loaded) setDouble(option string, value float64) (int32, error) {
	return l.doubleOption(l.h, option, value), nil
}

func (l *loaded) setString(option, value string) (int32, error) {
	return l.stringOption(l.h, option, value), nil
}

// pass passes the model as rows, to be minimised.
func (l *loaded) pass(model *columns) (int32, error) {
	return l.passMip(l.h, int32(len(model.cost)), int32(len(model.rowLow)), int32(len(model.index)),
		rowWise, minimise, model.offset, model.cost, model.low, model.high, model.rowLow, model.rowHigh,
		model.start, model.index, model.value, model.integrality), nil
}

// start passes a solution to begin with; rows and duals are not known.
func (l *loaded) start(values []float64) (int32, error) {
	return l.setSolution(l.h, values, nil, nil, nil), nil
}

// listen asks for one kind of event. All kinds have one callback, which may be set once.
func (l *loaded) listen(kind int32) error {
	if !l.listening {
		l.listening = true
		l.setCallback(l.h, native.Callback(func(kind, message, out, _, _ uintptr) uintptr {
			l.called(int32(kind), message, out)
			return 0
		}), 0)
	}
	l.startCallback(l.h, kind)
	return nil
}

// called is what HiGHS calls: with a piece of the log as message, or with a structure of numbers as out. What out holds
// is asked by name, as its layout differs between releases.
func (l *loaded) called(kind int32, message, out uintptr) {
	if kind == callbackLog {
		l.partial = passLines(l.partial+native.String(message, 4096), l.options.Log)
		return
	}
	word := func(name string) uint64 {
		if address := l.item(out, name); address != 0 {
			return uint64(native.Word(address, 0)) // of 8 bytes, as libraries are opened on 64-bit systems only
		}
		return 0
	}
	l.options.Progress(math.Float64frombits(word("mip_primal_bound")), math.Float64frombits(word("mip_dual_bound")),
		int64(word("mip_node_count")))
}

// run solves, and then passes on the last line of the log, which need not have an end.
func (l *loaded) run() (int32, error) {
	code := l.runIt(l.h)
	if l.partial != "" {
		l.options.Log(l.partial)
		l.partial = ""
	}
	return code, nil
}

// status returns the number of the model's status, as table.go names it.
func (l *loaded) status() (int32, error) { return l.statusOf(l.h), nil }

// got returns the error for a getter that refuses.
func (l *loaded) got(name string, code int32) error {
	if code < 0 {
		return diag.New(diag.ClassInternal, "engine %q: model %q: HiGHS has no %s", nativeName, l.model, name)
	}
	return nil
}

// infoInt, infoInt64 and infoDouble read what HiGHS knows of its answer, by name.
func (l *loaded) infoInt(name string) (int32, error) {
	value := new(int32)
	err := l.got(name, l.getInt(l.h, name, value))
	return *value, err
}

// infoInt64 returns a counter of the solve, such as nodes.
func (l *loaded) infoInt64(name string) (int64, error) {
	value := new(int64)
	err := l.got(name, l.getInt64(l.h, name, value))
	return *value, err
}

// infoDouble returns a number of the solve, such as its bound.
func (l *loaded) infoDouble(name string) (float64, error) {
	value := new(float64)
	err := l.got(name, l.getDouble(l.h, name, value))
	return *value, err
}

// solution reads the values of so many variables.
func (l *loaded) solution(vars, _ int) ([]float64, error) {
	values := make([]float64, vars)
	return values, l.got("solution", l.getSolution(l.h, values, nil, nil, nil))
}
