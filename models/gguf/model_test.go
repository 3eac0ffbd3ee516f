package gguf

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models/safetensors"
	"github.com/hetc/hetc/planir/op"
)

// Dimensions of the models made here.
const (
	tHidden, tLayers, tHeads, tKV, tDim, tFFN, tVocab = 32, 2, 2, 1, 16, 64, 40
	tExperts, tExpertFFN, tSharedFFN                  = 3, 32, 96
)

// configs are the configurations of the models made here, beside what they share.
var configs = map[string]map[string]any{
	"llama": {
		"attention_bias": true,
		"mlp_bias":       true,
		"eos_token_id":   []any{int64(2), int64(3)},
		"rope_parameters": map[string]any{
			"rope_type":                        "llama3",
			"rope_theta":                       500000.0,
			"factor":                           32.0,
			"low_freq_factor":                  1.0,
			"high_freq_factor":                 4.0,
			"original_max_position_embeddings": int64(8192),
		},
	},
	"mixtral": {
		"num_local_experts":   int64(tExperts),
		"num_experts_per_tok": int64(2),
	},
	"qwen2": {
		"tie_word_embeddings": true,
	},
	"qwen3": {
		"rope_parameters": map[string]any{
			"rope_type":                        "yarn",
			"rope_theta":                       1e6,
			"factor":                           4.0,
			"original_max_position_embeddings": int64(32),
			"attention_factor":                 1.25,
			"beta_fast":                        16.0,
		},
	},
	"qwen2_moe": {
		"num_experts":                     int64(tExperts),
		"num_experts_per_tok":             int64(2),
		"moe_intermediate_size":           int64(tExpertFFN),
		"shared_expert_intermediate_size": int64(tSharedFFN),
		"norm_topk_prob":                  true,
	},
	"qwen3_moe": {
		"num_experts":           int64(tExperts),
		"num_experts_per_tok":   int64(2),
		"moe_intermediate_size": int64(tExpertFFN),
		"norm_topk_prob":        true,
	},
	"olmoe": {
		"num_experts":         int64(tExperts),
		"num_experts_per_tok": int64(2),
		"norm_topk_prob":      false,
		"clip_qkv":            8.0,
	},
	"phimoe": {
		"num_local_experts":   int64(tExperts),
		"num_experts_per_tok": int64(2),
		"attention_bias":      true,
		"lm_head_bias":        true,
		"rope_parameters": map[string]any{
			"rope_type":                        "longrope",
			"rope_theta":                       10000.0,
			"short_factor":                     factors(1),
			"long_factor":                      factors(2),
			"short_mscale":                     1.25,
			"long_mscale":                      1.25,
			"attention_factor":                 1.25,
			"original_max_position_embeddings": int64(32),
		},
	},
	"gemma": {
		"tie_word_embeddings": true,
		"hidden_act":          "gelu_pytorch_tanh",
	},
	"gemma2": {
		"tie_word_embeddings":     true,
		"hidden_act":              "gelu_pytorch_tanh",
		"hidden_activation":       "gelu_pytorch_tanh",
		"sliding_window":          int64(24),
		"query_pre_attn_scalar":   int64(100),
		"attn_logit_softcapping":  40.0,
		"final_logit_softcapping": 20.0,
	},
	"phi": {
		"hidden_act":            "gelu_new",
		"layer_norm_eps":        1e-5,
		"partial_rotary_factor": 0.5,
	},
	"phi3": {
		"sliding_window": int64(24),
		"rope_parameters": map[string]any{
			"rope_type":  "linear",
			"rope_theta": 10000.0,
			"factor":     2.0,
		},
	},
	"olmo2": {
		"rms_norm_eps": 1e-5,
	},
	"starcoder2": {
		"tie_word_embeddings": true,
		"hidden_act":          "gelu_pytorch_tanh",
		"norm_epsilon":        1e-5,
		"use_bias":            true,
		"sliding_window":      int64(24),
		"layer_types":         []any{"full_attention", "sliding_attention"},
	},
}

// factors are those of rotations, one for each pair of a head.
func factors(scale float64) []any {
	out := make([]any, tDim/2)
	for i := range out {
		out[i] = scale * (1 + float64(i)/8)
	}
	return out
}

// shapeOf is the shape of a tensor by the end of its Hugging Face name.
func shapeOf(model, name string) []int {
	queries, keys := tHeads*tDim, tKV*tDim
	ffn := tFFN
	switch {
	case strings.Contains(name, ".shared_expert."):
		ffn = tSharedFFN
	case strings.Contains(name, ".experts.") && strings.HasPrefix(model, "qwen"):
		ffn = tExpertFFN
	}
	dot := strings.LastIndexByte(name, '.')
	base, suffix := name[:dot], name[dot+1:]
	in, out := []int{ffn, tHidden}, []int{tHidden, ffn} // of the two products of an MLP
	own := map[string][]int{
		"q_proj":   {queries, tHidden},
		"k_proj":   {keys, tHidden},
		"v_proj":   {keys, tHidden},
		"qkv_proj": {queries + 2*keys, tHidden},
		"o_proj":   {tHidden, queries},
		"dense":    {tHidden, queries},
		"q_norm":   {queries},
		"k_norm":   {keys},

		"gate_proj":    in,
		"up_proj":      in,
		"gate_up_proj": {2 * ffn, tHidden},
		"w1":           in,
		"w3":           in,
		"fc1":          in,
		"c_fc":         in,
		"down_proj":    out,
		"w2":           out,
		"fc2":          out,
		"c_proj":       out,

		"gate":               {tExperts, tHidden},
		"shared_expert_gate": {1, tHidden},
		"embed_tokens":       {tVocab, tHidden},
		"lm_head":            {tVocab, tHidden},
	}[base[strings.LastIndexByte(base, '.')+1:]]
	switch {
	case strings.HasSuffix(base, "_norm") && strings.HasPrefix(model, "qwen3"):
		return []int{tDim}
	case own == nil:
		return []int{tHidden} // a norm
	case suffix == "bias":
		return own[:1]
	}
	return own
}

