package executor_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/quality"
)

// ranged is a calibration with what enters the products when ids are executed in float32, and with random folds.
func ranged(t testing.TB, m *models.Model, sel string, ids []int32) *calibration.Calibration {
	t.Helper()
	rng := rand.New(rand.NewPCG(3, 4))
	cal := folds(t, m, func() float32 { return float32(math.Exp(rng.NormFloat64() / 4)) })
	if m.Tied { // the embedding reads the head's matrix, which then is not folded
		cal.Folds = slices.DeleteFunc(cal.Folds, func(f calibration.Fold) bool { return f.Group == "head.norm" })
	}
	var r quality.Ranges
	x := machine(t, m, makePlan(t, m, []planir.Proc{proc("a", sel, "")}, []int{1, 16}, 64, op.A32W32, bySingle), executor.Options{Observe: r.Observe})
	allLogits(t, x, ids)
	r.Again()
	allLogits(t, x, ids)
	var err error
	if cal.Activations, err = r.Activations(0); err != nil {
		t.Fatal(err)
	}
	if err := cal.Validate(); err != nil {
		t.Fatal(err)
	}
	return cal
}

// scales are static scales of all rows, as many as shares of the single one.
func scales(m *models.Model, cal *calibration.Calibration, shares ...float32) (out []calibration.Scales) {
	group := map[string]string{}
	g := m.Graph()
	for _, f := range g.Folds() {
		for _, class := range f.Readers {
			group[class] = f.Name
		}
	}
	for i := range cal.Activations {
		a := &cal.Activations[i]
		var factors []float32
		if f := cal.Fold(group[a.Class], a.Layer); f != nil {
			factors = f.Factors
		}
		x := calibration.Scales{Class: a.Class, Layer: a.Layer}
		for _, share := range shares {
			x.Values = append(x.Values, share*a.StaticScale(factors, 1))
		}
		out = append(out, x)
	}
	return out
}

// changed is how far logits are from others, relative to their size.
func changed(got, want []float32) float64 {
	size, change := 0.0, 0.0
	for i, v := range want {
		size += math.Abs(float64(v))
		change += math.Abs(float64(v - got[i]))
	}
	return change / size
}

// Static scales on every architecture, with experts, tied heads and folds: near float32, and however a plan divides or
// batches the work the same bits, because no scale depends on who computes what beside what.
func TestStaticArchitectures(t *testing.T) {
	require.Slow(t)
	a, b := cores(t)
	tried := 0
	for i, config := range archDirs(t) {
		if raceEnabled && i%4 != 0 {
			continue
		}
		dir := filepath.Dir(config)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m, err := models.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			ids := readLogits(t, filepath.Join(dir, "logits.safetensors"))[33].ids
			cal := ranged(t, m, a, ids)
			as := func(scheme op.Scheme, cal *calibration.Calibration, procs []planir.Proc, f layoutOf) []float32 {
				x := calibrated(t, m, folded(t, makePlan(t, m, procs, []int{1, 16}, 64, scheme, f), m, cal), cal)
				defer x.Close()
				return allLogits(t, x, ids)
			}
			run := func(procs []planir.Proc, f layoutOf) []float32 { return as(op.A8SQ8C, cal, procs, f) }
			one, two := []planir.Proc{proc("a", a, "")}, []planir.Proc{proc("a", a, ""), proc("b", b, "")}
			base := run(one, bySingle)
			for name, f := range map[string]layoutOf{"columns": byColumns, "rows": byRows} {
				if d := maxDiff(run(two, f), base); d != 0 {
					t.Errorf("by %s: differs from the undivided plan by %g, want equal bits", name, d)
				}
			}
			// By pairs is not among them: parts of a weight have scales of their own. TestPlansRoundAsDescribed
			// compares such a plan with what it describes.
			exact := allLogits(t, machine(t, m, makePlan(t, m, one, []int{1, 16}, 64, op.A32W32, bySingle), executor.Options{}), ids)
			if change := changed(base, exact); !(change > 0 && change < 0.25) { // other experts may be chosen for a few tokens
				t.Errorf("static scales change logits by %.3g of their size", change)
			}
			if m.Tied {
				return // enough of the others do
			}
			batch := func(scheme op.Scheme) {
				x := calibrated(t, m, folded(t, batchPlan(t, m, two, []int{1, 16}, []int{3}, 64, scheme, byColumns), m, cal), cal)
				defer x.Close()
				list := prompts(m.Vocab, 3, 20, 11)
				same(t, fmt.Sprintf("batch with %s", scheme), alone(t, x, list, 4), together(t, x, list, 4), 0)
			}
			batch(op.A8SQ8C)
			if tried++; tried > 3 {
				return
			}
			// Several scales are chosen from by each row alone; where all are the single one, nothing changes.
			cal.Scales = scales(m, cal, 1, 1, 1, 1)
			if d := maxDiff(as(op.A8S4Q8C, cal, one, bySingle), base); d != 0 {
				t.Errorf("four equal scales differ from one by %g, want equal bits", d)
			}
			cal.Scales = scales(m, cal, 0.4, 1.1)
			two2 := as(op.A8S2Q8C, cal, one, bySingle)
			if change, single := changed(two2, exact), changed(base, exact); !(change > 0 && change < 1.25*single) { // the second scale is of no calibration
				t.Errorf("two static scales change logits by %.3g of their size, one by %.3g", change, single)
			}
			for name, f := range map[string]layoutOf{"columns": byColumns, "rows": byRows} {
				if d := maxDiff(as(op.A8S2Q8C, cal, two, f), two2); d != 0 {
					t.Errorf("two scales by %s: differs from the undivided plan by %g, want equal bits", name, d)
				}
			}
			batch(op.A8S2Q8C)
		})
	}
}

