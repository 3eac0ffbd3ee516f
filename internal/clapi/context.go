package clapi

import (
	"fmt"
	"math"
	"strings"
	"unsafe"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/native"
)

// Context owns the buffers, programs and queues of one device.
type Context struct {
	lib    *Library
	device *Device
	id     uintptr
}

// Open makes a context of the device alone.
func (d *Device) Open() (*Context, error) {
	var code int32
	var id uintptr
	native.KeepSignals(func() { // an implementation may load its compiler now
		id = native.Call(d.lib.fn[fnCreateContext], 0, 1, uintptr(unsafe.Pointer(&d.id)), 0, 0,
			uintptr(unsafe.Pointer(&code)))
	})
	if err := check("create context", uintptr(code)); err != nil {
		return nil, err
	}
	return &Context{lib: d.lib, device: d, id: id}, nil
}

// Close releases the context once everything of it is closed.
func (c *Context) Close() error { return release(c.lib, fnReleaseContext, "release context", &c.id) }

// release gives an object back, once.
func release(lib *Library, fn function, what string, id *uintptr) error {
	if *id == 0 {
		return nil
	}
	object := *id
	*id = 0
	return check(what, native.Call(lib.fn[fn], object))
}

// Buffer is memory of a context.
type Buffer struct {
	lib *Library
	id  uintptr
}

// NewBuffer makes a buffer of that many bytes, at least one. host is the caller's memory with flag UseHost, which must
// lie outside the Go heap and outlive the buffer; nil otherwise.
func (c *Context) NewBuffer(flags uintptr, bytes int64, host []byte) (*Buffer, error) {
	if bytes < 1 || host != nil && int64(len(host)) < bytes {
		return nil, diag.New(diag.ClassInput, "opencl: create buffer of %d bytes over %d bytes of the host", bytes,
			len(host))
	}
	var code int32
	id := native.Call(c.lib.fn[fnCreateBuffer], c.id, flags, uintptr(bytes), mem.Address(host),
		uintptr(unsafe.Pointer(&code)))
	if err := check(fmt.Sprintf("create buffer of %d bytes", bytes), uintptr(code)); err != nil {
		return nil, err
	}
	return &Buffer{c.lib, id}, nil
}

// NewImage makes an image of words of 32 bits over a buffer, for kernels to read. It is an argument like a buffer.
func (c *Context) NewImage(over *Buffer, words int64) (*Buffer, error) {
	if words < 1 {
		return nil, diag.New(diag.ClassInput, "opencl: create image of %d words", words)
	}
	format := [2]uint32{channelR, channelUint32}
	// A description is its type, width, height, depth, number of images, pitches, two numbers of 32 bits, and the
	// buffer.
	description := [9]uintptr{imageOverBuffer, uintptr(words), 0, 0, 0, 0, 0, 0, over.id}
	var code int32
	id := native.Call(c.lib.fn[fnCreateImage], c.id, ReadOnly, uintptr(unsafe.Pointer(&format[0])),
		uintptr(unsafe.Pointer(&description[0])), 0, uintptr(unsafe.Pointer(&code)))
	if err := check("create image", uintptr(code)); err != nil {
		return nil, err
	}
	return &Buffer{c.lib, id}, nil
}

// Close gives the buffer back once the commands that use it are done.
func (b *Buffer) Close() error { return release(b.lib, fnReleaseMemObject, "release buffer", &b.id) }

// Program is a built program.
type Program struct {
	context *Context
	id      uintptr
}

// Build compiles source for the device. The error of a program that the compiler refuses is a *BuildError.
func (c *Context) Build(source, options string) (*Program, error) {
	if source == "" || strings.ContainsRune(source, 0) {
		return nil, diag.New(diag.ClassInput, "opencl: the source of a program is empty or has a NUL byte")
	}
	text := []byte(source)
	// C gets a pointer to a pointer, so the inner one must not be on a stack that moves.
	pointers, err := outside(16)
	if err != nil {
		return nil, err
	}
	defer pointers.Close()
	lines := pointers.Bytes()
	copied, err := outside(len(text))
	if err != nil {
		return nil, err
	}
	defer copied.Close()
	holder := copied.Bytes()
	copy(holder, text)
	words := unsafe.Slice((*uintptr)(unsafe.Pointer(&lines[0])), 2) // SAFETY: 16 aligned bytes are two words
	words[0], words[1] = mem.Address(holder), uintptr(len(text))
	var code int32
	id := native.Call(c.lib.fn[fnCreateProgramWithSource], c.id, 1, mem.Address(lines), mem.Address(lines)+wordBytes,
		uintptr(unsafe.Pointer(&code)))
	if err := check("create program", uintptr(code)); err != nil {
		return nil, err
	}
	return c.build(id, options)
}

// BuildBinary takes a program that Binary gave, of the same device and driver.
func (c *Context) BuildBinary(binary []byte, options string) (*Program, error) {
	if len(binary) == 0 {
		return nil, diag.New(diag.ClassInput, "opencl: the binary of a program is empty")
	}
	copied, err := outside(len(binary))
	if err != nil {
		return nil, err
	}
	defer copied.Close()
	holder := copied.Bytes()
	copy(holder, binary)
	pointers, err := outside(16)
	if err != nil {
		return nil, err
	}
	defer pointers.Close()
	lines := pointers.Bytes()
	words := unsafe.Slice((*uintptr)(unsafe.Pointer(&lines[0])), 2) // SAFETY: 16 aligned bytes are two words
	words[0], words[1] = mem.Address(holder), uintptr(len(binary))
	var code, status int32
	id := native.Call(c.lib.fn[fnCreateProgramWithBinary], c.id, 1, uintptr(unsafe.Pointer(&c.device.id)),
		mem.Address(lines)+wordBytes, mem.Address(lines), uintptr(unsafe.Pointer(&status)),
		uintptr(unsafe.Pointer(&code)))
	if err := check("create program from binary", uintptr(code)); err != nil {
		return nil, err
	}
	return c.build(id, options)
}

