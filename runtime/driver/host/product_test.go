package host

import (
	"testing"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// The host multiplies quantised rows by every weight that it multiplies any of them by: a new scheme of known halves is
// a row of the table of schemes, and nothing here.
func TestProductsOfKnownHalves(t *testing.T) {
	for _, rows := range []string{"a8t", "a8s", "a8s2", "a8s4"} {
		for _, weight := range []string{"q8c", "q6c", "q4b32", "q4b128"} {
			operator := op.Op{Kind: op.MatMul, M: 1, K: 128, N: pack.TileN, Scheme: op.Scheme(rows + "/" + weight)}
			size, err := pack.TileBytes(weight, operator.K)
			if err != nil {
				t.Fatal(err)
			}
			build := builder{op: operator, exe: &executable{proc: &processor{set: kernel.Best()}},
				weights: []driver.Packed{{Bytes: make([]byte, size)}}}
			_, bytes, sums, err := build.product()
			if err != nil || bytes != int(size) || sums > 0 != (weight != "q8c") {
				t.Errorf("%s: %v, tiles of %d bytes, %d sums; want %d bytes", operator.Scheme, err, bytes, sums, size)
			}
		}
	}
}
