package profiler

import (
	"fmt"
	"slices"
	"sort"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/socs"
)

// Request asks for one measurement.
type Request struct {
	What     record.Measurement // without samples
	Priority int                // lower ones are measured first
}

// Key is the key of the measurement.
func (r *Request) Key() string { return r.What.Key() }

// Priorities of the requests for a model: what a plan for the given buckets cannot do without
// comes first.
const (
	PriorityBase    = iota // bandwidth, hand-over, launch; whole weights at M = 1 and at the buckets
	PriorityGlue           // everything between the matrices, and attention; no plan can do without
	PriorityShards         // parts of weights, and processors beside each other
	PriorityBetween        // row counts between the buckets, for interpolation
)

// Want says what is to be measured for a model on a SoC.
type Want struct {
	Processors []string    // default: all of the SoC
	Buckets    []int       // row counts of prefill, ascending; default 256
	Batches    []int       // sequences that are decoded together; default one
	Schemes    []op.Scheme // of matrix multiplications; default the stored precision, a32/w32
	MaxContext int         // positions; default what the largest bucket leaves room for, at least 512
}

// grid is the row counts that cost models are fitted on.
var grid = []int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512}

const (
	maxBuckets = 64
	maxBucket  = 1 << 16
	maxContext = 1 << 24

	// bandwidthBytes is the amount that samples of bandwidth are times of.
	bandwidthBytes = 64 << 20
)

// Requests lists what to measure to plan model m on s: every weight shape at M = 1, at the buckets and
// on a grid between them; parts of weights along columns and along K; the operators between; attention
// over several contexts; pairs of processors at work at the same time; bandwidth, launch and
// hand-over. Each is made for every processor that can execute it. The list is in order of
// priority and has each key once.
//
// Matrices, embeddings and caches are asked for cold, that is as a model finds them: rotated through
// as many bytes as the model has, or beyond the last cache.
func Requests(s *socs.SoC, m *models.Model, w Want) ([]Request, error) {
	b := &builder{soc: s, seen: map[string]bool{}}
	if err := b.want(m, w); err != nil {
		return nil, err
	}
	b.base()
	g := m.Graph()
	b.model(&g, b.rows(), b.between())
	if batch := g.Batch(); len(w.Batches) > 0 {
		b.model(&batch, w.Batches, nil)
	}
	b.experts(m)
	b.footprints(m, &g)
	sort.SliceStable(b.out, func(i, j int) bool { return b.out[i].Priority < b.out[j].Priority })
	return b.out, nil
}

// builder collects requests, each key once.
type builder struct {
	soc     *socs.SoC
	procs   []*socs.Processor
	buckets []int
	schemes []op.Scheme
	context int
	out     []Request
	seen    map[string]bool
}

