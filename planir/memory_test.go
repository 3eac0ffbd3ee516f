package planir

import (
	"math"
	"testing"

	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
)

// The parts of a plan's memory are counted from its program: packs once, by who reads them. Positions that nobody
// reaches are not counted.
func TestMemoryOf(t *testing.T) {
	const stepBytes = 3000
	plan := &Plan{MaxContext: 100,
		Procs: []Proc{{Set: capability.Set{Memory: &capability.Memory{StepBytes: stepBytes}}}}, Program: Program{
			Cache: Cache{Type: op.F32, Layers: 2, KVHeads: 1, MaxContext: 100, HeadDim: 8},
			Buffers: []Buffer{{Name: IDs, Type: op.I32, Rows: 16, Cols: 1},
				{Name: Logits, Type: op.F32, Rows: 1, Cols: 1000}},
			Weights: []op.Weight{{Name: "t"}, {Name: "w", Layers: []op.LayerRange{{From: 0, To: 2}}}},
			Packs: []Pack{
				{Name: "t/f32", Weight: "t", Bytes: 100 << 20}, {Name: "w/a", Weight: "w", Bytes: 5000},
				{Name: "w/b", Weight: "w", Bytes: 4096}, {Name: "w/c", Weight: "w", Bytes: 1},
				{Name: "w/unused", Weight: "w", Bytes: 1 << 20},
			},
			Graphs: []Graph{{Name: "e", Graph: op.Graph{Nodes: []op.Node{{Op: op.Op{Kind: op.Embed}}}}},
				{Name: "m", Graph: op.Graph{Nodes: []op.Node{{Op: op.Op{Kind: op.MatMul}}}}}},
		}}
	phase := func(name string, packs ...string) PhaseProgram {
		steps := []Step{{Run: "e", W: []WeightRef{{Pack: "t/f32"}}}}
		for _, k := range packs {
			steps = append(steps, Step{Run: "m", W: []WeightRef{{Pack: k}}})
		}
		return PhaseProgram{Name: name, Phase: name, Sections: []Section{{Layers: 2, Lanes: []Lane{{Steps: steps}}}}}
	}
	plan.Program.Programs = []PhaseProgram{phase("decode", "w/a", "w/b"), phase("prefill", "w/b", "w/c", "w/c")}
	memory := MemoryOf(plan)
	want := Memory{
		Weights: 2*8192 + 2*4096 + 2*4096, DecodeWeights: 2 * 8192, PrefillWeights: 2 * 4096,
		Tables: residentBytes(100<<20, 100),
		Cache:  2 * 2 * 100 * 8 * 4, Pool: 128 + 4096, Fixed: FixedBytes + 2*7*stepBytes + 1000*vocabularyBytes,
	}
	want.Total = want.Weights + want.Tables + want.Cache + want.Pool + want.Fixed
	if memory != want {
		t.Errorf("got  %+v\nwant %+v", memory, want)
	}

	// A library that prepacks holds what its steps multiply by once more, and itself.
	planned := *plan
	library := capability.Memory{StepBytes: stepBytes + 5, LibraryBytes: 40 << 20}
	planned.Procs = []Proc{{Set: capability.Set{Prepacks: true, Memory: &library}}}
	prepacked := memory
	prepacked.Prepacked, prepacked.Fixed = memory.Weights, memory.Fixed+library.LibraryBytes+2*7*5
	prepacked.Total = memory.Total + prepacked.Prepacked + prepacked.Fixed - memory.Fixed
	if got := MemoryOf(&planned); got != prepacked {
		t.Errorf("with a library that prepacks %+v, want %+v", got, prepacked)
	}

	both := []string{"decode", "prefill"}
	if MemoryAt(plan, Extent{both, 100, 1, true}) != memory || MemoryAt(plan, Extent{both, 200, 16, true}) != memory {
		t.Error("a full cache changes the memory")
	}
	const vocabulary = 1000 * vocabularyBytes
	without := MemoryAt(plan, Extent{both, 100, 1, false})
	if without.Fixed != memory.Fixed-vocabulary || without.Total != memory.Total-vocabulary {
		t.Errorf("without a tokenizer: %+v, with one: %+v", without, memory)
	}
	prefill := MemoryAt(plan, Extent{both[1:], 100, 1, true})
	if prefill.DecodeWeights != 0 || prefill.Weights != 2*4096+2*4096 || prefill.Fixed != memory.Fixed-2*3*stepBytes {
		t.Errorf("without decoding: %+v, with it: %+v", prefill, memory)
	}

	plan.Program.Programs[1].Rows, plan.Memory = 16, &memory
	half := MemoryAt(plan, Extent{both, 25, 8, true})
	if half.Cache*4 != memory.Cache || half.Tables != residentBytes(100<<20, 25) || half.Pool*2 != memory.Pool {
		t.Errorf("a part of the context: %+v of %+v", half, memory)
	}
	if less := memory.Total - half.Total; less != memory.Cache-half.Cache+memory.Tables-half.Tables+half.Pool {
		t.Errorf("a part of the context: %+v of %+v", half, memory)
	}

	// Every sequence that can be decoded beside others has a cache, and fills it.
	plan.Batches, plan.Program.Cache.Sequences, plan.Memory = []int{2, 4}, 4, nil
	four := MemoryOf(plan)
	if four.Cache != 4*memory.Cache || four.Tables != residentBytes(100<<20, 400) {
		t.Errorf("four sequences: %+v, one: %+v", four, memory)
	}
	if one := MemoryAt(plan, Extent{both, 100, 16, true}); one.Cache != memory.Cache || one.Tables != memory.Tables {
		t.Errorf("one full sequence of four: %+v, alone %+v", one, memory)
	}
}

