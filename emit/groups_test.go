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
	p.Procs[0].Driver, p.Procs[1].Driver = "sim", "sim"
	p.Procs[0].Cores, p.Procs[1].Cores = nil, nil
	p.Procs[1].Kind = "npu"
	p.Procs[1].DynamicRows, p.Procs[1].StridedInput, p.Procs[1].StridedOutput, p.Procs[1].WeightRanges = false, false, false, false
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

// groupTarget executes it: the CPU as host, the NPU by a driver whose artifacts hold their weights.
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

type kit struct {
	m        *models.Model
	p        *planir.Plan
	key      *PrivateKey
	compiler *drivertest.GroupCompiler
}

func newKit(t *testing.T) *kit {
	t.Helper()
	m := openModel(t, demo)
	key, err := GenerateKey(bundle.Ed25519, "test", true)
	if err != nil {
		t.Fatal(err)
	}
	return &kit{m: m, p: artifactPlan(t, m), key: key, compiler: drivertest.NewGroupCompiler("grouping", host.New(), hostcompiler.New())}
}

func (k *kit) options(emulator bool) Options {
	return Options{
		Plan: k.p, Model: k.m, Compilers: []driver.Compiler{hostcompiler.New(), k.compiler}, Signers: []bundle.Signer{k.key.Signer()},
		Target: groupTarget(k.p, emulator), Oracle: host.New(), Product: "test", Generation: 1,
	}
}

// openBundle verifies a bundle and returns its plan and its report.
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

type blobs struct{ *bundle.Bundle }

func (b blobs) Blob(name string) ([]byte, error) { return b.Bytes(name) }

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
	plain := *k.p
	plain.Procs = slices.Clone(k.p.Procs)
	for i := range plain.Procs {
		plain.Procs[i].Driver, plain.Procs[i].Cores = "host", []int{0}
	}
	plain.SoC.Simulated = false
	g := k.m.Graph()
	relowered, _, err := retarget(&plain, &g, &Target{SoC: plain.SoC.Name, Procs: plain.Procs}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := contentOf(t, relowered, k.m, nil)
	want := logits(t, relowered, c, host.New())
	dir := t.TempDir()
	var device *Report
	for _, emulator := range []bool{true, false} {
		path := filepath.Join(dir, "x.hetb")
		var events sync.Map
		o := k.options(emulator)
		o.Watch = func(e Event) {
			if e.Groups > 0 {
				events.Store(e.Group, e.Done)
			}
		}
		if _, err := Emit(context.Background(), path, o); err != nil {
			t.Fatal(err)
		}
		b, p, r := k.open(t, path)
		if got := logits(t, p, blobs{b}, host.New(), k.compiler.Driver()); !slices.Equal(got, want) {
			t.Errorf("emulator %v: other logits than the plan's with the same kernels", emulator)
		}
		if p.Target == nil || p.Target.Emulator != emulator || !p.Target.Simulated || p.SoC.Simulated || len(p.Target.Fallbacks) != 0 {
			t.Errorf("emulator %v: the plan's target is %+v", emulator, p.Target)
		}
		if (len(p.Predictions) == 0) != emulator || (p.Decisions[0].PredictNS == 0) != emulator {
			t.Errorf("emulator %v: expects %v", emulator, p.Predictions)
		}
		text, err := r.encode()
		if err != nil {
			t.Fatal(err)
		}
		for old, bad := range map[string]string{"test compiler": "test\\u001bcompiler", "never": "n\u009bver", `"schema":"hetc`: `"schema":"hetk`, `"graphs"`: `"grafs"`} {
			if x := bytes.Replace(text, []byte(old), []byte(bad), 1); !bytes.Equal(x, text) {
				if _, err := DecodeReport(x); err == nil {
					t.Errorf("a report with %q is read", bad)
				}
			}
		}
		groups := p.GraphGroups()
		graphs := 0
		for _, x := range groups {
			graphs += len(x.Graphs)
			if (x.Context == "") != emulator {
				t.Errorf("emulator %v: context %q", emulator, x.Context)
			}
		}
		if graphs == 0 || graphs != len(r.Graphs) || (len(r.Binaries) == 0) != emulator {
			t.Errorf("emulator %v: report of %d graphs and %d binaries, and %d are compiled", emulator, len(r.Graphs), len(r.Binaries), graphs)
		}
		tried := map[string]bool{}
		for _, g := range r.Graphs {
			data, err := b.Bytes(g.Blob)
			if err != nil || int64(len(data)) != g.Bytes {
				t.Errorf("graph %q: %d bytes, and the report says %d (%v)", g.Blob, len(data), g.Bytes, err)
			}
			if g.Tried == "" || len(g.Ops) == 0 || g.Rows == 0 {
				t.Errorf("graph %+v: not tried, without operators or rows", g)
			}
			if g.Errors != nil {
				tried[g.Blob] = true
				if e := g.Errors; e.Portable != 0 || e.Float32 > 1e-5 || e.Float32Bound <= 0 {
					t.Errorf("graph %q: errors %+v of the same kernels", g.Blob, *e)
				}
			}
		}
		for _, g := range r.Graphs {
			if !tried[g.Tried] {
				t.Errorf("graph %q is said to be tried as %q, which was not", g.Blob, g.Tried)
			}
		}
		m := b.Manifest()
		if want := []bundle.Component{{Name: "driver/grouping", Token: drivertest.Token}}; !slices.Equal(m.Target.Components, want) {
			t.Errorf("the bundle needs %+v, want %+v", m.Target.Components, want)
		}
		for _, x := range m.Blobs {
			if strings.HasPrefix(x.Name, "context/") && x.Role != bundle.RoleNPUGraph {
				t.Errorf("blob %q has role %q", x.Name, x.Role)
			}
		}
		n := 0
		events.Range(func(_, done any) bool { n++; return done.(bool) })
		if n != len(groups) {
			t.Errorf("%d groups were begun and ended, want %d", n, len(groups))
		}
		if emulator {
			device = r
			continue
		}
		// The twin's digests are those that its own bundle has.
		o.TwinReport = device
		if _, err := Emit(context.Background(), path, o); err != nil {
			t.Fatal(err)
		}
		_, _, r = k.open(t, path)
		for i, g := range r.Graphs {
			if g.Twin == "" || g.Twin != device.Graphs[i].SHA256 || g.Twin == g.SHA256 {
				t.Errorf("graph %q: twin %q, want %q", g.Blob, g.Twin, device.Graphs[i].SHA256)
			}
		}
	}
}

