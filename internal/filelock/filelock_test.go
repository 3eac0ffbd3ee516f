package filelock

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// The test binary is also the process that holds a lock until it is killed.
func TestMain(m *testing.M) {
	if path := os.Getenv("HETC_TEST_LOCK"); path != "" {
		f, err := os.Open(path)
		if err == nil {
			err = Try(f)
		}
		if err != nil {
			os.Exit(1)
		}
		os.Stdout.WriteString("locked")
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed, or whoever started it died
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// places are what can be locked: a file and a directory. The test ends where there are no locks.
func places(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Try(open(t, file)); errors.Is(err, errors.ErrUnsupported) {
		t.Skipf("no locks here: %v", err)
	}
	if err := os.Remove(file); err != nil { // that is locked still
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return []string{file, dir}
}

// One opening of a file holds the lock, until it is closed; who waits gets it then.
func TestOneHolder(t *testing.T) {
	for _, path := range places(t) {
		first, second := open(t, path), open(t, path)
		if err := Try(first); err != nil {
			t.Fatal(err)
		}
		if err := Try(first); err != nil {
			t.Errorf("the holder again: %v", err)
		}
		if err := Try(second); !errors.Is(err, ErrBusy) {
			t.Errorf("another opening: got %v, want %v", err, ErrBusy)
		}
		got := make(chan error)
		go func() { got <- Wait(second) }()
		select {
		case err := <-got:
			t.Fatalf("did not wait: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil {
			t.Errorf("after the holder closed it: %v", err)
		}
	}
}

// The lock of a process that is killed is free.
func TestKilledHolder(t *testing.T) {
	for _, path := range places(t) {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), "HETC_TEST_LOCK="+path)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Errorf("the process got no lock: %v", err)
		}
		f := open(t, path)
		if err := Try(f); !errors.Is(err, ErrBusy) {
			t.Errorf("while the process lives: got %v, want %v", err, ErrBusy)
		}
		_ = c.Process.Kill()
		_ = c.Wait() // "signal: killed"
		if err := Try(f); err != nil {
			t.Errorf("after its end: %v", err)
		}
	}
}

// Open makes a file that is missing, opens one that is there, and follows no link.
func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	for range 2 {
		f, err := Open(path, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Skipf("this system makes no symbolic links: %v", err)
	}
	if f, err := Open(link, 0o600); err == nil && openFlags != 0 {
		f.Close()
		t.Error("a link was followed")
	}
}
