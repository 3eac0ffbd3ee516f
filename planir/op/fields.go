package op

import (
	"fmt"
	"slices"
	"strings"
)

// Bounds of dimensions. That of all dimensions keeps products of three of them well within int64; those of mixtures of
// experts are far above any published model.
const (
	maxDim     = 1 << 24
	maxExperts = 4096
	maxFan     = 256
	maxBlock   = 256     // of queries that share a selection
	maxFactor  = 1 << 20 // of scales, caps and amplitudes
)

// field is one of the fields of Op besides Kind and M.
type field struct {
	isSet func(o *Op) bool
	value func(o *Op) any
	// want is what the value should be where it makes no sense, "": it does.
	want func(o *Op) string
}

// fieldOf describes a field. want returns what a wrong value should have been; nil accepts every value.
func fieldOf[T comparable](at func(operator *Op) *T, want func(value T) string) field {
	made := field{
		isSet: func(operator *Op) bool { var zero T; return *at(operator) != zero },
		value: func(operator *Op) any { return *at(operator) },
		want:  func(*Op) string { return "" },
	}
	if want != nil {
		made.want = func(operator *Op) string { return want(*at(operator)) }
	}
	return made
}

// fields has the fields of Op by their names in JSON. A dimension that a kind needs is at least 1; want does not say
// that.
var fields = map[string]field{
	"k":          fieldOf(func(o *Op) *int { return &o.K }, upTo[int](0, maxDim)),
	"n":          fieldOf(func(o *Op) *int { return &o.N }, upTo[int](0, maxDim)),
	"heads":      fieldOf(func(o *Op) *int { return &o.Heads }, upTo[int](0, maxDim)),
	"kv_heads":   fieldOf(func(o *Op) *int { return &o.KVHeads }, upTo[int](0, maxDim)),
	"head_dim":   fieldOf(func(o *Op) *int { return &o.HeadDim }, upTo[int](0, maxDim)),
	"context":    fieldOf(func(o *Op) *int { return &o.Context }, upTo[int](0, maxDim)),
	"interleave": fieldOf(func(o *Op) *int { return &o.Interleave }, upTo[int](0, maxDim)),
	"experts":    fieldOf(func(o *Op) *int { return &o.Experts }, upTo[int](0, maxExperts)),
	"fan":        fieldOf(func(o *Op) *int { return &o.Fan }, upTo[int](0, maxFan)),
	"sent":       fieldOf(func(o *Op) *int { return &o.Sent }, upTo[int](0, maxDim)),
	"channels":   fieldOf(func(o *Op) *int { return &o.Channels }, upTo[int](0, maxDim)),
	"window":     fieldOf(func(o *Op) *int { return &o.Window }, upTo[int](0, maxDim)),
	"rotary_dim": fieldOf(func(o *Op) *int { return &o.RotaryDim }, upTo[int](0, maxDim)),
	"block":      fieldOf(func(o *Op) *int { return &o.Block }, upTo[int](0, maxBlock)),
	"least":      fieldOf(func(o *Op) *int { return &o.Least }, upTo[int](0, maxDim)),
	"buckets": fieldOf(func(o *Op) *int { return &o.Buckets }, func(buckets int) string {
		if buckets == 0 || buckets > 1 && slices.Contains(BucketCounts, buckets) {
			return ""
		}
		return fmt.Sprintf("one of %v, 1 written as 0", BucketCounts)
	}),
	"long_from": fieldOf(func(o *Op) *int { return &o.LongFrom }, upTo[int](0, maxDim)),
	"scales": fieldOf(func(o *Op) *int { return &o.Scales }, func(scales int) string {
		if scales < 0 || scales == 1 || scales > MaxScales {
			return fmt.Sprintf("2..%d, or 0 for one", MaxScales)
		}
		return ""
	}),

	"density":        fieldOf(func(o *Op) *float64 { return &o.Density }, upTo(0, 1.)),
	"eps":            fieldOf(func(o *Op) *float64 { return &o.Eps }, upTo(0, 1.)),
	"jitter":         fieldOf(func(o *Op) *float64 { return &o.Jitter }, upTo(0, 1.)),
	"cap":            fieldOf(func(o *Op) *float64 { return &o.Cap }, upTo(0, float64(maxFactor))),
	"scale":          fieldOf(func(o *Op) *float64 { return &o.Scale }, upTo(0, float64(maxFactor))),
	"amplitude":      fieldOf(func(o *Op) *float64 { return &o.Amplitude }, upTo(0, float64(maxFactor))),
	"long_amplitude": fieldOf(func(o *Op) *float64 { return &o.LongAmplitude }, upTo(0, float64(maxFactor))),
	"ntk":            fieldOf(func(o *Op) *float64 { return &o.NTK }, upTo(0, float64(maxFactor))),

	"scheme": fieldOf(func(o *Op) *Scheme { return &o.Scheme }, nil), // see the checks of the kinds
	"form":   fieldOf(func(o *Op) *Form { return &o.Form }, nil),
	"table":  fieldOf(func(o *Op) *Type { return &o.Table }, nil),
	"kv":     fieldOf(func(o *Op) *Type { return &o.KV }, oneOf(CacheTypes...)),
	"groups": fieldOf(func(o *Op) *Groups { return &o.Groups }, func(groups Groups) string {
		if groups.Validate() != nil {
			return fmt.Sprintf("1..%d groups of the form SLOTSxROWS, separated by commas", MaxGroups)
		}
		return ""
	}),
	"salience": fieldOf(func(o *Op) *string { return &o.Salience }, func(rule string) string {
		if rule == "" {
			return "" // nothing is dropped
		}
		return oneOf(Saliences...)(rule)
	}),
	"act":    fieldOf(func(o *Op) *string { return &o.Act }, oneOf(Acts...)),
	"router": fieldOf(func(o *Op) *string { return &o.Router }, oneOf(Routers...)),

	"bias":   fieldOf(func(o *Op) *bool { return &o.Bias }, nil),
	"static": fieldOf(func(o *Op) *bool { return &o.Static }, nil),
	"spread": fieldOf(func(o *Op) *bool { return &o.Spread }, nil),
	"rest":   fieldOf(func(o *Op) *bool { return &o.Rest }, nil),
	"joint":  fieldOf(func(o *Op) *bool { return &o.Joint }, nil),
	"batch":  fieldOf(func(o *Op) *bool { return &o.Batch }, nil),
}

