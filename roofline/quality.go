package roofline

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"sort"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/socs"
)

// Quality is how well operators that were kept from the fit are predicted.
type Quality struct {
	N        int     `json:"n"`
	Within10 float64 `json:"within_10"` // share with |predicted/measured - 1| <= 10 %
	Within15 float64 `json:"within_15"`
	Covered  float64 `json:"covered"` // share whose measured time lies within [Low, High]
	MAPE     float64 `json:"mape"`    // mean of |predicted/measured - 1|
	Misses   []Miss  `json:"misses"`  // every operator, worst first
}

// Miss is one held-out operator.
type Miss struct {
	Key        string     `json:"key"` // of the measurement
	Proc       string     `json:"-"`
	Op         op.Op      `json:"-"`
	Cold       bool       `json:"-"`
	MeasuredNS int64      `json:"measured_ns"`
	Predicted  Prediction `json:"predicted"`
	Error      float64    `json:"error"` // predicted/measured - 1
}

// Evaluate compares predictions with every operator measured alone in held.
func Evaluate(costs *Costs, held *record.Set) (Quality, error) {
	all, err := summarise(held)
	if err != nil {
		return Quality{}, err
	}
	var misses []Miss
	for _, taken := range all {
		if taken.m.Kind != record.Op || taken.m.GLU != nil || len(taken.m.Concurrent) > 0 {
			continue
		}
		miss, err := costs.miss(taken)
		if err != nil {
			return Quality{}, fmt.Errorf("evaluate %q: %w", taken.m.Key(), err)
		}
		misses = append(misses, miss)
	}
	return quality(misses)
}

// miss compares a measurement with its prediction.
func (c *Costs) miss(taken sample) (Miss, error) {
	predicted, err := c.Op(taken.m.Proc, *taken.m.Op, taken.m.Cold)
	if err != nil {
		return Miss{}, err
	}
	return Miss{Key: taken.m.Key(), Proc: taken.m.Proc, Op: *taken.m.Op, Cold: taken.m.Cold, MeasuredNS: ns(taken.ns),
		Predicted: predicted, Error: float64(predicted.NS)/taken.ns - 1}, nil
}

// quality sums the misses up and sorts them, the worst first.
func quality(misses []Miss) (Quality, error) {
	out := Quality{N: len(misses), Misses: misses}
	if out.N == 0 {
		return out, diag.New(diag.ClassInput, "evaluate costs: no operator was held out")
	}
	for _, miss := range misses {
		deviation := math.Abs(miss.Error)
		out.MAPE += deviation
		if deviation <= 0.10 {
			out.Within10++
		}
		if deviation <= 0.15 {
			out.Within15++
		}
		if miss.Predicted.LowNS <= miss.MeasuredNS && miss.MeasuredNS <= miss.Predicted.HighNS {
			out.Covered++
		}
	}
	count := float64(out.N)
	out.MAPE, out.Within10, out.Within15, out.Covered = out.MAPE/count, out.Within10/count, out.Within15/count,
		out.Covered/count
	sort.SliceStable(misses, func(i, j int) bool { return math.Abs(misses[i].Error) > math.Abs(misses[j].Error) })
	return out, nil
}

// Within returns the part of the operators that lie between the samples, and Beyond the others, of which the samples
// show less: their predictions are extrapolated. Either may be empty.
func (q *Quality) Within() Quality { return q.part(false) }

// Beyond returns the part that lies beyond the samples.
func (q *Quality) Beyond() Quality { return q.part(true) }

// part returns the quality of the misses beyond the samples, or of the others.
func (q *Quality) part(beyond bool) Quality {
	var misses []Miss
	for _, miss := range q.Misses {
		if (miss.Predicted.Source.Weak()) == beyond {
			misses = append(misses, miss)
		}
	}
	out, err := quality(misses)
	if err != nil {
		return Quality{}
	}
	return out
}

// Worst returns the largest error of an operator.
func (q *Quality) Worst() float64 {
	worst := 0.0
	for i := range q.Misses {
		worst = max(worst, math.Abs(q.Misses[i].Error))
	}
	return worst
}

// CrossValidate fits folds times, each time without one part of the operators, and predicts that part. Which
// part an operator belongs to follows from its key. Shapes at the edge of what was sampled are
// held out too and then count as extrapolations. costs is the fit to the whole set, which stands for families that lack
// nothing.
func CrossValidate(soc *socs.SoC, set *record.Set, folds int, costs *Costs) (Quality, error) {
	if folds < 2 || folds > 100 {
		return Quality{}, diag.New(diag.ClassUsage, "cross-validate in %d parts, want 2..100", folds)
	}
	var misses []Miss
	for fold := range folds {
		known := maps.Clone(costs.look().families)
		train, held := record.NewSet(set.Header), record.NewSet(set.Header)
		for _, measured := range set.All() {
			to := train
			if measured.Kind == record.Op && len(measured.Concurrent) == 0 && foldOf(measured.Key(), folds) == fold {
				to = held
				family, _, _, _ := familyOf(measured.Proc, *measured.Op, measured.Cold)
				delete(known, family.key())
			}
			if err := to.Add(measured); err != nil {
				return Quality{}, err
			}
		}
		if held.Len() == 0 {
			continue
		}
		fitted, err := fit(soc, train, known)
		if err != nil {
			return Quality{}, err
		}
		all, err := summarise(held)
		if err != nil {
			return Quality{}, err
		}
		for _, taken := range all {
			miss, err := fitted.miss(taken)
			if err != nil {
				continue // its whole family was held out: nothing to say about the model
			}
			misses = append(misses, miss)
		}
	}
	return quality(misses)
}

// foldOf returns the fold of a measurement: it depends on its key alone.
func foldOf(key string, folds int) int {
	sum := sha256.Sum256([]byte(key))
	return int(binary.LittleEndian.Uint64(sum[:8]) % uint64(folds))
}
