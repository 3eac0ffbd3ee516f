package measure

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
)

// FitOptions are the flags of hetc fit.
type FitOptions struct {
	SoC, Record, Output string
	AcceptNoisy         bool
}

// Fit fits latency models to a record and writes them as costs. It prints how well they predict
// measurements that they have not seen.
func Fit(ctx context.Context, ui *cli.Streams, options *FitOptions) error {
	if err := wholefile.Writable(options.Output); err != nil {
		return err
	}
	machine, set, costs, err := OpenCosts(options.SoC, options.Record)
	if err != nil {
		return err
	}
	if err := Steady(ui, set, options.Record, options.AcceptNoisy); err != nil {
		return err
	}
	if set.Truncated {
		ui.Warnf("%s: the last line was cut off and is not used", options.Record)
	}
	doc := map[string]any{
		"file": options.Output, "measurements": set.Len(), "families": len(costs.Families),
		"simulated": costs.Simulated, "imported": costs.Imported,
	}
	quality, misses, err := judge(ctx, ui, machine, set, costs, doc)
	if err != nil {
		return err
	}
	same, err := writeCosts(options.Output, costs)
	if err != nil {
		return err
	}
	if same {
		ui.Printf("%s: unchanged (same record)\n", options.Output)
		doc["unchanged"] = true
	} else {
		cli.Wrote(ui, options.Output, "%s from %s%s", cli.Count(len(costs.Families), "model"),
			cli.Count(set.Len(), "measurement"), originNote(set))
	}
	ui.Table([]string{"predictions", ">n", ">mean error", ">worst", ">within 10 %", ">within 15 %", ">in interval"},
		quality)
	doc["products"] = showProducts(ui, costs)
	doc["wanted"] = showWanted(ui, costs, misses)
	return ui.Result(doc)
}

