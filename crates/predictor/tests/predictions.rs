//! What is known decides: the user's table, the family's runs, the population, the prior.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use andreas_model::{Configuration, Seconds, Watts};
use andreas_predictor::{GpuModel, Prediction, Predictor, Profile, Source, prior_run_time};
use common::{every, family, gpus, median, on, prior};

fn ask(predictor: &Predictor, profile: &Profile, c: &Configuration) -> Prediction {
    predictor.predict(profile, &prior(), std::slice::from_ref(c)).remove(0)
}

fn close(a: f64, b: f64, tolerance: f64) -> bool {
    (a / b - 1.0).abs() <= tolerance
}

#[test]
fn a_users_table_is_taken_at_its_word() {
    let f = family(3);
    let profile =
        Profile { given: vec![f.given(&on("A100", 4, 1)), f.given(&on("A100", 8, 2))], ..f.profile() };
    let p = ask(&Predictor::fit(&gpus(), &[]), &profile, &on("A100", 4, 1));
    assert!(close(p.epoch.median, f.epoch(&on("A100", 4, 1)), 1e-9), "{p:?}");
    assert!(close(p.power.median, 4.0 * f.watts_per_gpu(&on("A100", 4, 1)), 1e-9), "{p:?}");
    assert_eq!((p.epoch.source, p.power.source), (Source::UserGiven, Source::UserGiven));
    // 8 GPUs on one node were not given: about what 8 on two take, less the spread; never above twice the speed of 4.
    let p = ask(&Predictor::fit(&gpus(), &[]), &profile, &on("A100", 8, 1));
    assert!(
        p.epoch.median <= f.epoch(&on("A100", 8, 2)) && p.epoch.median >= f.epoch(&on("A100", 4, 1)) / 2.0
    );
}

#[test]
fn observing_a_configuration_corrects_it_and_moves_the_rest_of_the_table() {
    // given: a table that says half of what is true
    let f = family(3);
    let (four, eight) = (on("A100", 4, 1), on("A100", 8, 1));
    let mut given = vec![f.given(&four), f.given(&eight)];
    for row in &mut given {
        row.epoch = row.epoch.map(|s| s / 2.0);
    }
    let table = Profile { given, ..f.profile() };
    let predictor = Predictor::fit(&gpus(), &[]);
    // when: two epochs are seen on four GPUs
    let profile = Profile { observations: vec![f.seen(four.clone(), 2.0)], ..table.clone() };
    // then: four is as observed, and eight goes along with it
    let p = ask(&predictor, &profile, &four);
    assert!(close(p.epoch.median, f.epoch(&four), 0.08), "{p:?} {}", f.epoch(&four));
    assert_eq!(p.epoch.source, Source::Observed);
    let p = ask(&predictor, &profile, &eight);
    assert!(close(p.epoch.median, f.epoch(&eight), 0.12), "{p:?} {}", f.epoch(&eight));
    assert_eq!(p.epoch.source, Source::UserGiven);
    assert!((p.epoch.p10()..=p.epoch.p90()).contains(&f.epoch(&eight)), "{p:?}");
    // and a twentieth of an epoch does not overrule the table
    let profile = Profile { observations: vec![f.seen(four.clone(), 0.05)], ..table };
    assert_eq!(ask(&predictor, &profile, &four).epoch.source, Source::UserGiven);
}

#[test]
fn one_observed_configuration_carries_over_to_others_of_its_type() {
    let f = family(5);
    let profile = Profile { observations: vec![f.seen(on("V100", 2, 1), 10.0)], ..f.profile() };
    let predictor = Predictor::fit(&gpus(), &[]);
    for g in [1, 4, 8] {
        let p = ask(&predictor, &profile, &on("V100", g, 1));
        assert!(close(p.epoch.median, f.epoch(&on("V100", g, 1)), 0.3), "{g}: {p:?}");
        assert_eq!(p.epoch.source, Source::Observed);
    }
}

