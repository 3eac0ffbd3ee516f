package roofline

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/source"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/socs"
)

// Fit makes the costs of a SoC from its measurements, except held-out ones.
//
// Numbers of a processor as a whole (launch, bandwidth, hand-over) that the record lacks come from the SoC description
// and are marked so. Operators are only ever predicted from measurements of their kind. A record of another SoC, or one
// without operators, is an error of class ClassInput.
func Fit(soc *socs.SoC, set *record.Set) (*Costs, error) { return fit(soc, set, nil) }

// fit does the work of Fit. It takes over the families in known, which were fitted to the same measurements.
func fit(soc *socs.SoC, set *record.Set, known map[string]*Family) (*Costs, error) {
	digest, err := soc.Digest()
	if err != nil {
		return nil, err
	}

	// The record has only the names of processors, so the description must be the one that it was made with.
	if set.Header.SoCDigest != digest {
		return nil, diag.New(diag.ClassInput,
			"fit costs of SoC %q: the record is about SoC %q with digest %.12s, want %.12s", soc.Name, set.Header.SoC,
			set.Header.SoCDigest, digest).
			WithCode("costs.soc").WithHint("give the SoC file the record was made with, or profile again")
	}

	costs := &Costs{
		Schema: Schema, SoC: soc.Name, SoCDigest: digest, Fingerprint: set.Header.Fingerprint,
		Simulated: set.Header.Simulated, Imported: len(set.Header.Imported) > 0, CacheBytes: soc.LastCacheBytes(),
	}
	costs.Record, err = set.Digest()
	if err != nil {
		return nil, err
	}

	all, err := summarise(set.Training())
	if err != nil {
		return nil, err
	}

	if err := mustHave(soc, all); err != nil {
		return nil, err
	}

	// Families need the bandwidths of processors. Sharing needs families, to divide operators into arithmetic and
	// reading.
	costs.fitProcessors(soc, all)
	costs.fitFamilies(soc, all, known)
	costs.fitGated(soc, all)
	costs.fitHandovers(soc, all)
	costs.fitSharing(soc, all)

	// An operator that the processor refuses, by an imported table, is no choice.
	for _, facts := range set.Facts() {
		if facts.Compiler == record.ImportedCompiler && facts.Refused != "" {
			costs.exclude(facts.Proc, *facts.Op, facts.Refused)
		}
	}

	if len(costs.Families) == 0 {
		return nil, diag.New(diag.ClassInput, "fit costs of SoC %q: the record holds no operator", soc.Name).
			WithHint("run `hetc profile --soc ... --model ... -o FILE` first")
	}
	if err := costs.validate(); err != nil {
		return nil, diag.New(diag.ClassInput, "fit costs of SoC %q: %w", soc.Name, err)
	}
	return costs, nil
}

// mustHave returns an error if a sample is of a processor that the SoC does not have.
func mustHave(soc *socs.SoC, all []sample) error {
	for i := range all {
		if name := all[i].m.Proc; soc.Processor(name) == nil {
			return diag.New(diag.ClassInput,
				"fit costs of SoC %q: the record measures processor %q, which it does not have", soc.Name, name).
				WithCode("costs.soc")
		}
	}
	return nil
}

// sample is a measurement with its typical time, the mean of the middle half of its samples, and the interval of that.
type sample struct {
	m             *record.Measurement
	ns, low, high float64
}

// summarise gives each measurement its typical time with an interval.
func summarise(set *record.Set) ([]sample, error) {
	var out []sample
	for _, measured := range set.All() {
		summary, err := stat.Summarise(measured.Samples)
		if err != nil {
			return nil, fmt.Errorf("measurement %q: %w", measured.Key(), err)
		}

		// A sum of finite times may be infinite.
		most := max(summary.High, summary.Midmean)
		if !(most <= maxNS) {
			return nil, diag.New(diag.ClassInput, "measurement %q takes %.3g ns, want at most %d (104 days)",
				measured.Key(), most, int64(maxNS)).WithCode("costs.value").
				WithHint("take its line out of the record and measure again: hetc profile --resume")
		}

		// If samples lie on two levels, the median jumps between them. The mean of the middle half does not.
		out = append(out, sample{m: measured, ns: summary.Midmean, low: min(summary.Low, summary.Midmean),
			high: max(summary.High, summary.Midmean)})
	}
	return out, nil
}

