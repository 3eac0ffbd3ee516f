package native

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// EnvDir names a folder that is searched before all others.
const EnvDir = "HETC_NATIVE_DIR"

// Deps is the folder of a checkout that `make deps` fills.
const Deps = ".deps"

// Search says what a library is called and where it may lie.
type Search struct {
	// File is the library itself, chosen by the user: nothing else is looked at. May be empty.
	File string
	// Folder is the library's own folder below a folder that is searched: "onnxruntime".
	Folder string
	// Names are patterns (see path/filepath.Match) of the file's name; the first that matches wins, of
	// several matches the last in order, which is the newest version.
	Names []string
	// System are names that the system's loader is asked for.
	System []string
}

// Find opens the first library that is there: what Locate finds, or else what the system's loader knows. The
// first file found decides: when it does not open, that is the error, and no other one is taken silently. tried
// lists what was looked at, in order; the error is an *Error.
func Find(search Search) (lib *Library, tried []string, err error) {
	if failure := Supported(); failure != nil {
		if failure.Path = search.Folder; search.File != "" {
			failure.Path = search.File
		}
		return nil, nil, failure
	}
	file, tried, err := Locate(search)
	if err != nil {
		return nil, tried, err
	}
	if file != "" {
		lib, err := Open(file)
		return lib, tried, err
	}
	for _, name := range search.System {
		tried = append(tried, fmt.Sprintf("%s (system)", name))
		if lib, err := Open(name); err == nil {
			return lib, tried, nil
		}
	}
	return nil, tried, &Error{Path: search.Folder, Problem: Absent}
}

// Locate returns the first file that is there: the named one, or the one in the first of Places that has one. It is
// empty when there is none. Nothing is opened: this works in builds that open no libraries. The error is an *Error: the
// folder that the environment names cannot be searched, or the file is not what `make deps` fetched.
func Locate(search Search) (file string, tried []string, err error) {
	if search.File != "" {
		path := search.File
		if named(path) {
			path = "." + string(filepath.Separator) + path // a file, not a name for the loader
		}
		return path, []string{search.File}, search.pinned(path, false)
	}
	for _, place := range places(search.Folder) {
		file, err := search.in(place.dir)
		shown := place.dir
		switch {
		case place.shared:
			shown += " (passed over: others may write there)"
		case file != "":
			return file, append(tried, shown), search.pinned(file, place.checkout)
		case err != nil && place.chosen && isFile(place.dir):
			const detail = EnvDir + " names a file, want a folder"
			return "", append(tried, shown), &Error{Path: place.dir, Problem: NoFolder, Detail: detail}
		case place.chosen && errors.Is(err, fs.ErrPermission):
			const detail = EnvDir + " names a folder that cannot be read"
			return "", append(tried, shown), &Error{Path: place.dir, Problem: NoFolder, Detail: detail}
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			shown += fmt.Sprintf(" (%s)", reason(err))
		}
		tried = append(tried, shown)
	}
	return "", tried, nil
}

// isFile follows links: a library's name is often one.
func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && !st.IsDir()
}

// in returns the library's path in dir, always with a separator; empty when there is none.
func (s Search) in(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	for _, pattern := range s.Names {
		for _, entry := range slices.Backward(entries) {

			if ok, _ := filepath.Match(pattern, entry.Name()); ok && entry.Type()&fs.ModeDir == 0 {
				path := filepath.Join(dir, entry.Name())
				if abs, err := filepath.Abs(path); err == nil {
					path = abs
				}
				return path, nil
			}
		}
	}
	return "", nil
}

// FileNames returns the usual names of a library's file on this system: "onnxruntime" is libonnxruntime.so and
// libonnxruntime.so.*, libonnxruntime.dylib and libonnxruntime.*.dylib, or onnxruntime.dll.
func FileNames(name string) []string {
	switch runtime.GOOS {
	case "windows":
		return []string{name + ".dll"}
	case "darwin":
		return []string{"lib" + name + ".dylib", "lib" + name + ".*.dylib"}
	}
	return []string{"lib" + name + ".so", "lib" + name + ".so.*"}
}

// SystemNames returns the names among FileNames that are no patterns.
func SystemNames(name string) []string {
	return slices.DeleteFunc(FileNames(name), func(text string) bool { return strings.Contains(text, "*") })
}
