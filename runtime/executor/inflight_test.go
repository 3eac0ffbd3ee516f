package executor_test

import (
	"math/rand/v2"
	"slices"
	"testing"

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

// inFlight is a plan with two chunks of its largest program in flight. Its sections of layers are ordered by turns,
// which is given the number of tasks that each chunk has there.
func inFlight(t testing.TB, m *models.Model, p *planir.Plan, rows int, behind bool, turns func(tasks int) []int) *planir.Plan {
	t.Helper()
	g, plan := m.Graph(), *p
	tasks, err := lower.Tasks(&plan, &g, rows)
	if err != nil {
		t.Fatal(err)
	}
	plan.InFlight = &planir.InFlight{Rows: rows, Chunks: 2}
	for i := range g.Sections {
		name := g.Sections[i].Name
		if list := tasks[name]; len(list) > 0 && plan.InFlight.Order(name) == nil {
			order := planir.ChunkOrder{Section: name, Starts: []int{0, 0}, Turns: turns(len(list))}
			if behind && g.Sections[i].Layers > 1 {
				order.Starts[1] = 1 + len(list)/2
				order.Turns = slices.Concat(slices.Repeat([]int{1}, len(list)-order.Starts[1]),
					slices.Repeat([]int{0}, len(list)), slices.Repeat([]int{1}, order.Starts[1]))
			}
			plan.InFlight.Orders = append(plan.InFlight.Orders, order)
		}
	}
	if err := lower.Lower(&plan, &g); err != nil {
		t.Fatal(err)
	}
	if l := planir.Check(&plan); l.Err() != nil {
		t.Fatal(l.Err())
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

// Two chunks in flight have the very logits of one after the other: in all schemes, for plans that place operators by
// their role, on one processor, or divided in every way, in random orders, and with the second chunk a part of a layer behind.
func TestInFlightComputesTheSameBits(t *testing.T) {
	m := open(t)
	a, b := cores(t)
	rng := rand.New(rand.NewPCG(3, 4))
	layouts := map[string]layoutOf{"role": byRole, "one": bySingle, "columns": byColumns, "rows": byRows, "pairs": swapped}
	schemes := []op.Scheme{op.A32W32, op.A32W16, op.A8TQ8C, op.A8TQ4B32}
	for _, scheme := range schemes {
		for name, layout := range layouts {
			p := makePlan(t, m, []planir.Proc{proc("a", a, ""), proc("b", b, "")}, []int{1, 16, 32}, 200, scheme, layout)
			one := machine(t, m, p, executor.Options{})
			for _, behind := range []bool{false, true} {
				turns := alternating
				if rng.IntN(3) > 0 {
					turns = shuffled(rng)
				}
				two := machine(t, m, inFlight(t, m, p, 32, behind, turns), executor.Options{})
				for range 2 {
					ids := tokens(rng, m.Vocab, 64+rng.IntN(137))
					want, got := allLogits(t, one, ids), allLogits(t, two, ids)
					if maxDiff(want, got) != 0 {
						t.Fatalf("%s, %s, a part of a layer behind: %v, %d tokens: logits differ by %g, want equal bits", scheme, name, behind,
							len(ids), maxDiff(want, got))
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
