use proptest::prelude::*;

use super::*;
use andreas_api::gpu_node::{GpuCondition, GpuState};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000 + seconds).unwrap()
}

fn gpus(a: (Option<&str>, i64), b: (Option<&str>, i64)) -> BTreeMap<Uuid, GpuReading> {
    let reading = |(holder, joules): (Option<&str>, i64)| GpuReading {
        holder: holder.map(|name| ("team".to_owned(), name.to_owned())),
        joules: Some(joules),
        estimated: false,
        lost: false,
    };
    BTreeMap::from([("GPU-a".to_owned(), reading(a)), ("GPU-b".to_owned(), reading(b))])
}

fn released(pod: &str, since: i64, joules: i64, seconds: i64, gpus: i32) -> ReleasedEnergy {
    let since = Some(Time(at(since)));
    ReleasedEnergy { pod: pod.into(), since, joules, seconds, gpus, estimated: false }
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
    // A counter that decreases: the second pod's energy is unknown.
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
        watts: None,
        joules: None,
        held_from: Some(from),
        held_since: Some(Time(at(0))),
        counter_base: None,
        board_watts: None,
        min_limit_watts: None,
        max_limit_watts: None,
        problems: Vec::new(),
        unhealthy_since: None,
        parked: Vec::new(),
        shares: Vec::new(),
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

#[test]
fn a_share_survives_what_an_earlier_agent_counted_and_says_where_it_estimates() {
    let mut shares = EnergyAttribution::default();
    shares.update(&gpus((Some("x"), 100), (Some("z"), 100)), at(0));
    // The API server's response: the counter had begun anew before, at 1,000 J.
    shares.shift_counter("GPU-a", 1_000);
    let mut next = gpus((Some("x"), 1_200), (Some("z"), 200));
    if let Some(reading) = next.get_mut("GPU-a") {
        reading.estimated = true;
    }
    shares.update(&next, at(1));
    shares.update(&gpus((None, 1_300), (None, 300)), at(2));
    let estimated = ReleasedEnergy { estimated: true, ..released("team/x", 0, 200, 2, 1) };
    assert_eq!(shares.released(), [estimated, released("team/z", 0, 200, 2, 1)]);
}

#[test]
fn a_share_with_energy_that_nothing_tells_is_no_share() {
    for (at_begin, lost, at_end, reported) in [
        (true, false, true, true),
        (false, false, true, false),
        (true, true, true, false),
        (true, false, false, false),
    ] {
        let mut shares = EnergyAttribution::default();
        let mut step = |holder, joules, read: bool, lost, second| {
            let mut readings = gpus((holder, joules), (None, 0));
            let reading = readings.get_mut("GPU-a").unwrap();
            (reading.joules, reading.lost) = (reading.joules.filter(|_| read), lost);
            shares.update(&readings, at(second));
        };
        step(Some("x"), 100, at_begin, false, 0);
        // A reading that is missing in between changes nothing.
        step(Some("x"), 0, false, lost, 1);
        step(None, 300, at_end, false, 2);
        assert_eq!(!shares.released().is_empty(), reported);
    }
}

proptest! {
    /// Over any sequence of holders: the pods' joules and the joules of nobody are the node's.
    #[test]
    fn the_sum_over_pods_and_idle_is_what_the_node_drew(
        steps in proptest::collection::vec(((0..3_usize, 0..1_000_i64), (0..3_usize, 0..1_000_i64)), 1..30),
    ) {
        let pods = [None, Some("x"), Some("y")];
        let (mut shares, mut idle, mut counters) = (EnergyAttribution::default(), 0, [50, 70]);
        let first = counters;
        let mut holders = [None, None];
        let mut sum = 0;
        for (second, (a, b)) in (0..).zip(&steps) {
            for (gpu, (holder, joules)) in [a, b].into_iter().enumerate() {
                counters[gpu] += joules;
                idle += if holders[gpu].is_none() { *joules } else { 0 };
                holders[gpu] = pods[*holder];
            }
            shares.update(&gpus((holders[0], counters[0]), (holders[1], counters[1])), at(second));
            sum += shares.released().iter().map(|entry| entry.joules).sum::<i64>();
            shares.released.clear();
        }
        shares.update(&gpus((None, counters[0]), (None, counters[1])), at(100));
        sum += shares.released().iter().map(|entry| entry.joules).sum::<i64>();
        prop_assert_eq!(sum + idle, counters[0] - first[0] + counters[1] - first[1]);
    }
}
