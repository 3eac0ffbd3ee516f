package bundle

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
)

// Mode says how weights (RoleWeights, RoleReference) are held and when they are checked.
type Mode int

const (
	// Lazy maps the file and checks a chunk when it is first asked for.
	Lazy Mode = iota
	// Eager maps the file and checks everything on opening.
	Eager
	// Copy reads everything into private memory and checks the copy on opening: for small
	// models, and for storage that others may write to.
	Copy
)

// Options is what Open needs beside the path.
type Options struct {
	Trust  *Keyring // required
	Policy Policy
	Host   *Host // nil: the target is not compared, for checking a bundle away from its device
	Mode   Mode
	// Admit, which may be nil, sees the verified manifest before anything of its size is allocated; its error is
	// Open's.
	Admit func(*Manifest) error
}

// Bundle is an open bundle that passed every check. Its methods except Close may be called
// concurrently; slices it returns must not be written to and die with Close. With Lazy and
// Eager a process that may write to the file can still change weights after they were checked; all
// other roles live in private memory.
type Bundle struct {
	path     string // for errors
	manifest *Manifest
	envelope []byte
	digest   Digest
	signers  []string
	store    store
	blobs    []*blob
	copies   []*mem.Region
	room     []byte // what is left of the last copy that small blobs share
	early    *early // nil: nothing is checked before it is asked for
}

// blob is the memory of one blob, and which of its chunks were compared with their digests. A bundle in a file carries
// the digests of all chunks, its leaves, so that any range can be checked alone. The exploded form carries none: there
// the first access to a blob checks all of it. Checks are idempotent, hence good and all need no lock.
type blob struct {
	*Blob
	chunk  int64       // bytes of a chunk; the last one of a blob may be shorter
	data   []byte      // the content, mapped or copied; nil until fill
	file   io.ReaderAt // the same bytes, where chunks can be checked without making all of data resident
	region *mem.Region // that data lies in, from byte at on; nil for memory of its own
	at     int64
	step   Step            // that a wrong chunk fails
	leaves []Digest        // nil: not known yet, the whole blob is checked against the root
	good   []atomic.Uint64 // one bit per chunk
	mu     sync.Mutex      // for a check without leaves
	all    atomic.Bool     // every chunk is good
}

// Open opens the bundle at path, a `.hetb` or an exploded directory, and verifies it by the
// algorithm of SPEC.md section 5. Nothing is released before all of it has passed. Failures
// are *Error.
func Open(path string, options Options) (*Bundle, error) {
	bundle, err := open(path, options)
	if err != nil {
		return nil, at(path, err)
	}
	bundle.path = path
	return bundle, nil
}

// open verifies step by step: the envelope and its signatures come before anything that the manifest says is believed,
// and the manifest before any blob is touched.
func open(path string, options Options) (_ *Bundle, err error) {
	if options.Trust == nil {
		return nil, refuse(stepKeyring, "no trusted keys").
			hint("pass --trust with a .pub or a keyring file that did not come with the bundle")
	}
	if err := options.Trust.check(); err != nil {
		return nil, refuse(stepKeyring, "trusted keys: %w", err)
	}
	// From here on every step looks only at what the steps before it have vouched for: the envelope is parsed, its
	// signatures are verified over the payload's bytes, and not before that is the payload read as a manifest, which
	// names the blobs by their digests.
	store, err := openStore(path)
	if err != nil {
		return nil, err
	}
	bundle := &Bundle{store: store}
	defer func() {
		if err != nil {
			_ = bundle.Close() // only read
		}
	}()
	if bundle.envelope, err = store.envelope(); err != nil {
		return nil, err
	}
	env, err := decodeEnvelope(bundle.envelope)
	if err != nil {
		return nil, refuse(stepEnvelope, "envelope: %w", err)
	}
	payload, err := env.open()
	if err != nil {
		return nil, err
	}
	if bundle.signers, err = env.verify(options.Trust, options.Policy.AllowDev, payload); err != nil {
		return nil, err
	}
	if bundle.manifest, err = decodeManifest(payload); err != nil {
		return nil, refuse(stepManifest, "manifest: %w", err)
	}
	bundle.digest = sha256.Sum256(payload)
	if err := options.Policy.checkCompat(bundle.manifest); err != nil {
		return nil, err
	}
	if err := options.Policy.check(bundle.manifest, options.Trust, options.Host); err != nil {
		return nil, err
	}
	if err := store.check(bundle.manifest, len(payload)); err != nil {
		return nil, err
	}
	// The caller's own rules come last of all that is cheap: loading reads every byte of the blobs.
	if options.Admit != nil {
		if err := options.Admit(bundle.manifest); err != nil {
			return nil, err
		}
	}
	if err := bundle.load(options.Mode); err != nil {
		return nil, err
	}
	return bundle, nil
}

