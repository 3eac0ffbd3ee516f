package solver

import (
	"slices"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
)

// A node's choices depend on its own scheme, and the hand-over into it on its scheme and its neighbour's. All
// combinations of schemes are therefore posed of the same items, which a cache keeps.

// itemCache keeps the choices and items of which chains have been posed.
type itemCache struct {
	choices map[nodeKey]*nodeChoices
	items   map[itemKey]*item
	bytes   int64 // that the session counts for them
	scratch pathScratch
}

// newItemCache returns an empty cache.
func newItemCache() *itemCache {
	return &itemCache{choices: map[nodeKey]*nodeChoices{}, items: map[itemKey]*item{}}
}

// itemKey names a node behind another one. meets is false for the first node of a section that does not repeat: nothing
// is handed over to it.
type itemKey struct {
	before, node nodeKey
	meets        bool
}

// nodeChoices is the choices of a node in one scheme.
type nodeChoices struct {
	list    []price.Candidate
	choices []problem.Choice // without Before
	masks   []uint64         // processors, by choice
	out     []string         // buffers that the node writes
	after   []string         // location classes
	places  [][]price.Region // where the outputs are, of each class
}

// newNodeChoices returns the choices of a node with these candidates. Candidates that write to the same places share a
// location class.
func newNodeChoices(st *price.Section, node int, list []price.Candidate) *nodeChoices {
	options := &nodeChoices{list: list, out: st.Nodes[node].Out}

	seen := map[string]int{}
	for i := range list {
		candidate := &list[i]
		posed := problem.Choice{Label: candidate.Label(), CostNS: candidate.CostNS, EnergyNJ: candidate.EnergyNJ}
		for proc := range st.Procs {
			isOn := func(share planir.Share) bool { return share.Proc == st.Procs[proc].Name }
			if slices.ContainsFunc(candidate.Shares, isOn) {
				posed.Procs = append(posed.Procs, proc)
			}
		}

		name := price.Locations(candidate.Writes, options.out)
		class, ok := seen[name]
		if !ok {
			class = len(options.after)
			seen[name] = class
			options.after = append(options.after, name)
			options.places = append(options.places, st.Regions(candidate.Writes, options.out))
		}

		posed.After = class
		options.choices = append(options.choices, posed)
		options.masks = append(options.masks, maskOf(posed.Procs))
	}
	return options
}

// isOf reports whether the choices were made of this very list of candidates.
func (c *nodeChoices) isOf(list []price.Candidate) bool {
	if len(c.list) != len(list) {
		return false
	}
	return len(list) == 0 || &c.list[0] == &list[0]
}

// maskOf returns a set of processors, one bit for each.
func maskOf(procs []int) (mask uint64) {
	for _, proc := range procs {
		mask |= 1 << proc
	}
	return mask
}

// item is a node behind a given neighbour, as chains contain it.
type item struct {
	problem.Item
	masks   []uint64     // processors, by choice
	reduced *reducedItem // once asked for
}

// newItem returns the item of a node behind another one, with the hand-over times between their location classes. What
// the node reads of earlier ones (the residual stream) has long been written and costs no wait.
func newItem(st *price.Section, node int, options, before *nodeChoices, meets bool) (*item, error) {
	posed := &item{Item: problem.Item{Name: st.Nodes[node].Name, Choices: slices.Clone(options.choices),
		After: options.after}, masks: options.masks}
	var reads [][]price.Region
	seen := map[string]int{}
	for i := range options.list {
		name := price.Locations(options.list[i].Reads, before.out)
		class, ok := seen[name]
		if !ok {
			class = len(posed.Before)
			seen[name] = class
			posed.Before = append(posed.Before, name)
			reads = append(reads, st.Regions(options.list[i].Reads, before.out))
		}
		posed.Choices[i].Before = class
	}
	if !meets {
		return posed, nil
	}

	// One row for each class that the node before leaves its outputs in, one column for each class that this one
	// reads from.
	all := make([]int64, len(before.places)*len(reads))
	for _, writes := range before.places {
		row := all[:len(reads):len(reads)]
		all = all[len(reads):]
		for to, r := range reads {
			var err error
			if row[to], _, err = st.Handover(writes, r); err != nil {
				return nil, err
			}
		}
		posed.EdgeNS = append(posed.EdgeNS, row)
	}
	return posed, nil
}

// handovers returns the hand-overs into an item from a node that is not its neighbour in the chain.
func (x *item) handovers() forkHandover {
	into := forkHandover{ns: x.EdgeNS}
	for i := range x.Choices {
		into.class = append(into.class, x.Choices[i].Before)
	}
	return into
}

// pose poses the problem of a section: its nodes in order, with candidates.
func pose(st *price.Section, candidates [][]price.Candidate) (*instance, error) {
	nodes := make([]*nodeChoices, len(candidates))
	for i, list := range candidates {
		nodes[i] = newNodeChoices(st, i, list)
	}
	in, err := assemble(st, candidates, func(before, node int, meets bool) (*item, error) {
		return newItem(st, node, nodes[node], nodes[before], meets)
	})
	if err != nil {
		return nil, err
	}
	in.findPaths()
	in.posed = in.withForkChoices()
	return in, nil
}

