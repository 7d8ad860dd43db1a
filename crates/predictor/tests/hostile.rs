//! A namespace that lies moves the others' predictions by at most 2 %, and the ends of their intervals by little (8 % of an end that may lie ten times off); what cannot be true is
//! refused and counted; what a job says of itself stays with it.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use andreas_core::{Configuration, GpuCount, Seconds, Time, Watts};
use andreas_predictor::{Estimate, Features, Observation, Prediction, Predictor, Profile, Refusal, together};
use common::{every, family, gpus, on, prior};
use proptest::prelude::*;

/// So many namespaces with four families each, as their clusters came to know them; the one that asks has ten more.
fn honest(namespaces: usize) -> Vec<Profile> {
    let lab = |i: usize| if i < 80 { i / 4 } else { 1 };
    let there = |i: &usize| *i >= 80 || lab(*i) < namespaces;
    (0..90)
        .filter(there)
        .map(|i| Profile { name: format!("lab-{:02}/family-{i:03}", lab(i)), ..family(i).observed() })
        .collect()
}

/// What the honest think of families, on all configurations: of such that were seen on one, and of such that never ran.
fn predictions_of(predictor: &Predictor, described: impl Fn(Profile, usize) -> Profile) -> Vec<Prediction> {
    let families = (300..312).map(|i| {
        let f = family(i);
        let seen = if i % 3 == 0 { Vec::new() } else { vec![f.seen(on("A100", 2, 1), 6.0)] };
        described(Profile { name: format!("lab-01/new-{i}"), observations: seen, ..f.profile() }, i)
    });
    families.flat_map(|p| predictor.predict(&p, &prior(), &every())).collect()
}

fn predictions(predictor: &Predictor) -> Vec<Prediction> {
    predictions_of(predictor, |p, i| Profile { features: family(i).features(), ..p })
}

/// One of two models, with a batch.
fn modelled(mut profile: Profile, number: usize) -> Profile {
    profile.features.model_family = Some(format!("model-{}", number % 2));
    profile.features.batch = Some(256.0);
    for row in &mut profile.observations {
        row.batch = Some(256.0);
    }
    profile
}

/// By how much medians and ends of intervals moved at most.
fn largest_moves(before: &[Prediction], after: &[Prediction]) -> (f64, f64) {
    let largest = |of: fn(&Estimate) -> [f64; 2]| {
        let values = |all: &[Prediction]| -> Vec<f64> {
            all.iter().flat_map(|p| [&p.epoch, &p.power]).flat_map(of).collect()
        };
        let moves = values(before).into_iter().zip(values(after)).map(|(a, b)| (b / a - 1.0).abs());
        moves.fold(0.0, f64::max)
    };
    (largest(|e| [e.median; 2]), largest(|e| [e.low(), e.high()]))
}

fn hardly_moved(before: &[Prediction], after: &[Prediction]) -> Result<(), TestCaseError> {
    let (medians, ends) = largest_moves(before, after);
    prop_assert!(medians <= 0.02, "medians moved by {:.4}", medians);
    prop_assert!(ends <= 0.08, "ends of intervals moved by {:.4}", ends);
    Ok(())
}

/// A family of the liar: times that go as it likes over types and GPUs.
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

/// A number as a liar might post it: not a number, nothing, below nothing, 10^12, or nearly right.
fn any_number() -> impl Strategy<Value = f64> {
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0, -1e12, 1e12, 1e-9, f64::MAX];
    prop_oneof![1 => prop::sample::select(odd.to_vec()), 1 => 1e-3..1e6f64]
}

/// Place, time, watts, epochs, limit, GPUs.
type Wild = (usize, f64, f64, f64, f64, Option<u32>);

