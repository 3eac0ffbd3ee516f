package planview

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/planir"
)

// ShowTiers tells in a few lines what was decided for experts.
func ShowTiers(ui *cli.Streams, plan *planir.Plan) {
	tiers := plan.Tiers
	if tiers == nil {
		return
	}
	var groups, npu int
	var overflow, padding float64
	for i := range tiers.Layers {
		layer := &tiers.Layers[i]
		groups += len(layer.Groups)
		for _, group := range layer.Groups {
			npu += len(group.Experts)
		}
		// Means over the layers, which all get the same number of rows.
		overflow += layer.Overflow / float64(len(tiers.Layers))
		padding += layer.Padding / float64(len(tiers.Layers))
	}
	how := "predicted"
	if times := plan.SoC.Times(); times != "" {
		how = "predicted from " + times
	}
	ui.Printf("experts (%s loads): tiers of %v rows, %d of %d experts on %s in %d groups, the others on %s; "+
		"overflow %.1f %% (%s), padding %.1f %%; %.3f ms for a chunk of %d tokens, %s; %s\n",
		tiers.Loads, tiers.Capacities, npu, tiers.Experts*len(tiers.Layers), tiers.NPU, groups, tiers.CPU, 100*overflow,
		tiers.Overflow, 100*padding, float64(tiers.ExpectNS)/1e6, tiers.ChunkTokens, how, tiers.Status)
	if tiers.Status != "optimal" {
		ui.Printf("  %s\n", TierProof(tiers))
	}
	ui.Printf("  for targets whose expert graphs have static shapes: this plan's own program executes experts with " +
		"the rows they get\n")
}

// TierProof tells whether the tiers are proved to be the best under their costs and, where they are not, what may
// be done about it.
func TierProof(tiers *planir.Tiers) string {
	words := map[string]string{
		"time": "expected time", "off": "rows that are not on " + tiers.NPU, "energy": "energy, modelled",
		"launches": "groups", "lost": "squared norm that is lost",
	}
	stages := tiers.Stages
	// Plans with a single goal have no list of stages: their objective and bound are those of the plan.
	if len(stages) == 0 {
		first := map[string]string{"offload": "off", "saliency": "lost"}[tiers.Prefer]
		stages = []planir.TierStage{{Measure: cmp.Or(first, "time"), Objective: tiers.Objective, Bound: tiers.Bound}}
	}
	var names, open []string
	for _, stage := range stages {
		names = append(names, words[stage.Measure])
		if gap := stage.Objective - stage.Bound; gap > 0 {
			text := fmt.Sprintf("up to %.2g %% less %s", 100*float64(gap)/float64(stage.Objective),
				words[stage.Measure])
			switch stage.Measure {
			case "launches", "off":
				text = fmt.Sprintf("%d %s, and up to %d fewer", stage.Objective, words[stage.Measure], gap)
			case "lost": // it may be next to nothing, of which any part is much
				// Losses are integers, in 1e-9 of a layer's squared norm.
				norm := 1e9 * float64(len(tiers.Layers))
				text = fmt.Sprintf("%.2g %% of the squared norm lost, and down to %.2g %%",
					100*float64(stage.Objective)/norm, 100*float64(stage.Bound)/norm)
			}
			open = append(open, text)
		}
	}
	switch {
	case len(open) > 0:
		text := fmt.Sprintf("The search for tiers ended at its limit. Not ruled out: %s.", strings.Join(open, "; "))
		if len(stages) > 1 {
			text += " Each with what comes before it in the order (" + strings.Join(names, ", ") +
				") held at what was found."
		}
		return text + " Fewer tiers, capacities or chunk lengths in the workload's section experts make the search " +
			"smaller."
	case tiers.Status != "optimal":
		return "The search for tiers ended at its limit: no choice is better, though another one may be as good."
	case len(stages) > 1:
		return "No choice of tiers is better, in the order " + strings.Join(names, ", ") + ": that is proved."
	}
	return "No choice of tiers has less " + names[0] + " under these predictions: that is proved."
}
