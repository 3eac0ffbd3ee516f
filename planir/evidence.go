package planir

import "fmt"

// Evidence says how well a plan is founded: where its times come from, and whether its graphs ever ran on the device.
type Evidence string

const (
	Measured  Evidence = "measured"  // its times were measured on the machine that executes it
	Simulated Evidence = "simulated" // hetc's simulator executes it: results are computed, times are virtual
	Emulated  Evidence = "emulated"  // the vendor's emulator executes it: results are the device's, times mean nothing
	Imported  Evidence = "imported"  // some of its times were measured elsewhere, not by hetc
	Unproved  Evidence = "unproved"  // it is for a device on which nothing of it was ever executed
)

// Evidence returns the plan's evidence.
func (p *Plan) Evidence() Evidence {
	switch {
	case p.SoC.Simulated:
		return Simulated
	case p.Target == nil && p.SoC.Imported:
		return Imported
	case p.Target == nil:
		return Measured
	case p.Target.Emulator:
		return Emulated
	}
	return Unproved
}

// EvidenceText returns the sentence that every command prints about a plan that is not Measured; "" where it is.
func (p *Plan) EvidenceText() string {
	text := p.evidenceText()
	if p.SoC.Imported && p.Evidence() != Imported {
		text += "; some of the times it expects were measured elsewhere (imported)"
	}
	return text
}

// evidenceText says what kind of evidence there is, apart from imported times.
func (p *Plan) evidenceText() string {
	switch p.Evidence() {
	case Imported:
		return "imported: some of the times it expects were measured elsewhere, and none of those by hetc"
	case Simulated:
		return fmt.Sprintf(
			"simulated: it runs on the simulator of %q (hetc run), on no device, and its times are simulated",
			p.SoC.Name)
	case Emulated:
		return fmt.Sprintf(
			"emulated: it runs on the vendor's emulator of %q on this kind of machine, and its times say nothing about the device", p.Target.SoC)
	case Unproved:
		times := "measured there"
		if p.Target.Simulated {
			times = "simulated"
		}
		return fmt.Sprintf(
			"unproved: it is for the device %q and was never executed there; the times it expects are %s",
			p.Target.SoC, times)
	}
	return ""
}
