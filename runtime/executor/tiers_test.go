package executor_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	ortcompiler "github.com/hetc/hetc/emit/compile/ort"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/executor"
)

// tiersOf are tiers by hand for the program of so many rows: slots of every group go round the experts, from another
// one on in each layer.
func tiersOf(m *models.Model, rows int, overflow string, groups ...planir.ExpertGroup) planir.ExpertTiers {
	tiers := planir.ExpertTiers{
		Rows: rows, Loads: "by hand", Experts: m.Experts, Overflow: overflow, Sent: 1,
		Groups: groups, Status: "feasible",
	}
	if overflow == planir.OverflowDrop {
		tiers.Salience = op.SalienceNorm
		if tiers.Slots() == m.Experts {
			tiers.Sent = 0
		}
	}
	for _, layer := range m.ExpertLayers() {
		here := planir.ExpertLayer{Layer: layer}
		for slot := range tiers.Slots() {
			here.Slots = append(here.Slots, (slot+3*layer+1)%m.Experts)
		}
		tiers.Layers = append(tiers.Layers, here)
	}
	return tiers
}

// groupsOn gives the nodes of groups to a processor.
func groupsOn(proc string) layoutOf {
	return func(d *planir.Decision, n *lower.Node) {
		if n.Slots != nil {
			d.Shares[0].Proc = proc
		}
	}
}

// someGroups are ways to divide experts into groups: one slot with less room than rows, all experts in one, several
// groups and experts without a slot, and room for everything.
func someGroups(experts, rows int) [][]planir.ExpertGroup {
	half := max(1, experts/2)
	return [][]planir.ExpertGroup{
		{{Slots: 1, Rows: 1}},
		{{Slots: experts, Rows: max(1, rows/4)}},
		{{Slots: half, Rows: 3}, {Slots: max(1, (experts-half)/2), Rows: 1}},
		{{Slots: 1, Rows: rows}, {Slots: max(1, half/2), Rows: 2}},
	}
}

// Exact tiers change no bit, whichever experts have a slot, and however much room it has, on one processor and on two.
func TestTiersGiveTheSameBits(t *testing.T) {
	require.Slow(t)
	a, b := cores(t)
	for _, config := range archDirs(t) {
		dir := filepath.Dir(config)
		m, err := models.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if m.Experts < 2 {
			continue
		}
		t.Run(filepath.Base(dir), func(t *testing.T) {
			pair := pairOn(a, b)
			context := max(130, min(m.MaxContext, 160))
			for i, groups := range someGroups(m.Experts, 64) {
				scheme := []op.Scheme{op.A32W32, op.A8TQ8C, op.A32W32, op.A8TQ4B32}[i]
				ids := readLogits(t, filepath.Join(dir, "logits.safetensors"))[130].ids
				run := func(procs []planir.Proc, f layoutOf, tiers ...planir.ExpertTiers) []float32 {
					x := machine(t, m, makePlan(t, m, planSpec{
						procs: procs, rows: []int{1, 16, 64}, context: context, scheme: scheme,
						layout: f, tiers: tiers,
					}), executor.Options{})
					defer x.Close()
					return allLogits(t, x, ids, 130-64-17-1, 17, 1)
				}
				tiers := []planir.ExpertTiers{
					tiersOf(m, 16, planir.OverflowExact, groups...),
					tiersOf(m, 64, planir.OverflowExact, groups...),
				}

				want := run(pair[:1], bySingle)
				if d := maxDiff(run(pair[:1], bySingle, tiers...), want); d != 0 {
					t.Errorf("groups %v, %s: logits differ by %g on one processor, want equal bits", groups, scheme, d)
				}
				if d := maxDiff(run(pair, groupsOn("b"), tiers...), want); d != 0 {
					t.Errorf("groups %v, %s: logits differ by %g with groups on another processor, want equal bits",
						groups, scheme, d)
				}
			}
		})
	}
}

