package compare

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/cmd/internal/precision"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// comparedTier is one row of the comparison of tiers.
type comparedTier struct {
	SoC       string  `json:"soc"`
	Model     string  `json:"model"`
	Loads     string  `json:"loads"`
	Imbalance float64 `json:"imbalance"` // mean over layers
	Rule      string  `json:"rule"`
	Tiers     []int   `json:"tiers"`
	NS        int64   `json:"simulated_ns"` // expected, of a chunk
	Ratio     float64 `json:"ratio"`        // to solve's
	Experts   int64   `json:"npu_experts"`
	Launches  int64   `json:"launches"`
	Overflow  float64 `json:"overflow"` // share of routed rows
	Padding   float64 `json:"padding"`  // share of reserved rows
	Status    string  `json:"status,omitempty"`
	Gap       float64 `json:"gap,omitempty"` // how much less another choice may take, relative
}

// tierChunk is the chunk length in tokens: the middle one of the paper.
const tierChunk = 512

// comparedTiers compares solve's capacity tiers with NPUMoE's ladder, the best uniform capacity,
// and the CPU alone, on traced and on synthetic loads.
func comparedTiers(ctx context.Context) (string, any, error) {
	var rows []comparedTier
	for _, pair := range [][2]string{
		{"apple-m2-max", "phi-3.5-moe"}, {"apple-m2-max", "qwen3-30b-a3b"}, {"snapdragon-8gen3", "phi-3.5-moe"},
		{"snapdragon-8gen3", "qwen1.5-moe-a2.7b"},
	} {
		list, err := tiersOf(ctx, pair)
		if err != nil {
			return "", nil, err
		}
		rows = append(rows, list...)
	}
	return tierTable(rows), rows, nil
}

// tiersOf returns the rows of one SoC and model, on every kind of loads.
func tiersOf(ctx context.Context, pair [2]string) (rows []comparedTier, err error) {
	soc, model, err := catalogPair(pair)
	if err != nil {
		return nil, err
	}
	defer model.Close()
	// The SoC's own arithmetic: FP16 on the ANE, 4-bit weights on the phone.
	scheme := op.A32W32
	if soc.Name == "snapdragon-8gen3" {
		scheme = op.A8TQ4B32
	}
	costs, err := simulatedCosts(ctx, soc, model, profiler.Want{Schemes: []op.Scheme{scheme}})
	if err != nil {
		return nil, err
	}
	for _, generator := range []string{"traced", "uniform", "zipf:0.6", "zipf:1", "zipf:1.4", "hot:2:0.5"} {
		var loads *workload.Loads
		if generator == "traced" {
			// The trace is of a model with 16 experts and cannot be applied to others.
			if model.Experts != 16 {
				continue
			}
			loads, err = workload.TracedExample().As(model)
		} else {
			loads, err = workload.Synthetic(model, generator, precision.LoadTokens, 128, 1)
		}
		if err != nil {
			return nil, err
		}
		list, err := compareTiers(ctx, soc, solver.Input{Model: model, SoC: soc, Costs: costs, Loads: loads}, scheme)
		if err != nil {
			return nil, err
		}
		rows = append(rows, list...)
	}
	return rows, nil
}

// tierTable returns the comparison as Markdown.
func tierTable(rows []comparedTier) string {
	var text strings.Builder
	fmt.Fprintf(&text, "Simulated: expected time of all experts of a chunk of %d tokens. Rows beyond a capacity go to "+
		"the CPU in every row of the table; every\nrule groups experts as solve does. *ladder*: every expert on the NPU "+
		"in the smallest of %v at or above its expected load (NPUMoE sec. 4.1).\n*best uniform*: the one capacity for all "+
		"experts, of all that solve may choose from, that is fastest. Traced loads\nare those of tiny-moe-kjv (16 "+
		"experts, 2 a token), its four layers repeated; its imbalance is the mean over layers of the busiest expert's "+
		"load over the mean.\n\n"+
		"| SoC | model | loads | imbalance | rule | tiers | simulated ms | ratio | experts on the NPU | launches | "+
		"overflow %% | padding %% |\n"+
		"| --- | --- | --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
		tierChunk, solver.PaperLadder)
	for _, tier := range rows {
		tiers := "-"
		if len(tier.Tiers) > 0 {
			tiers = strings.Trim(fmt.Sprint(tier.Tiers), "[]")
		}
		rule := tier.Rule
		if tier.Status != "" {
			rule = fmt.Sprintf("**%s** (%s)", rule, tier.Status)
			if tier.Gap > 0 {
				rule = fmt.Sprintf("**%s** (%s, gap %.2g %%)", tier.Rule, tier.Status, 100*tier.Gap)
			}
		}
		fmt.Fprintf(&text, "| %s | %s | %s | %.2f | %s | %s | %.1f | %.3f | %d | %d | %.1f | %.1f |\n",
			tier.SoC, tier.Model, tier.Loads, tier.Imbalance, rule, tiers, float64(tier.NS)/1e6, tier.Ratio,
			tier.Experts, tier.Launches, 100*tier.Overflow, 100*tier.Padding)
	}
	return text.String()
}

