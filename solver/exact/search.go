package exact

import (
	"cmp"
	"container/heap"
	"context"
	"math"
	"slices"

	"github.com/hetc/hetc/solver/problem"
)

const (
	rootRounds    = 12
	rootSteps     = 20 // evaluations of the relaxation, each after rootPasses passes, in a round
	rootPasses    = 3
	improveRounds = 24
	fewStarts     = 6 // classes that a loop begins with, each gone through on its own

	nodeSteps    = 4   // evaluations in a round at a node
	carefulSteps = 8   // the same where the measure is not time, or times or energy are limited
	nodePasses   = 1   // before each of them
	nodeRounds   = 4   // at most
	risingPart   = 0.1 // of what is missing for a node to be useless: a round that gains less is the last
	cutsTried    = 8   // ways to branch, at most
	cutsWorse    = 1   // in a row that are no better than the best: no more are tried
	carefulWorse = 3
	changeBonus  = 0.2 // added to the part of the ascent in which an asset was open or was not
)

// search is branch and bound over assets (open or not) and, where limits on times or energy leave something to
// decide, over choices. Nodes are visited in the order of their bounds.
type search struct {
	c   *joint
	r   *relaxation
	ctx context.Context

	x     []int // the best known choices, nil: none
	value int64 // of the measure
	nest  [][][]int

	anyOne bool    // the first solution ends the search
	first  bool    // looking for the lexicographically first of the optimal solutions
	ties   []*node // may have solutions that are as good as the best, but no better
	nodes  int64
	kept   int64 // bytes of the nodes that wait
	most   int64 // of them, 0: any
	number int64
	queue  queue
	plain  node // of heuristics
	tmp    []int
	in     []bool
	count  []int // per use of an item
}

func newSearch(ctx context.Context, c *joint) *search {
	s := &search{c: c, r: newRelaxation(c), ctx: ctx, value: math.MaxInt64, tmp: make([]int, len(c.items)), in: make([]bool, len(c.assets))}
	uses := 0
	for _, it := range c.items {
		uses = max(uses, len(it.uses))
	}
	s.count = make([]int, uses)
	for p := range c.parts {
		part := &c.parts[p]
		var chains [][]int
		for k, at := range part.chains {
			end := part.first + part.items
			if k+1 < len(part.chains) {
				end = part.chains[k+1]
			}
			chains = append(chains, make([]int, end-at))
		}
		s.nest = append(s.nest, chains)
	}
	return s
}

// choices returns x as a problem has it, in memory that the next call writes again.
func (s *search) choices(x []int) [][][]int {
	for p := range s.c.parts {
		for k, at := range s.c.parts[p].chains {
			copy(s.nest[p][k], x[at:])
		}
	}
	return s.nest
}

// limit is the most (scaled) that the bound of a node may be for it to have a solution that is as good as the best.
func (s *search) limit() int64 {
	if s.x == nil {
		return s.c.worst
	}
	return s.c.scale(s.value)
}

// useless reports whether a node with a bound of v has no solution as good as the best.
func (s *search) useless(v int64) bool { return v > s.limit() }

// offer considers choices as a solution.
func (s *search) offer(x []int) bool {
	j := s.c.j
	u := j.Use(s.choices(x))
	if j.Broken(&u) != nil {
		return false
	}
	v := j.Objective(&u)
	if s.x == nil || v < s.value || v == s.value && slices.Compare(x, s.x) < 0 {
		s.x, s.value = append(s.x[:0], x...), v
	}
	return true
}

// tryRelaxed offers what the relaxation has chosen, if it may be a solution.
func (s *search) tryRelaxed() {
	if s.r.fits() {
		s.offer(s.r.x)
	}
}

