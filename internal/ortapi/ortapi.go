// Package ortapi knows ONNX Runtime's C API: loading the library, environments, sessions over memory that
// the caller owns, and running them without allocation.
//
// Objects are closed by their maker; closing twice does nothing, and what others still need (an environment
// with sessions, prepacked weights of a session) goes when the last of them is closed. Methods of one object
// are not called from two goroutines at a time, nor Run during Close.
package ortapi

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/native"
)

// EnvLibrary names ONNX Runtime's shared library, before all other places.
const EnvLibrary = "HETC_ORT_LIBRARY"

const noTelemetry = "ORT_DISABLE_TELEMETRY"

const longestText = 4096 // bytes of a message, name or version that are read from the library

// Problem is why a file is not a usable ONNX Runtime; it continues native.Problem.
type Problem int

const (
	Nowhere    Problem = iota + 1 // no library in any of the places that were tried
	Unloadable                    // the file is absent, unreadable, broken: the cause is a *native.Error
	NotORT                        // a library without OrtGetApiBase, or one whose table is empty
	TooOld                        // the version is below what is needed
	TooNew                        // a later major version, or one that no longer offers the table
)

// LoadError says why a library cannot be used. It is of class diag.ClassUnavailable.
type LoadError struct {
	Path    string
	Problem Problem
	Tried   []string // by Find: what was looked at, in order
	Detail  string   // one line: got and want
	Cause   error    // of Unloadable
}

// Error says which library was tried and what is wrong with it.
func (e *LoadError) Error() string {
	switch {
	case e.Problem == Nowhere:
		return fmt.Sprintf("onnx runtime: %s: %s", e.Detail, strings.Join(e.Tried, ", "))
	case e.Cause != nil:
		return fmt.Sprintf("onnx runtime: %v", e.Cause)
	}
	return fmt.Sprintf("onnx runtime: library %q: %s", e.Path, e.Detail)
}

// Unwrap returns the cause.
func (e *LoadError) Unwrap() error { return e.Cause }

// As makes the error one of class diag.ClassUnavailable wherever it is wrapped.
func (e *LoadError) As(target any) bool {
	d, ok := target.(**diag.Diagnostic)
	if ok {
		*d = diag.New(diag.ClassUnavailable, "%s", e.Error()).
			WithHint("make deps fetches it; or set %s to the library's path", EnvLibrary)
	}
	return ok
}

// Library is a loaded ONNX Runtime. It stays loaded until the process ends.
type Library struct {
	Path      string
	Version   string // "1.31.1"
	BuildInfo string // what the library says about its build

	api    uintptr
	fn     [tableLength]uintptr
	shares bool // prepacked weights of every kind can be shared by sessions

	mu  sync.Mutex
	env bool // an environment is open
}

// used lists the functions that must be there, so that no call meets an empty entry.
var used = []int{
	fnGetErrorCode, fnGetErrorMessage, fnDisableTelemetryEvents, fnCreateSession, fnCreateSessionFromArray, fnCreateSessionOptions,
	fnSetOptimizedModelFilePath, fnSetSessionExecutionMode, fnDisableMemPattern, fnDisableCPUMemArena, fnSetSessionGraphOptimizationLevel,
	fnSetIntraOpNumThreads, fnSetInterOpNumThreads, fnSessionGetInputCount, fnSessionGetOutputCount, fnSessionGetInputTypeInfo,
	fnSessionGetOutputTypeInfo, fnSessionGetInputName, fnSessionGetOutputName, fnCreateTensorWithDataAsOrtValue, fnCastTypeInfoToTensorInfo,
	fnGetTensorElementType, fnGetDimensionsCount, fnGetDimensions, fnCreateCPUMemoryInfo, fnAllocatorFree, fnGetAllocatorWithDefaultOptions,
	fnReleaseEnv, fnReleaseStatus, fnReleaseMemoryInfo, fnReleaseSession, fnReleaseValue, fnReleaseTypeInfo, fnReleaseSessionOptions,
	fnCreateEnvWithGlobalThreadPools, fnDisablePerSessionThreads, fnCreateThreadingOptions, fnReleaseThreadingOptions,
	fnGetAvailableProviders, fnReleaseAvailableProviders, fnAddSessionConfigEntry, fnRunWithBinding, fnCreateIoBinding, fnReleaseIoBinding,
	fnBindInput, fnBindOutput, fnSetGlobalIntraOpNumThreads, fnSetGlobalInterOpNumThreads, fnSetGlobalSpinControl, fnAddInitializer,
	fnCreatePrepackedWeightsContainer, fnReleasePrepackedWeightsContainer, fnCreateSessionWithPrepacked, fnCreateSessionFromArrayWithPrepacked,
	fnSessionOptionsAppendExecutionProvider, fnSetGlobalIntraOpThreadAffinity, fnGetBuildInfoString,
	fnCreateAndRegisterAllocator, fnCreateArenaCfg, fnReleaseArenaCfg,
}

