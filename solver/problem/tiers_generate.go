package problem

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// GenerateTiers returns a deterministic instance for tests and benchmarks: chunks of 1024 tokens, 8 experts a token,
// whose popularity follows Zipf's law with another exponent and order in every layer, 16 observed chunks; groups of up
// to 8 experts on a processor with a launch of 120 us, and another that takes more than three times as long for a row.
// At most 3 tiers are in use.
func GenerateTiers(seed uint64, layers, experts, tiers int) *Tiers {
	random := rand.New(rand.NewPCG(seed, 0x71e5))
	out := &Tiers{
		Name: fmt.Sprintf("%d layers of %d experts, %d tiers", layers, experts, tiers), Tile: 16, MaxTiers: 3,
		ExpertBytes: 9 << 20, GraphBytes: 8 * 9 << 20, CallNS: 20_000, LayerNS: 200_000, ShapeNS: 50_000,
	}
	for tier := range tiers {
		out.Capacities = append(out.Capacities, []int{16, 32, 48, 64, 96, 128, 192, 256, 384, 512}[tier%10]+tier/10*512)
	}
	for _, rows := range out.Capacities {
		var list []int64
		for size := range int64(8) {
			list = append(list, 120_000+(size+1)*(60_000+3_500*int64(rows)+random.Int64N(500)))
		}
		out.GroupNS = append(out.GroupNS, list)
	}
	for rows := range int64(1024 + 1) {
		ns := int64(0)
		if rows > 0 {
			ns = 60_000 + 12_000*rows + random.Int64N(500)
		}
		out.CPUNS = append(out.CPUNS, ns)
	}
	fan := min(8, max(1, experts/2))
	for layer := range layers {
		share := Zipf(experts, 0.4+0.8*random.Float64())
		random.Shuffle(experts, func(i, j int) { share[i], share[j] = share[j], share[i] })
		rows := Route(random, share, 1024, fan, 16)
		out.Layers = append(out.Layers, TierLayer{Name: fmt.Sprintf("layers.%d", layer), Rows: rows})
	}
	return out
}

// Zipf returns so many shares in proportion to 1/i^exponent, i = 1, 2, ..., which add up to 1.
func Zipf(count int, exponent float64) []float64 {
	out := make([]float64, count)
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

// Route draws the rows that chunks of tokens send to experts, by expert and chunk: every token goes to fan different
// ones, drawn by their shares of what is left.
func Route(random *rand.Rand, shares []float64, tokens, fan, chunks int) [][]int32 {
	out := make([][]int32, len(shares))
	for expert := range out {
		out[expert] = make([]int32, chunks)
	}
	below := make([]float64, len(shares)) // cumulative
	sum := 0.0
	for expert, share := range shares {
		sum += share
		below[expert] = sum
	}
	taken := make([]int, 0, fan)
	for chunk := range chunks {
		for range tokens {
			taken = taken[:0]
			for tries := 0; len(taken) < fan; tries++ {
				expert, _ := slices.BinarySearch(below, random.Float64()*sum)
				expert = min(expert, len(shares)-1)
				for tries > 64*fan && slices.Contains(taken, expert) { // almost everything goes to a few
					expert = (expert + 1) % len(shares)
				}
				if !slices.Contains(taken, expert) {
					taken = append(taken, expert)
					out[expert][chunk]++
				}
			}
		}
	}
	return out
}
