package profiler

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/socs"
)

func openModel(t *testing.T, name string) *models.Model {
	t.Helper()
	model, err := models.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { model.Close() })
	return model
}

// What a model is planned with is asked for once, in order of priority, of processors that execute it.
func TestRequests(t *testing.T) {
	model := openModel(t, "tinyllama-1.1b")
	soc := fakeSoC()
	soc.Processors[0].Kinds = []op.Kind{op.MatMul} // one processor can do little
	poor := soc.Processors[0].Name
	soc.Processors[1].FusesGLU = true
	want := Want{Buckets: []int{64, 256}, Schemes: []op.Scheme{op.A32W32, op.A8TQ8C}}
	requests, err := Requests(soc, model, want)
	if err != nil {
		t.Fatal(err)
	}

	keys := map[string]int{}
	for i := range requests {
		request := &requests[i]
		if _, dup := keys[request.Key()]; dup {
			t.Errorf("%s is there twice", request.Key())
		}
		keys[request.Key()] = request.Priority
		if i > 0 && request.Priority < requests[i-1].Priority {
			t.Fatal("not in order of priority")
		}
		measured := request.What
		measured.Samples, measured.Loops = []float64{1}, 1
		if err := measured.Validate(); err != nil {
			t.Errorf("%s: %v", request.Key(), err)
		}
		isOperator := request.What.Kind == record.Op && request.What.Op != nil
		if isOperator && request.What.Op.Kind != op.MatMul && request.What.Proc == poor {
			t.Errorf("%s: the processor executes matmuls only", request.Key())
		}
		if len(request.What.Concurrent) > 0 && (request.What.Proc == "c" || request.What.Concurrent[0].Proc == "c") {
			t.Errorf("%s: the processors share a core", request.Key())
		}
		if operator := request.What.Op; operator != nil && operator.M > 256 {
			t.Errorf("%s: more rows than the largest bucket", request.Key())
		}
	}

	for key, priority := range map[string]int{
		"op a matmul[1,2048]x[2048,2560] a8t/q8c n32 cold":                               priorityBase, // qkv
		"op b matmul[64,2048]x[2048,11264] a32/w32 n32 cold":                             priorityBase, // gate-up
		"op c matmul[1,2048]x[2048,32000] a32/w32 n32 cold":                              priorityBase, // head
		"op b matmul[256,5632]x[5632,512] a8t/q8c n32 cold":                              priorityShards,
		"op b matmul[256,5632]x[5632,32] a8t/q8c n32 cold":                               priorityShards, // one tile
		"op b matmul[1,2816]x[2816,2048] a8t/q8c n32 cold":                               priorityShards,
		"op a matmul[96,5632]x[5632,2048] a8t/q8c n32 cold":                              priorityBetween,
		"op b quant_rows[256,5632]":                                                      priorityGlue,
		"op b attention[1] heads=32/4 dim=64 context=512 kv=f32 cold":                    priorityGlue,
		"op b attention[256] heads=16/2 dim=64 context=256 kv=f32 cold":                  priorityShards,
		"op b matmul[64,2048]x[2048,11264] a8t/q8c n32 cold ends with glu[64,5632] silu": priorityBase,
		"op b matmul[1,2048]x[2048,11264] a32/w32 n32 cold ends with glu[1,5632] silu":   priorityBase,
		"sync a to b":                  priorityBase,
		"bandwidth b 67108864B with a": priorityShards,
		"op a matmul[1,5632]x[5632,1024] a8t/q8c n32 cold with b matmul[1,5632]x[5632,1024] a8t/q8c " +
			"n32 cold": priorityShards,
		"op b matmul[256,2048]x[2048,5632] a32/w32 n32 cold with a matmul[256,2048]x[2048,5632] a32/w32 " +
			"n32 cold": priorityShards,
	} {
		if got, ok := keys[key]; !ok || got != priority {
			t.Errorf("%s: there %v with priority %d, want %d", key, ok, got, priority)
		}
	}
	for key := range keys {
		if strings.Contains(key, "ends with") && !strings.HasPrefix(key, "op b matmul[") {
			t.Errorf("%s: another processor joins no gated linear unit", key)
		}
		if strings.Contains(key, "x[2048,32000]") && !strings.Contains(key, "matmul[1,") {
			t.Errorf("%s: the head has one row", key)
		}
	}

	again, err := Requests(soc, model, want)
	if err != nil || len(again) != len(requests) {
		t.Fatal("the list changes")
	}
	for i := range again {
		if again[i].Key() != requests[i].Key() {
			t.Fatal("the order changes")
		}
	}
}

