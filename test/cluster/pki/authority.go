package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// day is how long a certificate is good for if nobody says otherwise.
const day = 24 * time.Hour

// Authority signs certificates.
type Authority struct {
	Cert []byte // its own certificate, in PEM

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Identity is whom a certificate speaks for.
type Identity struct {
	Name   string
	Groups []string
	Addrs  []netip.Addr  // of a server; none: a client
	Life   time.Duration // from now on; 0: a day
}

// Pair is a certificate and its key, in PEM.
type Pair struct{ Cert, Key []byte }

// Write writes name.crt and name.key. A reader that comes between the two finds a
// key that does not fit, as with every renewal in the wild, and must try again.
func (p Pair) Write(dir, name string) error {
	for ext, text := range map[string][]byte{".crt": p.Cert, ".key": p.Key} {
		path := filepath.Join(dir, name+ext)
		if err := os.WriteFile(path+".next", text, 0o600); err != nil {
			return fmt.Errorf("write the certificate of %s: %w", name, err)
		}
		if err := os.Rename(path+".next", path); err != nil {
			return fmt.Errorf("replace the certificate of %s: %w", name, err)
		}
	}
	return nil
}

// NewAuthority makes an authority that signs itself.
func NewAuthority(name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of %s: %w", name, err)
	}
	t := template(Identity{Name: name})
	t.IsCA, t.BasicConstraintsValid, t.KeyUsage = true, true, x509.KeyUsageCertSign
	t.ExtKeyUsage = nil // it would limit what the authority may sign
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read the certificate of %s: %w", name, err)
	}
	return &Authority{Cert: block("CERTIFICATE", der), cert: cert, key: key}, nil
}

// Issue signs a certificate for an identity and a new key.
func (a *Authority) Issue(id Identity) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("make the key of %s: %w", id.Name, err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template(id), a.cert, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("sign the certificate of %s: %w", id.Name, err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encode the key of %s: %w", id.Name, err)
	}
	return Pair{Cert: block("CERTIFICATE", der), Key: block("PRIVATE KEY", text)}, nil
}

func template(id Identity) *x509.Certificate {
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: id.Name, Organization: id.Groups},
		NotBefore:    now.Add(-time.Minute),
		NotAfter:     now.Add(day),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if id.Life != 0 {
		t.NotAfter = now.Add(id.Life)
	}
	for _, a := range id.Addrs {
		t.IPAddresses = append(t.IPAddresses, net.IP(a.AsSlice()))
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	return t
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
