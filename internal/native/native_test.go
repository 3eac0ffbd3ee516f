//go:build linux || darwin

package native

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"
)

// compiled is a library of testdata/calls.c.
func compiled(t *testing.T) string {
	t.Helper()
	if err := Supported(); err != nil {
		t.Skip(err)
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("the library for tests needs a C compiler: %v", err)
	}
	path := filepath.Join(t.TempDir(), FileNames("calls")[0])
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-o", path, "testdata/calls.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

func function(t *testing.T, l *Library, name string) uintptr {
	t.Helper()
	fn, err := l.Symbol(name)
	if err != nil {
		t.Fatal(err)
	}
	return fn
}

// result is an out-parameter on the Go heap.
type result struct{ v uint64 }

func TestCall(t *testing.T) {
	l, err := Open(compiled(t))
	if err != nil {
		t.Fatal(err)
	}
	add9 := function(t, l, "add9")
	if got := Call(add9, 1, 2, 3, 4, 5, 6, 7, 8, 9); got != 285 {
		t.Errorf("nine arguments: %d", got)
	}
	args := []uintptr{1, 2, 3, 4, 5, 6, 7, 8, 9}
	if n := testing.AllocsPerRun(100, func() { Call(add9, args...) }); n != 0 {
		t.Errorf("%v allocations per call", n)
	}
	if got := int64(Call(function(t, l, "negative"))); got != -7 {
		t.Errorf("a negative result: %d", got)
	}
	var r result
	Call(function(t, l, "fill"), uintptr(unsafe.Pointer(&r.v)), 0x123456789abcdef0)
	if r.v != 0x123456789abcdef0 {
		t.Errorf("out-parameter: %#x", r.v)
	}
	greeting := Call(function(t, l, "greeting"))
	for longest, want := range map[int]string{100: "hello from C", 5: "hello", 0: ""} {
		if got := String(greeting, longest); got != want {
			t.Errorf("string of at most %d bytes: %q", longest, got)
		}
	}
	if got := String(Call(function(t, l, "nothing")), 100); got != "" {
		t.Errorf("no string: %q", got)
	}
	s, ok := CString("five!")
	if got := Call(function(t, l, "length"), uintptr(unsafe.Pointer(&s[0]))); !ok || got != 5 {
		t.Errorf("length %d", got)
	}
	for _, f := range []func(string) ([]byte, bool){CString, Path} {
		if _, ok := f("a\x00b"); ok {
			t.Error("a NUL byte went through")
		}
	}
	table := Call(function(t, l, "get_table"))
	if got := Call(Word(table, 0), args...); got != 285 || Word(table, 2) != 0 {
		t.Errorf("function of a table: %d", got)
	}
}

// One callback serves all calls: what it is about arrives as its argument. Threads call it at the same time.
func TestCallback(t *testing.T) {
	l, err := Open(compiled(t))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	seen := map[uintptr]uintptr{}
	f := Callback(func(i, user uintptr) uintptr {
		mu.Lock()
		defer mu.Unlock()
		seen[user] += i
		return user
	})
	call := function(t, l, "call_back")
	var all sync.WaitGroup
	for user := range uintptr(4) {
		all.Go(func() {
			if got := Call(call, f, 100, user+1); got != 100*(user+1) {
				t.Errorf("user %d: sum %d", user+1, got)
			}
		})
	}
	all.Wait()
	for user := range uintptr(4) {
		if seen[user+1] != 4950 {
			t.Errorf("user %d saw %d", user+1, seen[user+1])
		}
	}
}

// Out-parameters stay where they are while stacks grow and the garbage collector runs.
func TestOutParametersStay(t *testing.T) {
	l, err := Open(compiled(t))
	if err != nil {
		t.Fatal(err)
	}
	wait := function(t, l, "wait_and_fill")
	var all sync.WaitGroup
	for g := range uint64(8) {
		all.Go(func() {
			for i := range uint64(200) {
				var r result
				Call(wait, uintptr(unsafe.Pointer(&r.v)), uintptr(g*1000+i), 20000)
				if r.v != g*1000+i {
					t.Errorf("got %d, want %d", r.v, g*1000+i)
					return
				}
			}
		})
	}
	for range 20 {
		runtime.GC()
	}
	all.Wait()
}

func TestOpenRefuses(t *testing.T) {
	good := compiled(t)
	whole, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, c := range map[string]struct {
		path string
		want Problem
	}{
		"empty path":     {"", Absent},
		"NUL":            {"a\x00b", Absent},
		"absent":         {filepath.Join(dir, "gone"), Absent},
		"below a file":   {filepath.Join(good, "x"), Unreadable},
		"unknown name":   {"libnothing-of-that-name.so", Absent},
		"folder":         {dir, Broken},
		"empty":          {write("empty", nil), Broken},
		"text":           {write("text", []byte("no library")), Broken},
		"program":        {mustSelf(t), Broken},
		"magic alone":    {write("magic", whole[:4]), Broken},
		"dangling":       {link(t, filepath.Join(dir, "nowhere"), filepath.Join(dir, "dangling")), Absent},
		"link to itself": {link(t, filepath.Join(dir, "loop"), filepath.Join(dir, "loop")), Unreadable},
		"device":         {"/dev/null", Broken},
	} {
		if name == "program" && runtime.GOOS != "linux" {
			continue
		}
		t.Run(name, func(t *testing.T) { refused(t, c.path, c.want) })
	}
	if os.Getuid() != 0 {
		path := write("secret", whole)
		if err := os.Chmod(path, 0); err != nil {
			t.Fatal(err)
		}
		refused(t, path, Unreadable)
	}
	l, err := Open(good)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "no_such_function", "add\x009"} {
		fn, err := l.Symbol(name)
		var e *Error
		if fn != 0 || !errors.As(err, &e) || e.Problem != MissingSymbol || !strings.Contains(err.Error(), good) {
			t.Errorf("symbol %q: %v", name, err)
		}
	}
}

