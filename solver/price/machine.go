package price

import (
	"slices"
	"sort"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/problem"
)

// machine is what of a SoC takes part in solving.
type Machine struct {
	Procs     []planir.Proc // ascending by name
	Static    map[string]int
	Power     map[string]float64 // W while busy, 0: not known
	Conflicts [][2]int           // pairs that never appear together
	Apart     map[[2]string]bool // the same, by name and in both orders
	Beside    map[[2]int]bool    // pairs that may work at the same time, by index and in both orders
	tuples    [][]string

	assistants map[string][]string // whom of those that Policy.Only names a processor assists
	soc        *socs.SoC
}

// executes lists the operators a processor is given; empty: all. Attention needs a cache type it knows and
// dynamic rows.
func executes(p *socs.Processor, kv op.Type) []op.Kind {
	if p.DynamicRows && (len(p.KV) == 0 || slices.Contains(p.KV, kv)) {
		return p.Kinds // rule P003: the cache must not see rows beyond a call's
	}
	kinds := p.Kinds
	if len(kinds) == 0 {
		kinds = op.Kinds
	}
	var out []op.Kind
	for _, k := range kinds {
		if k != op.Attention && k != op.KVAppend {
			out = append(out, k)
		}
	}
	return out
}

// maxCombined is how many processors of a SoC are combined in one operator.
const maxCombined = 6

// NewMachine finds the processors that can work on one buffer pool with the control processor, which of them exclude each other,
// and the tuples they form. note is told what is left out.
func NewMachine(soc *socs.SoC, only []string, prices Source, cache op.Type, note func(format string, args ...any)) (*Machine, error) {
	m := &Machine{soc: soc, Static: map[string]int{}, Apart: map[[2]string]bool{}, assistants: map[string][]string{}, Power: map[string]float64{}}
	names := ProcessorNames(soc)
	for _, x := range only {
		if soc.Processor(x) == nil {
			return nil, diag.New(diag.ClassInput, "solve: SoC %q has no processor %q", soc.Name, x).WithHint("%s", diag.DidYouMean(x, names))
		}
	}
	for _, name := range names {
		if !shareMemory(soc, name, soc.Control) {
			note("processor %q shares no memory with control processor %q and is left out", name, soc.Control)
			continue
		}
		sp := soc.Processor(name)
		p := check.Proc(sp)
		p.Kinds = executes(sp, cache)
		m.Procs = append(m.Procs, p)
		m.Power[name] = sp.PowerW
		for _, x := range only {
			if Assists(soc, name, x) && !slices.Contains(only, name) {
				m.assistants[name] = append(m.assistants[name], x)
			}
		}
		if sp.StaticShapes || sp.Tile.M > 1 {
			m.Static[name] = max(1, sp.Tile.M)
		}
	}
	together := func(a, b string) bool {
		if soc.Concurrent(a, b) != nil || !shareMemory(soc, a, b) {
			return false
		}
		for _, d := range [][2]string{{a, b}, {b, a}} {
			if _, err := prices.Handover(d[0], d[1]); err != nil {
				note("processors %q and %q are not combined: %v", a, b, err)
				return false
			}
		}
		return true
	}
	n := len(m.Procs)
	compatible := make([][]bool, n)
	for i := range compatible {
		compatible[i] = make([]bool, n)
	}
	m.Beside = map[[2]int]bool{}
	for i := range n {
		for j := i + 1; j < n; j++ {
			compatible[i][j] = together(m.Procs[i].Name, m.Procs[j].Name)
			compatible[j][i] = compatible[i][j]
			m.Beside[[2]int{i, j}], m.Beside[[2]int{j, i}] = compatible[i][j], compatible[i][j]
			if !compatible[i][j] && !takeTurns(soc, m.Procs[i].Name, m.Procs[j].Name) {
				m.Conflicts = append(m.Conflicts, [2]int{i, j})
				a, b := m.Procs[i].Name, m.Procs[j].Name
				m.Apart[[2]string{a, b}], m.Apart[[2]string{b, a}] = true, true
			}
		}
	}
	// Of many processors those that read fastest are combined: tuples grow with the third power.
	combined := make([]int, n)
	for i := range combined {
		combined[i] = i
	}
	if n > maxCombined {
		rate := func(i int) float64 { return soc.Processor(m.Procs[i].Name).BandwidthGBps }
		sort.SliceStable(combined, func(a, b int) bool { return rate(combined[a]) > rate(combined[b]) })
		combined = combined[:maxCombined]
		sort.Ints(combined)
		note("of %d processors the %d with most bandwidth are combined", n, maxCombined)
	}
	var grow func(tuple []int)
	grow = func(tuple []int) {
		if len(tuple) > 1 {
			list := make([]string, len(tuple))
			for k, i := range tuple {
				list[k] = m.Procs[i].Name
			}
			m.tuples = append(m.tuples, list)
		}
		if len(tuple) == maxTuple {
			return
		}
		for _, i := range combined {
			// In one order only: who has the first columns makes no difference to the time, but one
			// processor's shares at different numbers of rows are to be of the same columns.
			if len(tuple) > 0 && i <= tuple[len(tuple)-1] || slices.ContainsFunc(tuple, func(j int) bool { return !compatible[i][j] }) {
				continue
			}
			grow(append(slices.Clone(tuple), i))
		}
	}
	grow(nil)
	sort.SliceStable(m.tuples, func(a, b int) bool { return len(m.tuples[a]) < len(m.tuples[b]) })
	if n > problem.MaxProcs {
		return nil, diag.New(diag.ClassInput, "solve: SoC %q has %d processors, want at most %d", soc.Name, n, problem.MaxProcs)
	}
	if n == 0 {
		return nil, diag.New(diag.ClassInfeasible, "solve: SoC %q has no processor that shares memory with its control processor %q", soc.Name, soc.Control)
	}
	return m, nil
}

