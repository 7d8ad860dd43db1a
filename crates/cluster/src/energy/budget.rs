//! Whether the power budget is met. Checked independently of planning, so that a violation is noticed
//! whatever the cause.
//!
//! A changed policy is planned at once, and the plan stops jobs until the budget is met. Stopping jobs have
//! their grace period and no longer count here. Judged is whether the stops have **begun** within
//! `EnergyPolicy.spec.powerBudget.enforceWithin`.

use std::collections::{BTreeMap, BTreeSet};

use andreas_api::energy_policy::PowerState;
use andreas_api::slim::SlimPod;
use andreas_api::training_job::Allocation;
use andreas_api::{EnergyPolicySpec, Phase, Reason};
use andreas_model::{ObjectKey, Time};
use jiff::{SignedDuration, Timestamp};

use super::Inventory;
use super::draws::{self, ProfileDraws};
use crate::index::{self, MOST_GPUS, is_member, name_of, owner, takes, whole_gpus};
use crate::instants;
use crate::policy::rules;

/// Least time between two writes of a draw.
const WRITE_EVERY: SignedDuration = SignedDuration::from_secs(60);

/// Current power in the budget's scope.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// All draw except jobs that are stopping, W.
    pub whole: f64,
    /// The part that remains when every job has stopped, W.
    pub floor: f64,
    /// The current budget, W; `None`: power is not limited.
    pub allowed: Option<f64>,
}

/// The current draw and budget: the one figure of `BudgetMet`, of the policy's status, and of the metric.
///
/// Starting and running jobs count as reported by their nodes' agents. Without reports, and in the first
/// minutes of a run, they count at least for the most that a measured profile drew, or the boards' maximum: a
/// user's own watts are no evidence. Added are idle GPUs, the nodes without their GPUs, and foreign GPUs as
/// measured, else at their maximum.
pub fn draw(inventory: &Inventory<'_>, now: Timestamp) -> Draw {
    let policy = inventory.policy();
    let budget = rules::budget(policy, now.as_second());
    let allowed = budget.and_then(|budget| budget.watts.at(Time(now.as_second() as f64)));
    let (whole, floor) = counted(inventory, now);
    let scope = rules::scope_factor(policy);
    let allowed = allowed.filter(|watts| rules::is_limit(*watts)).map(|watts| watts.0);
    Draw { whole: whole * scope, floor: floor * scope, allowed }
}

/// The draw and the budget, for the policy's status.
pub fn power_state(draw: Draw, policy: &EnergyPolicySpec, now: Timestamp) -> PowerState {
    let whole = |watts: f64| watts.round() as i64;
    let budget = rules::budget(policy, now.as_second());
    let present = Time(now.as_second() as f64);
    let change = budget.as_ref().and_then(|budget| budget.watts.next_edge(present));
    let then = change.and_then(|at| budget.as_ref()?.watts.at(at)).filter(|watts| rules::is_limit(*watts));
    PowerState {
        time: instants::time(now),
        budget_watts: draw.allowed.map(whole),
        drawn_watts: whole(draw.whole),
        idle_watts: whole(draw.floor),
        next_change: change.and_then(|at| Timestamp::from_second(at.0 as i64).ok()).map(instants::time),
        next_budget_watts: then.map(|watts| whole(watts.0)),
        kwh_cost_micros: whole(rules::price_at(policy, now.as_second()).0 * 3.6e12),
    }
}

/// Whether a state is worth a write: what is allowed or paid changes at once, a draw by a fiftieth and once a minute at most.
pub fn is_news(old: Option<&PowerState>, new: &PowerState) -> bool {
    let Some(old) = old else { return true };
    let rule =
        |s: &PowerState| (s.budget_watts, s.next_change.clone(), s.next_budget_watts, s.kwh_cost_micros);
    let moved = |a: i64, b: i64| a.abs_diff(b) > (a.unsigned_abs() / 50).max(10);
    let draws = moved(old.drawn_watts, new.drawn_watts) || moved(old.idle_watts, new.idle_watts);
    // A clock that was set back holds nothing off.
    let past = old.time.0 > new.time.0 || new.time.0.duration_since(old.time.0) >= WRITE_EVERY;
    rule(old) != rule(new) || draws && past
}

