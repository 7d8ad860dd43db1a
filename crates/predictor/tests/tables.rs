//! Users' tables are trusted as far as those of the same tenant were right before.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use andreas_model::{Configuration, Seconds, Watts};
use andreas_predictor::{Prediction, Predictor, Profile, Source, TableRow};
use common::{every, family, gpus, noise, on, prior};

/// What is asked and given: one node of each type.
fn places() -> Vec<Configuration> {
    every().into_iter().filter(|c| c.nodes == 1).collect()
}

/// A family whose table says so many times the truth, in times and watts, by GPU type.
fn table(namespace: &str, i: usize, times: impl Fn(&str) -> f64) -> Profile {
    let f = family(i);
    let given = places().into_iter().map(|c| {
        let (row, off) = (f.given(&c), times(c.gpu_type.as_str()));
        TableRow {
            epoch: row.epoch.map(|s| Seconds(s.0 * off)),
            power: row.power.map(|w| Watts(w.0 * off)),
            ..row
        }
    });
    Profile { name: format!("{namespace}family-{i:03}"), given: given.collect(), ..f.profile() }
}

/// Ten families of a namespace that ran on two types each, with such tables.
fn history(namespace: &str, times: impl Fn(usize, &str) -> f64) -> Vec<Profile> {
    let family = |i: usize| Profile {
        observations: [on("A100", 4, 1), on("V100", 2, 1)].map(|c| family(i).seen(c, 20.0)).to_vec(),
        ..table(namespace, i, |gpu_type| times(i, gpu_type))
    };
    (0..10).map(family).collect()
}

fn ask(population: &[Profile], profile: &Profile) -> Vec<Prediction> {
    Predictor::fit(&gpus(), population).predict(profile, &prior(), &places())
}

/// How many of the true times, and watts, lie in the interval of 90 %.
fn covered(i: usize, predicted: &[Prediction]) -> (usize, usize) {
    let inside = |e: &andreas_predictor::LogNormal, truth: f64| (e.low()..=e.high()).contains(&truth);
    let f = family(i);
    let times = predicted.iter().filter(|p| inside(&p.epoch, f.epoch(&p.configuration)));
    let watts = predicted.iter().filter(|p| {
        let c = &p.configuration;
        inside(&p.power, f.watts_per_gpu(c) * f64::from(c.total_gpus().0))
    });
    (times.count(), watts.count())
}

#[test]
fn tables_that_were_off_by_two_leave_an_interval_that_covers() {
    // given: a namespace whose tables say half of the truth, and a new one as wrong of which nothing was seen
    let half = |_: usize, _: &str| 0.5;
    let new = table("lab/", 400, |_| 0.5);
    // when
    let before = ask(&[], &new);
    let after = ask(&history("lab/", half), &new);
    // then: the table's word was certain, and is not any more; it is still the user's
    assert_eq!(covered(400, &before), (0, 0));
    assert_eq!(covered(400, &after), (places().len(), places().len()), "{after:?}");
    assert!(after.iter().all(|p| p.epoch.source == Source::UserGiven && p.epoch.sigma > 0.3), "{after:?}");
}

#[test]
fn an_honest_namespace_keeps_its_intervals_and_its_word() {
    let right = |i: usize, _: &str| 1.0 + 0.02 * noise(i * 5 + 1);
    let new = table("lab/", 400, |_| 1.0);
    let (before, after) = (ask(&[], &new), ask(&history("lab/", right), &new));
    for (a, b) in before.iter().zip(&after) {
        assert!(b.epoch.sigma <= 1.2 * a.epoch.sigma && b.power.sigma <= 1.2 * a.power.sigma, "{a:?} {b:?}");
        assert!((b.epoch.median / a.epoch.median - 1.0).abs() < 0.02, "{a:?} {b:?}");
        assert!((b.power.median / a.power.median - 1.0).abs() < 0.02, "{a:?} {b:?}");
    }
    assert_eq!(covered(400, &after), (places().len(), places().len()), "{after:?}");
}

#[test]
fn how_types_compare_is_believed_of_others_where_tables_compare_them_wrongly() {
    // given: tables that are off on each type by a factor of its own, and a new one that is twice too slow on V100s
    let wild = |i: usize, gpu_type: &str| {
        (0.7 * noise(i * 3 + gpu_type.len() + usize::from(gpu_type == "V100"))).exp()
    };
    let new = table("lab/", 400, |gpu_type| if gpu_type == "V100" { 2.0 } else { 1.0 });
    let mut population = history("lab/", wild);
    population.extend((20..60).map(|i| family(i).observed()));
    let off = |predicted: &[Prediction]| {
        let f = family(400);
        let on = |name: &str| {
            let rows = predicted.iter().filter(|p| p.configuration.gpu_type.as_str() == name);
            rows.map(|p| (p.epoch.median / f.epoch(&p.configuration)).ln()).sum::<f64>() / 4.0
        };
        on("V100") - on("A100")
    };
    // then: an observation on one type says more of the other than the table does
    let seen = Profile { observations: vec![family(400).seen(on("A100", 2, 1), 5.0)], ..new.clone() };
    assert!((off(&ask(&[], &seen)) - 2.0f64.ln()).abs() < 0.2, "{}", off(&ask(&[], &seen)));
    assert!(off(&ask(&population, &seen)) < 0.5 * 2.0f64.ln(), "{}", off(&ask(&population, &seen)));
    assert!(off(&ask(&population, &new)) < 0.5 * 2.0f64.ln(), "{}", off(&ask(&population, &new)));
}

#[test]
fn tables_of_another_namespace_change_nothing() {
    let new = table("lab/", 400, |_| 1.0);
    let lies = history("liar/", |i, _| if i % 2 == 0 { 100.0 } else { 0.01 });
    assert_eq!(ask(&lies, &new), ask(&[], &new));
    // and the liar's own next table is not believed
    let own = ask(&lies, &table("liar/", 400, |_| 1.0));
    assert!(own.iter().all(|p| p.epoch.sigma > 1.0), "{own:?}");
}

#[test]
fn self_reported_rows_do_not_discredit_tables() {
    let mut claims = history("lab/", |_, _| 0.5);
    claims.iter_mut().flat_map(|p| &mut p.observations).for_each(|row| row.claimed = true);
    let new = table("lab/", 400, |_| 1.0);
    assert_eq!(ask(&claims, &new), ask(&[], &new));
}
