// Package calibration knows the calibration format: what was measured about a model's activations and
// about what each precision costs.
package calibration

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/planir/op"
)

// MaxBytes is how large a file may be: directions fill most of it.
const MaxBytes = 64 << 20

// Schema identifies the calibration format. A change that an older reader would misunderstand gets a new number.
const Schema = "hetc.calibration/1"

// All is the class of a loss that was measured with every class in the scheme at once.
const All = "all"

// outlierRatio is the rule for outlier channels: those whose largest magnitude exceeds this many times
// the median over the channels of the same tensor.
const outlierRatio = 6

// Calibration is what hetc calibrate measured about one model with one text.
type Calibration struct {
	Schema string `json:"schema" yaml:"schema"`
	Model  Model  `json:"model" yaml:"model" decode:"required"`
	Text   Text   `json:"text" yaml:"text" decode:"required"`

	// one per class and layer
	Activations []Activation `json:"activations,omitempty" yaml:"activations" decode:"required"`
	// one per class, scheme and folding
	Losses []Loss `json:"losses,omitempty" yaml:"losses" decode:"required"`
	// one per type of cache but float32
	Caches []CacheLoss `json:"caches,omitempty" yaml:"caches,omitempty"`
	// only where they help; at most one per group and layer
	Folds []Fold `json:"folds,omitempty" yaml:"folds" decode:"required"`
	// only where they help; at most one per class
	Clips []Clip `json:"clips,omitempty" yaml:"clips"`
	// of schemes with several static scales, per class, layer and number of them
	Scales []Scales `json:"scales,omitempty" yaml:"scales,omitempty"`
	// what shadow outliers are worth, per class and layer; of classes that quantise their input by themselves
	Shadows []Shadow `json:"shadows,omitempty" yaml:"shadows,omitempty"`
	// of rows of experts beyond their slots, by rule and share ascending; empty: not measured
	Drops []DropLoss `json:"drops,omitempty" yaml:"drops,omitempty"`
	// how many channels exceed the scale of shadow outliers, per class and layer
	Exceeding []Exceeding `json:"exceeding,omitempty" yaml:"exceeding,omitempty"`
	// nil: attention was not measured
	Attention *Attention `json:"attention,omitempty" yaml:"attention,omitempty"`
}

// Model is the model that was observed; Digest is models.Model.Digest.
type Model struct {
	Name   string `json:"name" yaml:"name"`
	Digest string `json:"digest" yaml:"digest" decode:"required"`
}

// Text is what the model read: Windows windows of WindowTokens tokens each, every one from an empty
// cache. SHA256 is that of the whole file.
type Text struct {
	SHA256       string `json:"sha256" yaml:"sha256" decode:"required"`
	Tokens       int    `json:"tokens" yaml:"tokens"` // of all windows together
	Windows      int    `json:"windows" yaml:"windows"`
	WindowTokens int    `json:"window_tokens" yaml:"window_tokens"`
}

// Activation is what enters the matrix products of one class in one layer, an input f32 [rows,K] in float32
// arithmetic; with experts, of all of them together. AbsMax and MeanSquare are [K]: the largest magnitude and
// the mean square of every channel. Max, Median and Outliers are computed from AbsMax so that people can read them.
type Activation struct {
	Class    string    `json:"class" yaml:"class" decode:"required"` // node as decisions name it: "layers.qkv"
	Layer    int       `json:"layer" yaml:"layer"`                   // 0 for a class that belongs to no layer
	K        int       `json:"k" yaml:"k" decode:"required"`
	Rows     int64     `json:"rows" yaml:"rows" decode:"required"` // observed
	Max      float32   `json:"max" yaml:"max"`                     // of AbsMax
	Median   float32   `json:"median" yaml:"median"`               // of AbsMax: what is typical
	Outliers []Outlier `json:"outliers,omitempty" yaml:"outliers,omitempty"`

	AbsMax     Vector `json:"absmax" yaml:"absmax" decode:"required"`
	MeanSquare Vector `json:"mean_square" yaml:"mean_square" decode:"required"`
	// OutMax is [N]: the largest magnitude of every column of the products' result, bias included. Empty: it was not
	// measured, as by hetc before it had schemes with steps of results, and of products of experts.
	OutMax Vector `json:"out_absmax,omitempty" yaml:"out_absmax,omitempty"`
	// Directions is [K,R], R whole: sum over r of Directions[i,r]*Directions[j,r] is about the mean product of
	// channels i and j, and less than MeanSquare for i = j. Empty: correlations were not measured.
	Directions Coarse `json:"directions,omitempty" yaml:"directions,omitempty"`
}

