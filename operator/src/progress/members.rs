//! Whether the pod that a token was issued to is a member of the job that it reports for.
//!
//! The watch's cache knows nearly all of them. A pod that it does not know is read live, with bounds: eight reads at a time, eight a
//! second for each namespace, and a pod that is no member is not read again for a minute, whatever token it shows.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use andreas_api::names::LABEL_ATTEMPT;
use andreas_api::slim::SlimPod;
use andreas_runtime::buckets::Buckets;
use andreas_runtime::watch::ObjectKey;
use kube::{Client, Resource};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::token::{PodIdentity, ReviewError};
use crate::executor::writer::get;
use crate::index::{ClusterIndex, number, owner};

/// Live reads in flight.
const READS: usize = 8;
/// Live reads that a namespace may cause at once.
const BURST: u32 = 32;
/// Live reads a second that it gets back.
const PER_SECOND: u32 = 8;
/// How long it is remembered that a pod is no member.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Such pods that are kept at most.
const MAX_KEPT: usize = 20_000;

/// Finds out who is a member, and remembers who is not.
pub struct Members {
    client: Client,
    index: Arc<Mutex<ClusterIndex>>,
    reads: Semaphore,
    shares: Buckets<String>,
    /// UIDs of a pod and of a job, and until when it is known that the pod is not a member of the job.
    others: Mutex<HashMap<(String, String), Instant>>,
}

impl Members {
    /// Members by the cache, else by the API server.
    pub fn new(client: Client, index: Arc<Mutex<ClusterIndex>>) -> Self {
        Self {
            client,
            index,
            reads: Semaphore::new(READS),
            shares: Buckets::new(BURST, PER_SECOND),
            others: Mutex::default(),
        }
    }

    /// The attempt of the job with this key and UID that the pod is a member of; `None`: of none.
    ///
    /// # Errors
    /// When the namespace has caused too many live reads, or the API server cannot be asked.
    pub async fn attempt(
        &self,
        job: &ObjectKey,
        uid: &str,
        pod: &PodIdentity,
    ) -> Result<Option<i64>, ReviewError> {
        let key = ObjectKey { namespace: pod.namespace.clone(), name: pod.name.clone() };
        let held = self.index.lock().pods.get(&key).cloned();
        if let Some(held) = held.filter(|held| held.metadata.uid.as_deref() == Some(&pod.uid)) {
            return Ok(member(&held, job, uid));
        }
        let pair = (pod.uid.clone(), uid.to_owned());
        if self.is_no_member(&pair) {
            return Ok(None);
        }
        if !self.shares.admit(pod.namespace.clone(), Instant::now()) {
            return Err(ReviewError::TooMany);
        }
        let permit = self.reads.acquire().await;
        // Another report of the same pod may have had to wait for the same answer.
        if self.is_no_member(&pair) {
            return Ok(None);
        }
        let url = SlimPod::url_path(&(), Some(&key.namespace));
        let found = get::<SlimPod>(&self.client, &url, &key.name).await?;
        drop(permit);
        let found = found.filter(|found| found.metadata.uid.as_deref() == Some(&pod.uid));
        let attempt = found.and_then(|found| member(&found, job, uid));
        if attempt.is_none() {
            self.remember(pair);
        }
        Ok(attempt)
    }

    fn is_no_member(&self, pair: &(String, String)) -> bool {
        self.others.lock().get(pair).is_some_and(|until| *until > Instant::now())
    }

    fn remember(&self, pair: (String, String)) {
        let now = Instant::now();
        let mut others = self.others.lock();
        if others.len() >= MAX_KEPT {
            others.retain(|_, until| *until > now);
            if others.len() >= MAX_KEPT {
                others.clear();
            }
        }
        others.insert(pair, now + REMEMBERED);
    }
}

fn member(pod: &SlimPod, job: &ObjectKey, uid: &str) -> Option<i64> {
    let ours = owner(&pod.metadata).is_some_and(|(name, owner)| owner == uid && name == *job);
    if ours { number(&pod.metadata, LABEL_ATTEMPT) } else { None }
}