func (b *builder) want(m *models.Model, w Want) error {
	fail := func(format string, args ...any) *diag.Diagnostic {
		return diag.New(diag.ClassInput, "list measurements for model %q on SoC %q: %w", m.Name, b.soc.Name, fmt.Errorf(format, args...))
	}
	names := w.Processors
	if len(names) == 0 {
		names = processorNames(b.soc)
	}
	for _, n := range names {
		p := b.soc.Processor(n)
		if p == nil {
			return fail("no processor %q", n).WithHint("it has %v", processorNames(b.soc))
		}
		b.procs = append(b.procs, p)
	}
	b.buckets = slices.Clone(w.Buckets)
	if len(b.buckets) == 0 {
		b.buckets = []int{256}
	}
	slices.Sort(b.buckets)
	b.buckets = slices.Compact(b.buckets)
	for _, n := range w.Batches {
		if n < 2 || n > maxBucket {
			return fail("batches %v, want numbers of 2..%d", w.Batches, maxBucket)
		}
	}
	if len(b.buckets) > maxBuckets || b.buckets[0] < 1 || b.buckets[len(b.buckets)-1] > maxBucket {
		return fail("buckets %v, want at most %d of 1..%d", b.buckets, maxBuckets, maxBucket)
	}
	b.schemes = w.Schemes
	if len(b.schemes) == 0 {
		b.schemes = []op.Scheme{op.A32W32}
	}
	for _, x := range b.schemes {
		if _, err := op.ParseScheme(string(x)); err != nil {
			return fail("%w", err)
		}
		if !slices.ContainsFunc(b.procs, func(p *socs.Processor) bool { return slices.Contains(p.Schemes, x) }) {
			return fail("no processor executes scheme %q", x)
		}
	}
	b.schemes = slices.Clone(b.schemes)
	for i, x := range b.schemes {
		// Products with static scales are those with scales of rows: one of them is measured where that answers for both.
		if x.Twin() != "" && x.Static() && !slices.ContainsFunc(b.procs, func(p *socs.Processor) bool {
			return slices.Contains(p.Schemes, x) && !slices.Contains(p.Schemes, x.Twin())
		}) {
			b.schemes[i] = x.Twin()
		}
	}
	for i := len(b.schemes) - 1; i > 0; i-- {
		if slices.Contains(b.schemes[:i], b.schemes[i]) {
			b.schemes = slices.Delete(b.schemes, i, i+1)
		}
	}
	b.context = w.MaxContext
	if b.context == 0 {
		b.context = max(512, 2*b.largest())
		if m.MaxContext > 0 {
			b.context = min(b.context, m.MaxContext)
		}
	}
	b.context = max(b.context, b.largest())
	if b.context > maxContext {
		return fail("context of %d positions, want at most %d", b.context, maxContext)
	}
	return nil
}

func (b *builder) largest() int { return b.buckets[len(b.buckets)-1] }

// rows are the row counts a plan certainly uses: 1 and the buckets.
func (b *builder) rows() []int {
	if b.buckets[0] == 1 {
		return b.buckets
	}
	return append([]int{1}, b.buckets...)
}

// between are the other row counts of the grid.
func (b *builder) between() (out []int) {
	for _, m := range grid {
		if m < b.largest() && !slices.Contains(b.rows(), m) {
			out = append(out, m)
		}
	}
	return out
}

func (b *builder) add(priority int, m record.Measurement) {
	m.Unit = "ns"
	key := m.Key()
	if b.seen[key] {
		return
	}
	b.seen[key] = true
	b.out = append(b.out, Request{What: m, Priority: priority})
}

// op asks for an operator on one processor, if it executes it.
func (b *builder) op(priority int, p *socs.Processor, o op.Op) {
	if m, ok := b.measurement(p, o); ok {
		b.add(priority, m)
	}
}

func (b *builder) measurement(p *socs.Processor, o op.Op) (record.Measurement, bool) {
	m := record.Measurement{Kind: record.Op, Proc: p.Name, Op: &o}
	if o.Validate() != nil || !p.Executes(o.Kind) {
		return m, false
	}
	switch o.Kind {
	case op.MatMul, op.ExpertMatMul:
		if !slices.Contains(p.Schemes, o.Scheme) {
			return m, false
		}
		m.Layout, m.Cold = p.Layouts[o.Scheme.Weight()], true
	case op.Attention, op.KVAppend:
		if !slices.Contains(p.KV, o.KV) {
			return m, false
		}
		m.Cold = o.Kind == op.Attention
	case op.Embed:
		m.Cold = true
		if w := o.Scheme.Weight(); w != "" {
			if m.Layout = p.Layouts[w]; m.Layout != op.TilesLayout {
				return m, false
			}
		}
	}
	return m, true
}

