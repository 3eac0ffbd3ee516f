// Package verdicts knows which kernels this machine's devices were found to compute rightly: it runs the self-test of a
// bundle's plan, and keeps what it found.
//
// Only passed tests are kept: what failed may be a device that was out of memory, and is tried again. A verdict is of
// one program, bundle, processor, device, driver and machine, so that an update of any of them tests again.
package verdicts

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/machine"
	"github.com/hetc/hetc/internal/cas"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/selftest"
)

// maxBytes bounds the cache: a verdict takes some 300 bytes.
const maxBytes = 1 << 20

// Verdict is a self-test that was passed.
type Verdict struct {
	Key       string  `json:"key"` // of everything that it depends on
	Product   string  `json:"product,omitempty"`
	Bundle    string  `json:"bundle"` // digest
	Processor string  `json:"processor"`
	Driver    string  `json:"driver"`  // of hetc: "ort"
	Device    string  `json:"device"`  // what it calls itself
	Library   string  `json:"library"` // that drives it, with its version
	Kernels   int     `json:"kernels"`
	Worst     float64 `json:"worst"` // largest error as a part of what is permitted
}

// Bundle is what is tested.
type Bundle struct {
	Plan    *planir.Plan
	Source  executor.Source
	Digest  string                         // of the bundle
	Product string                         // for people
	Test    func() (*selftest.Test, error) // reads the self-test; nil: the bundle has none
}

// Options say how a bundle is tested.
type Options struct {
	Drivers  []driver.Driver
	Deadline time.Duration // of a kernel
	Force    bool          // test again what has passed, and tell what could not be kept
	Dir      string        // of the cache; "": the default one
}

// Ensure tests the processors of a plan whose verdicts are not known: those of all drivers but the host's and of
// simulations. A kernel that is wrong is an error of class ClassRun.
func Ensure(ctx context.Context, ui *cli.Streams, bundle *Bundle, options Options) error {
	var procs []string
	for _, target := range selftest.Targets(bundle.Plan) {
		if !slices.Contains(procs, target.Graph.Proc) {
			procs = append(procs, target.Graph.Proc)
		}
	}
	switch {
	case len(procs) == 0:
		if options.Force {
			ui.Notef("self-test: nothing to test: the host's kernels, which are the reference, execute all of the plan")
		}
		return nil
	case bundle.Test == nil && options.Force:
		return diag.New(diag.ClassInput, "--self-test needs a bundle with a self-test, and this one has none").
			WithHint("emit it again with this version of hetc")
	case bundle.Test == nil:
		ui.Notef("not tested: this bundle has no self-test of %s; emit it again", strings.Join(procs, ", "))
		return nil
	}
	kept := openKept(options.Dir, false)
	defer kept.close()
	var untested []string
	verdicts := map[string]*Verdict{}
	for _, name := range procs {
		verdict, err := describe(ctx, bundle, name, options.Drivers)
		if err != nil {
			return err
		}
		verdicts[name] = verdict
		if options.Force || !kept.has(verdict) {
			untested = append(untested, name)
		}
	}
	if len(untested) == 0 {
		return nil
	}
	test, err := bundle.Test()
	if err != nil {
		return err
	}
	tried, err := executor.SelfTest(ctx, bundle.Plan, bundle.Source, test, untested,
		executor.Options{Drivers: options.Drivers, Deadline: options.Deadline})
	for i := range tried {
		verdict := verdicts[tried[i].Proc]
		verdict.Kernels, verdict.Worst = tried[i].Kernels, tried[i].Worst
		ui.Notef("self-test: %s in %v", verdict, tried[i].Took.Round(time.Millisecond))
		kept.keep(verdict)
	}
	if options.Force && kept.err != nil {
		ui.Warnf("the verdict of the self-test is not kept, so that it is run again: %v", kept.err)
	}
	return err
}

// String says what was found.
func (v *Verdict) String() string {
	return fmt.Sprintf("%d kernels on %q (%s, %s) agree with the reference, within %.0f %% of what is permitted",
		v.Kernels, v.Processor, v.Device, v.Library, 100*v.Worst)
}

