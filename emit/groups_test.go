package emit

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hetc/hetc/internal/require"

	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
)

// artifactPlan is a plan for a simulated SoC of a CPU and an NPU, which has the products of layers, a part of the
// query's columns only, and the addition behind them.
func artifactPlan(t *testing.T, m *models.Model) *planir.Plan {
	t.Helper()
	p := planOf(t, m, nil, op.A32W32, false)
	p.SoC.Simulated = true
	p.Model.BOS, p.Model.EOS = m.BOS, m.EOS
	for i := range p.Procs {
		p.Procs[i].Driver, p.Procs[i].Cores = "sim", nil
	}
	npu := &p.Procs[1]
	npu.Kind = "npu"
	npu.DynamicRows, npu.WeightRanges = false, false
	npu.StridedInput, npu.StridedOutput = false, false
	for i := range p.Decisions {
		d := &p.Decisions[i]
		d.PredictNS = 1000
		d.Shares[0].PredictNS = 1000
		switch d.Node {
		case "layers.attn_out", "layers.ffn_gate_up", "layers.ffn_act", "layers.ffn_down", "layers.ffn_add":
			d.Shares[0].Proc = "b"
		case "layers.qkv":
			d.Axis, d.Strategy = planir.AxisCols, planir.WeightCentric
			d.Shares = []planir.Share{{Proc: "b", To: 256}, {Proc: "a", From: 256, To: 512}}
		}
	}
	p.Predictions = []planir.Prediction{{Program: "decode", PlanNS: 5}}
	return p
}

// groupTarget executes the plan: the CPU as host, the NPU by a driver whose artifacts hold their weights.
func groupTarget(p *planir.Plan, emulator bool) *Target {
	t := &Target{SoC: p.SoC.Name, Emulator: emulator}
	if emulator {
		t.Fingerprint = host.Fingerprint()
	}
	for _, q := range p.Procs {
		q.Driver, q.Select, q.Cores = "host", "0", []int{0}
		if q.Kind == "npu" {
			q.Driver, q.WeightsInArtifacts, q.Shares, q.Fuses = "grouping", true, !emulator, true
		}
		t.Procs = append(t.Procs, q)
	}
	return t
}

// kit is what makes a bundle of artifacts that hold their weights.
type kit struct {
	m        *models.Model
	p        *planir.Plan
	key      *PrivateKey
	compiler *drivertest.GroupCompiler
}

// newKit makes the plan of the demo model, with a key and a compiler.
func newKit(t *testing.T) *kit {
	t.Helper()
	m := openModel(t, demo)
	key, err := GenerateKey(bundle.Ed25519, "test", true)
	if err != nil {
		t.Fatal(err)
	}
	compiler := drivertest.NewGroupCompiler("grouping", host.New(), hostcompiler.New())
	return &kit{m: m, p: artifactPlan(t, m), key: key, compiler: compiler}
}

// options make a bundle for a device or its emulator.
func (k *kit) options(emulator bool) Options {
	return Options{
		Plan:       k.p,
		Model:      k.m,
		Compilers:  []driver.Compiler{hostcompiler.New(), k.compiler},
		Signers:    []bundle.Signer{k.key.Signer()},
		Target:     groupTarget(k.p, emulator),
		Oracle:     host.New(),
		Product:    "test",
		Generation: 1,
	}
}

