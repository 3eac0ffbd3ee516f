package matrix

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hetc/hetc/emit"
	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/internal/cas"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/exact"
)

// counter are the real tools, counted.
type counter struct {
	mu        sync.Mutex
	simulated int      // records
	emitted   []string // SOC/MODEL of bundles

	spoil      func(path string) error // called before emitting
	tokenizers map[string]error        // of models whose tokenizer is refused
}

// tools returns the tools.
func (c *counter) tools() Tools {
	return Tools{
		Engine:   exact.Engine{},
		Simulate: c.simulate,
		Emit:     c.emit,
		TryTokenizer: func(_ context.Context, model *models.Model, _ map[string][]byte) error {
			return c.tokenizers[model.Name]
		},
	}
}

// compilersOf returns those of simulated plans.
func compilersOf(soc *socs.SoC) []driver.Compiler {
	return []driver.Compiler{hostcompiler.New(), sim.NewCompiler(soc)}
}

// simulate measures requests on a simulated SoC.
func (c *counter) simulate(ctx context.Context, soc *socs.SoC, requests []profiler.Request, path string) error {
	c.mu.Lock()
	c.simulated++
	c.mu.Unlock()
	header, err := profiler.Header(soc, "", "", "test", 1)
	if err != nil {
		return err
	}
	writer, err := record.Create(path, header)
	if err != nil {
		return err
	}
	defer writer.Close()
	simulator := sim.New(soc)
	options := profiler.Options{
		Drivers:   map[string]driver.Driver{simulator.Name(): simulator},
		Compilers: map[string]driver.Compiler{},
	}
	for _, compiler := range compilersOf(soc) {
		options.Compilers[compiler.Name()] = compiler
	}
	_, err = profiler.Run(ctx, soc, requests, writer, options)
	return err
}

// emit writes a bundle.
func (c *counter) emit(
	ctx context.Context, path string, options emit.Options, soc *socs.SoC, _ *Target, _ *bundle.Key,
) (bundle.Digest, error) {
	c.mu.Lock()
	c.emitted = append(c.emitted, options.Plan.SoC.Name+"/"+options.Plan.Model.Name)
	spoil := c.spoil
	c.mu.Unlock()
	if spoil != nil {
		if err := spoil(path); err != nil {
			return bundle.Digest{}, err
		}
	}
	options.Compilers, options.Toolchain, options.OS, options.Arch = compilersOf(soc), "test", "linux", "amd64"
	return emit.Emit(ctx, path, options)
}

// idle fails if something was simulated or emitted.
func (c *counter) idle(t *testing.T, what string) {
	t.Helper()
	if c.simulated > 0 || len(c.emitted) > 0 {
		t.Errorf("%s: %d simulations and %d bundles, want none", what, c.simulated, len(c.emitted))
	}
}

// work is a directory with a matrix of two SoCs, two models and two workloads with equal needs.
type work struct {
	dir    string
	key    *emit.PrivateKey
	config *Config
}

const twoByTwo = `schema: hetc.build/1
models: [a, b]
socs: [snapdragon-8gen3, apple-m2-ultra]
workloads: [chat.yaml, answers.yaml]
`

