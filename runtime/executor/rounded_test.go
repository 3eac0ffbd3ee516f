package executor_test

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/executor"
)

// rounded computes in float64 what a plan of 8 bits describes. Rows are rounded to multiples of their scale, which is
// static or their own, and columns of weights to multiples of their own, of each part of a divided reduction alone.
// With shadow outliers, what exceeds the scale is multiplied by the weight in bfloat16. It shares the graph with hetc,
// and neither its packing nor its kernels.
type rounded struct {
	t      *testing.T
	m      *models.Model
	cal    *calibration.Calibration
	graph  models.Graph
	folds  []models.FoldGroup
	scheme op.Scheme
	parts  map[string]int // where the reduction of a product is divided, by its node
	levels float64        // the largest code

	// codes are those of the execution that is compared, nil: rows are rounded here. They are taken over because two
	// right computations may round a number that lies between two codes to either.
	codes   map[string][][]uint8
	beyond  float64 // the farthest that a code lies from its number, in steps, beyond half a step
	weights map[string]*table
}

// table is a matrix by rows.
type table struct {
	rows, cols int
	values     []float64
}

func newTable(rows, cols int) *table { return &table{rows, cols, make([]float64, rows*cols)} }

func (x *table) row(i int) []float64 { return x.values[i*x.cols : (i+1)*x.cols] }

// each computes a table of so many columns row by row.
func (x *table) each(cols int, compute func(out, in []float64, row int)) *table {
	y := newTable(x.rows, cols)
	for row := range x.rows {
		compute(y.row(row), x.row(row), row)
	}
	return y
}

// at names what belongs to a layer.
func at(name string, layer int) string { return fmt.Sprint(name, " ", max(0, layer)) }

// factors are those of the fold whose groups are picked, nil for none.
func (r *rounded) factors(layer int, pick func(models.FoldGroup) bool) []float32 {
	for _, group := range r.folds {
		if fold := r.cal.Fold(group.Name, layer); fold != nil && pick(group) {
			return fold.Factors
		}
	}
	return nil
}

// stored is a weight in float32: its sources interleaved by columns, after the folds around it.
func (r *rounded) stored(name string, layer int) *table {
	w := r.graph.Weight(name)
	y := newTable(w.K, w.N)
	if w.Const != nil {
		for i, value := range w.Const {
			y.values[i] = float64(value)
		}
		return y
	}

	turns := w.Interleave
	if turns == nil {
		turns = []int{w.N}
	}
	round := 0 // columns of all turns
	for _, turn := range turns {
		round += turn
	}
	multiply := r.factors(layer, func(g models.FoldGroup) bool { return slices.Contains(g.Multiply, name) })
	first := 0 // column of a source's first turn
	for i, source := range w.Sources(layer, 0) {
		divide := r.factors(layer, func(g models.FoldGroup) bool {
			return slices.Contains(g.Divide, models.FoldPart{Weight: name, Source: i})
		})
		cols := w.SourceCols(i)
		read := r.source(w, source, cols)
		for k := range w.K {
			for col := range cols {
				value := read(k, col) + w.Plus
				if divide != nil {
					value /= divide[col]
				}
				if multiply != nil {
					value *= multiply[k]
				}
				y.row(k)[col/turns[i]*round+first+col%turns[i]] = float64(value)
			}
		}
		first += turns[i]
	}
	return y
}

// source reads a tensor of a weight and returns its elements [K,cols], whichever way they are stored.
func (r *rounded) source(w *op.Weight, name string, cols int) func(k, col int) float32 {
	tensor, err := r.m.Tensor(name)
	if err != nil {
		r.t.Fatal(err)
	}
	rows, width := w.K, cols
	if w.Transposed {
		rows, width = cols, w.K
	}
	values := make([]float32, rows*width)
	if err := tensor.Read(values, 0, rows, 0, width); err != nil {
		r.t.Fatal(err)
	}
	return func(k, col int) float32 {
		if w.Transposed {
			return values[col*width+k]
		}
		return values[k*width+col]
	}
}

// weight is stored, once read.
func (r *rounded) weight(name string, layer int) *table {
	if r.graph.Weight(name) != nil && !r.graph.Weight(name).PerLayer() {
		layer = 0
	}
	key := at(name, layer)
	if r.weights[key] == nil {
		r.weights[key] = r.stored(name, layer)
	}
	return r.weights[key]
}