// Outlier is a channel whose magnitude exceeds outlierRatio times the median, and the share of rows in which it does.
type Outlier struct {
	Channel int     `json:"channel" yaml:"channel"`
	Max     float32 `json:"max" yaml:"max"`
	Share   float64 `json:"share" yaml:"share"`
}

// Loss is what Scheme costs when only the weights of Class (or an embedding, with op.I32Q8C or op.I32Q6C) have it and
// everything else is a32/w32: the mean Kullback-Leibler divergence from float32 in nats a token with its 95 % interval,
// and the share of positions where both find the same token most likely. Folded says whether the calibration's folds
// were applied.
type Loss struct {
	Class        string    `json:"class" yaml:"class" decode:"required"` // or All
	Scheme       op.Scheme `json:"scheme" yaml:"scheme" decode:"required"`
	Folded       bool      `json:"folded" yaml:"folded"`
	KL           float64   `json:"mean_kl" yaml:"mean_kl" decode:"required"`
	Low          float64   `json:"low" yaml:"low"`
	High         float64   `json:"high" yaml:"high" decode:"required"`
	TopAgreement float64   `json:"top_agreement" yaml:"top_agreement" decode:"required"`
}

// CacheLoss is what it costs to keep keys and values in a type, everything else in float32: see Loss.
type CacheLoss struct {
	Type         op.Type `json:"type" yaml:"type" decode:"required"`
	KL           float64 `json:"mean_kl" yaml:"mean_kl" decode:"required"`
	Low          float64 `json:"low" yaml:"low"`
	High         float64 `json:"high" yaml:"high" decode:"required"`
	TopAgreement float64 `json:"top_agreement" yaml:"top_agreement" decode:"required"`
}

// Fold divides the inputs of a group of matrix products by factors [K] per channel and multiplies the rows of their
// weights by them, which changes nothing but what quantisation loses (SmoothQuant sec. 4). Groups are those of
// models.Graph.
type Fold struct {
	Group   string `json:"group" yaml:"group" decode:"required"`
	Layer   int    `json:"layer" yaml:"layer"` // 0 for a group that belongs to no layer
	Factors Vector `json:"factors" yaml:"factors" decode:"required"`
}

// Clip says that static scales of a class cover a share of the range that was observed, after folding: what is beyond
// it is rare, and clipping it costs less than coarser steps for everything else.
type Clip struct {
	Class string  `json:"class" yaml:"class" decode:"required"`
	Share float32 `json:"share" yaml:"share" decode:"required"` // of the largest magnitude, above 0 and below 1
}

// Scales are the static scales of rows that enter the products of a class in a layer, after folding, ascending. A row
// has the smallest that holds it (op.StaticScale); they have the least mean squared difference from the scales that the
// observed rows have of their own (solver/problem.Scales).
type Scales struct {
	Class  string    `json:"class" yaml:"class" decode:"required"`
	Layer  int       `json:"layer" yaml:"layer"` // 0 for a class that belongs to no layer
	Values []float32 `json:"values" yaml:"values" decode:"required"`
}

