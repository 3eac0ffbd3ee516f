package models

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

// Bounds of what is read; far above any published model.
const (
	maxDim    = 1 << 24 // columns or rows of one operator (see op.Op.Validate)
	maxLayers = 1 << 12

	maxHeadDim  = 1 << 13
	maxExperts  = 1 << 12
	maxPerToken = 1 << 8

	maxExpertsTotal = 1 << 16
)

// syntheticKey marks a config.json written by Synth.
const syntheticKey = "hetc_synthetic"

// config is a config.json that is being read: which keys were asked for, and what is wrong so far.
// A key with a null counts as absent, as in the reference implementation.
type config struct {
	keys map[string]any
	at   func(key string) string // where a key is, for messages
	read map[string]bool         // keys that something asked for
	errs diag.List               // all problems so far, so that one run names them all

	ignored []string // keys within others that mean nothing
}

// ignore lists a key within another one as unread.
func (c *config) ignore(key string) { c.ignored = append(c.ignored, key) }

// neutral keys say nothing about what the model computes.
var neutral = []string{
	"_name_or_path", "transformers_version", "use_cache", "initializer_range", "attention_dropout", "pad_token_id",
	"model_type", "torch_dtype", "dtype", "is_decoder", "output_attentions", "output_hidden_states",
	"output_router_logits", "router_aux_loss_coef", syntheticKey,
}

// newConfig reads from keys; at says where a key stands, for messages.
func newConfig(keys map[string]any, at func(key string) string) *config {
	return &config{keys: keys, at: at, read: map[string]bool{}}
}

// newDocument makes a config of a JSON file of keys (config.json, generation_config.json, the index).
func newDocument(doc *decode.Document) (*config, error) {
	keys := map[string]any{}
	if err := doc.Into("", &keys); err != nil {
		return nil, err
	}
	return newConfig(keys, func(key string) string { return doc.At(key) }), nil
}

// model reads the configuration into a Model without graph and tensors. All problems are reported
// at once, each with its key.
func (c *config) model() (*Model, error) {
	for _, key := range neutral {
		c.read[key] = true
	}
	arch := c.architecture()
	if arch == nil {
		return nil, c.errs.Err()
	}
	model := &Model{
		Architecture: arch.name, Stored: c.dtype(), Synthetic: c.has(syntheticKey),
		decoder: &decoder{act: op.SiLU, names: layerNames()},
	}
	// The architecture reads its keys; a key that nothing asked for is listed as unread.
	c.refuseOtherType(arch)
	c.refuseEverywhere()
	arch.read(c, model)
	c.refuse(arch.without)
	for key := range strings.FieldsSeq(arch.ignored) {
		c.read[key] = true
	}
	for _, key := range slices.Sorted(maps.Keys(c.keys)) {
		if !c.read[key] {
			model.unread = append(model.unread, key)
		}
	}
	model.unread = append(model.unread, c.ignored...)
	slices.Sort(model.unread)
	if err := c.errs.Err(); err != nil {
		return nil, err
	}
	return model, nil
}

// refuseOtherType refuses a model_type that contradicts "architectures": the reference implementation goes by the one or
// the other, depending on how it is called.
func (c *config) refuseOtherType(arch *architecture) {
	const key = "model_type"
	if !c.has(key) || c.keys[key] == arch.modelType {
		return
	}
	c.fail(key, "got %s, want %q as for the %s that \"architectures\" names", abbreviate(c.keys[key]), arch.modelType,
		arch.name)
	c.errs[len(c.errs)-1].WithHint("correct the one that is wrong; a model read as another one gives other logits")
}

// refuseEverywhere refuses keys that change the computation in ways no architecture here knows.
func (c *config) refuseEverywhere() {
	c.refuseQuantised()
	c.requireValue("is_encoder_decoder", false, "decoders")
	c.requireValue("add_cross_attention", false, "decoders")
	c.requireValue("is_causal", true, "causal attention")
	if c.absent("is_causal") == null { // the reference implementation takes it for false
		c.fail("is_causal", "null is not supported; supported: causal attention")
	}
	c.requireValue("per_layer_config", nil, "layers that differ by keys of their own, such as layer_types")
	c.requireValue("pretraining_tp", 1.0, "1 (it only changes how training split the matrices)")
}

