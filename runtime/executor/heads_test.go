package executor_test

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/executor"
)

// inPipelines puts the heads of every sparse attention of a plan into a pipeline: processor b estimates in launches of
// so many key heads, and a selects and attends for each key head by itself, in random orders.
func inPipelines(t testing.TB, m *models.Model, plan *planir.Plan, launch int, random *rand.Rand) *planir.Plan {
	t.Helper()
	graph := m.Graph()
	shares := func(proc string, heads, each int) (list []planir.Share) {
		for from := 0; from < heads; from += each {
			list = append(list, planir.Share{Proc: proc, From: from, To: min(heads, from+each)})
		}
		return list
	}
	out := *plan
	out.Decisions = slices.Clone(plan.Decisions)
	out.Attention = new(*plan.Attention)
	for _, rows := range plan.Attention.Rows {
		sections, err := lower.Expand(lower.GraphOf(plan, &graph, rows), rows, plan.MaxContext, plan.KV,
			func(string) op.Scheme { return op.A32W32 }, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		var nodes []string
		for i := range sections {
			for _, node := range sections[i].Nodes {
				decision, heads := out.DecisionFor(node.Name, rows), node.Op().KVHeads
				switch node.Op().Kind {
				case op.Estimate:
					decision.Shares = shares("b", heads, launch)
				case op.Select, op.SparseAttend:
					decision.Shares = shares("a", heads, 1)
				default:
					continue
				}
				decision.Strategy, decision.Axis = planir.WeightCentric, planir.AxisHeads
				if node.Op().Kind == op.SparseAttend && !slices.Contains(nodes, node.Name) {
					nodes = append(nodes, node.Name)
					out.Attention.Pipelines = append(out.Attention.Pipelines, planir.HeadPipeline{Node: node.Name, Rows: rows,
						By: planir.ByExact, Launches: random.Perm((heads + launch - 1) / launch), Turns: random.Perm(heads)})
				}
			}
		}
	}
	slices.SortStableFunc(out.Attention.Pipelines, func(x, y planir.HeadPipeline) int {
		if x.Rows != y.Rows {
			return x.Rows - y.Rows
		}
		return map[bool]int{true: -1, false: 1}[x.Node < y.Node]
	})
	if err := lower.Lower(&out, &graph); err != nil {
		t.Fatal(err)
	}
	if found := planir.Check(&out); found.Err() != nil {
		t.Fatal(found.Err())
	}
	return &out
}

// Heads in a pipeline have the bits that sparse attention has without one: in every architecture, for keys that several
// queries share, in one call, in chunks, and token by token.
func TestHeadPipelines(t *testing.T) {
	dirs := archDirs(t)
	if testing.Short() {
		dirs = nil
		for _, name := range []string{"llama-plain", "llama-mqa", "gemma2-caps", "mistral-window", "llama-mha", "qwen2-layer-types"} {
			dirs = append(dirs, filepath.Join("../../testdata/arch", name, "config.json"))
		}
	}
	first, second := cores(t)
	pair := []planir.Proc{proc("a", first, ""), proc("b", second, "")}
	random := rand.New(rand.NewPCG(3, 4))
	for _, config := range dirs {
		dir := filepath.Dir(config)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m, err := models.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			texts := readLogits(t, filepath.Join(dir, "logits.safetensors"))
			context, rows := max(130, min(m.MaxContext, 160)), []int{1, 16, 64}
			cal := attentive(t, m, 0.3)
			plain := sparsePlan(t, m, cal, pair, rows, rows, context, 8, op.F32, nil)
			alone := machineWith(t, m, plain, cal, executor.Options{})
			defer alone.Close()
			for _, launch := range []int{1, 3} {
				piped := machineWith(t, m, inPipelines(t, m, plain, launch, random), cal, executor.Options{})
				for _, n := range lengths {
					ids := texts[n].ids
					for _, chunks := range [][]int{nil, {5, 1, 20}, {3, 1, 1, 1, 60}} {
						if chunks != nil && (n < 33 || dependsOnLength(m)) {
							continue
						}
						want := allLogits(t, alone, ids, chunks...)
						if got := maxDiff(allLogits(t, piped, ids, chunks...), want); got != 0 {
							t.Errorf("%d tokens in chunks %v, launches of %d key heads: differs by %g, want equal bits", n, chunks, launch, got)
						}
					}
				}
				piped.Close()
			}
		})
	}
}

// A library that takes whole buffers only estimates launches of some heads all the same: the driver rounds and pools.
// The bits are those of one launch.
func TestHeadPipelineBesideORT(t *testing.T) {
	needORT(t)
	first, second := cores(t)
	m, err := models.Open("../../testdata/arch/llama-plain")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	ids := readLogits(t, "../../testdata/arch/llama-plain/logits.safetensors")[130].ids
	cal, rows := attentive(t, m, 0.3), []int{1, 16, 64}
	pair := []planir.Proc{proc("a", first, ""), ortProc(t, "b", second)}
	plain := sparsePlan(t, m, cal, pair, rows, rows[1:], 130, 8, op.F32, byStages)
	piped := inPipelines(t, m, plain, 1, rand.New(rand.NewPCG(5, 6)))
	launches := 0
	for i := range piped.Program.Graphs {
		if graph := &piped.Program.Graphs[i]; graph.Proc == "b" && graph.Graph.Estimate() != nil {
			launches++
		}
	}
	if launches == 0 {
		t.Fatal("no graph of ONNX Runtime estimates")
	}
	alone, beside := machineWith(t, m, plain, cal, withORT(), bothCompilers()...), machineWith(t, m, piped, cal, withORT(), bothCompilers()...)
	defer alone.Close()
	defer beside.Close()
	for _, chunks := range [][]int{nil, {5, 1, 20}, {64, 40, 26}} {
		if got := maxDiff(allLogits(t, beside, ids, chunks...), allLogits(t, alone, ids, chunks...)); got != 0 {
			t.Errorf("chunks %v: differs from one launch by %g, want equal bits", chunks, got)
		}
	}
}
