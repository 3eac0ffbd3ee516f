package executor_test

import (
	"path/filepath"
	"slices"
	"testing"

	ortcompiler "github.com/hetc/hetc/emit/compile/ort"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/executor"
)

// onLibrary gives a node to processor b, if it executes it, or a product to b and c: whole, by columns or by rows.
func onLibrary(form int) layoutOf {
	able := []op.Kind{
		op.MatMul, op.QuantRows, op.Norm, op.LayerNorm, op.GLU, op.Activate, op.Softcap, op.Clip, op.Add, op.Gate,
	}
	return func(d *planir.Decision, n *lower.Node) {
		for _, o := range n.Ops {
			if !slices.Contains(able, o.Kind) {
				return
			}
		}
		d.Shares = []planir.Share{{Proc: "b"}}
		o := n.Op()
		if o.Kind != op.MatMul || form%3 == 0 {
			return
		}
		if form%3 == 1 {
			divide(d, planir.AxisCols, o.N, pack.TileN)
		} else {
			divide(d, planir.AxisRows, o.M, 1)
		}
		for i := range d.Shares {
			d.Shares[i].Proc = []string{"b", "c"}[i]
		}
	}
}

// calibratedORT is a machine over ONNX Runtime and the host, of a plan with the calibration where its scheme needs it.
func calibratedORT(t *testing.T, m *models.Model, cal *calibration.Calibration, spec planSpec) *executor.Machine {
	t.Helper()
	p := makePlan(t, m, spec)
	if !spec.scheme.Static() {
		return machine(t, m, p, withORT(), ortcompiler.New())
	}
	return machineWith(t, m, folded(t, p, m, cal), cal, withORT(), ortcompiler.New())
}

// Every architecture over ONNX Runtime and the host beside it computes what it should: in float32 another
// implementation's logits, quantised nearly what the host computes alone. Layers whose operators the library does not
// have are the host's in part.
func TestORTArchitectures(t *testing.T) {
	needORT(t)
	s0, s1 := cores(t)
	one := singleOn(s0)
	procs := []planir.Proc{proc("a", s0, ""), ortProc(t, "b", s0), proc("c", s1, "")}
	for i, config := range archDirs(t) {
		if i%3 > 0 { // one of three, in all forms
			continue
		}
		i, dir := i/3, filepath.Dir(config)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m, err := models.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			r := readLogits(t, filepath.Join(dir, "logits.safetensors"))[33]
			x := machine(t, m, makePlan(t, m, planSpec{
				procs: procs, rows: []int{1, 16, 48}, context: max(130, min(m.MaxContext, 160)),
				scheme: op.A32W32, layout: onLibrary(i),
			}), withORT(), ortcompiler.New())
			if d := r.diff(allLogits(t, x, r.ids), m.Vocab); !(d <= 1e-3) {
				t.Errorf("float32: logits differ by %.2g, want at most 0.001", d)
			}
			x.Close()

			cal := ranged(t, m, s0, r.ids)
			for _, scheme := range []op.Scheme{op.A8TQ8C, op.A8SQ8C, op.A8TQ4B32} {
				run := func(procs []planir.Proc, layout layoutOf) []float32 {
					x := calibratedORT(t, m, cal, planSpec{
						procs: procs, rows: []int{1, 16}, context: 64, scheme: scheme, layout: layout,
					})
					defer x.Close()
					return allLogits(t, x, r.ids)
				}
				limit := 0.05
				if m.Experts > 0 || scheme == op.A8TQ4B32 {
					limit = 0.25 // another expert may be chosen for a token; the library rounds once more
				}

				change := changed(run(procs, onLibrary(i)), run(one, bySingle))

				t.Logf("%s: %.4f", scheme, change)
				if !(change < limit) {
					t.Errorf("%s: logits change by %.3g of their size, want less than %g", scheme, change, limit)
				}
			}
		})
	}
}

// Models of odd shapes over ONNX Runtime have the logits of the plain formulas, quantised with little loss.
func TestORTOddShapes(t *testing.T) {
	needORT(t)
	s0, s1 := cores(t)
	procs := []planir.Proc{proc("a", s0, ""), ortProc(t, "b", s0), proc("c", s1, "")}
	for i, l := range oddShapes() {
		t.Run(l.String(), func(t *testing.T) {
			dir := t.TempDir()
			l.write(t, dir)
			m, err := models.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			ids := spread(60, l.vocab)
			want := l.logits(ids)
			cal := ranged(t, m, s0, ids)
			for _, scheme := range []op.Scheme{op.A32W32, op.A8TQ8C, op.A8SQ8C, op.A8TQ4B32, op.A8TQ4B128} {
				x := calibratedORT(t, m, cal, planSpec{
					procs: procs, rows: []int{1, 16}, context: 64, scheme: scheme, layout: onLibrary(i),
				})
				got := allLogits(t, x, ids)
				x.Close()

				limit := 0.012
				if scheme.BlockK() > 1 {
					limit = 0.3
				}
				if kl := meanKL(got, want, m.Vocab); !(kl <= limit) {
					t.Errorf("%s: mean KL %.3g, want at most %g", scheme, kl, limit)
				}
				if d := maxDiff(got, want); scheme == op.A32W32 && !(d <= 1e-3) {
					t.Errorf("%s: logits differ by %.3g, want at most 0.001", scheme, d)
				}
			}
		})
	}
}
