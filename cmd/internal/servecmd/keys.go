package servecmd

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
)

// maxKeyFile is the size of the largest file of API keys, and of the largest PEM file.
const maxKeyFile = 1 << 20

// readKeys reads a file with an API key a line. As with signing keys, nobody but its owner may read it; Windows has
// other permissions, which are not looked at. Errors never show a key.
func readKeys(path string) ([]string, error) {
	file, err := wholefile.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--api-key-file: %w", err)
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return nil, diag.New(diag.ClassIO, "--api-key-file: %w", err)
	}
	if mode := st.Mode().Perm(); runtime.GOOS != "windows" && mode&0o077 != 0 {
		return nil, diag.New(diag.ClassInput, "--api-key-file %q has permissions %#o: others may read it", path, mode).
			WithHint("chmod 600 %s, and change the keys if somebody may have read them", path)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxKeyFile+1))
	if err != nil {
		return nil, diag.New(diag.ClassIO, "--api-key-file: %w", err)
	}
	if len(text) > maxKeyFile {
		return nil, diag.New(diag.ClassInput, "--api-key-file %q has more than %d bytes", path, maxKeyFile)
	}
	return parseKeys(path, string(text))
}

// parseKeys reads a key of each line that is not blank. A key is one word, as headers can carry it.
func parseKeys(path, text string) (keys []string, err error) {
	number := 0
	for line := range strings.Lines(text) {
		number++
		key := strings.TrimSpace(line)
		if key == "" {
			continue
		}
		if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, diag.New(diag.ClassInput, "%s:%d: the key has a blank or a character beyond ASCII", path, number).
				WithHint("write one word a line")
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, diag.New(diag.ClassInput, "--api-key-file %q holds no key", path).
			WithHint("write one a line, for example of: openssl rand -hex 32")
	}
	return keys, nil
}

// readCertificate reads a certificate chain and the private key of its first certificate, both PEM. Only regular files
// are read: from a pipe that nobody writes to the server would wait for ever. warn is told of certificates that clients
// refuse now.
func readCertificate(certFile, keyFile string, now time.Time, warn func(format string, args ...any)) (*tls.Config,
	error) {
	chain, err := wholefile.Read(certFile, maxKeyFile)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert: %w", err)
	}
	key, err := wholefile.Read(keyFile, maxKeyFile)
	if err != nil {
		return nil, fmt.Errorf("--tls-key: %w", err)
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, diag.New(diag.ClassInput, "--tls-cert %q, --tls-key %q: %w", certFile, keyFile, err).
			WithHint("give PEM files: the certificate chain, and the private key of its first certificate")
	}
	for i, der := range pair.Certificate {
		certificate, err := x509.ParseCertificate(der)
		switch {
		case err != nil:
			return nil, diag.New(diag.ClassInput, "--tls-cert %q: certificate %d: %w", certFile, i+1, err)
		case now.After(certificate.NotAfter):
			warn("--tls-cert %q: certificate %d expired on %s, so that clients refuse it: renew it and start again", certFile,
				i+1, certificate.NotAfter.UTC().Format(time.RFC3339))
		case now.Before(certificate.NotBefore):
			warn("--tls-cert %q: certificate %d is valid from %s on, and clients refuse it until then", certFile, i+1,
				certificate.NotBefore.UTC().Format(time.RFC3339))
		}
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}}, nil
}
