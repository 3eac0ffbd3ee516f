package prefix

import "github.com/hetc/hetc/planir"

// Reuse says which tokens of a prompt need not be processed again because the cache holds them, by the rules of one plan.
type Reuse struct {
	program *planir.Program
	alike   bool // prefill and decode compute in the same schemes
	// Long is the smallest length of a prompt whose positions are rotated by its length; 0: none is.
	Long int
}

// ReuseOf reads the rules of a plan.
func ReuseOf(plan *planir.Plan) Reuse {
	alike, _ := plan.Precision()
	return Reuse{program: &plan.Program, alike: alike, Long: plan.LongFrom()}
}

// Tokens is how many tokens of a prompt a sequence begins with that was processed before, less the last one of the
// prompt, whose logits are wanted. The first prefilled of them were parts of prompts, the longest of which had longest
// tokens; the others were decoded.
//
// Long prompts that are rotated by their length have keys of their own. Where decoding has other schemes than prefill,
// what was decoded is not what prefill would have computed, and the last token must be processed by the same program as
// without the cache.
func (r *Reuse) Tokens(cached []int32, prefilled, longest int, prompt []int32) int {
	if r.Long > 0 && max(longest, len(prompt)) > r.Long {
		return 0
	}
	most := min(len(cached), len(prompt)-1)
	if !r.alike {
		most = min(most, prefilled)
	}
	same := 0
	for same < most && cached[same] == prompt[same] {
		same++
	}
	for !r.alike && same > 0 && r.endsInDecode(len(prompt)-same) != r.endsInDecode(len(prompt)) {
		same--
	}
	return same
}

// Of is how many tokens of a prompt a computed prefix saves.
func (r *Reuse) Of(computed *Prefix, prompt []int32) int {
	if computed == nil || len(prompt) == 0 {
		return 0
	}
	return r.Tokens(computed.Tokens, len(computed.Tokens), len(computed.Tokens), prompt)
}

// endsInDecode reports whether the last of n tokens of a prompt is processed alone, by the program that decodes.
func (r *Reuse) endsInDecode(n int) bool {
	for n > 0 {
		program := r.program.For(n)
		if program == nil {
			return false
		}
		if n -= program.Rows; n <= 0 {
			return program.Rows == 1
		}
	}
	return false
}
