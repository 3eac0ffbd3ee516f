package solver

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/problem"
)

// withNPU is the two cores with the second one turned into a processor with static shapes and little memory.
func withNPU(t testing.TB, change func(npu *socs.Processor)) *socs.SoC {
	t.Helper()
	s := twoCores(t, 1)
	s.Processors = s.Processors[:2]
	s.Processors[0].PowerW, s.Processors[1].PowerW = 4, 1
	npu := s.Processor("c1")
	npu.Kind, npu.Cores, npu.StaticShapes, npu.DynamicRows = socs.KindNPU, nil, true, false
	npu.StridedInput, npu.StridedOutput, npu.WeightRanges, npu.Tile.M = false, false, false, 32
	npu.Kinds, npu.KV = []op.Kind{op.Norm, op.QuantRows, op.MatMul, op.GLU, op.Add, op.Copy}, nil
	npu.CompileMS = 10
	if change != nil {
		change(npu)
	}
	return s
}

// prepared is a session whose schemes are chosen.
func prepared(t testing.TB, in Input) *session {
	t.Helper()
	in.Engine = exact.Engine{}
	s, err := newSession(in)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.chooseSchemes(context.Background()); err != nil {
		t.Fatal(err)
	}
	return s
}

// Whatever is chosen, a processor loads what the joint problem says it does (rule P027), to the byte and the graph. Where operators
// on rows are joined in one graph the problem counts each of them; buffers that stay inside it too.
func TestJointCountsWhatIsLoaded(t *testing.T) {
	const limit = 1 << 40 // that nothing reaches
	for name, c := range map[string]struct {
		model  string
		scheme op.Scheme
		soc    *socs.SoC
	}{
		"shared":           {"../testdata/models/tiny-llama-kjv", op.A32W32, withNPU(t, nil)},
		"quantised":        {"../testdata/models/tiny-llama-kjv", op.A8TQ8C, withNPU(t, nil)},
		"in every graph":   {"../testdata/models/tiny-llama-kjv", op.A32W32, withNPU(t, func(p *socs.Processor) { p.WeightBytes = socs.WeightsPerGraph })},
		"ranges":           {"../testdata/models/tiny-llama-kjv", op.A8TQ8C, withNPU(t, func(p *socs.Processor) { p.WeightRanges = true })},
		"ranges per graph": {"../testdata/models/tiny-llama-kjv", op.A32W32, withNPU(t, func(p *socs.Processor) { p.WeightRanges, p.WeightBytes = true, socs.WeightsPerGraph })},
		"strided":          {"../testdata/models/tiny-llama-kjv", op.A32W32, withNPU(t, func(p *socs.Processor) { p.StridedInput, p.StridedOutput = true, true })},
		"experts":          {"olmoe-1b-7b", op.A8TQ8C, withNPU(t, func(p *socs.Processor) { p.Kinds = append(p.Kinds, op.ExpertMatMul, op.Combine) })},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range c.soc.Processors {
				c.soc.Processors[i].AddressBytes, c.soc.Processors[i].MaxGraphs = limit, 1<<20
			}
			m := open(t, c.model)
			w := permit(c.scheme)
			w.Buckets = []int{48, 256}
			s := prepared(t, Input{Model: m, SoC: c.soc, Costs: costs(t, c.soc, m, c.scheme), Workload: w})
			j, err := s.joint(nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := j.Validate(); err != nil {
				t.Fatal(err)
			}
			r := rand.New(rand.NewPCG(1, 2))
			for range 60 {
				var choices [][][]int
				x := solved{reports: []planir.Solve{}}
				for i := range j.programs {
					var part [][]int
					var list []planir.Decision
					for k, in := range j.programs[i].instances {
						items := j.Parts[i].Partition.Chains[k].Items
						pick := make([]int, len(items))
						for n := range pick {
							pick[n] = r.IntN(len(items[n].Choices))
						}
						part = append(part, pick)
						list = append(list, in.decisions(pick)...)
					}
					choices, x.decisions = append(choices, part), append(x.decisions, list)
				}
				p, err := s.build(x)
				if err != nil {
					t.Fatal(err)
				}
				said := j.models(s, choices)
				for _, name := range []string{"c0", "c1"} {
					load := check.Load(p, c.soc.Processor(name))
					graphs, bytes := said[quantity{problem.LimitRegionGraphs, name}], said[quantity{problem.LimitRegionBytes, name}]
					if bytes < load.Bytes || float64(bytes) > 1.2*float64(load.Bytes) {
						t.Fatalf("%s loads %d bytes, and the problem says %d", name, load.Bytes, bytes)
					}
					if name == "c0" { // whose operators on rows are joined
						continue
					}
					if bytes != load.Bytes || graphs != int64(load.Graphs) {
						t.Fatalf("%s loads %d bytes in %d graphs, and the problem says %d in %d", name, load.Bytes, load.Graphs, bytes, graphs)
					}
				}
				// So much energy is predicted as the choices were said to take.
				for i, part := range choices {
					var nj int64
					for k := range part {
						for n, pick := range part[k] {
							nj += int64(j.Parts[i].Partition.Chains[k].Repeat) * j.programs[i].instances[k].candidates[n][pick].energyNJ
						}
					}
					got, ok, err := s.energy(p, &p.Program.Programs[i])
					if err != nil || !ok {
						t.Fatal(ok, err)
					}
					if diff := float64(got-nj) / float64(nj); diff > 1e-3 || diff < -1e-3 {
						t.Fatalf("program %d takes %d nJ, and the problem says %d", i, got, nj)
					}
				}
			}
		})
	}
}

var (
	_ = fmt.Sprint
	_ *models.Model
	_ *roofline.Costs
)