// matrix is a weight whose columns are rounded, in rows [0,mid) and [mid,K) apart.
func (r *rounded) matrix(name string, layer, mid int) *table {
	key := at(fmt.Sprint(name, "/", mid), layer)
	if r.weights[key] != nil {
		return r.weights[key]
	}

	from := r.weight(name, layer)
	y := newTable(from.rows, from.cols)
	for _, part := range [][2]int{{0, mid}, {mid, from.rows}} {
		for col := range from.cols {
			top := 0.0
			for k := part[0]; k < part[1]; k++ {
				top = max(top, math.Abs(from.row(k)[col]))
			}
			step := float32(top) / float32(r.levels)
			for k := part[0]; k < part[1] && step > 0; k++ {
				y.row(k)[col] = math.RoundToEven(float64(float32(from.row(k)[col])/step)) * float64(step)
			}
		}
	}
	r.weights[key] = y
	return y
}

// form is rows as products read them: rounded, and with shadow outliers what is beyond the scale.
type form struct{ rows, beyond *table }

// round rounds the rows that enter the products of a class, or takes over how they were rounded.
func (r *rounded) round(x *table, class string, layer int) *form {
	factors := r.factors(layer, func(g models.FoldGroup) bool { return slices.Contains(g.Readers, class) })
	activation := r.cal.Activation(class, layer)
	static := activation.StaticScale(factors, 1)
	if r.scheme.Shadow() {
		static = activation.InnerScale(factors, op.OutlierChannels(x.cols))
	}

	out := &form{beyond: newTable(x.rows, x.cols)}
	out.rows = x.each(x.cols, func(out, in []float64, row int) {
		step := float64(static) * 127 / r.levels
		if !r.scheme.Static() {
			step = float64(float32(max(slices.Max(in), -slices.Min(in))) / 127)
		}
		for i, value := range in {
			exact := 0.0
			if step > 0 {
				exact = max(-r.levels, min(r.levels, value/step))
			}
			code := math.RoundToEven(exact)
			if r.codes != nil {
				code = float64(r.codes[at(class, layer)][row][i]) - 128
				r.beyond = max(r.beyond, math.Abs(code-exact)-0.5)
			}
			out[i] = code * step
		}
	})
	if r.scheme.Shadow() {
		limit := 127 * float64(static)
		out.beyond = x.each(x.cols, func(out, in []float64, _ int) {
			for i, value := range in {
				out[i] = value - max(-limit, min(limit, value))
			}
		})
	}
	return out
}

// shadow adds to y what the numbers beyond the scale make, by a weight in bfloat16.
func (r *rounded) shadow(y, beyond *table, name string, layer int) {
	w := r.weight(name, layer)
	brain := newTable(w.rows, w.cols)
	for i, value := range w.values {
		brain.values[i] = float64(math.Float32frombits(uint32(number.FloatToBrain(float32(value))) << 16))
	}
	for i, value := range multiply(beyond, brain).values {
		y.values[i] += value
	}
}

// logits are those of all positions.
func (r *rounded) logits(ids []int32) []float32 {
	r.weights, r.graph = map[string]*table{}, r.m.Graph()
	r.folds = r.graph.Folds()
	values := map[string]*table{"ids": newTable(len(ids), 1)}
	for i, id := range ids {
		values["ids"].values[i] = float64(id)
	}
	for _, section := range r.graph.Batch().Sections { // which selects no row
		for layer := range max(1, section.Layers) {
			r.layer(&section, section.First+layer, values)
		}
	}

	out := make([]float32, len(values["logits"].values))
	for i, value := range values["logits"].values {
		out[i] = float32(value)
	}
	return out
}

// layer computes the nodes of a layer. Products that read the same value read it rounded in the same way.
func (r *rounded) layer(section *models.Section, layer int, values map[string]*table) {
	forms := map[string]*form{} // of values
	for _, node := range section.Nodes {
		in, class := values[node.In[0]], section.Name+"."+node.Name
		product := node.Ops[0].HasScheme() && !node.Exact
		read := forms[node.In[0]]
		if product && read == nil {
			read = r.round(in, class, layer)
			forms[node.In[0]] = read
		}
		if product {
			in = read.rows
		}
		for i := range node.Ops {
			if out := r.apply(&node, &node.Ops[i], in, values, class, layer); out != nil {
				in = out // else it changed its rows in place
			}
		}
		if product && r.scheme.Shadow() {
			r.shadow(in, read.beyond, node.W[0], layer)
		}
		values[node.Out[0]] = in
		delete(forms, node.Out[0])
	}
}

