package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/hetc/hetc/cmd/internal/cli"
	compiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
)

// AttentionOptions are the flags of hetc bench attention.
type AttentionOptions struct {
	Cores                         string
	Heads, KVHeads, HeadDim, Rows int
	Contexts                      []int
	Cache                         string
	Density                       float64
	Least                         int // positions that are kept at least
	Block, Groups, Rounds         int
	// Calibration is a file whose heads say which share each head keeps; empty: all keep the density.
	Calibration string
}

// attentionWay is a way to compute attention of one layer with two cores or one, and its times.
type attentionWay struct {
	Context     int    `json:"context"`
	Way         string `json:"way"`
	NS          int64  `json:"ns"`           // the least of all rounds
	MedianNS    int64  `json:"median_ns"`    //
	PredictedNS int64  `json:"predicted_ns"` // from the stages' own times, 0: it is one of them

	run func() error
	all []int64
}

// Attention measures attention of one layer over the last rows of contexts: dense and sparse, on one core and on two,
// by heads, and with the estimate of one group of heads beside the rest of the group before it (shadowAttn 3.4).
func Attention(ctx context.Context, ui *cli.Streams, options *AttentionOptions) error {
	const mostRounds = 1000
	if options.Rounds < 1 || options.Rounds > mostRounds {
		return diag.New(diag.ClassUsage, "--rounds %d: want 1 to %d", options.Rounds, mostRounds)
	}
	if options.Groups < 1 || options.KVHeads < 2 || options.KVHeads%options.Groups != 0 || options.KVHeads%2 != 0 {
		return diag.New(diag.ClassUsage,
			"--groups %d, --kv-heads %d: want an even number of key heads, a multiple of the groups",
			options.Groups, options.KVHeads)
	}
	if options.Rows < 1 || len(options.Contexts) == 0 || slices.Min(options.Contexts) < 1 {
		return diag.New(diag.ClassUsage, "--rows and --contexts must be at least 1, got %d and %v", options.Rows,
			options.Contexts)
	}
	drv := host.New()
	cores, err := benchCores(ctx, drv, options.Cores)
	if err != nil {
		return err
	}
	if len(cores) < 2 {
		return diag.New(diag.ClassUsage, "hetc bench attention: %d core, want two lanes", len(cores)).
			WithHint("allow the process two cores, or name them with --cores")
	}
	var lanes [2]*attentionLane
	for i := range lanes {
		if lanes[i], err = newAttentionLane(ctx, drv, fmt.Sprint(cores[i])); err != nil {
			return err
		}
		defer lanes[i].close()
	}
	list, err := measureAttention(ctx, ui, lanes, options)
	if err != nil {
		return err
	}
	var rows [][]string
	for _, way := range list {
		predicted := ""
		if way.PredictedNS > 0 {
			predicted = micros(way.PredictedNS)
		}
		rows = append(rows, []string{fmt.Sprint(way.Context), way.Way, micros(way.NS), micros(way.MedianNS), predicted})
	}
	ui.Table([]string{">positions", "attention", ">least us", ">median us", ">predicted us"}, rows)
	return ui.Result(map[string]any{"rows": options.Rows, "heads": options.Heads, "kv_heads": options.KVHeads,
		"head_dim": options.HeadDim, "cache": options.Cache, "density": options.Density, "least": options.Least,
		"block": options.Block, "groups": options.Groups, "rounds": options.Rounds, "ways": list})
}

// measureAttention measures all ways over all contexts, in rounds of random order, of which the first does not count.
func measureAttention(ctx context.Context, ui *cli.Streams, lanes [2]*attentionLane, options *AttentionOptions) (
	list []*attentionWay, err error) {
	line := ui.Line(false)
	defer line.End()
	rng := rand.New(rand.NewPCG(1, 2)) // of values and of the order of measurements
	for _, positions := range options.Contexts {
		ways, err := attentionWays(ctx, lanes, options, positions, rng)
		if err != nil {
			return nil, err
		}
		for round := -1; round < options.Rounds; round++ {
			for _, i := range rng.Perm(len(ways)) {
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				took, err := ways[i].measure()
				if err != nil {
					return nil, err
				}
				if round >= 0 {
					ways[i].all = append(ways[i].all, took)
				}
			}
			line.Bar(fmt.Sprintf("%d positions, round", positions), max(0, round), options.Rounds, "")
		}
		judgeAttention(ways, options.Groups)
		list = append(list, ways...)
	}
	return list, nil
}

