package record

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/profiler/stat"
)

const (
	// mostUnsteady is the part of the measurements that may be unsteady before a plan is refused. The fit gives flagged
	// points less weight; once they are the majority it has nothing better to rest on.
	mostUnsteady = 0.5
	// steadyWithin is how far, relative to the median, its interval may reach for a Noisy measurement to count as
	// steady. Noisy begins at 2 %, which idle virtual machines exceed in half of their measurements.
	steadyWithin = 0.05
)

// Unsteady returns how many measurements drifted or are known to no better than 5 %, among how many.
func (s *Set) Unsteady() (unsteady, all int) {
	for _, what := range s.all {
		if slices.Contains(what.Warnings, Drifted) || slices.Contains(what.Warnings, Noisy) && !what.steady() {
			unsteady++
		}
	}
	return unsteady, len(s.all)
}

// Unreliable returns what a command says that plans with the measurements although Steady refuses them, "" where it
// does not.
func (s *Set) Unreliable(name string) string {
	if s.Steady(name) == nil {
		return ""
	}
	unsteady, all := s.Unsteady()
	return fmt.Sprintf("%d of %d measurements in %s drifted or vary by more than 5 %%: the machine was busy, so do not "+
		"rely on the predictions", unsteady, all, name)
}

// steady reports whether the samples determine the median well enough for a plan.
func (m *Measurement) steady() bool {
	summary, err := stat.Summarise(m.Samples)
	return err == nil && summary.Relative() <= steadyWithin
}

// Steady reports whether a plan may rest on the measurements. The error, of class ClassInput and code record.noisy,
// says how many do not agree with themselves, and what to do.
func (s *Set) Steady(name string) error {
	unsteady, all := s.Unsteady()
	if float64(unsteady) <= mostUnsteady*float64(all) {
		return nil
	}
	return diag.New(diag.ClassInput, "record %q: %d of %d measurements drifted or vary by more than 5 %%, want at most "+
		"half: the machine was busy", name, unsteady, all).
		WithCode("record.noisy").
		WithHint("end other programs and measure those anew (hetc profile --resume --flagged, with a larger --budget " +
			"if it has one), or plan with them all the same: --accept-noisy")
}
