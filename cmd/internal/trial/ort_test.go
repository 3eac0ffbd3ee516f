package trial

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/emit"
	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	ortcompiler "github.com/hetc/hetc/emit/compile/ort"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models/safetensors"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/driver/ort"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/quality"
)

// mixedMachine are processors of ONNX Runtime beside the host's, on each of two cores one of either: "hosta" and
// "hostb", "orta" and "ortb". The first is the control processor, which has the glue.
type mixedMachine struct{ procs []planir.Proc }

// withORT opens the processors, or skips the test.
func withORT(t *testing.T) *mixedMachine {
	t.Helper()
	require.Deps()
	made := &mixedMachine{}
	for _, drv := range []driver.Driver{host.New(), ort.New()} {
		devices, err := drv.Devices(t.Context())
		if err != nil {
			require.Skip(t, ort.Name, err)
		}
		devices = slices.DeleteFunc(devices, func(device driver.Device) bool { return len(device.Cores) != 1 })
		if len(devices) < 2 {
			t.Skipf("driver %q has %d processors of one core, want 2", drv.Name(), len(devices))
		}
		for i, device := range devices[:2] {
			opened, err := drv.Open(t.Context(), driver.Config{Select: device.Select})
			if err != nil {
				require.Skip(t, ort.Name, err)
			}
			capabilities := opened.Capabilities()
			made.procs = append(made.procs, planir.Proc{
				Name:   drv.Name() + string("ab"[i]),
				Kind:   "cpu",
				Driver: drv.Name(),
				Select: device.Select,
				Cores:  capabilities.Cores,
				Set:    capabilities.Offered(),
			})
			if err := opened.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	return made
}

// layout decides a node of a mixed plan, which so far is the control processor's.
type layout func(decision *planir.Decision, node *lower.Node)

// both are layouts of decode and of windows.
func both(decode, window layout) map[int]layout {
	return map[int]layout{1: decode, quality.WindowTokens: window}
}

// alone gives a node to one processor, if it executes it.
func (m *mixedMachine) alone(name string) layout {
	at := slices.IndexFunc(m.procs, func(proc planir.Proc) bool { return proc.Name == name })
	proc := &m.procs[at]
	return func(decision *planir.Decision, node *lower.Node) {
		for _, o := range node.Ops {
			if !slices.Contains(proc.Kinds, o.Kind) || o.HasScheme() && !slices.Contains(proc.Schemes, o.Scheme) {
				return
			}
		}
		decision.Shares = []planir.Share{{Proc: name}}
	}
}

// strategies are those of a division along each axis.
var strategies = map[planir.Axis]planir.Strategy{
	planir.AxisCols: planir.WeightCentric,
	planir.AxisRows: planir.ActivationDivide,
	planir.AxisK:    planir.Paired,
}

// divided divides products between two processors along an axis, unevenly; everything else is alone's on the first of
// them.
func (m *mixedMachine) divided(axis planir.Axis, first, second string) layout {
	whole := m.alone(first)
	return func(decision *planir.Decision, node *lower.Node) {
		whole(decision, node)
		operator := node.Op()
		if decision.Shares[0].Proc != first || !operator.HasScheme() {
			return
		}
		length, err := lower.AxisLength(node, axis)
		unit := 1
		for i := range m.procs {
			unit = max(unit, lower.Granularity(node, axis, &m.procs[i]))
		}
		at := length * 2 / 5 / unit * unit
		if err != nil || at == 0 || at == length {
			return
		}
		decision.Axis, decision.Strategy = axis, strategies[axis]
		decision.Shares = []planir.Share{{Proc: first, To: at}, {Proc: second, From: at, To: length}}
	}
}

// plan decides every node at every number of rows.
func (m *mixedMachine) plan(
	t *testing.T, model *Model, schemeOf func(string) op.Scheme, cal *calibration.Calibration, at map[int]layout,
) *planir.Plan {
	t.Helper()
	graph := model.Graph()
	plan := &planir.Plan{
		Schema:     planir.Schema,
		Model:      planir.ModelRef{Name: model.Name, Digest: model.Digest, EOS: model.EOS, BOS: model.BOS},
		SoC:        planir.SoCRef{Name: "mixed", Control: "hosta"},
		MaxContext: quality.WindowTokens,
		KV:         op.F32,
		Procs:      m.procs,
	}
	if cal != nil {
		digest, err := cal.Digest()
		if err != nil {
			t.Fatal(err)
		}
		plan.Inputs = []planir.Input{{Kind: planir.CalibrationInput, Digest: digest}}
		plan.Folds = cal.Groups()
	}
	rows := []int{1, quality.WindowTokens}
	var err error
	plan.Decisions, err = lower.Trivial(&graph, "hosta", rows, plan.MaxContext, plan.KV,
		func(node string, _ int) op.Scheme { return schemeOf(node) })
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, count := range rows {
		sections, err := lower.Expand(&graph, count, plan.MaxContext, plan.KV, schemeOf, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, section := range sections {
			for i := range section.Nodes {
				decision := plan.DecisionFor(section.Nodes[i].Name, count)
				if decision == nil {
					continue
				}
				at[count](decision, &section.Nodes[i])
				for _, share := range decision.Shares {
					used[share.Proc] = true
				}
			}
		}
	}
	plan.Procs = slices.DeleteFunc(slices.Clone(m.procs), func(proc planir.Proc) bool { return !used[proc.Name] })
	if err := lower.Lower(plan, &graph); err != nil {
		t.Fatal(err)
	}
	if err := planir.Check(plan).Err(); err != nil {
		t.Fatal(err)
	}
	return plan
}

// openMixed loads a mixed plan until the test ends.
func openMixed(t *testing.T, model *Model, plan *planir.Plan, cal *calibration.Calibration) *executor.Machine {
	t.Helper()
	compilers := []driver.Compiler{hostcompiler.New(), ortcompiler.New()}
	content, err := emit.NewCalibrated(t.Context(), plan, model.Model, cal, compilers)
	if err != nil {
		t.Fatal(err)
	}
	machine, err := executor.Open(t.Context(), plan, content,
		executor.Options{Drivers: []driver.Driver{host.New(), ort.New()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		machine.Close()
		content.Close()
	})
	return machine
}

// onORT counts the products that a plan has ONNX Runtime compute, by rows.
func onORT(plan *planir.Plan) map[int]int {
	out := map[int]int{}
	for i := range plan.Program.Graphs {
		graph := &plan.Program.Graphs[i]
		if plan.Proc(graph.Proc).Driver != ort.Name {
			continue
		}
		for _, node := range graph.Graph.Nodes {
			if node.Op.HasScheme() {
				out[node.Op.M]++
			}
		}
	}
	return out
}

// exactLogits keeps what the float32 machine computes for every other window of a text: a calibration has observed
// those between.
func exactLogits(t *testing.T, model *Model, read *Text) *quality.Reference {
	t.Helper()
	reference, err := quality.NewReference()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reference.Close() })
	machine := openFloat32(t, model, quality.WindowTokens)
	defer machine.Close()
	for i := 0; i < len(read.Windows); i += 2 {
		if err := reference.Add(t.Context(), machine.Machine, read.Windows[i]); err != nil {
			t.Fatal(err)
		}
	}
	return reference
}

// ortSetup is a way to use ONNX Runtime for a plan.
type ortSetup struct {
	name       string
	layout     map[int]layout
	decode     bool // one token at a time, too: that is not as the undivided plan does it
	separately bool // every operator is a graph of its own
}

// ortSetups are those that are tried, the undivided plan first.
func (m *mixedMachine) ortSetups() []ortSetup {
	whole := m.alone("orta")
	columns, rows := m.divided(planir.AxisCols, "orta", "hostb"), m.divided(planir.AxisRows, "orta", "hostb")
	return []ortSetup{
		{name: "whole", layout: both(whole, whole), decode: true},
		{name: "operators of their own", layout: both(whole, whole), separately: true},
		{name: "columns, host", layout: both(columns, columns), decode: true},
		{name: "rows, host", layout: both(rows, rows)},
		// Parts of the reduction are of one row only: the library reads whole buffers.
		{
			name:   "reduction, host",
			layout: both(m.divided(planir.AxisK, "orta", "hostb"), m.alone("ortb")),
			decode: true,
		},
		// Of several rows, columns of two processors that write whole buffers could be gathered by nobody.
		{
			name:   "two of the library",
			layout: both(m.divided(planir.AxisCols, "orta", "ortb"), m.divided(planir.AxisRows, "orta", "ortb")),
			decode: true,
		},
	}
}

// ortTrial is a choice of schemes that is executed over ONNX Runtime.
type ortTrial struct {
	name     string
	schemeOf func(string) op.Scheme
	cal      *calibration.Calibration
	most     float64 // mean KL that is permitted
	setups   []ortSetup
}

// What plans lose whose products run on ONNX Runtime: no more than the same schemes do elsewhere. Divided, beside the
// host or a second processor of the library, they lose what they lose undivided.
func TestQualityOverORT(t *testing.T) {
	mixed := withORT(t)
	model := open(t, demo)
	read := text(t, model, 12)
	cal, err := Calibrate(t.Context(), model, CalibrateOptions{Text: read}) // observes every other window
	if err != nil {
		t.Fatal(err)
	}
	reference := exactLogits(t, model, read)
	setups := mixed.ortSetups()
	for _, trial := range []ortTrial{
		{"a8t/q8c", all(op.A8TQ8C), nil, 0.0012, setups},
		{"a8s/q8c (static)", all(op.A8SQ8C), cal, 0.015, setups},
		{"a8o/q8c (shadow outliers)", all(op.A8OQ8C), cal, 0.0012, setups[:4]},
		{"a8t/q4b32, 8-bit head", q4Body(op.A8TQ4B32), nil, 0.0183, setups},
		{"a8t/q4b32, 8-bit head, calibrated", q4Body(op.A8TQ4B32), cal, 0.0183, setups[:1]},
		{"a8t/q4b128, 8-bit head, calibrated", q4Body(op.A8TQ4B128), cal, 0.0261, setups[:1]},
	} {
		t.Run(strings.ReplaceAll(trial.name, "/", ":"), func(t *testing.T) {
			var prefill, decode float64 // of the undivided plan
			for i := range trial.setups {
				setup := &trial.setups[i]
				machine := mixed.openSetup(t, model, &trial, setup)
				got := trial.compare(t, reference, machine, setup, quality.WindowTokens, reference.Windows())
				if i == 0 {
					prefill = got
				}
				checkLoss(t, setup.name, got, trial.most, prefill)
				if !setup.decode {
					continue
				}
				got = trial.compare(t, reference, machine, setup, 1, 2)
				if i == 0 {
					decode = got
				}
				checkLoss(t, setup.name+", decode", got, 1.3*trial.most, decode)
			}
		})
	}
}

// openSetup opens the plan of a trial in a setup, in which the library computes products of decode and of windows.
func (m *mixedMachine) openSetup(t *testing.T, model *Model, trial *ortTrial, setup *ortSetup) *executor.Machine {
	t.Helper()
	own := &mixedMachine{slices.Clone(m.procs)}
	for i := range own.procs {
		own.procs[i].Fuses = own.procs[i].Fuses && !setup.separately
	}
	plan := own.plan(t, model, trial.schemeOf, trial.cal, setup.layout)
	products := onORT(plan)
	if products[quality.WindowTokens]+products[quality.WindowTokens*2/5] == 0 || products[1] == 0 {
		t.Fatalf("%s: products on the library by rows: %v", setup.name, products)
	}
	return openMixed(t, model, plan, trial.cal)
}

// compare returns the mean KL of some windows, step tokens a call.
func (c *ortTrial) compare(
	t *testing.T, reference *quality.Reference, machine *executor.Machine, setup *ortSetup, step, windows int,
) float64 {
	t.Helper()
	var tally quality.Tally
	for i := range windows {
		if err := reference.Compare(t.Context(), machine, i, step, &tally); err != nil {
			t.Fatal(err)
		}
	}
	result, err := tally.Result()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s, %s, %d tokens a call: mean KL %.6f (%.6f..%.6f), same top token %.4f", c.name, setup.name, step,
		result.KL.Mean, result.KL.Low, result.KL.High, result.TopAgreement.Mean)
	return result.KL.Mean
}

// checkLoss compares a mean KL with what is permitted and with that of the undivided plan.
func checkLoss(t *testing.T, what string, got, most, undivided float64) {
	t.Helper()
	if !(got > 0 && got <= most && math.Abs(got/undivided-1) <= 0.1) {
		t.Errorf("%s: mean KL %v, want at most %v, and about %v of the undivided plan", what, got, most, undivided)
	}
}

// Float32 over ONNX Runtime and the host computes another implementation's logits.
func TestFloat32OverORT(t *testing.T) {
	mixed := withORT(t)
	model := open(t, demo)
	file, err := safetensors.Open(filepath.Join(demo, "reference.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, setup := range mixed.ortSetups() {
		if setup.separately {
			continue
		}
		t.Run(setup.name, func(t *testing.T) {
			machine := openMixed(t, model, mixed.plan(t, model, Float32, nil, setup.layout), nil)
			worst, tried := 0.0, 0
			for i := 0; ; i++ {
				ids, ok := file.Tensor(fmt.Sprint("ids_", i))
				if !ok {
					break
				}
				logits, _ := file.Tensor(fmt.Sprint("logits_", i))
				tokens, err := mem.View[int32](ids.Data)
				if err != nil {
					t.Fatal(err)
				}
				want, err := mem.View[float32](logits.Data)
				if err != nil {
					t.Fatal(err)
				}
				for _, step := range []int{len(tokens), 1} {
					if step == 1 && len(tokens) > 64 {
						continue
					}
					worst = max(worst, worstLogit(t, machine, tokens, want, step))
					tried++
				}
			}
			t.Logf("%s: largest difference %.2g", setup.name, worst)
			if worst > 1e-3 || tried < 4 {
				t.Errorf("logits of %d prompts differ by %.3g, want at most 0.001", tried, worst)
			}
		})
	}
}

// worstLogit returns how far the logits of a prompt are off at most, step tokens a call.
func worstLogit(t *testing.T, machine *executor.Machine, tokens []int32, want []float32, step int) (worst float64) {
	t.Helper()
	at := 0
	compare := func(_ int, logits []float32) error {
		for i, logit := range logits {
			worst = max(worst, math.Abs(float64(logit-want[at+i])))
		}
		at += len(logits)
		return nil
	}
	machine.Reset()
	err := machine.Do(t.Context(), func(control *executor.Control) error {
		for part := range slices.Chunk(tokens, step) {
			if _, err := control.Forward(slices.Clone(part), executor.WantAll, compare); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if at != len(want) {
		t.Fatalf("%d logits, want %d", at, len(want))
	}
	return worst
}
