package host

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// Fingerprint identifies the kind of CPU a plan was made for: architecture, model name, best kernel set
// and the number of cores this process may use. Machines of one kind share it; it survives reboots
// and holds nothing that identifies one machine.
func Fingerprint() string {
	id := fmt.Sprintf("%s\x00%s\x00%s\x00%d", runtime.GOARCH, CPUModel(), kernel.Best().Name, len(usableCores()))
	sum := sha256.Sum256([]byte(id))
	return "cpu-" + hex.EncodeToString(sum[:8])
}

// CPUModel is the name the CPU gives itself, "" where the system does not tell.
func CPUModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if key, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
