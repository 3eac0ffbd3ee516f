package gguf

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/diag"
)

// maxViews bounds the tensors of a model; the largest published ones have 70,000 expert matrices.
const maxViews = 1 << 18

// Model is a file seen as a Hugging Face directory.
type Model struct {
	Name    string          // general.name, "" when it does not say
	Config  map[string]any  // what config.json would hold: strings, bools, int64, float64, []any, map[string]any
	Tensors map[string]View // by Hugging Face name; NAME[0:a], NAME[a:b] where one of those holds several projections
	Unread  []string        // metadata keys of the architecture without a meaning here, sorted
}

// Model translates metadata and tensors. What changes the computation and has no Hugging Face form
// is refused by its metadata key or tensor; tensors that are missing are left to the caller, who
// knows from the configuration which ones there must be.
func (f *File) Model() (*Model, error) {
	arch, err := f.architecture()
	if err != nil {
		return nil, fmt.Errorf("read gguf model: %w", err)
	}
	meta := &keys{f: f, arch: arch.name, read: map[string]bool{}}
	model := &Model{Config: meta.config(arch)}
	if err := meta.errs.Err(); err != nil {
		return nil, fmt.Errorf("read gguf model: %w", err)
	}
	if name, ok := f.Value("general.name"); ok {
		model.Name, _ = name.(string)
	}
	model.Unread = meta.unread()
	if model.Tensors, err = f.views(arch, meta); err != nil {
		return nil, fmt.Errorf("read gguf model: %w", err)
	}
	return model, nil
}

func (f *File) architecture() (*architecture, error) {
	const key = "general.architecture"
	name, ok := f.Value(key)
	if !ok {
		return nil, diag.New(diag.ClassInput, "metadata key %q: missing", key).WithHint("the file holds no model that llama.cpp converters made")
	}
	experts, _ := f.integer(fmt.Sprint(name, ".expert_count"))
	for i := range architectures {
		arch := &architectures[i]
		if arch.name != name {
			continue
		}
		if arch.experts == (experts > 0) {
			return arch, nil
		}
		if arch.experts && i > 0 && architectures[i-1].name != arch.name {
			return nil, diag.New(diag.ClassInput, "metadata key %q: missing, want the number of experts", arch.name+".expert_count")
		}
		if !arch.experts && (i+1 == len(architectures) || architectures[i+1].name != arch.name) {
			return nil, diag.New(diag.ClassInput, "metadata key %q: %d experts are not supported in architecture %s", arch.name+".expert_count", experts, arch.name)
		}
	}
	return nil, diag.New(diag.ClassInput, "metadata key %q: %s is not supported", key, brief(name)).WithHint("supported architectures: %s", architectureNames())
}

