package certs

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// part is the expected content of a file.
type part int

const (
	partChain part = iota
	partBundle
	partKey
)

// Labels of PEM blocks.
const (
	labelCertificate = "CERTIFICATE"
	labelEncrypted   = "ENCRYPTED PRIVATE KEY"
	labelOpenSSH     = "OPENSSH PRIVATE KEY"
)

// dataKeys are the keys of the part in Secrets and API responses, the best one first.
func (p part) dataKeys() []string {
	switch p {
	case partBundle:
		return []string{"ca.crt", "issuing_ca", "certificate-authority-data", "tls.crt", "certificate"}
	case partKey:
		return []string{"tls.key", "private_key", "client-key-data"}
	default:
		return []string{"tls.crt", "certificate", "ca.crt", "certificate-authority-data"}
	}
}

// label returns the PEM label of the part.
func (p part) label() string {
	if p == partKey {
		return "PRIVATE KEY"
	}
	return labelCertificate
}

// wanted returns the hint for a file that cannot be converted.
func (p part) wanted() string {
	return fmt.Sprintf(
		"put a PEM file there, with lines from -----BEGIN %s----- to -----END %s-----",
		p.label(),
		p.label(),
	)
}

// notPEM says what a file without readable blocks is, and which command converts it to PEM; "" for PEM.
func notPEM(data []byte, blocks []pemBlock, p part) (what, hint string) {
	if len(blocks) == 0 {
		return recognize(data, p)
	}
	if slices.ContainsFunc(blocks, func(b pemBlock) bool { return b.problem == "" }) {
		return "", ""
	}
	return ofDocument(bytes.TrimSpace(data), p)
}

// recognize says what data without a PEM block is, and which command converts it to PEM. It reveals none of the
// content.
func recognize(data []byte, p part) (what, hint string) {
	trimmed := bytes.TrimSpace(data)
	switch {
	case len(trimmed) == 0:
		return "empty", p.wanted()
	case isUTF16(data) != "":
		return "text in UTF-16", "convert it: iconv -f " + isUTF16(data) + " -t UTF-8 FILE > new.pem"
	case bytes.HasPrefix(data, []byte{0xfe, 0xed, 0xfe, 0xed}), bytes.HasPrefix(data, []byte{0xce, 0xce, 0xce, 0xce}):
		const first = "convert it: keytool -importkeystore -srckeystore FILE -destkeystore new.p12 -deststoretype " +
			"PKCS12, then "
		return "a Java key store", first + fromPKCS12("new.p12", p) // JKS or JCEKS
	case isPKCS12(data):
		return "PKCS#12 (.p12, .pfx, and .jks from newer Java)", "convert it: " + fromPKCS12("FILE", p)
	case isDER(data):
		what, command := ofDER(data, p)
		if strings.HasPrefix(command, "openssl") {
			command = "convert it: " + strings.Replace(command, " -inform DER", " -inform DER -in FILE", 1)
		}
		return what + " in binary DER", command
	}
	if what, hint := ofDocument(trimmed, p); what != "" {
		return what, hint
	}
	if bytes.Contains(data, []byte("---BEGIN")) {
		return "damaged PEM", copyAgain
	}
	return ofBase64(trimmed, p)
}

// fromPKCS12 returns the command that extracts the part from a key store.
func fromPKCS12(file string, p part) string {
	if p == partKey {
		return "openssl pkcs12 -in " + file + " -nocerts -nodes -out new.pem"
	}
	return "openssl pkcs12 -in " + file + " -nokeys -out new.pem"
}

// ofDER says what DER data contains, and which command converts it from stdin.
func ofDER(der []byte, p part) (what, command string) {
	if isPKCS7(der) {
		return "PKCS#7", "openssl pkcs7 -inform DER -print_certs -out new.pem"
	}
	if _, err := x509.ParseCertificateRequest(der); err == nil {
		return "a certificate request", labelHint("CERTIFICATE REQUEST")
	}
	if _, err := parseKey(der); err == nil {
		if p != partKey {
			return "a private key", removeKey
		}
		return "a private key", "openssl pkey -inform DER -out new.pem"
	}
	if rawSerial(der) != nil {
		if p == partKey {
			return "a certificate", "put the certificate's private key there"
		}
		return "a certificate", "openssl x509 -inform DER -out new.pem"
	}
	return "something else", p.wanted()
}

