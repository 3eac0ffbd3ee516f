package depcheck

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const modulePath = "github.com/hetc/hetc"

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil || !strings.HasPrefix(string(b), "module "+modulePath+"\n") {
		t.Fatalf("%s is not the root of module %s: %v", dir, modulePath, err)
	}
	return dir
}

func TestImportPolicy(t *testing.T) {
	m, err := load(root(t), modulePath)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.pkgs) < 10 {
		t.Fatalf("only %d packages found below %s", len(m.pkgs), root(t))
	}
	for _, f := range m.check(table) {
		t.Error(f)
	}
}

// TestHetrunLinks checks what the programs that execute bundles are made of: their own source under all build tags, and
// everything the go tool links into them here. hetserve is hetrun with HTTP.
func TestHetrunLinks(t *testing.T) {
	m, err := load(root(t), modulePath)
	if err != nil {
		t.Fatal(err)
	}
	for program, may := range map[string]string{"cmd/hetrun": "", "cmd/hetserve": "net/http"} {
		refuse := func(name, by string) {
			within := may != "" && (name == may || strings.HasPrefix(name, may+"/"))
			if reason := never(name); reason != "" && !within {
				t.Errorf("%s links %s%s: %s", program, name, by, reason)
			}
		}
		for name, by := range m.links(program) {
			refuse(name, " through "+by)
		}
		out, err := exec.Command("go", "list", "-deps", modulePath+"/"+program).Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		names := strings.Fields(string(out))
		if !slices.Contains(names, modulePath+"/runtime/executor") {
			t.Errorf("%s does not link the executor; got %d packages", program, len(names))
		}
		if may != "" && !slices.Contains(names, may) {
			t.Errorf("%s does not link %s, which it alone may", program, may)
		}
		for _, name := range names {
			refuse(strings.TrimPrefix(name, modulePath+"/"), "")
		}
	}
}

// never returns why hetrun must not link a package, "" when it may. Sub-packages count with
// their parent, but the file format models/safetensors stands alone.
func never(name string) string {
	if name == "models/safetensors" {
		return ""
	}
	for p, reason := range hetrunNever {
		if name == p || p != "testing" && strings.HasPrefix(name, p+"/") {
			return reason
		}
	}
	return ""
}

// TestTable checks the policy itself: no row twice, no unknown room, no cycle, bindings only in cmd.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for i := range table {
		r := &table[i]
		if seen[r.path] {
			t.Errorf("%s has two rows", r.path)
		}
		seen[r.path] = true
		for _, to := range r.may {
			if to != everything && rowOf(table, to) == nil {
				t.Errorf("row %s names unknown room %s", r.path, to)
			}
			if slices.Contains(cmdOnly, to) && !strings.HasPrefix(r.path, "cmd/") {
				t.Errorf("row %s may not permit %s: only command lines import it", r.path, to)
			}
		}
		if slices.Contains(r.may, everything) && !strings.HasPrefix(r.path, "cmd/") {
			t.Errorf("row %s may not permit everything", r.path)
		}
		reach, _ := closure(table, r)
		if reach[r.path] && !slices.Contains(helpers, r.path) {
			t.Errorf("row %s permits a cycle", r.path)
		}
	}
	for _, r := range cmdOnly {
		if rowOf(table, r) == nil {
			t.Errorf("unknown room %s", r)
		}
	}
}

