package gguf

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

// Directory is a model as a Hugging Face directory holds it, for Export.
type Directory struct {
	Name            string         // for people; may be empty
	Config          map[string]any // config.json; numbers are int, int64 or float64
	Tokenizer       []byte         // tokenizer.json, nil without
	TokenizerConfig []byte         // tokenizer_config.json, nil without
	ChatTemplate    string         // chat_template.jinja, "" where tokenizer_config.json has it or there is none
	Names           []string       // of the tensors; NAME[0:a], NAME[a:b] where rows of one are given apart
	Tensor          func(name string) (Matrix, error)
}

// Export writes a model as a GGUF file with matrices of type f32, f16, bf16, q8_0 or q4_0. Vectors and
// the matrices that choose experts stay f32; rows that no block divides become f16, as other
// converters have it. What has no form in the file is refused by its key or tensor. Matrices are read
// by several goroutines at once.
func Export(ctx context.Context, w io.Writer, d Directory, t op.Type) error {
	metadata, tensors, err := plan(&d, t)
	if err != nil {
		return fmt.Errorf("export %q: %w", d.Name, err)
	}
	return writeFile(ctx, w, metadata, tensors)
}

// plan returns what Export writes: metadata, tokenizer included, and tensors. No tensor is read yet.
func plan(directory *Directory, elementType op.Type) ([]keyValue, []tensorSource, error) {
	fileType, ok := fileTypes[elementType]
	if !ok {
		return nil, nil, diag.New(diag.ClassUsage,
			"type %q cannot be written; those that can: f32, f16, bf16, q8_0, q4_0", elementType)
	}
	// First the configuration, so that its problems are all named before the tokenizer or a tensor is looked at.
	cfg := &exportConfig{keys: directory.Config}
	arch, err := cfg.architecture()
	if err != nil {
		return nil, nil, err
	}
	metadata := []keyValue{{"general.architecture", arch.name}, {"general.type", "model"}}
	if directory.Name != "" {
		metadata = append(metadata, keyValue{"general.name", directory.Name})
	}
	metadata = append(metadata, keyValue{"general.quantization_version", uint32(2)}, keyValue{"general.file_type", fileType})
	cfg.metadata(arch)
	if err := cfg.errs.Err(); err != nil {
		return nil, nil, err
	}
	metadata = append(metadata, cfg.out...)
	tokenizer, err := cfg.tokenizer(directory)
	if err != nil {
		return nil, nil, err
	}
	metadata = append(metadata, tokenizer...)
	tensors, err := cfg.sources(arch, directory, elementType)
	return metadata, tensors, err
}

// exportConfig reads a config.json into metadata.
type exportConfig struct {
	keys        map[string]any // of the config.json
	errs        diag.List      // all problems so far, so that one run names them all
	out         []keyValue     // of the architecture
	arch, class string         // what GGUF and Hugging Face call the architecture

	layers, heads, kvHeads, experts, vocab int
	tied                                   bool      // the head multiplies by the embedding
	freqs, long, short                     []float32 // rotary factors that become tensors
}

// fail collects a problem with a key of the configuration.
func (c *exportConfig) fail(key, format string, args ...any) {
	c.errs = append(c.errs, diag.New(diag.ClassInput, "key %q: %s", key, fmt.Sprintf(format, args...)).
		WithCode("model.config"))
}

// put writes a key of the architecture.
func (c *exportConfig) put(key string, v any) { c.out = append(c.out, keyValue{c.arch + "." + key, v}) }

// number returns a number of the configuration; false where it has none under the key.
func (c *exportConfig) number(key string) (float64, bool) { return toFloat(c.keys[key]) }

