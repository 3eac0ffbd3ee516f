package profiler

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/cpu"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/socs"
)

// machine is what the operating system tells about the CPU. On systems without /proc and /sys the
// fields that need them are empty.
type machine struct {
	model    string
	features []string
	cores    []int // usable, ascending
	// relative speed of a core, or its largest frequency; equal values mean equal cores
	capacity map[int]int
	caches   []socs.Cache
	// caches of one level have several sizes
	unlikeCaches bool
	memoryBytes  int64
	freqMHz      float64
	governor     string
}

// readMachine reads the files below root, which is "/" for this machine. cores are those that the
// driver offers.
func readMachine(root string, cores []int) machine {
	out := machine{cores: slices.Clone(cores), capacity: map[int]int{}, features: features()}
	slices.Sort(out.cores)
	out.readCPUInfo(filepath.Join(root, "proc/cpuinfo"))
	out.memoryBytes = memInfo(filepath.Join(root, "proc/meminfo"), "MemTotal:")
	sys := filepath.Join(root, "sys/devices/system/cpu")
	for _, core := range out.cores {
		dir := filepath.Join(sys, fmt.Sprintf("cpu%d", core))
		for _, name := range []string{"cpu_capacity", "cpufreq/cpuinfo_max_freq"} {
			if count, err := strconv.Atoi(word(filepath.Join(dir, name))); err == nil && count > 0 {
				out.capacity[core] = count
				break
			}
		}
	}
	if len(out.cores) > 0 {
		dir := filepath.Join(sys, fmt.Sprintf("cpu%d", out.cores[0]))
		out.governor = word(filepath.Join(dir, "cpufreq/scaling_governor"))
		if khz, err := strconv.ParseFloat(word(filepath.Join(dir, "cpufreq/scaling_cur_freq")), 64); err == nil &&
			khz > 0 {
			out.freqMHz = khz / 1e3
		}
	}
	out.readCaches(sys)
	return out
}

// word returns the trimmed content of a small file, "" when it cannot be read.
func word(path string) string {
	data, err := os.ReadFile(path)
	if err != nil || len(data) > 4096 {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// readCPUInfo takes model and frequency of the first core that states them; names differ between
// architectures.
func (m *machine) readCPUInfo(path string) {
	data, err := os.ReadFile(path)
	if err != nil {
		return
	}
	numbers := map[string]string{}
	for line := range strings.SplitSeq(string(data), "\n") {
		key, value, ok := strings.Cut(line, ":")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if !ok || numbers[key] != "" {
			continue // later cores repeat the first
		}
		numbers[key] = value
	}
	for _, key := range []string{"model name", "Model", "Hardware"} {
		if m.model == "" {
			m.model = numbers[key]
		}
	}
	if mhz, err := strconv.ParseFloat(numbers["cpu MHz"], 64); err == nil && mhz > 0 {
		m.freqMHz = mhz
	}
}

// availableBytes returns the memory that can be used without swapping, 0 when unknown.
func availableBytes() int64 { return memInfo("/proc/meminfo", "MemAvailable:") }

// memInfo returns an entry of the kernel's meminfo file in bytes, 0 when it cannot be read.
func memInfo(path, entry string) int64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.SplitSeq(string(data), "\n") {
		fields := strings.Fields(line)
		if len(fields) >= 2 && fields[0] == entry {
			if kib, err := strconv.ParseInt(fields[1], 10, 64); err == nil && kib > 0 && kib < 1<<40 {
				return kib << 10
			}
		}
	}
	return 0
}

// readCaches collects the data and unified caches of all cores, one entry per name and size.
func (m *machine) readCaches(sys string) {
	seen := map[string]bool{}
	for _, core := range m.cores {
		indexes, err := filepath.Glob(filepath.Join(sys, fmt.Sprintf("cpu%d", core), "cache/index*"))
		if err != nil {
			continue
		}
		sort.Strings(indexes)
		for _, dir := range indexes {
			level, err := strconv.Atoi(word(filepath.Join(dir, "level")))
			kind := word(filepath.Join(dir, "type"))
			size, ok := cacheSize(word(filepath.Join(dir, "size")))
			if err != nil || level < 1 || level > 9 || !ok || kind == "Instruction" {
				continue
			}
			name := fmt.Sprintf("l%d", level)
			if kind == "Data" {
				name += "d"
			}
			key := fmt.Sprint(name, size)
			if seen[key] {
				continue
			}
			seen[key] = true
			// A machine with unlike cores has caches of one name and several sizes.
			if slices.ContainsFunc(m.caches, func(known socs.Cache) bool { return known.Name == name }) {
				name, m.unlikeCaches = fmt.Sprintf("%s-%d", name, core), true
			}
			m.caches = append(m.caches, socs.Cache{Name: name, Level: level, Bytes: size,
				Cores: coreList(word(filepath.Join(dir, "shared_cpu_list")))})
		}
	}
}

// alike reports whether two cores or more are equal, by what the operating system says: they have one capacity or
// largest frequency. Where it does not say, as on virtual machines, the caches of one level have one size.
func (m *machine) alike(cores []int) bool {
	if len(cores) < 2 {
		return false
	}
	capacity := m.capacity[cores[0]]
	if slices.ContainsFunc(cores, func(core int) bool { return m.capacity[core] != capacity }) {
		return false
	}
	return capacity > 0 || len(m.caches) > 0 && !m.unlikeCaches
}

// cacheSize reads a size as the kernel writes it, such as 32K.
func cacheSize(text string) (int64, bool) {
	scale := int64(1)
	switch {
	case strings.HasSuffix(text, "K"):
		scale, text = 1<<10, strings.TrimSuffix(text, "K")
	case strings.HasSuffix(text, "M"):
		scale, text = 1<<20, strings.TrimSuffix(text, "M")
	}
	size, err := strconv.ParseInt(text, 10, 32)
	return size * scale, err == nil && size > 0
}

// coreList reads "0-3,8".
func coreList(text string) []int {
	var out []int
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		low, err1 := strconv.Atoi(first)
		high, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || low < 0 || high < low || high-low > 4096 || len(out) > 4096 {
			return nil
		}
		for core := low; core <= high; core++ {
			out = append(out, core)
		}
	}
	return out
}

