package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	cliresult "github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/documents"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// dualTrust is a world during a rotation: a certificate of the corporate CA is in service, and the next CA is also
// published.
type dualTrust struct {
	*world
	both []byte
	old  []byte // a user's kubeconfig from before the rotation
}

func newDualTrust(t *testing.T) *dualTrust {
	t.Helper()
	w := needsCluster(t)
	w.external(t, "fleet-tls", pairData(w.issue(t, "localhost")))
	old := must.Get(os.ReadFile(w.userKubeconfig(t, "pinny:password123")))(t)
	next := must.Get(certs.NewCA("Next Corporate CA", time.Now().Add(time.Second), 100*24*time.Hour))(t)
	o := &dualTrust{world: w, both: append(bytes.Clone(w.pki.CertPEM()), next.CertPEM()...), old: old}
	bundle := fileWith(t, "both.pem", o.both)
	w.asAdmin(t, "ip-tls", "set", "--secret=fleet-tls", "--ca-bundle="+bundle, "--timeout=30s").ok(t)
	return o
}

// repository creates a git repository with a kubeconfig, as CI checks it out, and its remote.
func (o *dualTrust) repository(t *testing.T) (work, remote string) {
	t.Helper()
	remote, work = filepath.Join(t.TempDir(), "remote.git"), filepath.Join(t.TempDir(), "work")
	o.shell(t, t.TempDir(), nil,
		"git init -q --bare -b main '"+remote+"' && git clone -q '"+remote+"' '"+work+"' && mkdir '"+work+"/kubeconfigs'")
	must.Do(t, os.WriteFile(filepath.Join(work, "kubeconfigs", "pinny.yaml"), o.old, 0o600))
	o.shell(
		t,
		work,
		nil,
		"git checkout -q -B main && git add . && git -c user.name=a -c user.email=a@b commit -qm first && git push -q origin HEAD:main",
	)
	return work, remote
}

// shell runs a script as CI systems do, with the CLI on the PATH.
func (o *dualTrust) shell(t *testing.T, folder string, environment []string, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, "bash", "-eo", "pipefail", "-c", script)
	command.Dir = folder
	command.Env = append(
		[]string{"PATH=" + filepath.Dir(o.cli) + ":" + os.Getenv("PATH"), "HOME=" + t.TempDir()},
		environment...)
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, script, output)
	}
	return string(output)
}

// blockWith returns the YAML block of a document that contains text, and decodes it.
func blockWith(t *testing.T, document, text string, into any) string {
	t.Helper()
	blocks := must.Get(documents.Read(filepath.Join("..", ".."), document))(t)
	for _, block := range blocks {
		if block.Language != "yaml" || !strings.Contains(block.Text, text) {
			continue
		}
		if into != nil {
			must.Do(t, yaml.Unmarshal([]byte(block.Text), into))
		}
		return block.Text
	}
	t.Fatalf("no block of %s has %q", document, text)
	return ""
}

// TestFleetFollowsWithoutAnAdministrator rotates a user's kubeconfig with what the proxy publishes to unauthenticated
// clients.
func TestFleetFollowsWithoutAnAdministrator(t *testing.T) {
	o := newDualTrust(t)
	path := fileWith(t, "pinny", o.old)
	o.run(t, o.cli, "kubeconfig", "rotate", path).exits(t, 0, "rotated")
	if !bytes.Equal(trusted(t, path), o.both) {
		t.Error("the kubeconfig has another CA bundle than the one that is published")
	}
	o.run(t, o.cli, "whoami", "--kubeconfig="+path).exits(t, 0, "pinny")
	// A kubeconfig that does not verify the proxy is not changed.
	foreign := filepath.Join(t.TempDir(), "foreign")
	config := must.Get(clientcmd.LoadFromFile(path))(t)
	other := must.Get(certs.NewCA("other", time.Now(), time.Hour))(t)
	for _, one := range config.Clusters {
		one.CertificateAuthorityData = other.CertPEM()
	}
	config.AuthInfos = nil
	must.Do(t, clientcmd.WriteToFile(*config, foreign))
	if got := o.run(t, o.cli, "kubeconfig", "rotate", foreign); got.code != 1 ||
		!strings.Contains(got.out, "unknown authority") {
		t.Errorf("with a foreign CA it ended with %d\n%s", got.code, got.out)
	}
}

const rotateInCI = "docs/howto/rotate-in-ci.md"

