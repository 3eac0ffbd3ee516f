package roofline

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver/sim"
)

// everyKind is an operator of every kind, with every field that tells times apart set and not.
func everyKind() []op.Op {
	heads := func(operator op.Op) op.Op {
		operator.M, operator.Heads, operator.KVHeads, operator.HeadDim = 24, 8, 4, 64
		return operator
	}
	return []op.Op{
		{Kind: op.Embed, M: 24, K: 1000, N: 256, Table: op.BF16, Scale: 16},
		{Kind: op.SelectRow, M: 24, N: 256},
		{Kind: op.Norm, M: 24, N: 256, Eps: 1e-6},
		{Kind: op.LayerNorm, M: 24, N: 256, Eps: 1e-5},
		{Kind: op.QuantRows, M: 24, N: 256},
		{Kind: op.QuantRows, M: 24, N: 64, Fan: 2},
		{Kind: op.MatMul, M: 24, K: 256, N: 512, Scheme: op.A32W32},
		{Kind: op.MatMul, M: 24, K: 256, N: 512, Scheme: op.A8TQ4B32, Bias: true},
		{Kind: op.ExpertMatMul, M: 24, K: 256, N: 128, Scheme: op.A8TQ8C, Experts: 16, Fan: 2, Spread: true},
		{Kind: op.ExpertMatMul, M: 24, K: 64, N: 256, Scheme: op.A8TQ8C, Experts: 16, Fan: 2},
		{Kind: op.MatMul, M: 24, K: 256, N: 512, Scheme: op.A8TQ8C},
		{Kind: op.GroupMatMul, M: 24, K: 256, N: 512, Scheme: op.A8TQ8C, Experts: 1},
		{Kind: op.Dispatch, M: 24, N: 256, Experts: 16, Fan: 2, Groups: "2x24", Sent: 1},
		{Kind: op.Collect, M: 24, N: 256, Fan: 2, Groups: "2x24", Sent: 1},
		{Kind: op.OutlierMatMul, M: 24, K: 256, N: 512, Scheme: op.A32W16},
		{Kind: op.OutlierMatMul, M: 24, K: 256, N: 512, Scheme: op.A32W16, Channels: 4},
		{Kind: op.Route, M: 24, Experts: 16, Fan: 2, Router: op.RouteSoftmax},
		{Kind: op.Route, M: 24, Experts: 16, Fan: 2, Router: op.RouteSparseMixer, Jitter: 0.01},
		{Kind: op.Combine, M: 24, N: 256, Fan: 2},
		heads(op.Op{Kind: op.QKNorm, Eps: 1e-6}),
		heads(op.Op{Kind: op.QKNorm, Eps: 1e-6, Joint: true}),
		heads(op.Op{Kind: op.Rope}),
		heads(op.Op{Kind: op.Rope, RotaryDim: 32, Amplitude: 1.2, LongFrom: 4096, LongAmplitude: 1.3}),
		heads(op.Op{Kind: op.KVAppend, KV: op.F16}),
		heads(op.Op{Kind: op.Attention, KV: op.F32, Context: 300}),
		heads(op.Op{Kind: op.Attention, KV: op.F32, Context: 300, Window: 128, Cap: 50, Scale: 0.1}),
		heads(op.Op{Kind: op.Estimate, KV: op.F16, Context: 300, Block: 16}),
		{Kind: op.Select, M: 24, Heads: 8, KVHeads: 4, Context: 300, Block: 16},
		heads(op.Op{Kind: op.SparseAttend, KV: op.F16, Context: 300, Block: 16, Density: 0.2, Window: 200, Cap: 50}),
		{Kind: op.GLU, M: 24, N: 256, Interleave: 16, Act: op.SiLU},
		{Kind: op.GLU, M: 24, N: 256, Interleave: 16, Act: op.GELUTanh, Fan: 3},
		{Kind: op.Activate, M: 24, N: 256, Act: op.GELU},
		{Kind: op.Gate, M: 24, N: 256},
		{Kind: op.Softcap, M: 24, N: 256, Cap: 30},
		{Kind: op.Clip, M: 24, N: 256, Cap: 8},
		{Kind: op.Add, M: 24, N: 256},
		{Kind: op.Copy, M: 24, N: 256, Fan: 2},
	}
}

