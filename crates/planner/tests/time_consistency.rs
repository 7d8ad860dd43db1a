//! What is charged for running now is charged for running later: no job waits for a better place that it could
//! have now.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

mod scenarios;
#[allow(dead_code, reason = "the other tests use the rest of it")]
mod world;

use andreas_model::{GpuCount, Seconds, StepFunction, Time, Watts};
use andreas_planner::{
    Estimate, GpuTypeInfo, IntendedChange, Job, JobState, LimitEffect, MethodName, Node, Options, Placement,
    Preemption, Snapshot, Worker, plan,
};
use proptest::prelude::*;
use scenarios::{HOUR, budget, cluster, job, on, place, running};

/// Up to three running jobs, each alone on its node, and twelve free nodes of each type. Nothing is scarce, the
/// tariff is flat, and times are exact.
fn roomy(mut snapshot: Snapshot, gpus: &[u32]) -> Snapshot {
    snapshot.tariff = StepFunction::flat(snapshot.tariff.at(snapshot.now).unwrap());
    snapshot.budget = None;
    snapshot.namespaces.clear();
    let types: Vec<_> = snapshot.gpu_types.iter().map(|kind| kind.name.clone()).collect();
    snapshot.nodes =
        (0..36).map(|i| Node::new(format!("n{i:02}").into(), types[i % 3].clone(), GpuCount(8))).collect();
    snapshot.jobs.truncate(3);
    for (i, job) in snapshot.jobs.iter_mut().enumerate() {
        job.preemption = Preemption::Allowed;
        (job.movable, job.min_run) = (true, Seconds::ZERO);
        (job.candidates, job.forbidden, job.worker) = (None, vec![], Worker::default());
        job.estimates = job.estimates.iter().map(|row| Estimate { rel_std: 0.0, ..row.clone() }).collect();
        let kind = job.estimates[0].gpu_type.clone();
        let at = types.iter().position(|name| *name == kind).unwrap();
        let placement = Placement {
            gpu_type: kind,
            nodes: vec![format!("n{:02}", 3 * i + at).into()],
            gpus_per_node: GpuCount(gpus[i]),
            limit: None,
        };
        job.state = JobState::Running { placement, since: Time(snapshot.now.0 - 5000.0) };
    }
    snapshot
}

/// A way to run: seconds, seconds of these that a power limit adds, watts.
type Way = (f64, f64, f64);

fn ways(job: &Job) -> Vec<(Way, Option<Watts>, &Estimate)> {
    let mut ways = Vec::new();
    for row in job.estimates.iter() {
        let plain = job.epochs_left * row.epoch.0;
        let spans = job.spread.iter().filter(|s| row.gpus.0 % s.nodes == 0).map(|s| s.time_factor);
        for time in std::iter::once(1.0).chain(spans).map(|factor| plain * factor) {
            ways.push(((time, 0.0, row.power.0), None, row));
            for limit in job.limits.iter().filter(|limit| limit.gpu_type == row.gpu_type) {
                let slowed = time * (limit.time_factor - 1.0);
                let way = (time + slowed, slowed, row.power.0 * limit.power_factor);
                ways.push((way, Some(limit.limit), row));
            }
        }
    }
    ways
}

/// Money per second late, aged as documented.
fn weight(snapshot: &Snapshot, job: &Job) -> f64 {
    let late = (snapshot.now - job.deadline.unwrap_or(job.submit)).0.max(0.0);
    job.weight.0 * snapshot.lateness.aging.map_or(1.0, |aging| (1.0 + late / aging.0).min(10.0))
}

/// Share of the weight that a second in the system costs.
fn share(snapshot: &Snapshot, job: &Job) -> f64 {
    match job.deadline {
        Some(_) => snapshot.lateness.turnaround_share,
        None => snapshot.lateness.turnaround_share.max(0.1),
    }
}

/// Share of the weight that a second of waiting costs: twice one in the system, or twice as much of a fifth as the
/// fastest way needs of the time left; at most a fifth, but at least one in the system.
fn waiting(snapshot: &Snapshot, job: &Job) -> f64 {
    let fastest = ways(job).into_iter().map(|((time, ..), ..)| time).fold(f64::INFINITY, f64::min);
    let left = job.deadline.map_or(f64::INFINITY, |deadline| (deadline - snapshot.now).0);
    let needed = if fastest < left { fastest / left } else { 1.0 };
    let share = share(snapshot, job);
    share.max((2.0 * share).max(0.4 * needed).min(0.2))
}

