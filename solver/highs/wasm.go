package highs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tetratelabs/wazero"
	wasmapi "github.com/tetratelabs/wazero/api"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/milp"
)

// MaxMemory is the most memory that a solve in this process takes, in bytes.
const MaxMemory = 2 << 30

// leastMemory lets the solver itself begin.
const leastMemory = 24 << 20

const pageBytes = 64 << 10

// Wasm is the engine "highs". It may be used by several goroutines: each solve has an instance of its own.
type Wasm struct {
	where    string
	maxPages uint64 // of each instance

	mu      sync.Mutex
	started chan struct{} // closed once runtime or err is there
	runtime wazero.Runtime
	module  wazero.CompiledModule
	err     error
	number  atomic.Uint64 // of instances
}

// Open finds the solver; nothing is read before the first solve. The error, of class ClassUnavailable, lists what was
// tried.
func Open() (*Wasm, error) {
	where, err := Locate()
	if err != nil {
		return nil, err
	}
	return &Wasm{where: where, maxPages: MaxMemory / pageBytes}, nil
}

// Limit sets the most memory that a solve takes, in bytes, up to MaxMemory.
func (w *Wasm) Limit(bytes int64) {
	w.maxPages = uint64(min(max(bytes, leastMemory), MaxMemory)) / pageBytes
}

// Name implements milp.Engine.
func (w *Wasm) Name() string { return wasmName }

// Where is the file of the solver, or Embedded.
func (w *Wasm) Where() string { return w.where }

// Start compiles the solver, or reads back what an earlier process compiled. Solve does it when it was not called. It
// returns early when ctx ends; compiling then goes on for whoever comes next. Errors are of class ClassUnavailable.
func (w *Wasm) Start(ctx context.Context) error {
	w.mu.Lock()
	if w.started == nil {
		w.started = make(chan struct{})
		go func(done chan struct{}) {
			w.runtime, w.module, w.err = compile(w.where)
			close(done)
		}(w.started)
	}
	done := w.started
	w.mu.Unlock()
	select {
	case <-done:
		return w.err
	case <-ctx.Done():
		return interrupted(wasmName, ctx)
	}
}

func interrupted(engine string, ctx context.Context) error {
	return diag.New(diag.ClassInterrupted, "engine %q: interrupted: %w", engine, context.Cause(ctx))
}

func compile(where string) (wazero.Runtime, wazero.CompiledModule, error) {
	b, err := read(where)
	if err != nil {
		return nil, nil, err
	}
	dir := cacheDir()
	for {
		r, m, err := compileIn(dir, b)
		if err == nil {
			if dir != "" {
				note(dir)
			}
			return r, m, nil
		}
		if dir == "" {
			return nil, nil, diag.New(diag.ClassUnavailable, "engine %q: %q cannot be compiled: %w", wasmName, where, err)
		}
		dir = "" // whatever is wrong with the cache, it is not needed
	}
}

func compileIn(dir string, b []byte) (r wazero.Runtime, m wazero.CompiledModule, err error) {
	ctx := context.Background()
	config := wazero.NewRuntimeConfig().WithMemoryLimitPages(MaxMemory / pageBytes)
	if dir != "" {
		cache, err := wazero.NewCompilationCacheWithDir(dir)
		if err != nil {
			return nil, nil, err
		}
		config = config.WithCompilationCache(cache)
	}
	r = wazero.NewRuntimeWithConfig(ctx, config)
	defer func() {
		if err != nil {
			r.Close(ctx)
		}
	}()
	if m, err = r.CompileModule(ctx, b); err != nil {
		return nil, nil, err
	}
	if err = host(ctx, r, m); err != nil {
		return nil, nil, err
	}
	return r, m, nil
}

// Close frees what Start made. No solve may be running.
func (w *Wasm) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started == nil {
		return nil
	}
	<-w.started
	if w.runtime == nil {
		return nil
	}
	return w.runtime.Close(context.Background())
}

