package planir

import (
	"strings"
	"testing"
)

// Whatever else a plan is, imported times are told: in the word for what stands behind it, or in the sentence.
func TestImportedTimesAreTold(t *testing.T) {
	for _, c := range []struct {
		soc    SoCRef
		target *Target
		want   Evidence
		times  string
	}{
		{SoCRef{Imported: true}, nil, Imported, "times measured elsewhere (imported)"},
		{SoCRef{Imported: true, Simulated: true}, nil, Simulated, "simulated times and times measured elsewhere (imported)"},
		{SoCRef{Imported: true}, &Target{SoC: "phone"}, Unproved, "times measured elsewhere (imported)"},
		{SoCRef{Simulated: true}, nil, Simulated, "simulated times"},
		{SoCRef{}, nil, Measured, ""},
	} {
		p := Plan{SoC: c.soc, Target: c.target}
		if p.Evidence() != c.want || strings.Contains(p.EvidenceText(), "imported") != c.soc.Imported || p.SoC.Times() != c.times {
			t.Errorf("%+v: %s, %q, %q", c.soc, p.Evidence(), p.EvidenceText(), p.SoC.Times())
		}
	}
}
