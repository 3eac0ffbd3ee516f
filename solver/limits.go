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

// Keys of the SoC's limits, before the name of a processor.
const (
	limitSoCAddress = "soc.address_bytes."
	limitSoCGraphs  = "soc.max_graphs."
)

// quantity is something of a plan that a limit of the input bounds.
type quantity struct {
	kind problem.LimitKind
	name string // processor, program or ""
}

// bound is a limit of a quantity, in the unit of its kind, with the name its user knows.
type bound struct {
	quantity
	max  int64
	user string
}

// findBounds lists the limits that programs have to keep together: those of the workload and of the SoC, whichever is lower.
func (s *session) findBounds() error {
	l := &s.in.Workload.Limits
	for _, names := range [][]string{slices.Sorted(maps.Keys(l.AddressBytes)), slices.Sorted(maps.Keys(l.MaxGraphs))} {
		for _, name := range names {
			if s.in.SoC.Processor(name) == nil {
				return diag.New(diag.ClassInput, "solve: %s limits processor %q, and SoC %q has none of that name", s.in.Workload.Title(), name, s.in.SoC.Name).
					WithHint("%s", diag.DidYouMean(name, price.ProcessorNames(s.in.SoC)))
			}
		}
	}
	add := func(kind problem.LimitKind, name string, max int64, user string) {
		if max > 0 && !slices.Contains(s.waived, kind) {
			s.bounds = append(s.bounds, bound{quantity{kind, name}, max, user})
		}
	}
	for i := range s.Procs {
		name := s.Procs[i].Name
		sp := s.in.SoC.Processor(name)
		lower := func(soc, own int64, socName, ownName string) (int64, string) {
			if own > 0 && (soc == 0 || own < soc) {
				return own, ownName + name
			}
			return soc, socName + name
		}
		max, user := lower(sp.AddressBytes, int64(l.AddressBytes[name]), limitSoCAddress, workload.KeyAddress)
		add(problem.LimitRegionBytes, name, max, user)
		max, user = lower(int64(sp.MaxGraphs), int64(l.MaxGraphs[name]), limitSoCGraphs, workload.KeyGraphs)
		add(problem.LimitRegionGraphs, name, max, user)
	}
	// What is less than a nanosecond is a limit all the same.
	millionth := func(x float64) int64 {
		if x > 0 {
			return max(1, price.Whole(x*1e6))
		}
		return 0
	}
	for _, rows := range s.want.Rows() {
		if s.decodes(rows) {
			add(problem.LimitPartNS, s.programName(rows), millionth(l.DecodeMS), workload.KeyDecode)
		} else {
			add(problem.LimitPartNS, s.programName(rows), millionth(l.PrefillMS), workload.KeyPrefill)
		}
	}
	add(problem.LimitEnergyNJ, "", millionth(l.EnergyMJ), workload.KeyEnergy)
	add(problem.LimitOpenNS, "", millionth(l.OpenMS), workload.KeyOpen)
	if l.EnergyMJ > 0 || s.in.Workload.Minimise == problem.Energy {
		for i := range s.Procs {
			if s.in.SoC.Processor(s.Procs[i].Name).PowerW == 0 {
				return diag.New(diag.ClassInput, "solve: %s asks for energy, and SoC %q does not say the power of processor %q", s.in.Workload.Title(), s.in.SoC.Name, s.Procs[i].Name).
					WithHint("add power_w, watts while it is busy, to every processor of the SoC file")
			}
		}
	}
	return nil
}

// bind adds the bound of memory, which only some solves have.
func (s *session) bind(memory int64) {
	s.bounds = slices.DeleteFunc(slices.Clone(s.bounds), func(b bound) bool { return b.kind == problem.LimitBytes })
	if memory > 0 {
		s.bounds = append(s.bounds, bound{quantity{problem.LimitBytes, ""}, memory, workload.KeyMemory})
	}
}

// taken is what a lowered plan takes of everything that is bounded.
func (s *session) taken(p *planir.Plan) (map[quantity]int64, error) {
	out := map[quantity]int64{}
	loads := map[string]check.Loaded{}
	for _, b := range s.bounds {
		switch b.kind {
		case problem.LimitRegionBytes, problem.LimitRegionGraphs:
			if _, ok := loads[b.name]; !ok {
				loads[b.name] = check.Load(p, s.in.SoC.Processor(b.name))
			}
			out[b.quantity] = loads[b.name].Bytes + s.uncounted(p, b.name)
			if b.kind == problem.LimitRegionGraphs {
				out[b.quantity] = int64(loads[b.name].Graphs)
			}
		case problem.LimitBytes:
			out[b.quantity] = planir.MemoryOf(p).Total
		case problem.LimitOpenNS:
			for i := range p.Program.Graphs {
				out[b.quantity] += openNS(s.in.SoC.Processor(p.Program.Graphs[i].Proc))
			}
		case problem.LimitPartNS, problem.LimitEnergyNJ:
			energy := 0.0
			for i, rows := range s.want.Rows() {
				name := s.programName(rows)
				if b.kind == problem.LimitPartNS && name != b.name {
					continue
				}
				ph := slices.IndexFunc(p.Program.Programs, func(ph planir.Phase) bool { return ph.Name == name })
				pred, err := s.prediction(p, &p.Program.Programs[ph])
				if err != nil {
					return nil, err
				}
				if b.kind == problem.LimitPartNS {
					out[b.quantity] = pred.PlanNS
					continue
				}
				nj, _, err := s.energy(p, &p.Program.Programs[ph])
				if err != nil {
					return nil, err
				}
				energy += float64(s.weight(i) * float64(1000*microjoules(nj)))
			}
			if b.kind == problem.LimitEnergyNJ {
				out[b.quantity] = price.Whole(energy)
			}
		}
	}
	return out, nil
}