/// Cost of the rest of a job that loses some seconds first, as documented: energy, tardiness, a miss, time in
/// the system; the seconds that are lost or added by a limit at the price of waiting.
fn remaining(snapshot: &Snapshot, job: &Job, (time, slowed, watts): Way, lost: f64) -> f64 {
    let price = snapshot.tariff.at(snapshot.now).unwrap().0;
    let share = share(snapshot, job);
    let late = job.deadline.map_or(0.0, |deadline| {
        let over = (snapshot.now + Seconds(lost + time) - deadline).0;
        if over > 0.0 { over + snapshot.lateness.late_fixed.0 } else { 0.0 }
    });
    let in_system = share * (time - slowed) + waiting(snapshot, job) * (lost + slowed);
    watts * price * (lost + time) + weight(snapshot, job) * (late + in_system)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_job_stays_where_it_costs_more_than_a_restart_above_the_best_move(
        snapshot in world::snapshots(),
        gpus in prop::collection::vec(prop::sample::select(vec![1_u32, 2, 4, 8]), 3),
    ) {
        let snapshot = roomy(snapshot, &gpus);
        let plan = plan(&snapshot, &Options::default()).unwrap();
        let prices = plan.prices.as_ref().unwrap();
        prop_assume!(prices.values.values().flatten().all(|price| *price <= 0.0));
        let price = snapshot.tariff.at(snapshot.now).unwrap().0;
        for job in &snapshot.jobs {
            let JobState::Running { placement, .. } = &job.state else { unreachable!() };
            let Some(goes) = plan.jobs[&job.id].decision.placement().filter(|p| p.same_gpus(placement)) else {
                continue;
            };
            let ways = ways(job);
            let here = |(_, limit, row): &&(Way, Option<Watts>, &Estimate)| {
                *limit == goes.limit && row.gpu_type == goes.gpu_type && row.gpus == goes.total_gpus()
            };
            let Some((stays, ..)) = ways.iter().find(here) else { continue };
            let cost = remaining(&snapshot, job, *stays, 0.0);
            for (way, limit, row) in &ways {
                let lost = snapshot.restart.0 + job.lost.0 * way.0 / stays.0;
                let late = job.deadline.is_some_and(|deadline| snapshot.now + Seconds(way.0) > deadline);
                let second = weight(&snapshot, job) * (waiting(&snapshot, job) + f64::from(u8::from(late)));
                let wear = snapshot.wear.0 * (1.0 + f64::from(job.restarts_last_day)) * (second + way.2 * price);
                let best = remaining(&snapshot, job, *way, lost) + wear;
                prop_assert!(
                    cost <= best + 1e-3 * cost,
                    "{} stays at {cost} on {goes:?}; {best} with a restart to {} {} at {limit:?}",
                    job.id, row.gpus.0, row.gpu_type
                );
            }
        }
    }
}

/// A node of a slow and one of a fast type; a job runs on the slow one. The fast GPUs have a power limit.
fn slow_and_fast() -> Snapshot {
    let mut snapshot = cluster(2);
    snapshot.gpu_types.push(andreas_planner::GpuTypeInfo {
        name: "T4".into(),
        idle: Watts(10.0),
        max: Watts(100.0),
    });
    snapshot.nodes[1].gpu_type = "T4".into();
    let row = |kind: &str, hours: f64, watts: f64| {
        Estimate::new(kind.into(), GpuCount(8), Seconds(hours * HOUR / 10.0), Watts(watts))
    };
    let limit =
        LimitEffect { gpu_type: "A100".into(), limit: Watts(200.0), time_factor: 1.045, power_factor: 0.7 };
    let slow = Job {
        estimates: [row("A100", 100.0, 2400.0), row("T4", 200.0, 560.0)].into(),
        limits: vec![limit],
        deadline: Some(Time(-HOUR)),
        ..job("slow", 8)
    };
    snapshot.jobs = vec![running(slow, &["n1"], 8)];
    let JobState::Running { placement, .. } = &mut snapshot.jobs[0].state else { unreachable!() };
    placement.gpu_type = "T4".into();
    snapshot
}

