//go:build linux || darwin || freebsd

package main

import (
	"bytes"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// hostBundle emits the demo model for this machine, from few measurements, and returns the bundle and its key.
func hostBundle(t *testing.T) (app, key string) {
	t.Helper()
	d := &dir{T: t, path: t.TempDir()}
	model, err := filepath.Abs("../../testdata/models/tiny-llama-kjv")
	d.must(err)
	d.must(os.Symlink(model, d.at("m")))
	d.write("w.yaml", header+"buckets: [16]\ncontext: 256\n")
	d.hetc("probe -o soc.yaml")
	d.hetc("profile --soc soc.yaml --model m --workload w.yaml -o rec.jsonl --budget 3s")
	d.hetc("solve --soc soc.yaml --record rec.jsonl --model m --workload w.yaml -o plan.yaml")
	d.hetc("keygen --out k")
	d.hetc("emit --plan plan.yaml --model m --soc soc.yaml --key k.key -o app.hetb")
	return d.at("app.hetb"), d.at("k.pub")
}

// damages are what happens to a bundle while it runs.
var damages = []struct {
	name     string
	do       func(path, other string) error
	harmless bool
}{
	{"cut to nothing", func(path, _ string) error { return os.Truncate(path, 0) }, false},
	{"cut in half", func(path, _ string) error {
		st, err := os.Stat(path)
		if err != nil {
			return err
		}
		return os.Truncate(path, st.Size()/2)
	}, false},
	{"cp over it", func(path, other string) error { return exec.Command("cp", other, path).Run() }, false},
	{"written over in place", func(path, other string) error {
		return exec.Command("dd", "if="+other, "of="+path, "conv=notrunc", "bs=1M").Run()
	}, false},
	{"mv over it", func(path, other string) error {
		if err := exec.Command("cp", other, path+".new").Run(); err != nil {
			return err
		}
		return os.Rename(path+".new", path)
	}, true},
}

// A bundle that is cut, or overwritten, while it runs never crashes the run, and nothing that was computed with it
// afterwards is printed: what is printed is what the whole bundle gives, or the beginning of it with an exit code that says
// so. With --copy nothing matters that comes after the check.
func TestBundleDamagedInUse(t *testing.T) {
	require.Slow(t)
	app, key := hostBundle(t)
	start := func(path, kernels string, flags ...string) (*exec.Cmd, *lines, *bytes.Buffer) {
		tokens := "200"
		if kernels == kernel.Portable().Name { // which are slower
			tokens = "40"
		}
		args := append([]string{path, "--trust", key, "--any-machine", "--prompt", "In the beginning", "--max-tokens", tokens}, flags...)
		c, out, errs := exec.Command("hetrun", args...), newLines(), new(bytes.Buffer)
		c.Env = append(os.Environ(), kernel.EnvVar+"="+kernels)
		c.Stdout, c.Stderr = out, errs
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		return c, out, errs
	}
	data, err := os.ReadFile(app)
	if err != nil {
		t.Fatal(err)
	}
	other := app + ".other"
	random := rand.New(rand.NewSource(1))
	changed := bytes.Clone(data)
	for i := len(changed) / 10; i < len(changed); i += 100 {
		changed[i] ^= byte(random.Intn(256))
	}
	if err := os.WriteFile(other, changed, 0o644); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "in-use.hetb")
	for _, set := range []*kernel.Set{kernel.Portable(), kernel.Best()} { // TestWeightsThatVanish has all of them
		c, whole, errs := start(app, set.Name)
		if err := c.Wait(); err != nil {
			t.Fatalf("%v\n%s", err, errs)
		}
		text := strings.TrimSuffix(whole.String(), "\n")
		for _, damage := range damages {
			for _, flags := range [][]string{nil, nil, {"--copy"}} {
				if err := os.WriteFile(path, data, 0o644); err != nil {
					t.Fatal(err)
				}
				c, out, errs := start(path, set.Name, flags...)
				private := len(flags) > 0
				if private || random.Intn(3) > 0 { // else perhaps while it is loaded
					select {
					case <-out.first:
					case <-time.After(time.Minute):
						t.Errorf("%s: no text after a minute", set.Name)
					}
				}
				time.Sleep(time.Duration(random.Intn(80)) * time.Millisecond)
				if err := damage.do(path, other); err != nil {
					t.Fatal(err)
				}
				_ = c.Wait()
				code, got := c.ProcessState.ExitCode(), strings.TrimSuffix(out.String(), "\n")
				switch {
				case code == 0 && got == text:
				case private || damage.harmless:
					t.Errorf("%s, %s, %v: exit code %d, text %q\n%s", set.Name, damage.name, flags, code, got, errs)
				case code != 9 && code != 5, !strings.HasPrefix(text, got), !strings.Contains(errs.String(), "in-use.hetb"), !strings.Contains(errs.String(), "hint: "):
					t.Errorf("%s, %s: exit code %d, %d bytes of text, want 9 (or 5 while it is loaded), the beginning of the text, and an error that names the bundle\n%s",
						set.Name, damage.name, code, len(got), errs)
				}
			}
		}
	}
}

// lines is what a command prints; first is closed when there is something.
type lines struct {
	text  strings.Builder
	first chan struct{}
}

func newLines() *lines { return &lines{first: make(chan struct{})} }

func (l *lines) Write(p []byte) (int, error) {
	if l.text.Len() == 0 && len(p) > 0 {
		close(l.first)
	}
	return l.text.Write(p)
}

func (l *lines) String() string { return l.text.String() }
