package lower

import (
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

// Trivial decides every node of the graph, at every number of rows, for one processor: the plan that
// needs no splitting and no flags. On the host's reference kernels it is the numeric reference.
func Trivial(g *models.Graph, proc string, rows []int, context int, kv op.Type, schemeOf func(node string, rows int) op.Scheme) ([]planir.Decision, error) {
	var out []planir.Decision
	type place struct {
		node string
		rows int
	}
	seen := map[place]bool{}
	for _, r := range rows {
		sections, err := Expand(g, r, context, kv, func(node string) op.Scheme { return schemeOf(node, r) })
		if err != nil {
			return nil, err
		}
		for _, s := range sections {
			for _, n := range s.Nodes {
				at := r
				if s.Logits && n.Op().Kind != op.SelectRow {
					at = 1 // the head has one row in every bucket
				}
				d := planir.Decision{Node: n.Name, Rows: at, Strategy: planir.Single, Scheme: n.Op().Scheme, Shares: []planir.Share{{Proc: proc}}}
				if !seen[place{n.Name, at}] {
					seen[place{n.Name, at}] = true
					out = append(out, d)
				}
			}
		}
	}
	return out, nil
}
