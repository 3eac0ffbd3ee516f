package executor_test

import (
	"context"
	"slices"
	"testing"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/executor"
)

// A cache that was copied and restored is what processing the same tokens leaves: the next logits have the same bits.
// It may be restored in another sequence, on another machine, or a part of it.
func TestRestoredCacheIsTheComputedOne(t *testing.T) {
	for _, cached := range op.CacheTypes {
		t.Run(string(cached), func(t *testing.T) { restoredCache(t, cached) })
	}
}

// withCache makes a plan over for another type of cache.
func withCache(t testing.TB, m *models.Model, p *planir.Plan, cached op.Type) *planir.Plan {
	t.Helper()
	p.KV = cached
	graph := m.Graph()
	if err := lower.Lower(p, &graph); err != nil {
		t.Fatal(err)
	}
	if list := planir.Check(p); list.Err() != nil {
		t.Fatal(list.Err())
	}
	return p
}

// restoredCache tests one type of cache.
func restoredCache(t *testing.T, cached op.Type) {
	m := open(t)
	a, _ := cores(t)
	p := batchPlan(t, m, []int{3}, planSpec{procs: singleOn(a), rows: []int{1, 16}, context: 96, scheme: op.A8TQ8C})
	withCache(t, m, p, cached)
	first, second := machine(t, m, p, executor.Options{}), machine(t, m, p, executor.Options{})
	defer first.Close()
	defer second.Close()
	prompt := prompts(m.Vocab, 50)[0]

	var kept []byte
	var want []float32
	err := first.Do(context.Background(), func(c *executor.Control) (err error) {
		if _, err = c.Extend(1, prompt[:40], executor.WantNone, nil); err != nil {
			return err
		}
		if kept, err = c.Cached(1, 40); err != nil {
			return err
		}
		if _, err := c.Cached(1, 41); err == nil {
			t.Error("kept more than there is")
		}
		_, err = c.Extend(0, prompt, executor.WantLast, func(_ int, logits []float32) error {
			want = slices.Clone(logits)
			return nil
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	err = second.Do(context.Background(), func(c *executor.Control) error {
		if _, err := c.Extend(2, prompts(m.Vocab, 60)[0], executor.WantNone, nil); err != nil { // what others leave
			return err
		}
		for sequence, positions := range map[int]int{0: 40, 2: 40, 1: 23} {
			if err := c.Restore(sequence, positions, 40, kept); err != nil {
				return err
			}
			compare := func(_ int, logits []float32) error {
				if d := maxDiff(logits, want); d != 0 {
					t.Errorf("%d positions restored in sequence %d: logits differ by %g", positions, sequence, d)
				}
				return nil
			}
			if _, err := c.Extend(sequence, prompt[positions:], executor.WantLast, compare); err != nil {
				return err
			}
		}

		refused := map[string]error{
			"cut off":            c.Restore(0, 40, 40, kept[1:]),
			"of another length":  c.Restore(0, 41, 41, kept),
			"in no sequence":     c.Restore(3, 40, 40, kept),
			"beyond the context": c.Restore(0, 97, 97, kept),
			"more than there is": c.Restore(0, 41, 40, kept),
		}
		for what, err := range refused {
			if err == nil {
				t.Errorf("a cache %s was restored", what)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