// views names the file's tensors as Hugging Face does.
func (f *File) views(arch *architecture, meta *keys) (map[string]View, error) {
	out := map[string]View{}
	used := map[string]bool{ropeFreqs: true, ropeLong: true, ropeShort: true}
	put := func(name string, v View, err error) error {
		if err != nil {
			return err
		}
		if len(out) == maxViews {
			return diag.New(diag.ClassInput, "more than %d tensors", maxViews)
		}
		out[name] = v
		return nil
	}
	for _, pair := range arch.pairs {
		layers := 1
		if pair.perLayer() {
			layers = meta.layers
		}
		for number := range layers {
			layer := strconv.Itoa(number)
			hf := strings.ReplaceAll(pair.hf, "{l}", layer)
			tensor, first, rows, ok := f.find(strings.ReplaceAll(pair.stored, "{l}", layer), meta, used)
			if !ok {
				continue
			}
			if !pair.perExpert() {
				view, err := newView(tensor, pair.vector(), first, rows)
				switch base := strings.TrimPrefix(pair.stored, "blk.{l}."); {
				case err != nil:
				case arch.rotaryPairs && strings.HasPrefix(base, "attn_q."):
					view, err = view.rotary(meta.heads)
				case arch.rotaryPairs && strings.HasPrefix(base, "attn_k."):
					view, err = view.rotary(meta.kvHeads)
				case arch.plusOne && pair.norm():
					view.add = -1
				}
				from := 0
				for _, to := range meta.projections(hf) {
					part, err := view.Rows(from, to)
					if err := put(fmt.Sprintf("%s[%d:%d]", hf, from, to), part, err); err != nil {
						return nil, err
					}
					from = to
				}
				if from > 0 {
					continue
				}
				if err := put(hf, view, err); err != nil {
					return nil, err
				}
				continue
			}
			if len(tensor.Shape) != 3 || tensor.Shape[0] != meta.experts {
				return nil, diag.New(diag.ClassInput, "tensor %q: shape %v, want one matrix for each of %d experts", tensor.Name, tensor.Shape, meta.experts)
			}
			for expert := range meta.experts {
				one, err := tensor.Slice(expert)
				if err != nil {
					return nil, err
				}
				view, err := newView(one, false, first, rows)
				if err := put(strings.ReplaceAll(hf, "{e}", strconv.Itoa(expert)), view, err); err != nil {
					return nil, err
				}
			}
		}
	}
	for _, name := range f.Names() {
		if used[name] || strings.HasSuffix(name, ".attn_rot_embd.weight") { // the latter are frequencies that follow from the metadata
			continue
		}
		problem := diag.New(diag.ClassInput, "tensor %q: has no meaning in architecture %s with %d layers", name, arch.name, meta.layers)
		if parts := strings.Split(name, "."); len(parts) == 5 && arch.experts {
			problem.WithHint("one tensor per expert is an old form of the format: convert the model again")
		} else {
			problem.WithHint("the model has a part that is not supported, or its metadata and its tensors do not belong together")
		}
		return nil, problem
	}
	return out, nil
}

// projections is where the projections end that share a tensor of that Hugging Face name; nil for others.
func (k *keys) projections(hf string) []int {
	query, kv := k.headDim*k.heads, k.headDim*k.kvHeads
	switch {
	case strings.Contains(hf, ".qkv_proj."):
		return []int{query, query + kv, query + 2*kv}
	case strings.Contains(hf, ".mlp.gate_up_proj."):
		return []int{k.ffn, 2 * k.ffn}
	}
	return nil
}

// find returns the tensor of that name, or the rows of a fused one that hold it (all rows: rows < 0).
func (f *File) find(name string, meta *keys, used map[string]bool) (tensor Tensor, first, rows int, ok bool) {
	if tensor, ok = f.Tensor(name); ok {
		used[name] = true
		return tensor, 0, -1, true
	}
	head, kv := meta.headDim*meta.heads, meta.headDim*meta.kvHeads
	for _, part := range []struct {
		of, whole   string
		first, rows int
	}{
		{".attn_q.", ".attn_qkv.", 0, head},
		{".attn_k.", ".attn_qkv.", head, kv},
		{".attn_v.", ".attn_qkv.", head + kv, kv},
		{".ffn_gate_exps.", ".ffn_gate_up_exps.", 0, meta.expertFFN},
		{".ffn_up_exps.", ".ffn_gate_up_exps.", meta.expertFFN, meta.expertFFN},
	} {
		if !strings.Contains(name, part.of) {
			continue
		}
		whole := strings.Replace(name, part.of, part.whole, 1)
		if tensor, ok = f.Tensor(whole); ok {
			used[whole] = true
			return tensor, part.first, part.rows, true
		}
	}
	return Tensor{}, 0, 0, false
}

// keys reads the metadata of an architecture: which keys were asked for, and what is wrong so far.
type keys struct {
	f    *File
	arch string
	read map[string]bool
	errs diag.List

	// Sizes that other keys and the tensors' forms depend on.
	layers, hidden, heads, kvHeads, headDim, ffn, experts, expertFFN, context int
	normShares                                                                *bool // expert_weights_norm, nil: not said
}

