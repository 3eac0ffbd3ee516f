package price

import (
	"slices"
	"sort"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
)

// lister collects the candidates of a section's nodes, in a fixed order and each once.
type lister struct {
	*Section
	lists   [][]Candidate
	seen    []map[string]bool // labels
	lacking [][]string        // processors that cannot execute the node
}

// Candidates lists the ways to execute each node of the section, or why there are none. Every processor that executes
// a node alone is among them.
func (s *Section) Candidates() ([][]Candidate, []error) {
	n := len(s.Nodes)
	l := lister{Section: s, lists: make([][]Candidate, n), seen: make([]map[string]bool, n),
		lacking: make([][]string, n)}
	errs := make([]error, n)
	for i := range s.Nodes {
		l.undivided(i)
		if len(l.lists[i]) == 0 {
			errs[i] = s.impossible(i)
		}
		if s.Policy.wholeOperators() {
			continue
		}
		for _, candidate := range s.standardPieces(i) {
			l.add(i, candidate, candidate.procs())
		}
	}
	if s.Policy.wholeOperators() {
		return l.lists, errs
	}
	for _, run := range s.runs() {
		for _, tuple := range s.tuples {
			if l.grouped(run, tuple) {
				continue
			}
			l.divided(run, tuple)
			if run[len(run)-1].axis == planir.AxisK { // the first adds what all have computed
				reversed := slices.Clone(tuple)
				slices.Reverse(reversed)
				l.divided(run, reversed)
			}
		}
	}
	return l.lists, errs
}

// add lists a candidate unless it is listed already or its processors may not execute the node.
func (l *lister) add(node int, candidate Candidate, procs []string) {
	if !l.mayExecute(procs, l.lacking[node]) {
		return
	}
	if l.seen[node] == nil {
		l.seen[node] = map[string]bool{}
	}
	if label := candidate.Label(); !l.seen[node][label] {
		l.seen[node][label] = true
		l.lists[node] = append(l.lists[node], candidate)
	}
}

// undivided lists the processors that execute a node alone: first those that do all they can, then those that assist
// them.
func (l *lister) undivided(node int) {
	for _, assisting := range []bool{false, true} {
		for i := range l.Procs {
			proc := l.Procs[i].Name
			asked := len(l.Policy.Only) == 0 || slices.Contains(l.Policy.Only, proc)
			if asked == assisting || !l.mayExecute([]string{proc}, l.lacking[node]) {
				continue
			}
			candidate, err := l.candidate(node, planir.Single, planir.AxisNone, []planir.Share{{Proc: proc}})
			if err != nil {
				name := l.Nodes[node].Name
				l.Refused[name] = append(l.Refused[name], Refusal{proc, err})
				l.lacking[node] = append(l.lacking[node], proc)
				continue
			}
			l.add(node, candidate, []string{proc})
		}
	}
}

// shortStep is the time of a group, in ns, up to which its single cores may still have shares of an operator. A group
// opens each step and waits for its end; shares only wait for each other, which saves some tenths of a microsecond a
// step.
const shortStep = 20_000

// grouped reports whether a group of cores that is a candidate for each node of a run replaces several processors of a
// tuple. A group divides the work while it runs, so its cores get no shares, unless the work is short.
//
// RATIONALE: Why do like cores get no shares?
func (l *lister) grouped(run []link, tuple []string) bool {
	if strategies := l.Policy.Strategies; len(strategies) > 0 && !slices.Contains(strategies, planir.Single) {
		return false
	}
	return slices.ContainsFunc(l.groups[strings.Join(tuple, "\n")], func(group string) bool {
		total := int64(0)
		for _, part := range run {
			list := l.lists[part.node]
			at := slices.IndexFunc(list, func(c Candidate) bool {
				return c.Strategy == planir.Single && c.Shares[0].Proc == group
			})
			if at < 0 {
				return false
			}
			total += list[at].PredictNS
		}
		return total >= shortStep
	})
}

// divided lists the candidates of a run's nodes over a tuple.
func (l *lister) divided(run []link, tuple []string) {
	for _, c := range l.divide(run, tuple) {
		l.add(c.node, c.Candidate, tuple)
	}
}