// features lists the instruction sets that kernels care about, ascending.
func features() []string {
	var out []string
	for name, have := range map[string]bool{
		"avx": cpu.X86.HasAVX, "avx2": cpu.X86.HasAVX2, "fma": cpu.X86.HasFMA, "avxvnni": cpu.X86.HasAVXVNNI,
		"avx512f": cpu.X86.HasAVX512F, "avx512bw": cpu.X86.HasAVX512BW, "avx512vl": cpu.X86.HasAVX512VL,
		"avx512vnni": cpu.X86.HasAVX512VNNI, "avx512bf16": cpu.X86.HasAVX512BF16, "amxint8": cpu.X86.HasAMXInt8,
		"amxbf16": cpu.X86.HasAMXBF16,
		"asimd":   cpu.ARM64.HasASIMD, "asimddp": cpu.ARM64.HasASIMDDP, "asimdhp": cpu.ARM64.HasASIMDHP,
		"i8mm": cpu.ARM64.HasI8MM, "sve": cpu.ARM64.HasSVE, "sve2": cpu.ARM64.HasSVE2,
	} {
		if have {
			out = append(out, name)
		}
	}
	sort.Strings(out)
	return out
}

// Header returns the first line of a record on a SoC. For a SoC of real processors, fingerprint is
// that of this machine and must be the SoC's own. kernels is the host driver's kernel set.
func Header(soc *socs.SoC, fingerprint, kernels, version string, seed uint64) (record.Header, error) {
	digest, err := soc.Digest()
	if err != nil {
		return record.Header{}, err
	}
	out := record.Header{
		Schema: record.Schema, SoC: soc.Name, SoCDigest: digest, Hetc: version, Seed: seed,
		Environment: record.Environment{OS: runtime.GOOS, Arch: runtime.GOARCH},
	}
	if soc.Simulated() {
		out.Simulated = true
		out.Environment.OS, out.Environment.Arch = soc.OS, soc.Arch
		return out, nil
	}
	var cores []int
	for _, proc := range soc.Processors {
		cores = append(cores, proc.Cores...)
	}
	slices.Sort(cores)
	out.Fingerprint = fingerprint
	if soc.Fingerprint != out.Fingerprint {
		return record.Header{}, diag.New(diag.ClassInput,
			"profile SoC %q: it was probed on another machine, fingerprint %q, this one has %q", soc.Name,
			soc.Fingerprint, out.Fingerprint).
			WithHint("describe this machine: hetc probe -o soc.yaml")
	}
	out.Environment = ThisMachine(slices.Compact(cores), kernels)
	return out, nil
}

// ThisMachine tells what the times on the given cores depend on besides the SoC. kernels is the
// host driver's kernel set.
func ThisMachine(cores []int, kernels string) record.Environment {
	m := readMachine("/", cores)
	return record.Environment{OS: runtime.GOOS, Arch: runtime.GOARCH, CPU: m.model, Features: m.features,
		FrequencyMHz: m.freqMHz, Governor: m.governor, Kernels: kernels}
}
