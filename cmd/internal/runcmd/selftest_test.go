package runcmd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/verdicts"
	"github.com/hetc/hetc/emit"
	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	openclcompiler "github.com/hetc/hetc/emit/compile/opencl"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/driver/opencl"
	"github.com/hetc/hetc/runtime/driver/opencl/kernel"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/programs"
)

// vendor is the host's driver as if a vendor had made it: with a version, for a device, and perhaps a product of one
// row that it gets wrong. It counts calls before the model runs.
type vendor struct {
	driver.Driver
	version string
	device  string // behind the name of all
	wrong   bool
	opened  *int
}

func (vendor) Name() string { return "vendor" }

func (v vendor) Identity(context.Context, driver.Config) (driver.Identity, error) {
	return driver.Identity{Device: "GPU of a test" + v.device, Driver: v.version}, nil
}

func (v vendor) Open(ctx context.Context, c driver.Config) (driver.Processor, error) {
	*v.opened++
	proc, err := v.Driver.Open(ctx, c)
	return &vendorProcessor{proc, v.wrong}, err
}

type vendorProcessor struct {
	driver.Processor
	wrong bool
}

type vendorExecutable struct {
	driver.Executable
	wrong bool
}

func (p *vendorProcessor) Load(ctx context.Context, a driver.Artifact, w driver.Weights) (driver.Executable, error) {
	graph, err := driver.ParseGraph(a.Code)
	if err != nil {
		return nil, err
	}
	a.Driver = host.Name
	exe, err := p.Processor.Load(ctx, a, w)
	return &vendorExecutable{exe, p.wrong && graph.Rows() == 1 && graph.Nodes[0].Op.Kind == op.MatMul}, err
}

func (p *vendorProcessor) Run(exe driver.Executable, b *driver.Bindings) (driver.Span, error) {
	loaded := exe.(*vendorExecutable)
	span, err := p.Processor.Run(loaded.Executable, b)
	if view := b.Out[0]; loaded.wrong {
		clear(view.Buffer.Bytes()[view.Offset:][:4]) // the first number is lost
	}
	return span, err
}

type vendorCompiler struct{ driver.Compiler }

func (vendorCompiler) Name() string { return "vendor" }

// vendorBundle is a bundle of the demo model, whose products of one row the vendor's device executes.
func vendorBundle(t *testing.T, withTest bool) (path, trust string) {
	t.Helper()
	return vendorBundleOf(t, func(o *emit.Options) {
		if withTest {
			o.SelfTest, o.SelfTestOptions = host.New(), map[string]string{"kernels": "reference"}
		}
	})
}

// vendorBundleOf is vendorBundle with other options.
func vendorBundleOf(t *testing.T, configure func(*emit.Options)) (path, trust string) {
	t.Helper()
	gpu := coreProc(t)
	gpu.Name, gpu.Kind, gpu.Driver = "gpu", "gpu", "vendor"
	return bundleOf(t, gpu, func(o *emit.Options) {
		o.Compilers = append(o.Compilers, vendorCompiler{hostcompiler.New()})
		configure(o)
	})
}

// coreProc is a core of this machine.
func coreProc(t *testing.T) planir.Proc {
	t.Helper()
	devices, err := host.New().Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return planir.Proc{Name: "cpu", Kind: "cpu", Driver: host.Name, Select: devices[0].Select, Cores: devices[0].Cores,
		Set: capability.Set{Tile: capability.Tile{K: pack.BlockK, N: pack.TileN}, Schemes: []op.Scheme{op.A32W32},
			Layouts: map[string]string{"w32": pack.N32}, DynamicRows: true, StridedInput: true, StridedOutput: true,
			WeightRanges: true}}
}

// bundleOf is a signed bundle of the demo model, of which the processor "gpu" executes one product of every layer.
func bundleOf(t *testing.T, gpu planir.Proc, configure func(*emit.Options)) (path, trust string) {
	t.Helper()
	return bundleOfModel(t, "models/tiny-llama-kjv", gpu, configure)
}

