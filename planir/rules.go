package planir

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

// Rule is one condition of legality. Rules look at the plan alone; whether it fits a model and a
// SoC is planir/check's question.
type Rule struct {
	ID       string
	Sentence string
	check    func(*checker)
}

// Rules lists every rule in the order it is checked. Later rules rely on earlier ones: checking
// stops after the first rule that is broken.
var Rules = []Rule{
	{"P001", "the schema is this version's, every name is unique, ordered and well formed, every size within bounds", (*checker).names},
	{"P002", "every reference resolves: processors, graphs, buffers, packs, weights, flags, programs", (*checker).references},
	{"P003", "every graph is valid, and its processor executes its operators, schemes and rows, and holds its weights", (*checker).graphs},
	{"P004", "a step's views lie within their buffers and have the types and shapes of its graph's operands", (*checker).views},
	{"P005", "a step's weight references lie within their packs and have the shapes of its graph's weights", (*checker).weights},
	{"P006", "of every weight a program uses, its steps use each column and row of the matrix exactly once", (*checker).tiling},
	{"P007", "each flag of a section is set by exactly one step", (*checker).flags},
	{"P008", "lanes never wait for each other in a circle", (*checker).deadlock},
	{"P009", "two steps that touch the same elements, one of them writing, are ordered by flags", (*checker).races},
	{"P010", "every element that is read has been written before", (*checker).written},
	{"P011", "processors that share a core have steps in one section only when it is the first core of each, where they take turns on one thread, and never on a simulated SoC", (*checker).cores},
	{"P012", "the decider names a program for every number of tokens up to the context; ids enter and logits leave", (*checker).decider},
	{"P013", "shares of one operator use the same scheme", (*checker).schemes},
	{"P014", "every batch has one program, whose rows are of a sequence each, and the cache and the logits have a place for every sequence; in all other programs rows are of one sequence", (*checker).batches},
	{"P015", "with capacity tiers every expert of a layer is in one group or on the CPU; a group has one of the tiers, and its experts fit a graph; tiers are multiples of the tile, no more than may be, and all in use; there are no more groups, and no more rows are dropped and of their norm lost, than may be; a layer takes the time of the longer processor, or of both", (*checker).tiers},
	{"P016", "a processor that bakes weights into its artifacts reads baked packs only, whole, which nobody else reads; every step of such a graph reads the same ones, and so do the graphs of one context", (*checker).baking},
}

// Check applies every rule and returns all findings of the first rule that is broken.
func Check(p *Plan) diag.List {
	c := &checker{p: p}
	for i := range Rules {
		c.rule = &Rules[i]
		c.rule.check(c)
		if len(c.found) > 0 {
			break
		}
	}
	c.found.Sort()
	return c.found
}

type checker struct {
	p     *Plan
	rule  *Rule
	found diag.List

	buffers map[string]*Buffer
	graphsN map[string]*Graph
	packs   map[string]*Pack
	weightN map[string]*op.Weight
	runs    map[*Section]*run // by deadlock, for races and written
}

func (c *checker) fail(path, format string, args ...any) {
	if len(c.found) >= 100 {
		return
	}
	d := diag.New(diag.ClassIllegal, format, args...).WithCode(c.rule.ID).WithHint("rule %s: %s", c.rule.ID, c.rule.Sentence)
	d.Path = path
	c.found = append(c.found, d)
}

// Limits of a plan: far above any real one, low enough that checking stays cheap.
const (
	maxSteps   = 4096 // of one section
	maxItems   = 1 << 16
	maxProcs   = 64
	maxCore    = 4095
	maxContext = 1 << 22
	maxBatch   = 256
	maxLayers  = 4096
	maxExperts = 4096
)

