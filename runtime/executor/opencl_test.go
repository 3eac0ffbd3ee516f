package executor_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	openclcompiler "github.com/hetc/hetc/emit/compile/opencl"
	ortcompiler "github.com/hetc/hetc/emit/compile/ort"
	"github.com/hetc/hetc/internal/clapi"
	"github.com/hetc/hetc/internal/native"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/driver/opencl"
	"github.com/hetc/hetc/runtime/driver/ort"
	"github.com/hetc/hetc/runtime/executor"
)

// openclProcs is what a plan says of each device of OpenCL that is here; without any the test is skipped.
func openclProcs(t testing.TB, name string, options map[string]string) (list []planir.Proc) {
	t.Helper()
	require.Deps()
	devices, err := opencl.New().Devices(context.Background())

	own := map[string]map[string]string{} // options of devices that no ICD loader lists
	intel := filepath.Join(os.Getenv(native.EnvDir), clapi.IntelFolder, clapi.IntelLibrary)
	if _, missing := os.Stat(intel); missing == nil && !testing.Short() {
		devices = append(devices, driver.Device{Select: "0.0", Description: "intel"})
		own["intel"] = map[string]string{"library": intel}
	}
	if len(devices) == 0 && errors.Is(err, driver.ErrUnavailable) {
		require.Skip(t, opencl.Name, err)
	}

	for _, device := range devices {
		options := maps.Clone(options)
		if more := own[device.Description]; more != nil {
			if options == nil {
				options = map[string]string{}
			}
			maps.Copy(options, more)
		}
		list = append(list, openclProc(t, name, device.Select, options))
	}
	return list
}

// openclProc is what a plan says of one device of OpenCL.
func openclProc(t testing.TB, name, sel string, options map[string]string) planir.Proc {
	t.Helper()
	p, err := opencl.New().Open(context.Background(), driver.Config{Select: sel, Options: options})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	proc := planir.Proc{
		Name: name, Kind: "gpu", Driver: opencl.Name, Select: sel, Options: options,
		Set: p.Capabilities().Offered(),
	}
	slices.Sort(proc.Kinds)
	return proc
}

// withOpenCL are options with the drivers of OpenCL, ONNX Runtime and the host.
func withOpenCL() executor.Options {
	return executor.Options{Drivers: []driver.Driver{host.New(), opencl.New(), ort.New()}}
}

// bothCompilers are those of the library drivers.
func bothCompilers() []driver.Compiler {
	return []driver.Compiler{openclcompiler.New(), ortcompiler.New()}
}

// A model on a device of OpenCL alone, and divided between it, the host and ONNX Runtime, has the logits of another
// implementation: in float32 up to rounding, quantised with the loss that the host has.
func TestOpenCLLogits(t *testing.T) {
	require.Slow(t)
	m := open(t)
	s0, s1 := cores(t)
	ids, _ := ref[int32](t, "ids_3")
	ids = ids[:min(len(ids), 40)]
	want, _ := ref[float32](t, "logits_3")
	want = want[:len(ids)*m.Vocab]
	losses := map[op.Scheme]float64{}
	for _, scheme := range []op.Scheme{op.A8TQ8C, op.A8TQ4B32} {
		x := machine(t, m, makePlan(t, m, planSpec{
			procs: singleOn(s0), rows: []int{1, 16}, context: 64, scheme: scheme,
		}), executor.Options{})
		losses[scheme] = meanKL(allLogits(t, x, ids), want, m.Vocab)
		x.Close()
	}

	for _, options := range []map[string]string{nil, {"memory": "own"}, {"completion": "flag"}} {
		for _, device := range openclProcs(t, "b", options) {
			alone := device
			alone.Name = "a"
			withHost := []planir.Proc{proc("a", s0, ""), device}
			for _, c := range []struct {
				archSetup
				slow bool
			}{
				{archSetup: archSetup{name: "alone", procs: []planir.Proc{alone}}},
				{archSetup: archSetup{name: "columns with host", procs: withHost, layout: byColumns}},
				{archSetup: archSetup{name: "rows with host", procs: withHost, layout: byRows}, slow: true},
				{archSetup: archSetup{name: "pairs with host", procs: withHost, layout: byPairs}, slow: true},
			} {
				if c.slow && (testing.Short() || options != nil) {
					continue
				}
				t.Run(device.Select+" "+c.name+optionText(device.Options), func(t *testing.T) {
					for _, scheme := range []op.Scheme{op.A32W32, op.A8TQ8C, op.A8TQ4B32} {
						if options != nil && scheme == op.A8TQ4B32 {
							continue
						}
						x := machine(t, m, makePlan(t, m, planSpec{
							procs: c.procs, rows: []int{1, 16}, context: 64, scheme: scheme, layout: c.layout,
						}), withOpenCL(), bothCompilers()...)
						judge(t, scheme, allLogits(t, x, ids), want, m.Vocab, losses[scheme])
						d := maxDiff(allLogits(t, x, ids, 3, 1, 1, 20), want)
						if scheme == op.A32W32 && d > 1e-3 {
							t.Errorf("%s in pieces: differs by %.3g, want at most 0.001", scheme, d)
						}
						x.Close()
					}
				})
			}
			if options != nil {
				continue
			}
			t.Run(device.Select+" among host and ort"+optionText(device.Options), func(t *testing.T) {
				needORT(t)
				procs := append(slices.Clone(withHost), ortProc(t, "c", s1))
				for _, scheme := range []op.Scheme{op.A32W32, op.A8TQ8C, op.A8TQ4B32} {
					x := machine(t, m, makePlan(t, m, planSpec{
						procs: procs, rows: []int{1, 16}, context: 64, scheme: scheme,
						layout: amongDevices(rand.New(rand.NewPCG(2, 4)), procs),
					}), withOpenCL(), bothCompilers()...)
					judge(t, scheme, allLogits(t, x, ids), want, m.Vocab, losses[scheme])
					x.Close()
				}
			})
		}
	}
}