// tighten removes from the node the choices that no solution of interest has, and decides the assets that follow. The
// relaxation was evaluated with the node's multipliers. It reports whether anything changed.
func (s *search) tighten(n *node) bool {
	c, r := s.c, s.r
	room := s.limit() - r.value // the value that the multipliers give, not the bound, which may be from others
	changed := false
	for p := range c.parts {
		part := &c.parts[p]
		s.marginals(p, r.partMin[p]+room, fewStarts, nil)
		for i := part.first; i < part.first+part.items; i++ {
			keep := 0
			for _, j := range n.allowed[i] {
				if r.least[i][j] != unreachable {
					keep++
				}
			}
			if keep == len(n.allowed[i]) {
				continue
			}
			changed = true
			list := make([]int32, 0, keep)
			for _, j := range n.allowed[i] {
				if r.least[i][j] != unreachable {
					list = append(list, j)
				}
			}
			n.allowed[i] = list
		}
	}
	return s.decide(n) || changed
}

// decide opens the assets that every choice of some item needs, and closes those that none names or that do not fit beside
// those that are open, until nothing follows any more.
func (s *search) decide(n *node) (changed bool) {
	for s.settle(n) || s.fit(n) {
		changed = true
	}
	return changed
}

// settle decides the assets that the choices of the items decide.
func (s *search) settle(n *node) (changed bool) {
	c := s.c
	clear(s.in)
	for i, it := range c.items {
		count := s.count[:len(it.uses)]
		clear(count)
		for _, j := range n.allowed[i] {
			for _, u := range it.use[j] {
				count[u]++
			}
		}
		for u, k := range count {
			a := it.uses[u].asset
			if k > 0 {
				s.in[a] = true
			}
			if k == len(n.allowed[i]) && n.state[a] == free {
				n.state[a] = opened
				changed = true
			}
		}
	}
	for a, in := range s.in {
		if !in && n.state[a] == free {
			n.state[a] = closed
			changed = true
		}
	}
	return changed
}

// fit removes the choices whose assets do not fit beside those that are open.
func (s *search) fit(n *node) (changed bool) {
	c := s.c
	for k := range c.nRows {
		room := c.rows[k].cap
		for a := range c.assets {
			if n.state[a] == opened {
				room -= c.assets[a].size[k]
			}
		}
		for i, it := range c.items {
			fits := func(j int32) bool {
				need := int64(0)
				for _, u := range it.use[j] {
					if a := it.uses[u].asset; n.state[a] == free {
						need += c.assets[a].size[k]
					}
				}
				return need <= room
			}
			if !slices.ContainsFunc(n.allowed[i], func(j int32) bool { return !fits(j) }) {
				continue
			}
			n.allowed[i] = slices.DeleteFunc(slices.Clone(n.allowed[i]), func(j int32) bool { return !fits(j) })
			changed = true
		}
	}
	return changed
}

// marginals fills least of the items of a part with what the part costs at least with each choice (unreachable above limit).
func (s *search) marginals(p int, limit int64, few int, lists [][]int32) {
	r := s.r
	part := &s.c.parts[p]
	for i := part.first; i < part.first+part.items; i++ {
		for j := range r.least[i] {
			r.least[i][j] = unreachable
		}
	}
	for _, variant := range part.variants {
		var total int64
		opt := make([]int64, len(variant))
		at := part.first
		for k, sec := range variant {
			opt[k] = sec.solve(r.scratch[at : at+len(sec.steps)])
			if opt[k] == unreachable {
				total = unreachable
				break
			}
			total, at = total+opt[k], at+len(sec.steps)
		}
		if total > limit {
			continue
		}
		for k, sec := range variant {
			others := total - opt[k]
			first := part.chains[k]
			least := r.least[first : first+len(sec.steps)]
			// least counts whole parts, the section only itself.
			for i := range least {
				for j := range least[i] {
					if least[i][j] != unreachable {
						least[i][j] -= others
					}
				}
			}
			var l [][]int32
			if lists != nil {
				l = lists[first : first+len(sec.steps)]
			}
			sec.marginals(limit-others, few, l, least)
			for i := range least {
				for j := range least[i] {
					if least[i][j] != unreachable {
						least[i][j] += others
					}
				}
			}
		}
	}
}

