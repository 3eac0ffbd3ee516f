package executor_test

import (
	"path/filepath"
	"slices"
	"testing"

	ortcompiler "github.com/hetc/hetc/emit/compile/ort"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
)

// onLibrary gives a node to processor b, if it executes it, or a product to b and c: whole, by columns or by rows.
func onLibrary(form int) layoutOf {
	able := []op.Kind{op.MatMul, op.QuantRows, op.Norm, op.LayerNorm, op.GLU, op.Activate, op.Softcap, op.Clip, op.Add, op.Gate}
	return func(d *planir.Decision, n *lower.Node) {
		for _, o := range n.Ops {
			if !slices.Contains(able, o.Kind) {
				return
			}
		}
		d.Shares = []planir.Share{{Proc: "b"}}
		if o := n.Op(); o.Kind == op.MatMul && form%3 > 0 {
			divide(d, []planir.Axis{"", planir.AxisCols, planir.AxisRows}[form%3], []int{0, o.N, o.M}[form%3], []int{0, pack.TileN, 1}[form%3])
			for i := range d.Shares {
				d.Shares[i].Proc = []string{"b", "c"}[i]
			}
		}
	}
}

// Every architecture over ONNX Runtime and the host beside it computes what it should: in float32 another
// implementation's logits, quantised nearly what the host computes alone. Layers whose operators the library does not
// have are the host's in part.
func TestORTArchitectures(t *testing.T) {
	needORT(t)
	s0, s1 := cores(t)
	one := []planir.Proc{proc("a", s0, "")}
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
			x := machine(t, m, makePlan(t, m, procs, []int{1, 16, 48}, max(130, min(m.MaxContext, 160)), op.A32W32, onLibrary(i)), withORT(), ortcompiler.New())
			got, worst := allLogits(t, x, r.ids), 0.0
			for k, row := range r.rows {
				worst = max(worst, maxDiff(got[int(row)*m.Vocab:][:m.Vocab], r.logits[k*m.Vocab:][:m.Vocab]))
			}
			if worst > 1e-3 {
				t.Errorf("float32: logits differ by %.2g, want at most 0.001", worst)
			}
			x.Close()
			cal := ranged(t, m, s0, r.ids)
			for _, scheme := range []op.Scheme{op.A8TQ8C, op.A8SQ8C, op.A8TQ4B32} {
				run := func(procs []planir.Proc, f layoutOf) []float32 {
					p, cal := makePlan(t, m, procs, []int{1, 16}, 64, scheme, f), cal
					if !scheme.Static() {
						cal = nil
					} else {
						p = folded(t, p, m, cal)
					}
					x := machineWith(t, m, p, cal, withORT(), ortcompiler.New())
					defer x.Close()
					return allLogits(t, x, r.ids)
				}
				limit := 0.05
				if m.Experts > 0 || scheme == op.A8TQ4B32 { // another expert may be chosen for a token; the library rounds once more
					limit = 0.25
				}
				if change := changed(run(procs, onLibrary(i)), run(one, bySingle)); !(change < limit) {
					t.Errorf("%s: logits change by %.3g of their size", scheme, change)
				} else {
					t.Logf("%s: %.4f", scheme, change)
				}
			}
		})
	}
}

// The same for models of odd shapes, against the plain formulas.
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
				p, cal := makePlan(t, m, procs, []int{1, 16}, 64, scheme, onLibrary(i)), cal
				if !scheme.Static() {
					cal = nil
				} else {
					p = folded(t, p, m, cal)
				}
				x := machineWith(t, m, p, cal, withORT(), ortcompiler.New())
				got := allLogits(t, x, ids)
				x.Close()
				if d, kl := maxDiff(got, want), meanKL(got, want, m.Vocab); scheme == op.A32W32 && !(d <= 1e-3) || !(kl <= map[bool]float64{false: 0.012, true: 0.3}[scheme.BlockK() > 1]) {
					t.Errorf("%s: largest difference %.3g, mean KL %.3g", scheme, d, kl)
				}
			}
		})
	}
}
