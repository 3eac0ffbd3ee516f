package host

import (
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/pack"
)

// memory tells how much memory executables take. It does not depend on the instructions of this
// CPU, because plans are made on other machines: it is that of the kernels that need most, which
// pack rows. A test compares it with what is allocated.
func memory() *capability.Memory {
	return &capability.Memory{
		StepBytes: 3 << 10, // measured, with half as much again that the collector has not come by for
		Scratch: &capability.Scratch{
			Align: align, Block: pack.TileN,
			PackRows: 24, PackTiles: packedTiles, PackFloatTiles: packedFloats, PackTilesPerCore: packedPerWorker,
			UnpackWords: 4<<10 + 448*pack.TileN, // kernel.PackedScratch at most
			GLUWords:    gluWords,
			ExpertRows:  groupRows, ExpertWords: groupCells,
			OutlierCols: outlierCols,
			// kernel.AttentionScratch
			AttentionRows: 8, AttentionLines: 256, AttentionKeys: 128,
		},
	}
}
