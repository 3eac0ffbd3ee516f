package mem

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// adviceOf is what this system calls the advice that it knows.
var adviceOf = linuxAdvice()

func linuxAdvice() map[Advice]int {
	known := map[Advice]int{
		HugePages: unix.MADV_HUGEPAGE,
		collapse:  unix.MADV_COLLAPSE,
		unneeded:  unix.MADV_DONTNEED,
	}
	if readsLargePages() {
		known[noReadAhead] = unix.MADV_RANDOM
	}
	return known
}

// readsLargePages reports whether Linux reads a whole large page of a mapped file for one access, also where nothing is
// to be read ahead. Since 5.18 it does so where it was built with large pages, and for pages of 4 KiB, of which a large
// one is never too large for the page cache. Elsewhere it would read one page of 4 KiB at a time.
func readsLargePages() bool {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil || os.Getpagesize() != 4<<10 {
		return false
	}
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return false
	}
	return hasLargeReads(unix.ByteSliceToString(name.Release[:]))
}

// hasLargeReads reports whether a release of Linux, such as "6.18.44-generic", is 5.18 or later.
func hasLargeReads(release string) bool {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major > 5 || major == 5 && minor >= 18
}