#[test]
fn a_late_job_leaves_slow_gpus_for_fast_ones_that_have_a_power_limit() {
    // Given a late job on slow GPUs beside free fast ones that a power limit makes cheaper still,
    let snapshot = slow_and_fast();
    // then it moves now, instead of planning to move later at every decision.
    let plan = plan(&snapshot, &Options::default()).unwrap();
    assert_eq!(place(&plan, "team/slow").map(|place| &place.nodes), Some(&on(&["n0"], 8).nodes));
    assert_eq!(plan.intended, vec![]);
}

#[test]
fn a_fully_aged_job_leaves_slow_gpus_and_takes_a_limit_that_saves_like_any_other() {
    // Given that job late by so much that it is served before all others,
    let mut snapshot = slow_and_fast();
    snapshot.lateness.aging = Some(Seconds(HOUR / 9.0));
    for free in [true, false] {
        // then it leaves for the fast ones that are free,
        let plan = plan(&snapshot, &Options::default()).unwrap();
        let there = place(&plan, "team/slow").unwrap();
        assert_eq!(there.nodes == on(&["n0"], 8).nodes, free, "{there:?}");
        // but not for those of somebody else.
        snapshot.jobs.push(running(job("there", 8), &["n0"], 8));
    }
    // And on fast ones it gets the limit once energy is dear.
    snapshot.jobs.truncate(1);
    snapshot.jobs[0].estimates = snapshot.jobs[0].estimates[..1].into();
    let placement = Placement { gpu_type: "A100".into(), ..on(&["n0"], 8) };
    snapshot.jobs[0].state = JobState::Running { placement, since: Time(-HOUR) };
    snapshot.tariff = StepFunction::flat(andreas_model::EnergyPrice::per_kwh(2.0, 1.3));
    let plan = plan(&snapshot, &Options::default()).unwrap();
    assert_eq!(place(&plan, "team/slow"), Some(&Placement { limit: Some(Watts(200.0)), ..on(&["n0"], 8) }));
}

#[test]
fn an_intended_change_is_part_of_the_plan_and_made_when_it_is_due() {
    // Given the fast GPUs in use for another hour by a job that may not be moved,
    let mut snapshot = slow_and_fast();
    let there = Job { preemption: Preemption::Never, ..job("there", 8) };
    snapshot.jobs.push(running(there, &["n0"], 8));
    let first = plan(&snapshot, &Options::default()).unwrap();
    // then the late job stays until then and says so,
    assert_eq!(place(&first, "team/slow").map(|place| &place.nodes), Some(&on(&["n1"], 8).nodes));
    let [IntendedChange { job, at, gpu_type, .. }] = first.intended.as_slice() else {
        panic!("{:?}", first.intended)
    };
    assert_eq!((job.as_str(), gpu_type.as_str()), ("team/slow", "A100"));
    assert!(at.0 >= HOUR - 1.0, "{at:?}");
    assert!(first.next_event.is_some_and(|next| next <= *at));
    // and a decision meanwhile keeps the instant;
    snapshot.now = Time(600.0);
    snapshot.jobs[1].epochs_left = 10.0 * (1.0 - 600.0 / HOUR);
    (snapshot.prices, snapshot.intended) = (first.prices.clone(), first.intended.clone());
    let second = plan(&snapshot, &Options::default()).unwrap();
    assert!(second.intended.iter().all(|change| change.at <= *at), "{:?}", second.intended);
    // when the other job has ended, the change is made.
    snapshot.now = *at;
    snapshot.jobs.pop();
    (snapshot.prices, snapshot.intended) = (second.prices, second.intended);
    let third = plan(&snapshot, &Options::default()).unwrap();
    assert_eq!(place(&third, "team/slow").map(|place| &place.nodes), Some(&on(&["n0"], 8).nodes));
}

