// Package quality knows how far one execution of a model is from another (Kullback-Leibler divergence, top-token
// agreement, perplexity), and what enters the matrix products of an execution.
//
// Texts are read in windows, every one from an empty cache. Positions of a window are not independent
// samples, windows nearly are: intervals come from the means of windows. A reference execution is kept
// in a temporary file, so that logits [tokens, vocabulary] are never all in memory.
package quality

import (
	"encoding/json"
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

// next returns the token after position i, false where it is not known.
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
	count := len(ids) / size
	if count < 2 {
		const short = "text has %d tokens, want at least %d (two windows of %d)"
		return nil, diag.New(diag.ClassInput, short, len(ids), 2*size, size).
			WithHint("give a longer text; a few thousand words are enough")
	}
	if most > 0 {
		count = min(count, most)
	}
	out := make([]Window, count)
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
	// samples of the intervals
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

// Result returns the mean over all windows with its interval; two windows are needed at least.
func (t *Tally) Result() (Result, error) {
	count := len(t.kl)
	if count < 2 {
		return Result{}, diag.New(diag.ClassUsage, "%d windows were compared, want at least 2", count)
	}
	result := Result{Windows: count, Positions: t.positions, KL: estimate(t.kl), TopAgreement: estimate(t.top)}
	result.KL.Low = max(0, result.KL.Low)
	result.TopAgreement.Low = max(0, result.TopAgreement.Low)
	result.TopAgreement.High = min(1, result.TopAgreement.High)
	result.Perplexity, result.ReferencePerplexity = exp(estimate(t.nll)), exp(estimate(t.ref))
	ratio := make([]float64, count)
	for i := range ratio {
		ratio[i] = t.nll[i] - t.ref[i]
	}
	result.PerplexityRatio = exp(estimate(ratio))
	return result, nil
}

// KL returns the mean divergence so far.
func (t *Tally) KL() float64 {
	sum := 0.0
	for _, divergence := range t.kl {
		sum += divergence
	}
	return sum / float64(len(t.kl))
}

// Ratio returns the divergence of other over that of base. It is the geometric mean of the ratios within the same
// windows, of which there are two at least. Divergences below rounding count as equal.
func Ratio(other, base *Tally) Estimate {
	const rounding = 1e-12
	logs := make([]float64, len(other.kl))
	for i := range logs {
		logs[i] = math.Log(max(other.kl[i], rounding)) - math.Log(max(base.kl[i], rounding))
	}
	return exp(estimate(logs))
}

// Difference returns the divergence of other less that of base: the mean of the differences within the same windows, of
// which there are two at least.
func Difference(other, base *Tally) Estimate {
	differences := make([]float64, len(other.kl))
	for i := range differences {
		differences[i] = other.kl[i] - base.kl[i]
	}
	return estimate(differences)
}

// exp takes an estimate of a logarithm back.
func exp(logs Estimate) Estimate {
	return Estimate{math.Exp(logs.Mean), math.Exp(logs.Low), math.Exp(logs.High)}
}

// estimate returns the mean of at least two samples with Student's interval: the mean plus and minus the quantile times
// the standard error.
func estimate(samples []float64) Estimate {
	count := float64(len(samples))
	mean := 0.0
	for _, sample := range samples {
		mean += sample / count
	}
	square := 0.0
	for _, sample := range samples {
		square += (sample - mean) * (sample - mean)
	}
	half := student(len(samples)-1) * math.Sqrt(square/(count-1)/count)
	return Estimate{mean, mean - half, mean + half}
}

// student returns the 0.975 quantile of Student's distribution with df degrees of freedom: a table, then the
// Cornish-Fisher expansion, whose error is below 1e-4 there.
func student(df int) float64 {
	table := []float64{12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281}
	if df <= len(table) {
		return table[df-1]
	}
	const z = 1.959963984540054 // the quantile of the normal distribution
	n := float64(df)
	z3, z5, z7 := z*z*z, z*z*z*z*z, z*z*z*z*z*z*z
	return z + (z3+z)/(4*n) + (5*z5+16*z3+3*z)/(96*n*n) +
		(3*z7+19*z5+17*z3-15*z)/(384*n*n*n)
}

// row is one position's logits and what follows from them.
type row struct {
	logits []float32
	lse    float64 // log of the sum of their exponentials
	top    int     // index of the largest, the first of equal ones
}

// newRow refuses logits that are not finite. Subtracting the largest keeps the exponentials from overflowing.
func newRow(logits []float32) (row, error) {
	out := row{logits: logits}
	for i, logit := range logits {
		if logit > logits[out.top] {
			out.top = i
		}
		if difference := logit - logit; difference != 0 { // NaN, infinite
			return row{}, fmt.Errorf("logit %d is %v", i, logit)
		}
	}
	hi, sum := float64(logits[out.top]), 0.0
	for _, logit := range logits {
		sum += math.Exp(float64(logit) - hi)
	}
	out.lse = hi + math.Log(sum)
	return out, nil
}

// logp returns the logarithm of token i's probability.
func (r *row) logp(i int) float64 { return float64(r.logits[i]) - r.lse }

// divergence returns the Kullback-Leibler divergence of q from p in nats. Rounding alone never makes it negative.
func divergence(reference, candidate *row) float64 {
	kl := 0.0
	for i := range reference.logits {
		lp := reference.logp(i)
		kl += math.Exp(lp) * (lp - candidate.logp(i))
	}
	return max(0, kl)
}

// samples is how a tally is stored.
type samples struct {
	Positions int       `json:"positions"`
	KL        []float64 `json:"kl"`
	Top       []float64 `json:"top"`
	NLL       []float64 `json:"nll"`
	Ref       []float64 `json:"ref"`
}

// MarshalJSON stores what was collected, so that a measurement that was interrupted can go on.
func (t *Tally) MarshalJSON() ([]byte, error) {
	return json.Marshal(samples{t.positions, t.kl, t.top, t.nll, t.ref})
}

// UnmarshalJSON reads what MarshalJSON has stored.
func (t *Tally) UnmarshalJSON(data []byte) error {
	var stored samples
	if err := json.Unmarshal(data, &stored); err != nil {
		return err
	}
	count := len(stored.KL)
	if len(stored.Top) != count || len(stored.NLL) != count || len(stored.Ref) != count {
		return fmt.Errorf("%d divergences with %d, %d and %d other means of windows", count, len(stored.Top),
			len(stored.NLL), len(stored.Ref))
	}
	*t = Tally{stored.Positions, stored.KL, stored.Top, stored.NLL, stored.Ref}
	return nil
}
