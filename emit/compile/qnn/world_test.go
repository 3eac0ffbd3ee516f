package qnn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// play is the variable by which a test has the compiler's process behave otherwise, and playLog names a file in which
// such processes note their numbers.
const (
	play    = "HETC_TEST_QNN"
	playLog = play + "_LOG"
)

// played is a process of the compiler that behaves as told. It returns the exit status.
func played(what string) int {
	var asked request
	text, _ := os.ReadFile(requestFile)
	if err := json.Unmarshal(text, &asked); err != nil {
		return 1
	}
	_ = (&worker{request: &asked}).begin(len(asked.Graphs) - 1)
	if name := os.Getenv(playLog); name != "" {
		log, _ := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		fmt.Fprintln(log, os.Getpid())
		log.Close()
	}
	behave := behaviours[what]
	if behave == nil {
		return 1
	}
	return behave(&asked)
}

// behaviours are what such a process can do.
var behaviours = map[string]func(asked *request) int{
	"segfault": func(*request) int {
		fmt.Println("about to fail")
		debug.SetTraceback("none")
		self, _ := os.FindProcess(os.Getpid())
		_ = self.Signal(syscall.SIGSEGV)
		select {}
	},
	"hang": func(*request) int {
		fmt.Fprintln(os.Stderr, "working")
		select {}
	},
	"orphan": func(*request) int { // ends with its parent alone
		_ = Work(".", os.Stdin)
		select {}
	},
	"silence": func(*request) int { return 0 },
	"lost progress": func(*request) int { // as when it is killed while it writes the file
		_ = os.WriteFile(progressFile, nil, 0o600)
		return 0
	},
	"nonsense": func(*request) int { return say("yes") },
	"too few":  func(*request) int { return say(`{"ORT":"1","Graphs":[]}`) },
	"full disk": func(*request) int {
		err := os.WriteFile("/dev/full", []byte("x"), 0o600)
		return reply(&answer{Failed: &failure{diag.ClassIO, -1, err.Error()}})
	},
	"good":        func(asked *request) int { return pretend(asked, 75, goodToken) },
	"other arch":  func(asked *request) int { return pretend(asked, 68, goodToken) },
	"other token": func(asked *request) int { return pretend(asked, 75, "v2:6:6.7.8:1.0.0:0:57:8:0") },
}

// goodToken is the compatibility string of gen3.
const goodToken = "v2:6:6.7.8:1.0.0:75:57:8:0"

// say writes the answer of a process.
func say(text string) int {
	_ = os.WriteFile(answerFile, []byte(text), 0o600)
	return 0
}

// reply is say of an answer.
func reply(said *answer) int {
	text, _ := json.Marshal(said)
	return say(string(text))
}

// pretend compiles every graph to a model that tells how long its source is.
func pretend(asked *request, arch int64, token string) int {
	said := &answer{ORT: "1.2.3", Provider: "4.5", SDK: "v6.7.8.9", Arch: arch, SoC: 57}
	for i := range asked.Graphs {
		source, _ := os.ReadFile(modelFile(i))
		size := onnx.String("of", fmt.Sprint(len(source)))
		model := onnx.Model{IR: onnx.IR, Producer: "fake",
			Graph: onnx.Graph{Nodes: []onnx.Node{{Op: "EPContext", Attrs: []onnx.Attr{size}}}}}
		if err := os.WriteFile(contextFile(i), model.Marshal(), 0o600); err != nil {
			return 1
		}
		said.Graphs = append(said.Graphs, facts{Token: token, Nodes: 1})
	}
	_ = os.WriteFile(filepath.Join(outFolder, sharedFile), []byte("shared"), 0o600)
	return reply(said)
}

// fake is a compiler whose process behaves as told, and a function that counts the processes it has started; no library
// is needed. After the test no files are left, and no process.
func fake(t *testing.T, what string, options Options) (made *compiler, starts func() int) {
	t.Helper()
	log, temporary := filepath.Join(t.TempDir(), "log"), t.TempDir()
	t.Setenv(play, what)
	t.Setenv(playLog, log)
	t.Setenv("TMPDIR", temporary)
	made = New(options).(*compiler)
	made.toolchains[[2]string{}] = &toolchain{
		program: os.Args[0],
		ort:     &ortapi.Library{},
		qnn:     &ortapi.QNN{},
		key:     "fake",
	}
	t.Cleanup(func() {
		left, err := os.ReadDir(temporary)
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %v (%v)", left, err)
		}
		for _, number := range words(log) {
			pid, _ := strconv.Atoi(number)
			if process, err := os.FindProcess(pid); err == nil && process.Signal(syscall.Signal(0)) == nil {
				t.Errorf("process %d still runs", pid)
			}
		}
	})
	return made, func() int { return len(words(log)) }
}

