//go:build unix

package cas

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hetc/hetc/internal/diag"
)

// The test binary plays another process when it is told which.
func TestMain(m *testing.M) {
	dir := os.Getenv("CAS_DIR")
	switch os.Getenv("CAS_PLAY") {
	case "crash":
		crash(dir, os.Getenv("CAS_STEP"))
	case "user":
		seed, _ := strconv.ParseUint(os.Getenv("CAS_SEED"), 10, 64)
		use(dir, seed)
	case "limited":
		limited(dir)
	}
	os.Exit(m.Run())
}

func play(part, dir string, env ...string) *exec.Cmd {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "CAS_PLAY="+part, "CAS_DIR="+dir)
	c.Env = append(c.Env, env...)
	return c
}

func die(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(1)
}

var victim = KeyOf("test", "victim")

// crash kills itself at a step of Put.
func crash(dir, at string) {
	step = func(s string) {
		if s == at {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	c, err := Open(dir, Options{MaxBytes: 1 << 20})
	if err != nil {
		die("%v", err)
	}
	_, err = c.Put(victim, func(path string) error {
		if err := os.WriteFile(path, []byte("half a con"), 0o600); err != nil {
			return err
		}
		step("half")
		return os.WriteFile(path, []byte("half a content"), 0o600)
	})
	die("not killed at %q: %v", at, err)
}

// A process that is killed at any step leaves the old answer or the new one, and nothing in the making.
func TestKilledBetweenSteps(t *testing.T) {
	for _, at := range []string{"half", "built", "content-stored", "key-written", "stored"} {
		for _, before := range []string{"", "old"} {
			dir := t.TempDir()
			c := open(t, dir, Options{MaxBytes: 1 << 20})
			if before != "" {
				put(t, c, victim, []byte(before))
			}
			out, err := play("crash", dir, "CAS_STEP="+at).CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("%s: %v, want a process that was killed\n%s", at, err, out)
			}
			if len(contents(t, dir, "tmp")) == 0 && at != "stored" && at != "content-stored" {
				t.Errorf("%s: nothing was in the making, so the test shows nothing", at)
			}
			want := before
			if at == "stored" {
				want = "half a content"
			}
			if got := get(t, c, victim); string(got) != want {
				t.Errorf("killed at %s: got %q, want %q", at, got, want)
			}
			next := open(t, dir, Options{MaxBytes: 1 << 20})
			if left := contents(t, dir, "tmp"); len(left) != 0 {
				t.Errorf("killed at %s: the next process left %v", at, left)
			}
			put(t, next, victim, []byte("half a content"))
			// The first process lives: its session is still there.
			put(t, c, KeyOf("test", "other"), []byte("x"))
		}
	}
}

func contentOf(i int) []byte {
	sum := sha256.Sum256(fmt.Append(nil, i))
	return bytes.Repeat(sum[:], 1+i%7*20)
}

// use gets and puts for a while in a small cache, as many processes do at once.
func use(dir string, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	hits := 0
	for range 8 {
		c, err := Open(dir, Options{MaxBytes: 40000})
		if err != nil {
			die("open: %v", err)
		}
		for range 40 {
			i := rng.IntN(30)
			k := KeyOf("test", fmt.Sprint(i))
			e, err := c.Get(k)
			if err == nil {
				hits++
			} else if errors.Is(err, ErrMissing) {
				e, err = c.Put(k, func(path string) error { return os.WriteFile(path, contentOf(i), 0o600) })
			}
			if err != nil {
				die("content %d: %v", i, err)
			}
			if got, err := e.Data(1 << 20); err != nil || !bytes.Equal(got, contentOf(i)) {
				die("content %d: got %d bytes, %v", i, len(got), err)
			}
			e.Close()
			if rng.IntN(10) == 0 { // somebody damages something
				files, _ := filepath.Glob(filepath.Join(dir, version, "*", "*", "*"))
				if files = slices.DeleteFunc(files, func(f string) bool { return strings.Contains(f, "tmp") }); len(files) > 0 {
					_ = os.WriteFile(files[rng.IntN(len(files))], []byte("damage"), 0o600)
				}
			}
		}
		c.Close()
	}
	fmt.Println(hits)
	os.Exit(0)
}

// Several processes put, get, evict and damage in one directory: every answer is right.
func TestManyProcesses(t *testing.T) {
	dir := t.TempDir()
	const processes = 4
	var all []*exec.Cmd
	outs := make([]bytes.Buffer, processes)
	for i := range processes {
		c := play("user", dir, fmt.Sprintf("CAS_SEED=%d", i))
		c.Stdout, c.Stderr = &outs[i], &outs[i]
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	hits := 0
	for i, c := range all {
		if err := c.Wait(); err != nil {
			t.Errorf("process %d: %v\n%s", i, err, outs[i].String())
		}
		n, _ := strconv.Atoi(strings.TrimSpace(outs[i].String()))
		hits += n
	}
	if hits == 0 {
		t.Error("nothing was ever found, so the test shows nothing")
	}
	// Each process may exceed the bound by a sixteenth.
	if n := size(t, contents(t, dir, "data")); n > 40000+processes*(40000/16+4480) {
		t.Errorf("%d bytes are kept, the bound is 40000", n)
	}
	open(t, dir, Options{})
	if left := contents(t, dir, "tmp"); len(left) != 0 {
		t.Errorf("left in the making: %v", left)
	}
}

// limited puts more than it may write, and says what came of it.
func limited(dir string) {
	signal.Ignore(unix.SIGXFSZ)
	c, err := Open(dir, Options{MaxBytes: 1 << 20})
	if err != nil {
		die("%v", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 4096, Max: 4096}); err != nil {
		die("%v", err)
	}
	_, err = c.Put(victim, write(make([]byte, 100000)))
	if !errors.Is(err, unix.EFBIG) {
		die("a content over the limit: %v", err)
	}
	e, err := c.Put(victim, write(make([]byte, 4000)))
	if err != nil {
		die("a content within the limit: %v", err)
	}
	e.Close()
	c.Close()
	os.Exit(0)
}

func TestFileSizeLimit(t *testing.T) {
	dir := t.TempDir()
	if out, err := play("limited", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if left := contents(t, dir, "tmp"); len(left) != 0 {
		t.Errorf("left in the making: %v", left)
	}
	if got := get(t, open(t, dir, Options{}), victim); len(got) != 4000 {
		t.Errorf("%d bytes are kept, want 4000", len(got))
	}
}

// tmpfs mounts a small file system.
func tmpfs(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", options, "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("cannot mount a tmpfs here: %v %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v %s", err, out)
		}
	})
	return dir
}

