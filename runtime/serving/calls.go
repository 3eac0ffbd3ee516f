package serving

import (
	"cmp"
	"maps"
	"slices"
)

// What a plan predicts of a program call is the call alone, on a machine that does nothing else, call after call. In a
// server a call takes longer: the server decides and hands over tokens around it, who reads them needs a core for a
// moment, another program's weights lie in the cache, and after an idle time the threads of processors have to wake up
// first. Therefore the server counts what each kind of call took, from the end of the call before it to its own.

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

// After is what a program call comes after. A call that follows one of another kind or size executes another program,
// whose weights are not in the cache, and often a reader has just been woken for a first token. A call that follows an
// idle time wakes cores, which sleep the deeper the longer they had nothing to do.
type After uint8

// What a call that begins when the one before it ends comes after.
const (
	AfterSame  After = iota // one of the same kind and size
	AfterOther              // any other one
)

// idleBounds part idle times, in ns: up to the first one, and so on.
var idleBounds = [...]int64{10e6, 40e6, 160e6}

// Afters is how many there are.
const Afters = int(AfterOther) + len(idleBounds) + 2

// AfterIdle returns a call that begins when its request arrives, idle ns after the call before it.
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
	return [Afters]string{"the same", "another", "idle up to 10 ms", "idle up to 40 ms", "idle up to 160 ms", "idle longer"}[a]
}

// CallKey is what program calls are told apart by.
type CallKey struct {
	Kind  CallKind
	Size  int // rows of the program of a chunk; else sequences, or tokens of the draft
	After After
}

// Follow returns the key of a call that comes after another one, or ends an idle time; 0: none.
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

// Planned returns what kind of call one is, and what the plan predicts of it, in ns.
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

// tally adds up what program calls take. It is the loop's, but for the sums, which the server's mutex guards.
type tally struct {
	times  *Times
	sums   map[CallKey]CallTimes
	ended  int64   // when the latest action ended
	idle   bool    // nothing has been done since then
	woken  After   // the idle time that the action under way ended; 0: none
	before CallKey // the latest program call
	latest Call    // of the action under way; without sequences and tokens: it has called no program
}

// begins says that there is something to do again since a request arrived. What the server did between two actions
// counts as the second one's.
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
	t.sums[key] = CallTimes{key, sum.Calls + 1, sum.ServedNS + now - t.ended, sum.CallNS + call.NS, sum.PlannedNS + planned}
	t.rests(now)
}

// rests says that what comes after now is no part of what was called before.
func (t *tally) rests(now int64) { t.ended, t.woken, t.latest = now, 0, Call{} }

// all returns the sums, in order.
func (t *tally) all() []CallTimes {
	return slices.SortedFunc(maps.Values(t.sums), func(a, b CallTimes) int { return a.Compare(b.CallKey) })
}
