package exact

import (
	"cmp"
	"container/heap"
	"context"
	"math"
	"slices"

	"github.com/hetc/hetc/solver/problem"
)

// How much is tried where: a compromise between the quality of bounds and the time they take.
const (
	rootRounds    = 12
	rootSteps     = 20 // evaluations of the relaxation, each after rootPasses passes, in a round
	rootPasses    = 3
	improveRounds = 24
	fewStarts     = 6 // classes that a loop begins with, each gone through on its own

	nodeSteps       = 4   // evaluations in a round at a node
	carefulSteps    = 8   // the same where the measure is not time, or times or energy are limited
	nodePasses      = 1   // before each of them
	nodeRounds      = 4   // at most
	risingPart      = 0.1 // of what is missing for a node to be useless: a round that gains less is the last
	branchingsTried = 8   // ways to branch, at most
	branchingsWorse = 1   // in a row that are no better than the best: no more are tried
	carefulWorse    = 3
	changeBonus     = 0.2 // added to the part of the ascent in which an asset was open or was not
)

// search is best-first branch and bound. It branches over assets (open or not) and, where limits on times or energy
// leave something to decide, over choices.
//
// A node's bound is its Lagrangian relaxation (relaxation). Strong branching chooses how to divide it. Min-marginals
// remove choices that are too dear for any solution of interest (reduced-cost fixing).
//
// The children of a node cover all of its solutions, and a node is dropped only where its bound says that it has none
// of interest. So the best solution is optimal once no node is left. Nodes that can only tie with it wait in ties,
// for the second search, which looks for the lexicographically first of the optimal solutions.
type search struct {
	prep  *prepared
	relax *relaxation
	ctx   context.Context

	best   []int     // the best known choices, nil: none
	value  int64     // of the measure
	nested [][][]int // see choices

	anyOne bool        // the first solution ends the search
	first  bool        // looking for the lexicographically first of the optimal solutions
	ties   []*treeNode // may have solutions that are as good as the best, but no better
	nodes  int64       // visited
	kept   int64       // bytes of the nodes that wait
	most   int64       // most bytes of the nodes that wait, 0: any
	cutoff int64       // largest objective of interest, 0: any
	number int64       // of the next node
	queue  queue       // nodes that wait
	plain  treeNode    // of heuristics
	named  []bool      // per asset
	count  []int       // per use of an item
}

// newSearch makes a search without a solution and without nodes.
func newSearch(ctx context.Context, prep *prepared) *search {
	fresh := &search{
		prep: prep, relax: newRelaxation(prep), ctx: ctx, value: math.MaxInt64, named: make([]bool, len(prep.assets)),
	}

	uses := 0
	for _, it := range prep.items {
		uses = max(uses, len(it.uses))
	}
	fresh.count = make([]int, uses)
	for part := range prep.parts {
		var lists [][]int
		for _, chain := range prep.parts[part].variants[0] {
			lists = append(lists, make([]int, len(chain.items)))
		}
		fresh.nested = append(fresh.nested, lists)
	}
	return fresh
}

// choices returns flat choices as a problem has them, in memory that the next call writes again.
func (s *search) choices(flat []int) [][][]int {
	for part := range s.prep.parts {
		for index, at := range s.prep.parts[part].chains {
			copy(s.nested[part][index], flat[at:])
		}
	}
	return s.nested
}

// limit returns the largest bound (scaled) at which a node may still have a solution as good as the best, and of
// interest.
func (s *search) limit() int64 {
	limit := s.prep.worst
	if s.best != nil {
		limit = s.prep.scale(s.value)
	}
	if s.cutoff > 0 {
		limit = min(limit, s.prep.scale(s.cutoff))
	}
	return limit
}

// useless reports whether a node with that bound has no solution as good as the best, or none of interest.
func (s *search) useless(bound int64) bool { return bound > s.limit() }

// offer takes choices as the best solution if they keep all limits and are better, or equally good and earlier in
// lexicographic order. It reports whether they keep the limits.
func (s *search) offer(choices []int) bool {
	joint := s.prep.joint
	use := joint.Use(s.choices(choices))
	if joint.Broken(&use) != nil {
		return false
	}
	value := joint.Objective(&use)
	isFirst := value == s.value && slices.Compare(choices, s.best) < 0
	if s.best == nil || value < s.value || isFirst {
		s.best, s.value = append(s.best[:0], choices...), value
	}
	return true
}