// isPKCS7 recognizes signedData (RFC 2315), in which issuers send certificates.
func isPKCS7(der []byte) bool {
	outer := elements(der)
	if len(outer) == 0 {
		return false
	}
	info := elements(outer[0].Bytes)
	return len(info) == 2 && bytes.Equal(info[0].FullBytes, []byte("\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x02"))
}

// ofBase64 decodes up to two layers of base64.
func ofBase64(text []byte, p part) (what, hint string) {
	decode, layer := "base64 -d FILE", "once"
	for range 2 {
		decoded, ok := unbase64(text)
		switch {
		case !ok:
			return "no PEM", p.wanted()
		case bytes.Contains(decoded, []byte("-----BEGIN")):
			return "PEM, encoded " + layer + " more as base64",
				"decode it: " + decode + " > new.pem; a Secret's `data` is already base64, but its `stringData` is not"
		case isPKCS12(decoded):
			return "PKCS#12, encoded as base64", "convert it: " + decode + " > new.p12, then " + fromPKCS12("new.p12", p)
		case isDER(decoded):
			what, command := ofDER(decoded, p)
			if strings.HasPrefix(command, "openssl") {
				command = "convert it: " + decode + " | " + command
			}
			return what + " as base64 without the BEGIN and END lines", command
		}
		text, decode, layer = decoded, decode+" | base64 -d", "twice"
	}
	return "no PEM", p.wanted()
}

// ofDocument recognizes manifests, kubeconfigs and API responses that contain PEM as a value.
func ofDocument(text []byte, p part) (what, hint string) {
	if lower := bytes.ToLower(text[:min(len(text), 20)]); bytes.HasPrefix(lower, []byte("<!doctype")) ||
		bytes.HasPrefix(lower, []byte("<html")) {
		return "a web page", "download the file again: the URL returned a web page, such as a login page"
	}
	var document any
	if bytes.ContainsAny(text[:1], `{["`) && json.Unmarshal(text, &document) == nil {
		return ofJSON(document, p)
	}
	kind := yamlKind(text)
	if kind == "" {
		return "", ""
	}
	return "the manifest of a " + kind, ofYAML(text, kind, p)
}

const fromKubeconfig = "kubectl config view --raw --flatten --kubeconfig FILE " +
	"-o jsonpath='{.clusters[0].cluster.certificate-authority-data}' | base64 -d > new.pem"

// yamlKind returns the kind of a Kubernetes manifest, or "" for other text.
func yamlKind(text []byte) string {
	found := regexp.MustCompile(`(?m)^kind: *["']?([A-Za-z]{1,60})["']? *\r?$`).FindSubmatch(text)
	if found == nil || !regexp.MustCompile(`(?m)^apiVersion:`).Match(text) {
		return ""
	}
	if string(found[1]) == "Config" {
		return "kubeconfig (Config)"
	}
	return string(found[1])
}

// otherKinds returns hints for manifests that do not contain the part directly.
func otherKinds(kind string, p part) string {
	switch kind {
	case "kubeconfig (Config)":
		if p == partKey {
			return "a kubeconfig holds only users' keys; " + p.wanted()
		}
		return "extract the CA: " + fromKubeconfig
	case "CertificateSigningRequest":
		return "extract the certificate: kubectl get -f FILE -o jsonpath='{.status.certificate}' | base64 -d > new.pem"
	case "Certificate":
		return "cert-manager puts the certificate into the Secret that spec.secretName names; pass that Secret with --secret"
	}
	return ""
}

func ofYAML(text []byte, kind string, p part) string {
	if hint := otherKinds(kind, p); hint != "" {
		return hint
	}
	for _, key := range p.dataKeys() {
		name := strings.ReplaceAll(key, ".", `\.`)
		if regexp.MustCompile(`(?m)^ +["']?` + name + `["']?: *["']?[A-Za-z0-9+/=]{40,}["']? *\r?$`).Match(text) {
			return fmt.Sprintf(`extract it: sed -n 's/^ *%s: *//p' FILE | tr -d "\"'" | base64 -d > new.pem`, name)
		}
		if regexp.MustCompile(`(?m)^ +["']?`+name+`["']?: *[|>]`).Match(text) && bytes.Contains(text, []byte("-----BEGIN")) {
			return fmt.Sprintf(
				"extract it: sed -n '/%s:/,/END/s/^ *-*\\(-----\\|[A-Za-z0-9+\\/=]*$\\)/\\1/p' FILE > new.pem",
				name,
			)
		}
	}
	return "extract the value that holds the PEM: kubectl get -f FILE -o yaml shows the keys"
}

