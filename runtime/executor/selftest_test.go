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

// foreignProcessor is a processor of the host with the mistake.
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
func foreignPlan(t *testing.T, scheme op.Scheme, rows []int, layout layoutOf) (*planir.Plan, *emit.Content) {
	t.Helper()
	model := open(t)
	core := host0(t)
	other := proc("b", core, "")
	other.Driver = foreignName
	plan := makePlan(t, model, planSpec{
		procs: []planir.Proc{proc("a", core, ""), other}, rows: rows, context: 64, scheme: scheme,
		layout: layout,
	})
	return plan, contentOf(t, plan, model, foreignCompiler{hostcompiler.New()})
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
	again, err := selftest.Encode(test)
	if err != nil || !bytes.Equal(again, text) {
		t.Fatalf("written again it differs (%v)", err)
	}
	t.Logf("%d cases, %d bytes", len(test.Cases), len(text))
	return test
}

// selfTest tests processor b of a plan with a driver.
func selfTest(
	plan *planir.Plan, content *emit.Content, test *selftest.Test, drv driver.Driver, deadline time.Duration,
) ([]executor.Tried, error) {
	options := executor.Options{Drivers: []driver.Driver{host.New(), drv}, Deadline: deadline}
	return executor.SelfTest(context.Background(), plan, content, test, []string{"b"}, options)
}

