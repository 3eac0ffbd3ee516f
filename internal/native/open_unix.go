//go:build !hetc_static && (linux || darwin) && (amd64 || arm64)

package native

import "github.com/ebitengine/purego"

func open(path string) (uintptr, error) {
	return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

func symbol(handle uintptr, name string) (uintptr, error) { return purego.Dlsym(handle, name) }

// Path is a file name as C takes it.
func Path(s string) (b []byte, ok bool) { return CString(s) }
