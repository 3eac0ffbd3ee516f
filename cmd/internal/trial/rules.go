package trial

import (
	"context"
	"errors"
	"fmt"

	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/runtime/quality"
)

// RuleOptions say what CompareRules measures.
type RuleOptions struct {
	Text      *Text
	Attention *calibration.Attention
	Rules     []string
	Densities []float64
	Least     int // positions that are kept at least, by every rule
	// Journal is a file that keeps what was measured until all is done: another run goes on from there.
	Journal  string
	Progress func(done, all int, what string)
}

// RuleResult is what a rule of selection costs at a density, against dense attention.
type RuleResult struct {
	Rule    string  `json:"rule"`
	Density float64 `json:"density"`
	quality.Result
	// Recalled is the share of the tokens of planted passages that were found, half a window after they were read.
	Recalled float64 `json:"recalled"`
}

// RuleDense is the name of dense attention among results.
const RuleDense = "dense"

// passageTokens is the length of planted passages, and passages how many windows have one.
const (
	passageTokens = 64
	passages      = 2
)

// CompareRules measures what rules of selection cost on every window of a text: divergence and perplexity, and how much
// of a passage is recalled half a window later. The first result is dense attention, which by definition loses nothing.
func CompareRules(ctx context.Context, model *Model, options RuleOptions) (_ []RuleResult, err error) {
	run, err := openAttending(ctx, model, options.Text, options.Text.Windows)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, run.close()) }()
	run.progress = options.Progress
	key, err := options.key(model)
	if err != nil {
		return nil, err
	}
	if run.journal, err = openJournal(options.Journal, key); err != nil {
		return nil, err
	}
	planted := min(passages, len(run.compared))
	run.all = len(run.compared) + (len(run.compared)+planted)*(1+len(options.Rules)*len(options.Densities))
	if err := run.reference(ctx); err != nil {
		return nil, err
	}
	chosen := []selection{{RuleDense, 1, 0}}
	for _, rule := range options.Rules {
		for _, density := range options.Densities {
			chosen = append(chosen, selection{rule, density, options.Least})
		}
	}
	var results []RuleResult
	for _, by := range chosen {
		result := RuleResult{Rule: by.rule, Density: by.density}
		measured, err := run.measureRule(ctx, options.Attention, by)
		if err != nil {
			return nil, err
		}
		result.Result = *measured
		if result.Recalled, err = run.recalled(ctx, options.Attention, by, planted); err != nil {
			return nil, err
		}
		results = append(results, result)
	}
	return results, nil
}

// key says of which model, text and calibration a journal is.
func (o *RuleOptions) key(model *Model) (string, error) {
	cal := calibration.Calibration{Schema: calibration.Schema, Attention: o.Attention}
	digest, err := cal.Digest()
	return fmt.Sprintf("%s %s %d windows of %d, heads of %s", model.Digest, o.Text.SHA256, len(o.Text.Windows),
		len(o.Text.Windows[0].Tokens), digest), err
}

// recalled returns the share of planted passages that is recalled.
func (a *attending) recalled(ctx context.Context, attention *calibration.Attention, by selection, count int) (float64,
	error) {
	what := by.String() + ", recalled"
	if known := a.journal.share(what); known != nil {
		a.done += count
		return *known, nil
	}
	right, all := 0, 0
	err := a.withRule(ctx, attention, by, func(machine *Machine) error {
		for i := range count {
			prompt, from, err := quality.Passage(a.compared[i].Tokens, passageTokens, uint64(i))
			if err != nil {
				return err
			}
			hits, tried, err := quality.Recall(ctx, machine.Machine, prompt, from)
			if err != nil {
				return fmt.Errorf("passage %d: %w", i, err)
			}
			right, all = right+hits, all+tried
			a.step(what)
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", by, err)
	}
	share := float64(right) / float64(all)
	return share, a.journal.append(entry{What: what, Share: &share})
}