// fitProcessors takes launch and bandwidth of each processor from the measurements, or else from the description.
func (c *Costs) fitProcessors(soc *socs.SoC, all []sample) {
	for i := range soc.Processors {
		described := &soc.Processors[i]
		fitted := Processor{Name: described.Name, LaunchNS: 1e3 * described.LaunchUS, LaunchSource: source.Described,
			BytesPerNS: described.BandwidthGBps, BytesSource: source.Described}
		var launch []float64
		var loadX, loadY []float64 // MB and ns
		most := int64(0)           // bytes
		for _, taken := range all {
			if taken.m.Proc != described.Name || len(taken.m.Concurrent) > 0 {
				continue
			}

			switch taken.m.Kind {
			case record.Launch:
				launch = append(launch, taken.ns)
			case record.Bandwidth:
				// Caches help the largest pass least.
				if taken.m.Bytes >= most {
					most = taken.m.Bytes
					fitted.BytesPerNS = round(float64(taken.m.Bytes) / taken.ns)
					fitted.BytesSource = source.Measured
				}
			case record.Load:
				loadX, loadY = append(loadX, float64(taken.m.Bytes)/1e6), append(loadY, taken.ns)
			}
		}

		if len(launch) > 0 {
			fitted.LaunchNS, fitted.LaunchSource = round(slices.Min(launch)), source.Measured
		}
		if len(loadX) > 0 {
			constant, slope := theilSen(loadX, loadY)
			fitted.LoadNS, fitted.LoadNSPerMB = round(max(constant, 0)), round(max(slope, 0))
		}
		c.Processors = append(c.Processors, fitted)
	}

	slices.SortFunc(c.Processors, func(a, b Processor) int { return cmp.Compare(a.Name, b.Name) })
}

// theilSen returns the line y = a + b x whose slope is the median of all pairwise slopes and whose constant is the
// median of the residuals (Theil 1950, Sen 1968). Outliers do not move it.
func theilSen(x, y []float64) (constant, slope float64) {
	var slopes, rest []float64
	for i := range x {
		for j := range i {
			// Two points above each other have no slope. If all are, the line is level.
			if x[i] != x[j] {
				slopes = append(slopes, (y[i]-y[j])/(x[i]-x[j]))
			}
		}
	}

	if len(slopes) > 0 {
		slope = stat.Median(slopes)
	}

	for i := range x {
		// The conversion keeps the compiler from fusing the product with the difference, so that every machine fits the
		// same line.
		rest = append(rest, y[i]-float64(slope*x[i]))
	}

	return stat.Median(rest), slope
}

// round keeps six significant digits, so that the file does not depend on the last bits of an addition.
func round(value float64) float64 {
	if value == 0 || math.IsInf(value, 0) || math.IsNaN(value) {
		return value
	}
	scale := math.Pow(10, 5-math.Floor(math.Log10(math.Abs(value))))
	return math.Round(value*scale) / scale
}

// point is a sample in its family: the extent of its operator, its time with interval, and its weight in the fit.
type point struct {
	rows, along, across int
	ns, low, high       float64
	weight              float64
}

// extent returns the position as a list of axes.
func (p point) extent() [3]int { return [3]int{p.rows, p.along, p.across} }

// doubtful is the weight of a measurement that the profiler has flagged (noisy, drifted, or few samples). It still
// counts, but does not bend the fit.
const doubtful = 0.3

