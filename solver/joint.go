package solver

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
)

// need is what a candidate needs to be open on a processor.
type need struct {
	proc    string
	graph   string // key
	weights []lower.Use
	scratch int64    // temporary memory of its graph
	table   bool     // the weight is a table that rows are looked up in as they are stored
	joins   bool     // its step may be joined to its neighbours
	inside  bool     // and what they pass to each other may then have no buffer
	buffers []buffer // that its steps touch
}

// buffer is one of the pool, with the size that the candidate gives it at least.
type buffer struct {
	name       string
	rows, cols int
	size       int  // of an element
	own        bool // of a share or partial sum: it is as large as those that use it need it
}

// needs lists what a node's candidate needs, step by step.
func needsOf(st *price.Section, node int, c *price.Candidate) ([]need, error) {
	n := &st.Nodes[node]
	pieces, err := lower.Cut(st.Section, n, &c.Decision, st.Proc)
	if err != nil {
		return nil, diag.New(diag.ClassInternal, "BUG: a candidate of %q cannot be cut: %w", n.Name, err)
	}
	var out []need
	for k := range pieces {
		p := &pieces[k]
		x := need{proc: p.Proc, table: p.Op().Kind == op.Embed && p.Op().Scheme == ""}
		x.weights, x.graph = lower.Needs(n, p, st.Proc(p.Proc))
		x.scratch = scratchOf(p, st.Proc(p.Proc))
		x.joins, x.inside = lower.Joins(p.Ops, st.Proc(p.Proc))
		for _, v := range slices.Concat(p.In, p.Out) {
			b := buffer{name: v.Buffer, rows: v.R1, cols: v.C1, own: true}
			value, ok := st.Values[v.Buffer]
			if ok {
				b.rows, b.cols, b.own = max(b.rows, value.Rows), value.Cols, false
			} else {
				value = st.Values[n.Out[0]]
			}
			b.size = value.Type.Bytes()
			x.buffers = append(x.buffers, b)
		}
		out = append(out, x)
	}
	// Who gathers reads fewer rows than were written where those are padded: the buffer has all of them.
	for _, x := range out {
		for i := range x.buffers {
			for _, y := range out {
				for _, b := range y.buffers {
					if b.name == x.buffers[i].name {
						x.buffers[i].rows = max(x.buffers[i].rows, b.rows)
					}
				}
			}
		}
	}
	return out, nil
}

// scratchOf is the temporary memory of a piece's graph where nothing is joined to it.
func scratchOf(p *lower.Piece, proc *planir.Proc) int64 {
	var most int64
	for _, o := range p.Ops {
		g := op.Single(o, "")
		most = max(most, proc.ScratchBytes(&g))
	}
	return most
}

// loads are what all candidates of an instance need, by node and candidate.
func (in *instance) loads() ([][][]need, error) {
	if in.needs == nil {
		all := make([][][]need, len(in.candidates))
		for i := range in.candidates {
			for j := range in.candidates[i] {
				x, err := needsOf(in.stage, i, &in.candidates[i][j])
				if err != nil {
					return nil, err
				}
				all[i] = append(all[i], x)
			}
		}
		in.needs = all
	}
	return in.needs, nil
}

// assets collects what choices of a joint problem share.
type assets struct {
	s       *session
	list    []problem.Asset
	index   map[string]int
	layers  map[string]int         // of each weight
	experts map[string]int         // of each weight
	cuts    map[string][]int       // boundaries of the columns that a pack is read in, by its key
	whole   map[string]planir.Pack // by key, without columns
	rows    map[string]int         // the most of each buffer
	levels  map[string][]int       // numbers of rows of a buffer of its own
	regions map[string]int         // by processor: those whose bytes, graphs or opening times are bounded
	memory  bool                   // what a process holds is bounded or minimised
	pool    bool                   // its buffers, scratch and steps count, too: it is minimised
	least   bool                   // for leastBytes: no packs, and no asset that a range ends within
	sizes   map[sizeKey]int64      // of ranges of packs
	procs   map[string]*socs.Processor
}

// sizeKey is a range of a pack's columns, with what each layer of it is rounded up to.
type sizeKey struct {
	pack     string
	from, to int
	unit     int64
}

