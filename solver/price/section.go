package price

import (
	"errors"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs/timeline"
	"github.com/hetc/hetc/solver/workload"
)

// Section is a section of a model at one number of rows, with everything on which its candidates depend.
type Section struct {
	*lower.Section
	*Machine
	Costs  Costs
	Facts  *Facts // nil: none are known
	Policy Policy
	Memory *timeline.Machine // what processors that work at the same time share; nil: nothing

	Rows    int               // of the program; the section's own nodes may have one
	Repeat  int               // executions of the section, over all sections of its name
	Breaks  int               // how often another section comes between two of them
	Context int               // cached positions that attention is priced for
	Buckets []int             // of the workload
	Lengths []workload.Prompt // rows of the calls that the program is for
	Exact   map[string]bool   // nodes that are computed in float32 whatever is permitted

	Missing map[string]error     // by processor, why a price was not to be had: the first one
	Refused map[string][]Refusal // by node, the processors that cannot execute it alone

	flags []flag // by index of writer and reader in Procs, once asked for
}

// NewSection returns a section without candidates yet.
func NewSection(sec *lower.Section, on *Machine, costs Costs) *Section {
	return &Section{
		Section: sec, Machine: on, Costs: costs,
		Exact: map[string]bool{}, Missing: map[string]error{}, Refused: map[string][]Refusal{},
	}
}

// Proc returns the processor of that name, nil if it does not take part.
func (s *Section) Proc(name string) *planir.Proc {
	for i := range s.Procs {
		if s.Procs[i].Name == name {
			return &s.Procs[i]
		}
	}
	return nil
}

// InContext returns an operator as it is priced: attention and its parts read as many positions as are cached.
func (s *Section) InContext(operator op.Op) op.Op {
	if operator.Kind.Has("context") {
		operator.Context = s.Context
	}
	return operator
}

// predictTogether predicts tasks that start together. Each task of a processor runs beside the first task of every
// other processor.
func (s *Section) predictTogether(tasks []Task) ([]Estimate, error) {
	first := map[string]int{} // by processor
	for i := range tasks {
		if _, ok := first[tasks[i].Proc]; !ok {
			first[tasks[i].Proc] = i
		}
	}
	if len(first) == len(tasks) {
		return s.Costs.Together(tasks)
	}
	out := make([]Estimate, len(tasks))
	for i := range tasks {
		beside := []Task{tasks[i]}
		for j := range tasks {
			if first[tasks[j].Proc] == j && tasks[j].Proc != tasks[i].Proc {
				beside = append(beside, tasks[j])
			}
		}
		estimates, err := s.Costs.Together(beside)
		if err != nil {
			return nil, err
		}
		out[i] = estimates[0]
	}
	return out, nil
}

// noteMissing notes which processor had no price, and returns the error.
func (s *Section) noteMissing(tasks []Task, err error) error {
	for _, task := range tasks {
		if _, own := predictAlone(s.Costs, task); own != nil {
			err = own
		} else if len(tasks) > 1 {
			continue
		}
		if s.Missing[task.Proc] == nil {
			s.Missing[task.Proc] = err
		}
	}
	return err
}

// Phase returns the phase of a task, without its launch if it is joined to the task before.
func (s *Section) Phase(task Task, joined bool) (timeline.Phase, error) {
	phase, err := s.Costs.Phase(task)
	if err != nil || !joined {
		return phase, err
	}
	whole, err := predictAlone(s.Costs, task)
	if err != nil {
		return phase, err
	}
	launch, err := s.Costs.Launch(task.Proc)
	return Shorten(phase, float64(min(launch.NS, whole.NS))), err
}

// Shorten returns a phase that takes ns less. It shortens the set-up first, and if that is not enough the whole phase.
func Shorten(phase timeline.Phase, ns float64) timeline.Phase {
	cut := min(phase.SetupNS, ns)
	phase.SetupNS -= cut
	if rest := ns - cut; rest > 0 {
		left := phase.NS()
		phase = phase.Times(max(0, left-rest) / max(left, 1e-9))
	}
	return phase
}

// Refusal is the reason why a processor does not execute a node.
type Refusal struct {
	Proc string
	err  error
}

// Reason returns the reason. It leaves out the node and the processor if the error names them only to find a mistake in
// the program.
func (r *Refusal) Reason() string {
	if inner := errors.Unwrap(r.err); inner != nil && diag.ClassOf(r.err) == diag.ClassInternal {
		return inner.Error() // of lower.Cut: without whose share it was
	}
	return r.err.Error()
}

// With adds a decision to the candidates of a node, in the cheapest rows and forms. It adds nothing if the decision is
// listed already or cannot be executed.
func (s *Section) With(list []Candidate, node int, decision *planir.Decision) []Candidate {
	candidate, err := s.candidate(node, Base(decision.Strategy), decision.Axis, decision.Shares)
	return withCandidate(list, candidate, err)
}

// WithExactly adds a decision as With does, but in the decision's own rows and forms.
func (s *Section) WithExactly(list []Candidate, node int, decision *planir.Decision) []Candidate {
	candidate, err := s.Price(node, Base(decision.Strategy), decision.Axis, decision.Shares)
	return withCandidate(list, candidate, err)
}

// withCandidate appends a candidate that could be priced, unless one with the same shares is there.
func withCandidate(list []Candidate, candidate Candidate, err error) []Candidate {
	same := func(old Candidate) bool { return SameShares(&old.Decision, &candidate.Decision) }
	if err != nil || slices.ContainsFunc(list, same) {
		return list
	}
	return append(list, candidate)
}