// fitFamilies fits the families of all samples, several at once. It takes over known families.
func (c *Costs) fitFamilies(soc *socs.SoC, all []sample, known map[string]*Family) {
	// The key of a family has no sizes.
	families := map[string]*Family{}
	points := map[string][]point{}
	for _, taken := range all {
		if taken.m.Kind != record.Op || taken.m.GLU != nil || len(taken.m.Concurrent) > 0 || !layoutFits(soc, taken.m) {
			continue
		}
		family, rows, along, across := familyOf(taken.m.Proc, *taken.m.Op, taken.m.Cold)
		key := family.key()
		families[key] = &family
		weight := 1.0
		if len(taken.m.Warnings) > 0 {
			weight = doubtful
		}
		points[key] = append(points[key], point{rows, along, across, taken.ns, taken.low, taken.high, weight})
	}

	// Families do not depend on each other. Each worker writes to its family's index of the sorted list, so that the
	// result does not depend on the order in which workers finish.
	keys := slices.Sorted(maps.Keys(families))
	c.Families = make([]Family, len(keys))
	var fits sync.WaitGroup
	next := make(chan int)
	for range min(runtime.GOMAXPROCS(0), len(keys)) {
		fits.Go(func() {
			for i := range next {
				family := families[keys[i]]
				if same := known[keys[i]]; same != nil {
					family = same
				} else {
					family.fit(points[keys[i]], soc.Processor(family.Proc))
				}

				c.Families[i] = *family
			}
		})
	}

	for i := range keys {
		next <- i
	}
	close(next)
	fits.Wait()
}

// layoutFits reports whether a processor uses the layout of a measurement for its weight.
func layoutFits(soc *socs.SoC, measured *record.Measurement) bool {
	if measured.Op.Scheme == "" || measured.Layout == "" {
		return true
	}
	want := soc.Processor(measured.Proc).Layouts[measured.Op.Scheme.Weight()]
	return want == "" || want == measured.Layout
}

// fitHandovers collects hand-overs and copies: measured ones, and the SoC's description for links without measurements.
func (c *Costs) fitHandovers(soc *socs.SoC, all []sample) {
	type link struct{ from, to string }
	copies := map[link][][2]int64{}
	for _, taken := range all {
		if len(taken.m.Concurrent) > 0 {
			continue
		}
		proc, to := taken.m.Proc, taken.m.To
		switch taken.m.Kind {
		case record.Sync:
			c.Handovers = append(c.Handovers, Handover{From: proc, To: to,
				NS: ns(taken.ns), LowNS: ns(taken.low), HighNS: ns(taken.high), Source: source.Measured})
		case record.Copy:
			key := link{proc, cmp.Or(to, proc)}
			copies[key] = append(copies[key], [2]int64{taken.m.Bytes, ns(taken.ns)})
		}
	}

	for _, described := range soc.Links {
		from, to := described.From, described.To
		if _, ok := c.Sync(from, to); !ok {
			t := ns(1e3 * described.HandoverUS)
			c.Handovers = append(c.Handovers, Handover{From: from, To: to, NS: t, LowNS: t, HighNS: t,
				Source: source.Described})
		}

		if described.CopyGBps > 0 && copies[link{from, to}] == nil {
			var points [][2]int64
			// A described copy is a line, launch plus bytes by bandwidth, and two points define it.
			for _, bytes := range []int64{1 << 10, 1 << 30} {
				t := float64(1e3*described.CopyLaunchUS) + float64(bytes)/described.CopyGBps
				points = append(points, [2]int64{bytes, ns(t)})
			}
			c.Copies = append(c.Copies, Copy{From: from, To: to, Points: points, Source: source.Described})
		}
	}

	slices.SortFunc(c.Handovers, func(a, b Handover) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	c.Handovers = slices.CompactFunc(c.Handovers, func(a, b Handover) bool { return a.From == b.From && a.To == b.To })
	for key, points := range copies {
		slices.SortFunc(points, func(a, b [2]int64) int { return cmp.Compare(a[0], b[0]) })
		points = slices.CompactFunc(points, func(a, b [2]int64) bool { return a[0] == b[0] })
		c.Copies = append(c.Copies, Copy{From: key.from, To: key.to, Points: points, Source: source.Measured})
	}

	slices.SortFunc(c.Copies, func(a, b Copy) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
}

// ns rounds to whole nanoseconds within the bounds of a costs file.
func ns(value float64) int64 { return int64(math.Round(min(max(value, 0), maxNS))) }

// setKey names a set of processors in order.
func setKey(procs []string) string { return strings.Join(procs, "+") }