// newAssets is an empty collection.
func (s *session) newAssets() *assets {
	a := &assets{
		s: s, index: map[string]int{}, layers: s.layers(), experts: map[string]int{}, cuts: map[string][]int{}, whole: map[string]planir.Pack{},
		rows: map[string]int{}, levels: map[string][]int{}, regions: map[string]int{}, sizes: map[sizeKey]int64{}, procs: map[string]*socs.Processor{},
	}
	for _, w := range s.graph.Weights {
		a.experts[w.Name] = w.Experts
	}
	for i := range s.Procs {
		a.procs[s.Procs[i].Name] = s.in.SoC.Processor(s.Procs[i].Name)
	}
	return a
}

// packKey names the pack that a range of a weight belongs to, on a processor: for its region that owner reads it.
func packKey(u *lower.Use) string {
	k := fmt.Sprintf("%s/%s.%s k%d-%d", u.Weight, u.Scheme, u.Layout, u.K0, u.K1)
	if u.Owner != "" {
		k += fmt.Sprintf(" %s n%d-%d", u.Owner, u.N0, u.N1)
	}
	return k
}

// scan notes where a need divides packs, and how large it makes buffers.
func (a *assets) scan(x *need) {
	for i := range x.weights {
		u := &x.weights[i]
		k := packKey(u)
		if _, ok := a.whole[k]; !ok {
			a.whole[k] = planir.Pack{Weight: u.Weight, Experts: a.experts[u.Weight], K0: u.K0, K1: u.K1, Scheme: u.Scheme, Layout: u.Layout}
		}
		for _, c := range []int{u.N0, u.N1} {
			if at, found := slices.BinarySearch(a.cuts[k], c); !found {
				a.cuts[k] = slices.Insert(a.cuts[k], at, c)
			}
		}
	}
	for _, b := range x.buffers {
		a.rows[b.name] = max(a.rows[b.name], b.rows)
		a.level(b.name, b.rows)
	}
	if a.pool {
		a.level("scratch "+x.proc, int(x.scratch))
	}
}

// scanAll is scan for all that an instance needs.
func (a *assets) scanAll(needs [][][]need) {
	for _, candidates := range needs {
		for _, steps := range candidates {
			for i := range steps {
				a.scan(&steps[i])
			}
		}
	}
}

// level notes a size that something of growing size may have.
func (a *assets) level(name string, size int) {
	if at, found := slices.BinarySearch(a.levels[name], size); !found {
		a.levels[name] = slices.Insert(a.levels[name], at, size)
	}
}

// bytes is what columns of a pack take, in all layers and experts: in units of one byte as check.Load counts it, in pages as
// planir.MemoryOf does. A range of several takes no less than all of them together.
func (a *assets) bytes(key string, from, to int, unit int64) (int64, error) {
	id := sizeKey{key, from, to, unit}
	if n, ok := a.sizes[id]; ok {
		return n, nil
	}
	w := a.whole[key]
	upTo := func(cols int) (int64, error) {
		if cols == 0 {
			return 0, nil
		}
		p := w
		p.N1 = cols
		n, err := pack.Bytes(p.Spec())
		return (n + unit - 1) / unit * unit, err
	}
	low, high, err := int64(0), int64(0), error(nil)
	// Columns 0..to less columns 0..from: what layouts add once for a pack belongs to its beginning.
	first := a.cuts[key][0]
	if from > first {
		low, err = upTo(from - first)
	}
	if err == nil {
		high, err = upTo(to - first)
	}
	if err != nil {
		return 0, err
	}
	n := int64(max(1, a.layers[w.Weight])) * max(0, high-low)
	a.sizes[id] = n
	return n, nil
}

func (a *assets) add(x problem.Asset) int {
	i, ok := a.index[x.Name]
	if !ok {
		i = len(a.list)
		a.index[x.Name] = i
		a.list = append(a.list, x)
	}
	return i
}

