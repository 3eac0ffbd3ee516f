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
	"sync/atomic"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/require"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/emit"
	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/internal/cas"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/workload"
)

func TestConfigNames(t *testing.T) {
	c, err := ParseConfig("ci/hetc.yaml", []byte(`schema: hetc.build/1
models: [tinyllama-1.1b, {model: ../models/Tiny/}, {model: x/y.gguf}, {model: z, name: other}]
socs: [snapdragon-8gen3, {soc: socs/host.yaml, record: r.jsonl}]
workloads: [chat.yaml, {name: plain}]
exclude: [{model: y, soc: snap*}, {workload: plain, soc: host}]
key: k.key
`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range c.Models {
		got = append(got, m.Name)
	}
	for _, s := range c.SoCs {
		got = append(got, s.Name)
	}
	for _, w := range c.Workloads {
		got = append(got, w.Name)
	}
	want := []string{"tinyllama-1.1b", "Tiny", "y", "other", "snapdragon-8gen3", "host", "chat", "plain"}
	if !slices.Equal(got, want) {
		t.Errorf("names %q, want %q", got, want)
	}
	if got, want := c.inside(c.Output), filepath.Join("ci", "out"); got != want {
		t.Errorf("output %q, want %q: it lies beside the file", got, want)
	}
	if abs, _ := filepath.Abs("x"); c.inside(abs) != abs {
		t.Errorf("an absolute path became %q", c.inside(abs))
	}
	if c.Bundle.Product != "hetc" || c.Bundle.Version != "0" || c.Bundle.KeyringGeneration != 1 {
		t.Errorf("bundle options %+v are not those of hetc emit", c.Bundle)
	}
	b := &build{o: Options{Config: c}}
	cells, err := b.cells()
	if err != nil {
		t.Fatal(err)
	}
	if len(cells) != 2*4*2-2-4 {
		t.Errorf("%d cells, want 10 of 16", len(cells))
	}
	for _, x := range cells {
		if x.Model == "y" && x.SoC == "snapdragon-8gen3" || x.Workload == "plain" && x.SoC == "host" {
			t.Errorf("%s is excluded", x.Name())
		}
	}
}

func TestConfigRefuses(t *testing.T) {
	const head = "schema: hetc.build/1\n"
	for name, c := range map[string]struct{ text, want string }{
		"empty":                {"", "document"},
		"no schema":            {"models: [a]\nsocs: [b]\n", `"schema" is missing`},
		"other schema":         {"schema: hetc.soc/1\n", "hetc.build/1"},
		"no models":            {head + "socs: [b]\n", `"models" is missing`},
		"no socs":              {head + "models: [b]\n", `"socs" is missing`},
		"empty models":         {head + "models: []\nsocs: [b]\n", "models is empty"},
		"empty workloads":      {head + "models: [a]\nsocs: [b]\nworkloads: []\n", "workloads is empty"},
		"unknown key":          {head + "models: [a]\nsocs: [b]\nouput: x\n", `did you mean "output"`},
		"unknown key of entry": {head + "models: [{model: a, nmae: b}]\nsocs: [b]\n", `did you mean "name"`},
		"empty model":          {head + "models: [\"\"]\nsocs: [b]\n", "model is empty"},
		"model without model":  {head + "models: [{name: b}]\nsocs: [b]\n", `"model" is missing`},
		"a list":               {head + "models: [[a]]\nsocs: [b]\n", "list"},
		"a number":             {head + "models: 3\nsocs: [b]\n", "want a list"},
		"twice":                {head + "models: [a, x/a]\nsocs: [b]\n", `name "a" is there twice`},
		"twice by case":        {head + "models: [a, {model: b, name: A}]\nsocs: [b]\n", "twice"},
		"path as name":         {head + "models: [{model: a, name: ../b}]\nsocs: [b]\n", `name "../b"`},
		"hidden name":          {head + "models: [{model: a, name: .b}]\nsocs: [b]\n", `name ".b"`},
		"dot":                  {head + "models: [.]\nsocs: [b]\n", "give it one"},
		"dots":                 {head + "models: [../..]\nsocs: [b]\n", "give it one"},
		"root":                 {head + "models: [/]\nsocs: [b]\n", "give it one"},
		"space":                {head + "models: [\"a b\"]\nsocs: [b]\n", "give it one"},
		"long name":            {head + "models: [{model: a, name: " + strings.Repeat("x", 101) + "}]\nsocs: [b]\n", "at most 100"},
		"excludes nothing":     {head + "models: [tiny]\nsocs: [b]\nexclude: [{model: tniy}]\n", `did you mean "tiny"`},
		"excludes all":         {head + "models: [tiny]\nsocs: [b]\nexclude: [{}]\n", "would exclude everything"},
		"bad pattern":          {head + "models: [tiny]\nsocs: [b]\nexclude: [{model: \"[\"}]\n", "pattern"},
		"bundle key":           {head + "models: [tiny]\nsocs: [b]\nbundle: {prodct: x}\n", `did you mean "product"`},
		"too many":             {head + "models: [" + many("m", 200) + "]\nsocs: [" + many("s", 200) + "]\n", "more than 16384"},
	} {
		_, err := ParseConfig("hetc.yaml", []byte(c.text))
		text := fmt.Sprint(err) + strings.Join(diag.HintsOf(err), " ")
		if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(text, c.want) {
			t.Errorf("%s: %v, want an input error with %q", name, text, c.want)
		}
	}
}

func many(prefix string, n int) string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint(prefix, i)
	}
	return strings.Join(names, ", ")
}

