//! [`Index`] implementations for every watched kind.

use std::collections::HashSet;

use andreas_api::key_of;
use andreas_api::slim::{
    SlimEnergyPolicy, SlimGpuNode, SlimNode, SlimNodePower, SlimPersistentVolume, SlimPersistentVolumeClaim,
    SlimPod, SlimQuota, SlimTrainingJob, SlimTrainingProfile,
};
use andreas_model::{Index, ObjectKey};

use super::ClusterIndex;
use super::foreign::{ForeignPod, SlimNamespace};
use super::machines::same_machine;
use super::nodes::same_node;
use super::pods::name_of_key;
use super::store::{Change, Origin};

impl Index<SlimTrainingJob> for ClusterIndex {
    fn rewound(&mut self) {
        self.jobs.rewound();
    }

    fn apply(&mut self, job: SlimTrainingJob) {
        self.apply_job(job, Origin::Watched);
    }

    fn delete(&mut self, key: &ObjectKey, last: Option<SlimTrainingJob>) {
        self.delete_job(key, last.as_ref().map(|job| &job.metadata));
    }

    fn reset(&mut self, present: &HashSet<ObjectKey>) {
        for (key, old) in self.jobs.reset(present) {
            self.drop_job_state(&key, &old);
        }
    }
}

impl Index<SlimPod> for ClusterIndex {
    fn rewound(&mut self) {
        self.pods.rewound();
    }

    fn apply(&mut self, pod: SlimPod) {
        self.apply_pod(pod, Origin::Watched);
    }

    fn delete(&mut self, key: &ObjectKey, last: Option<SlimPod>) {
        self.delete_pod(key, last);
    }

    fn reset(&mut self, present: &HashSet<ObjectKey>) {
        for (key, pod) in self.pods.reset(present) {
            self.unindex_pod(&key, &pod);
            self.record_deleted_pod(&pod);
            self.release_of(&pod);
        }
    }
}

impl Index<ForeignPod> for ClusterIndex {
    fn rewound(&mut self) {
        self.by_node.foreign.rewound();
    }

    fn apply(&mut self, pod: ForeignPod) {
        let key = key_of(&pod);
        let old = match self.by_node.foreign.apply(pod, Origin::Watched) {
            Change::Nothing => return,
            Change::New { replaced } => replaced,
            Change::Newer { old } => Some(old),
        };
        let new = self.by_node.foreign.get(&key).cloned();
        let name = name_of_key(&key);
        self.by_node.vanished.appeared(&name);
        let takes = |pod: &ForeignPod| pod.takes.clone();
        let waits = |pod: &ForeignPod| pod.waits.clone();
        if old.as_deref().and_then(waits) != new.as_deref().and_then(waits) && !self.node_powers.is_empty() {
            self.replan_soon();
        }
        let (before, after) = (old.as_deref().and_then(takes), new.as_deref().and_then(takes));
        if before == after {
            return;
        }
        if let Some((node, amounts)) = before {
            self.drop_use(&node, &name, amounts);
        }
        if let Some((node, amounts)) = after {
            self.add_use(&node, name, amounts);
        }
    }

    fn delete(&mut self, key: &ObjectKey, last: Option<ForeignPod>) {
        if let Some(old) = self.by_node.foreign.delete(key, last.as_ref().map(|pod| &pod.metadata))
            && let Some((node, amounts)) = &old.takes
        {
            self.hold_deleted_foreign(&old);
            self.drop_use(node, &name_of_key(key), amounts.clone());
        }
    }

    fn reset(&mut self, present: &HashSet<ObjectKey>) {
        for (key, pod) in self.by_node.foreign.reset(present) {
            self.hold_deleted_foreign(&pod);
            if let Some((node, amounts)) = &pod.takes {
                self.drop_use(node, &name_of_key(&key), amounts.clone());
            }
        }
        self.replan();
    }
}

impl Index<SlimNode> for ClusterIndex {
    fn rewound(&mut self) {
        self.nodes.rewound();
    }

    fn apply(&mut self, node: SlimNode) {
        let key = key_of(&node);
        self.by_node.unreadable.remove(&key.name);
        let change = self.nodes.apply(node, Origin::Watched);
        self.node_seen(&key);
        match change {
            Change::Nothing => return,
            Change::Newer { old } if self.nodes.get(&key).is_some_and(|new| same_node(&old, new)) => return,
            Change::Newer { .. } | Change::New { .. } => {}
        }
        self.mark_jobs_on(&key.name);
        self.replan();
    }

    fn delete(&mut self, key: &ObjectKey, last: Option<SlimNode>) {
        self.nodes.delete(key, last.as_ref().map(|node| &node.metadata));
        self.by_node.unreadable.remove(&key.name);
        self.node_deleted(key);
        self.mark_jobs_on(&key.name);
        self.replan();
    }

    fn undecodable(&mut self, key: Option<&ObjectKey>, _: &str) {
        self.by_node.unreadable.extend(key.map(|key| key.name.clone()));
    }