// restrict solves with the assets in open alone, without prices but for those of the limits on times and
// energy; false when some item has no choice. x is then in the relaxation.
func (s *search) restrict(root *node, open []bool) bool {
	c := s.c
	p := &s.plain
	if p.allowed == nil {
		p.allowed, p.state = make([][]int32, len(c.items)), make([]int8, len(c.assets))
		for i, it := range c.items {
			p.allowed[i] = make([]int32, 0, len(it.base))
		}
		p.mult, p.lambda = make([]float64, len(c.rows)), make([]int64, len(c.links))
	}
	for i, it := range c.items {
		p.allowed[i] = p.allowed[i][:0]
	choices:
		for _, j := range root.allowed[i] {
			for _, u := range it.use[j] {
				if !open[it.uses[u].asset] {
					continue choices
				}
			}
			p.allowed[i] = append(p.allowed[i], j)
		}
		if len(p.allowed[i]) == 0 {
			return false
		}
	}
	copy(p.mult[c.nRows:], root.mult[c.nRows:])
	s.r.permit(p.allowed, true)
	s.r.charge(p, true)
	if !s.r.shortest() {
		return false
	}
	s.r.usage(p)
	return true
}

// repair closes assets of what the relaxation has chosen, those first whose loss is least for what they free, until the
// limits are kept, and offers the result.
func (s *search) repair(root *node) bool {
	c, r := s.c, s.r
	open := slices.Clone(r.used)
	pinned := make([]bool, len(c.assets))
	if !s.restrict(root, open) {
		return false
	}
	loss := make([]float64, len(c.assets))
	for !r.fits() {
		copy(open, r.used)
		x := slices.Clone(r.x)
		taken := slices.Clone(r.taken)
		clear(loss)
		for p := range c.parts {
			s.marginals(p, math.MaxInt64/4, 0, nil)
			part := &c.parts[p]
			for i := part.first; i < part.first+part.items; i++ {
				it := c.items[i]
				for _, u := range it.use[x[i]] {
					with, without := int64(unreachable), int64(unreachable)
					for _, j := range s.plain.allowed[i] {
						with = min(with, r.least[i][j])
						if !slices.Contains(it.use[j], u) {
							without = min(without, r.least[i][j])
						}
					}
					if without == unreachable {
						loss[it.uses[u].asset] = math.Inf(1)
					} else {
						loss[it.uses[u].asset] += float64(without - with)
					}
				}
			}
		}
		worst, at := math.Inf(1), -1
		for a := range c.assets {
			if !open[a] || pinned[a] || math.IsInf(loss[a], 1) {
				continue
			}
			frees := 0.0
			for k, size := range c.assets[a].size {
				if over := taken[k] - c.rows[k].cap; over > 0 {
					frees += float64(min(size, over)) / float64(over)
				}
			}
			if frees > 0 && (loss[a]+1)/frees < worst {
				worst, at = (loss[a]+1)/frees, a
			}
		}
		if at < 0 {
			return false
		}
		open[at] = false
		if !s.restrict(root, open) {
			open[at], pinned[at] = true, true
			if !s.restrict(root, open) {
				return false
			}
		}
	}
	return s.offer(r.x)
}

