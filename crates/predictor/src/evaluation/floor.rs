//! Noise of a table without a model: a lower bound on the error of any prediction of single rows.
//!
//! * **Repeats**: rows of one configuration differ by noise alone.
//! * **Smoothness**: the third divided difference over four neighbouring rows that differ in one
//!   axis (GPUs, batch or limit) removes every parabola. What remains is noise and some sharper
//!   curvature. Scaled to the median error of a predictor that knows the curve exactly.
//! * **Impossible steps**: more GPUs on the same nodes that are faster by more than their ratio,
//!   with global or per-GPU batch fixed.
//! * **Ratios**: distance of a job's ratio of two GPU types from the median ratio of the other
//!   jobs. This is the error of a predictor without rows on the new type and without knowledge of
//!   what makes jobs differ.
//! * **Across**: the same for the ratio of a job's step on several nodes to its step on the most
//!   GPUs of one node, batch fixed. This is the error of a predictor that knows the job within a
//!   node and takes the median network of other jobs.

use std::collections::BTreeMap;

use super::median;
use crate::table::Sample;

/// Noise of a table. The second number of each pair is how many values it rests on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Floor {
    /// Half the usual difference of two rows of one configuration (log over the root of 2); NaN if
    /// no configuration repeats.
    pub repeats: (f64, usize),
    /// Median error of a predictor that knows the smooth curve; NaN if no four rows are neighbours.
    pub smooth: (f64, usize),
    /// Impossible steps, and all steps.
    pub impossible: (usize, usize),
    /// Distance of jobs' type ratios from the median of other jobs; NaN with one type or one job.
    pub ratios: (f64, usize),
    /// The same for times on several nodes over those on one; NaN if no job has both, or only one
    /// has.
    pub across: (f64, usize),
}

/// A row's configuration without one axis.
type Line = (String, u32, u64, u64, u64);

/// GPUs, nodes, batch.
type Run = (u32, u32, u64);

/// Values by job.
type ByJob<'a> = BTreeMap<&'a str, Vec<f64>>;

fn log(x: Option<f64>) -> u64 {
    x.unwrap_or(0.0).to_bits()
}

/// Noise of the quantity that `value` reads; rows without it are ignored.
pub fn floor(samples: &[Sample], value: impl Fn(&Sample) -> Option<f64>) -> Floor {
    let rows: Vec<(&Sample, f64)> =
        samples.iter().filter_map(|s| Some((s, value(s).filter(|v| *v > 0.0)?.ln()))).collect();
    let key = |s: &Sample| format!("{} {}", s.profile, s.gpu_type);
    let mut same: BTreeMap<Line, Vec<f64>> = BTreeMap::new();
    for (s, y) in &rows {
        let line = (key(s), s.nodes, u64::from(s.gpus), log(s.batch), log(s.power_limit_w));
        same.entry(line).or_default().push(*y);
    }
    let pairs = |ys: &Vec<f64>| ys.windows(2).map(|w| (w[0] - w[1]).abs()).collect::<Vec<_>>();
    let repeats: Vec<f64> = same.values().flat_map(pairs).map(|d| d / std::f64::consts::SQRT_2).collect();

    let mut lines: [BTreeMap<Line, Vec<(f64, f64)>>; 4] = Default::default();
    for ((name, nodes, gpus, batch, limit), ys) in &same {
        let y = ys.iter().sum::<f64>() / ys.len() as f64;
        let number = |bits: &u64| f64::from_bits(*bits).ln();
        let mut add = |axis: usize, line: Line, x: f64| {
            if x.is_finite() {
                lines[axis].entry(line).or_default().push((x, y));
            }
        };
        let each = (f64::from_bits(*batch) / *gpus as f64).round() as u64;
        add(0, (name.clone(), *nodes, 0, *batch, *limit), (*gpus as f64).ln());
        add(1, (name.clone(), *nodes, 0, each, *limit), (*gpus as f64).ln());
        add(2, (name.clone(), *nodes, *gpus, 0, *limit), number(batch));
        add(3, (name.clone(), *nodes, *gpus, *batch, 0), number(limit));
    }
    let mut smooth = Vec::new();
    for line in lines.iter_mut().flat_map(BTreeMap::values_mut) {
        line.sort_by(|a, b| a.0.total_cmp(&b.0));
        smooth.extend(line.windows(4).filter_map(third_difference));
    }
    let (mut impossible, mut steps) = (0, 0);
    // Without batches, both ways of fixing the batch are the same.
    let held = if samples.iter().any(|s| s.batch.is_some()) { 2 } else { 1 };
    for step in lines[..held].iter().flat_map(BTreeMap::values).flat_map(|line| line.windows(2)) {
        let (gpus, time) = (step[1].0 - step[0].0, step[1].1 - step[0].1);
        // Two per cent allow for rounding and chance.
        impossible += usize::from(time < -gpus - 0.02);
        steps += 1;
    }
    let (ratios, across) = (ratios(&rows), across(&rows));
    let informed = |values: Vec<f64>| (median(values.clone()), values.len());
    Floor {
        repeats: informed(repeats),
        smooth: informed(smooth),
        impossible: (impossible, steps),
        ratios: informed(ratios),
        across: informed(across),
    }
}