// load applies the rest of the step layout, and the steps table, code and weights.
func (b *Bundle) load(mode Mode) error {
	manifest := b.manifest
	if err := b.store.gaps(manifest); err != nil {
		return err
	}
	leaves, err := b.store.table(manifest)
	if err != nil {
		return err
	}
	// The signed root of each blob vouches for its chunk digests; only then do these vouch for chunks.
	var copied int64
	first := int64(0)
	for i := range manifest.Blobs {
		x := &blob{Blob: &manifest.Blobs[i], chunk: manifest.ChunkBytes, step: stepCode}
		count := chunks(x.Bytes, x.chunk)
		if leaves != nil {
			x.leaves = leaves[first : first+count]
			if rootOf(x.Bytes, x.chunk, x.leaves) != x.Root {
				return refuse(stepTable, "chunk digests of blob %q do not hash to its root", x.Name).
					hint("the file was damaged or changed; fetch it again")
			}
		}
		first += count
		x.good = make([]atomic.Uint64, (count+63)/64)
		if x.Role.bulk() {
			x.step = stepWeights
		} else if copied += x.Bytes; copied > maxCopyBytes {
			return refuse(stepCode, "blobs to be copied have more than %d bytes together", int64(maxCopyBytes))
		}
		b.blobs = append(b.blobs, x)
	}
	// Code-like blobs first, so that nothing large is touched for a bundle that is refused.
	for _, bulk := range []bool{false, true} {
		for i, blob := range b.blobs {
			if blob.Role.bulk() != bulk {
				continue
			}
			if err := b.fill(i, !bulk || mode == Copy); err != nil {
				return err
			}
			if bulk && mode == Lazy {
				continue
			}
			if err := blob.verify(0, blob.Bytes); err != nil {
				return err
			}
		}
	}
	return nil
}

// fill gives blob i its memory: a copy, or the store's mapping of the file. Nothing is compared with digests yet.
func (b *Bundle) fill(i int, private bool) (err error) {
	blob := b.blobs[i]
	if !private {
		if blob.region, blob.at, blob.file, err = b.store.mapped(b.manifest, i); err == nil {
			blob.data = blob.region.Bytes()[blob.at:][:blob.Bytes:blob.Bytes]
		}
		return err
	}
	if blob.Bytes > mem.MaxBytes {
		return refuse(blob.step, "blob %q of %d bytes is too large for this machine", blob.Name, blob.Bytes)
	}
	if blob.data, err = b.alloc(int(blob.Bytes), int(blob.Align)); err != nil {
		return refuseAs(diag.ClassIO, blob.step, "copy blob %q: %w", blob.Name, err)
	}
	return b.store.copyBlob(b.manifest, i, blob.data, blob.step)
}

// alloc returns private memory. Small blobs, of which there are hundreds, share allocations.
func (b *Bundle) alloc(bytes, align int) ([]byte, error) {
	const shared, small = 1 << 20, 64 << 10
	if bytes > small || align > small {
		region, err := mem.Alloc(bytes, align)
		if err != nil {
			return nil, err
		}
		b.copies = append(b.copies, region)
		return region.Bytes(), nil
	}
	// The bytes up to the next multiple of align.
	skip := -int(mem.Address(b.room)) & (align - 1)
	if skip+bytes > len(b.room) {
		region, err := mem.Alloc(shared, small)
		if err != nil {
			return nil, err
		}
		b.copies = append(b.copies, region)
		b.room, skip = region.Bytes(), 0
	}
	// The capacity ends with the blob: an append by a caller cannot reach the next one.
	end := skip + bytes
	data := b.room[skip:end:end]
	b.room = b.room[end:]
	return data, nil
}