// fieldNames are the keys of fields, ascending, so that the first fault found is always the same.
var fieldNames = func() []string {
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}()

// upTo accepts numbers in a range; a NaN is in no range.
func upTo[T int | float64](least, most T) func(T) string {
	return func(value T) string {
		if value >= least && value <= most {
			return ""
		}
		return fmt.Sprintf("%v..%v", least, most)
	}
}

// oneOf accepts the given words.
func oneOf[T ~string](values ...T) func(T) string {
	return func(value T) string {
		if slices.Contains(values, value) {
			return ""
		}
		names := make([]string, len(values))
		for i, value := range values {
			names[i] = string(value)
		}
		return "one of " + strings.Join(names, ", ")
	}
}

// fieldRule is what a kind says about one field.
type fieldRule struct {
	field
	name    string
	allowed bool // it may be set
	needs   bool // it must be set
}

// rules returns the row's rule for every field, ascending by name.
func (r *kindRow) rules() []fieldRule {
	list := make([]fieldRule, len(fieldNames))
	for i, name := range fieldNames {
		list[i] = fieldRule{fields[name], name, r.mayHave(name), slices.Contains(r.required, name)}
	}
	return list
}

// mayHave reports whether a field, by its name in JSON, may be set.
func (r *kindRow) mayHave(name string) bool {
	return slices.Contains(r.required, name) || slices.Contains(r.optional, name)
}