// named returns the architecture of a model type.
func named(t testing.TB, model string) *architecture {
	t.Helper()
	at := slices.IndexFunc(architectures, func(a architecture) bool { return a.model == model })
	if at < 0 {
		t.Fatalf("no architecture %q", model)
	}
	return &architectures[at]
}

// directory makes a model of an architecture with random values that every float type holds.
func directory(a *architecture) Directory {
	config := map[string]any{
		"architectures":           []any{a.classes[0]},
		"model_type":              a.model,
		"hidden_size":             int64(tHidden),
		"num_hidden_layers":       int64(tLayers),
		"num_attention_heads":     int64(tHeads),
		"num_key_value_heads":     int64(tKV),
		"head_dim":                int64(tDim),
		"intermediate_size":       int64(tFFN),
		"vocab_size":              int64(tVocab),
		"max_position_embeddings": int64(128),
		"bos_token_id":            int64(1),
		"eos_token_id":            int64(2),
		"rope_parameters":         map[string]any{"rope_type": "default", "rope_theta": 10000.0},
		"tie_word_embeddings":     false,
	}
	if a.eps == "" {
		config["rms_norm_eps"] = 1e-6
	}
	for key, value := range configs[a.model] {
		if inner, ok := value.(map[string]any); ok {
			value = maps.Clone(inner)
		}
		config[key] = value
	}
	tensors := randomTensors(a, config["tie_word_embeddings"] == true)
	return Directory{
		Name:   "small " + a.model,
		Config: config,
		Names:  slices.Sorted(maps.Keys(tensors)),
		Tensor: func(name string) (Matrix, error) { return tensors[name], nil },
	}
}

// randomTensors are those of an architecture by their Hugging Face names; a tied head is none of them.
func randomTensors(a *architecture, tied bool) map[string]rows {
	rng := rand.New(rand.NewPCG(1, 2))
	tensors := map[string]rows{}
	for _, pair := range a.pairs {
		for layer := range tLayers {
			for expert := range tExperts {
				numbers := strings.NewReplacer("{l}", fmt.Sprint(layer), "{e}", fmt.Sprint(expert))
				name := numbers.Replace(pair.hf)
				if _, made := tensors[name]; made || name == "lm_head.weight" && tied {
					continue
				}
				made := rows{shape: shapeOf(a.model, name)}
				count := 1
				for _, dim := range made.shape {
					count *= dim
				}
				for range count {
					made.data = append(made.data, float32(rng.IntN(255)-127)/64)
				}
				tensors[name] = made
			}
		}
	}
	return tensors
}

