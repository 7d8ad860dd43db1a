//! Isolated tenants are not moved at all by what others report. Impossible rows are refused and counted; what a
//! job reports of itself stays with its profile.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use andreas_model::{Configuration, Seconds, Time, Watts};
use andreas_predictor::{Features, Observation, Prediction, Predictor, Profile, Refusal};
use common::{every, family, gpus, on, prior};
use proptest::prelude::*;

/// So many namespaces with four profiles each, of two models.
fn honest(namespaces: usize) -> Vec<Profile> {
    let profile = |i: usize| {
        let mut profile = Profile { name: format!("lab-{:02}/family-{i:03}", i / 4), ..family(i).observed() };
        profile.features.model_family = Some(format!("model-{}", i % 2));
        profile
    };
    (0..4 * namespaces).map(profile).collect()
}

/// Predictions for profiles of `lab-01`: some were seen once, the others never ran.
fn predictions(population: &[Profile]) -> Vec<Prediction> {
    let predictor = Predictor::fit(&gpus(), population);
    let new = |i: usize| {
        let f = family(i);
        let observations = if i.is_multiple_of(3) { Vec::new() } else { vec![f.seen(on("A100", 2, 1), 6.0)] };
        let features = Features { model_family: Some("model-0".to_owned()), ..f.features() };
        Profile { name: format!("lab-01/new-{i}"), observations, features, ..Profile::default() }
    };
    (300..306).flat_map(|i| predictor.predict(&new(i), &prior(), &every())).collect()
}

/// A profile of the liar: times that vary as it likes over types and GPUs.
fn lies(n: usize, by_type: [f64; 3], over_gpus: f64, watts: f64) -> Profile {
    let observations = every().into_iter().enumerate().map(|(i, c)| {
        let t = common::TYPES.iter().position(|t| t.0 == c.gpu_type.as_str()).unwrap();
        let g = f64::from(c.total_gpus().0);
        Observation {
            epoch: Some(Seconds(100.0 * by_type[t] * g.powf(over_gpus))),
            watts_per_gpu: Some(Watts(watts)),
            epochs: 1e5,
            at: Time(1e6 + i as f64),
            configuration: c,
            gpus: None,
            batch: None,
            claimed: false,
        }
    });
    Profile { name: format!("liar/{n}"), observations: observations.collect(), ..Profile::default() }
}

/// Any number: not finite, zero, negative, very large, or plausible.
fn any_number() -> impl Strategy<Value = f64> {
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0, 1e12, 1e-9, f64::MAX];
    prop_oneof![1 => prop::sample::select(odd.to_vec()), 1 => 1e-3..1e6f64]
}

/// Rows of any kind, on configurations with and without a limit.
fn nonsense() -> impl Strategy<Value = Profile> {
    let row = (0..every().len(), any_number(), any_number(), any_number(), any_number());
    (0..40usize, prop::collection::vec(row, 1..60)).prop_map(|(n, rows)| {
        let observation =
            |(i, (at, epoch, watts, epochs, limit)): (usize, (usize, f64, f64, f64, f64))| Observation {
                epoch: Some(Seconds(epoch)),
                watts_per_gpu: Some(Watts(watts)),
                epochs,
                at: Time(1e6 - 1e4 * i as f64),
                configuration: Configuration {
                    limit: (i % 3 == 0).then_some(Watts(limit)),
                    ..every()[at].clone()
                },
                gpus: None,
                batch: (i % 4 == 0).then_some(epoch),
                claimed: false,
            };
        let observations = rows.into_iter().enumerate().map(observation).collect();
        Profile { name: format!("liar/{n}"), observations, ..Profile::default() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn false_measurements_of_one_namespace_do_not_move_another(
        by_type in prop::array::uniform3(0.01..100.0f64),
        over_gpus in -3.0..3.0f64,
        families in 1..60usize,
        namespaces in 2..12usize,
        (parameters, batch) in (1.0..1e4f64, 1.0..4096.0f64),
    ) {
        let mut population = honest(namespaces);
        let before = predictions(&population);
        population.extend((0..families).map(|n| {
            let mut lie = lies(n, by_type, over_gpus, 300.0);
            let model_family = Some("model-0".to_owned());
            lie.features = Features { model_family, parameters: Some(parameters), batch: Some(batch), ..lie.features };
            lie
        }));
        prop_assert_eq!(predictions(&population), before);
    }

    #[test]
    fn nonsense_of_one_namespace_does_not_move_another(
        liars in prop::collection::vec(nonsense(), 1..8),
        namespaces in 2..12usize,
    ) {
        let mut population = honest(namespaces);
        let before = predictions(&population);
        population.extend(liars);
        prop_assert_eq!(predictions(&population), before);
    }
}

#[test]
fn impossible_rows_are_counted() {
    let mut liar = lies(0, [1.0; 3], 1.0, 100.0);
    for (i, row) in liar.observations.iter_mut().enumerate() {
        match i % 5 {
            0 => row.epoch = Some(Seconds(-1.0)),
            1 => row.epoch = Some(Seconds(f64::NAN)),
            2 => row.epoch = Some(Seconds(1e12)),
            3 => row.at = Time(f64::NEG_INFINITY),
            _ => row.watts_per_gpu = Some(Watts(0.0)),
        }
    }
    let predictor = Predictor::fit(&gpus(), &[liar]);
    let counts = &predictor.refused()["liar"];
    let all = [(Refusal::NotANumber, 6), (Refusal::NotPositive, 6), (Refusal::OutOfBounds, 3)];
    assert_eq!(counts.iter().map(|(r, n)| (*r, *n)).collect::<Vec<_>>(), all);
}

#[test]
fn self_reported_rows_count_for_their_own_profile_only() {
    let mut population = honest(20);
    let before = predictions(&population);
    let mut claims = Profile { name: "lab-01/claims".to_owned(), ..lies(0, [1.0, 50.0, 0.1], -0.8, 1_000.0) };
    claims.observations.iter_mut().for_each(|o| o.claimed = true);
    population.push(claims.clone());
    assert_eq!(predictions(&population), before);
    let predictor = Predictor::fit(&gpus(), &population);
    let own = predictor.predict(&claims, &prior(), &[on("A100", 1, 1)]).remove(0);
    assert!((own.epoch.median / 100.0 - 1.0).abs() < 0.2, "{own:?}");
}

#[test]
fn rows_of_one_namespace_are_bounded() {
    let population: Vec<Profile> = (0..100).map(|n| lies(n, [1.0; 3], -0.5, 100.0)).collect();
    let predictor = Predictor::fit(&gpus(), &population);
    assert!(predictor.refused()["liar"][&Refusal::TooMany] >= 900, "{:?}", predictor.refused());
}
