// Package qnnapi knows Qualcomm's public system interface: what it says about a context binary without loading it.
package qnnapi

import (
	"runtime"
	"unsafe"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/native"
)

// Context is what a binary says about itself.
type Context struct {
	Arch, SoC int64            // of the NPU that it is for
	Graphs    map[string]Graph // by name
}

// Graph is one graph of a binary.
type Graph struct {
	SpillBytes int64 // of the buffer outside the NPU's own memory
	VTCMBytes  int64 // of its own memory
}

// Versions of the structures whose layout is known: of QNN System API 1.15 (QAIRT 2.51).
const (
	systemMajor, systemMinor = 1, 15

	infoVersion, graphVersion, blobVersion = 3, 3, 1
	graphStride                            = 88
)

// memory is C's at an address.
type memory uintptr

// word, u32 and at read a word, 32 bits and an address at an offset in bytes.
func (m memory) word(offset int) uintptr { return native.Word(uintptr(m)+uintptr(offset), 0) }
func (m memory) u32(offset int) int64    { return int64(uint32(m.word(offset))) }
func (m memory) at(offset int) memory    { return memory(m.word(offset)) }

// ReadContext asks the library (libQnnSystem) about a binary. What it answers with are structures of one layout: a
// library of another version is refused, and the caller's process is better one that may crash. Errors are of class
// ClassUnavailable where the library is to blame, else ClassRun.
func ReadContext(library string, binary []byte) (*Context, error) {
	provider, err := providerOf(library)
	if err != nil {
		return nil, err
	}
	fail := func(what string, code uintptr) (*Context, error) {
		return nil, diag.New(diag.ClassRun, "library %q: %s: error %d", library, what, code)
	}
	create, read, free := provider.word(32), provider.word(40), provider.word(56)
	var handle uintptr
	if code := native.Call(create, uintptr(unsafe.Pointer(&handle))); code != 0 {
		return fail("make a context", code)
	}
	defer native.Call(free, handle)
	if len(binary) == 0 {
		return nil, diag.New(diag.ClassRun, "the compiled binary is empty")
	}
	var at, size uintptr
	code := native.Call(read, handle, uintptr(unsafe.Pointer(&binary[0])), uintptr(len(binary)),
		uintptr(unsafe.Pointer(&at)), uintptr(unsafe.Pointer(&size)))
	if code != 0 || at == 0 {
		return fail("read a binary", code)
	}
	defer runtime.KeepAlive(binary)
	return context(library, memory(at))
}

// providerOf opens a library and returns the description of its system interface.
func providerOf(library string) (memory, error) {
	lib, err := native.Open(library)
	if err != nil {
		return 0, diag.New(diag.ClassUnavailable, "library %q: %w", library, err)
	}
	get, err := lib.Symbol("QnnSystemInterface_getProviders")
	if err != nil {
		return 0, diag.New(diag.ClassUnavailable, "library %q: %w", library, err)
	}
	var list, count uintptr
	code := native.Call(get, uintptr(unsafe.Pointer(&list)), uintptr(unsafe.Pointer(&count)))
	if code != 0 || uint32(count) == 0 || list == 0 {
		return 0, diag.New(diag.ClassRun, "library %q: list interfaces: error %d", library, code)
	}
	provider := memory(list).at(0)
	major, minor := provider.u32(16), provider.u32(20)
	if major != systemMajor || minor != systemMinor {
		const other = "library %q: its system interface is %d.%d, hetc reads that of %d.%d (QAIRT 2.51)"
		return 0, diag.New(diag.ClassUnavailable, other, library, major, minor, systemMajor, systemMinor).
			WithHint("make deps-qnn fetches the version that hetc reads")
	}
	return provider, nil
}

// context reads the description of a binary. Each structure in it says which version it is of.
func context(library string, info memory) (*Context, error) {
	check := func(what string, info memory, want int64) error {
		if got := info.u32(0); got != want {
			return diag.New(diag.ClassUnavailable, "library %q: %s of version %d, want %d", library, what, got, want).
				WithHint("make deps-qnn fetches the version that hetc reads")
		}
		return nil
	}
	if err := check("description of a binary", info, infoVersion); err != nil {
		return nil, err
	}
	// Offsets of the structs in the library's headers, of the versions that check admits: another version may have
	// another layout, at which these would read something else.
	body := info + 8
	out := &Context{SoC: body.u32(128), Graphs: map[string]Graph{}}
	if meta := body.at(120); meta != 0 && body.u32(112) >= 8 {
		out.Arch = meta.u32(4)
	}
	count, graphs := body.u32(88), body.at(96)
	// The count comes out of a file by way of the library; it bounds what is read of memory.
	const mostGraphs = 1 << 16
	if count > mostGraphs || count > 0 && graphs == 0 {
		return nil, diag.New(diag.ClassRun, "library %q: it describes %d graphs, want at most %d and a list of them",
			library, count, mostGraphs)
	}
	for i := range int(count) {
		info := graphs + memory(i*graphStride)
		if err := check("description of a graph", info, graphVersion); err != nil {
			return nil, err
		}
		blob := info.at(72)
		if blob == 0 || info.u32(64) < 24 {
			return nil, diag.New(diag.ClassRun, "library %q: it does not describe the graph's memory", library)
		}
		if err := check("description of a graph's memory", blob, blobVersion); err != nil {
			return nil, err
		}
		name := native.String(info.word(8), 1<<12)
		out.Graphs[name] = Graph{SpillBytes: int64(blob.word(8)), VTCMBytes: blob.u32(16)}
	}
	return out, nil
}
