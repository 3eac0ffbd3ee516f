package servecmd

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
)

// file writes a file of a test.
func file(t *testing.T, name, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask is
		t.Fatal(err)
	}
	return path
}

// Command lines that are refused before anything is loaded, each with its way out.
func TestRefusedCommandLines(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	good := file(t, "keys", "\nabc\n\n  def  \r\n", 0o600)
	cert, _, _ := certificate(t)
	_, stranger, _ := certificate(t)
	tests := []struct {
		args  []string
		class diag.Class
		want  string
	}{
		{[]string{"--slots", "-1"}, diag.ClassUsage, "--slots must be 0 or more"},
		{[]string{"--max-queue", "0"}, diag.ClassUsage, "--max-queue must be 1 or more"},
		{[]string{"--max-connections", "0"}, diag.ClassUsage, "--max-connections must be 1 or more"},
		{[]string{"--max-body", "0"}, diag.ClassUsage, "--max-body must be 1 byte or more"},
		{[]string{"--draft", "65"}, diag.ClassUsage, "--draft must be 64 or less, got 65"},
		{[]string{"--max-body", "lots"}, diag.ClassUsage, "want a size such as"},
		{[]string{"--request-timeout", "0s"}, diag.ClassUsage, "--request-timeout must be positive"},
		{[]string{"--policy", "ful"}, diag.ClassUsage, `--policy "ful": there is no such policy`},
		{[]string{"--tls-cert", "x"}, diag.ClassUsage, "need each other"},
		{[]string{"--insecure-no-key", "--api-key-file", good}, diag.ClassUsage, "exclude each other"},
		{[]string{"--listen", "0.0.0.0:0"}, diag.ClassUsage, "there are no API keys"},
		{[]string{"--listen", ":0"}, diag.ClassUsage, "there are no API keys"},
		{[]string{"--listen", taken.Addr().String()}, diag.ClassUnavailable, "--listen"},
		{[]string{"--listen", "nowhere"}, diag.ClassUsage, "missing port in address"},
		{[]string{"--listen", "8081"}, diag.ClassUsage, "missing port in address"},
		{[]string{"--listen", "127.0.0.1:65536"}, diag.ClassUsage, "invalid port"},
		{[]string{"--listen", "127.0.0.1:none"}, diag.ClassUsage, "unknown port"},
		{[]string{"--api-key-file", good + ".not"}, diag.ClassInput, "does not exist"},
		{[]string{"--api-key-file", file(t, "empty", "\n \n", 0o600)}, diag.ClassInput, "holds no key"},
		{[]string{"--api-key-file", file(t, "blank", "ab cd\n", 0o600)}, diag.ClassInput, "blank:1: the key has a blank"},
		{[]string{"--api-key-file", file(t, "open", "abc\n", 0o644)}, diag.ClassInput, "others may read it"},
		{[]string{"--tls-cert", good, "--tls-key", good}, diag.ClassInput, "--tls-cert"},
		{[]string{"--tls-cert", cert, "--tls-key", stranger}, diag.ClassInput, "private key does not match"},
		{[]string{"--record", "."}, diag.ClassIO, "--record"},
		{[]string{"--tls-cert", os.DevNull, "--tls-key", good}, diag.ClassInput, "it is a device, want a file"},
		{[]string{"--tls-cert", good, "--tls-key", t.TempDir()}, diag.ClassInput, "it is a directory, want a file"},
		{[]string{"--slots", "9"}, diag.ClassUsage, "9 slots, and the plan has a cache for 4"},
	}
	app, key := demo(t)
	for _, test := range tests {
		if runtime.GOOS == "windows" && strings.Contains(test.want, "others") {
			continue
		}
		ui := &cli.Streams{Tool: "hetserve", Out: io.Discard, Err: io.Discard}
		args := append([]string{app, "--trust", key}, listening(test.args)...)
		err := command(ui, args...).ExecuteContext(t.Context())
		if err == nil || diag.ClassOf(err) != test.class || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: %v (class %v), want class %v and %q", test.args, err, diag.ClassOf(err), test.class, test.want)
		}
		if err != nil && strings.Contains(err.Error(), "abc") {
			t.Errorf("%v: the error shows a key: %v", test.args, err)
		}
	}
	if keys, err := readKeys(good); err != nil || len(keys) != 2 || keys[0] != "abc" || keys[1] != "def" {
		t.Errorf("keys %q, %v", keys, err)
	}
}

