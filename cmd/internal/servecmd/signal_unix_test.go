//go:build unix

package servecmd

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// process is a hetserve of its own.
type process struct {
	*instance
	command *exec.Cmd
}

// spawn starts a process that serves the demo bundle.
func spawn(t *testing.T, flags ...string) *process {
	t.Helper()
	return spawnOf(t, oneCore, flags...)
}

// spawnOf is spawn for one of the bundles.
func spawnOf(t *testing.T, name string, flags ...string) *process {
	t.Helper()
	return start(t, name, nil, exec.Command(os.Args[0]), flags...)
}

// start starts a process that serves one of the bundles, by a command whose last argument is this test. What the process
// says goes to log; nil: it is kept.
func start(t *testing.T, name string, log io.Writer, command *exec.Cmd, flags ...string) *process {
	t.Helper()
	app, key := demoOf(t, name)
	args := append([]string{app, "--trust", key, "--listen", "127.0.0.1:0", "--json"}, flags...)
	command.Args = append(command.Args, args...)
	p := &process{&instance{t: t, client: &http.Client{}, errs: &lockedBuffer{}}, command}
	p.command.Env = append(os.Environ(), childVar+"=1")
	if p.command.Stderr = log; log == nil {
		p.command.Stderr = p.errs
	}
	out, err := p.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.command.Process.Kill() })
	if err := json.NewDecoder(out).Decode(&p.started); err != nil {
		t.Fatalf("%v\n%s", err, p.errs)
	}
	return p
}

// signalled sends a signal.
func (p *process) signalled(s syscall.Signal) {
	p.t.Helper()
	if err := p.command.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// SIGTERM lets the answer under way end; the process then ends by itself, with exit code 0.
func TestFirstSignal(t *testing.T) {
	p := spawn(t)
	rest := p.begun()
	p.signalled(syscall.SIGTERM)
	text, err := rest()
	if err != nil || !strings.HasSuffix(text, "data: [DONE]\n\n") {
		t.Errorf("the answer under way ended with %v: ...%s", err, text[max(0, len(text)-300):])
	}
	if err := p.command.Wait(); err != nil {
		t.Errorf("%v\n%s", err, p.errs)
	}
}

// Ctrl-C in a terminal also ends the program that reads the log. What the server says then reaches nobody, and the
// answer under way ends all the same.
func TestLogReaderLeaves(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	p := start(t, oneCore, writer, exec.Command(os.Args[0]))
	rest := p.begun()
	reader.Close()
	p.signalled(syscall.SIGINT)
	text, err := rest()
	if err != nil || !strings.HasSuffix(text, "data: [DONE]\n\n") {
		t.Errorf("the answer under way ended with %v: ...%s", err, text[max(0, len(text)-300):])
	}
	if err := p.command.Wait(); err != nil {
		t.Errorf("%v, want the exit code 0", err)
	}
}

// A process that may have few files open takes fewer connections, so that a client that comes finds a place although
// others have left theirs open.
func TestFewFiles(t *testing.T) {
	const files = 48
	shell := exec.Command("sh", "-c", `ulimit -n `+strconv.Itoa(files)+` && exec "$0" "$@"`, os.Args[0])
	p := start(t, oneCore, nil, shell)
	address := strings.TrimSuffix(strings.TrimPrefix(p.started.URL, "http://"), "/v1")
	for i := range 2 * files {
		connection, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
		if err := connection.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(connection, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(connection).ReadString('\n')
		if err != nil || !strings.Contains(line, "200 OK") {
			t.Fatalf("client %d: got %q, %v", i+1, line, err)
		}
	}
	if !strings.Contains(p.errs.String(), "enough for 28 connections") {
		t.Errorf("it said %q, want a warning", p.errs)
	}
}

// SIGTERM while many clients ask again and again: an answer that has begun comes whole and right, what comes later is
// refused, and the process ends by itself.
func TestFirstSignalUnderLoad(t *testing.T) {
	r := alone(t)
	want := r.text(r.tokens(t, prompts[0], greedy, longest))
	p := spawn(t)
	var answered atomic.Int64
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for {
				got, err := p.complete(t.Context(), map[string]any{"prompt": prompts[0], "max_tokens": longest, "temperature": 0,
					"stream": true})
				if err != nil {
					if cut := errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errCut); cut || answered.Load() < signalAfter {
						t.Errorf("after %d answers: %v", answered.Load(), err)
					}
					return
				}
				if got.text != want {
					t.Errorf("got %q, want %q", got.text, want)
				}
				if answered.Add(1) == signalAfter {
					p.signalled(syscall.SIGTERM)
				}
			}
		})
	}
	clients.Wait()
	if err := p.command.Wait(); err != nil {
		t.Errorf("%v\n%s", err, p.errs)
	}
	t.Logf("%d answers, the signal came after %d", answered.Load(), signalAfter)
}

