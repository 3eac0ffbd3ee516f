// Package induction knows how to construct a small llama that uses all of its context: with constructed weights instead
// of trained ones, so that it exists within seconds and everybody has the same bytes.
//
// Heads of the first layer copy the codes of the last three tokens to every position. Heads of the layers above look
// for earlier positions that follow the same tokens and predict what came then (induction heads, Olsson and others
// 2022), with one, two or three tokens to agree and different sharpness; others take the mean of what was read
// recently, or of everything. Beside them goes a path of word pairs: the counts of a text, as a product of two matrices
// of low rank. What a word of the text is followed by is thus known roughly without context, and names, phrases and
// copied passages are known from context alone.
package induction

import (
	"math"
	"math/rand/v2"

	"github.com/hetc/hetc/internal/diag"
)

// The shape of every constructed model.
const (
	hidden   = 512
	layers   = 3
	heads    = 4
	kvHeads  = 2
	headDim  = 128
	ffn      = 64
	normEps  = 1e-5
	theta    = 1e30 // of the rotation: 53 of 64 pairs turn by less than 0.06 in the whole context
	MaxVocab = 1 << 16
	// MaxContext is the number of positions that the model can tell apart.
	MaxContext = 8192
)

// The residual stream holds these parts, each from its offset.
const (
	codeAt  = 0   // of the token itself: signs over the root of codeDim
	nextAt  = 128 // of the tokens that heads predict, weighted
	back1At = 256 // the first back1Dim signs of the token before
	back2At = 320
	back3At = 362
	pairAt  = 388 // what follows the token in the text that was counted
	oneAt   = 511 // the same everywhere

	codeDim  = 128
	back1Dim = back2At - back1At
	back2Dim = back3At - back2At
	back3Dim = pairAt - back3At
	pairDim  = oneAt - pairAt
)

// The part that is the same everywhere is larger than all others together, so that norms divide by nearly the same at
// every position. Behind a norm it is oneNormed, like the other values there.
const (
	one       = 8.0
	oneNormed = 0.1
)

// firstStill is the first pair of elements of a head that hardly turns with the position. Codes are compared there, and
// distances by the pairs before.
const firstStill = 11

// freeDim is how many elements of a head codes have.
const freeDim = 2 * (headDim/2 - firstStill)

// A matching head attends to positions behind the same tokens as its own: score is what a token adds that agrees, for
// each of them from the last one. weight is what it adds to the prediction.
type matching struct {
	score  [3]float64
	weight float64
}

// A placed head attends by distance: to the position lag before its own with widths of cosines given by sharpness, for
// each pair of elements from the first.
type placed struct {
	lag       float64
	sharpness []float64
}

// strict tells neighbouring positions apart, by at least 15 in 8192 positions.
var strict = []float64{30, 30, 12, 12, 12, 12, 12, 12}

// Sharpness of heads that attend to what was read recently.
var (
	recent = []float64{0, 0, 0, 0, 3, 4, 4}          // some hundred tokens
	lately = []float64{0, 0, 0, 0, 0, 0, 2, 3, 3, 3} // some thousand
)

// matrix is [rows,cols], row by row, as files store it: what is computed is x times its transpose.
type matrix struct {
	rows, cols int
	values     []float64
}

// newMatrix has zeros.
func newMatrix(rows, cols int) *matrix {
	return &matrix{rows, cols, make([]float64, rows*cols)}
}

// set changes one element.
func (m *matrix) set(row, col int, value float64) { m.values[row*m.cols+col] = value }

// row returns one row.
func (m *matrix) row(i int) []float64 { return m.values[i*m.cols : (i+1)*m.cols] }

// Tensors are the values of a model by their names in a llama's safetensors.
type Tensors map[string]*Tensor

// Tensor has a shape and values, row by row.
type Tensor struct {
	Shape  []int
	Values []float64
}

// Build constructs a model of vocab tokens. Word pairs are counted in ids; codes and what noise there is follow from
// seed. Ids outside the vocabulary and fewer than two of them are errors of class ClassInput.
func Build(ids []int32, vocab int, seed uint64) (Tensors, error) {
	if vocab < 2 || vocab > MaxVocab {
		return nil, diag.New(diag.ClassInput, "construct a model: vocabulary of %d tokens, want 2..%d", vocab, MaxVocab)
	}
	if len(ids) < 2 {
		return nil, diag.New(diag.ClassInput, "construct a model: text of %d tokens, want at least 2", len(ids))
	}
	for i, id := range ids {
		if id < 0 || int(id) >= vocab {
			return nil, diag.New(diag.ClassInput, "construct a model: token %d of the text is id %d, want 0..%d", i, id,
				vocab-1)
		}
	}
	random := rand.New(rand.NewPCG(seed, 0x1d0c))
	b := &builder{random: random, out: Tensors{}, codes: codes(random, vocab)}
	b.words(countPairs(ids, vocab))
	b.copies()
	// Weights were chosen by perplexity in 2048 tokens of context.
	b.predict(1, [heads]any{
		matching{[3]float64{14}, 0.3},
		matching{[3]float64{26, 16}, 0.35},
		matching{[3]float64{28, 20, 14}, 0.25},
		matching{[3]float64{30, 30, 30}, 0.15},
	})
	b.predict(2, [heads]any{
		matching{[3]float64{7}, 0.14},
		matching{[3]float64{}, 0.06},
		placed{0, lately},
		matching{[3]float64{2, 1}, 0.02},
	})
	for layer := range layers {
		b.feedForward(layer)
	}
	return b.out, nil
}

