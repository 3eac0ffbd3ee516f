//go:build hetc_static

package native

import (
	"errors"
	"strings"
	"testing"
)

// A build without libraries says so, whatever it is asked for.
func TestNotBuiltIn(t *testing.T) {
	if Supported() == nil {
		t.Fatal("this build opens libraries")
	}
	_, errOpen := Open("libc.so.6")
	_, _, errFile := Find(Search{File: "x.so", Folder: "y"})
	_, tried, errFind := Find(Search{Folder: "y"})
	for _, err := range []error{errOpen, errFile, errFind} {
		var e *Error
		if !errors.As(err, &e) || e.Problem != NotBuiltIn || !strings.Contains(err.Error(), "built without library drivers") {
			t.Errorf("got %v", err)
		}
	}
	if tried != nil {
		t.Errorf("looked at %q", tried)
	}
}
