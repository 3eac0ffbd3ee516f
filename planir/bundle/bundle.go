package bundle

import (
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"slices"
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
	env, payload, err := openEnvelope(bundle.envelope)
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
	if err := b.store.gaps(manifest, mode != Copy); err != nil {
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
		opened := &blob{Blob: &manifest.Blobs[i], chunk: manifest.ChunkBytes, step: stepCode}
		count := chunks(opened.Bytes, opened.chunk)
		if leaves != nil {
			opened.leaves = leaves[first : first+count]
			if rootOf(opened.Bytes, opened.chunk, opened.leaves) != opened.Root {
				return refuse(stepTable, "chunk digests of blob %q do not hash to its root", opened.Name).
					hint("the file was damaged or changed; fetch it again")
			}
		}
		first += count
		opened.good = make([]atomic.Uint64, (count+63)/64)
		if opened.Role.bulk() {
			opened.step = stepWeights
		} else if copied += opened.Bytes; copied > maxCopyBytes {
			return refuse(stepCode, "blobs to be copied have more than %d bytes together", int64(maxCopyBytes))
		}
		b.blobs = append(b.blobs, opened)
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
		if blob.mapping, err = b.store.mapped(b.manifest, i); err == nil {
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
	return b.store.gaps(b.manifest, false)
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
