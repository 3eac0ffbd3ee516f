package planview

import (
	"fmt"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
)

// ShowTiers tells in a few lines what was decided for experts.
func ShowTiers(ui *cli.Streams, plan *planir.Plan) {
	how := "predicted"
	if times := plan.SoC.Times(); times != "" {
		how = "predicted from " + times
	}
	for i := range plan.Experts {
		tiers := &plan.Experts[i]
		var moved, overflow float64
		for _, layer := range tiers.Layers {
			// Means over the layers, which all get the same number of rows.
			moved += layer.Moved / float64(len(tiers.Layers))
			overflow += layer.Overflow / float64(len(tiers.Layers))
		}
		proof := tiers.Status
		if tiers.BoundNS == 0 {
			proof = "by a rule"
		} else if gap := tiers.ExpectNS - tiers.BoundNS; gap > 0 {
			proof = fmt.Sprintf("up to %.2g %% less are not ruled out", 100*float64(gap)/float64(tiers.ExpectNS))
		}
		overflowing := tiers.Overflow
		if tiers.Salience != "" {
			overflowing = "the least salient by " + tiers.Salience + " dropped"
		}
		ui.Printf("experts at %d rows (%s loads): groups %s, %d of %d experts of a layer in slots; %.1f %% of the rows in "+
			"slots, %.1f %% beyond them (%s); %.3f ms for all experts, %s; %s\n", tiers.Rows, tiers.Loads, tiers.Shape(),
			tiers.Slots(), tiers.Experts, 100*moved, 100*overflow, overflowing, float64(tiers.ExpectNS)/1e6, how, proof)
	}
	if bytes := twice(plan); bytes > 0 {
		ui.Printf("%s of experts are there twice: where groups are computed, and with all others where dynamic ones are\n",
			unit.Bytes(bytes))
	}
}

// twice returns how many bytes of experts a plan has packed for processors of groups alone.
func twice(plan *planir.Plan) (bytes int64) {
	layers := map[string]int64{}
	for i := range plan.Program.Weights {
		layers[plan.Program.Weights[i].Name] = int64(plan.Program.Weights[i].LayerCount())
	}
	for i := range plan.Program.Packs {
		if packed := &plan.Program.Packs[i]; packed.Slotted {
			bytes += packed.Bytes * layers[packed.Weight]
		}
	}
	return bytes
}
