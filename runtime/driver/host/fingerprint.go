package host

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/klauspost/cpuid/v2"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// Fingerprint identifies the kind of CPU a plan is made for: architecture, what the CPU calls itself,
// the best kernel set, and the cores this process may use. Machines of one kind share it; it
// survives reboots and holds nothing that identifies one machine.
func Fingerprint() string {
	id := fmt.Sprintf("%s\x00%s\x00%s\x00%v", runtime.GOARCH, cpuName(), kernel.Best().Name, affinity.Cores())
	sum := sha256.Sum256([]byte(id))
	return "cpu-" + hex.EncodeToString(sum[:8])
}

// Kernels names the kernel set that processors opened without the option get, "" when
// the environment variable names one that this CPU lacks.
func Kernels() string {
	set, err := kernel.ByName("")
	if err != nil {
		return ""
	}
	return set.Name
}

// CheckKernels returns an error if this process cannot use the kernel set of a name, such as one from a command line.
func CheckKernels(name string) error {
	_, err := kernel.ByName(name)
	return err
}

// UntimedKernels names the kernel sets that this CPU can execute and that nobody has timed on one that can. The driver
// uses them only where a processor's option names them.
func UntimedKernels() []string { return kernel.Untimed() }

// RefusedKernels says why this process cannot use kernels whose instructions its CPU has, "" where there are none such.
// The fingerprint is then not the one that other processes on the same CPU have.
func RefusedKernels() string { return kernel.Refused() }

// cpuName is vendor, family, model, name and stepping: on x86 from the CPU itself, elsewhere from
// the system, "" where neither tells. Both have one form, so that a machine keeps its fingerprint
// in an image without /proc.
func cpuName() string {
	if cpu := &cpuid.CPU; runtime.GOARCH == "amd64" && cpu.VendorString != "" {
		return fmt.Sprintf("%s %d %d %s %d", cpu.VendorString, cpu.Family, cpu.Model,
			strings.TrimSpace(cpu.BrandName), cpu.Stepping)
	}
	return systemCPUName()
}

// systemCPUName is cpuName by the first core of /proc/cpuinfo.
func systemCPUName() string {
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer file.Close()
	var name []string
	for scanner := bufio.NewScanner(file); scanner.Scan() && scanner.Text() != ""; {
		key, value, _ := strings.Cut(scanner.Text(), ":")
		switch strings.TrimSpace(key) {
		case "vendor_id", "cpu family", "model", "model name", "stepping", "CPU implementer", "CPU part", "CPU variant":
			name = append(name, strings.TrimSpace(value))
		}
	}
	return strings.Join(name, " ")
}
