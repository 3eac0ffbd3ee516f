package traffic

import (
	"context"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/socs"
)

// Processors that share a program hand over to each other many times a step, and read what the other one wrote. Where
// the machine is virtual, its host may move cores apart, so that both take several times as long as when the machine
// was probed, and back again, within minutes. Times measured then differ from predictions for a reason that no plan
// knows. Therefore every measurement stands beside the hand-over before and after it.

// HandoverReport is what a hand-over between two cores took around a measurement, in us.
type HandoverReport struct {
	Planned float64 `json:"planned_us"` // by the SoC file
	Before  float64 `json:"before_us"`
	After   float64 `json:"after_us"`
}

// mostMoved is the factor by which a hand-over may differ from the SoC file's before it is told. Within it are repeated
// measurements of one machine.
const mostMoved = 1.5

// moved reports whether the cores were nearer or farther apart than the SoC file says.
func (h *HandoverReport) moved() bool {
	slowest, fastest := max(h.Before, h.After), min(h.Before, h.After)
	return slowest > mostMoved*h.Planned || fastest*mostMoved < h.Planned
}

// gauge measures the hand-over between two cores of a SoC.
type gauge struct {
	from, to int // cores
	planned  float64
	latest   float64 // us
}

// newGauge measures the first hand-over of the SoC file between two cores; nil where it has none, or is simulated.
func newGauge(ctx context.Context, soc *socs.SoC) (*gauge, error) {
	if soc == nil || soc.Simulated() {
		return nil, nil
	}
	for _, link := range soc.Links {
		from, to := soc.Processor(link.From), soc.Processor(link.To)
		if from == nil || to == nil || len(from.Cores) == 0 || len(to.Cores) == 0 || from.Cores[0] == to.Cores[0] {
			continue
		}
		out := &gauge{from: from.Cores[0], to: to.Cores[0], planned: link.HandoverUS}
		_, err := out.report(ctx)
		return out, err
	}
	return nil, nil
}

// report measures again: what the hand-over took then and takes now; nil where there is nothing to measure.
func (g *gauge) report(ctx context.Context) (*HandoverReport, error) {
	if g == nil {
		return nil, nil
	}
	ns, err := profiler.Handover(ctx, g.from, g.to)
	if err != nil {
		return nil, err
	}
	out := &HandoverReport{Planned: g.planned, Before: g.latest, After: ns / 1e3}
	g.latest = out.After
	return out, nil
}

// showHandovers warns of measurements during which the cores were not as far apart as the plan was told.
func showHandovers(ui *cli.Streams, reports []*Report) {
	for _, report := range reports {
		if handover := report.Handover; handover != nil && handover.moved() {
			name := string(report.Policy)
			if report.Idle {
				name = "reactive alone"
			}
			if report.Load != "" {
				name = "load " + report.Load + ", " + name
			}
			ui.Warnf("%s: a hand-over between cores took %.2f us before and %.2f us after, and %.2f us when the machine was probed: "+
				"calls that several processors share take another time than predicted", name, handover.Before, handover.After,
				handover.Planned)
		}
	}
}
