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
	"github.com/hetc/hetc/solver/problem"
)

// Limits are what a plan may take at most, whatever it minimises. 0 and absent keys are no limit.
type Limits struct {
	// EnergyMJ bounds the energy of the expected request in millijoules, modelled as power_w of each processor times its busy
	// time; phases count by the workload's weights, as they do in the expected time.
	EnergyMJ float64 `json:"energy_mj,omitempty" yaml:"energy_mj,omitempty"`
	// PrefillMS and DecodeMS bound the predicted time of one call of every program of prefill, and of decode.
	PrefillMS float64 `json:"prefill_ms,omitempty" yaml:"prefill_ms,omitempty"`
	DecodeMS  float64 `json:"decode_ms,omitempty" yaml:"decode_ms,omitempty"`
	// OpenMS bounds compile_ms of all graphs of all processors together.
	OpenMS float64 `json:"open_ms,omitempty" yaml:"open_ms,omitempty"`
	// AddressBytes and MaxGraphs bound what processors hold, below what the SoC says of them.
	AddressBytes map[string]unit.Bytes `json:"address_bytes,omitempty" yaml:"address_bytes,omitempty"`
	MaxGraphs    map[string]int        `json:"max_graphs,omitempty" yaml:"max_graphs,omitempty"`
}

// IsZero reports whether nothing is limited.
func (l Limits) IsZero() bool {
	return l.EnergyMJ == 0 && l.PrefillMS == 0 && l.DecodeMS == 0 && l.OpenMS == 0 && len(l.AddressBytes) == 0 && len(l.MaxGraphs) == 0
}

// most is the largest limit that is accepted of a number of ms or mJ.
const most = 1e9

// validate calls fail for everything that makes no sense.
func (l *Limits) validate(fail func(path, format string, args ...any)) {
	for _, x := range []struct {
		path  string
		value float64
		unit  string
	}{{"energy_mj", l.EnergyMJ, "mJ"}, {"prefill_ms", l.PrefillMS, "ms"}, {"decode_ms", l.DecodeMS, "ms"}, {"open_ms", l.OpenMS, "ms"}} {
		if !(x.value >= 0 && x.value <= most) {
			fail("limits."+x.path, "limit is %v %s, want more than 0, at most %g (leave it out for no limit)", x.value, x.unit, most)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.AddressBytes)) {
		if b := l.AddressBytes[name]; b < 1 || b > maxMemory {
			fail("limits.address_bytes."+name, "limit is %v, want more than 0, at most %v", b, unit.Bytes(maxMemory))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.MaxGraphs)) {
		if n := l.MaxGraphs[name]; n < 1 || n > 1<<20 {
			fail("limits.max_graphs."+name, "limit is %d graphs, want 1..%d (hetc solve --only leaves a processor out)", n, 1<<20)
		}
	}
}

// Names of limits that users set, as LimitNames lists them. A processor's begin with "limits.address_bytes." or
// "limits.max_graphs." and end with its name, and where the SoC sets them with "soc.address_bytes." or "soc.max_graphs.".
const (
	LimitMemory    = "memory"
	LimitEnergy    = "limits.energy_mj"
	LimitPrefill   = "limits.prefill_ms"
	LimitDecode    = "limits.decode_ms"
	LimitOpen      = "limits.open_ms"
	LimitPrefillKL = "quality.max_kl.prefill"
	LimitDecodeKL  = "quality.max_kl.decode"

	limitAddress    = "limits.address_bytes."
	limitGraphs     = "limits.max_graphs."
	limitSoCAddress = "soc.address_bytes."
	limitSoCGraphs  = "soc.max_graphs."
)

// LimitNames lists the limits that the input sets, and Without has not dropped, in a fixed order.
func (in *Input) LimitNames() []string {
	w := in.Workload
	if w == nil {
		w = DefaultWorkload()
	}
	var out []string
	add := func(name string, set bool) {
		if set && !slices.Contains(in.dropped, name) {
			out = append(out, name)
		}
	}
	add(LimitMemory, in.MaxMemory > 0 || w.Memory > 0)
	add(LimitPrefillKL, w.Quality.MaxKL.Prefill > 0)
	add(LimitDecodeKL, w.Quality.MaxKL.Decode > 0)
	add(LimitPrefill, w.Limits.PrefillMS > 0)
	add(LimitDecode, w.Limits.DecodeMS > 0)
	add(LimitEnergy, w.Limits.EnergyMJ > 0)
	add(LimitOpen, w.Limits.OpenMS > 0)
	for _, name := range slices.Sorted(maps.Keys(w.Limits.AddressBytes)) {
		add(limitAddress+name, true)
	}
	for _, name := range slices.Sorted(maps.Keys(w.Limits.MaxGraphs)) {
		add(limitGraphs+name, true)
	}
	for i := range in.SoC.Processors {
		p := &in.SoC.Processors[i]
		add(limitSoCAddress+p.Name, p.AddressBytes > 0)
		add(limitSoCGraphs+p.Name, p.MaxGraphs > 0)
	}
	return out
}