func TestFullDisk(t *testing.T) {
	dir := tmpfs(t, "size=256k")
	c := open(t, dir, Options{MaxBytes: 1 << 30})
	put(t, c, KeyOf("test", "small"), make([]byte, 1000))
	if _, err := c.Put(victim, write(make([]byte, 1<<20))); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a content larger than the disk: %v, want the error of the write", err)
	}
	if left := contents(t, dir, "tmp"); len(left) != 0 {
		t.Errorf("left in the making: %v", left)
	}
	// A content that fits, but no entry of its own any more.
	var last error
	n := 0
	for ; n < 1000 && last == nil; n++ {
		var e *Entry
		if e, last = c.Put(KeyOf("test", fmt.Sprint(n)), write(bytes.Repeat([]byte{byte(n), byte(n >> 8)}, 1000))); last == nil {
			e.Close()
		}
	}
	if n < 2 || !errors.Is(last, unix.ENOSPC) {
		t.Fatalf("after %d contents: %v, want a full disk", n, last)
	}
	for i := range n - 1 {
		if got := get(t, c, KeyOf("test", fmt.Sprint(i))); len(got) != 2000 {
			t.Fatalf("content %d of %d has %d bytes", i, n, len(got))
		}
	}
	if got := get(t, c, KeyOf("test", fmt.Sprint(n-1))); got != nil {
		t.Error("the content that failed is there")
	}
}

func TestReadOnlyDirectory(t *testing.T) {
	dir := tmpfs(t, "size=256k")
	c := open(t, dir, Options{MaxBytes: 1 << 20})
	put(t, c, victim, []byte("content"))
	c.Close()
	if out, err := exec.Command("mount", "-o", "remount,ro", dir).CombinedOutput(); err != nil {
		t.Skipf("cannot remount here: %v %s", err, out)
	}
	if _, err := Open(dir, Options{}); diag.ClassOf(err) != diag.ClassIO || !errors.Is(err, unix.EROFS) {
		t.Errorf("open for writing: %v, want an error", err)
	}
	if got := get(t, open(t, dir, Options{ReadOnly: true}), victim); string(got) != "content" {
		t.Errorf("open for reading: got %q", got)
	}
}

// Whoever writes to the cache decides what is built.
func TestOpenToStrangers(t *testing.T) {
	mode := func(path string, m fs.FileMode) {
		if err := os.Chmod(path, m); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(what, dir string) {
		t.Helper()
		if _, err := Open(dir, Options{}); diag.ClassOf(err) != diag.ClassIO || len(diag.HintsOf(err)) == 0 {
			t.Errorf("%s: %v, want a refusal with a hint", what, err)
		}
	}
	dir := t.TempDir()
	mode(dir, 0o777)
	refused("a directory everybody may write to", dir)
	mode(dir, 0o777|fs.ModeSticky)
	open(t, dir, Options{})
	open(t, dir, Options{}) // our own of the first time
	inner := filepath.Join(dir, version)
	mode(inner, 0o707)
	refused("inside, everybody may write", dir)
	mode(inner, 0o700)
	if os.Geteuid() == 0 {
		if err := os.Chown(inner, 65534, -1); err != nil {
			t.Fatal(err)
		}
		refused("a stranger was there before", dir)
	}
	if err := os.RemoveAll(inner); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(t.TempDir(), inner); err != nil {
		t.Fatal(err)
	}
	refused("a stranger's link", dir)
}