func (c *checker) names() {
	p := c.p
	if p.Schema != Schema {
		c.fail("schema", "schema is %q, want %q", p.Schema, Schema)
	}
	if p.MaxContext < 1 || p.MaxContext > maxContext {
		c.fail("max_context", "context is %d, want 1..%d", p.MaxContext, maxContext)
	}
	for i, b := range p.Batches {
		if b < 2 || b > maxBatch || i > 0 && p.Batches[i-1] >= b {
			c.fail(fmt.Sprintf("batches[%d]", i), "batches %v, want ascending numbers of 2..%d sequences", p.Batches, maxBatch)
		}
	}
	if p.KV != op.F32 && p.KV != op.F16 {
		c.fail("kv", "cache type is %q, want f32 or f16", p.KV)
	}
	if k := p.Program.Cache; k.Layers < 0 || k.Layers > maxLayers || k.KVHeads < 0 || k.HeadDim < 0 || k.Sequences < 0 || k.Sequences > maxBatch ||
		k.MaxContext > maxContext || float64(k.Layers)*float64(k.KVHeads)*float64(k.HeadDim)*float64(k.MaxContext)*maxBatch > 1<<50 {
		c.fail("program.cache", "the cache %+v is out of range", k)
	}
	unique := func(path string, n int, ordered bool, name func(int) string) {
		if n > maxItems {
			c.fail(path, "%d entries, want at most %d", n, maxItems)
			return
		}
		seen := make(map[string]bool, n)
		for i := 0; i < n; i++ {
			s := name(i)
			wrong := func(format string, args ...any) { c.fail(fmt.Sprintf("%s[%d]", path, i), format, args...) }
			switch {
			case s == "" || len(s) > 200:
				wrong("name is empty or longer than 200 bytes")
			case strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }):
				wrong("name %q has other than printable ASCII characters", s)
			case seen[s]:
				wrong("name %q appears twice", s)
			case ordered && i > 0 && name(i-1) > s:
				wrong("%q follows %q, want ascending order", s, name(i-1))
			}
			seen[s] = true
		}
	}
	pr := &p.Program
	if len(p.Procs) > maxProcs {
		c.fail("procs", "%d processors, want at most %d", len(p.Procs), maxProcs)
	}
	unique("procs", len(p.Procs), true, func(i int) string { return p.Procs[i].Name })
	for i := range p.Procs {
		for _, core := range p.Procs[i].Cores {
			if core < 0 || core > maxCore {
				c.fail(fmt.Sprintf("procs[%d].cores", i), "core %d, want 0..%d", core, maxCore)
			}
		}
		if m := p.Procs[i].Memory; m != nil {
			if err := m.Validate(); err != nil {
				c.fail(fmt.Sprintf("procs[%d].memory", i), "%v", err)
			}
		}
	}
	unique("folds", len(p.Folds), true, func(i int) string { return p.Folds[i] })
	unique("program.buffers", len(pr.Buffers), false, func(i int) string { return pr.Buffers[i].Name })
	unique("program.weights", len(pr.Weights), false, func(i int) string { return pr.Weights[i].Name })
	unique("program.packs", len(pr.Packs), false, func(i int) string { return pr.Packs[i].Name })
	unique("program.graphs", len(pr.Graphs), false, func(i int) string { return pr.Graphs[i].Name })
	unique("program.programs", len(pr.Programs), false, func(i int) string { return pr.Programs[i].Name })
	unique("decisions", len(p.Decisions), false, func(i int) string {
		return fmt.Sprintf("%s@%d", p.Decisions[i].Node, p.Decisions[i].Rows)
	})
	for i := range p.Decisions {
		switch d := &p.Decisions[i]; d.Strategy {
		case Single, WeightCentric, ActivationDivide, Hybrid, Padding, Pipe, Paired:
		default:
			c.fail(fmt.Sprintf("decisions[%d].strategy", i), "unknown strategy %q of %s at %d rows", d.Strategy, d.Node, d.Rows)
		}
	}
	for i, q := range p.Quality {
		if q.Phase != "prefill" && q.Phase != "decode" || i > 0 && p.Quality[i-1].Phase >= q.Phase {
			c.fail(fmt.Sprintf("quality[%d].phase", i), "phase %q, want decode, then prefill", q.Phase)
		}
		if !(q.KL >= 0 && q.KL <= math.MaxFloat32 && q.MaxKL >= 0 && q.MaxKL <= math.MaxFloat32) {
			c.fail(fmt.Sprintf("quality[%d]", i), "mean KL %v of at most %v, want numbers of at least 0", q.KL, q.MaxKL)
		}
	}
	if m := p.Memory; m != nil {
		for _, n := range []int64{m.Weights, m.PrefillWeights, m.DecodeWeights, m.Prepacked, m.Tables, m.Cache, m.Pool, m.Work, m.Fixed, m.Total, m.Max} {
			if n < 0 || n > 1<<60 {
				c.fail("memory", "%d bytes, want 0..2^60", n)
			}
		}
	}
	for i := range pr.Programs {
		ph := &pr.Programs[i]
		if ph.Rows < 1 || ph.Phase != "prefill" && ph.Phase != "decode" {
			c.fail(fmt.Sprintf("program.programs[%d]", i), "phase %q with %d rows, want prefill or decode with at least 1", ph.Phase, ph.Rows)
		}
		unique(fmt.Sprintf("program.programs[%d].sections", i), len(ph.Sections), false, func(j int) string {
			return fmt.Sprintf("%s@%d", ph.Sections[j].Name, ph.Sections[j].First)
		})
		for j := range ph.Sections {
			s := &ph.Sections[j]
			at := fmt.Sprintf("program.programs[%d].sections[%d]", i, j)
			unique(at+".lanes", len(s.Lanes), true, func(k int) string { return s.Lanes[k].Proc })
			steps := 0
			for _, l := range s.Lanes {
				steps += len(l.Steps)
			}
			if len(s.Lanes) > maxProcs || steps > maxSteps || s.Layers < 0 || s.Layers > maxLayers || s.First < 0 || s.First > maxLayers-s.Layers || s.Layers == 0 && s.First != 0 || s.Flags < 0 || s.Flags > steps {
				c.fail(at, "%d lanes, %d steps, %d layers, %d flags: out of range", len(s.Lanes), steps, s.Layers, s.Flags)
			}
		}
	}
}

// stepPath is the data path of a step, written when something is wrong there.
type stepPath struct{ program, section, lane, step int }

func (p stepPath) in(part string) string {
	return fmt.Sprintf("program.programs[%d].sections[%d].lanes[%d].steps[%d]%s", p.program, p.section, p.lane, p.step, part)
}

// eachStep calls f for every step with its data path.
func (c *checker) eachStep(f func(ph *Phase, s *Section, l *Lane, st *Step, path stepPath)) {
	for i := range c.p.Program.Programs {
		ph := &c.p.Program.Programs[i]
		for j := range ph.Sections {
			s := &ph.Sections[j]
			for k := range s.Lanes {
				l := &s.Lanes[k]
				for m := range l.Steps {
					f(ph, s, l, &l.Steps[m], stepPath{i, j, k, m})
				}
			}
		}
	}
}

