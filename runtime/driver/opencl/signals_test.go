package opencl

import (
	"testing"

	"github.com/hetc/hetc/internal/native"
)

// Compilers of kernels leave signals to Go's runtime: those that a program catches reach it however many there are.
func TestSignalsStayOurs(t *testing.T) {
	implementations(t, func(t *testing.T, library map[string]string) {
		p := openFirst(t, library)
		fresh := func(source string) string { return source + "\n// " + t.Name() + "\n" } // nothing that was built before
		exe, b := addition(t, p, fresh)
		if _, err := p.Run(exe, b); err != nil {
			t.Fatal(err)
		}
		sums(t, b)
		if _, err := p.device.programs.prebuild("kernel void nothing(global int *x) { x[0] = 7; }"); err != nil {
			t.Fatal(err)
		}
		if taken := native.Taken(); len(taken) > 0 {
			t.Errorf("the library handles signals %v", taken)
		}
	})
}
