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
	model       string
	features    []string
	cores       []int // usable, ascending
	capacity    map[int]int
	caches      []socs.Cache
	memoryBytes int64
	freqMHz     float64
	governor    string
}

// readMachine reads below root, "/" for this machine. The cores are those the driver offers.
func readMachine(root string, cores []int) machine {
	m := machine{cores: slices.Clone(cores), capacity: map[int]int{}, features: features()}
	slices.Sort(m.cores)
	m.readCPUInfo(filepath.Join(root, "proc/cpuinfo"))
	m.readMemory(filepath.Join(root, "proc/meminfo"))
	sys := filepath.Join(root, "sys/devices/system/cpu")
	for _, c := range m.cores {
		dir := filepath.Join(sys, fmt.Sprintf("cpu%d", c))
		for _, name := range []string{"cpu_capacity", "cpufreq/cpuinfo_max_freq"} {
			if n, err := strconv.Atoi(word(filepath.Join(dir, name))); err == nil && n > 0 {
				m.capacity[c] = n
				break
			}
		}
	}
	if len(m.cores) > 0 {
		dir := filepath.Join(sys, fmt.Sprintf("cpu%d", m.cores[0]))
		m.governor = word(filepath.Join(dir, "cpufreq/scaling_governor"))
		if khz, err := strconv.ParseFloat(word(filepath.Join(dir, "cpufreq/scaling_cur_freq")), 64); err == nil && khz > 0 {
			m.freqMHz = khz / 1e3
		}
	}
	m.readCaches(sys)
	return m
}

// word is the trimmed content of a small file, "" when it cannot be read.
func word(path string) string {
	b, err := os.ReadFile(path)
	if err != nil || len(b) > 4096 {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func (m *machine) readCPUInfo(path string) {
	b, err := os.ReadFile(path)
	if err != nil {
		return
	}
	numbers := map[string]string{}
	for _, line := range strings.Split(string(b), "\n") {
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

func (m *machine) readMemory(path string) {
	b, err := os.ReadFile(path)
	if err != nil {
		return
	}
	for _, line := range strings.Split(string(b), "\n") {
		f := strings.Fields(line)
		if len(f) >= 2 && f[0] == "MemTotal:" {
			if kib, err := strconv.ParseInt(f[1], 10, 64); err == nil && kib > 0 && kib < 1<<40 {
				m.memoryBytes = kib << 10
			}
		}
	}
}

// availableBytes is the memory that can be used without swapping, 0 when unknown.
func availableBytes() int64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for _, line := range strings.Split(string(b), "\n") {
		f := strings.Fields(line)
		if len(f) >= 2 && f[0] == "MemAvailable:" {
			if kib, err := strconv.ParseInt(f[1], 10, 64); err == nil && kib > 0 && kib < 1<<40 {
				return kib << 10
			}
		}
	}
	return 0
}

// readCaches collects data and unified caches of all cores, one entry per name and size.
func (m *machine) readCaches(sys string) {
	seen := map[string]bool{}
	for _, c := range m.cores {
		indexes, err := filepath.Glob(filepath.Join(sys, fmt.Sprintf("cpu%d", c), "cache/index*"))
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
			if slices.ContainsFunc(m.caches, func(x socs.Cache) bool { return x.Name == name }) {
				name = fmt.Sprintf("%s-%d", name, c)
			}
			m.caches = append(m.caches, socs.Cache{Name: name, Level: level, Bytes: size, Cores: coreList(word(filepath.Join(dir, "shared_cpu_list")))})
		}
	}
}

func cacheSize(s string) (int64, bool) {
	scale := int64(1)
	switch {
	case strings.HasSuffix(s, "K"):
		scale, s = 1<<10, strings.TrimSuffix(s, "K")
	case strings.HasSuffix(s, "M"):
		scale, s = 1<<20, strings.TrimSuffix(s, "M")
	}
	n, err := strconv.ParseInt(s, 10, 32)
	return n * scale, err == nil && n > 0
}

// coreList reads "0-3,8".
func coreList(s string) []int {
	var out []int
	for _, part := range strings.Split(s, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, err1 := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || a < 0 || b < a || b-a > 4096 || len(out) > 4096 {
			return nil
		}
		for c := a; c <= b; c++ {
			out = append(out, c)
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

// Header returns the first line of a record on s. For a SoC of real processors this machine, whose
// fingerprint is given, must be of the kind s was probed on. kernels is the host driver's kernel set.
func Header(s *socs.SoC, fingerprint, kernels, version string, seed uint64) (record.Header, error) {
	digest, err := s.Digest()
	if err != nil {
		return record.Header{}, err
	}
	h := record.Header{
		Schema: record.Schema, SoC: s.Name, SoCDigest: digest, Hetc: version, Seed: seed,
		Environment: record.Environment{OS: runtime.GOOS, Arch: runtime.GOARCH},
	}
	if s.Simulated() {
		h.Simulated = true
		h.Environment.OS, h.Environment.Arch = s.OS, s.Arch
		return h, nil
	}
	var cores []int
	for _, p := range s.Processors {
		cores = append(cores, p.Cores...)
	}
	slices.Sort(cores)
	h.Fingerprint = fingerprint
	if s.Fingerprint != h.Fingerprint {
		return record.Header{}, diag.New(diag.ClassInput, "profile SoC %q: it was probed on another machine, fingerprint %q, this one has %q", s.Name, s.Fingerprint, h.Fingerprint).
			WithHint("describe this machine: hetc probe -o soc.yaml")
	}
	h.Environment = ThisMachine(slices.Compact(cores), kernels)
	return h, nil
}

// ThisMachine tells what times on the given cores depend on besides the SoC. kernels is the host driver's
// kernel set.
func ThisMachine(cores []int, kernels string) record.Environment {
	m := readMachine("/", cores)
	return record.Environment{OS: runtime.GOOS, Arch: runtime.GOARCH, CPU: m.model, Features: m.features,
		FrequencyMHz: m.freqMHz, Governor: m.governor, Kernels: kernels}
}
