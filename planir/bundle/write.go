package bundle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
)

// Source is one blob to be written. Exactly one of Content and Write is set; Write must
// produce exactly Bytes bytes. Contents are produced one blob at a time, in ascending order
// of names.
type Source struct {
	Name    string
	Role    Role
	Type    string // "": application/octet-stream
	Bytes   int64
	Align   int64 // 0: 64 bytes, 64 KiB for blobs of at least that size
	Content io.ReaderAt
	Write   func(io.Writer) error
}

// Signer makes signatures for one key. Sign gets DSSE's pre-authentication encoding and
// returns the raw Ed25519 signature (64 bytes) or the ASN.1 ECDSA signature of its SHA-256.
type Signer struct {
	Key  Key
	Sign func(pae []byte) ([]byte, error)
}

// Write writes a `.hetb`: the manifest template m, whose Blobs must be empty and are filled in
// from sources, signed by all signers (at least one). It returns the bundle's identity. The
// bytes depend on the arguments only, as long as the signers are deterministic. The file
// appears under path complete and synced, or not at all.
func Write(ctx context.Context, path string, manifest Manifest, sources []Source, signers ...Signer) (Digest, error) {
	out := &writer{form: &fileForm{path: path}, manifest: manifest, signers: signers}
	return out.create(ctx, path, sources)
}

// WriteDir is Write for the exploded form: path must not exist.
func WriteDir(ctx context.Context, path string, manifest Manifest, sources []Source, signers ...Signer) (Digest,
	error) {
	out := &writer{form: &dirForm{path: path}, manifest: manifest, signers: signers}
	return out.create(ctx, path, sources)
}

// Save writes the bundle as a `.hetb`, with its signatures and those of more signers. Every
// byte is verified on the way. A key that has signed already is an error.
func (b *Bundle) Save(ctx context.Context, path string, more ...Signer) error {
	return b.copyTo(ctx, path, &fileForm{path: path}, more)
}

// Explode is Save for the exploded form: path must not exist.
func (b *Bundle) Explode(ctx context.Context, path string, more ...Signer) error {
	return b.copyTo(ctx, path, &dirForm{path: path}, more)
}

// copyTo writes the bundle again in a physical form, with its signatures and further ones.
func (b *Bundle) copyTo(ctx context.Context, path string, as form, more []Signer) error {
	if b.store == nil {
		return refuse(stepRelease, "save: the bundle is closed")
	}
	env, err := decodeEnvelope(b.envelope)
	if err != nil {
		return fmt.Errorf("BUG: an accepted envelope does not decode: %w", err)
	}
	out := &writer{form: as, manifest: *b.manifest, signatures: env.signatures, signers: more}
	out.manifest.Blobs = nil
	var sources []Source
	for _, blob := range b.blobs {
		sources = append(sources, Source{Name: blob.Name, Role: blob.Role, Type: blob.Type, Bytes: blob.Bytes,
			Align: blob.Align,
			Write: func(to io.Writer) error { return blob.writeTo(ctx, to) }})
	}
	_, err = out.create(ctx, path, sources)
	return err
}

// writer writes a bundle in a physical form.
type writer struct {
	form       form
	manifest   Manifest
	signatures []signature // kept from an existing envelope
	signers    []Signer
}

// create writes a bundle whole or leaves nothing behind.
func (w *writer) create(ctx context.Context, path string, sources []Source) (Digest, error) {
	done := false
	defer func() {
		if !done { // a source panicked: leave nothing behind
			_ = w.form.abort()
		}
	}()
	id, err := w.run(ctx, sources)
	done = true
	if err == nil {
		return id, nil
	}
	err = fmt.Errorf("write bundle %q: %w", path, err)
	if left := w.form.abort(); left != nil {
		err = errors.Join(err, left)
	}
	return Digest{}, err
}

