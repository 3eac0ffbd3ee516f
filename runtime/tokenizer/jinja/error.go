package jinja

import (
	"fmt"
	"strings"
)

// Error is what is wrong with a template, or went wrong while it was executed.
type Error struct {
	Line    int // in the template, 0 if unknown
	Message string
	Cause   error // ErrLimit, errRefused, the error of the context, or nil
}

// Unwrap lets errors.Is tell limits, refusals and cancellations from mistakes of the template.
func (e *Error) Unwrap() error { return e.Cause }

// Error tells the line where it is known.
func (e *Error) Error() string {
	if e.Line == 0 {
		return e.Message
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.Message)
}

// throw panics with an Error, which catch turns into a result. Nothing else panics in this package.
func throw(line int, cause error, format string, args ...any) {
	panic(&Error{line, fmt.Sprintf(format, clipped(args)...), cause})
}

// clipped shortens the texts of a message, which come from the template and have any length.
func clipped(args []any) []any {
	const most = 300 // bytes
	for i, arg := range args {
		if text, ok := arg.(string); ok && len(text) > most {
			args[i] = strings.ToValidUTF8(text[:most], "") + "..."
		}
	}
	return args
}

// catch turns a thrown Error into a result. Every exported function that can fail defers it.
func catch(err *error) {
	switch thrown := recover().(type) {
	case nil:
	case *Error:
		*err = thrown
	default:
		panic(thrown)
	}
}
