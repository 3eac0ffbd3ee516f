package roofline

import (
	"encoding/csv"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/source"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/socs"
)

// sweep is a third-party sweep of one target: cycles of matmuls.
type sweep struct {
	ops    []op.Op
	cycles []float64
}

func readSweep(t *testing.T, file, column string, where map[string]string) sweep {
	t.Helper()
	f, err := os.Open("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) int {
		i := slices.Index(rows[0], name)
		if i < 0 {
			t.Fatalf("%s has no column %q", file, name)
		}
		return i
	}
	var s sweep
	seen := map[string]bool{}
	for _, r := range rows[1:] {
		ok := true
		for k, v := range where {
			ok = ok && r[at(k)] == v
		}
		if !ok {
			continue
		}
		num := func(name string) int {
			n, err := strconv.Atoi(r[at(name)])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		operator := matmul(num("M"), num("K"), num("N"), op.A8TQ8C)
		if seen[operator.Key()] {
			continue
		}
		seen[operator.Key()] = true
		if strings.HasPrefix(file, "npu-scalesim") && operator.M != 64 && (operator.K != 128 || operator.N != 128) {
			continue // neither in the sweep of M nor in those of K and N
		}
		s.ops, s.cycles = append(s.ops, operator), append(s.cycles, float64(num(column)))
	}
	if len(s.ops) < 20 {
		t.Fatalf("%s has %d rows of %v, want at least 20", file, len(s.ops), where)
	}
	return s
}

// array is a SoC with one processor of unknown step, at 1 GHz.
func array(t testing.TB) *socs.SoC {
	t.Helper()
	soc := openSoC(t, "snapdragon-8gen3")
	soc.Processors = []socs.Processor{*soc.Processor("npu")}
	soc.Processors[0].Tile = capability.Tile{}
	soc.Memory, soc.Links, soc.Joint, soc.Points, soc.Sources = nil, nil, nil, nil, nil
	soc.Control = "npu"
	if err := soc.Validate(); err != nil {
		t.Fatal(err)
	}
	return soc
}

// split fits on what train accepts and evaluates on the rest.
func (s sweep) split(t *testing.T, train func(o op.Op) bool) (*Costs, Quality) {
	t.Helper()
	soc := array(t)
	fit, held := record.NewSet(header(t, soc)), record.NewSet(header(t, soc))
	for i, operator := range s.ops {
		to := held
		if train(operator) {
			to = fit
		}
		add(t, to, record.Measurement{Kind: record.Op, Proc: "npu", Op: &operator, Samples: []float64{s.cycles[i]}})
	}
	costs, err := Fit(soc, fit)
	if err != nil {
		t.Fatal(err)
	}
	quality, err := Evaluate(costs, held)
	if err != nil {
		t.Fatal(err)
	}
	return costs, quality
}

// rows samples M as a profile does: powers of two, and both sides of three of them.
func rows(o op.Op) bool {
	return slices.Contains([]int{1, 2, 4, 8, 16, 31, 32, 33, 48, 63, 64, 65, 96, 128, 129, 192, 256, 384, 512}, o.M)
}

func TestThirdPartySweeps(t *testing.T) {
	require.Slow(t)
	// Edges of K and N are sampled at even sizes and behind two steps; M as a profile does.
	edges := func(operator op.Op) bool {
		even := operator.K%2 == 0 && operator.N%2 == 0 || operator.K == 97 || operator.N == 97 || operator.K == 129 ||
			operator.N == 129
		return operator.K == 128 && operator.N == 128 && rows(operator) ||
			operator.M == 64 && (operator.K != 128 || operator.N != 128) && even
	}
	for _, test := range []struct {
		name, file, column string
		where              map[string]string
		train              func(op.Op) bool
		step               [3]int // 0: whatever
		mape, within15     float64
	}{
		{"SCALE-Sim weight stationary", "npu-scalesim.csv", "cycles", map[string]string{"target": "sys32x32_ws"}, edges,
			[3]int{1, 32, 32}, 0.01, 0.95},
		{"SCALE-Sim output stationary", "npu-scalesim.csv", "cycles", map[string]string{"target": "sys32x32_os"}, edges,
			[3]int{32, 0, 32}, 0.03, 0.95},
		{"SCALE-Sim input stationary", "npu-scalesim.csv", "cycles", map[string]string{"target": "sys32x32_is"}, edges,
			[3]int{32, 32, 0}, 0.03, 0.95},
		{"SCALE-Sim 16 bytes per cycle", "npu-scalesim.csv", "cycles", map[string]string{"target": "sys32x32_ws_bw16"},
			edges, [3]int{}, 0.05, 0.90},
		{"VPUNN 2.7 workload u8", "npu-vpunn.csv", "cycles",
			map[string]string{"target": "NPU2.7", "op": "conv1x1_u8_H"}, rows, [3]int{}, 0.05, 0.95},
		{"VPUNN 2.7 workload f16", "npu-vpunn.csv", "cycles",
			map[string]string{"target": "NPU2.7", "op": "conv1x1_f16_H"}, rows, [3]int{}, 0.05, 0.95},
		{"VPUNN 2.7 layer", "npu-vpunn.csv", "cycles", map[string]string{"target": "NPU2.7", "op": "layer_sok2_u8_H"},
			rows, [3]int{}, 0.05, 0.95},
		{"VPUNN 4.0 workload u8", "npu-vpunn.csv", "cycles",
			map[string]string{"target": "NPU4.0", "op": "conv1x1_u8_H"}, rows, [3]int{}, 0.05, 0.95},
		{"VPUNN 4.0 workload f16", "npu-vpunn.csv", "cycles",
			map[string]string{"target": "NPU4.0", "op": "conv1x1_f16_H"}, rows, [3]int{}, 0.05, 0.95},
		{"VPUNN 4.0 layer", "npu-vpunn.csv", "cycles", map[string]string{"target": "NPU4.0", "op": "layer_sok2_u8_H"},
			rows, [3]int{}, 0.05, 0.95},
		{"Vela u85-256 bmm, array", "npu-vela.csv", "npu_cycles",
			map[string]string{"target": "ethos-u85-256", "op": "bmm"}, rows, [3]int{}, 0.08, 0.90},
		{"Vela u85-256 bmm, total", "npu-vela.csv", "cycles", map[string]string{"target": "ethos-u85-256", "op": "bmm"},
			rows, [3]int{}, 0.30, 0.40},
		{"Vela u85-256 fc, total", "npu-vela.csv", "cycles", map[string]string{"target": "ethos-u85-256", "op": "fc"},
			rows, [3]int{}, 0.30, 0.40},
		{"Vela u65-512 fc, total", "npu-vela.csv", "cycles", map[string]string{"target": "ethos-u65-512", "op": "fc"},
			rows, [3]int{}, 0.30, 0.40},
	} {
		t.Run(test.name, func(t *testing.T) {
			costs, quality := readSweep(t, test.file, test.column, test.where).split(t, test.train)
			family := costs.Families[0]
			report(t, test.name, quality)
			t.Logf("step %v, sharpness %v, from %d samples", family.Step, family.Sharpness, func() (n int) {
				for _, k := range family.Curves {
					n += len(k.Points)
				}
				return n
			}())
			for axis, want := range test.step {
				if want != 0 && family.Step[axis] != want {
					t.Errorf("step of axis %d is %d, want %d", axis, family.Step[axis], want)
				}
			}
			if quality.MAPE > test.mape || quality.Within15 < test.within15 {
				t.Errorf("MAPE %.3f, within 15 %%: %.3f; want at most %.3f and at least %.3f", quality.MAPE,
					quality.Within15, test.mape, test.within15)
			}
		})
	}
}

// A random 15 % of each sweep's points is fitted: the intervals hold what they say for the others, also beyond the
// samples, where the errors of the roofline are largest, and the mean error is what it was when intervals did not.
func TestIntervalsOfSweeps(t *testing.T) {
	require.Slow(t)
	const (
		share = 0.15
		seeds = 3
	)
	var within, beyond, inWithin, inBeyond float64
	for _, test := range []struct {
		file, target, op string
		mape             float64 // of the three seeds together
	}{
		{"npu-vela.csv", "ethos-u65-512", "fc", 0.095},
		{"npu-vela.csv", "ethos-u85-256", "fc", 0.125},
		{"npu-vela.csv", "ethos-u85-256", "bmm", 0.075},
		{"npu-vpunn.csv", "NPU2.7", "conv1x1_u8_H", 0.035},
		{"npu-vpunn.csv", "NPU2.7", "layer_sok2_u8_H", 0.02},
		{"npu-vpunn.csv", "NPU4.0", "conv1x1_f16_H", 0.03},
		{"npu-scalesim.csv", "sys32x32_ws", "gemm", 0.20},
		{"npu-scalesim.csv", "sys32x32_os", "gemm", 0.10},
	} {
		sweep := readSweep(t, test.file, "cycles", map[string]string{"target": test.target, "op": test.op})
		mape := 0.0
		for seed := range uint64(seeds) {
			chosen := map[string]bool{}
			for _, i := range rand.New(rand.NewPCG(seed, 0)).Perm(len(sweep.ops))[:int(share*float64(len(sweep.ops)))] {
				chosen[sweep.ops[i].Key()] = true
			}
			_, quality := sweep.split(t, func(o op.Op) bool { return chosen[o.Key()] })
			mape += quality.MAPE / seeds
			in, out := quality.Within(), quality.Beyond()
			within, inWithin = within+float64(in.N), inWithin+in.Covered*float64(in.N)
			beyond, inBeyond = beyond+float64(out.N), inBeyond+out.Covered*float64(out.N)
		}
		t.Logf("%s %s: MAPE %s", test.target, test.op, percent(mape))
		if mape > test.mape {
			t.Errorf("%s %s: MAPE %s, want at most %s", test.target, test.op, percent(mape), percent(test.mape))
		}
	}
	t.Logf("in interval: %s of %.0f within the samples, %s of %.0f beyond", percent(inWithin/within), within,
		percent(inBeyond/beyond), beyond)
	if inWithin/within < 0.93 || inBeyond/beyond < 0.99 {
		t.Errorf("in interval: %s within the samples and %s beyond, want at least 93 %% and 99 %%",
			percent(inWithin/within), percent(inBeyond/beyond))
	}
	if beyond < 100 {
		t.Errorf("%.0f points beyond the samples, want at least 100", beyond)
	}
}

// Measuring the operators that are asked for covers what lay beyond the samples: of held-out operators those
// themselves, otherwise the corners of the sizes.
func TestWanted(t *testing.T) {
	sweep := readSweep(t, "npu-vpunn.csv", "cycles", map[string]string{"target": "NPU4.0", "op": "conv1x1_u8_H"})
	at := map[string]float64{}
	for i, o := range sweep.ops {
		at[o.Key()] = sweep.cycles[i]
	}
	known := func(o op.Op) bool { return o.M <= 64 }
	costs, before := sweep.split(t, known)
	asked := map[string]bool{}
	for _, w := range costs.Wanted(before.Misses, 5) {
		if at[w.Op.Key()] == 0 || w.Predicted.Source != source.Extrapolated || asked[w.Op.Key()] {
			t.Errorf("asks for %s, %s", w.Op.Key(), w.Predicted.Source)
		}
		asked[w.Op.Key()] = true
	}
	_, after := sweep.split(t, func(o op.Op) bool { return known(o) || asked[o.Key()] })
	quality, a := before.Beyond(), after.Beyond()
	t.Logf("beyond the samples: %d operators, mean error %s; %d and %s after measuring %d more", quality.N,
		percent(quality.MAPE), a.N, percent(a.MAPE), len(asked))
	if quality.N == 0 || len(asked) == 0 || len(asked) > 5 || 2*a.N > quality.N {
		t.Errorf("beyond the samples: %d before and %d after, MAPE %s and %s", quality.N, a.N, percent(before.MAPE),
			percent(after.MAPE))
	}
	corners := costs.Wanted(nil, 100)
	if len(corners) == 0 {
		t.Fatal("no corner is asked for")
	}
	for _, w := range corners {
		if w.Op.M > 64 || w.Predicted.Source != source.Extrapolated {
			t.Errorf("asks for %s, which is no corner of what was sampled", w.Op.Key())
		}
	}
}