// of lists the assets of a need.
func (a *assets) of(x *need, out []int) ([]int, error) {
	region, bounded := a.regions[x.proc]
	sp := a.procs[x.proc]
	upTo := func(name string, b *buffer, region int, rounded func(bytes int64) int64) {
		from := int64(0)
		for _, level := range a.levels[b.name] {
			if level > b.rows {
				break
			}
			to := rounded(int64(level) * int64(b.cols) * int64(b.size))
			out = append(out, a.add(problem.Asset{Name: fmt.Sprintf("%s %s to row %d", name, b.name, level), Region: region, Bytes: to - from}))
			from = to
		}
	}
	same := func(bytes int64) int64 { return bytes }
	if a.pool {
		for i := range x.buffers {
			if !x.inside {
				upTo("pool", &x.buffers[i], a.regions[""], planir.BufferBytes)
			}
		}
		upTo("held", &buffer{name: "scratch " + x.proc, rows: int(x.scratch), cols: 1, size: 1}, a.regions[""], same)
		if once := sp.KernelMemory().LibraryBytes; once > 0 {
			out = append(out, a.add(problem.Asset{Name: "library", Region: a.regions[""], Bytes: once}))
		}
	}
	if bounded {
		out = append(out, a.add(problem.Asset{Name: "graph " + x.graph, Region: region, Graphs: 1, OpenNS: openNS(sp)}))
		for _, b := range x.buffers {
			if b.own {
				upTo(x.proc+" buffer", &b, region, same)
			} else {
				out = append(out, a.add(problem.Asset{Name: x.proc + " buffer " + b.name, Region: region, Bytes: int64(a.rows[b.name]) * int64(b.cols) * int64(b.size)}))
			}
		}
	}
	for i := range x.weights {
		u := &x.weights[i]
		// atoms adds an asset for every part of the range between two of the cuts.
		atoms := func(prefix, suffix string, region int, cuts []int, unit int64) error {
			key := packKey(u)
			from, found := slices.BinarySearch(cuts, u.N0)
			if !found && !a.least {
				from--
			}
			for ; from < len(cuts)-1 && (cuts[from+1] <= u.N1 || cuts[from] < u.N1 && !a.least); from++ {
				n, err := a.bytes(key, cuts[from], cuts[from+1], unit)
				if err != nil {
					return err
				}
				out = append(out, a.add(problem.Asset{Name: fmt.Sprintf("%s %s n%d-%d%s", prefix, key, cuts[from], cuts[from+1], suffix), Region: region, Bytes: n}))
			}
			return nil
		}
		cuts, each := a.cuts[packKey(u)], ""
		if sp.WeightBytes == socs.WeightsPerGraph {
			each = " in " + x.graph
		}
		var err error
		if bounded {
			err = atoms(x.proc, each, region, cuts, 1)
		}
		owned := u.Owner != "" && each == ""
		if err == nil && a.memory && !a.least && !x.table && !(bounded && owned) {
			err = atoms("memory", "", a.regions[""], coarse(cuts), planir.PageBytes)
		}
		if err == nil && a.memory && sp.Prepacks && u.Layout != op.RowsLayout {
			err = atoms("prepacked", "", a.regions[""], coarse(cuts), planir.PageBytes)
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Which steps lowering joins depends on the choices of neighbours, which no asset can say. So a step counts only where no choice
// joins it: two nodes that may be joined count as one step, whether they are or not.

// endings are, for each node, the processors that may join its first step to the only step of the node before.
func endings(needs [][][]need) []map[string]bool {
	out := []map[string]bool{{}}
	for _, list := range needs {
		ends := map[string]bool{}
		for _, steps := range list {
			if len(steps) == 1 && steps[0].joins {
				ends[steps[0].proc] = true
			}
		}
		out = append(out, ends)
	}
	return out
}

// steps lists the assets of a candidate's steps but for those that may be joined to another one that counts: the first to the only
// step of the node before it, by processors of ends; the last of several, a sum, to the first of the next node.
func (a *assets) steps(needs []need, ends map[string]bool, name string, repeat int, out []int) []int {
	for m := range needs {
		x := &needs[m]
		afterNode, afterStep := m == 0 && ends[x.proc], m > 0 && needs[m-1].joins && needs[m-1].proc == x.proc
		if lastOfMore := m > 0 && m == len(needs)-1; x.joins && (afterNode || afterStep || lastOfMore) {
			continue
		}
		told := a.procs[x.proc].KernelMemory()
		bytes, text := told.StepBytes, fmt.Sprintf("step %d of %s", m, name)
		if told.LibraryBytes > 0 {
			text += " in a library"
		}
		out = append(out, a.add(problem.Asset{Name: text, Region: a.regions[""], Bytes: int64(repeat) * bytes}))
	}
	return out
}

// maxAtoms is how many parts of one packed copy are told apart in what a process holds.
const maxAtoms = 8

// coarse is a selection of cuts: a range then counts as up to the next of them, as a copy is packed whole between the ends of its uses.
func coarse(cuts []int) []int {
	if len(cuts) <= maxAtoms+1 {
		return cuts
	}
	out := make([]int, maxAtoms+1)
	for i := range out {
		out[i] = cuts[i*(len(cuts)-1)/maxAtoms]
	}
	return out
}

// joint is the problem of all programs together, with what its parts stand for.
type joint struct {
	*problem.Joint
	programs []*program
	unit     float64 // weight of one expected call
	posed    map[quantity]int64
}

// weightScale is the weight of the part that counts most.
const weightScale = 1 << 14

// weight is what a call of the i-th program of demand.rows counts for.
func (s *session) weight(i int) float64 {
	rows := s.want.Rows()[i]
	if s.decodes(rows) {
		return s.want.DecodeNS(rows, s.want.Weights.Decode)
	}
	return s.want.Weights.Prefill * s.want.Share[slices.Index(s.want.Buckets, rows)]
}

func jointProblem(m problem.Measure) string { return "joint " + string(m) }

// joint poses the problem of all programs. Less is taken off each bound beforehand for what the problem leaves out.
func (s *session) joint(less map[quantity]int64) (*joint, error) {
	rows := s.want.Rows()
	j := &joint{Joint: &problem.Joint{Name: "plan", Minimise: s.goal}, posed: map[quantity]int64{}}
	heaviest := 0.0
	for i := range rows {
		heaviest = max(heaviest, s.weight(i))
	}
	j.unit = weightScale
	if heaviest > 0 {
		j.unit /= heaviest
	}
	a := s.newAssets()
	region := func(name string) *problem.Region {
		i, ok := a.regions[name]
		if !ok {
			i = len(j.Regions)
			a.regions[name] = i
			j.Regions = append(j.Regions, problem.Region{Name: name})
		}
		return &j.Regions[i]
	}
	part := map[string]int64{} // MaxNS
	for _, b := range s.bounds {
		max := max(1, b.max-less[b.quantity])
		j.posed[b.quantity] = max
		switch b.kind {
		case problem.LimitRegionBytes:
			region(b.name).MaxBytes = max
		case problem.LimitRegionGraphs:
			region(b.name).MaxGraphs = int(max)
		case problem.LimitBytes:
			j.MaxBytes, a.memory = max, true
		case problem.LimitOpenNS:
			j.MaxOpenNS = max
			for i := range s.Procs {
				if openNS(s.in.SoC.Processor(s.Procs[i].Name)) > 0 {
					region(s.Procs[i].Name)
				}
			}
		case problem.LimitEnergyNJ:
			j.MaxEnergyNJ = price.Whole(math.Max(1, float64(max)*j.unit))
		case problem.LimitPartNS:
			part[b.name] = max
		}
	}
	if j.Minimise == problem.Memory || a.memory && s.tight {
		a.memory, a.pool = true, true
	}
	if a.memory {
		region("").Name = "memory"
	}
	for _, r := range rows {
		pr, err := s.program(r, s.assigned(r))
		if err != nil {
			return nil, err
		}
		j.programs = append(j.programs, pr)
		for _, in := range pr.instances {
			fresh := in.needs == nil
			all, err := in.loads()
			if err != nil {
				return nil, err
			}
			if fresh {
				s.cache(needsBytes(all))
			}
			a.scanAll(all)
		}
	}
	for i, pr := range j.programs {
		p := pr.partition(s, problem.Time)
		for c := range p.Chains {
			items := slices.Clone(p.Chains[c].Items)
			ends := endings(pr.instances[c].needs)
			for n := range items {
				items[n].Choices = slices.Clone(items[n].Choices)
				for k := range items[n].Choices {
					var err error
					var list []int
					needs := pr.instances[c].needs[n][pr.instances[c].node(n, k)]
					for m := range needs {
						if list, err = a.of(&needs[m], list); err != nil {
							return nil, err
						}
					}
					if a.pool {
						list = a.steps(needs, ends[n], items[n].Name+"@"+pr.name, pr.instances[c].stage.Repeat, list)
					}
					slices.Sort(list)
					items[n].Choices[k].Assets = slices.Compact(list)
				}
			}
			p.Chains[c].Items = items
		}
		j.Parts = append(j.Parts, problem.Part{Partition: p, Weight: max(1, int64(math.Round(s.weight(i)*j.unit))), MaxNS: part[pr.name]})
	}
	j.Assets = a.list
	return j, s.ledger.lend(j.bytes(), "the problem of all programs together")
}

// layers is how many layers have each weight.
func (s *session) layers() map[string]int {
	spans := map[string][][2]int{}
	for i := range s.graph.Sections {
		sec := &s.graph.Sections[i]
		for _, n := range sec.Nodes {
			names := slices.Concat(n.W, lower.Computed(sec.Name+"."+n.Name))
			for _, w := range names {
				if x := s.graph.Weight(w); sec.Layers > 0 && (x == nil || len(x.Const) == 0) {
					if at := [2]int{sec.First, sec.First + sec.Layers}; !slices.Contains(spans[w], at) {
						spans[w] = append(spans[w], at)
					}
				}
			}
		}
	}
	out := map[string]int{}
	for _, w := range slices.Sorted(maps.Keys(spans)) {
		for _, at := range spans[w] {
			out[w] += at[1] - at[0]
		}
	}
	return out
}

// choices are those that a plan makes, as the problem numbers them.
func (j *joint) choices(p *planir.Plan) [][][]int {
	var out [][][]int
	for _, pr := range j.programs {
		var part [][]int
		for _, in := range pr.instances {
			list := make([]int, len(in.candidates))
			for i := range list {
				d := DecisionAt(p, in.stage.Nodes[i].Name, in.stage.Rows)
				if list[i] = in.find(i, d); list[i] < 0 {
					panic("BUG: decision on " + d.Node + " is none of its candidates")
				}
			}
			part = append(part, list)
		}
		out = append(out, part)
	}
	return out
}

// models is what choices take of everything bounded, as the problem counts it, in the units of bounds.
func (j *joint) models(s *session, choices [][][]int) map[quantity]int64 {
	u := j.Use(choices)
	out := map[quantity]int64{}
	for _, b := range s.bounds {
		switch b.kind {
		case problem.LimitRegionBytes, problem.LimitRegionGraphs:
			r := slices.IndexFunc(j.Regions, func(r problem.Region) bool { return r.Name == b.name })
			out[b.quantity] = u.RegionBytes[r]
			if b.kind == problem.LimitRegionGraphs {
				out[b.quantity] = u.RegionGraphs[r]
			}
		case problem.LimitBytes:
			out[b.quantity] = u.Bytes
		case problem.LimitOpenNS:
			out[b.quantity] = u.OpenNS
		case problem.LimitEnergyNJ:
			out[b.quantity] = price.Whole(float64(u.EnergyNJ) / j.unit)
		case problem.LimitPartNS:
			i := slices.IndexFunc(j.programs, func(pr *program) bool { return pr.name == b.name })
			out[b.quantity] = u.PartNS[i]
		}
	}
	return out
}

// Cuts of an axis that a joint problem chooses among, evenly spread, beside the cheapest of each node and those that a
// program chose on its own. Programs share a processor's region of a matrix only where they divide it alike, and
// the search looks at all of them together: with every cut of a single program it would not end.
const (
	jointCuts     = 8
	jointRowCuts  = 4 // of rows, which nothing is shared for
	thinnedChoice = 12
)

// thin leaves of each node's candidates that divide an axis alike between the same processors only some, unless they are few or
// plan has them, until the function it returns is called: other schemes and buckets are to be tried with all of them.
func (s *session) thin(plan *planir.Plan) (restore func()) {
	all := map[poolKey][]price.Candidate{}
	for k, x := range s.pools {
		all[k] = x.list
	}
	kept := map[string]bool{}
	for i := range plan.Decisions {
		kept[plan.Decisions[i].Node+" "+plan.Decisions[i].ShareText()] = true
	}
	for _, x := range s.pools {
		if len(x.list) <= thinnedChoice {
			continue
		}
		kinds := map[string][]int{}
		var order []string
		for i := range x.list {
			c := &x.list[i]
			key := c.Kind()
			if kinds[key] == nil {
				order = append(order, key)
			}
			kinds[key] = append(kinds[key], i)
		}
		keep := make([]bool, len(x.list))
		for _, key := range order {
			list := kinds[key]
			cheapest, frugal := list[0], list[0]
			for _, i := range list {
				c := &x.list[i]
				if c.CostNS < x.list[cheapest].CostNS {
					cheapest = i
				}
				if c.EnergyNJ < x.list[frugal].EnergyNJ {
					frugal = i
				}
				keep[i] = kept[c.Node+" "+c.ShareText()] || len(c.Shares) != 2 ||
					slices.ContainsFunc(s.divisions, func(d planir.Decision) bool { return d.Node == c.Node && price.SameShares(&d, c.WithoutForms()) })
			}
			keep[cheapest], keep[frugal] = true, true
			cuts := jointCuts
			if x.list[cheapest].Axis == planir.AxisRows {
				cuts = jointRowCuts
			}
			for k := 1; k < cuts; k++ {
				nearest, least := -1, 0
				for _, i := range list {
					c := &x.list[i]
					if len(c.Shares) != 2 {
						continue
					}
					off := cuts*c.Shares[0].To - k*c.Shares[1].To
					if off < 0 {
						off = -off
					}
					if nearest < 0 || off < least {
						nearest, least = i, off
					}
				}
				if nearest >= 0 {
					keep[nearest] = true
				}
			}
		}
		var out []price.Candidate
		for i, c := range x.list {
			if keep[i] {
				out = append(out, c)
			}
		}
		s.thinned = s.thinned || len(out) < len(x.list)
		x.list = out
	}
	s.renew()
	return func() {
		for k, list := range all {
			s.pools[k].list = list
		}
		s.renew()
	}
}

// jointRounds is how often a joint problem is posed again because its plan, lowered, takes more than the problem said.
const jointRounds = 8

// together returns the best plan whose programs keep all bounds together. plan is one that does not.
func (s *session) together(ctx context.Context, plan *planir.Plan) (*planir.Plan, error) {
	return s.togetherFrom(ctx, plan, false)
}

// togetherFrom is together. Where plan keeps all bounds it is where the search starts, and nothing worse is returned.
func (s *session) togetherFrom(ctx context.Context, plan *planir.Plan, keeps bool) (*planir.Plan, error) {
	s.offer(plan)
	defer s.thin(plan)()
	less := map[quantity]int64{}
	var last error
	for round := range jointRounds {
		j, err := s.joint(less)
		if err != nil {
			return nil, err
		}
		if round == 0 { // what the problem does not see, as far as one plan tells
			if less, err = s.unseen(j, plan, j.choices(plan), nil); err != nil {
				return nil, err
			}
			if j, err = s.joint(less); err != nil {
				return nil, err
			}
		}
		limits := problem.Limits{Nodes: s.nodes, Bytes: s.ledger.left(j.bytes())}
		if keeps && round == 0 {
			limits.Start = j.choices(plan)
		}
		sol, err := s.in.Engine.Joint(ctx, j.Joint, limits)
		if err == nil && sol.Choices == nil {
			sol, err = s.foothold(ctx, j, sol)
		}
		if err != nil {
			return nil, s.unreachable(err, plan, j)
		}
		if err := j.Verify(sol); err != nil {
			return nil, err
		}
		if sol.Choices == nil {
			return nil, s.undecided("no plan was found that keeps", plan)
		}
		if j.Minimise == problem.Memory { // of the plans that hold as little the fastest
			least := *j.Joint
			least.Minimise, least.MaxBytes = problem.Time, max(1, sol.Objective)
			faster, err := s.in.Engine.Joint(ctx, &least, limits)
			if err == nil {
				err = least.Verify(faster)
			}
			if err != nil && ctx.Err() != nil {
				return nil, err
			}
			if err == nil && faster.Choices != nil {
				sol.Choices = faster.Choices
			}
		}
		report := planir.Solve{
			Problem: jointProblem(s.measure()), Status: statusOf(sol.Status, sol.Objective, sol.Bound), Choices: j.Size(),
			ObjectiveNS: price.Whole(s.worth(j, sol.Objective)), BoundNS: price.Whole(s.worth(j, sol.Bound)),
		}
		if sol.Status == problem.Feasible {
			report.BoundNS = min(report.BoundNS, report.ObjectiveNS)
		}
		s.ledger.joints[report] = sol.Objective
		x := solved{reports: []planir.Solve{report}}
		for i, pr := range j.programs {
			x.decisions = append(x.decisions, pr.decisions(sol.Choices[i]))
		}
		if plan, err = s.build(x); err != nil {
			return nil, err
		}
		taken, err := s.taken(plan)
		if err != nil {
			return nil, err
		}
		over := s.broken(plan, taken)
		if len(over) == 0 {
			return plan, nil
		}
		last = s.exceeds("no plan was found that keeps", over, taken)
		if less, err = s.unseen(j, plan, sol.Choices, less); err != nil {
			return nil, err
		}
	}
	return nil, last
}

// foothold is the best solution of a problem for which the engine found none, from the one that takes least of a limited time, energy
// or memory within the other limits; without one it is the engine's answer.
func (s *session) foothold(ctx context.Context, j *joint, none problem.JointSolution) (problem.JointSolution, error) {
	for _, goal := range []problem.Measure{problem.Energy, problem.Memory, problem.Time} {
		x := *j.Joint
		x.Minimise = goal
		switch {
		case goal == problem.Energy && x.MaxEnergyNJ > 0:
			x.MaxEnergyNJ = 0
		case goal == problem.Memory && (x.MaxBytes > 0 || len(x.Regions) > 0):
			x.MaxBytes = 0
		case goal == problem.Time && s.limits(problem.LimitPartNS):
			x.Parts = slices.Clone(x.Parts)
			for i := range x.Parts {
				x.Parts[i].MaxNS = 0
			}
		default:
			continue
		}
		least, err := s.in.Engine.Joint(ctx, &x, problem.Limits{Nodes: triedNodes, Bytes: s.ledger.left(j.bytes())})
		if diag.ClassOf(err) == diag.ClassInfeasible {
			continue
		}
		if err != nil {
			return none, err
		}
		if least.Choices != nil && j.Keeps(least.Choices) {
			return s.in.Engine.Joint(ctx, j.Joint, problem.Limits{Nodes: s.nodes, Bytes: s.ledger.left(j.bytes()), Start: least.Choices})
		}
	}
	return none, nil
}

// worth is an objective of a joint problem in the unit of its measure.
func (s *session) worth(j *joint, objective int64) float64 {
	if j.Minimise == problem.Memory {
		return float64(objective)
	}
	return float64(objective) / j.unit
}

// unseen is what a lowered plan takes of every bound beyond what the problem says: the most of what was seen before, and of this plan.
func (s *session) unseen(j *joint, plan *planir.Plan, choices [][][]int, before map[quantity]int64) (map[quantity]int64, error) {
	taken, err := s.taken(plan)
	if err != nil {
		return nil, err
	}
	out := maps.Clone(before)
	if out == nil {
		out = map[quantity]int64{}
	}
	for q, n := range j.models(s, choices) {
		more := taken[q] - n
		if old, ok := before[q]; ok {
			more = max(more, old)
		}
		out[q] = more
	}
	return out, nil
}

// exceeds is the error that a plan takes more than is allowed.
func (s *session) exceeds(what string, over []bound, taken map[quantity]int64) error {
	e := &LimitError{}
	var parts []string
	for i := range over {
		b := &over[i]
		if !slices.Contains(e.Names, b.user) {
			e.Names = append(e.Names, b.user)
		}
		subject, amount := b.words()
		parts = append(parts, fmt.Sprintf("%s %s, and at most %s are allowed", subject, amount(taken[b.quantity]), amount(b.max)))
	}
	e.text = fmt.Sprintf("%s %s: %s", what, strings.Join(e.Names, " and "), strings.Join(parts, "; "))
	return diag.New(diag.ClassInfeasible, "solve: %w", e).WithHint(limitHint)
}

const limitHint = "raise a limit, or permit a scheme with fewer bits, or fewer buckets, in the workload"

// undecided is the error that nothing is known that takes less than a plan does.
func (s *session) undecided(what string, plan *planir.Plan) error {
	taken, err := s.taken(plan)
	if err != nil {
		return err
	}
	return s.exceeds(what, s.broken(plan, taken), taken)
}

// measure is what is minimised.
func (s *session) measure() problem.Measure {
	if s.goal != "" {
		return s.goal
	}
	return problem.Time
}
