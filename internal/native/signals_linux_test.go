//go:build !hetc_static && (amd64 || arm64)

package native

import (
	"slices"
	"sync"
	"syscall"
	"testing"
)

// takeSignal has a library's function handle a signal, as LLVM does: one that no signal reaches here.
func takeSignal(signal syscall.Signal) {
	taken := readAction(signal)
	taken[0] ^= 0x1000
	setAction(signal, &taken)
}

// Whatever a library does with signals that Go handles is undone, also while another one is at work and where the
// default action is what is left. Signals that the program ignores meanwhile and divisions by zero stay as they are.
func TestKeepSignals(t *testing.T) {
	if err := Supported(); err != nil {
		t.Skip(err)
	}
	if taken := Taken(); len(taken) > 0 {
		t.Fatalf("signals %v are a library's before the test", taken)
	}
	before := map[syscall.Signal]action{}
	for number := range signals {
		before[syscall.Signal(number)] = readAction(syscall.Signal(number))
	}
	defer func() {
		for signal, action := range before {
			setAction(signal, &action)
		}
	}()
	if before[syscall.SIGUSR2][0] != runtimeHandler || before[syscall.SIGTERM][0] != runtimeHandler {
		t.Fatal("Go's runtime does not handle SIGUSR2 and SIGTERM")
	}

	setAction(syscall.SIGALRM, &action{actionIgnore})
	var both sync.WaitGroup
	begun, ended := make(chan bool), make(chan bool)
	both.Go(func() {
		KeepSignals(func() {
			takeSignal(syscall.SIGUSR2)
			setAction(syscall.SIGTERM, &action{})            // a handler was on its way
			setAction(syscall.SIGHUP, &action{actionIgnore}) // the program's own wish
			takeSignal(syscall.SIGFPE)
			close(begun)
			<-ended
			takeSignal(syscall.SIGUSR1)
		})
	})
	<-begun
	if taken := Taken(); !slices.Contains(taken, syscall.SIGUSR2) {
		t.Errorf("signals %v are a library's, want SIGUSR2 among them", taken)
	}
	KeepSignals(func() {
		takeSignal(syscall.SIGINT)
		takeSignal(syscall.SIGALRM)
	})
	close(ended)
	both.Wait()
	for signal, want := range before {
		switch got := readAction(signal)[0]; signal {
		case syscall.SIGHUP, syscall.SIGALRM:
			if got != actionIgnore {
				t.Errorf("%v is not ignored any more", signal)
			}
		case syscall.SIGFPE:
			if got == want[0] {
				t.Error("SIGFPE was taken from the library")
			}
		default:
			if got != want[0] {
				t.Errorf("%v: handler %#x, want %#x", signal, got, want[0])
			}
		}
	}
}
