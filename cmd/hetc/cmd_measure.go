package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/measure"
	"github.com/hetc/hetc/cmd/internal/solving"
	"github.com/hetc/hetc/profiler"
)

func newProbe(s *cli.Streams) *cobra.Command {
	var o measure.ProbeOptions
	c := &cobra.Command{
		Use:   "probe -o soc.yaml",
		Short: "describe this machine as a SoC file",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := cli.Required(c, "output"); err != nil {
				return err
			}
			return measure.Probe(c.Context(), s, &o)
		},
	}
	f := c.Flags()
	f.StringVarP(&o.Output, "output", "o", "", "SoC file to write")
	f.StringVar(&o.Name, "name", "host", "name of the SoC")
	f.BoolVar(&o.Force, "force", false, "replace an existing file")
	f.StringSliceVar(&o.Drivers, "driver", nil, "also describe the processors of this driver, such as ort; may be repeated")
	return c
}

func newProfile(s *cli.Streams) *cobra.Command {
	var o measure.ProfileOptions
	c := &cobra.Command{
		Use:   "profile (--soc soc.yaml | --target NAME) --model DIR -o rec.jsonl",
		Short: "measure the model's operator shapes on the real processors",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if o.SoC, err = solving.SoCOrTarget(c, o.SoC, o.Target); err != nil {
				return err
			}
			if err := cli.Required(c, "model"); err != nil {
				return err
			}
			if !o.DryRun {
				if err := cli.Required(c, "output"); err != nil {
					return err
				}
			}
			if o.CompilerOnly {
				return measure.CompilerFacts(c, s, &o)
			}
			return measure.Profile(c.Context(), s, &o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.SoC, "soc", "", "SoC file or catalog name")
	f.StringVar(&o.Target, "target", "", "instead of --soc: measure what solve --target needs of this SoC")
	f.StringVar(&o.Model, "model", "", "model directory or catalog name")
	f.StringVar(&o.Workload, "workload", "", "workload: its buckets and schemes are measured")
	f.StringVarP(&o.Out, "output", "o", "", "record to write")
	f.StringVar(&o.Budget, "budget", "", "time to spend, e.g. 60s or 10m; default as long as it takes")
	f.BoolVar(&o.Resume, "resume", false, "go on with an existing record")
	f.BoolVar(&o.Flagged, "flagged", false, "with --resume: also measure anew what is flagged (noisy, drift, few-samples)")
	f.BoolVar(&o.CompilerOnly, "compiler-only", false, "measure nothing: record what the target's compiler says about every graph")
	f.BoolVar(&o.DryRun, "dry-run", false, "list what would be measured")
	f.IntVar(&o.Rounds, "rounds", profiler.Rounds, "visits to every operator: fewer are faster and less certain")
	f.IntVar(&o.HeldOut, "held-out", 0, "measure this many operators for judging predictions")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the order of measurements and of the held-out operators")
	return c
}

func newFit(s *cli.Streams) *cobra.Command {
	var o measure.FitOptions
	c := &cobra.Command{
		Use:   "fit --soc soc.yaml --record rec.jsonl -o costs.yaml",
		Short: "fit latency models to a record",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := cli.Required(c, "soc", "record", "output"); err != nil {
				return err
			}
			return measure.Fit(c.Context(), s, &o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.SoC, "soc", "", "SoC file or catalog name")
	f.StringVar(&o.Record, "record", "", "record of hetc profile")
	f.StringVarP(&o.Output, "output", "o", "", "costs file to write")
	measure.AcceptNoisy(f, &o.AcceptNoisy)
	return c
}