// newWork makes the directory with the files that the configurations of these tests name.
func newWork(t *testing.T, config string) *work {
	t.Helper()
	made := &work{dir: t.TempDir()}
	var err error
	made.key, err = emit.GenerateKey(bundle.Ed25519, "test", true)
	check(t, err)
	for _, name := range []string{"a", "b"} {
		check(t, os.CopyFS(made.path(name), os.DirFS("../../../testdata/arch/llama-plain")))
	}
	// b is another model with the same shapes.
	weights, err := os.ReadFile(made.path("b/model.safetensors"))
	check(t, err)
	weights[len(weights)-3] ^= 1
	made.write(t, "b/model.safetensors", string(weights))
	made.write(t, "chat.yaml", "schema: hetc.workload/1\nbuckets: [4]\ncontext: 8\n")
	made.write(t, "answers.yaml", "schema: hetc.workload/1\nbuckets: [4]\ncontext: 8\noutput_tokens: 40\n")
	made.config, err = ParseConfig(made.path("hetc.yaml"), []byte(config))
	check(t, err)
	return made
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// path returns that of a file of the directory.
func (w *work) path(name string) string { return filepath.Join(w.dir, filepath.FromSlash(name)) }

// write writes a file of the directory.
func (w *work) write(t *testing.T, name, text string) {
	t.Helper()
	check(t, os.WriteFile(w.path(name), []byte(text), 0o644))
}

// edit replaces a part of a file of the directory.
func (w *work) edit(t *testing.T, name, old, new string) {
	t.Helper()
	text, err := os.ReadFile(w.path(name))
	if err != nil || !strings.Contains(string(text), old) {
		t.Fatalf("%s does not contain %q (%v)", name, old, err)
	}
	w.write(t, name, strings.Replace(string(text), old, new, 1))
}

// options returns those of a run without a cache.
func (w *work) options(tools *counter) Options {
	return Options{
		Config:    w.config,
		Jobs:      3,
		MaxMemory: 4 << 30,
		Program:   "test",
		Key:       w.key,
		Tools:     tools.tools(),
		Now:       time.Now,
	}
}

// run builds with a cache of that name; the change edits the options, nil leaves them.
func (w *work) run(t *testing.T, cache string, tools *counter, change func(*Options)) (*Report, error) {
	t.Helper()
	options := w.options(tools)
	if change != nil {
		change(&options)
	}
	var err error
	options.Cache, err = cas.Open(w.path(cache),
		cas.Options{MaxBytes: 1 << 30, Now: time.Now, ReadOnly: options.DryRun})
	check(t, err)
	defer options.Cache.Close()
	return Run(t.Context(), options)
}

// ok is run where every cell succeeds.
func (w *work) ok(t *testing.T, cache string, tools *counter, change func(*Options)) *Report {
	t.Helper()
	report, err := w.run(t, cache, tools, change)
	check(t, err)
	for _, cell := range report.Cells {
		if cell.Error != nil {
			t.Fatalf("%s: %s", cell.Name(), cell.Error.Message)
		}
	}
	return report
}

// tree reads every file below the output.
func (w *work) tree(t *testing.T, out string) map[string]string {
	t.Helper()
	files := map[string]string{}
	root := w.path(out)
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		files[filepath.ToSlash(name)] = string(data)
		return err
	})
	check(t, err)
	return files
}

// names returns those of the files below the output, sorted.
func (w *work) names(t *testing.T, out string) []string {
	t.Helper()
	return slices.Sorted(maps.Keys(w.tree(t, out)))
}

// same compares the files below the output.
func (w *work) same(t *testing.T, want map[string]string, out string) {
	t.Helper()
	got := w.tree(t, out)
	if names, wanted := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(names, wanted) {
		t.Fatalf("%s has %q, want %q", out, names, wanted)
	}
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s/%s has other bytes", out, name)
		}
	}
}

// counts compares the numbers of cells by state.
func (r *Report) counts(t *testing.T, what string, want map[State]int) {
	t.Helper()
	if maps.Equal(r.Counts, want) {
		return
	}
	var states []string
	for _, cell := range r.Cells {
		states = append(states, fmt.Sprintf("%s %s %s", cell.Name(), cell.Plan.State, cell.Bundle.State))
	}
	t.Errorf("%s: got %s, want %v\n%s", what, r.Summary(), want, strings.Join(states, "\n"))
}

