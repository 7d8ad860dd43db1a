//! Jobs of other kinds that ask for adoption.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use andreas_api::slim::SlimTrainingJob;
use andreas_model::{Index, ObjectKey};
use andreas_workloads::adopt::workload::{Tag, Watched};
use andreas_workloads::adopt::{Kind, Workload};

use super::ClusterIndex;
use super::store::version;

/// The known workloads.
#[derive(Clone, Default)]
pub struct Workloads {
    by_uid: BTreeMap<String, Arc<Workload>>,
    /// Kinds whose workloads are all known.
    listed: BTreeSet<Kind>,
}

impl Workloads {
    /// The workload with this UID.
    pub fn get(&self, uid: &str) -> Option<&Arc<Workload>> {
        self.by_uid.get(uid)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Workload>> {
        self.by_uid.values()
    }

    /// Whether all workloads of that kind are known.
    pub fn is_listed(&self, kind: Kind) -> bool {
        self.listed.contains(&kind)
    }

    fn apply(&mut self, workload: Workload) -> bool {
        let Some(uid) = workload.metadata.uid.clone() else { return false };
        let new = version(&workload.metadata);
        if self.by_uid.get(&uid).is_some_and(|known| new != 0 && new <= version(&known.metadata)) {
            return false;
        }
        self.by_uid.insert(uid, Arc::new(workload));
        true
    }

    fn remove(&mut self, kind: Kind, gone: impl Fn(&ObjectKey) -> bool) -> Vec<Arc<Workload>> {
        let is = |workload: &Workload| workload.kind == kind && gone(&key_of(workload));
        let uids: Vec<String> =
            self.by_uid.iter().filter(|(_, workload)| is(workload)).map(|(uid, _)| uid.clone()).collect();
        uids.iter().filter_map(|uid| self.by_uid.remove(uid)).collect()
    }
}

fn key_of(workload: &Workload) -> ObjectKey {
    ObjectKey {
        namespace: workload.metadata.namespace.clone().unwrap_or_default(),
        name: workload.metadata.name.clone().unwrap_or_default(),
    }
}

/// Name of the TrainingJob that stands for a workload.
fn mirror_of(workload: &Workload) -> ObjectKey {
    ObjectKey {
        namespace: workload.metadata.namespace.clone().unwrap_or_default(),
        name: andreas_workloads::adopt::name(workload),
    }
}

impl ClusterIndex {
    /// The workload that a job stands for, if it is known and asks for adoption.
    pub fn workload_of(&self, job: &SlimTrainingJob) -> Option<&Arc<Workload>> {
        self.workloads.get(&job.spec.adopts.as_ref()?.uid)
    }

    /// Stores the response to our own write or live read. A workload that left its watch stays away.
    pub fn wrote_workload(&mut self, workload: Workload) {
        let known = workload.metadata.uid.as_ref().is_some_and(|uid| self.workloads.get(uid).is_some());
        if known {
            self.apply_workload(workload);
        }
    }

    fn apply_workload(&mut self, workload: Workload) {
        let job = mirror_of(&workload);
        if self.workloads.apply(workload) {
            self.workload_changed(job);
        }
    }

    fn workload_changed(&mut self, job: ObjectKey) {
        self.mark(job);
        self.changes.signals.adoption.notify_one();
    }
}

impl<T: Tag> Index<Watched<T>> for ClusterIndex {
    fn rewound(&mut self) {
        self.workloads.remove(T::KIND, |_| true);
    }

    fn apply(&mut self, object: Watched<T>) {
        self.apply_workload(object.workload);
    }

    fn delete(&mut self, key: &ObjectKey, _: Option<Watched<T>>) {
        for gone in self.workloads.remove(T::KIND, |known| known == key) {
            self.workload_changed(mirror_of(&gone));
        }
    }

    fn reset(&mut self, present: &HashSet<ObjectKey>) {
        self.workloads.listed.insert(T::KIND);
        for gone in self.workloads.remove(T::KIND, |known| !present.contains(known)) {
            self.workload_changed(mirror_of(&gone));
        }
        self.changes.signals.adoption.notify_one();
    }
}
