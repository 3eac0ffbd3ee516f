// Package emit knows how a plan becomes a signed bundle: packing the weights, having the
// graphs compiled, laying out, signing, and verifying what was written.
//
// Read Emit (emit.go) first. It makes a Content (content.go), which holds everything but the plan that the bundle needs
// at run time, and writes it out blob by blob:
//
//   - for a target, the plan is rewritten first (target.go); decisions that the target does not execute go to the
//     control processor where that is allowed (fallback.go);
//   - graphs without weights are compiled by Content.compile, graphs with their weights in groups (groups.go), whose
//     weights are packed only when a compiler needs them (lazyweights.go);
//   - a graph compiled with its weights is executed on a sample of values (oracle.go) and compared with the same graph
//     in float32 (floatgraph.go); agreement.go says how far it may differ before it is refused;
//   - weights are assembled and packed while the bundle is written (weights.go, calibrated.go);
//   - the reference program, self-test, prefix and programs of devices are further blobs (reference.go, selftest.go,
//     emit.go, programs.go), and report.go describes what was compiled.
//
// A Content can be executed without a bundle, as tests and benchmarks do.
package emit