// bundleOfModel is bundleOf for another model below testdata. The key lies beside the .pub.
func bundleOfModel(t *testing.T, name string, gpu planir.Proc, configure func(*emit.Options)) (path, trust string) {
	t.Helper()
	model, err := models.Open(filepath.Join("../../../testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { model.Close() })
	digest, err := model.Digest()
	if err != nil {
		t.Fatal(err)
	}
	graph := model.Graph()
	plan := &planir.Plan{Schema: planir.Schema, Model: planir.ModelRef{Name: model.Name, Digest: digest},
		SoC:        planir.SoCRef{Name: "test", Control: "cpu", Fingerprint: host.Fingerprint()},
		MaxContext: 32, KV: op.F32, Procs: []planir.Proc{coreProc(t), gpu}}
	plan.Decisions, err = lower.Trivial(&graph, "cpu", []int{1}, 32, op.F32,
		func(string, int) op.Scheme { return op.A32W32 })
	if err != nil {
		t.Fatal(err)
	}
	for i := range plan.Decisions {
		if strings.HasSuffix(plan.Decisions[i].Node, "ffn_down") {
			plan.Decisions[i].Shares[0].Proc = "gpu"
		}
	}
	if err := lower.Lower(plan, &graph); err != nil {
		t.Fatal(err)
	}
	return emitted(t, emit.Options{Plan: plan, Model: model}, configure)
}

// emitted is a signed bundle of a plan and its model, which is the same when it is emitted again.
func emitted(t *testing.T, options emit.Options, configure func(*emit.Options)) (path, trust string) {
	t.Helper()
	key, err := emit.GenerateKey(bundle.Ed25519, "release", false)
	if err != nil {
		t.Fatal(err)
	}
	base := filepath.Join(t.TempDir(), "release")
	if err := key.Save(base); err != nil {
		t.Fatal(err)
	}
	options.Signers, options.Compilers = []bundle.Signer{key.Signer()}, []driver.Compiler{hostcompiler.New()}
	options.Product, options.Generation, options.Toolchain = "demo", 1, "test"
	configure(&options)
	path = base + ".hetb"
	if _, err := emit.Emit(t.Context(), path, options); err != nil {
		t.Fatal(err)
	}
	again := base + "2.hetb"
	if _, err := emit.Emit(t.Context(), again, options); err != nil {
		t.Fatal(err)
	}
	one, _ := os.ReadFile(path)
	two, _ := os.ReadFile(again)
	if !bytes.Equal(one, two) {
		t.Error("emitted twice, the bundle differs")
	}
	return path, base + ".pub"
}

// execute runs hetrun with the vendor's driver, and returns what it said and how often it opened the device.
func execute(t *testing.T, path, trust string, v vendor, arguments ...string) (said string, opened int, err error) {
	t.Helper()
	v.Driver, v.opened = host.New(), &opened
	var text bytes.Buffer
	ui := &cli.Streams{Tool: "hetrun", Out: io.Discard, Err: &text}
	cmd := New(ui, "hetrun", false, func(*planir.Plan) ([]driver.Driver, error) { return []driver.Driver{host.New(), v}, nil })
	cmd.SetArgs(append([]string{path, "--trust", trust, "--tokens", "1,5", "--max-tokens", "2"}, arguments...))
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err = cmd.ExecuteContext(t.Context())
	return text.String(), opened, err
}

// A device is tested before a bundle is first run on it, and again after an update or when asked to.
func TestSelfTestIsRunOnce(t *testing.T) {
	t.Setenv("HETC_CACHE", t.TempDir())
	path, trust := vendorBundle(t, true)
	for _, c := range []struct {
		what      string
		vendor    vendor
		arguments []string
		tested    bool
	}{
		{"the first time", vendor{version: "1"}, nil, true},
		{"the second time", vendor{version: "1"}, nil, false},
		{"when asked to", vendor{version: "1"}, []string{"--self-test"}, true},
		{"after an update of the driver", vendor{version: "2"}, nil, true},
		{"after that", vendor{version: "2"}, nil, false},
		{"with the old driver again", vendor{version: "1"}, nil, false},
		{"on another device", vendor{version: "1", device: " 2"}, nil, true},
		{"after that", vendor{version: "1", device: " 2"}, nil, false},
	} {
		said, opened, err := execute(t, path, trust, c.vendor, c.arguments...)
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if tested := opened == 2; tested != c.tested || tested != strings.Contains(said, "kernels on \"gpu\" (GPU of a test") {
			t.Errorf("%s: opened %d times, said %q; want it tested: %v", c.what, opened, said, c.tested)
		}
	}
	known, err := verdicts.List("")
	if err != nil || len(known) != 3 || !strings.HasPrefix(known[0].Device, "GPU of a test") ||
		known[0].Product != "demo" || known[0].Kernels == 0 {
		t.Errorf("kept: %+v, %v; want three", known, err)
	}
	path, trust = vendorBundleOf(t, func(o *emit.Options) {
		o.SelfTest, o.SelfTestOptions = host.New(), map[string]string{"kernels": "reference"}
		o.Toolchain = "another"
	})
	if _, opened, err := execute(t, path, trust, vendor{version: "1"}); err != nil || opened != 2 {
		t.Errorf("another bundle: opened %d times, %v; want it tested", opened, err)
	}
}

// A device that gets a kernel wrong runs nothing, and is tested again the next time.
func TestSelfTestFails(t *testing.T) {
	t.Setenv("HETC_CACHE", t.TempDir())
	path, trust := vendorBundle(t, true)
	for range 2 {
		_, opened, err := execute(t, path, trust, vendor{version: "1", wrong: true})
		if diag.ClassOf(err) != diag.ClassRun || opened != 1 {
			t.Fatalf("opened %d times, %v; want an error of class %v before the plan is loaded", opened, err, diag.ClassRun)
		}
		for _, want := range []string{`processor "gpu"`, "matmul[1,", "relative error"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v: want %q", err, want)
			}
		}
	}
	if known, err := verdicts.List(""); err != nil || len(known) != 0 {
		t.Errorf("kept: %+v, %v; want none", known, err)
	}
}

// A kernel that does not return may go on reading the bundle, which stays mapped until the process ends.
func TestSelfTestLeavesTheBundle(t *testing.T) {
	t.Setenv("HETC_CACHE", t.TempDir())
	path, trust := vendorBundle(t, true)
	ui := &cli.Streams{Tool: "hetrun", Out: io.Discard, Err: io.Discard}
	flags := &options{}
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.terms.Register(set)
	if err := set.Parse([]string{"--trust", trust}); err != nil {
		t.Fatal(err)
	}
	opened, err := openBundle(ui, path, flags)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := opened.entry()
	if err != nil {
		t.Fatal(err)
	}
	read, err := opened.Range("weights/shared", 0, 64)
	if err != nil {
		t.Fatal(err)
	}
	before := slices.Clone(read)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	hangs := drivertest.Inject(ctx, vendor{Driver: host.New(), version: "1", opened: new(int)},
		drivertest.Fault{At: drivertest.AtRun, K: 1, Hang: true})
	err = opened.selfTest(t.Context(), ui, plan, []driver.Driver{host.New(), hangs}, 100*time.Millisecond, false)
	if !errors.Is(err, executor.ErrLeftBehind) {
		t.Fatalf("got %v, want a thread that is left behind", err)
	}
	if err := opened.Close(); err != nil {
		t.Fatal(err)
	}
	same := false
	if fault := mem.CatchFault(func() { same = bytes.Equal(read, before) }); fault != nil || !same {
		t.Errorf("after the bundle was closed its weights are the same: %v, %v", same, fault)
	}
}

// Without a place for verdicts the device is tested every time, which is told when asked.
func TestSelfTestWithoutACache(t *testing.T) {
	path, trust := vendorBundle(t, true)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HETC_CACHE", file) // no directory can be made below it, whoever runs the test
	for _, arguments := range [][]string{nil, nil, {"--self-test"}} {
		said, opened, err := execute(t, path, trust, vendor{version: "1"}, arguments...)
		if err != nil || opened != 2 {
			t.Errorf("%v: opened %d times, %v; want a test and a run", arguments, opened, err)
		}
		if told := strings.Contains(said, "not kept"); told != (arguments != nil) {
			t.Errorf("%v: said %q", arguments, said)
		}
	}
}

// A damaged or foreign verdict counts as none.
func TestSelfTestVerdictIsDamaged(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HETC_CACHE", dir)
	path, trust := vendorBundle(t, true)
	if _, _, err := execute(t, path, trust, vendor{version: "1"}); err != nil {
		t.Fatal(err)
	}
	changed := 0
	err := filepath.WalkDir(filepath.Join(dir, "self-test", "v1", "data"), func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			changed++
			return os.WriteFile(path, []byte(`{"key":""}`), 0o600)
		}
		return err
	})
	if err != nil || changed != 1 {
		t.Fatalf("%d verdicts, %v", changed, err)
	}
	if _, opened, err := execute(t, path, trust, vendor{version: "1"}); err != nil || opened != 2 {
		t.Errorf("opened %d times, %v; want a test", opened, err)
	}
}

