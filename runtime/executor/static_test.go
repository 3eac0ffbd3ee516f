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
	x := machine(t, m, makePlan(t, m, planSpec{
		procs: singleOn(sel), rows: []int{1, 16}, context: 64, scheme: op.A32W32,
	}), executor.Options{Observe: r.Observe})
	allLogits(t, x, ids)
	r.Again()
	allLogits(t, x, ids)
	var err error
	cal.Activations, err = r.Activations(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := cal.Validate(); err != nil {
		t.Fatal(err)
	}
	return cal
}

// scales are static scales of all rows, as many as shares of the single one.
func scales(m *models.Model, cal *calibration.Calibration, shares ...float32) (out []calibration.Scales) {
	group := map[string]string{} // of a class
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

// Static scales give logits near float32's on every architecture, with experts, tied heads and folds. They have the
// same bits however a plan divides or batches the work, because no scale depends on it.
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
			run := func(scheme op.Scheme, procs []planir.Proc, layout layoutOf) []float32 {
				x := calibrated(t, m, folded(t, makePlan(t, m, planSpec{
					procs: procs, rows: []int{1, 16}, context: 64, scheme: scheme, layout: layout,
				}), m, cal), cal)
				defer x.Close()
				return allLogits(t, x, ids)
			}
			batch := func(scheme op.Scheme) {
				x := calibrated(t, m, folded(t, batchPlan(t, m, []int{3}, planSpec{
					procs: pairOn(a, b), rows: []int{1, 16}, context: 64, scheme: scheme, layout: byColumns,
				}), m, cal), cal)
				defer x.Close()
				list := prompts(m.Vocab, 3, 20, 11)
				same(t, fmt.Sprintf("batch with %s", scheme), alone(t, x, list, 4), together(t, x, list, 4), 0)
			}
			// Pairs are not among the divisions: parts of a weight have scales of their own. TestPlansRoundAsDescribed
			// compares such a plan with what it describes.
			divisions := map[string]layoutOf{"columns": byColumns, "rows": byRows}
			one, two := singleOn(a), pairOn(a, b)

			base := run(op.A8SQ8C, one, nil)
			for name, layout := range divisions {
				if d := maxDiff(run(op.A8SQ8C, two, layout), base); d != 0 {
					t.Errorf("by %s: differs from the undivided plan by %g, want equal bits", name, d)
				}
			}
			exact := allLogits(t, machine(t, m, makePlan(t, m, planSpec{
				procs: one, rows: []int{1, 16}, context: 64, scheme: op.A32W32,
			}), executor.Options{}), ids)
			single := changed(base, exact)
			if !(single > 0 && single < 0.25) { // other experts may be chosen for a few tokens
				t.Errorf("static scales change logits by %.3g of their size", single)
			}
			if m.Tied {
				return // enough of the others do what follows
			}
			batch(op.A8SQ8C)
			tried++
			if tried > 3 {
				return
			}

			// Each row chooses from several scales by itself. Where all are the single one, nothing changes.
			cal.Scales = scales(m, cal, 1, 1, 1, 1)
			if d := maxDiff(run(op.A8S4Q8C, one, nil), base); d != 0 {
				t.Errorf("four equal scales differ from one by %g, want equal bits", d)
			}

			cal.Scales = scales(m, cal, 0.4, 1.1) // the second one is of no calibration
			chosen := run(op.A8S2Q8C, one, nil)
			if change := changed(chosen, exact); !(change > 0 && change < 1.25*single) {
				t.Errorf("two static scales change logits by %.3g of their size, one by %.3g", change, single)
			}
			for name, layout := range divisions {
				if d := maxDiff(run(op.A8S2Q8C, two, layout), chosen); d != 0 {
					t.Errorf("two scales by %s: differs from the undivided plan by %g, want equal bits", name, d)
				}
			}
			batch(op.A8S2Q8C)
		})
	}
}