// words returns those of a file, none where there is no file.
func words(file string) []string {
	text, _ := os.ReadFile(file)
	return strings.Fields(string(text))
}

// pieces are products of one weight with so many rows, without samples.
func pieces(t *testing.T, rows ...int) []driver.Piece {
	var out []driver.Piece
	for _, count := range rows {
		made := build(t, single(op.Op{Kind: op.MatMul, M: count, K: 8, N: 32, Scheme: op.A16SQ8C}), 1)
		if len(out) > 0 {
			made.Weights = out[0].Weights
		}
		made.Name, made.Sample = fmt.Sprint("rows ", count), nil
		out = append(out, made.Piece)
	}
	return out
}

// Whatever the compiler's process does is an error of the graph that it worked on, and leaves nothing.
func TestBadProcess(t *testing.T) {
	for what, test := range map[string]struct {
		want   string
		class  diag.Class
		blamed bool // the graph that it worked on is refused, else the group fails
	}{
		"segfault": {
			want:   "the compiler crashed: exit status 2; it said: about to fail SIGSEGV: segmentation violation",
			class:  diag.ClassRun,
			blamed: true,
		},
		"hang":     {"stopped after 500ms; it said: working", diag.ClassRun, true},
		"silence":  {"without an answer", diag.ClassRun, true},
		"too few":  {"without an answer: it tells of 0 graphs, want 1", diag.ClassRun, true},
		"nonsense": {"without an answer: invalid character", diag.ClassRun, true},

		"lost progress": {"without an answer", diag.ClassRun, false},
		"full disk":     {"no space left on device", diag.ClassIO, false},
		"other arch": {
			want:  "a binary for soc_model 57, htp_arch 68, want soc_model 57, htp_arch 75",
			class: diag.ClassInput,
		},
		"other token": {`compatibility string is "v2:6:6.7.8:1.0.0:0:57:8:0"`, diag.ClassInput, false},
	} {
		t.Run(what, func(t *testing.T) {
			if what == "full disk" && runtime.GOOS != "linux" {
				t.Skip("no /dev/full")
			}
			options := Options{}
			if what == "hang" {
				options.Time = 500 * time.Millisecond
			}
			compiler, _ := fake(t, what, options)

			_, err := compiler.CompileGroup(t.Context(), pieces(t, 1, 4), gen3(false))

			for _, want := range []string{test.want, `"npu"`} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Fatalf("got %v, want %q", err, want)
				}
			}
			if class := diag.ClassOf(err); class != test.class {
				t.Errorf("got class %v, want %v", class, test.class)
			}
			if _, blamed := errors.AsType[*driver.Refused](err); blamed != test.blamed {
				t.Errorf("%v: refused graphs: %v, want %v", err, blamed, test.blamed)
			} else if blamed { // the process works on the last of those that are left, until none is
				checkRefused(t, err, map[int]string{0: `graph "rows 1"`, 1: `graph "rows 4"`})
			}
		})
	}
}

// checkRefused compares the pieces that were refused, and a part of the reason for each.
func checkRefused(t *testing.T, err error, want map[int]string) {
	t.Helper()
	refused, ok := errors.AsType[*driver.Refused](err)
	if !ok {
		t.Fatalf("got %v, want graphs refused", err)
	}
	if pieces := slices.Sorted(maps.Keys(want)); !slices.Equal(refused.Pieces, pieces) {
		t.Fatalf("refused %v, want %v", refused.Pieces, pieces)
	}
	for i, piece := range refused.Pieces {
		if !strings.Contains(refused.Reasons[i].Error(), want[piece]) {
			t.Errorf("piece %d is refused: %v, want %q", piece, refused.Reasons[i], want[piece])
		}
	}
}

