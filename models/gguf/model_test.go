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
	"llama": {"attention_bias": true, "mlp_bias": true, "eos_token_id": []any{int64(2), int64(3)},
		"rope_parameters": map[string]any{"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": int64(8192)}},
	"mixtral": {"num_local_experts": int64(tExperts), "num_experts_per_tok": int64(2)},
	"qwen2":   {"tie_word_embeddings": true},
	"qwen3":   {"rope_parameters": map[string]any{"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": int64(32), "attention_factor": 1.25, "beta_fast": 16.0}},
	"qwen2_moe": {"num_experts": int64(tExperts), "num_experts_per_tok": int64(2), "moe_intermediate_size": int64(tExpertFFN),
		"shared_expert_intermediate_size": int64(tSharedFFN), "norm_topk_prob": true},
	"qwen3_moe": {"num_experts": int64(tExperts), "num_experts_per_tok": int64(2), "moe_intermediate_size": int64(tExpertFFN), "norm_topk_prob": true},
	"olmoe":     {"num_experts": int64(tExperts), "num_experts_per_tok": int64(2), "norm_topk_prob": false, "clip_qkv": 8.0},
	"phimoe": {"num_local_experts": int64(tExperts), "num_experts_per_tok": int64(2), "attention_bias": true, "lm_head_bias": true, "rope_parameters": map[string]any{
		"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": factors(1), "long_factor": factors(2), "short_mscale": 1.25, "long_mscale": 1.25,
		"attention_factor": 1.25, "original_max_position_embeddings": int64(32)}},
	"gemma":  {"tie_word_embeddings": true, "hidden_act": "gelu_pytorch_tanh"},
	"gemma2": {"tie_word_embeddings": true, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "sliding_window": int64(24), "query_pre_attn_scalar": int64(100), "attn_logit_softcapping": 40.0, "final_logit_softcapping": 20.0},
	"phi":    {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5},
	"phi3":   {"sliding_window": int64(24), "rope_parameters": map[string]any{"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
	"olmo2":  {"rms_norm_eps": 1e-5},
	"starcoder2": {"tie_word_embeddings": true, "hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-5, "use_bias": true,
		"sliding_window": int64(24), "layer_types": []any{"full_attention", "sliding_attention"}},
}

func factors(scale float64) []any {
	out := make([]any, tDim/2)
	for i := range out {
		out[i] = scale * (1 + float64(i)/8)
	}
	return out
}

// shapeOf is the shape of a tensor by the end of its Hugging Face name.
func shapeOf(model, name string) []int {
	q, kv := tHeads*tDim, tKV*tDim
	ffn := tFFN
	switch {
	case strings.Contains(name, ".shared_expert."):
		ffn = tSharedFFN
	case strings.Contains(name, ".experts.") && strings.HasPrefix(model, "qwen"):
		ffn = tExpertFFN
	}
	base, suffix := name[:strings.LastIndexByte(name, '.')], name[strings.LastIndexByte(name, '.')+1:]
	own := map[string][]int{
		"q_proj": {q, tHidden}, "k_proj": {kv, tHidden}, "v_proj": {kv, tHidden}, "qkv_proj": {q + 2*kv, tHidden}, "o_proj": {tHidden, q}, "dense": {tHidden, q},
		"gate_proj": {ffn, tHidden}, "up_proj": {ffn, tHidden}, "gate_up_proj": {2 * ffn, tHidden}, "w1": {ffn, tHidden}, "w3": {ffn, tHidden}, "fc1": {ffn, tHidden}, "c_fc": {ffn, tHidden},
		"down_proj": {tHidden, ffn}, "w2": {tHidden, ffn}, "fc2": {tHidden, ffn}, "c_proj": {tHidden, ffn},
		"gate": {tExperts, tHidden}, "shared_expert_gate": {1, tHidden}, "embed_tokens": {tVocab, tHidden}, "lm_head": {tVocab, tHidden},
		"q_norm": {q}, "k_norm": {kv},
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

// directory makes a model of an architecture with random values that every float type holds.
func directory(a *architecture) Directory {
	c := map[string]any{
		"architectures": []any{a.classes[0]}, "model_type": a.model, "hidden_size": int64(tHidden), "num_hidden_layers": int64(tLayers),
		"num_attention_heads": int64(tHeads), "num_key_value_heads": int64(tKV), "head_dim": int64(tDim), "intermediate_size": int64(tFFN),
		"vocab_size": int64(tVocab), "max_position_embeddings": int64(128), "bos_token_id": int64(1), "eos_token_id": int64(2),
		"rope_parameters": map[string]any{"rope_type": "default", "rope_theta": 10000.0}, "tie_word_embeddings": false,
	}
	if a.eps == "" {
		c["rms_norm_eps"] = 1e-6
	}
	for key, v := range configs[a.model] {
		if inner, ok := v.(map[string]any); ok {
			v = maps.Clone(inner)
		}
		c[key] = v
	}
	rng := rand.New(rand.NewPCG(1, 2))
	tensors := map[string]rows{}
	for _, p := range a.pairs {
		for l := range tLayers {
			for e := range tExperts {
				name := strings.NewReplacer("{l}", fmt.Sprint(l), "{e}", fmt.Sprint(e)).Replace(p.hf)
				if _, made := tensors[name]; made || name == "lm_head.weight" && c["tie_word_embeddings"] == true {
					continue
				}
				m := rows{shape: shapeOf(a.model, name)}
				n := 1
				for _, d := range m.shape {
					n *= d
				}
				for range n {
					m.data = append(m.data, float32(rng.IntN(255)-127)/64)
				}
				tensors[name] = m
			}
		}
	}
	return Directory{Name: "small " + a.model, Config: c, Names: slices.Sorted(maps.Keys(tensors)), Tensor: func(name string) (Matrix, error) {
		return tensors[name], nil
	}}
}

// exported is the file of an architecture's model.
func exported(t testing.TB, a *architecture, typ op.Type) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Export(context.Background(), &b, directory(a), typ); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// taken returns rows of m when name asks for some.
func taken(t *testing.T, d Directory, name string) (m Matrix, values []float32) {
	t.Helper()
	base, ranges, some := strings.Cut(name, "[")
	m, _ = d.Tensor(base)
	if m.Shape() == nil {
		t.Fatalf("tensor %q is not in the directory", base)
	}
	values = all(t, m)
	if !some {
		return m, values
	}
	var from, to int
	if _, err := fmt.Sscanf(ranges, "%d:%d]", &from, &to); err != nil {
		t.Fatal(err)
	}
	cols := m.Shape()[1]
	return rows{shape: []int{to - from, cols}}, values[from*cols : to*cols]
}

// What is exported comes back: every architecture's configuration, and every value as its stored type
// rounds it. Files of float types hold the values themselves, twice the same bytes.
func TestEveryArchitectureRoundTrips(t *testing.T) {
	for i := range architectures {
		a := &architectures[i]
		if a.name == "internlm2" {
			continue // read only, below
		}
		for _, typ := range []op.Type{op.F32, op.F16, op.BF16, q8_0, q4_0} {
			t.Run(a.model+"/"+string(typ), func(t *testing.T) {
				d := directory(a)
				b := exported(t, a, typ)
				if !bytes.Equal(b, exported(t, a, typ)) {
					t.Error("two runs write different bytes")
				}
				f, err := parse(b)
				if err != nil {
					t.Fatal(err)
				}
				m, err := f.Model()
				if err != nil {
					t.Fatal(err)
				}
				if m.Name != d.Name || len(m.Unread) != 0 {
					t.Errorf("got name %q, unread keys %q", m.Name, m.Unread)
				}
				for key, want := range d.Config {
					if key == "tie_word_embeddings" && a.ownHead {
						continue
					}
					if got := m.Config[key]; fmt.Sprintf("%T %v", got, got) != fmt.Sprintf("%T %v", want, want) {
						t.Errorf("%s: got %T %v, want %T %v", key, got, got, want, want)
					}
				}
				covered := map[string]bool{}
				for name, v := range m.Tensors {
					want, values := taken(t, d, name)
					base, _, _ := strings.Cut(name, "[")
					covered[base] = true
					if !slices.Equal(v.Shape(), want.Shape()) {
						t.Errorf("%s: got shape %v, want %v", name, v.Shape(), want.Shape())
						continue
					}
					stored := typ
					if len(v.Shape()) == 1 || strings.Contains(name, "gate.weight") && !strings.Contains(name, "proj") {
						stored = op.F32
					}
					if v.Type() != stored {
						t.Errorf("%s: got type %s, want %s", name, v.Type(), stored)
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
					if got := all(t, v); !sameBits(got, rounded) {
						t.Errorf("%s: other values", name)
					}
					if plain, ok := v.Plain(); ok != (v.Form() == "" && layouts[stored].block == 1) || ok && !bytes.Equal(plain, blocks) {
						t.Errorf("%s: plain %v for form %q, or other bytes", name, ok, v.Form())
					}
					if len(v.Data()) != len(blocks) {
						t.Errorf("%s: %d stored bytes, want %d", name, len(v.Data()), len(blocks))
					}
				}
				for _, name := range d.Names {
					if !covered[name] {
						t.Errorf("%s is lost", name)
					}
				}
			})
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

// rewritten writes an architecture's file after change had its way with it.
func rewritten(t *testing.T, model string, change func(meta *[]keyValue, tensors *[]tensorSource)) *File {
	t.Helper()
	for i := range architectures {
		a := &architectures[i]
		if a.model != model {
			continue
		}
		d := directory(a)
		meta, tensors, err := plan(&d, op.F32)
		if err != nil {
			t.Fatal(err)
		}
		change(&meta, &tensors)
		return written(t, func(w io.Writer) error { return writeFile(context.Background(), w, meta, tensors) })
	}
	t.Fatalf("no architecture %q", model)
	return nil
}

func set(key string, v any) func(*[]keyValue, *[]tensorSource) {
	return func(meta *[]keyValue, _ *[]tensorSource) {
		for i := range *meta {
			if (*meta)[i].Key == key {
				(*meta)[i].Value = v
				return
			}
		}
		*meta = append(*meta, keyValue{key, v})
	}
}

func unset(key string) func(*[]keyValue, *[]tensorSource) {
	return func(meta *[]keyValue, _ *[]tensorSource) {
		*meta = slices.DeleteFunc(*meta, func(kv keyValue) bool { return kv.Key == key })
	}
}

// fuse joins the rows of several tensors to one.
func fuse(name string, parts ...string) func(*[]keyValue, *[]tensorSource) {
	return func(_ *[]keyValue, tensors *[]tensorSource) {
		var from []tensorSource
		for _, p := range parts {
			i := slices.IndexFunc(*tensors, func(s tensorSource) bool { return s.Name == p })
			from = append(from, (*tensors)[i])
			*tensors = slices.Delete(*tensors, i, i+1)
		}
		s := from[0]
		s.Name, s.Shape = name, slices.Clone(s.Shape)
		last := len(s.Shape) - 2
		if last < 0 { // vectors
			n := 0
			for _, p := range from {
				n += p.Shape[0]
			}
			s.Shape = []int{n}
			s.Row = func(dst []float32, _ int) error {
				for _, p := range from {
					if err := p.Row(dst[:p.Shape[0]], 0); err != nil {
						return err
					}
					dst = dst[p.Shape[0]:]
				}
				return nil
			}
			*tensors = append(*tensors, s)
			return
		}
		s.Shape[last] = 0
		for _, p := range from {
			s.Shape[last] += p.Shape[last]
		}
		s.Row = func(dst []float32, r int) error {
			each := r / s.Shape[last] // the expert
			r %= s.Shape[last]
			for _, p := range from {
				if r < p.Shape[last] {
					return p.Row(dst, each*p.Shape[last]+r)
				}
				r -= p.Shape[last]
			}
			panic("no such row")
		}
		*tensors = append(*tensors, s)
	}
}

// Projections that converters may store as one tensor are views of it.
func TestFusedTensorsAreTakenApart(t *testing.T) {
	for _, c := range []struct {
		model  string
		change []func(*[]keyValue, *[]tensorSource)
	}{
		{"llama", []func(*[]keyValue, *[]tensorSource){fuse("blk.1.attn_qkv.weight", "blk.1.attn_q.weight", "blk.1.attn_k.weight", "blk.1.attn_v.weight"),
			fuse("blk.1.attn_qkv.bias", "blk.1.attn_q.bias", "blk.1.attn_k.bias", "blk.1.attn_v.bias")}},
		{"phi", []func(*[]keyValue, *[]tensorSource){fuse("blk.0.attn_qkv.weight", "blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"),
			fuse("blk.0.attn_qkv.bias", "blk.0.attn_q.bias", "blk.0.attn_k.bias", "blk.0.attn_v.bias")}},
		{"qwen2_moe", []func(*[]keyValue, *[]tensorSource){fuse("blk.1.ffn_gate_up_exps.weight", "blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight")}},
		{"mixtral", []func(*[]keyValue, *[]tensorSource){fuse("blk.0.ffn_gate_up_exps.weight", "blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight")}},
	} {
		f := rewritten(t, c.model, func(meta *[]keyValue, tensors *[]tensorSource) {
			for _, change := range c.change {
				change(meta, tensors)
			}
		})
		m, err := f.Model()
		if err != nil {
			t.Errorf("%s: %v", c.model, err)
			continue
		}
		i := slices.IndexFunc(architectures, func(a architecture) bool { return a.model == c.model })
		d := directory(&architectures[i])
		for _, name := range d.Names {
			want, values := taken(t, d, name)
			if v := m.Tensors[name]; !slices.Equal(v.Shape(), want.Shape()) || !sameBits(all(t, v), values) {
				t.Errorf("%s: %s has shape %v or other values", c.model, name, v.Shape())
			}
		}
	}
}

// A file made by another writer's rules is read as the model it was made of.
func TestConvertedLlama(t *testing.T) {
	f := open(t, "testdata/llama.gguf")
	m, err := f.Model()
	if err != nil {
		t.Fatal(err)
	}
	want, err := safetensors.Open("testdata/llama.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer want.Close()
	for _, name := range want.Names() {
		x, _ := want.Tensor(name)
		values := make([]float32, len(x.Data)/2)
		if err := x.Floats(values, 0); err != nil {
			t.Fatal(err)
		}
		if v, ok := m.Tensors[name]; !ok || !slices.Equal(v.Shape(), x.Shape) || !sameBits(all(t, v), values) {
			t.Errorf("%s: got shape %v or other values", name, v.Shape())
		}
	}
	if len(m.Tensors) != len(want.Names()) || m.Name != "small" || len(m.Unread) != 0 {
		t.Errorf("got %d tensors, name %q, unread %q", len(m.Tensors), m.Name, m.Unread)
	}
	for key, want := range map[string]any{
		"architectures": "[LlamaForCausalLM]", "attention_bias": true, "mlp_bias": false, "tie_word_embeddings": false, "vocab_size": 40, "head_dim": 16,
		"rms_norm_eps": 1e-05, "bos_token_id": 1, "eos_token_id": "[2 3]",
		"rope_parameters": "map[factor:8 high_freq_factor:4 low_freq_factor:1 original_max_position_embeddings:8192 rope_theta:500000 rope_type:llama3]",
	} {
		if got := fmt.Sprint(m.Config[key]); got != fmt.Sprint(want) {
			t.Errorf("%s: got %s, want %v", key, got, want)
		}
	}
	if tokenizer, _, err := f.Tokenizer(); tokenizer != nil || err != nil {
		t.Errorf("a file without tokenizer gives %d bytes, %v", len(tokenizer), err)
	}
	q := m.Tensors["model.layers.0.self_attn.q_proj.weight"]
	got := make([]float32, 3*5)
	if err := q.Read(got, 7, 10, 11, 16); err != nil {
		t.Fatal(err)
	}
	whole := all(t, q)
	for r := range 3 {
		if !sameBits(got[5*r:5*r+5], whole[(7+r)*16+11:(7+r)*16+16]) {
			t.Errorf("row %d of a range differs", 7+r)
		}
	}
	if err := q.Read(got, 0, 33, 0, 16); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("too many rows: got %v", err)
	}
	if _, err := q.Rows(0, 1); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("rows of rotary pairs: got %v", err)
	}
}

// Configurations that only some files have.
func TestMetadataInOtherForms(t *testing.T) {
	const llama, qwen = "llama", "qwen2_moe"
	all := func(changes ...func(*[]keyValue, *[]tensorSource)) func(*[]keyValue, *[]tensorSource) {
		return func(meta *[]keyValue, tensors *[]tensorSource) {
			for _, c := range changes {
				c(meta, tensors)
			}
		}
	}
	freqs := func(values ...float32) func(*[]keyValue, *[]tensorSource) {
		return func(_ *[]keyValue, tensors *[]tensorSource) {
			*tensors = slices.DeleteFunc(*tensors, func(s tensorSource) bool { return s.Name == ropeFreqs })
			if values != nil {
				*tensors = append(*tensors, tensorSource{ropeFreqs, op.F32, []int{len(values)}, func(dst []float32, _ int) error { copy(dst, values); return nil }})
			}
		}
	}
	unbiased := func(_ *[]keyValue, tensors *[]tensorSource) {
		*tensors = slices.DeleteFunc(*tensors, func(s tensorSource) bool { return strings.HasSuffix(s.Name, ".bias") })
	}
	for name, c := range map[string]struct {
		model  string
		change func(*[]keyValue, *[]tensorSource)
		key    string
		want   any
	}{
		"mistral":          {llama, set("llama.attention.sliding_window", uint32(16)), "architectures", "[MistralForCausalLM]"},
		"window":           {llama, set("llama.attention.sliding_window", uint32(16)), "sliding_window", 16},
		"layer pattern":    {"gemma2", set("gemma2.attention.sliding_window_pattern", []bool{false, true}), "layer_types", "[full_attention sliding_attention]"},
		"layer rounds":     {"gemma2", set("gemma2.attention.sliding_window_pattern", uint32(1)), "layer_types", "[full_attention full_attention]"},
		"own scalar":       {"gemma2", unset("gemma2.attention.scale"), "query_pre_attn_scalar", tDim},
		"qwen window":      {"qwen2", set("qwen2.attention.sliding_window", uint32(16)), "use_sliding_window", true},
		"heads by layer":   {llama, set("llama.attention.head_count_kv", []int32{1, 1}), "num_key_value_heads", 1},
		"norm of weights":  {qwen, unset("qwen2moe.expert_weights_norm"), "norm_topk_prob", false},
		"biases":           {qwen, all(), "qkv_bias", true},
		"no biases":        {qwen, unbiased, "qkv_bias", false},
		"qwen3 norm":       {"qwen3_moe", set("qwen3moe.expert_weights_norm", false), "norm_topk_prob", false},
		"expert width":     {qwen, unset("qwen2moe.expert_feed_forward_length"), "moe_intermediate_size", tExpertFFN},
		"shared width":     {qwen, unset("qwen2moe.expert_shared_feed_forward_length"), "shared_expert_intermediate_size", tSharedFFN},
		"no begin":         {llama, unset("tokenizer.ggml.bos_token_id"), "bos_token_id", nil},
		"begin outside":    {llama, set("tokenizer.ggml.bos_token_id", uint32(tVocab)), "bos_token_id", nil},
		"padding":          {llama, set("tokenizer.ggml.padding_token_id", uint32(5)), "pad_token_id", 5},
		"no factors":       {llama, freqs(), "rope_parameters", "map[rope_theta:500000 rope_type:default]"},
		"factors of 1":     {llama, freqs(1, 1, 1, 1, 1, 1, 1, 1), "rope_parameters", "map[rope_theta:500000 rope_type:default]"},
		"other factors":    {llama, freqs(1, 1, 1, 1, 1, 1, 2, 3), "rope_parameters", "map[attention_factor:1 long_factor:[1 1 1 1 1 1 2 3] original_max_position_embeddings:128 rope_theta:500000 rope_type:longrope short_factor:[1 1 1 1 1 1 2 3]]"},
		"old linear":       {"qwen2", set("qwen2.rope.scale_linear", float32(4)), "rope_parameters", "map[factor:4 rope_theta:10000 rope_type:linear]"},
		"linear":           {"qwen2", set("qwen2.rope.scaling.factor", float32(4)), "rope_parameters", "map[factor:4 rope_theta:10000 rope_type:linear]"},
		"linear of 1":      {"qwen2", set("qwen2.rope.scaling.factor", float32(1)), "rope_parameters", "map[rope_theta:10000 rope_type:default]"},
		"switched off":     {"qwen3", all(set("qwen3.rope.scaling.type", "none"), unset("qwen3.rope.scaling.attn_factor")), "rope_parameters", "map[rope_theta:1e+06 rope_type:default]"},
		"converter's yarn": {"qwen3", all(unset("qwen3.rope.scaling.attn_factor"), unset("qwen3.rope.scaling.yarn_beta_fast"), set("qwen3.rope.scaling.yarn_attn_factor", float32(1.5))), "rope_parameters", "map[attention_factor:1.5 factor:4 original_max_position_embeddings:32 rope_theta:1e+06 rope_type:yarn]"},
		"no scale":         {"phimoe", unset("phimoe.rope.scaling.attn_factor"), "rope_parameters", nil},
	} {
		m, err := rewritten(t, c.model, c.change).Model()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := fmt.Sprint(m.Config[c.key]); c.want != nil && got != fmt.Sprint(c.want) || c.want == nil && c.key != "rope_parameters" && m.Config[c.key] != nil {
			t.Errorf("%s: got %s, want %v", name, got, c.want)
		}
	}
	m, err := rewritten(t, llama, set("llama.new_key", uint32(1))).Model()
	if err != nil || fmt.Sprint(m.Unread) != "[llama.new_key]" {
		t.Errorf("an unknown key: unread %q, %v", m.Unread, err)
	}
	// InternLM2 is stored like Llama and read as one.
	f := rewritten(t, llama, func(meta *[]keyValue, tensors *[]tensorSource) {
		for i := range *meta {
			if kv := &(*meta)[i]; kv.Key == "general.architecture" {
				kv.Value = "internlm2"
			} else {
				kv.Key = strings.Replace(kv.Key, "llama.", "internlm2.", 1)
			}
		}
		*tensors = slices.DeleteFunc(*tensors, func(s tensorSource) bool { return strings.HasSuffix(s.Name, "bias") })
	})
	if m, err := f.Model(); err != nil || fmt.Sprint(m.Config["architectures"]) != "[LlamaForCausalLM]" || m.Tensors["model.layers.1.self_attn.k_proj.weight"].Form() != "rotary-pairs/1" {
		t.Errorf("internlm2: %v, %v", m, err)
	}
}

func TestModelsThatCannotBeRepresentedAreRefused(t *testing.T) {
	add := func(name string, shape ...int) func(*[]keyValue, *[]tensorSource) {
		return func(_ *[]keyValue, tensors *[]tensorSource) {
			*tensors = append(*tensors, tensorSource{name, op.F32, shape, func(dst []float32, _ int) error { clear(dst); return nil }})
		}
	}
	replace := func(name string, shape ...int) func(*[]keyValue, *[]tensorSource) {
		return func(meta *[]keyValue, tensors *[]tensorSource) {
			*tensors = slices.DeleteFunc(*tensors, func(s tensorSource) bool { return s.Name == name })
			add(name, shape...)(meta, tensors)
		}
	}
	for name, c := range map[string]struct {
		model  string
		change func(*[]keyValue, *[]tensorSource)
		want   string
	}{
		"no architecture":     {"llama", unset("general.architecture"), `"general.architecture": missing`},
		"architecture":        {"llama", set("general.architecture", "mamba"), `"general.architecture": "mamba" is not supported`},
		"architecture number": {"llama", set("general.architecture", uint32(7)), `"general.architecture": 7 is not supported`},
		"experts missing":     {"qwen2_moe", unset("qwen2moe.expert_count"), `"qwen2moe.expert_count": missing`},
		"experts in a dense":  {"qwen2", set("qwen2.expert_count", uint32(4)), `"qwen2.expert_count": 4 experts are not supported`},
		"no layers":           {"llama", unset("llama.block_count"), `"llama.block_count": missing, want an integer in 1..4096`},
		"many layers":         {"llama", set("llama.block_count", uint32(1<<31)), `"llama.block_count": got 2147483648, want an integer in 1..4096`},
		"heads of 0":          {"llama", set("llama.attention.head_count", uint32(0)), `"llama.attention.head_count": got 0`},
		"heads of text":       {"llama", set("llama.attention.head_count", "four"), `got "four", want an integer`},
		"heads differ":        {"llama", set("llama.attention.head_count_kv", []int32{2, 1}), "differs between layers"},
		"heads of no layers":  {"llama", set("llama.attention.head_count_kv", []int32{}), "got an empty list"},
		"values":              {"llama", set("llama.attention.value_length", uint32(8)), `"llama.attention.value_length": 8 is not supported`},
		"epsilon":             {"llama", set("llama.attention.layer_norm_rms_epsilon", float32(2)), "want a number from 0 to 1"},
		"no epsilon":          {"llama", unset("llama.attention.layer_norm_rms_epsilon"), "missing"},
		"partial rotation":    {"llama", set("llama.rope.dimension_count", uint32(8)), `"llama.rope.dimension_count": 8 is not supported`},
		"windowed heads":      {"gemma2", set("gemma2.attention.key_length_swa", uint32(4)), `"gemma2.attention.key_length_swa": 4 is not supported`},
		"windowed values":     {"gemma2", set("gemma2.attention.value_length_swa", uint32(4)), `"gemma2.attention.value_length_swa": 4 is not supported`},
		"windowed rotation":   {"gemma2", set("gemma2.rope.dimension_count_swa", uint32(4)), `"gemma2.rope.dimension_count_swa": 4 is not supported`},
		"values scaled":       {"llama", set("llama.attention.value_scale", float32(0.5)), `"llama.attention.value_scale": 0.5 is not supported`},
		"router capped":       {"mixtral", set("llama.router_logit_softcapping", float32(5)), `"llama.router_logit_softcapping": 5 is not supported`},
		"no window":           {"gemma2", set("gemma2.attention.sliding_window", uint32(0)), `"gemma2.attention.sliding_window": got 0, want an integer in 1..`},
		"rope type":           {"llama", set("llama.rope.scaling.type", "ntk"), `"llama.rope.scaling.type": "ntk" is not supported`},
		"attention unscaled":  {"qwen3", set("qwen3.rope.scaling.type", "none"), `"qwen3.rope.scaling.attn_factor": `},
		"attention of yarn 1": {"qwen3", set("qwen3.rope.scaling.factor", float32(1)), "is not supported without scaling by yarn or longrope"},
		"attention of linear": {"qwen2", set("qwen2.rope.scaling.attn_factor", float32(2)), `"qwen2.rope.scaling.attn_factor": 2 is not supported`},
		"rope and factors":    {"llama", set("llama.rope.scaling.factor", float32(2)), "beside other scaling"},
		"factors too many":    {"llama", replace(ropeFreqs, tDim), `tensor "rope_freqs.weight": shape [16], want [8]`},
		"factors of 0":        {"llama", replace(ropeFreqs, tDim/2), "element 0 is 0, want a positive number"},
		"only long factors": {"phimoe", func(_ *[]keyValue, s *[]tensorSource) {
			*s = slices.DeleteFunc(*s, func(s tensorSource) bool { return s.Name == ropeShort })
		}, "belong together"},
		"yarn extension": {"qwen3", set("qwen3.rope.scaling.yarn_ext_factor", float32(0.5)), "yarn_ext_factor"},
		"vocabulary":     {"llama", set("llama.vocab_size", uint32(41)), `"llama.vocab_size": 41, but tensor "token_embd.weight" has 40 rows`},
		"some biases": {"llama", func(_ *[]keyValue, s *[]tensorSource) {
			*s = slices.DeleteFunc(*s, func(s tensorSource) bool { return s.Name == "blk.0.attn_output.bias" })
		}, "bias in some projections"},
		"soft cap":          {"llama", set("llama.attn_logit_softcapping", float32(30)), `"llama.attn_logit_softcapping": 30 is not supported`},
		"scale":             {"llama", set("llama.attention.scale", float32(0.5)), `"llama.attention.scale": 0.5 is not supported`},
		"logit scale":       {"llama", set("llama.logit_scale", float32(0.5)), `"llama.logit_scale"`},
		"not causal":        {"llama", set("llama.attention.causal", false), `"llama.attention.causal": false is not supported`},
		"router":            {"mixtral", set("llama.expert_gating_func", uint32(2)), `"llama.expert_gating_func": 2 is not supported; supported: 1`},
		"router weights":    {"mixtral", set("llama.expert_weights_norm", false), "expert_weights_norm"},
		"router scale":      {"qwen3_moe", set("qwen3moe.expert_weights_scale", float32(2.5)), "expert_weights_scale"},
		"window pattern":    {"gemma2", set("gemma2.attention.sliding_window_pattern", []bool{true}), "want a bool for each of 2 layers"},
		"olmo3":             {"olmo2", set("olmo2.attention.sliding_window", uint32(4)), "Olmo 3"},
		"unknown tensor":    {"llama", add("blk.0.attn_sinks.weight", 4), `tensor "blk.0.attn_sinks.weight": has no meaning in architecture llama`},
		"more layers":       {"llama", add("blk.2.attn_norm.weight", tHidden), `with 2 layers`},
		"old experts":       {"mixtral", add("blk.0.ffn_gate.0.weight", tFFN, tHidden), "has no meaning"},
		"expert count":      {"mixtral", replace("blk.0.ffn_gate_exps.weight", tExperts+1, tFFN, tHidden), "want one matrix for each of 3 experts"},
		"experts flat":      {"mixtral", replace("blk.0.ffn_gate_exps.weight", tFFN, tHidden), "want one matrix for each of 3 experts"},
		"odd heads":         {"llama", replace("blk.0.attn_q.weight", 6, tHidden), "want an even number for each of 2 heads"},
		"a norm as matrix":  {"llama", replace("output_norm.weight", 2, tHidden), "want a vector"},
		"a matrix as stack": {"llama", replace("output.weight", 2, tVocab, tHidden), "want a matrix"},
		"fused too short": {"llama", func(m *[]keyValue, s *[]tensorSource) {
			fuse("blk.0.attn_qkv.weight", "blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight")(m, s)
			replace("blk.0.attn_qkv.weight", (tHeads+tKV)*tDim+1, tHidden)(m, s)
		}, "want 64 rows"},
		"fused too long": {"llama", func(m *[]keyValue, s *[]tensorSource) {
			fuse("blk.0.attn_qkv.weight", "blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight")(m, s)
			replace("blk.0.attn_qkv.weight", (tHeads+2*tKV)*tDim+1, tHidden)(m, s)
		}, "want 64 rows"},
		"fused bias too long": {"llama", func(m *[]keyValue, s *[]tensorSource) {
			fuse("blk.0.attn_qkv.bias", "blk.0.attn_q.bias", "blk.0.attn_k.bias", "blk.0.attn_v.bias")(m, s)
			replace("blk.0.attn_qkv.bias", (tHeads+2*tKV)*tDim+1)(m, s)
		}, "want a vector of 64"},
		"fused experts too long": {"mixtral", func(m *[]keyValue, s *[]tensorSource) {
			fuse("blk.0.ffn_gate_up_exps.weight", "blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight")(m, s)
			replace("blk.0.ffn_gate_up_exps.weight", tExperts, 2*tFFN+1, tHidden)(m, s)
		}, "want 128 rows"},
		"projections too long": {"phi3", replace("blk.0.attn_qkv.weight", (tHeads+2*tKV)*tDim+1, tHidden), "got 65 rows, want 64"},
	} {
		_, err := rewritten(t, c.model, c.change).Model()
		if err == nil || !strings.Contains(err.Error(), c.want) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v\nwant %q", name, err, c.want)
		}
	}
}

func TestExportRefusesWhatHasNoForm(t *testing.T) {
	for name, c := range map[string]struct {
		model  string
		change func(d *Directory)
		want   string
	}{
		"architecture":       {"llama", config("architectures", []any{"MambaForCausalLM"}), `"architectures": [MambaForCausalLM] has no form in GGUF`},
		"no architecture":    {"llama", config("architectures", nil), `"architectures"`},
		"no layers":          {"llama", config("num_hidden_layers", nil), `"num_hidden_layers": got <nil>`},
		"fractional layers":  {"llama", config("num_hidden_layers", 1.5), "got 1.5, want an integer"},
		"activation":         {"llama", config("hidden_act", "relu"), `"hidden_act": "relu" has no form`},
		"rope type":          {"llama", config("rope_parameters", map[string]any{"rope_type": "dynamic", "factor": 2.0}), `rope_type "dynamic" has no form`},
		"rope without":       {"llama", config("rope_parameters", map[string]any{"rope_type": "linear"}), "factor is <nil>, want a number"},
		"rope truncate null": {"llama", config("rope_parameters", map[string]any{"rope_type": "yarn", "factor": 2.0, "truncate": nil}), "truncate false"},
		"rope truncate":      {"llama", config("rope_parameters", map[string]any{"rope_type": "yarn", "factor": 2.0, "truncate": false}), "truncate false"},
		"no window":          {"gemma2", config("sliding_window", nil), "null has no form"},
		"rope part":          {"llama", config("partial_rotary_factor", 0.5), "partial_rotary_factor 0.5 has no form"},
		"rope lists":         {"llama", config("rope_scaling", map[string]any{"type": "longrope", "long_factor": []any{1.0}, "short_factor": []any{1.0}}), "1 elements, want 8"},
		"rope scales": {"phimoe", func(d *Directory) {
			maps.Copy(d.Config["rope_parameters"].(map[string]any), map[string]any{"long_mscale": 2.0})
		}, "differ, which has no form"},
		"soft cap":          {"llama", config("final_logit_softcapping", 30.0), `"final_logit_softcapping": 30 has no form`},
		"no soft cap":       {"gemma2", config("attn_logit_softcapping", nil), `"attn_logit_softcapping": got <nil>, want a positive number`},
		"untied gemma":      {"gemma", config("tie_word_embeddings", false), `"tie_word_embeddings": false has no form`},
		"dense layers":      {"qwen3_moe", config("mlp_only_layers", []any{int64(0)}), `"mlp_only_layers": [0] has no form`},
		"every other layer": {"qwen2_moe", config("decoder_sparse_step", int64(2)), `"decoder_sparse_step": 2 has no form`},
		"layer types":       {"llama", config("layer_types", []any{"chunked_attention"}), `"layer_types": "chunked_attention" has no form`},
		"key norms":         {"phi", config("qk_layernorm", true), `"qk_layernorm": true has no form`},
		"token id":          {"llama", config("eos_token_id", int64(tVocab)), "want token ids below vocab_size 40"},
		"four ends":         {"llama", config("eos_token_id", []any{int64(1), int64(2), int64(3), int64(4)}), "4 tokens, but GGUF has room for 3"},
		"tensor missing":    {"llama", without("model.norm.weight"), `tensor "model.norm.weight": missing, but a GGUF file of architecture llama has it`},
		"head missing":      {"llama", without("lm_head.weight"), `tensor "lm_head.weight": missing`},
		"expert missing":    {"mixtral", without("model.layers.1.block_sparse_moe.experts.2.w3.weight"), "missing"},
		"tensor left":       {"qwen3", func(d *Directory) { d.Names = append(d.Names, "model.layers.0.self_attn.q_proj.bias") }, `tensor "model.layers.0.self_attn.q_proj.bias": has no place in a GGUF file of architecture qwen3`},
		"tokenizer":         {"llama", func(d *Directory) { d.Tokenizer = []byte(`{"model":{"type":"Unigram"}}`) }, `tokenizer.json: model: "Unigram" is not supported`},
		"tokenizer no JSON": {"llama", func(d *Directory) { d.Tokenizer = []byte(`{`) }, "tokenizer.json:"},
	} {
		i := slices.IndexFunc(architectures, func(a architecture) bool { return a.model == c.model })
		d := directory(&architectures[i])
		c.change(&d)
		err := Export(context.Background(), io.Discard, d, op.F16)
		if err == nil || !strings.Contains(err.Error(), c.want) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v\nwant %q", name, err, c.want)
		}
	}
	if err := Export(context.Background(), io.Discard, directory(&architectures[0]), q4K); diag.ClassOf(err) != diag.ClassUsage {
		t.Errorf("type q4_k: got %v", err)
	}
}

func config(key string, v any) func(*Directory) {
	return func(d *Directory) { d.Config[key] = v }
}

func without(name string) func(*Directory) {
	return func(d *Directory) { d.Names = slices.DeleteFunc(d.Names, func(n string) bool { return n == name }) }
}

// Configurations that say the same in other words give the same metadata.
func TestSpellingsOfAConfiguration(t *testing.T) {
	metadata := func(model string, changes ...func(*Directory)) string {
		i := slices.IndexFunc(architectures, func(a architecture) bool { return a.model == model })
		d := directory(&architectures[i])
		for _, c := range changes {
			c(&d)
		}
		meta, tensors, err := plan(&d, op.F32)
		if err != nil {
			t.Fatal(err)
		}
		names := ""
		for _, s := range tensors {
			names += fmt.Sprint(s.Name, s.Type, s.Shape, " ")
		}
		return fmt.Sprint(meta, names)
	}
	drop := func(key string) func(*Directory) { return func(d *Directory) { delete(d.Config, key) } }
	for name, c := range map[string][2]string{
		"old rope": {metadata("qwen3"), metadata("qwen3", drop("rope_parameters"), config("rope_theta", 1e6), config("rope_scaling",
			map[string]any{"type": "yarn", "factor": 4.0, "original_max_position_embeddings": int64(32), "attention_factor": 1.25, "beta_fast": 16.0}))},
		"floats":         {metadata("llama"), metadata("llama", config("num_hidden_layers", 2.0), config("eos_token_id", []any{2.0, 3.0}))},
		"experts":        {metadata("mixtral"), metadata("mixtral", drop("num_local_experts"), config("num_experts", int64(tExperts)))},
		"gemma's tie":    {metadata("gemma"), metadata("gemma", drop("tie_word_embeddings"))},
		"phi's part":     {metadata("phi"), metadata("phi", drop("partial_rotary_factor"))},
		"caps":           {metadata("gemma2", config("attn_logit_softcapping", 50.0), config("final_logit_softcapping", 30.0)), metadata("gemma2", drop("attn_logit_softcapping"), drop("final_logit_softcapping"))},
		"mistral's size": {metadata("llama", config("architectures", []any{"MistralForCausalLM"})), metadata("llama", config("architectures", []any{"MistralForCausalLM"}), config("sliding_window", int64(4096)))},
		"qwen's windows": {metadata("qwen2", config("use_sliding_window", true), config("sliding_window", int64(8)), config("max_window_layers", int64(1))),
			metadata("qwen2", config("use_sliding_window", true), config("sliding_window", int64(8)), config("layer_types", []any{"full_attention", "sliding_attention"}))},
		"qwen's no window": {metadata("qwen2"), metadata("qwen2", config("use_sliding_window", false), config("sliding_window", int64(8)))},
		"rows apart": {metadata("phi3"), metadata("phi3", func(d *Directory) {
			whole := "model.layers.1.self_attn.qkv_proj.weight"
			without(whole)(d)
			d.Names = append(d.Names, whole+"[32:64]", whole+"[0:32]")
			inner := d.Tensor
			d.Tensor = func(name string) (Matrix, error) {
				base, r, some := strings.Cut(name, "[")
				m, err := inner(base)
				if !some {
					return m, err
				}
				x := m.(rows)
				from := map[string]int{"0:32]": 0, "32:64]": 32}[r]
				return rows{[]int{32, tHidden}, x.data[from*tHidden : (from+32)*tHidden]}, nil
			}
		})},
	} {
		if c[0] != c[1] {
			t.Errorf("%s:\n%s\n%s", name, c[0], c[1])
		}
	}
}
