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
	m, err := models.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func TestRequests(t *testing.T) {
	m := openModel(t, "tinyllama-1.1b")
	s := fakeSoC()
	s.Processors[0].Kinds = []op.Kind{op.MatMul} // one processor can do little
	poor := s.Processors[0].Name
	want := Want{Buckets: []int{64, 256}, Schemes: []op.Scheme{op.A32W32, op.A8TQ8C}}
	requests, err := Requests(s, m, want)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]int{}
	for i := range requests {
		r := &requests[i]
		if _, dup := keys[r.Key()]; dup {
			t.Errorf("%s is there twice", r.Key())
		}
		keys[r.Key()] = r.Priority
		if i > 0 && r.Priority < requests[i-1].Priority {
			t.Fatal("not in order of priority")
		}
		x := r.What
		x.Samples, x.Loops = []float64{1}, 1
		if err := x.Validate(); err != nil {
			t.Errorf("%s: %v", r.Key(), err)
		}
		if r.What.Op != nil && r.What.Op.Kind != op.MatMul && r.What.Proc == poor && r.What.Kind == record.Op {
			t.Errorf("%s: the processor executes matmuls only", r.Key())
		}
		if len(r.What.Concurrent) > 0 && (r.What.Proc == "c" || r.What.Concurrent[0].Proc == "c") {
			t.Errorf("%s: the processors share a core", r.Key())
		}
		if o := r.What.Op; o != nil && o.M > 256 {
			t.Errorf("%s: more rows than the largest bucket", r.Key())
		}
	}
	for key, priority := range map[string]int{
		"op a matmul[1,2048]x[2048,2560] a8t/q8c n32 cold":              priorityBase, // qkv
		"op b matmul[64,2048]x[2048,11264] a32/w32 n32 cold":            priorityBase, // gate-up
		"op c matmul[1,2048]x[2048,32000] a32/w32 n32 cold":             priorityBase, // head
		"op b matmul[256,5632]x[5632,512] a8t/q8c n32 cold":             priorityShards,
		"op b matmul[256,5632]x[5632,32] a8t/q8c n32 cold":              priorityShards, // one tile
		"op b matmul[1,2816]x[2816,2048] a8t/q8c n32 cold":              priorityShards,
		"op a matmul[96,5632]x[5632,2048] a8t/q8c n32 cold":             priorityBetween,
		"op b quant_rows[256,5632]":                                     priorityGlue,
		"op b attention[1] heads=32/4 dim=64 context=512 kv=f32 cold":   priorityGlue,
		"op b attention[256] heads=16/2 dim=64 context=256 kv=f32 cold": priorityShards,
		"sync a to b":                  priorityBase,
		"bandwidth b 67108864B with a": priorityShards,
		"op a matmul[1,5632]x[5632,1024] a8t/q8c n32 cold with b matmul[1,5632]x[5632,1024] a8t/q8c n32 cold":     priorityShards,
		"op b matmul[256,2048]x[2048,5632] a32/w32 n32 cold with a matmul[256,2048]x[2048,5632] a32/w32 n32 cold": priorityShards,
	} {
		if got, ok := keys[key]; !ok || got != priority {
			t.Errorf("%s: there %v with priority %d, want %d", key, ok, got, priority)
		}
	}
	for key := range keys {
		if strings.Contains(key, "x[2048,32000]") && !strings.Contains(key, "matmul[1,") {
			t.Errorf("%s: the head has one row", key)
		}
	}
	again, err := Requests(s, m, want)
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
	m, s := openModel(t, "tinyllama-1.1b"), fakeSoC()
	for i := range s.Processors {
		s.Processors[i].KV = op.CacheTypes
	}
	for _, caches := range [][]op.Type{nil, {op.F16}, op.CacheTypes} {
		requests, err := Requests(s, m, Want{Buckets: []int{64}, Schemes: []op.Scheme{op.A32W32}, Caches: caches,
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

// TestFootprints checks that a model smaller than the caches is measured where it would lie in them.
func TestFootprints(t *testing.T) {
	m := openModel(t, "../testdata/models/tiny-llama-kjv")
	s := fakeSoC()
	s.CPU.Caches[0].Bytes = 256 << 20
	requests, err := Requests(s, m, Want{})
	if err != nil {
		t.Fatal(err)
	}
	small := 0
	for _, r := range requests {
		if !r.What.Cold {
			continue
		}
		if f := r.What.Footprint; f < 1<<20 || f > 100<<20 {
			t.Errorf("%s: footprint %d bytes of a model of some 20 MB", r.Key(), f)
		}
		small++
	}
	s.CPU.Caches[0].Bytes = 1 << 20
	if requests, err = Requests(s, m, Want{}); err != nil {
		t.Fatal(err)
	}
	for _, r := range requests {
		if r.What.Footprint != 0 && r.What.Op.Kind != op.Embed {
			t.Errorf("%s: a model beyond the caches", r.Key())
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
			m, err := models.Open(dir)
			if err != nil && strings.Contains(err.Error(), "is not supported") {
				t.Skipf("this build reads no such model: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			s := fakeSoC()
			want := Want{Buckets: []int{16, 64}, Batches: []int{4}, Schemes: []op.Scheme{op.A8TQ8C, op.A8OQ8C}, Densities: []float64{0.2}}
			requests, err := Requests(s, m, want)
			if err != nil {
				t.Fatal(err)
			}
			keys := map[string]bool{}
			for _, r := range requests {
				if o := r.What.Op; o != nil && r.What.Kind == record.Op && r.What.Proc == "b" && len(r.What.Concurrent) == 0 {
					keys[o.Key()] = true
					kinds[o.Kind] = true
				}
				x := r.What
				x.Samples, x.Loops = []float64{1}, 1
				if err := x.Validate(); err != nil {
					t.Errorf("%s: %v", r.Key(), err)
				}
			}
			g := m.Graph()
			exact := map[[2]int]bool{} // by K and N
			for _, sec := range g.Sections {
				for _, n := range sec.Nodes {
					if o := n.Ops[0]; n.Exact {
						exact[[2]int{o.K, o.N}] = true
					}
				}
			}
			batch, sparse := g.Batch(), g.Sparse(op.Sparsity{Density: 0.2, Block: op.SparseBlock})
			type program struct {
				rows int
				of   *models.Graph
			}
			for _, x := range []program{{1, &g}, {4, &batch}, {16, &g}, {64, &g}, {16, &sparse}, {64, &sparse}} {
				rows, of := x.rows, x.of
				sections, err := lower.Expand(of, rows, 512, op.F32, func(string) op.Scheme { return op.A8TQ8C }, nil, nil)
				if err != nil {
					t.Fatal(err)
				}
				for _, sec := range sections {
					for _, n := range sec.Nodes {
						for _, o := range n.Ops {
							if o.Kind.Has("context") {
								o.Context = max(rows, 64) // one of several
								if o.Window > 0 && o.Window < 64 {
									o.Context = max(rows, o.Window)
								}
							}
							if !keys[o.Key()] {
								t.Errorf("%s@%d: %s is not asked for", n.Name, rows, o.Key())
							}
							if o.Kind != op.MatMul {
								continue
							}
							// The additions of a division along K, and its parts.
							half := o
							half.K, half.Bias = part(o.K, 1, 2, 32), false
							if rows != 4 && rows != 16 && !keys[half.Key()] {
								t.Errorf("%s@%d: %s is not asked for", n.Name, rows, half.Key())
							}
							if half.Bias = o.Bias; rows != 4 && rows != 16 && !keys[half.Key()] {
								t.Errorf("%s@%d: %s is not asked for", n.Name, rows, half.Key())
							}
						}
					}
				}
			}
			for _, r := range requests {
				o := r.What.Op
				if o == nil || o.Kind != op.MatMul || o.Scheme != op.A32W32 {
					continue
				}
				ok := false
				for x := range exact { // the whole, or a part of it
					ok = ok || o.K <= x[0] && o.N <= x[1]
				}
				if !ok {
					t.Errorf("%s: nobody permits this scheme", r.Key())
				}
			}
		})
	}
	// What executes groups of experts is priced by products and sums (roofline.Costs.Op), and not measured.
	kinds[op.GroupMatMul], kinds[op.Dispatch], kinds[op.Collect] = true, true, true
	for _, k := range op.Kinds {
		if !kinds[k] {
			t.Errorf("no model asks for %q", k)
		}
	}
}

// Of a mixture of experts a token reads the matrices of a few: dense ones come back sooner than its experts.
func TestFootprintsOfExperts(t *testing.T) {
	m := openModel(t, "../testdata/arch/olmoe-plain")
	s := fakeSoC()
	s.CPU.Caches[0].Bytes = 1 << 30
	requests, err := Requests(s, m, Want{})
	if err != nil {
		t.Fatal(err)
	}
	dense, experts := int64(0), int64(0)
	for _, r := range requests {
		switch o := r.What.Op; {
		case o == nil:
		case o.Kind == op.MatMul:
			dense = r.What.Footprint
		case o.Kind == op.ExpertMatMul:
			experts = r.What.Footprint
		}
	}
	g := m.Graph()
	var differ int64
	for _, sec := range g.Sections {
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
	m, s := openModel(t, "tinyllama-1.1b"), fakeSoC()
	keys := func(schemes ...op.Scheme) (out []string) {
		list, err := Requests(s, m, Want{Schemes: schemes})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list {
			out = append(out, r.Key())
		}
		return out
	}
	want := keys(op.A32W32, op.A8TQ8C)
	for _, schemes := range [][]op.Scheme{{op.A32W32, op.A8SQ8C}, {op.A32W32, op.A8TQ8C, op.A8SQ8C}, {op.A32W32, op.A8SQ8C, op.A8TQ8C}} {
		if got := keys(schemes...); !slices.Equal(got, want) {
			t.Errorf("%v: %d requests, want the %d of %q", schemes, len(got), len(want), op.A8TQ8C)
		}
	}
	for i := range s.Processors {
		s.Processors[i].Schemes = []op.Scheme{op.A32W32, op.A8SQ8C}
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
	m, s := openModel(t, "tinyllama-1.1b"), fakeSoC()
	p := &s.Processors[1]
	p.StaticShapes, p.DynamicRows = true, false
	p.Forms = map[op.Scheme][]op.Form{op.A8TQ8C: {op.Conv, op.Swapped}}
	list, err := Requests(s, m, Want{Buckets: []int{64, 256}, Schemes: []op.Scheme{op.A32W32, op.A8TQ8C}})
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]int{}
	for i, r := range list {
		at[r.Key()] = i
		if o := r.What.Op; o != nil && o.Form != "" && (r.What.Proc != p.Name || o.Scheme != op.A8TQ8C || o.Kind != op.MatMul) {
			t.Errorf("%s: the processor has no such form", r.Key())
		}
	}
	whole := "op " + p.Name + " matmul[%d,2048]x[2048,2560] a8t/q8c%s n32 cold"
	for _, rows := range []int{1, 64, 256} {
		first, ok := at[fmt.Sprintf(whole, rows, "")]
		for _, f := range op.FormsOf(rows, p.Forms[op.A8TQ8C]) {
			if i, have := at[fmt.Sprintf(whole, rows, " "+string(f))]; !ok || !have || i < first {
				t.Errorf("%d rows in form %q: there %v, place %d, the default at %d", rows, f, have, i, first)
			}
		}
	}
	part := "op " + p.Name + " matmul[64,2048]x[2048,1280] a8t/q8c%s n32 cold"
	between := "op " + p.Name + " matmul[96,2048]x[2048,2560] a8t/q8c%s n32 cold"
	for key, want := range map[string]bool{
		fmt.Sprintf(part, " conv 8x8"): true, fmt.Sprintf(part, " conv 16x4"): false, fmt.Sprintf(part, " swapped"): false,
		fmt.Sprintf(between, " conv 12x8"): true, fmt.Sprintf(between, " conv 16x6"): false, fmt.Sprintf(between, " swapped"): true,
	} {
		if _, have := at[key]; have != want {
			t.Errorf("%s: there %v, want %v", key, have, want)
		}
	}
}

// Products with static scales may have forms that those with scales of rows lack. These are asked of the first wanted
// scheme that has them, though products in the default form are asked of the twin.
func TestRequestsOfStaticForms(t *testing.T) {
	m, s := openModel(t, "tinyllama-1.1b"), fakeSoC()
	p := &s.Processors[1]
	p.StaticShapes, p.DynamicRows = true, false
	p.Forms = map[op.Scheme][]op.Form{op.A8SQ8C: {op.Conv}, op.A8OQ8C: {op.Conv}}
	for _, c := range []struct{ wanted, measured []op.Scheme }{
		{[]op.Scheme{op.A8TQ8C}, nil},
		{[]op.Scheme{op.A8OQ8C}, []op.Scheme{op.A8OQ8C}},
		{[]op.Scheme{op.A8OQ8C, op.A8SQ8C, op.A8TQ8C}, []op.Scheme{op.A8SQ8C}},
	} {
		list, err := Requests(s, m, Want{Buckets: []int{64}, Schemes: c.wanted})
		if err != nil {
			t.Fatal(err)
		}
		var measured []op.Scheme
		square := false
		for _, r := range list {
			operator := r.What.Op
			if operator == nil || operator.Kind != op.MatMul {
				continue
			}
			if operator.Form == "" {
				if operator.Scheme != op.A8TQ8C {
					t.Errorf("%v wanted: %s is asked, want the twin", c.wanted, r.Key())
				}
				continue
			}
			square = square || operator.Form == "conv 8x8"
			if !slices.Contains(measured, operator.Scheme) {
				measured = append(measured, operator.Scheme)
			}
		}
		besides := op.Op{Kind: op.MatMul, M: 64, K: 2048, N: 96, Scheme: op.A8OQ8C, Form: "conv 8x8"}
		list, err = Requests(s, m, Want{Buckets: []int{64}, Schemes: c.wanted, Besides: []Placed{{p.Name, besides}}})
		if err != nil || !slices.ContainsFunc(list, func(r Request) bool { return r.What.Op != nil && *r.What.Op == besides }) {
			t.Errorf("%v wanted: %s beside the model's operators is not asked for: %v", c.wanted, besides.Key(), err)
		}
		if !slices.Equal(measured, c.measured) || square != (c.measured != nil) {
			t.Errorf("%v wanted: forms are asked in %v, want %v", c.wanted, measured, c.measured)
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
	m := openModel(t, "tinyllama-1.1b")
	s := fakeSoC()
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
		_, err := Requests(s, m, tt.want)
		if err == nil || !strings.Contains(err.Error(), tt.text) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%+v: %v, want %s", tt.want, err, tt.text)
		}
	}
	for i := range s.Processors {
		s.Processors[i].Schemes = []op.Scheme{op.A32W32}
	}
	_, err := Requests(s, m, Want{Schemes: []op.Scheme{op.A8TQ8C}})
	if hints := diag.HintsOf(err); len(hints) != 1 || !strings.Contains(hints[0], "[a32/w32]") {
		t.Errorf("a scheme that nobody executes: %v, hints %q, want those that are executed", err, hints)
	}
}

func TestPart(t *testing.T) {
	for _, tt := range []struct{ n, num, den, tile, want int }{
		{2048, 1, 4, 32, 512}, {2560, 3, 4, 32, 1920}, {100, 1, 4, 32, 32}, {20, 1, 2, 32, 20}, {96, 1, 2, 32, 32}, {100, 1, 2, 0, 50},
	} {
		if got := part(tt.n, tt.num, tt.den, tt.tile); got != tt.want {
			t.Errorf("part(%d, %d, %d, %d) = %d, want %d", tt.n, tt.num, tt.den, tt.tile, got, tt.want)
		}
	}
}

// TestEveryCatalogSoC makes lists for all published SoCs.
func TestEveryCatalogSoC(t *testing.T) {
	m := openModel(t, "llama-3-8b")
	names := socs.Catalog()
	if len(names) == 0 {
		t.Fatal("the catalog is empty")
	}
	for _, name := range names {
		s, err := socs.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		requests, err := Requests(s, m, Want{Buckets: []int{1, 64, 1024}, Schemes: []op.Scheme{op.A8TQ4B32}})
		if err != nil || len(requests) < 100 {
			t.Errorf("%s: %d requests, %v", name, len(requests), err)
		}
	}
}