// certificate writes a self-signed certificate of 127.0.0.1 and its key.
func certificate(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	return certificateOf(t, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
}

// certificateOf is certificate with a time of its own.
func certificateOf(t *testing.T, from, to time.Time) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	shape := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true,
		NotBefore: from, NotAfter: to, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, shape, shape, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return file(t, "cert.pem", string(text), 0o644),
		file(t, "key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})), 0o600), pool
}

// Other machines are served with HTTPS and keys, and what is sent in the clear is said.
func TestOtherMachines(t *testing.T) {
	cert, key, pool := certificate(t)
	keys := file(t, "keys", "abc\n", 0o600)
	s := launch(t, "--listen", "0.0.0.0:0", "--api-key-file", keys, "--tls-cert", cert, "--tls-key", key)
	s.client.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	host, port, err := net.SplitHostPort(strings.TrimSuffix(strings.TrimPrefix(s.started.URL, "https://"), "/v1"))
	if err != nil || host != "localhost" {
		t.Fatalf("serves %s, %v; want a URL that clients on this machine can call", s.started.URL, err)
	}
	for header, want := range map[string]int{"Bearer abc": http.StatusOK, "": http.StatusUnauthorized} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://127.0.0.1:"+port+"/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Host = "models.example" // a name of its own is fine where keys are asked for
		request.Header.Set("Authorization", header)
		response, err := s.client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("authorization %q: status %d, want %d", header, response.StatusCode, want)
		}
	}
	s.end()
	if strings.Contains(s.errs.String(), "unencrypted") {
		t.Errorf("a warning about HTTPS: %s", s.errs)
	}
	s = launch(t, "--listen", "0.0.0.0:0", "--api-key-file", keys)
	s.end()
	if !strings.Contains(s.errs.String(), "unencrypted") {
		t.Errorf("no warning about keys in the clear: %s", s.errs)
	}
	s = launch(t, "--listen", "0.0.0.0:0", "--insecure-no-key")
	if status, text, err := s.post(context.Background(), "/completions", map[string]any{"prompt": "x"}); status != http.StatusOK {
		t.Errorf("without keys, as asked for: status %d, %s, %v", status, text, err)
	}
}

// A certificate that clients refuse by its dates is told when the server starts, with the date.
func TestCertificateOutOfDate(t *testing.T) {
	date := func(year int) time.Time { return time.Date(year, 5, 6, 7, 8, 9, 0, time.UTC) }
	for _, test := range []struct {
		from, to int
		want     string
	}{
		{2001, 2002, "certificate 1 expired on 2002-05-06T07:08:09Z"},
		{2101, 2102, "certificate 1 is valid from 2101-05-06T07:08:09Z on"},
		{2001, 2102, ""},
	} {
		cert, key, _ := certificateOf(t, date(test.from), date(test.to))
		var warned []string
		_, err := readCertificate(cert, key, date(2050), func(format string, args ...any) {
			warned = append(warned, fmt.Sprintf(format, args...))
		})
		if said := strings.Join(warned, "\n"); err != nil || !strings.Contains(said, test.want) || (test.want == "") != (said == "") {
			t.Errorf("%d to %d: told %q (%v), want %q", test.from, test.to, said, err, test.want)
		}
	}
	cert, key, _ := certificateOf(t, date(2001), date(2002))
	s := launch(t, "--tls-cert", cert, "--tls-key", key)
	s.end()
	if said := s.errs.String(); !strings.Contains(said, "expired on 2002-05-06") {
		t.Errorf("a server with an expired certificate says %q", said)
	}
}
