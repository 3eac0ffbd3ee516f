package wholefile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
)

// names returns the names of what a directory holds.
func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// A file is replaced by whatever is written.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	for _, text := range []string{"first", "second, longer", ""} {
		if err := Write(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("got %q, %v, want %q", got, err, text)
		}
	}
	if left := names(t, dir); len(left) != 1 {
		t.Errorf("left %q, want one file", left)
	}
}

// A stream that fails leaves the old file. The error is the source's, of its class or else of class io.
func TestStreamThatFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	if err := Write(path, []byte("kept")); err != nil {
		t.Fatal(err)
	}

	stop := errors.New("stop")
	err := Stream(path, func(w io.Writer) error {
		if _, err := w.Write(make([]byte, 1<<20)); err != nil {
			return err
		}
		return stop
	})
	if !errors.Is(err, stop) || diag.ClassOf(err) != diag.ClassIO {
		t.Errorf("got %v, want the source's error", err)
	}

	refused := diag.New(diag.ClassInput, "a value is NaN")
	err = Stream(path, func(io.Writer) error { return refused })
	if diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("class %d of %v, want the source's", diag.ClassOf(err), err)
	}

	if got, _ := os.ReadFile(path); string(got) != "kept" {
		t.Errorf("a failed write left %d bytes, want the old content", len(got))
	}
	if left := names(t, dir); len(left) != 1 {
		t.Errorf("left %q, want one file", left)
	}
}

// A file is not written over a directory, nor into one that is missing.
func TestWriteNowhere(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir, nil); err == nil || len(diag.HintsOf(err)) == 0 {
		t.Errorf("over a directory: got %v", err)
	}
	if err := Write(filepath.Join(dir, "no", "x"), nil); diag.ClassOf(err) != diag.ClassIO {
		t.Errorf("into a missing directory: got %v", err)
	}
	if left := names(t, dir); len(left) > 0 {
		t.Errorf("left %q, want nothing", left)
	}
}

// No output replaces a private key, under its own name or through a link: there may be no copy of it.
func TestPrivateKeysAreNotReplaced(t *testing.T) {
	for _, label := range []string{"PRIVATE KEY", "EC PRIVATE KEY", "HETC DEV PRIVATE KEY"} {
		dir := t.TempDir()
		path, link := filepath.Join(dir, "release.key"), filepath.Join(dir, "plan.yaml")
		text := "-----BEGIN " + label + "-----\nMC4C\n-----END " + label + "-----\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, link); err != nil {
			link = path
		}

		for what, err := range map[string]error{
			"write":          Write(path, nil),
			"through a link": Write(link, nil),
			"ask":            Writable(path),
		} {
			if diag.ClassOf(err) != diag.ClassIO || len(diag.HintsOf(err)) == 0 {
				t.Errorf("%s, %s: got %v, want an error of class %v with a hint", label, what, err, diag.ClassIO)
			}
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("%s: the key is now %q, %v", label, got, err)
		}
	}
}

// The name "-" is refused with a hint: other programs take it for standard input or output. A file of that name is
// written and read as "./-".
func TestStandardIsNoName(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("e", nil, 0o644); err != nil { // similar, but no hint
		t.Fatal(err)
	}

	_, err := Read("-", 1)
	if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(diag.HintsOf(err)[0], "standard input") {
		t.Errorf("read: got %v with hints %q, want one about standard input", err, diag.HintsOf(err))
	}
	for what, err := range map[string]error{"write": Write("-", nil), "ask": Writable("-")} {
		if diag.ClassOf(err) != diag.ClassUsage || len(diag.HintsOf(err)) == 0 {
			t.Errorf("%s: got %v, want an error of class %v with a hint", what, err, diag.ClassUsage)
		}
	}

	if err := Write("./-", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if got, err := Read("./-", 1); err != nil || string(got) != "x" {
		t.Errorf("a file of that name: got %q, %v", got, err)
	}
}
