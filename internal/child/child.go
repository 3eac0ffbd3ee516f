// Package child knows what of this process's environment another process gets: what it needs to run, and no secret.
package child

import (
	"os"
	"runtime"
	"slices"
	"strings"
)

// kept are the variables that every child process gets. Whatever is missing here (tokens of a CI system, passwords of a
// package registry) no library and no other engine sees.
// RATIONALE: Why does a child process get a list of variables, and not all but the secrets?
var kept = []string{
	// what a program needs to run at all
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LANG", "LANGUAGE", "TZ", "XDG_CACHE_HOME",
	"TMP", "TEMP", "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "COMSPEC", "PATHEXT",
	"NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE", "ANDROID_ROOT", "ANDROID_DATA",
	// where the system's loader, and that of a DSP, looks for libraries
	"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "ADSP_LIBRARY_PATH",
	// the same libraries and kernels as in this process
	"HETC_NATIVE_DIR", "HETC_ORT_LIBRARY", "HETC_QNN_LIBRARY", "HETC_OPENCL_LIBRARY", "HETC_HOST_KERNELS", "HETC_CACHE",
	// Go's runtime
	"GOMAXPROCS", "GOMEMLIMIT", "GOGC", "GODEBUG", "GOTRACEBACK", "GOCOVERDIR",
	// devices that a library may use
	"CUDA_VISIBLE_DEVICES",
}

// keptPrefixes begin names of further variables: languages, threads and settings of libraries, stand-ins of tests.
var keptPrefixes = []string{"LC_", "OMP_", "KMP_", "ORT_", "GGML_", "QNN_", "HETC_TEST_"}

// Env returns the environment of a child process: what is kept of this process's, then extra ("NAME=value"). Every
// process that the programs start gets it.
func Env(extra ...string) []string {
	var env []string
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if keeps(name) {
			env = append(env, entry)
		}
	}
	return append(env, extra...)
}

// keeps reports whether a child process inherits a variable.
func keeps(name string) bool {
	if runtime.GOOS == "windows" {
		name = strings.ToUpper(name)
	}
	begins := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	return slices.Contains(kept, name) || slices.ContainsFunc(keptPrefixes, begins)
}
