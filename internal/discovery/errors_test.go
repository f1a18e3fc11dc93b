package discovery_test

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/discovery"
)

func TestHintsNameRoles(t *testing.T) {
	t.Parallel()
	issuers := schema.GroupResource{Group: "config.concierge.pinniped.dev", Resource: "credentialissuers"}
	secrets := schema.GroupResource{Resource: "secrets"}
	seen := map[string]bool{}
	for _, tt := range []struct {
		forbidden discovery.ForbiddenError
		want      string
	}{
		{discovery.ForbiddenError{Verb: "list", Resource: issuers}, "{name: pinniped-list-credentialissuers}"},
		{discovery.ForbiddenError{Verb: "patch", Resource: issuers, Name: "a"}, "{name: pinniped-patch-credentialissuers-a}"},
		{
			discovery.ForbiddenError{Verb: "get", Resource: secrets, Namespace: "n", Name: "a"},
			"{name: pinniped-get-secrets-a, namespace: n}",
		},
		{
			discovery.ForbiddenError{Verb: "get", Resource: secrets, Namespace: "n", Name: "b"},
			"{name: pinniped-get-secrets-b, namespace: n}",
		},
	} {
		role := tt.forbidden.Role()
		if !strings.Contains(role, "metadata: "+tt.want+"\n") || seen[tt.want] {
			t.Errorf("want %s once in\n%s", tt.want, role)
		}
		seen[tt.want] = true
	}
}

func TestHintOfACredentialPluginThatFails(t *testing.T) {
	t.Parallel()
	client, err := discovery.Connect(&rest.Config{Host: "https://127.0.0.1:1", ExecProvider: &clientcmdapi.ExecConfig{
		Command:         "no-such-plugin",
		APIVersion:      "client.authentication.k8s.io/v1",
		InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
	}}, suffix)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.WhoAmI(t.Context())
	hinter, ok := errors.AsType[interface {
		error
		Hint() string
	}](err)
	if !ok || !errors.Is(err, discovery.ErrUnauthorized) || !errors.Is(err, discovery.ErrPluginFailed) ||
		!strings.HasPrefix(hinter.Hint(), "the credential plugin") {
		t.Errorf("want ErrPluginFailed, which is an ErrUnauthorized, with a hint at the plugin, got %v", err)
	}
}
