package planir

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hetc/hetc/planir/op"
)

// HeadPipeline is how the heads of a sparse attention pass through its three stages in a program (shadowAttn sec. 3.4):
// one processor estimates the scores of some heads while others select positions of the heads before them and attend to
// these. The decisions on the three nodes divide them by heads, into as many shares as there are steps; a share of the
// estimate is a launch. The pipeline says in which order the shares are executed.
type HeadPipeline struct {
	Node string `json:"node" yaml:"node"` // of the attention: "layers.attention"
	Rows int    `json:"rows" yaml:"rows"` // of the program
	// By is the rule that ordered the steps: ByExact or ByGreedy; "" for the order of the heads.
	By string `json:"by,omitempty" yaml:"by,omitempty"`
	// Launches is the order of the shares of the estimate, Turns that of the shares of selection and attention, which
	// are of the same heads. Both are numbers of shares.
	Launches []int `json:"launches" yaml:"launches,flow"`
	Turns    []int `json:"turns" yaml:"turns,flow"`
	// Estimated are the shares of the query heads of each launch whose scores are estimated.
	Estimated []float64 `json:"estimated,omitempty" yaml:"estimated,omitempty,flow"`
	// Densities are the mean shares of the positions that the heads of each share of the attention keep.
	Densities []float64 `json:"densities,omitempty" yaml:"densities,omitempty,flow"`
}

// Pipeline is that of a node in the program of so many rows, nil where it has none.
func (a *Attention) Pipeline(node string, rows int) *HeadPipeline {
	if a == nil {
		return nil
	}
	for i := range a.Pipelines {
		if a.Pipelines[i].Node == node && a.Pipelines[i].Rows == rows {
			return &a.Pipelines[i]
		}
	}
	return nil
}

// Text says how many launches and steps there are, and what ordered them.
func (p *HeadPipeline) Text() string {
	by := map[string]string{"": "in the order of the heads", ByGreedy: "by the rule of shadowAttn",
		ByExact: "by an exact search"}
	return fmt.Sprintf("%s at %d rows: heads in a pipeline, %d launches of the estimate, %d steps of the rest, ordered %s",
		p.Node, p.Rows, len(p.Launches), len(p.Turns), by[p.By])
}

// headPipelines checks rule P032. The order of steps must be that of the pipeline on each lane; that the steps of a
// stage wait for those of the stage before is what P009 and P010 say of all steps.
func (c *checker) headPipelines() {
	if c.plan.Attention == nil {
		return
	}
	list := c.plan.Attention.Pipelines
	for i := range list {
		pipeline, path := &list[i], fmt.Sprintf("attention.pipelines[%d]", i)
		if i > 0 && cmp.Or(cmp.Compare(list[i-1].Rows, pipeline.Rows),
			cmp.Compare(list[i-1].Node, pipeline.Node)) >= 0 {
			c.fail(path, "%q at %d rows does not come after %q at %d, want them ascending by rows, then by nodes",
				pipeline.Node,
				pipeline.Rows, list[i-1].Node, list[i-1].Rows)
		}
		if !slices.Contains([]string{"", ByGreedy, ByExact}, pipeline.By) {
			c.fail(path+".by", "rule %q, want %q or %q", pipeline.By, ByGreedy, ByExact)
		}
		if !c.pipelineOrders(path, pipeline) {
			continue
		}
		steps := 0
		for section := range c.plan.Program.sections() {
			program := section.program
			if program.Rows == pipeline.Rows && program.On == "" && !c.plan.InFlightOf(program) {
				steps += c.stageSteps(path, pipeline, section, op.Estimate, pipeline.Launches)
				steps += c.stageSteps(path, pipeline, section, op.SparseAttend, pipeline.Turns)
			}
		}
		if steps == 0 {
			c.fail(path+".node", "no step of the program of %d rows estimates or attends for %q", pipeline.Rows,
				pipeline.Node)
		}
	}
}

// pipelineOrders checks what a pipeline says by itself and beside the decision on its attention.
func (c *checker) pipelineOrders(path string, pipeline *HeadPipeline) bool {
	attend := c.plan.DecisionFor(pipeline.Node, pipeline.Rows)
	switch {
	case !c.plan.Sparse(pipeline.Rows):
		c.fail(path+".rows", "the program of %d rows has dense attention, and %q is in a pipeline there", pipeline.Rows,
			pipeline.Node)
		return false
	case attend == nil || attend.Axis != AxisHeads || len(pipeline.Turns) != len(attend.Shares):
		c.fail(path+".node", "%d turns of %q at %d rows, want one for each of its shares by heads", len(pipeline.Turns),
			pipeline.Node, pipeline.Rows)
		return false
	case len(pipeline.Densities) != 0 && len(pipeline.Densities) != len(attend.Shares):
		c.fail(path+".densities", "%d densities, want none or one for each of %d shares", len(pipeline.Densities),
			len(attend.Shares))
		return false
	}
	if len(pipeline.Estimated) != 0 && len(pipeline.Estimated) != len(pipeline.Launches) {
		c.fail(path+".estimated", "%d shares of estimated heads, want none or one for each of %d launches",
			len(pipeline.Estimated), len(pipeline.Launches))
		return false
	}
	for _, share := range pipeline.Estimated {
		if !(share > 0 && share <= 1) {
			c.fail(path+".estimated", "scores of a share %v of the heads are estimated, want more than 0 and at most 1", share)
		}
	}
	for _, density := range pipeline.Densities {
		if !(density > 0 && density <= 1) {
			c.fail(path+".densities", "density %v, want more than 0 and at most 1", density)
		}
	}
	for i, order := range [][]int{pipeline.Launches, pipeline.Turns} {
		for at, share := range slices.Sorted(slices.Values(order)) {
			if share != at {
				c.fail(path+[]string{".launches", ".turns"}[i], "shares %v, want each of 0..%d once", order,
					len(order)-1)
				return false
			}
		}
	}
	return true
}

// stageSteps checks the steps of a section that estimate scores or attend, and returns how many there are: one for each
// share, and each lane executes its own in the pipeline's order.
func (c *checker) stageSteps(path string, pipeline *HeadPipeline, section sectionAt, kind op.Kind,
	order []int) (count int) {
	for _, lane := range section.Lanes {
		at := 0 // in order: what is before it belongs to earlier steps or to other lanes
		for _, step := range lane.Steps {
			suffix, ours := strings.CutPrefix(step.Node, pipeline.Node)
			if !ours || suffix != "" && suffix[0] != '_' || c.graphOf[step.Run].Graph.Nodes[0].Op.Kind != kind {
				continue
			}
			count++
			decision := c.plan.DecisionFor(step.Node, pipeline.Rows)
			next := func() bool {
				share := order[at]
				return share < len(decision.Shares) && decision.Shares[share].Proc == lane.Proc &&
					decision.Shares[share].From == step.Heads[0]
			}
			for decision != nil && at < len(order) && !next() {
				at++
			}
			if decision == nil || at == len(order) {
				c.fail(path, "%q of heads from %d on is not the next one on %q in section %q", step.Node,
					step.Heads[0], lane.Proc,
					section.Name)
				return count
			}
			at++
		}
	}
	if count != 0 && count != len(order) {
		c.fail(path, "%d steps of %s in section %q, want %d", count, kind, section.Name, len(order))
	}
	return count
}
