package profiler

import (
	"errors"
	"fmt"
	"slices"

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

// Key returns the key of the measurement.
func (r *Request) Key() string { return r.What.Key() }

// Priorities of the requests for a model. What a plan for the given buckets cannot do without comes
// first.
const (
	priorityBase    = iota // bandwidth, hand-over, launch; whole weights at M = 1 and at the buckets
	priorityGlue           // everything between the matrices, and attention; no plan can do without
	priorityShards         // parts of weights, and processors beside each other
	priorityBetween        // row counts between the buckets, for interpolation
)

// Want says what to measure for a model on a SoC.
type Want struct {
	Processors []string    // default: all of the SoC
	Buckets    []int       // row counts of prefill, ascending; default 256
	Batches    []int       // sequences that are decoded together; default one
	Schemes    []op.Scheme // of matrix multiplications; default the stored precision, a32/w32
	MaxContext int         // positions; default what the largest bucket leaves room for, at least 512
	Caches     []op.Type   // in which keys and values may be cached; default f32
	// Densities are mean shares of the positions that sparse attention is measured with; default none, and no part of
	// it.
	Densities []float64
	// Besides are operators beside those that every plan may need, such as odd shares of a matrix.
	Besides []Placed
	// Together are sets of processors whose joint bandwidth is measured, beside all pairs.
	Together [][]string
}

// Placed is an operator on a processor.
type Placed struct {
	Proc string
	Op   op.Op
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

// Requests lists what to measure to plan a model on a SoC, for every processor that can execute it,
// by priority and each key once:
//
//   - every weight shape at M = 1, at the buckets, and on a grid between them;
//   - parts of weights, along columns and along K;
//   - the operators between the products, and attention over several contexts;
//   - pairs of processors at work at the same time;
//   - bandwidth, launch and hand-over.
//
// Matrices, embeddings and caches are measured cold, as a model finds them: rotated through as many
// bytes as the model has, or through more than the last-level cache holds.
func Requests(soc *socs.SoC, model *models.Model, want Want) ([]Request, error) {
	list := &builder{soc: soc, seen: map[string]bool{}}
	if err := list.want(model, want); err != nil {
		return nil, err
	}
	list.addBase()
	graph := model.Graph()
	list.addModel(&graph, list.rows(), list.between())
	if batch := graph.Batch(); len(want.Batches) > 0 {
		list.addModel(&batch, want.Batches, nil)
	}
	for _, density := range want.Densities {
		list.addSparse(&graph, op.Sparsity{Density: density, Block: op.SparseBlock})
	}
	if len(want.Densities) > 0 { // what estimates take by how many heads they have follows from two points
		list.addSparse(&graph, op.Sparsity{Density: want.Densities[0], Block: op.SparseBlock, Estimated: halfEstimated})
	}
	list.addExperts(model)
	if err := list.addWanted(want); err != nil {
		return nil, err
	}
	list.setFootprints(&graph)
	slices.SortStableFunc(list.requests, func(a, b Request) int { return a.Priority - b.Priority })
	return list.requests, nil
}

// builder collects requests, each key once.
type builder struct {
	soc *socs.SoC
	// those that are measured, of the SoC
	procs []*socs.Processor
	// rows and precisions that operators are measured with
	buckets []int
	schemes []op.Scheme
	// static schemes that are wanted and measured as their twins, which may have other forms
	static []op.Scheme
	shadow bool // some scheme has shadow outliers: what is multiplied beside its products is measured
	// positions that attention is measured up to, and the types they may be cached in
	context  int
	caches   []op.Type
	requests []Request
	// keys of out
	seen map[string]bool
}

// want validates what is wanted and fills in defaults.
func (b *builder) want(model *models.Model, want Want) error {
	err := b.wantProcessors(want.Processors)
	if err == nil {
		err = b.wantRows(want)
	}
	if err == nil {
		err = b.wantSchemes(want.Schemes)
	}
	if err == nil {
		err = b.wantContext(model, want.MaxContext, want.Caches)
	}
	if err == nil {
		return nil
	}
	out := diag.New(diag.ClassInput, "list measurements for model %q on SoC %q: %w", model.Name, b.soc.Name, err)
	switch {
	case errors.Is(err, errNoProcessor):
		return out.WithHint("it has %v", processorNames(b.soc))
	case errors.Is(err, errNoScheme):
		return out.WithHint("name others in the workload's schemes; those of the SoC's processors are %v", b.executed())
	}
	return out
}

// errNoScheme marks the error whose hint lists the schemes that processors execute.
var errNoScheme = errors.New("no processor executes scheme")

// executed lists the schemes that some processor executes.
func (b *builder) executed() []op.Scheme {
	var schemes []op.Scheme
	for _, proc := range b.procs {
		schemes = append(schemes, proc.Schemes...)
	}
	slices.Sort(schemes)
	return slices.Compact(schemes)
}

// errNoProcessor marks the error whose hint lists the SoC's processors.
var errNoProcessor = errors.New("no processor")

// wantProcessors finds the processors, all of them where none is named.
func (b *builder) wantProcessors(names []string) error {
	if len(names) == 0 {
		names = processorNames(b.soc)
	}
	for _, name := range names {
		proc := b.soc.Processor(name)
		if proc == nil {
			return fmt.Errorf("%w %q", errNoProcessor, name)
		}
		b.procs = append(b.procs, proc)
	}
	return nil
}

// wantRows takes over the buckets, ascending and without duplicates, and checks the batches.
func (b *builder) wantRows(want Want) error {
	b.buckets = slices.Clone(want.Buckets)
	if len(b.buckets) == 0 {
		b.buckets = []int{256}
	}
	slices.Sort(b.buckets)
	b.buckets = slices.Compact(b.buckets)
	for _, batch := range want.Batches {
		if batch < 2 || batch > maxBucket {
			return fmt.Errorf("batches %v, want numbers of 2..%d", want.Batches, maxBucket)
		}
	}
	if len(b.buckets) > maxBuckets || b.buckets[0] < 1 || b.largest() > maxBucket {
		return fmt.Errorf("buckets %v, want at most %d of 1..%d", b.buckets, maxBuckets, maxBucket)
	}
	return nil
}

// wantSchemes takes over the schemes without duplicates. A static scheme is replaced by its dynamic
// variant where every processor with the one has the other, because their products take the same
// time.
func (b *builder) wantSchemes(schemes []op.Scheme) error {
	if len(schemes) == 0 {
		schemes = []op.Scheme{op.A32W32}
	}
	for _, scheme := range schemes {
		if _, err := op.ParseScheme(string(scheme)); err != nil {
			return err
		}
		executes := func(proc *socs.Processor) bool { return slices.Contains(proc.Schemes, scheme) }
		if !slices.ContainsFunc(b.procs, executes) {
			return fmt.Errorf("%w %q", errNoScheme, scheme)
		}
	}
	for _, scheme := range schemes {
		b.shadow = b.shadow || scheme.Shadow()
		// Products with static scales are those with scales of rows: one of them is measured where that answers for
		// both.
		if scheme.Twin() != "" && scheme.Static() && !slices.ContainsFunc(b.procs, func(proc *socs.Processor) bool {
			return slices.Contains(proc.Schemes, scheme) && !slices.Contains(proc.Schemes, scheme.Twin())
		}) {
			b.static = append(b.static, scheme)
			scheme = scheme.Twin()
		}
		if !slices.Contains(b.schemes, scheme) {
			b.schemes = append(b.schemes, scheme)
		}
	}
	return nil
}

// wantContext decides up to how many positions attention is measured, at least the largest bucket, and over what cache.
func (b *builder) wantContext(model *models.Model, most int, caches []op.Type) error {
	if b.caches = caches; len(caches) == 0 {
		b.caches = []op.Type{op.F32}
	}
	for _, cached := range b.caches {
		if !slices.Contains(op.CacheTypes, cached) {
			return fmt.Errorf("cache type is %q, want one of %q", cached, op.CacheTypes)
		}
	}
	b.context = most
	if b.context == 0 {
		b.context = max(512, 2*b.largest())
		if model.MaxContext > 0 {
			b.context = min(b.context, model.MaxContext)
		}
	}
	b.context = max(b.context, b.largest())
	if b.context > maxContext {
		return fmt.Errorf("context of %d positions, want at most %d", b.context, maxContext)
	}
	return nil
}

// largest returns the largest bucket of prefill.
func (b *builder) largest() int { return b.buckets[len(b.buckets)-1] }

// rows returns the row counts that a plan certainly uses: 1 and the buckets.
func (b *builder) rows() []int {
	if b.buckets[0] == 1 {
		return b.buckets
	}
	return append([]int{1}, b.buckets...)
}

// between returns the other row counts of the grid, up to the largest bucket.
func (b *builder) between() (out []int) {
	for _, rows := range grid {
		if rows < b.largest() && !slices.Contains(b.rows(), rows) {
			out = append(out, rows)
		}
	}
	return out
}

// add appends a request unless its key is there.
func (b *builder) add(priority int, what record.Measurement) {
	what.Unit = "ns"
	key := what.Key()
	if b.seen[key] {
		return
	}
	b.seen[key] = true
	b.requests = append(b.requests, Request{What: what, Priority: priority})
}

// addOp asks for an operator on one processor, if it executes it.
func (b *builder) addOp(priority int, proc *socs.Processor, operator op.Op) {
	if what, ok := b.measurement(proc, operator); ok {
		b.add(priority, what)
	}
}

// measurement is that of an operator on a processor, with the layout and coldness that it has in a
// model; false where the processor does not execute it.
func (b *builder) measurement(proc *socs.Processor, operator op.Op) (record.Measurement, bool) {
	what := record.Measurement{Kind: record.Op, Proc: proc.Name, Op: &operator}
	if operator.Validate() != nil || !proc.Executes(operator.Kind) {
		return what, false
	}
	switch operator.Kind {
	case op.MatMul, op.ExpertMatMul:
		if !slices.Contains(proc.Schemes, operator.Scheme) {
			return what, false
		}
		what.Layout, what.Cold = proc.Layouts[operator.Scheme.Weight()], true
	case op.Attention, op.KVAppend, op.Estimate, op.SparseAttend:
		if !slices.Contains(proc.KV, operator.KV) {
			return what, false
		}
		what.Cold = operator.Kind.ReadsCache()
	case op.Embed, op.OutlierMatMul:
		what.Cold = true
		if weight := operator.Scheme.Weight(); weight != "" {
			if what.Layout = proc.Layouts[weight]; what.Layout != op.TilesLayout {
				return what, false
			}
		}
	}
	return what, true
}

// addBase asks for what does not depend on the model.
func (b *builder) addBase() {
	for _, proc := range b.procs {
		b.add(priorityBase, record.Measurement{Kind: record.Bandwidth, Proc: proc.Name, Bytes: bandwidthBytes})
		operator := op.Op{Kind: op.Copy, M: 1, N: 1}
		if !proc.Executes(op.Copy) {
			operator.Kind = op.Add
		}
		if proc.Executes(operator.Kind) {
			b.add(priorityBase, record.Measurement{Kind: record.Launch, Proc: proc.Name, Op: &operator})
		}
	}
	for _, proc := range b.procs {
		for _, other := range b.procs {
			if proc == other || b.soc.Concurrent(proc.Name, other.Name) != nil {
				continue
			}
			// What handing over to and from a device with a queue takes is measured by probe (measureMeetings).
			if b.soc.Simulated() || !proc.SingleQueue && !other.SingleQueue {
				b.add(priorityBase, record.Measurement{Kind: record.Sync, Proc: proc.Name, To: other.Name})
			}
			b.add(priorityShards, record.Measurement{Kind: record.Bandwidth, Proc: proc.Name, Bytes: bandwidthBytes,
				Concurrent: []record.Partner{{Proc: other.Name}}})
			if link, ok := b.soc.Link(proc.Name, other.Name); ok && link.CopyGBps > 0 {
				for _, bytes := range []int64{64 << 10, 1 << 20, 16 << 20} {
					b.add(priorityBase, record.Measurement{Kind: record.Copy, Proc: proc.Name, To: other.Name,
						Bytes: bytes})
				}
			}
		}
	}
}

// addModel adds the operators of the graph, at row counts that a plan uses and at others between them.
func (b *builder) addModel(graph *models.Graph, rows, between []int) {
	for i := range graph.Sections {
		section := &graph.Sections[i]
		for j := range section.Nodes {
			node := &section.Nodes[j]
			single := slices.ContainsFunc(section.Values, func(value models.Value) bool {
				return value.Rows1 && slices.Contains(node.Out, value.Name)
			})
			at, more := rows, between
			if single {
				at, more = []int{1}, nil
			}
			for _, operator := range node.Ops {
				if operator.Kind == op.SelectRow {
					at, more = rows, nil
				}
				b.template(operator, b.schemesOf(node), at, more)
				// an embedding that shares its weight with the head may be read from the head's
				// packed weight
				for _, table := range b.tables() {
					if node.Packed != "" {
						operator.Scheme, operator.Table = table, ""
						b.template(operator, nil, at, more)
					}
				}
			}
		}
	}
}

// tables returns the schemes of an embedding that looks rows up in a weight of one of the schemes, each once.
func (b *builder) tables() (out []op.Scheme) {
	for _, scheme := range b.schemes {
		if table := scheme.Table(); table != "" && !slices.Contains(out, table) {
			out = append(out, table)
		}
	}
	return out
}

// halfEstimated is a share of query heads whose scores are estimated, the others' being decided without.
const halfEstimated = 0.5

// addSparse adds the parts of a sparse attention, in the shapes of the dense one.
func (b *builder) addSparse(graph *models.Graph, sparsity op.Sparsity) {
	graph = new(graph.Sparse(sparsity))
	for i := range graph.Sections {
		for j := range graph.Sections[i].Nodes {
			for _, operator := range graph.Sections[i].Nodes[j].Ops {
				if operator.Block > 0 {
					b.template(operator, nil, b.rows(), b.between())
				}
			}
		}
	}
}

// schemesOf returns the schemes in which a node's matrix is measured.
func (b *builder) schemesOf(node *models.Node) []op.Scheme {
	if node.Exact {
		return []op.Scheme{op.A32W32}
	}
	return b.schemes
}

// template adds an operator at every row count, a matrix in all schemes, and what works on a cache with every type of
// it.
func (b *builder) template(operator op.Op, schemes []op.Scheme, rows, between []int) {
	if !operator.Kind.Has("kv") {
		b.atRows(operator, schemes, rows, between)
		return
	}
	for _, operator.KV = range b.caches { // whichever the model's graph has
		b.atRows(operator, schemes, rows, between)
	}
}

// atRows is template of an operator whose cache has a type.
func (b *builder) atRows(operator op.Op, schemes []op.Scheme, rows, between []int) {
	for _, proc := range b.procs {
		for _, count := range rows {
			operator.M = count
			switch {
			case operator.HasScheme():
				b.addMatrix(proc, operator, schemes)
				b.addOutliers(proc, operator)
			case operator.Kind.Has("context"):
				b.addAttention(proc, operator)
			default:
				b.addGlue(proc, operator)
			}
		}
		for _, count := range between {
			operator.M = count
			switch {
			case operator.HasScheme():
				eachScheme(operator, schemes, func(operator op.Op) {
					b.addOp(priorityBetween, proc, operator)
					b.addForms(priorityBetween, proc, operator, false, true)
				})
			default:
				// Linear in M, or nearly: two points between say where the line bends.
				if count == 16 || count == 96 {
					operator.Context = 0
					if operator.Kind.Has("context") {
						operator.Context = count
					}
					b.addOp(priorityBetween, proc, operator)
				}
			}
		}
	}
	if operator.HasScheme() {
		b.addPairs(operator, schemes, rows)
	}
}

// eachScheme visits an operator in every scheme.
func eachScheme(operator op.Op, schemes []op.Scheme, visit func(op.Op)) {
	for _, scheme := range schemes {
		operator.Scheme = scheme
		visit(operator)
	}
}

// addMatrix adds a weight at one row count that a plan uses: whole, and the operators that come with
// it. At M = 1 and at the largest bucket it also adds parts: along N down to one tile, and along K
// where the weight is one matrix.
func (b *builder) addMatrix(proc *socs.Processor, operator op.Op, schemes []op.Scheme) {
	eachScheme(operator, schemes, func(operator op.Op) {
		b.addOp(priorityBase, proc, operator)
		b.addForms(priorityShards, proc, operator, true, true)
		fan := 0 // rows per token of what it computes
		if operator.Fan > 1 {
			fan = operator.Fan
		}
		if operator.Scheme.QuantisedRows() {
			quant := op.Op{Kind: op.QuantRows, M: operator.M, N: operator.K, Fan: fan}
			if operator.Spread {
				quant.Fan = 0
			}
			b.addOp(priorityGlue, proc, quant)
		}
		// Parts are gathered by a copy where outputs cannot be strided.
		half := part(operator.N, 1, 2, proc.Tile.N)
		b.addOp(priorityGlue, proc, op.Op{Kind: op.Copy, M: operator.M, N: half, Fan: fan})
		often := operator.M == 1 || operator.M == b.largest()
		shard := func(operator op.Op) {
			if often {
				b.addOp(priorityShards, proc, operator)
			}
			b.addForms(priorityShards, proc, operator, false, often)
		}
		// the last is one tile: how much few columns take does not follow from many
		for _, quarter := range []int{2, 1, 3, 0} {
			quarterOf := operator
			quarterOf.N = part(operator.N, quarter, 4, proc.Tile.N)
			shard(quarterOf)
		}
		if operator.Kind != op.MatMul || operator.Scheme.Grid() { // results on a grid have no partial sums
			return
		}
		partial := operator
		partial.K = part(operator.K, 1, 2, proc.Tile.K)
		shard(partial)
		if operator.Bias { // the first part adds it, the others do not
			operator.Bias, partial.Bias = false, false
			shard(operator)
			shard(partial)
		}
	})
}

// addOutliers adds what stands behind a product with shadow outliers: the product of what its scale cuts off, whole and
// in halves, also with few channels beyond the scale, and the addition.
func (b *builder) addOutliers(proc *socs.Processor, operator op.Op) {
	if !b.shadow || operator.Kind != op.MatMul {
		return
	}
	for _, cols := range []int{operator.N, part(operator.N, 1, 2, proc.Tile.N)} {
		b.addOp(priorityGlue, proc, op.Op{Kind: op.OutlierMatMul, M: operator.M, K: operator.K, N: cols,
			Scheme: op.A32W16})
		b.addOp(priorityGlue, proc, op.Op{Kind: op.Add, M: operator.M, N: cols})
	}
	if operator.K > op.FewChannels {
		b.addOp(priorityGlue, proc, op.Op{Kind: op.OutlierMatMul, M: operator.M, K: operator.K, N: operator.N,
			Scheme: op.A32W16, Channels: op.FewChannels})
	}
}

// addForms adds a product in the other forms that the processor has. A convolution is added as its
// squarest image; with all, every factorisation of the rows (llm.npu sec. 4) follows at low
// priority. Without others only images are added: an image of other rows tells nothing about this
// one, so that each needs its own shapes. A form that static schemes alone have is measured in one of them.
func (b *builder) addForms(priority int, proc *socs.Processor, operator op.Op, all, others bool) {
	if operator.Kind != op.MatMul {
		return
	}
	var asked []op.Form
	for _, scheme := range operator.Scheme.Alike() {
		if scheme != operator.Scheme && !slices.Contains(b.static, scheme) {
			continue
		}
		for _, form := range op.FormsOf(operator.M, proc.Forms[scheme]) {
			at := priority
			switch conv := form.Class() == op.Conv; {
			case slices.Contains(asked, form):
				continue
			case conv && form == op.Squarest(operator.M):
			case conv && all:
				at = priorityBetween
			case conv || !others:
				continue
			}
			formed := operator
			formed.Scheme, formed.Form = scheme, form
			b.addOp(at, proc, formed)
			asked = append(asked, form)
		}
	}
}

// expertRows are the row counts at which single experts are measured.
var expertRows = []int{1, 16, 32, 64, 128, 256, 512, 1024}

// addExperts adds single experts where the SoC has a processor of static shapes: on such processors,
// and on the control processor, which executes what exceeds their capacities (solver.PoseTiers).
func (b *builder) addExperts(model *models.Model) {
	static := func(proc *socs.Processor) bool { return proc.StaticShapes }
	if model.Experts == 0 || !slices.ContainsFunc(b.procs, static) {
		return
	}
	for _, proc := range b.procs {
		if !proc.StaticShapes && proc.Name != b.soc.Control {
			continue
		}
		for _, rows := range expertRows {
			for _, operator := range model.ExpertOps(rows) {
				if operator.Kind != op.MatMul {
					b.addOp(priorityShards, proc, operator)
					continue
				}
				for _, scheme := range b.schemes {
					operator.Scheme = scheme
					b.addOp(priorityShards, proc, operator)
					b.addForms(priorityShards, proc, operator, false, true)
					if scheme.QuantisedRows() {
						b.addOp(priorityShards, proc, scheme.QuantRows(rows, operator.K, 1))
					}
				}
			}
		}
	}
}

// Half returns the half of columns that processors are measured with side by side: a multiple of their
// tile.
func Half(columns, tile int) int { return part(columns, 1, 2, tile) }

// part is num/den of whole, rounded down to a multiple of tile, at least one tile and at most
// whole.
func part(whole, num, den, tile int) int {
	tile = max(tile, 1)
	size := whole * num / den / tile * tile
	return min(max(size, tile), whole)
}

// addAttention adds attention of M rows over contexts that grow by a factor of 4, with all heads and
// with half of the key/value heads.
func (b *builder) addAttention(proc *socs.Processor, operator op.Op) {
	contexts := []int{operator.M}
	most := b.context
	if operator.Window > 0 && operator.Window < most {
		most = operator.Window // beyond it, only whether the time stays the same is asked
	}
	for context := 64; context < most; context *= 4 {
		contexts = append(contexts, context)
	}
	contexts = append(contexts, most, b.context)
	for _, context := range contexts {
		if context < operator.M {
			continue
		}
		operator.Context = context
		b.addOp(priorityGlue, proc, operator)
		for part := operator; part.KVHeads > 1; {
			part.KVHeads /= 2
			part.Heads = operator.Heads / operator.KVHeads * part.KVHeads
			b.addOp(priorityShards, proc, part)
			if operator.Block == 0 { // only sparse attention has launches of a few heads
				break
			}
		}
	}
}

// addGlue adds an operator between the matrices, whole and halved in the way plans divide it.
func (b *builder) addGlue(proc *socs.Processor, operator op.Op) {
	b.addOp(priorityGlue, proc, operator)
	half := operator
	switch {
	case operator.Kind == op.Add: // reads and writes alone: half the columns take half the time
		return
	case operator.Kind.ByColumns():
		half.N = part(operator.N, 1, 2, operator.ColumnUnit(proc.Tile.N))
	case operator.Kind.Has("kv_heads"):
		if operator.KVHeads < 2 || operator.Joint {
			return
		}
		half.KVHeads = operator.KVHeads / 2
		half.Heads = operator.Heads / operator.KVHeads * half.KVHeads
	default:
		return
	}
	b.addOp(priorityShards, proc, half)
}

// addPairs adds both halves of a weight on two processors at the same time: at M = 1, where they
// compete for memory, and at the largest row count.
func (b *builder) addPairs(operator op.Op, schemes []op.Scheme, rows []int) {
	at := []int{1}
	if last := rows[len(rows)-1]; last != 1 {
		at = append(at, last)
	}
	for _, proc := range b.procs {
		for _, other := range b.procs {
			if proc == other || b.soc.Concurrent(proc.Name, other.Name) != nil {
				continue
			}
			eachScheme(operator, schemes, func(operator op.Op) {
				for _, count := range at {
					operator.M = count
					mine, theirs := operator, operator
					mine.N, theirs.N = Half(operator.N, proc.Tile.N), Half(operator.N, other.Tile.N)
					own, ok1 := b.measurement(proc, mine)
					company, ok2 := b.measurement(other, theirs)
					if ok1 && ok2 {
						own.Concurrent = []record.Partner{{Proc: other.Name, Op: company.Op, Layout: company.Layout,
							Cold: company.Cold}}
						b.add(priorityShards, own)
					}
				}
			})
		}
	}
}

// addWanted asks for operators and joint bandwidths that are wanted beside the model's own. A scheme with static scales
// is its twin where the processor has it. A processor that is not to be measured is an error.
func (b *builder) addWanted(want Want) error {
	find := func(name string) (*socs.Processor, error) {
		at := slices.IndexFunc(b.procs, func(proc *socs.Processor) bool { return proc.Name == name })
		if at < 0 {
			return nil, diag.New(diag.ClassInput, "list measurements on SoC %q: %w %q among those to be measured",
				b.soc.Name, errNoProcessor, name)
		}
		return b.procs[at], nil
	}
	for _, placed := range want.Besides {
		proc, err := find(placed.Proc)
		if err != nil {
			return err
		}
		// Static scales are values, which do not change the time: it is measured as the twin that finds its scales
		// itself, as elsewhere in the list.
		operator := placed.Op
		operator.Static, operator.Scales = false, 0
		twin := operator.Scheme.Twin()
		if operator.Scheme.Static() && slices.Contains(proc.Schemes, twin) && proc.HasForm(twin, operator.Form) {
			operator.Scheme = twin
		}
		b.addOp(priorityShards, proc, operator)
	}
	for _, set := range want.Together {
		for _, name := range set {
			if _, err := find(name); err != nil {
				return err
			}
			// One measurement for each member, of what it reads while all others read.
			what := record.Measurement{Kind: record.Bandwidth, Proc: name, Bytes: bandwidthBytes}
			for _, other := range set {
				if other != name {
					what.Concurrent = append(what.Concurrent, record.Partner{Proc: other})
				}
			}
			b.add(priorityShards, what)
		}
	}
	return nil
}

// traffic is how many bytes a model reads between two uses of an operand.
type traffic struct {
	read, held map[op.Scheme]int64 // of matrices by scheme: those that one token reads, and those of all experts
	cache      int64               // keys and values of all layers
}

// trafficOf adds up what one pass through the model reads.
func (b *builder) trafficOf(graph *models.Graph) traffic {
	out := traffic{read: map[op.Scheme]int64{}, held: map[op.Scheme]int64{}}
	for i := range graph.Sections {
		section := &graph.Sections[i]
		times := int64(max(section.Layers, 1))
		for j := range section.Nodes {
			node := &section.Nodes[j]
			for _, operator := range node.Ops {
				switch operator.Kind {
				case op.MatMul, op.ExpertMatMul:
					for _, scheme := range b.schemes {
						one := scheme
						if node.Exact {
							one = op.A32W32
						}
						bytes := times * op.WeightBytes(one.Weight(), operator.K, operator.N)
						out.read[scheme] += bytes * int64(max(1, min(operator.Fan, operator.Experts)))
						out.held[scheme] += bytes * int64(max(1, operator.Experts))
					}
				case op.Attention:
					// The most exact type is the largest one.
					bytes := int64(b.context) * int64(operator.KVHeads) * b.caches[0].CacheRowBytes(operator.HeadDim)
					out.cache += times * 2 * bytes
				}
			}
		}
	}
	return out
}

// setFootprints sets through how many bytes cold operands rotate: the model's own, where a cache could
// hold these. 0 stands for more than the caches hold.
func (b *builder) setFootprints(graph *models.Graph) {
	if b.soc.Simulated() {
		return
	}
	all := b.trafficOf(graph)
	enough := beyondCaches(b.soc)
	bound := func(bytes int64) int64 {
		if bytes >= enough {
			return 0 // beyond the caches
		}
		return bytes
	}
	for i := range b.requests {
		what := &b.requests[i].What
		if what.Op == nil || !what.Cold {
			continue
		}
		scheme := what.Op.Scheme
		if !slices.Contains(b.schemes, scheme) { // of a matrix that is always exact, or none
			scheme = b.schemes[0]
		}
		// The whole decode step passes between two uses of a weight or of a layer's cache; between two uses
		// of an expert the others do, too.
		switch what.Op.Kind {
		case op.MatMul:
			what.Footprint = bound(all.read[scheme] + all.cache)
		case op.ExpertMatMul:
			what.Footprint = bound(all.held[scheme] + all.cache)
		case op.Attention, op.Estimate, op.SparseAttend:
			what.Footprint = bound(all.read[scheme] + all.cache)
		case op.Embed:
			bytes := int64(what.Op.K) * int64(what.Op.N) * int64(max(1, what.Op.Table.Bytes()))
			what.Footprint = bound(bytes)
		}
	}
}
