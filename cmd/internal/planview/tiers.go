package planview

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/planir"
)

// ShowTiers tells in a few lines what was decided for experts.
func ShowTiers(s *cli.Streams, p *planir.Plan) {
	t := p.Tiers
	if t == nil {
		return
	}
	var groups, npu int
	var overflow, padding float64
	for i := range t.Layers {
		y := &t.Layers[i]
		groups += len(y.Groups)
		for _, g := range y.Groups {
			npu += len(g.Experts)
		}
		overflow += y.Overflow / float64(len(t.Layers))
		padding += y.Padding / float64(len(t.Layers))
	}
	how := "predicted"
	if times := p.SoC.Times(); times != "" {
		how = "predicted from " + times
	}
	s.Printf("experts (%s loads): tiers of %v rows, %d of %d experts on %s in %d groups, the others on %s; overflow %.1f %% (%s), padding %.1f %%; %.3f ms for a chunk of %d tokens, %s; %s\n",
		t.Loads, t.Capacities, npu, t.Experts*len(t.Layers), t.NPU, groups, t.CPU, 100*overflow, t.Overflow, 100*padding, float64(t.ExpectNS)/1e6, t.ChunkTokens, how, t.Status)
	if t.Status != "optimal" {
		s.Printf("  %s\n", TierProof(t))
	}
	s.Printf("  for targets whose expert graphs have static shapes: this plan's own program executes experts with the rows they get\n")
}

// TierProof tells whether the tiers are proved to be the best under their costs and, where they are not, what may be done about it.
func TierProof(t *planir.Tiers) string {
	words := map[string]string{"time": "expected time", "off": "rows that are not on " + t.NPU, "energy": "energy, modelled", "launches": "groups", "lost": "squared norm that is lost"}
	stages := t.Stages
	if len(stages) == 0 {
		first := map[string]string{"offload": "off", "saliency": "lost"}[t.Prefer]
		stages = []planir.TierStage{{Measure: cmp.Or(first, "time"), Objective: t.Objective, Bound: t.Bound}}
	}
	var names, open []string
	for _, x := range stages {
		names = append(names, words[x.Measure])
		if gap := x.Objective - x.Bound; gap > 0 {
			text := fmt.Sprintf("up to %.2g %% less %s", 100*float64(gap)/float64(x.Objective), words[x.Measure])
			switch x.Measure {
			case "launches", "off":
				text = fmt.Sprintf("%d %s, and up to %d fewer", x.Objective, words[x.Measure], gap)
			case "lost": // it may be next to nothing, of which any part is much
				norm := 1e9 * float64(len(t.Layers))
				text = fmt.Sprintf("%.2g %% of the squared norm lost, and down to %.2g %%", 100*float64(x.Objective)/norm, 100*float64(x.Bound)/norm)
			}
			open = append(open, text)
		}
	}
	switch {
	case len(open) > 0:
		text := fmt.Sprintf("The search for tiers ended at its limit. Not ruled out: %s.", strings.Join(open, "; "))
		if len(stages) > 1 {
			text += " Each with what comes before it in the order (" + strings.Join(names, ", ") + ") held at what was found."
		}
		return text + " Fewer tiers, capacities or chunk lengths in the workload's section experts make the search smaller."
	case t.Status != "optimal":
		return "The search for tiers ended at its limit: no choice is better, though another one may be as good."
	case len(stages) > 1:
		return "No choice of tiers is better, in the order " + strings.Join(names, ", ") + ": that is proved."
	}
	return "No choice of tiers has less " + names[0] + " under these predictions: that is proved."
}
