package executor_test

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	qnncompiler "github.com/hetc/hetc/emit/compile/qnn"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/driver/qnn"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/tokenizer"
)

// attentive is a calibration in which every head of a model has the same scales and importance.
func attentive(t testing.TB, m *models.Model, density float64) *calibration.Calibration {
	t.Helper()
	digest, err := m.Digest()
	if err != nil {
		t.Fatal(err)
	}
	cal := calibration.Even(calibration.Model{Name: m.Name, Digest: digest}, m.Layers, m.Heads, m.KVHeads, density)
	if err := cal.Validate(); err != nil {
		t.Fatal(err)
	}
	return cal
}

// sparseSpec says what a plan with sparse attention is to be. Its products are float32, its first processor controls.
type sparseSpec struct {
	procs   []planir.Proc
	rows    []int // of the programs
	sparse  []int // those with sparse attention
	context int
	block   int // queries that select positions together
	cache   op.Type
	layout  layoutOf // divides operators among several processors; nil: the first one has all
}

// sparsePlan is a checked plan with the calibration.
func sparsePlan(t testing.TB, m *models.Model, cal *calibration.Calibration, spec sparseSpec) *planir.Plan {
	t.Helper()
	digest, err := cal.Digest()
	if err != nil {
		t.Fatal(err)
	}
	plan := makePlan(t, m, planSpec{
		procs: spec.procs[:1], rows: spec.rows, context: spec.context, scheme: op.A32W32,
	})
	plan.Procs, plan.KV = spec.procs, spec.cache
	plan.Inputs = []planir.Input{{Kind: planir.CalibrationInput, Digest: digest}}
	if len(spec.sparse) > 0 {
		plan.Attention = &planir.Attention{Density: cal.Attention.Densities[0], Block: spec.block, Rows: spec.sparse}
	}

	g := m.Graph()
	scheme := func(string, int) op.Scheme { return op.A32W32 }
	plan.Decisions, err = lower.TrivialOf(plan, &g, spec.procs[0].Name, spec.rows, scheme)
	if err != nil {
		t.Fatal(err)
	}
	if spec.layout != nil && len(spec.procs) > 1 {
		spec.divideAll(t, plan, &g)
	}
	if err := lower.Lower(plan, &g); err != nil {
		t.Fatal(err)
	}
	if list := planir.Check(plan); list.Err() != nil {
		t.Fatal(list.Err())
	}
	return plan
}

