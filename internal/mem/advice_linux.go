package mem

import "golang.org/x/sys/unix"

var adviceOf = map[Advice]int{
	Normal:     unix.MADV_NORMAL,
	Sequential: unix.MADV_SEQUENTIAL,
	Random:     unix.MADV_RANDOM,
	WillNeed:   unix.MADV_WILLNEED,
	DontNeed:   unix.MADV_DONTNEED,
	HugePages:  unix.MADV_HUGEPAGE,
	Populate:   unix.MADV_POPULATE_READ,
}
