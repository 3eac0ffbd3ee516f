package opencl

import (
	"bytes"
	"context"
	"encoding/binary"
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

// memory is a store of programs that counts what it is asked.
type memory struct {
	binaries     map[driver.ProgramKey][]byte
	asked, built int
	strict       bool
}

func (m *memory) Binary(key driver.ProgramKey) []byte {
	m.asked++
	return m.binaries[key]
}

func (m *memory) Built(driver.ProgramKey, []byte) { m.built++ }

func (m *memory) Strict() bool { return m.strict }

// sumArtifact is the artifact of a sum.
func sumArtifact(t testing.TB) []byte {
	t.Helper()
	return artifact(t, op.Single(op.Op{Kind: op.Add, M: 2, N: 32}, ""), nil).Code
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
	opened, err := New().(driver.Prebuilder).WithPrograms(store).Open(ctx, driver.Config{Options: library})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	if err := opened.Attach(); err != nil {
		t.Fatal(err)
	}
	exe, err := opened.Load(ctx, driver.Artifact{Driver: Name, Code: sumArtifact(t)}, nil)
	if err != nil {
		return nil, err
	}
	defer exe.Close()
	const elements = 2 * 32
	var views []driver.View
	for range 3 {
		buffer, err := opened.Alloc(4 * elements)
		if err != nil {
			t.Fatal(err)
		}
		defer buffer.Close()
		for at := range elements {
			binary.LittleEndian.PutUint32(buffer.Bytes()[4*at:], math.Float32bits(2))
		}
		views = append(views, driver.View{Buffer: buffer, Type: op.F32, Rows: 2, Cols: 32, Stride: 32})
	}
	bindings := &driver.Bindings{
		In:      views[:2],
		Out:     views[2:],
		Scalars: &driver.Scalars{Rows: 2, KVLen: 2, Seq: 2},
	}

	if _, err := opened.Run(exe, bindings); err != nil {
		return nil, err
	}
	result := views[2].Buffer.Bytes()
	for at := range elements {
		values = append(values, math.Float32frombits(binary.LittleEndian.Uint32(result[4*at:])))
	}
	return values, nil
}

// prebuild builds the program of a sum ahead of time.
func prebuild(t testing.TB, library map[string]string) driver.Prebuilt {
	t.Helper()
	ctx, config := context.Background(), driver.Config{Options: library}
	made, err := New().(driver.Prebuilder).Prebuild(ctx, config, sumArtifact(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(made) != 1 || len(made[0].Binary) == 0 {
		t.Fatalf("built ahead of time: %d programs, want one with a binary", len(made))
	}
	return made[0]
}

// carries is a store with one binary under a key.
func carries(key driver.ProgramKey, binary []byte) memory {
	return memory{binaries: map[driver.ProgramKey][]byte{key: binary}}
}

// strict returns a store whose bundle forbids to build programs.
func strict(store memory) memory {
	store.strict = true
	return store
}

// A program that is built ahead of time is that of the device and its driver, also when it is built again.
func TestPrebuild(t *testing.T) {
	implementations(t, func(t *testing.T, library map[string]string) {
		config := driver.Config{Options: library}
		identity, err := New().(driver.Identified).Identity(t.Context(), config)
		if err != nil || identity.Device == "" || identity.Driver == "" {
			t.Fatalf("%+v, %v", identity, err)
		}

		made := prebuild(t, library)
		anew()
		again := prebuild(t, library)

		if made.Key.Identity != identity {
			t.Errorf("built for %+v, want %+v", made.Key.Identity, identity)
		}
		if again.Key != made.Key {
			t.Errorf("built again for %+v, want %+v", again.Key, made.Key)
		}
		if !bytes.Equal(again.Binary, made.Binary) {
			t.Logf("the compiler of %q is not reproducible: %d bytes, then %d others", identity.Driver,
				len(made.Binary), len(again.Binary))
		}
	})
}

// What is no artifact, and a source that does not compile, are not built ahead of time.
func TestPrebuildRefuses(t *testing.T) {
	implementations(t, func(t *testing.T, library map[string]string) {
		builder, config := New().(driver.Prebuilder), driver.Config{Options: library}
		if _, err := builder.Prebuild(t.Context(), config, []byte("{}")); err == nil {
			t.Error("an artifact that is none was built")
		}
		graph := op.Single(op.Op{Kind: op.Add, M: 2, N: 32}, "")
		broken := artifact(t, graph, func(string) string { return "kernel void broken( {" })
		_, err := builder.Prebuild(t.Context(), config, broken.Code)
		says(t, err, `kernels "rows"`)
	})
}

// A processor takes the binary of exactly its device and driver. Without one it builds the source, or refuses to.
func TestProgramsOfABundle(t *testing.T) {
	implementations(t, programsOfABundle)
}

func programsOfABundle(t *testing.T, library map[string]string) {
	made := prebuild(t, library)
	elsewhere := made.Key
	elsewhere.Driver += " of tomorrow"
	ours := carries(made.Key, made.Binary)
	others := carries(elsewhere, made.Binary)
	useless := carries(made.Key, []byte("none"))
	for _, c := range []struct {
		what  string
		store memory
		built int
		fails bool
	}{
		{what: "the binary is there", store: strict(ours)},
		{what: "no binary", store: memory{}, built: 1},
		{what: "no binary, and it must not be built", store: strict(memory{}), fails: true},
		{what: "one of another driver", store: others, built: 1},
		{what: "one of another driver, strictly", store: strict(others), fails: true},
		{what: "what the device refuses", store: useless, built: 1},
		{what: "what the device refuses, strictly", store: strict(useless), fails: true},
	} {
		got, err := sum(t, library, &c.store)
		if c.fails {
			if diag.ClassOf(err) != diag.ClassUnavailable || !strings.Contains(err.Error(), made.Key.Device) {
				t.Errorf("%s: got %v, want an error of class %v that names the device", c.what, err,
					diag.ClassUnavailable)
			}
			continue
		}
		if err != nil || slices.Min(got) != 4 || slices.Max(got) != 4 {
			t.Errorf("%s: %v, %v", c.what, got, err)
		}
		if c.store.built != c.built || c.store.asked == 0 {
			t.Errorf("%s: asked %d times, built %d programs, want %d", c.what, c.store.asked, c.store.built, c.built)
		}
	}
}

// The forms of a product are the variants that the device can execute. Those that are offered leave out the one that
// the device takes by itself.
func TestNamedVariants(t *testing.T) {
	const family = "matmul a32/w32"
	usual := "tiles"
	if openFirst(t, nil).device.features.Dedicated {
		usual = "columns" // the device has local memory of its own
	}
	for _, c := range []struct {
		options map[string]string
		usual   string
	}{
		{options: nil, usual: usual},
		{options: map[string]string{kernel.Option + family: "tiles"}, usual: "tiles"},
	} {
		p := openFirst(t, c.options)
		caps := p.Capabilities()
		_, can := kernel.First(family, &p.device.features)
		if len(caps.Forms[op.A32W32]) != len(can) {
			t.Errorf("forms %q, want the variants %q", caps.Forms[op.A32W32], can)
		}
		form, offered := op.KernelForm(c.usual), caps.Offered()
		if !caps.HasForm(op.A32W32, form) || offered.HasForm(op.A32W32, form) {
			t.Errorf("usual form %q: claimed are %q, offered %q", form, caps.Forms[op.A32W32],
				offered.Forms[op.A32W32])
		}
	}
}

// A variant that the device or the artifact lacks, or that is unknown, is refused by name. The hint says what there is.
func TestVariantsRefused(t *testing.T) {
	graph := op.Single(op.Op{Kind: op.MatMul, M: 2, K: 32, N: 32, Scheme: op.A8TQ8C}, op.TilesLayout)
	graph.Nodes[0].Op.Form = op.KernelForm("columns-dot")
	code, err := kernel.Compile(graph, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	few := kernel.Features{MaxGroup: 1}
	use := kernel.Uses(&code.Graph)[0]

	_, err = choose(code, use, settings{}, &few)
	says(t, err, `variant "columns-dot" of kernels "matmul a8t/q8c"`)
	if hints := diag.HintsOf(err); !slices.Contains(hints,
		"solve again with a record of this device; it executes tiles") {
		t.Errorf("a device that lacks the variant: hints %q", hints)
	}

	use.Variant = "fast"
	_, err = choose(code, use, settings{}, &few)
	if hints := diag.HintsOf(err); !slices.Contains(hints, "variants: columns-dot, columns, columns-image, tiles") {
		t.Errorf("an unknown variant: got %v, hints %q", err, hints)
	}

	use.Variant = "tiles"
	_, err = choose(code, use, settings{}, &few)
	says(t, err, "does not carry")
}

// sevens is a program with the arguments of a sum that computes something else.
const sevens = "__kernel void add(__global float *a, long b, int c, __global float *d, long e, int f, " +
	"__global float *g, long h, int i, int j) { for (int at = 0; at < 2 * i; at++) g[at] = 7; }"

// A binary serves the bundle that carries it and no other one of the process: the next bundle has the program of its
// own binary, or of its source.
func TestProgramsOfTwoBundles(t *testing.T) {
	implementations(t, func(t *testing.T, library map[string]string) {
		made := prebuild(t, library)
		anew()
		defer anew()
		right, other := carries(made.Key, made.Binary), carries(made.Key, binaryOf(t, library, sevens))
		none, strictRight, strictOther := memory{}, strict(right), strict(other)
		for i, c := range []struct {
			store driver.Programs
			want  float32
		}{
			{store: &other, want: 7},
			{store: nil, want: 4},
			{store: &none, want: 4},
			{store: &strictRight, want: 4},
			{store: &strictOther, want: 7},
			{store: &right, want: 4},
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

// A device keeps few programs that no processor uses, those that were used last. A processor keeps no artifact of which
// nothing is loaded.
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
	if n := len(device.programs.built); n != many {
		t.Errorf("%d programs of an open processor, want %d", n, many)
	}
	if n := len(p.codes); n != 0 {
		t.Errorf("%d artifacts of closed executables, want none", n)
	}

	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if n := len(device.programs.built); n != keep {
		t.Errorf("%d programs are kept that nothing uses, want %d", n, keep)
	}

	again := openFirst(t, nil)
	load(again, many-1) // used last
	if len(device.programs.built) != keep {
		t.Error("the program that was used last was not kept")
	}
	adds(t, again)
}

// binaryOf returns the binary of a source for the device that a processor opens.
func binaryOf(t testing.TB, library map[string]string, source string) []byte {
	t.Helper()
	made, err := openFirst(t, library).device.programs.prebuild(source)
	if err != nil {
		t.Fatal(err)
	}
	return made.Binary
}

// The binary of other kernels, or of kernels with other arguments, is an error before anything is executed, or an error
// of the call.
func TestBinariesOfOtherKernels(t *testing.T) {
	implementations(t, func(t *testing.T, library map[string]string) {
		key := prebuild(t, library).Key
		for _, c := range []struct{ what, source, want string }{
			{
				what:   "another function",
				source: otherKernel,
				want:   "INVALID_KERNEL_NAME",
			},
			{
				what:   "fewer arguments",
				source: "__kernel void add(__global float *x) { x[0] = 7; }",
				want:   `function "add" takes 1 arguments, want 10`,
			},
			{
				what:   "more arguments",
				source: strings.Replace(sevens, "int j", "int j, int k", 1),
				want:   `function "add" takes 11 arguments, want 10`,
			},
			{
				what:   "other arguments",
				source: strings.Replace(sevens, "int j", "long j", 1),
				want:   "INVALID_ARG_SIZE",
			},
			{
				what:   "exchanged ones",
				source: strings.Replace(sevens, "long b, int c", "int b, long c", 1),
				want:   "INVALID_ARG_SIZE",
			},
		} {
			store := strict(carries(key, binaryOf(t, library, c.source)))
			values, err := sum(t, library, &store)
			if err == nil || !strings.Contains(err.Error(), c.want) || diag.ClassOf(err) == diag.ClassInternal {
				t.Errorf("%s: got %v, %v, want %q", c.what, values, err, c.want)
			}
		}
	})
}