// An operator and what its family takes it for have the same key, work and traffic, so that nothing that
// influences its time is lost.
func TestFamilyKeepsOperators(t *testing.T) {
	seen := map[op.Kind]bool{}
	keys := map[string]string{}
	for _, operator := range everyKind() {
		if err := operator.Validate(); err != nil {
			t.Fatal(err)
		}
		seen[operator.Kind] = true
		family, m, a, b := familyOf("cpu", operator, false)
		back := family.operator(m, a, b)
		if err := back.Validate(); err != nil || back.Key() != operator.Key() || back.Flops() != operator.Flops() ||
			back.Bytes() != operator.Bytes() {
			t.Errorf("%s: its family has %s (%v), %d and %d operations, %d and %d bytes", operator.Key(), back.Key(),
				err, operator.Flops(), back.Flops(), operator.Bytes(), back.Bytes())
		}
		ops, bytes := family.work(m, a, b, [3]int{1, 1, 1})
		if int64(ops) != operator.Flops() || int64(bytes) != operator.Bytes() {
			t.Errorf("%s: size %v operations, %v bytes, want %d and %d", operator.Key(), ops, bytes, operator.Flops(),
				operator.Bytes())
		}
		if old, ok := keys[family.key()]; ok && operator.Fan == 0 {
			t.Errorf("%s and %s are of one family %q", old, operator.Key(), family.key())
		}
		keys[family.key()] = operator.Key()
	}
	for _, kind := range op.Kinds {
		if !seen[kind] {
			t.Errorf("kind %q is not tested", kind)
		}
	}
}

// Products of a group take what each takes, and one launch. Products of experts beside groups take what those of fewer
// tokens take, and moving rows what summing them takes.
func TestGroups(t *testing.T) {
	soc := openSoC(t, "core-ultra-5-125h")
	set := record.NewSet(header(t, soc))
	for _, operator := range everyKind() {
		for _, m := range []int{1, 8, 64, 256} {
			operator.M = m
			x, err := sim.NS(soc, "cpu", operator)
			if err != nil {
				t.Fatal(err)
			}
			one := operator
			if r := (record.Measurement{Kind: record.Op, Proc: "cpu", Op: &one, Samples: []float64{float64(x)},
				Unit: "ns", Loops: 1, Simulated: true}); operator.Kind != op.Attention && !set.Has(r.Key()) {
				add(t, set, r)
			}
		}
	}
	costs, err := Fit(soc, set)
	if err != nil {
		t.Fatal(err)
	}
	predict := func(operator op.Op) int64 {
		t.Helper()
		predicted, err := costs.Op("cpu", operator, false)
		if err != nil {
			t.Fatal(err)
		}
		if predicted.LowNS > predicted.NS || predicted.HighNS < predicted.NS {
			t.Errorf("%s: predicted %+v", operator.Key(), predicted)
		}
		phase, err := costs.Phase(Load{Proc: "cpu", Op: operator})
		if err != nil || math.Abs(phase.NS()/float64(predicted.NS)-1) > 1e-3 {
			t.Errorf("%s: its parts take %v ns (%v), all of it %d", operator.Key(), phase.NS(), err, predicted.NS)
		}
		return predicted.NS
	}
	one := predict(op.Op{Kind: op.MatMul, M: 64, K: 256, N: 512, Scheme: op.A8TQ8C})
	group := predict(op.Op{Kind: op.GroupMatMul, M: 8 * 64, K: 256, N: 512, Scheme: op.A8TQ8C, Experts: 8})
	if group > 8*one || group < 4*one {
		t.Errorf("a product takes %d ns, and a group of eight %d", one, group)
	}
	experts := op.Op{Kind: op.ExpertMatMul, M: 64, K: 64, N: 256, Scheme: op.A8TQ8C, Experts: 16, Fan: 2}
	beside, few := experts, experts
	beside.Sent, few.M = 16, 8
	if got, want := predict(beside), predict(few); got != want {
		t.Errorf("16 rows beside groups take %d ns, and 8 tokens with 2 rows each %d", got, want)
	}
	sum := predict(op.Op{Kind: op.Combine, M: 64, N: 256, Fan: 2})
	for _, kind := range []op.Kind{op.Dispatch, op.Collect} {
		operator := op.Op{Kind: kind, M: 64, N: 256, Fan: 2, Groups: "4x32", Sent: 1}
		if kind == op.Dispatch {
			operator.Experts = 4
		}
		if got := predict(operator); got != sum {
			t.Errorf("%s takes %d ns, want %d as a sum", operator.Key(), got, sum)
		}
	}
}

