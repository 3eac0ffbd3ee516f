package host_test

import (
	"bytes"
	"context"
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

// The conformance suite passes on one core with every kernel set, and on all cores with the best one. Short tests try
// the best alone, and so do those under the race detector, which has nothing to find in one lane's arithmetic. A part of
// the slow tests tries all sets in its part of the shapes.
func TestConformance(t *testing.T) {
	all := selectors(t)
	last := len(all) - 1
	few := drivertest.Race || testing.Short() && os.Getenv(require.Part) == ""
	for i, sel := range all {
		for _, set := range kernel.Sets() {
			best := set.Name == kernel.Best().Name
			if !best && (i > 0 || few) {
				continue
			}
			if best && testing.Short() && i < last {
				continue // the last has workers besides
			}
			t.Run(fmt.Sprintf("%s %s", sel, set.Name), func(t *testing.T) {
				conform(t, sel, set.Name, best && i < last, i == 0)
			})
		}
	}
}

// conform runs the suite with one set of kernels, sampled or whole. With another, it has also a second processor if
// there is a second core.
func conform(t *testing.T, sel, kernels string, sampled, another bool) {
	options := map[string]string{"kernels": kernels}
	factory := drivertest.Factory{
		Driver:   host.New(),
		Compiler: compile.New(),
		Config:   driver.Config{Select: sel, Options: options},
		Sampled:  sampled,
	}
	if kernels == "reference" {
		factory.Tolerance = 1.3e-7 // one rounding of the result
	}

	devices, err := factory.Driver.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if another && len(devices) > 1 {
		core := devices[1].Cores[0]
		factory.Others = []driver.Config{{Select: strconv.Itoa(core), Options: options}}
	}
	drivertest.Run(t, factory)
}

// processor opens a processor on a thread of its own and returns a function that runs others there.
func processor(t testing.TB, c driver.Config) (p driver.Processor, do func(func())) {
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
	do = func(f func()) {
		done := make(chan struct{})
		calls <- func() {
			defer close(done)
			f()
		}
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

// fill gives the inputs of g numbers, and ids below the number of rows or experts that they choose from.
func fill(g op.Graph, b *driver.Bindings, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 3))
	choices := choicesOf(g)
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

// choicesOf returns for each input of ids how many rows or experts its ids choose from.
func choicesOf(g op.Graph) map[string]int {
	choices := map[string]int{}
	for _, n := range g.Nodes {
		for i, v := range n.Op.Sig().In {
			if v.Name != "ids" {
				continue
			}
			choices[n.In[i]] = n.Op.K
			if n.Op.Kind == op.ExpertMatMul {
				choices[n.In[i]] = n.Op.Experts
			}
		}
	}
	return choices
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
	graphs := map[string]op.Graph{}
	for _, o := range []op.Op{
		{Kind: op.Embed, M: m, K: 50, N: 512, Table: op.F32},
		{Kind: op.Embed, M: m, K: 50, N: 512, Table: op.BF16},
		{Kind: op.Embed, M: m, K: 50, N: 512, Table: op.F16, Scale: 22.6},
		{Kind: op.SelectRow, M: m, N: 512},
		{Kind: op.Norm, M: m, N: 512, Eps: 1e-5},
		{Kind: op.LayerNorm, M: m, N: 512, Eps: 1e-5},
		{Kind: op.QuantRows, M: m, N: 512},
		{Kind: op.QuantRows, M: m, N: 512, Fan: 3},
		{Kind: op.MatMul, M: m, K: 512, N: 512, Scheme: op.A32W32},
		{Kind: op.MatMul, M: m, K: 512, N: 512, Scheme: op.A8TQ8C},
		{Kind: op.MatMul, M: m, K: 512, N: 512, Scheme: op.A8TQ8C, Bias: true},
		{Kind: op.MatMul, M: m, K: 512, N: 512, Scheme: op.A8TQ4B32},
		{Kind: op.ExpertMatMul, M: m, Fan: 4, Experts: 6, K: 512, N: 544, Scheme: op.A32W32},
		{Kind: op.ExpertMatMul, M: m, Fan: 4, Experts: 6, K: 512, N: 544, Scheme: op.A8TQ8C, Spread: true},
		{Kind: op.ExpertMatMul, M: m, Fan: 4, Experts: 100, K: 64, N: 544, Scheme: op.A8TQ4B32, Spread: true},
		{Kind: op.ExpertMatMul, M: m, Fan: 4, Experts: 1, K: 512, N: 20, Scheme: op.A8TQ4B32},
		{Kind: op.Route, M: m, Experts: 60, Fan: 6, Router: op.RouteSoftmax},
		{Kind: op.Route, M: m, Experts: 16, Fan: 2, Router: op.RouteSparseMixer, Jitter: 0.01},
		{Kind: op.Combine, M: m, N: 512, Fan: 4},
		{Kind: op.GLU, M: m, N: 512, Interleave: 16, Act: op.SiLU},
		{Kind: op.GLU, M: m, N: 512, Interleave: 32, Act: op.GELUTanh, Fan: 2},
		{Kind: op.Activate, M: m, N: 512, Act: op.GELU},
		{Kind: op.Activate, M: m, N: 512, Act: op.GELUTanh, Fan: 2},
		{Kind: op.Gate, M: m, N: 512},
		{Kind: op.Softcap, M: m, N: 512, Cap: 30},
		{Kind: op.Add, M: m, N: 512},
		{Kind: op.Copy, M: m, N: 512},
	} {
		graphs[o.Key()] = op.Single(o, pack.N32)
	}

	heads := func(kind op.Kind, change func(*op.Op)) op.Graph {
		o := op.Op{Kind: kind, M: m, Heads: 8, KVHeads: 2, HeadDim: 64}
		if change != nil {
			change(&o)
		}
		return op.Single(o, "")
	}
	graphs["rope"] = heads(op.Rope, nil)
	graphs["rope ntk"] = heads(op.Rope, func(o *op.Op) { o.RotaryDim, o.LongFrom, o.NTK = 32, 100, 4 })
	graphs["qk_norm"] = heads(op.QKNorm, nil)
	graphs["qk_norm joint"] = heads(op.QKNorm, func(o *op.Op) { o.Joint = true })
	for _, kv := range []op.Type{op.F32, op.F16} {
		name := string(kv)
		graphs["kv_append "+name] = heads(op.KVAppend, func(o *op.Op) { o.KV = kv })
		graphs["attention "+name] = heads(op.Attention, func(o *op.Op) { o.KV, o.Context = kv, 64 })
		graphs["attention window "+name] = heads(op.Attention, func(o *op.Op) {
			o.KV, o.Context = kv, 64
			o.Window, o.Cap, o.Scale = 30, 20, 0.2
		})
	}
	return graphs
}

// A call allocates nothing, whatever the operator.
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

			// testing.AllocsPerRun would leave one thread for all goroutines, and the helpers need theirs.
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

// An ExpertMatMul has the bits of one MatMul per expert: each row is that of the product with its expert's weight. This
// holds in every scheme and kernel set.
func TestExpertMatMulIsMatMuls(t *testing.T) {
	var machines []machine
	for _, sel := range selectors(t) {
		for _, set := range kernel.Sets() {
			p, do := processor(t, driver.Config{Select: sel, Options: map[string]string{"kernels": set.Name}})
			machines = append(machines, machine{p, do})
		}
	}

	rapid.Check(t, func(rt *rapid.T) {
		m := rapid.SampledFrom(machines).Draw(rt, "machine")
		o := op.Op{
			Kind:    op.ExpertMatMul,
			Scheme:  rapid.SampledFrom(expertSchemes).Draw(rt, "scheme"),
			M:       rapid.IntRange(1, 40).Draw(rt, "m"),
			Fan:     rapid.IntRange(1, 8).Draw(rt, "fan"),
			Experts: rapid.IntRange(1, 16).Draw(rt, "experts"),
			K:       rapid.IntRange(1, 100).Draw(rt, "k"),
			N:       rapid.IntRange(1, 140).Draw(rt, "n"),
			Spread:  rapid.Bool().Draw(rt, "spread"),
		}
		gap := 64 * rapid.IntRange(0, 3).Draw(rt, "gap")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		whole, experts := packExperts(t, rng, o, gap)

		g := op.Single(o, pack.N32)
		b := bindings(t, m.p, g, 0)
		fill(g, b, rng.Uint64())
		m.run(t.Context(), rt, g, driver.Weights{whole}, b)

		// The products of all rows of the activations with every expert.
		dense := op.Single(op.Op{Kind: op.MatMul, Scheme: o.Scheme, M: g.Inputs[0].Rows, K: o.K, N: o.N}, pack.N32)
		ids := b.In[len(b.In)-1].Bytes()
		for expert := range experts {
			d := bindings(t, m.p, dense, 0)
			for i := range d.In {
				copy(d.In[i].Bytes(), b.In[i].Bytes())
			}
			m.run(t.Context(), rt, dense, experts[expert:expert+1], d)

			for row := range o.Rows() {
				if chosen := binary.LittleEndian.Uint32(ids[4*row:]); int(chosen) != expert {
					continue
				}
				from := row
				if o.Spread {
					from = row / o.Fan
				}
				got := b.Out[0].Bytes()[4*row*o.N:][:4*o.N]
				want := d.Out[0].Bytes()[4*from*o.N:][:4*o.N]
				if !bytes.Equal(got, want) {
					rt.Fatalf("%s: row %d differs from its product with expert %d", o.Key(), row, expert)
				}
			}
		}
	})
}

// machine is a processor and the thread that it is attached to.
type machine struct {
	p  driver.Processor
	do func(func())
}

// run compiles, loads and runs a graph once.
func (m machine) run(ctx context.Context, t rapid.TB, g op.Graph, w driver.Weights, b *driver.Bindings) {
	t.Helper()
	a, err := compile.New().Compile(ctx, g, w, driver.Target{})
	if err != nil {
		t.Fatal(err)
	}

	var exe driver.Executable
	m.do(func() {
		if exe, err = m.p.Load(ctx, a, w); err == nil {
			_, err = m.p.Run(exe, b)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	exe.Close()
}

// packExperts packs random weights for the experts of an operator, with so many bytes between two of them. It returns
// them as one weight, and one by one.
func packExperts(t *testing.T, rng *rand.Rand, o op.Op, gap int) (whole driver.Packed, experts driver.Weights) {
	t.Helper()
	spec := op.Single(o, pack.N32).Weights[0]
	one := pack.Expert(spec)
	size, err := pack.Bytes(one)
	if err != nil {
		t.Fatal(err)
	}
	stride := size + int64(gap)
	region, err := mem.Alloc(int(stride)*o.Experts, 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { region.Close() })

	values := make([]float32, o.K*o.N)
	for e := range o.Experts {
		for i := range values {
			values[i] = float32(rng.NormFloat64())
		}
		raw := region.Bytes()[int64(e)*stride:][:size]
		if err := drivertest.Pack(raw, one, values); err != nil {
			t.Fatal(err)
		}
		experts = append(experts, driver.Packed{Spec: one, Bytes: raw})
	}
	all := region.Bytes()[:int64(o.Experts-1)*stride+size]
	return driver.Packed{Spec: spec, Bytes: all, Stride: stride}, experts
}

// Layers of two classes rotate in turn, and the length of the sequence changes the angles of one position:
// a table kept from an earlier call must not answer for another rotation.
func TestRotationsInTurn(t *testing.T) {
	p, do := processor(t, driver.Config{Select: selectors(t)[0]})
	base := op.Op{Kind: op.Rope, M: 4, Heads: 2, KVHeads: 1, HeadDim: 8}
	with := func(change func(o *op.Op)) op.Op {
		o := base
		change(&o)
		return o
	}
	const ntk = 4 // of the rotations below, the one whose angles depend on the length itself
	var exes []driver.Executable
	var graphs []op.Graph
	for _, o := range []op.Op{
		base,
		with(func(o *op.Op) { o.Amplitude = 1.5 }),
		with(func(o *op.Op) { o.RotaryDim = 4 }),
		with(func(o *op.Op) { o.LongFrom, o.LongAmplitude = 20, 0.5 }),
		with(func(o *op.Op) { o.LongFrom, o.NTK = 20, 3 }),
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

	first := map[string]string{} // results by rotation, position and length
	seen := map[string]string{}  // results by what they depend on
	for _, seq := range []int{20, 21, 50} {
		for _, pos := range []int{3, 9} {
			for i := range exes {
				got := run(i, pos, seq)
				first[fmt.Sprint(i, pos, seq)] = got
				var name string
				switch long := seq > 20; {
				case i < 3: // without a limit, they do not depend on the length
					name = fmt.Sprintf("rotation %d at %d", i, pos)
				case i == ntk && long:
					name = fmt.Sprintf("rotation %d at %d of %d", i, pos, seq)
				default:
					name = fmt.Sprintf("rotation %d at %d long %v", i, pos, long)
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

// A processor is opened by the selector of a device only. What is unknown is refused with the known ones as a hint.
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
	malformed := []string{first + "-" + first, "0" + first, " " + first, first + "-", first + "," + first, "-" + first}
	for _, sel := range malformed {
		if _, err := d.Open(t.Context(), driver.Config{Select: sel}); err == nil {
			t.Errorf("selector %q was accepted", sel)
		}
	}

	mmx := map[string]string{"kernels": "mmx"}
	_, err = d.Open(t.Context(), driver.Config{Select: first, Options: mmx})
	if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(strings.Join(diag.HintsOf(err), "\n"), "portable") {
		t.Errorf("unknown kernels: %v of class %v, hints %q", err, diag.ClassOf(err), diag.HintsOf(err))
	}
}

// The environment chooses kernels where the options name none.
func TestKernelsByEnvironment(t *testing.T) {
	d := host.New()
	first := selectors(t)[0]
	t.Setenv(kernel.EnvVar, "mmx")

	_, err := d.Open(t.Context(), driver.Config{Select: first})
	if err == nil || !strings.Contains(err.Error(), kernel.EnvVar) {
		t.Errorf("unknown kernels in the environment: %v", err)
	}

	portable := map[string]string{"kernels": "portable"}
	p, err := d.Open(t.Context(), driver.Config{Select: first, Options: portable})
	if err != nil {
		t.Fatalf("an explicit choice must win over the environment: %v", err)
	}
	p.Close()
}

// Close during a call waits for it. Later calls fail.
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
		go func() {
			<-started
			closed <- p.Close()
		}()
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

// Views may cover just the rows in use, and no fewer.
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

// A processor is attached once, and runs nothing before.
func TestAttachedAndRefused(t *testing.T) {
	attached, do := processor(t, driver.Config{Select: selectors(t)[0]})
	var err error
	do(func() { err = attached.Attach() })
	if err == nil {
		t.Error("a second attach was accepted")
	}

	fresh, err := host.New().Open(t.Context(), driver.Config{Select: selectors(t)[0]})
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close()
	g := op.Single(op.Op{Kind: op.Add, M: 1, N: 4}, "")
	exe, err := load(t, fresh, g)
	if err != nil {
		t.Fatal(err)
	}
	_, err = fresh.Run(exe, bindings(t, fresh, g, 0))
	if err == nil || !strings.Contains(err.Error(), "attached") {
		t.Errorf("run before attach: %v", err)
	}
}

// normCode is the encoding of a small graph, normGain the weight that it reads.
const normCode = `{"inputs":[{"name":"x","type":"f32","rows":2,"cols":8}],` +
	`"weights":[{"name":"gain","k":1,"n":8,"scheme":"f32","layout":"rows"}],` +
	`"outputs":[{"name":"y","type":"f32","rows":2,"cols":8}],` +
	`"nodes":[{"op":{"kind":"norm","m":2,"n":8},"in":["x"],"w":["gain"],"out":["y"]}]}`

var normGain = op.WeightSpec{Name: "gain", K: 1, N: 8, Scheme: "f32", Layout: op.RowsLayout}

// aligned is memory for n bytes that begins at a multiple of 64.
func aligned(t testing.TB, n int64) []byte {
	t.Helper()
	region, err := mem.Alloc(int(n), 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { region.Close() })
	return region.Bytes()
}

// A graph that does not parse is refused with what is wrong in it, and a weight that is not aligned.
func TestLoadRefusesCode(t *testing.T) {
	p, _ := processor(t, driver.Config{Select: selectors(t)[0]})
	memory := aligned(t, 64)
	weights := driver.Weights{{Spec: normGain, Bytes: memory[:32]}}
	norm := driver.Artifact{Driver: "host", Code: []byte(normCode)}
	if _, err := p.Load(t.Context(), norm, weights); err != nil {
		t.Fatal(err)
	}

	replaced := func(old, new string) string { return strings.Replace(normCode, old, new, 1) }
	cases := []struct{ name, code, want string }{
		{"an unknown operator", replaced("norm", "conv"), `"conv"`},
		{"an unknown key", replaced(`"m":2,`, `"m":2,"q":1,`), `"q"`},
		{"spaces", normCode[:1] + " " + normCode[1:], "canonical"},
		{"a doubled key", replaced(`"m":2,`, `"m":2,"m":2,`), "canonical"},
		{"an unknown value", replaced(`"in":["x"]`, `"in":["z"]`), `"z"`},
		{"an unknown type", strings.ReplaceAll(normCode, `"type":"f32"`, `"type":"f99"`), "f99"},
		{"no nodes", `{}`, "no nodes"},
		{"an artifact of 2 MiB", strings.Repeat("[", 2<<20), "want at most"},
		{"deeply nested JSON", strings.Repeat("[", 1<<19), "parse graph"},
		{"a number that is no int", replaced(`"rows":2`, `"rows":2.5`), "2.5"},
		{"a number beyond int", replaced(`"rows":2`, `"rows":99999999999999999999`), "99999999999999999999"},
		{"a node without operators", `{"nodes":[{"op":{"kind":"","m":1}}]}`, "unknown operator"},
	}
	for _, c := range cases {
		_, err := p.Load(t.Context(), driver.Artifact{Driver: "host", Code: []byte(c.code)}, weights)
		checkInputError(t, c.name, err, c.want)
	}

	unaligned := driver.Weights{{Spec: normGain, Bytes: memory[4:36]}}
	if _, err := p.Load(t.Context(), norm, unaligned); err == nil {
		t.Error("an unaligned weight was accepted")
	}
}

// A graph beyond what the processor can do is refused with what is wrong, before anything large is allocated.
func TestLoadRefusesGraphs(t *testing.T) {
	p, _ := processor(t, driver.Config{Select: selectors(t)[0]})
	single := func(o op.Op) op.Graph { return op.Single(o, pack.N32) }

	copyBetweenTypes := single(op.Op{Kind: op.Copy, M: 1, N: 4})
	copyBetweenTypes.Outputs[0].Type = op.I32
	listedTwice := single(op.Op{Kind: op.Add, M: 1, N: 4})
	listedTwice.Temps = listedTwice.Inputs[:1]
	largeTemps := single(op.Op{Kind: op.Copy, M: 1 << 24, N: 1 << 24})
	largeTemps.Temps = []op.Value{{Name: "t", Type: op.F32, Rows: 1 << 24, Cols: 1 << 24}}
	twoCaches := single(op.Op{Kind: op.KVAppend, M: 1, Heads: 2, KVHeads: 1, HeadDim: 4, KV: op.F32})
	ofF16 := single(op.Op{Kind: op.KVAppend, M: 1, Heads: 2, KVHeads: 1, HeadDim: 4, KV: op.F16})
	twoCaches.Nodes = append(twoCaches.Nodes, ofF16.Nodes...)

	cases := []struct {
		name  string
		graph op.Graph
		want  string
	}{
		{"a copy between types", copyBetweenTypes, "one type"},
		{"a value listed twice", listedTwice, "twice"},
		{"a long 8-bit reduction", single(op.Op{Kind: op.MatMul, M: 1, K: 1 << 20, N: 1, Scheme: op.A8TQ8C}), "k = 1048576"},
		{"many angles", single(op.Op{Kind: op.Rope, M: 1 << 24, Heads: 1, KVHeads: 1, HeadDim: 1 << 20}), "angles"},
		{"large temporary values", largeTemps, "temporary"},
		{"a wide attention", single(op.Op{Kind: op.Attention, M: 1, Heads: 1 << 22, KVHeads: 1, HeadDim: 1, Context: 1,
			KV: op.F32}), "scratch"},
		{"a hostile eps", single(op.Op{Kind: op.Norm, M: 1, N: 8, Eps: 1e300}), "eps"},
		{"caches of two types", twoCaches, "cache"},
	}
	for _, c := range cases {
		code, err := json.Marshal(&c.graph)
		if err != nil {
			t.Fatal(err)
		}
		var weights driver.Weights
		for _, spec := range c.graph.Weights {
			size, err := pack.Bytes(spec)
			if err != nil {
				t.Fatal(err)
			}
			weights = append(weights, driver.Packed{Spec: spec, Bytes: aligned(t, size)})
		}

		_, err = p.Load(t.Context(), driver.Artifact{Driver: "host", Code: code}, weights)

		checkInputError(t, c.name, err, c.want)
	}
}

// checkInputError wants an error that calls the input wrong and mentions a text.
func checkInputError(t *testing.T, what string, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) || diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("%s: got %v (class %d), want an input error that mentions %q", what, err, diag.ClassOf(err), want)
	}
}

// A graph that parses encodes to the same bytes, and is loaded or refused without a panic.
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
	const k, n = 2048, 2048
	for _, sel := range selectors(b) {
		for _, scheme := range op.Schemes {
			if scheme.Scales() > 1 {
				continue
			}
			for _, m := range []int{1, 128} {
				product := op.Op{Kind: op.MatMul, M: m, K: k, N: n, Scheme: scheme}
				name := fmt.Sprintf("cores=%s/%s/m=%d", sel, strings.ReplaceAll(string(scheme), "/", ":"), m)
				b.Run(name, func(b *testing.B) {
					benchmarkCalls(b, sel, product)
					b.ReportMetric(2*float64(m)*k*n*float64(b.N)/b.Elapsed().Seconds()/1e9, "GOP/s")
				})
			}
		}
	}
}

// BenchmarkExpertMatMul compares products of experts with a product of as many multiplications.
func BenchmarkExpertMatMul(b *testing.B) {
	const k, n, experts, fan = 2048, 1408, 16, 2
	for _, sel := range selectors(b) {
		for _, m := range []int{1, 256} {
			for _, o := range []op.Op{
				{Kind: op.ExpertMatMul, M: m, Fan: fan, Experts: experts, K: k, N: n, Scheme: op.A8TQ8C, Spread: true},
				{Kind: op.MatMul, M: m * fan, K: k, N: n, Scheme: op.A8TQ8C},
			} {
				b.Run(fmt.Sprintf("cores=%s/m=%d/%s", sel, m, o.Kind), func(b *testing.B) {
					benchmarkCalls(b, sel, o)
					b.ReportMetric(2*float64(m)*fan*k*n*float64(b.N)/b.Elapsed().Seconds()/1e9, "GOP/s")
				})
			}
		}
	}
}

// BenchmarkCall is the cost of a call that computes almost nothing.
func BenchmarkCall(b *testing.B) {
	benchmarkCalls(b, selectors(b)[0], op.Op{Kind: op.Add, M: 1, N: 16})
}

// benchmarkCalls runs an operator on random inputs.
func benchmarkCalls(b *testing.B, sel string, o op.Op) {
	g := op.Single(o, pack.N32)
	p, do := processor(b, driver.Config{Select: sel})
	exe, err := load(b, p, g)
	if err != nil {
		b.Fatal(err)
	}
	operands := bindings(b, p, g, 0)
	fill(g, operands, 5)

	do(func() {
		for b.Loop() {
			if _, err = p.Run(exe, operands); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// expertSchemes are those that experts have too.
var expertSchemes = slices.DeleteFunc(slices.Clone(op.Schemes), func(s op.Scheme) bool { return !s.Experts() })