#[test]
fn a_change_that_is_worth_a_restart_but_not_its_wear_is_not_made() {
    // Given a job that would gain nearly an hour of 200 by moving, and a restart that wears so much,
    let mut snapshot = slow_and_fast();
    snapshot.wear = Seconds(1e7);
    let stays = plan(&snapshot, &Options::default()).unwrap();
    assert_eq!(place(&stays, "team/slow").map(|place| &place.nodes), Some(&on(&["n1"], 8).nodes));
    // or a restart of this job alone that takes so long,
    (snapshot.wear, snapshot.jobs[0].restart) = (Seconds::ZERO, Some(Seconds(1e7)));
    let stays = plan(&snapshot, &Options::default()).unwrap();
    assert_eq!(place(&stays, "team/slow").map(|place| &place.nodes), Some(&on(&["n1"], 8).nodes));
    // or a wear that is worth it once, but not the seventh time,
    (snapshot.wear, snapshot.jobs[0].restart) = (Seconds(8.0 * HOUR), None);
    for (restarts, stays) in [(0, false), (6, true)] {
        snapshot.jobs[0].restarts_last_day = restarts;
        let decided = plan(&snapshot, &Options::default()).unwrap();
        let there = place(&decided, "team/slow").map(|place| &place.nodes) == Some(&on(&["n1"], 8).nodes);
        assert_eq!(there, stays, "after {restarts}");
    }
    // or one that is worth it once, but not of a run that has just started,
    snapshot.jobs[0].restarts_last_day = 0;
    snapshot.wear = Seconds(8.0 * HOUR);
    let JobState::Running { since, .. } = snapshot.jobs[0].state else { panic!("it does not run") };
    snapshot.restart = Seconds(120.0);
    for (age, stays) in [(100.0, true), (130.0, false)] {
        snapshot.now = since + Seconds(age);
        let decided = plan(&snapshot, &Options::default()).unwrap();
        let there = place(&decided, "team/slow").map(|place| &place.nodes) == Some(&on(&["n1"], 8).nodes);
        assert_eq!(there, stays, "{age} s old");
    }
    // or eight restarts within the last day, then it stays.
    (snapshot.wear, snapshot.jobs[0].restarts_last_day) = (Seconds::ZERO, 8);
    let stays = plan(&snapshot, &Options::default()).unwrap();
    assert_eq!(place(&stays, "team/slow").map(|place| &place.nodes), Some(&on(&["n1"], 8).nodes));
    snapshot.jobs[0].restarts_last_day = 7;
    let moves = plan(&snapshot, &Options::default()).unwrap();
    assert_eq!(place(&moves, "team/slow").map(|place| &place.nodes), Some(&on(&["n0"], 8).nodes));
}

#[test]
fn a_change_without_room_now_aims_at_a_start_at_which_nothing_happens_and_the_job_is_kept() {
    // Given a job that is in time on eight GPUs alone, a node with two free ones and one that is free in an hour,
    let mut snapshot = cluster(2);
    (snapshot.restart, snapshot.wear) = (Seconds(10.0), Seconds::ZERO);
    let row = |gpus: u32, hours: f64| {
        Estimate::new(
            "A100".into(),
            GpuCount(gpus),
            Seconds(hours * HOUR / 10.0),
            Watts(300.0 * f64::from(gpus)),
        )
    };
    let never = |job: Job| Job { preemption: Preemption::Never, ..job };
    let elastic = Job {
        estimates: [row(2, 4.0), row(8, 1.0)].into(),
        deadline: Some(Time(2.1 * HOUR)),
        weight: andreas_model::CostRate(0.01),
        ..job("elastic", 2)
    };
    snapshot.jobs = vec![
        running(never(job("short", 8)), &["n0"], 8),
        running(never(Job { epochs_left: 400.0, ..job("long", 6) }), &["n1"], 6),
        elastic.clone(),
    ];
    let first = plan(&snapshot, &Options::default()).unwrap();
    assert_eq!(place(&first, "team/elastic"), Some(&on(&["n1"], 2)));
    // when that plan is carried out, also ten minutes later,
    for minutes in [0.0, 10.0] {
        snapshot.now = Time(60.0 * minutes);
        snapshot.jobs[0].epochs_left = 10.0 - minutes / 6.0;
        snapshot.jobs[2] = running(Job { epochs_left: 10.0 - minutes / 24.0, ..elastic.clone() }, &["n1"], 2);
        let next = plan(&snapshot, &Options::default()).unwrap();
        // then the job goes on, and means to change when there is room.
        assert_eq!(place(&next, "team/elastic"), Some(&on(&["n1"], 2)));
        let change = next.intended.iter().find(|change| change.job.as_str() == "team/elastic").unwrap();
        assert!((HOUR - 1.0..2.0 * HOUR).contains(&change.at.0), "{:?}", change.at);
    }
}

