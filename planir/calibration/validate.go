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
		s := ""
		for _, p := range path {
			switch p := p.(type) {
			case int:
				s += fmt.Sprintf("[%d]", p)
			case string:
				s += "." + p
			}
		}
		return strings.TrimPrefix(s, ".")
	})
}

func (c *Calibration) validate(at func(path ...any) string) error {
	v := &validator{at: at}
	if c.Schema != Schema {
		v.fail([]any{"schema"}, "schema is %q, want %q", c.Schema, Schema)
	}
	v.name([]any{"model", "name"}, c.Model.Name)
	v.digest([]any{"model", "digest"}, c.Model.Digest)
	v.digest([]any{"text", "sha256"}, c.Text.SHA256)
	for _, f := range []struct {
		key string
		n   int
	}{{"tokens", c.Text.Tokens}, {"windows", c.Text.Windows}, {"window_tokens", c.Text.WindowTokens}} {
		if f.n < 1 || f.n > maxTokens {
			v.fail([]any{"text", f.key}, "%s is %d, want 1..%d", f.key, f.n, maxTokens)
		}
	}
	for _, f := range []struct {
		key string
		n   int
	}{{"activations", len(c.Activations)}, {"losses", len(c.Losses)}, {"folds", len(c.Folds)}, {"clips", len(c.Clips)}, {"scales", len(c.Scales)}} {
		if f.n > maxEntries {
			v.fail([]any{f.key}, "%d %s, want at most %d", f.n, f.key, maxEntries)
			return v.list.Err()
		}
	}
	type place struct {
		name  string
		layer int
	}
	seen := map[place]bool{}
	for i := range c.Activations {
		a := &c.Activations[i]
		v.activation(i, a)
		if p := (place{a.Class, a.Layer}); seen[p] {
			v.fail([]any{"activations", i}, "class %q in layer %d is there twice", a.Class, a.Layer)
		} else {
			seen[p] = true
		}
	}
	type choice struct {
		class  string
		scheme op.Scheme
		folded bool
	}
	lost := map[choice]bool{}
	for i := range c.Losses {
		l := &c.Losses[i]
		v.loss(i, l, len(c.Folds) > 0)
		if p := (choice{l.Class, l.Scheme, l.Folded}); lost[p] {
			v.fail([]any{"losses", i}, "class %q with scheme %q is there twice", l.Class, l.Scheme)
		} else {
			lost[p] = true
		}
	}
	clear(seen)
	for i := range c.Folds {
		f := &c.Folds[i]
		v.name([]any{"folds", i, "group"}, f.Group)
		v.layer([]any{"folds", i, "layer"}, f.Layer)
		v.vector([]any{"folds", i, "factors"}, f.Factors, MinFactor, MaxFactor)
		if p := (place{f.Group, f.Layer}); seen[p] {
			v.fail([]any{"folds", i}, "group %q in layer %d is there twice", f.Group, f.Layer)
		} else {
			seen[p] = true
		}
	}
	clear(seen)
	for i := range c.Clips {
		x := &c.Clips[i]
		v.name([]any{"clips", i, "class"}, x.Class)
		if !(x.Share > 0 && x.Share < 1) {
			v.fail([]any{"clips", i, "share"}, "share is %v, want above 0, below 1", x.Share)
		}
		if p := (place{x.Class, 0}); seen[p] {
			v.fail([]any{"clips", i}, "class %q is there twice", x.Class)
		} else {
			seen[p] = true
		}
	}
	type several struct {
		place
		n int
	}
	chosen := map[several]bool{}
	for i := range c.Scales {
		x := &c.Scales[i]
		v.name([]any{"scales", i, "class"}, x.Class)
		v.layer([]any{"scales", i, "layer"}, x.Layer)
		if n := len(x.Values); n < 2 || n > op.MaxScales {
			v.fail([]any{"scales", i, "values"}, "%d values, want 2..%d", n, op.MaxScales)
		}
		for j, s := range x.Values {
			if !(s > 0 && s <= math.MaxFloat32) || j > 0 && s < x.Values[j-1] {
				v.fail([]any{"scales", i, "values", j}, "scale is %v, want positive numbers in ascending order", s)
			}
		}
		if p := (several{place{x.Class, x.Layer}, len(x.Values)}); chosen[p] {
			v.fail([]any{"scales", i}, "%d scales of class %q in layer %d are there twice", len(x.Values), x.Class, x.Layer)
		} else {
			chosen[p] = true
		}
	}
	return v.list.Err()
}

// validator collects mistakes.
type validator struct {
	at   func(path ...any) string
	list diag.List
}

const maxErrors = 20

func (v *validator) fail(path []any, format string, args ...any) {
	if len(v.list) < maxErrors {
		v.list = append(v.list, diag.New(diag.ClassInput, format, args...).WithCode("calibration.value").At("%s", v.at(path...)))
	}
}

// name is shown to people and compared with names of models, nodes and groups.
func (v *validator) name(path []any, s string) {
	ok := s != "" && len(s) <= maxName
	for _, r := range s {
		ok = ok && r > ' ' && r != 0x7f && (r < 0x80 || r >= 0xa0)
	}
	if !ok {
		v.fail(path, "%v is %.40q, want 1..%d characters without spaces", path[len(path)-1], s, maxName)
	}
}

