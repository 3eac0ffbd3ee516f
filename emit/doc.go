// Package emit knows how a plan becomes a signed bundle: packing the weights, having the
// graphs compiled, laying out, signing, and verifying what was written.
//
// A graph compiled for an NPU is also executed on a sample of values and compared with the same graph in float32;
// agreement.go says how far it may differ before it is refused.
//
// Read Emit (emit.go) first. Content (content.go) holds what the blobs are made of, and can be executed without a
// bundle, as tests and benchmarks do. groups.go has graphs compiled with their weights, lazyweights.go packs those
// weights only when a compiler needs them.
package emit
