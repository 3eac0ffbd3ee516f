package planir

import "github.com/hetc/hetc/planir/op"

// BusyNS returns how long each processor works in one call of a program, in ns by its name, by what the plan expects of
// its steps. Nothing is there of processors that do nothing.
//
// Steps expect what their operators take alone, each with its launch, and a step that joins several pays one launch
// only. The prediction of a section knows that: a lane works no longer than its section takes, and no lane longer than
// the program.
func (p *Plan) BusyNS(program *PhaseProgram) map[string]int64 { return p.busyNS(program, true) }

// BusyWithoutLogitsNS is BusyNS of a call that computes no logits: a chunk of a prompt that is not the last one.
func (p *Plan) BusyWithoutLogitsNS(program *PhaseProgram) map[string]int64 {
	return p.busyNS(program, false)
}

// busyNS is BusyNS, with the sections that compute logits or without.
func (p *Plan) busyNS(program *PhaseProgram, logits bool) map[string]int64 {
	predicted := p.PredictionOf(program.Name)
	out := map[string]int64{}
	for i := range program.Sections {
		section := &program.Sections[i]
		if section.Logits && !logits {
			continue
		}
		layers := int64(max(1, section.Layers))
		for _, lane := range section.Lanes {
			ns := int64(0)
			for j := range lane.Steps {
				ns += lane.Steps[j].ExpectNS
			}
			if predicted != nil && len(predicted.Sections) == len(program.Sections) {
				ns = min(ns, predicted.Sections[i].NS)
			}
			if ns > 0 {
				out[lane.Proc] += layers * ns
			}
		}
	}
	if predicted != nil && predicted.PlanNS > 0 {
		for proc, ns := range out {
			out[proc] = min(ns, predicted.PlanNS)
		}
	}
	return out
}

// PredictionOf returns what the plan predicts of a program, nil where it predicts nothing.
func (p *Plan) PredictionOf(program string) *Prediction {
	for i := range p.Predictions {
		if p.Predictions[i].Program == program {
			return &p.Predictions[i]
		}
	}
	return nil
}

// DecodeBytes returns how many bytes of packed matrices one decoded token reads; of experts it counts as
// many as a token is sent to.
func (p *Plan) DecodeBytes() int64 {
	packs := map[string]*Pack{}
	for i := range p.Program.Packs {
		packs[p.Program.Packs[i].Name] = &p.Program.Packs[i]
	}
	first := map[string]*op.Op{} // of each graph
	for i := range p.Program.Graphs {
		graph := &p.Program.Graphs[i]
		first[graph.Name] = &graph.Graph.Nodes[0].Op
	}
	var sum int64
	for _, ph := range p.Program.Programs {
		if ph.Rows != 1 {
			continue
		}
		for _, sec := range ph.Sections {
			for _, lane := range sec.Lanes {
				for _, st := range lane.Steps {
					for _, ref := range st.W {
						pack, operator := packs[ref.Pack], first[st.Run]
						// Of a table a token reads one row, which counts for nothing. A tied model's table is the
						// matrix of its head.
						if pack.Layout == op.RowsLayout || operator.Kind == op.Embed {
							continue
						}
						// A step reads columns C0 to C1 of a pack that holds N0 to N1.
						bytes := pack.Bytes * int64(ref.C1-ref.C0) / int64(pack.N1-pack.N0)
						if pack.Experts > 0 {
							bytes = bytes / int64(pack.Experts) * int64(min(operator.Fan, pack.Experts))
						}
						sum += bytes * int64(max(1, sec.Layers))
					}
				}
			}
		}
	}
	return sum
}
