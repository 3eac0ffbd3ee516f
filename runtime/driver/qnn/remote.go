package qnn

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/hetc/hetc/internal/child"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/internal/patience"
)

// workerArg is the first argument of the process in which the emulator runs. workerEnv is set in
// that process, so that it starts no other: a program that does not know the argument would.
const (
	workerArg = "__qnn-run"
	workerEnv = "HETC_QNN_WORKER"
)

// request is what the process is asked: exactly one field is set.
type request struct {
	Open       *opening
	Compatible *string
	Load       *program
	Run        *call
	Unload     int
}

// opening names the libraries to load.
type opening struct {
	ORT string
	QNN ortapi.QNN
}

// call runs a program on the values of its inputs.
type call struct {
	ID int
	In [][]byte
}

// reply is the answer to one request.
type reply struct {
	// nil where it worked; then the field that the request asked for is set
	Failed     *failure
	Versions   versions
	Compatible ortapi.Compatibility
	ID         int
	Out        [][]byte
}

// failure is an error on its way between processes, with class and hint.
type failure struct {
	Class   diag.Class
	Summary string
	Hint    string
	Tried   []string // where ONNX Runtime was looked for, when it is not usable
	ORT     bool     // that is what failed
}

// Error returns the message of the other process.
func (f *failure) Error() string { return f.Summary }

// As makes the error one of its class.
func (f *failure) As(target any) bool {
	diagnostic, ok := target.(**diag.Diagnostic)
	if ok {
		*diagnostic = diag.New(f.Class, "%s", f.Summary).WithHint("%s", f.Hint)
	}
	return ok
}

// failed makes an error portable.
func failed(err error) *failure {
	told := &failure{Class: diag.ClassOr(err, diag.ClassRun), Summary: err.Error()}
	if d, ok := errors.AsType[*diag.Diagnostic](err); ok {
		told.Hint = d.Hint
	}
	var l *ortapi.LoadError
	if told.ORT = errors.As(err, &l); told.ORT {
		told.Tried = l.Tried
	}
	return told
}

// remote is an engine in a process of its own, because the libraries print to standard output and
// crash on binaries that are not for them.
type remote struct {
	v    versions
	c    *exec.Cmd
	to   *os.File // requests
	from *os.File // replies
	enc  *gob.Encoder
	dec  *gob.Decoder
	// what the process printed
	said *tail

	dead error // why the process is gone
}

// How long the process may take to load its libraries, and to load a program; variables for tests.
// Runs are watched by the executor.
var (
	startLimit = 2 * time.Minute
	loadLimit  = 10 * time.Minute
)

// openRemote starts the process.
func openRemote(ctx context.Context, ort string, libs ortapi.QNN) (*remote, error) {
	if os.Getenv(workerEnv) != "" {
		return nil, diag.New(diag.ClassInternal,
			"this process was itself started for the emulator, and does not start another")
	}
	self, err := os.Executable()
	if err != nil {
		return nil, diag.New(diag.ClassUnavailable, "the program's own file is not known: %w", err)
	}
	theirIn, to, err := os.Pipe()
	if err != nil {
		return nil, diag.New(diag.ClassRun, "make a pipe: %w", err)
	}
	from, theirOut, err := os.Pipe()
	if err != nil {
		to.Close()
		theirIn.Close()
		return nil, diag.New(diag.ClassRun, "make a pipe: %w", err)
	}
	worker := &remote{c: exec.Command(self, workerArg), to: to, from: from, enc: gob.NewEncoder(to),
		dec: gob.NewDecoder(from), said: &tail{}}
	worker.c.ExtraFiles = []*os.File{theirIn, theirOut}
	worker.c.Env = child.Env(workerEnv + "=1")
	worker.c.Stdout, worker.c.Stderr = worker.said, worker.said
	worker.c.WaitDelay = time.Second
	apart(worker.c)
	err = worker.c.Start()
	theirIn.Close() // the process alone holds its ends: that it is gone shows at ours
	theirOut.Close()
	if err != nil {
		to.Close()
		from.Close()
		return nil, diag.New(diag.ClassRun, "start the process of the emulator: %w", err)
	}
	answer, err := worker.within(ctx, startLimit, "the libraries", request{Open: &opening{ort, libs}})
	if err != nil {
		return nil, errors.Join(err, worker.close())
	}
	worker.v = answer.Versions
	return worker, nil
}

// ask sends a request and waits for the answer. A process that does not answer is not used again.
func (r *remote) ask(q request) (*reply, error) {
	if r.dead != nil {
		return nil, r.dead
	}
	sent := make(chan error, 1) // not waited for first: a process that refuses early does not read the rest
	go func() { sent <- r.enc.Encode(q) }()
	answer := &reply{}
	if err := r.dec.Decode(answer); err != nil {
		return nil, r.died(err)
	}
	if err := <-sent; err != nil {
		return nil, r.died(err)
	}
	if answer.Failed != nil {
		return nil, answer.Failed
	}
	return answer, nil
}

// within asks, and kills the process when ctx ends or the limit has passed: a hanging library does
// not return by itself.
func (r *remote) within(ctx context.Context, limit time.Duration, what string, q request) (*reply, error) {
	kill := func() { _ = r.c.Process.Kill() }
	inTime := patience.AfterFunc(limit, kill)
	stop := context.AfterFunc(ctx, kill)
	answer, err := r.ask(q)
	stop()
	switch inTime := inTime(); {
	case err == nil:
	case ctx.Err() != nil:
		err = ctx.Err()
	case !inTime:
		err = diag.New(diag.ClassUnavailable, "loading %s took more than %v", what, limit)
	}
	return answer, err
}

