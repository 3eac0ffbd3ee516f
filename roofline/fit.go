package roofline

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/socs"
)

// Fit makes the costs of a SoC from its measurements. What the record lacks of a processor as a whole
// (launch, bandwidth, hand-over) is taken from the SoC description and marked bound; operators are only
// ever predicted from measurements of their kind. Held-out measurements are left alone.
func Fit(s *socs.SoC, set *record.Set) (*Costs, error) { return fit(s, set, nil) }

// fit takes the families of known over, whose measurements are the same.
func fit(s *socs.SoC, set *record.Set, known map[string]*Family) (*Costs, error) {
	digest, err := s.Digest()
	if err != nil {
		return nil, err
	}
	if set.Header.SoCDigest != digest {
		return nil, diag.New(diag.ClassInput, "fit costs of SoC %q: the record is about SoC %q with digest %.12s, want %.12s", s.Name, set.Header.SoC, set.Header.SoCDigest, digest).
			WithCode("costs.soc").WithHint("give the SoC file the record was made with, or profile again")
	}
	c := &Costs{
		Schema: Schema, SoC: s.Name, SoCDigest: digest, Fingerprint: set.Header.Fingerprint,
		Simulated: set.Header.Simulated, Imported: len(set.Header.Imported) > 0, CacheBytes: s.LastCacheBytes(),
	}
	if c.Record, err = set.Digest(); err != nil {
		return nil, err
	}
	all, err := summarise(set.Training())
	if err != nil {
		return nil, err
	}
	for i := range all {
		if m := all[i].m; s.Processor(m.Proc) == nil {
			return nil, diag.New(diag.ClassInput, "fit costs of SoC %q: the record measures processor %q, which it does not have", s.Name, m.Proc).WithCode("costs.soc")
		}
	}
	c.fitProcessors(s, all)
	c.fitFamilies(s, all, known)
	c.fitHandovers(s, all)
	c.fitSharing(s, all)
	for _, f := range set.Facts() {
		if f.Compiler == record.ImportedCompiler && f.Refused != "" {
			c.Exclude(f.Proc, *f.Op, f.Refused)
		}
	}
	if len(c.Families) == 0 {
		return nil, diag.New(diag.ClassInput, "fit costs of SoC %q: the record holds no operator", s.Name).WithHint("run `hetc profile --soc ... --model ... -o FILE` first")
	}
	if err := c.validate(); err != nil {
		return nil, diag.New(diag.ClassInput, "fit costs of SoC %q: %w", s.Name, err)
	}
	return c, nil
}

// sample is a measurement with its median and the interval of that.
type sample struct {
	m             *record.Measurement
	ns, low, high float64
}

func summarise(set *record.Set) ([]sample, error) {
	var out []sample
	for _, m := range set.All() {
		x, err := stat.Summarise(m.Samples)
		if err != nil {
			return nil, fmt.Errorf("measurement %q: %w", m.Key(), err)
		}
		// A machine with two speeds has no typical moment, but a typical mixture.
		out = append(out, sample{m: m, ns: x.Midmean, low: min(x.Low, x.Midmean), high: max(x.High, x.Midmean)})
	}
	return out, nil
}

func (c *Costs) fitProcessors(s *socs.SoC, all []sample) {
	for i := range s.Processors {
		p := &s.Processors[i]
		x := Processor{Name: p.Name, LaunchNS: 1e3 * p.LaunchUS, LaunchSource: Bound, BytesPerNS: p.BandwidthGBps, BytesSource: Bound}
		var launch []float64
		most := int64(0)
		var loadX, loadY []float64
		for _, k := range all {
			if k.m.Proc != p.Name || len(k.m.Concurrent) > 0 {
				continue
			}
			switch k.m.Kind {
			case record.Launch:
				launch = append(launch, k.ns)
			case record.Bandwidth:
				if k.m.Bytes >= most { // the largest pass is the one no cache helps
					most = k.m.Bytes
					x.BytesPerNS, x.BytesSource = round(float64(k.m.Bytes)/k.ns), Measured
				}
			case record.Load:
				loadX, loadY = append(loadX, float64(k.m.Bytes)/1e6), append(loadY, k.ns)
			}
		}
		if len(launch) > 0 {
			x.LaunchNS, x.LaunchSource = round(slices.Min(launch)), Measured
		}
		if len(loadX) > 0 {
			a, b := theilSen(loadX, loadY)
			x.LoadNS, x.LoadNSPerMB = round(max(a, 0)), round(max(b, 0))
		}
		c.Processors = append(c.Processors, x)
	}
	sort.Slice(c.Processors, func(i, j int) bool { return c.Processors[i].Name < c.Processors[j].Name })
}

