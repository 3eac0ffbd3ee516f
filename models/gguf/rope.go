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

// scaling is how the metadata stretch the rotary positions beyond the context that a model was trained for.
type scaling struct {
	theta     float64 // base of the frequencies
	kind      string  // "none", "linear", "yarn", "longrope"
	factor    float64 // the context is this many times original; 0: not said
	original  int     // positions
	attention float64 // factor on the rotated values
}

// scaled reports whether anything is stretched by one factor.
func (s *scaling) scaled() bool { return s.factor != 0 && s.factor != 1 && s.kind != "none" }

// scaling reads the keys of the scaling, in the older and the newer spelling.
func (k *keys) scaling() *scaling {
	s := &scaling{theta: k.float("rope.freq_base", 10000, 1, math.MaxFloat32)}
	k.must("rope.freq_base_swa", s.theta)
	// Files without scaling lack the key; then the factor below is 0 too.
	s.kind = k.string("rope.scaling.type", "linear")
	if !slices.Contains([]string{"none", "linear", "yarn", "longrope"}, s.kind) {
		k.fail("rope.scaling.type", "%q is not supported; supported: none, linear, yarn, longrope", s.kind)
	}
	s.factor = k.float("rope.scaling.factor", 0, 0, math.MaxFloat32)
	if old := k.float("rope.scale_linear", 0, 0, math.MaxFloat32); s.factor == 0 {
		s.factor = old
	}
	s.original = k.int("rope.scaling.original_context_length", k.context, 1, math.MaxInt32)
	s.attention = k.float("rope.scaling.attn_factor", 1, 1e-3, 1e3)
	return s
}

// rope translates the rotary positions to the key rope_parameters. Tensors of factors win over the keys: those that
// come from Llama 3's formula are given as such, others as "longrope", whose frequencies are divided by any factors.
// rotated is how many elements of a head are rotated, two for each frequency.
func (k *keys) rope(arch *architecture, rotated int) map[string]any {
	s := k.scaling()
	freqs, hasFreqs := k.factors(ropeFreqs, rotated/2)
	long, hasLong := k.factors(ropeLong, rotated/2)
	short, hasShort := k.factors(ropeShort, rotated/2)
	switch {
	case hasLong || hasShort:
		if !hasLong || !hasShort || hasFreqs || s.scaled() {
			k.fail("rope.scaling.type", "tensors %q and %q belong together and exclude other scaling",
				ropeLong, ropeShort)
		}
		out := longrope(s.theta, short, long, s.attention, s.original)
		if arch.model == "phimoe" {
			out["short_mscale"], out["long_mscale"] = s.attention, s.attention
		}
		return out
	case hasFreqs:
		if s.scaled() || s.attention != 1 {
			k.fail("rope.scaling.type", "tensor %q beside other scaling is not supported", ropeFreqs)
		}
		return k.frequencyFactors(s, freqs, rotated)
	}
	out := map[string]any{"rope_type": "default", "rope_theta": s.theta}
	switch {
	case s.kind == "longrope":
		k.fail("rope.scaling.type", "longrope without the tensors %q and %q", ropeLong, ropeShort)
	case s.kind == "yarn" && s.scaled():
		k.yarn(s, out)
	case s.attention != 1:
		k.fail("rope.scaling.attn_factor", "%v is not supported without scaling by yarn or longrope", s.attention)
	case s.scaled():
		out["rope_type"], out["factor"] = "linear", s.factor
	}
	return out
}

// frequencyFactors finds the scaling that one tensor of factors comes from.
func (k *keys) frequencyFactors(s *scaling, freqs []float32, rotated int) map[string]any {
	if !slices.ContainsFunc(freqs, func(factor float32) bool { return factor != 1 }) {
		return map[string]any{"rope_type": "default", "rope_theta": s.theta}
	}
	// Llama 3 divides its slowest frequencies by the whole factor, so the largest one is it. The formula is then tried
	// with both contexts that files may mean.
	factor := peak(freqs)
	for _, context := range []int{s.original, llama3Original} {
		if close32(freqs, llama3Factors(s.theta, factor, llama3Low, llama3High, float64(context), rotated)) {
			return map[string]any{"rope_type": "llama3", "rope_theta": s.theta, "factor": factor,
				"low_freq_factor": llama3Low, "high_freq_factor": llama3High,
				"original_max_position_embeddings": int64(context)}
		}
	}
	// Texts within the context never get beyond original, so only one set of factors counts.
	return longrope(s.theta, freqs, freqs, 1, k.context)
}