// divideAll lets the layout change the decisions of all nodes.
func (s sparseSpec) divideAll(t testing.TB, plan *planir.Plan, g *models.Graph) {
	t.Helper()
	scheme := func(string) op.Scheme { return op.A32W32 }
	for _, rows := range s.rows {
		of := lower.GraphOf(plan, g, rows)
		sections, err := lower.Expand(of, rows, s.context, s.cache, scheme, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, section := range sections {
			for _, node := range section.Nodes {
				if decision := plan.DecisionFor(node.Name, rows); decision != nil {
					s.layout(decision, &node)
				}
			}
		}
	}
}

// byStages has the second processor estimate what the first one selects and attends to.
func byStages(d *planir.Decision, n *lower.Node) {
	if n.Op().Kind == op.Estimate {
		d.Shares[0].Proc = "b"
	}
}

// byKeyHeads divides every part of an attention by heads.
func byKeyHeads(d *planir.Decision, n *lower.Node) {
	if o := n.Op(); o.Kind.Along() == op.AlongHeads {
		divide(d, planir.AxisHeads, o.KVHeads, 1)
	}
}

// byAppendedRows divides what writes keys and values by rows. The second processor may then write later rows before the
// first has read the cache for earlier ones, which attend to none of them.
func byAppendedRows(d *planir.Decision, n *lower.Node) {
	if o := n.Op(); strings.HasSuffix(n.Name, "attention_append") {
		divide(d, planir.AxisRows, o.M, 1)
	}
}

// Sparse attention of everything is dense attention, for every architecture: in prompts of one token, in one call, in
// chunks and token by token. Of a share of the positions, the bits do not depend on how the work is divided.
func TestSparseAttention(t *testing.T) {
	dirs := archDirs(t)
	if testing.Short() {
		dirs = nil
		for _, name := range []string{"llama-plain", "llama-mqa", "gemma2-caps", "mistral-window"} {
			dirs = append(dirs, filepath.Join("../../testdata/arch", name, "config.json"))
		}
	}
	a, b := cores(t)
	pair := pairOn(a, b)
	for _, config := range dirs {
		dir := filepath.Dir(config)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m, err := models.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			texts := readLogits(t, filepath.Join(dir, "logits.safetensors"))
			context := max(130, min(m.MaxContext, 160))
			rows := []int{1, 16, 64}

			dense := machine(t, m, makePlan(t, m, planSpec{
				procs: pair[:1], rows: rows, context: context, scheme: op.A32W32,
			}), executor.Options{})
			all := attentive(t, m, 1)
			every := machineWith(t, m, sparsePlan(t, m, all, sparseSpec{
				procs: pair[:1], rows: rows, sparse: rows, context: context, block: 8, cache: op.F32,
			}), all, executor.Options{})
			some := attentive(t, m, 0.3)
			machines := []*executor.Machine{}
			for _, f := range []layoutOf{nil, byStages, byKeyHeads, byAppendedRows} {
				machines = append(machines, machineWith(t, m, sparsePlan(t, m, some, sparseSpec{
					procs: pair, rows: rows, sparse: rows, context: context, block: 8, cache: op.F32,
					layout: f,
				}), some,
					executor.Options{}))
			}
			for _, n := range lengths {
				ids := texts[n].ids
				for _, chunks := range [][]int{nil, {5, 1, 20}, {3, 1, 1, 1, 60}} {
					if chunks != nil && (n < 33 || dependsOnLength(m)) {
						continue
					}
					want := allLogits(t, dense, ids, chunks...)
					size := maxDiff(want, make([]float32, len(want)))
					what := fmt.Sprintf("%d tokens in chunks %v", n, chunks)
					if d := maxDiff(allLogits(t, every, ids, chunks...), want); d > 1e-5*max(1, size) {
						t.Errorf("%s: logits of all positions differ by %.2g, of %.2g at most", what, d, size)
					}

					first := allLogits(t, machines[0], ids, chunks...)
					d := maxDiff(first, want)
					if math.IsInf(d, 0) || math.IsNaN(d) {
						t.Errorf("%s: logits are not finite", what)
					}
					if n > 100 && d == 0 {
						t.Errorf("%s: a third of the positions gives the logits of all", what)
					}

					for i, other := range machines[1:] {
						if d := maxDiff(allLogits(t, other, ids, chunks...), first); d != 0 {
							t.Errorf("%s, layout %d: differs from one processor by %g, want equal bits", what, i+1, d)
						}
					}
				}
			}
			for _, x := range append(machines, dense, every) {
				x.Close()
			}
		})
	}
}

// Over every type of cache all positions give what dense attention gives, for every architecture. A share so small that
// it selects the block's own positions and the first ones alone gives finite logits.
func TestSparseAttentionOfNarrowCaches(t *testing.T) {
	a, _ := cores(t)
	dirs := archDirs(t)
	if testing.Short() {
		dirs = []string{"../../testdata/arch/llama-plain/config.json"}
	}
	for _, config := range dirs {
		dir := filepath.Dir(config)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m, err := models.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			ids := readLogits(t, filepath.Join(dir, "logits.safetensors"))[130].ids
			for _, kv := range op.CacheTypes {
				run := func(density float64, sparse ...int) []float32 {
					cal := attentive(t, m, density)
					plan := sparsePlan(t, m, cal, sparseSpec{
						procs: singleOn(a), rows: []int{1, 64}, sparse: sparse, context: 130, block: 16,
						cache: kv,
					})
					x := machineWith(t, m, plan, cal, executor.Options{})
					defer x.Close()
					return allLogits(t, x, ids)
				}

				dense := run(1)
				if d := maxDiff(run(1, 1, 64), dense); d > 1e-5*maxDiff(dense, make([]float32, len(dense))) {
					t.Errorf("cache %s: logits of all positions differ by %g", kv, d)
				}
				if d := maxDiff(run(1e-9, 64), dense); d == 0 || math.IsInf(d, 0) || math.IsNaN(d) {
					t.Errorf("cache %s: logits of almost no positions differ by %g", kv, d)
				}
			}
		})
	}
}

