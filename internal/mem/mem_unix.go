//go:build linux || darwin || freebsd

package mem

import (
	"errors"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hetc/hetc/internal/diag"
)

// alloc maps anonymous memory. Large allocations ask for large pages. In a virtual machine each page takes two walks of
// page tables: hetc probe read one core's memory at 28 GB/s instead of 26, and a loop that fetches less far ahead at 28
// instead of 17.
func alloc(bytes, align int) (*Region, error) {
	if bytes < largeAlloc {
		return allocSmall(bytes, align)
	}
	region, err := allocSmall(bytes, max(align, largePage))
	if err != nil {
		return nil, err
	}
	// not the rest, whose page would hold memory that was not asked for
	if err := region.advise(0, bytes/largePage*largePage, HugePages); err != nil {
		return nil, errors.Join(err, region.Close())
	}
	return region, nil
}

// allocSmall maps anonymous memory. An alignment beyond a page is cut out of a larger mapping.
func allocSmall(bytes, align int) (*Region, error) {
	extra := 0
	if align > os.Getpagesize() {
		extra = align
	}
	whole, err := unix.Mmap(-1, 0, bytes+extra, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, err
	}
	release := func() error { return unix.Munmap(whole) }
	return &Region{data: alignUp(whole, bytes, align), whole: whole, release: release}, nil
}

// mapFile maps a file for reading, shared with other processes. What of a large file is not in memory yet comes in large
// pages, where the file system has them. Nothing is read ahead of them: that comes in small pages, beside which there is
// no room for a large one.
// RATIONALE: In which pages do weights lie?
func mapFile(file *os.File, bytes int) (*Region, error) {
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	var whole []byte
	var mapErr error
	if err := conn.Control(func(fd uintptr) {
		whole, mapErr = unix.Mmap(int(fd), 0, bytes, unix.PROT_READ, unix.MAP_SHARED)
	}); err != nil {
		return nil, err
	}
	if mapErr != nil {
		return nil, mapErr
	}
	release := func() error {
		drop(whole)
		return unix.Munmap(whole)
	}
	region := &Region{data: whole, whole: whole, release: release}
	if bytes >= largeAlloc {
		for _, advice := range []Advice{HugePages, noReadAhead} {
			if err := region.advise(0, bytes, advice); err != nil {
				return nil, errors.Join(err, region.Close())
			}
		}
	}
	return region, nil
}

// dropPiece is the least that a thread takes the pages of out of a mapping.
const dropPiece = 32 << 20

// drop takes the pages of a large mapped file out of the process, on several cores. Unmapping does it on one: for
// 480 MB in 13 ms, or in 2 where the page cache has large pages.
func drop(whole []byte) {
	advice, known := adviceOf[unneeded]
	if !known || len(whole) < 2*dropPiece {
		return
	}
	const pieces = 8
	each := max(dropPiece, (len(whole)/pieces+largePage-1)/largePage*largePage)
	var all sync.WaitGroup
	for piece := range slices.Chunk(whole, each) {
		all.Go(func() { _ = unix.Madvise(piece, advice) }) // what fails is left to unmapping
	}
	all.Wait()
}

// guarded maps memory with an inaccessible page directly behind it, or before it, so that an access
// beyond the end faults.
func guarded(bytes int, before bool) (*Region, error) {
	page := os.Getpagesize()
	usable := (bytes + page - 1) / page * page
	whole, err := unix.Mmap(-1, 0, usable+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, diag.New(diag.ClassIO, "allocate %d guarded bytes: %w", bytes, err)
	}
	data, fence := whole[usable-bytes:usable:usable], whole[usable:]
	if before {
		data, fence = whole[page:page+bytes:page+bytes], whole[:page]
	}
	region := &Region{data: data, whole: whole, release: func() error { return unix.Munmap(whole) }}
	if err := unix.Mprotect(fence, unix.PROT_NONE); err != nil {
		return nil, errors.Join(diag.New(diag.ClassIO, "protect the guard page: %w", err), region.Close())
	}
	return region, nil
}

// advise passes a hint about a range to the kernel. A kernel that does not know the hint, or may not be asked, is no
// error.
func (r *Region) advise(offset, bytes int, kind Advice) error {
	advice, known := adviceOf[kind]
	if !known {
		return nil
	}
	// madvise wants whole pages: widen to the pages that hold the range, inside the mapping.
	page := os.Getpagesize()
	start := offset + int(Address(r.data)-Address(r.whole))
	end := start + bytes
	start = start / page * page
	switch err := unix.Madvise(r.whole[start:end], advice); err {
	case nil, unix.EINVAL, unix.ENOSYS, unix.EPERM:
		return nil
	default:
		return diag.New(diag.ClassIO, "advise on memory: %w", err)
	}
}