// measure returns the time of a way in ns.
func (w *attentionWay) measure() (ns int64, err error) {
	start := time.Now()
	if err := w.run(); err != nil {
		return 0, fmt.Errorf("measure %s over %d positions: %w", w.Way, w.Context, err)
	}
	return time.Since(start).Nanoseconds(), nil
}

// Names of ways. The stages are those of sparse attention on one core, each measured alone.
const (
	wayDense      = "dense, one core"
	wayDenseTwo   = "dense, two cores by heads"
	waySparse     = "sparse, one core"
	waySparseTwo  = "sparse, two cores by heads"
	wayStages     = "sparse, estimate on the other core"
	stageEstimate = "  estimate alone"
	stageSelect   = "  select alone"
	stageAttend   = "  sparse products alone"
)

// judgeAttention finds quantiles, and predicts the ways from the least times of the stages. On one core the stages
// follow each other; two cores take half of the heads each. With groups of heads, the rest of a group begins when both
// its estimate and the rest of the group before it are done.
func judgeAttention(ways []*attentionWay, groups int) {
	least := map[string]int64{}
	for _, way := range ways {
		slices.Sort(way.all)
		way.NS, way.MedianNS = way.all[0], way.all[len(way.all)/2]
		least[way.Way] = way.NS
	}

	rest := least[stageSelect] + least[stageAttend]
	estimated, done := int64(0), int64(0)
	for range groups {
		estimated += least[stageEstimate] / int64(groups)
		done = max(done, estimated) + rest/int64(groups)
	}
	predicted := map[string]int64{
		waySparse:    least[stageEstimate] + rest,
		waySparseTwo: (least[stageEstimate] + rest) / 2,
		wayDenseTwo:  least[wayDense] / 2,
		wayStages:    done,
	}
	for _, way := range ways {
		way.PredictedNS = predicted[way.Way]
	}
}

// attentionLane is a processor with the thread that drives it.
type attentionLane struct {
	proc driver.Processor
	jobs chan func()
}

// newAttentionLane opens a processor of the host and attaches a thread to it.
func newAttentionLane(ctx context.Context, from driver.Driver, selection string) (*attentionLane, error) {
	proc, err := from.Open(ctx, driver.Config{Select: selection})
	if err != nil {
		return nil, err
	}

	lane := &attentionLane{proc: proc, jobs: make(chan func(), 1)}
	attached := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: a pinned thread ends with the goroutine
		err := proc.Attach()
		if attached <- err; err != nil {
			return
		}
		for job := range lane.jobs {
			job()
		}
	}()
	return lane, <-attached
}

// close ends the thread.
func (l *attentionLane) close() {
	close(l.jobs)
	_ = l.proc.Close() // nothing is kept of it
}

// call is one operator on a range of key heads, loaded on both lanes.
type call struct {
	exe   [2]driver.Executable
	bound driver.Bindings
}

