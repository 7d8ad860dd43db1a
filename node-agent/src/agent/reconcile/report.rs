//! What a reconcile reports: the state of each GPU, its energy, and the conditions of the node.

use std::collections::BTreeMap;

use andreas_api::gpu_node::{GpuCondition, GpuProblem, GpuState, namespaced_pod_name};
use andreas_runtime::clock;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::outcomes::is_final;
use super::{ReconcileLoop, labels, rest_kind};
use crate::agent::attribution::GpuReading;
use crate::agent::decide::{Decision, DesiredSettings, GpuObservation, Holder, Observed};
use crate::agent::energy::{GpuUse, Interval};
use crate::agent::health::{Findings, PROBLEMS, problems};
use crate::agent::metrics::GpuLabels;
use crate::agent::monitor::GpuHandle;
use crate::agent::status::{ConditionUpdate, Report, whole_seconds};
use crate::gpu::Sample;
use crate::setting::{Setting, Uuid};

impl ReconcileLoop {
    pub(super) fn report(&mut self, observed: &Observed, decision: &Decision) -> Report {
        let (mut woken, mut carried_out) = (true, true);
        let mut gpus = Vec::with_capacity(observed.gpus.len());
        let mut readings = BTreeMap::new();
        for (uuid, observation) in &observed.gpus {
            let Some(gpu) = self.deps.monitor.gpus().get(uuid) else { continue };
            if gpu.product().is_none() {
                self.untyped.insert(uuid.clone());
            } else if self.untyped.remove(uuid) {
                self.deps.metrics.forget_untyped(uuid);
            }
            let (labels, sample, driver) =
                (labels(uuid, gpu), gpu.sample().cloned(), gpu.facts().and_then(|facts| facts.limit_mw));
            let settable = observation.facts.as_ref().and_then(|facts| facts.limit_mw);
            let xids = &self.deps.xids;
            let contained = xids.contained_error(uuid, clock::now());
            let found = problems(Findings {
                error: gpu.fault(),
                xid: xids.fatal_error(uuid),
                contained,
                twice: self.holders.gpus.twice.contains(uuid),
                sample: sample.as_ref(),
            });
            let refused = self.setter.outcome(uuid).and_then(|outcome| outcome.refused.as_deref());
            let overridden = refused == Some("overridden");
            let for_good = overridden || refused.is_some_and(is_final);
            let (actual, wanted) =
                (self.actual(uuid), decision.wanted.get(uuid).copied().unwrap_or_default());
            let holder = self.holders.gpus.gpus.get(uuid).cloned();
            let state = if found.iter().any(|problem| problem.fatal) {
                GpuCondition::Unhealthy
            } else {
                carried_out &= actual == Some(wanted) || for_good;
                let shared = self.holders.gpus.ambiguous || self.holders.gpus.shared.contains_key(uuid);
                match holder {
                    Some(_) => GpuCondition::Held,
                    None if shared => GpuCondition::Held,
                    None => {
                        let (rests, untouched) = (decision.resting.contains(uuid), Some(Setting::default()));
                        woken &= if rests { actual == untouched } else { actual == Some(wanted) || for_good };
                        // The limit of a pod that is to come is no rest.
                        match actual == untouched || !rests && actual == Some(wanted) {
                            true => GpuCondition::Free,
                            false => GpuCondition::Resting,
                        }
                    }
                }
            };
            let mut parked = Vec::new();
            if let Some(sample) = &sample {
                let now = self.started.elapsed();
                let processes = sample.processes.as_deref().unwrap_or_default();
                parked = self.deps.parked.update(uuid, processes, sample.util_percent, now);
                if let Some(reading) = self.meter(uuid, &labels, sample, state, observation) {
                    readings.insert(uuid.clone(), reading);
                }
            } else {
                self.deps.metrics.remove_readings(&labels);
                let error = self.deps.monitor.gpus().get(uuid).and_then(|gpu| gpu.failing());
                if let Some(error) = error {
                    self.deps.metrics.failed(&labels, error.reason());
                }
            }
            self.deps.metrics.set_state(&labels, state_label(state));
            self.deps.metrics.set_problems(&labels, &found);
            let refuses = overridden || self.setter.is_unlimitable(uuid);
            let range = limits(settable, self.settable_floor(), refuses);
            let meter = self.energy.meters.entry(uuid.clone()).or_default();
            gpus.push(GpuState {
                uuid: uuid.clone(),
                state,
                holder: holder.map(|(namespace, name)| namespaced_pod_name(&namespace, &name)),
                watts: sample.and_then(|s| i32::try_from(s.power_mw?.div_ceil(1000)).ok()),
                joules: meter.joules(),
                counter_base: Some(meter.base_joules()).filter(|base| *base != 0),
                held_from: None,
                held_since: None,
                // Rounded up, so that the value is never below the real limit.
                board_watts: driver.and_then(|(_, highest)| {
                    i32::try_from(highest.saturating_add(999) / 1000).ok().filter(|watts| *watts >= 1)
                }),
                min_limit_watts: range.map(|(lowest, _)| lowest),
                max_limit_watts: range.map(|(_, highest)| highest),
                problems: found,
                unhealthy_since: None,
                parked,
                shares: self.energy.shared.shares(uuid),
            });
        }
        self.attribute_energy(&readings, &mut gpus);
        let observes = self.holders.kubelet_failing.is_none() && self.deps.monitor.list_result().is_ok();
        let carries_out = decision.carries_out.filter(|_| self.deps.monitor.list_result().is_ok());
        let desired = observed.desired.as_ref().filter(|_| carries_out.is_some());
        Report {
            generation: desired
                .and_then(|desired| acknowledged_generation(desired, observed.leader_alive, carried_out)),
            awake: carries_out.filter(|_| woken).map(|(_, wake)| wake),
            holders_observed: self.holders.observed,
            empty: observes.then_some(self.holders.gpus.is_empty()),
            conditions: vec![self.ready(), unhealthy_condition(&gpus)],
            released: self.resumed.then(|| self.energy.attribution.released().to_vec()),
            gpus,
        }
    }