// Every kind is fitted, written, read and predicted; of what was not measured the error names the
// operator and the way out.
func TestEveryKind(t *testing.T) {
	soc := openSoC(t, "core-ultra-5-125h")
	set := record.NewSet(header(t, soc))
	for _, operator := range everyKind() {
		for _, m := range []int{1, 8, 64, 256} {
			operator.M = m
			x, err := sim.NS(soc, "cpu", operator)
			if err != nil {
				t.Fatal(err)
			}
			if operator.Kind.Has("context") {
				operator.Context = max(operator.Context, m)
			}
			one := operator
			measured := record.Measurement{Kind: record.Op, Proc: "cpu", Op: &one, Samples: []float64{float64(x)},
				Unit: "ns", Loops: 1, Simulated: true}
			if !set.Has(measured.Key()) {
				add(t, set, measured)
			}
		}
	}
	costs, err := Fit(soc, set)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "costs.yaml")
	if err := Write(path, costs); err != nil {
		t.Fatal(err)
	}
	if costs, err = Open(path); err != nil {
		t.Fatal(err)
	}
	for _, operator := range everyKind() {
		want, err := sim.NS(soc, "cpu", operator)
		if err != nil {
			t.Fatal(err)
		}
		predicted, err := costs.Op("cpu", operator, false)
		if err != nil || math.Abs(float64(predicted.NS)/float64(want)-1) > 0.1 {
			t.Errorf("%s: predicted %+v (%v), takes %d ns", operator.Key(), predicted, err, want)
		}
		if _, err := costs.Op("npu", operator, false); err == nil ||
			!strings.Contains(err.Error(), string(operator.Kind)) ||
			!strings.Contains(strings.Join(diag.HintsOf(err), " "), "hetc profile") {
			t.Errorf("%s on a processor where nothing was measured: %v (hints %q)", operator.Key(), err,
				diag.HintsOf(err))
		}
	}
	// A file whose fields belong to another kind is refused.
	costs.Families[0].Window = 7
	if err := Write(path, costs); err == nil || !strings.Contains(err.Error(), "means nothing to it") {
		t.Errorf("an embedding with a window: %v", err)
	}
}

// mixture is how long a processor takes that executes the matrices of the experts in use one after another, each
// for its own rows, step of them at once.
type mixture struct {
	launch, perExpert float64 // ns
	opsPerNS, rate    float64
	step              int
}

func (x mixture) ns(operator op.Op) float64 {
	rows := make([]int, operator.Experts)
	for r := range operator.M * operator.Fan {
		rows[r%operator.Experts]++
	}
	t := x.launch
	for _, n := range rows {
		if n == 0 {
			continue
		}
		padded := float64(op.RoundUp(n, x.step))
		work := 2 * padded * float64(operator.K) * float64(operator.N) / x.opsPerNS
		bytes := float64(op.WeightBytes(operator.Scheme.Weight(), operator.K, operator.N)) + padded*float64(
			operator.K+4*operator.N)
		t += x.perExpert + math.Max(work, bytes/x.rate)
	}
	return t
}

// Matrices of experts are predicted at numbers of rows and for parts of columns that were not measured: below
// the number at which every expert is in use, above it, and where the rows of each begin to count.
func TestExpertsTruth(t *testing.T) {
	soc := openSoC(t, "core-ultra-5-125h")
	grid := []int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512}
	for name, x := range map[string]mixture{
		"cpu":                    {launch: 1500, perExpert: 300, opsPerNS: 800, rate: 20, step: 1},
		"cpu, blocks of 4 rows":  {launch: 1500, perExpert: 300, opsPerNS: 800, rate: 20, step: 4},
		"npu, blocks of 32 rows": {launch: 100e3, perExpert: 5000, opsPerNS: 8000, rate: 50, step: 32},
	} {
		for _, shape := range []struct{ k, n, experts, fan int }{
			{4096, 28672, 8, 2}, {2048, 1536, 128, 8}, {2048, 2048, 64, 8}, {4096, 12800, 16, 2},
		} {
			t.Run(fmt.Sprintf("%s, %d experts", name, shape.experts), func(t *testing.T) {
				set, held := record.NewSet(header(t, soc)), record.NewSet(header(t, soc))
				put := func(to *record.Set, m, n int) {
					o := op.Op{Kind: op.ExpertMatMul, M: m, K: shape.k, N: n, Scheme: op.A8TQ8C, Experts: shape.experts,
						Fan: shape.fan, Spread: true}
					measured := record.Measurement{Kind: record.Op, Proc: "npu", Op: &o, Samples: []float64{x.ns(o)}}
					if !set.Has(measured.Key()) && !held.Has(measured.Key()) {
						add(t, to, measured)
					}
				}
				for _, m := range grid {
					put(set, m, shape.n)
				}
				for _, m := range []int{1, 512} {
					for q := 1; q < 4; q++ {
						put(set, m, shape.n*q/4/32*32)
					}
				}
				rng := rand.New(rand.NewPCG(5, 6))
				for range 200 {
					put(held, 1+rng.IntN(512), shape.n)
				}
				for range 100 {
					put(held, []int{1, 512}[rng.IntN(2)], shape.n*(25+rng.IntN(75))/100/32*32)
				}
				costs, err := Fit(soc, set)
				if err != nil {
					t.Fatal(err)
				}
				quality, err := Evaluate(costs, held)
				if err != nil {
					t.Fatal(err)
				}
				report(t, t.Name(), quality)
				if quality.MAPE > 0.03 || quality.Within10 < 0.95 {
					t.Errorf("step %v: MAPE %s, within 10 %%: %s", costs.Families[0].Step, percent(quality.MAPE),
						percent(quality.Within10))
				}
			})
		}
	}
}

