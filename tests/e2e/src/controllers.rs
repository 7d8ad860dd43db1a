//! The real controllers of the kinds that are adopted, and Kueue, as plain processes with an administrator's rights. Their pins are
//! in `tests/tools`.
//!
//! JobSet and Kueue are asked by the API server through their webhooks, as in an installation. Trainer and the training operator make
//! certificates for a Service, which the API server of a test bed cannot reach: their webhooks, which only validate, are left out.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use andreas_testbed::wait::until;
use andreas_testbed::{PortLease, Process, ProcessSpec, built};
use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::adoption::workload;
use crate::cluster::Cluster;

/// How long a controller may take to be ready on a busy machine.
const READY_LIMIT: Duration = Duration::from_secs(120);
/// Where Trainer and the training operator look for the certificates of their webhooks.
const FIXED_CERTIFICATES: &str = "/tmp/k8s-webhook-server/serving-certs";

/// A controller and its ports.
struct Setup<'a> {
    cluster: &'a Cluster,
    folder: PathBuf,
    ports: [Arc<PortLease>; 3],
}

impl<'a> Setup<'a> {
    async fn new(cluster: &'a Cluster, set: &str) -> Result<Self> {
        let folder = built(set).await?;
        let ports =
            [Arc::new(PortLease::take()?), Arc::new(PortLease::take()?), Arc::new(PortLease::take()?)];
        Ok(Self { cluster, folder, ports })
    }

    fn port(&self, index: usize) -> u16 {
        self.ports[index].port()
    }

    fn address(&self, index: usize) -> String {
        SocketAddr::from(([127, 0, 0, 1], self.port(index))).to_string()
    }

    /// Applies the CRDs of a module.
    async fn definitions(&self, module: &str) -> Result<()> {
        let files = self.folder.join(format!("crds-{module}"));
        for entry in fs::read_dir(&files)? {
            let path = entry?.path();
            let text = fs::read_to_string(&path)?;
            if !text.contains("kind: CustomResourceDefinition") || text.contains("kustomize.config") {
                continue;
            }
            let bed = &self.cluster.testbed;
            bed.kubectl(["apply", "--server-side", "-f", &path.to_string_lossy()]).await?.checked()?;
        }
        // Where a definition has no conditions yet, kubectl gives up at once.
        let wait = ["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"];
        let bed = &self.cluster.testbed;
        until("definitions are served", READY_LIMIT, async || Ok(bed.kubectl(wait).await?.success())).await?;
        Ok(())
    }

    /// Certificates of its webhooks, in a folder of its own.
    fn certificates(&self, name: &str) -> Result<PathBuf> {
        let server = self.cluster.testbed.pki().server(name, &["127.0.0.1", "localhost"])?;
        let folder = self.cluster.testbed.data_dir().join(format!("{name}-certificates"));
        put(&server.certificate_file, &server.key_file, &folder)?;
        Ok(folder)
    }

    /// Applies its webhooks, with the address of its process in place of a Service.
    async fn webhooks(&self, module: &str, wanted: impl Fn(&str) -> bool) -> Result<()> {
        let text = fs::read_to_string(self.folder.join(format!("webhooks-{module}/manifests.yaml")))?;
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text)?;
        let ca = fs::read(self.cluster.testbed.pki().ca_file())?;
        let ca = serde_json::to_value(k8s_openapi::ByteString(ca))?;
        for mut document in documents.into_iter().filter(|document| document.is_object()) {
            let name = format!("{module}-{}", document["metadata"]["name"].as_str().unwrap_or_default());
            document["metadata"] = json!({"name": name});
            let webhooks = document["webhooks"].as_array_mut().context("no webhooks")?;
            webhooks.retain(|webhook| webhook["name"].as_str().is_some_and(&wanted));
            for webhook in webhooks {
                let path = webhook["clientConfig"]["service"]["path"].as_str().unwrap_or_default().to_owned();
                let url = format!("https://{}{path}", self.address(2));
                webhook["clientConfig"] = json!({"url": url, "caBundle": ca});
            }
            self.cluster.testbed.kubectl_apply(&document.to_string()).await?.checked()?;
        }
        Ok(())
    }

    async fn start(&self, program: &str, args: &[String], path: &str) -> Result<Process> {
        let bed = &self.cluster.testbed;
        let spec = ProcessSpec::new(program, self.folder.join(program))
            .args(args)
            .env("KUBECONFIG", bed.kubeconfig())
            // KubeRay's pods ask Ray's head by them; there is no Ray here.
            .env("ENABLE_INIT_CONTAINER_INJECTION", "false")
            .env("ENABLE_PROBES_INJECTION", "false")
            .holding(self.ports[0].clone())
            .holding(self.ports[1].clone())
            .holding(self.ports[2].clone());
        let process = bed.spawn(spec)?;
        process
            .wait_for_http(&self.address(0), path, READY_LIMIT)
            .await
            .with_context(|| program.to_owned())?;
        Ok(process)
    }

    /// A file of its configuration.
    fn configuration(&self, program: &str, content: &Value) -> Result<String> {
        let path = self.cluster.testbed.data_dir().join(format!("{program}.yaml"));
        fs::write(&path, content.to_string())?;
        Ok(format!("--config={}", path.display()))
    }

    /// What a controller that makes its own certificates needs: its namespace and Secret, a webhook's configuration to write its
    /// authority into, and files where it would mount the Secret.
    async fn own_certificates(&self, namespace: &str, secret: &str, webhooks: &str) -> Result<()> {
        let server = self.cluster.testbed.pki().server(secret, &["127.0.0.1"])?;
        put(&server.certificate_file, &server.key_file, Path::new(FIXED_CERTIFICATES))?;
        let objects = [
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret, "namespace": namespace}}),
            json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
                "metadata": {"name": webhooks},
                // Asked about nothing that exists.
                "webhooks": [{
                    "name": "none.andreas.dev", "sideEffects": "None", "admissionReviewVersions": ["v1"],
                    "clientConfig": {"url": "https://127.0.0.1:1/"},
                    "rules": [{"apiGroups": ["none.andreas.dev"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["none"]}],
                }],
            }),
        ];
        for object in objects {
            self.cluster.apply(&object).await?;
        }
        Ok(())
    }
}