    /// Counts a sample: energy of its holders, what rest saves, whether the GPU was reset. Returns what counts for its pod.
    fn meter(
        &mut self,
        uuid: &Uuid,
        labels: &GpuLabels,
        sample: &Sample,
        state: GpuCondition,
        observation: &GpuObservation,
    ) -> Option<GpuReading> {
        let now = self.started.elapsed();
        let holder = self.holders.gpus.gpus.get(uuid).cloned();
        let in_use = match (state, &holder) {
            (GpuCondition::Held, Some((namespace, _))) => GpuUse::Held(namespace.clone()),
            (GpuCondition::Free, _) if observation.holder == Holder::Nobody => GpuUse::Free,
            (GpuCondition::Resting, _) => GpuUse::Resting,
            _ => GpuUse::Unknown,
        };
        if let Some(gpu) = self.deps.monitor.gpus().get(uuid) {
            let kind = rest_kind(gpu);
            let effect =
                sample.power_mw.and_then(|power| self.deps.rest_trials.add(uuid, &kind, &in_use, power, now));
            if let Some(effect) = effect {
                let watts = effect.saved_mw / 1000.0;
                tracing::info!(
                    uuid,
                    context = kind.context,
                    watts,
                    worth = effect.worth,
                    "rest was measured"
                );
                self.deps.metrics.set_rest_effect(&labels.gpu_type, kind.context, watts);
            }
        }
        let most_mw = observation.facts.as_ref().and(self.deps.monitor.gpus().get(uuid)?.facts()?.limit_mw);
        let meter = self.energy.meters.entry(uuid.clone()).or_default();
        let interval = meter.add(now, sample, in_use, most_mw.map(|(_, highest)| highest));
        let joules = meter.joules().filter(|_| interval.counted);
        self.apply_interval(uuid, &interval);
        let slices = self.holders.gpus.shared.get(uuid);
        self.energy.shared.update(uuid, slices, interval.joules);
        self.deps.metrics.sampled(labels, sample, &interval);
        let known = observation.holder != Holder::Unknown || self.holders.gpus.shared.contains_key(uuid);
        let reading = GpuReading { holder, joules, estimated: interval.estimated, lost: interval.lost };
        known.then_some(reading)
    }

    fn apply_interval(&mut self, uuid: &Uuid, interval: &Interval) {
        let back = self.deps.monitor.gpus().get(uuid).is_some_and(GpuHandle::was_reset);
        if interval.reset || back {
            tracing::info!(uuid, "the GPU was reset, or its driver loaded again");
            self.deps.xids.clear(uuid);
            self.setter.renew(uuid);
        }
        if interval.resumed_joules != 0 {
            self.energy.attribution.shift_counter(uuid, interval.resumed_joules);
        }
        if interval.unseen {
            self.energy.attribution.forget(uuid);
        }
    }

