package traffic

import (
	"slices"
	"testing"
)

// Draft texts have the lengths that were asked for, and are the same each time.
func TestDraftTexts(t *testing.T) {
	const vocabulary, prompt, tokens = 2048, 106, 150
	texts := draftTexts(vocabulary, prompt, tokens)
	for _, text := range texts {
		if n := len(text.prompt); n < 100 || n > prompt {
			t.Errorf("%s: a prompt of %d tokens, want about %d", text.name, n, prompt)
		}
		if n := len(text.answer); text.answer != nil && n != tokens {
			t.Errorf("%s: an answer of %d tokens, want %d", text.name, n, tokens)
		}
		for _, token := range slices.Concat(text.prompt, text.answer) {
			if token < 0 || token >= vocabulary {
				t.Fatalf("%s: token %d", text.name, token)
			}
		}
	}

	if again := draftTexts(vocabulary, prompt, tokens); !slices.Equal(again[3].answer, texts[3].answer) {
		t.Error("another text the second time")
	}
	if draftTexts(vocabulary, 2, tokens) != nil {
		t.Error("texts for prompts of 2 tokens")
	}
}

// Draft texts repeat as their names say.
func TestDraftTextsRepeat(t *testing.T) {
	shares := map[string]float64{}
	for _, text := range draftTexts(2048, 106, 150) {
		if text.answer != nil {
			shares[text.name] = repeated(text.prompt, text.answer)
		}
	}
	t.Log(shares)

	code := shares["code-like"]
	if shares["copying"] < 0.95 || code < 0.35 || code > 0.85 || shares["random"] > 0.02 {
		t.Errorf("shares of pairs that came before: %v", shares)
	}
}

// repeated is the share of an answer's tokens that follow their token as it was followed before.
func repeated(prompt, answer []int32) float64 {
	all := slices.Concat(prompt, answer)
	seen, again := map[[2]int32]bool{}, 0
	for i := 1; i < len(all); i++ {
		pair := [2]int32{all[i-1], all[i]}
		if seen[pair] && i >= len(prompt) {
			again++
		}
		seen[pair] = true
	}
	return float64(again) / float64(len(answer))
}