// A sparse attention of a density that was not measured is priced on the line between the two next to it, in proportion
// to what it computes; of one measured density there is no line.
func TestDensitiesBetween(t *testing.T) {
	costs := &Costs{Processors: []Processor{{Name: "cpu", BytesPerNS: 10}}}
	asked := op.Op{Kind: op.SparseAttend, M: 64, Heads: 8, KVHeads: 4, HeadDim: 32, KV: op.F32, Context: 512, Block: 16}
	at := func(density float64) op.Op {
		asked.Density = density
		return asked
	}
	add := func(density float64) {
		family, rows, along, across := familyOf("cpu", at(density), true)
		took := 1000 + at(density).Flops()/8
		family.OpsPerNS, family.BytesPerNS, family.Sharpness, family.Step = 8, 1000, maxSharpness, [3]int{1, 1, 1}
		family.Curves = []Curve{{A: along, B: across, OpsPerNS: 8, BytesPerNS: 1000,
			Points: [][4]int64{{int64(rows), took, took, took}}}}
		costs.Families = append(costs.Families, family)
	}
	add(0.2)
	if _, err := costs.Op("cpu", at(0.5), true); err == nil {
		t.Error("a density beyond the only one that was measured has a price")
	}
	add(1)
	costs = &Costs{Processors: costs.Processors, Families: costs.Families}
	for _, density := range []float64{0.1, 0.2, 0.5, 0.9, 1} {
		got, err := costs.Op("cpu", at(density), true)
		if err != nil {
			t.Fatal(err)
		}
		want := 1000 + at(density).Flops()/8
		if off := math.Abs(float64(got.NS)/float64(want) - 1); off > 1e-3 {
			t.Errorf("density %v: %d ns, want %d", density, got.NS, want)
		}
		phase, err := costs.Phase(Load{Proc: "cpu", Op: at(density), Cold: true})
		if err != nil || math.Abs(phase.NS()/float64(want)-1) > 1e-3 {
			t.Errorf("density %v: a phase of %v ns, want %d (%v)", density, phase.NS(), want, err)
		}
	}
}

// The product of some channels beyond a scale takes what lies between few and the usual number, and more beyond it;
// from a record without few, as older ones are, no less than the usual number.
func TestOutlierChannels(t *testing.T) {
	soc := openSoC(t, "core-ultra-5-125h")
	usual := op.Op{Kind: op.OutlierMatMul, M: 64, K: 2048, N: 512, Scheme: op.A32W16}
	few := usual
	few.Channels = op.FewChannels
	for _, measured := range [][]op.Op{{usual}, {usual, few}} {
		set := record.NewSet(header(t, soc))
		for _, operator := range measured {
			for _, m := range []int{1, 8, 64, 256} {
				one := operator
				one.M = m
				ns, err := sim.NS(soc, "cpu", one)
				if err != nil {
					t.Fatal(err)
				}
				add(t, set, record.Measurement{Kind: record.Op, Proc: "cpu", Op: &one, Samples: []float64{float64(ns)},
					Unit:  "ns",
					Loops: 1, Simulated: true})
			}
		}
		costs, err := Fit(soc, set)
		if err != nil {
			t.Fatal(err)
		}
		last := int64(0)
		for _, channels := range []int{1, 4, 12, 20, 0, 64, 256} {
			asked := usual
			asked.Channels = channels
			got, err := costs.Op("cpu", asked, false)
			if err != nil {
				t.Fatal(err)
			}
			want, err := sim.NS(soc, "cpu", asked)
			if err != nil {
				t.Fatal(err)
			}
			if got.NS < last || got.LowNS > got.NS || got.HighNS < got.NS {
				t.Errorf("%d channels: %+v, %d with fewer", channels, got, last)
			}
			last = got.NS
			phase, err := costs.Phase(Load{Proc: "cpu", Op: asked})
			if err != nil || math.Abs(phase.NS()-float64(got.NS)) > 1 {
				t.Errorf("%d channels: a phase of %v ns, want %d (%v)", channels, phase.NS(), got.NS, err)
			}
			// Between the two the simulated time is not quite linear: it is that of computing or that of reading.
			permitted := 0.3
			if channels == op.FewChannels || channels == 0 {
				permitted = 0.01
			}
			off := math.Abs(float64(got.NS)/float64(want) - 1)
			if len(measured) == 2 && channels >= op.FewChannels && channels <= usual.Gathered() && off > permitted {
				t.Errorf("%d channels: predicted %d ns, want %d", channels, got.NS, want)
			}
		}
	}
}
