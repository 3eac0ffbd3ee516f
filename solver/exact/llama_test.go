package exact_test

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/problem"
)

// llama is a joint instance of the size and kind that an 8-billion-parameter model poses: decode and buckets of
// prefill, 32 layers of 10 operators, three processors, divisions by columns, rows and sequence, NPU graphs per shape
// and packed weights per column range, and an NPU region that holds the given fraction of the weights. With shared
// weights all graphs of a range refer to one copy, else every graph has its own. Speeds are random.
func llama(seed uint64, buckets int, fraction float64, shared bool) *problem.Joint {
	r := rand.New(rand.NewPCG(seed, 8))
	type matmul struct {
		name string
		k, n int64
	}
	ops := []matmul{{"qkv", 4096, 6144}, {"o", 4096, 4096}, {"gate-up", 4096, 28672}, {"down", 14336, 4096}}
	head := matmul{"head", 4096, 128256}
	vary := func(f float64) float64 { return f * (0.9 + 0.2*r.Float64()) }
	// GFLOPS, GB/s, ns per call: cpu, gpu, npu.
	speed, band, call := [3]float64{vary(300), vary(1200), vary(9000)}, [3]float64{vary(35), vary(45), vary(40)}, [3]float64{vary(5e3), vary(3e4), vary(6e4)}
	var all int64
	for _, m := range ops {
		all += 32 * m.k * m.n
	}
	all += head.k * head.n
	j := &problem.Joint{Name: "llama", Regions: []problem.Region{{Name: "cpu"}, {Name: "gpu"}, {Name: "npu", MaxBytes: max(1, int64(fraction*float64(all))), MaxGraphs: 4000}}}
	asset := map[string]int{}
	need := func(name string, region int, bytes int64, graphs int, open int64) int {
		if a, ok := asset[name]; ok {
			return a
		}
		asset[name] = len(j.Assets)
		j.Assets = append(j.Assets, problem.Asset{Name: name, Region: region, Bytes: bytes, Graphs: graphs, OpenNS: open})
		return len(j.Assets) - 1
	}
	classes := []string{"cpu", "gpu", "npu", "cpu+gpu", "cpu+npu", "gpu+npu", "cpu+gpu+npu", "gpu+npu half", "gpu+npu rows"}
	hand := make([][]int64, len(classes))
	for a := range hand {
		hand[a] = make([]int64, len(classes))
		for b := range hand[a] {
			if a != b {
				hand[a][b] = int64(vary(40e3))
			}
		}
	}
	program := func(name string, rows int64) *problem.Partition {
		p := &problem.Partition{Name: name, Procs: []string{"cpu", "gpu", "npu"}}
		ns := func(q int, rows, k, n int64) int64 {
			if q == 2 {
				rows = (rows + 31) / 32 * 32 // padded to the graph's tile
			}
			return int64(call[q] + max(2*float64(rows)*float64(k)*float64(n)/speed[q], float64(k)*float64(n)/band[q])*(0.95+0.1*r.Float64()))
		}
		item := func(m matmul, layers int64) problem.Item {
			it := problem.Item{Name: m.name, Before: classes, After: classes}
			add := func(label string, class int, cost int64, procs []int, assets ...int) {
				slices.Sort(assets)
				it.Choices = append(it.Choices, problem.Choice{Label: label, Procs: procs, CostNS: cost, EnergyNJ: cost * int64(2+len(procs)), Assets: slices.Compact(assets), Before: class, After: class})
			}
			weights := func(q int, n int64) []int {
				switch {
				case q == 0:
					return []int{need(fmt.Sprintf("cpu %s", m.name), 0, layers*m.k*m.n, 0, 0)}
				case q == 1:
					return []int{need(fmt.Sprintf("gpu %s", m.name), 1, layers*m.k*m.n, 0, 0)}
				}
				return []int{need(fmt.Sprintf("npu %s 0:%d", m.name, n), 2, layers*m.k*n, 0, layers*m.k*n/50)}
			}
			graph := func(rows, n int64) []int {
				name := fmt.Sprintf("npu graph %s %dx%d", m.name, rows, n)
				if shared {
					return append(weights(2, n), need(name, 2, layers*(1<<18+4*rows*n), int(layers), layers*2e6))
				}
				return []int{need(name, 2, layers*(1<<18+4*rows*n+m.k*n), int(layers), layers*5e6)}
			}
			for q := range 3 {
				assets := weights(q, m.n)
				if q == 2 {
					assets = graph(rows, m.n)
				}
				add("single "+p.Procs[q], q, ns(q, rows, m.k, m.n), []int{q}, assets...)
			}
			pairs := [][2]int{{0, 1}, {0, 2}, {1, 2}}
			for _, pr := range pairs {
				for w := int64(1); w < 16; w++ {
					n := m.n * w / 16 / 64 * 64
					assets := weights(pr[0], m.n)
					if pr[1] == 2 {
						assets = append(assets, graph(rows, n)...)
					} else {
						assets = append(assets, weights(1, n)...)
					}
					class := []int{3, 4, 5}[pr[0]+pr[1]-1]
					if class == 5 && w == 8 {
						class = 7
					}
					add(fmt.Sprintf("cols %v %d", pr, n), class, max(ns(pr[0], rows, m.k, m.n-n), ns(pr[1], rows, m.k, n))+20e3, []int{pr[0], pr[1]}, assets...)
				}
			}
			for _, w := range []int64{4, 8, 10, 12} {
				for _, v := range []int64{1, 2, 3} {
					n, g := m.n*w/16/64*64, m.n*v/16/64*64
					assets := append(append(weights(0, m.n), weights(1, m.n)...), graph(rows, n)...)
					add(fmt.Sprintf("three %d %d", n, g), 6, max(ns(2, rows, m.k, n), ns(1, rows, m.k, g), ns(0, rows, m.k, m.n-n-g))+30e3, []int{0, 1, 2}, assets...)
				}
			}
			for part := int64(32); part < rows; part *= 2 {
				add(fmt.Sprintf("rows %d", part), 8, max(ns(2, part, m.k, m.n), ns(1, rows-part, m.k, m.n))+20e3, []int{1, 2}, append(weights(1, m.n), graph(part, m.n)...)...)
				add(fmt.Sprintf("pipe %d", part), 2, ns(2, part, m.k, m.n)*(rows/part), []int{2}, graph(part, m.n)...)
			}
			return it
		}
		small := func(name string) problem.Item {
			it := problem.Item{Name: name, Before: classes, After: classes}
			for q := range 3 {
				it.Choices = append(it.Choices, problem.Choice{Label: "single " + p.Procs[q], Procs: []int{q}, CostNS: int64(vary(2e4)) + rows*400, EnergyNJ: rows * 1000, Before: q, After: q})
			}
			return it
		}
		layers := problem.Chain{Name: "layers", Repeat: 32}
		for _, it := range []problem.Item{small("norm1"), item(ops[0], 32), small("rope"), small("attention"), item(ops[1], 32), small("add1"), small("norm2"), item(ops[2], 32), small("silu"), item(ops[3], 32), small("add2")} {
			it.EdgeNS = hand
			layers.Items = append(layers.Items, it)
		}
		first, last := small("embed"), item(head, 1)
		last.EdgeNS = hand
		p.Chains = []problem.Chain{{Name: "embed", Repeat: 1, Items: []problem.Item{first}}, layers, {Name: "head", Repeat: 1, Items: []problem.Item{small("norm"), last}}}
		return p
	}
	j.Parts = append(j.Parts, problem.Part{Partition: program("decode", 1), Weight: 100})
	for b := range buckets {
		rows := int64(16) << b
		j.Parts = append(j.Parts, problem.Part{Partition: program(fmt.Sprintf("prefill@%d", rows), rows), Weight: 1 + r.Int64N(4)})
	}
	return j
}

