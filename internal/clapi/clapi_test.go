package clapi

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/require"
)

const square = `
__kernel void square(__global const int *x, __global int *y, int plus, long far) {
	int i = get_global_id(0);
	y[i] = x[i] * x[i] + plus + (int)(far >> 32);
}`

// open opens the first device, with a queue.
func open(t *testing.T) (*Context, *Queue) {
	t.Helper()
	require.Deps()
	lib, err := Find("")
	if err != nil {
		require.Skip(t, "opencl", err)
	}
	platforms, err := lib.Platforms()
	if err != nil {
		t.Fatal(err)
	}
	var devices []*Device
	for _, platform := range platforms {
		devices = append(devices, platform.Devices...)
	}
	if len(devices) == 0 {
		require.Skip(t, "opencl", errors.New("the OpenCL library knows no device"))
	}
	context, err := devices[0].Open()
	if err != nil {
		t.Fatal(err)
	}
	queue, err := context.NewQueue()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 { // closing twice does nothing
			if err := errors.Join(queue.Close(), context.Close()); err != nil {
				t.Error(err)
			}
		}
	})
	return context, queue
}

// A kernel computes on buffers that were written, from source and from the binary that was made of it.
func TestKernel(t *testing.T) {
	context, queue := open(t)
	built, err := context.Build(square, "")
	if err != nil {
		t.Fatal(err)
	}
	binary, err := built.Binary()
	if err != nil {
		t.Fatal(err)
	}
	again, err := context.BuildBinary(binary, "")
	if err != nil {
		t.Fatal(err)
	}
	region, err := mem.Alloc(2*256, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	from, to := region.Bytes()[:256], region.Bytes()[256:]
	values, err := mem.View[int32](region.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	var buffers [2]*Buffer
	for i := range buffers {
		if buffers[i], err = context.NewBuffer(ReadWrite, 256, nil); err != nil {
			t.Fatal(err)
		}
		defer buffers[i].Close()
	}
	for _, program := range []*Program{built, again} {
		kernel, err := program.Kernel("square")
		if err != nil {
			t.Fatal(err)
		}
		for i := range 64 {
			values[i], values[64+i] = int32(i), -1
		}
		err = errors.Join(queue.Write(buffers[0], 0, from, false), queue.SetBuffer(kernel, 0, buffers[0]),
			queue.SetBuffer(kernel, 1, buffers[1]), queue.SetInt(kernel, 2, 7), queue.SetLong(kernel, 3, 5<<32))
		if err != nil {
			t.Fatal(err)
		}
		event, err := queue.Launch(kernel, [3]int{64, 1, 1}, [3]int{}, true)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(queue.Flush(), queue.Wait(event)); err != nil {
			t.Fatal(err)
		}
		if status, err := queue.Status(event); status != Complete || err != nil {
			t.Errorf("got status %d (%v) of an event that was waited for", status, err)
		}
		if count, err := kernel.Arguments(); count != 4 || err != nil {
			t.Errorf("got %d arguments (%v), want 4", count, err)
		}
		if largest, err := kernel.WorkGroup(); largest < 1 || err != nil {
			t.Errorf("got work groups of %d items (%v), want some", largest, err)
		}
		if err := errors.Join(queue.Release(event), queue.Read(buffers[1], 0, to, true)); err != nil {
			t.Fatal(err)
		}
		for i := range int32(64) {
			if got := values[64+i]; got != i*i+12 {
				t.Fatalf("element %d: got %d, want %d", i, got, i*i+12)
			}
		}
		if allocations := testing.AllocsPerRun(50, func() {
			if err := queue.SetInt(kernel, 2, 7); err != nil {
				t.Fatal(err)
			}
			event, err := queue.Launch(kernel, [3]int{64, 1, 1}, [3]int{}, true)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(queue.Wait(event), queue.Release(event)); err != nil {
				t.Fatal(err)
			}
		}); allocations > 0 {
			t.Errorf("a launch allocates %v times", allocations)
		}
		if err := errors.Join(kernel.Close(), kernel.Close(), program.Close()); err != nil {
			t.Error(err)
		}
	}
}

// Rows of a rectangle are copied, and nothing beside them.
func TestCopy(t *testing.T) {
	context, queue := open(t)
	region, err := mem.Alloc(1024, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	buffer, err := context.NewBuffer(ReadWrite, 1024, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer buffer.Close()
	host := region.Bytes()
	for i := range host {
		host[i] = 1
	}
	if err := queue.Write(buffer, 0, host, true); err != nil {
		t.Fatal(err)
	}
	// Seven rows of 20 bytes, 100 apart, from byte 236 on: a row of the pitch and 36 bytes.
	for i := range host {
		host[i] = 2
	}
	rect := Rect{Offset: 236, Rows: 7, Width: 20, Pitch: 100, Host: host[236 : 236+620], ToDevice: true, Blocking: true}
	if err := queue.Copy(buffer, rect); err != nil {
		t.Fatal(err)
	}
	clear(host)
	if err := queue.Read(buffer, 0, host, true); err != nil {
		t.Fatal(err)
	}
	inside := func(i int) bool { return i >= 236 && (i-236)/100 < 7 && (i-236)%100 < 20 }
	for i, got := range host {
		if want := map[bool]byte{true: 2, false: 1}[inside(i)]; got != want {
			t.Fatalf("byte %d: got %d, want %d", i, got, want)
		}
	}
	clear(host)
	rect.ToDevice = false
	if err := queue.Copy(buffer, rect); err != nil {
		t.Fatal(err)
	}
	for i, got := range host {
		if want := map[bool]byte{true: 2, false: 0}[inside(i)]; got != want {
			t.Fatalf("byte %d read back: got %d, want %d", i, got, want)
		}
	}
	mapped, err := queue.Map(buffer, 1024)
	if err != nil {
		t.Fatal(err)
	}
	if mapped[236] != 2 || mapped[235] != 1 {
		t.Errorf("got %d and %d in mapped memory, want 2 and 1", mapped[236], mapped[235])
	}
	if err := errors.Join(queue.Unmap(buffer, mapped), queue.Finish()); err != nil {
		t.Error(err)
	}
}

// What does not compile is refused with the compiler's words, what does not exist by its name, and nonsense before the
// library sees it.
func TestRefused(t *testing.T) {
	context, _ := open(t)
	_, err := context.Build("__kernel void f(__global int *x) { x[0] = nowhere; }", "")
	if failure, ok := errors.AsType[*BuildError](err); !ok || !strings.Contains(failure.Log, "nowhere") {
		t.Errorf("got %v, want a build error that quotes the log", err)
	}
	program, err := context.Build(square, "")
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	if _, err := program.Kernel("cube"); err == nil || !strings.Contains(err.Error(), "cube") {
		t.Errorf("got %v for a kernel that is not there", err)
	}
	if _, err := context.NewBuffer(ReadWrite, 1<<50, nil); diag.ClassOf(err) != diag.ClassRun ||
		!strings.Contains(err.Error(), "memory") {
		t.Errorf("got %v for a petabyte, want an error of the library with a hint", err)
	}
	for name, call := range map[string]func() error{
		"an empty source":  func() error { _, err := context.Build("", ""); return err },
		"a NUL byte":       func() error { _, err := context.Build("a\x00b", ""); return err },
		"an empty binary":  func() error { _, err := context.BuildBinary(nil, ""); return err },
		"noise":            func() error { _, err := context.BuildBinary([]byte("no program"), ""); return err },
		"an empty buffer":  func() error { _, err := context.NewBuffer(ReadWrite, 0, nil); return err },
		"too little there": func() error { _, err := context.NewBuffer(UseHost, 8, make([]byte, 4)); return err },
	} {
		if call() == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

// Files that are no OpenCL are told apart, and have the class of what is not available.
func TestLibraries(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.so")
	if err := os.WriteFile(text, []byte("no library"), 0o644); err != nil {
		t.Fatal(err)
	}
	cases := map[string]string{filepath.Join(dir, "none.so"): "not there", text: "is not a shared library", dir: "folder"}
	if runtime.GOOS == "linux" && runtime.GOARCH == "amd64" {
		if math := "/lib/x86_64-linux-gnu/libm.so.6"; fileThere(math) {
			cases[math] = `has no function "clGetPlatformIDs"`
		}
	}
	for file, want := range cases {
		_, err := Find(file)
		if diag.ClassOf(err) != diag.ClassUnavailable || !strings.Contains(err.Error(), want) {
			t.Errorf("library %q: got %v, want one with %q", file, err, want)
		}
	}
}

// fileThere reports whether a file exists.
func fileThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Every function has a name, and errors have the names of OpenCL's header.
func TestTables(t *testing.T) {
	for i, name := range symbols {
		if !strings.HasPrefix(name, "cl") {
			t.Errorf("function %d has the name %q", i, name)
		}
	}
	for _, c := range []struct {
		code int32
		want string
		lost bool
	}{{-5, "OUT_OF_RESOURCES (-5): the device has too little memory", false}, {-36, "INVALID_COMMAND_QUEUE", true},
		{-9999, "error (-9999)", false}} {
		err := &Error{What: "launch", Code: c.code}
		if !strings.Contains(err.Error(), c.want) || err.Lost() != c.lost {
			t.Errorf("code %d: got %q, lost %v", c.code, err, err.Lost())
		}
	}
}
