package tokenizer

import (
	"slices"
	"testing"
)

// Tokens that only a tokenizer_config.json names are looked for and left out of text, as by AutoTokenizer of PyPI
// transformers 5.23.0, whose ids and texts these are.
func TestTokensOfTheConfiguration(t *testing.T) {
	const text = "In the beginning God  <s>  [PAD]<|end|> Gods [M]<x> x"
	for _, c := range []struct {
		name    string
		config  string
		ids     []int32
		decoded string
		size    int
	}{
		{
			name:   "none",
			config: `{}`,
			ids: []int32{
				1142, 261, 1851, 1274, 389, 223, 223, 1, 223, 223, 61, 50, 35, 38, 63, 30, 94, 1110, 94, 32,
				389, 85, 223, 61, 47, 63, 30, 90, 32, 223, 90,
			},
			decoded: "In the beginning God    [PAD]<|end|> Gods [M]<x> x",
			size:    2048,
		},
		{
			name:   "an end and padding",
			config: `{"eos_token":"<|end|>","pad_token":"[PAD]"}`,
			ids: []int32{
				1142, 261, 1851, 1274, 389, 223, 223, 1, 223, 223, 2049, 2048, 389, 85, 223, 61, 47, 63, 30,
				90, 32, 223, 90,
			},
			decoded: "In the beginning God     Gods [M]<x> x",
			size:    2050,
		},
		{
			name: "additional ones",
			config: `{"additional_special_tokens":["beginning",{"__type":"AddedToken","content":"God","lstrip":true,
				"rstrip":false,"normalized":false,"single_word":true,"special":true}]}`,
			ids: []int32{
				1142, 261, 223, 2048, 2049, 223, 223, 1, 223, 223, 61, 50, 35, 38, 63, 30, 94, 1110, 94, 32,
				389, 85, 223, 61, 47, 63, 30, 90, 32, 223, 90,
			},
			decoded: "In the     [PAD]<|end|> Gods [M]<x> x",
			size:    2050,
		},
		{
			name: "extra ones and a mask",
			config: `{"extra_special_tokens":["God"],"mask_token":{"__type":"AddedToken","content":"[M]","lstrip":true,
				"rstrip":false,"normalized":false,"single_word":false,"special":false}}`,
			ids: []int32{
				1142, 261, 1851, 1274, 223, 2049, 223, 223, 1, 223, 223, 61, 50, 35, 38, 63, 30, 94, 1110,
				94, 32, 223, 2049, 85, 2048, 30, 90, 32, 223, 90,
			},
			decoded: "In the beginning     [PAD]<|end|> s<x> x",
			size:    2050,
		},
		{
			name: "added ones by their ids",
			config: `{"added_tokens_decoder":{"2048":{"content":"<x>","lstrip":false,"rstrip":true,"normalized":false,
				"single_word":false,"special":false},
				"1":{"content":"<s>","lstrip":true,"rstrip":true,"normalized":false,"single_word":false,
				"special":true}},"eos_token":"<x>"}`,
			ids: []int32{
				1142, 261, 1851, 1274, 389, 1, 61, 50, 35, 38, 63, 30, 94, 1110, 94, 32, 389, 85, 223, 61,
				47, 63, 2048, 90,
			},
			decoded: "In the beginning God[PAD]<|end|> Gods [M]x",
			size:    2049,
		},
	} {
		tok, err := New(read(t, "tokenizer.json"), []byte(c.config), -1)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}

		ids, err := tok.Encode(text)

		if err != nil || !slices.Equal(ids, c.ids) {
			t.Errorf("%s: got %v, %v, want %v", c.name, ids, err, c.ids)
		}
		if got := tok.Decode(c.ids); got != c.decoded {
			t.Errorf("%s: got %q, want %q", c.name, got, c.decoded)
		}
		if got := tok.VocabSize(); got != c.size {
			t.Errorf("%s: got %d tokens, want %d", c.name, got, c.size)
		}
	}
}

// Tokens of a configuration that cannot be are refused.
func TestRefusedTokensOfTheConfiguration(t *testing.T) {
	for _, config := range []string{
		`{"split_special_tokens":true}`,
		`{"added_tokens_decoder":{"x":{"content":"a"}}}`,
		`{"added_tokens_decoder":[]}`,
		`{"extra_special_tokens":7}`,
		`{"pad_token":7}`,
		`{"additional_special_tokens":"<x>"}`,
		`{"pad_token":"` + string(make([]byte, 300)) + `"}`,
	} {
		if _, err := New(read(t, "tokenizer.json"), []byte(config), -1); err == nil {
			t.Errorf("%.80s: accepted", config)
		}
	}
}

// A token with a part to play is left out of decoded text, even where the tokenizer.json adds it as an ordinary one.
// Other special tokens of the configuration are not, as in the reference.
func TestOrdinaryTokensWithAPart(t *testing.T) {
	const file = `{"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"decoder":{"type":"Fuse"},"added_tokens":[` +
		`{"id":1,"content":"<|y|>","special":false,"normalized":false}]}`
	for config, want := range map[string]string{
		`{}`:                          "a<|y|>",
		`{"extra_special_tokens":{}}`: "a<|y|>",
		`{"extra_special_tokens":{"image_token":"<|y|>"}}`:  "a",
		`{"eos_token":"<|y|>"}`:                             "a",
		`{"pad_token":{"content":"<|y|>","special":false}}`: "a",
		`{"additional_special_tokens":["<|y|>"]}`:           "a<|y|>",
		`{"eos_token":"<|y|>","added_tokens_decoder":{}}`:   "a<|y|>",
	} {
		tok, err := New([]byte(file), []byte(config), -1)
		if err != nil {
			t.Fatal(err)
		}
		if got := tok.Decode([]int32{0, 1}); got != want {
			t.Errorf("%s: got %q, want %q", config, got, want)
		}
	}
}
