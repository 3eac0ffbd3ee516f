package traffic

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/cmd/internal/served"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/scheduler"
	"github.com/hetc/hetc/runtime/serving"
	"github.com/hetc/hetc/socs"
)

// Options are the flags of hetc simulate and hetc bench serving.
type Options struct {
	Plan, Trace, WriteTrace string
	Slots                   int
	Served                  string // of simulate: file with what program calls took in a server
	WriteServed             string // of bench serving: the same
	pattern                 Pattern
	prompt, output          string

	Model, SoC, Calibration string // of bench serving
	Rounds                  int
	Loads                   []float64
	LlamaGGUF               string // file of the same model for llama.cpp's server
	Tokens                  int    // of bench drafts
	Text                    string // file, of bench drafts

	given func(flag string) bool // whether the command line has it, nil: it has none
}

// drawing are the flags that say how a trace is drawn.
var drawing = []string{"seconds", "reactive", "proactive", "prompt-tokens", "output-tokens", "seed", "loads"}

// Register adds the flags of both commands.
func (o *Options) Register(flags *pflag.FlagSet) {
	o.given = flags.Changed
	flags.StringVar(&o.Plan, "plan", "", "plan")
	flags.StringVar(&o.Trace, "trace", "", "trace of requests, as JSON lines; without it, one is drawn")
	flags.StringVar(&o.WriteTrace, "write-trace", "", "write the trace that was drawn to this file")
	flags.IntVar(&o.Slots, "slots", 0, "requests in the cache at once, 0: all sequences of the plan")
	flags.Float64Var(&o.pattern.Seconds, "seconds", 60, "of a drawn trace")
	flags.Float64Var(&o.pattern.Reactive, "reactive", 6, "requests a minute of a drawn trace that somebody waits for")
	flags.Float64Var(&o.pattern.Proactive, "proactive", 30, "other requests a minute of a drawn trace")
	flags.StringVar(&o.prompt, "prompt-tokens", "32:128", "tokens of a drawn prompt, from:to")
	flags.StringVar(&o.output, "output-tokens", "8:32", "tokens to generate for a drawn request, from:to")
	flags.Uint64Var(&o.pattern.Seed, "seed", 1, "seed of a drawn trace")
}

// requests reads the trace, or draws and writes it.
func (o *Options) requests(ui *cli.Streams) ([]Request, error) {
	if o.Trace != "" {
		if o.WriteTrace != "" {
			return nil, diag.New(diag.ClassUsage, "--write-trace is for a drawn trace, and --trace names one")
		}
		for _, flag := range drawing {
			if o.given != nil && o.given(flag) {
				return nil, diag.New(diag.ClassUsage, "--%s is for a drawn trace, and --trace names one", flag).
					WithHint("leave one of them out")
			}
		}
		return Read(o.Trace)
	}
	var err error
	if o.pattern.Prompt, err = ParseRange("prompt-tokens", o.prompt); err != nil {
		return nil, err
	}
	if o.pattern.Output, err = ParseRange("output-tokens", o.output); err != nil {
		return nil, err
	}
	trace, err := o.pattern.Draw()
	if err != nil || o.WriteTrace == "" {
		return trace, err
	}
	text, err := Text(trace)
	if err != nil {
		return nil, err
	}
	if err := wholefile.Write(o.WriteTrace, text); err != nil {
		return nil, err
	}
	cli.Wrote(ui, o.WriteTrace, "%d requests", len(trace))
	return trace, nil
}

// config returns what a policy schedules by.
func (o *Options) config(plan *planir.Plan, policy scheduler.Policy) (scheduler.Config, error) {
	slots := o.Slots
	if most := plan.Sequences(); slots == 0 {
		slots = most
	} else if slots < 0 || slots > most {
		return scheduler.Config{}, diag.New(diag.ClassUsage, "--slots %d: want 1..%d, the sequences of the plan", slots,
			most).WithHint("a workload with batches plans for several sequences")
	}
	config := scheduler.Default(slots)
	config.Policy = policy
	return config, nil
}

