package gguf

import (
	"maps"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
)

// Tensors that scale the rotary frequencies: each frequency is divided by its factor.
const (
	ropeFreqs = "rope_freqs.weight"
	ropeLong  = "rope_factors_long.weight"
	ropeShort = "rope_factors_short.weight"
)

// Settings of Llama 3's frequency scaling in every published model; files hold only the factors that
// follow from it.
const (
	llama3Low      = 1.0
	llama3High     = 4.0
	llama3Original = 8192
)

// rope translates the rotary positions to the key rope_parameters. Factors that come from Llama 3's
// formula are given as such; others as "longrope", whose frequencies are divided by any factors.
func (k *keys) rope(arch *architecture, rotary, context int) map[string]any {
	theta := k.float("rope.freq_base", 10000, 1, math.MaxFloat32)
	k.must("rope.freq_base_swa", theta)
	kind := k.string("rope.scaling.type", "linear")
	if !slices.Contains([]string{"none", "linear", "yarn", "longrope"}, kind) {
		k.fail("rope.scaling.type", "%q is not supported; supported: none, linear, yarn, longrope", kind)
	}
	factor := k.float("rope.scaling.factor", 0, 0, math.MaxFloat32)
	if old := k.float("rope.scale_linear", 0, 0, math.MaxFloat32); factor == 0 {
		factor = old
	}
	original := k.int("rope.scaling.original_context_length", context, 1, math.MaxInt32)
	attention := k.float("rope.scaling.attn_factor", 1, 1e-3, 1e3)
	out := map[string]any{"rope_type": "default", "rope_theta": theta}
	scaled := factor != 0 && factor != 1 && kind != "none"

	freqs, hasFreqs := k.factors(ropeFreqs, rotary/2)
	long, hasLong := k.factors(ropeLong, rotary/2)
	short, hasShort := k.factors(ropeShort, rotary/2)
	switch {
	case hasLong || hasShort:
		if !hasLong || !hasShort || hasFreqs || scaled {
			k.fail("rope.scaling.type", "tensors %q and %q belong together and exclude other scaling", ropeLong, ropeShort)
		}
		out = longrope(theta, short, long, attention, original)
		if arch.model == "phimoe" {
			out["short_mscale"], out["long_mscale"] = attention, attention
		}
		return out
	case hasFreqs:
		if scaled || attention != 1 {
			k.fail("rope.scaling.type", "tensor %q beside other scaling is not supported", ropeFreqs)
		}
		if !slices.ContainsFunc(freqs, func(v float32) bool { return v != 1 }) {
			return out
		}
		for _, context := range []int{original, llama3Original} {
			params := map[string]any{"rope_type": "llama3", "rope_theta": theta, "factor": peak(freqs),
				"low_freq_factor": llama3Low, "high_freq_factor": llama3High, "original_max_position_embeddings": int64(context)}
			if close32(freqs, llama3Factors(theta, peak(freqs), llama3Low, llama3High, float64(context), rotary)) {
				return params
			}
		}
		// Texts within the context never get beyond original, so only one set of factors counts.
		return longrope(theta, freqs, freqs, 1, context)
	}
	switch kind {
	case "none":
	case "linear":
		if scaled {
			out["rope_type"], out["factor"] = "linear", factor
		}
		if attention != 1 {
			k.fail("rope.scaling.attn_factor", "%v is not supported with linear scaling", attention)
		}
	case "yarn":
		if !scaled {
			break
		}
		out["rope_type"], out["factor"], out["original_max_position_embeddings"] = "yarn", factor, int64(original)
		// Readers multiply the paper's attention factor by attn_factor; converters write the total as
		// yarn_attn_factor.
		total := k.float("rope.scaling.yarn_attn_factor", 0, 0, 1e3)
		switch {
		case attention != 1:
			out["attention_factor"] = shortest(float32(attention * yarnAttention(factor)))
		case total != 0:
			out["attention_factor"] = total
		}
		if beta := k.float("rope.scaling.yarn_beta_fast", 0, 0, 1e6); beta != 0 {
			out["beta_fast"] = beta
		}
		if beta := k.float("rope.scaling.yarn_beta_slow", 0, 0, 1e6); beta != 0 {
			out["beta_slow"] = beta
		}
		k.must("rope.scaling.yarn_ext_factor", 1)
		k.must("rope.scaling.yarn_log_multiplier", 0)
	case "longrope":
		k.fail("rope.scaling.type", "longrope without the tensors %q and %q", ropeLong, ropeShort)
	}
	return out
}

