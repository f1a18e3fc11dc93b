package keyset

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/fips140"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"
)

// maxRSA limits the cost of verifying a signature.
const maxRSA = 16384

// minRSA is the minimum key size with which Go verifies signatures.
func minRSA() int {
	if fips140.Enabled() {
		return 2048
	}
	return 1024
}

// fields holds the string members of a key that are needed.
type fields map[string]string

// decode parses one key of a set. It ignores members that are irrelevant for signatures.
func decode(text []byte) (fields, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil || members == nil {
		return nil, errors.New("it is not a JSON object")
	}
	found := fields{}
	for _, name := range []string{"kid", "kty", "use", "crv", "n", "e", "x", "y"} {
		value, ok := members[name]
		if !ok {
			continue
		}
		var one *string
		if err := json.Unmarshal(value, &one); err != nil {
			return nil, fmt.Errorf("its %s is not text", name)
		}
		if one != nil {
			found[name] = *one
		}
	}
	if _, ok := members["d"]; ok {
		found["d"] = "private"
	}
	if found["kty"] == "" {
		return nil, errors.New("it has no kind (kty)")
	}
	return found, nil
}

// public returns the public key.
func (f fields) public() (any, error) {
	switch use := f["use"]; {
	case use != "" && use != "sig":
		return nil, fmt.Errorf("it is not for signatures (its use is %q)", plain(use))
	case f["d"] != "":
		return nil, errors.New("it is published with its private part, so anyone can sign with it")
	}
	switch kind := f["kty"]; kind {
	case "RSA":
		return f.rsa()
	case "EC":
		return f.ec()
	case "OKP":
		return f.edwards()
	default:
		return nil, fmt.Errorf("its kind (kty) is %q, not RSA, EC or OKP", plain(kind))
	}
}

func (f fields) rsa() (any, error) {
	modulus, err := f.number("n")
	if err != nil {
		return nil, err
	}
	exponent, err := f.number("e")
	if err != nil {
		return nil, err
	}
	n, e := new(big.Int).SetBytes(modulus), new(big.Int).SetBytes(exponent)
	switch size := n.BitLen(); {
	case size < minRSA() || size > maxRSA:
		return nil, fmt.Errorf("it is a %d-bit RSA key, not %d to %d bits", size, minRSA(), maxRSA)
	case n.Bit(0) == 0:
		return nil, errors.New("its modulus (n) is even")
	case e.BitLen() < 2 || e.BitLen() > 31 || e.Bit(0) == 0:
		return nil, errors.New("its exponent (e) is not an odd number from 3 to 2147483647")
	}
	return &rsa.PublicKey{N: n, E: int(e.Int64())}, nil
}

func (f fields) ec() (any, error) {
	var curve elliptic.Curve
	switch name := f["crv"]; name {
	case "P-256":
		curve = elliptic.P256()
	case "P-384":
		curve = elliptic.P384()
	case "P-521":
		curve = elliptic.P521()
	default:
		return nil, fmt.Errorf("its curve (crv) is %q, not P-256, P-384 or P-521", plain(name))
	}
	size := (curve.Params().BitSize + 7) / 8
	point := []byte{4} // uncompressed
	for _, name := range []string{"x", "y"} {
		coordinate, err := f.number(name)
		if err != nil {
			return nil, err
		}
		// Some issuers omit leading zeros, and some add one.
		coordinate = bytes.TrimLeft(coordinate, "\x00")
		if len(coordinate) > size {
			return nil, fmt.Errorf("its %s has %d bytes; a coordinate of %s has %d", name, len(coordinate), f["crv"], size)
		}
		point = append(point, make([]byte, size-len(coordinate))...)
		point = append(point, coordinate...)
	}
	public, err := ecdsa.ParseUncompressedPublicKey(curve, point)
	if err != nil {
		return nil, fmt.Errorf("its point (x, y) is not on the curve %s", f["crv"])
	}
	return public, nil
}

func (f fields) edwards() (any, error) {
	if name := f["crv"]; name != "Ed25519" {
		return nil, fmt.Errorf("its curve (crv) is %q, not Ed25519", plain(name))
	}
	x, err := f.number("x")
	if err != nil {
		return nil, err
	}
	if len(x) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("its x has %d bytes, not %d", len(x), ed25519.PublicKeySize)
	}
	return ed25519.PublicKey(x), nil
}

// number decodes base64url. It tolerates padding and the standard alphabet.
func (f fields) number(name string) ([]byte, error) {
	text := strings.NewReplacer("+", "-", "/", "_").Replace(strings.TrimRight(f[name], "="))
	number, err := base64.RawURLEncoding.DecodeString(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("its %s is not base64", name)
	case len(number) == 0:
		return nil, fmt.Errorf("it has no %s", name)
	}
	return number, nil
}