// What is accepted has names that are safe as parts of paths, each once.
func FuzzParseConfig(f *testing.F) {
	f.Add("schema: hetc.build/1\nmodels: [a, {model: ../b, name: c}]\nsocs: [{soc: s, record: r}]\nworkloads: [w.yaml]\nexclude: [{model: a}]\nkey: k\noutput: o\nbundle: {product: p}\n")
	f.Add("schema: hetc.build/1\nmodels: [\"a/../..\"]\nsocs: [\"\\\\\"]\n")
	f.Add(`{"schema": "hetc.build/1", "models": ["x.gguf"], "socs": ["y"], "workloads": [{}]}`)
	f.Add("schema: hetc.build/1\nmodels: &x [a]\nsocs: *x\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseConfig("hetc.yaml", []byte(text))
		if err != nil {
			if diag.ClassOf(err) != diag.ClassInput {
				t.Fatalf("class %v: %v", diag.ClassOf(err), err)
			}
			return
		}
		b := &build{o: Options{Config: c}, out: "out"}
		cells, err := b.cells()
		if err != nil {
			return // everything is excluded
		}
		seen := map[string]bool{}
		for _, x := range cells {
			if seen[strings.ToLower(x.Plan.File)] {
				t.Fatalf("%q is there twice", x.Plan.File)
			}
			seen[strings.ToLower(x.Plan.File)] = true
			if parts := strings.Split(filepath.ToSlash(x.Plan.File), "/"); len(parts) != 4 || filepath.Clean(x.Plan.File) != x.Plan.File {
				t.Fatalf("file %q", x.Plan.File)
			}
		}
	})
}

func TestSelected(t *testing.T) {
	for _, c := range []struct {
		pattern string
		want    bool
	}{
		{"", true}, {"snap*", true}, {"snapdragon", true}, {"snapdragon/", true}, {"snap", false},
		{"snapdragon/tiny", true}, {"*/tiny", true}, {"*/tin", false}, {"*/*/chat", true}, {"*/*/c?at", true},
		{"snapdragon/tiny/chat", true}, {"snapdragon/tiny/long", false}, {"//chat", true}, {"tiny", false}, {"*/tiny/*/x", false},
	} {
		if got := selected(c.pattern, "snapdragon", "tiny", "chat"); got != c.want {
			t.Errorf("%q selects: %v, want %v", c.pattern, got, c.want)
		}
	}
	for _, bad := range []string{"[", "a/[/b", "a/b/c/d"} {
		if err := checkPattern(bad); diag.ClassOf(err) != diag.ClassUsage {
			t.Errorf("%q: %v, want a usage error", bad, err)
		}
	}
}