// apply computes one operator of a node.
func (r *rounded) apply(
	node *models.Node, o *op.Op, x *table, values map[string]*table, class string, layer int,
) *table {
	weight := func(i int) *table { return r.weight(node.W[i], layer) }
	switch o.Kind {
	case op.Embed:
		return r.embed(node, x, layer)
	case op.Norm, op.LayerNorm:
		return r.norm(o, x, node.W, layer)
	case op.MatMul:
		matrix := weight(0)
		if !node.Exact {
			matrix = r.matrix(node.W[0], layer, r.parts[class])
		}
		y := multiply(x, matrix)
		for row := 0; row < y.rows && o.Bias; row++ {
			for n, value := range weight(1).values {
				y.row(row)[n] += value
			}
		}
		return y
	case op.QKNorm:
		headNorms(o, x, weight(0).values, weight(1).values)
	case op.Rope:
		rotate(o, x, weight(len(node.W)-1))
	case op.Attention:
		return attend(o, x)
	case op.Add:
		other := values[node.In[1]]
		return x.each(x.cols, func(out, in []float64, row int) {
			for i, value := range other.row(row) {
				out[i] = in[i] + value
			}
		})
	case op.GLU, op.Activate, op.Softcap, op.Clip:
		return elementwise(o, x)
	case op.KVAppend: // attention reads the rows themselves
	default:
		r.t.Fatalf("no form of %q in float64", o.Kind)
	}
	return nil
}

// elementwise is an operator on each number of a row, or on pairs of gate and up.
func elementwise(o *op.Op, x *table) *table {
	return x.each(o.N, func(out, in []float64, _ int) {
		for n := range out {
			switch o.Kind {
			case op.GLU:
				pair := in[n/o.Interleave*2*o.Interleave+n%o.Interleave:]
				out[n] = activation(o.Act, pair[0]) * pair[o.Interleave]
			case op.Activate:
				out[n] = activation(o.Act, in[n])
			case op.Softcap:
				out[n] = o.Cap * math.Tanh(in[n]/o.Cap)
			default:
				out[n] = max(-o.Cap, min(o.Cap, in[n]))
			}
		}
	})
}

// embed looks rows up, of a tied head in its rounded matrix.
func (r *rounded) embed(node *models.Node, x *table, layer int) *table {
	o := &node.Ops[0]
	scale := o.Scale
	if scale == 0 {
		scale = 1
	}
	return x.each(o.N, func(out, in []float64, _ int) {
		for n := range out {
			id := int(in[0])
			if node.Packed != "" {
				out[n] = scale * r.matrix(node.Packed, 0, 0).row(n)[id]
				continue
			}
			out[n] = scale * r.weight(node.W[0], layer).row(id)[n]
		}
	})
}

// norm is either norm of rows.
func (r *rounded) norm(o *op.Op, x *table, names []string, layer int) *table {
	gain := r.weight(names[0], layer).values
	return x.each(x.cols, func(out, in []float64, _ int) {
		mean := 0.0
		if o.Kind == op.LayerNorm {
			for _, value := range in {
				mean += value / float64(len(in))
			}
		}
		square := 0.0
		for _, value := range in {
			square += (value - mean) * (value - mean) / float64(len(in))
		}
		for i, value := range in {
			out[i] = (value - mean) / math.Sqrt(square+o.Eps) * gain[i]
			if o.Kind == op.LayerNorm {
				out[i] += r.weight(names[1], layer).values[i]
			}
		}
	})
}

// multiply is x w.
func multiply(x, w *table) *table {
	return x.each(w.cols, func(out, in []float64, _ int) {
		for k, value := range in {
			for n, factor := range w.row(k) {
				out[n] += value * factor
			}
		}
	})
}

// headsOf are the query heads, the key and the value of each group in a fused row.
func headsOf(o *op.Op, row []float64) (groups [][][]float64) {
	count := o.Heads/o.KVHeads + 2
	for group := range slices.Chunk(row, count*o.HeadDim) {
		groups = append(groups, slices.Collect(slices.Chunk(group, o.HeadDim)))
	}
	return groups
}

