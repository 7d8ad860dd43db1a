//! What each pod has used of the node's GPUs, by the GPUs' own counters. Pure.
//!
//! A share begins when a pod takes a GPU and ends when it lets it go; both counters are read within one look of that. The begin is in
//! the status as long as the share lasts, so an agent that is started again goes on with it. What ended is kept in the status for
//! the operator, the last [`KEPT`] pods of it.

use std::collections::{BTreeMap, BTreeSet};

use andreas_api::GpuNodeStatus;
use andreas_api::gpu_node::ReleasedEnergy;
use jiff::Timestamp;

use super::holders::PodKey;
use crate::setting::Uuid;

/// Pods whose energy is kept after they let go.
const KEPT: usize = 32;

/// Where a share began.
#[derive(Clone, Debug, PartialEq)]
pub struct Begin {
    /// The GPU's counter then, J.
    pub joules: i64,
    /// When.
    pub at: Timestamp,
}

/// A GPU as seen now.
#[derive(Clone, Debug, PartialEq)]
pub struct Look {
    /// The pod that holds it, and its UID once that is known.
    pub holder: Option<(PodKey, Option<String>)>,
    /// The GPU's counter, J.
    pub joules: i64,
}

#[derive(Clone, Debug)]
struct Share {
    key: PodKey,
    uid: Option<String>,
    begin: Begin,
    /// The counter as last seen.
    joules: i64,
    /// Nothing of it was lost with a counter that began again.
    whole: bool,
}

/// All shares of a node.
#[derive(Clone, Debug, Default)]
pub struct Shares {
    open: BTreeMap<Uuid, Share>,
    /// Where shares began by the status of an earlier life of ours, with the UID of the pod.
    earlier: BTreeMap<Uuid, (String, Begin)>,
    released: Vec<ReleasedEnergy>,
}

impl Shares {
    /// Goes on with what an earlier life of ours wrote.
    pub fn resume(&mut self, status: &GpuNodeStatus) {
        for gpu in &status.gpus {
            if let (Some(uid), Some(joules), Some(at)) = (&gpu.holder, gpu.held_from, &gpu.held_since) {
                self.earlier.insert(gpu.uuid.clone(), (uid.clone(), Begin { joules, at: at.0 }));
            }
        }
        let mut released = status.released.clone();
        released.append(&mut self.released);
        self.released = released;
        self.trim();
    }

    /// Takes a look at all GPUs of which the holder is known.
    pub fn look(&mut self, gpus: &BTreeMap<Uuid, Look>, now: Timestamp) {
        // All GPUs that a pod lets go at once are one entry.
        let mut ended: Vec<Share> = Vec::new();
        for (uuid, look) in gpus {
            if let Some(share) = self.open.get_mut(uuid) {
                // A counter that goes back was reset with its driver: what came before is lost.
                share.whole &= share.joules <= look.joules;
                share.joules = look.joules;
            }
            let same = |share: &Share| {
                look.holder.as_ref().is_some_and(|(key, uid)| {
                    share.key == *key && (share.uid.is_none() || uid.is_none() || share.uid == *uid)
                })
            };
            if let Some(share) = self.open.get_mut(uuid).filter(|share| same(share)) {
                share.uid =
                    share.uid.take().or_else(|| look.holder.as_ref().and_then(|(_, uid)| uid.clone()));
            } else {
                ended.extend(self.open.remove(uuid).filter(|share| share.whole));
                if let Some((key, uid)) = look.holder.clone() {
                    let begin = Begin { joules: look.joules, at: now };
                    self.open
                        .insert(uuid.clone(), Share { key, uid, begin, joules: look.joules, whole: true });
                }
            }
            self.go_on(uuid);
        }
        self.release(ended, now);
    }

    /// The share began in an earlier life, once it is known that it is the same pod's.
    fn go_on(&mut self, uuid: &Uuid) {
        let Some((uid, begin)) = self.earlier.get(uuid) else { return };
        match self.open.get_mut(uuid) {
            Some(share) if share.uid.is_none() => return,
            Some(share) if share.uid.as_ref() == Some(uid) && begin.joules <= share.begin.joules => {
                share.begin = begin.clone();
            }
            // It ended while nobody looked: what it used is not known.
            _ => {}
        }
        self.earlier.remove(uuid);
    }

    fn release(&mut self, ended: Vec<Share>, now: Timestamp) {
        let pods: BTreeSet<String> = ended.iter().filter_map(|share| share.uid.clone()).collect();
        for uid in pods {
            let own: Vec<&Share> = ended.iter().filter(|share| share.uid.as_ref() == Some(&uid)).collect();
            let joules = own.iter().map(|share| share.joules - share.begin.joules).sum();
            let since = own.iter().map(|share| share.begin.at).min().unwrap_or(now);
            self.released.push(ReleasedEnergy {
                pod_uid: uid,
                joules,
                seconds: now.duration_since(since).as_secs().max(0),
                gpus: i32::try_from(own.len()).unwrap_or(i32::MAX),
            });
        }
        self.trim();
    }

