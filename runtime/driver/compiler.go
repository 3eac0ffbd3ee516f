package driver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"github.com/hetc/hetc/planir/op"
)

// Target is the processor a compiler compiles for.
type Target struct {
	Proc    string            // processor name in the SoC
	Options map[string]string // from the SoC file
	// Emulator asks for artifacts that the vendor's emulator loads on this machine, instead of the device's.
	Emulator bool
}

// Compiler turns a graph into an artifact, possibly without the device. Compilers are linked by
// cmd/hetc only.
type Compiler interface {
	// Name is the driver whose artifacts it makes.
	Name() string
	Compile(ctx context.Context, g op.Graph, w Weights, t Target) (Artifact, error)
}

// GroupCompiler is a Compiler whose artifacts contain the weights with which they were compiled, so Load gets no
// weights with them. Its processors have WeightsInArtifacts among their Capabilities.
type GroupCompiler interface {
	Compiler
	// CompileGroup compiles graphs that read the same weights at several numbers of rows. Where the target shares them
	// (Target.Emulator is false) the artifacts refer to one binary, CompiledGroup.Shared, also when there is only one.
	// Pieces that cannot be compiled are Refused by name, all of them; any other error concerns none in particular. One
	// GroupCompiler may be asked by several goroutines at a time.
	CompileGroup(ctx context.Context, group []Piece, t Target) (*CompiledGroup, error)
}

// Piece is one graph with the weights that are compiled into it.
type Piece struct {
	Name    string // of the artifact, for messages and files
	Graph   op.Graph
	Weights Weights  // in the layouts of Target's processor
	Sample  [][]byte // values of the graph's inputs, dense, on which the artifact is to be tried; nil: it is not
	Later   *Later   // if set, stands for Weights and Sample, which are nil
}

// Later makes weights and a sample when they are needed. A compiler that has kept its results finds them by the
// digests, and then needs neither.
type Later struct {
	Weights string // Weights.Digest
	Sample  string // SampleDigest, "" for none
	Make    func() (Weights, [][]byte, error)
}

// Now returns the piece's weights and its sample. It makes them if they do not exist yet.
func (p *Piece) Now() (Weights, [][]byte, error) {
	if p.Later == nil {
		return p.Weights, p.Sample, nil
	}
	return p.Later.Make()
}

// Digest identifies the bytes of weights, in hex; not their names.
func (w Weights) Digest() string {
	parts := make([][]byte, len(w))
	for i := range w {
		parts[i] = w[i].Bytes
	}
	return digest(parts)
}

// SampleDigest identifies a sample, in hex; "" for none.
func SampleDigest(sample [][]byte) string {
	if sample == nil {
		return ""
	}
	return digest(sample)
}

// digest returns the SHA-256 of the SHA-256s of parts.
func digest(parts [][]byte) string {
	hash := sha256.New()
	for _, part := range parts {
		sum := sha256.Sum256(part)
		hash.Write(sum[:])
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// CompiledGroup is what a GroupCompiler made of a group.
type CompiledGroup struct {
	Artifacts []CompiledArtifact // in the order of the pieces
	Shared    []byte             // the binary that all artifacts refer to, nil when each holds its own
	// name and versions of what compiled: "QNN 2.51.0 (onnxruntime-qnn 2.7.0, ONNX Runtime 1.31.1)"
	Compiler string
	Token    string // the vendor's compatibility string, matched before anything is loaded
	Cached   bool   // no compiler ran: all of it was there already
}

// Refused lists the pieces of a group that a GroupCompiler does not compile. The other pieces may be tried without
// them.
type Refused struct {
	Pieces  []int   // indices, ascending
	Reasons []error // of each
}

// Error lists the reasons.
func (r *Refused) Error() string { return errors.Join(r.Reasons...).Error() }

// Unwrap returns the reasons.
func (r *Refused) Unwrap() []error { return r.Reasons }

// CompiledArtifact is one graph of a group.
type CompiledArtifact struct {
	Artifact
	// Emulated and Portable are the values of the graph's outputs for the piece's Sample, dense: of what was compiled,
	// executed by the vendor's emulator, and of the source it was compiled from, executed by another engine. nil
	// without a sample.
	Emulated, Portable [][]byte
	// Twin is the SHA-256 in hex of the artifact that the same piece has for the emulator (Target.Emulator), where
	// that was compiled too; "" otherwise.
	Twin string
}