// notes is a Memo in memory.
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

// What the memo and the compiler know is neither packed nor tried again, and a memo that is wrong changes nothing.
func TestMemo(t *testing.T) {
	require.Slow(t)
	k := newKit(t)
	k.compiler.Keep = map[string]*driver.CompiledGroup{}
	path := filepath.Join(t.TempDir(), "x.hetb")
	n := &notes{all: map[string][]byte{}}
	var mu sync.Mutex
	emit := func(memo Memo) (data []byte, packed, cached int) {
		t.Helper()
		o := k.options(false)
		o.Memo = memo
		o.Watch = func(e Event) {
			mu.Lock()
			defer mu.Unlock()
			if e.Packed {
				packed++
			}
			if e.Cached {
				cached++
			}
		}
		if _, err := Emit(context.Background(), path, o); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return data, packed, cached
	}
	first, groups, cached := emit(n)
	if groups == 0 || cached != 0 {
		t.Fatalf("first: %d groups packed, %d from the cache", groups, cached)
	}
	check := func(what string, memo Memo, wantPacked, wantCached int) {
		t.Helper()
		data, packed, cached := emit(memo)
		if packed != wantPacked || cached != wantCached || !bytes.Equal(data, first) {
			t.Errorf("%s: %d packed, want %d, %d from the cache, want %d; same bytes: %v", what, packed, wantPacked, cached, wantCached, bytes.Equal(data, first))
		}
	}
	check("second", n, 0, groups)
	check("no memo", nil, groups, groups)
	for key, b := range n.all { // digests of other weights; numbers that are none
		if strings.HasPrefix(key, "weights ") {
			i := bytes.IndexByte(b, ':') + 2
			b[i] ^= 1
		} else {
			n.all[key] = []byte("[")
		}
	}
	check("wrong memo", n, groups, groups)
	check("mended memo", n, 0, groups)
	clear(k.compiler.Keep)
	check("nothing kept", n, groups, 0)
}

