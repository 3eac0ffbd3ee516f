//go:build !hetc_static && (amd64 || arm64)

package native

import (
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// KeepSignals calls work, which loads a library or has it compile something, and gives signals back to Go's runtime
// that the library has taken over meanwhile.
//
// LLVM, which compilers of kernels are made of, takes every signal that ends a process, SIGTERM and SIGUSR2 among them,
// when it is loaded, to remove temporary files. The system goes back to the default action as soon as one of its
// handlers begins: another such signal, to another thread and before the handler has restored what was there, ends the
// process, although the program catches it. LLVM takes them once, so that what is given back stays.
// RATIONALE: What do libraries do with signals?
func KeepSignals(work func()) {
	actions.enter()
	defer actions.leave()
	work()
}

// signals are numbered from 1; those from 32 on belong to threads' libraries.
const signals = 32

// action is what the system's kernel knows of a signal: the handler, flags, the way back, and a mask. The handler is
// actionDefault, actionIgnore, or the address of a function.
type action [4]uintptr

const (
	actionDefault = 0
	actionIgnore  = 1
)

// runtimeHandler is the function by which Go's runtime handles signals: all of them by the same one. SIGURG is its own.
var runtimeHandler = readAction(syscall.SIGURG)[0]

// actions are those before the first of the libraries that are at work began.
var actions keptActions

type keptActions struct {
	mu     sync.Mutex
	users  int
	before [signals]action
}

func (k *keptActions) enter() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.users++; k.users > 1 {
		return
	}
	for number := range signals {
		k.before[number] = readAction(syscall.Signal(number))
	}
}

// leave restores what Go's runtime handled before, and what was ignored, as hangups are under nohup. What the program
// itself asks for meanwhile leaves the runtime's handler in place or ignores the signal.
func (k *keptActions) leave() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.users--
	for number, before := range k.before {
		if before[0] != runtimeHandler && before[0] != actionIgnore || kept(syscall.Signal(number)) {
			continue
		}
		if now := readAction(syscall.Signal(number))[0]; now != runtimeHandler && now != actionIgnore {
			setAction(syscall.Signal(number), &before)
		}
	}
}

// kept reports whether libraries may handle a signal. Implementations of OpenCL on CPUs step over divisions by zero in
// kernels, whose result is undefined, and hand on what is none.
func kept(signal syscall.Signal) bool { return signal == syscall.SIGFPE }

// readAction returns a signal's action; the zero value, for the default, where there is no such signal.
func readAction(signal syscall.Signal) (out action) {
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(signal), 0, uintptr(unsafe.Pointer(&out)), maskBytes, 0, 0)
	return out
}

// setAction gives a signal an action that it had before, which the system does not refuse.
func setAction(signal syscall.Signal, to *action) {
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(signal), uintptr(unsafe.Pointer(to)), 0, maskBytes, 0, 0)
}

// maskBytes is the size of a mask of signals.
const maskBytes = 8

// Taken lists the signals that Go's runtime has handled and a library handles now, but for those that it may.
func Taken() (list []syscall.Signal) {
	for number := range signals {
		signal := syscall.Signal(number)
		now := readAction(signal)[0]
		ours := now == actionDefault || now == actionIgnore || now == runtimeHandler
		if !ours && !kept(signal) {
			list = append(list, signal)
		}
	}
	return list
}
