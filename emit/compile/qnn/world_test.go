package qnn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/debug"
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

// play is the variable by which a test has the compiler's process behave otherwise.
const play = "HETC_TEST_QNN"

// played is such a process. Those that answer name themselves in a file, so that starts can be counted.
func played(what string) int {
	var q request
	b, _ := os.ReadFile(requestFile)
	if err := json.Unmarshal(b, &q); err != nil {
		return 1
	}
	_ = (&worker{request: &q}).begin(len(q.Graphs) - 1)
	if log := os.Getenv(play + "_LOG"); log != "" {
		f, _ := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		fmt.Fprintln(f, os.Getpid())
		f.Close()
	}
	switch what {
	case "segfault":
		fmt.Println("about to fail")
		debug.SetTraceback("none")
		self, _ := os.FindProcess(os.Getpid())
		_ = self.Signal(syscall.SIGSEGV)
		select {}
	case "hang":
		fmt.Fprintln(os.Stderr, "working")
		select {}
	case "orphan": // ends with its parent
		_ = Work(".", os.Stdin)
		select {}
	case "silence":
		return 0
	case "lost progress": // as when it is killed while it writes the file
		_ = os.WriteFile(progressFile, nil, 0o600)
		return 0
	case "nonsense":
		_ = os.WriteFile(answerFile, []byte("yes"), 0o600)
		return 0
	case "full disk":
		err := os.WriteFile("/dev/full", []byte("x"), 0o600)
		b, _ := json.Marshal(answer{Failed: &failure{diag.ClassIO, -1, err.Error()}})
		_ = os.WriteFile(answerFile, b, 0o600)
		return 0
	case "too few":
		_ = os.WriteFile(answerFile, []byte(`{"ORT":"1","Graphs":[]}`), 0o600)
		return 0
	case "good", "other arch", "other token":
		a := answer{ORT: "1.2.3", Provider: "4.5", SDK: "v6.7.8.9", Arch: 75, SoC: 57}
		token := "v2:6:6.7.8:1.0.0:75:57:8:0"
		if what == "other arch" {
			a.Arch = 68
		}
		if what == "other token" {
			token = "v2:6:6.7.8:1.0.0:0:57:8:0"
		}
		for i := range q.Graphs {
			src, _ := os.ReadFile(modelFile(i))
			m := &onnx.Model{IR: onnx.IR, Producer: "fake", Graph: onnx.Graph{Nodes: []onnx.Node{{Op: "EPContext", Attrs: []onnx.Attr{onnx.String("of", fmt.Sprint(len(src)))}}}}}
			if err := os.WriteFile(contextFile(i), m.Marshal(), 0o600); err != nil {
				return 1
			}
			a.Graphs = append(a.Graphs, facts{Token: token, Nodes: 1})
		}
		_ = os.WriteFile(filepath.Join(outFolder, sharedFile), []byte("shared"), 0o600)
		b, _ := json.Marshal(a)
		_ = os.WriteFile(answerFile, b, 0o600)
		return 0
	}
	return 1
}

// fake is a compiler whose process behaves as told; no library is needed.
func fake(t *testing.T, what string, o Options) (*compiler, func() int) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	t.Setenv(play, what)
	t.Setenv(play+"_LOG", log)
	t.Setenv("TMPDIR", t.TempDir())
	c := New(o).(*compiler)
	c.toolchains[[2]string{}] = &toolchain{program: os.Args[0], ort: &ortapi.Library{}, qnn: &ortapi.QNN{}, key: "fake"}
	t.Cleanup(func() {
		left, err := os.ReadDir(os.Getenv("TMPDIR"))
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %v (%v)", left, err)
		}
		for _, line := range lines(log) {
			pid, _ := strconv.Atoi(line)
			if p, err := os.FindProcess(pid); err == nil && p.Signal(syscall.Signal(0)) == nil {
				t.Errorf("process %d still runs", pid)
			}
		}
	})
	return c, func() int { return len(lines(log)) }
}

func lines(file string) []string {
	b, _ := os.ReadFile(file)
	return strings.Fields(string(b))
}

