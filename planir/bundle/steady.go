package bundle

import (
	"context"
	"os"

	"github.com/hetc/hetc/internal/diag"
)

// Weights that are read in place are checked before they are released, and may be changed afterwards: by `cp new.hetb
// app.hetb` over a bundle in use, which truncates the file and fills it again. Every write moves the file's time of
// modification or its size, so a look at those after each program call tells the ordinary case at the price of a system
// call. A program that sets the time back, or writes through a mapping, is not noticed: for storage that such programs
// may write to, there is Copy.
// RATIONALE: Why is a bundle in use looked at after every call, and not locked?

// stamp is what a write to a file changes.
type stamp struct {
	bytes    int64
	modified int64 // nanoseconds
}

// watched is a mapped file and its stamp when it was opened.
type watched struct {
	file *os.File
	was  stamp
}

// watch stamps a file that is about to be mapped.
func watch(file *os.File) (watched, error) {
	was, err := stampOf(file)
	if err != nil {
		return watched{}, cannotRead(err)
	}
	return watched{file, was}, nil
}

// Unchanged says why what was released of the weights is no longer what was verified: their file was truncated, or was
// written to and differs now. A file that was written to and holds the same bytes is accepted. Copies do not change.
func (b *Bundle) Unchanged() error {
	if b.store == nil {
		return nil
	}
	files := b.store.watched()
	for i := range files {
		now, err := stampOf(files[i].file)
		switch {
		case err != nil:
			return at(b.path, refuseAs(diag.ClassIO, stepWeights, "look at the file in use: %w", err))
		case now == files[i].was:
			continue
		case now.bytes != files[i].was.bytes:
			return at(b.path, refuseAs(diag.ClassIO, stepWeights,
				"the file had %d bytes and has %d: it was changed while in use, and what was computed since is not "+
					"to be used", files[i].was.bytes, now.bytes).hint(replaceHint))
		}
		if err := b.verifyAgain(); err != nil {
			return at(b.path, err)
		}
		files[i].was = now
	}
	return nil
}

const replaceHint = "replace a bundle by renaming the new file over it (mv), never by copying into it (cp); or run " +
	"it with --copy"

// verifyAgain checks all chunks of bulk blobs that were found good before.
func (b *Bundle) verifyAgain() error {
	for _, blob := range b.blobs {
		if !blob.Role.bulk() || blob.region == nil {
			continue
		}
		err := blob.verifyKnown()
		if err != nil {
			return refuseAs(diag.ClassIO, stepWeights,
				"the file was changed while in use, and what was computed since is not to be used: %w",
				err).hint(replaceHint)
		}
	}
	return nil
}

// verifyKnown checks what is known to be good once more. What is no longer stays marked, so that the next look refuses
// too.
func (x *blob) verifyKnown() error {
	if x.leaves == nil {
		if !x.all.Load() {
			return nil
		}
		whole, root, err := x.sums(context.Background(), nil)
		if err != nil {
			return err
		}
		return x.judge(whole, root)
	}
	for index := range chunks(x.Bytes, x.chunk) {
		if !x.known(index) {
			continue
		}
		if err := x.compare(index); err != nil {
			return err
		}
	}
	return nil
}
