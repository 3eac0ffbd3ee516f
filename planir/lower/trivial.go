package lower

import (
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

// Trivial decides every node of the graph, at every number of rows, for one processor: the plan that
// needs no splitting and no flags. On the host's reference kernels it is the numeric reference. Experts are dynamic, but
// where tiers has capacity tiers for a number of rows.
func Trivial(graph *models.Graph, proc string, rows []int, context int, kv op.Type,
	schemeOf func(node string, rows int) op.Scheme, tiers ...planir.ExpertTiers) ([]planir.Decision, error) {
	with := planir.Plan{Experts: tiers}
	var out []planir.Decision
	type place struct {
		node string
		rows int
	}
	seen := map[place]bool{}
	for _, count := range rows {
		sections, err := Expand(graph, count, context, kv, func(node string) op.Scheme { return schemeOf(node, count) },
			with.TiersOf(count), nil)
		if err != nil {
			return nil, err
		}
		for _, section := range sections {
			for _, node := range section.Nodes {
				at := count
				if section.Logits && node.Op().Kind != op.SelectRow {
					at = 1 // the head has one row in every bucket
				}
				decision := planir.Decision{Node: node.Name, Rows: at, Strategy: planir.Single,
					Scheme: node.Op().Scheme, Shares: []planir.Share{{Proc: proc}}}
				if !seen[place{node.Name, at}] {
					seen[place{node.Name, at}] = true
					out = append(out, decision)
				}
			}
		}
	}
	return out, nil
}
