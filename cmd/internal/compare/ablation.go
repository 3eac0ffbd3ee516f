package compare

import (
	"context"
	"fmt"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/workload"
)

// TierRow is a way to execute experts that NPUMoE's ablation compares (5.7, 5.8).
type TierRow struct {
	Name    string
	Dynamic bool // no capacity tiers
	Rule    solver.TierRule
}

// TierRows are the ablation, solve's own choice first.
var TierRows = []TierRow{
	{Name: freely},
	{Name: "everything dynamic", Dynamic: true},
	{Name: "one tier", Rule: solver.TierRule{Slots: "one"}},
	{Name: "paper's tiers", Rule: solver.TierRule{Slots: "paper"}},
	{Name: "optimal tiers", Rule: solver.TierRule{Slots: "optimal"}},
	{Name: "without grouping", Rule: solver.TierRule{Slots: "optimal", Ungrouped: true}},
	{Name: "without residency", Rule: solver.TierRule{Slots: "all"}},
}

// TierUse is what a plan's capacity tiers are for its program of that many rows: groups as written, launches on
// processors of static shapes in the program, and means over the layers of shares in percent.
type TierUse struct {
	Groups   string  `json:"groups"`
	Slots    int     `json:"slots"` // of a layer
	Launches int     `json:"launches"`
	Moved    float64 `json:"moved_percent"`    // of the routed rows, expected
	Overflow float64 `json:"overflow_percent"` // likewise
}

// TiersIn describes the tiers of a plan's program of that many rows.
func TiersIn(plan *planir.Plan, rows int) TierUse {
	use := TierUse{Groups: "-"}
	static := map[string]bool{}
	for i := range plan.Procs {
		static[plan.Procs[i].Name] = plan.Procs[i].StaticShapes
	}
	for i := range plan.Program.Programs {
		program := &plan.Program.Programs[i]
		if program.Rows != rows || program.Batch() {
			continue
		}
		for _, section := range program.Sections {
			for _, lane := range section.Lanes {
				if static[lane.Proc] {
					use.Launches += len(lane.Steps) * max(1, section.Layers)
				}
			}
		}
	}
	if tiers := plan.TiersOf(rows); tiers != nil {
		use.Groups, use.Slots = string(tiers.Shape()), tiers.Slots()
		for _, layer := range tiers.Layers {
			use.Moved += 100 * layer.Moved / float64(len(tiers.Layers))
			use.Overflow += 100 * layer.Overflow / float64(len(tiers.Layers))
		}
	}
	return use
}

// ablatedRow is a row of the ablation on a simulated SoC.
type ablatedRow struct {
	SoC   string `json:"soc"`
	Model string `json:"model"`
	Loads string `json:"loads"`
	Rows  int    `json:"rows"`
	Plan  string `json:"plan"`
	TierUse
	PredictedNS int64   `json:"predicted_ns"`
	ExecutedNS  int64   `json:"simulated_ns"`
	Ratio       float64 `json:"solved_takes"` // time of solve's plan over this one's
}

// ablationCases are the SoCs and models of the ablation, in the SoC's own arithmetic: FP16 on the ANE, which a32/w32
// stands for, 4-bit weights on the phone.
var ablationCases = []struct {
	soc, model string
	scheme     op.Scheme
	chunks     []int
}{
	{"apple-m2-max", "phi-3.5-moe", op.A32W32, []int{256, 512, 1024}},
	{"apple-m2-max", "qwen3-30b-a3b", op.A32W32, []int{512}},
	{"snapdragon-8gen3", "phi-tiny-moe", op.A8TQ4B32, []int{256, 512}},
	{"snapdragon-8gen3", "qwen1.5-moe-a2.7b", op.A8TQ4B32, []int{512}},
}

// ablationLoads are skewed as the paper says routing is (3.3), where no trace fits the model.
const ablationLoads = "zipf:0.6"

