// Package bundling knows how a plan becomes a signed bundle for this machine, a simulated one or a
// target's device, and how a bundle is described to the user.
package bundling

import (
	"context"
	"errors"
	"fmt"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/tokenizer"
	"github.com/hetc/hetc/socs"
)

// Emit checks the plan for its model, and for the SoC where there is one, and writes a signed
// bundle to path. machine is the plan's SoC, nil for this machine.
func Emit(ctx context.Context, path string, options emit.Options, machine *socs.SoC) (id bundle.Digest, err error) {
	// Nothing is packed for a plan that no runtime would accept.
	if err := check.Plan(options.Plan, options.Model, machine).Err(); err != nil {
		return bundle.Digest{}, err
	}
	options.Compilers, options.Toolchain = bindings.Compilers(machine), cli.Version
	options.OS, options.Arch = targetSystem(&options, machine)
	options.SelfTest, options.SelfTestOptions = host.New(), map[string]string{"kernels": "reference"}
	if err := TryTokenizer(ctx, options.Model, options.Files); err != nil {
		return bundle.Digest{}, err
	}
	memo, err := openMemo(&options)
	if err != nil {
		return bundle.Digest{}, err
	}
	if memo != nil {
		options.Memo, options.Scratch = memo, memo.dir
		// Closing removes temporary files, which may fail.
		defer func() { err = errors.Join(err, memo.cache.Close()) }()
	}
	return emit.Emit(ctx, path, options)
}

// TryTokenizer refuses to sign a tokenizer that hetrun could not read, and a chat template that
// exceeds the limits of time, memory or recursion. A template that fails otherwise is accepted:
// hetrun --chat reports it. files are the model's, by role.
func TryTokenizer(ctx context.Context, model *models.Model, files map[string][]byte) error {
	text, ok := files["tokenizer"]
	if !ok {
		return nil
	}
	tok, err := tokenizer.New(text, files["config"], model.BOS)
	if err != nil {
		return fmt.Errorf("model %q: tokenizer.json: %w", model.Dir, err)
	}
	if _, err := tok.TryChat(ctx); err != nil {
		return fmt.Errorf("model %q: %w", model.Dir, err)
	}
	return nil
}

// verifiedPlan decodes and checks the plan of a bundle whose every byte was verified.
func verifiedPlan(b *bundle.Bundle) (*planir.Plan, error) {
	plan, err := planOf(b)
	if err != nil {
		return nil, err
	}
	return plan, planir.Check(plan).Err()
}

// ClaimedPlan returns the plan in a bundle file of which nothing was verified, nil where none can be
// read.
func ClaimedPlan(path string) *planir.Plan {
	unverified, err := bundle.Inspect(path)
	if err != nil {
		return nil
	}
	// Bytes of an unverified file are bounded, decoded strictly and checked like any plan.
	text, err := bundle.Claimed(path, unverified.Manifest.Entrypoint, maxClaimedPlan)
	if text == nil || err != nil {
		return nil
	}
	plan, err := planir.Decode(text)
	if err != nil || planir.Check(plan).Err() != nil {
		return nil
	}
	return plan
}

// maxClaimedPlan bounds in bytes what is read of an unverified plan.
const maxClaimedPlan = 64 << 20