// assemble makes an instance from items, without ways through its forks. of returns the item of a node behind another
// one. The first node comes behind the last one, since sections repeat.
func assemble(st *price.Section, candidates [][]price.Candidate,
	of func(before, node int, meets bool) (*item, error)) (*instance, error) {
	in := &instance{section: st, candidates: candidates}
	in.chain = problem.Chain{Name: st.Name, Repeat: st.Repeat, Breaks: st.Breaks}
	length := len(candidates)
	for i := range candidates {
		item, err := of((i+length-1)%length, i, i > 0 || in.chain.Wraps() > 0)
		if err != nil {
			return nil, err
		}
		in.items = append(in.items, item)
		in.chain.Items = append(in.chain.Items, item.Item)
		in.masks = append(in.masks, item.masks)
	}

	in.forks = findForks(st.Section)
	for i := range in.forks {
		fork := &in.forks[i]
		second, err := of(fork.split, fork.second, true)
		if err != nil {
			return nil, err
		}
		join, err := of(fork.second-1, fork.join, true)
		if err != nil {
			return nil, err
		}
		fork.entry, fork.exit = second.handovers(), join.handovers()
	}
	return in, nil
}

// assembleCached returns the instance of a section, made from items that the session keeps.
func (s *pricing) assembleCached(sec *lower.Section, rows int) (*instance, error) {
	lists := make([][]price.Candidate, len(sec.Nodes))
	for i := range sec.Nodes {
		key := keyOfNode(rows, &sec.Nodes[i])
		if s.candidateSets[key] == nil {
			s.priceSection(sec, rows)
		}

		set := s.candidateSets[key]
		if set.err != nil {
			return nil, set.err
		}
		lists[i] = set.list
		if known := s.items.choices[key]; known != nil && !known.isOf(set.list) {
			s.dropItems() // a session that shares the candidates has others
		}
	}

	st := s.section(sec, rows)
	in, err := assemble(st, lists, func(before, node int, meets bool) (*item, error) {
		return s.item(st, lists, before, node, meets)
	})
	if err != nil {
		return nil, err
	}
	for i := range in.forks {
		s.findForkCache(in, &in.forks[i])
	}
	return in, nil
}

// item returns the item of a node of a section, from the cache.
func (s *pricing) item(st *price.Section, lists [][]price.Candidate, before, node int, meets bool) (*item, error) {
	choicesOf := func(i int) *nodeChoices {
		key := keyOfNode(st.Rows, &st.Nodes[i])
		known := s.items.choices[key]
		if known == nil {
			known = newNodeChoices(st, i, lists[i])
			s.items.choices[key] = known
			s.reserveItems(known.bytes())
		}
		return known
	}
	key := itemKey{keyOfNode(st.Rows, &st.Nodes[before]), keyOfNode(st.Rows, &st.Nodes[node]), meets}

	if item := s.items.items[key]; item != nil {
		return item, nil
	}
	item, err := newItem(st, node, choicesOf(node), choicesOf(before), meets)
	if err == nil {
		s.items.items[key] = item
		s.reserveItems(item.bytes())
	}
	return item, err
}

// reserveItems counts bytes that the cache keeps.
func (s *pricing) reserveItems(bytes int64) {
	s.items.bytes += bytes
	s.reserve(bytes)
}

// dropItems forgets everything that was posed of candidates which have changed, and gives its memory back to the
// budget.
func (s *pricing) dropItems() {
	s.dropPrograms()
	s.kept -= s.items.bytes
	s.budget.release(s.items.bytes)
	s.items = newItemCache()
}

// posed is what a session has posed of its candidates.
type posed struct {
	items        *itemCache
	programs     map[programKey]*program
	instances    map[string]*instance
	leasts       map[string][]int64
	branchCaches map[string]*branchCache
	forkCaches   map[string]*forkCache
	cached       int64
}

// takePosed puts posed problems aside, so that problems of other candidates can be posed meanwhile. They still count as
// kept memory. Where the working memory is half full already, they are dropped instead.
func (s *pricing) takePosed() *posed {
	if s.budget.exceededBy(s.budget.limit / 2) {
		s.dropItems()
	}

	aside := &posed{s.items, s.programs, s.instances, s.leasts, s.branchCaches, s.forkCaches, s.cached}
	s.items, s.cached = newItemCache(), 0
	s.dropPrograms()
	return aside
}

// putPosed takes up the problems that were put aside, and drops those posed since.
func (s *pricing) putPosed(whole *posed) {
	s.dropItems()
	s.items, s.programs, s.instances, s.leasts = whole.items, whole.programs, whole.instances, whole.leasts
	s.branchCaches, s.forkCaches, s.cached = whole.branchCaches, whole.forkCaches, whole.cached
}