// attentionWays loads dense and sparse attention, whole and in parts by heads, on both lanes, over random values.
func attentionWays(ctx context.Context, lanes [2]*attentionLane, options *AttentionOptions, positions int,
	rng *rand.Rand) ([]*attentionWay, error) {
	layer, err := newAttentionLayer(lanes[0].proc, options, positions, rng)
	if err != nil {
		return nil, err
	}

	loaded := attentionCalls{lanes: lanes, groups: options.Groups, calls: map[op.Kind]map[int][]call{}}
	for _, kind := range []op.Kind{op.Attention, op.Estimate, op.Select, op.SparseAttend} {
		loaded.calls[kind] = map[int][]call{}
		for _, parts := range []int{1, 2, options.Groups} {
			if loaded.calls[kind][parts], err = layer.parts(ctx, lanes, kind, parts); err != nil {
				return nil, err
			}
		}
	}

	ways := []*attentionWay{
		{Way: wayDense, run: loaded.alone(op.Attention)},
		{Way: wayDenseTwo, run: loaded.halves(op.Attention)},
		{Way: waySparse, run: loaded.alone(op.Estimate, op.Select, op.SparseAttend)},
		{Way: waySparseTwo, run: loaded.halves(op.Estimate, op.Select, op.SparseAttend)},
		{Way: wayStages, run: loaded.stages},
		{Way: stageEstimate, run: loaded.alone(op.Estimate)},
		{Way: stageSelect, run: loaded.alone(op.Select)},
		{Way: stageAttend, run: loaded.alone(op.SparseAttend)},
	}
	for _, way := range ways {
		way.Context = positions
	}

	// Scores and positions are there before any stage is measured alone.
	return ways, loaded.alone(op.Estimate, op.Select)()
}

// attentionCalls are the parts of a layer's attention as both lanes have loaded them, by kind and number of parts.
type attentionCalls struct {
	lanes  [2]*attentionLane
	groups int
	calls  map[op.Kind]map[int][]call
}

// on executes part number at of so many parts of operators on a lane, one after the other. It is called on its thread.
func (c *attentionCalls) on(lane, parts, at int, kinds ...op.Kind) error {
	for _, kind := range kinds {
		part := &c.calls[kind][parts][at]
		if _, err := c.lanes[lane].proc.Run(part.exe[lane], &part.bound); err != nil {
			return err
		}
	}
	return nil
}

// both executes something on each lane at the same time.
func (c *attentionCalls) both(first, second func() error) error {
	done := make(chan error, 2)
	c.lanes[0].jobs <- func() { done <- first() }
	c.lanes[1].jobs <- func() { done <- second() }
	return errors.Join(<-done, <-done)
}

// alone executes whole operators on the first lane.
func (c *attentionCalls) alone(kinds ...op.Kind) func() error {
	return func() error {
		done := make(chan error, 1)
		c.lanes[0].jobs <- func() { done <- c.on(0, 1, 0, kinds...) }
		return <-done
	}
}

// halves executes half of the heads on each lane.
func (c *attentionCalls) halves(kinds ...op.Kind) func() error {
	return func() error {
		return c.both(func() error { return c.on(0, 2, 0, kinds...) }, func() error { return c.on(1, 2, 1, kinds...) })
	}
}

// stages pipelines groups of heads: the second lane estimates a group's scores, then the first selects and attends.
func (c *attentionCalls) stages() error {
	ready := make(chan bool, c.groups) // a group's scores are there
	return c.both(func() error {
		for group := range c.groups {
			if !<-ready {
				return nil // the other lane says why
			}
			if err := c.on(0, c.groups, group, op.Select, op.SparseAttend); err != nil {
				return err
			}
		}
		return nil
	}, func() error {
		defer close(ready)
		for group := range c.groups {
			if err := c.on(1, c.groups, group, op.Estimate); err != nil {
				return err
			}
			ready <- true
		}
		return nil
	})
}

// attentionLayer holds the values of one layer: queries, cache, and the results of its operators.
type attentionLayer struct {
	options   *AttentionOptions
	positions int
	rows      int
	cache     op.Type
	views     map[string]driver.View // qkv, scores, positions, y
	keys      driver.View
	values    driver.View
	heads     []byte // weight of all heads
}

