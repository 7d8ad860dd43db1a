//! Scenarios that every method must pass: a start waits until all whose GPUs, resources, quota or watts it takes have left,
//! through every later plan.

use andreas_model::{CostRate, GpuCount, Seconds, Time, Watts};
use andreas_planner::{
    Estimate, GpuTypeInfo, Job, JobState, Namespace, Placement, Plan, Preemption, Resources, Snapshot,
    WaitReason, Worker,
};

use crate::methods::{self, decide};
use crate::scenarios::{HOUR, budget, cluster, job, on, place, reason, running};

/// `light` runs on the A100, `heavy` can only use the H100: 2,900 W with one of them, 5,000 W with both.
fn two() -> Snapshot {
    let mut snapshot = cluster(2);
    snapshot.gpu_types.push(GpuTypeInfo { name: "H100".into(), idle: Watts(50.0), max: Watts(400.0) });
    snapshot.nodes[1].gpu_type = "H100".into();
    let row = Estimate::new("H100".into(), GpuCount(8), Seconds(HOUR / 10.0), Watts(2400.0));
    let heavy = Job {
        estimates: [row].into(),
        weight: CostRate(10.0),
        deadline: Some(Time(1.2 * HOUR)),
        ..job("heavy", 8)
    };
    let light = Job { weight: CostRate(1e-6), ..job("light", 8) };
    snapshot.jobs = vec![heavy, running(light, &["n0"], 8)];
    snapshot
}

/// The ways in which `light` can be in the way of `heavy`.
fn obstacles() -> Vec<(&'static str, Snapshot)> {
    let watts = Snapshot { budget: budget(3_000.0), ..two() };
    let mut quota = two();
    let gpus: std::sync::Arc<str> = "requests.nvidia.com/gpu".into();
    quota.namespaces = vec![Namespace { name: "team".into(), quota: [(gpus.clone(), 8)].into() }];
    for job in &mut quota.jobs {
        job.worker = Worker { quota_per_gpu: [(gpus.clone(), 1)].into(), ..Worker::default() };
    }
    // Eight GPUs each of a node of sixteen, whose memory is enough for one of them.
    let mut memory = two();
    let node = &mut memory.nodes[0];
    (node.gpus, node.free_gpus) = (GpuCount(16), GpuCount(16));
    node.free.memory_bytes = Some(100);
    for each in &mut memory.jobs {
        each.worker.fixed = Resources { memory_bytes: Some(60), ..Resources::default() };
    }
    memory.jobs[0].estimates = job("heavy", 8).estimates;
    vec![("watts", watts), ("quota", quota), ("memory", memory)]
}

fn h100() -> Placement {
    Placement { gpu_type: "H100".into(), ..on(&["n1"], 8) }
}

fn target(snapshot: &Snapshot) -> Placement {
    if snapshot.jobs[0].estimates[0].gpu_type.as_str() == "H100" { h100() } else { on(&["n0"], 8) }
}

fn after(plan: &Plan, job: &str) -> Vec<String> {
    plan.jobs[job].after.iter().map(ToString::to_string).collect()
}

fn stopping(holds: Placement, target: Option<Placement>) -> JobState {
    JobState::Stopping { holds, target, gone_by: Time(HOUR) }
}

fn promised(job: &mut Job, target: Placement) {
    job.state = JobState::Starting { target, since: Time(0.0) };
    job.promised = true;
}

#[test]
fn a_start_waits_for_the_watts_quota_or_memory_of_a_job_that_makes_room() {
    for (what, snapshot) in obstacles() {
        for method in methods::all().into_iter().filter(|method| !methods::moves_nothing(*method)) {
            let plan = decide(&snapshot, method);
            if place(&plan, "team/light").is_none() && place(&plan, "team/heavy").is_some() {
                assert_eq!(after(&plan, "team/heavy"), ["team/light"], "{method}, {what}");
            }
        }
        let plan = decide(&snapshot, methods::PREEMPTS);
        assert_eq!(after(&plan, "team/heavy"), ["team/light"], "{what}");
    }
}

