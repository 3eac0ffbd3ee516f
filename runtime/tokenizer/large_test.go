package tokenizer

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// qwen2Merges is the number of merges of Qwen2. Beside those that they make, it has 256 tokens.
const qwen2Merges = 151387

// largeFile writes a tokenizer.json of the shape of Qwen2's: tokens in the order in which the merges make them, and its
// normalizer, pattern and decoder. As there, the ids of the parts of merges are spread evenly on a logarithmic scale.
// pairs writes a merge as a list of two, as files do since 2024, and not as one text.
func largeFile(merges int, pairs bool) []byte {
	random := rand.New(rand.NewPCG(1, 2))
	chars := slices.Sorted(slices.Values(alphabet[:]))
	tokens, known := make([]string, 0, len(chars)+merges), map[string]bool{}
	for _, char := range chars {
		tokens = append(tokens, string(char))
	}
	draw := func() string {
		return tokens[int(math.Pow(float64(len(tokens)), 0.3+0.7*random.Float64()))]
	}
	quote := func(token string) string {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(token) + `"`
	}

	var list, vocab bytes.Buffer
	for len(tokens) < cap(tokens) {
		left, right := draw(), draw()
		joined := left + right
		if len(joined) > 16 || known[joined] {
			continue
		}
		known[joined] = true
		tokens = append(tokens, joined)
		if list.Len() > 0 {
			list.WriteByte(',')
		}
		if pairs {
			fmt.Fprintf(&list, "\n      [\n        %s,\n        %s\n      ]", quote(left), quote(right))
		} else {
			fmt.Fprintf(&list, "\n      %s", quote(left+" "+right))
		}
	}
	for id, token := range tokens {
		if id > 0 {
			vocab.WriteByte(',')
		}
		fmt.Fprintf(&vocab, "\n      %s: %d", quote(token), id)
	}
	return fmt.Appendf(nil, largeForm, len(tokens), vocab.Bytes(), list.Bytes())
}

// largeForm is the file around vocabulary and merges.
const largeForm = `{
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": [
    {
      "id": %d,
      "content": "<|endoftext|>",
      "single_word": false,
      "lstrip": false,
      "rstrip": false,
      "normalized": false,
      "special": true
    }
  ],
  "normalizer": {
    "type": "NFC"
  },
  "pre_tokenizer": {
    "type": "Sequence",
    "pretokenizers": [
      {
        "type": "Split",
        "pattern": {
          "Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*` +
	`|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
        },
        "behavior": "Isolated",
        "invert": false
      },
      {
        "type": "ByteLevel",
        "add_prefix_space": false,
        "trim_offsets": false,
        "use_regex": false
      }
    ]
  },
  "post_processor": null,
  "decoder": {
    "type": "ByteLevel",
    "add_prefix_space": false,
    "trim_offsets": false,
    "use_regex": false
  },
  "model": {
    "type": "BPE",
    "dropout": null,
    "unk_token": null,
    "continuing_subword_prefix": "",
    "end_of_word_suffix": "",
    "fuse_unk": false,
    "byte_fallback": false,
    "vocab": {%s
    },
    "merges": [%s
    ]
  }
}`

// BenchmarkRead reads a file of 151,643 tokens in both forms that merges have.
func BenchmarkRead(b *testing.B) {
	for name, pairs := range map[string]bool{"merges as texts": false, "merges as pairs": true} {
		file := largeFile(qwen2Merges, pairs)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(file)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := New(file, nil, -1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Merges in both forms give one model, every token is found by its text, and every merge by its pair.
func TestLargeFile(t *testing.T) {
	const merges = 20000
	read := func(pairs bool) *bpe {
		tok, err := New(largeFile(merges, pairs), nil, -1)
		if err != nil {
			t.Fatal(err)
		}
		return tok.(*pipeline).model
	}
	model, other := read(false), read(true)
	if len(model.ranges) != 256+merges || len(model.merges.list) != merges {
		t.Fatalf("got %d tokens and %d merges", len(model.ranges), len(model.merges.list))
	}
	sameTokens := slices.Equal(model.ranges, other.ranges) && bytes.Equal(model.texts, other.texts)
	if !sameTokens || !slices.Equal(model.merges.list, other.merges.list) {
		t.Error("merges as texts and as pairs give two models")
	}

	for id := range int32(len(model.ranges)) {
		if got := model.id(model.text(id)); got != id {
			t.Fatalf("%q: got id %d, want %d", model.text(id), got, id)
		}
		if unknown := string(model.text(id)) + "\x00"; model.id([]byte(unknown)) >= 0 {
			t.Fatalf("%q: got id %d, want none", unknown, model.id([]byte(unknown)))
		}
	}
	for at, pair := range model.merges.list {
		rank, id, ok := model.merges.find(pair.left, pair.right)
		if !ok || int(rank) != at || id != pair.id {
			t.Fatalf("merge %d: got rank %d, id %d, %v", at, rank, id, ok)
		}
	}
}
