package socs

import (
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

// Targets lists the catalog SoCs that plans can be emitted for, ascending: those with target data for an NPU.
func Targets() ([]string, error) {
	var out []string
	for _, name := range Catalog() {
		soc, err := Open(name)
		if err != nil {
			return nil, err
		}
		if soc.TargetNPU() != nil {
			out = append(out, name)
		}
	}
	return out, nil
}

// OpenTarget reads a SoC as Open does and refuses one without target data.
func OpenTarget(nameOrFile string) (*SoC, error) {
	soc, err := Open(nameOrFile)
	if err != nil {
		return nil, err
	}
	return soc, soc.checkTarget()
}

// TargetNPU returns the first NPU with target data, nil when there is none.
func (s *SoC) TargetNPU() *Processor {
	for i := range s.Processors {
		if proc := &s.Processors[i]; proc.Kind == KindNPU && proc.Target != nil {
			return proc
		}
	}
	return nil
}

// checkTarget reports that nothing can be emitted for the SoC.
func (s *SoC) checkTarget() error {
	hint := "write target: into its processors (docs/soc.md)"
	if names, err := Targets(); err == nil {
		hint = "catalog SoCs that have it: " + strings.Join(names, ", ") + "; in a file of yours " + hint
	}
	described := slices.ContainsFunc(s.Processors, func(proc Processor) bool { return proc.Target != nil })
	switch control := s.Processor(s.Control); {
	case !described:
		return diag.New(diag.ClassInput, "target %q: none of its processors says how the device executes it",
			s.Name).WithHint("%s", hint)
	case control.Target == nil:
		return diag.New(diag.ClassInput, "target %q: control processor %q does not say how the device executes it",
			s.Name, s.Control).WithHint("%s", hint)
	}
	return nil
}

// Restricted returns the SoC as plans for its device may use it: only processors with target data, with the operators
// and schemes that are executed there. Name, fingerprint and values are unchanged; what names other processors is left
// out. An error names what is missing, and the way out.
//
// A plan for it carries the digest of the whole SoC: take that from s.
func (s *SoC) Restricted() (*SoC, error) {
	if err := s.checkTarget(); err != nil {
		return nil, err
	}
	out := *s
	out.Processors, out.Memory, out.Links, out.Joint, out.Points = nil, nil, nil, nil, nil
	stays := func(name string) bool {
		proc := s.Processor(name)
		return proc != nil && proc.Target != nil
	}
	for _, proc := range s.Processors {
		if proc.Target == nil {
			continue
		}
		if len(proc.Target.Kinds) > 0 {
			proc.Kinds = proc.Target.Kinds
		}
		if len(proc.Target.Schemes) > 0 {
			proc.Schemes = proc.Target.Schemes
		}
		proc.Forms = proc.Target.Forms
		if !proc.Executes(op.MatMul) {
			proc.Schemes, proc.Forms = nil, nil
		}
		out.Processors = append(out.Processors, proc)
	}
	for _, domain := range s.Memory {
		domain.Processors = slices.DeleteFunc(slices.Clone(domain.Processors),
			func(name string) bool { return !stays(name) })
		out.Memory = append(out.Memory, domain)
	}
	for _, link := range s.Links {
		if stays(link.From) && stays(link.To) {
			out.Links = append(out.Links, link)
		}
	}
	for _, joint := range s.Joint {
		if !slices.ContainsFunc(joint.Processors, func(name string) bool { return !stays(name) }) {
			out.Joint = append(out.Joint, joint)
		}
	}
	for _, point := range s.Points {
		if stays(point.Processor) {
			out.Points = append(out.Points, point)
		}
	}
	return &out, nil
}