// recall measures what an estimate finds: queries and keys behind rotation of one call of a text, by layer.
type recall struct {
	m      *models.Model
	ids    []int32
	cal    *calibration.Calibration // with the static scales of each head, of the text's first half
	layers [][]float32              // qkv

	// What positions are worth by exact scores, by layer, head and first row of the block.
	exact map[[3]int][]float32
}

// recallTokens is the length of the call, recallBlock its blocks of queries; the second half's are looked at.
const recallTokens, recallBlock = 512, op.SparseBlock

// recallShares are shares of the positions.
var recallShares = []float64{0.05, 0.1, 0.2, 0.4}

// newRecall reads held-out text and measures the scales.
func newRecall(t *testing.T) *recall {
	t.Helper()
	m := open(t)
	files, err := m.TokenizerFiles()
	if err != nil {
		t.Fatal(err)
	}
	encoder, err := tokenizer.New(files["tokenizer"], files["config"], m.BOS)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(demo, "valid.txt"))
	if err != nil {
		t.Fatal(err)
	}
	ids, err := encoder.Encode(string(text))
	if err != nil || len(ids) < recallTokens {
		t.Fatalf("the text has %d tokens (%v), want %d", len(ids), err, recallTokens)
	}

	first, _ := cores(t)
	// Heads that keep all positions are not estimated.
	r := &recall{m: m, ids: ids[:recallTokens], cal: attentive(t, m, 0.95), exact: map[[3]int][]float32{}}
	r.run(t, nil, 0, singleOn(first), executor.Options{})
	for i := range r.layers {
		at := &r.cal.Attention.Layers[i]
		most := func(head, place int) (top float32) {
			for row := range recallTokens / 2 {
				for _, value := range r.part(i, row, head, place) {
					top = max(top, value, -value)
				}
			}
			return top
		}
		for head := range m.Heads {
			at.Heads[head].QueryScale = most(head, head%r.group()) / 127
			at.KeyScales[head/r.group()] = most(head, r.group()) / 127
		}
	}
	r.cal.Attention.Buckets = r.cal.Attention.MeanBuckets()
	return r
}

// group is the number of query heads that share a key head.
func (r *recall) group() int { return r.m.Heads / r.m.KVHeads }

// part is a query of a head (place below the group's size) or its key (the group's size) of a row.
func (r *recall) part(layer, row, head, place int) []float32 {
	width := (r.group() + 2) * r.m.HeadDim
	return r.layers[layer][row*r.m.KVHeads*width+head/r.group()*width+place*r.m.HeadDim:][:r.m.HeadDim]
}

// mean is the calibration in which all heads have the mean scales, which the paper's buckets lie around (sec. 3.3).
func (r *recall) mean() *calibration.Calibration {
	out, at := *r.cal, *r.cal.Attention
	centre := at.Buckets[0].Pairs[0]
	at.Layers = slices.Clone(at.Layers)
	for i := range at.Layers {
		layer := &at.Layers[i]
		layer.Heads, layer.KeyScales = slices.Clone(layer.Heads), slices.Clone(layer.KeyScales)
		for head := range layer.Heads {
			layer.Heads[head].QueryScale = centre.Query
		}
		for kvHead := range layer.KeyScales {
			layer.KeyScales[kvHead] = centre.Key
		}
	}
	out.Attention = &at
	return &out
}

