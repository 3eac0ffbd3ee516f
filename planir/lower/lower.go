package lower

import (
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
)

// Lower computes p.Program from p's decisions, folds, processors, cache type and context for the model
// graph g. The result depends on nothing else, so a plan's program can be recomputed to check it.
func Lower(p *planir.Plan, g *models.Graph) error {
	b := &builder{plan: p, model: g, buffers: map[string]*planir.Buffer{}, graphs: map[string]string{}, contexts: map[string]string{}, packs: map[packKey]*packUse{}}
	buckets := map[int]bool{}
	for _, d := range p.Decisions {
		buckets[d.Rows] = true
	}
	// Head nodes have one row whatever the bucket is; a bucket exists where its layers are decided.
	var rows []int
	for r := range buckets {
		if p.Decodes(r) || b.decidesLayers(r) {
			rows = append(rows, r)
		}
	}
	sort.Ints(rows)
	if len(rows) == 0 || rows[0] != 1 {
		return diag.New(diag.ClassIllegal, "lower plan: no decisions for one row, so nothing could decode").WithCode("P010")
	}
	batch := g.Batch()
	for _, r := range rows {
		ph := planir.Phase{Name: ProgramName(r, p.Decodes(r)), Phase: "prefill", Rows: r}
		of := g
		if p.Decodes(r) {
			ph.Phase = "decode"
		}
		if ph.Batch() {
			of = &batch
		}
		sections, err := Expand(of, r, p.MaxContext, p.KV, func(node string) op.Scheme {
			if d := b.decision(node, r); d != nil {
				return d.Scheme
			}
			return op.A32W32 // section reports the missing decision
		})
		if err != nil {
			return diag.New(diag.ClassIllegal, "lower plan: rows %d: %w", r, err)
		}
		for i := range sections {
			s, err := b.section(&sections[i], r, readOutside(sections, i))
			if err != nil {
				return err
			}
			ph.Sections = append(ph.Sections, s)
		}
		b.out.Programs = append(b.out.Programs, ph)
	}
	if err := b.finish(rows); err != nil {
		return err
	}
	p.Program = b.out
	return nil
}

// ProgramName is the name of the program of that many rows: "decode", "decode@4", "prefill@256".
func ProgramName(rows int, decodes bool) string {
	switch {
	case rows == 1:
		return "decode"
	case decodes:
		return fmt.Sprintf("decode@%d", rows)
	}
	return fmt.Sprintf("prefill@%d", rows)
}

// decidesLayers reports whether a bucket of r rows has decisions for a repeated section.
func (b *builder) decidesLayers(r int) bool {
	for _, s := range b.model.Sections {
		if s.Layers > 0 && len(s.Nodes) > 0 && b.plan.DecisionFor(s.Name+"."+s.Nodes[0].Name, r) != nil {
			return true
		}
	}
	return false
}

type packKey struct {
	weight, scheme, layout, owner string // owner "": shared by every processor that reads tile ranges
	k0, k1, n0, n1                int    // n0, n1 are 0 while shared: the union of uses is taken
}

type packUse struct {
	lo, hi int
	name   string
}

type task struct {
	proc    string
	step    planir.Step
	graph   op.Graph
	label   string      // of the graph
	weights []packRange // in the order of step.W
	reads   []planir.View
	writes  []planir.View
}

// packRange is a column range of a weight, to become a WeightRef once every pack's range is known.
type packRange struct {
	key    packKey
	n0, n1 int
}

type builder struct {
	plan  *planir.Plan
	model *models.Graph
	out   planir.Program

	buffers map[string]*planir.Buffer
	order   []string // buffers in order of first use
	graphs  map[string]string
	// contexts are the binaries that graphs with the same baked weights refer to, by these.
	contexts map[string]string
	packs    map[packKey]*packUse
	fixups   []fixup
}

type fixup struct {
	from packRange
	ref  *planir.WeightRef
}