// base asks for what does not depend on the model.
func (b *builder) base() {
	for _, p := range b.procs {
		b.add(PriorityBase, record.Measurement{Kind: record.Bandwidth, Proc: p.Name, Bytes: bandwidthBytes})
		o := op.Op{Kind: op.Copy, M: 1, N: 1}
		if !p.Executes(op.Copy) {
			o.Kind = op.Add
		}
		if p.Executes(o.Kind) {
			b.add(PriorityBase, record.Measurement{Kind: record.Launch, Proc: p.Name, Op: &o})
		}
	}
	for _, p := range b.procs {
		for _, q := range b.procs {
			if p == q || b.soc.Concurrent(p.Name, q.Name) != nil {
				continue
			}
			b.add(PriorityBase, record.Measurement{Kind: record.Sync, Proc: p.Name, To: q.Name})
			b.add(PriorityShards, record.Measurement{Kind: record.Bandwidth, Proc: p.Name, Bytes: bandwidthBytes, Concurrent: []record.Partner{{Proc: q.Name}}})
			if l, ok := b.soc.Link(p.Name, q.Name); ok && l.CopyGBps > 0 {
				for _, bytes := range []int64{64 << 10, 1 << 20, 16 << 20} {
					b.add(PriorityBase, record.Measurement{Kind: record.Copy, Proc: p.Name, To: q.Name, Bytes: bytes})
				}
			}
		}
	}
}

// model asks for the operators of the graph at row counts that a plan uses and others between them.
func (b *builder) model(g *models.Graph, rows, between []int) {
	for i := range g.Sections {
		s := &g.Sections[i]
		for j := range s.Nodes {
			n := &s.Nodes[j]
			single := slices.ContainsFunc(s.Values, func(v models.Value) bool { return v.Rows1 && slices.Contains(n.Out, v.Name) })
			at, more := rows, between
			if single {
				at, more = []int{1}, nil
			}
			for _, o := range n.Ops {
				if o.Kind == op.SelectRow {
					at, more = rows, nil
				}
				b.template(o, b.schemesOf(n), at, more)
				if n.Packed != "" && slices.ContainsFunc(b.schemes, func(x op.Scheme) bool { return x.Weight() == op.I32Q8C.Weight() }) {
					o.Scheme, o.Table = op.I32Q8C, ""
					b.template(o, nil, at, more)
				}
			}
		}
	}
}

// schemesOf are those a node's matrix is asked for in.
func (b *builder) schemesOf(n *models.Node) []op.Scheme {
	if n.Exact {
		return []op.Scheme{op.A32W32}
	}
	return b.schemes
}

// template asks for an operator at every row count, a matrix in all schemes.
func (b *builder) template(o op.Op, schemes []op.Scheme, rows, between []int) {
	for _, p := range b.procs {
		for _, m := range rows {
			o.M = m
			switch {
			case o.HasScheme():
				b.matrix(p, o, schemes)
			case o.Kind == op.Attention:
				b.attention(p, o)
			default:
				b.glue(p, o)
			}
		}
		for _, m := range between {
			o.M = m
			switch {
			case o.HasScheme():
				eachScheme(o, schemes, func(o op.Op) {
					b.op(PriorityBetween, p, o)
					b.forms(PriorityBetween, p, o, false, true)
				})
			default:
				// Linear in M, or nearly: two points between say where the line bends.
				if m == 16 || m == 96 {
					o.Context = 0
					if o.Kind == op.Attention {
						o.Context = m
					}
					b.op(PriorityBetween, p, o)
				}
			}
		}
	}
	if o.HasScheme() {
		b.beside(o, schemes, rows)
	}
}

func eachScheme(o op.Op, schemes []op.Scheme, f func(op.Op)) {
	for _, scheme := range schemes {
		o.Scheme = scheme
		f(o)
	}
}

// matrix asks for a weight at one row count a plan uses, whole and, at M = 1 and the largest bucket, in
// parts along N, down to one tile, and, if it is one matrix, along K.
func (b *builder) matrix(p *socs.Processor, o op.Op, schemes []op.Scheme) {
	eachScheme(o, schemes, func(o op.Op) {
		b.op(PriorityBase, p, o)
		b.forms(PriorityShards, p, o, true, true)
		fan := 0 // rows per token of what it computes
		if o.Fan > 1 {
			fan = o.Fan
		}
		if o.Scheme.QuantisedRows() {
			quant := op.Op{Kind: op.QuantRows, M: o.M, N: o.K, Fan: fan}
			if o.Spread {
				quant.Fan = 0
			}
			b.op(PriorityGlue, p, quant)
		}
		// Parts are gathered by a copy where outputs cannot be strided.
		b.op(PriorityGlue, p, op.Op{Kind: op.Copy, M: o.M, N: part(o.N, 1, 2, p.Tile.N), Fan: fan})
		often := o.M == 1 || o.M == b.largest()
		shard := func(o op.Op) {
			if often {
				b.op(PriorityShards, p, o)
			}
			b.forms(PriorityShards, p, o, false, often)
		}
		for _, quarter := range []int{2, 1, 3, 0} { // the last is one tile: how much few columns take does not follow from many
			q := o
			q.N = part(o.N, quarter, 4, p.Tile.N)
			shard(q)
		}
		if o.Kind != op.MatMul || o.Scheme.Grid() { // results on a grid have no partial sums
			return
		}
		half := o
		half.K = part(o.K, 1, 2, p.Tile.K)
		shard(half)
		if o.Bias { // the first part adds it, the others do not
			o.Bias, half.Bias = false, false
			shard(o)
			shard(half)
		}
	})
}

