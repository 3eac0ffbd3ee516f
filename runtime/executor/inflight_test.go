package executor_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/executor"
)

// byRole gives products to the second processor and everything else to the first, as llm.npu does.
func byRole(d *planir.Decision, n *lower.Node) {
	if kind := n.Op().Kind; kind == op.MatMul || kind == op.ExpertMatMul {
		d.Shares = []planir.Share{{Proc: "b"}}
	}
}

// inFlight is a plan with two chunks of its largest program in flight. turns returns the order of chunks in a section
// of so many tasks. With behind, the second chunk is a part of a layer behind the first one instead.
func inFlight(
	t testing.TB, m *models.Model, p *planir.Plan, rows int, behind bool, turns func(tasks int) []int,
) *planir.Plan {
	t.Helper()
	g, plan := m.Graph(), *p
	tasks, err := lower.Tasks(&plan, &g, rows)
	if err != nil {
		t.Fatal(err)
	}
	plan.InFlight = &planir.InFlight{Rows: rows, Chunks: 2}
	for _, section := range g.Sections {
		count := len(tasks[section.Name])
		if count == 0 || plan.InFlight.Order(section.Name) != nil {
			continue
		}
		order := planir.ChunkOrder{Section: section.Name, Starts: []int{0, 0}, Turns: turns(count)}
		if behind && section.Layers > 1 {
			start := 1 + count/2
			order.Starts[1] = start
			order.Turns = slices.Concat(slices.Repeat([]int{1}, count-start), slices.Repeat([]int{0}, count),
				slices.Repeat([]int{1}, start))
		}
		plan.InFlight.Orders = append(plan.InFlight.Orders, order)
	}
	if err := lower.Lower(&plan, &g); err != nil {
		t.Fatal(err)
	}
	if list := planir.Check(&plan); list.Err() != nil {
		t.Fatal(list.Err())
	}
	return &plan
}

// alternating has the chunks take turns, the first one first.
func alternating(tasks int) []int {
	var out []int
	for range tasks {
		out = append(out, 0, 1)
	}
	return out
}

// shuffled is a random interleaving in which every step of the first chunk comes before the same step of the second.
func shuffled(rng *rand.Rand) func(tasks int) []int {
	return func(tasks int) []int {
		var out []int
		done := [2]int{}
		for len(out) < 2*tasks {
			chunk := rng.IntN(2)
			if done[chunk] == tasks || chunk == 1 && done[1] == done[0] {
				chunk = 1 - chunk
			}
			out = append(out, chunk)
			done[chunk]++
		}
		return out
	}
}

// tokens are n random ids.
func tokens(rng *rand.Rand, vocab, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(rng.IntN(vocab))
	}
	return out
}

// Two chunks in flight have the very logits of one after the other. This holds in all schemes and in random orders, for
// plans that place operators by their role, on one processor, or divided in every way, and with the second chunk a part
// of a layer behind.
func TestInFlightComputesTheSameBits(t *testing.T) {
	require.Slow(t)
	m := open(t)
	a, b := cores(t)
	rng := rand.New(rand.NewPCG(3, 4))
	layouts := map[string]layoutOf{
		"role":    byRole,
		"one":     bySingle,
		"columns": byColumns,
		"rows":    byRows,
		"pairs":   swapped,
	}
	schemes := []op.Scheme{op.A32W32, op.A32W16, op.A8TQ8C, op.A8TQ4B32}
	for i, scheme := range schemes {
		for name, layout := range layouts {
			if testing.Short() && (i%2 == 0 || name == "one") { // half of the schemes, to be quick
				continue
			}
			p := makePlan(t, m, planSpec{
				procs: pairOn(a, b), rows: []int{1, 16, 32}, context: 200, scheme: scheme,
				layout: layout,
			})
			one := machine(t, m, p, executor.Options{})
			for _, behind := range []bool{false, true} {
				turns := alternating
				if rng.IntN(3) > 0 {
					turns = shuffled(rng)
				}
				two := machine(t, m, inFlight(t, m, p, 32, behind, turns), executor.Options{})
				for range 2 {
					ids := tokens(rng, m.Vocab, 64+rng.IntN(137))
					if d := maxDiff(allLogits(t, two, ids), allLogits(t, one, ids)); d != 0 {
						what := fmt.Sprintf("%s, %s, behind %v, %d tokens", scheme, name, behind, len(ids))
						t.Fatalf("%s: logits differ by %g, want equal bits", what, d)
					}
				}
				if !slices.Contains(two.Loaded(), "prefill@32x2") {
					t.Fatalf("loaded %v, want prefill@32x2", two.Loaded())
				}
				two.Close()
			}
			one.Close()
		}
	}
}

