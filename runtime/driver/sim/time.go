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
	"github.com/hetc/hetc/socs/timeline"
)

// NS returns the exact time in nanoseconds of a graph of one operator, without noise, while the
// processors in beside stream from memory. Profiling and fitting are tested against it.
func NS(s *socs.SoC, proc string, operator op.Op, beside ...string) (int64, error) {
	timed, err := exactly(s, proc, operator)
	if err == nil && len(beside) > 0 {
		if timed.company, err = company(s, timed.desc, strings.Join(beside, ",")); err != nil {
			err = fmt.Errorf("simulate %s on %q: %w", operator.Key(), proc, err)
		}
	}
	if err != nil {
		return 0, err
	}
	graph := op.Graph{Nodes: []op.Node{{Op: operator}}}
	return int64(math.Round(total(timed.graph(&graph, nil)))), nil
}

// Company is an operator on a processor that works beside others.
type Company struct {
	Proc string
	Op   op.Op
}

// Beside returns the NS of the first operator while the others repeat all the time.
func Beside(s *socs.SoC, all ...Company) (int64, error) {
	machine, procs, graphs, err := besides(s, all)
	if err != nil {
		return 0, err
	}
	return int64(timeline.Beside(machine, procs, graphs)), nil
}

// Together returns the NS of each operator when all start at the same time.
func Together(s *socs.SoC, all ...Company) ([]int64, error) {
	machine, procs, graphs, err := besides(s, all)
	if err != nil {
		return nil, err
	}
	var out []int64
	for _, ns := range timeline.Together(machine, procs, graphs) {
		out = append(out, int64(ns))
	}
	return out, nil
}

// besides returns the machine, and the phases of each operator alone.
func besides(s *socs.SoC, all []Company) (m *timeline.Machine, procs []string, graphs [][]timeline.Phase, err error) {
	for _, other := range all {
		one, err := exactly(s, other.Proc, other.Op)
		if err != nil {
			return nil, nil, nil, err
		}
		procs, graphs = append(procs, other.Proc), append(graphs,
			one.graph(&op.Graph{Nodes: []op.Node{{Op: other.Op}}}, nil))
	}
	return &timeline.Machine{Memory: memory(s)}, procs, graphs, nil
}

// exactly returns the time model for an operator that a processor can execute.
func exactly(s *socs.SoC, proc string, o op.Op) (model, error) {
	found := s.Processor(proc)
	if found == nil || found.Sim == nil {
		return model{}, diag.New(diag.ClassInput, "simulate %s: SoC %q has no simulated processor %q", o.Key(),
			s.Name, proc)
	}
	timed := model{desc: found, memory: memory(s)}
	return timed, timed.feasible(o)
}

// model computes the time of operators on one processor, beside streams that other processors read
// all the time.
type model struct {
	desc    *socs.Processor
	memory  timeline.Memory
	company []timeline.Activity
}

// memory returns the bandwidth of processors that read together, as the SoC states it.
func memory(s *socs.SoC) timeline.Memory {
	var m timeline.Memory
	for _, j := range s.Joint {
		m.Sets = append(m.Sets, timeline.Set{Procs: j.Processors, BytesPerNS: j.BandwidthGBps})
	}
	return m
}

// company parses the streams of other processors, given as "gpu,npu=12.5": each reads as fast as it
// can alone, or at the stated rate in 1e9 byte/s.
func company(soc *socs.SoC, p *socs.Processor, beside string) ([]timeline.Activity, error) {
	set := []string{p.Name}
	var out []timeline.Activity
	for part := range strings.SplitSeq(beside, ",") {
		name, rate, limited := strings.Cut(strings.TrimSpace(part), "=")
		other := soc.Processor(name)
		if other == nil {
			return nil, fmt.Errorf("SoC %q has no processor %q", soc.Name, name)
		}
		stream := &timeline.Phase{MemoryNS: 1, Rate: other.BandwidthGBps}
		if limited {
			gbps, err := strconv.ParseFloat(rate, 64)
			if err != nil || !(gbps >= 0 && gbps <= 1e6) {
				return nil, fmt.Errorf("rate %q of processor %q, want 1e9 byte/s in 0..1e6", rate, name)
			}
			if gbps < other.BandwidthGBps {
				stream.ComputeNS, stream.MemoryNS = 1, gbps/other.BandwidthGBps
			}
		}
		set = append(set, name)
		out = append(out, timeline.Activity{Proc: name, Phase: stream})
	}
	return out, soc.Concurrent(set...)
}