// The plan of llama-3-8b for snapdragon-8gen3, as solve poses it for decode in 4 bit and buckets of 16, 32 ... 2048
// rows in 8 bit after hetc profile on the simulated SoC, without the names, before and after SoCs priced operator
// forms: proved, and what HiGHS 1.15.1 proves. A bound that is only as good as subgradients make it leaves 0.09 % of
// the first, and a search that does not close what no longer fits beside what is open 0.35 % of the second.
func TestJointLlama(t *testing.T) {
	require.Slow(t)
	for _, x := range []struct {
		file string
		want int64
	}{{"llama-3-8b.json.gz", 2101551167248}, {"llama-3-8b-forms.json.gz", 2629989636022}} {
		t.Run(x.file, func(t *testing.T) {
			f, err := os.Open("testdata/" + x.file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			z, err := gzip.NewReader(f)
			if err != nil {
				t.Fatal(err)
			}
			j := new(problem.Joint)
			if err := json.NewDecoder(z).Decode(j); err != nil {
				t.Fatal(err)
			}
			s, err := exact.Engine{}.Joint(context.Background(), j, problem.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if err := j.Verify(s); err != nil {
				t.Fatal(err)
			}
			if s.Status != problem.Optimal || s.Objective != x.want {
				t.Fatalf("%s with %d and bound %d after %d nodes, want %d proved", s.Status, s.Objective, s.Bound, s.Nodes, x.want)
			}
		})
	}
}

// What the search achieves at its default limit, and in what time.
func BenchmarkJoint(b *testing.B) {
	for _, x := range []struct {
		name   string
		change func(*problem.Joint)
	}{
		{"region", func(*problem.Joint) {}},
		{"graphs", func(j *problem.Joint) { j.Regions[2].MaxGraphs = 400 }},
		{"opening", func(j *problem.Joint) { j.MaxOpenNS = 4e9 }},
		{"bytes", func(j *problem.Joint) { j.Regions[2].MaxBytes, j.MaxBytes = 0, 16e9 }},
		{"energy under time", func(j *problem.Joint) {
			j.MaxTimeNS = 21 * fastest(b, j) / 20
			j.Minimise = problem.Energy
		}},
		{"memory under time", func(j *problem.Joint) {
			j.MaxTimeNS = 21 * fastest(b, j) / 20
			j.Minimise = problem.Memory
		}},
	} {
		for _, fraction := range []float64{0.1, 0.25, 0.5} {
			for _, shared := range []bool{true, false} {
				for seed := range uint64(2) {
					b.Run(fmt.Sprintf("%s/%.2f/shared=%v/%d", x.name, fraction, shared, seed), func(b *testing.B) {
						j := llama(seed, 8, fraction, shared)
						x.change(j)
						b.ResetTimer()
						for range b.N {
							s, err := exact.Engine{}.Joint(context.Background(), j, problem.Limits{})
							if err != nil {
								b.Fatal(err)
							}
							if err := j.Verify(s); err != nil {
								b.Fatal(err)
							}
							gap := 0.0
							if s.Objective > 0 {
								gap = float64(s.Objective-s.Bound) / float64(s.Objective)
							}
							b.ReportMetric(100*gap, "gap%")
							b.ReportMetric(float64(s.Nodes), "nodes")
						}
					})
				}
			}
		}
	}
}

// fastest is the least time known within the other limits.
func fastest(t testing.TB, j *problem.Joint) int64 {
	s, err := exact.Engine{}.Joint(context.Background(), j, problem.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return s.Objective
}