// fieldError returns the error for a field whose value makes no sense.
func (o Op) fieldError(field string, value any, want string) error {
	return fmt.Errorf("operator %q: %s = %v, want %s", o.Kind, field, value, want)
}

// Validate reports the first field that makes no sense for the kind, or that the kind does not use: one operator has
// one description.
func (o Op) Validate() error {
	kind := rowOf[o.Kind]
	if kind == nil {
		return fmt.Errorf("unknown operator %q", o.Kind)
	}
	if o.M < 1 || o.M > maxDim {
		return o.fieldError("m", o.M, fmt.Sprintf("1..%d", maxDim))
	}
	for i := range kind.fields {
		rule := &kind.fields[i]
		switch {
		case !rule.allowed:
			if rule.isSet(&o) {
				return fmt.Errorf("operator %q: %s is set, and means nothing to it", o.Kind, rule.name)
			}
		case rule.want(&o) != "":
			return o.fieldError(rule.name, rule.value(&o), rule.want(&o))
		case rule.needs && !rule.isSet(&o):
			value := rule.value(&o)
			if _, share := value.(float64); share {
				return o.fieldError(rule.name, value, "more than 0")
			}
			return o.fieldError(rule.name, value, "at least 1")
		}
	}
	if elements(o.M, max(1, o.Fan)) > maxDim {
		return o.fieldError("fan", o.Fan, fmt.Sprintf("at most %d rows", maxDim))
	}
	if kind.check == nil {
		return nil
	}
	return kind.check(o)
}

// checkEmbed: rows come from a packed weight, or from a table of a plain element type.
func checkEmbed(operator Op) error {
	switch {
	case operator.Scheme != "" && !operator.Scheme.LooksUp():
		return operator.fieldError("scheme", operator.Scheme, fmt.Sprintf("%s, %s, or none", I32Q8C, I32Q6C))
	case operator.Scheme != "" && operator.Table != "":
		return operator.fieldError("table", operator.Table, "none beside a scheme")
	case operator.Scheme == "" && operator.Table.Bytes() == 0:
		return fmt.Errorf("operator %q: unknown table type %q", operator.Kind, operator.Table)
	}
	return nil
}

// checkMatMul demands a known scheme, and a form that the number of rows permits.
func checkMatMul(operator Op) error {
	if _, err := ParseScheme(string(operator.Scheme)); err != nil {
		return fmt.Errorf("operator %q: %w", operator.Kind, err)
	}
	if err := operator.Form.check(operator.M); err != nil {
		return fmt.Errorf("operator %q: %w", operator.Kind, err)
	}
	return nil
}

// checkExpertMatMul: only schemes that leave results unrounded, see Scheme.Experts.
func checkExpertMatMul(operator Op) error {
	if _, err := ParseScheme(string(operator.Scheme)); err != nil {
		return fmt.Errorf("operator %q: %w", operator.Kind, err)
	}
	if !operator.Scheme.Experts() {
		return fmt.Errorf("operator %q: scheme %q is one of products by a single matrix, experts take one of %s",
			operator.Kind, operator.Scheme, expertSchemes())
	}
	return nil
}

// checkGroupMatMul: every matrix has equally many rows, and results are left unrounded as those of ExpertMatMul, which
// computes the rows beyond.
func checkGroupMatMul(operator Op) error {
	if operator.M%operator.Experts != 0 {
		return operator.fieldError("m", operator.M, fmt.Sprintf("a multiple of experts %d", operator.Experts))
	}
	return checkExpertMatMul(operator)
}

