// Package bundle knows the container of a deployment: its bytes, its limits, and how to
// verify it. SPEC.md in this directory is the normative text.
//
// A bundle is a signed manifest and content-addressed blobs, in one file (`.hetb`) or
// exploded into a directory. Open releases nothing before every check of SPEC.md section 5
// has passed; each refusal is an *Error that names the step. The package verifies signatures
// but cannot make them: Write is given functions that sign.
package bundle

const (
	payloadType    = "application/vnd.hetc.bundle.v1+json"
	manifestSchema = "hetc.bundle/1"
	keyringSchema  = "hetc.keyring/1"

	// FeatureChunks is the manifest feature "blobs are digested in chunks, version 1".
	FeatureChunks = "chunks/1"
)

// The limits of the format (SPEC.md section 2), all checked before anything is allocated for
// what they bound.
const (
	maxEnvelopeBytes = 16 << 20 // the DSSE envelope
	maxBlobs         = 1 << 16  // blobs in a manifest
	maxBytes         = 1 << 46  // one blob, and all blobs together
	maxLeaves        = 1 << 22  // chunk digests: a table of at most 128 MiB
	maxCopyBytes     = 1 << 33  // blobs that are copied into private memory on opening, together

	maxSignatures  = 8
	maxSigBytes    = 128
	maxFeatures    = 64
	maxAnnotations = 64
	maxLicenses    = 64
	maxComponents  = 64
	maxName        = 200
	maxString      = 1024
	maxKeys        = 64
	maxKeyringFile = 64 << 10
	maxCounter     = 1<<31 - 1
	maxInteger     = 1<<53 - 1
	minChunk       = 4 << 10
	maxChunk       = 16 << 20
	minAlign       = 64
	maxAlign       = 2 << 20
	pageAlign      = 64 << 10 // of tables, of blobs of at least this size, and of the file's end

	// Write, when the manifest template has no chunk size, uses the smallest from leastChunk on with which a bundle
	// has at most usualLeaves chunks: small ones are checked side by side, and less is checked beside what is read.
	leastChunk  = 64 << 10
	usualLeaves = 1 << 14 // half a MiB of digests
)
