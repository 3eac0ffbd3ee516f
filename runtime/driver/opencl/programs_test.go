package opencl

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/opencl/kernel"
)

// memory is a store of programs that notes what it is asked.
type memory struct {
	binaries     map[driver.ProgramKey][]byte
	asked, built int
	strict       bool
}

func (m *memory) Binary(key driver.ProgramKey) []byte {
	m.asked++
	return m.binaries[key]
}

func (m *memory) Built(key driver.ProgramKey, binary []byte) { m.built++ }
func (m *memory) Strict() bool                               { return m.strict }

// artifactOfASum is the artifact of a sum.
func artifactOfASum(t testing.TB) []byte {
	t.Helper()
	graph := op.Single(op.Op{Kind: op.Add, M: 2, N: 32}, "")
	code, err := kernel.Compile(graph, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	data, err := code.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// anew makes the next processor open its device again, without programs.
func anew() {
	shared.Lock()
	defer shared.Unlock()
	shared.of = nil
}

// sum opens a device anew and adds on it with the programs of a store.
func sum(t testing.TB, library map[string]string, store driver.Programs) (values []float32, err error) {
	t.Helper()
	anew()
	defer anew()
	return sumAgain(t, library, store)
}

// sumAgain is sum on a device that may be open, with the programs of other stores.
func sumAgain(t testing.TB, library map[string]string, store driver.Programs) (values []float32, err error) {
	t.Helper()
	ctx := context.Background()
	proc, err := New().(driver.Prebuilder).WithPrograms(store).Open(ctx, driver.Config{Options: library})
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	if err := proc.Attach(); err != nil {
		t.Fatal(err)
	}
	exe, err := proc.Load(ctx, driver.Artifact{Driver: Name, Code: artifactOfASum(t)}, nil)
	if err != nil {
		return nil, err
	}
	defer exe.Close()
	bindings := driver.Bindings{Scalars: &driver.Scalars{Rows: 2, KVLen: 2, Seq: 2}}
	for i := range 3 {
		buffer, err := proc.Alloc(4 * 64)
		if err != nil {
			t.Fatal(err)
		}
		defer buffer.Close()
		view := driver.View{Buffer: buffer, Type: op.F32, Rows: 2, Cols: 32, Stride: 32}
		if i == 2 {
			bindings.Out = append(bindings.Out, view)
			break
		}
		for at := range 64 {
			binary.LittleEndian.PutUint32(buffer.Bytes()[4*at:], math.Float32bits(2))
		}
		bindings.In = append(bindings.In, view)
	}
	if _, err := proc.Run(exe, &bindings); err != nil {
		return nil, err
	}
	for at := range 64 {
		values = append(values, math.Float32frombits(binary.LittleEndian.Uint32(bindings.Out[0].Buffer.Bytes()[4*at:])))
	}
	return values, nil
}

// A processor takes the binary of exactly its device and driver. Without it, it builds the source, or refuses to.
func TestProgramsOfABundle(t *testing.T) {
	implementations(t, programsOfABundle)
}

func programsOfABundle(t *testing.T, library map[string]string) {
	drv, config := New().(driver.Prebuilder), driver.Config{Options: library}
	ctx := context.Background()
	identity, err := drv.(driver.Identified).Identity(ctx, config)
	if err != nil || identity.Device == "" || identity.Driver == "" {
		t.Fatalf("%+v, %v", identity, err)
	}
	t.Logf("%+v", identity)
	made, err := drv.Prebuild(ctx, config, artifactOfASum(t))
	if err != nil || len(made) != 1 || len(made[0].Binary) == 0 || made[0].Key.Identity != identity {
		t.Fatalf("built ahead of time: %d programs, %v; want one for %+v", len(made), err, identity)
	}
	anew()
	again, err := drv.Prebuild(ctx, config, artifactOfASum(t))
	if err != nil || again[0].Key != made[0].Key {
		t.Fatalf("built again: %v", err)
	}
	if !bytes.Equal(again[0].Binary, made[0].Binary) {
		t.Logf("the compiler of %q is not reproducible: %d bytes, then %d others", identity.Driver, len(made[0].Binary),
			len(again[0].Binary))
	}
	right := map[driver.ProgramKey][]byte{made[0].Key: made[0].Binary}
	elsewhere := made[0].Key
	elsewhere.Driver += " of tomorrow"
	for name, c := range map[string]struct {
		store memory
		built int
		fails bool
	}{
		"the binary is there":                   {memory{binaries: right, strict: true}, 0, false},
		"no binary":                             {memory{}, 1, false},
		"no binary, and it must not be built":   {memory{strict: true}, 0, true},
		"one of another driver":                 {memory{binaries: map[driver.ProgramKey][]byte{elsewhere: made[0].Binary}}, 1, false},
		"one of another driver, strictly":       {memory{binaries: map[driver.ProgramKey][]byte{elsewhere: made[0].Binary}, strict: true}, 0, true},
		"what the device refuses":               {memory{binaries: map[driver.ProgramKey][]byte{made[0].Key: []byte("none")}}, 1, false},
		"what the device refuses, and strictly": {memory{binaries: map[driver.ProgramKey][]byte{made[0].Key: []byte("none")}, strict: true}, 0, true},
	} {
		got, err := sum(t, library, &c.store)
		if c.fails {
			if diag.ClassOf(err) != diag.ClassUnavailable || !strings.Contains(err.Error(), identity.Device) {
				t.Errorf("%s: got %v, want an error of class %v that names the device", name, err, diag.ClassUnavailable)
			}
			continue
		}
		if err != nil || slices.Min(got) != 4 || slices.Max(got) != 4 {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		if c.store.built != c.built || c.store.asked == 0 {
			t.Errorf("%s: asked %d times, built %d programs, want %d", name, c.store.asked, c.store.built, c.built)
		}
	}
	// An artifact that is none is refused, and nothing is built of it.
	if _, err := drv.Prebuild(ctx, config, []byte("{}")); err == nil {
		t.Error("an artifact that is none was built")
	}
	var code kernel.Code
	if err := json.Unmarshal(artifactOfASum(t), &code); err != nil {
		t.Fatal(err)
	}
	for i := range code.Programs {
		code.Programs[i].Source = "kernel void broken( {"
	}
	data, err := code.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := drv.Prebuild(ctx, config, data); err == nil || !strings.Contains(err.Error(), `kernels "rows"`) {
		t.Errorf("a source that does not compile: %v", err)
	}
}

// The forms of a product are the variants that the device can execute; probing leaves out the one that it takes by
// itself. One that the device lacks, and one that there is not, are refused by name with what it has.
func TestNamedVariants(t *testing.T) {
	for _, selected := range []string{"", "tiles"} {
		options := map[string]string{}
		usual := op.KernelForm("tiles") // of a device without local memory of its own
		if selected == "" {
			if first := openFirst(t, nil); first.device.features.Dedicated {
				usual = op.KernelForm("columns")
			}
		} else {
			options[kernel.Option+"matmul a32/w32"] = selected
		}
		p := openFirst(t, options)
		caps := p.Capabilities()
		_, can := kernel.First("matmul a32/w32", &p.device.features)
		if len(caps.Forms[op.A32W32]) != len(can) {
			t.Errorf("forms %q, want the variants %q", caps.Forms[op.A32W32], can)
		}
		offered := caps.Offered()
		if !caps.HasForm(op.A32W32, usual) || offered.HasForm(op.A32W32, usual) {
			t.Errorf("usual form %q: claimed are %q, offered %q", usual, caps.Forms[op.A32W32], offered.Forms[op.A32W32])
		}
	}

	graph := op.Single(op.Op{Kind: op.MatMul, M: 2, K: 32, N: 32, Scheme: op.A8TQ8C}, op.TilesLayout)
	graph.Nodes[0].Op.Form = op.KernelForm("columns-dot")
	code, err := kernel.Compile(graph, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	few := kernel.Features{MaxGroup: 1}
	use := kernel.Uses(&code.Graph)[0]
	_, err = choose(code, use, settings{}, &few)
	if err == nil || !strings.Contains(err.Error(), `variant "columns-dot" of kernels "matmul a8t/q8c"`) ||
		!slices.Contains(diag.HintsOf(err), "solve again with a record of this device; it executes tiles") {
		t.Errorf("a device that lacks the variant: got %v, hints %q", err, diag.HintsOf(err))
	}
	use.Variant = "fast"
	if _, err = choose(code, use, settings{}, &few); err == nil ||
		!slices.Contains(diag.HintsOf(err), "variants: columns-dot, columns, columns-image, tiles") {
		t.Errorf("an unknown variant: got %v, hints %q", err, diag.HintsOf(err))
	}
	use.Variant = "tiles"
	if _, err = choose(code, use, settings{}, &few); err == nil || !strings.Contains(err.Error(), "does not carry") {
		t.Errorf("a variant that the artifact lacks: got %v", err)
	}
}

// sevens is a program with the arguments of a sum that computes something else.
const sevens = "__kernel void add(__global float *a, long b, int c, __global float *d, long e, int f, " +
	"__global float *g, long h, int i, int j) { for (int at = 0; at < 2 * i; at++) g[at] = 7; }"

// A binary serves the bundle that carries it and no other one of the process: the next bundle has the program of its
// own binary, or of its source.
func TestProgramsOfTwoBundles(t *testing.T) {
	implementations(t, func(t *testing.T, library map[string]string) {
		right, err := New().(driver.Prebuilder).Prebuild(t.Context(), driver.Config{Options: library}, artifactOfASum(t))
		if err != nil {
			t.Fatal(err)
		}
		anew()
		defer anew()
		of := func(binary []byte, strict bool) *memory {
			return &memory{strict: strict, binaries: map[driver.ProgramKey][]byte{right[0].Key: binary}}
		}
		other := binaryOf(t, library, sevens)
		for i, c := range []struct {
			store driver.Programs
			want  float32
		}{
			{of(other, false), 7}, {nil, 4}, {&memory{}, 4}, {of(right[0].Binary, true), 4}, {of(other, true), 7},
			{of(right[0].Binary, false), 4},
		} {
			values, err := sumAgain(t, library, c.store)
			if err != nil || slices.Min(values) != c.want || slices.Max(values) != c.want {
				t.Errorf("bundle %d: got %v, %v, want %v", i, values, err, c.want)
			}
		}
		if _, err := sumAgain(t, library, &memory{strict: true}); diag.ClassOf(err) != diag.ClassUnavailable {
			t.Errorf("a bundle without a binary, where nothing may be built: got %v", err)
		}
	})
}

// However many programs bundles bring, a device keeps few that no processor uses, those that were used last; a
// processor keeps no artifact of which nothing is loaded.
func TestProgramsAreBounded(t *testing.T) {
	anew()
	defer anew()
	p := openFirst(t, nil)
	device := p.device
	const keep, many = 2, 5
	device.programs.keep = keep
	load := func(p *processor, number int) {
		exe, _ := addition(t, p, func(source string) string { return fmt.Sprintf("%s\n// %d\n", source, number) })
		if err := exe.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for number := range many {
		load(p, number)
	}
	if len(device.programs.built) != many || len(p.codes) != 0 {
		t.Errorf("%d programs and %d artifacts, want %d programs of an open processor and no artifact of closed executables",
			len(device.programs.built), len(p.codes), many)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if len(device.programs.built) != keep {
		t.Errorf("%d programs are kept that nothing uses, want %d", len(device.programs.built), keep)
	}
	again := openFirst(t, nil)
	load(again, many-1) // used last
	if len(device.programs.built) != keep {
		t.Error("the program that was used last was not kept")
	}
	exe, b := addition(t, again, nil)
	if _, err := again.Run(exe, b); err != nil {
		t.Fatal(err)
	}
	sums(t, b)
}

// binaryOf is the binary of a source for the device that a processor opens.
func binaryOf(t testing.TB, library map[string]string, source string) []byte {
	t.Helper()
	made, err := openFirst(t, library).device.programs.prebuild(source)
	if err != nil {
		t.Fatal(err)
	}
	return made.Binary
}

// The binary of other kernels, or of some with other arguments, is an error before anything is executed, or of the
// call.
func TestBinariesOfOtherKernels(t *testing.T) {
	implementations(t, binariesOfOtherKernels)
}

func binariesOfOtherKernels(t *testing.T, library map[string]string) {
	right, err := New().(driver.Prebuilder).Prebuild(t.Context(), driver.Config{Options: library}, artifactOfASum(t))
	if err != nil {
		t.Fatal(err)
	}
	const ten = "__kernel void add(__global float *a, long b, int c, __global float *d, long e, int f, " +
		"__global float *g, long h, int i, int j) { g[0] = 7; }"
	for what, c := range map[string]struct{ source, want string }{
		"another function": {"__kernel void other(__global float *x) { x[0] = 7; }", "INVALID_KERNEL_NAME"},
		"fewer arguments":  {"__kernel void add(__global float *x) { x[0] = 7; }", `function "add" takes 1 arguments, want 10`},
		"more arguments":   {strings.Replace(ten, "int j", "int j, int k", 1), `function "add" takes 11 arguments, want 10`},
		"other arguments":  {strings.Replace(ten, "int j", "long j", 1), "INVALID_ARG_SIZE"},
		"exchanged ones":   {strings.Replace(ten, "long b, int c", "int b, long c", 1), "INVALID_ARG_SIZE"},
	} {
		store := &memory{strict: true, binaries: map[driver.ProgramKey][]byte{right[0].Key: binaryOf(t, library, c.source)}}
		values, err := sum(t, library, store)
		if err == nil || !strings.Contains(err.Error(), c.want) || diag.ClassOf(err) == diag.ClassInternal {
			t.Errorf("%s: got %v, %v, want %q", what, values, err, c.want)
		}
	}
}
