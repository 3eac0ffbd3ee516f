package planview

import (
	"fmt"

	"github.com/hetc/hetc/cmd/internal/cli"
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
		ui.Printf("experts at %d rows (%s loads): groups %s, %d of %d experts of a layer in slots; %.1f %% of the rows in "+
			"slots, %.1f %% beyond them (%s); %.3f ms for all experts, %s; %s\n", tiers.Rows, tiers.Loads, tiers.Shape(),
			tiers.Slots(), tiers.Experts, 100*moved, 100*overflow, tiers.Overflow, float64(tiers.ExpectNS)/1e6, how, proof)
	}
}
