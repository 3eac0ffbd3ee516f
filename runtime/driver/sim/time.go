package sim

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/socs"
)

// NS is the exact time of a graph of one operator on a processor, without noise, while the processors
// in beside stream from memory: nanoseconds. It is the truth that profiling and fitting are tested against.
func NS(s *socs.SoC, proc string, o op.Op, beside ...string) (int64, error) {
	p := s.Processor(proc)
	if p == nil || p.Sim == nil {
		return 0, diag.New(diag.ClassInput, "simulate %s: SoC %q has no simulated processor %q", o.Key(), s.Name, proc)
	}
	m := model{desc: p, rate: p.BandwidthGBps}
	if len(beside) > 0 {
		rate, err := contended(s, p, strings.Join(beside, ","))
		if err != nil {
			return 0, fmt.Errorf("simulate %s on %q: %w", o.Key(), proc, err)
		}
		m.rate = rate
	}
	if err := m.feasible(o); err != nil {
		return 0, err
	}
	return int64(math.Round(1e3*p.LaunchUS + m.op(o))), nil
}

// model is the time of operators on one processor at the memory rate left to it (1e9 byte/s, that
// is bytes per nanosecond).
type model struct {
	desc *socs.Processor
	rate float64
}

// contended is the memory rate left to p beside other processors, given as "gpu,npu=12.5": when all
// together want more than they reach jointly, each keeps its share of that.
func contended(s *socs.SoC, p *socs.Processor, beside string) (float64, error) {
	set, sum := []string{p.Name}, p.BandwidthGBps
	for _, part := range strings.Split(beside, ",") {
		name, rate, limited := strings.Cut(strings.TrimSpace(part), "=")
		other := s.Processor(name)
		if other == nil {
			return 0, fmt.Errorf("SoC %q has no processor %q", s.Name, name)
		}
		want := other.BandwidthGBps
		if limited {
			x, err := strconv.ParseFloat(rate, 64)
			if err != nil || !(x >= 0 && x <= 1e6) {
				return 0, fmt.Errorf("rate %q of processor %q, want 1e9 byte/s in 0..1e6", rate, name)
			}
			want = min(want, x)
		}
		set, sum = append(set, name), sum+want
	}
	if err := s.Concurrent(set...); err != nil {
		return 0, err
	}
	joint, known := s.JointGBps(set...)
	if !known || sum <= joint {
		return p.BandwidthGBps, nil
	}
	return p.BandwidthGBps * joint / sum, nil
}

// products is the matmuls that o stands for, as many as count of one shape: those of an ExpertMatMul are as if
// its rows were evenly divided among as many experts as possible.
func products(o op.Op) (count int, each op.Op) {
	if o.Kind != op.ExpertMatMul {
		return 1, o
	}
	count = min(o.Rows(), o.Experts)
	return count, op.Op{Kind: op.MatMul, M: (o.Rows() + count - 1) / count, K: o.K, N: o.N, Scheme: o.Scheme}
}

// feasible refuses the matmuls that the simulated compiler cannot build, and schemes without a description.
func (m *model) feasible(o op.Op) error {
	if o.HasScheme() {
		if _, ok := m.desc.Sim.Schemes[o.Scheme]; !ok {
			return diag.New(diag.ClassInfeasible, "processor %q is not described in scheme %q", m.desc.Name, o.Scheme).WithCode("sim.infeasible")
		}
		if !m.desc.HasForm(o.Scheme, o.Form) {
			return diag.New(diag.ClassInfeasible, "processor %q is not described in form %q of scheme %q", m.desc.Name, o.Form, o.Scheme).WithCode("sim.infeasible")
		}
		_, each := products(o)
		for _, r := range m.desc.Sim.Infeasible {
			if r.Contains(each.M, each.K, each.N) {
				return diag.New(diag.ClassInfeasible, "%s cannot be compiled for processor %q", o.Key(), m.desc.Name).WithCode("sim.infeasible")
			}
		}
	}
	return nil
}

// op is the time of one operator in nanoseconds, without the launch. Products are rounded before they
// are added, so that no machine fuses them.
func (m *model) op(o op.Op) float64 {
	s := m.desc.Sim
	if !o.HasScheme() {
		return max(float64(o.Flops())/s.OtherGops, float64(o.Bytes())/m.rate)
	}
	count, o := products(o)
	form, r := o.Form, s.Schemes[o.Scheme]
	o.M, o.K, o.N = socs.Round(o.M, r.Step.M), socs.Round(o.K, r.Step.K), socs.Round(o.N, r.Step.N)
	bytes := float64(o.Bytes())
	if r.WeightBits > 0 {
		stored := op.WeightBytes(o.Scheme.Weight(), o.K, o.N)
		bytes = float64(o.Bytes()-stored) + float64(float64(o.K)*float64(o.N)*(r.WeightBits/8))
	}
	compute, whole := r.FormFactors(form, o.M, o.N)
	t := max(float64(float64(o.Flops())/r.PeakGops)*compute, bytes/m.rate)
	if r.LongK > 1 && o.K >= r.LongKFrom {
		t *= r.LongK
	}
	return float64(float64(1e3*r.SetupUS)+float64(float64(count)*t)) * whole
}

// graph is the time of a graph in nanoseconds for a call with the given scalars (nil: as described).
func (m *model) graph(g *op.Graph, s *driver.Scalars) float64 {
	t := float64(1e3 * m.desc.LaunchUS)
	for _, n := range g.Nodes {
		o := n.Op
		if s != nil {
			if m.desc.DynamicRows {
				o.M = min(o.M, s.Rows)
			}
			if o.Kind == op.Attention && o.Batch && len(s.Batch) >= o.M {
				rows := s.Batch[:o.M]
				o.M = 1
				for _, p := range rows {
					o.Context = p.Pos + 1
					t += m.op(o)
				}
				continue
			}
			if o.Kind == op.Attention {
				o.Context = max(s.KVLen, o.M)
			}
		}
		if o.M > 0 {
			t += m.op(o)
		}
	}
	return t
}

// noisy is sample i of a time: ns times a factor of mean 1 and the given coefficient of variation. The
// factor follows from seed, key and i alone, in integers, so that it is the same on every machine.
func noisy(ns, cv float64, seed uint64, key string, i uint64) int64 {
	exact := int64(math.Round(ns))
	if cv == 0 {
		return exact
	}
	sum := sha256.Sum256([]byte(fmt.Sprintf("%d|%d|%s", seed, i, key)))
	// The sum of 12 uniform 16-bit numbers is nearly normal: mean 6*65535, deviation about 65536.
	z := int64(-6 * 65535)
	for j := 0; j < 24; j += 2 {
		z += int64(binary.LittleEndian.Uint16(sum[j:]))
	}
	ppm := int64(math.Round(1e6*cv)) * z / 65536
	ppm = max(ppm, -900_000)
	return exact + exact/1_000_000*ppm + exact%1_000_000*ppm/1_000_000
}
