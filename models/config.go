package models

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

// Bounds of what is read; far above any published model.
const (
	maxConfigBytes = 16 << 20
	maxDim         = 1 << 24 // columns or rows of one operator (see op.Op.Validate)
	maxLayers      = 1 << 12
)

// syntheticKey marks a config.json written by Synth.
const syntheticKey = "hetc_synthetic"

// config is a config.json that is being read: which keys were asked for, and what is wrong so far.
type config struct {
	file string
	keys map[string]json.RawMessage
	read map[string]bool
	errs diag.List
}

// neutral keys say nothing about what the model computes.
var neutral = []string{
	"_name_or_path", "transformers_version", "use_cache", "initializer_range", "attention_dropout", "pad_token_id",
	"model_type", "torch_dtype", "dtype", "is_decoder", "output_attentions", "output_hidden_states", syntheticKey,
}

// parseConfig reads a config.json. The model has no graph and no tensors yet. All problems are
// reported at once, each with its key.
func parseConfig(file string, data []byte) (*Model, *architecture, error) {
	keys, err := parseObject(data, maxConfigBytes)
	if err != nil {
		return nil, nil, diag.New(diag.ClassInput, "read model config: %w", err).At("%s", file)
	}
	c := &config{file: file, keys: keys, read: map[string]bool{}}
	for _, k := range neutral {
		c.read[k] = true
	}
	arch := c.architecture()
	if arch == nil {
		return nil, nil, c.errs.Err()
	}
	m := &Model{Architecture: arch.name, Stored: c.dtype(), BOS: -1}
	c.refuseEverywhere()
	arch.read(c, m)
	if raw, ok := keys[syntheticKey]; ok && string(raw) != "null" && string(raw) != "false" {
		m.Synthetic = true
	}
	for k := range keys {
		if !c.read[k] {
			m.unread = append(m.unread, k)
		}
	}
	sort.Strings(m.unread)
	if err := c.errs.Err(); err != nil {
		return nil, nil, err
	}
	return m, arch, nil
}

// refuseEverywhere refuses keys that change the computation in ways no architecture here knows.
func (c *config) refuseEverywhere() {
	c.must("quantization_config", nil, "f32, f16 and bf16 weights")
	c.must("num_local_experts", nil, "dense feed-forward blocks")
	c.must("num_experts", nil, "dense feed-forward blocks")
	c.must("attn_logit_softcapping", nil, "plain softmax attention")
	c.must("final_logit_softcapping", nil, "plain logits")
	c.must("is_encoder_decoder", false, "decoders")
	var types []string
	if c.value("layer_types", &types, "a list of strings") {
		for _, t := range types {
			if t != "full_attention" {
				c.fail("layer_types", "%q is not supported; supported: \"full_attention\" in every layer", t)
				break
			}
		}
	}
}

// architecture finds the entry named by "architectures", or by "model_type" where that is absent.
func (c *config) architecture() *architecture {
	var names []string
	var model string
	c.value("architectures", &names, "a list of strings")
	c.value("model_type", &model, "a string")
	supported := make([]string, len(architectures))
	for i := range architectures {
		a := &architectures[i]
		supported[i] = a.name
		if len(names) == 1 && names[0] == a.name || len(names) == 0 && model == a.model {
			return a
		}
	}
	if len(c.errs) == 0 {
		key, got := "architectures", strings.Join(names, ", ")
		if len(names) == 0 {
			key, got = "model_type", model
		}
		c.fail(key, "%q is not supported", got)
	}
	c.errs[len(c.errs)-1].WithHint("supported architectures: %s", strings.Join(supported, ", "))
	return nil
}

// dtype is the announced element type; where there are weights, theirs counts.
func (c *config) dtype() op.Type {
	name := "float32"
	key := "torch_dtype"
	if c.has("dtype") {
		key = "dtype"
	}
	c.value(key, &name, "a string")
	switch strings.TrimPrefix(name, "torch.") {
	case "float32":
		return op.F32
	case "float16":
		return op.F16
	case "bfloat16":
		return op.BF16
	}
	c.fail(key, "%q is not supported; supported: float32, float16, bfloat16", name)
	return ""
}