// forms asks for a product in the other forms that the processor has. Of convolutions that is the squarest image, and with all
// every factorisation of the rows (llm.npu sec. 4), after what matters more. Without others it is images alone: those of other numbers of
// rows tell nothing of one, so that each needs shapes of its own.
func (b *builder) forms(priority int, p *socs.Processor, o op.Op, all, others bool) {
	if o.Kind != op.MatMul {
		return
	}
	for _, f := range op.FormsOf(o.M, p.Forms[o.Scheme]) {
		at := priority
		switch conv := f.Class() == op.Conv; {
		case conv && f == op.Squarest(o.M):
		case conv && all:
			at = PriorityBetween
		case conv || !others:
			continue
		}
		o.Form = f
		b.op(at, p, o)
	}
}

// expertRows are the rows that single experts are measured with.
var expertRows = []int{1, 16, 32, 64, 128, 256, 512, 1024}

// experts asks for single experts, where a SoC has a processor of static shapes: there and on the control processor, which
// takes what goes beyond their capacities (solver.PoseTiers).
func (b *builder) experts(m *models.Model) {
	static := func(p *socs.Processor) bool { return p.StaticShapes }
	if m.Experts == 0 || !slices.ContainsFunc(b.procs, static) {
		return
	}
	for _, p := range b.procs {
		if !p.StaticShapes && p.Name != b.soc.Control {
			continue
		}
		for _, rows := range expertRows {
			for _, o := range m.ExpertOps(rows) {
				if o.Kind != op.MatMul {
					b.op(PriorityShards, p, o)
					continue
				}
				for _, x := range b.schemes {
					o.Scheme = x
					b.op(PriorityShards, p, o)
					b.forms(PriorityShards, p, o, false, true)
					if x.QuantisedRows() {
						b.op(PriorityShards, p, x.QuantRows(rows, o.K, 1))
					}
				}
			}
		}
	}
}

// Half is the half of n columns that processors are asked for side by side: a multiple of their tile.
func Half(n, tile int) int { return part(n, 1, 2, tile) }

// part is num/den of n rounded to a multiple of tile, at least one tile and at most n.
func part(n, num, den, tile int) int {
	tile = max(tile, 1)
	x := n * num / den / tile * tile
	return min(max(x, tile), n)
}

// attention asks for M rows over several contexts, with all heads and with half of the key/value heads.
func (b *builder) attention(p *socs.Processor, o op.Op) {
	contexts := []int{o.M}
	most := b.context
	if o.Window > 0 && o.Window < most {
		most = o.Window // beyond it, only whether the time stays the same is asked
	}
	for c := 64; c < most; c *= 4 {
		contexts = append(contexts, c)
	}
	contexts = append(contexts, most, b.context)
	for _, c := range contexts {
		if c < o.M {
			continue
		}
		o.Context = c
		b.op(PriorityGlue, p, o)
		if half := o; o.KVHeads > 1 {
			half.KVHeads = o.KVHeads / 2
			half.Heads = o.Heads / o.KVHeads * half.KVHeads
			b.op(PriorityShards, p, half)
		}
	}
}

