package executor_test

import (
	"cmp"
	"fmt"
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
	schemes := func(string) op.Scheme { return op.A32W32 }
	for _, rows := range plan.Attention.Rows {
		of := lower.GraphOf(plan, &graph, rows)
		sections, err := lower.Expand(of, rows, plan.MaxContext, plan.KV, schemes, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		var attending []string
		for i := range sections {
			for _, node := range sections[i].Nodes {
				kind, heads := node.Op().Kind, node.Op().KVHeads
				decision := out.DecisionFor(node.Name, rows)
				switch kind {
				case op.Estimate:
					decision.Shares = shares("b", heads, launch)
				case op.Select, op.SparseAttend:
					decision.Shares = shares("a", heads, 1)
				default:
					continue
				}
				decision.Strategy, decision.Axis = planir.WeightCentric, planir.AxisHeads

				if kind == op.SparseAttend && !slices.Contains(attending, node.Name) {
					attending = append(attending, node.Name)
					out.Attention.Pipelines = append(out.Attention.Pipelines, planir.HeadPipeline{
						Node: node.Name, Rows: rows, By: planir.ByExact,
						Launches: random.Perm((heads + launch - 1) / launch),
						Turns:    random.Perm(heads),
					})
				}
			}
		}
	}
	slices.SortStableFunc(out.Attention.Pipelines, func(x, y planir.HeadPipeline) int {
		return cmp.Or(cmp.Compare(x.Rows, y.Rows), cmp.Compare(x.Node, y.Node))
	})

	if err := lower.Lower(&out, &graph); err != nil {
		t.Fatal(err)
	}
	if list := planir.Check(&out); list.Err() != nil {
		t.Fatal(list.Err())
	}
	return &out
}

// Heads in a pipeline have the bits that sparse attention has without one: in every architecture, for keys that several
// queries share, in one call, in chunks, and token by token.
func TestHeadPipelines(t *testing.T) {
	dirs := archDirs(t)
	if testing.Short() {
		dirs = nil
		names := []string{"llama-plain", "llama-mqa", "gemma2-caps", "mistral-window", "llama-mha", "qwen2-layer-types"}
		for _, name := range names {
			dirs = append(dirs, filepath.Join("../../testdata/arch", name, "config.json"))
		}
	}
	first, second := cores(t)
	pair := pairOn(first, second)
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
			plain := sparsePlan(t, m, cal, sparseSpec{
				procs: pair, rows: rows, sparse: rows, context: context, block: 8, cache: op.F32,
			})
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
							what := fmt.Sprintf("%d tokens in chunks %v, launches of %d key heads", n, chunks, launch)
							t.Errorf("%s: differs by %g, want equal bits", what, got)
						}
					}
				}
				piped.Close()
			}
		})
	}
}

// ONNX Runtime takes whole buffers only, but the driver rounds and pools. Therefore it estimates launches of some
// heads, too, and the bits are those of one launch.
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
	plain := sparsePlan(t, m, cal, sparseSpec{
		procs: pair, rows: rows, sparse: rows[1:], context: 130, block: 8, cache: op.F32,
		layout: byStages,
	})
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

	alone := machineWith(t, m, plain, cal, withORT(), bothCompilers()...)
	defer alone.Close()
	beside := machineWith(t, m, piped, cal, withORT(), bothCompilers()...)
	defer beside.Close()
	for _, chunks := range [][]int{nil, {5, 1, 20}, {64, 40, 26}} {
		want := allLogits(t, alone, ids, chunks...)
		if d := maxDiff(allLogits(t, beside, ids, chunks...), want); d != 0 {
			t.Errorf("chunks %v: differs from one launch by %g, want equal bits", chunks, d)
		}
	}
}
