package machine

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// hierarchy is a version of Linux's control groups: where its groups are, and what their files are called.
type hierarchy struct {
	controller  string // as /proc/self/cgroup calls it
	groups      string // a folder
	limit, used string // files with a number of bytes
	stat        string // what fields of memory.stat that count the groups below a group begin with
}

var hierarchies = []hierarchy{
	{"", "sys/fs/cgroup", "memory.max", "memory.current", ""}, // version 2
	{"memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"},
}

// containerMemory returns what is left of the limits of the process's control groups in bytes, 0 where there are none.
// The group of a service has a limit, or one of the groups around it has. In a container the root has: what
// /proc/self/cgroup says may be a path outside, of which nothing is there. root is where the file systems are mounted.
func containerMemory(root string) (left int64) {
	text, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	for i := range hierarchies {
		h := &hierarchies[i]
		for group := h.groupIn(string(text)); ; group = path.Dir(group) {
			if here := h.left(filepath.Join(root, h.groups, group)); here > 0 && (left == 0 || here < left) {
				left = here
			}
			if group == "/" {
				break
			}
		}
	}
	return left
}

// groupIn returns the group that /proc/self/cgroup names, "/" where it names none.
func (h *hierarchy) groupIn(text string) string {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3) // number, controllers, path
		if len(fields) == 3 && slices.Contains(strings.Split(fields[1], ","), h.controller) {
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
