package executor_test

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/models/safetensors"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/socs"
)

// llama is a small Llama with random weights: what its config.json says, how it is stored, and the stored values.
type llama struct {
	heads, kvHeads, headDim    int
	hidden, ffn, vocab, layers int
	theta, eps                 float64

	stored op.Type
	gains  op.Type // stored type of the norm gains, "" for stored
	tied   bool
	shards int
	nested bool // rope_theta within rope_parameters

	values map[string][]float64
}

// String names the model by its dimensions.
func (l *llama) String() string {
	return fmt.Sprintf("heads %dx%dx%d hidden %d ffn %d vocab %d layers %d %s", l.heads, l.kvHeads, l.headDim,
		l.hidden, l.ffn, l.vocab, l.layers, l.stored)
}

// oddShapes are dimensions that are not multiples of tiles and vectors, few heads and wide ones, in every form of
// storage.
func oddShapes() []*llama {
	return []*llama{
		{
			heads: 3, kvHeads: 3, headDim: 16, hidden: 48, ffn: 40, vocab: 97, layers: 1,
			theta: 1e4, eps: 1e-5, stored: op.F32,
		},
		{
			heads: 4, kvHeads: 1, headDim: 24, hidden: 100, ffn: 56, vocab: 97, layers: 2,
			theta: 5e5, eps: 1e-6, stored: op.F16, tied: true, shards: 3, nested: true,
		},
		{
			heads: 6, kvHeads: 2, headDim: 16, hidden: 48, ffn: 344, vocab: 1000, layers: 1,
			theta: 1e4, eps: 1e-6, stored: op.BF16,
		},
		{
			heads: 8, kvHeads: 4, headDim: 80, hidden: 272, ffn: 344, vocab: 2049, layers: 1,
			theta: 5e5, eps: 1e-5, stored: op.BF16, tied: true,
		},
		{
			heads: 4, kvHeads: 1, headDim: 128, hidden: 100, ffn: 40, vocab: 97, layers: 2,
			theta: 5e5, eps: 1e-6, stored: op.F32, tied: true, nested: true,
		},
		{
			heads: 3, kvHeads: 3, headDim: 24, hidden: 272, ffn: 56, vocab: 97, layers: 1,
			theta: 1e4, eps: 1e-6, stored: op.F16, shards: 2,
		},
		{
			heads: 1, kvHeads: 1, headDim: 96, hidden: 48, ffn: 7, vocab: 31, layers: 3,
			theta: 1e4, eps: 1e-6, stored: op.F32, gains: op.BF16,
		},
		{
			heads: 8, kvHeads: 4, headDim: 32, hidden: 100, ffn: 56, vocab: 1000, layers: 3,
			theta: 5e5, eps: 1e-6, stored: op.BF16, gains: op.F32, shards: 2, nested: true,
		},
		{
			heads: 6, kvHeads: 2, headDim: 128, hidden: 48, ffn: 344, vocab: 97, layers: 1,
			theta: 5e5, eps: 1e-6, stored: op.F16, tied: true,
		},
		{
			heads: 2, kvHeads: 2, headDim: 2, hidden: 4, ffn: 6, vocab: 3, layers: 2,
			theta: 1e4, eps: 1e-6, stored: op.F32,
		},
		{
			heads: 1, kvHeads: 1, headDim: 2, hidden: 1, ffn: 1, vocab: 2, layers: 1,
			theta: 1e4, eps: 1e-6, stored: op.F32,
		},
		{
			heads: 5, kvHeads: 5, headDim: 6, hidden: 30, ffn: 33, vocab: 65, layers: 2,
			theta: 1e4, eps: 1e-6, stored: op.BF16,
		},
		{
			heads: 12, kvHeads: 4, headDim: 10, hidden: 65, ffn: 99, vocab: 130, layers: 2,
			theta: 5e5, eps: 1e-6, stored: op.F16, gains: op.F32, tied: true, shards: 4,
		},
	}
}

