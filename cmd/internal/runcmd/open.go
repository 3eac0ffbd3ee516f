package runcmd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hetc/hetc/cmd/internal/accept"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/machine"
	"github.com/hetc/hetc/cmd/internal/verdicts"
	"github.com/hetc/hetc/internal/cas"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/prefix"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/programs"
	"github.com/hetc/hetc/runtime/selftest"
	"github.com/hetc/hetc/runtime/tokenizer"
)

// opened is a verified bundle as a source of blobs, optionally under a prefix. Every blob is asked for by what it
// is used as: one that was signed for another purpose is refused, whatever its name.
type opened struct {
	*accept.Accepted
	prefix     string
	weights    bundle.Role // of what Range reads
	leftBehind bool        // a thread was left behind, which may read the bundle
}

// artifactRoles are the roles of artifacts, which drivers load: all of them are private copies.
var artifactRoles = []bundle.Role{bundle.RolePlan, bundle.RoleNPUGraph, bundle.RoleGPUKernel}

// openBundle opens a bundle on the terms of the flags, for this machine.
func openBundle(s *cli.Streams, path string, o *options) (*opened, error) {
	accepted, err := o.terms.Open(s, path, thisHost(o.anyMachine || o.simulates))
	if err != nil {
		return nil, err
	}
	// Blobs of the plan lie beside it: what is before its last slash is their prefix.
	entry := accepted.Manifest().Entrypoint
	return &opened{Accepted: accepted, prefix: entry[:strings.LastIndexByte(entry, '/')+1],
		weights: bundle.RoleWeights}, nil
}

// Source is where the blobs of an open bundle come from.
type Source interface {
	executor.Source
	Close() error
}

// OpenPlan verifies a bundle on these terms and returns its plan and the source of what the plan needs. A bundle for
// another machine is refused, unless its times are simulated or anyMachine is set.
func OpenPlan(s *cli.Streams, path string, terms accept.Terms, anyMachine bool) (*planir.Plan, Source, error) {
	flags := &options{terms: terms, anyMachine: anyMachine, simulates: true}
	opened, err := openBundle(s, path, flags)
	if err != nil {
		return nil, nil, err
	}
	plan, err := opened.entry()
	if err == nil {
		err = opened.checkTarget(plan, flags)
	}
	if err != nil {
		return nil, nil, errors.Join(err, opened.Close())
	}
	return plan, opened, nil
}

// reference returns the program of the bundle's reference, and its values.
func (b *opened) reference() *opened {
	return &opened{Accepted: b.Accepted, prefix: referencePrefix, weights: bundle.RoleReference}
}

// noteLeftBehind returns an error as it is, and notes whether it says that a thread was left behind.
func (b *opened) noteLeftBehind(err error) error {
	b.leftBehind = b.leftBehind || errors.Is(err, executor.ErrLeftBehind)
	return err
}

// Close closes the bundle, unless a thread was left behind: its next read would end the process.
func (b *opened) Close() error {
	if b.leftBehind {
		return nil
	}
	return b.Accepted.Close()
}

// Blob returns a verified artifact; it implements executor.Source.
func (b *opened) Blob(name string) ([]byte, error) {
	return b.blobWithRole(b.prefix+name, artifactRoles...)
}

// blobWithRole returns a blob that has one of these roles.
func (b *opened) blobWithRole(name string, roles ...bundle.Role) ([]byte, error) {
	if err := b.Expect(name, roles...); err != nil {
		return nil, err
	}
	return b.Bytes(name)
}

// Range returns a part of the weights, verified; it implements executor.Source.
func (b *opened) Range(name string, offset, bytes int64) ([]byte, error) {
	if err := b.Expect(b.prefix+name, b.weights); err != nil {
		return nil, err
	}
	return b.Bundle.Range(b.prefix+name, offset, bytes)
}

// CopyRange copies a part of the weights, verified; it implements executor.Copier.
func (b *opened) CopyRange(name string, offset int64, out []byte) error {
	if err := b.Expect(b.prefix+name, b.weights); err != nil {
		return err
	}
	return b.Bundle.CopyRange(b.prefix+name, offset, out)
}

// Ahead verifies parts of blobs that Range is going to be asked for; it implements executor.Ahead.
func (b *opened) Ahead(ctx context.Context, parts []executor.Part, through func(parts int)) {
	of := make([]bundle.Part, len(parts))
	for i, part := range parts {
		of[i] = bundle.Part{Blob: b.prefix + part.Blob, Offset: part.Offset, Bytes: part.Bytes, Few: part.Few}
	}
	b.Bundle.Ahead(ctx, of, through)
}

// Execute opens a plan on this machine, of whose weights held bytes are to be allocated, and refuses one that needs
// more memory than is free.
func Execute(
	ctx context.Context, p *planir.Plan, src executor.Source, held int64, o executor.Options,
) (*executor.Machine, error) {
	// Refused here, before the system would end the process in the middle.
	if err := EnoughMemory([]*planir.Plan{p}, held, machine.FreeMemory()); err != nil {
		return nil, fmt.Errorf("run plan: %w", err)
	}
	// Lanes spin on their own threads; streaming, signals and the collector need threads beside them.
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), executor.Threads(p)+2))
	return executor.Open(ctx, p, UntilDone(ctx, src), o)
}