// impossible explains why no processor executes a node.
func (s *Section) impossible(node int) error {
	n := &s.Nodes[node]
	var reasons []string
	for _, refusal := range s.Refused[n.Name] {
		if diag.ClassOf(refusal.err) == diag.ClassInput {
			problem := diag.New(diag.ClassInput, "price %q at %d rows: %w", n.Name, s.Rows, refusal.err)
			if len(diag.HintsOf(refusal.err)) == 0 {
				problem = problem.WithHint("measure it: hetc profile --soc SOC --model MODEL --workload WORKLOAD " +
					"-o rec.jsonl --resume")
			}
			return problem
		}
		reasons = append(reasons, refusal.Reason())
	}
	problem := diag.New(diag.ClassInfeasible, "no processor executes %q at %d rows (%s): %s",
		n.Name, s.Rows, n.Op().Key(), strings.Join(reasons, "; "))
	switch scheme := n.Op().Scheme; {
	case s.Exact[n.Name]:
		return problem.WithHint("it is computed in %q whatever the workload permits, because rounding would choose "+
			"other experts: a processor has to list that scheme in the SoC", scheme)
	case scheme != "":
		return problem.WithHint("permit another scheme than %q (with fewer bits, if it is too large) in the "+
			"workload, or add processors to the SoC", scheme)
	}
	if cache := s.Nodes[node].Op().KV; cache != "" {
		return problem.WithHint("a processor has to list the operators in its kinds and cache %q in its kv "+
			"(hetc socs show): name another cache in the workload, or cache: best, or add processors to the SoC", cache)
	}
	return problem.WithHint("add the operators to the kinds of a processor of the SoC, if it executes them")
}

// maxPieces is how many standard pieces an operator is executed in.
const maxPieces = 4

// standardPieces returns the ways to execute a matrix in standard numbers of rows, one after the other, on a processor
// with static shapes (HeteroInfer sec. 4.2). The remaining rows are padded to a standard number, or a processor without
// static shapes executes them at the same time. Standard numbers are the buckets and the powers of two, whose graphs
// are shared.
func (s *Section) standardPieces(node int) (out []Candidate) {
	n := &s.Nodes[node]
	rows := n.Op().M
	if _, err := lower.AxisLength(n, planir.AxisRows); err != nil || !n.Op().HasScheme() || rows == 1 {
		return nil
	}
	for i := range s.Procs {
		proc := s.Procs[i].Name
		if s.Static[proc] == 0 {
			continue
		}
		sizes := s.standardRows(s.Static[proc], rows)
		for _, size := range sizes {
			if size < rows && rows/size <= maxPieces {
				out = append(out, s.piecesOf(node, proc, size, sizes)...)
			}
		}
	}
	return out
}

// standardRows returns the standard numbers of rows of a processor with that granularity, ascending.
func (s *Section) standardRows(unit, rows int) []int {
	var sizes []int
	for i := unit; i <= 2*rows; i *= 2 {
		sizes = append(sizes, i)
	}
	for _, bucket := range s.Buckets {
		if bucket%unit == 0 {
			sizes = append(sizes, bucket)
		}
	}
	slices.Sort(sizes)
	return slices.Compact(sizes)
}

// piecesOf returns the candidates in pieces of one size.
func (s *Section) piecesOf(node int, proc string, size int, sizes []int) (out []Candidate) {
	rows := s.Nodes[node].Op().M
	var shares []planir.Share
	at := 0
	for range rows / size {
		shares = append(shares, planir.Share{Proc: proc, From: at, To: at + size})
		at += size
	}
	try := func(strategy planir.Strategy, rest ...planir.Share) {
		if candidate, err := s.candidate(node, strategy, planir.AxisRows, slices.Concat(shares, rest)); err == nil {
			out = append(out, candidate)
		}
	}
	if at == rows {
		if len(shares) > 1 {
			try(planir.Pipe)
		}
		return out
	}
	last := planir.Share{Proc: proc, From: at, To: rows}
	if standard := sizes[sort.SearchInts(sizes, rows-at)]; standard > rows-at {
		last.PadRows = standard
	}
	try(planir.Pipe, last)
	for _, tuple := range s.tuples {
		if len(tuple) != 2 || !slices.Contains(tuple, proc) {
			continue
		}
		other := tuple[0]
		if other == proc {
			other = tuple[1]
		}
		if s.Static[other] == 0 {
			try(planir.ActivationDivide, planir.Share{Proc: other, From: at, To: rows})
		}
	}
	return out
}
