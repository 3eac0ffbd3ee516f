package price

import (
	"slices"
	"sort"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/problem"
)

// Machine is the part of a SoC that takes part in solving: the processors that can work on one buffer pool with the
// control processor. Indices of processors are those of Procs; a set of them is a bit mask.
type Machine struct {
	Procs     []planir.Proc      // ascending by name
	Static    map[string]int     // granularity of rows, of processors with static shapes
	Power     map[string]float64 // W while busy, 0: not known
	Conflicts [][2]int           // pairs that never appear together in a section
	Apart     map[[2]string]bool // the same, by name and in both orders
	Beside    map[[2]int]bool    // pairs that may work at the same time, in both orders

	tuples     [][]string          // processors that may divide an operator, at least two each
	groups     map[string][]string // by tuple (its key): processors that do the work of several of it together
	assistants map[string][]string // by processor: those named by Policy.Only that it assists
	soc        *socs.SoC
}

// Of many processors maxCombined are combined in one operator, at most maxTuple at a time: tuples grow with the third
// power.
const (
	maxCombined = 6
	maxTuple    = 3
)

// NewMachine finds the processors that take part, those that exclude each other, and the tuples they form. only is
// Policy.Only; cache is the type of cached positions; note is told what is left out.
func NewMachine(soc *socs.SoC, only []string, costs Costs, cache op.Type, note func(format string,
	args ...any)) (*Machine, error) {
	machine := &Machine{
		soc: soc, Static: map[string]int{}, Power: map[string]float64{}, Apart: map[[2]string]bool{},
		Beside:     map[[2]int]bool{},
		assistants: map[string][]string{},
	}
	names := ProcessorNames(soc)
	for _, name := range only {
		if soc.Processor(name) == nil {
			return nil, diag.New(diag.ClassInput, "solve: SoC %q has no processor %q", soc.Name, name).
				WithHint("%s", diag.DidYouMean(name, names))
		}
	}
	for _, name := range names {
		if shareMemory(soc, name, soc.Control) {
			machine.addProcessor(soc.Processor(name), only, cache)
		} else {
			if slices.Contains(only, name) {
				return nil, diag.New(diag.ClassInput,
					"solve: --only %s: the processor shares no memory with control processor %q", name, soc.Control).
					WithHint("name both in one domain of memory in the SoC file, or leave it out of --only")
			}
			note("processor %q shares no memory with control processor %q and is left out", name, soc.Control)
		}
	}
	machine.findPairs(costs, note)
	machine.listTuples(note)
	machine.findGroups(only)
	switch n := len(machine.Procs); {
	case n > problem.MaxProcs:
		return nil, diag.New(diag.ClassInput, "solve: SoC %q has %d processors, want at most %d",
			soc.Name, n, problem.MaxProcs)
	case n == 0:
		return nil, diag.New(diag.ClassInfeasible,
			"solve: SoC %q has no processor that shares memory with its control processor %q",
			soc.Name, soc.Control)
	}
	return machine, nil
}

// addProcessor adds a processor.
func (m *Machine) addProcessor(p *socs.Processor, only []string, cache op.Type) {
	proc := check.Proc(p)
	proc.Kinds = kindsOf(p, cache)
	m.Procs = append(m.Procs, proc)
	m.Power[p.Name] = p.PowerW
	for _, name := range only {
		if Assists(m.soc, p.Name, name) && !slices.Contains(only, p.Name) {
			m.assistants[p.Name] = append(m.assistants[p.Name], name)
		}
	}
	if p.StaticShapes || p.Tile.M > 1 {
		m.Static[p.Name] = max(1, p.Tile.M)
	}
}

