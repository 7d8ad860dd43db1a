//! Cache of accepted dry runs, shared by the jobs of a namespace whose workers differ only in the job's name.
//!
//! Only acceptance is cached, for a minute and until the namespace's rules change; the real creation decides.
//! A refusal may name the pod, so each job gets its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use andreas_api::names::LABEL_ATTEMPT;
use andreas_api::slim::{SlimPod, SlimTrainingJob};
use andreas_cluster::index::{ClusterIndex, number};
use andreas_lifecycle::pods::{WorkerDigest, unplaced_worker, worker_digest};
use andreas_lifecycle::{Admitted, DryRunResult, Settings};
use andreas_runtime::watch::ObjectKey;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::snapshot::worker;

/// Validity of an acceptance. Changes that are not watched (a LimitRange, a service account) are noticed this
/// late.
const HOLDS: Duration = Duration::from_secs(60);
/// Maximum entries; beyond that the cache is cleared.
const MAX_ENTRIES: usize = 4_096;

/// Accepted dry runs by namespace and worker.
#[derive(Default)]
pub struct DryRunCache(Mutex<HashMap<String, HashMap<WorkerDigest, CachedDryRun>>>);

#[derive(Clone)]
struct CachedDryRun {
    since: Instant,
    /// What admission adds to the worker, if accepted.
    outcome: Arc<OnceCell<Option<Added>>>,
}

/// An accepted worker after admission, if it requests more.
pub type Added = Option<Arc<Admitted>>;

/// Result of [`DryRunCache::find`].
pub enum DryRunLookup<T, E> {
    /// An equal worker was accepted recently or by a concurrent call.
    Accepted(Added),
    /// This call made the dry run.
    Tried(Result<T, E>),
    /// A concurrent call for an equal worker was refused: the caller must try by itself.
    Refused,
}

impl DryRunCache {
    /// Whether a worker of the job with `gpus` GPUs is accepted. The answer comes from the cache, a
    /// concurrent call for an equal worker, or `dry_run`, interpreted by `accepted`. An error of `dry_run` is
    /// not shared.
    pub async fn find<T, E>(
        &self,
        job: &SlimTrainingJob,
        gpus: i32,
        dry_run: impl Future<Output = Result<T, E>>,
        accepted: impl FnOnce(&T) -> Option<Added>,
    ) -> DryRunLookup<T, E> {
        let namespace = job.metadata.namespace.clone().unwrap_or_default();
        let Some(worker) = worker_digest(&job.spec, gpus) else { return DryRunLookup::Tried(dry_run.await) };
        let outcome = self.join(&namespace, worker);
        let mut answer = None;
        let attempt = async {
            let result = dry_run.await;
            let accepted = result.as_ref().map(accepted).map_err(|_| ());
            answer = Some(result);
            accepted
        };
        let known = outcome.get_or_try_init(|| attempt).await.cloned().ok().flatten();
        if known.is_none() {
            self.leave(&namespace, &worker, &outcome);
        }
        match (answer, known) {
            (Some(answer), _) => DryRunLookup::Tried(answer),
            (None, Some(added)) => DryRunLookup::Accepted(added),
            (None, None) => DryRunLookup::Refused,
        }
    }

    fn join(&self, namespace: &str, worker: WorkerDigest) -> Arc<OnceCell<Option<Added>>> {
        let now = Instant::now();
        let mut all = self.0.lock();
        if all.values().map(HashMap::len).sum::<usize>() >= MAX_ENTRIES {
            all.clear();
        }
        let fresh = || CachedDryRun { since: now, outcome: Arc::default() };
        let cached = all.entry(namespace.to_owned()).or_default().entry(worker).or_insert_with(fresh);
        if now.duration_since(cached.since) > HOLDS {
            *cached = fresh();
        }
        Arc::clone(&cached.outcome)
    }

