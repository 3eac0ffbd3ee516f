package measure

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
)

// ImportedNote says that times of a record are not hetc's, and whose they are.
func ImportedNote(set *record.Set) string {
	var from []string
	for _, x := range set.Header.Imported {
		from = append(from, fmt.Sprintf("%s (%s)", x.File, x.Source))
	}
	if from == nil {
		return ""
	}
	return ", measured elsewhere (imported) from " + strings.Join(from, ", ")
}

// ShowWanted names the operators whose measurement would narrow predictions most. Held-out operators say which are of
// interest; without any, an imported record is asked for the corners of its sizes, as nothing else will measure them.
func ShowWanted(s *cli.Streams, costs *roofline.Costs, held []roofline.Miss) []roofline.Wanted {
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
		w := &wanted[i]
		p := w.Predicted
		rows = append(rows, []string{w.Proc, w.Op.Key(), fmt.Sprintf("%.1f us", float64(p.NS)/1e3), fmt.Sprintf("%.1f..%.1f us", float64(p.LowNS)/1e3, float64(p.HighNS)/1e3)})
	}
	s.Table([]string{"to predict better, measure on", "operator", ">predicted", ">interval"}, rows)
	return wanted
}

// AcceptNoisy is the flag of whatever makes a plan of measurements.
func AcceptNoisy(f *pflag.FlagSet, value *bool) {
	f.BoolVar(value, "accept-noisy", false, "plan even if most measurements of the record are flagged noisy or drift")
}

// Steady refuses a record of which most measurements are noisy, or warns where that is accepted.
func Steady(s *cli.Streams, set *record.Set, name string, accept bool) error {
	err := set.Steady(name)
	if err == nil || !accept {
		return err
	}
	flagged, all := set.Noise()
	s.Warnf("%d of %d measurements in %s are noisy: the machine was busy, so do not rely on the predictions", flagged, all, name)
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

// ShowProducts tells the shape of each processor's latency: a straight line in the rows, or a staircase.
func ShowProducts(s *cli.Streams, costs *roofline.Costs) (doc []product) {
	var rows [][]string
	for _, f := range costs.Families {
		if f.Kind != op.MatMul || f.Bias {
			continue
		}
		x := product{f.Proc, f.Scheme, f.OpsPerNS, f.BytesPerNS, max(1, f.Step[0])}
		shape := "linear"
		if x.RowStep > 1 {
			shape = fmt.Sprintf("steps of %d rows", x.RowStep)
		}
		doc = append(doc, x)
		rows = append(rows, []string{x.Proc, string(x.Scheme), fmt.Sprintf("%.0f", x.Gops), fmt.Sprintf("%.1f", x.GBps), shape})
	}
	if len(rows) > 0 {
		s.Table([]string{"products on", "scheme", ">Gop/s", ">GB/s", "in rows"}, rows)
	}
	return doc
}

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

// WriteCosts writes a costs file unless it holds the same already.
func WriteCosts(path string, c *roofline.Costs) (same bool, err error) {
	if old, err := roofline.Open(path); err == nil {
		a, err := old.Digest()
		if err != nil {
			return false, err
		}
		b, err := c.Digest()
		if err != nil {
			return false, err
		}
		if a == b {
			return true, nil
		}
	}
	return false, roofline.Write(path, c)
}
