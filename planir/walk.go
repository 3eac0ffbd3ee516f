package planir

import (
	"fmt"
	"iter"
)

// sectionAt is a section with the program it belongs to.
type sectionAt struct {
	*Section
	program  *PhaseProgram
	index    [2]int // of the program among All, of the section in it
	programs *Program
}

// path returns the data path of the section.
func (s sectionAt) path() string {
	return fmt.Sprintf("%s.sections[%d]", s.programs.path(s.index[0]), s.index[1])
}

// path returns the data path of program number i of All.
func (p *Program) path(i int) string {
	switch beside := i - len(p.Programs); {
	case beside < 0:
		return fmt.Sprintf("program.programs[%d]", i)
	case beside < len(p.Beside):
		return fmt.Sprintf("program.beside[%d]", beside)
	default:
		return fmt.Sprintf("program.in_flight[%d]", beside-len(p.Beside))
	}
}

// All walks all programs with their numbers: Programs, then Beside, then InFlight.
func (p *Program) All() iter.Seq2[int, *PhaseProgram] {
	return func(yield func(int, *PhaseProgram) bool) {
		for i := range p.Programs {
			if !yield(i, &p.Programs[i]) {
				return
			}
		}
		for i := range p.Beside {
			if !yield(len(p.Programs)+i, &p.Beside[i]) {
				return
			}
		}
		for i := range p.InFlight {
			if !yield(len(p.Programs)+len(p.Beside)+i, &p.InFlight[i]) {
				return
			}
		}
	}
}

// stepAt is a step with what it belongs to.
type stepAt struct {
	*Step
	program *PhaseProgram
	section sectionAt
	lane    *Lane
	index   [2]int // of the lane in the section, of the step in the lane
}

// path returns the data path of a part of the step, "" for the step itself.
func (s stepAt) path(part string) string {
	return fmt.Sprintf("%s.lanes[%d].steps[%d]%s", s.section.path(), s.index[0], s.index[1], part)
}

// sections walks the sections of all programs in order.
func (p *Program) sections() iter.Seq[sectionAt] {
	return func(yield func(sectionAt) bool) {
		for i, program := range p.All() {
			for j := range program.Sections {
				if !yield(sectionAt{&program.Sections[j], program, [2]int{i, j}, p}) {
					return
				}
			}
		}
	}
}

// steps walks the steps of a section, lane by lane.
func (s sectionAt) steps() iter.Seq[stepAt] {
	return func(yield func(stepAt) bool) {
		for i := range s.Lanes {
			lane := &s.Lanes[i]
			for j := range lane.Steps {
				if !yield(stepAt{&lane.Steps[j], s.program, s, lane, [2]int{i, j}}) {
					return
				}
			}
		}
	}
}

// steps walks the steps of all programs, section by section and lane by lane.
func (p *Program) steps() iter.Seq[stepAt] {
	return func(yield func(stepAt) bool) {
		for section := range p.sections() {
			for step := range section.steps() {
				if !yield(step) {
					return
				}
			}
		}
	}
}
