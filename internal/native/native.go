// Package native knows how to open shared libraries and call C functions: where a library is looked
// for, what is wrong with one that does not open, and how bytes pass between Go and C.
//
// Functions are called with SyscallN's rule: a Go pointer becomes a uintptr only in the argument list of
// Call itself, written uintptr(unsafe.Pointer(p)); anywhere else the compiler may leave what it points
// to on a stack that moves. What C keeps after the call lies outside the Go heap.
package native

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unsafe"
)

// Problem is what is wrong with a library.
type Problem int

const (
	Absent        Problem = iota + 1 // no such file, or the system's loader knows none of that name
	Unreadable                       // the file is there, but may not be read
	Broken                           // not a shared library for this machine, or a truncated one
	MissingSymbol                    // the library lacks a function
	NoFolder                         // what is to be a folder with libraries is none
	NotBuiltIn                       // this build of the program opens no libraries
	Altered                          // it lies where `make deps` puts libraries, and is not what it fetched
)

// String names the kind of problem.
func (p Problem) String() string {
	switch p {
	case Absent:
		return "absent"
	case Unreadable:
		return "unreadable"
	case Broken:
		return "broken"
	case MissingSymbol:
		return "missing symbol"
	case NoFolder:
		return "no folder"
	case NotBuiltIn:
		return "not built in"
	case Altered:
		return "altered"
	}
	return fmt.Sprintf("problem %d", int(p))
}

// Error says why a library cannot be used.
type Error struct {
	Path    string
	Problem Problem
	Detail  string // one line, may be empty
}

// Error names the library, what is wrong with it, and what the system's loader said.
func (e *Error) Error() string {
	if e.Problem == NoFolder {
		return fmt.Sprintf("folder of libraries %q: %s", e.Path, e.Detail)
	}
	text := fmt.Sprintf("library %q: ", e.Path)
	switch e.Problem {
	case Absent:
		text += "not there"
	case Unreadable:
		text += "cannot be read"
	case Broken:
		text += "is not a shared library that this machine can load"
	case MissingSymbol:
		return text + fmt.Sprintf("has no function %q", e.Detail)
	case NotBuiltIn:
		text += "this program was built without library drivers"
	case Altered:
		text += "is not what make deps fetched"
	default:
		text += e.Problem.String()
	}
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}

// Library is an open shared library. It stays loaded until the process ends: libraries with threads of
// their own do not survive being unloaded.
type Library struct {
	Path   string // as it was opened: a file, or a name that the system's loader resolved
	handle uintptr
}

// Open loads the library, all its symbols resolved and none of them visible to other libraries. A path
// without a separator is looked up by the system's loader. The error is an *Error.
func Open(path string) (*Library, error) {
	if err := Supported(); err != nil {
		err.Path = path
		return nil, err
	}
	if strings.ContainsRune(path, 0) {
		return nil, &Error{Path: path, Problem: Absent, Detail: "the path has a NUL byte"}
	}
	if named(path) {
		if path == "" {
			return nil, &Error{Path: path, Problem: Absent, Detail: "the path is empty"}
		}
	} else if err := checkFile(path); err != nil {
		return nil, err
	}
	var handle uintptr
	var err error
	KeepSignals(func() { handle, err = open(path) })
	if err != nil {
		failure := &Error{Path: path, Problem: Broken, Detail: oneLine(err.Error())}
		if named(path) {
			failure.Problem = Absent // what the loader says tells apart nothing that could be relied on
		}
		return nil, failure
	}
	return &Library{path, handle}, nil
}

// Symbol returns the address of an exported function. The error is an *Error that names it.
func (l *Library) Symbol(name string) (uintptr, error) {
	if name == "" || strings.ContainsRune(name, 0) {
		return 0, &Error{Path: l.Path, Problem: MissingSymbol, Detail: name}
	}
	fn, err := symbol(l.handle, name)
	if err != nil || fn == 0 {
		return 0, &Error{Path: l.Path, Problem: MissingSymbol, Detail: name}
	}
	return fn, nil
}

// named tells a name for the system's loader from a path.
func named(path string) bool { return path == filepath.Base(path) || path == "" }

// checkFile refuses what no library can be, before the system's loader sees it.
func checkFile(path string) error {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &Error{Path: path, Problem: Absent}
	case err != nil:
		return &Error{Path: path, Problem: Unreadable, Detail: reason(err)}
	case !st.Mode().IsRegular():
		what := "not a regular file"
		if st.IsDir() {
			what = "a folder"
		}
		return &Error{Path: path, Problem: Broken, Detail: what}
	}
	file, err := os.Open(path)
	if err != nil {
		return &Error{Path: path, Problem: Unreadable, Detail: reason(err)}
	}
	defer file.Close()
	if err := checkWhole(file, st.Size()); err != nil {
		return &Error{Path: path, Problem: Broken, Detail: oneLine(err.Error())}
	}
	return nil
}

// reason returns a file error without the path, which the message has already.
func reason(err error) string {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err.Error()
	}
	return err.Error()
}

// oneLine keeps messages of the loader from breaking lines.
func oneLine(text string) string {
	const longest = 500
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > longest {
		text = text[:longest] + "..."
	}
	return text
}

// at turns an address of C memory into a pointer.
func at(pointer uintptr) unsafe.Pointer {
	// SAFETY: p is memory of C, which the garbage collector neither moves nor frees; the detour over a
	// pointer to p says so to vet, which takes direct conversions for arithmetic on Go pointers.
	return *(*unsafe.Pointer)(unsafe.Pointer(&pointer))
}

// Word reads the i-th pointer-sized word of a C table. The caller knows that the table is that long.
func Word(table uintptr, i int) uintptr {
	// SAFETY: the caller knows the table's length; words of tables of pointers are aligned.
	return *(*uintptr)(unsafe.Add(at(table), i*int(unsafe.Sizeof(table))))
}

// String copies a C string that ends with a NUL byte, at most longest bytes of it. Of 0 it is empty.
func String(pointer uintptr, longest int) string {
	if pointer == 0 {
		return ""
	}
	base, size := at(pointer), 0
	// SAFETY: bytes up to the terminating one belong to the string, and nothing behind it is read.
	for size < longest && *(*byte)(unsafe.Add(base, size)) != 0 {
		size++
	}
	return string(unsafe.Slice((*byte)(base), size))
}

// CString is s with a terminating NUL byte; ok is false when it has one inside.
func CString(text string) (data []byte, ok bool) {
	return append([]byte(text), 0), !strings.ContainsRune(text, 0)
}
