package profiler

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/socs"
)

// probeHost probes this machine with little memory and short windows.
func probeHost(t *testing.T) *socs.SoC {
	t.Helper()
	soc, err := Probe(context.Background(), host.New(), ProbeOptions{Fingerprint: host.Fingerprint(), memory: 16 << 20,
		window: 2 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return soc
}

func hostCores(t *testing.T) (cores []int) {
	t.Helper()
	devices, err := host.New().Devices(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		if len(d.Cores) == 1 {
			cores = append(cores, d.Cores[0])
		}
	}
	return cores
}

// The host is described by what was measured, and a description that is written is the same when it is read.
func TestProbeDescribesTheHost(t *testing.T) {
	require.Slow(t)
	soc := probeHost(t)
	if err := soc.Validate(); err != nil {
		t.Fatal(err)
	}
	cores := hostCores(t)
	if len(soc.Processors) < min(len(cores)+1, 2) && len(cores) > 1 {
		t.Errorf("%d processors for %d cores", len(soc.Processors), len(cores))
	}
	for i := range soc.Processors {
		checkProbed(t, soc, &soc.Processors[i])
	}
	for _, pair := range concurrentPairs(soc) {
		link, hasLink := soc.Link(pair[0], pair[1])
		bandwidth, known := soc.JointGBps(pair[0], pair[1])
		if !hasLink || link.HandoverUS <= 0 {
			t.Errorf("%v: link %+v", pair, link)
		}
		if !known || bandwidth <= 0 {
			t.Errorf("%v: joint %g", pair, bandwidth)
		}
	}

	// Written, read again, and used for a record.
	path := filepath.Join(t.TempDir(), "soc.yaml")
	if err := socs.Write(path, soc); err != nil {
		t.Fatal(err)
	}
	again, err := socs.Open(path)
	if err != nil || !reflect.DeepEqual(again, soc) {
		t.Errorf("read back %+v, %v\nwant %+v", again, err, soc)
	}
	header, err := Header(soc, soc.Fingerprint, "set", "1.0", 3)
	if err != nil || header.Fingerprint != soc.Fingerprint || header.SoCDigest == "" {
		t.Errorf("header %+v, %v", header, err)
	}
	if header.Environment.Kernels != "set" || header.Simulated {
		t.Errorf("header %+v, want the kernels that were named, and no simulation", header)
	}
	_, err = Header(soc, "another", "", "1.0", 3)
	if diag.ClassOf(err) != diag.ClassInput || len(diag.HintsOf(err)) == 0 {
		t.Errorf("header on another machine: %v", err)
	}
}

// checkProbed checks what was found of one processor of the host.
func checkProbed(t *testing.T, soc *socs.SoC, proc *socs.Processor) {
	t.Helper()
	source := func(key string) string { return soc.Sources["processors."+proc.Name+"."+key] }
	if proc.BandwidthGBps <= 0 || source("bandwidth_gbps") == "" {
		t.Errorf("processor %+v: bandwidth of source %q", proc, source("bandwidth_gbps"))
	}
	if proc.Tile.N != 32 || len(proc.Schemes) == 0 || proc.Layouts["q8c"] == "" {
		t.Errorf("processor %+v", proc)
	}
	hasPeaks := proc.PeakGops["i8"] > 0 && proc.PeakGops["f32"] > 0
	if !hasPeaks || !strings.HasPrefix(source("peak_gops"), "measured: ") {
		t.Errorf("processor %s: peaks %v of source %q", proc.Name, proc.PeakGops, source("peak_gops"))
	}
}

// A probe ends when it is interrupted.
func TestProbeIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Probe(ctx, host.New(), ProbeOptions{memory: 16 << 20}); err == nil {
		t.Error("no error")
	}
}

// tree writes files below a new root.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// phone is what the operating system says about a phone with cores of three kinds.
func phone() map[string]string {
	files := map[string]string{
		"proc/cpuinfo": "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd05\n\nprocessor\t: 7\nCPU part\t: " +
			"0xd44\n\nHardware\t: Some SoC",
		"proc/meminfo": "MemTotal:       11861508 kB\nMemFree:   5 kB",
	}
	for c := range 8 {
		dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/", c)
		capacity, l2 := 325, "128K"
		switch {
		case c == 7:
			capacity, l2 = 1024, "1024K"
		case c >= 4:
			capacity, l2 = 800, "512K"
		}
		files[dir+"cpu_capacity"] = fmt.Sprint(capacity)
		for i, x := range []string{"1 Data 64K", "1 Instruction 64K", "2 Unified " + l2, "3 Unified 8M"} {
			f := strings.Fields(x)
			idx := fmt.Sprintf("%scache/index%d/", dir, i)
			files[idx+"level"], files[idx+"type"], files[idx+"size"] = f[0], f[1], f[2]
			files[idx+"shared_cpu_list"] = fmt.Sprint(c)
			if i == 3 {
				files[idx+"shared_cpu_list"] = "0-7"
			}
		}
	}
	files["sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq"] = "2016000"
	files["sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"] = "schedutil"
	return files
}

func TestReadMachine(t *testing.T) {
	cores := []int{7, 6, 5, 4, 3, 2, 1, 0}
	files := phone()
	machine := readMachine(tree(t, files), cores)
	if machine.model != "Some SoC" || machine.memoryBytes != 11861508<<10 || machine.freqMHz != 2016 ||
		machine.governor != "schedutil" {
		t.Errorf("got %+v", machine)
	}
	want := []socs.Cache{
		{Name: "l1d", Level: 1, Bytes: 64 << 10, Cores: []int{0}},
		{Name: "l2", Level: 2, Bytes: 128 << 10, Cores: []int{0}},
		{Name: "l3", Level: 3, Bytes: 8 << 20, Cores: []int{0, 1, 2, 3, 4, 5, 6, 7}},
		{Name: "l2-4", Level: 2, Bytes: 512 << 10, Cores: []int{4}},
		{Name: "l2-7", Level: 2, Bytes: 1 << 20, Cores: []int{7}},
	}
	if !reflect.DeepEqual(machine.caches, want) {
		t.Errorf("caches %+v\nwant %+v", machine.caches, want)
	}
	// One processor for the first core, one per cluster, one for all.
	if got, want := fmt.Sprint(selections(&machine)), "[[0] [0 1 2 3] [4 5 6] [7] [0 1 2 3 4 5 6 7]]"; got != want {
		t.Errorf("selections %s, want %s", got, want)
	}
}

// Cores are alike if they have one capacity, or if nothing is said of it and their caches are equal.
func TestAlikeCores(t *testing.T) {
	files := phone()
	silent := map[string]string{}
	for name, text := range files {
		if !strings.HasSuffix(name, "cpu_capacity") {
			silent[name] = text
		}
	}
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	told, hinted := readMachine(tree(t, files), all), readMachine(tree(t, silent), all)
	little, nothing := readMachine(tree(t, silent), all[:4]), readMachine(t.TempDir(), all)
	for _, c := range []struct {
		name    string
		machine *machine
		cores   []int
		want    bool
	}{
		{"a cluster", &told, []int{4, 5, 6}, true}, {"two clusters", &told, []int{3, 4}, false},
		{"one core", &told, []int{4}, false},
		{"equal caches", &little, []int{0, 1}, true}, {"unlike caches", &hinted, []int{0, 1}, false},
		{"a system that says nothing", &nothing, []int{0, 1}, false},
	} {
		if got := c.machine.alike(c.cores); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

// TestReadMachineWithoutFiles checks systems that tell nothing, and files full of nonsense.
func TestReadMachineWithoutFiles(t *testing.T) {
	machine := readMachine(t.TempDir(), []int{0, 1})
	if len(machine.caches) != 0 || machine.memoryBytes != 0 {
		t.Errorf("got %+v", machine)
	}
	files := phone()
	for name := range files {
		files[name] = "-1 :: 99999999999999999999999 K ,-,\x00"
	}
	machine = readMachine(tree(t, files), []int{0, 1, 2, 3, 4, 5, 6, 7})
	if len(machine.caches) != 0 || machine.memoryBytes != 0 {
		t.Errorf("got %+v", machine)
	}
}

func TestSelections(t *testing.T) {
	for n, want := range map[int]string{
		1: "[[0]]", 2: "[[0] [1] [0 1]]", 4: "[[0] [1] [2] [3] [0 1 2 3]]",
		6: "[[0] [0 1 2] [3 4 5] [0 1 2 3 4 5]]",
	} {
		m := machine{capacity: map[int]int{}}
		for c := range n {
			m.cores = append(m.cores, c)
		}
		if got := fmt.Sprint(selections(&m)); got != want {
			t.Errorf("%d cores: %s, want %s", n, got, want)
		}
	}
}

func TestCoreList(t *testing.T) {
	for s, want := range map[string][]int{
		"0": {0}, "0-3": {0, 1, 2, 3}, "0-1,4": {0, 1, 4}, "": nil, "a": nil, "3-1": nil, "-1": nil, "0-99999999": nil,
	} {
		if got := coreList(s); !slices.Equal(got, want) {
			t.Errorf("coreList(%q) = %v, want %v", s, got, want)
		}
	}
	for s, want := range map[string]int64{
		"48K": 48 << 10, "8M": 8 << 20, "512": 512, "": 0, "K": 0, "-1K": 0, "99999999999K": 0,
	} {
		if got, ok := cacheSize(s); ok != (want > 0) || ok && got != want {
			t.Errorf("cacheSize(%q) = %d, %v, want %d", s, got, ok, want)
		}
	}
}

func FuzzCoreList(f *testing.F) {
	for _, s := range []string{"0-3,8", "", "1", "4096-8192", "-,-"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, c := range coreList(s) {
			if c < 0 {
				t.Errorf("%q has core %d", s, c)
			}
		}
		if n, ok := cacheSize(s); ok && n <= 0 {
			t.Errorf("%q is %d bytes", s, n)
		}
	})
}

func TestReadMemorySumsEveryLine(t *testing.T) {
	m, err := allocTouched(readChunk)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	data := m.Bytes()
	var want uint64
	for i := 0; i < len(data); i += 64 {
		want += binary.NativeEndian.Uint64(data[i:])
	}
	if got := readMemory(data); got != want {
		t.Errorf("sum %x, want %x: a line was missed", got, want)
	}
}

func TestHandover(t *testing.T) {
	cores := hostCores(t)
	a, b := cores[0], cores[len(cores)-1]
	first, xs, err := handover(context.Background(), a, b, 3, 50)
	if err != nil || len(xs) != 3 || first <= 0 || slices.Min(xs) <= 0 {
		t.Errorf("first %g, samples %v, %v", first, xs, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, _, err := handover(ctx, a, b, 1, 1<<30); err == nil {
		t.Error("an interrupt does not end the game")
	}
}

// Cores that are measured together have threads of their own, whatever GOMAXPROCS says, which stays as it was.
func TestCoresMeasuredTogetherHaveThreads(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	check := func(what string, during, want int) {
		t.Helper()
		if after := runtime.GOMAXPROCS(0); during < want || after != 1 {
			t.Errorf("%s: GOMAXPROCS of %d during it and %d after it, want at least %d, and 1", what, during, after, want)
		}
	}

	during := 0
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Probe(ctx, host.New(), ProbeOptions{memory: 16 << 20, Note: func(string, ...any) {
		during = runtime.GOMAXPROCS(0)
		cancel() // more is not needed
	}})
	if err == nil {
		t.Error("the probe was not interrupted")
	}
	check("probe", during, len(hostCores(t))+2)

	during = 0
	driver, soc := &fake{cost: work}, fakeSoC()
	options := driver.options()
	options.Progress = func(Progress) { during = runtime.GOMAXPROCS(0) }
	writer, _ := newRecord(t, soc)
	if _, err := Run(t.Context(), soc, []Request{ask("a", matmul(5), 0)}, writer, options); err != nil {
		t.Fatal(err)
	}
	check("profile", during, runtime.NumCPU()+2)
}
