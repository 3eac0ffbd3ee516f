package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/accept"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/cmd/internal/trial"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/quality"
)

type qualityOptions struct {
	bundle, plan, model, text, soc, calibration string

	terms      accept.Terms
	windows    int
	decode     bool
	maxKL      float64
	anyMachine bool
}

func newQuality(s *cli.Streams) *cobra.Command {
	var o qualityOptions
	c := &cobra.Command{
		Use:   "quality (--bundle app.hetb --trust NAME.pub | --plan plan.yaml) --model DIR --text FILE",
		Short: "measure what a bundle's precision costs, against float32",
		Long: `Executes the bundle, or the plan with weights packed in memory, and the same model in float32 on windows of a
text, and compares what they predict for every position: the mean Kullback-Leibler divergence in nats a
token, how often both find the same token most likely, and the perplexity of the text under both. Every
window starts with an empty cache. Intervals are 95 %, from the means of windows.

Prefill executes a window at once. Decode, token by token, is measured too where its precision differs from
prefill's, or with --decode. With --max-kl the exit code is 8 when the mean divergence of a phase is larger;
the table is printed all the same.

` + cli.ExitCodes,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := cli.Required(c, "model", "text"); err != nil {
				return err
			}
			if (o.bundle == "") == (o.plan == "") {
				return diag.New(diag.ClassUsage, "%s: want one of --bundle and --plan", c.CommandPath()).WithHint("usage: %s", c.UseLine())
			}
			if o.bundle != "" {
				if err := cli.Required(c, "trust"); err != nil {
					return err
				}
			}
			if o.bundle != "" && o.calibration != "" {
				return diag.New(diag.ClassUsage, "--calibration is for --plan, which is not there").WithHint("a bundle's weights are packed already: leave it out")
			}
			for _, f := range append([]string{"any-machine"}, accept.Flags...) {
				if o.plan != "" && c.Flags().Changed(f) {
					return diag.New(diag.ClassUsage, "--%s is for --bundle, which is not there", f).WithHint("leave it out")
				}
			}
			if c.Flags().Changed("max-kl") && !(o.maxKL >= 0) {
				return diag.New(diag.ClassUsage, "--max-kl %v: want 0 or more", o.maxKL).WithHint("8 bit per row costs about 0.001, 4 bit about 0.02")
			}
			if o.windows < 0 || o.windows == 1 {
				return diag.New(diag.ClassUsage, "--windows %d: want at least 2, or 0 for the whole text", o.windows).WithHint("an interval needs two windows")
			}
			return o.run(c.Context(), s, c.Flags().Changed("max-kl"))
		},
	}
	f := c.Flags()
	f.StringVar(&o.bundle, "bundle", "", "bundle to measure")
	o.terms.Register(f)
	o.terms.RegisterCopy(f)
	f.StringVar(&o.plan, "plan", "", "plan to measure instead, with weights packed in memory")
	f.StringVar(&o.calibration, "calibration", "", "calibration that the plan was made with")
	f.StringVar(&o.model, "model", "", "directory of the model it was made from: the reference")
	f.StringVar(&o.text, "text", "", "text to read, of the kind the model will see")
	f.StringVar(&o.soc, "soc", "", "SoC file of a simulated plan whose SoC is not in the catalog")
	f.IntVar(&o.windows, "windows", 60, "windows of 256 tokens to read from the text's beginning, 0: all")
	f.BoolVar(&o.decode, "decode", false, "measure decode even where its precision is prefill's")
	f.Float64Var(&o.maxKL, "max-kl", 0, "fail when the mean divergence of a phase is larger")
	f.BoolVar(&o.anyMachine, "any-machine", false, "do not refuse a bundle that was made for another machine")
	return c
}

// phase is the quality of one phase.
type phase struct {
	Phase string `json:"phase"`
	quality.Result
	step  int // tokens a call
	tally quality.Tally
}