// Chunks in flight have slots of experts of their own. The bits are those of one chunk after the other, whatever room
// the slots have, with groups on one processor or on another, and with the second chunk a part of a layer behind.
func TestTiersInFlightGiveTheSameBits(t *testing.T) {
	a, b := cores(t)
	m, ids := moeModel(t, "olmoe-plain", 130)
	pair := pairOn(a, b)
	for _, groups := range someGroups(m.Experts, 32) {
		for i, layout := range []layoutOf{bySingle, groupsOn("b")} {
			p := makePlan(t, m, planSpec{
				procs: pair, rows: []int{1, 32}, context: 130, scheme: op.A8TQ8C, layout: layout,
				tiers: []planir.ExpertTiers{tiersOf(m, 32, planir.OverflowExact, groups...)},
			})
			one := machine(t, m, p, executor.Options{})
			two := machine(t, m, inFlight(t, m, p, 32, i > 0, alternating), executor.Options{})
			if d := maxDiff(allLogits(t, two, ids), allLogits(t, one, ids)); d != 0 {
				t.Errorf("groups %v: logits differ by %g, want equal bits", groups, d)
			}
			if !slices.Contains(two.Loaded(), "prefill@32x2") {
				t.Errorf("loaded %v, want prefill@32x2", two.Loaded())
			}
			one.Close()
			two.Close()
		}
	}
}

// A processor that reads no ranges of packs has its own, of the experts that have a slot in some program and of no
// others. Programs and layers differ in these. References to experts that a pack does not have are refused.
func TestPacksHoldOnlyExpertsWithSlots(t *testing.T) {
	a, b := cores(t)
	m, ids := moeModel(t, "olmoe-plain", 24)
	pair := pairOn(a, b)
	pair[1].WeightRanges = false
	tiers := []planir.ExpertTiers{
		tiersOf(m, 8, planir.OverflowExact, planir.ExpertGroup{Slots: 2, Rows: 3}),
		tiersOf(m, 16, planir.OverflowExact, planir.ExpertGroup{Slots: 1, Rows: 5}),
	}
	for i := range tiers[1].Layers { // in the last layer the same expert as in the other program
		tiers[1].Layers[i].Slots = []int{(tiers[0].Layers[i].Slots[0] + 5*(1-i)) % m.Experts}
	}
	made := func() *planir.Plan {
		return makePlan(t, m, planSpec{
			procs: pair, rows: []int{1, 8, 16}, context: 32, scheme: op.A32W32, layout: groupsOn("b"),
			tiers: tiers,
		})
	}

	plan := made()
	packs := slottedPacks(plan)
	if len(packs) != 2 {
		t.Fatalf("%d packs of slots, want 2", len(packs))
	}
	for _, packed := range packs {
		first, second := plan.Holds(packed, 0), plan.Holds(packed, 1)
		if packed.Experts != 3 || len(first) != 3 || len(second) != 2 {
			t.Errorf("pack %q has %d experts, %v and %v in layers 0 and 1, want 3 and 2", packed.Name, packed.Experts,
				first, second)
		}
	}
	x := machine(t, m, plan, executor.Options{})
	defer x.Close()
	y := machine(t, m, makePlan(t, m, planSpec{
		procs: pair[:1], rows: []int{1, 8, 16}, context: 32, scheme: op.A32W32,
	}), executor.Options{})
	defer y.Close()
	if d := maxDiff(allLogits(t, x, ids, 16, 8), allLogits(t, y, ids, 16, 8)); d != 0 {
		t.Errorf("logits differ by %g from those of dynamic experts", d)
	}

	for name, change := range map[string]func(p *planir.Plan){
		"fewer experts than slots": func(p *planir.Plan) { slottedPacks(p)[0].Experts-- },
		"all experts":              func(p *planir.Plan) { slottedPacks(p)[0].Slotted = false },
		"other experts":            func(p *planir.Plan) { p.Experts = p.Experts[:1] },
		"read whole": func(p *planir.Plan) {
			for _, packed := range p.Program.Packs {
				for i := range p.Program.Packs {
					if other := &p.Program.Packs[i]; packed.Slotted && other.Weight == packed.Weight {
						other.Slotted = true
					}
				}
			}
		},
	} {
		p := made()
		change(p)
		if planir.Check(p).Err() == nil {
			t.Errorf("%s: no rule is broken", name)
		}
	}
}

// slottedPacks are the packs of those experts that have a slot.
func slottedPacks(p *planir.Plan) (out []*planir.Pack) {
	for i := range p.Program.Packs {
		if packed := &p.Program.Packs[i]; packed.Slotted {
			out = append(out, packed)
		}
	}
	return out
}

