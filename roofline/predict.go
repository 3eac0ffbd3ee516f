package roofline

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/source"
)

// boundError is the least error, as |log|, that a prediction beyond the samples is assumed to have.
const boundError = 0.4

// Op predicts one execution of a graph of the operator alone on a processor, launch included, in ns. cold asks
// for weights that lie in no cache; where only one of cold and warm was measured near the shape, that
// one answers.
//
// An excluded operator is an error of class ClassInfeasible. An operator of a kind that was never measured on the
// processor is an error of class ClassInput that says how to measure it.
func (c *Costs) Op(proc string, operator op.Op, cold bool) (Prediction, error) {
	if err := operator.Validate(); err != nil {
		return Prediction{}, diag.New(diag.ClassInput, "predict on %q: %w", proc, err)
	}

	operator = operator.OfDensity()
	if operator.Kind == op.GroupMatMul {
		return c.group(proc, operator, cold)
	}

	if operator.Channels > 0 {
		measured := operator.Channels == op.FewChannels && c.measured(proc, operator)
		if !measured {
			return c.outliers(proc, operator, cold)
		}
	}

	if below, above, between := c.densities(proc, operator); between {
		return c.betweenDensities(proc, operator, cold, below, above)
	}

	index := c.look()
	asked := operator
	operator = c.priced(proc, operator)
	for _, key := range []string{asked.Key(), operator.Key()} {
		if reason, ok := index.infeasible[proc+" "+key]; ok {
			return Prediction{}, diag.New(diag.ClassInfeasible, "%s is infeasible on processor %q: %s", key, proc,
				reason).WithCode("costs.infeasible")
		}
	}

	var best Prediction
	rank := -1
	for _, temperature := range []bool{cold, !cold} {
		want, rows, along, across := familyOf(proc, operator, temperature)
		family := index.families[want.key()]
		if family == nil {
			continue
		}

		predicted, covered := family.predict(rows, along, across)

		// Coverage of M counts most, then the wanted temperature.
		quality := 0
		if covered {
			quality = 2
		}
		if temperature == cold {
			quality++
		}
		if quality > rank {
			best, rank = predicted, quality
		}
	}

	if rank < 0 {
		return Prediction{}, c.missing(proc, asked)
	}
	return best, nil
}

// outliers predicts the product of some channels beyond a scale from the times of few channels and of the usual number.
// The time is linear in the number, and never less than that of few. If only the usual number was measured, its time
// stands for all smaller numbers.
func (c *Costs) outliers(proc string, operator op.Op, cold bool) (Prediction, error) {
	channels, usual, few := operator.Channels, operator, operator
	usual.Channels, few.Channels = 0, op.FewChannels
	predicted, err := c.Op(proc, usual, cold)
	if err != nil || channels == usual.Gathered() {
		return predicted, err
	}
	if few.K <= op.FewChannels || !c.measured(proc, few) {
		more := max(1, float64(channels)/float64(usual.Gathered()))
		predicted.NS = int64(float64(predicted.NS) * more)
		predicted.LowNS = int64(float64(predicted.LowNS) * more)
		predicted.HighNS = int64(float64(predicted.HighNS) * more)
		return predicted, nil
	}

	least, err := c.Op(proc, few, cold)
	if err != nil {
		return Prediction{}, err
	}

	share := float64(channels-op.FewChannels) / float64(usual.Gathered()-op.FewChannels)
	between := func(low, high int64) int64 {
		return max(min(low, high), low+int64(max(0, share)*float64(high-low)))
	}
	return Prediction{
		NS: between(least.NS, predicted.NS), LowNS: between(least.LowNS, predicted.LowNS),
		HighNS: between(least.HighNS, predicted.HighNS),
		Source: source.Weakest(least.Source, predicted.Source, source.Interpolated),
	}, nil
}

// group predicts several products in one graph: the sum of their times alone, with one launch for all.
func (c *Costs) group(proc string, operator op.Op, cold bool) (Prediction, error) {
	one, count := operator.Products()
	predicted, err := c.Op(proc, one, cold)
	if err != nil {
		return Prediction{}, diag.New(diag.ClassOf(err), "predict %s: %w", operator.Key(), err)
	}

	family, _, _, _ := familyOf(proc, c.priced(proc, one), cold)
	index := c.look()
	for _, temperature := range []bool{cold, !cold} {
		family.Cold = temperature
		known := index.families[family.key()]
		if known == nil {
			continue
		}

		launch := min(int64(known.SetupNS), predicted.LowNS, predicted.NS)
		more := int64(count - 1)
		predicted.NS += more * (predicted.NS - launch)
		predicted.LowNS += more * (predicted.LowNS - launch)
		predicted.HighNS += more * (predicted.HighNS - launch)
		break
	}

	return predicted, nil
}