// Solve implements milp.Engine.
func (w *Wasm) Solve(ctx context.Context, m *milp.Model, o milp.Options) (milp.Result, error) {
	if err := m.Validate(); err != nil {
		return milp.Result{}, err
	}
	if err := o.Validate(m); err != nil {
		return milp.Result{}, err
	}
	if err := w.Start(ctx); err != nil {
		return milp.Result{}, err
	}
	var open *instance
	defer func() {
		if open != nil {
			open.close()
		}
	}()
	r, err := solve(wasmName, func() (api, error) {
		if open != nil {
			open.close()
		}
		var err error
		open, err = w.instance(ctx, m.Name, &o)
		return open, err
	}, m, o)
	if err != nil && ctx.Err() != nil {
		return milp.Result{}, interrupted(wasmName, ctx)
	}
	return r, err
}

// instance is one HiGHS with memory of its own; it implements api. After an error it can only be closed.
type instance struct {
	ctx    context.Context // that carries it to its host functions
	user   context.Context // whose end stops it
	module wasmapi.Module
	glue   wasmapi.Module
	memory wasmapi.Memory
	funcs  map[string]wasmapi.Function
	model  string
	h      uint64 // HiGHS's handle
	pages  uint64 // of memory, at most

	log      func(string)
	progress func(objective, bound float64, nodes int64)
	partial  string // of a line of the log

	cancelled  bool
	outOfPages bool // memory was refused
}

type instanceKey struct{}

func of(ctx context.Context) *instance { return ctx.Value(instanceKey{}).(*instance) }

func (w *Wasm) instance(ctx context.Context, model string, o *milp.Options) (in *instance, err error) {
	in = &instance{user: ctx, funcs: map[string]wasmapi.Function{}, model: model, pages: w.maxPages, log: o.Log, progress: o.Progress}
	in.ctx = context.WithValue(context.Background(), instanceKey{}, in) // not of ctx: wazero would close the module
	defer func() {
		if err != nil {
			in.close()
			in = nil
		}
	}()
	name := fmt.Sprintf("h%d", w.number.Add(1))
	if in.module, err = w.runtime.InstantiateModule(in.ctx, w.module, wazero.NewModuleConfig().WithName(name).WithStartFunctions()); err != nil {
		return nil, in.crashed("instantiate", err)
	}
	in.memory = in.module.ExportedMemory(exportedMemory)
	if in.memory == nil {
		return nil, diag.New(diag.ClassInternal, "engine %q: the module exports no memory %q", wasmName, exportedMemory)
	}
	for what, short := range exported {
		if in.funcs[what] = in.module.ExportedFunction(short); in.funcs[what] == nil {
			return nil, diag.New(diag.ClassInternal, "engine %q: the module exports no %s (%s)", wasmName, what, short)
		}
	}
	if _, err := in.call("constructors"); err != nil {
		return nil, err
	}
	if v, err := in.version(); err != nil || v != Version {
		return nil, errors.Join(err, diag.New(diag.ClassInternal, "engine %q: the module says it is HiGHS %q, want %s", wasmName, v, Version))
	}
	if size, err := in.call("Highs_getSizeofHighsInt", 0); err != nil || size != 4 {
		return nil, errors.Join(err, diag.New(diag.ClassInternal, "engine %q: HiGHS's integers have %d bytes, want 4", wasmName, size))
	}
	if in.h, err = in.call("Highs_create"); err != nil {
		return nil, err
	}
	if in.log != nil || in.progress != nil {
		glue, err := w.runtime.CompileModule(in.ctx, glueFor(name))
		if err == nil {
			in.glue, err = w.runtime.InstantiateModule(in.ctx, glue, wazero.NewModuleConfig().WithName(""))
		}
		if err != nil {
			return nil, in.crashed("callbacks", err)
		}
		at, err := in.glue.ExportedFunction("i").Call(in.ctx)
		if err != nil {
			return nil, in.crashed("callbacks", err)
		}
		if _, err := in.call("Highs_setCallback", in.h, at[0], 0); err != nil {
			return nil, err
		}
	}
	return in, nil
}