// processorNames are those of a SoC, ascending.
func ProcessorNames(soc *socs.SoC) []string {
	names := make([]string, 0, len(soc.Processors))
	for i := range soc.Processors {
		names = append(names, soc.Processors[i].Name)
	}
	sort.Strings(names)
	return names
}

// takeTurns reports whether two processors work on one thread (rule P011): never at the same time, and handing over costs
// nothing.
func takeTurns(s *socs.SoC, a, b string) bool {
	x, y := s.Processor(a).Cores, s.Processor(b).Cores
	return !s.Simulated() && len(x) > 0 && len(y) > 0 && x[0] == y[0] && shareMemory(s, a, b)
}

// assists reports whether a processor does what another one cannot when that is to do all it can: those that take turns
// with it, and where there are none the control processor.
func Assists(s *socs.SoC, a, b string) bool {
	return takeTurns(s, a, b) || a == s.Control && !slices.ContainsFunc(s.Processors, func(p socs.Processor) bool { return p.Name != b && takeTurns(s, p.Name, b) })
}

func shareMemory(s *socs.SoC, a, b string) bool {
	if len(s.Memory) == 0 || a == b {
		return true
	}
	return slices.ContainsFunc(s.Memory, func(d socs.Domain) bool {
		return slices.Contains(d.Processors, a) && slices.Contains(d.Processors, b)
	})
}

// thread names what executes a lane: the first of the processors that take turns with it.
func (m *Machine) Thread(lane string) string {
	for i := range m.Procs {
		if name := m.Procs[i].Name; name == lane || takeTurns(m.soc, name, lane) {
			return name
		}
	}
	return lane
}

// apartFrom reports whether every processor of one set can work beside every one of the other.
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

// pairs lists the disjoint sets of processors that branches may have, the largest last.
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
	for bits := 1; bits < 1<<len(able); bits++ {
		var set uint64
		fits := true
		for k, a := range able {
			for j, b := range able {
				if bits>>k&1 == 1 && bits>>j&1 == 1 && m.Apart[[2]string{m.Procs[a].Name, m.Procs[b].Name}] {
					fits = false
				}
			}
			if bits>>k&1 == 1 {
				set |= 1 << a
			}
		}
		if fits {
			sets = append(sets, set)
		}
	}
	for _, p := range sets {
		for _, q := range sets {
			if p&q == 0 && m.SideBySide(p, q) {
				out = append(out, [2]uint64{p, q})
			}
		}
	}
	return out
}