func longrope(theta float64, short, long []float32, attention float64, original int) map[string]any {
	list := func(values []float32) []any {
		out := make([]any, len(values))
		for i, factor := range values {
			out[i] = shortest(factor)
		}
		return out
	}
	return map[string]any{"rope_type": "longrope", "rope_theta": theta, "short_factor": list(short), "long_factor": list(long),
		"attention_factor": attention, "original_max_position_embeddings": int64(original)}
}

// factors reads a tensor of n positive frequency factors.
func (k *keys) factors(name string, count int) ([]float32, bool) {
	tensor, ok := k.f.Tensor(name)
	if !ok {
		return nil, false
	}
	refuse := func(format string, args ...any) ([]float32, bool) {
		k.errs = append(k.errs, diag.New(diag.ClassInput, "tensor %q: "+format, append([]any{name}, args...)...).WithCode("gguf.metadata"))
		return nil, false
	}
	if tensor.Rows() != 1 || tensor.Cols() != count || count > maxDim {
		return refuse("shape %v, want [%d]", tensor.Shape, count)
	}
	out := make([]float32, count)
	if err := tensor.Read(out, 0, 1, 0, count); err != nil {
		return refuse("%v", err)
	}
	for i, factor := range out {
		if !(factor > 0 && factor <= math.MaxFloat32) {
			return refuse("element %d is %v, want a positive number", i, factor)
		}
	}
	return out, true
}

// yarnAttention is the factor the YaRN paper recommends (section 3.4): 0.1 ln(s) + 1.
func yarnAttention(factor float64) float64 {
	if factor <= 1 {
		return 1
	}
	return 0.1*math.Log(factor) + 1
}

// llama3Factors is what Llama 3 divides frequency i of rotary/2 by: nothing for wavelengths below
// original/high, factor for those above original/low, and a smooth passage between.
func llama3Factors(theta, factor, low, high, original float64, rotary int) []float32 {
	out := make([]float32, rotary/2)
	for i := range out {
		freq := 1 / math.Pow(theta, float64(2*i)/float64(rotary))
		turns := original * freq / (2 * math.Pi) // in the original context
		switch {
		case turns > high:
			out[i] = 1
		case turns < low:
			out[i] = float32(factor)
		default:
			smooth := (turns - low) / (high - low)
			out[i] = float32(1 / ((1-smooth)/factor + smooth))
		}
	}
	return out
}

// close32 reports whether two lists differ by float32 rounding only.
func close32(a, b []float32) bool {
	for i := range a {
		if math.Abs(float64(a[i])/float64(b[i])-1) > 1e-5 {
			return false
		}
	}
	return true
}

func peak(v []float32) float64 {
	most := float32(0)
	for _, value := range v {
		most = max(most, value)
	}
	return shortest(most)
}

