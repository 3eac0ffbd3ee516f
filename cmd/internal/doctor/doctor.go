// Package doctor knows whether this machine, this build and a model's directory are fit for hetc, and
// what to do where they are not.
package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/machine"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/child"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/socs"
)

// Status is the verdict of one check.
type Status string

// The verdicts, from best to worst.
const (
	OK      Status = "ok"
	Note    Status = "note"    // works, but not as well as it could
	Problem Status = "problem" // something will not work
)

// Finding is the result of one check.
type Finding struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	Found  string `json:"found"`
	Hint   string `json:"hint,omitempty"` // the way out, unless all is well

	class diag.Class // of a problem
}

// ok returns a finding without a problem.
func ok(check, format string, args ...any) Finding {
	return Finding{Check: check, Status: OK, Found: fmt.Sprintf(format, args...)}
}

// but lowers an ok finding to a note or a problem, with a hint.
func (f Finding) but(s Status, hint string, args ...any) Finding {
	f.Status, f.Hint = s, fmt.Sprintf(hint, args...)
	f.class = diag.ClassUnavailable
	return f
}

// failed turns an error into a finding, with the error's own hint if it has one.
func failed(check string, err error) Finding {
	finding := Finding{Check: check, Status: Problem, Found: err.Error(),
		Hint: "correct what it names, or fetch it again", class: diag.ClassOf(err)}
	if hints := diag.HintsOf(err); len(hints) > 0 {
		finding.Hint = hints[0]
	}
	return finding
}

