package planir

// BusyNS is how long each processor works in one call of a program, in ns by its name, by what the plan expects of its
// steps. Nothing is there of processors that do nothing.
//
// Steps expect what their operators take alone, each with its launch, and a step that joins several pays one launch
// only. The prediction of a section knows that: a lane works no longer than its section takes, and no lane longer than
// the program.
func (p *Plan) BusyNS(program *PhaseProgram) map[string]int64 {
	predicted := p.PredictionOf(program.Name)
	out := map[string]int64{}
	for i := range program.Sections {
		section := &program.Sections[i]
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

// PredictionOf is what the plan predicts of a program, nil where it predicts nothing.
func (p *Plan) PredictionOf(program string) *Prediction {
	for i := range p.Predictions {
		if p.Predictions[i].Program == program {
			return &p.Predictions[i]
		}
	}
	return nil
}