// products returns the matmuls that an operator stands for. The rows of an ExpertMatMul are taken to be
// divided evenly among as many experts as possible, so that some have one row more than the others.
func products(o op.Op) []product {
	switch o.Kind {
	case op.GroupMatMul:
		one, count := o.Products()
		return []product{{count, one}}
	case op.ExpertMatMul:
	default:
		return []product{{1, o}}
	}
	if o.Sent > 0 {
		o.M = min(o.M, (o.Sent+o.Fan-1)/o.Fan)
	}
	count := min(o.Rows(), o.Experts)
	each, more := o.Rows()/count, o.Rows()%count
	one := op.Op{Kind: op.MatMul, M: each, K: o.K, N: o.N, Scheme: o.Scheme}
	out := []product{{count - more, one}}
	if more > 0 {
		one.M++
		out = append(out, product{more, one})
	}
	return out
}

// product is count matmuls of one shape.
type product struct {
	count int
	op    op.Op
}

// feasible refuses shapes that the simulated compiler cannot build, and schemes without a
// description.
func (m *model) feasible(operator op.Op) error {
	if operator.HasScheme() {
		if _, ok := m.desc.Sim.Schemes[operator.Scheme]; !ok {
			return diag.New(diag.ClassInfeasible, "processor %q is not described in scheme %q", m.desc.Name,
				operator.Scheme).WithCode("sim.infeasible")
		}
		if !m.desc.HasForm(operator.Scheme, operator.Form) {
			return diag.New(diag.ClassInfeasible, "processor %q is not described in form %q of scheme %q",
				m.desc.Name, operator.Form, operator.Scheme).WithCode("sim.infeasible")
		}
		for _, each := range products(operator) {
			for _, shape := range m.desc.Sim.Infeasible {
				if shape.Contains(each.op.M, each.op.K, each.op.N) {
					return diag.New(diag.ClassInfeasible, "%s cannot be compiled for processor %q", operator.Key(),
						m.desc.Name).WithCode("sim.infeasible")
				}
			}
		}
	}
	return nil
}

// op returns the phase of one operator, without the launch. The conversions round products before they
// are added, so that no machine fuses them and all give equal bits.
func (m *model) op(o op.Op) timeline.Phase {
	sim := m.desc.Sim
	work := timeline.Phase{Rate: m.desc.BandwidthGBps}
	if launch := sim.Estimate; launch != nil && o.Kind == op.Estimate {
		work.SetupNS = 1e3 * launch.SetupUS
		work.ComputeNS = float64(o.EstimateWork()) / launch.PeakGops
		work.MemoryNS = float64(o.Bytes()) / work.Rate
		return m.beside(work)
	}
	if !o.HasScheme() {
		work.ComputeNS, work.MemoryNS = float64(o.Flops())/sim.OtherGops, float64(o.Bytes())/work.Rate
		return m.beside(work)
	}
	rates := sim.Schemes[o.Scheme]
	list := products(o)
	for _, product := range list {
		one, whole := m.product(product, &rates)
		if len(list) > 1 { // one after the other
			one.ComputeNS = max(one.ComputeNS, one.MemoryNS)
		}
		work.SetupNS = float64(1e3*rates.SetupUS) * whole
		work.ComputeNS, work.MemoryNS = work.ComputeNS+one.ComputeNS, work.MemoryNS+one.MemoryNS
	}
	return m.beside(work)
}

