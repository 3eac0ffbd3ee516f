package executor_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/emit"
	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	openclcompiler "github.com/hetc/hetc/emit/compile/opencl"
	ortcompiler "github.com/hetc/hetc/emit/compile/ort"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/selftest"
)

// foreign is the host's driver under another name, so that it is not the reference, and perhaps with an error.
type foreign struct {
	driver.Driver
	mistake *mistake
}

// mistake is what a foreign processor gets wrong.
type mistake struct {
	graph func(*op.Graph) bool                                  // where
	load  func(*op.Graph, driver.Weights) driver.Weights        // weights that it reads instead
	run   func(*op.Graph, *driver.Bindings, func() error) error // what it does instead of a call
}

const foreignName = "foreign"

func (foreign) Name() string { return foreignName }

func (f foreign) Open(ctx context.Context, config driver.Config) (driver.Processor, error) {
	proc, err := f.Driver.Open(ctx, config)
	return &foreignProcessor{Processor: proc, mistake: f.mistake}, err
}

type foreignProcessor struct {
	driver.Processor
	mistake *mistake
}

type foreignExecutable struct {
	driver.Executable
	graph op.Graph
}

func (p *foreignProcessor) Load(ctx context.Context, a driver.Artifact, w driver.Weights) (driver.Executable, error) {
	graph, err := driver.ParseGraph(a.Code)
	if err != nil {
		return nil, err
	}
	if p.mistake != nil && p.mistake.load != nil && p.mistake.graph(&graph) {
		w = p.mistake.load(&graph, w)
	}
	a.Driver = host.Name
	exe, err := p.Processor.Load(ctx, a, w)
	return &foreignExecutable{exe, graph}, err
}

func (p *foreignProcessor) Run(exe driver.Executable, b *driver.Bindings) (span driver.Span, err error) {
	loaded := exe.(*foreignExecutable)
	call := func() error {
		span, err = p.Processor.Run(loaded.Executable, b)
		return err
	}
	if p.mistake != nil && p.mistake.run != nil && p.mistake.graph(&loaded.graph) {
		return span, p.mistake.run(&loaded.graph, b, call)
	}
	return span, call()
}

// foreignCompiler compiles for it.
type foreignCompiler struct{ driver.Compiler }

func (foreignCompiler) Name() string { return foreignName }

// foreignPlan divides the demo model between the host and a foreign processor.
func foreignPlan(t testing.TB, scheme op.Scheme, rows []int, layout layoutOf) (*planir.Plan, *emit.Content) {
	t.Helper()
	model := open(t.(*testing.T))
	core := host0(t)
	other := proc("b", core, "")
	other.Driver = foreignName
	plan := makePlan(t, model, []planir.Proc{proc("a", core, ""), other}, rows, 64, scheme, layout)
	return plan, contentOf(t, plan, foreignCompiler{hostcompiler.New()})
}

