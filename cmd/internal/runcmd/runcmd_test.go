package runcmd

import (
	"math"
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
