package qnn

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hetc/hetc/internal/child"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/patience"
)

// folder makes a folder for a process: in the cache, where a later process removes the files of a killed one, or among
// the temporary files.
func (g *groupJob) folder() (string, error) {
	if g.cache != nil {
		return g.cache.Scratch()
	}
	dir, err := os.MkdirTemp("", "hetc-qnn-")
	if err != nil {
		return "", diag.New(diag.ClassIO, "make a folder for the compiler: %w", err)
	}
	return dir, nil
}

// start runs a process of the compiler on jobs in a folder of its own, and returns its result.
func (g *groupJob) start(ctx context.Context, jobs []*job, shared bool) (_ *result, err error) {
	var weights int64
	for _, part := range jobs[0].weights {
		weights += int64(len(part))
	}
	release, err := g.budget.take(ctx, processMemory+int64(len(jobs)+memoryFactor)*weights)
	if err != nil {
		return nil, err
	}
	defer release()
	dir, err := g.folder()
	if err != nil {
		return nil, err
	}
	defer func() {
		if failed := os.RemoveAll(dir); failed != nil && err == nil {
			err = diag.New(diag.ClassIO, "remove the compiler's folder: %w", failed)
		}
	}()
	if err := g.ask(dir, jobs, shared); err != nil {
		return nil, err
	}
	reply, err := g.process(ctx, g.tools, dir, len(jobs))
	if err != nil {
		return nil, err
	}
	made := &result{Answer: *reply}
	return made, made.readBack(dir, jobs, shared)
}

// ask writes the request and the files that it refers to. All jobs read the same weights.
func (g *groupJob) ask(dir string, jobs []*job, shared bool) error {
	asked := request{ORT: g.tools.ort.Path, Provider: g.tools.qnn.Provider, Backend: g.tools.qnn.Backend,
		System: g.tools.system, Options: g.to.options(), Shared: shared, Memory: g.options.Memory}
	for i, graph := range jobs {
		if !slices.EqualFunc(graph.weights, jobs[0].weights, bytes.Equal) {
			return &graphError{i, diag.New(diag.ClassInput, "it reads other weights than the first of its group")}
		}
		asked.Graphs = append(asked.Graphs, task{graph.inputs, graph.outputs, graph.sample != nil})
		if err := graph.write(dir, i); err != nil {
			return err
		}
	}
	if err := writeNew(dir, weightsFile, jobs[0].weights...); err != nil {
		return err
	}
	text, err := json.Marshal(asked)
	if err != nil {
		return err
	}
	if err := writeNew(dir, requestFile, text); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(dir, outFolder), 0o700); err != nil {
		return diag.New(diag.ClassIO, "make a folder for the compiler: %w", err)
	}
	return nil
}

// writeNew writes a new file in the folder of a process.
func writeNew(dir, name string, parts ...[]byte) error {
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return diag.New(diag.ClassIO, "write for the compiler: %w", err)
	}
	for _, part := range parts {
		if _, err = file.Write(part); err != nil {
			break
		}
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return diag.New(diag.ClassIO, "write for the compiler: %w", err)
	}
	return nil
}

// process runs the compiler in dir, which has so many graphs, and reads its answer. A process that crashes, hangs or
// ends without an answer is an error about the graph that it last reported to work on.
// RATIONALE: Why does a vendor's compiler run in a process of its own, in a folder of its own?
func (c *compiler) process(ctx context.Context, tools *toolchain, dir string, graphs int) (*answer, error) {
	limited, cancel := patience.WithTimeout(ctx, c.options.Time)
	defer cancel()
	process := exec.CommandContext(limited, tools.program, workerArg)
	process.Dir = dir
	process.Env = child.Env("TMPDIR=" + dir) // libraries leave files there
	ownProcessGroup(process)
	process.WaitDelay = time.Second
	var output outputEnds
	process.Stdout, process.Stderr = &output, &output
	alive, err := process.StdinPipe() // the process ends when this pipe closes
	if err != nil {
		return nil, diag.New(diag.ClassRun, "start the compiler: %w", err)
	}
	defer alive.Close()
	if err := process.Start(); err != nil {
		return nil, diag.New(diag.ClassRun, "start the compiler: %w", err)
	}
	ended := process.Wait()

	// Its files have the graph that it worked on, and its answer if there is one.
	at := lastGraph(dir)
	text, err := os.ReadFile(filepath.Join(dir, answerFile))
	var reply *answer
	if err == nil && ended == nil {
		reply, err = readAnswer(text, graphs)
	}
	failed := ended != nil || err != nil || reply.Failed != nil
	if failed && ctx.Err() == nil {
		// A full disk is no fault of the graph, and the library has many errors for it. So try to write.
		if err := writeNew(dir, "room", make([]byte, 1<<20)); err != nil {
			return nil, err
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case limited.Err() != nil:
		return nil, &graphError{at, diag.New(diag.ClassRun, "the compiler was stopped after %v%s",
			c.options.Time, output.text())}
	case ended != nil:
		return nil, &graphError{at, diag.New(diag.ClassRun, "the compiler crashed: %w%s", ended, output.text()).
			WithHint("its memory is limited to %d MiB", c.options.Memory>>20)}
	case err != nil:
		return nil, &graphError{at, diag.New(diag.ClassRun, "the compiler ended without an answer: %w%s",
			err, output.text())}
	case reply.Failed != nil:
		return nil, &graphError{reply.Failed.Graph, diag.New(reply.Failed.Class, "%s%s",
			reply.Failed.Summary, output.text())}
	}
	return reply, nil
}

// lastGraph returns the graph that a process in a folder reported last, -1 where its file names none: a process may be
// killed while it writes there.
func lastGraph(dir string) int {
	text, err := os.ReadFile(filepath.Join(dir, progressFile))
	if err != nil {
		return -1
	}
	graph, err := strconv.Atoi(string(text))
	if err != nil {
		return -1
	}
	return graph
}

// outputEnds keeps the beginning and the end of the output of a process.
type outputEnds struct {
	mu        sync.Mutex
	head, end []byte
}

// Write implements io.Writer. It never fails, so that long output does not stop the process.
func (t *outputEnds) Write(text []byte) (int, error) {
	const most = 1500 // bytes of each
	t.mu.Lock()
	defer t.mu.Unlock()
	size := min(len(text), most-len(t.head))
	t.head = append(t.head, text[:size]...)
	t.end = append(t.end, text[size:]...)
	cut := len(t.end) - most
	if cut > 0 {
		t.end = append([]byte(" ... "), t.end[cut:]...)
	}
	return len(text), nil
}

// text returns the output on one line, to follow an error.
func (t *outputEnds) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	line := strings.Join(strings.Fields(string(t.head)+string(t.end)), " ")
	if line == "" {
		return ""
	}
	return "; it said: " + line
}