// Config returns what config.json says of a model of vocab tokens, that of any llama.
func Config(vocab, bos, eos int) map[string]any {
	return map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama",
		"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
		"num_key_value_heads": kvHeads, "head_dim": headDim, "intermediate_size": ffn, "vocab_size": vocab,
		"max_position_embeddings": MaxContext, "rms_norm_eps": normEps, "rope_theta": theta, "hidden_act": "silu",
		"tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false, "torch_dtype": "bfloat16",
		"bos_token_id": bos, "eos_token_id": eos,
	}
}

// builder fills in the tensors of a model.
type builder struct {
	random *rand.Rand
	codes  *matrix // [vocab,codeDim]
	out    Tensors
}

// codes are random signs over the root of their number: two tokens have little in common, and so have the first parts
// of their codes.
func codes(random *rand.Rand, vocab int) *matrix {
	out := newMatrix(vocab, codeDim)
	sign := 1 / math.Sqrt(codeDim)
	for i := range out.values {
		out.values[i] = sign
		if random.Uint64()&1 == 1 {
			out.values[i] = -sign
		}
	}
	return out
}

// add notes a matrix.
func (b *builder) add(name string, m *matrix) {
	b.out[name] = &Tensor{[]int{m.rows, m.cols}, m.values}
}

// norm notes gains behind which the parts of the residual stream are as they were in front of the norm, but for the one
// that is the same everywhere. square is the usual sum of the others' squares.
func (b *builder) norm(name string, square float64) {
	gains := make([]float64, hidden)
	root := math.Sqrt((one*one + square) / hidden)
	for i := range gains {
		gains[i] = root
	}
	gains[oneAt] = root * oneNormed / one
	b.out[name] = &Tensor{[]int{hidden}, gains}
}

// words notes the embedding, which holds each token's code and left factor of the pairs, and the head, which compares
// predictions with codes, and adds the right factor and the token's own frequency. A prediction counts as much as the
// token is rare: a whole one makes every token equally likely, before which frequent ones are likelier.
func (b *builder) words(counts *pairs) {
	vocab := b.codes.rows
	left, right := counts.factors(pairDim, b.random)
	// Both factors have the same share of each singular value. Rows of the left one are made so long that they are
	// small beside the constant, like the other parts.
	longest := 0.0
	for token := range vocab {
		longest = max(longest, dot(left.row(token), left.row(token)))
	}
	shrink := 1.0
	if longest > 0 {
		shrink = 1.5 / math.Sqrt(longest)
	}
	table, head := newMatrix(vocab, hidden), newMatrix(vocab, hidden)
	for token := range vocab {
		copy(table.row(token)[codeAt:], b.codes.row(token))
		table.set(token, oneAt, one)
		for i := range pairDim {
			table.set(token, pairAt+i, left.row(token)[i]*shrink)
			head.set(token, pairAt+i, right.row(token)[i]/shrink)
		}
		for i, sign := range b.codes.row(token) {
			head.set(token, nextAt+i, -counts.logShare(token)*sign)
		}
		head.set(token, oneAt, counts.logShare(token)/oneNormed)
	}
	b.add("model.embed_tokens.weight", table)
	b.add("lm_head.weight", head)
	b.norm("model.norm.weight", 6)
}

// attentionName returns the name of a matrix of a layer's attention: q, k, v or o.
func attentionName(layer int, which string) string {
	return layerName(layer) + "self_attn." + which + "_proj.weight"
}

// attention notes the matrices of a layer's attention.
func (b *builder) attention(layer int, query, key, value, out *matrix, square float64) {
	b.disturb(query, key, value, out)
	b.add(attentionName(layer, "q"), query)
	b.add(attentionName(layer, "k"), key)
	b.add(attentionName(layer, "v"), value)
	b.add(attentionName(layer, "o"), out)
	b.norm(layerName(layer)+"input_layernorm.weight", square)
}

// disturb adds a little noise, so that no row is zero and no head without any effect.
func (b *builder) disturb(all ...*matrix) {
	for _, m := range all {
		for i := range m.values {
			m.values[i] += 0.0005 * b.random.NormFloat64()
		}
	}
}

