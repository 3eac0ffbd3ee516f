package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/engines"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver/host"
)

// measuredOn describes the machine of a comparison.
func measuredOn(cores []int) record.Environment {
	env := profiler.ThisMachine(cores, host.Kernels())
	if env.CPU == "" {
		env.CPU = env.Arch
	}
	return env
}

// page writes text and tables to the terminal and, equally, as Markdown.
type page struct {
	s  *cli.Streams
	md strings.Builder
}

// title begins a section.
func (p *page) title(text string) {
	p.s.Printf("%s\n\n", text)
	fmt.Fprintf(&p.md, "## %s\n\n", text)
}

// text writes a line of prose.
func (p *page) text(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	p.s.Printf("%s\n", text)
	fmt.Fprintf(&p.md, "%s\n", text)
}

// table writes a table; a header that begins with > aligns its column to the right.
func (p *page) table(header []string, rows [][]string) {
	p.s.Printf("\n")
	p.s.Table(header, rows)
	p.s.Printf("\n")
	line := func(cells []string) {
		p.md.WriteString("|")
		for _, c := range cells {
			p.md.WriteString(" " + strings.ReplaceAll(c, "|", `\|`) + " |")
		}
		p.md.WriteString("\n")
	}
	names, rules := make([]string, len(header)), make([]string, len(header))
	for i, column := range header {
		name, right := strings.CutPrefix(column, ">")
		if names[i], rules[i] = name, "---"; right {
			rules[i] = "---:"
		}
	}

	p.md.WriteString("\n")
	line(names)
	line(rules)
	for _, row := range rows {
		line(row)
	}
	p.md.WriteString("\n")
}

// show writes the result about a model: what was compared, speeds, peak memory, quality.
func (b *enginesBench) show(out *page, env record.Environment, model *EnginesModel) {
	result := model.Match
	b.describe(out, env, model)
	for _, made := range model.Plans {
		note := ""
		if made.MaxMemory > 0 {
			note = fmt.Sprintf(", solved with --max-memory %s MiB", mib(made.MaxMemory))
		}
		out.text("%s: hetc's plan %.12s%s, schemes of prefill %s, of decode %s.", made.Form, made.Digest, note,
			joined(made.Schemes["prefill"]), joined(made.Schemes["decode"]))
	}
	showMissing(out, model)
	if gbps := model.StreamGBps; len(gbps) == 2 {
		out.text("The cores together read %.1f GB/s before the rounds and %.1f after them. Shares in decode are of "+
			"the mean, for reading the weights once a token.", gbps[0], gbps[1])
	}
	b.showSpeeds(out, model)
	if few(result) {
		out.text("Intervals of fewer than %d processes do not reach 95 %%, and a single process has none.", confident)
	}
	showRatios(out, result)
	b.showMemory(out, model)
	b.showQuality(out, model)
}

// confident is the number of samples from which on an interval of order statistics covers 95 %.
const confident = 6

// few reports whether a form was measured in too few processes for an interval of 95 %.
func few(result *engines.Result) bool {
	return slices.ContainsFunc(result.Series, func(s engines.Series) bool {
		return s.Summary.N > 0 && s.Summary.N < confident
	})
}

// describe says what was compared, and how undisturbed it was.
func (b *enginesBench) describe(out *page, env record.Environment, model *EnginesModel) {
	result := model.Match
	out.title(fmt.Sprintf("%s: hetc against other engines", model.Name))
	cores := strings.Trim(strings.ReplaceAll(fmt.Sprint(b.Cores), " ", ", "), "[]")
	out.text("%s (%s), cores %s with one thread each; hetc %s, kernels %s; %s. %.2f billion parameters, stored %s; "+
		"the same weights for all.",
		env.CPU, strings.Join(env.Features, " "), cores, cli.Version, env.Kernels, strings.Join(peersOf(result), "; "),
		float64(model.Parameters)/1e9, model.Stored)
	processes := 0
	for _, series := range result.Series {
		processes += len(series.Samples)
	}
	out.text("%s in random order (seed %d), a fresh process each: %d processes in %.0f s.",
		cli.Count(result.Rounds, "round"), result.Seed, processes, result.Seconds)
	if result.Stopped {
		out.text("%d rounds were wanted: time ran out, the command was interrupted, or hetc failed.", b.Rounds)
	}
	if result.Finalists > 0 {
		out.text("A form of another engine went on after the first round only if it had taken at most %g times as long "+
			"as the fastest form of any other engine in the task (--finalists). Those that did not are marked as "+
			"dropped, and a ratio to them is of the rounds that they took part in.", result.Finalists)
	}
	if b.MaxOthers > 0 {
		out.text("%d of them ran while other programs used more than %.2f cores; %d more were repeated for that "+
			"reason.", result.Disturbed, b.MaxOthers, result.Repeated)
	} else {
		out.text("Whether other programs were at work meanwhile was not observed.")
	}
}

