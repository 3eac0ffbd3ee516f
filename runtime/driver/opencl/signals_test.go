package opencl

import (
	"testing"

	"github.com/hetc/hetc/internal/native"
)

// Compilers of kernels do not handle signals, so that those that a program catches reach it.
func TestSignalsStayOurs(t *testing.T) {
	implementations(t, func(t *testing.T, library map[string]string) {
		p := openFirst(t, library)
		unbuilt := func(source string) string { return source + "\n// " + t.Name() + "\n" }
		exe, b := addition(t, p, unbuilt)
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