// Shadow is what the shadow outliers (op.A8OQ8C) of the products of a class in one layer are worth: the mean divergence
// in nats a token that clipping them there adds to that of the class with all its shadows, everything else a32/w32,
// with the folds and clips of the calibration. It may be negative, within its 95 % interval, which is that of the
// differences within windows.
type Shadow struct {
	Class string  `json:"class" yaml:"class" decode:"required"`
	Layer int     `json:"layer" yaml:"layer"` // 0 for a class that belongs to no layer
	KL    float64 `json:"mean_kl" yaml:"mean_kl" decode:"required"`
	Low   float64 `json:"low" yaml:"low" decode:"required"`
	High  float64 `json:"high" yaml:"high" decode:"required"`
	// Ratio is llm.npu's importance (3.3): the largest magnitude that entered over the largest that the scale holds.
	Ratio float64 `json:"ratio" yaml:"ratio" decode:"required"`
}

// Exceeding is how many channels of what enters the products of a class in one layer exceed the scale of shadow
// outliers (Activation.InnerScale), with the folds of the calibration, in calls of some numbers of rows.
type Exceeding struct {
	Class string `json:"class" yaml:"class" decode:"required"`
	Layer int    `json:"layer" yaml:"layer"` // 0 for a class that belongs to no layer
	// ascending by rows
	Counts []Count `json:"counts" yaml:"counts" decode:"required"`
	// Hot are the channels that exceed it in most calls of the largest number of rows, at most MaxHot of them:
	// descending by share, ascending by channel.
	Hot []Hot `json:"hot,omitempty" yaml:"hot,omitempty"`
	// Distinct is how many channels exceeded it in some call, 0: it was not counted, as by hetc before it read single
	// rows.
	Distinct int `json:"distinct,omitempty" yaml:"distinct,omitempty"`
}

// Count is how many channels exceed a scale in some row of a call: on average, and in the call with most.
type Count struct {
	Rows int     `json:"rows" yaml:"rows" decode:"required"`
	Mean float64 `json:"mean" yaml:"mean"`
	Most int     `json:"most" yaml:"most"`
}

// Hot is a channel and the share of calls in which it exceeds the scale.
type Hot struct {
	Channel int     `json:"channel" yaml:"channel"`
	Share   float64 `json:"share" yaml:"share" decode:"required"`
}

// MaxHot is how many channels Exceeding lists.
const MaxHot = 64

// hotShare is the share of all channels beyond the scale, counted in every call, that hot channels are to have
// together. llm.npu (3.3) found that fewer than 3 % of the channels have more than 80 % of the outliers.
const hotShare = 0.8

// HotChannels returns the channels, ascending, that have hotShare of what exceeded the scale of a class in a layer, by
// the fewest of them: those that exceed it in most calls. others is how many more there were. ok is false where the
// others were not counted.
func (c *Calibration) HotChannels(class string, layer int) (hot []int, others int, ok bool) {
	at := slices.IndexFunc(c.Exceeding, func(x Exceeding) bool { return x.Class == class && x.Layer == layer })
	if at < 0 || len(c.Exceeding[at].Counts) == 0 || c.Exceeding[at].Distinct == 0 {
		return nil, 0, false
	}
	exceeding := &c.Exceeding[at]
	all, sum := exceeding.Counts[len(exceeding.Counts)-1].Mean, 0.0
	for _, channel := range exceeding.Hot {
		if sum >= hotShare*all {
			break
		}
		sum += channel.Share
		hot = append(hot, channel.Channel)
	}
	slices.Sort(hot)
	return hot, exceeding.Distinct - len(hot), len(hot) > 0
}

// MostExceeding returns the most channels of a class, in any layer, that exceeded the scale of shadow outliers in a
// call of so many rows: counted at the next larger number of rows, else at the largest. ok is false where nothing was
// counted.
func (c *Calibration) MostExceeding(class string, rows int) (most int, ok bool) {
	for i := range c.Exceeding {
		exceeding := &c.Exceeding[i]
		if exceeding.Class != class || len(exceeding.Counts) == 0 {
			continue
		}
		at := slices.IndexFunc(exceeding.Counts, func(count Count) bool { return count.Rows >= rows })
		if at < 0 {
			at = len(exceeding.Counts) - 1
		}
		most, ok = max(most, exceeding.Counts[at].Most), true
	}
	return most, ok
}

