package diag

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestNearest(t *testing.T) {
	words := []string{"bandwidth_gbps", "cores", "kind", "name", "launch_us"}
	for word, want := range map[string]string{
		"bandwith_gbps": "bandwidth_gbps", "Bandwidth-GBps": "bandwidth_gbps", "core": "cores", "nmae": "name",
		"kindd": "kind", "launch_ms": "launch_us", "x": "", "": "", "something_else": "", strings.Repeat("n", 1000): "",
	} {
		if got := Nearest(word, words); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
	if got := Nearest("ab", []string{"ac", "aa"}); got != "aa" {
		t.Errorf("tie: %q, want the alphabetically first", got)
	}
}

// TestNearestFindsOneEdit changes one letter of a word of four or more and expects it back.
func TestNearestFindsOneEdit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[a-z]{4,12}`).Draw(t, "word")
		i := rapid.IntRange(0, len(word)-1).Draw(t, "at")
		c := rapid.StringMatching(`[a-z]`).Draw(t, "letter")
		edited := []string{word[:i] + word[i+1:], word[:i] + c + word[i:], word[:i] + c + word[i+1:]}
		for _, e := range edited {
			if got := Nearest(e, []string{word}); got != word {
				t.Fatalf("Nearest(%q, %q) = %q", e, word, got)
			}
		}
	})
}

func TestDidYouMean(t *testing.T) {
	words := []string{"tinyllama-1.1b", "llama-3-8b", "llama-2-7b", "phi-2", "list", "show"}
	for word, want := range map[string]string{
		"lst":       `did you mean "list"?`,
		"tinyllama": `did you mean "tinyllama-1.1b"?`,
		"llama":     `did you mean "llama-2-7b", "llama-3-8b" or "tinyllama-1.1b"?`,
		"ph":        "want one of list, llama-2-7b, llama-3-8b, phi-2, show, tinyllama-1.1b",
		"zebra":     "want one of list, llama-2-7b, llama-3-8b, phi-2, show, tinyllama-1.1b",
	} {
		if got := DidYouMean(word, words); got != want {
			t.Errorf("DidYouMean(%q) = %q, want %q", word, got, want)
		}
	}
	if got := DidYouMean("zz", nil); got != "" {
		t.Errorf("no candidates: %q", got)
	}
}

func TestOneOf(t *testing.T) {
	type kind string
	for want, words := range map[string][]kind{
		"": {""}, `"a"`: {"", "a"}, `"a" or "b"`: {"a", "b"}, `"a", "b" or "c d"`: {"a", "b", "c d"},
	} {
		if got := OneOf(words); got != want {
			t.Errorf("OneOf(%q) = %s, want %s", words, got, want)
		}
	}
}