// drawn is a tensor of random numbers as they are stored, and their values.
func drawn(
	random *rand.Rand, name string, mean, deviation float64, as op.Type, shape ...int,
) (safetensors.Tensor, []float64) {
	count := 1
	for _, d := range shape {
		count *= d
	}
	x := safetensors.Tensor{Name: name, Type: as, Shape: shape}
	values := make([]float64, count)
	for i := range values {
		v := float32(mean + deviation*random.NormFloat64())
		switch as {
		case op.F32:
			x.Data = binary.LittleEndian.AppendUint32(x.Data, math.Float32bits(v))
		case op.BF16:
			v = math.Float32frombits(math.Float32bits(v) &^ 0xffff)
			x.Data = binary.LittleEndian.AppendUint16(x.Data, uint16(math.Float32bits(v)>>16))
		case op.F16:
			half := number.FloatToHalf(v)
			v = number.HalfToFloat(half)
			x.Data = binary.LittleEndian.AppendUint16(x.Data, half)
		}
		values[i] = float64(v)
	}
	return x, values
}

// write draws the weights and stores them as a Hugging Face directory.
func (l *llama) write(t *testing.T, dir string) {
	t.Helper()
	shards := make([][]safetensors.Tensor, max(1, l.shards))
	file := func(i int) string {
		if len(shards) == 1 {
			return "model.safetensors"
		}
		return fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards))
	}
	index := map[string]string{}
	for i, tensor := range l.draw() {
		shard := i % len(shards)
		shards[shard] = append(shards[shard], tensor)
		index[tensor.Name] = file(shard)
	}
	for i, shard := range shards {
		if err := safetensors.Write(filepath.Join(dir, file(i)), shard, nil); err != nil {
			t.Fatal(err)
		}
	}

	document := func(name string, v any) {
		data, err := json.Marshal(v)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	document("config.json", l.config())
	if len(shards) > 1 {
		document("model.safetensors.index.json", map[string]any{"weight_map": index})
	}
}

// draw draws all tensors and keeps their values.
func (l *llama) draw() (tensors []safetensors.Tensor) {
	random := rand.New(rand.NewPCG(uint64(l.hidden*l.ffn), uint64(l.vocab*l.headDim)))
	l.values = map[string][]float64{}
	add := func(name string, mean, deviation float64, as op.Type, shape ...int) {
		tensor, values := drawn(random, name, mean, deviation, as, shape...)
		l.values[name] = values
		tensors = append(tensors, tensor)
	}
	linear := func(name string, rows, cols int) {
		add(name, 0, 1/math.Sqrt(float64(cols)), l.stored, rows, cols)
	}
	gain := func(name string) {
		add(name, 1, 0.2, cmp.Or(l.gains, l.stored), l.hidden)
	}

	deviation := 0.5
	if l.tied { // logits of the size the other models have
		deviation = 1 / math.Sqrt(float64(l.hidden))
	}
	add("model.embed_tokens.weight", 0, deviation, l.stored, l.vocab, l.hidden)
	for i := range l.layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		gain(p + "input_layernorm.weight")
		linear(p+"self_attn.q_proj.weight", l.heads*l.headDim, l.hidden)
		linear(p+"self_attn.k_proj.weight", l.kvHeads*l.headDim, l.hidden)
		linear(p+"self_attn.v_proj.weight", l.kvHeads*l.headDim, l.hidden)
		linear(p+"self_attn.o_proj.weight", l.hidden, l.heads*l.headDim)
		gain(p + "post_attention_layernorm.weight")
		linear(p+"mlp.gate_proj.weight", l.ffn, l.hidden)
		linear(p+"mlp.up_proj.weight", l.ffn, l.hidden)
		linear(p+"mlp.down_proj.weight", l.hidden, l.ffn)
	}
	gain("model.norm.weight")
	if !l.tied {
		linear("lm_head.weight", l.vocab, l.hidden)
	}
	return tensors
}