// yarn adds the parameters of YaRN. Readers multiply the paper's attention factor by attn_factor; converters write
// the total as yarn_attn_factor.
func (k *keys) yarn(s *scaling, out map[string]any) {
	out["rope_type"], out["factor"], out["original_max_position_embeddings"] = "yarn", s.factor, int64(s.original)
	total := k.float("rope.scaling.yarn_attn_factor", 0, 0, 1e3)
	switch {
	case s.attention != 1:
		out["attention_factor"] = shortest(float32(s.attention * yarnAttention(s.factor)))
	case total != 0:
		out["attention_factor"] = total
	}
	for _, key := range []string{"beta_fast", "beta_slow"} {
		if beta := k.float("rope.scaling.yarn_"+key, 0, 0, 1e6); beta != 0 {
			out[key] = beta
		}
	}
	k.must("rope.scaling.yarn_ext_factor", 1)
	k.must("rope.scaling.yarn_log_multiplier", 0)
}

// longrope divides each frequency by a factor of its own, within the original context and beyond it.
func longrope(theta float64, short, long []float32, attention float64, original int) map[string]any {
	list := func(values []float32) []any {
		out := make([]any, len(values))
		for i, factor := range values {
			out[i] = shortest(factor)
		}
		return out
	}
	return map[string]any{"rope_type": "longrope", "rope_theta": theta,
		"short_factor": list(short), "long_factor": list(long), "attention_factor": attention,
		"original_max_position_embeddings": int64(original)}
}

