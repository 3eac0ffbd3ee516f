package trial

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/quality"
)

// LeastWindows is how many windows a calibration reads at least: losses have intervals.
const LeastWindows = 4

// CalibrateOptions say what Calibrate measures.
type CalibrateOptions struct {
	Text    *Text
	Schemes []op.Scheme // whose losses are measured; a32/w32 has none
	NoFolds bool        // no folds are looked for: the model is packed as it is
	// Progress is called after every window that was executed: done of all, and what the next ones are for.
	Progress func(done, all int, what string)
}

// candidate is one loss to be measured.
type candidate struct {
	// A class is a node in all its layers, such as layers.ffn_down.
	class  string // or calibration.All
	scheme op.Scheme
}

// classes returns those that have the scheme, none for all.
func (c *candidate) classes() []string {
	if c.class == calibration.All {
		return nil
	}
	return []string{c.class}
}

// calibrating is one run of Calibrate.
type calibrating struct {
	*Model
	o          *CalibrateOptions
	observed   []quality.Window // every other window: what is packed depends on what was seen there
	compared   []quality.Window // the others
	size       int              // of windows
	candidates []candidate
	rounded    []op.Scheme // that round activations
	choosing   bool        // several static scales are chosen
	// The float32 logits of the compared windows, with which every candidate is compared.
	ref *quality.Reference
	// Activations that can be divided by factors which the weights before them take up, and whom they are read by.
	groups    []models.FoldGroup
	done, all int // windows executed
	out       calibration.Calibration
	unfolded  []calibration.Scales // those of out are of folded activations
}

// Calibrate measures on every other window what enters the matrix products of the model in float32. On the windows
// between it measures what each scheme costs in each class of weights, which folds reduce that, and what shadow
// outliers are worth in each layer. The same model and text give the same result on the same kind of machine.
//
// It is a coordinate search with the divergence of predictions as its measure. Losses without folds come first.
// Then every group of channels gets the fold that helps it most beside those that were kept before; the losses are
// measured again with all folds, and last a range is chosen for static scales. Each measurement executes all
// compared windows once, so the cost is windows times candidates: that dominates everything else.
func Calibrate(ctx context.Context, model *Model, options CalibrateOptions) (_ *calibration.Calibration, err error) {
	if len(several(options.Schemes)) > 0 && !slices.Contains(options.Schemes, op.A8SQ8C) {
		options.Schemes = append(slices.Clone(options.Schemes), op.A8SQ8C) // folds and clips are found with it
	}
	run, err := newCalibrating(model, &options)
	if err != nil {
		return nil, err
	}
	if run.ref, err = quality.NewReference(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, run.ref.Close()) }()
	// The order of the search: activations and reference, losses without folds, folds, losses with them, clips.
	first, err := run.observe(ctx)
	if err != nil {
		return nil, err
	}
	// The float32 machine stays open to the end: others share its packed weights.
	defer func() { err = errors.Join(err, first.Close()) }()
	if run.choosing {
		if run.unfolded, err = run.choose(ctx, nil); err != nil {
			return nil, err
		}
	}
	if err := run.caches(ctx); err != nil {
		return nil, err
	}
	tallies, err := run.losses(ctx)
	if err != nil {
		return nil, err
	}
	for i := range run.groups {
		// what the fold did not need is taken off the number of runs to come
		before := run.done
		if err := run.fold(ctx, &run.groups[i], run.roundedFor(&run.groups[i]), tallies); err != nil {
			return nil, err
		}
		run.all -= len(run.compared)*run.groupRuns(i) - (run.done - before)
	}
	if len(run.out.Folds) == 0 {
		run.out.Scales = run.unfolded
		run.all -= len(run.compared) * len(run.candidates) // which have no other losses with folds
		if run.choosing {
			run.all -= len(run.observed)
		}
	} else if tallies, err = run.foldedLosses(ctx, tallies); err != nil {
		return nil, err
	}
	if err := run.clip(ctx, tallies); err != nil {
		return nil, err
	}
	if err := run.shadows(ctx, tallies); err != nil {
		return nil, err
	}
	if err := run.exceeding(ctx); err != nil {
		return nil, err
	}
	return &run.out, run.out.Validate()
}