// checkGroups: experts are in at most one slot each; rows that no group holds are computed elsewhere unless they are
// dropped.
func checkGroups(operator Op) error {
	if operator.Kind == Dispatch {
		slots := operator.Groups.Slots()
		switch {
		case slots > operator.Experts:
			return operator.fieldError("groups", operator.Groups, fmt.Sprintf("at most %d slots", operator.Experts))
		case operator.Fan > operator.Experts:
			return operator.fieldError("fan", operator.Fan, fmt.Sprintf("at most experts %d", operator.Experts))
		case (operator.K > 0) != (operator.Salience == SalienceNorm || operator.Salience == SalienceWeight):
			return operator.fieldError("k", operator.K, "the columns of salience by norm or weight, else 0")
		case operator.Salience == SalienceWeight && operator.K != operator.Fan:
			return operator.fieldError("k", operator.K, fmt.Sprintf("fan %d, a weight for each expert", operator.Fan))
		case operator.Sent == 0 && (operator.Salience == "" || slots < operator.Experts):
			return operator.fieldError("sent", operator.Sent, "at least 1 where overflow is not dropped or experts have no slot")
		}
	}
	return nil
}

// checkOutlierMatMul: what is cut off is multiplied in float32 with 16-bit weights. Channels with outliers have weights
// so small that 8 bits with the scale of a whole column would lose them.
func checkOutlierMatMul(operator Op) error {
	if operator.Scheme != A32W16 {
		return operator.fieldError("scheme", operator.Scheme, string(A32W16))
	}
	if operator.Channels > operator.K {
		return operator.fieldError("channels", operator.Channels, fmt.Sprintf("at most k %d", operator.K))
	}
	return nil
}

// checkQuantRows refuses several scales without static ones: a dynamic scale follows from its row.
func checkQuantRows(operator Op) error {
	if operator.Scales > 0 && !operator.Static {
		return fmt.Errorf("operator %q: scales is set, and means nothing without static", operator.Kind)
	}
	return nil
}

// checkRoute: no more experts are chosen than there are; sparsemixer defines at most two choices, and only it has a
// jitter.
func checkRoute(operator Op) error {
	switch {
	case operator.Fan > operator.Experts:
		return operator.fieldError("experts", operator.Experts, fmt.Sprintf("fan %d..%d", operator.Fan, maxExperts))
	case operator.Router == RouteSparseMixer && operator.Fan > 2:
		return operator.fieldError("fan", operator.Fan, "1 or 2 for sparsemixer")
	case operator.Router != RouteSparseMixer && operator.Jitter != 0:
		return fmt.Errorf("operator %q: jitter is set, and means nothing to router %q", operator.Kind, operator.Router)
	}
	return nil
}

// checkCap: a bound near 0 would make every result 0, or divide by it.
func checkCap(operator Op) error {
	const least = 1e-6
	if operator.Cap < least {
		return operator.fieldError("cap", operator.Cap, fmt.Sprintf("%v..%v", least, maxFactor))
	}
	return nil
}

// checkGLU: the result consists of whole groups of gate and up.
func checkGLU(operator Op) error {
	if operator.N%operator.Interleave != 0 {
		return operator.fieldError("n", operator.N, fmt.Sprintf("a multiple of interleave %d", operator.Interleave))
	}
	return nil
}

// checkHeads: each key head serves the same number of query heads.
func checkHeads(operator Op) error {
	if operator.Heads%operator.KVHeads != 0 {
		return operator.fieldError("heads", operator.Heads, fmt.Sprintf("a multiple of kv_heads %d", operator.KVHeads))
	}
	return nil
}

// checkRope: rotation takes pairs of elements, and long sequences have frequencies either of their own or by NTK.
func checkRope(operator Op) error {
	if err := checkHeads(operator); err != nil {
		return err
	}
	switch rotated := operator.Rotary(); {
	case rotated%2 != 0 || rotated > operator.HeadDim:
		return operator.fieldError("rotary_dim", rotated, fmt.Sprintf("an even number up to head_dim %d", operator.HeadDim))
	case operator.NTK != 0 && (operator.LongFrom == 0 || rotated < 4):
		return operator.fieldError("ntk", operator.NTK, "0 without long_from, or for fewer than 4 rotated elements")
	case operator.LongAmplitude != 0 && (operator.LongFrom == 0 || operator.NTK != 0):
		return fmt.Errorf("operator %q: long_amplitude is set, and means nothing without long_from or with ntk",
			operator.Kind)
	}
	return nil
}
