// Package runcmd knows the command line of hetrun, which hetc run shares: it verifies a bundle for
// this machine, loads its plan onto the processors, and generates text, logits or timings.
package runcmd

import (
	_ "embed"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/accept"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/executor"
)

// options are the flags.
type options struct {
	// Which bundles are accepted: trusted keys, rollback, and where the last accepted version is stored.
	terms accept.Terms
	// What is continued or answered: exactly one of prompt, promptFile, prompts, tokens and messages is given, or
	// bench.
	prompt     string
	promptFile string
	prompts    string
	tokens     string
	// chat takes a prompt as a user's message, behind the system message.
	chat      bool
	system    string
	messages  string
	maxTokens int
	sampler   executor.Sampler
	// check also executes the bundle's reference; dumpLogits is a file for the logits of all positions, instead of
	// generating.
	check      bool
	dumpLogits string
	// bench measures rounds of a prompt of promptLen tokens and gen decoded ones.
	bench     bool
	promptLen int
	gen       int
	rounds    int
	// What is told besides: the time of every step, how the first token's time was spent, and a file of events.
	steps      bool
	stats      bool
	trace      string
	anyMachine bool
	selfTest   bool // test the devices again
	noPrefix   bool // the computed prefix of the bundle is left alone
	strict     bool // programs come from the bundle as binaries, or not at all
	simulates  bool // hetc run: also what was made for a simulated SoC
	// A lane that finishes no step for this long is given up.
	deadline time.Duration
}

// longHelp is the long description of the command, with %d for traceEvents.
//
//go:embed long.txt
var longHelp string

// New returns the command. drivers yields what it may open a plan's processors with; with simulates it
// also runs bundles that were made for a simulated SoC, on whatever machine this is.
func New(
	ui *cli.Streams, use string, simulates bool, drivers func(*planir.Plan) ([]driver.Driver, error),
) *cobra.Command {
	given := options{simulates: simulates}
	cmd := &cobra.Command{
		Use: use + " BUNDLE --trust KEY.pub (--prompt TEXT [--chat] | --messages FILE | --prompts FILE | --tokens " +
			"1,5,7 | --bench)",
		Short: "verify a bundle and execute it on this machine",
		Long:  fmt.Sprintf(strings.TrimSuffix(longHelp, "\n"), traceEvents),
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return diag.New(diag.ClassUsage, "%s: got %d arguments, want one bundle", c.CommandPath(), len(args)).
					WithHint("usage: %s", c.UseLine())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.Required(cmd, "trust"); err != nil {
				return err
			}
			return run(cmd.Context(), ui, args[0], &given, cmd.Flags().Changed, drivers)
		},
	}
	given.register(cmd)
	return cmd
}

// register declares the flags.
func (o *options) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	o.terms.Register(flags)
	o.terms.RegisterCopy(flags)
	flags.StringVar(&o.prompt, "prompt", "", "text to continue")
	flags.StringVar(&o.promptFile, "prompt-file", "", "file with the text to continue, - for standard input")
	flags.BoolVar(&o.chat, "chat", false,
		"the prompt is a message: write it by the model's chat template, and answer")
	flags.StringVar(&o.system, "system", "", "system message in front, under --chat")
	flags.StringVar(&o.messages, "messages", "", "JSON file with a conversation to answer, - for standard input")
	flags.StringVar(&o.prompts, "prompts", "",
		"file with prompts to continue, one per line, or JSON lines (.jsonl), - for standard input")
	flags.StringVar(&o.tokens, "tokens", "", "token ids to continue, separated by commas")
	flags.IntVar(&o.maxTokens, "max-tokens", 64, "most tokens to generate")
	flags.Float64Var(&o.sampler.Temperature, "temperature", 0, "0 is greedy")
	flags.IntVar(&o.sampler.TopK, "top-k", 0, "draw from the k likeliest tokens, 0: all")
	flags.Float64Var(&o.sampler.TopP, "top-p", 0, "draw from the smallest set of this probability, 0: all")
	flags.Uint64Var(&o.sampler.Seed, "seed", 0, "seed of sampling; same seed, same text")
	flags.BoolVar(&o.check, "check", false, "also execute the reference program and fail unless both agree")
	flags.StringVar(&o.dumpLogits, "dump-logits", "",
		"write the logits of every prompt position to this safetensors file")
	flags.BoolVar(&o.selfTest, "self-test", false,
		"test every kernel of the plan on its device, also where it has passed before")
	flags.BoolVar(&o.strict, "strict", false,
		"refuse programs for GPUs that the bundle does not hold as binaries for exactly this device and driver")
	flags.BoolVar(&o.noPrefix, "no-prefix", false,
		"process the whole prompt, also where the bundle brings the cache of its beginning")
	flags.BoolVar(&o.bench, "bench", false, "measure prefill and decode")
	flags.IntVar(&o.promptLen, "prompt-len", 256, "tokens of the prompt under --bench")
	flags.IntVar(&o.gen, "gen", 32, "tokens to generate under --bench")
	flags.IntVar(&o.rounds, "rounds", 5, "measured rounds under --bench, after one that is not counted")
	flags.BoolVar(&o.steps, "steps", false, "list every step with its time")
	flags.BoolVar(&o.stats, "stats", false,
		"show where the time up to the first token went, and how much memory was used")
	flags.StringVar(&o.trace, "trace", "", "write what ran when to this file, for ui.perfetto.dev")
	flags.BoolVar(&o.anyMachine, "any-machine", false, "do not refuse a bundle that was made for another machine")
	flags.DurationVar(&o.deadline, "deadline", 2*time.Minute, "give up when no step finishes for this long")
}
