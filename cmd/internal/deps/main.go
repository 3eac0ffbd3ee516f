// Command deps fetches what hetc can use but does without: what is named of onnxruntime (the library behind the driver
// ort), highs (a solver) and llama.cpp (what `hetc bench engines` compares with). It is what `make deps` and
// `make deps-bench` run; nothing of it is linked into hetc.
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

// choose is the recipe of that name for a platform; nil when the name is known, but not for it.
func choose(name, goos, arch string) (*recipe, error) {
	switch name {
	case llamaCpp.Name:
		return &llamaCpp, nil
	case highs.Name:
		return &highs, nil
	case onnxRuntime[0].Name:
		for i, r := range onnxRuntime {
			if r.OS == goos && r.Arch == arch {
				return &onnxRuntime[i], nil
			}
		}
		return nil, nil
	}
	return nil, fmt.Errorf("unknown name %q, want some of %s, %s, %s", name, onnxRuntime[0].Name, highs.Name, llamaCpp.Name)
}

// run makes what is named; what fails does not keep the others from being made.
func run(ctx context.Context, dir string, names []string) error {
	if len(names) == 0 {
		return fmt.Errorf("name what to fetch: %s, %s, %s", onnxRuntime[0].Name, highs.Name, llamaCpp.Name)
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
	for _, name := range names {
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
		fmt.Printf("%s: no package for %s/%s; hetc takes a library that you have, see docs/drivers.md\n", name, runtime.GOOS, runtime.GOARCH)
		return nil
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
