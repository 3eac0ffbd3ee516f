package solver

import (
	"math"
	"testing"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/exact"
)

// On a GPU whose compiler makes slow code of very wide products the plan takes the vocabulary product from the GPU and
// leaves the layers there, from the SoC's numbers alone. llama.cpp's maintainers did so by hand for the Adreno 740,
// where Qwen3-4B then decoded 13.52 tokens per second instead of 6.78.
func TestVocabularyLeavesTheGPU(t *testing.T) {
	model := open(t, "qwen3-4b")
	soc, err := socs.Open("adreno-740-opencl")
	if err != nil {
		t.Fatal(err)
	}
	work := permit(op.A8TQ4B32)
	work.Buckets = []int{64}
	in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A8TQ4B32), Workload: work,
		Engine: exact.Engine{}, Only: []string{"cpu", "gpu"}}
	perSecond := func(ns int64) float64 { return 1e9 / float64(ns) }

	// Whole operators only: the vocabulary is on the CPU, the large products of the layers are on the GPU.
	in.Strategies = []planir.Strategy{planir.Single}
	whole := solve(t, in)
	for node, want := range map[string]string{
		"head.lm_head": "cpu", "layers.ffn_gate_up": "gpu", "layers.ffn_down": "gpu",
	} {
		if decision := whole.Plan.DecisionFor(node, 1); decision.Shares[0].Proc != want {
			t.Errorf("%s is on %v, want it on the %s", node, decision.Shares, want)
		}
	}
	decode := prediction(t, whole.Plan, "decode")
	gpu := perSecond(alone(t, &decode, "gpu"))
	t.Logf("decode: %.2f tokens per second on the GPU, %.2f with the vocabulary on the CPU (measured: 6.78 and 13.52)",
		gpu, perSecond(decode.PlanNS))
	for _, test := range []struct{ got, want float64 }{{gpu, 6.78}, {perSecond(decode.PlanNS), 13.52}} {
		if math.Abs(test.got-test.want) > 0.15*test.want {
			t.Errorf("%.2f tokens per second, want %.2f as measured within 15 %%", test.got, test.want)
		}
	}

	// Divided, most of it is on the CPU, and a part that is narrow enough stays.
	in.Strategies = nil
	divided := solve(t, in)
	if ns := prediction(t, divided.Plan, "decode").PlanNS; ns >= decode.PlanNS {
		t.Errorf("divided it takes %d ns, and whole operators %d", ns, decode.PlanNS)
	}
	decision := divided.Plan.DecisionFor("head.lm_head", 1)
	columns := map[string]int{}
	for _, share := range decision.Shares {
		columns[share.Proc] += share.To - share.From
	}
	if columns["cpu"] < columns["gpu"] {
		t.Errorf("the vocabulary is on %v, want more of it on the CPU", columns)
	}
	// Widths that were not measured take about what the plan expects: less than the whole on the CPU.
	for name, width := range columns {
		ns, err := sim.NS(soc, name, op.Op{Kind: op.MatMul, M: 1, K: 2560, N: width, Scheme: op.A8TQ4B32})
		if err != nil {
			t.Fatal(err)
		}
		if expected := whole.Plan.DecisionFor("head.lm_head", 1).Shares[0].PredictNS; ns >= expected {
			t.Errorf("%d columns take the %s %d ns, and the CPU takes %d for all", width, name, ns, expected)
		}
	}

	// Explain says what the alternatives take.
	rows, err := Explain(whole.Plan, "head.lm_head", 1, &in)
	if err != nil {
		t.Fatal(err)
	}
	took := map[string]int64{}
	for _, row := range rows {
		if row.Strategy == planir.Single {
			took[row.Shares] = row.NS
		}
	}
	if took["gpu"] < 8*took["cpu"] || took["cpu"] == 0 {
		t.Errorf("explain says %v, want the GPU to take at least 8 times as long as the CPU", took)
	}
}

// alone is what a processor takes alone.
func alone(t *testing.T, predicted *planir.Prediction, name string) int64 {
	t.Helper()
	for _, other := range predicted.Singles {
		if other.Proc == name {
			return other.NS
		}
	}
	t.Fatalf("no prediction of %s alone", name)
	return 0
}
