package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/matrix"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/cas"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
)

// envCache names the cache's directory.
const envCache = "HETC_CACHE"

// defaultCacheBytes bounds the cache where --cache-size does not.
const defaultCacheBytes = 10 << 30

type buildOptions struct {
	file, output, only string
	jobs               int
	memory             string
	cache, cacheSize   string
	dryRun, noisy      bool
}

func newBuild(s *cli.Streams) *cobra.Command {
	var o buildOptions
	c := &cobra.Command{
		Use:   "build [-f hetc.yaml]",
		Short: "make the plans and bundles of models x SoCs x workloads, each at most once",
		Long: `Reads a matrix of models, SoCs and workloads (docs/build.md) and makes a plan of each combination, and a
signed bundle where the model has weights, as OUTPUT/SOC/MODEL/WORKLOAD.plan.yaml and .hetb. The key is the file's or
the environment's (` + emit.EnvSigningKey + `, ` + emit.EnvSigningKeyFile + `); without one a file that wants bundles is refused (sign:).

A soc: of the catalog is simulated, and its bundles run on the simulator alone. A target: is the SoC's device: its bundles
are what hetc emit --target writes.

Results are kept in a cache under everything that influenced them: what nothing changed for is not made
again, and a build that was interrupted or killed goes on where it stopped. The files do not depend on the
number of jobs, on what the cache held, or on interruptions. A combination that fails stops no other; its
reason is in the table, and the exit code is that of the first one that failed.

` + cli.ExitCodes,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runBuild(c.Context(), s, &o) },
	}
	f := c.Flags()
	f.StringVarP(&o.file, "file", "f", "hetc.yaml", "the matrix")
	f.StringVarP(&o.output, "output", "o", "", "directory to write to, instead of the file's")
	f.StringVar(&o.only, "only", "", "build SOC/MODEL/WORKLOAD alone, each with * for anything, or a prefix")
	f.IntVarP(&o.jobs, "jobs", "j", runtime.GOMAXPROCS(0), "combinations at the same time, as far as memory allows")
	f.StringVar(&o.memory, "max-memory", "", "memory for all jobs together, e.g. 8GiB; default three quarters of what is free")
	f.StringVar(&o.cache, "cache", "", "directory of the cache; default $"+envCache+", else the user's cache directory")
	f.StringVar(&o.cacheSize, "cache-size", unit.Bytes(defaultCacheBytes).String(), "bytes the cache keeps; what was not used for longest goes first")
	f.BoolVar(&o.dryRun, "dry-run", false, "tell what would be made, and write nothing")
	acceptNoisy(f, &o.noisy)
	return c
}

// cacheDir is where the cache is.
func cacheDir(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if dir := os.Getenv(envCache); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", diag.New(diag.ClassIO, "find the cache: %w", err).WithHint("name a directory: --cache DIR, or %s", envCache)
	}
	return filepath.Join(dir, "hetc"), nil
}

// size reads the value of a flag.
func size(flag, text string) (int64, error) {
	n, err := unit.ParseBytes(text)
	if err != nil || n < 0 {
		return 0, diag.New(diag.ClassUsage, "--%s %q: want a size such as 8GiB", flag, text)
	}
	return int64(n), nil
}

