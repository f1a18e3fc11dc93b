package kubeconfig_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

func TestDifferences(t *testing.T) {
	t.Parallel()
	base := func() *clientcmdapi.Config {
		config := madeFor(t, "dev", "https://dev.example.com")
		config.Clusters["dev"].CertificateAuthorityData = bundle(t)
		config.AuthInfos["dev"].Exec.Env = []clientcmdapi.ExecEnvVar{{Name: "SECRET", Value: "password1"}}
		return config
	}
	for _, test := range []struct {
		name   string
		change func(*clientcmdapi.Config)
		want   []string
	}{
		{name: "are none", change: func(*clientcmdapi.Config) {}},
		{name: "are none for another order of flags", change: func(c *clientcmdapi.Config) {
			args := c.AuthInfos["dev"].Exec.Args
			args[2], args[len(args)-1] = args[len(args)-1], args[2]
		}},
		{name: "are none for another way to write a bundle", change: func(c *clientcmdapi.Config) {
			c.Clusters["dev"].CertificateAuthorityData = append([]byte("\n"), c.Clusters["dev"].CertificateAuthorityData...)
		}},
		{
			name: "are shown by their names", change: func(c *clientcmdapi.Config) {
				c.Clusters["dev"].Server = "https://new.example.com"
				c.Contexts["dev"].Namespace = "x"
			},
			want: []string{
				"- cluster \"dev\" server: https://dev.example.com\n", "+ cluster \"dev\" server: https://new.example.com\n",
				"+ context \"dev\" namespace: x\n",
			},
		},
		{
			name: "show no secret", change: func(c *clientcmdapi.Config) {
				user := c.AuthInfos["dev"]
				user.Exec.Env[0].Value = "password2"
				user.Exec.Args = append(user.Exec.Args, "--token", "password3", "--token=password4")
				user.Token, user.ClientKeyData = "password5", []byte("password6")
			},
			want: []string{
				"+ user \"dev\" client-key-data: (a secret)\n", "+ user \"dev\" exec args --token: (a secret)\n",
				"- user \"dev\" exec env SECRET: (a secret)\n", "+ user \"dev\" exec env SECRET: (a secret)\n",
				"+ user \"dev\" token: (a secret)\n",
			},
		},
		{name: "are found in bundles", change: func(c *clientcmdapi.Config) {
			c.Clusters["dev"].CertificateAuthorityData = nil
		}, want: []string{"- cluster \"dev\" certificate-authority-data: \"CN="}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			old, now := base(), base()
			now.Clusters["dev"].CertificateAuthorityData = old.Clusters["dev"].CertificateAuthorityData
			test.change(now)
			got := kubeconfig.Differences(old, now)
			for i := range got {
				if i < len(test.want) && strings.HasPrefix(got[i], test.want[i]) {
					got[i] = test.want[i]
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("differences (-want +got):\n%s", diff)
			}
			if text := strings.Join(got, ""); strings.Contains(text, "password") {
				t.Errorf("a secret is shown:\n%s", text)
			}
		})
	}
}
