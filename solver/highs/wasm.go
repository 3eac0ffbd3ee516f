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

	"github.com/tetratelabs/wazero"
	wasmapi "github.com/tetratelabs/wazero/api"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/milp"
)

// maxMemory is the most memory that a solve in this process takes, in bytes.
const maxMemory = 2 << 30

// leastMemory lets the solver itself begin.
const leastMemory = 24 << 20

// pageBytes is the unit in which a module's memory grows.
const pageBytes = 64 << 10

// Wasm is the engine "highs": HiGHS compiled to WebAssembly, executed by wazero inside this process. The module is
// compiled once; each solve has an instance of its own, so that several goroutines may solve at once.
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
	return &Wasm{where: where, maxPages: maxMemory / pageBytes}, nil
}

// Limit sets the most memory that a solve takes, in bytes, up to maxMemory.
func (w *Wasm) Limit(bytes int64) {
	w.maxPages = uint64(min(max(bytes, leastMemory), maxMemory)) / pageBytes
}

// Name implements milp.Engine.
func (w *Wasm) Name() string { return wasmName }

// Where returns the file of the solver, or Embedded.
func (w *Wasm) Where() string { return w.where }

// Start compiles the solver, or reads back what an earlier process compiled. Solve calls it when it was not called
// before. It returns early when ctx ends; compiling then goes on, for the next call. Errors are of class
// ClassUnavailable.
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

// interrupted returns the error of a solve whose context ended.
func interrupted(engine string, ctx context.Context) error {
	return diag.New(diag.ClassInterrupted, "engine %q: interrupted: %w", engine, context.Cause(ctx))
}

// compile compiles the solver, with the cache where that works.
func compile(where string) (wazero.Runtime, wazero.CompiledModule, error) {
	module, err := read(where)
	if err != nil {
		return nil, nil, err
	}
	dir := cacheDir()
	for {
		runtime, compiled, err := compileIn(dir, module)
		if err == nil {
			if dir != "" {
				note(dir)
			}
			return runtime, compiled, nil
		}
		if dir == "" {
			return nil, nil, diag.New(diag.ClassUnavailable, "engine %q: %q cannot be compiled: %w",
				wasmName, where, err)
		}
		dir = "" // whatever is wrong with the cache, it is not needed
	}
}

