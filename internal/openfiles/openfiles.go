// Package openfiles knows how many files a program must be able to open. Importing it is all there is to do.
//
// Go's runtime needs two descriptors of its own when the first file is opened, and dies with a trace where it cannot
// have them. That happens before main: packages open files while they are initialised. So the check is in this
// package's own initialisation, which comes before theirs: packages are initialised in the order of their import paths
// as soon as what they import is (https://go.dev/ref/spec#Package_initialization), and this one imports nothing but
// syscall.
//
// RATIONALE: Why is the limit on open files checked by a package that imports nothing but syscall?
package openfiles

const (
	fewest      = 3 // the runtime's two, and one file: with more of them at once, an error is one like others
	unavailable = 4 // diag.ClassUnavailable: that package is initialised too late to be imported
)

const refusal = "hetc: error: this process may open fewer than 3 files more\nhetc: hint: raise the limit: ulimit -n 1024\n"