// tryRelaxed offers the relaxation's choices, if they keep the limits over assets.
func (s *search) tryRelaxed() {
	if s.relax.fits() {
		s.offer(s.relax.choices)
	}
}

// tighten is reduced-cost fixing. It removes from the node the choices whose min-marginal exceeds the best solution,
// and decides the assets that follow. The relaxation must have been evaluated with the node's multipliers. It reports
// whether anything changed.
func (s *search) tighten(node *treeNode) bool {
	relax := s.relax
	room := s.limit() - relax.value // the value that the multipliers give, not the bound, which may be from others
	changed := false
	for number := range s.prep.parts {
		part := &s.prep.parts[number]
		s.marginals(number, relax.partMin[number]+room, fewStarts, nil)
		for i := part.first; i < part.first+part.items; i++ {
			tooDear := func(choice int32) bool { return relax.least[i][choice] == unreachable }
			changed = node.forbid(i, tooDear) || changed
		}
	}
	return s.decide(node) || changed
}

// forbid removes choices of item i, and reports whether there were any. Other nodes share the list: it is copied.
func (n *treeNode) forbid(i int, unwanted func(choice int32) bool) bool {
	if !slices.ContainsFunc(n.allowed[i], unwanted) {
		return false
	}
	n.allowed[i] = slices.DeleteFunc(slices.Clone(n.allowed[i]), unwanted)
	return true
}

// decide propagates what a node has decided, until nothing more follows: it opens the assets that every choice of some
// item needs, closes those that no choice names, and removes choices whose assets do not fit beside the open ones.
func (s *search) decide(node *treeNode) (changed bool) {
	for s.settle(node) || s.fit(node) {
		changed = true
	}
	return changed
}

// settle opens the assets that every choice of some item names, and closes those that no choice names.
func (s *search) settle(node *treeNode) (changed bool) {
	clear(s.named)
	for i, it := range s.prep.items {
		count := s.count[:len(it.uses)]
		clear(count)
		for _, choice := range node.allowed[i] {
			for _, use := range it.use[choice] {
				count[use]++
			}
		}

		for use, times := range count {
			asset := it.uses[use].asset
			if times > 0 {
				s.named[asset] = true
			}
			if times == len(node.allowed[i]) && node.state[asset] == free {
				node.state[asset] = opened
				changed = true
			}
		}
	}

	for asset, named := range s.named {
		if !named && node.state[asset] == free {
			node.state[asset] = closed
			changed = true
		}
	}
	return changed
}

// room returns what the assets that a node opens leave of a limit over assets.
func (s *search) room(node *treeNode, row int) int64 {
	room := s.prep.rows[row].cap
	for asset := range s.prep.assets {
		if node.state[asset] == opened {
			room -= s.prep.assets[asset].size[row]
		}
	}
	return room
}

// fit removes the choices whose assets do not fit beside those that are open.
func (s *search) fit(node *treeNode) (changed bool) {
	for row := range s.prep.assetRows {
		room := s.room(node, row)
		for i, it := range s.prep.items {
			tooLarge := func(choice int32) bool {
				need := int64(0)
				for _, use := range it.use[choice] {
					if asset := it.uses[use].asset; node.state[asset] == free {
						need += s.prep.assets[asset].size[row]
					}
				}
				return need > room
			}
			changed = node.forbid(i, tooLarge) || changed
		}
	}
	return changed
}

