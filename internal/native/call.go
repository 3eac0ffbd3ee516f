//go:build !hetc_static && (((linux || darwin) && (amd64 || arm64)) || (windows && (amd64 || arm64)))

package native

import "github.com/ebitengine/purego"

// Supported returns nil where libraries can be opened.
func Supported() *Error { return nil }

// Call calls a C function whose arguments and result are integers or pointers; it allocates nothing when
// args is a slice that the caller keeps. fn is not 0.
//
//go:uintptrescapes
func Call(fn uintptr, args ...uintptr) uintptr {
	result, _, _ := purego.SyscallN(fn, args...)
	return result
}

// Callback makes a C function of fn, whose arguments and result are uintptr. A process can make about
// 2000, and they are never freed: make each once, for good.
func Callback(fn any) uintptr { return purego.NewCallback(fn) }

// Func makes fn, a pointer to a function variable, call an exported function. Arguments may be numbers, texts, and
// pointers to or slices of numbers, which C has until it returns; nil is NULL. The error is an *Error.
func (l *Library) Func(fn any, name string) error {
	at, err := l.Symbol(name)
	if err != nil {
		return err
	}
	purego.RegisterFunc(fn, at)
	return nil
}
