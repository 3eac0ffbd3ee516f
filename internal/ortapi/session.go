package ortapi

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"unsafe"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/native"
)

// Initializer replaces a weight that the model declares as external data. The library does not compare its shape with
// the declared one, and kernels trust the latter: the caller makes the value by the declaration.
type Initializer struct {
	Name  string
	Value *Value
}

// Weights is the location that models name for weights which Initializers replace: an empty file of that name
// exists where the library looks.
const Weights = "weights"

// SessionOptions configures a session. The zero value is the environment's pool, no optimisation.
type SessionOptions struct {
	// Threads is the size of the session's own pool, the calling thread included: 1 has no thread but the
	// calling one. 0 takes the environment's pool.
	Threads int
	Cores   []int // pins the Threads-1 own threads, one each; nil does not
	// Optimization is the library's graph optimisation: 0 none, 1 basic, 2 extended, 3 layout, 99 all.
	Optimization int
	Config       [][2]string // the library's session configuration entries, in order
	// Provider names an execution provider other than the CPU's, with its options. Nodes it does not take are
	// an error, never run on the CPU.
	Provider        string
	ProviderOptions [][2]string
	// Devices are those of one plugin execution provider (see Env.RegisterProvider), whose options are ProviderOptions.
	// Nodes that it does not take run on the CPU: forbidding that changes what the provider is given. Placement tells.
	Devices []Device

	Initializers []Initializer
	Prepacked    *PrepackedWeights // may be nil
	// OptimizedModelPath is where the library writes the model as it optimised it; empty: nowhere.
	OptimizedModelPath string
}

// IO is one input or output of a model.
type IO struct {
	Name  string
	Type  ElementType
	Shape []int64 // -1: any
}

// Session is a model ready to run.
type Session struct {
	Inputs, Outputs []IO

	env       *Env
	p         uintptr
	prepacked *PrepackedWeights
	values    []*Value // hold memory that C reads
	bindings  []*Binding
}

// NewSession makes a session of an ONNX model's bytes; options nil is the zero value.
func (e *Env) NewSession(model []byte, o *SessionOptions) (*Session, error) {
	if len(model) == 0 {
		return nil, usage("create session: the model is empty")
	}
	return e.session(model, "", o)
}

// NewSessionFromFile makes a session of a model file, whose external data lies beside it.
func (e *Env) NewSessionFromFile(path string, o *SessionOptions) (*Session, error) {
	return e.session(nil, path, o)
}

