package runcmd

import (
	"github.com/hetc/hetc/planir/prefix"
	"github.com/hetc/hetc/runtime/executor"
)

// beginning is the computed prefix of a bundle, for prompts that begin as it does.
type beginning struct {
	computed *prefix.Prefix // nil: there is none
	reuse    prefix.Reuse
}

// beginning reads the prefix that the bundle brings, if it does and the flags do not say to leave it alone. One that
// another plan has computed is refused.
func (x *execution) beginning() (out beginning, err error) {
	if x.noPrefix {
		return out, nil
	}
	out.reuse = prefix.ReuseOf(x.plan)
	out.computed, err = x.bundle.computedPrefix(x.plan)
	return out, err
}

// restore puts the cache of a prompt's beginning in its place, where it is known, and returns how many tokens of the
// prompt need not be processed any more.
func (b *beginning) restore(control *executor.Control, sequence int, prompt []int32) (known int, err error) {
	if known = b.reuse.Of(b.computed, prompt); known == 0 {
		return 0, nil
	}
	return known, control.Restore(sequence, known, len(b.computed.Tokens), b.computed.Cache)
}