// host0 is a selector of the host.
func host0(t testing.TB) string {
	t.Helper()
	devices, err := host.New().Devices(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return devices[0].Select
}

func contentOf(t testing.TB, plan *planir.Plan, more ...driver.Compiler) *emit.Content {
	t.Helper()
	content, err := emit.NewContent(context.Background(), plan, open(t.(*testing.T)), append(more, hostcompiler.New()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { content.Close() })
	return content
}

// selfTestOf computes the self-test as emit does, and reads it as the runtime does.
func selfTestOf(t testing.TB, plan *planir.Plan, content *emit.Content) *selftest.Test {
	t.Helper()
	computed, err := content.SelfTest(context.Background(), host.New(), map[string]string{"kernels": "reference"})
	if err != nil {
		t.Fatal(err)
	}
	text, err := selftest.Encode(computed)
	if err != nil {
		t.Fatal(err)
	}
	test, err := selftest.Decode(text, plan)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := selftest.Encode(test); err != nil || !bytes.Equal(again, text) {
		t.Fatalf("written again it differs (%v)", err)
	}
	t.Logf("%d cases, %d bytes", len(test.Cases), len(text))
	return test
}

func selfTest(plan *planir.Plan, content *emit.Content, test *selftest.Test, drv driver.Driver,
	deadline time.Duration) ([]executor.Tried, error) {
	return executor.SelfTest(context.Background(), plan, content, test, []string{"b"},
		executor.Options{Drivers: []driver.Driver{host.New(), drv}, Deadline: deadline})
}

// A processor that computes what it should passes, in every scheme.
func TestSelfTestPasses(t *testing.T) {
	for _, scheme := range []op.Scheme{op.A32W32, op.A32W16, op.A8TQ8C, op.A8TQ4B32, op.A8TQ4B128, op.A16FW16, op.A16FQ4B32} {
		layout := layoutOf(swapped)
		if scheme.RoundsResults() {
			layout = columnsSwapped
		}
		plan, content := foreignPlan(t, scheme, []int{1, 40}, layout)
		tried, err := selfTest(plan, content, selfTestOf(t, plan, content), foreign{Driver: host.New()}, 0)
		if err != nil {
			t.Fatalf("%s: %v", scheme, err)
		}
		if len(tried) != 1 || tried[0].Kernels < 6 {
			t.Fatalf("%s: %+v, want at least 6 kernels on one processor", scheme, tried)
		}
		t.Logf("%s: %+v", scheme, tried[0])
		if tried[0].Worst > 0.3 {
			t.Errorf("%s: a right processor uses %.2g of what is permitted, want at most 0.3", scheme, tried[0].Worst)
		}
	}
}

// Every slot of a group of experts has a weight of its own, which the test of its graph knows.
func TestSelfTestOfGroups(t *testing.T) {
	model, err := models.Open("../../testdata/arch/olmoe-plain")
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	other := proc("b", host0(t), "")
	other.Driver = foreignName
	const rows = 64
	groups := []planir.ExpertGroup{{Slots: model.Experts - 1, Rows: 24}, {Slots: 1, Rows: 4}}
	plan := makePlan(t, model, []planir.Proc{proc("a", host0(t), ""), other}, []int{1, rows}, 2*rows, op.A8TQ8C,
		groupsOn("b"), tiersOf(model, rows, planir.OverflowExact, groups...))
	compilers := []driver.Compiler{foreignCompiler{hostcompiler.New()}, hostcompiler.New()}
	content, err := emit.NewContent(t.Context(), plan, model, compilers)
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	test := selfTestOf(t, plan, content)
	if _, err := selfTest(plan, content, test, foreign{Driver: host.New()}, 0); err != nil {
		t.Errorf("a right processor: %v", err)
	}
	all := groups[0].Slots * groups[0].Rows
	wrong := mistake{graph: has(op.GroupMatMul, all), run: spoil(all-1, 5, 4)}
	if _, err := selfTest(plan, content, test, foreign{host.New(), &wrong}, 0); err == nil {
		t.Error("a number of the last slot is wrong, and the test passes")
	}
}

// columnsSwapped is byColumns with the first part on the second processor.
func columnsSwapped(d *planir.Decision, n *lower.Node) {
	byColumns(d, n)
	for i := range d.Shares {
		d.Shares[i].Proc = map[string]string{"a": "b", "b": "a"}[d.Shares[i].Proc]
	}
}

// has finds the graphs of some rows with an operator.
func has(kind op.Kind, rows int) func(*op.Graph) bool {
	return func(graph *op.Graph) bool {
		return graph.Rows() == rows &&
			slices.ContainsFunc(graph.Nodes, func(n op.Node) bool { return n.Op.Kind == kind })
	}
}

// spoil changes one number of a row of the first output after the call.
func spoil(row, column int, by float32) func(*op.Graph, *driver.Bindings, func() error) error {
	return func(_ *op.Graph, b *driver.Bindings, call func() error) error {
		err := call()
		view := b.Out[0]
		if row >= b.Scalars.Rows {
			return err
		}
		at := view.Offset + 4*int64(row*view.Stride+min(column, view.Cols-1))
		data := view.Buffer.Bytes()[at : at+4]
		value := decodeFloat(data)
		encodeFloat(data, value+by)
		return err
	}
}

// Every planted error of one kernel is found, and the message names the processor, the operator with its shape and the
// error.
func TestSelfTestFindsMiscompiledKernels(t *testing.T) {
	for name, c := range map[string]struct {
		scheme  op.Scheme
		mistake mistake
		want    string
	}{
		"one number of the last row": {op.A32W32, mistake{graph: has(op.MatMul, 40), run: spoil(39, 5, 0.5)},
			"matmul[40,"},
		"one number of a row in the middle": {op.A8TQ8C, mistake{graph: has(op.MatMul, 40), run: spoil(18, 1, 4)},
			"matmul[40,"},
		"one number of decoding": {op.A32W32, mistake{graph: has(op.MatMul, 1), run: spoil(0, 33, 0.5)}, "matmul[1,"},
		"one head of attention": {op.A32W32, mistake{graph: has(op.Attention, 40), run: spoil(7, 3, 0.2)},
			"attention"},
		"no number": {op.A32W32, mistake{graph: has(op.MatMul, 40), run: spoil(3, 3, nan)}, "relative error of +Inf"},
		"rows beyond a tile of 16 are those of the first": {op.A32W32, mistake{graph: has(op.MatMul, 40),
			run: func(_ *op.Graph, b *driver.Bindings, call func() error) error {
				err := call()
				if view := b.Out[0]; b.Scalars.Rows > 16 {
					data := view.Buffer.Bytes()[view.Offset:]
					copy(data[4*16*view.Stride:][:4*view.Cols], data[:4*view.Cols])
				}
				return err
			}}, "matmul[40,"},
		"two tiles of the weight are exchanged": {op.A8TQ8C, mistake{graph: has(op.MatMul, 1), load: exchanged}, "matmul[1,"},
		"keys are written one row too early": {op.A32W32, mistake{graph: has(op.KVAppend, 40),
			run: func(_ *op.Graph, b *driver.Bindings, call func() error) error {
				b.Scalars.Pos--
				defer func() { b.Scalars.Pos++ }()
				return call()
			}}, "kv_append[40]"},
	} {
		t.Run(name, func(t *testing.T) {
			plan, content := foreignPlan(t, c.scheme, []int{1, 40}, swapped)
			test := selfTestOf(t, plan, content)
			_, err := selfTest(plan, content, test, foreign{host.New(), &c.mistake}, 0)
			if err == nil {
				t.Fatal("it was not found")
			}
			t.Log(err)
			for _, want := range []string{c.want, `processor "b"`, "relative error"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want it to contain %q", err, want)
				}
			}
			if class := diag.ClassOf(err); class != diag.ClassRun {
				t.Errorf("class %v, want %v", class, diag.ClassRun)
			}
		})
	}
}

// A driver that fails or hangs is an error that says so, and no hang.
func TestSelfTestOfAFaultyDriver(t *testing.T) {
	plan, content := foreignPlan(t, op.A32W32, []int{1, 8}, swapped)
	test := selfTestOf(t, plan, content)
	for _, c := range []struct {
		fault drivertest.Fault
		want  string
	}{
		{drivertest.Fault{At: drivertest.AtOpen, K: 1}, "injected fault: open 1"},
		{drivertest.Fault{At: drivertest.AtLoad, K: 2}, "injected fault: load 2"},
		{drivertest.Fault{At: drivertest.AtRun, K: 3}, "injected fault: run 3"},
		{drivertest.Fault{At: drivertest.AtRun, K: 1, Hang: true}, `graph "b/embed.embed@1" (embed[1]x[2048,256] bf16) does not return within`},
	} {
		ctx, cancel := context.WithCancel(context.Background())
		_, err := selfTest(plan, content, test, drivertest.Inject(ctx, foreign{Driver: host.New()}, c.fault),
			200*time.Millisecond)
		cancel()
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `"b"`) {
			t.Errorf("%+v: got %v, want %q and the processor's name", c.fault, err, c.want)
		}
	}
}