// marginals fills least of the items of a part with min-marginals: the least cost of the part with each choice,
// unreachable where that is above limit. few and lists are those of chain.marginals.
func (s *search) marginals(number int, limit int64, few int, lists [][]int32) {
	part := &s.prep.parts[number]
	least := s.relax.least[part.first : part.first+part.items]

	// Every set of processors is a variant of the part; a choice's marginal is the least over all variants.
	for i := range least {
		for choice := range least[i] {
			least[i][choice] = unreachable
		}
	}

	optima := make([]int64, len(part.chains))
variants:
	for _, variant := range part.variants {
		total := int64(0)
		at := part.first
		for index, chain := range variant {
			optima[index] = chain.solve(s.relax.scratch[at : at+len(chain.items)])
			if optima[index] == unreachable {
				continue variants
			}
			total, at = total+optima[index], at+len(chain.items)
		}

		if total > limit {
			continue
		}
		for index, chain := range variant {
			// least counts whole parts, the chain only itself.
			others := total - optima[index]
			first := part.chains[index]
			own := s.relax.least[first : first+len(chain.items)]
			var list [][]int32
			if lists != nil {
				list = lists[first : first+len(chain.items)]
			}
			shift(own, -others)
			chain.marginals(limit-others, few, list, own)
			shift(own, others)
		}
	}
}

// shift adds to all values that are reachable.
func shift(values [][]int64, by int64) {
	for _, list := range values {
		for i := range list {
			if list[i] != unreachable {
				list[i] += by
			}
		}
	}
}

// allFits reports whether the limits over assets hold whatever of its assets a node opens.
func (s *search) allFits(node *treeNode) bool {
	for row := range s.prep.assetRows {
		sum := int64(0)
		for asset := range s.prep.assets {
			if node.state[asset] != closed {
				sum += s.prep.assets[asset].size[row]
			}
		}
		if sum > s.prep.rows[row].cap {
			return false
		}
	}
	return true
}

// visit bounds a node and returns its children, none where it has no solution of interest. It alternates between
// raising the bound and removing the choices that the bound excludes.
func (s *search) visit(node *treeNode) (children []*treeNode) {
	relax := s.relax
	steps := nodeSteps
	if s.careful() {
		steps = carefulSteps
	}
	for round := 1; ; round++ {
		if !s.open(node) {
			return nil
		}

		relax.permit(node.allowed, false)
		if s.isFree(node) {
			// No limit can bind any more: the parts on their own are the optimum.
			clear(node.mult)
			clear(node.lambda)
			if relax.evaluate(node) != unreachable {
				s.offer(relax.choices)
			}
			return nil
		}

		// Raise the bound, then remove what it excludes, as long as one of them gains.
		before := node.bound
		possible := relax.climb(node, steps, nodePasses, s.useless, s.tryRelaxed)
		if !possible || s.useless(node.bound) || s.noBetter(node) {
			return nil
		}
		relax.attain(node)
		rising := float64(node.bound-before) > risingPart*float64(s.limit()-node.bound)
		if !s.tighten(node) && !rising || round == nodeRounds {
			break
		}
	}
	if !s.open(node) {
		return nil
	}
	return s.branch(node)
}

// isFree reports whether no limit can bind at a node, whatever its choices. Where memory is minimised assets cost by
// themselves: then every asset must be decided.
func (s *search) isFree(node *treeNode) bool {
	if s.prep.pathRows() {
		return false
	}
	if !slices.Contains(node.state, free) {
		return true
	}
	return s.prep.joint.Minimise != problem.Memory && s.allFits(node)
}

// careful reports whether it pays to look longer before a node is divided: where the measure is not what the limits
// over assets trade for.
func (s *search) careful() bool {
	return s.prep.pathRows() || s.prep.joint.Minimise == problem.Memory
}

// branching is a way to branch. Either one child has the choices of an item that take little of the limits and the
// other child has the rest, or one child opens an asset and the other one closes it.
type branching struct {
	score        float64
	item         int     // -1: an asset
	light, heavy []int32 // its choices
	asset        int
}

// branch divides a node that has just been climbed. It tries several ways and takes the one that raises the bounds of
// both children most (strong branching). Where one child has nothing of interest, it returns the other one alone.
func (s *search) branch(node *treeNode) []*treeNode {
	var best []*treeNode
	most, worse := -1.0, 0
	enough := branchingsWorse
	if s.careful() {
		enough = carefulWorse
	}

	for _, way := range s.branchings(node) {
		gain, left := s.tryBranching(node, way)
		if len(left) < 2 {
			return left
		}
		if gain > most {
			most, best, worse = gain, left, 0
		} else if worse++; worse >= enough {
			break
		}
	}
	if best != nil {
		return best
	}

	item, choice := s.branchChoice(node)
	if item < 0 {
		return nil // one solution, and it was offered or breaks a limit
	}

	one, rest := node.child(), node.child()
	one.allowed[item] = []int32{choice}
	rest.forbid(item, func(other int32) bool { return other == choice })
	return []*treeNode{one, rest}
}

