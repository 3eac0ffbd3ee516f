package price

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/socs"
)

// strategies are all strategies of candidates.
var strategies = []planir.Strategy{
	planir.Single, planir.Padding, planir.WeightCentric, planir.Hybrid, planir.ActivationDivide, planir.Pipe,
	planir.Paired,
}

// Policy restricts the ways to execute operators. Plans under a policy are compared with the best ones.
type Policy struct {
	// Only names the processors that execute everything they can. What one of them cannot may be left to those that
	// take turns with it on its first core, or else to the control processor. Empty: all processors.
	Only []string
	// Strategies are those that may be used; empty: all. Where none of them executes a node, one processor does.
	Strategies []planir.Strategy
	// Ratio divides the columns of every matrix among the processors it names, in these parts of the whole as nearly
	// as their granularity allows. Everything else goes to one of them. Empty: what is best.
	Ratio map[string]float64
	// Groups is the processor that executes the groups of experts (capacity tiers); "": whichever is best.
	Groups string
}

// Check returns an error if a policy names something that does not exist.
func (p *Policy) Check(soc *socs.SoC) error {
	for _, strategy := range p.Strategies {
		if !slices.Contains(strategies, strategy) {
			return diag.New(diag.ClassInput, "solve: unknown strategy %q", strategy).
				WithHint("want some of %s", listed(strategies))
		}
	}
	var processors []string
	for i := range soc.Processors {
		processors = append(processors, soc.Processors[i].Name)
	}
	total := 0.0
	for _, name := range slices.Sorted(maps.Keys(p.Ratio)) {
		part := p.Ratio[name]
		if soc.Processor(name) == nil {
			return diag.New(diag.ClassInput, "solve: SoC %q has no processor %q to give a part of every matrix to",
				soc.Name, name).WithHint("want some of %s", strings.Join(processors, ", "))
		}
		if !(part > 0 && part <= 1) {
			return diag.New(diag.ClassInput,
				"solve: processor %q is to have %v of every matrix, want more than 0, at most 1", name, part)
		}
		total += part
	}
	if len(p.Ratio) > 0 && math.Abs(total-1) > 1e-6 {
		return diag.New(diag.ClassInput, "solve: the processors' parts of every matrix add up to %v, want 1", total)
	}
	return nil
}

// listed writes names for a sentence.
func listed[T ~string](names []T) string {
	out := make([]string, len(names))
	for i := range names {
		out[i] = string(names[i])
	}
	return strings.Join(out, ", ")
}

// wholeOperators reports whether nothing may be divided.
func (p *Policy) wholeOperators() bool {
	divides := func(x planir.Strategy) bool { return x != planir.Single && x != planir.Padding }
	return len(p.Strategies) > 0 && len(p.Ratio) == 0 && !slices.ContainsFunc(p.Strategies, divides)
}

// mayExecute reports whether processors are candidates for a node that the processors in lacking cannot execute: those
// of policy.Only, and those that assist a processor in lacking.
func (s *Section) mayExecute(procs, lacking []string) bool {
	return len(s.Policy.Only) == 0 || !slices.ContainsFunc(procs, func(proc string) bool {
		assisted := func(x string) bool { return slices.Contains(lacking, x) }
		return !slices.Contains(s.Policy.Only, proc) && !slices.ContainsFunc(s.assistants[proc], assisted)
	})
}

// Restrict returns the candidates of a node that the policy permits.
func (s *Section) Restrict(node int, list []Candidate) []Candidate {
	policy := &s.Policy
	if s.Nodes[node].Slots != nil && policy.Groups != "" {
		return onlyOn(policy.Groups, list)
	}
	if len(policy.Strategies) == 0 && len(policy.Ratio) == 0 {
		return list
	}

	isWhole := func(candidate *Candidate) bool { return candidate.Axis == planir.AxisNone }
	var out []Candidate
	if len(policy.Ratio) > 1 && s.Nodes[node].Op().HasScheme() {
		if candidate, ok := s.inRatio(node); ok {
			out = append(out, candidate)
		}
	}
	for i := range list {
		candidate := &list[i]
		if len(policy.Strategies) > 0 && !slices.Contains(policy.Strategies, candidate.Strategy) {
			continue
		}
		if len(policy.Ratio) > 0 {
			// There is one candidate: the division in the ratio, or else the first whole operator on one of its
			// processors.
			inRatio := isWhole(candidate) && policy.Ratio[candidate.Shares[0].Proc] > 0
			if out != nil || !inRatio {
				continue
			}
		}
		out = append(out, *candidate)
	}
	if out != nil {
		return out
	}
	return slices.DeleteFunc(slices.Clone(list), func(candidate Candidate) bool { return !isWhole(&candidate) })
}

// onlyOn returns those of candidates whose shares are all on one processor; all if it cannot execute the node.
func onlyOn(proc string, list []Candidate) []Candidate {
	onProc := slices.DeleteFunc(slices.Clone(list), func(candidate Candidate) bool {
		return slices.ContainsFunc(candidate.Shares, func(share planir.Share) bool { return share.Proc != proc })
	})
	if len(onProc) == 0 {
		return list
	}
	return onProc
}

// inRatio returns the division of a matrix's columns in the policy's ratio; false if there is none. Each processor but
// the last ends at the boundary nearest to its part that leaves at least one boundary for each of the others.
func (s *Section) inRatio(node int) (Candidate, bool) {
	names := slices.Sorted(maps.Keys(s.Policy.Ratio))
	length, err := lower.AxisLength(&s.Nodes[node], planir.AxisCols)
	at := s.boundaries([]link{{node, planir.AxisCols}}, names)
	if err != nil || len(at) < len(names)-1 {
		return Candidate{}, false
	}
	shares := make([]planir.Share, len(names))
	sum, from, next := 0.0, 0, 0
	for i, name := range names {
		sum += s.Policy.Ratio[name]
		to := length
		if left := len(names) - 1 - i; left > 0 {
			distance := func(k int) float64 { return math.Abs(float64(at[k][0]) - sum*float64(length)) }
			for next < len(at)-left && distance(next+1) < distance(next) {
				next++
			}
			to = at[next][0]
			next++
		}
		shares[i] = planir.Share{Proc: name, From: from, To: to}
		from = to
	}
	candidate, err := s.candidate(node, planir.WeightCentric, planir.AxisCols, shares)
	return candidate, err == nil
}