// exported is the file of an architecture's model.
func exported(t testing.TB, a *architecture, typ op.Type) []byte {
	t.Helper()
	var file bytes.Buffer
	if err := Export(context.Background(), &file, directory(a), typ); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// taken returns a tensor of a directory and its values, or some rows of one where the name asks for them: "name[0:32]".
func taken(t *testing.T, from Directory, name string) (Matrix, []float32) {
	t.Helper()
	base, ranges, some := strings.Cut(name, "[")
	whole, _ := from.Tensor(base)
	if whole.Shape() == nil {
		t.Fatalf("tensor %q is not in the directory", base)
	}
	values := all(t, whole)
	if !some {
		return whole, values
	}
	var first, end int
	if _, err := fmt.Sscanf(ranges, "%d:%d]", &first, &end); err != nil {
		t.Fatal(err)
	}
	cols := whole.Shape()[1]
	return rows{shape: []int{end - first, cols}}, values[first*cols : end*cols]
}

// What is exported comes back: every architecture's configuration, and every value as its stored type
// rounds it. Files of float types hold the values themselves, twice the same bytes.
func TestEveryArchitectureRoundTrips(t *testing.T) {
	for i := range architectures {
		a := &architectures[i]
		if a.name == "internlm2" {
			continue // read only, see TestInternLM2IsReadAsLlama
		}
		for _, typ := range []op.Type{op.F32, op.F16, op.BF16, q8_0, q4_0} {
			t.Run(a.model+"/"+string(typ), func(t *testing.T) {
				written := exported(t, a, typ)
				if !bytes.Equal(written, exported(t, a, typ)) {
					t.Error("two runs write different bytes")
				}
				file, err := parse(written)
				if err != nil {
					t.Fatal(err)
				}
				model, err := file.Model()
				if err != nil {
					t.Fatal(err)
				}
				compareConfig(t, a, model)
				compareTensors(t, a, model, typ)
			})
		}
	}
}

// compareConfig expects the name and the configuration of the directory.
func compareConfig(t *testing.T, a *architecture, model *Model) {
	t.Helper()
	from := directory(a)
	if model.Name != from.Name || len(model.Unread) != 0 {
		t.Errorf("got name %q, unread keys %q", model.Name, model.Unread)
	}
	for key, want := range from.Config {
		if key == "tie_word_embeddings" && a.ownHead {
			continue
		}
		if got := model.Config[key]; fmt.Sprintf("%T %v", got, got) != fmt.Sprintf("%T %v", want, want) {
			t.Errorf("%s: got %T %v, want %T %v", key, got, got, want, want)
		}
	}
}

// compareTensors expects every tensor of the directory with the values that its stored type rounds to.
func compareTensors(t *testing.T, a *architecture, model *Model, typ op.Type) {
	t.Helper()
	from := directory(a)
	covered := map[string]bool{}
	for name, got := range model.Tensors {
		want, values := taken(t, from, name)
		base, _, _ := strings.Cut(name, "[")
		covered[base] = true
		if !slices.Equal(got.Shape(), want.Shape()) {
			t.Errorf("%s: got shape %v, want %v", name, got.Shape(), want.Shape())
			continue
		}
		stored := typ
		router := strings.Contains(name, "gate.weight") && !strings.Contains(name, "proj")
		if len(got.Shape()) == 1 || router {
			stored = op.F32
		}
		if got.Type() != stored {
			t.Errorf("%s: got type %s, want %s", name, got.Type(), stored)
		}
		blocks, err := encode(nil, values, stored)
		if err != nil {
			t.Fatal(err)
		}
		flat := Tensor{Type: stored, Shape: []int{1, len(values)}, Data: blocks}
		rounded := make([]float32, len(values))
		if err := flat.Read(rounded, 0, 1, 0, len(values)); err != nil {
			t.Fatal(err)
		}
		if !sameBits(all(t, got), rounded) {
			t.Errorf("%s: other values", name)
		}
		plain, ok := got.Plain()
		if ok != (got.Form() == "" && layouts[stored].block == 1) || ok && !bytes.Equal(plain, blocks) {
			t.Errorf("%s: plain %v for form %q, or other bytes", name, ok, got.Form())
		}
		if len(got.Data()) != len(blocks) {
			t.Errorf("%s: %d stored bytes, want %d", name, len(got.Data()), len(blocks))
		}
	}
	for _, name := range from.Names {
		if !covered[name] {
			t.Errorf("%s is lost", name)
		}
	}
}

// Readers of a config.json get the number of rotated elements back from their share of a head, whatever both are.
func TestRotatedShare(t *testing.T) {
	for dim := 2; dim <= 512; dim++ {
		for rotated := 2; rotated <= dim; rotated += 2 {
			share := rotatedShare(rotated, dim)
			if got := int(float64(dim) * share); got != rotated || share > 1 {
				t.Errorf("%d of %d elements: a share of %v, which is %d elements", rotated, dim, share, got)
			}
		}
	}
}

// edit changes the metadata and the tensors of a file before it is written.
type edit func(meta *[]keyValue, tensors *[]tensorSource)

// edits are several, one after the other.
func edits(list ...edit) edit {
	return func(meta *[]keyValue, tensors *[]tensorSource) {
		for _, change := range list {
			change(meta, tensors)
		}
	}
}

// rewritten writes the file of an architecture's model after an edit.
func rewritten(t *testing.T, model string, change edit) *File {
	t.Helper()
	from := directory(named(t, model))
	meta, tensors, err := plan(&from, op.F32)
	if err != nil {
		t.Fatal(err)
	}
	change(&meta, &tensors)
	return written(t, func(w io.Writer) error { return writeFile(context.Background(), w, meta, tensors) })
}

// set gives a key a value.
func set(key string, value any) edit {
	return func(meta *[]keyValue, _ *[]tensorSource) {
		for i := range *meta {
			if (*meta)[i].Key == key {
				(*meta)[i].Value = value
				return
			}
		}
		*meta = append(*meta, keyValue{key, value})
	}
}

// unset removes a key.
func unset(key string) edit {
	return func(meta *[]keyValue, _ *[]tensorSource) {
		*meta = slices.DeleteFunc(*meta, func(pair keyValue) bool { return pair.Key == key })
	}
}

// add adds a tensor of zeros.
func add(name string, shape ...int) edit {
	zeros := func(dst []float32, _ int) error {
		clear(dst)
		return nil
	}
	return func(_ *[]keyValue, tensors *[]tensorSource) {
		*tensors = append(*tensors, tensorSource{name, op.F32, shape, zeros})
	}
}

// drop removes a tensor.
func drop(name string) edit {
	return dropIf(func(listed string) bool { return listed == name })
}

// dropBiases removes all biases.
var dropBiases = dropIf(func(name string) bool { return strings.HasSuffix(name, "bias") })

// dropIf removes the tensors of some names.
func dropIf(dropped func(name string) bool) edit {
	return func(_ *[]keyValue, tensors *[]tensorSource) {
		*tensors = slices.DeleteFunc(*tensors, func(tensor tensorSource) bool { return dropped(tensor.Name) })
	}
}

// replace gives a tensor zeros of another shape.
func replace(name string, shape ...int) edit { return edits(drop(name), add(name, shape...)) }

// fuse joins the rows of several tensors to one.
func fuse(name string, parts ...string) edit {
	return func(_ *[]keyValue, tensors *[]tensorSource) {
		var from []tensorSource
		for _, part := range parts {
			at := slices.IndexFunc(*tensors, func(tensor tensorSource) bool { return tensor.Name == part })
			from = append(from, (*tensors)[at])
			*tensors = slices.Delete(*tensors, at, at+1)
		}
		fused := from[0]
		fused.Name, fused.Shape = name, slices.Clone(fused.Shape)
		if len(fused.Shape) == 1 {
			fused.Shape[0], fused.Row = joinedVectors(from)
		} else {
			fused.Shape[len(fused.Shape)-2], fused.Row = joinedRows(from)
		}
		*tensors = append(*tensors, fused)
	}
}

// joinedVectors returns the length of several vectors in one, and the function that reads it.
func joinedVectors(from []tensorSource) (length int, row func(dst []float32, _ int) error) {
	for _, part := range from {
		length += part.Shape[0]
	}
	return length, func(dst []float32, _ int) error {
		for _, part := range from {
			if err := part.Row(dst[:part.Shape[0]], 0); err != nil {
				return err
			}
			dst = dst[part.Shape[0]:]
		}
		return nil
	}
}

// joinedRows returns how many rows several matrices have together, of each expert where there are some, and the
// function that reads a row.
func joinedRows(from []tensorSource) (count int, row func(dst []float32, number int) error) {
	last := len(from[0].Shape) - 2
	for _, part := range from {
		count += part.Shape[last]
	}
	return count, func(dst []float32, number int) error {
		expert, left := number/count, number%count
		for _, part := range from {
			if left < part.Shape[last] {
				return part.Row(dst, expert*part.Shape[last]+left)
			}
			left -= part.Shape[last]
		}
		panic("no such row")
	}
}

// Fused tensors that several tests make.
var (
	fusedQKV = fuse("blk.0.attn_qkv.weight",
		"blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight")
	fusedBias = fuse("blk.0.attn_qkv.bias",
		"blk.0.attn_q.bias", "blk.0.attn_k.bias", "blk.0.attn_v.bias")
	fusedExperts = fuse("blk.0.ffn_gate_up_exps.weight",
		"blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight")
)

// Projections that converters may store as one tensor are views of it.
func TestFusedTensorsAreTakenApart(t *testing.T) {
	for _, test := range []struct {
		model  string
		change edit
	}{
		{"llama", edits(fusedQKV, fusedBias)},
		{"phi", edits(fusedQKV, fusedBias)},
		{"qwen2_moe", fusedExperts},
		{"mixtral", fusedExperts},
	} {
		model, err := rewritten(t, test.model, test.change).Model()
		if err != nil {
			t.Errorf("%s: %v", test.model, err)
			continue
		}
		from := directory(named(t, test.model))
		for _, name := range from.Names {
			want, values := taken(t, from, name)
			got := model.Tensors[name]
			if !slices.Equal(got.Shape(), want.Shape()) || !sameBits(all(t, got), values) {
				t.Errorf("%s: %s has shape %v or other values", test.model, name, got.Shape())
			}
		}
	}
}

// A file made by another writer's rules is read as the model it was made of.
func TestConvertedLlama(t *testing.T) {
	file := open(t, "testdata/llama.gguf")
	model, err := file.Model()
	if err != nil {
		t.Fatal(err)
	}
	want, err := safetensors.Open("testdata/llama.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer want.Close()
	for _, name := range want.Names() {
		tensor, _ := want.Tensor(name)
		values := make([]float32, len(tensor.Data)/2)
		if err := tensor.Floats(values, 0); err != nil {
			t.Fatal(err)
		}
		got, ok := model.Tensors[name]
		if !ok || !slices.Equal(got.Shape(), tensor.Shape) || !sameBits(all(t, got), values) {
			t.Errorf("%s: got shape %v or other values", name, got.Shape())
		}
	}
	if len(model.Tensors) != len(want.Names()) || model.Name != "small" || len(model.Unread) != 0 {
		t.Errorf("got %d tensors, name %q, unread %q", len(model.Tensors), model.Name, model.Unread)
	}
	for key, want := range map[string]any{
		"architectures":       "[LlamaForCausalLM]",
		"attention_bias":      true,
		"mlp_bias":            false,
		"tie_word_embeddings": false,
		"vocab_size":          40,
		"head_dim":            16,
		"rms_norm_eps":        1e-05,
		"bos_token_id":        1,
		"eos_token_id":        "[2 3]",
		"rope_parameters": "map[factor:8 high_freq_factor:4 low_freq_factor:1 " +
			"original_max_position_embeddings:8192 rope_theta:500000 rope_type:llama3]",
	} {
		if got := fmt.Sprint(model.Config[key]); got != fmt.Sprint(want) {
			t.Errorf("%s: got %s, want %v", key, got, want)
		}
	}
	if tokenizer, _, err := file.Tokenizer(); tokenizer != nil || err != nil {
		t.Errorf("a file without tokenizer gives %d bytes, %v", len(tokenizer), err)
	}
}

// A part of a matrix in the order of rotary pairs is read as it lies in the whole; rows of it are no rows of the file.
func TestPartOfRotaryPairs(t *testing.T) {
	model, err := open(t, "testdata/llama.gguf").Model()
	if err != nil {
		t.Fatal(err)
	}
	const first, count, from, to = 7, 3, 11, 16 // rows and columns
	queries := model.Tensors["model.layers.0.self_attn.q_proj.weight"]
	part, whole, cols := make([]float32, count*(to-from)), all(t, queries), queries.Shape()[1]
	if err := queries.Read(part, first, first+count, from, to); err != nil {
		t.Fatal(err)
	}
	for row := range count {
		got, want := part[row*(to-from):][:to-from], whole[(first+row)*cols:][from:to]
		if !sameBits(got, want) {
			t.Errorf("row %d: got %v, want %v", first+row, got, want)
		}
	}
	if err := queries.Read(part, 0, queries.Shape()[0]+1, 0, cols); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("too many rows: got %v", err)
	}
	if _, err := queries.Rows(0, 1); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("rows of rotary pairs: got %v", err)
	}
}

