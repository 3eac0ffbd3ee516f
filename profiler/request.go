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

// Priorities of the requests for a model. Measurements that every plan for the given buckets needs come first.
const (
	priorityBase    = iota // bandwidth, hand-over, launch; whole weights at M = 1 and at the buckets
	priorityGlue           // all operators between the matrices, and attention
	priorityShards         // parts of weights, and processors beside each other
	priorityBetween        // row counts between the buckets, for interpolation
)

// Want says what to measure for a model on a SoC. Zero values stand for the defaults.
type Want struct {
	Processors []string    // default: all of the SoC
	Buckets    []int       // row counts of prefill, ascending; default 256
	Batches    []int       // numbers of sequences that are decoded together; default none
	Schemes    []op.Scheme // of matrix multiplications; default the stored precision, a32/w32
	MaxContext int         // positions; default twice the largest bucket, at least 512 and at most the model's
	Caches     []op.Type   // in which keys and values may be cached; default f32
	Densities  []float64   // of sparse attention: mean shares of the positions; default none
	Besides    []Placed    // operators beside those that every plan may need, such as odd shares of a matrix
	Together   [][]string  // sets of processors to measure the joint bandwidth of, beside all pairs
}

// Placed is an operator on a processor.
type Placed struct {
	Proc string
	Op   op.Op
}

// grid lists the row counts that cost models are fitted on.
var grid = []int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512}

const (
	maxBuckets = 64
	maxBucket  = 1 << 16
	maxContext = 1 << 24

	bandwidthBytes = 64 << 20 // read by each sample of bandwidth
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
// Matrices, embeddings and caches are measured cold, as in a model: rotated through as many bytes as the model has, or
// through more than the last-level cache holds.
//
// It fails with class ClassInput where want names a processor or a scheme that the SoC does not have, or numbers out of
// range.
func Requests(soc *socs.SoC, model *models.Model, want Want) ([]Request, error) {
	list := &builder{soc: soc, seen: map[string]bool{}}
	if err := list.apply(model, want); err != nil {
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
	if len(want.Densities) > 0 {
		// The time of an estimate by its number of heads follows from two points.
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
	soc     *socs.SoC
	procs   []*socs.Processor // the ones to measure
	buckets []int             // rows
	schemes []op.Scheme       // to measure
	static  []op.Scheme       // wanted schemes that are measured as their twins, which may have other forms
	shadow  bool              // some scheme has shadow outliers, so that their products are measured too
	context int               // positions that attention is measured up to
	caches  []op.Type         // of keys and values

	requests []Request
	seen     map[string]bool // keys of requests
}

// apply validates what is wanted and fills in defaults.
func (b *builder) apply(model *models.Model, want Want) error {
	err := b.applyAll(model, want)
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

// applyAll is apply without hints. Later choices rely on earlier ones: rows on processors, the context on rows.
func (b *builder) applyAll(model *models.Model, want Want) error {
	if err := b.chooseProcessors(want.Processors); err != nil {
		return err
	}
	if err := b.chooseRows(want); err != nil {
		return err
	}
	if err := b.chooseSchemes(want.Schemes); err != nil {
		return err
	}
	return b.chooseContext(model, want.MaxContext, want.Caches)
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

// chooseProcessors finds the processors, all of them where none is named.
func (b *builder) chooseProcessors(names []string) error {
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

// chooseRows sets the buckets, ascending and without duplicates, and checks the batches.
func (b *builder) chooseRows(want Want) error {
	b.buckets = slices.Clone(want.Buckets)
	if len(b.buckets) == 0 {
		b.buckets = []int{256}
	}
	slices.Sort(b.buckets)
	b.buckets = slices.Compact(b.buckets)
	if len(b.buckets) > maxBuckets || b.buckets[0] < 1 || b.largest() > maxBucket {
		return fmt.Errorf("buckets %v, want at most %d of 1..%d", b.buckets, maxBuckets, maxBucket)
	}

	for _, batch := range want.Batches {
		if batch < 2 || batch > maxBucket {
			return fmt.Errorf("batches %v, want numbers of 2..%d", want.Batches, maxBucket)
		}
	}

	return nil
}

// chooseSchemes sets the schemes, without duplicates. A static scheme is replaced by its dynamic variant where every
// processor with the one has the other, because their products take the same time.
func (b *builder) chooseSchemes(schemes []op.Scheme) error {
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
		if b.measuredAsTwin(scheme) {
			b.static = append(b.static, scheme)
			scheme = scheme.Twin()
		}
		if !slices.Contains(b.schemes, scheme) {
			b.schemes = append(b.schemes, scheme)
		}
	}
	return nil
}

// measuredAsTwin reports whether a scheme is static and every processor that executes it executes its dynamic variant
// too.
func (b *builder) measuredAsTwin(scheme op.Scheme) bool {
	if scheme.Twin() == "" || !scheme.Static() {
		return false
	}
	return !slices.ContainsFunc(b.procs, func(proc *socs.Processor) bool {
		return slices.Contains(proc.Schemes, scheme) && !slices.Contains(proc.Schemes, scheme.Twin())
	})
}

// chooseContext sets the types of the cache, and up to how many positions attention is measured: at least the largest
// bucket.
func (b *builder) chooseContext(model *models.Model, most int, caches []op.Type) error {
	b.caches = caches
	if len(caches) == 0 {
		b.caches = []op.Type{op.F32}
	}

	for _, cached := range b.caches {
		if !slices.Contains(op.CacheTypes, cached) {
			return fmt.Errorf("cache type is %q, want %s", cached, diag.OneOf(op.CacheTypes))
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

// measurement returns the measurement of an operator on a processor, with the layout and coldness that it has in a
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
			what.Layout = proc.Layouts[weight]
			return what, what.Layout == op.TilesLayout
		}
	}
	return what, true
}

// addBase asks for the measurements that do not depend on the model.
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
			if proc != other && b.soc.Concurrent(proc.Name, other.Name) == nil {
				b.addPair(proc, other)
			}
		}
	}
}

// addPair asks for the hand-over, the joint bandwidth and the copies of a processor beside another one.
func (b *builder) addPair(proc, other *socs.Processor) {
	// Probe measures handing over to and from a device with a queue (measureMeetings).
	queued := proc.SingleQueue || other.SingleQueue
	if b.soc.Simulated() || !queued {
		b.add(priorityBase, record.Measurement{Kind: record.Sync, Proc: proc.Name, To: other.Name})
	}
	b.add(priorityShards, record.Measurement{
		Kind: record.Bandwidth, Proc: proc.Name, Bytes: bandwidthBytes,
		Concurrent: []record.Partner{{Proc: other.Name}},
	})

	link, ok := b.soc.Link(proc.Name, other.Name)
	if !ok || link.CopyGBps <= 0 {
		return
	}
	for _, bytes := range []int64{64 << 10, 1 << 20, 16 << 20} {
		b.add(priorityBase, record.Measurement{Kind: record.Copy, Proc: proc.Name, To: other.Name, Bytes: bytes})
	}
}

// addWanted asks for the operators and joint bandwidths that are wanted beside the model's own. A static scheme is
// measured as its dynamic variant where the processor has that. A processor that is not to be measured is an error.
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

		// The values of static scales do not change the time of a product.
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

			// One measurement for each member: the time in which it reads while all others read.
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
