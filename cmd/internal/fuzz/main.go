// Command fuzz runs every fuzz target of the module for a while each and fails when one crashes, hangs or
// takes too much memory. It is what `make fuzz` runs.
//
// A crash leaves its input in testdata/fuzz of the package, where go test replays it from then on.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hetc/hetc/internal/child"
)

// main fuzzes every target of the named packages, one after the other.
func main() {
	run := options{grace: time.Minute, stall: 15 * time.Second}
	flag.DurationVar(&run.time, "time", time.Minute, "how long each target runs")
	flag.StringVar(&run.only, "run", "", "only targets of which PACKAGE.TARGET contains this")
	flag.Int64Var(&run.memoryMiB, "memory", 512, "MiB that no process of a target may exceed")
	flag.Parse()
	child.TakeSigningKey() // go and the tests need all else
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run.run(ctx, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	time      time.Duration
	only      string
	memoryMiB int64
	grace     time.Duration // beyond its time: for its seeds, and for ending
	// that an input may take; the test binary reports about every 3 s, and ends without a word when one never does
	stall time.Duration
}

// target is one fuzz function in a compiled test binary.
type target struct {
	pkg, dir, binary, name string
}

// run fuzzes every target of the packages, one after the other, and names those that failed.
func (o *options) run(ctx context.Context, patterns []string) error {
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	temp, err := os.MkdirTemp("", "hetc-fuzz")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	targets, err := o.find(ctx, temp, patterns)
	if err != nil {
		return err
	}
	// inputs that were found before are those of the build cache
	cache, err := output(ctx, "", "go", "env", "GOCACHE")
	if err != nil {
		return err
	}
	var failed []string
	for _, target := range targets {
		name := target.pkg + "." + target.name
		if err := o.fuzz(ctx, target, filepath.Join(strings.TrimSpace(cache), "fuzz", target.pkg)); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			fmt.Printf("FAIL  %s: %v\n", name, err)
			failed = append(failed, name)
		}
	}
	switch {
	case len(targets) == 0:
		return fmt.Errorf("no fuzz target in %v contains %q", patterns, o.only)
	case len(failed) > 0:
		return fmt.Errorf("%d of %d targets failed: %s", len(failed), len(targets), strings.Join(failed, ", "))
	}
	return nil
}

// find compiles the packages that have such fuzz targets, instrumented for fuzzing.
func (o *options) find(ctx context.Context, temp string, patterns []string) ([]target, error) {
	list, err := output(ctx, "", "go",
		append([]string{"list", "-f", "{{.ImportPath}}\t{{.Dir}}\t{{.TestGoFiles}}{{.XTestGoFiles}}"}, patterns...)...)
	if err != nil {
		return nil, err
	}
	var out []target
	for line := range strings.SplitSeq(strings.TrimSpace(list), "\n") {
		// path, folder and test files; packages without a fuzz function are not compiled
		fields := strings.Split(line, "\t")
		if len(fields) != 3 || !o.hasFuzz(fields[0], fields[1],
			strings.FieldsFunc(fields[2], func(r rune) bool { return strings.ContainsRune("[] ", r) })) {
			continue
		}
		binary := filepath.Join(temp, strings.ReplaceAll(fields[0], "/", "_")+".test")
		if _, err := output(ctx, fields[1], "go", "test", "-c", "-trimpath", "-fuzz", ".", "-o", binary,
			"."); err != nil {
			return nil, err
		}
		names, err := output(ctx, fields[1], binary, "-test.list", "^Fuzz")
		if err != nil {
			return nil, err
		}
		for name := range strings.FieldsSeq(names) {
			if strings.Contains(fields[0]+"."+name, o.only) {
				out = append(out, target{pkg: fields[0], dir: fields[1], binary: binary, name: name})
			}
		}
	}
	return out, nil
}

var fuzzFunc = regexp.MustCompile(`(?m)^func (Fuzz\w*)\(`)

// hasFuzz saves compiling packages that have no such target.
func (o *options) hasFuzz(pkg, dir string, files []string) bool {
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(dir, f))
		if err != nil {
			continue
		}
		for _, m := range fuzzFunc.FindAllSubmatch(text, -1) {
			if strings.Contains(pkg+"."+string(m[1]), o.only) {
				return true
			}
		}
	}
	return false
}