#[test]
fn the_population_teaches_how_types_and_numbers_of_gpus_compare() {
    // given: 60 families seen on three configurations each, a new one seen on one
    let population: Vec<Profile> = (0..60).map(|i| family(i).observed()).collect();
    let (alone, learned) = (Predictor::fit(&gpus(), &[]), Predictor::fit(&gpus(), &population));
    let mut errors = [Vec::new(), Vec::new()];
    let mut covered = (0, 0);
    for f in (100..160).map(family) {
        let profile = Profile { observations: vec![f.seen(on("A100", 2, 1), 6.0)], ..f.profile() };
        for c in every().iter().filter(|c| c.gpu_type.as_str() != "A100") {
            for (errors, predictor) in errors.iter_mut().zip([&alone, &learned]) {
                errors.push((ask(predictor, &profile, c).epoch.median / f.epoch(c) - 1.0).abs());
            }
            let p = ask(&learned, &profile, c);
            assert_eq!(p.epoch.source, Source::Regression);
            covered.0 += usize::from((p.epoch.p10()..=p.epoch.p90()).contains(&f.epoch(c)));
            covered.1 += 1;
        }
    }
    // then: on types it never ran on it is far nearer than the law alone, and its intervals hold
    let [alone, learned] = errors.map(median);
    assert!(learned < 0.10 && learned < alone / 1.5, "median error {learned:.3}, law alone {alone:.3}");
    let coverage = covered.0 as f64 / covered.1 as f64;
    assert!((0.70..=1.0).contains(&coverage), "p10..p90 covers {coverage}");
}

#[test]
fn features_tell_the_level_of_a_family_that_never_ran() {
    let population: Vec<Profile> = (0..60).map(|i| family(i).observed()).collect();
    let predictor = Predictor::fit(&gpus(), &population);
    let mut watts = Vec::new();
    let errors = (200..260).map(family).map(|f| {
        let c = on("V100", 4, 1);
        let p = ask(&predictor, &Profile { features: f.features(), ..f.profile() }, &c);
        assert_eq!((p.epoch.source, p.power.source), (Source::Regression, Source::Regression));
        watts.push((p.power.median / (4.0 * f.watts_per_gpu(&c)) - 1.0).abs());
        (p.epoch.median / f.epoch(&c) - 1.0).abs()
    });
    let error = median(errors.collect());
    let watts = median(watts);
    assert!(error < 0.20 && watts < 0.15, "median errors {error:.3} {watts:.3}");
}

#[test]
fn nothing_known_is_the_prior_with_a_factor_of_three_each_way() {
    // given: jobs finished in 1, 2 and 30 hours before; ten epochs
    let run_time = prior_run_time(&[Seconds(3600.0), Seconds(108_000.0), Seconds(7200.0)], Seconds(14_400.0));
    let prior = andreas_predictor::Prior { run_time, ..prior() };
    let predictor = Predictor::fit(&gpus(), &[]);
    let asked = [on("A100", 1, 1), on("A100", 8, 1)];
    let p = predictor.predict(&family(1).profile(), &prior, &asked);
    assert!(close(p[0].epoch.median, 720.0, 1e-9), "{p:?}");
    assert!(close(p[0].epoch.p10(), 240.0, 1e-9) && close(p[0].epoch.p90(), 2160.0, 1e-9));
    assert_eq!(p[0].epoch.source, Source::Prior);
    assert!(p[1].epoch.median < 360.0 && p[1].epoch.median > 90.0);
    assert!((50.0..=400.0).contains(&p[0].power.median));
    // and without any finished job: the policy's default
    assert_eq!(prior_run_time(&[Seconds(f64::NAN)], Seconds(14_400.0)), Seconds(14_400.0));
}

