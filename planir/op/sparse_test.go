package op

import (
	"math"
	"testing"
)

// A block keeps a share of what it sees, at least so many positions where its share is not 0, and all where it sees no
// more than these.
func TestKeptPositions(t *testing.T) {
	operator := Op{Kind: Select, M: 1 << 12, Heads: 1, KVHeads: 1, Context: 1 << 13, Block: 32}
	windowed := operator
	windowed.Window = 300
	for _, test := range []struct {
		of        Op
		pos, rows int
		share     float32
		least     int
		kept      int // of those before the block
		decided   bool
	}{
		{operator, 0, 32, 0.1, 0, 0, true},
		{operator, 992, 32, 0.1, 0, 103 - 32, false},
		{operator, 992, 32, 0.1, 256, 256 - 32, false},
		{operator, 992, 32, 0.5, 256, 512 - 32, false},
		{operator, 992, 32, 0, 256, SparseFirst, true},
		{operator, 992, 32, 0.1, 1024, 992, true}, // it sees 1,024
		{operator, 992, 32, 0, 1024, 992, true},
		{operator, 993, 32, 0, 1024, SparseFirst, true},
		{operator, 992, 32, 2, 0, 992, true},
		{operator, 992, 1, 0.1, 256, 255, false},
		{windowed, 992, 32, 0.1, 0, 0, true},           // its own and those that some queries see are more than a tenth
		{windowed, 992, 32, 0.1, 256, 256 - 63, false}, // 31 are seen by some queries only
		{windowed, 992, 32, 0.1, 331, 268, true},
	} {
		span := test.of.SpanOf(test.pos, test.rows)
		if kept, decided := span.Keep(test.share, test.least),
			span.Decided(test.share, test.least); kept != test.kept || decided != test.decided {
			t.Errorf("%d queries at %d, window %d, share %v, at least %d: %d kept, decided %v, want %d, %v", test.rows,
				test.pos, test.of.Window, test.share, test.least, kept, decided, test.kept, test.decided)
		}
	}
}

// The work of the parts of a sparse attention is that of the rows that see more than the least number of positions, and
// in short contexts that of dense attention. Measured densities stand for any least number.
func TestWorkOfFewPositions(t *testing.T) {
	for _, test := range []struct {
		rows, context, window, least int
		density                      float64
	}{
		{64, 64, 0, 256, 0.1}, {512, 512, 0, 256, 0.1}, {512, 4096, 0, 256, 0.1}, {512, 4096, 0, 512, 0.01},
		{2048, 4096, 0, 1024, 0.5}, {512, 4096, 300, 256, 0.3}, {512, 4096, 200, 256, 0.3}, {1, 4096, 0, 512, 0.05},
	} {
		attend := Op{Kind: SparseAttend, M: test.rows, Heads: 2, KVHeads: 1, HeadDim: 4, KV: F16, Context: test.context,
			Block:  16,
			Window: test.window, Density: test.density, Least: test.least}
		estimate := attend
		estimate.Kind, estimate.Density = Estimate, 0.5
		var kept, scored, all float64
		for row := range test.rows {
			seen := float64(test.context - test.rows + row + 1)
			if test.window > 0 {
				seen = min(seen, float64(test.window))
			}
			all += seen
			if seen <= float64(test.least) {
				kept += seen
				continue
			}
			scored += seen
			kept += max(float64(test.least), test.density*seen)
		}
		// Rows on both sides of where the share exceeds the least number are priced by their sums.
		if got := float64(attend.selectedPairs()); math.Abs(got-kept) > 0.02*kept {
			t.Errorf("%+v: %v positions are attended to, want %v", test, got, kept)
		}
		if got := estimate.estimatedPairs(); math.Abs(got-scored/2) > 1e-6*all {
			t.Errorf("%+v: %v scores are estimated, want %v", test, got, scored/2)
		}
		for _, operator := range []Op{attend, estimate} {
			same := operator.OfDensity()
			off := math.Abs(float64(same.Flops() - operator.Flops()))
			if same.Least != 0 || same.Validate() != nil || off > 1e-3*float64(operator.Flops())+1e-5*8*all+8 {
				t.Errorf("%s stands for %s with %d of %d operations", same.Key(), operator.Key(), same.Flops(),
					operator.Flops())
			}
		}
	}
}
