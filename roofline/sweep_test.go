package roofline

import (
	"encoding/csv"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hetc/hetc/planir/op"
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
		o := matmul(num("M"), num("K"), num("N"), op.A8TQ8C)
		if seen[o.Key()] {
			continue
		}
		seen[o.Key()] = true
		if strings.HasPrefix(file, "npu-scalesim") && o.M != 64 && (o.K != 128 || o.N != 128) {
			continue // neither in the sweep of M nor in those of K and N
		}
		s.ops, s.cycles = append(s.ops, o), append(s.cycles, float64(num(column)))
	}
	if len(s.ops) < 20 {
		t.Fatalf("%s has %d rows of %v, want at least 20", file, len(s.ops), where)
	}
	return s
}

// array is a SoC with one processor of unknown step, at 1 GHz.
func array(t testing.TB) *socs.SoC {
	t.Helper()
	s := openSoC(t, "snapdragon-8gen3")
	s.Processors = []socs.Processor{*s.Processor("npu")}
	s.Processors[0].Tile = socs.Tile{}
	s.Memory, s.Links, s.Joint, s.Points, s.Sources = nil, nil, nil, nil, nil
	s.Control = "npu"
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	return s
}

// split fits on what train accepts and evaluates on the rest.
func (s sweep) split(t *testing.T, train func(o op.Op) bool) (*Costs, Quality) {
	t.Helper()
	soc := array(t)
	fit, held := record.NewSet(header(t, soc)), record.NewSet(header(t, soc))
	for i, o := range s.ops {
		to := held
		if train(o) {
			to = fit
		}
		add(t, to, record.Measurement{Kind: record.Op, Proc: "npu", Op: &o, Samples: []float64{s.cycles[i]}})
	}
	c, err := Fit(soc, fit)
	if err != nil {
		t.Fatal(err)
	}
	q, err := Evaluate(c, held)
	if err != nil {
		t.Fatal(err)
	}
	return c, q
}

// rows samples M as a profile does: powers of two, and both sides of three of them.
func rows(o op.Op) bool {
	return slices.Contains([]int{1, 2, 4, 8, 16, 31, 32, 33, 48, 63, 64, 65, 96, 128, 129, 192, 256, 384, 512}, o.M)
}

func TestThirdPartySweeps(t *testing.T) {
	// Edges of K and N are sampled at even sizes and behind two steps; M as a profile does.
	edges := func(o op.Op) bool {
		even := o.K%2 == 0 && o.N%2 == 0 || o.K == 97 || o.N == 97 || o.K == 129 || o.N == 129
		return o.K == 128 && o.N == 128 && rows(o) || o.M == 64 && (o.K != 128 || o.N != 128) && even
	}
	for _, c := range []struct {
		name, file, column string
		where              map[string]string
		train              func(op.Op) bool
		step               [3]int // 0: whatever
		mape, within15     float64
	}{
		{"SCALE-Sim weight stationary", "npu-scalesim.csv", "cycles", map[string]string{"target": "sys32x32_ws"}, edges, [3]int{1, 32, 32}, 0.01, 0.95},
		{"SCALE-Sim output stationary", "npu-scalesim.csv", "cycles", map[string]string{"target": "sys32x32_os"}, edges, [3]int{32, 0, 32}, 0.03, 0.95},
		{"SCALE-Sim input stationary", "npu-scalesim.csv", "cycles", map[string]string{"target": "sys32x32_is"}, edges, [3]int{32, 32, 0}, 0.03, 0.95},
		{"SCALE-Sim 16 bytes per cycle", "npu-scalesim.csv", "cycles", map[string]string{"target": "sys32x32_ws_bw16"}, edges, [3]int{}, 0.05, 0.90},
		{"VPUNN 2.7 workload u8", "npu-vpunn.csv", "cycles", map[string]string{"target": "NPU2.7", "op": "conv1x1_u8_H"}, rows, [3]int{}, 0.05, 0.95},
		{"VPUNN 2.7 workload f16", "npu-vpunn.csv", "cycles", map[string]string{"target": "NPU2.7", "op": "conv1x1_f16_H"}, rows, [3]int{}, 0.05, 0.95},
		{"VPUNN 2.7 layer", "npu-vpunn.csv", "cycles", map[string]string{"target": "NPU2.7", "op": "layer_sok2_u8_H"}, rows, [3]int{}, 0.05, 0.95},
		{"VPUNN 4.0 workload u8", "npu-vpunn.csv", "cycles", map[string]string{"target": "NPU4.0", "op": "conv1x1_u8_H"}, rows, [3]int{}, 0.05, 0.95},
		{"VPUNN 4.0 workload f16", "npu-vpunn.csv", "cycles", map[string]string{"target": "NPU4.0", "op": "conv1x1_f16_H"}, rows, [3]int{}, 0.05, 0.95},
		{"VPUNN 4.0 layer", "npu-vpunn.csv", "cycles", map[string]string{"target": "NPU4.0", "op": "layer_sok2_u8_H"}, rows, [3]int{}, 0.05, 0.95},
		{"Vela u85-256 bmm, array", "npu-vela.csv", "npu_cycles", map[string]string{"target": "ethos-u85-256", "op": "bmm"}, rows, [3]int{}, 0.08, 0.90},
		{"Vela u85-256 bmm, total", "npu-vela.csv", "cycles", map[string]string{"target": "ethos-u85-256", "op": "bmm"}, rows, [3]int{}, 0.30, 0.40},
		{"Vela u85-256 fc, total", "npu-vela.csv", "cycles", map[string]string{"target": "ethos-u85-256", "op": "fc"}, rows, [3]int{}, 0.30, 0.40},
		{"Vela u65-512 fc, total", "npu-vela.csv", "cycles", map[string]string{"target": "ethos-u65-512", "op": "fc"}, rows, [3]int{}, 0.30, 0.40},
	} {
		t.Run(c.name, func(t *testing.T) {
			costs, q := readSweep(t, c.file, c.column, c.where).split(t, c.train)
			f := costs.Families[0]
			report(t, c.name, q)
			t.Logf("step %v, sharpness %v, from %d samples", f.Step, f.Sharpness, func() (n int) {
				for _, k := range f.Curves {
					n += len(k.Points)
				}
				return n
			}())
			for axis, want := range c.step {
				if want != 0 && f.Step[axis] != want {
					t.Errorf("step of axis %d is %d, want %d", axis, f.Step[axis], want)
				}
			}
			if q.MAPE > c.mape || q.Within15 < c.within15 {
				t.Errorf("MAPE %.3f, within 15 %%: %.3f; want at most %.3f and at least %.3f", q.MAPE, q.Within15, c.mape, c.within15)
			}
		})
	}
}