// compareTiers returns one block of rows: solve's choice and that of each rule, evaluated with the
// same table of costs.
func compareTiers(ctx context.Context, soc *socs.SoC, in solver.Input, scheme op.Scheme) ([]comparedTier, error) {
	npu := slices.IndexFunc(soc.Processors, func(p socs.Processor) bool { return p.StaticShapes })
	// A capacity that is no multiple of the tile would compute padding for nothing.
	tile := max(1, soc.Processors[npu].Tile.M)
	whole := func(capacities ...int) []int {
		return slices.DeleteFunc(capacities, func(rows int) bool { return rows%tile != 0 })
	}
	in.Workload = workload.Default()
	in.Workload.Experts = workload.Experts{Tiers: len(solver.PaperLadder),
		Capacities: whole(16, 32, 48, 64, 96, 128, 192, 256, 384, 512)}
	// Rules ignore how many experts the NPU's region holds; to be compared with them solve does, too.
	instance, err := solver.PoseTiers(in, tierChunk, []op.Scheme{scheme, scheme}, solver.TierRoom{})
	if err != nil {
		return nil, err
	}
	tiers := instance.Problem
	solution, err := exact.Engine{}.Tiers(ctx, tiers, problem.Limits{})
	if err != nil {
		return nil, err
	}

	imbalance := 0.0
	for i := range in.Loads.Layers {
		imbalance += in.Loads.Imbalance(i) / float64(len(in.Loads.Layers))
	}
	label := in.Loads.Generator
	if strings.HasPrefix(label, "traced") {
		label = "traced"
	}
	ladder := tiers.LadderSlots(whole(slices.Clone(solver.PaperLadder)...))
	uniform, dynamic := bestUniform(tiers), make([]int, len(tiers.Capacities))
	var out []comparedTier
	for _, rule := range []struct {
		name    string
		slots   []int // of each capacity
		choices [][]int
	}{
		{"solve", solution.Slots, solution.Choices}, {"ladder", ladder, tiers.InOrder(ladder)},
		{"best uniform", uniform, tiers.InOrder(uniform)}, {"all dynamic", dynamic, tiers.InOrder(dynamic)},
	} {
		row := comparedTier{SoC: soc.Name, Model: in.Model.Name, Loads: label, Imbalance: imbalance, Rule: rule.name}
		row.evaluate(tiers, rule.slots, rule.choices)
		row.Ratio = float64(tiers.Time(rule.slots, rule.choices)) / float64(solution.Objective)
		out = append(out, row)
	}
	out[0].Status = string(solution.Status)
	out[0].Gap = float64(solution.Objective-solution.Bound) / float64(solution.Objective)
	return out, nil
}

// bestUniform returns the slots of the one capacity for all experts that takes the least time.
func bestUniform(tiers *problem.Tiers) (best []int) {
	least := int64(math.MaxInt64)
	for tier := range tiers.Capacities {
		slots := make([]int, len(tiers.Capacities))
		slots[tier] = tiers.MostSlots()
		if ns := tiers.Time(slots, tiers.InOrder(slots)); ns < least {
			least, best = ns, slots
		}
	}
	return best
}

// evaluate sets the time of a chunk, and what the NPU holds and launches, with these slots of each capacity and these
// experts in them.
func (c *comparedTier) evaluate(tiers *problem.Tiers, slots []int, choices [][]int) {
	c.NS = tiers.Time(slots, choices) / int64(tiers.Chunks())
	groups, layers := tiers.Groups(), len(tiers.Layers)
	for tier, count := range slots {
		if count > 0 {
			c.Tiers = append(c.Tiers, tiers.Capacities[tier])
		}
		c.Experts += int64(count * layers)
		c.Launches += int64(len(groups[tier].Sizes(count)) * layers)
	}
	c.Overflow, c.Padding = tiers.Shares(choices)
}