// theilSen is the line y = a + b x through the median of all slopes.
func theilSen(x, y []float64) (a, b float64) {
	var slopes, rest []float64
	for i := range x {
		for j := range i {
			if x[i] != x[j] {
				slopes = append(slopes, (y[i]-y[j])/(x[i]-x[j]))
			}
		}
	}
	if len(slopes) > 0 {
		b = stat.Median(slopes)
	}
	for i := range x {
		rest = append(rest, y[i]-float64(b*x[i]))
	}
	return stat.Median(rest), b
}

// round keeps six significant digits, so that the file does not depend on the last bits of an addition.
func round(x float64) float64 {
	if x == 0 || math.IsInf(x, 0) || math.IsNaN(x) {
		return x
	}
	e := math.Pow(10, 5-math.Floor(math.Log10(math.Abs(x))))
	return math.Round(x*e) / e
}

// point is a sample in its family.
type point struct {
	m, a, b       int
	ns, low, high float64
	weight        float64
}

func (c *Costs) fitFamilies(s *socs.SoC, all []sample, known map[string]*Family) {
	families := map[string]*Family{}
	points := map[string][]point{}
	for _, k := range all {
		if k.m.Kind != record.Op || len(k.m.Concurrent) > 0 || !layoutFits(s, k.m) {
			continue
		}
		f, m, a, b := familyOf(k.m.Proc, *k.m.Op, k.m.Cold)
		key := f.Key()
		families[key] = &f
		w := 1.0
		if len(k.m.Warnings) > 0 {
			w = 0.3 // still a datum, but it may not bend the fit
		}
		points[key] = append(points[key], point{m: m, a: a, b: b, ns: k.ns, low: k.low, high: k.high, weight: w})
	}
	keys := make([]string, 0, len(families))
	for key := range families {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	c.Families = make([]Family, len(keys))
	var fits sync.WaitGroup
	next := make(chan int)
	for range min(runtime.GOMAXPROCS(0), len(keys)) {
		fits.Go(func() {
			for i := range next {
				f := families[keys[i]]
				if k := known[keys[i]]; k != nil {
					f = k
				} else {
					f.fit(points[keys[i]], s.Processor(f.Proc))
				}
				c.Families[i] = *f
			}
		})
	}
	for i := range keys {
		next <- i
	}
	close(next)
	fits.Wait()
}

// layoutFits leaves out measurements of layouts the processor does not use for that weight.
func layoutFits(s *socs.SoC, m *record.Measurement) bool {
	if m.Op.Scheme == "" || m.Layout == "" {
		return true
	}
	want := s.Processor(m.Proc).Layouts[m.Op.Scheme.Weight()]
	return want == "" || want == m.Layout
}

// fit determines the family's numbers from its points.
func (f *Family) fit(points []point, p *socs.Processor) {
	f.group(points)
	declared := [3]int{max(p.Tile.M, 1), max(p.Tile.K, 1), max(p.Tile.N, 1)}
	f.Step = [3]int{1, 1, 1}
	best := math.Inf(1) // loss of the form kept so far
	with := func(step [3]int, sharp float64, halvings int) (g Family, loss float64) {
		g = *f
		g.Curves = slices.Clone(f.Curves)
		if sharp != f.Sharpness {
			g.OpsPerNS = 0 // start anew
		}
		g.Step, g.Sharpness = step, sharp
		g.solve(points, halvings)
		return g, g.left(points)
	}
	// try keeps another form when its loss is below factor*best + slack.
	try := func(step [3]int, sharp, factor, slack float64) {
		if g, loss := with(step, sharp, precise); loss < best*factor+slack {
			best = loss
			*f = g
		}
	}
	sharper := func(factor float64) {
		for _, sharp := range []float64{maxSharpness, 4, 2, 1} {
			try(f.Step, sharp, factor, -1e-6)
		}
	}
	sharper(1)
	if f.matrix() {
		// The step that the SoC states is believed unless the samples speak against it: a fit that is as good
		// without it only means that no sample lies just behind a step.
		const agrees = 5e-4 // the loss of an error of 1 %
		if declared != f.Step {
			try(declared, f.Sharpness, 1.1, agrees)
			for axis := range 3 {
				step := f.Step
				step[axis] = declared[axis]
				if step != f.Step {
					try(step, f.Sharpness, 1.1, agrees)
				}
			}
		}
		for range 3 { // the axes influence each other
			if !f.step(points, best, with) {
				break
			}
			best = f.left(points)
		}
		sharper(0.98)
	}
	f.SetupNS, f.OpsPerNS, f.BytesPerNS = round(f.SetupNS), round(f.OpsPerNS), round(f.BytesPerNS)
	for i := range f.Curves {
		c := &f.Curves[i]
		c.OpsPerNS, c.BytesPerNS = round(c.OpsPerNS), round(c.BytesPerNS)
	}
	f.prepare()
	f.errors()
}

// step takes the candidate step that explains the samples best, if one does so clearly better than the
// present one: both the samples left out and the roofline itself, because samples that happen to
// lie in one step predict each other well whether there is a step or not.
func (f *Family) step(points []point, loss float64, with func([3]int, float64, int) (Family, float64)) bool {
	c0, f0 := f.misfit(points)
	best, found := math.Inf(1), Family{}
	// Rounding off the knee is another way to explain steps: the sharp form is tried beside the present one.
	for _, sharp := range slices.Compact([]float64{f.Sharpness, maxSharpness}) {
		for _, step := range f.candidates(points, f.Step) {
			if _, l := with(step, sharp, coarse); l > loss {
				continue // rates that are off by a percent do not hide a clear gain
			}
			g, l := with(step, sharp, precise)
			if l > 0.8*loss-1e-6 {
				continue
			}
			c1, f1 := g.misfit(points)
			if c1 > 0.8*c0-1e-6 && f1 > 0.8*f0-1e-6 {
				continue
			}
			if score := l + c1 + 0.1*f1; score < best {
				best, found = score, g
			}
		}
	}
	if math.IsInf(best, 1) {
		return false
	}
	*f = found
	return true
}

// group sorts the points into curves.
func (f *Family) group(points []point) {
	sort.Slice(points, func(i, j int) bool {
		p, q := points[i], points[j]
		if p.a != q.a {
			return p.a < q.a
		}
		if p.b != q.b {
			return p.b < q.b
		}
		return p.m < q.m
	})
	f.Curves = nil
	for _, p := range points {
		n := len(f.Curves)
		if n == 0 || f.Curves[n-1].A != p.a || f.Curves[n-1].B != p.b {
			f.Curves = append(f.Curves, Curve{A: p.a, B: p.b})
			n++
		}
		ns := max(int64(math.Round(p.ns)), 1)
		low, high := min(int64(math.Round(p.low)), ns), max(int64(math.Round(p.high)), ns)
		c := &f.Curves[n-1]
		if last := len(c.Points); last > 0 && c.Points[last-1][0] == int64(p.m) {
			continue // the same operator in another spelling (interleaving, layout)
		}
		c.Points = append(c.Points, [4]int64{int64(p.m), ns, low, high})
	}
}

// candidates are the steps the samples could show beside the given one: on one axis or several, powers of
// two and sizes just after which the time jumps. A step that rounds no sample is none.
func (f *Family) candidates(points []point, base [3]int) [][3]int {
	at := func(p point, axis int) int { return [3]int{p.m, p.a, p.b}[axis] }
	rounds := func(axis, n int) bool {
		return slices.ContainsFunc(points, func(p point) bool {
			if axis == 0 {
				return f.rows(p.m, n) != f.rows(p.m, 1)
			}
			return at(p, axis)%n != 0
		})
	}
	var out [][3]int
	seen := map[[3]int]bool{base: true}
	propose := func(n int, axes ...int) {
		step := base
		for _, axis := range axes {
			if !rounds(axis, n) {
				return
			}
			step[axis] = n
		}
		if !seen[step] {
			seen[step] = true
			out = append(out, step)
		}
	}
	for n := 256; n >= 1; n /= 2 {
		for _, axes := range [][]int{{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, {0, 1, 2}} {
			propose(n, axes...)
		}
	}
	// Jumps along each axis, other things equal. Those of experts' rows lie elsewhere than at multiples of M.
	first := 0
	if f.Kind == op.ExpertMatMul {
		first = 1
	}
	for axis := first; axis < 3; axis++ {
		times := map[[3]int]float64{}
		for _, p := range points {
			times[[3]int{p.m, p.a, p.b}] = p.ns
		}
		common := 0
		for _, p := range points {
			pos := [3]int{p.m, p.a, p.b}
			pos[axis]++
			if next, ok := times[pos]; ok && next > 1.03*p.ns {
				common = gcd(common, at(p, axis))
			}
		}
		for d := 1; d <= 8 && common > 0; d++ {
			if n := common / d; common%d == 0 && n >= 2 && n <= 1024 {
				propose(n, axis)
			}
		}
	}
	return out
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// huber is the loss of a log residual: quadratic near 0, linear beyond 10 %.
func huber(r float64) float64 {
	const d = 0.1
	r = math.Abs(r)
	if r <= d {
		return r * r / (2 * d)
	}
	return r - d/2
}

// sized is a point with its work and traffic.
type sized struct{ w, q, ns, weight float64 }

func (f *Family) sizes(points []point) []sized {
	out := make([]sized, len(points))
	for i, p := range points {
		w, q := f.size(p.m, p.a, p.b, f.Step)
		out[i] = sized{w, q, p.ns, p.weight}
	}
	return out
}

// solve fits setup, ops and bytes rates to all points by robust log residuals, then each curve's own rates.
func (f *Family) solve(points []point, halvings int) {
	all := f.sizes(points)
	least := math.Inf(1)
	for _, x := range all {
		least = min(least, x.ns)
	}
	best := math.Inf(1)
	from := func(v, step [3]float64) {
		v, loss := descend(v, step, halvings, func(v [3]float64, limit float64) float64 {
			if v[0] < 0 || v[0] > 0.999 {
				return math.Inf(1)
			}
			return residualUpTo(all, v[0]*least, math.Exp(v[1]), math.Exp(v[2]), f.Sharpness, 0, limit)
		})
		if loss < best {
			best = loss
			f.SetupNS, f.OpsPerNS, f.BytesPerNS = v[0]*least, clampRate(math.Exp(v[1])), clampRate(math.Exp(v[2]))
		}
	}
	if f.OpsPerNS > 0 { // another form of a fitted family: its numbers are near
		from([3]float64{f.SetupNS / least, math.Log(f.OpsPerNS), math.Log(f.BytesPerNS)}, [3]float64{0.1, 0.1, 0.1})
	} else {
		byIntensity := slices.Clone(all)
		sort.SliceStable(byIntensity, func(i, j int) bool { return byIntensity[i].w*byIntensity[j].q < byIntensity[j].w*byIntensity[i].q })
		third := max(len(all)/3, 1)
		for _, share := range []float64{0, 0.3, 0.7, 0.95} {
			rate := func(part []sized, of func(sized) float64) float64 {
				var r []float64
				for _, x := range part {
					if v := of(x) / (x.ns - share*least); v > 0 {
						r = append(r, v)
					}
				}
				if len(r) == 0 {
					return 0
				}
				return math.Log(stat.Median(r))
			}
			from([3]float64{share, rate(byIntensity[len(byIntensity)-third:], func(x sized) float64 { return x.w }),
				rate(byIntensity[:third], func(x sized) float64 { return x.q })}, [3]float64{0.1, 0.3, 0.3})
		}
	}
	at := 0
	for i := range f.Curves {
		c := &f.Curves[i]
		first := at
		for at < len(points) && points[at].a == c.A && points[at].b == c.B {
			at++
		}
		f.rates(c, all[first:at], halvings)
	}
}

// clampRate keeps a rate within what a costs file may say.
func clampRate(x float64) float64 { return min(max(x, 1e-9), maxRate) }

// residual is the mean loss of the roofline at the given numbers.
func residual(all []sized, setup, ops, bytes, sharp float64) float64 {
	return residualUpTo(all, setup, ops, bytes, sharp, 0, math.Inf(1))
}

// residualUpTo is more plus the residual; where that reaches limit it is anything from there on. Losses only add up, so a
// sum that is too large is so before its last term.
func residualUpTo(all []sized, setup, ops, bytes, sharp, more, limit float64) float64 {
	sum, weight := 0.0, 0.0
	for _, x := range all {
		weight += x.weight
	}
	for _, x := range all {
		t := setup + norm(x.w/ops, x.q/bytes, sharp)
		sum += x.weight * huber(math.Log(x.ns/max(t, 1e-9)))
		if more+sum/weight >= limit {
			break
		}
	}
	return more + sum/weight
}

// rates fits a curve's own rates around the family's: the two anchors of Agent.xpu appendix A,
// determined from all samples. What they do not show stays the family's.
func (f *Family) rates(c *Curve, all []sized, halvings int) {
	v, _ := descend([3]float64{0, 0, 0}, [3]float64{0, 0.2, 0.2}, halvings, func(v [3]float64, limit float64) float64 {
		if math.Abs(v[1]) > 1.5 || math.Abs(v[2]) > 1.5 {
			return math.Inf(1)
		}
		tie := 1e-3 * (float64(v[1]*v[1]) + float64(v[2]*v[2])) // keeps what is not determined at the family's value
		return residualUpTo(all, f.SetupNS, f.OpsPerNS*math.Exp(v[1]), f.BytesPerNS*math.Exp(v[2]), f.Sharpness, tie, limit)
	})
	c.OpsPerNS, c.BytesPerNS = clampRate(f.OpsPerNS*math.Exp(v[1])), clampRate(f.BytesPerNS*math.Exp(v[2]))
}

// How often descend halves its steps: for a first look at a form, and for numbers that are kept.
const coarse, precise = 4, 12

// descend is a pattern search: it moves along one coordinate while that helps, and halves the steps. A loss that reaches
// the limit it is given may be anything from there on.
func descend(v, step [3]float64, halvings int, loss func(v [3]float64, limit float64) float64) ([3]float64, float64) {
	best := loss(v, math.Inf(1))
	left := [3][3]float64{v, v, v} // where the latest step along a coordinate began: no better than where it led
	for range halvings {
		for moved, rounds := true, 0; moved && rounds < 12; rounds++ {
			moved = false
			for i := range v {
				if step[i] == 0 {
					continue
				}
				for _, sign := range []float64{1, -1} {
					next := v
					next[i] += sign * step[i]
					if slices.Contains(left[:], next) {
						continue
					}
					if l := loss(next, best-1e-12); l < best-1e-12 {
						left[i] = v
						v, best, moved = next, l, true
						break
					}
				}
			}
		}
		for i := range step {
			step[i] /= 2
		}
	}
	return v, best
}

// left is the mean loss over samples left out of their curve, plus that over curves left out between others;
// without any, that of the roofline alone.
func (f *Family) left(points []point) float64 {
	f.prepare()
	var alongM, acrossShapes []float64
	for i := range f.Curves {
		c := &f.Curves[i]
		for _, e := range f.leaveOut(c) {
			alongM = append(alongM, huber(e))
		}
		for j, p := range c.Points {
			if j > 0 && j < len(c.Points)-1 {
				continue // its ends show what a shape is like
			}
			if t, inside, _ := f.across(int(p[0]), c.A, c.B, c); inside {
				acrossShapes = append(acrossShapes, huber(math.Log(t/float64(p[1]))))
			}
		}
	}
	loss := 0.0
	for _, part := range [][]float64{alongM, acrossShapes} {
		if len(part) > 0 {
			loss += mean(part)
		}
	}
	if len(alongM)+len(acrossShapes) >= 3 {
		return loss
	}
	return 1 + residual(f.sizes(points), f.SetupNS, f.OpsPerNS, f.BytesPerNS, f.Sharpness)
}

// misfit is the loss of the roofline itself: with each well-sampled curve's own rates, and with the family's.
// Unlike left it gains nothing from samples that happen to lie in one step.
func (f *Family) misfit(points []point) (curves, family float64) {
	all := f.sizes(points)
	var own []float64
	at := 0
	for i := range f.Curves {
		c := &f.Curves[i]
		first := at
		for at < len(points) && points[at].a == c.A && points[at].b == c.B {
			at++
		}
		if at-first >= 4 {
			own = append(own, residual(all[first:at], f.SetupNS, c.OpsPerNS, c.BytesPerNS, f.Sharpness))
		}
	}
	if len(own) > 0 {
		curves = mean(own)
	}
	return curves, residual(all, f.SetupNS, f.OpsPerNS, f.BytesPerNS, f.Sharpness)
}

func mean(xs []float64) float64 {
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	return sum / float64(len(xs))
}

// leaveOut predicts every sample between two others of its curve from the others: log residuals.
func (f *Family) leaveOut(c *Curve) []float64 {
	var out []float64
	for i := 1; i+1 < len(c.Points); i++ {
		p := c.Points[i]
		t, inside := f.along(c, f.knots(c, func(j int) bool { return j == i }), int(p[0]))
		if inside {
			out = append(out, math.Log(t/float64(p[1])))
		}
	}
	return out
}

// errors fills ErrM and ErrShape.
func (f *Family) errors() {
	const floor, unknown = 0.01, 0.5
	var m, shape []float64
	for i := range f.Curves {
		c := &f.Curves[i]
		for _, e := range f.leaveOut(c) {
			m = append(m, math.Abs(e))
		}
		if len(f.Curves) > 1 {
			for _, p := range c.Points {
				t, _, _ := f.across(int(p[0]), c.A, c.B, c)
				shape = append(shape, math.Abs(math.Log(t/float64(p[1]))))
			}
		}
	}
	f.ErrShape = unknown
	if len(shape) > 0 {
		f.ErrShape = round(min(max(quantile95(shape), floor), 10))
	}
	f.ErrM = f.ErrShape
	if len(m) >= 3 {
		f.ErrM = round(min(max(quantile95(m), floor), 10))
	}
}

// quantile95 is what 95 % of further values like these stay below (split conformal prediction: the quantile of n values
// and the one to come). Fewer than 19 values do not show it: the largest counts as many times more as values are missing.
func quantile95(xs []float64) float64 {
	const enough = 19

	slices.Sort(xs)
	at := int(math.Ceil(0.95*float64(len(xs)+1))) - 1
	if at < len(xs) {
		return xs[at]
	}
	return xs[len(xs)-1] * enough / float64(len(xs))
}

func (c *Costs) fitHandovers(s *socs.SoC, all []sample) {
	copies := map[[2]string][][2]int64{}
	for _, k := range all {
		if len(k.m.Concurrent) > 0 {
			continue
		}
		switch k.m.Kind {
		case record.Sync:
			c.Handovers = append(c.Handovers, Handover{From: k.m.Proc, To: k.m.To, NS: ns(k.ns), LowNS: ns(k.low), HighNS: ns(k.high), Source: Measured})
		case record.Copy:
			to := k.m.To
			if to == "" {
				to = k.m.Proc
			}
			key := [2]string{k.m.Proc, to}
			copies[key] = append(copies[key], [2]int64{k.m.Bytes, ns(k.ns)})
		}
	}
	for _, l := range s.Links { // what was not measured is as described
		if _, ok := c.Sync(l.From, l.To); !ok {
			t := ns(1e3 * l.HandoverUS)
			c.Handovers = append(c.Handovers, Handover{From: l.From, To: l.To, NS: t, LowNS: t, HighNS: t, Source: Bound})
		}
		if key := [2]string{l.From, l.To}; l.CopyGBps > 0 && copies[key] == nil {
			var points [][2]int64
			for _, bytes := range []int64{1 << 10, 1 << 30} {
				points = append(points, [2]int64{bytes, ns(float64(1e3*l.CopyLaunchUS) + float64(bytes)/l.CopyGBps)})
			}
			c.Copies = append(c.Copies, Copy{From: l.From, To: l.To, Points: points, Source: Bound})
		}
	}
	sort.Slice(c.Handovers, func(i, j int) bool {
		a, b := c.Handovers[i], c.Handovers[j]
		return a.From < b.From || a.From == b.From && a.To < b.To
	})
	c.Handovers = slices.CompactFunc(c.Handovers, func(a, b Handover) bool { return a.From == b.From && a.To == b.To })
	for key, points := range copies {
		sort.Slice(points, func(i, j int) bool { return points[i][0] < points[j][0] })
		points = slices.CompactFunc(points, func(a, b [2]int64) bool { return a[0] == b[0] })
		c.Copies = append(c.Copies, Copy{From: key[0], To: key[1], Points: points, Source: Measured})
	}
	sort.Slice(c.Copies, func(i, j int) bool {
		a, b := c.Copies[i], c.Copies[j]
		return a.From < b.From || a.From == b.From && a.To < b.To
	})
}

// ns rounds to whole nanoseconds within what a costs file may say.
func ns(x float64) int64 { return int64(math.Round(min(max(x, 0), maxNS))) }

// setKey names a set of processors in order.
func setKey(procs []string) string { return strings.Join(procs, "+") }