func runBuild(ctx context.Context, s *cli.Streams, o *buildOptions) (err error) {
	if o.jobs < 1 {
		return diag.New(diag.ClassUsage, "--jobs %d: want at least 1", o.jobs)
	}
	mo := matrix.Options{
		Output: o.output, Only: o.only, Jobs: o.jobs, MaxMemory: matrix.DefaultMemory(), DryRun: o.dryRun, AcceptNoisy: o.noisy, Now: time.Now,
		Tools: matrix.Tools{Engine: autoEngine(nil, solver.DefaultWorkingMemory), Simulate: simulate, Emit: emitCell, Compilers: compilerIdentity},
	}
	if o.memory != "" {
		if mo.MaxMemory, err = size("max-memory", o.memory); err != nil {
			return err
		}
	}
	keep, err := size("cache-size", o.cacheSize)
	if err != nil {
		return err
	}
	if mo.Config, err = matrix.ReadConfig(o.file); err != nil {
		return err
	}
	if mo.Key, err = mo.Config.SigningKey(); err != nil {
		return err
	}
	if mo.Program, err = matrix.Program(); err != nil {
		return err
	}
	dir, err := cacheDir(o.cache)
	if err != nil {
		return err
	}
	if mo.Cache, err = cas.Open(dir, cas.Options{MaxBytes: keep, Now: time.Now, ReadOnly: o.dryRun}); err != nil {
		if len(diag.HintsOf(err)) == 0 {
			err = diag.New(diag.ClassOf(err), "%w", err).WithHint("name another directory: --cache DIR, or %s", envCache)
		}
		return err
	}
	defer func() {
		if cerr := mo.Cache.Close(); err == nil {
			err = cerr
		}
	}()
	mo.Note, mo.Progress = s.Notef, s.Terminal()
	r, err := matrix.Run(ctx, mo)
	if err != nil {
		return err
	}
	return showBuild(s, r)
}

// simulate profiles a simulated SoC.
func simulate(ctx context.Context, soc *socs.SoC, requests []profiler.Request, path string) error {
	const seed = 1
	header, err := profiler.Header(soc, host.Fingerprint(), host.Kernels(), cli.Version, seed)
	if err != nil {
		return err
	}
	rec, err := record.Create(path, header)
	if err != nil {
		return err
	}
	defer rec.Close()
	_, err = profiler.Run(ctx, soc, requests, rec, profilerOptions(soc, seed))
	return err
}

// emitCell writes a bundle of a cell.
func emitCell(ctx context.Context, path string, o emit.Options, soc *socs.SoC, t *matrix.Target, key *bundle.Key) (bundle.Digest, error) {
	if t != nil {
		flags := targetFlags{name: soc.Name, emulator: t.Emulator, fallback: t.AllowFallback}
		if t.Twin != nil {
			flags.twin = t.Twin.File
		}
		if err := flags.apply(ctx, &o, soc, key); err != nil {
			return bundle.Digest{}, err
		}
	}
	return emitPlan(ctx, path, o, soc)
}

// compilerIdentity names the libraries that compile for the processors of a target. A missing one is no error yet: a plan may
// give its processor no graph.
func compilerIdentity(ctx context.Context, soc *socs.SoC) (string, error) {
	var parts []string
	for _, c := range compilers(nil) {
		known, ok := c.(interface {
			Identity(context.Context, driver.Target) (string, error)
		})
		if !ok {
			continue
		}
		for i := range soc.Processors {
			p := &soc.Processors[i]
			if p.Target == nil || p.Target.Compiler != c.Name() {
				continue
			}
			id, err := known.Identity(ctx, driver.Target{Proc: p.Name, Options: p.Target.Options()})
			if errors.Is(err, driver.ErrUnavailable) {
				id, err = "missing", nil
			}
			if err != nil {
				return "", fmt.Errorf("compile for processor %q: %w", p.Name, err)
			}
			parts = append(parts, p.Name, id)
		}
	}
	return strings.Join(parts, " "), nil
}