// Measurements follow from shapes, so that both models and both workloads share those of a SoC. A second run does
// nothing, and the bytes depend on neither jobs nor caches.
func TestEachAtMostOnce(t *testing.T) {
	require.Slow(t)
	w, tools := newWork(t, twoByTwo), &counter{}
	w.ok(t, "cache", tools, nil).counts(t, "a first run", map[State]int{Built: 8})
	if tools.simulated != 2 || len(tools.emitted) != 8 {
		t.Errorf("%d simulated records for 2 SoCs, and %d bundles, want 8", tools.simulated, len(tools.emitted))
	}
	whole := w.tree(t, "out")
	if len(whole) != 16 {
		t.Errorf("%d files, want 16", len(whole))
	}

	again := &counter{}
	w.ok(t, "cache", again, nil).counts(t, "a second run", map[State]int{Unchanged: 8})
	again.idle(t, "a second run")

	w.ok(t, "cache2", &counter{}, func(o *Options) { o.Jobs, o.Output = 1, w.path("out2") })
	w.same(t, whole, "out2")

	// A cache that keeps nothing: the same bytes, and a second run still does nothing.
	nothing, err := cas.Open(w.path("nothing"), cas.Options{})
	check(t, err)
	defer nothing.Close()
	for i, want := range []State{Built, Unchanged} {
		options := w.options(&counter{})
		options.Cache, options.Output, options.Only = nothing, w.path("out3"), "*/b/chat"
		report, err := Run(t.Context(), options)
		check(t, err)
		report.counts(t, fmt.Sprintf("a cache of nothing, run %d", i), map[State]int{want: 2})
	}
	maps.DeleteFunc(whole, func(name, _ string) bool { return !strings.Contains(name, "/b/chat.") })
	w.same(t, whole, "out3")
}

// Only what a change concerns is made again, and what was there before comes from the cache.
func TestChangesOfInputs(t *testing.T) {
	require.Slow(t)
	w := newWork(t, twoByTwo)
	w.ok(t, "cache", &counter{}, nil)
	whole := w.tree(t, "out")

	// an edited and a lost file
	w.write(t, "out/apple-m2-ultra/a/chat.plan.yaml", "edited")
	check(t, os.Remove(w.path("out/snapdragon-8gen3/b/answers.hetb")))
	tools := &counter{}
	w.ok(t, "cache", tools, nil).counts(t, "two spoiled files", map[State]int{Cached: 2, Unchanged: 6})
	tools.idle(t, "two spoiled files")
	w.same(t, whole, "out")

	// a workload, there and back
	const weights = "weights: {prefill: 1, decode: 2}"
	w.edit(t, "chat.yaml", "context: 8", "context: 8\n"+weights)
	w.ok(t, "cache", tools, nil).counts(t, "another workload", map[State]int{Built: 4, Unchanged: 4})
	if tools.simulated != 0 {
		t.Errorf("a workload with the same needs: %d simulated, want 0", tools.simulated)
	}
	w.edit(t, "chat.yaml", weights, "")
	w.ok(t, "cache", tools, nil).counts(t, "the workload again", map[State]int{Cached: 4, Unchanged: 4})
	w.same(t, whole, "out")

	// another program, for which nothing of this one counts
	report := w.ok(t, "cache", &counter{}, func(o *Options) { o.Program, o.Only = "other", "apple*/a" })
	report.counts(t, "another program", map[State]int{Built: 2})

	// another key, which signs the same plans
	other, err := emit.GenerateKey(bundle.Ed25519, "other", true)
	check(t, err)
	for _, cell := range w.ok(t, "cache", &counter{}, func(o *Options) { o.Key = other }).Cells {
		if cell.Plan.State != Unchanged || cell.Bundle.State != Built {
			t.Errorf("another key: %s: plan %s, bundle %s", cell.Name(), cell.Plan.State, cell.Bundle.State)
		}
	}
}