// Observe executes the model in float32 on one window and returns a calibration of nothing but the ranges of
// activations. It says nothing about what schemes lose.
func Observe(ctx context.Context, model *Model, tokens []int32) (_ *calibration.Calibration, err error) {
	plan, err := model.Plan(len(tokens), Float32, nil)
	if err != nil {
		return nil, err
	}
	var ranges quality.Ranges
	machine, err := model.Open(ctx, plan, nil, ranges.Observe)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, machine.Close()) }()
	for range 2 { // ranges first, then how often outlier channels exceed
		if err := quality.Execute(ctx, machine.Machine, quality.Window{Tokens: tokens}); err != nil {
			return nil, err
		}
		ranges.Again()
	}
	digest := sha256.New()
	for _, token := range tokens {
		fmt.Fprintln(digest, token)
	}
	out := &calibration.Calibration{
		Schema: calibration.Schema, Model: calibration.Model{Name: model.Name, Digest: model.Digest},
		Text: calibration.Text{SHA256: hex.EncodeToString(digest.Sum(nil)), Tokens: len(tokens), Windows: 1,
			WindowTokens: len(tokens)},
	}
	if out.Activations, err = ranges.Activations(0); err != nil {
		return nil, err
	}
	return out, out.Validate()
}

// newCalibrating divides the windows, lists the losses to measure, and counts how often windows will be executed at
// most. What turns out not to be needed is subtracted later.
func newCalibrating(model *Model, options *CalibrateOptions) (*calibrating, error) {
	windows := options.Text.Windows
	size := len(windows[0].Tokens)
	observed, compared, err := options.Text.halves(moreWindows)
	if err != nil {
		return nil, err
	}
	graph := model.Graph()
	run := &calibrating{
		observed: observed, compared: compared,
		Model: model, o: options, size: size, groups: graph.Folds(), choosing: len(several(options.Schemes)) > 0,
		out: calibration.Calibration{
			Schema: calibration.Schema,
			Model:  calibration.Model{Name: model.Name, Digest: model.Digest},
			Text: calibration.Text{
				SHA256: options.Text.SHA256, Tokens: len(windows) * size, Windows: len(windows), WindowTokens: size,
			},
		},
	}
	run.list()
	run.groups = slices.DeleteFunc(run.groups, func(group models.FoldGroup) bool {
		known := slices.ContainsFunc(group.Readers, func(class string) bool {
			return slices.Contains(model.Classes(), class)
		})
		return options.NoFolds || !known || len(run.roundedFor(&group)) == 0
	})
	// the largest number of executions that there can be
	shadowed, err := run.shadowed()
	if err != nil {
		return nil, err
	}
	runs := 1 + len(lossyCaches) + 2*len(run.candidates) + run.clipRuns() + len(shadowed)
	for i := range run.groups {
		runs += run.groupRuns(i)
	}
	run.all = 2*len(run.observed) + len(run.compared)*runs
	if run.choosing {
		run.all += 2 * len(run.observed)
	}
	if slices.Contains(options.Schemes, op.A8OQ8C) {
		run.all += len(run.compared)
	}
	return run, nil
}

// list lists the losses to be measured, and the schemes that round activations, which folds are for.
func (c *calibrating) list() {
	// A tied embedding can be read from the packed head: its loss is that of the head's weights.
	embedding := c.PackedTable()
	for _, scheme := range c.o.Schemes {
		for _, class := range append(c.Classes(), calibration.All) {
			if c.takes(class, scheme) {
				c.candidates = append(c.candidates, candidate{class, scheme})
			}
		}
		if scheme.QuantisedRows() && scheme.Scales() <= 1 {
			c.rounded = append(c.rounded, scheme)
		}
		table := candidate{embedding, scheme.Table()}
		if table.class != "" && table.scheme != "" && !slices.Contains(c.candidates, table) {
			c.candidates = append(c.candidates, table)
		}
	}
}

