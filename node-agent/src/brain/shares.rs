//! What each pod has used of the node's GPUs, by the GPUs' own counters. Pure.
//!
//! A share begins when a pod takes a GPU and ends when it lets it go; both counters are read within one look of that. The begin is in
//! the status as long as the share lasts, so an agent that is started again goes on with it. What ended is kept in the status for
//! the operator, the last [`KEPT`] pods of it.

use std::collections::{BTreeMap, BTreeSet};

use andreas_api::GpuNodeStatus;
use andreas_api::gpu_node::{ReleasedEnergy, pod_name};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

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
    /// The pod that holds it.
    pub holder: Option<PodKey>,
    /// The GPU's counter, J.
    pub joules: i64,
}

#[derive(Clone, Debug)]
struct Share {
    key: PodKey,
    begin: Begin,
    /// The counter as last seen.
    joules: i64,
    /// Nothing of it was lost with a counter that began again.
    whole: bool,
}

/// All shares of a node.
#[derive(Clone, Debug, Default)]
pub struct EnergyShares {
    open: BTreeMap<Uuid, Share>,
    /// Where shares began by the status of an earlier life of ours, with the pod.
    earlier: BTreeMap<Uuid, (String, Begin)>,
    released: Vec<ReleasedEnergy>,
}

impl EnergyShares {
    /// Goes on with what an earlier life of ours wrote.
    pub fn resume(&mut self, status: &GpuNodeStatus) {
        for gpu in &status.gpus {
            if let (Some(pod), Some(joules), Some(at)) = (&gpu.holder, gpu.held_from, &gpu.held_since) {
                self.earlier.insert(gpu.uuid.clone(), (pod.clone(), Begin { joules, at: at.0 }));
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
            let same = |share: &Share| look.holder.as_ref() == Some(&share.key);
            if !self.open.get(uuid).is_some_and(same) {
                ended.extend(self.open.remove(uuid).filter(|share| share.whole));
                if let Some(key) = look.holder.clone() {
                    let begin = Begin { joules: look.joules, at: now };
                    self.open.insert(uuid.clone(), Share { key, begin, joules: look.joules, whole: true });
                }
            }
            self.go_on(uuid);
        }
        self.release(ended, now);
    }

    /// The share began in an earlier life, if it is the same pod's. A pod that was made again under its name meanwhile looks the
    /// same; the operator tells the two apart by when the share began.
    fn go_on(&mut self, uuid: &Uuid) {
        let Some((pod, begin)) = self.earlier.remove(uuid) else { return };
        // Else it ended while nobody looked: what it used is not known.
        if let Some(share) = self.open.get_mut(uuid)
            && pod_name(&share.key.0, &share.key.1) == pod
            && begin.joules <= share.begin.joules
        {
            share.begin = begin;
        }
    }

    fn release(&mut self, ended: Vec<Share>, now: Timestamp) {
        let pods: BTreeSet<PodKey> = ended.iter().map(|share| share.key.clone()).collect();
        for key in pods {
            let own: Vec<&Share> = ended.iter().filter(|share| share.key == key).collect();
            let joules = own.iter().map(|share| share.joules - share.begin.joules).sum();
            let since = own.iter().map(|share| share.begin.at).min().unwrap_or(now);
            self.released.push(ReleasedEnergy {
                pod: pod_name(&key.0, &key.1),
                since: Some(Time(since)),
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
        // Until a look has shown whose it is, what was said is said again.
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

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000 + seconds).unwrap()
    }

    fn gpus(a: (Option<&str>, i64), b: (Option<&str>, i64)) -> BTreeMap<Uuid, Look> {
        let look = |(holder, joules): (Option<&str>, i64)| Look {
            holder: holder.map(|name| ("team".to_owned(), name.to_owned())),
            joules,
        };
        BTreeMap::from([("GPU-a".to_owned(), look(a)), ("GPU-b".to_owned(), look(b))])
    }

    fn released(pod: &str, since: i64, joules: i64, seconds: i64, gpus: i32) -> ReleasedEnergy {
        ReleasedEnergy { pod: pod.into(), since: Some(Time(at(since))), joules, seconds, gpus }
    }

    #[test]
    fn a_pods_share_is_what_the_counters_moved_while_it_held_the_gpus() {
        let mut shares = EnergyShares::default();
        shares.look(&gpus((None, 100), (None, 200)), at(0));
        shares.look(&gpus((Some("x-1-0"), 110), (Some("x-1-0"), 210)), at(1));
        shares.look(&gpus((Some("x-1-0"), 400), (Some("x-1-0"), 500)), at(2));
        assert_eq!(shares.begin("GPU-a"), Some(&Begin { joules: 110, at: at(1) }));
        assert!(shares.released().is_empty());
        // Another pod follows at once.
        shares.look(&gpus((Some("y-1-0"), 1_110), (None, 2_210)), at(11));
        let first = released("team/x-1-0", 1, 3_000, 10, 2);
        assert_eq!(shares.released(), std::slice::from_ref(&first));
        assert_eq!(shares.begin("GPU-a"), Some(&Begin { joules: 1_110, at: at(11) }));
        // The driver is loaded anew: what the second used is not known.
        shares.look(&gpus((Some("y-1-0"), 5), (None, 5)), at(20));
        shares.look(&gpus((None, 7), (None, 7)), at(21));
        assert_eq!(shares.released(), [first]);
    }

    #[test]
    fn a_pod_made_again_under_its_name_has_a_share_of_its_own() {
        let mut shares = EnergyShares::default();
        shares.look(&gpus((Some("web-0"), 100), (None, 0)), at(0));
        shares.look(&gpus((None, 300), (None, 0)), at(10));
        shares.look(&gpus((Some("web-0"), 310), (None, 0)), at(11));
        shares.look(&gpus((None, 400), (None, 0)), at(12));
        let both = [released("team/web-0", 0, 200, 10, 1), released("team/web-0", 11, 90, 1, 1)];
        assert_eq!(shares.released(), both);
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
            board_watts: None,
            min_limit_watts: None,
            max_limit_watts: None,
        };
        let old = released("team/w", 0, 1, 1, 1);
        let status = GpuNodeStatus {
            gpus: vec![gpu("GPU-a", "team/x", 100), gpu("GPU-b", "team/y", 100)],
            released: vec![old.clone()],
            ..GpuNodeStatus::default()
        };
        let mut shares = EnergyShares::default();
        // The first look comes before the API server has answered.
        shares.look(&gpus((Some("x"), 500), (Some("z"), 500)), at(50));
        shares.resume(&status);
        shares.look(&gpus((Some("x"), 510), (Some("z"), 510)), at(51));
        assert_eq!(shares.begin("GPU-a"), Some(&Begin { joules: 100, at: at(0) }));
        assert_eq!(shares.begin("GPU-b").map(|begin| begin.joules), Some(500));
        shares.look(&gpus((None, 600), (None, 600)), at(60));
        let rest = [old, released("team/x", 0, 500, 60, 1), released("team/z", 50, 100, 10, 1)];
        assert_eq!(shares.released(), rest);
    }
}
