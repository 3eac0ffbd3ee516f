package highs

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/native"
)

// Version is the release of HiGHS that both engines are.
const Version = "1.15.1"

// digest is the sha256 of highs.wasm of npm's highs 1.15.3, whose names table.go holds.
const digest = "528be4365bea1d4188988646b244263f50320df55782e14d6af5bce7cd45c840"

// Embedded is where a solver that is part of the program lies.
const Embedded = "in this program"

// Licences returns those of HiGHS and of what is compiled into it, which whoever passes this program on has to pass on
// too; empty where the program does not contain the solver.
func Licences() string {
	if embedded == nil {
		return ""
	}
	return licence + "\n" + notices
}

// howToGet is the hint where the module is missing or is another one.
const howToGet = "make deps fetches it into .deps; HETC_NATIVE_DIR names a folder with libraries; " +
	"built with the tag highs, hetc brings it along"

// Locate returns where the engine highs is: Embedded, or a file. The error, of class ClassUnavailable, lists what was
// tried.
func Locate() (where string, err error) {
	if embedded != nil {
		return Embedded, nil
	}
	file, tried, err := native.Locate(native.Search{Folder: "highs", Names: []string{"highs.wasm"}})
	if err != nil {
		return "", diag.New(diag.ClassUnavailable, "engine %q: %w", wasmName, err)
	}
	if file == "" {
		return "", diag.New(diag.ClassUnavailable, "engine %q: no highs.wasm in %s",
			wasmName, strings.Join(tried, ", ")).WithHint(howToGet)
	}
	return file, nil
}

// read returns the module, which is the pinned one.
func read(where string) ([]byte, error) {
	if where == Embedded {
		return checked(where, embedded)
	}
	const most = 64 << 20
	st, err := os.Stat(where)
	if err == nil && (!st.Mode().IsRegular() || st.Size() > most) {
		err = fmt.Errorf("no regular file of at most %d bytes", most)
	}
	var module []byte
	if err == nil {
		module, err = os.ReadFile(where)
	}
	if err != nil {
		return nil, diag.New(diag.ClassUnavailable, "engine %q: %q cannot be read: %w",
			wasmName, where, err).WithHint(howToGet)
	}
	return checked(where, module)
}

// checked refuses any other module: names of its functions, which are minified, mean something else there.
func checked(where string, module []byte) ([]byte, error) {
	if got := fmt.Sprintf("%x", sha256.Sum256(module)); got != digest {
		return nil, diag.New(diag.ClassUnavailable, "engine %q: %q (%d bytes) has sha256 %s, "+
			"want %s, which is HiGHS %s", wasmName, where, len(module), got, digest, Version).WithHint(howToGet)
	}
	return module, nil
}

// libraryFolder is the engine highs-native's folder.
const libraryFolder = "highs-native"

// LocateNative returns the library of the engine highs-native. The error, of class ClassUnavailable, lists what was
// tried.
func LocateNative() (file string, err error) {
	if err := native.Supported(); err != nil {
		return "", diag.New(diag.ClassUnavailable, "engine %q: %w", nativeName, err).
			WithHint("use --engine highs, which needs no library")
	}
	file, tried, err := native.Locate(native.Search{Folder: libraryFolder, Names: native.FileNames("highs")})
	if err != nil {
		return "", diag.New(diag.ClassUnavailable, "engine %q: %w", nativeName, err)
	}
	if file == "" {
		return "", diag.New(diag.ClassUnavailable, "engine %q: no %s in %s",
			nativeName, native.FileNames("highs")[0], strings.Join(tried, ", ")).
			WithHint("make deps fetches it into .deps; HETC_NATIVE_DIR names a folder with libraries")
	}
	return file, nil
}