// Caches of every type that devices have give the logits that they give on the host: on a device alone and with heads
// divided between it and the host, where a prompt comes in pieces, and where the device has memory of its own.
func TestOpenCLCaches(t *testing.T) {
	require.Slow(t)
	m := open(t)
	first, _ := cores(t)
	ids, _ := ref[int32](t, "ids_3")
	ids = ids[:40]
	on := proc("a", first, "")
	for _, cache := range []op.Type{op.F32, op.F16, op.Q8} {
		plan := func(f layoutOf, procs ...planir.Proc) *planir.Plan {
			return withCache(t, m, makePlan(t, m, planSpec{
				procs: procs, rows: []int{1, 16}, context: 64, scheme: op.A32W32, layout: f,
			}), cache)
		}
		x := machine(t, m, plan(bySingle, on), executor.Options{})
		want := allLogits(t, x, ids)
		x.Close()

		for _, options := range []map[string]string{nil, {"memory": "own"}} {
			for _, device := range openclProcs(t, "b", options) {
				alone := device
				alone.Name = "a"
				plans := map[string]*planir.Plan{
					"alone":   plan(bySingle, alone),
					"divided": plan(byColumns, on, device),
				}
				for name, p := range plans {
					x := machine(t, m, p, withOpenCL(), bothCompilers()...)
					for _, pieces := range [][]int{nil, {3, 1, 1, 20}} {
						got := allLogits(t, x, ids, pieces...)
						d, kl := maxDiff(got, want), meanKL(got, want, m.Vocab)
						what := fmt.Sprintf("%s%s, %s, pieces %v", cache, optionText(device.Options), name, pieces)
						t.Logf("%s: largest difference %.2g, mean KL %.2g", what, d, kl)
						// A number that lies between two codes may be rounded to either.
						if !(kl <= 1e-5) || cache == op.F32 && !(d <= 1e-3) {
							t.Errorf("%s: logits differ by %.3g, mean KL %.3g, from the host's", what, d, kl)
						}
					}
					x.Close()
				}
			}
		}
	}
}

// amongDevices gives each node to one that executes it, and divides products between host and device.
func amongDevices(r *rand.Rand, procs []planir.Proc) layoutOf {
	return func(d *planir.Decision, n *lower.Node) {
		var able []string
		for _, p := range procs {
			capable := !slices.ContainsFunc(n.Ops, func(o op.Op) bool {
				return len(p.Kinds) > 0 && !slices.Contains(p.Kinds, o.Kind)
			})
			if capable && (p.Driver != ort.Name || n.Op().Kind != op.Embed) {
				able = append(able, p.Name)
			}
		}
		if n.Op().Kind == op.MatMul && r.IntN(2) == 0 {
			among(r, "a", "b")(d, n)
			return
		}
		d.Shares[0].Proc = able[r.IntN(len(able))]
	}
}

// optionText is what a test's name says of options.
func optionText(options map[string]string) (text string) {
	for _, key := range slices.Sorted(maps.Keys(options)) {
		text += " " + key + "=" + filepath.Base(options[key])
	}
	return text
}

// judge compares logits with the reference: by the largest difference in float32, else by the mean divergence, which is
// at most a tenth above the host's.
func judge(t *testing.T, scheme op.Scheme, got, want []float32, vocab int, loss float64) {
	t.Helper()
	d, kl := maxDiff(got, want), meanKL(got, want, vocab)
	t.Logf("%s: largest difference %.2g, mean KL %.2g (host %.2g)", scheme, d, kl, loss)

	if scheme == op.A32W32 && !(d <= 1e-3) {
		t.Errorf("%s: differs by %.3g, want at most 0.001", scheme, d)
	}
	if scheme != op.A32W32 && !(kl <= 1.1*loss+1e-4) {
		t.Errorf("%s: mean KL %.3g, want at most a tenth above the host's %.3g", scheme, kl, loss)
	}
}

