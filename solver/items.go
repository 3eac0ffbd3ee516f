package solver

import (
	"slices"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
)

// A node's choices depend on its own scheme, and the hand-over into it on its scheme and its neighbour's. All combinations of schemes
// are therefore posed of the same items, which a shelf keeps.

// shelf is the menus and items that chains have been posed of.
type shelf struct {
	menus map[poolKey]*menu
	items map[itemKey]*item
	bytes int64 // that the session counts for them
	room  leastScratch
}

func newShelf() *shelf {
	return &shelf{menus: map[poolKey]*menu{}, items: map[itemKey]*item{}}
}

// itemKey names a node behind another one. meets is false for the first node of a section that never follows itself: nothing is
// handed over to it.
type itemKey struct {
	before, node poolKey
	meets        bool
}

// menu is what a node can be executed as, in one scheme.
type menu struct {
	list    []price.Candidate
	choices []problem.Choice // without Before
	after   []string         // location classes
	places  [][]price.Region // of each class
	out     []string         // buffers
	masks   []uint64         // processors, by choice
}

// menu makes that of a node.
func newMenu(st *price.Section, node int, list []price.Candidate) *menu {
	m := &menu{list: list, out: st.Nodes[node].Out}
	seen := map[string]int{}
	for k := range list {
		c := &list[k]
		ch := problem.Choice{Label: c.Label(), CostNS: c.CostNS, EnergyNJ: c.EnergyNJ}
		for q := range st.Procs {
			if slices.ContainsFunc(c.Shares, func(sh planir.Share) bool { return sh.Proc == st.Procs[q].Name }) {
				ch.Procs = append(ch.Procs, q)
			}
		}
		name := price.Locations(c.Writes, m.out)
		class, ok := seen[name]
		if !ok {
			class = len(m.after)
			seen[name] = class
			m.after = append(m.after, name)
			m.places = append(m.places, st.Regions(c.Writes, m.out))
		}
		ch.After = class
		m.choices, m.masks = append(m.choices, ch), append(m.masks, maskOf(ch.Procs))
	}
	return m
}

// of reports whether a menu is of these candidates, the very same ones.
func (m *menu) of(list []price.Candidate) bool {
	return len(m.list) == len(list) && (len(list) == 0 || &m.list[0] == &list[0])
}

func maskOf(procs []int) (mask uint64) {
	for _, q := range procs {
		mask |= 1 << q
	}
	return mask
}

// item is a node behind a neighbour, as chains have it.
type item struct {
	problem.Item
	masks []uint64 // processors, by choice
	leg   *leg     // once asked for
}

// item makes that of a node behind another one. What the node reads of earlier ones (the residual stream) has long been written and
// costs no wait.
func newItem(st *price.Section, node int, m, before *menu, meets bool) (*item, error) {
	x := &item{Item: problem.Item{Name: st.Nodes[node].Name, Choices: slices.Clone(m.choices), After: m.after}, masks: m.masks}
	var reads [][]price.Region
	seen := map[string]int{}
	for k := range m.list {
		name := price.Locations(m.list[k].Reads, before.out)
		class, ok := seen[name]
		if !ok {
			class = len(x.Before)
			seen[name] = class
			x.Before = append(x.Before, name)
			reads = append(reads, st.Regions(m.list[k].Reads, before.out))
		}
		x.Choices[k].Before = class
	}
	if !meets {
		return x, nil
	}
	all := make([]int64, len(before.places)*len(reads))
	for _, w := range before.places {
		row := all[:len(reads):len(reads)]
		all = all[len(reads):]
		for b, r := range reads {
			var err error
			if row[b], err = st.Handover(w, r); err != nil {
				return nil, err
			}
		}
		x.EdgeNS = append(x.EdgeNS, row)
	}
	return x, nil
}

// waits are the hand-overs into an item from a node that is not its neighbour in the chain.
func (x *item) waits() waits {
	w := waits{ns: x.EdgeNS}
	for k := range x.Choices {
		w.class = append(w.class, x.Choices[k].Before)
	}
	return w
}

