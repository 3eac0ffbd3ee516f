package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/require"
)

const processMatrix = `schema: hetc.build/1
models: [arch/llama-plain, arch/mistral-full]
socs: [apple-m2-ultra, core-ultra-5-125h]
workloads: [chat.yaml]
key: k.key
`

// TestBuildProcesses kills, interrupts, doubles and starves builds: what they leave is always whole, and
// in the end the same as what an undisturbed build with one job makes.
func TestBuildProcesses(t *testing.T) {
	require.Slow(t)
	dir := t.TempDir()
	arch, err := filepath.Abs("../../testdata/arch")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(arch, filepath.Join(dir, "arch")); err != nil {
		t.Skipf("no links here: %v", err)
	}
	for name, text := range map[string]string{"hetc.yaml": processMatrix, "chat.yaml": "schema: hetc.workload/1\nbuckets: [16]\ncontext: 64\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	hetc := func(args ...string) *exec.Cmd {
		c := exec.Command("hetc", args...)
		c.Dir = dir
		return c
	}
	build := func(cache, out string, more ...string) *exec.Cmd {
		return hetc(append([]string{"build", "--cache", cache, "-o", out}, more...)...)
	}
	must := func(t *testing.T, c *exec.Cmd) string {
		t.Helper()
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", c.Args, err, out)
		}
		return string(out)
	}
	files := func(t *testing.T, below string) map[string]string {
		t.Helper()
		all := map[string]string{}
		err := filepath.WalkDir(filepath.Join(dir, below), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			rel, _ := filepath.Rel(filepath.Join(dir, below), path)
			all[filepath.ToSlash(rel)] = string(data)
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return all
	}
	same := func(t *testing.T, out string, want map[string]string) {
		t.Helper()
		got := files(t, out)
		if a, b := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(a, b) {
			t.Fatalf("%s holds %q, want %q", out, a, b)
		}
		for name := range want {
			if got[name] != want[name] {
				t.Errorf("%s/%s differs from an undisturbed build's", out, name)
			}
		}
	}
	// whole reports files that are neither in the making nor right.
	whole := func(t *testing.T, out string, want map[string]string) int {
		t.Helper()
		n := 0
		for name, data := range files(t, out) {
			if strings.HasPrefix(filepath.Base(name), ".") {
				continue
			}
			if n++; data != want[name] {
				t.Fatalf("%s/%s is not what it becomes: %d bytes of %d", out, name, len(data), len(want[name]))
			}
		}
		return n
	}

	must(t, hetc("keygen", "--out", "k"))
	must(t, build("cache0", "out0", "--jobs", "1"))
	want := files(t, "out0")
	if len(want) != 8 {
		t.Fatalf("an undisturbed build makes %q, want 8 files", slices.Sorted(maps.Keys(want)))
	}

	t.Run("killed", func(t *testing.T) {
		kills := 0
		// Each build lives a quarter longer than the one before, so that a slow machine is killed no more than some 30 times.
		for life := 30 * time.Millisecond; ; life += life / 4 {
			c := build("cache1", "out1", "--jobs", "4")
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			kill := time.AfterFunc(life, func() { _ = c.Process.Kill() })
			err := c.Wait()
			kill.Stop()
			n := whole(t, "out1", want)
			if err == nil {
				break
			}
			if kills++; kills > 100 {
				t.Fatalf("no end, with %d files", n)
			}
		}
		if kills < 3 {
			t.Errorf("killed %d times, want at least 3", kills)
		}
		same(t, "out1", want)
		for name := range files(t, "cache1/v1/tmp") {
			if name != "lock" {
				t.Errorf("left in the cache: %s", name)
			}
		}
	})

	t.Run("interrupted", func(t *testing.T) {
		if runtime.GOOS == "windows" {
			t.Skip("processes cannot be interrupted there")
		}
		for i, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
			cache, out := fmt.Sprintf("cache2%d", i), fmt.Sprintf("out2%d", i)
			c := build(cache, out)
			var errs bytes.Buffer
			c.Stderr = &errs
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline) && whole(t, out, want) == 0; {
				time.Sleep(5 * time.Millisecond)
			}
			if err := c.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			_ = c.Wait()
			if code := c.ProcessState.ExitCode(); code != 130 {
				t.Fatalf("%v: exit code %d, want 130\n%s", signal, code, errs.String())
			}
			if !strings.Contains(errs.String(), "interrupted after") || !strings.Contains(errs.String(), "goes on where it stopped") {
				t.Errorf("%v: %q does not say how to go on", signal, errs.String())
			}
			if n := whole(t, out, want); n == 0 || n == len(want) || len(files(t, out)) != n {
				t.Errorf("%v: %d whole files of %d", signal, n, len(files(t, out)))
			}
			must(t, build(cache, out))
			same(t, out, want)
		}
	})

	t.Run("at once", func(t *testing.T) {
		var all []*exec.Cmd
		outs := make([]bytes.Buffer, 4)
		for i, out := range []string{"out3", "out3", "out4", "out3"} {
			c := build("cache3", out, "--jobs", "2")
			c.Stdout, c.Stderr = &outs[i], &outs[i]
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			all = append(all, c)
		}
		for i, c := range all {
			if err := c.Wait(); err != nil {
				t.Errorf("%v: %v\n%s", c.Args, err, outs[i].String())
			}
		}
		same(t, "out3", want)
		same(t, "out4", want)
	})

	t.Run("damaged cache", func(t *testing.T) {
		damaged := 0
		for _, kind := range []string{"data", "keys"} {
			err := filepath.WalkDir(filepath.Join(dir, "cache3/v1", kind), func(path string, d fs.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				data, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				switch damaged++; {
				case kind == "keys" && damaged%2 == 0:
					return nil // these find damaged contents
				case damaged%3 == 0:
					data = data[:len(data)/2]
				default:
					data[len(data)/2] ^= 4
				}
				return os.WriteFile(path, data, 0o600)
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if damaged < 20 {
			t.Fatalf("%d files in the cache, want some", damaged)
		}
		if err := os.RemoveAll(filepath.Join(dir, "out4")); err != nil {
			t.Fatal(err)
		}
		if out := must(t, build("cache3", "out4")); !strings.Contains(out, "out4: 4 built") {
			t.Errorf("a damaged cache was not noticed:\n%s", out)
		}
		same(t, "out4", want)
		if out := must(t, build("cache3", "out3")); !strings.Contains(out, "out3: 4 unchanged") {
			t.Errorf("after the repair:\n%s", out)
		}
	})

	t.Run("full disk", func(t *testing.T) {
		for _, full := range []string{"cache5", "out5"} {
			mount := filepath.Join(dir, full)
			if err := os.Mkdir(mount, 0o755); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", mount).CombinedOutput(); err != nil {
				t.Skipf("cannot mount a tmpfs here: %v %s", err, out)
			}
			defer func() {
				if out, err := exec.Command("umount", mount).CombinedOutput(); err != nil {
					t.Errorf("umount: %v %s", err, out)
				}
			}()
			cache, out := "cache5", "out5"
			if full == "out5" {
				cache = "cache0"
			} else {
				out = "out6"
			}
			c := build(cache, out, "--jobs", "1")
			text, _ := c.CombinedOutput()
			if code := c.ProcessState.ExitCode(); code != 9 {
				t.Fatalf("full %s: exit code %d, want 9\n%s", full, code, text)
			}
			if !bytes.Contains(text, []byte("no space left on device")) || !bytes.Contains(text, []byte("free space on the device")) {
				t.Errorf("full %s: the reason or the way out is missing\n%s", full, text)
			}
			if n := whole(t, out, want); n == len(want) || len(files(t, out)) != n {
				t.Errorf("full %s: %d whole files of %d", full, n, len(files(t, out)))
			}
		}
		// With room the same directories work.
		must(t, build("cache0", "out6"))
		same(t, "out6", want)
	})
}
