package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hetc/hetc/internal/require"
)

// Commands that write to a disk, $D.
var writers = map[string]string{
	"fit":    "hetc fit --soc snapdragon-8gen3 --record $A/rec.jsonl -o $D/x",
	"solve":  "hetc solve --soc snapdragon-8gen3 --costs $A/costs.yaml --model $A/model -o $D/x",
	"keygen": "hetc keygen --out $D/x",
	"emit":   "hetc emit --plan $A/plan.yaml --model $A/model --key $A/k.key -o $D/x",
	"synth":  "hetc models synth qwen2-0.5b -o $D/x",
	"gguf":   "hetc models synth qwen2-0.5b -o $D/x.gguf --type f16",
	"export": "hetc models export $A/model -o $D/y.gguf --type f16",
}

// A full disk and a read-only file system end every command that writes with exit code 9, the reason and a
// hint, and leave no file, whole or not.
func TestFullAndReadOnlyDisk(t *testing.T) {
	require.Slow(t)
	disk := t.TempDir()
	if err := syscall.Mount("none", disk, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("no file system of 1 MiB can be mounted here (%v); TestBrokenInputs tries ulimit -f instead", err)
	}
	defer func() {
		if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	whole := artifacts(t)
	try := func(reason string) {
		for _, args := range writers {
			line := wordsOf(args, "$A", whole.path, "$D", disk)
			code, _, stderr := refused(t, &broken{}, t.TempDir(), line)
			if code != 9 || !strings.Contains(stderr, reason) || !strings.Contains(stderr, "hetc: hint: ") {
				t.Errorf("%s: exit code %d, want 9 and %q\n%s", line, code, reason, stderr)
			}
			left, err := os.ReadDir(disk)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range left {
				if f.Name() != "fill" {
					t.Errorf("%s: left %s", line, f.Name())
				}
			}
		}
	}
	fill, err := os.Create(filepath.Join(disk, "fill"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = fill.Write(make([]byte, 4096))
	}
	fill.Close()
	try("no space left on device")
	if err := syscall.Mount("none", disk, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	try("read-only file system")
}