// Architectures on a device of OpenCL have another implementation's logits, also where products are divided between it
// and the host, or between it and ONNX Runtime. What the device does not execute, the host does.
func TestOpenCLArchitectures(t *testing.T) {
	require.Slow(t)
	devices := openclProcs(t, "b", nil)
	s0, s1 := cores(t)
	for i, config := range archDirs(t) {
		if testing.Short() && i%4 > 0 {
			continue
		}
		dir := filepath.Dir(config)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m, err := models.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			r := readLogits(t, filepath.Join(dir, "logits.safetensors"))[33]

			compare := func(t *testing.T, device planir.Proc, partner string, procs ...planir.Proc) {
				procs = append([]planir.Proc{proc("a", s0, ""), device}, procs...)
				x := machine(t, m, makePlan(t, m, planSpec{
					procs: procs, rows: []int{1, 16, 48}, context: max(130, min(m.MaxContext, 160)),
					scheme: op.A32W32, layout: onDevice(device, partner),
				}), withOpenCL(), bothCompilers()...)
				defer x.Close()
				if d := r.diff(allLogits(t, x, r.ids), m.Vocab); !(d <= 1e-3) {
					t.Errorf("%s: logits differ by %.2g, want at most 0.001", device.Select, d)
				}
			}
			for _, device := range devices {
				compare(t, device, []string{"", "a"}[i%2])
				if i%4 == 0 {
					compareQuantised(t, m, r, proc("a", s0, ""), device)
					t.Run("with ort"+optionText(device.Options), func(t *testing.T) {
						needORT(t)
						compare(t, device, "c", ortProc(t, "c", s1))
					})
				}
			}
		})
	}
}

// compareQuantised compares the divergence of a quantised model on a device, with products divided between it and the
// host, from float32 with that on the host alone.
func compareQuantised(t *testing.T, m *models.Model, r reference, host, device planir.Proc) {
	t.Helper()
	want := r.logits[:len(r.rows)*m.Vocab]
	allowed := 1.1 // times the host's
	if m.Experts > 0 {
		allowed = 1.3 // another expert may be chosen for a token
	}
	for _, scheme := range []op.Scheme{op.A8TQ8C, op.A8TQ4B32} {
		loss := func(layout layoutOf, procs ...planir.Proc) float64 {
			x := machine(t, m, makePlan(t, m, planSpec{
				procs: procs, rows: []int{1, 16}, context: max(130, min(m.MaxContext, 160)),
				scheme: scheme, layout: layout,
			}), withOpenCL(), bothCompilers()...)
			defer x.Close()
			return meanKL(r.pick(allLogits(t, x, r.ids), m.Vocab), want, m.Vocab)
		}

		alone, divided := loss(bySingle, host), loss(onDevice(device, "a"), host, device)
		t.Logf("%s %s: mean KL %.3g, host %.3g", device.Select, scheme, divided, alone)
		if !(divided <= allowed*alone+1e-4) {
			t.Errorf("%s %s: mean KL %.3g, want at most %v times the host's %.3g", device.Select, scheme, divided,
				allowed, alone)
		}
	}
}

// onDevice gives a node to the device where that executes it, and products to it and a partner; "" is none.
func onDevice(device planir.Proc, partner string) layoutOf {
	return func(d *planir.Decision, n *lower.Node) {
		for _, o := range n.Ops {
			if !slices.Contains(device.Kinds, o.Kind) {
				return
			}
		}
		d.Shares = []planir.Share{{Proc: device.Name}}
		if o := n.Op(); partner != "" && o.Kind == op.MatMul {
			divide(d, planir.AxisCols, o.N, pack.TileN)
			for i := range d.Shares {
				d.Shares[i].Proc = []string{partner, device.Name}[i]
			}
		}
	}
}

// A mixture of experts on a device of OpenCL alone has another implementation's logits: router, experts and all
// between.
func TestOpenCLExpertsAlone(t *testing.T) {
	devices := openclProcs(t, "a", nil)
	tried := 0
	for _, config := range archDirs(t) {
		dir := filepath.Dir(config)
		m, err := models.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if m.Experts == 0 || testing.Short() && tried > 1 {
			m.Close()
			continue
		}
		tried++
		t.Run(filepath.Base(dir), func(t *testing.T) {
			r := readLogits(t, filepath.Join(dir, "logits.safetensors"))[33]
			for _, device := range devices {
				procs := []planir.Proc{device}
				x := machine(t, m, makePlan(t, m, planSpec{
					procs: procs, rows: []int{1, 16, 48}, context: max(130, min(m.MaxContext, 160)),
					scheme: op.A32W32,
				}), withOpenCL(), bothCompilers()...)
				if d := r.diff(allLogits(t, x, r.ids), m.Vocab); !(d <= 1e-3) {
					t.Errorf("%s: logits differ by %.2g, want at most 0.001", device.Select, d)
				}
				x.Close()
			}
		})
		m.Close()
	}
	if tried == 0 {
		t.Fatal("no model has experts")
	}
}