// newAttentionLayer fills queries, keys and values with random numbers.
func newAttentionLayer(proc driver.Processor, options *AttentionOptions, positions int,
	rng *rand.Rand) (*attentionLayer, error) {
	layer := &attentionLayer{options: options, positions: positions, rows: min(options.Rows, positions),
		cache: op.Type(options.Cache), views: map[string]driver.View{}}
	memory := func(bytes int64) (driver.Buffer, error) {
		region, err := mem.Alloc(int(bytes), 64)
		if err != nil {
			return nil, err
		}
		return proc.Import(region.Bytes())
	}
	for _, kind := range []op.Kind{op.Estimate, op.Select, op.SparseAttend} {
		operator := layer.operator(kind)
		if err := operator.Validate(); err != nil {
			return nil, diag.New(diag.ClassUsage, "hetc bench attention: %w", err)
		}
		sig := operator.Sig()
		for _, value := range slices.Concat(sig.In, sig.Out) {
			if _, there := layer.views[value.Name]; there {
				continue
			}
			buffer, err := memory(int64(value.Rows) * int64(value.Cols) * int64(value.Type.Bytes()))
			if err != nil {
				return nil, err
			}
			layer.views[value.Name] = driver.View{Buffer: buffer, Type: value.Type, Rows: value.Rows,
				Cols: value.Cols, Stride: value.Cols}
		}
	}

	qkv, err := mem.View[float32](layer.views["qkv"].Buffer.Bytes())
	if err != nil {
		return nil, err
	}
	for i := range qkv {
		qkv[i] = float32(rng.NormFloat64())
	}
	if err := layer.fillCaches(memory, rng); err != nil {
		return nil, err
	}
	shares, err := options.shares()
	if err != nil {
		return nil, err
	}
	numbers := make([]op.SparseHead, options.Heads)
	for i := range numbers {
		numbers[i] = op.SparseHead{QueryScale: 0.03, KeyScale: 0.03, Share: shares[i]}
	}
	layer.heads = mem.Bytes(op.SparseHeads(numbers))
	return layer, nil
}

// fillCaches allocates the keys and values, and fills them with random numbers.
func (l *attentionLayer) fillCaches(memory func(bytes int64) (driver.Buffer, error), rng *rand.Rand) error {
	dim := l.options.HeadDim
	element, cols := l.cache.CacheRow(dim)
	rows := l.options.KVHeads * l.positions
	for _, side := range []*driver.View{&l.keys, &l.values} {
		buffer, err := memory(int64(rows) * l.cache.CacheRowBytes(dim))
		if err != nil {
			return err
		}
		*side = driver.View{Buffer: buffer, Type: element, Rows: rows, Cols: cols, Stride: cols}
		fillCache(buffer.Bytes(), l.cache, dim, rng)
	}
	return nil
}

// shares returns the share of positions that each head keeps: the density, or the shares of the calibration's heads at
// that density. The heads of all its layers are sampled evenly by size, and each group of heads that share a key gets
// small and large ones.
func (o *AttentionOptions) shares() ([]float32, error) {
	out := slices.Repeat([]float32{float32(o.Density)}, o.Heads)
	if o.Calibration == "" {
		return out, nil
	}
	cal, err := calibration.Read(o.Calibration)
	if err != nil {
		return nil, err
	}
	if cal.Attention == nil {
		return nil, diag.New(diag.ClassInput, "read %q: it says nothing of attention", o.Calibration).
			WithHint("measure it: hetc calibrate --attention")
	}

	kept := slices.Concat(cal.Attention.Ratios(o.Density)...)
	slices.Sort(kept)
	group := o.Heads / o.KVHeads
	for i := range out {
		at := i%group*o.KVHeads + i/group // neighbours in size belong to different keys
		out[i] = float32(kept[at*len(kept)/o.Heads])
	}
	return out, nil
}

