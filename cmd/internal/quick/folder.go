package quick

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/workload"
)

// quickBuckets are few, so that there is little to measure.
var quickBuckets = []int{64, 256}

// keygen returns the step that makes a key pair, none where there is one. It refuses a pair that cannot be used,
// because the step that signs comes last.
func keygen(base string) ([][]string, error) {
	there := false
	for _, file := range []string{base + ".key", base + ".pub"} {
		if _, err := os.Lstat(file); err == nil {
			there = true
		}
	}

	if !there {
		return [][]string{{"keygen", "--out", base}}, nil
	}
	if err := usableKey(base); err != nil {
		return nil, diag.New(diag.ClassOr(err, diag.ClassInput), "quick: key pair %q: %w", base, err).
			WithHint("the same hetc quick with --again makes a new pair")
	}
	return nil, nil
}

// quickWorkload permits the schemes in both phases.
func quickWorkload(schemes []op.Scheme) workload.Workload {
	return workload.Workload{Schema: workload.Schema, Buckets: quickBuckets,
		Schemes: workload.Schemes{Prefill: schemes, Decode: schemes}}
}

// repair removes files that no step could use or replace, so that the steps make them anew.
func (q *quick) repair(file func(string) string) error {
	soc, key := file("soc.yaml"), file("local")
	_, workloadErr := workload.Read(file("workload.yaml"))
	machine, socErr := socs.Open(soc)
	if socErr == nil && machine.Fingerprint != host.Fingerprint() {
		socErr = errors.New("it describes another machine")
	}

	for _, broken := range []struct {
		err   error
		files []string
	}{
		{socErr, []string{soc}},
		{workloadErr, []string{file("workload.yaml")}},
		{usableKey(key), []string{key + ".key", key + ".pub"}},
	} {
		if broken.err == nil {
			continue
		}

		// The step makes a missing file. Half of a key pair is of no use, so that the other half goes too.
		missing := errors.Is(broken.err, fs.ErrNotExist)
		if missing && len(broken.files) == 1 {
			continue
		}

		for _, path := range broken.files {
			if err := q.discard(path, broken.err); err != nil {
				return err
			}
		}
	}

	return nil
}

// usableKey returns an error if a key pair cannot sign, or if its public key does not verify its signatures.
func usableKey(base string) error {
	private, err := emit.LoadSigningKey(base + ".key")
	if err != nil {
		return err
	}
	trust, err := bundle.LoadTrust(base + ".pub")
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(trust.Keys, func(k bundle.Key) bool { return k.ID() == private.Public.ID() }) {
		return errors.New("they are no pair")
	}
	return nil
}

// discard removes a file, if it exists, and says why.
func (q *quick) discard(path string, why error) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return diag.New(diag.ClassIO, "quick: %w", err)
	}
	q.ui.Notef("%s is made anew: %v", path, why)
	return nil
}

// usableRecord checks the record that a profile step would resume. A record of another SoC file,
// machine or kernel version cannot be continued; with --again it is discarded.
func (q *quick) usableRecord(ctx context.Context, step []string) error {
	value := func(flags ...string) string {
		flag := slices.IndexFunc(step, func(word string) bool { return slices.Contains(flags, word) })
		return step[flag+1]
	}
	path := value("-o")
	if _, err := os.Stat(path); err != nil {
		return nil
	}
	soc, err := socs.Open(value("--soc", "--target"))
	if err != nil {
		return err
	}
	header, err := profiler.Header(soc, host.Fingerprint(), host.Kernels(), cli.Version, 1)
	if err != nil {
		return err
	}
	if err := bindings.LibraryVersions(ctx, soc, &header); err != nil {
		return err
	}

	writer, err := record.Resume(path, header)
	switch {
	case err == nil:
		return writer.Close()
	case diag.ClassOf(err) != diag.ClassInput:
		return err
	case q.options.Again:
		return q.discard(path, err)
	}

	return diag.New(diag.ClassInput, "quick: %w", err).WithHint("the same hetc quick with --again measures anew")
}

// workload writes the workload file. A file that exists is kept, also an edited one, unless
// --schemes asks for other schemes.
func (q *quick) workload(path string, schemes []op.Scheme) (changed bool, err error) {
	workload := quickWorkload(schemes)
	text, err := decode.YAML(workload)
	if err != nil {
		return false, err
	}

	const mostBytes = 1 << 20
	old, err := wholefile.Read(path, mostBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return true, wholefile.Write(path, text)
	}
	if err != nil {
		return false, err
	}

	// Without --schemes nothing contradicts the file, which may have been edited by hand.
	if bytes.Equal(old, text) || len(q.options.Schemes) == 0 {
		return false, nil
	}
	return true, wholefile.Write(path, text)
}

// current reports whether the bundle holds the plan, and both belong to the model, the calibration
// ("" for none) and this machine.
func (q *quick) current(plan, app string, model *models.Model, calibration string) bool {
	read, err := plantext.Read(plan)
	if err != nil || read.SoC.Fingerprint != host.Fingerprint() || read.Calibration() != calibration {
		return false
	}
	digest, err := model.Digest()
	if err != nil || digest != read.Model.Digest {
		return false
	}

	code, err := planir.Encode(read)
	if err != nil {
		return false
	}

	// Comparing digests suffices, because hetrun verifies the bundle before it executes it.
	unverified, err := bundle.Inspect(app)
	if err != nil || unverified.Manifest.Toolchain.Hetc != cli.Version {
		return false
	}
	files, err := model.TokenizerFiles()
	if err != nil {
		return false
	}

	missing := map[string][]byte{"plan": code}
	maps.Copy(missing, files)
	for _, blob := range unverified.Manifest.Blobs {
		data, ok := missing[blob.Name]
		if ok && sha256.Sum256(data) == blob.SHA256 {
			delete(missing, blob.Name)
		}
	}

	return len(missing) == 0
}
