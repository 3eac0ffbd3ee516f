package models_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/hetc/hetc/models"
)

func TestFolds(t *testing.T) {
	for _, test := range []struct {
		model string
		want  []string // name, channels, divided, multiplied
	}{
		{"llama-plain", []string{
			"layers.attn_norm 32 [{layers.attn_norm 0}] [layers.qkv] [layers.qkv]",
			"layers.ffn_norm 32 [{layers.ffn_norm 0}] [layers.ffn_gate_up] [layers.ffn_gate_up]",
			"layers.ffn_gate_up 44 [{layers.ffn_gate_up 1}] [layers.ffn_down] [layers.ffn_down]",
			"head.norm 32 [{head.norm 0}] [head.lm_head] [head.lm_head]",
		}},
		{"llama-mlp-bias", []string{ // the bias of up is divided with it
			"layers.attn_norm 32 [{layers.attn_norm 0}] [layers.qkv] [layers.qkv]",
			"layers.ffn_norm 32 [{layers.ffn_norm 0}] [layers.ffn_gate_up] [layers.ffn_gate_up]",
			"layers.ffn_gate_up 44 [{layers.ffn_gate_up 1} {layers.ffn_gate_up_bias 1}] [layers.ffn_down] " +
				"[layers.ffn_down]",
			"head.norm 32 [{head.norm 0}] [head.lm_head] [head.lm_head]",
		}},
		{"olmo2-plain", []string{ // blocks read the residual stream: nothing is in front of them
			"layers.ffn_gate_up 44 [{layers.ffn_gate_up 1}] [layers.ffn_down] [layers.ffn_down]",
			"head.norm 32 [{head.norm 0}] [head.lm_head] [head.lm_head]",
		}},
		{"phi-partial", []string{ // both blocks read one norm with a bias; the activation has no gate
			"layers.attn_norm 32 [{layers.attn_norm 0} {layers.attn_norm_bias 0}] [layers.qkv layers.ffn_up] " +
				"[layers.qkv layers.ffn_up]",
			"head.norm 32 [{head.norm 0} {head.norm_bias 0}] [head.lm_head] [head.lm_head]",
		}},
		{"gemma2-caps", []string{ // one weight in two sections; norms behind the blocks enter a sum
			"layers.attn_norm 32 [{layers.attn_norm 0}] [layers.qkv] [layers_windowed.qkv layers.qkv]",
			"layers.ffn_norm 32 [{layers.ffn_norm 0}] [layers.ffn_gate_up] [layers_windowed.ffn_gate_up " +
				"layers.ffn_gate_up]",
			"layers.ffn_gate_up 44 [{layers.ffn_gate_up 1}] [layers.ffn_down] [layers_windowed.ffn_down " +
				"layers.ffn_down]",
			"head.norm 32 [{head.norm 0}] [head.lm_head] [head.lm_head]",
		}},
		{"qwen2-moe-shared", []string{ // the router is multiplied as well
			"layers.attn_norm 32 [{layers.attn_norm 0}] [layers.qkv] [layers.qkv]",
			"layers.ffn_norm 32 [{layers.ffn_norm 0}] [layers.router layers.expert_gate_up layers.shared_gate_up " +
				"layers.shared_switch] [layers.router layers.expert_gate_up layers.shared_gate_up " +
				"layers.shared_switch]",
			"layers.expert_gate_up 16 [{layers.expert_gate_up 1}] [layers.expert_down] [layers.expert_down]",
			"layers.shared_gate_up 28 [{layers.shared_gate_up 1}] [layers.shared_down] [layers.shared_down]",
			"head.norm 32 [{head.norm 0}] [head.lm_head] [head.lm_head]",
		}},
	} {
		model, err := models.Open("../testdata/arch/" + test.model)
		if err != nil {
			t.Fatal(err)
		}
		graph := model.Graph()
		var got []string
		for _, f := range graph.Folds() {
			got = append(got, fmt.Sprint(f.Name, " ", f.K, " ", f.Divide, " ", f.Multiply, " ", f.Readers))
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: got\n%q\nwant\n%q", test.model, got, test.want)
		}
		if err := model.Close(); err != nil {
			t.Error(err)
		}
	}
}

// What another reader of a value would see stops a fold.
func TestFoldsStopAtOtherReaders(t *testing.T) {
	model, err := models.Open("../testdata/arch/llama-plain")
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	names := func(g *models.Graph) (out []string) {
		for _, f := range g.Folds() {
			out = append(out, f.Name)
		}
		return out
	}
	for _, test := range []struct {
		name   string
		change func(layers *models.Section)
		gone   string
	}{
		{"another reader of the norm", func(s *models.Section) { node(s, "attn_add").In = []string{"x", "h"} },
			"layers.attn_norm"},
		{"a reader in the next layer", func(s *models.Section) { node(s, "attn_norm").In = []string{"h"} },
			"layers.ffn_norm"},
		{"another reader of gate and up", func(s *models.Section) { node(s, "ffn_add").In = []string{"x", "g"} },
			"layers.ffn_gate_up"},
		{"another reader of the product", func(s *models.Section) { node(s, "ffn_add").In = []string{"x", "a"} },
			"layers.ffn_gate_up"},
		{"one weight for two products", func(s *models.Section) { node(s, "attn_out").W = []string{"layers.qkv"} },
			"layers.attn_norm"},
	} {
		graph := model.Graph()
		test.change(graph.Section("layers"))
		if got := names(&graph); slices.Contains(got, test.gone) {
			t.Errorf("%s: %q is folded all the same: %q", test.name, test.gone, got)
		}
	}
}

func node(section *models.Section, name string) *models.Node {
	for i := range section.Nodes {
		if section.Nodes[i].Name == name {
			return &section.Nodes[i]
		}
	}
	panic("no node " + name)
}
