package mem

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/hetc/hetc/internal/diag"
)

// Pages of a mapped file go away when another process truncates the file, and an access to them is then a signal. Where
// debug.SetPanicOnFault is on, which counts for one goroutine, the Go runtime turns the signal into a panic that holds
// the address, in assembly as well; not in a native library. Such a panic says something about the file only when the
// address lies in a mapping of one: everywhere else it is a defect, which must end the program with its trace.

// fragile are the regions in which a fault is expected: mappings of files and regions with a guard page.
var fragile struct {
	sync.Mutex
	spans map[*Region]span
}

// span is a range of addresses, to excluded.
type span struct{ from, to uintptr }

// remember notes where a region is, so that a fault in it can be told from any other.
func remember(region *Region) {
	if len(region.whole) == 0 {
		return
	}
	from := Address(region.whole)
	fragile.Lock()
	defer fragile.Unlock()
	if fragile.spans == nil {
		fragile.spans = map[*Region]span{}
	}
	fragile.spans[region] = span{from, from + uintptr(len(region.whole))}
}

// forget undoes remember before the region is released.
func forget(region *Region) {
	fragile.Lock()
	defer fragile.Unlock()
	delete(fragile.spans, region)
}

// expected reports whether an address lies in a fragile region.
func expected(address uintptr) bool {
	fragile.Lock()
	defer fragile.Unlock()
	for _, region := range fragile.spans {
		if region.from <= address && address < region.to {
			return true
		}
	}
	return false
}

// Fault is an access to a page of a region that is not there: of a file that was truncated or cannot be read, or a
// guard page.
type Fault struct{ Address uintptr }

// Error names the address that could not be read.
func (f *Fault) Error() string { return fmt.Sprintf("no memory at address %#x", f.Address) }

// IsFault reports whether err comes from a Fault.
func IsFault(err error) bool {
	var fault *Fault
	return errors.As(err, &fault)
}

// Recovered turns what recover returned into an error of class ClassIO that wraps a *Fault, when it is an access fault
// inside a mapped file or at a guard page, or a *Fault that was thrown again. nil stays nil. Every other panic goes on.
func Recovered(thrown any) error {
	if thrown == nil {
		return nil
	}
	fault, ok := thrown.(*Fault)
	if !ok {
		addressed, has := thrown.(interface{ Addr() uintptr }) // only faults have it
		if !has || !expected(addressed.Addr()) {
			panic(thrown)
		}
		fault = &Fault{addressed.Addr()}
	}
	return diag.New(diag.ClassIO, "memory fault: %w", fault).
		WithHint("the mapped file was probably truncated while in use")
}

// CatchFault runs f and turns an access fault inside a mapped file (one that was truncated) or at a guard page into an
// error, as Recovered does. Other panics pass through. It covers only code that runs on f's own goroutine.
// RATIONALE: Why are not all faults caught?
func CatchFault(body func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := Recovered(recover()); fault != nil {
			err = fault
		}
	}()
	body()
	return nil
}