func (c *checker) references() {
	pr := &c.p.Program
	if len(c.p.Folds) > 0 && c.p.Calibration() == "" {
		c.fail("folds", "groups %q are folded, and no calibration is among the inputs", c.p.Folds)
	}
	c.buffers, c.graphsN, c.packs, c.weightN = map[string]*Buffer{}, map[string]*Graph{}, map[string]*Pack{}, map[string]*op.Weight{}
	for i := range pr.Buffers {
		c.buffers[pr.Buffers[i].Name] = &pr.Buffers[i]
	}
	for i := range pr.Graphs {
		g := &pr.Graphs[i]
		c.graphsN[g.Name] = g
		if c.p.Proc(g.Proc) == nil {
			c.fail(fmt.Sprintf("program.graphs[%d].proc", i), "unknown processor %q", g.Proc)
		}
	}
	for i := range pr.Weights {
		w := &pr.Weights[i]
		at := 0
		for _, r := range w.Layers {
			if r.From < at || r.To <= r.From || r.To > maxLayers {
				c.fail(fmt.Sprintf("program.weights[%d].layers", i), "layers %v, want ascending ranges up to %d", w.Layers, maxLayers)
			}
			at = r.To + 1
		}
		if w.ScaleOf != "" {
			number := w.K == 1 && w.N >= 1 && w.N <= op.MaxScales && w.FoldCols == ""
			if !number && w.K != 2 || len(w.From) > 0 || len(w.Const) > 0 || len(w.Interleave) > 0 || w.Experts != 0 || w.Plus != 0 || w.Transposed {
				c.fail(fmt.Sprintf("program.weights[%d]", i), "weight %q is the scale of %q, and [%d,%d] from %v, want 1..%d computed numbers, or the steps [2,N] of a grid", w.Name, w.ScaleOf, w.K, w.N, w.From, op.MaxScales)
			}
			if c.p.Calibration() == "" {
				c.fail(fmt.Sprintf("program.weights[%d]", i), "weight %q is the static scale of %q, and no calibration is among the inputs", w.Name, w.ScaleOf)
			}
		}
		for _, f := range []string{w.FoldRows, w.FoldCols} {
			if f != "" && !slices.Contains(c.p.Folds, f) {
				c.fail(fmt.Sprintf("program.weights[%d]", i), "weight %q is folded with group %q, and the plan folds %q", w.Name, f, c.p.Folds)
			}
		}
		if w.FoldSource < 0 || w.FoldSource >= max(1, len(w.From)) && w.ScaleOf == "" || w.FoldSource != 0 && w.FoldCols == "" {
			c.fail(fmt.Sprintf("program.weights[%d].fold_source", i), "source %d of %d is folded by %q", w.FoldSource, len(w.From), w.FoldCols)
		}
		if w.Experts < 0 || w.Experts > maxExperts {
			c.fail(fmt.Sprintf("program.weights[%d].experts", i), "%d experts, want 0..%d", w.Experts, maxExperts)
		}
		c.weightN[pr.Weights[i].Name] = &pr.Weights[i]
	}
	for i := range pr.Packs {
		k := &pr.Packs[i]
		c.packs[k.Name] = k
		if c.weightN[k.Weight] == nil {
			c.fail(fmt.Sprintf("program.packs[%d].weight", i), "unknown weight %q", k.Weight)
		}
	}
	if c.p.Proc(c.p.SoC.Control) == nil {
		c.fail("soc.control", "unknown processor %q", c.p.SoC.Control)
	}
	for i := range pr.Programs {
		for j, s := range pr.Programs[i].Sections {
			for k, l := range s.Lanes {
				if c.p.Proc(l.Proc) == nil || len(l.Steps) == 0 {
					c.fail(fmt.Sprintf("program.programs[%d].sections[%d].lanes[%d]", i, j, k), "lane of %q has %d steps, want a known processor with at least one", l.Proc, len(l.Steps))
				}
			}
		}
	}
	c.eachStep(func(ph *Phase, s *Section, l *Lane, st *Step, path stepPath) {
		g := c.graphsN[st.Run]
		switch {
		case g == nil:
			c.fail(path.in(".run"), "unknown graph %q", st.Run)
		case g.Proc != l.Proc:
			c.fail(path.in(".run"), "graph %q is for %q, and this is the lane of %q", st.Run, g.Proc, l.Proc)
		}
		for _, views := range [][]View{st.In, st.Out} {
			for _, v := range views {
				if c.buffers[v.Buffer] == nil {
					c.fail(path.in(""), "unknown buffer %q", v.Buffer)
				}
			}
		}
		for _, w := range st.W {
			k := c.packs[w.Pack]
			if k == nil {
				c.fail(path.in(".w"), "unknown pack %q", w.Pack)
				continue
			}
			wt := c.weightN[k.Weight]
			if wt == nil {
				continue // said above
			}
			if len(wt.Layers) > 0 && s.Layers == 0 {
				c.fail(path.in(".w"), "pack %q belongs to layers, and the section to none", w.Pack)
			}
			for l := s.First; len(wt.Layers) > 0 && l < s.First+s.Layers; l++ {
				if !wt.InLayer(l) {
					c.fail(path.in(".w"), "pack %q has layers %v, and the section runs layer %d", w.Pack, wt.Layers, l)
					break
				}
			}
		}
		for _, w := range st.Wait {
			if w.Flag < 0 || w.Flag >= s.Flags || w.Back && s.Layers == 0 {
				c.fail(path.in(".wait"), "flag %d of %d, back %v in a section of %d layers", w.Flag, s.Flags, w.Back, s.Layers)
			}
		}
		if st.Set != nil && (*st.Set < 0 || *st.Set >= s.Flags) {
			c.fail(path.in(".set"), "flag %d, want 0..%d", *st.Set, s.Flags-1)
		}
	})
	for i, d := range c.p.Decisions {
		for _, sh := range d.Shares {
			if c.p.Proc(sh.Proc) == nil {
				c.fail(fmt.Sprintf("decisions[%d]", i), "unknown processor %q", sh.Proc)
			}
		}
	}
	for i, d := range pr.Decider {
		if !slices.ContainsFunc(pr.Programs, func(ph Phase) bool { return ph.Name == d.Program }) {
			c.fail(fmt.Sprintf("program.decider[%d]", i), "unknown program %q", d.Program)
		}
	}
}