// decision finds the decision for a node; a node of the head has one row in every bucket.
func (b *builder) decision(node string, rows int) *planir.Decision {
	if d := b.plan.DecisionFor(node, rows); d != nil {
		return d
	}
	for _, s := range b.model.Sections {
		if headOnly(&s) {
			for _, n := range s.Nodes {
				if full := s.Name + "." + n.Name; node == full || slices.Contains(Quantising(full), node) {
					return b.plan.DecisionFor(node, 1)
				}
			}
		}
	}
	return nil
}

func headOnly(s *models.Section) bool {
	for _, v := range s.Values {
		if v.Rows1 {
			return true
		}
	}
	return false
}

func (b *builder) buffer(name string, v Value) {
	buf, ok := b.buffers[name]
	if !ok {
		buf = &planir.Buffer{Name: name, Type: v.Type, Cols: v.Cols}
		b.buffers[name] = buf
		b.order = append(b.order, name)
	}
	buf.Rows = max(buf.Rows, v.Rows)
}

// readOutside are the buffers that sections other than i read.
func readOutside(sections []Section, i int) map[string]bool {
	out := map[string]bool{}
	for j := range sections {
		for _, n := range sections[j].Nodes {
			for _, v := range n.In {
				out[v] = out[v] || j != i
			}
		}
	}
	return out
}

// section lowers a section; outside are the buffers that others read.
func (b *builder) section(s *Section, rows int, outside map[string]bool) (planir.Section, error) {
	var tasks []*task
	for i := range s.Nodes {
		n := &s.Nodes[i]
		d := b.decision(n.Name, rows)
		if d == nil {
			return planir.Section{}, diag.New(diag.ClassIllegal, "lower plan: no decision for %q at %d rows", n.Name, rows).WithCode("P010")
		}
		if o := n.Op(); !o.HasScheme() && d.Scheme != o.Scheme {
			return planir.Section{}, diag.New(diag.ClassIllegal, "lower plan: %s@%d: scheme %q, and %q takes none", n.Name, rows, d.Scheme, o.Kind).WithCode("P010")
		} else if d.Scheme != o.Scheme {
			return planir.Section{}, diag.New(diag.ClassIllegal, "lower plan: %s@%d: scheme %q, want %q: its result selects experts, and is computed in float32", n.Name, rows, d.Scheme, o.Scheme).WithCode("P010")
		}
		t, err := b.node(s, n, d)
		if err != nil {
			return planir.Section{}, diag.New(diag.ClassIllegal, "lower plan: %s@%d: %w", n.Name, rows, err).WithCode("P010")
		}
		tasks = append(tasks, t...)
	}
	tasks = fuse(tasks, b.plan.Proc, outside)
	for _, t := range tasks {
		t.step.Run = b.graph(t)
	}
	out := planir.Section{Name: s.Name, First: s.First, Layers: s.Layers, Logits: s.Logits}
	out.Flags = synchronise(tasks, s.Layers > 1)
	lanes := map[string][]planir.Step{}
	for _, t := range tasks {
		lanes[t.proc] = append(lanes[t.proc], t.step)
	}
	names := make([]string, 0, len(lanes))
	for name := range lanes {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		out.Lanes = append(out.Lanes, planir.Lane{Proc: name, Steps: lanes[name]})
	}
	// The steps have moved: weight references are completed where they are now.
	for _, lane := range out.Lanes {
		i := 0
		for _, t := range tasks {
			if t.proc != lane.Proc {
				continue
			}
			for k, w := range t.weights {
				b.fixups = append(b.fixups, fixup{w, &lane.Steps[i].W[k]})
			}
			i++
		}
	}
	return out, nil
}

// node makes the tasks of one node.
func (b *builder) node(s *Section, n *Node, d *planir.Decision) ([]*task, error) {
	for _, v := range slices.Concat(n.In, n.Out) {
		b.buffer(v, s.Values[v])
	}
	pieces, err := Cut(s, n, d, b.plan.Proc)
	if err != nil {
		return nil, err
	}
	var tasks []*task
	for i := range pieces {
		t, err := b.task(s, n, d, &pieces[i])
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, t)
	}
	return tasks, nil
}