// config is the model's config.json.
func (l *llama) config() map[string]any {
	types := map[op.Type]string{op.F32: "float32", op.F16: "float16", op.BF16: "bfloat16"}
	config := map[string]any{
		"architectures":           []string{"LlamaForCausalLM"},
		"hidden_act":              "silu",
		"max_position_embeddings": 256,
		"hidden_size":             l.hidden,
		"intermediate_size":       l.ffn,
		"vocab_size":              l.vocab,
		"num_hidden_layers":       l.layers,
		"num_attention_heads":     l.heads,
		"num_key_value_heads":     l.kvHeads,
		"rms_norm_eps":            l.eps,
		"tie_word_embeddings":     l.tied,
		"torch_dtype":             types[l.stored],
	}
	if l.headDim*l.heads != l.hidden {
		config["head_dim"] = l.headDim
	}
	if l.nested {
		config["rope_parameters"] = map[string]any{"rope_type": "default", "rope_theta": l.theta}
	} else {
		config["rope_theta"] = l.theta
	}
	return config
}

// logits computes the logits [T,vocab] of ids in float64 from the stored tensors alone, by the words of the
// architecture: no graph, no fused or packed weights, no cache.
func (l *llama) logits(ids []int32) []float32 {
	x := make([][]float64, len(ids))
	for r, id := range ids {
		x[r] = slices.Clone(l.values["model.embed_tokens.weight"][int(id)*l.hidden:][:l.hidden])
	}
	for i := range l.layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		addRows(x, l.attention(l.norm(x, p+"input_layernorm.weight"), p+"self_attn."))
		addRows(x, l.feedForward(l.norm(x, p+"post_attention_layernorm.weight"), p+"mlp."))
	}

	head := "lm_head.weight"
	if l.tied {
		head = "model.embed_tokens.weight"
	}
	var out []float32
	for _, row := range l.linear(l.norm(x, "model.norm.weight"), head) {
		for _, v := range row {
			out = append(out, float32(v))
		}
	}
	return out
}

// linear multiplies rows by a stored weight [n,k].
func (l *llama) linear(x [][]float64, name string) [][]float64 {
	w, k := l.values[name], len(x[0])
	y := make([][]float64, len(x))
	for r := range x {
		y[r] = make([]float64, len(w)/k)
		for n := range y[r] {
			for i, v := range x[r] {
				y[r][n] += v * w[n*k+i]
			}
		}
	}
	return y
}

// norm divides rows by the root of their mean square.
func (l *llama) norm(x [][]float64, name string) [][]float64 {
	y := make([][]float64, len(x))
	for r := range x {
		sum := 0.0
		for _, v := range x[r] {
			sum += v * v
		}
		for i, v := range x[r] {
			y[r] = append(y[r], v/math.Sqrt(sum/float64(l.hidden)+l.eps)*l.values[name][i])
		}
	}
	return y
}

// rotate turns the heads of each row by its position, in place.
func (l *llama) rotate(x [][]float64) {
	half := l.headDim / 2
	for pos := range x {
		for head := range slices.Chunk(x[pos], l.headDim) {
			for i := range half {
				frequency := 1 / float32(math.Pow(l.theta, float64(float32(2*i)/float32(l.headDim))))
				sin, cos := math.Sincos(float64(float32(pos) * frequency))
				low, high := head[i], head[i+half]
				head[i], head[i+half] = low*cos-high*sin, high*cos+low*sin
			}
		}
	}
}

