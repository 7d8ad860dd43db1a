//! Content of `GpuNode.status`, and when it is written.
//!
//! It is written when a holder, a state, a fatal problem or an acknowledgement changes. Otherwise once a minute while
//! a GPU is held, whose energy goes on, and at most once a minute for a warning. The status says so
//! (`reportSeconds`): the operator takes an agent for gone that misses some of these writes. An idle node costs the API
//! server nothing.

use std::time::{Duration, Instant};

use andreas_api::GpuNodeStatus;
use andreas_api::gpu_node::{GpuCondition, GpuState, GpuTotals, ReleasedEnergy};
use andreas_api::slim::SlimGpuNode;
use andreas_runtime::clock;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::Resource;
use kube::api::{Patch, PatchParams};
use kube::core::Request;
use serde_json::{Value, json};

/// Interval between writes that only update figures: `reportSeconds` of the status.
const REFRESH: Duration = Duration::from_secs(60);
/// Maximum length of a condition's message, bytes.
const MESSAGE: usize = 512;

/// A condition without its transition time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionUpdate {
    /// Type: `Ready` or `Unhealthy`.
    pub kind: &'static str,
    /// Whether it is true.
    pub status: bool,
    /// Reason, one word.
    pub reason: &'static str,
    /// Message for people.
    pub message: String,
}

impl ConditionUpdate {
    fn condition(mut self, old: &[Condition], generation: Option<i64>, now: Timestamp) -> Condition {
        let status = if self.status { "True" } else { "False" };
        while self.message.len() > MESSAGE {
            self.message.pop();
        }
        let same = old.iter().find(|condition| condition.type_ == self.kind && condition.status == status);
        Condition {
            type_: self.kind.into(),
            status: status.into(),
            reason: self.reason.into(),
            message: self.message,
            observed_generation: generation,
            last_transition_time: same.map_or(Time(now), |condition| condition.last_transition_time.clone()),
        }
    }
}

/// New content of the status, before it is compared with the old.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Generation carried out; `None`: unchanged.
    pub generation: Option<i64>,
    /// Wake carried out; `None`: unchanged.
    pub awake: Option<i64>,
    /// The last `spec.holdersGeneration` known before the kubelet was asked; `None`: unchanged.
    pub holders_observed: Option<i64>,
    /// The GPUs.
    pub gpus: Vec<GpuState>,
    /// Energy used by pods that released their GPUs; `None`: unchanged.
    pub released: Option<Vec<ReleasedEnergy>>,
    /// Whether no GPU is held; `None`: unknown, unchanged.
    pub empty: Option<bool>,
    /// The conditions.
    pub conditions: Vec<ConditionUpdate>,
}

/// The status after `old`.
#[must_use]
pub fn next(old: &GpuNodeStatus, report: Report, now: Timestamp) -> GpuNodeStatus {
    let generation = report.generation.or(old.observed_generation);
    let mut report = report;
    for gpu in &mut report.gpus {
        gpu.unhealthy_since = unhealthy_since(old, gpu, now);
    }
    GpuNodeStatus {
        observed_generation: generation,
        observed_wake_generation: report.awake.unwrap_or(old.observed_wake_generation),
        observed_holders_generation: report.holders_observed.unwrap_or(old.observed_holders_generation),
        totals: Some(GpuTotals::from_gpus(&report.gpus)),
        gpus: report.gpus,
        released: report.released.unwrap_or_else(|| old.released.clone()),
        empty_since: match report.empty {
            Some(true) => Some(old.empty_since.clone().unwrap_or(Time(whole_seconds(now)))),
            Some(false) => None,
            None => old.empty_since.clone(),
        },
        conditions: (report.conditions.into_iter())
            .map(|update| update.condition(&old.conditions, generation, whole_seconds(now)))
            .collect(),
        agent_version: Some(env!("CARGO_PKG_VERSION").into()),
        report_seconds: i32::try_from(REFRESH.as_secs()).ok(),
    }
}