// toFloat converts a number of a config.json.
func toFloat(v any) (float64, bool) {
	switch v := v.(type) {
	case int:
		return float64(v), true
	case int64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

// int reads an integer in lo..hi; def < 0 makes it required.
func (c *exportConfig) int(key string, def, lo, hi int) int {
	// A null counts as a missing key, as readers of config.json take it.
	if c.keys[key] == nil && def >= 0 {
		return def
	}
	number, ok := c.number(key)
	if !ok || number != math.Trunc(number) || number < float64(lo) || number > float64(hi) {
		c.fail(key, "got %s, want an integer in %d..%d", brief(c.keys[key]), lo, hi)
		return lo
	}
	return int(number)
}

// float reads a number in [lo, hi].
func (c *exportConfig) float(key string, def, lo, hi float64) float64 {
	if c.keys[key] == nil {
		return def
	}
	number, ok := c.number(key)
	if !ok || !(number >= lo && number <= hi) {
		c.fail(key, "got %s, want a number from %v to %v", brief(c.keys[key]), lo, hi)
		return lo
	}
	return number
}

// flag returns a bool of the configuration; a missing one is false.
func (c *exportConfig) flag(key string) bool { on, _ := c.keys[key].(bool); return on }

// architecture finds the GGUF architecture of the configuration's class.
func (c *exportConfig) architecture() (*architecture, error) {
	list, _ := c.keys["architectures"].([]any)
	var classes []string
	for i := range architectures {
		arch := &architectures[i]
		if arch.name == "internlm2" { // its files are read as llama, so llama is what is written
			continue
		}
		for _, class := range arch.classes {
			if len(list) == 1 && list[0] == class {
				c.arch, c.class = arch.name, class
				return arch, nil
			}
			classes = append(classes, class)
		}
	}
	return nil, diag.New(diag.ClassInput, "key %q: %s has no form in GGUF that is supported", "architectures",
		brief(c.keys["architectures"])).
		WithHint("supported: %s", strings.Join(classes, ", "))
}

// metadata translates the configuration. Whatever has no key in the format is refused.
func (c *exportConfig) metadata(arch *architecture) {
	// The dimensions that every architecture has.
	c.layers = c.int("num_hidden_layers", -1, 1, maxLayers)
	hidden := c.int("hidden_size", -1, 1, maxDim)
	c.heads = c.int("num_attention_heads", -1, 1, maxDim)
	c.kvHeads = c.int("num_key_value_heads", c.heads, 1, maxDim)
	// Older configurations leave the width of a head to the residual stream's.
	headDim := c.int("head_dim", max(1, hidden/c.heads), 1, maxDim)
	context := c.int("max_position_embeddings", 2048, 1, math.MaxInt32)
	c.vocab = c.int("vocab_size", -1, 1, maxDim)
	ffn := c.int("intermediate_size", -1, 1, maxDim)
	c.tied = c.flag("tie_word_embeddings")
	if c.keys["tie_word_embeddings"] == nil {
		c.tied = arch.plusOne // Gemma's default
	}
	if arch.plusOne && !c.tied {
		c.fail("tie_word_embeddings", "false has no form in GGUF for this architecture")
	}
	for _, size := range []struct {
		key   string
		value int
	}{
		{"block_count", c.layers}, {"context_length", context}, {"embedding_length", hidden},
		{"feed_forward_length", ffn},
		{"attention.head_count", c.heads}, {"attention.head_count_kv", c.kvHeads},
		{"attention.key_length", headDim}, {"attention.value_length", headDim}, {"vocab_size", c.vocab},
	} {
		c.put(size.key, uint32(size.value))
	}
	// Then what only some architectures have; each part refuses values that have no key in the format.
	from, to := arch.epsKeys()
	c.put(to, float32(c.float(from, 1e-6, 0, 1)))
	c.rope(arch, headDim, context)
	c.activation(arch)
	c.window(arch)
	if arch.experts {
		c.moe(arch)
	}
	if arch.model == "gemma2" {
		c.gemma2(hidden, headDim)
	} else {
		c.absent("attn_logit_softcapping", "final_logit_softcapping")
	}
	if arch.model == "phi" && c.flag("qk_layernorm") {
		c.fail("qk_layernorm", "true has no form in GGUF")
	}
	c.ends()
}

// gemma2 writes the soft caps, and what scores are divided by where readers would assume something else.
func (c *exportConfig) gemma2(hidden, headDim int) {
	c.cap("attn_logit_softcapping", 50)
	c.cap("final_logit_softcapping", 30)
	// What readers assume: scores are divided by its square root.
	implied := headDim
	if c.layers == 46 { // the 27B, see queryScalar
		implied = hidden / c.heads
	}
	if scalar := c.int("query_pre_attn_scalar", 256, 1, maxDim); scalar != implied {
		c.put("attention.scale", float32(1/math.Sqrt(float64(scalar))))
	}
}

// absent refuses keys that the architecture has no metadata for.
func (c *exportConfig) absent(keys ...string) {
	for _, key := range keys {
		if c.keys[key] != nil {
			c.fail(key, "%s has no form in GGUF for this architecture", brief(c.keys[key]))
		}
	}
}

// cap writes a soft cap; readers assume one, and a null, which means none, has no form.
func (c *exportConfig) cap(key string, def float64) {
	limit, ok := c.number(key)
	if _, said := c.keys[key]; !said {
		limit, ok = def, true
	}
	if !ok || limit <= 0 {
		c.fail(key, "got %s, want a positive number: readers of GGUF always cap in this architecture",
			brief(c.keys[key]))
		return
	}
	c.put(key, float32(limit))
}

// activation refuses activations that readers of GGUF do not assume in the architecture.
func (c *exportConfig) activation(a *architecture) {
	want := []string{"silu"}
	if a.activation != "" {
		want = []string{"gelu_pytorch_tanh", "gelu_new"}
	}
	if a.plusOne { // what Gemma's first configurations called it
		want = append(want, "gelu")
	}
	for _, key := range []string{"hidden_activation", "hidden_act"} {
		if name, ok := c.keys[key].(string); ok {
			if !slices.Contains(want, name) {
				c.fail(key, "%q has no form in GGUF for this architecture; supported: %s", name, want[0])
			}
			return
		}
	}
}

// moe writes the numbers of a mixture. GGUF has experts in every layer or in none.
func (c *exportConfig) moe(arch *architecture) {
	// Published configurations use either name for the number of experts.
	key := arch.countKey()
	for _, other := range []string{"num_local_experts", "num_experts"} {
		if c.keys[key] == nil {
			key = other
		}
	}
	c.experts = c.int(key, -1, 1, maxExperts)
	c.put("expert_count", uint32(c.experts))
	c.put("expert_used_count", uint32(c.int("num_experts_per_tok", -1, 1, c.experts)))
	switch arch.model {
	case "qwen2_moe", "qwen3_moe":
		c.put("expert_feed_forward_length", uint32(c.int("moe_intermediate_size", -1, 1, maxDim)))
		if list, _ := c.keys["mlp_only_layers"].([]any); len(list) > 0 {
			c.fail("mlp_only_layers", "%s has no form in GGUF: every layer has experts",
				brief(c.keys["mlp_only_layers"]))
		}
		if step := c.int("decoder_sparse_step", 1, 1, maxLayers); step != 1 {
			c.fail("decoder_sparse_step", "%d has no form in GGUF: every layer has experts", step)
		}
		if arch.model == "qwen2_moe" {
			c.put("expert_shared_feed_forward_length", uint32(c.int("shared_expert_intermediate_size", -1, 1, maxDim)))
		}
	case "olmoe":
		if clip, ok := c.number("clip_qkv"); ok {
			c.put("attention.clamp_kqv", float32(clip))
		}
	default:
		return
	}
	// Readers have their own opinion for each architecture; it is written where it differs.
	if norm := c.flag("norm_topk_prob"); norm != (arch.model == "qwen3_moe") {
		c.put("expert_weights_norm", norm)
	}
}

// window writes the sliding window; a list of layer types says which layers have it.
func (c *exportConfig) window(arch *architecture) {
	assumed := 0
	if _, said := c.keys["sliding_window"]; !said && (arch.model == "gemma2" || c.class == "MistralForCausalLM") {
		assumed = 4096
	}
	// A missing key means the default of the configuration class; null means no window.
	size := c.int("sliding_window", assumed, 0, math.MaxInt32)
	qwen := strings.HasPrefix(arch.model, "qwen")
	sliding, ok := c.slidingLayers(qwen)
	switch {
	case !ok:
		return
	case arch.model == "gemma2" && size == 0:
		c.fail("sliding_window", "null has no form in GGUF for this architecture")
	case arch.model == "gemma2":
		c.put("attention.sliding_window", uint32(size))
		// Readers assume that layers take turns; anything else is written.
		for i := range sliding {
			if sliding[i] != (i%2 == 0) {
				c.put("attention.sliding_window_pattern", sliding)
				break
			}
		}
	case size == 0, qwen && !c.flag("use_sliding_window"), len(sliding) > 0 && !slices.Contains(sliding, true):
	default:
		c.put("attention.sliding_window", uint32(size))
		if slices.Contains(sliding, false) {
			c.put("attention.sliding_window_pattern", sliding)
		}
	}
}

// slidingLayers says which layers have the window, nil where that is not said. Qwen models without a list attend to
// everything in the layers below max_window_layers.
func (c *exportConfig) slidingLayers(qwen bool) (sliding []bool, ok bool) {
	types, _ := c.keys["layer_types"].([]any)
	for _, layerType := range types {
		if layerType != "sliding_attention" && layerType != "full_attention" {
			c.fail("layer_types", "%s has no form in GGUF", brief(layerType))
			return nil, false
		}
		sliding = append(sliding, layerType == "sliding_attention")
	}
	if qwen && len(types) == 0 && c.flag("use_sliding_window") {
		full := c.int("max_window_layers", 28, 0, maxLayers)
		for i := range c.layers {
			sliding = append(sliding, i >= full)
		}
	}
	return sliding, true
}

// ends writes the tokens that begin and end a text.
func (c *exportConfig) ends() {
	ids := func(key string) []uint32 {
		list, isList := c.keys[key].([]any)
		if !isList && c.keys[key] != nil {
			list = []any{c.keys[key]}
		}
		var out []uint32
		for _, element := range list {
			id, ok := toFloat(element)
			if !ok || id != math.Trunc(id) || id < 0 || id >= float64(c.vocab) {
				c.fail(key, "got %s, want token ids below vocab_size %d", brief(c.keys[key]), c.vocab)
				return nil
			}
			out = append(out, uint32(id))
		}
		return out
	}
	if bos := ids("bos_token_id"); len(bos) > 0 {
		c.out = append(c.out, keyValue{"tokenizer.ggml.bos_token_id", bos[0]})
	}
	eos := ids("eos_token_id")
	names := []string{"eos_token_id", "eot_token_id", "eom_token_id"}
	if len(eos) > len(names) {
		c.fail("eos_token_id", "%d tokens, but GGUF has room for %d", len(eos), len(names))
		return
	}
	// The first ends a text; further ones are written as end of turn and end of message.
	for i, id := range eos {
		c.out = append(c.out, keyValue{"tokenizer.ggml." + names[i], id})
	}
}

// tokenizer translates the tokenizer, if there is one.
func (c *exportConfig) tokenizer(directory *Directory) ([]keyValue, error) {
	if directory.Tokenizer == nil {
		return []keyValue{{"tokenizer.ggml.model", "no_vocab"}}, nil
	}
	vocab, err := exportVocab(directory.Tokenizer, directory.TokenizerConfig, c.vocab)
	if err != nil {
		return nil, err
	}
	out := vocab.metadata()
	// The configuration's tokens come first; the tokenizer's fill in those that it does not state.
	has := func(key string) bool {
		return slices.ContainsFunc(c.out, func(kv keyValue) bool { return kv.Key == key })
	}
	for _, special := range []struct {
		key string
		id  int
	}{{"tokenizer.ggml.bos_token_id", vocab.bos}, {"tokenizer.ggml.eos_token_id", vocab.eos}} {
		if special.id >= 0 && !has(special.key) {
			out = append(out, keyValue{special.key, uint32(special.id)})
		}
	}
	templates, err := exportTemplates(directory)
	return append(out, templates...), err
}

// sources lists the tensors in the order in which they are written: the embedding, the layers, the head.
func (c *exportConfig) sources(arch *architecture, directory *Directory, elementType op.Type) ([]tensorSource, error) {
	list := &sourceList{cfg: c, arch: arch, directory: directory, elementType: elementType, left: map[string]bool{}}
	// Each tensor that finds a place is taken off this list; what stays is refused at the end.
	for _, name := range directory.Names {
		list.left[name] = true
	}
	list.addWhere(0, func(pair namePair) bool { return pair.stored == "token_embd.weight" })
	for layer := range c.layers {
		list.addWhere(layer, namePair.perLayer)
	}
	list.addWhere(0, func(pair namePair) bool { return !pair.perLayer() && pair.stored != "token_embd.weight" })
	for _, factors := range []struct {
		name   string
		values []float32
	}{{ropeFreqs, c.freqs}, {ropeLong, c.long}, {ropeShort, c.short}} {
		if factors.values != nil {
			// Factors follow from the configuration and are no tensors of the directory.
			row := func(dst []float32, _ int) error { copy(dst, factors.values); return nil }
			list.out = append(list.out,
				tensorSource{Name: factors.name, Type: op.F32, Shape: []int{len(factors.values)}, Row: row})
		}
	}
	list.refuseRest()
	return list.out, list.errs.Err()
}

// sourceList collects the tensors to be written.
type sourceList struct {
	cfg         *exportConfig
	arch        *architecture
	directory   *Directory
	elementType op.Type
	left        map[string]bool // tensors of the directory without a place so far
	out         []tensorSource
	errs        diag.List
}

// addWhere collects the chosen tensors of a layer.
func (x *sourceList) addWhere(layer int, chosen func(namePair) bool) {
	for _, pair := range x.arch.pairs {
		if chosen(pair) {
			x.add(pair, strconv.Itoa(layer))
		}
	}
}

// refuseRest refuses tensors that the format has no name for.
func (x *sourceList) refuseRest() {
	var rest []string
	for name := range x.left {
		if !strings.HasSuffix(name, ".rotary_emb.inv_freq") { // follows from the configuration
			rest = append(rest, name)
		}
	}
	sort.Strings(rest)
	const most = 10
	for i, name := range rest {
		if i == most {
			x.errs = append(x.errs, diag.New(diag.ClassInput, "and %d more", len(rest)-most))
			break
		}
		x.fail(name, "has no place in a GGUF file of architecture %s", x.arch.name)
	}
}

// fail collects a problem with a tensor.
func (x *sourceList) fail(name, format string, args ...any) {
	x.errs = append(x.errs, diag.New(diag.ClassInput, "tensor %q: %s", name, fmt.Sprintf(format, args...)))
}

// matrix takes the tensor of that name, or its parts; nil with an error collected, or when it is not
// there and optional.
func (x *sourceList) matrix(name string, optional bool) Matrix {
	names := x.partNames(name)
	if len(names) == 0 {
		if !optional {
			x.fail(name, "missing, but a GGUF file of architecture %s has it", x.arch.name)
		}
		return nil
	}
	parts := make(joined, len(names))
	for i, part := range names {
		delete(x.left, part)
		stored, err := x.directory.Tensor(part)
		if err != nil {
			x.fail(part, "%v", err)
			return nil
		}
		if len(names) == 1 {
			return stored
		}
		parts[i] = stored
		if shape := stored.Shape(); len(shape) != 2 || shape[1] != parts[0].Shape()[1] {
			x.fail(part, "shape %v, want rows like those of the other parts", shape)
			return nil
		}
	}
	return parts
}

// partNames returns the name itself, or NAME[0:a], NAME[a:b], ... where the rows are given in parts.
func (x *sourceList) partNames(name string) []string {
	if x.left[name] {
		return []string{name}
	}
	type part struct {
		name string
		to   int
	}
	next := map[int]part{} // by its first row
	for stored := range x.left {
		rest, ok := strings.CutPrefix(stored, name+"[")
		var from, to int
		if _, err := fmt.Sscanf(rest, "%d:%d]", &from, &to); ok && err == nil && from < to {
			next[from] = part{stored, to}
		}
	}
	var out []string
	// The chain of parts from row 0; each part begins where the one before it ends.
	for at := 0; next[at].name != ""; at = next[at].to {
		out = append(out, next[at].name)
	}
	return out
}

// joined is a matrix whose rows are those of its parts.
type joined []Matrix

// Shape is [rows of all parts, columns of any].
func (j joined) Shape() []int {
	rows := 0
	for _, part := range j {
		rows += part.Shape()[0]
	}
	return []int{rows, j[0].Shape()[1]}
}

// Read implements Matrix: it asks each part for its rows of the range.
func (j joined) Read(dst []float32, row0, row1, col0, col1 int) error {
	for _, part := range j {
		rows := part.Shape()[0]
		if first, last := max(row0, 0), min(row1, rows); first < last {
			count := (last - first) * (col1 - col0)
			if err := part.Read(dst[:count], first, last, col0, col1); err != nil {
				return err
			}
			dst = dst[count:]
		}
		// Rows of the next part count from its own first.
		row0, row1 = row0-rows, row1-rows
	}
	return nil
}

// add collects the stored tensor of a pair in a layer.
func (x *sourceList) add(pair namePair, layer string) {
	source := tensorSource{Name: strings.ReplaceAll(pair.stored, "{l}", layer), Type: x.elementType}
	name := strings.ReplaceAll(pair.hf, "{l}", layer)
	if pair.vector() || pair.router() {
		source.Type = op.F32
	}
	if pair.perExpert() {
		x.stack(source, name)
		return
	}
	// A tied head is no tensor of the directory: readers use the embedding, or want a copy of it.
	optional := pair.optional
	if pair.stored == "output.weight" {
		optional = false
		if x.cfg.tied {
			delete(x.left, name)
			if !x.arch.ownHead {
				return
			}
			name = "model.embed_tokens.weight" // readers want a copy of the embedding
			x.left[name] = true
		}
	}
	if matrix := x.matrix(name, optional); matrix != nil {
		x.addMatrix(source, pair, name, matrix)
	}
}

// addMatrix collects a tensor with its rows and values in the form that the architecture has for them.
func (x *sourceList) addMatrix(source tensorSource, pair namePair, name string, matrix Matrix) {
	shape := matrix.Shape()
	if want := map[bool]int{true: 1, false: 2}[pair.vector()]; len(shape) != want {
		x.fail(name, "shape %v, want %d dimensions", shape, want)
		return
	}
	source.Shape = shape
	heads := x.arch.pairedHeads(pair, x.cfg.heads, x.cfg.kvHeads)
	if heads > 0 && shape[0]%(2*heads) != 0 {
		x.fail(name, "%d rows, want an even number for each of %d heads", shape[0], heads)
		return
	}
	// Permuted as it is read: the rows of a matrix, or the elements of the bias beside it.
	cols := shape[len(shape)-1]
	source.Row = func(dst []float32, row int) error {
		if heads > 0 && !pair.vector() {
			row = halvesRow(row, shape[0]/heads)
		}
		if err := matrix.Read(dst, row, row+1, 0, cols); err != nil {
			return err
		}
		if heads > 0 && pair.vector() {
			plain := slices.Clone(dst)
			for i := range dst {
				dst[i] = plain[halvesRow(i, cols/heads)]
			}
		}
		if x.arch.plusOne && pair.norm() {
			for i := range dst {
				dst[i]++
			}
		}
		return nil
	}
	x.put(source)
}

// stack collects one tensor [experts, rows, cols] made of a matrix for each expert.
func (x *sourceList) stack(source tensorSource, name string) {
	parts := make([]Matrix, x.cfg.experts)
	for expert := range parts {
		one := strings.ReplaceAll(name, "{e}", strconv.Itoa(expert))
		matrix := x.matrix(one, false)
		if matrix == nil {
			return
		}
		if shape := matrix.Shape(); len(shape) != 2 || expert > 0 && !slices.Equal(shape, parts[0].Shape()) {
			x.fail(one, "shape %v, want a matrix like that of expert 0", shape)
			return
		}
		parts[expert] = matrix
	}
	rows, cols := parts[0].Shape()[0], parts[0].Shape()[1]
	source.Shape = []int{len(parts), rows, cols}
	// Row r of the stack is row r%rows of expert r/rows.
	source.Row = func(dst []float32, r int) error { return parts[r/rows].Read(dst, r%rows, r%rows+1, 0, cols) }
	x.put(source)
}

// put collects a tensor; rows that no block divides are written as f16.
func (x *sourceList) put(s tensorSource) {
	if s.Shape[len(s.Shape)-1]%layouts[s.Type].block != 0 {
		s.Type = op.F16
	}
	x.out = append(x.out, s)
}

// halvesRow returns the inverse of rotaryPair: the row of a head of dim rows that is stored at row r.
func halvesRow(r, dim int) int {
	head, i := r/dim*dim, r%dim
	return head + i/2 + i%2*dim/2
}
