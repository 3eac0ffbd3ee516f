package solver

import (
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/solver/price"
)

// DefaultWorkingMemory is the most that a solve keeps in memory if its input does not say.
const DefaultWorkingMemory = 1 << 30

// cachedPart is the part of the working memory that posed problems take at most while other plans are looked at, one
// in so many.
const cachedPart = 8

// memoryBudget counts the bytes that a solve keeps: candidates, problems, combinations of schemes. It adds up lengths
// times sizes, and never asks the system or the garbage collector, so decisions that depend on it are the same on every
// machine. Several sessions share one.
type memoryBudget struct {
	limit, held, peak int64
	joints            map[planir.Solve]int64 // objectives of joint problems, as engines have them
}

// newMemoryBudget returns the budget of a solve, with the limit of its input.
func newMemoryBudget(in *Input) *memoryBudget {
	limit := in.WorkingMemory
	if limit == 0 {
		limit = DefaultWorkingMemory
	}
	return &memoryBudget{limit: limit, joints: map[planir.Solve]int64{}}
}

// reserve counts bytes that are kept from now on.
func (b *memoryBudget) reserve(bytes int64) {
	b.held += bytes
	b.peak = max(b.peak, b.held)
}

// release counts bytes that are no longer kept.
func (b *memoryBudget) release(bytes int64) { b.held -= bytes }

// exceededBy reports whether the kept bytes and more bytes to come exceed the limit.
func (b *memoryBudget) exceededBy(more int64) bool { return b.held+more > b.limit }

// remaining returns how much an engine may keep beside bytes that are needed for a while.
func (b *memoryBudget) remaining(bytes int64) int64 { return max(1, b.limit-b.held-bytes) }

// check returns an error of class ClassUnavailable if more is kept than is permitted. It does not mean that no plan
// exists.
func (b *memoryBudget) check(what string) error {
	return b.checkWith(0, what)
}

// checkWith does what check does, with bytes that are needed for a while.
func (b *memoryBudget) checkWith(bytes int64, what string) error {
	b.peak = max(b.peak, b.held+bytes)
	if !b.exceededBy(bytes) {
		return nil
	}
	return diag.New(diag.ClassUnavailable, "solve: %s take more working memory than the %v that are permitted",
		what, unit.Bytes(b.limit)).
		WithHint("permit more with --working-memory, or fewer schemes, buckets or batches in the workload")
}

// reserve counts bytes that are kept until close.
func (s *pricing) reserve(bytes int64) {
	s.kept += bytes
	s.budget.reserve(bytes)
}

// close releases what the session keeps. It may be used again all the same; what it then takes counts again.
func (s *pricing) close() {
	s.dropPrograms()
	s.budget.release(s.kept)
	s.kept = 0
}

// Sizes in bytes of kept structures on machines of 64 bits, each with what it points to.
const (
	candidateBytes = 384
	shareBytes     = 104 + 40 // with its estimate
	accessBytes    = 168
	choiceBytes    = 88
	classBytes     = 40
	nodeBytes      = 640 // of an expanded section
	pointBytes     = 64
	rankedBytes    = 48
	pairBytes      = 48
	needBytes      = 96
	useBytes       = 192
	bufferBytes    = 56
	assetBytes     = 160
	leastBytes     = 160 // of a section's cost, with its key
	itemBytes      = 200
	placeBytes     = 56
	reducedBytes   = 24
	branchBytes    = 120 // of what is known of a fork or a branch
	contendedBytes = 40
)

// candidateSize returns the bytes that a candidate keeps.
func candidateSize(candidate *price.Candidate) int64 {
	return candidateBytes + int64(len(candidate.Shares))*shareBytes +
		int64(len(candidate.Reads)+len(candidate.Writes))*accessBytes
}

// candidatesBytes returns what all candidates of a list keep.
func candidatesBytes(list []price.Candidate) (bytes int64) {
	for i := range list {
		bytes += candidateSize(&list[i])
	}
	return bytes
}

