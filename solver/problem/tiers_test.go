package problem

import (
	"slices"
	"testing"
)

func TestPaperTierRules(t *testing.T) {
	if got := BaseCapacity(512, 2, 16); got != 64 {
		t.Errorf("base capacity %v, want 64", got)
	}
	if got := ImbalanceRatio([]float64{1, 1, 1, 5}); got != 2.5 {
		t.Errorf("imbalance %v, want 2.5", got)
	}
	if got := MaxCapacity(2.5, 64); got != 160 {
		t.Errorf("max capacity %v, want 160", got)
	}
	ladder := []int{16, 32, 64}
	for load, want := range map[float64]int{0: 0, 16: 0, 16.5: 1, 64: 2, 65: 2} {
		if got := SmallestTier(load, ladder); got != want {
			t.Errorf("load %v: tier %d, want %d", load, got, want)
		}
	}
	for bytes, want := range map[int64]int{1_200_000_000: 8, 1_199_999_999: 7} {
		if got := MostExperts(bytes, 150_000_000); got != want {
			t.Errorf("%d bytes hold %d experts, want %d", bytes, got, want)
		}
	}
	groups := GroupExperts([]float64{5, 40, 6, 50, 45, 1}, []int{0, 1, 0, 1, 1, -1}, 2)
	want := []TierGroup{{1, []int{3, 4}}, {1, []int{1}}, {0, []int{2, 0}}}
	if !slices.EqualFunc(groups, want, func(a, b TierGroup) bool { return a.Tier == b.Tier && slices.Equal(a.Experts, b.Experts) }) {
		t.Errorf("groups %v, want %v", groups, want)
	}
	kept, dropped := PruneOverflow([]float64{3, 1, 2, 1, 9}, 3)
	if !slices.Equal(kept, []int{0, 2, 4}) || !slices.Equal(dropped, []int{1, 3}) {
		t.Errorf("kept %v, dropped %v", kept, dropped)
	}
}

func TestTiersValidate(t *testing.T) {
	good := func() *Tiers { return GenerateTiers(3, 2, 8, 3) }
	if err := good().Validate(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(p *Tiers){
		"no capacities":    func(p *Tiers) { p.Capacities = nil },
		"no multiple":      func(p *Tiers) { p.Capacities[1] = 17 },
		"descending":       func(p *Tiers) { p.Capacities[1] = 16 },
		"no tier":          func(p *Tiers) { p.MaxTiers = 0 },
		"negative bytes":   func(p *Tiers) { p.ExpertBytes = -1 },
		"drop":             func(p *Tiers) { p.MaxDropPPM = 5 },
		"graph too small":  func(p *Tiers) { p.GraphBytes = p.ExpertBytes },
		"no chunks":        func(p *Tiers) { p.Chunks = nil },
		"weight":           func(p *Tiers) { p.Chunks[0].Weight = 0 },
		"rows beyond CPU":  func(p *Tiers) { p.Chunks[0].CPUNS = p.Chunks[0].CPUNS[:2] },
		"none costs":       func(p *Tiers) { p.Chunks[0].CPUNS[0] = 1 },
		"ragged":           func(p *Tiers) { p.Chunks[0].Layers[1].Rows[3] = nil },
		"negative rows":    func(p *Tiers) { p.Chunks[0].Layers[1].Rows[3][0] = -1 },
		"too dear":         func(p *Tiers) { p.Chunks[0].GroupNS[0][0] = MaxNS + 1 },
		"unknown measure":  func(p *Tiers) { p.Minimise = "beauty" },
		"unknown bound":    func(p *Tiers) { p.Bounds = map[TierMeasure]int64{"beauty": 1} },
		"groups of a tier": func(p *Tiers) { p.Chunks[0].GroupNS = p.Chunks[0].GroupNS[:2] },
	} {
		p := good()
		spoil(p)
		if err := p.Validate(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestTiersVerify(t *testing.T) {
	p := GenerateTiers(3, 2, 8, 3)
	tab := p.Table(0)
	x := p.UniformChoices(0, 32)
	s := TierSolution{Choices: x, Objective: tab.Of(TierTime, tab.Total(x)), Status: Feasible}
	if err := p.Verify(s); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(s *TierSolution){
		"objective": func(s *TierSolution) { s.Objective++ },
		"bound":     func(s *TierSolution) { s.Bound = s.Objective + 1 },
		"optimal":   func(s *TierSolution) { s.Status = Optimal },
		"choice":    func(s *TierSolution) { s.Choices[1][0] = 4 },
		"layers":    func(s *TierSolution) { s.Choices = s.Choices[:1] },
		"experts":   func(s *TierSolution) { s.Choices[0] = s.Choices[0][:3] },
		"chunk":     func(s *TierSolution) { s.Chunk = 1 },
	} {
		b := s
		b.Choices = [][]int{slices.Clone(x[0]), slices.Clone(x[1])}
		spoil(&b)
		if err := p.Verify(b); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	p.RegionBytes = 10 * p.ExpertBytes
	if err := p.Verify(s); err == nil {
		t.Error("16 experts in a region for 10: accepted")
	}
}

// Rows that stay off the NPU are those of all observed chunks, however long these are: the CPU takes as many of one
// chunk length as of another.
func TestTierRowsOfChunkLengthsCompare(t *testing.T) {
	short := GenerateTiers(3, 2, 6, 3)
	long := *short
	long.Chunks = slices.Clone(short.Chunks)
	c := short.Chunks[0]
	c.Tokens, c.Weight, c.Layers = 2*c.Tokens, 1, nil
	for _, y := range short.Chunks[0].Layers {
		var rows [][]int32
		for _, list := range y.Rows {
			var merged []int32
			for i := 0; i < len(list); i += 2 {
				merged = append(merged, list[i]+list[i+1])
			}
			rows = append(rows, merged)
		}
		c.Layers = append(c.Layers, TierLayer{Name: y.Name, Rows: rows})
	}
	for n := len(c.CPUNS); n <= 2048; n++ {
		c.CPUNS = append(c.CPUNS, 1)
	}
	long.Chunks[0].Weight = 2
	long.Chunks = append(long.Chunks, c)
	a, b := long.Table(0), long.Table(1)
	cpu := long.UniformChoices(0, 0)
	if x, y := a.Of(TierOff, a.Total(cpu)), b.Of(TierOff, b.Total(cpu)); x != y || x == 0 {
		t.Errorf("everything on the CPU: %d rows in short chunks, %d in long ones", x, y)
	}
	if x, y := a.Of(TierTime, a.Total(cpu)), a.Total(cpu).NS; x != 2*y {
		t.Errorf("two chunks take %d ns, and one %d", x, y)
	}
}