/// Copies a certificate and its key to where a controller looks for them. Another test bed's may be there: nothing is served with them
/// where the folder is shared.
fn put(certificate: &Path, key: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    fs::copy(certificate, folder.join("tls.crt"))?;
    fs::copy(key, folder.join("tls.key"))?;
    Ok(())
}

/// JobSet's controller, with its webhooks for JobSets.
///
/// # Errors
/// When it is not ready in time.
pub async fn job_set(cluster: &Cluster) -> Result<Process> {
    let setup = Setup::new(cluster, "adoption").await?;
    setup.definitions("jobset").await?;
    let certificates = setup.certificates("jobset-manager")?;
    let configuration = setup.configuration(
        "jobset-manager",
        &json!({
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1", "kind": "Configuration",
            "leaderElection": {"leaderElect": false}, "internalCertManagement": {"enable": false},
            "metrics": {"bindAddress": "0"}, "health": {"healthProbeBindAddress": setup.address(0)},
            "webhook": {"port": setup.port(2), "certDir": certificates},
        }),
    )?;
    let process = setup.start("jobset-manager", &[configuration], "/readyz").await?;
    setup.webhooks("jobset", |name| name.contains("jobset.kb.io")).await?;
    // It says that it is ready before its webhooks answer.
    let probe = workload("JobSet", "probe").not_adopted();
    let object = probe.build();
    until("JobSet's webhooks answer", READY_LIMIT, async || Ok(cluster.apply(&object).await.is_ok())).await?;
    cluster.kubectl(&format!("delete {}", probe.resource())).await?;
    Ok(process)
}

/// Kubeflow Trainer 2, with a runtime `trainer` for the test trainer. JobSet's controller must run.
///
/// # Errors
/// When it is not ready in time.
pub async fn trainer(cluster: &Cluster) -> Result<Process> {
    let setup = Setup::new(cluster, "adoption").await?;
    setup.definitions("trainer").await?;
    setup
        .own_certificates(
            "kubeflow-system",
            "kubeflow-trainer-webhook-cert",
            "validator.trainer.kubeflow.org",
        )
        .await?;
    let args = [
        format!("--health-probe-bind-address={}", setup.address(0)),
        format!("--webhook-server-port={}", setup.port(2)),
        "--metrics-bind-address=0".to_owned(),
    ];
    let process = setup.start("trainer-manager", &args, "/healthz").await?;
    let runtime = json!({
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "trainer"},
        "spec": {
            "mlPolicy": {"numNodes": 1},
            "template": {"spec": {"replicatedJobs": [{"name": "node", "template": {
                "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
                "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [
                    {"name": "node", "image": crate::job::TRAINER_IMAGE, "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}},
                ]}}},
            }}]}},
        },
    });
    until("the runtime is accepted", READY_LIMIT, async || Ok(cluster.apply(&runtime).await.is_ok())).await?;
    Ok(process)
}