// TestRotateInCI runs the examples of docs/howto/rotate-in-ci.md: the steps of the jobs as scripts, and the CronJob's
// manifests and command, with only the permissions that they grant.
func TestRotateInCI(t *testing.T) {
	o := newDualTrust(t)
	t.Run("GitHub Actions", func(t *testing.T) {
		var workflow struct {
			Jobs map[string]struct {
				Steps []struct {
					Run string `json:"run"`
				} `json:"steps"`
			} `json:"jobs"`
		}
		blockWith(t, rotateInCI, "runs-on:", &workflow)
		work, remote := o.repository(t)
		o.twice(t, work, remote, func() {
			ran := 0
			for _, step := range workflow.Jobs["rotate"].Steps {
				if step.Run != "" {
					o.shell(t, work, nil, step.Run)
					ran++
				}
			}
			if ran != 2 {
				t.Errorf("ran %d steps", ran)
			}
		})
	})
	t.Run("GitLab CI", func(t *testing.T) {
		var pipeline map[string]struct {
			Script []string `json:"script"`
		}
		blockWith(t, rotateInCI, "CI_PIPELINE_SOURCE", &pipeline)
		work, remote := o.repository(t)
		o.twice(t, work, remote, func() {
			script := strings.Join(pipeline["rotate"].Script, "\n")
			o.shell(t, work, []string{"CI_COMMIT_REF_NAME=main"}, script)
		})
	})
	t.Run("CronJob", o.cronJob)
	t.Run("by hand", func(t *testing.T) {
		r := o.reader(t)
		r.file(t, "kubeconfigs/pinny.yaml", o.old)
		if printed := r.reads(t, rotateInCI, nil); !strings.Contains(printed[0], "1 rotated") {
			t.Errorf("the dry run says\n%s", printed[0])
		}
		if after, err := os.ReadFile(filepath.Join(r.dir, "kubeconfigs", "pinny.yaml")); err != nil ||
			bytes.Equal(after, o.old) {
			t.Errorf("the kubeconfig is the one from before: %v", err)
		}
	})
}

// twice runs a job twice, and checks that the first run pushes its change and the second finds nothing to do.
func (o *dualTrust) twice(t *testing.T, work, remote string, job func()) {
	t.Helper()
	log := func() string { return o.shell(t, remote, nil, "git log --format=%s main") }
	for _, want := range []cliresult.RotationSummary{
		{Clusters: 1, Kubeconfigs: 1, Rotated: 1}, {Clusters: 1, Kubeconfigs: 1, Current: 1},
	} {
		job()
		if got := log(); got != "kubeconfigs: refresh the CA bundles\nfirst\n" {
			t.Errorf("the log of what was pushed:\n%s", got)
		}
		written := must.Get(os.ReadFile(filepath.Join(work, "report.json")))(t)
		var report cliresult.KubeconfigRotation
		if err := json.Unmarshal(written, &report); err != nil {
			t.Fatalf("the report: %v\n%s", err, written)
		}
		report.Summary.Milliseconds = 0
		if report.Kind != "KubeconfigRotation" || report.Summary != want {
			t.Errorf("the report, want %+v:\n%s", want, written)
		}
	}
	if !bytes.Equal(trusted(t, filepath.Join(work, "kubeconfigs", "pinny.yaml")), o.both) {
		t.Error("the kubeconfig has another CA bundle than the one that is published")
	}
}

func (o *dualTrust) cronJob(t *testing.T) {
	block := blockWith(t, rotateInCI, "kind: CronJob", nil)
	manifest := fileWith(t, "cronjob.yaml", []byte(block))
	o.kubectlDoes(t, "create", "namespace", "clusters")
	o.kubectlDoes(t, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", manifest)
	o.kubectlDoes(t, "apply", "--server-side", "-f", manifest)
	secret := &corev1.Secret{Type: "cluster.x-k8s.io/secret", Data: map[string][]byte{"value": o.old}}
	secret.Namespace, secret.Name = "clusters", "prod-kubeconfig"
	secret.Labels = map[string]string{"cluster.x-k8s.io/cluster-name": "prod"}
	must.Do(t, o.admin.Create(t.Context(), secret))
	var job struct {
		Spec struct {
			JobTemplate struct {
				Spec struct {
					Template struct {
						Spec corev1.PodSpec `json:"spec"`
					} `json:"template"`
				} `json:"spec"`
			} `json:"jobTemplate"`
		} `json:"spec"`
	}
	documents := strings.Split(block, "\n---\n")
	must.Do(t, yaml.Unmarshal([]byte(documents[len(documents)-1]), &job))
	pod := job.Spec.JobTemplate.Spec.Template.Spec
	container := pod.Containers[0]
	if container.Command[0] != "pinniped" {
		t.Fatalf("it runs %v", container.Command)
	}
	o.runWith(
		t,
		[]string{"KUBECONFIG=" + o.serviceAccount(t, "clusters", pod.ServiceAccountName)},
		nil,
		o.cli,
		container.Args...).exits(t, 0, `"rotated": 1`)
	must.Do(t, o.admin.Get(t.Context(), types.NamespacedName{Namespace: "clusters", Name: "prod-kubeconfig"}, secret))
	after := fileWith(t, "after", secret.Data["value"])
	if !bytes.Equal(trusted(t, after), o.both) {
		t.Error("the Secret has another CA bundle than the one that is published")
	}
}

// serviceAccount returns a kubeconfig of a service account, as a pod has it.
func (o *dualTrust) serviceAccount(t *testing.T, namespace, name string) string {
	t.Helper()
	account, token := &corev1.ServiceAccount{}, &authenticationv1.TokenRequest{}
	account.Namespace, account.Name = namespace, name
	must.Do(t, o.admin.SubResource("token").
		Create(t.Context(), account, token, &client.SubResourceCreateOptions{}))
	rest := o.Cluster.AdminConfig()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: rest.Host, CertificateAuthorityData: rest.CAData}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	path := filepath.Join(t.TempDir(), "account")
	must.Do(t, clientcmd.WriteToFile(*config, path))
	return path
}