func openNS(p *socs.Processor) int64 { return price.Whole(p.CompileMS * 1e6) }

// broken lists the bounds that are not kept. What all processes hold is left to whoever chooses schemes and buckets, unless copies of the
// same weights are part of it.
func (s *session) broken(p *planir.Plan, taken map[quantity]int64) (out []bound) {
	for _, b := range s.bounds {
		if taken[b.quantity] > b.max && (b.kind != problem.LimitBytes || copies(p)) {
			out = append(out, b)
		}
	}
	return out
}

// LimitError is in the chain of errors that say which limits cannot be kept together (errors.As). Names are their keys in the
// workload, or "soc." keys of a processor's own limits. There may be smaller sets of them.
type LimitError struct {
	Names []string
	// Proved: there is no plan. Else none was found, among all that were looked at.
	Proved bool
	text   string
	cause  error
}

// Error says what is limited and what would be needed.
func (e *LimitError) Error() string { return e.text }

// Unwrap is what the engine said.
func (e *LimitError) Unwrap() error { return e.cause }

// Proved reports whether an error of class ClassInfeasible says that there is no plan, rather than that none was found.
func Proved(err error) bool {
	var limits *LimitError
	return !errors.As(err, &limits) || limits.Proved
}

// unreachable is the error that bounds cannot be kept together, of an engine's; plan is one that does not, j is the problem it was posed.
func (s *session) unreachable(err error, plan *planir.Plan, j *joint) error {
	var joint *problem.InfeasibleError
	if !errors.As(err, &joint) {
		return err
	}
	e := &LimitError{cause: err, Proved: s.posesAll()}
	var parts []string
	for _, l := range joint.Limits {
		e.Proved = e.Proved && s.countsExactly(l)
		k := slices.IndexFunc(s.bounds, func(b bound) bool { return b.quantity == quantity{l.Kind, l.Name} })
		if k < 0 {
			continue
		}
		b := &s.bounds[k]
		if !slices.Contains(e.Names, b.user) {
			e.Names = append(e.Names, b.user)
		}
		what, amount := b.words()
		if len(joint.Limits) > 1 {
			parts = append(parts, fmt.Sprintf("%s at most %s", what, amount(b.max)))
			continue
		}
		need := l.Need
		if l.Kind == problem.LimitEnergyNJ {
			need = price.Whole(float64(need) / j.unit)
		}
		// What the problem leaves out of account was taken off its limit.
		parts = append(parts, fmt.Sprintf("%s at least %s, and at most %s are allowed", what, amount(need+b.max-j.posed[b.quantity]), amount(b.max)))
	}
	if parts == nil { // not told
		return s.undecided("no plan keeps", plan)
	}
	e.text = fmt.Sprintf("no plan keeps %s: %s", strings.Join(e.Names, " and "), strings.Join(parts, "; "))
	return diag.New(diag.ClassInfeasible, "solve: %w", e).WithHint(limitHint)
}

// posesAll reports whether a joint problem has every plan among its solutions: there are no other schemes or buckets, and no
// candidate was left out.
func (s *session) posesAll() bool {
	for _, ph := range s.phases {
		if ph != nil && len(ph.rows) > 0 && len(ph.points) > 1 {
			return false
		}
	}
	return !s.thinned && len(s.want.Buckets) <= s.fewestForTime()
}

// countsExactly reports whether a joint problem counts of a limit what the lowered plan takes: what a processor loads, unless it joins
// graphs.
func (s *session) countsExactly(l problem.Limit) bool {
	if l.Kind != problem.LimitRegionBytes && l.Kind != problem.LimitRegionGraphs {
		return false
	}
	i := slices.IndexFunc(s.Procs, func(p planir.Proc) bool { return p.Name == l.Name })
	return i >= 0 && !s.Procs[i].Fuses && !s.Procs[i].DynamicRows
}

// words say what a bound is of, and its amounts.
func (b *bound) words() (what string, amount func(int64) string) {
	ms := func(ns int64) string { return fmt.Sprintf("%.6g ms", float64(ns)/1e6) }
	switch b.kind {
	case problem.LimitRegionBytes:
		return fmt.Sprintf("processor %q holds", b.name), func(n int64) string { return fmt.Sprintf("%d bytes", n) }
	case problem.LimitRegionGraphs:
		return fmt.Sprintf("processor %q holds", b.name), func(n int64) string { return fmt.Sprintf("%d graphs", n) }
	case problem.LimitPartNS:
		return fmt.Sprintf("a call of %s takes", b.name), ms
	case problem.LimitEnergyNJ:
		return "the expected request takes, modelled,", func(n int64) string { return fmt.Sprintf("%.6g mJ", float64(n)/1e6) }
	case problem.LimitOpenNS:
		return "opening the graphs takes", ms
	}
	return "a process holds", func(n int64) string { return fmt.Sprint(unit.Bytes(n)) }
}
