package planir

import (
	"strings"
	"testing"
)

// Whatever else a plan is, imported times are told: in the word for what stands behind it, or in the sentence.
func TestImportedTimesAreTold(t *testing.T) {
	for _, test := range []struct {
		soc    SoCRef
		target *Target
		want   Evidence
		times  string
	}{
		{SoCRef{Imported: true}, nil, Imported, "times measured elsewhere (imported)"},
		{SoCRef{Imported: true, Simulated: true}, nil, Simulated,
			"simulated times and times measured elsewhere (imported)"},
		{SoCRef{Imported: true}, &Target{SoC: "phone"}, Unproved, "times measured elsewhere (imported)"},
		{SoCRef{Simulated: true}, nil, Simulated, "simulated times"},
		{SoCRef{}, nil, Measured, ""},
	} {
		plan := Plan{SoC: test.soc, Target: test.target}
		if plan.Evidence() != test.want || strings.Contains(plan.EvidenceText(), "imported") != test.soc.Imported ||
			plan.SoC.Times() != test.times {
			t.Errorf("%+v: %s, %q, %q", test.soc, plan.Evidence(), plan.EvidenceText(), plan.SoC.Times())
		}
	}
}