// densities returns the measured densities around that of a sparse attention which was not measured; false where it was
// measured, or where there are too few densities for a line.
func (c *Costs) densities(proc string, operator op.Op) (below, above float64, between bool) {
	if operator.Kind != op.SparseAttend && operator.Kind != op.Estimate {
		return 0, 0, false
	}
	if c.measured(proc, operator) {
		return 0, 0, false
	}

	list := c.measuredDensities(proc, operator)
	if len(list) == 1 && operator.Kind == op.Estimate && list[0] == 1 {
		return 1, 1, true // older records have only the estimate of all heads, which takes no less
	}
	if len(list) < 2 {
		return 0, 0, false
	}
	at := min(max(1, sort.SearchFloat64s(list, cmp.Or(operator.Density, 1))), len(list)-1)
	return list[at-1], list[at], true
}

// measuredDensities returns the densities at which such an attention, or an estimate, was measured on a processor,
// ascending.
func (c *Costs) measuredDensities(proc string, operator op.Op) (list []float64) {
	for _, cold := range []bool{false, true} {
		want, _, _, _ := familyOf(proc, operator, cold)
		for i := range c.Families {
			family := &c.Families[i]
			want.Density = family.Density
			if family.Kind == want.Kind && family.key() == want.key() {
				list = append(list, cmp.Or(family.Density, 1)) // an estimate of all heads has none
			}
		}
	}

	slices.Sort(list)
	return slices.Compact(list)
}

// betweenDensities predicts a sparse attention, or an estimate of some heads, on the line through two densities. The
// line is over operations, not densities, because blocks keep their own positions however small the density is.
func (c *Costs) betweenDensities(proc string, operator op.Op, cold bool, below, above float64) (Prediction, error) {
	asked := float64(operator.Flops())
	operator.Density = densityOf(operator.Kind, below)
	least := float64(operator.Flops())
	first, err := c.Op(proc, operator, cold)
	if err != nil {
		return first, err
	}

	operator.Density = densityOf(operator.Kind, above)
	most := float64(operator.Flops())
	second, err := c.Op(proc, operator, cold)
	if err != nil {
		return second, err
	}

	share := 0.0
	if most > least {
		share = (asked - least) / (most - least)
	}
	line := func(x, y int64) int64 { return ns(max(0, float64(x)+float64(share*float64(y-x)))) }
	out := Prediction{
		NS: max(1, line(first.NS, second.NS)), LowNS: line(first.LowNS, second.LowNS),
		HighNS: line(first.HighNS, second.HighNS),
		Source: source.Weakest(first.Source, second.Source, source.Interpolated),
	}
	out.LowNS, out.HighNS = min(out.LowNS, out.NS), max(out.HighNS, out.NS)
	return out, nil
}

// densityOf returns a measured density as operators of the kind have it.
func densityOf(kind op.Kind, density float64) float64 {
	if kind == op.Estimate {
		return op.HeadShare(density)
	}
	return density
}

// priced returns the operator that prices this one. Where this one was not measured itself:
//
//   - a product has the price of its scheme's twin (see op.Scheme.Twin);
//   - rows with static scales have that of rows with a scale each, which take at least as long, since they also need
//     the largest magnitude of a row;
//   - moving rows to and from the slots of experts has that of summing them, which moves each row once as well;
//   - a product of channels beyond a scale has that of the usual number of channels.
func (c *Costs) priced(proc string, operator op.Op) op.Op {
	operator.Static, operator.Scales = false, 0
	if below, _, between := c.densities(proc, operator); between {
		operator.Density = densityOf(operator.Kind, below)
	}

	switch operator.Kind {
	case op.GroupMatMul:
		operator, _ = operator.Products()
	case op.Dispatch:
		// It writes every row, those without a token as zeros.
		rows := (operator.Groups.Rows() + operator.Fan - 1) / operator.Fan
		return op.Op{Kind: op.Combine, M: rows, N: operator.N, Fan: operator.Fan}
	case op.Collect:
		return op.Op{Kind: op.Combine, M: operator.M, N: operator.N, Fan: operator.Fan}
	case op.OutlierMatMul: // see outliers
		if !c.measured(proc, operator) {
			operator.Channels = 0
		}
	}

	for _, scheme := range operator.Scheme.Alike() {
		alike := operator
		alike.Scheme = scheme
		if c.measured(proc, alike) {
			return alike
		}
	}

	return operator
}

