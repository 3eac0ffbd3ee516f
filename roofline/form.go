package roofline

import (
	"cmp"
	"math"
	"slices"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
)

// A family's form is its sharpness and its step: how its roofline bends, and to what its dimensions are rounded up.
// What is fitted, and how:
//
// For a given form, solve determines the roofline's three numbers (set-up, rate of arithmetic, rate of memory) by
// robust regression: the Huber loss of the log residuals, minimised by pattern search. The form itself is chosen by
// cross-validation, greedily. A form replaces the one kept when its loss over left-out samples is lower by a margin, so
// that noise decides nothing:
//
//  1. every sharpness, without steps;
//  2. for matrix products the step that the SoC declares, which needs evidence against it rather than for it;
//  3. the candidate steps, as often as one of them gains clearly;
//  4. every sharpness again, with that step.
//
// The state is the form kept with its numbers and its loss. Each form costs one regression over all samples, and the
// candidates are some dozens, so that a coarse regression rules most of them out first.

// sharpnesses are the forms of the knee that are tried.
var sharpnesses = []float64{maxSharpness, 4, 2, 1}

const (
	// sameLoss is a difference of losses that is no gain.
	sameLoss = 1e-6
	// declaredFactor and declaredSlack bound the loss at which the declared step is believed, against the loss without
	// it. A fit that is as good without a step only means that no sample lies just behind one. The slack is the loss of
	// an error of 1 %.
	declaredFactor, declaredSlack = 1.1, 5e-4
	// stepGain is the part of the loss that a candidate step may leave: one that gains less than a fifth is noise.
	stepGain = 0.8
	// familyShare weighs the misfit of the family's rates where candidate steps are compared. It is small, because
	// predictions mostly use the rates of curves.
	familyShare = 0.1
	// stepRounds is how often another step is looked for: the step of one axis changes what the others explain.
	stepRounds = 3
	// againGain is the part of the loss that another sharpness may leave once the step is known. The step has explained
	// most of the loss by then.
	againGain = 0.98
	// jump is the growth of time from one size to the next that shows a step: more than noise, less than any step.
	jump = 1.03
	// greatestPower, greatestStep and mostDivisors bound the candidate steps.
	greatestPower, greatestStep, mostDivisors = 256, 1024, 8
	// curveSamples is the least number of samples with which a curve's misfit counts: two rates are fitted to them.
	curveSamples = 4
	// leastResiduals is the least number of left-out samples for a loss or a quantile.
	leastResiduals = 3
)

// formSearch is the search for the form of one family.
type formSearch struct {
	kept   *Family // with the numbers of the form kept so far
	loss   float64 // of that form
	points []point
}

// fit determines the family's numbers from its points.
func (f *Family) fit(points []point, proc *socs.Processor) {
	f.group(points)
	f.Step = [3]int{1, 1, 1}
	search := formSearch{kept: f, loss: math.Inf(1), points: points}
	search.trySharpnesses(1)
	if f.matrix() {
		search.tryDeclared([3]int{max(proc.Tile.M, 1), max(proc.Tile.K, 1), max(proc.Tile.N, 1)})
		for range stepRounds {
			if !search.betterStep() {
				break
			}
		}
		search.trySharpnesses(againGain)
	}
	f.SetupNS, f.OpsPerNS, f.BytesPerNS = round(f.SetupNS), round(f.OpsPerNS), round(f.BytesPerNS)
	for i := range f.Curves {
		curve := &f.Curves[i]
		curve.OpsPerNS, curve.BytesPerNS = round(curve.OpsPerNS), round(curve.BytesPerNS)
	}
	f.prepare()
	f.errors()
}

// fitted returns the family in another form, and its loss.
func (s *formSearch) fitted(step [3]int, sharpness float64, halvings int) (family Family, loss float64) {
	family = *s.kept
	family.Curves = slices.Clone(family.Curves)
	if sharpness != s.kept.Sharpness {
		family.OpsPerNS = 0 // start anew
	}
	family.Step, family.Sharpness = step, sharpness
	family.solve(s.points, halvings)
	return family, family.leftOutLoss(s.points)
}

// try keeps another form when its loss is below factor times the loss kept plus slack.
func (s *formSearch) try(step [3]int, sharpness, factor, slack float64) {
	if family, loss := s.fitted(step, sharpness, precise); loss < s.loss*factor+slack {
		*s.kept, s.loss = family, loss
	}
}

// trySharpnesses tries every bend of the knee with the step kept.
func (s *formSearch) trySharpnesses(factor float64) {
	for _, sharpness := range sharpnesses {
		s.try(s.kept.Step, sharpness, factor, -sameLoss)
	}
}