func (o *qualityOptions) run(ctx context.Context, s *cli.Streams, limited bool) (err error) {
	m, err := models.Open(o.model)
	if err != nil {
		return err
	}
	defer m.Close()
	ref, err := trial.Open(ctx, m)
	if err != nil {
		return err
	}
	what, p, src, held, err := o.candidate(ctx, s, m)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	if p.Model.Digest != ref.Digest {
		return diag.New(diag.ClassInput, "%s was made from model %q with digest %.12s, and %q has %.12s", what, p.Model.Name, p.Model.Digest, o.model, ref.Digest).
			WithHint("give the directory of the model it was made from")
	}
	text, err := ref.ReadText(o.text, o.windows, min(quality.WindowTokens, p.MaxContext))
	if err != nil {
		return err
	}
	size := len(text.Windows[0].Tokens)
	plan, err := ref.Plan(size, trial.Float32, nil)
	if err != nil {
		return err
	}
	soc, err := socOf(p, o.soc)
	if err != nil {
		return err
	}
	x, err := ref.Open(ctx, plan, nil, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	y, err := runcmd.Execute(ctx, p, src, held, executor.Options{Drivers: drivers(soc)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, y.Close()) }()

	phases := []*phase{{Phase: "prefill", step: size}}
	if o.decode || decodesOtherwise(p) {
		phases = append(phases, &phase{Phase: "decode", step: 1})
	}
	if err := o.compare(ctx, s, text, x.Machine, y, phases); err != nil {
		return err
	}
	s.Printf("%s against float32: %d windows of %d tokens\n", what, len(text.Windows), size)
	showStatic(s, p)
	var rows [][]string
	for _, ph := range phases {
		if ph.Result, err = ph.tally.Result(); err != nil {
			return err
		}
		r := &ph.Result
		rows = append(rows, []string{ph.Phase,
			spread(r.KL, 1, "%.6f"), spread(r.TopAgreement, 100, "%.2f") + " %",
			spread(r.Perplexity, 1, "%.3f"), fmt.Sprintf("%.3f", r.ReferencePerplexity.Mean), spread(r.PerplexityRatio, 1, "%.4f")})
	}
	s.Table([]string{"phase", ">mean KL", ">same top token", ">perplexity", ">of float32", ">ratio"}, rows)
	if err := s.Result(map[string]any{"of": what, "model": ref.Digest, "text_sha256": text.SHA256, "window_tokens": size, "phases": phases}); err != nil {
		return err
	}
	for _, ph := range phases {
		if limited && !(ph.KL.Mean <= o.maxKL) {
			return diag.New(diag.ClassRun, "%s: mean KL of %s is %.6f, want at most %v", what, ph.Phase, ph.KL.Mean, o.maxKL).
				WithCode("quality.kl").WithHint("permit only more precise schemes in the workload and solve again")
		}
	}
	return nil
}

// spread writes a mean with its interval.
func spread(e quality.Estimate, scale float64, format string) string {
	return fmt.Sprintf(format+" ("+format+".."+format+")", scale*e.Mean, scale*e.Low, scale*e.High)
}

// candidate opens what is measured: what it is called, its plan, where its blobs come from, and how many bytes
// of weights are to be allocated.
func (o *qualityOptions) candidate(ctx context.Context, s *cli.Streams, m *models.Model) (string, *planir.Plan, runcmd.Source, int64, error) {
	if o.bundle != "" {
		p, src, err := runcmd.OpenPlan(s, o.bundle, o.terms, o.anyMachine)
		return o.bundle, p, src, 0, err
	}
	p, err := plantext.Read(o.plan)
	if err != nil {
		return "", nil, nil, 0, err
	}
	soc, err := socOf(p, o.soc)
	if err != nil {
		return "", nil, nil, 0, err
	}
	if err := check.Plan(p, m, soc).Err(); err != nil {
		return "", nil, nil, 0, err
	}
	cal, err := readCalibration(o.calibration)
	if err != nil {
		return "", nil, nil, 0, err
	}
	c, err := emit.NewCalibrated(ctx, p, m, cal, compilers(soc))
	return o.plan, p, c, runcmd.WeightBytes(p), err
}

// decodesOtherwise reports whether a node's precision depends on the number of rows.
func decodesOtherwise(p *planir.Plan) bool {
	for i := range p.Decisions {
		d := &p.Decisions[i]
		if one := p.DecisionFor(d.Node, 1); one != nil && one.Scheme != d.Scheme && !p.Decodes(d.Rows) {
			return true
		}
	}
	return false
}

// compare executes both window by window, so that the logits of one window are held at a time.
func (o *qualityOptions) compare(ctx context.Context, s *cli.Streams, text *trial.Text, x, y *executor.Machine, phases []*phase) (err error) {
	r, err := quality.NewReference()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	step := progress(s, "quality")
	for i := range text.Windows {
		r.Clear()
		if err := r.Add(ctx, x, text.Windows[i]); err != nil {
			return fmt.Errorf("window %d: %w", i, err)
		}
		for _, ph := range phases {
			if err := r.Compare(ctx, y, 0, ph.step, &ph.tally); err != nil {
				return fmt.Errorf("window %d: %s: %w", i, ph.Phase, err)
			}
		}
		step(i+1, len(text.Windows), "")
	}
	return nil
}

// progress returns what shows on a terminal how much of the work is done and how long the rest will take.
func progress(s *cli.Streams, what string) func(done, all int, part string) {
	line := s.Line(false)
	return func(done, all int, part string) {
		line.Bar(what, done, all, part)
		if done == all {
			line.End()
		}
	}
}
