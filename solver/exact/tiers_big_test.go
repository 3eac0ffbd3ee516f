package exact

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/solver/problem"
)

// The instance of the requirement: 48 layers of 512 experts, 8 tiers. The processors overlap in the long test.
func TestTiersOfALargeModel(t *testing.T) {
	p := problem.GenerateTiers(1, 48, 512, 8)
	p.Serial = os.Getenv("HETC_LONG") == ""
	s, err := Engine{}.Tiers(context.Background(), p, problem.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Status != problem.Optimal {
		t.Errorf("%s: %d, bound %d", s.Status, s.Objective, s.Bound)
	}
	used := map[int]int{}
	for _, list := range s.Choices {
		for _, k := range list {
			used[k]++
		}
	}
	if len(used) < 3 {
		t.Errorf("choices %v: no instance to test with", used)
	}
	t.Logf("%d ns, %d nodes, choices %v", s.Objective, s.Nodes, used)
}

// A region for a third of the experts couples all layers.
func TestTiersOfALargeModelInARegion(t *testing.T) {
	require.Slow(t)
	p := problem.GenerateTiers(1, 24, 128, 8)
	p.Serial = true
	p.RegionBytes = p.ExpertBytes * 24 * 128 / 3
	s, err := Engine{}.Tiers(context.Background(), p, problem.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	tab := p.Table(0)
	if n := tab.Total(s.Choices).Experts; s.Status != problem.Optimal || n < 24*128/3-8 {
		t.Errorf("%s: %d, bound %d; %d experts on the NPU, and the region holds %d", s.Status, s.Objective, s.Bound, n, 24*128/3)
	}
}

// Limits that couple the layers of a model leave gaps far below 1 %: of dropped rows, lost saliency, graphs, the
// region, and NPUMoE's order.
func TestTiersUnderLimitsOfAModel(t *testing.T) {
	require.Slow(t)
	for _, c := range []struct {
		name  string
		limit func(p *problem.Tiers)
	}{
		{"rows", func(p *problem.Tiers) { p.Prune, p.MaxDropPPM, p.MaxLayerDropPPM = true, 50_000, 100_000 }},
		{"rows in turns", func(p *problem.Tiers) {
			p.Prune, p.MaxDropPPM, p.MaxLayerDropPPM, p.Serial = true, 50_000, 100_000, true
		}},
		{"saliency", func(p *problem.Tiers) {
			p.Prune, p.MaxDropPPM, p.MaxLayerDropPPM, p.MaxLostPPM, p.MaxLayerLostPPM = true, 1e6, 1e6, 20_000, 40_000
			p.GiveSaliency(4)
		}},
		{"graphs", func(p *problem.Tiers) { p.MaxGraphs = 90 }},
		{"region", func(p *problem.Tiers) { p.RegionBytes = p.ExpertBytes * 32 * 4 }},
		{"offload", func(p *problem.Tiers) {
			p.Minimise, p.Bounds = problem.TierOff, map[problem.TierMeasure]int64{problem.TierTime: 880_000_000}
		}},
		{"offload in turns", func(p *problem.Tiers) {
			p.Minimise, p.Bounds, p.Serial = problem.TierOff, map[problem.TierMeasure]int64{problem.TierTime: 1_500_000_000}, true
		}},
		{"offload and prune", func(p *problem.Tiers) {
			p.Minimise, p.Bounds = problem.TierOff, map[problem.TierMeasure]int64{problem.TierTime: 930_000_000}
			p.Prune, p.MaxDropPPM, p.MaxLayerDropPPM = true, 50_000, 100_000
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := problem.GenerateTiers(7, 32, 16, 10)
			p.MaxTiers = 5
			c.limit(p)
			s, err := Engine{}.Tiers(context.Background(), p, problem.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			gap := float64(s.Objective-s.Bound) / float64(s.Objective)
			t.Logf("%s, gap %.4f %%, %d nodes", s.Status, 100*gap, s.Nodes)
			if s.Choices == nil || gap > 0.01 {
				t.Errorf("%s: %d, bound %d", s.Status, s.Objective, s.Bound)
			}
		})
	}
}

// The stages of NPUMoE's order, each with the earlier ones held at what they achieved: of rows and energy little is
// open, of launches, which are few and counted in whole numbers, some percent.
func TestTiersInOrderOfAModel(t *testing.T) {
	p := problem.GenerateTiers(1, 8, 32, 8)
	s, err := Engine{}.Tiers(context.Background(), p, problem.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	q := *p
	q.Start = &s
	q.Bounds = map[problem.TierMeasure]int64{problem.TierTime: s.Objective * 21 / 20}
	for _, m := range problem.PaperOrder {
		q.Minimise = m
		x, err := Engine{}.Tiers(context.Background(), &q, problem.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		gap := float64(x.Objective-x.Bound) / float64(x.Objective)
		t.Logf("%s: %s %d, gap %.3f %%, %d nodes", m, x.Status, x.Objective, 100*gap, x.Nodes)
		most := 0.01
		if m == problem.TierLaunches {
			most = 0.1
		}
		if gap > most {
			t.Errorf("%s: %s %d, bound %d", m, x.Status, x.Objective, x.Bound)
		}
		q.Bounds[m], q.Start = x.Objective, &x
	}
}

// Limits that no choice of tiers keeps, though every limit by itself is kept by some: the exact engine says so instead
// of running out of nodes.
func TestTiersThatCannotKeepTheirLimits(t *testing.T) {
	p := problem.GenerateTiers(7, 32, 16, 6)
	p.Minimise = problem.TierLaunches
	p.Bounds = map[problem.TierMeasure]int64{problem.TierTime: 900_000_000, problem.TierOff: 200_000}
	s, err := Engine{}.Tiers(context.Background(), p, problem.Limits{})
	var d *diag.Diagnostic
	if !errors.As(err, &d) || d.Class != diag.ClassInfeasible {
		t.Fatalf("%s %d, %d nodes: %v", s.Status, s.Objective, s.Nodes, err)
	}
}

func BenchmarkTiers48x512x8(b *testing.B) {
	p := problem.GenerateTiers(1, 48, 512, 8)
	for b.Loop() {
		if _, err := (Engine{}).Tiers(context.Background(), p, problem.Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}