/// Since when a GPU is unhealthy. What an agent wrote that did not say counts from its node's condition.
fn unhealthy_since(old: &GpuNodeStatus, gpu: &GpuState, now: Timestamp) -> Option<Time> {
    if gpu.state != GpuCondition::Unhealthy {
        return None;
    }
    let before = old.gpus.iter().find(|was| was.uuid == gpu.uuid && was.state == GpuCondition::Unhealthy);
    let of_node = || old.conditions.iter().find(|c| c.type_ == "Unhealthy" && c.status == "True");
    let since = before.and_then(|was| {
        was.unhealthy_since.clone().or_else(|| Some(of_node()?.last_transition_time.clone()))
    });
    since.or_else(|| Some(Time(whole_seconds(now))))
}

/// Truncates to whole seconds, as the API server does; otherwise the values would differ.
pub(super) fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// Whether `new` must be written. `old` was written `age` ago.
#[must_use]
pub fn differs(old: &GpuNodeStatus, new: &GpuNodeStatus, age: Duration) -> bool {
    let without_figures = |status: &GpuNodeStatus| {
        let mut status = status.clone();
        for gpu in &mut status.gpus {
            (gpu.watts, gpu.joules, gpu.counter_base) = (None, None, None);
            gpu.shares.iter_mut().for_each(|share| share.estimated_joules = None);
            // Heat comes and goes.
            gpu.problems.retain(|problem| problem.fatal);
            gpu.parked.clear();
        }
        // Of the same GPUs.
        status.totals = None;
        status
    };
    if without_figures(old) != without_figures(new) {
        return true;
    }
    let held = |(old, new): (&GpuState, &GpuState)| {
        new.state == GpuCondition::Held && (old.watts, old.joules) != (new.watts, new.joules)
    };
    let warnings =
        |(old, new): (&GpuState, &GpuState)| old.problems != new.problems || old.parked != new.parked;
    let gpus = || old.gpus.iter().zip(&new.gpus);
    age >= REFRESH && (gpus().any(held) || gpus().any(warnings))
}

/// Whether the status names no agent: another one of this node has ended since this one wrote, as in an update with surge.
fn deregistered(node: &SlimGpuNode) -> bool {
    node.status.as_ref().is_none_or(|status| status.agent_version.is_none())
}

/// Writes the status of one node, one write at a time.
pub struct Writer {
    client: kube::Client,
    /// The last written status, its object, and the time.
    written: Option<(Option<String>, GpuNodeStatus, Instant)>,
    /// Earliest time of the next write after a failure.
    not_before: Option<Instant>,
    failures: u32,
}

impl Writer {
    /// Creates a writer; nothing is written yet.
    #[must_use]
    pub fn new(client: kube::Client) -> Self {
        Self { client, written: None, not_before: None, failures: 0 }
    }

    /// Writes the status that follows on `node`'s if it is due. `None`: not due.
    ///
    /// # Errors
    /// When the API server rejects the write. Retried with increasing delays, up to half a minute.
    pub async fn write(
        &mut self,
        node: &SlimGpuNode,
        report: Report,
    ) -> Option<Result<SlimGpuNode, kube::Error>> {
        let uid = node.metadata.uid.clone();
        // The last write is newer than what the watch may show.
        let own = self.written.as_ref().filter(|(written, _, _)| *written == uid);
        let (old, age) = match own {
            Some((_, status, at)) => (status.clone(), at.elapsed()),
            None => (node.status.clone().unwrap_or_default(), REFRESH),
        };
        let new = next(&old, report, clock::now());
        let waits = self.not_before.is_some_and(|until| Instant::now() < until);
        let erased = own.is_some() && deregistered(node);
        if waits || !(erased || differs(&old, &new, age)) {
            return None;
        }
        let name = node.metadata.name.as_deref().unwrap_or_default();
        Some(match self.patch(name, &new).await {
            Ok(answer) => {
                (self.written, self.not_before, self.failures) = (Some((uid, new, Instant::now())), None, 0);
                Ok(answer)
            }
            Err(error) => {
                self.failures = (self.failures + 1).min(5);
                self.not_before = Some(Instant::now() + Duration::from_secs(1 << self.failures));
                Err(error)
            }
        })
    }

