package accept

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/filelock"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/planir/bundle"
)

// state is a file of ratchets. It is read when a bundle is opened, and replaced as a whole when one has run, under
// a lock of its own that ends with the process: the file itself is renamed over. A process that reads it meanwhile sees
// the old or the new one.
type state struct {
	path   string
	stored bundle.Ratchets
}

// openState reads the versions that were accepted before. The directory of the file must exist.
func openState(path string) (*state, error) {
	stored := &state{path: path}
	dir := filepath.Dir(path)
	if st, err := os.Stat(dir); err != nil || !st.IsDir() { // known now rather than after the run
		return nil, diag.New(diag.ClassIO, "--%s %q: %q is no directory", flagState, path, dir).
			WithHint("make it: mkdir -p %q", dir)
	}
	var err error
	stored.stored, err = stored.read()
	return stored, err
}

// read returns what is stored; a file that is not there yet stores nothing.
func (x *state) read() (bundle.Ratchets, error) {
	data, err := wholefile.Read(x.path, bundle.MaxRatchetsBytes)
	if errors.Is(err, fs.ErrNotExist) {
		st, err := os.Lstat(x.path)
		switch {
		case err != nil:
			return nil, nil
		case st.Mode()&fs.ModeSymlink == 0:
			return x.read() // another process has made it meanwhile
		}
		return nil, diag.New(diag.ClassInput, "--%s %q: a link that leads nowhere", flagState, x.path).
			WithHint("make it lead to a file, or remove it")
	}
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flagState, err)
	}
	ratchets, err := bundle.ParseRatchets(data)
	if err != nil {
		return nil, fmt.Errorf("--%s %q: %w", flagState, x.path, err)
	}
	return ratchets, nil
}

// lockPatience is how long another process may hold the lock, which takes milliseconds.
const lockPatience = 10 * time.Second

// raise stores what a bundle that ran demands of later ones. Two processes raise one after the other, each what it
// finds then. A place that cannot be written is said and is no error: what it holds was compared.
func (x *state) raise(ui *cli.Streams, ran bundle.Ratchet) error {
	if _, raised := x.stored.Raised(ran); !raised {
		return nil
	}
	err := x.store(ran)
	switch {
	case err == nil:
		ui.Notef("%s: from now on product %q needs security version %d, keyring generation %d", x.path, ran.Product,
			ran.SecurityVersion, ran.Generation)
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS):
		ui.Warnf("%s cannot be written, so older bundles of product %q stay accepted: %v", x.path, ran.Product, err)
	default:
		return diag.New(diag.ClassIO, "the bundle ran, but its security version was not stored: %w", err).
			WithHint("until it is, older bundles of product %q stay accepted: run it again with a --%s that can be "+
				"written", ran.Product, flagState)
	}
	return nil
}

// store raises the stored version under the lock, unless another process has raised it already.
func (x *state) store(ran bundle.Ratchet) error {
	unlock, err := lock(x.path+".lock", lockPatience)
	if err != nil {
		return err
	}
	defer unlock()
	stored, err := x.read()
	if err != nil {
		return err
	}
	stored, raised := stored.Raised(ran)
	x.stored = stored
	if !raised {
		return nil // by another process
	}
	data, err := stored.Encode()
	if err != nil {
		return err
	}
	return wholefile.Write(x.path, data)
}

// lock takes a lock file, and waits for at most patience while another process has it. Systems without locks take it at
// once: there, of two processes that raise at the same time, one may be forgotten until its bundle runs again.
func lock(path string, patience time.Duration) (unlock func(), err error) {
	file, err := filelock.Open(path, 0o666)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := filelock.Try(file)
		switch {
		case err == nil, errors.Is(err, errors.ErrUnsupported):
			return func() { _ = file.Close() }, nil
		case !errors.Is(err, filelock.ErrBusy):
			return nil, errors.Join(fmt.Errorf("lock %q: %w", path, err), file.Close())
		case time.Now().After(deadline):
			return nil, errors.Join(fmt.Errorf("lock %q: another process holds it for more than %v", path, patience),
				file.Close())
		}
	}
}
