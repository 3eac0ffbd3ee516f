package servecmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hetc/hetc/cmd/internal/accept"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/emit"
	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/all"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
)

const (
	modelDir = "../../../testdata/models/tiny-llama-kjv"
	// template gives the demo model, which has none, a chat template.
	template      = `{"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}`
	contextLength = 256
)

var made struct {
	sync.Once
	dir string
	err error
}

// childVar makes the test binary a hetserve.
const childVar = "HETSERVE_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVar) != "" {
		os.Exit(cli.Main("hetserve", os.Args[1:], os.Stdin, os.Stdout, os.Stderr, func(ui *cli.Streams) *cobra.Command {
			return New(ui, all.Drivers())
		}))
	}
	code := m.Run()
	if made.dir != "" {
		_ = os.RemoveAll(made.dir)
	}
	os.Exit(code)
}

// Names of the bundles of the demo model.
const (
	oneCore  = "app.hetb"    // everything on core 0, with a cache for four sequences
	besideIt = "beside.hetb" // core 1 processes prompts while core 0 decodes
	manyHere = "many.hetb"   // as oneCore, with a cache for many sequences
	inFloat  = "float.hetb"  // as oneCore, in float32
)

// batchesOf are how many sequences the plan of each bundle decodes together.
var batchesOf = map[string][]int{oneCore: {2, 4}, besideIt: {2, 4}, manyHere: {4, 32}, inFloat: {2, 4}}

// demo is the bundle on one core, and the key to trust.
func demo(t *testing.T) (app, key string) {
	t.Helper()
	return demoOf(t, oneCore)
}

// demoOf is one of the bundles, and the key to trust.
func demoOf(t *testing.T, name string) (app, key string) {
	t.Helper()
	if name == besideIt && runtime.NumCPU() < 2 {
		t.Skip("one core")
	}
	made.Do(func() { made.dir, made.err = makeDemo() })
	if made.err != nil {
		t.Fatal(made.err)
	}
	return filepath.Join(made.dir, name), filepath.Join(made.dir, "k.pub")
}

// makeDemo writes the bundles and their key into a new directory.
func makeDemo() (string, error) {
	dir, err := os.MkdirTemp("", "hetserve-test")
	if err != nil {
		return "", err
	}
	model, err := models.Open(modelDir)
	if err != nil {
		return dir, err
	}
	defer model.Close()
	vocabulary, err := os.ReadFile(filepath.Join(modelDir, "tokenizer.json"))
	if err != nil {
		return dir, err
	}
	key, err := emit.GenerateKey(bundle.Ed25519, "k", false)
	if err != nil {
		return dir, err
	}
	for name, batches := range batchesOf {
		plan, err := demoPlan(model, name, batches)
		if err != nil {
			return dir, err
		}
		_, err = emit.Emit(context.Background(), filepath.Join(dir, name), emit.Options{
			Plan: plan, Model: model, Compilers: []driver.Compiler{hostcompiler.New()}, Signers: []bundle.Signer{key.Signer()},
			Files:   map[string][]byte{"tokenizer": vocabulary, "config": []byte(template)},
			Product: "demo", OS: runtime.GOOS, Arch: runtime.GOARCH, Generation: 1, Toolchain: cli.Version,
		})
		if err != nil {
			return dir, err
		}
	}
	return dir, key.Save(filepath.Join(dir, "k"))
}

// predictBeside gives a plan times by which processing a prompt on the second core pays while the first one decodes.
func predictBeside(plan *planir.Plan) {
	for _, rows := range []int{16, 64} {
		for _, batch := range []int{1, 2, 4} {
			plan.Beside.Pairs = append(plan.Beside.Pairs, planir.BesidePair{PrefillRows: rows, DecodeRows: batch,
				PrefillNS: int64(rows) * 5e3, DecodeNS: int64(110+10*batch) * 1e3})
		}
	}
	for program, ns := range map[string]int64{"decode": 100, "decode@2": 110, "decode@4": 130, "prefill@16": 150,
		"prefill@64": 300} {
		plan.Predictions = append(plan.Predictions, planir.Prediction{Program: program, PlanNS: ns * 1e3})
	}
	slices.SortFunc(plan.Predictions, func(a, b planir.Prediction) int { return strings.Compare(a.Program, b.Program) })
}

