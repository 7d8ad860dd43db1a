//! Energy attribution: what each pod used of the node's GPUs, from the GPUs' energy counters. Pure.
//!
//! A share begins when a pod takes a GPU and ends when it releases it. Both counter readings are taken in the
//! reconcile that sees the change. The begin is in the status while the share lasts, so a restarted agent
//! continues it. Totals of the last [`KEPT`] pods that released their GPUs stay in the status for the
//! operator.

use std::collections::{BTreeMap, BTreeSet};

use andreas_api::GpuNodeStatus;
use andreas_api::gpu_node::{ReleasedEnergy, namespaced_pod_name};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::holders::PodKey;
use crate::setting::Uuid;

/// Number of released pods whose energy is kept.
const KEPT: usize = 32;

/// Begin of a share.
#[derive(Clone, Debug, PartialEq)]
pub struct Begin {
    /// Counter of the GPU at the begin, J.
    pub joules: i64,
    /// Time of the begin.
    pub at: Timestamp,
}

/// One observation of a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuReading {
    /// The pod that holds it.
    pub holder: Option<PodKey>,
    /// Energy counter of the GPU, J.
    pub joules: i64,
}

#[derive(Clone, Debug)]
struct Share {
    key: PodKey,
    begin: Begin,
    /// The last counter reading.
    joules: i64,
    /// Whether no energy was lost to a counter reset.
    whole: bool,
}

/// All shares of a node.
#[derive(Clone, Debug, Default)]
pub struct EnergyAttribution {
    open: BTreeMap<Uuid, Share>,
    /// Begins of shares and their pods, from the status of an earlier run.
    earlier: BTreeMap<Uuid, (String, Begin)>,
    released: Vec<ReleasedEnergy>,
}

impl EnergyAttribution {
    /// Resumes from the status of an earlier run.
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

    /// Updates the shares from all GPUs with a known holder.
    pub fn update(&mut self, gpus: &BTreeMap<Uuid, GpuReading>, now: Timestamp) {
        // GPUs that a pod releases together make one entry.
        let mut ended: Vec<Share> = Vec::new();
        for (uuid, reading) in gpus {
            if let Some(share) = self.open.get_mut(uuid) {
                // A counter that decreased was reset with the driver; earlier energy is lost.
                share.whole &= share.joules <= reading.joules;
                share.joules = reading.joules;
            }
            let same = |share: &Share| reading.holder.as_ref() == Some(&share.key);
            if !self.open.get(uuid).is_some_and(same) {
                ended.extend(self.open.remove(uuid).filter(|share| share.whole));
                if let Some(key) = reading.holder.clone() {
                    let begin = Begin { joules: reading.joules, at: now };
                    self.open.insert(uuid.clone(), Share { key, begin, joules: reading.joules, whole: true });
                }
            }
            self.resume_share(uuid);
        }
        self.release(ended, now);
    }

    /// The begin from an earlier run, if the pod is the same. A recreated pod of the same name looks the
    /// same; the operator distinguishes them by the begin time.
    fn resume_share(&mut self, uuid: &Uuid) {
        let Some((pod, begin)) = self.earlier.remove(uuid) else { return };
        // Otherwise the share ended between the runs, and its energy is unknown.
        if let Some(share) = self.open.get_mut(uuid)
            && namespaced_pod_name(&share.key.0, &share.key.1) == pod
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
                pod: namespaced_pod_name(&key.0, &key.1),
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

    /// Begin of the share of a GPU's holder.
    #[must_use]
    pub fn begin(&self, uuid: &str) -> Option<&Begin> {
        // Until the holder is observed, the begin from the status is reported again.
        if self.earlier.contains_key(uuid) {
            return self.earlier.get(uuid).map(|(_, begin)| begin);
        }
        self.open.get(uuid).filter(|share| share.whole).map(|share| &share.begin)
    }

    /// Energy of pods that hold no GPU any more, latest last.
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

    fn gpus(a: (Option<&str>, i64), b: (Option<&str>, i64)) -> BTreeMap<Uuid, GpuReading> {
        let reading = |(holder, joules): (Option<&str>, i64)| GpuReading {
            holder: holder.map(|name| ("team".to_owned(), name.to_owned())),
            joules,
        };
        BTreeMap::from([("GPU-a".to_owned(), reading(a)), ("GPU-b".to_owned(), reading(b))])
    }

    fn released(pod: &str, since: i64, joules: i64, seconds: i64, gpus: i32) -> ReleasedEnergy {
        ReleasedEnergy { pod: pod.into(), since: Some(Time(at(since))), joules, seconds, gpus }
    }

    #[test]
    fn a_pods_share_is_what_the_counters_moved_while_it_held_the_gpus() {
        let mut shares = EnergyAttribution::default();
        shares.update(&gpus((None, 100), (None, 200)), at(0));
        shares.update(&gpus((Some("x-1-0"), 110), (Some("x-1-0"), 210)), at(1));
        shares.update(&gpus((Some("x-1-0"), 400), (Some("x-1-0"), 500)), at(2));
        assert_eq!(shares.begin("GPU-a"), Some(&Begin { joules: 110, at: at(1) }));
        assert!(shares.released().is_empty());
        // Another pod takes the GPU at once.
        shares.update(&gpus((Some("y-1-0"), 1_110), (None, 2_210)), at(11));
        let first = released("team/x-1-0", 1, 3_000, 10, 2);
        assert_eq!(shares.released(), std::slice::from_ref(&first));
        assert_eq!(shares.begin("GPU-a"), Some(&Begin { joules: 1_110, at: at(11) }));
        // The driver is reloaded: the second pod's energy is unknown.
        shares.update(&gpus((Some("y-1-0"), 5), (None, 5)), at(20));
        shares.update(&gpus((None, 7), (None, 7)), at(21));
        assert_eq!(shares.released(), [first]);
    }

    #[test]
    fn a_pod_made_again_under_its_name_has_a_share_of_its_own() {
        let mut shares = EnergyAttribution::default();
        shares.update(&gpus((Some("web-0"), 100), (None, 0)), at(0));
        shares.update(&gpus((None, 300), (None, 0)), at(10));
        shares.update(&gpus((Some("web-0"), 310), (None, 0)), at(11));
        shares.update(&gpus((None, 400), (None, 0)), at(12));
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
        let mut shares = EnergyAttribution::default();
        // The first observation precedes the API server's response.
        shares.update(&gpus((Some("x"), 500), (Some("z"), 500)), at(50));
        shares.resume(&status);
        shares.update(&gpus((Some("x"), 510), (Some("z"), 510)), at(51));
        assert_eq!(shares.begin("GPU-a"), Some(&Begin { joules: 100, at: at(0) }));
        assert_eq!(shares.begin("GPU-b").map(|begin| begin.joules), Some(500));
        shares.update(&gpus((None, 600), (None, 600)), at(60));
        let rest = [old, released("team/x", 0, 500, 60, 1), released("team/z", 50, 100, 10, 1)];
        assert_eq!(shares.released(), rest);
    }
}
