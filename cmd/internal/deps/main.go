// Command deps fetches what hetc can use but does without: what is named of onnxruntime (the library behind the driver
// ort), highs and highs-native (a solver, as WebAssembly and as a library), llama.cpp and python-peers (what `hetc
// bench engines` compares with: OpenVINO, ONNX Runtime and CTranslate2), llama-server (llama.cpp's server, for `hetc
// bench serving`), onnxruntime-qnn (Qualcomm's compiler and emulator of its NPU) and opencl-intel (OpenCL on CPUs). It
// is what `make deps`, `make deps-bench`, `make deps-qnn` and `make deps-opencl` run; nothing of it is linked into
// hetc.
//
// Packages come through their registry's own client, pinned by version and digest. Each result appears complete or
// not at all; a second run finds it and does nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/hetc/hetc/internal/child"
	"github.com/hetc/hetc/internal/filelock"
)

// main fetches the named packages into a directory, or prints the pins for them.
func main() {
	dir := flag.String("dir", ".deps", "directory for what is fetched")
	digests := flag.Bool("pins", false,
		"print the rows of internal/pins for what is named, on every platform, and keep nothing")
	flag.Parse()
	child.TakeSigningKey() // clients of registries and compilers get all else: proxies, certificates, accounts
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// either the table of pins, or the packages
	var err error
	if *digests {
		err = printPins(ctx, os.Stdout, flag.Args())
	} else {
		err = run(ctx, *dir, flag.Args())
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "deps:", err)
		os.Exit(1)
	}
}

// recipes are all there are; those of one name follow each other.
var recipes = slices.Concat(onnxRuntime, []recipe{highs}, highsNative, []recipe{llamaCpp, llamaServer, pythonPeers, qnn, intelOpenCL})

// names are what can be fetched.
var names = func() string {
	var list []string
	for _, r := range recipes {
		if !slices.Contains(list, r.Name) {
			list = append(list, r.Name)
		}
	}
	return strings.Join(list, ", ")
}()

// choose returns the recipe of that name for a platform; nil when the name is known, but not for it. What is built here
// is chosen anywhere: its recipe says where it works.
func choose(name, goos, arch string) (*recipe, error) {
	known := false
	for i := range recipes {
		recipe := &recipes[i]
		if recipe.Name != name {
			continue
		}
		known = true
		if recipe.OS == "" || recipe.Source != "" || recipe.OS == goos && recipe.Arch == arch {
			return recipe, nil
		}
	}
	if known {
		return nil, nil
	}
	return nil, fmt.Errorf("unknown name %q, want some of %s", name, names)
}

// run makes what is named; what fails does not keep the others from being made.
func run(ctx context.Context, dir string, wanted []string) error {
	if len(wanted) == 0 {
		return fmt.Errorf("name what to fetch: %s", names)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	// one run at a time changes the folder
	lock, err := filelock.Open(filepath.Join(dir, ".lock"), 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	switch err := filelock.Try(lock); {
	case errors.Is(err, filelock.ErrBusy):
		return fmt.Errorf("another run holds %q", lock.Name())
	case err != nil && !errors.Is(err, errors.ErrUnsupported):
		return err
	}
	var errs []error
	for _, name := range wanted {
		if err := one(ctx, dir, name); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// one makes the recipe of a name for this machine.
func one(ctx context.Context, dir, name string) error {
	recipe, err := choose(name, runtime.GOOS, runtime.GOARCH)
	if err != nil {
		return err
	}
	if recipe == nil {
		fmt.Printf("%s: no package for %s/%s; see docs/drivers.md for a library that you have\n", name, runtime.GOOS,
			runtime.GOARCH)
		return nil
	}
	if recipe.Terms != "" {
		var at []string
		for _, f := range recipe.TermFiles {
			at = append(at, filepath.Join(dir, recipe.Name, filepath.FromSlash(f)))
		}
		fmt.Printf("%s: %s %s\n", name, recipe.Terms, strings.Join(at, " and "))
	}
	made, err := recipe.make(ctx, dir)
	if err != nil {
		return err
	}
	state := "made from"
	if !made {
		state = "unchanged:"
	}
	fmt.Printf("%s: %s", filepath.Join(dir, recipe.Name), state)
	for _, pkg := range recipe.Packages {
		fmt.Printf(" %s %s", pkg.Name, pkg.Version)
	}
	if recipe.Requirements != "" {
		fmt.Printf(" %d wheels", strings.Count(recipe.Requirements, "=="))
	}
	fmt.Println()
	return nil
}
