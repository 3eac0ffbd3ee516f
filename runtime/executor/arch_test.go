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

// TestArchitectures compares every model of testdata/arch, made by another implementation
// (testdata/arch/make.py), with the logits stored beside it: on one processor with the kernels of this CPU
// and with the portable ones, divided over two processors in several ways, and in chunks.
// HETC_ARCH_DIR adds a directory of such models.
func TestArchitectures(t *testing.T) {
	require.Slow(t)
	dirs := archDirs(t)
	a, b := cores(t)
	type setup struct {
		name   string
		procs  []planir.Proc
		layout layoutOf
	}
	pair := func() []planir.Proc { return []planir.Proc{proc("a", a, ""), proc("b", b, "")} }
	setups := []setup{
		{"one", []planir.Proc{proc("a", a, "")}, bySingle},
		{"portable", []planir.Proc{proc("a", a, "portable")}, bySingle},
		{"columns", pair(), byColumns},
		{"rows", pair(), byRows},
		{"pairs", pair(), swapped},
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
			for _, s := range setups {
				p := makePlan(t, m, s.procs, []int{1, 16, 64}, max(130, min(m.MaxContext, 160)), op.A32W32, s.layout)
				x := machine(t, m, p, executor.Options{})
				for _, n := range lengths {
					r := want[n]
					for _, chunks := range [][]int{nil, {5, 1, 20}} {
						if chunks != nil && (n < 33 || dependsOnLength(m)) {
							continue
						}
						got := allLogits(t, x, r.ids, chunks...)
						worst := 0.0
						for i, row := range r.rows {
							worst = max(worst, maxDiff(got[int(row)*m.Vocab:][:m.Vocab], r.logits[i*m.Vocab:][:m.Vocab]))
						}
						if worst > 1e-3 {
							t.Errorf("%s: %d tokens in chunks %v: logits differ by %.2g, want at most 0.001", s.name, n, chunks, worst)
						}
					}
				}
				x.Close()
			}
			runtime.GC() // unmaps nothing, but keeps the many small machines from piling up
		})
	}
}

// archDirs lists the models of testdata/arch, and of HETC_ARCH_DIR, that are not refused.
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
			if m, err := models.Open(filepath.Dir(f)); err == nil {
				m.Close()
			} else if strings.Contains(err.Error(), "qk_layernorm") { // refused, see models
				continue
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
					x := machine(t, m, makePlan(t, m, procs, []int{1, 16}, 64, scheme, f), executor.Options{})
					defer x.Close()
					return allLogits(t, x, ids)
				}
				base := run([]planir.Proc{proc("a", a, "")}, bySingle)
				for name, f := range map[string]layoutOf{"columns": byColumns, "rows": byRows} {
					if d := maxDiff(run([]planir.Proc{proc("a", a, ""), proc("b", b, "")}, f), base); d != 0 {
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
		x := machine(t, g, makePlan(t, g, []planir.Proc{proc("a", a, "")}, []int{1, 64}, 64, op.A32W32, bySingle), executor.Options{})
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

type reference struct {
	ids    []int32
	rows   []int32 // positions whose logits are stored
	logits []float32
}

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
