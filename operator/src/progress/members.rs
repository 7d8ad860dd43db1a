//! Whether a token's pod belongs to the job that it reports for.
//!
//! Most pods are in the watch's cache. An unknown pod is read live, with limits: eight reads at a time and
//! eight a second per namespace. A pod that is no member is not read again for a minute, whatever token it
//! uses.

use std::sync::Arc;
use std::time::Duration;

use andreas_api::names::LABEL_ATTEMPT;
use andreas_api::slim::SlimPod;
use andreas_cluster::index::{ClusterIndex, number, owner};
use andreas_runtime::buckets::Buckets;
use andreas_runtime::remembered::Remembered;
use andreas_runtime::watch::ObjectKey;
use kube::{Client, Resource};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::token::{PodIdentity, ReviewError};
use crate::writes::writer::get;

/// Maximum concurrent live reads.
const READS: usize = 8;
/// Burst of live reads per namespace.
const BURST: u32 = 32;
/// Live reads per second per namespace.
const PER_SECOND: u32 = 8;
/// How long a negative result is cached.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Maximum cached negative results.
const MAX_KEPT: usize = 20_000;

/// Finds members and caches negative results.
pub struct Members {
    client: Client,
    index: Arc<Mutex<ClusterIndex>>,
    reads: Semaphore,
    live_read_limits: Buckets<String>,
    /// UIDs of a pod and a job to which the pod is known not to belong.
    not_members: Remembered<(String, String), ()>,
}

impl Members {
    /// Looks in the cache, then asks the API server.
    pub fn new(client: Client, index: Arc<Mutex<ClusterIndex>>) -> Self {
        Self {
            client,
            index,
            reads: Semaphore::new(READS),
            live_read_limits: Buckets::new(BURST, PER_SECOND),
            not_members: Remembered::new(MAX_KEPT, REMEMBERED),
        }
    }

    /// The attempt of the job with this key and UID that the pod belongs to; `None`: none.
    ///
    /// # Errors
    /// If the namespace caused too many live reads, or the API server is unavailable.
    pub async fn attempt(
        &self,
        job: &ObjectKey,
        uid: &str,
        pod: &PodIdentity,
    ) -> Result<Option<i64>, ReviewError> {
        let key = ObjectKey { namespace: pod.namespace.clone(), name: pod.name.clone() };
        let held = self.index.lock().pods().get(&key).cloned();
        if let Some(held) = held.filter(|held| held.metadata.uid.as_deref() == Some(&pod.uid)) {
            return Ok(member(&held, job, uid));
        }
        let pair = (pod.uid.clone(), uid.to_owned());
        if self.not_members.get(&pair).is_some() {
            return Ok(None);
        }
        if !self.live_read_limits.admit(pod.namespace.clone(), Instant::now()) {
            return Err(ReviewError::TooMany);
        }
        let permit = self.reads.acquire().await;
        // A concurrent report of the same pod may have got the answer meanwhile.
        if self.not_members.get(&pair).is_some() {
            return Ok(None);
        }
        let url = SlimPod::url_path(&(), Some(&key.namespace));
        let found = get::<SlimPod>(&self.client, &url, &key.name).await?;
        drop(permit);
        let found = found.filter(|found| found.metadata.uid.as_deref() == Some(&pod.uid));
        let attempt = found.and_then(|found| member(&found, job, uid));
        if attempt.is_none() {
            self.not_members.insert(pair, ());
        }
        Ok(attempt)
    }
}

fn member(pod: &SlimPod, job: &ObjectKey, uid: &str) -> Option<i64> {
    let ours = owner(&pod.metadata).is_some_and(|(name, owner)| owner == uid && name == *job);
    if ours { number(&pod.metadata, LABEL_ATTEMPT) } else { None }
}
