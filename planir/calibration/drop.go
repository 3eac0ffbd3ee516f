package calibration

import (
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

// DropLoss is what it costs to drop a share of the rows that routers send to experts by a rule of op.Saliences,
// everything else in float32: see Loss. PerplexityRatio is the perplexity of the text over that of the model in
// float32.
type DropLoss struct {
	Salience        string  `json:"salience" yaml:"salience" decode:"required"`
	Share           float64 `json:"share" yaml:"share" decode:"required"`
	KL              float64 `json:"mean_kl" yaml:"mean_kl" decode:"required"`
	Low             float64 `json:"low" yaml:"low"`
	High            float64 `json:"high" yaml:"high" decode:"required"`
	TopAgreement    float64 `json:"top_agreement" yaml:"top_agreement" decode:"required"`
	PerplexityRatio float64 `json:"perplexity_ratio" yaml:"perplexity_ratio" decode:"required"`
}

// dropCurve returns what was measured with a rule, from nothing on: the upper end of each interval, since how many rows
// overflow differs from text to text. A larger share never loses less.
func (c *Calibration) dropCurve(salience string) []DropLoss {
	curve := []DropLoss{{}}
	for _, loss := range c.Drops {
		if loss.Salience == salience {
			loss.KL = max(loss.High, curve[len(curve)-1].KL)
			curve = append(curve, loss)
		}
	}
	return curve
}

// DropLoss returns what dropping a share of the rows by a rule costs, in nats a token: linear between what was
// measured. It is unknown beyond the largest measured share.
func (c *Calibration) DropLoss(salience string, share float64) (kl float64, measured bool) {
	curve := c.dropCurve(salience)
	at, _ := slices.BinarySearchFunc(curve, share, func(loss DropLoss, share float64) int {
		if loss.Share < share {
			return -1
		}
		return 1
	})
	switch {
	case share <= 0:
		return 0, true
	case at == len(curve):
		return 0, false
	}
	from, to := &curve[at-1], &curve[at]
	return from.KL + (to.KL-from.KL)*(share-from.Share)/(to.Share-from.Share), true
}

// MostDropped returns the rule by which the largest share of rows can be dropped for a loss of at most kl nats a token,
// and the share, at most most; 0 where nothing was measured that loses so little. With only, no other rule counts.
func (c *Calibration) MostDropped(kl, most float64, only string) (salience string, share float64) {
	for _, rule := range []string{op.SalienceWeight, op.SalienceNorm} {
		if only != "" && rule != only {
			continue
		}
		curve, reach := c.dropCurve(rule), 0.0
		for i := 1; i < len(curve) && curve[i-1].KL <= kl; i++ {
			from, to := &curve[i-1], &curve[i]
			reach = to.Share
			if to.KL > kl {
				reach = from.Share + (to.Share-from.Share)*(kl-from.KL)/(to.KL-from.KL)
			}
		}
		if reach = min(reach, most); reach > share {
			salience, share = rule, reach
		}
	}
	return salience, share
}

// drops checks each loss; shares of a rule ascend.
func (v *validator) drops(list []DropLoss) {
	last := map[string]float64{}
	for i := range list {
		loss := &list[i]
		path := func(key string) []any { return []any{"drops", i, key} }
		if !slices.Contains(op.Saliences, loss.Salience) {
			v.fail(path("salience"), "salience is %.40q, want %s", loss.Salience, diag.OneOf(op.Saliences))
		}
		if !(loss.Share > last[loss.Salience] && loss.Share < 1) {
			v.fail(path("share"), "share is %v, want ascending ones above 0 and below 1", loss.Share)
		}
		last[loss.Salience] = loss.Share
		if !(loss.PerplexityRatio > 0 && loss.PerplexityRatio <= math.MaxFloat32) {
			v.fail(path("perplexity_ratio"), "perplexity_ratio is %v, want a finite number above 0", loss.PerplexityRatio)
		}
		v.divergence(path, loss.KL, loss.Low, loss.High, loss.TopAgreement)
	}
}