    fn reset(&mut self, present: &HashSet<ObjectKey>) {
        self.by_node.unreadable.retain(|name| present.iter().any(|key| key.name == *name));
        for (key, _) in self.nodes.reset(present) {
            self.node_deleted(&key);
            self.mark_jobs_on(&key.name);
        }
        self.replan();
    }
}

impl Index<SlimGpuNode> for ClusterIndex {
    fn rewound(&mut self) {
        self.gpu_nodes.rewound();
    }

    fn apply(&mut self, node: SlimGpuNode) {
        self.apply_gpu_node(node, Origin::Watched);
    }

    fn delete(&mut self, key: &ObjectKey, last: Option<SlimGpuNode>) {
        self.gpu_nodes.delete(key, last.as_ref().map(|node| &node.metadata));
        self.gpu_node_gone(key);
    }

    fn reset(&mut self, present: &HashSet<ObjectKey>) {
        for (key, _) in self.gpu_nodes.reset(present) {
            self.gpu_node_gone(&key);
        }
    }
}

/// Kinds that plans depend on. A change that is not equal by `same` requests a plan; `each` handles other
/// dependents.
macro_rules! planned_from {
    ($kind:ty, $($store:ident).+, $same:expr, $each:expr) => {
        impl Index<$kind> for ClusterIndex {
            fn rewound(&mut self) {
                self.$($store).+.rewound();
            }

            fn apply(&mut self, object: $kind) {
                let key = key_of(&object);
                match self.$($store).+.apply(object, Origin::Watched) {
                    Change::Nothing => return,
                    Change::Newer { old } if self.$($store).+.get(&key).is_some_and(|new| $same(&old, new)) => {
                        return;
                    }
                    Change::Newer { .. } | Change::New { .. } => {}
                }
                $each(self, &key);
                self.replan();
            }

            fn delete(&mut self, key: &ObjectKey, last: Option<$kind>) {
                self.$($store).+.delete(key, last.as_ref().map(|object| &object.metadata));
                $each(self, key);
                self.replan();
            }

            fn reset(&mut self, present: &HashSet<ObjectKey>) {
                for (key, _) in self.$($store).+.reset(present) {
                    $each(self, &key);
                }
                self.replan();
            }
        }
    };
}

/// Requests in a namespace may now succeed or be refused for another reason.
fn mark_namespace(index: &mut ClusterIndex, namespace: &str) {
    index.changes.namespaces.insert(namespace.to_owned());
    index.mark_namespace(namespace);
}

planned_from!(
    SlimTrainingProfile,
    profiles,
    |a: &SlimTrainingProfile, b: &SlimTrainingProfile| a.spec == b.spec && a.status == b.status,
    |_: &mut ClusterIndex, _: &ObjectKey| ()
);
planned_from!(SlimNodePower, node_powers, same_machine, |index: &mut ClusterIndex, _: &ObjectKey| index
    .changes
    .signals
    .power
    .notify_one());
planned_from!(
    SlimPersistentVolumeClaim,
    storage.claims,
    |a: &SlimPersistentVolumeClaim, b: &SlimPersistentVolumeClaim| a.spec == b.spec,
    |_: &mut ClusterIndex, _: &ObjectKey| ()
);
planned_from!(
    SlimPersistentVolume,
    storage.volumes,
    |a: &SlimPersistentVolume, b: &SlimPersistentVolume| {
        a.spec == b.spec && a.metadata.labels == b.metadata.labels
    },
    |_: &mut ClusterIndex, _: &ObjectKey| ()
);
planned_from!(
    SlimEnergyPolicy,
    rules.policies,
    |a: &SlimEnergyPolicy, b: &SlimEnergyPolicy| a.spec == b.spec,
    |index: &mut ClusterIndex, _: &ObjectKey| index.mark_all()
);
impl Index<SlimQuota> for ClusterIndex {
    fn rewound(&mut self) {
        self.rules.quotas.rewound();
    }

    fn apply(&mut self, quota: SlimQuota) {
        let key = key_of(&quota);
        let allowed = match self.rules.quotas.apply(quota, Origin::Watched) {
            Change::Nothing => return,
            Change::New { .. } => true,
            // A quota's use changes with every pod; only changed limits affect refusals.
            Change::Newer { old } => {
                self.rules.quotas.get(&key).is_some_and(|new| old.status.hard != new.status.hard)
            }
        };
        if allowed {
            mark_namespace(self, &key.namespace);
        }
        self.replan();
    }

    fn delete(&mut self, key: &ObjectKey, last: Option<SlimQuota>) {
        self.rules.quotas.delete(key, last.as_ref().map(|quota| &quota.metadata));
        mark_namespace(self, &key.namespace);
        self.replan();
    }

    fn reset(&mut self, present: &HashSet<ObjectKey>) {
        for (key, _) in self.rules.quotas.reset(present) {
            mark_namespace(self, &key.namespace);
        }
        self.replan();
    }
}
planned_from!(
    SlimNamespace,
    rules.namespaces,
    |a: &SlimNamespace, b: &SlimNamespace| {
        a.metadata.labels == b.metadata.labels && a.metadata.annotations == b.metadata.annotations
    },
    |index: &mut ClusterIndex, key: &ObjectKey| mark_namespace(index, &key.name)
);
