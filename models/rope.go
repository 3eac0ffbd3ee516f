package models

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/planir/op"
)

// rope is how positions turn query and key heads: the frequencies as op.Rope takes them, and its other fields.
type rope struct {
	theta   float64
	stretch float64   // the context is this many times max_position_embeddings
	table   []float32 // [rows,dim/2] radians per position
	rows    int       // 2: within a context and beyond it
	op      op.Op     // RotaryDim, Amplitude, LongFrom, LongAmplitude, NTK
}

// ropeOptions are what architectures differ in.
type ropeOptions struct {
	theta    float64 // default base
	partial  float64 // default share of a head that is rotated; 0: the architecture rotates whole heads
	original int     // default original context; 0: max_position_embeddings
	mscale   bool    // PhiMoE: the amplitudes are given, and longrope is the only scaling
	su       bool    // Phi-3: scaling types "su" and "yarn" mean longrope
}

// scaling holds the keys of rope_scaling or rope_parameters, read with their names in messages.
type scaling struct {
	*config         // the keys of the inner object
	outer   *config // of the file
	name    string  // of the inner object's key
}

// close reports what was wrong. Keys that the type of scaling does not have are only listed as unread, as
// the reference implementation does; parameters for each type of layer are refused.
func (s *scaling) close() {
	for _, key := range slices.Sorted(maps.Keys(s.keys)) {
		if s.read[key] {
			continue
		}
		if _, nested := s.keys[key].(map[string]any); nested {
			s.fail(key, "%s is not supported; supported: one set of parameters for all layers", abbreviate(s.keys[key]))
		}
		s.outer.ignore(s.name + "." + key)
	}
	for _, problem := range s.errs {
		problem.Summary = strings.Replace(problem.Summary, `key "`, `key "`+s.name+".", 1)
	}
	s.outer.errs = append(s.outer.errs, s.errs...)
}

// scaling finds the parameters in the spelling that the file uses; empty ones if in none.
func (c *config) scaling() *scaling {
	found := &scaling{config: newConfig(map[string]any{}, c.at), outer: c, name: "rope_parameters"}
	// The second wins, as in the reference implementation.
	for _, name := range []string{"rope_parameters", "rope_scaling"} {
		c.read[name] = true
		if !c.has(name) {
			continue
		}
		inner, ok := c.keys[name].(map[string]any)
		if !ok {
			c.fail(name, "got %s, want an object", abbreviate(c.keys[name]))
			continue
		}
		if len(inner) > 0 {
			found.config, found.name = newConfig(inner, func(string) string { return c.at(name) }), name
		}
	}
	return found
}

// ropeReader reads the rotary positions of one model.
type ropeReader struct {
	*config
	params     *scaling    // rope_scaling or rope_parameters
	assumed    ropeOptions // what the architecture takes for absent keys
	headDim    int
	maxContext int  // positions
	rope       rope // what was read so far
}

// rope reads the rotary positions of heads of headDim in all spellings and scalings that the reference
// implementation knows for language models.
func (c *config) rope(headDim, maxContext int, assumed ropeOptions) rope {
	c.read["original_max_position_embeddings"] = true
	theta := c.float("rope_theta", assumed.theta, 1, math.MaxFloat32)
	r := &ropeReader{config: c, params: c.scaling(), assumed: assumed, headDim: headDim, maxContext: maxContext}
	r.rope = rope{theta: r.params.float("rope_theta", theta, 1, math.MaxFloat32), rows: 1}
	dim := r.rotated()
	if dim != headDim {
		r.rope.op.RotaryDim = dim
	}
	r.scale(dim)
	r.params.close()
	for _, frequency := range r.rope.table {
		if !(frequency >= 0 && frequency <= math.MaxFloat32) {
			c.fail(r.params.name, "gives the frequency %v, want finite numbers", frequency)
			break
		}
	}
	return r.rope
}

// rotated returns how many elements of a head are rotated, an even number.
func (r *ropeReader) rotated() int {
	partial := r.float("partial_rotary_factor", 1, 0, 1)
	if r.assumed.partial > 0 && !r.has("partial_rotary_factor") {
		partial = r.assumed.partial
	}
	partial = r.params.float("partial_rotary_factor", partial, 0, 1)
	dim := int(float64(r.headDim) * partial)
	switch {
	case r.assumed.partial == 0 && partial != 1:
		r.fail("partial_rotary_factor", "%v is not supported; supported: rotary positions over the whole head", partial)
		return r.headDim
	case r.assumed.partial == 0 && r.headDim%2 != 0: // said of the head
		return r.headDim
	case dim < 2 || dim%2 != 0:
		r.fail("partial_rotary_factor", "rotates %d of %d elements of a head, want an even number", dim, r.headDim)
		return 2
	}
	return dim
}

