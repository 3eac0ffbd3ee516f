//go:build !hetc_static && (linux || darwin) && (amd64 || arm64)

package native

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/ebitengine/purego"
)

// open resolves all symbols at once, so that a missing one shows here and not in the first call.
func open(path string) (uintptr, error) {
	return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

// symbol returns the address of a function of the library.
func symbol(handle uintptr, name string) (uintptr, error) { return purego.Dlsym(handle, name) }

// Path returns a file name as C takes it.
func Path(text string) (data []byte, ok bool) { return CString(text) }

// Setenv sets an environment variable for libraries too: C has an environment of its own, which os.Setenv does not
// change. Nothing else of C may be running that looks at it.
func Setenv(name, value string) error {
	if err := os.Setenv(name, value); err != nil { // refuses what C cannot hold
		return err
	}
	set, err := purego.Dlsym(purego.RTLD_DEFAULT, "setenv")
	if err != nil {
		return err
	}
	key, _ := CString(name)
	text, _ := CString(value)
	if result := Call(set, uintptr(unsafe.Pointer(&key[0])), uintptr(unsafe.Pointer(&text[0])), 1); int32(result) != 0 {
		return fmt.Errorf("setenv %s: %d", name, int32(result))
	}
	return nil
}