// Results of a sample that are too short are refused with both sizes.
func TestShortResult(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, outFolder), 0o700); err != nil {
		t.Fatal(err)
	}
	model := onnx.Model{IR: onnx.IR, Producer: "fake"}
	for file, content := range map[string][]byte{
		contextFile(0):               model.Marshal(),
		resultFile(0, 0, "emulated"): {1},
		resultFile(0, 0, "portable"): {1},
	} {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	outputs := []tensor{{Name: "o0", Type: onnx.Float32, Rows: 1, Cols: 3}}
	tried := &job{sample: [][]byte{{1}}, compilerInput: &compilerInput{outputs: outputs}}

	err := new(result).readBack(dir, []*job{tried}, false)

	const want = "read the sample's result: got 1 bytes, want 12"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// A compilation that is cancelled ends its process, and another one with the same context starts none.
func TestCancelled(t *testing.T) {
	compiler, starts := fake(t, "hang", Options{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for starts() == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
	}()
	for range 2 {
		if _, err := compiler.CompileGroup(ctx, pieces(t, 4), gen3(true)); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the cancellation", err)
		}
	}
	if starts() != 1 {
		t.Errorf("%d processes, want 1", starts())
	}
}

// A process ends when its parent does, whatever it is doing: its input is closed then.
func TestEndsWithItsParent(t *testing.T) {
	dir := t.TempDir()
	text, err := json.Marshal(request{Graphs: []task{{}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, requestFile), text, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	process := exec.CommandContext(ctx, os.Args[0], workerArg)
	process.Dir = dir
	process.Env = append(os.Environ(), play+"=orphan")
	input, err := process.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}

	input.Close()

	_ = process.Wait()
	if got, want := process.ProcessState.ExitCode(), int(diag.ClassInterrupted); got != want {
		t.Errorf("exit status %d, want %d", got, want)
	}
}

// counted compiles groups with a cache, and counts the processes of each.
type counted struct {
	*compiler
	t      *testing.T
	dir    string // of the cache
	starts func() int
}

// newCounted returns a compiler that succeeds, with an empty cache.
func newCounted(t *testing.T) *counted {
	dir := t.TempDir()
	compiler, starts := fake(t, "good", Options{Cache: dir})
	return &counted{compiler, t, dir, starts}
}

// compile compiles a group, and expects so many processes.
func (c *counted) compile(group []driver.Piece, target driver.Target, want int) *driver.CompiledGroup {
	c.t.Helper()
	before := c.starts()
	compiled, err := c.CompileGroup(c.t.Context(), group, target)
	if err != nil {
		c.t.Fatal(err)
	}
	if got := c.starts() - before; got != want || compiled.Cached != (want == 0) {
		c.t.Fatalf("%d processes, cached %v, want %d processes", got, compiled.Cached, want)
	}
	compiled.Cached = false
	return compiled
}

// What was compiled is not compiled again, whatever it is called; what differs in anything is.
func TestCache(t *testing.T) {
	compiler := newCounted(t)
	group := pieces(t, 4, 1)
	first := compiler.compile(group, gen3(false), 1)
	if first.Compiler != "QNN 6.7.8 (plugin 4.5, ONNX Runtime 1.2.3)" || string(first.Shared) != "shared" {
		t.Errorf("got %+v", first)
	}
	renamed := pieces(t, 4, 1)
	renamed[0].Name = "another"
	if again := compiler.compile(renamed, gen3(false), 0); !reflect.DeepEqual(again, first) {
		t.Errorf("got %+v, want %+v", again, first)
	}

	// Each graph has a process of its own for the emulator, and so an entry of its own.
	compiler.compile(group, gen3(true), 2)
	compiler.compile(group[1:], gen3(true), 0)

	target := gen3(true)
	target.Options["vtcm_mb"] = "4"
	compiler.compile(group[1:], target, 1)

	changed := pieces(t, 1)
	changed[0].Weights[0].Bytes[3]++
	compiler.compile(changed, gen3(true), 1)

	compiler.toolchains[[2]string{}].key = "newer"
	compiler.compile(group, gen3(false), 1)
}

// Weights that are known by their digest are not made, as long as nothing is to be compiled.
func TestCacheOfLaterWeights(t *testing.T) {
	compiler := newCounted(t)
	first := compiler.compile(pieces(t, 4, 1), gen3(false), 1)
	made := 0
	later := func(suffix string) []driver.Piece { // of the digest
		group := pieces(t, 4, 1)
		for i := range group {
			weights := group[i].Weights
			group[i].Weights = nil
			group[i].Later = &driver.Later{
				Weights: weights.Digest() + suffix,
				Make: func() (driver.Weights, [][]byte, error) {
					made++
					return weights, nil, nil
				},
			}
		}
		return group
	}

	if again := compiler.compile(later(""), gen3(false), 0); made != 0 || !reflect.DeepEqual(again, first) {
		t.Errorf("weights were made %d times for %+v", made, again)
	}
	compiler.compile(later("0"), gen3(false), 1)
	if made != 2 {
		t.Errorf("weights were made %d times for two graphs", made)
	}
}

// Entries of the cache that are damaged are compiled again.
func TestDamagedCache(t *testing.T) {
	compiler, group := newCounted(t), pieces(t, 4, 1)
	first := compiler.compile(group, gen3(false), 1)

	const smallest = 200 // bytes of what is kept: smaller files are the cache's own
	damaged := 0
	err := filepath.Walk(compiler.dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() || info.Size() < smallest {
			return err
		}
		damaged++
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text[len(text)/2] ^= 1
		return errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, text, 0o600))
	})
	if err != nil || damaged == 0 {
		t.Fatalf("%d files damaged (%v)", damaged, err)
	}

	if again := compiler.compile(group, gen3(false), 1); !reflect.DeepEqual(again, first) {
		t.Errorf("after damage: got %+v, want %+v", again, first)
	}
	compiler.compile(group, gen3(false), 0)
}

