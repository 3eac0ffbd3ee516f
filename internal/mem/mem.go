// Package mem knows raw memory: aligned allocations outside the Go heap, read-only file
// mappings, and checked typed views of bytes.
//
// Memory of a Region is not managed by the garbage collector: it is valid until Close, and
// every slice taken from it (Bytes, View) is dead afterwards. The code that made the Region closes
// it, after the last user of those slices is done.
package mem

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/hetc/hetc/internal/diag"
)

// MaxBytes is the largest region Alloc, Guarded and Map accept: 2^46 bytes, or less where int is 32 bits.
const MaxBytes = min(1<<46, int64(maxInt>>1))

const (
	maxInt   = int(^uint(0) >> 1)
	maxAlign = 1 << 30
)

// Region is one contiguous piece of memory that must be closed. Its methods except Bytes are
// not safe for concurrent use with Close.
type Region struct {
	data    []byte
	whole   []byte // what the operating system mapped; nil when the Go heap holds the bytes
	release func() error
}

// Bytes returns the memory; nil after Close. A mapping made by Map is read-only: writing to
// it faults.
func (r *Region) Bytes() []byte { return r.data }

// Close gives the memory back. Calling it again does nothing.
func (r *Region) Close() error {
	release := r.release
	forget(r)
	r.data, r.whole, r.release = nil, nil, nil
	if release == nil {
		return nil
	}
	if err := release(); err != nil {
		return diag.New(diag.ClassIO, "unmap memory: %w", err)
	}
	return nil
}

// Alloc returns zeroed memory of exactly bytes bytes whose first byte lies on a multiple of
// align, a power of two up to 1 GiB. Pages are committed by the operating system when first
// touched, where it does so; those of large allocations are large ones, where it has them.
func Alloc(bytes, align int) (*Region, error) { return allocBy(alloc, bytes, align) }

// allocBy checks what is asked of an allocator.
func allocBy(allocator func(bytes, align int) (*Region, error), bytes, align int) (*Region, error) {
	if err := checkSize("allocate", int64(bytes)); err != nil {
		return nil, err
	}
	if align <= 0 || align > maxAlign || align&(align-1) != 0 {
		return nil, diag.New(diag.ClassInput,
			"allocate %d bytes: alignment %d is not a power of two between 1 and %d", bytes, align, maxAlign)
	}
	if bytes == 0 {
		return &Region{data: []byte{}}, nil
	}
	region, err := allocator(bytes, align)
	if err != nil {
		return nil, diag.New(diag.ClassIO, "allocate %d bytes: %w", bytes, err)
	}
	return region, nil
}

// AllocSmall is Alloc with ordinary pages: memory of which little is touched at first costs little then. Enlarge
// moves it to large pages.
func AllocSmall(bytes, align int) (*Region, error) {
	if bytes >= largeAlloc {
		align = max(align, largePage)
	}
	return allocBy(allocSmall, bytes, align)
}

// Map returns the whole of file as read-only memory, shared with the page cache: a write to
// the file by any process shows in it, and a truncation makes later accesses fault (see
// CatchFault). file may be closed afterwards. Where mapping is not built in, the file is read
// into memory instead.
func Map(file *os.File) (*Region, error) {
	st, err := file.Stat()
	if err != nil {
		return nil, diag.New(diag.ClassIO, "map %q: %w", file.Name(), err)
	}
	if !st.Mode().IsRegular() {
		return nil, diag.New(diag.ClassInput, "map %q: not a regular file but %s", file.Name(), st.Mode().Type())
	}
	if err := checkSize(fmt.Sprintf("map %q", file.Name()), st.Size()); err != nil {
		return nil, err
	}
	if st.Size() == 0 {
		return &Region{data: []byte{}}, nil
	}
	region, err := mapFile(file, int(st.Size()))
	if err != nil {
		return nil, diag.New(diag.ClassIO, "map %q: %w", file.Name(), err)
	}
	remember(region)
	return region, nil
}

// Guarded returns zeroed memory of exactly bytes bytes whose end touches an inaccessible page,
// so that a kernel that reads or writes past it faults at once. It is meant for tests. The
// error has class ClassUnavailable where the operating system's interface is not built in.
func Guarded(bytes int) (*Region, error) { return fenced(bytes, false) }

// GuardedBefore is Guarded for memory whose start touches an inaccessible page; it is page-aligned.
func GuardedBefore(bytes int) (*Region, error) { return fenced(bytes, true) }

// fenced allocates bytes beside an inaccessible page, before or after them: access beyond is a fault.
func fenced(bytes int, before bool) (*Region, error) {
	if err := checkSize("allocate guarded", int64(bytes)); err != nil {
		return nil, err
	}
	region, err := guarded(bytes, before)
	if err != nil {
		return nil, err
	}
	remember(region)
	return region, nil
}

