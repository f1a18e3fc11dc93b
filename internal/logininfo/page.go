package logininfo

import (
	"crypto/sha256"
	_ "embed" // of the page
	"encoding/base64"
	"fmt"
	"html"
	"strings"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// page is the login page. It does not use html/template, which would make the agent's binary a third larger.
//
//go:embed page.html
var page string

// Content is a response.
type Content struct {
	Type string // media type
	Body []byte
	ETag string
	// Policy is the Content-Security-Policy; empty for the default.
	Policy string
}

// Offer is the login information that the proxy serves.
type Offer struct{ Document, Page Content }

// NewOffer returns the document and the page. fingerprints are the SHA-256 fingerprints, in hex, of the CAs that
// currently verify the proxy; none if clients use their system roots. An error names the invalid field.
func NewOffer(info Info, hint *configv1alpha1.InstallHint, fingerprints []string) (*Offer, error) {
	document, err := Encode(info)
	if err != nil {
		return nil, err
	}
	fetch, err := fetchStep(&info, fingerprints)
	if err != nil {
		return nil, err
	}
	install := "<p>Ask your administrator for it.</p>"
	if hint != nil {
		install = "<p>" + html.EscapeString(hint.Text) + "</p>"
		if strings.HasPrefix(hint.URL, "https://") {
			link := html.EscapeString(hint.URL)
			install += `<p><a rel="noreferrer" href="` + link + `">` + link + "</a></p>"
		}
	}
	ca := "none: your computer verifies the certificate with the CAs that it trusts"
	if len(fingerprints) > 0 {
		ca = "<code>sha256:" + strings.Join(fingerprints, "</code><br><code>sha256:") + "</code>"
	}
	filled := strings.NewReplacer(
		"@cluster@", html.EscapeString(info.ClusterName), "@endpoint@", html.EscapeString(info.Endpoint), "@ca@", ca,
		"@install@", install, "@fetch@", fetch,
	).Replace(page)
	policy := "default-src 'none'; style-src " + hashOf("style") + "; script-src " + hashOf("script") +
		"; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	return &Offer{
		Document: Content{Type: "application/json", Body: document, ETag: tag(document)},
		Page:     Content{Type: "text/html; charset=utf-8", Body: []byte(filled), ETag: tag([]byte(filled)), Policy: policy},
	}, nil
}

// fetchStep returns the step of the page in which users get their kubeconfig.
func fetchStep(info *Info, fingerprints []string) (string, error) {
	command := "pinniped get kubeconfig --from " + info.Endpoint
	if len(fingerprints) > 0 {
		command += " --ca-fingerprint sha256:" + strings.Join(fingerprints, ",sha256:")
	}
	var step strings.Builder
	for i := range info.Logins {
		login, command := &info.Logins[i], command
		if len(info.Logins) > 1 {
			fmt.Fprintf(&step, "<p>For <b>%s</b>:</p>\n", html.EscapeString(login.Name))
			command += " --login " + login.Name
		}
		if login.OIDC == nil {
			command += " --static-token-env TOKEN"
			step.WriteString("<p>It needs your token in the environment variable TOKEN.</p>\n")
		}
		fmt.Fprintf(&step, "<pre>%s</pre>\n", html.EscapeString(command+" --merge-into ~/.kube/config --set-current"))
		if login.OIDC == nil {
			continue
		}
		content, err := info.Kubeconfig(login)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&step, `<p>Or <a download="%s.yaml" href="data:application/yaml;base64,%s">download it</a>, for `+
			"<code>kubectl --kubeconfig</code>.</p>\n", html.EscapeString(info.ClusterName), base64.StdEncoding.EncodeToString(content))
	}
	if len(fingerprints) > 0 {
		step.WriteString(
			`<p class="dim">Compare the fingerprint with the one that your administrators published elsewhere, ` +
				"such as in a wiki: it protects you from an imitation of it.</p>\n",
		)
	}
	return step.String(), nil
}

// hashOf returns the hash of the content of the page's only element with that name, for the Content-Security-Policy.
func hashOf(element string) string {
	_, content, _ := strings.Cut(page, "<"+element+">")
	content, _, _ = strings.Cut(content, "</"+element+">")
	sum := sha256.Sum256([]byte(content))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

func tag(content []byte) string { return fmt.Sprintf(`"%x"`, sha256.Sum256(content)) }
