package diag

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"testing"
)

func TestDiagnosticIsAnError(t *testing.T) {
	d := New(ClassInput, "read %q: %w", "x", io.ErrUnexpectedEOF).WithHint("copy it again").WithCode("x.cut").At("file:%d", 3)
	if got, want := d.Error(), `file:3: x.cut: read "x": unexpected EOF`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	wrapped := fmt.Errorf("open: %w", d)
	if !errors.Is(wrapped, io.ErrUnexpectedEOF) || ClassOf(wrapped) != ClassInput {
		t.Errorf("cause or class of %v is lost", wrapped)
	}
	if ClassOf(io.EOF) != ClassInternal {
		t.Errorf("an unclassified error has class %d, want %d", ClassOf(io.EOF), ClassInternal)
	}
}

func TestHints(t *testing.T) {
	inner := New(ClassInput, "inner").WithHint("b")
	outer := New(ClassRun, "outer: %w", inner).WithHint("a")
	both := errors.Join(outer, New(ClassInput, "other").WithHint("b"), New(ClassInput, "last").WithHint("c"))
	if got, want := HintsOf(both), []string{"a", "b", "c"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestList(t *testing.T) {
	warning := &Diagnostic{Severity: Warning, Summary: "w"}
	one := New(ClassInput, "one").At("b")
	two := New(ClassIllegal, "two").At("a")
	if err := (List{warning}).Err(); err != nil {
		t.Errorf("a list of warnings is the error %v", err)
	}
	if err := (List{warning, one}).Err(); err != error(one) {
		t.Errorf("got %v, want the only error", err)
	}
	l := List{one, two}
	l.Sort()
	if got, want := l.Err().Error(), "a: two\nb: one"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if ClassOf(l.Err()) != ClassIllegal {
		t.Errorf("class %d, want the first element's", ClassOf(l.Err()))
	}
}

// library is an error of another package that turns into a diagnostic.
type library struct{}

func (library) Error() string { return "no library" }
func (library) As(target any) bool {
	d, ok := target.(**Diagnostic)
	if ok {
		*d = New(ClassUnavailable, "no library").WithHint("fetch it")
	}
	return ok
}

// An error that turns into a diagnostic counts as one, wherever it is wrapped.
func TestAllWithAs(t *testing.T) {
	err := New(ClassRun, "open: %w", fmt.Errorf("processor: %w", library{})).WithHint("look")
	if got := HintsOf(err); !reflect.DeepEqual(got, []string{"look", "fetch it"}) {
		t.Errorf("hints %q", got)
	}
	if got := ClassOf(fmt.Errorf("open: %w", library{})); got != ClassUnavailable {
		t.Errorf("class %v", got)
	}
}
