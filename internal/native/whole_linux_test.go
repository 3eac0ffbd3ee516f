//go:build !hetc_static && (amd64 || arm64)

package native

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"runtime"
	"testing"
)

// minimal is the header of a shared library for this machine with one segment of that many bytes.
func minimal(segment uint64) []byte {
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	h := elf.Header64{Type: uint16(elf.ET_DYN), Machine: uint16(machine), Version: 1, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1}
	copy(h.Ident[:], "\x7fELF\x02\x01\x01")
	var b bytes.Buffer
	for _, v := range []any{h, elf.Prog64{Type: uint32(elf.PT_LOAD), Filesz: segment, Memsz: segment}} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			panic("BUG: " + err.Error())
		}
	}
	return b.Bytes()
}

// Whatever a file holds, checking it ends, in memory bounded by its size; what is accepted is a shared library for this
// machine that is all there.
func FuzzCheckWhole(f *testing.F) {
	good := minimal(120)
	if err := checkWhole(bytes.NewReader(good), int64(len(good))); err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(minimal(121))
	f.Add(minimal(1 << 63))
	f.Add(good[:80])
	f.Add([]byte("\x7fELF"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if checkWhole(bytes.NewReader(b), int64(len(b))) != nil {
			return
		}
		e, err := elf.NewFile(bytes.NewReader(b))
		if err != nil || e.Type != elf.ET_DYN {
			t.Fatalf("accepted: %v", err)
		}
		for _, p := range e.Progs {
			if end := p.Off + p.Filesz; end > uint64(len(b)) || end < p.Off {
				t.Fatalf("accepted a segment that ends at %d of %d bytes", end, len(b))
			}
		}
	})
}