// product returns the computing and reading of matmuls of one shape, and the factor by which the form
// prolongs all of it.
func (m *model) product(matmul product, rates *socs.SimScheme) (phase timeline.Phase, whole float64) {
	operator := matmul.op
	form := operator.Form
	operator.M, operator.K, operator.N = op.RoundUp(operator.M, rates.Step.M), op.RoundUp(operator.K, rates.Step.K),
		op.RoundUp(operator.N, rates.Step.N)
	bytes := float64(operator.Bytes())
	if rates.WeightBits > 0 {
		stored := op.WeightBytes(operator.Scheme.Weight(), operator.K, operator.N)
		bytes = float64(operator.Bytes()-stored) + float64(float64(operator.K)*float64(operator.N)*(rates.WeightBits/8))
	}
	compute, whole := rates.FormFactors(form, operator.M, operator.N)
	times := float64(float64(matmul.count) * whole)
	phase.ComputeNS = float64(float64(float64(operator.Flops())/rates.PeakGops)*compute) * times
	phase.MemoryNS = float64(bytes/m.desc.BandwidthGBps) * times
	if factor := rates.ShapeFactor(operator.K, operator.N); factor > 1 { // as much is read, in more time
		phase.ComputeNS = float64(max(phase.ComputeNS, phase.MemoryNS) * factor)
	}
	return phase, whole
}

// beside returns a phase slowed down by the company, as setup time in which nothing else happens.
func (m *model) beside(p timeline.Phase) timeline.Phase {
	if len(m.company) == 0 {
		return p
	}
	slow := m.memory.Slow(append([]timeline.Activity{{Proc: m.desc.Name, Phase: &p}}, m.company...), nil)[0]
	setup := p.SetupNS
	p.SetupNS = 0
	return timeline.Phase{SetupNS: setup + float64(p.NS()*slow)}
}

// graph returns the phases of a graph in a call with the given scalars, nil for shapes as described.
func (m *model) graph(g *op.Graph, scalars *driver.Scalars) []timeline.Phase {
	phases := append(make([]timeline.Phase, 0, 1+len(g.Nodes)), timeline.Phase{SetupNS: float64(1e3 * m.desc.LaunchUS)})
	for _, node := range g.Nodes {
		operator := node.Op
		if scalars != nil {
			if m.desc.DynamicRows {
				operator.M = min(operator.M, scalars.Rows)
			}
			// rows of a batch have contexts of their own
			if operator.Kind == op.Attention && operator.Batch && len(scalars.Batch) >= operator.M {
				rows := scalars.Batch[:operator.M]
				operator.M = 1
				for _, at := range rows {
					operator.Context = at.Pos + 1
					phases = append(phases, m.op(operator))
				}
				continue
			}
			if operator.Kind.Has("context") {
				operator.Context = max(scalars.KVLen, operator.M)
			}
		}
		if operator.M > 0 {
			phases = append(phases, m.op(operator))
		}
	}
	return phases
}

// total returns the time of phases that run alone, in ns.
func total(phases []timeline.Phase) float64 {
	sum := 0.0
	for i := range phases {
		sum += phases[i].NS()
	}
	return sum
}

// noisy is sample i of a time: ns times a factor of mean 1 and coefficient of variation cv. The
// factor follows from seed, key and i alone, in integers, so that it is the same on every machine.
func noisy(ns, cv float64, seed uint64, key string, i uint64) int64 {
	exact := int64(math.Round(ns))
	if cv == 0 {
		return exact
	}
	sum := sha256.Sum256([]byte(fmt.Sprintf("%d|%d|%s", seed, i, key)))
	// The sum of 12 uniform 16-bit numbers is nearly normal: mean 6*65535, deviation about 65536.
	noise := int64(-6 * 65535)
	for j := 0; j < 24; j += 2 {
		noise += int64(binary.LittleEndian.Uint16(sum[j:]))
	}
	ppm := int64(math.Round(1e6*cv)) * noise / 65536
	ppm = max(ppm, -900_000)
	return exact + exact/1_000_000*ppm + exact%1_000_000*ppm/1_000_000
}
