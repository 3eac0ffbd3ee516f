package solver

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/price"
)

// nodeKey identifies the candidates of a node: they depend on nothing else.
type nodeKey struct {
	rows   int
	node   string
	scheme op.Scheme
}

// keyOfNode returns the key of a node's candidates.
func keyOfNode(rows int, n *lower.Node) nodeKey { return nodeKey{rows, n.Name, n.Op().Scheme} }

// candidateSet is the ways to execute a node, or the reason why there are none.
type candidateSet struct {
	list    []price.Candidate
	err     error
	section *price.Section // that made them
	node    int            // its index in section
}

// priceSection makes the candidates of a section's nodes at a number of rows, once for each combination of its schemes.
//
// Nodes without a scheme are shared by all combinations. Their candidates may follow the boundaries of the products
// around them, so that they grow with every combination, until bounds rely on them (listed).
func (s *pricing) priceSection(sec *lower.Section, rows int) {
	key := sectionKey(sec, rows)
	if s.priced[key] {
		return
	}
	s.priced[key] = true

	section := s.section(sec, rows)
	lists, errs := section.Candidates()
	for i := range lists {
		lists[i] = section.Restrict(i, lists[i])
	}
	for i := range sec.Nodes {
		key := keyOfNode(rows, &sec.Nodes[i])
		known := s.candidateSets[key]
		switch {
		case known == nil:
			s.candidateSets[key] = &candidateSet{lists[i], errs[i], section, i}
			s.reserve(candidatesBytes(lists[i]))
		case !sec.Nodes[i].Op().HasScheme() && !s.listed:
			s.addCandidates(known, lists[i])
		}
	}

	// Whoever needs the section reports a node that failed.
	if !slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		s.warnMissing(section)
	}
}

// addCandidates adds those of a list to a set that it does not have yet.
func (s *pricing) addCandidates(set *candidateSet, list []price.Candidate) {
	seen := map[string]bool{}
	for i := range set.list {
		seen[set.list[i].Label()] = true
	}
	for _, candidate := range list {
		if !seen[candidate.Label()] {
			set.list = append(set.list, candidate)
			s.reserve(candidateSize(&candidate))
		}
	}
}

// warnMissing mentions each processor without prices in a section, once: a plan that does without it must not look like
// a choice.
func (s *pricing) warnMissing(section *price.Section) {
	for _, proc := range s.Procs {
		err := section.Missing[proc.Name]
		if err == nil || s.warned[proc.Name] || diag.ClassOf(err) == diag.ClassInfeasible {
			continue
		}
		s.warned[proc.Name] = true
		s.warn("some choices with processor %q are left out: %v", proc.Name, err)
	}
}

// sectionKey identifies a section's problem within a session: rows, name and the schemes of its nodes decide it.
func sectionKey(sec *lower.Section, rows int) string {
	key := fmt.Sprintf("%d %s", rows, sec.Name)
	for i := range sec.Nodes {
		if scheme := sec.Nodes[i].Op().Scheme; scheme != "" {
			key += " " + string(scheme)
		}
	}
	return key
}

// poseSection poses the problem of a section whose schemes are fixed.
func (s *pricing) poseSection(sec *lower.Section, rows int) (*instance, error) {
	key := sectionKey(sec, rows)
	if in := s.instances[key]; in != nil {
		return in, nil
	}
	in, err := s.assembleCached(sec, rows)
	if err != nil {
		return nil, err
	}
	in.findPaths()
	in.posed = in.withForkChoices()
	s.instances[key] = in
	return in, nil
}

// pricing keeps the candidates of operators and the problems posed with them, and counts the memory that both take.
type pricing struct {
	request

	candidateSets map[nodeKey]*candidateSet
	listed        bool              // bounds on assignments rely on the candidate sets
	priced        map[string]bool   // by sectionKey
	warned        map[string]bool   // processors whose lack of prices was mentioned
	divisions     []planir.Decision // how programs divide columns, offered to each other

	items        *itemCache
	instances    map[string]*instance    // by sectionKey
	programs     map[programKey]*program // posed so far
	leasts       map[string][]int64      // by sectionKey, of each set of processors; nil: not known
	branchCaches map[string]*branchCache // branches of forks, by the schemes of their nodes
	forkCaches   map[string]*forkCache   // forks, by the same

	budget *memoryBudget // of what is kept, shared with sessions of the same solve
	kept   int64         // bytes of it, of candidates and combinations
	cached int64         // bytes of it, of posed problems
}

// offerDivisions adds a plan's divisions of columns to the candidates of every program. If programs divide a matrix
// alike, a processor holds one region of it instead of one for each program.
func (s *pricing) offerDivisions(plan *planir.Plan) {
	for _, decision := range plan.Decisions {
		if decision.Axis != planir.AxisCols && decision.Axis != planir.AxisK {
			continue
		}
		division := decision
		division.Strategy, division.Shares = price.Base(decision.Strategy), slices.Clone(decision.Shares)
		for i := range division.Shares {
			division.Shares[i].PadRows, division.Shares[i].Form = 0, ""
		}
		offered := slices.ContainsFunc(s.divisions, func(other planir.Decision) bool {
			return other.Node == division.Node && price.SameShares(&other, &division)
		})
		if !offered {
			s.divisions = append(s.divisions, division)
		}
	}

	added := false
	for _, set := range s.candidateSets {
		before := len(set.list)
		for i := range s.divisions {
			if set.err == nil && s.divisions[i].Node == set.section.Nodes[set.node].Name {
				set.list = set.section.With(set.list, set.node, &s.divisions[i])
			}
		}
		added = added || len(set.list) > before
	}
	if added {
		s.dropItems()
	}
}
