package planir

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/planir/op"
)

// Attention says which programs have sparse attention (shadowAttn); the other programs are dense. All share the weights
// and the cache. The calibration determines each head's share of positions, and their mean is Density.
type Attention struct {
	Density float64 `json:"density" yaml:"density"`
	Block   int     `json:"block" yaml:"block"` // queries that share a selection
	// Least is how many positions rows attend to at least, whole contexts where they are no longer, of op.SparseLeasts.
	Least int `json:"least,omitempty" yaml:"least,omitempty"`
	// Estimated is the share of query heads whose scores are estimated where contexts are longer, since theirs leave a
	// choice; 0: all. Prices follow from it, and nothing that is computed.
	Estimated float64 `json:"estimated,omitempty" yaml:"estimated,omitempty"`
	// Buckets is how many pairs of scales an estimate chooses from (op.BucketCounts); 0: one.
	Buckets int `json:"buckets,omitempty" yaml:"buckets,omitempty"`
	// Rest has what is not selected for queries of a prompt count as one position, the mean of all (op.SparseAttend).
	Rest bool `json:"rest,omitempty" yaml:"rest,omitempty"`
	// ascending: numbers of rows of the programs; those of several sequences are none of them
	Rows []int `json:"rows" yaml:"rows,flow"`
	// ascending by rows, then by nodes: attentions whose heads pass through a pipeline
	Pipelines []HeadPipeline `json:"pipelines,omitempty" yaml:"pipelines,omitempty"`
}

// Sparse reports whether the program of that many rows has sparse attention.
func (p *Plan) Sparse(rows int) bool {
	return p.Attention != nil && slices.Contains(p.Attention.Rows, rows)
}

// Sparsity returns how the program of that many rows selects positions. The program that decodes does not count the
// rest by its mean, since it would have to read all values for that.
func (a *Attention) Sparsity(rows int) op.Sparsity {
	return op.Sparsity{Density: a.Density, Block: a.Block, Buckets: a.Buckets, Least: a.Least, Estimated: a.Estimated,
		Rest: a.Rest && rows > 1}
}

// Text says in which programs attention is sparse, and how much of the context it keeps.
func (a *Attention) Text() string {
	text := fmt.Sprintf("sparse attention at %v rows: %.4g %% of the positions on average, selected for %d queries at a time",
		a.Rows, 100*a.Density, a.Block)
	if a.Least > 0 {
		text += fmt.Sprintf(", and at least %d of them", a.Least)
	}
	if a.Rest {
		text += ", the others counting by their mean,"
	}
	if a.Buckets > 0 {
		text += fmt.Sprintf(" by estimates with the nearest of %d pairs of scales", a.Buckets)
	}
	return text
}

// attention checks rule P030. Rows of a batch belong to different sequences and cannot share a selection of positions,
// so a batch is dense.
func (c *checker) attention() {
	if c.plan.Attention != nil {
		c.attentionNumbers(c.plan.Attention)
	}
	if c.plan.Sparse(1) && len(c.plan.Batches) > 0 {
		c.fail("attention.rows", "one sequence selects positions, and %v sequences together do not: a sequence would get other "+
			"logits in company", c.plan.Batches)
	}
	sparse := map[int]bool{} // numbers of rows of programs that select positions
	for step := range c.plan.Program.steps() {
		for i := range c.graphOf[step.Run].Graph.Nodes {
			operator := &c.graphOf[step.Run].Graph.Nodes[i].Op
			if c.plan.Attention != nil {
				c.selection(step, operator)
			}
			if operator.Kind != op.SparseAttend {
				continue
			}
			rows := c.rowsOfChunk(step.program)
			sparse[rows] = true
			if !c.plan.Sparse(rows) || step.program.Batch() {
				c.fail(step.path(".run"), "program %q selects positions, and the plan does not say so, or it is of several sequences",
					step.program.Name)
			}
		}
	}
	if c.plan.Attention == nil {
		return
	}
	for i, rows := range c.plan.Attention.Rows {
		if !sparse[rows] {
			c.fail(fmt.Sprintf("attention.rows[%d]", i), "no program of %d rows selects positions", rows)
		}
	}
}

// rowsOfChunk returns the rows of a program. For a program of chunks in flight it returns those of one chunk, since
// each chunk is like a program of its own.
func (c *checker) rowsOfChunk(program *PhaseProgram) int {
	if c.plan.InFlightOf(program) {
		return c.plan.InFlight.Rows
	}
	return program.Rows
}

// attentionNumbers checks that what a plan says of sparse attention is in range.
func (c *checker) attentionNumbers(at *Attention) {
	const most = 256 // of queries in a block, as op.Op has them
	if !(at.Density > 0 && at.Density <= 1) || at.Block < 1 || at.Block > most {
		c.fail("attention", "density %v in blocks of %d queries, want more than 0 and at most 1, and 1..%d", at.Density,
			at.Block, most)
	}
	if at.Buckets != 0 && (at.Buckets == 1 || !slices.Contains(op.BucketCounts, at.Buckets)) {
		c.fail("attention.buckets", "%d pairs of scales, want one of %v, 1 left out", at.Buckets, op.BucketCounts)
	}
	if !slices.Contains(op.SparseLeasts, at.Least) {
		c.fail("attention.least", "at least %d positions are kept, want one of %v", at.Least, op.SparseLeasts)
	}
	if !(at.Estimated >= 0 && at.Estimated < 1) {
		c.fail("attention.estimated", "scores of a share %v of the heads are estimated, want 0 (all) to below 1",
			at.Estimated)
	}
	if len(at.Rows) == 0 || !slices.IsSorted(at.Rows) || len(slices.Compact(slices.Clone(at.Rows))) < len(at.Rows) {
		c.fail("attention.rows", "rows are %v, want ascending numbers", at.Rows)
	}
}

// selection checks that an operator of a step selects positions as the plan says.
func (c *checker) selection(step stepAt, operator *op.Op) {
	at := c.plan.Attention
	if operator.Kind == op.Estimate && operator.Buckets != at.Buckets {
		c.fail(step.path(".run"), "program %q estimates with %d pairs of scales, and the plan has %d",
			step.program.Name, operator.Buckets, at.Buckets)
	}
	selects := operator.Kind == op.Estimate || operator.Kind == op.Select || operator.Kind == op.SparseAttend
	if selects && operator.Least != at.Least {
		c.fail(step.path(".run"), "program %q keeps at least %d positions in %q, and the plan %d", step.program.Name,
			operator.Least, operator.Kind, at.Least)
	}
	rest := at.Rest && c.rowsOfChunk(step.program) > 1
	if operator.Kind == op.SparseAttend && operator.Rest != rest {
		c.fail(step.path(".run"), "program %q has the rest of the positions count: %v, and the plan has it: %v, except "+
			"for decoding", step.program.Name, operator.Rest, at.Rest)
	}
}