// fillCache writes numbers of the size of normal ones, whatever the type.
func fillCache(bytes []byte, cache op.Type, dim int, rng *rand.Rand) {
	switch cache {
	case op.F16:
		for i := 0; i+1 < len(bytes); i += 2 { // +-1 to +-2
			bytes[i], bytes[i+1] = byte(rng.Uint32()), 0x3c|byte(rng.Uint32()&0x83)
		}
	case op.BF16:
		for i := 0; i+1 < len(bytes); i += 2 { // +-1 to +-2
			bytes[i], bytes[i+1] = 0x80|byte(rng.Uint32()), 0x3f|byte(rng.Uint32()&0x80)
		}
	case op.Q8:
		row := dim + 4
		for i := range bytes {
			switch at := i % row; {
			case at < dim:
				bytes[i] = byte(1 + rng.Uint32()%255)
			default:
				bytes[i] = []byte{0, 0, 0x80, 0x3c}[at-dim] // 1/64
			}
		}
	default:
		for i := 0; i+3 < len(bytes); i += 4 {
			copy(bytes[i:], []byte{byte(rng.Uint32()), byte(rng.Uint32()), byte(rng.Uint32()) & 0x7f,
				0x3f | byte(rng.Uint32()&0x80)})
		}
	}
}

// operator returns a part of the layer's attention over all its heads.
func (l *attentionLayer) operator(kind op.Kind) op.Op {
	o := l.options
	operator := op.Op{Kind: kind, M: l.rows, Heads: o.Heads, KVHeads: o.KVHeads, Context: l.positions}
	if kind != op.Select {
		operator.HeadDim, operator.KV = o.HeadDim, l.cache
	}
	if kind != op.Attention {
		operator.Block, operator.Least = o.Block, o.Least
	}
	if kind == op.SparseAttend {
		operator.Density, operator.Rest = o.Density, o.Calibration != ""
	}
	return operator
}

// parts loads an operator in so many parts by heads on both lanes.
func (l *attentionLayer) parts(ctx context.Context, lanes [2]*attentionLane, kind op.Kind, count int) (out []call,
	err error) {
	each := l.options.KVHeads / count
	for part := range count {
		made, err := l.load(ctx, lanes, l.operator(kind), part*each, (part+1)*each)
		if err != nil {
			return nil, err
		}
		out = append(out, made)
	}
	return out, nil
}

// load loads a part of the operator for key heads from..to-1 on both lanes.
func (l *attentionLayer) load(ctx context.Context, lanes [2]*attentionLane, operator op.Op, from, to int) (made call,
	err error) {
	in, weights, out := operator.HeadColumns()
	operator.Heads, operator.KVHeads = operator.Heads/operator.KVHeads*(to-from), to-from
	graph := op.Single(operator, "")
	views := func(values []op.Value, columns []int) (list []driver.View) {
		for i, value := range values {
			view := l.views[value.Name]
			view.Offset += int64(from*columns[i]) * int64(view.Type.Bytes())
			view.Cols = (to - from) * columns[i]
			list = append(list, view)
		}
		return list
	}
	pos := l.positions - l.rows
	made.bound = driver.Bindings{In: views(graph.Inputs, in), Out: views(graph.Outputs, out), MaxContext: l.positions,
		Scalars: &driver.Scalars{Pos: pos, Rows: l.rows, KVLen: l.positions, Seq: l.positions}}
	if graph.State() {
		made.bound.K, made.bound.V = l.keys, l.values
		for _, side := range []*driver.View{&made.bound.K, &made.bound.V} {
			side.Offset += int64(from*l.positions*side.Cols) * int64(side.Type.Bytes())
			side.Rows = (to - from) * l.positions
		}
	}

	var packed driver.Weights
	for i, spec := range graph.Weights {
		region, err := mem.Alloc(4*spec.N, 64)
		if err != nil {
			return made, err
		}
		copy(region.Bytes(), l.heads[4*from*weights[i]:4*to*weights[i]])
		packed = append(packed, driver.Packed{Spec: spec, Bytes: region.Bytes()})
	}

	artifact, err := compiler.New().Compile(ctx, graph, packed, driver.Target{Proc: "host"})
	if err != nil {
		return made, err
	}

	for i, lane := range lanes {
		loaded := make(chan error, 1)
		lane.jobs <- func() {
			var err error
			made.exe[i], err = lane.proc.Load(ctx, artifact, packed)
			loaded <- err
		}
		if err := <-loaded; err != nil {
			return made, err
		}
	}

	return made, nil
}
