package host_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	compile "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// selectors are one core, and all cores if there are several.
func selectors(t testing.TB) []string {
	devices, err := host.New().Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(devices) == 1 {
		return []string{devices[0].Select}
	}
	return []string{devices[0].Select, devices[len(devices)-1].Select}
}

// The whole suite on one core with every kernel set, and on all cores with the best. Short tests, and those under the
// race detector, which has nothing to find in one lane's arithmetic, have the best alone; a part of the slow tests has
// all sets, in its part of the shapes.
func TestConformance(t *testing.T) {
	all := selectors(t)
	few := drivertest.Race || testing.Short() && os.Getenv(require.Part) == ""
	for i, sel := range all {
		for _, set := range kernel.Sets() {
			best := set.Name == kernel.Best().Name
			if !best && (i > 0 || few) {
				continue
			}
			if best && testing.Short() && i < len(all)-1 {
				continue // the last has workers besides
			}
			t.Run(fmt.Sprintf("%s %s", sel, set.Name), func(t *testing.T) {
				options := map[string]string{"kernels": set.Name}
				f := drivertest.Factory{Driver: host.New(), Compiler: compile.New(), Config: driver.Config{Select: sel, Options: options}}
				f.Sampled = best && i < len(all)-1 // the last has all of them with these kernels
				if set.Name == "reference" {
					f.Tolerance = 1.3e-7 // one rounding of the result
				}
				devices, err := f.Driver.Devices(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if i == 0 && len(devices) > 1 {
					other := devices[1].Cores[0]
					f.Others = []driver.Config{{Select: strconv.Itoa(other), Options: options}}
				}
				drivertest.Run(t, f)
			})
		}
	}
}

// processor opens a processor on a thread of its own and returns a function that runs others there.
func processor(t testing.TB, c driver.Config) (driver.Processor, func(func())) {
	t.Helper()
	p, err := host.New().Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	calls := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range calls {
			f()
		}
	}()
	do := func(f func()) {
		done := make(chan struct{})
		calls <- func() { defer close(done); f() }
		<-done
	}
	do(func() { err = p.Attach() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		close(calls)
	})
	return p, do
}

// load compiles g and loads it with constant weights.
func load(t testing.TB, p driver.Processor, g op.Graph) (driver.Executable, error) {
	t.Helper()
	var w driver.Weights
	for _, spec := range g.Weights {
		one := pack.Expert(spec)
		bytes, err := pack.Bytes(one)
		if err != nil {
			t.Fatal(err)
		}
		count := max(1, spec.Experts)
		r, err := mem.Alloc(int(bytes)*count, 64)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		values := make([]float32, spec.K*spec.N)
		for e := range count {
			for i := range values {
				values[i] = float32((i+5*e)%13)/6 - 1
				if spec.Name == "steps" {
					values[i] = 1e-4
				}
			}
			if err := drivertest.Pack(r.Bytes()[e*int(bytes):(e+1)*int(bytes)], one, values); err != nil {
				t.Fatal(err)
			}
		}
		w = append(w, driver.Packed{Spec: spec, Bytes: r.Bytes(), Stride: bytes})
	}
	a, err := compile.New().Compile(t.Context(), g, w, driver.Target{})
	if err != nil {
		t.Fatal(err)
	}
	return p.Load(t.Context(), a, w)
}

// fill gives the inputs of g numbers, ids among the rows or experts of the nodes that read them.
func fill(g op.Graph, b *driver.Bindings, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 3))
	choices := map[string]int{}
	for _, n := range g.Nodes {
		for i, v := range n.Op.Sig().In {
			if v.Name == "ids" {
				choices[n.In[i]] = n.Op.K
				if n.Op.Kind == op.ExpertMatMul {
					choices[n.In[i]] = n.Op.Experts
				}
			}
		}
	}
	for i, v := range g.Inputs {
		raw := b.In[i].Bytes()
		for at := 0; at < len(raw); at += v.Type.Bytes() {
			switch v.Type {
			case op.I32:
				binary.LittleEndian.PutUint32(raw[at:], uint32(rng.IntN(choices[v.Name])))
			case op.F32:
				binary.LittleEndian.PutUint32(raw[at:], math.Float32bits(float32(rng.NormFloat64())))
			case op.U8:
				raw[at] = uint8(1 + rng.IntN(255))
			}
		}
	}
}