// run executes the text, the last processor estimating, and returns the estimated scores of each layer. The scales are
// those of a calibration, nil: of the recall's own, whose queries and keys are kept.
func (r *recall) run(
	t *testing.T, cal *calibration.Calibration, buckets int, procs []planir.Proc, options executor.Options,
	compilers ...driver.Compiler,
) [][]float32 {
	t.Helper()
	scores := make([][]float32, r.m.Layers)
	note := cal == nil
	if note {
		cal, r.layers = r.cal, make([][]float32, r.m.Layers)
	}
	var of layoutOf
	if len(procs) > 1 {
		of = byStages
	}
	plan := sparsePlan(t, r.m, cal, sparseSpec{
		procs: procs, rows: []int{1, recallTokens}, sparse: []int{recallTokens},
		context: recallTokens, block: recallBlock, cache: op.F32, layout: of,
	})
	withBuckets(plan, buckets)
	options.Observe = func(o executor.Observed) {
		if len(o.Out) == 0 {
			return
		}
		values, err := mem.View[float32](o.Out[0].Bytes())
		switch {
		case err != nil: // positions
		case note && strings.HasSuffix(o.Node, "attention_append"):
			r.layers[o.Layer] = slices.Clone(values)
		case strings.HasSuffix(o.Node, "attention_estimate"):
			scores[o.Layer] = slices.Clone(values)
		}
	}
	x := machineWith(t, r.m, plan, cal, options, compilers...)
	defer x.Close()
	allLogits(t, x, r.ids)
	return scores
}

// worth is what positions before a block of queries are worth to it. scale rounds a query or a key, nil: not.
func (r *recall) worth(layer, head, first int, round func([]float32) []float32) []float32 {
	worth := slices.Repeat([]float32{float32(math.Inf(-1))}, first)
	for row := first; row < first+recallBlock; row++ {
		query := round(r.part(layer, row, head, head%r.group()))
		scores, top := make([]float32, first), float32(math.Inf(-1))
		for pos := range scores {
			for i, value := range round(r.part(layer, pos, head, r.group())) {
				scores[pos] += query[i] * value
			}
			top = max(top, scores[pos])
		}
		for pos, score := range scores {
			worth[pos] = max(worth[pos], score-top)
		}
	}
	return worth
}

// found is, by head of all layers and share, which part of the positions with the largest exact scores are those with
// the largest estimates. estimate returns those of positions before a block.
func (r *recall) found(estimate func(layer, head, first int) []float32) [][]float64 {
	out := make([][]float64, r.m.Layers*r.m.Heads)
	exact := func(values []float32) []float32 { return values }
	for i := range out {
		layer, head := i/r.m.Heads, i%r.m.Heads
		for _, share := range recallShares {
			found, wanted := 0, 0
			for first := recallTokens / 2; first < recallTokens; first += 5 * recallBlock {
				key := [3]int{layer, head, first}
				if r.exact[key] == nil {
					r.exact[key] = r.worth(layer, head, first, exact)
				}
				count := int(share * float64(first))
				want := largest(r.exact[key], count)
				for pos := range largest(estimate(layer, head, first), count) {
					if want[pos] {
						found++
					}
				}
				wanted += count
			}
			out[i] = append(out[i], float64(found)/float64(wanted))
		}
	}
	return out
}

// ofScores are the estimates of a run.
func (r *recall) ofScores(scores [][]float32) func(layer, head, first int) []float32 {
	return func(layer, head, first int) []float32 {
		return scores[layer][first/recallBlock*r.m.Heads*recallTokens+head*recallTokens:][:first]
	}
}

// text is a line of the table in docs/results.md: the mean over heads, and the least head.
func (r *recall) text(found [][]float64) (line string, mean []float64) {
	for i := range recallShares {
		sum, least := 0.0, 1.0
		for _, head := range found {
			sum, least = sum+head[i], min(least, head[i])
		}
		mean = append(mean, sum/float64(len(found)))
		line += fmt.Sprintf(" %.1f (%.1f) |", 100*mean[i], 100*least)
	}
	return line, mean
}

// byRow rounds numbers to 8 bits with a scale of their own.
func byRow(values []float32) []float32 {
	top := float32(0)
	for _, value := range values {
		top = max(top, value, -value)
	}
	out := make([]float32, len(values))
	for i, value := range values {
		if top > 0 {
			out[i] = float32(math.RoundToEven(float64(value/(top/127)))) * (top / 127)
		}
	}
	return out
}

