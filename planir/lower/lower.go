package lower

import (
	"encoding/json"
	"fmt"
	"slices"
	"sort"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
)

// Lower computes p.Program from p's decisions, processors, cache type and context for the model
// graph g. The result depends on nothing else, so a plan's program can be recomputed to check it.
func Lower(p *planir.Plan, g *models.Graph) error {
	b := &builder{plan: p, model: g, buffers: map[string]*planir.Buffer{}, graphs: map[string]string{}, packs: map[packKey]*packUse{}}
	buckets := map[int]bool{}
	for _, d := range p.Decisions {
		buckets[d.Rows] = true
	}
	// Head nodes have one row whatever the bucket is; a bucket exists where its layers are decided.
	var rows []int
	for r := range buckets {
		if r == 1 || b.decidesLayers(r) {
			rows = append(rows, r)
		}
	}
	sort.Ints(rows)
	if len(rows) == 0 || rows[0] != 1 {
		return diag.New(diag.ClassIllegal, "lower plan: no decisions for one row, so nothing could decode").WithCode("P010")
	}
	for _, r := range rows {
		ph := planir.Phase{Name: fmt.Sprintf("prefill@%d", r), Phase: "prefill", Rows: r}
		if r == 1 {
			ph.Name, ph.Phase = "decode", "decode"
		}
		sections, err := Expand(g, r, p.MaxContext, p.KV, func(node string) op.Scheme {
			if d := b.decision(node, r); d != nil {
				return d.Scheme
			}
			return ""
		})
		if err != nil {
			return diag.New(diag.ClassIllegal, "lower plan: rows %d: %w", r, err)
		}
		for i := range sections {
			s, err := b.section(&sections[i], r)
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
	packs   map[packKey]*packUse
	fixups  []fixup
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
				if full := s.Name + "." + n.Name; node == full || node == full+"_quant" {
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

func (b *builder) section(s *Section, rows int) (planir.Section, error) {
	var tasks []*task
	for i := range s.Nodes {
		n := &s.Nodes[i]
		d := b.decision(n.Name, rows)
		if d == nil {
			return planir.Section{}, diag.New(diag.ClassIllegal, "lower plan: no decision for %q at %d rows", n.Name, rows).WithCode("P010")
		}
		t, err := b.node(s, n, d, rows)
		if err != nil {
			return planir.Section{}, diag.New(diag.ClassIllegal, "lower plan: %s@%d: %w", n.Name, rows, err).WithCode("P010")
		}
		tasks = append(tasks, t...)
	}
	out := planir.Section{Name: s.Name, Layers: s.Layers, Logits: s.Logits}
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

// node cuts one node into tasks.
func (b *builder) node(s *Section, n *Node, d *planir.Decision, rows int) ([]*task, error) {
	if len(d.Shares) == 0 {
		return nil, fmt.Errorf("decision has no shares")
	}
	main := n.Op()
	full, err := axisLength(n, d.Axis)
	if err != nil {
		return nil, err
	}
	if d.Axis == planir.AxisNone && len(d.Shares) != 1 {
		return nil, fmt.Errorf("%d shares without an axis, want 1", len(d.Shares))
	}
	if d.Axis != planir.AxisNone {
		at := 0
		for _, sh := range d.Shares {
			if sh.From != at || sh.To <= sh.From {
				return nil, fmt.Errorf("shares of axis %q do not tile 0..%d: share of %q is %d..%d, want a start of %d", d.Axis, full, sh.Proc, sh.From, sh.To, at)
			}
			at = sh.To
		}
		if at != full {
			return nil, fmt.Errorf("shares of axis %q end at %d, want %d", d.Axis, at, full)
		}
	}
	for _, v := range append(append([]string(nil), n.In...), n.Out...) {
		b.buffer(v, s.Values[v])
	}
	var tasks []*task
	for i, sh := range d.Shares {
		proc := b.plan.Proc(sh.Proc)
		if proc == nil {
			return nil, fmt.Errorf("unknown processor %q", sh.Proc)
		}
		t, err := b.share(s, n, d, sh, proc, i, rows)
		if err != nil {
			return nil, fmt.Errorf("share of %q: %w", sh.Proc, err)
		}
		tasks = append(tasks, t)
	}
	if d.Axis == planir.AxisK {
		// Share 0 wrote the output; the other partial sums are added to it in order, by its processor.
		out := n.Out[0]
		v := s.Values[out]
		full := planir.View{Buffer: out, R1: v.Rows, C1: v.Cols}
		for i := 1; i < len(d.Shares); i++ {
			part := planir.View{Buffer: partial(out, i), R1: v.Rows, C1: v.Cols}
			add := op.Op{Kind: op.Add, M: v.Rows, N: v.Cols}
			t := &task{proc: d.Shares[0].Proc, reads: []planir.View{full, part}, writes: []planir.View{full}}
			t.step = planir.Step{Node: n.Name, In: []planir.View{full, part}, Out: []planir.View{full}}
			t.step.Run = b.graph(t.proc, fmt.Sprintf("%s+%d@%d", n.Name, i, main.M), op.Single(add, ""))
			tasks = append(tasks, t)
		}
	}
	return tasks, nil
}

func partial(value string, share int) string { return fmt.Sprintf("%s.p%d", value, share) }

// axisLength is the number of units an axis divides, or why the node cannot be divided along it.
func axisLength(n *Node, a planir.Axis) (int, error) {
	o := n.Op()
	switch a {
	case planir.AxisNone:
		return 0, nil
	case planir.AxisRows:
		if o.Kind == op.Attention || o.Kind == op.SelectRow {
			return 0, fmt.Errorf("%s cannot be divided by rows: the cache of earlier rows must be complete first", o.Kind)
		}
		return o.M, nil
	case planir.AxisCols:
		if o.Kind == op.MatMul || o.Kind == op.SiluMul || o.Kind == op.Add {
			return o.N, nil
		}
	case planir.AxisK:
		if o.Kind == op.MatMul {
			return o.K, nil
		}
	case planir.AxisHeads:
		if o.Kind == op.Attention {
			return o.KVHeads, nil
		}
	}
	return 0, fmt.Errorf("%s cannot be divided along %q", o.Kind, a)
}

// Granularity is the unit that shares of a node along an axis must be multiples of on processor p
// (the last share may end anywhere).
func Granularity(n *Node, a planir.Axis, p *planir.Proc) int {
	o := n.Op()
	switch {
	case a == planir.AxisCols && o.Kind == op.MatMul:
		return max(1, p.TileN)
	case a == planir.AxisCols && o.Kind == op.SiluMul:
		return o.Interleave
	case a == planir.AxisK:
		return max(1, p.TileK)
	}
	return 1
}

// share makes the task of one share.
func (b *builder) share(s *Section, n *Node, d *planir.Decision, sh planir.Share, proc *planir.Proc, index, rows int) (*task, error) {
	ops := slices.Clone(n.Ops)
	o := &ops[len(ops)-1]
	whole := func(name string) planir.View {
		v := s.Values[name]
		return planir.View{Buffer: name, R1: v.Rows, C1: v.Cols}
	}
	in := make([]planir.View, len(n.In))
	for i, name := range n.In {
		in[i] = whole(name)
	}
	out := make([]planir.View, len(n.Out))
	for i, name := range n.Out {
		out[i] = whole(name)
	}
	t := &task{proc: sh.Proc}
	if d.Axis != planir.AxisNone && d.Axis != planir.AxisRows {
		unit := Granularity(n, d.Axis, proc)
		length, _ := axisLength(n, d.Axis)
		if sh.From%unit != 0 || (sh.To%unit != 0 && sh.To != length) {
			return nil, fmt.Errorf("range %d..%d of axis %q is not a multiple of %d", sh.From, sh.To, d.Axis, unit)
		}
	}
	k0, k1, n0, n1 := 0, o.K, 0, o.N
	switch d.Axis {
	case planir.AxisRows:
		for i := range in {
			in[i].R0, in[i].R1 = sh.From, sh.To
		}
		for i := range out {
			out[i].R0, out[i].R1 = sh.From, sh.To
		}
		t.step.R0 = sh.From
		for i := range ops {
			ops[i].M = sh.To - sh.From
		}
	case planir.AxisCols:
		n0, n1 = sh.From, sh.To
		out[0].C0, out[0].C1 = n0, n1
		switch o.Kind {
		case op.SiluMul:
			in[0].C0, in[0].C1 = 2*n0, 2*n1
		case op.Add:
			in[0].C0, in[0].C1 = n0, n1
			in[1].C0, in[1].C1 = n0, n1
		}
		o.N = n1 - n0
	case planir.AxisK:
		k0, k1 = sh.From, sh.To
		in[0].C0, in[0].C1 = k0, k1
		o.K = k1 - k0
		if index > 0 {
			v := s.Values[n.Out[0]]
			name := partial(n.Out[0], index)
			b.buffer(name, v)
			out[0].Buffer = name
		}
	case planir.AxisHeads:
		group := o.Heads / o.KVHeads
		width := (group + 2) * o.HeadDim
		in[0].C0, in[0].C1 = sh.From*width, sh.To*width
		out[0].C0, out[0].C1 = sh.From*group*o.HeadDim, sh.To*group*o.HeadDim
		for i := range ops {
			ops[i].KVHeads = sh.To - sh.From
			ops[i].Heads = group * (sh.To - sh.From)
		}
	}
	if sh.PadRows > 0 {
		if sh.PadRows < o.M {
			return nil, fmt.Errorf("rows padded to %d, want at least %d", sh.PadRows, o.M)
		}
		for i := range ops {
			ops[i].M = sh.PadRows
		}
		for _, views := range [][]planir.View{in, out} {
			for i := range views {
				views[i].R1 = views[i].R0 + sh.PadRows
				b.buffers[views[i].Buffer].Rows = max(b.buffers[views[i].Buffer].Rows, views[i].R1)
			}
		}
	}
	for _, v := range append(slices.Clone(in), out...) {
		whole := b.buffers[v.Buffer].Cols == v.C1-v.C0
		if !whole && rows > 1 && !proc.StridedOutput && slices.Contains(out, v) {
			return nil, fmt.Errorf("output %s is a column range of a wider buffer, and %q writes whole buffers only", v, sh.Proc)
		}
		if !whole && rows > 1 && !proc.StridedInput && slices.Contains(in, v) {
			return nil, fmt.Errorf("input %s is a column range of a wider buffer, and %q reads whole buffers only", v, sh.Proc)
		}
	}
	for i := range ops {
		if len(proc.Kinds) > 0 && !slices.Contains(proc.Kinds, ops[i].Kind) {
			return nil, fmt.Errorf("%q does not execute %q", sh.Proc, ops[i].Kind)
		}
		if ops[i].Kind == op.MatMul && !slices.Contains(proc.Schemes, ops[i].Scheme) {
			return nil, fmt.Errorf("%q does not execute scheme %q", sh.Proc, ops[i].Scheme)
		}
		if err := ops[i].Validate(); err != nil {
			return nil, err
		}
	}

	layout := ""
	if o.Kind == op.MatMul {
		layout = proc.LayoutOf(o.Scheme.Weight())
		if layout == "" {
			return nil, fmt.Errorf("%q has no layout for weights %q", sh.Proc, o.Scheme.Weight())
		}
	}
	for i, w := range n.W {
		spec := weightOp(ops, i).WeightSpec(w, layout)
		key := packKey{weight: w, scheme: spec.Scheme, layout: spec.Layout, k1: spec.K}
		c0, c1 := 0, spec.N
		if o.Kind == op.MatMul {
			key.k0, key.k1 = k0, k1
			c0, c1 = n0, n1
			if !proc.WeightRanges {
				key.owner, key.n0, key.n1 = sh.Proc, n0, n1
			}
		}
		use := b.packs[key]
		if use == nil {
			use = &packUse{lo: c0, hi: c1}
			b.packs[key] = use
		}
		use.lo, use.hi = min(use.lo, c0), max(use.hi, c1)
		t.weights = append(t.weights, packRange{key, c0, c1})
		t.step.W = append(t.step.W, planir.WeightRef{})
	}

	graph, inPlace := chain(ops, layout)
	t.step.Node = n.Name
	t.step.In, t.step.Out = in, out
	if inPlace {
		t.step.Out = append([]planir.View{in[0]}, out...)
	}
	if graph.State() {
		h := [2]int{0, o.KVHeads}
		if d.Axis == planir.AxisHeads {
			h = [2]int{sh.From, sh.To}
		}
		t.step.Heads = &h
		cache := planir.View{Buffer: "\x00cache", R1: 1, C0: h[0], C1: h[1]}
		t.reads = append(t.reads, cache)
		t.writes = append(t.writes, cache)
	}
	t.reads = append(t.reads, t.step.In...)
	t.writes = append(t.writes, t.step.Out...)
	t.step.ExpectNS = sh.PredictNS
	suffix := ""
	if len(d.Shares) > 1 {
		suffix = fmt.Sprintf("[%d:%d]", sh.From, sh.To)
	}
	t.step.Run = b.graph(sh.Proc, fmt.Sprintf("%s%s@%d", n.Name, suffix, o.M), graph)
	return t, nil
}

// weightOp is the operator of a chain that takes the chain's i-th weight.
func weightOp(ops []op.Op, i int) op.Op {
	for _, o := range ops {
		w := len(o.Sig().W)
		if i < w {
			return o
		}
		i -= w
	}
	panic("BUG: node has more weights than its operators take")
}

// chain builds the graph of a node: every operator reads the node's inputs; one whose output has the
// name of its input works in place; the last one writes the outputs.
func chain(ops []op.Op, layout string) (g op.Graph, inPlace bool) {
	if len(ops) == 1 {
		return op.Single(ops[0], layout), false
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
			if i < last {
				g.Outputs = append(g.Outputs, v)
				inPlace = true
			}
		}
		g.Nodes = append(g.Nodes, n)
	}
	g.Outputs = append(g.Outputs, ops[last].Sig().Out...)
	return g, inPlace
}

// graph registers a graph for a processor and returns its name; equal graphs share one.
func (b *builder) graph(proc, label string, g op.Graph) string {
	code, err := json.Marshal(g)
	if err != nil {
		panic("BUG: graph does not encode: " + err.Error())
	}
	key := proc + "\x00" + string(code)
	if name, ok := b.graphs[key]; ok {
		return name
	}
	name := proc + "/" + label
	for i := 2; b.hasGraph(name); i++ {
		name = fmt.Sprintf("%s/%s#%d", proc, label, i)
	}
	b.graphs[key] = name
	b.out.Graphs = append(b.out.Graphs, planir.Graph{Name: name, Proc: proc, Graph: g, Artifact: fmt.Sprintf("graph/%04d", len(b.out.Graphs))})
	return name
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
	for _, name := range b.order {
		b.out.Buffers = append(b.out.Buffers, *b.buffers[name])
	}
	b.out.Cache = planir.Cache{Type: b.plan.KV, MaxContext: b.plan.MaxContext}
	layersOf := map[string]int{}
	for _, s := range b.model.Sections {
		for _, n := range s.Nodes {
			for _, w := range n.W {
				layersOf[w] = s.Layers
			}
			for _, o := range n.Ops {
				if o.Kind == op.KVAppend {
					b.out.Cache.Layers, b.out.Cache.KVHeads, b.out.Cache.HeadDim = s.Layers, o.KVHeads, o.HeadDim
				}
			}
		}
	}
	keys := make([]packKey, 0, len(b.packs))
	for k := range b.packs {
		keys = append(keys, k)
	}
	rank := map[string]int{}
	for i, w := range b.model.Weights {
		rank[w.Name] = i
		layers := layersOf[w.Name]
		if len(w.Const) > 0 {
			layers = 0
		}
		b.out.Weights = append(b.out.Weights, planir.Weight{
			Name: w.Name, From: w.From, Interleave: w.Interleave, K: w.K, N: w.N,
			Transposed: w.Transposed, Layers: layers, Const: w.Const,
		})
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
		p := planir.Pack{Weight: k.weight, K0: k.k0, K1: k.k1, N0: use.lo, N1: use.hi, Scheme: k.scheme, Layout: k.layout}
		p.Name = fmt.Sprintf("%s/%s.%s", k.weight, k.scheme, k.layout)
		w := &b.out.Weights[rank[k.weight]]
		if k.k0 != 0 || k.k1 != w.K {
			p.Name += fmt.Sprintf(".k%d-%d", k.k0, k.k1)
		}
		if k.owner != "" {
			p.Name += fmt.Sprintf(".%s.n%d-%d", k.owner, k.n0, k.n1)
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
	for i, r := range rows {
		lo, hi, name := 1, r, fmt.Sprintf("prefill@%d", r)
		if i > 0 {
			lo = rows[i-1] + 1
		}
		if r == 1 {
			name = "decode"
		}
		if i == len(rows)-1 {
			hi = b.plan.MaxContext
		}
		if lo <= hi {
			b.out.Decider = append(b.out.Decider, planir.Decide{Min: lo, Max: hi, Program: name})
		}
	}
	return nil
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
