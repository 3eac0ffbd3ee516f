package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bench"
	"github.com/hetc/hetc/cmd/internal/cli"
)

// newBench groups the measurements; each is a command of its own below.
func newBench(ui *cli.Streams) *cobra.Command {
	cmd := &cobra.Command{Use: "bench",
		Short: "measure plans and kernels against alternatives and bounds in the same run", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	cmd.AddCommand(newBenchProcessors(ui), newBenchStrategies(ui), newBenchExperts(ui), newBenchChunks(ui),
		newBenchOutliers(ui), newBenchHeads(ui), newBenchKernels(ui),
		newBenchAttention(ui), newBenchEngines(ui), newBenchPlans(ui), newBenchSolver(ui), newBenchServing(ui),
		newBenchDrafts(ui), newBenchMeeting(ui))
	return cmd
}

// solvedFlags are those of the benches that solve every plan they measure from one record.
func solvedFlags(cmd *cobra.Command, options *bench.Options) {
	flags := cmd.Flags()
	flags.StringVar(&options.Model, "model", "", "model directory with weights")
	flags.StringVar(&options.SoC, "soc", "", "SoC file")
	flags.StringVar(&options.Record, "record", "", "record of hetc profile, from which every plan is solved")
	flags.StringVar(&options.Workload, "workload", "", "workload file")
}
