//go:build linux

package engines

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
)

// TestMain also is a program that starts another and waits for it, for TestKilledParent.
func TestMain(m *testing.M) {
	if pids := os.Getenv("ENGINES_TEST_PARENT"); pids != "" {
		_, _ = Run(context.Background(), Limits{Time: time.Minute}, "sh", "-c", "echo $$ > '"+pids+"'; exec sleep 60")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// sh is the command of a shell script.
func sh(script string) (program string, args []string) { return "sh", []string{"-c", script} }

// What a program prints and what it complains of are kept apart.
func TestRun(t *testing.T) {
	program, args := sh("echo out; echo err >&2; head -c 80000000 /dev/zero | tail -c 1")
	d, err := Run(t.Context(), Limits{Time: time.Minute}, program, args...)
	if err != nil || string(d.Out) != "out\n\x00" || string(d.Complaints) != "err\n" {
		t.Errorf("out %q, complaints %q, %v", d.Out, d.Complaints, err)
	}
}

// A program runs on the cores that are asked for, and this process may run where it ran before.
func TestRunOnCores(t *testing.T) {
	cores, err := Cores()
	if err != nil {
		t.Fatal(err)
	}
	last := cores[len(cores)-1:]

	program, args := sh("grep Cpus_allowed_list /proc/self/status")
	d, err := Run(t.Context(), Limits{Cores: last, Time: time.Minute}, program, args...)
	if want := fmt.Sprint(last[0]); err != nil || strings.Fields(string(d.Out))[1] != want {
		t.Errorf("allowed to run on %q, %v, want %s", d.Out, err, want)
	}
	if after, err := Cores(); err != nil || !slices.Equal(after, cores) {
		t.Errorf("this process may run on %v afterwards, %v, want %v", after, err, cores)
	}

	_, err = Run(t.Context(), Limits{Cores: []int{1000}, Time: time.Minute}, "true")
	if diag.ClassOf(err) != diag.ClassUnavailable {
		t.Errorf("on a core that is not there: %v", err)
	}
}

// The memory of a process is its own, also where it is smaller than that of the process that started it.
func TestPeakMemory(t *testing.T) {
	require.Slow(t)
	ballast := make([]byte, 64<<20)
	for i := range ballast {
		ballast[i] = byte(i)
	}
	small, err := Run(t.Context(), Limits{Time: time.Minute}, "sleep", "0.3")
	if err != nil || small.PeakBytes < 100<<10 || small.PeakBytes > 32<<20 {
		t.Errorf("sleep needed %d bytes, %v", small.PeakBytes, err)
	}

	// What was seen at the start of one that ends at once is not its largest.
	short, err := Run(t.Context(), Limits{Time: time.Minute}, "true")
	if err != nil || short.PeakBytes != 0 {
		t.Errorf("true needed %d bytes, %v; want that nobody knows", short.PeakBytes, err)
	}
	program, args := sh("x=$(head -c 150000000 /dev/zero | tr '\\0' x); sleep 0.2")
	large, err := Run(t.Context(), Limits{Time: time.Minute}, program, args...)
	if err != nil || large.PeakBytes < 150e6 || large.PeakBytes > 1<<30 {
		t.Errorf("a variable of 150 MB needed %d bytes, %v", large.PeakBytes, err)
	}
	if ballast[1] != 1 {
		t.Error("ballast")
	}
}

// A program that fails, hangs or floods is named, with its last words.
func TestRunFails(t *testing.T) {
	require.Slow(t)
	const soon = 300 * time.Millisecond
	for _, c := range []struct {
		name   string
		script string
		limit  time.Duration
		want   string
	}{
		{
			name:   "fails",
			script: "echo loading >&2; echo no memory left >&2; exit 3",
			limit:  time.Minute,
			want:   "sh failed: exit status 3; its last words:\nloading\nno memory left",
		},
		{
			name:   "crashes",
			script: "echo about to crash >&2; kill -SEGV $$",
			limit:  time.Minute,
			want:   "signal: segmentation fault",
		},
		{
			name:   "silent",
			script: "exit 1",
			limit:  time.Minute,
			want:   "sh failed: exit status 1, without a word",
		},
		{
			name:   "killed",
			script: "kill -KILL $$",
			limit:  time.Minute,
			want:   "sh failed: signal: killed, perhaps for lack of memory",
		},
		{
			name:   "hangs",
			script: "echo waiting >&2; sleep 600",
			limit:  soon,
			want:   "sh did not end within 300ms and was ended; its last words:\nwaiting",
		},
		{
			name:   "does not go",
			script: "trap '' TERM; echo never >&2; while :; do sleep 1; done",
			limit:  soon,
			want:   "did not end within",
		},
		{
			name:   "floods",
			script: "yes",
			limit:  time.Minute,
			want:   "printed more than 8388608 bytes",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			program, args := sh(c.script)
			began := time.Now()
			_, err := Run(t.Context(), Limits{Time: c.limit}, program, args...)
			if err == nil || diag.ClassOf(err) != diag.ClassRun || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if spent := time.Since(began); spent > 30*time.Second {
				t.Errorf("took %v", spent)
			}
		})
	}
}

// A program that does not exist is not available.
func TestRunMissing(t *testing.T) {
	_, err := Run(t.Context(), Limits{Time: time.Minute}, filepath.Join(t.TempDir(), "gone"))
	if diag.ClassOf(err) != diag.ClassUnavailable {
		t.Errorf("got %v", err)
	}
}

// Of long complaints both ends are kept.
func TestRunComplains(t *testing.T) {
	program, args := sh("echo first >&2; head -c 1000000 /dev/zero | tr '\\0' '\\n' >&2; echo last >&2; exit 1")
	d, err := Run(t.Context(), Limits{Time: time.Minute}, program, args...)
	if err == nil || len(d.Complaints) > 3*keptComplaints {
		t.Errorf("kept %d bytes of the complaints, %v", len(d.Complaints), err)
	}
	if !bytes.HasPrefix(d.Complaints, []byte("first\n")) || !bytes.HasSuffix(d.Complaints, []byte("\nlast\n")) {
		t.Errorf("the complaints begin with %q", d.Complaints[:min(20, len(d.Complaints))])
	}
}

// What a program started ends with it, and with the context.
func TestRunLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	for name, script := range map[string]string{
		"ended":     "sleep 60 & echo $! > '" + dir + "/ended'; sleep 60",
		"forgotten": "sleep 60 > /dev/null 2>&1 & echo $! > '" + dir + "/forgotten'",
	} {
		ctx, cancel := context.WithCancel(t.Context())
		file := filepath.Join(dir, name)
		if name == "ended" {
			time.AfterFunc(10*time.Second, cancel)
			go func() {
				waitFor(file)
				cancel()
			}()
		}
		program, args := sh(script)
		_, err := Run(ctx, Limits{Time: time.Minute}, program, args...)
		if ended := errors.Is(err, context.Canceled); ended != (name == "ended") {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		mustEnd(t, waitFor(file))
	}
}

// A parent that is killed takes what it measures along.
func TestKilledParent(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "pid")
	environment := append(os.Environ(), "ENGINES_TEST_PARENT="+file)
	p, err := os.StartProcess(self, []string{self}, &os.ProcAttr{Env: environment})
	if err != nil {
		t.Fatal(err)
	}
	pid := waitFor(file)
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	mustEnd(t, pid)
}

