// Command deps fetches what hetc can use but does without: what is named of onnxruntime (the library behind the driver
// ort), highs and highs-native (a solver, as WebAssembly and as a library), llama.cpp (what `hetc bench engines` compares
// with) and onnxruntime-qnn (Qualcomm's compiler and emulator of its NPU). It is what `make deps`, `make deps-bench` and
// `make deps-qnn` run; nothing of it is linked into hetc.
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
	"strings"
	"syscall"
)

func main() {
	dir := flag.String("dir", ".deps", "directory for what is fetched")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *dir, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "deps:", err)
		stop()
		os.Exit(1)
	}
}

// names are what can be fetched.
var names = strings.Join([]string{onnxRuntime[0].Name, highs.Name, highsNative[0].Name, llamaCpp.Name, qnn.Name}, ", ")

// choose is the recipe of that name for a platform; nil when the name is known, but not for it.
func choose(name, goos, arch string) (*recipe, error) {
	switch name {
	case llamaCpp.Name:
		return &llamaCpp, nil
	case highs.Name:
		return &highs, nil
	}
	known := false
	for _, list := range [][]recipe{onnxRuntime, highsNative, {qnn}} {
		for i, r := range list {
			known = known || r.Name == name
			if r.Name == name && r.OS == goos && r.Arch == arch {
				return &list[i], nil
			}
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
	unlock, err := lock(filepath.Join(dir, ".lock"))
	if err != nil {
		return err
	}
	defer unlock()
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

func one(ctx context.Context, dir, name string) error {
	r, err := choose(name, runtime.GOOS, runtime.GOARCH)
	if err != nil {
		return err
	}
	if r == nil {
		fmt.Printf("%s: no package for %s/%s; see docs/drivers.md for a library that you have\n", name, runtime.GOOS, runtime.GOARCH)
		return nil
	}
	if r.Terms != "" {
		var at []string
		for _, f := range r.TermFiles {
			at = append(at, filepath.Join(dir, r.Name, filepath.FromSlash(f)))
		}
		fmt.Printf("%s: %s %s\n", name, r.Terms, strings.Join(at, " and "))
	}
	made, err := r.make(ctx, dir)
	if err != nil {
		return err
	}
	state := "made from"
	if !made {
		state = "unchanged:"
	}
	fmt.Printf("%s: %s", filepath.Join(dir, r.Name), state)
	for _, p := range r.Packages {
		fmt.Printf(" %s %s", p.Name, p.Version)
	}
	fmt.Println()
	return nil
}
