package problem

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// GenerateTiers is a deterministic instance for tests and benchmarks: chunks of 1024 tokens, 8 experts a token, whose popularity follows
// Zipf's law with another exponent and order in every layer, 16 observed chunks; groups of up to 8 experts on a
// processor with a launch of 120 us, and a CPU that takes more than three times as long for a row. At most 3 tiers are in use.
func GenerateTiers(seed uint64, layers, experts, tiers int) *Tiers {
	r := rand.New(rand.NewPCG(seed, 0x71e5))
	p := &Tiers{
		Name: fmt.Sprintf("%d layers of %d experts, %d tiers", layers, experts, tiers), Tile: 16, MaxTiers: 3,
		ExpertBytes: 9 << 20, GraphBytes: 8 * 9 << 20, NPUMilliwatts: 4000, CPUMilliwatts: 30000,
	}
	for t := range tiers {
		p.Capacities = append(p.Capacities, []int{16, 32, 48, 64, 96, 128, 192, 256, 384, 512}[t%10]+t/10*512)
	}
	c := TierChunk{Tokens: 1024, Weight: 1, SyncNS: 200_000}
	for _, rows := range p.Capacities {
		var list []int64
		for g := range int64(8) {
			list = append(list, 120_000+(g+1)*(60_000+3_500*int64(rows)+r.Int64N(500)))
		}
		c.GroupNS = append(c.GroupNS, list)
	}
	for n := range int64(1024 + 1) {
		ns := int64(0)
		if n > 0 {
			ns = 60_000 + 12_000*n + r.Int64N(500)
		}
		c.CPUNS = append(c.CPUNS, ns)
	}
	fan := min(8, max(1, experts/2))
	for l := range layers {
		share := Zipf(experts, 0.4+0.8*r.Float64())
		r.Shuffle(experts, func(i, j int) { share[i], share[j] = share[j], share[i] })
		c.Layers = append(c.Layers, TierLayer{Name: fmt.Sprintf("layers.%d", l), Rows: Route(r, share, 1024, fan, 16)})
	}
	p.Chunks = []TierChunk{c}
	return p
}

// GiveSaliency gives every layer of an instance a saliency: norms spread more widely in some experts than in others.
func (p *Tiers) GiveSaliency(seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0x5a11))
	for l := range p.Chunks[0].Layers {
		experts := len(p.Chunks[0].Layers[l].Rows)
		weight, spread := make([]float64, experts), make([]int, experts)
		all := 0.0
		for e := range weight {
			rows := 0
			for _, n := range p.Chunks[0].Layers[l].Rows[e] {
				rows += int(n)
			}
			weight[e], spread[e] = float64(rows)*(0.5+r.Float64()), r.IntN(4)
			all += weight[e]
		}
		curves := make([]Curve, experts)
		for e := range curves {
			if all == 0 {
				continue
			}
			for i := range curves[e] {
				part := 1.0
				for range spread[e] + 1 {
					part *= float64(i+1) / SaliencySteps
				}
				curves[e][i] = int64(math.Floor(weight[e] / all * part * SaliencyOne))
			}
		}
		for c := range p.Chunks {
			p.Chunks[c].Layers[l].Saliency = curves
		}
	}
}

// Zipf is n shares in proportion to 1/i^exponent, which add up to 1.
func Zipf(n int, exponent float64) []float64 {
	out := make([]float64, n)
	sum := 0.0
	for i := range out {
		out[i] = math.Pow(float64(i+1), -exponent)
		sum += out[i]
	}
	for i := range out {
		out[i] /= sum
	}
	return out
}

// Route draws the rows that chunks of tokens send to experts, by expert and chunk: every token goes to fan different ones,
// drawn by their shares of what is left.
func Route(r *rand.Rand, shares []float64, tokens, fan, chunks int) [][]int32 {
	out := make([][]int32, len(shares))
	for e := range out {
		out[e] = make([]int32, chunks)
	}
	below := make([]float64, len(shares)) // cumulative
	sum := 0.0
	for e, s := range shares {
		sum += s
		below[e] = sum
	}
	taken := make([]int, 0, fan)
	for c := range chunks {
		for range tokens {
			taken = taken[:0]
			for tries := 0; len(taken) < fan; tries++ {
				e, _ := slices.BinarySearch(below, r.Float64()*sum)
				e = min(e, len(shares)-1)
				for tries > 64*fan && slices.Contains(taken, e) { // almost everything goes to a few
					e = (e + 1) % len(shares)
				}
				if !slices.Contains(taken, e) {
					taken = append(taken, e)
					out[e][c]++
				}
			}
		}
	}
	return out
}
