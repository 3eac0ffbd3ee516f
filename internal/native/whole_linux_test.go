//go:build !hetc_static && (amd64 || arm64)

package native

import (
	"bytes"
	"compress/zlib"
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

// withSections is a minimal library with a table of sections, and what lies behind that. The header says how many there
// are and which one has their names.
func withSections(number, names uint16, sections []elf.Section64, behind []byte) []byte {
	library, order := minimal(120), binary.LittleEndian
	var header elf.Header64
	if _, err := binary.Decode(library, order, &header); err != nil {
		panic("BUG: " + err.Error())
	}
	header.Shoff, header.Shentsize = uint64(len(library)), uint16(binary.Size(elf.Section64{}))
	header.Shnum, header.Shstrndx = number, names
	var b bytes.Buffer
	for _, part := range []any{header, library[binary.Size(header):], sections, behind} {
		if err := binary.Write(&b, order, part); err != nil {
			panic("BUG: " + err.Error())
		}
	}
	return b.Bytes()
}

// Sections, which the loader does not read, need to be there. What they say cannot crash hetc or fill its memory.
func TestSectionsAreNotBelieved(t *testing.T) {
	// Where there are 0xff00 sections or more, their number and the index of their names are in the first one.
	beyond := make([]elf.Section64, elf.SHN_LORESERVE)
	beyond[0] = elf.Section64{Size: uint64(len(beyond)), Link: uint32(elf.SHN_XINDEX)}
	many := withSections(0, uint16(elf.SHN_XINDEX), beyond, nil)
	if err := checkWhole(bytes.NewReader(many), int64(len(many))); err != nil {
		t.Errorf("names beyond the sections: %v", err)
	}

	const unpacked = 64 << 20
	var packed bytes.Buffer
	w := zlib.NewWriter(&packed)
	if _, err := w.Write(make([]byte, unpacked)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	header := binary.LittleEndian.AppendUint64(nil, uint64(elf.COMPRESS_ZLIB)) // Chdr64
	header = binary.LittleEndian.AppendUint64(header, unpacked)
	header = append(binary.LittleEndian.AppendUint64(header, 1), packed.Bytes()...)
	names := elf.Section64{
		Type: uint32(elf.SHT_STRTAB), Flags: uint64(elf.SHF_COMPRESSED), Off: 120 + 2*64, Size: uint64(len(header)),
	}
	large := withSections(2, 1, []elf.Section64{{}, names}, header)
	if parsed, err := elf.NewFile(bytes.NewReader(large)); err != nil || parsed.Sections[1].Size != unpacked {
		t.Fatalf("package elf does not unpack the names: %v", err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := checkWhole(bytes.NewReader(large), int64(len(large)))
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; err != nil || took > 1<<20 {
		t.Errorf("names of %d bytes, packed: %v, %d bytes of memory", unpacked, err, took)
	}

	cut := large[:len(large)-len(header)-1]
	if err := checkWhole(bytes.NewReader(cut), int64(len(cut))); err == nil {
		t.Error("part of the table of sections is missing, and the file is accepted")
	}
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
	f.Add(withSections(2, 1, []elf.Section64{{}, {Type: uint32(elf.SHT_STRTAB), Off: 120, Size: 1}}, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if checkWhole(bytes.NewReader(b), int64(len(b))) != nil {
			return
		}
		segments, err := newSegmentFile(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			t.Fatalf("accepted: %v", err)
		}
		e, err := elf.NewFile(segments)
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
