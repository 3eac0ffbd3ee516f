package highs

import (
	"context"
	"fmt"
	"time"

	"github.com/tetratelabs/wazero"
	wasmapi "github.com/tetratelabs/wazero/api"
)

// The module was built by Emscripten, which expects a system: clocks, standard output, memory that grows, and files.
// Here it gets the first three. The clock is also where a solve is stopped, see poll.

// host offers the functions that the module imports, and callback, in module "host". Import names are minified, and
// table.go says what they stand for.
func host(ctx context.Context, runtime wazero.Runtime, compiled wazero.CompiledModule) error {
	bodies := hostFunctions(time.Now()) // by their full names
	builder := runtime.NewHostModuleBuilder(hostModule)
	names := map[string]string{}
	for what, short := range imported {
		names[short] = what
	}
	for _, function := range compiled.ImportedFunctions() {
		module, short, _ := function.Import()
		body := bodies[names[short]]
		if module != hostModule || body == nil {
			return fmt.Errorf("the module imports %s.%s, which is unknown", module, short)
		}
		builder.NewFunctionBuilder().
			WithGoModuleFunction(body, function.ParamTypes(), function.ResultTypes()).Export(short)
	}
	if _, err := builder.Instantiate(ctx); err != nil {
		return err
	}
	// HiGHS calls back with (kind, message, out, in, user); the last two are not used.
	callback := func(ctx context.Context, _ wasmapi.Module, stack []uint64) {
		of(ctx).callback(int32(uint32(stack[0])), uint32(stack[1]), uint32(stack[2]))
	}
	i32 := wasmapi.ValueTypeI32
	_, err := runtime.NewHostModuleBuilder(callbackModule).NewFunctionBuilder().
		WithGoModuleFunction(wasmapi.GoModuleFunc(callback), []wasmapi.ValueType{i32, i32, i32, i32, i32}, nil).
		Export("callback").Instantiate(ctx)
	return err
}

// hostFunctions returns those of imported: of Emscripten and of WASI. Files and the environment are refused.
func hostFunctions(begun time.Time) map[string]wasmapi.GoModuleFunc {
	const enosys = 52 // of Emscripten
	refuse := func(code int32) wasmapi.GoModuleFunc {
		return func(_ context.Context, _ wasmapi.Module, stack []uint64) { stack[0] = wasmapi.EncodeI32(code) }
	}
	nothing := func(context.Context, wasmapi.Module, []uint64) {}
	crash := func(what string) wasmapi.GoModuleFunc {
		return func(ctx context.Context, _ wasmapi.Module, _ []uint64) {
			panic(fmt.Errorf("the solver gave up (%s)", what))
		}
	}
	return map[string]wasmapi.GoModuleFunc{
		"cxa_throw": crash("exception"), "exit": crash("exit"), "abort": crash("abort"), "proc_exit": crash("exit"),
		"fd_close": refuse(enosys), "fd_read": refuse(enosys), "fd_seek": refuse(enosys),
		"environ_get": refuse(enosys), "setitimer": refuse(enosys),
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
		"clock_time_get": func(ctx context.Context, module wasmapi.Module, stack []uint64) { // nanoseconds
			of(ctx).poll()
			ns := time.Since(begun).Nanoseconds()
			if uint32(stack[0]) == 0 { // the wall's clock
				ns = time.Now().UnixNano()
			}
			module.Memory().WriteUint64Le(uint32(stack[len(stack)-1]), uint64(ns))
			stack[0] = 0
		},
		"environ_sizes_get": func(_ context.Context, module wasmapi.Module, stack []uint64) {
			module.Memory().WriteUint32Le(uint32(stack[0]), 0)
			module.Memory().WriteUint32Le(uint32(stack[1]), 0)
			stack[0] = 0
		},
		"resize_heap": resizeHeap,
		"fd_write":    writeLog,
	}
}

// resizeHeap grows the memory by a fifth more than is asked for now, if there is so much.
func resizeHeap(ctx context.Context, module wasmapi.Module, stack []uint64) {
	want, have := uint64(uint32(stack[0])), uint64(module.Memory().Size())
	stack[0] = 0
	for _, size := range []uint64{max(want, have+have/5), want} {
		pages := (size + pageBytes - 1) / pageBytes
		if pages > of(ctx).pages {
			continue
		}
		if _, ok := module.Memory().Grow(uint32(pages - min(pages, have/pageBytes))); ok {
			stack[0] = 1
			return
		}
	}
	of(ctx).outOfPages = true
}

// writeLog is WASI's fd_write, whatever the file: all of it is log. The arguments are the file, the address of a list
// of (address, size), its length, and where the number of bytes written goes.
func writeLog(ctx context.Context, module wasmapi.Module, stack []uint64) {
	at, count, written := uint32(stack[1]), uint32(stack[2]), uint32(0)
	for i := range min(count, 1024) {
		address, _ := module.Memory().ReadUint32Le(at + 8*i)
		size, _ := module.Memory().ReadUint32Le(at + 8*i + 4)
		data, ok := module.Memory().Read(address, size)
		if !ok {
			break
		}
		of(ctx).logged(string(data))
		written += size
	}
	module.Memory().WriteUint32Le(uint32(stack[3]), written)
	stack[0] = 0
}
