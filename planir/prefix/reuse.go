package prefix

import "github.com/hetc/hetc/planir"

// Reuse says which tokens of a prompt need not be processed again because the cache holds them, by the rules of one
// plan.
type Reuse struct {
	program *planir.Program
	alike   bool // prefill and decode compute in the same schemes
	byCall  bool // what a token gets depends on the others of its call
	// Long is the smallest length of a prompt whose positions are rotated by its length; 0: none is.
	Long int
}

// Cached is what a sequence of the cache holds. The first Prefilled of its tokens were processed as parts of prompts,
// the longest of which had Longest tokens; the others by the program that decodes. Calls are those that processed the
// first tokens, in order, of prompts: there may be fewer of them than tokens.
type Cached struct {
	Tokens             []int32
	Prefilled, Longest int
	Calls              []Call
}

// Call is a call of a program with so many tokens.
type Call struct {
	Program string
	Tokens  int
}

// Extend notes that a call of a program has processed tokens of a prompt behind those that the sequence holds. A single
// one, the last of a prompt, is processed by the program that decodes.
func (c *Cached) Extend(program string, tokens []int32) {
	if c.Prefilled == len(c.Tokens) && len(tokens) > 1 {
		c.Prefilled += len(tokens)
		c.Calls = append(c.Calls, Call{program, len(tokens)})
	}
	c.Tokens = append(c.Tokens, tokens...)
}

// Keep drops what the sequence holds beyond its first tokens.
func (c *Cached) Keep(tokens int) {
	c.Tokens, c.Prefilled = c.Tokens[:tokens], min(c.Prefilled, tokens)
	if tokens == 0 {
		c.Longest = 0
	}
	for i, call := range c.Calls {
		if tokens -= call.Tokens; tokens < 0 {
			c.Calls = c.Calls[:i]
			break
		}
	}
}

// ReuseOf reads the rules of a plan.
func ReuseOf(plan *planir.Plan) Reuse {
	alike, _ := plan.Precision()
	return Reuse{program: &plan.Program, alike: alike, byCall: plan.ByCall(), Long: plan.LongFrom()}
}

// Call returns the next call for a prompt of which so many tokens are left.
func (r *Reuse) Call(left int) Call {
	program := r.program.For(left)
	if program == nil {
		return Call{}
	}
	return Call{program.Name, min(left, program.Rows)}
}

// Tokens returns how many tokens of a prompt a sequence begins with that was processed before, less the last one of the
// prompt, whose logits are wanted.
//
// Long prompts that are rotated by their length have keys of their own. Where decoding has other schemes than prefill,
// what was decoded is not what prefill would have computed, and the last token must be processed by the same program as
// without the cache. Where the tokens of a call depend on each other, those of a call are reused that the prompt would
// begin with, and no others.
func (r *Reuse) Tokens(cached Cached, prompt []int32) int {
	if r.Long > 0 && max(cached.Longest, len(prompt)) > r.Long {
		return 0
	}
	most := min(len(cached.Tokens), len(prompt)-1)
	if !r.alike {
		most = min(most, cached.Prefilled)
	}
	same := 0
	for same < most && cached.Tokens[same] == prompt[same] {
		same++
	}
	if r.byCall {
		return r.wholeCalls(cached.Calls, same, len(prompt))
	}
	for !r.alike && same > 0 && r.endsInDecode(len(prompt)-same) != r.endsInDecode(len(prompt)) {
		same--
	}
	return same
}

// wholeCalls returns how many of the first tokens of a prompt, at most same, were processed by the calls that would
// process them without the cache.
func (r *Reuse) wholeCalls(calls []Call, same, prompt int) (known int) {
	for _, call := range calls {
		if call.Tokens > same-known || call != r.Call(prompt-known) {
			break
		}
		known += call.Tokens
	}
	return known
}

// Computed returns what the cache holds of a computed prefix: its tokens were processed as a prompt of their own.
func (r *Reuse) Computed(tokens []int32) Cached {
	out := Cached{Tokens: tokens, Prefilled: len(tokens), Longest: len(tokens)}
	if r.endsInDecode(len(tokens)) {
		out.Prefilled--
	}
	for left := len(tokens); r.byCall && left > 0; {
		call := r.Call(left)
		if call.Tokens == 0 {
			break
		}
		out.Calls = append(out.Calls, call)
		left -= call.Tokens
	}
	return out
}

// Useful returns how many of the first tokens of a prefix some longer prompt reuses. It is all of them but where the
// tokens of a call depend on each other: of a prefix that ends within a call, no longer prompt has that call.
func (r *Reuse) Useful(tokens []int32, context int) int {
	if !r.byCall {
		return len(tokens)
	}
	longest := 0 // rows of a call; the calls of prompts that are longer by more are alike
	for _, program := range r.program.All() {
		longest = max(longest, program.Rows)
	}
	useful, calls := 0, r.Computed(tokens).Calls
	for prompt := len(tokens) + 1; prompt <= min(context, len(tokens)+longest+1); prompt++ {
		useful = max(useful, r.wholeCalls(calls, len(tokens), prompt))
	}
	if useful == len(tokens) {
		return useful
	}
	return r.Useful(tokens[:useful], context) // computed alone they may need other calls
}

// Of returns how many tokens of a prompt a computed prefix saves.
func (r *Reuse) Of(computed *Prefix, prompt []int32) int {
	if computed == nil || len(prompt) == 0 {
		return 0
	}
	return r.Tokens(r.Computed(computed.Tokens), prompt)
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
