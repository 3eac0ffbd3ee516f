package shalanes

import "golang.org/x/sys/cpu"

// Available reports whether this processor computes Width digests at once.
func Available() bool { return cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW }

// blocks16 adds the first blocks blocks of every part to the digests.
//
//go:noescape
func blocks16(state *[8][Width]uint32, parts *[Width][]byte, blocks int)
