package scenario

// Password is that of the users that CreateUser makes.
const Password = "password123"

// Store is the command that puts a certificate of PKI.Issue into a Secret of the agent's namespace.
func Store(secret, name string) string {
	return "kubectl create secret tls " + secret + ` \
    --namespace pinniped-concierge \
    --cert ` + name + ".pem --key " + name + `-key.pem \
    --dry-run=client -o yaml | kubectl apply --server-side -f -`
}

// CreateUser is the command that makes user pinny of the local-user-authenticator. hash is bcrypt's, of the password.
func CreateUser(group, hash string) string {
	return `kubectl create secret generic pinny \
    --namespace local-user-authenticator \
    --from-literal=groups=` + group + ` \
    --from-literal=passwordHash=` + Quote(hash)
}

// authenticatorCA is the file of SaveAuthenticatorCA.
const authenticatorCA = "local-user-authenticator-ca.pem.b64"

// SaveAuthenticatorCA is the command that writes down the CA of the local-user-authenticator. It fails as long as
// that one has not made its certificate.
func SaveAuthenticatorCA() string {
	return `kubectl get secret local-user-authenticator-tls-serving-certificate \
    --namespace local-user-authenticator \
    --output 'jsonpath={.data.caCertificate}' > ` + authenticatorCA
}

// UseAuthenticator are the commands that make the agent ask the local-user-authenticator at an endpoint about users.
func UseAuthenticator(name, endpoint string) []string {
	return []string{
		`cat > webhookauthenticator.yaml << EOF
apiVersion: authentication.concierge.pinniped.dev/v1alpha1
kind: WebhookAuthenticator
metadata:
  name: ` + name + `
spec:
  endpoint: ` + endpoint + `
  tls:
    certificateAuthorityData: $(cat ` + authenticatorCA + `)
EOF`,
		"kubectl apply --server-side -f webhookauthenticator.yaml",
		`kubectl wait --for='jsonpath={.status.phase}=Ready' --timeout=60s \
    webhookauthenticator ` + name,
	}
}

// MakeKubeconfig is the command that writes pinny's kubeconfig to a file.
func MakeKubeconfig(authenticator, file string) string {
	return `pinniped get kubeconfig \
    --static-token "pinny:` + Password + `" \
    --concierge-authenticator-type webhook \
    --concierge-authenticator-name ` + authenticator + ` \
    --concierge-mode ImpersonationProxy \
    > ` + file
}