// What works on the cache is measured with every type that the workload leaves open, and with no other.
func TestRequestsOfCaches(t *testing.T) {
	model, soc := openModel(t, "tinyllama-1.1b"), fakeSoC()
	for i := range soc.Processors {
		soc.Processors[i].KV = op.CacheTypes
	}
	for _, caches := range [][]op.Type{nil, {op.F16}, op.CacheTypes} {
		requests, err := Requests(soc, model, Want{Buckets: []int{64}, Schemes: []op.Scheme{op.A32W32}, Caches: caches,
			Densities: []float64{0.2, 1}})
		if err != nil {
			t.Fatal(err)
		}
		found := map[op.Kind][]op.Type{}
		for i := range requests {
			if o := requests[i].What.Op; o != nil && o.KV != "" && !slices.Contains(found[o.Kind], o.KV) {
				found[o.Kind] = append(found[o.Kind], o.KV)
			}
		}
		if caches == nil {
			caches = []op.Type{op.F32}
		}
		for _, kind := range []op.Kind{op.KVAppend, op.Attention, op.Estimate, op.SparseAttend} {
			got, want := slices.Sorted(slices.Values(found[kind])), slices.Sorted(slices.Values(caches))
			if !slices.Equal(got, want) {
				t.Errorf("%s is measured over caches of %v, want %v", kind, got, want)
			}
		}
	}
}

// TestFootprintsOfSmallModels checks that a model smaller than the caches is measured where it would lie in them.
func TestFootprintsOfSmallModels(t *testing.T) {
	model := openModel(t, "../testdata/models/tiny-llama-kjv")
	soc := fakeSoC()
	soc.CPU.Caches[0].Bytes = 256 << 20
	requests, err := Requests(soc, model, Want{})
	if err != nil {
		t.Fatal(err)
	}
	small := 0
	for _, request := range requests {
		if !request.What.Cold {
			continue
		}
		if f := request.What.Footprint; f < 1<<20 || f > 100<<20 {
			t.Errorf("%s: footprint %d bytes of a model of some 20 MB", request.Key(), f)
		}
		small++
	}
	soc.CPU.Caches[0].Bytes = 1 << 20
	if requests, err = Requests(soc, model, Want{}); err != nil {
		t.Fatal(err)
	}
	for _, request := range requests {
		if request.What.Footprint != 0 && request.What.Op.Kind != op.Embed {
			t.Errorf("%s: a model beyond the caches", request.Key())
		}
	}
	if small == 0 {
		t.Error("nothing is cold")
	}
}