// Find loads the file, or without one what $HETC_ORT_LIBRARY names, or the first library that is there (see
// native.Find). The error is a *LoadError.
func Find(file string) (*Library, error) {
	if file == "" {
		file = os.Getenv(EnvLibrary)
	}
	l, tried, err := native.Find(native.Search{File: file, Folder: "onnxruntime", Names: native.FileNames("onnxruntime"), System: native.SystemNames("onnxruntime")})
	if err != nil {
		e := &LoadError{Path: file, Problem: Unloadable, Tried: tried, Cause: err}
		var ne *native.Error
		if file == "" && errors.As(err, &ne) && ne.Problem == native.Absent {
			e.Problem, e.Cause, e.Detail = Nowhere, nil, "no library in any place that was tried"
		}
		return nil, e
	}
	lib, err := bind(l)
	if le, ok := errors.AsType[*LoadError](err); ok {
		le.Tried = tried
	}
	return lib, err
}

// Load loads the library at path. The error is a *LoadError.
func Load(path string) (*Library, error) {
	l, err := native.Open(path)
	if err != nil {
		return nil, &LoadError{Path: path, Problem: Unloadable, Cause: err}
	}
	return bind(l)
}

// bind takes the functions that hetc uses out of a library's table, after checking that its version
// has them.
func bind(nl *native.Library) (*Library, error) {
	refuse := func(p Problem, format string, args ...any) (*Library, error) {
		return nil, &LoadError{Path: nl.Path, Problem: p, Detail: fmt.Sprintf(format, args...)}
	}
	get, err := nl.Symbol("OrtGetApiBase")
	if err != nil {
		return nil, &LoadError{Path: nl.Path, Problem: NotORT, Cause: err}
	}
	l := &Library{Path: nl.Path}
	base := native.Call(get)
	if base == 0 {
		return refuse(NotORT, "OrtGetApiBase returned nothing")
	}
	getAPI, getVersion := native.Word(base, 0), native.Word(base, 1)
	if getAPI == 0 || getVersion == 0 {
		return refuse(NotORT, "OrtApiBase lacks functions")
	}
	l.Version = text(native.Call(getVersion))
	major, minor, ok := version(l.Version)
	switch {
	case !ok:
		return refuse(NotORT, "its version %q is not one of ONNX Runtime", l.Version)
	case major < apiMajor || major == apiMajor && minor < apiVersion:
		// Not asked for its table: it would print that it has none.
		return refuse(TooOld, "version %s is too old, want %d.%d or later", l.Version, apiMajor, apiVersion)
	case major > apiMajor:
		return refuse(TooNew, "version %s is too new, want %d.%d to %d.x", l.Version, apiMajor, apiVersion, apiMajor)
	}
	if l.api = native.Call(getAPI, apiVersion); l.api == 0 {
		return refuse(TooNew, "version %s does not offer version %d of its interface", l.Version, apiVersion)
	}
	// a library that is opened under two names has one table
	loaded.Lock()
	defer loaded.Unlock()
	if same := loaded.of[l.api]; same != nil {
		return same, nil
	}
	all := slices.Clone(used)
	for _, p := range ownProviders {
		all = append(all, p.append, p.create, p.update, p.release)
	}
	slices.Sort(all)
	for _, i := range all {
		if l.fn[i] = native.Word(l.api, i); l.fn[i] == 0 {
			return refuse(NotORT, "version %s: function %d of its interface is missing", l.Version, i)
		}
	}
	for _, i := range pluginFunctions {
		l.fn[i] = native.Word(l.api, i)
	}
	l.shares = minor >= sharesFrom
	l.BuildInfo = text(native.Call(l.fn[fnGetBuildInfoString]))
	if loaded.of == nil {
		loaded.of = map[uintptr]*Library{}
	}
	loaded.of[l.api] = l
	return l, nil
}

// loaded are the libraries by their tables: one that is loaded again, by whatever name, is the same.
var loaded struct {
	sync.Mutex
	of map[uintptr]*Library
}