func (c *checker) graphs() {
	for i := range c.p.Program.Graphs {
		g := &c.p.Program.Graphs[i]
		path := fmt.Sprintf("program.graphs[%d]", i)
		if err := g.Graph.Validate(); err != nil {
			c.fail(path, "graph %q: %v", g.Name, err)
			continue
		}
		proc := c.p.Proc(g.Proc)
		places := g.Graph.State() || slices.ContainsFunc(g.Graph.Nodes, func(n op.Node) bool { return n.Op.Batch })
		if places && g.Graph.Rows() > 1 && !proc.DynamicRows {
			c.fail(path, "graph %q: processor %q computes all %d rows whatever a call has, and the cache must not see rows beyond it", g.Name, proc.Name, g.Graph.Rows())
		}
		for _, n := range g.Graph.Nodes {
			if !proc.Executes(n.Op.Kind) {
				c.fail(path, "graph %q: processor %q does not execute %q", g.Name, proc.Name, n.Op.Kind)
			}
			if n.Op.HasScheme() && !slices.Contains(proc.Schemes, n.Op.Scheme) {
				c.fail(path, "graph %q: processor %q does not execute scheme %q", g.Name, proc.Name, n.Op.Scheme)
			}
			if !proc.HasForm(n.Op.Scheme, n.Op.Form) {
				c.fail(path, "graph %q: processor %q does not execute form %q of scheme %q", g.Name, proc.Name, n.Op.Form, n.Op.Scheme)
			}
			if x := n.Op.Scheme; n.Op.Kind == op.Embed && x != "" && proc.Layouts[x.Weight()] != op.TilesLayout {
				c.fail(path, "graph %q: processor %q does not read weights %q in layout %q, in which rows are looked up", g.Name, proc.Name, x.Weight(), op.TilesLayout)
			}
		}
		var bytes int64
		for _, w := range g.Graph.Weights {
			if w.Layout != op.RowsLayout {
				bytes += int64(max(1, w.Experts)) * op.WeightBytes(w.Scheme, w.K, w.N)
			}
			if want := proc.Layouts[w.Scheme]; w.Layout != op.RowsLayout && w.Layout != want {
				c.fail(path, "graph %q: weight %q has layout %q, and processor %q reads %q", g.Name, w.Name, w.Layout, proc.Name, want)
			}
		}
		if proc.GraphBytes > 0 && bytes > proc.GraphBytes {
			c.fail(path, "graph %q holds %d bytes of weights, and one graph of processor %q at most %d", g.Name, bytes, proc.Name, proc.GraphBytes)
		}
	}
}

func (c *checker) views() {
	for i := range c.p.Program.Buffers {
		b := &c.p.Program.Buffers[i]
		if b.Type.Bytes() == 0 || b.Rows < 1 || b.Cols < 1 || int64(b.Rows)*int64(b.Cols) > 1<<33 {
			c.fail(fmt.Sprintf("program.buffers[%d]", i), "buffer %q: bad type or shape %s [%d,%d]", b.Name, b.Type, b.Rows, b.Cols)
			return
		}
	}
	check := func(path stepPath, part string, views []View, values []op.Value, what string) {
		if len(views) != len(values) {
			c.fail(path.in(part), "%d %s, and its graph has %d", len(views), what, len(values))
			return
		}
		for i, v := range views {
			b, want := c.buffers[v.Buffer], values[i]
			switch {
			case v.R0 < 0 || v.C0 < 0 || v.R1 <= v.R0 || v.C1 <= v.C0 || v.R1 > b.Rows || v.C1 > b.Cols:
				c.fail(path.in(part), "view %s is outside its buffer [%d,%d]", v, b.Rows, b.Cols)
			case b.Type != want.Type || v.R1-v.R0 != want.Rows || v.C1-v.C0 != want.Cols:
				c.fail(path.in(part), "view %s is %s [%d,%d], and operand %q of the graph is %s [%d,%d]", v, b.Type, v.R1-v.R0, v.C1-v.C0, want.Name, want.Type, want.Rows, want.Cols)
			}
		}
	}
	cache := c.p.Program.Cache
	c.eachStep(func(ph *Phase, s *Section, l *Lane, st *Step, path stepPath) {
		g := c.graphsN[st.Run]
		check(path, ".in", st.In, g.Graph.Inputs, "inputs")
		check(path, ".out", st.Out, g.Graph.Outputs, "outputs")
		if g.Graph.State() != (st.Heads != nil) {
			c.fail(path.in(".heads"), "graph %q uses the cache: %v, heads given: %v", g.Name, g.Graph.State(), st.Heads != nil)
		} else if h := st.Heads; h != nil {
			if h[0] < 0 || h[1] <= h[0] || h[1] > cache.KVHeads || s.Layers == 0 || s.First+s.Layers > cache.Layers || c.p.MaxContext != cache.MaxContext || c.p.KV != cache.Type {
				c.fail(path.in(".heads"), "heads %d..%d of layers %d..%d, and the cache is %+v", h[0], h[1], s.First, s.First+s.Layers, cache)
				return
			}
			for _, n := range g.Graph.Nodes {
				if n.Op.Sig().State && (n.Op.KVHeads != h[1]-h[0] || n.Op.HeadDim != cache.HeadDim || n.Op.KV != cache.Type) {
					c.fail(path.in(".heads"), "graph %q works on %d heads of %d %s, and the step gives it %d of %d %s", g.Name, n.Op.KVHeads, n.Op.HeadDim, n.Op.KV, h[1]-h[0], cache.HeadDim, cache.Type)
				}
			}
		}
		if st.R0 < 0 || st.R0 >= ph.Rows || st.ExpectNS < 0 {
			c.fail(path.in(""), "first row %d of %d, expected time %d ns: out of range", st.R0, ph.Rows, st.ExpectNS)
		}
	})
}