// losses measures every candidate without folds.
func (c *calibrating) losses(ctx context.Context) (map[candidate]*quality.Tally, error) {
	tallies := map[candidate]*quality.Tally{}
	for _, tried := range c.candidates {
		tally, err := c.measure(ctx, tried.class, change{scheme: tried.scheme, classes: tried.classes()})
		if err != nil {
			return nil, err
		}
		if err := c.lose(tried, tally, false); err != nil {
			return nil, err
		}
		tallies[tried] = tally
	}
	return tallies, nil
}

// foldedLosses chooses scales for folded activations, and measures again the candidates that a fold reaches.
func (c *calibrating) foldedLosses(
	ctx context.Context, unfolded map[candidate]*quality.Tally,
) (_ map[candidate]*quality.Tally, err error) {
	if c.choosing {
		if c.out.Scales, err = c.choose(ctx, c.out.Folds); err != nil {
			return nil, err
		}
	}
	// only classes that a kept fold divides have other losses now
	kept := c.out.Groups()
	reached := func(class string) bool {
		return class == calibration.All || slices.ContainsFunc(c.groups, func(group models.FoldGroup) bool {
			return slices.Contains(kept, group.Name) && slices.Contains(group.Readers, class)
		})
	}
	tallies := map[candidate]*quality.Tally{}
	for _, tried := range c.candidates {
		tally := unfolded[tried]
		if !reached(tried.class) {
			c.all -= len(c.compared)
		} else if tally, err = c.measure(ctx, tried.class+" folded",
			change{scheme: tried.scheme, classes: tried.classes(), folds: c.out.Folds}); err != nil {
			return nil, err
		}
		if err := c.lose(tried, tally, true); err != nil {
			return nil, err
		}
		tallies[tried] = tally
	}
	return tallies, nil
}

// roundedFor returns the schemes that a group's folds are for: those that all of its readers can have. Experts lack
// some.
func (c *calibrating) roundedFor(group *models.FoldGroup) (out []op.Scheme) {
	for _, scheme := range c.rounded {
		if !slices.ContainsFunc(group.Readers, func(class string) bool { return !c.takes(class, scheme) }) {
			out = append(out, scheme)
		}
	}
	return out
}

// groupRuns returns how often all windows are executed for a group at most.
func (c *calibrating) groupRuns(group int) int {
	schemes := len(c.roundedFor(&c.groups[group]))
	count := len(strengths) * schemes
	if len(c.groups[group].Readers) > 1 {
		count += schemes
	}
	return count
}

// step tells that a window was executed.
func (c *calibrating) step(what string) {
	c.done++
	if c.o.Progress != nil {
		c.o.Progress(c.done, c.all, what)
	}
}

// observe executes the reference and fills in the activations. The machine holds the float32 weights that all
// others share.
func (c *calibrating) observe(ctx context.Context) (*Machine, error) {
	plan, err := c.Plan(c.size, Float32, nil)
	if err != nil {
		return nil, err
	}
	var ranges quality.Ranges
	machine, err := c.Open(ctx, plan, nil, ranges.Observe)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*Machine, error) { return nil, errors.Join(err, machine.Close()) }
	// ranges first, then what only their end lets one count
	for pass := range 2 {
		for i, window := range c.observed {
			if err := quality.Execute(ctx, machine.Machine, window); err != nil {
				return fail(fmt.Errorf("window %d: %w", 2*i+1, err))
			}
			c.step("activations")
		}
		if pass == 0 {
			ranges.Again()
		}
	}
	if c.out.Activations, err = ranges.Activations(c.rank()); err != nil {
		return fail(err)
	}
	ranges.Stop()
	for i, window := range c.compared {
		if err := c.ref.Add(ctx, machine.Machine, window); err != nil {
			return fail(fmt.Errorf("window %d: %w", 2*i, err))
		}
		c.step("reference")
	}
	return machine, nil
}

// change is how an execution differs from the model in float32.
type change struct {
	scheme  op.Scheme
	classes []string           // that have the scheme; none: all
	folds   []calibration.Fold // of activations
	clips   []calibration.Clip // of static scales
	pruned  []planir.Shadow    // layers without shadow outliers
}

