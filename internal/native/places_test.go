package native

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/pins"
)

func putFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// playProgram makes a test believe that it is the program at path.
func playProgram(t *testing.T, path string) {
	t.Helper()
	old := executable
	executable = func() (string, error) { return path, nil }
	t.Cleanup(func() { executable = old })
}

// A folder into which others may put files is not one to take code from, nor is a checkout above it.
func TestSharedFolders(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes of Windows tell nothing of other users")
	}
	root := t.TempDir()
	t.Chdir(root)
	t.Setenv(EnvDir, "")
	playProgram(t, filepath.Join(root, "open", "deep", "bin", "hetc"))
	name := FileNames("calls")[0]
	s := Search{Folder: "calls", Names: FileNames("calls")}
	putFile(t, "open/go.mod", "module github.com/hetc/hetc\n")
	checkoutFile := filepath.Join(root, "open", Deps, "calls", name)
	putFile(t, checkoutFile, "")
	putFile(t, "open/deep/bin/x", "")
	if file, tried, err := Locate(s); file != checkoutFile || err != nil {
		t.Fatalf("got %q, %v, tried %q", file, err, tried)
	}

	if err := os.Chmod("open", 0o777); err != nil {
		t.Fatal(err)
	}
	if file, tried, err := Locate(s); file != "" || err != nil {
		t.Errorf("a checkout that others may write to: got %q, %v, tried %q", file, err, tried)
	}
	putFile(t, "open/deep/bin/"+name, "")
	if err := os.Chmod("open/deep/bin", 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	file, tried, err := Locate(s)
	if file != "" || err != nil || !slices.ContainsFunc(tried, func(s string) bool { return strings.Contains(s, "others may write there") }) {
		t.Errorf("a program in a folder that others may write to: got %q, %v, tried %q", file, err, tried)
	}
	if dirs := Places("calls"); len(dirs) > 0 {
		t.Errorf("places %q, want none", dirs)
	}
}

// A folder that make deps made holds what is pinned, or is refused; what the user names is not checked.
func TestPinned(t *testing.T) {
	known := pins.Of("highs", "", "")
	if len(known) != 1 {
		t.Fatalf("got pins %q, want one", known)
	}
	root := t.TempDir()
	t.Chdir(root)
	playProgram(t, filepath.Join(root, "bin", "hetc"))
	putFile(t, "bin/x", "")
	putFile(t, "go.mod", "module github.com/hetc/hetc\n")
	s := Search{Folder: "highs", Names: []string{"highs.wasm"}}
	refused := func(what string, s Search, want string) {
		t.Helper()
		_, _, err := Locate(s)
		var e *Error
		if !errors.As(err, &e) || e.Problem != Altered || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", what, err, want)
		}
	}
	found := func(what string, s Search, want string) {
		t.Helper()
		file, _, err := Locate(s)
		if abs, _ := filepath.Abs(file); err != nil || abs != filepath.Join(root, want) {
			t.Errorf("%s: got %q, %v, want %q", what, file, err, want)
		}
	}
	t.Setenv(EnvDir, "")
	putFile(t, ".deps/highs/highs.wasm", "planted")
	refused("in the checkout", s, "is not what make deps fetched: sha256 372eb3774802a8d97badd0f3afdabbf7a17ef8a1f900b394db99a460b893406c, want "+known["highs.wasm"])
	putFile(t, ".deps/highs/a.wasm", "planted")
	refused("of another name", Search{Folder: "highs", Names: []string{"a.*"}}, "it fetches no file of that name")

	putFile(t, "mine/highs/highs.wasm", "mine")
	t.Setenv(EnvDir, filepath.Join(root, "mine"))
	found("in a folder of the user", s, "mine/highs/highs.wasm")
	putFile(t, "mine/highs/recipe.json", "{}")
	refused("in a copy of .deps", s, "want "+known["highs.wasm"])
	t.Setenv(EnvDir, filepath.Join(root, "mine", "highs"))
	refused("in a copy of one of its folders", s, "want "+known["highs.wasm"])
	refused("named, and one of those that are pinned", Search{File: "mine/highs/highs.wasm", Folder: "highs"}, "want")
	putFile(t, "mine/highs/other.wasm", "mine")
	_ = os.Remove("mine/highs/highs.wasm")
	found("named", Search{File: "mine/highs/other.wasm", Folder: "highs"}, "mine/highs/other.wasm")
}