// What emit would refuse of the configuration is refused with it.
func TestRefusedOptions(t *testing.T) {
	for _, test := range []struct{ options, want string }{
		{
			options: `product: "My App"`,
			want:    `hetc.yaml:5: build.value: a bundle cannot state this: product: name "My App" holds 'M'`,
		},
		{`version: "1\""`, `version: string`},
		{`version: ` + strings.Repeat("9", 201), `string of 201 bytes, want at most 200`},
		{`security_version: -1`, `security_version: number -1, want 0 to`},
		{`security_version: 3000000000`, `security_version: number 3000000000`},
		{`keyring_generation: -2`, `keyring_generation: number -2, want 1 to`},
	} {
		_, err := ParseConfig("hetc.yaml", []byte(twoByTwo+"bundle:\n  "+test.options+"\n"))
		if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(fmt.Sprint(err), test.want) {
			t.Errorf("%s: got %v, want %s", test.options, err, test.want)
		}
	}
}

// What emit would refuse of a tokenizer is refused before anything is measured or planned.
func TestRefusedTokenizer(t *testing.T) {
	w := newWork(t, twoByTwo)
	tools := &counter{tokenizers: map[string]error{"b": diag.New(diag.ClassInput, "no tokenizer")}}
	report, err := w.run(t, "cache", tools, func(o *Options) { o.Only = "*/b" })
	check(t, err)
	for _, cell := range report.Cells {
		if cell.Error == nil || cell.Error.Message != "no tokenizer" || cell.Plan.State != Failed {
			t.Errorf("%s: %+v, want a failure before the plan", cell.Name(), cell)
		}
	}
	tools.idle(t, "a refused tokenizer")

	// Without a key there are no bundles, and a tokenizer is no concern of plans.
	report = w.ok(t, "cache", tools, func(o *Options) { o.Only, o.Key = "apple-m2-ultra/b/chat", nil })
	report.counts(t, "plans alone", map[State]int{Built: 1})
}

// What lies in the way of a result fails the combination before it is made.
func TestOutputInTheWay(t *testing.T) {
	w := newWork(t, twoByTwo+"outlines: outlines\n")
	for _, dir := range []string{
		"out/apple-m2-ultra/a/chat.hetb",
		"out/apple-m2-ultra/a/answers.plan.yaml",
		"outlines/apple-m2-ultra",
	} {
		check(t, os.MkdirAll(w.path(dir), 0o755))
	}
	w.write(t, "out/apple-m2-ultra/b", "a file")
	w.write(t, "outlines/snapdragon-8gen3", "a file")
	tools := &counter{}
	report, err := w.run(t, "cache", tools, nil)
	check(t, err)
	for _, cell := range report.Cells {
		failed := cell.Error
		if failed == nil || failed.ExitCode != int(diag.ClassIO) || len(failed.Hints) == 0 ||
			!strings.Contains(failed.Message, "want a ") {
			t.Errorf("%s: %+v, want a failure that names what is in the way", cell.Name(), failed)
		}
	}
	tools.idle(t, "an output that cannot be written")
}

// A dry run tells what would happen and changes nothing.
func TestDryRunWritesNothing(t *testing.T) {
	require.Slow(t)
	w := newWork(t, twoByTwo)
	dryRun := func() *Report { return w.ok(t, "cache", &counter{}, func(o *Options) { o.DryRun = true }) }
	dryRun().counts(t, "before a build", map[State]int{WillBuild: 8})
	for _, dir := range []string{"cache", "out"} {
		if _, err := os.Stat(w.path(dir)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there after a dry run (%v)", dir, err)
		}
	}

	w.ok(t, "cache", &counter{}, nil)
	report := dryRun()
	report.counts(t, "after a build", map[State]int{Unchanged: 8})
	if len(report.Cells[0].Predictions) == 0 {
		t.Error("a plan that is there has no predictions")
	}

	check(t, os.RemoveAll(w.path("out")))
	report = dryRun()
	report.counts(t, "without an output", map[State]int{WillCopy: 8})
	if report.Cells[0].Bundle.State != WillCopy {
		t.Errorf("the bundle is %s, want %s", report.Cells[0].Bundle.State, WillCopy)
	}
}

