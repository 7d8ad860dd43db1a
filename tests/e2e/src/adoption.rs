//! Jobs of other kinds for scenarios of adoption, and the writes that were made for them.

use std::collections::BTreeMap;

use andreas_api::names::LABEL_ADOPT;
use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::chart;
use crate::cluster::Cluster;
use crate::job::TRAINER_IMAGE;

/// A suspended job of another kind, whose pods run the test trainer.
#[derive(Clone, Debug)]
pub struct Workload {
    kind: &'static str,
    name: String,
    namespace: String,
    pods: i64,
    gpus: i64,
    epochs: i32,
    seconds: f64,
    annotations: Map<String, Value>,
    labels: Map<String, Value>,
}

/// A job of that kind with one pod of one GPU that runs ten epochs of 0.3 s.
pub fn workload(kind: &'static str, name: &str) -> Workload {
    Workload {
        kind,
        name: name.into(),
        namespace: "default".into(),
        pods: 1,
        gpus: 1,
        epochs: 10,
        seconds: 0.3,
        annotations: Map::new(),
        labels: Map::from_iter([(LABEL_ADOPT.to_owned(), json!("true"))]),
    }
}

impl Workload {
    /// In another namespace than `default`.
    pub fn namespace(mut self, namespace: &str) -> Self {
        namespace.clone_into(&mut self.namespace);
        self
    }

    /// So many pods with so many GPUs each.
    pub fn pods(mut self, pods: i64, gpus: i64) -> Self {
        (self.pods, self.gpus) = (pods, gpus);
        self
    }

    /// Its length.
    pub fn epochs(mut self, epochs: i32, seconds: f64) -> Self {
        (self.epochs, self.seconds) = (epochs, seconds);
        self
    }

    /// An annotation below `andreas.dev/`.
    pub fn annotation(mut self, name: &str, value: &str) -> Self {
        self.annotations.insert(format!("andreas.dev/{name}"), value.into());
        self
    }

