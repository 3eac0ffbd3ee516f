package roofline

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/socs"
)

// key identifies what the shares are of.
func (g *Gated) key() string {
	operator := op.Op{Kind: op.MatMul, M: 1, K: g.K, N: g.N, Scheme: g.Scheme, Bias: g.Bias}
	return fmt.Sprintf("%s %s %s", g.Proc, operator.Key(), g.Act)
}

// gatedOf returns a product on a processor, without shares.
func gatedOf(proc string, product, unit *op.Op) Gated {
	return Gated{Proc: proc, Scheme: product.Scheme, Bias: product.Bias, Act: unit.Act, K: product.K, N: product.N}
}

// isOf reports whether both are of the same product.
func (g *Gated) isOf(other *Gated) bool {
	return g.Proc == other.Proc && g.Scheme == other.Scheme && g.Bias == other.Bias && g.Act == other.Act &&
		g.K == other.K && g.N == other.N
}

// fitGated collects the shares of measured products that end with a gated linear unit. Noise does not make both in one
// graph slower than one after the other.
func (c *Costs) fitGated(soc *socs.SoC, all []sample) {
	found := map[string]*Gated{}
	for _, taken := range all {
		measured := taken.m
		if measured.Kind != record.Op || measured.GLU == nil || len(measured.Concurrent) > 0 || !layoutFits(soc, measured) {
			continue
		}
		product, err := c.Op(measured.Proc, *measured.Op, measured.Cold)
		if err != nil {
			continue // it has no time that this could be a share of
		}
		unit, err := c.Op(measured.Proc, *measured.GLU, false)
		if err != nil {
			continue
		}
		gated := gatedOf(measured.Proc, measured.Op, measured.GLU)
		if found[gated.key()] == nil {
			found[gated.key()] = &gated
		}
		known := found[gated.key()]
		at, twice := slices.BinarySearch(known.Rows, measured.Op.M)
		if twice {
			continue // in another form or at another temperature
		}
		launch, err := c.Launch(measured.Proc)
		if err != nil {
			continue
		}
		apart := max(1, product.NS+unit.NS-min(launch.NS, unit.NS))
		share := min(1, round(taken.ns/float64(apart)))
		known.Rows, known.Shares = slices.Insert(known.Rows, at, measured.Op.M), slices.Insert(known.Shares, at, share)
	}
	for _, gated := range found {
		c.Gated = append(c.Gated, *gated)
	}
	slices.SortFunc(c.Gated, func(a, b Gated) int { return cmp.Compare(a.key(), b.key()) })
}

// GatedShare returns how much of the time of their operators, less a launch, a product and the gated linear unit that
// it ends with take on a processor; 1 where that was never measured. Schemes that are priced alike have one share.
// Between measured numbers of rows it follows their logarithm.
func (c *Costs) GatedShare(proc string, product, unit op.Op) float64 {
	product = c.priced(proc, product)
	asked := gatedOf(proc, &product, &unit)
	at := slices.IndexFunc(c.Gated, func(known Gated) bool { return known.isOf(&asked) })
	if at < 0 {
		return 1
	}
	known := &c.Gated[at]
	after := sort.SearchInts(known.Rows, product.M)
	switch {
	case after == 0:
		return known.Shares[0]
	case after == len(known.Rows):
		return known.Shares[after-1]
	}
	low, high := math.Log(float64(known.Rows[after-1])), math.Log(float64(known.Rows[after]))
	part := (math.Log(float64(product.M)) - low) / (high - low)
	return known.Shares[after-1] + float64(part*(known.Shares[after]-known.Shares[after-1]))
}

// LeastGatedShare returns the least share of any product on a processor, at most 1.
func (c *Costs) LeastGatedShare(proc string) float64 {
	least := 1.0
	for i := range c.Gated {
		if c.Gated[i].Proc == proc {
			least = min(least, slices.Min(c.Gated[i].Shares))
		}
	}
	return least
}
