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
	return Write(ctx, w, metadata, tensors)
}

// plan is what Export writes.
func plan(d *Directory, t op.Type) ([]KV, []Source, error) {
	fileType, ok := fileTypes[t]
	if !ok {
		return nil, nil, diag.New(diag.ClassUsage, "type %q cannot be written; those that can: f32, f16, bf16, q8_0, q4_0", t)
	}
	c := &exportConfig{keys: d.Config}
	a, err := c.architecture()
	if err != nil {
		return nil, nil, err
	}
	metadata := []KV{{"general.architecture", a.name}, {"general.type", "model"}}
	if d.Name != "" {
		metadata = append(metadata, KV{"general.name", d.Name})
	}
	metadata = append(metadata, KV{"general.quantization_version", uint32(2)}, KV{"general.file_type", fileType})
	c.metadata(a)
	if err := c.errs.Err(); err != nil {
		return nil, nil, err
	}
	metadata = append(metadata, c.out...)
	tokenizer, err := c.tokenizer(d)
	if err != nil {
		return nil, nil, err
	}
	metadata = append(metadata, tokenizer...)
	tensors, err := c.sources(a, d, t)
	return metadata, tensors, err
}

// exportConfig reads a config.json into metadata.
type exportConfig struct {
	keys        map[string]any
	errs        diag.List
	out         []KV   // of the architecture
	arch, class string // what GGUF and Hugging Face call the architecture

	layers, heads, kvHeads, experts, vocab int
	tied                                   bool
	freqs, long, short                     []float32 // rotary factors that become tensors
}

func (c *exportConfig) fail(key, format string, args ...any) {
	c.errs = append(c.errs, diag.New(diag.ClassInput, "key %q: %s", key, fmt.Sprintf(format, args...)).WithCode("model.config"))
}

func (c *exportConfig) put(key string, v any) { c.out = append(c.out, KV{c.arch + "." + key, v}) }

func (c *exportConfig) number(key string) (float64, bool) { return number(c.keys[key]) }

func number(v any) (float64, bool) {
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
	if c.keys[key] == nil && def >= 0 {
		return def
	}
	x, ok := c.number(key)
	if !ok || x != math.Trunc(x) || x < float64(lo) || x > float64(hi) {
		c.fail(key, "got %s, want an integer in %d..%d", brief(c.keys[key]), lo, hi)
		return lo
	}
	return int(x)
}

// float reads a number in [lo, hi].
func (c *exportConfig) float(key string, def, lo, hi float64) float64 {
	if c.keys[key] == nil {
		return def
	}
	x, ok := c.number(key)
	if !ok || !(x >= lo && x <= hi) {
		c.fail(key, "got %s, want a number from %v to %v", brief(c.keys[key]), lo, hi)
		return lo
	}
	return x
}

func (c *exportConfig) flag(key string) bool { b, _ := c.keys[key].(bool); return b }

// architecture finds the GGUF architecture of the configuration's class.
func (c *exportConfig) architecture() (*architecture, error) {
	list, _ := c.keys["architectures"].([]any)
	var classes []string
	for i := range architectures {
		a := &architectures[i]
		if a.name == "internlm2" { // its files are read as llama, so llama is what is written
			continue
		}
		for _, class := range a.classes {
			if len(list) == 1 && list[0] == class {
				c.arch, c.class = a.name, class
				return a, nil
			}
			classes = append(classes, class)
		}
	}
	return nil, diag.New(diag.ClassInput, "key %q: %s has no form in GGUF that is supported", "architectures", brief(c.keys["architectures"])).
		WithHint("supported: %s", strings.Join(classes, ", "))
}

