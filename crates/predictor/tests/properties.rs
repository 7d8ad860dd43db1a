//! What holds for every input: finite, no panic, more GPUs never slower and never more than proportionally faster.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::sync::OnceLock;

use andreas_model::{Configuration, GpuCount, Seconds, Time, Watts};
use andreas_predictor::{Features, GpuModel, Observation, Predictor, Prior, Profile, TableRow};
use common::{every, family, gpus, on, prior};
use proptest::prelude::*;

/// Any number at all, with the nasty ones often.
fn wild() -> impl Strategy<Value = f64> {
    let special = prop_oneof![
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(-1.0),
        Just(0.0),
        Just(f64::MAX),
        Just(f64::MIN_POSITIVE)
    ];
    prop_oneof![2 => 0.001..1e7f64, 1 => special]
}

fn gpu_type() -> impl Strategy<Value = andreas_model::GpuType> {
    prop_oneof![Just("A100"), Just("V100"), Just("T4"), Just("unheard-of")].prop_map(Into::into)
}

fn configuration() -> impl Strategy<Value = Configuration> {
    let count = prop_oneof![Just(0u32), 1..17u32, Just(u32::MAX)];
    (gpu_type(), prop_oneof![0..3u32, Just(u32::MAX)], count, prop::option::of(wild())).prop_map(
        |(gpu_type, nodes, g, limit)| Configuration {
            gpu_type,
            nodes,
            gpus_per_node: GpuCount(g),
            limit: limit.map(Watts),
        },
    )
}

fn profile() -> impl Strategy<Value = Profile> {
    let given =
        (gpu_type(), 0..20u32, prop::option::of(0..3u32), prop::option::of(wild()), prop::option::of(wild()))
            .prop_map(|(gpu_type, g, nodes, epoch, power)| TableRow {
                gpu_type,
                gpus: GpuCount(g),
                nodes,
                epoch: epoch.map(Seconds),
                power: power.map(Watts),
            });
    let seen = (configuration(), prop::option::of(wild()), prop::option::of(wild()), wild(), wild())
        .prop_map(|(configuration, epoch, watts, epochs, at)| Observation {
            configuration,
            epoch: epoch.map(Seconds),
            watts_per_gpu: watts.map(Watts),
            epochs,
            at: Time(at),
            gpus: None,
            batch: None,
            claimed: false,
        });
    let features = (prop::option::of(wild()), prop::option::of(wild()), prop::option::of(wild())).prop_map(
        |(p, b, s)| Features { model_family: None, precision: None, parameters: p, batch: b, samples: s },
    );
    let rows = (prop::collection::vec(given, 0..4), features, prop::collection::vec(seen, 0..8));
    ("[a-f]", rows).prop_map(|(name, (given, features, observations))| Profile {
        name,
        given,
        features,
        observations,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_is_finite_whatever_is_asked(
        boards in prop::collection::vec((gpu_type(), wild(), wild()), 0..4),
        population in prop::collection::vec(profile(), 0..14),
        profile in profile(),
        prior in (wild(), wild(), gpu_type(), 0..20u32),
        asked in prop::collection::vec(configuration(), 1..6),
    ) {
        let boards: Vec<GpuModel> = boards.into_iter()
            .map(|(gpu_type, idle, max)| GpuModel { gpu_type, idle: Watts(idle), max: Watts(max) }).collect();
        let (run_time, epochs, gpu_type, g) = prior;
        let prior = Prior { run_time: Seconds(run_time), epochs, gpu_type, gpus: GpuCount(g) };
        let answers = Predictor::fit(&boards, &population).predict(&profile, &prior, &asked);
        prop_assert_eq!(answers.len(), asked.len());
        for p in answers {
            for e in [p.epoch, p.power] {
                let all = [e.median, e.p10(), e.p90(), e.mean(), e.planning_sigma()];
                prop_assert!(all.iter().all(|x| x.is_finite() && *x > 0.0), "{:?}", p);
            }
        }
    }

    #[test]
    fn more_gpus_are_never_slower_and_never_faster_than_their_number(
        learned in 0..3usize,
        seed in 0..500usize,
        seen in prop::collection::vec((0..3usize, 0..4usize), 0..4),
        asked in 0..3usize,
    ) {
        // given: a family known on some configurations of a world where this holds, without noise
        let f = family(seed);
        let name = |i: usize| common::TYPES[i].0;
        let given = seen.iter().map(|(t, g)| f.given(&on(name(*t), 1 << g, 1))).collect();
        let profile = Profile { given, ..f.profile() };
        static FITTED: OnceLock<[Predictor; 3]> = OnceLock::new();
        let fit = |n: usize| Predictor::fit(&gpus(), &(1000..1000 + n).map(|i| family(i).observed()).collect::<Vec<_>>());
        // Tables of its namespace that were off by a factor of two either way.
        let doubted = || {
            let family = |i: usize| {
                let f = family(i);
                let off = if i.is_multiple_of(2) { 2.0 } else { 0.5 };
                let row = |c: &Configuration| {
                    let row = f.given(c);
                    TableRow { epoch: row.epoch.map(|s| Seconds(s.0 * off)), ..row }
                };
                Profile { given: every().iter().map(row).collect(), ..f.observed() }
            };
            Predictor::fit(&gpus(), &(1000..1040).map(family).collect::<Vec<_>>())
        };
        let predictor = &FITTED.get_or_init(|| [fit(0), fit(40), doubted()])[learned];
        // when: asked from 1 to 24 GPUs of one type
        let all: Vec<Configuration> = (1..=24).map(|g| on(name(asked), g, 1)).collect();
        let times: Vec<f64> = predictor.predict(&profile, &prior(), &all).iter().map(|p| p.epoch.median).collect();
        // then
        for (i, pair) in times.windows(2).enumerate() {
            let (g, next) = ((i + 1) as f64, (i + 2) as f64);
            prop_assert!(pair[1] <= pair[0] * (1.0 + 1e-9), "slower from {} to {}: {:?}", g, next, times);
        }
        for (i, t) in times.iter().enumerate() {
            prop_assert!(*t >= times[0] / (i + 1) as f64 * (1.0 - 1e-9), "too fast on {}: {:?}", i + 1, times);
        }
    }

    #[test]
    fn the_table_comes_back_bit_for_bit(seed in 0..500usize, t in 0..3usize, g in 0..5u32) {
        let f = family(seed);
        let c = on(common::TYPES[t].0, 1 << g, 1);
        let profile = Profile { given: vec![f.given(&c)], ..f.profile() };
        let p = Predictor::fit(&gpus(), &[]).predict(&profile, &prior(), std::slice::from_ref(&c)).remove(0);
        prop_assert!((p.epoch.median / f.epoch(&c) - 1.0).abs() < 1e-12);
    }
}