// improve opens assets beside those that the best solution uses, in place of others where they do not fit, as long as it gains.
func (s *search) improve(root *node) {
	if s.x == nil {
		return
	}
	c, r := s.c, s.r
	tried := map[string]bool{}
	for range improveRounds {
		open := s.opened(s.x)
		if !s.restrict(root, open) {
			return
		}
		s.offer(r.x)
		// What each set of assets that is not open would gain, were its items alone to use it.
		type group struct {
			assets []int32
			gain   int64
			score  float64
		}
		index := map[string]int{}
		var groups []group
		var anchors = map[int32]int{}
		for p := range c.parts {
			s.marginals(p, r.partMin[p], fewStarts, root.allowed)
			part := &c.parts[p]
			for i := part.first; i < part.first+part.items; i++ {
				it := c.items[i]
				here := map[int]int64{}
				var order []int
				for _, j := range root.allowed[i] {
					gain := r.partMin[p] - r.least[i][j]
					if r.least[i][j] == unreachable || gain <= 0 {
						continue
					}
					var missing []int32
					key := make([]byte, 0, 16)
					for _, u := range it.use[j] {
						if a := it.uses[u].asset; !open[a] {
							missing = append(missing, a)
							key = append(key, byte(a), byte(a>>8), byte(a>>16))
						}
					}
					if missing == nil {
						continue
					}
					g, ok := index[string(key)]
					if !ok {
						g = len(groups)
						index[string(key)] = g
						groups = append(groups, group{assets: missing})
					}
					if _, ok := here[g]; !ok {
						order = append(order, g)
					}
					here[g] = max(here[g], gain)
				}
				// An asset that several items use gains with what each of them would open beside it.
				best := map[int32]int{}
				var list []int32
				for _, g := range order {
					groups[g].gain += here[g]
					for _, a := range groups[g].assets {
						if c.assets[a].links == nil {
							continue
						}
						if b, ok := best[a]; !ok {
							list = append(list, a)
							best[a] = g
						} else if here[g] > here[b] {
							best[a] = g
						}
					}
				}
				for _, a := range list {
					at, ok := anchors[a]
					if !ok {
						at = len(groups)
						anchors[a] = at
						groups = append(groups, group{})
					}
					groups[at].gain += here[best[a]]
					for _, b := range groups[best[a]].assets {
						if !slices.Contains(groups[at].assets, b) {
							groups[at].assets = append(groups[at].assets, b)
						}
					}
				}
			}
		}
		for g := range groups {
			size := 1e-3
			for _, a := range groups[g].assets {
				for k, n := range c.assets[a].size {
					size += float64(n) / float64(max(c.rows[k].cap, 1))
				}
			}
			groups[g].score = float64(groups[g].gain) / size
		}
		slices.SortStableFunc(groups, func(a, b group) int {
			switch {
			case a.score > b.score:
				return -1
			case a.score < b.score:
				return 1
			}
			return 0
		})
		before := s.value
		for g := 0; g < min(len(groups), 8); g++ {
			with := slices.Clone(open)
			for _, a := range groups[g].assets {
				with[a] = true
			}
			key := setKey(with)
			if tried[key] {
				continue
			}
			tried[key] = true
			if s.restrict(root, with) {
				s.repair(root)
			}
			if s.value < before {
				break
			}
		}
		if s.value == before || s.ctx.Err() != nil {
			return
		}
	}
}

func setKey(set []bool) string {
	b := make([]byte, (len(set)+7)/8)
	for a, in := range set {
		if in {
			b[a/8] |= 1 << (a % 8)
		}
	}
	return string(b)
}

// opened lists the assets that choices use.
func (s *search) opened(x []int) []bool {
	open := make([]bool, len(s.c.assets))
	for i, it := range s.c.items {
		for _, u := range it.use[x[i]] {
			open[it.uses[u].asset] = true
		}
	}
	return open
}

// slackOver reports whether the limits over assets hold whatever of its assets a node opens.
func (s *search) slackOver(n *node) bool {
	for k := range s.c.nRows {
		sum := int64(0)
		for a := range s.c.assets {
			if n.state[a] != closed {
				sum += s.c.assets[a].size[k]
			}
		}
		if sum > s.c.rows[k].cap {
			return false
		}
	}
	return true
}

// visit bounds a node and returns its children.
func (s *search) visit(n *node) (children []*node) {
	c, r := s.c, s.r
	memory, paths := c.j.Minimise == problem.Memory, len(c.rows) > c.nRows
	steps := nodeSteps
	if s.careful() {
		steps = carefulSteps
	}
	for round := 1; ; round++ {
		if !s.open(n) {
			return nil
		}
		r.permit(n.allowed, false)
		if !paths && (!memory && s.slackOver(n) || !slices.Contains(n.state, free)) {
			// No limit can bind any more: the parts on their own are the optimum.
			clear(n.mult)
			clear(n.lambda)
			if r.evaluate(n) == unreachable {
				return nil
			}
			s.offer(r.x)
			return nil
		}
		before := n.bound
		if !r.climb(n, steps, nodePasses, s.useless, s.tryRelaxed) || s.useless(n.bound) || s.noBetter(n) {
			return nil
		}
		r.attain(n)
		rising := float64(n.bound-before) > risingPart*float64(s.limit()-n.bound)
		if !s.tighten(n) && !rising || round == nodeRounds {
			break
		}
	}
	if !s.open(n) {
		return nil
	}
	return s.branch(n)
}

