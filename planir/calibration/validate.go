package calibration

import (
	"encoding/hex"
	"fmt"
	"math"
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

func (c *Calibration) validate(at func(path ...any) string) error {
	check := &validator{at: at}
	if c.Schema != Schema {
		check.fail([]any{"schema"}, "schema is %q, want %q", c.Schema, Schema)
	}
	check.name([]any{"model", "name"}, c.Model.Name)
	check.digest([]any{"model", "digest"}, c.Model.Digest)
	check.digest([]any{"text", "sha256"}, c.Text.SHA256)
	for _, sized := range []struct {
		key string
		n   int
	}{{"tokens", c.Text.Tokens}, {"windows", c.Text.Windows}, {"window_tokens", c.Text.WindowTokens}} {
		if sized.n < 1 || sized.n > maxTokens {
			check.fail([]any{"text", sized.key}, "%s is %d, want 1..%d", sized.key, sized.n, maxTokens)
		}
	}
	for _, sized := range []struct {
		key string
		n   int
	}{{"activations", len(c.Activations)}, {"losses", len(c.Losses)}, {"folds", len(c.Folds)},
		{"clips", len(c.Clips)}, {"scales", len(c.Scales)}} {
		if sized.n > maxEntries {
			check.fail([]any{sized.key}, "%d %s, want at most %d", sized.n, sized.key, maxEntries)
			return check.list.Err()
		}
	}
	type place struct {
		name  string
		layer int
	}
	seen := map[place]bool{}
	for i := range c.Activations {
		activation := &c.Activations[i]
		check.activation(i, activation)
		if key := (place{activation.Class, activation.Layer}); seen[key] {
			check.fail([]any{"activations", i}, "class %q in layer %d is there twice", activation.Class,
				activation.Layer)
		} else {
			seen[key] = true
		}
	}
	type choice struct {
		class  string
		scheme op.Scheme
		folded bool
	}
	lost := map[choice]bool{}
	for i := range c.Losses {
		loss := &c.Losses[i]
		check.loss(i, loss, len(c.Folds) > 0)
		if key := (choice{loss.Class, loss.Scheme, loss.Folded}); lost[key] {
			check.fail([]any{"losses", i}, "class %q with scheme %q is there twice", loss.Class, loss.Scheme)
		} else {
			lost[key] = true
		}
	}
	clear(seen)
	for i := range c.Folds {
		fold := &c.Folds[i]
		check.name([]any{"folds", i, "group"}, fold.Group)
		check.layer([]any{"folds", i, "layer"}, fold.Layer)
		check.vector([]any{"folds", i, "factors"}, fold.Factors, MinFactor, MaxFactor)
		if key := (place{fold.Group, fold.Layer}); seen[key] {
			check.fail([]any{"folds", i}, "group %q in layer %d is there twice", fold.Group, fold.Layer)
		} else {
			seen[key] = true
		}
	}
	clear(seen)
	for i := range c.Clips {
		clip := &c.Clips[i]
		check.name([]any{"clips", i, "class"}, clip.Class)
		if !(clip.Share > 0 && clip.Share < 1) {
			check.fail([]any{"clips", i, "share"}, "share is %v, want above 0, below 1", clip.Share)
		}
		if key := (place{clip.Class, 0}); seen[key] {
			check.fail([]any{"clips", i}, "class %q is there twice", clip.Class)
		} else {
			seen[key] = true
		}
	}
	type several struct {
		place
		n int
	}
	chosen := map[several]bool{}
	for i := range c.Scales {
		scales := &c.Scales[i]
		check.name([]any{"scales", i, "class"}, scales.Class)
		check.layer([]any{"scales", i, "layer"}, scales.Layer)
		if count := len(scales.Values); count < 2 || count > op.MaxScales {
			check.fail([]any{"scales", i, "values"}, "%d values, want 2..%d", count, op.MaxScales)
		}
		for j, scale := range scales.Values {
			if !(scale > 0 && scale <= math.MaxFloat32) || j > 0 && scale < scales.Values[j-1] {
				check.fail([]any{"scales", i, "values", j}, "scale is %v, want positive numbers in ascending order",
					scale)
			}
		}
		if key := (several{place{scales.Class, scales.Layer}, len(scales.Values)}); chosen[key] {
			check.fail([]any{"scales", i}, "%d scales of class %q in layer %d are there twice", len(scales.Values),
				scales.Class, scales.Layer)
		} else {
			chosen[key] = true
		}
	}
	return check.list.Err()
}

// validator collects mistakes.
type validator struct {
	at   func(path ...any) string
	list diag.List
}

const maxErrors = 20

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

func (v *validator) digest(path []any, text string) {
	if b, err := hex.DecodeString(text); err != nil || len(b) != 32 || strings.ToLower(text) != text {
		v.fail(path, "%v is %.80q, want 64 hex digits", path[len(path)-1], text)
	}
}

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

func (v *validator) activation(i int, activation *Activation) {
	path := func(key string) []any { return []any{"activations", i, key} }
	v.name(path("class"), activation.Class)
	v.layer(path("layer"), activation.Layer)
	if activation.Rows < 1 || activation.Rows > maxTokens {
		v.fail(path("rows"), "rows is %d, want 1..%d", activation.Rows, maxTokens)
	}
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
	want := Activation{AbsMax: activation.AbsMax}
	want.Summarise()
	if activation.Max != want.Max || activation.Median != want.Median ||
		len(activation.Outliers) != len(want.Outliers) {
		v.fail([]any{"activations", i}, "max %v, median %v and %d outliers do not belong to absmax, which has %v, %v and %d", activation.Max, activation.Median, len(activation.Outliers), want.Max, want.Median, len(want.Outliers))
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

func (v *validator) loss(i int, loss *Loss, folds bool) {
	path := func(key string) []any { return []any{"losses", i, key} }
	v.name(path("class"), loss.Class)
	if _, err := op.ParseScheme(string(loss.Scheme)); err != nil && loss.Scheme != op.I32Q8C {
		v.fail(path("scheme"), "%w", err)
	} else if loss.Scheme == op.A32W32 {
		v.fail(path("scheme"), "scheme %q loses nothing", loss.Scheme)
	}
	if loss.Folded && !folds {
		v.fail(path("folded"), "folded is true, and there are no folds")
	}
	if !(loss.Low >= 0 && loss.KL >= loss.Low && loss.High >= loss.KL && loss.High <= math.MaxFloat32) {
		v.fail(path("mean_kl"), "mean_kl is %v in %v..%v, want 0 <= low <= mean_kl <= high", loss.KL, loss.Low,
			loss.High)
	}
	if !(loss.TopAgreement >= 0 && loss.TopAgreement <= 1) {
		v.fail(path("top_agreement"), "top_agreement is %v, want 0..1", loss.TopAgreement)
	}
}
