package planir

// FedByControl reports whether the control thread gives an asynchronous processor its calls. That thread must be free
// to feed it whenever a flag is set or the processor is done, so it does not compute while lanes of other threads and
// this one wait for each other: in every section in which it computes, only its own lanes meet the processor's.
// Otherwise the processor has a thread of its own, which sleeps nearly always. onControl reports whether the control
// thread computes what a processor is given.
// RATIONALE: Which thread feeds a GPU?
func (p *Plan) FedByControl(proc string, onControl func(proc string) bool) bool {
	if p.Beside != nil && p.Beside.Prefill == proc {
		return false // it works beside the control thread's calls
	}
	for _, program := range p.Program.All() {
		for i := range program.Sections {
			section := &program.Sections[i]
			if section.computesOn(onControl) && section.meetsBeyond(proc, onControl) {
				return false
			}
		}
	}
	return true
}

// computesOn reports whether a section has lanes of certain processors.
func (s *Section) computesOn(among func(proc string) bool) bool {
	for i := range s.Lanes {
		if among(s.Lanes[i].Proc) {
			return true
		}
	}
	return false
}

// meetsBeyond reports whether a processor waits in the section for one beyond those, or such a one for it.
func (s *Section) meetsBeyond(proc string, among func(proc string) bool) bool {
	setter := map[int]string{}
	for _, lane := range s.Lanes {
		for _, step := range lane.Steps {
			if step.Set != nil {
				setter[*step.Set] = lane.Proc
			}
		}
	}
	for _, lane := range s.Lanes {
		for _, step := range lane.Steps {
			for _, wait := range step.Wait {
				one, other := lane.Proc, setter[wait.Flag]
				if other == proc {
					one, other = other, one
				}
				if one == proc && other != proc && !among(other) {
					return true
				}
			}
		}
	}
	return false
}