// quantisedHint is the way out where another program has quantised the weights.
const quantisedHint = "give the model that it was quantised from, because hetc quantises weights itself, " +
	"or a .gguf file of it"

// refuseQuantised refuses weights that another program has quantised, with the name of its method.
func (c *config) refuseQuantised() {
	const key, supported = "quantization_config", "weights stored as f32, f16 or bf16"
	c.requireValue(key, nil, supported)
	if !c.has(key) {
		return
	}
	problem := c.errs[len(c.errs)-1].WithHint(quantisedHint)
	inner, _ := c.keys[key].(map[string]any)
	if method, ok := inner["quant_method"].(string); ok {
		problem.Summary = fmt.Sprintf("key %q: weights quantised by %s are not supported; supported: %s", key,
			abbreviate(method), supported)
	}
}

// architecture finds the entry named by "architectures", or by "model_type" where that is absent.
func (c *config) architecture() *architecture {
	names := c.list("architectures")
	supported := make([]string, len(architectures))
	for i := range architectures {
		candidate := &architectures[i]
		supported[i] = candidate.name
		named := len(names) == 1 && names[0] == candidate.name
		if named || len(names) == 0 && c.keys["model_type"] == candidate.modelType {
			return candidate
		}
	}
	key := "architectures"
	if len(names) == 0 {
		key = "model_type"
	}
	switch {
	case len(c.errs) > 0:
	case !c.has(key):
		c.fail("architectures", "missing, want the name of one, or a model_type")
	default:
		c.fail(key, "%s is not supported", abbreviate(c.keys[key]))
	}
	c.errs[len(c.errs)-1].WithHint("supported architectures: %s", strings.Join(supported, ", "))
	return nil
}

// dtype returns the announced element type; where there are weights, theirs counts.
func (c *config) dtype() op.Type {
	key := "torch_dtype"
	if c.has("dtype") {
		key = "dtype"
	}
	switch name := c.keys[key]; name {
	case nil, "float32", "torch.float32":
		return op.F32
	case "float16", "torch.float16":
		return op.F16
	case "bfloat16", "torch.bfloat16":
		return op.BF16
	default:
		c.fail(key, "%s is not supported; supported: float32, float16, bfloat16", abbreviate(name))
	}
	return ""
}

// has reports whether key is present and not null.
func (c *config) has(key string) bool { return c.keys[key] != nil }

// fail collects a problem with a key.
func (c *config) fail(key, format string, args ...any) {
	problem := diag.New(diag.ClassInput, "key %q: %s", key, fmt.Sprintf(format, args...))
	c.errs = append(c.errs, problem.WithCode("model.config").At("%s", c.at(key)))
}

// requireValue refuses any value of key but want; numbers compare as float64.
func (c *config) requireValue(key string, want any, supported string) {
	c.read[key] = true
	got := c.keys[key]
	if number, ok := got.(int64); ok {
		got = float64(number)
	}
	if got == nil || isScalar(got) && got == want {
		return
	}
	c.fail(key, "%s is not supported; supported: %s", abbreviate(c.keys[key]), supported)
}

// isScalar guards comparisons: maps and lists do not compare.
func isScalar(v any) bool {
	switch v.(type) {
	case string, bool, float64, int64:
		return true
	}
	return false
}

// readTyped reads a value of type T; a value of another type is refused, want says as what.
func readTyped[T any](c *config, key string, def T, want string) T {
	c.read[key] = true
	if !c.has(key) {
		return def
	}
	value, ok := c.keys[key].(T)
	if !ok {
		c.fail(key, "got %s, want %s", abbreviate(c.keys[key]), want)
		return def
	}
	return value
}

// bool reads a flag.
func (c *config) bool(key string, def bool) bool { return readTyped(c, key, def, "true or false") }

// text reads a name.
func (c *config) text(key, def string) string { return readTyped(c, key, def, "a word") }

// list reads a list of single values, nil when absent.
func (c *config) list(key string) []any {
	elements := readTyped[[]any](c, key, nil, "a list")
	for i := range elements {
		if !isScalar(elements[i]) {
			c.fail(key, "element %d is %s, want a single value", i, abbreviate(elements[i]))
			return nil
		}
	}
	return elements
}