/// GPUs that another job keeps to its end are nobody else's before, however little that job would pay for them.
#[test]
fn no_job_waits_for_gpus_that_another_keeps_until_it_is_too_late() {
    // Given fast GPUs that are free and slow ones that a light job keeps for an hour: it may not be moved, or not yet.
    let mut held = slow_and_fast();
    held.lateness.turnaround_share = 0.0;
    let kept = [
        Job { preemption: Preemption::Never, ..job("there", 8) },
        Job { movable: false, ..job("there", 8) },
        Job { restarts_last_day: 8, ..job("there", 8) },
    ];
    let row =
        |kind: &str, watts: f64| Estimate::new(kind.into(), GpuCount(8), Seconds(HOUR / 10.0), Watts(watts));
    let cases = [(20.0, false), (2.5, true), (1.5, true)];
    for (kept, (hours, starts)) in kept.iter().flat_map(|kept| cases.map(|case| (kept, case))) {
        let mut snapshot = held.clone();
        let there = Job {
            estimates: [row("A100", 2400.0), row("T4", 560.0)].into(),
            weight: andreas_model::CostRate(1e-6),
            ..kept.clone()
        };
        let comes = Job {
            estimates: [row("A100", 2400.0), row("T4", 560.0)].into(),
            weight: andreas_model::CostRate(10.0 / HOUR),
            deadline: Some(Time(hours * HOUR)),
            ..job("comes", 8)
        };
        snapshot.jobs = vec![running(there, &["n1"], 8), comes];
        let JobState::Running { placement, .. } = &mut snapshot.jobs[0].state else { unreachable!() };
        placement.gpu_type = "T4".into();
        // When this is decided, then a job with little time starts where it can now,
        let decided = plan(&snapshot, &Options::default()).unwrap();
        let placed = place(&decided, "team/comes").map(|placement| placement.gpu_type.to_string());
        assert_eq!(placed.as_deref(), starts.then_some("A100"), "{hours} h, {:?}", kept.preemption);
        // and one with much of it waits for the others, no longer than they are kept.
        if !starts {
            let begin = decided.next_event.unwrap().0;
            assert!((0.9 * HOUR..=2.0 * HOUR).contains(&begin), "{begin}");
        }
    }
}

/// A job that may have a fast board that the power budget can never hold, or a slow one that it can, does not wait
/// for the fast one: no instant comes at which it could start there.
#[test]
fn no_job_waits_for_watts_that_no_budget_ever_has() {
    // Given an idle cluster whose budget leaves less than the fast board takes,
    let mut snapshot = cluster(1);
    snapshot.gpu_types.push(GpuTypeInfo { name: "T4".into(), idle: Watts(10.0), max: Watts(70.0) });
    snapshot.nodes.push(Node::new("t".into(), "T4".into(), GpuCount(4)));
    snapshot.budget = budget(440.0 + 1000.0);
    // and jobs of minutes that are ten times as fast there,
    snapshot.jobs = (0..4)
        .map(|i| {
            let row = |kind: &str, epoch: f64, watts: f64| {
                Estimate::new(kind.into(), GpuCount(4), Seconds(epoch), Watts(watts))
            };
            let rows = [row("A100", 6.0, 1400.0), row("T4", 60.0, 250.0)];
            Job { estimates: rows.into(), ..job(&format!("j{i}"), 4) }
        })
        .collect();
    // when this is decided again and again,
    for _ in 0..3 {
        let decided = plan(&snapshot, &Options::default()).unwrap();
        // then one of them runs on the slow one.
        let runs = decided.jobs.values().filter_map(|job| job.decision.placement());
        let kinds: Vec<String> = runs.map(|placement| placement.gpu_type.to_string()).collect();
        assert_eq!(kinds, ["T4"]);
        snapshot.now = snapshot.now + Seconds(30.0);
        (snapshot.prices, snapshot.intended) = (decided.prices, decided.intended);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, max_global_rejects: 100_000, ..ProptestConfig::default() })]

    /// On an idle cluster with a flat tariff and a flat budget something starts where anything fits: nothing would
    /// be different at the next decision.
    #[test]
    fn an_idle_cluster_does_not_wait(mut snapshot in world::snapshots(), watts in 1000.0..9000.0_f64) {
        snapshot.tariff = StepFunction::flat(snapshot.tariff.at(snapshot.now).unwrap());
        snapshot.budget = budget(watts);
        snapshot.lateness.aging = None;
        for job in &mut snapshot.jobs {
            job.state = JobState::Waiting;
        }
        let fifo = Options { method: MethodName::Fifo, ..Options::default() };
        let starts = |options: &Options| {
            let decided = plan(&snapshot, options).unwrap();
            decided.jobs.values().filter(|job| job.decision.placement().is_some()).count()
        };
        prop_assume!(starts(&fifo) > 0);
        prop_assert!(starts(&Options::default()) > 0);
    }
}