// open verifies a bundle and returns its plan and its report.
func (k *kit) open(t *testing.T, path string) (*bundle.Bundle, *planir.Plan, *Report) {
	t.Helper()
	ring := &bundle.Keyring{Generation: 1, Keys: []bundle.Key{k.key.Public}, Threshold: 1}
	b, err := bundle.Open(path, bundle.Options{Trust: ring, Policy: bundle.Policy{AllowDev: true}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	text, err := b.Bytes(PlanBlob)
	if err != nil {
		t.Fatal(err)
	}
	p, err := planir.Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	if text, err = b.Bytes(ReportBlob); err != nil {
		t.Fatal(err)
	}
	r, err := DecodeReport(text)
	if err != nil {
		t.Fatal(err)
	}
	return b, p, r
}

// blobs gives the executor the blobs of a bundle.
type blobs struct{ *bundle.Bundle }

func (b blobs) Blob(name string) ([]byte, error) { return b.Bytes(name) }

// logits loads a plan, executes a prompt and a token, and returns their logits.
func logits(t *testing.T, p *planir.Plan, src executor.Source, drivers ...driver.Driver) []float32 {
	t.Helper()
	x, err := executor.Open(context.Background(), p, src, executor.Options{Drivers: drivers})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	return forward(t, x)
}

// forward executes a prompt and a token, and returns their logits.
func forward(t *testing.T, machine *executor.Machine) (out []float32) {
	t.Helper()
	if err := forwardOn(machine, func(logits []float32) { out = append(out, logits...) }); err != nil {
		t.Fatal(err)
	}
	return out
}

// forwardOn executes a prompt and a token, and calls take with the logits of each position.
func forwardOn(machine *executor.Machine, take func(logits []float32)) error {
	return machine.Do(context.Background(), func(c *executor.Control) error {
		for _, tokens := range [][]int32{{1, 5, 7, 90, 33, 20, 11}, {17}} {
			_, err := c.Forward(tokens, executor.WantAll, func(_ int, logits []float32) error {
				take(logits)
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// A plan whose simulated processors give a row the same bits in every program may guess tokens and process prompts beside
// decoding. A device whose drivers do not promise that does neither, and its plan keeps the rules.
func TestTargetsWithOtherBits(t *testing.T) {
	k := newKit(t)
	for _, emulator := range []bool{false, true} {
		plan := planOf(t, k.m, nil, op.A8TQ8C, false)
		for i := range plan.Procs {
			plan.Procs[i].Driver, plan.Procs[i].Cores = "sim", nil
		}
		plan.Procs[1].Kind, plan.SoC.Simulated = "npu", true
		for i := range plan.Decisions {
			if plan.Decisions[i].Node == "layers.ffn_down" {
				plan.Decisions[i].Shares[0].Proc = "b"
			}
		}
		plan.Drafts = &planir.Drafts{Acceptance: 0.5, PlainNS: 10, VerifyNS: []int64{100}}
		graph := k.m.Graph()
		if err := lower.Lower(plan, &graph); err != nil {
			t.Fatal(err)
		}
		if err := planir.Check(plan).Err(); err != nil {
			t.Fatal(err)
		}
		out, _, err := retarget(plan, &graph, groupTarget(plan, emulator), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := planir.Check(out).Err(); err != nil || out.Drafts != nil {
			t.Errorf("emulator %v: drafts %v, %v", emulator, out.Drafts, err)
		}
	}
}

// What is compiled for a device or its emulator computes what the plan computes with the same kernels.
func TestCompiledBundlesCompute(t *testing.T) {
	require.Slow(t)
	k := newKit(t)
	want := k.logitsOnHost(t)
	path := filepath.Join(t.TempDir(), "x.hetb")
	for _, emulator := range []bool{true, false} {
		o := k.options(emulator)
		var groups sync.Map // whether those that were begun have ended
		o.Watch = func(e Event) {
			if e.Groups > 0 {
				groups.Store(e.Group, e.Done)
			}
		}
		if _, err := Emit(t.Context(), path, o); err != nil {
			t.Fatal(err)
		}

		b, p, report := k.open(t, path)
		if got := logits(t, p, blobs{b}, host.New(), k.compiler.Driver()); !slices.Equal(got, want) {
			t.Errorf("emulator %v: other logits than the plan's with the same kernels", emulator)
		}
		isForTarget(t, p, emulator)
		reportsGraphs(t, b, p, report, emulator)
		needsDriver(t, b)
		ended := 0
		groups.Range(func(_, done any) bool {
			ended++
			return done.(bool)
		})
		if want := len(p.GraphGroups()); ended != want {
			t.Errorf("%d groups were begun and ended, want %d", ended, want)
		}
	}
}

// logitsOnHost are the logits of the plan where the host executes everything.
func (k *kit) logitsOnHost(t *testing.T) []float32 {
	t.Helper()
	plain := *k.p
	plain.SoC.Simulated = false
	plain.Procs = slices.Clone(k.p.Procs)
	for i := range plain.Procs {
		plain.Procs[i].Driver, plain.Procs[i].Cores = "host", []int{0}
	}
	g := k.m.Graph()
	p, _, err := retarget(&plain, &g, &Target{SoC: plain.SoC.Name, Procs: plain.Procs}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return logits(t, p, contentOf(t, p, k.m, nil), host.New())
}

// isForTarget expects that a plan says what it is for. Predictions are for the device alone.
func isForTarget(t *testing.T, p *planir.Plan, emulator bool) {
	t.Helper()
	target := p.Target
	if target == nil {
		t.Fatalf("emulator %v: the plan has no target", emulator)
	}
	if target.Emulator != emulator || !target.Simulated || p.SoC.Simulated || len(target.Fallbacks) != 0 {
		t.Errorf("emulator %v: the plan's target is %+v", emulator, target)
	}
	if (len(p.Predictions) == 0) != emulator || (p.Decisions[0].PredictNS == 0) != emulator {
		t.Errorf("emulator %v: expects %v", emulator, p.Predictions)
	}
}

// reportsGraphs expects that a report has every graph of a bundle with its size, and what was tried of it. Graphs for a
// device share binaries.
func reportsGraphs(t *testing.T, b *bundle.Bundle, p *planir.Plan, report *Report, emulator bool) {
	t.Helper()
	graphs := 0
	for _, group := range p.GraphGroups() {
		graphs += len(group.Graphs)
		if (group.Context == "") != emulator {
			t.Errorf("emulator %v: context %q", emulator, group.Context)
		}
	}
	if graphs == 0 || graphs != len(report.Graphs) || (len(report.Binaries) == 0) != emulator {
		t.Errorf("emulator %v: report of %d graphs and %d binaries, and %d are compiled", emulator, len(report.Graphs),
			len(report.Binaries), graphs)
	}

	tried := map[string]bool{}
	for _, g := range report.Graphs {
		data, err := b.Bytes(g.Blob)
		if err != nil || int64(len(data)) != g.Bytes {
			t.Errorf("graph %q: %d bytes, and the report says %d (%v)", g.Blob, len(data), g.Bytes, err)
		}
		if g.Tried == "" || len(g.Ops) == 0 || g.Rows == 0 {
			t.Errorf("graph %+v: not tried, without operators or rows", g)
		}
		if g.Errors == nil {
			continue
		}
		tried[g.Blob] = true
		if e := g.Errors; e.Portable != 0 || e.Float32 > 1e-5 || e.Float32Bound <= 0 {
			t.Errorf("graph %q: errors %+v of the same kernels", g.Blob, *e)
		}
	}
	for _, g := range report.Graphs {
		if !tried[g.Tried] {
			t.Errorf("graph %q is said to be tried as %q, which was not", g.Blob, g.Tried)
		}
	}
}

// needsDriver expects that a bundle says which driver it needs, and that binaries have their role.
func needsDriver(t *testing.T, b *bundle.Bundle) {
	t.Helper()
	manifest := b.Manifest()
	want := []bundle.Component{{Name: "driver/grouping", Token: drivertest.Token}}
	if got := manifest.Target.Components; !slices.Equal(got, want) {
		t.Errorf("the bundle needs %+v, want %+v", got, want)
	}
	for _, blob := range manifest.Blobs {
		if strings.HasPrefix(blob.Name, "context/") && blob.Role != bundle.RoleNPUGraph {
			t.Errorf("blob %q has role %q", blob.Name, blob.Role)
		}
	}
}

// A report that is changed, or has characters that a terminal acts on, is not read.
func TestReportsOfBundlesRefused(t *testing.T) {
	k := newKit(t)
	path := filepath.Join(t.TempDir(), "x.hetb")
	if _, err := Emit(t.Context(), path, k.options(false)); err != nil {
		t.Fatal(err)
	}
	_, _, report := k.open(t, path)
	text, err := report.encode()
	if err != nil {
		t.Fatal(err)
	}
	for old, bad := range map[string]string{
		"test compiler":  "test\\u001bcompiler",
		"never":          "n\u009bver",
		`"schema":"hetc`: `"schema":"hetk`,
		`"graphs"`:       `"grafs"`,
	} {
		changed := bytes.Replace(text, []byte(old), []byte(bad), 1)
		if bytes.Equal(changed, text) {
			t.Errorf("the report has no %q", old)
			continue
		}
		if _, err := DecodeReport(changed); err == nil {
			t.Errorf("a report with %q is read", bad)
		}
	}
}

// A report for a device has the digest of each graph's twin, which is the graph in the emulator's bundle.
func TestTwins(t *testing.T) {
	require.Slow(t)
	k := newKit(t)
	path := filepath.Join(t.TempDir(), "x.hetb")
	if _, err := Emit(t.Context(), path, k.options(true)); err != nil {
		t.Fatal(err)
	}
	_, _, emulator := k.open(t, path)

	o := k.options(false)
	o.TwinReport = emulator
	if _, err := Emit(t.Context(), path, o); err != nil {
		t.Fatal(err)
	}
	_, _, device := k.open(t, path)

	for i, g := range device.Graphs {
		if twin := emulator.Graphs[i].SHA256; g.Twin == "" || g.Twin != twin || g.Twin == g.SHA256 {
			t.Errorf("graph %q: twin %q, want %q", g.Blob, g.Twin, twin)
		}
	}
}

// notes is a memo in memory.
type notes struct {
	mu  sync.Mutex
	all map[string][]byte
}

func (n *notes) Recall(key string) ([]byte, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	b, ok := n.all[key]
	return b, ok
}

func (n *notes) Keep(key string, b []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all[key] = b
	return nil
}

// emitted is a bundle, with what was packed and what came from the memo.
type emitted struct {
	data           []byte
	packed, cached int
}

// emit makes a bundle for a device with a memo.
func (k *kit) emit(t *testing.T, memo Memo) (out emitted) {
	t.Helper()
	var mu sync.Mutex
	o := k.options(false)
	o.Memo = memo
	o.Watch = func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Packed {
			out.packed++
		}
		if e.Cached {
			out.cached++
		}
	}
	path := filepath.Join(t.TempDir(), "x.hetb")
	if _, err := Emit(t.Context(), path, o); err != nil {
		t.Fatal(err)
	}
	var err error
	if out.data, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	return out
}

// What the memo and the compiler know is neither packed nor tried again, and a memo that is wrong changes nothing.
func TestMemo(t *testing.T) {
	require.Slow(t)
	k := newKit(t)
	k.compiler.Keep = map[string]*driver.CompiledGroup{}
	memo := &notes{all: map[string][]byte{}}
	first := k.emit(t, memo)
	groups := first.packed
	if groups == 0 || first.cached != 0 {
		t.Fatalf("first: %d groups packed, %d from the cache", groups, first.cached)
	}
	check := func(what string, memo Memo, packed, cached int) {
		t.Helper()
		got := k.emit(t, memo)
		if got.packed != packed || got.cached != cached {
			t.Errorf("%s: %d packed, want %d, %d from the cache, want %d", what, got.packed, packed, got.cached, cached)
		}
		if !bytes.Equal(got.data, first.data) {
			t.Errorf("%s: another bundle", what)
		}
	}

	check("second", memo, 0, groups)
	check("no memo", nil, groups, groups)
	memo.spoil()
	check("wrong memo", memo, groups, groups)
	check("mended memo", memo, 0, groups)
	clear(k.compiler.Keep)
	check("nothing kept", memo, groups, 0)
}

// spoil makes digests those of other weights, and errors of graphs no numbers.
func (n *notes) spoil() {
	for key, value := range n.all {
		if strings.HasPrefix(key, "weights ") {
			value[bytes.IndexByte(value, ':')+2] ^= 1
		} else {
			n.all[key] = []byte("[")
		}
	}
}

// The same inputs give the same bytes, whatever compiles first.
func TestCompiledBundlesAreDeterministic(t *testing.T) {
	k := newKit(t)
	onThreads := func(threads int) []byte {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(threads))
		return k.emit(t, nil).data
	}
	if !bytes.Equal(onThreads(1), onThreads(4)) {
		t.Error("two bundles of the same inputs differ")
	}
}

// everyProduct names the products that the NPU has, in both tiers of rows.
var everyProduct = []string{
	"layers.attn_out@1", "layers.attn_out@16",
	"layers.ffn_down@1", "layers.ffn_down@16",
	"layers.ffn_gate_up@1", "layers.ffn_gate_up@16",
	"layers.qkv@1", "layers.qkv@16",
}

// isRefused tells whether the tests refuse a graph: the down projection, and the attention's output of one row.
func isRefused(p driver.Piece) bool {
	return slices.ContainsFunc(p.Graph.Nodes, func(n op.Node) bool {
		output := n.Op.Kind == op.MatMul && n.Op.N == 256 && n.Op.K == 256
		return n.Op.K == 768 || output && n.Op.M == 1
	})
}

// Graphs that the compiler refuses, or that do not compute what they should, are refused by name, all of them, unless
// the control processor may have them. Then plan and report say so.
func TestRefusedGraphs(t *testing.T) {
	require.Slow(t)
	for _, c := range []struct {
		name   string
		set    func(k *kit, o *Options)
		nodes  []string
		reason string
	}{
		{
			name: "refused",
			set: func(k *kit, _ *Options) {
				k.compiler.Refuse = func(p driver.Piece) error {
					if isRefused(p) {
						return diag.New(diag.ClassInput, "operator not supported")
					}
					return nil
				}
			},
			nodes:  []string{"layers.attn_out@1", "layers.ffn_down@1", "layers.ffn_down@16"},
			reason: "operator not supported",
		},
		{
			name: "wrong numbers",
			set: func(k *kit, _ *Options) {
				k.compiler.Disturb = func(p driver.Piece, out [][]byte) {
					if isRefused(p) && p.Graph.Rows() == 16 {
						x := math.Float32frombits(binary.LittleEndian.Uint32(out[0]))
						binary.LittleEndian.PutUint32(out[0], math.Float32bits(x+1e3))
					}
				}
			},
			nodes:  []string{"layers.ffn_down@16"},
			reason: "from float32, want at most",
		},
		{
			name:   "no scheme",
			set:    func(_ *kit, o *Options) { o.Target.Procs[1].Kinds = []op.Kind{op.GLU, op.Add} },
			nodes:  everyProduct,
			reason: `does not execute "matmul"`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newKit(t)
			path := filepath.Join(t.TempDir(), "x.hetb")
			o := k.options(false)
			c.set(k, &o)

			_, err := Emit(t.Context(), path, o)
			namesRefused(t, err, c.nodes, c.reason)
			if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a refused bundle was written (%v)", err)
			}

			o.AllowFallback = true
			if _, err := Emit(t.Context(), path, o); err != nil {
				t.Fatal(err)
			}
			b, p, report := k.open(t, path)
			fallsBack(t, p, c.nodes, c.reason)
			if report.Target == nil || len(report.Target.Fallbacks) != len(p.Target.Fallbacks) {
				t.Errorf("the report says %+v", report.Target)
			}
			logits(t, p, blobs{b}, host.New(), k.compiler.Driver())
		})
	}
}

// namesRefused expects an error that names nodes, the reason, and the option that lets the control processor have them.
func namesRefused(t *testing.T, err error, nodes []string, reason string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), reason) {
		t.Fatalf("got %v, want a refusal because of %q", err, reason)
	}
	if !strings.Contains(err.Error(), `could be executed by "a"`) {
		t.Errorf("got %v, want the processor that could execute them", err)
	}
	for _, n := range nodes {
		node, _, _ := strings.Cut(n, "@")
		if !strings.Contains(err.Error(), node) {
			t.Errorf("%q is not listed: %v", n, err)
		}
	}
	hints := diag.HintsOf(err)
	if !slices.ContainsFunc(hints, func(hint string) bool { return strings.Contains(hint, "--allow-fallback") }) {
		t.Errorf("no way out in %v", hints)
	}
}

// fallsBack expects that a plan gives nodes to the control processor and says why.
func fallsBack(t *testing.T, p *planir.Plan, nodes []string, reason string) {
	t.Helper()
	var got []string
	for _, f := range p.Target.Fallbacks {
		tier := "16"
		if f.Rows == 1 {
			tier = "1"
		}
		got = append(got, f.Node+"@"+tier)
		d := p.DecisionFor(f.Node, f.Rows)
		if len(d.Shares) != 1 || d.Shares[0].Proc != "a" {
			t.Errorf("fallback %+v, and the decision is %q", f, d.ShareText())
		}
		if !strings.Contains(f.From, "b") || !strings.Contains(f.Reason, reason) {
			t.Errorf("fallback %+v, want one from %q because of %q", f, "b", reason)
		}
	}
	for _, n := range nodes {
		if !slices.Contains(got, n) {
			t.Errorf("%q did not fall back; %v did", n, got)
		}
	}
}

// A target for which the plan's graphs cannot be compiled is refused, and no bundle is written.
func TestTargetsRefused(t *testing.T) {
	k := newKit(t)
	path := filepath.Join(t.TempDir(), "x.hetb")
	for _, c := range []struct {
		name   string
		change func(o *Options)
		want   string
	}{
		{
			name:   "another SoC",
			change: func(o *Options) { o.Target.SoC = "other" },
			want:   `emit for target "other": the plan is for SoC "test"`,
		},
		{
			name:   "no target data",
			change: func(o *Options) { o.Target.Procs = o.Target.Procs[:1] },
			want: `processor "b" executes layers.qkv, layers.attn_out, layers.ffn_gate_up and 3 more, and the SoC ` +
				"has no target data for it",
		},
		{
			name: "library missing",
			change: func(*Options) {
				k.compiler.Fail = &driver.Unavailable{Driver: "grouping", Get: "make it"}
			},
			want: `driver "grouping" is not available`,
		},
		{
			name:   "no compiler",
			change: func(o *Options) { o.Compilers = o.Compilers[:1] },
			want:   `no compiler for driver "grouping"`,
		},
		{
			name:   "compiler of single graphs",
			change: func(o *Options) { o.Target.Procs[1].Driver = "host" },
			want:   `artifacts hold their weights, and those of compiler "host" do not`,
		},
		{
			name:   "no twin",
			change: func(o *Options) { o.TwinReport = &Report{} },
			want:   "it was not made with --for-emulator",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			k.compiler.Fail = nil
			o := k.options(false)
			o.AllowFallback = true
			c.change(&o)

			_, err := Emit(t.Context(), path, o)

			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a refused bundle was written (%v)", err)
			}
		})
	}
}

// Emitting that is interrupted is an error.
func TestInterrupted(t *testing.T) {
	k := newKit(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	path := filepath.Join(t.TempDir(), "x.hetb")
	if _, err := Emit(ctx, path, k.options(false)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// The float32 form of a graph computes what the graph does, without its rounding. A number that is far from it is
// refused.
func TestFloatGraph(t *testing.T) {
	k := newKit(t)
	oracle := newOracle(host.New())
	defer oracle.close()
	for _, scheme := range op.Schemes {
		if scheme.Requantises() {
			continue // no compiler takes it
		}
		product := op.Op{Kind: op.MatMul, M: 5, K: 64, N: 96, Scheme: scheme, Bias: true}
		float := scheme.Activation() == "a32"
		judgeFloat(t, k, oracle, op.Single(product, pack.N32), float || scheme.QuantisedRows())
		if scheme.QuantisedRows() {
			judgeFloat(t, k, oracle, quantised(product), float)
		}
		if scheme.Scales() > 0 { // what comes in is up to the static scale, and saturates
			judgeFloat(t, k, oracle, op.Single(scheme.QuantRows(product.M, product.K, 1), ""), float)
		}
	}
}

// judgeFloat compares a graph with its float32 form. exact graphs round nothing.
func judgeFloat(t *testing.T, k *kit, oracle *oracle, g op.Graph, exact bool) {
	t.Helper()
	key := g.Nodes[len(g.Nodes)-1].Op.Key()
	weights := graphWeights(t, &g)
	x, err := oracle.sample(t.Context(), &g, weights)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	piece := driver.Piece{Name: "x", Graph: g, Weights: weights, Sample: x.in}
	compiled, err := k.compiler.CompileGroup(t.Context(), []driver.Piece{piece}, driver.Target{Emulator: true})
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	artifact := &compiled.Artifacts[0]

	off, err := x.judge(&g, artifact)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	if off.portable != 0 || (off.float < 2e-6) != exact {
		t.Errorf("%s: errors %g, %g, want exact %v", key, off.float, off.portable, exact)
	}

	binary.LittleEndian.PutUint32(artifact.Emulated[0], math.Float32bits(1e6))
	if _, err := x.judge(&g, artifact); err == nil {
		t.Errorf("%s: a wrong number is accepted", key)
	}
}

// graphWeights are weights of a graph without a pattern, and steps and scales that are all the same.
func graphWeights(t *testing.T, g *op.Graph) (weights driver.Weights) {
	t.Helper()
	for _, spec := range g.Weights {
		values := make([]float32, spec.K*spec.N)
		for i := range values {
			switch spec.Name {
			case "steps":
				values[i] = 1.0 / 1024
			case "scale", "rows":
				values[i] = 1.0 / 64
			default:
				values[i] = float32((i*7)%13-6) / 8
			}
		}
		size, err := pack.Bytes(spec)
		if err != nil {
			t.Fatal(err)
		}
		buffer, err := driver.AllocHost("host", size)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { buffer.Close() })
		source, err := pack.Floats(values, spec.K, spec.N)
		if err != nil {
			t.Fatal(err)
		}
		if err := pack.Pack(buffer.Bytes(), spec, source); err != nil {
			t.Fatal(err)
		}
		weights = append(weights, driver.Packed{Spec: spec, Bytes: buffer.Bytes()})
	}
	return weights
}

// A large output that is right hides no small one that is wrong.
func TestWorstOutputCounts(t *testing.T) {
	bytesOf := func(values ...float32) (b []byte) {
		for _, v := range values {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
		return b
	}
	graph := &op.Graph{
		Outputs: []op.Value{
			{Name: "large", Type: op.F32, Rows: 1, Cols: 2},
			{Name: "small", Type: op.F32, Rows: 1, Cols: 2},
		},
		Nodes: []op.Node{{Op: op.Op{Kind: op.Norm, M: 1, N: 2}}},
	}
	want := &sample{want: [][]float32{{1e4, -1e4}, {1, 2}}}
	large, small := bytesOf(1e4, -1e4), bytesOf(1, 2)
	for _, c := range []struct {
		small []byte
		right bool
	}{
		{small: small, right: true},
		{small: bytesOf(2, 1), right: false},
		{small: bytesOf(1, float32(math.NaN())), right: false},
	} {
		artifact := &driver.CompiledArtifact{
			Emulated: [][]byte{large, c.small},
			Portable: [][]byte{large, small},
		}
		if _, err := want.judge(graph, artifact); (err == nil) != c.right {
			t.Errorf("small output %v: %v", c.small, err)
		}
	}
}

// quantised is the graph of a product and of the operator that rounds its rows.
func quantised(product op.Op) op.Graph {
	round := product.Scheme.QuantRows(product.M, product.K, 1)
	g := op.Single(product, pack.N32)
	node := op.Node{Op: round, In: []string{"in"}, Out: slices.Clone(g.Nodes[0].In[:2])}
	if round.Static {
		scale := round.WeightSpec("rows", op.RowsLayout)
		g.Weights, node.W = append(g.Weights, scale), []string{scale.Name}
	}
	g.Temps = g.Inputs
	g.Inputs = []op.Value{{Name: "in", Type: op.F32, Rows: product.M, Cols: product.K}}
	g.Nodes = append([]op.Node{node}, g.Nodes...)
	return g
}

// expertTiers divide a model's experts into a group for few rows each, and one slot for many.
func expertTiers(m *models.Model) planir.ExpertTiers {
	tiers := planir.ExpertTiers{
		Rows:     16,
		Loads:    "by hand",
		Experts:  m.Experts,
		Overflow: planir.OverflowExact,
		Sent:     3,
		Groups:   []planir.ExpertGroup{{Slots: m.Experts / 2, Rows: 3}, {Slots: 1, Rows: 8}},
		Status:   "feasible",
	}
	for _, layer := range m.ExpertLayers() {
		here := planir.ExpertLayer{Layer: layer}
		for slot := range tiers.Slots() {
			here.Slots = append(here.Slots, (3*layer+m.Experts-1-slot)%m.Experts)
		}
		tiers.Layers = append(tiers.Layers, here)
	}
	return tiers
}

// A group of experts is compiled with those that a layer has in its slots, and computes with them what the dynamic
// products compute. A group in a layer is one graph and one artifact, whatever is in its slots.
func TestCompiledExpertGroups(t *testing.T) {
	require.Slow(t)
	k := newKit(t)
	k.m = openModel(t, "../testdata/arch/olmoe-plain")
	dynamic := planOf(t, k.m, nil, op.A32W32, false)
	want := logits(t, dynamic, contentOf(t, dynamic, k.m, nil), host.New())

	tiers := expertTiers(k.m)
	g := k.m.Graph()
	k.p = artifactPlan(t, k.m)
	k.p.Experts = []planir.ExpertTiers{tiers}
	k.p.Decisions = trivial(t, &g, op.A32W32, tiers)
	groups := 0
	for i := range k.p.Decisions {
		d := &k.p.Decisions[i]
		if strings.HasSuffix(d.Node, "_g0") || strings.HasSuffix(d.Node, "_g1") {
			d.Shares[0].Proc = "b"
			groups++
		}
	}
	if groups != 6 {
		t.Fatalf("%d decisions are about groups, want 6", groups)
	}
	if err := lower.Lower(k.p, &g); err != nil {
		t.Fatal(err)
	}

	path := filepath.Join(t.TempDir(), "x.hetb")
	for _, emulator := range []bool{true, false} {
		if _, err := Emit(t.Context(), path, k.options(emulator)); err != nil {
			t.Fatal(err)
		}
		b, p, report := k.open(t, path)
		if got := logits(t, p, blobs{b}, host.New(), k.compiler.Driver()); !slices.Equal(got, want) {
			t.Errorf("emulator %v: other logits than those of dynamic experts", emulator)
		}
		if want := len(tiers.Groups) * len(tiers.Layers); len(report.Graphs) != want {
			t.Errorf("emulator %v: %d artifacts, want %d", emulator, len(report.Graphs), want)
		}
		for _, graph := range report.Graphs {
			if e := graph.Errors; e != nil && e.Float32 > 1e-5 {
				t.Errorf("graph %q: errors %+v of the same kernels", graph.Blob, *e)
			}
		}
	}
}