// tryBranching returns the children that have something of interest, and the product of the gains of their bounds.
func (s *search) tryBranching(node *treeNode, way branching) (gain float64, left []*treeNode) {
	gain = 1.0
	// A child without solutions counts as if its bound had risen to the limit.
	for _, child := range s.divide(node, way) {
		rise := s.limit() - node.bound
		if s.open(child) {
			s.relax.permit(child.allowed, false)
			if s.relax.climb(child, 1, nodePasses, s.useless, s.tryRelaxed) && !s.useless(child.bound) {
				rise = child.bound - node.bound
				left = append(left, child)
			}
		}
		gain *= float64(rise) + float64(s.prep.worst)*1e-9
	}
	return gain, left
}

// branchings lists at most branchingsTried ways to branch, best score first. The score is high where the last ascent
// did not settle: for an item whose choices differed much in what they take, or an expensive asset that was open about
// half of the time.
func (s *search) branchings(node *treeNode) []branching {
	var out []branching
	for i := range s.prep.items {
		way := s.itemBranching(node, i)
		divides := way.light != nil && way.heavy != nil
		if way.score > 0 && divides {
			out = append(out, way)
		}
	}

	for asset := range s.prep.assets {
		if node.state[asset] != free {
			continue
		}
		if share := s.openShare(asset); share > 0 {
			score := float64((min(share, 1-share) + changeBonus) * float64(s.prep.assets[asset].price))
			out = append(out, branching{score: score, item: -1, asset: asset})
		}
	}

	slices.SortStableFunc(out, func(x, y branching) int { return cmp.Compare(y.score, x.score) })
	return out[:min(len(out), branchingsTried)]
}

// itemBranching divides the choices of an item into those that take at most as much of the limits as the ascent's
// choices on average, and those that take more. The score is the mean deviation of the ascent's choices.
func (s *search) itemBranching(node *treeNode, i int) branching {
	times, mean := 0.0, 0.0
	for _, choice := range node.allowed[i] {
		if often := float64(s.relax.often[i][choice]); often > 0 {
			times += often
			mean += float64(often * s.load(node, i, choice))
		}
	}

	mean /= max(times, 1)
	way := branching{item: i}
	for _, choice := range node.allowed[i] {
		load := s.load(node, i, choice)
		way.score += float64(float64(s.relax.often[i][choice]) * math.Abs(load-mean))
		if load <= mean {
			way.light = append(way.light, choice)
		} else {
			way.heavy = append(way.heavy, choice)
		}
	}

	if way.score > 0 {
		way.score /= times
	}
	return way
}

// load returns what a choice of item i takes of the limits over undecided assets, at their prices.
func (s *search) load(node *treeNode, i int, choice int32) float64 {
	sum := 0.0
	it := s.prep.items[i]
	for _, use := range it.use[choice] {
		if asset := it.uses[use].asset; node.state[asset] == free {
			sum += float64(s.prep.assets[asset].price)
		}
	}
	return sum
}

// openShare returns how large a share of the last ascent's choices named an asset, among the items that may use it.
func (s *search) openShare(asset int) float64 {
	share, visits := 0.0, 0.0
	for _, i := range s.prep.assets[asset].users {
		it := s.prep.items[i]
		has := it.has[it.local(asset)]
		for choice, times := range s.relax.often[i] {
			visits += float64(times)
			if times > 0 && has[choice] {
				share += float64(times)
			}
		}
	}
	if visits > 0 {
		share /= visits
	}
	return share
}

// divide makes the children of a node.
func (s *search) divide(node *treeNode, way branching) []*treeNode {
	one, other := node.child(), node.child()
	if way.item >= 0 {
		one.allowed[way.item], other.allowed[way.item] = way.light, way.heavy
		return []*treeNode{one, other}
	}
	one.state[way.asset], other.state[way.asset] = opened, closed
	for _, i := range s.prep.assets[way.asset].users {
		it := s.prep.items[i]
		has := it.has[it.local(way.asset)]
		other.forbid(int(i), func(choice int32) bool { return has[choice] })
	}
	return []*treeNode{one, other}
}

