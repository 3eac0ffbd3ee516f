package models

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/models/safetensors"
)

const archDir = "../testdata/arch"

// Every architecture has a row in docs/models.md, and a model in testdata/arch with the logits of another
// implementation. Two need no such model.
func TestEveryArchitectureIsCompared(t *testing.T) {
	page, err := os.ReadFile("../docs/models.md")
	if err != nil {
		t.Fatal(err)
	}
	compared := map[string]bool{
		"PhiMoEForCausalLM":    true, // another name of Phimoe
		"InternLM2ForCausalLM": true, // TestInternLM2IsALlama
	}
	files, err := filepath.Glob(filepath.Join(archDir, "*", configName))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		compared[classOf(t, file)] = true
	}
	for _, known := range architectures {
		if !compared[known.name] {
			t.Errorf("%s: no model in testdata/arch; make.py there writes one", known.name)
		}
		documented := slices.ContainsFunc(strings.Split(string(page), "\n"), func(line string) bool {
			return strings.HasPrefix(line, "| `") && strings.Contains(line, "`"+known.name+"`")
		})
		if !documented {
			t.Errorf("%s: no row in docs/models.md", known.name)
		}
	}
}

// classOf returns the architecture that a config.json names.
func classOf(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var config struct{ Architectures []string }
	if err := json.Unmarshal(data, &config); err != nil || len(config.Architectures) != 1 {
		t.Fatalf("%s: %v, %v", file, config.Architectures, err)
	}
	return config.Architectures[0]
}

// testdata/arch/index.json lists the models that are there.
func TestIndexOfArchitectures(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(archDir, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	var index []struct{ Name string }
	if err := json.Unmarshal(data, &index); err != nil {
		t.Fatal(err)
	}
	var listed, there []string
	for _, entry := range index {
		listed = append(listed, entry.Name)
	}
	files, err := filepath.Glob(filepath.Join(archDir, "*", configName))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		there = append(there, filepath.Base(filepath.Dir(file)))
	}
	slices.Sort(listed)
	if !slices.Equal(listed, there) {
		t.Errorf("got %q, want %q", listed, there)
	}
}

// InternLM2 has other names for Llama's tensors, and stores one projection fused: for each key head its query heads,
// the key and the value. transformers does not ship it, so it is compared with the Llama of the same values.
func TestInternLM2IsALlama(t *testing.T) {
	dir := filepath.Join(archDir, "llama-plain")
	llama, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer llama.Close()
	same, err := Open(asInternLM2(t, dir, llama))
	if err != nil {
		t.Fatal(err)
	}
	defer same.Close()

	got, want := same.Graph(), llama.Graph()
	if !reflect.DeepEqual(got.Sections, want.Sections) {
		t.Errorf("got sections %+v, want those of Llama %+v", got.Sections, want.Sections)
	}
	for i := range want.Weights {
		weight := &want.Weights[i]
		other := got.Weight(weight.Name)
		if other == nil {
			t.Fatalf("weight %q is missing", weight.Name)
		}
		for layer := range llama.Layers {
			if !slices.Equal(assemble(t, same, other, layer), assemble(t, llama, weight, layer)) {
				t.Errorf("weight %q of layer %d has other values", weight.Name, layer)
			}
		}
	}
}

// asInternLM2 writes a Llama of float32 as InternLM2 is published, and returns the directory.
func asInternLM2(t *testing.T, dir string, llama *Model) string {
	t.Helper()
	file, err := safetensors.Open(filepath.Join(dir, singleName))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	renamed := strings.NewReplacer("embed_tokens", "tok_embeddings", "lm_head", "output",
		"input_layernorm", "attention_norm", "post_attention_layernorm", "ffn_norm", "self_attn.o_proj", "attention.wo",
		"self_attn.q_proj", "attention.wqkv", "mlp.gate_proj", "feed_forward.w1", "mlp.up_proj", "feed_forward.w3",
		"mlp.down_proj", "feed_forward.w2")
	var tensors []safetensors.Tensor
	for _, name := range file.Names() {
		tensor, _ := file.Tensor(name)
		switch {
		case strings.Contains(name, "k_proj"), strings.Contains(name, "v_proj"):
			continue // in the fused one
		case strings.Contains(name, "q_proj"):
			key, _ := file.Tensor(strings.Replace(name, "q_proj", "k_proj", 1))
			value, _ := file.Tensor(strings.Replace(name, "q_proj", "v_proj", 1))
			head := 4 * llama.HeadDim * llama.Hidden // bytes of its rows
			group := llama.Heads / llama.KVHeads * head
			var fused []byte
			for i := range llama.KVHeads {
				fused = append(fused, tensor.Data[i*group:(i+1)*group]...)
				fused = append(fused, key.Data[i*head:(i+1)*head]...)
				fused = append(fused, value.Data[i*head:(i+1)*head]...)
			}
			tensor.Data, tensor.Shape = fused, []int{len(fused) / (4 * llama.Hidden), llama.Hidden}
		}
		tensor.Name = renamed.Replace(name)
		tensors = append(tensors, tensor)
	}
	out := t.TempDir()
	if err := safetensors.Write(filepath.Join(out, singleName), tensors, nil); err != nil {
		t.Fatal(err)
	}
	writeText(t, filepath.Join(out, configName), `{"architectures": ["InternLM2ForCausalLM"], "model_type": "internlm2",
		"hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 4,
		"num_key_value_heads": 2, "max_position_embeddings": 256, "vocab_size": 96, "rms_norm_eps": 1e-6,
		"rope_theta": 10000, "bias": false, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": false}`)
	return out
}
