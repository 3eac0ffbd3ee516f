//go:build linux || darwin || freebsd

package wholefile

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// streamEnv names the file that a process of the tests is to write.
const streamEnv = "HETC_TEST_STREAM"

// TestMain is also the process that the tests kill in the middle of Stream.
func TestMain(m *testing.M) {
	path := os.Getenv(streamEnv)
	if path == "" {
		os.Exit(m.Run())
	}
	if err := streamSlowly(path); err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	os.Exit(0)
}

// streamSlowly writes more than is buffered, says so, and ends with its input.
func streamSlowly(path string) error {
	return Stream(path, func(w io.Writer) error {
		if _, err := io.WriteString(w, childText); err != nil {
			return err
		}
		os.Stdout.WriteString("writing\n")
		_, err := io.Copy(w, os.Stdin)
		return err
	})
}

// childText is what a process of the tests writes.
var childText = strings.Repeat("child ", 1<<18)

// begin starts a process that is in the middle of Stream. end ends its input and waits for it.
func begin(t *testing.T, path string) (process *exec.Cmd, end func() error) {
	t.Helper()
	process = exec.Command(os.Args[0])
	process.Env = append(os.Environ(), streamEnv+"="+path)
	process.Stderr = os.Stderr
	in, err := process.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}

	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "writing\n" {
		t.Fatalf("the process said %q, %v", line, err)
	}
	return process, func() error {
		_ = in.Close() // of a process that may be dead
		return process.Wait()
	}
}

// The next writer of a file removes what a process left that was killed while it wrote the file.
func TestKilledWriter(t *testing.T) {
	for name, write := range map[string]func(path string) error{
		"Write": func(path string) error { return Write(path, []byte("new")) },
		"Adopt": func(path string) error {
			own := filepath.Join(filepath.Dir(filepath.Dir(path)), "own")
			if err := os.WriteFile(own, []byte("new"), 0o644); err != nil {
				return err
			}
			return Adopt(own, path)
		},
		"RemoveLeftBehind": func(path string) error {
			RemoveLeftBehind(path)
			return os.WriteFile(path, []byte("new"), 0o644)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "d")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "a")
			for range 2 {
				process, end := begin(t, path)
				if err := process.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				if err := end(); err == nil {
					t.Fatal("the process ended before it was killed")
				}
			}
			left := names(t, dir)
			if len(left) == 0 || slices.Contains(left, "a") {
				t.Fatalf("killed processes left %q, want what was in the making", left)
			}

			if err := write(path); err != nil {
				t.Fatal(err)
			}

			if got := names(t, dir); !slices.Equal(got, []string{"a"}) {
				t.Errorf("left %q, want the file alone", got)
			}
		})
	}
}

// Two processes that write one file at the same time both succeed, and the contents of the one that ends last stay.
func TestLivingWriter(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	_, end := begin(t, path)

	for range 3 {
		if err := Write(path, []byte("parent")); err != nil {
			t.Fatal(err)
		}
		RemoveLeftBehind(path)
	}

	if got, err := os.ReadFile(path); string(got) != "parent" {
		t.Errorf("after the first one: %.20q, %v", got, err)
	}
	if got := names(t, dir); len(got) != 2 {
		t.Errorf("while the second one writes: %q, want its file too", got)
	}

	if err := end(); err != nil {
		t.Errorf("the second one: %v", err)
	}
	if got, err := os.ReadFile(path); string(got) != childText {
		t.Errorf("after the second one: %.20q, %v", got, err)
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("left %q", got)
	}
}

// Writers of one file in this process do not remove each other's files, and a reader sees the text of one of them.
func TestWritersSideBySide(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			text := strings.Repeat(string(rune('a'+i)), 1000)
			for range 40 {
				if err := Write(path, []byte(text)); err != nil {
					t.Error(err)
				}
				got, err := os.ReadFile(path)
				if err != nil || len(got) != len(text) || strings.Trim(string(got), string(got[:1])) != "" {
					t.Errorf("read %.20q, %v: want the text of one writer", got, err)
				}
			}
		})
	}
	all.Wait()
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("left %q", got)
	}
}

// Files with similar names, and what is no file, are not removed.
func TestOthersStay(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	others := []string{
		".a.1-.tmp",
		".a.1-0",
		".a.1-0.tmp.bak",
		".a.1-0x.tmp",
		".a.12.tmp",
		".a.aaaa-0.tmp",
		".ab.1-0.tmp",
		".b.1-0.tmp",
		"a.1-0.tmp",
	}
	leftBehind := []string{".a.1-0.tmp", ".a.4194304-17.tmp"}
	for _, name := range slices.Concat(others, leftBehind) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, ".a.2-0.tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a", filepath.Join(dir, ".a.3-0.tmp")); err != nil {
		t.Fatal(err)
	}

	if err := Write(path, []byte("new")); err != nil {
		t.Fatal(err)
	}

	want := slices.Concat(others, []string{"a", ".a.2-0.tmp", ".a.3-0.tmp"})
	slices.Sort(want)
	if got := names(t, dir); !slices.Equal(got, want) {
		t.Errorf("left %q, want %q", got, want)
	}
}

// A file that is abandoned leaves nothing, and a stream whose source panics leaves nothing either.
func TestAbandon(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")

	f, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Abandon(); err != nil {
		t.Error(err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = Stream(path, func(io.Writer) error { panic("defect") })
	}()

	if got := names(t, dir); len(got) > 0 {
		t.Errorf("left %q, want nothing", got)
	}
}

// A file that cannot be committed leaves nothing, and the error does not show its temporary name.
func TestCommitThatFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	f, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o755); err != nil { // appears while the file is written
		t.Fatal(err)
	}

	if err := f.Commit(); err == nil || strings.Contains(err.Error(), ".tmp") {
		t.Errorf("over a directory: got %v, want an error without temporary names", err)
	}
	if err := f.Abandon(); err != nil {
		t.Errorf("after it was committed: %v", err)
	}
	if got := names(t, dir); !slices.Equal(got, []string{"a"}) {
		t.Errorf("left %q, want the directory alone", got)
	}
}

// The longest name that the system permits can be written, though the temporary name has more than the name.
func TestLongestName(t *testing.T) {
	for _, name := range []string{strings.Repeat("x", 255), strings.Repeat("ü", 127) + "x"} {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Skipf("a name of %d bytes: %v", len(name), err)
		}
		left := filepath.Join(filepath.Dir(file), filepath.Base(temporary(file, 7)))
		if err := os.WriteFile(left, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := Write(file, []byte("new")); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(file); err != nil || string(data) != "new" {
			t.Errorf("got %q, %v", data, err)
		}
		if _, err := os.Stat(left); err == nil {
			t.Error("what another process left behind is still there")
		}
		dir := filepath.Join(t.TempDir(), name)
		if err := Directory(dir, func(string) error { return nil }); err != nil {
			t.Error(err)
		}
	}
}
