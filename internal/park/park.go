// Package park knows how a thread that is locked to its goroutine sleeps until another one wakes it.
//
// A channel does the same in two wake-ups, one after the other: some thread of the Go runtime wakes, finds out that the
// goroutine belongs to another thread, and wakes that one. Where all cores compute, each may wait for a core.
// RATIONALE: Why do compute threads not sleep on channels?
package park