// waitFor reads the number that a file comes to hold.
func waitFor(file string) int {
	for range 2000 {
		if text, err := os.ReadFile(file); err == nil && bytes.HasSuffix(text, []byte("\n")) {
			n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
			return n
		}
		time.Sleep(5 * time.Millisecond)
	}
	return 0
}

func mustEnd(t *testing.T, pid int) {
	t.Helper()
	if pid == 0 {
		t.Fatal("the program never started")
	}
	for range 2000 {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || bytes.Contains(stat, []byte(") Z ")) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	t.Errorf("process %d is still there", pid)
}

// Why an engine was not measured is told in one line, with the last of what it said.
func TestReason(t *testing.T) {
	require.Slow(t)
	run := func(script string) error {
		program, args := sh(script)
		_, err := Run(t.Context(), Limits{Time: time.Minute}, program, args...)
		return fmt.Errorf("Peer: convert: %w", err)
	}
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"disk full": {run("printf 'Traceback\\n  line\\n\\nOSError: No space left on device\\n' >&2; exit 1"),
			"convert: sh failed: exit status 1: OSError: No space left on device"},
		"progress": {run("printf 'loading 1\\rloading 2' >&2; exit 1"), "convert: sh failed: exit status 1: loading 2"},
		"silent":   {run("exit 1"), "convert: sh failed: exit status 1, without a word"},
		"absent": {diag.New(diag.ClassUnavailable, "Peer: not there").WithHint("make deps-bench installs it"),
			"not there (make deps-bench installs it)"},
	} {
		if got := Reason("Peer", c.err); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	killed := Reason("Peer", run("x=$(head -c 150000000 /dev/zero | tr '\\0' x); echo busy >&2; kill -KILL $$"))
	const want = "convert: sh failed: signal: killed, perhaps for lack of memory: it held "
	if !strings.HasPrefix(killed, want) {
		t.Errorf("killed: got %q, want %q and how much", killed, want)
	}
}