/// All draw as counted by [`draw`], without a budget's scope, and the part that remains when every job has
/// stopped, W.
fn counted(inventory: &Inventory<'_>, now: Timestamp) -> (f64, f64) {
    let index = inventory.index;
    let mut held: BTreeMap<&str, u64> = BTreeMap::new();
    let mut beyond: BTreeSet<String> = BTreeSet::new();
    let profiles = ProfileDraws::from_index(index);
    let mut jobs = 0.0;
    for (key, job) in index.jobs().iter() {
        let Some(status) = &job.status else { continue };
        let Some(allocation) = &status.allocation else { continue };
        let members = index.members(key);
        beyond.extend(index::beyond(members.iter().map(AsRef::as_ref), job, allocation));
        if matches!(status.phase, Phase::Starting | Phase::Running) {
            jobs += of_run(&profiles, key, allocation, inventory, now);
            for node in &allocation.nodes {
                *held.entry(node).or_default() += u64::try_from(allocation.gpus_per_worker).unwrap_or(0);
            }
        }
    }
    let (mut whole, mut floor) = (jobs, 0.0);
    for (key, node) in index.nodes().iter() {
        let ours = held.get(key.name.as_str()).copied().unwrap_or(0);
        let powered = inventory.powered(node).is_some();
        let Some(product) = inventory.gpu_type(node).filter(|_| powered || ours > 0) else { continue };
        let power = inventory.board(product);
        // Also those that the device plug-in has taken out, or has not offered again yet.
        let gpus = whole_gpus(node).min(MOST_GPUS);
        // Orphans are pods of others, and pods that say they work for a job that does not know them.
        let works = |pod: &SlimPod| {
            let job = owner(&pod.metadata).and_then(|(job, _)| index.jobs().get(&job));
            job.is_some_and(|job| is_member(pod, job)) && !beyond.contains(&name_of(&pod.metadata))
        };
        let (own, unknown): (Vec<_>, Vec<_>) = index.pods_on(&key.name).partition(|pod| works(pod));
        let owned = unknown.into_iter().filter(|pod| owner(&pod.metadata).is_some());
        let unknown = owned.filter_map(|pod| Some(takes(pod)?.1.gpus)).fold(0, u64::saturating_add);
        let others = index.foreign_use(&key.name).gpus.saturating_add(unknown).min(gpus);
        let own: BTreeSet<String> = own.into_iter().map(|pod| name_of(&pod.metadata)).collect();
        let foreign = draws::foreign_power(index, key, node, &own, power.max)
            .map_or(others as f64 * power.max.0, |watts| watts.0);
        let idle = |ours: u64| gpus.saturating_sub(others).saturating_sub(ours) as f64 * power.idle.0;
        let host = power.host(gpus.max(ours));
        whole += foreign + idle(ours) + if ours > 0 { host.busy.0 } else { host.idle.0 };
        floor += foreign + idle(0) + host.idle.0;
    }
    // A machine that starts draws as if busy, and is no node yet.
    for node in index.starting() {
        let Some(product) = inventory.powered(&node) else { continue };
        let (power, gpus) = (inventory.board(product), whole_gpus(&node).min(MOST_GPUS));
        let watts = power.host(gpus).busy.0 + gpus as f64 * power.idle.0;
        (whole, floor) = (whole + watts, floor + watts);
    }
    (whole, floor)
}

/// Draw of a job's allocation, W.
fn of_run(
    profiles: &ProfileDraws<'_>,
    key: &ObjectKey,
    allocation: &Allocation,
    inventory: &Inventory<'_>,
    now: Timestamp,
) -> f64 {
    let (index, policy) = (inventory.index, inventory.policy());
    let (power, gpus) = (inventory.board(&allocation.gpu_type), f64::from(allocation.gpus.max(0)));
    // A report counts up to the boards' maximum.
    let reported = draws::reported(index, key, allocation).map(|watts| watts.min(power.max.0 * gpus));
    // An agent that has set a limit reports as well.
    let limited =
        allocation.power_limit_watts.is_some() && draws::limit_in_force(index, key, allocation, policy);
    let least = match limited {
        true => power.idle.0,
        // It drew all that a guard allowed, and nothing is known of it without one.
        false if allocation.guard_reached => power.max.0,
        false => profiles.highest(&allocation.gpu_type, &power),
    };
    let predicted = f64::from(allocation.watts.max(0)).min(power.max.0 * gpus);
    let expected = predicted.max(least * gpus);
    let expected = allocation.guard_watts.map_or(expected, |guard| expected.min(f64::from(guard) * gpus));
    match reported {
        Some(watts) if draws::settled(index, key, allocation, now) => watts,
        Some(watts) => watts.max(expected),
        None => expected,
    }
}

/// Since when the draw is above the budget.
#[derive(Debug, Default)]
pub struct Enforcement {
    over: Option<Timestamp>,
}