// verify checks the chunks that hold bytes [from, to), those that are not known to be good.
// Large ranges are checked by several goroutines; of several wrong chunks the first is reported.
func (x *blob) verify(from, to int64) error {
	// An empty range holds no chunk. An empty blob is checked all the same, because its digests are signed.
	if x.all.Load() || from == to && x.Bytes > 0 {
		return nil
	}
	if x.leaves == nil {
		return x.verifyWhole()
	}
	first, end := from/x.chunk, chunks(to, x.chunk)
	// Below this, starting goroutines costs more than it saves.
	const few = 4
	if end-first >= few {
		var unknown []piece
		for index := first; index < end; index++ {
			if !x.known(index) {
				unknown = append(unknown, piece{blob: x, chunk: index, mapped: x.file == nil})
			}
		}
		verifyPieces(context.Background(), unknown, func(int) {})
	}
	// Chunks that are good by now cost one load each; a wrong one is found again here and named.
	for index := first; index < end; index++ {
		if err := x.verifyChunk(index); err != nil {
			return err
		}
	}
	if first == 0 && to == x.Bytes {
		x.all.Store(true)
	}
	return nil
}

// known reports whether a chunk was checked and is good.
func (x *blob) known(index int64) bool { return x.good[index/64].Load()&(1<<(index%64)) != 0 }

// verifyChunk compares a chunk with its digest once; a good one is never read again.
func (x *blob) verifyChunk(index int64) error {
	if x.known(index) {
		return nil
	}
	if err := x.compare(index); err != nil {
		return err
	}
	x.good[index/64].Or(1 << (index % 64))
	return nil
}

// compare compares a chunk with its digest.
func (x *blob) compare(index int64) error {
	from, to := index*x.chunk, min((index+1)*x.chunk, x.Bytes)
	sum, err := x.sum(from, to)
	if err != nil {
		return refuseAs(diag.ClassIO, x.step, "read blob %q: %w", x.Name, err)
	}
	if sum != x.leaves[index] {
		return refuse(x.step, "blob %q: chunk %d (bytes %d to %d) has digest %s, want %s", x.Name, index, from, to,
			sum, x.leaves[index]).
			hint("the file was damaged or changed; fetch it again")
	}
	return nil
}

// sum returns the digest of bytes [from, to). It reads the file rather than the mapping where it can: hashed pages of a
// mapping would count as this process's resident memory.
func (x *blob) sum(from, to int64) (sum Digest, err error) {
	if x.file == nil {
		// Access to a mapping faults where the file was truncated.
		err = mem.CatchFault(func() { sum = sha256.Sum256(x.data[from:to]) })
		return sum, err
	}
	hash := sha256.New()
	buf := buffers.Get().(*[sumBytes]byte)
	defer buffers.Put(buf)
	for ; from < to; from += sumBytes {
		part := buf[:min(to-from, sumBytes)]
		if n, err := x.file.ReadAt(part, from); n < len(part) {
			return sum, err
		}
		_, _ = hash.Write(part)
	}
	return Digest(hash.Sum(nil)), nil
}

// sumBytes is read and hashed at a time, so that it stays in a core's own cache.
const sumBytes = 128 << 10

var buffers = sync.Pool{New: func() any { return new([sumBytes]byte) }}

// verifyWhole checks a blob of which the store has no chunk digests, once for all callers.
func (x *blob) verifyWhole() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.all.Load() {
		return nil
	}
	whole, root, err := x.sums(context.Background(), nil)
	if err != nil {
		return err
	}
	return x.judge(whole, root)
}

