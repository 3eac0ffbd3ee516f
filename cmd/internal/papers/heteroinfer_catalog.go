package papers

import (
	"context"
	"fmt"
	"math"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/socs"
)

// simulated times products on the catalog's SoC with the simulation itself, without noise. The first product that
// it refuses is kept in err, and every later time is then 0.
type simulated struct {
	soc *socs.SoC
	err error
}

// ns is the time of a product on a processor while those in beside stream from memory, in nanoseconds.
func (s *simulated) ns(proc string, o op.Op, beside ...string) int64 {
	if s.err != nil {
		return 0
	}
	var ns int64
	ns, s.err = sim.NS(s.soc, proc, o, beside...)
	return ns
}

// heteroOrder is the order of operands on the catalog's SoC (sec. 3.2, 5.6): its one number is fitted to the
// ablation, and the largest effect follows.
func heteroOrder(_ context.Context, rows *sheet) error {
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		return err
	}
	model, err := models.Open("llama-3-8b")
	if err != nil {
		return err
	}
	defer model.Close()
	times := &simulated{soc: soc}
	// the ablation is prefill of 256 tokens with 4-bit weights; the example of sec. 3.2 is in float
	npu := func(m, k, n int, scheme op.Scheme, f op.Form) float64 {
		return float64(times.ns("npu", op.Op{Kind: op.MatMul, M: m, K: k, N: n, Scheme: scheme, Form: f}))
	}
	var first, swapped float64
	for _, w := range linearShapes(model) {
		first += npu(256, w[0], w[1], op.A8TQ4B32, "")
		swapped += npu(256, w[0], w[1], op.A8TQ4B32, op.Swapped)
	}
	rows.noted(Modelled, "prefill/gain", hetero("r_ablation").at("values", "order_exchange").num(), first/swapped,
		"prefill/gain", model.Name, soc.Name)
	// the largest effect over lengths of prompt
	const k, n = 4096, 14336 // sec. 3.2; the range of tokens is an axis of Fig. 4 and not in the text
	best, at := 0.0, 0
	for m := 32; m <= 1024; m += 32 {
		if g := npu(m, k, n, op.A32W32, "") / npu(m, k, n, op.A32W32, op.Swapped); g > best {
			best, at = g, m
		}
	}
	rows.noted(Modelled, "example/gain", hetero("m_order_sensitivity_example").at("values", "speedup").num(), best,
		"example/gain", n, k, k, k, k, n, soc.Name, at)
	return times.err
}

// heteroCatalog decides Table 3 with the latencies of the catalog's SoC, which has the fixed costs and the shared
// memory that the printed latencies alone do not tell.
func heteroCatalog(ctx context.Context, rows *sheet) error {
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		return err
	}
	for _, name := range []string{"gpu", "npu"} {
		proc := soc.Processor(name)
		if proc == nil || proc.Sim == nil {
			return fmt.Errorf("the catalog SoC %q has no simulated %q", soc.Name, name)
		}
		if _, ok := proc.Sim.Schemes[op.A8TQ4B32]; !ok {
			return fmt.Errorf("processor %q of the catalog SoC %q is not described in %q", name, soc.Name, op.A8TQ4B32)
		}
	}
	// the paper's grids, found with the printed latencies
	printed := table3()
	base, onGrid, err := table3OnGrids(ctx, printed)
	if err != nil {
		return err
	}
	times := &simulated{soc: soc}
	for i := range printed {
		// from now on shapes take their latencies from the catalog, and forget those looked up
		sh := printed[i].shape
		other := map[string]string{"gpu": "npu", "npu": "gpu"}
		sh.catalog = func(proc string, tokens, n int, beside bool) int64 {
			operator := op.Op{Kind: op.MatMul, M: tokens, K: sh.k, N: n, Scheme: op.A8TQ4B32}
			if soc.Processor(proc).HasForm(operator.Scheme, op.Swapped) {
				operator.Form = op.Swapped // as Table 3 is written
			}
			if beside {
				return times.ns(proc, operator, other[proc])
			}
			return times.ns(proc, operator)
		}
		clear(sh.lookup)
	}
	var logs, count float64
	for i := range printed {
		row := &printed[i]
		// latencies of single lengths are printed: how far is the catalog from them
		if !row.dynamic() {
			for _, proc := range []string{"gpu", "npu"} {
				printed, ours := row.cell.at(proc+"_us").num(),
					float64(row.shape.catalog(proc, row.from, row.shape.rows, false))/1000
				logs, count = logs+math.Abs(math.Log(ours/printed)), count+1
				rows.noted(Modelled, row.name+"/"+proc+"-us", printed, ours, "us", soc.Name)
			}
		}
		for _, variant := range []struct {
			suffix, grid string
			a            *assumptions
		}{{"", "every stage", base}, {"-smallest-grid", "the smallest grid of table3", &onGrid}} {
			list, err := row.shape.spans(ctx, row.from, row.to, row.dynamic(), variant.a, decision.same)
			if err != nil {
				return err
			}
			note := fmt.Sprintf("latencies of catalog SoC %s, each part with its fixed cost and both sharing the "+
				"memory; ratios from %s, other assumptions as for table3", soc.Name, variant.grid)
			rows.add(Modelled, row.name+"/strategy"+variant.suffix, row.printed.strategy,
				textOf(list, func(d decision) string { return d.strategy }), "%s", note)
			rows.add(Modelled, row.name+"/ratio"+variant.suffix, row.printed.ratio,
				textOf(list, func(d decision) string { return d.ratio }), "%s", note)
		}
	}
	rows.add(Modelled, "all/mean-error-percent", 0, 100*(math.Exp(logs/count)-1),
		"of the printed latencies, geometric mean")
	return times.err
}
