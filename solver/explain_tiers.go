package solver

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// What limits of capacity tiers cost. Each limit is relaxed to its next value, and dropped; the tiers are solved again,
// starting from the present ones. A limit binds where something better is found.

// TierOutcome is what a choice of capacity tiers comes to: expected, and of a token in all layers where it says so.
type TierOutcome struct {
	ChunkTokens int     `json:"chunk_tokens"`
	Capacities  []int   `json:"capacities"` // in use
	TokenNS     float64 `json:"token_ns"`   // of a token's experts
	EnergyNJ    float64 `json:"energy_nj_modelled"`
	Groups      int64   `json:"groups"`      // of a chunk
	Experts     float64 `json:"npu_experts"` // share of the experts that are on the NPU
	Off         float64 `json:"off"`         // share of the routed rows that the NPU does not compute
	Drop        float64 `json:"drop"`        // share of them that nobody computes
	Lost        float64 `json:"lost"`        // share of the squared norm that goes with those
	// Gap is how much better a choice could be in what is minimised first, relative to this one: 0 where it is
	// proved. Nil of what a plan stores, which says it itself.
	Gap *float64 `json:"gap,omitempty"`

	of       *TierInstance
	solution problem.TierSolution
	rank     []float64 // less is better, the first that differs decides
}

// TierLimit is a limit of capacity tiers, what the tiers take of it, and what relaxing it would buy, found by solving
// again from the tiers as they are.
type TierLimit struct {
	Key   string `json:"key"`            // "experts.tiers"
	Value string `json:"value"`          // as people write it
	Used  string `json:"used,omitempty"` // what the tiers take of it
	Binds bool   `json:"binds"`          // without it something better is found
	// To is the next value that could change anything, Next what is best with it, Free without the limit. Nil where
	// nothing better was found.
	To   string       `json:"to,omitempty"`
	Next *TierOutcome `json:"next,omitempty"`
	Free *TierOutcome `json:"free,omitempty"`
	Note string       `json:"note,omitempty"`
}

// TierStory is what binds the capacity tiers of a plan.
type TierStory struct {
	Now TierOutcome `json:"now"`
	// Anew: the inputs are not those of the plan, and Now is what they give.
	Anew   bool        `json:"solved_anew,omitempty"`
	Limits []TierLimit `json:"limits"`
}

// TierLimitsOf tells for every limit of a plan's capacity tiers whether it binds, by solving again with the limit
// relaxed and without it. The plan's program stays as it is, and so does the room that it leaves. in.Loads are those
// that the plan was solved with.
func TierLimitsOf(ctx context.Context, in Input, plan *planir.Plan) (*TierStory, error) {
	if plan.Tiers == nil || in.Loads == nil {
		return nil, diag.New(diag.ClassInput, "explain tiers: the plan has none, or no loads are given").
			WithHint("hetc solve --loads chooses them")
	}
	if in.Workload == nil {
		in.Workload = workload.Default()
	}
	npu, err := staticProcessor(in.SoC)
	if err != nil {
		return nil, err
	}
	t := &tierTrial{ctx: ctx, in: in, plan: plan.Tiers, room: (&request{in: in}).tierRoom(plan, npu)}
	if t.x, err = PoseTiers(in, plan.Tiers.Schemes, t.room); err != nil {
		return nil, err
	}
	out := &TierStory{}
	if s := t.x.stored(plan.Tiers); s != nil {
		out.Now = outcome(t.x, *s)
	} else {
		out.Anew = true
		t.in.Tell(Progress{Phase: "solve tiers again"})
		s, err := t.x.Solve(ctx, in.Engine)
		if err != nil {
			return nil, err
		}
		out.Now = outcome(t.x, s)
		out.Now.gap()
	}
	t.now = &out.Now
	limits := t.limits(npu)
	for i, l := range limits {
		t.in.Tell(Progress{Phase: "limits of tiers", Done: i, All: len(limits), What: l.key})
		y, err := t.story(&l)
		if err != nil {
			return nil, err
		}
		out.Limits = append(out.Limits, y)
	}
	return out, nil
}

