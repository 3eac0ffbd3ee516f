package calibration

import (
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

// Bounds, far above any model.
const (
	maxEntries = 1 << 16 // activations, losses, folds
	maxLayers  = 1 << 12
	maxK       = 1 << 20
	maxTokens  = 1 << 40
	maxName    = 200
)

// Factors of folds lie between these: beyond them a folded gain or weight would leave float16.
const (
	MinFactor = 1.0 / 1024
	MaxFactor = 1024
)

// Validate reports everything that makes no sense; the error is of class ClassInput.
func (c *Calibration) Validate() error {
	return c.validate(func(path ...any) string {
		text := ""
		for _, part := range path {
			switch p := part.(type) {
			case int:
				text += fmt.Sprintf("[%d]", p)
			case string:
				text += "." + p
			}
		}
		return strings.TrimPrefix(text, ".")
	})
}

// validate checks each list by itself: first its length, then every entry. No two entries may be about the same thing.
func (c *Calibration) validate(at func(path ...any) string) error {
	check := &validator{at: at}
	if c.Schema != Schema {
		check.fail([]any{"schema"}, "schema is %q, want %q", c.Schema, Schema)
	}
	check.name([]any{"model", "name"}, c.Model.Name)
	check.digest([]any{"model", "digest"}, c.Model.Digest)
	check.digest([]any{"text", "sha256"}, c.Text.SHA256)
	if check.sizes(c) {
		check.activations(c.Activations)
		check.losses(c.Losses, len(c.Folds) > 0)
		check.caches(c.Caches)
		check.folds(c.Folds)
		check.clips(c.Clips)
		check.scales(c.Scales)
		check.shadows(c.Shadows)
		check.drops(c.Drops)
		check.exceeding(c.Exceeding)
		if c.Attention != nil {
			check.attention(c.Attention)
		}
	}
	return check.list.Err()
}

// sizes checks the lengths of all lists. It returns false where a list is too long to be checked.
func (v *validator) sizes(c *Calibration) bool {
	type sized struct {
		key   string
		count int
	}
	for _, number := range []sized{
		{"tokens", c.Text.Tokens}, {"windows", c.Text.Windows}, {"window_tokens", c.Text.WindowTokens},
	} {
		if number.count < 1 || number.count > maxTokens {
			v.fail([]any{"text", number.key}, "%s is %d, want 1..%d", number.key, number.count, maxTokens)
		}
	}
	for _, list := range []sized{
		{"activations", len(c.Activations)}, {"losses", len(c.Losses)}, {"caches", len(c.Caches)}, {"folds", len(c.Folds)},
		{"clips", len(c.Clips)}, {"scales", len(c.Scales)},
		{"shadows", len(c.Shadows)}, {"drops", len(c.Drops)},
		{"exceeding", len(c.Exceeding)},
	} {
		if list.count > maxEntries {
			v.fail([]any{list.key}, "%d %s, want at most %d", list.count, list.key, maxEntries)
			return false
		}
	}
	return true
}

// place is a class or a group in a layer.
type place struct {
	name  string
	layer int
}

// again marks a key as seen, and reports whether it was before.
func again[K comparable](seen map[K]bool, key K) bool {
	was := seen[key]
	seen[key] = true
	return was
}

// activations checks each measurement; a class and layer has one.
func (v *validator) activations(list []Activation) {
	seen := map[place]bool{}
	for i := range list {
		activation := &list[i]
		v.activation(i, activation)
		if again(seen, place{activation.Class, activation.Layer}) {
			v.fail([]any{"activations", i}, "class %q in layer %d is there twice", activation.Class, activation.Layer)
		}
	}
}

// losses checks each loss; folds says whether there is a fold that a loss could have been measured with.
func (v *validator) losses(list []Loss, folds bool) {
	type choice struct {
		class  string
		scheme op.Scheme
		folded bool
	}
	seen := map[choice]bool{}
	for i := range list {
		loss := &list[i]
		v.loss(i, loss, folds)
		if again(seen, choice{loss.Class, loss.Scheme, loss.Folded}) {
			v.fail([]any{"losses", i}, "class %q with scheme %q is there twice", loss.Class, loss.Scheme)
		}
	}
}

// folds checks that factors keep folded gains and weights within float16, each group and layer once.
func (v *validator) folds(list []Fold) {
	seen := map[place]bool{}
	for i := range list {
		fold := &list[i]
		v.name([]any{"folds", i, "group"}, fold.Group)
		v.layer([]any{"folds", i, "layer"}, fold.Layer)
		v.vector([]any{"folds", i, "factors"}, fold.Factors, MinFactor, MaxFactor)
		if again(seen, place{fold.Group, fold.Layer}) {
			v.fail([]any{"folds", i}, "group %q in layer %d is there twice", fold.Group, fold.Layer)
		}
	}
}

// clips checks that each share cuts something off, and leaves something; a class has one.
func (v *validator) clips(list []Clip) {
	seen := map[string]bool{}
	for i := range list {
		clip := &list[i]
		v.name([]any{"clips", i, "class"}, clip.Class)
		if !(clip.Share > 0 && clip.Share < 1) {
			v.fail([]any{"clips", i, "share"}, "share is %v, want above 0, below 1", clip.Share)
		}
		if again(seen, clip.Class) {
			v.fail([]any{"clips", i}, "class %q is there twice", clip.Class)
		}
	}
}

// scales checks that scales are positive and ascending: a row takes the first that holds it.
func (v *validator) scales(list []Scales) {
	type choice struct {
		place
		count int
	}
	seen := map[choice]bool{}
	for i := range list {
		scales, count := &list[i], len(list[i].Values)
		v.name([]any{"scales", i, "class"}, scales.Class)
		v.layer([]any{"scales", i, "layer"}, scales.Layer)
		if count < 2 || count > op.MaxScales {
			v.fail([]any{"scales", i, "values"}, "%d values, want 2..%d", count, op.MaxScales)
		}
		for j, scale := range scales.Values {
			if !(scale > 0 && scale <= math.MaxFloat32) || j > 0 && scale < scales.Values[j-1] {
				v.fail([]any{"scales", i, "values", j}, "scale is %v, want positive numbers in ascending order", scale)
			}
		}
		if again(seen, choice{place{scales.Class, scales.Layer}, count}) {
			v.fail([]any{"scales", i}, "%d scales of class %q in layer %d are there twice", count, scales.Class,
				scales.Layer)
		}
	}
}

// shadows checks that each worth lies in its interval and each ratio is one of magnitudes; a class and layer has one.
func (v *validator) shadows(list []Shadow) {
	seen := map[place]bool{}
	for i := range list {
		shadow := &list[i]
		v.name([]any{"shadows", i, "class"}, shadow.Class)
		v.layer([]any{"shadows", i, "layer"}, shadow.Layer)
		if !(shadow.Low >= -math.MaxFloat32 && shadow.KL >= shadow.Low && shadow.High >= shadow.KL &&
			shadow.High <= math.MaxFloat32) {
			v.fail([]any{"shadows", i, "mean_kl"}, "mean_kl is %v in %v..%v, want low <= mean_kl <= high", shadow.KL,
				shadow.Low, shadow.High)
		}
		if !(shadow.Ratio >= 0 && shadow.Ratio <= math.MaxFloat32) {
			v.fail([]any{"shadows", i, "ratio"}, "ratio is %v, want 0 or more", shadow.Ratio)
		}
		if again(seen, place{shadow.Class, shadow.Layer}) {
			v.fail([]any{"shadows", i}, "class %q in layer %d is there twice", shadow.Class, shadow.Layer)
		}
	}
}

// exceeding checks each entry; a class and layer has one.
func (v *validator) exceeding(list []Exceeding) {
	seen := map[place]bool{}
	for i := range list {
		entry := &list[i]
		v.name([]any{"exceeding", i, "class"}, entry.Class)
		v.layer([]any{"exceeding", i, "layer"}, entry.Layer)
		if again(seen, place{entry.Class, entry.Layer}) {
			v.fail([]any{"exceeding", i}, "class %q in layer %d is there twice", entry.Class, entry.Layer)
		}
		v.exceedingCounts(i, entry)
		if len(entry.Counts) == 0 || len(entry.Hot) > MaxHot {
			v.fail([]any{"exceeding", i}, "%d counts and %d hot channels, want counts, and at most %d channels",
				len(entry.Counts), len(entry.Hot), MaxHot)
		}
		if entry.Distinct != 0 && (entry.Distinct < len(entry.Hot) || entry.Distinct > maxK) {
			v.fail([]any{"exceeding", i, "distinct"}, "%d channels, of which %d are hot: want 0, or as many and at most %d",
				entry.Distinct, len(entry.Hot), maxK)
		}
		v.hotChannels(i, entry)
	}
}

// exceedingCounts checks that counts are by ascending rows, and no mean above the largest count.
func (v *validator) exceedingCounts(i int, entry *Exceeding) {
	rows := 0
	for j, count := range entry.Counts {
		ascending := count.Rows > rows && count.Rows <= maxTokens
		most := count.Most >= 0 && count.Most <= maxK
		mean := count.Mean >= 0 && count.Mean <= float64(count.Most)
		if !ascending || !most || !mean {
			v.fail([]any{"exceeding", i, "counts", j}, "%d rows, mean %v, most %d: want ascending rows and mean 0..most",
				count.Rows, count.Mean, count.Most)
		}
		rows = count.Rows
	}
}

// hotChannels checks that channels are there once, by descending shares.
func (v *validator) hotChannels(i int, entry *Exceeding) {
	channels := map[int]bool{}
	for j, hot := range entry.Hot {
		known := hot.Channel >= 0 && hot.Channel < maxK && hot.Share > 0 && hot.Share <= 1
		descending := j == 0 || hot.Share <= entry.Hot[j-1].Share
		if !known || again(channels, hot.Channel) || !descending {
			v.fail([]any{"exceeding", i, "hot", j}, "channel %d with share %v: want channels once, descending shares in 0..1",
				hot.Channel, hot.Share)
		}
	}
}

// validator collects mistakes.
type validator struct {
	at   func(path ...any) string
	list diag.List // mistakes so far
}

// maxErrors is how many mistakes are reported at most.
const maxErrors = 20

// fail adds a mistake at a path, up to maxErrors.
func (v *validator) fail(path []any, format string, args ...any) {
	if len(v.list) < maxErrors {
		v.list = append(v.list, diag.New(diag.ClassInput, format, args...).WithCode("calibration.value").
			At("%s", v.at(path...)))
	}
}

// name is shown to people and compared with names of models, nodes and groups.
func (v *validator) name(path []any, text string) {
	ok := text != "" && len(text) <= maxName
	for _, char := range text {
		ok = ok && char > ' ' && char != 0x7f && (char < 0x80 || char >= 0xa0)
	}
	if !ok {
		v.fail(path, "%v is %.40q, want 1..%d characters without spaces", path[len(path)-1], text, maxName)
	}
}

// digest is a SHA-256 in lower-case hex.
func (v *validator) digest(path []any, text string) {
	if b, err := hex.DecodeString(text); err != nil || len(b) != 32 || strings.ToLower(text) != text {
		v.fail(path, "%v is %.80q, want 64 hex digits", path[len(path)-1], text)
	}
}

// layer checks that the number of a layer is in range.
func (v *validator) layer(path []any, number int) {
	if number < 0 || number >= maxLayers {
		v.fail(path, "layer is %d, want 0..%d", number, maxLayers-1)
	}
}

// vector reports the first element outside low..high.
func (v *validator) vector(path []any, values []float32, low, high float64) {
	if len(values) < 1 || len(values) > maxK {
		v.fail(path, "%v has %d values, want 1..%d", path[len(path)-1], len(values), maxK)
		return
	}
	for i, value := range values {
		if !(float64(value) >= low && float64(value) <= high) {
			v.fail(path, "%v[%d] is %v, want %v..%v", path[len(path)-1], i, value, low, high)
			return
		}
	}
}

// activation checks the measurements of a class in a layer against each other.
func (v *validator) activation(i int, activation *Activation) {
	path := func(key string) []any { return []any{"activations", i, key} }
	v.name(path("class"), activation.Class)
	v.layer(path("layer"), activation.Layer)
	if activation.Rows < 1 || activation.Rows > maxTokens {
		v.fail(path("rows"), "rows is %d, want 1..%d", activation.Rows, maxTokens)
	}
	// The vectors must be sound by themselves before they are compared.
	before := len(v.list)
	v.vector(path("absmax"), activation.AbsMax, 0, math.MaxFloat32)
	v.vector(path("mean_square"), activation.MeanSquare, 0, math.MaxFloat32)
	if len(activation.AbsMax) != activation.K || len(activation.MeanSquare) != activation.K {
		v.fail(path("k"), "k is %d, and absmax and mean_square have %d and %d values", activation.K,
			len(activation.AbsMax), len(activation.MeanSquare))
	}
	if len(v.list) > before {
		return
	}
	// Means cannot exceed the largest value, but for rounding.
	for channel, mean := range activation.MeanSquare {
		if float64(mean) > float64(activation.AbsMax[channel])*float64(activation.AbsMax[channel])*(1+1e-6)+math.SmallestNonzeroFloat32 {
			v.fail(path("mean_square"), "mean_square[%d] is %v, more than the square of absmax %v", channel, mean,
				activation.AbsMax[channel])
			return
		}
	}
	if len(activation.OutMax) > 0 {
		v.vector(path("out_absmax"), activation.OutMax, 0, math.MaxFloat32)
	}
	v.directions(i, activation)
	v.summary(i, activation)
}

// summary checks that the numbers for people (largest value, median, outliers) follow from the vectors.
func (v *validator) summary(i int, activation *Activation) {
	want := Activation{AbsMax: activation.AbsMax}
	want.Summarise()
	if activation.Max != want.Max || activation.Median != want.Median ||
		len(activation.Outliers) != len(want.Outliers) {
		v.fail([]any{"activations", i},
			"max %v, median %v and %d outliers do not belong to absmax, which has %v, %v and %d",
			activation.Max, activation.Median, len(activation.Outliers), want.Max, want.Median, len(want.Outliers))
		return
	}
	for j, outlier := range activation.Outliers {
		if expected := want.Outliers[j]; outlier.Channel != expected.Channel || outlier.Max != expected.Max {
			v.fail([]any{"activations", i, "outliers", j}, "outlier is channel %d with %v, want channel %d with %v",
				outlier.Channel, outlier.Max, expected.Channel, expected.Max)
		}
		if !(outlier.Share > 0 && outlier.Share <= 1) {
			v.fail([]any{"activations", i, "outliers", j, "share"}, "share is %v, want above 0, up to 1", outlier.Share)
		}
	}
}

// maxRank bounds the number of directions.
const maxRank = 256

// directions checks that correlations are of the channels that were measured, and no larger than their mean squares.
func (v *validator) directions(i int, activation *Activation) {
	path := []any{"activations", i, "directions"}
	if len(activation.Directions)%activation.K != 0 || len(activation.Directions) > maxRank*activation.K {
		v.fail(path, "directions has %d values for %d channels, want a multiple of their number, at most %d times",
			len(activation.Directions), activation.K, maxRank)
		return
	}
	rank := len(activation.Directions) / activation.K
	for channel, mean := range activation.MeanSquare {
		sum := 0.0
		for _, value := range activation.Directions[channel*rank : (channel+1)*rank] {
			sum += float64(value) * float64(value)
		}
		// Rounding to bfloat16 may add nearly a hundredth.
		if !(sum <= 1.01*float64(mean)+math.SmallestNonzeroFloat32) {
			v.fail(path, "directions of channel %d have a square of %v, more than mean_square %v", channel, sum, mean)
			return
		}
	}
}

// loss checks a measurement: a known scheme that rounds something, and an estimate within its interval.
func (v *validator) loss(i int, loss *Loss, folds bool) {
	path := func(key string) []any { return []any{"losses", i, key} }
	v.name(path("class"), loss.Class)
	if _, err := op.ParseScheme(string(loss.Scheme)); err != nil && !loss.Scheme.LooksUp() {
		v.fail(path("scheme"), "%w", err)
	} else if loss.Scheme == op.A32W32 {
		v.fail(path("scheme"), "scheme %q loses nothing", loss.Scheme)
	}
	if loss.Folded && !folds {
		v.fail(path("folded"), "folded is true, and there are no folds")
	}
	v.divergence(path, loss.KL, loss.Low, loss.High, loss.TopAgreement)
}

// divergence checks what was measured of a loss.
func (v *validator) divergence(path func(key string) []any, kl, low, high, agreement float64) {
	if !(low >= 0 && kl >= low && high >= kl && high <= math.MaxFloat32) {
		v.fail(path("mean_kl"), "mean_kl is %v in %v..%v, want 0 <= low <= mean_kl <= high", kl, low, high)
	}
	if !(agreement >= 0 && agreement <= 1) {
		v.fail(path("top_agreement"), "top_agreement is %v, want 0..1", agreement)
	}
}

// caches checks each loss of a type of cache; a type has one.
func (v *validator) caches(list []CacheLoss) {
	seen := map[op.Type]bool{}
	for i := range list {
		loss := &list[i]
		path := func(key string) []any { return []any{"caches", i, key} }
		switch {
		case !slices.Contains(op.CacheTypes, loss.Type):
			v.fail(path("type"), "type is %q, want %s", loss.Type, diag.OneOf(op.CacheTypes))
		case loss.Type == op.F32:
			v.fail(path("type"), "type %q loses nothing", loss.Type)
		case again(seen, loss.Type):
			v.fail(path("type"), "type %q is there twice", loss.Type)
		}
		v.divergence(path, loss.KL, loss.Low, loss.High, loss.TopAgreement)
	}
}