// metadata translates the configuration.
func (c *exportConfig) metadata(a *architecture) {
	c.layers = c.int("num_hidden_layers", -1, 1, maxLayers)
	hidden := c.int("hidden_size", -1, 1, maxDim)
	c.heads = c.int("num_attention_heads", -1, 1, maxDim)
	c.kvHeads = c.int("num_key_value_heads", c.heads, 1, maxDim)
	headDim := c.int("head_dim", max(1, hidden/c.heads), 1, maxDim)
	context := c.int("max_position_embeddings", 2048, 1, math.MaxInt32)
	c.vocab = c.int("vocab_size", -1, 1, maxDim)
	ffn := c.int("intermediate_size", -1, 1, maxDim)
	c.tied = c.flag("tie_word_embeddings")
	if c.keys["tie_word_embeddings"] == nil {
		c.tied = a.plusOne // Gemma's default
	}
	if a.plusOne && !c.tied {
		c.fail("tie_word_embeddings", "false has no form in GGUF for this architecture")
	}
	c.put("block_count", uint32(c.layers))
	c.put("context_length", uint32(context))
	c.put("embedding_length", uint32(hidden))
	c.put("feed_forward_length", uint32(ffn))
	c.put("attention.head_count", uint32(c.heads))
	c.put("attention.head_count_kv", uint32(c.kvHeads))
	c.put("attention.key_length", uint32(headDim))
	c.put("attention.value_length", uint32(headDim))
	c.put("vocab_size", uint32(c.vocab))
	from, to := a.epsKeys()
	c.put(to, float32(c.float(from, 1e-6, 0, 1)))
	c.rope(a, headDim, context)
	c.activation(a)
	c.window(a)
	if a.experts {
		c.moe(a)
	}
	if a.model == "gemma2" {
		c.cap("attn_logit_softcapping", 50)
		c.cap("final_logit_softcapping", 30)
		implied := headDim
		if c.layers == 46 {
			implied = hidden / c.heads
		}
		if q := c.int("query_pre_attn_scalar", 256, 1, maxDim); q != implied {
			c.put("attention.scale", float32(1/math.Sqrt(float64(q))))
		}
	} else {
		for _, key := range []string{"attn_logit_softcapping", "final_logit_softcapping"} {
			if c.keys[key] != nil {
				c.fail(key, "%s has no form in GGUF for this architecture", brief(c.keys[key]))
			}
		}
	}
	if a.model == "phi" && c.flag("qk_layernorm") {
		c.fail("qk_layernorm", "true has no form in GGUF")
	}
	c.ends()
}

// cap writes a soft cap; readers assume one, and a null, which means none, has no form.
func (c *exportConfig) cap(key string, def float64) {
	x, ok := c.number(key)
	if _, said := c.keys[key]; !said {
		x, ok = def, true
	}
	if !ok || x <= 0 {
		c.fail(key, "got %s, want a positive number: readers of GGUF always cap in this architecture", brief(c.keys[key]))
		return
	}
	c.put(key, float32(x))
}

func (c *exportConfig) activation(a *architecture) {
	want := []string{"silu"}
	if a.activation != "" {
		want = []string{"gelu_pytorch_tanh", "gelu_new"}
	}
	if a.plusOne { // what Gemma's first configurations called it
		want = append(want, "gelu")
	}
	for _, key := range []string{"hidden_activation", "hidden_act"} {
		if v, ok := c.keys[key].(string); ok {
			if !slices.Contains(want, v) {
				c.fail(key, "%q has no form in GGUF for this architecture; supported: %s", v, want[0])
			}
			return
		}
	}
}

