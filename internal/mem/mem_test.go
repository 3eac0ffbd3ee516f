package mem

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
)

func TestAllocIsAlignedZeroedAndExact(t *testing.T) {
	for _, n := range []int{0, 1, 63, 64, 4095, 4096, 4097, 1 << 20} {
		for _, align := range []int{1, 2, 64, 4096, 1 << 16, 1 << 21} {
			r, err := Alloc(n, align)
			if err != nil {
				t.Fatalf("Alloc(%d, %d): %v", n, align, err)
			}
			b := r.Bytes()
			if len(b) != n || cap(b) != n {
				t.Fatalf("Alloc(%d, %d): len %d cap %d", n, align, len(b), cap(b))
			}
			if !Aligned(b, align) {
				t.Fatalf("Alloc(%d, %d): address %#x", n, align, Address(b))
			}
			for i := range b {
				if b[i] != 0 {
					t.Fatalf("Alloc(%d, %d): byte %d is %d", n, align, i, b[i])
				}
				b[i] = 0xff
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			if r.Bytes() != nil {
				t.Fatal("Bytes after Close is not nil")
			}
			if err := r.Close(); err != nil {
				t.Fatalf("second Close: %v", err)
			}
		}
	}
}

func TestBadArgumentsAreErrors(t *testing.T) {
	cases := map[string]func() error{
		"negative size":    func() error { _, err := Alloc(-1, 64); return err },
		"huge size":        func() error { _, err := Alloc(math.MaxInt, 64); return err },
		"align zero":       func() error { _, err := Alloc(8, 0); return err },
		"align negative":   func() error { _, err := Alloc(8, -64); return err },
		"align 3":          func() error { _, err := Alloc(8, 3); return err },
		"align huge":       func() error { a := maxAlign; a *= 2; _, err := Alloc(8, a); return err },
		"guarded negative": func() error { _, err := Guarded(-1); return err },
		"guarded huge":     func() error { _, err := Guarded(math.MaxInt); return err },
		"view length":      func() error { _, err := View[float32](make([]byte, 7)); return err },
		"map a directory": func() error {
			d, err := os.Open(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			_, err = Map(d)
			return err
		},
	}
	for name, f := range cases {
		if err := f(); diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v, want an error of ClassInput", name, err)
		}
	}
}

func TestMapShowsTheFileAndOutlivesIt(t *testing.T) {
	want := bytes.Repeat([]byte("hetc memory "), 10000)
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Map(f)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if !bytes.Equal(r.Bytes(), want) {
		t.Fatal("mapping differs from the file")
	}
	if !Aligned(r.Bytes(), 4096) {
		t.Fatalf("mapping at %#x is not page aligned", Address(r.Bytes()))
	}
	if err := r.Advise(1, len(want)-2, HugePages); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(r.Bytes(), want) {
		t.Fatal("contents lost by advice")
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestMapEmptyFile(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "empty"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := Map(f)
	if err != nil || len(r.Bytes()) != 0 {
		t.Fatalf("got %v, %v", r, err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestAdviseChecksItsRange(t *testing.T) {
	r, err := Alloc(1<<16, 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, c := range [][2]int{{-1, 1}, {0, 1<<16 + 1}, {1 << 16, 1}, {1, math.MaxInt}, {0, -1}} {
		if err := r.Advise(c[0], c[1], HugePages); err == nil {
			t.Errorf("Advise(%d, %d) accepted", c[0], c[1])
		}
	}
	r.Bytes()[5] = 7
	if err := r.Advise(0, 1<<16, HugePages); err != nil {
		t.Error(err)
	}
	if r.Bytes()[5] != 7 {
		t.Error("contents lost")
	}
	if err := r.Advise(0, 1, Advice(99)); err == nil {
		t.Error("unknown advice accepted")
	}
}

func guardedOrSkip(t *testing.T, n int) *Region {
	r, err := Guarded(n)
	if diag.ClassOf(err) == diag.ClassUnavailable {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var sink byte

func TestGuardedFaultsAtItsEnd(t *testing.T) {
	for _, n := range []int{0, 1, 100, 4096, 4097} {
		r := guardedOrSkip(t, n)
		b := r.Bytes()
		if len(b) != n {
			t.Fatalf("len %d, want %d", len(b), n)
		}
		for i := range b {
			b[i] = byte(i)
		}
		whole := r.whole
		end := int(Address(whole[len(whole)-1:])) + 1 - os.Getpagesize() - int(Address(whole))
		if n > 0 && &whole[end-1] != &b[n-1] {
			t.Fatal("the memory does not end at the guard page")
		}
		err := CatchFault(func() { sink = whole[end] })
		if diag.ClassOf(err) != diag.ClassIO {
			t.Fatalf("read behind the end: got %v, want a fault", err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestGuardedFaultsBeforeItsStart(t *testing.T) {
	guardedOrSkip(t, 1).Close()
	for _, n := range []int{0, 1, 4096, 4097} {
		r, err := GuardedBefore(n)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Bytes()) != n {
			t.Fatalf("len %d, want %d", len(r.Bytes()), n)
		}
		for i := range r.Bytes() {
			r.Bytes()[i] = byte(i)
		}
		page := os.Getpagesize()
		if n > 0 && &r.Bytes()[0] != &r.whole[page] {
			t.Fatal("the memory does not start behind the guard page")
		}
		if err := CatchFault(func() { sink = r.whole[page-1] }); diag.ClassOf(err) != diag.ClassIO {
			t.Fatalf("read before the start: got %v, want a fault", err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCatchFaultOnTruncatedMapping(t *testing.T) {
	guardedOrSkip(t, 1).Close() // only where Map really maps
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	r, err := Map(f)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := CatchFault(func() { sink = r.Bytes()[1<<19] }); err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if err := CatchFault(func() { sink = r.Bytes()[1<<19] }); diag.ClassOf(err) != diag.ClassIO {
		t.Fatalf("got %v, want a fault", err)
	}
}

// A fault outside mapped files and guard pages is a defect: no file is blamed for it.
func TestCatchFaultPassesOtherFaults(t *testing.T) {
	r, err := GuardedBefore(1)
	if diag.ClassOf(err) == diag.ClassUnavailable {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	forget(r) // so that its guard page is any address
	defer func() {
		if p, ok := recover().(interface{ Addr() uintptr }); !ok || p.Addr() != Address(r.whole) {
			t.Errorf("recovered %v, want the fault", p)
		}
	}()
	err = CatchFault(func() { sink = r.whole[0] })
	t.Errorf("got %v, want a panic", err)
}

func TestCatchFaultPassesOtherPanics(t *testing.T) {
	cause := errors.New("other")
	defer func() {
		if p := recover(); p != cause {
			t.Fatalf("recovered %v", p)
		}
	}()
	_ = CatchFault(func() { panic(cause) })
	t.Fatal("not reached")
}

// checkView compares View and Bytes with encoding/binary for one element type.
func checkView[T Scalar](t *rapid.T, size int) {
	n := rapid.IntRange(0, 100).Draw(t, "n")
	raw, err := Alloc(n*size, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	copy(raw.Bytes(), rapid.SliceOfN(rapid.Byte(), n*size, n*size).Draw(t, "bytes"))
	v, err := View[T](raw.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if len(v) != n {
		t.Fatalf("%d elements, want %d", len(v), n)
	}
	var want bytes.Buffer
	if err := binary.Write(&want, binary.NativeEndian, v); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want.Bytes(), raw.Bytes()) {
		t.Fatal("view reads other values than encoding/binary")
	}
	if back := Bytes(v); !bytes.Equal(back, raw.Bytes()) || Address(back) != Address(raw.Bytes()) {
		t.Fatal("Bytes(View(b)) is not b")
	}
	if size > 1 && n > 1 {
		if _, err := View[T](raw.Bytes()[1 : 1+size]); err == nil {
			t.Fatal("misaligned view accepted")
		}
		if _, err := View[T](raw.Bytes()[:size+1]); err == nil {
			t.Fatal("view of a broken length accepted")
		}
	}
}

func TestViews(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		checkView[int8](t, 1)
		checkView[uint8](t, 1)
		checkView[int16](t, 2)
		checkView[uint16](t, 2)
		checkView[int32](t, 4)
		checkView[uint32](t, 4)
		checkView[int64](t, 8)
		checkView[uint64](t, 8)
		checkView[float32](t, 4)
		checkView[float64](t, 8)
	})
}

// Large allocations have large pages, where the system gives them to who asks, and none beyond their own bytes.
func TestLargePages(t *testing.T) {
	mode, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	if err != nil || bytes.Contains(mode, []byte("[never]")) {
		t.Skip("this system has no large pages for who asks")
	}
	const size = 32<<20 + 12345
	r, err := Alloc(size, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if !Aligned(r.Bytes(), 2<<20) || len(r.Bytes()) != size {
		t.Errorf("%d bytes at %#x, want %d on a multiple of 2 MiB", len(r.Bytes()), Address(r.Bytes()), size)
	}
	for i := range r.Bytes() {
		r.Bytes()[i] = 1
	}
	large, resident := residency(t, r)
	if large < size/2 { // memory may be too scattered for some of them
		t.Errorf("%d of %d bytes lie in large pages", large, size)
	}
	if resident > size+1<<20 { // neighbours may be part of the same line
		t.Errorf("%d bytes take %d", size, resident)
	}
}

// residency is how many bytes of a region lie in large pages, and how many are in memory.
func residency(t *testing.T, r *Region) (large, resident int) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skip(err)
	}
	inside := false
	for line := range strings.SplitSeq(string(maps), "\n") {
		var from, to uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			at := Address(r.whole)
			inside = from < at+uintptr(len(r.whole)) && to > at
		}
		var kib int
		for _, kind := range []string{"AnonHugePages", "FilePmdMapped"} {
			if n, _ := fmt.Sscanf(line, kind+": %d kB", &kib); n == 1 && inside {
				large += kib << 10
			}
		}
		if n, _ := fmt.Sscanf(line, "Rss: %d kB", &kib); n == 1 && inside {
			resident += kib << 10
		}
	}
	return large, resident
}

// What was allocated with ordinary pages takes what was touched of it alone. Enlarged, it has the same contents at the same
// place, in large pages where the system moves it to them.
func TestEnlarge(t *testing.T) {
	const size, apart = 32<<20 + 12345, 256 << 10
	r, err := AllocSmall(size, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, place := r.Bytes(), Address(r.Bytes())
	for i := 0; i < size; i += apart {
		data[i] = byte(i/apart + 1)
	}
	if _, err := os.Stat("/proc/self/smaps"); err == nil {
		if large, resident := residency(t, r); large > 0 || resident > size/2 {
			t.Errorf("%d bytes of which few are touched take %d, %d of them in large pages", size, resident, large)
		}
	}
	if err := r.Enlarge(); err != nil {
		t.Logf("the system did not enlarge all: %v", err)
	}
	if Address(r.Bytes()) != place || len(r.Bytes()) != size {
		t.Errorf("%d bytes at %#x, were %d at %#x", len(r.Bytes()), Address(r.Bytes()), size, place)
	}
	for i, got := range data {
		want := byte(0)
		if i%apart == 0 {
			want = byte(i/apart + 1)
		}
		if got != want {
			t.Fatalf("byte %d is %d, was %d", i, got, want)
		}
	}
	if _, err := os.Stat("/proc/self/smaps"); err == nil {
		large, resident := residency(t, r)
		t.Logf("%d of %d bytes lie in large pages", large, resident)
	}
	small, err := AllocSmall(100, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	if err := small.Enlarge(); err != nil || !Aligned(small.Bytes(), 64) {
		t.Errorf("a small allocation at %#x: %v", Address(small.Bytes()), err)
	}
}