/// Third divided difference of four points, scaled to noise of size one.
fn third_difference(points: &[(f64, f64)]) -> Option<f64> {
    let weight = |i: usize| {
        let others = (0..4).filter(|j| *j != i);
        others.map(|j| 1.0 / (points[i].0 - points[j].0)).product::<f64>()
    };
    let weights: Vec<f64> = (0..4).map(weight).collect();
    let sum: f64 = weights.iter().zip(points).map(|(w, p)| w * p.1).sum();
    let size = weights.iter().map(|w| w * w).sum::<f64>().sqrt();
    Some(sum.abs() / size).filter(|d| d.is_finite())
}

/// Distance of each job's ratio from the median of other jobs, for each pair of types.
fn ratios(rows: &[(&Sample, f64)]) -> Vec<f64> {
    // Only rows that ran in the same way on both types.
    let mut at: BTreeMap<(&str, Run), BTreeMap<&str, f64>> = BTreeMap::new();
    let mut highest: BTreeMap<(&str, &str), f64> = BTreeMap::new();
    for (s, _) in rows {
        let most = highest.entry((&s.profile, &s.gpu_type)).or_default();
        *most = most.max(s.power_limit_w.unwrap_or(0.0));
    }
    for (s, y) in rows {
        if s.power_limit_w.unwrap_or(0.0) >= highest[&(s.profile.as_str(), s.gpu_type.as_str())] {
            let place = (s.gpus, s.nodes, log(s.batch));
            at.entry((&s.profile, place)).or_default().insert(&s.gpu_type, *y);
        }
    }
    let mut found: BTreeMap<(&str, &str), ByJob<'_>> = BTreeMap::new();
    for ((job, _), types) in &at {
        for (a, x) in types {
            for (b, y) in types.range(*a..).skip(1) {
                found.entry((a, b)).or_default().entry(job).or_default().push(x - y);
            }
        }
    }
    apart(found.values())
}

/// Distance of each job's multi-node ratio from the median of other jobs. The ratio is to the most
/// GPUs of one node.
fn across(rows: &[(&Sample, f64)]) -> Vec<f64> {
    // The most GPUs on one node, by job, type and batch.
    let mut most: BTreeMap<(&str, &str, u64), (u32, f64)> = BTreeMap::new();
    for (s, y) in rows.iter().filter(|(s, _)| s.nodes <= 1) {
        let best = most.entry((&s.profile, &s.gpu_type, log(s.batch))).or_insert((s.gpus, *y));
        if s.gpus > best.0 {
            *best = (s.gpus, *y);
        }
    }
    // By type, GPUs, nodes, and the GPUs of the one-node row.
    let mut found: BTreeMap<(&str, u32, u32, u32), ByJob<'_>> = BTreeMap::new();
    for (s, y) in rows.iter().filter(|(s, _)| s.nodes > 1) {
        if let Some((gpus, within)) = most.get(&(&s.profile, &s.gpu_type, log(s.batch))) {
            let placement = (s.gpu_type.as_str(), s.gpus, s.nodes, *gpus);
            found.entry(placement).or_default().entry(&s.profile).or_default().push(y - within);
        }
    }
    apart(found.values())
}