// A bundle without a self-test runs, is told of, and refuses --self-test.
func TestBundleWithoutSelfTest(t *testing.T) {
	t.Setenv("HETC_CACHE", t.TempDir())
	path, trust := vendorBundle(t, false)
	said, opened, err := execute(t, path, trust, vendor{version: "1"})
	if err != nil || opened != 1 || !strings.Contains(said, "no self-test of gpu") {
		t.Errorf("opened %d times, said %q, %v", opened, said, err)
	}
	if _, _, err := execute(t, path, trust, vendor{version: "1"}, "--self-test"); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("got %v, want an error of class %v", err, diag.ClassInput)
	}
}

// openclBundle is openclBundleOf with or without binaries.
func openclBundle(t *testing.T, binaries bool) (path, trust string) {
	t.Helper()
	return openclBundleOf(t, func(o *emit.Options) {
		o.Compilers = append(o.Compilers, openclcompiler.New())
		if binaries {
			o.Prebuild = []driver.Driver{opencl.New()}
		}
	})
}

// openclBundleOf is a bundle of the demo model whose products of one row a device of OpenCL executes.
func openclBundleOf(t *testing.T, configure func(*emit.Options)) (path, trust string) {
	t.Helper()
	device, err := opencl.New().Open(t.Context(), driver.Config{})
	if errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrIncapable) {
		require.Skip(t, opencl.Name, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	set := device.Capabilities().Offered()
	slices.Sort(set.Kinds)
	if err := device.Close(); err != nil {
		t.Fatal(err)
	}
	return bundleOf(t, planir.Proc{Name: "gpu", Kind: "gpu", Driver: opencl.Name, Set: set}, func(o *emit.Options) {
		o.SelfTest, o.SelfTestOptions = host.New(), map[string]string{"kernels": "reference"}
		configure(o)
	})
}

// With binaries a bundle runs without a compiler, and without them only where one may be used. What is built is cached.
func TestBinariesOfABundle(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HETC_CACHE", dir)
	path, trust := openclBundle(t, false)
	for _, arguments := range [][]string{nil, {"--strict"}} {
		var text bytes.Buffer
		ui := &cli.Streams{Tool: "hetrun", Out: io.Discard, Err: &text}
		cmd := New(ui, "hetrun", false, func(*planir.Plan) ([]driver.Driver, error) {
			return []driver.Driver{host.New(), opencl.New()}, nil
		})
		cmd.SetArgs(append([]string{path, "--trust", trust, "--tokens", "1,5", "--max-tokens", "2"}, arguments...))
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(t.Context()); arguments == nil && err != nil ||
			arguments != nil && diag.ClassOf(err) != diag.ClassUnavailable {
			t.Errorf("%v without binaries: %v", arguments, err)
		}
	}
	if kept, err := filepath.Glob(filepath.Join(dir, "programs", "v1", "data", "*", "*")); err != nil || len(kept) == 0 {
		t.Errorf("kept %d programs, %v", len(kept), err)
	}
	path, trust = openclBundle(t, true) // emitted twice, with the same bytes
	inspected, err := bundle.Inspect(path)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, blob := range inspected.Manifest.Blobs {
		if strings.HasPrefix(blob.Name, programs.Folder) && blob.Role == bundle.RoleGPUKernel {
			found++
		}
	}
	if found == 0 {
		t.Error("the bundle holds no binaries")
	}
	if text, err := inProcess(t, path, trust, "--strict"); err != nil {
		t.Errorf("--strict with binaries: %v\n%s", err, text)
	}
}

// hanging is the compiler of OpenCL, of whose products none returns for hours.
type hanging struct{ driver.Compiler }

func (h hanging) Compile(ctx context.Context, graph op.Graph, weights driver.Weights, target driver.Target) (
	driver.Artifact, error) {
	made, err := h.Compiler.Compile(ctx, graph, weights, target)
	if err != nil {
		return made, err
	}
	code, err := kernel.Parse(made.Code)
	if err != nil {
		return made, err
	}
	for i, program := range code.Programs {
		before, after, _ := strings.Cut(program.Source, "__kernel void matmul(")
		head, body, _ := strings.Cut(after, "{")
		code.Programs[i].Source = before + "__kernel void matmul(" + head +
			"{ for (volatile long i = 0; i < 1000000000000; i++);" + body
	}
	made.Code, err = code.Encode()
	return made, err
}

// A kernel that does not return ends hetrun with an error after the deadline: in the self-test, and in the model where
// there is none.
func TestHangingKernelOfABundle(t *testing.T) {
	require.Slow(t)
	for withTest, words := range map[bool][]string{
		true:  {`self-test of processor "gpu": graph "`, " (matmul[", ") does not return within 5s"},
		false: {`step "`, `(graph "`, ", layer ", ", matmul[", `on processor "gpu" is not done`, "the processor hangs"},
	} {
		path, trust := openclBundleOf(t, func(o *emit.Options) {
			o.Compilers = append(o.Compilers, hanging{openclcompiler.New()})
			if !withTest {
				o.SelfTest = nil
			}
		})
		began := time.Now()
		text, err := inProcess(t, path, trust, "--deadline", "5s")
		for _, word := range append(words, "exit code 8") {
			if err == nil || !strings.Contains(text, word) {
				t.Errorf("with a self-test: %v: %v, want %q\n%s", withTest, err, word, text)
			}
		}
		if took := time.Since(began); took > 2*time.Minute {
			t.Errorf("with a self-test: %v: it took %v to notice", withTest, took)
		}
	}
}

// A changed byte of a binary is refused before anything is executed, also where the source beside it could be built.
func TestChangedBinaryOfABundle(t *testing.T) {
	t.Setenv("HETC_CACHE", t.TempDir())
	path, trust := openclBundle(t, true)
	inspected, err := bundle.Inspect(path)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i, blob := range inspected.Manifest.Blobs {
		if !strings.HasPrefix(blob.Name, programs.Folder) {
			continue
		}
		for _, place := range []int64{0, blob.Bytes / 2, blob.Bytes - 1} {
			changed := slices.Clone(whole)
			changed[inspected.Offsets[i]+place] ^= 1
			if err := os.WriteFile(path, changed, 0o600); err != nil {
				t.Fatal(err)
			}
			text, err := inProcess(t, path, trust)
			if err == nil || !strings.Contains(text, blob.Name) || !strings.Contains(text, "exit code 5") {
				t.Errorf("byte %d of %q is changed: %v\n%s", place, blob.Name, err, text)
			}
		}
		return
	}
	t.Error("the bundle holds no binaries")
}

// inProcess runs a bundle in a process of its own, which has no programs yet and may be left with threads that compute.
func inProcess(t *testing.T, path, trust string, arguments ...string) (text string, err error) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestRunBundle$")
	cmd.Env = append(os.Environ(), "HETC_TEST_BUNDLE="+strings.Join(append([]string{path, "--trust", trust}, arguments...), "\n"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestRunBundle is the process of inProcess.
func TestRunBundle(t *testing.T) {
	arguments := os.Getenv("HETC_TEST_BUNDLE")
	if arguments == "" {
		t.Skip("a process of tests of bundles")
	}
	ui := &cli.Streams{Tool: "hetrun", Out: io.Discard, Err: io.Discard}
	cmd := New(ui, "hetrun", false, func(*planir.Plan) ([]driver.Driver, error) {
		return []driver.Driver{host.New(), opencl.New()}, nil
	})
	cmd.SetArgs(append(strings.Split(arguments, "\n"), "--tokens", "1,5", "--max-tokens", "2"))
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("exit code %d: %v", diag.ClassOf(err), err)
	}
}
