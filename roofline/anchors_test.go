package roofline

import (
	"math"
	"testing"

	"github.com/hetc/hetc/planir/op"
	"pgregory.net/rapid"
)

// A family with the anchors' ceilings, no constant term and the larger of both times predicts what the anchors do.
func TestAnchorsAreAFamily(t *testing.T) {
	share := rapid.Float64Range(0.01, 1)
	rapid.Check(t, func(rt *rapid.T) {
		anchors := Anchors{
			PeakOpsPerNS:   rapid.Float64Range(100, 1e5).Draw(rt, "P_pk"),
			PeakBytesPerNS: rapid.Float64Range(1, 1000).Draw(rt, "B_pk"),
			MemoryShare:    share.Draw(rt, "u_m"), ComputeShare: share.Draw(rt, "u_c"),
			ComputeIntensity: rapid.Float64Range(1, 1e4).Draw(rt, "I_c"),
		}
		family := Family{Kind: op.MatMul, Scheme: op.A8TQ8C, OpsPerNS: anchors.OpsPerNS(),
			BytesPerNS: anchors.BytesPerNS(), Sharpness: maxSharpness, Step: [3]int{1, 1, 1}}
		m, k, n := rapid.IntRange(1, 512).Draw(rt, "M"), rapid.IntRange(1, 4096).Draw(rt, "K"),
			rapid.IntRange(1, 4096).Draw(rt, "N")
		w, q := family.work(m, k, n, family.Step)
		if got, want := anchors.NS(w, q),
			family.roofline(m, k, n, family.OpsPerNS, family.BytesPerNS); math.Abs(got-want) > 1e-9*want {
			rt.Fatalf("%v ns, the family says %v", got, want)
		}
		if p := anchors.OpsPerNS(); p > anchors.PeakOpsPerNS || anchors.Clipped() != (p == anchors.PeakOpsPerNS &&
			anchors.ComputeShare*anchors.PeakBytesPerNS*anchors.ComputeIntensity != p) {
			rt.Fatalf("P_eff %v, peak %v, clipped %v", p, anchors.PeakOpsPerNS, anchors.Clipped())
		}
		// On either side of the knee one of both times counts.
		if below := anchors.Knee() * 0.99; anchors.NS(below*q, q) != q/anchors.BytesPerNS() {
			rt.Fatal("below the knee it is not the memory's time")
		}
		if above := anchors.Knee() * 1.01; anchors.NS(above*q, q) != above*q/anchors.OpsPerNS() {
			rt.Fatal("above the knee it is not the arithmetic's time")
		}
	})
}

// Anchors calibrate an accelerator's roofline by two kernels measured on it, the most memory-bound and the most
// compute-bound one (Agent.xpu appendix A). They give the ceilings that a family of a costs file is fitted for where
// there are only two measurements: Family's OpsPerNS and BytesPerNS, with no constant term and the larger of both
// times.
type Anchors struct {
	PeakOpsPerNS     float64 // P_pk, 1e9 operations a second
	PeakBytesPerNS   float64 // B_pk, 1e9 byte/s
	MemoryShare      float64 // u_m: share of the peak bandwidth that the memory-bound kernel reached, in (0, 1]
	ComputeShare     float64 // u_c: the compute-bound kernel's, in (0, 1]
	ComputeIntensity float64 // I_c: operations per byte of the compute-bound kernel
}

// BytesPerNS is the memory ceiling B_eff (Eq. 2).
func (a Anchors) BytesPerNS() float64 { return a.MemoryShare * a.PeakBytesPerNS }

// OpsPerNS is the compute ceiling P_eff (Eq. 3), clipped at the peak.
func (a Anchors) OpsPerNS() float64 {
	return min(a.PeakOpsPerNS, a.ComputeShare*a.PeakBytesPerNS*a.ComputeIntensity)
}

// Clipped reports whether the compute-bound kernel's rate is above the peak, so that P_eff is the peak.
func (a Anchors) Clipped() bool {
	return a.ComputeShare*a.PeakBytesPerNS*a.ComputeIntensity > a.PeakOpsPerNS
}

// Knee is I*, the operations per byte from which a kernel is compute-bound (Eq. 4, first form).
func (a Anchors) Knee() float64 { return a.OpsPerNS() / a.BytesPerNS() }

// NS is the time of a kernel of ops operations that moves bytes bytes, in nanoseconds (Eq. 5).
func (a Anchors) NS(ops, bytes float64) float64 {
	return powerMean(ops/a.OpsPerNS(), bytes/a.BytesPerNS(), maxSharpness)
}