// open reports whether a node may have solutions of interest: every item has a choice, and the opened assets keep the
// limits. In the search for the first optimal solution the node must also be able to have an earlier one.
func (s *search) open(node *treeNode) bool {
	s.decide(node)

	for row := range s.prep.assetRows {
		if s.room(node, row) < 0 {
			return false
		}
	}

	for i := range node.allowed {
		if len(node.allowed[i]) == 0 {
			return false
		}
	}
	// In the second search: a node's first solution takes the first choice of every item, compared with the best.
	if s.first {
		for i := range node.allowed {
			if choice := int(node.allowed[i][0]); choice != s.best[i] {
				return choice < s.best[i]
			}
		}
		return false
	}
	return true
}

// branchChoice returns an item with several choices, and the choice that one child tries alone. In the search for the
// first optimal solution they are the first ones, else the item is the one whose choice changed most in the ascent.
func (s *search) branchChoice(node *treeNode) (item int, choice int32) {
	best, item := int32(-1), -1
	for i, allowed := range node.allowed {
		if len(allowed) < 2 {
			continue
		}
		if s.first {
			return i, allowed[0]
		}

		var total, most int32
		top := allowed[0]
		for _, candidate := range allowed {
			times := s.relax.often[i][candidate]
			total += times
			if times > most {
				most, top = times, candidate
			}
		}

		if total-most > best {
			best, item, choice = total-most, i, top
		}
	}
	return item, choice
}

// run searches until no node is left, or until a limit is reached: on nodes, or on the bytes of waiting nodes. It
// returns the least bound (scaled) of the nodes that are left, unreachable if there are none.
func (s *search) run(root *treeNode, limit int64) (left int64, err error) {
	heap.Init(&s.queue)
	for len(s.queue) > 0 {
		if err := s.ctx.Err(); err != nil {
			return 0, err
		}
		node := s.queue[0]
		if s.anyOne && s.best != nil {
			return node.bound, nil
		}
		if s.useless(node.bound) {
			s.queue = nil // and so are the others
			break
		}

		// The first node has the least bound, so it decides whether anything is left to gain.
		isFull := s.nodes >= limit || s.most > 0 && s.kept > s.most
		if isFull && s.mayGain(node) {
			return node.bound, nil
		}

		heap.Pop(&s.queue)
		if s.noBetter(node) {
			continue
		}
		s.kept -= node.bytes()
		s.nodes++

		children := s.visit(node)
		// Every fourth node also looks for a solution.
		if children != nil && s.nodes&3 == 1 && !s.first {
			s.repairAt(node, root)
		}

		for _, child := range children {
			s.push(child)
		}
	}
	return unreachable, nil
}

// mayGain reports whether a node may have something better than the best solution. In the second search every node may.
func (s *search) mayGain(node *treeNode) bool {
	return s.first || s.best == nil || s.prep.bound(node.bound) < s.value
}

// noBetter reports whether a node has nothing better than the best solution. It keeps such a node for the second
// search, which looks for the first of equally good solutions.
func (s *search) noBetter(node *treeNode) bool {
	if s.mayGain(node) {
		return false
	}
	s.ties = append(s.ties, node)
	return true
}

// push has a node wait, under the next number.
func (s *search) push(node *treeNode) {
	node.number = s.number
	s.number++
	s.kept += node.bytes()
	heap.Push(&s.queue, node)
}

// repairAt looks for a solution from the prices that a node ended with.
func (s *search) repairAt(node, root *treeNode) {
	s.relax.permit(node.allowed, false)
	if s.relax.evaluate(node) != unreachable {
		s.relax.usage(node)
		s.repair(root)
	}
}

// queue is a heap.Interface that orders nodes by bound, the newest first of equal ones: usually the deepest.
type queue []*treeNode

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool {
	if q[i].bound != q[j].bound {
		return q[i].bound < q[j].bound
	}
	return q[i].number > q[j].number
}

func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

func (q *queue) Push(node any) { *q = append(*q, node.(*treeNode)) }

func (q *queue) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}
