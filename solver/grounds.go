package solver

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hetc/hetc/planir"
)

// Grounds says how well the predicted times behind a plan's decisions are founded on measurements. All messages about
// it come from here.
type Grounds struct {
	Decisions int `json:"decisions"` // that say what their times rest on
	// Extrapolated are the decisions that measurements could change, as "layers.ffn_down@512", the longest time first:
	// their own time rests on no measurements around it, or that of a close alternative does.
	Extrapolated []string `json:"extrapolated"`

	imported bool // processors cannot be measured here
}

// RATIONALE: Why does an extrapolated alternative count only where it is close?
//
// closeAlternative is how many times as long as what was chosen an alternative may be predicted to take for an error of
// its prediction to matter. Extrapolated times have intervals of at least a factor 1.5 to both sides.
const closeAlternative = 2

// maxNamed is how many decisions a sentence names.
const maxNamed = 4

// GroundsOf counts on which sources the decisions of a plan rest.
func GroundsOf(plan *planir.Plan) Grounds {
	out := Grounds{Extrapolated: []string{}, imported: plan.SoC.Imported}
	var weak []*planir.Decision
	for i := range plan.Decisions {
		decision := &plan.Decisions[i]
		if decision.Source == "" {
			continue
		}
		out.Decisions++
		if decision.Source.Weak() || weakAlternative(decision) {
			weak = append(weak, decision)
		}
	}
	slices.SortStableFunc(weak, func(a, b *planir.Decision) int { return cmp.Compare(b.PredictNS, a.PredictNS) })
	for _, decision := range weak {
		out.Extrapolated = append(out.Extrapolated, decisionName(decision))
	}
	return out
}

// decisionName returns a name such as "layers.ffn_down@512".
func decisionName(decision *planir.Decision) string {
	return fmt.Sprintf("%s@%d", decision.Node, decision.Rows)
}

// weakAlternative reports whether the cheapest alternative is close in time and has no measurements around it.
// Alternatives are in the order of their times.
func weakAlternative(decision *planir.Decision) bool {
	if len(decision.Alternatives) == 0 {
		return false
	}
	cheapest := &decision.Alternatives[0]
	return cheapest.Source.Weak() && cheapest.PredictNS <= closeAlternative*decision.PredictNS
}

// String describes the grounds in sentences, with what to do; "" if no decision has a source.
func (g Grounds) String() string {
	count := len(g.Extrapolated)
	switch {
	case g.Decisions == 0:
		return ""
	case count == 0:
		return fmt.Sprintf("All %s on measured shapes, or on shapes between measured ones.",
			several(g.Decisions, "decision rests", "decisions rest"))
	}

	verb := "rest"
	if count == 1 {
		verb = "rests"
	}

	names := strings.Join(g.Extrapolated[:min(count, maxNamed)], ", ")
	if count > maxNamed {
		names += fmt.Sprintf(" and %d more", count-maxNamed)
	}

	wayOut := "hetc profile --resume --plan PLAN measures these shapes for the next solve."
	if g.imported {
		wayOut = "Imported times of those shapes would decide it."
	}

	return fmt.Sprintf("%d of %s %s on extrapolation: %s. There the price of what was chosen lies beyond what "+
		"was measured, or that of the cheapest alternative, which takes at most twice as long. %s",
		count, several(g.Decisions, "decision", "decisions"), verb, names, wayOut)
}
