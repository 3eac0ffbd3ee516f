package price

import (
	"math"
	"slices"
	"testing"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/source"
	"github.com/hetc/hetc/socs"
)

// stages is a cost model of processors with a launch and a rate each, one of which works in stages of columns, and
// which slow each other down when they work together.
type stages struct {
	drawn
	launch, rate map[string]float64 // ns, and operations in a ns
	step         map[string]int     // columns of a stage
	company      float64            // how many times as long everything takes with each partner
}

func (s stages) Together(tasks []Task) (out []Estimate, err error) {
	for i := range tasks {
		operator := tasks[i].Op
		if step := s.step[tasks[i].Proc]; step > 0 && operator.N > 0 {
			operator.N = op.RoundUp(operator.N, step)
		}
		ns := s.launch[tasks[i].Proc] + float64(operator.Flops())/s.rate[tasks[i].Proc]*
			math.Pow(s.company, float64(len(tasks)-1))
		out = append(out, Estimate{NS: int64(ns), Low: int64(ns), High: int64(ns), Source: source.Measured})
	}
	return out, nil
}

func (stages) GatedShare(string, op.Op, op.Op) float64 { return 1 }
func (stages) LeastGatedShare(string) float64          { return 1 }
func (s stages) Launch(proc string) (Estimate, error) {
	ns := int64(s.launch[proc])
	return Estimate{NS: ns, Low: ns, High: ns, Source: source.Measured}, nil
}

func (s stages) Handover(string, string) (Estimate, error) {
	return Estimate{Source: source.Measured}, nil
}
func (s stages) Copy(string, string, int64) (Estimate, error) {
	return Estimate{Source: source.Measured}, nil
}

// Cuts of a product between three processors that the search ends at are within 2 % of the best of all cuts, and equal
// to it nearly always.
func TestThreeProcessorsAgainstAllCuts(t *testing.T) {
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	model, err := models.Open("qwen2-0.5b")
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	graph := model.Graph()
	tuple := []string{"cpu", "gpu", "npu"}
	products, equal := 0, 0
	for seed, costs := range []stages{
		{launch: map[string]float64{"cpu": 1e3, "gpu": 2e4, "npu": 2e4}, rate: map[string]float64{"cpu": 120, "gpu": 700, "npu": 1700},
			company: 1},
		{launch: map[string]float64{"cpu": 1e3, "gpu": 2e4, "npu": 2e4}, rate: map[string]float64{"cpu": 120, "gpu": 200, "npu": 150},
			step: map[string]int{"npu": 128}, company: 1.1},
		{launch: map[string]float64{"cpu": 0, "gpu": 5e3, "npu": 1e5}, rate: map[string]float64{"cpu": 50, "gpu": 60, "npu": 600},
			step: map[string]int{"gpu": 96, "npu": 256}, company: 1.3},
	} {
		costs.given = &[]source.Source{}
		sections, err := lower.Expand(&graph, 64, 256, op.F32, func(string) op.Scheme { return op.A8TQ8C }, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		machine, err := NewMachine(soc, nil, costs, op.F32, func(string, ...any) {})
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(sections, func(s lower.Section) bool { return s.Name == "layers" })
		section := NewSection(&sections[at], machine, costs)
		section.Rows, section.Context, section.Buckets = 64, 256, []int{64}
		for _, run := range section.runs() {
			node := &section.Nodes[run[0].node]
			if len(run) != 1 || !node.Op().HasScheme() {
				continue
			}
			search := division{Section: section, run: run, tuple: tuple, at: section.boundaries(run, tuple),
				tried: map[string]*priced{}, bestNS: math.MaxInt64}
			if len(search.at) < 2 || len(search.at) > 200 && testing.Short() {
				continue
			}
			found := section.divide(run, tuple)
			best := int64(math.MaxInt64)
			for first := range search.at {
				for second := first + 1; second < len(search.at); second++ {
					best = min(best, search.price([]int{first, second}).ns)
				}
			}
			if best == math.MaxInt64 {
				continue // nothing of it can be divided so
			}
			if len(found) != 1 {
				t.Errorf("costs %d: %s: %d candidates, want one", seed, node.Name, len(found))
				continue
			}
			products++
			if got := found[0].CostNS; float64(got) > 1.02*float64(best) {
				t.Errorf("costs %d: %s along %s: %d ns, the best of %d places takes %d", seed, node.Name, run[0].axis, got,
					len(search.at), best)
			} else if got == best {
				equal++
			}
		}
	}
	t.Logf("%d products, of which %d are at the best cuts", products, equal)
	if products < 6 || equal < products/2 {
		t.Errorf("%d products, %d at the best cuts: want at least 6, and half of them", products, equal)
	}
}