func (c *checker) weights() {
	for i := range c.p.Program.Packs {
		k := &c.p.Program.Packs[i]
		w := c.weightN[k.Weight]
		if k.K0 < 0 || k.N0 < 0 || k.K1 <= k.K0 || k.N1 <= k.N0 || k.K1 > w.K || k.N1 > w.N || k.Bytes < 1 || k.Bytes > 1<<40 {
			c.fail(fmt.Sprintf("program.packs[%d]", i), "pack %q [%d:%d,%d:%d] of %d bytes is outside weight %q [%d,%d]", k.Name, k.K0, k.K1, k.N0, k.N1, k.Bytes, w.Name, w.K, w.N)
		}
	}
	c.eachStep(func(ph *Phase, s *Section, l *Lane, st *Step, path stepPath) {
		specs := c.graphsN[st.Run].Graph.Weights
		if len(st.W) != len(specs) {
			c.fail(path.in(".w"), "%d weights, and its graph has %d", len(st.W), len(specs))
			return
		}
		proc := c.p.Proc(l.Proc)
		for i, r := range st.W {
			k, spec := c.packs[r.Pack], specs[i]
			switch {
			case r.C0 < 0 || r.C1 <= r.C0 || r.C1 > k.N1-k.N0:
				c.fail(path.in(".w"), "%s is outside its pack of %d columns", r, k.N1-k.N0)
			case k.K1-k.K0 != spec.K || k.Experts != spec.Experts || r.C1-r.C0 != spec.N || k.Scheme != spec.Scheme || k.Layout != spec.Layout:
				c.fail(path.in(".w"), "%s is %s %s [%d,%d], and weight %q of the graph is %s %s [%d,%d]", r, k.Scheme, k.Layout, k.K1-k.K0, r.C1-r.C0, spec.Name, spec.Scheme, spec.Layout, spec.K, spec.N)
			case spec.Layout != op.RowsLayout && (r.C0 != 0 || r.C1 != k.N1-k.N0):
				if !proc.WeightRanges {
					c.fail(path.in(".w"), "%s is part of a pack, and processor %q loads whole packs only", r, proc.Name)
				} else if t := max(1, proc.Tile.N); r.C0%t != 0 || r.C1%t != 0 && r.C1 != k.N1-k.N0 {
					c.fail(path.in(".w"), "%s does not start and end on tiles of %d columns", r, t)
				}
			}
		}
	})
}

// selects reports whether a section copies one row, which its products then are of.
func (c *checker) selects(s *Section) bool {
	return slices.ContainsFunc(s.Lanes, func(l Lane) bool {
		return slices.ContainsFunc(l.Steps, func(st Step) bool {
			return slices.ContainsFunc(c.graphsN[st.Run].Graph.Nodes, func(n op.Node) bool { return n.Op.Kind == op.SelectRow })
		})
	})
}

// tiling adds up the areas a node's steps use and compares with the weight: with disjointness, each
// element is then used exactly once per row of activations.
func (c *checker) tiling() {
	type rect struct{ k0, k1, n0, n1, r0, r1 int }
	for i := range c.p.Program.Programs {
		ph := &c.p.Program.Programs[i]
		for j := range ph.Sections {
			s := &ph.Sections[j]
			used := map[string][]rect{}
			var order []string
			tokens := ph.Rows
			if c.selects(s) {
				tokens = 1 // what else is computed is padding
			}
			for _, l := range s.Lanes {
				for _, st := range l.Steps {
					g := c.graphsN[st.Run]
					for wi, r := range st.W {
						if g.Graph.Weights[wi].Layout == op.RowsLayout {
							continue
						}
						k := c.packs[r.Pack]
						reader := slices.IndexFunc(g.Graph.Nodes, func(n op.Node) bool { return slices.Contains(n.W, g.Graph.Weights[wi].Name) })
						if reader < 0 {
							continue // its graph is not valid
						}
						key := st.nodeOf(&g.Graph, reader) + "\x00" + k.Weight
						if used[key] == nil {
							order = append(order, key)
						}
						rows := g.Graph.Nodes[0].Op.M
						used[key] = append(used[key], rect{k.K0, k.K1, k.N0 + r.C0, k.N0 + r.C1, st.R0, min(st.R0+rows, tokens)})
					}
				}
			}
			for _, key := range order {
				rs := used[key]
				node, weight, _ := strings.Cut(key, "\x00")
				w := c.weightN[weight]
				rows := 0
				area := int64(0)
				for a, r := range rs {
					rows = max(rows, r.r1)
					area += int64(r.k1-r.k0) * int64(r.n1-r.n0) * int64(r.r1-r.r0)
					for _, q := range rs[:a] {
						if r.k0 < q.k1 && q.k0 < r.k1 && r.n0 < q.n1 && q.n0 < r.n1 && r.r0 < q.r1 && q.r0 < r.r1 {
							c.fail(fmt.Sprintf("program.programs[%d].sections[%d]", i, j), "node %q uses rows %d:%d columns %d:%d of weight %q twice", node, max(r.k0, q.k0), min(r.k1, q.k1), max(r.n0, q.n0), min(r.n1, q.n1), weight)
						}
					}
				}
				if want := int64(w.K) * int64(w.N) * int64(rows); area != want {
					c.fail(fmt.Sprintf("program.programs[%d].sections[%d]", i, j), "node %q uses %d multiplications of weight %q [%d,%d] for %d rows, want %d", node, area, weight, w.K, w.N, rows, want)
				}
			}
		}
	}
}

