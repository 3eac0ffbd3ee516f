package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/accept"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/precision"
	"github.com/hetc/hetc/cmd/internal/trial"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
)

// newQuality answers how far a bundle or plan is from float32 on a text; precision.QualityOptions.Run compares both
// executions.
func newQuality(ui *cli.Streams) *cobra.Command {
	var quality qualityCommand
	cmd := &cobra.Command{
		Use:   "quality (--bundle app.hetb --trust NAME.pub | --plan plan.yaml) --model DIR --text FILE",
		Short: "measure what a bundle's precision costs, against float32",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return quality.run(cmd, ui) },
	}
	quality.register(cmd)
	return cmd
}

// qualityCommand are the flags of hetc quality: of a bundle or plan, and of what is measured on the model itself instead,
// rules of sparse attention or rows of experts that are dropped.
type qualityCommand struct {
	opts      precision.QualityOptions
	attention bool
	rules     precision.RuleOptions
	drops     precision.DropOptions
}

// register declares the flags.
func (q *qualityCommand) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&q.opts.Bundle, "bundle", "", "bundle to measure")
	q.opts.Terms.Register(flags)
	q.opts.Terms.RegisterCopy(flags)
	flags.StringVar(&q.opts.Plan, "plan", "", "plan to measure instead, with weights packed in memory")
	flags.StringVar(&q.opts.Calibration, "calibration", "", "calibration that the plan was made with")
	flags.StringVar(&q.opts.Model, "model", "", "directory of the model it was made from: the reference")
	flags.StringVar(&q.opts.Text, "text", "", "text to read, of the kind the model will see")
	flags.StringVar(&q.opts.SoC, "soc", "", "SoC file of a simulated plan whose SoC is not in the catalog")
	flags.IntVar(&q.opts.Windows, "windows", 60, "windows of 256 tokens to read from the text's beginning, 0: all")
	flags.BoolVar(&q.opts.Decode, "decode", false, "measure decode even where its precision is prefill's")
	flags.Float64Var(&q.opts.MaxKL, "max-kl", 0, "fail when the mean divergence of a phase is larger")
	flags.BoolVar(&q.opts.AnyMachine, "any-machine", false, "do not refuse a bundle that was made for another machine")
	flags.IntVar(&q.opts.WindowTokens, "window-tokens", 0, "tokens of a window (default 256, with --attention 2048)")

	flags.BoolVar(&q.attention, "attention", false, "compare rules by which attention is sparse, of the model in float32")
	flags.Float64SliceVar(&q.drops.Shares, "drop", trial.DropShares,
		"shares of the rows of experts to drop, of the model in float32: what each costs by each rule")
	flags.StringSliceVar(&q.drops.Rules, "salience", op.Saliences, "rules by which --drop chooses rows")
	flags.StringSliceVar(&q.rules.Rules, "rules", calibration.Rules, "rules that --attention compares")
	flags.Float64SliceVar(&q.rules.Densities, "densities", trial.AttentionDensities,
		"shares of positions that queries keep, for --attention")
	flags.IntVar(&q.rules.Least, "least", 0, "number of positions that queries keep at least, for --attention")
	flags.StringVar(&q.rules.Journal, "journal", "",
		"file that keeps what --attention has measured: the same command goes on from there")
}

// run checks the flags and measures what they ask for.
func (q *qualityCommand) run(cmd *cobra.Command, ui *cli.Streams) error {
	if err := cli.Required(cmd, "model", "text"); err != nil {
		return err
	}
	if err := partsOfQuality(cmd, q.attention); err != nil {
		return err
	}
	if err := windowFlags(&q.opts); err != nil {
		return err
	}
	switch {
	case q.attention:
		return q.compareRules(cmd, ui)
	case cmd.Flags().Changed("drop"):
		return q.dropRows(cmd, ui)
	}
	if err := qualityFlags(cmd, &q.opts); err != nil {
		return err
	}
	return q.opts.Run(cmd.Context(), ui, cmd.Flags().Changed("max-kl"))
}

