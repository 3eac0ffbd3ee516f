package machine

import (
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// hierarchy is a version of Linux's control groups: where its groups are, and what their files of memory are called.
type hierarchy struct {
	controller  string // as /proc/self/cgroup calls it
	groups      string // a folder
	limit, used string // files with a number of bytes
	stat        string // what fields of memory.stat that count the groups below a group begin with
}

var hierarchies = []hierarchy{
	{"", unified, "memory.max", "memory.current", ""}, // version 2
	{"memory", unified + "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"},
}

// unified is where the groups of version 2 are, and below it those of version 1.
const unified = "sys/fs/cgroup"

// containerMemory returns what is left of the limits of the process's control groups in bytes, 0 where there are none.
// root is where the file systems are mounted.
func containerMemory(root string) (left int64) {
	for i := range hierarchies {
		h := &hierarchies[i]
		for _, folder := range groupsAround(root, h.groups, h.controller) {
			if here := h.left(folder); here > 0 && (left == 0 || here < left) {
				left = here
			}
		}
	}
	return left
}

// groupsAround returns the folders of the process's control group and of those around it, up to the root. The group of a
// service has a limit, or one around it has. In a container the root has: what /proc/self/cgroup says may be a path
// outside, of which nothing is there.
func groupsAround(root, groups, controller string) (folders []string) {
	text, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	for group := groupIn(string(text), controller); ; group = path.Dir(group) {
		folders = append(folders, filepath.Join(root, groups, group))
		if group == "/" {
			return folders
		}
	}
}

// groupIn returns the group of a controller that /proc/self/cgroup names, "/" where it names none.
func groupIn(text, controller string) string {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3) // number, controllers, path
		if len(fields) == 3 && slices.Contains(strings.Split(fields[1], ","), controller) {
			return path.Clean("/" + fields[2])
		}
	}
	return "/"
}

// left returns what is left of a group's limit in bytes, 0 where it has none. What the group uses includes files that
// were read. The system drops those before it refuses memory, so they count as left.
func (h *hierarchy) left(folder string) int64 {
	const unlimited = 1 << 50
	limit := number(filepath.Join(folder, h.limit))
	if limit <= 0 || limit >= unlimited {
		return 0
	}
	used := number(filepath.Join(folder, h.used))
	stat, _ := os.ReadFile(filepath.Join(folder, "memory.stat"))
	for _, files := range []string{"inactive_file", "active_file"} {
		used -= statField(string(stat), h.stat+files)
	}
	return max(1, limit-max(0, used))
}

// statField returns a field of memory.stat, 0 where it is not there.
func statField(text, name string) int64 {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == name {
			if bytes, err := strconv.ParseInt(f[1], 10, 64); err == nil && bytes > 0 {
				return bytes
			}
		}
	}
	return 0
}

// CPUQuota returns the processor time that control groups allow this process, in cores: 1.5 is one and a half of their
// time. It is infinite where there is no limit. A process that has used it up stands still for tens of milliseconds.
func CPUQuota() float64 { return cpuQuota("/") }

// cpuQuota is CPUQuota where the file systems are mounted at root.
func cpuQuota(root string) float64 {
	cores := math.Inf(1)
	for _, folder := range groupsAround(root, unified, "") {
		text, _ := os.ReadFile(filepath.Join(folder, "cpu.max")) // "max 100000", "150000 100000"
		quota, period, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
		cores = min(cores, share(quota, period))
	}
	for _, folder := range groupsAround(root, unified+"/cpu", "cpu") {
		quota, _ := os.ReadFile(filepath.Join(folder, "cpu.cfs_quota_us")) // -1: no limit
		period, _ := os.ReadFile(filepath.Join(folder, "cpu.cfs_period_us"))
		cores = min(cores, share(strings.TrimSpace(string(quota)), strings.TrimSpace(string(period))))
	}
	return cores
}

// share returns how many cores' time a quota is in each period, both in microseconds; infinite where there is none.
func share(quota, period string) float64 {
	us, err := strconv.ParseInt(quota, 10, 64)
	of, err2 := strconv.ParseInt(period, 10, 64)
	if err != nil || err2 != nil || us <= 0 || of <= 0 {
		return math.Inf(1)
	}
	return float64(us) / float64(of)
}