// A processor that computes what it should passes, in every scheme.
func TestSelfTestPasses(t *testing.T) {
	for _, scheme := range []op.Scheme{
		op.A32W32, op.A32W16, op.A8TQ8C, op.A8TQ4B32, op.A8TQ4B128, op.A16FW16, op.A16FQ4B32,
	} {
		layout := layoutOf(swapped)
		if scheme.RoundsResults() {
			layout = columnsSwapped
		}
		plan, content := foreignPlan(t, scheme, []int{1, 40}, layout)
		test := selfTestOf(t, plan, content)

		tried, err := selfTest(plan, content, test, foreign{Driver: host.New()}, 0)
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
	plan := makePlan(t, model, planSpec{
		procs: []planir.Proc{proc("a", host0(t), ""), other}, rows: []int{1, rows}, context: 2 * rows,
		scheme: op.A8TQ8C, layout: groupsOn("b"),
		tiers: []planir.ExpertTiers{tiersOf(model, rows, planir.OverflowExact, groups...)},
	})
	content := contentOf(t, plan, model, foreignCompiler{hostcompiler.New()})
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

// callMistake is what a processor does instead of a call.
type callMistake = func(graph *op.Graph, b *driver.Bindings, call func() error) error

// spoil changes one number of a row of the first output after the call.
func spoil(row, column int, by float32) callMistake {
	return func(_ *op.Graph, b *driver.Bindings, call func() error) error {
		err := call()
		view := b.Out[0]
		if row >= b.Scalars.Rows {
			return err
		}
		at := view.Offset + 4*int64(row*view.Stride+min(column, view.Cols-1))
		data := view.Buffer.Bytes()[at : at+4]
		value := math.Float32frombits(binary.LittleEndian.Uint32(data))
		binary.LittleEndian.PutUint32(data, math.Float32bits(value+by))
		return err
	}
}

// repeatFirstRow writes the first row again as the first of a second tile of 16.
func repeatFirstRow(_ *op.Graph, b *driver.Bindings, call func() error) error {
	err := call()
	if view := b.Out[0]; b.Scalars.Rows > 16 {
		data := view.Buffer.Bytes()[view.Offset:]
		copy(data[4*16*view.Stride:][:4*view.Cols], data[:4*view.Cols])
	}
	return err
}

// oneRowEarlier calls as if the sequence had a position less.
func oneRowEarlier(_ *op.Graph, b *driver.Bindings, call func() error) error {
	b.Scalars.Pos--
	defer func() { b.Scalars.Pos++ }()
	return call()
}

// Every planted error of one kernel is found, and the message names the processor, the operator with its shape and the
// error.
func TestSelfTestFindsMiscompiledKernels(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		name    string
		scheme  op.Scheme
		mistake mistake
		want    string
	}{
		{
			name: "one number of the last row", scheme: op.A32W32, want: "matmul[40,",
			mistake: mistake{graph: has(op.MatMul, 40), run: spoil(39, 5, 0.5)},
		},
		{
			name: "one number of a row in the middle", scheme: op.A8TQ8C, want: "matmul[40,",
			mistake: mistake{graph: has(op.MatMul, 40), run: spoil(18, 1, 4)},
		},
		{
			name: "one number of decoding", scheme: op.A32W32, want: "matmul[1,",
			mistake: mistake{graph: has(op.MatMul, 1), run: spoil(0, 33, 0.5)},
		},
		{
			name: "one head of attention", scheme: op.A32W32, want: "attention",
			mistake: mistake{graph: has(op.Attention, 40), run: spoil(7, 3, 0.2)},
		},
		{
			name: "no number", scheme: op.A32W32, want: "relative error of +Inf",
			mistake: mistake{graph: has(op.MatMul, 40), run: spoil(3, 3, nan)},
		},
		{
			name: "the first row beyond a tile of 16 is the first row", scheme: op.A32W32, want: "matmul[40,",
			mistake: mistake{graph: has(op.MatMul, 40), run: repeatFirstRow},
		},
		{
			name: "two tiles of the weight are exchanged", scheme: op.A8TQ8C, want: "matmul[1,",
			mistake: mistake{graph: has(op.MatMul, 1), load: exchanged},
		},
		{
			name: "keys are written one row too early", scheme: op.A32W32, want: "kv_append[40]",
			mistake: mistake{graph: has(op.KVAppend, 40), run: oneRowEarlier},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
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
		{
			fault: drivertest.Fault{At: drivertest.AtOpen, K: 1},
			want:  "injected fault: open 1",
		},
		{
			fault: drivertest.Fault{At: drivertest.AtLoad, K: 2},
			want:  "injected fault: load 2",
		},
		{
			fault: drivertest.Fault{At: drivertest.AtRun, K: 3},
			want:  "injected fault: run 3",
		},
		{
			fault: drivertest.Fault{At: drivertest.AtRun, K: 1, Hang: true},
			want:  `graph "b/embed.embed@1" (embed[1]x[2048,256] bf16) does not return within`,
		},
	} {
		ctx, cancel := context.WithCancel(context.Background())
		faulty := drivertest.Inject(ctx, foreign{Driver: host.New()}, c.fault)

		_, err := selfTest(plan, content, test, faulty, 200*time.Millisecond)

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

	options := executor.Options{Drivers: []driver.Driver{host.New(), foreign{Driver: host.New()}}}
	_, err := executor.SelfTest(t.Context(), plan, from, test, []string{"b"}, options)

	if err == nil || !strings.Contains(err.Error(), `load graph "`) {
		t.Errorf("got %v, want which graph it was", err)
	}
	if hints := diag.HintsOf(err); len(hints) != 1 || !strings.Contains(hints[0], "emit the bundle again") {
		t.Errorf("got hints %q, want to emit the bundle again", hints)
	}
}

// ONNX Runtime passes, whose kernels round otherwise than the reference.
func TestSelfTestORT(t *testing.T) {
	needORT(t)
	model, core := open(t), host0(t)
	procs := []planir.Proc{proc("a", core, ""), ortProc(t, "b", core)}
	for _, scheme := range []op.Scheme{op.A32W32, op.A8TQ8C, op.A8TQ4B32} {
		plan := makePlan(t, model, planSpec{
			procs: procs, rows: []int{1, 24}, context: 64, scheme: scheme,
			layout: amongAble(rand.New(rand.NewPCG(2, 4)), procs),
		})
		content := contentOf(t, plan, model, ortcompiler.New())
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
			plan := makePlan(t, model, planSpec{
				procs: []planir.Proc{proc("a", host0(t), ""), gpu}, rows: []int{1, 40}, context: 64,
				scheme: scheme, layout: layout,
			})
			content := contentOf(t, plan, model, openclcompiler.New())
			test := selfTestOf(t, plan, content)

			tried, err := executor.SelfTest(context.Background(), plan, content, test, []string{"b"}, withOpenCL())

			what := string(scheme) + optionText(gpu.Options)
			if err != nil {
				t.Errorf("%s: %v", what, err)
				continue
			}
			t.Logf("%s: %+v", what, tried[0])
			if tried[0].Kernels == 0 || tried[0].Worst > 0.5 {
				t.Errorf("%s: %+v, want some kernels within half of what is permitted", what, tried[0])
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
	whole := string(text)
	replaced := func(old, new string) string { return strings.Replace(whole, old, new, 1) }
	for _, c := range []struct {
		name, text string
		plan       *planir.Plan
		want       string
	}{
		{name: "another plan", text: whole, plan: other, want: "of the plan with digest"},
		{name: "nothing", text: "", plan: plan, want: "EOF"},
		{name: "cut off", text: whole[:len(whole)-1], plan: plan, want: "EOF"},
		{name: "another spelling", text: whole + " ", plan: plan, want: "canonical"},
		{name: "another schema", text: replaced("selftest/1", "selftest/2"), plan: plan, want: "schema"},
		{name: "an unknown member", text: replaced(`"schema"`, `"scheme"`), plan: plan, want: "unknown field"},
		{name: "another graph", text: replaced(`"graph":"b/`, `"graph":"c/`), plan: plan, want: `graph "c/`},
		{
			name: "a wide tolerance", plan: plan, want: "tolerance 3",
			text: replaced(`"tolerance":0.0003`, `"tolerance":3`),
		},
		{
			name: "no tolerance", plan: plan, want: "tolerance 0",
			text: replaced(`"tolerance":0.0003`, `"tolerance":0`),
		},
		{name: "other sizes", text: replaced(`"rows":1,`, `"rows":2,`), plan: plan, want: "[1,"},
		{name: "other sums", text: replaced(`"sums":"`, `"sums":"AAAA`), plan: plan, want: "bytes of sums"},
	} {
		_, err := selftest.Decode([]byte(c.text), c.plan)
		if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}