// Whatever a model computes is asked for at every number of rows a plan has, in the schemes its matrices may have.
func TestRequestsEveryArchitecture(t *testing.T) {
	dirs, err := filepath.Glob("../testdata/arch/*/config.json")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no models: %v", err)
	}
	kinds := map[op.Kind]bool{}
	for _, config := range dirs {
		dir := filepath.Dir(config)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			model, err := models.Open(dir)
			if err != nil && strings.Contains(err.Error(), "is not supported") {
				t.Skipf("this build reads no such model: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer model.Close()
			want := Want{Buckets: []int{16, 64}, Batches: []int{4}, Schemes: []op.Scheme{op.A8TQ8C, op.A8OQ8C},
				Densities: []float64{0.2}}
			requests, err := Requests(fakeSoC(), model, want)
			if err != nil {
				t.Fatal(err)
			}

			asked := map[string]bool{}
			for _, request := range requests {
				operator := request.What.Op
				isAlone := request.What.Kind == record.Op && len(request.What.Concurrent) == 0
				if operator != nil && isAlone && request.What.Proc == "b" {
					asked[operator.Key()] = true
					kinds[operator.Kind] = true
				}
				measured := request.What
				measured.Samples, measured.Loops = []float64{1}, 1
				if err := measured.Validate(); err != nil {
					t.Errorf("%s: %v", request.Key(), err)
				}
			}

			graph := model.Graph()
			batch, sparse := graph.Batch(), graph.Sparse(op.Sparsity{Density: 0.2, Block: op.SparseBlock})
			for _, program := range []struct {
				rows  int
				graph *models.Graph
			}{{1, &graph}, {4, &batch}, {16, &graph}, {64, &graph}, {16, &sparse}, {64, &sparse}} {
				checkAsked(t, asked, program.graph, program.rows)
			}
			checkExact(t, requests, &graph)
		})
	}

	// What executes groups of experts is priced by products and sums (roofline.Costs.Op), and not measured.
	kinds[op.GroupMatMul], kinds[op.Dispatch], kinds[op.Collect] = true, true, true
	for _, kind := range op.Kinds {
		if !kinds[kind] {
			t.Errorf("no model asks for %q", kind)
		}
	}
}