// Nothing that failed is kept.
func TestFailuresAreNotCached(t *testing.T) {
	compiler, starts := fake(t, "silence", Options{Cache: t.TempDir()})
	for range 2 {
		if _, err := compiler.CompileGroup(t.Context(), pieces(t, 16), gen3(true)); err == nil {
			t.Error("no error")
		}
	}
	if starts() != 2 {
		t.Errorf("%d processes, want 2", starts())
	}
}

// Options of a target that are wrong or missing are refused before a process starts.
func TestRefusedTargets(t *testing.T) {
	group := pieces(t, 1)
	for what, test := range map[string]struct {
		change func(options map[string]string)
		want   string
	}{
		"an unknown option": {
			change: func(options map[string]string) { options["soc"] = "57" },
			want: `target option "soc" is unknown, want soc_model, htp_arch, vtcm_mb, opt, library, ` +
				`onnxruntime`,
		},
		"no SoC": {
			change: func(options map[string]string) { delete(options, "soc_model") },
			want:   `target option "soc_model" is missing`,
		},
		"no number": {
			change: func(options map[string]string) { options["htp_arch"] = "v75" },
			want:   `target option htp_arch is "v75"`,
		},
		"an effort of 9": {
			change: func(options map[string]string) { options["opt"] = "9" },
			want:   "opt is 9, want 0 to 3",
		},
	} {
		compiler, starts := fake(t, "good", Options{})
		target := gen3(true)
		test.change(target.Options)
		_, err := compiler.CompileGroup(t.Context(), group, target)
		if err == nil || !strings.Contains(err.Error(), test.want) || starts() != 0 {
			t.Errorf("%s: got %v and %d processes, want %q", what, err, starts(), test.want)
		}
	}
}

// A group of nothing, and a sample that does not fit its graph, are refused.
func TestRefusedGroups(t *testing.T) {
	compiler, _ := fake(t, "good", Options{})
	if _, err := compiler.CompileGroup(t.Context(), nil, gen3(true)); err == nil {
		t.Error("a group of nothing is compiled")
	}
	group := pieces(t, 1, 2)
	group[1].Sample = [][]byte{{1}}
	_, err := compiler.CompileGroup(t.Context(), group, gen3(true))
	checkRefused(t, err, map[int]string{1: "input 0 of the sample has 1 bytes, want 64"})
}

// Without the libraries the error says what was tried and how to get them.
func TestWithout(t *testing.T) {
	t.Setenv(ortapi.EnvQNN, filepath.Join(t.TempDir(), "libnone.so"))
	_, err := New(Options{}).CompileGroup(t.Context(), pieces(t, 1), gen3(true))
	if !errors.Is(err, driver.ErrUnavailable) || diag.ClassOf(err) != diag.ClassUnavailable {
		t.Fatalf("got %v of class %v, want one that is unavailable", err, diag.ClassOf(err))
	}
	hints := strings.Join(diag.HintsOf(err), " ")
	if !strings.Contains(err.Error(), "libnone.so") || !strings.Contains(hints, "make deps-qnn") {
		t.Errorf("got %v, hints %q", err, hints)
	}
}

