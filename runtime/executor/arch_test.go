package executor_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/models/safetensors"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/executor"
)

// lengths are the numbers of tokens that testdata/arch has logits for.
var lengths = []int{1, 7, 33, 130}

// Every model of testdata/arch gives the logits stored beside it, which another implementation has computed
// (testdata/arch/make.py). It does so on one processor with the kernels of this CPU and with the portable ones, divided
// over two processors in several ways, and in chunks. HETC_ARCH_DIR adds a directory of such models.
func TestArchitectures(t *testing.T) {
	require.Slow(t)
	dirs := archDirs(t)
	a, b := cores(t)
	setups := []archSetup{
		{name: "one", procs: singleOn(a)},
		{name: "portable", procs: []planir.Proc{proc("a", a, "portable")}},
		{name: "columns", procs: pairOn(a, b), layout: byColumns},
		{name: "rows", procs: pairOn(a, b), layout: byRows},
		{name: "pairs", procs: pairOn(a, b), layout: swapped},
	}
	for _, config := range dirs {
		dir := filepath.Dir(config)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m, err := models.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			want := readLogits(t, filepath.Join(dir, "logits.safetensors"))
			for _, setup := range setups {
				setup.compare(t, m, want)
			}
			runtime.GC() // unmaps nothing, but keeps the many small machines from piling up
		})
	}
}

// archSetup is a way to execute a model.
type archSetup struct {
	name   string
	procs  []planir.Proc
	layout layoutOf
}

// compare computes all prompts, whole and in chunks, and compares their logits with the stored ones.
func (s archSetup) compare(t *testing.T, m *models.Model, want map[int]reference) {
	t.Helper()
	x := machine(t, m, makePlan(t, m, planSpec{
		procs: s.procs, rows: []int{1, 16, 64}, context: max(130, min(m.MaxContext, 160)),
		scheme: op.A32W32, layout: s.layout,
	}), executor.Options{})
	defer x.Close()
	for _, n := range lengths {
		for _, chunks := range [][]int{nil, {5, 1, 20}} {
			if chunks != nil && (n < 33 || dependsOnLength(m)) {
				continue
			}
			got := allLogits(t, x, want[n].ids, chunks...)
			if d := want[n].diff(got, m.Vocab); !(d <= 1e-3) {
				what := fmt.Sprintf("%s: %d tokens in chunks %v", s.name, n, chunks)
				t.Errorf("%s: logits differ by %.2g, want at most 0.001", what, d)
			}
		}
	}
}

// archDirs lists the configurations of the models of testdata/arch, and of HETC_ARCH_DIR, that are not refused.
func archDirs(t *testing.T) []string {
	t.Helper()
	var dirs []string
	for _, root := range []string{"../../testdata/arch", os.Getenv("HETC_ARCH_DIR")} {
		if root == "" {
			continue
		}
		found, err := filepath.Glob(filepath.Join(root, "*", "config.json"))
		if err != nil || len(found) == 0 {
			t.Fatalf("found no models in %q (%v)", root, err)
		}
		for i, f := range found {
			if raceEnabled && i%9 != 0 {
				continue
			}
			m, err := models.Open(filepath.Dir(f))
			if err != nil && strings.Contains(err.Error(), "qk_layernorm") { // refused, see models
				continue
			}
			if err == nil {
				m.Close()
			}
			dirs = append(dirs, f)
		}
	}
	return dirs
}