// checkAsked checks that every operator of a graph at a number of rows is asked for, and its parts along K.
func checkAsked(t *testing.T, asked map[string]bool, graph *models.Graph, rows int) {
	t.Helper()
	schemeOf := func(string) op.Scheme { return op.A8TQ8C }
	sections, err := lower.Expand(graph, rows, 512, op.F32, schemeOf, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, section := range sections {
		for _, node := range section.Nodes {
			for _, operator := range node.Ops {
				if operator.Kind.Has("context") {
					operator.Context = max(rows, 64) // one of several
					if operator.Window > 0 && operator.Window < 64 {
						operator.Context = max(rows, operator.Window)
					}
				}
				wanted := []op.Op{operator}
				if operator.Kind == op.MatMul && rows != 4 && rows != 16 { // a part along K, with and without the bias
					half := operator
					half.K = part(operator.K, 1, 2, 32)
					plain := half
					plain.Bias = false
					wanted = append(wanted, half, plain)
				}
				for _, one := range wanted {
					if !asked[one.Key()] {
						t.Errorf("%s@%d: %s is not asked for", node.Name, rows, one.Key())
					}
				}
			}
		}
	}
}

// checkExact checks that products in stored precision are asked for only where a model has them exact, or parts of
// them.
func checkExact(t *testing.T, requests []Request, graph *models.Graph) {
	t.Helper()
	exact := map[[2]int]bool{} // by K and N
	for _, section := range graph.Sections {
		for _, node := range section.Nodes {
			if node.Exact {
				exact[[2]int{node.Ops[0].K, node.Ops[0].N}] = true
			}
		}
	}
	for _, request := range requests {
		operator := request.What.Op
		if operator == nil || operator.Kind != op.MatMul || operator.Scheme != op.A32W32 {
			continue
		}
		isPart := false
		for shape := range exact {
			isPart = isPart || operator.K <= shape[0] && operator.N <= shape[1]
		}
		if !isPart {
			t.Errorf("%s: nobody permits this scheme", request.Key())
		}
	}
}

// Of a mixture of experts a token reads the matrices of a few: dense ones come back sooner than its experts.
func TestFootprintsOfExperts(t *testing.T) {
	model := openModel(t, "../testdata/arch/olmoe-plain")
	soc := fakeSoC()
	soc.CPU.Caches[0].Bytes = 1 << 30
	requests, err := Requests(soc, model, Want{})
	if err != nil {
		t.Fatal(err)
	}
	dense, experts := int64(0), int64(0)
	for _, request := range requests {
		switch operator := request.What.Op; {
		case operator == nil:
		case operator.Kind == op.MatMul:
			dense = request.What.Footprint
		case operator.Kind == op.ExpertMatMul:
			experts = request.What.Footprint
		}
	}
	graph := model.Graph()
	var differ int64
	for _, sec := range graph.Sections {
		for _, n := range sec.Nodes {
			if o := n.Ops[0]; o.Kind == op.ExpertMatMul {
				differ += int64(sec.Layers) * int64(o.Experts-o.Fan) * op.WeightBytes("w32", o.K, o.N)
			}
		}
	}
	if dense == 0 || experts-dense != differ {
		t.Errorf("footprints %d and, of experts, %d: want a difference of %d", dense, experts, differ)
	}
}

// Static scales double nothing: what is measured is their twin, where every processor executes that too.
func TestRequestsOfTwins(t *testing.T) {
	model, soc := openModel(t, "tinyllama-1.1b"), fakeSoC()
	keys := func(schemes ...op.Scheme) (out []string) {
		list, err := Requests(soc, model, Want{Schemes: schemes})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list {
			out = append(out, r.Key())
		}
		return out
	}
	want := keys(op.A32W32, op.A8TQ8C)
	for _, schemes := range [][]op.Scheme{
		{op.A32W32, op.A8SQ8C}, {op.A32W32, op.A8TQ8C, op.A8SQ8C}, {op.A32W32, op.A8SQ8C, op.A8TQ8C},
	} {
		if got := keys(schemes...); !slices.Equal(got, want) {
			t.Errorf("%v: %d requests, want the %d of %q", schemes, len(got), len(want), op.A8TQ8C)
		}
	}
	for i := range soc.Processors {
		soc.Processors[i].Schemes = []op.Scheme{op.A32W32, op.A8SQ8C}
	}
	for _, k := range keys(op.A8SQ8C) {
		if strings.Contains(k, "a8t") {
			t.Errorf("%q is asked of processors that do not execute it", k)
		}
	}
}

// Forms are asked of processors that have them, in the schemes that do: weights in every factorisation of their rows,
// parts and rows between in the squarest; and the default comes first.
func TestRequestsOfForms(t *testing.T) {
	model, soc := openModel(t, "tinyllama-1.1b"), fakeSoC()
	proc := &soc.Processors[1]
	proc.StaticShapes, proc.DynamicRows = true, false
	proc.Forms = map[op.Scheme][]op.Form{op.A8TQ8C: {op.Conv, op.Swapped}}
	list, err := Requests(soc, model, Want{Buckets: []int{64, 256}, Schemes: []op.Scheme{op.A32W32, op.A8TQ8C}})
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]int{}
	for i, request := range list {
		at[request.Key()] = i
		if o := request.What.Op; o != nil && o.Form != "" && (request.What.Proc != proc.Name || o.Scheme != op.A8TQ8C ||
			o.Kind != op.MatMul) {
			t.Errorf("%s: the processor has no such form", request.Key())
		}
	}
	whole := "op " + proc.Name + " matmul[%d,2048]x[2048,2560] a8t/q8c%s n32 cold"
	for _, rows := range []int{1, 64, 256} {
		first, ok := at[fmt.Sprintf(whole, rows, "")]
		for _, form := range op.FormsOf(rows, proc.Forms[op.A8TQ8C]) {
			if i, have := at[fmt.Sprintf(whole, rows, " "+string(form))]; !ok || !have || i < first {
				t.Errorf("%d rows in form %q: there %v, place %d, the default at %d", rows, form, have, i, first)
			}
		}
	}
	part := "op " + proc.Name + " matmul[64,2048]x[2048,1280] a8t/q8c%s n32 cold"
	between := "op " + proc.Name + " matmul[96,2048]x[2048,2560] a8t/q8c%s n32 cold"
	for key, want := range map[string]bool{
		fmt.Sprintf(part, " conv 8x8"): true, fmt.Sprintf(part, " conv 16x4"): false,
		fmt.Sprintf(part, " swapped"):      false,
		fmt.Sprintf(between, " conv 12x8"): true, fmt.Sprintf(between, " conv 16x6"): false,
		fmt.Sprintf(between, " swapped"): true,
	} {
		if _, have := at[key]; have != want {
			t.Errorf("%s: there %v, want %v", key, have, want)
		}
	}
}