// glue asks for an operator between the matrices, whole and halved where plans halve it.
func (b *builder) glue(p *socs.Processor, o op.Op) {
	b.op(PriorityGlue, p, o)
	half := o
	switch {
	case o.Kind == op.Add: // reads and writes alone: half the columns take half the time
		return
	case o.Kind.ByColumns():
		half.N = part(o.N, 1, 2, o.ColumnUnit(p.Tile.N))
	case o.Kind.Has("kv_heads"):
		if o.KVHeads < 2 || o.Joint {
			return
		}
		half.KVHeads = o.KVHeads / 2
		half.Heads = o.Heads / o.KVHeads * half.KVHeads
	default:
		return
	}
	b.op(PriorityShards, p, half)
}

// beside asks for both halves of a weight on two processors at the same time: at M = 1, where they compete
// for memory, and at the largest row count.
func (b *builder) beside(o op.Op, schemes []op.Scheme, rows []int) {
	at := []int{1}
	if last := rows[len(rows)-1]; last != 1 {
		at = append(at, last)
	}
	for _, p := range b.procs {
		for _, q := range b.procs {
			if p == q || b.soc.Concurrent(p.Name, q.Name) != nil {
				continue
			}
			eachScheme(o, schemes, func(o op.Op) {
				for _, m := range at {
					o.M = m
					mine, theirs := o, o
					mine.N, theirs.N = Half(o.N, p.Tile.N), Half(o.N, q.Tile.N)
					x, ok1 := b.measurement(p, mine)
					y, ok2 := b.measurement(q, theirs)
					if ok1 && ok2 {
						x.Concurrent = []record.Partner{{Proc: q.Name, Op: y.Op, Layout: y.Layout, Cold: y.Cold}}
						b.add(PriorityShards, x)
					}
				}
			})
		}
	}
}

// footprints says through how many bytes cold operands are rotated: the model's own, where these
// are fewer than a cache may hold.
func (b *builder) footprints(m *models.Model, g *models.Graph) {
	// Bytes of matrices by scheme: those that one token reads, and those of all experts.
	read, held := map[op.Scheme]int64{}, map[op.Scheme]int64{}
	cache := map[op.Type]int64{}
	for i := range g.Sections {
		times := int64(max(g.Sections[i].Layers, 1))
		for j := range g.Sections[i].Nodes {
			n := &g.Sections[i].Nodes[j]
			for _, o := range n.Ops {
				switch o.Kind {
				case op.MatMul, op.ExpertMatMul:
					for _, scheme := range b.schemes {
						one := scheme
						if n.Exact {
							one = op.A32W32
						}
						bytes := times * op.WeightBytes(one.Weight(), o.K, o.N)
						read[scheme] += bytes * int64(max(1, min(o.Fan, o.Experts)))
						held[scheme] += bytes * int64(max(1, o.Experts))
					}
				case op.Attention:
					cache[o.KV] += times * 2 * int64(b.context) * int64(o.KVHeads*o.HeadDim*o.KV.Bytes())
				}
			}
		}
	}
	enough := 2 * b.soc.LastCacheBytes()
	bound := func(bytes int64) int64 {
		if bytes >= enough {
			return 0 // beyond the caches
		}
		return bytes
	}
	for i := range b.out {
		w := &b.out[i].What
		if w.Op == nil || !w.Cold || b.soc.Simulated() {
			continue
		}
		scheme := w.Op.Scheme
		if !slices.Contains(b.schemes, scheme) { // of a matrix that is always exact, or none
			scheme = b.schemes[0]
		}
		// The whole decode step passes between two uses of a weight or of a layer's cache; between two uses
		// of an expert the others do, too.
		switch w.Op.Kind {
		case op.MatMul:
			w.Footprint = bound(read[scheme] + cache[op.F32] + cache[op.F16])
		case op.ExpertMatMul:
			w.Footprint = bound(held[scheme] + cache[op.F32] + cache[op.F16])
		case op.Attention:
			w.Footprint = bound(read[scheme] + cache[w.Op.KV])
		case op.Embed:
			w.Footprint = bound(int64(w.Op.K) * int64(w.Op.N) * int64(max(1, w.Op.Table.Bytes())))
		}
	}
}
