package engines

import (
	"fmt"
	"slices"
	"time"
)

// Forms of an engine that are slower than another one of the same engine are dropped after trialRounds, and after the
// first round those that are slower by the factor clearly. Between two rounds the machine itself may get faster by a
// half at most.
const (
	trialRounds = 2
	clearly     = 1.5
)

// drop decides after a round which forms of the other engines are measured no further in a task, and notes why. hetc's
// forms all stay.
//
// Two rules apply. By Finalists, a form goes on if it took at most so many times as long as the fastest form of any
// other engine in the task. By the rule of each engine, its forms go on that may be its fastest, since a ratio is to
// that form alone. A single measurement decides only where it is sound.
func (m *Match) drop(result *Result) {
	before := result.left()
	if m.Finalists > 0 {
		m.keepFinalists(result)
	}
	switch result.Rounds {
	case 1:
		m.dropSlower(result, clearly)
	case trialRounds:
		m.dropSlower(result, 1)
	}

	if after := result.left(); after < before {
		m.Note("%d of %d processes of a round are left out from now on; the others take %v", before-after, before,
			result.nextRound().Round(time.Second))
	}
}

// left is the number of processes in another round.
func (r *Result) left() (n int) {
	for i := range r.Series {
		if !r.Series[i].over() {
			n++
		}
	}
	return n
}

// keepFinalists drops each form that took longer than Finalists permits in its first sound measurement.
func (m *Match) keepFinalists(result *Result) {
	round := result.Rounds - 1
	for i := range result.Series {
		series := &result.Series[i]
		if series.Engine == "hetc" || series.over() || series.finalist || !m.sound(series) {
			continue
		}
		leader := result.leader(series.Task, round)
		factor := leader.Samples[round].Median / series.Samples[round].Median
		if factor > m.Finalists {
			series.Dropped = tookLonger(factor, leader, round)
			continue
		}
		series.finalist = true
	}
}

// sound reports whether the last measurement of a series may be the only one by which it is dropped: others left the
// machine alone, and the files were read before. The first process that starts reads them from the disk.
func (m *Match) sound(s *Series) bool {
	last := len(s.Samples) - 1
	return !m.disturbed(&s.Samples[last]) && (s.Task.Start == 0 || last > 0)
}

// leader is the fastest form of the other engines in a task and round.
func (r *Result) leader(task Task, round int) (fastest *Series) {
	for i := range r.Series {
		series := &r.Series[i]
		if series.Engine == "hetc" || series.Task != task || len(series.Samples) <= round {
			continue
		}
		if fastest == nil || series.Samples[round].Median > fastest.Samples[round].Median {
			fastest = series
		}
	}
	return fastest
}

// dropSlower drops forms of an engine whose every process was slower in a task, by a factor, than every process of
// another form of the same engine.
func (m *Match) dropSlower(result *Result, factor float64) {
	for i := range result.Series {
		series := &result.Series[i]
		if series.Engine == "hetc" || series.over() || factor > 1 && !m.sound(series) {
			continue
		}
		rival := result.rival(series)
		if rival == nil || factor*fastest(series) >= slowest(rival) {
			continue
		}
		if factor > 1 {
			series.Dropped = tookLonger(slowest(rival)/fastest(series), rival, result.Rounds-1)
		} else {
			series.Dropped = fmt.Sprintf("slower than %s %s in both rounds", rival.Engine, rival.Form)
		}
	}
}

// rival is the form of the same engine in the same task whose slowest process was fastest, nil where there is none.
func (r *Result) rival(s *Series) (best *Series) {
	for i := range r.Series {
		other := &r.Series[i]
		if other == s || other.Engine != s.Engine || other.Task != s.Task || other.Failed != "" {
			continue
		}
		if best == nil || slowest(other) > slowest(best) {
			best = other
		}
	}
	return best
}

// tookLonger says by how much a form was slower than another one in a round.
func tookLonger(factor float64, than *Series, round int) string {
	return fmt.Sprintf("took %.2f x as long as %s %s in round %d", factor, than.Engine, than.Form, round+1)
}

// fastest is the best rate of a series.
func fastest(s *Series) float64 { return slices.Max(rates(s)) }

// slowest is the worst rate of a series.
func slowest(s *Series) float64 { return slices.Min(rates(s)) }

// rates are those of the processes of a series, at least one.
func rates(s *Series) (tps []float64) {
	for _, sample := range s.Samples {
		tps = append(tps, sample.Median)
	}
	return tps
}
