//! Which rows are held out and predicted.

use std::collections::BTreeSet;

use andreas_model::stable_hash;

use crate::table::Sample;
use andreas_predictor::first_runs::{Run, first_runs};

/// What is known of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Four fifths of its rows, in five folds. The number says how often to repeat with other
    /// folds: the choice of folds moves an error by a tenth.
    Known(u32),
    /// Its first measurements on one type, in the order a user would make them: the smallest number
    /// of GPUs first.
    First(usize),
    /// Its first four measurements on one node of a type and this many across nodes. Asked: the
    /// other rows across nodes.
    Across(usize),
    /// All rows on other types, and this many rows on the predicted type.
    NewType(usize),
    /// Nothing.
    Nothing,
}

/// What else is held out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldOut {
    /// Nothing: other jobs of the same model are known.
    Job,
    /// All jobs of the same model.
    Model,
}

/// Half of all models, or of all traces. Variants are chosen on one half; figures are reported on
/// the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// Even hashes. Rows of the other half are not read.
    Choose,
    /// Odd hashes. The other half's rows may be used, but are not asked.
    Report,
}

impl Half {
    /// The half of a model or trace: the lowest bit of the 64-bit FNV-1a hash of its name.
    pub fn from_name(name: &str) -> Self {
        if stable_hash(name).is_multiple_of(2) { Self::Choose } else { Self::Report }
    }
}

/// Known rows and rows to predict, of one job.
#[derive(Clone, Debug)]
pub struct TrainTestSplit<'a> {
    /// Rows that may be used.
    pub train: Vec<&'a Sample>,
    /// Rows to predict, all of one job.
    pub test: Vec<&'a Sample>,
}

/// Folds of a job's rows.
const FOLDS: usize = 5;

/// Fold of each row, the same in every run. Folds have equal sizes; neighbours are in different
/// ones.
fn folds(rows: usize, shuffle: u32) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rows).collect();
    order.sort_by_key(|i| scrambled(*i as u64 + (u64::from(shuffle) << 32)));
    let mut folds = vec![0; rows];
    for (at, i) in order.into_iter().enumerate() {
        folds[i] = at % FOLDS;
    }
    folds
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
fn scrambled(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// All splits of a setting about one half's models (`None`: all), ordered by job.
pub fn splits(
    samples: &[Sample],
    setting: Setting,
    hold_out: HoldOut,
    half: Option<Half>,
) -> Vec<TrainTestSplit<'_>> {
    let is_read = |s: &&Sample| half != Some(Half::Choose) || Half::from_name(s.model()) == Half::Choose;
    let timed: Vec<&Sample> = samples.iter().filter(|s| s.epoch_s.is_some()).filter(is_read).collect();
    let mut splits = all_splits(&timed, setting, hold_out);
    splits.retain(|q| half.is_none_or(|half| q.test.iter().all(|s| Half::from_name(s.model()) == half)));
    splits
}

/// All splits of a setting, ordered by job; test sets are not empty.
fn all_splits<'a>(timed: &[&'a Sample], setting: Setting, hold_out: HoldOut) -> Vec<TrainTestSplit<'a>> {
    let jobs: BTreeSet<&str> = timed.iter().map(|s| s.profile.as_str()).collect();
    let mut splits = Vec::new();
    for job in jobs {
        let mut own: Vec<&Sample> = timed.iter().copied().filter(|s| s.profile == job).collect();
        own.sort_by(|a, b| compare(a, b));
        let model = own.first().and_then(|s| s.model_family.as_deref());
        let is_known =
            |s: &&&Sample| hold_out == HoldOut::Job || model.is_none() || s.model_family.as_deref() != model;
        let others = timed.iter().filter(|s| s.profile != job).filter(is_known);
        for (known, asked) in parts(&own, setting).into_iter().filter(|(_, asked)| !asked.is_empty()) {
            splits
                .push(TrainTestSplit { train: others.clone().copied().chain(known).collect(), test: asked });
        }
    }
    splits
}

/// Known and asked rows of a job.
type Part<'a> = (Vec<&'a Sample>, Vec<&'a Sample>);