// checkSize refuses sizes that are negative or beyond MaxBytes; what names the request in errors.
func checkSize(what string, bytes int64) error {
	if bytes < 0 || bytes > MaxBytes {
		return diag.New(diag.ClassInput, "%s: size %d bytes, want 0 to %d", what, bytes, MaxBytes)
	}
	return nil
}

// Advice tells the operating system how memory will be used.
type Advice int

const (
	HugePages   Advice = iota // back an allocation with large pages
	collapse                  // move what is touched to large pages now
	unneeded                  // take the pages of a mapped file out of the process; Advise refuses it
	noReadAhead               // of a mapped file read the large page that is touched, nothing behind it; Advise refuses it
)

// largePage is the size of the pages that large allocations ask for, and largeAlloc from where on they do: what the
// alignment wastes is address space alone.
const (
	largePage  = 2 << 20
	largeAlloc = 2 * largePage
)

// Advise gives a hint about bytes [offset, offset+bytes) of the region. Its absence changes
// speed only, so a hint that this system does not know is ignored.
func (r *Region) Advise(offset, bytes int, advice Advice) error {
	if offset < 0 || bytes < 0 || offset > len(r.data) || bytes > len(r.data)-offset {
		return diag.New(diag.ClassInput,
			"advise on memory: range [%d, %d+%d) outside the region's %d bytes", offset, offset, bytes, len(r.data))
	}
	if advice < HugePages || advice > collapse {
		return diag.New(diag.ClassInput, "advise on memory: unknown advice %d", int(advice))
	}
	if bytes == 0 || r.whole == nil {
		return nil
	}
	return r.advise(offset, bytes, advice)
}

// Enlarge makes memory of AllocSmall what Alloc gives: what was touched moves to large pages, what is touched from now on
// begins in them. Its contents and addresses stay. Where the system does not do so it remains as it is.
func (r *Region) Enlarge() error {
	whole := len(r.data) / largePage * largePage // not the rest, whose page would hold memory that was not asked for
	if len(r.data) < largeAlloc {
		return nil
	}
	if err := r.Advise(0, whole, HugePages); err != nil {
		return err
	}
	return r.Advise(0, whole, collapse)
}

// Scalar is an element type of a typed view.
type Scalar interface {
	~int8 | ~uint8 | ~int16 | ~uint16 | ~int32 | ~uint32 | ~int64 | ~uint64 | ~float32 | ~float64
}

// View returns the bytes of b as elements of type T in the machine's byte order, without
// copying; it lives as long as b. The length must be a multiple of the element size and the
// address of its alignment.
func View[T Scalar](data []byte) ([]T, error) {
	var zero T
	// SAFETY: Sizeof reads no memory.
	size := int(unsafe.Sizeof(zero))
	if len(data)%size != 0 {
		return nil, diag.New(diag.ClassInput,
			"view bytes as %T: length %d is not a multiple of %d", zero, len(data), size)
	}
	if !Aligned(data, size) {
		return nil, diag.New(diag.ClassInput, "view bytes as %T: address is not a multiple of %d", zero, size)
	}
	if len(data) == 0 {
		return []T{}, nil
	}
	// SAFETY: b has len(b)/size whole elements at an aligned address (checked above), every bit
	// pattern of a Scalar is valid, and the result points into b's memory, so that the garbage
	// collector keeps a heap-allocated b alive through it.
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(data))), len(data)/size), nil
}

// Bytes returns the memory of s as bytes in the machine's byte order, without copying; it
// lives as long as s.
func Bytes[T Scalar](values []T) []byte {
	if len(values) == 0 {
		return []byte{}
	}
	// SAFETY: s has len(s) elements without padding, bytes need no alignment, and the result
	// points into s's memory and keeps it alive.
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*int(unsafe.Sizeof(values[0])))
}

// Address returns the address of the first byte of b, 0 when b is empty. Memory of a Region
// does not move; memory of the Go heap is only guaranteed to stay where it is while b is
// reachable.
func Address(data []byte) uintptr {
	if len(data) == 0 {
		return 0
	}
	// SAFETY: the pointer becomes a plain number that is never turned back.
	return uintptr(unsafe.Pointer(unsafe.SliceData(data)))
}

// Aligned reports whether the first byte of b lies on a multiple of align (a power of two);
// an empty b always does.
func Aligned(data []byte, align int) bool {
	return Address(data)&uintptr(align-1) == 0
}

// alignUp cuts data[:bytes] out of whole so that it starts on a multiple of align; whole has
// at least align-1 bytes to spare.
func alignUp(whole []byte, bytes, align int) []byte {
	skip := int(-Address(whole) & uintptr(align-1))
	return whole[skip : skip+bytes : skip+bytes]
}