// tierTrial solves tiers again.
type tierTrial struct {
	ctx  context.Context
	in   Input
	plan *planir.Tiers
	// what the rest of the plan's program leaves to tiers
	room TierRoom
	// the problem as posed for the plan, and what the plan achieves in it
	x   *TierInstance
	now *TierOutcome
}

// tierLimit is a limit and how to relax it: of the input, before the problem is posed, or of the problem.
type tierLimit struct {
	key, value, used, to, note string
	next, free                 tierChange // nil: there is no such step
}

// tierChange relaxes one limit: it edits the input before the problem is posed, or the problem itself.
type tierChange struct {
	input   func(*Input)
	problem func(*problem.Tiers)
}

// possible reports whether there is such a change.
func (c *tierChange) possible() bool { return c.input != nil || c.problem != nil }

// solve has the changed problem solved, beginning with the tiers as they are.
func (t *tierTrial) solve(c *tierChange) (*TierOutcome, error) {
	in := t.in
	if c.input != nil {
		c.input(&in)
	}
	x, err := PoseTiers(in, t.plan.Schemes, t.room)
	if err != nil {
		return nil, err
	}
	if c.problem != nil {
		x.Problem.Bounds = maps.Clone(x.Problem.Bounds)
		c.problem(x.Problem)
	}
	x.Problem.Start = t.x.translate(t.now.solution, x)
	s, err := x.inOrder(t.ctx, in.Engine)
	if err != nil || s.Choices == nil {
		return nil, err
	}
	o := outcome(x, s)
	o.gap()
	return &o, nil
}

// gap fills in Gap from what the engine proved.
func (o *TierOutcome) gap() {
	gap := 0.0
	if s := &o.solution; s.Objective > s.Bound {
		gap = round6(float64(s.Objective-s.Bound) / float64(s.Objective))
	}
	o.Gap = &gap
}

// story solves a limit's steps: without the limit first, since the next value is pointless where that gains nothing.
func (t *tierTrial) story(l *tierLimit) (TierLimit, error) {
	y := TierLimit{Key: l.key, Value: l.value, Used: l.used, Note: l.note}
	solve := func(c *tierChange) (*TierOutcome, error) {
		if !c.possible() {
			return nil, nil
		}
		o, err := t.solve(c)
		if err != nil {
			return nil, fmt.Errorf("explain tiers: relax %s: %w", l.key, err)
		}
		if o == nil || !t.beats(o) {
			if o != nil && *o.Gap > 0 {
				y.Note = fmt.Sprintf("nothing better was found, and up to %.2g %% is not ruled out", 100**o.Gap)
			}
			return nil, nil
		}
		return o, nil
	}
	var err error
	if y.Free, err = solve(&l.free); err != nil {
		return y, err
	}
	if y.Free == nil && l.free.possible() { // more of it would not help, then
		return y, nil
	}
	if y.Next, err = solve(&l.next); err != nil {
		return y, err
	}
	if y.Next != nil {
		y.To = l.to
	}
	if y.Binds = y.Next != nil || y.Free != nil; !y.Binds {
		return y, nil
	}
	if s := y.Free; s != nil && t.keeps(s) {
		y.Note = "what was found without it keeps it: not the limit, the end of solve's search kept it from being found"
		y.Binds = false
	}
	return y, nil
}