// A digest is remembered only while nothing could have changed unseen.
func TestRemembered(t *testing.T) {
	dir := t.TempDir()
	cache, err := cas.Open(filepath.Join(dir, "cache"), cas.Options{MaxBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	later := time.Hour
	b := &build{o: Options{Cache: cache, Now: func() time.Time { return time.Now().Add(later) }}}
	file := filepath.Join(dir, "model", "weights")
	computed := 0
	check := func(what, path string, want int) {
		t.Helper()
		before := computed
		d, err := b.remembered(path, func() (cas.Digest, error) {
			computed++
			data, err := os.ReadFile(file)
			return cas.Digest(cas.KeyOf(string(data))), err
		})
		if err != nil {
			t.Fatal(err)
		}
		if data, _ := os.ReadFile(file); d != cas.Digest(cas.KeyOf(string(data))) {
			t.Fatalf("%s: a wrong digest", what)
		}
		if computed-before != want {
			t.Errorf("%s: computed %d times, want %d", what, computed-before, want)
		}
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	write("one")
	if _, ok := stampOf(file); !ok {
		t.Skip("this system does not tell when a file changed")
	}
	for _, path := range []string{file, filepath.Dir(file)} {
		check("first", path, 1)
		check("again", path, 0)
	}
	// The same size, and the time of modification set back.
	st, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond) // beyond a tick of the file system's clock
	write("two")
	if err := os.Chtimes(file, st.ModTime(), st.ModTime()); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Dir(file)} {
		check("changed unseen", path, 1)
		check("again", path, 0)
	}
	// Replaced by rename.
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte("six"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, file); err != nil {
		t.Fatal(err)
	}
	check("replaced", file, 1)
	check("replaced", filepath.Dir(file), 1)
	// A file that came besides.
	if err := os.WriteFile(filepath.Join(dir, "model", "config.json"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	check("a neighbour", filepath.Dir(file), 1)
	// What changed a moment ago may change again in the same tick.
	later = 0
	write("now")
	for range 3 {
		check("too fresh", file, 1)
	}
}

// Jobs never have more memory together than there is, and everyone gets theirs in the end.
func TestBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		max := rapid.Int64Range(1, 100).Draw(t, "max")
		wants := rapid.SliceOfN(rapid.Int64Range(0, max), 1, 40).Draw(t, "wants")
		b := newBudget(max)
		var used, worst atomic.Int64
		var wg sync.WaitGroup
		for _, n := range wants {
			wg.Go(func() {
				give, err := b.take(context.Background(), n)
				if err != nil {
					t.Errorf("%v", err)
					return
				}
				now := used.Add(n)
				for old := worst.Load(); now > old && !worst.CompareAndSwap(old, now); old = worst.Load() {
				}
				used.Add(-n)
				give()
			})
		}
		wg.Wait()
		if worst.Load() > max || b.used != 0 {
			t.Fatalf("%d used of %d, %d after all", worst.Load(), max, b.used)
		}
	})
	b := newBudget(10)
	if _, err := b.take(context.Background(), 11); diag.ClassOf(err) != diag.ClassUnavailable || len(diag.HintsOf(err)) == 0 {
		t.Errorf("more than there is: %v, want a refusal with a hint", err)
	}
	give, err := b.take(context.Background(), 10)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := b.take(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	give()
	if n := DefaultMemory(); n < 1<<20 {
		t.Errorf("default memory is %d bytes", n)
	}
}

// counter are the real tools, counted.
type counter struct {
	mu       sync.Mutex
	simulate int
	emitted  []string
	spoil    func(path string) error // called before emitting

	tokenizers map[string]error // of models whose tokenizer is refused
}

func (c *counter) tools() Tools {
	compilers := func(s *socs.SoC) []driver.Compiler { return []driver.Compiler{hostcompiler.New(), sim.NewCompiler(s)} }
	return Tools{
		Engine: exact.Engine{},
		Simulate: func(ctx context.Context, s *socs.SoC, requests []profiler.Request, path string) error {
			c.mu.Lock()
			c.simulate++
			c.mu.Unlock()
			h, err := profiler.Header(s, "", "", "test", 1)
			if err != nil {
				return err
			}
			w, err := record.Create(path, h)
			if err != nil {
				return err
			}
			defer w.Close()
			d, cs := sim.New(s), compilers(s)
			_, err = profiler.Run(ctx, s, requests, w, profiler.Options{Drivers: map[string]driver.Driver{d.Name(): d}, Compilers: map[string]driver.Compiler{cs[0].Name(): cs[0], cs[1].Name(): cs[1]}})
			return err
		},
		Emit: func(ctx context.Context, path string, o emit.Options, s *socs.SoC, _ *Target, _ *bundle.Key) (bundle.Digest, error) {
			c.mu.Lock()
			c.emitted = append(c.emitted, o.Plan.SoC.Name+"/"+o.Plan.Model.Name)
			spoil := c.spoil
			c.mu.Unlock()
			if spoil != nil {
				if err := spoil(path); err != nil {
					return bundle.Digest{}, err
				}
			}
			o.Compilers, o.Toolchain, o.OS, o.Arch = compilers(s), "test", "linux", "amd64"
			return emit.Emit(ctx, path, o)
		},
		TryTokenizer: func(_ context.Context, model *models.Model, _ map[string][]byte) error {
			return c.tokenizers[model.Name]
		},
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

func newWork(t *testing.T, config string) *work {
	t.Helper()
	w := &work{dir: t.TempDir()}
	var err error
	if w.key, err = emit.GenerateKey(bundle.Ed25519, "test", true); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		if err := os.CopyFS(filepath.Join(w.dir, name), os.DirFS("../../../testdata/arch/llama-plain")); err != nil {
			t.Fatal(err)
		}
	}
	// b is another model with the same shapes.
	weights, err := os.ReadFile(filepath.Join(w.dir, "b/model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	weights[len(weights)-3] ^= 1
	w.write(t, "b/model.safetensors", string(weights))
	w.write(t, "chat.yaml", "schema: hetc.workload/1\nbuckets: [4]\ncontext: 8\n")
	w.write(t, "answers.yaml", "schema: hetc.workload/1\nbuckets: [4]\ncontext: 8\noutput_tokens: 40\n")
	if w.config, err = ParseConfig(filepath.Join(w.dir, "hetc.yaml"), []byte(config)); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *work) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (w *work) edit(t *testing.T, name, old, new string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(w.dir, name))
	if err != nil || !strings.Contains(string(text), old) {
		t.Fatalf("%s does not contain %q (%v)", name, old, err)
	}
	w.write(t, name, strings.Replace(string(text), old, new, 1))
}

// run builds with a cache; the change edits the options.
func (w *work) run(t *testing.T, cache string, c *counter, change func(*Options)) (*Report, error) {
	t.Helper()
	o := Options{Config: w.config, Jobs: 3, MaxMemory: 4 << 30, Program: "test", Key: w.key, Tools: c.tools(), Now: time.Now}
	if change != nil {
		change(&o)
	}
	var err error
	if o.Cache, err = cas.Open(filepath.Join(w.dir, cache), cas.Options{MaxBytes: 1 << 30, Now: time.Now, ReadOnly: o.DryRun}); err != nil {
		t.Fatal(err)
	}
	defer o.Cache.Close()
	return Run(context.Background(), o)
}

func (w *work) ok(t *testing.T, cache string, c *counter, change func(*Options)) *Report {
	t.Helper()
	r, err := w.run(t, cache, c, change)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range r.Cells {
		if x.Error != nil {
			t.Fatalf("%s: %s", x.Name(), x.Error.Message)
		}
	}
	return r
}

// tree reads every file below the output.
func (w *work) tree(t *testing.T, out string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(filepath.Join(w.dir, out), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		rel, _ := filepath.Rel(filepath.Join(w.dir, out), path)
		files[filepath.ToSlash(rel)] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func (w *work) same(t *testing.T, want map[string]string, out string) {
	t.Helper()
	got := w.tree(t, out)
	if a, b := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(a, b) {
		t.Fatalf("%s has %q, want %q", out, a, b)
	}
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s/%s has other bytes", out, name)
		}
	}
}

func states(r *Report) string {
	var out []string
	for _, c := range r.Cells {
		out = append(out, fmt.Sprintf("%s %s %s", c.Name(), c.Plan.State, c.Bundle.State))
	}
	return strings.Join(out, "\n")
}

func TestEachAtMostOnce(t *testing.T) {
	require.Slow(t)
	w := newWork(t, twoByTwo)
	c := &counter{}
	r := w.ok(t, "cache", c, nil)
	if r.Counts[Built] != 8 || len(r.Cells) != 8 {
		t.Errorf("%s, want 8 built", r.Summary())
	}
	// Measurements follow from shapes, so both models and both workloads share them.
	if c.simulate != 2 {
		t.Errorf("%d simulated records for 2 SoCs", c.simulate)
	}
	if len(c.emitted) != 8 {
		t.Errorf("%d bundles emitted, want 8", len(c.emitted))
	}
	whole := w.tree(t, "out")
	if len(whole) != 16 {
		t.Errorf("%d files, want 16", len(whole))
	}
	again := &counter{}
	if r := w.ok(t, "cache", again, nil); r.Counts[Unchanged] != 8 || again.simulate+len(again.emitted) != 0 {
		t.Errorf("a second run: %s, %d simulated, %d emitted", r.Summary(), again.simulate, len(again.emitted))
	}
	// One job, another output and an empty cache: the same bytes.
	w.ok(t, "cache2", &counter{}, func(o *Options) { o.Jobs, o.Output = 1, filepath.Join(w.dir, "out2") })
	w.same(t, whole, "out2")
	// A cache that keeps nothing: the same bytes, and a second run still does nothing.
	for i, want := range []State{Built, Unchanged} {
		r := w.withoutCache(t, func(o *Options) { o.Output, o.Only = filepath.Join(w.dir, "out3"), "*/b/chat" })
		if r.Counts[want] != 2 || len(r.Cells) != 2 {
			t.Errorf("a cache of nothing, run %d: %s", i, r.Summary())
		}
	}
	kept := maps.Clone(whole)
	maps.DeleteFunc(kept, func(name, _ string) bool { return !strings.Contains(name, "/b/chat.") })
	w.same(t, kept, "out3")
	// An edited or lost file comes back, from the cache.
	w.write(t, "out/apple-m2-ultra/a/chat.plan.yaml", "edited")
	if err := os.Remove(filepath.Join(w.dir, "out/snapdragon-8gen3/b/answers.hetb")); err != nil {
		t.Fatal(err)
	}
	if r := w.ok(t, "cache", again, nil); r.Counts[Cached] != 2 || r.Counts[Unchanged] != 6 || again.simulate+len(again.emitted) != 0 {
		t.Errorf("after two files were spoiled:\n%s", states(r))
	}
	w.same(t, whole, "out")
	// Only what a change concerns is made again, also when the change is undone later.
	w.edit(t, "chat.yaml", "context: 8", "context: 8\nweights: {prefill: 1, decode: 2}")
	changed := &counter{}
	if r := w.ok(t, "cache", changed, nil); r.Counts[Built] != 4 || r.Counts[Unchanged] != 4 || changed.simulate != 0 {
		t.Errorf("after a workload changed, %d simulated:\n%s", changed.simulate, states(r))
	}
	w.edit(t, "chat.yaml", "weights: {prefill: 1, decode: 2}", "")
	if r := w.ok(t, "cache", changed, nil); r.Counts[Cached] != 4 || r.Counts[Unchanged] != 4 {
		t.Errorf("after the change was undone:\n%s", states(r))
	}
	w.same(t, whole, "out")
	// Another program, another key: everything, or every bundle.
	if r := w.ok(t, "cache", &counter{}, func(o *Options) { o.Program, o.Only = "other", "apple*/a" }); r.Counts[Built] != 2 {
		t.Errorf("another program: %s", r.Summary())
	}
	other, err := emit.GenerateKey(bundle.Ed25519, "other", true)
	if err != nil {
		t.Fatal(err)
	}
	r = w.ok(t, "cache", &counter{}, func(o *Options) { o.Key = other })
	for _, c := range r.Cells {
		if c.Plan.State != Unchanged || c.Bundle.State != Built {
			t.Errorf("another key: %s: plan %s, bundle %s", c.Name(), c.Plan.State, c.Bundle.State)
		}
	}
}

// withoutCache builds with a cache that keeps no content.
func (w *work) withoutCache(t *testing.T, change func(*Options)) *Report {
	t.Helper()
	cache, err := cas.Open(filepath.Join(w.dir, "nothing"), cas.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	o := Options{Config: w.config, Jobs: 2, MaxMemory: 4 << 30, Program: "test", Key: w.key, Tools: (&counter{}).tools(), Now: time.Now, Cache: cache}
	change(&o)
	r, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// What emit would refuse of the configuration, or of a tokenizer, is refused before anything is measured or planned.
func TestRefusedBeforeTheWork(t *testing.T) {
	for _, c := range []struct{ options, want string }{
		{`product: "My App"`, `hetc.yaml:5: build.value: a bundle cannot state this: product: name "My App" holds 'M'`},
		{`version: "1\""`, `version: string`},
		{`version: ` + strings.Repeat("9", 201), `string of 201 bytes, want at most 200`},
		{`security_version: -1`, `security_version: number -1, want 0 to`},
		{`security_version: 3000000000`, `security_version: number 3000000000`},
		{`keyring_generation: -2`, `keyring_generation: number -2, want 1 to`},
	} {
		_, err := ParseConfig("hetc.yaml", []byte(twoByTwo+"bundle:\n  "+c.options+"\n"))
		if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: got %v, want %s", c.options, err, c.want)
		}
	}

	w := newWork(t, twoByTwo)
	tried := &counter{tokenizers: map[string]error{"b": diag.New(diag.ClassInput, "no tokenizer")}}
	report, err := w.run(t, "cache", tried, func(o *Options) { o.Only = "*/b" })
	if err != nil {
		t.Fatal(err)
	}
	for _, cell := range report.Cells {
		if cell.Error == nil || cell.Error.Message != "no tokenizer" || cell.Plan.State != Failed {
			t.Errorf("%s: %+v, want a failure before the plan", cell.Name(), cell)
		}
	}
	if tried.simulate > 0 || len(tried.emitted) > 0 {
		t.Errorf("%d simulations and %d bundles, want none", tried.simulate, len(tried.emitted))
	}
	// Without a key there are no bundles, and a tokenizer is no concern of plans.
	if report, err = w.run(t, "cache", tried, func(o *Options) { o.Only, o.Key = "apple-m2-ultra/b/chat", nil }); err != nil || report.Counts[Built] != 1 {
		t.Errorf("plans alone: %v, %v", report.Counts, err)
	}
}

// What lies in the way of a result fails the combination before it is made.
func TestOutputInTheWay(t *testing.T) {
	w := newWork(t, twoByTwo+"outlines: outlines\n")
	for _, dir := range []string{"out/apple-m2-ultra/a/chat.hetb", "out/apple-m2-ultra/a/answers.plan.yaml", "outlines/apple-m2-ultra"} {
		check(t, os.MkdirAll(filepath.Join(w.dir, dir), 0o755))
	}
	w.write(t, "out/apple-m2-ultra/b", "a file")
	w.write(t, "outlines/snapdragon-8gen3", "a file")
	done := &counter{}
	report, err := w.run(t, "cache", done, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, cell := range report.Cells {
		if cell.Error == nil || cell.Error.ExitCode != int(diag.ClassIO) || !strings.Contains(cell.Error.Message, "want a ") || len(cell.Error.Hints) == 0 {
			t.Errorf("%s: %+v, want a failure that names what is in the way", cell.Name(), cell.Error)
		}
	}
	if done.simulate > 0 || len(done.emitted) > 0 {
		t.Errorf("%d simulations and %d bundles, want none", done.simulate, len(done.emitted))
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestDryRunWritesNothing(t *testing.T) {
	require.Slow(t)
	w := newWork(t, twoByTwo)
	dry := func(o *Options) { o.DryRun = true }
	r := w.ok(t, "cache", &counter{}, dry)
	if r.Counts[WillBuild] != 8 {
		t.Errorf("%s, want 8 would build", r.Summary())
	}
	for _, dir := range []string{"cache", "out"} {
		if _, err := os.Stat(filepath.Join(w.dir, dir)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there after a dry run (%v)", dir, err)
		}
	}
	w.ok(t, "cache", &counter{}, nil)
	if r := w.ok(t, "cache", &counter{}, dry); r.Counts[Unchanged] != 8 || len(r.Cells[0].Predictions) == 0 {
		t.Errorf("%s, want 8 unchanged with their predictions", r.Summary())
	}
	if err := os.RemoveAll(filepath.Join(w.dir, "out")); err != nil {
		t.Fatal(err)
	}
	if r := w.ok(t, "cache", &counter{}, dry); r.Counts[WillCopy] != 8 || r.Cells[0].Bundle.State != WillCopy {
		t.Errorf("want 8 would copy:\n%s", states(r))
	}
}

// Cells that fail, in whatever way, stop no other.
func TestFailuresStayAlone(t *testing.T) {
	require.Slow(t)
	w := newWork(t, `schema: hetc.build/1
models: [a, missing, {model: tinyllama-1.1b, name: shapes}]
socs: [apple-m2-ultra, real.yaml, recorded.yaml]
workloads: [chat.yaml, broken.yaml]
`)
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	if err := socs.Write(filepath.Join(w.dir, "recorded.yaml"), soc); err != nil {
		t.Fatal(err)
	}
	w.write(t, "broken.yaml", "schema: hetc.workload/1\nbukets: [16]\n")
	w.write(t, "rec.jsonl", "nonsense\n")
	w.config.SoCs[2].Record = "rec.jsonl"
	w.write(t, "real.yaml", "schema: hetc.soc/1\nname: [\n")
	c := &counter{}
	r, err := w.run(t, "cache", c, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"apple-m2-ultra/a/chat": "", "apple-m2-ultra/shapes/chat": "",
		"apple-m2-ultra/a/broken": "bukets", "apple-m2-ultra/missing/chat": "no such directory", "apple-m2-ultra/missing/broken": "no such directory",
		"apple-m2-ultra/shapes/broken": "bukets",
		"real/a/chat":                  "real.yaml", "recorded/a/chat": "rec.jsonl",
	}
	for _, x := range r.Cells {
		text, known := want[x.Name()]
		if !known {
			if x.Error == nil {
				t.Errorf("%s was built", x.Name())
			}
			continue
		}
		switch {
		case text == "" && x.Error != nil:
			t.Errorf("%s: %s", x.Name(), x.Error.Message)
		case text != "" && (x.Error == nil || !strings.Contains(x.Error.Message, text)):
			t.Errorf("%s: %+v, want an error with %q", x.Name(), x.Error, text)
		}
	}
	if got := r.Counts[Failed]; got != 16 || len(c.emitted) != 1 {
		t.Errorf("%d failed, %d bundles, want 16 and 1: shapes have no bundle", got, len(c.emitted))
	}
	if files := w.tree(t, "out"); len(files) != 3 {
		t.Errorf("files %q, want 3", slices.Sorted(maps.Keys(files)))
	}
	// A defect in one cell, a full disk in another.
	c.spoil = func(string) error { panic("BUG: test") }
	r, err = w.run(t, "cache2", c, func(o *Options) { o.Only, o.Output = "apple-m2-ultra/*/chat", filepath.Join(w.dir, "out2") })
	if err != nil {
		t.Fatal(err)
	}
	if x := r.Cells[0]; x.Plan.State != Built || x.Bundle.State != Failed || x.Error == nil || x.Error.Class != "internal" || !strings.Contains(x.Error.Stack, "TestFailuresStayAlone") {
		t.Errorf("a defect: %+v", x.Error)
	}
	if x := r.Cells[2]; x.Error != nil {
		t.Errorf("after a defect in another cell: %+v", x.Error)
	}
	c.spoil = func(path string) error {
		if err := os.WriteFile(path, []byte("half"), 0o644); err != nil {
			return err
		}
		return &os.PathError{Op: "write", Path: path, Err: errors.New("no space")}
	}
	r, err = w.run(t, "cache3", c, func(o *Options) { o.Only, o.Output = "apple-m2-ultra/a/chat", filepath.Join(w.dir, "out3") })
	if err != nil {
		t.Fatal(err)
	}
	if x := r.Cells[0]; x.Bundle.State != Failed || x.Error == nil {
		t.Errorf("an emission that failed: %+v", x)
	}
	if files := w.tree(t, "out3"); len(files) != 1 {
		t.Errorf("after an emission that failed: %q", slices.Sorted(maps.Keys(files)))
	}
}

// Inputs that change while they are built from are found out.
func TestChangingInputs(t *testing.T) {
	w := newWork(t, twoByTwo)
	c := &counter{}
	// A record that is replaced between two readings.
	b := &build{o: Options{Config: w.config}}
	w.config.SoCs[1].Record = "rec.jsonl"
	w.write(t, "rec.jsonl", "one")
	in := &socInput{entry: w.config.SoCs[1]}
	if err := b.openSoC(in); err != nil {
		t.Fatal(err)
	}
	if !in.cut {
		t.Error("a record without a last line end is not noticed")
	}
	w.write(t, "rec.jsonl", "two")
	cache, err := cas.Open(filepath.Join(w.dir, "cache"), cas.Options{MaxBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	b.o.Cache, b.memory, b.making = cache, newBudget(1<<30), map[cas.Key]chan struct{}{}
	_, costs, err := b.costs(&Cell{soc: in})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := costs(context.Background()); diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "changed") {
		t.Errorf("a record that changed: %v", err)
	}
	// Weights that change behind a remembered digest.
	x := (&build{o: Options{Config: w.config, Cache: cache, Now: time.Now}})
	m := &modelInput{entry: w.config.Models[0]}
	if err := x.openModel(context.Background(), m); err != nil {
		t.Fatal(err)
	}
	defer m.model.Close()
	m.digest[0] ^= 1
	b.o.Tools = c.tools()
	soc := &socInput{entry: w.config.SoCs[0]}
	if err := b.openSoC(soc); err != nil {
		t.Fatal(err)
	}
	load := &workloadInput{entry: w.config.Workloads[0]}
	if load.workload, err = workload.Read(filepath.Join(w.dir, "chat.yaml")); err != nil {
		t.Fatal(err)
	}
	cell := &Cell{soc: soc, model: m, workload: load, Plan: Artifact{File: filepath.Join(w.dir, "x.plan.yaml")}}
	if err := b.plan(context.Background(), cell); diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "changed") {
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
	for _, name := range []string{".chat.plan.yaml.swp", ".chat.plan.yaml.1.swp", "notes", ".other.hetb.123-0.tmp"} {
		w.write(t, "out/apple-m2-ultra/a/"+name, "mine")
		want["apple-m2-ultra/a/"+name] = "mine"
	}
	for _, name := range []string{".chat.plan.yaml.123-0.tmp", ".chat.hetb.4567890-1.tmp"} {
		w.write(t, "out/apple-m2-ultra/a/"+name, "half")
	}
	w.ok(t, "cache", &counter{}, only)
	if a, b := slices.Sorted(maps.Keys(w.tree(t, "out"))), slices.Sorted(maps.Keys(want)); !slices.Equal(a, b) {
		t.Errorf("the output holds %q, want %q", a, b)
	}
}

// An interruption ends a build at once, and what is finished is kept.
func TestInterrupted(t *testing.T) {
	require.Slow(t)
	w := newWork(t, twoByTwo)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	cache, err := cas.Open(filepath.Join(w.dir, "cache"), cas.Options{MaxBytes: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	c := &counter{}
	finished := 0
	o := Options{Config: w.config, Jobs: 2, MaxMemory: 4 << 30, Program: "test", Key: w.key, Tools: c.tools(), Now: time.Now, Cache: cache, Progress: true,
		Note: func(string, ...any) {
			if finished++; finished == 2 {
				cancel()
			}
		}}
	_, err = Run(ctx, o)
	if diag.ClassOf(err) != diag.ClassInterrupted || !errors.Is(err, context.Canceled) || len(diag.HintsOf(err)) == 0 {
		t.Fatalf("got %v, want an interruption with a hint", err)
	}
	done := len(w.tree(t, "out"))
	if done < 4 || done == 16 {
		t.Fatalf("%d files after 2 of 8 cells", done)
	}
	r := w.ok(t, "cache", &counter{}, nil)
	if r.Counts[Unchanged] < 2 || len(w.tree(t, "out")) != 16 {
		t.Errorf("going on: %s", r.Summary())
	}
}

// What happens without a key follows from what the file asks for.
func TestSigning(t *testing.T) {
	const base = "schema: hetc.build/1\nmodels: [tinyllama-1.1b]\nsocs: [apple-m2-ultra]\n"
	for _, x := range []struct {
		more string
		want signing
	}{
		{"", signOptional},
		{"bundle: {product: p}\n", signRequired},
		{"bundle: {}\n", signRequired},
		{"key: k.key\n", signRequired},
		{"bundle: {product: p}\nsign: optional\n", signOptional},
		{"sign: never\n", signNever},
	} {
		c, err := ParseConfig("hetc.yaml", []byte(base+x.more))
		if err != nil {
			t.Errorf("%q: %v", x.more, err)
			continue
		}
		if c.Sign != x.want {
			t.Errorf("%q: sign is %q, want %q", x.more, c.Sign, x.want)
		}
		if c.Bundle.Version != "0" || c.Bundle.KeyringGeneration != 1 {
			t.Errorf("%q: bundle options %+v lost their defaults", x.more, *c.Bundle)
		}
	}

	t.Setenv(emit.EnvSigningKey, "")
	t.Setenv(emit.EnvSigningKeyFile, "")
	for sign, fails := range map[signing]bool{signRequired: true, signOptional: false, signNever: false} {
		key, err := (&Config{Sign: sign}).SigningKey()
		if key != nil || (err != nil) != fails {
			t.Errorf("sign %s without a key: %v, %v", sign, key, err)
		}
	}
}

// Outlines lie where the configuration says, follow the plans, and a plan that changes is told with what changed.
func TestOutlines(t *testing.T) {
	require.Slow(t)
	w := newWork(t, twoByTwo+"outlines: plans\nexclude: [{soc: snapdragon-8gen3}, {model: b}]\n")
	r := w.ok(t, "cache", &counter{}, nil)
	file := filepath.Join(w.dir, "plans", "apple-m2-ultra", "a", "chat.txt")
	first, err := os.ReadFile(file)
	if err != nil || !strings.HasPrefix(string(first), "a on apple-m2-ultra, from simulated times\n") {
		t.Fatalf("outline %q, %v", first, err)
	}
	for _, c := range r.Cells {
		if c.Changes != nil {
			t.Errorf("%s changed from nothing: %q", c.Name(), c.Changes)
		}
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(first), "decode: ", "decode: 1", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	r = w.ok(t, "cache", &counter{}, func(o *Options) { o.DryRun = true })
	if again, err := os.ReadFile(file); err != nil || string(again) == string(first) {
		t.Errorf("a dry run wrote the outline (%v)", err)
	}
	changed := func(r *Report) {
		t.Helper()
		for _, c := range r.Cells {
			if want := c.Name() == "apple-m2-ultra/a/chat"; want != (len(c.Changes) == 1 && strings.HasPrefix(c.Changes[0], "decode: 1")) {
				t.Errorf("%s: changes %q", c.Name(), c.Changes)
			}
		}
	}
	changed(r)
	changed(w.ok(t, "cache", &counter{}, nil))
	if again, err := os.ReadFile(file); err != nil || string(again) != string(first) {
		t.Errorf("the outline is not what it was (%v)", err)
	}
}

// Every combination of the reference plans has its outline, and no outline is left of one that is gone.
func TestReferencePlans(t *testing.T) {
	const root = "../../../plans"
	config, err := ReadConfig(filepath.Join(root, "hetc.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	b := &build{o: Options{Config: config}}
	cells, err := b.cells()
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, c := range cells {
		want = append(want, filepath.Clean(c.Outline))
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".txt" {
			got = append(got, filepath.Clean(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("plans holds %q, want %q: make plans writes what is missing, remove what is gone", got, want)
	}
}
