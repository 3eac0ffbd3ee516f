// Package golden knows how tests compare output with files: names follow from the test, one
// switch rewrites all of them, a difference leaves the new output beside the old one, and a file
// that no test uses any more is an error.
//
// A package that uses it calls Main from TestMain. HETC_UPDATE=1 rewrites the files and removes
// those nobody used.
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

// Dir holds the golden files of a package, below its testdata.
const Dir = "testdata/golden"

// update is the one switch of the repository.
func update() bool { return os.Getenv("HETC_UPDATE") == "1" }

var used = struct {
	sync.Mutex
	names map[string]bool
}{names: map[string]bool{}}

var unsafeName = regexp.MustCompile(`[^A-Za-z0-9_.@+-]+`)

// Path is the file a test compares with: its name with each sub-test a directory, then ext
// ("golden.yaml" is a suffix like any other).
func Path(t testing.TB, ext string) string {
	parts := strings.Split(t.Name(), "/")
	for i, p := range parts {
		p = unsafeName.ReplaceAllString(p, "_")
		if strings.Trim(p, ".") == "" {
			p = "_" + p
		}
		parts[i] = p
	}
	return filepath.Join(Dir, filepath.Join(parts...)+"."+strings.TrimPrefix(ext, "."))
}

// Equal compares got with the golden file of the running test (ext: "txt", "json"); a missing file
// counts as empty. On a difference the test fails and got is left beside the file as .got.
// A test that compares several outputs gives each another ext.
func Equal(t testing.TB, ext string, got []byte) {
	t.Helper()
	path := Path(t, ext)
	used.Lock()
	twice := used.names[path] && !repeated()
	used.names[path] = true
	used.Unlock()
	if twice {
		t.Errorf("golden file %s is compared twice; give another extension", path)
		return
	}
	left := path + ".got"
	if update() {
		if err := write(path, got); err != nil {
			t.Fatalf("update golden file: %v", err)
		}
		os.Remove(left)
		return
	}
	want, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatalf("read golden file: %v", err)
	}
	if bytes.Equal(got, want) {
		os.Remove(left)
		return
	}
	if err := write(left, got); err != nil {
		t.Errorf("keep output: %v", err)
	}
	t.Errorf("output differs from %s, see %s; HETC_UPDATE=1 accepts it\n%s", path, left, firstDifference(string(want), string(got)))
}

func write(path string, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}

// firstDifference shows the first line that differs, with its number.
func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	line := func(s []string, i int) string {
		if i >= len(s) {
			return "(end)"
		}
		if len(s[i]) > 400 {
			return s[i][:400] + "..."
		}
		return s[i]
	}
	for i := 0; i < max(len(w), len(g)); i++ {
		if line(w, i) != line(g, i) || i >= len(w) || i >= len(g) {
			return fmt.Sprintf("line %d\n\twant %s\n\tgot  %s", i+1, line(w, i), line(g, i))
		}
	}
	return "differs in a long line"
}

// Main runs the tests of a package and then fails if a golden file was not used by any of them.
// With -run, -skip, -list, -short, -bench alone or -fuzz only part of the tests run, so nothing is said then.
//
//	func TestMain(m *testing.M) { os.Exit(golden.Main(m)) }
func Main(m interface{ Run() int }) int {
	code := m.Run()
	if code != 0 || partial() {
		return code
	}
	orphans, err := orphans(Dir)
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

func partial() bool {
	for _, name := range []string{"test.run", "test.skip", "test.list", "test.fuzz"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != "" {
			return true
		}
	}
	return testing.Short()
}

// repeated reports whether tests run more than once in this process (-count, -cpu).
func repeated() bool {
	if f := flag.Lookup("test.cpu"); f != nil && strings.Contains(f.Value.String(), ",") {
		return true
	}
	f := flag.Lookup("test.count")
	return f != nil && f.Value.String() != "1"
}

func orphans(dir string) ([]string, error) {
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) && path == dir {
			return nil
		}
		if err != nil {
			return err
		}
		if d.IsDir() || strings.HasSuffix(path, ".got") {
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