// tryDeclared tries the step that the SoC states: on all axes, and on each alone.
func (s *formSearch) tryDeclared(declared [3]int) {
	if declared == s.kept.Step {
		return
	}
	s.try(declared, s.kept.Sharpness, declaredFactor, declaredSlack)
	for axis := range declared {
		step := s.kept.Step
		step[axis] = declared[axis]
		if step != s.kept.Step {
			s.try(step, s.kept.Sharpness, declaredFactor, declaredSlack)
		}
	}
}

// betterStep keeps the candidate step that explains the samples best, if one does so clearly better than the present
// one: both the samples left out and the roofline itself, because samples that happen to lie in one step predict each
// other well whether there is a step or not.
func (s *formSearch) betterStep() bool {
	curves, family := s.kept.misfit(s.points)
	bestScore, found, foundLoss := math.Inf(1), Family{}, 0.0
	// Rounding off the knee is another way to explain steps: the sharp form is tried beside the present one.
	for _, sharpness := range slices.Compact([]float64{s.kept.Sharpness, maxSharpness}) {
		for _, step := range s.kept.candidates(s.points, s.kept.Step) {
			if _, rough := s.fitted(step, sharpness, coarse); rough > s.loss {
				continue // rates that are off by a percent do not hide a clear gain
			}
			with, loss := s.fitted(step, sharpness, precise)
			if loss > stepGain*s.loss-sameLoss {
				continue
			}
			curvesWith, familyWith := with.misfit(s.points)
			if curvesWith > stepGain*curves-sameLoss && familyWith > stepGain*family-sameLoss {
				continue
			}
			if score := loss + curvesWith + familyShare*familyWith; score < bestScore {
				bestScore, found, foundLoss = score, with, loss
			}
		}
	}
	if math.IsInf(bestScore, 1) {
		return false
	}
	*s.kept, s.loss = found, foundLoss
	return true
}