    fn leave(&self, namespace: &str, worker: &WorkerDigest, outcome: &Arc<OnceCell<Option<Added>>>) {
        if let Some(cache) = self.0.lock().get_mut(namespace)
            && cache.get(worker).is_some_and(|cached| Arc::ptr_eq(&cached.outcome, outcome))
        {
            cache.remove(worker);
        }
    }

    /// The namespace's rules changed: drops its entries.
    pub fn forget(&self, namespace: &str) {
        self.0.lock().remove(namespace);
    }
}

/// What a worker that exists shows as a dry run would: it was accepted, and what admission added. This process may not have
/// made one since it leads. `None` without such a worker.
pub fn of_live_worker(
    index: &ClusterIndex,
    key: &ObjectKey,
    settings: &Settings,
    now: Timestamp,
) -> Option<DryRunResult> {
    let job =
        index.jobs().get(key).filter(|job| job.spec.adopts.is_none() && !job.spec.template.is_too_large())?;
    let allocation = job.status.as_ref()?.allocation.as_ref()?;
    let of_attempt = |pod: &&Arc<SlimPod>| number(&pod.metadata, LABEL_ATTEMPT) == Some(allocation.attempt);
    let members = index.members(key);
    let mut kept = worker::unpinned(members.iter().find(of_attempt)?.spec.clone());
    let gpus = allocation.gpus_per_worker;
    let sent = unplaced_worker(job, allocation.attempt, gpus, settings);
    let as_sent = sent.spec.as_ref().map(worker::slim).unwrap_or_default();
    if worker::unpinned(as_sent.clone()) != as_sent {
        // Of a user's own pin the pod says nothing.
        kept.affinity = as_sent.affinity;
    }
    let admitted = worker::admitted(sent.spec.as_ref(), kept);
    Some(DryRunResult { gpus, smaller: None, at: now, refusal: None, admitted })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;
    use serde_json::json;

    use super::*;
    use crate::testing;

    fn job(namespace: &str, name: &str, image: &str) -> SlimTrainingJob {
        let mut job = testing::job(1, &json!(null));
        job["metadata"]["namespace"] = json!(namespace);
        job["metadata"]["name"] = json!(name);
        job["metadata"]["uid"] = json!(format!("uid-of-{name}"));
        job["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
        serde_json::from_value(job).expect("a job")
    }

    /// Dry-runs one-GPU workers of these jobs concurrently against a server that answers `answer`. Returns
    /// the number of calls and each result: `A`ccepted by another call, `T`ried, `R`efused to another.
    async fn find(
        cache: &DryRunCache,
        jobs: &[SlimTrainingJob],
        answer: Result<bool, ()>,
    ) -> (usize, String) {
        let calls = AtomicUsize::new(0);
        let each = jobs.iter().map(|job| async {
            let dry_run = async {
                calls.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(5)).await;
                answer
            };
            match cache.find(job, 1, dry_run, |accepted| accepted.then_some(None)).await {
                DryRunLookup::Accepted(_) => 'A',
                DryRunLookup::Tried(_) => 'T',
                DryRunLookup::Refused => 'R',
            }
        });
        let found = join_all(each).await.into_iter().collect();
        (calls.into_inner(), found)
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_that_differ_in_their_names_only_are_tried_once_a_minute() {
        let cache = DryRunCache::default();
        let jobs = ["a", "b", "c"].map(|name| job("team", name, "x"));
        assert_eq!(find(&cache, &jobs, Ok(true)).await, (1, "TAA".into()));
        assert_eq!(find(&cache, &jobs, Ok(true)).await, (0, "AAA".into()));
        // Another image, namespace or GPU count is another worker.
        let others = [job("team", "d", "y"), job("other", "e", "x")];
        assert_eq!(find(&cache, &others, Ok(true)).await, (2, "TT".into()));
        let two =
            cache.find(&jobs[0], 2, async { Ok::<_, ()>(true) }, |accepted| accepted.then_some(None)).await;
        assert!(matches!(two, DryRunLookup::Tried(Ok(true))));
        tokio::time::sleep(HOLDS).await;
        assert_eq!(find(&cache, &jobs, Ok(true)).await, (1, "TAA".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_nobody_elses() {
        let cache = DryRunCache::default();
        let jobs = ["a", "b", "c"].map(|name| job("team", name, "x"));
        assert_eq!(find(&cache, &jobs, Ok(false)).await, (1, "TRR".into()));
        // Refusals and errors are not cached: the next caller tries.
        assert_eq!(find(&cache, &jobs, Err(())).await, (3, "TTT".into()));
        assert_eq!(find(&cache, &jobs, Ok(true)).await, (1, "TAA".into()));
    }

    #[test]
    fn what_admission_added_is_read_from_a_worker_that_runs() {
        use andreas_runtime::watch::Index;
        let mut index = ClusterIndex::new();
        let allocation = json!({"attempt": 1, "generation": 1, "gpuType": "A", "gpus": 2, "gpusPerWorker": 2, "nodes": ["n1"],
            "since": "2026-01-01T00:00:00Z", "watts": 0});
        let mut runs = testing::job(10, &json!({"phase": "Running", "allocation": allocation}));
        let required = |term: serde_json::Value| json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}});
        let zone = json!({"key": "zone", "operator": "In", "values": ["a"]});
        let pool = json!({"key": "pool", "operator": "In", "values": ["b"]});
        runs["spec"]["template"]["spec"]["affinity"] = required(json!({"matchExpressions": [zone]}));
        let runs: SlimTrainingJob = serde_json::from_value(runs).expect("a job");
        index.apply(runs.clone());
        let (key, settings, now) = (testing::key("bert"), Settings::default(), Timestamp::UNIX_EPOCH);
        assert_eq!(of_live_worker(&index, &key, &settings, now), None, "no worker yet");
        // As sent, and with a container that admission injected.
        for injected in [false, true] {
            let pod = unplaced_worker(&runs, 1, 2, &settings);
            let mut pod = serde_json::to_value(pod).expect("a pod");
            pod["metadata"]["uid"] = json!("p");
            pod["metadata"]["resourceVersion"] = json!(if injected { "12" } else { "11" });
            if injected {
                let proxy = json!({"name": "proxy", "resources": {"requests": {"cpu": "500m"}}});
                pod["spec"]["containers"].as_array_mut().expect("containers").push(proxy);
                // It was pinned to its node, and admission has named a pool.
                let pin = json!({"key": "metadata.name", "operator": "In", "values": ["n1"]});
                pod["spec"]["affinity"] =
                    required(json!({"matchExpressions": [zone, pool], "matchFields": [pin]}));
            }
            index.apply(serde_json::from_value::<SlimPod>(pod).expect("a pod"));
            let found = of_live_worker(&index, &key, &settings, now).expect("a worker");
            assert_eq!((found.gpus, found.refusal), (2, None));
            let kept = found.admitted.as_ref().map(|admitted| serde_json::to_value(&admitted.kept.affinity));
            let terms = kept.map(|kept| kept.expect("an affinity")["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"].clone());
            assert_eq!(terms, injected.then(|| json!([{"matchExpressions": [zone, pool]}])));
            let more = found.admitted.map(|admitted| {
                let cpu = |spec| andreas_cluster::index::amounts::pod(spec).cpu_milli;
                cpu(&admitted.kept) - cpu(&admitted.sent)
            });
            assert_eq!(more, injected.then_some(500));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn new_rules_of_a_namespace_end_consent() {
        let cache = DryRunCache::default();
        let jobs = [job("team", "a", "x"), job("other", "a", "x")];
        find(&cache, &jobs, Ok(true)).await;
        cache.forget("team");
        assert_eq!(find(&cache, &jobs, Ok(true)).await, (1, "TA".into()));
    }
}
