package opencl

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/clapi"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/native"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/opencl/kernel"
)

// library is an implementation of OpenCL that is there, with the options that name it.
type library struct {
	name    string
	options map[string]string
}

// libraries are the system's, and Intel's for CPUs where make deps-opencl fetched it. Without any the test is skipped.
func libraries(t testing.TB) (list []library) {
	t.Helper()
	require.Deps()
	if _, err := New().Devices(context.Background()); err == nil {
		list = append(list, library{"system", nil})
	}
	file := filepath.Join(os.Getenv(native.EnvDir), clapi.IntelFolder, clapi.IntelLibrary)
	if _, missing := os.Stat(file); missing == nil && runtime.GOOS == "linux" {
		list = append(list, library{"intel", map[string]string{optLibrary: file}})
	} else if require.Listed("opencl-intel") {
		t.Errorf("%s lists opencl-intel, and %q is not there: make deps-opencl fetches it", require.Env, file)
	}
	if len(list) == 0 {
		require.Skip(t, Name, driver.ErrUnavailable)
	}
	return list
}

// implementations calls a test for the first device of each library.
func implementations(t *testing.T, test func(t *testing.T, library map[string]string)) {
	t.Helper()
	for _, library := range libraries(t) {
		t.Run(library.name, func(t *testing.T) { test(t, library.options) })
	}
}

// Where PoCL must be there, the system's loader finds it. Without a loader Intel's library would stand for both.
func TestPoCLIsThere(t *testing.T) {
	if !require.Listed("pocl") {
		t.Skipf("%s does not list pocl", require.Env)
	}
	require.Deps()
	list, err := devices("")
	if err != nil {
		t.Fatal(err)
	}
	const name = "Portable Computing Language"
	if !slices.ContainsFunc(list.devices, func(f found) bool { return f.Platform.Name == name }) {
		t.Errorf("%q knows no platform %q: apt-get install ocl-icd-libopencl1 pocl-opencl-icd", list.path, name)
	}
}

// with returns options and one more.
func with(library map[string]string, option, value string) map[string]string {
	out := map[string]string{option: value}
	maps.Copy(out, library)
	return out
}

// openFirst opens the first device and attaches the test's goroutine.
func openFirst(t testing.TB, options map[string]string) *processor {
	t.Helper()
	require.Deps()
	opened, err := New().Open(context.Background(), driver.Config{Options: options})
	if errors.Is(err, driver.ErrUnavailable) {
		require.Skip(t, Name, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { opened.Close() })
	if err := opened.Attach(); err != nil {
		t.Fatal(err)
	}
	return opened.(*processor)
}

// artifact compiles a graph; change may replace the sources.
func artifact(t testing.TB, graph op.Graph, change func(source string) string) driver.Artifact {
	t.Helper()
	code, err := kernel.Compile(graph, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	for i := range code.Programs {
		if change != nil {
			code.Programs[i].Source = change(code.Programs[i].Source)
		}
	}
	data, err := code.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return driver.Artifact{Driver: Name, Code: data}
}

// addition is a graph of one sum, with its bindings in memory of the processor.
func addition(t testing.TB, p *processor, change func(source string) string) (driver.Executable, *driver.Bindings) {
	t.Helper()
	operator := op.Op{Kind: op.Add, M: 2, N: 32}
	exe, err := p.Load(context.Background(), artifact(t, op.Single(operator, ""), change), nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &driver.Bindings{Scalars: &driver.Scalars{Rows: 2}}
	for i := range 3 {
		buffer, err := p.Alloc(4 * 64)
		if err != nil {
			t.Fatal(err)
		}
		for j := range 64 {
			binary.LittleEndian.PutUint32(buffer.Bytes()[4*j:], math.Float32bits(float32(j)))
		}
		view := driver.View{Buffer: buffer, Type: op.F32, Rows: 2, Cols: 32, Stride: 32}
		if i < 2 {
			b.In = append(b.In, view)
		} else {
			b.Out = append(b.Out, view)
		}
	}
	return exe, b
}

// adds fails unless the processor adds.
func adds(t *testing.T, p *processor) {
	t.Helper()
	exe, b := addition(t, p, nil)
	if _, err := p.Run(exe, b); err != nil {
		t.Fatal(err)
	}
	sums(t, b)
}

// sums fails unless the sums of an addition are right.
func sums(t *testing.T, b *driver.Bindings) {
	t.Helper()
	for j := range 64 {
		bits := binary.LittleEndian.Uint32(b.Out[0].Buffer.Bytes()[4*j:])
		if got := math.Float32frombits(bits); got != float32(2*j) {
			t.Fatalf("element %d: got %v, want %v", j, got, 2*j)
		}
	}
}

// says fails unless err has every word.
func says(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", words)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %q does not mention %q", err, word)
		}
	}
}

