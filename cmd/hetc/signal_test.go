//go:build unix

package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/require"
)

// A signal ends every command that takes long with the documented exit code and a hint, and leaves nothing
// half written. A command that is faster than the signal succeeds, and its output is whole.
func TestSignals(t *testing.T) {
	require.Slow(t)
	whole := artifacts(t)
	more := &dir{T: t, path: t.TempDir(), model: whole.model, artifacts: whole.path}
	more.hetc("profile --soc snapdragon-8gen3 --model llama-3-8b -o big.jsonl")
	// A template that takes nearly what one may.
	more.modelWith("tokenizer_config.json", []byte(`{"chat_template": "{% for i in range(380) %}{% for j in range(380) %}{% set x = i * j %}{% endfor %}{% endfor %}{{ messages[0].content }}"}`))
	more.hetc("emit --plan $A/plan.yaml --model m --key $A/k.key -o heavy.hetb")
	more.write("board.yaml", strings.Replace(boardSoC("any"), "driver: any", "driver: host", 1))
	for _, c := range []struct {
		args  string
		delay time.Duration // long enough for some work
		keeps string        // what stays when it is interrupted after some work
		hint  string
	}{
		{args: "probe -o x", delay: 300 * time.Millisecond, hint: "run the same command again"},
		{args: "profile --soc $B/board.yaml --model $A/model -o x", delay: 400 * time.Millisecond, keeps: "x", hint: "--resume goes on"},
		{args: "fit --soc snapdragon-8gen3 --record $B/big.jsonl -o x", delay: 100 * time.Millisecond, hint: "run the same command again"},
		{args: "solve --soc snapdragon-8gen3 --record $B/big.jsonl --model llama-3-8b -o x", delay: 2 * time.Second, hint: "run the same command again"},
		{args: "solve --soc snapdragon-8gen3 --record $B/big.jsonl --model llama-3-8b --write-models x/models -o y", delay: 2 * time.Second, hint: "run the same command again"},
		{args: "emit --plan $A/plan.yaml --model $A/model --key $A/k.key --with-reference -o x", delay: 150 * time.Millisecond, hint: "run the same command again"},
		{args: "models synth llama-3-8b -o x", delay: 500 * time.Millisecond, hint: "run the same command again"},
		{args: "models synth llama-3-8b -o x.gguf", delay: 500 * time.Millisecond, hint: "run the same command again"},
		{args: "run $A/app.hetb --trust $A/k.pub --bench --prompt-len 16 --gen 8 --rounds 1000000", delay: 500 * time.Millisecond, hint: "run the same command again"},
		{args: "run $B/heavy.hetb --trust $A/k.pub --chat --prompt hello --max-tokens 1", delay: 100 * time.Millisecond, hint: "run the same command again"},
		{args: "bench processors --plan $A/plan.yaml --model $A/model --prompt-len 16 --gen 8 --rounds 1000000", delay: time.Second, hint: "run the same command again"},
		{args: "quick $A/model -o x --budget 10m", delay: 300 * time.Millisecond, keeps: "x", hint: "the same hetc quick goes on"},
	} {
		name, _, _ := strings.Cut(c.args, " -")
		for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			t.Run(strings.ReplaceAll(name, "/", "_")+" "+s.String(), func(t *testing.T) {
				t.Parallel()
				d := t.TempDir()
				var p *exec.Cmd
				var out, errs bytes.Buffer
				for delay := c.delay; ; delay *= 2 {
					p = exec.Command("hetc", wordsOf(c.args, "$A", whole.path, "$B", more.path)...)
					p.Dir, p.Stdout, p.Stderr = d, &out, &errs
					if err := p.Start(); err != nil {
						t.Fatal(err)
					}
					time.Sleep(delay)
					_ = p.Process.Signal(s)
					hung := time.AfterFunc(2*time.Minute, func() { _ = p.Process.Kill() })
					_ = p.Wait()
					hung.Stop()
					// On a busy machine the signal may come before the process listens: it ends there and then.
					if w, ok := p.ProcessState.Sys().(syscall.WaitStatus); !ok || !w.Signaled() || w.Signal() != s || delay > 10*time.Second {
						break
					}
				}
				left, err := os.ReadDir(d)
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range left {
					if strings.HasPrefix(f.Name(), ".") {
						t.Errorf("a temporary file is left: %s", f.Name())
					}
				}
				switch code := p.ProcessState.ExitCode(); code {
				case 0: // it was faster
				case 130:
					if len(left) > 0 && left[0].Name() != c.keeps {
						t.Errorf("left %v", left)
					}
					// A profile that has nothing yet has nothing to resume.
					if !strings.Contains(errs.String(), "hetc: error: interrupted") || !strings.Contains(errs.String(), "hetc: hint: ") || len(left) > 0 && !strings.Contains(errs.String(), c.hint) {
						t.Errorf("got\n%s\nwant the hint %q", errs.String(), c.hint)
					}
				default:
					t.Errorf("exit code %d, want 130\n%s", code, errs.String())
				}
			})
		}
	}
}

// A signal ends a command that waits for a prompt nobody writes.
func TestInterruptWhileReadingPrompt(t *testing.T) {
	d := artifacts(t)
	c := exec.Command("hetc", "run", "app.hetb", "--trust", "k.pub", "--prompt-file", "-")
	c.Dir = d.path
	in, err := c.StdinPipe()
	d.must(err)
	defer in.Close()
	d.must(c.Start())
	// The pipe takes far less than this: once it is written, the command has been reading for a while.
	_, err = in.Write(make([]byte, 1<<20))
	d.must(err)
	d.must(c.Process.Signal(os.Interrupt))
	hung := time.AfterFunc(time.Minute, func() { _ = c.Process.Kill() })
	defer hung.Stop()
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != 130 {
		t.Errorf("an interrupted command exited with %d, want 130", code)
	}
}

// A reader that has left ends a command in silence.
func TestClosedPipe(t *testing.T) {
	for _, args := range [][]string{{"models", "list"}, {"socs", "show", "snapdragon-8gen3", "--json"}, {"help"}} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		c := exec.Command("hetc", args...)
		var errs bytes.Buffer
		c.Stdout, c.Stderr = w, &errs
		err = c.Run()
		w.Close()
		status, ok := c.ProcessState.Sys().(syscall.WaitStatus)
		if err == nil || errs.Len() > 0 || !ok || !status.Signaled() || status.Signal() != syscall.SIGPIPE {
			t.Errorf("hetc %v to a closed pipe: %v, %q, want the silent end that SIGPIPE is", args, err, errs.String())
		}
	}
}
