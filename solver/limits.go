package solver

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// Limits of the input become bounds of quantities. A quantity is what can be limited: bytes or graphs on a processor,
// the time of a program, energy, bytes of the process, and the time to open graphs. taken measures a lowered plan by
// the same quantities, so that every limit is checked on what is executed in the end.

// Keys of the SoC's limits, before the name of a processor.
const (
	limitSoCAddress = "soc.address_bytes."
	limitSoCGraphs  = "soc.max_graphs."
)

// quantity is a property of a plan that a limit of the input bounds.
type quantity struct {
	kind problem.LimitKind
	name string // processor, program or ""
}

// bound is a limit of a quantity, in the unit of its kind, with the name under which the user knows it.
type bound struct {
	quantity
	max  int64
	user string // the key that messages name
}

// findBounds lists the limits that programs have to keep together: those of the workload and of the SoC, whichever is
// lower.
func (s *session) findBounds() error {
	limits := &s.in.Workload.Limits
	addresses, graphs := slices.Sorted(maps.Keys(limits.AddressBytes)), slices.Sorted(maps.Keys(limits.MaxGraphs))
	for _, name := range slices.Concat(addresses, graphs) {
		if s.in.SoC.Processor(name) == nil {
			return diag.New(diag.ClassInput, "solve: %s limits processor %q, and SoC %q has none of that name",
				s.in.Workload.Title(), name, s.in.SoC.Name).
				WithHint("%s", diag.DidYouMean(name, price.ProcessorNames(s.in.SoC)))
		}
	}

	for i := range s.Procs {
		name := s.Procs[i].Name
		proc := s.in.SoC.Processor(name)
		most, user := lowerLimit(name, proc.AddressBytes, int64(limits.AddressBytes[name]),
			limitSoCAddress, workload.KeyAddress)
		s.addBound(problem.LimitRegionBytes, name, most, user)
		most, user = lowerLimit(name, int64(proc.MaxGraphs), int64(limits.MaxGraphs[name]),
			limitSoCGraphs, workload.KeyGraphs)
		s.addBound(problem.LimitRegionGraphs, name, most, user)
	}
	for _, rows := range s.want.Rows() {
		most, user := limits.PrefillMS, workload.KeyPrefill
		if s.decodes(rows) {
			most, user = limits.DecodeMS, workload.KeyDecode
		}
		s.addBound(problem.LimitPartNS, s.programName(rows), inMillionths(most), user)
	}
	s.addBound(problem.LimitEnergyNJ, "", inMillionths(limits.EnergyMJ), workload.KeyEnergy)
	s.addBound(problem.LimitOpenNS, "", inMillionths(limits.OpenMS), workload.KeyOpen)
	return s.checkPower()
}

// addBound adds a bound, unless it is waived; 0: there is none.
func (s *session) addBound(kind problem.LimitKind, name string, most int64, user string) {
	if most > 0 && !slices.Contains(s.waived, kind) {
		s.bounds = append(s.bounds, bound{quantity{kind, name}, most, user})
	}
}

// lowerLimit returns the lower one of a processor's own limit and the workload's, with its key; 0 is none.
func lowerLimit(proc string, socs, workloads int64, socKey, workloadKey string) (most int64, user string) {
	if workloads > 0 && (socs == 0 || workloads < socs) {
		return workloads, workloadKey + proc
	}
	return socs, socKey + proc
}

// inMillionths returns ms in ns, or mJ in nJ. What is less than one of these is a limit all the same.
func inMillionths(value float64) int64 {
	if value <= 0 {
		return 0
	}
	return max(1, price.Whole(value*1e6))
}

// checkPower refuses a limit of energy, and least energy, where the power of a processor is not known.
func (s *session) checkPower() error {
	if s.in.Workload.Limits.EnergyMJ == 0 && s.in.Workload.Minimise != problem.Energy {
		return nil
	}
	for i := range s.Procs {
		if s.in.SoC.Processor(s.Procs[i].Name).PowerW == 0 {
			return diag.New(diag.ClassInput,
				"solve: %s asks for energy, and SoC %q does not say the power of processor %q",
				s.in.Workload.Title(), s.in.SoC.Name, s.Procs[i].Name).
				WithHint("add power_w, watts while it is busy, to every processor of the SoC file")
		}
	}
	return nil
}

// addMemoryBound adds the bound of memory, which only some solves have.
func (s *session) addMemoryBound(memory int64) {
	s.bounds = slices.DeleteFunc(slices.Clone(s.bounds), func(b bound) bool { return b.kind == problem.LimitBytes })
	if memory > 0 {
		s.bounds = append(s.bounds, bound{quantity{problem.LimitBytes, ""}, memory, workload.KeyMemory})
	}
}

// boundOf returns the bound of a quantity, nil where it has none.
func (s *session) boundOf(of quantity) *bound {
	if i := slices.IndexFunc(s.bounds, func(b bound) bool { return b.quantity == of }); i >= 0 {
		return &s.bounds[i]
	}
	return nil
}