// Shadow outliers on every architecture with a single matrix a product: the same bits however a plan divides or batches
// the work, nearer to float32 than where outliers are clipped, and right where a scale holds next to nothing.
func TestShadowOutliers(t *testing.T) {
	require.Slow(t)
	a, b := cores(t)
	for i, config := range archDirs(t) {
		if raceEnabled && i%4 != 0 {
			continue
		}
		dir := filepath.Dir(config)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m, err := models.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if m.Experts > 0 {
				return // products of experts have no such scheme
			}
			ids := readLogits(t, filepath.Join(dir, "logits.safetensors"))[33].ids
			cal := ranged(t, m, a, ids)
			one, two := []planir.Proc{proc("a", a, "")}, []planir.Proc{proc("a", a, ""), proc("b", b, "")}
			run := func(scheme op.Scheme, procs []planir.Proc, f layoutOf) []float32 {
				x := calibrated(t, m, folded(t, makePlan(t, m, procs, []int{1, 16}, 64, scheme, f), m, cal), cal)
				defer x.Close()
				return allLogits(t, x, ids)
			}
			exact := allLogits(t, machine(t, m, makePlan(t, m, one, []int{1, 16}, 64, op.A32W32, bySingle), executor.Options{}), ids)
			base, clipped := run(op.A8OQ8C, one, bySingle), run(op.A8SQ8C, one, bySingle)
			for name, f := range map[string]layoutOf{"columns": byColumns, "rows": byRows} {
				if d := maxDiff(run(op.A8OQ8C, two, f), base); d != 0 {
					t.Errorf("by %s: differs from the undivided plan by %g, want equal bits", name, d)
				}
			}
			if shadow, clip := changed(base, exact), changed(clipped, exact); !(shadow > 0 && shadow < clip) {
				t.Errorf("shadow outliers change logits by %.3g of their size, clipping by %.3g", shadow, clip)
			}
			// Scales of a hundredth: nearly every channel of every row exceeds them, far more than are expected.
			for i := range cal.Activations {
				for j := range cal.Activations[i].AbsMax {
					cal.Activations[i].AbsMax[j] /= 100
					cal.Activations[i].MeanSquare[j] /= 1e4
				}
				cal.Activations[i].Summarise()
			}
			if shadow, clip := changed(run(op.A8OQ8C, one, bySingle), exact), changed(base, exact); !(shadow < clip) {
				t.Errorf("with scales of a hundredth logits change by %.3g of their size, want less than %.3g", shadow, clip)
			}
		})
	}
}