// damaged is a source whose artifacts lost their last byte.
type damaged struct {
	executor.Source
	artifacts map[string]bool
}

func (d damaged) Blob(digest string) ([]byte, error) {
	blob, err := d.Source.Blob(digest)
	if d.artifacts[digest] && err == nil {
		blob = blob[:len(blob)-1]
	}
	return blob, err
}

// A damaged artifact is refused with what to do about it.
func TestSelfTestOfADamagedGraph(t *testing.T) {
	plan, content := foreignPlan(t, op.A32W32, []int{1, 8}, swapped)
	test := selfTestOf(t, plan, content)
	from := damaged{content, map[string]bool{}}
	for i := range plan.Program.Graphs {
		from.artifacts[plan.Program.Graphs[i].Artifact] = true
	}
	_, err := executor.SelfTest(t.Context(), plan, from, test, []string{"b"},
		executor.Options{Drivers: []driver.Driver{host.New(), foreign{Driver: host.New()}}})
	if hints := diag.HintsOf(err); err == nil || !strings.Contains(err.Error(), `load graph "`) || len(hints) != 1 ||
		!strings.Contains(hints[0], "emit the bundle again") {
		t.Errorf("got %v with hints %q, want which graph it was, and to emit the bundle again", err, hints)
	}
}

// ONNX Runtime passes, whose kernels round otherwise than the reference.
func TestSelfTestORT(t *testing.T) {
	needORT(t)
	model, core := open(t), host0(t)
	procs := []planir.Proc{proc("a", core, ""), ortProc(t, "b", core)}
	for _, scheme := range []op.Scheme{op.A32W32, op.A8TQ8C, op.A8TQ4B32} {
		plan := makePlan(t, model, procs, []int{1, 24}, 64, scheme, amongAble(rand.New(rand.NewPCG(2, 4)), procs))
		content := contentOf(t, plan, ortcompiler.New())
		test := selfTestOf(t, plan, content)
		tried, err := executor.SelfTest(context.Background(), plan, content, test, []string{"b"}, withORT())
		if err != nil {
			t.Fatalf("%s: %v", scheme, err)
		}
		t.Logf("%s: %+v", scheme, tried[0])
		// Rows of 4-bit products are rounded twice, which takes half of what is permitted.
		if tried[0].Kernels == 0 || tried[0].Worst > 0.6 {
			t.Errorf("%s: %+v, want some kernels within 0.6 of what is permitted", scheme, tried[0])
		}
	}
}

