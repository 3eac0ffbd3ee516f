package tokenizer

import (
	"strings"
	"testing"
)

// BenchmarkEncode encodes the demo model's held-out English text. The vocabularies are small, so that words take more
// merges than with a large one.
func BenchmarkEncode(b *testing.B) {
	text := string(read(b, "valid.txt"))
	names := []string{"gpt2", "llama3", "qwen2", "o200k", "deepseek-v3", "falcon", "llama2-legacy", "gemma"}
	for _, name := range names {
		b.Run(name, func(b *testing.B) {
			tok, _ := kind(b, name)
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := tok.Encode(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	tok, _ := kind(b, "llama3")
	for name, text := range map[string]string{
		"one long word": strings.Repeat("thequickbrownfox", 1<<14),
		"spaces":        strings.Repeat(" ", 1<<18),
		"numbers":       strings.Repeat("0123456789", 1<<14),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := tok.Encode(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkDecode decodes the same text.
func BenchmarkDecode(b *testing.B) {
	text := string(read(b, "valid.txt"))
	for _, name := range []string{"llama3", "llama2"} {
		b.Run(name, func(b *testing.B) {
			tok, _ := kind(b, name)
			ids, err := tok.Encode(text)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				tok.Decode(ids)
			}
		})
	}
}