// What works on the rows of slots one by one may be divided by rows, beyond those that a call has tokens.
func TestTiersDividedByRows(t *testing.T) {
	a, b := cores(t)
	m, ids := moeModel(t, "olmoe-plain", 130)
	pair := pairOn(a, b)
	run := func(f layoutOf, tiers ...planir.ExpertTiers) []float32 {
		x := machine(t, m, makePlan(t, m, planSpec{
			procs: pair, rows: []int{1, 16}, context: 160, scheme: op.A32W32, layout: f, tiers: tiers,
		}), executor.Options{})
		defer x.Close()
		return allLogits(t, x, ids, 16, 5)
	}
	divided := 0
	byRows := func(d *planir.Decision, n *lower.Node) {
		if rows := n.Op().M; n.Slots != nil && n.Op().Kind == op.GLU {
			divided++
			d.Strategy, d.Axis = planir.ActivationDivide, planir.AxisRows
			most := 3 * rows / 4
			d.Shares = []planir.Share{{Proc: "a", From: 0, To: most}, {Proc: "b", From: most, To: rows}}
		}
	}
	tiers := tiersOf(m, 16, planir.OverflowExact, planir.ExpertGroup{Slots: m.Experts, Rows: 12})

	if d := maxDiff(run(byRows, tiers), run(bySingle)); d != 0 {
		t.Errorf("logits differ by %g, want equal bits", d)
	}
	if divided == 0 {
		t.Error("no node is divided")
	}
}

// moeFamilies are a model of every family that has experts.
var moeFamilies = []string{
	"mixtral-full", "olmoe-plain", "phimoe-default", "qwen2-moe-shared", "qwen3-moe-dense-layers",
}

// Groups of experts are one graph of ONNX Runtime each, beside a host that moves rows and computes what is left. The
// logits are another implementation's.
func TestTiersBesideORT(t *testing.T) {
	require.Slow(t)
	needORT(t)
	a, b := cores(t)
	for _, name := range moeFamilies {
		m, err := models.Open(filepath.Join("../../testdata/arch", name))
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		logits := readLogits(t, filepath.Join("../../testdata/arch", name, "logits.safetensors"))[130]
		procs := []planir.Proc{proc("a", a, ""), ortProc(t, "b", b)}
		half := m.Experts / 2
		groups := []planir.ExpertGroup{{Slots: half, Rows: 24}, {Slots: 1, Rows: 4}}
		p := makePlan(t, m, planSpec{
			procs: procs, rows: []int{1, 64}, context: 160, scheme: op.A32W32, layout: groupsOn("b"),
			tiers: []planir.ExpertTiers{tiersOf(m, 64, planir.OverflowExact, groups...)},
		})
		steps := stepsOn(p, "b")
		if len(steps) == 0 || len(steps)%len(groups) != 0 {
			t.Errorf("%s: %d steps execute groups, want %d in each section", name, len(steps), len(groups))
		}
		for _, step := range steps {
			if !step.Full || strings.Count(step.Node, planir.NodeSeparator) != 2 {
				t.Errorf("%s: a step for a group is %q, want product, activation and product", name, step.Node)
			}
		}

		x := machine(t, m, p, withORT(), ortcompiler.New())
		got := allLogits(t, x, logits.ids)
		for i, row := range logits.rows {
			if d := maxDiff(got[int(row)*m.Vocab:][:m.Vocab], logits.logits[i*m.Vocab:][:m.Vocab]); d > 1e-3 {
				t.Errorf("%s: logits of token %d differ by %g from the stored ones, want at most 0.001", name, row, d)
			}
		}
	}
}

// stepsOn are the steps of a processor in all programs.
func stepsOn(p *planir.Plan, proc string) (steps []planir.Step) {
	for _, program := range p.Program.Programs {
		for _, section := range program.Sections {
			for _, lane := range section.Lanes {
				if lane.Proc == proc {
					steps = append(steps, lane.Steps...)
				}
			}
		}
	}
	return steps
}