// place makes a query head attend by distance: the query and the key of a constant, turned against each other by the
// distance where the score is greatest.
func place(query, key *matrix, head int, p placed) {
	group := heads / kvHeads
	for pair, score := range p.sharpness {
		// Scores are divided by the root of headDim; the constant is oneNormed behind the norm.
		size := math.Sqrt(score*math.Sqrt(headDim)) / oneNormed
		angle := -p.lag * frequency(pair)
		query.set(head*headDim+pair, oneAt, size*math.Cos(angle))
		query.set(head*headDim+pair+headDim/2, oneAt, size*math.Sin(angle))
		// Heads of a group share the key, whose size is that of the strictest; smaller scores come from queries.
		shared := math.Sqrt(strict[0]*math.Sqrt(headDim)) / oneNormed
		key.set(head/group*headDim+pair, oneAt, shared)
		for _, row := range []int{pair, pair + headDim/2} {
			at := (head*headDim+row)*hidden + oneAt
			query.values[at] *= size / shared
		}
	}
}

// frequency is by how much a pair of elements turns from one position to the next.
func frequency(pair int) float64 { return math.Pow(theta, -2*float64(pair)/headDim) }

// copies makes the first layer: three heads copy the codes of the last three tokens, the fourth adds what was read
// recently to the prediction.
func (b *builder) copies() {
	query, key := newMatrix(heads*headDim, hidden), newMatrix(kvHeads*headDim, hidden)
	value, out := newMatrix(kvHeads*headDim, hidden), newMatrix(hidden, heads*headDim)
	for head := range heads - 1 {
		place(query, key, head, placed{float64(head + 1), strict})
	}
	place(query, key, heads-1, placed{0, recent})
	for kv := range kvHeads {
		for i := range codeDim {
			value.set(kv*headDim+i, codeAt+i, 1)
		}
	}
	for head, part := range []struct{ at, dim int }{
		{back1At, back1Dim}, {back2At, back2Dim}, {back3At, back3Dim}, {nextAt, codeDim},
	} {
		// As long as a whole code, whatever the number of signs that are kept.
		size := math.Sqrt(codeDim / float64(part.dim))
		if part.at == nextAt {
			size = 0.06
		}
		for i := range part.dim {
			out.set(part.at+i, head*headDim+i, size)
		}
	}
	b.attention(0, query, key, value, out, 2)
}

// predict makes a layer whose heads add the codes of what followed to the prediction.
func (b *builder) predict(layer int, kinds [heads]any) {
	query, key := newMatrix(heads*headDim, hidden), newMatrix(kvHeads*headDim, hidden)
	value, out := newMatrix(kvHeads*headDim, hidden), newMatrix(hidden, heads*headDim)
	for head, kind := range kinds {
		weight := 0.03
		switch kind := kind.(type) {
		case placed:
			place(query, key, head, kind)
		case matching:
			match(query, head, kind)
			weight = kind.weight
		}
		for i := range codeDim {
			out.set(nextAt+i, head*headDim+i, weight)
		}
	}
	for kv := range kvHeads {
		compareKeys(key, kv)
		for i := range codeDim {
			value.set(kv*headDim+i, codeAt+i, 1)
		}
	}
	b.attention(layer, query, key, value, out, 6)
}

// compared are the signs of the last three tokens that a head compares: as many as fit.
var compared = [3]struct{ query, key, dim int }{
	{codeAt, back1At, freeDim - back2Dim - back3Dim},
	{back1At, back2At, back2Dim},
	{back2At, back3At, back3Dim},
}

// still returns the row of a head that holds element i of the codes: both elements of each pair that hardly turns.
func still(i int) int {
	half := freeDim / 2
	if i < half {
		return firstStill + i
	}
	return headDim/2 + firstStill + i - half
}

// keySize is how large codes are in keys; what a score is follows from queries.
const keySize = 8

// compareKeys writes the codes of the tokens before a position into its keys.
func compareKeys(key *matrix, kv int) {
	element := 0
	for _, part := range compared {
		for i := range part.dim {
			key.set(kv*headDim+still(element), part.key+i, keySize)
			element++
		}
	}
}

// match makes a query head look for positions behind the tokens that its own is behind.
func match(query *matrix, head int, m matching) {
	element := 0
	// how many signs the parts have that queries and keys read: a sign is one over the root of it
	queried := [3]float64{codeDim, back1Dim, back2Dim}
	stored := [3]float64{back1Dim, back2Dim, back3Dim}
	for lag, part := range compared {
		// The product of dim signs that agree is to be the score.
		product := float64(part.dim) * keySize / math.Sqrt(queried[lag]*stored[lag])
		for i := range part.dim {
			query.set(head*headDim+still(element), part.query+i, m.score[lag]*math.Sqrt(headDim)/product)
			element++
		}
	}
}

// feedForward makes a block that does next to nothing: attention is what these models are for.
func (b *builder) feedForward(layer int) {
	gate, up, down := newMatrix(ffn, hidden), newMatrix(ffn, hidden), newMatrix(hidden, ffn)
	for _, m := range []*matrix{gate, up, down} {
		for i := range m.values {
			m.values[i] = 0.02 * b.random.NormFloat64()
		}
	}
	b.add(layerName(layer)+"mlp.gate_proj.weight", gate)
	b.add(layerName(layer)+"mlp.up_proj.weight", up)
	b.add(layerName(layer)+"mlp.down_proj.weight", down)
	b.norm(layerName(layer)+"post_attention_layernorm.weight", 6)
}
