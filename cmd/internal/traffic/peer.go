package traffic

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hetc/hetc/cmd/internal/engines"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/native"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/scheduler"
)

// llamaServer is llama.cpp's server, a process of its own that plays the same traces: continuous batching without
// classes, with as many slots, on the cores of the plan.
type llamaServer struct {
	url   string
	stop  context.CancelFunc
	ended chan error // of the process
}

// onceEach asks over a connection of its own each time: the server closes those that idled for some seconds, and a POST
// that meets such an end cannot be sent again.
var onceEach = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// llamaPolicy is what its reports are called.
const llamaPolicy scheduler.Policy = "llama.cpp"

const (
	llamaServerName = "llama-server"
	mostLoading     = 5 * time.Minute // until it answers
)

// findLlamaServer returns the program's path.
func findLlamaServer() (string, error) {
	places := native.Places(llamaServerName)
	for _, dir := range places {
		path := filepath.Join(dir, llamaServerName)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	if path, err := exec.LookPath(llamaServerName); err == nil {
		return path, nil
	}
	return "", diag.New(diag.ClassUnavailable, "bench serving: no %s in %s, nor in PATH", llamaServerName,
		strings.Join(places, ", ")).
		WithHint("make deps-server compiles it; or set %s to the folder that has one", native.EnvDir)
}

// cores returns how many cores the processors of a plan use.
func cores(plan *planir.Plan) int {
	var all []int
	for i := range plan.Procs {
		all = append(all, plan.Procs[i].Cores...)
	}
	slices.Sort(all)
	return max(1, len(slices.Compact(all)))
}

// startLlamaServer starts the server with a GGUF file of the plan's model, and waits until it answers.
func startLlamaServer(ctx context.Context, plan *planir.Plan, file string, slots int) (*llamaServer, error) {
	program, err := findLlamaServer()
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free now
	if err != nil {
		return nil, diag.New(diag.ClassUnavailable, "bench serving: %w", err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		return nil, diag.New(diag.ClassUnavailable, "bench serving: %w", err)
	}
	threads := strconv.Itoa(cores(plan))
	running, stop := context.WithCancel(ctx)
	server := &llamaServer{url: fmt.Sprintf("http://127.0.0.1:%d", port), stop: stop, ended: make(chan error, 1)}
	go func() {
		_, err := engines.Run(running, engines.Limits{Time: 24 * time.Hour}, program, "--model", file, "--host", "127.0.0.1",
			"--port", strconv.Itoa(port), "--parallel", strconv.Itoa(slots), "--ctx-size", strconv.Itoa(slots*plan.MaxContext),
			"--threads", threads, "--threads-batch", threads, "--no-webui")
		server.ended <- err
	}()
	loading := time.NewTimer(mostLoading)
	defer loading.Stop()
	for {
		if response, err := onceEach.Get(server.url + "/health"); err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return server, nil
			}
		}
		select {
		case err := <-server.ended:
			stop()
			return nil, errors.Join(err, ctx.Err())
		case <-loading.C:
			server.Close()
			return nil, diag.New(diag.ClassUnavailable, "bench serving: %s does not answer after %v", llamaServerName, mostLoading)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Close ends the process.
func (l *llamaServer) Close() {
	l.stop()
	<-l.ended
}

// measure plays a trace. Prompts are those that the other policies get.
func (l *llamaServer) measure(ctx context.Context, trace []Request, texts [][]int32) (*Report, error) {
	courses, failed := make([]course, len(trace)), make([]error, len(trace))
	interrupted := onTime(ctx, trace, func(i int, began time.Time) {
		courses[i], failed[i] = l.use(ctx, began, &trace[i], texts[i])
	})
	if interrupted != nil {
		return nil, interrupted
	}
	failed = slices.DeleteFunc(failed, func(err error) bool { return err == nil })
	if len(failed) > 0 {
		return nil, fmt.Errorf("%d of %d requests failed, the first: %w", len(failed), len(trace), failed[0])
	}
	return summarise(llamaPolicy, courses, 0, scheduler.Counts{}), nil
}

// use sends a request and notes when its tokens come.
func (l *llamaServer) use(ctx context.Context, began time.Time, request *Request, prompt []int32) (course, error) {
	out := course{class: request.class(), prompt: request.Prompt, arrived: int64(time.Since(began))}
	body, err := json.Marshal(map[string]any{"prompt": prompt, "n_predict": request.Output, "ignore_eos": true,
		"stream": true, "temperature": 0, "cache_prompt": false})
	if err != nil {
		return out, err
	}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url+"/completion", bytes.NewReader(body))
	if err != nil {
		return out, err
	}
	post.Header.Set("Content-Type", "application/json")
	response, err := onceEach.Do(post)
	if err != nil {
		return out, diag.New(diag.ClassRun, "%s: %w", llamaServerName, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return out, diag.New(diag.ClassRun, "%s: status %d: %s", llamaServerName, response.StatusCode, text)
	}
	out.tokens, out.first, out.last, err = readEvents(response.Body, func() int64 { return int64(time.Since(began)) })
	if err == nil && out.tokens != request.Output {
		err = fmt.Errorf("%d tokens, want %d", out.tokens, request.Output)
	}
	if err != nil {
		return out, diag.New(diag.ClassRun, "%s: %w", llamaServerName, err)
	}
	return out, nil
}

// readEvents reads the stream of an answer: how many tokens it had, and when the first and the last event came.
func readEvents(stream io.Reader, now func() int64) (tokens int, first, last int64, err error) {
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, is := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !is {
			continue
		}
		var event struct {
			Stop      bool `json:"stop"`
			Predicted int  `json:"tokens_predicted"`
		}
		if err := json.Unmarshal(data, &event); err != nil {
			return 0, 0, 0, fmt.Errorf("event %.200q: %w", data, err)
		}
		if last = now(); first == 0 {
			first = last
		}
		if event.Stop {
			return event.Predicted, first, last, nil
		}
	}
	if err := lines.Err(); err != nil {
		return 0, 0, 0, err
	}
	return 0, 0, 0, errors.New("the stream ended before the answer did")
}