// A kernel that does not compile is an error with the compiler's words, and the processor still computes.
func TestBuildFailure(t *testing.T) {
	implementations(t, func(t *testing.T, library map[string]string) {
		p := openFirst(t, library)
		graph := op.Single(op.Op{Kind: op.Add, M: 2, N: 32}, "")

		broken := artifact(t, graph, func(source string) string { return source + "\nthis is no kernel;\n" })
		_, err := p.Load(t.Context(), broken, nil)
		says(t, err, `"rows"`, "build program", "this")

		missing := artifact(t, graph, func(string) string { return otherKernel })
		_, err = p.Load(t.Context(), missing, nil)
		says(t, err, "add", "INVALID_KERNEL_NAME")

		adds(t, p)
	})
}

// otherKernel is a source without the function of any operator.
const otherKernel = "__kernel void other(__global int *x) { x[0] = 1; }"

// What the device cannot hold is refused with sizes, and the processor still computes.
func TestOutOfMemory(t *testing.T) {
	implementations(t, func(t *testing.T, library map[string]string) {
		p := openFirst(t, with(library, optMemory, "own"))
		_, err := p.device.context.NewBuffer(clapi.ReadWrite, 1<<50, nil)
		says(t, err, "create buffer of 1125899906842624 bytes", "memory")

		const rows, cols = 1 << 15, 1 << 17
		graph := op.Single(op.Op{Kind: op.Softcap, M: rows, N: cols, Cap: 1}, "")
		out := graph.Nodes[0].Out
		graph.Temps = []op.Value{{Name: "between", Type: op.F32, Rows: rows, Cols: cols}}
		graph.Nodes[0].Out = []string{"between"}
		graph.Nodes = append(graph.Nodes, op.Node{
			Op:  op.Op{Kind: op.Copy, M: rows, N: cols},
			In:  []string{"between"},
			Out: out,
		})
		_, err = p.Load(t.Context(), artifact(t, graph, nil), nil)
		says(t, err, "between", "8589934592")

		adds(t, p)
	})
}

// Once the device is lost, calls in flight have failed and later ones are refused by name. It can be opened anew.
func TestLostDevice(t *testing.T) {
	implementations(t, func(t *testing.T, library map[string]string) {
		p := openFirst(t, library)
		exe, b := addition(t, p, nil)
		ticket, err := p.Submit(exe, b)
		if err != nil {
			t.Fatal(err)
		}

		p.Mu.Lock()
		p.check(&clapi.Error{What: "launch kernel add", Code: -36})
		p.Mu.Unlock()

		_, err = p.Wait(ticket)
		says(t, err, "INVALID_COMMAND_QUEUE", "lost", "open it again")
		failure, ok := errors.AsType[*driver.Failure](err)
		if !ok || failure.Ticket != ticket {
			t.Errorf("got error %v, want one of call %d", err, ticket)
		}
		_, err = p.Submit(exe, b)
		says(t, err, "lost")
		if err := errors.Join(exe.Close(), p.Close()); err != nil {
			t.Error(err)
		}

		again := openFirst(t, library)
		if again.device == p.device {
			t.Error("the lost device was opened again as it was")
		}
		adds(t, again)
	})
}