// version reads "1.31.1" or "1.32.0-dev".
func version(s string) (major, minor int, ok bool) {
	a, rest, ok := strings.Cut(s, ".")
	if !ok {
		return 0, 0, false
	}
	b, _, _ := strings.Cut(rest, ".")
	major, err1 := strconv.Atoi(a)
	minor, err2 := strconv.Atoi(b)
	return major, minor, err1 == nil && err2 == nil && major >= 0 && minor >= 0
}

// text copies a string of the library and puts it on one line, at most longestText bytes of it.
func text(p uintptr) string { return strings.Join(strings.Fields(native.String(p, longestText)), " ") }

// Code is what kind of failure the library reports.
type Code int32

var codes = []string{"OK", "FAIL", "INVALID_ARGUMENT", "NO_SUCHFILE", "NO_MODEL", "ENGINE_ERROR", "RUNTIME_EXCEPTION", "INVALID_PROTOBUF",
	"MODEL_LOADED", "NOT_IMPLEMENTED", "INVALID_GRAPH", "EP_FAIL", "MODEL_LOAD_CANCELED", "MODEL_REQUIRES_COMPILATION", "NOT_FOUND"}

// String returns the name that the library's header gives the code.
func (c Code) String() string {
	if c >= 0 && int(c) < len(codes) {
		return codes[c]
	}
	return fmt.Sprintf("code %d", int32(c))
}

// Error is a failure that the library reported. It is of class diag.ClassRun.
type Error struct {
	What    string // what was done: "create session"
	Code    Code
	Message string // the library's own words, on one line
}

// Error tells what was asked of the library, and its own words.
func (e *Error) Error() string {
	return fmt.Sprintf("onnx runtime: %s: %s: %s", e.What, e.Code, e.Message)
}

// As makes the error one of class diag.ClassRun wherever it is wrapped.
func (e *Error) As(target any) bool {
	d, ok := target.(**diag.Diagnostic)
	if ok {
		*d = diag.New(diag.ClassRun, "%s", e.Error())
	}
	return ok
}

// check turns a status into an error and releases it.
func (l *Library) check(what string, status uintptr) error {
	if status == 0 {
		return nil
	}
	e := &Error{What: what, Code: Code(int32(native.Call(l.fn[fnGetErrorCode], status))), Message: text(native.Call(l.fn[fnGetErrorMessage], status))}
	native.Call(l.fn[fnReleaseStatus], status)
	return e
}

// usage returns a call that is refused before the library sees it.
func usage(format string, args ...any) error {
	return diag.New(diag.ClassInput, "onnx runtime: "+format, args...)
}

// cstring is s for C; the error names what s is.
func cstring(what, s string) ([]byte, error) {
	b, ok := native.CString(s)
	if !ok {
		return nil, usage("%s %q has a NUL byte", what, s)
	}
	return b, nil
}

// Providers lists the execution providers that the library offers, its preferred ones first.
func (l *Library) Providers() ([]string, error) {
	var list, n out
	status := native.Call(l.fn[fnGetAvailableProviders], uintptr(unsafe.Pointer(&list.p)), uintptr(unsafe.Pointer(&n.p)))
	if err := l.check("list execution providers", status); err != nil {
		return nil, err
	}
	var names []string
	count := int(int32(n.p)) // an int, of which C writes the low half
	for i := range count {
		names = append(names, text(native.Word(list.p, i)))
	}
	return names, l.check("free list of execution providers", native.Call(l.fn[fnReleaseAvailableProviders], list.p, uintptr(count)))
}

// EnvOptions configures the process's environment.
type EnvOptions struct {
	// Threads is the size of the pool that sessions with Threads 0 share, the calling thread included; 0 is 1.
	Threads int
	// Cores pins the pool's Threads-1 own threads, one each. nil leaves them to the operating system.
	Cores []int
}

// Env is the library's one environment in this process.
type Env struct {
	lib     *Library
	p       uintptr
	memory  uintptr // OrtMemoryInfo of the CPU
	threads int

	mu     sync.Mutex
	refs   int // the environment itself, its sessions and prepacked weights
	closed bool
}