func (k *keys) fail(key, format string, args ...any) {
	k.errs = append(k.errs, diag.New(diag.ClassInput, "metadata key %q: %s", k.arch+"."+key, fmt.Sprintf(format, args...)).WithCode("gguf.metadata"))
}

// get returns a value without the architecture's prefix; lists of one value for all layers count as that value.
func (k *keys) get(key string) (any, bool) {
	k.read[key] = true
	stored, ok := k.f.Value(k.arch + "." + key)
	if !ok {
		return nil, false
	}
	same := func(n int, at func(int) any) (any, bool) {
		for i := range n {
			if at(i) != at(0) {
				k.fail(key, "differs between layers, which is not supported")
				return nil, false
			}
		}
		if n == 0 {
			k.fail(key, "got an empty list")
			return nil, false
		}
		return at(0), true
	}
	switch list := stored.(type) {
	case []int32:
		return same(len(list), func(i int) any { return list[i] })
	case []uint32:
		return same(len(list), func(i int) any { return list[i] })
	case []float32:
		return same(len(list), func(i int) any { return list[i] })
	}
	return stored, true
}

// int reads an integer in lo..hi; def < 0 makes it required.
func (k *keys) int(key string, def, lo, hi int) int {
	stored, ok := k.get(key)
	if !ok {
		if def < 0 {
			k.fail(key, "missing, want an integer in %d..%d", lo, hi)
			return lo
		}
		return def
	}
	number, ok := toInt(stored)
	if !ok || number < lo || number > hi {
		k.fail(key, "got %s, want an integer in %d..%d", brief(stored), lo, hi)
		return lo
	}
	return number
}

// float reads a number in [lo, hi] as the shortest decimal that rounds to the stored float32; def < 0
// makes it required.
func (k *keys) float(key string, def, lo, hi float64) float64 {
	stored, ok := k.get(key)
	if !ok {
		if def < 0 {
			k.fail(key, "missing, want a number from %v to %v", lo, hi)
		}
		return def
	}
	var number float64
	switch v := stored.(type) {
	case float32:
		number = shortest(v)
	case float64:
		number = v
	default:
		integer, isInt := toInt(v)
		if number, ok = float64(integer), isInt; !ok {
			number = lo - 1
		}
	}
	if !(number >= lo && number <= hi) {
		k.fail(key, "got %s, want a number from %v to %v", brief(stored), lo, hi)
		return lo
	}
	return number
}

func shortest(v float32) float64 {
	parsed, _ := strconv.ParseFloat(strconv.FormatFloat(float64(v), 'g', -1, 32), 64)
	return parsed
}

func (k *keys) string(key, def string) string {
	stored, ok := k.get(key)
	if !ok {
		return def
	}
	text, ok := stored.(string)
	if !ok {
		k.fail(key, "got %s, want a string", brief(stored))
	}
	return text
}

// bool reads a flag; set tells whether the file says anything.
func (k *keys) bool(key string) (on, set bool) {
	stored, ok := k.get(key)
	if !ok {
		return false, false
	}
	on, ok = stored.(bool)
	if !ok {
		k.fail(key, "got %s, want a bool", brief(stored))
	}
	return on, ok
}

// must refuses any value of key but those that change nothing.
func (k *keys) must(key string, neutral ...float64) {
	stored, ok := k.get(key)
	if !ok {
		return
	}
	number := 0.0
	switch v := stored.(type) {
	case bool:
		if v {
			number = 1
		}
	case float32:
		number = float64(v)
	default:
		integer, isInt := toInt(v)
		if number, ok = float64(integer), isInt; !ok {
			k.fail(key, "got %s, want a number", brief(v))
			return
		}
	}
	if !slices.Contains(neutral, number) {
		k.fail(key, "%s is not supported; supported: %v", brief(stored), neutral[0])
	}
}

// unread lists the architecture's keys nobody asked for.
func (k *keys) unread() []string {
	var out []string
	for _, key := range k.f.Keys() {
		if rest, own := strings.CutPrefix(key, k.arch+"."); own && !k.read[rest] {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}