// build builds a created program, and releases it where that fails.
func (c *Context) build(id uintptr, options string) (*Program, error) {
	program := &Program{c, id}
	text, ok := native.CString(options)
	if !ok {
		_ = program.Close()
		return nil, diag.New(diag.ClassInput, "opencl: build options %q have a NUL byte", options)
	}
	var code uintptr
	native.KeepSignals(func() {
		code = native.Call(c.lib.fn[fnBuildProgram], id, 1, uintptr(unsafe.Pointer(&c.device.id)),
			uintptr(unsafe.Pointer(&text[0])), 0, 0)
	})
	if int32(code) == 0 {
		return program, nil
	}
	log := program.log()
	if err := program.Close(); err != nil {
		return nil, err
	}
	return nil, &BuildError{Code: int32(code), Log: log}
}

// log returns the beginning of the compiler's log, its lines separated by "; ".
func (p *Program) log() string {
	const lines, longest = 6, 1 << 12
	var size uintptr
	get := p.context.lib.fn[fnGetProgramBuildInfo]
	if code := native.Call(get, p.id, p.context.device.id, programBuildLog, 0, 0,
		uintptr(unsafe.Pointer(&size))); int32(code) != 0 || size == 0 || size > 1<<24 {
		return "the compiler has no log"
	}
	data := make([]byte, size)
	if code := native.Call(get, p.id, p.context.device.id, programBuildLog, size, uintptr(unsafe.Pointer(&data[0])),
		0); int32(code) != 0 {
		return "the compiler has no log"
	}
	text, _, _ := strings.Cut(string(data), "\x00")
	var first []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && len(first) < lines {
			first = append(first, line)
		}
	}
	text = strings.Join(first, "; ")
	return text[:min(len(text), longest)]
}

// Binary returns the program as the device's compiler made it.
func (p *Program) Binary() ([]byte, error) {
	var size uintptr
	get := p.context.lib.fn[fnGetProgramInfo]
	code := native.Call(get, p.id, programBinarySizes, wordBytes, uintptr(unsafe.Pointer(&size)), 0)
	if err := check("measure program's binary", code); err != nil {
		return nil, err
	}
	if size == 0 || size > 1<<30 {
		return nil, diag.New(diag.ClassRun, "opencl: the binary of a program has %d bytes, want 1..%d", size, 1<<30)
	}
	copied, err := outside(int(size))
	if err != nil {
		return nil, err
	}
	defer copied.Close()
	holder := copied.Bytes()
	pointer := [1]uintptr{mem.Address(holder)}
	code = native.Call(get, p.id, programBinaries, wordBytes, uintptr(unsafe.Pointer(&pointer[0])), 0)
	if err := check("read program's binary", code); err != nil {
		return nil, err
	}
	return append([]byte(nil), holder...), nil
}

// Close releases the program once its kernels are closed.
func (p *Program) Close() error {
	return release(p.context.lib, fnReleaseProgram, "release program", &p.id)
}

// Kernel is a function of a program with the arguments of its next launch.
type Kernel struct {
	program *Program
	name    string
	id      uintptr
}

// Kernel makes a kernel of the program's function of that name.
func (p *Program) Kernel(name string) (*Kernel, error) {
	text, ok := native.CString(name)
	if !ok {
		return nil, diag.New(diag.ClassInput, "opencl: kernel name %q has a NUL byte", name)
	}
	var code int32
	id := native.Call(p.context.lib.fn[fnCreateKernel], p.id, uintptr(unsafe.Pointer(&text[0])),
		uintptr(unsafe.Pointer(&code)))
	if err := check("create kernel "+name, uintptr(code)); err != nil {
		return nil, err
	}
	return &Kernel{p, name, id}, nil
}

// Close releases the kernel once its launches are done.
func (k *Kernel) Close() error {
	return release(k.program.context.lib, fnReleaseKernel, "release kernel", &k.id)
}

// Arguments returns how many arguments the function takes.
func (k *Kernel) Arguments() (int, error) {
	var count uint32
	code := native.Call(k.program.context.lib.fn[fnGetKernelInfo], k.id, kernelArguments, unsafe.Sizeof(count),
		uintptr(unsafe.Pointer(&count)), 0)
	return int(count), check("describe kernel "+k.name, code)
}

// WorkGroup returns the number of items of the largest work group that the device launches the kernel with. It may be
// less than the device's own, where each item needs much.
func (k *Kernel) WorkGroup() (int, error) {
	var largest uintptr
	code := native.Call(k.program.context.lib.fn[fnGetKernelWorkGroupInfo], k.id, k.program.context.device.id,
		kernelWorkGroup, wordBytes, uintptr(unsafe.Pointer(&largest)), 0)
	return int(min(largest, math.MaxInt32)), check("describe kernel "+k.name, code)
}

// outside is zeroed memory outside the Go heap, which C may be given pointers into.
func outside(bytes int) (*mem.Region, error) { return mem.Alloc(bytes, 64) }

const wordBytes = unsafe.Sizeof(uintptr(0))