// Configurations that only some files have.
func TestMetadataInOtherForms(t *testing.T) {
	const llama, qwen = "llama", "qwen2_moe"
	freqs := func(values ...float32) edit {
		read := func(dst []float32, _ int) error {
			copy(dst, values)
			return nil
		}
		return func(_ *[]keyValue, tensors *[]tensorSource) {
			drop(ropeFreqs)(nil, tensors)
			if values != nil {
				*tensors = append(*tensors, tensorSource{ropeFreqs, op.F32, []int{len(values)}, read})
			}
		}
	}
	for name, test := range map[string]struct {
		model  string
		change edit
		key    string
		want   any // nil: the key is missing
	}{
		"mistral": {
			model:  llama,
			change: set("llama.attention.sliding_window", uint32(16)),
			key:    "architectures",
			want:   "[MistralForCausalLM]",
		},
		"window": {llama, set("llama.attention.sliding_window", uint32(16)), "sliding_window", 16},
		"layer pattern": {
			model:  "gemma2",
			change: set("gemma2.attention.sliding_window_pattern", []bool{false, true}),
			key:    "layer_types",
			want:   "[full_attention sliding_attention]",
		},
		"layer rounds": {
			model:  "gemma2",
			change: set("gemma2.attention.sliding_window_pattern", uint32(1)),
			key:    "layer_types",
			want:   "[full_attention full_attention]",
		},
		"own scalar": {"gemma2", unset("gemma2.attention.scale"), "query_pre_attn_scalar", tDim},
		"qwen window": {
			model:  "qwen2",
			change: set("qwen2.attention.sliding_window", uint32(16)),
			key:    "use_sliding_window",
			want:   true,
		},
		"heads by layer": {
			model:  llama,
			change: set("llama.attention.head_count_kv", []int32{1, 1}),
			key:    "num_key_value_heads",
			want:   1,
		},
		"norm of weights": {qwen, unset("qwen2moe.expert_weights_norm"), "norm_topk_prob", false},
		"biases":          {qwen, edits(), "qkv_bias", true},
		"no biases":       {qwen, dropBiases, "qkv_bias", false},
		"qwen3 norm":      {"qwen3_moe", set("qwen3moe.expert_weights_norm", false), "norm_topk_prob", false},
		"expert width": {
			model:  qwen,
			change: unset("qwen2moe.expert_feed_forward_length"),
			key:    "moe_intermediate_size",
			want:   tExpertFFN,
		},
		"shared width": {
			model:  qwen,
			change: unset("qwen2moe.expert_shared_feed_forward_length"),
			key:    "shared_expert_intermediate_size",
			want:   tSharedFFN,
		},
		"no begin":      {llama, unset("tokenizer.ggml.bos_token_id"), "bos_token_id", nil},
		"begin outside": {llama, set("tokenizer.ggml.bos_token_id", uint32(tVocab)), "bos_token_id", nil},
		"padding":       {llama, set("tokenizer.ggml.padding_token_id", uint32(5)), "pad_token_id", 5},
		"no factors":    {llama, freqs(), "rope_parameters", "map[rope_theta:500000 rope_type:default]"},
		"factors of 1": {
			model:  llama,
			change: freqs(1, 1, 1, 1, 1, 1, 1, 1),
			key:    "rope_parameters",
			want:   "map[rope_theta:500000 rope_type:default]",
		},
		"other factors": {
			model:  llama,
			change: freqs(1, 1, 1, 1, 1, 1, 2, 3),
			key:    "rope_parameters",
			want: "map[attention_factor:1 long_factor:[1 1 1 1 1 1 2 3] original_max_position_embeddings:128 " +
				"rope_theta:500000 rope_type:longrope short_factor:[1 1 1 1 1 1 2 3]]",
		},
		"old linear": {
			model:  "qwen2",
			change: set("qwen2.rope.scale_linear", float32(4)),
			key:    "rope_parameters",
			want:   "map[factor:4 rope_theta:10000 rope_type:linear]",
		},
		"linear": {
			model:  "qwen2",
			change: set("qwen2.rope.scaling.factor", float32(4)),
			key:    "rope_parameters",
			want:   "map[factor:4 rope_theta:10000 rope_type:linear]",
		},
		"linear of 1": {
			model:  "qwen2",
			change: set("qwen2.rope.scaling.factor", float32(1)),
			key:    "rope_parameters",
			want:   "map[rope_theta:10000 rope_type:default]",
		},
		"switched off": {
			model:  "qwen3",
			change: edits(set("qwen3.rope.scaling.type", "none"), unset("qwen3.rope.scaling.attn_factor")),
			key:    "rope_parameters",
			want:   "map[rope_theta:1e+06 rope_type:default]",
		},
		"converter's yarn": {
			model: "qwen3",
			change: edits(
				unset("qwen3.rope.scaling.attn_factor"),
				unset("qwen3.rope.scaling.yarn_beta_fast"),
				set("qwen3.rope.scaling.yarn_attn_factor", float32(1.5)),
			),
			key: "rope_parameters",
			want: "map[attention_factor:1.5 factor:4 original_max_position_embeddings:32 rope_theta:1e+06 " +
				"rope_type:yarn]",
		},
		"no scale": {
			model:  "phimoe",
			change: unset("phimoe.rope.scaling.attn_factor"),
			key:    "rope_parameters",
			want: "map[attention_factor:1 long_factor:[2 2.25 2.5 2.75 3 3.25 3.5 3.75] long_mscale:1 " +
				"original_max_position_embeddings:32 rope_theta:10000 rope_type:longrope " +
				"short_factor:[1 1.125 1.25 1.375 1.5 1.625 1.75 1.875] short_mscale:1]",
		},
	} {
		model, err := rewritten(t, test.model, test.change).Model()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := fmt.Sprint(model.Config[test.key]); got != fmt.Sprint(test.want) {
			t.Errorf("%s: got %s, want %v", name, got, test.want)
		}
	}
}

