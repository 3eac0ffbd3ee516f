package executor_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/prefix"
	"github.com/hetc/hetc/runtime/executor"
)

// A prompt that begins with tokens of a prefix, or of an earlier prompt, gets the bits that it gets from an empty
// cache, although its queries select positions by blocks: as many tokens are reused as its own calls would begin with.
// Models have grouped heads, windows and soft caps, caches hold every type, and heads are divided or not.
func TestSparseAttentionOfReusedTokens(t *testing.T) {
	a, b := cores(t)
	pair := pairOn(a, b)
	for _, name := range []string{"llama-plain", "llama-mqa", "mistral-window", "gemma2-caps"} {
		dir := filepath.Join("../../testdata/arch", name)
		m, err := models.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		ids := readLogits(t, filepath.Join(dir, "logits.safetensors"))[130].ids
		cal := attentive(t, m, 0.3)
		for _, kv := range op.CacheTypes {
			for layout, f := range map[string]layoutOf{"one processor": nil, "heads": byKeyHeads, "stages": byStages} {
				plan := sparsePlan(t, m, cal, sparseSpec{
					procs: pair, rows: []int{1, 16, 64}, sparse: []int{16, 64}, context: 130,
					block: 8, cache: kv, layout: f,
				})
				x := machineWith(t, m, plan, cal, executor.Options{})
				want, reuse := allLogits(t, x, ids), prefix.ReuseOf(plan)
				vocabulary := len(want) / len(ids)
				for _, cached := range []int{10, 64, 90, 130} {
					reused := reuse.Of(&prefix.Prefix{Tokens: ids[:cached]}, ids)
					if expected := min(cached/64*64, 128); reused != expected {
						t.Fatalf("%s: %d of %d cached tokens are reused, want %d", name, reused, cached, expected)
					}

					got := reusedLogits(t, x, ids, cached, reused)

					if d := maxDiff(got, want[reused*vocabulary:]); d != 0 {
						what := fmt.Sprintf("%s, cache %s, %s, %d tokens", name, kv, layout, cached)
						t.Errorf("%s: %d are reused, logits differ by %g, want equal bits", what, reused, d)
					}
				}
				x.Close()
			}
		}
	}
}

// reusedLogits keeps so many tokens of the ids, restores some of them, and returns the logits of the rest.
func reusedLogits(t *testing.T, x *executor.Machine, ids []int32, cached, reused int) (got []float32) {
	t.Helper()
	x.Reset()
	err := x.Do(t.Context(), func(c *executor.Control) error {
		if _, err := c.Extend(0, ids[:cached], executor.WantNone, nil); err != nil {
			return err
		}
		data, err := c.Cached(0, cached)
		if err != nil {
			return err
		}
		if err := c.Restore(0, reused, cached, data); err != nil {
			return err
		}
		_, err = c.Extend(0, ids[reused:], executor.WantAll, func(_ int, row []float32) error {
			got = append(got, row...)
			return nil
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}
