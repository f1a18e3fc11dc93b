package certs

// catalogue is the text behind every code, in the order in which the checks run.
func catalogue() []Explanation {
	entries := []Explanation{
		{
			Code:        SecretNotFound,
			Cause:       "The Secret that should hold the serving certificate does not exist.",
			Consequence: "There is nothing to serve. A certificate that is being served stays in service.",
			Fix: "create the Secret, or correct its name: kubectl create secret tls NAME --namespace=NAMESPACE " +
				"--cert=FILE --key=FILE",
			Example: "kubectl create secret tls proxy-tls --namespace pinniped-concierge --cert=fullchain.pem --key=key.pem",
		},
		{
			Code: SecretNotPermitted,
			Cause: "The Secret lies in another namespace, and its owner does not permit the agent to use it, or no " +
				"longer does.",
			Consequence: "The Secret is not read; nothing tells whether it exists. A certificate from it that was being " +
				"served is taken out of service, and the agent's generated one is served.",
			Fix: "ask the owner of that namespace for a TLSCertificateDelegation which names the Secret and the agent's " +
				"namespace, and a Role that lets the agent read it",
			Example: "pinniped explain NAMESPACE/NAME     # what is missing\npinniped ip-tls delegate NAMESPACE/NAME   " +
				" # for the owner: makes it",
		},
		{
			Code: SecretIncomplete,
			Cause: "tls.crt or tls.key is missing or empty, or the Secret is of a type that does not hold a key pair. " +
				"An issuer that is still at work leaves a Secret like that.",
			Consequence: "There is nothing to serve yet. A certificate that is being served stays in service.",
			Fix:         "wait until the issuer has filled the Secret, or put tls.crt and tls.key there",
			Example:     "kubectl create secret tls proxy-tls --namespace pinniped-concierge --cert=fullchain.pem --key=key.pem",
		},
		{
			Code:        TooLarge,
			Cause:       "A file is larger, or holds more certificates, than any real certificate chain or CA bundle needs.",
			Consequence: "It is not read at all, as decoding hostile data could take very long.",
			Fix:         "put the right file there, and leave out certificates that are not needed",
		},
		{
			Code: NotACertificate,
			Cause: "Something else than a PEM certificate stands in tls.crt or in the CA bundle: a private key, a " +
				"request, DER, PKCS#12, base64 of base64, a block with headers, a byte order mark in front of a block, a block " +
				"cut short.",
			Consequence: "Servers and clients skip such a block in silence, or refuse the whole file. A private key in a CA " +
				"bundle would be handed to everybody.",
			Fix: "leave only blocks from -----BEGIN CERTIFICATE----- to -----END CERTIFICATE-----, as plain text",
			Example: "openssl x509 -inform DER -in FILE -out new.pem\nopenssl crl2pkcs7 -nocrl -certfile FILE | openssl pkcs7 " +
				"-print_certs -noout   # what is in a file",
		},
		{
			Code:        BadSerial,
			Cause:       "The serial number is negative, zero, or longer than 20 octets.",
			Consequence: "Some clients refuse the certificate; one such member can spoil a whole CA bundle.",
			Fix:         "have the certificate issued again by a CA that follows RFC 5280, section 4.1.2.2",
			Example:     "openssl x509 -in FILE -noout -serial",
		},
		{
			Code:        KeyMismatch,
			Cause:       "tls.key is not the private key of the serving certificate.",
			Consequence: "No TLS server can serve the pair.",
			Fix:         "put the key there that the certificate was requested with",
			Example: "openssl pkey -in tls.key -pubout | sha256sum\nopenssl x509 -in tls.crt -noout -pubkey | sha256sum   " +
				"# both lines must agree",
		},
		{
			Code:        KeyEncrypted,
			Cause:       "tls.key is protected by a passphrase.",
			Consequence: "The agent cannot read it: no one is there to type the passphrase.",
			Fix:         "store the key decrypted; the Secret protects it",
			Example:     "openssl pkey -in encrypted.pem -out tls.key",
		},
		{
			Code:        KeyUnreadable,
			Cause:       "tls.key holds no private key that TLS servers can use: no PEM, damaged, or of an unknown kind.",
			Consequence: "There is nothing to serve with.",
			Fix:         "put an RSA, ECDSA or Ed25519 key there, as PEM in PKCS#8, PKCS#1 or SEC 1 form",
			Example:     "openssl pkey -inform DER -in FILE -out tls.key",
		},
		{
			Code: KeyIsCAKey,
			Cause: "tls.key is the private key of a CA: not that of the serving certificate, or the serving certificate " +
				"was made with its CA's own key.",
			Consequence: "The CA's key is where it can be stolen, and with it certificates can be issued for any name. When " +
				"it is not the key of the serving certificate, too, no TLS server can serve the pair.",
			Fix: "put a key of the serving certificate's own there, with a certificate that was issued for it, and consider " +
				"whether the CA must be replaced",
		},
		{
			Code: WeakKey,
			Cause: "A key is too short (RSA under 2048 bits), too long (RSA over 8192), or of a kind that TLS clients " +
				"do not support. A CA whose key is too long is information while it is in the CA bundle only.",
			Consequence: "Clients refuse the certificate, or it can be forged.",
			Fix: "have the certificate issued for a key of ECDSA P-256, P-384, P-521, Ed25519, or RSA from 2048 to " +
				"8192 bits",
			Example: "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out tls.key",
		},
		{
			Code: RSAOnlyClients,
			Cause: "The serving certificate has an ECDSA or Ed25519 key, as the agent's generated one and those of many " +
				"issuers have. ECDSA, which all current clients know, is no finding; " +
				"\"pinniped ip-tls check\" shows it next to the names.",
			Consequence: "Clients that know RSA only, such as old Java and some scanners, cannot connect. Ed25519 is unknown " +
				"to browsers and to Windows as well.",
			Fix: "nothing, as long as no such client is in use; else bring a certificate with an RSA key of 2048 bits or " +
				"more, which the agent serves as well",
			Example: "openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:3072 -out tls.key\ncert-manager: privateKey: " +
				"{algorithm: RSA, size: 3072}",
		},
		{
			Code: WeakSignature,
			Cause: "The CA signed the certificate with MD5, SHA-1, or an algorithm that Go programs do not know. The " +
				"signature of a root under itself does not matter; under another certificate that stands in the CA bundle " +
				"itself, or that is self-signed, it is a warning.",
			Consequence: "kubectl and most other clients refuse the certificate.",
			Fix:         "have it issued again with a signature over SHA-256 or better",
			Example:     "openssl x509 -in tls.crt -noout -text | grep 'Signature Algorithm'",
		},
		{
			Code:  LeafIsCA,
			Cause: "The serving certificate is itself a CA certificate, as plain `openssl req -x509` makes them.",
			Consequence: "Clients trust it as a CA: an attacker who gets hold of the server's key can issue certificates for " +
				"any name.",
			Fix: "make a certificate with CA:FALSE",
			Example: "openssl req -x509 -newkey rsa:2048 -nodes -days 90 -subj /CN=proxy -addext " +
				"basicConstraints=critical,CA:FALSE \\\n  -addext extendedKeyUsage=serverAuth -addext keyUsage=digitalSignature " +
				"-addext subjectAltName=DNS:proxy.example.com",
		},
		{
			Code: NoServerAuth,
			Cause: "The extended key usage does not name serverAuth. Without any extended key usage, or with " +
				"anyExtendedKeyUsage alone, it is a warning only.",
			Consequence: "Clients refuse a certificate that is meant for something else, such as a client certificate.",
			Fix:         "have it issued for serverAuth",
			Example:     "cert-manager: usages: [digital signature, server auth]\nopenssl: extendedKeyUsage=serverAuth",
		},
		{
			Code:        KeyUsage,
			Cause:       "The key usage lacks digitalSignature.",
			Consequence: "TLS 1.3 and ECDHE in TLS 1.2 sign with this key; GnuTLS and others refuse that.",
			Fix:         "have it issued with the key usage digitalSignature",
		},
		{
			Code:        MustStaple,
			Cause:       "The certificate demands that the server staples an OCSP answer (TLS feature status_request).",
			Consequence: "The impersonation proxy sends none; clients that insist refuse the connection.",
			Fix:         "have it issued without must-staple",
		},
		{
			Code:  ClocksDiffer,
			Cause: "The clocks of this machine and of the API server are further apart than the skew allows.",
			Consequence: "A certificate is valid for one and not for the other; tokens and client certificates fail in the " +
				"same way.",
			Fix: "synchronise both clocks by NTP",
		},
		{
			Code: NotYetValid,
			Cause: "The certificate's validity begins in the future. Within the clock skew of five minutes it is a " +
				"warning.",
			Consequence: "Every client refuses it until then.",
			Fix:         "wait until then; check the clock of the machine that issues",
			Example:     "openssl x509 -in tls.crt -noout -startdate",
		},
		{
			Code:        Expired,
			Cause:       "The certificate's validity is over.",
			Consequence: "Every client refuses it.",
			Fix: "have it issued again, and put it into the same Secret: the agent serves it within two seconds, without a " +
				"restart. \"pinniped ip-tls status\" tells who renews it",
			Example: "pinniped ip-tls set --secret proxy-tls --cert fullchain.pem --key key.pem",
		},
		{
			Code:        ExpiresSoon,
			Cause:       "Less than a tenth of the certificate's lifetime is left; a warning when it is less than a third.",
			Consequence: "Clients will be locked out soon. A renewal that should have happened did not.",
			Fix:         "renew it now, and find out why that did not happen",
			Example:     "cert-manager: kubectl describe certificate --namespace pinniped-concierge",
		},
		{
			Code:        OutlivesIssuer,
			Cause:       "The serving certificate is valid longer than a CA certificate above it.",
			Consequence: "Clients refuse it from the day on which the CA certificate expires, long before its own end.",
			Fix:         "renew the CA certificate in time, or have the serving certificate issued for a shorter time",
		},
		{
			Code: NoNames,
			Cause: "The certificate has no subject alternative names. A common name has not counted since Go 1.15 and " +
				"Chrome 58.",
			Consequence: "No client accepts it for any name.",
			Fix:         "have it issued with the names and addresses that clients use as subject alternative names",
			Example:     "openssl: subjectAltName=DNS:proxy.example.com,IP:203.0.113.7\ncert-manager: dnsNames, ipAddresses",
		},
		{
			Code:  EndpointInvalid,
			Cause: "spec.impersonationProxy.externalEndpoint is not HOST or HOST:PORT.",
			Consequence: "No address can be advertised to clients. A dot at the end, and an IPv4 address in the form of an " +
				"IPv6 address (::ffff:203.0.113.7), are warnings: clients built on OpenSSL fail.",
			Fix: "write a DNS name, an IPv4 address, or an IPv6 address (in brackets when a port follows); no https://, " +
				"no path",
			Example: "proxy.example.com   proxy.example.com:8443   203.0.113.7:443   2001:db8::7   [2001:db8::7]:8443",
		},
		{
			Code: NameNotCovered,
			Cause: "Clients use a name or address for which the certificate was not issued. A wildcard covers one " +
				"level, and not the name above it; an IP address must be there as an IP address. For names that clients are not " +
				"told to use, such as those of a load balancer behind an external endpoint, it is information.",
			Consequence: "Clients that connect by this name refuse the certificate.",
			Fix:         "have the certificate issued for this name too, or change the name that is advertised",
			Example:     "openssl x509 -in tls.crt -noout -ext subjectAltName",
		},
		{
			Code:        LoadBalancerIPUnused,
			Cause:       "loadBalancerIP is set, but the external endpoint resolves to other addresses.",
			Consequence: "Clients do not come by the load balancer that was asked for.",
			Fix:         "correct the DNS record, or drop loadBalancerIP",
			Example:     "getent ahosts proxy.example.com",
		},
		{
			Code: ChainOrder,
			Cause: "The certificates in tls.crt are not in order: the serving certificate first, then each one that " +
				"signed the one before it.",
			Consequence: "A root in the first place reads as a private key that does not match. Other disorder makes several " +
				"clients give up.",
			Fix:     "write them in the right order",
			Example: "cat leaf.pem intermediate.pem > fullchain.pem",
		},
		{
			Code: ChainIncomplete,
			Cause: "A certificate is missing between the serving certificate and the CA that clients trust. Where a " +
				"root that is not trusted could be the cause as well, the code is BundleDoesNotVerify.",
			Consequence: "Clients cannot verify it; browsers may, as they fetch what is missing.",
			Fix:         "append the CA's intermediate certificates to tls.crt",
			Example:     "cat serving.pem intermediate.pem > tls.crt",
		},
		{
			Code: ChainExtra,
			Cause: "tls.crt holds a root, a certificate twice, or one that has nothing to do with the serving " +
				"certificate.",
			Consequence: "It is sent in every handshake for nothing, and some clients stumble over it.",
			Fix:         "leave it out",
		},
		{
			Code: IntermediateInvalid,
			Cause: "A CA certificate in tls.crt may not do what it does: not a CA, no keyCertSign, too many CAs below " +
				"it, expired, not for TLS servers, or its name constraints forbid a name.",
			Consequence: "Clients refuse the chain.",
			Fix:         "get a valid intermediate from the CA, or a certificate from another one",
		},
		{
			Code: BundleDoesNotVerify,
			Cause: "The CA bundle that will be advertised (without one: the system roots) does not verify the serving " +
				"certificate: it holds another CA, or an intermediate CA is missing in tls.crt.",
			Consequence: "Every kubeconfig made from now on fails with: certificate signed by unknown authority.",
			Fix: "advertise the certificate of the CA that issued it; when that is an intermediate CA, append its " +
				"certificate to tls.crt",
			Example: "openssl verify -CAfile ca.pem -untrusted tls.crt tls.crt",
		},
		{
			Code: BundleMember,
			Cause: "A member of the CA bundle is expired, there twice, no CA, ends before the serving certificate does, " +
				"or cannot be told from another one of the same name.",
			Consequence: "None for kubectl today, as others verify the certificate; it is dead weight, or the trouble of " +
				"tomorrow. Programs built on OpenSSL or GnuTLS may take it in place of the right one of the same name, and refuse.",
			Fix: "leave the member out, or add the CA's new certificate",
		},
		{
			Code:  BundleEmpty,
			Cause: "No CA bundle is configured, and the Secret has no ca.crt.",
			Consequence: "Clients verify with their system roots. That is right for a certificate from a public CA, and for " +
				"no other.",
			Fix: "for a private CA, give --ca-bundle FILE or put ca.crt into the Secret",
		},
		{
			Code: OldClientsBreak,
			Cause: "Kubeconfigs that were handed out, now or earlier, work with the certificate in service and would not work " +
				"with the new one: their CA bundle does not verify it, or it does not cover the name that they use.",
			Consequence: "These kubeconfigs stop working at the moment of the change. \"pinniped ip-tls history\" lists who was told what.",
			Fix: "a certificate of another CA is served once no client breaks: have kubeconfigs rotated while the trust " +
				"bundles of both are published; one that lacks a name is reissued; where no kubeconfig of that time is left, say " +
				"so with \"pinniped ip-tls history --retire ID\"",
			Example: "pinniped ip-tls set --secret NEW --ca-bundle new-ca.pem\npinniped kubeconfig rotate kubeconfigs/   # " +
				"both CAs\npinniped ip-tls set --secret NEW --ca-bundle new-ca.pem --kubeconfigs kubeconfigs/",
		},
		{
			Code: StrictClients,
			Cause: "A certificate lacks what RFC 5280 asks for, such as key identifiers, a CA's key usage or critical " +
				"basic constraints; or it holds what Go does not look at and OpenSSL or GnuTLS do, such as an authority key " +
				"identifier with the serial number of another CA certificate; or the bundle holds an intermediate without its root; or " +
				"of two cross-signed certificates in tls.crt, which have one name and key, only the second leads to the bundle.",
			Consequence: "kubectl works; others refuse, as the message says: Python 3.13 and later and OpenSSL in strict " +
				"mode, or every program built on OpenSSL or GnuTLS.",
			Fix: "have it issued by a CA that follows RFC 5280",
		},
		{
			Code:        HandshakeFailed,
			Cause:       "A TLS handshake, rehearsed in memory with this certificate, key and CA bundle, failed.",
			Consequence: "Real clients would fail in the same way.",
			Fix:         "see the message; reissue certificate and key if that does not help",
		},
		{
			Code:        EndpointUnreachable,
			Cause:       "The endpoint, or one of its addresses, does not answer, presents no certificate, or has no address at all.",
			Consequence: "Clients that are led there fail; what they would be given is not known.",
			Fix: "look at the way there, in this order: does the agent run, has its Service an address and endpoints, does " +
				"DNS lead to it, does a firewall let it through",
			Example: "pinniped ip-tls status\nkubectl get pods,services,endpointslices --namespace=pinniped-concierge",
		},
		{
			Code:        EndpointServesOther,
			Cause:       "An address of the endpoint presents another certificate than the one that was set.",
			Consequence: "Clients that are led to this address fail, or reach somebody else.",
			Fix: "look at what stands between: DNS, load balancer, an ingress that ends TLS itself, a replica that " +
				"has not caught up",
			Example: "openssl s_client -connect ADDRESS:443 -servername proxy.example.com -showcerts </dev/null",
		},
	}
	for i := range entries {
		entries[i].Severity = entries[i].Code.severity()
	}
	return entries
}
