package trial

import (
	"io"
	"math"
	"path/filepath"
	"testing"

	"github.com/hetc/hetc/cmd/internal/catalog"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/runtime/quality"
)

// longModel is the constructed model with a long context, and its unseen text.
func longModel(t *testing.T) (model *Model, text string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "long")
	silent := &cli.Streams{Out: io.Discard, Err: io.Discard}
	if err := catalog.Construct(t.Context(), silent, demo, filepath.Join(demo, "valid.txt"), dir, 7); err != nil {
		t.Fatal(err)
	}
	return open(t, dir), filepath.Join(dir, catalog.UnseenName)
}

// tokens is the whole text.
func tokens(t *testing.T, model *Model, path string) (ids []int32) {
	t.Helper()
	text, err := model.ReadText(path, 0, 64)
	if err != nil {
		t.Fatal(err)
	}
	for _, window := range text.Windows {
		ids = append(ids, window.Tokens...)
	}
	return ids
}

// openFloat32 is the model's float32 plan for windows of that size.
func openFloat32(t *testing.T, model *Model, size int) *Machine {
	t.Helper()
	plan, err := model.Plan(size, Float32, nil)
	if err != nil {
		t.Fatal(err)
	}
	machine, err := model.Open(t.Context(), plan, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return machine
}

// perplexity is that of the last count tokens of a text, each with half of size to size tokens before it.
func perplexity(t *testing.T, model *Model, ids []int32, count, size int) float64 {
	t.Helper()
	machine := openFloat32(t, model, size)
	defer machine.Close()
	reference, err := quality.NewReference()
	if err != nil {
		t.Fatal(err)
	}
	defer reference.Close()
	sum, n := 0.0, 0
	for at := len(ids) - count; at+size/2 < len(ids); at += size / 2 {
		window := quality.Window{Tokens: ids[at-size/2 : at+size/2], Next: ids[at+size/2]}
		if err := reference.Add(t.Context(), machine.Machine, window); err != nil {
			t.Fatal(err)
		}
		for _, loss := range reference.Losses(reference.Windows() - 1)[size/2:] {
			sum += loss
			n++
		}
	}
	return math.Exp(sum / float64(n))
}

// The model predicts a text it has not seen the better the more of it there is in its context.
func TestLongContextIsUsed(t *testing.T) {
	sizes, count := []int{64, 512}, 513
	if !testing.Short() {
		require.Slow(t)
		sizes, count = []int{64, 256, 1024, 4096, 8192}, 4097
	}
	model, path := longModel(t)
	ids := tokens(t, model, path)
	before := math.Inf(1)
	for _, size := range sizes {
		got := perplexity(t, model, ids, count, size)
		t.Logf("context of %d to %d tokens: perplexity %.1f", size/2, size, got)
		if !(got < before) {
			t.Errorf("context of %d tokens: perplexity %.2f, want less than %.2f as with fewer", size, got, before)
		}
		before = got
	}
}

// A passage is recalled half a context after it was read: 4,000 tokens with the whole one.
func TestPassageIsRecalled(t *testing.T) {
	size := 1024
	if !testing.Short() {
		require.Slow(t)
		size = 8192
	}
	model, path := longModel(t)
	machine := openFloat32(t, model, size)
	defer machine.Close()
	prompt, from, err := quality.Passage(tokens(t, model, path)[:size], 64, 1)
	if err != nil {
		t.Fatal(err)
	}
	right, all, err := quality.Recall(t.Context(), machine.Machine, prompt, from)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d tokens recalled after %d", right, all, size/2)
	if all != 61 || 10*right < 8*all {
		t.Errorf("%d of %d tokens recalled, want 80 %% of 61 at least", right, all)
	}
}