// limits lists what restricts the tiers, in a fixed order: what the workload chooses from, what the processor holds,
// time, and what may be dropped. Steps to the next value are a tenth, at least 1, where values are continuous.
func (t *tierTrial) limits(npu *socs.Processor) (out []tierLimit) {
	p, w, now := t.x.Problem, t.in.Workload.Experts, t.now
	// Two ways to relax: experts changes what the workload says, so that the problem is posed anew; posed changes a
	// number of the problem itself.
	experts := func(edit func(*workload.Experts)) tierChange {
		return tierChange{input: func(in *Input) {
			in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { edit(&w.Experts) })
		}}
	}
	posed := func(edit func(*problem.Tiers)) tierChange { return tierChange{problem: edit} }
	bytes := func(n int64) string { return unit.Bytes(n).String() }
	more := func(v int64) int64 { return v + max(1, v/10) }

	l := tierLimit{key: "experts.tiers", value: fmt.Sprint(p.MaxTiers), used: fmt.Sprint(len(now.Capacities))}
	if most := len(p.Capacities); p.MaxTiers < most {
		l.to, l.next = fmt.Sprint(p.MaxTiers+1), posed(func(p *problem.Tiers) { p.MaxTiers++ })
		l.free = posed(func(p *problem.Tiers) { p.MaxTiers = most })
	} else {
		l.note = "all capacities there are may be in use"
	}
	out = append(out, l)

	// Without the list, solve would try all multiples of the tile up to the largest load.
	if own := w.Capacities; len(own) > 0 {
		largest := 0
		for _, layer := range p.Chunks[len(p.Chunks)-1].Layers {
			for _, rows := range layer.Rows {
				largest = max(largest, int(slices.Max(rows)))
			}
		}
		all := union(own, capacities(p.Tile, largest))
		l := tierLimit{key: "experts.capacities", value: fmt.Sprint(own), used: fmt.Sprint(now.Capacities)}
		l.free = experts(func(e *workload.Experts) { e.Capacities = all })
		if len(all) == len(own) || len(all) >= problem.MaxTierChoices {
			l.free, l.note = tierChange{}, "it has all that are tried without it"
		}
		out = append(out, l)
	}
	out = append(out, t.chunks())

	// What the processor holds in one graph, in its address space, and as graphs at all: the last two less what the
	// program takes.
	if most := npu.GraphBytes; most > 0 {
		holds := problem.MostExperts(most, p.ExpertBytes)
		largest := 0
		for i := range t.plan.Layers {
			for _, g := range t.plan.Layers[i].Groups {
				largest = max(largest, len(g.Experts))
			}
		}
		next := int64(holds+1) * p.ExpertBytes
		graph := func(n int64) tierChange {
			return tierChange{input: func(in *Input) { in.SoC = withGraphBytes(in.SoC, npu.Name, n) }}
		}
		l := tierLimit{key: npu.Name + ".graph_bytes", value: fmt.Sprintf("%s: %d experts", bytes(most), holds),
			used: fmt.Sprintf("%d experts", largest),
			to:   bytes(next), next: graph(next), free: graph(0)}
		if holds >= t.x.Loads.Experts {
			l.next, l.free, l.note = tierChange{}, tierChange{}, "a graph holds all experts of a layer"
		}
		out = append(out, l)
	}
	if most := p.RegionBytes; most > 0 {
		// Experts is a share of those of all layers, each of which the region holds once.
		held := int64(math.Round(now.Experts * float64(t.x.Loads.Experts*len(t.x.Layers))))
		next := more(p.NPUExperts()) * p.ExpertBytes
		out = append(out, tierLimit{key: npu.Name + ".address_bytes",
			value: fmt.Sprintf("%s left by the program: %d experts",
				bytes(most), p.NPUExperts()), used: fmt.Sprintf("%d experts", held),
			to: fmt.Sprintf("%s: %d experts",
				bytes(next), next/p.ExpertBytes), next: posed(func(p *problem.Tiers) { p.RegionBytes = next }),
			free: posed(func(p *problem.Tiers) { p.RegionBytes = 0 })})
	}
	if most := p.MaxGraphs; most != 0 {
		most = max(0, most)
		out = append(out, tierLimit{key: npu.Name + ".max_graphs", value: fmt.Sprintf("%d left by the program", most),
			used: fmt.Sprint(now.Groups),
			to:   fmt.Sprint(more(most)), next: posed(func(p *problem.Tiers) { p.MaxGraphs = more(most) }),
			free: posed(func(p *problem.Tiers) { p.MaxGraphs = 0 })})
	}
	if w.Serial {
		out = append(out, tierLimit{key: "experts.serial", value: "true",
			free: experts(func(e *workload.Experts) { e.Serial = false })})
	}
	if us := w.MaxUSToken; us > 0 {
		text := func(v float64) string { return fmt.Sprintf("%.6g us", v) }
		out = append(out, tierLimit{key: workload.KeyExperts, value: text(us), used: text(now.TokenNS / 1e3),
			to:   text(1.1 * us),
			next: experts(func(e *workload.Experts) { e.MaxUSToken = 1.1 * us }),
			free: experts(func(e *workload.Experts) { e.MaxUSToken = 1e9 })})
	}
	// Limits of what may be dropped, in parts per million; 1e6 means that all may.
	shares := []struct {
		key   string
		of    int64
		used  float64
		field func(*problem.Tiers) *int64
	}{
		{"experts.max_drop", p.MaxDropPPM, now.Drop, func(p *problem.Tiers) *int64 { return &p.MaxDropPPM }},
		{"experts.max_layer_drop", p.MaxLayerDropPPM, t.layers(func(y *planir.TierLayer) float64 { return y.Drop }),
			func(p *problem.Tiers) *int64 { return &p.MaxLayerDropPPM }},
		{"experts.max_lost", p.MaxLostPPM, now.Lost, func(p *problem.Tiers) *int64 { return &p.MaxLostPPM }},
		{"experts.max_layer_lost", p.MaxLayerLostPPM, t.layers(func(y *planir.TierLayer) float64 { return y.Lost }),
			func(p *problem.Tiers) *int64 { return &p.MaxLayerLostPPM }},
	}
	for _, x := range shares {
		if !p.Prune || x.of >= 1e6 {
			continue
		}
		text := func(v float64) string { return fmt.Sprintf("%.4g %%", 100*v) }
		next := min(1e6, more(x.of))
		out = append(out, tierLimit{key: x.key, value: text(float64(x.of) / 1e6), used: text(x.used),
			to:   text(float64(next) / 1e6),
			next: posed(func(p *problem.Tiers) { *x.field(p) = next }),
			free: posed(func(p *problem.Tiers) { *x.field(p) = 1e6 })})
	}
	return out
}

