package mem

import "golang.org/x/sys/unix"

// adviceOf is what this system calls the advice that it knows.
var adviceOf = map[Advice]int{
	HugePages: unix.MADV_HUGEPAGE,
	collapse:  unix.MADV_COLLAPSE,
	unneeded:  unix.MADV_DONTNEED,
}