// RunSimulate plays a trace on a virtual clock under every policy.
func RunSimulate(ctx context.Context, ui *cli.Streams, options *Options) error {
	plan, err := plantext.Read(options.Plan)
	if err != nil {
		return err
	}
	trace, err := options.requests(ui)
	if err != nil {
		return err
	}
	soc, err := bindings.SoCOf(plan, options.SoC)
	if err != nil {
		return err
	}
	var overheads *Overheads
	from := "what the plan predicts, and nothing else takes time"
	if options.Served != "" {
		overheads = &Overheads{}
		if overheads.Calls, err = served.Read(options.Served); err != nil {
			return err
		}
		if overheads.other(plan) {
			ui.Warnf("--served %q: another plan predicts these calls; what they took beyond that is added to this "+
				"plan's times", options.Served)
		}
		from = fmt.Sprintf("what they took in the server of %s, measured", options.Served)
	}
	reports, err := simulateAll(ctx, plan, trace, options, overheads)
	if err != nil {
		return err
	}
	for _, report := range reports {
		report.Energy(soc)
	}
	ui.Notef("simulated: program calls take %s; energy is modelled from the SoC's power_w, never measured", from)
	Show(ui, reports)
	showProcessors(ui, reports)
	return ui.Result(reports)
}

// simulateAll returns a simulation under every policy; without overheads, by the plan alone.
func simulateAll(ctx context.Context, plan *planir.Plan, trace []Request, options *Options, overheads *Overheads) (
	reports []*Report, err error) {
	for _, policy := range scheduler.Policies {
		config, err := options.config(plan, policy)
		if err != nil {
			return nil, err
		}
		report, err := simulateServed(ctx, plan, trace, config, overheads)
		if err != nil {
			return nil, err
		}
		if overheads != nil {
			report.Calls, report.ReadMS = callReports(overheads.Calls), float64(overheads.ReadNS)/1e6
		}
		reports = append(reports, report)
	}
	return reports, nil
}

// opened is a plan on the machine that it is for.
type opened struct {
	plan    *planir.Plan
	soc     *socs.SoC
	model   *models.Model
	content *emit.Content
	machine *executor.Machine
}

// open opens the plan of the options.
func (o *Options) open(ctx context.Context) (_ *opened, err error) {
	out := &opened{}
	defer func() {
		if err != nil {
			out.Close()
		}
	}()
	if out.plan, err = plantext.Read(o.Plan); err != nil {
		return nil, err
	}
	if out.model, err = models.Open(o.Model); err != nil {
		return nil, err
	}
	soc, err := bindings.SoCOf(out.plan, o.SoC)
	if err != nil {
		return nil, err
	}
	out.soc = soc
	if err := check.Plan(out.plan, out.model, soc).Err(); err != nil {
		return nil, err
	}
	cal, err := bindings.ReadCalibration(o.Calibration)
	if err != nil {
		return nil, err
	}
	if out.content, err = emit.NewCalibrated(ctx, out.plan, out.model, cal, bindings.Compilers(soc)); err != nil {
		return nil, err
	}
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), executor.Threads(out.plan)+2))
	out.machine, err = executor.Open(ctx, out.plan, runcmd.UntilDone(ctx, out.content),
		executor.Options{Drivers: bindings.Drivers(soc)})
	if err != nil {
		return nil, fmt.Errorf("open the plan: %w", err)
	}
	return out, nil
}

// Close closes what was opened.
func (o *opened) Close() {
	if o.machine != nil {
		o.machine.Close()
	}
	if o.content != nil {
		o.content.Close()
	}
	if o.model != nil {
		o.model.Close()
	}
}

// load is a trace, and what it is called beside others.
type load struct {
	name   string
	trace  []Request
	bursts [][]Request // for each policy, played before it is measured; nil: the machine is simulated
}

// loads returns the traces to measure: the one that is named, or one drawn for each factor of the arrival rates.
func (o *Options) loads(ui *cli.Streams) (out []load, err error) {
	if o.Trace != "" || len(o.Loads) == 0 {
		trace, err := o.requests(ui)
		return []load{{trace: trace}}, err
	}
	if o.WriteTrace != "" {
		return nil, diag.New(diag.ClassUsage, "--write-trace is for one trace, and --loads draws several")
	}
	reactive, proactive := o.pattern.Reactive, o.pattern.Proactive
	defer func() { o.pattern.Reactive, o.pattern.Proactive = reactive, proactive }()
	for _, factor := range o.Loads {
		if !(factor > 0 && factor <= mostLoad) {
			return nil, diag.New(diag.ClassUsage, "--loads %v: want factors above 0 and at most %v", factor,
				float64(mostLoad))
		}
		o.pattern.Reactive, o.pattern.Proactive = reactive*factor, proactive*factor
		trace, err := o.requests(ui)
		if err != nil {
			return nil, err
		}
		out = append(out, load{name: strconv.FormatFloat(factor, 'g', -1, 64), trace: trace})
	}
	return out, nil
}

// mostLoad is the largest factor of --loads.
const mostLoad = 1000