// headNorms changes queries and keys in place: each head alone, or all of them together.
func headNorms(o *op.Op, x *table, queryGain, keyGain []float64) {
	norm := func(heads [][]float64, gain []float64) {
		square, count := 0.0, 0.0
		for _, head := range heads {
			for _, value := range head {
				square, count = square+value*value, count+1
			}
		}
		for i, head := range heads {
			for j := range head {
				head[j] *= gain[i*len(head)+j] / math.Sqrt(square/count+o.Eps)
			}
		}
	}

	for row := range x.rows {
		var queries, keys [][]float64
		for _, group := range headsOf(o, x.row(row)) {
			key := len(group) - 2
			queries, keys = append(queries, group[:key]...), append(keys, group[key])
		}
		if o.Joint {
			norm(queries, queryGain)
			norm(keys, keyGain)
			continue
		}
		for _, query := range queries {
			norm([][]float64{query}, queryGain)
		}
		for _, key := range keys {
			norm([][]float64{key}, keyGain)
		}
	}
}

// rotate turns queries and keys by their positions, in place.
func rotate(o *op.Op, x *table, frequencies *table) {
	half := o.Rotary() / 2
	frequency, amplitude := frequencies.row(0), o.Amplitude
	growth := 1.0
	if o.LongFrom > 0 && x.rows > o.LongFrom {
		if o.NTK != 0 {
			growth = o.NTK*float64(x.rows)/float64(o.LongFrom) - (o.NTK - 1)
		} else {
			frequency, amplitude = frequencies.row(1), o.LongAmplitude
		}
	}
	if amplitude == 0 {
		amplitude = 1
	}

	for pos := range x.rows {
		for _, group := range headsOf(o, x.row(pos)) {
			for _, head := range group[:len(group)-1] {
				for i := range half {
					turn := frequency[i] * math.Pow(growth, -float64(i)/float64(max(1, half-1)))
					sin, cos := math.Sincos(float64(float32(pos) * float32(turn)))
					low, high := head[i], head[i+half]
					head[i] = amplitude * (low*cos - high*sin)
					head[i+half] = amplitude * (high*cos + low*sin)
				}
			}
		}
	}
}

// attend is attention over all rows up to each.
func attend(o *op.Op, x *table) *table {
	scale := o.Scale
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(o.HeadDim))
	}
	rows := make([][][][]float64, x.rows)
	for pos := range rows {
		rows[pos] = headsOf(o, x.row(pos))
	}

	return x.each(o.Heads*o.HeadDim, func(out, _ []float64, pos int) {
		first := 0
		if o.Window > 0 {
			first = max(0, pos-o.Window+1)
		}
		for head := range o.Heads {
			group, in := head/(o.Heads/o.KVHeads), head%(o.Heads/o.KVHeads)
			scores, top := make([]float64, pos+1), math.Inf(-1)
			for at := first; at <= pos; at++ {
				heads := rows[at][group]
				for i, key := range heads[len(heads)-2] {
					scores[at] += rows[pos][group][in][i] * key * scale
				}
				if o.Cap > 0 {
					scores[at] = o.Cap * math.Tanh(scores[at]/o.Cap)
				}
				top = max(top, scores[at])
			}
			sum := 0.0
			for at := first; at <= pos; at++ {
				scores[at] = math.Exp(scores[at] - top)
				sum += scores[at]
			}
			for at := first; at <= pos; at++ {
				heads := rows[at][group]
				for i, value := range heads[len(heads)-1] {
					out[head*o.HeadDim+i] += scores[at] / sum * value
				}
			}
		}
	})
}

// activation is an activation function by its definition.
func activation(name string, x float64) float64 {
	switch name {
	case op.SiLU:
		return x / (1 + math.Exp(-x))
	case op.GELU:
		return x * math.Erfc(-x/math.Sqrt2) / 2
	case op.GELUTanh:
		return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	}
	return max(x, 0)
}

// divided says where a plan divides the reductions of products.
func divided(p *planir.Plan) map[string]int {
	parts := map[string]int{}
	for i := range p.Decisions {
		if d := &p.Decisions[i]; d.Axis == planir.AxisK {
			parts[d.Node] = d.Shares[0].To
		}
	}
	return parts
}