// bytes returns what an instance keeps beside candidates and items: the ways through its forks.
func (in *instance) bytes() (bytes int64) {
	for i := range in.posed.Items {
		item := &in.posed.Items[i]
		bytes += itemBytes
		if len(item.Choices) > len(in.chain.Items[i].Choices) {
			bytes += int64(len(item.Choices))*(choiceBytes+32) + int64(len(item.EdgeNS))*(24+8*int64(len(item.Before)))
		}
	}
	return bytes
}

// needsBytes returns what an instance keeps of what its candidates need.
func needsBytes(all [][][]need) (bytes int64) {
	for _, list := range all {
		for _, needs := range list {
			for i := range needs {
				need := &needs[i]
				bytes += needBytes + int64(len(need.graph)) + int64(len(need.weights))*useBytes +
					int64(len(need.buffers))*bufferBytes
			}
		}
	}
	return bytes
}

// sectionsBytes returns what expanded sections keep.
func sectionsBytes(list []lower.Section) (bytes int64) {
	for i := range list {
		bytes += int64(len(list[i].Nodes)) * nodeBytes
	}
	return bytes
}

// bytes returns what the choices of a node keep beside its candidates.
func (c *nodeChoices) bytes() (bytes int64) {
	for i := range c.choices {
		bytes += choiceBytes + int64(len(c.choices[i].Label)+8*len(c.choices[i].Procs)) + 8
	}
	for i := range c.after {
		bytes += classBytes + int64(len(c.after[i])) + int64(len(c.places[i]))*placeBytes
	}
	return bytes
}

// bytes returns what an item keeps beside the choices.
func (x *item) bytes() int64 {
	bytes := itemBytes + int64(len(x.Choices))*choiceBytes
	for _, name := range x.Before {
		bytes += classBytes + int64(len(name))
	}
	return bytes + int64(len(x.EdgeNS))*(24+8*int64(len(x.Before)))
}

// bytes returns what a solved branch keeps.
func (b *branch) bytes() int64 {
	bytes := branchBytes + 12*int64(len(b.ns)) + 12*int64(len(b.handed))
	for _, list := range b.choices {
		bytes += 48 + 8*int64(len(list))
	}
	return bytes
}

// bytes returns what a joint problem keeps: its choices with their assets.
func (j *joint) bytes() (bytes int64) {
	for part := range j.Parts {
		for _, chain := range j.Parts[part].Partition.Chains {
			for i := range chain.Items {
				for _, choice := range chain.Items[i].Choices {
					bytes += choiceBytes + 8*int64(len(choice.Assets))
				}
			}
		}
	}
	return bytes + int64(len(j.Assets))*assetBytes
}

// keepProgram caches a posed program.
func (s *pricing) keepProgram(key programKey, posed *program) error {
	s.programs[key] = posed
	bytes := sectionsBytes(posed.sections)
	for _, in := range posed.instances {
		if !in.counted {
			in.counted = true
			bytes += in.bytes()
		}
	}
	s.reserveCached(bytes)
	return s.budget.check("the problems of a plan")
}

// reserveCached counts bytes of posed programs, which dropPrograms releases.
func (s *pricing) reserveCached(bytes int64) {
	s.cached += bytes
	s.budget.reserve(bytes)
}

// trimPrograms drops the posed programs where they take too much memory, before those of another plan are posed.
func (s *pricing) trimPrograms() {
	if s.cached > s.budget.limit/cachedPart {
		s.dropPrograms()
	}
}

// dropPrograms drops all posed programs and their sections. Those in use elsewhere stay alive by themselves.
func (s *pricing) dropPrograms() {
	s.programs, s.instances, s.leasts = map[programKey]*program{}, map[string]*instance{}, map[string][]int64{}
	s.branchCaches, s.forkCaches = map[string]*branchCache{}, map[string]*forkCache{}
	s.budget.release(s.cached)
	s.cached = 0
}
