// Package emit knows how a plan becomes a signed bundle: packing the weights, having the
// graphs compiled, laying out, signing, and verifying what was written.
//
// A graph compiled for an NPU is also executed on a sample of values and compared with the same graph in float32;
// agreement.go says how far it may differ before it is refused.
package emit
