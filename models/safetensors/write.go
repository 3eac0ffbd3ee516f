package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
)

// Write writes tensors and metadata (may be nil) as a safetensors file. Equal arguments give equal
// bytes. The file appears at path complete or not at all.
func Write(path string, tensors []Tensor, metadata map[string]string) error {
	header, offsets, err := Layout(tensors, metadata)
	if err != nil {
		return err
	}
	for i := range tensors {
		t := &tensors[i]
		if want := elements(t.Shape) * elementBytes[string(t.Type)]; int64(len(t.Data)) != want {
			return diag.New(diag.ClassInput, "write safetensors: tensor %q: got %d bytes, want %d for %s %v", t.Name, len(t.Data), want, t.Type, t.Shape)
		}
	}
	order := make([]int, len(tensors))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(a, b int) bool { return offsets[order[a]] < offsets[order[b]] })
	return wholefile.Stream(path, func(w io.Writer) error {
		if _, err := w.Write(header); err != nil {
			return err
		}
		for _, i := range order {
			if _, err := w.Write(tensors[i].Data); err != nil {
				return err
			}
		}
		return nil
	})
}

// Layout returns the beginning of a file of these tensors (length and header) and the offset in the
// file of each tensor's data, for writers that do not hold the data. The data follows in the order
// given, but larger element types first, so that every tensor is aligned to its element.
func Layout(tensors []Tensor, metadata map[string]string) (header []byte, offsets []int64, err error) {
	order := make([]int, len(tensors))
	seen := map[string]bool{}
	for i := range tensors {
		t := &tensors[i]
		order[i] = i
		fail := func(format string, args ...any) error {
			return diag.New(diag.ClassInput, "lay out safetensors: tensor %q: %s", t.Name, fmt.Sprintf(format, args...))
		}
		if seen[t.Name] || t.Name == metadataKey || !utf8.ValidString(t.Name) {
			return nil, nil, fail("name is used twice, reserved, or not valid UTF-8")
		}
		seen[t.Name] = true
		if elementBytes[string(t.Type)] == 0 {
			return nil, nil, fail("unknown element type %q", t.Type)
		}
		if _, err := sizeOf(t.Type, t.Shape); err != nil {
			return nil, nil, fail("%v", err)
		}
	}
	sort.SliceStable(order, func(a, b int) bool {
		return elementBytes[string(tensors[order[a]].Type)] > elementBytes[string(tensors[order[b]].Type)]
	})
	var b bytes.Buffer
	b.Write(make([]byte, 8))
	b.WriteByte('{')
	quote := func(s string) {
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(s); err != nil {
			panic("BUG: encode a string: " + err.Error())
		}
		b.Truncate(b.Len() - 1) // Encode ends with a line feed
	}
	if len(metadata) > 0 {
		b.WriteString(`"__metadata__":{`)
		for i, k := range slices.Sorted(maps.Keys(metadata)) {
			if i > 0 {
				b.WriteByte(',')
			}
			quote(k)
			b.WriteByte(':')
			quote(metadata[k])
		}
		b.WriteByte('}')
	}
	at := int64(0)
	offsets = make([]int64, len(tensors))
	for _, i := range order {
		t := &tensors[i]
		if b.Len() > 9 {
			b.WriteByte(',')
		}
		end := at + elements(t.Shape)*elementBytes[string(t.Type)]
		shape := strings.Join(strings.Fields(fmt.Sprint(t.Shape)), ",")
		offsets[i] = at
		quote(t.Name)
		fmt.Fprintf(&b, `:{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`, strings.ToUpper(string(t.Type)), shape, at, end)
		at = end
	}
	b.WriteByte('}')
	for b.Len()%64 != 0 {
		b.WriteByte(' ')
	}
	if b.Len()-8 > maxHeaderBytes {
		return nil, nil, diag.New(diag.ClassInput, "lay out safetensors: header of %d bytes, want at most %d", b.Len()-8, maxHeaderBytes)
	}
	header = b.Bytes()
	binary.LittleEndian.PutUint64(header, uint64(len(header)-8))
	for i := range offsets {
		offsets[i] += int64(len(header))
	}
	return header, offsets, nil
}