/// Kubeflow's training operator, for PyTorchJobs.
///
/// # Errors
/// When it is not ready in time.
pub async fn training_operator(cluster: &Cluster) -> Result<Process> {
    let setup = Setup::new(cluster, "adoption").await?;
    setup.definitions("training-operator").await?;
    setup
        .own_certificates(
            "kubeflow",
            "training-operator-webhook-cert",
            "validator.training-operator.kubeflow.org",
        )
        .await?;
    let args = [
        format!("--health-probe-bind-address={}", setup.address(0)),
        format!("--metrics-bind-address={}", setup.address(1)),
        format!("--webhook-server-port={}", setup.port(2)),
        "--enable-scheme=pytorchjob".to_owned(),
        "--pytorch-init-container-image=andreas.dev/trainer:dev".to_owned(),
    ];
    setup.start("training-operator", &args, "/healthz").await
}

/// KubeRay's operator.
///
/// # Errors
/// When it is not ready in time.
pub async fn kuberay(cluster: &Cluster) -> Result<Process> {
    let setup = Setup::new(cluster, "adoption").await?;
    setup.definitions("kuberay").await?;
    let args = [
        format!("--health-probe-bind-address={}", setup.address(0)),
        format!("--metrics-addr={}", setup.address(1)),
        "--enable-leader-election=false".to_owned(),
    ];
    setup.start("kuberay-operator", &args, "/healthz").await
}

/// Kueue's manager with its webhooks for Jobs and its own kinds.
///
/// # Errors
/// When it is not ready in time.
pub async fn kueue(cluster: &Cluster, settings: Value) -> Result<Process> {
    let setup = Setup::new(cluster, "kueue").await?;
    setup.definitions("kueue").await?;
    let certificates = setup.certificates("kueue-manager")?;
    // Kueue has this path in its code.
    put(&certificates.join("tls.crt"), &certificates.join("tls.key"), Path::new("/etc/kueue/metrics/certs"))?;
    cluster
        .apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue-system"}}))
        .await?;
    let mut configuration = json!({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration", "namespace": "kueue-system",
        "leaderElection": {"leaderElect": false}, "internalCertManagement": {"enable": false},
        "metrics": {"bindAddress": setup.address(1)}, "health": {"healthProbeBindAddress": setup.address(0)},
        "webhook": {"port": setup.port(2), "certDir": certificates},
        "integrations": {"frameworks": ["batch/job", "pod"]},
    });
    for (name, value) in settings.as_object().into_iter().flatten() {
        configuration[name] = value.clone();
    }
    let args = [
        setup.configuration("kueue-manager", &configuration)?,
        "--feature-gates=VisibilityOnDemand=false".to_owned(),
    ];
    let process = setup.start("kueue-manager", &args, "/readyz").await?;
    let wanted =
        ["mjob.kb.io", "vjob.kb.io", "mpod.kb.io", "vpod.kb.io", "mworkload.kb.io", "vworkload.kb.io"];
    setup.webhooks("kueue", |name| wanted.contains(&name)).await?;
    Ok(process)
}

/// Karpenter, for a cloud whose nodes have eight A100 and are made and deleted as objects only: somebody has to be their kubelets. At most
/// `most` of them.
///
/// # Errors
/// When it is not ready in time.
pub async fn karpenter(cluster: &Cluster, most: u32, label: (&str, &str)) -> Result<Process> {
    let setup = Setup::new(cluster, "karpenter").await?;
    setup.definitions("karpenter").await?;
    setup.definitions("kwok").await?;
    let offering = json!({"Price": 20.0, "Requirements": [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-a"]},
    ]});
    let types = json!([{"name": "gpu.8x", "architecture": "amd64", "operatingSystems": ["linux"], "offerings": [offering],
        "resources": {"cpu": "96", "memory": "1024Gi", "nvidia.com/gpu": "8", "ephemeral-storage": "200Gi"}}]);
    let path = cluster.testbed.data_dir().join("instance-types.json");
    fs::write(&path, types.to_string())?;
    let args = [
        format!("--instance-types-file-path={}", path.display()),
        format!("--health-probe-port={}", setup.port(0)),
        format!("--metrics-port={}", setup.port(1)),
        "--disable-leader-election=true".to_owned(),
        "--feature-gates=CapacityBuffer=true".to_owned(),
    ];
    let process = setup.start("karpenter", &args, "/readyz").await?;
    let class = json!({"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"}});
    cluster.apply(&class).await?;
    let pool = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "a100"},
        "spec": {
            "limits": {"nvidia.com/gpu": (8 * most).to_string()},
            "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "5s", "budgets": [{"nodes": "100%"}]},
            "template": {"metadata": {"labels": {label.0: label.1}}, "spec": {
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
                "requirements": [{"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}],
                "expireAfter": "Never",
            }},
        },
    });
    cluster.apply(&pool).await?;
    Ok(process)
}
