// Package machine knows what this machine lends a process: memory, address space, file sizes, disk
// space, and how busy it is with others.
package machine

import (
	"math"
	"os"
	"strconv"
	"strings"
	"time"
)

// Unlimited is the value of a limit that does not exist.
const Unlimited = math.MaxInt64

// TotalMemory returns the machine's memory in bytes, 0 where the system does not say.
func TotalMemory() int64 { return meminfo("MemTotal:") }

// FreeMemory returns how many bytes this process can still use without swapping or being refused: what the
// system has available, what is left of the limits of its control groups (those of a container or a service), and what
// is left of the process's address space. It is 0 where the system does not say.
func FreeMemory() int64 {
	free := meminfo("MemAvailable:")
	if left := containerMemory("/"); left > 0 && (free == 0 || left < free) {
		free = left
	}
	if limit := AddressSpace(); limit != Unlimited {
		if left := max(1, limit-addressSpaceUsed()); free == 0 || left < free {
			free = left
		}
	}
	return free
}

// meminfo returns a line of /proc/meminfo in bytes, 0 where there is none.
func meminfo(key string) int64 { return MemoryField("/proc/meminfo", key) }

// MemoryField reads a line such as "MemTotal: 123 kB" of a file of the proc file system.
func MemoryField(path, key string) int64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == key {
			if kib, err := strconv.ParseInt(f[1], 10, 64); err == nil && 0 < kib && kib < 1<<40 {
				return kib << 10
			}
		}
	}
	return 0
}

// addressSpaceUsed returns what an address space limit counts.
func addressSpaceUsed() int64 { return MemoryField("/proc/self/status", "VmSize:") }

// PeakMemory returns the most memory the process has had resident so far, mapped files included, in bytes; 0 where the
// system does not say.
func PeakMemory() int64 { return MemoryField("/proc/self/status", "VmHWM:") }

// number reads a file that holds one whole number, 0 when it does not.
func number(path string) int64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	bytes, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0
	}
	return bytes
}

// Load returns the mean number of processes that wanted a core in the last minute; ok is false where the
// system does not say.
func Load() (load float64, ok bool) {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, false
	}
	first, _, _ := strings.Cut(string(text), " ")
	load, err = strconv.ParseFloat(first, 64)
	return load, err == nil
}

// Cores returns how many cores the machine has, whatever this process may use of them; 0 where the system does not say.
func Cores() int {
	text, _ := os.ReadFile("/proc/stat")
	return coresIn(string(text))
}

// coresIn counts the lines of single cores in /proc/stat.
func coresIn(text string) (count int) {
	for line := range strings.Lines(text) {
		name, _, _ := strings.Cut(line, " ")
		if number, ok := strings.CutPrefix(name, "cpu"); ok && number != "" {
			count++
		}
	}
	return count
}

// Busy returns the share of all cores' time, 0 to 1, that any process used while this one slept for the
// given time, and the share that the host of a virtual machine took away.
func Busy(during time.Duration) (busy, stolen float64, ok bool) {
	before, ok := cpuTimes()
	if !ok {
		return 0, 0, false
	}
	time.Sleep(during)
	after, ok := cpuTimes()
	if !ok || after.total <= before.total {
		return 0, 0, false
	}
	total := float64(after.total - before.total)
	return 1 - float64(after.idle-before.idle)/total, float64(after.stolen-before.stolen) / total, true
}

// Used returns the processor time that all processes together, and the host of a virtual machine, have used on all
// cores since the machine started; ok is false where the system does not say.
func Used() (used time.Duration, ok bool) {
	ticks, ok := cpuTimes()
	const tick = 10 * time.Millisecond // of every Linux that tells user space
	return time.Duration(ticks.total-ticks.idle) * tick, ok
}

// ticks are clock ticks of all cores since the machine started.
type ticks struct{ total, idle, stolen int64 }

// cpuTimes returns the ticks of all cores since the start of the system.
func cpuTimes() (ticks, bool) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return ticks{}, false
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line) // cpu user nice system idle iowait irq softirq steal guest guest_nice
	const steal = 8
	if len(fields) <= steal || fields[0] != "cpu" {
		return ticks{}, false
	}
	var sum ticks
	for i := 1; i <= steal; i++ { // guest times are part of user and nice
		count, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return ticks{}, false
		}
		sum.total += count
		switch i {
		case 4, 5:
			sum.idle += count
		case steal:
			sum.stolen = count
		}
	}
	return sum, true
}