// entry returns the plan that the bundle begins with.
func (b *opened) entry() (*planir.Plan, error) { return b.plan(b.Manifest().Entrypoint) }

// plan reads a plan of the bundle and checks it.
func (b *opened) plan(name string) (*planir.Plan, error) {
	data, err := b.blobWithRole(name, bundle.RolePlan)
	if err != nil {
		return nil, err
	}
	plan, err := planir.Decode(data)
	if err != nil {
		return nil, err
	}
	return plan, planir.Check(plan).Err()
}

// Names of blobs.
const (
	tokenizerBlob   = "tokenizer"
	configBlob      = "config"
	prefixBlob      = "prefix"
	selfTestBlob    = "self-test"
	referencePrefix = "reference/"
	referencePlan   = referencePrefix + "plan"
)

// tokenizer reads the tokenizer, if there is one.
func (b *opened) tokenizer() (*tokenizer.Unbound, error) {
	if !b.Has(tokenizerBlob) {
		return nil, nil
	}
	data, err := b.blobWithRole(tokenizerBlob, bundle.RoleTokenizer)
	if err != nil {
		return nil, err
	}
	var config []byte
	if b.Has(configBlob) {
		if config, err = b.blobWithRole(configBlob, bundle.RoleConfig); err != nil {
			return nil, err
		}
	}
	return tokenizer.Read(data, config)
}

// computedPrefix returns the prefix that the bundle's plan has computed, nil where there is none.
func (b *opened) computedPrefix(plan *planir.Plan) (*prefix.Prefix, error) {
	if !b.Has(prefixBlob) {
		return nil, nil
	}
	data, err := b.blobWithRole(prefixBlob, bundle.RolePrefix)
	if err != nil {
		return nil, err
	}
	return prefix.Decode(data, plan)
}

// programs gives the drivers that build programs for the plan the binaries of the bundle, and a cache for what they
// build; strict refuses to build. The function that is returned closes the cache, and warns where what was built is not kept.
func (b *opened) programs(ui *cli.Streams, plan *planir.Plan, drivers []driver.Driver, strict bool) ([]driver.Driver,
	func()) {
	builds := func(drv driver.Driver) bool {
		_, builds := drv.(driver.Prebuilder)
		return builds && slices.ContainsFunc(plan.Procs, func(proc planir.Proc) bool { return proc.Driver == drv.Name() })
	}
	if !slices.ContainsFunc(drivers, builds) {
		return drivers, func() {}
	}
	store := &programs.Store{Refuse: strict, Bundle: func(name string) ([]byte, bool) {
		if !b.Has(name) {
			return nil, false
		}
		data, err := b.blobWithRole(name, bundle.RoleGPUKernel)
		return data, err == nil
	}}
	var unkept error
	if !strict {
		dir, err := machine.CacheDir("")
		if err == nil {
			store.Cache, err = cas.Open(filepath.Join(dir, "programs"), cas.Options{MaxBytes: programs.MaxBytes, Now: time.Now})
		}
		if unkept = err; err != nil {
			store.Cache = nil
		}
	}
	return programs.Use(drivers, store), func() {
		if store.Cache != nil {
			_ = store.Cache.Close()
		}
		taken, failed := store.Taken()
		if unkept == nil {
			unkept = failed
		}
		if taken.Source > 0 && unkept != nil {
			ui.Warnf("the device's compiler built %d programs, and does so at every start: %v", taken.Source, unkept)
		}
	}
}

// selfTest tests the devices of the plan before they are used, unless they are known to have passed. force tests again.
func (b *opened) selfTest(ctx context.Context, ui *cli.Streams, plan *planir.Plan, drivers []driver.Driver,
	deadline time.Duration, force bool) error {
	tested := &verdicts.Bundle{Plan: plan, Source: UntilDone(ctx, b), Digest: b.Digest().String(),
		Product: b.Manifest().Product}
	if b.Has(selfTestBlob) {
		tested.Test = func() (*selftest.Test, error) {
			data, err := b.blobWithRole(selfTestBlob, bundle.RoleSelfTest)
			if err != nil {
				return nil, err
			}
			return selftest.Decode(data, plan)
		}
	}
	return b.noteLeftBehind(verdicts.Ensure(ctx, ui, tested,
		verdicts.Options{Drivers: drivers, Deadline: deadline, Force: force}))
}

// async runs f on a goroutine. The function that it returns waits for the result of f, and panics if f did.
func async[T any](f func() (T, error)) func() (T, error) {
	type outcome struct {
		v     T
		err   error
		panic any
	}
	done := make(chan outcome, 1)
	go func() {
		var result outcome
		defer func() {
			result.panic = recover()
			done <- result
		}()
		result.v, result.err = f()
	}()
	wait := sync.OnceValue(func() outcome { return <-done })
	return func() (T, error) {
		outcome := wait()
		if outcome.panic != nil {
			panic(outcome.panic)
		}
		return outcome.v, outcome.err
	}
}