// Products with static scales may have forms that those with scales of rows lack. These are asked of the first wanted
// scheme that has them, though products in the default form are asked of the twin.
func TestRequestsOfStaticForms(t *testing.T) {
	model, soc := openModel(t, "tinyllama-1.1b"), fakeSoC()
	proc := &soc.Processors[1]
	proc.StaticShapes, proc.DynamicRows = true, false
	proc.Forms = map[op.Scheme][]op.Form{op.A8SQ8C: {op.Conv}, op.A8OQ8C: {op.Conv}}
	for _, test := range []struct{ wanted, measured []op.Scheme }{
		{[]op.Scheme{op.A8TQ8C}, nil},
		{[]op.Scheme{op.A8OQ8C}, []op.Scheme{op.A8OQ8C}},
		{[]op.Scheme{op.A8OQ8C, op.A8SQ8C, op.A8TQ8C}, []op.Scheme{op.A8SQ8C}},
	} {
		list, err := Requests(soc, model, Want{Buckets: []int{64}, Schemes: test.wanted})
		if err != nil {
			t.Fatal(err)
		}
		var measured []op.Scheme
		square := false
		for _, request := range list {
			operator := request.What.Op
			if operator == nil || operator.Kind != op.MatMul {
				continue
			}
			if operator.Form == "" {
				if operator.Scheme != op.A8TQ8C {
					t.Errorf("%v wanted: %s is asked, want the twin", test.wanted, request.Key())
				}
				continue
			}
			square = square || operator.Form == "conv 8x8"
			if !slices.Contains(measured, operator.Scheme) {
				measured = append(measured, operator.Scheme)
			}
		}
		besides := op.Op{Kind: op.MatMul, M: 64, K: 2048, N: 96, Scheme: op.A8OQ8C, Form: "conv 8x8"}
		list, err = Requests(soc, model,
			Want{Buckets: []int{64}, Schemes: test.wanted, Besides: []Placed{{proc.Name, besides}}})
		if err != nil || !slices.ContainsFunc(list,
			func(r Request) bool { return r.What.Op != nil && *r.What.Op == besides }) {
			t.Errorf("%v wanted: %s beside the model's operators is not asked for: %v", test.wanted, besides.Key(), err)
		}
		if !slices.Equal(measured, test.measured) || square != (test.measured != nil) {
			t.Errorf("%v wanted: forms are asked in %v, want %v", test.wanted, measured, test.measured)
		}
	}
}

