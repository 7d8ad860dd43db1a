//! Which rows are held out and predicted.

use std::collections::BTreeSet;

use crate::table::Sample;

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
    pub fn of(name: &str) -> Self {
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, step);
        if hash % 2 == 0 { Self::Choose } else { Self::Report }
    }
}

/// Known rows and rows to predict, of one job.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// Rows that may be used.
    pub known: Vec<&'a Sample>,
    /// Rows to predict, all of one job.
    pub asked: Vec<&'a Sample>,
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

/// All questions of a setting about one half's models (`None`: all), ordered by job.
pub fn questions(
    samples: &[Sample],
    setting: Setting,
    hold_out: HoldOut,
    half: Option<Half>,
) -> Vec<Question<'_>> {
    let is_read = |s: &&Sample| half != Some(Half::Choose) || Half::of(s.model()) == Half::Choose;
    let timed: Vec<&Sample> = samples.iter().filter(|s| s.epoch_s.is_some()).filter(is_read).collect();
    let mut questions = all(&timed, setting, hold_out);
    questions.retain(|q| half.is_none_or(|half| q.asked.iter().all(|s| Half::of(s.model()) == half)));
    questions
}

fn all<'a>(timed: &[&'a Sample], setting: Setting, hold_out: HoldOut) -> Vec<Question<'a>> {
    let jobs: BTreeSet<&str> = timed.iter().map(|s| s.profile.as_str()).collect();
    let mut questions = Vec::new();
    for job in jobs {
        let mut own: Vec<&Sample> = timed.iter().copied().filter(|s| s.profile == job).collect();
        own.sort_by(|a, b| order(a, b));
        let model = own.first().and_then(|s| s.model_family.as_deref());
        let related = |s: &&&Sample| match hold_out {
            HoldOut::Job => true,
            HoldOut::Model => model.is_none() || s.model_family.as_deref() != model,
        };
        let others: Vec<&Sample> =
            timed.iter().filter(|s| s.profile != job).filter(related).copied().collect();
        let mut ask = |known: Vec<&'a Sample>, asked: Vec<&'a Sample>| {
            if !asked.is_empty() {
                questions.push(Question { known: others.iter().copied().chain(known).collect(), asked });
            }
        };
        let types: BTreeSet<&str> = own.iter().map(|s| s.gpu_type.as_str()).collect();
        match setting {
            Setting::Known(times) => {
                for (shuffle, turn) in (0..times).flat_map(|s| (0..FOLDS).map(move |turn| (s, turn))) {
                    let folds = folds(own.len(), shuffle);
                    let (asked, known): (Vec<_>, Vec<_>) =
                        own.iter().enumerate().partition(|(i, _)| folds[*i] == turn);
                    let plain = |rows: Vec<(usize, &&'a Sample)>| {
                        rows.into_iter().map(|(_, s)| *s).collect::<Vec<_>>()
                    };
                    if !known.is_empty() {
                        ask(plain(known), plain(asked));
                    }
                }
            }
            Setting::First(k) => {
                for gpu_type in types {
                    let here: Vec<&Sample> = own.iter().copied().filter(|s| s.gpu_type == gpu_type).collect();
                    let first = first(&here, k);
                    if first.len() == k {
                        let rest =
                            here.iter().copied().filter(|s| !first.iter().any(|f| std::ptr::eq(*f, *s)));
                        let rest = rest.collect();
                        ask(first.clone(), rest);
                    }
                }
            }
            Setting::Across(k) => {
                for gpu_type in types {
                    let (one, several): (Vec<&Sample>, Vec<&Sample>) =
                        own.iter().copied().filter(|s| s.gpu_type == gpu_type).partition(|s| s.nodes <= 1);
                    let (one, there) = (first(&one, 4), first(&several, k));
                    if one.len() == 4 && there.len() == k {
                        let rest = several.into_iter().filter(|s| !there.iter().any(|f| std::ptr::eq(*f, *s)));
                        let rest = rest.collect();
                        ask(one.into_iter().chain(there.iter().copied()).collect(), rest);
                    }
                }
            }
            Setting::NewType(k) if types.len() > 1 => {
                for gpu_type in types {
                    let (here, other): (Vec<&Sample>, Vec<&Sample>) =
                        own.iter().copied().partition(|s| s.gpu_type == gpu_type);
                    let first = first(&here, k);
                    let rest = here.iter().copied().filter(|s| !first.iter().any(|f| std::ptr::eq(*f, *s)));
                    let rest = rest.collect();
                    ask(other.into_iter().chain(first).collect(), rest);
                }
            }
            Setting::NewType(_) => {}
            Setting::Nothing => ask(Vec::new(), own),
        }
    }
    questions
}