// Read reads a calibration from a YAML or JSON file. Mistakes are of class ClassInput, with their line.
func Read(path string) (*Calibration, error) {
	data, err := wholefile.Read(path, MaxBytes)
	if err != nil {
		return nil, err
	}
	return Decode(path, data)
}

// Decode is Read of bytes; name is shown in errors.
func Decode(name string, data []byte) (*Calibration, error) {
	doc, err := decode.ParseLarge(name, data, MaxBytes)
	if err != nil {
		return nil, err
	}
	return read(doc)
}

// read decodes a parsed document and checks its values.
func read(doc *decode.Document) (*Calibration, error) {
	var cal Calibration
	if err := doc.Into(Schema, &cal); err != nil {
		return nil, err
	}
	return &cal, cal.validate(doc.At)
}

// Encode returns the calibration as YAML that Decode reads back exactly. One that is not valid, or larger
// than any reader accepts, is refused.
func Encode(cal *Calibration) ([]byte, error) {
	if err := cal.Validate(); err != nil {
		return nil, err
	}
	data, err := decode.YAML(cal)
	if err != nil {
		return nil, fmt.Errorf("encode calibration: %w", err)
	}
	if len(data) > MaxBytes {
		return nil, diag.New(diag.ClassInput, "encode calibration: %d bytes, want at most %d", len(data), MaxBytes)
	}
	return data, nil
}

// Write replaces the file at path with the calibration.
func Write(path string, cal *Calibration) error {
	data, err := Encode(cal)
	if err != nil {
		return err
	}
	return wholefile.Write(path, data)
}

// Digest returns the identity of a calibration: hex SHA-256 of its canonical JSON (fixed key order, no white space).
func (c *Calibration) Digest() (string, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(c); err != nil {
		return "", fmt.Errorf("digest calibration: %w", err)
	}
	sum := sha256.Sum256(bytes.TrimSuffix(buf.Bytes(), []byte("\n")))
	return hex.EncodeToString(sum[:]), nil
}

// CheckModel refuses a calibration that was made for another model than the one of that name and digest.
func (c *Calibration) CheckModel(name, digest string) error {
	if c.Model.Digest == digest {
		return nil
	}
	return diag.New(diag.ClassInput, "calibration is for model %q with digest %.12s, want %q with %.12s",
		c.Model.Name, c.Model.Digest, name, digest).
		WithHint("measure this model: hetc calibrate --model DIR --text FILE -o cal.yaml")
}

// Activation returns what enters a class in a layer, nil when it was not observed.
func (c *Calibration) Activation(class string, layer int) *Activation {
	for i := range c.Activations {
		if activation := &c.Activations[i]; activation.Class == class && activation.Layer == layer {
			return activation
		}
	}
	return nil
}

// Share returns the share of the range that static scales of a class cover, 1 where nothing is clipped.
func (c *Calibration) Share(class string) float32 {
	for i := range c.Clips {
		if c.Clips[i].Class == class {
			return c.Clips[i].Share
		}
	}
	return 1
}

// RowScales returns the count static scales, 2 or more, of rows of a class and layer, ascending; nil where they were
// not measured. They are those of folded activations. See StaticScale for a single one.
func (c *Calibration) RowScales(class string, layer, count int) []float32 {
	for i := range c.Scales {
		if scales := &c.Scales[i]; scales.Class == class && scales.Layer == layer && len(scales.Values) == count {
			return scales.Values
		}
	}
	return nil
}

// StaticScale returns the scale of 8-bit rows of the activation with which what is beyond a share of the range that was
// observed saturates: share*AbsMax/127, once the channels are divided by factors (nil: 1). It is positive: 1 where
// nothing but zeros was observed.
func (a *Activation) StaticScale(factors []float32, share float32) float32 {
	return scaleOf(slices.Max(a.magnitudes(factors)), float64(share))
}