// Done and Close return while a kernel does not end, and memory to which it may still write is not freed.
func TestHangingKernel(t *testing.T) {
	require.Slow(t)
	implementations(t, func(t *testing.T, library map[string]string) {
		p := openFirst(t, library)
		exe, b := addition(t, p, func(source string) string {
			const begin = "	long row = ROW;"
			return strings.Replace(source, begin, begin+" for (volatile long i = 0; i < 10000000000; i++);", 1)
		})
		ticket, err := p.Submit(exe, b)
		if err != nil {
			t.Fatal(err)
		}

		began := time.Now()
		done, err := p.Done(ticket)
		if took := time.Since(began); done || err != nil || took > time.Second {
			t.Errorf("got done %v, error %v after %v, want a call in flight at once", done, err, took)
		}
		says(t, p.Close(), "1 calls", "have not finished")
		if took := time.Since(began); took > closePatience+2*time.Second {
			t.Errorf("closing took %v, want about %v", took, closePatience)
		}

		buffer := b.In[0].Buffer
		if buffer.Close() != nil || buffer.Bytes() != nil {
			t.Error("the buffer of a device that was given up does not close")
		}
		_, err = p.Submit(exe, b)
		says(t, err, "closed")
		adds(t, openFirst(t, library))
	})
}

// Calls are submitted ahead up to the limit. An error is told once and with the call that failed, and the calls behind
// it are executed. A call allocates nothing.
func TestSubmitAhead(t *testing.T) {
	implementations(t, func(t *testing.T, library map[string]string) {
		for _, options := range []map[string]string{
			library,
			with(library, optMemory, "own"),
			with(library, optCompletion, "flag"),
		} {
			p := openFirst(t, options)
			exe, b := addition(t, p, nil)

			failing, last := submitWithFailure(t, p, exe, b)
			_, err := p.Wait(last)
			failure, ok := errors.AsType[*driver.Failure](err)
			if !ok || failure.Ticket != failing {
				t.Fatalf("options %v: got %v, want the failure of call %d", options, err, failing)
			}
			says(t, failure, "quant_rows", "row 0")
			if done, err := p.Done(last); !done || err != nil {
				t.Errorf("options %v: got %v, %v, want everything done and the error told", options, done, err)
			}
			sums(t, b)

			if _, err := p.Wait(last + 1); err == nil {
				t.Error("a ticket that was not given out was waited for")
			}
			allocations := testing.AllocsPerRun(100, func() {
				ticket, err := p.Submit(exe, b)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := p.Wait(ticket); err != nil {
					t.Fatal(err)
				}
			})
			if allocations > 0 && !drivertest.Race { // the race detector calls the library by cgo
				t.Errorf("options %v: a call allocates %v times", options, allocations)
			}
		}
	})
}