// The same inputs give the same bytes, whatever compiles first.
func TestCompiledBundlesAreDeterministic(t *testing.T) {
	k := newKit(t)
	dir := t.TempDir()
	var all [][]byte
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, threads := range []int{1, 4} {
		runtime.GOMAXPROCS(threads)
		path := filepath.Join(dir, "x.hetb")
		if _, err := Emit(context.Background(), path, k.options(false)); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, data)
	}
	if !bytes.Equal(all[0], all[1]) {
		t.Error("two bundles of the same inputs differ")
	}
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "hetc-emit-*")); err != nil || len(left) > 0 {
		t.Logf("other runs may have left %v (%v)", left, err)
	}
}

// Graphs that the compiler refuses, or that do not compute what they should, are refused by name, all of them, unless
// the control processor may have them; then plan and report say so.
func TestRefusedGraphs(t *testing.T) {
	require.Slow(t)
	errOp := diag.New(diag.ClassInput, "operator not supported")
	down := func(p driver.Piece) error {
		for _, n := range p.Graph.Nodes {
			if n.Op.K == 768 || n.Op.Kind == op.MatMul && n.Op.N == 256 && n.Op.K == 256 && n.Op.M == 1 {
				return errOp
			}
		}
		return nil
	}
	for name, c := range map[string]struct {
		set    func(k *kit)
		nodes  []string
		reason string
	}{
		"refused": {func(k *kit) { k.compiler.Refuse = down }, []string{"layers.attn_out@1", "layers.ffn_down@1", "layers.ffn_down@16"}, "operator not supported"},
		"wrong numbers": {func(k *kit) {
			k.compiler.Disturb = func(p driver.Piece, out [][]byte) {
				if down(p) != nil && p.Graph.Rows() == 16 {
					x := math.Float32frombits(binary.LittleEndian.Uint32(out[0]))
					binary.LittleEndian.PutUint32(out[0], math.Float32bits(x+1e3))
				}
			}
		}, []string{"layers.ffn_down@16"}, "from float32, want at most"},
		"no scheme": {func(k *kit) {}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKit(t)
			c.set(k)
			path := filepath.Join(t.TempDir(), "x.hetb")
			o := k.options(false)
			if name == "no scheme" {
				o.Target.Procs[1].Kinds = []op.Kind{op.GLU, op.Add}
				c.nodes, c.reason = nil, `does not execute "matmul"`
				for _, n := range []string{"attn_out", "ffn_down", "ffn_gate_up", "qkv"} {
					c.nodes = append(c.nodes, "layers."+n+"@1", "layers."+n+"@16")
				}
			}
			_, err := Emit(context.Background(), path, o)
			if err == nil || !strings.Contains(err.Error(), c.reason) || !strings.Contains(err.Error(), `could be executed by "a"`) {
				t.Fatalf("got %v, want a refusal because of %q", err, c.reason)
			}
			for _, n := range c.nodes {
				node, _, _ := strings.Cut(n, "@")
				if !strings.Contains(err.Error(), node) {
					t.Errorf("%q is not listed: %v", n, err)
				}
			}
			if !slices.ContainsFunc(diag.HintsOf(err), func(s string) bool { return strings.Contains(s, "--allow-fallback") }) {
				t.Errorf("no way out in %v", diag.HintsOf(err))
			}
			if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a refused bundle was written (%v)", err)
			}
			o.AllowFallback = true
			if _, err := Emit(context.Background(), path, o); err != nil {
				t.Fatal(err)
			}
			b, p, r := k.open(t, path)
			var got []string
			for _, f := range p.Target.Fallbacks {
				got = append(got, f.Node+"@"+map[bool]string{true: "1", false: "16"}[f.Rows == 1])
				if d := p.DecisionFor(f.Node, f.Rows); len(d.Shares) != 1 || d.Shares[0].Proc != "a" || !strings.Contains(f.From, "b") || !strings.Contains(f.Reason, c.reason) {
					t.Errorf("fallback %+v, and the decision is %q", f, d.ShareText())
				}
			}
			slices.Sort(got)
			fused := map[string]bool{}
			for _, n := range got {
				fused[n] = true
			}
			for _, n := range c.nodes {
				if !fused[n] {
					t.Errorf("%q did not fall back; %v did", n, got)
				}
			}
			if r.Target == nil || len(r.Target.Fallbacks) != len(p.Target.Fallbacks) {
				t.Errorf("the report says %+v", r.Target)
			}
			logits(t, p, blobs{b}, host.New(), k.compiler.Driver())
		})
	}
}

