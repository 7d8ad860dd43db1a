//! What users do in a soak: they submit, edit and delete jobs, and delete pods.

use std::time::{Duration, Instant};

use andreas_api::names;
use anyhow::{Context as _, Result};
use serde_json::json;

use super::actions::{Action, Actor, Failing, NAMESPACES};
use crate::cluster::{Cluster, split};
use crate::job::job;
use crate::seen::PodView;

/// Jobs that wait or run at a time.
const OPEN: usize = 10;
/// Seconds that a job with a checkpoint has to save.
const GRACE_SECONDS: i32 = 5;
/// After a forced deletion, until the pod's node may be cut off: a grace of any job here and some seconds. Whoever deletes a pod by
/// force on a node that does not answer says that it is dead, and takes the consequences.
const FORCED: Duration = Duration::from_secs(40);
/// Families of runs in each namespace. What was measured of one run says what the next one draws, and power limits are planned with that.
const PROFILES: [&str; 2] = ["vision", "language"];
/// GPUs in total and the most nodes.
const SIZES: [(i32, i32); 5] = [(1, 1), (1, 1), (2, 1), (4, 1), (8, 2)];

impl Actor {
    /// Makes the namespaces with their profiles.
    pub(super) async fn make_namespaces(c: &Cluster) -> Result<()> {
        for namespace in NAMESPACES {
            c.make_namespace(namespace).await?;
            for profile in PROFILES {
                c.apply(&json!({
                    "apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingProfile",
                    "metadata": {"name": profile, "namespace": namespace}, "spec": {},
                }))
                .await?;
            }
        }
        Ok(())
    }

    pub(super) async fn submit(&mut self, c: &Cluster) -> Result<Option<String>> {
        if self.open(c).len() >= OPEN {
            return Ok(None);
        }
        let number = self.jobs.len();
        let (gpus, max_nodes) = *self.rng.one_of(&SIZES).context("sizes")?;
        let namespace = self.rng.one_of(&NAMESPACES).context("namespaces")?;
        let epochs = i32::try_from(self.rng.between(4, 30))?;
        let weight = self.rng.between(1, 100);
        let mut made = job(&format!("job-{number}"))
            .namespace(namespace)
            .gpus(gpus, max_nodes)
            .epochs(epochs, 0.3)
            .spec("weight", json!(weight))
            .spec("deadlineAfter", json!(format!("{}s", self.rng.between(20, 600))));
        if self.rng.percent(60) {
            made = made.checkpoint(GRACE_SECONDS);
            if self.rng.percent(20) {
                made = made.env("TRAINER_IGNORE_TERM", "true");
            }
        }
        if self.rng.percent(20) {
            made = made.spec("preemption", json!("Never"));
        }
        if self.rng.percent(70) {
            made = made.spec("profileRef", json!({"name": self.rng.one_of(&PROFILES)}));
        }
        let fails = self.rng.percent(15);
        if fails {
            let failing = Failing { attempts: self.rng.between(1, 2), retries: self.rng.between(0, 2) };
            made = made.env("TRAINER_FAIL_AT", 0.4).env("TRAINER_FAIL_ATTEMPTS", failing.attempts);
            made = made.spec("retries", json!(failing.retries));
            self.failing.insert(made.key(), failing);
        }
        c.submit(&made).await?;
        let key = made.key();
        self.jobs.insert(key.clone(), made);
        Ok(Some(key))
    }

    pub(super) async fn change(&mut self, c: &Cluster, action: Action) -> Result<Option<String>> {
        let open = self.open(c);
        let Some(key) = self.rng.one_of(&open).cloned() else { return Ok(None) };
        let to = match action {
            Action::Reweigh => {
                let weight = self.rng.between(1, 1000);
                c.edit(&key, &json!({"weight": weight})).await?;
                weight.to_string()
            }
            Action::Resize => {
                let (gpus, max_nodes) = *self.rng.one_of(&SIZES).context("sizes")?;
                c.edit(&key, &json!({"gpus": {"min": gpus, "max": gpus, "maxNodes": max_nodes}})).await?;
                format!("{gpus} GPUs on {max_nodes} nodes")
            }
            Action::SuspendOrResume => {
                let suspend = !self.suspended.remove(&key);
                if suspend {
                    self.suspended.insert(key.clone());
                }
                c.edit(&key, &json!({"suspend": suspend})).await?;
                suspend.to_string()
            }
            _ => {
                let (namespace, name) = split(&key)?;
                c.kubectl(&format!("delete trainingjob {name} -n {namespace} --wait=false")).await?;
                self.deleted.insert(key.clone());
                String::new()
            }
        };
        Ok(Some(format!("{key} {to}")))
    }

    /// Pods of jobs that are bound and have not ended: namespace, name, node.
    fn live_pods(c: &Cluster) -> Vec<(String, String, String)> {
        let seen = c.observer.seen();
        let ours = |pod: &&PodView| pod.is_live() && !pod.label(names::LABEL_JOB).is_empty();
        let words = |pod: &PodView| {
            let meta = &pod.pod.metadata;
            Some((meta.namespace.clone()?, meta.name.clone()?, pod.pod.spec.node_name.clone()?))
        };
        seen.pods.values().filter(ours).filter_map(words).collect()
    }

    pub(super) async fn delete_pod(&mut self, c: &Cluster) -> Result<Option<String>> {
        let live = Self::live_pods(c);
        let Some((namespace, pod, _)) = self.rng.one_of(&live) else { return Ok(None) };
        c.kubectl(&format!("delete pod {pod} -n {namespace} --wait=false --ignore-not-found")).await?;
        Ok(Some(format!("{namespace}/{pod}")))
    }

    /// The object goes at once, while the containers have their grace.
    pub(super) async fn delete_pod_by_force(&mut self, c: &Cluster) -> Result<Option<String>> {
        let mut live = Self::live_pods(c);
        live.retain(|(_, _, node)| !self.away.contains(node));
        let Some((namespace, pod, node)) = self.rng.one_of(&live) else { return Ok(None) };
        self.forced.insert(node.clone(), Instant::now() + FORCED);
        let how = "--force --grace-period=0 --wait=false --ignore-not-found";
        c.kubectl(&format!("delete pod {pod} -n {namespace} {how}")).await?;
        Ok(Some(format!("{namespace}/{pod} on {node}")))
    }
}