// rope reads the base of the rotary frequencies in both spellings and refuses scaled ones.
func (c *config) rope() float64 {
	theta := c.float("rope_theta", 0, 1, math.MaxFloat32)
	for _, key := range []string{"rope_parameters", "rope_scaling"} {
		if !c.has(key) {
			continue
		}
		c.read[key] = true
		inner, err := parseObject(c.keys[key], maxConfigBytes)
		if err != nil {
			c.fail(key, "%v", err)
			continue
		}
		sub := &config{file: c.file, keys: inner, read: map[string]bool{}}
		for _, k := range sortedKeys(inner) {
			switch k {
			case "rope_type", "type":
				sub.must(k, "default", `"default" (unscaled)`)
			case "rope_theta":
				t := sub.float(k, 0, 1, math.MaxFloat32)
				if t != 0 && theta != 0 && t != theta {
					sub.fail(k, "%v differs from rope_theta %v", t, theta)
				}
				if t != 0 {
					theta = t
				}
			default:
				sub.must(k, nil, "rope_type \"default\" with rope_theta only")
			}
		}
		for _, e := range sub.errs {
			e.Summary = strings.Replace(e.Summary, `key "`, `key "`+key+".", 1)
			c.errs = append(c.errs, e)
		}
	}
	if theta == 0 {
		return 10000
	}
	return theta
}

// has reports whether key is present and not null.
func (c *config) has(key string) bool {
	raw, ok := c.keys[key]
	return ok && string(raw) != "null"
}

func (c *config) fail(key, format string, args ...any) {
	c.errs = append(c.errs, diag.New(diag.ClassInput, "key %q: %s", key, fmt.Sprintf(format, args...)).At("%s", c.file))
}

// value decodes key into dst and reports whether it was present, not null and of the right type.
func (c *config) value(key string, dst any, want string) bool {
	c.read[key] = true
	if !c.has(key) {
		return false
	}
	if err := json.Unmarshal(c.keys[key], dst); err != nil {
		c.fail(key, "got %s, want %s", brief(c.keys[key]), want)
		return false
	}
	return true
}

// must refuses any value of key but want; absent and null count as want.
func (c *config) must(key string, want any, supported string) {
	c.read[key] = true
	if !c.has(key) {
		return
	}
	var got any
	if err := json.Unmarshal(c.keys[key], &got); err != nil || got != want {
		c.fail(key, "%s is not supported; supported: %s", brief(c.keys[key]), supported)
	}
}

func (c *config) bool(key string, def bool) bool {
	c.value(key, &def, "true or false")
	return def
}

// bounded reads an integer in 1..limit; def 0 makes it required.
func (c *config) bounded(key string, def, limit int) int {
	c.read[key] = true
	if !c.has(key) {
		if def == 0 {
			c.fail(key, "missing, want an integer in 1..%d", limit)
		}
		return def
	}
	n, err := strconv.Atoi(string(c.keys[key]))
	if err != nil || n < 1 || n > limit {
		c.fail(key, "got %s, want an integer in 1..%d", brief(c.keys[key]), limit)
		return def
	}
	return n
}

func (c *config) dim(key string, def int) int { return c.bounded(key, def, maxDim) }

// product refuses factors whose product no operator could describe.
func (c *config) product(key, formula string, factors ...int) {
	p := int64(1)
	for _, f := range factors {
		p *= int64(f)
	}
	if p > maxDim {
		c.fail(key, "%s = %d, want at most %d", formula, p, maxDim)
	}
}

// float reads a number in [lo, hi].
func (c *config) float(key string, def, lo, hi float64) float64 {
	v := def
	if c.value(key, &v, "a number") && !(v >= lo && v <= hi) {
		c.fail(key, "got %v, want a number from %v to %v", v, lo, hi)
		return def
	}
	return v
}