// task makes the step of one piece, with its graph and packed weights.
func (b *builder) task(s *Section, n *Node, d *planir.Decision, p *Piece) (*task, error) {
	for _, v := range slices.Concat(p.In, p.Out) {
		if _, known := b.buffers[v.Buffer]; !known { // a partial sum or a share's own output
			b.buffer(v.Buffer, Value{Type: s.Values[n.Out[0]].Type, Rows: v.R1, Cols: v.C1})
		}
		b.buffers[v.Buffer].Rows = max(b.buffers[v.Buffer].Rows, v.R1)
	}
	t := &task{proc: p.Proc, reads: slices.Clone(p.In), writes: slices.Clone(p.Out)}
	t.step = planir.Step{Node: n.Name, R0: p.R0, In: p.In, Out: p.Out, Heads: p.Heads}
	if p.Heads != nil {
		cache := planir.View{Buffer: "\x00cache", R1: 1, C0: p.Heads[0], C1: p.Heads[1]}
		t.reads = append(t.reads, cache)
		t.writes = append(t.writes, cache)
	}
	o := p.Op()
	if p.Role != Compute {
		t.graph, t.label = op.Single(o, ""), fmt.Sprintf("%s%s%d@%d", n.Name, map[Role]string{Gather: "<", Sum: "+"}[p.Role], p.Share, o.M)
		return t, nil
	}
	t.step.ExpectNS = d.Shares[p.Share].PredictNS
	if o.Kind == op.Embed && o.Scheme != "" {
		for _, f := range b.model.Folds() {
			if slices.Contains(b.plan.Folds, f.Name) && slices.Contains(f.Multiply, n.W[0]) {
				return nil, fmt.Errorf("scheme %q, and the rows of %q are changed by the fold %q", o.Scheme, n.W[0], f.Name)
			}
		}
	}
	proc := b.plan.Proc(p.Proc)
	layout := ""
	if o.Scheme != "" {
		layout = proc.Layouts[o.Scheme.Weight()]
		if layout == "" {
			return nil, fmt.Errorf("%q has no layout for weights %q", p.Proc, o.Scheme.Weight())
		}
	}
	for _, u := range uses(n, p, proc, layout) {
		use := b.packs[u.key]
		if use == nil {
			use = &packUse{lo: u.n0, hi: u.n1}
			b.packs[u.key] = use
		}
		use.lo, use.hi = min(use.lo, u.n0), max(use.hi, u.n1)
		t.weights = append(t.weights, u)
		t.step.W = append(t.step.W, planir.WeightRef{})
	}
	suffix := ""
	if len(d.Shares) > 1 {
		sh := d.Shares[p.Share]
		suffix = fmt.Sprintf("[%d:%d]", sh.From, sh.To)
	}
	t.graph, t.label = chain(p.Ops, layout), fmt.Sprintf("%s%s@%d", n.Name, suffix, o.M)
	return t, nil
}

// uses lists the ranges of packed weights that a piece reads, in the order of its step's weights.
func uses(n *Node, p *Piece, proc *planir.Proc, layout string) (out []packRange) {
	o := p.Op()
	for i, wo := range weightOps(p.Ops) { // a share along K that adds no bias takes none
		spec := wo.op.WeightSpec(wo.role, layout)
		key := packKey{weight: n.W[i], scheme: spec.Scheme, layout: spec.Layout, k1: spec.K}
		c0, c1 := 0, spec.N
		if o.HasScheme() {
			if wo.role == "weight" {
				key.k0, key.k1 = p.K0, p.K1
			}
			c0, c1 = p.N0, p.N1
		}
		steps := wo.role == "steps" && c1-c0 != n.Op().N // two rows have no column ranges: a share has its own
		if proc.Bakes || o.Scheme != "" && !proc.WeightRanges || steps {
			key.owner, key.n0, key.n1 = p.Proc, c0, c1
		}
		out = append(out, packRange{key, c0, c1})
	}
	return out
}