// showBuild prints the table and returns why cells failed.
func showBuild(s *cli.Streams, r *matrix.Report) error {
	ms := func(ns int64) string { return fmt.Sprintf("%.3f", float64(ns)/1e6) }
	var rows [][]string
	failures := &failedCells{}
	simulated, onSimulator, unproved, unsigned := false, false, false, 0
	for _, c := range r.Cells {
		if c.Bundle.Why == matrix.NoKey {
			unsigned++
		}
		row := []string{c.SoC, c.Model, c.Workload, string(c.Plan.State), strings.Replace(string(c.Bundle.State), string(matrix.Omitted), "-", 1), "-", "-", "-"}
		largest := 0
		for _, p := range c.Predictions {
			rows := 0
			if _, err := fmt.Sscanf(p.Program, "prefill@%d", &rows); err == nil && rows > largest {
				largest = rows
				row[5] = fmt.Sprintf("%s @%d", ms(p.PlanNS), rows)
			} else if p.Program == "decode" {
				row[6] = ms(p.PlanNS)
			}
		}
		if c.Bundle.Bytes > 0 {
			row[7] = unit.Bytes(c.Bundle.Bytes).String()
		}
		var notes []string
		switch {
		case c.Evidence == planir.Unproved && c.Simulated:
			unproved, simulated = true, true
			notes = append(notes, "unproved, times simulated")
		case c.Evidence == planir.Unproved:
			unproved = true
			notes = append(notes, "unproved")
		case c.Simulated:
			simulated = true
			onSimulator = onSimulator || c.Bundle.Bytes > 0
			notes = append(notes, "simulated")
		}
		for _, w := range c.Warnings {
			s.Warnf("%s: %s", c.Name(), w)
		}
		if c.Error != nil {
			if failures.add(c) && c.Error.Stack != "" {
				s.Notef("%s: %s", c.Name(), c.Error.Stack)
			}
			notes = append(notes, brief(c.Error.Message))
		}
		for _, a := range []matrix.Artifact{c.Plan, c.Bundle} {
			if a.State == matrix.Failed && a.Why != "" {
				notes = append(notes, a.Why)
			}
		}
		rows = append(rows, append(row, strings.Join(notes, "; ")))
	}
	s.Table([]string{"soc", "model", "workload", "plan", "bundle", ">prefill ms", ">decode ms", ">bundle size", ""}, rows)
	s.Printf("%s: %s\n", r.Output, r.Summary())
	for _, c := range r.Cells {
		for _, change := range c.Changes {
			s.Printf("%s: %s\n", c.Name(), change)
		}
	}
	if simulated {
		s.Printf("times marked simulated are predicted from simulated measurements\n")
	}
	if onSimulator {
		s.Printf("a bundle marked simulated runs on the simulator alone (hetc run); for a device write target: instead of soc:\n")
	}
	if unproved {
		s.Printf("a bundle marked unproved was never executed on its device\n")
	}
	if unsigned > 0 {
		s.Warnf("%d bundles are not written: there is no key to sign them (key: in the file, %s or %s); sign: required makes that an error", unsigned, emit.EnvSigningKey, emit.EnvSigningKeyFile)
	}
	if r.KeyID != "" {
		s.Printf("bundles are signed by key %s\n", r.KeyID)
	}
	if err := s.Result(r); err != nil {
		return err
	}
	return failures.err(len(r.Cells))
}

// brief is the beginning of a reason that is told in full elsewhere.
func brief(message string) string {
	const most = 80
	first, _, more := strings.Cut(message, "\n")
	if r := []rune(first); len(r) > most {
		first, more = string(r[:most]), true
	}
	if more {
		first += " ..."
	}
	return first
}

// failedCells groups cells that failed for the same reason, in the order of the table.
type failedCells struct {
	all   int
	order []*matrix.Failure
	cells map[string][]string // by message
}

// add reports whether the reason is new.
func (f *failedCells) add(c *matrix.Cell) (new bool) {
	if f.cells == nil {
		f.cells = map[string][]string{}
	}
	f.all++
	if new = f.cells[c.Error.Message] == nil; new {
		f.order = append(f.order, c.Error)
	}
	f.cells[c.Error.Message] = append(f.cells[c.Error.Message], c.Name())
	return new
}

// err is nil when nothing failed; its class is that of the first failure.
func (f *failedCells) err(of int) error {
	if f.all == 0 {
		return nil
	}
	var list diag.List
	for _, x := range f.order {
		names := f.cells[x.Message]
		where := names[0]
		if n := len(names) - 1; n > 0 {
			where += fmt.Sprintf(" and %d more", n)
		}
		list = append(list, diag.New(diag.ClassOf(x.Err), "%s: %w", where, x.Err))
	}
	list = append(list, diag.New(list[0].Class, "build: %d of %d failed", f.all, of))
	return list.Err()
}