// showMissing says what there is no result of, and why.
func showMissing(out *page, model *EnginesModel) {
	if model.NoBounded != "" {
		out.text("No plan within --max-memory: %s.", model.NoBounded)
	}
	for _, skipped := range model.Skipped {
		out.text("Not measured: %v.", skipped)
	}
	for _, series := range model.Match.Series {
		if series.Failed != "" {
			out.text("Failed: %s %s, %v, after %d processes: %s.", series.Engine, series.Form, series.Task,
				len(series.Samples), series.Failed)
		}
	}
}

// showSpeeds writes one line for each task, engine and form, with the form's divergence where that is known.
func (b *enginesBench) showSpeeds(out *page, model *EnginesModel) {
	result := model.Match
	header := []string{"task", "engine", "form", ">processes", ">tokens/s", ">95 % interval",
		"ratio to the fastest form", ">95 % interval", ">peak MiB"}
	stream := stat.Mean(model.StreamGBps)
	if stream > 0 {
		header = append(header, ">of the joint stream")
	}
	if len(model.Quality) > 0 {
		header = append(header, ">mean KL")
	}
	var rows [][]string
	for _, task := range tasksOf(result) {
		for _, series := range result.Series {
			if series.Task != task {
				continue
			}
			speed, bounds := speedOf(&series)
			ratio, ratioBounds := standing(result, &series)
			row := []string{task.String(), series.Engine, series.Form, fmt.Sprint(series.Summary.N), speed, bounds,
				ratio, ratioBounds, mib(series.Peak)}
			if stream > 0 {
				row = append(row, shareOf(stream, &series))
			}
			if len(model.Quality) > 0 {
				row = append(row, lossOf(model.Quality, &series))
			}
			rows = append(rows, row)
		}
	}

	out.table(header, rows)
}

// speedOf returns two cells of a table: the median speed of a form and its interval. Starting is one event, so that its
// rate is shown as a time, in which the bounds change places.
func speedOf(series *engines.Series) (median, bounds string) {
	rate := series.Summary
	switch {
	case rate.N == 0:
		return "-", ""
	case series.Task.Start == 0:
		return fmt.Sprintf("%.1f", rate.Median), interval(rate, "%.1f")
	}
	time := stat.Summary{N: rate.N, Low: 1e3 / rate.High, High: 1e3 / rate.Low}
	return fmt.Sprintf("%.0f ms", 1e3/rate.Median), interval(time, "%.0f ms")
}

// standing returns two cells of a table: the ratio of a form of hetc to the fastest other engine, with its interval, or
// why a form of another engine was measured no further.
func standing(result *engines.Result, series *engines.Series) (cell, bounds string) {
	switch {
	case series.Failed != "":
		return "failed", ""
	case series.Dropped != "":
		return "dropped: " + series.Dropped, ""
	case series.Engine != "hetc":
		return "", ""
	}
	ratio := hardest(result, series.Form, series.Task)
	if ratio == nil {
		return "", ""
	}
	cell = fmt.Sprintf("%.2f x %s %s", ratio.Summary.Median, ratio.Peer, ratio.Best)
	if n := ratio.Summary.N; n != series.Summary.N {
		cell += ", " + cli.Count(n, "round")
	}
	return cell, interval(ratio.Summary, "%.2f")
}

// shareOf returns the share of a bandwidth at which a form reads its weights in decode, as a cell of a table.
func shareOf(gbps float64, series *engines.Series) string {
	rate := float64(series.WeightBytes) * series.Summary.Median / 1e9
	if series.Task.Phase() != "decode" || rate == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %%", 100*rate/gbps)
}

// hardest returns the ratio of a form of hetc to the engine that is fastest on a task, nil where there is none. A ratio to
// a form that was dropped is of fewer rounds, and another one was faster in these.
func hardest(result *engines.Result, form string, task engines.Task) (least *engines.Ratio) {
	for i := range result.Ratios {
		ratio := &result.Ratios[i]
		if ratio.Form != form || ratio.Task != task {
			continue
		}
		switch {
		case least == nil, least.Dropped && !ratio.Dropped:
			least = ratio
		case ratio.Dropped == least.Dropped && ratio.Summary.Median < least.Summary.Median:
			least = ratio
		}
	}
	return least
}

// lossOf returns the divergence of a form in the phase of a task, as a cell of a table. A start has no phase.
func lossOf(all []engines.Quality, series *engines.Series) string {
	for _, quality := range all {
		if quality.Engine == series.Engine && quality.Form == series.Form && series.Task.Start == 0 &&
			(quality.Phase == "" || quality.Phase == series.Task.Phase()) {
			return fmt.Sprintf("%.5f", quality.MeanKL)
		}
	}
	return ""
}

// showRatios compares hetc with the fastest form of every engine, where there are several.
func showRatios(out *page, result *engines.Result) {
	seen := map[string]bool{}
	var rows [][]string
	for _, ratio := range result.Ratios {
		seen[ratio.Peer] = true
		best := ratio.Best
		if ratio.Dropped {
			best += ", dropped"
		}
		rows = append(rows, []string{ratio.Task.String(), ratio.Form, ratio.Peer, best,
			fmt.Sprint(ratio.Summary.N), fmt.Sprintf("%.2f", ratio.Summary.Median), interval(ratio.Summary, "%.2f")})
	}
	if len(seen) > 1 {
		out.table([]string{"task", "hetc's form", "engine", "its fastest form", ">rounds", ">ratio", ">95 % interval"},
			rows)
	}
}