/// Rows of every kind of nonsense, on configurations that there are and that there are not, with a clock that runs backwards.
fn nonsense() -> impl Strategy<Value = Profile> {
    let row =
        (0..every().len(), any_number(), any_number(), any_number(), any_number(), prop::option::of(0..9u32));
    let rows = prop::collection::vec(row, 1..60);
    (0..40usize, rows).prop_map(|(n, rows)| {
        let observation = |(i, row): (usize, Wild)| Observation {
            epoch: Some(Seconds(row.1)),
            watts_per_gpu: Some(Watts(row.2)),
            epochs: row.3,
            at: Time(1e6 - 1e4 * i as f64),
            configuration: Configuration {
                limit: (i % 3 == 0).then_some(Watts(row.4)),
                ..every()[row.0].clone()
            },
            gpus: row.5.map(GpuCount),
            batch: (i % 4 == 0).then_some(row.1),
            claimed: false,
        };
        Profile {
            name: format!("liar/{n}"),
            observations: rows.into_iter().enumerate().map(observation).collect(),
            ..Profile::default()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_namespace_of_lies_moves_the_others_by_two_per_cent_at_most(
        by_type in prop::array::uniform3(0.01..100.0f64),
        over_gpus in -3.0..3.0f64,
        watts in 1.0..5_000.0f64,
        families in 1..60usize,
        namespaces in 2..=20usize,
    ) {
        let mut population = honest(namespaces);
        let before = predictions(&Predictor::fit(&gpus(), &population));
        population.extend((0..families).map(|n| lies(n, by_type, over_gpus, watts)));
        hardly_moved(&before, &predictions(&Predictor::fit(&gpus(), &population)))?;
    }

    /// As fast and as scalable as others are, only not quite: what is taken for true.
    #[test]
    fn plausible_lies_move_the_others_by_two_per_cent_at_most(
        by_type in (20.0..45.0f64, 50.0..100.0f64, 27.0..75.0f64).prop_map(|(a, b, c)| [a, b, c]),
        over_gpus in -1.1..-0.4f64,
        watts in 1.0..5_000.0f64,
        families in 1..60usize,
        namespaces in 2..=20usize,
    ) {
        let mut population = honest(namespaces);
        let before = predictions(&Predictor::fit(&gpus(), &population));
        population.extend((0..families).map(|n| lies(n, by_type, over_gpus, watts)));
        hardly_moved(&before, &predictions(&Predictor::fit(&gpus(), &population)))?;
    }

    /// As if it ran the models that the others run, and whatever it says of them.
    #[test]
    fn lies_of_the_same_model_move_the_others_by_two_per_cent_at_most(
        by_type in (20.0..45.0f64, 50.0..100.0f64, 27.0..75.0f64).prop_map(|(a, b, c)| [a, b, c]),
        over_gpus in -1.1..-0.4f64,
        families in 1..60usize,
        namespaces in 2..=20usize,
        (parameters, samples, batch) in (1.0..1e4f64, 1e3..1e8f64, 1.0..4096.0f64),
    ) {
        let mut population: Vec<Profile> =
            honest(namespaces).into_iter().enumerate().map(|(i, profile)| modelled(profile, i)).collect();
        let asked = |predictor: &Predictor| {
            predictions_of(predictor, |p, i| modelled(Profile { features: family(i).features(), ..p }, i))
        };
        let before = asked(&Predictor::fit(&gpus(), &population));
        population.extend((0..families).map(|n| {
            let mut lie = modelled(lies(n, by_type, over_gpus, 300.0), n);
            lie.features = Features {
                parameters: Some(parameters),
                samples: Some(samples),
                batch: Some(batch),
                ..lie.features
            };
            // Batches of one GPU, of all of them, and of nothing.
            for (i, row) in lie.observations.iter_mut().enumerate() {
                let all = batch * f64::from(row.configuration.total_gpus().0);
                row.batch = [Some(batch), Some(all), Some(2.0 * batch), None][(i + n) % 4];
            }
            lie
        }));
        hardly_moved(&before, &asked(&Predictor::fit(&gpus(), &population)))?;
    }

    #[test]
    fn nonsense_of_any_kind_moves_the_others_by_two_per_cent_at_most(
        liars in prop::collection::vec(nonsense(), 1..8),
        namespaces in 2..=20usize,
    ) {
        let mut population = honest(namespaces);
        let before = predictions(&Predictor::fit(&gpus(), &population));
        let rows: usize = liars.iter().map(|liar| liar.observations.len()).sum();
        population.extend(liars);
        let predictor = Predictor::fit(&gpus(), &population);
        hardly_moved(&before, &predictions(&predictor))?;
        let refused: u64 = predictor.refused().get("liar").map_or(0, |r| r.values().sum());
        prop_assert!(refused <= rows as u64);
    }
}

#[test]
fn what_cannot_be_true_is_counted_and_changes_nothing() {
    let mut population = honest(20);
    let before = predictions(&Predictor::fit(&gpus(), &population));
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
    population.push(liar);
    let predictor = Predictor::fit(&gpus(), &population);
    let counts = &predictor.refused()["liar"];
    let all = [(Refusal::NotANumber, 6), (Refusal::NotPositive, 6), (Refusal::OutOfBounds, 3)];
    assert_eq!(counts.iter().map(|(r, n)| (*r, *n)).collect::<Vec<_>>(), all);
    assert_eq!(predictions(&predictor), before);
}

#[test]
fn what_a_job_says_of_itself_stays_with_it() {
    let mut population = honest(20);
    let before = predictions(&Predictor::fit(&gpus(), &population));
    let mut claims = lies(0, [1.0, 50.0, 0.1], 1.0, 1_000.0);
    claims.observations.iter_mut().for_each(|o| o.claimed = true);
    population.push(claims.clone());
    let predictor = Predictor::fit(&gpus(), &population);
    assert_eq!(predictions(&predictor), before);
    let own = predictor.predict(&claims, &prior(), &[on("A100", 1, 1)]).remove(0);
    assert!((own.epoch.median / 100.0 - 1.0).abs() < 0.2, "{own:?}");
}

#[test]
fn rows_of_one_namespace_are_bounded() {
    let population: Vec<Profile> = (0..100).map(|n| lies(n, [1.0; 3], -0.5, 100.0)).collect();
    let predictor = Predictor::fit(&gpus(), &population);
    assert!(predictor.refused()["liar"][&Refusal::TooMany] >= 900, "{:?}", predictor.refused());
}

#[test]
fn namespaces_that_are_one_party_teach_each_other_as_one_does_itself() {
    // Given twenty namespaces of four families, and one that has none; as strangers, as one party, and as one namespace's.
    let twenty = honest(20);
    let asked = |name: fn(&str) -> String| {
        let named = |p: &Profile| Profile { name: name(&p.name), ..p.clone() };
        let predictor = Predictor::fit(&gpus(), &twenty.iter().map(named).collect::<Vec<_>>());
        let (mut off, mut widths) = (Vec::new(), Vec::new());
        for i in 300..312 {
            let f = family(i);
            let seen = vec![f.seen(on("A100", 2, 1), 6.0)];
            let new = Profile { name: format!("lab-77/new-{i}"), observations: seen, ..f.profile() };
            for p in predictor.predict(&named(&new), &prior(), &every()) {
                off.push((p.epoch.median / f.epoch(&p.configuration) - 1.0).abs());
                widths.push(p.epoch.sigma);
            }
        }
        (common::median(off), common::median(widths))
    };
    let isolated = asked(str::to_owned);
    let party = asked(together);
    let one = asked(|name| format!("all/{}", name.replace('/', "-")));
    assert!(party.0 < 0.7 * isolated.0 && party.1 < 0.7 * isolated.1, "{party:?} {isolated:?}");
    assert!((party.0 / one.0 - 1.0).abs() < 0.1 && (party.1 / one.1 - 1.0).abs() < 0.1, "{party:?} {one:?}");
}
