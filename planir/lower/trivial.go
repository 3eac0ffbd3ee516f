package lower

import (
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

// Trivial decides every node of the graph, at every number of rows, for one processor: the plan that needs no splitting
// and no flags. On the host's reference kernels it is the numeric reference. Experts are dynamic, except at numbers of
// rows for which tiers has capacity tiers.
func Trivial(graph *models.Graph, proc string, rows []int, context int, kv op.Type,
	schemeOf func(node string, rows int) op.Scheme, tiers ...planir.ExpertTiers) ([]planir.Decision, error) {
	return TrivialOf(&planir.Plan{MaxContext: context, KV: kv, Experts: tiers}, graph, proc, rows, schemeOf)
}

// TrivialOf makes the plan of Trivial for programs of another plan, with its context, cache, tiers and sparse
// attention.
func TrivialOf(plan *planir.Plan, graph *models.Graph, proc string, rows []int,
	schemeOf func(node string, rows int) op.Scheme) ([]planir.Decision, error) {
	var out []planir.Decision
	type place struct {
		node string
		rows int
	}
	seen := map[place]op.Scheme{}
	for i, count := range rows {
		sections, err := Expand(GraphOf(plan, graph, count), count, plan.MaxContext, plan.KV,
			func(node string) op.Scheme { return schemeOf(node, count) }, plan.TiersOf(count), nil)
		if err != nil {
			return nil, err
		}
		for _, section := range sections {
			for _, node := range section.Nodes {
				at, scheme := count, node.Op().Scheme
				if section.Logits && node.Op().Kind != op.SelectRow {
					// The head has one row in every bucket, but may have another scheme than in the first one.
					before, known := seen[place{node.Name, 1}]
					if i == 0 || known && before == scheme {
						at = 1
					}
				}

				if _, known := seen[place{node.Name, at}]; known {
					continue
				}
				seen[place{node.Name, at}] = scheme
				out = append(out, planir.Decision{Node: node.Name, Rows: at, Strategy: planir.Single,
					Scheme: scheme, Shares: []planir.Share{{Proc: proc}}})
			}
		}
	}
	return out, nil
}