// InnerScale returns the scale of 8-bit rows of the activation that holds all but so many of its channels, the largest
// ones, for innerShare of their range. Values beyond 127 times it are computed beside (op.Scheme.Shadow). Channels are
// divided by factors (nil: 1). It is positive.
func (a *Activation) InnerScale(factors []float32, outliers int) float32 {
	magnitudes := a.magnitudes(factors)
	slices.Sort(magnitudes)
	// Where nothing is left below the largest, or only zeros, the scale holds everything.
	for _, top := range slices.Backward(magnitudes[:max(1, len(magnitudes)-outliers)]) {
		if top > 0 {
			return scaleOf(top, innerShare)
		}
	}
	return scaleOf(magnitudes[len(magnitudes)-1], 1)
}

// InnerLimits returns the largest magnitudes [K] of the channels, as they are before factors divide them, that an inner
// scale holds.
func (a *Activation) InnerLimits(factors []float32, outliers int) []float32 {
	limit := 127 * a.InnerScale(factors, outliers)
	out := make([]float32, len(a.AbsMax))
	for i := range out {
		out[i] = limit
		if factors != nil {
			out[i] *= factors[i]
		}
	}
	return out
}

// LeaveOut changes what was observed so that InnerScale for that many outliers holds all channels but a smaller number
// of them, the largest, and those whole: what an experiment needs that asks for a share of channels beyond the scale.
// How often channels exceed is not known afterwards: the shares of outliers are the least that there are.
func (a *Activation) LeaveOut(exceeding, outliers int) {
	order := make([]int, len(a.AbsMax))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(a.AbsMax[y], a.AbsMax[x]) })
	// The largest that is to be held, as the part of a range that an inner scale covers.
	top := a.AbsMax[order[min(exceeding, len(order)-1)]] / innerShare
	for rank, channel := range order {
		if rank < outliers {
			a.AbsMax[channel] = max(a.AbsMax[channel], top)
		} else {
			a.AbsMax[channel] = top
		}
	}
	a.Summarise()
	for i := range a.Outliers {
		a.Outliers[i].Share = 1 / float64(a.Rows)
	}
}

// innerShare is how much of the range of what it holds an inner scale covers. What is beyond it is rare and not lost,
// and finer steps for everything else lose less: on tiny-llama-kjv a mean KL of 0.0009 at 0.7 against 0.0016 at 1,
// while hetc quality took 1.4 times as long on the host.
const innerShare = 0.7

// magnitudes returns the largest magnitudes of the channels, divided by factors (nil: 1).
func (a *Activation) magnitudes(factors []float32) []float64 {
	out := make([]float64, len(a.AbsMax))
	for i, most := range a.AbsMax {
		out[i] = float64(most)
		if factors != nil {
			out[i] /= float64(factors[i])
		}
	}
	return out
}

// scaleOf returns the scale with which 8-bit codes reach a share of top, 1 for a top of 0.
func scaleOf(top, share float64) float32 {
	scale := float32(min(top/127*share, math.MaxFloat32))
	if scale == 0 {
		return 1
	}
	return scale
}

// GridMargin is how far a 16-bit grid reaches beyond what was observed: what a calibration's text did not show has
// room, and the steps of a grid of 65535 values stay far below what matters (at twice the range a step is 6e-5 of the
// largest magnitude).
const GridMargin = 2

