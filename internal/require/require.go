// Package require knows what tests do without a native library: they are skipped with the reason, or fail
// where HETC_REQUIRE says that it must be there.
package require

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hetc/hetc/internal/native"
	"github.com/hetc/hetc/runtime/driver"
)

// Env is a comma-separated list of what must not be skipped: drivers, engines and tools, as docs/commands.md lists
// them.
const Env = "HETC_REQUIRE"

// Listed reports whether HETC_REQUIRE lists the name.
func Listed(name string) bool { return slices.Contains(strings.Split(os.Getenv(Env), ","), name) }

// Skip ends the test because what is named is not available: failing it where HETC_REQUIRE lists the name, unless the
// library is there and this machine cannot use it (driver.ErrIncapable).
func Skip(tb testing.TB, name string, reason error) {
	tb.Helper()
	if Listed(name) && !errors.Is(reason, driver.ErrIncapable) {
		tb.Fatalf("%s lists %q: %v", Env, name, reason)
	}
	tb.Skip(reason)
}

// Deps lets libraries be found in the module's own .deps, wherever the test runs, unless HETC_NATIVE_DIR names
// another folder. It is called before the first library is looked for: from TestMain or the test itself.
func Deps() { deps() }

var deps = sync.OnceFunc(func() {
	if dir := find(); dir != "" {
		if err := os.Setenv(native.EnvDir, dir); err != nil {
			panic(err)
		}
	}
})

// find returns the folder that libraries are to be found in, empty outside a module.
func find() string {
	if dir := os.Getenv(native.EnvDir); dir != "" {
		return dir
	}
	dir, err := os.Getwd()
	if err != nil {
		return ""
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, native.Deps)
		}
		up := filepath.Dir(dir)
		if up == dir {
			return ""
		}
		dir = up
	}
}

// Part names a part of the slow tests, "2/3" for the second of three: those run, whether tests are asked to be short or
// not, and no others. Continuous integration has time for one part each time.
const Part = "HETC_PART"

// Slow ends a test of more than a second or two when tests are asked to be short, as make test asks them, or when Part
// names others. Without either, as in make test-long, it runs.
func Slow(tb testing.TB) {
	tb.Helper()
	if reason := SkipsSlow(tb.Name()); reason != "" {
		tb.Skip(reason)
	}
}

// SkipsSlow says why a slow test of the name does not run, and is empty when it does.
func SkipsSlow(name string) string {
	if part := os.Getenv(Part); part != "" {
		if inPart(part, name) {
			return ""
		}
		return fmt.Sprintf("takes seconds, and is not in %s=%s: make test-long runs it", Part, part)
	}
	if testing.Short() {
		return "takes seconds: make test-long runs it"
	}
	return ""
}

// InPart reports whether a part of the slow tests runs, and what has the name is in it: a case of a test, of which
// others are enough for a short one.
func InPart(name string) bool {
	part := os.Getenv(Part)
	return part != "" && inPart(part, name)
}

// inPart reports whether a test is in the part: names are divided by their hashes, so that a new test moves no other.
func inPart(part, name string) bool {
	var number, count uint32
	if _, err := fmt.Sscanf(part, "%d/%d", &number, &count); err != nil || number < 1 || number > count {
		panic(fmt.Sprintf("%s is %q: want NUMBER/COUNT, such as 2/3", Part, part))
	}
	hash := fnv.New32a()
	hash.Write([]byte(name))
	return hash.Sum32()%count == number-1
}