// glueFor is a module that puts the host's function callback into the function table of the named module and returns
// its index: the only kind of function that HiGHS takes for a callback.
//
//	(type $callback (func (param i32 i32 i32 i32 i32))) (type $index (func (result i32)))
//	(import NAME TABLE (table 0 funcref)) (import "host" "callback" (func (type $callback))) (elem declare func 0)
//	(func (export "i") (result i32) ref.func 0  i32.const 1  table.grow 0)
func glueFor(name string) []byte {
	text := func(s string) []byte { return append([]byte{byte(len(s))}, s...) }
	section := func(id byte, parts ...[]byte) []byte {
		var body []byte
		for _, p := range parts {
			body = append(body, p...)
		}
		return append([]byte{id, byte(len(body))}, body...) // below 128 bytes: one byte of LEB128
	}
	out := []byte{0, 'a', 's', 'm', 1, 0, 0, 0}
	out = append(out, section(1, []byte{2, 0x60, 5, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0, 0x60, 0, 1, 0x7f})...)
	out = append(out, section(2, []byte{2}, text(name), text(exportedTable), []byte{1, 0x70, 0, 0}, text(callbackModule), text("callback"), []byte{0, 0})...)
	out = append(out, section(3, []byte{1, 1})...)
	out = append(out, section(7, []byte{1}, text("i"), []byte{0, 1})...)
	out = append(out, section(9, []byte{1, 3, 0, 1, 0})...)
	return append(out, section(10, []byte{1, 9, 0, 0xd2, 0, 0x41, 1, 0xfc, 0x0f, 0, 0x0b})...)
}

const callbackModule = "host"

func (in *instance) close() {
	if in.glue != nil {
		in.glue.Close(in.ctx)
	}
	if in.module != nil {
		in.module.Close(in.ctx)
	}
	in.glue, in.module = nil, nil
}

// crashed is the error for a call that did not return.
func (in *instance) crashed(what string, err error) error {
	if in.cancelled {
		return interrupted(wasmName, in.user)
	}
	text, _, _ := strings.Cut(err.Error(), "\n") // a stack of minified names follows
	if in.outOfPages {
		return diag.New(diag.ClassUnavailable, "engine %q: model %q: %s needs more than %d MiB of memory", wasmName, in.model, what, in.pages*pageBytes>>20).
			WithHint("permit more with --working-memory, at most %d MiB; --engine highs-native has no such limit", MaxMemory>>20)
	}
	return diag.New(diag.ClassInternal, "engine %q: model %q: %s crashed: %s", wasmName, in.model, what, text)
}

// call calls a function of the module with at most one result.
func (in *instance) call(what string, args ...uint64) (uint64, error) {
	r, err := in.funcs[what].Call(in.ctx, args...)
	if err != nil {
		return 0, in.crashed(what, err)
	}
	if len(r) == 0 {
		return 0, nil
	}
	return r[0], nil
}

// code is call for functions that return HiGHS's codes.
func (in *instance) code(what string, args ...uint64) (int32, error) {
	r, err := in.call(what, args...)
	return int32(uint32(r)), err
}

// with copies bytes into the module, calls fn with their addresses and frees them. Addresses of nil are 0.
func (in *instance) with(fn func(at []uint64) error, parts ...[]byte) (err error) {
	at := make([]uint64, len(parts))
	defer func() {
		for _, p := range at {
			if p != 0 && err == nil {
				_, err = in.call("free", p)
			}
		}
	}()
	for i, b := range parts {
		if b == nil {
			continue
		}
		if at[i], err = in.call("malloc", uint64(max(1, len(b)))); err != nil {
			return err
		}
		if at[i] == 0 || !in.memory.Write(uint32(at[i]), b) {
			in.outOfPages = true
			return in.crashed("copying", errors.New("no memory"))
		}
	}
	return fn(at)
}

