//! TrainingJobs for scenarios: short runs of the test trainer, said in a few words.

use serde_json::{Map, Value, json};

/// Image that the pretend kubelets run the trainer for.
pub const TRAINER_IMAGE: &str = "andreas.dev/trainer:dev";

/// A row of a user's table: how long an epoch takes on so many GPUs of a type, and what they draw.
pub fn measured(gpu_type: &str, gpus: i32, millis_per_epoch: i64, watts: i32) -> Value {
    json!({"gpuType": gpu_type, "gpus": gpus, "millisPerEpoch": millis_per_epoch, "watts": watts})
}

/// A TrainingProfile in `default` with such a table.
pub fn profile(name: &str, table: &[Value]) -> Value {
    json!({
        "apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingProfile",
        "metadata": {"name": name, "namespace": "default"}, "spec": {"measurements": table},
    })
}

/// A TrainingJob being written.
#[derive(Clone, Debug)]
pub struct Job {
    name: String,
    namespace: String,
    spec: Map<String, Value>,
    env: Vec<(String, String)>,
    pod: Map<String, Value>,
    container: Map<String, Value>,
}

/// A job on one GPU that runs ten epochs of 0.3 s and asks for little beside.
pub fn job(name: &str) -> Job {
    let mut spec = Map::new();
    spec.insert("epochs".into(), json!(10));
    spec.insert("deadlineAfter".into(), json!("1h"));
    spec.insert("gpus".into(), json!({"min": 1}));
    Job {
        name: name.into(),
        namespace: "default".into(),
        spec,
        env: vec![("TRAINER_REPORT_SECONDS".into(), "0.5".into())],
        pod: Map::new(),
        container: Map::new(),
    }
    .epochs(10, 0.3)
}

impl Job {
    /// In another namespace.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// The same under another name; its checkpoint claim has that name too.
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        let claim = self.spec.get_mut("checkpoint").and_then(|checkpoint| checkpoint.get_mut("claimName"));
        if let Some(claim) = claim {
            *claim = json!(format!("{name}-checkpoint"));
        }
        self
    }

    /// Its length: epochs of so many seconds, whatever the GPUs.
    pub fn epochs(mut self, epochs: i32, seconds: f64) -> Self {
        self.spec.insert("epochs".into(), json!(epochs));
        self.env("TRAINER_EPOCHS", epochs).env("TRAINER_SECONDS_PER_EPOCH", seconds)
    }

    /// A field of `spec`.
    pub fn spec(mut self, field: &str, value: Value) -> Self {
        self.spec.insert(field.into(), value);
        self
    }

    /// Planned with that TrainingProfile.
    pub fn profile(self, name: impl Into<String>) -> Self {
        self.spec("profileRef", json!({"name": name.into()}))
    }

    /// Without a field of `spec`.
    pub fn without(mut self, field: &str) -> Self {
        self.spec.remove(field);
        self
    }

    /// Exactly so many GPUs in total, over at most so many nodes.
    pub fn gpus(self, total: i32, max_nodes: i32) -> Self {
        self.spec("gpus", json!({"min": total, "max": total, "maxNodes": max_nodes}))
    }

    /// An environment variable of the trainer; the last word on a name counts.
    pub fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.env.retain(|(k, _)| k != name);
        self.env.push((name.into(), value.to_string()));
        self
    }

    /// Its first attempt stays at that share of the run until it is stopped; the next one runs the rest. What a test does
    /// to the first is then in time on any machine.
    pub fn stays_at(self, share: f64) -> Self {
        self.env("TRAINER_STAY_AT", share).env("TRAINER_FAIL_ATTEMPTS", 1)
    }

    /// A checkpoint claim of the job's own name, and the grace to save.
    pub fn checkpoint(self, grace_seconds: i32) -> Self {
        let claim = format!("{}-checkpoint", self.name);
        self.spec("checkpoint", json!({"claimName": claim, "graceSeconds": grace_seconds}))
    }

    /// A field of the pod's spec.
    pub fn pod(mut self, field: &str, value: Value) -> Self {
        self.pod.insert(field.into(), value);
        self
    }

    /// A field of the container.
    pub fn container(mut self, field: &str, value: Value) -> Self {
        self.container.insert(field.into(), value);
        self
    }

    /// The object.
    pub fn build(&self) -> Value {
        let env: Vec<Value> = self.env.iter().map(|(k, v)| json!({"name": k, "value": v})).collect();
        let mut container = Map::from_iter([
            ("name".to_owned(), json!("train")),
            ("image".to_owned(), json!(TRAINER_IMAGE)),
            ("env".to_owned(), json!(env)),
            ("resources".to_owned(), json!({"requests": {"cpu": "1", "memory": "1Gi"}})),
        ]);
        container.extend(self.container.clone());
        let mut pod = Map::from_iter([("containers".to_owned(), json!([container]))]);
        pod.extend(self.pod.clone());
        let mut spec = self.spec.clone();
        spec.insert("template".into(), json!({"spec": pod}));
        json!({
            "apiVersion": "andreas.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": spec,
        })
    }

    /// The claim for its checkpoints, where it has one.
    pub fn claim(&self) -> Option<Value> {
        let name = self.spec.get("checkpoint")?.get("claimName")?.as_str()?;
        Some(json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
        }))
    }

    /// Its `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}