// Inputs that cannot be read fail the cells that need them, and no other.
func TestBadInputsStayAlone(t *testing.T) {
	require.Slow(t)
	w := newWork(t, `schema: hetc.build/1
models: [a, missing, {model: tinyllama-1.1b, name: shapes}]
socs: [apple-m2-ultra, real.yaml, {soc: recorded.yaml, record: rec.jsonl}]
workloads: [chat.yaml, broken.yaml]
`)
	soc, err := socs.Open("snapdragon-8gen3")
	check(t, err)
	check(t, socs.Write(w.path("recorded.yaml"), soc))
	w.write(t, "broken.yaml", "schema: hetc.workload/1\nbukets: [16]\n")
	w.write(t, "rec.jsonl", "nonsense\n")
	w.write(t, "real.yaml", "schema: hetc.soc/1\nname: [\n")
	tools := &counter{}
	report, err := w.run(t, "cache", tools, nil)
	check(t, err)

	reasons := map[string]string{
		"apple-m2-ultra/a/broken":       "bukets",
		"apple-m2-ultra/missing/chat":   "no such directory",
		"apple-m2-ultra/missing/broken": "no such directory",
		"apple-m2-ultra/shapes/broken":  "bukets",
		"real/a/chat":                   "real.yaml",
		"recorded/a/chat":               "rec.jsonl",
	}
	built := []string{"apple-m2-ultra/a/chat", "apple-m2-ultra/shapes/chat"}
	for _, cell := range report.Cells {
		reason := reasons[cell.Name()] // "": any
		switch failed := cell.Error; {
		case slices.Contains(built, cell.Name()):
			if failed != nil {
				t.Errorf("%s: %s", cell.Name(), failed.Message)
			}
		case failed == nil || !strings.Contains(failed.Message, reason):
			t.Errorf("%s: %+v, want an error with %q", cell.Name(), failed, reason)
		}
	}
	if got := report.Counts[Failed]; got != 16 || len(tools.emitted) != 1 {
		t.Errorf("%d failed, %d bundles, want 16 and 1: shapes have no bundle", got, len(tools.emitted))
	}
	if files := w.names(t, "out"); len(files) != 3 {
		t.Errorf("files %q, want 3", files)
	}
}

// A defect in one cell stops no other, and is told with its stack.
func TestDefectsStayAlone(t *testing.T) {
	require.Slow(t)
	w := newWork(t, twoByTwo)
	emissions := 0 // one job makes them in the order of the cells
	broken := &counter{spoil: func(string) error {
		if emissions++; emissions == 1 {
			panic("BUG: test")
		}
		return nil
	}}
	report, err := w.run(t, "cache", broken, func(o *Options) { o.Only, o.Jobs = "apple-m2-ultra/a", 1 })
	check(t, err)
	defect, other := report.Cells[0], report.Cells[1]
	if defect.Plan.State != Built || defect.Bundle.State != Failed {
		t.Errorf("a defect: plan %s, bundle %s, want %s and %s", defect.Plan.State, defect.Bundle.State, Built, Failed)
	}
	if failed := defect.Error; failed == nil || failed.Class != "internal" ||
		!strings.Contains(failed.Stack, "TestDefectsStayAlone") {
		t.Errorf("a defect: %+v, want it with its stack", failed)
	}
	if other.Error != nil {
		t.Errorf("after a defect in another cell: %+v", other.Error)
	}
}

// Of a bundle that could not be written whole nothing is left.
func TestFullDisk(t *testing.T) {
	require.Slow(t)
	w := newWork(t, twoByTwo)
	full := &counter{spoil: func(path string) error {
		if err := os.WriteFile(path, []byte("half"), 0o644); err != nil {
			return err
		}
		return &os.PathError{Op: "write", Path: path, Err: errors.New("no space")}
	}}
	report, err := w.run(t, "cache", full, func(o *Options) { o.Only = "apple-m2-ultra/a/chat" })
	check(t, err)
	if cell := report.Cells[0]; cell.Bundle.State != Failed || cell.Error == nil {
		t.Errorf("an emission that failed: %+v", cell)
	}
	if files := w.names(t, "out"); !slices.Equal(files, []string{"apple-m2-ultra/a/chat.plan.yaml"}) {
		t.Errorf("after an emission that failed: %q, want the plan", files)
	}
}

