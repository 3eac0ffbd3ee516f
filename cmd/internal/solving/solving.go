// Package solving knows what a solve is made from: the inputs, engines and working memory that flags name,
// and the log of what engines did.
package solving

import (
	"maps"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/measure"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
)

// Inputs are the flags that say what a plan is made from.
type Inputs struct {
	// One of SoC and Target, one of Record and Costs; facts may be "" for those in Record.
	SoC, Target, Record, Costs, facts, Model, Workload string
	AcceptNoisy                                        bool // a record of which most is noisy is good enough
	// of a command that makes a plan to execute, nil for others
	Warn *cli.Streams
}

// Flags adds the flags to a command.
func (in *Inputs) Flags(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&in.SoC, "soc", "", "SoC file or catalog name")
	flags.StringVar(&in.Target, "target", "",
		"instead of --soc: plan for the device of this SoC, for emit --target (see hetc socs list)")
	flags.StringVar(&in.Record, "record", "", "record of hetc profile")
	flags.StringVar(&in.Costs, "costs", "", "costs of hetc fit")
	flags.StringVar(&in.facts, "facts", "",
		"record with compiler facts of the target (hetc profile --compiler-only); default: those in --record")
	flags.StringVar(&in.Model, "model", "", "model directory or catalog name")
	flags.StringVar(&in.Workload, "workload", "", "workload file; default: prompts of any length, stored precision")
}

// Given reports whether one of the inputs was named, of a command that does without any.
func (in *Inputs) Given() bool {
	return in.SoC+in.Target+in.Record+in.Costs+in.facts+in.Model+in.Workload != ""
}

// Open reads everything; the caller closes the model.
func (in *Inputs) Open(cmd *cobra.Command) (*solver.Input, error) {
	name, err := SoCOrTarget(cmd, in.SoC, in.Target)
	if err != nil {
		return nil, err
	}
	if err := cli.Required(cmd, "model"); err != nil {
		return nil, err
	}
	if (in.Record == "") == (in.Costs == "") {
		return nil, diag.New(diag.ClassUsage, "%s: want one of --record and --costs", cmd.CommandPath()).
			WithHint("hetc profile makes a record, hetc fit makes costs from it")
	}
	var soc *socs.SoC
	var facts *record.Set
	var costs *roofline.Costs
	if in.Record != "" {
		// A record may also hold compiler facts, which serve unless --facts names others.
		if soc, facts, costs, err = measure.OpenCosts(name, in.Record); err == nil && in.Warn != nil {
			err = measure.Steady(in.Warn, facts, in.Record, in.AcceptNoisy)
		}
	} else if soc, err = socs.Open(name); err == nil {
		costs, err = roofline.Open(in.Costs)
	}
	if err != nil {
		return nil, err
	}
	if in.facts != "" {
		if facts, err = in.readFacts(cmd); err != nil {
			return nil, err
		}
	}
	workload, err := measure.ReadWorkload(in.Workload)
	if err != nil {
		return nil, err
	}
	model, err := models.Open(in.Model)
	if err != nil {
		return nil, err
	}
	out := &solver.Input{
		Model: model, SoC: soc, Costs: costs, Workload: workload,
		Engine: bindings.AutoEngine(nil, solver.DefaultWorkingMemory), Facts: facts,
	}
	if in.Target != "" {
		if err := out.ForTarget(); err != nil {
			model.Close()
			return nil, err
		}
	}
	return out, nil
}

// readFacts reads --facts: what the compiler of the target said.
func (in *Inputs) readFacts(cmd *cobra.Command) (*record.Set, error) {
	if in.Target == "" {
		return nil, diag.New(diag.ClassUsage,
			"%s: --facts is what the compiler of a target said, and --target is missing", cmd.CommandPath())
	}
	facts, err := record.Open(in.facts)
	if err == nil && len(facts.Facts()) == 0 {
		err = diag.New(diag.ClassInput, "record %q has no compiler facts", in.facts).
			WithHint("hetc profile --compiler-only --target %s makes them", in.Target)
	}
	return facts, err
}

// SoCOrTarget is the SoC that one of --soc and --target names.
func SoCOrTarget(cmd *cobra.Command, soc, target string) (string, error) {
	switch {
	case cmd.Flags().Changed("soc") && cmd.Flags().Changed("target"):
		return "", diag.New(diag.ClassUsage, "%s: --soc %q and --target %q, want one of them", cmd.CommandPath(), soc,
			target).
			WithHint("--target is the SoC with only what its device executes")
	case cmd.Flags().Changed("target"):
		return target, nil
	}
	return soc, cli.Required(cmd, "soc")
}

// MaxMemory reads --max-memory, 0 where it is not given.
func MaxMemory(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	bytes, err := unit.ParseBytes(text)
	if err != nil || bytes <= 0 {
		return 0, diag.New(diag.ClassUsage, "--max-memory %q is no number of bytes above 0", text).
			WithHint("write it with a unit: 1.5GiB, 900MiB")
	}
	return int64(bytes), nil
}

// parts reads numbers by processor.
func parts(given map[string]string) (map[string]float64, error) {
	out := map[string]float64{}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		part, err := strconv.ParseFloat(given[name], 64)
		if err != nil {
			return nil, diag.New(diag.ClassUsage, "--ratio %s=%s: %q is no number", name, given[name], given[name]).
				WithHint("write parts of 1: npu=0.75,gpu=0.25")
		}
		out[name] = part
	}
	return out, nil
}
