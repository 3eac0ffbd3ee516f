// Package diag knows what a diagnostic is: a severity, a stable code, one sentence,
// where in the data it applies, and the way out.
//
// A Diagnostic is an error. Its Class decides the exit code of a command, so that
// scripts can branch without reading text.
package diag

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
)

// Class groups failures by what the user has to do about them. The numeric value is
// the exit code of hetc and hetrun; it never changes once released.
type Class int

const (
	ClassInternal    Class = 1 // a defect of hetc, or an error without a class
	ClassUsage       Class = 2 // wrong command line
	ClassInput       Class = 3 // a file that is missing, malformed or inconsistent
	ClassUnavailable Class = 4 // a library, device or feature this machine or build lacks
	ClassVerify      Class = 5 // signature, digest or trust failure
	ClassInfeasible  Class = 6 // no plan satisfies the limits
	ClassIllegal     Class = 7 // a plan that breaks a rule
	ClassRun         Class = 8 // execution failed, or its check against the reference did
	ClassIO          Class = 9 // reading or writing failed (disk full, permissions)
	ClassInterrupted Class = 130
)

// String returns the word for the class in documents for programs.
func (c Class) String() string {
	switch c {
	case ClassUsage:
		return "usage"
	case ClassInput:
		return "input"
	case ClassUnavailable:
		return "unavailable"
	case ClassVerify:
		return "verify"
	case ClassInfeasible:
		return "infeasible"
	case ClassIllegal:
		return "illegal"
	case ClassRun:
		return "run"
	case ClassIO:
		return "io"
	case ClassInterrupted:
		return "interrupted"
	}
	return "internal"
}

// Severity tells whether a diagnostic stops the operation.
type Severity int

const (
	Error Severity = iota
	Warning
)

// String returns the word in front of a message.
func (s Severity) String() string {
	if s == Warning {
		return "warning"
	}
	return "error"
}

// Diagnostic is one finding. The zero Severity is Error, the zero Class counts as ClassInternal.
type Diagnostic struct {
	Severity Severity `json:"-"`
	Class    Class    `json:"-"`
	Code     string   `json:"code,omitempty"` // stable: "P003", "soc.unknown-key"
	Summary  string   `json:"summary"`        // lower case, no full stop
	Path     string   `json:"path,omitempty"` // "plan.yaml:12", "programs[2].lanes.npu[3]"
	Hint     string   `json:"hint,omitempty"` // what to do
	cause    error    // what New was given with %w; its text is already in Summary
}

// Error renders path, code and summary on one line; the hint is left to the caller.
func (d *Diagnostic) Error() string {
	var out strings.Builder
	if d.Path != "" {
		out.WriteString(d.Path)
		out.WriteString(": ")
	}
	if d.Code != "" {
		out.WriteString(d.Code)
		out.WriteString(": ")
	}
	out.WriteString(d.Summary)
	return out.String()
}

// Unwrap returns the cause.
func (d *Diagnostic) Unwrap() error { return d.cause }

// New returns an error of class c whose sentence is formatted as by fmt.Errorf; a cause
// given with %w stays reachable for errors.Is and errors.As.
func New(class Class, format string, args ...any) *Diagnostic {
	err := fmt.Errorf(format, args...)
	// Also one that another process made up: it must not be an exit code of success.
	if class.String() == ClassInternal.String() {
		class = ClassInternal
	}
	return &Diagnostic{Class: class, Summary: err.Error(), cause: errors.Unwrap(err)}
}

// WithHint sets the way out and returns d.
func (d *Diagnostic) WithHint(format string, args ...any) *Diagnostic {
	d.Hint = fmt.Sprintf(format, args...)
	return d
}

// WithCode sets the stable code and returns d.
func (d *Diagnostic) WithCode(code string) *Diagnostic { d.Code = code; return d }

// At sets the data path and returns d.
func (d *Diagnostic) At(format string, args ...any) *Diagnostic {
	d.Path = fmt.Sprintf(format, args...)
	return d
}

// List is several diagnostics; it is an error when it holds at least one of severity Error.
type List []*Diagnostic

// Err returns nil when no element is an Error, the element when there is exactly one, else the list.
func (l List) Err() error {
	var errs List
	for _, diagnostic := range l {
		if diagnostic.Severity == Error {
			errs = append(errs, diagnostic)
		}
	}
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return errs
}

// Error renders one diagnostic per line.
func (l List) Error() string {
	lines := make([]string, len(l))
	for i, diagnostic := range l {
		lines[i] = diagnostic.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives errors.Is and errors.As access to every element.
func (l List) Unwrap() []error {
	out := make([]error, len(l))
	for i, diagnostic := range l {
		out[i] = diagnostic
	}
	return out
}

// Sort orders by path, then code, then summary, so that output does not depend on the order of checks.
func (l List) Sort() {
	sort.SliceStable(l, func(i, j int) bool {
		left, right := l[i], l[j]
		if left.Path != right.Path {
			return left.Path < right.Path
		}
		if left.Code != right.Code {
			return left.Code < right.Code
		}
		return left.Summary < right.Summary
	})
}

// ClassOf returns the class of the first diagnostic in err's chain, ClassInternal when there is none.
func ClassOf(err error) Class {
	var diagnostic *Diagnostic
	if errors.As(err, &diagnostic) && diagnostic.Class != 0 {
		return diagnostic.Class
	}
	return ClassInternal
}

// ClassOr returns the class of err, or fallback for an error without one.
func ClassOr(err error, fallback Class) Class {
	if class := ClassOf(err); class != ClassInternal {
		return class
	}
	return fallback
}

// HintsOf returns every distinct hint in err's chain, outermost first.
func HintsOf(err error) []string {
	var out []string
	for _, diagnostic := range All(err) {
		if diagnostic.Hint != "" && !slices.Contains(out, diagnostic.Hint) {
			out = append(out, diagnostic.Hint)
		}
	}
	return out
}

// All returns every diagnostic in err's chain, outermost first, with those that other errors turn into by As.
func All(err error) List {
	var out List
	var walk func(error)
	walk = func(err error) {
		if err == nil {
			return
		}
		if diagnostic, ok := err.(*Diagnostic); ok {
			out = append(out, diagnostic)
		} else if as, ok := err.(interface{ As(any) bool }); ok {
			var diagnostic *Diagnostic
			if as.As(&diagnostic) && diagnostic != nil {
				out = append(out, diagnostic)
			}
		}
		switch wrapper := err.(type) {
		case interface{ Unwrap() error }:
			walk(wrapper.Unwrap())
		case interface{ Unwrap() []error }:
			for _, cause := range wrapper.Unwrap() {
				walk(cause)
			}
		}
	}
	walk(err)
	return out
}