// factors reads a tensor of n positive frequency factors.
func (k *keys) factors(name string, count int) ([]float32, bool) {
	tensor, ok := k.f.Tensor(name)
	if !ok {
		return nil, false
	}
	refuse := func(format string, args ...any) ([]float32, bool) {
		problem := diag.New(diag.ClassInput, "tensor %q: "+format, append([]any{name}, args...)...)
		k.errs = append(k.errs, problem.WithCode("gguf.metadata"))
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

// yarnAttention returns the factor the YaRN paper recommends (section 3.4): 0.1 ln(s) + 1.
func yarnAttention(factor float64) float64 {
	if factor <= 1 {
		return 1
	}
	return 0.1*math.Log(factor) + 1
}

// llama3Factors returns what Llama 3 divides frequency i of rotary/2 by: nothing for wavelengths below
// original/high, factor for those above original/low, and a smooth passage between.
func llama3Factors(theta, factor, low, high, original float64, rotary int) []float32 {
	out := make([]float32, rotary/2)
	for i := range out {
		freq := 1 / math.Pow(theta, float64(2*i)/float64(rotary))
		turns := original * freq / (2 * math.Pi) // in the original context
		switch {
		case turns < low:
			out[i] = float32(factor)
		case turns > high:
			out[i] = 1
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
		// Both lists have one element for each frequency, all positive.
		if math.Abs(float64(a[i])/float64(b[i])-1) > 1e-5 {
			return false
		}
	}
	return true
}

// peak returns the largest factor.
func peak(v []float32) float64 {
	most := float32(0)
	for _, value := range v {
		most = max(most, value)
	}
	return shortest(most)
}

// ropeExport writes the rotary positions of a configuration as metadata.
type ropeExport struct {
	*exportConfig
	arch    *architecture
	where   string         // the key that holds the parameters, for messages
	params  map[string]any // the parameters, with those that older configurations have outside
	context int            // positions
	theta   float64        // base of the frequencies
	rotated int            // elements of a head
}

// rope writes the rotary positions, in the older or the newer spelling.
func (c *exportConfig) rope(arch *architecture, headDim, context int) {
	r := &ropeExport{exportConfig: c, arch: arch, where: "rope_scaling", context: context, rotated: headDim}
	inner, _ := c.keys[r.where].(map[string]any) // wins, as in the reference implementation
	if len(inner) == 0 {
		r.where = "rope_parameters"
		inner, _ = c.keys[r.where].(map[string]any)
	}
	r.params = map[string]any{}
	maps.Copy(r.params, inner)
	for _, key := range []string{"rope_theta", "partial_rotary_factor", "original_max_position_embeddings"} {
		if arch.model == "phimoe" && key == "original_max_position_embeddings" {
			continue // the one among the parameters counts
		}
		// The original context counts from outside even where the parameters have one.
		if c.keys[key] != nil && (r.params[key] == nil || key == "original_max_position_embeddings") {
			r.params[key] = c.keys[key]
		}
	}
	base, share := 10000.0, 1.0
	switch arch.model { // what their configurations leave out
	case "mixtral", "phimoe":
		base = 1e6
	case "phi":
		share = 0.5
	}
	r.theta = r.number("rope_theta", base, 1, math.MaxFloat32)
	if share = r.number("partial_rotary_factor", share, 1e-3, 1); share != 1 {
		r.rotated = int(float64(headDim) * share)
		if !arch.partial {
			r.fail("partial_rotary_factor %v has no form in GGUF for this architecture", share)
		}
	}
	c.put("rope.freq_base", float32(r.theta))
	c.put("rope.dimension_count", uint32(r.rotated))
	kind, _ := r.params["rope_type"].(string)
	if kind == "" {
		kind, _ = r.params["type"].(string)
	}
	switch kind {
	case "", "default":
	case "linear":
		c.put("rope.scaling.type", "linear")
		c.put("rope.scaling.factor", float32(r.number("factor", -1, 1, 1e6)))
	case "llama3":
		r.llama3()
	case "yarn":
		r.yarn()
	case "longrope", "su":
		r.longrope()
	default:
		r.fail("rope_type %q has no form in GGUF", kind)
	}
}

// fail collects a problem with the key that holds the parameters.
func (r *ropeExport) fail(format string, args ...any) { r.exportConfig.fail(r.where, format, args...) }

// number reads a parameter in [lo, hi]; def < 0 makes it required.
func (r *ropeExport) number(key string, def, lo, hi float64) float64 {
	value, ok := toFloat(r.params[key])
	if r.params[key] == nil && def >= 0 {
		return def
	}
	if !ok || !(value >= lo && value <= hi) {
		r.fail("%s is %s, want a number from %v to %v", key, brief(r.params[key]), lo, hi)
		return lo
	}
	return value
}

// original returns the number of positions that the model was trained for.
func (r *ropeExport) original() float64 {
	return r.number("original_max_position_embeddings", float64(r.context), 1, math.MaxInt32)
}

// llama3 writes Llama 3's scaling as the factors that follow from it, in a tensor.
func (r *ropeExport) llama3() {
	factor, low := r.number("factor", -1, 1, 1e6), r.number("low_freq_factor", -1, 0, 1e6)
	high := r.number("high_freq_factor", -1, 0, 1e6)
	r.freqs = llama3Factors(r.theta, factor, low, high, r.original(), r.rotated)
	// Readers that want the formula back assume the published original.
	if length := r.original(); length != llama3Original {
		r.put("rope.scaling.original_context_length", uint32(length))
	}
}

// yarn writes YaRN's scaling; readers assume the paper's attention factor, so that only another one is written.
func (r *ropeExport) yarn() {
	factor := r.number("factor", float64(r.context)/r.original(), 1, 1e6)
	r.put("rope.scaling.type", "yarn")
	r.put("rope.scaling.factor", float32(factor))
	r.put("rope.scaling.original_context_length", uint32(r.original()))
	attention := yarnAttention(factor)
	mscale, all := r.number("mscale", 0, 0, 1e3), r.number("mscale_all_dim", 0, 0, 1e3)
	// The two scales of DeepSeek's variant: what remains of the attention factor is their quotient.
	if mscale != 0 && all != 0 && factor > 1 {
		attention = (0.1*mscale*math.Log(factor) + 1) / (0.1*all*math.Log(factor) + 1)
	}
	if total := r.number("attention_factor", attention, 1e-3, 1e3); total != yarnAttention(factor) {
		r.put("rope.scaling.attn_factor", float32(total/yarnAttention(factor)))
	}
	for _, key := range []string{"beta_fast", "beta_slow"} {
		if r.params[key] != nil {
			r.put("rope.scaling.yarn_"+key, float32(r.number(key, -1, 1e-3, 1e6)))
		}
	}
	if truncate, said := r.params["truncate"]; said && truncate != true { // a null is false, too
		r.fail("truncate false has no form in GGUF")
	}
}

// longrope writes the two lists of factors as tensors.
func (r *ropeExport) longrope() {
	r.short, r.long = r.factors("short_factor"), r.factors("long_factor")
	factor := r.number("factor", float64(r.context)/r.original(), 0, 1e6)
	attention := 1.0
	if factor > 1 {
		// LongRoPE's default factor on the rotated values.
		attention = math.Sqrt(1 + math.Log(factor)/math.Log(r.original()))
	}
	attention = r.number("attention_factor", attention, 1e-3, 1e3)
	if r.arch.model == "phimoe" {
		attention = r.number("short_mscale", attention, 1e-3, 1e3)
		if long := r.number("long_mscale", attention, 1e-3, 1e3); long != attention {
			r.fail("short_mscale %v and long_mscale %v differ, which has no form in GGUF", attention, long)
		}
	}
	r.put("rope.scaling.type", "longrope")
	r.put("rope.scaling.attn_factor", float32(attention))
	r.put("rope.scaling.original_context_length", uint32(r.original()))
}

// factors reads a list of one positive factor for each frequency.
func (r *ropeExport) factors(key string) []float32 {
	values, _ := r.params[key].([]any)
	out := make([]float32, len(values))
	for i, element := range values {
		factor, ok := toFloat(element)
		if !ok || !(factor > 0 && factor <= math.MaxFloat32) {
			r.fail("%s: element %d is %s, want a positive number", key, i, brief(element))
			return nil
		}
		out[i] = float32(factor)
	}
	if len(out) != r.rotated/2 {
		r.fail("%s has %d elements, want %d", key, len(out), r.rotated/2)
	}
	return out
}
