package roofline

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/source"
)

// Bounds of the numbers of a costs file.
const (
	maxNS   = 1 << 53 // 104 days
	maxRate = 1e9     // per ns
	maxStep = 1 << 20
	maxErr  = 10 // |log| of predicted over measured
)

// The checks below return nil or what is wrong, so that cmp.Or of several is the first that fails.

// checkRate demands a positive rate per nanosecond; checkTime a time that files can hold.
func checkRate(what string, rate float64) error {
	if math.IsNaN(rate) || rate <= 0 || rate > maxRate {
		return fmt.Errorf("%s is %v, want a number above 0, at most %g", what, rate, float64(maxRate))
	}
	return nil
}

// checkBandwidth is checkRate for a rate that may be unknown, which is 0.
func checkBandwidth(what string, rate float64) error {
	if rate == 0 {
		return nil
	}
	return checkRate(what, rate)
}

// checkTime refuses times that no measurement gives: NaN, negative, or beyond maxNS.
func checkTime(what string, ns float64) error {
	if math.IsNaN(ns) || ns < 0 || ns > maxNS {
		return fmt.Errorf("%s is %v ns, want 0..%d", what, ns, int64(maxNS))
	}
	return nil
}

// seenOnce holds the things that were named so far.
type seenOnce map[string]bool

// check refuses what was named before.
func (s seenOnce) check(what string) error {
	if s[what] {
		return fmt.Errorf("%s is there twice", what)
	}
	s[what] = true
	return nil
}

// firstOf applies a check to each of a list until one fails.
func firstOf[T any](list []T, check func(*T) error) error {
	for i := range list {
		if err := check(&list[i]); err != nil {
			return err
		}
	}
	return nil
}

// validate checks every number of the costs, part by part.
func (c *Costs) validate() error {
	seen := seenOnce{}
	return cmp.Or(
		firstOf(c.Processors, func(p *Processor) error { return p.validate(seen) }),
		firstOf(c.Families, func(f *Family) error { return f.validate(seen) }),
		firstOf(c.Handovers, func(h *Handover) error { return h.validate(seen) }),
		firstOf(c.Copies, func(k *Copy) error { return k.validate(seen) }),
		firstOf(c.Gated, func(g *Gated) error { return g.validate(seen) }),
		firstOf(c.Sharing, func(s *Sharing) error { return s.validate(seen) }))
}

// checkSource refuses a source that nothing but an operator can have.
func checkSource(what string, from source.Source) error {
	if from != source.Measured && from != source.Described {
		return fmt.Errorf("%s has source %q, want %s or %s", what, from, source.Measured, source.Described)
	}
	return nil
}

// validate checks a processor's launch, load and bandwidth; each processor may be there once.
func (p *Processor) validate(seen seenOnce) error {
	at := fmt.Sprintf("processor %q", p.Name)
	return cmp.Or(seen.check(at), checkSource(at+": the launch", p.LaunchSource),
		checkSource(at+": the bandwidth", p.BytesSource), checkTime(at+": launch_ns", p.LaunchNS),
		checkTime(at+": load_ns", p.LoadNS),
		checkTime(at+": load_ns_per_mb", p.LoadNSPerMB), checkBandwidth(at+": bytes_per_ns", p.BytesPerNS))
}

// validate checks one direction of a hand-over.
func (h *Handover) validate(seen seenOnce) error {
	at := fmt.Sprintf("hand-over from %q to %q", h.From, h.To)
	return cmp.Or(seen.check(at), checkTime(at, float64(h.NS)), checkTime(at, float64(h.LowNS)),
		checkTime(at, float64(h.HighNS)), checkSource(at, h.Source))
}

// validate checks the shares of a product: one for each number of rows, ascending.
func (g *Gated) validate(seen seenOnce) error {
	at := "product that ends with a gated linear unit, " + g.key()
	if len(g.Rows) == 0 || len(g.Rows) != len(g.Shares) {
		return fmt.Errorf("%s: %d shares at %d numbers of rows", at, len(g.Shares), len(g.Rows))
	}
	for i, share := range g.Shares {
		if g.Rows[i] < 1 || i > 0 && g.Rows[i] <= g.Rows[i-1] {
			return fmt.Errorf("%s: rows do not ascend from 1", at)
		}
		if !(share > 0 && share <= 1) {
			return fmt.Errorf("%s: share %v, want a number above 0, at most 1", at, share)
		}
	}
	return seen.check(at)
}

// validate checks the points of a copy: [bytes, ns], ascending in bytes.
func (k *Copy) validate(seen seenOnce) error {
	at := fmt.Sprintf("copy from %q to %q", k.From, k.To)
	if len(k.Points) == 0 {
		return fmt.Errorf("%s has no points", at)
	}
	for i, point := range k.Points {
		if point[0] < 1 || i > 0 && point[0] <= k.Points[i-1][0] {
			return fmt.Errorf("%s: sizes do not ascend from 1", at)
		}
		if err := checkTime(at, float64(point[1])); err != nil {
			return err
		}
	}
	return cmp.Or(seen.check(at), checkSource(at, k.Source))
}