// output runs a command and returns what it prints; its complaints are in the error.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	process := exec.CommandContext(ctx, name, args...)
	process.Dir = dir
	var complaints bytes.Buffer
	process.Stderr = &complaints
	out, err := process.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, complaints.Bytes())
	}
	return string(out), nil
}

// fuzz runs one target, once per core: with a single worker each, so that one that hangs shows.
func (o *options) fuzz(ctx context.Context, fuzzed target, cache string) error {
	runs := make([]result, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for i := range runs {
		wg.Go(func() { runs[i] = o.worker(ctx, fuzzed, cache) })
	}
	wg.Wait()
	var inputs, peak int64
	var errs []error
	for _, result := range runs {
		inputs, peak = inputs+result.inputs, max(peak, result.peakMiB)
		errs = append(errs, result.err)
	}
	if peak > o.memoryMiB {
		errs = append(errs, fmt.Errorf("a process grew to %d MiB, want at most %d", peak, o.memoryMiB))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Printf("ok    %s.%s: %d inputs, largest process %d MiB\n", fuzzed.pkg, fuzzed.name, inputs, peak)
	return nil
}

// result is what one process of a target did.
type result struct {
	inputs  int64
	peakMiB int64
	err     error
}

// worker is one process. Its only child is the one that runs the inputs: what the system counts for both,
// once they have ended, is the larger of them.
func (o *options) worker(ctx context.Context, t target, cache string) result {
	limited, cancel := context.WithTimeout(ctx, o.time+o.grace)
	defer cancel()
	process := exec.CommandContext(limited, t.binary, "-test.run", "^$", "-test.fuzz", "^"+t.name+"$", "-test.fuzztime",
		o.time.String(), "-test.fuzzcachedir", cache, "-test.parallel", "1",
		// by default an interesting input is shortened for up to a minute, in which nothing is tried
		"-test.fuzzminimizetime", "10x")
	process.Dir = t.dir // where crashes are kept
	// The bound is on what inputs need, not on garbage that a collector which runs seldom, as in make, leaves behind.
	process.Env = append(os.Environ(), "GOGC=100")
	var out bytes.Buffer
	process.Stdout, process.Stderr = &out, &out
	process.WaitDelay = 10 * time.Second
	group(process)
	err := startLimited(process)
	if err == nil {
		err = process.Wait()
	}
	inputs, stalled := progress(out.String(), o.stall)
	found := result{peakMiB: peakMiB(process.ProcessState), inputs: inputs}
	switch {
	case ctx.Err() != nil:
		found.err = ctx.Err()
	case errors.Is(limited.Err(), context.DeadlineExceeded):
		found.err = fmt.Errorf("hangs: not done after %v\n%s", o.time+o.grace, tail(out.String()))
	case err != nil && !endOfTime.MatchString(out.String()):
		found.err = fmt.Errorf("%w\n%s", err, tail(out.String()))
	case stalled:
		found.err = fmt.Errorf("hangs: an input took longer than %v\n%s", o.stall, tail(out.String()))
	}
	return found
}

// endOfTime is how package testing sometimes reports that the time is over and nothing was found: the
// deadline met a worker between two inputs.
var endOfTime = regexp.MustCompile(`(?m)^--- FAIL: \w+ \(\S+\)\n\s+context deadline exceeded\nFAIL\n*\z`)

var report = regexp.MustCompile(`fuzz: elapsed: (\S+), (?:execs: (\d+))?`)

// progress reads how many inputs were run, and whether none was for as long as stall.
func progress(out string, stall time.Duration) (inputs int64, stalled bool) {
	moved := time.Duration(0) // when the last input ended
	for _, match := range report.FindAllStringSubmatch(out, -1) {
		at, err := time.ParseDuration(match[1])
		if err != nil {
			continue
		}
		count, err := strconv.ParseInt(match[2], 10, 64)
		if err != nil || count > inputs { // seeds are being run, or inputs
			moved = at
		}
		inputs = max(inputs, count)
		stalled = stalled || at-moved >= stall
	}
	return inputs, stalled || inputs == 0
}

// tail returns the end of a long output.
func tail(s string) string {
	const most = 8000
	if len(s) > most {
		return "..." + s[len(s)-most:]
	}
	return s
}