#[test]
fn the_next_plan_keeps_the_order_while_the_other_leaves() {
    for (what, mut snapshot) in obstacles() {
        snapshot.now = Time(1.0);
        let target = target(&snapshot);
        let told = stopping(on(&["n0"], 8), None);
        let states = [told, snapshot.jobs[1].state.clone()];
        for (light, is_promised) in
            states.into_iter().flat_map(|state| [(state.clone(), false), (state, true)])
        {
            snapshot.jobs[1].state = light.clone();
            promised(&mut snapshot.jobs[0], target.clone());
            snapshot.jobs[0].promised = is_promised;
            for method in methods::all() {
                let plan = decide(&snapshot, method);
                let waits =
                    place(&plan, "team/heavy").is_none() || after(&plan, "team/heavy") == ["team/light"];
                assert!(waits, "{method}, {what}, {light:?}: it starts at once");
                let leaves = matches!(light, JobState::Stopping { .. });
                if is_promised && leaves {
                    assert_eq!(
                        place(&plan, "team/heavy"),
                        Some(&target),
                        "{method}, {what}: its promise is kept"
                    );
                    let within = plan.allowed_power.is_none_or(|allowed| plan.budgeted_power.0 <= allowed.0);
                    assert!(within, "{method}: {} of {:?}", plan.budgeted_power, plan.allowed_power);
                }
            }
        }
    }
}

#[test]
fn a_job_that_moves_keeps_its_order_while_it_and_the_other_leave() {
    // Given a job that was moved from the A100 to the H100 of another,
    let mut snapshot = two();
    let row = |kind: &str| Estimate::new(kind.into(), GpuCount(8), Seconds(HOUR / 10.0), Watts(2400.0));
    snapshot.jobs[0].estimates = [row("A100"), row("H100")].into();
    snapshot.jobs[1].estimates = [row("H100")].into();
    snapshot.jobs[1].state = stopping(h100(), None);
    // whose pods are still there, and then are gone,
    snapshot.jobs[0].state = stopping(on(&["n0"], 8), Some(h100()));
    let leaves = snapshot.clone();
    promised(&mut snapshot.jobs[0], h100());
    for snapshot in [leaves, snapshot] {
        for method in methods::all() {
            // then it starts there after the other.
            let plan = decide(&snapshot, method);
            assert_eq!(place(&plan, "team/heavy"), Some(&h100()), "{method}");
            assert_eq!(after(&plan, "team/heavy"), ["team/light"], "{method}");
        }
    }
}

#[test]
fn a_start_waits_for_all_who_are_in_its_way() {
    // Given one job on the GPUs that another needs, and one that draws its watts,
    let mut snapshot = two();
    let row = Estimate::new("H100".into(), GpuCount(8), Seconds(HOUR / 10.0), Watts(300.0));
    let a = Job { estimates: [row].into(), weight: CostRate(1e-6), ..job("a", 8) };
    snapshot.jobs.insert(0, Job { state: JobState::Running { placement: h100(), since: Time(-HOUR) }, ..a });
    snapshot.budget = budget(3_300.0);
    assert_eq!(after(&decide(&snapshot, methods::PREEMPTS), "team/heavy"), ["team/a", "team/light"]);
    // when both leave, then it waits for both.
    snapshot.jobs[0].state = stopping(h100(), None);
    snapshot.jobs[2].state = stopping(on(&["n0"], 8), None);
    promised(&mut snapshot.jobs[1], h100());
    for method in methods::all() {
        assert_eq!(after(&decide(&snapshot, method), "team/heavy"), ["team/a", "team/light"], "{method}");
    }
}

/// Two pairs: a job that leaves its node, and one that is promised the node.
fn pairs() -> Snapshot {
    let mut snapshot = cluster(2);
    for (leaves, comes, node) in [("a-leaves", "a-comes", "n0"), ("b-leaves", "b-comes", "n1")] {
        let mut coming = job(comes, 8);
        promised(&mut coming, on(&[node], 8));
        snapshot.jobs.extend([coming, Job { state: stopping(on(&[node], 8), None), ..job(leaves, 8) }]);
    }
    // 5,000 W run all the time.
    snapshot.budget = budget(5_000.0);
    snapshot
}

#[test]
fn who_waits_for_one_job_does_not_wait_for_another() {
    for method in methods::all() {
        let plan = decide(&pairs(), method);
        assert_eq!(after(&plan, "team/a-comes"), ["team/a-leaves"], "{method}");
        assert_eq!(after(&plan, "team/b-comes"), ["team/b-leaves"], "{method}");
        assert!(plan.budgeted_power.0 <= 5_000.0, "{method}: {}", plan.budgeted_power);
    }
}