func TestTargetsRefused(t *testing.T) {
	k := newKit(t)
	path := filepath.Join(t.TempDir(), "x.hetb")
	for name, c := range map[string]struct {
		change func(o *Options)
		want   string
	}{
		"another SoC":               {func(o *Options) { o.Target.SoC = "other" }, `emit for target "other": the plan is for SoC "test"`},
		"no target data":            {func(o *Options) { o.Target.Procs = o.Target.Procs[:1] }, `processor "b" executes layers.qkv, layers.attn_out, layers.ffn_gate_up and 3 more, and the SoC has no target data for it`},
		"library missing":           {func(o *Options) { k.compiler.Fail = &driver.Unavailable{Driver: "grouping", Get: "make it"} }, `driver "grouping" is not available`},
		"no compiler":               {func(o *Options) { o.Compilers = o.Compilers[:1] }, `no compiler for driver "grouping"`},
		"compiler of single graphs": {func(o *Options) { o.Target.Procs[1].Driver = "host" }, `artifacts hold their weights, and those of compiler "host" do not`},
		"no twin":                   {func(o *Options) { o.TwinReport = &Report{} }, "it was not made with --for-emulator"},
	} {
		t.Run(name, func(t *testing.T) {
			k.compiler.Fail = nil
			o := k.options(false)
			o.AllowFallback = true
			c.change(&o)
			_, err := Emit(context.Background(), path, o)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a refused bundle was written (%v)", err)
			}
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	k.compiler.Fail = nil
	if _, err := Emit(ctx, path, k.options(false)); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

// The float32 form of a graph computes what the graph does, without its rounding.
func TestFloatGraph(t *testing.T) {
	k := newKit(t)
	p := newOracle(host.New())
	defer p.close()
	for _, s := range op.Schemes {
		for _, form := range []string{"product", "chain", "rows"} {
			chain := form != "product"
			o := op.Op{Kind: op.MatMul, M: 5, K: 64, N: 96, Scheme: s, Bias: true}
			g := op.Single(o, pack.N32)
			switch {
			case form == "rows" && s.Scales() == 0:
				continue
			case form == "rows": // what comes in is up to the static scale, and saturates
				g = op.Single(s.QuantRows(5, 64, 1), "")
			case chain && s.QuantisedRows():
				g = quantised(o)
			}
			var w driver.Weights
			for _, spec := range g.Weights {
				v := make([]float32, spec.K*spec.N)
				for i := range v {
					v[i] = float32((i*7)%13-6) / 8
				}
				if spec.Name == "steps" {
					for i := range v {
						v[i] = 1.0 / 1024
					}
				}
				if spec.Name == "scale" || spec.Name == "rows" {
					for i := range v {
						v[i] = 1.0 / 64
					}
				}
				n, err := pack.Bytes(spec)
				if err != nil {
					t.Fatal(err)
				}
				buf, err := driver.AllocHost("host", n)
				if err != nil {
					t.Fatal(err)
				}
				defer buf.Close()
				src, err := pack.Floats(v, spec.K, spec.N)
				if err == nil {
					err = pack.Pack(buf.Bytes(), spec, src)
				}
				if err != nil {
					t.Fatal(err)
				}
				w = append(w, driver.Packed{Spec: spec, Bytes: buf.Bytes()})
			}
			x, err := p.sample(context.Background(), &g, w)
			if err != nil {
				t.Fatalf("%s: %v", s, err)
			}
			b, err := k.compiler.CompileGroup(context.Background(), []driver.Piece{{Name: "x", Graph: g, Weights: w, Sample: x.in}}, driver.Target{Emulator: true})
			if err != nil {
				t.Fatalf("%s: %v", s, err)
			}
			tr, err := x.judge(&g, &b.Artifacts[0])
			if err != nil {
				t.Fatalf("%s, chain %v: %v", s, chain, err)
			}
			if exact := s.Activation() == "a32" || s.QuantisedRows() && !chain; tr.portable != 0 || (tr.float < 2e-6) != exact {
				t.Errorf("%s, chain %v: errors %g, %g", s, chain, tr.float, tr.portable)
			}
			binary.LittleEndian.PutUint32(b.Artifacts[0].Emulated[0], math.Float32bits(1e6))
			if _, err := x.judge(&g, &b.Artifacts[0]); err == nil {
				t.Errorf("%s: a wrong number is accepted", s)
			}
		}
	}
}

// A large output that is right hides no small one that is wrong.
func TestWorstOutputCounts(t *testing.T) {
	bytesOf := func(v ...float32) (b []byte) {
		for _, x := range v {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
		}
		return b
	}
	g := &op.Graph{Outputs: []op.Value{{Name: "large", Type: op.F32, Rows: 1, Cols: 2}, {Name: "small", Type: op.F32, Rows: 1, Cols: 2}}}
	s := &sample{want: [][]float32{{1e4, -1e4}, {1, 2}}}
	for _, x := range []struct {
		small []byte
		ok    bool
	}{{bytesOf(1, 2), true}, {bytesOf(2, 1), false}, {bytesOf(1, float32(math.NaN())), false}} {
		a := &driver.CompiledArtifact{Emulated: [][]byte{bytesOf(1e4, -1e4), x.small}, Portable: [][]byte{bytesOf(1e4, -1e4), bytesOf(1, 2)}}
		g.Nodes = []op.Node{{Op: op.Op{Kind: op.Norm, M: 1, N: 2}}}
		if _, err := s.judge(g, a); (err == nil) != x.ok {
			t.Errorf("small output %v: %v", x.small, err)
		}
	}
}

// quantised is the graph of a step that quantises rows, and a product of them.
func quantised(o op.Op) op.Graph {
	q := o.Scheme.QuantRows(o.M, o.K, 1)
	g := op.Single(o, pack.N32)
	g.Temps = g.Inputs
	g.Inputs = []op.Value{{Name: "in", Type: op.F32, Rows: o.M, Cols: o.K}}
	n := op.Node{Op: q, In: []string{"in"}, Out: []string{g.Nodes[0].In[0], g.Nodes[0].In[1]}}
	if q.Static {
		w := q.WeightSpec("rows", op.RowsLayout)
		g.Weights, n.W = append(g.Weights, w), []string{w.Name}
	}
	g.Nodes = append([]op.Node{n}, g.Nodes...)
	return g
}

// A group of experts is compiled with those that a layer has in its slots, and computes with them what the dynamic
// products compute.
func TestCompiledExpertGroups(t *testing.T) {
	require.Slow(t)
	k := newKit(t)
	k.m = openModel(t, "../testdata/arch/olmoe-plain")
	dynamic := planOf(t, k.m, nil, op.A32W32, false)
	want := logits(t, dynamic, contentOf(t, dynamic, k.m, nil), host.New())
	tiers := planir.ExpertTiers{Rows: 16, Loads: "by hand", Experts: k.m.Experts, Overflow: planir.OverflowExact, Sent: 3,
		Groups: []planir.ExpertGroup{{Slots: k.m.Experts / 2, Rows: 3}, {Slots: 1, Rows: 8}}, Status: "feasible"}
	for _, layer := range k.m.ExpertLayers() {
		here := planir.ExpertLayer{Layer: layer}
		for slot := range tiers.Slots() {
			here.Slots = append(here.Slots, (3*layer+k.m.Experts-1-slot)%k.m.Experts)
		}
		tiers.Layers = append(tiers.Layers, here)
	}
	g := k.m.Graph()
	var err error
	k.p = artifactPlan(t, k.m)
	k.p.Experts = []planir.ExpertTiers{tiers}
	if k.p.Decisions, err = lower.Trivial(&g, "a", []int{1, 16}, 32, op.F32, func(string, int) op.Scheme { return op.A32W32 }, tiers); err != nil {
		t.Fatal(err)
	}
	groups := 0
	for i := range k.p.Decisions {
		if d := &k.p.Decisions[i]; strings.HasSuffix(d.Node, "_g0") || strings.HasSuffix(d.Node, "_g1") {
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
		if _, err := Emit(context.Background(), path, k.options(emulator)); err != nil {
			t.Fatal(err)
		}
		b, p, r := k.open(t, path)
		if got := logits(t, p, blobs{b}, host.New(), k.compiler.Driver()); !slices.Equal(got, want) {
			t.Errorf("emulator %v: other logits than those of dynamic experts", emulator)
		}
		// One graph and one artifact for a group in a layer, whatever is in its slots.
		if want := len(tiers.Groups) * len(tiers.Layers); len(r.Graphs) != want {
			t.Errorf("emulator %v: %d artifacts, want %d", emulator, len(r.Graphs), want)
		}
		for _, graph := range r.Graphs {
			if e := graph.Errors; e != nil && e.Float32 > 1e-5 {
				t.Errorf("graph %q: errors %+v of the same kernels", graph.Blob, *e)
			}
		}
	}
}
