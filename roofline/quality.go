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
func Evaluate(c *Costs, held *record.Set) (Quality, error) {
	all, err := summarise(held)
	if err != nil {
		return Quality{}, err
	}
	var misses []Miss
	for _, k := range all {
		if k.m.Kind != record.Op || len(k.m.Concurrent) > 0 {
			continue
		}
		m, err := c.miss(k)
		if err != nil {
			return Quality{}, fmt.Errorf("evaluate %q: %w", k.m.Key(), err)
		}
		misses = append(misses, m)
	}
	return quality(misses)
}

func (c *Costs) miss(k sample) (Miss, error) {
	p, err := c.Op(k.m.Proc, *k.m.Op, k.m.Cold)
	if err != nil {
		return Miss{}, err
	}
	return Miss{Key: k.m.Key(), Proc: k.m.Proc, Op: *k.m.Op, Cold: k.m.Cold, MeasuredNS: ns(k.ns), Predicted: p, Error: float64(p.NS)/k.ns - 1}, nil
}

func quality(misses []Miss) (Quality, error) {
	q := Quality{N: len(misses), Misses: misses}
	if q.N == 0 {
		return q, diag.New(diag.ClassInput, "evaluate costs: no operator was held out")
	}
	for _, m := range misses {
		e := math.Abs(m.Error)
		q.MAPE += e
		if e <= 0.10 {
			q.Within10++
		}
		if e <= 0.15 {
			q.Within15++
		}
		if m.Predicted.LowNS <= m.MeasuredNS && m.MeasuredNS <= m.Predicted.HighNS {
			q.Covered++
		}
	}
	n := float64(q.N)
	q.MAPE, q.Within10, q.Within15, q.Covered = q.MAPE/n, q.Within10/n, q.Within15/n, q.Covered/n
	sort.SliceStable(misses, func(i, j int) bool { return math.Abs(misses[i].Error) > math.Abs(misses[j].Error) })
	return q, nil
}

// Within is the part of the operators that lie between the samples, and Beyond the others, of which the samples show less:
// their predictions are of source Bound. Either may be empty.
func (q *Quality) Within() Quality { return q.part(false) }

// Beyond is the part that lies beyond the samples.
func (q *Quality) Beyond() Quality { return q.part(true) }

func (q *Quality) part(beyond bool) Quality {
	var misses []Miss
	for _, m := range q.Misses {
		if (m.Predicted.Source == Bound) == beyond {
			misses = append(misses, m)
		}
	}
	out, err := quality(misses)
	if err != nil {
		return Quality{}
	}
	return out
}

// Worst is the largest error of an operator.
func (q *Quality) Worst() float64 {
	worst := 0.0
	for i := range q.Misses {
		worst = max(worst, math.Abs(q.Misses[i].Error))
	}
	return worst
}

// CrossValidate fits folds times, each time without one part of the operators, and predicts that part. Which
// part an operator belongs to follows from its key. Shapes at the edge of what was sampled are
// held out too and then count as extrapolations. c is the fit to the whole set, which stands for families that lack
// nothing.
func CrossValidate(s *socs.SoC, set *record.Set, folds int, c *Costs) (Quality, error) {
	if folds < 2 || folds > 100 {
		return Quality{}, diag.New(diag.ClassUsage, "cross-validate in %d parts, want 2..100", folds)
	}
	var misses []Miss
	for fold := range folds {
		known := maps.Clone(c.look().families)
		train, held := record.NewSet(set.Header), record.NewSet(set.Header)
		for _, m := range set.All() {
			to := train
			if m.Kind == record.Op && len(m.Concurrent) == 0 && foldOf(m.Key(), folds) == fold {
				to = held
				f, _, _, _ := familyOf(m.Proc, *m.Op, m.Cold)
				delete(known, f.Key())
			}
			if err := to.Add(m); err != nil {
				return Quality{}, err
			}
		}
		if held.Len() == 0 {
			continue
		}
		c, err := fit(s, train, known)
		if err != nil {
			return Quality{}, err
		}
		all, err := summarise(held)
		if err != nil {
			return Quality{}, err
		}
		for _, k := range all {
			m, err := c.miss(k)
			if err != nil {
				continue // its whole family was held out: nothing to say about the model
			}
			misses = append(misses, m)
		}
	}
	return quality(misses)
}

func foldOf(key string, folds int) int {
	sum := sha256.Sum256([]byte(key))
	return int(binary.LittleEndian.Uint64(sum[:8]) % uint64(folds))
}
