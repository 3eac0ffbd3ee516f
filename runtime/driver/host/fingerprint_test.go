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
	// Another kernel set makes another kind of processor.
	t.Setenv("HETC_HOST_KERNELS", "portable")
	if Fingerprint() == a {
		t.Error("fingerprint does not depend on the kernel set")
	}
}
