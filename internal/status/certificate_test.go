package status

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

// issue returns a self-signed certificate with a common name, and its key.
func issue(t *testing.T, name string) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

// TestCertificateIsReplaced makes TLS handshakes before, while and after the files
// are replaced.
func TestCertificateIsReplaced(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	write := func(file string, text []byte) {
		t.Helper()
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	oldCert, oldKey := issue(t, "old")
	newCert, newKey := issue(t, "new")
	write(certFile, oldCert)
	if _, err := OpenCertificate(certFile, keyFile); err == nil || !strings.Contains(err.Error(), keyFile) {
		t.Errorf("without a key: error %v, want one that names it", err)
	}
	write(keyFile, oldKey)
	c, err := OpenCertificate(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	ctx := klog.NewContext(t.Context(), logger)
	expect := func(what, want string) {
		t.Helper()
		if got := presented(ctx, t, c); got != want {
			t.Errorf("%s: certificate %s, want %s", what, got, want)
		}
	}
	expect("at first", "old")
	write(certFile, newCert)
	expect("with half of it written", "old")
	expect("and again", "old")
	if err := os.Remove(keyFile); err != nil {
		t.Fatal(err)
	}
	expect("without a key", "old")
	write(keyFile, newKey)
	expect("with all of it written", "new")
	said := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	if n := strings.Count(said, "keeps its last certificate"); n != 2 {
		t.Errorf("%d errors logged, want one for each distinct error:\n%s", n, said)
	}
}

// presented returns the common name of the certificate that a client gets.
func presented(ctx context.Context, t *testing.T, c *Certificate) string {
	t.Helper()
	here, there := net.Pipe()
	defer here.Close()
	server := tls.Server(there, &tls.Config{GetCertificate: c.Get})
	ended := make(chan error, 1)
	go func() { ended <- server.HandshakeContext(ctx) }()
	client := tls.Client(here, &tls.Config{InsecureSkipVerify: true})
	if err := client.HandshakeContext(ctx); err != nil {
		t.Fatal(err)
	}
	name := client.ConnectionState().PeerCertificates[0].Subject.CommonName
	here.Close()
	<-ended // its error does not matter: the client may have closed the connection first
	there.Close()
	return name
}
