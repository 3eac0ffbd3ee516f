package ortapi

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/native"
)

// EnvQNN names the library of Qualcomm's execution provider, before all other places. Its backends lie beside it.
const EnvQNN = "HETC_QNN_LIBRARY"

// QNNProvider is the name that Qualcomm's execution provider is registered by, and that its devices and models bear.
const QNNProvider = "QNNExecutionProvider"

// QNN is where Qualcomm's execution provider lies, and the library behind it that compiles for the NPU and, on x86,
// emulates it.
type QNN struct {
	Provider string
	Backend  string
}

// FindQNN looks for the file, or without one for what $HETC_QNN_LIBRARY names, or for the first library that is there
// (see native.Locate). Nothing is opened: the libraries are best opened in a process that may crash. The error is a
// *QNNError.
func FindQNN(file string) (*QNN, error) {
	if file == "" {
		file = os.Getenv(EnvQNN)
	}
	if err := native.Supported(); err != nil {
		return nil, &QNNError{Cause: err}
	}
	s := native.Search{File: file, Folder: filepath.Join("onnxruntime-qnn", "onnxruntime_qnn"), Names: native.FileNames("onnxruntime_providers_qnn")}
	path, tried, err := native.Locate(s)
	switch {
	case err != nil:
		return nil, &QNNError{Tried: tried, Cause: err}
	case path == "":
		return nil, &QNNError{Tried: tried}
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, &QNNError{Tried: tried, Cause: err}
	}
	if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() {
		return nil, &QNNError{Tried: tried, Cause: fmt.Errorf("library %q: it is no file that can be read", path)}
	}
	q := &QNN{Provider: path, Backend: filepath.Join(filepath.Dir(path), native.FileNames("QnnHtp")[0])}
	if _, err := os.Stat(q.Backend); err != nil {
		return nil, &QNNError{Tried: tried, Cause: fmt.Errorf("library %q: no %s beside it", path, filepath.Base(q.Backend))}
	}
	return q, nil
}

// QNNError says why there is no usable execution provider of Qualcomm. It is of class diag.ClassUnavailable.
type QNNError struct {
	Tried []string // what was looked at, in order
	Cause error    // nil: nothing in any of these places
}

// Error is why no library could be used: the cause, or where it was looked for.
func (e *QNNError) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("qualcomm's execution provider: %v", e.Cause)
	}
	return fmt.Sprintf("qualcomm's execution provider: no library in any place that was tried: %s", strings.Join(e.Tried, ", "))
}

// Unwrap returns the cause.
func (e *QNNError) Unwrap() error { return e.Cause }

// GetQNN is the way to the libraries.
const GetQNN = "make deps-qnn fetches them after naming Qualcomm's terms (linux/amd64)"

// As makes the error one of class diag.ClassUnavailable wherever it is wrapped.
func (e *QNNError) As(target any) bool {
	d, ok := target.(**diag.Diagnostic)
	if ok {
		*d = diag.New(diag.ClassUnavailable, "%s", e.Error()).WithHint("%s; or set %s to the path of libonnxruntime_providers_qnn.so", GetQNN, EnvQNN)
	}
	return ok
}

// QNNVersion is a version of one of Qualcomm's interfaces.
type QNNVersion struct{ Major, Minor, Patch int }

// String returns the version as the vendor writes it.
func (v QNNVersion) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }

// ParseQNNVersion reads "5.51.0".
func ParseQNNVersion(s string) (v QNNVersion, ok bool) {
	f := strings.Split(s, ".")
	if len(f) != 3 {
		return v, false
	}
	for i, to := range []*int{&v.Major, &v.Minor, &v.Patch} {
		n, err := strconv.ParseUint(f[i], 10, 16)
		if err != nil {
			return QNNVersion{}, false
		}
		*to = int(n)
	}
	return v, true
}

// QNNBackend is what a backend library says about itself.
type QNNBackend struct {
	Core QNNVersion // of the interface that all backends have
	API  QNNVersion // of the backend's own
}

// Version asks the backend library for its versions, by the public QnnInterface_getProviders. It opens the library.
func (q *QNN) Version() (b QNNBackend, err error) {
	l, err := native.Open(q.Backend)
	if err != nil {
		return b, &QNNError{Cause: err}
	}
	fn, err := l.Symbol("QnnInterface_getProviders")
	if err != nil {
		return b, &QNNError{Cause: err}
	}
	var list, n out
	if status := native.Call(fn, uintptr(unsafe.Pointer(&list.p)), uintptr(unsafe.Pointer(&n.p))); status != 0 || int32(n.p) < 1 || list.p == 0 {
		return b, &QNNError{Cause: fmt.Errorf("library %q: it names no interface (status %d)", q.Backend, status)}
	}
	p := native.Word(list.p, 0)
	if p == 0 {
		return b, &QNNError{Cause: fmt.Errorf("library %q: it names no interface", q.Backend)}
	}
	// QnnInterface_t: an id, a name, then two versions of three 32-bit numbers each.
	var x [6]int
	for i := range 3 {
		w := uint64(native.Word(p, 2+i))
		x[2*i], x[2*i+1] = int(uint32(w)), int(uint32(w>>32))
	}
	return QNNBackend{QNNVersion{x[0], x[1], x[2]}, QNNVersion{x[3], x[4], x[5]}}, nil
}
