//go:build !hetc_static && (amd64 || arm64)

package native

import (
	"encoding/binary"
	"io"
	"os"

	"golang.org/x/sys/windows"
)

// open loads a library by its path or, of a bare name, from the system's directories. Beside a path, the library's own
// directory is searched for what it needs.
func open(path string) (uintptr, error) {
	flags := uintptr(windows.LOAD_LIBRARY_SEARCH_DEFAULT_DIRS)
	if !named(path) {
		full, err := windows.FullPath(path)
		if err != nil {
			return 0, err
		}
		path, flags = full, flags|windows.LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR
	}
	handle, err := windows.LoadLibraryEx(path, 0, flags)
	return uintptr(handle), err
}

// symbol returns the address of a function of the library.
func symbol(handle uintptr, name string) (uintptr, error) {
	return windows.GetProcAddress(windows.Handle(handle), name)
}

// Path returns a file name as C takes it: UTF-16.
func Path(text string) (path []byte, ok bool) {
	words, err := windows.UTF16FromString(text)
	for _, word := range words {
		path = binary.LittleEndian.AppendUint16(path, word)
	}
	return path, err == nil
}

// checkWhole leaves the check to the system, which refuses truncated files by itself.
func checkWhole(io.ReaderAt, int64) error { return nil }

// Setenv sets an environment variable for libraries too, which ask the system for it.
func Setenv(name, value string) error { return os.Setenv(name, value) }
