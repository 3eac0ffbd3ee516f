// Package golden knows how tests compare output with files: names follow from the test, one
// switch rewrites all of them, a difference leaves the new output beside the old one, and a file
// that no test uses any more is an error.
//
// A package that uses it calls Main from TestMain. HETC_UPDATE=1 rewrites the files and removes
// those that no test used.
package golden

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"sync"
	"testing"
)

// folder holds the golden files of a package, below its testdata.
const folder = "testdata/golden"

// update reports whether golden files are to be rewritten: the one switch of the repository.
func update() bool { return os.Getenv("HETC_UPDATE") == "1" }

var used = struct {
	sync.Mutex
	names map[string]bool
}{names: map[string]bool{}}

var unsafeName = regexp.MustCompile(`[^A-Za-z0-9_.@+-]+`)

// pathOf returns the file a test compares with: its name with each sub-test a directory, then ext
// ("golden.yaml" is a suffix like any other).
func pathOf(tb testing.TB, ext string) string {
	parts := strings.Split(tb.Name(), "/")
	for i, path := range parts {
		path = unsafeName.ReplaceAllString(path, "_")
		if strings.Trim(path, ".") == "" {
			path = "_" + path
		}
		parts[i] = path
	}
	return filepath.Join(folder, filepath.Join(parts...)+"."+strings.TrimPrefix(ext, "."))
}

// Equal compares got with the golden file of the running test (ext: "txt", "json"); a missing file
// counts as empty. On a difference the test fails and got is left beside the file as .got.
// A test that compares several outputs gives each another ext.
func Equal(tb testing.TB, ext string, got []byte) {
	tb.Helper()
	path := pathOf(tb, ext)
	used.Lock()
	twice := used.names[path] && !repeated()
	used.names[path] = true
	used.Unlock()
	if twice {
		tb.Errorf("golden file %s is compared twice; give another extension", path)
		return
	}
	left := path + ".got"
	if update() {
		if err := write(path, got); err != nil {
			tb.Fatalf("update golden file: %v", err)
		}
		os.Remove(left)
		return
	}
	want, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		tb.Fatalf("read golden file: %v", err)
	}
	if bytes.Equal(got, want) {
		os.Remove(left)
		return
	}
	if err := write(left, got); err != nil {
		tb.Errorf("keep output: %v", err)
	}
	difference := firstDifference(string(want), string(got))
	tb.Errorf("output differs from %s, see %s; HETC_UPDATE=1 accepts it\n%s", path, left, difference)
}

// write makes the folder of a golden file too.
func write(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

// firstDifference shows the first line that differs, with its number.
func firstDifference(want, got string) string {
	wantLines, gotLines := strings.Split(want, "\n"), strings.Split(got, "\n")
	line := func(side []string, i int) string {
		if i >= len(side) {
			return "(end)"
		}
		if len(side[i]) > 400 {
			return side[i][:400] + "..."
		}
		return side[i]
	}
	for i := 0; i < max(len(wantLines), len(gotLines)); i++ {
		if line(wantLines, i) != line(gotLines, i) || i >= len(wantLines) || i >= len(gotLines) {
			return fmt.Sprintf("line %d\n\twant %s\n\tgot  %s", i+1, line(wantLines, i), line(gotLines, i))
		}
	}
	return "differs in a long line"
}

// Main runs the tests of a package and then fails if a golden file was not used by any of them.
// With -run, -skip, -list, -short, -bench alone or -fuzz only part of the tests run, so nothing is said then.
//
//	func TestMain(m *testing.M) { os.Exit(golden.Main(m)) }
func Main(tests interface{ Run() int }) int {
	code := tests.Run()
	if code != 0 || partial() {
		return code
	}
	orphans, err := orphans(folder)
	if err != nil {
		fmt.Fprintf(os.Stderr, "golden files: %v\n", err)
		return 1
	}
	for _, path := range orphans {
		if update() {
			os.Remove(path)
			continue
		}
		fmt.Fprintf(os.Stderr, "golden file %s is used by no test; HETC_UPDATE=1 removes it\n", path)
		code = 1
	}
	return code
}

// partial reports whether only some of the tests run, so that golden files which none of them asked for may still be in
// use.
func partial() bool {
	for _, name := range []string{"test.run", "test.skip", "test.list", "test.fuzz"} {
		if set := flag.Lookup(name); set != nil && set.Value.String() != "" {
			return true
		}
	}
	return testing.Short()
}

// repeated reports whether tests run more than once in this process (-count, -cpu).
func repeated() bool {
	if set := flag.Lookup("test.cpu"); set != nil && strings.Contains(set.Value.String(), ",") {
		return true
	}
	set := flag.Lookup("test.count")
	return set != nil && set.Value.String() != "1"
}

// orphans returns the golden files that no test asked for.
func orphans(dir string) ([]string, error) {
	var out []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if os.IsNotExist(err) && path == dir {
			return nil
		}
		if err != nil {
			return err
		}
		if entry.IsDir() || strings.HasSuffix(path, ".got") {
			return nil
		}
		used.Lock()
		defer used.Unlock()
		if !used.names[path] {
			out = append(out, path)
		}
		return nil
	})
	sort.Strings(out)
	return out, err
}
