package papers

import (
	"testing"

	"github.com/hetc/hetc/cmd/internal/traffic"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/scheduler"
)

// Algorithm 1 on the virtual clock of core-ultra-5-125h: while somebody's answer is decoded, the next reactive prompt
// is processed by the GPU alone beside it, where the plan has programs for that. Answers then go on at their pace, the
// requests end sooner, and first tokens come later by no more than the slack. Alone, a prompt has all processors.
func TestElasticChunksOnTheSoC(t *testing.T) {
	require.Slow(t)
	work := agentWorkload(op.A8TQ8C, []int{2, 4, 8, 32}, 64)
	work.Beside = true
	from, err := newChain(t.Context(), agentSoC, "llama-3-8b", work, nil)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := from.solve(t.Context(), only("cpu", "gpu"))
	if err != nil {
		t.Fatal(err)
	}
	if plan.Beside == nil || plan.Beside.Prefill != "gpu" {
		t.Fatalf("beside is %+v, want prompts on the GPU", plan.Beside)
	}
	play := func(trace []traffic.Request, slack float64) (*traffic.Report, *traffic.ClassReport) {
		t.Helper()
		config := scheduler.Default(8)
		config.Slack = slack
		report, err := traffic.Simulate(t.Context(), plan.Plan, trace, config)
		if err != nil {
			t.Fatal(err)
		}
		return report, &report.Classes[0]
	}
	busy := agentTrace(1, 15, 6, 1e-9)
	elastic, with := play(busy, scheduler.Default(8).Slack)
	beside := plan.Beside
	plan.Beside = nil
	_, without := play(busy, scheduler.Default(8).Slack)
	plan.Beside = beside
	if elastic.Beside == 0 || with.PerToken >= 0.9*without.PerToken || with.Normalised >= without.Normalised ||
		with.TTFT > 1.25*without.TTFT {
		t.Errorf("%d chunks beside decoding: %+v, with all processors by turns %+v", elastic.Beside, with, without)
	}
	t.Logf("%d chunks beside decoding: %+v, with all processors by turns %+v", elastic.Beside, with, without)
	rare := []traffic.Request{{AtMS: 0, Class: "reactive", Prompt: 500, Output: 4},
		{AtMS: 60_000, Class: "reactive", Prompt: 500, Output: 4}}
	if report, _ := play(rare, 0.25); report.Beside != 0 {
		t.Errorf("%d chunks beside nobody's decoding", report.Beside)
	}
}
