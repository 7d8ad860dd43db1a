//! CapacityBuffers: how many nodes of each pool an autoscaler shall have ready, each with the PodTemplate of a pod that fills a node.
//!
//! The autoscaler makes room for `replicas` such pods that are never made: on nodes that are there and empty, and on new ones.
//! (`autoscaling.x-k8s.io`, SIG Autoscaling: Cluster Autoscaler with `--capacity-buffer-controller-enabled`, GKE, Karpenter with the
//! feature gate `CapacityBuffer`.)

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use andreas_api::energy_policy::NodePool;
use andreas_api::names::GPU_RESOURCE;
use andreas_api::slim::SlimEnergyPolicy;
use serde_json::{Value, json};

use crate::writes::{WriteError, Writer};

/// What is as it should be is written again after this time: somebody may have changed it.
const AGAIN: Duration = Duration::from_secs(300);
/// Label of what this module makes.
const LABEL: (&str, &str) = ("app.kubernetes.io/managed-by", "andreas-operator");

/// The CapacityBuffers in the operator's namespace.
pub struct Buffers {
    namespace: String,
    /// By pool.
    written: BTreeMap<String, Written>,
    /// Kinds of the last policy.
    named: BTreeSet<String>,
    /// Those of an earlier operator or policy are removed.
    cleaned: bool,
}

struct Written {
    policy: Option<String>,
    pool: NodePool,
    replicas: usize,
    at: Instant,
}

impl Buffers {
    /// Nothing is known of those in this namespace.
    pub fn new(namespace: String) -> Self {
        Self { namespace, written: BTreeMap::new(), named: BTreeSet::new(), cleaned: false }
    }

    /// Writes what changed. Returns the pools of which it could not be written, with the reason.
    pub async fn write(
        &mut self,
        writer: &Writer,
        policy: Option<&SlimEnergyPolicy>,
        replicas: &BTreeMap<String, usize>,
    ) -> BTreeMap<String, String> {
        let pools: &[NodePool] = policy.map(|policy| policy.spec.capacity.as_slice()).unwrap_or_default();
        let named: BTreeSet<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
        self.cleaned &= self.named.iter().all(|name| named.contains(name.as_str()));
        self.named = named.iter().map(|name| (*name).to_owned()).collect();
        self.written.retain(|name, _| named.contains(name.as_str()));
        if !self.cleaned {
            match self.remove_others(writer, &named).await {
                Ok(()) => self.cleaned = true,
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "CapacityBuffers not removed");
                }
            }
        }
        let mut failed = BTreeMap::new();
        for pool in pools {
            let count = replicas.get(&pool.name).copied().unwrap_or(0);
            let new = Written {
                policy: policy.and_then(|policy| policy.metadata.uid.clone()),
                pool: pool.clone(),
                replicas: count,
                at: Instant::now(),
            };
            let same =
                |w: &Written| (&w.policy, &w.pool, w.replicas) == (&new.policy, &new.pool, new.replicas);
            if self.written.get(&pool.name).is_some_and(|w| same(w) && w.at.elapsed() < AGAIN) {
                continue;
            }
            // A write that is given up may take effect all the same: it is not known what stands there.
            let before = self.written.remove(&pool.name);
            match self.write_one(writer, policy, pool, count).await {
                Ok(()) => {
                    if before.is_none_or(|before| before.replicas != count) {
                        tracing::info!(pool = pool.name, nodes = count, "asked for");
                    }
                    self.written.insert(pool.name.clone(), new);
                }
                Err(error) => {
                    failed.insert(pool.name.clone(), error.message());
                }
            }
        }
        failed
    }

    async fn write_one(
        &self,
        writer: &Writer,
        policy: Option<&SlimEnergyPolicy>,
        pool: &NodePool,
        replicas: usize,
    ) -> Result<(), WriteError> {
        let metadata = self.metadata(policy, pool);
        let name = name_of(pool);
        writer.apply("capacity", &self.templates(), &name, &template(pool, &metadata)).await?;
        let buffer = json!({
            "apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer", "metadata": metadata,
            "spec": {"podTemplateRef": {"name": name}, "replicas": replicas},
        });
        writer.apply("capacity", &self.buffers(), &name, &buffer).await
    }

    /// Removes what an earlier policy asked for.
    async fn remove_others(&self, writer: &Writer, named: &BTreeSet<&str>) -> Result<(), WriteError> {
        for url in [self.buffers(), self.templates()] {
            for object in writer.list(&url, &format!("{}={}", LABEL.0, LABEL.1)).await? {
                let (Some(name), Some(uid)) = (object.metadata.name, object.metadata.uid) else { continue };
                let pool = name.strip_prefix(PREFIX).unwrap_or_default();
                if !named.contains(pool) {
                    writer.delete_at(&url, &name, (&uid, None), None).await?;
                }
            }
        }
        Ok(())
    }

    /// Owned by the policy: they go with it.
    fn metadata(&self, policy: Option<&SlimEnergyPolicy>, pool: &NodePool) -> Value {
        let owner = policy.map(|policy| {
            json!([{"apiVersion": "andreas.dev/v1alpha1", "kind": "EnergyPolicy", "name": policy.metadata.name,
                "uid": policy.metadata.uid}])
        });
        json!({"name": name_of(pool), "namespace": self.namespace, "labels": {LABEL.0: LABEL.1}, "ownerReferences": owner})
    }

    fn templates(&self) -> String {
        format!("/api/v1/namespaces/{}/podtemplates", self.namespace)
    }

    fn buffers(&self) -> String {
        format!("/apis/autoscaling.x-k8s.io/v1beta1/namespaces/{}/capacitybuffers", self.namespace)
    }
}

const PREFIX: &str = "andreas-";

fn name_of(pool: &NodePool) -> String {
    format!("{PREFIX}{}", pool.name)
}

/// A pod that fills a node of this pool.
fn template(pool: &NodePool, metadata: &Value) -> Value {
    let mut requests = pool.allocatable.clone();
    // The number of pods is no request.
    requests.remove("pods");
    requests.insert(GPU_RESOURCE.into(), pool.gpus.to_string());
    let taints = pool.taints.iter();
    let mut tolerations: Vec<Value> =
        taints.map(|taint| json!({"key": taint.key, "operator": "Exists", "effect": taint.effect})).collect();
    tolerations.push(json!({"key": GPU_RESOURCE, "operator": "Exists"}));
    json!({
        "apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata,
        "template": {"spec": {
            "nodeSelector": pool.node_selector,
            "tolerations": tolerations,
            "containers": [{"name": "node", "image": "registry.k8s.io/pause:3.10",
                "resources": {"requests": requests, "limits": {GPU_RESOURCE: pool.gpus.to_string()}}}],
        }},
    })
}
