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
		tensor := &tensors[i]
		if want := elements(tensor.Shape) * elementBytes[string(tensor.Type)]; int64(len(tensor.Data)) != want {
			return diag.New(diag.ClassInput, "write safetensors: tensor %q: got %d bytes, want %d for %s %v",
				tensor.Name, len(tensor.Data), want, tensor.Type, tensor.Shape)
		}
	}

	// Write in the order of the offsets that the header states.
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
// file of each tensor's data, in bytes, for writers that do not hold the data. The data follows in the
// order given, but larger element types first, so that every tensor is aligned to its element.
//
// The header is padded with blanks to a multiple of 64 bytes. It is written by hand because its
// members keep the order of the data.
func Layout(tensors []Tensor, metadata map[string]string) (header []byte, offsets []int64, err error) {
	if err := checkTensors(tensors); err != nil {
		return nil, nil, err
	}

	order := make([]int, len(tensors))
	for i := range order {
		order[i] = i
	}
	// Larger elements first: each tensor is then aligned to its element without padding between.
	sort.SliceStable(order, func(a, b int) bool {
		return elementBytes[string(tensors[order[a]].Type)] > elementBytes[string(tensors[order[b]].Type)]
	})

	// The length comes first and is known last, so 8 bytes are kept for it.
	var buf bytes.Buffer
	buf.Write(make([]byte, 8))
	buf.WriteByte('{')
	writeMetadata(&buf, metadata)

	// One member for each tensor. Offsets count from the end of the header, and are shifted at the end.
	at := int64(0)
	offsets = make([]int64, len(tensors))
	for _, i := range order {
		tensor := &tensors[i]
		// Longer than the length and the opening brace: something stands before this member.
		if buf.Len() > 9 {
			buf.WriteByte(',')
		}
		end := at + elements(tensor.Shape)*elementBytes[string(tensor.Type)]
		shape := strings.Join(strings.Fields(fmt.Sprint(tensor.Shape)), ",")
		offsets[i] = at
		writeQuoted(&buf, tensor.Name)
		fmt.Fprintf(&buf, `:{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`, strings.ToUpper(string(tensor.Type)),
			shape, at, end)
		at = end
	}

	buf.WriteByte('}')
	for buf.Len()%64 != 0 {
		buf.WriteByte(' ')
	}
	if buf.Len()-8 > maxHeaderBytes {
		return nil, nil, diag.New(diag.ClassInput, "lay out safetensors: header of %d bytes, want at most %d",
			buf.Len()-8, maxHeaderBytes)
	}

	header = buf.Bytes()
	binary.LittleEndian.PutUint64(header, uint64(len(header)-8))
	for i := range offsets {
		offsets[i] += int64(len(header))
	}
	return header, offsets, nil
}

// checkTensors refuses names, types and shapes that a file cannot have.
func checkTensors(tensors []Tensor) error {
	seen := map[string]bool{}
	for i := range tensors {
		tensor := &tensors[i]
		fail := func(format string, args ...any) error {
			return diag.New(diag.ClassInput, "lay out safetensors: tensor %q: %s",
				tensor.Name, fmt.Sprintf(format, args...))
		}
		if seen[tensor.Name] || tensor.Name == metadataKey || !utf8.ValidString(tensor.Name) {
			return fail("name is used twice, reserved, or not valid UTF-8")
		}
		seen[tensor.Name] = true
		if elementBytes[string(tensor.Type)] == 0 {
			return fail("unknown element type %q", tensor.Type)
		}
		if _, err := sizeOf(tensor.Type, tensor.Shape); err != nil {
			return fail("%v", err)
		}
	}
	return nil
}

// writeMetadata writes the member "__metadata__", if there is any metadata, with its keys in order.
func writeMetadata(buf *bytes.Buffer, metadata map[string]string) {
	if len(metadata) == 0 {
		return
	}
	buf.WriteString(`"__metadata__":{`)
	for i, key := range slices.Sorted(maps.Keys(metadata)) {
		if i > 0 {
			buf.WriteByte(',')
		}
		writeQuoted(buf, key)
		buf.WriteByte(':')
		writeQuoted(buf, metadata[key])
	}
	buf.WriteByte('}')
}

// writeQuoted writes a string as JSON.
func writeQuoted(buf *bytes.Buffer, text string) {
	encoder := json.NewEncoder(buf)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(text); err != nil {
		panic("BUG: encode a string: " + err.Error())
	}
	buf.Truncate(buf.Len() - 1) // Encode ends with a line feed
}