// validate checks how processors slow each other down: the names are sorted, so that a set has one entry, and no factor
// speeds anything up.
func (s *Sharing) validate(seen seenOnce) error {
	at := "sharing of " + strings.Join(s.Procs, ", ")
	if len(s.Procs) < 2 || !slices.IsSorted(s.Procs) || len(s.Compute) != len(s.Procs) {
		return fmt.Errorf("%s: want at least 2 processors, ascending, and a compute factor each", at)
	}
	if err := cmp.Or(seen.check(at), checkSource(at, s.Source), checkRate(at+": bytes_per_ns", s.BytesPerNS)); err != nil {
		return err
	}
	for _, factor := range s.Compute {
		if math.IsNaN(factor) || factor < 1 || factor > maxFactor {
			return fmt.Errorf("%s: compute factor %v, want 1..1000", at, factor)
		}
	}
	for _, pair := range s.Pairs {
		if math.IsNaN(pair.Factor) || pair.Factor <= 0 || pair.Factor > maxFactor {
			return fmt.Errorf("%s: factor %v of %s on %q, want 0..1000", at, pair.Factor, pair.Key, pair.Proc)
		}
	}
	for _, alike := range s.Alike {
		if !(alike.Factor > 0 && alike.Factor <= maxFactor) {
			return fmt.Errorf("%s: factor %v of %s of %d rows on %q, want 0..1000", at, alike.Factor, alike.Kind,
				alike.Rows, alike.Proc)
		}
	}
	return nil
}

// validate checks the family's numbers, then its curves, which ascend.
func (f *Family) validate(seen seenOnce) error {
	at := fmt.Sprintf("family %q", f.key())
	if !slices.Contains(op.Kinds, f.Kind) {
		return fmt.Errorf("%s: unknown operator %q", at, f.Kind)
	}
	if err := cmp.Or(seen.check(at), checkTime(at+": setup_ns", f.SetupNS), checkRate(at+": ops_per_ns", f.OpsPerNS),
		checkRate(at+": bytes_per_ns", f.BytesPerNS)); err != nil {
		return err
	}
	// Written so that NaN, which compares false with everything, is refused as well.
	if !(f.Sharpness >= 1 && f.Sharpness <= maxSharpness) {
		return fmt.Errorf("%s: sharpness %v, want 1..%d", at, f.Sharpness, maxSharpness)
	}
	for _, deviation := range []float64{f.ErrM, f.ErrShape} {
		if !(deviation >= 0 && deviation <= maxErr) {
			return fmt.Errorf("%s: error %v, want 0..10", at, deviation)
		}
	}
	for _, step := range f.Step {
		if step < 1 || step > maxStep {
			return fmt.Errorf("%s: step %d, want 1..%d", at, step, maxStep)
		}
	}
	if len(f.Curves) == 0 {
		return fmt.Errorf("%s has no curves", at)
	}
	for i := range f.Curves {
		curve := &f.Curves[i]
		at := fmt.Sprintf("%s, curve (%d, %d)", at, curve.A, curve.B)
		if i > 0 && !less(f.Curves[i-1], *curve) {
			return fmt.Errorf("%s: curves do not ascend", at)
		}
		if err := f.validateCurve(at, curve); err != nil {
			return err
		}
	}
	return nil
}

// validateCurve checks a curve's rates and points, each of which must stand for an operator of the family.
func (f *Family) validateCurve(at string, curve *Curve) error {
	if err := cmp.Or(checkRate(at+": ops_per_ns", curve.OpsPerNS),
		checkRate(at+": bytes_per_ns", curve.BytesPerNS)); err != nil {
		return err
	}
	if len(curve.Points) == 0 {
		return fmt.Errorf("%s has no points", at)
	}
	for i, point := range curve.Points {
		if i > 0 && point[0] <= curve.Points[i-1][0] {
			return fmt.Errorf("%s: points do not ascend", at)
		}
		// A point stands for an operator, which must exist and lead back to this family, or it would never be looked
		// up.
		operator := f.operator(int(point[0]), curve.A, curve.B)
		if err := operator.Validate(); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		if other, _, _, _ := familyOf(f.Proc, operator, f.Cold); other.key() != f.key() {
			return fmt.Errorf("%s: %s is of family %q", at, operator.Key(), other.key())
		}
		ns, low, high := point[1], point[2], point[3]
		if ns < 1 || ns > maxNS || low < 0 || low > ns || high < ns || high > maxNS {
			return fmt.Errorf("%s: times %v ns at M=%d, want 1 <= median <= %d between low and high", at, point[1:],
				point[0], int64(maxNS))
		}
	}
	return nil
}