// kind returns the type of scaling, in the newer or the older spelling.
func (r *ropeReader) kind() string {
	kind := r.params.text("rope_type", r.params.text("type", "default"))
	r.params.read["type"] = true
	if r.assumed.su && (kind == "su" || kind == "yarn") {
		return "longrope"
	}
	if r.assumed.mscale && kind != "default" && kind != "longrope" {
		r.params.fail("rope_type", "%q is not supported; supported: default, longrope", kind)
		return "default"
	}
	return kind
}

// original returns the number of positions that the model was trained for.
func (r *ropeReader) original() int {
	const key = "original_max_position_embeddings"
	// The key beside the parameters wins, except that PhiMoE overwrites it with the one among them.
	if !r.assumed.mscale && (r.has(key) || r.assumed.original > 0) {
		original := r.dim(key, r.assumed.original)
		r.params.read[key] = true
		return original
	}
	return r.params.dim(key, r.maxContext)
}

// required reads a parameter that the type of scaling needs.
func (r *ropeReader) required(key string) float64 {
	if !r.params.has(key) {
		r.params.fail(key, "missing, want a number")
	}
	return r.params.float(key, 1, 1e-6, 1e9)
}

// scale fills the table of frequencies and the operator's fields for the type of scaling.
func (r *ropeReader) scale(dim int) {
	kind := r.kind()
	rotary := &r.rope
	base := inverseFrequencies(rotary.theta, dim)
	rotary.table = base
	switch kind {
	case "default":
	case "linear":
		rotary.stretch = r.required("factor")
		for i := range base {
			base[i] /= float32(rotary.stretch)
		}
	case "dynamic":
		// Sequences longer than the context the model was trained for use a larger base.
		rotary.op.NTK, rotary.op.LongFrom = r.required("factor"), r.maxContext
		rotary.stretch = rotary.op.NTK
		r.params.read["original_max_position_embeddings"] = true
		if dim < 4 {
			r.params.fail("rope_type", `"dynamic" rotates %d elements of a head, want at least 4`, dim)
		}
	case "llama3":
		factor, low, high := r.required("factor"), r.required("low_freq_factor"), r.required("high_freq_factor")
		rotary.table = llama3Frequencies(base, factor, low, high, float64(r.original()))
	case "yarn":
		rotary.table, rotary.op.Amplitude = r.params.yarn(base, rotary.theta, dim, r.maxContext, r.original())
	case "longrope":
		r.longrope(dim, r.original())
	default:
		r.params.fail("rope_type", "%q is not supported; supported: default, linear, dynamic, llama3, yarn, longrope",
			kind)
	}
}

// inverseFrequencies returns 1/theta^(2i/dim) for i < dim/2, rounded to float32 after the quotient
// 2i/dim, after the power and after the reciprocal, as the reference implementation does.
func inverseFrequencies(theta float64, dim int) []float32 {
	out := make([]float32, dim/2)
	for i := range out {
		out[i] = 1 / power(theta, i, dim)
	}
	return out
}

// power is theta^(2i/dim).
func power(theta float64, i, dim int) float32 {
	return float32(math.Pow(float64(float32(theta)), float64(float32(2*i)/float32(dim))))
}

// llama3Frequencies slows down rotations with wavelengths beyond the original context by factor, and those
// near it in part.
func llama3Frequencies(base []float32, factor, low, high, original float64) []float32 {
	out := slices.Clone(base)
	for i, frequency := range base {
		wave := 2 * math.Pi / float64(frequency)
		switch {
		case wave > original/low: // first, as in the reference implementation, where low is not below high
			out[i] = frequency / float32(factor)
		case wave < original/high:
		default:
			smooth := float32((original/wave - low) / (high - low))
			out[i] = float32((1-smooth)*frequency/float32(factor)) + float32(smooth*frequency)
		}
	}
	return out
}

