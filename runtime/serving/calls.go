package serving

import (
	"cmp"
	"maps"
	"slices"
)

// A plan predicts program calls that follow one another on a machine that does nothing else. In a server a call takes
// longer. The server decides and hands over tokens around it, a reader of tokens needs a core for a moment, the cache
// holds another program's weights, and after an idle time the threads of processors have to wake up first. Therefore
// the server measures each kind of call, from the end of the call before it to its own end.

// CallKind is what a program call does.
type CallKind uint8

// The kinds, in the order of Metrics.Calls.
const (
	ChunkCall     CallKind = iota // processes tokens of a prompt, of which some are left
	LastChunkCall                 // processes the last tokens of a prompt, and computes logits
	DecodeCall                    // decodes a token of each of some sequences
	BesideCall                    // does so while another processor processes a chunk
	VerifyCall                    // verifies a draft

	Kinds = iota // how many there are
)

// String returns the word for a kind.
func (k CallKind) String() string {
	return [...]string{"chunk", "last chunk", "decode", "decode beside a chunk", "verify a draft"}[k]
}

// After says what a program call follows. After a call of another kind or size, the weights of the program are not in
// the cache, and often a reader has just been woken for a first token. After an idle time, cores wake up, which sleep
// the deeper the longer they had nothing to do.
type After uint8

// A call that begins when the one before it ends follows:
const (
	AfterSame  After = iota // one of the same kind and size
	AfterOther              // any other one
)

// idleBounds divide idle times into classes, in ns: up to the first bound, up to the second, and so on.
var idleBounds = [...]int64{10e6, 40e6, 160e6}

// Afters is the number of values of After.
const Afters = int(AfterOther) + len(idleBounds) + 2

// AfterIdle returns what a call follows that begins when its request arrives, idle ns after the call before it.
func AfterIdle(idle int64) After {
	after := AfterOther + 1
	for _, bound := range idleBounds {
		if idle > bound {
			after++
		}
	}
	return after
}

// Idle reports whether it is an idle time.
func (a After) Idle() bool { return a > AfterOther }

// String returns the word for it.
func (a After) String() string {
	return [Afters]string{"the same", "another", "idle up to 10 ms", "idle up to 40 ms", "idle up to 160 ms",
		"idle longer"}[a]
}

// CallKey identifies calls whose times are added up.
type CallKey struct {
	Kind  CallKind
	Size  int // rows of the program of a chunk; else sequences, or tokens of the draft
	After After
}

// Follow returns the key with After set: woken if the call ended an idle time (0: it did not), else by the call before.
func (k CallKey) Follow(before CallKey, woken After) CallKey {
	switch {
	case woken.Idle():
		k.After = woken
	case k.Kind != before.Kind || k.Size != before.Size:
		k.After = AfterOther
	}
	return k
}

// Compare orders keys.
func (k CallKey) Compare(other CallKey) int {
	return cmp.Or(cmp.Compare(k.Kind, other.Kind), cmp.Compare(k.Size, other.Size), cmp.Compare(k.After, other.After))
}

// CallTimes are sums over the calls of one kind.
type CallTimes struct {
	CallKey
	Calls     int64
	ServedNS  int64 // from the end of the call before, or the arrival of the request that ends an idle time
	CallNS    int64 // by the executor
	PlannedNS int64 // as the plan predicts
}

// Planned returns the key of a call, without After, and the time that the plan predicts, in ns.
func (t *Times) Planned(call Call) (CallKey, int64) {
	switch {
	case call.Tokens > 0:
		key := CallKey{Kind: ChunkCall}
		if call.Rest == call.Tokens {
			key.Kind = LastChunkCall
		}
		if program := t.ChunkProgram(call.Rest); program != nil {
			key.Size = program.Rows
		}
		_, ns := t.Chunk(call.Rest)
		return key, ns
	case call.Draft > 0:
		ns := int64(0)
		if drafts := t.plan.Drafts; drafts != nil && call.Draft <= len(drafts.VerifyNS) {
			ns = drafts.VerifyNS[call.Draft-1]
		}
		return CallKey{Kind: VerifyCall, Size: call.Draft}, ns
	case call.Beside:
		return CallKey{Kind: BesideCall, Size: call.Sequences}, t.Meanwhile(call.Rest, call.Sequences).DecodeNS
	}
	return CallKey{Kind: DecodeCall, Size: call.Sequences}, t.Decode(call.Sequences)
}

// tally adds up the times of program calls. The loop alone uses it; the server's mutex guards sums, which others read.
type tally struct {
	times  *Times
	sums   map[CallKey]CallTimes
	ended  int64   // when the latest action ended
	idle   bool    // nothing has been done since then
	woken  After   // the idle time that the action under way ended; 0: none
	before CallKey // the latest program call
	latest Call    // of the action under way; without sequences and tokens: it has called no program
}

// begins says that there is something to do, and that the first of its requests arrived then. Behind an idle time the
// call's time begins there; otherwise the server's work between two actions counts with the second one.
func (t *tally) begins(arrived int64) {
	if t.idle {
		t.woken = AfterIdle(arrived - t.ended)
		t.ended, t.idle = max(t.ended, arrived), false
	}
}

// ends counts the program call of an action that has ended now.
func (t *tally) ends(now int64) {
	call := t.latest
	if call == (Call{}) {
		return
	}
	key, planned := t.times.Planned(call)
	key = key.Follow(t.before, t.woken)
	t.before = key
	sum := t.sums[key]
	t.sums[key] = CallTimes{CallKey: key, Calls: sum.Calls + 1, ServedNS: sum.ServedNS + now - t.ended,
		CallNS: sum.CallNS + call.NS, PlannedNS: sum.PlannedNS + planned}
	t.rests(now)
}

// rests has the time of the next call begin now.
func (t *tally) rests(now int64) { t.ended, t.woken, t.latest = now, 0, Call{} }

// all returns the sums, in order.
func (t *tally) all() []CallTimes {
	return slices.SortedFunc(maps.Values(t.sums), func(a, b CallTimes) int { return a.Compare(b.CallKey) })
}
