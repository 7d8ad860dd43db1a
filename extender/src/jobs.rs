//! The allocations of all TrainingJobs, by UID.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use andreas_api::slim::AllocatedJob;
use andreas_runtime::watch::{Index, ObjectKey};

/// The fields of a TrainingJob that placement decisions need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its UID.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its `resourceVersion`.
    pub version: String,
    /// Its allocation.
    pub allocation: Option<Allocation>,
}

/// The fields of an allocation that the extender uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Attempt, from 1.
    pub attempt: i64,
    /// Generation: counts the decisions about this job.
    pub generation: i64,
    /// Nodes by member index.
    pub nodes: Arc<[String]>,
}

impl From<AllocatedJob> for Job {
    fn from(job: AllocatedJob) -> Self {
        let allocation = job.status.and_then(|status| status.allocation);
        Self {
            uid: job.metadata.uid.unwrap_or_default(),
            namespace: job.metadata.namespace.unwrap_or_default(),
            name: job.metadata.name.unwrap_or_default(),
            version: job.metadata.resource_version.unwrap_or_default(),
            allocation: allocation.map(|allocation| Allocation {
                attempt: allocation.attempt,
                generation: allocation.generation,
                nodes: allocation.nodes.into(),
            }),
        }
    }
}

/// All TrainingJobs seen by the watch or a live read.
#[derive(Debug, Default)]
pub struct Jobs {
    by_uid: HashMap<String, Job>,
    uid_of: HashMap<ObjectKey, String>,
}

impl Jobs {
    /// The job with this UID.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<&Job> {
        self.by_uid.get(uid)
    }

    /// Number of jobs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_uid.len()
    }

    /// Whether there are no jobs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_uid.is_empty()
    }

    /// Stores a job from the watch, unless a newer version is known from a live read.
    pub fn apply_newer(&mut self, job: Job) {
        if self.by_uid.get(&job.uid).is_some_and(|known| is_older(&job.version, &known.version)) {
            return;
        }
        self.store(job);
    }

    /// Stores a job from a live read; `before` is the version known when the read started. An even older
    /// version also replaces the known one: the API server itself was restored to an older state.
    pub fn apply_live_read(&mut self, job: Job, before: Option<&str>) {
        if before.is_some_and(|before| is_older(&job.version, before)) {
            tracing::warn!(job = job.name, namespace = job.namespace, "the API server went back in time");
            self.store(job);
        } else {
            self.apply_newer(job);
        }
    }

    fn store(&mut self, job: Job) {
        let key = ObjectKey { namespace: job.namespace.clone(), name: job.name.clone() };
        if let Some(before) = self.uid_of.insert(key, job.uid.clone())
            && before != job.uid
        {
            self.by_uid.remove(&before);
        }
        self.by_uid.insert(job.uid.clone(), job);
    }
}

/// Resource versions of one kind compare as numbers (KEP-5504); a non-number is never older.
fn is_older(one: &str, other: &str) -> bool {
    match (one.parse::<u128>(), other.parse::<u128>()) {
        (Ok(one), Ok(other)) => one < other,
        _ => false,
    }
}

impl Index<AllocatedJob> for Jobs {
    fn rewound(&mut self) {
        self.by_uid.values_mut().for_each(|job| job.version.clear());
    }

    fn apply(&mut self, object: AllocatedJob) {
        self.apply_newer(object.into());
    }

    fn delete(&mut self, key: &ObjectKey, last: Option<AllocatedJob>) {
        let Some(known) = self.uid_of.get(key) else { return };
        // Deleting an earlier job of that name must not remove its successor.
        if last.and_then(|job| job.metadata.uid).is_some_and(|uid| uid != *known) {
            return;
        }
        if let Some(uid) = self.uid_of.remove(key) {
            self.by_uid.remove(&uid);
        }
    }

    fn reset(&mut self, present: &HashSet<ObjectKey>) {
        self.uid_of.retain(|key, _| present.contains(key));
        let kept: HashSet<&String> = self.uid_of.values().collect();
        self.by_uid.retain(|uid, _| kept.contains(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, uid: &str, version: &str, generation: i64) -> Job {
        let allocation = Allocation { attempt: 1, generation, nodes: ["n".to_owned()].into() };
        Job {
            uid: uid.into(),
            namespace: "ns".into(),
            name: name.into(),
            version: version.into(),
            allocation: Some(allocation),
        }
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: "ns".into(), name: name.into() }
    }

    fn generation(jobs: &Jobs, uid: &str) -> Option<i64> {
        jobs.get(uid).and_then(|job| job.allocation.as_ref()).map(|allocation| allocation.generation)
    }

    #[test]
    fn a_late_watch_event_does_not_undo_a_live_read() {
        let mut jobs = Jobs::default();
        jobs.apply_newer(job("a", "u", "100", 2));
        jobs.apply_newer(job("a", "u", "99", 1));
        assert_eq!(generation(&jobs, "u"), Some(2));
        jobs.apply_newer(job("a", "u", "101", 3));
        assert_eq!(generation(&jobs, "u"), Some(3));
    }

    #[test]
    fn a_name_used_again_forgets_the_first_job_and_its_late_deletion_spares_the_second() {
        let mut jobs = Jobs::default();
        jobs.apply_newer(job("a", "first", "1", 1));
        jobs.apply_newer(job("a", "second", "5", 1));
        assert!(jobs.get("first").is_none());
        let metadata = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
            uid: Some("first".into()),
            ..Default::default()
        };
        jobs.delete(&key("a"), Some(AllocatedJob { metadata, status: None }));
        assert!(jobs.get("second").is_some());
        jobs.delete(&key("a"), None);
        assert!(jobs.is_empty());
    }

    #[test]
    fn a_restored_server_is_believed_in_a_list_and_in_a_live_read() {
        let mut jobs = Jobs::default();
        jobs.apply_newer(job("a", "u", "900", 5));
        jobs.apply_live_read(job("a", "u", "899", 4), None);
        assert_eq!(generation(&jobs, "u"), Some(5), "a read that began before the watch's news");
        jobs.apply_live_read(job("a", "u", "300", 3), Some("900"));
        assert_eq!(generation(&jobs, "u"), Some(3));
        jobs.apply_newer(job("a", "u", "901", 6));
        jobs.rewound();
        jobs.apply_newer(job("a", "u", "310", 4));
        assert_eq!(generation(&jobs, "u"), Some(4));
    }

    #[test]
    fn a_new_list_forgets_what_is_not_in_it() {
        let mut jobs = Jobs::default();
        jobs.apply_newer(job("a", "1", "1", 1));
        jobs.apply_newer(job("b", "2", "2", 1));
        jobs.reset(&HashSet::from([key("b")]));
        assert_eq!((jobs.get("1").is_some(), jobs.get("2").is_some(), jobs.len()), (false, true, 1));
    }
}
