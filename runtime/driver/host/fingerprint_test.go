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
	if system := systemCPUName(); runtime.GOOS == "linux" && (cpuName() == "" || cpuName() != system) {
		t.Errorf("the CPU is %q, and %q to the system", cpuName(), system)
	}
	// Forcing a kernel set for a test does not make another machine.
	t.Setenv("HETC_HOST_KERNELS", "portable")
	if Fingerprint() != a || Kernels() != "portable" {
		t.Errorf("with portable kernels: fingerprint %q, kernels %q", Fingerprint(), Kernels())
	}
}