// integer reads an integer in lo..limit.
func (c *config) integer(key string, def, lo, limit int) int {
	c.read[key] = true
	if !c.has(key) {
		return def
	}
	value, ok := c.keys[key].(int64)
	if !ok || value < int64(lo) || value > int64(limit) {
		c.fail(key, "got %s, want an integer in %d..%d", abbreviate(c.keys[key]), lo, limit)
		return def
	}
	return int(value)
}

// bounded reads an integer in 1..limit; def 0 makes it required.
func (c *config) bounded(key string, def, limit int) int {
	if def == 0 && !c.has(key) {
		c.fail(key, "missing, want an integer in 1..%d", limit)
	}
	return c.integer(key, def, 1, limit)
}

// dim reads the number of rows or columns of a matrix; def 0 makes it required.
func (c *config) dim(key string, def int) int { return c.bounded(key, def, maxDim) }

// product refuses factors whose product no operator could describe.
func (c *config) product(key, formula string, factors ...int) {
	total := int64(1)
	for _, factor := range factors {
		total *= int64(factor)
	}
	if total > maxDim {
		c.fail(key, "%s = %d, want at most %d", formula, total, maxDim)
	}
}

// toFloat converts a number of a JSON file.
func toFloat(v any) (float64, bool) {
	if integer, ok := v.(int64); ok {
		return float64(integer), true
	}
	value, ok := v.(float64)
	return value, ok
}

// float reads a number in [lo, hi].
func (c *config) float(key string, def, lo, hi float64) float64 {
	c.read[key] = true
	if !c.has(key) {
		return def
	}
	value, ok := toFloat(c.keys[key])
	if !ok || !(value >= lo && value <= hi) {
		c.fail(key, "got %s, want a number from %v to %v", abbreviate(c.keys[key]), lo, hi)
		return def
	}
	return value
}

// ids reads one token id or a list of them, ascending and each once; nil for none. Ids beyond the vocabulary, such as
// the defaults of a class in a smaller model, are left out: the model never produces them.
func (c *config) ids(key string, vocab int) []int {
	c.read[key] = true
	if !c.has(key) {
		return nil
	}
	raw := []any{c.keys[key]}
	if list, ok := raw[0].([]any); ok {
		raw = list
	}
	var out []int
	for _, element := range raw {
		id, ok := element.(int64)
		if !ok || id < 0 {
			c.fail(key, "got %s, want token ids", abbreviate(c.keys[key]))
			return nil
		}
		if id >= int64(vocab) {
			c.ignore(fmt.Sprintf("%s %d", key, id))
			continue
		}
		out = append(out, int(id))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// id reads a token id, -1 for none.
func (c *config) id(key string, vocab int) int {
	list := c.ids(key, vocab)
	if len(list) > 1 {
		c.fail(key, "got %s, want one token id", abbreviate(c.keys[key]))
	}
	if len(list) != 1 {
		return -1
	}
	return list[0]
}

// generation lets generation_config.json override which tokens begin and end a text, as the
// reference implementation does when it generates.
func (c *config) generation(m *Model) error {
	if c.has("bos_token_id") {
		m.BOS = c.id("bos_token_id", m.Vocab)
	}
	if c.has("eos_token_id") {
		m.EOS = c.ids("eos_token_id", m.Vocab)
	}
	return c.errs.Err()
}

// abbreviate shows the beginning of a value in an error message.
func abbreviate(v any) string {
	const most = 60
	var text string
	switch v := v.(type) {
	case nil:
		return "nothing"
	case string:
		text = strconv.Quote(v[:min(len(v), 2*most)])
	case map[string]any:
		if len(v) == 0 {
			return "an empty object"
		}
		keys := slices.Sorted(maps.Keys(v))
		text = "an object with the keys " + strings.Join(keys[:min(len(keys), 8)], ", ")
	case []any:
		parts := make([]string, 0, 8)
		for _, element := range v[:min(len(v), 8)] {
			parts = append(parts, abbreviate(element))
		}
		text = "[" + strings.Join(parts, " ") + "]"
	default:
		text = fmt.Sprint(v)
	}
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}