// died returns the error for a process that ended without an answer, which all later requests get
// too.
func (r *remote) died(cause error) error {
	_ = r.c.Process.Kill() // it may live on, and have sent what cannot be decoded
	err := r.c.Wait()
	how := "ended without an answer"
	if err != nil {
		how = err.Error()
	}
	if !errors.Is(cause, io.EOF) && !errors.Is(cause, io.ErrUnexpectedEOF) && !errors.Is(cause, os.ErrClosed) &&
		!errors.Is(cause, errPipe) {
		how += ", " + cause.Error()
	}
	if said := r.said.String(); said != "" {
		how += ": " + said
	}
	r.dead = diag.New(diag.ClassRun, "the process with the library %q crashed: %s", r.v.QNN.Backend, how).
		WithHint("nothing of it was used; hetc drivers shows the libraries")
	return r.dead
}

// about returns what the process told when it had opened the libraries.
func (r *remote) about() versions { return r.v }

// compatible asks the process, without a limit of time: nothing is loaded.
func (r *remote) compatible(token string) (ortapi.Compatibility, error) {
	answer, err := r.ask(request{Compatible: &token})
	if err != nil {
		return 0, err
	}
	return answer.Compatible, nil
}

// load sends the program's bytes; the process keeps it under the id.
func (r *remote) load(ctx context.Context, p program) (int, error) {
	answer, err := r.within(ctx, loadLimit, "a graph", request{Load: &p})
	if err != nil {
		return 0, err
	}
	return answer.ID, nil
}

// run sends the inputs and copies the outputs out of the answer, after it has compared their sizes.
func (r *remote) run(id int, in, out [][]byte) error {
	answer, err := r.ask(request{Run: &call{id, in}})
	if err != nil {
		return err
	}
	if len(answer.Out) != len(out) {
		return fmt.Errorf("the process answered %d outputs, want %d", len(answer.Out), len(out))
	}
	for i := range out {
		if len(answer.Out[i]) != len(out[i]) {
			return fmt.Errorf("the process answered %d bytes of output %d, want %d", len(answer.Out[i]), i, len(out[i]))
		}
		copy(out[i], answer.Out[i])
	}
	return nil
}

// unload needs no answer of a process that is gone: its programs went with it.
func (r *remote) unload(id int) error {
	if r.dead != nil {
		return nil
	}
	_, err := r.ask(request{Unload: id})
	return err
}

// close kills the process; nothing in it is wanted any more.
func (r *remote) close() error {
	err := errors.Join(r.to.Close(), r.from.Close())
	if r.dead == nil {
		_ = r.c.Process.Kill()
		_ = r.c.Wait()
		r.dead = errors.New("the process is closed")
	}
	return err
}

// tail keeps the first bytes that a process prints, and passes none of them on.
type tail struct {
	mu sync.Mutex
	b  []byte
}

// Write takes everything and keeps the first 4000 bytes of it.
func (t *tail) Write(p []byte) (int, error) {
	const most = 4000 // bytes
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p[:min(len(p), most-len(t.b))]...)
	return len(p), nil
}

// String returns what was kept, on one line: of a crash the reason, without the stacks that follow.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := string(t.b)
	if i := strings.Index(text, "\n\n"); i > 0 && (strings.Contains(text[:i], "fatal error") ||
		strings.Contains(text[:i], "SIG")) {
		text = text[:i]
	}
	const longest = 600
	line := strings.Join(strings.Fields(text), " ")
	if len(line) > longest {
		line = line[:longest] + "..."
	}
	return line
}

// Worker reports whether a process with these arguments, after its name, is one that this driver started: all it does
// is Work.
func Worker(args []string) bool {
	return len(args) == 1 && args[0] == workerArg && os.Getenv(workerEnv) != ""
}

// Work does the whole work of that process: it answers requests until the asking process is gone.
func Work() error {
	in, out := os.NewFile(3, "requests"), os.NewFile(4, "replies")
	if in == nil || out == nil {
		return errors.New("the process has no pipes to the program that started it")
	}
	requests := make(chan request)
	go func() {
		for dec := gob.NewDecoder(in); ; {
			var q request
			if err := dec.Decode(&q); err != nil {
				os.Exit(0) // also while a library computes: its result is not awaited any more
			}
			requests <- q
		}
	}()
	enc := gob.NewEncoder(out)
	var e *local
	for request := range requests {
		var a reply
		if err := answer(&e, &request, &a); err != nil {
			a = reply{Failed: failed(err)}
		}
		if err := enc.Encode(a); err != nil {
			return err
		}
	}
	return nil
}

// answer serves one request; the first one opens the libraries.
func answer(engine **local, asked *request, answer *reply) (err error) {
	if asked.Open != nil {
		if *engine == nil {
			*engine, err = openLocal(asked.Open.ORT, asked.Open.QNN)
		}
		if err == nil {
			answer.Versions = (*engine).v
		}
		return err
	}
	local := *engine
	switch {
	case local == nil:
		return errors.New("no library is open")
	case asked.Compatible != nil:
		answer.Compatible, err = local.compatible(*asked.Compatible)
	case asked.Load != nil:
		answer.ID, err = local.load(context.Background(), *asked.Load)
	case asked.Run != nil:
		session := local.sessions[asked.Run.ID]
		if session == nil {
			return errors.New("no such program")
		}
		for _, region := range session.out {
			answer.Out = append(answer.Out, make([]byte, len(region.Bytes())))
		}
		err = local.run(asked.Run.ID, asked.Run.In, answer.Out)
	default:
		err = local.unload(asked.Unload)
	}
	return err
}
