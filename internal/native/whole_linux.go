//go:build !hetc_static && (amd64 || arm64)

package native

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
)

// checkWhole refuses what the loader would map and then crash on: it touches the pages of a truncated file.
func checkWhole(file io.ReaderAt, size int64) error {
	segments, err := newSegmentFile(file, size)
	if err != nil {
		return err
	}
	parsed, err := elf.NewFile(segments)
	if _, ok := errors.AsType[*elf.FormatError](err); ok {
		return errNotELF
	}
	if err != nil {
		return err
	}
	want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	if parsed.Type != elf.ET_DYN || parsed.Machine != want {
		return fmt.Errorf("%v for %v, want %v for %v", parsed.Type, parsed.Machine, elf.ET_DYN, want)
	}
	for _, segment := range parsed.Progs {
		if segment.Filesz > uint64(size) || segment.Off > uint64(size)-segment.Filesz {
			return fmt.Errorf("truncated: a segment ends at byte %d of %d", segment.Off+segment.Filesz, size)
		}
	}
	return nil
}

var errNotELF = errors.New("no whole ELF file")

// segmentFile is an ELF file of 64 bits whose header names no sections. The loader reads none either, and package elf
// unpacks the names of compressed ones, of any size, and panics where the names' index is beyond the sections.
type segmentFile struct {
	io.ReaderAt
	header []byte
}

// newSegmentFile checks the end of the sections, which are the last of most files, and hides them.
func newSegmentFile(file io.ReaderAt, size int64) (*segmentFile, error) {
	var fields elf.Header64
	header := make([]byte, binary.Size(fields))
	if _, err := file.ReadAt(header, 0); errors.Is(err, io.EOF) {
		return nil, errNotELF
	} else if err != nil {
		return nil, err
	}
	if _, err := binary.Decode(header, binary.LittleEndian, &fields); err != nil {
		return nil, err
	}
	if string(fields.Ident[:len(elf.ELFMAG)]) != elf.ELFMAG {
		return nil, errNotELF
	}
	class, order := elf.Class(fields.Ident[elf.EI_CLASS]), elf.Data(fields.Ident[elf.EI_DATA])
	if class != elf.ELFCLASS64 || order != elf.ELFDATA2LSB {
		return nil, fmt.Errorf("%v of %v, want %v of %v", class, order, elf.ELFCLASS64, elf.ELFDATA2LSB)
	}

	table := uint64(fields.Shnum) * uint64(fields.Shentsize)
	if table > uint64(size) || fields.Shoff > uint64(size)-table {
		return nil, fmt.Errorf("truncated: the table of sections ends at byte %d of %d", fields.Shoff+table, size)
	}
	fields.Shoff, fields.Shnum, fields.Shstrndx = 0, 0, 0
	if _, err := binary.Encode(header, binary.LittleEndian, fields); err != nil {
		return nil, err
	}
	return &segmentFile{ReaderAt: file, header: header}, nil
}

// ReadAt reads the file, with that header.
func (f *segmentFile) ReadAt(dst []byte, at int64) (int, error) {
	n, err := f.ReaderAt.ReadAt(dst, at)
	if at >= 0 && at < int64(len(f.header)) {
		copy(dst[:n], f.header[at:])
	}
	return n, err
}