/// Distance of each job's median from the median of the other jobs.
fn apart<'a>(found: impl Iterator<Item = &'a ByJob<'a>>) -> Vec<f64> {
    let mut off = Vec::new();
    for jobs in found {
        let each: Vec<f64> = jobs.values().map(|values| median(values.clone())).collect();
        for (i, value) in each.iter().enumerate().filter(|_| each.len() > 1) {
            let others = each.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, r)| *r).collect();
            off.push((value - median(others)).abs());
        }
    }
    off
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Amdahl's law over batches and GPUs, with known alternating noise.
    fn table(noise: f64) -> Vec<Sample> {
        let row = |i: u32| Sample {
            profile: "a".to_owned(),
            gpu_type: "T4".to_owned(),
            gpus: 1,
            nodes: 1,
            batch: Some(f64::from(1u32 << i)),
            epoch_s: Some(
                (1.0 + 8.0 / f64::from(1u32 << i)) * (noise * [1.0, -1.0, 0.3, -0.6][i as usize % 4]).exp(),
            ),
            ..Sample::default()
        };
        (0..9).map(row).collect()
    }

    #[test]
    fn a_smooth_table_has_no_floor_and_a_noisy_one_its_noise() {
        let of = |noise: f64| floor(&table(noise), |s| s.epoch_s).smooth.0;
        assert!(of(0.0) < 0.025, "{}", of(0.0));
        assert!((0.04..0.14).contains(&of(0.1)), "{}", of(0.1));
    }

    #[test]
    fn steps_that_no_law_allows_are_counted_and_repeats_found() {
        let row = |gpus: u32, epoch: f64| Sample { gpus, epoch_s: Some(epoch), ..table(0.0)[0].clone() };
        let bare = |gpus: u32, epoch: f64| Sample { batch: None, ..row(gpus, epoch) };
        let found = floor(&[bare(1, 100.0), bare(2, 30.0), bare(4, 40.0), bare(8, 25.0)], |s| s.epoch_s);
        assert_eq!(found.impossible, (1, 3));
        let found = floor(&[row(1, 100.0), row(1, 110.0)], |s| s.epoch_s);
        assert!((found.repeats.0 - 1.1f64.ln() / std::f64::consts::SQRT_2).abs() < 1e-9);
        assert!(found.smooth.0.is_nan() && found.ratios.0.is_nan());
    }

    #[test]
    fn networks_are_compared_between_jobs() {
        let row = |job: &str, gpus: u32, nodes: u32, epoch: f64| Sample {
            profile: job.to_owned(),
            gpus,
            nodes,
            epoch_s: Some(epoch),
            ..table(0.0)[0].clone()
        };
        // On two nodes a job takes 1.0, 1.0 and 1.5 times as long as on the four GPUs of one.
        let job = |name: &'static str, slower: f64| {
            [row(name, 2, 1, 9.0), row(name, 4, 1, 5.0), row(name, 8, 2, 5.0 * slower)]
        };
        let rows: Vec<Sample> = [job("a", 1.0), job("b", 1.0), job("c", 1.5)].concat();
        let found = floor(&rows, |s| s.epoch_s).across;
        // Two jobs are off from the median of the others by half the difference, one by all of it.
        assert_eq!(found.1, 3);
        assert!((found.0 - 1.5f64.ln() / 2.0).abs() < 1e-9, "{}", found.0);
        assert!(floor(&job("a", 1.0), |s| s.epoch_s).across.0.is_nan());
    }

    #[test]
    fn ratios_of_types_are_compared_between_jobs() {
        let row = |job: &str, gpu_type: &str, epoch: f64| Sample {
            profile: job.to_owned(),
            gpu_type: gpu_type.to_owned(),
            epoch_s: Some(epoch),
            ..table(0.0)[0].clone()
        };
        let jobs = [("a", 2.0), ("b", 2.0), ("c", 3.0)];
        let rows: Vec<Sample> =
            jobs.iter().flat_map(|(job, ratio)| [row(job, "T4", *ratio), row(job, "V100", 1.0)]).collect();
        let found = floor(&rows, |s| s.epoch_s).ratios;
        assert_eq!(found.1, 3);
        assert!((found.0 - 1.5f64.ln() / 2.0).abs() < 1e-9, "{}", found.0);
    }
}
