//! The chart with the values for each platform, on a real API server that limits the critical PriorityClasses as GKE's
//! does.

use std::time::Duration;

use andreas_e2e::api::{create, yaml};
use andreas_e2e::chart::{self, AGENTS, SYSTEM};
use andreas_e2e::places;
use andreas_testbed::wait::until;
use andreas_testbed::{Component, Testbed};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

/// GKE's quota in kube-system names the same scope: <https://github.com/openservicemesh/osm/issues/4408>.
const LIMITED: &str = "
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
  - name: ResourceQuota
    configuration:
      apiVersion: apiserver.config.k8s.io/v1
      kind: ResourceQuotaConfiguration
      limitedResources:
        - resource: pods
          matchScopes:
            - scopeName: PriorityClass
              operator: In
              values: [system-node-critical, system-cluster-critical]
";

/// What exists before the chart: the release's namespace under the strictest standard, and the RuntimeClass that K3s and
/// the GPU operator make.
const BEFORE: &str = "
apiVersion: v1
kind: Namespace
metadata:
  name: andreas-system
  labels: {pod-security.kubernetes.io/enforce: restricted}
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: nvidia}
handler: nvidia
";

/// Applies what helm renders, and returns the pods that its workloads' controllers would create. OpenShift's own kind is
/// left out.
async fn install(bed: &Testbed, args: &[&str]) -> Result<Vec<Value>> {
    let folder = chart::folder().display().to_string();
    let fixed = [
        "template",
        "andreas",
        &folder,
        "--namespace",
        SYSTEM,
        "--set",
        "crds.enabled=false,test.enabled=false",
    ];
    let text = bed.helm(fixed.into_iter().chain(args.iter().copied())).await?.checked()?.stdout;
    let known = text.split("\n---\n").filter(|text| !text.contains("kind: SecurityContextConstraints"));
    bed.kubectl_apply(&known.collect::<Vec<_>>().join("\n---\n")).await?.checked()?;
    let asked = "get deployments,daemonsets -A -l app.kubernetes.io/part-of=andreas -o json";
    let workloads: Value = serde_json::from_str(&bed.kubectl(asked.split(' ')).await?.checked()?.stdout)?;
    let pods: Vec<Value> = workloads["items"].as_array().into_iter().flatten().map(pod).collect();
    ensure!(pods.len() == 3, "{} workloads", pods.len());
    Ok(pods)
}

fn pod(workload: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": workload["metadata"]["name"],
            "namespace": workload["metadata"]["namespace"],
            "labels": workload["spec"]["template"]["metadata"]["labels"],
        },
        "spec": workload["spec"]["template"]["spec"],
    })
}

/// Quotas admit pods from the moment on at which their use was counted.
async fn quotas_are_counted(bed: &Testbed) -> Result<()> {
    for namespace in [SYSTEM, AGENTS] {
        let asked = [
            "get",
            "resourcequota",
            "andreas-critical-pods",
            "-n",
            namespace,
            "-o",
            "jsonpath={.status.used.pods}",
        ];
        let counted = async || Ok(!bed.kubectl(asked).await?.stdout.is_empty());
        until(&format!("the quota of {namespace} is counted"), Duration::from_secs(60), counted).await?;
    }
    Ok(())
}

async fn refusal(bed: &Testbed, pod: &Value) -> Result<String> {
    Ok(create(&bed.client(), pod, true).await?.refused()?.message)
}

/// Given an API server with GKE's limit and the Pod Security Standards, when pods are made as with the values for each
/// platform, then they are admitted; without the quota none is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_admitted_with_the_values_for_each_platform() {
    let limits = std::env::temp_dir().join(format!("andreas-limited-{}.yaml", std::process::id()));
    std::fs::write(&limits, LIMITED).unwrap();
    let _place = places::take(false).await.unwrap();
    let bed = Testbed::builder()
        .name("api-platforms")
        .without_scheduler()
        .extra_arg(Component::ApiServer, format!("--admission-control-config-file={}", limits.display()))
        .start()
        .await
        .unwrap();
    std::fs::remove_file(&limits).unwrap();
    bed.kubectl_apply(BEFORE).await.unwrap().checked().unwrap();

    for pod in install(&bed, &[]).await.unwrap() {
        let said = refusal(&bed, &pod).await.unwrap();
        assert!(said.contains("insufficient quota to match these scopes"), "{said}");
    }

    let folder = chart::folder();
    for platform in ["gke", "eks", "aks", "openshift", "k3s", "argocd"] {
        let values = folder.join(format!("values-{platform}.yaml")).display().to_string();
        let args = ["--values", &values, "--set", "resourceQuota.enabled=true"];
        let pods = install(&bed, &args).await.context(platform).unwrap();
        quotas_are_counted(&bed).await.unwrap();
        for pod in pods {
            create(&bed.client(), &pod, true).await.unwrap().accepted().context(platform).unwrap();
        }
    }

    let gke = folder.join("values-gke.yaml").display().to_string();
    let pods = install(&bed, &["--values", &gke]).await.unwrap();
    let agent = pods.into_iter().find(|pod| pod["metadata"]["namespace"] == AGENTS).unwrap();
    let mut contradicting = agent.clone();
    contradicting["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = json!(false);
    let said = refusal(&bed, &contradicting).await.unwrap();
    assert!(said.contains("allowPrivilegeEscalation"), "{said}");
    let mut elsewhere = agent;
    elsewhere["metadata"]["namespace"] = json!(SYSTEM);
    let account = yaml(
        "{apiVersion: v1, kind: ServiceAccount, metadata: {name: andreas-node-agent, namespace: andreas-system}}",
    );
    create(&bed.client(), &account.unwrap(), false).await.unwrap().accepted().unwrap();
    let said = refusal(&bed, &elsewhere).await.unwrap();
    assert!(said.contains("violates PodSecurity"), "{said}");
    bed.stop().await;
}