// compareRules is hetc quality --attention.
func (q *qualityCommand) compareRules(cmd *cobra.Command, ui *cli.Streams) error {
	if err := ofTheModel(&q.opts, "--attention compares"); err != nil {
		return err
	}
	if err := cli.Required(cmd, "calibration"); err != nil {
		return err
	}
	q.rules.Model, q.rules.Text, q.rules.Calibration = q.opts.Model, q.opts.Text, q.opts.Calibration
	q.rules.Windows, q.rules.WindowTokens = q.opts.Windows, q.opts.WindowTokens
	return q.rules.Run(cmd.Context(), ui)
}

// dropRows is hetc quality --drop.
func (q *qualityCommand) dropRows(cmd *cobra.Command, ui *cli.Streams) error {
	if err := ofTheModel(&q.opts, "--drop measures"); err != nil {
		return err
	}
	q.drops.Model, q.drops.Text = q.opts.Model, q.opts.Text
	q.drops.Windows, q.drops.WindowTokens = q.opts.Windows, q.opts.WindowTokens
	return q.drops.Run(cmd.Context(), ui)
}

// partsOfQuality refuses flags that would have no effect: a user may take a limit that is never compared for kept.
func partsOfQuality(cmd *cobra.Command, attention bool) error {
	drop := cmd.Flags().Changed("drop")
	if attention && drop {
		return diag.New(diag.ClassUsage, "--attention and --drop exclude each other").WithHint("run them separately")
	}
	type part struct {
		flag  string
		heard bool
		of    string // what the flag is for
	}
	parts := []part{
		{"rules", attention, "needs --attention"},
		{"densities", attention, "needs --attention"},
		{"least", attention, "needs --attention"},
		{"journal", attention, "needs --attention"},
		{"salience", drop, "needs --drop"},
		{"calibration", !drop, "cannot be combined with --drop"},
		{"soc", !attention && !drop, "needs --plan"},
		{"decode", !attention && !drop, "needs --bundle or --plan"},
		{"max-kl", !attention && !drop, "needs --bundle or --plan"},
	}
	for _, flag := range append([]string{"any-machine"}, accept.Flags...) {
		parts = append(parts, part{flag, cmd.Flags().Changed("bundle"), "needs --bundle"})
	}
	for _, part := range parts {
		if cmd.Flags().Changed(part.flag) && !part.heard {
			return diag.New(diag.ClassUsage, "--%s %s", part.flag, part.of).WithHint("leave it out")
		}
	}
	return nil
}

// ofTheModel refuses --bundle and --plan where rules are measured on the model itself.
func ofTheModel(opts *precision.QualityOptions, does string) error {
	if opts.Bundle != "" || opts.Plan != "" {
		return diag.New(diag.ClassUsage, "%s rules of the model itself", does).
			WithHint("leave --bundle and --plan out")
	}
	return nil
}

// qualityFlags checks the flags for the quality of a bundle or of a plan.
func qualityFlags(cmd *cobra.Command, opts *precision.QualityOptions) error {
	if (opts.Bundle == "") == (opts.Plan == "") {
		return diag.New(diag.ClassUsage, "%s: want one of --bundle and --plan", cmd.CommandPath()).
			WithHint("usage: %s", cmd.UseLine())
	}
	if opts.Bundle != "" {
		if err := cli.Required(cmd, "trust"); err != nil {
			return err
		}
	}
	if opts.Bundle != "" && opts.Calibration != "" {
		return diag.New(diag.ClassUsage, "--calibration needs --plan").
			WithHint("a bundle's weights are packed already: leave it out")
	}
	if cmd.Flags().Changed("max-kl") && !(opts.MaxKL >= 0) {
		return diag.New(diag.ClassUsage, "--max-kl %v: want 0 or more", opts.MaxKL).
			WithHint("8 bit per row costs about 0.001, 4 bit about 0.02")
	}
	return nil
}

// windowFlags checks how the text is cut, whatever is measured on it.
func windowFlags(opts *precision.QualityOptions) error {
	if opts.Windows < 0 || opts.Windows == 1 {
		return diag.New(diag.ClassUsage, "--windows %d: want at least 2, or 0 for the whole text",
			opts.Windows).WithHint("an interval needs two windows")
	}
	if opts.WindowTokens < 0 {
		return diag.New(diag.ClassUsage, "--window-tokens %d: want a positive number", opts.WindowTokens)
	}
	return nil
}