// Keys that mean nothing are listed.
func TestUnknownMetadata(t *testing.T) {
	model, err := rewritten(t, "llama", set("llama.new_key", uint32(1))).Model()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(model.Unread, []string{"llama.new_key"}) {
		t.Errorf("unread %q, want llama.new_key", model.Unread)
	}
}

// InternLM2 is stored like Llama and read as one.
func TestInternLM2IsReadAsLlama(t *testing.T) {
	file := rewritten(t, "llama", edits(dropBiases, func(meta *[]keyValue, _ *[]tensorSource) {
		for i := range *meta {
			pair := &(*meta)[i]
			if pair.Key == "general.architecture" {
				pair.Value = "internlm2"
			} else {
				pair.Key = strings.Replace(pair.Key, "llama.", "internlm2.", 1)
			}
		}
	}))
	model, err := file.Model()
	if err != nil {
		t.Fatal(err)
	}
	keys := model.Tensors["model.layers.1.self_attn.k_proj.weight"]
	if fmt.Sprint(model.Config["architectures"]) != "[LlamaForCausalLM]" || keys.Form() != "rotary-pairs/1" {
		t.Errorf("got %v with keys in the form %q", model.Config["architectures"], keys.Form())
	}
}

// refusedFile is a file that cannot be represented, and a part of the error.
type refusedFile struct {
	model  string
	change edit
	want   string
}

// refuseFiles expects errors of input.
func refuseFiles(t *testing.T, files map[string]refusedFile) {
	t.Helper()
	for name, test := range files {
		_, err := rewritten(t, test.model, test.change).Model()
		if err == nil || !strings.Contains(err.Error(), test.want) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v\nwant %q", name, err, test.want)
		}
	}
}

