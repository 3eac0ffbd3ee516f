package host

import (
	"regexp"
	"runtime"
	"testing"
)

// A fingerprint has a fixed form, stays the same, and names the machine whatever kernels are chosen.
func TestFingerprint(t *testing.T) {
	first := Fingerprint()
	if !regexp.MustCompile(`^cpu-[0-9a-f]{16}$`).MatchString(first) {
		t.Errorf("fingerprint %q, want cpu- and 16 hexadecimal digits", first)
	}
	if again := Fingerprint(); again != first {
		t.Errorf("fingerprint %q, and then %q", first, again)
	}

	t.Setenv("HETC_HOST_KERNELS", "portable")
	if got := Fingerprint(); got != first {
		t.Errorf("with portable kernels the fingerprint is %q, want %q", got, first)
	}
	if got := Kernels(); got != "portable" {
		t.Errorf("kernels %q, want portable", got)
	}
}

// The CPU's own name is the one that Linux reports.
func TestCPUName(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the name is compared with /proc")
	}
	name, system := cpuName(), systemCPUName()
	if name == "" || name != system {
		t.Errorf("the CPU is %q, and %q to the system", name, system)
	}
}