// kindsOf lists the kinds of operators that a processor may get; empty means all. Attention needs a cache type that the
// processor knows. It also needs dynamic rows, because the cache must not see rows beyond a call's (rule P003). An
// estimate of scores counts rows itself, so it needs only the cache type, and a processor that lists it. It reads keys
// that another processor caches, so not a processor with memory of its own.
func kindsOf(proc *socs.Processor, cache op.Type) []op.Kind {
	cached := len(proc.KV) == 0 || slices.Contains(proc.KV, cache)
	away := proc.OwnMemory && (len(proc.Kinds) == 0 || slices.Contains(proc.Kinds, op.Estimate))
	if proc.DynamicRows && cached && !away {
		return proc.Kinds
	}
	kinds := proc.Kinds
	if len(kinds) == 0 {
		kinds = op.Kinds
	}
	var out []op.Kind
	for _, kind := range kinds {
		switch {
		case kind == op.Estimate:
			if cached && !away && len(proc.Kinds) > 0 && len(proc.KV) > 0 {
				out = append(out, kind)
			}
		case kind.ByCall():
			if proc.DynamicRows {
				out = append(out, kind)
			}
		case !kind.Has("kv") || proc.DynamicRows && cached:
			out = append(out, kind)
		}
	}
	return out
}

// findPairs finds which two processors may work at the same time, and which may not even take turns in a section.
func (m *Machine) findPairs(costs Costs, note func(format string, args ...any)) {
	together := func(a, b string) bool {
		if m.soc.Concurrent(a, b) != nil || !shareMemory(m.soc, a, b) {
			return false
		}
		for _, way := range [][2]string{{a, b}, {b, a}} {
			if _, err := costs.Handover(way[0], way[1]); err != nil {
				note("processors %q and %q are not combined: %v", a, b, err)
				return false
			}
		}
		return true
	}
	for i := range m.Procs {
		for j := i + 1; j < len(m.Procs); j++ {
			a, b := m.Procs[i].Name, m.Procs[j].Name
			beside := together(a, b)
			m.Beside[[2]int{i, j}], m.Beside[[2]int{j, i}] = beside, beside
			if !beside && !takeTurns(m.soc, a, b) {
				m.Conflicts = append(m.Conflicts, [2]int{i, j})
				m.Apart[[2]string{a, b}], m.Apart[[2]string{b, a}] = true, true
			}
		}
	}
}

// listTuples lists the tuples of processors that may divide an operator, pairs first. Each tuple is listed in one order
// only. Which processor has the first columns makes no difference to the time, and one processor's shares at different
// numbers of rows should be of the same columns.
func (m *Machine) listTuples(note func(format string, args ...any)) {
	combined := make([]int, len(m.Procs))
	for i := range combined {
		combined[i] = i
	}
	if n := len(m.Procs); n > maxCombined {
		rate := func(i int) float64 { return m.soc.Processor(m.Procs[i].Name).BandwidthGBps }
		sort.SliceStable(combined, func(a, b int) bool { return rate(combined[a]) > rate(combined[b]) })
		combined = combined[:maxCombined]
		sort.Ints(combined)
		note("of %d processors the %d with most bandwidth are combined", n, maxCombined)
	}
	var grow func(tuple []int)
	grow = func(tuple []int) {
		if len(tuple) > 1 {
			names := make([]string, len(tuple))
			for j, i := range tuple {
				names[j] = m.Procs[i].Name
			}
			m.tuples = append(m.tuples, names)
		}
		if len(tuple) == maxTuple {
			return
		}
		for _, i := range combined {
			later := len(tuple) == 0 || i > tuple[len(tuple)-1]
			if later && !slices.ContainsFunc(tuple, func(j int) bool { return !m.Beside[[2]int{i, j}] }) {
				grow(append(slices.Clone(tuple), i))
			}
		}
	}
	grow(nil)
	sort.SliceStable(m.tuples, func(a, b int) bool { return len(m.tuples[a]) < len(m.tuples[b]) })
}

