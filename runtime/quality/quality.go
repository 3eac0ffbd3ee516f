// Package quality knows how far one execution of a model is from another (Kullback-Leibler divergence, top-token
// agreement, perplexity), and what enters the matrix products of an execution.
//
// Texts are read in windows, every one from an empty cache. Positions of a window are not independent
// samples, windows nearly are: intervals come from the means of windows. A reference execution is kept
// in a temporary file, so that logits [tokens, vocabulary] are never all in memory.
package quality

import (
	"fmt"
	"math"

	"github.com/hetc/hetc/internal/diag"
)

// WindowTokens is the usual length of a window.
const WindowTokens = 256

// minWindow is the shortest window: fewer positions say little about a text.
const minWindow = 8

// Window is a piece of a text. Next is the token that follows it, -1 at the end of the text.
type Window struct {
	Tokens []int32
	Next   int32
}

// next is the token after position i, false where nobody knows it.
func (w *Window) next(i int) (int, bool) {
	if i+1 < len(w.Tokens) {
		return int(w.Tokens[i+1]), true
	}
	return int(w.Next), w.Next >= 0
}

// Windows cuts a text into windows of size tokens, in order and without overlap; what is left at the end is
// not used. most > 0 is the largest number of windows. Fewer than two windows, from which no interval
// follows, are an error of class ClassInput.
func Windows(ids []int32, size, most int) ([]Window, error) {
	if size < minWindow {
		return nil, diag.New(diag.ClassInput, "windows of %d tokens, want at least %d", size, minWindow)
	}
	n := len(ids) / size
	if n < 2 {
		return nil, diag.New(diag.ClassInput, "text has %d tokens, want at least %d (two windows of %d)", len(ids), 2*size, size).
			WithHint("give a longer text; a few thousand words are enough")
	}
	if most > 0 {
		n = min(n, most)
	}
	out := make([]Window, n)
	for i := range out {
		end := (i + 1) * size
		out[i] = Window{ids[i*size : end : end], -1}
		if end < len(ids) {
			out[i].Next = ids[end]
		}
	}
	return out, nil
}

// Estimate is a mean with its 95 % confidence interval.
type Estimate struct {
	Mean float64 `json:"mean"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Result is how far an execution is from its reference. KL is the mean divergence of the candidate's
// distribution from the reference's, in nats a position: sum of p*(log p - log q), p the reference.
// TopAgreement is the share of positions where both find the same token most likely. Perplexities are
// those of the text's own tokens; PerplexityRatio is the candidate's over the reference's, from differences
// within windows, so that its interval is narrow where the perplexities' are wide.
type Result struct {
	Windows             int      `json:"windows"`
	Positions           int      `json:"positions"`
	KL                  Estimate `json:"kl"`
	TopAgreement        Estimate `json:"top_agreement"`
	Perplexity          Estimate `json:"perplexity"`
	ReferencePerplexity Estimate `json:"reference_perplexity"`
	PerplexityRatio     Estimate `json:"perplexity_ratio"`
}

// Tally collects comparisons of windows. The zero value is empty.
type Tally struct {
	positions         int
	kl, top, nll, ref []float64 // means of windows; nll and ref: -log p of the text's next token
}

// Result is the mean over all windows with its interval; two windows are needed at least.
func (t *Tally) Result() (Result, error) {
	n := len(t.kl)
	if n < 2 {
		return Result{}, diag.New(diag.ClassUsage, "%d windows were compared, want at least 2", n)
	}
	r := Result{Windows: n, Positions: t.positions, KL: estimate(t.kl), TopAgreement: estimate(t.top)}
	r.KL.Low = max(0, r.KL.Low)
	r.TopAgreement.Low, r.TopAgreement.High = max(0, r.TopAgreement.Low), min(1, r.TopAgreement.High)
	r.Perplexity, r.ReferencePerplexity = exp(estimate(t.nll)), exp(estimate(t.ref))
	ratio := make([]float64, n)
	for i := range ratio {
		ratio[i] = t.nll[i] - t.ref[i]
	}
	r.PerplexityRatio = exp(estimate(ratio))
	return r, nil
}

// KL is the mean divergence so far.
func (t *Tally) KL() float64 {
	sum := 0.0
	for _, x := range t.kl {
		sum += x
	}
	return sum / float64(len(t.kl))
}

// Ratio is the divergence of a over that of b, from the ratios within the same windows (their geometric mean), of
// which there are two at least. Divergences below rounding count as equal.
func Ratio(a, b *Tally) Estimate {
	const rounding = 1e-12
	d := make([]float64, len(a.kl))
	for i := range d {
		d[i] = math.Log(max(a.kl[i], rounding)) - math.Log(max(b.kl[i], rounding))
	}
	return exp(estimate(d))
}

func exp(e Estimate) Estimate {
	return Estimate{math.Exp(e.Mean), math.Exp(e.Low), math.Exp(e.High)}
}

// estimate is the mean of at least two samples with Student's interval.
func estimate(x []float64) Estimate {
	n := float64(len(x))
	mean := 0.0
	for _, v := range x {
		mean += v / n
	}
	square := 0.0
	for _, v := range x {
		square += (v - mean) * (v - mean)
	}
	half := student(len(x)-1) * math.Sqrt(square/(n-1)/n)
	return Estimate{mean, mean - half, mean + half}
}

// student is the 0.975 quantile of Student's distribution with df degrees of freedom: a table, then the
// Cornish-Fisher expansion, whose error is below 1e-4 there.
func student(df int) float64 {
	table := []float64{12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281}
	if df <= len(table) {
		return table[df-1]
	}
	const z = 1.959963984540054
	v := float64(df)
	z3, z5, z7 := z*z*z, z*z*z*z*z, z*z*z*z*z*z*z
	return z + (z3+z)/(4*v) + (5*z5+16*z3+3*z)/(96*v*v) + (3*z7+19*z5+17*z3-15*z)/(384*v*v*v)
}

// row is one position's logits and what follows from them.
type row struct {
	logits []float32
	lse    float64 // log of the sum of their exponentials
	top    int     // index of the largest, the first of equal ones
}

func newRow(logits []float32) (row, error) {
	r := row{logits: logits}
	for i, x := range logits {
		if x > logits[r.top] {
			r.top = i
		}
		if d := x - x; d != 0 { // NaN, infinite
			return row{}, fmt.Errorf("logit %d is %v", i, x)
		}
	}
	hi, sum := float64(logits[r.top]), 0.0
	for _, x := range logits {
		sum += math.Exp(float64(x) - hi)
	}
	r.lse = hi + math.Log(sum)
	return r, nil
}

// logp is the logarithm of token i's probability.
func (r *row) logp(i int) float64 { return float64(r.logits[i]) - r.lse }

// divergence is the Kullback-Leibler divergence of q from p in nats. Rounding alone never makes it negative.
func divergence(p, q *row) float64 {
	kl := 0.0
	for i := range p.logits {
		lp := p.logp(i)
		kl += math.Exp(lp) * (lp - q.logp(i))
	}
	return max(0, kl)
}