#[test]
fn a_power_limit_saves_watts_and_costs_time_until_it_was_observed() {
    let f = family(9);
    let free = on("V100", 4, 1);
    let limited = Configuration { limit: Some(Watts(120.0)), ..free.clone() };
    let predictor = Predictor::fit(&gpus(), &[]);
    let table = Profile { given: vec![f.given(&free)], ..f.profile() };
    let (a, b) = (ask(&predictor, &table, &free), ask(&predictor, &table, &limited));
    assert!(b.power.median < a.power.median && b.power.median <= 4.0 * 120.0);
    assert!(b.epoch.median > a.epoch.median && b.epoch.sigma > a.epoch.sigma);
    let mut seen = f.seen(free.clone(), 5.0);
    (seen.configuration.limit, seen.watts_per_gpu) = (Some(Watts(120.0)), Some(Watts(118.0)));
    seen.epoch = Some(Seconds(a.epoch.median * 1.4));
    let profile = Profile { observations: vec![seen], ..table };
    let p = ask(&predictor, &profile, &limited);
    assert!(close(p.epoch.median, a.epoch.median * 1.4, 0.1) && p.epoch.source == Source::Observed, "{p:?}");
    // and what happened under a limit that bound says little of runs without one
    let p = ask(&predictor, &profile, &free);
    assert!(close(p.epoch.median, a.epoch.median, 0.1), "{p:?}");
}

#[test]
fn one_false_measurement_among_eight_is_outvoted() {
    // given: runs on one to eight GPUs; one of them took three times as long, or a third
    let predictor = Predictor::fit(&gpus(), &[]);
    let asked: Vec<Configuration> = (1..=8).map(|g| on("A100", g, 1)).collect();
    for factor in [3.0, 1.0 / 3.0] {
        let (mut there, mut others, mut covered) = (Vec::new(), Vec::new(), 0);
        for (f, wrong) in (100..120).flat_map(|i| (0..8).map(move |wrong| (family(i), wrong))) {
            let mut observations: Vec<_> = asked.iter().map(|c| f.seen(c.clone(), 20.0)).collect();
            observations[wrong].epoch = observations[wrong].epoch.map(|s| Seconds(s.0 * factor));
            let profile = Profile { observations, ..f.profile() };
            for (i, p) in predictor.predict(&profile, &prior(), &asked).iter().enumerate() {
                let truth = f.epoch(&p.configuration);
                let error = (p.epoch.median / truth - 1.0).abs();
                if i == wrong {
                    there.push(error);
                } else {
                    others.push(error);
                    covered += usize::from((p.epoch.low()..=p.epoch.high()).contains(&truth));
                }
            }
        }
        // then: it is not believed, and the others stay as they were seen
        let coverage = covered as f64 / others.len() as f64;
        let (there, others) = (median(there), median(others));
        // With full weight of the false row: 0.31 to 0.38, 0.08 to 0.09, and 0.72 to 0.74.
        assert!(there < 0.15 && others < 0.06, "{factor}: {there:.3} {others:.3}");
        assert!(coverage > 0.9, "{factor}: {coverage:.3}");
    }
}

#[test]
fn the_same_rows_in_any_order_give_the_same_bits() {
    let mut population: Vec<Profile> = (0..40).map(|i| family(i).observed()).collect();
    let f = family(77);
    let mut profile = f.observed();
    let forward = Predictor::fit(&gpus(), &population).predict(&profile, &prior(), &every());
    population.reverse();
    profile.observations.reverse();
    let models: Vec<GpuModel> = gpus().into_iter().rev().collect();
    let backward = Predictor::fit(&models, &population).predict(&profile, &prior(), &every());
    assert_eq!(forward, backward);
}

#[test]
fn two_thousand_families_are_fitted_within_a_bound() {
    let population: Vec<Profile> = (0..2000).map(|i| family(i).observed()).collect();
    let started = std::time::Instant::now();
    let predictor = Predictor::fit(&gpus(), &population);
    assert!(started.elapsed() < std::time::Duration::from_secs(10), "{:?}", started.elapsed());
    let new = Profile { features: family(2000).features(), ..family(2000).profile() };
    assert_eq!(ask(&predictor, &new, &on("V100", 4, 1)).epoch.source, Source::Regression);
}