// Steps returns the steps of the 16-bit grids of what enters the class and of what it computes: GridMargin times the
// largest magnitude over op.GridMax, the channels that enter divided by factors (nil: 1), the columns of source number
// source of the result by divide, whose columns interleave gives (see op.Weight). A step is 1 where nothing but zeros
// was observed. ok is false where results were not observed.
func (a *Activation) Steps(factors, divide []float32, interleave []int, source int) (in, out float32, ok bool) {
	if len(a.OutMax) == 0 {
		return 0, 0, false
	}
	step := func(top float64) float32 {
		step := float32(min(GridMargin*top/op.GridMax, math.MaxFloat32))
		if step == 0 {
			return 1
		}
		return step
	}
	var entering, leaving float64 // largest magnitudes
	for i, most := range a.AbsMax {
		value := float64(most)
		if factors != nil {
			value /= float64(factors[i])
		}
		entering = max(entering, value)
	}
	// A column of the result is divided only if it comes from the source that was folded: interleaved columns are
	// traced back to their source first.
	total := 0
	for _, columns := range interleave {
		total += columns
	}
	for i, most := range a.OutMax {
		value := float64(most)
		if divide != nil {
			j, k := i, 0 // column j of source k
			if total > 0 {
				j = i % total
				for j >= interleave[k] {
					j -= interleave[k]
					k++
				}
				j += i / total * interleave[k]
			}
			if k == source && j < len(divide) {
				value /= float64(divide[j])
			}
		}
		leaving = max(leaving, value)
	}
	return step(entering), step(leaving), true
}

// Loss returns what a scheme costs in a class (or All), nil when it was not measured.
func (c *Calibration) Loss(class string, scheme op.Scheme, folded bool) *Loss {
	for i := range c.Losses {
		if loss := &c.Losses[i]; loss.Class == class && loss.Scheme == scheme && loss.Folded == folded {
			return loss
		}
	}
	return nil
}

// CacheLoss returns the mean KL divergence that a type of cache costs, in nats a token; false where it was not
// measured. Float32 costs nothing.
func (c *Calibration) CacheLoss(kind op.Type) (kl float64, measured bool) {
	if kind == op.F32 {
		return 0, true
	}
	for i := range c.Caches {
		if c.Caches[i].Type == kind {
			return c.Caches[i].KL, true
		}
	}
	return 0, false
}

// Shadow returns what the shadow outliers of a class are worth in a layer, nil when that was not measured.
func (c *Calibration) Shadow(class string, layer int) *Shadow {
	for i := range c.Shadows {
		if shadow := &c.Shadows[i]; shadow.Class == class && shadow.Layer == layer {
			return shadow
		}
	}
	return nil
}

// Importance returns the largest magnitude that entered over the largest that the scale of a class with shadow outliers
// holds (InnerScale): llm.npu's measure of what shadow outliers are worth. At most 1 where nothing exceeds the scale.
func (a *Activation) Importance(factors []float32, outliers int) float64 {
	most := slices.Max(a.magnitudes(factors))
	return float64(most) / (127 * float64(a.InnerScale(factors, outliers)))
}

// Fold returns the factors of a group in a layer, nil where there is nothing to fold.
func (c *Calibration) Fold(group string, layer int) *Fold {
	for i := range c.Folds {
		if fold := &c.Folds[i]; fold.Group == group && fold.Layer == layer {
			return fold
		}
	}
	return nil
}

// Groups returns the names of the groups that are folded in any layer, ascending.
func (c *Calibration) Groups() []string {
	var out []string
	for i := range c.Folds {
		out = append(out, c.Folds[i].Group)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// maxOutliers is how many outlier channels are listed, the largest ones.
const maxOutliers = 32

// Summarise computes Max, Median (the lower one) and Outliers from AbsMax; the shares are 0. It returns
// the magnitude that makes an outlier.
func (a *Activation) Summarise() (threshold float32) {
	a.Max, a.Median, a.Outliers = 0, 0, nil
	if len(a.AbsMax) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(a.AbsMax))
	a.Max, a.Median = sorted[len(sorted)-1], sorted[(len(sorted)-1)/2]
	threshold = outlierRatio * a.Median
	for i, most := range a.AbsMax {
		if most > threshold {
			a.Outliers = append(a.Outliers, Outlier{Channel: i, Max: most})
		}
	}
	slices.SortStableFunc(a.Outliers, func(x, y Outlier) int { return cmp.Compare(y.Max, x.Max) })
	a.Outliers = a.Outliers[:min(len(a.Outliers), maxOutliers):min(len(a.Outliers), maxOutliers)]
	if len(a.Outliers) == 0 {
		a.Outliers = nil
	}
	return threshold
}
