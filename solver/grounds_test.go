package solver

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/source"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/workload"
)

// Of a plan with a bucket beyond the measured rows, those decisions rest on extrapolation that a count from the costs
// alone finds, what is to be measured for them is what the costs lack, and the plan has the same bytes every time.
func TestGrounds(t *testing.T) {
	model, soc := demo(t), twoCores(t, 0.5)
	known := costs(t, soc, model, op.A32W32) // up to 512 rows
	known.Sharing[0].Source = source.Measured
	for i := range known.Handovers {
		known.Handovers[i].Source = source.Measured
	}
	for i := range known.Processors {
		known.Processors[i].LaunchSource = source.Measured
	}
	want := workload.Default()
	want.Buckets, want.Context = []int{16, 640}, 1024
	input := Input{Model: model, SoC: soc, Costs: known, Workload: want}
	plan := solve(t, input).Plan
	contextAt := prepared(t, input).want.ContextAt

	tasks, sets, err := Unmeasured(plan, model, soc, want)
	if err != nil || len(sets) > 0 {
		t.Fatal(sets, err)
	}
	listed := map[string]bool{}
	for i := range tasks {
		listed[tasks[i].Key()] = true
	}

	var counted []string
	for i := range plan.Decisions {
		decision := &plan.Decisions[i]
		lacking := beyond(t, model, plan, known, contextAt(decision.Rows), *decision)
		if len(decision.Alternatives) == 0 {
			t.Fatalf("%s@%d has no alternative", decision.Node, decision.Rows)
		}
		if cheapest := decision.Alternatives[0]; len(lacking) == 0 && cheapest.PredictNS <= 2*decision.PredictNS {
			other := shared(t, cheapest.Shares)
			other.Node, other.Rows, other.Scheme = decision.Node, decision.Rows, decision.Scheme
			other.Strategy = cheapest.Strategy
			lacking = beyond(t, model, plan, known, contextAt(decision.Rows), other)
		}
		for _, key := range lacking {
			if !listed[key] {
				t.Errorf("%s is not to be measured", key)
			}
		}
		if len(lacking) > 0 {
			counted = append(counted, fmt.Sprintf("%s@%d", decision.Node, decision.Rows))
		}
	}

	grounds := GroundsOf(plan)
	slices.Sort(counted)
	if got := slices.Sorted(slices.Values(grounds.Extrapolated)); !slices.Equal(got, counted) {
		t.Errorf("got %v, want %v", got, counted)
	}
	if len(counted) == 0 || len(counted) >= grounds.Decisions || grounds.Decisions != len(plan.Decisions) {
		t.Errorf("%d of %d decisions, of %d in the plan", len(counted), grounds.Decisions, len(plan.Decisions))
	}

	text := grounds.String()
	head := fmt.Sprintf("%d of %d decisions rest on extrapolation: ", len(counted), grounds.Decisions)
	more := fmt.Sprintf(" and %d more. ", len(counted)-maxNamed)
	if !strings.HasPrefix(text, head) || !strings.Contains(text, more) {
		t.Errorf("got %q, want %q and %q", text, head, more)
	}

	first, err := planir.Encode(plan)
	if err != nil {
		t.Fatal(err)
	}
	second, err := planir.Encode(solve(t, input).Plan)
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("another plan: %v", err)
	}
}

// beyond lists the operators of a decision that the costs extrapolate, as keys of tasks.
func beyond(t *testing.T, model *models.Model, plan *planir.Plan, costs *roofline.Costs, context int,
	decision planir.Decision) (lacking []string) {
	t.Helper()
	graph := model.Graph()
	schemeOf := func(node string) op.Scheme { return DecisionAt(plan, node, decision.Rows).Scheme }
	sections, err := lower.Expand(&graph, decision.Rows, plan.MaxContext, plan.KV, schemeOf,
		plan.TiersOf(decision.Rows), plan.Channels)
	if err != nil {
		t.Fatal(err)
	}
	for i := range sections {
		isNode := func(node lower.Node) bool { return node.Name == decision.Node }
		at := slices.IndexFunc(sections[i].Nodes, isNode)
		if at < 0 {
			continue
		}
		pieces, err := lower.Cut(&sections[i], &sections[i].Nodes[at], &decision, plan.Proc)
		if err != nil {
			t.Fatal(err)
		}

		for _, piece := range pieces {
			for _, operator := range piece.Ops {
				if operator.Kind == op.Attention {
					operator.Context = context
				}
				task := price.Task{Proc: piece.Proc, Op: operator}
				predicted, err := costs.Op(piece.Proc, operator, task.Cold())
				if err != nil {
					t.Fatal(err)
				}
				if predicted.Source == source.Extrapolated {
					lacking = append(lacking, task.Key())
				}
			}
		}
		return lacking
	}
	t.Fatalf("no operator %q", decision.Node)
	return nil
}

// shared reads shares as plans write them for processors without padding and forms: "cols c0 0:128, c1 128:256".
func shared(t *testing.T, text string) (out planir.Decision) {
	t.Helper()
	for _, axis := range []planir.Axis{planir.AxisCols, planir.AxisRows, planir.AxisK, planir.AxisHeads} {
		if rest, ok := strings.CutPrefix(text, string(axis)+" "); ok {
			out.Axis, text = axis, rest
		}
	}
	for part := range strings.SplitSeq(text, ", ") {
		name, interval, _ := strings.Cut(part, " ")
		from, to, _ := strings.Cut(interval, ":")
		share := planir.Share{Proc: name}
		share.From, _ = strconv.Atoi(from)
		share.To, _ = strconv.Atoi(to)
		out.Shares = append(out.Shares, share)
	}
	return out
}

// What is said of a plan without sources, with measured ones, and with a few weak ones.
func TestGroundsWords(t *testing.T) {
	decision := func(node string, ns int64, from source.Source, next planir.Alternative) planir.Decision {
		return planir.Decision{Node: node, Rows: 512, PredictNS: ns, Source: from,
			Alternatives: []planir.Alternative{next}}
	}
	slow := planir.Alternative{PredictNS: 999, Source: source.Described}
	for _, test := range []struct {
		decisions []planir.Decision
		imported  bool
		want      []string // parts
	}{
		{[]planir.Decision{{Node: "a", Rows: 1}}, false, []string{""}},
		{[]planir.Decision{decision("a", 100, source.Measured, slow)}, false,
			[]string{"All 1 decision rests on measured shapes, or on shapes between measured ones."}},
		{[]planir.Decision{decision("a", 100, source.Measured, slow), decision("b", 500, source.Interpolated, slow)},
			false, []string{"1 of 2 decisions rests on extrapolation: b@512. ",
				"hetc profile --resume --plan PLAN measures"}},
		{[]planir.Decision{decision("a", 100, source.Extrapolated, slow), decision("b", 500, source.Described, slow)},
			true, []string{"2 of 2 decisions rest on extrapolation: b@512, a@512. ", "Imported times"}},
	} {
		plan := planir.Plan{Decisions: test.decisions, SoC: planir.SoCRef{Imported: test.imported}}
		got := GroundsOf(&plan).String()
		for _, part := range test.want {
			if !strings.Contains(got, part) || part == "" && got != "" {
				t.Errorf("got %q, want %q", got, part)
			}
		}
	}
}