// id reads a token id, -1 for none.
func (c *config) id(key string, vocab int) int {
	id := -1
	if c.value(key, &id, "a token id") && (id < 0 || vocab > 0 && id >= vocab) {
		c.fail(key, "got %d, want a token id below vocab_size %d", id, vocab)
		return -1
	}
	return id
}

// ids reads one token id or a list of them, ascending and each once.
func (c *config) ids(key string, vocab int) []int {
	c.read[key] = true
	if !c.has(key) {
		return nil
	}
	var list []int
	if c.keys[key][0] != '[' {
		if id := c.id(key, vocab); id >= 0 {
			list = []int{id}
		}
		return list
	}
	if !c.value(key, &list, "a token id or a list of them") {
		return nil
	}
	for _, id := range list {
		if id < 0 || vocab > 0 && id >= vocab {
			c.fail(key, "got %d, want token ids below vocab_size %d", id, vocab)
			return nil
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// readGenerationConfig lets generation_config.json override which tokens begin and end a text, as
// the reference implementation does when it generates.
func (m *Model) readGenerationConfig(file string, data []byte) error {
	keys, err := parseObject(data, maxConfigBytes)
	if err != nil {
		return diag.New(diag.ClassInput, "read generation config: %w", err).At("%s", file)
	}
	c := &config{file: file, keys: keys, read: map[string]bool{}}
	if c.has("bos_token_id") {
		m.BOS = c.id("bos_token_id", m.Vocab)
	}
	if c.has("eos_token_id") {
		m.EOS = c.ids("eos_token_id", m.Vocab)
	}
	return c.errs.Err()
}

// parseObject reads one JSON object of at most limit bytes: valid UTF-8, no key twice, nothing after it.
func parseObject(data []byte, limit int) (map[string]json.RawMessage, error) {
	if len(data) > limit {
		return nil, fmt.Errorf("%d bytes, want at most %d", len(data), limit)
	}
	out := map[string]json.RawMessage{}
	err := eachMember(data, func(key string, value json.RawMessage) error {
		if _, dup := out[key]; dup {
			return fmt.Errorf("key %q twice", key)
		}
		out[key] = value
		return nil
	})
	return out, err
}

// eachMember calls f for every member of the JSON object in data, in order.
func eachMember(data []byte, f func(key string, value json.RawMessage) error) error {
	if !utf8.Valid(data) {
		return fmt.Errorf("not valid UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	t, err := dec.Token()
	if err != nil {
		return jsonError(dec, err)
	}
	if t != json.Delim('{') {
		return fmt.Errorf("got %s, want a JSON object", brief(data))
	}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return jsonError(dec, err)
		}
		key, ok := t.(string)
		if !ok {
			return fmt.Errorf("at byte %d: got %v, want a key", dec.InputOffset(), t)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return jsonError(dec, err)
		}
		if err := f(key, value); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return jsonError(dec, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return fmt.Errorf("at byte %d: data after the object", dec.InputOffset())
	}
	return nil
}

func jsonError(dec *json.Decoder, err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("ends in the middle of a JSON object")
	}
	return fmt.Errorf("at byte %d: %w", dec.InputOffset(), err)
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

// brief shows the beginning of a JSON value in an error message.
func brief(raw []byte) string {
	const most = 60
	s := strings.Join(strings.Fields(string(raw[:min(len(raw), 4*most)])), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// readBounded reads a whole small file.
func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, diag.New(diag.ClassInput, "%w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, diag.New(diag.ClassIO, "%w", err)
	}
	if !st.Mode().IsRegular() {
		return nil, diag.New(diag.ClassInput, "read %q: not a regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, diag.New(diag.ClassIO, "%w", err)
	}
	if int64(len(data)) > limit {
		return nil, diag.New(diag.ClassInput, "read %q: more than %d bytes", path, limit)
	}
	return data, nil
}