// RunMeasure plays each load in real time under every policy, one after the other in every round, beside what the
// simulation says, and the load's reactive requests on a machine that has nothing else to do. Of several rounds, each
// policy shows the one with its median rate.
func RunMeasure(ctx context.Context, ui *cli.Streams, options *Options) error {
	loads, err := options.loads(ui)
	if err != nil {
		return err
	}
	on, err := options.open(ctx)
	if err != nil {
		return err
	}
	defer on.Close()
	if on.plan.SoC.Simulated && options.WriteServed != "" {
		return diag.New(diag.ClassUsage,
			"--write-served: the plan is for the simulated SoC %q, whose calls take nothing beside", on.plan.SoC.Name).
			WithHint("take a plan for this machine")
	}
	if err := options.addBursts(ctx, on.plan, loads); err != nil {
		return err
	}
	began := time.Now()
	if err := serving.Warm(ctx, on.machine); err != nil {
		return err
	}
	ui.Notef("every program was loaded and executed once, in %.1f s", time.Since(began).Seconds())
	predicted := *on.plan
	if on.plan.SoC.Simulated {
		predicted.Beside = nil // as on the virtual clock
		ui.Notef("executed on the virtual clock of %s: this computes every token, and says how well simulate predicts "+
			"the plan's execution, not how fast this machine is", on.plan.SoC.Name)
	}
	peer, err := options.peer(ctx, on.plan)
	if err != nil {
		return err
	}
	if peer != nil {
		defer peer.Close()
	}
	distance, err := newGauge(ctx, on.soc)
	if err != nil {
		return err
	}

	measuring := bench{ui, options, on.machine, peer, distance}
	if !on.plan.SoC.Simulated {
		ui.Notef("this takes at least %.0f min: %s, %s, each under %d policies and without background work",
			math.Ceil(measuring.seconds(loads)/60), cli.Count(len(loads), "load"), cli.Count(options.Rounds, "round"),
			len(scheduler.Policies))
	}
	return measuring.all(ctx, &predicted, loads)
}

// all measures and simulates each load, and prints both. The simulation takes what the server took while the load was
// measured.
func (b *bench) all(ctx context.Context, predicted *planir.Plan, loads []load) error {
	var reports, others []*Report
	for _, load := range loads {
		measured, before, err := b.measure(ctx, &load)
		if err != nil {
			return err
		}
		simulated, err := simulateAll(ctx, predicted, load.trace, b.options, overheadsOf(before))
		if err != nil {
			return err
		}
		for _, report := range slices.Concat(simulated, measured) {
			report.Load = load.name
			reports = append(reports, report)
		}
		others = append(others, before...)
	}
	return b.options.showMeasured(b.ui, reports, others)
}

// showMeasured prints what was measured and simulated of all loads, and what the server took with other requests.
func (o *Options) showMeasured(ui *cli.Streams, reports, others []*Report) error {
	Show(ui, reports)
	if err := o.showServed(ui, overheadsOf(others)); err != nil {
		return err
	}
	ui.Notef("what program calls took while the loads were measured:")
	showCalls(ui, measuredCalls(reports))
	showHandovers(ui, reports)
	return ui.Result(reports)
}

// addBursts adds the bursts that the server is measured with before each load.
func (o *Options) addBursts(ctx context.Context, plan *planir.Plan, loads []load) (err error) {
	for i := range loads {
		if loads[i].bursts, err = o.bursts(ctx, plan, loads[i].trace); err != nil {
			return err
		}
	}
	return nil
}

// lasts returns how long the requests of a trace take to arrive, in seconds.
func lasts(trace []Request) float64 { return trace[len(trace)-1].AtMS / 1e3 }

// bursts are requests to measure the server with before each policy of a load, which keep the machine as busy as that
// does; nil on a simulated machine, whose calls take what they take.
func (o *Options) bursts(ctx context.Context, plan *planir.Plan, trace []Request) ([][]Request, error) {
	config, err := o.config(plan, scheduler.Batching)
	if err != nil {
		return nil, err
	}
	expected, err := Simulate(ctx, plan, trace, config)
	if err != nil || plan.SoC.Simulated {
		return nil, err
	}
	return bursts(plan, config.Slots, longestToProcess(trace), len(scheduler.Policies), expected.Busy), nil
}

// showServed tells what the server took while it was measured with requests of its own, and writes it to the file that
// was asked for; nil: the machine is simulated.
func (o *Options) showServed(ui *cli.Streams, overheads *Overheads) error {
	if overheads == nil {
		return nil
	}
	ui.Notef("what program calls took with other requests, in bursts before each measurement, which is what is "+
		"simulated; a first token was there %v before its client had it:", time.Duration(overheads.ReadNS).Round(time.Microsecond))
	showCalls(ui, overheads.Calls)
	if o.WriteServed == "" {
		return nil
	}
	if err := served.Write(o.WriteServed, overheads.Calls); err != nil {
		return err
	}
	cli.Wrote(ui, o.WriteServed, "%d kinds of program calls", len(overheads.Calls))
	return nil
}

