package papers

import (
	"context"
	"fmt"
	"math"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
)

// simulatedNS is a product of the catalog's SoC as its description says (socs.SimScheme), without noise; beside tells that
// the other processor reads memory, too.
func simulatedNS(soc *socs.SoC, proc, other string, o op.Op, beside bool) int64 {
	p := soc.Processor(proc)
	rate := p.BandwidthGBps
	if joint, ok := soc.JointGBps(proc, other); ok && beside {
		if sum := rate + soc.Processor(other).BandwidthGBps; sum > joint {
			rate *= joint / sum
		}
	}
	r := p.Sim.Schemes[o.Scheme]
	o.M, o.K, o.N = socs.Round(o.M, r.Step.M), socs.Round(o.K, r.Step.K), socs.Round(o.N, r.Step.N)
	bytes := float64(o.Bytes())
	if r.WeightBits > 0 {
		bytes += float64(float64(o.K)*float64(o.N)*(r.WeightBits/8)) - float64(op.WeightBytes(o.Scheme.Weight(), o.K, o.N))
	}
	t := math.Max(float64(o.Flops())/r.PeakGops, bytes/rate)
	if r.LongK > 1 && o.K >= r.LongKFrom {
		t *= r.LongK
	}
	return int64(math.Round(float64(1e3*(p.LaunchUS+r.SetupUS)) + t))
}

// heteroCatalog decides Table 3 with the latencies of the catalog's SoC, which has the fixed costs and the shared memory
// that the printed latencies alone do not tell.
func heteroCatalog(ctx context.Context, s *sheet) error {
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		return err
	}
	for _, name := range []string{"gpu", "npu"} {
		p := soc.Processor(name)
		if p == nil || p.Sim == nil {
			return fmt.Errorf("the catalog SoC %q has no simulated %q", soc.Name, name)
		}
		if _, ok := p.Sim.Schemes[op.A8TQ4B32]; !ok {
			return fmt.Errorf("processor %q of the catalog SoC %q is not described in %q", name, soc.Name, op.A8TQ4B32)
		}
	}
	rows := table3()
	base, err := table3Base()
	if err != nil {
		return err
	}
	grid, _, err := smallestGrid(ctx, rows, base)
	if err != nil {
		return err
	}
	onGrid := *base
	onGrid.shares = grid
	for i := range rows {
		sh := rows[i].shape
		other := map[string]string{"gpu": "npu", "npu": "gpu"}
		sh.catalog = func(proc string, tokens, n int, beside bool) int64 {
			return simulatedNS(soc, proc, other[proc], op.Op{Kind: op.MatMul, M: tokens, K: sh.k, N: n, Scheme: op.A8TQ4B32}, beside)
		}
		clear(sh.lookup)
	}
	var logs, n float64
	for i := range rows {
		r := &rows[i]
		if !r.dynamic() {
			for _, proc := range []string{"gpu", "npu"} {
				printed, ours := r.cell.at(proc+"_us").num(), float64(r.shape.catalog(proc, r.from, r.shape.rows, false))/1000
				logs, n = logs+math.Abs(math.Log(ours/printed)), n+1
				s.add(Modelled, r.name+"/"+proc+"-us", printed, ours, "catalog SoC %s, fitted to these rows by few parameters (peak, fixed cost, bandwidth, factor for long K)", soc.Name)
			}
		}
		for _, v := range []struct {
			suffix, grid string
			a            *assumptions
		}{{"", "every stage", base}, {"-smallest-grid", "the smallest grid of table3", &onGrid}} {
			list, err := r.shape.spans(ctx, r.from, r.to, r.dynamic(), v.a, decision.same)
			if err != nil {
				return err
			}
			note := fmt.Sprintf("latencies of catalog SoC %s, each part with its fixed cost and both sharing the memory; ratios from %s, other assumptions as for table3", soc.Name, v.grid)
			s.add(Modelled, r.name+"/strategy"+v.suffix, r.printed.strategy, textOf(list, func(d decision) string { return d.strategy }), "%s", note)
			s.add(Modelled, r.name+"/ratio"+v.suffix, r.printed.ratio, textOf(list, func(d decision) string { return d.ratio }), "%s", note)
		}
	}
	s.add(Modelled, "all/mean-error-percent", 0, 100*(math.Exp(logs/n)-1), "of the printed latencies, geometric mean")
	return nil
}