    /// Energy used by each pod, and where the open shares began.
    fn attribute_energy(&mut self, readings: &BTreeMap<Uuid, GpuReading>, gpus: &mut [GpuState]) {
        self.energy.attribution.update(readings, whole_seconds(clock::now()));
        for gpu in gpus.iter_mut().filter(|gpu| gpu.holder.is_some()) {
            if let Some(begin) = self.energy.attribution.begin(&gpu.uuid) {
                (gpu.held_from, gpu.held_since) = (Some(begin.joules), Some(Time(begin.at)));
            }
        }
    }
}

/// Generation of the spec to report as carried out. `None` keeps the last one. 0, which is before every generation,
/// while no leader is seen and limits are wanted: then none of them is in force.
fn acknowledged_generation(desired: &DesiredSettings, leader_alive: bool, carried_out: bool) -> Option<i64> {
    if !leader_alive && !desired.limits.is_empty() {
        return Some(0);
    }
    carried_out.then_some(desired.generation)
}

/// Power limits that a GPU accepts, W: the `settable` range (mW), raised to the administrator's floor as
/// reported by the `setter`. `None` if the driver or the setter cannot set limits, or one was `refused`
/// permanently or does not last.
fn limits(settable: Option<(u32, u32)>, setter: Option<u32>, refused: bool) -> Option<(i32, i32)> {
    let ((lowest, highest), floor) = settable.zip(setter.filter(|_| !refused))?;
    let watts = |milliwatts: u32| i32::try_from(milliwatts / 1000).ok().filter(|watts| *watts >= 1);
    // Rounded inwards, so that both ends can be set.
    let range = (watts(lowest.max(floor).max(1).saturating_add(999))?, watts(highest)?);
    (range.0 <= range.1).then_some(range)
}

fn state_label(state: GpuCondition) -> &'static str {
    match state {
        GpuCondition::Held => "held",
        GpuCondition::Free => "free",
        GpuCondition::Resting => "resting",
        GpuCondition::Unhealthy => "unhealthy",
    }
}

fn unhealthy_condition(gpus: &[GpuState]) -> ConditionUpdate {
    let fatal: Vec<(&str, &GpuProblem)> = gpus
        .iter()
        .filter_map(|gpu| Some((gpu.uuid.as_str(), gpu.problems.iter().find(|problem| problem.fatal)?)))
        .collect();
    let first = fatal.first().and_then(|(_, problem)| PROBLEMS.into_iter().find(|r| *r == problem.reason));
    let reason = first.unwrap_or(if fatal.is_empty() { "AllHealthy" } else { "DriverError" });
    let messages: Vec<String> =
        fatal.iter().map(|(uuid, problem)| format!("{uuid}: {}", problem.message)).collect();
    ConditionUpdate { kind: "Unhealthy", status: !fatal.is_empty(), reason, message: messages.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_is_acknowledged_while_no_leader_is_seen() {
        let limited = DesiredSettings {
            generation: 8,
            wake: 0,
            limits: BTreeMap::from([("team/job-1-0".to_owned(), 300)]),
        };
        assert_eq!(acknowledged_generation(&limited, true, false), None, "not yet");
        assert_eq!(acknowledged_generation(&limited, true, true), Some(8));
        for carried_out in [false, true] {
            assert_eq!(acknowledged_generation(&limited, false, carried_out), Some(0), "nor any longer");
        }
        let unlimited = DesiredSettings { limits: BTreeMap::new(), ..limited };
        assert_eq!(acknowledged_generation(&unlimited, false, true), Some(8), "nothing counts on it");
    }

    #[test]
    fn a_range_of_limits_is_reported_only_where_a_setter_may_set_them_and_from_the_floor_on() {
        let driver = Some((99_500, 400_200));
        assert_eq!(limits(driver, Some(0), false), Some((100, 400)));
        assert_eq!(limits(driver, Some(150_000), false), Some((150, 400)));
        assert_eq!(limits(driver, Some(500_000), false), None, "the floor leaves nothing");
        assert_eq!(limits(driver, None, false), None, "nobody may set one");
        assert_eq!(limits(driver, Some(0), true), None, "one was refused for good");
        assert_eq!(limits(None, Some(0), false), None, "the driver takes none");
    }
}