// session makes a session from bytes or from a file, and describes its operands.
func (e *Env) session(model []byte, path string, o *SessionOptions) (*Session, error) {
	if err := e.hold(); err != nil {
		return nil, err
	}
	s := &Session{env: e}
	if o == nil {
		o = &SessionOptions{}
	}
	if o.Prepacked != nil && e.lib.shares {
		if err := o.Prepacked.hold(); err != nil {
			e.release()
			return nil, err
		}
		s.prepacked = o.Prepacked
	}
	if err := s.create(model, path, o); err != nil {
		s.Close()
		return nil, err
	}
	if err := s.describe(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// create makes the session with its options and with initializers over the caller's memory. The
// library has four functions for that: from bytes or a file, with or without shared prepacked
// weights.
func (s *Session) create(model []byte, path string, o *SessionOptions) error {
	l := s.env.lib
	var session out
	folder := ""
	if model != nil && len(o.Initializers) > 0 {
		var remove func()
		var err error
		if folder, remove, err = weightsFolder(); err != nil {
			return err
		}
		defer remove()
	}
	opts, free, err := s.env.options(folder, o)
	if err != nil {
		return err
	}
	defer free()
	if err := s.initialise(opts, o.Initializers); err != nil {
		return err
	}
	const what = "create session"
	var status uintptr
	if model != nil {
		if s.prepacked != nil {
			status = native.Call(l.fn[fnCreateSessionFromArrayWithPrepacked], s.env.p,
				uintptr(unsafe.Pointer(&model[0])), uintptr(len(model)), opts, s.prepacked.p,
				uintptr(unsafe.Pointer(&session.p)))
		} else {
			status = native.Call(l.fn[fnCreateSessionFromArray], s.env.p, uintptr(unsafe.Pointer(&model[0])),
				uintptr(len(model)), opts, uintptr(unsafe.Pointer(&session.p)))
		}
	} else {
		name, ok := native.Path(path)
		if !ok {
			return usage("%s: path %q has a NUL byte", what, path)
		}
		if s.prepacked != nil {
			status = native.Call(l.fn[fnCreateSessionWithPrepacked], s.env.p, uintptr(unsafe.Pointer(&name[0])), opts,
				s.prepacked.p, uintptr(unsafe.Pointer(&session.p)))
		} else {
			status = native.Call(l.fn[fnCreateSession], s.env.p, uintptr(unsafe.Pointer(&name[0])), opts,
				uintptr(unsafe.Pointer(&session.p)))
		}
	}
	if err := l.check(what, status); err != nil {
		return err
	}
	s.p = session.p
	if len(o.Initializers) > 0 {
		trim()
	}
	return nil
}

// initialise adds initializers to the options of a session.
func (s *Session) initialise(opts uintptr, initializers []Initializer) error {
	l := s.env.lib
	for _, initializer := range initializers {
		name, err := cstring("initializer", initializer.Name)
		if err != nil {
			return err
		}
		if initializer.Value == nil || initializer.Value.p == 0 {
			return usage("initializer %q has no value", initializer.Name)
		}
		if err := l.check("add initializer "+strconv.Quote(initializer.Name),
			native.Call(l.fn[fnAddInitializer], opts, uintptr(unsafe.Pointer(&name[0])), initializer.Value.p)); err != nil {
			return err
		}
		s.values = append(s.values, initializer.Value)
	}
	return nil
}

// trim gives memory back that the C library's allocator keeps after a session packed its weights and found them
// in the container: pieces of megabytes that the next session's weights do not fit into. Only glibc has it.
func trim() {
	if fn := mallocTrim(); fn != 0 {
		native.Call(fn, 0)
	}
}

var mallocTrim = sync.OnceValue(func() uintptr {
	if runtime.GOOS != "linux" {
		return 0
	}
	l, err := native.Open("libc.so.6")
	if err != nil {
		return 0
	}
	fn, err := l.Symbol("malloc_trim")
	if err != nil {
		return 0
	}
	return fn
})

// options makes session options, without initializers; free gives them back. folder is where external data lies of a
// model without a path.
func (e *Env) options(folder string, o *SessionOptions) (opts uintptr, free func(), err error) {
	var p out
	if err := e.lib.check("make session options",
		native.Call(e.lib.fn[fnCreateSessionOptions], uintptr(unsafe.Pointer(&p.p)))); err != nil {
		return 0, nil, err
	}
	free = func() { native.Call(e.lib.fn[fnReleaseSessionOptions], p.p) }
	if err := e.configure(p.p, folder, o); err != nil {
		free()
		return 0, nil, err
	}
	return p.p, free, nil
}

// configure sets the options of a session: sequential execution without memory pattern and arena of
// its own, threads and their cores, configuration entries, and the provider.
func (e *Env) configure(opts uintptr, folder string, o *SessionOptions) error {
	if err := e.lib.setExecution(opts, o); err != nil {
		return err
	}
	config, err := configEntries(folder, o)
	if err != nil {
		return err
	}
	for _, entry := range config {
		if err := e.lib.addEntry(opts, entry); err != nil {
			return err
		}
	}
	if o.OptimizedModelPath != "" {
		name, ok := native.Path(o.OptimizedModelPath)
		if !ok {
			return usage("path %q has a NUL byte", o.OptimizedModelPath)
		}
		if err := e.lib.check("set path of the optimised model",
			native.Call(e.lib.fn[fnSetOptimizedModelFilePath], opts, uintptr(unsafe.Pointer(&name[0])))); err != nil {
			return err
		}
	}
	switch {
	case len(o.Devices) > 0:
		return e.appendDevices(opts, o)
	case o.Provider != "":
		return e.lib.appendProvider(opts, o)
	}
	return nil
}

// setExecution sets how a session executes: one operator after the other, without memory pattern and arena of its own,
// on so many threads.
func (l *Library) setExecution(opts uintptr, o *SessionOptions) error {
	if o.Threads < 0 || o.Threads > 1024 {
		return usage("%d threads, want 0 to 1024", o.Threads)
	}
	threads := setting{"set number of threads", fnSetIntraOpNumThreads, []uintptr{uintptr(o.Threads)}}
	if o.Threads == 0 { // the environment's pool
		threads = setting{"share the thread pool", fnDisablePerSessionThreads, nil}
	}
	for _, one := range []setting{
		{"set execution mode", fnSetSessionExecutionMode, []uintptr{executeSequential}},
		{"disable memory pattern", fnDisableMemPattern, nil},
		{"disable memory arena", fnDisableCPUMemArena, nil},
		{"set optimisation level", fnSetSessionGraphOptimizationLevel, []uintptr{uintptr(o.Optimization)}},
		threads,
		{"set number of threads", fnSetInterOpNumThreads, []uintptr{1}},
	} {
		if err := l.check(one.what, native.Call(l.fn[one.fn], append([]uintptr{opts}, one.args...)...)); err != nil {
			return err
		}
	}
	return nil
}

// setting is a call that sets one of the options of a session.
type setting struct {
	what string
	fn   int
	args []uintptr
}

// configEntries returns the configuration entries of a session: those that its options name, and those that follow from
// cores, folder, provider and devices.
func configEntries(folder string, o *SessionOptions) ([][2]string, error) {
	var config [][2]string
	if len(o.Devices) == 0 { // what a call needs lies in the environment's arena, weights do not
		config = [][2]string{{"session.use_env_allocators", "1"}, {"session.use_device_allocator_for_initializers", "1"}}
	}
	config = append(config, o.Config...)
	if len(o.Cores) > 0 {
		if len(o.Cores) != o.Threads-1 {
			return nil, usage("%d cores for the session's own threads, want %d for %d threads", len(o.Cores),
				o.Threads-1, o.Threads)
		}
		b, err := affinity(o.Cores)
		if err != nil {
			return nil, err
		}
		// The calling thread is one of the session's threads and is pinned by the caller; the text ends with a NUL,
		// which the entry adds itself.
		config = append(config, [2]string{"session.intra_op_thread_affinities", string(b[:len(b)-1])})
	}
	if folder != "" {
		config = append(config, [2]string{"session.model_external_initializers_file_folder_path", folder})
	}
	// A provider that does not take all of a graph must fail, not share it with the CPU.
	if o.Provider != "" {
		config = append(config, [2]string{"session.disable_cpu_ep_fallback", "1"})
	}
	if len(o.Devices) > 0 {
		config = append(config, [2]string{recordPlacement, "1"})
	}
	return config, nil
}

// addEntry adds a configuration entry: a key and a value.
func (l *Library) addEntry(opts uintptr, entry [2]string) error {
	key, err := cstring("session configuration key", entry[0])
	if err != nil {
		return err
	}
	value, err := cstring("session configuration value", entry[1])
	if err != nil {
		return err
	}
	return l.check("set "+strconv.Quote(entry[0]),
		native.Call(l.fn[fnAddSessionConfigEntry], opts, uintptr(unsafe.Pointer(&key[0])),
			uintptr(unsafe.Pointer(&value[0]))))
}

// pairs are options as two arrays of strings, which lie in one block that free gives back.
func pairs(options [][2]string) (keys, values uintptr, free func(), err error) {
	var text []byte // all strings; arrays point into it
	var at []int
	for _, kv := range options {
		for _, str := range kv {
			b, err := cstring("execution provider option", str)
			if err != nil {
				return 0, 0, nil, err
			}
			at = append(at, len(text))
			text = append(text, b...)
		}
	}
	text = append(text, 0)
	n := len(options)
	table, free, err := outside(len(text) + 2*n*int(wordBytes))
	if err != nil {
		return 0, 0, nil, err
	}
	copy(table[2*n*int(wordBytes):], text)
	// SAFETY: the block is page-aligned memory outside the Go heap of 2n words and the strings behind them; the
	// words hold addresses in the same block.
	words := unsafe.Slice((*uintptr)(unsafe.Pointer(&table[0])), 2*n)
	base := mem.Address(table)
	for i, offset := range at {
		words[i%2*n+i/2] = base + uintptr(2*n)*wordBytes + uintptr(offset)
	}
	return base, base + uintptr(n)*wordBytes, free, nil
}

// appendProvider appends an execution provider by its name; some providers have functions of their
// own for that.
func (l *Library) appendProvider(opts uintptr, o *SessionOptions) error {
	name, err := cstring("execution provider", o.Provider)
	if err != nil {
		return err
	}
	keys, values, free, err := pairs(o.ProviderOptions)
	if err != nil {
		return err
	}
	defer free()
	count := uintptr(len(o.ProviderOptions))
	what := "append execution provider " + strconv.Quote(o.Provider)
	own, ok := ownProviders[o.Provider]
	if !ok {
		return l.check(what, native.Call(l.fn[fnSessionOptionsAppendExecutionProvider], opts,
			uintptr(unsafe.Pointer(&name[0])), keys, values, count))
	}
	var p out
	if err := l.check(what, native.Call(l.fn[own.create], uintptr(unsafe.Pointer(&p.p)))); err != nil {
		return err
	}
	defer native.Call(l.fn[own.release], p.p)
	if err := l.check(what+": set its options", native.Call(l.fn[own.update], p.p, keys, values, count)); err != nil {
		return err
	}
	return l.check(what, native.Call(l.fn[own.append], opts, p.p))
}

// weightsFolder makes a private folder with an empty file named Weights: the library looks for the file that a model
// names for a weight, and reads nothing of it where an initializer replaces the weight. It is there while a session
// is made. Giving the library the values as its "external initializers" spares the file, and copies all of them.
func weightsFolder() (dir string, remove func(), err error) {
	var errs []error
	for _, in := range []string{os.TempDir(), "/dev/shm", "."} {
		if dir, err = os.MkdirTemp(in, ".hetc-ort-*"); err != nil {
			errs = append(errs, err)
			continue
		}
		if err = os.WriteFile(filepath.Join(dir, Weights), nil, 0o600); err == nil {
			return dir, func() { os.RemoveAll(dir) }, nil
		}
		errs = append(errs, err)
		os.RemoveAll(dir)
	}
	return "", nil, diag.New(diag.ClassIO, "onnx runtime: create an empty file: %w", errors.Join(errs...)).
		WithHint("set TMPDIR to a folder that can be written")
}

// itoa writes a number in decimal.
func itoa(i int64) string { return strconv.FormatInt(i, 10) }

// describe lists the operands of a session.
func (s *Session) describe() error {
	var err error
	if s.Inputs, err = s.list(fnSessionGetInputCount, fnSessionGetInputName, fnSessionGetInputTypeInfo); err != nil {
		return err
	}
	s.Outputs, err = s.list(fnSessionGetOutputCount, fnSessionGetOutputName, fnSessionGetOutputTypeInfo)
	return err
}

// list describes inputs or outputs, given the functions for their number, names and types.
func (s *Session) list(count, name, info int) ([]IO, error) {
	l := s.env.lib
	const what = "describe session"
	var n, allocator out
	if err := l.check(what, native.Call(l.fn[count], s.p, uintptr(unsafe.Pointer(&n.p)))); err != nil {
		return nil, err
	}
	if err := l.check(what, native.Call(l.fn[fnGetAllocatorWithDefaultOptions],
		uintptr(unsafe.Pointer(&allocator.p)))); err != nil {
		return nil, err
	}
	var ios []IO
	for i := range n.p {
		var str, typ out
		if err := l.check(what, native.Call(l.fn[name], s.p, i, allocator.p,
			uintptr(unsafe.Pointer(&str.p)))); err != nil {
			return nil, err
		}
		io := IO{Name: native.String(str.p, longestText)}
		if err := l.check(what, native.Call(l.fn[fnAllocatorFree], allocator.p, str.p)); err != nil {
			return nil, err
		}
		if err := l.check(what, native.Call(l.fn[info], s.p, i, uintptr(unsafe.Pointer(&typ.p)))); err != nil {
			return nil, err
		}
		err := l.shape(typ.p, &io)
		native.Call(l.fn[fnReleaseTypeInfo], typ.p)
		if err != nil {
			return nil, err
		}
		ios = append(ios, io)
	}
	return ios, nil
}

// shape reads type and shape; of what is no tensor they stay zero.
func (l *Library) shape(info uintptr, io *IO) error {
	const what = "describe session"
	var tensor, typ, dims out
	if err := l.check(what, native.Call(l.fn[fnCastTypeInfoToTensorInfo], info,
		uintptr(unsafe.Pointer(&tensor.p)))); err != nil {
		return err
	}
	if tensor.p == 0 {
		return nil
	}
	if err := l.check(what, native.Call(l.fn[fnGetTensorElementType], tensor.p,
		uintptr(unsafe.Pointer(&typ.p)))); err != nil {
		return err
	}
	io.Type = ElementType(int32(typ.p))
	if err := l.check(what, native.Call(l.fn[fnGetDimensionsCount], tensor.p,
		uintptr(unsafe.Pointer(&dims.p)))); err != nil {
		return err
	}
	if dims.p == 0 {
		io.Shape = []int64{}
		return nil
	}
	if dims.p > 1024 {
		return usage("%s: value %q has %d dimensions", what, io.Name, dims.p)
	}
	io.Shape = make([]int64, dims.p)
	return l.check(what, native.Call(l.fn[fnGetDimensions], tensor.p, uintptr(unsafe.Pointer(&io.Shape[0])), dims.p))
}

// Close gives the session and its bindings back.
func (s *Session) Close() error {
	if s.env == nil {
		return nil
	}
	for _, b := range slices.Clone(s.bindings) {
		b.Close()
	}
	if s.p != 0 {
		native.Call(s.env.lib.fn[fnReleaseSession], s.p)
	}
	if s.prepacked != nil {
		s.prepacked.release()
	}
	s.env.release()
	s.env, s.p, s.prepacked, s.values = nil, 0, nil, nil
	return nil
}

// Binding is where a session's inputs and outputs lie.
type Binding struct {
	session *Session
	p       uintptr
	lib     *Library
	run     []uintptr // arguments of Run, prepared
	values  map[string]*Value
}

// NewBinding makes a binding without operands.
func (s *Session) NewBinding() (*Binding, error) {
	if s.p == 0 {
		return nil, usage("make binding: the session is closed")
	}
	l := s.env.lib
	var p out
	if err := l.check("make binding",
		native.Call(l.fn[fnCreateIoBinding], s.p, uintptr(unsafe.Pointer(&p.p)))); err != nil {
		return nil, err
	}
	b := &Binding{session: s, p: p.p, lib: l, run: []uintptr{s.p, 0, p.p}, values: map[string]*Value{}}
	s.bindings = append(s.bindings, b)
	return b, nil
}

// BindInput gives the memory that an input is read from, replacing what was bound before.
func (b *Binding) BindInput(name string, v *Value) error {
	return b.bind(fnBindInput, "input", name, v)
}

// BindOutput gives the memory that an output is written to, replacing what was bound before.
func (b *Binding) BindOutput(name string, v *Value) error {
	return b.bind(fnBindOutput, "output", name, v)
}

// bind binds a value to an input or output, and keeps it alive.
func (b *Binding) bind(fn int, what, name string, v *Value) error {
	if b.p == 0 {
		return usage("bind %s %q: the binding is closed", what, name)
	}
	if v == nil || v.p == 0 {
		return usage("bind %s %q: no value", what, name)
	}
	str, err := cstring(what, name)
	if err != nil {
		return err
	}
	if err := b.lib.check("bind "+what+" "+strconv.Quote(name),
		native.Call(b.lib.fn[fn], b.p, uintptr(unsafe.Pointer(&str[0])), v.p)); err != nil {
		return err
	}
	b.values[what+name] = v
	return nil
}

// Close gives the binding back.
func (b *Binding) Close() error {
	if b.p == 0 {
		return nil
	}
	native.Call(b.lib.fn[fnReleaseIoBinding], b.p)
	s := b.session
	s.bindings = slices.DeleteFunc(s.bindings, func(x *Binding) bool { return x == b })
	b.p, b.session, b.run, b.values = 0, nil, nil, nil
	return nil
}

// Run executes the session on the binding's operands, on the calling thread and the session's own. It
// allocates nothing.
func (s *Session) Run(b *Binding) error {
	if s.p == 0 || b.session != s {
		return usage("run: the binding is closed or of another session")
	}
	if status := native.Call(s.env.lib.fn[fnRunWithBinding], b.run...); status != 0 {
		return s.env.lib.check("run", status)
	}
	return nil
}