// tighten makes the static scales of a calibration a hundredth: nearly every channel of every row exceeds them.
func tighten(cal *calibration.Calibration) {
	for i := range cal.Activations {
		a := &cal.Activations[i]
		for j := range a.AbsMax {
			a.AbsMax[j] /= 100
			a.MeanSquare[j] /= 1e4
		}
		a.Summarise()
	}
}

// Shadow outliers have the same bits however a plan divides the work, on every architecture with a single matrix a
// product. They are nearer to float32 than clipping, and right where a scale holds next to nothing.
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
			one, two := singleOn(a), pairOn(a, b)
			run := func(scheme op.Scheme, procs []planir.Proc, f layoutOf) []float32 {
				x := calibrated(t, m, folded(t, makePlan(t, m, planSpec{
					procs: procs, rows: []int{1, 16}, context: 64, scheme: scheme, layout: f,
				}), m, cal), cal)
				defer x.Close()
				return allLogits(t, x, ids)
			}
			exact := allLogits(t, machine(t, m, makePlan(t, m, planSpec{
				procs: one, rows: []int{1, 16}, context: 64, scheme: op.A32W32,
			}), executor.Options{}), ids)

			base := run(op.A8OQ8C, one, nil)
			for name, f := range map[string]layoutOf{"columns": byColumns, "rows": byRows} {
				if d := maxDiff(run(op.A8OQ8C, two, f), base); d != 0 {
					t.Errorf("by %s: differs from the undivided plan by %g, want equal bits", name, d)
				}
			}
			shadow, clipped := changed(base, exact), changed(run(op.A8SQ8C, one, nil), exact)
			if !(shadow > 0 && shadow < clipped) {
				t.Errorf("shadow outliers change logits by %.3g of their size, clipping by %.3g", shadow, clipped)
			}

			tighten(cal) // far more channels are outliers than are expected
			tight := changed(run(op.A8OQ8C, one, nil), exact)
			if !(tight < shadow) {
				t.Errorf("with tight scales logits change by %.3g of their size, want less than %.3g", tight, shadow)
			}
		})
	}
}

