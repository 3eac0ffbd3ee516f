package bundling

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/prefix"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/tokenizer"
	"github.com/hetc/hetc/socs"
)

// maxPrefixText bounds the text of a prefix in bytes.
const maxPrefixText = 4 << 20

// computePrefix has emit compute the cache of the file's text. The plan must be one that this machine executes: nothing
// else computes the numbers that it would.
func (o *Options) computePrefix(ui *cli.Streams, machine *socs.SoC) error {
	data, err := wholefile.Read(o.PrefixFile, maxPrefixText)
	if err != nil {
		return diag.New(diag.ClassOf(err), "--prefix: %w", err)
	}
	text := strings.TrimSpace(string(data))
	switch {
	case text == "":
		return diag.New(diag.ClassInput, "--prefix %q is empty, want the text that prompts begin with", o.PrefixFile).
			WithHint("leave --prefix out where prompts have no beginning in common")
	case !utf8.ValidString(text):
		return diag.New(diag.ClassInput, "--prefix %q is no text in UTF-8", o.PrefixFile)
	case o.Target.Name != "" || o.Plan.SoC.Simulated:
		return diag.New(diag.ClassUsage, "--prefix is computed by the plan's processors, and those of %q are not here",
			o.Plan.SoC.Name).WithHint("emit on the machine that the plan is for")
	case len(o.Files["tokenizer"]) == 0:
		return diag.New(diag.ClassInput, "--prefix needs a tokenizer, and the model has none")
	}
	tok, err := tokenizer.New(o.Files["tokenizer"], o.Files["config"], o.Plan.Model.BOS)
	if err != nil {
		return err
	}
	o.Prefix = func(ctx context.Context, plan *planir.Plan, content *emit.Content) ([]byte, error) {
		ids, err := o.prefixTokens(ctx, tok, text, plan)
		if err != nil {
			return nil, err
		}
		ui.Notef("computing the cache of %d tokens", len(ids))
		running, err := runcmd.Execute(ctx, plan, content, runcmd.WeightBytes(plan),
			executor.Options{Drivers: bindings.Drivers(machine), Checked: true, OnDemand: true})
		if err != nil {
			return nil, err
		}
		computed := prefix.Prefix{Tokens: ids}
		err = running.Do(ctx, func(control *executor.Control) (err error) {
			if _, err = control.Extend(0, ids, executor.WantNone, nil); err == nil {
				computed.Cache, err = control.Cached(0, len(ids))
			}
			return err
		})
		if failed := running.Close(); err == nil {
			err = failed
		}
		if err != nil {
			return nil, err
		}
		return prefix.Encode(plan, &computed)
	}
	return nil
}

// prefixTokens returns the tokens of a text that prompts of the plan can reuse when they begin with it.
func (o *Options) prefixTokens(
	ctx context.Context, tok tokenizer.Tokenizer, text string, plan *planir.Plan,
) ([]int32, error) {
	ids, err := beginning(ctx, tok, text)
	if err != nil {
		return nil, err
	}
	if len(ids) >= plan.MaxContext {
		return nil, diag.New(diag.ClassInput, "--prefix %q has %d tokens, want fewer than the %d of the plan's context",
			o.PrefixFile, len(ids), plan.MaxContext).
			WithHint("shorten the text, or solve with a larger context in the workload, up to the model's")
	}
	reuse := prefix.ReuseOf(plan)
	useful := reuse.Useful(ids, plan.MaxContext)
	if useful == 0 {
		return nil, diag.New(diag.ClassInput, "--prefix %q: no prompt could reuse its %d tokens: with the plan's "+
			"sparse attention or dropped rows they depend on the others of their call, and the prefix fills none",
			o.PrefixFile, len(ids)).
			WithHint("give a longer text, or solve with smaller buckets, or with dense attention")
	}
	return ids[:useful], nil
}

// beginning returns the tokens that every conversation with a system message begins with: those that its texts with two
// unlike questions have in common. Of a model without chat template they are those of prompts that begin with the text.
// A template that does not write a system message is an error: no conversation would begin with these tokens.
func beginning(ctx context.Context, tok tokenizer.Tokenizer, system string) ([]int32, error) {
	var both [2][]int32
	for i, question := range []string{"Why?", "7 apples"} {
		messages := []tokenizer.Message{{Role: "system", Content: system}, {Role: "user", Content: question}}
		// The times of both are decades apart: a date in the template is no common beginning.
		text, err := tok.Chat(ctx, messages,
			tokenizer.ChatOptions{AddGenerationPrompt: true, Now: time.Unix(int64(i)*1e9, 0).UTC()})
		switch {
		case err == nil:
			both[i], err = tok.Encode(text)
		case errors.Is(err, tokenizer.ErrNoTemplate):
			both[i], err = tok.Prompt(system + "\n" + question)
		}
		if err != nil {
			return nil, err
		}
	}
	same := 0
	for same < min(len(both[0]), len(both[1])) && both[0][same] == both[1][same] {
		same++
	}
	if same == 0 {
		return nil, diag.New(diag.ClassInput, "conversations with this system message have no beginning in common").
			WithHint("a template that writes the date first has none")
	}
	return both[0][:same], nil
}
