// Asks the cluster who we are, lists, watches and runs a command in a pod, as any program with the official client does.
import { Writable } from "node:stream";
import * as k8s from "@kubernetes/client-node";

const config = new k8s.KubeConfig();
config.loadFromDefault();

const review = await config.makeApiClient(k8s.AuthenticationV1Api).createSelfSubjectReview({ body: {} });
console.log("user:", review.status.userInfo.username);

const pods = await config.makeApiClient(k8s.CoreV1Api).listNamespacedPod({ namespace: "default" });
console.log("pods:", pods.items.map((pod) => pod.metadata.name).join(" "));

await new Promise((resolve, reject) => {
  const watching = new k8s.Watch(config).watch("/api/v1/namespaces/default/pods", {}, (type, object) => {
    console.log("watched:", type, object.metadata.name);
    watching.then((controller) => controller.abort());
    resolve();
  }, reject);
});

let out = "";
const stdout = new Writable({ write(chunk, _, done) { out += chunk; done(); } });
await new Promise((resolve, reject) => {
  new k8s.Exec(config)
    .exec("default", process.argv[2], "main", ["echo", "from", "node"], stdout, null, null, false, resolve)
    .catch(reject);
});
console.log("exec:", out.trim());
process.exit(0);