// Quantised plans divided by columns, by rows and over experts' columns give the very bits of the undivided
// plan, for every operator that any architecture has.
func TestQuantisedArchitectures(t *testing.T) {
	require.Slow(t)
	a, b := cores(t)
	for _, config := range archDirs(t) {
		dir := filepath.Dir(config)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m, err := models.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			ids := readLogits(t, filepath.Join(dir, "logits.safetensors"))[33].ids
			for _, scheme := range []op.Scheme{op.A32W16, op.A8TQ8C, op.A8TQ4B32, op.A8TQ4B128} {
				run := func(procs []planir.Proc, f layoutOf) []float32 {
					x := machine(t, m, makePlan(t, m, planSpec{
						procs: procs, rows: []int{1, 16}, context: 64, scheme: scheme, layout: f,
					}), executor.Options{})
					defer x.Close()
					return allLogits(t, x, ids)
				}

				base := run(singleOn(a), bySingle)
				for name, f := range map[string]layoutOf{"columns": byColumns, "rows": byRows} {
					if d := maxDiff(run(pairOn(a, b), f), base); d != 0 {
						t.Errorf("%s by %s: differs from the undivided plan by %g, want equal bits", scheme, name, d)
					}
				}
			}
		})
	}
}

// A GGUF file with the weights of a model gives its logits.
func TestGGUFGivesTheSameLogits(t *testing.T) {
	a, _ := cores(t)
	tried := 0
	for _, config := range archDirs(t) {
		dir := filepath.Dir(config)
		m, err := models.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if m.Stored == op.F32 {
			continue // f16 would round the weights
		}

		path := filepath.Join(t.TempDir(), "m.gguf")
		if err := models.Export(context.Background(), m, path, op.F16); err != nil {
			if !strings.Contains(err.Error(), "GGUF") {
				t.Error(err)
			}
			continue
		}
		g, err := models.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()

		x := machine(t, g, makePlan(t, g, planSpec{
			procs: singleOn(a), rows: []int{1, 64}, context: 64, scheme: op.A32W32,
		}), executor.Options{})
		want := readLogits(t, filepath.Join(dir, "logits.safetensors"))[33]
		if d := maxDiff(allLogits(t, x, want.ids), want.logits); d > 1e-3 {
			t.Errorf("%s: logits of the GGUF file differ by %.2g, want at most 0.001", m.Name, d)
		}
		x.Close()
		tried++
	}
	if tried < 10 && !raceEnabled {
		t.Errorf("%d models tried, want at least 10", tried)
	}
}

// dependsOnLength reports whether the length of the whole prompt changes how earlier positions are rotated,
// so that chunks are another computation.
func dependsOnLength(m *models.Model) bool {
	g := m.Graph()
	return slices.ContainsFunc(g.Sections, func(s models.Section) bool {
		return slices.ContainsFunc(s.Nodes, func(n models.Node) bool {
			return slices.ContainsFunc(n.Ops, func(o op.Op) bool { return o.Kind == op.Rope && o.LongFrom > 0 })
		})
	})
}

// reference is a prompt with logits that another implementation has computed.
type reference struct {
	ids    []int32
	rows   []int32 // positions whose logits are stored
	logits []float32
}

// pick returns the rows of all logits that the reference has.
func (r reference) pick(all []float32, vocab int) []float32 {
	var picked []float32
	for _, row := range r.rows {
		picked = append(picked, all[int(row)*vocab:][:vocab]...)
	}
	return picked
}

// diff is the largest difference between the stored logits and all of a machine.
func (r reference) diff(all []float32, vocab int) float64 {
	return maxDiff(r.pick(all, vocab), r.logits[:len(r.rows)*vocab])
}

// readLogits returns the references of a model by their numbers of tokens.
func readLogits(t *testing.T, path string) map[int]reference {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[int]reference{}
	for _, n := range lengths {
		out[n] = reference{
			ids:    tensor[int32](t, f, fmt.Sprintf("ids_%d", n)),
			rows:   tensor[int32](t, f, fmt.Sprintf("positions_%d", n)),
			logits: tensor[float32](t, f, fmt.Sprintf("logits_%d", n)),
		}
	}
	return out
}

// tensor is a copy of a tensor's numbers.
func tensor[T mem.Scalar](t *testing.T, f *safetensors.File, name string) []T {
	t.Helper()
	x, ok := f.Tensor(name)
	if !ok {
		t.Fatalf("no tensor %q", name)
	}
	v, err := mem.View[T](x.Data)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(v)
}