// callLimit returns the limit of time that a call of a program breaks if it takes so long; nil where it breaks none.
func (s *session) callLimit(program string, ns int64) *bound {
	if limit := s.boundOf(quantity{problem.LimitPartNS, program}); limit != nil && ns > limit.max {
		return limit
	}
	return nil
}

// amountsTaken returns how much a lowered plan takes of every bounded quantity, in the units of the bounds.
func (s *session) amountsTaken(plan *planir.Plan) (map[quantity]int64, error) {
	out := map[quantity]int64{}
	loads := map[string]check.Loaded{}

	for _, bound := range s.bounds {
		switch bound.kind {
		// Both limits of a region come from one look at the plan.
		case problem.LimitRegionBytes, problem.LimitRegionGraphs:
			if _, ok := loads[bound.name]; !ok {
				loads[bound.name] = s.load(plan, s.in.SoC.Processor(bound.name))
			}
			out[bound.quantity] = loads[bound.name].Bytes
			if bound.kind == problem.LimitRegionGraphs {
				out[bound.quantity] = int64(loads[bound.name].Graphs)
			}
		case problem.LimitBytes:
			out[bound.quantity] = planir.MemoryOf(plan).Total
		case problem.LimitOpenNS:
			for i := range plan.Program.Graphs {
				out[bound.quantity] += openNS(s.in.SoC.Processor(plan.Program.Graphs[i].Proc))
			}
		case problem.LimitPartNS:
			at := slices.IndexFunc(plan.Program.Programs,
				func(ph planir.PhaseProgram) bool { return ph.Name == bound.name })
			pred, err := s.prediction(plan, &plan.Program.Programs[at])
			if err != nil {
				return nil, err
			}
			out[bound.quantity] = pred.PlanNS
		case problem.LimitEnergyNJ:
			var err error
			if out[bound.quantity], err = s.requestEnergy(plan); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// load returns what a plan has a processor hold. Of compiled binaries it counts all bytes that the compiler's facts tell.
func (s *request) load(plan *planir.Plan, proc *socs.Processor) check.Loaded {
	out := check.Load(plan, proc)
	out.Bytes += s.bytesBeyondWeights(plan, proc.Name)
	return out
}

// Load returns what the plan has a processor of the input's SoC hold, as the limits count it.
func (r *Result) Load(proc string) check.Loaded {
	return r.session.load(r.Plan, r.session.in.SoC.Processor(proc))
}

// requestEnergy returns the energy of a request in nJ: each program counts as often as the workload calls it.
func (s *session) requestEnergy(plan *planir.Plan) (int64, error) {
	total := 0.0
	for i, rows := range s.want.Rows() {
		name := s.programName(rows)
		at := slices.IndexFunc(plan.Program.Programs, func(ph planir.PhaseProgram) bool { return ph.Name == name })
		nj, _, err := s.energy(plan, &plan.Program.Programs[at])
		if err != nil {
			return 0, err
		}
		total += float64(s.callWeight(i) * float64(1000*microjoules(nj)))
	}
	return price.Whole(total), nil
}

// openNS returns the time to open one graph on a processor.
func openNS(proc *socs.Processor) int64 { return price.Whole(proc.CompileMS * 1e6) }

// brokenBounds lists the bounds that are not kept. The bound of memory is left to the choice of schemes and buckets,
// unless processors hold copies of the same weights.
func (s *session) brokenBounds(plan *planir.Plan, taken map[quantity]int64) (out []bound) {
	for _, bound := range s.bounds {
		if taken[bound.quantity] <= bound.max {
			continue
		}
		if bound.kind != problem.LimitBytes || packsTwice(plan) {
			out = append(out, bound)
		}
	}
	return out
}

// LimitError is in the chain of errors that say which limits cannot be kept together (errors.As). Names are the limits'
// keys in the workload, or "soc." keys of a processor's own limits. There may be smaller sets of such limits.
type LimitError struct {
	Names []string
	// Proved: there is no plan. Else none was found, among all that were looked at.
	Proved bool
	text   string
	cause  error
}

// Error says which limits conflict and what values would be needed.
func (e *LimitError) Error() string { return e.text }

// Unwrap returns the engine's error.
func (e *LimitError) Unwrap() error { return e.cause }

// Proved reports whether an error of class ClassInfeasible says that there is no plan, rather than that none was
// found.
func Proved(err error) bool {
	var limits *LimitError
	return !errors.As(err, &limits) || limits.Proved
}

// namesLimit reports whether an error says that a limit of that key cannot be kept.
func namesLimit(err error, key string) bool {
	var limits *LimitError
	return errors.As(err, &limits) && slices.Contains(limits.Names, key)
}

// unproved returns an error of limits without its proof: it is about some plans, and others were not proved to be
// impossible.
func unproved(err error) error {
	var limits *LimitError
	if !errors.As(err, &limits) || !limits.Proved {
		return err
	}
	weaker := *limits
	weaker.Proved, weaker.text = false, strings.Replace(limits.text, noPlanKeeps, noPlanFound, 1)
	return diag.New(diag.ClassInfeasible, "solve: %w", &weaker).WithHint("%s", strings.Join(diag.HintsOf(err), "; "))
}

// How errors of limits begin, if it is proved that there is no plan and if it is not.
const (
	noPlanKeeps = "no plan keeps"
	noPlanFound = "no plan was found that keeps"
)

// infeasibleError turns an engine's error that no solution exists into one that names the limits of the input. plan is
// one that breaks them, posed is the problem. The error is a proof where the problem had every plan among its solutions
// and counts the limits as lowered plans do.
func (s *session) infeasibleError(err error, plan *planir.Plan, posed *joint) error {
	var infeasible *problem.InfeasibleError
	if !errors.As(err, &infeasible) {
		return err
	}
	failure := &LimitError{cause: err, Proved: s.posesAll()}
	var parts []string
	for _, limit := range infeasible.Limits {
		failure.Proved = failure.Proved && s.countsExactly(limit)
		bound := s.boundOf(quantity{limit.Kind, limit.Name})
		if bound == nil {
			continue
		}
		if !slices.Contains(failure.Names, bound.user) {
			failure.Names = append(failure.Names, bound.user)
		}

		if len(infeasible.Limits) > 1 {
			what, amount := bound.describe()
			parts = append(parts, fmt.Sprintf("%s at most %s", what, amount(bound.max)))
			continue
		}
		need := limit.Need
		if limit.Kind == problem.LimitEnergyNJ {
			need = price.Whole(float64(need) / posed.unit)
		}
		// What the problem leaves out of account was taken off its limit.
		what, takes, most := bound.exceeded(need + bound.max - posed.posed[bound.quantity])
		parts = append(parts, fmt.Sprintf("%s at least %s, and at most %s are allowed", what, takes, most))
	}

	if parts == nil { // not told
		return s.undecidedError(plan)
	}

	found, among := noPlanKeeps, ""
	if !failure.Proved {
		found, among = noPlanFound, "of those looked at, "
	}
	failure.text = fmt.Sprintf("%s %s: %s%s", found, strings.Join(failure.Names, " and "), among,
		strings.Join(parts, "; "))
	return diag.New(diag.ClassInfeasible, "solve: %w", failure).WithHint(limitHint)
}

// posesAll reports whether a joint problem has every plan among its solutions: there are no other schemes or buckets,
// and no candidate was left out.
func (s *session) posesAll() bool {
	for _, ph := range s.phases {
		if ph != nil && len(ph.rows) > 0 && len(ph.points) > 1 {
			return false
		}
	}
	return !s.reduced && len(s.want.Buckets) <= s.fewestBucketsForTime()
}

// countsExactly reports whether a joint problem counts for a limit exactly what the lowered plan takes: so it does for
// what a processor loads, unless the processor joins graphs, or the compiler's facts tell more bytes than the weights.
func (s *request) countsExactly(limit problem.Limit) bool {
	switch limit.Kind {
	case problem.LimitRegionBytes:
		if s.facts != nil {
			return false
		}
	case problem.LimitRegionGraphs:
	default:
		return false
	}
	i := slices.IndexFunc(s.Procs, func(p planir.Proc) bool { return p.Name == limit.Name })
	return i >= 0 && !s.Procs[i].Fuses && !s.Procs[i].DynamicRows
}

// describe returns what a bound limits, and a function that writes its amounts.
func (b *bound) describe() (what string, amount func(int64) string) {
	ms := func(ns int64) string { return fmt.Sprintf("%.6g ms", float64(ns)/1e6) }
	mJ := func(nj int64) string { return fmt.Sprintf("%.6g mJ", float64(nj)/1e6) }
	bytes := func(count int64) string { return fmt.Sprintf("%d bytes", count) }
	graphs := func(count int64) string { return fmt.Sprintf("%d graphs", count) }
	switch b.kind {
	case problem.LimitRegionBytes:
		return fmt.Sprintf("processor %q holds", b.name), bytes
	case problem.LimitRegionGraphs:
		return fmt.Sprintf("processor %q holds", b.name), graphs
	case problem.LimitPartNS:
		return fmt.Sprintf("a call of %s takes", b.name), ms
	case problem.LimitEnergyNJ:
		return "the expected request takes, modelled,", mJ
	case problem.LimitOpenNS:
		return "opening the graphs takes", ms
	}
	return "a process holds", func(count int64) string { return fmt.Sprint(unit.Bytes(count)) }
}

// exceeded returns what a bound limits, what is taken of it and what is allowed: in whole units if the usual digits
// would read alike.
func (b *bound) exceeded(taken int64) (what, takes, most string) {
	what, amount := b.describe()
	takes, most = amount(taken), amount(b.max)
	if takes != most {
		return what, takes, most
	}
	unit := "bytes"
	switch b.kind {
	case problem.LimitPartNS, problem.LimitOpenNS:
		unit = "ns"
	case problem.LimitEnergyNJ:
		unit = "nJ"
	}
	takes, most = fmt.Sprintf("%d %s", taken, unit), fmt.Sprintf("%d %s", b.max, unit)
	return what, takes, most
}