// The machine says how many channels exceeded their scale in every product, and counts the calls in which they were
// more than one pass multiplies.
func TestOutliersAreCounted(t *testing.T) {
	a, b := cores(t)
	m, err := models.Open("../../testdata/models/tiny-llama-kjv")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	ids := prompts(m.Vocab, 33)[0] // of two calls with 16 rows, and one with one
	cal := ranged(t, m, a, ids)
	count := func() map[string]executor.OutlierStat {
		p := folded(t, makePlan(t, m, []planir.Proc{proc("a", a, ""), proc("b", b, "")}, []int{1, 16}, 64, op.A8OQ8C, byColumns), m, cal)
		x := calibrated(t, m, p, cal)
		defer x.Close()
		allLogits(t, x, ids)
		out := map[string]executor.OutlierStat{}
		for _, stat := range x.Outliers() {
			out[stat.Program+" "+stat.Node] = stat
		}
		return out
	}
	usual := count()
	for i := range cal.Activations {
		for j := range cal.Activations[i].AbsMax {
			cal.Activations[i].AbsMax[j] /= 100
			cal.Activations[i].MeanSquare[j] /= 1e4
		}
		cal.Activations[i].Summarise()
	}
	tight := count()
	if len(usual) != 9 || len(tight) != 9 { // the head has one row in both programs
		t.Fatalf("%d and %d products: %v", len(usual), len(tight), usual)
	}
	for name, stat := range usual {
		all := tight[name]
		t.Logf("%s: %+v, with scales of a hundredth %+v", name, stat, all)
		if stat.Calls == 0 || stat.Calls != all.Calls || stat.Most < stat.Channels/stat.Calls || stat.Channels >= all.Channels {
			t.Errorf("%s: %+v, with scales of a hundredth %+v", name, stat, all)
		}
		if all.Beyond != all.Calls || all.Most <= int64(all.Bound) || stat.Program == "decode" && stat.Beyond > 0 {
			t.Errorf("%s: %d and %d of %d calls beyond %d channels", name, stat.Beyond, all.Beyond, all.Calls, all.Bound)
		}
	}
}

// Shadow outliers that a plan prunes: in all layers the bits of clipping, in some the same bits however the work is
// divided, and no step for outliers in the layers that have none.
func TestPrunedShadows(t *testing.T) {
	a, b := cores(t)
	m, err := models.Open("../../testdata/models/tiny-llama-kjv")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	ids := prompts(m.Vocab, 33)[0]
	cal := ranged(t, m, a, ids)
	one, two := []planir.Proc{proc("a", a, "")}, []planir.Proc{proc("a", a, ""), proc("b", b, "")}
	plan := func(scheme op.Scheme, procs []planir.Proc, f layoutOf, kept ...op.LayerRange) *planir.Plan {
		p := makePlan(t, m, procs, []int{1, 16}, 64, scheme, f)
		if scheme.Shadow() {
			for _, node := range []string{"head.lm_head", "layers.attn_out", "layers.ffn_down", "layers.ffn_gate_up", "layers.qkv"} {
				p.Shadows = append(p.Shadows, planir.Shadow{Node: node, Layers: kept})
			}
		}
		return folded(t, p, m, cal)
	}
	run := func(p *planir.Plan) []float32 {
		x := calibrated(t, m, p, cal)
		defer x.Close()
		return allLogits(t, x, ids)
	}
	none := plan(op.A8OQ8C, one, bySingle)
	clipped := run(plan(op.A8SQ8C, one, bySingle))
	if d := maxDiff(run(none), clipped); d != 0 {
		t.Errorf("pruned in all layers: differs from clipping by %g, want equal bits", d)
	}
	steps := func(p *planir.Plan) (count int) {
		for _, section := range p.Program.Programs[0].Sections {
			for _, lane := range section.Lanes {
				for _, step := range lane.Steps {
					if strings.Contains(step.Node, "_outliers") {
						count += max(1, section.Layers)
					}
				}
			}
		}
		return count
	}
	if count := steps(none); count != 0 {
		t.Errorf("pruned in all layers: %d steps for outliers", count)
	}
	kept := []op.LayerRange{{From: 0, To: 1}, {From: 3, To: 5}}
	some := plan(op.A8OQ8C, one, bySingle, kept...)
	if count := steps(some); count != 3*4+1 { // the head counts as layer 0
		t.Errorf("pruned in three of six layers: %d steps for outliers, want 13", count)
	}
	base := run(some)
	for name, f := range map[string]layoutOf{"columns": byColumns, "rows": byRows} {
		if d := maxDiff(run(plan(op.A8OQ8C, two, f, kept...)), base); d != 0 {
			t.Errorf("by %s: differs from the undivided plan by %g, want equal bits", name, d)
		}
	}
	exact := allLogits(t, machine(t, m, makePlan(t, m, one, []int{1, 16}, 64, op.A32W32, bySingle), executor.Options{}), ids)
	all := run(folded(t, makePlan(t, m, one, []int{1, 16}, 64, op.A8OQ8C, bySingle), m, cal))
	if most, least := changed(clipped, exact), changed(all, exact); !(changed(base, exact) < most && changed(base, exact) > least) {
		t.Errorf("pruned in some layers logits change by %.3g of their size, in all by %.3g, in none by %.3g",
			changed(base, exact), most, least)
	}
}
