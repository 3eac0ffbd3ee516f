// Package emit knows how a plan becomes a signed bundle: packing the weights, having the
// graphs compiled, laying out, signing, and verifying what was written.
package emit
