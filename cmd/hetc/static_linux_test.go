package main

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The static hetrun is one file that needs nothing else: no loader, no library, no /proc.
func TestStaticOnEmptyImage(t *testing.T) {
	root := t.TempDir()
	exe := filepath.Join(root, "hetrun")
	build := exec.Command("go", "build", "-trimpath", "-tags", "hetc_static", "-ldflags", "-s -w", "-o", exe, "../hetrun")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	st, err := os.Stat(exe)
	if err != nil {
		t.Fatal(err)
	}
	if limit := int64(15_000_000); st.Size() > limit {
		t.Errorf("hetrun has %d bytes, want at most %d", st.Size(), limit)
	}
	f, err := elf.Open(exe)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("hetrun has a segment %v: it is not static", p.Type)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("changing the root directory needs root: hetrun was built and looked at, not run on an empty image")
	}

	whole := artifacts(t)
	d := &dir{T: t, path: root, artifacts: whole.path, model: whole.model}
	d.must(os.Symlink(d.model, d.at("model")))
	soc := strings.Replace(boardSoC("host"), "cpu-0000000000000000", hostFingerprint(), 1)
	d.write("soc.yaml", soc)
	d.write("w.yaml", header+"buckets: [16]\ncontext: 64\n")
	d.hetc("profile --soc soc.yaml --model model --workload w.yaml -o rec.jsonl --budget 1s")
	d.hetc("solve --soc soc.yaml --record rec.jsonl --model model --workload w.yaml -o plan.yaml")
	d.hetc("keygen --out k")
	d.hetc("emit --plan plan.yaml --soc soc.yaml --model model --key k.key -o app.hetb")
	line := []string{"app.hetb", "--trust", "k.pub", "--prompt", "In the beginning God created", "--max-tokens", "8", "--stats"}
	run := func(c *exec.Cmd) string {
		var out, errw bytes.Buffer
		c.Stdout, c.Stderr = &out, &errw
		if err := c.Run(); err != nil {
			t.Fatalf("%v: %v\n%s", c.Args, err, errw.String())
		}
		return out.String()
	}
	here := exec.Command("hetrun", line...)
	here.Dir = root
	want, _, _ := strings.Cut(run(here), "\n")
	image := &exec.Cmd{Path: "/hetrun", Args: append([]string{"hetrun"}, line...), Dir: "/", Env: []string{}, SysProcAttr: &syscall.SysProcAttr{Chroot: root}}
	out := run(image)
	if text, _, _ := strings.Cut(out, "\n"); text != want || !strings.HasPrefix(text, "In the beginning") {
		t.Errorf("on an empty image: %q, want %q", text, want)
	}
	for _, part := range []string{"load and verify weights", "first token"} {
		if !strings.Contains(out, part) {
			t.Errorf("--stats says nothing about %q:\n%s", part, out)
		}
	}
}