func mustSelf(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return self
}

func link(t *testing.T, to, path string) string {
	t.Helper()
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func refused(t *testing.T, path string, want Problem) {
	t.Helper()
	l, err := Open(path)
	var e *Error
	if l != nil || !errors.As(err, &e) || e.Problem != want || strings.Contains(err.Error(), "\n") || e.Path != path {
		t.Errorf("open %q: got %v, want %v", path, err, want)
	}
}

// A library cut at any place is refused before the loader maps it, which would crash the process.
func TestOpenTruncated(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the system's loader refuses truncated libraries by itself")
	}
	good := compiled(t)
	whole, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "cut.so")
	for cut := 0; cut < len(whole); cut += 1 + cut/7 {
		if err := os.WriteFile(path, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		if l, err := Open(path); err == nil {
			// What is cut off behind the last segment (names for debuggers) is not missed.
			if fn := function(t, l, "negative"); int64(Call(fn)) != -7 {
				t.Errorf("cut to %d of %d bytes: opened, and is another library", cut, len(whole))
			}
			break
		}
	}
}

// The first place that has the library wins, and what was looked at is told in order.
func TestFind(t *testing.T) {
	good := compiled(t)
	whole, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	t.Chdir(root)
	put := func(path string, b []byte) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	name := FileNames("calls")[0]
	s := Search{Folder: "calls", Names: FileNames("calls"), System: []string{"libhetc-test-nothing.so"}}
	t.Setenv(EnvDir, "")
	playProgram(t, filepath.Join(root, "bin", "hetc"))
	nothing := []string{filepath.Join(root, "bin", "calls"), filepath.Join(root, "bin"), "libhetc-test-nothing.so (system)"}
	if l, tried, err := Find(s); l != nil || err == nil || !slices.Equal(tried, nothing) {
		t.Errorf("nothing anywhere: %v, tried %q", err, tried)
	}
	want := func(what, path string, n int) {
		t.Helper()
		l, tried, err := Find(s)
		if err != nil || l.Path != filepath.Join(root, path) || len(tried) != n {
			t.Errorf("%s: %+v, %v, tried %q", what, l, err, tried)
		}
	}
	put(".deps/calls/"+name, whole)
	if l, tried, err := Find(s); l != nil || err == nil || !slices.Equal(tried, nothing) {
		t.Errorf("the current directory: %v, %v, tried %q", l, err, tried)
	}
	put("go.mod", []byte("module example.com/other\n"))
	if l, _, _ := Find(s); l != nil {
		t.Error("a library in the .deps of another module was opened")
	}
	put("go.mod", []byte("module github.com/hetc/hetc\n\ngo 1.25\n"))
	want("the checkout of the program", ".deps/calls/"+name, 3)
	put("bin/"+name, whole)
	want("beside the program", "bin/"+name, 2)
	put("bin/calls/"+name, whole)
	want("the library's own folder beside the program", "bin/calls/"+name, 1)
	t.Setenv(EnvDir, filepath.Join(root, "mine"))
	want("folder that is not there", "bin/calls/"+name, 3)
	put("mine/"+name, whole)
	want("the folder itself", "mine/"+name, 2)
	put("mine/calls/"+name, whole)
	want("the library's own folder", "mine/calls/"+name, 1)

	// A relative folder and names of versions: the last one in order.
	t.Setenv(EnvDir, "versions")
	pattern := FileNames("calls")[1]
	put("versions/"+strings.ReplaceAll(pattern, "*", "1.2"), []byte("no library"))
	put("versions/"+strings.ReplaceAll(pattern, "*", "1.3"), whole)
	want("the newest", "versions/"+strings.ReplaceAll(pattern, "*", "1.3"), 2)

	// What is found first and does not open is the error: nothing else is taken in its place.
	t.Setenv(EnvDir, "broken")
	put("broken/"+name, []byte("no library"))
	var e *Error
	if _, tried, err := Find(s); !errors.As(err, &e) || e.Problem != Broken || !slices.Equal(tried, []string{"broken/calls", "broken"}) {
		t.Errorf("broken: %v, tried %q", err, tried)
	}
	t.Setenv(EnvDir, filepath.Join(root, "broken", name))
	if _, _, err := Find(s); !errors.As(err, &e) || e.Problem != NoFolder || !strings.Contains(err.Error(), EnvDir) {
		t.Errorf("a file as folder: %v", err)
	}

	if os.Getuid() != 0 {
		t.Setenv(EnvDir, "secret")
		if err := os.Mkdir("secret", 0o100); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Find(s); !errors.As(err, &e) || e.Problem != NoFolder {
			t.Errorf("a folder that cannot be read: %v", err)
		}
	}

	// A file that the user names is the only one.
	s.File = "gone.so"
	if _, tried, err := Find(s); !errors.As(err, &e) || e.Problem != Absent || !slices.Equal(tried, []string{"gone.so"}) {
		t.Errorf("named file: %v, tried %q", err, tried)
	}
	put(name, whole)
	s.File = name // beside the current folder, not in the system
	if l, _, err := Find(s); err != nil || l == nil {
		t.Errorf("named file: %v", err)
	}
}

// Libraries of the system are found by their names alone.
func TestFindSystem(t *testing.T) {
	compiled(t)
	t.Setenv(EnvDir, "")
	s := Search{Folder: "system", Names: []string{"nothing"}, System: []string{"libnothing-of-that-name.so", "libc.so.6", "libSystem.B.dylib"}}
	l, _, err := Find(s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Symbol("strlen"); err != nil {
		t.Error(err)
	}
}