// A record that is replaced between two readings is noticed.
func TestChangingRecord(t *testing.T) {
	w := newWork(t, twoByTwo)
	w.config.SoCs[1].Record = "rec.jsonl"
	w.write(t, "rec.jsonl", "one")
	cache, err := cas.Open(w.path("cache"), cas.Options{MaxBytes: 1 << 20})
	check(t, err)
	defer cache.Close()
	run := &build{o: Options{Config: w.config, Cache: cache}, memory: newBudget(1 << 30),
		making: map[cas.Key]chan struct{}{}}
	input := &socInput{entry: w.config.SoCs[1]}
	check(t, run.openSoC(input))
	if !input.cut {
		t.Error("a record without a last line end is not noticed")
	}

	w.write(t, "rec.jsonl", "two")

	_, costs, err := run.costs(&Cell{soc: input})
	check(t, err)
	_, err = costs(t.Context())
	if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "changed") {
		t.Errorf("a record that changed: %v", err)
	}
}

// Weights that change behind a remembered digest are noticed, and no plan is written for them.
func TestChangingWeights(t *testing.T) {
	w := newWork(t, twoByTwo)
	cache, err := cas.Open(w.path("cache"), cas.Options{MaxBytes: 1 << 20})
	check(t, err)
	defer cache.Close()
	run := &build{o: w.options(&counter{}), memory: newBudget(1 << 30), making: map[cas.Key]chan struct{}{}}
	run.o.Key, run.o.Cache = nil, cache
	cell := &Cell{
		soc:      &socInput{entry: w.config.SoCs[0]},
		model:    &modelInput{entry: w.config.Models[0]},
		workload: &workloadInput{entry: w.config.Workloads[0]},
		Plan:     Artifact{File: w.path("x.plan.yaml")},
	}
	check(t, run.openSoC(cell.soc))
	check(t, run.openWorkload(cell.workload))
	check(t, run.openModel(t.Context(), cell.model))
	defer cell.model.model.Close()

	cell.model.digest[0] ^= 1

	err = run.plan(t.Context(), cell)
	if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "changed") {
		t.Errorf("weights that changed: %v", err)
	}
	if _, err := os.Stat(cell.Plan.File); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a plan for weights that changed was written (%v)", err)
	}
}

// What a killed build left in the making goes, what else is there stays.
func TestLeftovers(t *testing.T) {
	require.Slow(t)
	w := newWork(t, twoByTwo)
	only := func(o *Options) { o.Only = "apple-m2-ultra/a/chat" }
	w.ok(t, "cache", &counter{}, only)
	want := w.tree(t, "out")
	const dir = "apple-m2-ultra/a/"
	for _, name := range []string{".chat.plan.yaml.swp", ".chat.plan.yaml.1.swp", "notes", ".other.hetb.123-0.tmp"} {
		w.write(t, "out/"+dir+name, "mine")
		want[dir+name] = "mine"
	}
	for _, name := range []string{".chat.plan.yaml.123-0.tmp", ".chat.hetb.4567890-1.tmp"} {
		w.write(t, "out/"+dir+name, "half")
	}

	w.ok(t, "cache", &counter{}, only)

	w.same(t, want, "out")
}