// comparedAblation executes the rows of NPUMoE's ablation on the virtual clock.
func comparedAblation(ctx context.Context) (string, any, error) {
	var rows []ablatedRow
	for _, one := range ablationCases {
		soc, err := timesOnly(one.soc, false)
		if err != nil {
			return "", nil, err
		}
		model, err := models.Open(one.model)
		if err != nil {
			return "", nil, err
		}
		defer model.Close()
		var loads *workload.Loads
		label := ablationLoads
		if model.Experts == 16 { // the experts of the model that was traced
			label = "traced"
			loads, err = workload.TracedExample().As(model)
		} else {
			loads, err = workload.Synthetic(model, ablationLoads, 64, 128, 1)
		}
		if err != nil {
			return "", nil, err
		}
		for _, chunk := range one.chunks {
			list, err := ablate(ctx, soc, model, loads, one.scheme, chunk)
			if err != nil {
				return "", nil, fmt.Errorf("%s on %s: %w", one.model, one.soc, err)
			}
			for i := range list {
				list[i].Loads = label
			}
			rows = append(rows, list...)
		}
	}
	return ablationTable(rows), rows, nil
}

// ablate solves and executes a prompt of one chunk in every way. Impossible ways are left out.
func ablate(ctx context.Context, soc *socs.SoC, model *models.Model, loads *workload.Loads, scheme op.Scheme,
	chunk int) (out []ablatedRow, err error) {
	permits := &workload.Workload{Schema: workload.Schema, Buckets: workload.Rows{chunk}, OutputTokens: 8,
		Prompts: workload.Prompts{{Tokens: chunk, Share: 1}},
		Schemes: workload.Schemes{Prefill: []op.Scheme{scheme}, Decode: []op.Scheme{scheme}},
		Experts: workload.Experts{Tiers: len(solver.PaperLadder)},
		Context: 2 * chunk,
	}
	needs, err := permits.Needs(model.MaxContext)
	if err != nil {
		return nil, err
	}
	costs, err := simulatedCosts(ctx, soc, model,
		profiler.Want{Schemes: []op.Scheme{scheme}, Buckets: needs.Buckets, MaxContext: needs.Context,
			Caches: needs.Caches})
	if err != nil {
		return nil, err
	}
	for _, row := range TierRows {
		way := alternative{name: row.Name, tiers: row.Rule, only: []string{"cpu", "npu"}}
		if !row.Dynamic {
			way.loads = loads
		}
		made, err := executed(ctx, soc, model, costs, permits, way)
		if row.Name != freely && diag.ClassOf(err) == diag.ClassInfeasible {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", row.Name, err)
		}
		out = append(out, ablatedRow{SoC: soc.Name, Model: model.Name, Rows: chunk, Plan: row.Name,
			TierUse: TiersIn(made.plan, chunk), PredictedNS: made.Prefill.PredictedNS,
			ExecutedNS: made.Prefill.ExecutedNS})
		last := &out[len(out)-1]
		last.Ratio = float64(out[0].ExecutedNS) / float64(last.ExecutedNS)
	}
	return out, nil
}

// ablationTable returns the ablation as Markdown.
func ablationTable(rows []ablatedRow) string {
	var text strings.Builder
	text.WriteString("Simulated: a prompt of one chunk on CPU and NPU alone, as in the paper, executed on the " +
		"virtual clock. *solve* takes tiers where the whole plan is predicted to be faster with them;\n" +
		"*without grouping*: the optimal tiers where every slot is a graph of its own; *without residency*: " +
		"slots for all experts, also for those that solve leaves to the CPU.\n\n" +
		"| SoC | model | loads | chunk | plan | groups of a layer | launches | in slots % | beyond % | tokens/s | " +
		"predicted | solve / this, time |\n" +
		"| --- | --- | --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for _, row := range rows {
		rate := func(ns int64) string { return fmt.Sprintf("%.1f", float64(row.Rows)*1e9/float64(ns)) }
		fmt.Fprintf(&text, "| %s | %s | %s | %d | %s | %s | %d | %.1f | %.1f | %s | %s | %.2f |\n", row.SoC, row.Model,
			row.Loads, row.Rows, row.Plan, ShortGroups(row.Groups), row.Launches, row.Moved, row.Overflow,
			rate(row.ExecutedNS), rate(row.PredictedNS), row.Ratio)
	}
	return text.String()
}

// ShortGroups writes equal groups that follow one another once: "16 of 1x32".
func ShortGroups(groups string) string {
	list := strings.Split(groups, ",")
	var out []string
	for i := 0; i < len(list); {
		next := i
		for next < len(list) && list[next] == list[i] {
			next++
		}
		if next-i > 1 {
			out = append(out, fmt.Sprintf("%d of %s", next-i, list[i]))
		} else {
			out = append(out, list[i])
		}
		i = next
	}
	return strings.Join(out, ", ")
}