func (c *checker) flags() {
	for i := range c.p.Program.Programs {
		for j := range c.p.Program.Programs[i].Sections {
			s := &c.p.Program.Programs[i].Sections[j]
			setters := make([]int, s.Flags)
			for _, l := range s.Lanes {
				for _, st := range l.Steps {
					if st.Set != nil {
						setters[*st.Set]++
					}
				}
			}
			for f, n := range setters {
				if n != 1 {
					c.fail(fmt.Sprintf("program.programs[%d].sections[%d]", i, j), "flag %d is set by %d steps, want 1", f, n)
				}
			}
		}
	}
}

// run is a section unrolled for a few iterations, with what is known to have happened before each event.
type run struct {
	events []event
	before [][]int // per event: number of events per lane known to be finished when it starts
}

type event struct {
	step *Step
	lane int
	iter int
	seq  int // position in its lane
}

// unroll executes the section symbolically; nil when the lanes wait in a circle. Three iterations
// show everything: waits reach back one iteration at most.
func unroll(s *Section) *run {
	iters := min(max(s.Layers, 1), 3)
	r := &run{}
	type instance struct{ flag, iter int }
	set := map[instance][]int{}
	clock := make([][]int, len(s.Lanes))
	pos := make([]int, len(s.Lanes))
	for l := range clock {
		clock[l] = make([]int, len(s.Lanes))
	}
	for progress := true; progress; {
		progress = false
		for l := range s.Lanes {
			steps := s.Lanes[l].Steps
			for pos[l] < len(steps)*iters {
				st, iter := &steps[pos[l]%len(steps)], pos[l]/len(steps)
				ready := true
				for _, w := range st.Wait {
					k := instance{w.Flag, iter}
					if w.Back {
						k.iter--
					}
					if k.iter < 0 {
						continue
					}
					known, ok := set[k]
					if !ok {
						ready = false
						break
					}
					for m, v := range known {
						clock[l][m] = max(clock[l][m], v)
					}
				}
				if !ready {
					break
				}
				r.events = append(r.events, event{st, l, iter, pos[l]})
				r.before = append(r.before, append([]int(nil), clock[l]...))
				pos[l]++
				clock[l][l] = pos[l]
				if st.Set != nil {
					set[instance{*st.Set, iter}] = append([]int(nil), clock[l]...)
				}
				progress = true
			}
		}
	}
	for l := range s.Lanes {
		if pos[l] < len(s.Lanes[l].Steps)*iters {
			return nil
		}
	}
	return r
}

func (c *checker) deadlock() {
	c.runs = map[*Section]*run{}
	for i := range c.p.Program.Programs {
		ph := &c.p.Program.Programs[i]
		for j := range ph.Sections {
			s := &ph.Sections[j]
			r := unroll(s)
			if r == nil {
				c.fail(fmt.Sprintf("program.programs[%d].sections[%d]", i, j), "lanes of %q wait for each other and none can go on", s.Name)
				continue
			}
			c.runs[s] = r
		}
	}
}

func touches(st *Step) (reads, writes []View) {
	reads, writes = st.In, st.Out
	if st.Heads != nil {
		v := View{Buffer: "\x00cache", R1: 1, C0: st.Heads[0], C1: st.Heads[1]}
		reads = append(slices.Clone(reads), v)
		writes = append(slices.Clone(writes), v)
	}
	return reads, writes
}

func anyOverlap(a, b []View) (View, bool) {
	for _, v := range a {
		for _, w := range b {
			if v.Overlaps(w) {
				return v, true
			}
		}
	}
	return View{}, false
}

func (c *checker) races() {
	for i := range c.p.Program.Programs {
		ph := &c.p.Program.Programs[i]
		for j := range ph.Sections {
			s := &ph.Sections[j]
			if len(s.Lanes) < 2 {
				continue
			}
			r := c.runs[s]
			for b := range r.events {
				eb := r.events[b]
				rb, wb := touches(eb.step)
				for a := 0; a < b; a++ {
					ea := r.events[a]
					if ea.lane == eb.lane || r.before[b][ea.lane] > ea.seq {
						continue // same lane, or a is finished before b starts
					}
					// b cannot be known to a: a was symbolically executed first, so no flag of b reached it.
					ra, wa := touches(ea.step)
					v, hit := anyOverlap(wa, slices.Concat(rb, wb))
					if !hit {
						v, hit = anyOverlap(ra, wb)
					}
					if hit {
						c.fail(fmt.Sprintf("program.programs[%d].sections[%d]", i, j), "%q on %q (iteration %d) and %q on %q (iteration %d) touch %s without an order",
							ea.step.Node, s.Lanes[ea.lane].Proc, ea.iter, eb.step.Node, s.Lanes[eb.lane].Proc, eb.iter, v)
						return
					}
				}
			}
		}
	}
}