#[test]
fn what_one_start_takes_of_a_leaving_job_no_other_takes() {
    // Given two jobs that are promised a node each, and one that leaves the watts of one of them,
    let mut snapshot = cluster(3);
    let names = ["first", "second"];
    for (name, node) in names.iter().zip(["n1", "n2"]) {
        let mut coming = job(name, 8);
        promised(&mut coming, on(&[node], 8));
        snapshot.jobs.push(coming);
    }
    snapshot.jobs.push(Job { state: stopping(on(&["n0"], 8), None), ..job("leaves", 8) });
    // and watts for two jobs: 2,500 W each and 400 W for an idle node,
    snapshot.budget = budget(5_400.0);
    for method in methods::all() {
        // then one starts now, and the other one takes those of the job that leaves.
        let plan = decide(&snapshot, method);
        let orders: Vec<_> = names.map(|name| after(&plan, &format!("team/{name}"))).into();
        assert_eq!(orders, [Vec::<String>::new(), vec!["team/leaves".into()]], "{method}");
    }
}

#[test]
fn a_lower_budget_is_met_before_anybody_starts_on_the_watts_of_those_who_leave() {
    // Given three jobs of 2,500 W, of which two leave for a lower budget, and one that needs the GPUs of the first of them,
    let mut snapshot = pairs();
    snapshot.nodes.push(cluster(3).nodes[2].clone());
    snapshot.jobs.push(running(Job { preemption: Preemption::Never, ..job("stays", 8) }, &["n2"], 8));
    snapshot.jobs.retain(|job| job.id.as_str() != "team/b-comes");
    snapshot.budget = budget(5_500.0);
    for method in methods::all() {
        // then it waits for both: with one of them gone there are watts for two.
        let plan = decide(&snapshot, method);
        assert_eq!(after(&plan, "team/a-comes"), ["team/a-leaves", "team/b-leaves"], "{method}");
    }
}

#[test]
fn a_promise_is_withdrawn_if_a_job_in_its_way_stays() {
    for (what, snapshot) in obstacles() {
        // The job that was to leave goes on after all, or does not end.
        let stays = Job { preemption: Preemption::Never, ..snapshot.jobs[1].clone() };
        let silent = JobState::Stopping { holds: on(&["n0"], 8), target: None, gone_by: Time(-100.0) };
        let silent = Job { state: silent, ..snapshot.jobs[1].clone() };
        for light in [stays, silent] {
            let mut snapshot = snapshot.clone();
            let target = target(&snapshot);
            promised(&mut snapshot.jobs[0], target);
            snapshot.jobs[1] = light;
            for method in methods::all() {
                let plan = decide(&snapshot, method);
                let (found, blockers) = reason(&plan, "team/heavy");
                let wanted = match what {
                    "watts" => WaitReason::PowerBudget,
                    "quota" => WaitReason::QuotaExceeded,
                    _ => WaitReason::WaitingForCapacity,
                };
                assert_eq!((found, blockers), (wanted, vec!["team/light".to_owned()]), "{method}, {what}");
                let stops = place(&plan, "team/light").is_none();
                assert!(!stops || snapshot.jobs[1].preemption == Preemption::Allowed, "{method}, {what}");
            }
        }
    }
}

#[test]
fn a_promise_is_withdrawn_before_a_run_is_stopped() {
    // Given a job that is promised watts, which others than our jobs have begun to draw since,
    let mut snapshot = two();
    snapshot.jobs[1].min_run = Seconds(10.0 * HOUR);
    promised(&mut snapshot.jobs[0], h100());
    snapshot.budget = budget(4_000.0);
    for method in methods::all() {
        let plan = decide(&snapshot, method);
        assert_eq!(place(&plan, "team/light"), Some(&on(&["n0"], 8)), "{method}");
        assert_eq!(place(&plan, "team/heavy"), None, "{method}");
    }
}

#[test]
fn a_late_end_is_waited_for_a_minute() {
    let (_, mut snapshot) = obstacles().remove(0);
    promised(&mut snapshot.jobs[0], h100());
    snapshot.jobs[1].state = stopping(on(&["n0"], 8), None);
    for (late, waits) in [(30.0, true), (61.0, false)] {
        snapshot.now = Time(HOUR + late);
        let plan = decide(&snapshot, methods::all()[0]);
        assert_eq!(after(&plan, "team/heavy") == ["team/light"], waits);
        assert_eq!(place(&plan, "team/heavy").is_some(), waits);
    }
}