// What is wanted beside the model's own operators is asked for once, a static scheme as its twin, and a set of
// processors by what each of them reads while the others do.
func TestRequestsBesides(t *testing.T) {
	model, soc := openModel(t, "tinyllama-1.1b"), fakeSoC()
	want := Want{Schemes: []op.Scheme{op.A8TQ8C}}
	before, err := Requests(soc, model, want)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for i := range before {
		known[before[i].Key()] = true
	}
	share := op.Op{Kind: op.MatMul, M: 37, K: 2048, N: 96, Scheme: op.A8TQ8C}
	static := share
	static.Scheme = op.A8SQ8C
	own := slices.IndexFunc(before, func(r Request) bool {
		return r.What.Proc == "a" && r.What.Op != nil && r.What.Op.Kind == op.MatMul
	})
	want.Besides = []Placed{{"a", share}, {"a", static}, {"b", static}, {"a", *before[own].What.Op}}
	want.Together = [][]string{{"a", "b"}, {"a", "b", "d"}}
	fourth := soc.Processors[1]
	fourth.Name, fourth.Cores = "d", []int{9}
	soc.Processors = append(soc.Processors, fourth)
	want.Processors = []string{"a", "b", "c"}
	if _, err := Requests(soc, model, want); err == nil || !strings.Contains(err.Error(), `no processor "d"`) {
		t.Errorf("a set with a processor that is not to be measured: %v", err)
	}
	want.Together[1] = []string{"b", "a"}
	after, err := Requests(soc, model, want)
	if err != nil {
		t.Fatal(err)
	}
	var added []string
	for i := range after {
		if key := after[i].Key(); !known[key] {
			added = append(added, key)
		}
	}
	slices.Sort(added)
	const key = " matmul[37,2048]x[2048,96] a8t/q8c n32 cold"
	if !slices.Equal(added, []string{"op a" + key, "op b" + key}) {
		t.Errorf("added %q", added)
	}
	want.Together, want.Processors = [][]string{{"a", "b", "d"}}, []string{"a", "b", "d"}
	if after, err = Requests(soc, model, want); err != nil {
		t.Fatal(err)
	}
	sets := 0
	for i := range after {
		if what := &after[i].What; what.Kind == record.Bandwidth && len(what.Concurrent) == 2 {
			sets++
		}
	}
	if sets != 3 {
		t.Errorf("%d of 3 processors read beside both others", sets)
	}
}

func TestRequestsRefuse(t *testing.T) {
	model := openModel(t, "tinyllama-1.1b")
	soc := fakeSoC()
	for _, tt := range []struct {
		want Want
		text string
	}{
		{Want{Processors: []string{"gpu"}}, `no processor "gpu"`},
		{Want{Buckets: []int{0}}, "buckets [0]"},
		{Want{Buckets: []int{1 << 20}}, "buckets [1048576]"},
		{Want{Schemes: []op.Scheme{"a8t/x"}}, `"a8t/x"`},
		{Want{MaxContext: 1 << 30}, "context of 1073741824 positions"},
	} {
		_, err := Requests(soc, model, tt.want)
		if err == nil || !strings.Contains(err.Error(), tt.text) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%+v: %v, want %s", tt.want, err, tt.text)
		}
	}
	for i := range soc.Processors {
		soc.Processors[i].Schemes = []op.Scheme{op.A32W32}
	}
	_, err := Requests(soc, model, Want{Schemes: []op.Scheme{op.A8TQ8C}})
	if hints := diag.HintsOf(err); len(hints) != 1 || !strings.Contains(hints[0], "[a32/w32]") {
		t.Errorf("a scheme that nobody executes: %v, hints %q, want those that are executed", err, hints)
	}
}

func TestPart(t *testing.T) {
	for _, tt := range []struct{ n, num, den, tile, want int }{
		{2048, 1, 4, 32, 512}, {2560, 3, 4, 32, 1920}, {100, 1, 4, 32, 32}, {20, 1, 2, 32, 20}, {96, 1, 2, 32, 32},
		{100, 1, 2, 0, 50},
	} {
		if got := part(tt.n, tt.num, tt.den, tt.tile); got != tt.want {
			t.Errorf("part(%d, %d, %d, %d) = %d, want %d", tt.n, tt.num, tt.den, tt.tile, got, tt.want)
		}
	}
}

// TestEveryCatalogSoC makes lists for all published SoCs.
func TestEveryCatalogSoC(t *testing.T) {
	model := openModel(t, "llama-3-8b")
	names := socs.Catalog()
	if len(names) == 0 {
		t.Fatal("the catalog is empty")
	}
	for _, name := range names {
		soc, err := socs.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		requests, err := Requests(soc, model, Want{Buckets: []int{1, 64, 1024}, Schemes: []op.Scheme{op.A8TQ4B32}})
		if err != nil || len(requests) < 100 {
			t.Errorf("%s: %d requests, %v", name, len(requests), err)
		}
	}
}
