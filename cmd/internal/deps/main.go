// Command deps fetches, checks and builds what `hetc bench engines` compares hetc with. It is what
// `make deps-bench` runs; nothing of it is linked into hetc.
//
// Packages come through their registry's own client, pinned by version and digest. The result appears
// complete or not at all; a second run finds it and does nothing.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	dir := flag.String("dir", ".deps", "directory for what is fetched")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *dir, llamaCpp); err != nil {
		fmt.Fprintln(os.Stderr, "deps:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string, r recipe) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	unlock, err := lock(filepath.Join(dir, ".lock"))
	if err != nil {
		return err
	}
	defer unlock()
	made, err := r.make(ctx, dir)
	if err != nil {
		return fmt.Errorf("%s: %w", r.Name, err)
	}
	state := "built from"
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