// run writes in one pass: it lays out by sizes alone, streams the blobs while it digests them, then signs. Errors
// that have no class yet are faults of the storage.
func (w *writer) run(ctx context.Context, sources []Source) (id Digest, err error) {
	sources, err = w.prepare(sources)
	if err != nil {
		return id, diag.New(diag.ClassInput, "%w", err)
	}
	manifest := &w.manifest
	// Encode once without digests, which finds errors and the length before any content is written.
	template, err := manifest.Encode()
	if err != nil {
		return id, diag.New(diag.ClassInput, "manifest: %w", err)
	}
	if size := base64.StdEncoding.EncodedLen(len(template)) + envelopeRoom; size > maxEnvelopeBytes {
		return id, diag.New(diag.ClassInput, "envelope of %d bytes, want at most %d: use fewer blobs", size,
			maxEnvelopeBytes)
	}
	// Digests have a fixed length, so the layout is known before the first byte of content.
	if err := w.form.begin(manifest, len(template)); err != nil {
		return id, ioError(err)
	}
	var leaves []Digest
	for i := range sources {
		digester, err := w.blob(ctx, i, &sources[i])
		if err != nil {
			return id, err
		}
		leaves = append(leaves, digester.leaves...)
	}
	// Encode again with the digests that the contents turned out to have; nothing else changed.
	payload, err := manifest.Encode()
	if err != nil || len(payload) != len(template) {
		panic(fmt.Sprintf("BUG: manifest changed its length from %d to %d bytes (%v)", len(template), len(payload),
			err))
	}
	envelope, err := w.sign(payload)
	if err != nil {
		return id, err
	}
	if err := w.form.finish(envelope, leaves); err != nil {
		return id, ioError(err)
	}
	if err := ctx.Err(); err != nil {
		return id, diag.New(diag.ClassInterrupted, "%w", err)
	}
	return sha256.Sum256(payload), ioError(w.form.commit())
}

// prepare sorts the sources by name, fills in their defaults, and lists them as the manifest's blobs without digests.
func (w *writer) prepare(sources []Source) ([]Source, error) {
	manifest := &w.manifest
	if len(manifest.Blobs) != 0 {
		return nil, errors.New("the manifest template lists blobs; they come from the sources")
	}
	if len(sources) > maxBlobs {
		return nil, fmt.Errorf("%d blobs, want at most %d", len(sources), maxBlobs)
	}
	if err := w.checkSigners(); err != nil {
		return nil, err
	}
	if manifest.ChunkBytes == 0 {
		manifest.ChunkBytes = chunkFor(sources)
	}
	if manifest.KeyringGeneration == 0 {
		manifest.KeyringGeneration = 1
	}
	sources = slices.Clone(sources)
	slices.SortFunc(sources, func(a, b Source) int { return strings.Compare(a.Name, b.Name) })
	for i := range sources {
		source := &sources[i]
		if (source.Content == nil) == (source.Write == nil) {
			return nil, fmt.Errorf("blob %q: want exactly one of content and write function", source.Name)
		}
		if source.Type == "" {
			source.Type = "application/octet-stream"
		}
		if source.Align == 0 {
			source.Align = minAlign
			if source.Bytes >= pageAlign {
				source.Align = pageAlign
			}
		}
		manifest.Blobs = append(manifest.Blobs,
			Blob{Name: source.Name, Role: source.Role, Type: source.Type, Bytes: source.Bytes, Align: source.Align})
	}
	return sources, nil
}

// checkSigners checks the keys before the contents are written, which may take minutes.
func (w *writer) checkSigners() error {
	if count := len(w.signatures) + len(w.signers); count == 0 || count > maxSignatures {
		return fmt.Errorf("%d signers, want 1 to %d", count, maxSignatures)
	}
	for i := range w.signers {
		if _, err := w.signers[i].Key.public(); err != nil {
			return fmt.Errorf("key of signer %d: %w", i, err)
		}
		if w.signers[i].Sign == nil {
			return fmt.Errorf("signer %d cannot sign", i)
		}
	}
	return nil
}

// chunkFor returns the smallest chunk size with which these blobs have at most usualLeaves chunks.
func chunkFor(sources []Source) int64 {
	bytes := int64(0)
	for i := range sources {
		bytes += max(0, min(sources[i].Bytes, maxBytes)) // others are refused later
	}
	// Larger chunks make a shorter table, smaller ones less to check for a small read.
	chunk := int64(leastChunk)
	for chunk < maxChunk && bytes/chunk > usualLeaves {
		chunk *= 2
	}
	return chunk
}

// blob streams one blob to its place and records its digests in the manifest.
func (w *writer) blob(ctx context.Context, i int, source *Source) (*digester, error) {
	out, at, done, err := w.form.content(i)
	if err != nil {
		return nil, ioError(err)
	}
	digester := newDigester(w.manifest.ChunkBytes)
	buffer := newPieces(out, at)
	sink := &sizedSink{ctx: ctx, out: buffer, also: digester, left: source.Bytes}
	if source.Write != nil {
		err = source.Write(sink)
	} else {
		_, err = io.Copy(sink, io.NewSectionReader(source.Content, 0, source.Bytes))
	}
	switch {
	case sink.err != nil: // whatever the source made of it
		return nil, fmt.Errorf("blob %q: %w", source.Name, sink.err)
	case err != nil:
		return nil, fmt.Errorf("blob %q: %w", source.Name, err)
	case sink.left != 0:
		return nil, diag.New(diag.ClassInput, "blob %q: its source gave %d bytes, want %d", source.Name,
			source.Bytes-sink.left, source.Bytes)
	}
	if err := buffer.flush(); err != nil {
		return nil, ioError(err)
	}
	blob := &w.manifest.Blobs[i]
	blob.SHA256, blob.Root = digester.sums()
	return digester, ioError(done(blob.SHA256))
}

