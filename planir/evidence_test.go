package planir_test

import (
	"strings"
	"testing"

	"github.com/hetc/hetc/planir"
)

// A plan that was not measured on what executes it says so, in a word and in a sentence.
func TestEvidence(t *testing.T) {
	for _, test := range []struct {
		plan planir.Plan
		want planir.Evidence
		text string
	}{
		{planir.Plan{}, planir.Measured, ""},
		{planir.Plan{SoC: planir.SoCRef{Name: "s", Simulated: true}}, planir.Simulated, `simulator of "s"`},
		{planir.Plan{SoC: planir.SoCRef{Name: "s", Simulated: true, Target: true}}, planir.Simulated, `on no device`},
		{planir.Plan{Target: &planir.Target{SoC: "s", Emulator: true, Simulated: true}}, planir.Emulated,
			`emulator of "s"`},
		{planir.Plan{Target: &planir.Target{SoC: "s", Simulated: true}}, planir.Unproved,
			"the times it expects are simulated"},
		{planir.Plan{Target: &planir.Target{SoC: "s"}}, planir.Unproved, "the times it expects are measured there"},
	} {
		got, text := test.plan.Evidence(), test.plan.EvidenceText()
		if got != test.want || (text == "") != (test.text == "") || !strings.Contains(text, test.text) {
			t.Errorf("%+v: %s, %q, want %s, %q", test.plan, got, text, test.want, test.text)
		}
	}
}
