package executor_test

import (
	"path/filepath"
	"strings"
	"testing"

	ortcompiler "github.com/hetc/hetc/emit/compile/ort"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/executor"
)

// tiersOf are tiers by hand for the program of so many rows: slots of every group go round the experts, from another
// one on in each layer.
func tiersOf(m *models.Model, rows int, overflow string, groups ...planir.ExpertGroup) planir.ExpertTiers {
	tiers := planir.ExpertTiers{Rows: rows, Loads: "by hand", Experts: m.Experts, Overflow: overflow, Sent: 1,
		Groups: groups, Status: "feasible"}
	if overflow == planir.OverflowDrop && tiers.Slots() == m.Experts {
		tiers.Sent = 0
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

// Exact tiers change no bit: whatever has a slot, and however much room it has, on one processor and on two.
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
			pair := []planir.Proc{proc("a", a, ""), proc("b", b, "")}
			context := max(130, min(m.MaxContext, 160))
			for i, groups := range someGroups(m.Experts, 64) {
				scheme := []op.Scheme{op.A32W32, op.A8TQ8C, op.A32W32, op.A8TQ4B32}[i]
				ids := readLogits(t, filepath.Join(dir, "logits.safetensors"))[130].ids
				run := func(procs []planir.Proc, f layoutOf, tiers ...planir.ExpertTiers) []float32 {
					x := machine(t, m, makePlan(t, m, procs, []int{1, 16, 64}, context, scheme, f, tiers...), executor.Options{})
					defer x.Close()
					return allLogits(t, x, ids, 130-64-17-1, 17, 1)
				}
				tiers := []planir.ExpertTiers{tiersOf(m, 16, planir.OverflowExact, groups...),
					tiersOf(m, 64, planir.OverflowExact, groups...)}
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

// Groups of experts are one graph of ONNX Runtime each, beside a host that moves rows and computes what is left.
func TestTiersBesideORT(t *testing.T) {
	require.Slow(t)
	needORT(t)
	a, b := cores(t)
	for _, name := range []string{"olmoe-plain", "phimoe-default", "qwen2-moe-shared"} {
		m, err := models.Open(filepath.Join("../../testdata/arch", name))
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		logits := readLogits(t, filepath.Join("../../testdata/arch", name, "logits.safetensors"))[130]
		procs := []planir.Proc{proc("a", a, ""), ortProc(t, "b", b)}
		half := m.Experts / 2
		groups := []planir.ExpertGroup{{Slots: half, Rows: 24}, {Slots: 1, Rows: 4}}
		p := makePlan(t, m, procs, []int{1, 64}, 160, op.A32W32, groupsOn("b"), tiersOf(m, 64, planir.OverflowExact, groups...))
		steps := 0
		for _, program := range p.Program.Programs {
			for _, section := range program.Sections {
				for _, lane := range section.Lanes {
					for _, step := range lane.Steps {
						if lane.Proc == "b" {
							steps++
							if !step.Full || strings.Count(step.Node, planir.NodeSeparator) != 2 {
								t.Errorf("%s: a step of the groups' processor is %q, want a product, an activation and a product",
									name, step.Node)
							}
						}
					}
				}
			}
		}
		if steps == 0 || steps%len(groups) != 0 {
			t.Errorf("%s: %d steps execute groups, want %d in each section", name, steps, len(groups))
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
