package exact

import (
	"context"
	"testing"

	"github.com/hetc/hetc/solver/problem"
)

// The instance of the requirement: 48 layers of 512 experts, 8 tiers.
func TestTiersOfALargeModel(t *testing.T) {
	p := problem.GenerateTiers(1, 48, 512, 8)
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
	p := problem.GenerateTiers(1, 24, 128, 8)
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

func BenchmarkTiers48x512x8(b *testing.B) {
	p := problem.GenerateTiers(1, 48, 512, 8)
	for b.Loop() {
		if _, err := (Engine{}).Tiers(context.Background(), p, problem.Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}
