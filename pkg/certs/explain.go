package certs

// catalogue returns the explanations of all codes, in the order of the checks.
func catalogue() []Explanation {
	entries := []Explanation{
		{
			Code:        SecretNotFound,
			Cause:       "The Secret for the serving certificate does not exist.",
			Consequence: "The agent has nothing new to serve, and keeps serving the certificate that it has.",
			Fix:         "create the Secret, or correct its name: kubectl create secret tls NAME --namespace=NAMESPACE --cert=FILE --key=FILE",
			Example:     "kubectl create secret tls proxy-tls --namespace pinniped-concierge --cert=fullchain.pem --key=key.pem",
		},
		{
			Code:        SecretNotPermitted,
			Cause:       "The Secret is in another namespace, and the owner of that namespace does not permit (or no longer permits) the agent to use it.",
			Consequence: "The agent does not read the Secret, so nothing shows whether the Secret exists. If a certificate from the Secret is in service, the agent stops serving it and serves its generated certificate instead.",
			Fix:         "ask the owner of that namespace for a TLSCertificateDelegation that names the Secret and the agent's namespace, and for a Role that lets the agent read it",
			Example: "pinniped explain NAMESPACE/NAME     # what is missing\npinniped ip-tls delegate NAMESPACE/NAME   " +
				" # the owner runs this",
		},
		{
			Code:        SecretIncomplete,
			Cause:       "tls.crt or tls.key is missing or empty, or the type of the Secret cannot hold a key pair. A Secret also looks like this while its issuer is still working.",
			Consequence: "The agent has nothing new to serve yet. A certificate that is in service stays in service.",
			Fix:         "wait until the issuer has filled the Secret, or write tls.crt and tls.key to it",
			Example:     "kubectl create secret tls proxy-tls --namespace pinniped-concierge --cert=fullchain.pem --key=key.pem",
		},
		{
			Code:        TooLarge,
			Cause:       "A file is larger, or has more certificates, than any real chain or CA bundle.",
			Consequence: "The file is not read, because hostile data can take a long time to decode.",
			Fix:         "use the right file, without unneeded certificates",
		},
		{
			Code:        NotACertificate,
			Cause:       "tls.crt or the CA bundle contains something other than PEM certificates: a private key, a certificate request, DER, PKCS#12, data encoded twice as base64, a block with headers, a byte order mark, or a truncated block.",
			Consequence: "Servers and clients silently skip this part, or reject the whole file. A private key in a CA bundle would be published.",
			Fix:         "keep only blocks from -----BEGIN CERTIFICATE----- to -----END CERTIFICATE-----, as plain text",
			Example: "openssl x509 -inform DER -in FILE -out new.pem\nopenssl crl2pkcs7 -nocrl -certfile FILE | openssl pkcs7 " +
				"-print_certs -noout   # what is in a file",
		},
		{
			Code:        BadSerial,
			Cause:       "The serial number is negative, zero, or longer than 20 octets.",
			Consequence: "Some clients reject the certificate. In a CA bundle, it can invalidate the whole bundle.",
			Fix:         "have the certificate reissued by a CA that follows RFC 5280, section 4.1.2.2",
			Example:     "openssl x509 -in FILE -noout -serial",
		},
		{
			Code:        KeyMismatch,
			Cause:       "tls.key is not the private key of the serving certificate.",
			Consequence: "No TLS server can serve the pair.",
			Fix:         "use the key with which the certificate was requested",
			Example: "openssl pkey -in tls.key -pubout | sha256sum\nopenssl x509 -in tls.crt -noout -pubkey | sha256sum   " +
				"# both lines must agree",
		},
		{
			Code:        KeyEncrypted,
			Cause:       "tls.key is protected by a passphrase.",
			Consequence: "The agent cannot read the key, because it does not have the passphrase.",
			Fix:         "store the key without a passphrase; the Secret protects it",
			Example:     "openssl pkey -in encrypted.pem -out tls.key",
		},
		{
			Code:        KeyUnreadable,
			Cause:       "tls.key contains no private key that TLS servers can use: it is not PEM, damaged, or of an unknown kind.",
			Consequence: "There is no usable key.",
			Fix:         "use an RSA, ECDSA or Ed25519 key, as PEM in PKCS#8, PKCS#1 or SEC 1 form",
			Example:     "openssl pkey -inform DER -in FILE -out tls.key",
		},
		{
			Code:        KeyIsCAKey,
			Cause:       "tls.key is the private key of a CA. The serving certificate might use this key too.",
			Consequence: "An attacker who steals the CA's key from the Secret can issue certificates for any name. If the key is not that of the serving certificate, no TLS server can serve the pair.",
			Fix:         "create a separate key for the serving certificate, have a certificate issued for it, and consider replacing the CA",
		},
		{
			Code:        WeakKey,
			Cause:       "A key is too short (RSA under 2048 bits), too long (RSA over 8192), or of a kind that TLS clients do not support. If a CA's key in the CA bundle is too long, the finding is only informational.",
			Consequence: "Clients reject the certificate, or it can be forged.",
			Fix:         "have the certificate issued for an ECDSA key (P-256, P-384 or P-521), an Ed25519 key, or an RSA key of 2048 to 8192 bits",
			Example:     "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out tls.key",
		},
		{
			Code:        RSAOnlyClients,
			Cause:       "The serving certificate has an ECDSA or Ed25519 key. Generated certificates have one too. All current clients support ECDSA, so this is not a finding. \"pinniped ip-tls check\" shows the type of the key next to the names.",
			Consequence: "Clients that support only RSA, such as old Java and some scanners, cannot connect. Browsers and Windows do not support Ed25519.",
			Fix:         "do nothing, unless you use one of these clients; in that case, use a certificate with an RSA key of 2048 bits or more",
			Example: "openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:3072 -out tls.key\ncert-manager: privateKey: " +
				"{algorithm: RSA, size: 3072}",
		},
		{
			Code:        WeakSignature,
			Cause:       "The CA signed the certificate with MD5, SHA-1, or an algorithm that Go does not support. The signature of a root does not matter. For other certificates in the CA bundle, and for self-signed certificates, the finding is a warning.",
			Consequence: "kubectl and most other clients reject the certificate.",
			Fix:         "have it reissued with a signature that uses SHA-256 or better",
			Example:     "openssl x509 -in tls.crt -noout -text | grep 'Signature Algorithm'",
		},
		{
			Code:        LeafIsCA,
			Cause:       "The serving certificate is itself a CA certificate, as `openssl req -x509` creates by default.",
			Consequence: "Clients trust it as a CA, so an attacker who steals the server's key can issue certificates for any name.",
			Fix:         "create a certificate with CA:FALSE",
			Example: "openssl req -x509 -newkey rsa:2048 -nodes -days 90 -subj /CN=proxy -addext " +
				"basicConstraints=critical,CA:FALSE \\\n  -addext extendedKeyUsage=serverAuth -addext keyUsage=digitalSignature " +
				"-addext subjectAltName=DNS:proxy.example.com",
		},
		{
			Code:        NoServerAuth,
			Cause:       "The extended key usage lacks serverAuth. If the certificate has no extended key usage, or only anyExtendedKeyUsage, the finding is a warning.",
			Consequence: "Clients reject a certificate with another purpose, such as a client certificate.",
			Fix:         "have it issued for serverAuth",
			Example:     "cert-manager: usages: [digital signature, server auth]\nopenssl: extendedKeyUsage=serverAuth",
		},
		{
			Code:        KeyUsage,
			Cause:       "The key usage lacks digitalSignature.",
			Consequence: "In TLS 1.3, and with ECDHE in TLS 1.2, the server signs with this key. GnuTLS and other clients reject such a signature.",
			Fix:         "have it issued with the key usage digitalSignature",
		},
		{
			Code:        MustStaple,
			Cause:       "The certificate requires the server to staple an OCSP response (TLS feature status_request).",
			Consequence: "The impersonation proxy sends no OCSP response, so strict clients reject the connection.",
			Fix:         "have it issued without must-staple",
		},
		{
			Code:        ClocksDiffer,
			Cause:       "The clocks of this machine and of the API server differ by more than the allowed skew.",
			Consequence: "A certificate can be valid by one clock but not by the other. Tokens and client certificates fail in the same way.",
			Fix:         "synchronize both clocks with NTP",
		},
		{
			Code:        NotYetValid,
			Cause:       "The certificate's validity begins in the future. If it begins within the next five minutes (the permitted clock skew), the finding is a warning.",
			Consequence: "Every client rejects it until then.",
			Fix:         "wait, and check the issuer's clock",
			Example:     "openssl x509 -in tls.crt -noout -startdate",
		},
		{
			Code:        Expired,
			Cause:       "The certificate has expired.",
			Consequence: "Every client rejects it.",
			Fix:         "have it reissued and write it to the same Secret: the agent serves it within two seconds, without a restart. \"pinniped ip-tls status\" shows who renews it",
			Example:     "pinniped ip-tls set --secret proxy-tls --cert fullchain.pem --key key.pem",
		},
		{
			Code:        ExpiresSoon,
			Cause:       "Less than a tenth of the certificate's lifetime is left. If less than a third is left, the finding is a warning.",
			Consequence: "Clients will soon reject it. A renewal that was due did not happen.",
			Fix:         "renew it now, and find out why the renewal did not happen",
			Example:     "cert-manager: kubectl describe certificate --namespace pinniped-concierge",
		},
		{
			Code:        OutlivesIssuer,
			Cause:       "The serving certificate expires later than a CA certificate above it.",
			Consequence: "Clients reject it once the CA certificate expires.",
			Fix:         "renew the CA certificate in time, or have the serving certificate issued with a shorter lifetime",
		},
		{
			Code:        NoNames,
			Cause:       "The certificate has no subject alternative names. Go 1.15+ and Chrome 58+ ignore common names.",
			Consequence: "No client accepts it for any name.",
			Fix:         "have it reissued with subject alternative names for the names and addresses that clients use",
			Example:     "openssl: subjectAltName=DNS:proxy.example.com,IP:203.0.113.7\ncert-manager: dnsNames, ipAddresses",
		},
		{
			Code:        EndpointInvalid,
			Cause:       "spec.impersonationProxy.externalEndpoint is not HOST or HOST:PORT.",
			Consequence: "No endpoint can be published to clients. For a trailing dot or an IPv4-mapped IPv6 address (::ffff:203.0.113.7), the finding is a warning: both break clients built on OpenSSL, and such an address also breaks clients built on GnuTLS.",
			Fix:         "write a DNS name, an IPv4 address, or an IPv6 address (in brackets before a port), without https:// or a path",
			Example:     "proxy.example.com   proxy.example.com:8443   203.0.113.7:443   2001:db8::7   [2001:db8::7]:8443",
		},
		{
			Code:        NameNotCovered,
			Cause:       "The certificate lacks a name or address that clients use. A wildcard such as *.example.com covers one level below example.com, but not example.com itself; an IP address must be in the certificate as an IP address, not as a DNS name. For names that are not published, such as those of a load balancer behind an external endpoint, the finding is informational.",
			Consequence: "Clients that connect with this name reject the certificate.",
			Fix:         "have the certificate issued for this name too, or publish another name",
			Example:     "openssl x509 -in tls.crt -noout -ext subjectAltName",
		},
		{
			Code:        LoadBalancerIPUnused,
			Cause:       "loadBalancerIP is set, but the external endpoint resolves to other addresses.",
			Consequence: "Clients do not use the configured load balancer.",
			Fix:         "correct the DNS record, or remove loadBalancerIP",
			Example:     "getent ahosts proxy.example.com",
		},
		{
			Code:        ChainOrder,
			Cause:       "The certificates in tls.crt are in the wrong order. The serving certificate must come first, then each certificate's issuer.",
			Consequence: "If a root comes first, TLS libraries report that the private key does not match. Several clients reject any other wrong order.",
			Fix:         "write them in the right order",
			Example:     "cat leaf.pem intermediate.pem > fullchain.pem",
		},
		{
			Code:        ChainIncomplete,
			Cause:       "An intermediate certificate is missing between the serving certificate and the CA that clients trust. If the cause could also be an untrusted root, the code is BundleDoesNotVerify.",
			Consequence: "Clients cannot verify the certificate, except browsers that download missing intermediates.",
			Fix:         "append the CA's intermediate certificates to tls.crt",
			Example:     "cat serving.pem intermediate.pem > tls.crt",
		},
		{
			Code:        ChainExtra,
			Cause:       "tls.crt contains a root, a duplicate, or an unrelated certificate.",
			Consequence: "Every handshake sends it needlessly, and some clients fail.",
			Fix:         "remove it",
		},
		{
			Code:        IntermediateInvalid,
			Cause:       "A CA certificate in tls.crt is not valid for its purpose: it is not a CA certificate, lacks keyCertSign, has too many CAs below it, has expired, is not for TLS servers, or has name constraints that exclude a name of the serving certificate.",
			Consequence: "Clients reject the chain.",
			Fix:         "get a valid intermediate from the CA, or use another CA",
		},
		{
			Code:        BundleDoesNotVerify,
			Cause:       "The CA bundle that would be published (or, if there is none, the set of system roots) does not verify the serving certificate. Either it lacks the CA that issued the certificate, or an intermediate CA is missing from tls.crt.",
			Consequence: "Every new kubeconfig fails with the error: certificate signed by unknown authority.",
			Fix:         "publish the certificate of the CA that issued it; if that is an intermediate CA, append its certificate to tls.crt",
			Example:     "openssl verify -CAfile ca.pem -untrusted tls.crt tls.crt",
		},
		{
			Code:        BundleMember,
			Cause:       "A certificate in the CA bundle has expired, is a duplicate, is not a CA, expires before the serving certificate, or cannot be distinguished from another one with the same name.",
			Consequence: "kubectl is not affected today, because other certificates in the bundle verify the serving certificate. Programs that use OpenSSL or GnuTLS may fail, because they may pick this certificate instead of the right one with the same name.",
			Fix:         "remove it, or add the CA's new certificate",
		},
		{
			Code:        BundleNotFound,
			Cause:       "The object that spec.impersonationProxy.tls.certificateAuthorityDataSource names does not exist, cannot be read, or has nothing under the key.",
			Consequence: "The certificate and the CA bundle that are in service stay in service, but renewals are not served.",
			Fix:         "create the object, or correct its name and key: kubectl get configmaps --namespace=NAMESPACE",
			Example:     "kubectl create configmap company-ca --namespace pinniped-concierge --from-file=ca.crt=company-ca.pem",
		},
		{
			Code:        BundleEmpty,
			Cause:       "No CA bundle is configured, and the Secret has no ca.crt.",
			Consequence: "Clients verify with their system roots. That works only for a certificate from a public CA.",
			Fix:         "for a private CA, pass --ca-bundle FILE or put ca.crt into the Secret",
		},
		{
			Code:        OldClientsBreak,
			Cause:       "Existing clients verify the certificate in service but would not verify the new one, because it is from another CA or lacks a name.",
			Consequence: "Their kubeconfigs would stop working when the certificate changes. \"pinniped ip-tls history\" lists the revisions.",
			Fix:         "if the CA is new, rotate kubeconfigs while both trust bundles are published; the agent serves the new certificate once no client would break. If a name is missing, have the certificate reissued with that name. If no kubeconfigs of a revision are left, run \"pinniped ip-tls history --retire ID\"",
			Example: "pinniped ip-tls set --secret NEW --ca-bundle new-ca.pem\npinniped kubeconfig rotate kubeconfigs/   # " +
				"both CAs\npinniped ip-tls set --secret NEW --ca-bundle new-ca.pem --kubeconfigs kubeconfigs/",
		},
		{
			Code:        StrictClients,
			Cause:       "A certificate violates RFC 5280 or a rule of strict clients. There are four typical cases. The certificate lacks key identifiers or, if it is a CA, the key usage or critical basic constraints. Its authority key identifier has the serial number of another CA certificate. The bundle contains an intermediate without its root. Of two cross-signed certificates in tls.crt, only the second leads to a CA in the bundle.",
			Consequence: "kubectl works, but other clients fail, and the message names them. They are either Python 3.13 and later and OpenSSL in strict mode, or all programs that use OpenSSL or GnuTLS.",
			Fix:         "have it issued by a CA that follows RFC 5280",
		},
		{
			Code:        HandshakeFailed,
			Cause:       "An in-memory TLS handshake with this certificate, key and CA bundle failed.",
			Consequence: "Real clients would fail in the same way.",
			Fix:         "see the message; if that does not help, reissue the certificate with a new key",
		},
		{
			Code:        EndpointUnreachable,
			Cause:       "The endpoint has no address, or one of its addresses does not respond or presents no certificate.",
			Consequence: "Clients that use this address fail.",
			Fix:         "check, in this order: the agent's pods, the Service's address and endpoints, DNS, firewalls",
			Example:     "pinniped ip-tls status\nkubectl get pods,services,endpointslices --namespace=pinniped-concierge",
		},
		{
			Code:        EndpointServesOther,
			Cause:       "An address of the endpoint presents a certificate that was not configured.",
			Consequence: "Clients that use this address fail, or reach another server.",
			Fix:         "check the network path: DNS, the load balancer, an ingress that terminates TLS, a stale replica",
			Example:     "openssl s_client -connect ADDRESS:443 -servername proxy.example.com -showcerts </dev/null",
		},
	}
	for i := range entries {
		entries[i].Severity = entries[i].Code.severity()
	}
	return entries
}
