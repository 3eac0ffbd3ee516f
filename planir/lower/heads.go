package lower

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

// A sparse attention whose heads pass through a pipeline (planir.HeadPipeline) is lowered like any other: each share of
// its three stages is a task. Only the order of the tasks differs. It is that of the turns, in which a share's
// selection and attention follow each other, each behind the launches of the estimate up to the last one that it needs.
// Flags follow from the heads that tasks read and write, so that an estimate waits for nothing of the heads before it.

// stages collects the tasks of the three stages of a pipeline until all of them are there.
type stages struct {
	*planir.HeadPipeline
	decisions map[op.Kind]*planir.Decision
	tasks     map[op.Kind][]*task
}

// newStages returns a pipeline of which no stage has tasks yet.
func newStages(pipeline *planir.HeadPipeline) *stages {
	return &stages{HeadPipeline: pipeline, decisions: map[op.Kind]*planir.Decision{}, tasks: map[op.Kind][]*task{}}
}

// PipelineOf returns the pipeline that a node is a stage of in a plan's program of that many rows, with the kind of the
// stage; nil for other nodes.
func PipelineOf(plan *planir.Plan, node string, rows int) (*planir.HeadPipeline, op.Kind) {
	if plan.Attention == nil {
		return nil, ""
	}
	for i := range plan.Attention.Pipelines {
		pipeline := &plan.Attention.Pipelines[i]
		if pipeline.Rows != rows {
			continue
		}
		if node == pipeline.Node {
			return pipeline, op.SparseAttend
		}
		if kind := models.SparseNodes(pipeline.Node)[node]; kind == op.Estimate || kind == op.Select {
			return pipeline, kind
		}
	}
	return nil, ""
}

// addStage adds the tasks of a stage.
func (s *stages) addStage(kind op.Kind, decision *planir.Decision, tasks []*task) {
	s.decisions[kind], s.tasks[kind] = decision, tasks
}

// inPipelineOrder returns the tasks of all stages in the order of the pipeline.
func (s *stages) inPipelineOrder() (out []*task, err error) {
	estimate, attend := s.decisions[op.Estimate], s.decisions[op.SparseAttend]
	if err := s.check(); err != nil {
		return nil, diag.New(diag.ClassIllegal, "lower plan: heads of %q@%d in a pipeline: %w", s.Node, s.Rows, err).
			WithCode("P032")
	}
	add := func(kind op.Kind, share int) {
		for _, made := range s.tasks[kind] { // that of the share, and what gathers its result
			if made.share == share {
				out = append(out, made)
			}
		}
	}

	launched := 0
	for _, turn := range s.Turns {
		heads := attend.Shares[turn]
		last := -1 // of the launches that it needs
		for i, launch := range s.Launches {
			if share := estimate.Shares[launch]; share.From < heads.To && heads.From < share.To {
				last = i
			}
		}
		for ; launched <= last; launched++ {
			add(op.Estimate, s.Launches[launched])
		}
		add(op.Select, turn)
		add(op.SparseAttend, turn)
	}
	return out, nil
}

// check says why the orders of a pipeline do not fit its decisions, nil if they do.
func (s *stages) check() error {
	for _, kind := range []op.Kind{op.Estimate, op.Select, op.SparseAttend} {
		decision, order := s.decisions[kind], s.Turns
		if kind == op.Estimate {
			order = s.Launches
		}
		if decision == nil || decision.Axis != planir.AxisHeads {
			return fmt.Errorf("%s is not divided by heads", kind)
		}
		if len(order) != len(decision.Shares) {
			return fmt.Errorf("%d shares of %s in the order, want each of %d once",
				len(order), kind, len(decision.Shares))
		}
		for at, share := range slices.Sorted(slices.Values(order)) {
			if share != at {
				return fmt.Errorf("shares %v of %s, want each of %d once", order, kind, len(order))
			}
		}
	}

	sameHeads := func(share, other planir.Share) bool { return share.From == other.From && share.To == other.To }
	if !slices.EqualFunc(s.decisions[op.Select].Shares, s.decisions[op.SparseAttend].Shares, sameHeads) {
		return fmt.Errorf("selection has the shares %q and attention %q, want the same heads",
			s.decisions[op.Select].ShareText(), s.decisions[op.SparseAttend].ShareText())
	}

	if count := len(s.Densities); count != 0 && count != len(s.Turns) {
		return fmt.Errorf("%d densities, want none or one for each of %d shares", count, len(s.Turns))
	}
	return nil
}