// firstProblem returns the error that lists the checks with problems, of the class of the first one; nil
// without problems.
func firstProblem(list []Finding) error {
	var names []string
	var class diag.Class
	for _, finding := range list {
		if finding.Status == Problem {
			if len(names) == 0 {
				class = finding.class
			}
			names = append(names, finding.Check)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return diag.New(class, "%d of %d checks found a problem: %s", len(names), len(list), strings.Join(names, ", ")).
		WithHint("the way out stands beside each of them")
}

// Machine is what the checks of this machine and build depend on.
type Machine struct {
	Version  string
	Revision string // commit of this program, "" where it is not known
	Drivers  []driver.Driver
	Kernels  string // of the host driver, "" when none can be used
	Refused  string // why better kernels of the host driver, for which the CPU is fit, cannot be used; "": they can
	CacheDir string // of hetc build, "" when there is none
}

// Check runs every check that needs no model. It takes about half a second.
func (m Machine) Check(ctx context.Context) []Finding {
	cores := m.cores(ctx)
	out := []Finding{m.build(), m.cpu(cores), coresOf(cores, machine.CPUQuota()), memory(), pages()}
	out = append(out, m.drivers(ctx)...)
	out = append(out, catalogs()...)
	out = append(out, directory("current directory", "."), directory("temporary directory", os.TempDir()), m.cache())
	out = append(out, limits()...)
	return append(out, timer(), busy(len(cores)), governor(cores, m.Kernels), clock(time.Now()), signingKey())
}

// cores returns the cores that the first driver with CPU cores may use.
func (m Machine) cores(ctx context.Context) []int {
	var out []int
	for _, drv := range m.Drivers {
		devices, err := drv.Devices(ctx)
		if err != nil {
			continue
		}
		for _, device := range devices {
			out = append(out, device.Cores...)
		}
		// Drivers with cores all offer what the system permits this process: the first one will do.
		if len(out) > 0 {
			break
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// build describes this program; cgo is a note, since it makes the program depend on the system's C
// library.
func (m Machine) build() Finding {
	kind, cgo := "default build", ""
	if info, have := debug.ReadBuildInfo(); have {
		for _, setting := range info.Settings {
			switch {
			case setting.Key == "-tags" && strings.Contains(setting.Value, "hetc_static"):
				kind = "static build"
			case setting.Key == "CGO_ENABLED":
				cgo = setting.Value
			}
		}
	}
	revision := ""
	if m.Revision != "" {
		revision = ", revision " + m.Revision
	}
	finding := ok("build", "hetc %s, %s, %s %s/%s%s", m.Version, kind, runtime.Version(), runtime.GOOS, runtime.GOARCH,
		revision)
	if cgo == "1" {
		return finding.but(Note, "built with cgo, which hetc does not need: CGO_ENABLED=0 (make build sets it)")
	}
	return finding
}

// cpu checks the kernel set: without vector kernels hetc works, but several times slower.
func (m Machine) cpu(cores []int) Finding {
	env := profiler.ThisMachine(cores, m.Kernels)
	name := env.CPU
	if name == "" {
		name = runtime.GOARCH
	}
	finding := ok("cpu", "%s; kernels %s; features %s", name, m.Kernels, strings.Join(env.Features, " "))
	switch m.Kernels {
	case "":
		finding.Found = fmt.Sprintf("%s; HETC_HOST_KERNELS=%s names no kernel set that can be used here", name,
			os.Getenv("HETC_HOST_KERNELS"))
		return finding.but(Problem, "unset HETC_HOST_KERNELS")
	case "portable", "reference":
		hint := "this CPU has no vector kernels here: it works, several times slower"
		if os.Getenv("HETC_HOST_KERNELS") != "" {
			hint = "unset HETC_HOST_KERNELS for the fastest kernels"
		}
		return finding.but(Note, "%s", hint)
	}
	if m.Refused != "" {
		finding.Found += "; " + m.Refused
		return finding.but(Note, "products of many rows are several times faster with those kernels. They need Linux "+
			"5.16 or later, and a hypervisor and a sandbox (seccomp) that let the process ask for the state of tiles")
	}
	return finding
}

// coresOf counts usable cores: plans for several processors need two. quota is the processor time that this process may
// use, in cores.
func coresOf(cores []int, quota float64) Finding {
	finding := ok("cores", "%d usable of %d: %v", len(cores), max(len(cores), machine.Cores()), cores)
	switch {
	case len(cores) == 0:
		return finding.but(Problem, "no driver offers a core: allow this process one (taskset, the container's cpuset)")
	case len(cores) == 1:
		return finding.but(Note, "plans over several processors need a second core (taskset, the container's cpuset)")
	case quota < float64(len(cores)):
		finding.Found += fmt.Sprintf("; a control group allows the time of %.4g of them", quota)
		return finding.but(Note, "measurements and answers stand still where that is used up: raise the quota (docker "+
			"--cpus, a pod's CPU limit), or use fewer cores")
	}
	return finding
}

// memory checks how much memory is free for this process.
func memory() Finding {
	total, free := machine.TotalMemory(), machine.FreeMemory()
	if total == 0 {
		return ok("memory", "unknown on this system")
	}
	finding := ok("memory", "%v, %v free for this process", unit.Bytes(total), unit.Bytes(free))
	const little, least = 2 << 30, 256 << 20
	switch {
	case free < least:
		return finding.but(Problem, "end other programs, or raise the container's limit")
	case free < little:
		return finding.but(Note, "enough for small models only; hetc probe alone uses 1 GiB")
	}
	return finding
}

// pages tells the size of a page.
func pages() Finding { return ok("page size", "%v", unit.Bytes(os.Getpagesize())) }

// drivers has a finding for every driver. An unavailable one is a note, because plans for other
// processors work without it.
func (m Machine) drivers(ctx context.Context) []Finding {
	var out []Finding
	for _, drv := range m.Drivers {
		name := "driver " + drv.Name()
		devices, err := drv.Devices(ctx)
		if err != nil {
			finding := failed(name, err)
			finding.Status = Note // a plan for other processors does without it
			out = append(out, finding)
			continue
		}
		var what []string
		for _, device := range devices {
			what = append(what, device.Select)
		}
		with := ""
		var skipped []string
		if described, has := drv.(driver.Described); has {
			// A library that is there but does not answer is worse than none: it is a problem, not a note.
			library, err := described.Library(ctx)
			if err != nil {
				out = append(out, failed(name, err))
				continue
			}
			with = called(library.Name, library.Version) + "; "
			skipped = library.Skipped
		}
		finding := ok(name, "%s%s: %s", with, cli.Count(len(devices), "processor"), strings.Join(what, ", "))
		if len(devices) == 0 {
			finding = finding.but(Note, "the driver found no device; hetc drivers says more")
		}
		if len(skipped) > 0 {
			finding.Found += "; skipped " + strings.Join(skipped, "; ")
			finding = finding.but(Note,
				"the processors above work; for those skipped, repair or remove what the vendor installed")
		}
		out = append(out, finding)
	}
	return out
}

// catalogs opens every model and SoC that this program carries.
func catalogs() []Finding {
	names := models.CatalogNames()
	out := []Finding{ok("catalog of models", "%d models", len(names))}
	for _, name := range names {
		model, err := models.Open(name)
		if err != nil {
			out = append(out, failed("catalog model "+name, err))
			continue
		}
		_ = model.Close() // shapes only
	}
	out = append(out, ok("catalog of SoCs", "%d SoCs", len(socs.Catalog())))
	for _, name := range socs.Catalog() {
		if _, err := socs.Open(name); err != nil {
			out = append(out, failed("catalog SoC "+name, err))
		}
	}
	return out
}

// directory checks that files can be written to a directory, and how many bytes are free.
func directory(check, dir string) Finding {
	// Nothing is left behind: the file is only tried.
	if err := wholefile.Writable(filepath.Join(dir, "hetc-doctor")); err != nil {
		return failed(check, err)
	}
	space, known := machine.DiskSpace(dir)
	if !known {
		return ok(check, "%s: writable", dir)
	}
	finding := ok(check, "%s: writable, %v free", dir, unit.Bytes(space))
	const little, least = 2 << 30, 16 << 20
	switch {
	case space < least:
		return finding.but(Problem, "free space there, or work elsewhere")
	case space < little:
		return finding.but(Note, "a bundle needs about as much space as the model's weights")
	}
	return finding
}

// cache checks the cache directory, or the nearest existing one above it.
func (m Machine) cache() Finding {
	const name = "cache directory"
	if m.CacheDir == "" {
		return ok(name, "none").but(Note, "hetc build needs one: --cache DIR, or $HETC_CACHE")
	}
	for dir := m.CacheDir; ; dir = filepath.Dir(dir) { // it is made when it is needed
		// The root is the end even where it cannot be read: directory then says why.
		if st, err := os.Stat(dir); err == nil && st.IsDir() || dir == filepath.Dir(dir) {
			finding := directory(name, dir)
			if dir != m.CacheDir && finding.Status == OK {
				finding.Found = strings.Replace(finding.Found, dir, m.CacheDir+" (not there yet)", 1)
			}
			return finding
		}
	}
}

// limits reports limits of this process that prevent large models.
func limits() []Finding {
	var out []Finding
	check := func(name string, have, want int64, flag string, print func(int64) string) {
		if have >= want {
			return
		}
		out = append(out, ok(name, "%s", print(have)).but(Note, "models of some size need more: %s", flag))
	}
	bytes := func(n int64) string { return unit.Bytes(n).String() }
	check("address space limit", machine.AddressSpace(), 64<<30, "ulimit -v unlimited", bytes)
	check("file size limit", machine.FileSize(), 64<<30, "ulimit -f unlimited", bytes)
	check("open files limit", machine.OpenFiles(), 256, "ulimit -n 1024", func(n int64) string { return fmt.Sprint(n) })
	if len(out) == 0 {
		out = append(out, ok("limits", "none on address space and file size that matter"))
	}
	return out
}

// timer measures the resolution of the clock, and how late a sleeping thread wakes up; both as
// medians.
func timer() Finding {
	const tries, nap = 31, 100 * time.Microsecond
	var steps, late []float64
	for range tries {
		start := time.Now()
		step := time.Since(start)
		// The smallest step that the clock shows: it is read until it moves.
		for step == 0 {
			step = time.Since(start)
		}
		steps = append(steps, float64(step.Nanoseconds()))
		// A nap too long for spinning, and short enough that any delay shows.
		start = time.Now()
		time.Sleep(nap)
		late = append(late, float64((time.Since(start) - nap).Nanoseconds()))
	}
	// Medians, since one interrupt among the tries says nothing.
	step, lateNS := stat.Median(steps), stat.Median(late)
	finding := ok("timer", "steps of %.0f ns, timer wake-up delay %.0f us", step, lateNS/1e3)
	if step > 1000 {
		return finding.but(Note, "the clock is coarse: short operators are measured in loops, with wider intervals")
	}
	if lateNS > 2e6 {
		return finding.but(Note, "threads wake up late: hand-overs between processors cost more than they should")
	}
	return finding
}

// busy reports whether the machine is idle enough to be measured.
func busy(cores int) Finding {
	const name = "idle enough to measure"
	share, stolen, known := machine.Busy(300 * time.Millisecond)
	load, _ := machine.Load()
	if !known {
		return ok(name, "unknown on this system")
	}
	finding := ok(name, "%.0f %% of all cores busy, load %.1f on %d cores", 100*share, load, max(cores, 1))
	if stolen >= 0.02 {
		finding.Found += fmt.Sprintf(", %.0f %% taken by other virtual machines", 100*stolen)
	}
	// Medians tolerate short disturbances; a fifth of the machine is more than that.
	if share > 0.2 || stolen >= 0.02 {
		return finding.but(Note,
			"end other programs before hetc probe, profile and bench: what they take is measured too")
	}
	return finding
}

// governor checks the clock governor: measurements vary where the clock follows the load.
func governor(cores []int, kernels string) Finding {
	env := profiler.ThisMachine(cores, kernels)
	if env.Governor == "" {
		return ok("clock speed", "cannot be controlled from here")
	}
	finding := ok("clock speed", "governor %s", env.Governor)
	if env.Governor != "performance" && env.Governor != "schedutil" {
		return finding.but(Note,
			"measurements vary less with the governor performance (cpupower frequency-set -g performance)")
	}
	return finding
}

// released is a date before every build of this version: a clock that shows less is wrong.
var released = time.Date(2025, time.January, 1, 0, 0, 0, 0, time.UTC)

// clock refuses a clock that cannot be right, because bundles expire by it.
func clock(now time.Time) Finding {
	finding := ok("clock", "%s", now.UTC().Format("2006-01-02 15:04 UTC"))
	if now.Before(released) || now.Year() > 2100 {
		return finding.but(Problem, "set the clock: a bundle's last day (--not-after) is judged by it")
	}
	return finding
}

// signingKey checks the environment variables of the key without reading the key.
func signingKey() Finding {
	const name = "signing key"
	text, _ := child.HasSigningKey()
	file, hasFile := os.LookupEnv(emit.EnvSigningKeyFile)
	switch {
	case text && hasFile:
		return ok(name, "both %s and %s are set", emit.EnvSigningKey, emit.EnvSigningKeyFile).but(Problem,
			"unset one of them")
	case text:
		return ok(name, "from %s", emit.EnvSigningKey)
	case hasFile:
		if _, err := os.Stat(file); err != nil {
			return ok(name, "%s: %v", emit.EnvSigningKeyFile, err).but(Problem, "correct the variable, or unset it")
		}
		return ok(name, "from %s", file)
	}
	return ok(name, "none in the environment; hetc emit takes --key (hetc keygen makes one)")
}