// signalAfter is how many answers TestFirstSignalUnderLoad waits for.
const signalAfter = 24

// kill -9 in the middle of an answer: its client sees that the answer was cut off, and the next server of the same bundle,
// which goes on with the same recording, gives right answers.
func TestKilled(t *testing.T) {
	record := filepath.Join(t.TempDir(), "trace.jsonl")
	r := alone(t)
	want := r.text(r.tokens(t, prompts[0], greedy, 12))
	answered := func(p *process) {
		t.Helper()
		got, err := p.complete(t.Context(), map[string]any{"prompt": prompts[0], "max_tokens": 12, "temperature": 0})
		if err != nil || got.text != want {
			t.Fatalf("got %q (%v), want %q", got.text, err, want)
		}
	}
	cut := 0
	for range 3 { // one that had ended already shows nothing
		p := spawn(t, "--record", record)
		answered(p)
		rest := p.begun()
		p.signalled(syscall.SIGKILL)
		text, err := rest()
		if whole := strings.HasSuffix(text, "data: [DONE]\n\n"); !whole && err != nil {
			cut++
		} else if !whole {
			t.Errorf("the answer ended as if it were whole: ...%s", text[max(0, len(text)-300):])
		}
		if err := p.command.Wait(); err == nil {
			t.Error("a killed process ended well")
		}
	}
	if cut == 0 {
		t.Error("no answer was cut off: this shows nothing")
	}
	last := spawn(t, "--record", record)
	answered(last)
	last.signalled(syscall.SIGTERM)
	if err := last.command.Wait(); err != nil {
		t.Errorf("%v\n%s", err, last.errs)
	}
	trace, err := os.ReadFile(record)
	if err != nil || strings.Count(string(trace), "\n") < 4 {
		t.Errorf("%d whole lines were recorded, want one of each server at least (%v)\n%s", strings.Count(string(trace), "\n"),
			err, trace)
	}
}

// A second signal ends the process at once, whatever is under way: here a client that holds its connection.
func TestSecondSignal(t *testing.T) {
	p := spawn(t, "--drain-timeout", "1h")
	connection := p.held()
	defer connection.Close()
	p.signalled(syscall.SIGINT)
	for deadline := time.Now().Add(time.Minute); !strings.Contains(p.errs.String(), "shutting down"); {
		if time.Now().After(deadline) {
			t.Fatalf("the first signal had no effect\n%s", p.errs)
		}
		time.Sleep(time.Millisecond)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.command.Wait() }()
	var err error
	for waiting := true; waiting; { // the first signals of these may come before the default is back
		_ = p.command.Process.Signal(syscall.SIGINT)
		select {
		case err = <-ended:
			waiting = false
		case <-time.After(10 * time.Millisecond):
		}
	}
	status, ok := p.command.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() || status.Signal() != syscall.SIGINT {
		t.Errorf("ended with %v, want by the signal\n%s", err, p.errs)
	}
}

// held is a connection whose request is being read and has no end.
func (p *process) held() net.Conn {
	p.t.Helper()
	address := strings.TrimSuffix(strings.TrimPrefix(p.started.URL, "http://"), "/v1")
	connection, err := net.Dial("tcp", address)
	if err != nil {
		p.t.Fatal(err)
	}
	head := "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
		"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n"
	if _, err := connection.Write([]byte(head)); err != nil {
		p.t.Fatal(err)
	}
	line, err := bufio.NewReader(connection).ReadString('\n') // sent when the body is asked for
	if err != nil || !strings.Contains(line, "100 Continue") {
		p.t.Fatalf("%q, %v", line, err)
	}
	return connection
}