// TestBreachesAreFound writes small modules with one fault each.
func TestBreachesAreFound(t *testing.T) {
	rows := []room{
		{path: "internal/diag"},
		{path: "a", may: []string{"b"}},
		{path: "b", may: []string{"c"}, third: []string{"example.com/x"}},
		{path: "c"},
		{path: "d"},
		{path: "p/*", may: []string{"c"}},
		{path: "cmd/x", may: []string{everything}},
	}
	base := map[string]string{
		"internal/diag/d.go": "// Package diag knows d.\npackage diag\n",
		"a/a.go":             "// Package a knows a.\npackage a\nimport (\n\"m/b\"\n\"m/c\"\n\"m/internal/diag\"\n)\nvar _, _, _ = b.X, c.X, diag.X\n",
		"b/b.go":             "// Package b knows b.\npackage b\nimport (\n\"example.com/x/y\"\n\"m/c\"\n)\nvar _, _ = y.X, c.X\n",
		"c/c.go":             "// Package c knows c.\npackage c\nvar X int\n",
		"d/d.go":             "// Package d knows d.\npackage d\n",
		"p/o/o.go":           "// Package o knows o.\npackage o\nimport _ \"m/c\"\n",
		"cmd/x/x.go":         "package main\n",
	}
	tests := []struct {
		name, file, text, want string
	}{
		{"nothing wrong", "c/more.go", "package c\n", ""},
		{"test files are free", "c/c_test.go", "package c\nimport _ \"m/a\"\n", ""},
		{"testdata is free", "c/testdata/x.go", "package broken !", ""},
		{"forbidden edge", "c/bad.go", "package c\nimport _ \"m/d\"\n", "c/bad.go:2: c may not import d"},
		{"forbidden edge for another system", "c/bad_windows.go", "//go:build never\n\npackage c\nimport _ \"m/d\"\n", "c/bad_windows.go:4: c may not import d"},
		{"upwards", "c/bad.go", "package c\nimport _ \"m/a\"\n", "c/bad.go:2: c may not import a"},
		{"room without a row", "e/e.go", "// Package e knows e.\npackage e\n", "e: package without a row in internal/depcheck/table.go"},
		{"pattern", "p/q/q.go", "// Package q knows q.\npackage q\nimport _ \"m/d\"\n", "p/q/q.go:3: p/q may not import d"},
		{"other module", "c/bad.go", "package c\nimport _ \"example.com/x\"\n", "c/bad.go:2: c may not import module example.com/x"},
		{"module with a like name", "b/bad.go", "package b\nimport _ \"example.com/xyz\"\n", "b/bad.go:2: b may not import module example.com/xyz"},
		{"unsafe", "c/bad.go", "package c\nimport _ \"unsafe\"\n", "c/bad.go:2: import of \"unsafe\" is not allowed in c: memory and foreign calls have one home"},
		{"cgo", "c/bad.go", "package c\nimport \"C\"\n", "c/bad.go:2: import of \"C\" is not allowed in c: no cgo"},
		{"clock", "c/bad.go", "package c\nimport clock \"time\"\nvar T = clock.Now\n", "c/bad.go:3: time.Now is not allowed in c: no clock value reaches a stored byte; pass a context or a stopwatch in"},
		{"clock in a command", "cmd/x/main.go", "package main\nimport \"time\"\nvar T = time.Now()\n", ""},
		{"duration is no clock", "c/good.go", "package c\nimport \"time\"\nvar T = time.Second\n", ""},
		{"unseeded", "c/bad.go", "package c\nimport \"math/rand/v2\"\nvar T = rand.Int()\n", "c/bad.go:3: rand.Int is not allowed in c: randomness is seeded: rand.New(rand.NewPCG(seed, 0))"},
		{"seeded", "c/good.go", "package c\nimport \"math/rand/v2\"\nvar T = rand.New(rand.NewPCG(1, 2))\n", ""},
		{"signing", "c/bad.go", "package c\nimport \"crypto/ed25519\"\nvar T = ed25519.Sign\n", "c/bad.go:3: ed25519.Sign is not allowed in c: signing stays out of the runtime"},
		{"verifying", "c/good.go", "package c\nimport \"crypto/ed25519\"\nvar T = ed25519.Verify\n", ""},
		{"name", "p/util/u.go", "// Package util knows u.\npackage util\n", "p/util: the name says nothing about what the package knows"},
		{"no sentence", "p/q/q.go", "// Package q does things.\npackage q\n", `p/q: the package comment does not begin with "Package q knows "`},
		{"command importing all", "cmd/x/main.go", "package main\nimport _ \"m/a\"\nimport _ \"m/d\"\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			put(t, dir, base)
			put(t, dir, map[string]string{tt.file: tt.text})
			m, err := load(dir, "m")
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(m.check(rows), "\n"); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
	for file, want := range map[string]string{
		"a/a.go": "a: the row permits b, which no package of it imports",
		"b/b.go": "b: the row permits c, which no package of it imports|b: the row permits module example.com/x, which no package of it imports",
	} {
		t.Run("unused permission of "+file, func(t *testing.T) {
			dir := t.TempDir()
			put(t, dir, base)
			name := path.Dir(file)
			put(t, dir, map[string]string{file: "// Package " + name + " knows nothing.\npackage " + name + "\nvar X int\n"})
			m, err := load(dir, "m")
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(m.check(rows), "|"); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
	t.Run("missing room", func(t *testing.T) {
		dir := t.TempDir()
		put(t, dir, base)
		os.RemoveAll(filepath.Join(dir, "d"))
		m, err := load(dir, "m")
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(m.check(rows), "\n"); got != "d: row without a package" {
			t.Errorf("got %s", got)
		}
	})
}

func TestLinksFollowsImports(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, map[string]string{
		"a/a.go": "package a\nimport _ \"m/b\"\n",
		"b/b.go": "//go:build never\n\npackage b\nimport _ \"m/c\"\nimport _ \"example.com/y\"\n",
		"c/c.go": "package c\n",
	})
	m, err := load(dir, "m")
	if err != nil {
		t.Fatal(err)
	}
	got := m.links("a")
	if got["c"] != "b" || got["example.com/y"] != "b" || got["b"] != "a" || len(got) != 3 {
		t.Errorf("got %v", got)
	}
}

func put(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