// Where the plan names hot rows, a process holds a copy of these, and of the file's rows as many as the calibration saw
// beside them; in layers that keep no shadow outliers it holds neither.
func TestHotRowsInMemory(t *testing.T) {
	const channels, row = 1 << 14, 2 * 512
	node := op.Node{Op: op.Op{Kind: op.OutlierMatMul, M: 1, K: channels, N: 512, Scheme: op.A32W16},
		W: []string{"weight", "scale"}}
	spec := op.WeightSpec{Name: "weight", K: channels, N: 512, Scheme: string(op.BF16), Layout: op.RowsLayout}
	plan := &Plan{MaxContext: 100, Program: Program{
		Cache: Cache{Type: op.F32, Layers: 4, KVHeads: 1, MaxContext: 100, HeadDim: 8},
		Weights: []op.Weight{{Name: "w", K: channels, N: 512, Layers: []op.LayerRange{{From: 0, To: 4}}},
			{Name: "s", K: 1, N: 1, Layers: []op.LayerRange{{From: 0, To: 4}}}},
		Packs: []Pack{{Name: "w/rows", Weight: "w", K1: channels, N1: 512, Layout: op.RowsLayout,
			Bytes: channels * row},
			{Name: "s/f32", Weight: "s", K1: 1, N1: 1, Layout: op.RowsLayout, Bytes: 4}},
		Graphs: []Graph{{Name: "o", Graph: op.Graph{Weights: []op.WeightSpec{spec, {Name: "scale", K: 1, N: 1}},
			Nodes: []op.Node{node}}}},
		Programs: []PhaseProgram{{Name: "decode", Phase: "decode",
			Sections: []Section{{Name: "layers", First: 1, Layers: 3,
				Lanes: []Lane{{Steps: []Step{{Run: "o", W: []WeightRef{{Pack: "w/rows"}, {Pack: "s/f32"}}}}}}}}}},
	}}
	whole := MemoryOf(plan)
	if whole.Weights != 4*(channels*row+PageBytes) || whole.Hot != 0 {
		t.Errorf("without hot rows %+v", whole)
	}
	plan.Hot = []Hot{{Weight: "w", Layer: 1, Channels: []int{3, 5, 70}, Others: 2},
		{Weight: "w", Layer: 2, Channels: []int{9}}}
	with := MemoryOf(plan)
	// Layer 0 is not executed; of layer 3 nothing is said.
	want := residentBytes(channels*row, 2) + channels*row + 4*PageBytes
	if with.Weights != want || with.DecodeWeights != want || with.Hot != 2*PageBytes {
		t.Errorf("with hot rows %+v, want %d bytes of weights", with, want)
	}
	if with.Total != whole.Total-whole.Weights+want+2*PageBytes {
		t.Errorf("with hot rows %+v, without %+v", with, whole)
	}
}

// Rows of a table share the pages around them: few rows touch one each, many touch everything, and never more.
func TestTouched(t *testing.T) {
	const table = 100 * TableStep
	last := int64(0)
	for rows := range 2000 {
		bytes := residentBytes(table, rows)
		if bytes < last || bytes > table || bytes > int64(rows)*TableStep {
			t.Fatalf("%d rows touch %d bytes, one fewer %d", rows, bytes, last)
		}
		last = bytes
	}
	if residentBytes(table, 1) != TableStep || residentBytes(TableStep, 0) != TableStep || last < table-1<<10 {
		t.Errorf("one row touches %d, 2000 touch %d of %d", residentBytes(table, 1), last, table)
	}
	if got, want := residentBytes(table, 100), table-int64(math.Pow(0.99, 100)*table); got != want {
		t.Errorf("100 rows touch %d, want %d", got, want)
	}
}