func pieces(t *testing.T, rows ...int) []driver.Piece {
	var out []driver.Piece
	for _, m := range rows {
		p := build(t, single(op.Op{Kind: op.MatMul, M: m, K: 8, N: 32, Scheme: op.A16SQ8C}), 1)
		if len(out) > 0 {
			p.Weights = out[0].Weights
		}
		p.Name, p.Sample = fmt.Sprint("rows ", m), nil
		out = append(out, p.Piece)
	}
	return out
}

// Whatever the compiler's process does is an error of the graph that it worked on, and leaves nothing.
func TestBadProcess(t *testing.T) {
	for what, c := range map[string]struct {
		want  string
		class diag.Class
		piece int // -1: none in particular
	}{
		"segfault":      {"the compiler crashed: exit status 2; it said: about to fail SIGSEGV: segmentation violation", diag.ClassRun, 1},
		"hang":          {"stopped after 500ms; it said: working", diag.ClassRun, 1},
		"silence":       {"without an answer", diag.ClassRun, 1},
		"lost progress": {"without an answer", diag.ClassRun, -1},
		"too few":       {"without an answer: it tells of 0 graphs, want 1", diag.ClassRun, 1},
		"nonsense":      {"without an answer: invalid character", diag.ClassRun, 1},
		"full disk":     {"no space left on device", diag.ClassIO, -1},
		"other arch":    {"a binary for soc_model 57, htp_arch 68, want soc_model 57, htp_arch 75", diag.ClassInput, -1},
		"other token":   {`compatibility string is "v2:6:6.7.8:1.0.0:0:57:8:0"`, diag.ClassInput, -1},
	} {
		t.Run(what, func(t *testing.T) {
			if what == "full disk" && runtime.GOOS != "linux" {
				t.Skip("no /dev/full")
			}
			o := Options{}
			if what == "hang" {
				o.Time = 500 * time.Millisecond
			}
			b, _ := fake(t, what, o)
			_, err := b.CompileGroup(t.Context(), pieces(t, 1, 4), gen3(false))
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `"npu"`) || diag.ClassOf(err) != c.class {
				t.Fatalf("got %v (class %v), want %q", err, diag.ClassOf(err), c.want)
			}
			var r *driver.Refused
			switch {
			case errors.As(err, &r) != (c.piece >= 0):
				t.Errorf("refused pieces: %v", r)
			case r != nil: // the process works on the last of those that are left, until none is
				if !reflect.DeepEqual(r.Pieces, []int{0, 1}) || !strings.Contains(r.Reasons[1].Error(), `graph "rows 4"`) {
					t.Errorf("refused %v: %v", r.Pieces, r.Reasons)
				}
			}
		})
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

func TestCancelled(t *testing.T) {
	b, starts := fake(t, "hang", Options{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for starts() == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
	}()
	if _, err := b.CompileGroup(ctx, pieces(t, 4), gen3(true)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := b.CompileGroup(ctx, pieces(t, 4), gen3(true)); !errors.Is(err, context.Canceled) || starts() != 1 {
		t.Errorf("after that: %v, %d processes", err, starts())
	}
}

// What was compiled is not compiled again, unless it is damaged; what differs in anything is.
func TestCache(t *testing.T) {
	dir := t.TempDir()
	b, starts := fake(t, "good", Options{Cache: dir})
	compileGroup := func(group []driver.Piece, target driver.Target, want int) *driver.CompiledGroup {
		t.Helper()
		before := starts()
		x, err := b.CompileGroup(t.Context(), group, target)
		if err != nil {
			t.Fatal(err)
		}
		if got := starts() - before; got != want || x.Cached != (want == 0) {
			t.Fatalf("%d processes, cached %v, want %d", got, x.Cached, want)
		}
		x.Cached = false
		return x
	}
	group := pieces(t, 4, 1)
	first := compileGroup(group, gen3(false), 1)
	if first.Compiler != "QNN 6.7.8 (plugin 4.5, ONNX Runtime 1.2.3)" || string(first.Shared) != "shared" {
		t.Errorf("got %+v", first)
	}
	renamed := pieces(t, 4, 1)
	renamed[0].Name = "another"
	if again := compileGroup(renamed, gen3(false), 0); !reflect.DeepEqual(again, first) {
		t.Errorf("got %+v, want %+v", again, first)
	}
	// Weights that are known by their digest are not made, as long as nothing is to be compiled.
	made := 0
	later := func(x string) []driver.Piece {
		out := pieces(t, 4, 1)
		for i := range out {
			w := out[i].Weights
			out[i].Later, out[i].Weights = &driver.Later{Weights: w.Digest() + x, Make: func() (driver.Weights, [][]byte, error) {
				made++
				return w, nil, nil
			}}, nil
		}
		return out
	}
	if again := compileGroup(later(""), gen3(false), 0); made != 0 || !reflect.DeepEqual(again, first) {
		t.Errorf("weights were made %d times for %+v", made, again)
	}
	if compileGroup(later("0"), gen3(false), 1); made != 2 {
		t.Errorf("weights were made %d times for two graphs", made)
	}
	compileGroup(group, gen3(true), 2)
	compileGroup(group[1:], gen3(true), 0)
	other := gen3(true)
	other.Options["vtcm_mb"] = "4"
	compileGroup(group[1:], other, 1)
	changed := pieces(t, 1)
	changed[0].Weights[0].Bytes[3]++
	compileGroup(changed, gen3(true), 1)
	b.toolchains[[2]string{}].key = "newer"
	compileGroup(group, gen3(false), 1)
	// Damage.
	n := 0
	err := filepath.Walk(dir, func(path string, st os.FileInfo, err error) error {
		if err != nil || st.IsDir() || st.Size() < 200 {
			return err
		}
		n++
		if err := os.Chmod(path, 0o600); err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text[len(text)/2] ^= 1
		return os.WriteFile(path, text, 0o600)
	})
	if err != nil || n == 0 {
		t.Fatalf("%d files damaged (%v)", n, err)
	}
	if again := compileGroup(group, gen3(false), 1); !reflect.DeepEqual(again, first) {
		t.Errorf("after damage: %+v", again)
	}
	compileGroup(group, gen3(false), 0)
	// Nothing that failed is kept.
	failing, starts := fake(t, "silence", Options{Cache: dir})
	for range 2 {
		if _, err := failing.CompileGroup(t.Context(), pieces(t, 16), gen3(true)); err == nil {
			t.Error("no error")
		}
	}
	if starts() != 2 {
		t.Errorf("%d processes", starts())
	}
}

func TestRefusedTargets(t *testing.T) {
	group := pieces(t, 1)
	for what, c := range map[string]struct {
		change func(map[string]string)
		want   string
	}{
		"an unknown option": {func(o map[string]string) { o["soc"] = "57" }, `target option "soc" is unknown, want soc_model, htp_arch, vtcm_mb, opt, library, onnxruntime`},
		"no SoC":            {func(o map[string]string) { delete(o, "soc_model") }, `target option "soc_model" is missing`},
		"no number":         {func(o map[string]string) { o["htp_arch"] = "v75" }, `target option htp_arch is "v75"`},
		"an effort of 9":    {func(o map[string]string) { o["opt"] = "9" }, "opt is 9, want 0 to 3"},
	} {
		b, starts := fake(t, "good", Options{})
		target := gen3(true)
		c.change(target.Options)
		if _, err := b.CompileGroup(t.Context(), group, target); err == nil || !strings.Contains(err.Error(), c.want) || starts() != 0 {
			t.Errorf("%s: got %v, want %q", what, err, c.want)
		}
	}
	b, _ := fake(t, "good", Options{})
	if _, err := b.CompileGroup(t.Context(), nil, gen3(true)); err == nil {
		t.Error("a group of nothing is compiled")
	}
	bad := pieces(t, 1, 2)
	bad[1].Sample = [][]byte{{1}}
	_, err := b.CompileGroup(t.Context(), bad, gen3(true))
	var r *driver.Refused
	if !errors.As(err, &r) || !reflect.DeepEqual(r.Pieces, []int{1}) || !strings.Contains(err.Error(), "input 0 of the sample has 1 bytes, want 64") {
		t.Errorf("a short sample: %v", err)
	}
}

// Without the libraries the error says what was tried and how to get them.
func TestWithout(t *testing.T) {
	t.Setenv(ortapi.EnvQNN, filepath.Join(t.TempDir(), "libnone.so"))
	_, err := New(Options{}).CompileGroup(t.Context(), pieces(t, 1), gen3(true))
	if !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "libnone.so") || diag.ClassOf(err) != diag.ClassUnavailable || !strings.Contains(strings.Join(diag.HintsOf(err), " "), "make deps-qnn") {
		t.Errorf("got %v, hints %q", err, diag.HintsOf(err))
	}
}

// A library that crashes takes its own process along.
func TestCrashingLibrary(t *testing.T) {
	libraries(t)
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler: ", err)
	}
	dir := t.TempDir()
	real, err := ortapi.FindQNN("")
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, lib := range []string{filepath.Base(real.Backend), "libQnnSystem.so"} {
		write(lib, "")
	}
	path := filepath.Join(dir, filepath.Base(real.Provider))
	for code, want := range map[string]string{
		`__attribute__((constructor)) static void start(void) { *(volatile int *)0 = 1; }`:                          "the compiler crashed",
		`#include <unistd.h>` + "\n" + `__attribute__((constructor)) static void start(void) { for (;;) pause(); }`: "the compiler was stopped after 3s",
		`int nothing;`: "CreateEpFactories",
	} {
		if out, err := exec.Command(cc, "-shared", "-fPIC", "-o", path, write("lib.c", code)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		t.Setenv(ortapi.EnvQNN, path)
		t.Setenv("TMPDIR", t.TempDir())
		_, err := New(Options{Time: 3 * time.Second}).CompileGroup(t.Context(), pieces(t, 1), gen3(true))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if left, _ := os.ReadDir(os.Getenv("TMPDIR")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

// What the real library does with what it does not know is no fallback.
func TestRealRefusals(t *testing.T) {
	libraries(t)
	target := func(soc, arch string) driver.Target {
		return driver.Target{Proc: "npu", Options: map[string]string{"soc_model": soc, "htp_arch": arch, "vtcm_mb": "8"}, Emulator: true}
	}
	for what, c := range map[string]struct {
		target driver.Target
		memory int64
		want   string
	}{
		"an unknown SoC":          {target("9999", "75"), 0, "for soc_model 9999, htp_arch 75: onnx runtime: compile \"g0.onnx\": FAIL: Unable to compile any nodes"},
		"another architecture":    {target("57", "79"), 0, "the compiler made a binary for soc_model 57, htp_arch 75, want soc_model 57, htp_arch 79"},
		"an unknown architecture": {target("57", "99"), 0, "htp_arch 75, want soc_model 57, htp_arch 99"},
		"little memory":           {gen3(true), 200 << 20, ""},
	} {
		_, err := New(Options{Memory: c.memory}).CompileGroup(t.Context(), pieces(t, 4), c.target)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", what, err, c.want)
		}
	}
}

func TestInspect(t *testing.T) {
	good := func(change func(*onnx.Model)) []byte {
		m := &onnx.Model{IR: onnx.IR, Producer: "p", Opsets: []onnx.OpsetID{{Domain: "", Version: onnx.Opset}},
			Graph: onnx.Graph{Name: "g", Initializers: []onnx.Tensor{onnx.Float32s("s", nil, 1), {Name: "w", Type: onnx.Int8, Dims: []int64{1}, Raw: []byte{1}}},
				Nodes: []onnx.Node{
					{Op: "QuantizeLinear", In: []string{"x", "s"}, Out: []string{"xq"}},
					{Op: "EPContext", Name: "n", In: []string{"xq"}, Out: []string{"yq"}, Attrs: []onnx.Attr{onnx.Int("embed_mode", 1), onnx.String("ep_cache_context", "blob"), onnx.String("partition_name", "p"), onnx.String("ep_sdk_version", "v1")}},
					{Op: "DequantizeLinear", In: []string{"yq", "s"}, Out: []string{"y"}},
				}},
			Props: []onnx.Prop{{Key: tokenKey, Value: "token"}}}
		if change != nil {
			change(m)
		}
		return m.Marshal()
	}
	w, err := inspect(good(nil), false)
	if err != nil || w.graph != "p" || w.context != "blob" || w.sdk != "v1" || w.token != "token" || w.nodes != 3 || w.edge != 2 {
		t.Errorf("got %+v, %v", w, err)
	}
	nodes := func(m *onnx.Model) *[]onnx.Node { return &m.Graph.Nodes }
	for what, c := range map[string]struct {
		change func(*onnx.Model)
		shared bool
		want   string
	}{
		"an operator on the CPU": {func(m *onnx.Model) {
			*nodes(m) = append(*nodes(m), onnx.Node{Op: "MatMulNBits", In: []string{"y"}}, onnx.Node{Op: "Tanh"})
		}, false, "does not take all of the graph: MatMulNBits, Tanh would stay on the CPU"},
		"a weight on the CPU": {func(m *onnx.Model) { (*nodes(m))[0].In[0] = "w" }, false, "QuantizeLinear would stay"},
		"nothing compiled":    {func(m *onnx.Model) { *nodes(m) = (*nodes(m))[:1] }, false, "takes nothing"},
		"two pieces":          {func(m *onnx.Model) { *nodes(m) = append(*nodes(m), (*nodes(m))[1]) }, false, "in 2 pieces"},
		"no token":            {func(m *onnx.Model) { m.Props = nil }, false, "no ep_compatibility_info"},
		"no binary":           {func(m *onnx.Model) { (*nodes(m))[1].Attrs[0].I = 0 }, false, "does not hold"},
		"a binary of its own": {nil, true, `the binary "blob", want "g0_qnn.bin"`},
	} {
		if _, err := inspect(good(c.change), c.shared); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", what, err, c.want)
		}
	}
	if _, err := inspect([]byte{1}, false); err == nil {
		t.Error("nonsense is inspected")
	}
}

// Whatever a process is asked, or answers, is read or refused; what is read can be allocated and indexed.
func FuzzProcess(f *testing.F) {
	ok, err := json.Marshal(request{Options: [][2]string{{"a", "b"}}, Memory: 1 << 30, Graphs: []task{{Inputs: []tensor{{"i0", onnx.Float32, 3, 8}}, Outputs: []tensor{{"o0", onnx.Float32, 3, 8}}, Sample: true}}})
	if err != nil {
		f.Fatal(err)
	}
	if _, err := readRequest(ok); err != nil {
		f.Fatal(err)
	}
	for n := 0; n < len(ok); n += 7 {
		if _, err := readRequest(ok[:n]); err == nil {
			f.Errorf("%d bytes of %d were read", n, len(ok))
		}
		f.Add(ok[:n])
	}
	for _, bad := range []string{"{}", "null", `{"Graphs":[{"Inputs":[{"Type":1,"Rows":-1,"Cols":8}]}]}`, `{"Graphs":[{"Outputs":[{"Type":1,"Rows":4294967296,"Cols":4294967296}]}]}`, `{"Graphs":[{}],"Memory":-1}`} {
		if _, err := readRequest([]byte(bad)); err == nil {
			f.Errorf("request %s was read", bad)
		}
		f.Add([]byte(bad))
	}
	for _, bad := range []string{"", "yes", `{"Graphs":[]}`, `{"Graphs":[{},{}]}`, `{"Failed":7}`} {
		if _, err := readAnswer([]byte(bad), 1); err == nil {
			f.Errorf("answer %s was read", bad)
		}
		f.Add([]byte(bad))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if q, err := readRequest(b); err == nil {
			for _, g := range q.Graphs {
				for _, x := range append(g.Inputs, g.Outputs...) {
					if n := x.bytes(); n < 1 || n > maxTensor {
						t.Fatalf("tensor of %d bytes", n)
					}
				}
			}
		}
		if a, err := readAnswer(b, 2); err == nil && a.Failed == nil && len(a.Graphs) != 2 {
			t.Fatalf("%d graphs", len(a.Graphs))
		}
	})
}