// Of the positions that the estimate puts first, nearly all are those of exact scores: on held-out text, at shares of 5
// to 40 %, with static scales of each head from the text's first half, and with the mean scales of all heads and the
// buckets around them. ONNX Runtime, devices of OpenCL and what Qualcomm's compiler makes find what the host finds.
// With -v it prints the table in docs/results.md.
func TestEstimateFindsTheLargestScores(t *testing.T) {
	require.Slow(t)
	first, second := cores(t)
	r := newRecall(t)
	host1 := proc("a", first, "")
	type engine struct {
		name      string
		procs     []planir.Proc
		options   executor.Options
		compilers []driver.Compiler
	}
	engines := []engine{{name: "host", procs: []planir.Proc{host1}}}
	ready := func(name string, make func(t *testing.T) engine) {
		t.Run(name, func(t *testing.T) { engines = append(engines, make(t)) })
	}
	ready("ort", func(t *testing.T) engine {
		needORT(t)
		return engine{
			name: "ort", procs: []planir.Proc{host1, ortProc(t, "b", second)},
			options: withORT(), compilers: bothCompilers(),
		}
	})
	ready("opencl", func(t *testing.T) engine {
		return engine{
			name: "opencl", procs: []planir.Proc{host1, openclProcs(t, "b", nil)[0]},
			options: withOpenCL(), compilers: bothCompilers(),
		}
	})
	ready("qnn", func(t *testing.T) engine {
		return engine{
			name: "qnn", procs: []planir.Proc{host1, qnnProc(t, "b")},
			options:   executor.Options{Drivers: []driver.Driver{host.New(), qnn.New()}},
			compilers: []driver.Compiler{qnncompiler.New(qnncompiler.Options{})},
		}
	})
	if testing.Short() {
		engines = engines[:min(2, len(engines))]
	}

	byDefinition := func(layer, head, first int) []float32 { return r.worth(layer, head, first, byRow) }
	line, _ := r.text(r.found(byDefinition))
	t.Logf("| definition | each row's |%s", line)

	mean := r.mean()
	ofMean, ofEach := []float64{0.9, 0.9, 0.9, 0.9}, []float64{0.95, 0.96, 0.97, 0.98}
	for _, scales := range []struct {
		name    string
		cal     *calibration.Calibration
		buckets int
		least   []float64 // recall, by share
	}{
		{name: "mean, 1 pair", cal: mean, least: ofMean},
		{name: "mean, nearest of 3", cal: mean, buckets: 3, least: ofMean},
		{name: "mean, nearest of 9", cal: mean, buckets: 9, least: ofMean},
		{name: "each head's, 1 pair", cal: r.cal, least: ofEach},
		{name: "each head's, nearest of 9", cal: r.cal, buckets: 9, least: ofEach},
	} {
		if testing.Short() && (scales.cal == mean || scales.buckets > 0) {
			continue
		}
		var reference []float64
		for _, engine := range engines {
			scores := r.run(t, scales.cal, scales.buckets, engine.procs, engine.options, engine.compilers...)
			line, got := r.text(r.found(r.ofScores(scores)))
			t.Logf("| `%s` | %s |%s", engine.name, scales.name, line)
			for i, least := range scales.least {
				what := fmt.Sprintf("%s, %s: recall at %v", engine.name, scales.name, recallShares[i])
				if got[i] < least {
					t.Errorf("%s is %.4f, want at least %v", what, got[i], least)
				}
				if reference != nil && math.Abs(got[i]-reference[i]) > 0.005 {
					t.Errorf("%s is %.4f, the host's %.4f", what, got[i], reference[i])
				}
			}
			if reference == nil {
				reference = got
			}
		}
	}
}

// largest are the places of the count largest values.
func largest(values []float32, count int) map[int]bool {
	places := make([]int, len(values))
	for i := range places {
		places[i] = i
	}
	slices.SortStableFunc(places, func(a, b int) int { return cmp.Compare(values[b], values[a]) })
	out := map[int]bool{}
	for _, place := range places[:count] {
		out[place] = true
	}
	return out
}
