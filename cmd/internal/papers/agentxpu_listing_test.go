package papers

import (
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/scheduler"
)

// Algorithm 1 as printed, replayed beside what a plan has for each of its scenarios.
//
// Idle: the listing gives every token-wise operator's chunks of 256 rows to the NPU or the GPU and the remainder to the
// GPU. The plan's program of all processors divides the same operators, by columns where that is faster; with the same
// predicted times, each of them ends sooner than the listing's, hand-overs included.
func TestListingIdle(t *testing.T) {
	require.Slow(t)
	const chunk, rest, whole = 256, 64, 576 // two chunks and a remainder
	from, err := newChain(t.Context(), agentSoC, "llama-3-8b", agentWorkload(op.A16FQ8C, nil, rest, chunk, whole), nil)
	if err != nil {
		t.Fatal(err)
	}
	plans := map[string]*solvedPlan{}
	for name, processors := range map[string][]string{"npu": {"npu"}, "gpu": {"gpu"}, "all": {"npu", "gpu"}} {
		if plans[name], err = from.solve(t.Context(), only(processors...)); err != nil {
			t.Fatal(err)
		}
	}
	alone := func(proc, node string, rows int) int64 {
		decision := plans[proc].DecisionFor(node, rows)
		if decision == nil || decision.Strategy != planir.Single || decision.Shares[0].Proc != proc {
			t.Fatalf("%s of %d rows: %+v, want the %s alone", node, rows, decision, proc)
		}
		return decision.Shares[0].PredictNS
	}
	divided := 0
	for _, node := range []string{"layers.qkv", "layers.attn_out", "layers.ffn_gate_up", "layers.ffn_down"} {
		decision := plans["all"].DecisionFor(node, whole)
		printed, end := listing(whole/chunk, alone("npu", node, chunk), alone("gpu", node, chunk),
			alone("gpu", node, rest))
		t.Logf("%s: the listing gives %d of %d chunks to the NPU and takes %d ns, the plan takes %d ns with %+v", node,
			printed, whole/chunk, end, decision.PredictNS, decision.Shares)
		if decision.PredictNS > end {
			t.Errorf("%s: the plan takes %d ns, the listing %d", node, decision.PredictNS, end)
		}
		if len(decision.Shares) == 2 {
			divided++
		}
	}
	if divided < 3 {
		t.Errorf("%d of 4 operators are divided between both processors, want at least 3", divided)
	}
}

// Busy: n_npu is the number of chunks, so one processor has all of them; idle, both share them. The scheduler has a
// prompt of any length processed so, chunk by chunk, among a plan's two variants. What the plan has no variant for are
// attention and the remainder on the processor that decodes, between its steps.
func TestListingBusy(t *testing.T) {
	const chunk = 256
	config := scheduler.Default(4)
	config.ChunkNS = func(n int) (int, int64) { return min(n, chunk), int64(min(n, chunk)) * 40_000 }
	config.DecodeNS = func(int) int64 { return 5_000_000 }
	// the listing's NPU, which leaves the decoding processor alone
	config.Beside = func(n, _ int) (scheduler.Side, bool) {
		tokens := min(n, chunk)
		return scheduler.Side{Tokens: tokens, ChunkNS: int64(tokens) * 42_000, AloneNS: int64(tokens) * 41_000,
			DecodeNS: 5_100_000}, n > 1
	}
	for _, busy := range []bool{false, true} {
		for _, length := range []int{2, chunk, 3 * chunk, 3*chunk + 44} {
			state, err := scheduler.New(config)
			if err != nil {
				t.Fatal(err)
			}
			if busy { // an answer that somebody reads
				if err := state.Submit(0, scheduler.Request{ID: 1, Class: scheduler.Reactive, Prompt: 1}); err != nil {
					t.Fatal(err)
				}
				if next := state.Next(0); next.Kind != scheduler.Prefill {
					t.Fatalf("%+v", next)
				}
				state.Prefilled(0, 1, 1)
			}
			if err := state.Submit(0, scheduler.Request{ID: 2, Class: scheduler.Reactive, Prompt: length}); err != nil {
				t.Fatal(err)
			}
			var shared, alone int
			for left := length; left > 0; {
				switch next := state.Next(0); next.Kind {
				case scheduler.Prefill:
					shared++
					state.Prefilled(0, 2, min(left, chunk))
					left -= chunk
				case scheduler.Begin:
					alone++
				case scheduler.Decode: // beside the chunk, which ends with it
					if alone == 0 {
						t.Fatalf("busy %v, %d tokens: decodes before a chunk was begun", busy, left)
					}
					state.Decoded(0, []scheduler.ID{1})
					state.Prefilled(0, 2, min(left, chunk))
					left -= chunk
				default:
					t.Fatalf("busy %v, %d tokens: %+v", busy, left, next)
				}
			}
			chunks := (length + chunk - 1) / chunk
			if want := map[bool][2]int{false: {chunks, 0}, true: {0, chunks}}[busy]; [2]int{shared, alone} != want {
				t.Errorf("busy %v, %d tokens: %d chunks of all processors and %d of one, want %v", busy, length, shared,
					alone, want)
			}
		}
	}
}
