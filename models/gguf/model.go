package gguf

import (
	"fmt"
	"reflect"
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

// Model translates metadata and tensors. What changes the computation and has no Hugging Face form is refused by its
// metadata key or tensor. Missing tensors are left to the caller, which knows from the configuration which ones there
// must be.
func (f *File) Model() (model *Model, err error) {
	defer func() {
		if err != nil {
			model, err = nil, fmt.Errorf("read gguf model: %w", err)
		}
	}()
	arch, err := f.architecture()
	if err != nil {
		return nil, err
	}
	meta := &keys{f: f, arch: arch.name, read: map[string]bool{}}
	model = &Model{Config: meta.config(arch)}
	if err := meta.errs.Err(); err != nil {
		return nil, err
	}
	if name, ok := f.Value("general.name"); ok {
		model.Name, _ = name.(string)
	}
	model.Unread = meta.unread()
	model.Tensors, err = f.views(arch, meta)
	return model, err
}

// architecture finds the row of the file's architecture; where a name has two, the number of experts decides.
func (f *File) architecture() (*architecture, error) {
	const key = "general.architecture"
	name, ok := f.Value(key)
	if !ok {
		return nil, diag.New(diag.ClassInput, "metadata key %q: missing", key).
			WithHint("the file holds no model that llama.cpp converters made")
	}
	// Llama and Mixtral share a name, for example.
	experts, _ := f.integer(fmt.Sprint(name, ".expert_count"))
	var known *architecture
	for i := range architectures {
		arch := &architectures[i]
		if arch.name != name {
			continue
		}
		if arch.experts == (experts > 0) {
			return arch, nil
		}
		known = arch
	}
	switch {
	case known == nil:
		return nil, diag.New(diag.ClassInput, "metadata key %q: %s is not supported", key, brief(name)).
			WithHint("supported architectures: %s", architectureNames())
	case known.experts:
		return nil, diag.New(diag.ClassInput, "metadata key %q: missing, want the number of experts",
			known.name+".expert_count")
	}
	return nil, diag.New(diag.ClassInput, "metadata key %q: %d experts are not supported in architecture %s",
		known.name+".expert_count", experts, known.name)
}

// viewList collects the file's tensors under their Hugging Face names.
type viewList struct {
	f    *File
	arch *architecture
	meta *keys
	out  map[string]View
	used map[string]bool // stored names
}

// views names the file's tensors as Hugging Face does. Every tensor must have a meaning.
func (f *File) views(arch *architecture, meta *keys) (map[string]View, error) {
	list := &viewList{f: f, arch: arch, meta: meta, out: map[string]View{},
		used: map[string]bool{ropeFreqs: true, ropeLong: true, ropeShort: true}}
	for _, pair := range arch.pairs {
		layers := 1
		if pair.perLayer() {
			layers = meta.layers
		}
		for layer := range layers {
			if err := list.add(pair, strconv.Itoa(layer)); err != nil {
				return nil, err
			}
		}
	}
	for _, name := range f.Names() {
		if !list.used[name] && !strings.HasSuffix(name, ".attn_rot_embd.weight") { // these follow from the metadata
			return nil, arch.unknownTensor(name, meta.layers)
		}
	}
	return list.out, nil
}

// unknownTensor refuses a tensor that the architecture has no name for.
func (a *architecture) unknownTensor(name string, layers int) error {
	problem := diag.New(diag.ClassInput, "tensor %q: has no meaning in architecture %s with %d layers",
		name, a.name, layers)
	if parts := strings.Split(name, "."); len(parts) == 5 && a.experts {
		return problem.WithHint("one tensor per expert is an old form of the format: convert the model again")
	}
	return problem.WithHint("the model has a part that is not supported, " +
		"or its metadata and its tensors do not belong together")
}

// add names what a layer has of a pair: a tensor, the projections in it, or the matrices of all experts.
func (l *viewList) add(pair namePair, layer string) error {
	hf := strings.ReplaceAll(pair.hf, "{l}", layer)
	tensor, part, ok := l.f.find(strings.ReplaceAll(pair.stored, "{l}", layer), l.meta, l.used)
	if !ok {
		return nil
	}
	if pair.perExpert() {
		return l.addExperts(tensor, hf, part)
	}
	// The stored rows, in the order and with the offset that Hugging Face has: converters interleave the rows of
	// rotated heads, and store Gemma's norms with 1 added.
	view, err := newView(tensor, pair.vector(), part)
	if err != nil {
		return err
	}
	if heads := l.arch.pairedHeads(pair, l.meta.heads, l.meta.kvHeads); heads > 0 {
		if view, err = view.rotary(heads); err != nil {
			return err
		}
	}
	if l.arch.plusOne && pair.norm() {
		view.add = -1
	}
	// A fused tensor is given as its projections, which models read apart.
	ends := l.meta.projections(hf)
	if ends == nil {
		return l.put(hf, view)
	}
	// A row that belongs to no projection would shift those behind it.
	if want := ends[len(ends)-1]; view.shape[0] != want {
		return diag.New(diag.ClassInput, "tensor %q: got %d rows, want %d", tensor.Name, view.shape[0], want)
	}
	from := 0
	for _, to := range ends {
		part, err := view.Rows(from, to)
		if err != nil {
			return err
		}
		if err := l.put(fmt.Sprintf("%s[%d:%d]", hf, from, to), part); err != nil {
			return err
		}
		from = to
	}
	return nil
}

// addExperts names the matrices of a tensor [experts, rows, cols].
func (l *viewList) addExperts(tensor Tensor, hf string, part *span) error {
	if len(tensor.Shape) != 3 || tensor.Shape[0] != l.meta.experts {
		return diag.New(diag.ClassInput, "tensor %q: shape %v, want one matrix for each of %d experts",
			tensor.Name, tensor.Shape, l.meta.experts)
	}
	for expert := range l.meta.experts {
		one, err := tensor.slice(expert)
		if err != nil {
			return err
		}
		view, err := newView(one, false, part)
		if err != nil {
			return err
		}
		if err := l.put(strings.ReplaceAll(hf, "{e}", strconv.Itoa(expert)), view); err != nil {
			return err
		}
	}
	return nil
}

// put adds a view, up to maxViews: how many experts there are is what the file claims.
func (l *viewList) put(name string, view View) error {
	// Layers times experts may be large in a small file.
	if len(l.out) == maxViews {
		return diag.New(diag.ClassInput, "more than %d tensors", maxViews)
	}
	l.out[name] = view
	return nil
}

// projections returns where the projections end that share a tensor of that Hugging Face name; nil for others.
func (k *keys) projections(hf string) []int {
	// Rows of a fused tensor: queries, keys, values; or gates and ups.
	query, kv := k.headDim*k.heads, k.headDim*k.kvHeads
	switch {
	case strings.Contains(hf, ".qkv_proj."):
		return []int{query, query + kv, query + 2*kv}
	case strings.Contains(hf, ".mlp.gate_up_proj."):
		return []int{k.ffn, 2 * k.ffn}
	}
	return nil
}

// span is what a tensor has of a fused one: rows from first on, of so many.
type span struct{ first, rows, of int }

// find returns the tensor of that name, or the fused tensor that holds it with the span of its rows, which is nil for
// a tensor of its own. The tensor that is returned is marked as used.
func (f *File) find(name string, meta *keys, used map[string]bool) (tensor Tensor, part *span, ok bool) {
	if tensor, ok = f.Tensor(name); ok {
		used[name] = true
		return tensor, nil, true
	}
	head, kv := meta.headDim*meta.heads, meta.headDim*meta.kvHeads
	for _, fused := range []struct {
		part, whole string
		span        span
	}{
		{".attn_q.", ".attn_qkv.", span{0, head, head + 2*kv}},
		{".attn_k.", ".attn_qkv.", span{head, kv, head + 2*kv}},
		{".attn_v.", ".attn_qkv.", span{head + kv, kv, head + 2*kv}},
		{".ffn_gate_exps.", ".ffn_gate_up_exps.", span{0, meta.expertFFN, 2 * meta.expertFFN}},
		{".ffn_up_exps.", ".ffn_gate_up_exps.", span{meta.expertFFN, meta.expertFFN, 2 * meta.expertFFN}},
	} {
		if !strings.Contains(name, fused.part) {
			continue
		}
		whole := strings.Replace(name, fused.part, fused.whole, 1)
		if tensor, ok = f.Tensor(whole); ok {
			used[whole] = true
			return tensor, &fused.span, true
		}
	}
	return Tensor{}, nil, false
}

// keys reads the metadata of an architecture: which keys were asked for, and what is wrong so far.
type keys struct {
	f    *File
	arch string          // prefix of its keys
	read map[string]bool // keys asked for, without the prefix
	errs diag.List

	// Sizes that other keys and the tensors' forms depend on.
	layers, hidden, heads, kvHeads, headDim, ffn, experts, expertFFN, context int

	normShares *bool // expert_weights_norm, nil: not said
}

// fail collects a problem with a key of the architecture.
func (k *keys) fail(key, format string, args ...any) {
	k.errs = append(k.errs, badKey(k.arch+"."+key, format, args...))
}

// badKey refuses a metadata key.
func badKey(key, format string, args ...any) *diag.Diagnostic {
	return diag.New(diag.ClassInput, "metadata key %q: %s", key, fmt.Sprintf(format, args...)).WithCode("gguf.metadata")
}

// get returns a value without the architecture's prefix; lists of one value for all layers count as that value.
func (k *keys) get(key string) (any, bool) {
	k.read[key] = true
	stored, ok := k.f.Value(k.arch + "." + key)
	if !ok {
		return nil, false
	}
	switch stored.(type) {
	// Only lists of numbers have one value for each layer.
	case []int32, []uint32, []float32:
	default:
		return stored, true
	}
	list := reflect.ValueOf(stored)
	// Some architectures may vary a value by layer; hetc has one value for all.
	for i := range list.Len() {
		if !list.Index(i).Equal(list.Index(0)) {
			k.fail(key, "differs between layers, which is not supported")
			return nil, false
		}
	}
	if list.Len() == 0 {
		k.fail(key, "got an empty list")
		return nil, false
	}
	return list.Index(0).Interface(), true
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

// float reads a number in [lo, hi]; def < 0 makes it required.
func (k *keys) float(key string, def, lo, hi float64) float64 {
	stored, ok := k.get(key)
	if !ok {
		if def < 0 {
			k.fail(key, "missing, want a number from %v to %v", lo, hi)
		}
		return def
	}
	number, ok := storedNumber(stored)
	if !ok || !(number >= lo && number <= hi) {
		k.fail(key, "got %s, want a number from %v to %v", brief(stored), lo, hi)
		return lo
	}
	return number
}

// storedNumber converts a number of any kind; a float32 becomes the shortest decimal that rounds to it.
func storedNumber(v any) (float64, bool) {
	switch v := v.(type) {
	case float32:
		return shortest(v), true
	case float64:
		return v, true
	}
	integer, ok := toInt(v)
	return float64(integer), ok
}

// shortest returns the shortest decimal that rounds to v: what the writer of the file meant.
func shortest(v float32) float64 {
	parsed, _ := strconv.ParseFloat(strconv.FormatFloat(float64(v), 'g', -1, 32), 64)
	return parsed
}

// string reads a text, def where there is none.
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
	number, ok := storedNumber(stored)
	// true counts as 1, false as 0.
	if on, isBool := stored.(bool); isBool {
		number, ok = 0, true
		if on {
			number = 1
		}
	}
	switch {
	case !ok:
		k.fail(key, "got %s, want a number", brief(stored))
	case !slices.Contains(neutral, number):
		k.fail(key, "%s is not supported; supported: %v", brief(stored), neutral[0])
	}
}

// unread lists the architecture's keys that were never read, sorted.
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