// A library that crashes takes its own process along, and what is no plugin is refused.
func TestCrashingLibrary(t *testing.T) {
	libraries(t)
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler: ", err)
	}
	installed, err := ortapi.FindQNN("")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{filepath.Base(installed.Backend), "libQnnSystem.so"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const crash = `__attribute__((constructor)) static void start(void) { *(volatile int *)0 = 1; }`
	const hang = "#include <unistd.h>\n" +
		`__attribute__((constructor)) static void start(void) { for (;;) pause(); }`
	plugin, source := filepath.Join(dir, filepath.Base(installed.Provider)), filepath.Join(dir, "lib.c")
	for code, want := range map[string]string{
		crash:          "the compiler crashed",
		hang:           "the compiler was stopped after 3s",
		`int nothing;`: "CreateEpFactories",
	} {
		if err := os.WriteFile(source, []byte(code), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(compiler, "-shared", "-fPIC", "-o", plugin, source).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		temporary := t.TempDir()
		t.Setenv(ortapi.EnvQNN, plugin)
		t.Setenv("TMPDIR", temporary)
		_, err := New(Options{Time: 3 * time.Second}).CompileGroup(t.Context(), pieces(t, 1), gen3(true))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if left, _ := os.ReadDir(temporary); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

// What the real library does with what it does not know is no fallback.
func TestRealRefusals(t *testing.T) {
	libraries(t)
	target := func(soc, arch string) driver.Target {
		target := gen3(true)
		target.Options["soc_model"], target.Options["htp_arch"] = soc, arch
		return target
	}
	for what, test := range map[string]struct {
		target driver.Target
		memory int64 // bytes, 0: the default
		want   string
	}{
		"an unknown SoC": {
			target: target("9999", "75"),
			want: `for soc_model 9999, htp_arch 75: onnx runtime: compile "g0.onnx": FAIL: ` +
				"Unable to compile any nodes",
		},
		"another architecture": {
			target: target("57", "79"),
			want: "the compiler made a binary for soc_model 57, htp_arch 75, " +
				"want soc_model 57, htp_arch 79",
		},
		"an unknown architecture": {
			target: target("57", "99"),
			want:   "htp_arch 75, want soc_model 57, htp_arch 99",
		},
		"little memory": {target: gen3(true), memory: 200 << 20}, // fails in many ways
	} {
		_, err := New(Options{Memory: test.memory}).CompileGroup(t.Context(), pieces(t, 4), test.target)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", what, err, test.want)
		}
	}
}

// Nodes of compiledModel.
const (
	edgeIn   = 0
	compiled = 1
)

// compiledModel is a model that holds its binary, after a change.
func compiledModel(change func(*onnx.Model)) []byte {
	model := &onnx.Model{
		IR:       onnx.IR,
		Producer: "p",
		Opsets:   []onnx.OpsetID{{Domain: "", Version: onnx.Opset}},
		Graph: onnx.Graph{
			Name: "g",
			Initializers: []onnx.Tensor{
				onnx.Float32s("s", nil, 1),
				{Name: "w", Type: onnx.Int8, Dims: []int64{1}, Raw: []byte{1}},
			},
			Nodes: []onnx.Node{
				{Op: "QuantizeLinear", In: []string{"x", "s"}, Out: []string{"xq"}},
				{Op: "EPContext", Name: "n", In: []string{"xq"}, Out: []string{"yq"}, Attrs: []onnx.Attr{
					onnx.Int("embed_mode", 1), onnx.String("ep_cache_context", "blob"),
					onnx.String("partition_name", "p"), onnx.String("ep_sdk_version", "v1"),
				}},
				{Op: "DequantizeLinear", In: []string{"yq", "s"}, Out: []string{"y"}},
			},
		},
		Props: []onnx.Prop{{Key: tokenKey, Value: "token"}},
	}
	if change != nil {
		change(model)
	}
	return model.Marshal()
}

// A compiled model is read whole.
func TestInspect(t *testing.T) {
	got, err := inspect(compiledModel(nil), false)
	want := &wrapper{graph: "p", context: "blob", sdk: "v1", token: "token", nodes: 3, edge: 2}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

// A model of which the CPU would execute something, or that does not fit its binary, is refused.
func TestInspectRefuses(t *testing.T) {
	for what, test := range map[string]struct {
		change func(*onnx.Model)
		shared bool
		want   string
	}{
		"an operator on the CPU": {
			change: func(m *onnx.Model) {
				m.Graph.Nodes = append(m.Graph.Nodes,
					onnx.Node{Op: "MatMulNBits", In: []string{"y"}}, onnx.Node{Op: "Tanh"})
			},
			want: "does not take all of the graph: MatMulNBits, Tanh would stay on the CPU",
		},
		"a weight on the CPU": {
			change: func(m *onnx.Model) { m.Graph.Nodes[edgeIn].In[0] = "w" },
			want:   "QuantizeLinear would stay",
		},
		"nothing compiled": {
			change: func(m *onnx.Model) { m.Graph.Nodes = m.Graph.Nodes[:compiled] },
			want:   "takes nothing",
		},
		"two pieces": {
			change: func(m *onnx.Model) { m.Graph.Nodes = append(m.Graph.Nodes, m.Graph.Nodes[compiled]) },
			want:   "in 2 pieces",
		},
		"no token": {
			change: func(m *onnx.Model) { m.Props = nil },
			want:   "no ep_compatibility_info",
		},
		"no binary": {
			change: func(m *onnx.Model) { m.Graph.Nodes[compiled].Attrs[0].I = 0 },
			want:   "does not hold",
		},
		"a binary of its own": {
			shared: true,
			want:   `the binary "blob", want "g0_qnn.bin"`,
		},
	} {
		if _, err := inspect(compiledModel(test.change), test.shared); err == nil ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", what, err, test.want)
		}
	}
	if _, err := inspect([]byte{1}, false); err == nil {
		t.Error("nonsense is inspected")
	}
}

// Requests and answers that are cut off or contradict themselves are refused.
var (
	badRequests = []string{
		"{}",
		"null",
		`{"Graphs":[{"Inputs":[{"Type":1,"Rows":-1,"Cols":8}]}]}`,
		`{"Graphs":[{"Outputs":[{"Type":1,"Rows":4294967296,"Cols":4294967296}]}]}`,
		`{"Graphs":[{}],"Memory":-1}`,
	}
	badAnswers = []string{ // of one graph
		"",
		"yes",
		`{"Graphs":[]}`,
		`{"Graphs":[{},{}]}`,
		`{"Failed":7}`,
	}
)

// Whatever a process is asked, or answers, is read or refused; what is read can be allocated and indexed.
func FuzzProcess(f *testing.F) {
	good, err := json.Marshal(request{
		Options: [][2]string{{"a", "b"}},
		Memory:  1 << 30,
		Graphs: []task{{
			Inputs:  []tensor{{"i0", onnx.Float32, 3, 8}},
			Outputs: []tensor{{"o0", onnx.Float32, 3, 8}},
			Sample:  true,
		}},
	})
	if err != nil {
		f.Fatal(err)
	}
	if _, err := readRequest(good); err != nil {
		f.Fatal(err)
	}
	bad := slices.Clone(badRequests)
	for length := 0; length < len(good); length += 7 {
		bad = append(bad, string(good[:length]))
	}
	for _, text := range bad {
		if _, err := readRequest([]byte(text)); err == nil {
			f.Errorf("request %s was read", text)
		}
		f.Add([]byte(text))
	}
	for _, text := range badAnswers {
		if _, err := readAnswer([]byte(text), 1); err == nil {
			f.Errorf("answer %s was read", text)
		}
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if asked, err := readRequest(data); err == nil {
			for _, graph := range asked.Graphs {
				for _, tensor := range slices.Concat(graph.Inputs, graph.Outputs) {
					if size := tensor.bytes(); size < 1 || size > maxTensor {
						t.Fatalf("tensor of %d bytes", size)
					}
				}
			}
		}
		if said, err := readAnswer(data, 2); err == nil && said.Failed == nil && len(said.Graphs) != 2 {
			t.Fatalf("%d graphs", len(said.Graphs))
		}
	})
}