// measure executes all windows with a change.
func (c *calibrating) measure(ctx context.Context, what string, by change) (*quality.Tally, error) {
	what = fmt.Sprintf("%s with %s", what, by.scheme)
	// the calibration as it would be with these folds and clips
	cal := c.out
	cal.Losses, cal.Folds, cal.Clips = nil, by.folds, by.clips
	if len(by.folds) == 0 {
		cal.Scales = c.unfolded
	}
	plan, err := c.PrunedPlan(c.size, func(node string) op.Scheme {
		if len(by.classes) == 0 || slices.Contains(by.classes, node) {
			return by.scheme
		}
		return op.A32W32
	}, &cal, by.pruned)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return c.compare(ctx, plan, &cal, what)
}

// compare executes all compared windows and compares the logits with the reference's.
func (c *calibrating) compare(
	ctx context.Context, plan *planir.Plan, cal *calibration.Calibration, what string,
) (_ *quality.Tally, err error) {
	fail := func(err error) (*quality.Tally, error) { return nil, fmt.Errorf("%s: %w", what, err) }
	machine, err := c.Open(ctx, plan, cal, nil)
	if err != nil {
		return fail(err)
	}
	defer func() { err = errors.Join(err, machine.Close()) }()
	tally := new(quality.Tally)
	for i := range c.ref.Windows() {
		if err := c.ref.Compare(ctx, machine.Machine, i, c.size, tally); err != nil {
			return fail(fmt.Errorf("window %d: %w", 2*i, err))
		}
		c.step(what)
	}
	return tally, nil
}

// caches measures what each type of cache costs, everything else in float32.
func (c *calibrating) caches(ctx context.Context) error {
	for _, cache := range lossyCaches {
		what := "cache with " + string(cache)
		plan, err := c.CachedPlan(c.size, cache, Float32, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		tally, err := c.compare(ctx, plan, nil, what)
		if err != nil {
			return err
		}
		result, err := tally.Result()
		if err != nil {
			return err
		}
		c.out.Caches = append(c.out.Caches, calibration.CacheLoss{Type: cache, KL: result.KL.Mean, Low: result.KL.Low,
			High: result.KL.High, TopAgreement: result.TopAgreement.Mean})
	}
	return nil
}

// lossyCaches are the types of cache that lose something.
var lossyCaches = slices.DeleteFunc(slices.Clone(op.CacheTypes), func(cache op.Type) bool { return cache == op.F32 })

// lose notes what a candidate costs, instead of what was noted before.
func (c *calibrating) lose(x candidate, t *quality.Tally, folded bool) error {
	result, err := t.Result()
	if err != nil {
		return err
	}
	loss := calibration.Loss{
		Class: x.class, Scheme: x.scheme, Folded: folded, KL: result.KL.Mean, Low: result.KL.Low, High: result.KL.High,
		TopAgreement: result.TopAgreement.Mean,
	}
	if old := c.out.Loss(x.class, x.scheme, folded); old != nil {
		*old = loss
	} else {
		c.out.Losses = append(c.out.Losses, loss)
	}
	return nil
}

// CalibrationBytes is about how large the file of a calibration is, without directions.
func (m *Model) CalibrationBytes() int64 {
	const perEntry, perChannel, perColumn = 400, 16, 6 // absmax, mean square and fold factor in base64; largest results
	entries, channels, columns := m.channels()
	return perEntry*entries + perChannel*channels + perColumn*columns
}

// channels returns those of all activations together, and how many activations there are; columns are those of the
// results.
func (m *Model) channels() (entries, channels, columns int64) {
	graph := m.Graph()
	for _, section := range graph.Sections {
		for _, node := range section.Nodes {
			for _, operator := range node.Ops {
				if operator.HasScheme() {
					entries += int64(max(1, section.Layers))
					channels += int64(max(1, section.Layers)) * int64(operator.K)
					columns += int64(max(1, section.Layers)) * int64(operator.N)
				}
			}
		}
	}
	return entries, channels, columns
}

// rank returns how many directions the file has room for.
func (m *Model) rank() int {
	const perValue = 8. / 3 // a bfloat16 in base64
	_, channels, _ := m.channels()
	// Half of the room that is left, divided by what one direction of all channels takes.
	return max(0, int(float64(calibration.MaxBytes-m.CalibrationBytes())/2/perValue/float64(channels)))
}