fn order(a: &Sample, b: &Sample) -> std::cmp::Ordering {
    let number = |x: Option<f64>| x.unwrap_or(0.0);
    (&a.gpu_type, a.gpus, a.nodes)
        .cmp(&(&b.gpu_type, b.gpus, b.nodes))
        .then(number(a.batch).total_cmp(&number(b.batch)))
        .then(number(b.power_limit_w).total_cmp(&number(a.power_limit_w)))
}

/// The first `k` measurements. First the middle batch on the fewest GPUs without (or with the
/// highest) limit; then the same on the next number of GPUs; then the smallest and largest batch on
/// the fewest.
fn first<'a>(rows: &[&'a Sample], k: usize) -> Vec<&'a Sample> {
    let highest = rows.iter().filter_map(|s| s.power_limit_w).fold(0.0, f64::max);
    let free: Vec<&Sample> =
        rows.iter().copied().filter(|s| s.power_limit_w.is_none_or(|w| w >= highest)).collect();
    let of = |gpus: Option<u32>| free.iter().copied().filter(|s| Some(s.gpus) == gpus).collect::<Vec<_>>();
    let fewest = of(free.iter().map(|s| s.gpus).min());
    let Some(start) = fewest.get(fewest.len() / 2).copied() else { return Vec::new() };
    let more = of(free.iter().map(|s| s.gpus).filter(|g| *g > start.gpus).min());
    // Same setting on more GPUs: as few nodes, and the nearest batch per GPU.
    let per_gpu = |s: &Sample| s.batch.unwrap_or(1.0) / f64::from(s.gpus.max(1));
    let far = |s: &Sample| (f64::from(s.nodes), (per_gpu(s) / per_gpu(start)).ln().abs());
    let next =
        more.iter().copied().min_by(|a, b| far(a).partial_cmp(&far(b)).unwrap_or(std::cmp::Ordering::Equal));
    let mut wanted = vec![Some(start), next, fewest.first().copied(), fewest.last().copied()];
    wanted.extend(free.iter().copied().map(Some));
    wanted.extend(rows.iter().copied().map(Some));
    let mut found: Vec<&Sample> = Vec::new();
    for sample in wanted.into_iter().flatten() {
        if found.len() < k && !found.iter().any(|f| std::ptr::eq(*f, sample)) {
            found.push(sample);
        }
    }
    found
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
        let asked = |half| questions(&rows, Setting::First(1), HoldOut::Job, half);
        let (choose, report) = (asked(Some(Half::Choose)), asked(Some(Half::Report)));
        assert_eq!((choose.len(), report.len(), asked(None).len()), (2, 2, 4));
        let names = |samples: &[&Sample]| samples.iter().map(|s| s.profile.clone()).collect::<BTreeSet<_>>();
        assert!(choose.iter().all(|q| names(&q.known).iter().all(|n| n == "bert-job" || n == "gpt2-job")));
        assert!(report.iter().all(|q| names(&q.known).len() == 4 && q.asked[0].model().starts_with("resnet")));
    }

    #[test]
    fn across_nodes_four_rows_of_one_node_are_known() {
        let rows = rows();
        let asked = questions(&rows, Setting::Across(1), HoldOut::Job, None);
        assert_eq!(asked.len(), 4);
        let own = |q: &Question<'_>| q.known.iter().filter(|s| s.profile == q.asked[0].profile).count();
        assert!(asked.iter().all(|q| own(q) == 5 && q.asked.len() == 1 && q.asked[0].nodes == 4));
    }
}
