package native

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"slices"
)

// place is a folder that is searched.
type place struct {
	dir      string
	chosen   bool // it is what $HETC_NATIVE_DIR names
	checkout bool // it lies in the .deps of a checkout: nothing but what `make deps` fetched is taken from it
	shared   bool // others may write there: nothing is taken from it
}

// executable is replaced by tests.
var executable = os.Executable

// Places returns the folders in which a library, or the programs, of that name are looked for, in order. The current
// directory is never among them: changing into a directory does not ask for its code to be executed.
func Places(folder string) (dirs []string) {
	for _, place := range places(folder) {
		if !place.shared {
			dirs = append(dirs, place.dir)
		}
	}
	return dirs
}

// places returns the places that a folder of libraries stands for.
func places(folder string) (list []place) {
	add := func(one place) {
		if !slices.ContainsFunc(list, func(have place) bool { return have.dir == one.dir }) {
			list = append(list, one)
		}
	}
	if dir := os.Getenv(EnvDir); dir != "" {
		add(place{dir: filepath.Join(dir, folder)})
		add(place{dir: filepath.Clean(dir), chosen: true})
	}
	self, err := executable()
	if err != nil {
		return list
	}
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	beside := filepath.Dir(self)
	open := shared(beside)
	own := filepath.Join(beside, folder)
	add(place{dir: own, shared: open || shared(own)})
	add(place{dir: beside, shared: open})
	if root := checkout(beside); root != "" {
		add(place{dir: filepath.Join(root, Deps, folder), checkout: true})
	}
	return list
}

// checkout returns the nearest folder at or above dir with this module's sources, "" when there is none. The walk ends
// where others may write, as in /tmp, where they could put such a folder around a program.
func checkout(dir string) string {
	for !shared(dir) {
		if ours(filepath.Join(dir, "go.mod")) {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			break
		}
		dir = up
	}
	return ""
}

// ours reports whether a go.mod is this module's.
func ours(path string) bool {
	text, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	first, _, _ := bytes.Cut(text, []byte("\n"))
	return string(bytes.TrimSpace(first)) == "module github.com/hetc/hetc"
}

// shared reports whether users other than the owner and the group may put files into a folder. The modes of Windows
// tell nothing about that.
func shared(dir string) bool {
	const othersWrite = 0o002
	st, err := os.Stat(dir)
	return err == nil && st.IsDir() && st.Mode().Perm()&othersWrite != 0 && runtime.GOOS != "windows"
}