// describe says what a verdict of a processor is of.
func describe(ctx context.Context, bundle *Bundle, name string, drivers []driver.Driver) (*Verdict, error) {
	proc := bundle.Plan.Proc(name)
	at := slices.IndexFunc(drivers, func(d driver.Driver) bool { return d.Name() == proc.Driver })
	if at < 0 {
		return nil, diag.New(diag.ClassUnavailable, "self-test: driver %q is not part of this program", proc.Driver)
	}
	identity, err := identityOf(ctx, drivers[at], driver.Config{Select: proc.Select, Options: proc.Options})
	if err != nil {
		return nil, diag.New(diag.ClassOr(err, diag.ClassRun), "self-test of processor %q: %w", name, err)
	}
	options, err := json.Marshal(proc)
	if err != nil {
		return nil, err
	}
	verdict := &Verdict{Product: bundle.Product, Bundle: bundle.Digest, Processor: name, Driver: proc.Driver,
		Device: identity.Device, Library: identity.Driver}
	verdict.Key = cas.KeyOf("self-test", program(), bundle.Digest, string(options), identity.Device, identity.Driver,
		host.Fingerprint()).String()
	return verdict, nil
}

// identityOf names the device and the library of a processor, by what its driver tells.
func identityOf(ctx context.Context, drv driver.Driver, config driver.Config) (driver.Identity, error) {
	if identified, ok := drv.(driver.Identified); ok {
		return identified.Identity(ctx, config)
	}
	// A library on this CPU, or one that knows its own device.
	identity := driver.Identity{Device: host.Fingerprint(), Driver: drv.Name()}
	if described, ok := drv.(driver.Described); ok {
		library, err := described.Library(ctx)
		if err != nil {
			return identity, err
		}
		identity.Driver = strings.TrimSpace(strings.Join([]string{library.Name, library.Version, library.Build}, " "))
	}
	return identity, nil
}

// program tells builds of this program apart: its drivers are what is tested too.
func program() string {
	path, err := os.Executable()
	if err != nil {
		return cli.Version
	}
	st, err := os.Stat(path)
	if err != nil {
		return cli.Version
	}
	return fmt.Sprint(cli.Version, " ", st.Size(), " ", st.ModTime().UnixNano())
}

// kept is the cache, or why there is none.
type kept struct {
	cache *cas.Cache
	err   error
}

// openKept opens the cache. Without one everything is tested.
func openKept(dir string, readOnly bool) *kept {
	out := new(kept)
	if dir == "" {
		above, err := machine.CacheDir("")
		if err != nil {
			out.err = err
			return out
		}
		dir = filepath.Join(above, "self-test")
	}
	out.cache, out.err = cas.Open(dir, cas.Options{MaxBytes: maxBytes, Now: time.Now, ReadOnly: readOnly})
	if out.err != nil && !readOnly {
		// What was found before is known all the same.
		out.cache, _ = cas.Open(dir, cas.Options{MaxBytes: maxBytes, ReadOnly: true})
	}
	return out
}

// keyOf returns the cache's key of a verdict.
func keyOf(verdict *Verdict) cas.Key { return cas.KeyOf("verdict", verdict.Key) }

// has reports whether a test was passed.
func (k *kept) has(verdict *Verdict) bool {
	if k.cache == nil {
		return false
	}
	text, err := k.cache.Read(keyOf(verdict))
	if err != nil {
		return false // not there, or damaged: it is tested
	}
	var found Verdict
	return json.Unmarshal(text, &found) == nil && found.Key == verdict.Key
}

// keep stores a verdict, and notes why it could not.
func (k *kept) keep(verdict *Verdict) {
	if k.cache == nil || k.err != nil {
		return
	}
	text, err := json.Marshal(verdict)
	if err != nil {
		k.err = err
		return
	}
	entry, err := k.cache.Put(keyOf(verdict), func(path string) error { return os.WriteFile(path, text, 0o600) })
	if err == nil {
		err = entry.Close()
	}
	k.err = err
}

// close closes the cache, whose temporary files others remove where that fails.
func (k *kept) close() {
	if k.cache != nil {
		_ = k.cache.Close()
	}
}

// List returns the verdicts that are kept in dir ("": the default one), ordered by processor and bundle. Damaged ones
// are left out.
func List(dir string) ([]Verdict, error) {
	known := openKept(dir, true)
	defer known.close()
	if known.err != nil {
		return nil, known.err
	}
	var out []Verdict
	err := known.cache.Each(maxBytes, func(text []byte) {
		var verdict Verdict
		if json.Unmarshal(text, &verdict) == nil && verdict.Key != "" {
			out = append(out, verdict)
		}
	})
	slices.SortFunc(out, func(a, b Verdict) int {
		return strings.Compare(a.Processor+"\x00"+a.Bundle+"\x00"+a.Key, b.Processor+"\x00"+b.Bundle+"\x00"+b.Key)
	})
	return out, err
}