// yarn computes the frequencies of YaRN (Peng et al. 2023) and the amplitude of the rotated values.
//
// A frequency that turns fewer than beta_slow times over the original context is divided by the factor, one that
// turns more than beta_fast times stays, and those between are interpolated by their place in the head.
func (s *scaling) yarn(base []float32, theta float64, dim, maxContext, original int) ([]float32, float64) {
	factor := s.float("factor", float64(maxContext)/float64(max(1, original)), 1e-6, 1e9)
	mscale, all := s.float("mscale", 0, 0, 1e6), s.float("mscale_all_dim", 0, 0, 1e6)
	grow := func(m float64) float64 {
		if factor <= 1 {
			return 1
		}
		return float64(0.1*m*math.Log(factor)) + 1
	}
	amplitude := grow(1)
	if mscale != 0 && all != 0 {
		amplitude = grow(mscale) / grow(all)
	}
	amplitude = s.float("attention_factor", amplitude, 1e-6, 1e6)
	fast, slow := s.float("beta_fast", 32, 0, 1e9), s.float("beta_slow", 1, 0, 1e9)
	if fast == 0 {
		fast = 32
	}
	if slow == 0 {
		slow = 1
	}
	if theta <= 1 { // all frequencies are one
		s.fail("rope_theta", "%v has no yarn, want more than 1", theta)
		return base, amplitude
	}
	// The element of a head that turns n times over the original context.
	turns := func(n float64) float64 {
		return float64(dim) * math.Log(float64(original)/(n*2*math.Pi)) / (2 * math.Log(theta))
	}
	lo, hi := turns(fast), turns(slow)
	// A null does not truncate, as in the reference implementation.
	if s.bool("truncate", s.absent("truncate") == missing) {
		lo, hi = math.Floor(lo), math.Ceil(hi)
	}
	lo, hi = max(lo, 0), min(hi, float64(dim-1))
	if lo == hi {
		hi += 0.001 // as the reference implementation avoids dividing by 0
	}
	out := slices.Clone(base)
	for i, frequency := range base {
		keep := 1 - min(1, max(0, float32((float64(i)-lo)/(hi-lo))))
		slowed := 1 / float32(float32(factor)*power(theta, i, dim))
		out[i] = float32(slowed*(1-keep)) + float32(frequency*keep)
	}
	return out, amplitude
}

// longrope divides every frequency by a factor of its own, others for sequences beyond the original context. The two
// rows of the table are those within and beyond it.
func (r *ropeReader) longrope(dim, original int) {
	params, rotary := r.params, &r.rope
	short, long := params.factors("short_factor", dim), params.factors("long_factor", dim)
	amplitude := 1.0
	factor := params.float("factor", float64(r.maxContext)/float64(max(1, original)), 1e-6, 1e9)
	if factor > 1 && original > 1 {
		amplitude = math.Sqrt(1 + math.Log(factor)/math.Log(float64(original)))
	}
	amplitude = params.float("attention_factor", amplitude, 1e-6, 1e6)
	rotary.op.LongFrom, rotary.op.Amplitude, rotary.op.LongAmplitude = original, amplitude, amplitude
	if r.assumed.mscale {
		rotary.op.Amplitude = params.float("short_mscale", 1, 1e-6, 1e6)
		rotary.op.LongAmplitude = params.float("long_mscale", 1, 1e-6, 1e6)
		for _, key := range []string{"short_mscale", "long_mscale"} {
			if !params.has(key) {
				params.fail(key, "missing, want a number")
			}
		}
	}
	rotary.rows, rotary.table = 2, nil
	for _, list := range [][]float32{short, long} {
		for i, factor := range list {
			rotary.table = append(rotary.table, 1/float32(factor*power(rotary.theta, i, dim)))
		}
	}
}

// factors reads a list of one factor for each of dim/2 frequencies.
func (s *scaling) factors(key string, dim int) []float32 {
	list := s.list(key)
	out := make([]float32, dim/2)
	if len(list) != len(out) {
		s.fail(key, "got %d numbers, want %d, half the rotated elements of a head", len(list), len(out))
		return out
	}
	for i, element := range list {
		factor, ok := toFloat(element)
		if !ok || !(factor >= 1e-6 && factor <= 1e9) {
			s.fail(key, "element %d is %s, want a number from 1e-06 to 1e+09", i, abbreviate(element))
		}
		out[i] = float32(factor)
	}
	return out
}
