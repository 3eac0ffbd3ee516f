package roofline

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