// Keys that are missing, out of range, or ask for what no graph can do are refused.
func TestModelsThatCannotBeRepresentedAreRefused(t *testing.T) {
	refuseFiles(t, map[string]refusedFile{
		"no architecture": {"llama", unset("general.architecture"), `"general.architecture": missing`},
		"architecture": {
			model:  "llama",
			change: set("general.architecture", "mamba"),
			want:   `"general.architecture": "mamba" is not supported`,
		},
		"architecture number": {
			model:  "llama",
			change: set("general.architecture", uint32(7)),
			want:   `"general.architecture": 7 is not supported`,
		},
		"experts missing": {
			model:  "qwen2_moe",
			change: unset("qwen2moe.expert_count"),
			want:   `"qwen2moe.expert_count": missing`,
		},
		"experts in a dense": {
			model:  "qwen2",
			change: set("qwen2.expert_count", uint32(4)),
			want:   `"qwen2.expert_count": 4 experts are not supported`,
		},
		"no layers": {
			model:  "llama",
			change: unset("llama.block_count"),
			want:   `"llama.block_count": missing, want an integer in 1..4096`,
		},
		"many layers": {
			model:  "llama",
			change: set("llama.block_count", uint32(1<<31)),
			want:   `"llama.block_count": got 2147483648, want an integer in 1..4096`,
		},
		"heads of 0": {
			model:  "llama",
			change: set("llama.attention.head_count", uint32(0)),
			want:   `"llama.attention.head_count": got 0`,
		},
		"heads of text": {
			model:  "llama",
			change: set("llama.attention.head_count", "four"),
			want:   `got "four", want an integer`,
		},
		"heads differ": {
			model:  "llama",
			change: set("llama.attention.head_count_kv", []int32{2, 1}),
			want:   "differs between layers",
		},
		"heads of no layers": {
			model:  "llama",
			change: set("llama.attention.head_count_kv", []int32{}),
			want:   "got an empty list",
		},
		"values": {
			model:  "llama",
			change: set("llama.attention.value_length", uint32(8)),
			want:   `"llama.attention.value_length": 8 is not supported`,
		},
		"epsilon": {
			model:  "llama",
			change: set("llama.attention.layer_norm_rms_epsilon", float32(2)),
			want:   "want a number from 0 to 1",
		},
		"no epsilon": {"llama", unset("llama.attention.layer_norm_rms_epsilon"), "missing"},
		"windowed heads": {
			model:  "gemma2",
			change: set("gemma2.attention.key_length_swa", uint32(4)),
			want:   `"gemma2.attention.key_length_swa": 4 is not supported`,
		},
		"windowed values": {
			model:  "gemma2",
			change: set("gemma2.attention.value_length_swa", uint32(4)),
			want:   `"gemma2.attention.value_length_swa": 4 is not supported`,
		},
		"values scaled": {
			model:  "llama",
			change: set("llama.attention.value_scale", float32(0.5)),
			want:   `"llama.attention.value_scale": 0.5 is not supported`,
		},
		"router capped": {
			model:  "mixtral",
			change: set("llama.router_logit_softcapping", float32(5)),
			want:   `"llama.router_logit_softcapping": 5 is not supported`,
		},
		"no window": {
			model:  "gemma2",
			change: set("gemma2.attention.sliding_window", uint32(0)),
			want:   `"gemma2.attention.sliding_window": got 0, want an integer in 1..`,
		},
		"vocabulary": {
			model:  "llama",
			change: set("llama.vocab_size", uint32(41)),
			want:   `"llama.vocab_size": 41, but tensor "token_embd.weight" has 40 rows`,
		},
		"some biases": {"llama", drop("blk.0.attn_output.bias"), "bias in some projections"},
		"soft cap": {
			model:  "llama",
			change: set("llama.attn_logit_softcapping", float32(30)),
			want:   `"llama.attn_logit_softcapping": 30 is not supported`,
		},
		"scale": {
			model:  "llama",
			change: set("llama.attention.scale", float32(0.5)),
			want:   `"llama.attention.scale": 0.5 is not supported`,
		},
		"logit scale": {"llama", set("llama.logit_scale", float32(0.5)), `"llama.logit_scale"`},
		"not causal": {
			model:  "llama",
			change: set("llama.attention.causal", false),
			want:   `"llama.attention.causal": false is not supported`,
		},
		"router": {
			model:  "mixtral",
			change: set("llama.expert_gating_func", uint32(2)),
			want:   `"llama.expert_gating_func": 2 is not supported; supported: 1`,
		},
		"router weights": {"mixtral", set("llama.expert_weights_norm", false), "expert_weights_norm"},
		"router scale": {
			model:  "qwen3_moe",
			change: set("qwen3moe.expert_weights_scale", float32(2.5)),
			want:   "expert_weights_scale",
		},
		"window pattern": {
			model:  "gemma2",
			change: set("gemma2.attention.sliding_window_pattern", []bool{true}),
			want:   "want a bool for each of 2 layers",
		},
		"olmo3": {"olmo2", set("olmo2.attention.sliding_window", uint32(4)), "Olmo 3"},
	})
}

// Rotations that have no form in a configuration are refused.
func TestRotationsThatCannotBeRepresentedAreRefused(t *testing.T) {
	refuseFiles(t, map[string]refusedFile{
		"partial rotation": {
			model:  "llama",
			change: set("llama.rope.dimension_count", uint32(8)),
			want:   `"llama.rope.dimension_count": 8 is not supported`,
		},
		"windowed rotation": {
			model:  "gemma2",
			change: set("gemma2.rope.dimension_count_swa", uint32(4)),
			want:   `"gemma2.rope.dimension_count_swa": 4 is not supported`,
		},
		"rope type": {
			model:  "llama",
			change: set("llama.rope.scaling.type", "ntk"),
			want:   `"llama.rope.scaling.type": "ntk" is not supported`,
		},
		"attention unscaled": {
			model:  "qwen3",
			change: set("qwen3.rope.scaling.type", "none"),
			want:   `"qwen3.rope.scaling.attn_factor": `,
		},
		"attention of yarn 1": {
			model:  "qwen3",
			change: set("qwen3.rope.scaling.factor", float32(1)),
			want:   "is not supported without scaling by yarn or longrope",
		},
		"attention of linear": {
			model:  "qwen2",
			change: set("qwen2.rope.scaling.attn_factor", float32(2)),
			want:   `"qwen2.rope.scaling.attn_factor": 2 is not supported`,
		},
		"rope and factors": {"llama", set("llama.rope.scaling.factor", float32(2)), "beside other scaling"},
		"factors too many": {
			model:  "llama",
			change: replace(ropeFreqs, tDim),
			want:   `tensor "rope_freqs.weight": shape [16], want [8]`,
		},
		"factors of 0":      {"llama", replace(ropeFreqs, tDim/2), "element 0 is 0, want a positive number"},
		"only long factors": {"phimoe", drop(ropeShort), "belong together"},
		"yarn extension": {
			model:  "qwen3",
			change: set("qwen3.rope.scaling.yarn_ext_factor", float32(0.5)),
			want:   "yarn_ext_factor",
		},
	})
}

