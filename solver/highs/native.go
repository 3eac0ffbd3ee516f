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

// workerArg is the first argument of the process that Native starts; the library's path follows. Whoever offers
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
		return nil, diag.New(diag.ClassUnavailable, "engine %q: the program's own file is not known: %w", nativeName, err)
	}
	return &Native{file, self}, nil
}

// Name implements milp.Engine.
func (n *Native) Name() string { return nativeName }

// Where is the library's file.
func (n *Native) Where() string { return n.library }

// request is what the process is asked.
type request struct {
	Model         milp.Model
	Nodes         int64
	Time          time.Duration
	Start         []float64
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

type failure struct {
	Class   diag.Class
	Summary string
}

// Solve implements milp.Engine. What the process answers is verified here again.
func (n *Native) Solve(ctx context.Context, m *milp.Model, o milp.Options) (milp.Result, error) {
	if err := m.Validate(); err != nil {
		return milp.Result{}, err
	}
	if err := o.Validate(m); err != nil {
		return milp.Result{}, err
	}
	if ctx.Err() != nil {
		return milp.Result{}, interrupted(nativeName, ctx)
	}
	c := exec.CommandContext(ctx, n.program, workerArg, n.library)
	c.Env = child.Env()
	c.WaitDelay = time.Second
	var stderr bytes.Buffer
	c.Stderr = &tail{b: &stderr}
	stdin, err := c.StdinPipe()
	if err != nil {
		return milp.Result{}, n.failed(m, err, "")
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		return milp.Result{}, n.failed(m, err, "")
	}
	if err := c.Start(); err != nil {
		return milp.Result{}, n.failed(m, err, "")
	}
	go func() { // the process may end before it has read everything
		_ = gob.NewEncoder(stdin).Encode(request{*m, o.Nodes, o.Time, o.Start, o.Log != nil, o.Progress != nil})
		stdin.Close()
	}()
	var last *frame
	var broken error
	for d := gob.NewDecoder(stdout); last == nil && broken == nil; {
		var f frame
		if broken = d.Decode(&f); broken != nil {
			break
		}
		switch {
		case f.Done != nil || f.Failed != nil:
			last = &f
		case f.Line != nil && o.Log != nil:
			o.Log(*f.Line)
		case f.Progress && o.Progress != nil:
			o.Progress(f.Objective, f.Bound, f.Nodes)
		}
	}
	if last == nil && broken != io.EOF { // it goes on talking, and nobody understands it
		_ = c.Process.Kill()
	}
	err = c.Wait()
	switch {
	case ctx.Err() != nil:
		return milp.Result{}, interrupted(nativeName, ctx)
	case last == nil:
		return milp.Result{}, n.failed(m, errors.Join(err), strings.TrimSpace(stderr.String()))
	case last.Failed != nil:
		return milp.Result{}, diag.New(last.Failed.Class, "%s", last.Failed.Summary)
	}
	r, err := m.Accept(*last.Done)
	if err != nil {
		return milp.Result{}, diag.New(diag.ClassInternal, "engine %q: model %q: %w", nativeName, m.Name, err)
	}
	return r, nil
}

// failed is the error for a process that ended without an answer.
func (n *Native) failed(m *milp.Model, err error, said string) error {
	how := "ended without an answer"
	if err != nil {
		how = err.Error()
	}
	if said != "" {
		how += ": " + strings.Join(strings.Fields(said), " ")
	}
	return diag.New(diag.ClassInternal, "engine %q: model %q: the process with %q crashed: %s", nativeName, m.Name, n.library, how).
		WithHint("--engine highs solves in this process, where a crash is an error")
}

// tail keeps the beginning of what a process says.
type tail struct{ b *bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	const most = 2000 // bytes
	t.b.Write(p[:min(len(p), most-min(most, t.b.Len()))])
	return len(p), nil
}

// Worker reports whether a process with these arguments, after its name, is one that Native started, and returns the
// library's path.
func Worker(args []string) (library string, ok bool) {
	if len(args) == 2 && args[0] == workerArg {
		return args[1], true
	}
	return "", false
}

// Work is the whole of that process: one request is read, one answer written.
func Work(library string, r io.Reader, w io.Writer) error {
	runtime.LockOSThread() // HiGHS keeps state for each thread
	var q request
	if err := gob.NewDecoder(r).Decode(&q); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	e := gob.NewEncoder(w)
	o := milp.Options{Nodes: q.Nodes, Time: q.Time, Start: q.Start}
	if err := errors.Join(q.Model.Validate(), o.Validate(&q.Model)); err != nil { // the library trusts what it is given
		return e.Encode(frame{Failed: &failure{diag.ClassOf(err), err.Error()}})
	}
	if q.Log {
		o.Log = func(line string) { _ = e.Encode(frame{Line: &line}) }
	}
	if q.Progress {
		o.Progress = func(objective, bound float64, nodes int64) {
			_ = e.Encode(frame{Progress: true, Objective: objective, Bound: bound, Nodes: nodes})
		}
	}
	var l *loaded
	answer, err := solve(nativeName, func() (a api, err error) {
		if l == nil {
			if l, err = load(library, q.Model.Name, &o); err != nil {
				return nil, err
			}
		}
		return l.renew()
	}, &q.Model, o)
	if err != nil {
		return e.Encode(frame{Failed: &failure{diag.ClassOf(err), err.Error()}})
	}
	return e.Encode(frame{Done: &answer})
}

// loaded is the library with a HiGHS of it; it implements api.
type loaded struct {
	model     string
	o         *milp.Options
	partial   string // of a line of the log
	listening bool
	h         uintptr

	create, version func() uintptr
	destroy         func(h uintptr)
	intSize         func(h uintptr) int32
	passMip         func(h uintptr, cols, rows, nz, format, sense int32, offset float64, cost, low, high, rowLow, rowHigh []float64, start, index []int32, value []float64, integrality []int32) int32
	boolOption      func(h uintptr, name string, v int32) int32
	intOption       func(h uintptr, name string, v int32) int32
	doubleOption    func(h uintptr, name string, v float64) int32
	stringOption    func(h uintptr, name, v string) int32
	runIt, statusOf func(h uintptr) int32
	getInt          func(h uintptr, name string, v *int32) int32
	getInt64        func(h uintptr, name string, v *int64) int32
	getDouble       func(h uintptr, name string, v *float64) int32
	getSolution     func(h uintptr, x, dual, rows, rowDual []float64) int32
	setSolution     func(h uintptr, x, rows, dual, rowDual []float64) int32
	setCallback     func(h, callback, user uintptr) int32
	startCallback   func(h uintptr, kind int32) int32
	item            func(out uintptr, name string) uintptr
}

func load(path, model string, o *milp.Options) (*loaded, error) {
	fail := func(err error) (*loaded, error) {
		return nil, diag.New(diag.ClassUnavailable, "engine %q: %w", nativeName, err)
	}
	lib, err := native.Open(path)
	if err != nil {
		return fail(err)
	}
	l := &loaded{model: model, o: o}
	for name, fn := range map[string]any{
		"create": &l.create, "version": &l.version, "destroy": &l.destroy, "getSizeofHighsInt": &l.intSize, "passMip": &l.passMip,
		"setBoolOptionValue": &l.boolOption, "setIntOptionValue": &l.intOption, "setDoubleOptionValue": &l.doubleOption, "setStringOptionValue": &l.stringOption,
		"run": &l.runIt, "getModelStatus": &l.statusOf, "getIntInfoValue": &l.getInt, "getInt64InfoValue": &l.getInt64, "getDoubleInfoValue": &l.getDouble,
		"getSolution": &l.getSolution, "setSolution": &l.setSolution, "setCallback": &l.setCallback, "startCallback": &l.startCallback, "getCallbackDataOutItem": &l.item,
	} {
		if err := lib.Func(fn, "Highs_"+name); err != nil {
			return fail(err)
		}
	}
	if v := native.String(l.version(), 100); v != Version { // another release decides otherwise
		return fail(fmt.Errorf("library %q is HiGHS %q, want %s", path, v, Version))
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

func (l *loaded) setBool(option string, v bool) (int32, error) {
	x := int32(0)
	if v {
		x = 1
	}
	return l.boolOption(l.h, option, x), nil
}

func (l *loaded) setInt(option string, v int32) (int32, error) {
	return l.intOption(l.h, option, v), nil
}

func (l *loaded) setDouble(option string, v float64) (int32, error) {
	return l.doubleOption(l.h, option, v), nil
}

func (l *loaded) setString(option, v string) (int32, error) {
	return l.stringOption(l.h, option, v), nil
}

func (l *loaded) pass(c *columns) (int32, error) {
	return l.passMip(l.h, int32(len(c.cost)), int32(len(c.rowLow)), int32(len(c.index)), rowWise, minimise, c.offset,
		c.cost, c.low, c.high, c.rowLow, c.rowHigh, c.start, c.index, c.value, c.integrality), nil
}

func (l *loaded) start(x []float64) (int32, error) { return l.setSolution(l.h, x, nil, nil, nil), nil }

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

// called is what HiGHS calls.
func (l *loaded) called(kind int32, message, out uintptr) {
	if kind == callbackLog {
		l.partial += native.String(message, 4096)
		for {
			line, rest, ok := strings.Cut(l.partial, "\n")
			if !ok {
				return
			}
			l.o.Log(line)
			l.partial = rest
		}
	}
	word := func(name string) uint64 {
		if p := l.item(out, name); p != 0 {
			return uint64(native.Word(p, 0)) // of 8 bytes, as libraries are opened on 64-bit systems only
		}
		return 0
	}
	l.o.Progress(math.Float64frombits(word("mip_primal_bound")), math.Float64frombits(word("mip_dual_bound")), int64(word("mip_node_count")))
}

func (l *loaded) run() (int32, error) {
	code := l.runIt(l.h)
	if l.partial != "" {
		l.o.Log(l.partial)
		l.partial = ""
	}
	return code, nil
}

func (l *loaded) status() (int32, error) { return l.statusOf(l.h), nil }

// got is the error for a getter that refuses.
func (l *loaded) got(name string, code int32) error {
	if code < 0 {
		return diag.New(diag.ClassInternal, "engine %q: model %q: HiGHS has no %s", nativeName, l.model, name)
	}
	return nil
}

func (l *loaded) infoInt(name string) (int32, error) {
	v := new(int32)
	err := l.got(name, l.getInt(l.h, name, v))
	return *v, err
}

func (l *loaded) infoInt64(name string) (int64, error) {
	v := new(int64)
	err := l.got(name, l.getInt64(l.h, name, v))
	return *v, err
}

func (l *loaded) infoDouble(name string) (float64, error) {
	v := new(float64)
	err := l.got(name, l.getDouble(l.h, name, v))
	return *v, err
}

func (l *loaded) solution(n, _ int) ([]float64, error) {
	x := make([]float64, n)
	return x, l.got("solution", l.getSolution(l.h, x, nil, nil, nil))
}
