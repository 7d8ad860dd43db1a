//! What the nodes themselves say: which containers run, and which pod holds which GPU. Objects may be gone, or deleted by
//! force, while containers go on; this sees them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use andreas_test_nodes::NodesClient;
use andreas_test_nodes::control::PodInfo;
use tokio::task::JoinHandle;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(400);

/// Looks again and again; dropped, it ends.
#[derive(Debug)]
pub struct DeviceCheck {
    violations: Arc<Mutex<BTreeSet<String>>>,
    looks: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl DeviceCheck {
    /// Starts looking.
    pub fn start(nodes: NodesClient) -> Self {
        let violations = Arc::new(Mutex::new(BTreeSet::new()));
        let looks = Arc::new(AtomicU64::new(0));
        let (found, count) = (violations.clone(), looks.clone());
        let task = tokio::spawn(async move {
            loop {
                if let Ok(pods) = nodes.pods().await {
                    found.lock().unwrap_or_else(PoisonError::into_inner).extend(wrong(&pods));
                    count.fetch_add(1, Ordering::Relaxed);
                }
                tokio::time::sleep(EVERY).await;
            }
        });
        Self { violations, looks, task }
    }

    /// What must not be and was seen.
    pub fn violations(&self) -> BTreeSet<String> {
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How often it looked.
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }
}

impl Drop for DeviceCheck {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// `name-attempt-index` of a member as job and attempt.
fn job_and_attempt(pod: &PodInfo) -> Option<(String, i64)> {
    let mut parts = pod.name.rsplitn(3, '-');
    let _index: i64 = parts.next()?.parse().ok()?;
    let attempt = parts.next()?.parse().ok()?;
    Some((format!("{}/{}", pod.namespace, parts.next()?), attempt))
}

/// Containers of two attempts of one job at once, and GPUs with two containers.
fn wrong(pods: &[PodInfo]) -> Vec<String> {
    let mut attempts: BTreeMap<String, BTreeSet<i64>> = BTreeMap::new();
    let mut users: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !pod.pids.is_empty()) {
        if let Some((job, attempt)) = job_and_attempt(pod) {
            attempts.entry(job).or_default().insert(attempt);
        }
        for gpu in &pod.gpus {
            users.entry((&pod.node, gpu)).or_default().push(&pod.name);
        }
    }
    let twice = attempts.into_iter().filter(|(_, attempts)| attempts.len() > 1);
    let twice = twice.map(|(job, attempts)| format!("{job}: containers of attempts {attempts:?} at once"));
    let shared = users.into_iter().filter(|(_, pods)| pods.len() > 1);
    let shared = shared.map(|((node, gpu), pods)| format!("{gpu} on {node}: containers of {pods:?} at once"));
    twice.chain(shared).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, gpu: &str, runs: bool) -> PodInfo {
        PodInfo {
            namespace: "a".into(),
            name: name.into(),
            uid: name.into(),
            node: "n".into(),
            labels: Default::default(),
            ip: String::new(),
            gpus: vec![gpu.into()],
            pids: runs.then(|| ("train".to_owned(), 7)).into_iter().collect(),
            ended: !runs,
        }
    }

    #[test]
    fn two_attempts_and_shared_gpus_are_seen_only_while_containers_run() {
        assert!(wrong(&[pod("j-1-0", "g1", false), pod("j-2-0", "g1", true)]).is_empty());
        assert!(wrong(&[pod("j-1-0", "g1", true), pod("j-1-1", "g2", true)]).is_empty());
        let both = wrong(&[pod("j-1-0", "g1", true), pod("j-2-0", "g1", true)]);
        assert_eq!(both.len(), 2, "{both:?}");
    }
}