// judge compares both digests of a whole blob, plain and by chunks, with the signed ones. If only one of them fits,
// the manifest itself is inconsistent.
func (x *blob) judge(whole, root Digest) error {
	if root != x.Root {
		return refuse(x.step, "blob %q has SHA-256 %s, want %s", x.Name, whole, x.SHA256).
			hint("the file was damaged or changed; fetch it again")
	}
	if whole != x.SHA256 {
		return refuse(stepTable, "blob %q has SHA-256 %s, want %s: its two signed digests disagree", x.Name, whole,
			x.SHA256)
	}
	x.all.Store(true)
	return nil
}

// sums reads all of the blob's memory; tick, which may be nil, learns of each piece.
func (x *blob) sums(ctx context.Context, tick func(bytes int64)) (whole, root Digest, err error) {
	digester := newDigester(x.chunk)
	for from := int64(0); from < x.Bytes; from = digester.bytes {
		if err := ctx.Err(); err != nil {
			return whole, root, diag.New(diag.ClassInterrupted, "verify blob %q: %w", x.Name, err)
		}
		to := min(from+maxChunk, x.Bytes)
		if err := mem.CatchFault(func() { _, _ = digester.Write(x.data[from:to]) }); err != nil {
			return whole, root, refuseAs(diag.ClassIO, x.step, "read blob %q: %w", x.Name, err)
		}
		if tick != nil {
			tick(to - from)
		}
	}
	whole, root = digester.sums()
	return whole, root, nil
}

// Manifest returns what was signed; it must not be written to.
func (b *Bundle) Manifest() *Manifest { return b.manifest }

// Digest returns the SHA-256 of the signed manifest: the identity of the bundle, whatever its
// physical form and its signatures.
func (b *Bundle) Digest() Digest { return b.digest }

// Signers returns the IDs of the trusted keys whose signatures counted.
func (b *Bundle) Signers() []string { return slices.Clone(b.signers) }

// Ratchet returns what the host must store after the first successful run, never earlier.
func (b *Bundle) Ratchet() Ratchet {
	manifest := b.manifest
	return Ratchet{Product: manifest.Product, Generation: manifest.KeyringGeneration,
		SecurityVersion: manifest.SecurityVersion}
}

// Expect refuses a blob whose signed role is none of roles. Code that is about to parse or execute a blob asks first: a
// name alone does not say that the signer meant it for this, nor that its bytes cannot change any more.
func (b *Bundle) Expect(name string, roles ...Role) error {
	blob, err := b.find(name)
	if err != nil {
		return at(b.path, err)
	}
	if slices.Contains(roles, blob.Role) {
		return nil
	}
	return at(b.path, refuse(stepRelease, "blob %q has role %q, want %q", name, blob.Role, roles).
		hint("the bundle was signed with a wrong role: emit it again with hetc"))
}

// Has reports whether the bundle has a blob of that name.
func (b *Bundle) Has(name string) bool {
	_, found := b.manifest.blob(name)
	return found
}

// CopiedBytes returns how much Copy reads into private memory of the bundle with this manifest, beside what every mode
// does.
func CopiedBytes(manifest *Manifest) int64 {
	sum := int64(0)
	for i := range manifest.Blobs {
		if manifest.Blobs[i].Role.bulk() {
			sum += manifest.Blobs[i].Bytes
		}
	}
	return sum
}

// Bytes returns the whole of a blob, verified.
func (b *Bundle) Bytes(name string) ([]byte, error) {
	blob, err := b.find(name)
	if err != nil {
		return nil, err
	}
	return b.Range(name, 0, blob.Bytes)
}

// Range returns bytes [offset, offset+bytes) of a blob, verified: with Lazy, the chunks that
// hold them are checked the first time.
func (b *Bundle) Range(name string, offset, bytes int64) ([]byte, error) {
	blob, err := b.find(name)
	if err != nil {
		return nil, err
	}
	if offset < 0 || bytes < 0 || offset > blob.Bytes || bytes > blob.Bytes-offset {
		return nil, refuse(stepRelease, "range [%d, %d+%d) of blob %q, which has %d bytes", offset, offset, bytes,
			name, blob.Bytes)
	}
	if err := blob.verify(offset, offset+bytes); err != nil {
		return nil, at(b.path, err)
	}
	return blob.data[offset : offset+bytes : offset+bytes], nil
}

