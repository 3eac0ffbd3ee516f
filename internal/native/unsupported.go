//go:build hetc_static || !(((linux || darwin) && (amd64 || arm64)) || (windows && (amd64 || arm64)))

package native

import (
	"errors"
	"io"
	"os"
)

// Supported says that this build opens no libraries.
func Supported() *Error { return &Error{Problem: NotBuiltIn} }

var errNotBuiltIn = errors.New("not built in")

// open, symbol and checkWhole say that this build opens no libraries.
func open(string) (uintptr, error)            { return 0, errNotBuiltIn }
func symbol(uintptr, string) (uintptr, error) { return 0, errNotBuiltIn }
func checkWhole(io.ReaderAt, int64) error     { return errNotBuiltIn }

// Path returns a file name as C takes it.
func Path(s string) (b []byte, ok bool) { return CString(s) }

// Setenv sets an environment variable; there are no libraries to see it.
func Setenv(name, value string) error { return os.Setenv(name, value) }

// Call cannot be reached: nothing can be opened.
func Call(uintptr, ...uintptr) uintptr {
	panic("BUG: a C function was called in a build without libraries")
}

// Callback cannot be reached: nothing can be opened.
func Callback(any) uintptr { panic("BUG: a C callback was made in a build without libraries") }

// Func cannot be reached: nothing can be opened.
func (l *Library) Func(any, string) error { return &Error{Path: l.Path, Problem: NotBuiltIn} }
