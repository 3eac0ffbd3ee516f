package solver

import (
	"cmp"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
)

// TierRoom is the room that a plan without slots leaves for them; 0 means no limit.
type TierRoom struct {
	Region int64 // bytes of the address space of their processor
	Memory int64 // bytes of the process
	Graphs int64 // different ones, -1: not one
}

// roomTries is how often tiers are decided again, with less room, because no plan with them keeps all limits.
const roomTries = 4

// smaller returns three quarters of the room.
func (r TierRoom) smaller() TierRoom {
	for i := range roomLimits {
		left := roomLimits[i].left(&r)
		*left -= *left / 4
	}
	return r
}

// limited reports whether the room is a number of bytes.
func (r TierRoom) limited() bool { return r.Region > 0 || r.Memory > 0 }

// sharedRounds is how often tiers are decided again because those of all buckets together exceed the room.
const sharedRounds = 4

// roomLimit is a limit that slots share.
type roomLimit struct {
	name   string
	left   func(room *TierRoom) *int64
	copies func(npu *socs.Processor) int64 // of the weights of an expert in a slot
}

var roomLimits = []roomLimit{
	{"the region of the processor", func(room *TierRoom) *int64 { return &room.Region },
		func(*socs.Processor) int64 { return 1 }},
	// Experts in slots have a pack of their own, beside that of all experts, and a library may copy it.
	{"the memory of the process", func(room *TierRoom) *int64 { return &room.Memory }, func(npu *socs.Processor) int64 {
		if npu.Prepacks {
			return 2
		}
		return 1
	}},
}

// tierLimit returns the limit for slots of a model's experts on a processor.
func (l *roomLimit) tierLimit(
	room TierRoom, model *models.Model, schemes []op.Scheme, npu *socs.Processor,
) problem.TierLimit {
	return problem.TierLimit{Name: l.name, Bytes: *l.left(&room), Row: slotRow(model, schemes, npu),
		Expert: l.copies(npu) * int64(len(model.ExpertLayers())) * packedExpert(model, schemes, npu)}
}

// limits returns the limits of the room that a problem of tiers has to keep.
func (r TierRoom) limits(model *models.Model, schemes []op.Scheme, npu *socs.Processor) (out []problem.TierLimit) {
	for i := range roomLimits {
		if limit := roomLimits[i].tierLimit(r, model, schemes, npu); limit.Bytes > 0 {
			out = append(out, limit)
		}
	}
	return out
}

// packedExpert returns the bytes of an expert's weights as a processor reads them.
func packedExpert(model *models.Model, schemes []op.Scheme, npu *socs.Processor) (bytes int64) {
	for _, operator := range expertOps(model, schemes, 1) {
		if operator.Kind != op.MatMul {
			continue
		}
		weight := operator.Scheme.Weight()
		spec := op.WeightSpec{K: operator.K, N: operator.N, Scheme: weight, Layout: npu.Layouts[weight]}
		size, err := pack.Bytes(spec)
		if err != nil { // a layout of a library that says nothing of its padding
			size = op.WeightBytes(weight, operator.K, operator.N)
		}
		bytes += size
	}
	return bytes
}

// slotRow returns the bytes of buffers for a row of a slot: its input, its result, and the values between the operators
// of a group if no graph joins them. All layers use the same buffers.
func slotRow(model *models.Model, schemes []op.Scheme, npu *socs.Processor) int64 {
	bytes := 2 * int64(model.Hidden) * int64(op.F32.Bytes())
	if npu.Fuses {
		return bytes
	}
	for _, operator := range expertOps(model, schemes, 1) {
		switch {
		case operator.Kind == op.QuantRows: // values, and the scale of the row
			bytes += int64(operator.N) + int64(op.F32.Bytes())
		case operator.Kind != op.MatMul || operator.N != model.Hidden:
			bytes += int64(operator.N) * int64(op.F32.Bytes())
		}
	}
	return bytes
}

// share reduces the room if the tiers of several buckets together exceed it. A processor whose graphs own their weights
// holds the experts of every bucket; other processors hold each expert once. Buckets share the buffers of groups. It
// reports whether tiers are to be decided again.
func (r *TierRoom) share(all TierRoom, tiers []planir.ExpertTiers, model *models.Model, schemes []op.Scheme,
	npu *socs.Processor) (again bool) {
	experts, own := int64(planir.MostSlotted(tiers)), int64(0)
	groups := map[int]int64{} // rows by group, the most of a bucket
	for i := range tiers {
		own += int64(tiers[i].Slots())
		for group, shape := range tiers[i].Groups {
			groups[group] = max(groups[group], int64(shape.Slots)*int64(shape.Rows))
		}
	}

	if npu.WeightsInArtifacts || npu.WeightBytes == socs.WeightsPerGraph {
		experts = own
	}

	rows := int64(0)
	for _, count := range groups {
		rows += count
	}

	for i := range roomLimits {
		limit := roomLimits[i].tierLimit(all, model, schemes, npu)
		if over := experts*limit.Expert + rows*limit.Row - limit.Bytes; limit.Bytes > 0 && over > 0 {
			left := roomLimits[i].left(r)
			*left, again = max(1, *left-over), true
		}
	}
	return again
}

// tierRoom returns the room that a plan leaves for groups of experts on a processor: bytes of its address space and of
// the process, and the fewest graphs that its limits and the time to open graphs permit.
func (s *request) tierRoom(plan *planir.Plan, npu *socs.Processor) (out TierRoom) {
	used := s.load(plan, npu)
	least := func(graphs int64) {
		if graphs = max(graphs, -1); graphs == 0 {
			graphs = -1
		}
		if out.Graphs == 0 || graphs < out.Graphs {
			out.Graphs = graphs
		}
	}

	limits := &s.in.Workload.Limits
	if most := npu.AddressBytes; most > 0 || limits.AddressBytes[npu.Name] > 0 {
		if own := int64(limits.AddressBytes[npu.Name]); own > 0 && (most == 0 || own < most) {
			most = own
		}
		out.Region = max(1, most-used.Bytes)
	}

	if most := cmp.Or(s.in.MaxMemory, int64(s.in.Workload.Memory)); most > 0 {
		// The packs of slots begin on pages, in every layer.
		pages := int64(2 * len(s.in.Model.ExpertLayers()) * planir.PageBytes)
		out.Memory = max(1, most-planir.MemoryOf(plan).Total-pages)
	}

	for _, most := range []int{npu.MaxGraphs, limits.MaxGraphs[npu.Name]} {
		if most > 0 {
			least(int64(most - used.Graphs))
		}
	}

	if each := openNS(npu); limits.OpenMS > 0 && each > 0 {
		left := price.Whole(limits.OpenMS * 1e6)
		for i := range plan.Program.Graphs {
			left -= openNS(s.in.SoC.Processor(plan.Program.Graphs[i].Proc))
		}
		least(left / each)
	}
	return out
}