// Use is a range of a packed weight that a piece reads: rows K0..K1 and columns N0..N1 in a format.
type Use struct {
	Weight, Scheme, Layout string
	K0, K1, N0, N1         int
	// Owner is the processor that has a pack of just this region; "": processors read ranges of one.
	Owner string
}

// Needs is what a piece needs to be there before its step can run, unless the step is joined to its neighbours: the ranges
// of weights it reads, and its graph, under a key that it shares with equal ones of its processor.
func Needs(n *Node, p *Piece, proc *planir.Proc) (weights []Use, graph string) {
	g := op.Single(p.Op(), "")
	if p.Role == Compute {
		layout := ""
		if o := p.Op(); o.Scheme != "" {
			layout = proc.Layouts[o.Scheme.Weight()]
		}
		for _, u := range uses(n, p, proc, layout) {
			k := u.key
			weights = append(weights, Use{k.weight, k.scheme, k.layout, k.k0, k.k1, u.n0, u.n1, k.owner})
		}
		g = chain(p.Ops, layout)
	}
	key := graphKey(p.Proc, g)
	if proc.Bakes { // a graph of its own for each set of weights
		key += fmt.Sprintf("\x00%+v", weights)
	}
	return weights, key
}

func graphKey(proc string, g op.Graph) string {
	code, err := json.Marshal(g)
	if err != nil {
		panic("BUG: graph does not encode: " + err.Error())
	}
	return proc + "\x00" + string(code)
}

// weightOp is an operator of a chain and the role of a weight it takes.
type weightOp struct {
	op   op.Op
	role string
}

// weightOps lists them in the order of a node's weights.
func weightOps(ops []op.Op) (out []weightOp) {
	for _, o := range ops {
		for _, role := range o.Sig().W {
			out = append(out, weightOp{o, role})
		}
	}
	return out
}

// chain builds the graph of a node: every operator reads the node's inputs; one whose output has the
// name of its input works in place; the last one writes the outputs.
func chain(ops []op.Op, layout string) (g op.Graph) {
	if len(ops) == 1 {
		return op.Single(ops[0], layout)
	}
	last := len(ops) - 1
	g.Inputs = ops[0].Sig().In
	for i, o := range ops {
		sig := o.Sig()
		n := op.Node{Op: o}
		for _, v := range sig.In {
			n.In = append(n.In, v.Name)
		}
		for _, w := range sig.W {
			g.Weights = append(g.Weights, o.WeightSpec(w, layout))
			n.W = append(n.W, w)
		}
		for _, v := range sig.Out {
			n.Out = append(n.Out, v.Name)
			if i < last && !slices.Contains(g.Outputs, v) { // several change it in place
				g.Outputs = append(g.Outputs, v)
			}
		}
		g.Nodes = append(g.Nodes, n)
	}
	g.Outputs = append(g.Outputs, ops[last].Sig().Out...)
	return g
}

// graph registers the graph of a task and returns its name; equal graphs of a processor share one, where it bakes
// weights those that read the same ones.
func (b *builder) graph(t *task) string {
	proc := b.plan.Proc(t.proc)
	key, weights := graphKey(t.proc, t.graph), ""
	if proc.Bakes {
		weights = t.proc + weightsKey(t.weights)
		key += weights
	}
	if name, ok := b.graphs[key]; ok {
		return name
	}
	name := t.proc + "/" + t.label
	for i := 2; b.hasGraph(name); i++ {
		name = fmt.Sprintf("%s/%s#%d", t.proc, t.label, i)
	}
	b.graphs[key] = name
	g := planir.Graph{Name: name, Proc: t.proc, Graph: t.graph, Artifact: fmt.Sprintf("graph/%04d", len(b.out.Graphs))}
	if proc.Bakes && proc.Shares {
		if len(t.weights) == 0 {
			weights += "\x00" + name // nothing to share
		}
		if b.contexts[weights] == "" {
			b.contexts[weights] = fmt.Sprintf("context/%04d", len(b.contexts))
		}
		g.Context = b.contexts[weights]
	}
	b.out.Graphs = append(b.out.Graphs, g)
	return name
}