// CopyRange is Range into memory of the caller: as many bytes as out has. Where the bundle is a mapped file it reads
// the file, so that the pages of the mapping do not become resident.
func (b *Bundle) CopyRange(name string, offset int64, out []byte) error {
	data, err := b.Range(name, offset, int64(len(out)))
	if err != nil {
		return err
	}
	blob, err := b.find(name)
	if err != nil {
		return err
	}
	if blob.file == nil {
		copy(out, data)
		return nil
	}
	if n, err := blob.file.ReadAt(out, offset); n < len(out) {
		return at(b.path, refuseAs(diag.ClassIO, blob.step, "read blob %q: %w", name, err))
	}
	return nil
}

// find returns the blob of a name, or the refusal of an unknown name or a closed bundle.
func (b *Bundle) find(name string) (*blob, error) {
	i, ok := b.manifest.blob(name)
	if !ok {
		return nil, refuse(stepRelease, "no blob %q in the bundle", name)
	}
	if b.blobs == nil {
		return nil, refuse(stepRelease, "read blob %q: the bundle is closed", name)
	}
	return b.blobs[i], nil
}

// Extract writes a blob, verified, to a new file that only its owner may read, for libraries
// that accept nothing but a path. An existing file is an error; a failed one is removed. The
// directory should be private to the caller.
func (b *Bundle) Extract(ctx context.Context, name, path string) (err error) {
	blob, err := b.find(name)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return diag.New(diag.ClassIO, "extract blob %q: %w", name, err)
	}
	defer func() {
		if err = errors.Join(err, file.Close()); err != nil {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	if err := blob.writeTo(ctx, file); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return diag.New(diag.ClassIO, "extract blob %q: %w", name, err)
	}
	return nil
}

// writeTo writes the blob piece by piece, each checked first.
func (x *blob) writeTo(ctx context.Context, w io.Writer) error {
	for from := int64(0); from < x.Bytes; {
		if err := ctx.Err(); err != nil {
			return diag.New(diag.ClassInterrupted, "write blob %q: %w", x.Name, err)
		}
		to := min(from+max(x.chunk, 1<<20), x.Bytes)
		if err := x.verify(from, to); err != nil {
			return err
		}
		var werr error
		if err := mem.CatchFault(func() { _, werr = w.Write(x.data[from:to]) }); err != nil {
			return refuseAs(diag.ClassIO, x.step, "read blob %q: %w", x.Name, err)
		}
		if werr != nil {
			return diag.New(diag.ClassIO, "write blob %q: %w", x.Name, werr)
		}
		from = to
	}
	return nil
}

// VerifyAll checks every byte: all blobs against their chunk and their plain digests, as they
// are in memory or in the mapped file now, and the padding once more. progress, which may be nil, is called
// with the bytes done so far.
func (b *Bundle) VerifyAll(ctx context.Context, progress func(done, total int64)) error {
	if b.store == nil {
		return refuse(stepRelease, "verify: the bundle is closed")
	}
	var done, total int64
	for _, blob := range b.blobs {
		total += blob.Bytes
	}
	tick := func(bytes int64) {
		if done += bytes; progress != nil {
			progress(done, total)
		}
	}
	for _, blob := range b.blobs {
		whole, root, err := blob.sums(ctx, tick)
		if err != nil {
			return err
		}
		if err := blob.judge(whole, root); err != nil {
			return err
		}
	}
	return b.store.gaps(b.manifest)
}

// Close releases all memory; slices handed out are dead afterwards.
func (b *Bundle) Close() error {
	if b.store == nil {
		return nil
	}
	b.early.end()
	errs := []error{b.store.close()}
	for _, region := range b.copies {
		errs = append(errs, region.Close())
	}
	b.store, b.blobs, b.copies, b.room = nil, nil, nil, nil
	return errors.Join(errs...)
}