// NewEnv makes the environment. A library has one at a time in a process; a second is refused.
func (l *Library) NewEnv(o EnvOptions) (*Env, error) {
	if o.Threads == 0 {
		o.Threads = 1
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.env {
		return nil, usage("this process has an environment of %q already", l.Path)
	}
	// From 1.29 on making an environment writes an identifier of the device to disk and sends what process this is,
	// before telemetry can be turned off below: this variable is what it looks at first.
	if err := native.Setenv(noTelemetry, "1"); err != nil {
		return nil, diag.New(diag.ClassUnavailable, "onnx runtime: turn telemetry off: %w", err)
	}
	var opts out
	if err := l.check("make thread options", native.Call(l.fn[fnCreateThreadingOptions], uintptr(unsafe.Pointer(&opts.p)))); err != nil {
		return nil, err
	}
	defer native.Call(l.fn[fnReleaseThreadingOptions], opts.p)
	if err := l.setThreads(opts.p, o); err != nil {
		return nil, err
	}
	id, _ := native.CString("hetc")
	var env out
	status := native.Call(l.fn[fnCreateEnvWithGlobalThreadPools], logFatal, uintptr(unsafe.Pointer(&id[0])), opts.p, uintptr(unsafe.Pointer(&env.p)))
	if err := l.check("make environment", status); err != nil {
		return nil, err
	}
	e := &Env{lib: l, p: env.p, threads: o.Threads, refs: 1}
	if err := e.prepare(); err != nil {
		native.Call(l.fn[fnReleaseEnv], env.p)
		return nil, err
	}
	l.env = true
	return e, nil
}

// check refuses options that the library would take without a word. The caller's thread is the first of the pool and
// pinned by the caller.
func (o *EnvOptions) check() error {
	if o.Threads < 1 || o.Threads > 1024 {
		return usage("%d threads, want 1 to 1024", o.Threads)
	}
	if o.Cores != nil && len(o.Cores) != o.Threads-1 {
		return usage("%d cores for the pool's own threads, want %d for %d threads", len(o.Cores), o.Threads-1, o.Threads)
	}
	return nil
}

// setThreads describes the pool in the thread options. Sessions have no threads of their own: all share this pool, which
// executes one operator at a time, and its threads spin while they wait, since the next operator comes within
// microseconds.
func (l *Library) setThreads(opts uintptr, o EnvOptions) error {
	if err := l.check("set size of the thread pool",
		native.Call(l.fn[fnSetGlobalIntraOpNumThreads], opts, uintptr(o.Threads))); err != nil {
		return err
	}
	if err := l.check("set size of the thread pool", native.Call(l.fn[fnSetGlobalInterOpNumThreads], opts, 1)); err != nil {
		return err
	}
	if err := l.check("let threads spin", native.Call(l.fn[fnSetGlobalSpinControl], opts, 1)); err != nil {
		return err
	}
	if len(o.Cores) == 0 {
		return nil
	}
	cores, err := affinity(o.Cores)
	if err != nil {
		return err
	}
	return l.check("pin threads",
		native.Call(l.fn[fnSetGlobalIntraOpThreadAffinity], opts, uintptr(unsafe.Pointer(&cores[0]))))
}

// prepare turns telemetry off and describes the environment's memory. After an error nothing of that is left.
func (e *Env) prepare() error {
	l := e.lib
	if err := l.check("turn telemetry off", native.Call(l.fn[fnDisableTelemetryEvents], e.p)); err != nil {
		return err
	}
	var memory out
	if err := l.check("describe memory", native.Call(l.fn[fnCreateCPUMemoryInfo], allocatorDevice, memTypeDefault,
		uintptr(unsafe.Pointer(&memory.p)))); err != nil {
		return err
	}
	if err := e.shareArena(); err != nil {
		native.Call(l.fn[fnReleaseMemoryInfo], memory.p)
		return err
	}
	e.memory = memory.p
	return nil
}

// shareArena gives the sessions of the environment one allocator for what their graphs need in a call, which keeps what
// they free.
// RATIONALE: Why do sessions of ONNX Runtime share an arena?
func (e *Env) shareArena() error {
	l := e.lib
	var memory, config out
	if err := l.check("describe memory", native.Call(l.fn[fnCreateCPUMemoryInfo], allocatorArena, memTypeDefault,
		uintptr(unsafe.Pointer(&memory.p)))); err != nil {
		return err
	}
	defer native.Call(l.fn[fnReleaseMemoryInfo], memory.p)
	if err := l.check("configure the arena", native.Call(l.fn[fnCreateArenaCfg], 0, sameAsRequested, byDefault, byDefault,
		uintptr(unsafe.Pointer(&config.p)))); err != nil {
		return err
	}
	defer native.Call(l.fn[fnReleaseArenaCfg], config.p)
	return l.check("make the arena", native.Call(l.fn[fnCreateAndRegisterAllocator], e.p, memory.p, config.p))
}

// affinity writes cores in the library's notation: one group per thread, numbered from 1.
func affinity(cores []int) ([]byte, error) {
	var groups []string
	for _, c := range cores {
		if c < 0 || c > 1<<16 {
			return nil, usage("core %d does not exist", c)
		}
		groups = append(groups, strconv.Itoa(c+1))
	}
	b, _ := native.CString(strings.Join(groups, ";"))
	return b, nil
}

// hold counts a user of the environment; release frees the environment with its last user.
func (e *Env) hold() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return usage("the environment is closed")
	}
	e.refs++
	return nil
}