// An interruption ends a build at once, and what is finished is kept.
func TestInterrupted(t *testing.T) {
	require.Slow(t)
	w := newWork(t, twoByTwo)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cache, err := cas.Open(w.path("cache"), cas.Options{MaxBytes: 1 << 30})
	check(t, err)
	defer cache.Close()
	options := w.options(&counter{})
	options.Jobs, options.Cache, options.Progress = 2, cache, true
	finished := 0
	options.Note = func(string, ...any) {
		if finished++; finished == 2 {
			cancel()
		}
	}
	_, err = Run(ctx, options)
	checkInterrupted(t, err)
	if files := len(w.names(t, "out")); files < 4 || files == 16 {
		t.Fatalf("%d files after 2 of 8 cells", files)
	}

	report := w.ok(t, "cache", &counter{}, nil)
	if report.Counts[Unchanged] < 2 || len(w.names(t, "out")) != 16 {
		t.Errorf("going on: %s", report.Summary())
	}
}

// checkInterrupted expects the error of an interruption, with a hint.
func checkInterrupted(t *testing.T, err error) {
	t.Helper()
	if diag.ClassOf(err) != diag.ClassInterrupted || !errors.Is(err, context.Canceled) || len(diag.HintsOf(err)) == 0 {
		t.Fatalf("got %v of class %v, want an interruption with a hint", err, diag.ClassOf(err))
	}
}

// A build that is interrupted before its first cell says so too: while it reads its inputs, and while it waits for
// another one.
func TestInterruptedBeforeTheWork(t *testing.T) {
	w := newWork(t, twoByTwo)
	cache, err := cas.Open(w.path("cache"), cas.Options{MaxBytes: 1 << 30})
	check(t, err)
	defer cache.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	options := w.options(&counter{})
	options.Cache = cache
	_, err = Run(ctx, options)
	checkInterrupted(t, err)

	unlock, err := OwnDirectory(t.Context(), w.path("out"), func() { t.Error("nobody has the output") })
	check(t, err)
	defer unlock()
	_, err = Run(ctx, options)
	checkInterrupted(t, err)
}

// Outlines lie where the configuration says, follow the plans, and a plan that changes is told with what changed.
func TestOutlines(t *testing.T) {
	require.Slow(t)
	w := newWork(t, twoByTwo+"outlines: plans\nexclude: [{soc: snapdragon-8gen3}, {model: b}]\n")
	report := w.ok(t, "cache", &counter{}, nil)
	for _, cell := range report.Cells {
		if cell.Changes != nil {
			t.Errorf("%s changed from nothing: %q", cell.Name(), cell.Changes)
		}
	}
	const file = "plans/apple-m2-ultra/a/chat.txt"
	outline := func() string {
		text, err := os.ReadFile(w.path(file))
		check(t, err)
		return string(text)
	}
	first := outline()
	if !strings.HasPrefix(first, "a on apple-m2-ultra, from simulated times\n") {
		t.Fatalf("outline %q", first)
	}

	w.edit(t, file, "decode: ", "decode: 1")
	for _, dryRun := range []bool{true, false} {
		report := w.ok(t, "cache", &counter{}, func(o *Options) { o.DryRun = dryRun })
		for _, cell := range report.Cells {
			want := cell.Name() == "apple-m2-ultra/a/chat"
			got := len(cell.Changes) == 1 && strings.HasPrefix(cell.Changes[0], "decode: 1")
			if got != want {
				t.Errorf("%s: changes %q", cell.Name(), cell.Changes)
			}
		}
		if restored := outline() == first; restored == dryRun {
			t.Errorf("dry run %v: the outline is as it was: %v", dryRun, restored)
		}
	}
}

// Every combination of the reference plans has its outline, and no outline is left of one that is gone.
func TestReferencePlans(t *testing.T) {
	const root = "../../../plans"
	config, err := ReadConfig(filepath.Join(root, "hetc.yaml"))
	check(t, err)
	run := &build{o: Options{Config: config}}
	cells, err := run.cells()
	check(t, err)
	var want, got []string
	for _, cell := range cells {
		want = append(want, filepath.Clean(cell.Outline))
	}
	err = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".txt" {
			got = append(got, filepath.Clean(path))
		}
		return err
	})
	check(t, err)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("plans holds %q, want %q: make plans writes what is missing, remove what is gone", got, want)
	}
}