func (c *exportConfig) moe(a *architecture) {
	key := a.countKey()
	for _, other := range []string{"num_local_experts", "num_experts"} {
		if c.keys[key] == nil {
			key = other
		}
	}
	c.experts = c.int(key, -1, 1, maxExperts)
	c.put("expert_count", uint32(c.experts))
	c.put("expert_used_count", uint32(c.int("num_experts_per_tok", -1, 1, c.experts)))
	switch a.model {
	case "qwen2_moe", "qwen3_moe":
		c.put("expert_feed_forward_length", uint32(c.int("moe_intermediate_size", -1, 1, maxDim)))
		if list, _ := c.keys["mlp_only_layers"].([]any); len(list) > 0 {
			c.fail("mlp_only_layers", "%s has no form in GGUF: every layer has experts", brief(c.keys["mlp_only_layers"]))
		}
		if n := c.int("decoder_sparse_step", 1, 1, maxLayers); n != 1 {
			c.fail("decoder_sparse_step", "%d has no form in GGUF: every layer has experts", n)
		}
		if a.model == "qwen2_moe" {
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
	if norm := c.flag("norm_topk_prob"); norm != (a.model == "qwen3_moe") {
		c.put("expert_weights_norm", norm)
	}
}

// window writes the sliding window; a list of layer types says which layers have it.
func (c *exportConfig) window(a *architecture) {
	def := 0
	if _, said := c.keys["sliding_window"]; !said && (a.model == "gemma2" || c.class == "MistralForCausalLM") {
		def = 4096
	}
	size := c.int("sliding_window", def, 0, math.MaxInt32)
	types, _ := c.keys["layer_types"].([]any)
	sliding := make([]bool, len(types))
	some, all := false, true
	for i, t := range types {
		switch t {
		case "sliding_attention":
			sliding[i], some = true, true
		case "full_attention":
			all = false
		default:
			c.fail("layer_types", "%s has no form in GGUF", brief(t))
			return
		}
	}
	switch {
	case a.model == "gemma2":
		c.put("attention.sliding_window", uint32(size))
		for i := range sliding {
			if sliding[i] != (i%2 == 0) {
				c.put("attention.sliding_window_pattern", sliding)
				break
			}
		}
		return
	case size == 0, strings.HasPrefix(a.model, "qwen") && !c.flag("use_sliding_window"), len(types) > 0 && !some:
		return
	}
	if len(types) == 0 && strings.HasPrefix(a.model, "qwen") {
		// Without a list the layers below max_window_layers attend to everything.
		full := c.int("max_window_layers", 28, 0, maxLayers)
		for i := range c.layers {
			sliding = append(sliding, i >= full)
			some, all = some || i >= full, all && i >= full
		}
		if !some {
			return
		}
	}
	c.put("attention.sliding_window", uint32(size))
	if len(sliding) > 0 && !all {
		c.put("attention.sliding_window_pattern", sliding)
	}
}

// ends writes the tokens that begin and end a text.
func (c *exportConfig) ends() {
	ids := func(key string) []uint32 {
		list, isList := c.keys[key].([]any)
		if !isList && c.keys[key] != nil {
			list = []any{c.keys[key]}
		}
		var out []uint32
		for _, v := range list {
			x, ok := number(v)
			if !ok || x != math.Trunc(x) || x < 0 || x >= float64(c.vocab) {
				c.fail(key, "got %s, want token ids below vocab_size %d", brief(c.keys[key]), c.vocab)
				return nil
			}
			out = append(out, uint32(x))
		}
		return out
	}
	if bos := ids("bos_token_id"); len(bos) > 0 {
		c.out = append(c.out, KV{"tokenizer.ggml.bos_token_id", bos[0]})
	}
	eos := ids("eos_token_id")
	names := []string{"eos_token_id", "eot_token_id", "eom_token_id"}
	if len(eos) > len(names) {
		c.fail("eos_token_id", "%d tokens, but GGUF has room for %d", len(eos), len(names))
		return
	}
	for i, id := range eos {
		c.out = append(c.out, KV{"tokenizer.ggml." + names[i], id})
	}
}

// tokenizer translates the tokenizer, if there is one.
func (c *exportConfig) tokenizer(d *Directory) ([]KV, error) {
	if d.Tokenizer == nil {
		return []KV{{"tokenizer.ggml.model", "no_vocab"}}, nil
	}
	v, err := exportVocab(d.Tokenizer, d.TokenizerConfig, c.vocab)
	if err != nil {
		return nil, err
	}
	out := v.metadata()
	has := func(key string) bool {
		return slices.ContainsFunc(c.out, func(kv KV) bool { return kv.Key == key })
	}
	for _, s := range []struct {
		key string
		id  int
	}{{"tokenizer.ggml.bos_token_id", v.bos}, {"tokenizer.ggml.eos_token_id", v.eos}} {
		if s.id >= 0 && !has(s.key) {
			out = append(out, KV{s.key, uint32(s.id)})
		}
	}
	templates, err := exportTemplates(d)
	return append(out, templates...), err
}

// sources lists the tensors in the order in which they are written: the embedding, the layers, the head.
func (c *exportConfig) sources(a *architecture, d *Directory, t op.Type) ([]Source, error) {
	x := &exporter{c: c, a: a, d: d, t: t, left: map[string]bool{}}
	for _, n := range d.Names {
		x.left[n] = true
	}
	for _, p := range a.pairs {
		if p.stored == "token_embd.weight" {
			x.add(p, 0)
		}
	}
	for l := range c.layers {
		for _, p := range a.pairs {
			if p.perLayer() {
				x.add(p, l)
			}
		}
	}
	for _, p := range a.pairs {
		if !p.perLayer() && p.stored != "token_embd.weight" {
			x.add(p, 0)
		}
	}
	for _, f := range []struct {
		name   string
		values []float32
	}{{ropeFreqs, c.freqs}, {ropeLong, c.long}, {ropeShort, c.short}} {
		if f.values != nil {
			x.out = append(x.out, Source{Name: f.name, Type: op.F32, Shape: []int{len(f.values)}, Row: func(dst []float32, _ int) error {
				copy(dst, f.values)
				return nil
			}})
		}
	}
	var rest []string
	for n := range x.left {
		if !strings.HasSuffix(n, ".rotary_emb.inv_freq") { // follows from the configuration
			rest = append(rest, n)
		}
	}
	sort.Strings(rest)
	const most = 10
	for i, n := range rest {
		if i == most {
			x.errs = append(x.errs, diag.New(diag.ClassInput, "and %d more", len(rest)-most))
			break
		}
		x.errs = append(x.errs, diag.New(diag.ClassInput, "tensor %q: has no place in a GGUF file of architecture %s", n, a.name))
	}
	return x.out, x.errs.Err()
}

// exporter collects the tensors to be written.
type exporter struct {
	c    *exportConfig
	a    *architecture
	d    *Directory
	t    op.Type
	left map[string]bool // tensors without a place so far
	out  []Source
	errs diag.List
}

func (x *exporter) fail(name, format string, args ...any) {
	x.errs = append(x.errs, diag.New(diag.ClassInput, "tensor %q: %s", name, fmt.Sprintf(format, args...)))
}

// matrix takes the tensor of that name, or its parts; nil with an error collected, or when it is not
// there and optional.
func (x *exporter) matrix(name string, optional bool) Matrix {
	names := x.partNames(name)
	if len(names) == 0 {
		if !optional {
			x.fail(name, "missing, but a GGUF file of architecture %s has it", x.a.name)
		}
		return nil
	}
	parts := make(joined, len(names))
	for i, n := range names {
		delete(x.left, n)
		m, err := x.d.Tensor(n)
		if err != nil {
			x.fail(n, "%v", err)
			return nil
		}
		if len(names) == 1 {
			return m
		}
		parts[i] = m
		if shape := m.Shape(); len(shape) != 2 || shape[1] != parts[0].Shape()[1] {
			x.fail(n, "shape %v, want rows like those of the other parts", shape)
			return nil
		}
	}
	return parts
}

// partNames is the name itself, or NAME[0:a], NAME[a:b], ... where the rows are given in parts.
func (x *exporter) partNames(name string) []string {
	if x.left[name] {
		return []string{name}
	}
	next := map[int]string{}
	for n := range x.left {
		rest, ok := strings.CutPrefix(n, name+"[")
		var from, to int
		if _, err := fmt.Sscanf(rest, "%d:%d]", &from, &to); ok && err == nil && from < to {
			next[from] = n
		}
	}
	var out []string
	for at := 0; next[at] != ""; {
		out = append(out, next[at])
		fmt.Sscanf(next[at][len(name):], "[%d:%d]", new(int), &at)
	}
	return out
}

// joined is a matrix whose rows are those of its parts.
type joined []Matrix

func (j joined) Shape() []int {
	rows := 0
	for _, m := range j {
		rows += m.Shape()[0]
	}
	return []int{rows, j[0].Shape()[1]}
}

func (j joined) Read(dst []float32, row0, row1, col0, col1 int) error {
	for _, m := range j {
		rows := m.Shape()[0]
		if a, b := max(row0, 0), min(row1, rows); a < b {
			n := (b - a) * (col1 - col0)
			if err := m.Read(dst[:n], a, b, col0, col1); err != nil {
				return err
			}
			dst = dst[n:]
		}
		row0, row1 = row0-rows, row1-rows
	}
	return nil
}

// add collects the stored tensor of p in layer l.
func (x *exporter) add(p pair, l int) {
	layer := strconv.Itoa(l)
	s := Source{Name: strings.ReplaceAll(p.stored, "{l}", layer), Type: x.t}
	name := strings.ReplaceAll(p.hf, "{l}", layer)
	if p.vector() || p.router() {
		s.Type = op.F32
	}
	if p.perExpert() {
		x.stack(s, name)
		return
	}
	optional := p.optional
	if p.stored == "output.weight" {
		switch {
		case !x.c.tied:
			optional = false
		case x.a.ownHead: // a copy of the embedding
			delete(x.left, name)
			name = "model.embed_tokens.weight"
			x.left[name] = true
			optional = false
		default:
			delete(x.left, name)
			return
		}
	}
	m := x.matrix(name, optional)
	if m == nil {
		return
	}
	shape := m.Shape()
	if want := map[bool]int{true: 1, false: 2}[p.vector()]; len(shape) != want {
		x.fail(name, "shape %v, want %d dimensions", shape, want)
		return
	}
	s.Shape = shape
	heads := 0
	if x.a.rotaryPairs {
		switch base := strings.TrimPrefix(p.stored, "blk.{l}."); {
		case strings.HasPrefix(base, "attn_q."):
			heads = x.c.heads
		case strings.HasPrefix(base, "attn_k."):
			heads = x.c.kvHeads
		}
	}
	if heads > 0 && shape[0]%(2*heads) != 0 {
		x.fail(name, "%d rows, want an even number for each of %d heads", shape[0], heads)
		return
	}
	cols := shape[len(shape)-1]
	add := float32(0)
	if x.a.plusOne && p.norm() {
		add = 1
	}
	s.Row = func(dst []float32, r int) error {
		if heads > 0 && !p.vector() {
			r = halvesRow(r, shape[0]/heads)
		}
		if err := m.Read(dst, r, r+1, 0, cols); err != nil {
			return err
		}
		if heads > 0 && p.vector() {
			plain := slices.Clone(dst)
			for i := range dst {
				dst[i] = plain[halvesRow(i, cols/heads)]
			}
		}
		if add != 0 {
			for i := range dst {
				dst[i] += add
			}
		}
		return nil
	}
	x.put(s)
}

// stack collects one tensor [experts, rows, cols] made of a matrix for each expert.
func (x *exporter) stack(s Source, name string) {
	parts := make([]Matrix, x.c.experts)
	for e := range parts {
		one := strings.ReplaceAll(name, "{e}", strconv.Itoa(e))
		m := x.matrix(one, false)
		if m == nil {
			return
		}
		if shape := m.Shape(); len(shape) != 2 || e > 0 && !slices.Equal(shape, parts[0].Shape()) {
			x.fail(one, "shape %v, want a matrix like that of expert 0", shape)
			return
		}
		parts[e] = m
	}
	rows, cols := parts[0].Shape()[0], parts[0].Shape()[1]
	s.Shape = []int{len(parts), rows, cols}
	s.Row = func(dst []float32, r int) error { return parts[r/rows].Read(dst, r%rows, r%rows+1, 0, cols) }
	x.put(s)
}

func (x *exporter) put(s Source) {
	if s.Shape[len(s.Shape)-1]%layouts[s.Type].block != 0 {
		s.Type = op.F16
	}
	x.out = append(x.out, s)
}

// halvesRow is the inverse of rotaryPair.
func halvesRow(r, dim int) int {
	head, i := r/dim*dim, r%dim
	return head + i/2 + i%2*dim/2
}