// So they have for experts, windows and layers of several kinds: the architectures of testdata/arch that have them.
func TestInFlightArchitectures(t *testing.T) {
	a, b := cores(t)
	rng := rand.New(rand.NewPCG(5, 6))
	for _, name := range []string{
		"mixtral-full", "olmoe-plain", "qwen2-moe-shared", "qwen3-moe-dense-layers",
		"gemma2-caps", "mistral-window", "phi-partial",
	} {
		m, err := models.Open(filepath.Join("../../testdata/arch", name))
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		for _, layout := range []layoutOf{byRole, swapped} {
			p := makePlan(t, m, planSpec{
				procs: pairOn(a, b), rows: []int{1, 16}, context: min(m.MaxContext, 120),
				scheme: op.A32W32, layout: layout,
			})
			one := machine(t, m, p, executor.Options{})
			for _, behind := range []bool{false, true} {
				two := machine(t, m, inFlight(t, m, p, 16, behind, shuffled(rng)), executor.Options{})
				ids := tokens(rng, m.Vocab, 32+rng.IntN(60))
				if d := maxDiff(allLogits(t, two, ids), allLogits(t, one, ids)); d != 0 {
					what := fmt.Sprintf("%s, behind %v, %d tokens", name, behind, len(ids))
					t.Errorf("%s: logits differ by %g, want equal bits", what, d)
				}
				two.Close()
			}
			one.Close()
		}
	}
}

// A call that is cancelled while chunks are in flight leaves nothing behind: the next one has the right bits.
func TestInFlightIsCancelled(t *testing.T) {
	m := open(t)
	a, b := cores(t)
	p := makePlan(t, m, planSpec{
		procs: pairOn(a, b), rows: []int{1, 32}, context: 200, scheme: op.A8TQ8C, layout: byRole,
	})
	x := machine(t, m, inFlight(t, m, p, 32, true, alternating), executor.Options{})
	ids := tokens(rand.New(rand.NewPCG(7, 8)), m.Vocab, 150)
	want := allLogits(t, machine(t, m, p, executor.Options{}), ids)

	cancelled := 0
	for i := range 30 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i*i)*20*time.Microsecond)
		x.Reset()
		err := x.Do(ctx, func(c *executor.Control) error {
			_, err := c.Forward(ids, executor.WantNone, nil)
			return err
		})
		cancel()
		if err != nil {
			cancelled++
		}

		if d := maxDiff(allLogits(t, x, ids), want); d != 0 {
			t.Fatalf("after a call that ended with %v, logits differ by %g, want equal bits", err, d)
		}
	}
	if cancelled == 0 {
		t.Error("no call was cancelled")
	}
}

// Prompts of any length that are answered together get the tokens that they get without chunks in flight.
func TestInFlightBatches(t *testing.T) {
	m := open(t)
	a, b := cores(t)
	rng := rand.New(rand.NewPCG(9, 10))
	positions, most, count := min(m.MaxContext, 1510), min(m.MaxContext-10, 1500), 40
	if testing.Short() {
		most, count = 300, 6
	}
	p := batchPlan(t, m, []int{2, 3}, planSpec{
		procs: pairOn(a, b), rows: []int{1, 16, 64}, context: positions, scheme: op.A8TQ8C,
		layout: byRole,
	})
	one := machine(t, m, p, executor.Options{})
	two := machine(t, m, inFlight(t, m, p, 64, true, alternating), executor.Options{})

	var requests []executor.Request
	for range count {
		requests = append(requests, executor.Request{Prompt: tokens(rng, m.Vocab, 1+rng.IntN(most)), MaxTokens: 4})
	}
	want, err := one.GenerateBatch(context.Background(), requests, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := two.GenerateBatch(context.Background(), requests, nil)
	if err != nil {
		t.Fatal(err)
	}

	for i := range want {
		if !slices.Equal(want[i].Tokens, got[i].Tokens) || len(got[i].Tokens) == 0 {
			prompt := len(requests[i].Prompt)
			t.Errorf("a prompt of %d tokens is continued by %v, want %v", prompt, got[i].Tokens, want[i].Tokens)
		}
	}
}

// Chunks in flight have the same bits on asynchronous processors, some with memory of their own. What travels between
// memories then belongs to iterations that begin within a layer.
func TestInFlightOnDevices(t *testing.T) {
	require.Slow(t)
	m := open(t)
	a, b := cores(t)
	ids := tokens(rand.New(rand.NewPCG(11, 12)), m.Vocab, 60)
	for name, layout := range map[string]layoutOf{"role": byRole, "pairs": swapped} {
		p := makePlan(t, m, planSpec{
			procs: pairOn(a, b), rows: []int{1, 16}, context: 64, scheme: op.A8TQ8C, layout: layout,
		})
		want := allLogits(t, machine(t, m, p, executor.Options{}), ids)
		for _, which := range [][]string{{b}, {a, b}} {
			for _, d := range devices(which...) {
				for _, behind := range []bool{false, true} {
					plan := inFlight(t, m, p, 16, behind, alternating)
					x := machine(t, m, plan, d.options(plan))
					if diff := maxDiff(allLogits(t, x, ids), want); diff != 0 {
						what := fmt.Sprintf("%s, %s, processors %v, behind %v", name, d.name, which, behind)
						t.Errorf("%s: logits differ by %g, want equal bits", what, diff)
					}
					x.Close()
				}
			}
		}
	}
}