// measured reports whether there is a family for an operator.
func (c *Costs) measured(proc string, operator op.Op) bool {
	index := c.look()
	for _, cold := range []bool{false, true} {
		family, _, _, _ := familyOf(proc, operator, cold)
		if index.families[family.key()] != nil {
			return true
		}
	}
	return false
}

// Forms lists the forms besides the default in which a product was measured on a processor, in any shape; of
// convolutions only those of the product's number of rows. They are in the order of the families' keys.
func (c *Costs) Forms(proc string, operator op.Op) (forms []op.Form) {
	if operator.Kind != op.MatMul || operator.Form != "" {
		return nil
	}
	index := c.look()
	for _, scheme := range operator.Scheme.Alike() {
		for _, form := range index.forms[formed{proc, scheme, operator.Bias}] {
			if width, height, ok := form.Image(); !ok || width*height == operator.M {
				forms = append(forms, form)
			}
		}

		if forms != nil {
			return forms
		}
	}
	return nil
}

// predict predicts an operator of the family; covered is false when the rows lie beyond the samples of the shape.
func (f *Family) predict(rows, along, across int) (prediction Prediction, covered bool) {
	if curve := f.curve(along, across); curve != nil {
		i := sort.Search(len(curve.Points), func(i int) bool { return curve.Points[i][0] >= int64(rows) })
		if i < len(curve.Points) && curve.Points[i][0] == int64(rows) {
			point := curve.Points[i]
			return Prediction{NS: point[1], LowNS: point[2], HighNS: point[3], Source: source.Measured}, true
		}
		ns, inside := f.onCurve(curve, curve.ready, rows)
		if inside {
			return spread(ns, f.ErrM, source.Interpolated), true
		}
		return f.beyond(ns, max(2*f.ErrM, boundError), rows, along, across), false
	}

	ns, inside, around := f.ofShape(rows, along, across, nil)
	covered = f.covers(rows)
	if inside && around {
		return spread(ns, max(f.ErrShape, f.ErrM), source.Interpolated), true
	}
	return f.beyond(ns, max(2*f.ErrShape, boundError), rows, along, across), covered
}

// beyond returns a prediction for an operator that is not between samples. expected is the roofline's time in ns,
// deviation its error as |log|. The interval contains all times that the samples do not exclude (see envelope).
func (f *Family) beyond(expected, deviation float64, rows, along, across int) Prediction {
	low, high := f.envelope(rows, along, across)
	prediction := spread(expected, deviation, source.Extrapolated)
	prediction.LowNS, prediction.HighNS = min(prediction.LowNS, ns(low)), max(prediction.HighNS, ns(high))
	return prediction
}

// envelope bounds the time of a shape, in ns, by every sample of the family and without a model. A larger operator
// takes no less time than a smaller one, and no more than the smaller ones that it can be cut into.
func (f *Family) envelope(rows, along, across int) (low, high float64) {
	high = math.Inf(1)
	for i := range f.Curves {
		curve := &f.Curves[i]
		up := pieces(along, curve.A) * pieces(across, curve.B)
		down := pieces(curve.A, along) * pieces(curve.B, across)
		for _, point := range curve.Points {
			low = max(low, float64(point[1])/(down*pieces(int(point[0]), rows)))
			high = min(high, float64(point[1])*up*pieces(rows, int(point[0])))
		}
	}
	return low, high
}

// pieces returns the number of pieces of size part that cover whole; 1 for an axis that the family does not have.
func pieces(whole, part int) float64 {
	if part < 1 || whole <= part {
		return 1
	}
	return float64((whole + part - 1) / part)
}

// covers reports whether some curve was sampled on both sides of the rows.
func (f *Family) covers(rows int) bool {
	for i := range f.Curves {
		points := f.Curves[i].Points
		if points[0][0] <= int64(rows) && int64(rows) <= points[len(points)-1][0] {
			return true
		}
	}
	return false
}

// spread returns a time in ns with an interval of a deviation, as |log|, on both sides.
func spread(expected, deviation float64, from source.Source) Prediction {
	return Prediction{NS: max(ns(expected), 1), LowNS: max(ns(expected*math.Exp(-deviation)), 0),
		HighNS: max(ns(expected*math.Exp(deviation)), 1), Source: from}
}

// MeasuredRows lists the numbers of rows at which the shape of an operator was measured on a processor, ascending.
func (c *Costs) MeasuredRows(proc string, operator op.Op, cold bool) (rows []int) {
	want, _, along, across := familyOf(proc, c.priced(proc, operator), cold)
	family := c.look().families[want.key()]
	if family == nil {
		return nil
	}

	for i := range family.Curves {
		curve := &family.Curves[i]
		if curve.A != along || curve.B != across {
			continue
		}
		for _, point := range curve.Points {
			rows = append(rows, int(point[0]))
		}
	}

	return rows
}

