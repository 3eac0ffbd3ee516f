package runcmd

import (
	"math"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
)

// Whatever a line of prompts holds, it is one prompt or a mistake of the input that says what to write.
func FuzzPromptLine(f *testing.F) {
	for _, s := range []string{
		`{"id": "a", "prompt": "Hello"}`, `{"id": 7, "tokens": [1, 5, -7]}`,
		`{"messages": [{"role": "user", "content": "x"}]}`, `{"prompt": "a"} {}`, `{"prompt": "a", "tokens": []}`,
		`{}`, `[]`, `{"promt": "a"}`, `{"tokens": [1e99]}`, `{"tokens": [1.5]}`, `{"id": {"x": [1]}, "prompt": "a"}`,
		`{"messages": "x"}`, `null`, `{"prompt": "\ud800"}`, "{", "\x00",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := parseLine(text)
		if err != nil {
			if diag.ClassOf(err) != diag.ClassInput {
				t.Errorf("class of %v", err)
			}
			return
		}
		j, err := (&options{}).job(t.Context(), nil, &l, 3)
		if err != nil && diag.ClassOf(err) != diag.ClassInput || err == nil &&
			(l.Tokens == nil || len(j.ids) != len(l.Tokens)) {
			t.Errorf("%q: %+v, %v", text, j, err)
		}
	})
}

// A mistake in a line of prompts is told in words, and nothing is guessed.
func TestPromptLines(t *testing.T) {
	for text, want := range map[string]string{
		`{"id": "a", "tokens": [1.5]}`:       `key "tokens": got number 1.5, want a list of token ids`,
		`{"tokens": []}`:                     "the prompt has no tokens",
		`{"tokens": "5"}`:                    `key "tokens": got string, want a list of token ids`,
		`{"prompt": 7}`:                      `key "prompt": got number, want a string`,
		`[1]`:                                "got array, want an object",
		`{"prompt": "a", "prompt": "b"}`:     `key "prompt" twice`,
		`{"tokens": [1], "Tokens": [2]}`:     `key "Tokens" twice`,
		`{"id": "a\n[b] ", "tokens": [1]}`:   `id "a\n[b] " has control characters`,
		`{"id": "\u001b[2J", "tokens": [1]}`: `has control characters`,
		`{"id": "ä", "tokens": [1]}`:         "",
	} {
		asked, err := parseLine(text)
		if err == nil {
			_, err = (&options{}).job(t.Context(), nil, &asked, 1)
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) ||
			diag.ClassOf(err) != diag.ClassInput) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}

// A single NaN anywhere fails --check: nothing that follows may hide it.
func TestCompareKeepsNaN(t *testing.T) {
	want := []float32{1, 2, 3, 4}
	for i := range want {
		got := []float32{1, 2, 3, 4}
		got[i] = float32(math.NaN())
		if r := compare(got, want, 2); r.MaxAbsDiff <= checkAbs || !math.IsNaN(r.MaxAbsDiff) || !math.IsNaN(r.MeanKL) {
			t.Errorf("NaN at %d: difference %v, KL %v, want NaN", i, r.MaxAbsDiff, r.MeanKL)
		}
	}
	if r := compare(want, want, 2); r.MaxAbsDiff != 0 || r.MeanKL != 0 || r.SameTop != 1 {
		t.Errorf("equal logits: %+v", r)
	}
}
