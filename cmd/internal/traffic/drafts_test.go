package traffic

import (
	"slices"
	"testing"
)

// The texts have the lengths and tokens that were asked for, are the same each time, and repeat as their names say: of a
// text's pairs of tokens, the share that came before.
func TestDraftTexts(t *testing.T) {
	const vocabulary, tokens = 2048, 150
	texts := draftTexts(vocabulary, 106, tokens)
	repeats := map[string]float64{}
	for _, text := range texts {
		if len(text.prompt) < 100 || len(text.prompt) > 106 {
			t.Errorf("%s: a prompt of %d tokens, want about 106", text.name, len(text.prompt))
		}
		if text.answer == nil {
			continue
		}
		if len(text.answer) != tokens {
			t.Errorf("%s: an answer of %d tokens, want %d", text.name, len(text.answer), tokens)
		}
		all := slices.Concat(text.prompt, text.answer)
		seen, again := map[[2]int32]bool{}, 0
		for i := 1; i < len(all); i++ {
			if all[i] < 0 || all[i] >= vocabulary {
				t.Fatalf("%s: token %d", text.name, all[i])
			}
			pair := [2]int32{all[i-1], all[i]}
			if seen[pair] && i >= len(text.prompt) {
				again++
			}
			seen[pair] = true
		}
		repeats[text.name] = float64(again) / tokens
	}
	t.Log(repeats)
	if repeats["copying"] < 0.95 || repeats["code-like"] < 0.35 || repeats["code-like"] > 0.85 || repeats["random"] > 0.02 {
		t.Errorf("shares of pairs that came before: %v", repeats)
	}
	if draftTexts(vocabulary, 2, tokens) != nil {
		t.Error("texts for prompts of 2 tokens")
	}
	if again := draftTexts(vocabulary, 106, tokens); !slices.Equal(again[3].answer, texts[3].answer) {
		t.Error("another text the second time")
	}
}