// weightsKey is equal for equal lists of ranges.
func weightsKey(list []packRange) string {
	var b strings.Builder
	for _, r := range list {
		fmt.Fprintf(&b, "\x00%+v", r)
	}
	return b.String()
}

func (b *builder) hasGraph(name string) bool {
	for i := range b.out.Graphs {
		if b.out.Graphs[i].Name == name {
			return true
		}
	}
	return false
}

// finish fills in buffers, cache, weights, packs, weight references and the decider.
func (b *builder) finish(rows []int) error {
	touched := map[string]bool{planir.IDs: true, planir.Logits: true} // what stays within a step has no memory
	for i := range b.out.Programs {
		for _, s := range b.out.Programs[i].Sections {
			for _, l := range s.Lanes {
				for _, st := range l.Steps {
					for _, v := range slices.Concat(st.In, st.Out) {
						touched[v.Buffer] = true
					}
				}
			}
		}
	}
	for _, name := range b.order {
		if touched[name] {
			b.out.Buffers = append(b.out.Buffers, *b.buffers[name])
		}
	}
	b.out.Cache = planir.Cache{Type: b.plan.KV, MaxContext: b.plan.MaxContext}
	if n := b.plan.Sequences(); n > 1 {
		b.out.Cache.Sequences = n
	}
	layersOf := map[string][]op.LayerRange{}
	for _, s := range b.model.Sections {
		for _, n := range s.Nodes {
			for _, w := range n.W {
				if s.Layers > 0 {
					layersOf[w] = appendRange(layersOf[w], op.LayerRange{From: s.First, To: s.First + s.Layers})
				}
			}
			for _, o := range n.Ops {
				if o.Kind == op.KVAppend {
					b.out.Cache.Layers, b.out.Cache.KVHeads, b.out.Cache.HeadDim = max(b.out.Cache.Layers, s.First+s.Layers), o.KVHeads, o.HeadDim
				}
			}
		}
	}
	keys := make([]packKey, 0, len(b.packs))
	used := map[string]bool{} // weights
	for k := range b.packs {
		keys = append(keys, k)
		used[k.weight] = true
	}
	rank := map[string]int{}
	for i, w := range b.model.Weights {
		rank[w.Name] = i
		if w.Kind() == op.StoredWeight {
			w.Layers = layersOf[w.Name]
		}
		b.out.Weights = append(b.out.Weights, w)
	}
	for i := range b.model.Sections {
		s := &b.model.Sections[i]
		for _, n := range s.Nodes {
			class := s.Name + "." + n.Name
			computed := []op.Weight{{Name: StepsWeight(class), ScaleOf: class, K: 2, N: n.Ops[len(n.Ops)-1].N}}
			for _, scales := range slices.Backward(scaleCounts) {
				computed = slices.Insert(computed, 0, op.Weight{Name: ScaleWeight(class, scales), ScaleOf: class, K: 1, N: scales})
			}
			for _, w := range computed {
				if !used[w.Name] {
					continue
				}
				if _, again := rank[w.Name]; !again {
					rank[w.Name] = len(b.out.Weights)
					b.out.Weights = append(b.out.Weights, w)
				}
				if w := &b.out.Weights[rank[w.Name]]; s.Layers > 0 {
					w.Layers = appendRange(w.Layers, op.LayerRange{From: s.First, To: s.First + s.Layers})
				}
			}
		}
	}
	if err := b.fold(rank); err != nil {
		return err
	}
	sort.Slice(keys, func(i, j int) bool {
		a, c := keys[i], keys[j]
		if rank[a.weight] != rank[c.weight] {
			return rank[a.weight] < rank[c.weight]
		}
		for _, d := range []int{compare(a.scheme, c.scheme), compare(a.layout, c.layout), compare(a.owner, c.owner), a.k0 - c.k0, a.k1 - c.k1, a.n0 - c.n0} {
			if d != 0 {
				return d < 0
			}
		}
		return a.n1 < c.n1
	})
	for _, k := range keys {
		use := b.packs[k]
		p := planir.Pack{Weight: k.weight, Experts: b.out.Weights[rank[k.weight]].Experts, K0: k.k0, K1: k.k1, N0: use.lo, N1: use.hi, Scheme: k.scheme, Layout: k.layout}
		p.Name = fmt.Sprintf("%s/%s.%s", k.weight, k.scheme, k.layout)
		w := &b.out.Weights[rank[k.weight]]
		if k.k0 != 0 || k.k1 != w.K {
			p.Name += fmt.Sprintf(".k%d-%d", k.k0, k.k1)
		}
		if k.owner != "" {
			p.Name += fmt.Sprintf(".%s.n%d-%d", k.owner, k.n0, k.n1)
		}
		if k.owner != "" && b.plan.Proc(k.owner).Bakes {
			p.Baked = true
		}
		use.name = p.Name
		bytes, err := pack.Bytes(p.Spec())
		if err != nil {
			return diag.New(diag.ClassIllegal, "lower plan: %w", err)
		}
		p.Bytes = bytes
		b.out.Packs = append(b.out.Packs, p)
	}
	for _, f := range b.fixups {
		use := b.packs[f.from.key]
		*f.ref = planir.WeightRef{Pack: use.name, C0: f.from.n0 - use.lo, C1: f.from.n1 - use.lo}
	}
	rows = slices.DeleteFunc(slices.Clone(rows), func(r int) bool { return slices.Contains(b.plan.Batches, r) })
	for i, r := range rows {
		lo, hi := 1, r
		if i > 0 {
			lo = rows[i-1] + 1
		}
		if i == len(rows)-1 {
			hi = b.plan.MaxContext
		}
		if lo <= hi {
			b.out.Decider = append(b.out.Decider, planir.Decide{Min: lo, Max: hi, Program: ProgramName(r, r == 1)})
		}
	}
	return nil
}