// chunks is the limit of chunk lengths: the next is twice the longest, and without it come all that the loads observe
// at least twice.
func (t *tierTrial) chunks() tierLimit {
	var lengths []int
	for i := range t.x.Problem.Chunks {
		lengths = append(lengths, t.x.Problem.Chunks[i].Tokens)
	}
	l := tierLimit{key: "experts.chunks", value: fmt.Sprint(lengths), used: fmt.Sprint(t.now.ChunkTokens)}
	base, observed := t.x.Loads.ChunkTokens, t.x.Loads.Chunks*t.x.Loads.ChunkTokens
	all := slices.Clone(lengths)
	for n := base; 2*n <= observed && n <= t.in.Model.MaxContext; n *= 2 {
		if with := union(all, []int{n}); multiple(with) <= observed {
			all = with
		}
	}
	change := func(list []int) tierChange {
		return tierChange{input: func(in *Input) {
			in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { w.Experts.Chunks = list })
		}}
	}
	longest := slices.Max(lengths)
	if len(all) == len(lengths) {
		l.note = "the loads observe no other length twice"
		return l
	}
	l.free = change(all)
	if next := 2 * longest; slices.Contains(all, next) {
		l.to, l.next = fmt.Sprintf("%d as well", next), change(union(lengths, []int{next}))
	}
	return l
}

// layers is the most of any layer of the plan.
func (t *tierTrial) layers(of func(*planir.TierLayer) float64) (most float64) {
	for i := range t.plan.Layers {
		most = max(most, of(&t.plan.Layers[i]))
	}
	return most
}

// union is both lists, ascending.
func union(a, b []int) []int {
	out := slices.Concat(a, b)
	slices.Sort(out)
	return slices.Compact(out)
}

// withGraphBytes is a SoC whose processor has another limit of a graph, 0: none.
func withGraphBytes(soc *socs.SoC, proc string, bytes int64) *socs.SoC {
	out := *soc
	out.Processors = slices.Clone(soc.Processors)
	out.Processor(proc).GraphBytes = bytes
	return &out
}

// beats reports whether an outcome is better than the tiers as they are.
func (t *tierTrial) beats(o *TierOutcome) bool {
	for i, v := range o.rank {
		if now := t.now.rank[i]; math.Abs(v-now) > 1e-9*math.Abs(now) {
			return v < now
		}
	}
	return false
}

