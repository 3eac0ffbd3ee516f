package socs

import "github.com/hetc/hetc/planir/capability"

// What is counted for a processor whose SoC file does not say what its driver holds: a catalog entry, or a driver
// that does not tell. The scratch is that of the driver "host", whose kernels hold most where they pack rows, and a
// library that keeps weights is counted as that of the driver "ort". A test compares both with what these drivers
// tell.
const (
	stepBytes        = 3 << 10
	libraryStepBytes = stepBytes + 80<<10 // of a graph with its weights that a library has loaded
	libraryBytes     = 40 << 20
	gluWords         = 64 << 10 // of a core that computes a gated linear unit with its product
)

var defaultScratch = capability.Scratch{
	Align: 64, Block: 32,
	PackRows: 24, PackTiles: 16, PackFloatTiles: 64, PackTilesPerCore: 4,
	UnpackWords: 4<<10 + 448*32,
	ExpertRows:  256, ExpertWords: 1 << 16,
	OutlierCols:   256,
	AttentionRows: 8, AttentionLines: 256, AttentionKeys: 128,
}

// DefaultMemory returns what is counted for kernels without a description, with a library that keeps weights or
// without.
func DefaultMemory(library bool) *capability.Memory {
	scratch := defaultScratch
	if library {
		return &capability.Memory{StepBytes: libraryStepBytes, LibraryBytes: libraryBytes, Scratch: &scratch}
	}
	return &capability.Memory{StepBytes: stepBytes, Scratch: &scratch}
}

// KernelMemory returns what the processor's driver told of its memory. What it did not tell is the default: with a
// library's share where the processor's weights go to one.
func (p *Processor) KernelMemory() *capability.Memory {
	out := DefaultMemory(p.Prepacks || p.WeightsInArtifacts)
	if p.FusesGLU {
		out.Scratch.GLUWords = gluWords
	}
	if told := p.Memory.Clone(); told != nil {
		out.StepBytes, out.LibraryBytes = told.StepBytes, told.LibraryBytes
		if told.Scratch != nil {
			out.Scratch = told.Scratch
		}
	}
	return out
}