// release gives up one use; the last one releases the environment in the library.
func (e *Env) release() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.refs--; e.refs > 0 {
		return
	}
	e.lib.mu.Lock()
	defer e.lib.mu.Unlock()
	native.Call(e.lib.fn[fnReleaseMemoryInfo], e.memory)
	native.Call(e.lib.fn[fnReleaseEnv], e.p)
	e.lib.env = false
}

// Close gives the environment back once its last session and prepacked weights are closed.
func (e *Env) Close() error {
	e.mu.Lock()
	again := e.closed
	e.closed = true
	e.mu.Unlock()
	if !again {
		e.release()
	}
	return nil
}

// Value is a tensor over memory of the caller.
type Value struct {
	lib *Library
	p   uintptr
	mem []byte // keeps memory of the Go heap alive, should the caller use such
}

// NewTensor describes mem as a tensor, row-major and dense, without copying it. mem lies outside the Go heap
// and outlives the value and every session and binding that uses it.
func (e *Env) NewTensor(mem []byte, t ElementType, shape []int64) (*Value, error) {
	if t.Bytes() == 0 {
		return nil, usage("make tensor: %v is not supported", t)
	}
	bytes, whole := t.Bytes(), int64(len(mem))
	for _, d := range shape {
		if d < 0 || d > 0 && bytes > (1<<62)/d {
			return nil, usage("make tensor: shape %v", shape)
		}
		bytes *= d
	}
	if bytes != whole {
		return nil, usage("make tensor of %v %v: got %d bytes, want %d", t, shape, whole, bytes)
	}
	if len(shape) > 64 {
		return nil, usage("make tensor: %d dimensions, want at most 64", len(shape))
	}
	if err := e.hold(); err != nil {
		return nil, err
	}
	defer e.release()
	data, dims := unsafe.SliceData(mem), unsafe.SliceData(shape)
	var v out
	status := native.Call(e.lib.fn[fnCreateTensorWithDataAsOrtValue], e.memory, uintptr(unsafe.Pointer(data)), uintptr(len(mem)),
		uintptr(unsafe.Pointer(dims)), uintptr(len(shape)), uintptr(t), uintptr(unsafe.Pointer(&v.p)))
	if err := e.lib.check("make tensor", status); err != nil {
		return nil, err
	}
	return &Value{e.lib, v.p, mem}, nil
}

// Close gives the description back, not the memory. Sessions and bindings made with the value stay usable.
func (v *Value) Close() error {
	if v.p != 0 {
		native.Call(v.lib.fn[fnReleaseValue], v.p)
		v.p = 0
	}
	return nil
}

// PrepackedWeights holds weights in the order that the library's kernels read, for all sessions made with it:
// equal weights are held once. Libraries before 1.28 cannot do that with all weights: every session keeps its own.
type PrepackedWeights struct {
	// held until the container is released
	env *Env
	p   uintptr
	mu  sync.Mutex
	// the container itself, and the sessions made with it
	refs   int
	closed bool
}

// NewPrepackedWeights makes an empty container.
func (e *Env) NewPrepackedWeights() (*PrepackedWeights, error) {
	if err := e.hold(); err != nil {
		return nil, err
	}
	var p out
	if err := e.lib.check("make container of prepacked weights", native.Call(e.lib.fn[fnCreatePrepackedWeightsContainer], uintptr(unsafe.Pointer(&p.p)))); err != nil {
		e.release()
		return nil, err
	}
	return &PrepackedWeights{env: e, p: p.p, refs: 1}, nil
}

// hold and release count users, as those of Env do.
func (w *PrepackedWeights) hold() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return usage("the container of prepacked weights is closed")
	}
	w.refs++
	return nil
}

// release gives up one use; the last one frees the packed weights and one use of the environment.
func (w *PrepackedWeights) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refs--; w.refs > 0 {
		return
	}
	native.Call(w.env.lib.fn[fnReleasePrepackedWeightsContainer], w.p)
	w.env.release()
}

// Close gives the container back once its last session is closed.
func (w *PrepackedWeights) Close() error {
	w.mu.Lock()
	again := w.closed
	w.closed = true
	w.mu.Unlock()
	if !again {
		w.release()
	}
	return nil
}