// findGroups finds the tuples that contain cores of a group which could work in their place. The group must be
// permitted and able to work beside the rest of the tuple.
func (m *Machine) findGroups(only []string) {
	index := func(name string) int {
		return slices.IndexFunc(m.Procs, func(proc planir.Proc) bool { return proc.Name == name })
	}
	m.groups = map[string][]string{}
	for _, tuple := range m.tuples {
		key := strings.Join(tuple, "\n")
		for i, first := range tuple {
			for _, second := range tuple[i+1:] {
				group := m.soc.GroupOf(first, second)
				at := index(group)
				if at < 0 || len(only) > 0 && !slices.Contains(only, group) || slices.Contains(m.groups[key], group) {
					continue
				}
				beside := func(name string) bool {
					return name == first || name == second || m.Beside[[2]int{at, index(name)}]
				}
				if !slices.ContainsFunc(tuple, func(name string) bool { return !beside(name) }) {
					m.groups[key] = append(m.groups[key], group)
				}
			}
		}
	}
}

// ProcessorNames returns the names of a SoC's processors, ascending.
func ProcessorNames(soc *socs.SoC) []string {
	names := make([]string, 0, len(soc.Processors))
	for i := range soc.Processors {
		names = append(names, soc.Processors[i].Name)
	}
	sort.Strings(names)
	return names
}

// takeTurns reports whether two processors work on one thread (rule P011). Then they never work at the same time, and a
// hand-over between them costs nothing.
func takeTurns(soc *socs.SoC, a, b string) bool {
	x, y := soc.Processor(a).Cores, soc.Processor(b).Cores
	return !soc.Simulated() && len(x) > 0 && len(y) > 0 && x[0] == y[0] && shareMemory(soc, a, b)
}

// Assists reports whether processor a executes what b cannot, when b is to do all it can. The assistants are the
// processors that take turns with b, and if there are none the control processor.
func Assists(soc *socs.SoC, a, b string) bool {
	if takeTurns(soc, a, b) {
		return true
	}
	return a == soc.Control && !slices.ContainsFunc(soc.Processors, func(proc socs.Processor) bool {
		return proc.Name != b && takeTurns(soc, proc.Name, b)
	})
}

// shareMemory reports whether two processors read the same memory; a SoC without domains has one for all.
func shareMemory(soc *socs.SoC, a, b string) bool {
	if len(soc.Memory) == 0 || a == b {
		return true
	}
	return slices.ContainsFunc(soc.Memory, func(d socs.Domain) bool {
		return slices.Contains(d.Processors, a) && slices.Contains(d.Processors, b)
	})
}

// Thread names what executes a lane: the first of the processors that take turns with it.
func (m *Machine) Thread(lane string) string {
	for i := range m.Procs {
		if name := m.Procs[i].Name; name == lane || takeTurns(m.soc, name, lane) {
			return name
		}
	}
	return lane
}

// SideBySide reports whether every processor of one set can work beside every one of the other.
func (m *Machine) SideBySide(first, second uint64) bool {
	for a := range m.Procs {
		for b := range m.Procs {
			if first>>a&1 == 1 && second>>b&1 == 1 && !m.Beside[[2]int{a, b}] {
				return false
			}
		}
	}
	return true
}

// Pairs lists the pairs of disjoint sets of processors that may work at the same time, the largest last.
func (m *Machine) Pairs() (out [][2]uint64) {
	var able []int // that work beside another one
	for a := range m.Procs {
		for b := range m.Procs {
			if m.Beside[[2]int{a, b}] && !slices.Contains(able, a) {
				able = append(able, a)
			}
		}
	}
	able = able[:min(len(able), maxCombined)]
	var sets []uint64
	for chosen := 1; chosen < 1<<len(able); chosen++ {
		var set uint64
		for i, a := range able {
			if chosen>>i&1 == 1 {
				set |= 1 << a
			}
		}
		if m.compatible(set) {
			sets = append(sets, set)
		}
	}
	for _, first := range sets {
		for _, second := range sets {
			if first&second == 0 && m.SideBySide(first, second) {
				out = append(out, [2]uint64{first, second})
			}
		}
	}
	return out
}

// compatible reports whether no two processors of a set exclude each other.
func (m *Machine) compatible(set uint64) bool {
	for _, pair := range m.Conflicts {
		if set>>pair[0]&1 == 1 && set>>pair[1]&1 == 1 {
			return false
		}
	}
	return true
}