/// The budget's state for the policy's status.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetState {
    /// The required stops have begun, or still have time.
    pub met: bool,
    /// Machine-readable reason.
    pub reason: Reason,
    /// Human-readable text; unchanged if only the watts change.
    pub message: String,
}

impl Enforcement {
    /// Judges the current draw.
    pub fn judge(&mut self, draw: Draw, policy: &EnergyPolicySpec, now: Timestamp) -> BudgetState {
        let fine =
            |message: &str| BudgetState { met: true, reason: Reason::AsExpected, message: message.into() };
        let Some(allowed) = draw.allowed else {
            self.over = None;
            return fine("power is not limited");
        };
        if draw.whole <= allowed * (1.0 + 1e-6) {
            self.over = None;
            return fine("what runs is within the budget");
        }
        let since = *self.over.get_or_insert(now);
        let within = policy.seconds(|policy| &policy.power_budget.enforce_within);
        if now.duration_since(since).as_secs() < within {
            return fine(&format!(
                "what runs draws more than the budget of {allowed:.0} W, and is to be asked to stop within {}",
                policy.power_budget.enforce_within
            ));
        }
        if draw.floor > allowed {
            let message = format!("GPUs without any job draw more than the budget of {allowed:.0} W");
            return BudgetState { met: false, reason: Reason::BudgetInfeasible, message };
        }
        let limit = &policy.power_budget.enforce_within;
        let message =
            format!("what runs has drawn more than the budget of {allowed:.0} W for longer than {limit}");
        BudgetState { met: false, reason: Reason::PowerBudget, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::ClusterIndex;
    use andreas_api::slim::{SlimNode, SlimTrainingJob};
    use andreas_model::Index;
    use serde_json::json;

    use crate::testing::{at, gpu_node};

    fn draw(index: &ClusterIndex, policy: &EnergyPolicySpec, now: Timestamp) -> Draw {
        super::draw(&Inventory::with(index, policy), now)
    }

    fn policy(watts: i64) -> EnergyPolicySpec {
        serde_json::from_value(json!({"powerBudget": {"watts": watts, "enforceWithin": "30s"},
            "gpuTypes": [{"name": "A", "idleWatts": 50, "maxWatts": 400, "hostIdleWatts": 60, "hostBusyWatts": 160}]}))
        .expect("a policy")
    }

    fn cluster(phase: &str) -> ClusterIndex {
        planned(phase, 700)
    }

    /// The same; `watts`: predicted for the job.
    fn planned(phase: &str, watts: i32) -> ClusterIndex {
        let mut index = ClusterIndex::new();
        index.apply(serde_json::from_value::<SlimNode>(gpu_node("n1", "A", 4)).expect("a node"));
        let foreign: crate::index::ForeignPod = serde_json::from_value(json!({
            "metadata": {"name": "x", "namespace": "other", "resourceVersion": "2"},
            "spec": {"nodeName": "n1", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}))
        .expect("a pod");
        index.apply(foreign);
        let job: SlimTrainingJob = serde_json::from_value(json!({
            "metadata": {"name": "j", "namespace": "team", "uid": "j", "resourceVersion": "3"},
            "spec": {"template": {"spec": {"containers": []}}},
            "status": {"phase": phase, "allocation": {"attempt": 1, "generation": 1, "gpuType": "A", "gpus": 2, "gpusPerWorker": 2,
                "nodes": ["n1"], "since": at(0), "runningTime": at(0), "watts": watts}, "progress": {"milliPercent": 2_000, "attempt": 1,
                "at": at(1), "first": {"at": at(0), "milliPercent": 1_000}}}}))
        .expect("a job");
        index.apply(job);
        index
    }

    #[test]
    fn the_draw_is_that_of_jobs_idle_gpus_busy_nodes_and_others() {
        // 2 x 400 of the job, which nobody has measured, 50 of the idle GPU, 160 of the node, 400 of the foreign
        // GPU; without the job 3 idle, 60 of the node and the foreign one.
        let seen = draw(&cluster("Running"), &policy(1_000), at(1));
        assert_eq!(seen, Draw { whole: 1_410.0, floor: 610.0, allowed: Some(1_000.0) });
        // A stopping job does not count.
        let seen = draw(&cluster("Stopping"), &policy(1_000), at(1));
        assert_eq!(seen.whole, seen.floor);
        assert_eq!(draw(&cluster("Running"), &EnergyPolicySpec::default(), at(1)).allowed, None);
    }

    #[test]
    fn pods_that_claim_to_work_for_a_job_count_as_foreign_beyond_its_gpus() {
        let with = |uid: &str, reported: bool| {
            let mut index = cluster("Running");
            let pod: SlimPod = serde_json::from_value(json!({
                "metadata": {"name": "more", "namespace": "team", "uid": "q", "resourceVersion": "8",
                    "labels": {"andreas.dev/job": "j", "andreas.dev/job-uid": uid, "andreas.dev/attempt": "1"},
                    "ownerReferences": [crate::testing::owner("j", uid)]},
                "spec": {"nodeName": "n1", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "3"}}}]},
                "status": {"phase": "Running"}}))
            .expect("a pod");
            index.apply(pod);
            if reported {
                let held = |uuid: &str, pod: &str| json!({"uuid": uuid, "gpuType": "A", "state": "Held", "holder": pod, "watts": 300});
                let gpus = [
                    held("a", "team/more"),
                    held("b", "team/more"),
                    held("c", "team/more"),
                    held("d", "other/x"),
                ];
                let node: andreas_api::slim::SlimGpuNode = serde_json::from_value(json!({
                    "metadata": {"name": "n1", "resourceVersion": "5"}, "spec": {},
                    "status": {"agentVersion": "1", "reportSeconds": 60, "gpus": gpus}}))
                .expect("a GpuNode");
                index.apply(node);
            }
            draw(&index, &policy(1_000), at(1)).floor
        };
        // A foreign pod has one of the four GPUs and it the rest, whichever job it names; the node draws 60 W.
        for uid in ["j", "of-an-older-one"] {
            assert_eq!(
                (with(uid, false), with(uid, true)),
                (60.0 + 4.0 * 400.0, 60.0 + 4.0 * 300.0),
                "{uid}"
            );
        }
    }

    #[test]
    fn a_cordoned_node_draws_power_and_a_silent_one_may_be_off() {
        let with = |change: fn(&mut serde_json::Value)| {
            let mut index = cluster("Running");
            let mut node = gpu_node("n2", "A", 4);
            node["metadata"]["resourceVersion"] = "9".into();
            change(&mut node);
            index.apply(serde_json::from_value::<SlimNode>(node).expect("a node"));
            draw(&index, &policy(1_000), at(1)).whole
        };
        let host_and_gpus = 60.0 + 4.0 * 50.0;
        assert_eq!(with(|_| {}), 1_410.0 + host_and_gpus);
        assert_eq!(with(|node| node["spec"]["unschedulable"] = true.into()), 1_410.0 + host_and_gpus);
        assert_eq!(with(|node| node["status"]["conditions"][0]["status"] = "Unknown".into()), 1_410.0);
    }

    /// The job's pod, and its GPUs as the node's agent reports them.
    fn report(index: &mut ClusterIndex, watts: i32) {
        let pod: andreas_api::slim::SlimPod = serde_json::from_value(json!({
            "metadata": {"name": "j-1-0", "namespace": "team", "uid": "p", "resourceVersion": "4",
                "labels": {"andreas.dev/job": "j", "andreas.dev/job-uid": "j", "andreas.dev/attempt": "1"},
                "ownerReferences": [crate::testing::owner("j", "j")]},
            "spec": {"nodeName": "n1", "containers": []}, "status": {"phase": "Running"}}))
        .expect("a pod");
        index.apply(pod);
        let held = |uuid| json!({"uuid": uuid, "gpuType": "A", "state": "Held", "holder": "team/j-1-0", "watts": watts});
        let node: andreas_api::slim::SlimGpuNode = serde_json::from_value(json!({
            "metadata": {"name": "n1", "resourceVersion": "5"}, "spec": {},
            "status": {"agentVersion": "1", "reportSeconds": 60, "gpus": [held("a"), held("b")]}}))
        .expect("a GpuNode");
        index.apply(node);
    }

    #[test]
    fn a_users_own_watts_are_no_evidence_that_the_budget_is_met() {
        // Whatever is predicted for the job, without an agent it counts for what its boards may draw.
        for watts in [1, 700, 5_000] {
            let seen = draw(&planned("Running", watts), &policy(1_000), at(1_000));
            assert_eq!(seen.whole, 1_410.0, "{watts}");
        }
        // With one it counts for that in its first two minutes, and for what is measured after them: 2 x 380 W.
        for (second, whole) in [(100, 1_410.0), (119, 1_410.0), (120, 1_370.0)] {
            let mut index = planned("Running", 1);
            report(&mut index, 380);
            // The agent reports no GPU of others: the foreign one counts for nothing.
            let seen = draw(&index, &policy(1_000), at(second));
            assert_eq!(seen.whole, whole - 400.0, "{second}");
        }
    }

    #[test]
    fn a_run_whose_agent_is_silent_counts_as_without_an_agent() {
        let mut index = planned("Running", 1);
        report(&mut index, 380);
        index.age_reports(std::time::Duration::from_secs(180));
        let seen = draw(&index, &policy(1_000), at(1_000));
        assert_eq!(seen.whole, 1_410.0, "the GPU of others too");
    }

    #[test]
    fn pods_that_outlive_their_job_draw_what_their_agent_reports() {
        let mut index = planned("Running", 1);
        report(&mut index, 380);
        // The job is measured: 2 x 380 W. Beside it are the idle GPU and the node.
        let whole = |index: &ClusterIndex| draw(index, &policy(1_000), at(120)).whole;
        assert_eq!(whole(&index), 760.0 + 50.0 + 160.0);
        // Given a pod of a job that was deleted without it; it holds a GPU at 300 W.
        let one_gpu = json!({"requests": {"nvidia.com/gpu": "1"}});
        let orphan: andreas_api::slim::SlimPod = serde_json::from_value(json!({
            "metadata": {"name": "o-1-0", "namespace": "team", "uid": "o", "resourceVersion": "6",
                "labels": {"andreas.dev/job": "o", "andreas.dev/job-uid": "o", "andreas.dev/attempt": "1"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "t", "resources": one_gpu}]}, "status": {"phase": "Running"}}))
        .expect("a pod");
        index.apply(orphan);
        let held = |uuid, holder, watts| json!({"uuid": uuid, "gpuType": "A", "state": "Held", "holder": holder, "watts": watts});
        let (ours, orphans) = ("team/j-1-0", "team/o-1-0");
        let node: andreas_api::slim::SlimGpuNode = serde_json::from_value(json!({
            "metadata": {"name": "n1", "resourceVersion": "7"}, "spec": {}, "status": {"agentVersion": "1",
                "gpus": [held("a", ours, 380), held("b", ours, 380), held("c", orphans, 300)]}}))
        .expect("a GpuNode");
        index.apply(node);
        assert_eq!(whole(&index), 760.0 + 300.0 + 160.0);
    }

    #[test]
    fn the_status_shows_the_draw_that_is_judged_and_changes_of_the_budget_at_once() {
        let mut policy = policy(1_000);
        policy.power_budget.windows =
            serde_json::from_value(json!([{"from": "06:00", "to": "12:00", "watts": 2_000}]))
                .expect("windows");
        let seen =
            |index: &ClusterIndex, second| power_state(draw(index, &policy, at(second)), &policy, at(second));
        let runs = seen(&cluster("Running"), 0);
        let shown = (runs.budget_watts, runs.drawn_watts, runs.idle_watts, runs.next_budget_watts);
        assert_eq!(shown, (Some(2_000), 1_410, 610, Some(1_000)));
        assert_eq!(runs.next_change, Some(instants::time(at(4 * 3_600))));
        let (soon, later) = (seen(&cluster("Stopping"), 59), seen(&cluster("Stopping"), 60));
        assert!(is_news(None, &runs) && !is_news(Some(&runs), &soon) && is_news(Some(&runs), &later));
        assert!(!is_news(Some(&runs), &seen(&cluster("Running"), 3_600)), "nothing has changed");
        assert!(is_news(Some(&soon), &PowerState { budget_watts: None, ..soon.clone() }));
    }

    #[test]
    fn a_budget_that_nobody_enforces_is_said_after_its_time() {
        let mut enforcement = Enforcement::default();
        let mut judge = |index: &ClusterIndex, watts: i64, second: i64| {
            let policy = policy(watts);
            let met = enforcement.judge(draw(index, &policy, at(second)), &policy, at(second));
            (met.met, met.reason)
        };
        let runs = cluster("Running");
        assert_eq!(judge(&runs, 2_000, 0), (true, Reason::AsExpected));
        assert_eq!(judge(&runs, 1_000, 10), (true, Reason::AsExpected));
        assert_eq!(judge(&runs, 1_000, 39), (true, Reason::AsExpected));
        assert_eq!(judge(&runs, 1_000, 40), (false, Reason::PowerBudget));
        assert_eq!(judge(&runs, 500, 41), (false, Reason::BudgetInfeasible));
        // It stops: met, and the next excess gets the full time.
        assert_eq!(judge(&cluster("Stopping"), 1_000, 50), (true, Reason::AsExpected));
        assert_eq!(judge(&runs, 1_000, 51), (true, Reason::AsExpected));
    }
}