// ofJSON finds the value with the part and returns the jq command for it.
func ofJSON(document any, p part) (what, hint string) {
	what = "JSON"
	switch top := document.(type) {
	case string:
		what = "a JSON string"
	case map[string]any:
		if kind, _ := top["kind"].(string); kind != "" && top["apiVersion"] != nil {
			what = "the manifest of a " + quote(kind)
			if kind == "Config" {
				kind = "kubeconfig (Config)"
				what = "the manifest of a " + kind
			}
			if hint := otherKinds(kind, p); hint != "" {
				return what, hint
			}
		}
	}
	for _, key := range append(p.dataKeys(), "") { // finally any key
		if path, encoded, ok := pathOf(document, key, p); ok {
			decode := ""
			if encoded {
				decode = " | base64 -d"
			}
			return what, fmt.Sprintf("extract it: jq -r '%s' FILE%s > new.pem", path, decode)
		}
	}
	return what, p.wanted()
}

// pathOf returns the jq path of the first value under this key that contains PEM of the part.
func pathOf(value any, key string, p part) (path string, encoded, ok bool) {
	var walk func(value any, path, under string) bool
	walk = func(value any, at, under string) bool {
		switch v := value.(type) {
		case string:
			plain := []byte(v)
			decoded, isBase64 := unbase64(plain)
			if isBase64 {
				plain = decoded
			}
			if (key == "" || key == under) && bytes.Contains(plain, []byte("-----BEGIN ")) &&
				bytes.Contains(plain, []byte(p.label()+"-----")) {
				path, encoded, ok = at, isBase64, true
			}
		case []any:
			for i, one := range v {
				if walk(one, fmt.Sprintf("%s[%d]", at, i), under) {
					return true
				}
			}
		case map[string]any:
			for _, name := range slices.Sorted(maps.Keys(v)) {
				next := strings.TrimSuffix(at, ".") + "." + name
				if !regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`).MatchString(name) {
					if strings.ContainsAny(name, "'\"\\") || len(name) > maxName {
						continue
					}
					next = fmt.Sprintf("%s[%q]", at, name)
				}
				if walk(v[name], next, name) {
					return true
				}
			}
		}
		return ok
	}
	walk(value, ".", "")
	return path, encoded, ok
}

// blockHint returns the hint for a malformed PEM block.
func blockHint(problem, before string, data []byte) string {
	switch {
	case strings.HasPrefix(problem, "it begins with a byte order mark") && bytes.HasPrefix(data, []byte(utf8BOM)):
		return "remove it: tail -c +4 FILE > new.pem"
	case before != "" && strings.TrimSpace(before) == "":
		return "remove the spaces: sed 's/^[[:space:]]*//' FILE > new.pem"
	case before != "" && strings.Trim(before, "> ") == "":
		return "remove the email quoting: sed 's/^[> ]*//' FILE > new.pem"
	case strings.HasPrefix(problem, "its line breaks are lost") && bytes.Contains(data, []byte(`\n`)):
		return `write the line breaks: printf '%b' "$(cat FILE)" > new.pem`
	case strings.HasPrefix(problem, "the line break between"):
		return "put that BEGIN on a new line"
	}
	return copyAgain
}

// isUTF16 returns iconv's name of the encoding, or "" for other data.
func isUTF16(data []byte) string {
	switch {
	case bytes.HasPrefix(data, []byte{0xff, 0xfe}), bytes.HasPrefix(data, []byte{0xfe, 0xff}):
		return "UTF-16"
	case !looksUTF16(data):
		return ""
	case data[0] == 0:
		return "UTF-16BE"
	default:
		return "UTF-16LE"
	}
}

// serves reports whether this may be a server's certificate: it is not a CA, or it has names or addresses.
func serves(cert *x509.Certificate) bool {
	return !isCA(cert) || len(cert.DNSNames)+len(cert.IPAddresses) > 0
}