    /// A label.
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.labels.insert(name.to_owned(), value.into());
        self
    }

    /// Without the label that asks for adoption.
    pub fn not_adopted(mut self) -> Self {
        self.labels.remove(LABEL_ADOPT);
        self
    }

    /// `namespace/name` of the TrainingJob that stands for it.
    pub fn mirror(&self) -> String {
        format!("{}/{}-{}", self.namespace, self.kind.to_lowercase(), self.name)
    }

    /// Name for kubectl: `resource/name`.
    pub fn resource(&self) -> String {
        let group = match self.kind {
            "JobSet" => "jobsets.jobset.x-k8s.io",
            "TrainJob" => "trainjobs.trainer.kubeflow.org",
            "PyTorchJob" => "pytorchjobs.kubeflow.org",
            "RayJob" => "rayjobs.ray.io",
            _ => "jobs.batch",
        };
        format!("{group}/{}", self.name)
    }

    /// The pod template of a pod with so many GPUs.
    fn template(&self, container: &str, gpus: i64) -> Value {
        let env = |name: &str, value: String| json!({"name": name, "value": value});
        let resources = match gpus {
            0 => json!({}),
            _ => {
                json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": gpus.to_string()}})
            }
        };
        json!({"spec": {"restartPolicy": "Never", "containers": [{
            "name": container, "image": TRAINER_IMAGE, "resources": resources,
            "env": [
                env("TRAINER_EPOCHS", self.epochs.to_string()),
                env("TRAINER_SECONDS_PER_EPOCH", self.seconds.to_string()),
            ],
        }]}})
    }

    fn job_spec(&self, container: &str, pods: i64) -> Value {
        json!({
            "parallelism": pods, "completions": pods, "completionMode": "Indexed", "backoffLimit": 2,
            "template": self.template(container, self.gpus),
        })
    }

    /// The object.
    pub fn build(&self) -> Value {
        let (version, spec) = match self.kind {
            "JobSet" => (
                "jobset.x-k8s.io/v1alpha2",
                json!({"suspend": true, "replicatedJobs": [
                    {"name": "node", "replicas": 1, "template": {"spec": self.job_spec("train", self.pods)}}]}),
            ),
            "TrainJob" => (
                "trainer.kubeflow.org/v1alpha1",
                json!({
                    "suspend": true, "runtimeRef": {"name": "trainer"},
                    "trainer": {"numNodes": self.pods, "resourcesPerNode": {"limits": {"nvidia.com/gpu": self.gpus.to_string()}},
                        "env": self.template("node", 0)["spec"]["containers"][0]["env"]},
                }),
            ),
            "PyTorchJob" => {
                let role = |pods: i64| json!({"replicas": pods, "restartPolicy": "OnFailure", "template": self.template("pytorch", self.gpus)});
                let mut roles = json!({"Master": role(1)});
                if self.pods > 1 {
                    roles["Worker"] = role(self.pods - 1);
                }
                (
                    "kubeflow.org/v1",
                    json!({
                        // The test trainer does not know `auto`.
                        "nprocPerNode": "1",
                        "runPolicy": {"suspend": true, "cleanPodPolicy": "None"}, "pytorchReplicaSpecs": roles,
                    }),
                )
            }
            "RayJob" => (
                "ray.io/v1",
                json!({
                    "suspend": true, "entrypoint": "python train.py", "shutdownAfterJobFinishes": true,
                    "submissionMode": "HTTPMode",
                    "rayClusterSpec": {
                        "rayVersion": "2.46.0",
                        "headGroupSpec": {"rayStartParams": {}, "template": self.template("ray-head", 0)},
                        "workerGroupSpecs": [{
                            "groupName": "w", "replicas": self.pods, "minReplicas": self.pods, "maxReplicas": self.pods,
                            "rayStartParams": {}, "template": self.template("ray-worker", self.gpus),
                        }],
                    },
                }),
            ),
            _ => {
                let mut spec = self.job_spec("train", self.pods);
                spec["suspend"] = json!(true);
                ("batch/v1", spec)
            }
        };
        json!({
            "apiVersion": version, "kind": self.kind,
            "metadata": {
                "name": self.name, "namespace": self.namespace, "labels": self.labels, "annotations": self.annotations,
            },
            "spec": spec,
        })
    }
}

/// Writes by resource (with subresource) and user.
pub type Writes = BTreeMap<(String, String), usize>;

/// Writes in the namespace `default` that succeeded, by resource (with subresource) and user, from the audit log. Leases and Nodes are
/// not in a namespace of users.
///
/// # Errors
/// When the log cannot be read.
pub fn writes(cluster: &Cluster) -> Result<Writes> {
    let mut writes = BTreeMap::new();
    for event in cluster.testbed.audit_log()? {
        let event = event?;
        let is_write = matches!(event.verb.as_str(), "create" | "update" | "patch" | "delete");
        let about = &event.object_ref;
        if !is_write || about.namespace != "default" || !(200..300).contains(&event.code()) {
            continue;
        }
        let resource = match about.subresource.as_str() {
            "" => about.resource.clone(),
            sub => format!("{}/{sub}", about.resource),
        };
        *writes.entry((resource, event.user.username.clone())).or_insert(0) += 1;
    }
    Ok(writes)
}

/// Writes that the operator made for adopted jobs, less the one by which their user would start each of so many jobs: the release takes
/// its place. Left out are events, and TrainingProfiles, which the first run of a program makes whoever starts it.
pub fn added(writes: &Writes, jobs: usize) -> usize {
    let left_out = |resource: &str| resource == "events" || resource.starts_with("trainingprofiles");
    let own = writes.iter().filter(|((resource, user), _)| {
        user.ends_with(&format!(":{}", chart::operator_account())) && !left_out(resource)
    });
    own.map(|(_, number)| number).sum::<usize>().saturating_sub(jobs)
}
