package wholefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
)

// A file is read up to a limit of bytes.
func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plan.yaml")
	if err := os.WriteFile(path, []byte("12345"), 0o644); err != nil {
		t.Fatal(err)
	}

	if got, err := Read(path, 5); err != nil || string(got) != "12345" {
		t.Errorf("got %q, %v", got, err)
	}
	_, err := Read(path, 4)
	if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "more than 4 bytes") {
		t.Errorf("a file above the limit: got %v", err)
	}
}

// A file that is missing is an error of input, with a hint of a file with a similar name.
func TestReadMissing(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "plan.yaml"), nil, 0o644); err != nil {
		t.Fatal(err)
	}

	_, err := Read(filepath.Join(dir, "plan.yml"), 5)

	if !errors.Is(err, fs.ErrNotExist) || diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("got %v", err)
	}
	if hints := diag.HintsOf(err); len(hints) != 1 || !strings.Contains(hints[0], "plan.yaml") {
		t.Errorf("a name that was mistyped: hints %q, want plan.yaml", hints)
	}
}

// A directory is not read, and neither is what lies below a file.
func TestReadNoFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "plan.yaml")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}

	_, err := Read(dir, 5)
	if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "it is a directory") {
		t.Errorf("a directory: got %v", err)
	}
	for _, below := range []string{"/x", "/", "/x/y"} {
		_, err := Read(path+below, 5)
		hints := strings.Join(diag.HintsOf(err), "\n")
		if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(hints, "plan.yaml\" is a file and no directory") {
			t.Errorf("a file as directory, %q: got %v with hints %q", below, err, hints)
		}
	}
}

// The file behind a link is written, and the link stays. A link that leads nowhere is an error with a hint.
func TestWriteFollowsLinks(t *testing.T) {
	dir := t.TempDir()
	link, file := filepath.Join(dir, "link"), filepath.Join(dir, "sub", "file")
	if err := os.Mkdir(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Skipf("this system makes no symbolic links: %v", err)
	}

	if err := Write(link, []byte("x")); diag.ClassOf(err) != diag.ClassIO || len(diag.HintsOf(err)) == 0 {
		t.Errorf("a link that leads nowhere: got %v", err)
	}

	if err := os.WriteFile(file, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Write(link, []byte("new")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link was replaced: %v, %v", info, err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "new" {
		t.Errorf("behind the link: got %q, %v", got, err)
	}
}