fn parts<'a>(own: &[&'a Sample], setting: Setting) -> Vec<Part<'a>> {
    let types: BTreeSet<&str> = own.iter().map(|s| s.gpu_type.as_str()).collect();
    let on = |gpu_type: &str| -> Part<'a> { own.iter().copied().partition(|s| s.gpu_type == gpu_type) };
    match setting {
        Setting::Known(times) => {
            let turns = (0..times).flat_map(|shuffle| (0..FOLDS).map(move |turn| (shuffle, turn)));
            let part = |(shuffle, turn): (u32, usize)| -> Part<'a> {
                let mut folds = folds(own.len(), shuffle).into_iter();
                own.iter().copied().partition(|_| folds.next() != Some(turn))
            };
            turns.map(part).filter(|(known, _): &Part<'_>| !known.is_empty()).collect()
        }
        Setting::First(k) => {
            let part = |gpu_type: &&str| first(&on(gpu_type).0, k);
            types.iter().map(part).filter(|(known, _)| known.len() == k).collect()
        }
        Setting::Across(k) => {
            let part = |gpu_type: &&str| {
                let (one, several): Part<'_> = on(gpu_type).0.into_iter().partition(|s| s.nodes <= 1);
                let ((one, _), (there, asked)) = (first(&one, 4), first(&several, k));
                (one.len() == 4 && there.len() == k).then(|| ([one, there].concat(), asked))
            };
            types.iter().filter_map(part).collect()
        }
        Setting::NewType(k) => {
            let part = |gpu_type: &&str| {
                let (here, others) = on(gpu_type);
                let (first, asked) = first(&here, k);
                ([others, first].concat(), asked)
            };
            types.iter().filter(|_| types.len() > 1).map(part).collect()
        }
        Setting::Nothing => vec![(Vec::new(), own.to_vec())],
    }
}

fn compare(a: &Sample, b: &Sample) -> std::cmp::Ordering {
    let number = |x: Option<f64>| x.unwrap_or(0.0);
    (&a.gpu_type, a.gpus, a.nodes)
        .cmp(&(&b.gpu_type, b.gpus, b.nodes))
        .then(number(a.batch).total_cmp(&number(b.batch)))
        .then(number(b.power_limit_w).total_cmp(&number(a.power_limit_w)))
}

/// The first `k` measurements, and the others.
fn first<'a>(rows: &[&'a Sample], k: usize) -> Part<'a> {
    let run = |s: &&Sample| Run {
        gpus: f64::from(s.gpus).ln(),
        nodes: f64::from(s.nodes).ln(),
        batch: s.batch.unwrap_or(1.0).ln(),
        limit: s.power_limit_w.unwrap_or(f64::INFINITY),
    };
    let known = first_runs(&rows.iter().map(run).collect::<Vec<_>>(), k);
    let rest = (0..rows.len()).filter(|i| !known.contains(i)).map(|i| rows[i]);
    let rest = rest.collect();
    (known.into_iter().map(|i| rows[i]).collect(), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Sample> {
        let row = |(model, gpus): (&str, u32)| Sample {
            profile: format!("{model}-job"),
            model_family: Some(model.to_owned()),
            gpu_type: "T4".to_owned(),
            gpus,
            nodes: gpus.div_ceil(4),
            epoch_s: Some(100.0 / f64::from(gpus)),
            ..Sample::default()
        };
        let models = ["bert", "gpt2", "resnet18", "resnet50"];
        models.into_iter().flat_map(|model| [1, 2, 3, 4, 8, 16].map(|gpus| row((model, gpus)))).collect()
    }

    #[test]
    fn to_choose_no_row_of_the_other_half_is_read() {
        let rows = rows();
        let asked = |half| splits(&rows, Setting::First(1), HoldOut::Job, half);
        let (choose, report) = (asked(Some(Half::Choose)), asked(Some(Half::Report)));
        assert_eq!((choose.len(), report.len(), asked(None).len()), (2, 2, 4));
        let names = |samples: &[&Sample]| samples.iter().map(|s| s.profile.clone()).collect::<BTreeSet<_>>();
        assert!(choose.iter().all(|q| names(&q.train).iter().all(|n| n == "bert-job" || n == "gpt2-job")));
        assert!(report.iter().all(|q| names(&q.train).len() == 4 && q.test[0].model().starts_with("resnet")));
    }

    #[test]
    fn across_nodes_four_rows_of_one_node_are_known() {
        let rows = rows();
        let asked = splits(&rows, Setting::Across(1), HoldOut::Job, None);
        assert_eq!(asked.len(), 4);
        let own = |q: &TrainTestSplit<'_>| q.train.iter().filter(|s| s.profile == q.test[0].profile).count();
        assert!(asked.iter().all(|q| own(q) == 5 && q.test.len() == 1 && q.test[0].nodes == 4));
    }
}