// Without is the input with some of its limits dropped, by their names; what is not set is not missed. Solving it tells whether they
// are what stands in the way. A plan that breaks a limit of the SoC does not pass check.Plan: it tells what would be possible, and is not to be executed.
func (in Input) Without(names ...string) Input {
	in.dropped = slices.Concat(in.dropped, names)
	w := *DefaultWorkload()
	if in.Workload != nil {
		w = *in.Workload
	}
	w.Limits.AddressBytes, w.Limits.MaxGraphs = maps.Clone(w.Limits.AddressBytes), maps.Clone(w.Limits.MaxGraphs)
	for _, name := range names {
		switch name {
		case LimitMemory:
			w.Memory, in.MaxMemory = 0, 0
		case LimitEnergy:
			w.Limits.EnergyMJ = 0
		case LimitPrefill:
			w.Limits.PrefillMS = 0
		case LimitDecode:
			w.Limits.DecodeMS = 0
		case LimitOpen:
			w.Limits.OpenMS = 0
		case LimitPrefillKL:
			w.Quality.MaxKL.Prefill = anyLoss(w.Quality.MaxKL.Prefill)
		case LimitDecodeKL:
			w.Quality.MaxKL.Decode = anyLoss(w.Quality.MaxKL.Decode)
		}
		if p, ok := strings.CutPrefix(name, limitAddress); ok {
			delete(w.Limits.AddressBytes, p)
		}
		if p, ok := strings.CutPrefix(name, limitGraphs); ok {
			delete(w.Limits.MaxGraphs, p)
		}
	}
	in.Workload = &w
	return in
}

// beyondSoC reports whether limits of the SoC were dropped.
func (in *Input) beyondSoC() bool {
	return slices.ContainsFunc(in.dropped, func(name string) bool { return strings.HasPrefix(name, "soc.") })
}

// anyLoss is a limit of quality that everything keeps; the permission that comes with it stays.
func anyLoss(limit float64) float64 {
	if limit == 0 {
		return 0
	}
	return 1e6
}

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
				return diag.New(diag.ClassInput, "solve: %s limits processor %q, and SoC %q has none of that name", s.in.Workload.title(), name, s.in.SoC.Name).
					WithHint("%s", diag.DidYouMean(name, processorNames(s.in.SoC)))
			}
		}
	}
	add := func(kind problem.LimitKind, name string, max int64, user string) {
		if max > 0 && !slices.Contains(s.waived, kind) {
			s.bounds = append(s.bounds, bound{quantity{kind, name}, max, user})
		}
	}
	for i := range s.procs {
		name := s.procs[i].Name
		sp := *s.in.SoC.Processor(name)
		if slices.Contains(s.in.dropped, limitSoCAddress+name) {
			sp.AddressBytes = 0
		}
		if slices.Contains(s.in.dropped, limitSoCGraphs+name) {
			sp.MaxGraphs = 0
		}
		lower := func(soc, own int64, socName, ownName string) (int64, string) {
			if own > 0 && (soc == 0 || own < soc) {
				return own, ownName + name
			}
			return soc, socName + name
		}
		max, user := lower(sp.AddressBytes, int64(l.AddressBytes[name]), limitSoCAddress, limitAddress)
		add(problem.LimitRegionBytes, name, max, user)
		max, user = lower(int64(sp.MaxGraphs), int64(l.MaxGraphs[name]), limitSoCGraphs, limitGraphs)
		add(problem.LimitRegionGraphs, name, max, user)
	}
	// What is less than a nanosecond is a limit all the same.
	millionth := func(x float64) int64 {
		if x > 0 {
			return max(1, whole(x*1e6))
		}
		return 0
	}
	for _, rows := range s.want.rows() {
		if s.decodes(rows) {
			add(problem.LimitPartNS, s.programName(rows), millionth(l.DecodeMS), LimitDecode)
		} else {
			add(problem.LimitPartNS, s.programName(rows), millionth(l.PrefillMS), LimitPrefill)
		}
	}
	add(problem.LimitEnergyNJ, "", millionth(l.EnergyMJ), LimitEnergy)
	add(problem.LimitOpenNS, "", millionth(l.OpenMS), LimitOpen)
	if l.EnergyMJ > 0 || s.in.Workload.Minimise == problem.Energy {
		for i := range s.procs {
			if s.in.SoC.Processor(s.procs[i].Name).PowerW == 0 {
				return diag.New(diag.ClassInput, "solve: %s asks for energy, and SoC %q does not say the power of processor %q", s.in.Workload.title(), s.in.SoC.Name, s.procs[i].Name).
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
		s.bounds = append(s.bounds, bound{quantity{problem.LimitBytes, ""}, memory, LimitMemory})
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
			for i, rows := range s.want.rows() {
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
				out[b.quantity] = whole(energy)
			}
		}
	}
	return out, nil
}

func openNS(p *socs.Processor) int64 { return whole(p.CompileMS * 1e6) }

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

// LimitError is in the chain of errors that say which limits cannot be kept together (errors.As). Each of Names is one that
// Input.LimitNames lists. There may be smaller sets of them.
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
			need = whole(float64(need) / j.unit)
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
	return !s.thinned && len(s.want.buckets) <= s.fewestForTime()
}

// countsExactly reports whether a joint problem counts of a limit what the lowered plan takes: what a processor loads, unless it joins
// graphs.
func (s *session) countsExactly(l problem.Limit) bool {
	if l.Kind != problem.LimitRegionBytes && l.Kind != problem.LimitRegionGraphs {
		return false
	}
	i := slices.IndexFunc(s.procs, func(p planir.Proc) bool { return p.Name == l.Name })
	return i >= 0 && !s.procs[i].Fuses && !s.procs[i].DynamicRows
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