// fold marks the weights that the plan's folds change; rank is their place.
func (b *builder) fold(rank map[string]int) error {
	groups := b.model.Folds()
	for _, name := range b.plan.Folds {
		i := slices.IndexFunc(groups, func(f models.FoldGroup) bool { return f.Name == name })
		if i < 0 {
			return diag.New(diag.ClassIllegal, "lower plan: the model has no weights that are folded as %q", name)
		}
		for _, p := range groups[i].Divide {
			w := &b.out.Weights[rank[p.Weight]]
			w.FoldCols, w.FoldSource = name, p.Source
			if k, ok := rank[StepsWeight(b.classOf(p.Weight))]; ok { // of what the columns compute
				b.out.Weights[k].FoldCols, b.out.Weights[k].FoldSource = name, p.Source
			}
		}
		for _, m := range groups[i].Multiply {
			b.out.Weights[rank[m]].FoldRows = name
		}
		for _, class := range groups[i].Readers {
			for _, of := range Computed(class) {
				if k, ok := rank[of]; ok {
					b.out.Weights[k].FoldRows = name
				}
			}
		}
	}
	return nil
}

// classOf is the node that multiplies by a weight, "" where none does.
func (b *builder) classOf(weight string) string {
	for i := range b.model.Sections {
		for _, n := range b.model.Sections[i].Nodes {
			if len(n.W) > 0 && n.W[0] == weight {
				return b.model.Sections[i].Name + "." + n.Name
			}
		}
	}
	return ""
}

// appendRange adds a range behind the others, which it may continue or repeat.
func appendRange(list []op.LayerRange, r op.LayerRange) []op.LayerRange {
	if n := len(list); n > 0 && list[n-1].To >= r.From {
		list[n-1].To = max(list[n-1].To, r.To)
		return list
	}
	return append(list, r)
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