// demoPlan is the plan of one of the bundles.
func demoPlan(model *models.Model, name string, batches []int) (*planir.Plan, error) {
	digest, err := model.Digest()
	if err != nil {
		return nil, err
	}
	plan := &planir.Plan{
		Schema: planir.Schema, Model: planir.ModelRef{Name: "demo", Digest: digest, BOS: model.BOS, EOS: model.EOS},
		SoC:        planir.SoCRef{Name: "test", Control: "a", Fingerprint: host.Fingerprint()},
		MaxContext: contextLength, KV: op.F32, Batches: batches,
		Procs: []planir.Proc{{
			Name: "a", Kind: "cpu", Driver: "host", Select: "0", Cores: []int{0},
			Set: capability.Set{
				Tile: capability.Tile{K: pack.BlockK, N: pack.TileN}, Schemes: op.Schemes,
				Layouts:     map[string]string{"q8c": pack.N32, "w32": pack.N32},
				DynamicRows: true, StridedInput: true, StridedOutput: true, WeightRanges: true,
			},
		}},
	}
	graph := model.Graph()
	batch := graph.Batch()
	scheme := func(string, int) op.Scheme {
		if name == inFloat {
			return op.A32W32
		}
		return op.A8TQ8C
	}
	if plan.Decisions, err = lower.Trivial(&graph, "a", []int{1, 16, 64}, contextLength, op.F32, scheme); err != nil {
		return nil, err
	}
	together, err := lower.Trivial(&batch, "a", plan.Batches, contextLength, op.F32, scheme)
	if err != nil {
		return nil, err
	}
	plan.Decisions = append(plan.Decisions, together...)
	if name != besideIt {
		return plan, lower.Lower(plan, &graph)
	}
	second := plan.Procs[0]
	second.Name, second.Select, second.Cores = "b", "1", []int{1}
	plan.Procs = append(plan.Procs, second)
	plan.Beside = &planir.Beside{Prefill: "b", Decode: "a"}
	err = lower.Lower(plan, &graph)
	predictBeside(plan)
	return plan, err
}

// reference answers requests of the same bundle one after the other, as hetrun does.
type reference struct{ *runcmd.Loaded }

// alone opens the bundle on one core for a test.
func alone(t *testing.T) reference {
	t.Helper()
	return aloneIn(t, oneCore)
}