    async fn patch(&self, name: &str, status: &GpuNodeStatus) -> Result<SlimGpuNode, kube::Error> {
        let mut body = serde_json::to_value(status).map_err(kube::Error::SerdeError)?;
        // A merge patch only deletes the keys that it names.
        if let Some(fields) = body.as_object_mut() {
            for field in ["gpus", "totals", "released", "conditions", "emptySince"] {
                fields.entry(field).or_insert(Value::Null);
            }
        }
        patch_status(&self.client, name, &body).await
    }
}

async fn patch_status(client: &kube::Client, name: &str, body: &Value) -> Result<SlimGpuNode, kube::Error> {
    let change = Patch::Merge(json!({ "status": body }));
    let request = Request::new(SlimGpuNode::url_path(&(), None))
        .patch_subresource("status", name, &PatchParams::default(), &change)
        .map_err(kube::Error::BuildRequest)?;
    client.request::<SlimGpuNode>(request).await
}

/// Reports that the agent has ended, so that nothing waits for it or relies on its GPU states. Energy totals
/// of pods stay for the next run. That may be of an earlier build, which does not say how often it reports.
///
/// # Errors
/// When the API server rejects the write.
pub async fn deregister(client: &kube::Client, node: &SlimGpuNode) -> Result<(), kube::Error> {
    let old = node.status.clone().unwrap_or_default();
    let update =
        ConditionUpdate { kind: "Ready", status: false, reason: "AgentEnded", message: String::new() };
    let ready = update.condition(&old.conditions, old.observed_generation, whole_seconds(clock::now()));
    let body = json!({
        "agentVersion": null, "reportSeconds": null, "emptySince": null, "totals": null,
        "conditions": [ready],
    });
    let name = node.metadata.name.as_deref().unwrap_or_default();
    patch_status(client, name, &body).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_api::gpu_node::GpuProblem;

    fn gpu(state: GpuCondition, watts: i32, joules: i64) -> GpuState {
        GpuState {
            uuid: "GPU-a".into(),
            state,
            holder: None,
            watts: Some(watts),
            joules: Some(joules),
            counter_base: None,
            held_from: None,
            held_since: None,
            board_watts: None,
            min_limit_watts: None,
            max_limit_watts: None,
            problems: Vec::new(),
            unhealthy_since: None,
            parked: Vec::new(),
            shares: Vec::new(),
        }
    }

    fn report(state: GpuCondition, watts: i32, holds: bool) -> Report {
        let update =
            ConditionUpdate { kind: "Ready", status: holds, reason: "Working", message: String::new() };
        Report {
            generation: Some(1),
            awake: Some(0),
            holders_observed: None,
            gpus: vec![gpu(state, watts, i64::from(watts))],
            released: None,
            empty: Some(state != GpuCondition::Held),
            conditions: vec![update],
        }
    }

    #[test]
    fn figures_alone_are_written_once_a_minute_and_only_for_held_gpus() {
        let at = Timestamp::UNIX_EPOCH;
        let held = next(&GpuNodeStatus::default(), report(GpuCondition::Held, 300, true), at);
        let later = next(&held, report(GpuCondition::Held, 200, true), at);
        assert!(!differs(&held, &later, Duration::from_secs(59)));
        assert!(differs(&held, &later, Duration::from_secs(60)));
        assert_eq!(held.report_seconds, Some(60), "so it is missed when it ends");
        // It draws as before, and its energy goes on: that shows that the agent is there.
        let mut even = held.clone();
        even.gpus[0].joules = Some(18_300);
        assert!(!differs(&held, &even, Duration::from_secs(59)));
        assert!(differs(&held, &even, Duration::from_secs(60)));
        assert!(!differs(&held, &held, Duration::from_secs(3600)), "a GPU without any reading");
        let free = next(&held, report(GpuCondition::Free, 54, true), at);
        assert!(differs(&held, &free, Duration::ZERO));
        let still = next(&free, report(GpuCondition::Free, 80, true), Timestamp::now());
        assert!(!differs(&free, &still, Duration::from_secs(3600)), "nothing happens: nothing is written");
        let problem = |fatal| {
            let mut status = still.clone();
            let reason = "ThermalSlowdown".to_owned();
            status.gpus[0].problems = vec![GpuProblem { reason, fatal, xid: None, message: String::new() }];
            status
        };
        assert!(!differs(&still, &problem(false), Duration::from_secs(59)));
        assert!(differs(&still, &problem(false), Duration::from_secs(60)));
        assert!(differs(&still, &problem(true), Duration::ZERO));
    }

    #[test]
    fn a_second_gpu_that_breaks_on_an_unhealthy_node_is_dated_by_itself() {
        let second = |second| Timestamp::from_second(second).expect("a time");
        let written = |old: &GpuNodeStatus, broken: &[&str], at| {
            let mut report = report(GpuCondition::Free, 54, true);
            let gpu = report.gpus.remove(0);
            let of = |uuid: &&str| {
                let state = if broken.contains(uuid) { GpuCondition::Unhealthy } else { GpuCondition::Free };
                GpuState { uuid: (*uuid).into(), state, ..gpu.clone() }
            };
            report.gpus = ["GPU-a", "GPU-b"].iter().map(of).collect();
            next(old, report, second(at))
        };
        let since = |status: &GpuNodeStatus| -> Vec<Option<i64>> {
            status.gpus.iter().map(|gpu| gpu.unhealthy_since.as_ref().map(|at| at.0.as_second())).collect()
        };
        let one = written(&GpuNodeStatus::default(), &["GPU-a"], 10);
        assert_eq!(since(&one), [Some(10), None]);
        let both = written(&one, &["GPU-a", "GPU-b"], 500);
        assert_eq!(since(&both), [Some(10), Some(500)]);
        assert_eq!(since(&written(&both, &["GPU-b"], 600)), [None, Some(500)]);
        // An older agent dated the node alone.
        let mut older = one;
        older.gpus[0].unhealthy_since = None;
        let at = Time(second(7));
        older.conditions.push(Condition {
            type_: "Unhealthy".into(),
            status: "True".into(),
            last_transition_time: at,
            reason: "Xid".into(),
            message: String::new(),
            observed_generation: None,
        });
        assert_eq!(since(&written(&older, &["GPU-a", "GPU-b"], 700)), [Some(7), Some(700)]);
    }

    #[test]
    fn since_when_survives_what_does_not_change_it() {
        let (start, later) = (Timestamp::UNIX_EPOCH, Timestamp::from_second(100).unwrap());
        let free = next(&GpuNodeStatus::default(), report(GpuCondition::Free, 54, true), start);
        let same = next(&free, report(GpuCondition::Free, 54, true), later);
        assert_eq!(same, free);
        let mut blind = report(GpuCondition::Free, 54, false);
        (blind.empty, blind.generation, blind.awake) = (None, None, None);
        let blind = next(&free, blind, later);
        assert_eq!((&blind.empty_since, blind.observed_generation), (&free.empty_since, Some(1)));
        assert_eq!(blind.conditions[0].last_transition_time.0, later);
        let held = next(&free, report(GpuCondition::Held, 300, true), later);
        assert_eq!(held.empty_since, None);
        let totals = GpuTotals { gpus: 1, held: 1, resting: 0, watts: Some(300), health: "Ok".into() };
        assert_eq!(held.totals, Some(totals));
    }
}