// keeps reports whether an outcome keeps the limits as they are, and is better under them.
func (t *tierTrial) keeps(o *TierOutcome) bool {
	s := o.of.translate(o.solution, t.x)
	if s == nil || t.x.Problem.Table(s.Chunk).Broken(s.Choices) != "" {
		return false
	}
	same := outcome(t.x, *s)
	return t.beats(&same)
}

// translate is a solution in the numbers of another instance, nil where that has no such chunk length or capacity.
func (x *TierInstance) translate(s problem.TierSolution, to *TierInstance) *problem.TierSolution {
	tokens := x.Problem.Chunks[s.Chunk].Tokens
	out := &problem.TierSolution{Chunk: slices.IndexFunc(to.Problem.Chunks,
		func(c problem.TierChunk) bool { return c.Tokens == tokens })}
	if out.Chunk < 0 {
		return nil
	}
	for _, list := range s.Choices {
		var choices []int
		for _, k := range list {
			if k > 0 {
				rows := x.Problem.Capacities[k-1]
				if k = 1 + slices.Index(to.Problem.Capacities, rows); k == 0 {
					return nil
				}
			}
			choices = append(choices, k)
		}
		out.Choices = append(out.Choices, choices)
	}
	return out
}

// stored are a plan's tiers as a solution, nil where they are none of this instance.
func (x *TierInstance) stored(t *planir.Tiers) *problem.TierSolution {
	p := x.Problem
	s := &problem.TierSolution{Chunk: slices.IndexFunc(p.Chunks,
		func(c problem.TierChunk) bool { return c.Tokens == t.ChunkTokens }), Bound: t.Bound}
	if s.Chunk < 0 || len(t.Layers) != len(x.Layers) || t.Experts != x.Loads.Experts {
		return nil
	}
	for i := range t.Layers {
		choices := make([]int, t.Experts)
		for _, g := range t.Layers[i].Groups {
			k := 1 + slices.Index(p.Capacities, g.Rows)
			if k == 0 {
				return nil
			}
			for _, entry := range g.Experts {
				choices[entry] = k
			}
		}
		s.Choices = append(s.Choices, choices)
	}
	table := p.Table(s.Chunk)
	total := table.Total(s.Choices)
	s.Objective = table.Of(p.Measure(), total)
	if table.Broken(s.Choices) != "" || total.NS != t.ExpectNS || s.Objective != t.Objective {
		return nil
	}
	return s
}

// outcome evaluates a solution, per token and in shares. Its rank lists the measures in the order in which they were
// minimised.
func outcome(x *TierInstance, s problem.TierSolution) TierOutcome {
	p := x.Problem
	table := p.Table(s.Chunk)
	c := table.Total(s.Choices)
	tokens := float64(p.Chunks[s.Chunk].Tokens)
	o := TierOutcome{
		ChunkTokens: p.Chunks[s.Chunk].Tokens, Groups: c.Launches, TokenNS: float64(c.NS) / tokens,
		EnergyNJ: float64(c.EnergyNJ) / tokens,
		Experts:  share(float64(c.Experts), float64(x.Loads.Experts*len(x.Layers))), Off: share(float64(c.Off),
			float64(c.Rows)), Drop: share(float64(c.Drop), float64(c.Rows)),
		Lost: share(float64(c.Lost), problem.SaliencyOne*float64(len(x.Layers))), of: x, solution: s,
	}
	used := map[int]bool{}
	for _, list := range s.Choices {
		for _, k := range list {
			if k > 0 {
				used[p.Capacities[k-1]] = true
			}
		}
	}
	o.Capacities = slices.Sorted(maps.Keys(used))
	for _, m := range x.order() {
		v := map[problem.TierMeasure]float64{problem.TierTime: o.TokenNS, problem.TierEnergy: o.EnergyNJ,
			problem.TierLaunches: float64(c.Launches) / tokens,
			problem.TierOff:      o.Off, problem.TierLost: o.Lost}
		o.rank = append(o.rank, v[m])
	}
	return o
}