// attention is causal attention with the weights of a prefix.
func (l *llama) attention(x [][]float64, prefix string) [][]float64 {
	q, k := l.linear(x, prefix+"q_proj.weight"), l.linear(x, prefix+"k_proj.weight")
	v := l.linear(x, prefix+"v_proj.weight")
	l.rotate(q)
	l.rotate(k)
	out := make([][]float64, len(x))
	for row := range x {
		for head := range l.heads {
			query := q[row][head*l.headDim:][:l.headDim]
			from := head / (l.heads / l.kvHeads) * l.headDim
			weights, sum := make([]float64, row+1), 0.0
			for pos := range weights {
				dot := 0.0
				for d := range query {
					dot += query[d] * k[pos][from+d]
				}
				weights[pos] = math.Exp(dot / math.Sqrt(float64(l.headDim)))
				sum += weights[pos]
			}
			for d := range l.headDim {
				y := 0.0
				for pos, w := range weights {
					y += w / sum * v[pos][from+d]
				}
				out[row] = append(out[row], y)
			}
		}
	}
	return l.linear(out, prefix+"o_proj.weight")
}

// feedForward is the gated product with the weights of a prefix.
func (l *llama) feedForward(x [][]float64, prefix string) [][]float64 {
	gate, up := l.linear(x, prefix+"gate_proj.weight"), l.linear(x, prefix+"up_proj.weight")
	for r := range gate {
		for n, g := range gate[r] {
			gate[r][n] = g / (1 + math.Exp(-g)) * up[r][n]
		}
	}
	return l.linear(gate, prefix+"down_proj.weight")
}

// addRows adds y to x.
func addRows(x, y [][]float64) {
	for r := range x {
		for i := range x[r] {
			x[r][i] += y[r][i]
		}
	}
}

// granularity is the unit of a node along an axis on processors with the usual tile.
func granularity(n *lower.Node, axis planir.Axis) int {
	tile := capability.Tile{K: pack.BlockK, N: pack.TileN}
	return lower.Granularity(n, axis, &planir.Proc{Set: capability.Set{Tile: tile}})
}

// byFirst gives the first processor the least an axis allows, and the second one the rest.
func byFirst(d *planir.Decision, n *lower.Node) {
	byPairs(d, n)
	if len(d.Shares) == 2 {
		unit := granularity(n, d.Axis)
		d.Shares[0].To, d.Shares[1].From = unit, unit
	}
}

// byLast gives the second processor no more than what is beyond the last whole unit.
func byLast(d *planir.Decision, n *lower.Node) {
	byFirst(d, n)
	if len(d.Shares) == 2 {
		unit, length := d.Shares[0].To, d.Shares[1].To
		d.Shares[0].To = (length - 1) / unit * unit
		d.Shares[1].From = d.Shares[0].To
	}
}

// byFirstRow divides rows one to the rest.
func byFirstRow(d *planir.Decision, n *lower.Node) {
	byRows(d, n)
	if len(d.Shares) == 2 {
		d.Shares[0].To, d.Shares[1].From = 1, 1
	}
}

// threeWays divides a layout's shares once more: the first two thirds get halved.
func threeWays(f layoutOf) layoutOf {
	return func(d *planir.Decision, n *lower.Node) {
		f(d, n)
		if len(d.Shares) != 2 {
			return
		}
		unit := granularity(n, d.Axis)
		length := d.Shares[1].To
		one, two := length/3/unit*unit, 2*length/3/unit*unit
		if one == 0 || two == one || two == length {
			return
		}
		d.Shares = []planir.Share{
			{Proc: "c", To: one},
			{Proc: "a", From: one, To: two},
			{Proc: "b", From: two, To: length},
		}
	}
}

