package status

import (
	"bytes"
	"crypto/tls"
	"os"
	"sync"

	"k8s.io/klog/v2"
)

// Certificate is a certificate with its private key, in files that may be replaced
// at any time.
type Certificate struct {
	certFile, keyFile string

	mu        sync.Mutex
	cert, key []byte // content of the files, when they were last valid
	pair      *tls.Certificate
	lastError string // logged already; empty if the files are valid
}

// OpenCertificate reads a certificate and its private key.
func OpenCertificate(certFile, keyFile string) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile}
	return c, c.read()
}

// Get returns the certificate in the files. While they are not valid, for example
// because one is written before the other, it returns the last valid one. It has the
// signature of tls.Config.GetCertificate.
func (c *Certificate) Get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := ""
	if err := c.read(); err != nil {
		if text = err.Error(); text != c.lastError {
			klog.FromContext(hello.Context()).Error(err, "The status API keeps its last certificate because the new one cannot be read",
				"certFile", c.certFile, "keyFile", c.keyFile)
		}
	}
	c.lastError = text
	return c.pair, nil
}

// read reads the files. It is called for each handshake, which costs far more.
func (c *Certificate) read() error {
	cert, err := os.ReadFile(c.certFile)
	if err != nil {
		return err
	}
	key, err := os.ReadFile(c.keyFile)
	if err != nil {
		return err
	}
	if bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) {
		return nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return err
	}
	c.cert, c.key, c.pair = cert, key, &pair
	return nil
}
