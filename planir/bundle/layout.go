package bundle

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash"
)

// A `.hetb` is a header of 64 bytes, the envelope, the table of chunk digests, and the blobs, each aligned for mapping.
// The header states the envelope's length; all other offsets follow from the signed manifest, so that a reader believes
// no number that an attacker could choose.
const (
	magic       = "\x89HETB\r\n\x1a" // like PNG's: a transfer that changes line ends or bit 7 damages it visibly
	headerBytes = 64
	tableFloor  = 256 << 10 // the table starts here at the earliest
	// envelopeRoom is what an envelope may need beside its payload: eight signatures and the
	// fixed text, 2.2 KB at most. The table's place depends on signed bytes only, so a signature
	// added later moves nothing.
	envelopeRoom = 4 << 10
	leafBytes    = sha256.Size
)

// layout says where everything lies in a `.hetb`: a pure function of the signed manifest.
type layout struct {
	table   int64   // offset of the chunk table
	blobs   int64   // first offset behind the table's padding
	offsets []int64 // of each blob
	leaves  []int64 // index of each blob's first leaf in the table, and their total at the end
	size    int64   // of the file
}

// layOut computes the layout for a manifest that passed check and whose encoding has
// payloadBytes bytes.
func layOut(manifest *Manifest, payloadBytes int) layout {
	sizes := layout{offsets: make([]int64, len(manifest.Blobs)), leaves: make([]int64, len(manifest.Blobs)+1)}
	envelope := int64(base64.StdEncoding.EncodedLen(payloadBytes)) + envelopeRoom
	sizes.table = max(tableFloor, alignTo(headerBytes+envelope, pageAlign))
	for i := range manifest.Blobs {
		sizes.leaves[i+1] = sizes.leaves[i] + chunks(manifest.Blobs[i].Bytes, manifest.ChunkBytes)
	}
	sizes.blobs = alignTo(sizes.table+leafBytes*sizes.leaves[len(manifest.Blobs)], pageAlign)
	end := sizes.blobs
	for i, blob := range manifest.Blobs {
		sizes.offsets[i] = alignTo(end, blob.Align)
		end = sizes.offsets[i] + blob.Bytes
	}
	sizes.size = alignTo(end, pageAlign)
	return sizes
}

// alignTo rounds n up to a multiple of align, a power of two.
func alignTo(n, align int64) int64 { return (n + align - 1) &^ (align - 1) }

// chunks returns how many chunks hold so many bytes.
func chunks(bytes, chunk int64) int64 { return (bytes + chunk - 1) / chunk }

// encodeHeader returns the first 64 bytes of a `.hetb`.
func encodeHeader(envelopeBytes int) []byte {
	header := make([]byte, headerBytes)
	copy(header, magic)
	binary.LittleEndian.PutUint32(header[8:], 1)
	binary.LittleEndian.PutUint64(header[16:], uint64(envelopeBytes))
	return header
}

// decodeHeader returns the length of the envelope.
func decodeHeader(header []byte, fileBytes int64) (int, error) {
	if string(header[:8]) != magic {
		return 0, fmt.Errorf("begins with %q, want %q: not a bundle, or one damaged in transfer", header[:8], magic)
	}
	if version := binary.LittleEndian.Uint32(header[8:]); version != 1 {
		return 0, fmt.Errorf("container version %d, want 1", version)
	}
	if flags := binary.LittleEndian.Uint32(header[12:]); flags != 0 {
		return 0, fmt.Errorf("flags %#x, want 0", flags)
	}
	if !zeros(header[24:headerBytes]) {
		return 0, fmt.Errorf("reserved bytes 24 to %d are not zero", headerBytes-1)
	}
	envelope, limit := binary.LittleEndian.Uint64(header[16:]), uint64(min(maxEnvelopeBytes, fileBytes-headerBytes))
	if envelope < 1 || envelope > limit {
		return 0, fmt.Errorf("envelope of %d bytes, want 1 to %d", envelope, limit)
	}
	return int(envelope), nil
}

var zeroPage [pageAlign]byte

// zeros reports whether b, of at most pageAlign bytes, is all zero.
func zeros(b []byte) bool { return bytes.Equal(b, zeroPage[:len(b)]) }

// rootOf hashes the chunk digests of a blob together with its size and the chunk size, so that no other division into
// chunks has the same root. The prefix separates it from digests of other things.
func rootOf(bytes, chunk int64, leaves []Digest) Digest {
	hash := sha256.New()
	hash.Write([]byte("hetc.chunks/1\x00"))
	var n [16]byte
	binary.LittleEndian.PutUint64(n[:], uint64(bytes))
	binary.LittleEndian.PutUint64(n[8:], uint64(chunk))
	hash.Write(n[:])
	for i := range leaves {
		hash.Write(leaves[i][:])
	}
	return Digest(hash.Sum(nil))
}

// digester computes all digests of one blob as it passes by.
type digester struct {
	chunk  int64     // bytes of a chunk
	bytes  int64     // so far
	whole  hash.Hash // over the blob
	part   hash.Hash // over the chunk that is passing
	leaves []Digest  // of the chunks that have ended
}

// newDigester begins a blob whose chunks have so many bytes.
func newDigester(chunk int64) *digester {
	return &digester{chunk: chunk, whole: sha256.New(), part: sha256.New()}
}

// Write may be called with pieces of any size; chunks end where they end in the blob.
func (d *digester) Write(data []byte) (int, error) {
	count := len(data)
	d.whole.Write(data)
	for len(data) > 0 {
		take := min(int64(len(data)), d.chunk-d.bytes%d.chunk)
		d.part.Write(data[:take])
		d.bytes += take
		data = data[take:]
		if d.bytes%d.chunk == 0 {
			d.endChunk()
		}
	}
	return count, nil
}

// endChunk stores the digest of the chunk that has ended, and begins the next.
func (d *digester) endChunk() {
	d.leaves = append(d.leaves, Digest(d.part.Sum(nil)))
	d.part.Reset()
}

// sums ends the blob.
func (d *digester) sums() (whole, root Digest) {
	if d.bytes%d.chunk != 0 {
		d.endChunk()
	}
	return Digest(d.whole.Sum(nil)), rootOf(d.bytes, d.chunk, d.leaves)
}