// moeModel opens a model with experts, and makes ids of as many tokens as are wanted.
func moeModel(t *testing.T, name string, count int) (*models.Model, []int32) {
	t.Helper()
	m, err := models.Open(filepath.Join("../../testdata/arch", name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	ids := make([]int32, count)
	for i := range ids {
		ids[i] = int32((7*i + i*i/3) % m.Vocab)
	}
	return m, ids
}

// numbersOf are the numbers of a dense view.
func numbersOf[T mem.Scalar](t *testing.T, view driver.View) []T {
	t.Helper()
	numbers, err := mem.View[T](view.Bytes())
	if err != nil {
		t.Error(err)
	}
	return numbers
}

// routed is a routing that sends slot i of all, of which a row has fan, to an expert.
func routed(expert func(i, fan, experts int) int) func(t *testing.T, of executor.Observed, experts int) {
	return func(t *testing.T, of executor.Observed, experts int) {
		if !strings.HasSuffix(of.Node, ".route") {
			return
		}
		ids := numbersOf[int32](t, of.Out[0])
		for i := range ids {
			ids[i] = int32(expert(i, of.Out[0].Cols, experts))
		}
	}
}

// routings change where rows are sent, behind the step that decides it.
var routings = map[string]func(t *testing.T, of executor.Observed, experts int){
	"all to the same": routed(func(i, fan, _ int) int { return i % fan }),
	"none to most":    routed(func(i, fan, experts int) int { return experts - 1 - i%fan }),
	"an expert twice": routed(func(i, fan, experts int) int { return i / fan % experts }),
	"ties": func(t *testing.T, of executor.Observed, _ int) {
		if strings.HasSuffix(of.Node, ".router") {
			clear(numbersOf[float32](t, of.Out[0]))
		}
	},
}

// Whatever a router does, tiers change no bit, on one processor and with groups on another one.
func TestTiersWithAnyRouting(t *testing.T) {
	require.Slow(t)
	a, b := cores(t)
	one, two := singleOn(a), pairOn(a, b)
	for _, config := range archDirs(t) {
		name := filepath.Base(filepath.Dir(config))
		if m, _ := moeModel(t, name, 1); m.Experts < 2 {
			continue
		}
		for routing, change := range routings {
			for _, rows := range []int{2, 33, 512} {
				m, ids := moeModel(t, name, rows)
				run := func(procs []planir.Proc, layout layoutOf, tiers ...planir.ExpertTiers) []float32 {
					observe := func(of executor.Observed) { change(t, of, m.Experts) }
					x := machine(t, m, makePlan(t, m, planSpec{
						procs: procs, rows: []int{1, rows}, context: rows, scheme: op.A32W32,
						layout: layout, tiers: tiers,
					}), executor.Options{Observe: observe})
					defer x.Close()
					return allLogits(t, x, ids)
				}
				want := run(one, bySingle)
				for i, groups := range someGroups(m.Experts, rows) {
					tiers := tiersOf(m, rows, planir.OverflowExact, groups...)
					what := fmt.Sprintf("%s, %s, %d rows, groups %v", name, routing, rows, groups)
					if d := maxDiff(run(one, bySingle, tiers), want); d != 0 {
						t.Errorf("%s: logits differ by %g on one processor, want equal bits", what, d)
					}
					if i != (rows+len(name))%4 { // another one for each model and number of rows
						continue
					}
					if d := maxDiff(run(two, groupsOn("b"), tiers), want); d != 0 {
						t.Errorf("%s: logits differ by %g on two processors, want equal bits", what, d)
					}
				}
			}
		}
	}
}

// Groups of experts on ONNX Runtime compute what dynamic experts do on the host, whatever a router does, and however
// many rows a call has: in float32 but for the order of sums, in 8 bits but for values that round to another code.
func TestTiersBesideORTWithAnyRouting(t *testing.T) {
	require.Slow(t)
	needORT(t)
	a, b := cores(t)
	host, both := singleOn(a), []planir.Proc{proc("a", a, ""), ortProc(t, "b", b)}
	limits := map[op.Scheme]float64{op.A32W32: 1e-6, op.A8TQ8C: 1e-3}
	worst := map[op.Scheme]float64{}
	for i, name := range moeFamilies {
		for routing, change := range routings {
			for _, rows := range []int{2, 33, 512} {
				m, ids := moeModel(t, name, rows)
				groups := someGroups(m.Experts, rows)[(i+rows)%4]
				for scheme, limit := range limits {
					run := func(procs []planir.Proc, layout layoutOf, tiers ...planir.ExpertTiers) []float32 {
						options := withORT()
						options.Observe = func(of executor.Observed) { change(t, of, m.Experts) }
						plan := makePlan(t, m, planSpec{
							procs: procs, rows: []int{1, rows}, context: rows, scheme: scheme,
							layout: layout, tiers: tiers,
						})
						x := machine(t, m, plan, options, ortcompiler.New())
						defer x.Close()
						return allLogits(t, x, ids)
					}

					got := run(both, groupsOn("b"), tiersOf(m, rows, planir.OverflowExact, groups...))

					off := changed(got, run(host, bySingle))
					worst[scheme] = max(worst[scheme], off)
					if !(off <= limit) {
						what := fmt.Sprintf("%s, %s, %s, %d rows, groups %v", name, scheme, routing, rows, groups)
						t.Errorf("%s: logits change by %.2g of their size, want at most %g", what, off, limit)
					}
				}
			}
		}
	}
	t.Logf("logits change at most by %v", worst)
}

// droppedRows checks which rows a dispatch drops, and counts them by layer.
type droppedRows struct {
	t        *testing.T
	tiers    planir.ExpertTiers
	each     int // rows of a slot
	overflow map[int]int64
}

// observe checks a dispatch: each slot keeps the rows with the largest norms of what attention computed.
func (d *droppedRows) observe(of executor.Observed) {
	if of.Graph.Nodes[0].Op.Kind != op.Dispatch {
		return
	}
	fan, width := of.In[1].Cols, of.In[2].Cols
	routed, places := numbersOf[int32](d.t, of.In[1]), numbersOf[int32](d.t, of.Out[1])
	salience := numbersOf[float32](d.t, of.In[2])
	norm := func(row int) (sum float64) {
		for _, value := range salience[row/fan*width:][:width] {
			sum += float64(value) * float64(value)
		}
		return sum
	}
	for _, expert := range d.tiers.Layer(of.Layer).Slots {
		var kept, lost []float64
		for row, id := range routed {
			switch {
			case int(id) != expert:
			case places[row] >= 0:
				kept = append(kept, norm(row))
			default:
				lost = append(lost, norm(row))
			}
		}
		if count := len(kept) + len(lost); len(kept) != min(count, d.each) {
			d.t.Errorf("layer %d, expert %d: %d of %d rows are kept, want at most %d", of.Layer, expert, len(kept),
				count, d.each)
		}
		if len(lost) > 0 && slices.Max(lost) > slices.Min(kept) {
			d.t.Errorf("layer %d, expert %d: a row of norm %v is dropped, and one of %v kept", of.Layer, expert,
				slices.Max(lost), slices.Min(kept))
		}
		d.overflow[of.Layer] += int64(len(lost))
	}
}

// Rows beyond a slot are dropped, those with the smallest norm of what attention computed. So many are counted, and
// nothing else changes: where there is room for all, the logits are those of dynamic experts.
func TestTiersDropRows(t *testing.T) {
	a, _ := cores(t)
	const rows = 64
	m, ids := moeModel(t, "olmoe-plain", rows)
	dynamic := machine(t, m, makePlan(t, m, planSpec{
		procs: singleOn(a), rows: []int{1, rows}, context: rows, scheme: op.A32W32,
	}), executor.Options{})
	want := allLogits(t, dynamic, ids)
	dynamic.Close()

	for _, group := range []planir.ExpertGroup{
		{Slots: m.Experts, Rows: rows},
		{Slots: m.Experts, Rows: 3},
		{Slots: m.Experts / 2, Rows: 2},
	} {
		t.Run(fmt.Sprintf("%d slots of %d rows", group.Slots, group.Rows), func(t *testing.T) {
			tiers := tiersOf(m, rows, planir.OverflowDrop, group)
			dropped := &droppedRows{t: t, tiers: tiers, each: group.Rows, overflow: map[int]int64{}}
			x := machine(t, m, makePlan(t, m, planSpec{
				procs: singleOn(a), rows: []int{1, rows}, context: rows, scheme: op.A32W32,
				tiers: []planir.ExpertTiers{tiers},
			}), executor.Options{Observe: dropped.observe})

			d := maxDiff(allLogits(t, x, ids), want)

			room := group.Rows == rows
			if math.IsNaN(d) || math.IsInf(d, 0) || (d == 0) != room {
				t.Errorf("logits differ by %g from those of all rows, room for all: %v", d, room)
			}
			stats := x.Experts()
			if len(stats) != len(tiers.Layers) {
				t.Fatalf("%d layers are counted, want %d", len(stats), len(tiers.Layers))
			}
			for _, stat := range stats {
				checkExpertStat(t, m, stat, group, int64(rows*m.ExpertsPerToken), dropped.overflow[stat.Layer])
			}
		})
	}
}

// checkExpertStat compares what was counted in one call with the rows that were routed, and that did not fit.
func checkExpertStat(
	t *testing.T, m *models.Model, stat executor.ExpertStat, group planir.ExpertGroup, routed, overflow int64,
) {
	t.Helper()
	if stat.Calls != 1 || stat.Routed != routed || stat.FullRouted != routed {
		t.Errorf("counted %+v, want %d rows in one call", stat, routed)
	}
	if stat.Overflow != overflow || stat.Dropped != overflow {
		t.Errorf("counted %+v, want %d rows dropped", stat, overflow)
	}
	reserved := int64(group.Slots * group.Rows)
	if stat.Reserved != reserved || stat.Moved > reserved {
		t.Errorf("counted %+v, want at most %d rows moved", stat, reserved)
	}
	if group.Slots == m.Experts && stat.Moved != routed-overflow {
		t.Errorf("counted %+v, want all rows moved but those dropped", stat)
	}

	// The plan by hand expects that nothing moves and nothing overflows.
	share := float64(stat.Moved) / float64(routed)
	stale := stat.Drift() > 0.05+1.5/math.Sqrt(float64(routed))
	if stat.Drift() < share || stat.Stale() != stale {
		t.Errorf("%+v: drift %v, stale %v, and a share of %v moved", stat, stat.Drift(), stat.Stale(), share)
	}
}

// A call with capacity tiers allocates nothing, counting included.
func TestTiersAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	a, b := cores(t)
	const rows = 8
	m, ids := moeModel(t, "olmoe-plain", rows)
	tiers := tiersOf(m, rows, planir.OverflowDrop, planir.ExpertGroup{Slots: m.Experts / 2, Rows: 2})
	x := machine(t, m, makePlan(t, m, planSpec{
		procs: pairOn(a, b), rows: []int{1, rows}, context: 4 * rows, scheme: op.A8TQ8C,
		layout: groupsOn("b"), tiers: []planir.ExpertTiers{tiers},
	}), executor.Options{})
	err := x.Do(context.Background(), func(c *executor.Control) error {
		const runs = 100
		var before, after runtime.MemStats
		sink := func(int, []float32) error { return nil }
		for i := -5; i < runs; i++ {
			if i == 0 {
				runtime.ReadMemStats(&before)
			}
			c.Truncate(0, 0)
			if _, err := c.Forward(ids, executor.WantLast, sink); err != nil {
				return err
			}
		}
		runtime.ReadMemStats(&after)
		if n := after.Mallocs - before.Mallocs; n > runs/2 {
			t.Errorf("%d allocations for %d prompts, want none each", n, runs)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Plans whose steps or weights refer to slots that the tiers do not have are refused, and so are tiers that do not fit
// the model.
func TestHostileTiers(t *testing.T) {
	a, _ := cores(t)
	m, _ := moeModel(t, "olmoe-plain", 1)
	made := func() *planir.Plan {
		return makePlan(t, m, planSpec{
			procs: singleOn(a), rows: []int{1, 16}, context: 32, scheme: op.A32W32,
			tiers: []planir.ExpertTiers{tiersOf(m, 16, planir.OverflowExact, planir.ExpertGroup{Slots: 2, Rows: 4})},
		})
	}
	slotted := func(p *planir.Plan) *planir.WeightRef {
		for _, program := range p.Program.Programs {
			for _, section := range program.Sections {
				for _, step := range section.Lanes[0].Steps {
					if len(step.W) > 0 && step.W[0].Tiers > 0 {
						return &step.W[0]
					}
				}
			}
		}
		t.Fatal("no step refers to a slot")
		return nil
	}
	table := func(p *planir.Plan) *op.Weight {
		i := slices.IndexFunc(p.Program.Weights, func(w op.Weight) bool { return w.SlotsOf > 0 })
		return &p.Program.Weights[i]
	}
	for name, change := range map[string]func(p *planir.Plan){
		"slot beyond the last":     func(p *planir.Plan) { slotted(p).Slot = 2 },
		"slots of another program": func(p *planir.Plan) { slotted(p).Tiers = 7 },
		"layer without slots":      func(p *planir.Plan) { p.Experts[0].Layers = p.Experts[0].Layers[1:] },
		"no tiers":                 func(p *planir.Plan) { p.Experts = nil },
		"expert twice": func(p *planir.Plan) {
			slots := p.Experts[0].Layers[0].Slots
			slots[0] = slots[1]
		},
		"expert beyond the last":   func(p *planir.Plan) { p.Experts[0].Layers[0].Slots[0] = m.Experts },
		"slots that are not there": func(p *planir.Plan) { p.Experts[0].Layers[0].Slots = nil },
		"slots without layers": func(p *planir.Plan) {
			section := &p.Program.Programs[1].Sections[1]
			for i := range p.Program.Weights {
				p.Program.Weights[i].Layers = nil
			}
			section.First, section.Layers = 0, 0
		},
		"table of no layers":           func(p *planir.Plan) { table(p).Layers = nil },
		"table of another program":     func(p *planir.Plan) { table(p).SlotsOf = 7 },
		"table of another length":      func(p *planir.Plan) { table(p).N++ },
		"table that is stored as well": func(p *planir.Plan) { table(p).From = []string{"x"} },
	} {
		p := made()
		change(p)
		if planir.Check(p).Err() == nil {
			t.Errorf("%s: no rule is broken", name)
		}
	}

	g := m.Graph()
	for want, change := range map[string]func(tiers *planir.ExpertTiers){
		"say nothing of layer 0": func(tiers *planir.ExpertTiers) { tiers.Layers = tiers.Layers[1:] },
		"are for 3 experts":      func(tiers *planir.ExpertTiers) { tiers.Experts = 3 },
	} {
		tiers := made().Experts[0]
		change(&tiers)
		_, err := lower.Expand(&g, 16, 32, op.F32, func(string) op.Scheme { return op.A32W32 }, &tiers, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// Rows are dropped among those of a call: padding rows, which hold what an earlier call left, must take no room from
// them. So no processor that computes all rows whatever a call has moves rows to slots.
func TestNoDispatchOfPadding(t *testing.T) {
	a, b := cores(t)
	const rows = 16
	m, _ := moeModel(t, "olmoe-plain", rows)
	pair := []planir.Proc{proc("a", a, ""), proc("b", b, "")}
	layout := func(d *planir.Decision, n *lower.Node) {
		if n.Op().Kind == op.Dispatch {
			d.Shares[0].Proc = "b"
		}
	}
	tiers := tiersOf(m, rows, planir.OverflowDrop, planir.ExpertGroup{Slots: m.Experts, Rows: 2})
	plan := makePlan(t, m, planSpec{
		procs: pair, rows: []int{1, rows}, context: rows, scheme: op.A32W32, layout: layout,
		tiers: []planir.ExpertTiers{tiers},
	})
	if err := planir.Check(plan).Err(); err != nil {
		t.Fatal(err)
	}
	plan.Proc("b").DynamicRows = false
	if found := planir.Check(plan); len(found) == 0 || found[0].Code != "P003" {
		t.Errorf("got %v, want rule P003", found)
	}
}

// What became of rows is counted of chunks in flight too, once for each program and layer.
func TestTiersInFlightAreCounted(t *testing.T) {
	a, _ := cores(t)
	const rows = 8
	m, ids := moeModel(t, "olmoe-plain", 5*rows)
	tiers := tiersOf(m, rows, planir.OverflowDrop, planir.ExpertGroup{Slots: m.Experts, Rows: 3})
	plan := makePlan(t, m, planSpec{
		procs: singleOn(a), rows: []int{1, rows}, context: 5 * rows, scheme: op.A8TQ8C,
		tiers: []planir.ExpertTiers{tiers},
	})
	count := func(plan *planir.Plan) map[int]executor.ExpertStat {
		x := machine(t, m, plan, executor.Options{})
		allLogits(t, x, ids)
		sums := map[int]executor.ExpertStat{} // by layer
		seen := map[string]bool{}
		for _, stat := range x.Experts() {
			key := fmt.Sprint(stat.Program, stat.Layer)
			if seen[key] {
				t.Errorf("layer %d of program %q is counted twice", stat.Layer, stat.Program)
			}
			seen[key] = true

			sum := sums[stat.Layer]
			sum.Routed += stat.Routed
			sum.Moved += stat.Moved
			sum.Dropped += stat.Dropped
			sum.Reserved += stat.Reserved
			sum.FullRouted += stat.FullRouted
			sums[stat.Layer] = sum
		}
		return sums
	}

	one, two := count(plan), count(inFlight(t, m, plan, rows, false, alternating))
	if !maps.Equal(one, two) || one[0].Routed != int64(len(ids)*m.ExpertsPerToken) {
		t.Errorf("counted %+v of one chunk after the other, and %+v in flight", one, two)
	}
}