// candidates returns the steps that the samples could show beside the given one: on one axis or several, powers of two
// and sizes just after which the time jumps. Steps that round no sample are left out.
func (f *Family) candidates(points []point, base [3]int) (steps [][3]int) {
	rounds := func(axis, step int) bool {
		return slices.ContainsFunc(points, func(sample point) bool {
			if axis == 0 {
				return f.rows(sample.rows, step) != f.rows(sample.rows, 1)
			}
			return sample.extent()[axis]%step != 0
		})
	}
	seen := map[[3]int]bool{base: true}
	propose := func(size int, axes ...int) {
		step := base
		for _, axis := range axes {
			if !rounds(axis, size) {
				return
			}
			step[axis] = size
		}
		if !seen[step] {
			seen[step] = true
			steps = append(steps, step)
		}
	}
	for size := greatestPower; size >= 1; size /= 2 {
		for _, axes := range [][]int{{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, {0, 1, 2}} {
			propose(size, axes...)
		}
	}
	first := 0
	if f.Kind == op.ExpertMatMul {
		first = 1 // rows are divided among experts, so that their time does not jump at multiples of a step
	}
	for axis := first; axis < len(base); axis++ {
		common := jumps(points, axis)
		for divisor := 1; divisor <= mostDivisors && common > 0; divisor++ {
			if size := common / divisor; common%divisor == 0 && size >= 2 && size <= greatestStep {
				propose(size, axis)
			}
		}
	}
	return steps
}

// jumps returns the greatest common divisor of the sizes of an axis just after which the time jumps, other sizes equal;
// 0 when no two samples show one.
func jumps(points []point, axis int) int {
	times := map[[3]int]float64{}
	for _, sample := range points {
		times[sample.extent()] = sample.ns
	}
	common := 0
	for _, sample := range points {
		after := sample.extent()
		after[axis]++
		if next, ok := times[after]; ok && next > jump*sample.ns {
			common = gcd(common, sample.extent()[axis])
		}
	}
	return common
}

// gcd returns the greatest common divisor; that of 0 and a number is the number.
func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// group sorts the points into curves.
func (f *Family) group(points []point) {
	slices.SortFunc(points, func(a, b point) int {
		return cmp.Or(cmp.Compare(a.along, b.along), cmp.Compare(a.across, b.across), cmp.Compare(a.rows, b.rows))
	})
	f.Curves = nil
	for _, sample := range points {
		count := len(f.Curves)
		if count == 0 || f.Curves[count-1].A != sample.along || f.Curves[count-1].B != sample.across {
			f.Curves = append(f.Curves, Curve{A: sample.along, B: sample.across})
			count++
		}
		curve := &f.Curves[count-1]
		if last := len(curve.Points); last > 0 && curve.Points[last-1][0] == int64(sample.rows) {
			continue // the same operator in another spelling (interleaving, layout)
		}
		ns := max(int64(math.Round(sample.ns)), 1)
		low, high := min(int64(math.Round(sample.low)), ns), max(int64(math.Round(sample.high)), ns)
		curve.Points = append(curve.Points, [4]int64{int64(sample.rows), ns, low, high})
	}
}

// leftOutLoss returns the mean loss over samples left out of their curve, plus that over curves left out between
// others. Where these are too few it is 1 plus the loss of the roofline alone: a form that predicts left-out samples
// comes first.
func (f *Family) leftOutLoss(points []point) float64 {
	f.prepare()
	var alongRows, acrossShapes []float64
	for i := range f.Curves {
		curve := &f.Curves[i]
		for _, residual := range f.leaveOneOut(curve) {
			alongRows = append(alongRows, huber(residual))
		}
		for j, point := range curve.Points {
			if j > 0 && j < len(curve.Points)-1 {
				continue // its ends show what a shape is like
			}
			if ns, inside, _ := f.ofShape(int(point[0]), curve.A, curve.B, curve); inside {
				acrossShapes = append(acrossShapes, huber(math.Log(ns/float64(point[1]))))
			}
		}
	}
	if len(alongRows)+len(acrossShapes) < leastResiduals {
		return 1 + residual(f.sized(points), f.SetupNS, f.OpsPerNS, f.BytesPerNS, f.Sharpness)
	}
	return mean(alongRows) + mean(acrossShapes)
}

// misfit returns the loss of the roofline itself: with each well-sampled curve's own rates, and with the family's.
// Unlike leftOutLoss it does not improve when samples happen to lie in one step.
func (f *Family) misfit(points []point) (curves, family float64) {
	all := f.sized(points)
	var own []float64
	rest := all
	for i := range f.Curves {
		curve := &f.Curves[i]
		var samples []workload
		if samples, rest = curve.cut(rest); len(samples) >= curveSamples {
			own = append(own, residual(samples, f.SetupNS, curve.OpsPerNS, curve.BytesPerNS, f.Sharpness))
		}
	}
	return mean(own), residual(all, f.SetupNS, f.OpsPerNS, f.BytesPerNS, f.Sharpness)
}

// mean returns the mean, 0 for no values.
func mean(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sum := 0.0
	for _, value := range values {
		sum += value
	}
	return sum / float64(len(values))
}

// leaveOneOut predicts every sample between two others of its curve from the others: log residuals.
func (f *Family) leaveOneOut(curve *Curve) (residuals []float64) {
	for i := 1; i+1 < len(curve.Points); i++ {
		point := curve.Points[i]
		ns, inside := f.onCurve(curve, f.knots(curve, func(j int) bool { return j == i }), int(point[0]))
		if inside {
			residuals = append(residuals, math.Log(ns/float64(point[1])))
		}
	}
	return residuals
}

// errors fills ErrM and ErrShape. An error below 1 % is raised to 1 %, and 0.5 stands for an error that nothing shows.
func (f *Family) errors() {
	const floor, unknown, most = 0.01, 0.5, 10
	var alongRows, shape []float64
	for i := range f.Curves {
		curve := &f.Curves[i]
		for _, residual := range f.leaveOneOut(curve) {
			alongRows = append(alongRows, math.Abs(residual))
		}
		if len(f.Curves) > 1 {
			for _, point := range curve.Points {
				ns, _, _ := f.ofShape(int(point[0]), curve.A, curve.B, curve)
				shape = append(shape, math.Abs(math.Log(ns/float64(point[1]))))
			}
		}
	}
	f.ErrShape = unknown
	if len(shape) > 0 {
		f.ErrShape = round(min(max(quantile95(shape), floor), most))
	}
	f.ErrM = f.ErrShape
	if len(alongRows) >= leastResiduals {
		f.ErrM = round(min(max(quantile95(alongRows), floor), most))
	}
}

// quantile95 returns a bound below which 95 % of further values like these stay (split conformal prediction: the
// quantile of n values and the one to come). Fewer than 19 values do not show it; then the bound is the largest value
// times 19 divided by their number.
func quantile95(values []float64) float64 {
	const enough = 19

	slices.Sort(values)
	at := int(math.Ceil(0.95*float64(len(values)+1))) - 1
	if at < len(values) {
		return values[at]
	}
	return values[len(values)-1] * enough / float64(len(values))
}