// Tensors that the architecture does not have, or that have other shapes than it wants, are refused.
func TestTensorsThatCannotBeRepresentedAreRefused(t *testing.T) {
	refuseFiles(t, map[string]refusedFile{
		"unknown tensor": {
			model:  "llama",
			change: add("blk.0.attn_sinks.weight", 4),
			want:   `tensor "blk.0.attn_sinks.weight": has no meaning in architecture llama`,
		},
		"more layers": {"llama", add("blk.2.attn_norm.weight", tHidden), `with 2 layers`},
		"old experts": {"mixtral", add("blk.0.ffn_gate.0.weight", tFFN, tHidden), "has no meaning"},
		"expert count": {
			model:  "mixtral",
			change: replace("blk.0.ffn_gate_exps.weight", tExperts+1, tFFN, tHidden),
			want:   "want one matrix for each of 3 experts",
		},
		"experts flat": {
			model:  "mixtral",
			change: replace("blk.0.ffn_gate_exps.weight", tFFN, tHidden),
			want:   "want one matrix for each of 3 experts",
		},
		"odd heads": {
			model:  "llama",
			change: replace("blk.0.attn_q.weight", 6, tHidden),
			want:   "want an even number for each of 2 heads",
		},
		"a norm as matrix":  {"llama", replace("output_norm.weight", 2, tHidden), "want a vector"},
		"a matrix as stack": {"llama", replace("output.weight", 2, tVocab, tHidden), "want a matrix"},
		"fused too short": {
			model:  "llama",
			change: edits(fusedQKV, replace("blk.0.attn_qkv.weight", (tHeads+tKV)*tDim+1, tHidden)),
			want:   "want 64 rows",
		},
		"fused too long": {
			model:  "llama",
			change: edits(fusedQKV, replace("blk.0.attn_qkv.weight", (tHeads+2*tKV)*tDim+1, tHidden)),
			want:   "want 64 rows",
		},
		"fused bias too long": {
			model:  "llama",
			change: edits(fusedBias, replace("blk.0.attn_qkv.bias", (tHeads+2*tKV)*tDim+1)),
			want:   "want a vector of 64",
		},
		"fused experts too long": {
			model:  "mixtral",
			change: edits(fusedExperts, replace("blk.0.ffn_gate_up_exps.weight", tExperts, 2*tFFN+1, tHidden)),
			want:   "want 128 rows",
		},
		"projections too long": {
			model:  "phi3",
			change: replace("blk.0.attn_qkv.weight", (tHeads+2*tKV)*tDim+1, tHidden),
			want:   "got 65 rows, want 64",
		},
	})
}

// change makes another model of a directory.
type change func(from *Directory)

// config gives a key of the configuration a value.
func config(key string, value any) change {
	return func(from *Directory) { from.Config[key] = value }
}

// rope replaces the parameters of rotations.
func rope(params map[string]any) change { return config("rope_parameters", params) }

// ropeKey gives one of these parameters a value.
func ropeKey(key string, value any) change {
	return func(from *Directory) { from.Config["rope_parameters"].(map[string]any)[key] = value }
}

// with lists a tensor.
func with(name string) change {
	return func(from *Directory) { from.Names = append(from.Names, name) }
}

// without lists a tensor no more.
func without(name string) change {
	return func(from *Directory) {
		from.Names = slices.DeleteFunc(from.Names, func(listed string) bool { return listed == name })
	}
}

// withTokenizer gives the directory a tokenizer.json.
func withTokenizer(text string) change {
	return func(from *Directory) { from.Tokenizer = []byte(text) }
}

