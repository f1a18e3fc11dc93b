package localuser

import (
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

func TestOptions(t *testing.T) {
	t.Parallel()
	service := []string{
		"local-user-authenticator.local-user-authenticator.svc",
		"local-user-authenticator.local-user-authenticator.svc.cluster.local",
	}
	tests := []struct {
		name    string
		options Options
		want    certs.SANs
		wantErr string
	}{
		{
			name:    "takes the names of the Service",
			options: Options{RestConfig: &rest.Config{}},
			want:    certs.SANs{DNSNames: service},
		},
		{
			name:    "takes the names of the Service in another namespace",
			options: Options{RestConfig: &rest.Config{}, Namespace: "users"},
			want: certs.SANs{
				DNSNames: []string{"local-user-authenticator.users.svc", "local-user-authenticator.users.svc.cluster.local"},
			},
		},
		{
			name: "adds every extra name once",
			options: Options{
				RestConfig:   &rest.Config{},
				ServingNames: []string{"localhost", "127.0.0.1", "LOCALHOST", "::1", "127.0.0.1"},
			},
			want: certs.SANs{
				DNSNames:    append(append([]string{}, service...), "localhost"),
				IPAddresses: []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP("::1")},
			},
		},
		{name: "refuses to run without a cluster", wantErr: "no cluster is configured"},
		{
			name:    "refuses a namespace that cannot be one",
			options: Options{RestConfig: &rest.Config{}, Namespace: "a/b"},
			wantErr: `"a/b" is not a namespace`,
		},
		{
			name:    "refuses an address for a name",
			options: Options{RestConfig: &rest.Config{}, ServingNames: []string{"https://localhost"}},
			wantErr: `serving name "https://localhost" is neither an IP address nor a DNS name`,
		},
		{
			name:    "refuses an empty name",
			options: Options{RestConfig: &rest.Config{}, ServingNames: []string{""}},
			wantErr: `serving name ""`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := test.options.complete()
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Fatalf("want error %q, got %v", test.wantErr, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got.names); diff != "" {
				t.Errorf("names (-want +got):\n%s", diff)
			}
			if got.Address != ":8443" || got.Clock == nil {
				t.Errorf("defaults are missing: address %q, clock %v", got.Address, got.Clock)
			}
		})
	}
}