var nan = float32(math.NaN())

func decodeFloat(data []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(data)) }

func encodeFloat(data []byte, value float32) {
	binary.LittleEndian.PutUint32(data, math.Float32bits(value))
}

// exchanged is weights whose first two tiles of columns have changed places, as far as there are two.
func exchanged(_ *op.Graph, weights driver.Weights) driver.Weights {
	out := slices.Clone(weights)
	for i := range out {
		tiles := out[i].Spec.N / 32
		if out[i].Spec.Layout != op.TilesLayout || tiles < 2 {
			continue
		}
		size := len(out[i].Bytes) / tiles
		region, err := mem.Alloc(len(out[i].Bytes), driver.Align)
		if err != nil {
			panic(err)
		}
		data := region.Bytes() // small, and needed to the end of the test
		copy(data, out[i].Bytes)
		copy(data[:size], out[i].Bytes[size:2*size])
		copy(data[size:2*size], out[i].Bytes[:size])
		out[i].Bytes = data
	}
	return out
}

// Devices of OpenCL pass, in every scheme that their kernels have.
func TestSelfTestOpenCL(t *testing.T) {
	model := open(t)
	for _, gpu := range openclProcs(t, "b", nil) {
		for _, scheme := range gpu.Schemes {
			if scheme.Static() { // needs a calibration
				continue
			}
			layout := layoutOf(swapped)
			if scheme.RoundsResults() {
				layout = columnsSwapped
			}
			plan := makePlan(t, model, []planir.Proc{proc("a", host0(t), ""), gpu}, []int{1, 40}, 64, scheme, layout)
			content := contentOf(t, plan, openclcompiler.New())
			test := selfTestOf(t, plan, content)
			tried, err := executor.SelfTest(context.Background(), plan, content, test, []string{"b"}, withOpenCL())
			if err != nil {
				t.Errorf("%s%s: %v", scheme, optionText(gpu.Options), err)
				continue
			}
			t.Logf("%s%s: %+v", scheme, optionText(gpu.Options), tried[0])
			if tried[0].Kernels == 0 || tried[0].Worst > 0.5 {
				t.Errorf("%s: %+v, want some kernels within half of what is permitted", scheme, tried[0])
			}
		}
	}
}

// A self-test of another plan, one that was cut off, and one whose results are not those of the plan's graphs are
// refused.
func TestSelfTestRefusesOtherFiles(t *testing.T) {
	plan, content := foreignPlan(t, op.A32W32, []int{1, 8}, swapped)
	text, err := selftest.Encode(selfTestOf(t, plan, content))
	if err != nil {
		t.Fatal(err)
	}
	other, _ := foreignPlan(t, op.A32W32, []int{1}, swapped)
	for name, c := range map[string]struct {
		text string
		plan *planir.Plan
		want string
	}{
		"another plan":      {string(text), other, "of the plan with digest"},
		"nothing":           {"", plan, "EOF"},
		"cut off":           {string(text[:len(text)-1]), plan, "EOF"},
		"another spelling":  {string(text) + " ", plan, "canonical"},
		"another schema":    {strings.Replace(string(text), "selftest/1", "selftest/2", 1), plan, "schema"},
		"an unknown member": {strings.Replace(string(text), `"schema"`, `"scheme"`, 1), plan, "unknown field"},
		"another graph":     {strings.Replace(string(text), `"graph":"b/`, `"graph":"c/`, 1), plan, `graph "c/`},
		"a wide tolerance":  {strings.Replace(string(text), `"tolerance":0.0003`, `"tolerance":3`, 1), plan, "tolerance 3"},
		"no tolerance":      {strings.Replace(string(text), `"tolerance":0.0003`, `"tolerance":0`, 1), plan, "tolerance 0"},
		"other sizes":       {strings.Replace(string(text), `"rows":1,`, `"rows":2,`, 1), plan, "[1,"},
		"other sums":        {strings.Replace(string(text), `"sums":"`, `"sums":"AAAA`, 1), plan, "bytes of sums"},
	} {
		if _, err := selftest.Decode([]byte(c.text), c.plan); diag.ClassOf(err) != diag.ClassInput ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}