// urgent returns the reactive requests of a trace.
func urgent(trace []Request) (out []Request) {
	for _, request := range trace {
		if request.class() == scheduler.Reactive {
			out = append(out, request)
		}
	}
	return out
}

// peer starts llama.cpp's server where a file for it is named; nil where none is.
func (o *Options) peer(ctx context.Context, plan *planir.Plan) (*llamaServer, error) {
	if o.LlamaGGUF == "" {
		return nil, nil
	}
	if plan.SoC.Simulated {
		return nil, diag.New(diag.ClassUsage,
			"--llama-gguf: the plan is for the simulated SoC %q, and llama.cpp takes real time",
			plan.SoC.Name).WithHint("take a plan for this machine")
	}
	config, err := o.config(plan, scheduler.Batching)
	if err != nil {
		return nil, err
	}
	return startLlamaServer(ctx, plan, o.LlamaGGUF, config.Slots)
}

// bench measures loads.
type bench struct {
	ui       *cli.Streams
	options  *Options
	machine  *executor.Machine
	peer     *llamaServer // nil: there is none
	distance *gauge
}

// play is what is measured in a round.
type play struct {
	policy scheduler.Policy
	trace  []Request
	idle   bool      // there is nothing but the load's reactive requests
	bursts []Request // played before, under the same policy
}

// plays returns the policies, the trace's reactive requests by themselves under the policy Full, and llama.cpp's server
// if it is there.
func (b *bench) plays(load *load) (out []play) {
	trace := load.trace
	for i, policy := range scheduler.Policies {
		one := play{policy: policy, trace: trace}
		if load.bursts != nil {
			one.bursts = load.bursts[i]
		}
		out = append(out, one)
	}
	if alone := urgent(trace); len(alone) > 0 && len(alone) < len(trace) {
		out = append(out, play{policy: scheduler.Full, trace: alone, idle: true})
	}
	if b.peer != nil {
		out = append(out, play{policy: llamaPolicy, trace: trace})
	}
	return out
}

// seconds returns how long the requests of all rounds take to arrive.
func (b *bench) seconds(loads []load) (sum float64) {
	for i := range loads {
		for _, play := range b.plays(&loads[i]) {
			sum += lasts(play.trace)
			if len(play.bursts) > 0 {
				sum += lasts(play.bursts)
			}
		}
	}
	return sum * float64(b.options.Rounds)
}

// measure measures everything in every round, and returns of each the round with its median rate, and all that was
// measured with bursts.
func (b *bench) measure(ctx context.Context, load *load) (measured, inBursts []*Report, err error) {
	plays := b.plays(load)
	rounds := make([][]*Report, len(plays))
	for range b.options.Rounds {
		for i := range plays {
			if len(plays[i].bursts) > 0 {
				report, err := b.once(ctx, plays[i].policy, plays[i].bursts)
				if err != nil {
					return nil, nil, fmt.Errorf("measure what the server takes beside the plan: %w", err)
				}
				inBursts = append(inBursts, report)
			}
			report, err := b.once(ctx, plays[i].policy, plays[i].trace)
			if err != nil {
				return nil, nil, err
			}
			if report == nil {
				continue
			}
			report.Idle = plays[i].idle
			if report.Handover, err = b.distance.report(ctx); err != nil {
				return nil, nil, err
			}
			rounds[i] = append(rounds[i], report)
		}
	}
	for _, list := range rounds {
		if len(list) == 0 {
			continue
		}
		slices.SortFunc(list, func(a, b *Report) int { return cmp.Compare(a.Rate, b.Rate) })
		measured = append(measured, list[len(list)/2])
	}
	return measured, inBursts, nil
}

// once plays a trace. What llama.cpp's server does not answer costs its own row and no other: nil.
func (b *bench) once(ctx context.Context, policy scheduler.Policy, trace []Request) (*Report, error) {
	if policy == llamaPolicy {
		report, err := b.peer.measure(ctx, trace, prompts(b.machine, trace))
		if err != nil && ctx.Err() == nil {
			b.ui.Warnf("no row of %s in this round: %v", llamaServerName, err)
			return nil, nil
		}
		return report, err
	}
	config, err := b.options.config(b.machine.Plan(), policy)
	if err != nil {
		return nil, err
	}
	return Measure(ctx, b.machine, trace, config)
}