// bindings gives every value of g memory of its own.
func bindings(t testing.TB, p driver.Processor, g op.Graph, maxContext int) *driver.Bindings {
	t.Helper()
	b := &driver.Bindings{Scalars: &driver.Scalars{Rows: g.Rows(), Seq: maxContext}, MaxContext: maxContext}
	view := func(v op.Value) driver.View {
		buf, err := p.Alloc(int64(v.Rows) * int64(v.Cols) * int64(v.Type.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { buf.Close() })
		return driver.View{Buffer: buf, Type: v.Type, Rows: v.Rows, Cols: v.Cols, Stride: v.Cols}
	}
	for _, v := range g.Inputs {
		b.In = append(b.In, view(v))
	}
	for _, v := range g.Outputs {
		b.Out = append(b.Out, view(v))
		for i, in := range g.Inputs {
			if in.Name == v.Name {
				b.Out[len(b.Out)-1] = b.In[i]
			}
		}
	}
	for _, n := range g.Nodes {
		if o := n.Op; o.Kind == op.Attention || o.Kind == op.KVAppend {
			c := op.Value{Type: o.KV, Rows: o.KVHeads * maxContext, Cols: o.HeadDim}
			b.K, b.V = view(c), view(c)
		}
	}
	return b
}

// everyOp is one graph per operator and scheme, large enough to be divided among threads.
func everyOp() map[string]op.Graph {
	const m = 48
	heads := op.Op{M: m, Heads: 8, KVHeads: 2, HeadDim: 64}
	out := map[string]op.Graph{}
	for _, o := range []op.Op{
		{Kind: op.Embed, M: m, K: 50, N: 512, Table: op.F32}, {Kind: op.Embed, M: m, K: 50, N: 512, Table: op.BF16},
		{Kind: op.SelectRow, M: m, N: 512}, {Kind: op.Norm, M: m, N: 512, Eps: 1e-5}, {Kind: op.QuantRows, M: m, N: 512},
		{Kind: op.MatMul, M: m, K: 512, N: 512, Scheme: op.A32W32}, {Kind: op.MatMul, M: m, K: 512, N: 512, Scheme: op.A8TQ8C},
		{Kind: op.MatMul, M: m, K: 512, N: 512, Scheme: op.A8TQ4B32}, {Kind: op.GLU, M: m, N: 512, Interleave: 16, Act: op.SiLU},
		{Kind: op.Add, M: m, N: 512}, {Kind: op.Copy, M: m, N: 512},
		{Kind: op.LayerNorm, M: m, N: 512, Eps: 1e-5}, {Kind: op.MatMul, M: m, K: 512, N: 512, Scheme: op.A8TQ8C, Bias: true},
		{Kind: op.ExpertMatMul, M: m, Fan: 4, Experts: 6, K: 512, N: 544, Scheme: op.A32W32}, {Kind: op.ExpertMatMul, M: m, Fan: 4, Experts: 6, K: 512, N: 544, Scheme: op.A8TQ8C, Spread: true},
		{Kind: op.ExpertMatMul, M: m, Fan: 4, Experts: 100, K: 64, N: 544, Scheme: op.A8TQ4B32, Spread: true}, {Kind: op.ExpertMatMul, M: m, Fan: 4, Experts: 1, K: 512, N: 20, Scheme: op.A8TQ4B32},
		{Kind: op.Route, M: m, Experts: 60, Fan: 6, Router: op.RouteSoftmax}, {Kind: op.Route, M: m, Experts: 16, Fan: 2, Router: op.RouteSparseMixer, Jitter: 0.01},
		{Kind: op.Combine, M: m, N: 512, Fan: 4}, {Kind: op.QuantRows, M: m, N: 512, Fan: 3}, {Kind: op.GLU, M: m, N: 512, Interleave: 32, Act: op.GELUTanh, Fan: 2},
		{Kind: op.Activate, M: m, N: 512, Act: op.GELU}, {Kind: op.Activate, M: m, N: 512, Act: op.GELUTanh, Fan: 2}, {Kind: op.Gate, M: m, N: 512},
		{Kind: op.Softcap, M: m, N: 512, Cap: 30}, {Kind: op.Embed, M: m, K: 50, N: 512, Table: op.F16, Scale: 22.6},
	} {
		out[o.Key()] = op.Single(o, pack.N32)
	}
	heads.Kind = op.Rope
	out["rope"] = op.Single(heads, "")
	long := heads
	long.RotaryDim, long.LongFrom, long.NTK = 32, 100, 4
	out["rope ntk"] = op.Single(long, "")
	heads.Kind = op.QKNorm
	out["qk_norm"] = op.Single(heads, "")
	joint := heads
	joint.Joint = true
	out["qk_norm joint"] = op.Single(joint, "")
	for _, heads.KV = range []op.Type{op.F32, op.F16} {
		heads.Kind, heads.Context = op.KVAppend, 0
		out["kv_append "+string(heads.KV)] = op.Single(heads, "")
		heads.Kind, heads.Context = op.Attention, 64
		out["attention "+string(heads.KV)] = op.Single(heads, "")
		window := heads
		window.Window, window.Cap, window.Scale = 30, 20, 0.2
		out["attention window "+string(heads.KV)] = op.Single(window, "")
	}
	return out
}

func TestRunAllocatesNothing(t *testing.T) {
	for _, sel := range selectors(t) {
		p, do := processor(t, driver.Config{Select: sel})
		for name, g := range everyOp() {
			exe, err := load(t, p, g)
			if err != nil {
				t.Fatal(err)
			}
			b := bindings(t, p, g, 256)
			fill(g, b, 1)
			run := func() {
				if _, err = p.Run(exe, b); err != nil {
					panic(err)
				}
			}
			do(run)
			// AllocsPerRun leaves one place for goroutines, which the helpers need too: count here.
			const runs = 20
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			do(func() {
				for i := range runs {
					b.Scalars.Pos = i // new angles every time
					run()
				}
			})
			runtime.ReadMemStats(&after)
			if n := after.Mallocs - before.Mallocs; n >= runs {
				t.Errorf("%s on %s: %d runs allocate %d objects", name, sel, runs, n)
			}
		}
	}
}

// Several workers compute the same bits as one, however the work is divided among them.
func TestWorkersAgree(t *testing.T) {
	require.Slow(t)
	all := selectors(t)
	if len(all) == 1 {
		t.Skip("one core")
	}
	for _, set := range []string{"portable", kernel.Best().Name} {
		results := map[string][]string{}
		for _, sel := range all {
			p, do := processor(t, driver.Config{Select: sel, Options: map[string]string{"kernels": set}})
			for name, g := range everyOp() {
				exe, err := load(t, p, g)
				if err != nil {
					t.Fatal(err)
				}
				b := bindings(t, p, g, 256)
				fill(g, b, 2)
				b.Scalars.Pos = 90
				do(func() { _, err = p.Run(exe, b) })
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				out := ""
				for _, v := range b.Out {
					out += string(v.Bytes())
				}
				results[name] = append(results[name], out)
			}
		}
		for name, r := range results {
			if r[0] != r[1] {
				t.Errorf("%s with kernels %s: one worker and several differ", name, set)
			}
		}
	}
}

// A product's row has the same bits however many rows there are.
func TestRowsAgree(t *testing.T) {
	const most, n = 61, 2020 // so that even float32 rows are packed
	for _, scheme := range op.Schemes {
		if scheme.Scales() > 1 {
			continue // the product of a single static scale
		}
		for _, sel := range selectors(t) {
			p, do := processor(t, driver.Config{Select: sel})
			g := op.Single(op.Op{Kind: op.MatMul, M: most, K: 131, N: n, Scheme: scheme, Bias: true}, pack.N32)
			exe, err := load(t, p, g)
			if err != nil {
				t.Fatal(err)
			}
			b := bindings(t, p, g, 0)
			fill(g, b, 4)
			want := ""
			for _, rows := range []int{most, 30, 24, 23, 1, most} {
				clear(b.Out[0].Bytes())
				b.Scalars.Rows = rows
				do(func() { _, err = p.Run(exe, b) })
				if err != nil {
					t.Fatalf("%s: %v", scheme, err)
				}
				got := string(b.Out[0].Bytes()[:4*rows*n])
				if want == "" {
					want = got
				}
				if got != want[:len(got)] {
					t.Errorf("%s on %s: %d rows differ from the same among %d", scheme, sel, rows, most)
				}
			}
		}
	}
}

// An ExpertMatMul is as many products as there are experts, of the same packed bytes, each row taken from the one of its
// expert: the same bits, in every scheme and set.
func TestExpertMatMulIsMatMuls(t *testing.T) {
	type machine struct {
		p  driver.Processor
		do func(func())
	}
	var machines []machine
	for _, sel := range selectors(t) {
		for _, set := range kernel.Sets() {
			p, do := processor(t, driver.Config{Select: sel, Options: map[string]string{"kernels": set.Name}})
			machines = append(machines, machine{p, do})
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		m := machines[rapid.IntRange(0, len(machines)-1).Draw(rt, "machine")]
		o := op.Op{Kind: op.ExpertMatMul, Scheme: rapid.SampledFrom(expertSchemes).Draw(rt, "scheme"), M: rapid.IntRange(1, 40).Draw(rt, "m"),
			Fan: rapid.IntRange(1, 8).Draw(rt, "fan"), Experts: rapid.IntRange(1, 16).Draw(rt, "experts"),
			K: rapid.IntRange(1, 100).Draw(rt, "k"), N: rapid.IntRange(1, 140).Draw(rt, "n"), Spread: rapid.Bool().Draw(rt, "spread")}
		g := op.Single(o, pack.N32)
		spec := g.Weights[0]
		one := pack.Expert(spec)
		size, err := pack.Bytes(one)
		if err != nil {
			rt.Fatal(err)
		}
		stride := size + 64*int64(rapid.IntRange(0, 3).Draw(rt, "gap"))
		region, err := mem.Alloc(int(stride)*o.Experts, 64)
		if err != nil {
			rt.Fatal(err)
		}
		defer region.Close()
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		values := make([]float32, o.K*o.N)
		weights := make(driver.Weights, o.Experts)
		for e := range weights {
			for i := range values {
				values[i] = float32(rng.NormFloat64())
			}
			weights[e] = driver.Packed{Spec: one, Bytes: region.Bytes()[int64(e)*stride:][:size]}
			if err := drivertest.Pack(weights[e].Bytes, one, values); err != nil {
				rt.Fatal(err)
			}
		}
		run := func(g op.Graph, w driver.Weights, b *driver.Bindings) {
			a, err := compile.New().Compile(t.Context(), g, w, driver.Target{})
			if err != nil {
				rt.Fatal(err)
			}
			var exe driver.Executable
			m.do(func() {
				if exe, err = m.p.Load(t.Context(), a, w); err == nil {
					_, err = m.p.Run(exe, b)
				}
			})
			if err != nil {
				rt.Fatal(err)
			}
			exe.Close()
		}
		b := bindings(t, m.p, g, 0)
		fill(g, b, rng.Uint64())
		whole := driver.Packed{Spec: spec, Bytes: region.Bytes()[:int64(o.Experts-1)*stride+size], Stride: stride}
		run(g, driver.Weights{whole}, b)
		ids := b.In[len(b.In)-1].Bytes()
		chosen := func(row int) int { return int(binary.LittleEndian.Uint32(ids[4*row:])) }

		// The products of all rows of the activations with every expert.
		dense := op.Single(op.Op{Kind: op.MatMul, Scheme: o.Scheme, M: g.Inputs[0].Rows, K: o.K, N: o.N}, pack.N32)
		for e := range weights {
			d := bindings(t, m.p, dense, 0)
			for i := range d.In {
				copy(d.In[i].Bytes(), b.In[i].Bytes())
			}
			run(dense, weights[e:e+1], d)
			for row := range o.Rows() {
				from := row
				if o.Spread {
					from = row / o.Fan
				}
				if chosen(row) != e {
					continue
				}
				got, want := b.Out[0].Bytes()[4*row*o.N:][:4*o.N], d.Out[0].Bytes()[4*from*o.N:][:4*o.N]
				if !bytes.Equal(got, want) {
					rt.Fatalf("%s: row %d differs from its product with expert %d", o.Key(), row, e)
				}
			}
		}
	})
}

// Layers of two classes rotate in turn, and the length of the sequence changes the angles of one position:
// a table kept from an earlier call must not answer for another rotation.
func TestRotationsInTurn(t *testing.T) {
	p, do := processor(t, driver.Config{Select: selectors(t)[0]})
	base := op.Op{Kind: op.Rope, M: 4, Heads: 2, KVHeads: 1, HeadDim: 8}
	with := func(change func(o *op.Op)) op.Op { o := base; change(&o); return o }
	var exes []driver.Executable
	var graphs []op.Graph
	for _, o := range []op.Op{
		base, with(func(o *op.Op) { o.Amplitude = 1.5 }), with(func(o *op.Op) { o.RotaryDim = 4 }), with(func(o *op.Op) { o.LongFrom, o.LongAmplitude = 20, 0.5 }), with(func(o *op.Op) { o.LongFrom, o.NTK = 20, 3 }),
		with(func(o *op.Op) { o.LongFrom = 20 }),
	} {
		g := op.Single(o, "")
		exe, err := load(t, p, g)
		if err != nil {
			t.Fatal(err)
		}
		exes, graphs = append(exes, exe), append(graphs, g)
	}
	b := bindings(t, p, graphs[0], 0) // of all of them
	run := func(i, pos, seq int) string {
		fill(graphs[i], b, 7)
		b.Scalars.Pos, b.Scalars.Seq = pos, seq
		var err error
		do(func() { _, err = p.Run(exes[i], b) })
		if err != nil {
			t.Fatal(err)
		}
		return string(b.Out[0].Bytes())
	}
	first, seen := map[string]string{}, map[string]string{}
	for _, seq := range []int{20, 21, 50} {
		for _, pos := range []int{3, 9} {
			for i := range exes {
				got := run(i, pos, seq)
				first[fmt.Sprint(i, pos, seq)] = got
				name := fmt.Sprintf("rotation %d at %d of %d", i, pos, seq)
				if i < 3 { // they do not depend on the length
					name = fmt.Sprintf("rotation %d at %d", i, pos)
				} else if seq <= 20 || i != 4 {
					name = fmt.Sprintf("rotation %d at %d long %v", i, pos, seq > 20)
				}
				if old, ok := seen[name]; ok && old != got {
					t.Errorf("%s depends on what ran before", name)
				}
				seen[name] = got
			}
		}
	}
	// In every order: the same rotation at other positions and lengths, another one in between.
	rng := rand.New(rand.NewPCG(1, 1))
	i, pos, seq := 0, 3, 20
	for range 2000 {
		switch rng.IntN(4) {
		case 0:
			i = rng.IntN(len(exes))
		case 1:
			pos = 3 + 6*rng.IntN(2)
		case 2:
			seq = []int{20, 21, 50}[rng.IntN(3)]
		case 3:
			b.Scalars.Rows = 1 + rng.IntN(4)
		}
		used := b.Scalars.Rows * b.Out[0].Cols * 4
		if run(i, pos, seq)[:used] != first[fmt.Sprint(i, pos, seq)][:used] {
			t.Fatalf("rotation %d at %d of %d depends on what ran before", i, pos, seq)
		}
	}
	distinct := map[string]bool{}
	for _, got := range seen {
		distinct[got] = true
	}
	// All differ, but those for short sequences of rotations 3 to 5 are rotation 0.
	if len(distinct) != len(seen)-6 {
		t.Errorf("%d different results of %d rotations", len(distinct), len(seen))
	}
	b.Scalars.Pos, b.Scalars.Seq = 5, 5
	var err error
	do(func() { _, err = p.Run(exes[3], b) })
	if err == nil || !strings.Contains(err.Error(), "sequence of 5 positions") {
		t.Errorf("a call beyond its sequence: %v", err)
	}
}

func TestOpenSelects(t *testing.T) {
	d := host.New()
	devices, err := d.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first := devices[0].Select
	_, err = d.Open(t.Context(), driver.Config{Select: "4711"})
	if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(strings.Join(diag.HintsOf(err), "\n"), first) {
		t.Errorf("unknown core: %v, hints %q", err, diag.HintsOf(err))
	}
	for _, sel := range []string{first + "-" + first, "0" + first, " " + first, first + "-", first + "," + first, "-" + first} {
		if _, err := d.Open(t.Context(), driver.Config{Select: sel}); err == nil {
			t.Errorf("selector %q was accepted", sel)
		}
	}
	_, err = d.Open(t.Context(), driver.Config{Select: first, Options: map[string]string{"kernels": "mmx"}})
	if err == nil || !strings.Contains(strings.Join(diag.HintsOf(err), "\n"), "portable") {
		t.Errorf("unknown kernels: %v, hints %q", err, diag.HintsOf(err))
	}
	t.Setenv(kernel.EnvVar, "mmx")
	if _, err = d.Open(t.Context(), driver.Config{Select: first}); err == nil || !strings.Contains(err.Error(), kernel.EnvVar) {
		t.Errorf("unknown kernels in the environment: %v", err)
	}
	if p, err := d.Open(t.Context(), driver.Config{Select: first, Options: map[string]string{"kernels": "portable"}}); err != nil {
		t.Errorf("an explicit choice must win over the environment: %v", err)
	} else {
		p.Close()
	}
}

// Close during a call waits for it.
func TestCloseWhileRunning(t *testing.T) {
	for _, sel := range selectors(t) {
		g := op.Single(op.Op{Kind: op.MatMul, M: 64, K: 512, N: 512, Scheme: op.A32W32}, pack.N32)
		p, do := processor(t, driver.Config{Select: sel, Options: map[string]string{"kernels": "portable"}})
		exe, err := load(t, p, g)
		if err != nil {
			t.Fatal(err)
		}
		b := bindings(t, p, g, 0)
		started, closed := make(chan struct{}), make(chan error)
		go func() { <-started; closed <- p.Close() }()
		do(func() {
			if _, err := p.Run(exe, b); err != nil {
				t.Error(err)
			}
			close(started)
			for range 10000 {
				if _, err := p.Run(exe, b); err != nil {
					return
				}
			}
			t.Error("the processor was never closed")
		})
		if err := <-closed; err != nil {
			t.Error(err)
		}
	}
}

// Views may cover just the rows in use.
func TestShortViews(t *testing.T) {
	g := op.Single(op.Op{Kind: op.Add, M: 8, N: 16}, "")
	p, do := processor(t, driver.Config{Select: selectors(t)[0]})
	exe, err := load(t, p, g)
	if err != nil {
		t.Fatal(err)
	}
	b := bindings(t, p, g, 0)
	for _, v := range []*driver.View{&b.In[0], &b.In[1], &b.Out[0]} {
		v.Rows = 3
	}
	b.Scalars.Rows = 3
	do(func() { _, err = p.Run(exe, b) })
	if err != nil {
		t.Error(err)
	}
	b.Scalars.Rows = 4
	do(func() { _, err = p.Run(exe, b) })
	if err == nil {
		t.Error("a view of 3 rows was accepted for 4")
	}
}

func TestAttachedAndRefused(t *testing.T) {
	p, do := processor(t, driver.Config{Select: selectors(t)[0]})
	var err error
	do(func() { err = p.Attach() })
	if err == nil {
		t.Error("a second attach was accepted")
	}
	q, err := host.New().Open(t.Context(), driver.Config{Select: selectors(t)[0]})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	g := op.Single(op.Op{Kind: op.Add, M: 1, N: 4}, "")
	exe, err := load(t, q, g)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Run(exe, bindings(t, q, g, 0)); err == nil || !strings.Contains(err.Error(), "attached") {
		t.Errorf("run before attach: %v", err)
	}
}

// Artifacts are refused with the name of what is wrong, before anything large is allocated.
func TestLoadRefuses(t *testing.T) {
	p, _ := processor(t, driver.Config{Select: selectors(t)[0]})
	norm := `{"inputs":[{"name":"x","type":"f32","rows":2,"cols":8}],"weights":[{"name":"gain","k":1,"n":8,"scheme":"f32","layout":"rows"}],` +
		`"outputs":[{"name":"y","type":"f32","rows":2,"cols":8}],"nodes":[{"op":{"kind":"norm","m":2,"n":8},"in":["x"],"w":["gain"],"out":["y"]}]}`
	r, err := mem.Alloc(64, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	gain := op.WeightSpec{Name: "gain", K: 1, N: 8, Scheme: "f32", Layout: op.RowsLayout}
	weights := driver.Weights{{Spec: gain, Bytes: r.Bytes()[:32]}}
	if _, err := p.Load(t.Context(), driver.Artifact{Driver: "host", Code: []byte(norm)}, weights); err != nil {
		t.Fatal(err)
	}
	mixed := op.Single(op.Op{Kind: op.Copy, M: 1, N: 4}, "")
	mixed.Outputs[0].Type = op.I32
	twice := op.Single(op.Op{Kind: op.Add, M: 1, N: 4}, "")
	twice.Temps = twice.Inputs[:1]
	wide := op.Single(op.Op{Kind: op.MatMul, M: 1, K: 1 << 20, N: 1, Scheme: op.A8TQ8C}, pack.N32)
	huge := op.Single(op.Op{Kind: op.Rope, M: 1 << 24, Heads: 1, KVHeads: 1, HeadDim: 1 << 20}, "")
	large := op.Single(op.Op{Kind: op.Copy, M: 1 << 24, N: 1 << 24}, "")
	large.Temps = []op.Value{{Name: "t", Type: op.F32, Rows: 1 << 24, Cols: 1 << 24}}
	attention := op.Single(op.Op{Kind: op.Attention, M: 1, Heads: 1 << 22, KVHeads: 1, HeadDim: 1, Context: 1, KV: op.F32}, "")
	gain2 := op.Single(op.Op{Kind: op.Norm, M: 1, N: 8, Eps: 1e300}, "")
	mixedKV := op.Single(op.Op{Kind: op.KVAppend, M: 1, Heads: 2, KVHeads: 1, HeadDim: 4, KV: op.F32}, "")
	second := op.Single(op.Op{Kind: op.KVAppend, M: 1, Heads: 2, KVHeads: 1, HeadDim: 4, KV: op.F16}, "")
	mixedKV.Nodes = append(mixedKV.Nodes, second.Nodes...)
	for what, c := range map[string]struct {
		code string
		want string
	}{
		"an unknown operator":      {strings.Replace(norm, "norm", "conv", 1), `"conv"`},
		"an unknown key":           {strings.Replace(norm, `"m":2,`, `"m":2,"q":1,`, 1), `"q"`},
		"spaces":                   {norm[:1] + " " + norm[1:], "canonical"},
		"a doubled key":            {strings.Replace(norm, `"m":2,`, `"m":2,"m":2,`, 1), "canonical"},
		"an unknown value":         {strings.Replace(norm, `"in":["x"]`, `"in":["z"]`, 1), `"z"`},
		"an unknown type":          {strings.ReplaceAll(norm, `"type":"f32"`, `"type":"f99"`), "f99"},
		"no nodes":                 {`{}`, "no nodes"},
		"a copy between types":     {"", "one type"},
		"a value listed twice":     {"", "twice"},
		"a long 8-bit reduction":   {"", "k = 1048576"},
		"many angles":              {"", "angles"},
		"large temporary values":   {"", "temporary"},
		"a wide attention":         {"", "scratch"},
		"a hostile eps":            {"", "eps"},
		"caches of two types":      {"", "cache"},
		"an artifact of 2 MiB":     {strings.Repeat("[", 2<<20), "want at most"},
		"deeply nested JSON":       {strings.Repeat("[", 1<<19), "parse graph"},
		"a number that is no int":  {strings.Replace(norm, `"rows":2`, `"rows":2.5`, 1), "2.5"},
		"a number beyond int":      {strings.Replace(norm, `"rows":2`, `"rows":99999999999999999999`, 1), "99999999999999999999"},
		"a node without operators": {`{"nodes":[{"op":{"kind":"","m":1}}]}`, "unknown operator"},
	} {
		g := map[string]op.Graph{"a copy between types": mixed, "a value listed twice": twice, "a long 8-bit reduction": wide, "many angles": huge,
			"large temporary values": large, "a wide attention": attention, "a hostile eps": gain2, "caches of two types": mixedKV}[what]
		code := []byte(c.code)
		w := weights
		if len(g.Nodes) > 0 {
			var err error
			if code, err = json.Marshal(&g); err != nil {
				t.Fatal(err)
			}
			w = nil
			for _, spec := range g.Weights {
				size, err := pack.Bytes(spec)
				if err != nil {
					t.Fatal(err)
				}
				m, err := mem.Alloc(int(size), 64)
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()
				w = append(w, driver.Packed{Spec: spec, Bytes: m.Bytes()})
			}
		}
		_, err := p.Load(t.Context(), driver.Artifact{Driver: "host", Code: code}, w)
		if err == nil || !strings.Contains(err.Error(), c.want) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v (class %d), want it to mention %q", what, err, diag.ClassOf(err), c.want)
		}
	}
	if _, err := p.Load(t.Context(), driver.Artifact{Driver: "host", Code: []byte(norm)}, driver.Weights{{Spec: gain, Bytes: r.Bytes()[4:36]}}); err == nil {
		t.Error("an unaligned weight was accepted")
	}
}

// FuzzParseGraph: what is accepted encodes to the same bytes, and is loaded or refused without a panic.
func FuzzParseGraph(f *testing.F) {
	seeds := 0
	for _, g := range everyOp() {
		code, err := json.Marshal(&g)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(code)
		seeds++
	}
	if seeds == 0 {
		f.Fatal("no seeds")
	}
	p, err := host.New().Open(f.Context(), driver.Config{Select: selectors(f)[0]})
	if err != nil {
		f.Fatal(err)
	}
	defer p.Close()
	f.Fuzz(func(t *testing.T, code []byte) {
		g, err := driver.ParseGraph(code)
		if err != nil {
			return
		}
		if again, err := json.Marshal(&g); err != nil || !bytes.Equal(again, code) {
			t.Fatalf("accepted %q, which encodes as %q (%v)", code, again, err)
		}
		var w driver.Weights
		for _, spec := range g.Weights {
			size, err := pack.Bytes(spec)
			if err != nil || size > 1<<20 {
				return
			}
			r, err := mem.Alloc(int(size), 64)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			w = append(w, driver.Packed{Spec: spec, Bytes: r.Bytes(), Stride: size / int64(max(1, spec.Experts))})
		}
		if exe, err := p.Load(t.Context(), driver.Artifact{Driver: "host", Code: code}, w); err == nil {
			exe.Close()
		}
	})
}

// BenchmarkMatMul shows what a whole call reaches, on one core and on all.
func BenchmarkMatMul(b *testing.B) {
	for _, sel := range selectors(b) {
		for _, scheme := range op.Schemes {
			if scheme.Scales() > 1 {
				continue
			}
			for _, m := range []int{1, 128} {
				g := op.Single(op.Op{Kind: op.MatMul, M: m, K: 2048, N: 2048, Scheme: scheme}, pack.N32)
				b.Run(fmt.Sprintf("cores=%s/%s/m=%d", sel, strings.ReplaceAll(string(scheme), "/", ":"), m), func(b *testing.B) {
					p, do := processor(b, driver.Config{Select: sel})
					exe, err := load(b, p, g)
					if err != nil {
						b.Fatal(err)
					}
					bind := bindings(b, p, g, 0)
					do(func() {
						for b.Loop() {
							if _, err = p.Run(exe, bind); err != nil {
								b.Error(err)
								return
							}
						}
					})
					b.ReportMetric(2*float64(m)*2048*2048*float64(b.N)/b.Elapsed().Seconds()/1e9, "GOP/s")
				})
			}
		}
	}
}

// BenchmarkExpertMatMul compares with a product of as many multiplications.
func BenchmarkExpertMatMul(b *testing.B) {
	const k, n, experts, fan = 2048, 1408, 16, 2
	for _, sel := range selectors(b) {
		for _, m := range []int{1, 256} {
			for _, o := range []op.Op{
				{Kind: op.ExpertMatMul, M: m, Fan: fan, Experts: experts, K: k, N: n, Scheme: op.A8TQ8C, Spread: true},
				{Kind: op.MatMul, M: m * fan, K: k, N: n, Scheme: op.A8TQ8C},
			} {
				b.Run(fmt.Sprintf("cores=%s/m=%d/%s", sel, m, o.Kind), func(b *testing.B) {
					g := op.Single(o, pack.N32)
					p, do := processor(b, driver.Config{Select: sel})
					exe, err := load(b, p, g)
					if err != nil {
						b.Fatal(err)
					}
					bind := bindings(b, p, g, 0)
					fill(g, bind, 5)
					do(func() {
						for b.Loop() {
							if _, err = p.Run(exe, bind); err != nil {
								b.Error(err)
								return
							}
						}
					})
					b.ReportMetric(2*float64(m)*fan*k*n*float64(b.N)/b.Elapsed().Seconds()/1e9, "GOP/s")
				})
			}
		}
	}
}

// BenchmarkCall is the cost of a call that computes almost nothing.
func BenchmarkCall(b *testing.B) {
	p, do := processor(b, driver.Config{Select: selectors(b)[0]})
	g := op.Single(op.Op{Kind: op.Add, M: 1, N: 16}, "")
	exe, err := load(b, p, g)
	if err != nil {
		b.Fatal(err)
	}
	bind := bindings(b, p, g, 0)
	do(func() {
		for b.Loop() {
			if _, err = p.Run(exe, bind); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// expertSchemes are those that experts have too.
var expertSchemes = slices.DeleteFunc(slices.Clone(op.Schemes), func(s op.Scheme) bool { return !s.Experts() })