// compileIn compiles a module and what it imports, with the cache in dir ("" for none). Its memory limit is the most
// that any instance may have; host refuses an instance's pages beyond its own limit.
func compileIn(dir string, module []byte) (wazero.Runtime, wazero.CompiledModule, error) {
	ctx := context.Background()
	config := wazero.NewRuntimeConfig().WithMemoryLimitPages(maxMemory / pageBytes)
	if dir != "" {
		cache, err := wazero.NewCompilationCacheWithDir(dir)
		if err != nil {
			return nil, nil, err
		}
		config = config.WithCompilationCache(cache)
	}
	runtime := wazero.NewRuntimeWithConfig(ctx, config)
	compiled, err := runtime.CompileModule(ctx, module)
	if err == nil {
		err = host(ctx, runtime, compiled)
	}
	if err != nil {
		return nil, nil, errors.Join(err, runtime.Close(ctx))
	}
	return runtime, compiled, nil
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
func (w *Wasm) Solve(ctx context.Context, model *milp.Model, options milp.Options) (milp.Result, error) {
	if err := model.Validate(); err != nil {
		return milp.Result{}, err
	}
	if err := options.Validate(model); err != nil {
		return milp.Result{}, err
	}
	if err := w.Start(ctx); err != nil {
		return milp.Result{}, err
	}
	// solve may ask for a second instance; only one is open at a time.
	var open *instance
	defer func() {
		if open != nil {
			open.close()
		}
	}()
	answer, err := solve(wasmName, func() (api, error) {
		if open != nil {
			open.close()
		}
		var err error
		open, err = w.instance(ctx, model.Name, &options)
		return open, err
	}, model, options)
	if err != nil && ctx.Err() != nil {
		return milp.Result{}, interrupted(wasmName, ctx)
	}
	return answer, err
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

// instanceKey is the key of the instance in the context of its host functions.
type instanceKey struct{}

// of returns the instance that a host function works for.
func of(ctx context.Context) *instance { return ctx.Value(instanceKey{}).(*instance) }

// instance makes a HiGHS. Every solve has one of its own: what an earlier solve left cannot change an answer, and
// memory is given back.
func (w *Wasm) instance(ctx context.Context, model string, options *milp.Options) (in *instance, err error) {
	in = &instance{
		user: ctx, funcs: map[string]wasmapi.Function{}, model: model, pages: w.maxPages,
		log: options.Log, progress: options.Progress,
	}
	in.ctx = context.WithValue(context.Background(), instanceKey{}, in) // not of ctx: wazero would close the module
	defer func() {
		if err != nil {
			in.close()
			in = nil
		}
	}()
	name := fmt.Sprintf("h%d", w.number.Add(1))
	config := wazero.NewModuleConfig().WithName(name).WithStartFunctions()
	if in.module, err = w.runtime.InstantiateModule(in.ctx, w.module, config); err != nil {
		return nil, in.crashed("instantiate", err)
	}
	if err := in.bind(); err != nil {
		return nil, err
	}
	if in.h, err = in.call("Highs_create"); err != nil {
		return nil, err
	}
	if in.log != nil || in.progress != nil {
		if err := in.connect(w.runtime, name); err != nil {
			return nil, err
		}
	}
	return in, nil
}

// bind finds what the module exports, runs its constructors, and checks that it is the HiGHS that this package knows:
// its version, and integers of 4 bytes.
func (in *instance) bind() error {
	in.memory = in.module.ExportedMemory(exportedMemory)
	if in.memory == nil {
		return diag.New(diag.ClassInternal, "engine %q: the module exports no memory %q", wasmName, exportedMemory)
	}
	// Names are minified: exported lists which one stands for which function.
	for what, short := range exported {
		if in.funcs[what] = in.module.ExportedFunction(short); in.funcs[what] == nil {
			return diag.New(diag.ClassInternal, "engine %q: the module exports no %s (%s)", wasmName, what, short)
		}
	}
	if _, err := in.call("constructors"); err != nil {
		return err
	}
	if version, err := in.version(); err != nil || version != Version {
		return errors.Join(err, diag.New(diag.ClassInternal, "engine %q: the module says it is HiGHS %q, want %s",
			wasmName, version, Version))
	}
	if size, err := in.call("Highs_getSizeofHighsInt", 0); err != nil || size != 4 {
		return errors.Join(err, diag.New(diag.ClassInternal, "engine %q: HiGHS's integers have %d bytes, want 4",
			wasmName, size))
	}
	return nil
}

// connect has HiGHS call back through a glue module.
func (in *instance) connect(runtime wazero.Runtime, name string) error {
	// The glue module adds one entry to the table of functions; HiGHS calls that entry by its index.
	glue, err := runtime.CompileModule(in.ctx, glueFor(name))
	if err == nil {
		in.glue, err = runtime.InstantiateModule(in.ctx, glue, wazero.NewModuleConfig().WithName(""))
	}
	if err != nil {
		return in.crashed("callbacks", err)
	}
	at, err := in.glue.ExportedFunction("i").Call(in.ctx)
	if err != nil {
		return in.crashed("callbacks", err)
	}
	_, err = in.call("Highs_setCallback", in.h, at[0], 0)
	return err
}

// glueFor returns a module that puts the host's function callback into the function table of the named module and
// returns its index: the only kind of function that HiGHS takes for a callback.
//
//	(type $callback (func (param i32 i32 i32 i32 i32))) (type $index (func (result i32)))
//	(import NAME TABLE (table 0 funcref)) (import "host" "callback" (func (type $callback))) (elem declare func 0)
//	(func (export "i") (result i32) ref.func 0  i32.const 1  table.grow 0)
func glueFor(name string) []byte {
	text := func(name string) []byte { return append([]byte{byte(len(name))}, name...) }
	section := func(id byte, parts ...[]byte) []byte {
		var body []byte
		for _, part := range parts {
			body = append(body, part...)
		}
		return append([]byte{id, byte(len(body))}, body...) // below 128 bytes: one byte of LEB128
	}
	out := []byte{0, 'a', 's', 'm', 1, 0, 0, 0}
	out = append(out, section(1, []byte{2, 0x60, 5, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0, 0x60, 0, 1, 0x7f})...)
	out = append(out, section(2, []byte{2}, text(name), text(exportedTable), []byte{1, 0x70, 0, 0},
		text(callbackModule), text("callback"), []byte{0, 0})...)
	out = append(out, section(3, []byte{1, 1})...)
	out = append(out, section(7, []byte{1}, text("i"), []byte{0, 1})...)
	out = append(out, section(9, []byte{1, 3, 0, 1, 0})...)
	return append(out, section(10, []byte{1, 9, 0, 0xd2, 0, 0x41, 1, 0xfc, 0x0f, 0, 0x0b})...)
}

// callbackModule is the name of the host's module that holds callback.
const callbackModule = "host"

// close frees the memory of the instance. It may be called twice.
func (in *instance) close() {
	if in.glue != nil {
		in.glue.Close(in.ctx)
	}
	if in.module != nil {
		in.module.Close(in.ctx)
	}
	in.glue, in.module = nil, nil
}

// crashed returns the error for a call that did not return.
func (in *instance) crashed(what string, err error) error {
	if in.cancelled {
		return interrupted(wasmName, in.user)
	}
	text, _, _ := strings.Cut(err.Error(), "\n") // a stack of minified names follows
	if in.outOfPages {
		return diag.New(diag.ClassUnavailable, "engine %q: model %q: %s needs more than %d MiB of memory",
			wasmName, in.model, what, in.pages*pageBytes>>20).
			WithHint("permit more with --working-memory, at most %d MiB; --engine highs-native has no such limit",
				maxMemory>>20)
	}
	return diag.New(diag.ClassInternal, "engine %q: model %q: %s crashed: %s", wasmName, in.model, what, text)
}

// call calls a function of the module with at most one result.
func (in *instance) call(what string, args ...uint64) (uint64, error) {
	results, err := in.funcs[what].Call(in.ctx, args...)
	if err != nil {
		return 0, in.crashed(what, err)
	}
	if len(results) == 0 {
		return 0, nil
	}
	return results[0], nil
}

// code is call for functions that return HiGHS's codes.
func (in *instance) code(what string, args ...uint64) (int32, error) {
	result, err := in.call(what, args...)
	return int32(uint32(result)), err
}

// with copies bytes into the module's memory, calls fn with their addresses and frees them. A nil part has the
// address 0. After an error nothing is freed: the instance can only be closed then.
func (in *instance) with(fn func(at []uint64) error, parts ...[]byte) (err error) {
	at := make([]uint64, len(parts))
	defer func() {
		for _, address := range at {
			if address != 0 && err == nil {
				_, err = in.call("free", address)
			}
		}
	}()
	for i, part := range parts {
		if part == nil {
			continue
		}
		if at[i], err = in.call("malloc", uint64(max(1, len(part)))); err != nil {
			return err
		}
		if at[i] == 0 || !in.memory.Write(uint32(at[i]), part) {
			in.outOfPages = true
			return in.crashed("copying", errors.New("no memory"))
		}
	}
	return fn(at)
}

// text returns a string as C has it in memory, with a zero at its end.
func text(s string) []byte { return append([]byte(s), 0) }

// doubles are float64 numbers as the module has them in memory: 8 bytes each, little endian.
func doubles(values []float64) []byte {
	data := make([]byte, 0, 8*len(values))
	for _, value := range values {
		data = binary.LittleEndian.AppendUint64(data, math.Float64bits(value))
	}
	return data
}

// ints are 32-bit integers as the module has them in memory, little endian.
func ints(values []int32) []byte {
	data := make([]byte, 0, 4*len(values))
	for _, value := range values {
		data = binary.LittleEndian.AppendUint32(data, uint32(value))
	}
	return data
}

// version returns the release that the module says it is.
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
	data, ok := in.memory.Read(at, min(longest, in.memory.Size()-min(at, in.memory.Size())))
	if !ok {
		return ""
	}
	text, _, _ := strings.Cut(string(data), "\x00")
	return text
}

// set sets an option to a value as the module takes it.
func (in *instance) set(setter, option string, value uint64) (code int32, err error) {
	err = in.with(func(at []uint64) (err error) {
		code, err = in.code(setter, in.h, at[0], value)
		return err
	}, text(option))
	return code, err
}

// The setters implement api: each sets one option and returns HiGHS's code.
func (in *instance) setBool(option string, value bool) (int32, error) {
	number := uint64(0)
	if value {
		number = 1
	}
	return in.set("Highs_setBoolOptionValue", option, number)
}

// The setters copy the option's name into the instance's memory; an error comes from the runtime of WebAssembly, not
// from HiGHS.
func (in *instance) setInt(option string, value int32) (int32, error) {
	return in.set("Highs_setIntOptionValue", option, wasmapi.EncodeI32(value))
}

func (in *instance) setDouble(option string, value float64) (int32, error) {
	return in.set("Highs_setDoubleOptionValue", option, wasmapi.EncodeF64(value))
}

func (in *instance) setString(option, value string) (code int32, err error) {
	err = in.with(func(at []uint64) (err error) {
		code, err = in.code("Highs_setStringOptionValue", in.h, at[0], at[1])
		return err
	}, text(option), text(value))
	return code, err
}

// pass passes the model as rows, to be minimised. HiGHS copies the arrays.
func (in *instance) pass(model *columns) (code int32, err error) {
	err = in.with(func(at []uint64) (err error) {
		args := []uint64{
			in.h, uint64(len(model.cost)), uint64(len(model.rowLow)), uint64(len(model.index)), rowWise, minimise,
			wasmapi.EncodeF64(model.offset),
		}
		code, err = in.code("Highs_passMip", append(args, at...)...)
		return err
	}, doubles(model.cost), doubles(model.low), doubles(model.high), doubles(model.rowLow), doubles(model.rowHigh),
		ints(model.start), ints(model.index), doubles(model.value), ints(model.integrality))
	return code, err
}

// Arguments of Highs_passMip.
const (
	rowWise  = 2
	minimise = 1
)

// start passes a solution to begin with; rows and duals are not known.
func (in *instance) start(values []float64) (code int32, err error) {
	err = in.with(func(at []uint64) (err error) {
		code, err = in.code("Highs_setSolution", in.h, at[0], 0, 0, 0)
		return err
	}, doubles(values))
	return code, err
}

// listen implements api: HiGHS calls back for one more kind of event.
func (in *instance) listen(callback int32) error {
	_, err := in.call("Highs_startCallback", in.h, wasmapi.EncodeI32(callback))
	return err
}

// run solves, and then passes on the rest of the log.
func (in *instance) run() (int32, error) {
	code, err := in.code("Highs_run", in.h)
	in.flush()
	return code, err
}

// status returns the number of the model's status, as table.go names it.
func (in *instance) status() (int32, error) { return in.code("Highs_getModelStatus", in.h) }

// info reads a value of the given size into zeroed memory: a getter that refuses leaves what was there.
func (in *instance) info(getter, name string, size int) (data []byte, err error) {
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
		data = append(data, view...)
		return nil
	}, text(name), make([]byte, size))
	return data, err
}

