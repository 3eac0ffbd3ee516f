package bundle

import (
	"bytes"
	"testing"
)

// ends notes where each write ends in the file.
type ends struct {
	bytes.Buffer
	at   int64
	list []int64
}

func (e *ends) Write(data []byte) (int, error) {
	e.at += int64(len(data))
	e.list = append(e.list, e.at)
	return e.Buffer.Write(data)
}

// Wherever a blob begins and however its source divides it, writes end at large pages, and no byte is lost.
func TestPieces(t *testing.T) {
	content := make([]byte, 5*pieceBytes+12345)
	for i := range content {
		content[i] = byte(i * 7 / 3)
	}
	for _, begin := range []int64{0, 4096, pieceBytes - 64, pieceBytes, 3*pieceBytes + 1} {
		for _, step := range []int{4097, pieceBytes, 3*pieceBytes + 5} {
			out := &ends{at: begin}
			writer := newPieces(out, begin)
			for from := 0; from < len(content); from += step {
				if n, err := writer.Write(content[from:min(from+step, len(content))]); err != nil || n == 0 {
					t.Fatalf("write at %d: %d, %v", from, n, err)
				}
			}
			if err := writer.flush(); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(out.Bytes(), content) {
				t.Fatalf("from %d in steps of %d: other bytes", begin, step)
			}
			for _, end := range out.list[:len(out.list)-1] {
				if end%pieceBytes != 0 {
					t.Fatalf("from %d in steps of %d: a write ends at %d, want a multiple of %d", begin, step, end,
						pieceBytes)
				}
			}
		}
	}
}