// careful reports whether it pays to look longer before a node is divided: where the measure is not what the limits
// over assets trade for.
func (s *search) careful() bool {
	return len(s.c.rows) > s.c.nRows || s.c.j.Minimise == problem.Memory
}

// cut is a way to branch: the choices of an item that take little of the limits, or the others; or an asset, open or not.
type cut struct {
	score    float64
	item     int     // -1: an asset
	low, big []int32 // its choices
	asset    int
}

// branch divides a node that has just been climbed in the way, of some that are tried, that raises the bounds of both
// children most (strong branching). Where one child has nothing of interest it is the other one alone.
func (s *search) branch(n *node) []*node {
	var best []*node
	most, worse := -1.0, 0
	enough := cutsWorse
	if s.careful() {
		enough = carefulWorse
	}
	for _, x := range s.cuts(n) {
		gain := 1.0
		var left []*node
		for _, child := range s.divide(n, x) {
			up := s.limit() - n.bound
			if s.open(child) {
				s.r.permit(child.allowed, false)
				if s.r.climb(child, 1, nodePasses, s.useless, s.tryRelaxed) && !s.useless(child.bound) {
					up = child.bound - n.bound
					left = append(left, child)
				}
			}
			gain *= float64(up) + float64(s.c.worst)*1e-9
		}
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
	i, j := s.branchChoice(n)
	if i < 0 {
		return nil // one solution, and it was offered or breaks a limit
	}
	one, rest := n.child(), n.child()
	one.allowed[i] = []int32{j}
	rest.allowed[i] = slices.DeleteFunc(slices.Clone(n.allowed[i]), func(k int32) bool { return k == j })
	return []*node{one, rest}
}

// load is what a choice takes of the limits over assets that are not decided, as they are priced.
func (s *search) load(n *node, it *jointItem, j int32) float64 {
	sum := 0.0
	for _, u := range it.use[j] {
		if a := it.uses[u].asset; n.state[a] == free {
			sum += float64(s.c.assets[a].price)
		}
	}
	return sum
}

// cuts lists ways to branch: those first about which the ascent changed its mind most.
func (s *search) cuts(n *node) []cut {
	c, r := s.c, s.r
	var out []cut
	for i, it := range c.items {
		times, mean := 0.0, 0.0
		for _, j := range n.allowed[i] {
			if o := float64(r.often[i][j]); o > 0 {
				times += o
				mean += float64(o * s.load(n, it, j))
			}
		}
		mean /= max(times, 1)
		x := cut{item: i}
		for _, j := range n.allowed[i] {
			load := s.load(n, it, j)
			x.score += float64(float64(r.often[i][j]) * math.Abs(load-mean))
			if load <= mean {
				x.low = append(x.low, j)
			} else {
				x.big = append(x.big, j)
			}
		}
		if x.score > 0 && x.low != nil && x.big != nil {
			x.score /= times
			out = append(out, x)
		}
	}
	for a := range c.assets {
		if n.state[a] != free {
			continue
		}
		as := &c.assets[a]
		share := 0.0
		visits := 0.0
		for _, i := range as.users {
			has := c.items[i].has[c.items[i].local(a)]
			for j, times := range r.often[i] {
				visits += float64(times)
				if times > 0 && has[j] {
					share += float64(times)
				}
			}
		}
		if visits > 0 {
			share /= visits
		}
		if share > 0 {
			out = append(out, cut{score: float64((min(share, 1-share) + changeBonus) * float64(as.price)), item: -1, asset: a})
		}
	}
	slices.SortStableFunc(out, func(a, b cut) int { return cmp.Compare(b.score, a.score) })
	return out[:min(len(out), cutsTried)]
}

// divide makes the children of a node.
func (s *search) divide(n *node, x cut) []*node {
	one, other := n.child(), n.child()
	if x.item >= 0 {
		one.allowed[x.item], other.allowed[x.item] = x.low, x.big
		return []*node{one, other}
	}
	one.state[x.asset], other.state[x.asset] = opened, closed
	for _, i := range s.c.assets[x.asset].users {
		it := s.c.items[i]
		has := it.has[it.local(x.asset)]
		other.allowed[i] = slices.DeleteFunc(slices.Clone(n.allowed[i]), func(j int32) bool { return has[j] })
	}
	return []*node{one, other}
}

// open reports whether a node may have solutions of interest: every item has a choice, what is opened keeps the limits,
// and, where the first solution is looked for, it may have an earlier one.
func (s *search) open(n *node) bool {
	s.decide(n)
	for k := range s.c.nRows {
		sum := int64(0)
		for a := range s.c.assets {
			if n.state[a] == opened {
				sum += s.c.assets[a].size[k]
			}
		}
		if sum > s.c.rows[k].cap {
			return false
		}
	}
	for i := range n.allowed {
		if len(n.allowed[i]) == 0 {
			return false
		}
	}
	if s.first {
		for i := range n.allowed {
			if j := int(n.allowed[i][0]); j != s.x[i] {
				return j < s.x[i]
			}
		}
		return false
	}
	return true
}

// branchChoice is an item with several choices and the one to try alone: where the first solution is looked for the
// first, else the item whose choice changed most in the ascent.
func (s *search) branchChoice(n *node) (item int, choice int32) {
	best, item := int32(-1), -1
	for i := range n.allowed {
		if len(n.allowed[i]) < 2 {
			continue
		}
		if s.first {
			return i, n.allowed[i][0]
		}
		var total, most int32
		top := n.allowed[i][0]
		for _, j := range n.allowed[i] {
			times := s.r.often[i][j]
			total += times
			if times > most {
				most, top = times, j
			}
		}
		if total-most > best {
			best, item, choice = total-most, i, top
		}
	}
	return item, choice
}

// run searches until nothing is left or a limit, of nodes or of what those that wait take, is reached. It returns the least bound (scaled) of what was
// not searched, unreachable when nothing was left.
func (s *search) run(root *node, limit int64) (left int64, err error) {
	heap.Init(&s.queue)
	for len(s.queue) > 0 {
		if err := s.ctx.Err(); err != nil {
			return 0, err
		}
		n := s.queue[0]
		if s.anyOne && s.x != nil {
			return n.bound, nil
		}
		if n.bound > s.limit() {
			s.queue = nil // and so are the others
			break
		}
		if (s.nodes >= limit || s.most > 0 && s.kept > s.most) && (s.first || s.x == nil || s.c.bound(n.bound) < s.value) {
			return n.bound, nil
		}
		heap.Pop(&s.queue)
		if s.noBetter(n) {
			continue
		}
		s.kept -= n.bytes()
		s.nodes++
		children := s.visit(n)
		if children != nil && s.nodes&3 == 1 && !s.first {
			s.r.permit(n.allowed, false)
			if s.r.evaluate(n) != unreachable {
				s.r.usage(n)
				s.repair(root)
			}
		}
		for _, child := range children {
			child.number = s.number
			s.number++
			s.kept += child.bytes()
			heap.Push(&s.queue, child)
		}
	}
	return unreachable, nil
}

// noBetter reports whether a node has nothing better than what is known, and keeps it for when the first of
// equally good solutions is looked for.
func (s *search) noBetter(n *node) bool {
	if s.first || s.x == nil || s.c.bound(n.bound) < s.value {
		return false
	}
	s.ties = append(s.ties, n)
	return true
}

// queue orders nodes by bound, the newest first of equal ones.
type queue []*node

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	if q[i].bound != q[j].bound {
		return q[i].bound < q[j].bound
	}
	return q[i].number > q[j].number
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(*node)) }
func (q *queue) Pop() any {
	old := *q
	n := old[len(old)-1]
	*q = old[:len(old)-1]
	return n
}