// submitWithFailure submits as many calls as may be in flight. One of them rounds a row with a NaN.
func submitWithFailure(
	t *testing.T, p *processor, exe driver.Executable, b *driver.Bindings,
) (failing, last driver.Ticket) {
	t.Helper()
	graph := op.Single(op.Op{Kind: op.QuantRows, M: 1, N: 64}, "")
	quant, err := p.Load(t.Context(), artifact(t, graph, nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	row := func(typ op.Type, cols int) driver.View {
		buffer, err := p.Alloc(256)
		if err != nil {
			t.Fatal(err)
		}
		return driver.View{Buffer: buffer, Type: typ, Rows: 1, Cols: cols, Stride: cols}
	}
	bad := &driver.Bindings{
		In:      []driver.View{row(op.F32, 64)},
		Out:     []driver.View{row(op.U8, 64), row(op.F32, 1)},
		Scalars: &driver.Scalars{Rows: 1},
	}
	binary.LittleEndian.PutUint32(bad.In[0].Buffer.Bytes(), math.Float32bits(float32(math.NaN())))

	for i := range driver.MaxInFlight {
		if i != 5 {
			last, err = p.Submit(exe, b)
		} else {
			failing, err = p.Submit(quant, bad)
			last = failing
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return failing, last
}

// A library that is not there makes the driver unavailable. The error names it and says what to do.
func TestUnavailable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "libOpenCL.so")
	_, err := New().Open(t.Context(), driver.Config{Options: map[string]string{optLibrary: file}})
	if !errors.Is(err, driver.ErrUnavailable) {
		t.Fatalf("got %v, want a driver that is not available", err)
	}
	says(t, err, "libOpenCL.so", "not there", clapi.EnvLibrary)
}

// guarded is memory that lies beside some that cannot be touched, imported to a processor.
func guarded(f *testing.F, p *processor, bytes int) driver.Buffer {
	region, err := mem.Guarded(bytes)
	if err != nil {
		f.Skip(err)
	}
	buffer, err := p.Import(region.Bytes())
	if err != nil {
		f.Fatal(err)
	}
	return buffer
}

// cached is a graph with a cache, loaded on a processor, and guarded memory for its call.
type cached struct {
	p       *processor
	exe     driver.Executable
	kv      op.Type
	in, out driver.Buffer
	k, v    driver.Buffer
}

// newCached loads a graph that appends to a cache of a type and attends to it.
func newCached(f *testing.F, p *processor, kv op.Type) *cached {
	shape := op.Op{M: 3, Heads: 2, KVHeads: 1, HeadDim: 8, KV: kv}
	appending, attending := shape, shape
	appending.Kind, attending.Kind, attending.Context = op.KVAppend, op.Attention, 16
	graph := op.Single(attending, "")
	graph.Nodes = append([]op.Node{{Op: appending, In: graph.Nodes[0].In}}, graph.Nodes...)
	exe, err := p.Load(context.Background(), artifact(f, graph, nil), nil)
	if err != nil {
		f.Fatal(err)
	}
	size := 2 * 16 * int(kv.CacheRowBytes(8))
	return &cached{
		p:   p,
		exe: exe,
		kv:  kv,
		in:  guarded(f, p, 4*3*32),
		out: guarded(f, p, 4*3*16+64),
		k:   guarded(f, p, size),
		v:   guarded(f, p, size),
	}
}

// FuzzRun binds views, positions and caches of any numbers: a call fails or writes inside its buffers, which lie beside
// memory that cannot be touched.
func FuzzRun(f *testing.F) {
	f.Add(int64(0), 0, 32, 3, 3, 16, int64(0), 0, 1)
	f.Add(int64(64), 5, 64, 2, 1, 16, int64(8192), 1, 2)
	f.Add(int64(0), 2, 32, 3, 3, 16, int64(192), 1, 2) // 192 and 1024 are caches of one sequence
	f.Add(int64(0), 2, 32, 3, 3, 16, int64(1024), 0, 1)
	f.Add(int64(math.MaxInt64-3), math.MaxInt, -1, -1, math.MinInt, 1<<40, int64(-1), -1, 1<<40)
	var targets []*cached
	for _, library := range libraries(f) {
		for _, kv := range []op.Type{op.F32, op.Q8} {
			targets = append(targets, newCached(f, openFirst(f, library.options), kv))
		}
	}
	f.Fuzz(func(
		t *testing.T, offset int64, pos, stride, rows, inUse, context int, apart int64, sequence, sequences int,
	) {
		for _, on := range targets {
			element, cols := on.kv.CacheRow(8)
			cache := driver.View{Type: element, Rows: context, Cols: cols, Stride: cols}
			in := driver.View{Buffer: on.in, Type: op.F32, Rows: rows, Cols: 32, Stride: stride, Offset: offset}
			b := &driver.Bindings{
				In:            []driver.View{in},
				Out:           []driver.View{{Buffer: on.out, Type: op.F32, Rows: rows, Cols: 16, Stride: 16}},
				K:             cache,
				V:             cache,
				MaxContext:    context,
				Sequences:     sequences,
				SequenceBytes: apart,
				Scalars: &driver.Scalars{
					Pos:      pos,
					Rows:     inUse,
					Sequence: sequence,
					KVLen:    pos + inUse,
					Seq:      pos + inUse,
				},
			}
			b.K.Buffer, b.V.Buffer = on.k, on.v
			_, _ = on.p.Run(on.exe, b)
		}
	})
}

// FuzzMoves copies parts of operands of any numbers to the device's own memory and back: a call fails or copies inside
// its views, beside memory that cannot be touched.
func FuzzMoves(f *testing.F) {
	f.Add(int64(0), 32, 3, 3, 0, 3, 0, 32)
	f.Add(int64(128), 40, 2, 1, 1, 2, 5, 9)
	f.Add(int64(4), 32, 3, 2, -1, math.MaxInt, 31, math.MaxInt)
	f.Add(int64(math.MaxInt64-3), math.MaxInt, 3, 3, 2, 1, math.MinInt, 0)
	type target struct {
		p       *processor
		exe     driver.Executable
		buffers [3]driver.Buffer
	}
	var targets []*target
	for _, library := range libraries(f) {
		on := &target{p: openFirst(f, with(library.options, optMemory, "own"))}
		graph := op.Single(op.Op{Kind: op.Add, M: 3, N: 32}, "")
		var err error
		on.exe, err = on.p.Load(context.Background(), artifact(f, graph, nil), nil)
		if err != nil {
			f.Fatal(err)
		}
		for i := range on.buffers {
			on.buffers[i] = guarded(f, on.p, 4*3*48)
		}
		targets = append(targets, on)
	}
	f.Fuzz(func(t *testing.T, offset int64, stride, rows, inUse, r0, r1, c0, c1 int) {
		for _, on := range targets {
			view := func(i int) driver.View {
				return driver.View{
					Buffer: on.buffers[i],
					Type:   op.F32,
					Rows:   rows,
					Cols:   32,
					Stride: stride,
					Offset: offset,
				}
			}
			parts := []driver.Rect{{R0: r0, R1: r1, C0: c0, C1: c1}}
			b := &driver.Bindings{
				In:      []driver.View{view(0), view(1)},
				Out:     []driver.View{view(2)},
				Scalars: &driver.Scalars{Rows: inUse, KVLen: inUse, Seq: inUse},
				Moves:   &driver.Moves{Fetch: [][]driver.Rect{parts, nil}, Hand: [][]driver.Rect{parts}},
			}
			_, _ = on.p.Run(on.exe, b)
		}
	})
}

// estimated is the operator of the tests of estimates.
var estimated = op.Op{
	Kind:    op.Estimate,
	M:       40,
	Heads:   4,
	KVHeads: 2,
	HeadDim: 16,
	Context: 96,
	KV:      op.F32,
	Block:   op.SparseBlock,
}

// estimateWeights are the scales of heads, after a change.
func estimateWeights(t *testing.T, change func(numbers []float32)) driver.Weights {
	t.Helper()
	one := op.SparseHead{QueryScale: 0.1, KeyScale: 0.2, Share: 0.3}
	numbers := op.SparseHeads(slices.Repeat([]op.SparseHead{one}, estimated.Heads))
	change(numbers)
	region, err := mem.Alloc(4*len(numbers), driver.Align)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { region.Close() })
	copy(region.Bytes(), mem.Bytes(numbers))
	spec := op.Single(estimated, "").Weights[0]
	return driver.Weights{{Spec: spec, Bytes: region.Bytes()}}
}

// loadsEstimate opens the first device, and expects that it loads an estimate.
func loadsEstimate(t *testing.T) *processor {
	t.Helper()
	p := openFirst(t, nil)
	good := artifact(t, op.Single(estimated, ""), nil)
	exe, err := p.Load(t.Context(), good, estimateWeights(t, func([]float32) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { exe.Close() })
	return p
}

// refusesToLoad expects an error that says why an artifact is not loaded.
func refusesToLoad(t *testing.T, p *processor, what string, a driver.Artifact, weights driver.Weights, want string) {
	t.Helper()
	exe, err := p.Load(t.Context(), a, weights)
	if err == nil {
		exe.Close()
		t.Errorf("%s: it is loaded", what)
		return
	}
	if !strings.Contains(err.Error(), want) || diag.ClassOf(err) == diag.ClassInternal {
		t.Errorf("%s: got %v, want %q", what, err, want)
	}
}

// An artifact of an estimate without its kernels, or of another operator than its sources, is refused with the reason,
// and the processor still computes.
func TestEstimateArtifactsRefused(t *testing.T) {
	p := loadsEstimate(t)
	graph := op.Single(estimated, "")
	weights := estimateWeights(t, func([]float32) {})
	good := artifact(t, graph, nil)
	half := driver.Artifact{Driver: Name, Code: good.Code[:len(good.Code)/2]}
	refusesToLoad(t, p, "half of it", half, weights, "parse artifact")
	noFunction := artifact(t, graph, func(string) string { return otherKernel })
	refusesToLoad(t, p, "another kernel", noFunction, weights, "estimate")

	for _, c := range []struct {
		what   string
		change func(code *kernel.Code)
		want   string
	}{
		{
			what:   "no kernels",
			change: func(code *kernel.Code) { code.Programs = nil },
			want:   "kernel",
		},
		{
			what:   "another version",
			change: func(code *kernel.Code) { code.Version++ },
			want:   "version",
		},
		{
			what:   "no block",
			change: func(code *kernel.Code) { code.Graph.Nodes[0].Op.Block = 0 },
			want:   "block",
		},
		{
			what:   "more heads",
			change: func(code *kernel.Code) { code.Graph.Nodes[0].Op.Heads = 8 },
			want:   "parse artifact",
		},
		{
			what:   "a giant context",
			change: func(code *kernel.Code) { code.Graph.Nodes[0].Op.Context = 1 << 40 },
			want:   "context",
		},
	} {
		code, err := kernel.Compile(op.Single(estimated, ""), func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		c.change(code)
		data, err := code.Encode()
		if err != nil {
			t.Fatal(err)
		}
		refusesToLoad(t, p, c.what, driver.Artifact{Driver: Name, Code: data}, weights, c.want)
	}
	adds(t, p)
}

// Scales of heads that make no sense are refused with the reason, and the processor still computes.
func TestEstimateWeightsRefused(t *testing.T) {
	p := loadsEstimate(t)
	good := artifact(t, op.Single(estimated, ""), nil)
	refusesToLoad(t, p, "no weights", good, nil, "weights")

	for _, c := range []struct {
		what   string
		change func(numbers []float32)
		want   string
	}{
		{
			what:   "a scale of zero",
			change: func(numbers []float32) { numbers[0] = 0 },
			want:   "scale of queries is 0",
		},
		{
			what:   "a NaN",
			change: func(numbers []float32) { numbers[4] = float32(math.NaN()) },
			want:   "scale of keys is NaN",
		},
		{
			what:   "an infinity",
			change: func(numbers []float32) { numbers[1] = float32(math.Inf(1)) },
			want:   "scale of keys is +Inf",
		},
		{
			what:   "a share below 0",
			change: func(numbers []float32) { numbers[2] = -1 },
			want:   "share of positions is -1",
		},
	} {
		refusesToLoad(t, p, c.what, good, estimateWeights(t, c.change), c.want)
	}
	adds(t, p)
}