// What a GGUF file of the architecture has no place for, or lacks, is refused by its key or its tensor.
func TestExportRefusesWhatHasNoForm(t *testing.T) {
	for name, test := range map[string]struct {
		model  string
		change change
		want   string
	}{
		"architecture": {
			model:  "llama",
			change: config("architectures", []any{"MambaForCausalLM"}),
			want:   `"architectures": [MambaForCausalLM] has no form in GGUF`,
		},
		"no architecture":   {"llama", config("architectures", nil), `"architectures"`},
		"no layers":         {"llama", config("num_hidden_layers", nil), `"num_hidden_layers": got <nil>`},
		"fractional layers": {"llama", config("num_hidden_layers", 1.5), "got 1.5, want an integer"},
		"activation":        {"llama", config("hidden_act", "relu"), `"hidden_act": "relu" has no form`},
		"rope type": {
			model:  "llama",
			change: rope(map[string]any{"rope_type": "dynamic", "factor": 2.0}),
			want:   `rope_type "dynamic" has no form`,
		},
		"rope without": {
			model:  "llama",
			change: rope(map[string]any{"rope_type": "linear"}),
			want:   "factor is <nil>, want a number",
		},
		"rope truncate null": {
			model:  "llama",
			change: rope(map[string]any{"rope_type": "yarn", "factor": 2.0, "truncate": nil}),
			want:   "truncate false",
		},
		"rope truncate": {
			model:  "llama",
			change: rope(map[string]any{"rope_type": "yarn", "factor": 2.0, "truncate": false}),
			want:   "truncate false",
		},
		"no window": {"gemma2", config("sliding_window", nil), "null has no form"},
		"rope part": {
			model:  "llama",
			change: config("partial_rotary_factor", 0.5),
			want:   "partial_rotary_factor 0.5 has no form",
		},
		"rope lists": {
			model: "llama",
			change: config("rope_scaling", map[string]any{
				"type":         "longrope",
				"long_factor":  []any{1.0},
				"short_factor": []any{1.0},
			}),
			want: "1 elements, want 8",
		},
		"rope scales": {"phimoe", ropeKey("long_mscale", 2.0), "differ, which has no form"},
		"soft cap": {
			model:  "llama",
			change: config("final_logit_softcapping", 30.0),
			want:   `"final_logit_softcapping": 30 has no form`,
		},
		"no soft cap": {
			model:  "gemma2",
			change: config("attn_logit_softcapping", nil),
			want:   `"attn_logit_softcapping": got <nil>, want a positive number`,
		},
		"untied gemma": {
			model:  "gemma",
			change: config("tie_word_embeddings", false),
			want:   `"tie_word_embeddings": false has no form`,
		},
		"dense layers": {
			model:  "qwen3_moe",
			change: config("mlp_only_layers", []any{int64(0)}),
			want:   `"mlp_only_layers": [0] has no form`,
		},
		"every other layer": {
			model:  "qwen2_moe",
			change: config("decoder_sparse_step", int64(2)),
			want:   `"decoder_sparse_step": 2 has no form`,
		},
		"layer types": {
			model:  "llama",
			change: config("layer_types", []any{"chunked_attention"}),
			want:   `"layer_types": "chunked_attention" has no form`,
		},
		"key norms": {"phi", config("qk_layernorm", true), `"qk_layernorm": true has no form`},
		"token id":  {"llama", config("eos_token_id", int64(tVocab)), "want token ids below vocab_size 40"},
		"four ends": {
			model:  "llama",
			change: config("eos_token_id", []any{int64(1), int64(2), int64(3), int64(4)}),
			want:   "4 tokens, but GGUF has room for 3",
		},
		"tensor missing": {
			model:  "llama",
			change: without("model.norm.weight"),
			want:   `tensor "model.norm.weight": missing, but a GGUF file of architecture llama has it`,
		},
		"head missing": {"llama", without("lm_head.weight"), `tensor "lm_head.weight": missing`},
		"expert missing": {
			model:  "mixtral",
			change: without("model.layers.1.block_sparse_moe.experts.2.w3.weight"),
			want:   "missing",
		},
		"tensor left": {
			model:  "qwen3",
			change: with("model.layers.0.self_attn.q_proj.bias"),
			want:   `tensor "model.layers.0.self_attn.q_proj.bias": has no place in a GGUF file of architecture qwen3`,
		},
		"tokenizer": {
			model:  "llama",
			change: withTokenizer(`{"model":{"type":"Unigram"}}`),
			want:   `tokenizer.json: model: "Unigram" is not supported`,
		},
		"tokenizer no JSON": {"llama", withTokenizer("{"), "tokenizer.json:"},
	} {
		from := directory(named(t, test.model))
		test.change(&from)
		err := Export(context.Background(), io.Discard, from, op.F16)
		if err == nil || !strings.Contains(err.Error(), test.want) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v\nwant %q", name, err, test.want)
		}
	}
	err := Export(context.Background(), io.Discard, directory(&architectures[0]), q4K)
	if diag.ClassOf(err) != diag.ClassUsage {
		t.Errorf("type q4_k: got %v, want a usage error", err)
	}
}

// metadata returns what a file of an architecture's model says after some changes, but for the values of tensors.
func metadata(t *testing.T, model string, changes ...change) string {
	t.Helper()
	from := directory(named(t, model))
	for _, change := range changes {
		change(&from)
	}
	meta, tensors, err := plan(&from, op.F32)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprint(meta)
	for _, tensor := range tensors {
		text += fmt.Sprint(tensor.Name, tensor.Type, tensor.Shape, " ")
	}
	return text
}

// missing removes a key of the configuration.
func missing(key string) change {
	return func(from *Directory) { delete(from.Config, key) }
}

// inHalves lists the rows of a tensor [64,tHidden] as two, the second half first.
func inHalves(whole string) change {
	return func(from *Directory) {
		without(whole)(from)
		from.Names = append(from.Names, whole+"[32:64]", whole+"[0:32]")
		inner := from.Tensor
		from.Tensor = func(name string) (Matrix, error) {
			base, part, some := strings.Cut(name, "[")
			tensor, err := inner(base)
			if !some {
				return tensor, err
			}
			first := map[string]int{"0:32]": 0, "32:64]": 32}[part]
			return rows{[]int{32, tHidden}, tensor.(rows).data[first*tHidden : (first+32)*tHidden]}, nil
		}
	}
}

// Configurations that say the same in other words give the same metadata.
func TestSpellingsOfAConfiguration(t *testing.T) {
	yarn := map[string]any{
		"type":                             "yarn",
		"factor":                           4.0,
		"original_max_position_embeddings": int64(32),
		"attention_factor":                 1.25,
		"beta_fast":                        16.0,
	}
	mistral := config("architectures", []any{"MistralForCausalLM"})
	windowed, window := config("use_sliding_window", true), config("sliding_window", int64(8))
	layers := config("layer_types", []any{"full_attention", "sliding_attention"})
	for name, test := range map[string]struct {
		model      string
		one, other []change
	}{
		"old rope": {
			model: "qwen3",
			other: []change{missing("rope_parameters"), config("rope_theta", 1e6), config("rope_scaling", yarn)},
		},
		"floats": {
			model: "llama",
			other: []change{config("num_hidden_layers", 2.0), config("eos_token_id", []any{2.0, 3.0})},
		},
		"experts": {
			model: "mixtral",
			other: []change{missing("num_local_experts"), config("num_experts", int64(tExperts))},
		},
		"gemma's tie": {model: "gemma", other: []change{missing("tie_word_embeddings")}},
		"phi's part":  {model: "phi", other: []change{missing("partial_rotary_factor")}},
		"caps": {
			model: "gemma2",
			one:   []change{config("attn_logit_softcapping", 50.0), config("final_logit_softcapping", 30.0)},
			other: []change{missing("attn_logit_softcapping"), missing("final_logit_softcapping")},
		},
		"mistral's size": {
			model: "llama",
			one:   []change{mistral},
			other: []change{mistral, config("sliding_window", int64(4096))},
		},
		"qwen's windows": {
			model: "qwen2",
			one:   []change{windowed, window, config("max_window_layers", int64(1))},
			other: []change{windowed, window, layers},
		},
		"qwen's no window": {
			model: "qwen2",
			other: []change{config("use_sliding_window", false), window},
		},
		"rows apart": {
			model: "phi3",
			other: []change{inHalves("model.layers.1.self_attn.qkv_proj.weight")},
		},
	} {
		one, other := metadata(t, test.model, test.one...), metadata(t, test.model, test.other...)
		if one != other {
			t.Errorf("%s:\n%s\n%s", name, one, other)
		}
	}
}
