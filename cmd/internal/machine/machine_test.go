package machine

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// On Linux everything is known, and makes sense.
func TestThisMachine(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("other systems may not say")
	}
	total, free := TotalMemory(), FreeMemory()
	if free <= 0 || total < free {
		t.Errorf("%d bytes of %d are free", free, total)
	}
	if cores := Cores(); cores < runtime.NumCPU() {
		t.Errorf("%d cores, and this process may use %d", cores, runtime.NumCPU())
	}
	if load, ok := Load(); !ok || load < 0 {
		t.Errorf("load %v, %v", load, ok)
	}
	if busy, stolen, ok := Busy(50 * time.Millisecond); ok && (busy < 0 || busy > 1 || stolen < 0 || stolen > 1) {
		t.Errorf("busy %v, stolen %v", busy, stolen)
	}
	before, ok := Used()
	for began := time.Now(); time.Since(began) < 100*time.Millisecond; { // this is use
	}
	if after, known := Used(); ok && (!known || after-before < 20*time.Millisecond) {
		t.Errorf("busy for 100 ms: used %v, %v", after-before, known)
	}
	if n, ok := DiskSpace(t.TempDir()); !ok || n < 0 {
		t.Errorf("disk space %d, %v", n, ok)
	}
	if _, ok := DiskSpace(filepath.Join(t.TempDir(), "gone")); ok {
		t.Error("a directory that does not exist has disk space")
	}
	if AddressSpace() < 1<<20 || FileSize() < 1 || OpenFiles() < 3 {
		t.Errorf("limits %d, %d, %d", AddressSpace(), FileSize(), OpenFiles())
	}
}

func TestFields(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	info := write("meminfo", "MemTotal:       24 kB\nMemAvailable: 7 kB\nBroken: x kB\nHuge: 99999999999999 kB\nCut:\n")
	for key, want := range map[string]int64{"MemTotal:": 24 << 10, "MemAvailable:": 7 << 10, "Broken:": 0, "Huge:": 0, "Cut:": 0, "None:": 0} {
		if got := MemoryField(info, key); got != want {
			t.Errorf("%s %d, want %d", key, got, want)
		}
	}
	for text, want := range map[string]int64{"12\n": 12, "max\n": 0, "": 0} {
		if got := number(write("n", text)); got != want {
			t.Errorf("number %q: %d, want %d", text, got, want)
		}
	}
	if got := coresIn("cpu  9 9 9\ncpu0 1 2 3\ncpu12 1 2 3\nintr 5\ncpu"); got != 2 {
		t.Errorf("%d cores, want 2", got)
	}
	if got := number(filepath.Join(dir, "gone")); got != 0 {
		t.Errorf("a missing file: %d", got)
	}
}

// What is left of a container's or a service's memory is that of the tightest group around the process. Files that were
// read can be dropped.
func TestContainerMemory(t *testing.T) {
	const v1, v2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"
	stat := func(prefix string, inactive, active int) string {
		return fmt.Sprintf("anon 5\n%sinactive_file %d\n%sactive_file %d\n", prefix, inactive, prefix, active)
	}
	for _, test := range []struct {
		name  string
		files map[string]string
		want  int64
	}{
		{"nothing is known", nil, 0},
		{"no limit", map[string]string{v2 + "/memory.max": "max\n", v1 + "/memory.limit_in_bytes": "9223372036854771712\n"}, 0},
		{"container, version 2", map[string]string{
			"proc/self/cgroup": "0::/\n", v2 + "/memory.max": "1000\n", v2 + "/memory.current": "300\n"}, 700},
		{"files that were read", map[string]string{
			"proc/self/cgroup": "0::/\n", v2 + "/memory.max": "1000\n", v2 + "/memory.current": "990\n",
			v2 + "/memory.stat": stat("", 600, 90)}, 700},
		{"more files than bytes in use", map[string]string{
			v2 + "/memory.max": "1000\n", v2 + "/memory.current": "990\n", v2 + "/memory.stat": stat("", 600, 500)}, 1000},
		{"nothing is left", map[string]string{v2 + "/memory.max": "1000\n", v2 + "/memory.current": "2000\n"}, 1},
		{"service, version 2", map[string]string{
			"proc/self/cgroup":              "0::/system.slice/app.service\n",
			v2 + "/system.slice/memory.max": "2000\n", v2 + "/system.slice/memory.current": "1500\n",
			v2 + "/system.slice/app.service/memory.max": "1000\n", v2 + "/system.slice/app.service/memory.current": "400\n"}, 500},
		{"service, version 1", map[string]string{
			"proc/self/cgroup":                "5:cpu:/other\n4:hugetlb,memory:/app\n0::/\n",
			v1 + "/memory.limit_in_bytes":     "9223372036854771712\n",
			v1 + "/app/memory.limit_in_bytes": "1000\n", v1 + "/app/memory.usage_in_bytes": "900\n",
			v1 + "/app/memory.stat":             "inactive_file 1\n" + stat("total_", 300, 100),
			v1 + "/other/memory.limit_in_bytes": "10\n"}, 500},
		{"container that knows its path outside", map[string]string{
			"proc/self/cgroup": "4:memory:/docker/1f\n", v1 + "/memory.limit_in_bytes": "1000\n",
			v1 + "/memory.usage_in_bytes": "400\n"}, 600},
		{"a path beyond the root", map[string]string{
			"proc/self/cgroup": "0::/../../app\nnonsense\n", v2 + "/memory.max": "1000\n", v2 + "/memory.current": "400\n"}, 600},
	} {
		if got := containerMemory(rootWith(t, test.files)); got != test.want {
			t.Errorf("%s: %d bytes are left, want %d", test.name, got, test.want)
		}
	}
}

// rootWith returns a folder that has these files.
func rootWith(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// The tightest quota counts, of either version of control groups.
func TestCPUQuota(t *testing.T) {
	const v1, v2 = "sys/fs/cgroup/cpu", "sys/fs/cgroup"
	for _, test := range []struct {
		files map[string]string
		want  float64
	}{
		{nil, math.Inf(1)},
		{map[string]string{v2 + "/cpu.max": "max 100000\n"}, math.Inf(1)},
		{map[string]string{v2 + "/cpu.max": "nonsense\n"}, math.Inf(1)},
		{map[string]string{v2 + "/cpu.max": "150000 100000\n"}, 1.5},
		{map[string]string{"proc/self/cgroup": "0::/a/b\n", v2 + "/a/cpu.max": "50000 100000\n",
			v2 + "/a/b/cpu.max": "200000 100000\n"}, 0.5},
		{map[string]string{v1 + "/cpu.cfs_quota_us": "-1\n", v1 + "/cpu.cfs_period_us": "100000\n"}, math.Inf(1)},
		{map[string]string{"proc/self/cgroup": "3:cpuacct,cpu:/pod\n", v1 + "/pod/cpu.cfs_quota_us": "20000\n",
			v1 + "/pod/cpu.cfs_period_us": "10000\n"}, 2},
	} {
		if got := cpuQuota(rootWith(t, test.files)); got != test.want {
			t.Errorf("%v: %v cores, want %v", test.files, got, test.want)
		}
	}
}
