package planir_test

import (
	"strings"
	"testing"

	"github.com/hetc/hetc/planir"
)

// A plan that was not measured on what executes it says so, in a word and in a sentence.
func TestEvidence(t *testing.T) {
	for _, x := range []struct {
		plan planir.Plan
		want planir.Evidence
		text string
	}{
		{planir.Plan{}, planir.Measured, ""},
		{planir.Plan{SoC: planir.SoCRef{Name: "s", Simulated: true}}, planir.Simulated, `simulator of "s"`},
		{planir.Plan{SoC: planir.SoCRef{Name: "s", Simulated: true, Target: true}}, planir.Simulated, `on no device`},
		{planir.Plan{Target: &planir.Target{SoC: "s", Emulator: true, Simulated: true}}, planir.Emulated, `emulator of "s"`},
		{planir.Plan{Target: &planir.Target{SoC: "s", Simulated: true}}, planir.Unproved, "the times it expects are simulated"},
		{planir.Plan{Target: &planir.Target{SoC: "s"}}, planir.Unproved, "the times it expects are measured there"},
	} {
		got, text := x.plan.Evidence(), x.plan.EvidenceText()
		if got != x.want || (text == "") != (x.text == "") || !strings.Contains(text, x.text) {
			t.Errorf("%+v: %s, %q, want %s, %q", x.plan, got, text, x.want, x.text)
		}
	}
}