// infoInt, infoInt64 and infoDouble read what HiGHS knows of its answer, by name.
func (in *instance) infoInt(name string) (int32, error) {
	data, err := in.info("Highs_getIntInfoValue", name, 4)
	if err != nil {
		return 0, err
	}
	return int32(binary.LittleEndian.Uint32(data)), nil
}

// infoInt64 reads a counter, little endian as WebAssembly's memory is.
func (in *instance) infoInt64(name string) (int64, error) {
	data, err := in.info("Highs_getInt64InfoValue", name, 8)
	if err != nil {
		return 0, err
	}
	return int64(binary.LittleEndian.Uint64(data)), nil
}

// infoDouble reads a number of the solve, such as its bound.
func (in *instance) infoDouble(name string) (float64, error) {
	data, err := in.info("Highs_getDoubleInfoValue", name, 8)
	if err != nil {
		return 0, err
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(data)), nil
}

// solution reads the values of so many variables.
func (in *instance) solution(vars, _ int) (values []float64, err error) {
	err = in.with(func(at []uint64) error {
		code, err := in.code("Highs_getSolution", in.h, at[0], 0, 0, 0)
		if err == nil && code < 0 {
			err = diag.New(diag.ClassInternal, "engine %q: model %q: HiGHS has no solution", wasmName, in.model)
		}
		if err != nil {
			return err
		}
		view, ok := in.memory.Read(uint32(at[0]), uint32(8*vars))
		if !ok {
			return in.crashed("Highs_getSolution", errors.New("a solution outside the memory"))
		}
		for j := range vars {
			values = append(values, math.Float64frombits(binary.LittleEndian.Uint64(view[8*j:])))
		}
		return nil
	}, make([]byte, 8*vars))
	return values, err
}