// rope writes the rotary positions of a configuration, in the older or the newer spelling.
func (c *exportConfig) rope(arch *architecture, headDim, context int) {
	where := "rope_scaling" // wins, as in the reference implementation
	inner, _ := c.keys[where].(map[string]any)
	if len(inner) == 0 {
		where = "rope_parameters"
		inner, _ = c.keys[where].(map[string]any)
	}
	params := map[string]any{}
	maps.Copy(params, inner)
	for _, key := range []string{"rope_theta", "partial_rotary_factor", "original_max_position_embeddings"} {
		if c.keys[key] != nil && (params[key] == nil || key == "original_max_position_embeddings") {
			params[key] = c.keys[key]
		}
	}
	fail := func(format string, args ...any) { c.fail(where, format, args...) }
	num := func(key string, def, lo, hi float64) float64 {
		value, ok := toFloat(params[key])
		if params[key] == nil && def >= 0 {
			return def
		}
		if !ok || !(value >= lo && value <= hi) {
			fail("%s is %s, want a number from %v to %v", key, brief(params[key]), lo, hi)
			return lo
		}
		return value
	}
	base := 10000.0
	if arch.model == "mixtral" || arch.model == "phimoe" { // what their configurations leave out
		base = 1e6
	}
	theta := num("rope_theta", base, 1, math.MaxFloat32)
	rotary := headDim
	part := 1.0
	if arch.model == "phi" {
		part = 0.5
	}
	if share := num("partial_rotary_factor", part, 1e-3, 1); share != 1 {
		rotary = int(float64(headDim) * share)
		if !arch.partial {
			fail("partial_rotary_factor %v has no form in GGUF for this architecture", share)
		}
	}
	c.put("rope.freq_base", float32(theta))
	c.put("rope.dimension_count", uint32(rotary))
	kind, _ := params["rope_type"].(string)
	if kind == "" {
		kind, _ = params["type"].(string)
	}
	original := func() float64 { return num("original_max_position_embeddings", float64(context), 1, math.MaxInt32) }
	switch kind {
	case "", "default":
	case "linear":
		c.put("rope.scaling.type", "linear")
		c.put("rope.scaling.factor", float32(num("factor", -1, 1, 1e6)))
	case "llama3":
		c.freqs = llama3Factors(theta, num("factor", -1, 1, 1e6), num("low_freq_factor", -1, 0, 1e6), num("high_freq_factor", -1, 0, 1e6), original(), rotary)
		if length := original(); length != llama3Original {
			c.put("rope.scaling.original_context_length", uint32(length))
		}
	case "yarn":
		factor := num("factor", float64(context)/original(), 1, 1e6)
		c.put("rope.scaling.type", "yarn")
		c.put("rope.scaling.factor", float32(factor))
		c.put("rope.scaling.original_context_length", uint32(original()))
		attention := yarnAttention(factor)
		if mscale, all := num("mscale", 0, 0, 1e3), num("mscale_all_dim", 0, 0, 1e3); mscale != 0 && all != 0 && factor > 1 {
			attention = (0.1*mscale*math.Log(factor) + 1) / (0.1*all*math.Log(factor) + 1)
		}
		if total := num("attention_factor", attention, 1e-3, 1e3); total != yarnAttention(factor) {
			c.put("rope.scaling.attn_factor", float32(total/yarnAttention(factor)))
		}
		for _, key := range []string{"beta_fast", "beta_slow"} {
			if params[key] != nil {
				c.put("rope.scaling.yarn_"+key, float32(num(key, -1, 1e-3, 1e6)))
			}
		}
		if params["truncate"] == false {
			fail("truncate false has no form in GGUF")
		}
	case "longrope", "su":
		list := func(key string) []float32 {
			values, _ := params[key].([]any)
			out := make([]float32, len(values))
			for i, element := range values {
				factor, ok := toFloat(element)
				if !ok || !(factor > 0 && factor <= math.MaxFloat32) {
					fail("%s: element %d is %s, want a positive number", key, i, brief(element))
					return nil
				}
				out[i] = float32(factor)
			}
			if len(out) != rotary/2 {
				fail("%s has %d elements, want %d", key, len(out), rotary/2)
			}
			return out
		}
		c.short, c.long = list("short_factor"), list("long_factor")
		factor := num("factor", float64(context)/original(), 0, 1e6)
		attention := 1.0
		if factor > 1 {
			attention = math.Sqrt(1 + math.Log(factor)/math.Log(original()))
		}
		attention = num("attention_factor", attention, 1e-3, 1e3)
		if arch.model == "phimoe" {
			attention = num("short_mscale", attention, 1e-3, 1e3)
			if long := num("long_mscale", attention, 1e-3, 1e3); long != attention {
				fail("short_mscale %v and long_mscale %v differ, which has no form in GGUF", attention, long)
			}
		}
		c.put("rope.scaling.type", "longrope")
		c.put("rope.scaling.attn_factor", float32(attention))
		c.put("rope.scaling.original_context_length", uint32(original()))
	default:
		fail("rope_type %q has no form in GGUF", kind)
	}
}