// pose poses the problem of a section: its nodes in order, with candidates.
func pose(st *price.Section, candidates [][]price.Candidate) (*instance, error) {
	menus := make([]*menu, len(candidates))
	for i, list := range candidates {
		menus[i] = newMenu(st, i, list)
	}
	in, err := assemble(st, candidates, func(before, node int, meets bool) (*item, error) {
		return newItem(st, node, menus[node], menus[before], meets)
	})
	if err != nil {
		return nil, err
	}
	in.findPaths()
	in.posed = in.widen()
	return in, nil
}

// assemble makes an instance of items, without ways through its forks.
func assemble(st *price.Section, candidates [][]price.Candidate, of func(before, node int, meets bool) (*item, error)) (*instance, error) {
	in := &instance{stage: st, candidates: candidates}
	in.prob = problem.Chain{Name: st.Name, Repeat: st.Repeat, Breaks: st.Breaks}
	n := len(candidates)
	for i := range candidates {
		x, err := of((i+n-1)%n, i, i > 0 || in.prob.Wraps() > 0)
		if err != nil {
			return nil, err
		}
		in.items, in.prob.Items, in.masks = append(in.items, x), append(in.prob.Items, x.Item), append(in.masks, x.masks)
	}
	in.forks = findForks(st.Section)
	for k := range in.forks {
		f := &in.forks[k]
		second, err := of(f.split, f.second, true)
		if err != nil {
			return nil, err
		}
		join, err := of(f.second-1, f.join, true)
		if err != nil {
			return nil, err
		}
		f.entry, f.exit = second.waits(), join.waits()
	}
	return in, nil
}

// assembled is the instance of a section of items that the session keeps.
func (s *session) assembled(sec *lower.Section, rows int) (*instance, error) {
	lists := make([][]price.Candidate, len(sec.Nodes))
	for i := range sec.Nodes {
		key := poolOf(rows, &sec.Nodes[i])
		if s.pools[key] == nil {
			s.price(sec, rows)
		}
		x := s.pools[key]
		if x.err != nil {
			return nil, x.err
		}
		lists[i] = x.list
		if m := s.shelf.menus[key]; m != nil && !m.of(x.list) {
			s.renew() // a session that shares the candidates has others
		}
	}
	st := s.stage(sec, rows)
	in, err := assemble(st, lists, func(before, node int, meets bool) (*item, error) {
		return s.item(st, lists, before, node, meets)
	})
	if err != nil {
		return nil, err
	}
	for k := range in.forks {
		s.crossing(in, &in.forks[k])
	}
	return in, nil
}

// item is that of a node of a section, from the shelf.
func (s *session) item(st *price.Section, lists [][]price.Candidate, before, node int, meets bool) (*item, error) {
	menu := func(i int) *menu {
		key := poolOf(st.Rows, &st.Nodes[i])
		m := s.shelf.menus[key]
		if m == nil {
			m = newMenu(st, i, lists[i])
			s.shelf.menus[key] = m
			s.keepOnShelf(m.bytes())
		}
		return m
	}
	key := itemKey{poolOf(st.Rows, &st.Nodes[before]), poolOf(st.Rows, &st.Nodes[node]), meets}
	if x := s.shelf.items[key]; x != nil {
		return x, nil
	}
	x, err := newItem(st, node, menu(node), menu(before), meets)
	if err == nil {
		s.shelf.items[key] = x
		s.keepOnShelf(x.bytes())
	}
	return x, err
}

// keepOnShelf counts bytes that the shelf keeps.
func (s *session) keepOnShelf(bytes int64) {
	s.shelf.bytes += bytes
	s.take(bytes)
}

// renew lets everything go that was posed of candidates which have changed.
func (s *session) renew() {
	s.forget()
	s.kept -= s.shelf.bytes
	s.ledger.release(s.shelf.bytes)
	s.shelf = newShelf()
}
