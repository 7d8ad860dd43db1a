//! The bound for somebody who knows all jobs from the beginning: below every course, and at the cost of one that nothing is in the
//! way of.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use andreas_bounds::{KnownJob, KnownJobs, RunOption};
use andreas_model::{CostRate, EnergyPrice, GpuCount, Seconds, Time, Watts};
use andreas_planner::Lateness;
use proptest::prelude::*;

/// GPUs of the two classes.
const GPUS: [u32; 2] = [4, 6];

fn option((class, gpus, time, power): (usize, u32, f64, f64)) -> RunOption {
    RunOption {
        class,
        gpus: GpuCount(gpus),
        time: Seconds(time),
        power: Watts(power),
        budgeted: Watts(power),
    }
}

/// Some jobs on two classes of nodes, with energy that costs half as much in some slices.
fn known_jobs() -> impl Strategy<Value = KnownJobs> {
    let options = prop::collection::vec((0..2_usize, 1..=4_u32, 60.0..20_000.0_f64, 50.0..2_000.0_f64), 1..5);
    let job = (0.0..30_000.0_f64, prop::option::of(-1_000.0..40_000.0_f64), 0.0..2e-4_f64, options);
    let jobs = prop::collection::vec(job, 1..7);
    let slices = prop::collection::vec((600.0..9_000.0_f64, any::<bool>()), 8);
    (jobs, slices, 0.0..0.3_f64, 0.0..2_000.0_f64).prop_map(|(jobs, slices, turnaround_share, late_fixed)| {
        let mut edges = vec![Time(0.0)];
        edges.extend(slices.iter().scan(0.0_f64, |end, (length, _)| {
            *end += *length;
            Some(Time(*end))
        }));
        let price = |cheap: bool| EnergyPrice::per_kwh(if cheap { 0.1 } else { 0.2 }, 1.0);
        let jobs = jobs.into_iter().map(|(submit, due, weight, options)| KnownJob {
            submit: Time(submit),
            deadline: due.map(|due| Time(submit + due)),
            weight: CostRate(weight),
            options: options.into_iter().map(option).collect(),
        });
        KnownJobs {
            edges,
            prices: slices.iter().map(|(_, cheap)| price(*cheap)).collect(),
            gpus: GPUS.map(GpuCount).to_vec(),
            watts: Watts(f64::INFINITY),
            lateness: Lateness { turnaround_share, late_fixed: Seconds(late_fixed), aging: None },
            jobs: jobs.collect(),
        }
    })
}

/// What a run costs: energy at the price of each slice, the lowest one after them, and its lateness.
fn cost(known: &KnownJobs, job: &KnownJob, option: &RunOption, begin: f64) -> f64 {
    let end = begin + option.time.0;
    let lowest = known.prices.iter().map(|price| price.0).fold(f64::INFINITY, f64::min);
    let mut money = (end - begin.max(known.edges.last().unwrap().0)).max(0.0) * lowest;
    for (edges, price) in known.edges.windows(2).zip(&known.prices) {
        money += (end.min(edges[1].0) - begin.max(edges[0].0)).max(0.0) * price.0;
    }
    let late = job.deadline.map_or(0.0, |deadline| (end - deadline.0).max(0.0));
    let missed = if late > 0.0 { known.lateness.late_fixed.0 } else { 0.0 };
    let share = known.lateness.share(job.deadline.is_some());
    money * option.power.0 + job.weight.0 * (late + missed + share * (end - job.submit.0))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_course_costs_less_than_the_bound(
        known in known_jobs(),
        picks in prop::collection::vec((0..100_usize, 0..100_usize, 0.0..5_000.0_f64), 7),
    ) {
        // Given jobs that are placed in any order and configuration, each as soon as there is room, or a little later,
        let mut order: Vec<usize> = (0..known.jobs.len()).collect();
        order.sort_by_key(|job| picks[*job].0);
        let mut placed: Vec<(f64, f64, usize, u32)> = Vec::new();
        let mut total = 0.0;
        for at in order {
            let job = &known.jobs[at];
            let option = &job.options[picks[at].1 % job.options.len()];
            let room = |begin: f64| {
                let meets = |other: &&(f64, f64, usize, u32)| {
                    other.2 == option.class && other.0 < begin + option.time.0 && begin < other.1
                };
                let others: Vec<_> = placed.iter().filter(meets).collect();
                let instants = others.iter().map(|other| other.0.max(begin)).chain([begin]);
                instants.into_iter().all(|instant| {
                    let there = others.iter().filter(|other| other.0 <= instant && instant < other.1);
                    there.map(|other| other.3).sum::<u32>() + option.gpus.0 <= GPUS[option.class]
                })
            };
            let earliest = job.submit.0 + if picks[at].1 % 2 == 0 { picks[at].2 } else { 0.0 };
            let mut begins: Vec<f64> = placed.iter().map(|other| other.1).filter(|end| *end > earliest).collect();
            begins.push(earliest);
            begins.sort_by(f64::total_cmp);
            let begin = begins.into_iter().find(|begin| room(*begin)).unwrap();
            placed.push((begin, begin + option.time.0, option.class, option.gpus.0));
            total += cost(&known, job, option, begin);
        }
        // then they do not cost less than the bound, however long it is sought.
        for rounds in [1, 40] {
            let bound = known.bound(rounds).0;
            prop_assert!(bound <= total * (1.0 + 1e-9), "{total} is below {bound} of {rounds} rounds");
        }
    }
}

/// Jobs of an hour on all GPUs of the first class, submitted together, and how many times the cost of as many that are alone their
/// bound is.
fn above_alone(jobs: usize, rounds: usize) -> f64 {
    let job = KnownJob {
        submit: Time(100.0),
        deadline: None,
        weight: CostRate(1e-3),
        options: vec![option((0, GPUS[0], 3_600.0, 10.0))],
    };
    let known = KnownJobs {
        edges: (0..50).map(|slice| Time(f64::from(slice) * 300.0)).collect(),
        prices: vec![EnergyPrice::per_kwh(0.2, 1.0); 49],
        gpus: GPUS.map(GpuCount).to_vec(),
        watts: Watts(f64::INFINITY),
        lateness: Lateness { turnaround_share: 0.1, late_fixed: Seconds(900.0), aging: None },
        jobs: vec![job.clone(); jobs],
    };
    known.bound(rounds).0 / (jobs as f64 * cost(&known, &job, &job.options[0], 100.0))
}

#[test]
fn a_job_that_nothing_is_in_the_way_of_costs_its_bound() {
    assert!((above_alone(1, 10) - 1.0).abs() < 1e-9, "{}", above_alone(1, 10));
}

#[test]
fn jobs_that_are_in_each_others_way_raise_the_bound() {
    // One of two waits for an hour: half as long again in the mean.
    let above = above_alone(2, 60);
    assert!((1.2..=1.5).contains(&above), "{above}");
}
