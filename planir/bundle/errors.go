package bundle

import (
	"errors"

	"github.com/hetc/hetc/internal/diag"
)

// Step names the check that refused a bundle; the values are the `expect:` classes of the
// test kit and appear in the code of the diagnostic ("bundle.signature").
type Step string

const (
	stepKeyring   Step = "keyring"   // the trusted keys are unusable; before any bundle is read
	stepOpen      Step = "open"      // not one regular file, too large, unreadable
	stepHeader    Step = "header"    // magic, version, flags, zeros, envelope length
	stepEnvelope  Step = "envelope"  // not the one canonical form of a DSSE envelope
	stepType      Step = "type"      // the envelope holds something else than a bundle manifest
	stepEncoding  Step = "encoding"  // base64 that is not strict
	StepSignature Step = "signature" // too few valid signatures by trusted keys
	stepManifest  Step = "manifest"  // not canonical, or a value outside its rule
	stepCompat    Step = "compat"    // needs a feature or runtime version this host lacks
	stepPolicy    Step = "policy"    // another product, another target, rolled back, expired
	stepLayout    Step = "layout"    // sizes that do not add up to the file
	stepTable     Step = "table"     // chunk digests that do not hash to the signed root
	stepCode      Step = "code"      // a blob that is copied on opening differs from its digest
	stepWeights   Step = "weights"   // a chunk of weights differs from its digest
	stepRelease   Step = "release"   // something was asked for that the manifest does not grant
)

// Error is a refusal: the step that refused and a diagnostic, of class diag.ClassVerify unless
// the file could not be read at all.
type Error struct {
	Step Step
	*diag.Diagnostic
}

// Unwrap gives diag.ClassOf, diag.HintsOf and errors.As access to the diagnostic.
func (e *Error) Unwrap() error { return e.Diagnostic }

// StepOf returns the step that refused, "" when err holds no *Error.
func StepOf(err error) Step {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Step
	}
	return ""
}

// refuse returns the refusal of a step, of class diag.ClassVerify.
func refuse(step Step, format string, args ...any) *Error {
	return refuseAs(diag.ClassVerify, step, format, args...)
}

// refuseAs returns the refusal of a step, of another class.
func refuseAs(class diag.Class, step Step, format string, args ...any) *Error {
	return &Error{step, diag.New(class, format, args...).WithCode("bundle." + string(step))}
}

// hint adds the way out.
func (e *Error) hint(format string, args ...any) *Error {
	e.Diagnostic.WithHint(format, args...)
	return e
}

// at returns err with path as the data path of its refusal, when that has none yet.
func at(path string, err error) error {
	var e *Error
	if errors.As(err, &e) && e.Path == "" {
		e.Path = path
	}
	return err
}