// logged passes on complete lines.
func (in *instance) logged(text string) {
	if in.log == nil {
		return
	}
	in.partial = passLines(in.partial+text, in.log)
}

// flush passes on a last line that has no end.
func (in *instance) flush() {
	if in.partial != "" {
		in.logged("\n")
	}
}

// callback is what HiGHS calls, with addresses in the module: of a piece of the log as message, or of a structure of
// numbers as out. What out holds is asked by name, as its layout differs between releases.
func (in *instance) callback(kind int32, message, out uint32) {
	if kind == callbackLog {
		in.logged(in.cstring(message))
		return
	}
	if in.progress == nil {
		return
	}
	item := func(name string) uint64 {
		var value uint64
		// A getter of its own: callbacks run while the module is in another call.
		err := in.with(func(at []uint64) error {
			address, err := in.call("Highs_getCallbackDataOutItem", uint64(out), at[0])
			if err == nil && address != 0 {
				value, _ = in.memory.ReadUint64Le(uint32(address))
			}
			return err
		}, text(name))
		if err != nil {
			panic(err)
		}
		return value
	}
	in.progress(math.Float64frombits(item("mip_primal_bound")), math.Float64frombits(item("mip_dual_bound")),
		int64(item("mip_node_count")))
}

// poll ends a solve whose context has ended. The module asks for the time many thousand times a second, and has no
// other way to be stopped: a panic in the clock unwinds it.
// RATIONALE: Why is a solve cancelled by a panic in the clock?
func (in *instance) poll() {
	if in.user.Err() != nil {
		in.cancelled = true
		panic(errCancelled)
	}
}

// errCancelled unwinds the module's stack; crashed turns it into an interruption.
var errCancelled = errors.New("cancelled")