// pieceBytes is a large page.
const pieceBytes = 2 << 20

// pieces writes a blob so that every write but the first and the last is a whole large page of the file. A file system
// with large folios (ext4 from Linux 6.16 on, XFS) then keeps it as one in the page cache, so that mapping it takes one
// entry of the page table instead of 512. RATIONALE: In which pages do weights lie?
type pieces struct {
	out  io.Writer
	data []byte // not yet written
	most int    // bytes of data when it ends at a multiple of pieceBytes
}

// newPieces begins at an offset in the file.
func newPieces(out io.Writer, at int64) *pieces {
	return &pieces{out: out, data: make([]byte, 0, pieceBytes), most: pieceBytes - int(at%pieceBytes)}
}

// Write keeps what does not fill a piece.
func (p *pieces) Write(data []byte) (int, error) {
	written := len(data)
	for len(data) > 0 {
		take := min(len(data), p.most-len(p.data))
		p.data, data = append(p.data, data[:take]...), data[take:]
		if len(p.data) < p.most {
			break
		}
		if err := p.flush(); err != nil {
			return written - len(data), err
		}
		p.most = pieceBytes
	}
	return written, nil
}

// flush writes what is kept.
func (p *pieces) flush() error {
	if len(p.data) == 0 {
		return nil
	}
	_, err := p.out.Write(p.data)
	p.data = p.data[:0]
	return err
}

// sizedSink passes a source's bytes on to the file and to the digests. It fails at the first byte too many, because
// sizes and offsets are fixed by then, and on cancellation. Its first error is kept: a source may swallow it.
type sizedSink struct {
	ctx  context.Context
	out  io.Writer
	also *digester
	left int64 // bytes that the source still owes
	err  error
}

// Write digests what it passes on. After an error it takes nothing more.
func (s *sizedSink) Write(data []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		s.err = diag.New(diag.ClassInterrupted, "%w", err)
	} else if int64(len(data)) > s.left {
		s.err = diag.New(diag.ClassInput, "its source gives more bytes than it stated")
	}
	if s.err != nil {
		return 0, s.err
	}
	_, _ = s.also.Write(data) // it never fails
	s.left -= int64(len(data))
	count, err := s.out.Write(data)
	if err != nil {
		s.err = ioError(err)
	}
	return count, s.err
}

// sign returns the envelope. Each signature is checked at once: a signer whose key is another
// one must not cost the user a device that refuses.
func (w *writer) sign(payload []byte) ([]byte, error) {
	message := pae(payloadType, payload)
	env := &envelope{payload: base64.StdEncoding.EncodeToString(payload), kind: payloadType,
		signatures: slices.Clone(w.signatures)}
	for i := range w.signers {
		key := &w.signers[i].Key
		sig, err := w.signers[i].Sign(message)
		if err != nil {
			return nil, fmt.Errorf("sign with key %s: %w", describe(key), err)
		}
		if len(sig) > maxSigBytes || !key.verifies(message, sig) {
			return nil, diag.New(diag.ClassVerify,
				"sign with key %s: the signer's answer of %d bytes is not a signature by that key", describe(key),
				len(sig))
		}
		env.signatures = append(env.signatures,
			signature{keyID: sha256.Sum256(key.DER), sig: base64.StdEncoding.EncodeToString(sig)})
	}
	slices.SortFunc(env.signatures, func(a, b signature) int { return bytes.Compare(a.keyID[:], b.keyID[:]) })
	data, err := encode(env.walk)
	if err != nil {
		panic("BUG: the envelope does not encode: " + err.Error())
	}
	if _, err := decodeEnvelope(data); err != nil {
		return nil, diag.New(diag.ClassInput, "%w", err).WithHint("one key signs once")
	}
	return data, nil
}

// ioError gives class ClassIO to an error that has no class: it came from the operating system.
func ioError(err error) error {
	if err == nil || diag.ClassOf(err) != diag.ClassInternal {
		return err
	}
	return diag.New(diag.ClassIO, "%w", err)
}