func text(s string) []byte { return append([]byte(s), 0) }

func doubles(x []float64) []byte {
	b := make([]byte, 0, 8*len(x))
	for _, v := range x {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
	}
	return b
}

func ints(x []int32) []byte {
	b := make([]byte, 0, 4*len(x))
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return b
}

func (in *instance) version() (string, error) {
	at, err := in.call("Highs_version")
	if err != nil {
		return "", err
	}
	return in.cstring(uint32(at)), nil
}

// cstring reads a text of the module's.
func (in *instance) cstring(at uint32) string {
	const longest = 4096
	b, ok := in.memory.Read(at, min(longest, in.memory.Size()-min(at, in.memory.Size())))
	if !ok {
		return ""
	}
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

func (in *instance) setBool(option string, v bool) (code int32, err error) {
	x := uint64(0)
	if v {
		x = 1
	}
	err = in.with(func(at []uint64) (err error) {
		code, err = in.code("Highs_setBoolOptionValue", in.h, at[0], x)
		return err
	}, text(option))
	return code, err
}

func (in *instance) setInt(option string, v int32) (code int32, err error) {
	err = in.with(func(at []uint64) (err error) {
		code, err = in.code("Highs_setIntOptionValue", in.h, at[0], wasmapi.EncodeI32(v))
		return err
	}, text(option))
	return code, err
}

func (in *instance) setDouble(option string, v float64) (code int32, err error) {
	err = in.with(func(at []uint64) (err error) {
		code, err = in.code("Highs_setDoubleOptionValue", in.h, at[0], wasmapi.EncodeF64(v))
		return err
	}, text(option))
	return code, err
}

func (in *instance) setString(option, v string) (code int32, err error) {
	err = in.with(func(at []uint64) (err error) {
		code, err = in.code("Highs_setStringOptionValue", in.h, at[0], at[1])
		return err
	}, text(option), text(v))
	return code, err
}

func (in *instance) pass(c *columns) (code int32, err error) {
	err = in.with(func(at []uint64) (err error) {
		args := []uint64{in.h, uint64(len(c.cost)), uint64(len(c.rowLow)), uint64(len(c.index)), rowWise, minimise, wasmapi.EncodeF64(c.offset)}
		code, err = in.code("Highs_passMip", append(args, at...)...)
		return err
	}, doubles(c.cost), doubles(c.low), doubles(c.high), doubles(c.rowLow), doubles(c.rowHigh), ints(c.start), ints(c.index), doubles(c.value), ints(c.integrality))
	return code, err
}

// Arguments of Highs_passMip.
const (
	rowWise  = 2
	minimise = 1
)

func (in *instance) start(x []float64) (code int32, err error) {
	err = in.with(func(at []uint64) (err error) {
		code, err = in.code("Highs_setSolution", in.h, at[0], 0, 0, 0)
		return err
	}, doubles(x))
	return code, err
}

func (in *instance) listen(callback int32) error {
	_, err := in.call("Highs_startCallback", in.h, wasmapi.EncodeI32(callback))
	return err
}

func (in *instance) run() (int32, error) {
	code, err := in.code("Highs_run", in.h)
	in.flush()
	return code, err
}

func (in *instance) status() (int32, error) { return in.code("Highs_getModelStatus", in.h) }

// info reads a value of the given size into zeroed memory: a getter that refuses leaves what was there.
func (in *instance) info(getter, name string, size int) (b []byte, err error) {
	err = in.with(func(at []uint64) error {
		code, err := in.code(getter, in.h, at[0], at[1])
		if err == nil && code < 0 {
			err = diag.New(diag.ClassInternal, "engine %q: model %q: HiGHS has no %s", wasmName, in.model, name)
		}
		if err != nil {
			return err
		}
		view, ok := in.memory.Read(uint32(at[1]), uint32(size))
		if !ok {
			return in.crashed(getter, errors.New("a value outside the memory"))
		}
		b = append(b, view...)
		return nil
	}, text(name), make([]byte, size))
	return b, err
}

func (in *instance) infoInt(name string) (int32, error) {
	b, err := in.info("Highs_getIntInfoValue", name, 4)
	if err != nil {
		return 0, err
	}
	return int32(binary.LittleEndian.Uint32(b)), nil
}

func (in *instance) infoInt64(name string) (int64, error) {
	b, err := in.info("Highs_getInt64InfoValue", name, 8)
	if err != nil {
		return 0, err
	}
	return int64(binary.LittleEndian.Uint64(b)), nil
}

func (in *instance) infoDouble(name string) (float64, error) {
	b, err := in.info("Highs_getDoubleInfoValue", name, 8)
	if err != nil {
		return 0, err
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(b)), nil
}

func (in *instance) solution(n, _ int) (x []float64, err error) {
	err = in.with(func(at []uint64) error {
		code, err := in.code("Highs_getSolution", in.h, at[0], 0, 0, 0)
		if err == nil && code < 0 {
			err = diag.New(diag.ClassInternal, "engine %q: model %q: HiGHS has no solution", wasmName, in.model)
		}
		if err != nil {
			return err
		}
		view, ok := in.memory.Read(uint32(at[0]), uint32(8*n))
		if !ok {
			return in.crashed("Highs_getSolution", errors.New("a solution outside the memory"))
		}
		for j := range n {
			x = append(x, math.Float64frombits(binary.LittleEndian.Uint64(view[8*j:])))
		}
		return nil
	}, make([]byte, 8*n))
	return x, err
}

// logged passes on complete lines.
func (in *instance) logged(s string) {
	if in.log == nil {
		return
	}
	in.partial += s
	for {
		line, rest, ok := strings.Cut(in.partial, "\n")
		if !ok {
			return
		}
		in.log(line)
		in.partial = rest
	}
}

func (in *instance) flush() {
	if in.partial != "" {
		in.logged("\n")
	}
}

// callback is what HiGHS calls.
func (in *instance) callback(kind int32, message, out uint32) {
	if kind == callbackLog {
		in.logged(in.cstring(message))
		return
	}
	if in.progress == nil {
		return
	}
	item := func(name string) uint64 {
		var v uint64
		// A getter of its own: callbacks run while the module is in another call.
		err := in.with(func(at []uint64) error {
			p, err := in.call("Highs_getCallbackDataOutItem", uint64(out), at[0])
			if err == nil && p != 0 {
				v, _ = in.memory.ReadUint64Le(uint32(p))
			}
			return err
		}, text(name))
		if err != nil {
			panic(err)
		}
		return v
	}
	in.progress(math.Float64frombits(item("mip_primal_bound")), math.Float64frombits(item("mip_dual_bound")), int64(item("mip_node_count")))
}

// poll ends the solve when nobody wants its answer: the module asks for the time many thousand times a second.
func (in *instance) poll() {
	if in.user.Err() != nil {
		in.cancelled = true
		panic(errCancelled)
	}
}

var errCancelled = errors.New("cancelled")

// host offers the functions that the module imports, and callback, in module "host".
func host(ctx context.Context, r wazero.Runtime, m wazero.CompiledModule) error {
	const enosys = 52 // of Emscripten
	begun := time.Now()
	refuse := func(code int32) wasmapi.GoModuleFunc {
		return func(_ context.Context, _ wasmapi.Module, stack []uint64) { stack[0] = wasmapi.EncodeI32(code) }
	}
	nothing := func(context.Context, wasmapi.Module, []uint64) {}
	crash := func(what string) wasmapi.GoModuleFunc {
		return func(ctx context.Context, _ wasmapi.Module, _ []uint64) {
			panic(fmt.Errorf("the solver gave up (%s)", what))
		}
	}
	bodies := map[string]wasmapi.GoModuleFunc{
		"cxa_throw": crash("exception"), "exit": crash("exit"), "abort": crash("abort"), "proc_exit": crash("exit"),
		"fd_close": refuse(enosys), "fd_read": refuse(enosys), "fd_seek": refuse(enosys), "environ_get": refuse(enosys), "setitimer": refuse(enosys),
		"fcntl64": refuse(-enosys), "ioctl": refuse(-enosys), "openat": refuse(-enosys),
		"keepalive_clear": nothing, "tzset": nothing,
		"get_now": func(ctx context.Context, _ wasmapi.Module, stack []uint64) { // milliseconds
			of(ctx).poll()
			stack[0] = wasmapi.EncodeF64(float64(time.Since(begun)) / 1e6)
		},
		"date_now": func(ctx context.Context, _ wasmapi.Module, stack []uint64) {
			of(ctx).poll()
			stack[0] = wasmapi.EncodeF64(float64(time.Now().UnixMilli()))
		},
		"clock_time_get": func(ctx context.Context, m wasmapi.Module, stack []uint64) { // nanoseconds; clock 0 is the wall's
			of(ctx).poll()
			ns := time.Since(begun).Nanoseconds()
			if uint32(stack[0]) == 0 {
				ns = time.Now().UnixNano()
			}
			m.Memory().WriteUint64Le(uint32(stack[len(stack)-1]), uint64(ns))
			stack[0] = 0
		},
		"resize_heap": func(ctx context.Context, m wasmapi.Module, stack []uint64) {
			want, have := uint64(uint32(stack[0])), uint64(m.Memory().Size())
			stack[0] = 0
			for _, size := range []uint64{max(want, have+have/5), want} { // a fifth more than is asked for now, if there is so much
				pages := (size + pageBytes - 1) / pageBytes
				if pages > of(ctx).pages {
					continue
				}
				if _, ok := m.Memory().Grow(uint32(pages - min(pages, have/pageBytes))); ok {
					stack[0] = 1
					return
				}
			}
			of(ctx).outOfPages = true
		},
		"environ_sizes_get": func(_ context.Context, m wasmapi.Module, stack []uint64) {
			m.Memory().WriteUint32Le(uint32(stack[0]), 0)
			m.Memory().WriteUint32Le(uint32(stack[1]), 0)
			stack[0] = 0
		},
		"fd_write": func(ctx context.Context, m wasmapi.Module, stack []uint64) {
			at, n, written := uint32(stack[1]), uint32(stack[2]), uint32(0)
			for i := range min(n, 1024) {
				p, _ := m.Memory().ReadUint32Le(at + 8*i)
				size, _ := m.Memory().ReadUint32Le(at + 8*i + 4)
				b, ok := m.Memory().Read(p, size)
				if !ok {
					break
				}
				of(ctx).logged(string(b))
				written += size
			}
			m.Memory().WriteUint32Le(uint32(stack[3]), written)
			stack[0] = 0
		},
	}
	b := r.NewHostModuleBuilder(hostModule)
	names := map[string]string{}
	for what, short := range imported {
		names[short] = what
	}
	for _, f := range m.ImportedFunctions() {
		module, short, _ := f.Import()
		body := bodies[names[short]]
		if module != hostModule || body == nil {
			return fmt.Errorf("the module imports %s.%s, which is unknown", module, short)
		}
		b.NewFunctionBuilder().WithGoModuleFunction(body, f.ParamTypes(), f.ResultTypes()).Export(short)
	}
	if _, err := b.Instantiate(ctx); err != nil {
		return err
	}
	i32 := wasmapi.ValueTypeI32
	_, err := r.NewHostModuleBuilder(callbackModule).NewFunctionBuilder().WithGoModuleFunction(wasmapi.GoModuleFunc(func(ctx context.Context, _ wasmapi.Module, stack []uint64) {
		of(ctx).callback(int32(uint32(stack[0])), uint32(stack[1]), uint32(stack[2]))
	}), []wasmapi.ValueType{i32, i32, i32, i32, i32}, nil).Export("callback").Instantiate(ctx)
	return err
}