// showMemory compares the peak memory of hetc's plans with that of llama.cpp's formats, and lists that of all engines.
func (b *enginesBench) showMemory(out *page, model *EnginesModel) {
	result := model.Match
	header := []string{"peak memory", ">MiB", ">predicted MiB"}
	var formats []string // of llama.cpp, where it was measured
	for _, format := range b.Formats {
		if slices.ContainsFunc(result.Series, func(s engines.Series) bool {
			return s.Engine == engines.LlamaCppName && s.Form == format
		}) {
			formats, header = append(formats, format), append(header, ">/ llama.cpp "+format)
		}
	}

	var rows [][]string
	for _, made := range model.Plans {
		peak := result.Peak("hetc", made.Form)
		row := []string{"hetc " + made.Form, mib(peak), "-"}
		if made.Predicted > 0 {
			row[2] = mib(made.Predicted)
		}
		for _, format := range formats {
			row = append(row, peakRatio(peak, result.Peak(engines.LlamaCppName, format)))
		}
		rows = append(rows, row)
	}

	first := result.Series[0].Task
	for _, series := range result.Series {
		if series.Engine != "hetc" && series.Task == first { // each form once
			row := []string{series.Engine + " " + series.Form, mib(result.Peak(series.Engine, series.Form)), "-"}
			rows = append(rows, append(row, make([]string, len(formats))...))
		}
	}

	out.table(header, rows)
}

// showQuality writes the divergence of each form from float32, where a text was given.
func (b *enginesBench) showQuality(out *page, model *EnginesModel) {
	if len(model.Quality) == 0 {
		return
	}
	out.text("Quality on %s with %s, against the same weights in float32:", filepath.Base(b.Text), model.QualityOf)
	if model.Calibrated {
		out.text("hetc's weights are rounded by a calibration on the text behind what quality reads.")
	}
	var rows [][]string
	for _, quality := range model.Quality {
		rows = append(rows, []string{quality.Engine, quality.Form, quality.Phase,
			fmt.Sprintf("%.5f ± %.5f", quality.MeanKL, quality.KLError), fmt.Sprintf("%.2f %%", 100*quality.SameTop),
			fmt.Sprintf("%.3f", quality.Perplexity)})
	}
	out.table([]string{"engine", "form", "phase", ">mean KL", ">same top token", ">perplexity"}, rows)
}

// tasksOf lists the tasks of a result in the order of measuring.
func tasksOf(r *engines.Result) (out []engines.Task) {
	for _, series := range r.Series {
		if !slices.Contains(out, series.Task) {
			out = append(out, series.Task)
		}
	}
	return out
}

// peersOf names the other engines with their versions.
func peersOf(r *engines.Result) (out []string) {
	for _, series := range r.Series {
		text := fmt.Sprintf("%s %s (%s)", series.Engine, series.Version, series.Backend)
		if series.Engine != "hetc" && len(series.Samples) > 0 && !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}

// interval formats the 95 % interval of a summary, "-" for a single sample, which has none.
func interval(s stat.Summary, format string) string {
	if s.N < 2 {
		return "-"
	}
	return fmt.Sprintf(format+".."+format, s.Low, s.High)
}

// mib formats a size in MiB, "-" for an unknown one: of a process too short to be sampled.
func mib(bytes int64) string {
	if bytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f", float64(bytes)/(1<<20))
}

// joined lists words in alphabetical order, "-" for none.
func joined[T ~string](list []T) string {
	if len(list) == 0 {
		return "-"
	}
	var words []string
	for _, x := range list {
		words = append(words, string(x))
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

// peakRatio formats how many times as much memory one engine held at most as another, "-" where one
// is unknown.
func peakRatio(peak, other int64) string {
	if peak == 0 || other == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", float64(peak)/float64(other))
}

// report shows the tables of all models, and writes the files that the flags name.
func (b *enginesBench) report(list []EnginesModel) error {
	env := measuredOn(b.Cores)
	doc := map[string]any{
		"cpu": env.CPU, "features": env.Features, "kernels": env.Kernels, "cores": b.Cores, "hetc": cli.Version,
		"models": list,
	}
	out := &page{s: b.s}
	for i := range list {
		b.show(out, env, &list[i])
	}
	// A file that cannot be written takes nothing along that can.
	return errors.Join(b.writeFiles(out.md.String(), doc), b.s.Result(doc))
}

// writeFiles writes the tables and the document to the files that the flags name.
func (b *enginesBench) writeFiles(tables string, doc map[string]any) (err error) {
	if b.Markdown != "" {
		err = wholefile.Write(b.Markdown, []byte(tables))
	}
	if b.Out == "" {
		return err
	}
	text, failed := json.MarshalIndent(doc, "", "  ")
	if failed == nil {
		failed = wholefile.Write(b.Out, append(text, '\n'))
	}
	return errors.Join(err, failed)
}
