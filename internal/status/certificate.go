package status

import (
	"bytes"
	"crypto/tls"
	"os"
	"sync"

	"k8s.io/klog/v2"
)

// Certificate is one in files, which may be replaced at any time.
type Certificate struct {
	certFile, keyFile string

	mu        sync.Mutex
	cert, key []byte // as read
	pair      *tls.Certificate
	complaint string // the last one, which is not repeated
}

// OpenCertificate reads a certificate and its private key.
func OpenCertificate(certFile, keyFile string) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile}
	return c, c.read()
}

// Get returns what the files have. While they cannot be used, as when one is
// written before the other, it is what they had.
func (c *Certificate) Get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := ""
	if err := c.read(); err != nil {
		if text = err.Error(); text != c.complaint {
			klog.FromContext(hello.Context()).Error(err, "The certificate of the status API cannot be read, the last one stays",
				"certFile", c.certFile, "keyFile", c.keyFile)
		}
	}
	c.complaint = text
	return c.pair, nil
}

// read takes what is new. To read two small files is nothing beside a handshake.
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