func (c *checker) written() {
	for i := range c.p.Program.Programs {
		ph := &c.p.Program.Programs[i]
		earlier := []View{{Buffer: IDs, R1: ph.Rows, C1: 1}}
		for j := range ph.Sections {
			s := &ph.Sections[j]
			r := c.runs[s]
			var have []View
			for b, eb := range r.events {
				if eb.iter > 0 {
					continue // has at least what iteration 0 had
				}
				have = append(have[:0], earlier...)
				for a := range r.events {
					ea := r.events[a]
					if ea.lane == eb.lane && ea.seq < eb.seq || ea.lane != eb.lane && r.before[b][ea.lane] > ea.seq {
						have = append(have, ea.step.Out...)
					}
				}
				rows := ph.Rows
				if s.Logits && c.graphsN[eb.step.Run].Graph.Nodes[0].Op.Kind != op.SelectRow {
					rows = 1 // whatever the bucket is
				}
				for _, v := range eb.step.In {
					v.R1 = min(v.R1, max(v.R0+1, rows)) // padding rows need not be written
					if miss, ok := uncovered(v, have); ok {
						c.fail(fmt.Sprintf("program.programs[%d].sections[%d]", i, j), "%q on %q reads %s, which nothing wrote before", eb.step.Node, s.Lanes[eb.lane].Proc, miss)
						return
					}
				}
			}
			for _, e := range r.events {
				if e.iter == 0 {
					earlier = append(earlier, e.step.Out...)
				}
			}
		}
	}
}

// uncovered returns a part of v that no view in have covers.
func uncovered(v View, have []View) (View, bool) {
	for _, h := range have {
		if !h.Overlaps(v) {
			continue
		}
		var rest []View
		if v.R0 < h.R0 {
			rest = append(rest, View{v.Buffer, v.R0, h.R0, v.C0, v.C1})
		}
		if h.R1 < v.R1 {
			rest = append(rest, View{v.Buffer, h.R1, v.R1, v.C0, v.C1})
		}
		r0, r1 := max(v.R0, h.R0), min(v.R1, h.R1)
		if v.C0 < h.C0 {
			rest = append(rest, View{v.Buffer, r0, r1, v.C0, h.C0})
		}
		if h.C1 < v.C1 {
			rest = append(rest, View{v.Buffer, r0, r1, h.C1, v.C1})
		}
		for _, p := range rest {
			if miss, ok := uncovered(p, have); ok {
				return miss, true
			}
		}
		return View{}, false
	}
	return v, true
}

func (c *checker) cores() {
	for i := range c.p.Program.Programs {
		ph := &c.p.Program.Programs[i]
		for j := range ph.Sections {
			owner := map[int]*Proc{}
			for _, l := range ph.Sections[j].Lanes {
				p := c.p.Proc(l.Proc)
				for _, core := range p.Cores {
					if o := owner[core]; o != nil && (o.Cores[0] != p.Cores[0] || c.p.SoC.Simulated) {
						c.fail(fmt.Sprintf("program.programs[%d].sections[%d]", i, j), "processors %q and %q share core %d", o.Name, p.Name, core)
					}
					owner[core] = p
				}
			}
		}
	}
}

func (c *checker) decider() {
	next := 1
	for i, d := range c.p.Program.Decider {
		if d.Min != next || d.Max < d.Min {
			c.fail(fmt.Sprintf("program.decider[%d]", i), "covers %d..%d, want a start of %d", d.Min, d.Max, next)
			return
		}
		next = d.Max + 1
	}
	if next != c.p.MaxContext+1 {
		c.fail("program.decider", "ends at %d tokens, want %d", next-1, c.p.MaxContext)
	}
	hasLogits := false
	for i := range c.p.Program.Programs {
		for _, s := range c.p.Program.Programs[i].Sections {
			hasLogits = hasLogits || s.Logits
		}
	}
	for _, name := range []string{IDs, Logits} {
		if b := c.buffers[name]; b == nil || name == IDs && (b.Type != op.I32 || b.Cols != 1) || name == Logits && b.Type != op.F32 || !hasLogits {
			c.fail("program.buffers", "buffer %q is missing or has another type than the executor expects", name)
		}
	}
}

func (c *checker) schemes() {
	for i := range c.p.Program.Programs {
		ph := &c.p.Program.Programs[i]
		seen := map[string]op.Scheme{}
		c.eachStep(func(p2 *Phase, s *Section, l *Lane, st *Step, path stepPath) {
			if p2 != ph {
				return
			}
			g := &c.graphsN[st.Run].Graph
			for i, n := range g.Nodes {
				if !n.Op.HasScheme() {
					continue
				}
				name := st.nodeOf(g, i)
				if old, ok := seen[name]; ok && old != n.Op.Scheme {
					c.fail(path.in(""), "shares of %q use schemes %q and %q", name, old, n.Op.Scheme)
				}
				seen[name] = n.Op.Scheme
			}
		})
	}
}