// The machine says how many channels exceeded their scale in every product, and counts the calls in which they were
// more than one pass multiplies.
func TestOutliersAreCounted(t *testing.T) {
	a, b := cores(t)
	m := open(t)
	ids := prompts(m.Vocab, 33)[0] // of two calls with 16 rows, and one with one
	cal := ranged(t, m, a, ids)
	count := func() map[string]executor.OutlierStat {
		p := folded(t, makePlan(t, m, planSpec{
			procs: pairOn(a, b), rows: []int{1, 16}, context: 64, scheme: op.A8OQ8C,
			layout: byColumns,
		}), m, cal)
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
	tighten(cal)
	tight := count()

	if len(usual) != 9 || len(tight) != 9 { // the head has one row in both programs
		t.Fatalf("%d and %d products: %v", len(usual), len(tight), usual)
	}
	for name, stat := range usual {
		all := tight[name]
		t.Logf("%s: %+v, with scales of a hundredth %+v", name, stat, all)
		if stat.Calls == 0 || stat.Calls != all.Calls {
			t.Errorf("%s: %d and %d calls, want as many", name, stat.Calls, all.Calls)
		}
		if stat.Most < stat.Channels/stat.Calls || stat.Channels >= all.Channels {
			t.Errorf("%s: %d channels, at most %d in a call, and %d of tight scales", name, stat.Channels, stat.Most,
				all.Channels)
		}
		if stat.Program == "decode" && stat.Beyond > 0 {
			t.Errorf("%s: %d calls beyond %d channels, want none", name, stat.Beyond, all.Bound)
		}
		if all.Beyond != all.Calls || all.Most <= int64(all.Bound) {
			t.Errorf("%s: %d of %d calls of tight scales beyond %d channels, want all", name, all.Beyond, all.Calls,
				all.Bound)
		}
	}
}

// A plan may prune shadow outliers. In all layers it has the bits of clipping, in some the same bits however the work
// is divided, and no step for outliers in the layers that have none.
func TestPrunedShadows(t *testing.T) {
	a, b := cores(t)
	m := open(t)
	ids := prompts(m.Vocab, 33)[0]
	cal := ranged(t, m, a, ids)
	one, two := singleOn(a), pairOn(a, b)
	products := []string{"head.lm_head", "layers.attn_out", "layers.ffn_down", "layers.ffn_gate_up", "layers.qkv"}
	plan := func(scheme op.Scheme, procs []planir.Proc, layout layoutOf) *planir.Plan {
		return makePlan(t, m, planSpec{
			procs: procs, rows: []int{1, 16}, context: 64, scheme: scheme, layout: layout,
		})
	}
	pruned := func(procs []planir.Proc, layout layoutOf, kept ...op.LayerRange) *planir.Plan {
		p := plan(op.A8OQ8C, procs, layout)
		for _, node := range products {
			p.Shadows = append(p.Shadows, planir.Shadow{Node: node, Layers: kept})
		}
		return folded(t, p, m, cal)
	}
	run := func(p *planir.Plan) []float32 {
		x := calibrated(t, m, p, cal)
		defer x.Close()
		return allLogits(t, x, ids)
	}
	clipped := run(folded(t, plan(op.A8SQ8C, one, nil), m, cal))

	none := pruned(one, nil)
	if d := maxDiff(run(none), clipped); d != 0 {
		t.Errorf("pruned in all layers: differs from clipping by %g, want equal bits", d)
	}
	if count := outlierSteps(none); count != 0 {
		t.Errorf("pruned in all layers: %d steps for outliers", count)
	}

	kept := []op.LayerRange{{From: 0, To: 1}, {From: 3, To: 5}}
	some := pruned(one, nil, kept...)
	if count := outlierSteps(some); count != 3*4+1 { // the head counts as layer 0
		t.Errorf("pruned in three of six layers: %d steps for outliers, want 13", count)
	}
	base := run(some)
	for name, layout := range map[string]layoutOf{"columns": byColumns, "rows": byRows} {
		if d := maxDiff(run(pruned(two, layout, kept...)), base); d != 0 {
			t.Errorf("by %s: differs from the undivided plan by %g, want equal bits", name, d)
		}
	}

	exact := allLogits(t, machine(t, m, plan(op.A32W32, one, nil), executor.Options{}), ids)
	all := run(folded(t, plan(op.A8OQ8C, one, nil), m, cal))
	least, change, most := changed(all, exact), changed(base, exact), changed(clipped, exact)
	if !(least < change && change < most) {
		t.Errorf("pruned in some layers logits change by %.3g of their size, in all by %.3g, in none by %.3g", change,
			most, least)
	}
}

// outlierSteps counts the steps for outliers in the layers of a plan's first program.
func outlierSteps(p *planir.Plan) (count int) {
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

// A chunk of a prompt and two in flight share products and what is counted of their outliers: both programs are named.
func TestOutliersOfSharedProducts(t *testing.T) {
	const rows = 16
	a, _ := cores(t)
	m, err := models.Open("../../testdata/arch/llama-plain")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	ids := readLogits(t, "../../testdata/arch/llama-plain/logits.safetensors")[130].ids[:3*rows]
	cal := ranged(t, m, a, ids)
	tighten(cal)
	plan := folded(t, makePlan(t, m, planSpec{
		procs: singleOn(a), rows: []int{1, rows}, context: 3 * rows, scheme: op.A8OQ8C,
	}), m, cal)
	x := calibrated(t, m, inFlight(t, m, plan, rows, false, alternating), cal)
	defer x.Close()
	allLogits(t, x, ids) // two chunks in flight, then one

	calls := int64(0)
	for _, stat := range x.Outliers() {
		if stat.Program == "prefill@16, prefill@16x2" && stat.Node == "layers.ffn_down_outliers" {
			calls += stat.Calls
		} else if strings.Contains(stat.Program, "prefill") && !strings.Contains(stat.Program, ",") {
			t.Errorf("%s of %q is of one program", stat.Node, stat.Program)
		}
	}
	if want := int64(3 * m.Layers); calls != want {
		t.Errorf("%d calls are counted, want %d", calls, want)
	}
}