// missing returns why there is no prediction: the processor is unknown, or such an operator was never measured on it.
func (c *Costs) missing(proc string, operator op.Op) error {
	known := c.look().processors[proc]
	if known == nil {
		var have []string
		for i := range c.Processors {
			have = append(have, c.Processors[i].Name)
		}
		return diag.New(diag.ClassInput, "predict %s: the costs of SoC %q know no processor %q", operator.Key(),
			c.SoC, proc).
			WithCode("costs.processor").WithHint("they know %s", cmp.Or(strings.Join(have, ", "), "none"))
	}

	what := "operator " + string(operator.Kind)
	if operator.Batch {
		what += " of a batch"
	}
	if operator.Scheme != "" {
		what += " in scheme " + string(operator.Scheme)
	}
	return diag.New(diag.ClassInput, "predict %s on processor %q: %s was never measured there", operator.Key(), proc,
		what).
		WithCode("costs.missing").
		WithHint("measure it: hetc profile --soc SOC --model MODEL --workload WORKLOAD -o rec.jsonl --resume, with a " +
			"workload that permits the scheme; then hetc fit, or solve with --record rec.jsonl")
}

// exclude notes that a processor cannot execute an operator, with the reason of its compiler. It excludes only this
// shape, because feasibility is not monotone.
func (c *Costs) exclude(proc string, operator op.Op, reason string) {
	index := c.look()
	key := operator.Key()
	if _, ok := index.infeasible[proc+" "+key]; ok {
		return
	}
	index.infeasible[proc+" "+key] = reason
	c.Infeasible = append(c.Infeasible, Infeasible{Proc: proc, Key: key, Reason: reason})
	slices.SortFunc(c.Infeasible, func(a, b Infeasible) int {
		return cmp.Or(cmp.Compare(a.Proc, b.Proc), cmp.Compare(a.Key, b.Key))
	})
}

// Launch returns the time of launching one graph on a processor, in nanoseconds. It is part of every Op, so a
// graph of n operators takes the sum of their times less n-1 launches.
func (c *Costs) Launch(proc string) (Prediction, error) {
	known := c.look().processors[proc]
	if known == nil {
		return Prediction{}, diag.New(diag.ClassInput, "launch: the costs of SoC %q know no processor %q", c.SoC,
			proc).WithCode("costs.processor")
	}
	launch := ns(known.LaunchNS)
	return Prediction{NS: launch, LowNS: launch, HighNS: launch, Source: known.LaunchSource}, nil
}

// Sync returns the time from a processor setting a flag to another one seeing it; false when that is not known.
func (c *Costs) Sync(from, to string) (Prediction, bool) {
	if from == to {
		return Prediction{}, true // a processor sees its own flags at once
	}
	for _, handover := range c.Handovers {
		if handover.From == from && handover.To == to {
			return Prediction{NS: handover.NS, LowNS: handover.LowNS, HighNS: handover.HighNS,
				Source: handover.Source}, true
		}
	}
	return Prediction{}, false
}

// Copy returns the time of copying bytes from one processor's memory to another's; false when no copy is known. The
// time grows linearly between and beyond measured sizes.
func (c *Costs) Copy(from, to string, bytes int64) (Prediction, bool) {
	for i := range c.Copies {
		copied := &c.Copies[i]
		if copied.From != from || copied.To != to {
			continue
		}
		after := sort.Search(len(copied.Points), func(i int) bool { return copied.Points[i][0] >= bytes })
		if after < len(copied.Points) && copied.Points[after][0] == bytes {
			exact := copied.Points[after][1]
			return Prediction{NS: exact, LowNS: exact, HighNS: exact, Source: copied.Source}, true
		}

		deviation := 0.1
		between := source.Interpolated
		if after == 0 || after == len(copied.Points) {
			between = source.Extrapolated
		}
		from := source.Weakest(copied.Source, between)
		if from.Weak() {
			deviation = boundError
		}
		return spread(copied.line(after, bytes), deviation, from), true
	}
	return Prediction{}, false
}

// line returns the time of a copy on the line through the two sizes around the one at index after.
func (k *Copy) line(after int, bytes int64) float64 {
	if len(k.Points) == 1 {
		return float64(k.Points[0][1]) * max(float64(bytes)/float64(k.Points[0][0]), 1)
	}
	after = min(max(after, 1), len(k.Points)-1)
	before, behind := k.Points[after-1], k.Points[after]
	share := float64(bytes-before[0]) / float64(behind[0]-before[0])
	return max(float64(before[1])+float64(share*float64(behind[1]-before[1])), 0)
}