func (c *checker) batches() {
	want := c.p.Sequences()
	if want == 1 {
		want = 0
	}
	if n := c.p.Program.Cache.Sequences; n != want {
		c.fail("program.cache.sequences", "the cache holds %d sequences, and the largest of the batches %v takes %d", n, c.p.Batches, want)
	}
	if b := c.buffers[Logits]; b.Rows < c.p.Sequences() {
		c.fail("program.buffers", "buffer %q has %d rows, want one for each of %d sequences", Logits, b.Rows, c.p.Sequences())
	}
	programs := map[int]int{}
	batched := map[string]bool{}
	for i := range c.p.Program.Programs {
		ph := &c.p.Program.Programs[i]
		if !ph.Batch() {
			continue
		}
		programs[ph.Rows]++
		batched[ph.Name] = true
		if !slices.Contains(c.p.Batches, ph.Rows) {
			c.fail(fmt.Sprintf("program.programs[%d]", i), "program %q decodes %d sequences, and the plan has batches of %v", ph.Name, ph.Rows, c.p.Batches)
		}
		for j, s := range ph.Sections {
			if s.Logits { // it would run once per row
				c.fail(fmt.Sprintf("program.programs[%d].sections[%d].logits", i, j), "section %q selects rows, and every row of a batch has logits", s.Name)
			}
		}
		if v, ok := c.logits(ph); !ok {
			c.fail(fmt.Sprintf("program.programs[%d]", i), "no step writes %s", v)
		}
	}
	for i, b := range c.p.Batches {
		if programs[b] != 1 {
			c.fail(fmt.Sprintf("batches[%d]", i), "%d programs decode %d sequences, want 1", programs[b], b)
		}
	}
	for i, d := range c.p.Program.Decider {
		if batched[d.Program] {
			c.fail(fmt.Sprintf("program.decider[%d]", i), "program %q is for several sequences, and tokens of one are processed", d.Program)
		}
	}
	c.eachStep(func(ph *Phase, s *Section, l *Lane, st *Step, path stepPath) {
		for _, n := range c.graphsN[st.Run].Graph.Nodes {
			switch {
			case n.Op.Kind == op.SelectRow:
				if ph.Batch() {
					c.fail(path.in(""), "%q selects a row of a batch", st.Node)
				}
			case n.Op.Kind.Has("batch"):
				if n.Op.Batch != ph.Batch() {
					c.fail(path.in(""), "graph %q: %s of rows of a sequence each: %v, and program %q is for such rows: %v", st.Run, n.Op.Kind, n.Op.Batch, ph.Name, ph.Batch())
				}
			}
		}
	})
}

func (c *checker) baking() {
	pr := &c.p.Program
	reader := map[string]string{} // of baked packs, the processor
	reads := map[string]string{}  // of graphs and contexts, the packs
	blobs := map[string]bool{}
	c.eachStep(func(_ *Phase, s *Section, l *Lane, st *Step, path stepPath) {
		q := c.p.Proc(l.Proc)
		g := c.graphsN[st.Run]
		for _, r := range st.W {
			k := c.packs[r.Pack]
			switch other, again := reader[r.Pack]; {
			case k.Baked != q.Bakes:
				c.fail(path.in(".w"), "pack %q is baked: %v, and processor %q bakes weights: %v", k.Name, k.Baked, q.Name, q.Bakes)
			case k.Baked && again && other != q.Name:
				c.fail(path.in(".w"), "baked pack %q is read by %q and by %q", k.Name, other, q.Name)
			case k.Baked && (r.C0 != 0 || r.C1 != k.N1-k.N0):
				c.fail(path.in(".w"), "%s is part of a baked pack", r)
			}
			reader[r.Pack] = q.Name
		}
		if !q.Bakes {
			return
		}
		same := func(what, name, packs string) {
			if old, again := reads[what+name]; again && old != packs {
				c.fail(path.in(".w"), "%s %q holds other weights in this step than in another", what, name)
			}
			reads[what+name] = packs
		}
		same("graph", g.Name, refsKey(st.W))
		if g.Context != "" {
			same("context", g.Context, g.Proc+"\x00"+refsKey(st.W))
		}
	})
	for i := range pr.Graphs {
		g := &pr.Graphs[i]
		q := c.p.Proc(g.Proc)
		if (g.Context != "") != (q.Bakes && q.Shares) {
			c.fail(fmt.Sprintf("program.graphs[%d].context", i), "graph %q refers to the binary %q, and processor %q bakes weights: %v, shares binaries: %v", g.Name, g.Context, q.Name, q.Bakes, q.Shares)
		}
		if q.Bakes && blobs[g.Artifact] {
			c.fail(fmt.Sprintf("program.graphs[%d].artifact", i), "artifact %q is that of two graphs, and holds weights", g.Artifact)
		}
		blobs[g.Artifact] = true
	}
	for i := range pr.Graphs {
		if g := &pr.Graphs[i]; g.Context != "" && blobs[g.Context] {
			c.fail(fmt.Sprintf("program.graphs[%d].context", i), "context %q has the name of an artifact", g.Context)
		}
	}
}

// logits reports whether a batch's program writes the logits of every row, or what it leaves out.
func (c *checker) logits(ph *Phase) (View, bool) {
	var have []View
	for i := range ph.Sections {
		for _, l := range ph.Sections[i].Lanes {
			for k := range l.Steps {
				have = append(have, l.Steps[k].Out...)
			}
		}
	}
	miss, bad := uncovered(View{Buffer: Logits, R1: ph.Rows, C1: c.buffers[Logits].Cols}, have)
	return miss, !bad
}