    fn trim(&mut self) {
        let surplus = self.released.len().saturating_sub(KEPT);
        self.released.drain(..surplus);
    }

    /// Where the share of a GPU's holder began.
    #[must_use]
    pub fn begin(&self, uuid: &str) -> Option<&Begin> {
        // While it may have begun earlier, nothing is said.
        if self.earlier.contains_key(uuid) {
            return self.earlier.get(uuid).map(|(_, begin)| begin);
        }
        self.open.get(uuid).filter(|share| share.whole).map(|share| &share.begin)
    }

    /// What pods that hold nothing any more have used, the latest last.
    #[must_use]
    pub fn released(&self) -> &[ReleasedEnergy] {
        &self.released
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_api::gpu_node::{GpuCondition, GpuState};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000 + seconds).unwrap()
    }

    fn key(name: &str) -> PodKey {
        ("team".into(), name.into())
    }

    fn gpus(
        a: (Option<(&str, Option<&str>)>, i64),
        b: (Option<(&str, Option<&str>)>, i64),
    ) -> BTreeMap<Uuid, Look> {
        let look = |(holder, joules): (Option<(&str, Option<&str>)>, i64)| Look {
            holder: holder.map(|(name, uid)| (key(name), uid.map(str::to_owned))),
            joules,
        };
        BTreeMap::from([("GPU-a".to_owned(), look(a)), ("GPU-b".to_owned(), look(b))])
    }

    #[test]
    fn a_pods_share_is_what_the_counters_moved_while_it_held_the_gpus() {
        let mut shares = Shares::default();
        shares.look(&gpus((None, 100), (None, 200)), at(0));
        // The UID comes a moment later.
        shares.look(&gpus((Some(("x-1-0", None)), 110), (Some(("x-1-0", None)), 210)), at(1));
        shares.look(&gpus((Some(("x-1-0", Some("u1"))), 400), (Some(("x-1-0", Some("u1"))), 500)), at(2));
        assert_eq!(shares.begin("GPU-a"), Some(&Begin { joules: 110, at: at(1) }));
        assert!(shares.released().is_empty());
        // Another pod of the same name follows at once.
        shares.look(&gpus((Some(("x-1-0", Some("u2"))), 1_110), (None, 2_210)), at(11));
        let first = ReleasedEnergy { pod_uid: "u1".into(), joules: 3_000, seconds: 10, gpus: 2 };
        assert_eq!(shares.released(), std::slice::from_ref(&first));
        assert_eq!(shares.begin("GPU-a"), Some(&Begin { joules: 1_110, at: at(11) }));
        // The driver is loaded anew: what the second used is not known.
        shares.look(&gpus((Some(("x-1-0", Some("u2"))), 5), (None, 5)), at(20));
        shares.look(&gpus((None, 7), (None, 7)), at(21));
        assert_eq!(shares.released(), [first]);
    }

    #[test]
    fn an_agent_that_is_started_again_goes_on_with_the_share_of_the_same_pod_only() {
        let gpu = |uuid: &str, holder: &str, from| GpuState {
            uuid: uuid.into(),
            state: GpuCondition::Held,
            holder: Some(holder.into()),
            watts: 0,
            joules: 0,
            held_from: Some(from),
            held_since: Some(Time(at(0))),
            min_limit_watts: None,
            max_limit_watts: None,
        };
        let old = ReleasedEnergy { pod_uid: "u0".into(), joules: 1, seconds: 1, gpus: 1 };
        let status = GpuNodeStatus {
            gpus: vec![gpu("GPU-a", "u1", 100), gpu("GPU-b", "u2", 100)],
            released: vec![old.clone()],
            ..GpuNodeStatus::default()
        };
        let mut shares = Shares::default();
        // The first look comes before the API server has answered.
        shares.look(&gpus((Some(("x", None)), 500), (Some(("y", None)), 500)), at(50));
        shares.resume(&status);
        shares.look(&gpus((Some(("x", Some("u1"))), 510), (Some(("y", Some("u3"))), 510)), at(51));
        assert_eq!(shares.begin("GPU-a"), Some(&Begin { joules: 100, at: at(0) }));
        assert_eq!(shares.begin("GPU-b").map(|begin| begin.joules), Some(500));
        shares.look(&gpus((None, 600), (None, 600)), at(60));
        let of =
            |uid: &str| shares.released().iter().find(|e| e.pod_uid == uid).map(|e| (e.joules, e.seconds));
        assert_eq!(
            (of("u0"), of("u1"), of("u2"), of("u3")),
            (Some((1, 1)), Some((500, 60)), None, Some((100, 10)))
        );
    }
}