// simulated is a machine of three cores, more than the one that executes the tests may have.
func simulated(t *testing.T) *socs.SoC {
	t.Helper()
	text := "schema: hetc.soc/1\nname: three-cores\ncontrol: a\nprocessors:"
	for i, name := range []string{"a", "b", "c"} {
		text += fmt.Sprintf(`
  - name: %s
    kind: cpu
    driver: sim
    select: %s
    cores: [%d]
    bandwidth_gbps: 10
    launch_us: 0.2
    tile: {k: 32, n: 32}
    schemes: [a32/w32, a8t/q8c, a8s/q8c, a8t/q4b32]
    layouts: {w32: n32, q8c: n32, q4b32: n32}
    kv: [f32]
    dynamic_rows: true
    strided_output: true
    strided_input: true
    weight_ranges: true
    sim:
      schemes:
        a32/w32: {peak_gops: 100}
        a8t/q8c: {peak_gops: 400}
        a8s/q8c: {peak_gops: 400}
        a8t/q4b32: {peak_gops: 400}
      other_gops: 25`, name, name, i)
	}
	s, err := socs.Parse("three-cores.yaml", []byte(text+"\nlinks:\n  - {from: a, to: b, handover_us: 0.3}\n"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// spread are n ids all over a vocabulary.
func spread(n, vocab int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32((i*i*7 + i*3 + n) % vocab)
	}
	return ids
}

// shapeVariant is a way to execute the models of odd shapes.
type shapeVariant struct {
	name   string
	procs  []planir.Proc
	rows   []int
	layout layoutOf
	equal  bool // quantised, it gives the bits of one core: no sums are divided
}

// shapeVariants divide plans over two cores of the host, and over three simulated processors.
func shapeVariants(first, second string) []shapeVariant {
	two := pairOn(first, second)
	var three []planir.Proc
	for i, name := range []string{"a", "b", "c"} {
		p := proc(name, name, "")
		p.Driver, p.Cores = socs.SimDriver, []int{i}
		three = append(three, p)
	}
	return []shapeVariant{
		{name: "one processor of two cores", procs: singleOn(first + "-" + second), rows: []int{1, 40}, equal: true},
		{name: "columns", procs: two, rows: []int{1, 33, 130}, layout: byColumns, equal: true},
		{name: "rows", procs: two, rows: []int{1, 16}, layout: byRows, equal: true},
		{name: "pairs", procs: two, rows: []int{1, 64}, layout: byPairs},
		{name: "pairs, other order", procs: two, rows: []int{1, 7, 64}, layout: swapped},
		{name: "the least to the first", procs: two, rows: []int{1, 40}, layout: byFirst},
		{name: restToLast, procs: two, rows: []int{1, 32}, layout: byLast},
		{name: "one row and the others", procs: two, rows: []int{1, 33}, layout: byFirstRow, equal: true},
		{name: "three by columns", procs: three, rows: []int{1, 48}, layout: threeWays(byColumns), equal: true},
		{name: "three by rows", procs: three, rows: []int{1, 130}, layout: threeWays(byRows), equal: true},
		{name: "three by pairs", procs: three, rows: []int{1, 48}, layout: threeWays(byPairs)},
	}
}

// restToLast is the variant with the smallest share.
const restToLast = "the rest to the last"

// Models of any shape and storage give the logits of the plain formulas, however plans divide them.
func TestOddShapes(t *testing.T) {
	require.Slow(t)
	s0, s1 := cores(t)
	three := simulated(t)
	variants, shapes := shapeVariants(s0, s1), oddShapes()
	if raceEnabled {
		shapes = slices.DeleteFunc(shapes, func(l *llama) bool { return l.hidden > 100 || l.vocab > 130 })
	} else { // one lane races with nobody, whatever its kernels
		for _, set := range kernel.Sets() {
			procs := []planir.Proc{proc("a", s0, set.Name)}
			kernels := shapeVariant{name: set.Name + " kernels", procs: procs, rows: []int{1, 33, 130}}
			variants = append(variants, kernels)
		}
	}
	for _, l := range shapes {
		t.Run(l.String(), func(t *testing.T) {
			dir := t.TempDir()
			l.write(t, dir)
			m := openDir(t, dir)
			ids := spread(130, l.vocab)
			want := l.logits(ids)

			compareFloats(t, m, three, variants, ids, want)

			cal := ranged(t, m, s0, ids[:60])
			one := shapeVariant{procs: singleOn(s0), rows: []int{1, 20}}
			limits := map[op.Scheme]float64{op.A8TQ8C: 0.004, op.A8SQ8C: 0.012, op.A8TQ4B32: 0.25}
			for scheme, limit := range limits {
				run := func(v shapeVariant) []float32 {
					return allLogits(t, v.quantised(t, m, three, scheme, cal), ids[:14], 10, 1, 3)
				}
				base := run(one)
				kl := meanKL(base, want[:len(base)], l.vocab)
				t.Logf("%s: mean KL against float32 %.2g", scheme, kl)
				if !(kl <= limit) {
					t.Errorf("%s: mean KL against float32 is %.3g, want at most %g", scheme, kl, limit)
				}
				for _, v := range variants {
					if !v.equal && v.name != restToLast {
						continue
					}
					got := run(v)
					if d := maxDiff(got, base); v.equal && d != 0 {
						t.Errorf("%s, %s: differs from one core by %g, want equal bits", scheme, v.name, d)
					}
					if kl := meanKL(got, want[:len(got)], l.vocab); !(kl <= limit) {
						t.Errorf("%s, %s: mean KL against float32 is %.3g, want at most %g", scheme, v.name, kl, limit)
					}
				}
			}
		})
	}
}

// compareFloats compares the logits of float32 plans with those of the formulas, in calls of many lengths.
func compareFloats(
	t *testing.T, m *models.Model, s *socs.SoC, variants []shapeVariant, ids []int32, want []float32,
) {
	t.Helper()
	magnitude, worst := 1.0, map[string]float64{}
	for _, v := range want {
		magnitude = max(magnitude, math.Abs(float64(v))/10)
	}
	for _, v := range variants {
		x := machineOn(t, m, makePlan(t, m, planSpec{
			procs: v.procs, rows: v.rows, context: 140, scheme: op.A32W32, layout: v.layout,
		}), s)
		limit := 1e-3 * magnitude
		if strings.HasPrefix(v.name, "reference") {
			limit = 1e-4 * magnitude
		}
		calls := [][]int{{1, 6}, {33}, {5, 1, 1, 10}}
		if slices.Contains(v.rows, 130) {
			calls = append(calls, []int{130})
		}
		for _, pieces := range calls { // the logits of a beginning are the beginning of the logits
			count := 0
			for _, piece := range pieces {
				count += piece
			}
			d := maxDiff(allLogits(t, x, ids[:count], pieces...), want[:count*m.Vocab])
			worst[v.name] = max(worst[v.name], d)
			if !(d <= limit) {
				t.Errorf("%s, tokens in pieces of %v: differ by %.3g, want at most %.3g", v.name, pieces, d, limit)
			}
		}
	}
	t.Logf("largest logit about %.3g, differences %v", 10*magnitude, worst)
}

// quantised is a machine of the variant's plan, with the calibration where the scheme needs it.
func (v shapeVariant) quantised(
	t *testing.T, m *models.Model, s *socs.SoC, scheme op.Scheme, cal *calibration.Calibration,
) *executor.Machine {
	t.Helper()
	p := makePlan(t, m, planSpec{procs: v.procs, rows: v.rows, context: 140, scheme: scheme, layout: v.layout})
	if !scheme.Static() {
		return machineOn(t, m, p, s)
	}
	options := executor.Options{Drivers: []driver.Driver{host.New(), sim.New(s)}}
	return machineWith(t, m, folded(t, p, m, cal), cal, options, sim.NewCompiler(s))
}

// machineOn is machine with simulated processors, too.
func machineOn(t *testing.T, m *models.Model, p *planir.Plan, s *socs.SoC) *executor.Machine {
	t.Helper()
	return machine(t, m, p, executor.Options{Drivers: []driver.Driver{host.New(), sim.New(s)}}, sim.NewCompiler(s))
}