// aloneIn opens one of the bundles.
func aloneIn(t *testing.T, name string) reference {
	t.Helper()
	app, key := demoOf(t, name)
	var terms accept.Terms
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	terms.Register(flags)
	if err := flags.Set("trust", key); err != nil {
		t.Fatal(err)
	}
	ui := &cli.Streams{Out: io.Discard, Err: io.Discard}
	loaded, err := runcmd.Load(t.Context(), ui, app, terms, false, all.Drivers(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { loaded.Close() })
	return reference{loaded}
}

// tokens are the answer to a text.
func (r reference) tokens(t *testing.T, prompt string, sampler executor.Sampler, count int) []int32 {
	t.Helper()
	ids, err := r.Tokenizer.Prompt(prompt)
	if err != nil {
		t.Fatal(err)
	}
	r.Machine.Reset()
	out, err := r.Machine.Generate(t.Context(), ids, count, &sampler, nil)
	if err != nil {
		t.Fatal(err)
	}
	return out.Tokens
}

// text is what a stream of tokens decodes to.
func (r reference) text(ids []int32) string {
	var out strings.Builder
	stream := r.Tokenizer.Stream()
	for _, id := range ids {
		out.WriteString(stream.Push(id))
	}
	return out.String() + stream.Flush()
}

// instance is a running hetserve.
type instance struct {
	t       *testing.T
	started started
	client  *http.Client
	stop    context.CancelFunc // what a signal does
	ended   chan error
	errs    *lockedBuffer
}

// lockedBuffer is standard error.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedBuffer) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(data)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// command is a command line of hetserve.
func command(ui *cli.Streams, args ...string) *cobra.Command {
	return commandOn(ui, all.Drivers(), args...)
}

// commandOn is command with drivers of the test's choice.
func commandOn(ui *cli.Streams, drivers []driver.Driver, args ...string) *cobra.Command {
	return cli.Prepare(ui, func(ui *cli.Streams) *cobra.Command { return New(ui, drivers) }, args...)
}

// launch runs the command line for the bundle on one core until stop is called, or the test ends.
func launch(t *testing.T, flags ...string) *instance {
	t.Helper()
	return launchOf(t, oneCore, flags...)
}

// launchOf is launch for one of the bundles.
func launchOf(t *testing.T, name string, flags ...string) *instance {
	t.Helper()
	return launchOn(t, name, all.Drivers(), flags...)
}

// launchOn is launchOf with drivers of the test's choice.
func launchOn(t *testing.T, name string, drivers []driver.Driver, flags ...string) *instance {
	t.Helper()
	app, key := demoOf(t, name)
	ctx, stop := context.WithCancel(context.Background())
	out, results := io.Pipe()
	s := &instance{t: t, stop: stop, ended: make(chan error, 1), errs: &lockedBuffer{}, client: &http.Client{}}
	args := append([]string{app, "--trust", key, "--json"}, listening(flags)...)
	ui := &cli.Streams{Tool: "hetserve", Out: results, Err: s.errs}
	go func() {
		err := commandOn(ui, drivers, args...).ExecuteContext(ctx)
		_ = results.CloseWithError(io.EOF)
		s.ended <- err
		close(s.ended)
	}()
	if err := json.NewDecoder(out).Decode(&s.started); err != nil {
		stop()
		t.Fatalf("hetserve %v: %v: %v", flags, err, <-s.ended)
	}
	t.Cleanup(func() {
		stop()
		s.client.CloseIdleConnections()
		if err, ok := <-s.ended; ok && err != nil {
			t.Errorf("hetserve ended with %v\n%s", err, s.errs)
		}
	})
	return s
}

// end stops the server and wants no error.
func (s *instance) end() {
	s.t.Helper()
	s.stop()
	s.client.CloseIdleConnections()
	if err := <-s.ended; err != nil {
		s.t.Errorf("hetserve ended with %v\n%s", err, s.errs)
	}
}

// post sends a request, and returns its status and what it is answered with.
func (s *instance) post(ctx context.Context, path string, body map[string]any) (int, string, error) {
	return s.postBy(ctx, path, body, io.ReadAll)
}

// postBy is post with a reader of the answer.
func (s *instance) postBy(ctx context.Context, path string, body map[string]any,
	read func(io.Reader) ([]byte, error)) (int, string, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return 0, "", err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.started.URL+path, bytes.NewReader(data))
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := s.client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := read(response.Body)
	return response.StatusCode, string(text), err
}

// answer is the text of a completion, streamed or not, its token count, and why it ended.
type answer struct {
	text, finish string
	tokens       int
}

// errCut says that a stream is not whole.
var errCut = errors.New("the stream was cut off")

// complete asks for the continuation of a text.
func (s *instance) complete(ctx context.Context, body map[string]any) (answer, error) {
	return s.completeBy(ctx, body, io.ReadAll)
}

// completeBy is complete with a reader of the answer.
func (s *instance) completeBy(ctx context.Context, body map[string]any, read func(io.Reader) ([]byte, error)) (out answer,
	err error) {
	body["stream_options"] = map[string]any{"include_usage": true}
	status, text, err := s.postBy(ctx, "/completions", body, read)
	if err != nil {
		return out, err
	}
	if status != http.StatusOK {
		return out, fmt.Errorf("status %d: %s", status, text)
	}
	documents := []string{text}
	if body["stream"] == true {
		documents = strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n")
		last := len(documents) - 1
		if documents[last] != "data: [DONE]" {
			return out, fmt.Errorf("%w: it ends with %q", errCut, documents[last])
		}
		documents = documents[:last]
	}
	return parsed(documents)
}

// parsed is the answer that documents of JSON make up: one of them, or the events of a stream.
func parsed(documents []string) (out answer, err error) {
	for _, document := range documents {
		var event struct {
			Choices []struct {
				Text   string
				Finish string `json:"finish_reason"`
			}
			Usage struct {
				Tokens int `json:"completion_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(strings.TrimPrefix(document, "data: ")), &event); err != nil {
			return out, fmt.Errorf("%q: %w", document, err)
		}
		for _, choice := range event.Choices {
			out.text, out.finish = out.text+choice.Text, choice.Finish
		}
		out.tokens = event.Usage.Tokens
	}
	return out, nil
}

// listening returns flags with an address of this machine and a free port, unless they name one.
func listening(flags []string) []string {
	if slices.Contains(flags, "--listen") {
		return flags
	}
	return append([]string{"--listen", "127.0.0.1:0"}, flags...)
}