func (v *validator) digest(path []any, s string) {
	if b, err := hex.DecodeString(s); err != nil || len(b) != 32 || strings.ToLower(s) != s {
		v.fail(path, "%v is %.80q, want 64 hex digits", path[len(path)-1], s)
	}
}

func (v *validator) layer(path []any, n int) {
	if n < 0 || n >= maxLayers {
		v.fail(path, "layer is %d, want 0..%d", n, maxLayers-1)
	}
}

// vector reports the first element outside low..high.
func (v *validator) vector(path []any, x []float32, low, high float64) {
	if len(x) < 1 || len(x) > maxK {
		v.fail(path, "%v has %d values, want 1..%d", path[len(path)-1], len(x), maxK)
		return
	}
	for i, f := range x {
		if !(float64(f) >= low && float64(f) <= high) {
			v.fail(path, "%v[%d] is %v, want %v..%v", path[len(path)-1], i, f, low, high)
			return
		}
	}
}

func (v *validator) activation(i int, a *Activation) {
	p := func(key string) []any { return []any{"activations", i, key} }
	v.name(p("class"), a.Class)
	v.layer(p("layer"), a.Layer)
	if a.Rows < 1 || a.Rows > maxTokens {
		v.fail(p("rows"), "rows is %d, want 1..%d", a.Rows, maxTokens)
	}
	before := len(v.list)
	v.vector(p("absmax"), a.AbsMax, 0, math.MaxFloat32)
	v.vector(p("mean_square"), a.MeanSquare, 0, math.MaxFloat32)
	if len(a.AbsMax) != a.K || len(a.MeanSquare) != a.K {
		v.fail(p("k"), "k is %d, and absmax and mean_square have %d and %d values", a.K, len(a.AbsMax), len(a.MeanSquare))
	}
	if len(v.list) > before {
		return
	}
	for c, m := range a.MeanSquare {
		if float64(m) > float64(a.AbsMax[c])*float64(a.AbsMax[c])*(1+1e-6)+math.SmallestNonzeroFloat32 {
			v.fail(p("mean_square"), "mean_square[%d] is %v, more than the square of absmax %v", c, m, a.AbsMax[c])
			return
		}
	}
	if len(a.OutMax) > 0 {
		v.vector(p("out_absmax"), a.OutMax, 0, math.MaxFloat32)
	}
	v.directions(i, a)
	want := Activation{AbsMax: a.AbsMax}
	want.Summarise()
	if a.Max != want.Max || a.Median != want.Median || len(a.Outliers) != len(want.Outliers) {
		v.fail([]any{"activations", i}, "max %v, median %v and %d outliers do not belong to absmax, which has %v, %v and %d", a.Max, a.Median, len(a.Outliers), want.Max, want.Median, len(want.Outliers))
		return
	}
	for j, o := range a.Outliers {
		if w := want.Outliers[j]; o.Channel != w.Channel || o.Max != w.Max {
			v.fail([]any{"activations", i, "outliers", j}, "outlier is channel %d with %v, want channel %d with %v", o.Channel, o.Max, w.Channel, w.Max)
		}
		if !(o.Share > 0 && o.Share <= 1) {
			v.fail([]any{"activations", i, "outliers", j, "share"}, "share is %v, want above 0, up to 1", o.Share)
		}
	}
}

// maxRank bounds the number of directions.
const maxRank = 256

func (v *validator) directions(i int, a *Activation) {
	p := []any{"activations", i, "directions"}
	if len(a.Directions)%a.K != 0 || len(a.Directions) > maxRank*a.K {
		v.fail(p, "directions has %d values for %d channels, want a multiple of their number, at most %d times", len(a.Directions), a.K, maxRank)
		return
	}
	r := len(a.Directions) / a.K
	for c, m := range a.MeanSquare {
		sum := 0.0
		for _, x := range a.Directions[c*r : (c+1)*r] {
			sum += float64(x) * float64(x)
		}
		// Rounding to bfloat16 may add nearly a hundredth.
		if !(sum <= 1.01*float64(m)+math.SmallestNonzeroFloat32) {
			v.fail(p, "directions of channel %d have a square of %v, more than mean_square %v", c, sum, m)
			return
		}
	}
}

func (v *validator) loss(i int, l *Loss, folds bool) {
	p := func(key string) []any { return []any{"losses", i, key} }
	v.name(p("class"), l.Class)
	if _, err := op.ParseScheme(string(l.Scheme)); err != nil && l.Scheme != op.I32Q8C {
		v.fail(p("scheme"), "%w", err)
	} else if l.Scheme == op.A32W32 {
		v.fail(p("scheme"), "scheme %q loses nothing", l.Scheme)
	}
	if l.Folded && !folds {
		v.fail(p("folded"), "folded is true, and there are no folds")
	}
	if !(l.Low >= 0 && l.KL >= l.Low && l.High >= l.KL && l.High <= math.MaxFloat32) {
		v.fail(p("mean_kl"), "mean_kl is %v in %v..%v, want 0 <= low <= mean_kl <= high", l.KL, l.Low, l.High)
	}
	if !(l.TopAgreement >= 0 && l.TopAgreement <= 1) {
		v.fail(p("top_agreement"), "top_agreement is %v, want 0..1", l.TopAgreement)
	}
}