// judge compares predictions with held-out measurements, where the record has some, and by cross-validation. It returns
// the rows of a table and the errors at held-out operators, and adds the same to doc. It warns where held-out
// measurements cannot be judged.
func judge(
	ctx context.Context, ui *cli.Streams, machine *socs.SoC, set *record.Set, costs *roofline.Costs, doc map[string]any,
) (rows [][]string, misses []roofline.Miss, err error) {
	say := func(what string, q roofline.Quality) {
		rows = append(rows, []string{
			what, fmt.Sprint(q.N), fmt.Sprintf("%.1f %%", 100*q.MAPE), fmt.Sprintf("%.1f %%", 100*q.Worst()),
			fmt.Sprintf("%.0f %%", 100*q.Within10), fmt.Sprintf("%.0f %%", 100*q.Within15),
			fmt.Sprintf("%.0f %%", 100*q.Covered),
		})
		doc[strings.ReplaceAll(what, " ", "_")] = q
	}
	if held := set.HeldOut(); held.Len() > 0 {
		quality, err := roofline.Evaluate(costs, held)
		if err != nil { // of an operator that is held out nothing alike was measured
			ui.Warnf("held-out operators are not judged: %v", err)
		} else {
			misses = quality.Misses
			say("held_out", quality)
			// predictions beyond the sampled sizes extrapolate, and are listed apart
			if beyond := quality.Beyond(); beyond.N > 0 {
				say("held_out within samples", quality.Within())
				say("held_out beyond samples", beyond)
			}
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("fit: %w", err)
	}
	// Five folds: each fifth of the operators is predicted by models fitted to the others. A record may hold too few.
	if quality, err := roofline.CrossValidate(machine, set.Training(), 5, costs); err == nil {
		say("cross_validated", quality)
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("fit: %w", err)
	}
	return rows, misses, nil
}

// originNote says where times come from that hetc did not measure: a simulation, or tables, which it names.
func originNote(set *record.Set) string {
	note := ""
	if set.Header.Simulated {
		note = ", simulated"
	}
	var from []string
	for _, source := range set.Header.Imported {
		from = append(from, fmt.Sprintf("%s (%s)", source.File, source.Source))
	}
	if from != nil {
		note += ", measured elsewhere (imported) from " + strings.Join(from, ", ")
	}
	return note
}

// showWanted names the operators whose measurement would narrow predictions most. Held-out
// operators show which are of interest. Without any, only an imported record gets the list, for the
// corners of its sizes.
func showWanted(ui *cli.Streams, costs *roofline.Costs, held []roofline.Miss) []roofline.Wanted {
	const most = 5

	if held == nil && !costs.Imported {
		return nil
	}
	wanted := costs.Wanted(held, most)
	if len(wanted) == 0 {
		return nil
	}
	var rows [][]string
	for i := range wanted {
		asked := &wanted[i]
		predicted := asked.Predicted
		rows = append(rows, []string{asked.Proc, asked.Op.Key(), fmt.Sprintf("%.1f us", float64(predicted.NS)/1e3),
			fmt.Sprintf("%.1f..%.1f us", float64(predicted.LowNS)/1e3, float64(predicted.HighNS)/1e3)})
	}
	ui.Table([]string{"to predict better, measure on", "operator", ">predicted", ">interval"}, rows)
	return wanted
}

// AcceptNoisy defines the flag of every command that makes a plan from measurements.
func AcceptNoisy(f *pflag.FlagSet, value *bool) {
	f.BoolVar(value, "accept-noisy", false,
		"plan even if most measurements of the record drifted or vary by more than 5 %")
}

// Steady refuses a record of which most measurements are unsteady; with accept it only warns.
func Steady(ui *cli.Streams, set *record.Set, name string, accept bool) error {
	err := set.Steady(name)
	if err == nil || !accept {
		return err
	}
	ui.Warnf("%s", set.Unreliable(name))
	return nil
}

// product is what was fitted to the matrix products of a processor in a scheme.
type product struct {
	Proc    string    `json:"proc"`
	Scheme  op.Scheme `json:"scheme"`
	Gops    float64   `json:"gops"`     // of large shapes
	GBps    float64   `json:"gbps"`     // of what is bound by memory
	RowStep int       `json:"row_step"` // latency is flat within so many rows; 1: it is linear in them
}

// showProducts prints the shape of each processor's latency: linear in the rows, or a staircase.
func showProducts(ui *cli.Streams, costs *roofline.Costs) (doc []product) {
	var rows [][]string
	for _, family := range costs.Families {
		// Products with a bias have the shape of those without.
		if family.Kind != op.MatMul || family.Bias {
			continue
		}
		fitted := product{family.Proc, family.Scheme, family.OpsPerNS, family.BytesPerNS, max(1, family.Step[0])}
		shape := "linear"
		if fitted.RowStep > 1 {
			shape = fmt.Sprintf("steps of %d rows", fitted.RowStep)
		}
		doc = append(doc, fitted)
		rows = append(rows, []string{fitted.Proc, string(fitted.Scheme), fmt.Sprintf("%.0f", fitted.Gops),
			fmt.Sprintf("%.1f", fitted.GBps), shape})
	}
	if len(rows) > 0 {
		ui.Table([]string{"products on", "scheme", ">Gop/s", ">GB/s", "in rows"}, rows)
	}
	return doc
}

// OpenCosts reads a SoC and a record, and fits latency models to it.
func OpenCosts(soc, rec string) (*socs.SoC, *record.Set, *roofline.Costs, error) {
	machine, err := socs.Open(soc)
	if err != nil {
		return nil, nil, nil, err
	}
	set, err := record.Open(rec)
	if err != nil {
		return nil, nil, nil, err
	}
	costs, err := roofline.Fit(machine, set)
	return machine, set, costs, err
}

// writeCosts writes a costs file, unless the file holds the same costs already.
func writeCosts(path string, costs *roofline.Costs) (same bool, err error) {
	// Files that only differ in layout hold the same costs, so digests are compared, not bytes.
	if old, err := roofline.Open(path); err == nil {
		before, err := old.Digest()
		if err != nil {
			return false, err
		}
		after, err := costs.Digest()
		if err != nil {
			return false, err
		}
		if before == after {
			return true, nil
		}
	}
	return false, roofline.Write(path, costs)
}
