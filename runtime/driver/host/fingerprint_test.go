package host

import (
	"regexp"
	"runtime"
	"testing"
)

func TestFingerprint(t *testing.T) {
	a := Fingerprint()
	if !regexp.MustCompile(`^cpu-[0-9a-f]{16}$`).MatchString(a) || a != Fingerprint() {
		t.Errorf("fingerprint %q is malformed or changes", a)
	}
	if runtime.GOOS == "linux" && cpuName() == "" {
		t.Error("no CPU name on Linux")
	}
	// Forcing a kernel set for a test does not make another machine.
	t.Setenv("HETC_HOST_KERNELS", "portable")
	if Fingerprint() != a || Kernels() != "portable" {
		t.Errorf("with portable kernels: fingerprint %q, kernels %q", Fingerprint(), Kernels())
	}
}
