package emit

import (
	"testing"

	"github.com/hetc/hetc/planir/op"
)

// Every scheme that a vendor's compiler gets has a bound of its own, or is computed in half precision as a whole.
func TestBoundsOfSchemes(t *testing.T) {
	for _, scheme := range op.SchemesOf("qnn") {
		if _, ok := bounds[scheme]; !ok && !scheme.Half() {
			t.Errorf("scheme %q: no bound, and it is not computed in half precision", scheme)
		}
	}
}