// watched collects the codes of all rows that an execution rounds, by class and layer.
type watched struct {
	mu    sync.Mutex
	codes map[string][][]uint8
}

// observe keeps the codes that a step has made. Such steps are called "layers.qkv_static", or _quant, or _inner.
func (w *watched) observe(seen executor.Observed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, node := range seen.Graph.Nodes {
		if node.Op.Kind != op.QuantRows {
			continue
		}
		i := slices.IndexFunc(seen.Graph.Outputs, func(v op.Value) bool { return v.Name == node.Out[0] })
		view := seen.Out[i]
		for step := range strings.SplitSeq(seen.Node, "+") {
			end := strings.LastIndexByte(step, '_')
			if !slices.Contains([]string{"static", "quant", "inner"}, step[end+1:]) {
				continue
			}
			key := at(step[:end], seen.Layer)
			for row := range seen.Rows {
				codes := view.Bytes()[row*view.Stride:][:view.Cols]
				w.codes[key] = append(w.codes[key], slices.Clone(codes))
			}
		}
	}
}

// A plan of 8 bits computes what it describes, with reductions whole and divided. Every code is that of its number in
// float64, or its neighbour where the number lies between the two. With the same codes, logits are equal but for
// float32.
//
// Parts of a divided reduction have column scales of their own, so that such a plan rounds weights otherwise than an
// undivided one. All that this changes is rounding: it vanishes in proportion as levels are added.
func TestPlansRoundAsDescribed(t *testing.T) {
	require.Slow(t)
	a, b := cores(t)
	one, two := singleOn(a), pairOn(a, b)
	for _, config := range archDirs(t) {
		dir := filepath.Dir(config)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m, err := models.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if m.Experts > 0 {
				t.Skip("a code that is rounded otherwise may have a row choose other experts")
			}
			ids := readLogits(t, filepath.Join(dir, "logits.safetensors"))[33].ids
			cal := ranged(t, m, a, ids)
			var parts map[string]int
			for _, scheme := range []op.Scheme{op.A8TQ8C, op.A8OQ8C, op.A8SQ8C} {
				compareRounded(t, m, cal, ids, scheme, one, bySingle)
				parts = compareRounded(t, m, cal, ids, scheme, two, byPairs)
			}

			apart := func(levels float64) float64 {
				whole := &rounded{t: t, m: m, cal: cal, scheme: op.A8SQ8C, levels: levels}
				pairs := &rounded{t: t, m: m, cal: cal, scheme: op.A8SQ8C, levels: levels, parts: parts}
				return changed(pairs.logits(ids), whole.logits(ids))
			}
			coarse, fine := apart(127), apart(127*256)
			if !(fine <= coarse/64) {
				t.Errorf("divided by pairs logits change by %.3g of their size, with 256 times the levels by %.3g, "+
					"want a 64th at most", coarse, fine)
			}
		})
	}
}

// compareRounded executes a plan and computes what it describes; it returns where reductions are divided.
func compareRounded(
	t *testing.T, m *models.Model, cal *calibration.Calibration, ids []int32, scheme op.Scheme, procs []planir.Proc,
	layout layoutOf,
) map[string]int {
	t.Helper()
	p := folded(t, makePlan(t, m, planSpec{
		procs: procs, rows: []int{1, 16}, context: 64, scheme: scheme, layout: layout,
	}), m, cal)
	seen := &watched{codes: map[string][][]uint8{}}
	x := machineWith(t, m, p, cal, executor.Options{Observe: seen.observe})
	defer x.Close()
	got := allLogits(t, x, ids)

	r := &rounded{t: t, m: m, cal: cal, scheme: scheme, parts: divided(p), levels: 127, codes: seen.codes}
	want := r.logits(ids)

	if !(r.beyond < 1e-3) {
		t.Errorf("%s on %d processors: a code is %.3g steps from its number, want at most 0.501",
			scheme, len(procs), 0.5+r.beyond)
	}
	if d := maxDiff(got, want); !(d < 1e-3) {
		t.Errorf("%s on %d processors: logits differ by %.2g from those in float64, want at most 0.001",
			scheme, len(procs), d)
	}
	return r.parts
}
